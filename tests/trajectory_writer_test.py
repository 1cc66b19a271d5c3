"""TrajectoryWriter: appending, items, refusals, life, over both roads."""

import collections
import dataclasses
import threading

import numpy as np
import pytest

import reverb_tf
from reverb_tf import errors
from tests import testing_util


def test_partial_steps_make_one_step(client):
    writer = client.trajectory_writer(5)
    writer.append({'x': 1}, partial_step=True)
    assert writer.step_is_open
    writer.append({'y': 2})
    assert writer.episode_steps == 1
    writer.create_item('q', 1.0, {'x': writer.history['x'][:], 'y': writer.history['y'][:]})
    writer.flush()
    assert [list(c) for c in testing_util.data_of(client)] == [[1], [2]]
    writer.close()


def test_items_may_span_episodes(client):
    writer = client.trajectory_writer(10)
    writer.append(1)
    writer.end_episode(clear_buffers=False)
    writer.append(2)
    writer.create_item('q', 1.0, writer.history[:])
    writer.end_episode()
    assert writer.episode_steps == 0
    assert list(testing_util.data_of(client)[0]) == [1, 2]
    writer.close()


def test_append_batch_equals_appends(client):
    writer = client.trajectory_writer(10)
    writer.append_batch({'x': np.arange(4), 's': np.array(['a', 'bb', '', 'd'])})
    writer.create_item('q', 1.0, {'x': writer.history['x'][1:], 's': writer.history['s'][1:]})
    writer.flush()
    strings, numbers = testing_util.data_of(client)
    assert list(strings) == [b'bb', b'', b'd']
    assert list(numbers) == [1, 2, 3]
    writer.close()


def test_changed_dtype_or_shape_is_refused_and_changes_nothing(client):
    writer = client.trajectory_writer(5)
    writer.append({'x': np.zeros(2, np.float32)})
    for bad in (np.zeros(3, np.float32), np.zeros(2, np.float64), 1):
        with pytest.raises(ValueError, match='x'):
            writer.append({'x': bad})
    assert writer.episode_steps == 1
    writer.close()


def test_signature_mismatch_names_paths(client):
    writer = client.trajectory_writer(1)
    writer.append({'obs': np.zeros(3), 'act': 1, 'z': 0})
    history = writer.history
    with pytest.raises(ValueError, match='extra: z'):
        writer.create_item('signed', 1.0, {k: history[k][-1] for k in ('obs', 'act', 'z')})
    with pytest.raises(ValueError, match='missing: act'):
        writer.create_item('signed', 1.0, {'obs': history['obs'][-1]})
    with pytest.raises(ValueError, match='obs.*float64.*float32'):
        writer.create_item('signed', 1.0, {'obs': history['obs'][-1], 'act': history['act'][-1]})
    writer.close()


def test_server_refusal_is_raised_once_and_the_writer_goes_on(client):
    writer = client.trajectory_writer(1, validate_items=False)
    writer.append(1.0)
    writer.create_item('nope', 1.0, writer.history[-1])
    with pytest.raises(errors.ReverbError, match='nope'):
        writer.flush()
    assert writer.rejected_items == 1
    writer.create_item('q', 1.0, writer.history[-1])
    writer.flush()
    assert testing_util.data_of(client)[0] == 1.0
    writer.close()


def test_blocked_table_does_not_hold_back_others(client):
    writer = client.trajectory_writer(1)
    writer.append(1)
    for _ in range(3):
        writer.create_item('small', 1.0, writer.history[-1])
    writer.create_item('t', 1.0, writer.history[-1])
    testing_util.eventually(lambda: client.server_info()['t'].current_size == 1)
    assert writer.pending_items == 2
    with pytest.raises(errors.DeadlineExceededError, match='small'):
        writer.flush(timeout=0.2)
    writer.close(timeout=0)


def test_close_flushes(client):
    writer = client.trajectory_writer(1)
    writer.append(1)
    writer.create_item('t', 1.0, writer.history[-1])
    assert writer.close() == 0
    assert client.server_info()['t'].current_size == 1
    with pytest.raises(RuntimeError):
        writer.append(1)


