"""This package's clients and servers with those of the released dm-reverb, in both directions.

Each side runs the functions of `interop_peer`; the other package lives in a process of its own, since
it needs another TensorFlow.
"""

import numpy as np
import pytest

import reverb_tf
from tests import interop_peer as peer_lib
from tests.interop_sides import HOW_TO, PYTHON, Ours, Theirs

pytestmark = pytest.mark.skipif(not PYTHON, reason=HOW_TO)


@pytest.fixture(scope='module')
def sides():
    """Name -> side."""
    theirs = Theirs()
    yield {'ours': Ours(False), 'in_process': Ours(True), 'theirs': theirs}
    theirs.close()


class Road:
    """Who writes, who serves and who reads; servers live until the test ends."""

    def __init__(self, sides, writer, server, reader):
        self.writer, self.server, self.reader = sides[writer], sides[server], sides[reader]
        self.addresses = []

    def serve(self, *tables):
        """The address of a new server; by default of a Fifo table 't'."""
        self.addresses.append(self.server.run('serve', list(tables) or [{'name': 't'}]))
        return self.addresses[-1]

    def close(self):
        for address in self.addresses:
            self.server.run('stop', address)


@pytest.fixture
def road(request, sides):
    r = Road(sides, *request.param)
    yield r
    r.close()


# Writer, server, reader.
ROADS = [
    ('theirs', 'ours', 'ours'),
    ('theirs', 'ours', 'in_process'),
    ('theirs', 'ours', 'theirs'),
    ('ours', 'ours', 'theirs'),
    ('in_process', 'ours', 'theirs'),
    ('ours', 'theirs', 'ours'),
    ('ours', 'theirs', 'theirs'),
    ('theirs', 'theirs', 'ours'),
]
all_roads = pytest.mark.parametrize('road', ROADS, indirect=True, ids='-'.join)
# A client of one package with the other's server.
MIXED = [('theirs', 'ours', 'theirs'), ('ours', 'theirs', 'ours')]
mixed = pytest.mark.parametrize('road', MIXED, indirect=True, ids='-'.join)

plain = peer_lib.plain


def columns(indices, *names):
    """The plain columns of counted steps."""
    return [plain(peer_lib.steps(indices, name)) for name in names]


# ---- Values ------------------------------------------------------------------------------


@all_roads
@pytest.mark.parametrize('dtype', peer_lib.NUMERIC)
def test_inserted_number_comes_back_to_the_bit(road, dtype):
    address = road.serve()
    road.writer.run('insert_typed', address, [dtype])
    expected = plain(peer_lib.typed_cell(dtype, 0)[None])
    assert road.reader.run('sample', address, 1) == [[expected]]


@all_roads
def test_trajectory_of_every_dtype_comes_back_to_the_bit(road):
    address = road.serve()
    road.writer.run('write_typed', address, peer_lib.NUMERIC)
    expected = [
        plain(np.stack([peer_lib.typed_cell(d, 100 * i + k) for i in range(3)]))
        for k, d in enumerate(peer_lib.NUMERIC)
    ]
    assert road.reader.run('sample', address, 1) == [expected]


@all_roads
def test_strings_of_any_bytes_come_back(road):
    address = road.serve()
    road.writer.run('insert', address, peer_lib.STRINGS, {'t': 1.0})
    expected = [plain(np.asarray(s, object)[None]) for s in peer_lib.STRINGS]
    assert road.reader.run('sample', address, 1) == [expected]


@all_roads
def test_shapes_come_back(road):
    cells = [np.float32(3), np.zeros((0, 3), np.int32), np.arange(720.0).reshape(1, 2, 3, 4, 5, 6)]
    address = road.serve()
    road.writer.run('insert', address, cells, {'t': 1.0})
    assert road.reader.run('sample', address, 1) == [[plain(np.asarray(c)[None]) for c in cells]]


