"""PatternDataset: what a structured writer would insert of the steps of a `tf.data.Dataset`."""

import re

import tensorflow as tf

from reverb_tf import _native, arguments, signatures, structured_writer
from reverb_tf.ops import load
from reverb_tf.reverb_types import ReplaySample, SampleInfo

__all__ = ['PatternDataset', 'pattern_dataset_with_info']


class PatternDataset(tf.data.Dataset):
    """Trajectories of a dataset of steps, each element a nest as the configs' pattern.

        ref = structured.create_reference_step(steps.element_spec)
        config = structured.create_config({'obs': ref['obs'][-2:]}, table='any')
        dataset = PatternDataset(steps, [config], True, lambda step: step['is_last'])

    They are those that `Client.structured_writer(configs)` would insert if it were given the
    steps, in that order; tables don't matter. Steps are read as they are needed, and only the
    newest are held, as many as the patterns reach. A checkpoint of the iterator holds them.
    """

    def __init__(self, input_dataset, configs, respect_episode_boundaries, is_end_of_episode):
        """Makes the dataset.

        Args:
          input_dataset: `tf.data.Dataset` whose elements are steps: nests of tensors.
          configs: sequence of `structured.create_config(...)`, of one pattern structure; they
            are copied. Leaves of the step are found by path if it has names, as the configs'
            reference step, and by position otherwise.
          respect_episode_boundaries: True: no trajectory reaches over the end of an episode.
          is_end_of_episode: function of a step, as of `Dataset.filter`, which is traced to a
            graph; returns a bool scalar: whether the step is the last of its episode.

        Raises:
          ValueError: no config, a bad one, several pattern structures, a step that isn't the
            one that the configs were made for, or an is_end_of_episode that doesn't return a
            bool scalar.
          TypeError: a value of the wrong type.
        """
        if not isinstance(input_dataset, tf.data.Dataset):
            raise TypeError(
                f'input_dataset must be a tf.data.Dataset, got {type(input_dataset).__name__}'
            )
        if not callable(is_end_of_episode):
            raise TypeError(
                f'is_end_of_episode must be a function, got {type(is_end_of_episode).__name__}'
            )
        clear = arguments.boolean(respect_episode_boundaries, 'respect_episode_boundaries')
        self._input_dataset = input_dataset
        leaves = _leaves(input_dataset.element_spec)
        configs = [_for_step(config, leaves) for config in _copies(configs)]
        self._element_spec = _element_spec(configs, input_dataset.element_spec)
        # Kept, since the function's name dies with it.
        self._is_end_of_episode = _trace(is_end_of_episode, input_dataset.element_spec)
        flat = tf.nest.flatten(self._element_spec)
        variant = load.ops().reverb_tf_pattern_dataset(
            dataset=input_dataset._variant_tensor,
            other_arguments=self._is_end_of_episode.captured_inputs,
            is_end_of_episode=self._is_end_of_episode,
            configs=structured_writer.serialize(configs),
            clear_after_episode=clear,
            dtypes=[s.dtype for s in flat],
            shapes=[s.shape for s in flat],
        )
        load.watch_interrupts()
        super().__init__(variant)

    @property
    def element_spec(self):
        """A nest as the pattern (lists become tuples) of `tf.TensorSpec`s."""
        return self._element_spec

    def _inputs(self):
        return [self._input_dataset]


def pattern_dataset_with_info(
    input_dataset, configs, respect_episode_boundaries, is_end_of_episode
):
    """A `PatternDataset` whose elements are `ReplaySample`s, as those of `TrajectoryDataset`.

    Args:
      input_dataset: as of `PatternDataset`, like the others.
      configs: see there.
      respect_episode_boundaries: see there.
      is_end_of_episode: see there.

    Returns:
      A dataset of `ReplaySample(info, data)`, the info a `SampleInfo` of zeros.
    """
    dataset = PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)

    def with_info(*data):
        info = SampleInfo(*map(tf.constant, SampleInfo.zeros(), SampleInfo.tf_dtypes()))
        return ReplaySample(info=info, data=data if unpacks else data[0])

    unpacks = _is_unpacked(dataset.element_spec)
    return dataset.map(with_info)


# ---- Steps -----------------------------------------------------------------------


def _leaves(step_spec):
    """[(path, spec)] of a step, in TensorFlow's order of its components."""
    leaves = signatures.flatten(step_spec)
    for path, spec in leaves:
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(
                f"input_dataset: '{path}' must be a tensor, got {type(spec).__name__}; turn it "
                'into one, or leave it out, by Dataset.map'
            )
    return leaves


def _is_unpacked(spec):
    """Whether tf.data gives the parts of such elements to a function one by one."""
    return type(spec) is tuple


