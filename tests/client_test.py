"""Server and client: inserts, samples, updates, information, over both roads."""

import pickle
import signal
import threading
import time

import numpy as np
import pytest

import reverb_tf
from reverb_tf import errors
from tests import testing_util


@pytest.fixture(params=['in_process', 'grpc'])
def connect(request):
    """fn(tables) -> a client of a server of these tables."""
    servers = []

    def make(*tables):
        servers.append(reverb_tf.Server(tables))
        return reverb_tf.Client(
            servers[-1].address, timeout=20, in_process=request.param == 'in_process'
        )

    yield make
    for server in servers:
        server.stop()


def test_insert_and_sample_one_step(connect):
    client = connect(testing_util.uniform_table())
    keys = client.insert({'a': np.arange(3), 'b': 1.5}, {'t': 2.0})
    sample = next(client.sample('t', emit_timesteps=False))
    assert sample.info.key == keys['t']
    assert sample.info.priority == 2.0
    assert sample.info.table_size == 1
    assert sample.info.times_sampled == 1
    np.testing.assert_array_equal(sample.data[0], [[0, 1, 2]])


def test_insert_checks_every_table_before_it_inserts(connect):
    client = connect(testing_util.uniform_table('t'), testing_util.uniform_table('u'))
    with pytest.raises(ValueError, match='nope'):
        client.insert(1, {'t': 1.0, 'nope': 1.0})
    with pytest.raises(ValueError, match='NaN'):
        client.insert(1, {'t': 1.0, 'u': float('nan')})
    with pytest.raises(ValueError):
        client.insert(1, {})
    assert [i.current_size for i in client.server_info().values()] == [0, 0]


def test_sample_emits_timesteps(connect):
    client = connect(testing_util.uniform_table())
    with client.trajectory_writer(3) as writer:
        for i in range(3):
            writer.append({'x': i})
        writer.create_item('t', 1.0, {'x': writer.history['x'][:]})
    (steps,) = client.sample('t', 1)
    assert [int(s.data[0]) for s in steps] == [0, 1, 2]


def test_item_without_steps_is_refused_and_given_back(connect):
    table = reverb_tf.Table.queue('t', 10)
    client = connect(table)
    with client.trajectory_writer(3) as writer:
        for i in range(3):
            writer.append({'s': i, 'a': i})
        writer.create_item(
            't', 1.0, {'s': writer.history['s'][:], 'a': writer.history['a'][1:]}
        )
    with pytest.raises(ValueError, match='emit_timesteps=False'):
        next(client.sample('t', 1))
    testing_util.eventually(lambda: len(table) == 1)
    sample = next(client.sample('t', 1, emit_timesteps=False))
    assert sorted(len(c) for c in sample.data) == [2, 3]


def test_unknown_table_names_it(connect):
    client = connect(testing_util.uniform_table())
    with pytest.raises(errors.NotFoundError, match='nope'):
        next(client.sample('nope', 1))
    with pytest.raises(errors.NotFoundError, match='nope'):
        client.reset('nope')
    with pytest.raises(errors.NotFoundError, match='nope'):
        client.mutate_priorities('nope', {1: 1.0})


def test_mutate_priorities_counts_and_is_atomic(connect):
    table = reverb_tf.Table(
        't',
        reverb_tf.selectors.Prioritized(1.0),
        reverb_tf.selectors.Fifo(),
        10,
        reverb_tf.rate_limiters.MinSize(1),
    )
    client = connect(table)
    a, b = (client.insert(1, {'t': 1.0})['t'] for _ in range(2))
    assert client.mutate_priorities('t', {a: 3.0, 99: 1.0}) == (1, 0, 1)
    with pytest.raises(ValueError):
        client.mutate_priorities('t', updates={a: -1.0}, deletes=[b])
    assert len(table) == 2
    assert client.mutate_priorities('t', deletes=[b, 98]) == (0, 1, 1)
    sample = next(client.sample('t', 1))
    assert sample[0].info.priority == 3.0


def test_queue_delivers_once_in_order(connect):
    client = connect(reverb_tf.Table.queue('q', 100))
    for i in range(20):
        client.insert(i, {'q': 1.0})
    got = [int(s[0].data[0]) for s in client.sample('q', 20)]
    assert got == list(range(20))
    info = client.server_info()['q']
    assert info.current_size == 0
    stats = info.rate_limiter_info.sample_stats
    assert (stats.completed, stats.delivered, stats.in_flight) == (20, 20, 0)


def test_dropped_generator_gives_back(connect):
    table = reverb_tf.Table.queue('q', 100)
    client = connect(table)
    for i in range(5):
        client.insert(i, {'q': 1.0})
    samples = client.sample('q', 5)
    assert int(next(samples)[0].data[0]) == 0
    samples.close()
    testing_util.eventually(lambda: len(table) == 4)
    assert [int(s[0].data[0]) for s in client.sample('q', 4)] == [1, 2, 3, 4]


def test_sample_timeout_says_why(connect):
    client = connect(testing_util.uniform_table(min_size=3))
    client.insert(1, {'t': 1.0})
    with pytest.raises(errors.DeadlineExceededError, match='size 1 < min_size 3'):
        next(client.sample('t', 1, timeout=0.2))
    assert list(client.sample('t', 1, timeout=0.2, on_timeout='end')) == []
    with pytest.raises(TimeoutError):
        next(client.sample('t', 1, timeout=0))


