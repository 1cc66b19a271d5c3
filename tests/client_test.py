"""Clients: arguments, inserts, updates, information and life, over both roads."""

import pickle
import threading

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import errors
from tests import testing_util


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


def test_sample_times_out_alike_while_no_server_is_there(tmp_path):
    client = reverb_tf.Client(f'unix:{tmp_path}/nobody')
    assert list(client.sample('t', 1, timeout=0.1, on_timeout='end')) == []
    with pytest.raises(errors.DeadlineExceededError):
        next(client.sample('t', 1, timeout=0.1))


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


def test_client_pickles_by_address():
    client = pickle.loads(pickle.dumps(reverb_tf.Client('localhost:1', timeout=3)))
    assert (client.server_address, client.timeout) == ('localhost:1', 3)


# ---- Arguments -------------------------------------------------------------------


def calls_with(client):
    """{name: fn(keyword arguments)} of everything a client is asked for, with defaults."""

    def sample(**kwargs):
        return client.sample(**{'table': 't', **kwargs})

    def sampler(**kwargs):
        return client.sampler(**{'table': 't', **kwargs})

    def insert(**kwargs):
        return client.insert(**{'data': 1, 'priorities': {'t': 1.0}, **kwargs})

    def mutate(**kwargs):
        return client.mutate_priorities(**{'table': 't', **kwargs})

    def writer(**kwargs):
        return client.trajectory_writer(**{'num_keep_alive_refs': 1, **kwargs})

    return {
        'sample': sample,
        'sampler': sampler,
        'insert': insert,
        'mutate': mutate,
        'writer': writer,
        'reset': client.reset,
        'explain': client.explain,
        'server_info': client.server_info,
    }


