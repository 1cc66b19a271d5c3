"""PatternDataset, against a plain-Python model, against the structured writer, and case by case."""

import collections
import gc
import operator
import pathlib
import signal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import pattern_dataset, structured
from reverb_tf.ops import load
from tests import testing_util

Condition = structured.Condition
STRUCTURE = dict.fromkeys('abce')
REF = structured.create_reference_step(STRUCTURE)
LAST_TWO = {'x': REF['a'][-2:]}
NEVER = lambda step: False  # noqa: E731


def config(pattern, conditions=(), priority=None, table='t'):
    return structured.create_config(pattern, table, conditions, priority)


def steps_of(a, b=None, c=None, e=None):
    """A dataset of steps; a, b, c are int64, e is bool."""
    n = len(a)
    return tf.data.Dataset.from_tensor_slices(
        {
            'a': np.array(a, np.int64),
            'b': np.array(range(n) if b is None else b, np.int64),
            'c': np.array([0] * n if c is None else c, np.int64),
            'e': np.array([False] * n if e is None else e, np.bool_),
        }
    )


def count_to(n, episode=None):
    """a counts; an episode ends after every `episode` steps."""
    return steps_of(range(n), e=[episode and i % episode == episode - 1 for i in range(n)])


def ends(step):
    return step['e']


def dataset(steps, configs, clear=True, is_end=ends):
    return reverb_tf.PatternDataset(steps, configs, clear, is_end)


def listed(elements):
    return [tf.nest.map_structure(lambda t: t.numpy().tolist(), element) for element in elements]


def xs(elements):
    return [element['x'] for element in listed(elements)]


# ---- A model ---------------------------------------------------------------------

COMPARE = {'==': operator.eq, '!=': operator.ne, '>=': operator.ge, '<': operator.lt}


def condition_of(left, mod, compare, value):
    if left == 'end':
        return Condition.is_end_episode()
    operand = {
        'index': Condition.step_index(),
        'applied': Condition.steps_since_applied(),
        'c': Condition.data(STRUCTURE)['c'],
    }[left]
    return COMPARE[compare](operand if mod is None else operand % mod, value)


def config_of(spec):
    nodes, conditions = spec
    return config(
        {name: REF[leaf][key] for name, (leaf, key) in nodes.items()},
        [condition_of(*condition) for condition in conditions],
    )


def holds(condition, values):
    left, mod, compare, value = condition
    if left == 'end':
        return True  # asked at the end only
    return COMPARE[compare](values[left] if mod is None else values[left] % mod, value)


def model(specs, steps, clear):
    """The trajectories of configs, from a list of steps."""
    trajectories, history, index = [], [], -1
    applied = [-1] * len(specs)
    for number, step in enumerate(steps):
        history.append(step)
        index += 1
        for at_end in (False, True) if step['e'] else (False,):
            for i, (nodes, conditions) in enumerate(specs):
                values = {'index': index, 'applied': number - applied[i], 'c': step['c']}
                needed = max(-(k.start if isinstance(k, slice) else k) for _, k in nodes.values())
                if (
                    any(c[0] == 'end' for c in conditions) == at_end
                    and len(history) >= needed
                    and all(holds(c, values) for c in conditions)
                ):
                    trajectories.append(
                        {n: [s[leaf] for s in history][key] for n, (leaf, key) in nodes.items()}
                    )
                    applied[i] = number
        if step['e']:
            index = -1
            history = [] if clear else history
    return trajectories


@st.composite
def slices(draw):
    start = draw(st.integers(-6, -1))
    stop = draw(st.sampled_from([None, *range(start + 1, 0)]))
    return slice(start, stop, draw(st.sampled_from([None, 1, 2, 3])))


@st.composite
def comparisons(draw):
    mod = draw(st.one_of(st.none(), st.integers(1, 4)))
    value = draw(st.integers(0, mod - 1 if mod else 4))
    left = draw(st.sampled_from(['index', 'applied', 'c', 'end']))
    return (left, mod, draw(st.sampled_from(list(COMPARE))), value)


