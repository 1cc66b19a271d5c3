"""TFTrajectoryWriter: a trajectory writer whose calls are ops.

Importing this module registers the ops; a program that loads an exported actor needs no
more of it.
"""

import contextlib
import math
import operator

import numpy as np
import tensorflow as tf

from reverb_tf import arguments, signatures, structured_writer, timeouts
from reverb_tf import trajectory_writer as eager
from reverb_tf.ops import load
from reverb_tf.tf_client import ANONYMOUS, TFClient

__all__ = ['TFTrajectoryWriter']

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_MAX_ENVS = 2**16

load.ops()


def _method(function):
    """A method whose own Python is not for AutoGraph to convert."""
    return tf.autograph.experimental.do_not_convert(function)


class TFTrajectoryWriter(tf.saved_model.experimental.TrackableResource):
    """Appends steps and creates items of them, from within a graph.

    The calls are ops, usable in eager mode, `tf.function`, `tf.while_loop` and `tf.cond`; in a
    `tf.function` those of one writer run in program order:

        @tf.function
        def collect(n):
          for i in tf.range(n):
            writer.append({'obs': env_step(i), 'rew': reward(i)})
            if i >= 4:
              writer.create_item('t', 1.0, {'obs': writer.history['obs'][-5:]})
          writer.end_episode()

    What is refused at once raises `tf.errors.InvalidArgumentError` at that op (`ValueError` if
    it can be told before), what the server refuses at the next op on the writer. Appending and
    creating items never wait, unless `max_in_flight_items` is set. Dropping the writer flushes
    for at most two seconds.

    An attribute of a `tf.Module`, it is exported with it: a program that loads the SavedModel
    gets a writer of its own to the same address.

    Vectorised environments: with `num_envs=N` the writer is of N environments, each with an
    episode and a history of its own, and a call is one op for all of them:

        writer = TFTrajectoryWriter(client, spec, 5, num_envs=N)

        @tf.function
        def collect(n):
          for _ in tf.range(n):
            writer.append({'obs': obs, 'rew': rew})            # leaves [N, ...]
            writer.create_item('t', priorities, {'obs': writer.history['obs'][-5:]},
                               mask=writer.episode_steps >= 5)  # one item for each that is on
            writer.end_episode(mask=done)                      # bool [N]

    - What is a scalar for one environment is a vector here: data of `append` are [N, ...], of
      `append_batch` [N, T, ...]; steps, `episode_steps` and keys are [N]; a priority is a scalar
      or [N]; a `mask`, bool [N], tells the environments that a call is about (None: all).
    - A slice or an index is the same for all, and each takes it from its own history. Where an
      item can't be made, since the history is too short say, the call is refused; mask such
      environments.
    - All or nothing: a call that is refused changes nothing for any environment. The error says
      which it is: "environment 2: column 'obs': ...".
    - Items are in the order of calls, and within one of environments. `pending_items`, `flush`,
      `max_in_flight_items` (which a call waits for as a whole; the items of one that makes
      more are let in when nothing is pending) and `close` are of the items of all; so is the
      flush of an `end_episode`, which is left out if no episode ends.
    - With `configs` each environment's steps make items by themselves. Then `append_batch` is
      refused. An item that its config can't make (a priority by `td_error` that is not finite)
      is the error of an append that is done for all, as without `num_envs`.
    """

    def __init__(
        self,
        client,
        step_spec,
        num_keep_alive_refs,
        *,
        configs=None,
        validate_items=True,
        max_in_flight_items=None,
        shared_name=None,
        num_envs=None,
    ):
        """Makes the writer, in eager mode or in the present TF1 graph.

        Args:
          client: `TFClient`, or what one is made of: `Client` or address.
          step_spec: nest of `tf.TensorSpec` of a step. Values are cast to the dtypes by numpy's
            same_kind rule; integers are range-checked.
          num_keep_alive_refs: newest cells of each column that items may refer to, >= 1.
          configs: sequence of `structured.create_config(...)`: items are created as they say,
            after each step, and not by `create_item`.
          validate_items: items are checked against the tables' signatures when they are
            created. Waits for the server, since the signatures are fetched now.
          max_in_flight_items: creating an item waits while so many are unconfirmed; None: never.
          shared_name: writers of one name are one, and must be alike; None: one of its own.
          num_envs: N, of vectorised environments (see above); None: one, without a dimension
            for it.

        Raises:
          ValueError: a leaf of step_spec that is no spec or can't be stored, or a number out of
            its bounds.
          InvalidArgumentError: a config that is bad or doesn't fit the step or its table.
        """
        super().__init__()
        self._client = client if isinstance(client, TFClient) else TFClient(client)
        self._spec = step_spec
        self._num_envs = (
            None if num_envs is None else arguments.integer(num_envs, 'num_envs', 1, _MAX_ENVS)
        )
        self._columns = _columns(step_spec, self._num_envs)
        self._attrs = {
            'step_dtypes': [column.dtype for column in self._columns.values()],
            'step_shapes': [column.shape for column in self._columns.values()],
            'step_paths': list(self._columns),
            'num_keep_alive_refs': arguments.integer(num_keep_alive_refs, 'num_keep_alive_refs', 1),
            'validate_items': arguments.boolean(validate_items, 'validate_items'),
            'max_in_flight_items': 0
            if max_in_flight_items is None
            else arguments.integer(max_in_flight_items, 'max_in_flight_items', 1),
            'configs': [] if configs is None else structured_writer.serialize(configs),
            'num_envs': self._num_envs or 0,
        }
        if configs is not None and not self._attrs['configs']:
            raise ValueError('configs must hold at least one config, got none')
        self._shared_name = shared_name
        handle = self._client.handle
        in_function = tf.inside_function() and not hasattr(handle, 'numpy')
        # The writer outlives a tf.function that makes it, if its client does.
        with contextlib.nullcontext() if in_function else tf.init_scope():
            self._resource_handle = self._make(handle)

    def _make(self, client_handle):
        name = self._shared_name
        if name is None:
            name = ANONYMOUS if tf.executing_eagerly() else ''
        return load.ops().reverb_tf_trajectory_writer_handle(
            client_handle, shared_name=name, **self._attrs
        )

    def _create_resource(self):
        """The handle in a program that loads the exported writer; see TrackableResource."""
        ops = load.ops()
        address = tf.convert_to_tensor(self._client.server_address)
        client = ops.reverb_tf_client_handle(address, shared_name=ANONYMOUS)
        return ops.reverb_tf_trajectory_writer_handle(
            client, shared_name=self._shared_name or ANONYMOUS, **self._attrs
        )

    @property
    def num_envs(self):
        """Number of vectorised environments, an int; None if it isn't of such."""
        return self._num_envs

    # ---- Steps -------------------------------------------------------------------

    @_method
    def append(self, data, *, partial_step=False, mask=None):
        """Appends one step, or with `num_envs` one to each environment.

        Args:
          data: nest as step_spec, of tensors, arrays, numbers or strings; [...] as the spec
            says, or [N, ...]. Leaves that are None or left out are holes.
          partial_step: the step stays open for more leaves; the next append without it closes
            it.
          mask: bool [N], the environments that have a step now; the data of others are not
            looked at. None: all.

        Returns:
          The step's index in the episode, int64 [], or [N] with -1 where the mask is false.

        Raises:
          ValueError: a path that is not in step_spec, or a value or mask that is known not to
            fit.
          InvalidArgumentError: with the path: another dtype or shape, or a leaf set twice in a
            step. Nothing was appended.
        """
        cells, columns = self._cells(data, is_batch=False)
        return load.ops().reverb_tf_trajectory_writer_append(
            self.resource_handle,
            cells,
            self._mask(mask),
            columns=columns,
            partial_step=arguments.boolean(partial_step, 'partial_step'),
            num_envs=self._attrs['num_envs'],
        )

    @_method
    def append_batch(self, data, *, mask=None):
        """Appends T steps, or with `num_envs` as many to each environment.

        Args:
          data: as of `append`, with leaves [T, ...], or [N, T, ...], with one T >= 1 for all.
          mask: bool [N], the environments that have steps now. None: all.

        Returns:
          The first step's index in the episode, int64 [], or [N] with -1 where the mask is
          false.

        Raises:
          ValueError: as of `append`; also for a writer with both `num_envs` and `configs`.
          InvalidArgumentError: as of `append`; also while a step is open.
        """
        if self._num_envs is not None and self._attrs['configs']:
            raise ValueError(
                'a TFTrajectoryWriter with num_envs and configs has no append_batch; append '
                'one step at a time'
            )
        cells, columns = self._cells(data, is_batch=True)
        if not cells:
            raise ValueError('data must have at least one leaf that is not None')
        return load.ops().reverb_tf_trajectory_writer_append_batch(
            self.resource_handle,
            cells,
            self._mask(mask),
            columns=columns,
            num_envs=self._attrs['num_envs'],
        )

    def _cells(self, data, is_batch):
        """The tensors of the leaves, and their columns (none: all)."""
        cells, positions = [], []
        for path, leaf in signatures.flatten(data):
            if leaf is None and self._has_columns_at(path):
                continue
            column = self._columns.get(path)
            if column is None:
                raise ValueError(
                    f"'{path}' is not in the step_spec, which has {', '.join(self._columns)}"
                    + self._list_hint(path)
                )
            cells.append(column.cell(leaf, is_batch))
            positions.append(column.position)
        return cells, [] if positions == list(range(len(self._columns))) else positions

    def _list_hint(self, path):
        leaf = next((c for c in self._columns if path.startswith(c + '[')), None)
        return '' if leaf is None else f"; '{leaf}' must be an array or a tensor, not a list"

    def _has_columns_at(self, path):
        inside = (path + '/', path + '[')
        return not path or any(c == path or c.startswith(inside) for c in self._columns)

    def _mask(self, mask):
        """The op's list of at most one mask."""
        if mask is None:
            return []
        if self._num_envs is None:
            raise ValueError('mask is for writers of several environments; make it with num_envs')
        if not tf.is_tensor(mask):
            mask = np.asarray(mask)
        dtype = tf.as_dtype(mask.dtype)
        if dtype != tf.bool:
            raise TypeError(f'mask must be of bools, got {dtype.name}')
        if not tf.TensorShape([self._num_envs]).is_compatible_with(mask.shape):
            raise ValueError(f'mask: got shape {tuple(mask.shape)}, expected ({self._num_envs},)')
        return [mask]

    @property
    def episode_steps(self):
        """Closed steps since the last `end_episode`, int64 [] or [N]."""
        return load.ops().reverb_tf_trajectory_writer_episode_steps(
            self.resource_handle, num_envs=self._attrs['num_envs']
        )

    # ---- Items -------------------------------------------------------------------

    @property
    def history(self):
        """The episode's cells: a nest as step_spec, of leaves that are indexed like lists.

        A leaf takes an int, a slice or a list of ints (also a tuple, or an array or tensor of
        rank 1); each may be a scalar tensor. Negative ones count from the newest cell. They
        are looked up when the item is created or the column read. With `num_envs` they are
        the same for all environments, each with its own history.
        """
        self._check_history('history')
        columns = self._columns.items()
        return signatures.pack_as(self._spec, [_ColumnHistory(self, p, c) for p, c in columns])

    @_method
    def create_item(self, table, priority, trajectory, *, mask=None):
        """Queues an item of the given columns, or with `num_envs` one for each environment.

        Args:
          table: str or scalar string tensor.
          priority: number or scalar tensor, or [N] of an environment each; finite and >= 0 for
            tables with `Prioritized`.
          trajectory: nest of `history[...][...]`.
          mask: bool [N], the environments that an item is made of. None: all.

        Returns:
          The item's key, uint64 [], or [N] with 0 where the mask is false.

        Raises:
          TypeError: a leaf that is no column; names the path.
          ValueError: no leaf, one of another writer, or a priority or mask of another shape.
          InvalidArgumentError: an index out of range, an empty or expired column, holes, a bad
            priority, an unknown table, or a trajectory that doesn't match the table's
            signature.
        """
        self._check_history('create_item')
        flat = signatures.flatten(trajectory)
        for path, column in flat:
            if not isinstance(column, _Column):
                raise TypeError(
                    f"trajectory leaf '{path}' must be a column (writer.history[...][...]), got "
                    f'{type(column).__name__}'
                )
            if column.writer is not self:
                raise ValueError(f"trajectory leaf '{path}' belongs to another writer")
        if not flat:
            raise ValueError('trajectory must have at least one column')
        columns = [column for _, column in flat]
        listed = [k for k, column in enumerate(columns) if column.indices is not None]
        return load.ops().reverb_tf_trajectory_writer_create_item(
            self.resource_handle,
            table if tf.is_tensor(table) else arguments.text(table, 'table'),
            self._priority(priority),
            _stack(column.start for column in columns),
            _stack(column.stop for column in columns),
            _stack(column.step for column in columns),
            [columns[k].indices for k in listed],
            self._mask(mask),
            sources=[column.spec.position for column in columns],
            squeeze=[column.is_squeezed for column in columns],
            paths=[path for path, _ in flat],
            has_start=[column.start is not None for column in columns],
            has_stop=[column.stop is not None for column in columns],
            listed=listed,
            num_envs=self._attrs['num_envs'],
        )

    def _priority(self, value):
        if tf.is_tensor(value):
            return tf.cast(value, tf.float64)
        is_list = isinstance(value, (list, tuple))
        if self._num_envs is None or not (is_list or np.ndim(value) == 1):
            return tf.constant(arguments.number(value, 'priority'), tf.float64)
        if is_list and any(tf.is_tensor(v) for v in value):
            return tf.stack([tf.cast(v, tf.float64) for v in value])
        array = np.asarray(value)
        if array.dtype.kind not in 'iuf':
            raise TypeError(f'priority must be of numbers, got {array.dtype}')
        if array.shape != (self._num_envs,):
            raise ValueError(
                f'priority: got shape {array.shape}, expected () or ({self._num_envs},)'
            )
        return tf.constant(array, tf.float64)

    def _check_history(self, name):
        if self._attrs['configs']:
            raise AttributeError(
                f'a TFTrajectoryWriter with configs has no {name}: its patterns are fixed; make '
                'one without configs'
            )

    @property
    def pending_items(self):
        """Items created and not confirmed by the server, int64 []; of all environments."""
        return load.ops().reverb_tf_trajectory_writer_pending(self.resource_handle)

    # ---- Flush, end, close -------------------------------------------------------

    @_method
    def flush(self, block_until_num_items=0, timeout_ms=None, *, timeout=None):
        """Waits until at most `block_until_num_items` items are unconfirmed.

        Returns the op (None in eager mode). On `DeadlineExceededError` the work goes on.
        """
        if not tf.is_tensor(block_until_num_items):
            block_until_num_items = arguments.integer(
                block_until_num_items, 'block_until_num_items', 0, _INT32_MAX
            )
        return load.ops().reverb_tf_trajectory_writer_flush(
            self.resource_handle,
            block_until_num_items,
            timeout_ms=_milliseconds(timeouts.resolve(timeout, None, timeout_ms)),
        )

    @_method
    def end_episode(self, clear_buffers=True, timeout_ms=None, *, timeout=None, mask=None):
        """Closes an open step, flushes and starts a new episode.

        Returns the op (None in eager mode). On an error the episode has ended all the same.
        `clear_buffers=False` keeps the history for items that span episodes. `mask`, bool
        [N], tells the environments whose episode ends; None: all. If any does the items of
        all are flushed, else nothing is done.
        """
        return load.ops().reverb_tf_trajectory_writer_end_episode(
            self.resource_handle,
            clear_buffers,
            self._mask(mask),
            num_envs=self._attrs['num_envs'],
            timeout_ms=_milliseconds(timeouts.resolve(timeout, None, timeout_ms)),
        )

    @_method
    def close(self, timeout=None):
        """Flushes for at most `timeout` seconds (None: 5, 0: not at all), then drops the rest.

        Returns:
          The number of items dropped, int64 []; of all environments.
        """
        seconds = 5.0 if timeout is None else timeouts.check(timeout, 'timeout')
        return load.ops().reverb_tf_trajectory_writer_close(
            self.resource_handle, timeout_ms=_milliseconds(seconds)
        )


