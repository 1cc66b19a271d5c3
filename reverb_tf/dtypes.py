"""Dtypes: the numbers of the wire (TensorFlow's) and numpy's dtypes."""

import numpy as np

STRING = 7

_NAMES = {
    1: 'float32',
    2: 'float64',
    3: 'int32',
    4: 'uint8',
    5: 'int16',
    6: 'int8',
    7: 'string',
    8: 'complex64',
    9: 'int64',
    10: 'bool',
    14: 'bfloat16',
    17: 'uint16',
    18: 'complex128',
    19: 'float16',
    22: 'uint32',
    23: 'uint64',
    24: 'float8_e5m2',
    25: 'float8_e4m3fn',
}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_ML_DTYPES = ('bfloat16', 'float8_e5m2', 'float8_e4m3fn')


def number_of(dtype):
    """The number of a numpy or TensorFlow dtype (or its name); None if not supported."""
    if isinstance(dtype, str) and dtype in _NUMBERS:
        return _NUMBERS[dtype]
    if hasattr(dtype, 'as_datatype_enum'):
        return int(dtype.as_datatype_enum) if dtype.as_datatype_enum in _NAMES else None
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        return None
    if dtype.kind in 'SUO':
        return STRING
    return _NUMBERS.get(dtype.name)


def name(number):
    """The name of a number."""
    return _NAMES[number]


def to_numpy(number):
    """The numpy dtype of a number; object for strings."""
    name = _NAMES[number]
    if name == 'string':
        return np.dtype(object)
    if name in _ML_DTYPES:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)
