"""TFClient and its ops: eager, tf.function, loops, sessions; waits, errors, lifetimes."""

import collections
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import reverb_tf
from reverb_tf.ops import load
from tests.testing_util import eventually, uniform_table

STEP = {'a': tf.TensorSpec([2], tf.float32), 'b': tf.TensorSpec([], tf.int64)}


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


def queue(name='t', max_size=100, signature=None):
    return reverb_tf.Table.queue(name, max_size, signature=signature)


def run_eagerly(address, call):
    return tf.nest.map_structure(lambda t: t.numpy(), call(reverb_tf.TFClient(address)))


def run_in_function(address, call):
    client = reverb_tf.TFClient(address)
    outputs = tf.function(lambda: call(client))()
    return tf.nest.map_structure(lambda t: t.numpy(), outputs)


def run_in_session(address, call):
    with tf.Graph().as_default() as graph:
        outputs = call(reverb_tf.TFClient(address))
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(outputs)


@pytest.fixture(params=[run_eagerly, run_in_function, run_in_session])
def run(request):
    return request.param


def info(client, table='t'):
    return client.server_info()[table]


def stored(client, table='t'):
    """The data of a queue's items, which are taken."""
    count = info(client, table).current_size
    samples = client.sample(table, count, emit_timesteps=False) if count else ()
    return [sample.data for sample in samples]


def write_item(client, length, table='t'):
    with client.trajectory_writer(length) as writer:
        for i in range(length):
            writer.append({'a': np.float32(i)})
        writer.create_item(table, 1.0, {'a': writer.history['a'][:]})


# ---- Every call, in every mode ---------------------------------------------------


def test_insert_makes_one_item_per_table(run, transport, serve):
    address, client = serve(queue('t'), queue('u'))
    keys = run(
        address,
        lambda c: c.insert([tf.constant([1.0, 2.0])], ['t', 'u'], [1.0, 2.0], return_keys=True),
    )
    assert keys.dtype == np.uint64 and keys.shape == (2,)
    for table, key, priority in zip('tu', keys, (1.0, 2.0), strict=True):
        (sample,) = client.sample(table, 1, emit_timesteps=False)
        assert (sample.info.key, sample.info.priority) == (key, priority)
        np.testing.assert_array_equal(sample.data[0], [[1.0, 2.0]])


