"""Datasets in use: waiting inside a graph, idle readers, exact counts, saving."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from tests import testing_util

SIGNATURE = {'a': tf.TensorSpec([None], tf.int64)}


@pytest.fixture(params=['1', '0'], ids=['in_process', 'remote'])
def transport(request, monkeypatch):
    monkeypatch.setenv('REVERB_TF_INPROCESS', request.param)


@pytest.fixture
def server(transport):
    tables = [
        reverb_tf.Table.queue('q', 1000, signature=SIGNATURE),
        testing_util.uniform_table('t', signature=SIGNATURE),
    ]
    with reverb_tf.Server(tables) as server:
        yield server


def insert(server, table, values):
    client = reverb_tf.Client(server.address, timeout=60)
    with client.trajectory_writer(1) as writer:
        for value in values:
            writer.append({'a': value})
            writer.create_item(table, 1.0, {'a': writer.history['a'][-1:]})
    client.close()


def dataset(server, table='q', **keywords):
    return reverb_tf.TrajectoryDataset.from_table_signature(server.address, table, **keywords)


def firsts(samples):
    return [int(s.data['a'][0]) for s in samples]


def waiting(server, table='q'):
    return server.tables[table].info.num_waiting_samples


def test_a_queue_is_waited_for_inside_a_tf_function(server):
    @tf.function
    def total(ds):
        result = tf.constant(0, tf.int64)
        for sample in ds:
            result += sample.data['a'][0]
        return result

    def write():
        for value in (1, 2, 3):  # each only when the loop waits for it
            testing_util.eventually(lambda: waiting(server) == 1)
            insert(server, 'q', [value])

    writer = threading.Thread(target=write)
    writer.start()
    assert int(total(dataset(server, max_samples=3))) == 6
    writer.join()


def test_next_of_an_iterator_waits_inside_a_tf_function(server):
    iterator = iter(dataset(server))

    @tf.function
    def step():
        return next(iterator).data['a'][0]

    def write():
        testing_util.eventually(lambda: waiting(server) == 1)
        insert(server, 'q', [7, 8])

    writer = threading.Thread(target=write)
    writer.start()
    assert [int(step()), int(step())] == [7, 8]
    writer.join()


@pytest.mark.parametrize('table', ['q', 't'])
@pytest.mark.parametrize('keywords', [{}, {'batch_size': 1}], ids=['single', 'batch'])
def test_an_idle_reader_does_not_time_out(server, table, keywords):
    insert(server, table, [1])
    it = iter(dataset(server, table, rate_limiter_timeout_ms=100, **keywords))
    next(it)
    threading.Event().wait(0.5)  # the reader does other things for longer than the timeout
    insert(server, table, [2])
    assert int(tf.size(next(it).data['a'])) == 1


@pytest.mark.parametrize('workers', [1, 3])
@pytest.mark.parametrize('batch', [None, 4])
def test_max_samples_takes_exactly_so_many(server, workers, batch):
    insert(server, 'q', range(50))
    ds = dataset(server, max_samples=22, num_workers_per_iterator=workers, batch_size=batch)
    got = [int(v) for s in ds for v in np.ravel(s.data['a'])]
    assert sorted(got) == list(range(22))
    testing_util.eventually(lambda: len(server.tables['q']) == 28)
    rest = firsts(dataset(server, rate_limiter_timeout_ms=200))
    assert rest == list(range(22, 50))


def test_one_delivered_sample_is_counted_as_one(server):
    insert(server, 't', range(5))
    it = iter(dataset(server, 't', max_in_flight_samples_per_worker=32))
    next(it)
    stats = lambda: server.tables['t'].info.rate_limiter_info.sample_stats  # noqa: E731
    testing_util.eventually(lambda: stats().delivered == 1)
    assert stats().completed > 1
    assert stats().in_flight == stats().completed - 1


def test_a_dataset_can_be_saved_and_loaded(server, tmp_path):
    insert(server, 'q', range(5))
    dataset(server, max_samples=5).save(str(tmp_path / 'saved'))
    assert sorted(firsts(tf.data.Dataset.load(str(tmp_path / 'saved')))) == list(range(5))


def test_padded_and_ragged_batches_of_tf_data(server):
    client = reverb_tf.Client(server.address, timeout=60)
    with client.trajectory_writer(4) as writer:
        for length in (2, 4, 2, 4):
            writer.append_batch({'a': np.arange(length)})
            writer.create_item('q', 1.0, {'a': writer.history['a'][-length:]})
            writer.flush()
    padded = next(iter(dataset(server).padded_batch(2)))
    assert padded.data['a'].numpy().tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    ragged = next(iter(dataset(server).ragged_batch(2)))
    assert ragged.data['a'].to_list() == [[0, 1], [0, 1, 2, 3]]


def test_batching_unequal_lengths_of_tf_data_fails_and_loses_no_process(server):
    client = reverb_tf.Client(server.address, timeout=60)
    with client.trajectory_writer(4) as writer:
        for length in (2, 4):
            writer.append_batch({'a': np.arange(length)})
            writer.create_item('q', 1.0, {'a': writer.history['a'][-length:]})
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iter(dataset(server).batch(2)))


def test_repeat_shuffle_and_take_go_together(server):
    insert(server, 't', range(5))
    ds = dataset(server, 't', max_samples=4).repeat().shuffle(8).take(10)
    assert set(firsts(ds)) <= set(range(5))
    assert len(list(ds)) == 10


def test_a_seed_may_be_a_tensor(server):
    insert(server, 't', range(20))

    @tf.function
    def picks(seed):
        result = tf.zeros([0], tf.int64)
        for sample in dataset(server, 't', seed=seed, max_samples=10):
            result = tf.concat([result, sample.data['a']], 0)
        return result

    one, two, other = (picks(tf.constant(seed)).numpy().tolist() for seed in (7, 7, 8))
    assert one == two != other
    for bad in (tf.constant(1.5), tf.constant([1, 2]), 'a', True):
        with pytest.raises(TypeError, match='seed'):
            dataset(server, 't', seed=bad)


@pytest.mark.parametrize(
    'name',
    [
        'max_in_flight_samples_per_worker',
        'num_workers_per_iterator',
        'max_samples_per_stream',
        'rate_limiter_timeout_ms',
        'max_samples',
        'batch_size',
        'consume_ahead',
        'max_age_ms',
        'reconnect_timeout_ms',
        'seed',
    ],
)
def test_every_number_takes_scalars_of_any_kind_and_nothing_else(name):
    def make(value):
        return reverb_tf.TrajectoryDataset('localhost:1', 't', tf.int64, [None], **{name: value})

    for good in (3, np.int8(3), np.uint64(3), np.array(3), tf.constant(3)):
        make(good)
    for bad in (3.0, '3', True, np.bool_(1), np.array([3]), np.array(3.0), int):
        with pytest.raises(TypeError, match=name):
            make(bad)
    with pytest.raises(ValueError, match=name):
        make(2**63)
