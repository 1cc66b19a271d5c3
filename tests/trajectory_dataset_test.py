"""TrajectoryDataset: elements, batches, ends, errors, and what tf.data expects of a dataset."""

import gc
import inspect
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import data as data_lib
from reverb_tf.ops import load
from tests import testing_util

SIGNATURE = {
    'a': tf.TensorSpec([None], tf.int32),
    'b': {'c': tf.TensorSpec([None, 2], tf.float32)},
}


def make_table(name='t', sampler=None, max_times_sampled=0, signature=SIGNATURE, min_size=1):
    return reverb_tf.Table(
        name=name,
        sampler=sampler or reverb_tf.selectors.Fifo(),
        remover=reverb_tf.selectors.Fifo(),
        max_size=100,
        rate_limiter=reverb_tf.rate_limiters.MinSize(min_size),
        max_times_sampled=max_times_sampled,
        signature=signature,
    )


def make_queue(name='t', signature=SIGNATURE):
    return reverb_tf.Table.queue(name, 100, signature=signature)


def write(client, lengths, table='t', first=0):
    """Items of the given lengths; a counts on from `first`, c is [a, -a]."""
    with client.trajectory_writer(num_keep_alive_refs=max(lengths)) as writer:
        a = first
        for length in lengths:
            for _ in range(length):
                writer.append({'a': np.int32(a), 'b': {'c': np.float32([a, -a])}})
                a += 1
            h = writer.history
            item = {'a': h['a'][-length:], 'b': {'c': h['b']['c'][-length:]}}
            writer.create_item(table, 1.0, item)
            writer.flush()


@pytest.fixture(params=[True, False], ids=['in_process', 'remote'])
def transport(request, monkeypatch):
    monkeypatch.setenv('REVERB_TF_INPROCESS', '1' if request.param else '0')


@pytest.fixture
def serve():
    servers = []

    def start(*tables):
        server = reverb_tf.Server(list(tables))
        servers.append(server)
        return f'localhost:{server.port}', reverb_tf.Client(f'localhost:{server.port}')

    yield start
    for server in servers:
        server.stop()


def dataset(address, table='t', signature=SIGNATURE, **keywords):
    return reverb_tf.TrajectoryDataset(
        address,
        table,
        tf.nest.map_structure(lambda s: s.dtype, signature),
        tf.nest.map_structure(lambda s: s.shape, signature),
        **keywords,
    )


def firsts(samples):
    return [int(s.data['a'][0]) for s in samples]


# ---- Elements --------------------------------------------------------------------


def test_an_element_is_one_item(transport, serve):
    address, client = serve(make_table())
    write(client, [3])
    sample = next(iter(dataset(address)))
    assert isinstance(sample, reverb_tf.ReplaySample)
    assert isinstance(sample.info, reverb_tf.SampleInfo)
    np.testing.assert_array_equal(sample.data['a'], [0, 1, 2])
    np.testing.assert_array_equal(sample.data['b']['c'], [[0, 0], [1, -1], [2, -2]])
    assert int(sample.info.key) > 0
    assert float(sample.info.probability) == 1.0
    assert int(sample.info.table_size) == 1
    assert float(sample.info.priority) == 1.0
    assert int(sample.info.times_sampled) == 1


def test_element_spec_is_what_was_declared(serve):
    address, _ = serve(make_table())
    spec = dataset(address).element_spec
    assert spec.data == SIGNATURE
    assert spec.info.key == tf.TensorSpec([], tf.uint64)
    assert spec.info.times_sampled == tf.TensorSpec([], tf.int32)


def test_from_table_signature_declares_the_signature(serve):
    address, client = serve(make_table())
    write(client, [2])
    ds = reverb_tf.TrajectoryDataset.from_table_signature(address, 't', max_samples=1)
    assert ds.element_spec.data == SIGNATURE
    assert firsts(ds) == [0]