def test_insert_batch_makes_an_item_of_each_row_and_table(run, transport, serve):
    address, client = serve(queue('t'), queue('u'))
    keys = run(
        address,
        lambda c: c.insert_batch(
            [tf.constant([[1.0], [2.0], [3.0]])], ['t', 'u'], [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
        ),
    )
    assert keys.shape == (3, 2)
    for column, table in enumerate('tu'):
        samples = list(client.sample(table, 3, emit_timesteps=False))
        assert [s.info.key for s in samples] == list(keys[:, column])
        assert [s.info.priority for s in samples] == [1 + 3 * column + i for i in range(3)]
        assert [s.data[0][0, 0] for s in samples] == [1.0, 2.0, 3.0]


def test_sample_gives_the_step_and_its_info(run, transport, serve):
    address, client = serve(queue(signature=STEP))
    (key,) = client.insert({'a': np.float32([1, 2]), 'b': 7}, {'t': 3.0}).values()
    sample = run(address, lambda c: c.sample('t', {'a': tf.float32, 'b': tf.int64}))
    assert isinstance(sample, reverb_tf.ReplaySample)
    assert sample.info == reverb_tf.SampleInfo(key, 1.0, 1, 3.0, 1)
    assert sample.info.key.dtype == np.uint64
    np.testing.assert_array_equal(sample.data['a'], [1, 2])
    assert sample.data['b'] == 7


def test_sample_batch_gives_whole_items(run, transport, serve):
    address, client = serve(queue())
    for _ in range(3):
        write_item(client, 2)
    sample = run(address, lambda c: c.sample_batch('t', 3, [tf.float32]))
    assert sample.info.key.shape == sample.info.times_sampled.shape == (3,)
    assert len(set(sample.info.key)) == 3
    np.testing.assert_array_equal(sample.data[0], [[0, 1]] * 3)
    assert info(client).current_size == 0


def test_update_priorities_counts(run, transport, serve):
    address, client = serve(uniform_table())
    (key,) = client.insert([1.0], {'t': 1.0}).values()
    counts = run(
        address,
        lambda c: c.update_priorities('t', [key, 12345], [5.0, 6.0], return_counts=True),
    )
    assert counts == reverb_tf.MutateResult(updated=1, deleted=0, not_found=1)
    assert next(client.sample('t', 1, emit_timesteps=False)).info.priority == 5.0


def test_delete_counts(run, transport, serve):
    address, client = serve(uniform_table())
    (key,) = client.insert([1.0], {'t': 1.0}).values()
    counts = run(address, lambda c: c.delete('t', [key, 12345], return_counts=True))
    assert counts == reverb_tf.MutateResult(updated=0, deleted=1, not_found=1)
    assert info(client).current_size == 0


def test_calls_without_outputs_give_none_in_eager_mode_and_ops_in_graphs(serve):
    address, client = serve(uniform_table())

    def calls(c):
        return [
            c.insert([1.0], ['t'], [1.0]),
            c.update_priorities('t', [1], [1.0]),
            c.delete('t', [1]),
            c.reset('t'),
        ]

    assert calls(reverb_tf.TFClient(address)) == [None] * 4
    with tf.Graph().as_default() as graph:
        ops = calls(reverb_tf.TFClient(address))
        assert all(isinstance(op, tf.Operation) for op in ops)
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(ops[0])
            assert info(client).current_size == 1
            session.run(ops[3])
            assert info(client).current_size == 0


def test_a_while_loop_inserts_and_samples(transport, serve):
    address, _ = serve(queue())
    client = reverb_tf.TFClient(address)

    @tf.function
    def collect(n):
        total = 0.0
        for i in tf.range(n):
            client.insert([tf.cast(i, tf.float32)], ['t'], [1.0])
        for _ in tf.range(n):
            total = 10 * total + client.sample('t', [tf.float32], shapes=[[]]).data[0]
        return total

    assert collect(tf.constant(4)) == 123


def test_only_the_branch_taken_is_run(serve):
    address, client = serve(queue('t'), queue('u'))
    tf_client = reverb_tf.TFClient(address)

    @tf.function
    def insert(condition):
        return tf.cond(
            condition,
            lambda: tf_client.insert([1.0], ['t'], [1.0], return_keys=True),
            lambda: tf_client.insert([1.0], ['u'], [1.0], return_keys=True),
        )

    insert(tf.constant(True))
    assert (info(client, 't').current_size, info(client, 'u').current_size) == (1, 0)


def test_calls_in_a_function_run_in_program_order(serve):
    address, client = serve(queue())
    tf_client = reverb_tf.TFClient(address)

    @tf.function
    def refill():
        tf_client.insert([1.0], ['t'], [1.0])
        tf_client.reset('t')
        tf_client.insert([2.0], ['t'], [1.0])
        tf_client.insert([3.0], ['t'], [1.0])

    for _ in range(20):
        refill()
        assert [d[0] for d in stored(client)] == [2.0, 3.0]


def test_a_client_made_in_a_function_outlives_it(serve):
    address, client = serve(queue())
    made = []

    @tf.function
    def insert():
        if not made:
            made.append(reverb_tf.TFClient(address))
        made[0].insert([1.0], ['t'], [1.0])

    insert()
    made[0].insert([1.0], ['t'], [1.0])
    assert info(client).current_size == 2


def test_addresses_and_tables_may_be_tensors(serve):
    address, client = serve(queue())

    @tf.function
    def insert(address, table):
        reverb_tf.TFClient(address).insert([1.0], table[tf.newaxis], [1.0])
        return reverb_tf.TFClient([address]).sample(table, [tf.float32]).data[0]

    assert insert(tf.constant(address), tf.constant('t')) == 1.0
    reverb_tf.TFClient(client).insert([1.0], tf.constant(['t']), tf.constant([1.0], tf.float64))
    assert info(client).current_size == 1


# ---- Data ------------------------------------------------------------------------


@pytest.mark.parametrize(
    'value',
    [
        tf.constant(True),
        tf.constant([b'', b'\x00a\x00', 'täxt'.encode()]),
        tf.constant([[1.5, -0.0]], tf.bfloat16),
        tf.constant([2**64 - 1, 0], tf.uint64),
        tf.constant([-(2**63)], tf.int64),
        tf.constant([1.0], tf.float16),
        tf.constant(1 + 2j, tf.complex128),
        tf.zeros([0, 3], tf.int8),
        tf.cast([0.5, 2.0], tf.dtypes.experimental.float8_e5m2),
    ],
    ids=lambda v: v.dtype.name,
)
def test_values_come_back_as_they_went_in(value, transport, serve):
    address, _ = serve(queue())
    client = reverb_tf.TFClient(address)
    client.insert([value], ['t'], [1.0])
    got = client.sample('t', [value.dtype]).data[0]
    assert got.dtype == value.dtype and got.shape == value.shape
    got, value = np.asarray(got), np.asarray(value)
    assert got.tolist() == value.tolist()
    assert value.dtype == object or got.tobytes() == value.tobytes()


def test_batches_of_strings_come_back_as_they_went_in(transport, serve):
    address, _ = serve(queue())
    client = reverb_tf.TFClient(address)
    client.insert_batch([tf.constant([['a', 'bc'], ['', 'def']])], ['t'], [[1.0], [1.0]])
    got = client.sample_batch('t', 2, [tf.string], shapes=[[2]]).data[0]
    np.testing.assert_array_equal(got, [[b'a', b'bc'], [b'', b'def']])


def test_a_batch_larger_than_a_chunk_comes_back_as_it_went_in(transport, serve):
    address, _ = serve(queue())
    client = reverb_tf.TFClient(address)
    rows = np.random.default_rng(0).random((20, 10_000))
    client.insert_batch([rows], ['t'], np.ones([20, 1]))
    np.testing.assert_array_equal(
        client.sample_batch('t', 20, [tf.float64], shapes=[[10_000]]).data[0], rows
    )


Pair = collections.namedtuple('Pair', ['b', 'a'])


def test_names_are_matched_by_path(serve):
    address, _ = serve(queue(signature=STEP))
    client = reverb_tf.TFClient(address)
    client.insert(Pair(b=tf.constant(7, tf.int64), a=tf.constant([1.0, 2.0])), ['t'], [1.0])
    sample = client.sample('t', Pair(b=tf.int64, a=tf.float32))
    assert isinstance(sample.data, Pair)
    assert sample.data.b == 7
    np.testing.assert_array_equal(sample.data.a, [1.0, 2.0])


def test_lists_are_matched_by_position(serve):
    address, _ = serve(queue(signature=STEP))
    client = reverb_tf.TFClient(address)
    client.insert([tf.constant([1.0, 2.0]), tf.constant(7, tf.int64)], ['t'], [1.0])
    a, b = client.sample('t', [tf.float32, tf.int64]).data
    np.testing.assert_array_equal(a, [1.0, 2.0])
    assert b == 7


def test_declared_shapes_are_static(serve):
    address, _ = serve(queue())
    client = reverb_tf.TFClient(address)
    with tf.Graph().as_default():
        sample = client_in_graph(address).sample('t', {'x': tf.int32}, shapes={'x': [None, 2]})
        assert sample.data['x'].shape.as_list() == [None, 2]
        assert sample.info.key.shape.as_list() == []
        batch = client_in_graph(address).sample_batch('t', 8, [tf.int32], shapes=[[3]])
        assert batch.data[0].shape.as_list() == [8, 3]
        assert batch.info.priority.shape.as_list() == [8]
        assert client_in_graph(address).sample('t', [tf.int32]).data[0].shape.rank is None
    with pytest.raises(ValueError, match=r"shapes must be nested as data_dtypes; got \['y'\]"):
        client.sample('t', {'x': tf.int32}, shapes={'y': []})


def client_in_graph(address):
    assert not tf.executing_eagerly()
    return reverb_tf.TFClient(address)


# ---- Items of one step and of several --------------------------------------------


def test_an_item_of_several_steps_is_refused_and_given_back(transport, serve):
    address, client = serve(queue())
    write_item(client, 3)
    tf_client = reverb_tf.TFClient(address)
    with pytest.raises(tf.errors.InvalidArgumentError, match='emit_trajectory=True'):
        tf_client.sample('t', [tf.float32])
    eventually(lambda: info(client).current_size == 1)
    sample = tf_client.sample('t', [tf.float32], emit_trajectory=True)
    np.testing.assert_array_equal(sample.data[0], [0, 1, 2])
    assert sample.info.times_sampled == 1


def test_a_squeezed_item_is_one_step(serve):
    address, client = serve(queue())
    with client.trajectory_writer(1) as writer:
        writer.append([np.float32([1, 2])])
        writer.create_item('t', 1.0, [writer.history[0][-1]])
    step = reverb_tf.TFClient(address).sample('t', [tf.float32]).data[0]
    np.testing.assert_array_equal(step, [1, 2])


def test_items_of_one_step_in_a_trajectory_table_come_without_time(serve):
    signature = {'a': tf.TensorSpec([None, 2], tf.float32)}
    address, client = serve(queue(signature=signature))
    with client.trajectory_writer(1) as writer:
        writer.append({'a': np.float32([1, 2])})
        writer.create_item('t', 1.0, {'a': writer.history['a'][:]})
    sample = reverb_tf.TFClient(address).sample('t', {'a': tf.float32}, shapes={'a': [2]})
    np.testing.assert_array_equal(sample.data['a'], [1, 2])


def test_a_batch_of_unequal_lengths_is_refused_and_given_back(transport, serve):
    address, client = serve(queue())
    write_item(client, 2)
    write_item(client, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match='length|shape'):
        reverb_tf.TFClient(address).sample_batch('t', 2, [tf.float32])
    eventually(lambda: info(client).current_size == 2)


# ---- What is taken, and when -----------------------------------------------------


def test_a_sample_is_of_what_the_table_holds_when_it_is_asked_for(transport, serve):
    address, client = serve(uniform_table())
    tf_client = reverb_tf.TFClient(address)
    for i in range(20):
        (key,) = client.insert([np.float32(i)], {'t': 1.0}).values()
        sample = tf_client.sample('t', [tf.float32])
        assert (sample.info.key, sample.data[0]) == (key, i)
        client.mutate_priorities('t', deletes=[key])


def test_nothing_is_taken_ahead_of_a_consuming_table(transport, serve):
    address, client = serve(queue())
    tf_client = reverb_tf.TFClient(address)
    for i in range(5):
        client.insert([float(i)], {'t': 1.0})
    assert tf_client.sample('t', [tf.float64]).data[0] == 0.0
    assert tf_client.sample_batch('t', 2, [tf.float64], shapes=[[]]).data[0][1] == 2.0
    assert info(client).current_size == 2
    assert [d[0] for d in stored(client)] == [3.0, 4.0]


def test_calls_of_several_threads_take_each_item_once(transport, serve):
    address, _ = serve(queue())
    client = reverb_tf.TFClient(address)
    got = []

    def insert():
        for i in range(20):
            client.insert([i], ['t'], [1.0])

    def sample():
        for _ in range(20):
            got.append(int(client.sample('t', [tf.int32]).info.key))

    threads = [threading.Thread(target=f) for f in (insert, sample) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 60


def test_streams_are_kept_from_call_to_call(transport, serve):
    address, client = serve(uniform_table())
    tf_client = reverb_tf.TFClient(address)
    for i in range(5):
        tf_client.insert([float(i)], ['t'], [1.0])
        tf_client.sample('t', [tf.float32])
    assert (info(client).num_samplers, info(client).num_writers) == (1, 1)


# ---- Life ------------------------------------------------------------------------


def test_dropping_a_client_closes_its_streams(transport, serve):
    address, client = serve(uniform_table())
    tf_client = reverb_tf.TFClient(address)
    tf_client.insert([1.0], ['t'], [1.0])
    tf_client.sample('t', [tf.float32])
    del tf_client
    gc.collect()
    eventually(lambda: info(client).num_samplers == 0 and info(client).num_writers == 0)
    assert info(client).rate_limiter_info.sample_stats.in_flight == 0


def insert_function(address):
    client = reverb_tf.TFClient(address)
    insert = tf.function(lambda: client.insert([1.0], ['t'], [1.0], return_keys=True))
    return insert.get_concrete_function()


def test_a_function_keeps_the_client_that_it_uses(serve):
    address, client = serve(queue())
    insert = insert_function(address)
    gc.collect()
    insert()
    assert info(client).current_size == 1


def test_runs_of_a_session_share_the_client_which_ends_with_the_session(transport, serve):
    address, client = serve(uniform_table())
    client.insert([1.0], {'t': 1.0})
    with tf.Graph().as_default() as graph:
        sample = reverb_tf.TFClient(address).sample('t', [tf.float64])
        with tf.compat.v1.Session(graph=graph) as session:
            for _ in range(3):
                session.run(sample)
            assert info(client).num_samplers == 1
    del session
    gc.collect()
    eventually(lambda: info(client).num_samplers == 0)


def test_clients_of_one_shared_name_are_one(serve):
    address, client = serve(uniform_table())
    client.insert([1.0], {'t': 1.0})
    for _ in range(2):
        reverb_tf.TFClient(address, shared_name='one').sample('t', [tf.float64])
    assert info(client).num_samplers == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"'one' is of a client of {address}"):
        reverb_tf.TFClient('localhost:1', shared_name='one')


def test_a_client_that_goes_by_the_network_gives_a_client_that_does(serve):
    address, _ = serve(uniform_table())
    remote = reverb_tf.Client(address, in_process=False)
    reverb_tf.TFClient(remote, shared_name='two')
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="'two' is of a client with in_process"
    ):
        reverb_tf.TFClient(reverb_tf.Client(address), shared_name='two')


