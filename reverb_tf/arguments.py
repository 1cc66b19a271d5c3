"""Checks of arguments that several modules make alike."""

import numbers


def integer(value, name, low=None):
    """`value` as an int.

    Raises:
      TypeError: not an int (a bool isn't one); names the argument and what was got.
      ValueError: below `low`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f'{name} must be an int, got {type(value).__name__}')
    if low is not None and value < low:
        raise ValueError(f'{name} must be >= {low}, got {value}')
    return int(value)