def test_from_table_signature_lists_the_tables_for_an_unknown_one(serve):
    address, _ = serve(make_table())
    with pytest.raises(ValueError, match="no table 'x', only 't'"):
        reverb_tf.TrajectoryDataset.from_table_signature(address, 'x')


def test_from_table_signature_says_how_to_add_a_signature(serve):
    address, _ = serve(make_table(signature=None))
    with pytest.raises(ValueError, match='signature='):
        reverb_tf.TrajectoryDataset.from_table_signature(address, 't')


def test_strings_come_as_strings(transport, serve):
    signature = {'s': tf.TensorSpec([None], tf.string)}
    address, client = serve(make_table(signature=signature))
    with client.trajectory_writer(2) as writer:
        writer.append({'s': b'ab'})
        writer.append({'s': 'cde'})
        writer.create_item('t', 1.0, {'s': writer.history['s'][:]})
        writer.flush()
    sample = next(iter(dataset(address, signature=signature)))
    assert sample.data['s'].numpy().tolist() == [b'ab', b'cde']


def test_elements_survive_their_iterator_and_server(serve):
    address, client = serve(make_table())
    write(client, [4])
    it = iter(dataset(address))
    sample = next(it)
    del it
    gc.collect()
    client.reset('t')
    np.testing.assert_array_equal(sample.data['a'], [0, 1, 2, 3])


def test_changing_an_element_does_not_change_the_table(serve):
    address, client = serve(make_table())
    write(client, [3])
    it = iter(dataset(address).map(lambda s: s.data['a'] * 2 + 1))
    for _ in range(3):
        np.testing.assert_array_equal(next(it), [1, 3, 5])


# ---- Ends and errors -------------------------------------------------------------


def test_max_samples_ends_the_sequence(transport, serve):
    address, client = serve(make_table())
    write(client, [1])
    assert len(list(dataset(address, max_samples=5))) == 5


def test_on_timeout_end_ends_the_sequence(transport, serve):
    address, client = serve(make_queue())
    write(client, [1, 1])
    assert firsts(dataset(address, rate_limiter_timeout_ms=50)) == [0, 1]


def test_on_timeout_error_raises_and_the_iterator_goes_on(transport, serve):
    address, client = serve(make_queue())
    it = iter(dataset(address, rate_limiter_timeout_ms=50, on_timeout='error'))
    with pytest.raises(tf.errors.DeadlineExceededError, match="'t'"):
        next(it)
    write(client, [1])
    assert firsts([next(it)]) == [0]


@pytest.mark.parametrize('timeout_ms', [0, 100])
def test_a_late_server_is_no_timeout_of_the_rate_limiter(timeout_ms):
    process, address = testing_util.start_server()
    try:
        reverb_tf.Client(address).insert(7, {'t': 1.0})
        dataset = reverb_tf.TrajectoryDataset(
            address,
            't',
            tf.int64,
            [None],
            max_in_flight_samples_per_worker=1,
            rate_limiter_timeout_ms=timeout_ms,
        )
        it = iter(dataset)
        next(it)
        testing_util.freeze(process)
        got = []
        # More than can have come before.
        thread = threading.Thread(target=lambda: got.extend(next(it) for _ in range(3)))
        thread.start()
        thread.join(timeout=1.5)
        assert thread.is_alive()
        process.send_signal(signal.SIGCONT)
        thread.join(timeout=20)
        assert [int(s.data[0]) for s in got] == [7, 7, 7]
    finally:
        process.kill()
        process.wait()


def test_an_unknown_table_is_not_found(transport, serve):
    address, _ = serve(make_table())
    with pytest.raises(tf.errors.NotFoundError, match='nope'):
        next(iter(dataset(address, 'nope')))


