"""Clients, writers and datasets behind a gRPC load balancer: nginx before two servers.

Every call and every stream goes to one of the servers, so the tables are ones for which it doesn't matter which.
"""

import os
import shutil
import signal
import socket
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import errors
from tests import testing_util

# Not on every user's path.
NGINX = shutil.which('nginx', path=os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin']))

pytestmark = pytest.mark.skipif(
    NGINX is None,
    reason="nginx is not here: 'python3 configure.py --install' installs Debian's nginx-light",
)

# One process, so that requests go to the servers strictly in turn.
CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream servers {{
    # A server that was away is tried again at its next turn.
    server {servers[0]} max_fails=0;
    server {servers[1]} max_fails=0;
    keepalive 4;
  }}
  server {{
    listen {address} http2 reuseport;
    # Streams are long, and silent for long, in both directions.
    client_max_body_size 0;
    client_body_timeout 1d;
    send_timeout 1d;
    # After so many calls a client is told to connect anew.
    keepalive_requests 20;
    location / {{
      grpc_pass grpc://servers;
      grpc_read_timeout 1d;
      grpc_send_timeout 1d;
    }}
  }}
}}
"""

SERVER = """
    import signal
    import sys
    import numpy as np
    import reverb_tf

    def table(name, sampler, signature=None):
        return reverb_tf.Table(
            name, sampler, reverb_tf.selectors.Fifo(), 1000,
            reverb_tf.rate_limiters.MinSize(1), signature=signature)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    tables = [
        table('t', reverb_tf.selectors.Uniform()),
        table('per', reverb_tf.selectors.Prioritized(1.0)),
        table('signed', reverb_tf.selectors.Uniform(), {'a': np.zeros(2, np.int64)}),
    ]
    with reverb_tf.Server(tables, port=PORT) as server:
        print(server.port, flush=True)
        server.wait()
