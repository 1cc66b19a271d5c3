"""The only platform there is."""

from reverb_tf.platform.default import ensure_tf_install, load_op_library

__all__ = ['ensure_tf_install', 'load_op_library']
