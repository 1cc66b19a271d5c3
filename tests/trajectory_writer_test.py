"""TrajectoryWriter: appending, history, items, refusals, over both roads."""

import threading

import numpy as np
import pytest

import reverb_tf
from reverb_tf import errors
from tests import testing_util


@pytest.fixture(params=['in_process', 'grpc'])
def client(request):
    tables = [
        testing_util.uniform_table('t', max_size=10_000),
        reverb_tf.Table.queue('q', 10_000),
        testing_util.uniform_table(
            'signed',
            signature={
                'obs': np.zeros((3,), np.float32),
                'act': np.zeros((), np.int32),
            },
        ),
        reverb_tf.Table.queue('small', 1),
    ]
    with reverb_tf.Server(tables) as server:
        yield reverb_tf.Client(
            server.address, timeout=20, in_process=request.param == 'in_process'
        )


def data_of(client, table='q'):
    return next(client.sample(table, 1, emit_timesteps=False)).data


def test_history_indexes_like_a_list(client):
    writer = client.trajectory_writer(10)
    for i in range(5):
        writer.append({'x': i})
    history = writer.history['x']
    expected = list(range(5))
    for index in (0, -1, np.int64(2), slice(None), slice(-3, None), slice(4, None, -2), slice(9, 20)):
        got = history[index]
        want = expected[index]
        if isinstance(index, slice) and not want:
            assert len(got) == 0
        else:
            np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(history[(0, 2)].numpy(), [0, 2])
    np.testing.assert_array_equal(history[np.array([3, 3])].numpy(), [3, 3])
    assert len(history) == 5
    for bad in (5, -6, [0, 7]):
        with pytest.raises(IndexError):
            history[bad]
    for bad in ('x', 1.5, None):
        with pytest.raises(TypeError):
            history[bad]
    writer.close()


def test_expired_cells_are_told(client):
    writer = client.trajectory_writer(1)
    writer.append(1)
    writer.append(2)
    with pytest.raises(ValueError, match='num_keep_alive_refs=1.*oldest usable index is 1'):
        writer.history[:]
    assert writer.history.oldest_index == 1
    writer.close()


def test_holes_cannot_be_in_an_item(client):
    writer = client.trajectory_writer(5)
    writer.append({'x': 1, 'y': 1})
    writer.append({'x': 2})
    with pytest.raises(ValueError, match='cannot contain any None'):
        writer.history['y'][:]
    writer.close()


def test_partial_steps_make_one_step(client):
    writer = client.trajectory_writer(5)
    writer.append({'x': 1}, partial_step=True)
    assert writer.step_is_open
    writer.append({'y': 2})
    assert writer.episode_steps == 1
    writer.create_item('q', 1.0, {'x': writer.history['x'][:], 'y': writer.history['y'][:]})
    writer.flush()
    assert [list(c) for c in data_of(client)] == [[1], [2]]
    writer.close()


def test_strided_reversed_and_repeated_cells_come_back(client):
    writer = client.trajectory_writer(10)
    for i in range(10):
        writer.append({'x': np.full((2,), i, np.int16)})
    for index in (slice(None, None, 3), slice(None, None, -1), [1, 1, 7]):
        writer.create_item('q', 1.0, {'x': writer.history['x'][index]})
        writer.flush()
        want = np.arange(10, dtype=np.int16)[index]
        np.testing.assert_array_equal(data_of(client)[0], np.stack([want, want], 1))
    writer.close()


def test_items_may_span_episodes(client):
    writer = client.trajectory_writer(10)
    writer.append(1)
    writer.end_episode(clear_buffers=False)
    writer.append(2)
    writer.create_item('q', 1.0, writer.history[:])
    writer.end_episode()
    assert writer.episode_steps == 0
    assert list(data_of(client)[0]) == [1, 2]
    writer.close()


def test_append_batch_equals_appends(client):
    writer = client.trajectory_writer(10)
    writer.append_batch({'x': np.arange(4), 's': np.array(['a', 'bb', '', 'd'])})
    writer.create_item('q', 1.0, {'x': writer.history['x'][1:], 's': writer.history['s'][1:]})
    writer.flush()
    strings, numbers = data_of(client)
    assert list(strings) == [b'bb', b'', b'd']
    assert list(numbers) == [1, 2, 3]
    writer.close()


@pytest.mark.parametrize(
    'value',
    [
        np.float16(1.5),
        np.array([[1, 2], [3, 4]], np.uint64) + 2**63,
        np.array([1 + 2j], np.complex64),
        np.array([True, False]),
        np.zeros((0, 3), np.int8),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::2],
        np.array([1.5, -0.0, np.nan], '>f8'),
        np.array(b'a\0b', object),
        'unicode \u00e9',
        2**64 - 1,
    ],
    ids=str,
)
def test_values_round_trip(client, value):
    client.insert(value, {'q': 1.0})
    (got,) = data_of(client)
    want = np.asarray(value.encode() if isinstance(value, str) else value)
    assert got.shape == (1, *want.shape)
    if got.dtype == object:
        assert got.item() == want.item()
    else:
        assert got.dtype == want.dtype.newbyteorder('=')
        assert got[0].tobytes() == np.ascontiguousarray(want.astype(got.dtype)).tobytes()


@pytest.mark.parametrize('value', [np.datetime64('2020'), object(), {1, 2}])
def test_values_that_cannot_be_stored_are_refused(client, value):
    writer = client.trajectory_writer(1)
    with pytest.raises(TypeError, match='x'):
        writer.append({'x': value})
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
        writer.create_item(
            'signed', 1.0, {k: history[k][-1] for k in ('obs', 'act', 'z')}
        )
    with pytest.raises(ValueError, match='missing: act'):
        writer.create_item('signed', 1.0, {'obs': history['obs'][-1]})
    with pytest.raises(ValueError, match='obs.*float64.*float32'):
        writer.create_item('signed', 1.0, {'obs': history['obs'][-1], 'act': history['act'][-1]})
    writer.close()


def test_step_spec_casts(client):
    spec = {'obs': np.zeros((3,), np.float32), 'act': np.zeros((), np.int32)}
    writer = client.trajectory_writer(1, step_spec=spec)
    writer.append({'obs': np.zeros(3), 'act': 1})
    history = writer.history
    writer.create_item('signed', 1.0, {'obs': history['obs'][-1], 'act': history['act'][-1]})
    writer.flush()
    assert data_of(client, 'signed')['obs'].dtype == np.float32
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
    assert data_of(client)[0] == 1.0
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


def test_writing_from_another_thread_loses_nothing(client):
    writer = client.trajectory_writer(64)
    n = 200

    def write(thread):
        for i in range(n):
            writer.append({f'x{thread}': i}, partial_step=True)
            writer.create_item('t', 1.0, writer.history[f'x{thread}'][-1])
            writer.append({})

    threads = [threading.Thread(target=write, args=(i,)) for i in range(1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush()
    assert client.server_info()['t'].current_size == n * len(threads)
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
