"""The columns of a TrajectoryWriter: history, cells, casts and options, over both roads."""

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import errors
from tests import testing_util


def test_history_indexes_like_a_list(client):
    writer = client.trajectory_writer(10)
    for i in range(5):
        writer.append({'x': i})
    history = writer.history['x']
    expected = list(range(5))
    for index in (
        0,
        -1,
        np.int64(2),
        slice(None),
        slice(-3, None),
        slice(4, None, -2),
        slice(9, 20),
    ):
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
    with pytest.raises(ValueError, match='num_keep_alive_refs is 1, the oldest usable index is 1'):
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


def test_strided_reversed_and_repeated_cells_come_back(client):
    writer = client.trajectory_writer(10)
    for i in range(10):
        writer.append({'x': np.full((2,), i, np.int16)})
    for index in (slice(None, None, 3), slice(None, None, -1), [1, 1, 7]):
        writer.create_item('q', 1.0, {'x': writer.history['x'][index]})
        writer.flush()
        want = np.arange(10, dtype=np.int16)[index]
        np.testing.assert_array_equal(testing_util.data_of(client)[0], np.stack([want, want], 1))
    writer.close()


def test_a_column_indexes_like_its_cells(client):
    writer = client.trajectory_writer(10)
    for i in range(5):
        writer.append({'x': np.full(2, i, np.int16)})
    column = writer.history['x'][1:]
    assert (column.shape, column.dtype, column.is_squeezed) == ((4, 2), np.int16, False)
    assert column.path == 'x'
    assert [int(c.numpy()[0]) for c in column] == [1, 2, 3, 4]
    for index in (slice(None, None, -1), [0, -1, 0], np.array([2]), slice(9, None)):
        want = np.arange(1, 5)[index]
        got = column[index]
        assert got.shape == (len(want), 2)
        assert got.numpy()[:, 0].tolist() == want.tolist()
    one = column[np.int64(-1)]
    assert (one.shape, one.is_squeezed, len(one)) == ((2,), True, 1)
    for bad, error in ((4, IndexError), ([9], IndexError), ('a', TypeError), (True, TypeError)):
        with pytest.raises(error):
            column[bad]
    with pytest.raises(TypeError, match='squeezed'):
        one[0]
    writer.close()


def test_columns_can_be_made_of_cells(client):
    writer = client.trajectory_writer(10)
    for i in range(3):
        writer.append({'x': i, 'y': -i, 'z': 0.5})
    h = writer.history
    mixed = reverb_tf.TrajectoryColumn([h['x'][2], h['y'][1], h['x'][0]], path=('a', 0))
    assert isinstance(mixed, reverb_tf.TrajectoryColumn)
    assert mixed.path == 'a[0]'
    assert mixed.numpy().tolist() == [2, -1, 0]
    squeezed = reverb_tf.TrajectoryColumn([h['y'][1]], squeeze=True)
    writer.create_item('q', 1.0, {'m': mixed, 's': squeezed})
    writer.flush()
    got = testing_util.data_of(client)
    assert [c.tolist() for c in got] == [[2, -1, 0], -1]
    with pytest.raises(ValueError, match='exactly one cell, got 2'):
        reverb_tf.TrajectoryColumn([h['x'][0], h['x'][1]], squeeze=True)
    with pytest.raises(ValueError, match='mixes cells'):
        writer.create_item('q', 1.0, reverb_tf.TrajectoryColumn([h['x'][0], h['z'][0]]))
    with pytest.raises(TypeError, match='TrajectoryColumns, got int'):
        reverb_tf.TrajectoryColumn([3])
    with pytest.raises(TypeError, match='data_references must be a sequence'):
        reverb_tf.TrajectoryColumn(3)
    with pytest.raises(TypeError, match='squeeze'):
        reverb_tf.TrajectoryColumn([h['x'][0]], squeeze=3)
    other = client.trajectory_writer(1)
    other.append({'x': 1})
    with pytest.raises(ValueError, match='different writers'):
        reverb_tf.TrajectoryColumn([h['x'][0], other.history['x'][0]])
    with pytest.raises(ValueError, match='another writer'):
        writer.create_item('q', 1.0, {'x': other.history['x'][0]})
    other.close()
    writer.close()


