"""TFTrajectoryWriter of several environments: values, masks, patterns, refusals, exported actors."""

import gc
import subprocess
import sys
import textwrap
import threading

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import reverb_tf
from reverb_tf import structured
from reverb_tf.ops import load
from tests.testing_util import assert_same, eventually

N = 3
X = {'x': tf.TensorSpec([], tf.int64)}
XY = {'x': tf.TensorSpec([], tf.int64), 'y': tf.TensorSpec([2], tf.float32)}
NAN = float('nan')


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


def queue(name='t', max_size=1000, signature=None):
    return reverb_tf.Table.queue(name, max_size, signature=signature)


def take(client, table='t'):
    """The samples of a queue's items, in order."""
    count = client.server_info()[table].current_size
    return list(client.sample(table, count, emit_timesteps=False)) if count else []


def stored(client, table='t'):
    return [sample.data for sample in take(client, table)]


def size(client, table='t'):
    return client.server_info()[table].current_size


def make(client, spec=XY, refs=10, **kwargs):
    return reverb_tf.TFTrajectoryWriter(client, spec, refs, num_envs=N, **kwargs)


def step(t, n=N):
    """Values that tell the environment and the time."""
    x = np.arange(n) * 100 + t
    return {'x': x, 'y': np.stack([x, -x], 1).astype(np.float32)}


def fill(writer, steps=3):
    for t in range(steps):
        writer.append(step(t))


# ---- Values ----------------------------------------------------------------------


class Model:
    """What N environments hold and made, in plain Python."""

    def __init__(self):
        self.histories = [[] for _ in range(N)]
        self.steps = [0] * N
        self.items = []
        self.clock = 0

    def append(self, mask):
        indices = [s if on else -1 for s, on in zip(self.steps, mask, strict=True)]
        for env, on in enumerate(mask):
            if on:
                self.histories[env].append(env * 100 + self.clock)
                self.steps[env] += 1
        self.clock += 1
        return indices

    def create(self, mask, index, priorities):
        for env, on in enumerate(mask):
            if on:
                self.items.append((self.histories[env][index], priorities[env]))

    def end(self, mask, clear):
        for env, on in enumerate(mask):
            if on:
                self.steps[env] = 0
                if clear:
                    self.histories[env] = []


masks = st.lists(st.booleans(), min_size=N, max_size=N)
calls = st.one_of(
    st.tuples(st.just('append'), masks),
    st.tuples(st.just('append'), masks),
    st.tuples(
        st.just('create'),
        masks,
        st.one_of(
            st.integers(-3, 2),
            st.builds(
                slice,
                st.none() | st.integers(-4, 3),
                st.none() | st.integers(-4, 3),
                st.none() | st.sampled_from([1, 2, -1]),
            ),
        ),
        st.lists(st.floats(0, 10), min_size=N, max_size=N),
    ),
    st.tuples(st.just('end'), masks, st.booleans()),
)


def can_create(history, index):
    if isinstance(index, slice):
        return bool(history[index])
    return -len(history) <= index < len(history)


def play(model, writer, call, *args):
    """One call on both; items are made where they can be."""
    if call == 'append':
        got = writer.append(step(model.clock), mask=args[0])
        assert got.numpy().tolist() == model.append(args[0])
    elif call == 'create':
        mask, index, priorities = args
        histories = model.histories
        mask = [on and can_create(h, index) for on, h in zip(mask, histories, strict=True)]
        column = writer.history['x'][index]
        keys = writer.create_item('t', priorities, [column], mask=mask)
        assert [key > 0 for key in keys.numpy().tolist()] == mask
        model.create(mask, index, priorities)
    else:
        writer.end_episode(args[1], mask=args[0])
        model.end(*args)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.lists(calls, max_size=30))
def test_what_is_read_back_is_what_a_model_says(program):
    server = reverb_tf.Server([queue()])
    client = reverb_tf.Client(server.address, timeout=20)
    writer, model = make(client, refs=100), Model()
    for call in program:
        play(model, writer, *call)
    assert writer.episode_steps.numpy().tolist() == model.steps
    writer.flush()
    samples = take(client)
    expected = [value for value, _ in model.items]
    assert [sample.data[0].tolist() for sample in samples] == expected
    assert [sample.info.priority for sample in samples] == [p for _, p in model.items]
    server.stop()


