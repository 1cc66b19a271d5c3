"""Values of leaves as contiguous native bytes, for what the native library can't read in place."""

import numpy as np

from reverb_tf import dtypes, varint


def _refuse(path, what, cure):
    where = f"'{path}'" if path else 'value'
    raise TypeError(f'{where}: {what} cannot be stored; {cure}')


def _strings(elements, shape, path):
    encoded = []
    for e in elements:
        if isinstance(e, str):
            try:
                encoded.append(e.encode())
            except UnicodeEncodeError as error:
                raise ValueError(f"'{path}': {error}") from None
        elif isinstance(e, (bytes, np.bytes_)):
            encoded.append(bytes(e))
        else:
            _refuse(
                path,
                f'an object array holding {type(e).__name__}',
                'object arrays may hold str and bytes only',
            )
    content = b''.join(map(varint.encode, map(len, encoded))) + b''.join(encoded)
    return dtypes.STRING, shape, content


def _int(value, path):
    for dtype, number in ((np.int64, 9), (np.uint64, 23)):
        info = np.iinfo(dtype)
        if info.min <= value <= info.max:
            return number, (), np.asarray(value, dtype).tobytes()
    raise ValueError(f"'{path}': int {value} does not fit 64 bits")


def _check_kind(value, path):
    kind = type(value).__name__
    if kind in ('RaggedTensor', 'SparseTensor', 'IndexedSlices'):
        _refuse(path, f'a {kind}', 'convert it to a dense tensor')
    if kind in ('SymbolicTensor', 'KerasTensor') or (
        kind == 'Tensor' and type(value).__module__.endswith('framework.tensor')
    ):
        _refuse(path, 'a symbolic tensor', 'call the writer eagerly or in tf.py_function')


def to_bytes(value, path):
    """(dtype number, shape, contiguous bytes-like) of a leaf.

    Raises:
      TypeError: with the path, for a kind of value that can't be stored.
      ValueError: for an int beyond 64 bits.
    """
    if isinstance(value, (str, bytes)):
        return _strings([value], (), path)
    if isinstance(value, int):
        return _int(value, path)
    _check_kind(value, path)
    if hasattr(value, 'numpy') and not isinstance(value, np.ndarray):
        value = value.numpy()
        if isinstance(value, (str, bytes)):
            return _strings([value], (), path)
    if isinstance(value, set):
        _refuse(path, 'a set', 'use a list')
    array = np.asarray(value)
    if array.dtype.kind in 'SUO':
        if array.dtype == object and array.ndim == 0 and not isinstance(array.item(), (str, bytes)):
            _refuse(
                path,
                f'a {type(value).__name__}',
                'give an array, a number, a string, or a tensor',
            )
        elements = array.ravel().tolist()
        if array.dtype.kind == 'S' and isinstance(value, np.bytes_):
            elements = [bytes(value)]
        return _strings(elements, array.shape, path)
    number = dtypes.number_of(array.dtype)
    if number is None:
        _refuse(path, f'dtype {array.dtype}', 'cast it to a supported dtype')
    shape = array.shape
    array = np.ascontiguousarray(array)
    if array.dtype.byteorder not in '=|<':
        array = array.astype(array.dtype.newbyteorder('='))
    return number, shape, array.reshape(-1).view(np.uint8) if array.size else b''


def from_native(value):
    """A numpy array of what the native library hands out for a column."""
    if not isinstance(value, tuple):
        return value
    if value[0] == dtypes.STRING:
        _, elements, shape = value
        array = np.empty(len(elements), dtype=object)
        array[:] = elements
        return array.reshape(shape)
    number, array = value
    return array.view(dtypes.to_numpy(number))
