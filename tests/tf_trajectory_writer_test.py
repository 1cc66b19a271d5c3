"""TFTrajectoryWriter and its ops: eager, tf.function, loops, sessions, exported; waits, errors."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import reverb_tf
from reverb_tf import structured
from reverb_tf.ops import load
from tests.testing_util import assert_same, eventually, uniform_table

X = {'x': tf.TensorSpec([], tf.int64)}
NAN = tf.constant(float('nan'))
XY = {'x': tf.TensorSpec([], tf.int64), 'y': tf.TensorSpec([2], tf.float32)}


@pytest.fixture(params=[True, False], ids=['in_process', 'remote'])
def transport(request, monkeypatch):
    monkeypatch.setenv('REVERB_TF_INPROCESS', '1' if request.param else '0')


@pytest.fixture
def serve():
    servers = []

    def start(*tables):
        server = reverb_tf.Server(list(tables) or [queue()])
        servers.append(server)
        return reverb_tf.Client(server.address, timeout=20)

    yield start
    for server in servers:
        server.stop()


def queue(name='t', max_size=100, signature=None):
    return reverb_tf.Table.queue(name, max_size, signature=signature)


def stored(client, table='t'):
    """The data of a queue's items, which are taken."""
    count = client.server_info()[table].current_size
    samples = client.sample(table, count, emit_timesteps=False) if count else ()
    return [sample.data for sample in samples]


def size(client, table='t'):
    return client.server_info()[table].current_size


def run_eagerly(client, spec, refs, program, **kwargs):
    program(reverb_tf.TFTrajectoryWriter(client, spec, refs, **kwargs))


def run_in_function(client, spec, refs, program, **kwargs):
    writer = reverb_tf.TFTrajectoryWriter(client, spec, refs, **kwargs)

    @tf.function(autograph=False)
    def run():
        program(writer)

    run()


@pytest.fixture(params=[run_eagerly, run_in_function])
def run(request):
    return request.param


def check_same_items(client, spec, refs, program, run):
    """The program's items are those that it makes with the Python writer."""
    writer = client.trajectory_writer(refs, step_spec=spec)
    program(writer)
    writer.flush()
    expected = stored(client)
    run(client, spec, refs, lambda w: (program(w), w.flush()))
    got = stored(client)
    assert len(got) == len(expected) > 0
    for some, others in zip(got, expected, strict=True):
        for one, other in zip(tf.nest.flatten(some), tf.nest.flatten(others), strict=True):
            assert_same(one, other)


# ---- As the Python writer --------------------------------------------------------

VALUES = {
    'int64': np.arange(6, dtype=np.int64),
    'float32_vectors': np.arange(12, dtype=np.float32).reshape(6, 2),
    'bool': np.array([True, False, False, True, True, False]),
    'bfloat16': np.arange(6).astype(ml_dtypes.bfloat16).reshape(6, 1) / 3,
    'uint8_images': np.arange(6 * 24, dtype=np.uint8).reshape(6, 4, 3, 2),
    'complex128': np.arange(6) * 1j,
    'float8': np.arange(6).astype(ml_dtypes.float8_e5m2),
    'empty': np.zeros([6, 0, 3], np.float16),
    'strings': np.array([b'', b'a', b'\x00b\x00', 'ö'.encode(), b'x' * 300, b'f'], object),
    'string_vectors': np.array([[b'a', b''], [b'bc', b'def']] * 3, object),
}


def spec_of(values):
    dtype = tf.string if values.dtype == object else tf.as_dtype(values.dtype)
    return {'x': tf.TensorSpec(values.shape[1:], dtype)}


@pytest.mark.parametrize('name', VALUES)
def test_values_are_stored_as_by_the_python_writer(name, run, transport, serve):
    values = VALUES[name]

    def program(writer):
        for value in values:
            writer.append({'x': value})
        writer.create_item('t', 1.0, {'x': writer.history['x'][:]})
        writer.create_item('t', 1.0, {'x': writer.history['x'][-2]})
        writer.end_episode()
        writer.append_batch({'x': values})
        writer.create_item('t', 1.0, {'x': writer.history['x'][1:-1:2]})

    check_same_items(serve(), spec_of(values), 6, program, run)


SLICES = [
    slice(None),
    slice(-3, None),
    slice(None, -3),
    slice(1, 6, 2),
    slice(None, None, -1),
    slice(-1, -6, -2),
    slice(5, 1, -1),
    slice(-100, 100),
    slice(2**40, -(2**40), -3),
    slice(-(2**31), 2**31 - 1, 2**31 - 1),
    slice(2**31 - 1, -(2**31), -(2**31)),
    0,
    -1,
    -7,
    [0, 3, 3, -1, -7],
    (4, 5, 6, 2),
    np.array([6, -2], np.int8),
]


@pytest.mark.parametrize('index', SLICES, ids=str)
def test_slices_are_those_of_the_python_writer(index, run, serve):
    def program(writer):
        writer.append_batch({'x': np.arange(3)})
        writer.append({'x': 3})
        writer.append_batch({'x': np.arange(4, 7)})
        writer.create_item('t', 1.0, {'a': {'b': [writer.history['x'][index]]}})

    check_same_items(serve(), X, 7, program, run)


@pytest.mark.parametrize('dtype', [tf.int32, tf.int64, tf.uint8])
def test_bounds_may_be_tensors(dtype, serve):
    client = serve()
    writer = reverb_tf.TFTrajectoryWriter(client, X, 10)
    writer.append_batch({'x': np.arange(10)})

    @tf.function(input_signature=[tf.TensorSpec([], dtype)] * 3)
    def create(start, stop, step):
        column = writer.history['x'][start:stop:step]
        squeezed = writer.history['x'][start]
        writer.create_item('t', 1.0, [column, writer.history['x'][:stop], squeezed])
        return column.read(), squeezed.read()

    got = create(*(tf.constant(i, dtype) for i in (2, 9, 3)))
    writer.flush()
    column, prefix, squeezed = stored(client)[0]
    np.testing.assert_array_equal(column, [2, 5, 8])
    np.testing.assert_array_equal(prefix, np.arange(9))
    assert squeezed == 2
    np.testing.assert_array_equal(got[0], column)
    assert got[1] == 2