NODES = st.fixed_dictionaries(
    {
        'x': st.tuples(st.sampled_from('ab'), slices()),
        'y': st.tuples(st.sampled_from('ab'), st.integers(-5, -1)),
        'z': st.tuples(st.just('b'), slices()),
    }
)
SPECS = st.lists(st.tuples(NODES, st.lists(comparisons(), max_size=2)), min_size=1, max_size=3)
NUMBER = st.integers(-3, 9)
STEPS = st.lists(
    st.fixed_dictionaries({'a': NUMBER, 'b': NUMBER, 'c': NUMBER, 'e': st.booleans()}),
    min_size=1,
    max_size=20,
)


def dataset_of(specs, steps, clear):
    columns = {k: [step[k] for step in steps] for k in 'abce'}
    return dataset(steps_of(**columns), [config_of(spec) for spec in specs], clear)


@settings(max_examples=80, deadline=None)
@given(specs=SPECS, steps=STEPS, clear=st.booleans())
def test_yields_what_the_model_yields(specs, steps, clear):
    assert listed(dataset_of(specs, steps, clear)) == model(specs, steps, clear)


@pytest.fixture(scope='module')
def client():
    with reverb_tf.Server([reverb_tf.Table.queue('t', 100_000)]) as server:
        yield reverb_tf.Client(server.address, timeout=30)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(specs=SPECS, steps=STEPS, clear=st.booleans())
def test_yields_what_a_structured_writer_inserts(client, specs, steps, clear):
    client.reset('t')
    with client.structured_writer([config_of(spec) for spec in specs]) as writer:
        for step in steps:
            writer.append({k: np.array(v, np.bool_ if k == 'e' else None) for k, v in step.items()})
            if step['e']:
                writer.end_episode(clear_buffers=clear)
    n = client.server_info()['t'].current_size
    samples = client.sample('t', n, emit_timesteps=False, timeout=10) if n else []
    inserted = [[np.asarray(column).tolist() for column in s.data] for s in samples]
    yielded = [[t['x'], t['y'], t['z']] for t in listed(dataset_of(specs, steps, clear))]
    assert yielded == inserted


# ---- Elements --------------------------------------------------------------------


def test_a_slice_is_a_column_and_an_index_a_cell():
    ds = dataset(count_to(4), [config({'x': REF['a'][-2:], 'y': REF['b'][-3]})])
    assert listed(ds) == [{'x': [1, 2], 'y': 0}, {'x': [2, 3], 'y': 1}]


def test_trajectories_stay_within_an_episode():
    assert xs(dataset(count_to(6, 3), [config(LAST_TWO)])) == [[0, 1], [1, 2], [3, 4], [4, 5]]


def test_trajectories_span_episodes_where_those_are_not_respected():
    ds = dataset(count_to(5, 3), [config(LAST_TWO)], clear=False)
    assert xs(ds) == [[0, 1], [1, 2], [2, 3], [3, 4]]


def test_step_index_starts_anew_where_episodes_are_not_respected():
    second = config({'x': REF['a'][-1]}, [Condition.step_index() == 1])
    assert xs(dataset(count_to(6, 3), [second], clear=False)) == [1, 4]


def test_those_conditioned_on_the_end_follow_the_others_of_the_last_step():
    configs = [
        config({'x': REF['a'][-1:]}, [Condition.is_end_episode()]),
        config(LAST_TWO),
    ]
    assert xs(dataset(count_to(5, 3), configs)) == [[0, 1], [1, 2], [2], [3, 4]]


def test_the_end_of_the_input_ends_no_episode():
    ds = dataset(count_to(5, 3), [config(LAST_TWO, [Condition.is_end_episode()])])
    assert xs(ds) == [[1, 2]]


def test_an_empty_input_has_no_trajectory():
    assert xs(dataset(count_to(3).take(0), [config(LAST_TWO)])) == []


