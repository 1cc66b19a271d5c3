"""TrajectoryDataset: the samples of a table as a `tf.data.Dataset`."""

import collections.abc

import tensorflow as tf

from reverb_tf import _native, arguments, logs, signatures, timeouts
from reverb_tf.ops import load
from reverb_tf.reverb_types import PaddedSample, ReplaySample, SampleInfo

__all__ = ['TrajectoryDataset']


class SampleDataset(tf.data.Dataset):
    """What the datasets of a table's samples share; arguments as of `TrajectoryDataset`."""

    def __init__(
        self,
        op,
        server_address,
        table,
        dtypes,
        shapes,
        *,
        batch_size,
        drop_remainder,
        pad_to_longest,
        on_timeout,
        drop_deleted,
        seed,
        shard_selection,
        name,
        **numbers,
    ):
        _check_implemented(drop_deleted, shard_selection)
        batch_size = _batch_size(batch_size)
        if pad_to_longest and not batch_size:
            raise ValueError('pad_to_longest needs batch_size=')
        if on_timeout not in ('end', 'error'):
            raise ValueError(f"on_timeout must be 'end' or 'error', got {on_timeout!r}")
        specs = _specs(dtypes, shapes)
        info = SampleInfo(*map(tf.TensorSpec, SampleInfo.tf_shapes(), SampleInfo.tf_dtypes()))
        sample = ReplaySample(info=info, data=specs)
        flat = tf.nest.flatten(sample)
        attrs = _number_attrs(**numbers)
        if pad_to_longest:
            attrs['pad_to_longest'] = True
        self._element_spec = _element_spec(sample, batch_size, drop_remainder, pad_to_longest)
        variant = getattr(load.ops(), op)(
            server_address=_address(server_address),
            table=_table(table),
            seed=_seed(seed),
            dtypes=[s.dtype for s in flat],
            shapes=[s.shape for s in flat],
            paths=_paths(specs),
            batch_size=batch_size,
            drop_remainder=bool(drop_remainder),
            on_timeout=on_timeout,
            name=name,
            **attrs,
        )
        logs.start()
        load.watch_interrupts()
        options = _options()
        super().__init__(_with_options(variant, options, self._element_spec))
        self._options_attr = options

    @property
    def element_spec(self):
        """`ReplaySample` (or `PaddedSample`) of `tf.TensorSpec`s."""
        return self._element_spec

    def _inputs(self):
        return []