@pytest.mark.parametrize('dtype', [tf.int32, tf.int64, tf.uint8])
def test_lists_of_indices_may_be_tensors(dtype, serve):
    client = serve()
    writer = reverb_tf.TFTrajectoryWriter(client, XY, 10)
    writer.append_batch({'x': np.arange(10), 'y': tf.zeros([10, 2])})

    @tf.function(input_signature=[tf.TensorSpec([None], dtype)])
    def create(indices):
        column = writer.history['x'][indices]
        pair = writer.history['x'][[indices[0], -1]]
        writer.create_item('t', 1.0, [writer.history['y'][:2], column, pair])
        assert pair.read().shape.as_list() == [2]
        return column.read()

    got = create(tf.constant([4, 2, 2, 3], dtype))
    writer.flush()
    _, column, pair = stored(client)[0]
    assert column.tolist() == got.numpy().tolist() == [4, 2, 2, 3]
    assert pair.tolist() == [4, 9]


def test_partial_steps_and_holes_are_as_the_python_writers(run, serve):
    def program(writer):
        writer.append({'x': 1}, partial_step=True)
        writer.append({'y': np.float32([1, 2])})
        writer.append({'x': 2, 'y': None})
        writer.append({'x': 3}, partial_step=True)
        writer.create_item('t', 1.0, {'x': writer.history['x'][:]})
        writer.append({})
        writer.append({'y': np.float32([3, 4])})
        writer.create_item('t', 1.0, {'x': writer.history['x'][:3], 'y': writer.history['y'][::3]})

    check_same_items(serve(), XY, 10, program, run)


def test_items_may_span_episodes(run, serve):
    def program(writer):
        writer.append({'x': 1})
        writer.end_episode(clear_buffers=False)
        writer.append({'x': 2})
        writer.create_item('t', 1.0, {'x': writer.history['x'][:]})
        writer.end_episode()
        writer.append({'x': 3})
        writer.create_item('t', 1.0, {'x': writer.history['x'][:]})

    check_same_items(serve(), X, 10, program, run)


def test_columns_are_matched_with_a_signature_by_path(run, serve):
    signature = {'b': tf.TensorSpec([None], tf.int64), 'a': tf.TensorSpec([2], tf.float32)}

    def program(writer):
        writer.append({'x': 1, 'y': np.float32([1, 2])})
        writer.create_item('t', 1.0, {'b': writer.history['x'][:], 'a': writer.history['y'][-1]})

    check_same_items(serve(queue(signature=signature)), XY, 10, program, run)


def test_values_are_cast_as_by_the_python_writer(run, serve):
    spec = {'i': tf.TensorSpec([], tf.int16), 'f': tf.TensorSpec([2], tf.float32)}

    def program(writer):
        writer.append({'i': 7, 'f': np.array([1.5, 2.5])})
        writer.append({'i': np.uint64(300), 'f': np.array([1, 2])})
        writer.create_item('t', 1.0, [writer.history['i'][:], writer.history['f'][:]])

    check_same_items(serve(), spec, 10, program, run)


def test_variables_and_tensors_of_other_dtypes_are_cast_in_a_function(serve):
    client = serve()
    writer = reverb_tf.TFTrajectoryWriter(client, {'x': tf.TensorSpec([], tf.int8)}, 10)
    variable = tf.Variable(5, dtype=tf.int8)

    @tf.function
    def append(value):
        writer.append({'x': variable})
        writer.append({'x': value})
        return writer.history['x'][:].read()

    assert append(tf.constant(-128, tf.int32)).numpy().tolist() == [5, -128]
    with pytest.raises(tf.errors.InvalidArgumentError, match='value out of range for int8'):
        append(tf.constant(128, tf.int32))
    with pytest.raises(ValueError, match="'x': cannot cast float32 to int8"):
        append(tf.constant(1.0))
    with pytest.raises(ValueError, match="'x': value out of range for int8"):
        writer.append({'x': tf.constant(128)})
    assert writer.episode_steps == 3


# ---- In graphs -------------------------------------------------------------------


def test_a_loop_collects(transport, serve):
    client = serve(queue(signature={
        'obs': tf.TensorSpec([5, 2], tf.float32),
        'rew': tf.TensorSpec([], tf.float32),
    }))  # fmt: skip
    spec = {'obs': tf.TensorSpec([2], tf.float32), 'rew': tf.TensorSpec([], tf.float32)}
    writer = reverb_tf.TFTrajectoryWriter(client, spec, 5)

    def env_step(i):
        return tf.fill([2], tf.cast(i, tf.float32))

    def reward(i):
        return -tf.cast(i, tf.float32)

    @tf.function
    def collect(n):
        for i in tf.range(n):
            writer.append({'obs': env_step(i), 'rew': reward(i)})
            if i >= 4:
                writer.create_item(
                    't', 1.0, {'obs': writer.history['obs'][-5:], 'rew': writer.history['rew'][-1]}
                )
        writer.end_episode()

    for n in (10, 3, 5):
        collect(tf.constant(n))
    items = stored(client)
    assert [item['rew'] for item in items] == [-4, -5, -6, -7, -8, -9, -4]
    for item in items:
        last = -item['rew']
        np.testing.assert_array_equal(item['obs'][:, 0], np.arange(last - 4, last + 1))


