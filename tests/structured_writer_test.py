"""The structured writer, against a plain-Python model and case by case."""

import collections
import dataclasses
import operator
import threading

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

import reverb_tf as reverb
from reverb_tf import structured
from tests import testing_util

Condition = structured.Condition
AB = {'a': None, 'b': None}
REF = structured.create_reference_step(AB)
LAST_A = {'x': REF['a'][-1]}


@pytest.fixture(scope='module')
def server():
    """Tables that give each item once, in the order of insertion."""
    tables = [reverb.Table.queue(name, 1_000_000) for name in ('t', 'u')]
    tables.append(
        reverb.Table.queue(
            'signed', 1000, signature={'x': structured.signatures.TensorSpec((2,), np.int64)}
        )
    )
    tables.append(reverb.Table.queue('one', 1))
    tables.append(
        reverb.Table(
            'prioritized',
            reverb.selectors.Prioritized(1.0),
            reverb.selectors.Fifo(),
            1000,
            reverb.rate_limiters.MinSize(1),
            max_times_sampled=1,
        )
    )
    with reverb.Server(tables) as running:
        yield running


@pytest.fixture(params=['in_process', 'remote'])
def client(server, request):
    connected = reverb.Client(
        f'localhost:{server.port}', in_process=request.param == 'in_process', timeout=30
    )
    for table in connected.server_info():
        connected.reset(table)
    return connected


def config(pattern, table='t', conditions=(), priority=None):
    return structured.create_config(pattern, table, conditions, priority)


def taken(client, table='t'):
    """The data of all items of a table, which are gone then."""
    n = client.server_info()[table].current_size
    if n == 0:
        return []
    samples = client.sample(
        table, n, emit_timesteps=False, unpack_as_table_signature=False, timeout=10
    )
    return [[np.asarray(column).tolist() for column in s.data] for s in samples]


def column(client, table='t'):
    """The first columns of all items."""
    return [data[0] for data in taken(client, table)]


def write(client, configs, steps):
    writer = client.structured_writer(configs)
    for a, b in steps:
        writer.append({'a': a, 'b': b})
    writer.flush()
    return writer


# ---- A model ---------------------------------------------------------------------


@dataclasses.dataclass
class Part:
    """A comparison, as data: for the writer and for the model."""

    left: str
    mod: int | None
    operation: str
    value: int

    def condition(self):
        if self.left == 'end':
            return Condition.is_end_episode()
        left = {
            'index': Condition.step_index(),
            'applied': Condition.steps_since_applied(),
            'c': Condition.data(dict.fromkeys('abc'))['c'],
        }[self.left]
        return self._compare(left)

    def holds(self, values):
        if self.left == 'end':
            return True  # asked at the end only
        left = values[self.left]
        return left is not None and bool(self._compare(left))

    def _compare(self, left):
        left = left if self.mod is None else left % self.mod
        return {
            '==': lambda: left == self.value,
            '!=': lambda: left != self.value,
            '>': lambda: left > self.value,
            '>=': lambda: left >= self.value,
            '<': lambda: left < self.value,
            '<=': lambda: left <= self.value,
        }[self.operation]()


class Model:
    """One config, applied to a stream of steps held in a list."""

    def __init__(self, nodes, parts):
        self.nodes = nodes  # (leaf, index or slice)
        self.parts = parts
        self.at_end = any(part.left == 'end' for part in parts)
        self.needed = max(-(k.start if isinstance(k, slice) else k) for _, k in nodes)
        self.history = []
        self.index = -1
        self.applied = 0  # steps since
        self.is_done = True
        self.skipped = 0
        self.items = []

    def begin_step(self):
        self.history.append(dict.fromkeys('abc'))
        self.index += 1
        self.applied += 1
        self.is_done = False

    def add(self, leaves, closes):
        self.history[-1].update({k: v for k, v in leaves.items() if v is not None})
        if not self.at_end and not self.is_done:
            self._evaluate(open_step=not closes)

    def end_episode(self, clear):
        if self.at_end and self.index >= 0:
            self.is_done = False
            self._evaluate(open_step=False)
        self.index = -1
        if clear:
            self.history = []

    def _evaluate(self, open_step):
        values = {'index': self.index, 'applied': self.applied, 'c': self.history[-1]['c']}
        if len(self.history) < self.needed or not all(p.holds(values) for p in self.parts):
            return
        columns = []
        for leaf, key in self.nodes:
            cells = [step[leaf] for step in self.history]
            columns.append(cells[key])
        flat = [c for cells in columns for c in (cells if isinstance(cells, list) else [cells])]
        if None in flat:
            self.skipped += not open_step
            return
        self.items.append(columns)
        self.is_done = True
        self.applied = 0


