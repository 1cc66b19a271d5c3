"""What both packages do in `interop_test`: each function takes the package as `reverb`.

Run by the other package's interpreter it is a server of calls: it reads pickled calls from stdin and
writes pickled results to stdout. The test process calls the same functions with reverb_tf.
"""

import os
import pickle
import struct
import sys
import threading

import numpy as np

# ---- Values: what goes over the pipe is plain, since the two numpy versions differ --------


def plain(value):
    """(dtype, shape, contents) of an array or scalar; nests of it stay nests."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    array = np.asarray(value.numpy() if hasattr(value, 'numpy') else value)
    if array.dtype.kind in 'OSU':
        cells = [c.encode() if isinstance(c, str) else c for c in array.ravel().tolist()]
        return 'string', array.shape, cells
    return str(array.dtype), array.shape, array.tobytes()


def frame(i, shape=(84, 84, 1)):
    """A picture that compresses and differs from step to step."""
    picture = np.zeros(shape, np.uint8)
    picture[i % shape[0]] = 255
    picture[:, i % shape[1]] = i % 251
    return picture


def noise(seed, size):
    """Bytes that don't compress."""
    return np.random.RandomState(seed).randint(0, 256, size, np.uint8)


NUMERIC = (
    'bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 '
    'complex128'
).split()


def typed_cell(dtype, seed):
    """Arbitrary bytes of a dtype, so NaN payloads and denormals as well."""
    if dtype == 'bool':
        return noise(seed, (4, 3)) > 127
    if dtype == 'bfloat16':
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    width = np.dtype(dtype).itemsize
    return noise(seed, (4, 3 * width)).reshape(-1).view(dtype).reshape(4, 3)


STRINGS = [
    b'',
    # dm-reverb drops trailing zeros of a bare bytes value.
    np.array(b'a\0b\0\0', object),
    np.array([[b'x', b''], [b'yy\xff', 'ä'.encode()]], object),
    np.array([], object),
    b'z' * 300_000,
]

# ---- What is written: functions of the step, for writers and for what is expected ----------


def counted_step(i):
    """A step that tells its number in each column."""
    return {
        'act': np.int32(i),
        'obs': np.full((3,), i, np.float32),
        'txt': np.array(f'step {i}'.encode(), object),
    }


def steps(indices, column):
    """The rows of a column of counted steps."""
    rows = [counted_step(i)[column] for i in indices]
    if column == 'txt':
        return np.array([r.item() for r in rows], object)
    return np.stack(rows)


# ---- Servers ---------------------------------------------------------------------------------

_servers = {}


def table(reverb, name, sampler='Fifo', signature=None, min_size=1, max_times_sampled=0, **kwargs):
    """A table by the names of its parts; signature leaves are (dtype, shape)."""
    if signature is not None:
        import tensorflow as tf

        signature = {k: tf.TensorSpec(shape, dtype, k) for k, (dtype, shape) in signature.items()}
    if sampler == 'Queue':
        return reverb.Table.queue(name, kwargs.get('max_size', 100), signature=signature)
    selector = getattr(reverb.selectors, sampler)
    return reverb.Table(
        name=name,
        sampler=selector(1.0) if sampler == 'Prioritized' else selector(),
        remover=reverb.selectors.Fifo(),
        max_size=kwargs.get('max_size', 1000),
        max_times_sampled=max_times_sampled,
        rate_limiter=reverb.rate_limiters.MinSize(min_size),
        signature=signature,
    )


def serve(reverb, tables):
    """Starts a server of `table` arguments; its address."""
    server = reverb.Server([table(reverb, **t) for t in tables], port=None)
    address = f'localhost:{server.port}'
    _servers[address] = server
    return address


def stop(reverb, address):
    """Stops a server that `serve` started."""
    del reverb
    _servers.pop(address).stop()


# ---- Writing -----------------------------------------------------------------------------------


def insert(reverb, address, step, priorities):
    """`Client.insert` of one step."""
    reverb.Client(address).insert(step, priorities)


def insert_typed(reverb, address, dtypes):
    """One item a dtype."""
    client = reverb.Client(address)
    for seed, dtype in enumerate(dtypes):
        client.insert([typed_cell(dtype, seed)], {'t': 1.0})


