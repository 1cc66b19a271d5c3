"""Tables, selectors and limiters as Python values: what they refuse and what they tell."""

import collections
import logging
import pickle

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import arguments, rate_limiters, reverb_types, selectors
from reverb_tf import table as table_lib
from tests import testing_util


class Unusable(table_lib.TableExtensionBase):
    """An extension with an effect."""

    def build_internal_extensions(self, table_name):
        return [table_name]


class Harmless(table_lib.TableExtensionBase):
    """An extension that builds nothing."""

    def build_internal_extensions(self, table_name):
        return []


@pytest.mark.parametrize(
    'kwargs, error, text',
    [
        ({'name': 3}, TypeError, 'name'),
        ({'name': ''}, ValueError, 'name'),
        ({'name': b't'}, TypeError, 'name must be a str, got bytes'),
        ({'name': '\ud800'}, ValueError, 'name must be encodable as UTF-8'),
        ({'sampler': selectors.Fifo}, TypeError, 'call it: Fifo()'),
        ({'sampler': None}, TypeError, 'sampler must be a Selector'),
        ({'sampler': rate_limiters.MinSize(1)}, TypeError, 'got MinSize'),
        ({'remover': 'fifo'}, TypeError, 'remover'),
        ({'remover': selectors.Uniform}, TypeError, 'call it: Uniform()'),
        ({'rate_limiter': 3}, TypeError, 'rate_limiter'),
        ({'rate_limiter': rate_limiters.MinSize}, TypeError, 'call it: MinSize()'),
        ({'rate_limiter': selectors.Fifo()}, TypeError, 'got Fifo'),
        ({'max_size': 0}, ValueError, 'max_size'),
        ({'max_size': True}, TypeError, 'max_size'),
        ({'max_size': np.bool_(True)}, TypeError, 'max_size'),
        ({'max_size': 2.5}, TypeError, 'max_size'),
        ({'max_size': '5'}, TypeError, 'max_size must be an int, got str'),
        ({'max_size': None}, TypeError, 'max_size'),
        ({'max_size': int}, TypeError, 'max_size must be an int, got the class int'),
        ({'max_size': np.array([5])}, TypeError, 'of shape (1,)'),
        ({'max_size': np.array(5.0)}, TypeError, 'max_size'),
        ({'max_size': 2**63}, ValueError, 'max_size'),
        ({'max_times_sampled': 1.0}, TypeError, 'max_times_sampled'),
        ({'extensions': 5}, TypeError, 'extensions must be a sequence'),
        ({'extensions': [3]}, TypeError, 'extensions'),
        ({'extensions': [Harmless]}, TypeError, 'call it: Harmless()'),
        ({'extensions': [Unusable()]}, NotImplementedError, 'extensions'),
        ({'max_bytes': -1}, ValueError, 'max_bytes'),
        ({'max_bytes': 1e9}, TypeError, 'max_bytes'),
        ({'signature_scope': 'step'}, ValueError, 'signature'),
        ({'signature_scope': 3, 'signature': np.zeros(2)}, ValueError, 'signature_scope'),
        ({'signature': {'x': 3}}, ValueError, "'x'"),
        ({'signature': {'x': (np.float32,)}}, ValueError, "'x[0]'"),
        ({'signature': {'x': np.zeros(1, 'M8[s]')}}, ValueError, 'datetime64'),
        ({'signature': {3: np.zeros(1)}}, ValueError, 'keys must be str'),
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
    with pytest.raises(error) as raised:
        reverb_tf.Table(**{**arguments, **kwargs})
    assert text in str(raised.value)
    for one in ('name', 'max_size', 'signature'):  # queues and stacks check alike
        if one in kwargs and len(kwargs) == 1:
            with pytest.raises(error):
                reverb_tf.Table.queue(**{'name': 't', 'max_size': 3, **kwargs})
            with pytest.raises(error):
                reverb_tf.Table.stack(**{'name': 't', 'max_size': 3, **kwargs})


def test_table_as_limiter_gets_a_hint():
    with pytest.raises(TypeError, match='did you mean Table.queue'):
        reverb_tf.Table(
            't',
            selectors.Uniform(),
            selectors.Fifo(),
            10,
            rate_limiter=reverb_tf.Table.queue('q', 10),
        )


INTS = (7, np.int8(7), np.uint64(7), np.array(7), np.array(7, np.uint8), tf.constant(7))
FLOATS = (
    *INTS,
    7.0,
    np.float16(7),
    np.float32(7),
    np.array(7.0),
    tf.constant(7.0),
    tf.Variable(7.0),
    ml_dtypes.bfloat16(7),
    np.array(7, ml_dtypes.bfloat16),
)


@pytest.mark.parametrize('seven', INTS, ids=repr)
def test_numpy_and_0d_integers_are_ints(seven):
    table = reverb_tf.Table(
        't',
        selectors.Uniform(seed=seven),
        selectors.Prioritized(1.0, seed=seven),
        seven,
        rate_limiters.MinSize(seven),
        max_times_sampled=seven,
        max_bytes=seven,
    )
    info = table.info
    assert info.max_size == info.max_times_sampled == info.max_bytes == 7
    assert info.rate_limiter_info.min_size_to_sample == 7
    assert info.sampler_options.seed == info.remover_options.seed == 7
    assert table.can_insert(seven)
    assert not table.can_sample(seven)
    assert reverb_tf.Table.queue('q', seven).info.rate_limiter_info.max_diff == 7
    assert rate_limiters.Stack(seven).max_diff == 7


@pytest.mark.parametrize('seven', FLOATS, ids=repr)
def test_numpy_and_0d_numbers_are_floats(seven):
    assert selectors.Prioritized(seven).priority_exponent == 7.0
    assert rate_limiters.RateLimiter(seven, 1, seven, 14) == rate_limiters.RateLimiter(7, 1, 7, 14)
    for buffer in (seven, (7 - seven, 14), [0, seven + seven]):
        limiter = rate_limiters.SampleToInsertRatio(seven, 1, buffer)
        assert (limiter.min_diff, limiter.max_diff) == (0.0, 14.0)
        assert type(limiter.min_diff) is type(limiter.samples_per_insert) is float


@pytest.mark.parametrize(
    'value', ['1', None, True, np.bool_(1), 1j, [1.0], np.array([1.0]), np.array('1'), float]
)
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises(TypeError, match='x must be a number'):
        arguments.number(value, 'x')
    with pytest.raises(TypeError, match='priority_exponent'):
        selectors.Prioritized(value)
    with pytest.raises(TypeError, match='samples_per_insert'):
        rate_limiters.RateLimiter(value, 1, 0, 10)
    with pytest.raises(TypeError, match='error_buffer'):
        rate_limiters.SampleToInsertRatio(1, 1, value)


@pytest.mark.parametrize(
    'make, name',
    [
        (lambda: selectors.Heap('min'), 'min_heap'),
        (lambda: selectors.Heap(1), 'min_heap'),
        (lambda: selectors.Uniform(1.5), 'seed'),
        (lambda: selectors.Uniform(True), 'seed'),
        (lambda: selectors.Prioritized(1.0, 'a'), 'seed'),
        (lambda: rate_limiters.MinSize(1.0), 'min_size_to_sample'),
        (lambda: rate_limiters.RateLimiter(1, 1.0, 0, 10), 'min_size_to_sample'),
        (lambda: rate_limiters.RateLimiter(1, 1, None, 10), 'min_diff'),
        (lambda: rate_limiters.RateLimiter(1, 1, 0, '10'), 'max_diff'),
        (lambda: rate_limiters.SampleToInsertRatio(1, 1, (1, 2, 3)), 'pair'),
        (lambda: rate_limiters.SampleToInsertRatio(1, 1, ('a', 2)), r'error_buffer\[0\]'),
        (lambda: rate_limiters.Queue(2.0), 'size'),
        (lambda: rate_limiters.Stack('2'), 'size'),
    ],
)
def test_wrong_type_of_a_setting_is_named(make, name):
    with pytest.raises(TypeError, match=name):
        make()


@pytest.mark.parametrize(
    'make',
    [
        lambda: rate_limiters.RateLimiter(0, 1, 0, 1),
        lambda: rate_limiters.RateLimiter(float('nan'), 1, 0, 1),
        lambda: rate_limiters.RateLimiter(float('inf'), 1, 0, 1),
        lambda: rate_limiters.RateLimiter(1, 1, float('nan'), 1),
        lambda: rate_limiters.RateLimiter(1, 1, 0, float('nan')),
        lambda: rate_limiters.RateLimiter(10**400, 1, 0, 1),
        lambda: rate_limiters.SampleToInsertRatio(1, 1, float('nan')),
        lambda: rate_limiters.SampleToInsertRatio(4, 1, 3.9),
        lambda: rate_limiters.MinSize(0),
        lambda: rate_limiters.MinSize(2**63),
        lambda: rate_limiters.Stack(-1),
        lambda: selectors.Prioritized(float('nan')),
        lambda: selectors.Uniform(seed=2**64),
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


def test_kinds_of_selectors_and_what_they_tell():
    table = {
        selectors.Fifo(): ('fifo', True),
        selectors.Lifo(): ('lifo', True),
        selectors.Uniform(2**64 - 1): ('uniform', False),
        selectors.Prioritized(0): ('prioritized', False),
        selectors.MinHeap(): ('heap', True),
        selectors.MaxHeap(): ('heap', True),
    }
    for selector, (kind, deterministic) in table.items():
        info = reverb_tf.Table('t', selector, selector, 1, rate_limiters.MinSize(1)).info
        for options in (info.sampler_options, info.remover_options):
            assert options.WhichOneof('distribution') == kind
            assert options.is_deterministic == deterministic
            assert options.seed == selector.seed
    assert selectors.MinHeap() == selectors.Heap(np.bool_(True)) != selectors.MaxHeap()
    with pytest.raises(AttributeError):
        selectors.Uniform().seed = 3


@pytest.mark.parametrize(
    'limiter, numbers',
    [
        (rate_limiters.MinSize(3), (1, 3, -(2**1023), 2**1023)),
        (rate_limiters.SampleToInsertRatio(2, 3, 5), (2, 3, 1, 11)),
        (rate_limiters.SampleToInsertRatio(2, 3, (0, 9)), (2, 3, 0, 9)),
        (rate_limiters.Queue(4), (1, 1, 0, 4)),
        (rate_limiters.Stack(4), (1, 1, 0, 4)),
        (rate_limiters.RateLimiter(0.5, 2, float('-inf'), 3), (0.5, 2, -(2**1023), 3)),
    ],
)
def test_limiters_show_their_four_numbers(limiter, numbers):
    spi, size, low, high = numbers
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (spi, size)
    assert limiter.min_diff == low or limiter.min_diff < low == -(2**1023)
    assert limiter.max_diff == high or limiter.max_diff > high == 2**1023
    assert f'samples_per_insert={float(spi)}' in repr(limiter)
    assert pickle.loads(pickle.dumps(limiter)) == limiter
    with pytest.raises(AttributeError):
        limiter.max_diff = 3


@pytest.mark.parametrize(
    'make, warns',
    [
        (lambda: rate_limiters.SampleToInsertRatio(2, 3, (0, 5)), 'concurrent sampler'),
        (lambda: rate_limiters.RateLimiter(3, 1, 0, 2), 'both sides can block'),
        (lambda: rate_limiters.SampleToInsertRatio(2, 3, 5), ''),
        (lambda: rate_limiters.Queue(1), ''),
    ],
)
def test_limiters_that_may_lock_up_warn(make, warns, caplog):
    with caplog.at_level(logging.WARNING, 'reverb_tf'):
        make()
    assert warns in caplog.text
    assert bool(caplog.text) == bool(warns)


def test_limiter_that_is_used_twice_counts_apart():
    limiter, selector = rate_limiters.Queue(2), selectors.Uniform(1)
    tables = [reverb_tf.Table(n, selector, selector, 9, limiter) for n in 'ab']
    with reverb_tf.Server(tables) as server:
        client = server.localhost_client()
        client.insert(1, {'a': 1.0})
        client.insert(1, {'a': 1.0})
        assert not tables[0].can_insert(1)
        assert tables[1].can_insert(2)


def test_queue_and_stack_are_made_of_their_parts():
    for make, kind in ((reverb_tf.Table.queue, 'fifo'), (reverb_tf.Table.stack, 'lifo')):
        info = make('q', 5, signature=np.zeros(2), max_bytes=9, signature_scope='step').info
        assert info.sampler_options.WhichOneof('distribution') == kind
        assert info.remover_options.WhichOneof('distribution') == kind
        assert (info.max_size, info.max_times_sampled, info.max_bytes) == (5, 1, 9)
        assert info.signature_scope == 'step'
        limits = info.rate_limiter_info
        assert (limits.min_diff, limits.max_diff, limits.min_size_to_sample) == (0, 5, 1)


def test_signature_comes_back_unchanged():
    pair = collections.namedtuple('pair', 'left right')
    signature = {
        'b': [tf.TensorSpec([None, 2], tf.bfloat16, 'given')],
        'a': pair(tf.TensorSpec(None, tf.string), (tf.TensorSpec([], tf.bool),)),
        'c': tf.TensorSpec([0], tf.uint64),
    }
    table = testing_util.uniform_table(signature=signature)
    assert table.info.signature == signature
    with reverb_tf.Server([table]) as server:
        for in_process in (True, False):
            client = reverb_tf.Client(server.address, in_process=in_process)
            got = client.server_info(timeout=20)['t'].signature
            tf.nest.assert_same_structure(got, signature, check_types=False)
            assert list(got) == list(sorted(signature))
            assert got['b'] == signature['b']
            assert got['b'][0].name == 'given'
            assert type(got['a']).__name__ == 'pair'
            assert got['a'].left.shape.rank is None
            assert got['c'] == signature['c']


def test_bounded_specs_come_back_with_their_bounds():
    import tensorflow.python.framework.tensor as tensor_lib  # tf exports it to no user

    spec = tensor_lib.BoundedTensorSpec([2], tf.float32, -1.0, 1.0, 'b')
    with reverb_tf.Server([testing_util.uniform_table(signature=spec)]) as server:
        client = server.localhost_client()
        assert client.server_info()['t'].signature == spec
        client.insert(np.float32([9, 9]), {'t': 1.0})  # bounds are not enforced


@pytest.mark.parametrize('nothing', [None, (), {}, []])
def test_empty_signature_is_none(nothing):
    assert testing_util.uniform_table(signature=nothing).info.signature is None


def test_max_times_sampled_is_given_back_as_it_is():
    for value in (0, -3, 5):
        assert testing_util.uniform_table(max_times_sampled=value).info.max_times_sampled == value


def test_harmless_extensions_are_accepted():
    table = testing_util.uniform_table(extensions=[Harmless(), table_lib.TableExtensionBase()])
    assert table.replace(extensions=()).name == 't'


def test_replace_can_change_everything():
    table = testing_util.uniform_table(signature=np.zeros(2), max_bytes=7, signature_scope='step')
    other = table.replace(
        'u',
        selectors.Lifo(),
        selectors.MinHeap(),
        9,
        rate_limiters.Queue(3),
        4,
        [Harmless()],
        np.zeros(3, np.int8),
        max_bytes=0,
        signature_scope='trajectory',
    ).info
    assert (other.name, other.max_size, other.max_times_sampled) == ('u', 9, 4)
    assert other.sampler_options.WhichOneof('distribution') == 'lifo'
    assert other.remover_options.WhichOneof('distribution') == 'heap'
    assert other.rate_limiter_info.max_diff == 3
    assert (other.max_bytes, other.signature_scope) == (0, 'trajectory')
    assert other.signature.dtype == np.int8
    assert table.info.name == 't'


def test_repr_shows_every_setting():
    text = repr(testing_util.uniform_table(signature={'x': np.zeros(2)}, max_bytes=5))
    for part in (
        "name='t'",
        'Uniform(',
        'Fifo()',
        'MinSize(',
        'max_size=100',
        "'x'",
        'max_bytes=5',
    ):
        assert part in text


def test_info_has_the_fields_that_programs_rely_on_first():
    info = testing_util.uniform_table().info
    names = [f for f in reverb_types.TableInfo.__dataclass_fields__]
    assert names[:12] == [
        'name',
        'sampler_options',
        'remover_options',
        'max_size',
        'max_times_sampled',
        'rate_limiter_info',
        'signature',
        'current_size',
        'num_episodes',
        'num_deleted_episodes',
        'num_unique_samples',
        'table_worker_time',
    ]
    assert {'running_ms', 'sampling_ms', 'inserting_ms', 'sleeping_ms'} <= set(
        info.table_worker_time.__dataclass_fields__
    )
    assert info.generation == 1
    assert info.explain.startswith("table 't'")


def test_sample_info_tells_its_dtypes_shapes_and_zeros():
    info = reverb_tf.SampleInfo
    assert info._fields == ('key', 'probability', 'table_size', 'priority', 'times_sampled')
    assert list(info.tf_dtypes()) == [tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32]
    assert all(shape == [] for shape in info.tf_shapes())
    assert info.zeros() == (0, 0.0, 0, 0.0, 0)
    assert reverb_tf.ReplaySample._fields == ('info', 'data')
    assert reverb_tf.PaddedSample._fields == ('info', 'data', 'lengths')
    assert reverb_tf.MutateResult._fields == ('updated', 'deleted', 'not_found')


def test_info_counts_what_happened():
    table = reverb_tf.Table(
        't', selectors.Fifo(), selectors.Fifo(), 2, rate_limiters.MinSize(1), max_times_sampled=1
    )
    with reverb_tf.Server([table]) as server:
        client = server.localhost_client()
        for _ in range(3):  # the first is evicted
            client.insert({'a': np.zeros(4, np.float32), 'b': 1}, {'t': 1.0})
        next(client.sample('t', 1))  # the second expires
        info = table.info
        assert (info.insert_count, info.sample_count, info.delete_count) == (3, 1, 2)
        assert (info.num_evicted, info.num_expired) == (1, 1)
        assert (info.current_size, info.num_unique_samples, info.num_chunks) == (1, 1, 2)
        assert list(info.bytes_by_column) == ['[0]', '[1]']
        assert sum(info.bytes_by_column.values()) == info.bytes_stored
        assert info.bytes_uncompressed == 24
        assert info.bytes_stored >= 24
    assert table.info.insert_count == 3  # kept after the stop
    assert 'insert_count: 3' in str(table.info)