def test_four_threads_that_share_a_writer_lose_nothing(client):
    n = 200
    writer = client.trajectory_writer(4 * n)

    def write(thread):
        for i in range(n):
            # The string is converted by Python code, in whose midst threads change.
            writer.append({'x': thread * n + i, 's': f'{thread * n + i}', f'own{thread}': i})
            writer.create_item('t', 1.0, {k: writer.history[k][-1] for k in 'xs'})

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush()
    assert client.server_info()['t'].current_size == 4 * n
    numbers = writer.history['x'][:].numpy()
    assert sorted(numbers) == list(range(4 * n))
    assert [int(s) for s in writer.history['s'][:].numpy()] == list(numbers)
    writer.close()


def test_items_with_shared_steps_store_them_once(client):
    frame = np.zeros((100, 100), np.float32)
    writer = client.trajectory_writer(4)
    writer.configure('', codec='none')
    for i in range(40):
        writer.append(frame)
        if i >= 3:
            writer.create_item('t', 1.0, writer.history[-4:])
    writer.flush()
    info = client.server_info()['t']
    assert info.current_size == 37
    assert info.bytes_stored < 45 * frame.nbytes
    writer.close()


def test_writer_survives_a_restart_on_the_same_port():
    tables = lambda: [testing_util.uniform_table()]  # noqa: E731
    server = reverb_tf.Server(tables())
    client = reverb_tf.Client(server.address, in_process=False, timeout=20)
    writer = client.trajectory_writer(1)
    writer.append(1)
    writer.create_item('t', 1.0, writer.history[-1])
    writer.flush()
    port = server.port
    server.stop()
    writer.append(2)
    writer.create_item('t', 1.0, writer.history[-1])
    with reverb_tf.Server(tables(), port=port) as successor:
        writer.flush()
        assert len(successor.tables['t']) == 1
        writer.close()


def test_a_refused_step_leaves_the_structure_as_it_was(client):
    writer = client.trajectory_writer(5)
    writer.append({'x': 1})
    for bad in ({'x': 'a', 'new': {'er': 2}}, {'new': 1, 'z': {1}}, {'new': [2], 'x': [1]}, [1]):
        with pytest.raises((ValueError, TypeError)):
            writer.append(bad)
        with pytest.raises((ValueError, TypeError)):
            writer.append_batch(bad)
    assert list(writer.history) == ['x']
    writer.append({'x': 2, 'other': 2.5})  # takes the places that were given back
    assert list(writer.history) == ['x', 'other']
    assert writer.history['other'][-1].numpy() == 2.5
    assert writer.history['x'][:].numpy().tolist() == [1, 2]
    writer.close()


def test_structures_without_end_are_refused(client):
    writer = client.trajectory_writer(1)
    cycle = {}
    cycle['d'] = cycle
    deep = 1
    for _ in range(5000):
        deep = [deep]
    for bad in (cycle, deep):
        with pytest.raises(ValueError, match='nested deeper than 64'):
            writer.append(bad)
        with pytest.raises(ValueError, match='nested deeper than 64'):
            client.insert(bad, {'t': 1.0})
    while isinstance(deep, list):  # by hand: the interpreter would recurse
        deep = deep[0]
    writer.append({'x': 1})
    writer.close()


@pytest.mark.parametrize(
    'step, text',
    [
        ({1.5: 1}, 'str or int, got float'),
        ({'a': {b'b': 1}}, "got bytes at 'a'"),
        ({'a': {1: 1, 'b': 2}}, "dict keys of 'a' must be all str or all int"),
    ],
)
def test_keys_that_make_no_path_are_refused(client, step, text):
    writer = client.trajectory_writer(1)
    with pytest.raises(TypeError, match=text):
        writer.append(step)
    writer.close()


def test_a_value_that_appends_to_its_own_writer_is_refused(client):
    writer = client.trajectory_writer(1)

    class Array:
        def __array__(self, dtype=None, copy=None):
            writer.append({'x': 1})
            return np.zeros(1)

    with pytest.raises(RuntimeError, match='calls its own writer'):
        writer.append({'x': Array()})
    writer.append({'x': 1})
    assert writer.episode_steps == 1
    writer.close()


def test_containers_come_back_as_they_were_appended(client):
    pair = collections.namedtuple('pair', 'p q')

    @dataclasses.dataclass
    class Step:
        u: int
        v: object

    writer = client.trajectory_writer(2)
    writer.append(Step(1, pair(2, [3, (4.0, None)])))
    history = writer.history
    assert list(history) == ['u', 'v']
    assert type(history['v']) is pair
    assert isinstance(history['v'].q, list)
    assert history['v'].q[1][1] is None
    assert history['v'].q[1][0].path == 'v/q[1][0]'
    with pytest.raises(ValueError, match="'v/q' is a tuple, was a list"):
        writer.append(Step(1, pair(2, (3, (4.0,)))))
    writer.append({'u': 5, 'v': pair(2, [3, (4.0, 1)])})  # a dict of the same names
    assert writer.history['u'][:].numpy().tolist() == [1, 5]
    assert writer.history['v'].q[1][1][-1].numpy() == 1
    writer.close()


