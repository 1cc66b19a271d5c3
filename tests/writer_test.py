"""Writer: steps in, items of the newest steps out, over both roads."""

import contextlib
import os
import threading

import numpy as np
import pytest

import reverb_tf
from reverb_tf import errors
from tests import testing_util

STEP = {'obs': np.zeros((3,), np.float32), 'act': np.int32(1)}
STEP_SIGNATURE = {'obs': np.zeros((3,), np.float32), 'act': np.zeros((), np.int32)}


def signed(name, signature, **kwargs):
    return testing_util.uniform_table(name, signature=signature, **kwargs)


@pytest.fixture(params=['in_process', 'grpc'])
def client(request):
    tables = [
        testing_util.uniform_table('t', max_size=10_000),
        reverb_tf.Table.queue('q', 10_000),
        reverb_tf.Table.queue('small', 1),
        signed('step', STEP_SIGNATURE, signature_scope='step'),
        signed('trajectory', STEP_SIGNATURE, signature_scope='trajectory'),
        signed('undecided', STEP_SIGNATURE),
    ]
    with reverb_tf.Server(tables) as server:
        yield reverb_tf.Client(server.address, timeout=20, in_process=request.param == 'in_process')


def data_of(client, table='q'):
    """The columns of a table's next item."""
    return next(client.sample(table, 1, emit_timesteps=False)).data


@contextlib.contextmanager
def closing(writer):
    """Closes at the end, waiting for nothing."""
    try:
        yield writer
    finally:
        with contextlib.suppress(ValueError, errors.DeadlineExceededError):
            writer.close(timeout=0)


# ---- Making one ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        ({'max_sequence_length': 0}, 'max_sequence_length'),
        ({'max_sequence_length': -1}, 'max_sequence_length'),
        ({'max_sequence_length': 3, 'chunk_length': 0}, 'chunk_length'),
        ({'max_sequence_length': 3, 'chunk_length': 4}, 'chunk_length'),
        ({'max_sequence_length': 3, 'max_in_flight_items': 0}, 'max_in_flight_items'),
    ],
    ids=str,
)
def test_bounds_of_arguments(client, arguments, text):
    with pytest.raises(ValueError, match=text):
        client.writer(**arguments)


@pytest.mark.parametrize(
    'arguments', [('3',), (2.0,), (True,), (3, 1), (3, False, 2.0), (3, False, 2, '1')], ids=str
)
def test_kinds_of_arguments(client, arguments):
    with pytest.raises(TypeError):
        client.writer(*arguments)


def test_takes_the_arguments_in_their_known_order(client):
    with client.writer(np.int64(3), True, 2, None) as writer:
        assert isinstance(writer, reverb_tf.Writer)


# ---- Steps ---------------------------------------------------------------------------


def test_items_are_the_newest_steps(client):
    with closing(client.writer(4)) as writer:
        for i in range(6):
            writer.append({'x': i, 's': f's{i}'})
            if i >= 1:
                writer.create_item('q', min(i + 1, 4), 1.0)
        writer.flush()
    got = [data_of(client) for _ in range(5)]
    assert [list(x) for _, x in got] == [
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [2, 3, 4, 5],
    ]
    assert [list(s) for s, _ in got][-1] == [b's2', b's3', b's4', b's5']


def test_create_item_gives_the_key(client):
    with client.writer(1) as writer:
        writer.append(1)
        key = writer.create_item('q', 1, 3.5)
    info = next(client.sample('q', 1))[0].info
    assert (info.key, info.priority) == (key, 3.5)