def test_unnamed_handles_of_one_node_and_several_addresses_are_several(serve):
    first, _ = serve(queue())
    second, client = serve(queue())
    ops = load.ops()
    for address in (first, second):
        handle = ops.reverb_tf_client_handle(address)
        ops.reverb_tf_client_insert(handle, [1.0], ['t'], tf.constant([1.0], tf.float64))
    assert info(client).current_size == 1


# ---- Waits -----------------------------------------------------------------------


def test_a_sample_that_times_out_tells_the_limiters_reason(run, transport, serve):
    address, client = serve(uniform_table(min_size=3))
    client.insert([1.0], {'t': 1.0})
    with pytest.raises(tf.errors.DeadlineExceededError, match='timed out.*sample: blocked'):
        run(address, lambda c: c.sample('t', [tf.float64], rate_limiter_timeout_ms=50))
    for timeout in (0, 50):
        with pytest.raises(tf.errors.DeadlineExceededError, match="'t'"):
            reverb_tf.TFClient(address).sample_batch(
                't', 2, [tf.float64], rate_limiter_timeout_ms=timeout
            )


def test_an_insert_that_times_out_is_withdrawn_and_tells_the_limiters_reason(run, transport, serve):
    address, client = serve(queue('t', max_size=1), queue('u'))
    client.insert([1.0], {'t': 1.0})
    with pytest.raises(
        tf.errors.DeadlineExceededError, match="insert.* blocked.*'u', withdrawn from 't'"
    ):
        run(
            address,
            lambda c: c.insert([2.0], ['t', 'u'], [1.0, 1.0], return_keys=True, timeout_ms=50),
        )
    assert info(client, 'u').current_size == 1
    assert len(stored(client)) == 1
    assert info(client).num_waiting_inserts == info(client).current_size == 0


