"""TFClient: a client whose calls are ops, for eager code, `tf.function`s and TF1 graphs."""

import contextlib

import tensorflow as tf

from reverb_tf import _native, arguments, client, logs, signatures
from reverb_tf.ops import load
from reverb_tf.reverb_types import MutateResult, ReplaySample, SampleInfo

__all__ = ['TFClient']

# TensorFlow's name of resources that live as long as their handle.
ANONYMOUS = 'cd2c89b7-88b7-44c8-ad83-06c2a9158347'


class TFClient:
    """Inserts, samples and updates from within a graph. Thread-safe.

    Every call is an op, usable in eager mode, `tf.function`, `tf.while_loop`, `tf.cond` and
    TF1 sessions. In a `tf.function` the calls on one client run in program order. A call
    that waits occupies no thread of TensorFlow's, and what cancels the step (closing a
    session, Ctrl-C) withdraws it: nothing is inserted or taken then.

    Nothing is connected before the first call. The connection and its streams are kept from
    call to call, and end with the client and the functions that use it.
    """

    def __init__(self, server_address, shared_name=None, name='reverb'):
        """Makes the client, in eager mode or in the present TF1 graph.

        Args:
          server_address: str ('host:port' or another gRPC target), a list of one, a `Client`
            of it, whose `in_process` counts here too, or a string tensor.
          shared_name: clients of one name (in one session) share their connection; None for
            a connection of its own.
          name: prefix of the ops' names.

        Raises:
          ValueError: a malformed address.
          TypeError: an address of the wrong type.
          NotImplementedError: several servers.
        """
        self._ops = load.ops()
        self._name = name
        address = _address(server_address)
        is_client = isinstance(server_address, client.Client)
        symbolic = tf.is_tensor(address) and not hasattr(address, 'numpy')
        # The client outlives a tf.function that makes it.
        with contextlib.nullcontext() if symbolic else tf.init_scope():
            if shared_name is None:
                shared_name = ANONYMOUS if tf.executing_eagerly() else ''
            self._handle = self._ops.reverb_tf_client_handle(
                tf.convert_to_tensor(address),
                in_process=server_address.in_process if is_client else True,
                shared_name=shared_name,
                name=name,
            )
        self._server_address = address
        logs.start()
        load.watch_interrupts()

    @property
    def handle(self):
        """The resource tensor that the ops take."""
        return self._handle

    @property
    def server_address(self):
        """The address, a str or a string tensor."""
        return self._server_address

    def sample(
        self,
        table,
        data_dtypes,
        name=None,
        *,
        emit_trajectory=False,
        shapes=None,
        rate_limiter_timeout_ms=-1,
    ):
        """Samples one item, and waits until the table has one to give.

        Args:
          table: str or scalar string tensor.
          data_dtypes: nest of dtypes. Its names are matched with the table's signature;
            without names, leaves are matched by position.
          name: of the op.
          emit_trajectory: whole items of any length, columns [T, ...]. By default items must
            be of one step, and come without T.
          shapes: nest of the data's shapes, if they are known.
          rate_limiter_timeout_ms: longest wait for the table; -1 for ever, 0 for only what
            can be granted now.

        Returns:
          `ReplaySample` of tensors, data nested as `data_dtypes`.

        Raises:
          InvalidArgumentError: count or dtypes other than the signature's, or an item of
            several steps; it is given back.
          InternalError: dtypes other than the item's, in a table without signature.
          DeadlineExceededError: nothing within the timeout; says why.
        """
        outputs = self._ops.reverb_tf_client_sample(
            self._handle,
            _table(table),
            emit_trajectory=arguments.boolean(emit_trajectory, 'emit_trajectory'),
            name=self._op_name(name, 'sample'),
            **_output_attrs(data_dtypes, shapes, rate_limiter_timeout_ms),
        )
        return _pack(outputs, data_dtypes)

    def sample_batch(
        self,
        table,
        num_samples,
        data_dtypes,
        *,
        shapes=None,
        rate_limiter_timeout_ms=-1,
        name=None,
    ):
        """Samples N whole items into one set of tensors.

        Args:
          table: str or scalar string tensor.
          num_samples: N >= 1, int or scalar int32 tensor.
          data_dtypes: nest of dtypes, as in `sample`.
          shapes: nest of one item's shapes (without N), if they are known.
          rate_limiter_timeout_ms: as in `sample`, for all of them.
          name: of the op.

        Returns:
          `ReplaySample` of tensors: info [N], columns [N, T, ...].

        Raises:
          InvalidArgumentError: as in `sample`, or items of unequal lengths; they are given
            back.
          InternalError: as in `sample`.
          DeadlineExceededError: not so many within the timeout; says why.
        """
        if not tf.is_tensor(num_samples):
            num_samples = arguments.integer(num_samples, 'num_samples', 1, 2**31 - 1)
        outputs = self._ops.reverb_tf_client_sample_batch(
            self._handle,
            _table(table),
            num_samples,
            name=self._op_name(name, 'sample_batch'),
            **_output_attrs(data_dtypes, shapes, rate_limiter_timeout_ms),
        )
        return _pack(outputs, data_dtypes)

    def insert(self, data, tables, priorities, name=None, *, return_keys=False, timeout_ms=-1):
        """Inserts one step as one item into each table, and waits until all are in.

        Args:
          data: list of tensors (matched with a signature by position), or a nest with names.
          tables: names [N], list of str or string tensor.
          priorities: [N], list of numbers or float64 tensor.
          name: of the op.
          return_keys: give the items' keys.
          timeout_ms: longest wait; -1 for ever. What is not yet in is withdrawn then.

        Returns:
          The keys [N] if asked for, else the op (None in eager mode).

        Raises:
          ValueError: tables or priorities of a wrong dtype, rank or length.
          InvalidArgumentError: an unknown table, a bad priority, or data that doesn't match
            a signature. Nothing was inserted.
        """
        tables = _tables(tables)
        priorities = _priorities(priorities, 1)
        if not tables.shape.is_compatible_with(priorities.shape):
            raise ValueError(
                'tables and priorities must have the same length, got shapes '
                f'{tables.shape} and {priorities.shape}'
            )
        leaves, paths = _leaves(data)
        keys = self._ops.reverb_tf_client_insert(
            self._handle,
            leaves,
            tables,
            priorities,
            paths=paths,
            timeout_ms=arguments.integer(timeout_ms, 'timeout_ms', -1),
            name=self._op_name(name, 'insert'),
        )
        return keys if return_keys else _op(keys)

    def insert_batch(self, data, tables, priorities, *, timeout_ms=-1, name=None):
        """Inserts B steps, each as one item into each table; all are checked before any goes in.

        Args:
          data: as in `insert`, each tensor [B, ...].
          tables: names [N], list of str or string tensor.
          priorities: [B, N], list of lists or float64 tensor.
          timeout_ms: longest wait; -1 for ever. What is not yet in is withdrawn then.
          name: of the op.

        Returns:
          The keys [B, N].

        Raises:
          ValueError: as in `insert`.
          InvalidArgumentError: as in `insert`.
        """
        tables = _tables(tables)
        priorities = _priorities(priorities, 2)
        if not tables.shape.is_compatible_with(priorities.shape[1:]):
            raise ValueError(
                'priorities must have a column for each table, got shapes '
                f'{priorities.shape} and {tables.shape}'
            )
        leaves, paths = _leaves(data)
        return self._ops.reverb_tf_client_insert_batch(
            self._handle,
            leaves,
            tables,
            priorities,
            paths=paths,
            timeout_ms=arguments.integer(timeout_ms, 'timeout_ms', -1),
            name=self._op_name(name, 'insert_batch'),
        )

    def update_priorities(self, table, keys, priorities, name=None, *, return_counts=False):
        """Gives items new priorities: all of them, or none if one is refused.

        Args:
          table: str or scalar string tensor.
          keys: [N], list of ints or uint64 or int64 tensor. Unknown ones are passed over.
          priorities: [N], list of numbers or float64 tensor.
          name: of the op.
          return_counts: give what was done.

        Returns:
          `MutateResult` of int64 tensors if asked for, else the op (None in eager mode).
        """
        counts = self._ops.reverb_tf_client_update_priorities(
            self._handle,
            _table(table),
            _keys(keys),
            _priorities(priorities, 1),
            name=self._op_name(name, 'update_priorities'),
        )
        if not return_counts:
            return _op(counts.updated)
        return MutateResult(counts.updated, tf.zeros([], tf.int64), counts.not_found)

    def delete(self, table, keys, *, return_counts=False, name=None):
        """Deletes items.

        Args:
          table: str or scalar string tensor.
          keys: [N], list of ints or uint64 or int64 tensor. Unknown ones are passed over.
          return_counts: give what was done.
          name: of the op.

        Returns:
          `MutateResult` of int64 tensors if asked for, else the op (None in eager mode).
        """
        counts = self._ops.reverb_tf_client_delete(
            self._handle, _table(table), _keys(keys), name=self._op_name(name, 'delete')
        )
        if not return_counts:
            return _op(counts.deleted)
        return MutateResult(tf.zeros([], tf.int64), counts.deleted, counts.not_found)

    def reset(self, table, name=None):
        """Empties a table; its counters start anew. Returns the op (None in eager mode)."""
        return self._ops.reverb_tf_client_reset(
            self._handle, _table(table), name=self._op_name(name, 'reset')
        )

    def _op_name(self, name, method):
        return name or f'{self._name}_{method}'


