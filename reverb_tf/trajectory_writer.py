"""Writing trajectories: append steps, create items that refer to them."""

import logging

import numpy as np

from reverb_tf import (
    _native,
    arguments,
    dtypes,
    errors,
    leaves,
    logs,
    signatures,
    timeouts,
    writer_seam,
)

__all__ = ['TrajectoryColumn', 'TrajectoryWriter']

_CODECS = {'auto': 0, 'none': 1, 'snappy': 2}


class _ColumnMeta(type):
    def __instancecheck__(cls, instance):
        return isinstance(instance, (_native.TrajectoryColumn, writer_seam.Column))


class TrajectoryColumn(metaclass=_ColumnMeta):
    """Cells of a writer's history, as a column of an item.

    Taken from `writer.history[...]` by an int (squeezed), a slice or a list of ints; or made
    of one-cell columns: `TrajectoryColumn(data_references, squeeze=False, path=None)`.
    Supports `len`, iteration, the same indexing, `.shape`, `.dtype`, `.numpy()` and
    `.is_squeezed`.
    """

    def __new__(cls, data_references, *, squeeze=False, path=None):
        references = arguments.sequence(data_references, 'data_references', 'TrajectoryColumns')
        squeeze = arguments.boolean(squeeze, 'squeeze')
        if references and _is_foreign(references[0]):
            return writer_seam.Column(references, squeeze=squeeze, path=path or ())
        return _native.mix_columns(
            references,
            squeeze,
            '' if path is None else _path_text(path),
        )


def _is_foreign(reference):
    """Whether it is a cell of an object that stands in for the native library."""
    return not isinstance(reference, _native.TrajectoryColumn) and hasattr(reference, 'numpy')


# Read by programs that put an object of their own under a TrajectoryWriter.
_ColumnHistory = writer_seam.ColumnHistory


def _column_shape(column):
    shape = column._spec()[1]
    return tuple(shape) if column.is_squeezed else (len(column), *shape)


_read = _native.TrajectoryColumn.numpy


def _column_numpy(column):
    """The cells as a numpy array, [T, ...], or the cell itself if squeezed."""
    if not column.is_squeezed and len(column) == 0:
        return np.empty(column.shape, column.dtype)
    return leaves.from_native(_read(column))


def _column_iter(column):
    return (column[i] for i in range(len(column)))


_native.TrajectoryColumn.__iter__ = _column_iter
_native.TrajectoryColumn.numpy = _column_numpy
_native.TrajectoryColumn.shape = property(
    _column_shape, doc='Shape, with the time dimension unless squeezed.'
)
_native.TrajectoryColumn.dtype = property(
    lambda column: dtypes.to_numpy(column._spec()[0]), doc='numpy dtype; object for strings.'
)
_native.ColumnHistory.__iter__ = lambda history: (history[i] for i in range(len(history)))
_native.ColumnHistory._path = property(lambda history: signatures.split(history.path))


def _path_text(path, name='path'):
    """A path as 'a/b[0]', of that or of a sequence of keys and positions."""
    if isinstance(path, (tuple, list)):
        return ''.join(
            f'[{p}]' if isinstance(p, int) else ('/' if i else '') + str(p)
            for i, p in enumerate(path)
        )
    return arguments.text(path, name) if path != '' else path


def _cast_number(array, target, path):
    if array.dtype.kind in 'iu' and target.kind in 'iu':
        info = np.iinfo(target)
        if array.size and (array.min() < info.min or array.max() > info.max):
            raise ValueError(f"'{path}': value out of range for {target}")
    elif not np.can_cast(array.dtype, target, casting='same_kind'):
        raise ValueError(f"'{path}': cannot cast {array.dtype} to {target} (same_kind)")
    return array.astype(target, order='C')


def _check_shape(got, expected, path, is_batch):
    cell = got[1:] if is_batch else got
    if expected is None or (
        len(cell) == len(expected)
        and all(e in (None, c) for c, e in zip(cell, expected, strict=True))
    ):
        return
    steps = f' in each of {got[0]} steps' if is_batch and got else ''
    raise ValueError(f"'{path}': got shape {tuple(cell)}{steps}, expected {expected}")


def caster(number, shape=None):
    """fn(value, path, is_batch) that casts to a dtype by numpy's same_kind rule.

    `shape`, of a cell, is checked unless it is None.
    """
    target = dtypes.to_numpy(number)

    def cast(value, path, is_batch):
        if isinstance(value, np.ndarray) and value.dtype == target and number != dtypes.STRING:
            _check_shape(value.shape, shape, path, is_batch)
            return value
        got, got_shape, data = leaves.to_bytes(value, path)
        _check_shape(got_shape, shape, path, is_batch)
        if number == got == dtypes.STRING:
            return value
        if dtypes.STRING in (number, got):
            raise ValueError(f"'{path}': got {dtypes.name(got)}, expected {dtypes.name(number)}")
        array = np.frombuffer(data, dtypes.to_numpy(got)).reshape(got_shape)
        return array if got == number else _cast_number(array, target, path)

    return cast


