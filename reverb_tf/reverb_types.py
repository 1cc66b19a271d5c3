"""The data classes of the package: samples, counts and what tables tell of themselves."""

import dataclasses
from typing import Any, NamedTuple

from reverb_tf import rate_limiters, selectors, signatures
from reverb_tf.selectors import Fifo, Heap, Lifo, Prioritized, Uniform

# Selectors are here too, as in dm-reverb.
SelectorType = selectors.Selector
SpecNest = Any

__all__ = [
    'Fifo',
    'Heap',
    'Lifo',
    'MutateResult',
    'PaddedSample',
    'Prioritized',
    'ReplaySample',
    'SampleInfo',
    'SelectorType',
    'SpecNest',
    'TableInfo',
    'Uniform',
]


class SampleInfo(NamedTuple):
    """What is known of a sample, as of the moment it was granted.

    Attributes:
      key: uint64, of the item.
      probability: float64, with which it was picked.
      table_size: int64, items in the table.
      priority: float64, of the item.
      times_sampled: int32, this sample included.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any

    @classmethod
    def tf_dtypes(cls):
        """The fields' TensorFlow dtypes."""
        import tensorflow as tf

        return cls(tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)

    @classmethod
    def tf_shapes(cls):
        """The fields' TensorFlow shapes (scalars)."""
        import tensorflow as tf

        return cls(*(tf.TensorShape([]) for _ in cls._fields))

    @classmethod
    def zeros(cls):
        """Python zeros."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """A sample: `info` (a `SampleInfo`) and `data` (a nest of arrays or tensors)."""

    info: Any
    data: Any


class PaddedSample(NamedTuple):
    """A zero-padded batch; `lengths` is a nest as `data` of int32 [B], the rows of each sample."""

    info: Any
    data: Any
    lengths: Any


class MutateResult(NamedTuple):
    """What `mutate_priorities` did; -1 where a server doesn't tell."""

    updated: int
    deleted: int
    not_found: int


class Distribution:
    """Options of a selector as a server reports them (`info.sampler_options`)."""

    def __init__(self, selector):
        self.selector = selector
        self.is_deterministic = selector.is_deterministic
        self.seed = selector.seed
        self._kind = {
            selectors.Fifo: 'fifo',
            selectors.Lifo: 'lifo',
            selectors.Uniform: 'uniform',
            selectors.Prioritized: 'prioritized',
            selectors.Heap: 'heap',
        }[type(selector)]

    def WhichOneof(self, group):  # noqa: N802 (protobuf's name)
        """'fifo', 'lifo', 'uniform', 'prioritized' or 'heap'."""
        if group != 'distribution':
            raise ValueError(f"the only group is 'distribution', got {group!r}")
        return self._kind

    fifo = property(lambda self: self._kind == 'fifo')
    lifo = property(lambda self: self._kind == 'lifo')
    uniform = property(lambda self: self._kind == 'uniform')
    prioritized = property(lambda self: self.selector)
    heap = property(lambda self: self.selector)

    def __eq__(self, other):
        return isinstance(other, Distribution) and self.selector == other.selector

    def __hash__(self):
        return hash(self.selector)

    def __repr__(self):
        return repr(self.selector)


@dataclasses.dataclass(frozen=True)
class CallStats:
    """Counts of inserts or samples; see `RateLimiterInfo`."""

    completed: int = 0
    refused: int = 0
    delivered: int = 0
    returned: int = 0
    partial: int = 0
    in_flight: int = 0
    timed_out: int = 0
    blocked_ms: int = 0


@dataclasses.dataclass(frozen=True)
class RateLimiterInfo:
    """A limiter's settings and counts.

    `insert_stats.completed`, `.refused`, `.blocked_ms`; `sample_stats.completed` (granted,
    never falls), `.delivered` (handed to a caller), `.returned` (given back), `.partial`,
    `.in_flight`, `.timed_out`, `.blocked_ms`.
    """

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    insert_stats: CallStats
    sample_stats: CallStats