def _slices(draw):
    start = draw(st.integers(-6, -1))
    stop = draw(st.one_of(st.none(), st.integers(start + 1, -1) if start < -1 else st.none()))
    return slice(start, stop, draw(st.sampled_from([None, 1, 2, 3])))


@st.composite
def nodes(draw):
    key = st.one_of(st.integers(-5, -1), st.composite(lambda d: _slices(d))())
    return draw(st.lists(st.tuples(st.sampled_from('ab'), key), min_size=1, max_size=3))


@st.composite
def comparisons(draw):
    left = draw(st.sampled_from(['index', 'applied', 'c', 'end']))
    mod = draw(st.one_of(st.none(), st.integers(1, 4)))
    operation = draw(st.sampled_from(['==', '!=', '>', '>=', '<', '<=']))
    value = draw(st.integers(0, mod - 1 if mod else 5))
    return Part(left, mod, operation, value)


LEAF = st.one_of(st.none(), st.integers(-3, 9), st.integers(-3, 9), st.integers(-3, 9))


@st.composite
def partial_steps(draw):
    """Parts of one step: each leaf in one of them, or in none."""
    parts = [dict(), dict(), dict()]
    for leaf in 'abc':
        value = draw(LEAF)
        if value is not None:
            parts[draw(st.integers(0, 2))][leaf] = value
    return parts


STEP = st.fixed_dictionaries({'a': LEAF, 'b': LEAF, 'c': LEAF})
BATCH = st.lists(
    st.fixed_dictionaries(dict.fromkeys('abc', st.integers(-3, 9))), min_size=1, max_size=5
)
OPERATION = st.one_of(
    st.tuples(st.just('step'), STEP),
    st.tuples(st.just('step'), STEP),
    st.tuples(st.just('parts'), partial_steps()),
    st.tuples(
        st.just('open'), partial_steps()
    ),  # closed by the end of the episode, if that is next
    st.tuples(st.just('batch'), st.tuples(BATCH, st.sampled_from([None, 'a', 'b', 'c']))),
    st.tuples(st.just('end'), st.booleans()),
)