def test_a_batch_that_times_out_says_how_many_are_in(transport, serve):
    address, client = serve(queue('t', max_size=2))
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"'t' \(2 of 3\), withdrawn"):
        reverb_tf.TFClient(address).insert_batch(
            [tf.constant([1.0, 2.0, 3.0])],
            ['t'],
            [[1.0], [1.0], [1.0]],
            timeout_ms=50,
        )
    assert len(stored(client)) == 2


@pytest.mark.parametrize(
    'call',
    [
        lambda ops, h: ops.reverb_tf_client_sample(h, 't', Toutput_list=[tf.int32], timeout_ms=50),
        lambda ops, h: ops.reverb_tf_client_update_priorities(
            h, 't', tf.constant([1], tf.int64), tf.constant([1.0], tf.float64), timeout_ms=50
        ),
        lambda ops, h: ops.reverb_tf_client_delete(
            h, 't', tf.constant([1], tf.uint64), timeout_ms=50
        ),
        lambda ops, h: ops.reverb_tf_client_reset(h, 't', timeout_ms=50),
        lambda ops, h: ops.reverb_tf_client_insert(
            h, [1.0], ['t'], tf.constant([1.0], tf.float64), timeout_ms=50
        ),
    ],
    ids=['sample', 'update', 'delete', 'reset', 'insert'],
)
def test_a_server_that_is_not_there_is_waited_for_no_longer_than_asked(call):
    ops = load.ops()
    with pytest.raises(tf.errors.DeadlineExceededError, match='localhost:1'):
        call(ops, ops.reverb_tf_client_handle('localhost:1'))


