"""Datasets read by the workers of a tf.data service, each of which is a process."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from tests import testing_util

service = tf.data.experimental.service
Policy = tf.data.experimental.ExternalStatePolicy

SIGNATURE = {'a': tf.TensorSpec([2], tf.int64)}
ITEMS = 20

# Dispatchers and workers read graphs with our ops, so that they have to load them.
DISPATCHER = """
    import tensorflow as tf
    from reverb_tf.ops import load
    load.ops()
    dispatcher = tf.data.experimental.service.DispatchServer()
    print(dispatcher.target, flush=True)
    dispatcher.join()
"""
WORKER = """
    import tensorflow as tf
    from reverb_tf.ops import load
    load.ops()
    service = tf.data.experimental.service
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address='ADDRESS'))
    print('ready', flush=True)
    worker.join()
"""


class Cluster:
    """A dispatcher and workers."""

    def __init__(self, num_workers):
        self._processes = []
        self.target = self._start(DISPATCHER)
        address = self.target.split('://')[1]
        for _ in range(num_workers):
            self._start(WORKER.replace('ADDRESS', address))

    def _start(self, script):
        """What the process says when it is ready."""
        self._processes.append(testing_util.start_script(script, TF_CPP_MIN_LOG_LEVEL='3'))
        return self._processes[-1].stdout.readline().strip()

    def kill_last_worker(self):
        process = self._processes.pop()
        process.kill()
        process.communicate()

    def end(self):
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope='module')
def cluster():
    cluster = Cluster(num_workers=2)
    yield cluster
    cluster.end()


@pytest.fixture
def servers():
    """Two servers; server i has items (v, v + 1) for v = 100 i ... in a replay table and a queue."""
    servers = []
    for i in range(2):
        tables = [
            testing_util.uniform_table('t', signature=SIGNATURE),
            reverb_tf.Table.queue('q', 100, signature=SIGNATURE),
        ]
        servers.append(reverb_tf.Server(tables))
        with reverb_tf.Client(servers[i].address, timeout=60).trajectory_writer(2) as writer:
            for value in values_of_server(i):
                writer.append({'a': value})
                writer.append({'a': value + 1})
                for table in 'tq':
                    writer.create_item(table, 1.0, {'a': writer.history['a'][-2:]})
    yield servers
    for server in servers:
        server.stop()


def values_of_server(i):
    return range(100 * i, 100 * i + ITEMS)


def dataset(server, table, **keywords):
    return reverb_tf.TrajectoryDataset.from_table_signature(server.address, table, **keywords)


def interleaved(servers, **keywords):
    """A dataset over the addresses of servers."""
    addresses = tf.data.Dataset.from_tensor_slices([server.address for server in servers])
    return addresses.interleave(
        lambda address: reverb_tf.TrajectoryDataset(
            address, 't', {'a': tf.int64}, {'a': [2]}, **keywords
        ),
        cycle_length=len(servers),
    )


def distribute(ds, cluster, mode='parallel_epochs', **keywords):
    return ds.apply(service.distribute(mode, cluster.target, **keywords))


def first_steps(ds):
    """The items' first steps, all of them checked; elements are items or batches of them."""
    firsts = []
    for element in ds:
        for first, second in element.data['a'].numpy().reshape([-1, 2]):
            assert second == first + 1
            firsts.append(int(first))
    return firsts