@pytest.mark.parametrize(
    'call, kwargs, error, text',
    [
        ('sample', {'table': 3}, TypeError, 'table must be a str'),
        ('sample', {'table': ''}, ValueError, 'table'),
        ('sample', {'num_samples': 1.0}, TypeError, 'num_samples'),
        ('sample', {'num_samples': 0}, ValueError, 'num_samples'),
        ('sample', {'num_samples': 2**63}, ValueError, 'num_samples'),
        ('sample', {'timeout': '1'}, TypeError, 'timeout'),
        ('sample', {'timeout': -1}, ValueError, 'timeout'),
        ('sample', {'timeout': float('nan')}, ValueError, 'timeout'),
        ('sample', {'on_timeout': 'stop'}, ValueError, 'on_timeout'),
        ('sampler', {'table': b't'}, TypeError, 'table'),
        ('sampler', {'max_samples': 0}, ValueError, 'max_samples'),
        ('sampler', {'max_in_flight': 0}, ValueError, 'max_in_flight'),
        ('sampler', {'max_in_flight': 0.5}, TypeError, 'max_in_flight'),
        ('sampler', {'num_workers': 0}, ValueError, 'num_workers'),
        ('sampler', {'num_workers': 2**31}, ValueError, 'num_workers'),
        ('sampler', {'consume_ahead': -1}, ValueError, 'consume_ahead'),
        ('sampler', {'on_timeout': None}, ValueError, 'on_timeout'),
        ('insert', {'data': None}, ValueError, 'no leaf'),
        ('insert', {'data': {}}, ValueError, 'no leaf'),
        ('insert', {'data': {'x': {1}}}, TypeError, "'x'"),
        ('insert', {'priorities': [('t', 1.0)]}, TypeError, 'priorities must be a dict'),
        ('insert', {'priorities': {3: 1.0}}, TypeError, 'table of priorities'),
        ('insert', {'priorities': {'t': '1'}}, TypeError, "priority for table 't'"),
        ('insert', {'priorities': {'t': None}}, TypeError, "priority for table 't'"),
        ('insert', {'priorities': {'t': float('nan')}}, ValueError, 'NaN'),
        ('insert', {'timeout': True}, TypeError, 'timeout'),
        ('mutate', {'table': 3}, TypeError, 'table'),
        ('mutate', {'updates': 3}, TypeError, 'updates must be a sequence'),
        ('mutate', {'updates': [1, 2]}, TypeError, 'updates must be a mapping or pairs'),
        ('mutate', {'updates': {1.5: 1.0}}, TypeError, 'key of updates must be an int'),
        ('mutate', {'updates': {'1': 1.0}}, TypeError, 'key of updates'),
        ('mutate', {'updates': {-1: 1.0}}, ValueError, 'key of updates'),
        ('mutate', {'updates': {2**64: 1.0}}, ValueError, 'key of updates'),
        ('mutate', {'updates': {1: '1'}}, TypeError, 'priority of key 1'),
        ('mutate', {'updates': {1: float('nan')}}, ValueError, 'NaN'),
        ('mutate', {'deletes': 3}, TypeError, 'deletes must be a sequence'),
        ('mutate', {'deletes': [1.5]}, TypeError, 'key of deletes'),
        ('mutate', {'timeout': 'x'}, TypeError, 'timeout'),
        ('writer', {'num_keep_alive_refs': 0}, ValueError, 'num_keep_alive_refs'),
        ('writer', {'num_keep_alive_refs': 1.0}, TypeError, 'num_keep_alive_refs'),
        ('writer', {'num_keep_alive_refs': 2**63}, ValueError, 'num_keep_alive_refs'),
        ('writer', {'max_in_flight_items': 0}, ValueError, 'max_in_flight_items'),
        ('writer', {'max_in_flight_bytes': 1e9}, TypeError, 'max_in_flight_bytes'),
        ('writer', {'step_spec': {'a': 3}}, ValueError, "step_spec leaf 'a'"),
        ('writer', {'step_spec': np.zeros(1, 'M8[s]')}, ValueError, 'datetime64'),
        ('writer', {'timeout': [1]}, TypeError, 'timeout'),
        ('reset', {'table': None}, TypeError, 'table'),
        ('explain', {'table': 3}, TypeError, 'table'),
        ('explain', {'table': 'nope'}, errors.NotFoundError, "only 't'"),
        ('server_info', {'timeout': '3'}, TypeError, 'timeout'),
    ],
)
def test_wrong_argument_of_a_call_is_named_and_nothing_happens(connect, call, kwargs, error, text):
    table = testing_util.uniform_table()
    client = connect(table)
    with pytest.raises(error) as raised:
        calls_with(client)[call](**kwargs)
    assert text in str(raised.value)
    assert 'incompatible function arguments' not in str(raised.value)
    assert table.info.insert_count == table.info.sample_count == 0


@pytest.mark.parametrize(
    'kwargs, error, text',
    [
        ({'server_address': 3}, TypeError, 'server_address'),
        ({'server_address': None}, TypeError, 'server_address'),
        ({'server_address': ['localhost:1', 'localhost:2']}, NotImplementedError, 'addresses'),
        ({'timeout': '1'}, TypeError, 'timeout'),
        ({'timeout': -1}, ValueError, 'timeout'),
        ({'timeout': float('nan')}, ValueError, 'timeout'),
    ],
)
def test_wrong_argument_of_a_client_is_named(kwargs, error, text):
    with pytest.raises(error, match=text):
        reverb_tf.Client(**{'server_address': 'localhost:1', **kwargs})


