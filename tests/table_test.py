"""Tables, selectors and limiters as Python values: what they refuse and what they tell."""

import pickle

import numpy as np
import pytest

import reverb_tf
from reverb_tf import rate_limiters, selectors
from tests import testing_util


@pytest.mark.parametrize(
    'kwargs, error, text',
    [
        ({'name': 3}, TypeError, 'name'),
        ({'name': ''}, ValueError, 'name'),
        ({'sampler': selectors.Fifo}, TypeError, 'call it: Fifo()'),
        ({'remover': 'fifo'}, TypeError, 'remover'),
        ({'rate_limiter': 3}, TypeError, 'rate_limiter'),
        ({'max_size': 0}, ValueError, 'max_size'),
        ({'max_size': True}, TypeError, 'max_size'),
        ({'max_size': 2.5}, TypeError, 'max_size'),
        ({'max_bytes': -1}, ValueError, 'max_bytes'),
        ({'signature_scope': 'step'}, ValueError, 'signature'),
        ({'signature': {'x': 3}}, ValueError, "'x'"),
        ({'rate_limiter': rate_limiters.MinSize(10), 'max_size': 5}, ValueError, 'min_size'),
    ],
)
def test_wrong_argument_is_named(kwargs, error, text):
    arguments = {
        'name': 't',
        'sampler': selectors.Uniform(),
        'remover': selectors.Fifo(),
        'max_size': 100,
        'rate_limiter': rate_limiters.MinSize(1),
    }
    with pytest.raises(error, match=None) as raised:
        reverb_tf.Table(**{**arguments, **kwargs})
    assert text in str(raised.value)


def test_table_as_limiter_gets_a_hint():
    with pytest.raises(TypeError, match='did you mean Table.queue'):
        reverb_tf.Table(
            't',
            selectors.Uniform(),
            selectors.Fifo(),
            10,
            rate_limiter=reverb_tf.Table.queue('q', 10),
        )


def test_numpy_scalars_are_numbers():
    table = testing_util.uniform_table(max_size=np.int64(7))
    assert table.info.max_size == 7
    for buffer in (np.float32(5), np.int64(5)):
        limiter = rate_limiters.SampleToInsertRatio(1, 2, buffer)
        assert (limiter.min_diff, limiter.max_diff) == (-3.0, 7.0)


@pytest.mark.parametrize(
    'make',
    [
        lambda: rate_limiters.RateLimiter(0, 1, 0, 1),
        lambda: rate_limiters.RateLimiter(float('nan'), 1, 0, 1),
        lambda: rate_limiters.RateLimiter(1, 0, 0, 1),
        lambda: rate_limiters.RateLimiter(1, 1, 2, 1),
        lambda: rate_limiters.SampleToInsertRatio(1, 1, 0.5),
        lambda: rate_limiters.SampleToInsertRatio(1, 1, (5, 9)),
        lambda: rate_limiters.Queue(0),
        lambda: selectors.Prioritized(-1),
        lambda: selectors.Prioritized(float('inf')),
        lambda: selectors.Uniform(seed=-1),
    ],
)
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(ValueError):
        make()


def test_selectors_are_values():
    for selector in (
        selectors.Fifo(),
        selectors.Lifo(),
        selectors.Uniform(3),
        selectors.Prioritized(0.5),
        selectors.MinHeap(),
        selectors.MaxHeap(),
    ):
        assert pickle.loads(pickle.dumps(selector)) == selector
        assert hash(selector) == hash(pickle.loads(pickle.dumps(selector)))


def test_info_gives_back_what_was_configured():
    table = reverb_tf.Table(
        't',
        selectors.Prioritized(0.8),
        selectors.MaxHeap(),
        10,
        rate_limiters.SampleToInsertRatio(2.0, 3, 9.0),
        max_times_sampled=4,
        signature={'x': np.zeros((2,), np.float32)},
        max_bytes=1000,
    )
    info = table.info
    assert info.sampler_options.WhichOneof('distribution') == 'prioritized'
    assert info.sampler_options.prioritized.priority_exponent == 0.8
    assert info.remover_options.WhichOneof('distribution') == 'heap'
    assert info.rate_limiter_info.samples_per_insert == 2.0
    assert info.max_times_sampled == 4
    assert info.max_bytes == 1000
    assert list(info.signature) == ['x']


def test_table_is_true_and_has_a_length():
    table = testing_util.uniform_table()
    assert table
    assert len(table) == 0
    assert table.can_insert(1)
    assert not table.can_sample(1)
    with pytest.raises(ValueError):
        table.can_sample(0)
    assert 'size 0/100' in table.explain()


def test_replace_copies_all_but_what_is_given():
    table = testing_util.uniform_table(max_size=5, signature=np.zeros((), np.int32))
    other = table.replace(name='u', max_size=7)
    assert (other.name, other.info.max_size) == ('u', 7)
    assert other.info.signature is not None
    assert table.replace(signature=()).info.signature is None


def test_table_does_not_pickle():
    with pytest.raises(TypeError, match='replace'):
        pickle.dumps(testing_util.uniform_table())
