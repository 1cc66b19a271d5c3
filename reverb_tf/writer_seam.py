"""Writers over any object with dm-reverb's native method names, such as a mock.

The object has `Append(cells)`, `AppendPartial(cells)` (one value or None a column, in the
order of first appearance; they return one reference or None a column), `CreateItem(table,
priority, references, squeeze)`, `Flush(n, timeout_ms)`, `EndEpisode(clear, timeout_ms)`,
`Close()`, `ConfigureChunker(column, options)`, `max_num_keep_alive_refs` and `episode_steps`.
"""

import math

from reverb_tf import arguments, signatures

__all__ = ['Column', 'ColumnHistory', 'ForeignStructuredWriter', 'ForeignWriter']


def _children(nest):
    """[(key, child)] of a container, in order; None for a leaf."""
    if isinstance(nest, dict):
        return [(key, nest[key]) for key in sorted(nest)]
    if signatures.is_namedtuple(nest):
        return list(zip(nest._fields, nest))
    if isinstance(nest, (list, tuple)):
        return list(enumerate(nest))
    return None


def _rebuild(nest, pairs):
    """A container like `nest` of other (key, child) pairs."""
    if isinstance(nest, dict):
        return dict(pairs)
    values = [value for _, value in pairs]
    return type(nest)(*values) if signatures.is_namedtuple(nest) else type(nest)(values)


def _map(fn, nest, path=()):
    """`nest` with fn(path, leaf) for each leaf, None included."""
    pairs = _children(nest)
    if pairs is None:
        return fn(path, nest)
    return _rebuild(nest, [(key, _map(fn, child, (*path, key))) for key, child in pairs])


def _flatten(nest):
    """{path: leaf}, in order."""
    leaves = {}
    _map(leaves.__setitem__, nest)
    return leaves


def _merge(old, new):
    """A structure with the paths of both; ValueError if a leaf of one is none of the other."""
    before, after = _children(old), _children(new)
    if before is None and after is None:
        return old
    if before is None or after is None or isinstance(old, dict) != isinstance(new, dict):
        raise ValueError('the container at a path must not change')
    pairs = dict(before)
    for key, child in after:
        pairs[key] = _merge(pairs[key], child) if key in pairs else child
    return _rebuild(new if len(after) >= len(before) else old, list(pairs.items()))


class Column:
    """References chosen for an item."""

    def __init__(self, data_references, *, squeeze=False, path=()):
        self._data_references = tuple(data_references)
        self.is_squeezed = squeeze
        self.path = path
        if any(reference is None for reference in self._data_references):
            raise ValueError(
                f'a TrajectoryColumn cannot contain any None data references, at path {path}'
            )
        if squeeze and len(self._data_references) != 1:
            raise ValueError(
                f'squeeze needs exactly one data reference, got {len(self._data_references)}'
            )

    def __len__(self):
        return len(self._data_references)

    def __iter__(self):
        return iter(self._data_references)

    def __getitem__(self, index):
        return _choose(self._data_references, index, self.path)

    @property
    def dtype(self):
        """Dtype of the cells."""
        return self._data_references[0].dtype

    @property
    def shape(self):
        """Shape, with the time dimension unless squeezed."""
        shape = tuple(self._data_references[0].shape)
        return shape if self.is_squeezed else (len(self), *shape)

    def numpy(self):
        """The cells' values."""
        import numpy as np

        values = [reference.numpy() for reference in self._data_references]
        return values[0] if self.is_squeezed else np.stack(values)


def _choose(references, index, path):
    """The column of what an int, a slice or a list of ints chooses of `references`."""
    path = (*path, index) if not isinstance(index, list) else path
    if isinstance(index, slice):
        return Column(references[index], path=path)
    if isinstance(index, (list, tuple)):
        return Column([references[i] for i in index], path=path)
    return Column([references[arguments.integer(index, 'index')]], squeeze=True, path=path)


class ColumnHistory:
    """One column's references, a step each; None for holes and what has expired."""

    def __init__(self, path, num_holes):
        self._path = path
        self._references = [None] * num_holes

    @property
    def path(self):
        """Keys and positions."""
        return self._path

    def __len__(self):
        return len(self._references)

    def __iter__(self):
        return iter(self._references)

    def __getitem__(self, index):
        return _choose(self._references, index, self._path)

    @property
    def is_set(self):
        """Whether the newest step has a cell here."""
        return bool(self._references) and self._references[-1] is not None

    def put(self, reference, new_step, keep):
        """Sets the cell of a new step, or of the open one if it isn't set."""
        if new_step:
            self._references.append(reference)
        elif reference is not None:
            self._references[-1] = reference
        if len(self._references) > keep:
            self._references[-keep - 1] = None

    def clear(self):
        """Forgets all cells."""
        self._references.clear()


def _milliseconds(seconds, forever):
    return forever if math.isinf(seconds) else round(seconds * 1000)