def _op(tensor):
    return None if tf.executing_eagerly() else tensor.op


# ---- Arguments -------------------------------------------------------------------


def _address(value):
    if isinstance(value, client.Client):
        return value.server_address
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise NotImplementedError('several addresses are not part of this version')
        value = value[0]
    if tf.is_tensor(value):
        if value.dtype != tf.string:
            raise TypeError(f'server_address must be a string tensor, got {value.dtype.name}')
        return value
    _native.Client(arguments.text(value, 'server_address'), True).close()  # checks it
    return value


def _table(value):
    # The ops would convert it too, but take their time for it.
    return value if tf.is_tensor(value) else tf.constant(arguments.text(value, 'table'))


def _tables(value):
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != tf.string or tensor.shape.rank not in (None, 1):
        raise ValueError(
            'tables must be a list of names or a string tensor of rank 1, got '
            f'{tensor.dtype.name} of shape {tensor.shape}'
        )
    return tensor


def _priorities(value, rank):
    is_list = isinstance(value, (list, tuple))
    tensor = tf.convert_to_tensor(value, tf.float64 if is_list else None)
    if tensor.dtype != tf.float64 or tensor.shape.rank not in (None, rank):
        raise ValueError(
            f'priorities must be a list or a float64 tensor of rank {rank}, got '
            f'{tensor.dtype.name} of shape {tensor.shape}'
        )
    return tensor