def test_a_wait_holds_no_thread_of_tensorflow(transport, serve):
    address, _ = serve(queue())
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Graph().as_default() as graph:
        client = reverb_tf.TFClient(address)
        samples = [client.sample('t', [tf.float32]).data[0] for _ in range(3)]
        insert = client.insert_batch([tf.constant([1.0, 2.0, 3.0])], ['t'], [[1.0]] * 3)
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            # The insert has to run while three samples wait.
            *got, _ = session.run([*samples, insert])
    assert sorted(got) == [1.0, 2.0, 3.0]


# ---- Cancellation ----------------------------------------------------------------


def waiting_sample(tf_client):
    return tf_client.sample('t', [tf.float32]).info.key


def waiting_insert(tf_client):
    return tf_client.insert([5.0], ['full'], [1.0], return_keys=True)


@pytest.fixture(params=[waiting_sample, waiting_insert])
def waiting_call(request):
    return request.param


def serve_waits(serve):
    """A server where both calls wait, and whether one does."""
    address, client = serve(queue('t'), queue('full', max_size=1))
    client.insert([0.0], {'full': 1.0})

    def waits():
        tables = client.server_info()
        return tables['t'].num_waiting_samples + tables['full'].num_waiting_inserts > 0

    return address, client, waits


def check_nothing_is_done(client, waits):
    eventually(lambda: not waits())
    assert len(stored(client, 'full')) == 1
    client.insert([1.0], {'t': 1.0})
    assert (info(client, 't').current_size, info(client, 'full').current_size) == (1, 0)
    assert next(client.sample('t', 1, emit_timesteps=False)).info.times_sampled == 1


def expect_cancelled(call, waits, cancel):
    """Runs `call` on a thread; once it waits, `cancel` ends it within a second."""
    errors = []

    def target():
        try:
            call()
        except tf.errors.OpError as e:
            errors.append(e)

    thread = threading.Thread(target=target)
    thread.start()
    eventually(waits)
    start = time.monotonic()
    cancel()
    thread.join(10)
    assert time.monotonic() - start < 1
    assert [type(e) for e in errors] == [tf.errors.CancelledError]


def test_cancelling_a_function_withdraws_its_call(waiting_call, transport, serve):
    address, client, waits = serve_waits(serve)
    tf_client = reverb_tf.TFClient(address)
    function = tf.function(lambda: waiting_call(tf_client)).get_concrete_function()
    manager = cancellation.CancellationManager()
    expect_cancelled(manager.get_cancelable_function(function), waits, manager.start_cancel)
    check_nothing_is_done(client, waits)


def test_closing_a_session_withdraws_its_call(waiting_call, transport, serve):
    address, client, waits = serve_waits(serve)
    with tf.Graph().as_default() as graph:
        output = waiting_call(reverb_tf.TFClient(address))
        session = tf.compat.v1.Session(graph=graph)
        expect_cancelled(lambda: session.run(output), waits, session.close)
    check_nothing_is_done(client, waits)


def test_a_call_of_a_cancelled_function_is_not_made(serve):
    address, client = serve(queue())
    manager = cancellation.CancellationManager()
    manager.start_cancel()
    with pytest.raises(tf.errors.CancelledError):
        manager.get_cancelable_function(insert_function(address))()
    assert info(client).current_size == 0


INTERRUPTED = """
    import os, signal, sys, threading, time
    import tensorflow as tf
    import reverb_tf

    what, how = sys.argv[1:]
    server = reverb_tf.Server([reverb_tf.Table.queue('t', 1), reverb_tf.Table.queue('full', 1)])
    address = f'localhost:{server.port}'
    probe = reverb_tf.Client(address)
    probe.insert([1.0], {'full': 1.0})
    client = reverb_tf.TFClient(address)
    when = []

    def waits():
        tables = probe.server_info()
        return tables['t'].num_waiting_samples + tables['full'].num_waiting_inserts

    def interrupt():
        while not waits():
            time.sleep(0.01)
        when.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    def call():
        if what == 'sample':
            return client.sample('t', [tf.float32]).data[0]
        return client.insert([1.0], ['full'], [1.0], return_keys=True)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        tf.function(call)() if how == 'function' else call()
    except KeyboardInterrupt:
        print('interrupted', time.monotonic() - when[0] < 1)
    while waits():
        time.sleep(0.01)
    sizes = [info.current_size for info in probe.server_info().values()]
    print(sizes)
    server.stop()
"""


@pytest.mark.parametrize('what', ['sample', 'insert'])
@pytest.mark.parametrize('how', ['eager', 'function'])
@pytest.mark.parametrize('in_process', ['1', '0'], ids=['in_process', 'remote'])
def test_ctrl_c_is_a_keyboard_interrupt(what, how, in_process, tmp_path):
    # A file, since tf.function reads its source.
    script = tmp_path / 'interrupted.py'
    script.write_text(textwrap.dedent(INTERRUPTED))
    result = subprocess.run(
        [sys.executable, str(script), what, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, 'REVERB_TF_INPROCESS': in_process},
    )
    assert result.stdout == 'interrupted True\n[0, 1]\n', result.stderr[-2000:]