def run_models(models, operations):
    """What the models make of the operations; the operations as calls of a writer."""
    calls = []
    is_open = False

    def feed(leaves, closes, begins):
        for model in models:
            if begins:
                model.begin_step()
            model.add(leaves, closes)

    def close():
        nonlocal is_open
        if is_open:
            calls.append(('append', {}, False))
            feed({}, True, False)
        is_open = False

    for kind, value in operations:
        if kind == 'end':
            if is_open:
                feed({}, True, False)
            is_open = False
            calls.append(('end_episode', value))
            for model in models:
                model.end_episode(value)
            continue
        close()
        if kind == 'step':
            calls.append(('append', value, False))
            feed(value, True, True)
        elif kind == 'batch':
            rows, hole = value
            rows = [{k: None if k == hole else v for k, v in row.items()} for row in rows]
            leaves = {k: None if k == hole else [row[k] for row in rows] for k in 'abc'}
            calls.append(('append_batch', leaves))
            for row in rows:
                feed(row, True, True)
        else:
            for i, part in enumerate(value):
                closes = kind == 'parts' and i == 2
                calls.append(('append', part, not closes))
                feed(part, closes, i == 0)
            is_open = kind == 'open'
    close()
    return calls


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    specs=st.lists(st.tuples(nodes(), st.lists(comparisons(), max_size=2)), min_size=1, max_size=3),
    operations=st.lists(OPERATION, min_size=3, max_size=25),
)
def test_inserts_what_the_model_inserts(server, specs, operations):
    client = reverb.Client(f'localhost:{server.port}', timeout=30)
    client.reset('t')
    ref = structured.create_reference_step(dict.fromkeys('abc'))
    models = [Model(*spec) for spec in specs]
    calls = run_models(models, operations)
    for model in models:
        writer = client.structured_writer(
            [
                config(
                    [ref[leaf][key] for leaf, key in model.nodes],
                    conditions=[part.condition() for part in model.parts],
                )
            ]
        )
        for name, value, *partial in calls:
            if name == 'append':
                writer.append(value, partial_step=partial[0])
            elif name == 'append_batch':
                writer.append_batch(
                    {k: None if v is None else np.array(v) for k, v in value.items()}
                )
            else:
                writer.end_episode(value)
        writer.flush()
        assert taken(client) == model.items
        assert writer.skipped_items == model.skipped
        writer.close(0)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    key=st.composite(lambda draw: _slices(draw))(),
    weight=st.floats(0, 1),
    values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12),
)
def test_td_error_is_what_numpy_computes(server, key, weight, values):
    client = reverb.Client(f'localhost:{server.port}', timeout=30)
    client.reset('t')
    priority = structured.td_error(weight, AB, lambda step: step['b'])
    write(
        client,
        [config({'x': REF['b'][key]}, priority=priority)],
        [(0, np.float32(v)) for v in values],
    )
    n = client.server_info()['t'].current_size
    expected = []
    for i in range(-key.start, len(values) + 1):
        x = np.abs(values[:i][key])
        expected.append(weight * x.max() + (1 - weight) * x.mean())
    got = [s.info.priority for s in client.sample('t', n, emit_timesteps=False)] if n else []
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


# ---- Patterns --------------------------------------------------------------------


def test_a_node_remembers_its_leaf_and_cells():
    node = REF['b'][-5:-1:2]
    assert node.flat_source_index == 1
    assert (node.start, node.stop, node.step) == (-5, -1, 2)
    assert list(node.source_paths) == ['a', 'b']


@pytest.mark.parametrize('key', [slice(None, -1), slice(None), slice(None, None, 2)])
def test_a_slice_without_start_is_refused(key):
    with pytest.raises(ValueError, match='needs a negative start'):
        REF['a'][key]


@pytest.mark.parametrize('key', ['x', 1.5, None, True, (1, 2), slice('a', None), 2**40])
def test_other_keys_are_refused(key):
    with pytest.raises(ValueError):
        REF['a'][key]


def test_numpy_ints_are_keys():
    assert REF['a'][np.int64(-2)].stop == -2


def test_pattern_from_transform_hands_over_the_reference_step():
    pattern = structured.pattern_from_transform(
        {'a': None, 'b': (None, None)}, lambda step: [step['b'][1][-2:]]
    )
    assert pattern[0].flat_source_index == 2


def test_unpack_pattern_gives_the_pattern_back():
    pattern = {'x': REF['a'][-1], 'y': [REF['b'][-2:], (REF['a'][-3:-1],)]}
    unpacked = structured.unpack_pattern(config(pattern))
    assert unpacked == pattern
    assert isinstance(unpacked['y'][1], tuple)


@pytest.mark.parametrize(
    'pattern',
    [
        {'x': 3},
        {},
        {'x': REF['a'][0]},
        {'x': REF['a'][1]},
        {'x': REF['a'][-2:1]},
        {'x': REF['a'][-2:-3]},
        {'x': REF['a'][-2::-1]},
        {'x': REF['a'][-2::0]},
        {'x': REF['a']},
    ],
)
def test_create_config_refuses_a_bad_pattern(pattern):
    with pytest.raises(ValueError):
        config(pattern)


