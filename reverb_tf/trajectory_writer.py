"""Writing trajectories: append steps, create items that refer to them."""

import logging
import os

import numpy as np

from reverb_tf import _native, dtypes, errors, leaves, logs, signatures, timeouts

__all__ = ['TrajectoryColumn', 'TrajectoryWriter']

_CODECS = {'auto': 0, 'none': 1, 'snappy': 2}
_INF = float('inf')


class _ColumnMeta(type):
    def __instancecheck__(cls, instance):
        return isinstance(instance, _native.TrajectoryColumn)


class TrajectoryColumn(metaclass=_ColumnMeta):
    """Cells of a writer's history, as a column of an item.

    Taken from `writer.history[...]` by an int (squeezed), a slice or a list of ints; or made
    of one-cell columns: `TrajectoryColumn(data_references, squeeze=False, path=None)`.
    Supports `len`, iteration, the same indexing, `.shape`, `.dtype`, `.numpy()` and
    `.is_squeezed`.
    """

    def __new__(cls, data_references, *, squeeze=False, path=None):
        return _native.mix_columns(list(data_references), squeeze, path or '')


def _column_shape(column):
    shape = column._spec()[1]
    return tuple(shape) if column.is_squeezed else (len(column), *shape)


def _column_iter(column):
    return (column[i] for i in range(len(column)))


_native.TrajectoryColumn.__iter__ = _column_iter
_native.TrajectoryColumn.shape = property(
    _column_shape, doc='Shape, with the time dimension unless squeezed.'
)
_native.TrajectoryColumn.dtype = property(
    lambda column: dtypes.to_numpy(column._spec()[0]), doc='numpy dtype; object for strings.'
)
_native.ColumnHistory.__iter__ = lambda history: (history[i] for i in range(len(history)))


def _caster(spec):
    """fn(value, path) that casts to a spec's dtype by numpy's same_kind rule."""
    number = dtypes.number_of(spec.dtype)
    target = dtypes.to_numpy(number)

    def cast(value, path):
        if number == dtypes.STRING:
            return value
        got = leaves.to_bytes(value, path)
        array = np.frombuffer(bytes(got[2]), dtypes.to_numpy(got[0])).reshape(got[1])
        if array.dtype == target:
            return array
        if array.dtype.kind in 'iu' and target.kind in 'iu':
            info = np.iinfo(target)
            if array.size and (array.min() < info.min or array.max() > info.max):
                raise ValueError(f"'{path}': value out of range for {target}")
        elif not np.can_cast(array.dtype, target, casting='same_kind'):
            raise ValueError(f"'{path}': cannot cast {array.dtype} to {target} (same_kind)")
        return np.asarray(array, dtype=target, order='C')

    return cast