def test_a_dataset_that_contradicts_the_signature_is_refused(serve):
    address, client = serve(make_table())
    write(client, [1])
    ds = reverb_tf.TrajectoryDataset(address, 't', {'a': tf.int32}, {'a': [None]})
    with pytest.raises(tf.errors.InvalidArgumentError, match='b/c'):
        next(iter(ds))


def test_a_mismatching_item_of_a_table_without_signature_is_named(serve):
    address, client = serve(make_table(signature=None))
    write(client, [2])
    ds = reverb_tf.TrajectoryDataset(
        address, 't', {'a': tf.int64, 'b': {'c': tf.float32}}, {'a': [None], 'b': {'c': [None, 2]}}
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match='int64'):
        next(iter(ds))


def test_a_lost_server_is_unavailable_after_the_reconnect_timeout():
    ds = dataset('localhost:1', reconnect_timeout_ms=200)
    with pytest.raises(tf.errors.UnavailableError, match='localhost:1'):
        next(iter(ds))


def test_a_stopped_server_ends_the_wait(serve):
    address, _ = serve(make_table())
    server = reverb_tf.Server([make_table('own')])
    it = iter(dataset(f'localhost:{server.port}', 'own', reconnect_timeout_ms=0))
    errors = []

    def read():
        try:
            next(it)
        except tf.errors.OpError as e:
            errors.append(e)

    reader = threading.Thread(target=read)
    reader.start()
    wait_for_reader(server)
    server.stop()
    reader.join(5)
    assert not reader.is_alive()
    assert isinstance(errors[0], tf.errors.UnavailableError)


def wait_for_reader(server, table='own'):
    with reverb_tf.Client(f'localhost:{server.port}') as client:
        deadline = time.monotonic() + 10
        while client.server_info()[table].num_waiting_samples == 0:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)


# ---- Arguments -------------------------------------------------------------------


@pytest.mark.parametrize(
    ('keywords', 'error'),
    [
        ({'max_in_flight_samples_per_worker': 0}, ValueError),
        ({'num_workers_per_iterator': 0}, ValueError),
        ({'num_workers_per_iterator': -2}, ValueError),
        ({'max_samples_per_stream': 0}, ValueError),
        ({'rate_limiter_timeout_ms': -2}, ValueError),
        ({'max_samples': 0}, ValueError),
        ({'batch_size': 0}, ValueError),
        ({'batch_size': True}, TypeError),
        ({'batch_size': 2.0}, TypeError),
        ({'pad_to_longest': True}, ValueError),
        ({'on_timeout': 'stop'}, ValueError),
        ({'consume_ahead': -1}, ValueError),
        ({'max_age_ms': -2}, ValueError),
        ({'reconnect_timeout_ms': -2}, ValueError),
        ({'seed': -1}, ValueError),
        ({'seed': 2**63}, ValueError),
        ({'shard_selection': 'any'}, ValueError),
        ({'drop_deleted': True}, NotImplementedError),
    ],
)
def test_a_bad_argument_is_refused_by_name(keywords, error):
    with pytest.raises(error, match=next(iter(keywords))):
        dataset('localhost:1', **keywords)


def test_numpy_integers_are_integers(serve):
    address, client = serve(make_table())
    write(client, [1])
    ds = dataset(address, max_samples=np.int32(2), batch_size=np.int64(2))
    assert len(list(ds)) == 1


@pytest.mark.parametrize('address', ['', 'http://localhost:1', 'localhost', 'localhost:99999'])
def test_a_malformed_address_is_refused_at_construction(address):
    with pytest.raises(ValueError, match='address'):
        dataset(address)


def test_an_empty_table_name_is_refused():
    with pytest.raises(ValueError, match='table'):
        dataset('localhost:1', '')


def test_several_addresses_are_not_implemented():
    with pytest.raises(NotImplementedError, match='interleave'):
        dataset(['localhost:1', 'localhost:2'])


def test_differing_structures_are_compared_by_path():
    with pytest.raises(ValueError, match='missing: b/c, extra: b/d'):
        reverb_tf.TrajectoryDataset(
            'localhost:1', 't', {'b': {'c': tf.int32}}, {'b': {'d': [None]}}
        )