def _trace(is_end_of_episode, step_spec):
    """The ConcreteFunction of a step's components."""

    def of_components(*components):
        step = tf.nest.pack_sequence_as(step_spec, components)
        return is_end_of_episode(*step) if _is_unpacked(step_spec) else is_end_of_episode(step)

    specs = [tf.TensorSpec(s.shape, s.dtype) for s in tf.nest.flatten(step_spec)]
    traced = tf.function(of_components).get_concrete_function(*specs)
    result = traced.structured_outputs
    if not tf.is_tensor(result) and not isinstance(result, tf.TensorSpec):
        got = type(result).__name__
    elif result.dtype != tf.bool or result.shape.rank not in (None, 0):
        got = f'{result.dtype.name} of shape {result.shape}'
    else:
        return traced
    raise ValueError(f'`is_end_of_episode` must return `bool` (a scalar), got {got}')


# ---- Configs ---------------------------------------------------------------------


def _copies(configs):
    """The configs as ours, which nobody else holds."""
    serialized = structured_writer.serialize(configs)
    if not serialized:
        raise ValueError('At least one config must be provided: configs is empty')
    _native.check_configs(serialized)
    copies = [structured_writer.Config.FromString(config) for config in serialized]
    expected = _columns(copies[0])
    for i, config in enumerate(copies):
        if _columns(config) != expected:
            raise ValueError(
                f'configs[{i}] has another pattern structure than configs[0]: columns '
                f'{_columns(config)}, expected {expected}; give it a dataset of its own'
            )
    return copies


def _columns(config):
    return [path for path, _ in signatures.flatten(signatures.decode(config.pattern_structure))]


def _has_names(paths):
    return any(re.search(r'[^\[\]\d]', path) for path in paths)


def _components(known, paths):
    """The component of each leaf of the reference step `known`."""
    if known and len(known) == len(paths) and not (_has_names(known) and _has_names(paths)):
        known = paths
    if not known or sorted(known) == sorted(paths):
        return [paths.index(path) for path in known or paths]
    missing = ', '.join(path for path in known if path not in paths) or 'none'
    extra = ', '.join(path for path in paths if path not in known) or 'none'
    raise ValueError(
        "input_dataset: its elements must be as the configs' reference step, which has "
        f'{len(known)} leaves; got {len(paths)}; missing: {missing}, extra: {extra}'
    )


def _for_step(config, leaves):
    """`config` with its leaves numbered as the components of a step, and checked with them."""
    paths = [path for path, _ in leaves]
    components = _components(list(config.flat[0].source_paths), paths)

    def renumber(proto, check=None):
        if not 0 <= proto.flat_source_index < len(components):
            raise ValueError(
                f'configs: a leaf {proto.flat_source_index} is referred to, but the elements of '
                f'input_dataset have {len(components)}'
            )
        proto.flat_source_index = components[proto.flat_source_index]
        if check is not None:
            check(*leaves[proto.flat_source_index])

    for node in config.flat:
        renumber(node)
        node.ClearField('source_paths')
        node.source_paths.extend(paths)
    for condition in config.conditions:
        if condition.WhichOneof('left') == 'flat_source_index':
            renumber(condition, _check_condition)
    if config.priority.HasField('td_error'):
        renumber(config.priority.td_error, _check_td_error)
    return config


def _check_condition(path, spec):
    if spec.shape.rank in (None, 0) and (spec.dtype.is_integer or spec.dtype.is_bool):
        return
    raise ValueError(
        f"'{path}': a condition needs a bool or integer scalar, got {spec.dtype.name} of shape "
        f'{spec.shape}'
    )


def _check_td_error(path, spec):
    if spec.shape.rank in (None, 0) and (spec.dtype.is_integer or spec.dtype.is_floating):
        return
    raise ValueError(
        f"'{path}': td_error needs a float or integer scalar, got {spec.dtype.name} of shape "
        f'{spec.shape}'
    )


def _element_spec(configs, step_spec):
    # Tables don't matter, but signatures are of one.
    of_one_table = [structured_writer.Config() for _ in configs]
    for copy, config in zip(of_one_table, configs, strict=True):
        copy.CopyFrom(config)
        copy.table = configs[0].table
    inferred = structured_writer.infer_signature(of_one_table, step_spec)
    return _lists_to_tuples(inferred)


def _lists_to_tuples(nest):
    """As tf.data wants it, and without names."""
    if isinstance(nest, dict):
        return {key: _lists_to_tuples(child) for key, child in nest.items()}
    if signatures.is_namedtuple(nest):
        return type(nest)(*map(_lists_to_tuples, nest))
    if isinstance(nest, (list, tuple)):
        return tuple(map(_lists_to_tuples, nest))
    return tf.TensorSpec(nest.shape, nest.dtype)
