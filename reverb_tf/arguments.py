"""Checks of arguments that several modules make alike.

One rule for numbers everywhere: a Python number, a numpy scalar or a 0-d array (or tensor).
A bool is none. Names are non-empty strs.
"""

import math
import numbers
import operator

import numpy as np


def _refuse(value, name, expected):
    if isinstance(value, type):
        raise TypeError(f'{name} must be {expected}, got the class {value.__name__}')
    shape = getattr(value, 'shape', None)
    of_shape = f' of shape {tuple(shape)}' if isinstance(shape, tuple) and shape else ''
    raise TypeError(f'{name} must be {expected}, got {type(value).__name__}{of_shape}')


def integer(value, name, low=None, high=2**63 - 1):
    """`value` as an int.

    Raises:
      TypeError: not an int; names the argument and what was got.
      ValueError: below `low` or above `high`.
    """
    if isinstance(value, (bool, np.bool_)):
        _refuse(value, name, 'an int')
    try:
        number = operator.index(value)
    except (TypeError, AttributeError):  # the latter from TensorFlow's floats
        _refuse(value, name, 'an int')
    if low is not None and number < low:
        raise ValueError(f'{name} must be >= {low}, got {number}')
    if number > high:
        raise ValueError(f'{name} must be <= {high}, got {number}')
    return number


def number(value, name):
    """`value` as a float; infinities pass.

    Raises:
      TypeError: not a number; names the argument and what was got.
      ValueError: NaN.
    """
    result = value
    if type(value) is not float:
        if isinstance(value, (bool, np.bool_)) or not (
            isinstance(value, numbers.Real) or _is_scalar_array(value)
        ):
            _refuse(value, name, 'a number')
        try:
            result = float(value)
        except OverflowError:
            raise ValueError(f'{name} must fit a float, got {value}') from None
    if math.isnan(result):
        raise ValueError(f'{name} must not be NaN')
    return result


def _is_scalar_array(value):
    # Kind 'V' is what numpy says of bfloat16.
    return (
        hasattr(value, 'dtype')
        and getattr(value, 'shape', None) == ()
        and hasattr(value, '__float__')
        and np.asarray(value).dtype.kind in 'iufV'
    )


def boolean(value, name):
    """`value` as a bool; TypeError for anything but a Python or numpy bool."""
    if not isinstance(value, (bool, np.bool_)):
        _refuse(value, name, 'a bool')
    return bool(value)


def text(value, name):
    """`value` if it is a non-empty str that UTF-8 can hold.

    Raises:
      TypeError: not a str; names the argument and what was got.
      ValueError: empty, or not encodable.
    """
    if not isinstance(value, str):
        _refuse(value, name, 'a str')
    if not value:
        raise ValueError(f'{name} must not be empty')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f'{name} must be encodable as UTF-8, got {value!r}') from None
    return value


def sequence(value, name, of):
    """`value` as a list; TypeError naming the argument if it can't be iterated over."""
    if not isinstance(value, (str, bytes)):
        try:
            return list(value)
        except TypeError:
            pass
    _refuse(value, name, f'a sequence of {of}')
