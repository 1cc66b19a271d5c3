"""Values that can be stored, and those that cannot, over both roads."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tests import testing_util


@pytest.mark.parametrize(
    'value',
    [
        3,
        -1.5,
        True,
        b'bytes',
        np.float16(1.5),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([1.5, -2], ml_dtypes.float8_e5m2),
        np.array([1.5, -2], ml_dtypes.float8_e4m3fn),
        np.uint8(200),
        np.array(-3, np.int16),
        np.array([1 + 2j, complex('nan')]),
        np.frombuffer(b'\x01\x00\xc0\x7f\xff\xff\xff\xff', np.float32),  # NaNs with payloads
        np.array([5e-324, -0.0, np.inf]),
        np.zeros((2, 0), object),
        np.zeros((1,) * 30, np.int8),
        np.array([b'a\0', 'b', ''], object),
        np.array(['x', '\u00e9\u00e9']),
        np.arange(6, dtype='>u2').reshape(2, 3).T,
        np.broadcast_to(np.int32(7), (2, 2)),
        memoryview(b'ab'),
        tf.constant([[1.5], [2.5]]),
        tf.constant([b'x', b'yy']),
        tf.constant([1.5], tf.bfloat16),
        tf.Variable([1, 2], dtype=tf.int8),
        np.array([[1, 2], [3, 4]], np.uint64) + 2**63,
        np.array([1 + 2j], np.complex64),
        np.array([True, False]),
        np.zeros((0, 3), np.int8),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::2],
        np.array([1.5, -0.0, np.nan], '>f8'),
        np.array(b'a\0b', object),
        'unicode \u00e9',
        2**64 - 1,
    ],
    ids=str,
)
def test_values_round_trip(client, value):
    want = testing_util.stored_form(value)
    writer = client.trajectory_writer(2)
    client.insert(value, {'q': 1.0})
    writer.append(value)
    writer.append(value)
    testing_util.assert_same(writer.history[-1].numpy(), want)
    testing_util.assert_same(writer.history[:].numpy()[1, ...], want)
    writer.create_item('q', 1.0, writer.history[:])
    writer.create_item('q', 1.0, writer.history[-1])
    writer.flush()
    (one,), (two,), (squeezed,) = (testing_util.data_of(client) for _ in range(3))
    assert one.shape == (1, *want.shape)
    assert two.shape == (2, *want.shape)
    for got in (one[0, ...], two[0, ...], two[1, ...], squeezed):
        testing_util.assert_same(got, want)
    writer.close()


@pytest.mark.parametrize(
    'value',
    [
        np.datetime64('2020'),
        np.array(['2020'], 'M8[D]'),
        np.timedelta64(1),
        np.longdouble(1),
        np.zeros(1, [('a', int)]),
        np.array([1, 'a'], object),
        np.array([None]),
        np.void(b'abc'),
        ml_dtypes.int4(1),
        object(),
        {1, 2},
        int,
        lambda: 1,
        tf.ragged.constant([[1], [1, 2]]),
        tf.sparse.eye(2),
    ],
    ids=repr,
)
def test_values_that_cannot_be_stored_are_refused(client, value):
    writer = client.trajectory_writer(1)
    writer.append({'y': 1})
    for call in (writer.append, writer.append_batch, lambda d: client.insert(d, {'t': 1.0})):
        with pytest.raises(TypeError, match="'x'"):
            call({'x': value})
    assert list(writer.history) == ['y']
    assert writer.episode_steps == 1
    writer.close()


@pytest.mark.parametrize('value', [2**64, -(2**63) - 1, '\ud800'])
def test_values_beyond_what_is_stored_are_refused(client, value):
    writer = client.trajectory_writer(1)
    with pytest.raises(ValueError, match="'x'"):
        writer.append({'x': value})
    writer.close()


def test_symbolic_tensors_are_refused_with_a_cure(client):
    writer = client.trajectory_writer(1)

    @tf.function
    def step(x):
        writer.append({'x': x})
        return x

    with pytest.raises(TypeError, match='tf.py_function'):
        step(tf.constant(1))
    writer.close()