def test_append_sequence_equals_appends(client):
    columns = {'x': np.arange(8.0).reshape(4, 2), 'n': np.arange(4), 's': np.array(list('abcd'))}
    with client.writer(4) as writer:
        writer.append_sequence(columns)
        writer.create_item('q', 4, 1.0)
    with client.writer(4) as writer:
        for i in range(4):
            writer.append({path: column[i] for path, column in columns.items()})
        writer.create_item('q', 4, 1.0)
    one, other = data_of(client), data_of(client)
    for got, want in zip(one, other, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_sequence_may_be_longer_than_what_is_kept(client):
    with client.writer(2) as writer:
        writer.append_sequence([np.arange(1000)])
        writer.create_item('q', 2, 1.0)
    assert list(data_of(client)[0]) == [998, 999]


@pytest.mark.parametrize(
    ('sequence', 'text'),
    [
        ([np.arange(4), 3], 'rank 0'),
        ([np.arange(4), np.zeros((3, 2))], '3 steps, expected 4'),
        ([np.arange(0), np.zeros((0, 2))], '0 steps, expected at least 1'),
        ([], 'no leaf'),
    ],
    ids=['scalar', 'unequal', 'empty', 'no_leaf'],
)
def test_bad_sequences_are_refused_and_change_nothing(client, sequence, text):
    with closing(client.writer(4)) as writer:
        with pytest.raises(ValueError, match=text):
            writer.append_sequence(sequence)
        writer.append({'x': 1})
        with pytest.raises(ValueError, match=r'expected 1 \.\.\. 1'):
            writer.create_item('q', 2, 1.0)


@pytest.mark.parametrize(
    ('step', 'text'),
    [
        ({'a': 1}, 'missing: b'),
        ({'a': 1, 'b': None}, 'missing: b'),
        ({}, 'no leaf'),
        (None, 'no leaf'),
        ({'a': 1, 'b': 2, 'c': 3}, 'extra: c'),
        ({'a': 1, 'b': {'c': 2}}, 'b'),
        ([1, 2], 'list'),
        (1, 'leaf'),
    ],
    ids=str,
)
def test_steps_with_other_leaves_are_refused_and_change_nothing(client, step, text):
    with closing(client.writer(4)) as writer:
        writer.append({'a': 1, 'b': 2})
        with pytest.raises(ValueError, match=text):
            writer.append(step)
        with pytest.raises(ValueError, match=r'expected 1 \.\.\. 1'):
            writer.create_item('q', 2, 1.0)
        writer.append({'b': 4, 'a': 3})
        writer.create_item('q', 2, 1.0)
        writer.flush()
    assert [list(column) for column in data_of(client)] == [[1, 3], [2, 4]]


def test_lists_and_tuples_pass_for_each_other(client):
    with client.writer(3) as writer:
        writer.append([1, 2.0])
        writer.append((3, 4.0))
        writer.append_sequence((np.array([5]), np.array([6.0])))
        writer.create_item('q', 3, 1.0)
    assert [list(column) for column in data_of(client)] == [[1, 3, 5], [2, 4, 6]]


def test_a_refused_first_step_fixes_nothing(client):
    with client.writer(3) as writer:
        with pytest.raises(TypeError, match='b'):
            writer.append({'a': 1, 'b': object()})
        writer.append([1])
        writer.create_item('q', 1, 1.0)
    assert list(data_of(client)[0]) == [1]


# ---- Items ---------------------------------------------------------------------------


@pytest.mark.parametrize('num_timesteps', [-1, 0, 3, 5])
def test_items_need_steps_that_are_kept(client, num_timesteps):
    with closing(client.writer(2)) as writer:
        for i in range(4):
            writer.append(i)
        with pytest.raises(ValueError, match='num_timesteps'):
            writer.create_item('q', num_timesteps, 1.0)


def test_no_item_without_a_step(client):
    with closing(client.writer(2)) as writer, pytest.raises(ValueError, match='num_timesteps'):
        writer.create_item('q', 1, 1.0)


@pytest.mark.parametrize('other', [2.5, np.arange(2), 'text'], ids=['dtype', 'shape', 'string'])
def test_steps_that_differ_cannot_share_an_item(client, other):
    with client.writer(4) as writer:
        writer.append({'x': 1, 'y': 0})
        writer.append({'x': other, 'y': 0})
        with pytest.raises(ValueError, match="'x'.*differ in dtype or shape"):
            writer.create_item('q', 2, 1.0)
        writer.create_item('q', 1, 1.0)
        writer.append({'x': other, 'y': 0})
        writer.create_item('q', 2, 1.0)
    assert [len(data_of(client)[0]) for _ in range(2)] == [1, 2]


def test_each_step_may_have_a_shape_of_its_own(client):
    with client.writer(1, max_in_flight_items=None) as writer:
        for i in range(300):
            writer.append({'x': np.full(i, i, np.int16)})
            writer.create_item('q', 1, 1.0)
    for i in range(300):
        np.testing.assert_array_equal(data_of(client)[0], np.full((1, i), i, np.int16))


def test_bad_priorities_and_tables_are_refused_at_once(client):
    with client.writer(1) as writer:
        writer.append(1)
        with pytest.raises(ValueError, match='NaN'):
            writer.create_item('q', 1, float('nan'))
        with pytest.raises(ValueError, match='nope'):
            writer.create_item('nope', 1, 1.0)
        with pytest.raises(TypeError, match='priority'):
            writer.create_item('q', 1, '1')
        with pytest.raises(TypeError, match='num_timesteps'):
            writer.create_item('q', 1.0, 1.0)
        assert writer.pending_items == 0


def test_delta_encoded_data_round_trips(client):
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (20, 32, 32), np.uint8)
    frames[5:15] = frames[5]
    wide = rng.integers(-(2**63), 2**63 - 1, (20, 16), np.int64)
    with client.writer(20, delta_encoded=True, chunk_length=7) as writer:
        for i in range(20):
            writer.append({'f': frames[i], 'r': np.float32(i), 'w': wide[i]})
        writer.create_item('q', 20, 1.0)
        writer.create_item('q', 3, 1.0)
    for n in (20, 3):
        f, r, w = data_of(client)
        np.testing.assert_array_equal(f, frames[-n:])
        np.testing.assert_array_equal(r, np.arange(20, dtype=np.float32)[-n:])
        np.testing.assert_array_equal(w, wide[-n:])