VALUES = {
    'int64': np.arange(12, dtype=np.int64),
    'float32_vectors': np.arange(24, dtype=np.float32).reshape(12, 2),
    'uint8_images': np.arange(12 * 24, dtype=np.uint8).reshape(12, 4, 3, 2),
    'empty': np.zeros([12, 0, 3], np.float16),
    'strings': np.array([b'x' * (i * i % 7) + b'\x00%d' % i for i in range(12)], object),
    'string_vectors': np.array([[b'', b'y' * i] for i in range(12)], object),
}


def append_steps(writer, values):
    for t in range(values.shape[1]):
        writer.append({'z': np.ones(N, int), 'x': values[:, t]})


def append_batch(writer, values):
    writer.append_batch({'z': np.ones(values.shape[:2], int), 'x': values})


@pytest.mark.parametrize('append', [append_steps, append_batch])
@pytest.mark.parametrize('name', VALUES)
def test_each_environment_stores_what_a_writer_of_its_own_would(name, append, transport, serve):
    values = VALUES[name].reshape(N, 4, *VALUES[name].shape[1:])
    dtype = tf.string if values.dtype == object else values.dtype
    spec = {'z': tf.TensorSpec([], tf.int64), 'x': tf.TensorSpec(values.shape[2:], dtype)}
    client = serve()
    expected = []
    for env in range(N):
        writer = client.trajectory_writer(4, step_spec=spec)
        writer.append_batch({'z': np.ones(4, int), 'x': values[env]})
        writer.create_item('t', 1.0, [writer.history['x'][-3:], writer.history['z'][:]])
        writer.flush()
        expected += stored(client)
    writer = make(client, spec, 4)
    append(writer, values)
    writer.create_item('t', 1.0, [writer.history['x'][-3:], writer.history['z'][:]])
    writer.flush()
    got = stored(client)
    assert len(got) == N
    for some, others in zip(got, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            assert_same(one, other)


def test_an_op_appends_in_a_function(transport, serve):
    client = serve()
    writer = make(client)

    @tf.function
    def collect(n):
        for t in tf.range(n):
            x = tf.cast(100 * tf.range(N) + t, tf.int64)
            writer.append({'x': x, 'y': tf.zeros([N, 2])})
            if t >= 1:
                writer.create_item('t', tf.cast(x, tf.float32), [writer.history['x'][-2:]])
        writer.end_episode()

    collect(tf.constant(3))
    samples = take(client)
    assert [s.data[0].tolist() for s in samples] == [
        [0, 1], [100, 101], [200, 201], [1, 2], [101, 102], [201, 202],
    ]  # fmt: skip
    assert [s.info.priority for s in samples] == [1, 101, 201, 2, 102, 202]


def test_one_environment_has_the_dimension_too(serve):
    client = serve()
    writer = reverb_tf.TFTrajectoryWriter(client, X, 2, num_envs=1)
    assert writer.append({'x': np.array([7])}).numpy().tolist() == [0]
    keys = writer.create_item('t', [2.0], [writer.history['x'][-1]])
    writer.flush()
    (sample,) = take(client)
    assert [sample.info.key] == keys.numpy().tolist()
    assert sample.data[0] == 7


def test_items_of_environments_are_in_their_order(transport, serve):
    client = serve()
    writer = make(client)
    fill(writer, 20)
    keys = []
    for _ in range(20):
        keys += writer.create_item('t', 1.0, [writer.history['x'][-1]]).numpy().tolist()
    writer.flush()
    assert [sample.info.key for sample in take(client)] == keys


def test_slices_are_of_each_environments_history(serve):
    client = serve()
    writer = make(client)
    fill(writer)
    writer.end_episode(mask=[False, True, False])
    writer.append(step(3))
    x = writer.history['x']
    writer.create_item('t', 1.0, [x[:], x[tf.constant(-1)], x[[0, -1]]])
    writer.flush()
    assert [[column.tolist() for column in item] for item in stored(client)] == [
        [[0, 1, 2, 3], 3, [0, 3]],
        [[103], 103, [103, 103]],
        [[200, 201, 202, 203], 203, [200, 203]],
    ]


def test_partial_steps_are_open_where_the_mask_says(serve):
    client = serve()
    writer = make(client)
    mask = [True, False, True]
    got = writer.append({'x': np.array([1, 2, 3])}, partial_step=True, mask=mask)
    assert got.numpy().tolist() == [0, -1, 0]
    writer.append({'y': np.ones([N, 2])}, mask=mask)
    assert writer.episode_steps.numpy().tolist() == [1, 0, 1]
    writer.create_item('t', 1.0, [writer.history['x'][:], writer.history['y'][:]], mask=mask)
    writer.flush()
    assert [x.tolist() for x, _ in stored(client)] == [[1], [3]]


def test_masked_environments_may_hold_anything(serve):
    client = serve()
    writer = make(client)
    fill(writer)
    mask = tf.constant([True, False, False])
    writer.end_episode(mask=~mask)
    writer.append({'x': np.array([3, -1, -1]), 'y': np.full([N, 2], NAN)}, mask=mask)
    x = writer.history['x']
    keys = writer.create_item('t', [1.0, NAN, -1.0], [x[-4:]], mask=mask).numpy().tolist()
    writer.flush()
    (sample,) = take(client)
    assert keys == [sample.info.key, 0, 0]
    assert sample.data[0].tolist() == [0, 1, 2, 3]


def test_a_mask_that_is_false_everywhere_does_nothing(serve):
    client = serve()
    writer = make(client)
    none = np.zeros(N, bool)
    assert writer.append(step(0), mask=none).numpy().tolist() == [-1] * N
    keys = writer.create_item('t', 1.0, [writer.history['x'][-1]], mask=none)
    assert keys.numpy().tolist() == [0] * N
    writer.end_episode(mask=none)
    assert writer.episode_steps.numpy().tolist() == [0] * N
    assert size(client) == 0


def test_a_column_is_read_of_one_environment(serve):
    writer = make(serve())
    fill(writer)

    @tf.function
    def read(environment):
        column = writer.history['y'][-2:].read(environment)
        assert column.shape.as_list() == [None, 2]
        return column, writer.history['x'][[0, 2]].read(environment)

    column, pair = read(tf.constant(1))
    assert column.numpy().tolist() == [[101, -101], [102, -102]]
    assert pair.numpy().tolist() == [100, 102]
    with pytest.raises(tf.errors.InvalidArgumentError, match='environment 2: .*index 3 is out'):
        writer.history['x'][3].read(2)
    for environment in (3, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f'environment: got {environment}'):
            writer.history['x'][0].read(environment)
    with pytest.raises(ValueError, match='environment: got None, expected an index'):
        writer.history['x'][0].read()


def test_what_is_of_items_is_of_all_environments(transport, serve):
    client = serve(queue('full', max_size=1))
    writer = make(client)
    fill(writer)
    writer.create_item('full', 1.0, [writer.history['x'][-1]])
    writer.flush(2)
    assert writer.pending_items.shape == ()
    assert writer.pending_items == 2
    with pytest.raises(tf.errors.DeadlineExceededError, match="'full'"):
        writer.end_episode(timeout=0, mask=[False, True, False])
    assert writer.episode_steps.numpy().tolist() == [3, 0, 3]
    writer.end_episode(timeout=0, mask=[False] * N)
    assert writer.close(timeout=0) == 2
    assert writer.close() == 0
    assert writer.pending_items == 0
    for call in (lambda: writer.append(step(0)), writer.flush, writer.end_episode):
        with pytest.raises(tf.errors.FailedPreconditionError, match='closed'):
            call()


def test_dropping_a_writer_flushes_all_environments(transport, serve):
    client = serve()
    writer = make(client)
    fill(writer)
    writer.create_item('t', 1.0, [writer.history['x'][-1]])
    del writer
    gc.collect()
    assert size(client) == N
    eventually(lambda: client.server_info()['t'].num_writers == 0)


def test_environments_share_one_stream(transport, serve):
    client = serve()
    writer = make(client)
    fill(writer)
    writer.create_item('t', 1.0, [writer.history['x'][-1]])
    writer.flush()
    assert client.server_info()['t'].num_writers == 1


def test_calls_of_several_threads_interleave_whole(serve):
    client = serve(queue(max_size=10000))
    writer = make(client, refs=1000, max_in_flight_items=10)

    @tf.function
    def collect():
        for i in tf.range(40):
            x = tf.cast(tf.fill([N], i), tf.int64)
            writer.append({'x': x, 'y': tf.zeros([N, 2])})
            writer.create_item('t', 1.0, [writer.history['x'][-1]])

    threads = [threading.Thread(target=collect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush()
    assert writer.episode_steps.numpy().tolist() == [160] * N
    values = [item[0].tolist() for item in stored(client)]
    # The environments' items of a call are together, and of one step.
    assert len(values) == 160 * N
    assert values[0::3] == values[1::3] == values[2::3]


# ---- Bounds ----------------------------------------------------------------------


def cancel_when_waiting(function):
    """Runs a concrete function that waits, and cancels it."""
    manager = cancellation.CancellationManager()
    threading.Timer(0.2, manager.start_cancel).start()
    with pytest.raises(tf.errors.CancelledError):
        manager.get_cancelable_function(function)()


def test_items_wait_for_the_bound_together(transport, serve):
    client = serve(queue('full', max_size=1))
    writer = make(client, max_in_flight_items=4)
    fill(writer)
    column = writer.history['x'][-1]
    writer.create_item('full', 1.0, [column])
    writer.flush(2)
    create = tf.function(lambda: writer.create_item('full', 1.0, [column]))
    cancel_when_waiting(create.get_concrete_function())
    # None of the three was made.
    assert writer.pending_items == 2
    writer.create_item('full', 1.0, [column], mask=[True, True, False])
    assert writer.pending_items == 4


def test_an_append_of_patterns_that_is_cancelled_changes_nothing(transport, serve):
    client = serve(queue(max_size=1))
    ref = structured.create_reference_step(XY)
    config = structured.create_config([ref['x'][-1]], 't')
    writer = make(client, configs=[config], max_in_flight_items=2)
    writer.append(step(0), mask=[True, False, False])
    writer.append(step(1), mask=[False, True, False])
    writer.flush(1)
    append = tf.function(lambda: writer.append(step(2)))
    cancel_when_waiting(append.get_concrete_function())
    assert writer.episode_steps.numpy().tolist() == [1, 1, 0]
    assert writer.pending_items == 1


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


def pattern_items(client, env, lengths):
    """What a StructuredWriter makes of episodes of an environment."""
    writer = client.structured_writer(patterns(XY), step_spec=XY)
    t = 0
    for length in lengths:
        for _ in range(length):
            writer.append({name: value[env] for name, value in step(t).items()})
            t += 1
        writer.end_episode()
    return stored(client)


def by_environment(items):
    return [[item for item in items if item[1][0] // 100 == env] for env in range(N)]


def test_patterns_make_the_items_of_each_environment(transport, serve):
    client = serve()
    lengths = [[3, 4, 3], [10], [1, 2, 3, 4]]
    expected = [pattern_items(client, env, lengths[env]) for env in range(N)]
    assert sum(map(len, expected)) > 12
    writer = make(client, refs=1, configs=patterns(XY))
    ends = [set(np.cumsum(of).tolist()) for of in lengths]

    @tf.function
    def play_step(data, done):
        writer.append(data)
        writer.end_episode(mask=done)

    for t in range(10):
        play_step(step(t), [t + 1 in of for of in ends])
    got = by_environment(stored(client))
    for some, others in zip(got, expected, strict=True):
        assert len(some) == len(others)
        for one, other in zip(some, others, strict=True):
            assert_same(one[0], other[0])
            assert_same(one[1], other[1])


def test_patterns_need_no_step_of_environments_that_are_masked(serve):
    client = serve()
    writer = make(client, refs=1, configs=patterns(XY))
    for t in range(2):
        writer.append(step(t), mask=[True, False, False])
    writer.append(step(2), mask=[False, True, True])
    writer.flush()
    assert [pair.tolist() for _, pair in stored(client)] == [[0, 1]]


def test_a_pattern_item_that_cannot_be_made_is_told_and_the_steps_are_in(serve):
    client = serve()
    spec = {'td': tf.TensorSpec([], tf.float32), **X}
    ref = structured.create_reference_step(spec)
    config = structured.create_config(
        {'td': ref['td'][-1:], 'x': ref['x'][-1]},
        't',
        priority=structured.td_error(0.5, spec, lambda s: s['td']),
    )
    writer = make(client, spec, 1, configs=[config])
    with pytest.raises(tf.errors.InvalidArgumentError, match='environment 1: .*must be finite'):
        writer.append({'td': np.array([1, NAN, 3]), 'x': np.array([1, 2, 3])})
    assert writer.episode_steps.numpy().tolist() == [1, 1, 1]
    writer.flush()
    assert [x for _, x in stored(client)] == [1, 3]


def test_a_condition_that_cannot_read_its_field_changes_nothing(serve):
    client = serve()
    ref = structured.create_reference_step(XY)
    condition = structured.Condition.data(XY)['x'] >= 0
    writer = make(
        client, {'x': tf.TensorSpec(None, tf.int64), 'y': XY['y']}, 1,
        configs=[structured.create_config([ref['y'][-1]], 't', conditions=[condition])],
    )  # fmt: skip
    with pytest.raises(tf.errors.InvalidArgumentError, match='environment 0: '):
        writer.append({'x': np.zeros([N, 2], int), 'y': np.zeros([N, 2])})
    assert writer.episode_steps.numpy().tolist() == [0] * N
    assert writer.append({'x': np.zeros([N], int), 'y': np.zeros([N, 2])}).shape == (N,)


def test_patterns_take_no_batches(serve):
    writer = make(serve(), refs=1, configs=patterns(XY))
    batch = {'x': np.zeros([N, 2], int), 'y': np.zeros([N, 2, 2])}
    with pytest.raises(ValueError, match='num_envs and configs has no append_batch'):
        writer.append_batch(batch)
    cells = [tf.constant(value, column.dtype) for value, column in zip(batch.values(), XY.values())]
    with pytest.raises(tf.errors.InvalidArgumentError, match='one step at a time'):
        load.ops().reverb_tf_trajectory_writer_append_batch(
            writer.resource_handle, cells, [], num_envs=N
        )


# ---- Exported --------------------------------------------------------------------

ACTOR = """
    import sys
    import tensorflow as tf
    import reverb_tf.tf_trajectory_writer

    actor = tf.saved_model.load(sys.argv[1])
    print(actor.collect(tf.constant(12)).numpy())
"""


class Poles:
    """N poles that fall over, each at an angle of its own."""

    def __init__(self):
        self.limits = tf.constant([3.0, 5.0, 100.0])

    def reset(self):
        return tf.zeros([N, 2])

    def step(self, state, action):
        angle = state[:, 0] + tf.cast(action, tf.float32)
        state = tf.stack([angle, state[:, 1] + 1], 1)
        done = angle >= self.limits
        return tf.where(done[:, tf.newaxis], tf.zeros_like(state), state), state, done


class Actor(tf.Module):
    """Environments, policy and writing in one function."""

    def __init__(self, writer):
        self.writer = writer
        self.env = Poles()
        self.gain = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def collect(self, n):
        def body(t, state, episodes):
            action = tf.cast(self.gain * tf.ones([N]), tf.int64)
            following, last, done = self.env.step(state, action)
            self.writer.append({'obs': last, 'action': action})
            history = self.writer.history
            self.writer.create_item(
                't',
                last[:, 0],
                {'obs': history['obs'][-3:], 'action': history['action'][-1]},
                mask=self.writer.episode_steps >= 3,
            )
            self.writer.end_episode(mask=done)
            return t + 1, following, episodes + tf.cast(done, tf.int32)

        start = (0, self.env.reset(), tf.zeros([N], tf.int32))
        return tf.while_loop(lambda t, *_: t < n, body, start)[2]


def test_an_exported_actor_of_environments_inserts_from_another_process(serve, tmp_path):
    spec = {'obs': tf.TensorSpec([2], tf.float32), 'action': tf.TensorSpec([], tf.int64)}
    signature = {
        'obs': tf.TensorSpec([3, 2], tf.float32),
        'action': tf.TensorSpec([], tf.int64),
    }
    client = serve(queue(signature=signature))
    writer = make(client, spec, 3)
    tf.saved_model.save(Actor(writer), str(tmp_path / 'actor'))
    result = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(ACTOR), str(tmp_path / 'actor')],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout == '[4 2 0]\n', result.stderr[-3000:]
    expected = []
    steps = [0] * N
    for _ in range(12):
        steps = [count + 1 for count in steps]
        expected += [[s - 2, s - 1, s] for s in steps if s >= 3]
        steps = [s if s < limit else 0 for s, limit in zip(steps, (3, 5, 100), strict=True)]
    samples = take(client)
    assert [sample.data['obs'][:, 0].tolist() for sample in samples] == expected
    assert [sample.info.priority for sample in samples] == [item[-1] for item in expected]


# ---- Refusals --------------------------------------------------------------------


@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (
            lambda w, x: w.create_item('t', 1.0, {'c': x[-3:]}),
            r"environment 1: column 'c' is empty",
        ),
        (
            lambda w, x: w.create_item('t', 1.0, {'c': x[2]}),
            "environment 1: column 'c': index 2 is out of range for a history of 0",
        ),
        (
            lambda w, x: w.create_item('t', 1.0, {'c': x[[-1]]}, mask=[True, True, False]),
            'environment 1: ',
        ),
        (
            lambda w, x: w.create_item('t', [1, 1, NAN], {'c': x[-1]}, mask=[True, False, True]),
            'environment 2: .*priority',
        ),
        (
            lambda w, x: w.create_item('s', 1.0, {'c': x[1:]}, mask=[True, False, True]),
            r"environment 2: .*'s'",
        ),
        (
            lambda w, x: w.create_item('t', 1.0, {'c': x[0]}, mask=[True, False, True]),
            'environment 2: .*num_keep_alive_refs is 3',
        ),
        (
            lambda w, x: w.create_item('nope', 1.0, {'c': x[-1]}, mask=[True, False, True]),
            'nope',
        ),
    ],
)
def test_items_that_one_environment_refuses_are_made_in_none(call, match, transport, serve):
    client = serve(
        queue('t'), queue('s', signature={'c': tf.TensorSpec([2], tf.int64)})
    )  # fmt: skip
    writer = make(client, X, 3)
    for t in range(3):
        writer.append({'x': step(t)['x']})
    writer.append({'x': step(3)['x']}, mask=[False, False, True])
    writer.end_episode(mask=[False, True, False])
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        call(writer, writer.history['x'])
    writer.flush()
    assert size(client) == size(client, 's') == 0
    assert writer.pending_items == 0
    assert writer.episode_steps.numpy().tolist() == [3, 0, 4]


@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (
            lambda w: w.append({'x': np.array([7, 8, 9])}),
            "environment 1: column 'x' is set already",
        ),
        (
            lambda w: w.append_batch({'x': np.zeros([N, 2], int)}),
            'environment 1: append_batch: a partial step is open',
        ),
    ],
)
def test_steps_that_one_environment_refuses_are_appended_to_none(call, match, serve):
    writer = make(serve())
    fill(writer)
    writer.append({'x': np.array([0, 500, 0])}, mask=[False, True, False], partial_step=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        call(writer)
    assert writer.episode_steps.numpy().tolist() == [3] * N
    writer.append({'y': np.ones([N, 2])})
    assert writer.history['x'][3:].read(1).numpy().tolist() == [500]
    with pytest.raises(tf.errors.InvalidArgumentError, match='None data references'):
        writer.history['x'][3].read(0)


def test_a_shape_that_one_environment_refuses_is_appended_to_none(serve):
    writer = make(serve(), {'x': tf.TensorSpec([None], tf.int64)})
    writer.append({'x': np.zeros([N, 2], int)}, mask=[False, False, True])
    with pytest.raises(tf.errors.InvalidArgumentError, match="environment 2: .*'x'"):
        writer.append({'x': np.zeros([N, 3], int)})
    assert writer.episode_steps.numpy().tolist() == [0, 0, 1]


def test_what_the_server_refuses_is_told_once_and_appends_nothing(transport, serve):
    client = serve()
    writer = make(client, validate_items=False)
    fill(writer, 1)
    writer.create_item('nope', 1.0, [writer.history['x'][-1]], mask=[False, True, False])
    eventually(lambda: writer.pending_items == 0)
    with pytest.raises(tf.errors.OpError, match='nope'):
        writer.append(step(1))
    assert writer.episode_steps.numpy().tolist() == [1] * N
    writer.append(step(1))
    writer.create_item('t', 1.0, [writer.history['x'][:]])
    writer.flush()
    assert [item[0].tolist() for item in stored(client)] == [[0, 1], [100, 101], [200, 201]]


@pytest.mark.parametrize(
    ('value', 'match'),
    [
        (np.zeros([4, 2]), r"'y': got shape \(4, 2\), expected \(3, 2\)"),
        (np.zeros([2]), r"'y': got shape \(2,\), expected \(3, 2\)"),
        (tf.zeros([4, 2]), r"'y': got shape \(4, 2\), expected \(3, \.\.\.\)"),
        (tf.zeros([]), r"'y': got shape \(\), expected \(3, \.\.\.\)"),
        (tf.zeros([4, 2], tf.float16), r"'y': got shape \(4, 2\), expected \(3, 2\)"),
    ],
)
def test_a_wrong_number_of_environments_is_refused_with_path_and_shapes(value, match, serve):
    writer = make(serve())
    with pytest.raises(ValueError, match=match):
        writer.append({'x': np.zeros(N, int), 'y': value})
    with pytest.raises(ValueError, match=r"'y': got shape \(4, 5, 2\), expected \(3, None, 2\)"):
        writer.append_batch({'y': np.zeros([4, 5, 2])})
    assert writer.episode_steps.numpy().tolist() == [0] * N


def test_a_number_of_environments_known_only_at_run_time_is_refused(serve):
    writer = make(serve())

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64)])
    def append(x):
        writer.append({'x': x})

    match = r"column 'x': got int64 of shape \[4\], expected \[3, \.\.\.\] cells of .*int64"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        append(tf.zeros([4], tf.int64))
    append(tf.zeros([3], tf.int64))
    assert writer.episode_steps.numpy().tolist() == [1] * N