@pytest.mark.parametrize('make', [int, np.int64, np.array, np.float32], ids=str)
def test_numpy_and_0d_scalars_are_numbers(connect, make):
    ints = int if make is np.float32 else make
    client = connect(reverb_tf.Table.queue('q', 20))
    assert reverb_tf.Client('localhost:1', timeout=make(3)).timeout == 3.0
    key = client.insert(1, {'q': make(2)}, timeout=make(20))['q']
    updates = [(ints(key), make(3)), (ints(7), make(1))]
    assert client.mutate_priorities('q', updates, timeout=make(20)) == (1, 0, 1)
    sampler = client.sampler(
        'q',
        max_samples=ints(1),
        max_in_flight=ints(4),
        num_workers=ints(1),
        consume_ahead=ints(1),
        timeout=make(20),
    )
    (sample,) = sampler
    assert (sample.info.key, sample.info.priority) == (key, 3.0)
    client.insert(1, {'q': 1.0})
    assert len(list(client.sample('q', ints(1)))) == 1
    writer = client.trajectory_writer(
        ints(2), max_in_flight_items=ints(9), max_in_flight_bytes=ints(9999), timeout=make(20)
    )
    writer.append({'x': 1})
    writer.create_item('q', make(1), writer.history['x'][ints(0)], timeout=make(20))
    writer.flush(ints(0), timeout=make(20))
    writer.end_episode(timeout_ms=make(20_000))
    assert writer.close(timeout=make(20)) == 0
    client.server_info(timeout=make(20))
    server = reverb_tf.Server([testing_util.uniform_table()], port=ints(0))
    assert not server.wait(make(0))
    server.stop(grace=make(0))


def test_keys_and_priorities_may_come_as_arrays(connect):
    client = connect(testing_util.uniform_table())
    keys = np.array([client.insert(1, {'t': 1.0})['t'] for _ in range(3)], np.uint64)
    priorities = np.float32([1, 2, 3])
    assert client.mutate_priorities('t', zip(keys, priorities, strict=True)) == (3, 0, 0)
    assert client.mutate_priorities('t', deletes=keys[:2].astype(np.int64)) == (0, 2, 0)
    assert client.mutate_priorities('t') == (0, 0, 0)


# ---- Inserts and updates -----------------------------------------------------------


@pytest.mark.parametrize(
    'data, text',
    [
        ({'x': 3.0}, 'differs: x got float64[] expected int64[]'),
        ({'x': np.int32(3)}, 'hint'),
        ({'x': np.zeros(2, np.int64)}, 'x got int64[2]'),
        ({'y': 3}, 'missing: x; extra: y'),
        ({'x': 1, 'y': 3}, 'extra: y'),
        ([1, 2], 'extra: [1]'),
    ],
)
def test_insert_that_breaks_the_signature_names_paths(connect, data, text):
    table = testing_util.uniform_table(signature={'x': tf.TensorSpec([], tf.int64)})
    client = connect(table)
    with pytest.raises(ValueError) as raised:
        client.insert(data, {'t': 1.0})
    assert text in str(raised.value)
    assert len(table) == 0


def test_nan_is_no_priority_of_any_table(connect):
    tables = [
        reverb_tf.Table(n, s, reverb_tf.selectors.Fifo(), 9, reverb_tf.rate_limiters.MinSize(1))
        for n, s in {
            'u': reverb_tf.selectors.Uniform(),
            'h': reverb_tf.selectors.MinHeap(),
            'p': reverb_tf.selectors.Prioritized(1.0),
        }.items()
    ]
    client = connect(*tables)
    for table in 'uhp':
        key = client.insert(1, {table: 1.0})[table]
        for bad in [float('nan'), *([float('inf'), -1.0] if table == 'p' else [])]:
            with pytest.raises(ValueError):
                client.insert(1, {table: bad})
            with pytest.raises(ValueError):
                client.mutate_priorities(table, {key: bad})
        for good in [0.0, *([] if table == 'p' else [float('inf'), -1.0])]:
            client.mutate_priorities(table, {key: good})
            assert next(client.sample(table, 1))[0].info.priority == good
    assert [len(table) for table in tables] == [1, 1, 1]


def test_insert_that_times_out_says_what_is_missing(connect):
    client = connect(testing_util.uniform_table('t'), reverb_tf.Table.queue('q', 1))
    client.insert(1, {'q': 1.0})
    with pytest.raises(errors.DeadlineExceededError, match="table 'q': 1.*blocked by rate limiter"):
        client.insert(1, {'t': 1.0, 'q': 1.0}, timeout=0.3)
    info = client.server_info()
    assert (info['t'].current_size, info['q'].current_size) == (1, 1)