@all_roads
def test_windows_over_shared_chunks_come_back(road):
    address = road.serve({'name': 't', 'max_times_sampled': 1})
    road.writer.run('write_windows', address, 7, 20, 3)
    expected = [columns(range(i, i + 7), 'act', 'obs', 'txt') for i in range(20)]
    assert [road.reader.run('sample', address, 1)[0] for _ in expected] == expected


@all_roads
def test_long_trajectory_of_many_chunks_comes_back(road):
    address = road.serve()
    road.writer.run('write_windows', address, 1000, 1, 10)
    expected = columns(range(1000), 'act', 'obs', 'txt')
    assert road.reader.run('sample', address, 1) == [expected]


@all_roads
def test_frames_come_back(road):
    address = road.serve()
    road.writer.run('write_windows', address, 40, 1, 8, frames=True)
    frames = plain(np.stack([peer_lib.frame(i) for i in range(40)]))
    [[act, img, obs, txt]] = road.reader.run('sample', address, 1)
    assert img == frames
    assert [act, obs, txt] == columns(range(40), 'act', 'obs', 'txt')


@all_roads
def test_squeezed_column_comes_back(road):
    address = road.serve()
    road.writer.run('write_squeezed', address)
    expected = [plain(np.int32(3)), *columns([3], 'obs'), *columns([1, 2, 3], 'txt')]
    assert road.reader.run('sample', address, 1) == [expected]


@all_roads
def test_column_with_holes_comes_back(road):
    address = road.serve()
    road.writer.run('write_holes', address)
    expected = [plain(np.arange(6)), plain(np.array([1, 3, 5], np.float32))]
    assert road.reader.run('sample', address, 1) == [expected]


@all_roads
def test_item_over_two_episodes_comes_back(road):
    address = road.serve()
    road.writer.run('write_over_episodes', address)
    assert road.reader.run('sample', address, 1) == [columns(range(5), 'act', 'obs', 'txt')]


@all_roads
@pytest.mark.parametrize('delta_encoded', [False, True])
@pytest.mark.parametrize('chunk_length', [None, 1, 3])
def test_rows_come_back(road, delta_encoded, chunk_length):
    address = road.serve({'name': 't', 'max_times_sampled': 1})
    road.writer.run('write_by_rows', address, delta_encoded, chunk_length)
    for i in range(12):
        rows = range(max(0, i - 4), i + 1)
        expected = [
            plain(np.stack([peer_lib.frame(r) for r in rows])),
            plain(np.array(rows, np.int64) * 2**40),
            plain(np.stack([np.full((2,), r, np.float32) for r in rows])),
        ]
        assert road.reader.run('sample', address, 1) == [expected]


@all_roads
def test_items_of_patterns_come_back(road):
    address = road.serve({'name': 't', 'max_times_sampled': 1})
    road.writer.run('write_patterns', address)
    expected = []
    for i in range(6):
        last = columns([i], 'txt')[0]
        last = (last[0], (), last[2])
        if i % 2 == 1:
            expected.append([*columns([i - 1, i], 'act'), last])
        if i >= 4:
            expected.append([*columns([i - 4, i - 2, i], 'act'), last])
    assert [road.reader.run('sample', address, 1)[0] for _ in expected] == expected


@all_roads
@pytest.mark.parametrize('cell_bytes, cells', [(20 << 20, 1), (1 << 20, 20)])
def test_item_of_20_mb_comes_back(road, cell_bytes, cells):
    address = road.serve()
    road.writer.run('write_large', address, cell_bytes, cells)
    expected = plain(np.stack([peer_lib.noise(i, cell_bytes) for i in range(cells)]))
    assert road.reader.run('sample', address, 1) == [[expected]]


@all_roads
def test_item_of_one_step_in_several_tables_comes_back(road):
    address = road.serve({'name': 'a'}, {'name': 'b'})
    road.writer.run('insert', address, [np.int32(7), b'x'], {'a': 1.0, 'b': 2.0})
    for name in 'ab':
        got = road.reader.run('sample', address, 1, name)
        assert got == [[plain(np.array([7], np.int32)), plain(np.array([b'x'], object))]]


