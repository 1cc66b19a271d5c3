"""Sampling by hand: a table's samples as an iterator of numpy data."""

import time

from reverb_tf import errors, leaves, signatures
from reverb_tf.reverb_types import ReplaySample, SampleInfo

__all__ = ['Sampler']


class Sampler:
    """An iterator of `ReplaySample`; made by `Client.sampler`. One caller at a time.

    Info fields are Python numbers, data leaves numpy arrays (strings: object arrays of
    bytes). Closing or dropping it gives back what was not delivered.
    """

    def __init__(
        self, make_native, get_signature, *, timeout, on_timeout, emit_timesteps, structured
    ):
        self._make_native = make_native
        self._get_signature = get_signature
        self._timeout = timeout
        self._on_timeout = on_timeout
        self._emit_timesteps = emit_timesteps
        self._structured = structured
        self._native = None
        self._signature = None
        self._closed = False

    def __iter__(self):
        return self

    def _start(self):
        self._signature = self._get_signature(self._timeout)
        self._native = self._make_native()

    def _pack(self, columns):
        if not self._structured or self._signature is None:
            return columns
        return signatures.pack_as(self._signature, columns)

    def __next__(self):
        if self._closed:
            raise StopIteration
        wait = self._timeout
        try:
            if self._native is None:
                start = time.monotonic()
                self._start()
                wait = max(0.0, wait - (time.monotonic() - start))
            keys, probabilities, sizes, priorities, times, columns, squeezed = self._native.next(
                wait
            )
        except errors.OutOfRangeError:
            self.close()
            raise StopIteration from None
        except errors.DeadlineExceededError:
            if self._on_timeout == 'end':
                self.close()
                raise StopIteration from None
            raise
        info = SampleInfo(keys[0], probabilities[0], sizes[0], priorities[0], times[0])
        columns = [leaves.from_native(c) for c in columns]
        if not self._emit_timesteps:
            return ReplaySample(info, self._pack(columns))
        if all(squeezed):
            return [ReplaySample(info, self._pack(columns))]
        return [
            ReplaySample(info, self._pack([c[t, ...] for c in columns]))
            for t in range(len(columns[0]))
        ]

    def close(self):
        """Gives back what was granted and not delivered. Idempotent, any thread."""
        self._closed = True
        if self._native is not None:
            self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __del__(self):
        try:
            self.close()
        except Exception:  # noqa: BLE001 (never raises)
            pass
