"""What goes into a table comes out of its dataset: values of every kind, with and without batches."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from tests import testing_util

VALUES = {
    'strings': np.array([['a', 'b\u00e9'], ['', 'd\0']], object),
    'bytes': np.array(b'a\0b', object),
    'bool': np.array([True, False]),
    'f16': np.array([1.5, -0.0, np.inf], np.float16),
    'bf16': np.array([1.5, -2], ml_dtypes.bfloat16),
    # TensorFlow 2.20 has no datasets of float8_e5m2, and no `batch` of any float8.
    'f8_e4m3fn': np.array([1.5, -2], ml_dtypes.float8_e4m3fn),
    'i8': np.int8([-128, 127]),
    'u64': np.array(2**63 + 5, np.uint64),
    'c64': np.complex64([1 + 2j, complex('nan')]),
    'c128': np.array([[1 - 2j]]),
    'empty': np.zeros((0, 3), np.int16),
    'no_strings': np.zeros((2, 0), object),
    'nan': np.frombuffer(b'\x01\x00\xc0\x7f\xff\xff\xff\xff', np.float32),
    'denormal': np.array(5e-324),
    'fortran': np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    'strided': np.arange(20, dtype=np.int32)[::-3],
    'big_endian': np.arange(4, dtype='>u2'),
    'variable': tf.Variable([[1.5], [2.5]]),
    'tensor': tf.constant([b'x', b'yy']),
    'large': np.arange(100_000, dtype=np.int64).reshape(10, 10, 1000),
}


def expected(name):
    return testing_util.stored_form(VALUES[name])


def same(got, want):
    testing_util.assert_same(np.asarray(got.numpy() if hasattr(got, 'numpy') else got), want)


@pytest.fixture(scope='module', params=[True, False], ids=['in_process', 'remote'])
def address(request):
    """Of a server with one item of three equal steps of all values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('REVERB_TF_INPROCESS', '1' if request.param else '0')
        with reverb_tf.Server([testing_util.uniform_table()]) as server:
            client = reverb_tf.Client(server.address)
            with client.trajectory_writer(3) as writer:
                for _ in range(3):
                    writer.append(VALUES)
                item = {k: writer.history[k][:] for k in VALUES}
                writer.create_item('t', 1.0, item)
            yield server.address


def dataset(address, **keywords):
    """All columns; without a signature they are matched in their order, which is sorted."""
    flat = {k: expected(k) for k in sorted(VALUES)}
    return reverb_tf.TrajectoryDataset(
        address,
        't',
        {k: tf.string if v.dtype == object else v.dtype for k, v in flat.items()},
        {k: [None, *v.shape] for k, v in flat.items()},
        **keywords,
    )


def test_one_by_one(address):
    data = next(iter(dataset(address))).data
    for name in VALUES:
        same(data[name], np.stack([expected(name)] * 3))


def test_in_fused_batches(address):
    data = next(iter(dataset(address, batch_size=2))).data
    for name in VALUES:
        same(data[name], np.stack([np.stack([expected(name)] * 3)] * 2))


def test_in_batches_padded_to_the_longest(address):
    sample = next(iter(dataset(address, batch_size=2, pad_to_longest=True)))
    for name in VALUES:
        same(sample.data[name], np.stack([np.stack([expected(name)] * 3)] * 2))
        assert sample.lengths[name].numpy().tolist() == [3, 3]


def test_in_batches_of_tf_data(address):
    names = [name for name in VALUES if name != 'f8_e4m3fn']
    ds = dataset(address).map(lambda s: {name: s.data[name] for name in names})
    data = next(iter(ds.batch(2)))
    for name in names:
        same(data[name], np.stack([np.stack([expected(name)] * 3)] * 2))


def test_by_hand(address):
    client = reverb_tf.Client(address)
    whole = next(client.sample('t', 1, emit_timesteps=False)).data
    for name, column in zip(sorted(VALUES), whole, strict=True):
        same(column, np.stack([expected(name)] * 3))
    steps = next(client.sample('t', 1))
    assert len(steps) == 3
    for step in steps:
        for name, leaf in zip(sorted(VALUES), step.data, strict=True):
            same(leaf, expected(name))
