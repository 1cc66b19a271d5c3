"""Servers: arguments, addresses, life, and what they tell of a wait."""

import pickle
import threading
import time

import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import errors
from tests import testing_util


def test_port_in_use_is_told():
    with reverb_tf.Server([testing_util.uniform_table()]) as server:
        with pytest.raises(errors.AddressInUseError, match=str(server.port)):
            reverb_tf.Server([testing_util.uniform_table()], port=server.port)
    with reverb_tf.Server([testing_util.uniform_table()], port=server.port):
        pass


def test_served_table_cannot_be_served_again():
    table = testing_util.uniform_table()
    with reverb_tf.Server([table]):
        with pytest.raises(ValueError, match='replace'):
            reverb_tf.Server([table])


def test_client_of_a_stopped_local_server_fails_at_once():
    server = reverb_tf.Server([testing_util.uniform_table()])
    client = reverb_tf.Client(server.address)
    server.stop()
    start = time.monotonic()
    with pytest.raises(errors.UnavailableError, match='stopped'):
        client.insert(1, {'t': 1.0})
    assert time.monotonic() - start < 5


def test_localhost_client_keeps_the_server_alive():
    client = reverb_tf.Server([testing_util.uniform_table()]).localhost_client()
    client.insert(1, {'t': 1.0}, timeout=10)
    assert client.server_info()['t'].current_size == 1


def test_stop_ends_a_waiting_sample():
    server = reverb_tf.Server([testing_util.uniform_table()])
    client = reverb_tf.Client(server.address)
    failed = []

    def wait():
        try:
            next(client.sample('t', 1, timeout=30))
        except errors.ReverbError as e:
            failed.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    testing_util.eventually(lambda: server.tables['t'].info.num_waiting_samples == 1)
    server.stop()
    thread.join(5)
    assert isinstance(failed[0], errors.UnavailableError)


def test_unix_socket(tmp_path):
    with reverb_tf.Server([testing_util.uniform_table()], host=f'unix:{tmp_path}/s') as server:
        client = reverb_tf.Client(server.address, in_process=False, timeout=20)
        client.insert('text', {'t': 1.0})
        assert next(client.sample('t', 1))[0].data[0] == b'text'


@pytest.mark.parametrize(
    'kwargs, error, text',
    [
        ({'tables': None}, TypeError, 'tables must be a sequence of Table'),
        ({'tables': 3}, TypeError, 'tables must be a sequence of Table'),
        ({'tables': 't'}, TypeError, 'tables must be a sequence of Table'),
        ({'tables': testing_util.uniform_table()}, TypeError, 'tables'),
        ({'tables': []}, ValueError, 'tables'),
        ({'tables': [3]}, TypeError, 'tables must hold Table objects'),
        ({'tables': [reverb_tf.Table]}, TypeError, 'tables must hold Table objects'),
        ({'port': '80'}, TypeError, 'port'),
        ({'port': 80.0}, TypeError, 'port'),
        ({'port': -1}, ValueError, 'port'),
        ({'port': 65536}, ValueError, 'port'),
        ({'host': 3}, TypeError, 'host'),
        ({'host': ''}, ValueError, 'host'),
        ({'checkpointer': object()}, NotImplementedError, 'checkpointer'),
    ],
)
def test_wrong_argument_of_a_server_is_named_and_frees_its_tables(kwargs, error, text):
    table = testing_util.uniform_table()
    with pytest.raises(error) as raised:
        reverb_tf.Server(**{'tables': [table], **kwargs})
    assert text in str(raised.value)
    reverb_tf.Server([table]).stop()


def test_table_names_of_a_server_are_unique():
    with pytest.raises(ValueError, match="'t' occurs twice"):
        reverb_tf.Server([testing_util.uniform_table(), testing_util.uniform_table()])


def test_a_blocked_insert_is_explained_everywhere():
    table = reverb_tf.Table(
        't',
        reverb_tf.selectors.Uniform(),
        reverb_tf.selectors.Fifo(),
        100,
        reverb_tf.rate_limiters.SampleToInsertRatio(3, 3, 3),
    )
    with reverb_tf.Server([table]) as server:
        client = server.localhost_client(timeout=20)
        writer = client.trajectory_writer(1)
        for i in range(10):
            writer.append(i)
            writer.create_item('t', 1.0, writer.history[-1])
        reason = 'insert: blocked by rate limiter: inserts 4, samples 0, diff 12 = max_diff 12'
        for call in (lambda: writer.flush(timeout=0.2), lambda: writer.end_episode(timeout_ms=200)):
            with pytest.raises(errors.DeadlineExceededError) as raised:
                call()
            assert reason in str(raised.value)
        for text in (table.explain(), server.explain(), client.explain(), table.info.explain):
            assert reason in text
        limits = table.info.rate_limiter_info
        assert (limits.insert_stats.completed, limits.max_diff) == (4, 12)
        writer.close(timeout=0)


def test_a_batch_that_can_never_be_filled_says_why():
    with reverb_tf.Server([testing_util.uniform_table(min_size=5)]) as server:
        client = server.localhost_client()
        for i in range(4):
            client.insert(i, {'t': 1.0})
        ds = reverb_tf.TrajectoryDataset(
            server.address,
            't',
            tf.int64,
            [None],
            batch_size=64,
            rate_limiter_timeout_ms=100,
            on_timeout='error',
        )
        with pytest.raises(tf.errors.DeadlineExceededError, match='size 4 < min_size 5'):
            next(iter(ds))


def test_client_of_a_server_that_nobody_kept_fails_at_once():
    server = reverb_tf.Server([testing_util.uniform_table()])
    client = reverb_tf.Client(server.address)
    del server
    start = time.monotonic()
    with pytest.raises(errors.UnavailableError, match='stopped'):
        client.insert(1, {'t': 1.0})
    with pytest.raises(errors.UnavailableError):
        next(client.sample('t', 1))
    assert time.monotonic() - start < 5


def test_server_tells_of_itself():
    table = testing_util.uniform_table()
    with reverb_tf.Server([table]) as server:
        assert server.address == f'localhost:{server.port}'
        assert server.host == 'localhost'
        assert server.tables == {'t': table}
        assert server.is_running
        assert str(server.port) in repr(server)
        assert server.wait(0) is False
        with pytest.raises(TypeError, match='pickle server.address'):
            pickle.dumps(server)
        client = server.localhost_client(timeout=7)
        assert (client.timeout, client.server_address) == (7, server.address)
    assert not server.is_running
    assert server.wait() is True
    server.stop()


def test_servers_are_local_unless_told_otherwise(monkeypatch, caplog):
    with reverb_tf.Server([testing_util.uniform_table()], host='127.0.0.1') as server:
        assert server.address == f'127.0.0.1:{server.port}'
    assert not caplog.text
    monkeypatch.setenv('REVERB_TF_HOST', '0.0.0.0')
    with reverb_tf.Server([testing_util.uniform_table()]) as server:
        assert server.host == '0.0.0.0'
        reverb_tf.Client(f'localhost:{server.port}', in_process=False).server_info(timeout=20)
    assert 'reachable from other machines' in caplog.text


@pytest.mark.parametrize('in_process', [True, False])
def test_errors_name_the_port_that_the_system_picked(in_process):
    with reverb_tf.Server([testing_util.uniform_table()]) as server:
        client = reverb_tf.Client(server.address, in_process=in_process)
        with pytest.raises(reverb_tf.errors.NotFoundError, match=f'at {server.address};'):
            client.reset('nope')
        with pytest.raises(ValueError, match=f'already served at {server.address}'):
            reverb_tf.Server(list(server.tables.values()))