def test_delta_encoding_saves_bytes(client):
    stored = {}
    ramp = np.arange(64 * 64, dtype=np.int32).reshape(64, 64) ** 2 % 100_003
    for encoded in (False, True):
        client.reset('t')
        with client.writer(32, delta_encoded=encoded, chunk_length=32) as writer:
            for i in range(32):
                writer.append(ramp + i)
            writer.create_item('t', 32, 1.0)
        stored[encoded] = client.server_info()['t'].bytes_stored
    assert stored[True] < stored[False] / 4


def test_steps_of_several_items_are_stored_once(client):
    frame = np.random.default_rng(0).random((100, 100))
    with client.writer(4) as writer:
        for i in range(40):
            writer.append(frame + i)
            if i >= 3:
                writer.create_item('t', 4, 1.0)
    info = client.server_info()['t']
    assert (info.current_size, info.num_episodes) == (37, 1)
    assert info.bytes_stored < 45 * frame.nbytes


# ---- Signatures ----------------------------------------------------------------------


@pytest.mark.parametrize('table', ['step', 'undecided'])
def test_steps_match_a_signature_of_steps(client, table):
    with client.writer(2) as writer:
        for _ in range(2):
            writer.append(STEP)
        writer.create_item(table, 2, 1.0)
    data = data_of(client, table)
    assert (data['obs'].shape, data['act'].shape) == ((2, 3), (2,))


def test_one_step_matches_a_signature_of_trajectories_too(client):
    with client.writer(2) as writer:
        writer.append(STEP)
        writer.create_item('trajectory', 1, 1.0)
        writer.create_item('step', 1, 1.0)
        writer.create_item('undecided', 1, 1.0)
    info = client.server_info()
    assert [info[t].current_size for t in ('trajectory', 'step', 'undecided')] == [1, 1, 1]
    assert info['undecided'].signature_scope is None


def test_several_steps_do_not_match_a_signature_of_trajectories(client):
    with closing(client.writer(2)) as writer:
        for _ in range(2):
            writer.append(STEP)
        with pytest.raises(ValueError, match="table 'trajectory'"):
            writer.create_item('trajectory', 2, 1.0)


def test_several_steps_decide_the_scope(client):
    with client.writer(2) as writer:
        for _ in range(2):
            writer.append(STEP)
        writer.create_item('undecided', 2, 1.0)
    assert client.server_info()['undecided'].signature_scope == 'step'
    with client.trajectory_writer(3) as writer:
        for i in range(3):
            writer.append({'obs': np.float32(i), 'act': np.int32(i)})
        trajectory = {'obs': writer.history['obs'][:], 'act': writer.history['act'][-1]}
        with pytest.raises(ValueError, match='signature_scope='):
            writer.create_item('undecided', 1.0, trajectory)


def test_steps_with_a_leading_dimension_match_a_signature_of_trajectories():
    table = signed('t', {'x': np.zeros((5,), np.int64)}, signature_scope='trajectory')
    with reverb_tf.Server([table]) as server, server.localhost_client(20).writer(5) as writer:
        writer.append_sequence({'x': np.arange(5)})
        writer.create_item('t', 5, 1.0)