def test_the_structure_is_the_patterns():
    pair = collections.namedtuple('Pair', ['q', 'p'])
    pattern = {'z': (REF['a'][-1], [REF['b'][-1]]), 'pair': pair(p=REF['a'][-2:], q=REF['c'][-1])}
    ds = dataset(steps_of([1, 2], b=[3, 4], c=[5, 6]), [config(pattern)])
    (element,) = listed(ds)
    assert element['z'] == (2, (4,))
    assert element['pair'].p == [1, 2]
    assert element['pair'].q == 6


def test_element_spec_tells_lengths_and_has_no_names():
    ds = dataset(count_to(3), [config({'x': REF['a'][-5:-1:2], 'y': REF['e'][-1]})])
    assert ds.element_spec == {'x': tf.TensorSpec([2], tf.int64), 'y': tf.TensorSpec([], tf.bool)}


def test_lengths_that_differ_are_unknown():
    ds = dataset(count_to(3), [config(LAST_TWO), config({'x': REF['a'][-3:]})])
    assert ds.element_spec == {'x': tf.TensorSpec([None], tf.int64)}
    assert xs(ds) == [[0, 1], [1, 2], [0, 1, 2]]


def test_configs_may_be_of_several_tables():
    configs = [config(LAST_TWO, table='t'), config({'x': REF['a'][-1:]}, table='u')]
    assert xs(dataset(count_to(2), configs)) == [[0], [0, 1], [1]]


@pytest.mark.parametrize(
    'values',
    [
        np.array([[b'a', b'bcd'], [b'', b'e' * 100]], object),
        np.array([[0.5, 1.5], [2.5, 3.5]], np.float16),
        np.array([1 + 2j, 3 - 4j], np.complex64),
        np.zeros((2, 0, 3), np.float32),
        np.arange(12, dtype=np.uint8).reshape(2, 3, 2),
        tf.constant([1.5, 2.5], tf.bfloat16),
    ],
    ids=['string', 'float16', 'complex64', 'empty', 'uint8', 'bfloat16'],
)
def test_cells_of_every_kind_are_stacked(values):
    ref = structured.create_reference_step(None)
    steps = tf.data.Dataset.from_tensor_slices(values)
    (element,) = dataset(steps, [config(ref[-2:])], is_end=NEVER)
    np.testing.assert_array_equal(element.numpy(), tf.constant(values).numpy())


def test_bare_steps_and_bare_patterns():
    ref = structured.create_reference_step(None)
    ds = dataset(tf.data.Dataset.range(5), [config(ref[-2:])], is_end=lambda i: i % 3 == 2)
    assert listed(ds) == [[0, 1], [1, 2], [3, 4]]


def test_components_that_no_config_uses_may_be_of_any_dtype():
    steps = tf.data.Dataset.range(3).map(
        lambda i: {
            'a': i,
            'q': tf.quantization.quantize(tf.cast(i, tf.float32), 0.0, 9.0, tf.quint8)[0],
        }
    )
    ref = structured.create_reference_step({'a': None, 'q': None})
    assert xs(dataset(steps, [config({'x': ref['a'][-2:]})], is_end=NEVER)) == [[0, 1], [1, 2]]


def test_with_info_wraps_in_samples_with_zero_info():
    ds = pattern_dataset.pattern_dataset_with_info(count_to(3), [config(LAST_TWO)], True, ends)
    assert ds.element_spec.data == {'x': tf.TensorSpec([2], tf.int64)}
    assert [spec.dtype for spec in ds.element_spec.info] == list(reverb_tf.SampleInfo.tf_dtypes())
    samples = list(ds)
    assert [s.data['x'].numpy().tolist() for s in samples] == [[0, 1], [1, 2]]
    assert all(isinstance(s, reverb_tf.ReplaySample) for s in samples)
    assert all(int(v) == 0 for v in samples[0].info)


def test_with_info_keeps_tuples():
    ds = pattern_dataset.pattern_dataset_with_info(
        count_to(2), [config((REF['a'][-1:], REF['b'][-1]))], True, ends
    )
    assert [listed([s.data])[0] for s in ds] == [([0], 0), ([1], 1)]


