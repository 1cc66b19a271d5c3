"""Selectors: how a table picks items, to sample them or to remove them.

Values: frozen, comparable, picklable. Each is usable as sampler and as remover, and in as
many tables as wanted.
"""

import dataclasses
import math

from reverb_tf import arguments

__all__ = ['Fifo', 'Lifo', 'Uniform', 'Prioritized', 'Heap', 'MinHeap', 'MaxHeap', 'Selector']


def _check_seed(seed):
    if seed is None:
        return None
    return arguments.integer(seed, 'seed', 0, 2**64 - 1)


class Selector:
    """Base of all selectors."""

    seed = None

    @property
    def is_deterministic(self):
        """Whether the same content gives the same pick."""
        return True

    def _native_config(self):
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Fifo(Selector):
    """The oldest inserted item; probability 1. O(1)."""

    def _native_config(self):
        return (0, 0.0, None)


@dataclasses.dataclass(frozen=True)
class Lifo(Selector):
    """The newest inserted item; probability 1. O(1)."""

    def _native_config(self):
        return (1, 0.0, None)


@dataclasses.dataclass(frozen=True)
class Uniform(Selector):
    """Each item alike; probability 1/size. O(1).

    Args:
      seed: int in [0, 2**64) for reproducible picks; None takes one from the OS.
    """

    seed: int | None = None

    def __post_init__(self):
        object.__setattr__(self, 'seed', _check_seed(self.seed))

    @property
    def is_deterministic(self):
        return False

    def _native_config(self):
        return (2, 0.0, self.seed)


@dataclasses.dataclass(frozen=True)
class Prioritized(Selector):
    """Item i with probability w_i / sum(w), w_i = priority_i ** exponent. O(log n).

    Schaul et al., "Prioritized Experience Replay", 2016. An item of priority zero is not
    picked while another weight is above zero; priorities must be finite and >= 0.

    Args:
      priority_exponent: finite, >= 0; 0 is uniform over positive priorities.
      seed: as for `Uniform`.
    """

    priority_exponent: float
    seed: int | None = None

    def __post_init__(self):
        e = arguments.number(self.priority_exponent, 'priority_exponent')
        if not math.isfinite(e) or e < 0:
            raise ValueError(f'priority_exponent must be finite and >= 0, got {e}')
        object.__setattr__(self, 'priority_exponent', e)
        object.__setattr__(self, 'seed', _check_seed(self.seed))

    @property
    def is_deterministic(self):
        return False

    def _native_config(self):
        return (3, self.priority_exponent, self.seed)


@dataclasses.dataclass(frozen=True)
class Heap(Selector):
    """The item of lowest (or highest) priority; of equals the least recently inserted or updated.

    Args:
      min_heap: True picks the lowest priority, False the highest.
    """

    min_heap: bool

    def __post_init__(self):
        object.__setattr__(self, 'min_heap', arguments.boolean(self.min_heap, 'min_heap'))

    def _native_config(self):
        return (4 if self.min_heap else 5, 0.0, None)


def MinHeap():  # noqa: N802 (a class to its users)
    """The item of lowest priority. O(log n) changes."""
    return Heap(min_heap=True)


def MaxHeap():  # noqa: N802
    """The item of highest priority. O(log n) changes."""
    return Heap(min_heap=False)


def from_native_config(config):
    """The selector of (kind, priority_exponent, seed)."""
    kind, exponent, seed = config
    return (
        Fifo,
        Lifo,
        lambda: Uniform(seed),
        lambda: Prioritized(exponent, seed),
        MinHeap,
        MaxHeap,
    )[kind]()