def test_calls_in_a_while_loop_keep_their_order(transport, serve):
    client = serve()
    writer = reverb_tf.TFTrajectoryWriter(client, X, 2)

    @tf.function
    def collect():
        def body(i):
            writer.append({'x': i}, partial_step=True)
            writer.append({})
            writer.append({'x': -i})
            x = writer.history['x']
            writer.create_item('t', 1.0, [x[-2:]])
            return i + 1

        zero = tf.constant(0, tf.int64)
        tf.while_loop(lambda i: i < 50, body, [zero], parallel_iterations=10)
        writer.flush()

    collect()
    assert [item[0].tolist() for item in stored(client)] == [[i, -i] for i in range(50)]


def test_only_the_branch_taken_is_run(serve):
    client = serve()
    writer = reverb_tf.TFTrajectoryWriter(client, X, 2)

    @tf.function
    def append(condition):
        tf.cond(condition, lambda: writer.append({'x': 1}), lambda: writer.append({'x': 2}))
        return writer.history['x'][:].read()

    append(tf.constant(True))
    assert append(tf.constant(False)).numpy().tolist() == [1, 2]


def test_the_step_is_its_index_in_the_episode(serve):
    writer = reverb_tf.TFTrajectoryWriter(serve(), XY, 10)
    assert writer.append({'x': 1}, partial_step=True) == 0
    assert writer.append({'y': np.float32([1, 2])}) == 0
    assert writer.append_batch({'x': np.arange(3)}) == 1
    assert writer.append({'x': 1}) == 4
    assert writer.episode_steps == 5
    writer.end_episode()
    assert writer.append({'x': 1}) == 0


def test_a_column_has_a_static_shape_and_reads_what_is_appended(serve):
    writer = reverb_tf.TFTrajectoryWriter(serve(), XY, 10)

    @tf.function
    def read():
        columns = [writer.history['y'][-2:], writer.history['y'][-1], writer.history['y'][5:]]
        values = [column.read() for column in columns]
        assert [v.shape.as_list() for v in values] == [[None, 2], [2], [None, 2]]
        assert [c.shape.as_list() for c in columns] == [[None, 2], [2], [None, 2]]
        return values

    assert writer.history['y'][:].read().shape == (0, 2)
    writer.append_batch({'y': np.arange(6, dtype=np.float32).reshape(3, 2)})
    column, cell, empty = read()
    assert column.numpy().tolist() == [[2, 3], [4, 5]]
    assert cell.numpy().tolist() == [4, 5]
    assert empty.shape == (0, 2)


def test_runs_of_a_session_share_the_writer_which_ends_with_the_session(transport, serve):
    client = serve()
    with tf.Graph().as_default() as graph:
        writer = reverb_tf.TFTrajectoryWriter(client, X, 10)
        value = tf.compat.v1.placeholder(tf.int64, [])
        with tf.control_dependencies([writer.append({'x': value})]):
            key = writer.create_item('t', 1.0, [writer.history['x'][:]])
        with tf.compat.v1.Session(graph=graph) as session:
            keys = [session.run(key, {value: i}) for i in range(3)]
    del session
    gc.collect()
    eventually(lambda: client.server_info()['t'].num_writers == 0)
    samples = list(client.sample('t', 3, emit_timesteps=False))
    assert [s.info.key for s in samples] == keys
    assert [s.data[0].tolist() for s in samples] == [[0], [0, 1], [0, 1, 2]]


# ---- Exported --------------------------------------------------------------------

ACTOR = """
    import sys
    import tensorflow as tf
    import reverb_tf.tf_trajectory_writer

    actor = tf.saved_model.load(sys.argv[1])
    print(actor.collect(tf.constant(6)).numpy())
    actor.collect(tf.constant(5))
    del actor
"""


class Actor(tf.Module):
    """Environment, policy and writing in one function."""

    def __init__(self, writer):
        self.writer = writer
        self.weight = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def collect(self, n):
        state = tf.constant(1.0)
        for i in tf.range(n):
            action = self.weight * state
            self.writer.append({'state': state, 'action': action})
            state += tf.cast(i, tf.float32)
            if i >= 2:
                history = self.writer.history
                columns = {'s': history['state'][-3:], 'a': history['action'][-1]}
                self.writer.create_item('t', state, columns)
        steps = self.writer.episode_steps
        self.writer.end_episode()
        return steps


def test_an_exported_actor_inserts_from_another_process(serve, tmp_path):
    client = serve()
    scalar = tf.TensorSpec([], tf.float32)
    writer = reverb_tf.TFTrajectoryWriter(client, {'state': scalar, 'action': scalar}, 3)
    actor = Actor(writer)
    actor.weight.assign(3.0)
    tf.saved_model.save(actor, str(tmp_path / 'actor'))
    assert size(client) == 0
    result = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(ACTOR), str(tmp_path / 'actor')],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout == '6\n', result.stderr[-3000:]
    samples = list(client.sample('t', size(client), emit_timesteps=False))
    states = [1, 1, 2, 4, 7, 11]
    ends = [2, 3, 4, 5, 2, 3, 4]
    assert [s.data[0].tolist() for s in samples] == [3 * states[i] for i in ends]
    assert [s.data[1].tolist() for s in samples] == [states[i - 2 : i + 1] for i in ends]
    assert samples[3].info.priority == 16
    actor.collect(tf.constant(3))
    assert size(client) == 1


# ---- Life ------------------------------------------------------------------------


def test_dropping_a_writer_flushes_it(transport, serve):
    client = serve()
    writer = reverb_tf.TFTrajectoryWriter(client, X, 10)
    writer.append({'x': 1})
    writer.create_item('t', 1.0, [writer.history['x'][:]])
    del writer
    gc.collect()
    assert size(client) == 1
    eventually(lambda: client.server_info()['t'].num_writers == 0)