@all_roads
def test_several_writers_at_once_lose_nothing(road):
    address = road.serve({'name': 't', 'sampler': 'Queue', 'max_size': 200})
    assert road.writer.run('write_from_threads', address, 4, 40) == []
    got = road.reader.run('sample', address, 160)
    numbers = [np.frombuffer(number[2], np.int64)[0] for number, _ in got]
    assert sorted(numbers) == list(range(160))
    pictures = [plain(peer_lib.frame(n % 40, (32, 32))[None]) for n in numbers]
    assert [picture for _, picture in got] == pictures


@all_roads
def test_steps_come_back_as_steps(road):
    address = road.serve()
    road.writer.run('write_windows', address, 3, 1, 2)
    expected = [[plain(v) for v in peer_lib.counted_step(i).values()] for i in range(3)]
    assert road.reader.run('sample_steps', address, 1) == [expected]


@pytest.mark.parametrize(
    'road', [r for r in ROADS if r[0] != 'theirs'], indirect=True, ids='-'.join
)
def test_our_strided_trajectory_of_many_chunks_comes_back(road):
    # dm-reverb's writer stores other cells for a stride over several chunks.
    address = road.serve()
    road.writer.run('write_windows', address, 1000, 1, 10, 3)
    expected = columns(range(0, 1000, 3), 'act', 'obs', 'txt')
    assert road.reader.run('sample', address, 1) == [expected]


# ---- TensorFlow ----------------------------------------------------------------------------

COUNTED = {
    'act': ('int32', [None]),
    'obs': ('float32', [None, 3]),
    'txt': ('string', [None]),
}


def counted(indices):
    """The plain trajectory of counted steps."""
    return dict(zip(COUNTED, columns(indices, *COUNTED)))


@all_roads
def test_trajectory_dataset_reads_items_in_order(road):
    address = road.serve({'name': 't', 'max_times_sampled': 1})
    road.writer.run('write_windows', address, 4, 10, 3)
    got = road.reader.run('dataset', address, COUNTED, 10, max_in_flight=1)
    assert got == [counted(range(i, i + 4)) for i in range(10)]


@all_roads
def test_trajectory_dataset_in_batches(road):
    address = road.serve()
    road.writer.run('write_windows', address, 4, 1, 3)
    got = road.reader.run('dataset', address, COUNTED, 3, batch=5)
    batch = {k: plain(np.stack([peer_lib.steps(range(4), k)] * 5)) for k in COUNTED}
    assert got == [batch] * 3


@pytest.mark.parametrize('road', [r for r in ROADS if r[2] == 'ours'], indirect=True, ids='-'.join)
def test_trajectory_dataset_in_fused_batches(road):
    address = road.serve()
    road.writer.run('write_windows', address, 4, 1, 3)
    got = road.reader.run('dataset', address, COUNTED, 3, batch_size=5)
    batch = {k: plain(np.stack([peer_lib.steps(range(4), k)] * 5)) for k in COUNTED}
    assert got == [batch] * 3


@all_roads
@pytest.mark.parametrize('delta_encoded', [False, True])
def test_trajectory_dataset_reads_rows(road, delta_encoded):
    address = road.serve({'name': 't', 'max_times_sampled': 1})
    road.writer.run('write_by_rows', address, delta_encoded, 3)
    specs = [('uint8', [None, 84, 84, 1]), ('int64', [None]), ('float32', [None, 2])]
    got = road.reader.run('dataset', address, specs, 12, max_in_flight=1)
    numbers = [np.frombuffer(element[1][2], np.int64) >> 40 for element in got]
    assert [n.tolist() for n in numbers] == [list(range(max(0, i - 4), i + 1)) for i in range(12)]
    for element, rows in zip(got, numbers):
        assert element[0] == plain(np.stack([peer_lib.frame(r) for r in rows]))