@pytest.mark.parametrize(
    ('call', 'error', 'match'),
    [
        (
            lambda w: w.append({'x': [1, 2, 3]}),
            ValueError,
            r"'x\[0\]' is not in the step_spec.*'x' must be an array or a tensor, not a list",
        ),
        (lambda w: w.append(step(0), mask=[True]), ValueError, r'mask: got shape \(1,\), expec'),
        (lambda w: w.append(step(0), mask=True), ValueError, r'mask: got shape \(\), expected'),
        (lambda w: w.append(step(0), mask=[1, 0, 1]), TypeError, 'mask must be of bools, got int'),
        (lambda w: w.end_episode(mask=tf.zeros([N])), TypeError, 'mask must be of bools, got flo'),
        (
            lambda w: w.create_item('t', [1.0], [w.history['x'][-1]]),
            ValueError,
            r'priority: got shape \(1,\), expected \(\) or \(3,\)',
        ),
        (
            lambda w: w.create_item('t', ['a'] * N, [w.history['x'][-1]]),
            TypeError,
            'priority must be of numbers',
        ),
    ],
)
def test_bad_arguments_are_refused_before_any_op(call, error, match, serve):
    writer = make(serve())
    with pytest.raises(error, match=match):
        call(writer)
    assert writer.episode_steps.numpy().tolist() == [0] * N


