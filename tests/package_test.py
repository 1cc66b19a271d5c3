"""What the package tells of itself, its errors, and calls that other tests only meet on their way."""

import re
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import compat, errors
from tests import testing_util

DATASETS = [reverb_tf.TrajectoryDataset, reverb_tf.TimestepDataset]


@pytest.fixture
def server():
    signature = {'a': tf.TensorSpec([None], tf.int64)}
    with reverb_tf.Server([testing_util.uniform_table('t', signature=signature)]) as server:
        yield server


# ---- The package -----------------------------------------------------------------


def test_build_info_tells_what_it_was_built_for():
    info = reverb_tf.build_info()
    assert re.fullmatch(r'\d+\.\d+\.\d+', info['version'])
    assert info['tensorflow'].split('.')[:2] == tf.__version__.split('.')[:2]


@pytest.mark.parametrize(
    ('error', 'others'),
    [
        (errors.InvalidArgumentError, [ValueError]),
        (errors.NotFoundError, [RuntimeError, LookupError]),
        (errors.AlreadyExistsError, [ValueError]),
        (errors.FailedPreconditionError, [RuntimeError]),
        (errors.OutOfRangeError, [IndexError]),
        (errors.ResourceExhaustedError, [IndexError]),
        (errors.UnimplementedError, [NotImplementedError]),
        (errors.UnavailableError, [RuntimeError, ConnectionError]),
        (errors.DeadlineExceededError, [TimeoutError]),
        (errors.CancelledError, [RuntimeError]),
        (errors.DataLossError, [RuntimeError]),
        (errors.PermissionDeniedError, [RuntimeError, PermissionError]),
        (errors.InternalError, [RuntimeError]),
        (errors.AddressInUseError, [ValueError, OSError]),
    ],
)
def test_an_error_is_caught_as_what_pythons_users_expect(error, others):
    for base in [reverb_tf.ReverbError, *others]:
        assert issubclass(error, base)


def test_every_error_is_of_the_package():
    names = [n for n, value in vars(errors).items() if isinstance(value, type)]
    assert len(names) == 15
    for name in names:
        assert issubclass(getattr(errors, name), errors.ReverbError)


def test_another_reverb_is_replaced_only_by_force(monkeypatch):
    other = types.ModuleType('reverb')
    monkeypatch.setitem(sys.modules, 'reverb', other)
    with pytest.raises(RuntimeError, match='force=True'):
        compat.install_as_reverb()
    compat.install_as_reverb(force=True)
    try:
        import reverb

        assert reverb.Table is reverb_tf.Table
    finally:
        compat.uninstall()
    assert sys.modules['reverb'] is other


def test_uninstalling_what_was_not_installed_does_nothing():
    before = list(sys.meta_path)
    compat.uninstall()
    assert sys.meta_path == before


# ---- Signatures ------------------------------------------------------------------


@pytest.mark.parametrize(
    ('leading', 'shape'), [(False, [2, 3]), (None, [None, 2, 3]), (4, [4, 2, 3])]
)
def test_signature_from_puts_a_dimension_before_each(leading, shape):
    specs = reverb_tf.signature_from({'x': np.zeros([2, 3], np.uint8)}, leading=leading)
    assert specs == {'x': tf.TensorSpec(shape, tf.uint8)}


def test_signature_from_keeps_the_nest():
    specs = reverb_tf.signature_from([(1.0, np.array(b'', object)), {'t': tf.constant(True)}])
    assert specs == [
        (tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.string)),
        {'t': tf.TensorSpec([], tf.bool)},
    ]


# ---- Clients ---------------------------------------------------------------------


@pytest.mark.parametrize('in_process', [True, False])
def test_a_server_without_checkpoints_says_so(server, in_process):
    client = reverb_tf.Client(server.address, in_process=in_process, timeout=20)
    with pytest.raises(errors.UnimplementedError, match='checkpoint'):
        client.checkpoint()


def test_a_client_tells_whether_it_may_go_in_process(server):
    assert reverb_tf.Client(server.address).in_process
    assert not reverb_tf.Client(server.address, in_process=False).in_process


def test_calls_of_a_server_that_is_not_there_end_by_their_own_timeout():
    client = reverb_tf.Client('localhost:1')
    for call in (client.explain, client.checkpoint, lambda timeout: client.reset('t', timeout)):
        with pytest.raises((errors.UnavailableError, errors.DeadlineExceededError)):
            call(timeout=0.1)


# ---- Datasets --------------------------------------------------------------------


@pytest.mark.parametrize('kind', DATASETS)
@pytest.mark.parametrize(
    'keywords',
    [
        {'max_in_flight_samples_per_worker': 0},
        {'num_workers_per_iterator': 0},
        {'max_samples_per_stream': 0},
        {'rate_limiter_timeout_ms': -2},
        {'get_signature_timeout_secs': -1},
        {'max_samples': 0},
        {'batch_size': 0},
        {'on_timeout': 'stop'},
        {'consume_ahead': -1},
        {'max_age_ms': -2},
        {'reconnect_timeout_ms': -2},
        {'seed': -1},
        {'shard_selection': 'any'},
    ],
)
def test_from_table_signature_refuses_a_bad_argument_by_name(server, kind, keywords):
    with pytest.raises(ValueError, match=next(iter(keywords))):
        kind.from_table_signature(server.address, 't', **keywords)


@pytest.mark.parametrize('kind', DATASETS)
def test_every_argument_of_from_table_signature_reaches_the_dataset(server, kind):
    client = reverb_tf.Client(server.address)
    client.insert({'a': np.int64(7)}, {'t': 1.0})
    dataset = kind.from_table_signature(
        server.address,
        't',
        max_in_flight_samples_per_worker=3,
        num_workers_per_iterator=2,
        max_samples_per_stream=5,
        rate_limiter_timeout_ms=20_000,
        get_signature_timeout_secs=20,
        max_samples=4,
        batch_size=2,
        drop_remainder=True,
        on_timeout='error',
        consume_ahead=1,
        max_age_ms=60_000,
        seed=3,
        reconnect_timeout_ms=1_000,
        shard_selection='proportional',
        name='named',
    )
    batches = list(dataset)
    assert [b.info.key.shape for b in batches] == [[2], [2]]
    assert (np.concatenate([np.ravel(b.data['a']) for b in batches]) == 7).all()


def test_batches_of_tf_data_may_drop_the_remainder(server):
    client = reverb_tf.Client(server.address)
    client.insert({'a': np.int64(7)}, {'t': 1.0})
    dataset = reverb_tf.TrajectoryDataset.from_table_signature(server.address, 't', max_samples=3)
    for batch in (reverb_tf.data.padded_batch, reverb_tf.data.ragged_batch):
        assert len(list(batch(dataset, 2))) == 2
        assert len(list(batch(dataset, 2, drop_remainder=True))) == 1