@pytest.mark.parametrize(
    'batch, text',
    [
        ({'x': np.arange(3), 'y': np.arange(2)}, "'y' has 2 steps, expected 3 as column 'x'"),
        ({'x': 1}, "'x'"),
        ({'x': np.zeros(0, np.int64)}, 'at least 1'),
        ({'x': None}, 'no column'),
        ({}, 'no column'),
        (None, 'no column'),
    ],
)
def test_batches_of_no_length_are_refused(client, batch, text):
    writer = client.trajectory_writer(5)
    writer.append({'x': 0})
    with pytest.raises(ValueError) as raised:
        writer.append_batch(batch)
    assert text in str(raised.value)
    assert writer.episode_steps == 1
    writer.close()


def test_open_step_takes_each_leaf_once_and_no_batch(client):
    writer = client.trajectory_writer(5)
    writer.append({'x': 1}, partial_step=True)
    assert len(writer.history['x']) == 1
    assert writer.episode_steps == 0
    with pytest.raises(ValueError, match="'x' is set already"):
        writer.append({'x': 1}, partial_step=True)
    with pytest.raises(ValueError, match='partial step is open'):
        writer.append_batch({'x': np.arange(2)})
    writer.append({})
    assert not writer.step_is_open
    writer.append_batch({'x': np.arange(2), 'y': np.arange(2)})
    assert writer.episode_steps == 3
    with pytest.raises(ValueError, match='step 0'):
        writer.history['y'][0]
    writer.append({'y': 1}, partial_step=True)
    writer.end_episode(clear_buffers=False)
    assert not writer.step_is_open
    assert writer.episode_steps == 0
    assert len(writer.history['x']) == 4
    writer.close()


@pytest.mark.parametrize(
    'kwargs, error, text',
    [
        ({'table': 3}, TypeError, 'table must be a str'),
        ({'table': ''}, ValueError, 'table'),
        ({'table': 'nope'}, ValueError, 'nope'),
        ({'priority': '1'}, TypeError, 'priority must be a number'),
        ({'priority': None}, TypeError, 'priority'),
        ({'priority': np.ones(1)}, TypeError, 'of shape (1,)'),
        ({'priority': float('nan')}, ValueError, 'NaN'),
        ({'trajectory': None}, ValueError, 'no column'),
        ({'trajectory': {}}, ValueError, 'no column'),
        ({'trajectory': {'x': 3}}, TypeError, "leaf 'x' must be a TrajectoryColumn"),
        ({'timeout': 'x'}, TypeError, 'timeout'),
        ({'timeout': -1}, ValueError, 'timeout'),
    ],
)
def test_wrong_argument_of_an_item_is_named(client, kwargs, error, text):
    writer = client.trajectory_writer(3)
    writer.append({'x': 1})
    item = {'table': 't', 'priority': 1.0, 'trajectory': {'x': writer.history['x'][:]}}
    with pytest.raises(error) as raised:
        writer.create_item(**{**item, **kwargs})
    assert text in str(raised.value)
    for bad in (writer.history['x'], writer.history['x'][1:], writer.history):
        with pytest.raises((TypeError, ValueError)):
            writer.create_item('t', 1.0, {'x': bad})
    assert writer.pending_items == 0
    assert writer.close() == 0


@pytest.mark.parametrize(
    'kwargs, error, text',
    [
        ({'block_until_num_items': 'x'}, TypeError, 'block_until_num_items'),
        ({'block_until_num_items': 0.5}, TypeError, 'block_until_num_items'),
        ({'block_until_num_items': -1}, ValueError, 'block_until_num_items'),
        ({'timeout_ms': '3'}, TypeError, 'timeout_ms'),
    ],
)
def test_wrong_argument_of_a_flush_is_named(client, kwargs, error, text):
    writer = client.trajectory_writer(3)
    with pytest.raises(error, match=text):
        writer.flush(**kwargs)
    writer.close()


def test_a_close_that_is_refused_does_not_close(client):
    writer = client.trajectory_writer(1)
    writer.append(1)
    writer.create_item('t', 1.0, writer.history[-1])
    for bad in ('x', -1, float('nan')):
        with pytest.raises((TypeError, ValueError)):
            writer.close(timeout=bad)
    writer.append(2)
    assert writer.close(timeout=20) == 0
    assert writer.close() == 0


