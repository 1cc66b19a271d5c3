"""Writing by patterns: steps go in, items of the newest steps come out.

A pattern says which cells make up an item; a config adds the table, conditions and the
priority. `Client.structured_writer(configs)` evaluates them in C++ after each step:

    ref = structured.create_reference_step({'observation': None, 'reward': None})
    config = structured.create_config(
        pattern={'obs': ref['observation'][-3:], 'reward': ref['reward'][-1]},
        table='replay',
        conditions=[structured.Condition.step_index() % 2 == 0],
    )
    with client.structured_writer([config]) as writer:
        writer.append({'observation': ..., 'reward': ...})

Configs are protos (`patterns_pb2`), whose bytes dm-reverb's programs can read and write.
"""

import operator
import re
from typing import Any

from reverb_tf import _native, arguments, dtypes, signatures, writer_seam
from reverb_tf.cc import patterns_pb2
from reverb_tf.trajectory_writer import TrajectoryWriter

__all__ = [
    'Condition',
    'ConditionProto',
    'Config',
    'Pattern',
    'PatternNode',
    'Priority',
    'ReferenceStep',
    'StructuredWriter',
    'constant_priority_fn',
    'create_config',
    'create_reference_step',
    'infer_signature',
    'pattern_from_transform',
    'td_error',
    'unpack_pattern',
]

Config = patterns_pb2.StructuredWriterConfig
ConditionProto = patterns_pb2.Condition
PatternNode = patterns_pb2.PatternNode
Priority = patterns_pb2.Priority
Pattern = Any  # a nest of PatternNode
ReferenceStep = Any  # a nest as a step, of leaves that are indexed like columns

_INT32_MAX = 2**31 - 1


# ---- Patterns --------------------------------------------------------------------


class _Reference:
    """A leaf of a reference step: indexing it makes a node of a pattern."""

    def __init__(self, index, path, source_paths):
        self._index = index
        self._path = path
        self._source_paths = source_paths

    def __getitem__(self, key):
        """The node of a cell (-1: the newest step's) or of a slice of cells."""
        node = PatternNode(flat_source_index=self._index, source_paths=self._source_paths)
        if isinstance(key, slice):
            if key.start is None:
                raise ValueError(
                    f"'{self._path}': a slice needs a negative start, got {_text(key)}; "
                    'for one cell write [-1]'
                )
            for field in ('start', 'stop', 'step'):
                if getattr(key, field) is not None:
                    setattr(node, field, self._int(getattr(key, field)))
        else:
            node.stop = self._int(key)
        return node

    def _int(self, key):
        try:
            if not isinstance(key, bool):
                return _int32(operator.index(key), f"'{self._path}': index")
        except TypeError:
            pass
        raise ValueError(
            f"'{self._path}': key must be an int or a slice of ints, got {key!r} "
            f'({type(key).__name__})'
        )


def _int32(value, name):
    return arguments.integer(value, name, -_INT32_MAX - 1, _INT32_MAX)


def _text(key):
    parts = [key.start, key.stop] + ([] if key.step is None else [key.step])
    return '[' + ':'.join('' if p is None else str(p) for p in parts) + ']'


def create_reference_step(step_structure):
    """A nest as `step_structure`, whose leaves make nodes: `ref['a'][-3:]`, `ref['b'][-1]`.

    The newest step is -1. An index gives that one cell (squeezed), a slice
    `[start:stop:step]` with a negative start a column of cells; `stop` counts from the newest
    step too, and left out (or 0) includes it.

    Raises:
      ValueError: when a leaf is indexed by something else, or sliced without a start.
    """
    paths = [path for path, _ in signatures.flatten(step_structure)]
    return signatures.pack_as(
        step_structure, [_Reference(i, path, paths) for i, path in enumerate(paths)]
    )


def pattern_from_transform(step_structure, transform):
    """The pattern that `transform` makes of a reference step of `step_structure`."""
    return transform(create_reference_step(step_structure))


def create_config(pattern, table, conditions=(), priority=None):
    """What a structured writer inserts, where and when.

    Args:
      pattern: nest of nodes of one reference step.
      table: name of the table.
      conditions: all must hold; see `Condition`.
      priority: `constant_priority_fn(...)` or `td_error(...)`; None: 1.0.

    Returns:
      A `Config`, a proto.

    Raises:
      ValueError: a leaf that is no node, a node out of its range, an empty pattern or name,
        or a bad priority.
    """
    config = Config(table=arguments.text(table, 'table'))
    priority = constant_priority_fn(1.0) if priority is None else priority
    if not isinstance(priority, Priority):
        raise TypeError(
            'priority must be made by constant_priority_fn or td_error, got '
            f'{type(priority).__name__}'
        )
    config.priority.CopyFrom(priority)
    for path, node in signatures.flatten(pattern):
        if not isinstance(node, PatternNode):
            where = f"pattern leaf '{path}'" if path else 'pattern'
            raise ValueError(
                f'{where} must be made of a reference step, as ref[...][-1] or ref[...][-3:], '
                f'got {type(node).__name__}'
            )
        config.flat.append(node)
    config.pattern_structure = signatures.encode(
        signatures.map_structure(lambda _: signatures.PLACEHOLDER, pattern)
    )
    for i, condition in enumerate(arguments.sequence(conditions, 'conditions', 'conditions')):
        if not isinstance(condition, ConditionProto):
            raise TypeError(
                f'conditions[{i}] must be a comparison, as Condition.step_index() >= 2, got '
                f'{type(condition).__name__}'
            )
        config.conditions.append(condition)
    _native.check_config(config.SerializeToString())
    return config