class TrajectoryWriter:
    """Appends steps and creates items of them; made by `Client.trajectory_writer`.

    Order of use: ((append | append_batch | create_item | flush)* end_episode)* close. Each
    call is atomic; calls of several threads interleave whole. An item that the server
    refuses raises its error once, at the writer's next call; the writer stays usable.
    """

    def __init__(self, internal, *, step_spec=None, timeout=None):
        self._native = internal
        self._timeout = timeout
        self._pid = os.getpid()
        self._closed = False
        if step_spec is not None:
            for path, spec in signatures.flatten(step_spec):
                internal.set_cast(path, _caster(spec))
            internal.set_structure(step_spec)

    def _check(self):
        if os.getpid() != self._pid:
            raise RuntimeError(
                'this TrajectoryWriter was created before fork; create it in the child or use '
                "the 'spawn' start method"
            )
        if self._closed:
            raise RuntimeError('the writer is closed; get another from the client')

    def append(self, data, *, partial_step=False):
        """Appends one step.

        Args:
          data: nest of arrays, numbers, strings or tensors; None leaves (and paths left
            out) are holes. The first value of a path fixes its dtype and shape.
          partial_step: True leaves the step open for more paths.

        Raises:
          ValueError: with the path: dtype or shape differs, or a path set twice in a step.
          TypeError: with the path: a value that can't be stored.
        """
        if self._closed or os.getpid() != self._pid:
            self._check()
        self._native.append(data, partial_step)

    def append_batch(self, data):
        """Appends T steps; leaves are [T, ...] with one T >= 1 for all."""
        self._check()
        self._native.append_batch(data)

    @property
    def history(self):
        """The episode's cells: a nest as appended, each leaf indexed like a list."""
        return self._native.history()

    @property
    def episode_steps(self):
        """Closed steps since the last `end_episode`."""
        return self._native.episode_steps

    @property
    def step_is_open(self):
        """Whether a partial step waits for more."""
        return self._native.step_is_open

    @property
    def pending_items(self):
        """Items created and not confirmed by the server."""
        return self._native.pending_items

    @property
    def pending_bytes(self):
        """Bytes of data of pending items."""
        return self._native.pending_bytes

    @property
    def rejected_items(self):
        """Items that the server refused."""
        return self._native.rejected_items

    def configure(
        self,
        path,
        *,
        num_keep_alive_refs=None,
        max_chunk_length=None,
        codec=None,
        delta_encode=None,
    ):
        """Sets options of one column, also before it exists.

        Args:
          path: 'a/b[0]', or a tuple of keys and positions.
          num_keep_alive_refs: newest cells that items may refer to, >= 1.
          max_chunk_length: rows a chunk, 1 ... num_keep_alive_refs; None: automatic.
          codec: 'auto' (snappy where it saves 10 %), 'snappy' or 'none'.
          delta_encode: not offered for writing by this version.
        """
        self._check()
        if isinstance(path, (tuple, list)):
            path = ''.join(
                f'[{p}]' if isinstance(p, int) else ('/' if i else '') + str(p)
                for i, p in enumerate(path)
            )
        if codec is not None and codec not in _CODECS:
            raise ValueError(f'codec must be one of {sorted(_CODECS)}, got {codec!r}')
        self._native.configure(
            path,
            num_keep_alive_refs,
            max_chunk_length,
            None if codec is None else _CODECS[codec],
            delta_encode,
        )

    def create_item(self, table, priority, trajectory, *, timeout=None):
        """Queues an item of the given columns.

        Args:
          table: its name.
          priority: number; finite and >= 0 for tables with `Prioritized`.
          trajectory: nest of `TrajectoryColumn`.
          timeout: seconds, for writers that bound what is in flight.

        Returns:
          The item's key, an int.

        Raises:
          TypeError: a leaf that is no TrajectoryColumn; names the path.
          ValueError: empty or expired columns, holes, a bad priority, an unknown table, or
            a trajectory that doesn't match the table's signature.
        """
        if self._closed or os.getpid() != self._pid:
            self._check()
        seconds = _INF if timeout is None else timeouts.resolve(timeout)
        return self._native.create_item(table, float(priority), trajectory, seconds)

    def flush(self, block_until_num_items=0, timeout_ms=None, *, timeout=None):
        """Waits until at most `block_until_num_items` items are unconfirmed.

        Confirmed means inserted by the table. On `DeadlineExceededError` the work goes on.
        """
        self._check()
        if block_until_num_items < 0:
            raise ValueError(f'block_until_num_items must be >= 0, got {block_until_num_items}')
        self._native.flush(
            int(block_until_num_items), timeouts.resolve(timeout, self._timeout, timeout_ms)
        )

    def end_episode(self, clear_buffers=True, timeout_ms=None, *, timeout=None):
        """Closes an open step, flushes and starts a new episode.

        On an error the episode has ended all the same. `clear_buffers=False` keeps the
        history for items that span episodes.
        """
        self._check()
        self._native.end_episode(
            bool(clear_buffers), timeouts.resolve(timeout, self._timeout, timeout_ms)
        )

    def close(self, timeout=None):
        """Flushes for at most `timeout` seconds (None: 5, 0: not at all), then drops the rest.

        Returns:
          The number of items dropped; a warning names their tables if there are any.
        """
        if self._closed or os.getpid() != self._pid:
            return 0
        self._closed = True
        return self._native.close(5.0 if timeout is None else timeouts.resolve(timeout))

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, tb):
        if self._closed:
            return
        if exc_type is None:
            self.flush()
        elif issubclass(exc_type, errors.ReverbError):
            if self.pending_items:
                logs.log(logging.WARNING, f'writer left with {self.pending_items} items pending')
        else:
            try:
                self.flush(timeout=2)
            except Exception as e:  # noqa: BLE001 (the original propagates)
                logs.log(logging.WARNING, f'flush on the way out failed: {e}')

    def __del__(self):
        try:
            self.close(timeout=2)
        except Exception:  # noqa: BLE001 (never raises)
            pass
