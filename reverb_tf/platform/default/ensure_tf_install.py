"""Checks TensorFlow, under the name of the module that dm-reverb has it in."""

from reverb_tf.ops import load

__all__ = ['ensure_tf_version']


def ensure_tf_version():
    """Refuses a TensorFlow that this package wasn't built for.

    Raises:
      ImportError: it is missing, or of another minor version. Says what to install.
    """
    import tensorflow as tf

    load.check_tensorflow_version(tf.__version__)