def _milliseconds(seconds):
    return -1 if seconds == math.inf else min(math.ceil(seconds * 1000), 2**62)


# ---- Columns ---------------------------------------------------------------------


class _ColumnSpec:
    """A leaf of step_spec. `num_envs` None: values have no dimension of environments."""

    def __init__(self, position, path, spec, num_envs):
        self.position = position
        self._path = path
        number = signatures.spec_number(spec, f"step_spec leaf '{path}'")
        shape = signatures.shape_of(spec)
        self.dtype = tf.as_dtype(number)
        self.shape = tf.TensorShape(shape)
        self._num_envs = num_envs
        self._casts = [eager.caster(number, shape)] * 2
        if num_envs is not None and shape is not None:
            self._casts = [eager.caster(number, (num_envs, *t, *shape)) for t in ((), (None,))]

    def cell(self, value, is_batch):
        """A tensor of the column's dtype."""
        if isinstance(value, tf.Variable):
            value = tf.convert_to_tensor(value)
        if isinstance(value, tf.Tensor):
            if value.dtype == self.dtype:
                return self._check_envs(value)
            if not hasattr(value, 'numpy'):
                return _cast_symbolic(self._check_envs(value), self.dtype, self._path)
        # With environments the shape that is expected has all dimensions.
        value = self._casts[is_batch](value, self._path, is_batch and self._num_envs is None)
        return self._check_envs(tf.convert_to_tensor(value, self.dtype))

    def _check_envs(self, value):
        """The tensor, if it has the dimension of environments as far as is known."""
        shape = value.shape
        if self._num_envs is None or shape.rank is None:
            return value
        if shape.rank > 0 and shape[0] in (None, self._num_envs):
            return value
        raise ValueError(
            f"'{self._path}': got shape {tuple(shape)}, expected ({self._num_envs}, ...): the "
            'first dimension is num_envs'
        )


