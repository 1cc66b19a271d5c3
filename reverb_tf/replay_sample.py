"""The classes of samples, under the name of the module that dm-reverb has them in."""

from reverb_tf.reverb_types import ReplaySample, SampleInfo

__all__ = ['ReplaySample', 'SampleInfo']