def test_create_config_refuses_a_pattern_of_two_reference_steps():
    other = structured.create_reference_step({'c': None})
    with pytest.raises(ValueError, match='reference steps'):
        config({'x': REF['a'][-1], 'y': other['c'][-1]})


def test_create_config_names_a_bad_leaf():
    with pytest.raises(ValueError, match="'x/y'"):
        config({'x': {'y': REF['a'][1]}})


def test_create_config_refuses_a_bad_name():
    with pytest.raises(ValueError, match='table'):
        config(LAST_A, table='')
    with pytest.raises(TypeError, match='table'):
        config(LAST_A, table=3)


def test_create_config_refuses_what_is_no_condition():
    with pytest.raises(TypeError, match=r'conditions\[0\]'):
        config(LAST_A, conditions=[Condition.step_index()])


def test_create_config_refuses_what_is_no_priority():
    with pytest.raises(TypeError, match='priority must be made by'):
        config(LAST_A, priority=2.0)


def test_the_default_priority_is_one(client):
    write(client, [config(LAST_A)], [(1, 2)])
    assert next(client.sample('t', emit_timesteps=False)).info.priority == 1


# ---- Conditions ------------------------------------------------------------------


@pytest.mark.parametrize(
    ('condition', 'expected'),
    [
        (Condition.step_index() == 2, [2]),
        (Condition.step_index() != 2, [0, 1, 3, 4]),
        (Condition.step_index() > 2, [3, 4]),
        (Condition.step_index() >= 2, [2, 3, 4]),
        (Condition.step_index() < 2, [0, 1]),
        (Condition.step_index() <= 2, [0, 1, 2]),
        (2 <= Condition.step_index(), [2, 3, 4]),
        (Condition.step_index() % 2 == 1, [1, 3]),
        (Condition.step_index() % 3 >= 1, [1, 2, 4]),
        (Condition.step_index() % 3 <= 1, [0, 1, 3, 4]),
        (Condition.steps_since_applied() >= 2, [1, 3]),
        (Condition.data(AB)['b'] == 30, [3]),
        (Condition.data(AB)['b'] % 20 == 0, [0, 2, 4]),
    ],
)
def test_conditions(client, condition, expected):
    write(client, [config(LAST_A, conditions=[condition])], [(i, 10 * i) for i in range(5)])
    assert column(client) == expected


def test_a_bool_leaf_is_a_condition(client):
    condition = Condition.data(AB)['b'] == True  # noqa: E712 (makes the condition)
    write(client, [config(LAST_A, conditions=[condition])], [(1, True), (2, np.bool_(False))])
    assert column(client) == [1]


@pytest.mark.parametrize('value', [1.5, '1', None, True])
def test_conditions_compare_with_ints_only(value):
    with pytest.raises(TypeError, match='step_index'):
        operator.ge(Condition.step_index(), value)


def test_numbers_of_conditions_fit_32_bits():
    with pytest.raises(ValueError):
        operator.gt(Condition.step_index(), 2**31 - 1)
    with pytest.raises(ValueError):
        operator.mod(Condition.step_index(), 2**31)


@pytest.mark.parametrize(
    'condition',
    [
        Condition.step_index() % 0 == 0,
        Condition.step_index() % -2 == 0,
        Condition.step_index() % 2 == 2,
        Condition.step_index() % 2 == -1,
    ],
)
def test_bad_ranges_are_refused_with_the_position(client, condition):
    with pytest.raises(ValueError, match='position 1.*mod_eq'):
        client.structured_writer([config(LAST_A), config(LAST_A, conditions=[condition])])


@pytest.mark.parametrize('value', [1.5, np.zeros(1, int), 'x'])
def test_data_that_a_condition_cannot_read_is_refused(client, value):
    writer = client.structured_writer([config(LAST_A, conditions=[Condition.data(AB)['b'] == 1])])
    with pytest.raises(ValueError, match="'b'"):
        writer.append({'a': 1, 'b': value})
    writer.append({'a': 2, 'b': 1})
    writer.flush()
    assert column(client) == [2]


# ---- Priorities ------------------------------------------------------------------