def test_lists_become_tuples_and_shapes_may_be_lists():
    ds = reverb_tf.TrajectoryDataset('localhost:1', 't', [tf.int32, 'float32'], [[None], [2]])
    assert ds.element_spec.data == (
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([2], tf.float32),
    )


# ---- Batches ---------------------------------------------------------------------


def test_a_fused_batch_equals_batch(transport, serve):
    address, client = serve(make_queue('x'), make_queue('y'))
    for table in 'xy':
        write(client, [2] * 7, table)
    fused = list(dataset(address, 'x', batch_size=3, rate_limiter_timeout_ms=100))
    batched = list(dataset(address, 'y', rate_limiter_timeout_ms=100).batch(3))
    assert [len(s.info.key) for s in fused] == [3, 3, 1]
    for one, other in zip(fused, batched, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one.data, other.data)
        np.testing.assert_array_equal(one.info.table_size, other.info.table_size)
        np.testing.assert_array_equal(one.info.times_sampled, other.info.times_sampled)


def test_drop_remainder_makes_the_batch_static(serve):
    address, client = serve(make_table())
    write(client, [2])
    ds = dataset(address, batch_size=3, drop_remainder=True, max_samples=7)
    assert ds.element_spec.data['a'].shape.as_list() == [3, None]
    assert ds.element_spec.info.key.shape.as_list() == [3]
    assert len(list(ds)) == 2


def test_a_fused_batch_without_drop_remainder_is_of_unknown_size(serve):
    address, _ = serve(make_table())
    ds = dataset(address, batch_size=3)
    assert ds.element_spec.data['b']['c'].shape.as_list() == [None, None, 2]


def test_unequal_lengths_in_a_batch_name_path_and_cures(serve):
    address, client = serve(make_queue())
    write(client, [2, 4])
    with pytest.raises(tf.errors.InvalidArgumentError) as e:
        next(iter(dataset(address, batch_size=2)))
    for word in ("'a'", 'pad_to_longest', 'padded_batch', 'ragged_batch'):
        assert word in str(e.value)


def test_pad_to_longest_gives_lengths(transport, serve):
    address, client = serve(make_queue())
    write(client, [2, 4])
    ds = dataset(address, batch_size=2, pad_to_longest=True)
    sample = next(iter(ds))
    assert isinstance(sample, reverb_tf.PaddedSample)
    np.testing.assert_array_equal(sample.data['a'], [[0, 1, 0, 0], [2, 3, 4, 5]])
    np.testing.assert_array_equal(sample.lengths['a'], [2, 4])
    np.testing.assert_array_equal(sample.lengths['b']['c'], [2, 4])
    assert ds.element_spec.lengths['a'] == tf.TensorSpec([None], tf.int32)


def test_padded_batch_pads(serve):
    address, client = serve(make_queue())
    write(client, [2, 4])
    ds = data_lib.padded_batch(dataset(address), 2, padding_values=-1, with_lengths=True)
    sample = next(iter(ds))
    np.testing.assert_array_equal(sample.data['a'], [[0, 1, -1, -1], [2, 3, 4, 5]])
    np.testing.assert_array_equal(sample.lengths['b']['c'], [2, 4])
    assert sample.info.key.shape == [2]


def test_padded_batch_pads_with_zeros_by_default(serve):
    address, client = serve(make_queue())
    write(client, [2, 4])
    sample = next(iter(data_lib.padded_batch(dataset(address), 2)))
    assert isinstance(sample, reverb_tf.ReplaySample)
    np.testing.assert_array_equal(sample.data['a'], [[0, 1, 0, 0], [2, 3, 4, 5]])