@pytest.mark.parametrize(
    'columns, words',
    [
        ({'obs': np.zeros(3), 'act': np.int32(1)}, ['obs', 'float64', 'float32', 'hint']),
        ({'obs': np.zeros(3, np.float32), 'act': 1}, ['act', 'int64', 'int32', 'hint']),
        ({'obs': np.zeros(4, np.float32), 'act': np.int32(1)}, ['obs', '[4]', '[3]']),
        ({'obs': np.zeros(3, np.float32)}, ['missing: act']),
        ({'obs': np.zeros(3, np.float32), 'act': np.int32(1), 'z': 1}, ['extra: z']),
        ({'obs': np.zeros(3, np.float32), 'akt': np.int32(1)}, ['missing: act', 'extra: akt']),
    ],
)
def test_signature_mismatch_is_told_by_path_at_create_item(client, columns, words):
    writer = client.trajectory_writer(1)
    writer.append(columns)
    with pytest.raises(ValueError) as raised:
        writer.create_item('signed', 1.0, {k: writer.history[k][-1] for k in columns})
    for word in ['signed', *words]:
        assert word in str(raised.value)
    assert writer.pending_items == 0
    writer.close()


@pytest.mark.parametrize(
    'columns, words',
    [
        ({'obs': np.zeros(3), 'act': np.int32(1)}, ['obs', 'float64', 'float32', 'hint']),
        ({'obs': np.zeros(4, np.float32), 'act': np.int32(1)}, ['obs', '[4]', '[3]']),
        ({'obs': np.zeros(3, np.float32)}, ['1 columns', '2: act, obs']),  # no names there
    ],
)
def test_signature_mismatch_is_told_by_the_server_too(client, columns, words):
    writer = client.trajectory_writer(1, validate_items=False)
    writer.append(columns)
    writer.create_item('signed', 1.0, {k: writer.history[k][-1] for k in columns})
    with pytest.raises(ValueError) as raised:
        writer.flush(timeout=20)
    for word in words:
        assert word in str(raised.value)
    assert client.server_info()['signed'].current_size == 0
    writer.close()


def test_dropping_a_writer_flushes(client):
    writer = client.trajectory_writer(1)
    writer.append(1)
    writer.create_item('t', 1.0, writer.history[-1])
    del writer
    assert client.server_info()['t'].current_size == 1


def test_close_tells_what_it_dropped(client, caplog):
    writer = client.trajectory_writer(1)
    writer.append(1)
    for _ in range(4):
        writer.create_item('small', 1.0, writer.history[-1])
    assert writer.pending_bytes > 0
    assert writer.close(timeout=0) >= 3
    testing_util.eventually(lambda: "table 'small'" in caplog.text)
    assert 'dropped' in caplog.text


def test_leaving_by_an_exception_bounds_the_flush(client):
    with pytest.raises(KeyError):
        with client.trajectory_writer(1) as writer:
            writer.append(1)
            for _ in range(3):
                writer.create_item('small', 1.0, writer.history[-1])
            raise KeyError('mine')
    assert writer.pending_items == 2
    writer.close(timeout=0)


def test_create_item_waits_where_it_is_bounded(client):
    writer = client.trajectory_writer(1, max_in_flight_items=2)
    writer.append(1)
    for _ in range(3):
        writer.create_item('small', 1.0, writer.history[-1], timeout=20)
    with pytest.raises(errors.DeadlineExceededError, match='small'):
        writer.create_item('small', 1.0, writer.history[-1], timeout=0.2)
    assert writer.pending_items == 2
    writer.close(timeout=0)


def test_the_writers_timeout_bounds_create_item(client):
    writer = client.trajectory_writer(1, max_in_flight_items=1, timeout=0.3)
    writer.append(1)
    with pytest.raises(errors.DeadlineExceededError):
        for _ in range(3):
            writer.create_item('small', 1.0, writer.history[-1])
    writer.close(timeout=0)


def test_flush_may_leave_the_newest(client):
    writer = client.trajectory_writer(1)
    writer.append(1)
    for _ in range(3):
        writer.create_item('small', 1.0, writer.history[-1])
    writer.flush(2, timeout=20)
    with pytest.raises(errors.DeadlineExceededError):
        writer.flush(1, timeout_ms=100)
    writer.close(timeout=0)