def flush_on_error(writer, exc_type):
    """What leaving a writer's `with` by an exception does; never raises.

    An error of this package flushes nothing: it may well be about what is pending.
    """
    if issubclass(exc_type, errors.ReverbError):
        if writer.pending_items:
            logs.log(logging.WARNING, f'writer left with {writer.pending_items} items pending')
        return
    try:
        writer.flush(timeout=2)
    except Exception as e:  # noqa: BLE001 (the original propagates)
        logs.log(logging.WARNING, f'flush on the way out failed: {e}')


class TrajectoryWriter:
    """Appends steps and creates items of them; made by `Client.trajectory_writer`.

    Order of use: ((append | append_batch | create_item | flush)* end_episode)* close. Each
    call is atomic; calls of several threads interleave whole. An item that the server
    refuses raises its error once, at the writer's next call; the writer stays usable.
    """

    _foreign = writer_seam.ForeignWriter  # over an `internal` that isn't the native library's

    def __init__(self, internal, *, step_spec=None, timeout=None):
        is_native = isinstance(internal, (_native.Writer, _native.StructuredWriter))
        self._native = internal if is_native else self._foreign(internal)
        self._timeout = timeout
        self._wait = timeouts.resolve(None, timeout)  # of create_item, which is called often
        self._closed = False
        self._shapes = {}  # by path, of a step_spec
        if step_spec is not None:
            for path, spec in signatures.flatten(step_spec):
                number = signatures.spec_number(spec, f"step_spec leaf '{path}'")
                self._shapes[path] = signatures.shape_of(spec)
                internal.set_cast(path, caster(number, self._shapes[path]))
            internal.set_structure(signatures.map_structure(lambda _: 0, step_spec))

    def _check(self):
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
        dtype=None,
    ):
        """Sets options of one column, also before it exists.

        Args:
          path: 'a/b[0]', or a tuple of keys and positions.
          num_keep_alive_refs: newest cells that items may refer to, >= 1.
          max_chunk_length: rows a chunk, 1 ... num_keep_alive_refs; None: automatic.
          codec: 'auto' (snappy where it saves 10 %), 'snappy' or 'none'.
          delta_encode: integers of rank 1 and up are stored as differences of neighbouring
            rows where they are compressed; lossless, smaller for what changes slowly.
          dtype: values are cast to it by numpy's same_kind rule, integers range-checked.

        Raises:
          ValueError: a number out of its bounds, an unknown codec or dtype.
          FailedPreconditionError: cells of the column are unsent, or are of another dtype.
        """
        self._check()
        path = _path_text(path)
        number = None if dtype is None else self._check_dtype(path, dtype)
        if codec is not None and codec not in list(_CODECS):
            raise ValueError(f'codec must be one of {sorted(_CODECS)}, got {codec!r}')

        def count(value, name):
            return None if value is None else arguments.integer(value, name, 1)

        self._native.configure(
            path,
            count(num_keep_alive_refs, 'num_keep_alive_refs'),
            count(max_chunk_length, 'max_chunk_length'),
            None if codec is None else _CODECS[codec],
            None if delta_encode is None else arguments.boolean(delta_encode, 'delta_encode'),
        )
        if number is not None:
            self._native.set_cast(path, caster(number, self._shapes.get(path)))

    def _check_dtype(self, path, dtype):
        number = dtypes.number_of(dtype)
        if number is None:
            raise ValueError(f'dtype {dtype!r} is not supported')
        present = self._native.dtype_of(path)
        if present not in (0, number):
            raise errors.FailedPreconditionError(
                f"configure '{path}': the column has cells of {dtypes.name(present)}, so its "
                f'dtype cannot become {dtypes.name(number)}; configure before the first append'
            )
        return number

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
        self._check()
        seconds = self._wait if timeout is None else timeouts.check(timeout, 'timeout')
        return self._native.create_item(
            arguments.text(table, 'table'),
            arguments.number(priority, 'priority'),
            trajectory,
            seconds,
        )

    def flush(self, block_until_num_items=0, timeout_ms=None, *, timeout=None):
        """Waits until at most `block_until_num_items` items are unconfirmed.

        Confirmed means inserted by the table. On `DeadlineExceededError` the work goes on.
        """
        self._check()
        self._native.flush(
            arguments.integer(block_until_num_items, 'block_until_num_items', 0),
            timeouts.resolve(timeout, self._timeout, timeout_ms),
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
        if self._closed:
            return 0
        seconds = 5.0 if timeout is None else timeouts.check(timeout, 'timeout')
        self._closed = True
        return self._native.close(seconds)

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, tb):
        if self._closed:
            return
        if exc_type is None:
            self.flush()
        else:
            flush_on_error(self, exc_type)

    def __del__(self):
        try:
            self.close(timeout=2)
        except Exception:  # noqa: BLE001 (never raises)
            pass