def test_dropping_a_writer_waits_two_seconds_at_most(transport, serve):
    client = serve(queue('t', max_size=1))
    writer = reverb_tf.TFTrajectoryWriter(client, X, 10)
    writer.append({'x': 1})
    for _ in range(3):
        writer.create_item('t', 1.0, [writer.history['x'][:]])
    start = time.monotonic()
    del writer
    gc.collect()
    assert 1.5 < time.monotonic() - start < 4
    assert size(client) == 1


def append_function(client):
    writer = reverb_tf.TFTrajectoryWriter(client, X, 10)
    append = tf.function(lambda: writer.append({'x': 1}))
    return append.get_concrete_function()


def test_a_function_keeps_the_writer_that_it_uses(serve):
    append = append_function(serve())
    gc.collect()
    assert append() == 0


def test_a_writer_made_in_a_function_outlives_it(serve):
    client = serve()
    made = []

    @tf.function
    def append():
        if not made:
            made.append(reverb_tf.TFTrajectoryWriter(client, X, 10))
        made[0].append({'x': 1})

    append()
    append()
    assert made[0].episode_steps == 2


def test_writers_of_one_shared_name_are_one(serve):
    client = serve()
    one, other = (reverb_tf.TFTrajectoryWriter(client, X, 10, shared_name='one') for _ in range(2))
    one.append({'x': 1})
    assert other.episode_steps == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="'one' is of a writer to .* attrs"):
        reverb_tf.TFTrajectoryWriter(client, X, 11, shared_name='one')


def test_close_flushes_and_tells_what_it_drops(transport, serve):
    client = serve(queue('t', max_size=1))
    writer = reverb_tf.TFTrajectoryWriter(client, X, 10)
    writer.append({'x': 1})
    for _ in range(3):
        writer.create_item('t', 1.0, [writer.history['x'][:]])
    eventually(lambda: writer.pending_items == 2)
    assert writer.close(timeout=0.05) == 2
    assert writer.close() == 0
    assert writer.pending_items == 0
    for call in (lambda: writer.append({'x': 1}), writer.flush, writer.end_episode):
        with pytest.raises(tf.errors.FailedPreconditionError, match='closed'):
            call()


def test_calls_of_several_threads_interleave_whole(serve):
    client = serve(queue('t', max_size=1000))
    writer = reverb_tf.TFTrajectoryWriter(client, XY, 1000)

    @tf.function
    def collect():
        for i in tf.range(50):
            writer.append({'x': tf.cast(i, tf.int64), 'y': tf.zeros([2])})
            writer.create_item('t', 1.0, [writer.history['x'][-1], writer.history['y'][-1]])

    threads = [threading.Thread(target=collect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush()
    assert writer.episode_steps == 200
    assert size(client) == 200


# ---- Waits -----------------------------------------------------------------------


def fill(writer):
    """Two items, of which a queue of one takes one."""
    writer.append({'x': 1})
    writer.create_item('full', 1.0, [writer.history['x'][:]])
    writer.create_item('full', 1.0, [writer.history['x'][:]])


# The server is asked for the reason, for as long as the wait was (at least 0.1 s).
REASON = "(?s)timed out.*'full'.*blocked"


@pytest.mark.parametrize(
    ('timeout', 'text'),
    [
        ({'timeout': 0}, "timed out.*'full'"),
        ({'timeout_ms': 500}, REASON),
        ({'timeout': 0.5}, REASON),
    ],
)
@pytest.mark.parametrize('call', ['flush', 'end_episode'])
def test_a_wait_that_times_out_tells_the_limiters_reason(
    call, timeout, text, run, transport, serve
):
    client = serve(queue('full', max_size=1))
    made = []

    def program(writer):
        made.append(writer)
        fill(writer)
        getattr(writer, call)(**timeout)

    with pytest.raises(tf.errors.DeadlineExceededError, match=text):
        run(client, X, 10, program)
    steps = made[0].episode_steps
    assert steps == (0 if call == 'end_episode' else 1)
    # The work goes on.
    assert len(list(client.sample('full', 2, emit_timesteps=False))) == 2
    made[0].flush(timeout=20)


def test_flush_may_leave_some_items_pending(serve):
    writer = reverb_tf.TFTrajectoryWriter(serve(queue('full', max_size=1)), X, 10)
    fill(writer)
    writer.flush(1, timeout=20)
    writer.flush(tf.constant(1), timeout=20)
    assert writer.pending_items == 1


def test_the_default_timeout_counts(serve, monkeypatch):
    monkeypatch.setenv('REVERB_TF_TIMEOUT', '0.05')
    writer = reverb_tf.TFTrajectoryWriter(serve(queue('full', max_size=1)), X, 10)
    fill(writer)
    with pytest.raises(tf.errors.DeadlineExceededError):
        writer.flush()


def test_a_bound_on_items_in_flight_holds_no_thread_of_tensorflow(transport, serve):
    client = serve(queue('full', max_size=1))
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Graph().as_default() as graph:
        writer = reverb_tf.TFTrajectoryWriter(client, X, 10, max_in_flight_items=1)
        append = writer.append({'x': 1})
        with tf.control_dependencies([append]):
            items = [writer.create_item('full', 1.0, [writer.history['x'][:]]) for _ in range(4)]
        tf_client = reverb_tf.TFClient(client)
        samples = [tf_client.sample('full', [tf.int64]).data[0] for _ in range(3)]
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            # The samples have to run while items wait.
            keys, _ = session.run([items, samples])
    assert len(set(keys)) == 4


def waiting_flush(writer):
    writer.flush()


def waiting_create(writer):
    writer.create_item('full', 1.0, [writer.history['x'][:]])


def waiting_end(writer):
    writer.end_episode()


@pytest.mark.parametrize('call', [waiting_flush, waiting_create, waiting_end])
def test_cancelling_a_function_ends_its_wait(call, transport, serve):
    client = serve(queue('full', max_size=1))
    writer = reverb_tf.TFTrajectoryWriter(client, X, 10, max_in_flight_items=2)
    fill(writer)
    writer.flush(1)
    writer.create_item('full', 1.0, [writer.history['x'][:]])
    function = tf.function(lambda: call(writer)).get_concrete_function()
    manager = cancellation.CancellationManager()
    errors = []

    def target():
        try:
            manager.get_cancelable_function(function)()
        except tf.errors.OpError as e:
            errors.append(type(e))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    start = time.monotonic()
    manager.start_cancel()
    thread.join(10)
    assert errors == [tf.errors.CancelledError]
    assert time.monotonic() - start < 1
    assert len(list(client.sample('full', 3, emit_timesteps=False))) == 3
    writer.flush(timeout=20)
    assert size(client, 'full') == 0


INTERRUPTED = """
    import os, signal, sys, threading, time
    import tensorflow as tf
    import reverb_tf

    server = reverb_tf.Server([reverb_tf.Table.queue('full', 1)])
    probe = reverb_tf.Client(server.address)
    writer = reverb_tf.TFTrajectoryWriter(probe, {'x': tf.TensorSpec([], tf.int64)}, 1)
    writer.append({'x': 1})
    for _ in range(2):
        writer.create_item('full', 1.0, [writer.history['x'][:]])
    when = []

    flushing = threading.Event()

    def interrupt():
        flushing.wait()
        while not probe.server_info()['full'].num_waiting_inserts:
            time.sleep(0.01)
        when.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    @tf.function
    def flush():
        writer.flush()

    traced = flush.get_concrete_function()
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        flushing.set()
        traced()
    except KeyboardInterrupt:
        print('interrupted', time.monotonic() - when[0] < 1)
    print(writer.close(timeout=0).numpy())
    server.stop()
"""


@pytest.mark.parametrize('in_process', ['1', '0'], ids=['in_process', 'remote'])
def test_ctrl_c_is_a_keyboard_interrupt(in_process, tmp_path):
    # A file, since tf.function reads its source.
    script = tmp_path / 'interrupted.py'
    script.write_text(textwrap.dedent(INTERRUPTED))
    result = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, 'REVERB_TF_INPROCESS': in_process},
    )
    assert result.stdout == 'interrupted True\n1\n', result.stderr[-2000:]


