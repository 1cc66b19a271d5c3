"""Datasets under tf.distribute: two replicas of one process."""

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf

SIGNATURE = {'a': tf.TensorSpec([None], tf.int64)}


@pytest.fixture(scope='module')
def strategy():
    cpus = tf.config.list_physical_devices('CPU')
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpus[0], devices)
    return tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])


@pytest.fixture(params=['1', '0'], ids=['in_process', 'remote'])
def server(request, monkeypatch):
    """Of a queue of 0 ... 15."""
    monkeypatch.setenv('REVERB_TF_INPROCESS', request.param)
    with reverb_tf.Server([reverb_tf.Table.queue('q', 100, signature=SIGNATURE)]) as server:
        client = reverb_tf.Client(server.address, timeout=60)
        with client.trajectory_writer(1) as writer:
            for value in range(16):
                writer.append({'a': value})
                writer.create_item('q', 1.0, {'a': writer.history['a'][-1:]})
        yield server


def dataset(server, **keywords):
    return reverb_tf.TrajectoryDataset.from_table_signature(server.address, 'q', **keywords)


def values_of(strategy, distributed):
    return np.concatenate(
        [np.ravel(v) for v in strategy.experimental_local_results(distributed.data['a'])]
    )


@pytest.mark.parametrize('fused', [True, False])
def test_replicas_share_what_a_queue_holds(strategy, server, fused):
    batch = {'batch_size': 4, 'drop_remainder': True} if fused else {}
    ds = dataset(server, max_samples=16, **batch)
    if not fused:
        ds = ds.batch(4, drop_remainder=True)
    got = [values_of(strategy, x) for x in strategy.experimental_distribute_dataset(ds)]
    assert sorted(np.concatenate(got)) == list(range(16))
    assert all(len(values) == 4 for values in got)


def test_replicas_read_datasets_made_for_them(strategy, server):

    def make(context):
        assert context.num_replicas_in_sync == 2
        return dataset(server, max_samples=16, batch_size=2, drop_remainder=True)

    distributed = strategy.distribute_datasets_from_function(make)

    @tf.function
    def step(x):
        return strategy.reduce(
            'SUM', strategy.run(lambda s: tf.reduce_sum(s.data['a']), [x]), axis=None
        )

    assert sum(int(step(x)) for x in distributed) == sum(range(16))