def test_blocked_insert_times_out_and_is_withdrawn(connect):
    table = reverb_tf.Table.queue('q', 1)
    client = connect(table)
    client.insert(1, {'q': 1.0})
    with pytest.raises(errors.DeadlineExceededError):
        client.insert(2, {'q': 1.0}, timeout=0.3)
    assert [int(next(client.sample('q', 1))[0].data[0])] == [1]
    with pytest.raises(errors.DeadlineExceededError):
        next(client.sample('q', 1, timeout=0.2))


def test_reset_empties_and_counts_anew(connect):
    client = connect(testing_util.uniform_table())
    client.insert(np.zeros(1000), {'t': 1.0})
    client.reset('t')
    info = client.server_info()['t']
    assert (info.current_size, info.bytes_stored, info.num_chunks) == (0, 0, 0)
    assert info.insert_count == 0
    assert info.generation == 2


def test_bad_addresses_fail_at_construction():
    for address in ('', 'http://localhost:80', 'localhost', 'localhost:99999', 'localhost:x'):
        with pytest.raises(ValueError):
            reverb_tf.Client(address)


def test_default_timeout_applies_and_is_checked():
    reverb_tf.set_default_timeout(0.2)
    try:
        with pytest.raises(errors.DeadlineExceededError, match='localhost:1'):
            reverb_tf.Client('localhost:1').server_info()
    finally:
        reverb_tf.set_default_timeout(None)
    with pytest.raises(ValueError):
        reverb_tf.set_default_timeout(-1)


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


def test_client_pickles_by_address():
    client = pickle.loads(pickle.dumps(reverb_tf.Client('localhost:1', timeout=3)))
    assert (client.server_address, client.timeout) == ('localhost:1', 3)


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


def test_killed_server_ends_calls_by_their_timeout():
    process, address = testing_util.start_server()
    client = reverb_tf.Client(address)
    client.insert(1, {'t': 1.0}, timeout=20)
    writer = client.trajectory_writer(1)
    process.kill()
    process.wait()
    writer.append({'x': 1})
    writer.create_item('t', 1.0, {'x': writer.history['x'][-1]})
    for call in (
        lambda: client.server_info(timeout=0.3),
        lambda: client.insert(1, {'t': 1.0}, timeout=0.3),
        lambda: client.mutate_priorities('t', {1: 1.0}, timeout=0.3),
        lambda: client.reset('t', timeout=0.3),
        lambda: next(client.sample('t', 1, timeout=0.3)),
        lambda: client.trajectory_writer(1, timeout=0.3),
        lambda: writer.flush(timeout=0.3),
    ):
        start = time.monotonic()
        with pytest.raises(errors.ReverbError):
            call()
        assert time.monotonic() - start < 10
    writer.close(timeout=0)


def test_frozen_server_ends_calls_by_their_timeout():
    process, address = testing_util.start_server()
    try:
        client = reverb_tf.Client(address)
        client.server_info(timeout=20)
        testing_util.freeze(process)
        with pytest.raises(errors.DeadlineExceededError):
            client.server_info(timeout=0.5)
        with pytest.raises(errors.DeadlineExceededError):
            next(client.sample('t', 1, timeout=0.5))
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    'call',
    [
        "next(client.sample('t', 1))",
        'client.server_info()',
        "client.insert(1, {'q': 1.0})",
        'writer.flush()',
    ],
)
def test_ctrl_c_interrupts_within_a_second(call):
    process = testing_util.start_script(
        f"""
        import reverb_tf
        from tests import testing_util
        server = reverb_tf.Server(
            [testing_util.uniform_table(), reverb_tf.Table.queue('q', 1)])
        local = server.localhost_client()
        local.insert(1, {{'q': 1.0}})
        client = local
        writer = local.trajectory_writer(1)
        writer.append(1)
        writer.create_item('q', 1.0, writer.history[-1])
        if 'server_info' in {call!r}:
            client = reverb_tf.Client('localhost:1')
        try:
            print('ready', flush=True)
            {call}
        except KeyboardInterrupt:
            print('interrupted', flush=True)
        writer.close(timeout=0)
        """
    )
    assert process.stdout.readline() == 'ready\n'
    time.sleep(0.3)  # lets the call begin, so that it is a wait that is interrupted
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    line = process.stdout.readline()
    elapsed = time.monotonic() - start
    process.kill()
    assert line == 'interrupted\n', process.stderr.read()
    assert elapsed < 1.5


def test_log_says_what_is_waited_for():
    process = testing_util.start_script(
        """
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format='%(name)s %(message)s')
        import reverb_tf
        try:
            reverb_tf.Client('localhost:1').server_info(timeout=4)
        except TimeoutError:
            pass
        """
    )
    out, _ = process.communicate(timeout=30)
    assert 'reverb_tf' in out
    assert 'localhost:1' in out


def test_object_of_a_parent_process_refuses_after_fork():
    process = testing_util.start_script(
        """
        import os
        import reverb_tf
        from tests import testing_util
        server = reverb_tf.Server([testing_util.uniform_table()])
        client = reverb_tf.Client(server.address)
        pid = os.fork()
        if pid == 0:
            try:
                client.server_info()
            except RuntimeError as e:
                print(e, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        """
    )
    out, _ = process.communicate(timeout=30)
    assert 'created before fork' in out
