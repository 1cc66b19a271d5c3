"""Loads the op library, under the name of the module that dm-reverb has it in."""

from reverb_tf.ops.load import ops

__all__ = ['ops']