def test_what_breaks_the_signature_is_refused_with_paths(client):
    with closing(client.writer(1)) as writer:
        writer.append({'obs': np.zeros(3), 'act': np.int32(1)})
        with pytest.raises(ValueError, match='obs.*float64.*float32'):
            writer.create_item('step', 1, 1.0)
    with closing(client.writer(1)) as writer:
        writer.append({'obs': STEP['obs'], 'z': np.int32(1)})
        with pytest.raises(ValueError, match='missing: act.*extra: z'):
            writer.create_item('step', 1, 1.0)


def test_unnamed_steps_match_a_named_signature_in_order(client):
    with client.writer(1) as writer:
        writer.append([STEP['act'], STEP['obs']])
        writer.create_item('step', 1, 1.0)
    assert data_of(client, 'step')['obs'].shape == (1, 3)


# ---- Waiting, ending -----------------------------------------------------------------


def test_create_item_waits_while_too_much_is_unconfirmed(client):
    client = reverb_tf.Client(client.server_address, timeout=0.2, in_process=client._in_process)
    with closing(client.writer(1, max_in_flight_items=2)) as writer:
        writer.append(1)
        for _ in range(3):
            writer.create_item('small', 1, 1.0)
        with pytest.raises(errors.DeadlineExceededError, match='small'):
            writer.create_item('small', 1, 1.0)
        assert writer.pending_items == 2


def test_without_a_bound_create_item_never_waits(client):
    with closing(client.writer(1, max_in_flight_items=None)) as writer:
        writer.append(1)
        for _ in range(100):
            writer.create_item('small', 1, 1.0)
        testing_util.eventually(lambda: writer.pending_items == 99)


def test_other_threads_append_while_create_item_waits(client):
    with closing(client.writer(1, max_in_flight_items=1)) as writer:
        writer.append(1)
        writer.create_item('small', 1, 1.0)
        testing_util.eventually(lambda: writer.pending_items == 0)
        writer.create_item('small', 1, 1.0)
        waiting = threading.Thread(target=writer.create_item, args=('small', 1, 1.0))
        waiting.start()
        for _ in range(10):
            writer.append(2)
        assert waiting.is_alive()
        assert [int(data_of(client, 'small')[0][0]) for _ in range(3)] == [1, 1, 2]
        waiting.join()


@pytest.mark.parametrize('call', ["create_item('q', 1, 1.0)", 'flush()', 'close()'])
def test_ctrl_c_ends_a_wait(call):
    process = testing_util.start_script(
        f"""
        import os, signal, threading
        import reverb_tf
        server = reverb_tf.Server([reverb_tf.Table.queue('q', 1)])
        writer = reverb_tf.Client(server.address).writer(1, max_in_flight_items=1)
        writer.append(1)
        for _ in range(2):
            writer.create_item('q', 1, 1.0)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            writer.{call}
        except KeyboardInterrupt:
            print('interrupted', flush=True)
        os._exit(0)
        """
    )
    out, err = process.communicate(timeout=30)
    assert out == 'interrupted\n', err


def test_flush_that_times_out_says_why_and_the_work_goes_on(client):
    with closing(client.writer(1)) as writer:
        writer.append(1)
        for _ in range(2):
            writer.create_item('small', 1, 1.0)
        with pytest.raises(errors.DeadlineExceededError, match='1 items.*small'):
            writer.flush(timeout=0.2)
        for _ in range(2):
            data_of(client, 'small')
        writer.flush()
        assert writer.pending_items == 0


def test_close_confirms_everything(client):
    writer = client.writer(1)
    writer.append(1)
    for _ in range(20):
        writer.create_item('t', 1, 1.0)
    writer.close()
    assert client.server_info()['t'].current_size == 20


def test_close_that_times_out_tells_what_it_dropped(client):
    writer = client.writer(1)
    writer.append(1)
    for _ in range(3):
        writer.create_item('small', 1, 1.0)
    with pytest.raises(errors.DeadlineExceededError, match='2 items dropped.*small'):
        writer.close(timeout=0.2)
    with pytest.raises(RuntimeError):
        writer.append(1)


def test_use_after_close(client):
    writer = client.writer(1)
    writer.append(1)
    writer.close()
    for call in (
        lambda: writer.append(1),
        lambda: writer.append_sequence([1]),
        lambda: writer.create_item('q', 1, 1.0),
        writer.flush,
    ):
        with pytest.raises(RuntimeError, match='close'):
            call()
    with pytest.raises(ValueError, match='close'):
        writer.close()