def _columns(step_spec, num_envs):
    """{path: _ColumnSpec}, in order."""
    flat = signatures.flatten(step_spec)
    if not flat:
        raise ValueError('step_spec must have at least one leaf')
    return {path: _ColumnSpec(i, path, spec, num_envs) for i, (path, spec) in enumerate(flat)}


def _cast_symbolic(tensor, dtype, path):
    """By numpy's same_kind rule; integers are checked when the op runs."""
    if tensor.dtype.is_integer and dtype.is_integer:
        low, high = max(tensor.dtype.min, dtype.min), min(tensor.dtype.max, dtype.max)
        fits = tf.reduce_all((tensor >= low) & (tensor <= high))
        message = f"'{path}': value out of range for {dtype.name}"
        with tf.control_dependencies([tf.debugging.Assert(fits, [message])]):
            return tf.cast(tensor, dtype)
    if tf.string in (tensor.dtype, dtype) or not np.can_cast(
        tensor.dtype.as_numpy_dtype, dtype.as_numpy_dtype, casting='same_kind'
    ):
        raise ValueError(f"'{path}': cannot cast {tensor.dtype.name} to {dtype.name} (same_kind)")
    return tf.cast(tensor, dtype)


class _ColumnHistory:
    """The cells of one column in the episode."""

    __iter__ = None  # its length is known to the ops only

    def __init__(self, writer, path, spec):
        self._writer = writer
        self._path = path
        self._spec = spec

    def __getitem__(self, index):
        """The column of one cell (squeezed), or of several: a slice or a list."""
        if isinstance(index, slice):
            step = 1 if index.step is None else self._bound(index.step)
            bounds = [None if b is None else self._bound(b) for b in (index.start, index.stop)]
            return _Column(self._writer, self._spec, *bounds, step, is_squeezed=False)
        if isinstance(index, (list, tuple)) or _rank(index) == 1:
            return _Column(self._writer, self._spec, indices=self._list(index))
        return _Column(self._writer, self._spec, self._bound(index), None, 1, is_squeezed=True)

    def _list(self, index):
        """The indices as an int32 tensor of rank 1."""
        if tf.is_tensor(index):
            if not index.dtype.is_integer:
                raise self._bad_index(index)
            return _narrow(index)
        return _stack(self._bound(i) for i in index)

    def _bound(self, value):
        """An int or int32 tensor; beyond int32 no history reaches."""
        if tf.is_tensor(value):
            if value.dtype.is_integer and value.shape.rank in (None, 0):
                return _narrow(value)
        elif not isinstance(value, (bool, np.bool_)) and getattr(value, 'shape', ()) == ():
            with contextlib.suppress(TypeError):
                return min(max(operator.index(value), _INT32_MIN), _INT32_MAX)
        raise self._bad_index(value)

    def _bad_index(self, value):
        return TypeError(
            f"'{self._path}': indices must be ints or scalar tensors of ints, or slices or lists "
            f'of them, got {value!r}'
        )