def test_step_spec_casts(client):
    spec = {'obs': np.zeros((3,), np.float32), 'act': np.zeros((), np.int32)}
    writer = client.trajectory_writer(1, step_spec=spec)
    writer.append({'obs': np.zeros(3), 'act': 1})
    history = writer.history
    writer.create_item('signed', 1.0, {'obs': history['obs'][-1], 'act': history['act'][-1]})
    writer.flush()
    assert testing_util.data_of(client, 'signed')['obs'].dtype == np.float32
    writer.close()


def test_indices_that_do_not_fit_are_out_of_range(client):
    writer = client.trajectory_writer(2)
    writer.append({'x': 1})
    history = writer.history['x']
    assert history[np.array(-1)].numpy() == history[tf.constant(0)].numpy() == 1
    for bad in (2**70, [2**70], np.array([2**63], np.uint64)):
        with pytest.raises(IndexError):
            history[bad]
        with pytest.raises(IndexError):
            history[:][bad]
    for bad in (True, np.bool_(1), [True], ['a'], np.array([True]), np.zeros((1, 1), int), ...):
        with pytest.raises(TypeError):
            history[bad]
    writer.close()


def test_cells_before_a_columns_first_are_holes(client):
    writer = client.trajectory_writer(5)
    writer.append({'x': 1})
    writer.append({'x': 2, 'y': 2})
    assert len(writer.history['y']) == 2
    for index in (0, slice(None), [1, 0]):
        with pytest.raises(ValueError, match="'y'.*cannot contain any None.*step 0"):
            writer.history['y'][index]
    assert writer.history['y'][-1].numpy() == 2
    writer.close()


def test_history_before_the_first_step_needs_a_spec(client):
    writer = client.trajectory_writer(2)
    with pytest.raises(RuntimeError, match='step_spec'):
        writer.history  # noqa: B018
    writer.close()
    writer = client.trajectory_writer(2, step_spec={'x': np.zeros(2)})
    assert len(writer.history['x']) == 0
    with pytest.raises(ValueError, match='no cell'):
        writer.history['x'][:].shape  # noqa: B018
    writer.close()


SPEC = {
    'a': tf.TensorSpec([2], tf.float32),
    'b': tf.TensorSpec([], tf.int32),
    's': tf.TensorSpec([], tf.string),
    'u': tf.TensorSpec([None], tf.bfloat16),
}


def test_step_spec_casts_by_same_kind(client):
    writer = client.trajectory_writer(5, step_spec=SPEC)
    writer.append({'a': np.zeros(2), 'b': True, 's': 'q', 'u': np.zeros(1)})
    writer.append({'a': np.zeros(2, int), 'b': np.uint64(7), 's': b'q', 'u': np.float32([1.5])})
    writer.append_batch({'a': np.ones((1, 2)), 'b': np.arange(1), 's': np.array(['x'])})
    dtypes = {k: writer.history[k][-1].dtype for k in 'abs'}
    assert dtypes == {'a': np.float32, 'b': np.int32, 's': object}
    assert writer.history['b'][:].numpy().tolist() == [1, 7, 0]
    writer.close()


@pytest.mark.parametrize(
    'step, text',
    [
        ({'c': 1}, 'extra: c'),
        ({'a': np.zeros(3)}, r"'a': got shape \(3,\), expected \(2,\)"),
        ({'a': 1.0}, "'a': got shape"),
        ({'b': 1.5}, "'b': cannot cast float64 to int32"),
        ({'b': 2**40}, "'b': value out of range for int32"),
        ({'b': 'x'}, "'b': got string, expected int32"),
        ({'s': 3}, "'s': got int64, expected string"),
        ({'u': 1.0}, "'u'"),
        ([1], 'is a list, was a dict'),
    ],
)
def test_step_spec_refuses_what_does_not_fit(client, step, text):
    writer = client.trajectory_writer(5, step_spec=SPEC)
    with pytest.raises(ValueError, match=text):
        writer.append(step)
    if isinstance(step, dict):
        batch = {k: np.stack([v, v]) for k, v in step.items()}
        with pytest.raises(ValueError):
            writer.append_batch(batch)
    assert sorted(writer.history) == sorted(SPEC)
    assert writer.episode_steps == 0
    writer.close()


def test_step_spec_may_be_a_signature_of_the_server(client):
    signature = client.server_info()['signed'].signature
    writer = client.trajectory_writer(1, step_spec=signature)
    writer.append({'obs': np.arange(3.0), 'act': 1})
    writer.create_item('signed', 1.0, {k: writer.history[k][-1] for k in ('obs', 'act')})
    writer.flush()
    assert testing_util.data_of(client, 'signed')['act'].dtype == np.int32
    writer.close()