@all_roads
def test_trajectory_dataset_takes_its_specs_from_the_table(road):
    address = road.serve({'name': 't', 'signature': COUNTED})
    road.writer.run('write_windows', address, 4, 1, 3)
    got = road.reader.run('dataset_of_signature', address, 2)
    assert got == [counted(range(4))] * 2


@pytest.mark.parametrize(
    'road', [r for r in ROADS if r[2] == 'theirs'], indirect=True, ids='-'.join
)
def test_timestep_dataset_reads_steps(road):
    address = road.serve({'name': 't', 'max_times_sampled': 1})
    road.writer.run('write_windows', address, 3, 4, 2)
    specs = {k: (dtype, shape[1:]) for k, (dtype, shape) in COUNTED.items()}
    got = road.reader.run('dataset', address, specs, 12, kind='TimestepDataset', max_in_flight=1)
    order = [i + j for i in range(4) for j in range(3)]
    assert got == [{k: plain(v) for k, v in peer_lib.counted_step(i).items()} for i in order]


@mixed
def test_dataset_ends_when_the_limiter_lets_nothing_through(road):
    address = road.serve({'name': 't', 'max_times_sampled': 1})
    road.writer.run('write_windows', address, 3, 4, 2)
    got = road.reader.run('dataset', address, COUNTED, 100, rate_limiter_timeout_ms=100)
    assert sorted(e['act'][2] for e in got) == sorted(
        counted(range(i, i + 3))['act'][2] for i in range(4)
    )


@mixed
def test_dataset_of_other_dtypes_than_the_table_is_refused(road):
    address = road.serve({'name': 't', 'signature': COUNTED})
    road.writer.run('write_windows', address, 3, 1, 2)
    names, text = road.reader.fails(
        'dataset', address, dict(COUNTED, obs=('float64', [None, 3])), 1
    )
    assert 'InvalidArgumentError' in names, text


@mixed
def test_bfloat16_of_tensorflow_comes_back(road):
    address = road.serve()
    road.writer.run('tf_insert_bfloat16', address, [0.5, -3.0])
    assert road.reader.run('tf_sample_bfloat16', address) == [0.5, -3.0]


@mixed
def test_tf_client_inserts_samples_and_updates(road):
    address = road.serve({'name': 't', 'sampler': 'MaxHeap'})
    road.writer.run('tf_insert', address, [1, 2, 3])
    top = lambda: road.reader.run('tf_sample', address, 1)
    assert top() == [[plain(np.int64(3)), plain(np.array(b's3', object))]]
    keys = {priority: key for key, priority in road.reader.run('sample_keys', address, 1)}
    road.writer.run('tf_update', address, [keys[3.0]], [0.0])
    assert top() == [[plain(np.int64(2)), plain(np.array(b's2', object))]]


@all_roads
def test_tf_client_samples_what_the_client_inserted(road):
    address = road.serve()
    road.writer.run('insert', address, [np.int64(5), np.array(b'five', object)], {'t': 1.0})
    expected = [plain(np.int64(5)), plain(np.array(b'five', object))]
    assert road.reader.run('tf_sample', address, 1) == [expected]


# ---- Signatures --------------------------------------------------------------------------------

STEP = {'n': ('int64', []), 'v': ('float32', [2])}
STEP_VALUE = {'n': np.int64(1), 'v': np.ones(2, np.float32)}


@all_roads
def test_sample_has_the_structure_of_the_signature(road):
    address = road.serve({'name': 't', 'signature': COUNTED})
    road.writer.run('write_windows', address, 4, 1, 3)
    assert road.reader.run('sample_nested', address, 1) == [counted(range(4))]