class _Column:
    """Cells of the history, as a column of an item.

    history[start:stop:step]; or the one cell [start], squeezed; or those at `indices`.
    """

    __iter__ = None

    def __init__(
        self, writer, spec, start=None, stop=None, step=1, *, is_squeezed=False, indices=None
    ):
        self.writer = writer
        self.spec = spec
        self.start = start
        self.stop = stop
        self.step = step
        self.is_squeezed = is_squeezed
        self.indices = indices

    @property
    def dtype(self):
        """The cells' dtype."""
        return self.spec.dtype

    @property
    def shape(self):
        """The static shape, with a dimension of time unless squeezed."""
        shape = self.spec.shape
        if self.is_squeezed:
            return shape
        length = [None] if self.indices is None else self.indices.shape
        return tf.TensorShape(length).concatenate(shape)

    @_method
    def read(self, environment=None):
        """The values, a tensor of the dtype and shape.

        Args:
          environment: whose history is read, an int or scalar tensor from 0 to N - 1; of
            writers with `num_envs`, which need it.

        Raises:
          ValueError: an environment with a writer that has none, or none with one that has.
          InvalidArgumentError: an index out of range, holes, or cells that expired.
        """
        if (environment is None) != (self.writer.num_envs is None):
            raise ValueError(
                f'environment: got {environment!r}, expected '
                + ('None' if self.writer.num_envs is None else 'an index')
                + f' since the writer has num_envs={self.writer.num_envs}'
            )
        values = load.ops().reverb_tf_trajectory_writer_column(
            self.writer.resource_handle,
            0 if self.start is None else self.start,
            0 if self.stop is None else self.stop,
            self.step,
            [] if self.indices is None else [self.indices],
            [] if environment is None else [tf.cast(environment, tf.int32)],
            source=self.spec.position,
            squeeze=self.is_squeezed,
            has_start=self.start is not None,
            has_stop=self.stop is not None,
            dtype=self.dtype,
        )
        values.set_shape(self.shape)
        return values


def _rank(value):
    """Of a tensor or an array; None if it is neither, or not known."""
    shape = getattr(value, 'shape', None)
    return (
        shape.rank if isinstance(shape, tf.TensorShape) else None if shape is None else len(shape)
    )


def _narrow(tensor):
    """As int32; beyond that no history reaches."""
    wide = tf.cast(tensor, tf.int64)
    return tf.cast(tf.clip_by_value(wide, _INT32_MIN, _INT32_MAX), tf.int32)


def _stack(bounds):
    bounds = [0 if bound is None else bound for bound in bounds]
    if any(tf.is_tensor(bound) for bound in bounds):
        return tf.stack([tf.convert_to_tensor(bound, tf.int32) for bound in bounds])
    return tf.constant(bounds, tf.int32)