@pytest.mark.parametrize(
    ('num_envs', 'error'), [(0, ValueError), (2**16 + 1, ValueError), (1.5, TypeError)]
)
def test_a_bad_number_of_environments_is_refused(num_envs, error, serve):
    with pytest.raises(error, match='num_envs must be'):
        reverb_tf.TFTrajectoryWriter(serve(), X, 1, num_envs=num_envs)


def test_a_writer_of_one_environment_takes_no_mask(serve):
    writer = reverb_tf.TFTrajectoryWriter(serve(), X, 1)
    with pytest.raises(ValueError, match='mask is for writers of several environments'):
        writer.append({'x': 1}, mask=[True])
    assert writer.num_envs is None


def test_writers_of_a_name_have_the_same_environments(serve):
    client = serve()
    one = make(client, shared_name='one')
    other = make(client, shared_name='one')
    one.append(step(0))
    assert other.episode_steps.numpy().tolist() == [1] * N
    with pytest.raises(tf.errors.InvalidArgumentError, match="'one' is of a writer to .* attrs"):
        reverb_tf.TFTrajectoryWriter(client, XY, 10, shared_name='one', num_envs=4)


# ---- The ops themselves ----------------------------------------------------------


def append(ops, h, data, mask=(), num_envs=N):
    return ops.reverb_tf_trajectory_writer_append(
        h, data, list(mask), columns=[0], num_envs=num_envs
    )