def unpack_pattern(config):
    """The pattern of a config: the nest of nodes that it was made of."""
    return signatures.pack_as(signatures.decode(config.pattern_structure), list(config.flat))


def serialize(configs):
    """The bytes of each config; TypeError for what is none."""
    configs = arguments.sequence(configs, 'configs', 'Configs')
    for i, config in enumerate(configs):
        if not hasattr(config, 'SerializeToString'):
            raise TypeError(
                f'configs[{i}] must be made by create_config, got {type(config).__name__}'
            )
    return [config.SerializeToString() for config in configs]


# ---- Signatures ------------------------------------------------------------------


def infer_signature(configs, step_spec):
    """The signature that a table needs for the items of configs.

    Args:
      configs: of one table and one pattern structure.
      step_spec: nest of specs of a step.

    Returns:
      A nest of specs as the pattern. A leaf is named by its path, and its first dimension is
      None where the configs differ in length.

    Raises:
      ValueError: no config, several tables or structures, or columns that differ in dtype,
        rank or the dimensions of a step.
    """
    configs = list(configs)
    if not configs:
        raise ValueError('configs must hold at least one config, got none')
    tables = sorted({config.table for config in configs})
    if len(tables) > 1:
        raise ValueError(f'all configs must be for the same table, got {", ".join(tables)}')
    structure = signatures.decode(configs[0].pattern_structure)
    for i, config in enumerate(configs):
        if signatures.decode(config.pattern_structure) != structure:
            raise ValueError(f'configs[{i}] has another pattern structure than configs[0]')
    columns = [_column_specs(config, step_spec) for config in configs]
    merged = [
        _merge(path, specs)
        for (path, _), *specs in zip(signatures.flatten(structure), *columns, strict=True)
    ]
    return signatures.pack_as(structure, merged)