def test_configured_dtype_casts_one_column(client):
    writer = client.trajectory_writer(5)
    writer.configure('f/x', dtype=tf.float32)
    writer.configure(('f', 'y'), dtype='int8')
    writer.append({'f': {'x': 1.5, 'y': 3, 'z': 1.5}})
    dtypes = {k: writer.history['f'][k][0].dtype for k in 'xyz'}
    assert dtypes == {'x': np.float32, 'y': np.int8, 'z': np.float64}
    for bad, text in (({'x': 'a'}, 'f/x'), ({'y': 200}, 'f/y.*out of range'), ({'y': 1.5}, 'f/y')):
        with pytest.raises(ValueError, match=text):
            writer.append({'f': bad})
    with pytest.raises(errors.FailedPreconditionError, match='has cells of float64'):
        writer.configure('f/z', dtype=np.float32)
    writer.close()


@pytest.mark.parametrize('codec', ['auto', 'snappy', 'none'])
@pytest.mark.parametrize('dtype', [np.uint8, np.int16, np.int64, np.float32])
def test_delta_coding_is_lossless(client, codec, dtype):
    writer = client.trajectory_writer(50)
    writer.configure(
        'x', num_keep_alive_refs=50, max_chunk_length=50, codec=codec, delta_encode=True
    )
    rows = (np.arange(50 * 100).reshape(50, 100) * 7 % 251 - 100).astype(dtype)
    writer.append_batch({'x': rows})
    writer.create_item('q', 1.0, {'x': writer.history['x'][::-1]})
    writer.flush()
    np.testing.assert_array_equal(testing_util.data_of(client)[0], rows[::-1])
    writer.close()


def test_delta_coding_shrinks_what_changes_slowly(client):
    # Noise that only a difference to the row before reveals as the same each time.
    noise = np.random.default_rng(0).integers(0, 2**31, 4000, np.int32)
    rows = np.stack([noise + i for i in range(20)])
    sizes = []
    for table, delta in (('t', True), ('q', False)):
        writer = client.trajectory_writer(20)
        writer.configure('x', max_chunk_length=20, delta_encode=delta)
        writer.append_batch({'x': rows})
        writer.create_item(table, 1.0, {'x': writer.history['x'][:]})
        writer.close()
        sizes.append(client.server_info()[table].bytes_stored)
    assert sizes[0] < sizes[1] / 4


@pytest.mark.parametrize(
    'kwargs, error, text',
    [
        ({'path': 3}, TypeError, 'path must be a str'),
        ({'num_keep_alive_refs': 0}, ValueError, 'num_keep_alive_refs'),
        ({'num_keep_alive_refs': '3'}, TypeError, 'num_keep_alive_refs'),
        ({'max_chunk_length': 0}, ValueError, 'max_chunk_length'),
        ({'max_chunk_length': 9}, ValueError, 'max_chunk_length: got 9'),
        ({'max_chunk_length': 1.0}, TypeError, 'max_chunk_length'),
        ({'codec': 'lz'}, ValueError, "'auto', 'none', 'snappy'"),
        ({'codec': ['auto']}, ValueError, 'codec'),
        ({'delta_encode': 'yes'}, TypeError, 'delta_encode'),
        ({'dtype': 'no'}, ValueError, 'dtype'),
        ({'dtype': 'datetime64[s]'}, ValueError, 'dtype'),
    ],
)
def test_wrong_option_of_a_column_is_named(client, kwargs, error, text):
    writer = client.trajectory_writer(3)
    with pytest.raises(error) as raised:
        writer.configure(**{'path': 'x', **kwargs})
    assert text in str(raised.value)
    assert 'incompatible function' not in str(raised.value)
    writer.close()


def test_a_column_may_keep_more_than_the_writer(client):
    writer = client.trajectory_writer(1)
    writer.configure('x', num_keep_alive_refs=np.array(3))
    for i in range(4):
        writer.append({'x': i, 'y': i})
    assert writer.history['x'][1:].numpy().tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match='num_keep_alive_refs is 3, the oldest usable index is 1'):
        writer.history['x'][0]
    with pytest.raises(ValueError, match='num_keep_alive_refs is 1, the oldest usable index is 3'):
        writer.history['y'][0]
    with pytest.raises(errors.FailedPreconditionError, match='not sent yet'):
        writer.configure('x', num_keep_alive_refs=9)
    writer.close()