@all_roads
def test_client_inserts_into_a_table_whose_signature_is_of_a_step(road):
    address = road.serve({'name': 't', 'signature': STEP})
    road.writer.run('insert', address, STEP_VALUE, {'t': 1.0})
    assert road.reader.run('sample_steps', address, 1) == [
        [[plain(v) for v in STEP_VALUE.values()]]
    ]


@all_roads
def test_client_inserts_one_leaf_into_a_table_whose_signature_is_of_a_step(road):
    address = road.serve({'name': 't', 'signature': {'n': ('int64', [])}})
    road.writer.run('insert', address, {'n': np.int64(4)}, {'t': 1.0})
    assert road.reader.run('sample_steps', address, 1) == [[[plain(np.int64(4))]]]


@mixed
def test_info_tells_the_table_and_its_signature(road):
    address = road.serve(
        {'name': 't', 'signature': COUNTED, 'min_size': 2, 'max_times_sampled': 3},
        {'name': 'bare', 'max_size': 7},
    )
    road.writer.run('write_windows', address, 3, 4, 2)
    road.reader.run('sample', address, 1)
    got = road.reader.run('info', address)
    assert got['t'].pop('samples') in range(1, 5)
    assert got['t'] == {
        'max_size': 1000,
        'current_size': 4,
        'max_times_sampled': 3,
        'inserts': 4,
        'min_size': 2,
        'episodes': 1,
        'signature': {k: (dtype, shape) for k, (dtype, shape) in COUNTED.items()},
    }
    assert got['bare']['signature'] is None
    assert got['bare']['max_size'] == 7


@mixed
@pytest.mark.parametrize(
    'step',
    [
        dict(STEP_VALUE, n=np.int32(1)),
        dict(STEP_VALUE, v=np.ones(3, np.float32)),
        {'n': np.int64(1)},
    ],
    ids=['dtype', 'shape', 'missing'],
)
@pytest.mark.parametrize('how', ['write_checked', 'insert'])
def test_data_that_breaks_the_signature_is_refused_by_the_client(road, step, how):
    signature = {k: (d, [None, *s] if how == 'write_checked' else s) for k, (d, s) in STEP.items()}
    address = road.serve({'name': 't', 'signature': signature})
    args = (step, {'t': 1.0}) if how == 'insert' else (step,)
    names, text = road.writer.fails(how, address, *args)
    assert 'ValueError' in names, text
    assert road.writer.run('info', address)['t']['current_size'] == 0


def test_our_server_refuses_what_their_writer_did_not_check(sides):
    road = Road(sides, 'theirs', 'ours', 'ours')
    signature = {k: (d, [None, *s]) for k, (d, s) in STEP.items()}
    address = road.serve({'name': 't', 'signature': signature})
    road.writer.fails('write_unchecked', address, dict(STEP_VALUE, n=np.int32(1)))
    road.writer.run('write_unchecked', address, STEP_VALUE)
    assert road.reader.run('info', address)['t']['current_size'] == 1
    road.close()


# ---- Tables ----------------------------------------------------------------------------------


@mixed
def test_priorities_are_updated_and_items_deleted(road):
    address = road.serve({'name': 't', 'sampler': 'MaxHeap'})
    for priority in (1.0, 2.0, 3.0):
        road.writer.run('insert', address, [np.int64(priority)], {'t': priority})
    [(third, priority)] = road.reader.run('sample_keys', address, 1)
    assert priority == 3.0
    road.writer.run('update', address, {third: 0.5, 12345: 9.0})
    [(second, priority)] = road.reader.run('sample_keys', address, 1)
    assert priority == 2.0
    road.writer.run('update', address, {}, [second, 12346])
    [(first, priority)] = road.reader.run('sample_keys', address, 1)
    assert priority == 1.0
    road.writer.run('update', address, {third: 5.0}, [first])
    assert road.reader.run('sample_keys', address, 1) == [(third, 5.0)]