def test_a_server_that_is_not_there_is_waited_for_until_cancelled():
    client = reverb_tf.TFClient('localhost:1')
    attrs = {'step_dtypes': [tf.int64], 'step_shapes': [[]], 'step_paths': ['x']}

    @tf.function
    def make():
        load.ops().reverb_tf_trajectory_writer_handle(client.handle, num_keep_alive_refs=1, **attrs)

    manager = cancellation.CancellationManager()
    threading.Timer(0.2, manager.start_cancel).start()
    with pytest.raises(tf.errors.CancelledError):
        manager.get_cancelable_function(make.get_concrete_function())()
    # Without signatures there is nothing to wait for.
    writer = reverb_tf.TFTrajectoryWriter(client, X, 1, validate_items=False)
    assert writer.append({'x': 1}) == 0
    writer.close(timeout=0)


# ---- Refusals --------------------------------------------------------------------


def test_what_the_server_refuses_is_told_by_the_next_op_once(run, transport, serve):
    client = serve()
    made = []

    def refused(writer):
        made.append(writer)
        writer.append({'x': 1})
        writer.create_item('nope', 1.0, [writer.history['x'][:]])
        writer.flush()

    with pytest.raises(tf.errors.OpError, match='nope'):
        run(client, X, 10, refused, validate_items=False)
    (writer,) = made
    writer.append({'x': 2})
    writer.create_item('t', 1.0, [writer.history['x'][:]])
    writer.flush()
    assert [item[0].tolist() for item in stored(client)] == [[1, 2]]


@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (lambda w, x, y: w.create_item('t', 1.0, {'c': x[3]}), "'c': index 3 is out of range"),
        (lambda w, x, y: w.create_item('t', 1.0, {'c': x[-4]}), "'c': index -4 is out of range"),
        (lambda w, x, y: w.create_item('t', 1.0, {'c': x[3:]}), "'c' is empty"),
        (lambda w, x, y: w.create_item('t', 1.0, {'c': x[::0]}), "'c': slice step cannot be zero"),
        (lambda w, x, y: w.create_item('t', 1.0, {'c': x[[2, 3]]}), "'c': index 3 is out of range"),
        (lambda w, x, y: w.create_item('t', 1.0, {'c': x[[]]}), "'c' is empty"),
        (lambda w, x, y: w.create_item('t', 1.0, {'c': x[[2, 0]]}), "'x'.*num_keep_alive_refs"),
        (lambda w, x, y: x[[-4]].read(), "'x': index -4 is out of range"),
        (lambda w, x, y: w.create_item('t', 1.0, {'c': x[:]}), "'x'.*num_keep_alive_refs is 2"),
        (lambda w, x, y: w.create_item('t', 1.0, {'c': y[:]}), "'y'.*None data references"),
        (lambda w, x, y: w.create_item('nope', 1.0, {'c': x[-1]}), "'nope'"),
        (lambda w, x, y: w.create_item('t', NAN, {'c': x[-1]}), 'priority'),
        (lambda w, x, y: w.create_item('s', 1.0, {'c': x[-1]}), 'missing: a; extra: c'),
        (lambda w, x, y: x[0].read(), "'x'.*num_keep_alive_refs is 2"),
        (lambda w, x, y: x[5].read(), "'x': index 5 is out of range"),
        (lambda w, x, y: y[-1].read(), "'y'.*None data references"),
        (lambda w, x, y: w.append({'y': tf.zeros([3])}), r"'y': got .*\[3\].* float32\[2\]"),
        (lambda w, x, y: w.append_batch({'y': tf.zeros([2])}), r"'y': got .*\[2\].*cells of"),
        (
            lambda w, x, y: w.append_batch({'x': np.arange(2), 'y': tf.zeros([3, 2])}),
            "'y' has 3 steps, expected 2",
        ),
        (lambda w, x, y: w.append_batch({'y': tf.zeros([0, 2])}), "'y' has 0 steps"),
        (lambda w, x, y: w.flush(tf.constant(-1)), 'block_until_num_items'),
    ],
)
def test_what_is_wrong_is_refused_at_once_and_changes_nothing(call, match, run, transport, serve):
    client = serve(
        queue('t'), queue('s', signature={'a': tf.TensorSpec([], tf.int64)})
    )  # fmt: skip
    made = []

    def program(writer):
        made.append(writer)
        writer.append_batch({'x': np.arange(3)})
        call(writer, writer.history['x'], writer.history['y'])

    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        run(client, XY, 2, program)
    (writer,) = made
    writer.flush()
    assert writer.episode_steps == 3
    assert size(client) == size(client, 's') == 0