# ---- Refusals of the server ------------------------------------------------------


def test_unknown_tables_are_not_found(transport, serve):
    address, _ = serve(queue())
    client = reverb_tf.TFClient(address)
    with pytest.raises(tf.errors.NotFoundError, match='nope'):
        client.sample('nope', [tf.float32])
    with pytest.raises(tf.errors.NotFoundError, match='nope'):
        client.update_priorities('nope', [1], [1.0])
    with pytest.raises(tf.errors.NotFoundError, match='nope'):
        client.delete('nope', [1])
    with pytest.raises(tf.errors.NotFoundError, match='nope'):
        client.reset('nope')


def test_an_insert_into_an_unknown_table_is_refused_whole(transport, serve):
    address, client = serve(queue())
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)'nope'.*'t'"):
        reverb_tf.TFClient(address).insert([1.0], ['t', 'nope'], [1.0, 1.0])
    assert info(client).current_size == 0


def test_data_that_does_not_match_the_signature_is_refused(transport, serve):
    address, client = serve(queue(signature=STEP))
    tf_client = reverb_tf.TFClient(address)
    with pytest.raises(tf.errors.InvalidArgumentError, match='b.* got int32.* expected int64'):
        tf_client.insert({'a': tf.constant([1.0, 2.0]), 'b': 7}, ['t'], [1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match='missing: b'):
        tf_client.insert({'a': tf.constant([1.0, 2.0])}, ['t'], [1.0])
    assert info(client).current_size == 0


def test_a_batch_with_one_bad_row_is_refused_whole(transport, serve):
    address, client = serve(
        reverb_tf.Table(
            't',
            reverb_tf.selectors.Prioritized(1.0),
            reverb_tf.selectors.Fifo(),
            100,
            reverb_tf.rate_limiters.MinSize(1),
        )
    )
    tf_client = reverb_tf.TFClient(address)
    with pytest.raises(tf.errors.InvalidArgumentError, match='priority'):
        tf_client.insert_batch([tf.zeros([3, 2])], ['t'], [[1.0], [1.0], [-1.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match='NaN'):
        tf_client.insert([1.0], ['t'], [float('nan')])
    assert info(client).current_size == 0
    keys = tf_client.insert_batch([tf.zeros([2])], ['t'], [[1.0], [1.0]])[:, 0]
    with pytest.raises(tf.errors.InvalidArgumentError, match='priority'):
        tf_client.update_priorities('t', keys, [5.0, -1.0])
    assert tf_client.sample('t', [tf.float32]).info.priority == 1.0


def test_dtypes_other_than_the_signatures_are_refused(transport, serve):
    address, client = serve(queue(signature=STEP))
    client.insert({'a': np.float32([1, 2]), 'b': 7}, {'t': 1.0})
    tf_client = reverb_tf.TFClient(address)
    with pytest.raises(tf.errors.InvalidArgumentError, match='b.* got int32.* expected int64'):
        tf_client.sample('t', [tf.float32, tf.int32])
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_client.sample('t', [tf.float32])
    with pytest.raises(tf.errors.InvalidArgumentError, match='missing: b; extra: c'):
        tf_client.sample_batch('t', 1, {'a': tf.float32, 'c': tf.int64})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r'float32\[3\]'):
        tf_client.sample('t', [tf.float32, tf.int64], shapes=[[3], []])
    assert info(client).current_size == 1


def test_dtypes_other_than_an_items_of_an_unsigned_table_are_internal_errors(transport, serve):
    address, client = serve(queue())
    client.insert([np.float32(1)], {'t': 1.0})
    tf_client = reverb_tf.TFClient(address)
    with pytest.raises(tf.errors.InternalError, match='got float32.* expected float64'):
        tf_client.sample('t', [tf.float64])
    with pytest.raises(tf.errors.InvalidArgumentError, match='1 columns, expected 2'):
        tf_client.sample('t', [tf.float32, tf.float32])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r'expected float32\[2\]'):
        tf_client.sample('t', [tf.float32], shapes=[[2]])
    eventually(lambda: info(client).current_size == 1)
    assert tf_client.sample('t', [tf.float32]).data[0] == 1.0


def test_keys_may_be_of_both_types_and_of_any_value(serve):
    address, client = serve(uniform_table())
    tf_client = reverb_tf.TFClient(address)
    (key,) = client.insert([1.0], {'t': 1.0}).values()
    for keys in (
        tf.constant([key, -1], tf.int64),
        tf.constant([key, 2**64 - 1], tf.uint64),
        np.array([key, 2**63], np.uint64),
        [key, 2**63 + 5],
    ):
        counts = tf_client.update_priorities('t', keys, [2.0, 2.0], return_counts=True)
        assert (counts.updated, counts.not_found) == (1, 1)
    assert tf_client.delete('t', tf.constant([], tf.int64), return_counts=True).deleted == 0
    with pytest.raises(ValueError, match='keys must be .* got int32'):
        tf_client.delete('t', tf.constant([1], tf.int32))


def test_a_server_that_ended_is_unavailable(serve):
    server = reverb_tf.Server([queue()])
    client = reverb_tf.TFClient(f'localhost:{server.port}')
    client.insert([1.0], ['t'], [1.0])
    server.stop()
    with pytest.raises(tf.errors.UnavailableError):
        client.sample('t', [tf.float32])
    with pytest.raises(tf.errors.UnavailableError):
        client.reset('t')


# ---- Arguments -------------------------------------------------------------------


@pytest.mark.parametrize(
    ('tables', 'priorities', 'match'),
    [
        ([1], [1.0], 'tables must be .* got int32'),
        ('t', [1.0], r'tables must be .* shape \(\)'),
        ([['t']], [1.0], r'tables must be .* shape \(1, 1\)'),
        (['t'], 1.0, 'priorities must be .* got float32'),
        (['t'], np.float32([1]), 'priorities must be .* got float32'),
        (['t'], tf.constant([1]), 'priorities must be .* got int32'),
        (['t'], [[1.0]], r'priorities must be .* shape \(1, 1\)'),
        (['t'], [1.0, 2.0], r'same length, got shapes \(1,\) and \(2,\)'),
    ],
)
def test_bad_tables_and_priorities_are_value_errors(tables, priorities, match, serve):
    address, _ = serve(queue())
    with pytest.raises(ValueError, match=match):
        reverb_tf.TFClient(address).insert([1.0], tables, priorities)


def test_bad_arguments_are_refused_before_any_call(serve):
    address, _ = serve(queue())
    client = reverb_tf.TFClient(address)
    with pytest.raises(ValueError, match='data must have at least one tensor'):
        client.insert([], ['t'], [1.0])
    with pytest.raises(ValueError, match='column for each table'):
        client.insert_batch([[1.0]], ['t'], [[1.0, 2.0]])
    with pytest.raises(ValueError, match='num_samples must be >= 1, got 0'):
        client.sample_batch('t', 0, [tf.float32])
    with pytest.raises(ValueError, match='rate_limiter_timeout_ms must be >= -1'):
        client.sample('t', [tf.float32], rate_limiter_timeout_ms=-2)
    with pytest.raises(ValueError, match='timeout_ms must be >= -1'):
        client.insert([1.0], ['t'], [1.0], timeout_ms=-2)
    with pytest.raises(ValueError, match='table must not be empty'):
        client.reset('')
    with pytest.raises(TypeError, match='emit_trajectory must be a bool'):
        client.sample('t', [tf.float32], emit_trajectory=1)


@pytest.mark.parametrize('address', ['', 'http://localhost:8000', 'localhost', 'localhost:99999'])
def test_malformed_addresses_are_value_errors(address):
    with pytest.raises(ValueError):
        reverb_tf.TFClient(address)
    with pytest.raises(tf.errors.InvalidArgumentError):
        reverb_tf.TFClient(tf.constant(address))


def test_other_addresses_are_refused():
    with pytest.raises(TypeError, match='server_address must be a str, got int'):
        reverb_tf.TFClient(8000)
    with pytest.raises(TypeError, match='string tensor, got int32'):
        reverb_tf.TFClient(tf.constant(8000))
    with pytest.raises(NotImplementedError):
        reverb_tf.TFClient(['localhost:1', 'localhost:2'])
    with pytest.raises(tf.errors.UnimplementedError, match='one address, got 2'):
        reverb_tf.TFClient(tf.constant(['localhost:1', 'localhost:2']))


# ---- The ops themselves ----------------------------------------------------------


def graph_inputs(**shapes):
    """Placeholders of the ops' inputs, of the given shapes (None: unknown)."""
    dtypes = {
        'handle': tf.resource,
        'data': tf.float32,
        'table': tf.string,
        'tables': tf.string,
        'priorities': tf.float64,
        'keys': tf.int64,
        'num_samples': tf.int32,
        'server_address': tf.string,
    }
    return {n: tf.compat.v1.placeholder(dtypes[n], shape) for n, shape in shapes.items()}


INSERT = {'handle': [], 'tables': [None], 'priorities': [None]}
INSERT_BATCH = {'handle': [], 'tables': [None], 'priorities': [None, None]}
UPDATE = {'handle': [], 'table': [], 'keys': [None], 'priorities': [None]}
SAMPLE = {'handle': [], 'table': []}


@pytest.mark.parametrize(
    ('op', 'shapes', 'attrs', 'match'),
    [
        ('handle', {'server_address': [1, 1]}, {}, 'rank'),
        ('insert', {**INSERT, 'data': [], 'tables': []}, {}, 'tables: .*rank 1'),
        ('insert', {**INSERT, 'data': [], 'priorities': [1, 1]}, {}, 'priorities: .*rank 1'),
        ('insert', {**INSERT, 'data': [], 'handle': [2]}, {}, 'handle: .*rank 0'),
        ('insert', {**INSERT, 'data': []}, {'paths': ['a', 'b']}, 'paths must be empty or'),
        ('insert', {**INSERT, 'data': []}, {'timeout_ms': -2}, 'timeout_ms'),
        ('insert_batch', {**INSERT_BATCH, 'data': []}, {}, 'rank'),
        (
            'insert_batch',
            {**INSERT_BATCH, 'data': [2], 'priorities': [2]},
            {},
            'priorities: .*rank 2',
        ),
        ('sample', {**SAMPLE, 'table': [1]}, {'Toutput_list': [tf.int32]}, 'table: .*rank 0'),
        (
            'sample',
            SAMPLE,
            {'Toutput_list': [tf.int32], 'output_shapes': [[], []]},
            'output_shapes must be empty or',
        ),
        (
            'sample_batch',
            {**SAMPLE, 'num_samples': [1]},
            {'Toutput_list': [tf.int32]},
            'num_samples: .*rank 0',
        ),
        ('update_priorities', {**UPDATE, 'keys': []}, {}, 'keys: .*rank 1'),
        ('update_priorities', {**UPDATE, 'priorities': []}, {}, 'priorities: .*rank 1'),
        ('delete', {**SAMPLE, 'keys': [1, 1]}, {}, 'keys: .*rank 1'),
        ('reset', {**SAMPLE, 'table': [2]}, {}, 'table: .*rank 0'),
    ],
)
def test_wrong_ranks_are_refused_when_the_graph_is_built(op, shapes, attrs, match):
    with tf.Graph().as_default():
        inputs = graph_inputs(**shapes)
        if 'data' in inputs:
            inputs['data'] = [inputs['data']]
        with pytest.raises(ValueError, match=match):
            getattr(load.ops(), f'reverb_tf_client_{op}')(**inputs, **attrs)


def test_shapes_of_keys_follow_the_inputs():
    with tf.Graph().as_default():
        inputs = graph_inputs(**{**INSERT, 'data': None, 'tables': [3]})
        inputs['data'] = [inputs['data']]
        assert load.ops().reverb_tf_client_insert(**inputs).shape.as_list() == [3]
        inputs = graph_inputs(**{**INSERT_BATCH, 'data': None, 'priorities': [4, 3]})
        inputs['data'] = [inputs['data']]
        assert load.ops().reverb_tf_client_insert_batch(**inputs).shape.as_list() == [4, 3]


def float64(value):
    return tf.constant(value, tf.float64)


@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (lambda o, h: o.reverb_tf_client_insert(h, [1.0], 't', float64([1])), 'tables .*rank 1'),
        (
            lambda o, h: o.reverb_tf_client_insert(h, [1.0], ['t'], float64([1, 2])),
            'same length, got 1 and 2',
        ),
        (
            lambda o, h: o.reverb_tf_client_insert(h, [1.0], [], float64([])),
            'expected a table',
        ),
        (
            lambda o, h: o.reverb_tf_client_insert(h, [1.0], ['t'], float64([1]), paths=['a', 'b']),
            'paths must be empty',
        ),
        (
            lambda o, h: o.reverb_tf_client_insert(
                h, [tf.constant(1, tf.qint8)], ['t'], float64([1])
            ),
            'T: no table can hold qint8',
        ),
        (lambda o, h: o.reverb_tf_client_insert(h, [h], ['t'], float64([1])), 'no table can hold'),
        (
            lambda o, h: o.reverb_tf_client_insert_batch(h, [1.0], ['t'], float64([[1]])),
            'batch dimension',
        ),
        (
            lambda o, h: o.reverb_tf_client_insert_batch(
                h, [tf.zeros([2])], ['t', 'u'], float64([[1], [2]])
            ),
            'a row for each of the 2 steps and a column for each of the 2 tables',
        ),
        (
            lambda o, h: o.reverb_tf_client_insert_batch(
                h, [tf.zeros([2]), tf.zeros([3])], ['t'], float64([[1], [2]])
            ),
            'a batch of 3, expected 2',
        ),
        (
            lambda o, h: o.reverb_tf_client_sample(h, ['t'], Toutput_list=[tf.int32]),
            'table .*rank 0',
        ),
        (
            lambda o, h: o.reverb_tf_client_sample(h, '', Toutput_list=[tf.int32]),
            'table',
        ),
        (
            lambda o, h: o.reverb_tf_client_sample(h, 't', Toutput_list=[tf.resource]),
            'Toutput_list: no table can hold resource',
        ),
        (
            lambda o, h: o.reverb_tf_client_sample(
                h, 't', Toutput_list=[tf.int32], output_shapes=[[], []]
            ),
            'output_shapes must be empty',
        ),
        (
            lambda o, h: o.reverb_tf_client_sample_batch(h, 't', -3, Toutput_list=[tf.int32]),
            'num_samples must be at least 1, got -3',
        ),
        (
            lambda o, h: o.reverb_tf_client_update_priorities(
                h, 't', tf.constant([1, 2], tf.int64), float64([1])
            ),
            'same length, got 2 and 1',
        ),
        (
            lambda o, h: o.reverb_tf_client_delete(h, 't', tf.constant(1, tf.int64)),
            'keys .*rank 1',
        ),
        (lambda o, h: o.reverb_tf_client_handle([['a']]), 'server_address'),
    ],
)
def test_ops_check_what_the_graph_could_not(call, match, serve):
    address, client = serve(queue('t'), queue('u'))
    ops = load.ops()
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        call(ops, ops.reverb_tf_client_handle(address))
    assert info(client).current_size == 0


def test_handles_of_other_resources_are_refused(serve):
    other = tf.raw_ops.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError):
        load.ops().reverb_tf_client_reset(other, 't')
