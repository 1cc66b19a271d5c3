"""reverb_tf: experience replay and data transport for machine learning, centred on tf.data.

A `Server` holds `Table`s; `Client`s insert, write trajectories, sample and update
priorities; `TrajectoryDataset` feeds training. TensorFlow is imported only by what needs it.
"""

import importlib

from reverb_tf import _native, errors, leaves

_native.set_error_factory(errors.from_status)
_native.set_leaf_converter(leaves.to_bytes)

from reverb_tf import rate_limiters, selectors  # noqa: E402 (need the factory)
from reverb_tf import structured_writer as structured  # noqa: E402
from reverb_tf.client import Client  # noqa: E402
from reverb_tf.errors import DeadlineExceededError, ReverbError  # noqa: E402
from reverb_tf.reverb_types import (  # noqa: E402
    MutateResult,
    PaddedSample,
    ReplaySample,
    SampleInfo,
    TableInfo,
)
from reverb_tf.sampler import Sampler  # noqa: E402
from reverb_tf.server import Server  # noqa: E402
from reverb_tf.signatures import signature_from  # noqa: E402
from reverb_tf.structured_writer import StructuredWriter  # noqa: E402
from reverb_tf.table import Table  # noqa: E402
from reverb_tf.timeouts import get_default_timeout, set_default_timeout  # noqa: E402
from reverb_tf.trajectory_writer import TrajectoryColumn, TrajectoryWriter  # noqa: E402
from reverb_tf.writer import Writer  # noqa: E402

# Imported when first used: most need TensorFlow.
_LAZY = {
    'PatternDataset': 'pattern_dataset',
    'TFClient': 'tf_client',
    'TFTrajectoryWriter': 'tf_trajectory_writer',
    'TimestepDataset': 'timestep_dataset',
    'TrajectoryDataset': 'trajectory_dataset',
}
_LAZY_MODULES = (
    'cc',
    'compat',
    'data',
    'item_selectors',
    'keras',
    'pattern_dataset',
    'platform',
    'pybind',
    'replay_sample',
    'tf_client',
    'tf_trajectory_writer',
    'timestep_dataset',
    'trajectory_dataset',
)

__all__ = [
    'Client',
    'DeadlineExceededError',
    'MutateResult',
    'PaddedSample',
    'PatternDataset',
    'ReplaySample',
    'ReverbError',
    'SampleInfo',
    'Sampler',
    'Server',
    'StructuredWriter',
    'TFClient',
    'TFTrajectoryWriter',
    'Table',
    'TableInfo',
    'TimestepDataset',
    'TrajectoryColumn',
    'TrajectoryDataset',
    'TrajectoryWriter',
    'Writer',
    'build_info',
    'errors',
    'get_default_timeout',
    'rate_limiters',
    'selectors',
    'set_default_timeout',
    'signature_from',
    'structured',
]


def build_info():
    """Dict of versions: the package, TensorFlow it was built for, compiler, git id, gRPC."""
    from reverb_tf import _build_info

    info = {
        'version': _build_info.VERSION,
        'tensorflow': _build_info.TF_VERSION,
        'compiler': _build_info.COMPILER,
        'git': _build_info.GIT_COMMIT,
    }
    for line in _native.build_info().splitlines():
        name, _, value = line.partition(': ')
        info.setdefault(name, value)
    return info


def __getattr__(name):
    if name in _LAZY:
        return getattr(importlib.import_module(f'reverb_tf.{_LAZY[name]}'), name)
    if name in _LAZY_MODULES:
        return importlib.import_module(f'reverb_tf.{name}')
    raise AttributeError(f"module 'reverb_tf' has no attribute '{name}'")