def test_ragged_batch_is_ragged(serve):
    address, client = serve(make_queue())
    write(client, [2, 4])
    sample = next(iter(data_lib.ragged_batch(dataset(address), 2)))
    assert isinstance(sample.data['a'], tf.RaggedTensor)
    assert sample.data['a'].to_list() == [[0, 1], [2, 3, 4, 5]]
    assert sample.info.key.shape == [2]


# ---- Delivery --------------------------------------------------------------------


def test_a_queue_is_delivered_exactly_once(transport, serve):
    address, client = serve(make_queue())
    write(client, [1] * 20)
    it = iter(dataset(address, num_workers_per_iterator=3))
    first = firsts(next(it) for _ in range(5))
    del it
    gc.collect()
    rest = firsts(dataset(address, rate_limiter_timeout_ms=1500))
    assert first + rest == list(range(20))


def test_two_iterators_share_a_queue(serve):
    address, client = serve(make_queue())
    write(client, [1] * 20)
    one, two = iter(dataset(address)), iter(dataset(address))
    got = firsts(next(it) for _ in range(10) for it in (one, two))
    assert sorted(got) == list(range(20))


def test_a_seed_makes_the_picks_repeatable(serve):
    address, client = serve(make_table(sampler=reverb_tf.selectors.Uniform()))
    write(client, [1] * 20)

    def picks(seed):
        return firsts(dataset(address, seed=seed, max_samples=30))

    assert picks(7) == picks(7)
    assert picks(7) != picks(8)


# ---- tf.data ---------------------------------------------------------------------


def test_transformations(serve):
    address, client = serve(make_table(sampler=reverb_tf.selectors.Uniform()))
    write(client, [1] * 5)
    ds = dataset(address)
    assert len(list(ds.take(3))) == 3
    assert len(list(dataset(address, max_samples=2).repeat(3))) == 6
    assert len(list(dataset(address, max_samples=6).shuffle(4).batch(2).prefetch(1))) == 3
    assert len(list(tf.data.Dataset.zip((ds, ds)).take(2))) == 2
    assert len(list(ds.filter(lambda s: s.data['a'][0] < 3).take(2))) == 2
    assert len(list(dataset(address, max_samples=2).as_numpy_iterator())) == 2


def test_a_tf_function_loops_over_it(serve):
    address, client = serve(make_queue())
    write(client, [2, 2])

    @tf.function
    def total(ds):
        result = 0
        for sample in ds:
            result += tf.reduce_sum(sample.data['a'])
        return result

    assert int(total(dataset(address, max_samples=2))) == 0 + 1 + 2 + 3


def test_it_can_be_made_inside_a_tf_function(serve):
    address, client = serve(make_queue())
    write(client, [2, 2])

    @tf.function
    def total(address, table):
        result = 0
        for sample in dataset(address, table, max_samples=2):
            result += tf.reduce_sum(sample.data['a'])
        return result

    assert int(total(tf.constant(address), tf.constant('t'))) == 6


def test_interleave_over_addresses_reads_every_server(serve):
    addresses = []
    for i in range(3):
        address, client = serve(make_queue())
        write(client, [1, 1], first=10 * i)
        addresses.append(address)
    ds = tf.data.Dataset.from_tensor_slices(addresses).interleave(
        lambda address: dataset(address, max_samples=2), cycle_length=3
    )
    assert sorted(firsts(ds)) == [0, 1, 10, 11, 20, 21]


@pytest.mark.parametrize(
    ('keywords', 'cardinality'),
    [
        ({}, tf.data.INFINITE_CARDINALITY),
        ({'max_samples': 7}, 7),
        ({'max_samples': 7, 'batch_size': 3}, 3),
        ({'max_samples': 7, 'batch_size': 3, 'drop_remainder': True}, 2),
        ({'max_samples': 7, 'rate_limiter_timeout_ms': 5}, tf.data.UNKNOWN_CARDINALITY),
        ({'max_samples': 7, 'rate_limiter_timeout_ms': 5, 'on_timeout': 'error'}, 7),
    ],
)
def test_cardinality(keywords, cardinality):
    assert int(dataset('localhost:1', **keywords).cardinality()) == cardinality