@pytest.mark.parametrize('weight', [-0.1, 1.1])
def test_td_error_refuses_a_weight_out_of_range(weight):
    with pytest.raises(ValueError, match='max_priority_weight'):
        structured.td_error(weight, AB, lambda step: step['a'])


def test_td_error_wants_one_leaf():
    with pytest.raises(ValueError, match='one leaf'):
        structured.td_error(0.5, AB, lambda step: step)


@pytest.mark.parametrize('pattern', [{'x': REF['a'][-1]}, {'x': REF['b'][-1], 'y': REF['b'][-2]}])
def test_td_error_wants_its_field_once_in_the_pattern(client, pattern):
    priority = structured.td_error(0.5, AB, lambda step: step['b'])
    with pytest.raises(ValueError, match='position 0.*exactly once'):
        client.structured_writer([config(pattern, priority=priority)])


def test_a_td_error_that_is_not_finite_refuses_that_item(client):
    priority = structured.td_error(0.5, AB, lambda step: step['b'])
    writer = client.structured_writer(
        [config({'x': REF['b'][-1]}, priority=priority), config(LAST_A, 'u')]
    )
    with pytest.raises(ValueError, match='finite'):
        writer.append({'a': 1, 'b': float('nan')})
    writer.append({'a': 2, 'b': 2.5})
    writer.flush()
    assert column(client) == [2.5]
    assert column(client, 'u') == [1, 2]
    assert writer.rejected_items == 1


@pytest.mark.parametrize('value', [float('nan'), 'x', None, True])
def test_constant_priorities_are_numbers(value):
    with pytest.raises((TypeError, ValueError), match='priority'):
        structured.constant_priority_fn(value)


def test_a_priority_that_the_table_refuses_is_refused_at_once(client):
    bad = config(LAST_A, 'prioritized', priority=structured.constant_priority_fn(-1))
    with pytest.raises(ValueError, match='position 0'):
        client.structured_writer([bad])


# ---- Steps -----------------------------------------------------------------------


def test_leaves_match_by_path(client):
    ref = structured.create_reference_step({'z': None, 'a': {'y': None, 'x': None}})
    writer = client.structured_writer([config([ref['z'][-1], ref['a']['x'][-1]])])
    writer.append({'a': {'x': 1, 'y': 2}, 'z': 3})
    writer.append({'z': 6, 'a': {'y': 5, 'x': 4}})
    writer.flush()
    assert taken(client) == [[3, 1], [6, 4]]


def test_named_tuples_pass_for_dicts(client):
    step = collections.namedtuple('Step', 'b a')
    writer = client.structured_writer([config([REF['a'][-1], REF['b'][-1]])])
    writer.append(step(b=2, a=1))
    writer.flush()
    assert taken(client) == [[1, 2]]


def test_leaves_without_names_match_by_position(client):
    writer = client.structured_writer([config([REF['b'][-1]])])
    writer.append([1, 2])
    writer.append([None, 4])
    writer.flush()
    assert column(client) == [2, 4]


def test_holes_of_steps_without_names_keep_their_positions(client):
    writer = client.structured_writer([config([REF['b'][-1]])])
    writer.append([None, 2])
    writer.append([3, 4])
    writer.append([5, 6])
    writer.flush()
    assert column(client) == [2, 4, 6]


def test_none_leaves_out_all_below_it(client):
    ref = structured.create_reference_step({'a': {'x': None, 'y': None}, 'b': None})
    writer = client.structured_writer([config([ref['b'][-1]]), config([ref['a']['x'][-1]])])
    writer.append({'a': None, 'b': 1})
    writer.append({'a': {'x': 2, 'y': 3}, 'b': 4})
    writer.flush()
    assert column(client) == [1, 4, 2]
    assert writer.skipped_items == 1