class TrajectoryDataset(SampleDataset):
    """Samples of a table, each element a `ReplaySample(info, data)` of one item.

    Columns of the data are [T, ...] (without T where the item's column is squeezed). With
    `batch_size=B` an element is B samples in one set of tensors: columns [B, T, ...] and
    info vectors [B], filled straight from the stored data, which is much faster than
    `.batch(B)` and otherwise equal to it.

    Every iterator has its own stream of samples. A dataset without `max_samples` is
    infinite, unless a rate limiter timeout ends it.
    """

    def __init__(
        self,
        server_address,
        table,
        dtypes,
        shapes,
        max_in_flight_samples_per_worker=None,
        num_workers_per_iterator=-1,
        max_samples_per_stream=-1,
        rate_limiter_timeout_ms=-1,
        max_samples=-1,
        *,
        batch_size=None,
        drop_remainder=False,
        pad_to_longest=False,
        on_timeout='end',
        consume_ahead=0,
        max_age_ms=-1,
        drop_deleted=False,
        seed=None,
        reconnect_timeout_ms=-1,
        shard_selection='proportional',
        name=None,
    ):
        """Makes the dataset; nothing is connected before its first element is asked for.

        Args:
          server_address: str ('host:port' or another gRPC target) or scalar string tensor.
          table: name of the table, str or scalar string tensor.
          dtypes: nest of the data's dtypes; lists become tuples.
          shapes: the same nest of shapes, without batch dimension; dimensions and ranks may
            be unknown.
          max_in_flight_samples_per_worker: samples asked for per round and worker; None for
            max(2 * batch_size, 16). No effect on tables whose items are used up by sampling,
            of which an iterator takes only what is asked of it.
          num_workers_per_iterator: streams of an iterator; -1 for 1.
          max_samples_per_stream: samples after which a stream is opened anew; -1 for 10,000.
          rate_limiter_timeout_ms: longest wait of one element for the table's rate limiter;
            -1 for ever, 0 for only what can be granted now.
          max_samples: so many items are delivered, then the dataset ends; -1 for no bound.
          batch_size: samples of an element; None for one, without batch dimension.
          drop_remainder: as in `Dataset.batch`. A short last batch is given back.
          pad_to_longest: columns of unequal length in a batch are padded with zeros, and the
            elements are `PaddedSample(info, data, lengths)`.
          on_timeout: 'end' ends the sequence after a rate limiter timeout; 'error' raises
            `DeadlineExceededError`, and the iterator stays usable.
          consume_ahead: items held beyond those asked for, of tables that use items up.
          max_age_ms: a buffered sample older than that is given back and replaced; -1 never.
          drop_deleted: not implemented.
          seed: int or scalar int64 tensor that makes the picks of this dataset repeatable.
          reconnect_timeout_ms: how long a lost server is tried again before
            `UnavailableError`; -1 for ever.
          shard_selection: of several servers, which is not implemented.
          name: of the op.

        Raises:
          ValueError: a malformed address, an empty table, structures that differ, or a
            number out of its range.
          TypeError: a value of the wrong type.
          NotImplementedError: several servers, or `drop_deleted`.
        """
        super().__init__(
            'reverb_tf_trajectory_dataset',
            server_address,
            table,
            dtypes,
            shapes,
            batch_size=batch_size,
            drop_remainder=drop_remainder,
            pad_to_longest=pad_to_longest,
            on_timeout=on_timeout,
            drop_deleted=drop_deleted,
            seed=seed,
            shard_selection=shard_selection,
            name=name,
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
            consume_ahead=consume_ahead,
            max_age_ms=max_age_ms,
            reconnect_timeout_ms=reconnect_timeout_ms,
        )

    @classmethod
    def from_table_signature(
        cls,
        server_address,
        table,
        max_in_flight_samples_per_worker=None,
        num_workers_per_iterator=-1,
        max_samples_per_stream=-1,
        rate_limiter_timeout_ms=-1,
        get_signature_timeout_secs=None,
        max_samples=-1,
        *,
        batch_size=None,
        drop_remainder=False,
        pad_to_longest=False,
        on_timeout='end',
        consume_ahead=0,
        max_age_ms=-1,
        drop_deleted=False,
        seed=None,
        reconnect_timeout_ms=-1,
        shard_selection='proportional',
        name=None,
    ):
        """A dataset of the table's own signature, which is asked of the server now.

        Args:
          server_address: str.
          table: str.
          max_in_flight_samples_per_worker: as in the constructor, like all not named here.
          num_workers_per_iterator: see above.
          max_samples_per_stream: see above.
          rate_limiter_timeout_ms: see above.
          get_signature_timeout_secs: longest wait for the server, in seconds; None for the
            package's default.
          max_samples: see above.
          batch_size: see above.
          drop_remainder: see above.
          pad_to_longest: see above.
          on_timeout: see above.
          consume_ahead: see above.
          max_age_ms: see above.
          drop_deleted: see above.
          seed: see above.
          reconnect_timeout_ms: see above.
          shard_selection: see above.
          name: see above.

        Returns:
          The dataset.

        Raises:
          ValueError: the server has no such table, or the table has no signature.
          DeadlineExceededError: the server didn't answer in time.
        """
        info = signed_table(server_address, table, get_signature_timeout_secs)
        leading = [None] if info.signature_scope == 'step' else []

        def shape(spec):
            return tf.TensorShape(leading).concatenate(spec.shape)

        return cls(
            server_address,
            table,
            signatures.map_structure(lambda spec: spec.dtype, info.signature),
            signatures.map_structure(shape, info.signature),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
            batch_size=batch_size,
            drop_remainder=drop_remainder,
            pad_to_longest=pad_to_longest,
            on_timeout=on_timeout,
            consume_ahead=consume_ahead,
            max_age_ms=max_age_ms,
            drop_deleted=drop_deleted,
            seed=seed,
            reconnect_timeout_ms=reconnect_timeout_ms,
            shard_selection=shard_selection,
            name=name,
        )