def test_keys_are_positive_and_fit_int64(connect):
    client = connect(testing_util.uniform_table())
    keys = {client.insert(1, {'t': 1.0})['t'] for _ in range(50)}
    assert len(keys) == 50
    assert all(0 < key < 2**63 for key in keys)


def test_a_step_of_400_mb(connect):
    client = connect(reverb_tf.Table.queue('q', 1))
    step = np.arange(50 << 20, dtype=np.int64)  # 400 MiB
    client.insert(step, {'q': 1.0}, timeout=200)
    (sample,) = next(client.sample('q', 1, timeout=200))
    assert sample.data[0].shape == step.shape
    assert np.array_equal(sample.data[0], step)


# ---- Life --------------------------------------------------------------------------


def test_close_ends_what_waits_and_refuses_later_calls_but_not_writers(connect):
    table = testing_util.uniform_table()
    client = connect(table)
    writer = client.trajectory_writer(1)
    writer.append(1)
    failed = []

    def wait():
        try:
            next(client.sample('t', 1, timeout=30))
        except errors.ReverbError as e:
            failed.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    testing_util.eventually(lambda: table.info.num_waiting_samples == 1)
    with client:
        pass
    client.close()
    thread.join(10)
    assert isinstance(failed[0], errors.CancelledError)
    for call in (
        client.server_info,
        lambda: client.insert(1, {'t': 1.0}),
        lambda: client.trajectory_writer(1),
        lambda: next(client.sample('t', 1)),
    ):
        with pytest.raises(errors.FailedPreconditionError, match='closed'):
            call()
    writer.create_item('t', 1.0, writer.history[:])
    writer.flush(timeout=20)
    assert len(table) == 1
    writer.close()


def test_explain_tells_of_tables_and_connection(connect):
    client = connect(testing_util.uniform_table('t', min_size=2), testing_util.uniform_table('u'))
    client.insert(1, {'t': 1.0})
    text = client.explain()
    assert 'size 1 < min_size 2' in text
    assert "table 'u'" in text
    assert client.server_address in text
    assert "table 'u'" not in client.explain('t')


def test_the_environment_forces_the_network(monkeypatch):
    monkeypatch.setenv('REVERB_TF_INPROCESS', '0')
    with reverb_tf.Server([testing_util.uniform_table()]) as server:
        client = reverb_tf.Client(server.address)
        client.server_info(timeout=20)
        assert 'in process' not in client.explain()


def test_the_default_timeout_comes_from_the_environment(monkeypatch):
    assert reverb_tf.get_default_timeout() == float('inf')
    monkeypatch.setenv('REVERB_TF_TIMEOUT', '0.2')
    assert reverb_tf.get_default_timeout() == 0.2
    with pytest.raises(errors.DeadlineExceededError):
        reverb_tf.Client('localhost:1').server_info()
    reverb_tf.set_default_timeout(np.float32(3))
    try:
        assert reverb_tf.get_default_timeout() == 3
    finally:
        reverb_tf.set_default_timeout(None)
    for bad in ('soon', '-1', 'nan'):
        monkeypatch.setenv('REVERB_TF_TIMEOUT', bad)
        with pytest.raises(ValueError, match='REVERB_TF_TIMEOUT'):
            reverb_tf.get_default_timeout()


def test_a_timeout_is_given_in_one_unit(connect):
    client = connect(testing_util.uniform_table())
    writer = client.trajectory_writer(1)
    with pytest.raises(ValueError, match='not both'):
        writer.flush(timeout=1, timeout_ms=1)
    with pytest.raises(ValueError, match='timeout_ms'):
        writer.flush(timeout_ms=-2)
    writer.flush(timeout_ms=-1)
    writer.flush(timeout=0)
    writer.close()
