"""Rate limiters: when a table lets inserts and samples through.

With I inserts, S samples, and D removals counted and size = I - D:

    can_sample(n):  size >= min_size      and  I * spi - S - n >= min_diff
    can_insert(n):  size + n <= min_size  or   (I + n) * spi - S <= max_diff

Values: frozen, comparable, usable in many tables; the counters belong to the table.
"""

import dataclasses
import logging
import math
import sys

from reverb_tf import arguments, logs

__all__ = ['RateLimiter', 'MinSize', 'SampleToInsertRatio', 'Queue', 'Stack']

_MAX = sys.float_info.max


@dataclasses.dataclass(frozen=True)
class RateLimiter:
    """The four numbers of a limiter, as given.

    Args:
      samples_per_insert: finite, > 0.
      min_size_to_sample: items the table must hold to be sampled, >= 1.
      min_diff: lowest I * spi - S after a sample; -inf for no bound.
      max_diff: highest I * spi - S after an insert; inf for no bound.
    """

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float

    def __post_init__(self):
        spi = arguments.number(self.samples_per_insert, 'samples_per_insert')
        if not math.isfinite(spi) or spi <= 0:
            raise ValueError(f'samples_per_insert must be finite and > 0, got {spi}')
        low = max(arguments.number(self.min_diff, 'min_diff'), -_MAX)
        high = min(arguments.number(self.max_diff, 'max_diff'), _MAX)
        if low > high:
            raise ValueError(f'min_diff must be <= max_diff, got {low} and {high}')
        if type(self) is RateLimiter and high - low < max(1.0, spi):
            logs.log(
                logging.WARNING,
                f'RateLimiter: max_diff - min_diff = {high - low} is below '
                f'max(1, samples_per_insert) = {max(1.0, spi)}: both sides can block',
            )
        object.__setattr__(self, 'samples_per_insert', spi)
        object.__setattr__(
            self,
            'min_size_to_sample',
            arguments.integer(self.min_size_to_sample, 'min_size_to_sample', 1),
        )
        object.__setattr__(self, 'min_diff', low)
        object.__setattr__(self, 'max_diff', high)

    def __eq__(self, other):
        return isinstance(other, RateLimiter) and self._native_config() == other._native_config()

    def __hash__(self):
        return hash(self._native_config())

    def __repr__(self):
        return (
            f'{type(self).__name__}(samples_per_insert={self.samples_per_insert}, '
            f'min_size_to_sample={self.min_size_to_sample}, min_diff={self.min_diff}, '
            f'max_diff={self.max_diff})'
        )

    def __reduce__(self):
        return (
            RateLimiter,
            (self.samples_per_insert, self.min_size_to_sample, self.min_diff, self.max_diff),
        )

    def _native_config(self):
        return (self.samples_per_insert, self.min_size_to_sample, self.min_diff, self.max_diff)


class MinSize(RateLimiter):
    """Samples wait until the table holds `min_size_to_sample` items; inserts never wait."""

    def __init__(self, min_size_to_sample):
        super().__init__(1.0, min_size_to_sample, -_MAX, _MAX)


class SampleToInsertRatio(RateLimiter):
    """Keeps samples per insert near a ratio.

    Args:
      samples_per_insert: the ratio; finite, > 0.
      min_size_to_sample: items before sampling may start, >= 1.
      error_buffer: how far samples may run ahead or behind: a number e, for bounds of
        spi * min_size -+ e, or the pair (min_diff, max_diff) itself.
    """

    def __init__(self, samples_per_insert, min_size_to_sample, error_buffer):
        spi = arguments.number(samples_per_insert, 'samples_per_insert')
        size = arguments.integer(min_size_to_sample, 'min_size_to_sample', 1)
        low, high = self._bounds(spi, size, error_buffer)
        if high - low < 2 * max(1.0, spi):
            raise ValueError(
                f'error_buffer leaves max_diff - min_diff = {high - low}, which must be at '
                f'least 2 * max(1, samples_per_insert) = {2 * max(1.0, spi)}'
            )
        if low > spi * size:
            raise ValueError(
                f'error_buffer gives min_diff {low} above samples_per_insert * '
                f'min_size_to_sample = {spi * size}: samples could never start'
            )
        if high < spi * size:
            logs.log(
                logging.WARNING,
                f'SampleToInsertRatio: max_diff {high} is below samples_per_insert * '
                f'min_size_to_sample = {spi * size}: inserts need a concurrent sampler',
            )
        super().__init__(spi, size, low, high)

    @staticmethod
    def _bounds(spi, size, error_buffer):
        try:
            low, high = error_buffer
        except (TypeError, ValueError):
            pass
        else:
            return (
                arguments.number(low, 'error_buffer[0]'),
                arguments.number(high, 'error_buffer[1]'),
            )
        try:
            e = arguments.number(error_buffer, 'error_buffer')
        except TypeError as error:
            raise TypeError(f'{error}; it may also be a pair (min_diff, max_diff)') from None
        return spi * size - e, spi * size + e


class Queue(RateLimiter):
    """At most `size` inserts ahead of samples, and no sample without an insert."""

    def __init__(self, size):
        super().__init__(1.0, 1, 0.0, float(arguments.integer(size, 'size', 1)))


class Stack(Queue):
    """The bounds of `Queue`, for a table that samples and removes the newest item."""


def _from_native_config(config):
    spi, size, low, high = config
    limiter = object.__new__(RateLimiter)
    for name, value in zip(
        ('samples_per_insert', 'min_size_to_sample', 'min_diff', 'max_diff'),
        (spi, size, low, high),
        strict=True,
    ):
        object.__setattr__(limiter, name, value)
    return limiter