def _keys(value):
    is_list = isinstance(value, (list, tuple))
    tensor = tf.convert_to_tensor(value, tf.uint64 if is_list else None)
    if tensor.dtype not in (tf.uint64, tf.int64) or tensor.shape.rank not in (None, 1):
        raise ValueError(
            'keys must be a list of ints or a uint64 or int64 tensor of rank 1, got '
            f'{tensor.dtype.name} of shape {tensor.shape}'
        )
    return tensor


# ---- Structures ------------------------------------------------------------------


def _leaves(data):
    """(tensors, paths) of a nest."""
    flat = signatures.flatten(data)
    if not flat:
        raise ValueError('data must have at least one tensor')
    return [tf.convert_to_tensor(leaf) for _, leaf in flat], [path for path, _ in flat]


def _flat_shapes(dtypes, shapes, path=''):
    """In the order of the dtypes, whose structure counts, since a shape may be a list."""
    children = signatures.children(dtypes)
    if children is None:
        return [tf.TensorShape(shapes)]
    others = signatures.children(shapes) or {}
    if children.keys() != others.keys():
        where = f" at '{path}'" if path else ''
        raise ValueError(
            f'shapes must be nested as data_dtypes; got {list(others)} expected '
            f'{list(children)}{where}'
        )
    flat = []
    for name, child in children.items():
        flat += _flat_shapes(child, others[name], signatures.join(path, name))
    return flat


def _output_attrs(data_dtypes, shapes, rate_limiter_timeout_ms):
    flat = signatures.flatten(data_dtypes)
    if not flat:
        raise ValueError('data_dtypes must have at least one dtype')
    return {
        'Toutput_list': [tf.as_dtype(dtype) for _, dtype in flat],
        'output_shapes': [] if shapes is None else _flat_shapes(data_dtypes, shapes),
        'paths': [path for path, _ in flat],
        'rate_limiter_timeout_ms': arguments.integer(
            rate_limiter_timeout_ms, 'rate_limiter_timeout_ms', -1
        ),
    }


def _pack(outputs, data_dtypes):
    *info, data = outputs
    return ReplaySample(SampleInfo(*info), signatures.pack_as(data_dtypes, data))