# ---- Steps and configs -----------------------------------------------------------


def test_leaves_are_found_by_path():
    step = collections.namedtuple('Step', ['e', 'c', 'b', 'a'])
    steps = tf.data.Dataset.range(3).map(lambda i: step(i > 9, i * 100, i * 10, i))
    priority = structured.td_error(0.5, STRUCTURE, lambda s: s['b'])
    c = Condition.data(STRUCTURE)['c']
    picked = config({'x': REF['a'][-1], 'y': REF['b'][-1]}, [c >= 100], priority)
    ds = dataset(steps, [picked], is_end=lambda s: s.e)
    assert listed(ds) == [{'x': 1, 'y': 10}, {'x': 2, 'y': 20}]


def test_leaves_without_names_are_found_by_position():
    ref = structured.create_reference_step([None, None])
    steps = tf.data.Dataset.range(3).map(lambda i: {'p': i, 'q': i * 10})
    ds = dataset(steps, [config({'x': ref[1][-2:]})], is_end=NEVER)
    assert xs(ds) == [[0, 10], [10, 20]]


def test_configs_without_paths_are_of_the_leaves_in_order():
    foreign = config({'x': REF['b'][-1]}, [Condition.data(STRUCTURE)['c'] == 1])
    for node in foreign.flat:
        node.ClearField('source_paths')
    assert xs(dataset(steps_of([1, 2], b=[3, 4], c=[0, 1]), [foreign])) == [4]


def test_another_steps_configs_are_refused_by_path():
    steps = tf.data.Dataset.range(3).map(lambda i: {'a': i, 'z': i})
    with pytest.raises(ValueError, match='missing: b, c, e, extra: z'):
        dataset(steps, [config(LAST_TWO)], is_end=NEVER)


def test_configs_are_copied():
    configs = [config(LAST_TWO)]
    ds = dataset(count_to(3), configs)
    configs[0].flat[0].start = -1
    configs.clear()
    assert xs(ds) == [[0, 1], [1, 2]]


def test_making_a_dataset_does_not_change_the_configs():
    step = collections.namedtuple('Step', ['e', 'c', 'b', 'a'])
    given_config = config(LAST_TWO)
    before = given_config.SerializeToString()
    steps = tf.data.Dataset.range(3).map(lambda i: step(i > 9, i, i, i))
    dataset(steps, [given_config], is_end=NEVER)
    assert given_config.SerializeToString() == before


def test_parts_of_tuples_are_arguments_of_is_end_of_episode():
    ref = structured.create_reference_step((None, None))
    steps = tf.data.Dataset.range(5).map(lambda i: (i, i % 3 == 2))
    ds = dataset(steps, [config({'x': ref[0][-2:]})], is_end=lambda i, e: e)
    assert xs(ds) == [[0, 1], [1, 2], [3, 4]]


def test_is_end_of_episode_may_capture_tensors_and_variables():
    last = tf.Variable(2, dtype=tf.int64)
    offset = tf.constant(0, tf.int64)
    ds = dataset(count_to(5), [config(LAST_TWO)], is_end=lambda s: s['a'] + offset == last)
    assert xs(ds) == [[0, 1], [1, 2], [3, 4]]
    last.assign(1)
    assert xs(ds) == [[0, 1], [2, 3], [3, 4]]


def test_is_end_of_episode_may_branch_on_the_step():
    def is_end(step):
        if step['a'] > 1:
            return step['a'] == 2
        return False

    assert xs(dataset(count_to(5), [config(LAST_TWO)], is_end=is_end)) == [[0, 1], [1, 2], [3, 4]]


# ---- What is refused -------------------------------------------------------------


@pytest.mark.parametrize(
    ('is_end', 'got'),
    [
        (lambda s: s['a'], 'int64'),
        (lambda s: tf.stack([s['e'], s['e']]), r'bool of shape \(2,\)'),
        (lambda s: (s['e'], s['e']), 'tuple'),
        (lambda s: None, 'NoneType'),
    ],
)
def test_an_end_that_is_no_bool_scalar_is_refused(is_end, got):
    with pytest.raises(ValueError, match=f'`is_end_of_episode` must return `bool`.*{got}'):
        dataset(count_to(3), [config(LAST_TWO)], is_end=is_end)