@pytest.mark.parametrize(
    ('step', 'text'),
    [
        ({'a': 1}, 'got 1 but wanted 2.*missing: .b'),
        ({'a': 1, 'b': 2, 'c': 3}, 'got 3 but wanted 2.*extra: .c'),
        ({'a': 1, 'x': 2}, 'missing: .b.*extra: .x'),
        ({'a': {'x': 1}, 'b': 2}, 'missing: .a.*extra: .a/x'),
        ([1], 'got 1 but wanted 2'),
        ([1, 2, 3], 'got 3 but wanted 2'),
        ({}, 'got 0 but wanted 2'),
    ],
)
def test_other_leaves_are_refused_and_change_nothing(client, step, text):
    writer = client.structured_writer([config(LAST_A)])
    with pytest.raises(ValueError, match=text):
        writer.append(step)
    writer.append({'a': 5, 'b': 6})
    with pytest.raises(ValueError):
        writer.append(step)
    writer.append({'a': 7, 'b': 8})
    writer.flush()
    assert column(client) == [5, 7]


def test_dtype_and_shape_are_fixed_by_the_first_cell(client):
    writer = client.structured_writer([config(LAST_A)])
    writer.append({'a': 1, 'b': 1})
    for bad in (1.0, np.zeros(2, int)):
        with pytest.raises(ValueError, match="'a'"):
            writer.append({'a': bad, 'b': 1})
    writer.append({'a': 2, 'b': 1})
    writer.flush()
    assert column(client) == [1, 2]


def test_values_that_cannot_be_stored_are_refused_with_the_path(client):
    writer = client.structured_writer([config(LAST_A)])
    with pytest.raises(TypeError, match="'a'"):
        writer.append({'a': object(), 'b': 1})


def test_partial_steps_insert_as_soon_as_cells_are_there(client):
    writer = client.structured_writer([config(LAST_A), config({'x': REF['b'][-1]}, 'u')])
    writer.append({'a': 1}, partial_step=True)
    writer.flush()
    assert (column(client), column(client, 'u')) == ([1], [])
    assert writer.step_is_open
    writer.append({'a': None, 'b': 2})
    writer.flush()
    assert (column(client), column(client, 'u')) == ([], [2])
    assert not writer.step_is_open


def test_a_leaf_is_set_once_a_step(client):
    writer = client.structured_writer([config(LAST_A)])
    writer.append({'a': 1}, partial_step=True)
    with pytest.raises(ValueError, match="'a' is set already"):
        writer.append({'a': 2, 'b': 3})
    writer.append({'b': 3})
    writer.flush()
    assert column(client) == [1]


def test_strings_are_data(client):
    writer = client.structured_writer([config({'x': REF['a'][-2:]})])
    writer.append({'a': 'one', 'b': 1})
    writer.append_batch({'a': np.array(['two', 'three'], object), 'b': np.array([2, 3])})
    writer.flush()
    assert column(client) == [[b'one', b'two'], [b'two', b'three']]


def test_append_batch_is_as_many_appends(client):
    writer = client.structured_writer(
        [config({'x': REF['a'][-2:]}, conditions=[Condition.data(AB)['b'] == 1])]
    )
    writer.append_batch({'a': np.arange(5), 'b': np.array([1, 0, 1, 0, 1])})
    writer.flush()
    assert column(client) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    'batch',
    [
        {'a': np.arange(3), 'b': np.arange(2)},
        {'a': np.arange(3), 'b': 1},
        {'a': np.zeros(0), 'b': np.zeros(0)},
        {'a': np.arange(3)},
    ],
)
def test_bad_batches_are_refused_whole(client, batch):
    writer = client.structured_writer([config(LAST_A)])
    with pytest.raises(ValueError):
        writer.append_batch(batch)
    writer.flush()
    assert column(client) == []


def test_history_configure_and_create_item_name_the_trajectory_writer(client):
    writer = client.structured_writer([config(LAST_A)])
    for name in ('history', 'configure', 'create_item'):
        with pytest.raises(AttributeError, match='trajectory_writer'):
            getattr(writer, name)


# ---- The writer ------------------------------------------------------------------


@pytest.mark.parametrize('configs', [[], [3], 'x', None])
def test_what_is_no_config_is_refused(client, configs):
    with pytest.raises((TypeError, ValueError)):
        client.structured_writer(configs)