def test_a_leaf_set_twice_in_a_step_is_refused(run, serve):
    made = []

    def program(writer):
        made.append(writer)
        writer.append({'x': 1}, partial_step=True)
        writer.append({'x': 2})

    with pytest.raises(tf.errors.InvalidArgumentError, match="'x' is set already"):
        run(serve(), XY, 2, program)
    made[0].append({})
    assert made[0].history['x'][:].read().numpy().tolist() == [1]


@pytest.mark.parametrize(
    ('call', 'error', 'match'),
    [
        (lambda w: w.append({'z': 1}), ValueError, "'z' is not in the step_spec, which has x, y"),
        (lambda w: w.append({'z': None}), ValueError, "'z' is not in the step_spec"),
        (lambda w: w.append({'x': 1.5}), ValueError, "'x': cannot cast float64 to int64"),
        (lambda w: w.append({'x': 2**63}), ValueError, "'x': value out of range"),
        (lambda w: w.append({'y': np.zeros(3)}), ValueError, "'y': got shape"),
        (lambda w: w.append({'x': 'a'}), ValueError, "'x'"),
        (lambda w: w.append({'x': object()}), TypeError, "'x'"),
        (lambda w: w.append({'x': 1}, partial_step=1), TypeError, 'partial_step must be a bool'),
        (lambda w: w.append_batch({}), ValueError, 'at least one leaf'),
        (lambda w: w.history['x']['a'], TypeError, "'x': indices must be ints"),
        (lambda w: w.history['x'][True], TypeError, "'x': indices must be ints"),
        (lambda w: w.history['x'][[0, True]], TypeError, "'x': indices must be ints"),
        (lambda w: w.history['x'][np.zeros([1, 1], int)], TypeError, "'x': indices must be ints"),
        (lambda w: w.history['x'][tf.constant([1.0])], TypeError, "'x': indices must be ints"),
        (lambda w: w.history['x'][tf.constant(1.0) :], TypeError, "'x': indices must be ints"),
        (lambda w: w.history['x'][tf.constant([[1]])], TypeError, "'x': indices must be ints"),
        (lambda w: list(w.history['x']), TypeError, 'iterable'),
        (lambda w: w.create_item('t', 1.0, {'a': 1}), TypeError, "'a' must be a column"),
        (lambda w: w.create_item('t', 1.0, {}), ValueError, 'at least one column'),
        (lambda w: w.create_item('', 1.0, [w.history['x'][-1]]), ValueError, 'table'),
        (lambda w: w.create_item('t', 'a', [w.history['x'][-1]]), TypeError, 'priority'),
        (lambda w: w.flush(-1), ValueError, 'block_until_num_items must be >= 0'),
        (lambda w: w.flush(timeout=-1), ValueError, 'timeout must be >= 0'),
        (lambda w: w.flush(timeout=1, timeout_ms=1), ValueError, 'not both'),
    ],
)
def test_bad_arguments_are_refused_before_any_op(call, error, match, serve):
    writer = reverb_tf.TFTrajectoryWriter(serve(), XY, 2)
    with pytest.raises(error, match=match):
        call(writer)
    assert writer.episode_steps == 0


def test_columns_of_another_writer_are_refused(serve):
    client = serve()
    one, other = (reverb_tf.TFTrajectoryWriter(client, X, 2) for _ in range(2))
    with pytest.raises(ValueError, match="'a' belongs to another writer"):
        one.create_item('t', 1.0, {'a': other.history['x'][-1]})


@pytest.mark.parametrize(
    ('spec', 'kwargs', 'error', 'match'),
    [
        ({}, {}, ValueError, 'at least one leaf'),
        ({'x': tf.int32}, {}, ValueError, "step_spec leaf 'x'"),
        ({'x': tf.TensorSpec([], tf.qint8)}, {}, ValueError, "'x' has the unsupported dtype"),
        (X, {'num_keep_alive_refs': 0}, ValueError, 'num_keep_alive_refs must be >= 1'),
        (X, {'max_in_flight_items': 0}, ValueError, 'max_in_flight_items must be >= 1'),
        (X, {'validate_items': 1}, TypeError, 'validate_items must be a bool'),
        (X, {'configs': []}, ValueError, 'configs must hold at least one config'),
        (X, {'configs': [1]}, TypeError, r'configs\[0\]'),
    ],
)
def test_a_writer_with_bad_arguments_is_not_made(spec, kwargs, error, match, serve):
    with pytest.raises(error, match=match):
        reverb_tf.TFTrajectoryWriter(serve(), spec, **{'num_keep_alive_refs': 1, **kwargs})


