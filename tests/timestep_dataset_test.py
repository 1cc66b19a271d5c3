"""TimestepDataset: steps, batches of them, ends, scopes, and what tf.data expects of a dataset."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf.ops import load
from tests import testing_util

TRAJECTORIES = {
    'a': tf.TensorSpec([None], tf.int32),
    'b': {'c': tf.TensorSpec([None, 2], tf.float32)},
}
STEPS = {'a': tf.TensorSpec([], tf.int32), 'b': {'c': tf.TensorSpec([2], tf.float32)}}
SCALARS = {'a': tf.TensorSpec([], tf.int32)}


def make_table(name='t', signature=TRAJECTORIES, **kwargs):
    return reverb_tf.Table(
        name,
        reverb_tf.selectors.Fifo(),
        reverb_tf.selectors.Fifo(),
        100,
        reverb_tf.rate_limiters.MinSize(1),
        signature=signature,
        **kwargs,
    )


def make_queue(name='t', signature=TRAJECTORIES):
    return reverb_tf.Table.queue(name, 100, signature=signature)


def write(client, lengths, table='t'):
    """Items of the given lengths; a counts on from 0, c is [a, -a]."""
    with client.trajectory_writer(num_keep_alive_refs=max(lengths)) as writer:
        a = 0
        for length in lengths:
            for _ in range(length):
                writer.append({'a': np.int32(a), 'b': {'c': np.float32([a, -a])}})
                a += 1
            h = writer.history
            item = {'a': h['a'][-length:], 'b': {'c': h['b']['c'][-length:]}}
            writer.create_item(table, float(length), item)
            writer.flush()


@pytest.fixture(params=[True, False], ids=['in_process', 'remote'])
def serve(request, monkeypatch):
    monkeypatch.setenv('REVERB_TF_INPROCESS', '1' if request.param else '0')
    servers = []

    def start(*tables):
        server = reverb_tf.Server(list(tables))
        servers.append(server)
        return f'localhost:{server.port}', reverb_tf.Client(f'localhost:{server.port}')

    yield start
    for server in servers:
        server.stop()


def dataset(address, table='t', steps=STEPS, **keywords):
    return reverb_tf.TimestepDataset(
        address,
        table,
        tf.nest.map_structure(lambda s: s.dtype, steps),
        tf.nest.map_structure(lambda s: s.shape, steps),
        **keywords,
    )


def values(samples):
    """All of a, whether in batches or not."""
    return [int(a) for s in samples for a in np.ravel(s.data['a'])]


def stats(client, table='t'):
    return client.server_info()[table].rate_limiter_info.sample_stats


# ---- Elements --------------------------------------------------------------------


def test_an_element_is_one_step_with_its_items_info(serve):
    address, client = serve(make_table())
    write(client, [2])
    first, second = dataset(address, max_samples=1)
    assert isinstance(first, reverb_tf.ReplaySample)
    assert isinstance(first.info, reverb_tf.SampleInfo)
    assert first.data['a'].shape == []
    np.testing.assert_array_equal(second.data['b']['c'], [1, -1])
    assert values([first, second]) == [0, 1]
    assert float(first.info.priority) == 2.0
    assert [int(x) for x in first.info] == [int(x) for x in second.info]


def test_element_spec_is_what_was_declared(serve):
    address, _ = serve(make_table())
    ds = dataset(address)
    assert ds.element_spec.data == STEPS
    assert ds.element_spec.info.key == tf.TensorSpec([], tf.uint64)


def test_items_follow_each_other_without_a_mark(serve):
    address, client = serve(make_queue())
    write(client, [3, 1, 2])
    assert values(dataset(address, max_samples=3)) == [0, 1, 2, 3, 4, 5]


def test_items_written_as_steps_are_read_as_steps(serve):
    address, client = serve(make_queue(signature=STEPS))
    for a in range(3):
        client.insert({'a': np.int32(a), 'b': {'c': np.zeros(2, np.float32)}}, {'t': 1.0})
    assert values(dataset(address, max_samples=3)) == [0, 1, 2]


def test_strings_come_as_strings(serve):
    address, client = serve(make_queue(signature=None))
    with client.trajectory_writer(2) as writer:
        for text in (b'ab', b'', b'cde'):
            writer.append({'s': text})
        writer.create_item('t', 1.0, {'s': writer.history['s'][-2:]})
        writer.flush()
    ds = dataset(address, steps={'s': tf.TensorSpec([], tf.string)}, max_samples=1)
    assert [s.data['s'].numpy() for s in ds] == [b'', b'cde']


def test_an_item_without_steps_is_named_by_column_and_given_back(serve):
    address, client = serve(make_queue(signature=None))
    steps = {'x': tf.TensorSpec([], tf.int32), 'y': tf.TensorSpec([], tf.int32)}
    iterator = iter(dataset(address, steps=steps))
    with client.trajectory_writer(2) as writer:
        for i in range(2):
            writer.append({'x': np.int32(i), 'y': np.int32(10 + i)})
        h = writer.history
        writer.create_item('t', 1.0, {'x': h['x'][:], 'y': h['y'][-1:]})
        writer.flush()
        with pytest.raises(tf.errors.InvalidArgumentError, match="'x' has length 2, 'y'"):
            next(iterator)
        testing_util.eventually(lambda: client.server_info()['t'].current_size == 1)
        client.reset('t')
        writer.create_item('t', 1.0, {'x': h['x'][:], 'y': h['y'][:]})
        writer.flush()
    assert int(next(iterator).data['y']) == 10


# ---- Batches ---------------------------------------------------------------------


@pytest.mark.parametrize('size', [1, 2, 4, 100])
def test_a_fused_batch_equals_batch(serve, size):
    address, client = serve(make_table(), make_queue('q'))
    write(client, [3, 1, 4])
    write(client, [3, 1, 4], 'q')
    fused = list(dataset(address, 'q', max_samples=3, batch_size=size))
    plain = list(dataset(address, 't', max_samples=1).batch(size))
    assert values(fused) == list(range(8))
    assert [len(b.data['a']) for b in fused] == [size] * (8 // size) + [8 % size] * (8 % size > 0)
    assert fused[0].info.key.dtype == plain[0].info.key.dtype
    for batch in fused:
        np.testing.assert_array_equal(batch.data['b']['c'][:, 0], batch.data['a'])
        assert batch.info.key.shape == batch.data['a'].shape
    np.testing.assert_array_equal(
        fused[0].data['a'][: min(size, 3)], plain[0].data['a'][: min(size, 3)]
    )


def test_batches_cross_items(serve):
    address, client = serve(make_queue())
    write(client, [3, 3])
    batch = next(iter(dataset(address, batch_size=4)))
    assert batch.info.priority.numpy().tolist() == [3.0] * 4
    assert len(set(batch.info.key.numpy().tolist())) == 2


def test_drop_remainder_makes_the_batch_static_and_drops_the_rest(serve):
    address, client = serve(make_queue())
    write(client, [3, 3])
    ds = dataset(address, max_samples=2, batch_size=4, drop_remainder=True)
    assert ds.element_spec.data['b']['c'] == tf.TensorSpec([4, 2], tf.float32)
    assert values(ds) == [0, 1, 2, 3]
    testing_util.eventually(lambda: stats(client).partial == 1)


def test_prefetched_steps_come_in_batches_of_any_size(serve):
    address, client = serve(make_table())
    write(client, [5])
    ds = dataset(address, batch_size=64, max_in_flight_samples_per_worker=2).take(10)
    assert values(ds) == list(range(5)) * 128


# ---- Ends ------------------------------------------------------------------------


def test_steps_not_read_at_the_end_are_dropped_and_counted(serve):
    address, client = serve(make_queue())
    write(client, [3, 2])
    iterator = iter(dataset(address))
    assert int(next(iterator).data['a']) == 0
    del iterator
    testing_util.eventually(lambda: stats(client).partial == 1)
    assert stats(client).delivered == 1
    assert values(dataset(address, max_samples=1)) == [3, 4]
    assert stats(client).in_flight == 0


def test_an_item_is_taken_only_when_its_first_step_is_asked_for(serve):
    address, client = serve(make_queue())
    write(client, [2, 2, 2])
    iterator = iter(dataset(address))
    for size in (2, 2, 1, 1):
        next(iterator)
        assert client.server_info()['t'].current_size == size


def test_on_timeout_end_gives_the_steps_that_are_there(serve):
    address, client = serve(make_queue())
    write(client, [3])
    ds = dataset(address, batch_size=2, rate_limiter_timeout_ms=20)
    assert [len(b.data['a']) for b in ds] == [2, 1]


def test_on_timeout_error_keeps_the_steps_for_the_next_call(serve):
    address, client = serve(make_queue())
    write(client, [3])
    iterator = iter(dataset(address, batch_size=4, rate_limiter_timeout_ms=20, on_timeout='error'))
    with pytest.raises(tf.errors.DeadlineExceededError):
        next(iterator)
    write(client, [3])
    assert values([next(iterator)]) == [0, 1, 2, 0]


def test_two_iterators_share_a_queue(serve):
    address, client = serve(make_queue())
    write(client, [2] * 10)
    ds = dataset(address, max_samples=5)
    assert sorted(values(ds) + values(ds)) == list(range(20))


# ---- Scopes ----------------------------------------------------------------------


def test_steps_decide_the_scope_of_a_table(serve):
    address, client = serve(make_table(signature=STEPS))
    ds = dataset(address, rate_limiter_timeout_ms=0)
    assert list(ds) == []
    assert client.server_info()['t'].signature_scope == 'step'


def test_steps_of_trajectories_decide_the_scope_of_a_table(serve):
    address, client = serve(make_table())
    assert list(dataset(address, rate_limiter_timeout_ms=0)) == []
    assert client.server_info()['t'].signature_scope == 'trajectory'


@pytest.mark.parametrize(
    'scope, steps, got',
    [
        ('trajectory', {'a': tf.TensorSpec([None], tf.int32)}, "'a' got int32"),
        ('step', {'a': tf.TensorSpec([], tf.int32)}, "'a' got int32"),
        (None, {'a': tf.TensorSpec([2], tf.int32)}, "'a' got int32"),
    ],
)
def test_steps_that_contradict_the_table_are_refused(serve, scope, steps, got):
    signature = {'a': tf.TensorSpec([3], tf.int32)}
    address, _ = serve(make_table(signature=signature, signature_scope=scope))
    with pytest.raises(tf.errors.InvalidArgumentError, match=got):
        next(iter(dataset(address, steps=steps)))


def test_a_scalar_of_a_trajectory_table_has_no_steps(serve):
    address, _ = serve(make_table(signature=SCALARS, signature_scope='trajectory'))
    with pytest.raises(tf.errors.InvalidArgumentError, match='time dimension'):
        next(iter(dataset(address, steps=SCALARS)))
    with pytest.raises(ValueError, match="'a' has no time dimension"):
        reverb_tf.TimestepDataset.from_table_signature(address, 't')


def test_from_table_signature_drops_the_time_of_trajectories(serve):
    address, client = serve(make_table(signature_scope='trajectory'))
    write(client, [2])
    ds = reverb_tf.TimestepDataset.from_table_signature(address, 't', max_samples=1)
    assert ds.element_spec.data == STEPS
    assert values(ds) == [0, 1]


@pytest.mark.parametrize('scope', ['step', None])
def test_from_table_signature_takes_the_steps_of_others(serve, scope):
    address, _ = serve(make_table(signature=STEPS, signature_scope=scope))
    ds = reverb_tf.TimestepDataset.from_table_signature(address, 't')
    assert ds.element_spec.data == STEPS


def test_from_table_signature_says_how_to_add_a_signature(serve):
    address, _ = serve(make_table(signature=None))
    with pytest.raises(ValueError, match='signature='):
        reverb_tf.TimestepDataset.from_table_signature(address, 't')


def test_a_mismatching_item_of_a_table_without_signature_is_named(serve):
    address, client = serve(make_table(signature=None))
    client.insert({'a': np.float32(1)}, {'t': 1.0})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)item \d+.*'a' got float32"):
        next(iter(dataset(address, steps=SCALARS)))


# ---- tf.data ---------------------------------------------------------------------


@pytest.mark.parametrize(
    'keywords, cardinality',
    [
        ({}, tf.data.INFINITE_CARDINALITY),
        ({'batch_size': 4}, tf.data.INFINITE_CARDINALITY),
        ({'max_samples': 5}, tf.data.UNKNOWN_CARDINALITY),
        ({'rate_limiter_timeout_ms': 0}, tf.data.UNKNOWN_CARDINALITY),
        ({'rate_limiter_timeout_ms': 0, 'on_timeout': 'error'}, tf.data.INFINITE_CARDINALITY),
    ],
)
def test_cardinality(keywords, cardinality):
    assert dataset('localhost:1', **keywords).cardinality() == cardinality


def test_an_iterator_can_be_saved_and_restored(serve, tmp_path):
    address, client = serve(make_queue())
    write(client, [3, 3, 3])
    iterator = iter(dataset(address, max_samples=2))
    next(iterator)
    path = tf.train.Checkpoint(it=iterator).save(str(tmp_path / 'iterator'))
    del iterator
    restored = iter(dataset(address, max_samples=2))
    tf.train.Checkpoint(it=restored).restore(path).assert_consumed()
    assert values(restored) == [3, 4, 5]


def test_a_seed_makes_the_picks_repeatable(serve):
    address, client = serve(testing_util.uniform_table(signature=STEPS))
    for a in range(50):
        client.insert({'a': np.int32(a), 'b': {'c': np.zeros(2, np.float32)}}, {'t': 1.0})
    first = values(dataset(address, max_samples=20, seed=1))
    assert first == values(dataset(address, max_samples=20, seed=1))
    assert first != values(dataset(address, max_samples=20, seed=2))


def test_transformations(serve):
    address, client = serve(make_queue())
    write(client, [2, 2, 2])
    ds = dataset(address, max_samples=3).map(lambda s: s.data['a']).filter(lambda a: a > 0)
    assert [b.tolist() for b in ds.batch(2).prefetch(1).as_numpy_iterator()] == [
        [1, 2],
        [3, 4],
        [5],
    ]


def test_it_can_be_made_inside_a_tf_function(serve):
    address, client = serve(make_queue())
    write(client, [2, 2])

    @tf.function
    def total(address):
        result = 0
        for sample in dataset(address, max_samples=2):
            result += sample.data['a']
        return result

    assert int(total(tf.constant(address))) == 6


def test_interleave_over_addresses_reads_every_server(serve):
    (one, client), (two, other) = serve(make_queue()), serve(make_queue())
    write(client, [2])
    write(other, [2])
    ds = tf.data.Dataset.from_tensor_slices([one, two]).interleave(
        lambda address: dataset(address, max_samples=1)
    )
    assert sorted(values(ds)) == [0, 0, 1, 1]


def test_keras_fits_on_fused_steps(serve):
    address, client = serve(make_table())
    write(client, [8])
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    ds = dataset(address, batch_size=4).map(lambda s: (s.data['b']['c'], s.data['a']))
    history = model.fit(ds, steps_per_epoch=3, verbose=0)
    assert np.isfinite(history.history['loss']).all()


# ---- Arguments -------------------------------------------------------------------


@pytest.mark.parametrize(
    'keywords, error',
    [
        ({'batch_size': 0}, ValueError),
        ({'max_samples': 0}, ValueError),
        ({'num_workers_per_iterator': 0}, ValueError),
        ({'on_timeout': 'stop'}, ValueError),
        ({'drop_deleted': True}, NotImplementedError),
        ({'pad_to_longest': True}, TypeError),
    ],
)
def test_a_bad_argument_is_refused_by_name(keywords, error):
    with pytest.raises(error, match=next(iter(keywords))):
        dataset('localhost:1', **keywords)


def test_the_arguments_are_those_of_trajectory_dataset_but_for_padding():
    for name in ('__init__', 'from_table_signature'):
        got = dict(inspect.signature(getattr(reverb_tf.TimestepDataset, name)).parameters)
        want = dict(inspect.signature(getattr(reverb_tf.TrajectoryDataset, name)).parameters)
        del want['pad_to_longest']
        assert [(n, p.default, p.kind) for n, p in got.items()] == [
            (n, p.default, p.kind) for n, p in want.items()
        ]


def test_ops_differ_only_in_padding():
    ops = [
        load.ops().reverb_tf_timestep_dataset,
        load.ops().reverb_tf_trajectory_dataset,
    ]
    steps, trajectories = (set(inspect.signature(op).parameters) for op in ops)
    assert trajectories - steps == {'pad_to_longest'}
    assert steps <= trajectories