def signed_table(server_address, table, timeout):
    """The `TableInfo` of a table; `ValueError` if it has no signature."""
    from reverb_tf import client

    for value, what in ((server_address, 'server_address'), (table, 'table')):
        if not isinstance(value, str):
            raise TypeError(
                f'from_table_signature asks the server now, so {what} must be a str, got '
                f'{type(value).__name__}; in a tf.function give dtypes and shapes'
            )
    if timeout is not None:
        timeouts.check(timeout, 'get_signature_timeout_secs')
    with client.Client(server_address) as reader:
        infos = reader.server_info(timeout)
    if table not in infos:
        names = ', '.join(map(repr, infos))
        raise ValueError(f'the server at {server_address} has no table {table!r}, only {names}')
    info = infos[table]
    if info.signature is None:
        raise ValueError(
            f'table {table!r} has no signature; give one to the server (Table(..., '
            'signature=nest of tf.TensorSpec)), or give dtypes and shapes to the constructor'
        )
    return info


def _options():
    options = tf.data.Options()
    # Every worker of a tf.distribute strategy samples for itself.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # TensorFlow would append a prefetch that takes items which nobody asked for.
    options.experimental_optimization.inject_prefetch = False
    return options


def _with_options(variant, options, element_spec):
    flat = tf.nest.flatten(element_spec)
    return tf.raw_ops.OptionsDataset(
        input_dataset=variant,
        serialized_options=options._to_proto().SerializeToString(),
        output_types=[s.dtype for s in flat],
        output_shapes=[s.shape for s in flat],
    )


def _element_spec(sample, batch_size, drop_remainder, pad_to_longest):
    if not batch_size:
        return sample
    batch = tf.TensorShape([batch_size if drop_remainder else None])

    def batched(spec):
        return tf.TensorSpec(batch.concatenate(spec.shape), spec.dtype)

    info, data = tf.nest.map_structure(batched, sample)
    if not pad_to_longest:
        return ReplaySample(info=info, data=data)
    lengths = tf.nest.map_structure(lambda _: tf.TensorSpec(batch, tf.int32), data)
    return PaddedSample(info=info, data=data, lengths=lengths)


def _paths(specs):
    """Paths in the order in which TensorFlow flattens."""
    size = len(tf.nest.flatten(specs))
    numbered = tf.nest.pack_sequence_as(specs, list(range(size)))
    by_number = {number: path for path, number in signatures.flatten(numbered)}
    return [by_number[i] for i in range(size)]


# ---- Arguments -------------------------------------------------------------------


def _check_implemented(drop_deleted, shard_selection):
    if drop_deleted:
        raise NotImplementedError(
            'drop_deleted=True is not implemented; max_age_ms= bounds how long a sample of a '
            'deleted item can be buffered'
        )
    if shard_selection not in ('proportional', 'round_robin'):
        raise ValueError(
            f"shard_selection must be 'proportional' or 'round_robin', got {shard_selection!r}"
        )
    if shard_selection != 'proportional':
        raise NotImplementedError(
            'shard_selection= is for several servers, which one dataset cannot read yet; '
            'interleave over datasets of one server each'
        )


def _several_servers():
    return NotImplementedError(
        'one dataset reads from one server; for several use tf.data.Dataset.from_tensor_slices('
        'addresses).interleave(lambda address: TrajectoryDataset(address, ...))'
    )


def _string_tensor(value, what):
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != tf.string:
        raise TypeError(f'{what} must be a str or a string tensor, got {tensor.dtype.name}')
    return tensor


def _address(value):
    if isinstance(value, str):
        _native.Client(value, True).close()  # Checks it.
        return tf.constant(value)
    if isinstance(value, (list, tuple)):
        raise _several_servers()
    tensor = _string_tensor(value, 'server_address')
    if tensor.shape.rank not in (None, 0):
        raise _several_servers()
    return tensor