"""


class ReplayServer:
    """A server process, and a client of it that knows no proxy."""

    def __init__(self, port=0):
        self._process = testing_util.start_script(SERVER.replace('PORT', str(port)))
        self.port = int(self._process.stdout.readline())
        self.client = reverb_tf.Client(f'localhost:{self.port}', timeout=30)

    def info(self, table='t'):
        return self.client.server_info()[table]

    def end(self, how=signal.SIGKILL):
        self._process.send_signal(how)
        self._process.wait()


class Proxy:
    """nginx before servers; its port is held for it until it ends."""

    def __init__(self, folder, servers):
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port.bind(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._port.getsockname()[1]}'
        config = folder / 'nginx.conf'
        upstreams = [f'127.0.0.1:{server.port}' for server in servers]
        config.write_text(CONFIG.format(folder=folder, servers=upstreams, address=self.address))
        log = folder / 'error.log'
        command = [NGINX, '-p', folder, '-e', log, '-c', config]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def end(self):
        self._process.kill()
        self._process.communicate()
        self._port.close()


@pytest.fixture
def servers():
    servers = [ReplayServer(), ReplayServer()]
    yield servers
    for server in servers:
        server.end()


@pytest.fixture
def address(servers, tmp_path):
    proxy = Proxy(tmp_path, servers)
    yield proxy.address
    proxy.end()


@pytest.fixture
def client(address):
    with reverb_tf.Client(address, timeout=60) as client:
        yield client


def write(writer, values, table='t'):
    for value in values:
        writer.append({'a': value})
        writer.create_item(table, 1.0, {'a': writer.history['a'][-1]})


def values_of(samples):
    return {int(np.squeeze(sample.data[0])) for sample in samples}


def stored(server):
    """The values that a server holds, which are different ones."""
    size = server.info().current_size
    values = set()
    while len(values) < size:
        values |= values_of(server.client.sample('t', 50, emit_timesteps=False))
    return values


def insert_pairs(server, values):
    """Items of two steps, (v, v + 1), for the table with a signature."""
    with server.client.trajectory_writer(2) as writer:
        for value in values:
            writer.append({'a': value})
            writer.append({'a': value + 1})
            writer.create_item('signed', 1.0, {'a': writer.history['a'][-2:]})


def firsts_of(batch):
    """The first steps of a batch of pairs."""
    pairs = batch.data['a'].numpy()
    np.testing.assert_array_equal(pairs[:, 1], pairs[:, 0] + 1)
    return set(pairs[:, 0].tolist())


# ---- While all servers are there -------------------------------------------------


def test_inserts_are_shared_out_and_none_is_lost(servers, client):
    for value in range(20):
        client.insert({'a': value}, {'t': 1.0})
    assert sorted([*stored(servers[0]), *stored(servers[1])]) == list(range(20))


def test_calls_go_to_the_servers_in_turn(servers, client):
    servers[0].client.insert({'a': 1}, {'t': 1.0})
    sizes = [client.server_info()['t'].current_size for _ in range(10)]
    assert sorted(sizes) == [0] * 5 + [1] * 5


def test_calls_go_on_when_the_proxy_renews_connections(client):
    for _ in range(100):
        assert set(client.server_info()) == {'t', 'per', 'signed'}


def test_the_peers_know_each_other_through_the_proxy(servers, client):
    # Of a server of another package the counts would be unknown, -1.
    keys = [s.client.insert({'a': 0}, {'per': 1.0})['per'] for s in servers]
    counts = client.mutate_priorities('per', dict.fromkeys(keys, 2.0))
    assert (counts.updated, counts.not_found) == (1, 1)


def test_what_a_writer_wrote_is_all_there(servers, client):
    writers = [client.trajectory_writer(1) for _ in range(2)]
    for i, writer in enumerate(writers):
        write(writer, range(100 * i, 100 * i + 100))
    for writer in writers:
        writer.flush()
        assert writer.close() == 0
    assert stored(servers[0]) | stored(servers[1]) == set(range(200))
    assert [server.info().current_size for server in servers] == [100, 100]


def test_samples_are_whole(servers, client):
    for i, server in enumerate(servers):
        server.client.insert({'a': np.full([1000], i)}, {'t': 1.0})
    seen = set()
    for _ in range(10):
        sample = next(client.sample('t', 1, emit_timesteps=False))
        assert sample.data[0].shape == (1, 1000)
        seen |= set(sample.data[0].ravel().tolist())
    assert seen == {0, 1}


def test_large_steps_pass_both_ways(servers, client):
    data = np.random.default_rng(0).integers(0, 256, 8 << 20, np.uint8)
    client.insert({'a': data}, {'t': 1.0})
    servers.sort(key=lambda server: server.info().current_size)
    without, owner = servers
    received = next(owner.client.sample('t', 1, emit_timesteps=False))
    np.testing.assert_array_equal(received.data[0][0], data)
    without.client.insert({'a': data}, {'t': 1.0})
    returned = next(client.sample('t', 1, emit_timesteps=False))
    np.testing.assert_array_equal(returned.data[0][0], data)


def test_a_dataset_reads_from_the_servers_behind_the_address(servers, address):
    insert_pairs(servers[0], range(0, 40, 2))
    insert_pairs(servers[1], range(100, 140, 2))
    ds = reverb_tf.TrajectoryDataset.from_table_signature(
        address, 'signed', batch_size=8, num_workers_per_iterator=4
    )
    seen = set()
    for batch in ds.take(200):
        seen |= firsts_of(batch)
    assert seen == {*range(0, 40, 2), *range(100, 140, 2)}


def test_a_graph_updates_and_samples_through_the_proxy(servers, address):
    keys = [s.client.insert({'a': i}, {'per': 1.0})['per'] for i, s in enumerate(servers)]
    tf_client = reverb_tf.TFClient(address)

    @tf.function
    def work():
        counts = tf_client.update_priorities('per', keys, [5.0, 5.0], return_counts=True)
        return counts.updated, tf_client.sample('per', {'a': tf.int64}).data['a']

    updated, value = work()
    assert int(updated) == 1
    assert int(value) in (0, 1)
    assert sorted(server.info('per').sample_count for server in servers) == [0, 1]


def test_a_reset_of_one_server_leaves_the_samples_of_the_other(servers, address):
    for i, server in enumerate(servers):
        insert_pairs(server, range(100 * i, 100 * i + 20, 2))
    ds = reverb_tf.TrajectoryDataset.from_table_signature(
        address, 'signed', batch_size=4, num_workers_per_iterator=2
    )
    elements = iter(ds)
    firsts_of(next(elements))
    servers[0].client.reset('signed')
    insert_pairs(servers[0], [1000])
    seen = set()
    for _ in range(200):
        seen |= firsts_of(next(elements))
    assert seen >= {1000, *range(100, 120, 2)}


# ---- When servers go -------------------------------------------------------------

ENDS = pytest.mark.parametrize('how', [signal.SIGTERM, signal.SIGKILL], ids=['stopped', 'killed'])


@ENDS
def test_writers_send_again_to_the_server_that_is_left(servers, client, how):
    writers = [client.trajectory_writer(1) for _ in range(2)]
    for value, writer in enumerate(writers):
        write(writer, [value])
        writer.flush()
    assert [server.info().current_size for server in servers] == [1, 1]
    servers[0].end(how)
    for value, writer in enumerate(writers):
        write(writer, range(10 + 10 * value, 20 + 10 * value))
        writer.flush()
        assert writer.pending_items == 0
    assert stored(servers[1]) - {0, 1} == set(range(10, 30))
    assert servers[1].info().insert_count == 21


@ENDS
def test_a_dataset_goes_on_with_the_server_that_is_left(servers, address, how):
    for i, server in enumerate(servers):
        insert_pairs(server, range(100 * i, 100 * i + 20, 2))
    ds = reverb_tf.TrajectoryDataset.from_table_signature(
        address, 'signed', batch_size=4, num_workers_per_iterator=2
    )
    elements = iter(ds)
    seen = set()
    while not (seen & set(range(20)) and seen & set(range(100, 120))):
        seen |= firsts_of(next(elements))
    servers[0].end(how)
    for _ in range(50):
        assert firsts_of(next(elements)) <= {*range(0, 20, 2), *range(100, 120, 2)}
    for _ in range(10):
        assert firsts_of(next(elements)) <= set(range(100, 120, 2))


@ENDS
def test_calls_go_on_with_the_server_that_is_left(servers, client, how):
    client.insert({'a': 0}, {'t': 1.0})
    servers[0].end(how)
    for _ in range(10):
        client.insert({'a': 1}, {'t': 1.0})
    assert 1 in values_of(client.sample('t', 50, emit_timesteps=False))


def test_a_sampler_goes_on_with_the_server_that_is_left(servers, client):
    for i, server in enumerate(servers):
        server.client.insert({'a': i}, {'t': 1.0})
    samplers = [client.sampler('t', max_in_flight=1) for _ in range(2)]
    assert values_of(next(sampler) for sampler in samplers) == {0, 1}
    servers[0].end()
    for sampler in samplers:
        while values_of([next(sampler)]) != {1}:
            pass


def test_a_call_with_no_server_left_says_so(servers, client):
    for server in servers:
        server.end()
    with pytest.raises(errors.DeadlineExceededError, match='502'):
        client.server_info(timeout=1)


def test_work_goes_on_when_a_server_comes_back(servers, client):
    writer = client.trajectory_writer(1)
    write(writer, [0])
    writer.flush()
    for server in servers:
        server.end()
    write(writer, [1, 2, 3])
    with pytest.raises(errors.DeadlineExceededError, match='3 items unconfirmed'):
        writer.flush(timeout=0.5)
    servers[0] = ReplayServer(servers[0].port)
    writer.flush()
    assert stored(servers[0]) == {1, 2, 3}
