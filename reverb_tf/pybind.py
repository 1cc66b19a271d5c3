"""Names that programs for dm-reverb look for in its native module, for type checks mostly."""

import dataclasses

from reverb_tf import _native
from reverb_tf.cc import schema_pb2
from reverb_tf.client import Client
from reverb_tf.rate_limiters import RateLimiter
from reverb_tf.selectors import Fifo as FifoSelector
from reverb_tf.selectors import Heap as HeapSelector
from reverb_tf.selectors import Lifo as LifoSelector
from reverb_tf.selectors import Prioritized as PrioritizedSelector
from reverb_tf.selectors import Uniform as UniformSelector
from reverb_tf.server import Server
from reverb_tf.table import Table
from reverb_tf.table import TableExtensionBase as TableExtension

__all__ = [
    'AutoTunedChunkerOptions',
    'Client',
    'ConstantChunkerOptions',
    'FifoSelector',
    'HeapSelector',
    'LifoSelector',
    'PrioritizedSelector',
    'RateLimiter',
    'Server',
    'Table',
    'TableExtension',
    'UniformSelector',
    'WeakCellRef',
    'selector_from_proto',
]

# A cell of a writer's history: a column of one.
WeakCellRef = _native.TrajectoryColumn


@dataclasses.dataclass(frozen=True)
class ConstantChunkerOptions:
    """A column whose chunks have a fixed number of rows."""

    max_chunk_length: int
    num_keep_alive_refs: int


@dataclasses.dataclass(frozen=True)
class AutoTunedChunkerOptions:
    """A column that chooses the length of its chunks itself."""

    num_keep_alive_refs: int
    throughput_weight: float = 1.0


def selector_from_proto(serialized):
    """The selector of a serialized `KeyDistributionOptions`.

    Raises:
      ValueError: no distribution is set.
    """
    options = schema_pb2.KeyDistributionOptions.FromString(serialized)
    kind = options.WhichOneof('distribution')
    if kind is None:
        raise ValueError('the KeyDistributionOptions name no distribution')
    make = {
        'fifo': FifoSelector,
        'lifo': LifoSelector,
        'uniform': UniformSelector,
        'prioritized': lambda: PrioritizedSelector(options.prioritized.priority_exponent),
        'heap': lambda: HeapSelector(options.heap.min_heap),
    }
    return make[kind]()