def write_typed(reverb, address, dtypes):
    """One trajectory with a column a dtype, three steps."""
    with reverb.Client(address).trajectory_writer(3) as writer:
        for i in range(3):
            writer.append([typed_cell(dtype, 100 * i + k) for k, dtype in enumerate(dtypes)])
        writer.create_item('t', 1.0, [column[:] for column in writer.history])
        writer.flush()


def write_windows(reverb, address, length, count, chunk, stride=1, frames=False):
    """Overlapping windows: item i covers steps i ... i + length - 1, by `stride`."""
    with reverb.Client(address).trajectory_writer(length) as writer:
        for name in ('act', 'obs', 'txt') + (('img',) if frames else ()):
            writer.configure((name,), num_keep_alive_refs=length, max_chunk_length=chunk)
        for i in range(length + count - 1):
            step = counted_step(i)
            if frames:
                step['img'] = frame(i)
            writer.append(step)
            if i >= length - 1:
                window = {k: column[-length::stride] for k, column in writer.history.items()}
                writer.create_item('t', 1.0, window)
        writer.flush()


def write_squeezed(reverb, address):
    """A trajectory of a squeezed column, a column of one step and one of three."""
    with reverb.Client(address).trajectory_writer(4) as writer:
        for i in range(4):
            writer.append(counted_step(i))
        history = writer.history
        trajectory = [history['act'][-1], history['obs'][-1:], history['txt'][-3:]]
        writer.create_item('t', 1.0, trajectory)
        writer.flush()


def write_holes(reverb, address):
    """Columns that miss some steps, and a step in two parts."""
    with reverb.Client(address).trajectory_writer(10) as writer:
        for i in range(6):
            writer.append({'a': np.int64(i)}, partial_step=True)
            writer.append({'b': np.float32(i)} if i % 2 else {})
        b = writer.history['b']
        columns = [writer.history['a'][:], b[1::2]]
        writer.create_item('t', 1.0, columns)
        writer.flush()


def write_over_episodes(reverb, address):
    """An item over the end of an episode."""
    with reverb.Client(address).trajectory_writer(10) as writer:
        for i in range(3):
            writer.append(counted_step(i))
        writer.end_episode(clear_buffers=False)
        for i in range(3, 5):
            writer.append(counted_step(i))
        writer.create_item('t', 1.0, {k: c[:] for k, c in writer.history.items()})
        writer.flush()


def write_by_rows(reverb, address, delta_encoded, chunk_length):
    """The writer of whole rows: items of 1 to 5 steps, frames and numbers."""
    with reverb.Client(address).writer(5, delta_encoded, chunk_length) as writer:
        for i in range(12):
            writer.append([frame(i), np.int64(i) * 2**40, np.full((2,), i, np.float32)])
            writer.create_item('t', min(i + 1, 5), 1.0)


def write_patterns(reverb, address):
    """The structured writer: two patterns, a condition."""
    lib = reverb.structured_writer
    ref = lib.create_reference_step({'act': None, 'obs': None, 'txt': None})
    pairs = lib.create_config(
        {'act': ref['act'][-2:], 'last': ref['txt'][-1]},
        't',
        [lib.Condition.step_index() % 2 == 1],
    )
    strided = lib.create_config({'act': ref['act'][-5::2], 'last': ref['txt'][-1]}, 't')
    writer = reverb.Client(address).structured_writer([pairs, strided])
    for i in range(6):
        writer.append(counted_step(i))
    writer.flush()
    writer.end_episode()


def write_large(reverb, address, cell_bytes, cells):
    """An item of bytes that don't compress."""
    with reverb.Client(address).trajectory_writer(cells) as writer:
        writer.configure((0,), num_keep_alive_refs=cells, max_chunk_length=1)
        for i in range(cells):
            writer.append([noise(i, cell_bytes)])
        writer.create_item('t', 1.0, [writer.history[0][:]])
        writer.flush()