class ForeignWriter:
    """What `TrajectoryWriter` asks of the native library, of such an object."""

    pending_items = pending_bytes = rejected_items = 0  # it has no name for them

    def __init__(self, internal):
        self._internal = internal
        self._structure = None
        self._columns = {}  # path -> history
        self._options = {}  # path as text -> options, of columns that aren't there yet
        self._num_steps = 0
        self.step_is_open = False

    @property
    def episode_steps(self):
        """As the object says."""
        return self._internal.episode_steps

    def append(self, data, partial_step):
        """Appends the leaves of one step, or of a part of it."""
        leaves = _flatten(data)
        for path, column in self._columns.items():
            if self.step_is_open and column.is_set and leaves.get(path) is not None:
                raise ValueError(
                    f'{path} has already been set in the active step: leave it out, or give None'
                )
        self._grow(data, leaves)
        cells = [leaves.get(path) for path in self._columns]
        call = self._internal.AppendPartial if partial_step else self._internal.Append
        references = call(cells)
        keep = self._internal.max_num_keep_alive_refs
        for column, reference in zip(self._columns.values(), references, strict=True):
            column.put(reference, not self.step_is_open, keep)
        self._num_steps += not self.step_is_open
        self.step_is_open = partial_step

    def append_batch(self, data):
        """Appends the T steps of [T, ...] leaves."""
        for i in range(len(next(iter(_flatten(data).values())))):
            self.append(_map(lambda _, leaf, i=i: leaf[i], data), False)

    def _grow(self, data, leaves):
        structure = _merge(self._structure, data) if self._columns else data
        self._structure = _map(lambda *_: None, structure)
        for path in leaves:
            if path in self._columns:
                continue
            self._columns[path] = ColumnHistory(path, self._num_steps)
            options = self._options.pop(_text(path), None)
            if options is not None:
                self._internal.ConfigureChunker(len(self._columns) - 1, options)

    def history(self):
        """The columns' histories in the structure of the steps."""
        if not self._columns:
            raise RuntimeError('history cannot be accessed before the first append')
        return _map(lambda path, _: self._columns[path], self._structure)

    def configure(self, path, num_keep_alive_refs, max_chunk_length, *others):
        """Passes the options on, now or when the column appears."""
        from reverb_tf import pybind

        if any(other is not None for other in others):
            raise NotImplementedError('this writer takes chunk options only')
        if max_chunk_length is None:
            options = pybind.AutoTunedChunkerOptions(num_keep_alive_refs)
        else:
            options = pybind.ConstantChunkerOptions(max_chunk_length, num_keep_alive_refs)
        for i, column in enumerate(self._columns):
            if _text(column) == path:
                self._internal.ConfigureChunker(i, options)
                return
        self._options[path] = options

    def create_item(self, table, priority, trajectory, seconds):
        """Creates an item of `Column`s."""
        del seconds  # it has no bound to wait for
        columns = _flatten(trajectory)
        for path, column in columns.items():
            if not isinstance(column, Column):
                raise TypeError(
                    f'trajectory leaf {path} must be a TrajectoryColumn, got '
                    f'{type(column).__name__}'
                )
        return self._internal.CreateItem(
            table,
            priority,
            [list(column) for column in columns.values()],
            [column.is_squeezed for column in columns.values()],
        )

    def flush(self, ignore_last, seconds):
        """Flushes; -1 stands for no timeout."""
        self._internal.Flush(ignore_last, _milliseconds(seconds, -1))

    def end_episode(self, clear_buffers, seconds):
        """Ends the episode; None stands for no timeout."""
        self.step_is_open = False
        if clear_buffers:
            self._num_steps = 0
            for column in self._columns.values():
                column.clear()
        self._internal.EndEpisode(clear_buffers, _milliseconds(seconds, None))

    def close(self, seconds):
        """Closes; nothing is known to be dropped."""
        del seconds
        self._internal.Close()
        return 0


class ForeignStructuredWriter(ForeignWriter):
    """The same for `StructuredWriter`: the object has no references and no items to create.

    It has `step_is_open` besides, and takes None for no timeout.
    """

    skipped_items = 0
    step_is_open = property(lambda self: self._internal.step_is_open)

    def __init__(self, internal):
        self._internal = internal
        self._width = None

    def append(self, data, partial_step, seconds=None):
        """Appends the leaves of one step, as many as in the first."""
        del seconds
        cells = list(_flatten(data).values())
        if self._width not in (None, len(cells)):
            raise ValueError(f'the step has {len(cells)} leaves, expected {self._width}')
        self._width = len(cells)
        (self._internal.AppendPartial if partial_step else self._internal.Append)(cells)

    def append_batch(self, data, seconds=None):
        """Appends the T steps of [T, ...] leaves."""
        del seconds
        super().append_batch(data)

    def flush(self, ignore_last, seconds):
        """Flushes."""
        self._internal.Flush(ignore_last, _milliseconds(seconds, None))

    def end_episode(self, clear_buffers, seconds):
        """Ends the episode."""
        self._internal.EndEpisode(clear_buffers, _milliseconds(seconds, None))


def _text(path):
    """A path as 'a/b[0]'."""
    text = ''
    for key in path:
        text = signatures.join(text, f'[{key}]' if isinstance(key, int) else str(key))
    return text