@dataclasses.dataclass(frozen=True)
class TableWorkerTime:
    """Milliseconds that a table's server spent."""

    running_ms: int = 0
    sampling_ms: int = 0
    inserting_ms: int = 0
    sleeping_ms: int = 0
    waiting_for_sampling_ms: int = 0
    waiting_for_inserts_ms: int = 0


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """A table's settings and state at one moment; sizes in bytes, times in s or ms."""

    name: str
    sampler_options: Distribution
    remover_options: Distribution
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: Any
    current_size: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    table_worker_time: TableWorkerTime
    max_bytes: int = 0
    bytes_stored: int = 0
    bytes_uncompressed: int = 0
    num_chunks: int = 0
    bytes_by_column: dict = dataclasses.field(default_factory=dict)
    signature_scope: str | None = None
    generation: int = 0
    insert_count: int = 0
    sample_count: int = 0
    delete_count: int = 0
    num_evicted: int = 0
    num_expired: int = 0
    num_waiting_inserts: int = 0
    num_waiting_samples: int = 0
    oldest_wait_s: float = 0.0
    num_writers: int = 0
    num_samplers: int = 0
    explain: str = ''

    @classmethod
    def from_serialized_proto(cls, serialized):
        """What a serialized `TableInfo` message of the protocol tells.

        Raises:
          ValueError: it is none, or has no selectors.
        """
        from google.protobuf import message

        from reverb_tf import pybind
        from reverb_tf.cc import schema_pb2

        try:
            proto = schema_pb2.TableInfo.FromString(serialized)
        except message.DecodeError as e:
            raise ValueError(f'not a serialized TableInfo: {e}') from None

        def distribution(options):
            return Distribution(pybind.selector_from_proto(options.SerializeToString()))

        limiter = proto.rate_limiter_info
        times = proto.table_worker_time
        return cls(
            name=proto.name,
            sampler_options=distribution(proto.sampler_options),
            remover_options=distribution(proto.remover_options),
            max_size=proto.max_size,
            max_times_sampled=proto.max_times_sampled,
            rate_limiter_info=RateLimiterInfo(
                limiter.samples_per_insert,
                limiter.min_diff,
                limiter.max_diff,
                limiter.min_size_to_sample,
                CallStats(completed=limiter.insert_stats.completed),
                CallStats(completed=limiter.sample_stats.completed),
            ),
            signature=signatures.decode(proto.signature) if proto.signature else None,
            current_size=proto.current_size,
            num_episodes=proto.num_episodes,
            num_deleted_episodes=proto.num_deleted_episodes,
            num_unique_samples=proto.num_unique_samples,
            table_worker_time=TableWorkerTime(
                **{f.name: getattr(times, f.name) for f in dataclasses.fields(TableWorkerTime)}
            ),
        )

    def __str__(self):
        lines = [f"table '{self.name}'"]
        for field in dataclasses.fields(self):
            if field.name not in ('name', 'explain'):
                lines.append(f'  {field.name}: {getattr(self, field.name)}')
        return '\n'.join([*lines, f'  {self.explain}'])


SCOPES = (None, 'trajectory', 'step')


def table_info_from_native(native, signature=...):
    """The TableInfo of the native library's dict; `signature` overrides the decoded one."""
    d = dict(native)
    spi, min_size, low, high = d.pop('rate_limiter')
    if signature is ...:
        signature = None if d['signature'] is None else signatures.decode(d['signature'])
    d['signature'] = signature
    limiter = rate_limiters._from_native_config((spi, min_size, low, high))
    return TableInfo(
        sampler_options=Distribution(selectors.from_native_config(d.pop('sampler'))),
        remover_options=Distribution(selectors.from_native_config(d.pop('remover'))),
        rate_limiter_info=RateLimiterInfo(
            limiter.samples_per_insert,
            limiter.min_diff,
            limiter.max_diff,
            limiter.min_size_to_sample,
            CallStats(**d.pop('insert_stats')),
            CallStats(**d.pop('sample_stats')),
        ),
        table_worker_time=TableWorkerTime(**d.pop('table_worker_time')),
        signature_scope=SCOPES[d.pop('signature_scope')],
        **d,
    )


class ServerInfo(dict):
    """Dict of table name to `TableInfo`, in the server's order; prints one block a table."""

    def __str__(self):
        return '\n'.join(str(info) for info in self.values())