def test_an_end_that_turns_out_to_be_no_scalar_is_refused():
    def is_end(step):
        return tf.raw_ops.PlaceholderWithDefault(input=[True], shape=tf.TensorShape(None))

    ds = dataset(count_to(3), [config(LAST_TWO)], is_end=is_end)
    with pytest.raises(tf.errors.InvalidArgumentError, match='must return one bool scalar'):
        next(iter(ds))


def test_no_config_is_refused():
    with pytest.raises(ValueError, match='At least one config must be provided'):
        dataset(count_to(3), [])


def test_configs_of_several_structures_are_refused():
    with pytest.raises(ValueError, match=r'configs\[1\] has another pattern structure'):
        dataset(count_to(3), [config(LAST_TWO), config({'y': REF['a'][-2:]})])


def test_configs_of_several_dtypes_are_refused():
    with pytest.raises(ValueError, match="'x'.*several dtypes: bool, int64"):
        dataset(count_to(3), [config(LAST_TWO), config({'x': REF['e'][-2:]})])


@pytest.mark.parametrize('condition', [Condition.step_index() % 0 == 0])
def test_a_condition_out_of_its_range_is_refused_with_the_position(condition):
    with pytest.raises(ValueError, match='position 1: .*mod'):
        dataset(count_to(3), [config(LAST_TWO), config(LAST_TWO, [condition])])


def test_what_is_no_config_is_refused():
    with pytest.raises(TypeError, match=r'configs\[0\] must be made by create_config, got int'):
        dataset(count_to(3), [1])


def test_what_is_no_dataset_is_refused():
    with pytest.raises(TypeError, match=r'input_dataset must be a tf.data.Dataset, got list'):
        dataset([1], [config(LAST_TWO)])


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match='is_end_of_episode must be a function, got bool'):
        dataset(count_to(3), [config(LAST_TWO)], is_end=False)


def test_what_is_no_bool_is_refused():
    with pytest.raises(TypeError, match='respect_episode_boundaries must be a bool, got str'):
        dataset(count_to(3), [config(LAST_TWO)], clear='yes')


def test_steps_of_other_than_tensors_are_refused_by_path():
    steps = tf.data.Dataset.range(3).map(
        lambda i: {'a': i, 'r': tf.RaggedTensor.from_row_lengths([i], [1])}
    )
    ref = structured.create_reference_step({'a': None, 'r': None})
    with pytest.raises(ValueError, match="'r' must be a tensor, got RaggedTensorSpec"):
        dataset(steps, [config({'x': ref['a'][-1]})], is_end=NEVER)


def test_a_condition_on_a_float_is_refused_by_path():
    steps = count_to(3).map(lambda s: {**s, 'c': 1.5})
    with pytest.raises(ValueError, match="'c': a condition needs a bool or integer scalar"):
        dataset(steps, [config(LAST_TWO, [Condition.data(STRUCTURE)['c'] == 1])])


def test_a_td_error_of_a_bool_is_refused_by_path():
    priority = structured.td_error(0.5, STRUCTURE, lambda s: s['e'])
    with pytest.raises(ValueError, match="'e': td_error needs a float or integer scalar"):
        dataset(count_to(3), [config({'x': REF['e'][-1]}, priority=priority)])


def test_a_condition_that_turns_out_to_be_no_scalar_leaves_the_step_out():
    spec = {'a': tf.TensorSpec([], tf.int64), 'c': tf.TensorSpec(None, tf.int64)}
    steps = tf.data.Dataset.from_generator(
        lambda: ({'a': i, 'c': [0] if i == 2 else 0} for i in range(5)), output_signature=spec
    )
    ref = structured.create_reference_step(spec)
    picked = config({'x': ref['a'][-2:]}, [Condition.data(spec)['c'] == 0])
    it = iter(dataset(steps, [picked], is_end=NEVER))
    assert next(it)['x'].numpy().tolist() == [0, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="'c': a condition needs"):
        next(it)
    assert xs(it) == [[1, 3], [3, 4]]