def _column_specs(config, step_spec):
    """(shape, dtype number) of each column of the config's items."""
    leaves = signatures.flatten(step_spec)
    specs = []
    for node in config.flat:
        _check_source(node, leaves)
        path, spec = leaves[node.flat_source_index]
        number = signatures.spec_number(spec, f"step_spec leaf '{path}'")
        shape = signatures.shape_of(spec)
        if shape is not None and node.HasField('start'):
            step = node.step if node.HasField('step') else 1
            shape = (-((node.start - node.stop) // step), *shape)
        specs.append((shape, number))
    return specs


def _check_source(node, leaves):
    paths = [path for path, _ in leaves]
    known = list(node.source_paths)
    named = any(re.search(r'[^\[\]\d]', p) for p in known)
    if (
        known
        and len(known) != len(paths)
        or (named and known != paths and any(re.search(r'[^\[\]\d]', p) for p in paths))
    ):
        raise ValueError(f'step_spec has the leaves {paths}, but the configs were made for {known}')
    if not 0 <= node.flat_source_index < len(paths):
        raise ValueError(
            f'a node refers to leaf {node.flat_source_index}, but step_spec has {len(paths)}'
        )


def _merge(path, specs):
    where = f"column '{path}' of the configs"
    numbers = {number for _, number in specs}
    if len(numbers) > 1:
        names = ', '.join(sorted(map(dtypes.name, numbers)))
        raise ValueError(f'{where} has several dtypes: {names}')
    shapes = [shape for shape, _ in specs]
    merged = shapes[0]
    for shape in shapes[1:]:
        if (merged is None) != (shape is None) or (
            merged is not None and (len(merged) != len(shape) or merged[1:] != shape[1:])
        ):
            raise ValueError(f'{where} has incompatible shapes: {merged} and {shape}')
        if merged and merged != shape:
            merged = (None, *merged[1:])
    name = re.sub(r'\[(\d+)\]', r'/\1', path).strip('/')
    return signatures.make_spec(merged, numbers.pop(), name)


# ---- Conditions ------------------------------------------------------------------


class _Operand:
    """The left side of a condition; comparing it with an int makes the condition."""

    def __init__(self, name, left, is_data=False, mod=None):
        self._name = name
        self._left = left
        self._is_data = is_data
        self._mod = mod

    def __mod__(self, mod):
        if self._mod is not None:
            raise ValueError(f'{self!r} has a remainder already')
        name = f'{self._name} %'
        return _Operand(self._name, self._left, self._is_data, _int32(mod, name))

    def _condition(self, operation, value, *, equal, inverse):
        if self._is_data and equal and isinstance(value, bool):
            value = int(value)
        value = arguments.integer(value, f'{self!r} {operation}')
        if operation in ('>', '<='):
            value += 1
        condition = ConditionProto(inverse=inverse, **self._left)
        value = _int32(value, f'{self!r} {operation}')
        if self._mod is not None:
            compare = condition.mod_eq if equal else condition.mod_ge
            compare.mod = self._mod
        else:
            compare = condition
        setattr(compare, 'eq' if equal else 'ge', value)
        return condition

    def __eq__(self, value):
        return self._condition('==', value, equal=True, inverse=False)

    def __ne__(self, value):
        return self._condition('!=', value, equal=True, inverse=True)

    def __ge__(self, value):
        return self._condition('>=', value, equal=False, inverse=False)

    def __gt__(self, value):
        return self._condition('>', value, equal=False, inverse=False)

    def __lt__(self, value):
        return self._condition('<', value, equal=False, inverse=True)

    def __le__(self, value):
        return self._condition('<=', value, equal=False, inverse=True)

    __hash__ = None

    def __repr__(self):
        return self._name if self._mod is None else f'{self._name} % {self._mod}'


class Condition:
    """What configs can be conditioned on.

    `step_index`, `steps_since_applied` and `data` are compared with ints (`== != > >= < <=`),
    as they are or after `% n`: `Condition.step_index() % 2 == 0`. The arithmetic is int64's.
    """

    @staticmethod
    def step_index():
        """Index of the newest step in its episode, from 0."""
        return _Operand('step_index', {'step_index': True})

    @staticmethod
    def steps_since_applied():
        """Steps since the config last made an item (or the writer's first), also across
        episodes: 1 in the step after it."""
        return _Operand('steps_since_applied', {'steps_since_applied': True})

    @staticmethod
    def is_end_episode():
        """The condition that `end_episode` was called; the config does nothing else then."""
        return ConditionProto(is_end_episode=True, eq=1)

    @staticmethod
    def data(step_structure):
        """A nest of operands: the newest step's leaves, which must be bools or integer
        scalars. Where a leaf is a hole its conditions don't hold."""
        leaves = signatures.flatten(step_structure)
        return signatures.pack_as(
            step_structure,
            [
                _Operand(f"data '{path}'", {'flat_source_index': i}, is_data=True)
                for i, (path, _) in enumerate(leaves)
            ],
        )


# ---- Priorities ------------------------------------------------------------------


def constant_priority_fn(value):
    """The same priority for every item; a number."""
    return Priority(constant_fn={'value': arguments.number(value, 'priority')})


def td_error(max_priority_weight, step_structure, get_field_from_step_fn):
    """w * max|x| + (1 - w) * mean|x| over a column of the item.

    Args:
      max_priority_weight: w, in [0, 1].
      step_structure: nest as a step.
      get_field_from_step_fn: returns the field x of a step; a float or integer scalar, which
        the pattern must contain exactly once.

    Raises:
      ValueError: a weight out of its range, or a function that doesn't return a leaf.
    """
    weight = arguments.number(max_priority_weight, 'max_priority_weight')
    if not 0 <= weight <= 1:
        raise ValueError(f'max_priority_weight must be in [0, 1], got {weight}')
    field = get_field_from_step_fn(create_reference_step(step_structure))
    if not isinstance(field, _Reference):
        raise ValueError(
            f'get_field_from_step_fn must return one leaf of the step, got {type(field).__name__}'
        )
    return Priority(td_error={'max_priority_weight': weight, 'flat_source_index': field._index})


# ---- The writer ------------------------------------------------------------------


def _hint(name):
    def refuse(self):
        raise AttributeError(
            f'StructuredWriter has no {name}: its patterns are fixed; use '
            'client.trajectory_writer(...) for it'
        )

    return property(refuse)


class StructuredWriter(TrajectoryWriter):
    """Appends steps and inserts the items of its configs; made by
    `Client.structured_writer`.

    Order of use: ((append | append_batch | flush)* end_episode)* close. Each call is atomic;
    calls of several threads interleave whole. Flushing, closing, pending and refused items,
    and lost connections are as with `TrajectoryWriter`.

    An item that can't be made (its data don't match the table's signature, its priority is
    not finite) raises at the append that should have made it, after the step and all other
    items went in; it counts in `rejected_items`.
    """

    _foreign = writer_seam.ForeignStructuredWriter

    def append(self, data, *, partial_step=False):
        """Appends one step, and inserts the items of the configs that it completes.

        Args:
          data: nest of arrays, numbers, strings or tensors; None leaves are holes. A step
            appended whole has all leaves of the reference step, by path where both have names
            and by position otherwise.
          partial_step: True leaves the step open for more leaves, which may come by name.

        Raises:
          ValueError: with the path: other leaves than the reference step's, a leaf set twice
            in a step, another dtype or shape than before, or what a condition can't read.
          TypeError: with the path: a value that can't be stored.
        """
        self._check()
        self._native.append(data, partial_step, self._wait)

    def append_batch(self, data):
        """Appends T steps one by one; leaves are [T, ...] with one T >= 1 for all."""
        self._check()
        self._native.append_batch(data, self._wait)

    @property
    def skipped_items(self):
        """Items that were not made since their pattern met a hole."""
        return self._native.skipped_items

    history = _hint('history')
    configure = _hint('configure')
    create_item = _hint('create_item')