def item(ops, h, priority=1.0, mask=(), num_envs=N):
    return ops.reverb_tf_trajectory_writer_create_item(
        h, 't', tf.cast(priority, tf.float64), [-1], [0], [1], [], list(mask),
        sources=[0], squeeze=[True], paths=['x'], has_start=[True], has_stop=[False],
        num_envs=num_envs,
    )  # fmt: skip


def xs(*shape):
    return tf.zeros(shape, tf.int64)


def flags(*shape):
    return tf.ones(shape, tf.bool)


@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (
            lambda o, h: append(o, h, [xs(N)], num_envs=4),
            "num_envs: got 4, expected the handle's, 3",
        ),
        (
            lambda o, h: append(o, h, [xs(N)], num_envs=0),
            "num_envs: got 0, expected the handle's, 3",
        ),
        (
            lambda o, h: append(o, h, [xs(N)], [flags(N), flags(N)]),
            'mask: got 2 tensors, expected at most 1',
        ),
        (lambda o, h: append(o, h, [xs(N)], [flags(2)]), r'mask: got shape \[2\], expected \[3\]'),
        (lambda o, h: append(o, h, [xs(2)]), r"'x': got int64 of shape \[2\], expected \[3, "),
        (lambda o, h: append(o, h, [xs()]), r"'x': got int64 of shape \[\], expected \[3, "),
        (lambda o, h: item(o, h, [1.0, 2.0]), r'priority: got shape \[2\], expected \[\] or \[3'),
        (lambda o, h: item(o, h, mask=[flags()]), r'mask: got shape \[\], expected \[3\]'),
    ],
)
def test_ops_check_what_the_graph_could_not(call, match, serve):
    writer = make(serve())
    fill(writer)
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        call(load.ops(), writer.resource_handle)
    assert writer.episode_steps.numpy().tolist() == [3] * N