# ---- Patterns --------------------------------------------------------------------


def patterns(spec):
    ref = structured.create_reference_step(spec)
    return [
        structured.create_config(
            {'pair': ref['x'][-2:], 'last': ref['y'][-1]},
            't',
            conditions=[structured.Condition.step_index() % 2 == 1],
            priority=structured.constant_priority_fn(2.0),
        ),
        structured.create_config(
            {'pair': ref['x'][-3::2], 'last': ref['y'][-1]},
            't',
            conditions=[structured.Condition.is_end_episode()],
        ),
    ]


def test_configs_make_the_items_of_the_structured_writer(run, transport, serve):
    client = serve()
    y = np.arange(10, dtype=np.float32).reshape(5, 2)

    def program(writer):
        for i in range(3):
            writer.append({'x': i, 'y': y[i]})
        writer.append({'x': 3}, partial_step=True)
        writer.append({'y': y[3]})
        writer.end_episode()
        writer.append_batch({'x': np.arange(5), 'y': y})
        writer.end_episode()

    program(client.structured_writer(patterns(XY), step_spec=XY))
    expected = stored(client)
    assert len(expected) == 6
    run(client, XY, 1, program, configs=patterns(XY))
    got = stored(client)
    for some, others in zip(got, expected, strict=True):
        for one, other in zip(tf.nest.flatten(some), tf.nest.flatten(others), strict=True):
            assert_same(one, other)


def test_configs_are_matched_with_the_step_by_path(serve):
    client = serve()
    spec = {'a': tf.TensorSpec([], tf.string), **XY}
    ref = structured.create_reference_step({'x': None, 'y': None})
    config = structured.create_config([ref['x'][-1]], 't')
    with pytest.raises(tf.errors.InvalidArgumentError, match='a'):
        reverb_tf.TFTrajectoryWriter(client, spec, 1, configs=[config])


def test_a_writer_with_configs_has_no_history(serve):
    writer = reverb_tf.TFTrajectoryWriter(serve(), XY, 1, configs=patterns(XY))
    with pytest.raises(AttributeError, match='has no history: its patterns are fixed'):
        writer.history['x']
    with pytest.raises(AttributeError, match='has no create_item'):
        writer.create_item('t', 1.0, [])
    with pytest.raises(tf.errors.InvalidArgumentError, match='creates its items itself'):
        column(load.ops(), writer.resource_handle)


def test_an_append_waits_for_the_bound_of_configs(transport, serve):
    client = serve(queue('t', max_size=1))
    ref = structured.create_reference_step(X)
    config = structured.create_config([ref['x'][-1]], 't')
    writer = reverb_tf.TFTrajectoryWriter(client, X, 1, configs=[config], max_in_flight_items=1)
    writer.append({'x': 1})
    writer.append({'x': 2})
    append = tf.function(lambda: writer.append({'x': 3})).get_concrete_function()
    manager = cancellation.CancellationManager()
    threading.Timer(0.2, manager.start_cancel).start()
    with pytest.raises(tf.errors.CancelledError):
        manager.get_cancelable_function(append)()
    assert writer.episode_steps == 2


def test_bad_configs_are_refused(serve):
    client = serve(queue(signature=X))
    with pytest.raises(tf.errors.InvalidArgumentError, match='position 0'):
        reverb_tf.TFTrajectoryWriter(client, XY, 1, configs=patterns(XY))
    with pytest.raises(tf.errors.InvalidArgumentError, match='configs: invalid at position 0'):
        handle(client, configs=[b'\xff\xff'])


# ---- The ops themselves ----------------------------------------------------------


def handle(client, **attrs):
    attrs = {
        'step_dtypes': [tf.int64],
        'step_shapes': [[]],
        'step_paths': ['x'],
        'num_keep_alive_refs': 2,
        'shared_name': '',
        **attrs,
    }
    return load.ops().reverb_tf_trajectory_writer_handle(reverb_tf.TFClient(client).handle, **attrs)


def column(ops, h, start=0, indices=(), environment=(), **attrs):
    defaults = {
        'source': 0,
        'squeeze': False,
        'has_start': True,
        'has_stop': False,
        'dtype': tf.int64,
    }
    return ops.reverb_tf_trajectory_writer_column(
        h, start, 0, 1, indices, environment, **{**defaults, **attrs}
    )


def item(ops, h, start=(0,), table='t', indices=(), mask=(), **attrs):
    defaults = {
        'sources': [0],
        'squeeze': [False],
        'paths': ['x'],
        'has_start': [True],
        'has_stop': [False],
    }
    return ops.reverb_tf_trajectory_writer_create_item(
        h,
        table,
        tf.constant(1.0, tf.float64),
        list(start),
        [0],
        [1],
        list(indices),
        list(mask),
        **{**defaults, **attrs},
    )


ONE = tf.constant(1, tf.int64)