def test_an_unknown_table_is_refused_with_the_position(client):
    with pytest.raises(ValueError, match="position 1.*'none'"):
        client.structured_writer([config(LAST_A), config(LAST_A, 'none')])


def test_configs_of_different_reference_steps_are_refused(client):
    other = structured.create_reference_step({'c': None})
    with pytest.raises(ValueError, match='position 1.*reference step'):
        client.structured_writer([config(LAST_A), config({'x': other['c'][-1]})])


def test_configs_are_copied(client):
    changed = config(LAST_A)
    writer = client.structured_writer([changed])
    changed.table = 'u'
    writer.append({'a': 1, 'b': 2})
    writer.flush()
    assert column(client) == [1]


def test_a_structure_that_is_not_the_tables_is_refused_at_once(client):
    with pytest.raises(ValueError, match='position 0.*missing: x'):
        client.structured_writer([config({'y': REF['a'][-2:]}, 'signed')])


def test_dtypes_and_shapes_are_checked_at_once_with_a_step_spec(client):
    spec = structured.signatures.TensorSpec
    configs = [config({'x': REF['a'][-2:]}, 'signed')]
    good = {'a': spec((), np.int64), 'b': spec(None, np.float32)}
    client.structured_writer(configs, step_spec=good)
    for bad in (spec((), np.float32), spec((3,), np.int64)):
        with pytest.raises(ValueError, match='position 0.*differs'):
            client.structured_writer(configs, step_spec=dict(good, a=bad))


def test_dtypes_are_checked_at_the_first_item_without_a_step_spec(client):
    writer = client.structured_writer([config({'x': REF['a'][-2:]}, 'signed')])
    writer.append({'a': 1.0, 'b': 0})
    with pytest.raises(ValueError, match='differs'):
        writer.append({'a': 2.0, 'b': 0})


def test_a_step_spec_casts_values(client):
    spec = structured.signatures.TensorSpec
    writer = client.structured_writer(
        [config(LAST_A)], step_spec={'a': spec((), np.float32), 'b': spec((), np.int32)}
    )
    writer.append({'a': 1.5, 'b': 7})
    writer.flush()
    sample = next(client.sample('t', emit_timesteps=False))
    assert sample.data[0].dtype == np.float32
    with pytest.raises(ValueError, match='extra: c'):
        writer.append({'a': 1.5, 'b': 7, 'c': 1})


def test_end_episode_inserts_what_is_conditioned_on_it(client):
    writer = client.structured_writer(
        [config({'x': REF['a'][-2:]}, conditions=[Condition.is_end_episode()])]
    )
    for episode in (3, 1, 0, 2):
        for i in range(episode):
            writer.append({'a': i, 'b': 0})
        writer.end_episode()
    assert column(client) == [[1, 2], [0, 1]]


def test_a_full_table_holds_a_bounded_append_back(client):
    writer = client.structured_writer([config(LAST_A, 'one')], max_in_flight_items=1, timeout=0.2)
    writer.append({'a': 1, 'b': 0})
    writer.append({'a': 2, 'b': 0})
    with pytest.raises(reverb.DeadlineExceededError):
        writer.append({'a': 3, 'b': 0})
    got = [next(client.sample('one', emit_timesteps=False)).data[0].tolist() for _ in range(2)]
    testing_util.eventually(lambda: writer.pending_items == 0)
    writer.append({'a': 3, 'b': 0})
    got.append(next(client.sample('one', emit_timesteps=False)).data[0].tolist())
    assert got == [1, 2, 3]


def test_a_blocked_append_lets_other_threads_go_on(client):
    writer = client.structured_writer([config(LAST_A, 'one')], max_in_flight_items=1)
    writer.append({'a': 1, 'b': 0})
    writer.append({'a': 2, 'b': 0})
    blocked = threading.Thread(target=writer.append, args=({'a': 3, 'b': 0},))
    blocked.start()
    got = [next(client.sample('one', emit_timesteps=False)).data[0].tolist() for _ in range(3)]
    blocked.join(30)
    assert not blocked.is_alive()
    assert got == [1, 2, 3]