def placeholder(dtype, shape):
    return tf.compat.v1.placeholder(dtype, shape)


@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (lambda o, h: append(o, h, [xs(2)]), 'data: .*must be 3 but is 2'),
        (lambda o, h: append(o, h, [xs()]), 'data: .*at least rank 1'),
        (lambda o, h: append(o, h, [xs(N)], [flags(2)]), 'mask: .*must be 3 but is 2'),
        (lambda o, h: append(o, h, [xs(N)], [flags()]), 'mask: .*rank 1'),
        (lambda o, h: append(o, h, [xs(N)], [flags(N), flags(N)]), 'mask: got 2 tensors'),
        (
            lambda o, h: append(o, h, [xs(N)], [flags(N)], num_envs=0),
            'mask: got 1 tensors, expected none',
        ),
        (lambda o, h: item(o, h, [1.0, 2.0]), 'priority: .*must be 3 but is 2'),
        (lambda o, h: item(o, h, [[1.0]]), 'priority: .*rank 1'),
        (lambda o, h: item(o, h, [1.0], num_envs=0), 'priority: .*rank 0'),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_append_batch(h, [xs(N)], [], num_envs=N),
            'data: .*at least rank 2',
        ),
        (
            lambda o, h: o.reverb_tf_trajectory_writer_end_episode(h, True, [flags(1)], num_envs=N),
            'mask: .*must be 3 but is 1',
        ),
    ],
)
def test_wrong_shapes_are_refused_when_the_graph_is_built(call, match):
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match=match):
            call(load.ops(), placeholder(tf.resource, []))


def test_numbers_are_of_all_environments_in_the_static_shape():
    with tf.Graph().as_default():
        ops, h = load.ops(), placeholder(tf.resource, None)
        x = placeholder(tf.int64, None)
        outputs = [
            append(ops, h, [x], [placeholder(tf.bool, None)]),
            ops.reverb_tf_trajectory_writer_append_batch(h, [x], [], num_envs=N),
            item(ops, h, placeholder(tf.float64, None)),
            ops.reverb_tf_trajectory_writer_episode_steps(h, num_envs=N),
        ]
        assert [o.shape.as_list() for o in outputs] == [[N]] * 4
        assert [o.dtype for o in outputs] == [tf.int64, tf.int64, tf.uint64, tf.int64]
        assert ops.reverb_tf_trajectory_writer_pending(h).shape.as_list() == []
        assert ops.reverb_tf_trajectory_writer_close(h).shape.as_list() == []