def _table(value):
    if isinstance(value, str) and not value:
        raise ValueError('table must not be empty')
    tensor = _string_tensor(value, 'table')
    if tensor.shape.rank not in (None, 0):
        raise ValueError(f'table must be a scalar, got shape {tensor.shape}')
    return tensor


def _seed(value):
    if value is None:
        return tf.constant(-1, tf.int64)
    if not tf.is_tensor(value) or hasattr(value, 'numpy'):
        return tf.constant(arguments.integer(value, 'seed', 0), tf.int64)
    if not value.dtype.is_integer or value.shape.rank not in (None, 0):
        raise TypeError(f'seed must be an int or a scalar of ints, got {value}')
    return tf.cast(value, tf.int64)


def _number_attrs(**numbers):
    """The op's attrs; `numbers` are those arguments that have the same name."""
    integers = {'rate_limiter_timeout_ms': -1, 'consume_ahead': 0, 'max_age_ms': -1}
    integers['reconnect_timeout_ms'] = -1
    counts = {'num_workers_per_iterator': 2**31 - 1}
    attrs = {}
    for what, value in numbers.items():
        if what == 'max_in_flight_samples_per_worker':
            attrs[what] = _optional_count(value, what)
        elif what in integers:
            attrs[what] = arguments.integer(value, what, integers[what])
        else:
            attrs[what] = _count(value, what, counts.get(what, 2**63 - 1))
    return attrs


def _count(value, what, most=2**63 - 1):
    number = arguments.integer(value, what, high=most)
    if number != -1 and number < 1:
        raise ValueError(f'{what} must be in 1 ... {most}, or -1 for the default, got {number}')
    return number


def _optional_count(value, what):
    return -1 if value is None else arguments.integer(value, what, 1)


def _batch_size(value):
    return 0 if value is None else arguments.integer(value, 'batch_size', 1)


# ---- Structures ------------------------------------------------------------------


def _lists_to_tuples(nest):
    if isinstance(nest, collections.abc.Mapping):
        return {key: _lists_to_tuples(child) for key, child in nest.items()}
    if signatures.is_namedtuple(nest):
        return type(nest)(*map(_lists_to_tuples, nest))
    if isinstance(nest, (list, tuple)):
        return tuple(map(_lists_to_tuples, nest))
    return nest


def _shape_leaf(shape, path):
    try:
        return tf.TensorShape(shape)
    except (TypeError, ValueError) as e:
        raise ValueError(f"shapes: '{path}' must be a shape, got {shape!r}") from e


def _spec_leaf(dtype, shape, path):
    try:
        dtype = tf.as_dtype(dtype)
    except TypeError as e:
        raise ValueError(f"dtypes: '{path}' must be a dtype, got {dtype!r}") from e
    return tf.TensorSpec(_shape_leaf(shape, path), dtype)


def _flat_specs(dtypes, shapes, path):
    """The specs in order; the structure is that of `dtypes`, so shapes may be lists."""
    children = signatures.children(dtypes)
    if children is None:
        return [_spec_leaf(dtypes, shapes, path)]
    others = signatures.children(shapes) or {}
    missing = [signatures.join(path, name) for name in children if name not in others]
    extra = [signatures.join(path, name) for name in others if name not in children]
    if missing or extra:
        raise ValueError(
            'dtypes and shapes must be of one structure; in shapes are '
            f'missing: {", ".join(missing) or "none"}, extra: {", ".join(extra) or "none"}'
        )
    specs = []
    for name, child in children.items():
        specs += _flat_specs(child, others[name], signatures.join(path, name))
    return specs


def _specs(dtypes, shapes):
    dtypes = _lists_to_tuples(dtypes)
    flat = _flat_specs(dtypes, _lists_to_tuples(shapes), '')
    if not flat:
        raise ValueError('dtypes must have at least one leaf')
    return signatures.pack_as(dtypes, flat)