def test_an_iterator_can_be_saved_and_restored(serve, tmp_path):
    address, client = serve(make_queue())
    write(client, [1] * 10)
    it = iter(dataset(address, max_samples=5))
    assert firsts([next(it), next(it)]) == [0, 1]
    path = tf.train.Checkpoint(it=it).save(str(tmp_path / 'c'))
    restored = iter(dataset(address, max_samples=5))
    tf.train.Checkpoint(it=restored).restore(path).assert_consumed()
    assert firsts(restored) == [2, 3, 4]


def test_auto_sharding_is_off_and_can_be_overridden():
    policy = tf.data.experimental.AutoShardPolicy
    ds = dataset('localhost:1')
    assert ds.options().experimental_distribute.auto_shard_policy == policy.OFF
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy.DATA
    changed = ds.with_options(options).options()
    assert changed.experimental_distribute.auto_shard_policy == policy.DATA


def test_a_distribution_strategy_samples_without_sharding(serve):
    address, client = serve(make_table())
    write(client, [2])
    strategy = tf.distribute.MirroredStrategy(['/cpu:0'])
    ds = dataset(address, batch_size=2, drop_remainder=True)
    sample = next(iter(strategy.experimental_distribute_dataset(ds)))
    assert sample.data['a'].shape == [2, 2]


def test_graph_mode_iterators_work(serve):
    address, client = serve(make_queue())
    write(client, [1, 1])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        one_shot = tf.compat.v1.data.make_one_shot_iterator(dataset(address)).get_next()
        assert session.run(one_shot.data['a']) == [0]
        it = tf.compat.v1.data.make_initializable_iterator(dataset(address))
        session.run(it.initializer)
        assert session.run(it.get_next().data['a']) == [1]


# ---- Cancellation ----------------------------------------------------------------


def test_closing_a_session_ends_a_waiting_iterator():
    server = reverb_tf.Server([make_table('own')])
    ended = threading.Event()
    with tf.Graph().as_default() as graph:
        ds = dataset(f'localhost:{server.port}', 'own')
        sample = tf.compat.v1.data.make_one_shot_iterator(ds).get_next()
        session = tf.compat.v1.Session(graph=graph)

        def read():
            with pytest.raises(tf.errors.CancelledError):
                session.run(sample.data['a'])
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        wait_for_reader(server)
        session.close()
        reader.join(5)
    assert ended.is_set()
    server.stop()


def test_dropping_a_prefetching_iterator_ends_its_wait():
    server = reverb_tf.Server([make_table('own')])
    it = iter(dataset(f'localhost:{server.port}', 'own').prefetch(2))
    with reverb_tf.Client(f'localhost:{server.port}') as client:
        client.server_info()
    start = time.monotonic()
    del it
    gc.collect()
    assert time.monotonic() - start < 1
    server.stop()


# ---- Loading ---------------------------------------------------------------------


def test_another_tensorflow_is_refused_before_loading():
    with pytest.raises(
        ImportError, match='built for TensorFlow 2.20, found 2.16.2; run pip install'
    ):
        load.check_tensorflow_version('2.16.2', built='2.20.0')


def test_patch_releases_are_alike():
    load.check_tensorflow_version('2.20.3-rc1', built='2.20.0')


def test_from_table_signature_takes_every_argument_of_the_constructor():
    constructor = inspect.signature(reverb_tf.TrajectoryDataset.__init__).parameters
    from_signature = inspect.signature(reverb_tf.TrajectoryDataset.from_table_signature).parameters
    assert set(constructor) - {'self', 'dtypes', 'shapes'} <= set(from_signature)
    for name in set(constructor) & set(from_signature):
        assert from_signature[name].default == constructor[name].default
