"""What depends on the platform, under the names of dm-reverb's modules."""

from reverb_tf.platform import default

__all__ = ['default']