@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (lambda o, h: o.reverb_tf_trajectory_writer_append(h, [ONE, ONE], []), '1 tensors, got 2'),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_append(h, [ONE], [], columns=[1]),
            'columns must be below 1, got 1',
        ),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_append(h, [ONE], [], columns=[-1]),
            'columns must be below 1, got -1',
        ),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_append(h, [ONE, ONE], [], columns=[0, 0]),
            "'x' is set already",
        ),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_append(h, [tf.constant(1.0)], []),
            "'x': got float",
        ),
        (lambda o, h: o.reverb_tf_trajectory_writer_append(h, [h], []), "'x': got resource"),
        (lambda o, h: o.reverb_tf_trajectory_writer_append_batch(h, [ONE], []), "'x': got int64"),
        (lambda o, h: column(o, h, source=1), 'source must be one of the 1 columns, got 1'),
        (lambda o, h: column(o, h, dtype=tf.int32), 'the attr dtype is int32'),
        (lambda o, h: column(o, h, start=[0]), 'start must be of rank 0'),
        (lambda o, h: column(o, h, squeeze=True, has_start=False), 'out of range'),
        (lambda o, h: item(o, h, sources=[-1]), 'source must be one of'),
        (lambda o, h: item(o, h, paths=['x', 'y']), 'same length'),
        (lambda o, h: item(o, h, start=[0, 0]), 'start must have an entry for each'),
        (lambda o, h: item(o, h, table=['t']), 'table must be of rank 0'),
        (lambda o, h: item(o, h, indices=[[0]]), 'listed must have an entry for each of the 1'),
        (lambda o, h: item(o, h, indices=[0], listed=[0]), 'indices must be of rank 1'),
        (lambda o, h: item(o, h, indices=[[0]], listed=[1]), 'listed must be of the 1 columns'),
        (
            lambda o, h: item(o, h, indices=[[0]], listed=[0], squeeze=[True]),
            'listed must be of the 1 columns that are not squeezed',
        ),
        (lambda o, h: item(o, h, mask=[[True]]), 'mask: got 1 tensors, expected none'),
        (lambda o, h: item(o, h, num_envs=2), "num_envs: got 2, expected the handle's, 0"),
        (lambda o, h: column(o, h, environment=[0]), 'environment: got 1 tensors, expected none'),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_flush(h, [1]),
            'block_until_num_items must be of rank 0',
        ),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_end_episode(h, [True], []),
            'clear_buffers must be of rank 0',
        ),
        (lambda o, h: o.reverb_tf_trajectory_writer_pending(h[tf.newaxis][:0]), 'Empty'),
    ],
)
def test_ops_check_what_the_graph_could_not(call, match, serve):
    ops, h = load.ops(), handle(serve())
    ops.reverb_tf_trajectory_writer_append_batch(h, [tf.range(2, dtype=tf.int64)], [])
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        call(ops, h)
    assert ops.reverb_tf_trajectory_writer_episode_steps(h) == 2


@pytest.mark.parametrize(
    ('attrs', 'match'),
    [
        ({'step_paths': ['x', 'y']}, 'must have the same length, got 1, 1 and 2'),
        ({'step_dtypes': [tf.qint8]}, 'step_dtypes: no table can hold qint8'),
        (
            {
                'step_dtypes': [tf.int8] * 2,
                'step_shapes': [[]] * 2,
                'step_paths': ['x'] * 2,
            },
            "step_paths has 'x' twice",
        ),
    ],
)
def test_a_handle_with_bad_attrs_is_refused(attrs, match, serve):
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        handle(serve(), **attrs)


def test_handles_of_other_resources_are_refused(serve):
    client = reverb_tf.TFClient(serve())
    with pytest.raises(tf.errors.InvalidArgumentError):
        load.ops().reverb_tf_trajectory_writer_pending(client.handle)


def placeholder(dtype, shape):
    return tf.compat.v1.placeholder(dtype, shape)


@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (lambda o, h: o.reverb_tf_trajectory_writer_pending(h[tf.newaxis]), 'handle: .*rank 0'),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_append(h, [1], [], columns=[0, 1]),
            'columns must be empty or have an entry for each of the 1 tensors, got 2',
        ),
        (lambda o, h: o.reverb_tf_trajectory_writer_append_batch(h, [1], []), 'rank 1'),
        (lambda o, h: item(o, h, paths=['x', 'y']), 'paths must have an entry for each of the 1'),
        (lambda o, h: item(o, h, start=[0, 0]), 'must be equal'),
        (lambda o, h: item(o, h, table=['t']), 'table: .*rank 0'),
        (lambda o, h: item(o, h, indices=[[0]]), 'listed must have an entry for each of the 1'),
        (lambda o, h: item(o, h, indices=[0], listed=[0]), 'indices: .*rank 1'),
        (lambda o, h: item(o, h, mask=[[True]]), 'mask: got 1 tensors, expected none'),
        (lambda o, h: column(o, h, start=[0]), 'start: .*rank 0'),
        (lambda o, h: o.reverb_tf_trajectory_writer_flush(h, [1]), 'block_until.*: .*rank 0'),
        (lambda o, h: o.reverb_tf_trajectory_writer_flush(h, 1, timeout_ms=-2), 'timeout_ms'),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_end_episode(h, [True], []),
            'clear.*: .*rank 0',
        ),
    ],
)
def test_wrong_ranks_are_refused_when_the_graph_is_built(call, match):
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match=match):
            call(load.ops(), placeholder(tf.resource, []))


def test_the_numbers_that_ops_give_are_scalars():
    with tf.Graph().as_default():
        ops, h = load.ops(), placeholder(tf.resource, None)
        outputs = [
            item(ops, h),
            ops.reverb_tf_trajectory_writer_append(h, [1], []),
            ops.reverb_tf_trajectory_writer_append_batch(h, [[1]], []),
            ops.reverb_tf_trajectory_writer_close(h),
            ops.reverb_tf_trajectory_writer_pending(h),
            ops.reverb_tf_trajectory_writer_episode_steps(h),
        ]
        assert [o.shape.as_list() for o in outputs] == [[]] * 6
        assert [o.dtype for o in outputs] == [tf.uint64] + [tf.int64] * 5


def test_prioritized_tables_take_priorities_that_are_computed(serve):
    client = serve(uniform_table())
    writer = reverb_tf.TFTrajectoryWriter(client, X, 2)

    @tf.function
    def create(priority):
        writer.append({'x': 1})
        writer.create_item('t', 2 * priority, [writer.history['x'][-1]])
        writer.flush()

    create(tf.constant(1.5))
    assert next(client.sample('t', 1, emit_timesteps=False)).info.priority == 3.0