def write_from_threads(reverb, address, writers, items):
    """Several writers at once, each with items of its own."""
    failures = []

    def work(w):
        try:
            with reverb.Client(address).trajectory_writer(2) as writer:
                for i in range(items):
                    writer.append([np.int64(w * items + i), frame(i, (32, 32))])
                    writer.create_item('t', 1.0, [c[-1:] for c in writer.history])
                writer.flush()
        except Exception as e:  # noqa: BLE001 (told to the caller)
            failures.append(repr(e))

    threads = [threading.Thread(target=work, args=(w,)) for w in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def flush_within(reverb, address, items, timeout_ms):
    """Writes numbered items of one step; then how a flush of limited time ends."""
    writer = reverb.Client(address).trajectory_writer(1)
    for i in range(items):
        writer.append([np.int64(i)])
        writer.create_item('t', 1.0, [writer.history[0][-1:]])
    try:
        writer.flush(0, timeout_ms)
        return 'flushed'
    except reverb.DeadlineExceededError:
        return 'timeout'


def write_unchecked(reverb, address, step):
    """An item of one step that only the server checks."""
    with reverb.Client(address).trajectory_writer(1, validate_items=False) as writer:
        writer.append(step)
        writer.create_item('t', 1.0, {k: c[:] for k, c in writer.history.items()})
        writer.flush()


def write_checked(reverb, address, step):
    """An item of one step that the writer checks as well."""
    with reverb.Client(address).trajectory_writer(1) as writer:
        writer.append(step)
        writer.create_item('t', 1.0, {k: c[:] for k, c in writer.history.items()})
        writer.flush()


def tf_insert(reverb, address, values):
    """`TFClient.insert` of [number, string] steps."""
    import tensorflow as tf

    client = reverb.TFClient(address)
    for i in values:
        client.insert(
            [tf.constant(i, tf.int64), tf.constant(f's{i}')],
            tf.constant(['t']),
            tf.constant([float(i)], tf.float64),
        )


def tf_insert_bfloat16(reverb, address, values):
    """`TFClient.insert` of a vector of bfloat16."""
    import tensorflow as tf

    reverb.TFClient(address).insert(
        [tf.constant(values, tf.bfloat16)], tf.constant(['t']), tf.constant([1.0], tf.float64)
    )


# ---- Reading -----------------------------------------------------------------------------------


def sample(reverb, address, count, name='t'):
    """The columns of samples, as flat lists."""
    client = reverb.Client(address)
    samples = client.sample(name, count, emit_timesteps=False, unpack_as_table_signature=False)
    return [plain(list(s.data)) for s in samples]


def sample_nested(reverb, address, count, name='t'):
    """The columns of samples, in the table's structure."""
    client = reverb.Client(address)
    samples = client.sample(name, count, emit_timesteps=False, unpack_as_table_signature=True)
    return [plain(s.data) for s in samples]


def sample_steps(reverb, address, count, name='t'):
    """Samples as lists of steps."""
    return [
        [plain(list(s.data)) for s in item] for item in reverb.Client(address).sample(name, count)
    ]


def sample_keys(reverb, address, count, name='t'):
    """Pairs of key and priority."""
    found = []
    for item in reverb.Client(address).sample(name, count):
        info = item[0].info
        found.append((int(np.ravel(info.key)[0]), float(np.ravel(info.priority)[0])))
    return found


def sample_keyed(reverb, address, count, name='t'):
    """Key -> columns, as a flat list."""
    client = reverb.Client(address)
    samples = client.sample(name, count, emit_timesteps=False, unpack_as_table_signature=False)
    return {int(np.ravel(s.info.key)[0]): plain(list(s.data)) for s in samples}


def sample_infos(reverb, address, count, name='t'):
    """(probability, table size, priority, times sampled) of samples."""
    found = []
    for item in reverb.Client(address).sample(name, count):
        info = item[0].info
        fields = (info.probability, info.table_size, info.priority, info.times_sampled)
        found.append(tuple(float(np.ravel(f)[0]) for f in fields))
    return found


def dataset(
    reverb, address, specs, count, kind='TrajectoryDataset', batch=None, name='t', **kwargs
):
    """Elements of a dataset that declares (dtype, shape) leaves; `batch` is tf.data's or fused."""
    import tensorflow as tf

    if isinstance(specs, dict):
        dtypes = {k: tf.as_dtype(dtype) for k, (dtype, _) in specs.items()}
        shapes = {k: tf.TensorShape(shape) for k, (_, shape) in specs.items()}
    else:
        dtypes = tuple(tf.as_dtype(dtype) for dtype, _ in specs)
        shapes = tuple(tf.TensorShape(shape) for _, shape in specs)
    elements = getattr(reverb, kind)(
        server_address=address,
        table=name,
        dtypes=dtypes,
        shapes=shapes,
        max_in_flight_samples_per_worker=kwargs.pop('max_in_flight', 4),
        num_workers_per_iterator=1,
        **kwargs,
    )
    if batch:
        elements = elements.batch(batch)
    return [plain(e.data) for e in elements.take(count)]


def dataset_of_signature(reverb, address, count, name='t', kind='TrajectoryDataset'):
    """Elements of a dataset that takes its specs from the table."""
    elements = getattr(reverb, kind).from_table_signature(address, name, 4)
    return [plain(e.data) for e in elements.take(count)]


def tf_sample(reverb, address, count):
    """`TFClient.sample` of [number, string] steps."""
    import tensorflow as tf

    client = reverb.TFClient(address)
    return [plain(list(client.sample('t', [tf.int64, tf.string]).data)) for _ in range(count)]


def sample_from_threads(reverb, address, readers, count):
    """The first columns that several readers at once get."""
    results = [None] * readers

    def work(r):
        results[r] = outcome(reverb, 'sample', address, count)

    threads = [threading.Thread(target=work, args=(r,)) for r in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def tf_sample_bfloat16(reverb, address):
    """`TFClient.sample` of a vector of bfloat16, as floats."""
    import tensorflow as tf

    data = reverb.TFClient(address).sample('t', [tf.bfloat16]).data
    return tf.cast(data[0], tf.float32).numpy().tolist()


# ---- Everything else --------------------------------------------------------------------------


def update(reverb, address, updates=None, deletes=None):
    """`Client.mutate_priorities`."""
    reverb.Client(address).mutate_priorities('t', updates or {}, deletes or [])


def tf_update(reverb, address, keys, priorities):
    """`TFClient.update_priorities`."""
    import tensorflow as tf

    reverb.TFClient(address).update_priorities(
        't', tf.constant(keys, tf.uint64), tf.constant(priorities, tf.float64)
    )


def reset(reverb, address, name='t'):
    """`Client.reset`."""
    reverb.Client(address).reset(name)


def info(reverb, address):
    """What `server_info` says of each table."""
    found = {}
    for name, i in reverb.Client(address).server_info(timeout=10).items():
        signature = None
        if i.signature is not None:
            signature = {k: (s.dtype.name, list(s.shape)) for k, s in i.signature.items()}
        found[name] = {
            'max_size': i.max_size,
            'current_size': i.current_size,
            'max_times_sampled': i.max_times_sampled,
            'inserts': i.rate_limiter_info.insert_stats.completed,
            'samples': i.rate_limiter_info.sample_stats.completed,
            'min_size': i.rate_limiter_info.min_size_to_sample,
            'episodes': i.num_episodes,
            'signature': signature,
        }
    return found


def outcome(reverb, function, *args, **kwargs):
    """('ok', result), or the exception's class names and text."""
    try:
        return 'ok', globals()[function](reverb, *args, **kwargs)
    except Exception as e:  # noqa: BLE001 (told to the caller)
        return [c.__name__ for c in type(e).__mro__], str(e)


def main():
    """Serves calls until stdin ends."""
    import reverb

    # Logs and prints of libraries must not get among the answers.
    answers = os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)
    while size := sys.stdin.buffer.read(8):
        function, args, kwargs = pickle.loads(sys.stdin.buffer.read(struct.unpack('<Q', size)[0]))
        answer = pickle.dumps(outcome(reverb, function, *args, **kwargs), protocol=4)
        answers.write(struct.pack('<Q', len(answer)) + answer)
        answers.flush()


if __name__ == '__main__':
    main()