def test_cells_of_several_shapes_are_named_and_the_sequence_goes_on():
    steps = tf.data.Dataset.range(5).map(lambda i: {'a': tf.zeros([1 if i < 3 else 2])})
    ref = structured.create_reference_step({'a': None})
    it = iter(dataset(steps, [config({'x': ref['a'][-2:]})], is_end=NEVER))
    assert [next(it)['x'].shape, next(it)['x'].shape] == [[2, 1], [2, 1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'x': .*\[1\] and float\[2\]"):
        next(it)
    assert next(it)['x'].shape == [2, 2]


def test_a_td_error_that_is_not_finite_is_an_error_in_its_place():
    values = [1.0, np.inf, 2.0]
    steps = tf.data.Dataset.from_tensor_slices({'a': values})
    ref = structured.create_reference_step({'a': None})
    priority = structured.td_error(0.5, {'a': None}, lambda s: s['a'])
    it = iter(dataset(steps, [config({'x': ref['a'][-1]}, priority=priority)], is_end=NEVER))
    assert next(it)['x'].numpy() == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match='td_error must be finite, got inf'):
        next(it)
    assert xs(it) == [2.0]


def test_a_step_whose_end_cannot_be_told_is_left_out():
    def is_end(step):
        tf.debugging.assert_none_equal(step['a'], tf.constant(1, tf.int64), message='bad step')
        return False

    it = iter(dataset(count_to(4), [config(LAST_TWO)], is_end=is_end))
    with pytest.raises(tf.errors.InvalidArgumentError, match='bad step'):
        next(it)
    assert xs(it) == [[0, 2], [2, 3]]


def raw_op(**attrs):
    traced = tf.function(NEVER).get_concrete_function(tf.TensorSpec([], tf.int64))
    ref = structured.create_reference_step(None)
    arguments = dict(
        dataset=tf.data.Dataset.range(3)._variant_tensor,
        other_arguments=[],
        is_end_of_episode=traced,
        configs=structured.serialize([config({'x': ref[-2:]})]),
        clear_after_episode=True,
        dtypes=[tf.int64],
        shapes=[[2]],
    )
    return load.ops().reverb_tf_pattern_dataset(**{**arguments, **attrs})


TWO_LEAVES = structured.create_reference_step([None, None])


@pytest.mark.parametrize(
    ('attrs', 'text'),
    [
        ({'dtypes': [tf.float32]}, "column 'x': it is int64.*declare float"),
        ({'shapes': [[3]]}, r"column 'x': it is int64\[2\].*declare int64\[3\]"),
        ({'shapes': [[2], [2]], 'dtypes': [tf.int64] * 2}, 'config 0 has 1 columns, expected 2'),
        ({'shapes': [[2], [2]]}, 'dtypes and shapes must have an entry a column, got 1 and 2'),
        ({'configs': [b'\xff']}, 'position 0'),
        (
            {'configs': structured.serialize([config({'x': TWO_LEAVES[1][-2:]})])},
            'steps of 2 leaves, but the dataset.s elements have 1',
        ),
    ],
)
def test_the_op_refuses_attrs_that_contradict_its_input(attrs, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        raw_op(**attrs)


# ---- Streaming -------------------------------------------------------------------


def pulled_steps(n):
    """A dataset of n ints, and the list of those that were asked for."""
    pulled = []

    def generate():
        for i in range(n):
            pulled.append(i)
            yield {'a': i}

    spec = {'a': tf.TensorSpec([], tf.int64)}
    return tf.data.Dataset.from_generator(generate, output_signature=spec), pulled


def without_buffers(ds):
    """`ds` without those that tf.data puts in of its own accord."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return ds.with_options(options)


def test_only_the_steps_that_are_needed_are_read():
    steps, pulled = pulled_steps(100)
    ref = structured.create_reference_step({'a': None})
    configs = [config({'x': ref['a'][-3:]}), config({'x': ref['a'][-2:]})]
    it = iter(without_buffers(dataset(steps, configs, is_end=NEVER)))
    assert pulled == []
    next(it)
    assert pulled == [0, 1]
    next(it)
    assert pulled == [0, 1, 2]
    next(it)  # the second of that step
    assert pulled == [0, 1, 2]


def saved_bytes(it, path):
    prefix = tf.train.Checkpoint(it=it).write(str(path))
    return sum(p.stat().st_size for p in path.parent.glob(pathlib.Path(prefix).name + '*'))


def test_no_more_is_held_than_the_patterns_reach(tmp_path):
    steps = tf.data.Dataset.range(10_000).map(
        lambda i: dict.fromkeys('ab', tf.random.stateless_uniform([2000], [i, i]))
    )
    ref = structured.create_reference_step({'a': None, 'b': None})
    it = iter(without_buffers(dataset(steps, [config({'x': ref['a'][-3:]})], is_end=NEVER)))
    for _ in range(500):
        next(it)
    assert 3 * 8000 < saved_bytes(it, tmp_path / 'it') < 4 * 8000


def test_dropping_an_iterator_that_yields_nothing_ends_its_search():
    steps = tf.data.Dataset.range(10).repeat()
    ref = structured.create_reference_step(None)
    never = config(ref[-1], [Condition.step_index() < 0])
    it = iter(dataset(steps, [never], is_end=NEVER).prefetch(1))
    del it
    gc.collect()


def test_interrupting_an_iterator_that_yields_nothing_raises():
    script = """
        import tensorflow as tf
        import reverb_tf
        from reverb_tf import structured
        ref = structured.create_reference_step(None)
        never = structured.create_config(ref[-1], 't', [structured.Condition.step_index() < 0])
        it = iter(reverb_tf.PatternDataset(
            tf.data.Dataset.range(10).repeat(), [never], True, lambda i: False))
        try:
            print('ready', flush=True)
            next(it)
        except KeyboardInterrupt:
            print('interrupted')
    """
    process = testing_util.start_script(script)
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, 'interrupted\n'), err


# ---- A dataset like others -------------------------------------------------------


def test_cardinality_is_infinite_if_the_inputs_is():
    ds = dataset(count_to(3).repeat(), [config(LAST_TWO)])
    assert ds.cardinality() == tf.data.INFINITE_CARDINALITY


def test_cardinality_is_unknown_otherwise():
    ds = dataset(count_to(3), [config(LAST_TWO)])
    assert ds.cardinality() == tf.data.UNKNOWN_CARDINALITY


def every_kind_of_config():
    priority = structured.td_error(0.5, STRUCTURE, lambda s: s['b'])
    return [
        config({'x': REF['a'][-5::2]}, [Condition.step_index() % 3 == 1]),
        config({'x': REF['a'][-1:]}, [Condition.steps_since_applied() >= 3]),
        config({'x': REF['b'][-3:]}, priority=priority),
        config({'x': REF['a'][-2:]}, [Condition.is_end_episode()]),
    ]


@pytest.mark.parametrize('clear', [True, False])
def test_a_restored_iterator_goes_on_from_every_element(clear, tmp_path):
    ds = dataset(count_to(12, 5), every_kind_of_config(), clear)
    expected = xs(ds)
    for taken in range(len(expected) + 1):
        it = iter(ds)
        for _ in range(taken):
            next(it)
        path = tf.train.Checkpoint(it=it).write(str(tmp_path / f'it{taken}'))
        restored = iter(ds)
        next(restored)
        tf.train.Checkpoint(it=restored).read(path).assert_consumed()
        assert xs(restored) == expected[taken:]


def test_an_iterator_restored_at_the_end_is_at_the_end(tmp_path):
    ds = dataset(count_to(3), [config(LAST_TWO)])
    it = iter(ds)
    assert len(xs(it)) == 2
    path = tf.train.Checkpoint(it=it).write(str(tmp_path / 'it'))
    restored = iter(ds)
    tf.train.Checkpoint(it=restored).read(path)
    assert xs(restored) == []


def test_a_checkpoint_of_other_configs_is_refused(tmp_path):
    it = iter(dataset(count_to(9), [config({'x': REF['a'][-4:]})]))
    next(it)
    path = tf.train.Checkpoint(it=it).write(str(tmp_path / 'it'))
    other = iter(dataset(count_to(9), [config({'x': REF['a'][-2:]})]))
    with pytest.raises(tf.errors.DataLossError, match='expected at most 2'):
        tf.train.Checkpoint(it=other).read(path)


def test_transformations():
    ds = dataset(count_to(9).shuffle(1).map(lambda s: s), [config(LAST_TWO)])
    ds = ds.map(lambda t: t['x'] * 2, num_parallel_calls=2).batch(3).prefetch(tf.data.AUTOTUNE)
    assert [b.tolist() for b in ds.as_numpy_iterator()][0] == [[0, 2], [2, 4], [4, 6]]


def test_every_iterator_begins_anew():
    ds = dataset(count_to(3), [config(LAST_TWO)]).repeat(2)
    assert xs(ds) == [[0, 1], [1, 2]] * 2


def test_a_tf_function_loops_over_it():
    ds = dataset(count_to(6, 3), [config(LAST_TWO)])

    @tf.function
    def total():
        result = tf.constant(0, tf.int64)
        for trajectory in ds:
            result += tf.reduce_sum(trajectory['x'])
        return result

    assert total() == sum([0, 1, 1, 2, 3, 4, 4, 5])


def test_it_can_be_made_inside_a_tf_function():
    @tf.function
    def total(last):
        ds = dataset(count_to(5), [config(LAST_TWO)], is_end=lambda s: s['a'] == last)
        return ds.reduce(tf.constant(0, tf.int64), lambda n, t: n + t['x'][0])

    assert total(tf.constant(2, tf.int64)) == 0 + 1 + 3
    assert total(tf.constant(0, tf.int64)) == 1 + 2 + 3


def test_interleave_makes_one_for_each_element():
    ref = structured.create_reference_step(None)

    def of_episode(i):
        steps = tf.data.Dataset.range(i * 10, i * 10 + 3)
        return dataset(steps, [config({'x': ref[-2:]})], is_end=NEVER)

    ds = tf.data.Dataset.range(2).interleave(of_episode, cycle_length=2)
    assert xs(ds) == [[0, 1], [10, 11], [1, 2], [11, 12]]


def test_graph_mode_iterators_work():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ds = dataset(count_to(6, 3), [config(LAST_TWO)])
        it = tf.compat.v1.data.make_initializable_iterator(ds)
        element = it.get_next()
        session.run(it.initializer)
        got = [session.run(element)['x'].tolist() for _ in range(4)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(element)
    assert got == [[0, 1], [1, 2], [3, 4], [4, 5]]


def test_graph_mode_one_shot_iterators_work():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ds = dataset(count_to(3), [config(LAST_TWO)])
        element = tf.compat.v1.data.make_one_shot_iterator(ds).get_next()
        assert session.run(element)['x'].tolist() == [0, 1]


def test_the_data_service_runs_it():
    offset = tf.constant(2, tf.int64)
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split('://')[1]
    worker = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
    )
    ds = dataset(count_to(5), [config(LAST_TWO)], is_end=lambda s: s['a'] == offset)
    ds = ds.apply(
        tf.data.experimental.service.distribute(
            processing_mode='parallel_epochs', service=dispatcher.target
        )
    )
    assert xs(ds) == [[0, 1], [1, 2], [3, 4]]
    del ds, worker, dispatcher


def test_options_of_the_input_are_kept():
    options = tf.data.Options()
    options.deterministic = False
    ds = dataset(count_to(3).with_options(options), [config(LAST_TWO)])
    assert ds.options().deterministic is False