def test_with_flushes_and_closes(client):
    with client.writer(1) as writer:
        writer.append(1)
        writer.create_item('t', 1, 1.0)
    assert client.server_info()['t'].current_size == 1
    with pytest.raises(RuntimeError):
        writer.append(1)


def test_with_lets_a_close_inside_be(client):
    with client.writer(1) as writer:
        writer.append(1)
        writer.create_item('t', 1, 1.0)
        writer.close()
    assert client.server_info()['t'].current_size == 1


def test_with_flushes_when_another_exception_passes_through(client):
    with pytest.raises(KeyError), client.writer(1) as writer:
        writer.append(1)
        writer.create_item('t', 1, 1.0)
        raise KeyError
    assert client.server_info()['t'].current_size == 1
    writer.close()


def test_with_does_not_wait_when_an_error_of_the_package_passes_through(client):
    with pytest.raises(errors.DeadlineExceededError, match='1 items'):
        with client.writer(1) as writer:
            writer.append(1)
            for _ in range(2):
                writer.create_item('small', 1, 1.0)
            writer.flush(timeout=0.1)
    assert writer.pending_items == 1
    with pytest.raises(errors.DeadlineExceededError):
        writer.close(timeout=0)


def test_deleting_flushes(client):
    writer = client.writer(1)
    writer.append(1)
    writer.create_item('t', 1, 1.0)
    del writer
    assert client.server_info()['t'].current_size == 1


def test_threads_sharing_a_writer_lose_nothing(client):
    writer = client.writer(1)

    def write():
        for i in range(200):
            writer.append({'x': i, 'y': np.zeros(3)})
            writer.create_item('t', 1, 1.0)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert client.server_info()['t'].current_size == 800


def test_a_forked_child_is_told():
    with reverb_tf.Server([testing_util.uniform_table()]) as server:
        writer = server.localhost_client(20).writer(1)
        writer.append(1)
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    writer.append(1)
                except RuntimeError as e:
                    status = 0 if 'before fork' in str(e) else 2
            os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        writer.close()


# ---- A server that goes away ---------------------------------------------------------


def test_survives_a_restart_on_the_same_port():
    server = reverb_tf.Server([testing_util.uniform_table()])
    client = reverb_tf.Client(server.address, in_process=False, timeout=20)
    writer = client.writer(2)
    writer.append(1)
    writer.create_item('t', 1, 1.0)
    writer.flush()
    port = server.port
    server.stop()
    writer.append(2)
    writer.create_item('t', 2, 1.0)
    with reverb_tf.Server([testing_util.uniform_table()], port=port) as successor:
        writer.close()
        assert len(successor.tables['t']) == 1
        assert list(data_of(client, 't')[0]) == [1, 2]


@pytest.mark.parametrize('in_process', [False, True])
def test_close_without_retry_fails_when_the_server_is_away(in_process):
    server = reverb_tf.Server([testing_util.uniform_table()])
    client = reverb_tf.Client(server.address, in_process=in_process)
    writer = client.writer(1)
    writer.append(1)
    server.stop()
    writer.create_item('t', 1, 1.0)
    with pytest.raises(errors.UnavailableError, match='1 items dropped'):
        writer.close(retry_on_unavailable=False)


def test_close_without_retry_is_like_any_when_the_server_is_there(client):
    writer = client.writer(1)
    writer.append(1)
    writer.create_item('t', 1, 1.0)
    writer.close(retry_on_unavailable=False)
    assert client.server_info()['t'].current_size == 1


def test_a_servers_refusal_is_raised_once_and_the_writer_goes_on():
    def tables(name):
        return [testing_util.uniform_table(name), testing_util.uniform_table('other')]

    server = reverb_tf.Server(tables('t'))
    client = reverb_tf.Client(server.address, in_process=False, timeout=20)
    writer = client.writer(1)
    writer.append(1)
    writer.create_item('t', 1, 1.0)
    writer.flush()
    port = server.port
    server.stop()
    writer.create_item('t', 1, 1.0)
    with reverb_tf.Server(tables('renamed'), port=port) as successor:
        with pytest.raises(errors.ReverbError, match="'t'"):
            writer.flush()
        writer.create_item('other', 1, 1.0)
        writer.close()
        assert len(successor.tables['other']) == 1