@mixed
def test_sample_tells_probability_size_priority_and_times(road):
    address = road.serve({'name': 't', 'sampler': 'Prioritized'})
    for priority in (1.0, 3.0):
        road.writer.run('insert', address, [np.int64(priority)], {'t': priority})
    infos = road.reader.run('sample_infos', address, 20)
    for probability, size, priority, times in infos:
        assert probability == pytest.approx(priority / 4)
        assert size == 2
        assert times >= 1
    assert sum(1 for i in infos if i[2] == 3.0) >= 5


@mixed
def test_reset_empties_the_table(road):
    address = road.serve()
    road.writer.run('insert', address, [np.int64(1)], {'t': 1.0})
    road.writer.run('reset', address)
    assert road.reader.run('info', address)['t']['current_size'] == 0
    road.writer.run('insert', address, [np.int64(2)], {'t': 1.0})
    assert road.reader.run('sample', address, 1) == [[plain(np.array([2]))]]


@mixed
@pytest.mark.parametrize(
    'function, args',
    [
        ('insert', ([np.int64(1)], {'nope': 1.0})),
        ('reset', ('nope',)),
        ('sample', (1, 'nope')),
    ],
    ids=['insert', 'reset', 'sample'],
)
def test_unknown_table_is_an_error(road, function, args):
    address = road.serve()
    names, text = road.writer.fails(function, address, *args)
    assert {'ValueError', 'RuntimeError'} & set(names), text
    assert 'nope' in text


@mixed
def test_full_queue_holds_the_writer_back_until_there_is_room(road):
    address = road.serve({'name': 't', 'sampler': 'Queue', 'max_size': 4})
    assert road.writer.run('flush_within', address, 6, 200) == 'timeout'
    assert road.writer.run('info', address)['t']['current_size'] == 4


@all_roads
def test_several_readers_of_a_queue_get_each_item_once(road):
    address = road.serve({'name': 't', 'sampler': 'Queue', 'max_size': 100})
    assert road.writer.run('flush_within', address, 100, 10_000) == 'flushed'
    results = road.reader.run('sample_from_threads', address, 4, 25)
    assert [state for state, _ in results] == ['ok'] * 4
    numbers = [np.frombuffer(s[0][2], np.int64)[0] for _, samples in results for s in samples]
    assert sorted(numbers) == list(range(100))


def test_our_sampler_times_out_at_their_limiter(sides):
    address = sides['theirs'].run('serve', [{'name': 't', 'min_size': 2}])
    client = reverb_tf.Client(address)
    client.insert([np.int64(1)], {'t': 1.0})
    with pytest.raises(reverb_tf.DeadlineExceededError):
        next(client.sample('t', timeout=0.1))
    assert list(client.sample('t', 3, timeout=0.1, on_timeout='end')) == []
    client.insert([np.int64(2)], {'t': 1.0})
    assert [s[0].data[0] for s in client.sample('t', timeout=10)] == [1]
    sides['theirs'].run('stop', address)


def test_our_sampler_takes_nothing_ahead_from_their_queue(sides):
    address = sides['theirs'].run('serve', [{'name': 't', 'sampler': 'Queue'}])
    client = reverb_tf.Client(address)
    for i in range(5):
        client.insert([np.int64(i)], {'t': 1.0})
    samples = client.sample('t', 5)
    assert next(samples)[0].data[0] == 0
    assert client.server_info()['t'].current_size == 4
    samples.close()
    assert [s[0].data[0] for s in client.sample('t', 4)] == [1, 2, 3, 4]
    sides['theirs'].run('stop', address)


def test_their_servers_mutation_counts_are_unknown(sides):
    address = sides['theirs'].run('serve', [{'name': 't'}])
    client = reverb_tf.Client(address)
    keys = client.insert([np.int64(1)], {'t': 1.0})
    result = client.mutate_priorities('t', {keys['t']: 2.0})
    assert (result.updated, result.deleted, result.not_found) == (-1, -1, -1)
    sides['theirs'].run('stop', address)