def by_server(firsts):
    """How many elements each server gave."""
    counts = collections.Counter(first // 100 for first in firsts)
    assert all(first in values_of_server(first // 100) for first in firsts)
    return counts


def test_every_worker_samples_for_itself(cluster, servers):
    firsts = first_steps(distribute(dataset(servers[0], 't', max_samples=30), cluster))
    assert by_server(firsts) == {0: 60}
    info = reverb_tf.Client(servers[0].address).server_info()['t']
    assert info.rate_limiter_info.sample_stats.delivered == 60


def test_workers_make_fused_batches(cluster, servers):
    ds = dataset(servers[0], 't', batch_size=4, max_samples=10)
    sizes = [element.info.key.shape[0] for element in distribute(ds, cluster)]
    assert sorted(sizes) == [2, 2, 4, 4, 4, 4]
    assert by_server(first_steps(distribute(ds, cluster))) == {0: 20}


def test_workers_read_steps(cluster, servers):
    ds = reverb_tf.TimestepDataset.from_table_signature(servers[0].address, 't', max_samples=5)
    steps = [int(element.data['a']) for element in distribute(ds, cluster)]
    assert len(steps) == 20
    assert set(steps) <= set(range(ITEMS + 1))


def test_workers_share_what_a_queue_holds(cluster, servers):
    ds = dataset(servers[0], 'q', max_samples=ITEMS // 2)
    assert sorted(first_steps(distribute(ds, cluster))) == list(values_of_server(0))


def test_consumers_of_one_job_share_its_elements(cluster, servers):
    ds = dataset(servers[0], 'q', max_samples=ITEMS // 2)
    first, second = (iter(distribute(ds, cluster, job_name='shared')) for _ in range(2))
    taken = first_steps([next(first)]) + first_steps(second) + first_steps(first)
    assert sorted(taken) == list(values_of_server(0))


def test_every_worker_reads_every_server_of_an_interleaved_dataset(cluster, servers):
    firsts = first_steps(distribute(interleaved(servers, max_samples=15), cluster))
    assert by_server(firsts) == {0: 30, 1: 30}


def test_workers_share_out_the_servers_of_a_distributed_epoch(cluster, servers):
    ds = distribute(interleaved(servers, max_samples=15), cluster, 'distributed_epoch')
    assert by_server(first_steps(ds)) == {0: 15, 1: 15}


def test_one_server_cannot_be_split_in_a_distributed_epoch(cluster, servers):
    ds = distribute(dataset(servers[0], 't', max_samples=5), cluster, 'distributed_epoch')
    with pytest.raises(tf.errors.UnimplementedError, match='ReverbTfTrajectoryDataset'):
        next(iter(ds))


def test_a_dataset_by_id_is_read_without_its_definition(cluster, servers):
    ds = dataset(servers[1], 't', max_samples=5)
    number = service.register_dataset(cluster.target, ds)
    ds = service.from_dataset_id('parallel_epochs', cluster.target, number, ds.element_spec)
    assert by_server(first_steps(ds)) == {1: 10}


def test_new_data_reach_a_job_that_runs(cluster, servers):
    elements = iter(distribute(dataset(servers[0], 't', batch_size=1), cluster))
    next(elements)
    client = reverb_tf.Client(servers[0].address, timeout=60)
    client.reset('t')
    with client.trajectory_writer(2) as writer:
        writer.append_batch({'a': np.array([7, 8])})
        writer.create_item('t', 1.0, {'a': writer.history['a'][-2:]})
    key = next(client.sample('t', 1, emit_timesteps=False)).info.key
    while int(next(elements).info.key[0]) != key:
        pass


def test_the_other_workers_go_on_when_one_dies(servers):
    cluster = Cluster(num_workers=2)
    try:
        elements = iter(distribute(dataset(servers[0], 't', batch_size=4), cluster))
        next(elements)
        cluster.kill_last_worker()
        assert by_server(first_steps(next(elements) for _ in range(100))) == {0: 400}
    finally:
        cluster.end()


def with_policy(ds, policy):
    options = tf.data.Options()
    options.experimental_external_state_policy = policy
    return ds.with_options(options)


@pytest.mark.parametrize('policy', [Policy.WARN, Policy.IGNORE])
def test_policies_that_allow_external_state_let_it_pass(cluster, servers, policy):
    ds = with_policy(dataset(servers[0], 't', max_samples=5), policy)
    assert by_server(first_steps(distribute(ds, cluster))) == {0: 10}


@pytest.mark.parametrize('batched', [False, True], ids=['alone', 'as_an_input'])
def test_a_policy_that_forbids_external_state_refuses(cluster, servers, batched):
    ds = dataset(servers[0], 't')
    ds = with_policy(ds.map(lambda s: s.data).batch(2) if batched else ds, Policy.FAIL)
    with pytest.raises(tf.errors.FailedPreconditionError, match='content of a table'):
        distribute(ds, cluster)