def test_threads_append_whole_steps(client):
    writer = client.structured_writer([config([REF['a'][-1], REF['b'][-1]])])

    def append(base):
        for i in range(200):
            writer.append({'a': base + i, 'b': -base - i})

    threads = [threading.Thread(target=append, args=(1000 * t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush()
    got = taken(client)
    assert len(got) == 800
    assert all(a == -b for a, b in got)


def test_use_after_close_is_refused(client):
    writer = client.structured_writer([config(LAST_A)])
    assert writer.close() == 0
    for call in (lambda: writer.append({'a': 1, 'b': 2}), writer.flush, writer.end_episode):
        with pytest.raises(RuntimeError, match='closed'):
            call()


def test_leaving_a_with_block_flushes(client):
    with client.structured_writer([config(LAST_A)]) as writer:
        writer.append({'a': 1, 'b': 2})
    assert writer.pending_items == 0
    assert column(client) == [1]


def test_the_writer_is_a_top_level_name(client):
    writer = client.structured_writer([config(LAST_A)])
    assert isinstance(writer, reverb.StructuredWriter)
    assert reverb.structured.StructuredWriter is reverb.StructuredWriter


# ---- Signatures ------------------------------------------------------------------

SPEC = {
    'a': structured.signatures.TensorSpec((3,), np.dtype('float32')),
    'b': structured.signatures.TensorSpec((), np.dtype('int64')),
}


def inferred(*patterns):
    return structured.infer_signature([config(p) for p in patterns], SPEC)


def test_infer_signature_gives_lengths_and_names():
    got = inferred({'x': REF['a'][-3:], 'y': {'z': [REF['b'][-1]]}, 'w': REF['a'][-6:-1:2]})
    assert [(tuple(s.shape), s.name) for s in (got['x'], got['y']['z'][0], got['w'])] == [
        ((3, 3), 'x'),
        ((), 'y/z/0'),
        ((3, 3), 'w'),
    ]
    assert got['y']['z'][0].dtype == np.int64


def test_infer_signature_leaves_differing_lengths_open():
    assert tuple(inferred({'x': REF['a'][-3:]}, {'x': REF['a'][-2:]})['x'].shape) == (None, 3)


@pytest.mark.parametrize(
    'patterns',
    [
        [],
        [{'x': REF['a'][-1]}, {'y': REF['a'][-1]}],
        [{'x': REF['a'][-1]}, [REF['a'][-1]]],
        [{'x': REF['a'][-1]}, {'x': REF['b'][-1]}],
        [{'x': REF['a'][-1]}, {'x': REF['a'][-1:]}],
    ],
)
def test_infer_signature_refuses_configs_that_dont_agree(patterns):
    with pytest.raises(ValueError):
        inferred(*patterns)


def test_infer_signature_refuses_several_tables():
    with pytest.raises(ValueError, match='same table'):
        structured.infer_signature([config(LAST_A, 't'), config(LAST_A, 'u')], SPEC)


def test_infer_signature_refuses_the_spec_of_another_step():
    with pytest.raises(ValueError, match='step_spec'):
        structured.infer_signature([config(LAST_A)], {'c': SPEC['a'], 'd': SPEC['b']})


def test_a_table_takes_the_items_of_its_inferred_signature():
    configs = [config({'x': REF['a'][-3::2], 'y': [REF['b'][-1]]})]
    table = reverb.Table.queue('t', 10, signature=structured.infer_signature(configs, SPEC))
    with reverb.Server([table]) as server:
        client = reverb.Client(f'localhost:{server.port}')
        writer = client.structured_writer(configs, step_spec=SPEC)
        for i in range(3):
            writer.append({'a': np.full(3, i), 'b': i})
        writer.flush()
        data = next(client.sample('t', emit_timesteps=False)).data
    np.testing.assert_array_equal(data['x'], [[0] * 3, [2] * 3])
    assert data['y'][0] == 2
