"""Samples by hand: steps and columns, what is taken and given back, ends and time-outs."""

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import errors
from tests import testing_util


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
        writer.create_item('t', 1.0, {'s': writer.history['s'][:], 'a': writer.history['a'][1:]})
    with pytest.raises(ValueError, match='emit_timesteps=False'):
        next(client.sample('t', 1))
    testing_util.eventually(lambda: len(table) == 1)
    sample = next(client.sample('t', 1, emit_timesteps=False))
    assert sorted(len(c) for c in sample.data) == [2, 3]


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


SIGNATURE = {'s': tf.TensorSpec([None], tf.int64), 'a': tf.TensorSpec([None], tf.int64)}


def insert_unequal_columns(client, table):
    with client.trajectory_writer(4) as writer:
        for i in range(4):
            writer.append({'s': i, 'a': 10 * i})
        h = writer.history
        writer.create_item(table, 1.0, {'s': h['s'][:], 'a': h['a'][1:]})


def test_item_without_steps_is_told_by_path_and_length(connect):
    client = connect(testing_util.uniform_table(signature=SIGNATURE))
    insert_unequal_columns(client, 't')
    for samples in (client.sample('t', 1), client.sampler('t', emit_timesteps=True)):
        with pytest.raises(ValueError) as raised:
            next(samples)
        for word in ("'a' has length 3", "'s' has length 4", 'emit_timesteps=False'):
            assert word in str(raised.value)


@pytest.mark.parametrize(
    'kwargs, structured',
    [
        ({'emit_timesteps': False}, True),
        ({'emit_timesteps': False, 'unpack_as_table_signature': True}, True),
        ({'emit_timesteps': False, 'unpack_as_table_signature': False}, False),
    ],
)
def test_columns_come_whole_and_structured(connect, kwargs, structured):
    client = connect(testing_util.uniform_table(signature=SIGNATURE))
    insert_unequal_columns(client, 't')
    data = next(client.sample('t', 1, **kwargs)).data
    got = data if structured else dict(zip('as', data, strict=True))
    np.testing.assert_array_equal(got['a'], [10, 20, 30])
    np.testing.assert_array_equal(got['s'], [0, 1, 2, 3])


def test_timesteps_are_flat_unless_asked_for(connect):
    client = connect(
        testing_util.uniform_table(
            signature={'x': tf.TensorSpec([], tf.int64), 's': tf.TensorSpec([2], tf.string)}
        )
    )
    client.insert({'x': 3, 's': np.array(['a', 'b'])}, {'t': 1.0})
    (flat,) = next(client.sample('t', 1))
    (packed,) = next(client.sample('t', 1, unpack_as_table_signature=True))
    assert [type(v) for v in flat.info] == [int, float, int, float, int]
    assert isinstance(flat.data, list)
    assert all(isinstance(leaf, np.ndarray) for leaf in flat.data)
    assert flat.data[0].tolist() == packed.data['s'].tolist() == [b'a', b'b']
    assert flat.data[1] == packed.data['x'] == 3
    assert packed.data['x'].shape == ()


def test_squeezed_column_is_a_step(connect):
    client = connect(testing_util.uniform_table())
    with client.trajectory_writer(1) as writer:
        writer.append({'x': 5})
        writer.create_item('t', 1.0, {'x': writer.history['x'][-1]})
    (step,) = next(client.sample('t', 1))
    assert step.data == [5]


def test_table_without_signature_gives_a_flat_list(connect):
    client = connect(testing_util.uniform_table())
    client.insert({'b': 1, 'a': 2}, {'t': 1.0})
    for kwargs in ({'unpack_as_table_signature': True}, {}):
        sample = next(client.sample('t', 1, emit_timesteps=False, **kwargs))
        assert [c.tolist() for c in sample.data] == [[2], [1]]


def test_sampler_is_an_iterator_that_ends_and_closes(connect):
    client = connect(testing_util.uniform_table(signature=SIGNATURE))
    insert_unequal_columns(client, 't')
    with client.sampler('t', max_samples=3) as sampler:
        assert [s.data['a'].tolist() for s in sampler] == [[10, 20, 30]] * 3
        assert list(sampler) == []
    sampler.close()
    endless = client.sampler('t')
    assert next(endless).info.table_size == 1
    endless.close()
    assert list(endless) == []


def test_sampler_takes_nothing_ahead_of_a_queue_unless_told(connect):
    table = reverb_tf.Table.queue('q', 10)
    client = connect(table)
    for i in range(6):
        client.insert(i, {'q': 1.0})
    with client.sampler('q', max_in_flight=5) as sampler:
        next(sampler)
        assert len(table) == 5
    with client.sampler('q', consume_ahead=2) as sampler:
        next(sampler)
        testing_util.eventually(lambda: len(table) == 2)
    testing_util.eventually(lambda: len(table) == 4)


def test_sampler_stays_usable_after_a_timeout(connect):
    client = connect(reverb_tf.Table.queue('q', 10))
    sampler = client.sampler('q', timeout=0.1)
    with pytest.raises(errors.DeadlineExceededError, match='table empty'):
        next(sampler)
    client.insert(5, {'q': 1.0})
    assert next(sampler).data == [5]
    ending = client.sampler('q', timeout=0, on_timeout='end')
    assert list(ending) == []


def test_delivered_and_prefetched_samples_are_counted_apart(connect):
    table = testing_util.uniform_table()
    client = connect(table)
    for i in range(5):
        client.insert(i, {'t': 1.0})
    with client.sampler('t', max_in_flight=32) as sampler:
        next(sampler)
        testing_util.eventually(lambda: table.info.rate_limiter_info.sample_stats.delivered == 1)
        stats = table.info.rate_limiter_info.sample_stats
        assert stats.completed > 1
        assert stats.in_flight == stats.completed - stats.delivered
    testing_util.eventually(lambda: table.info.rate_limiter_info.sample_stats.in_flight == 0)
    stats = table.info.rate_limiter_info.sample_stats
    assert stats.completed == stats.delivered + stats.returned
