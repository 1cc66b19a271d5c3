"""Signatures: nests of specs, and their wire form, TensorFlow's `StructuredValue`.

Works without TensorFlow: a leaf is anything with `shape` and `dtype` (`tf.TensorSpec`, a
numpy array, `TensorSpec` below). Where TensorFlow is imported, clients get its specs.
"""

import collections
import dataclasses
import re
import sys

import numpy as np

from reverb_tf import dtypes, varint

__all__ = ['TensorSpec', 'flatten', 'map_structure', 'pack_as', 'signature_from']


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype and name of a tensor.

    Attributes:
      shape: tuple of ints, None for an unknown dimension; None for an unknown rank.
      dtype: numpy dtype (object for strings).
      name: str or None.
    """

    shape: tuple | None
    dtype: np.dtype
    name: str | None = None


# The leaf of a structure without specs (StructuredValue's none_value).
PLACEHOLDER = object()


def is_namedtuple(value):
    """Whether a value is an instance of a named tuple."""
    return isinstance(value, tuple) and hasattr(value, '_fields')


def children(nest):
    """{path component: child} of a container, in order; None for a leaf."""
    if isinstance(nest, dict):
        return {str(k): nest[k] for k in sorted(nest)}
    if is_namedtuple(nest):
        return {f: getattr(nest, f) for f in nest._fields}
    if isinstance(nest, (list, tuple)):
        return {f'[{i}]': v for i, v in enumerate(nest)}
    return None


def join(path, name):
    """The path of a child: names are joined by '/', positions are appended."""
    return path + ('/' if path and not name.startswith('[') else '') + name


def split(path):
    """The names and positions of a path, as a tuple."""
    return tuple(
        int(position) if position else name
        for position, name in re.findall(r'\[(\d+)\]|([^/\[]+)', path)
    )


def flatten(nest, path=''):
    """[(path, leaf)] in order; names joined by '/', positions as '[i]'."""
    inner = children(nest)
    if inner is None:
        return [(path, nest)]
    return [leaf for name, child in inner.items() for leaf in flatten(child, join(path, name))]


def map_structure(fn, nest):
    """`nest` with fn(leaf) for each leaf."""
    return pack_as(nest, [fn(leaf) for _, leaf in flatten(nest)])


def pack_as(nest, leaves):
    """`nest` with the given leaves, in order."""
    iterator = iter(leaves)

    def build(node):
        if isinstance(node, dict):
            built = {k: build(node[k]) for k in sorted(node)}
            return type(node)((k, built[k]) for k in node)
        if is_namedtuple(node):
            return type(node)(*(build(v) for v in node))
        if isinstance(node, (list, tuple)):
            return type(node)(build(v) for v in node)
        return next(iterator)

    return build(nest)


def shape_of(spec):
    """A spec's shape as a tuple with None for unknown dimensions; None for unknown rank."""
    shape = spec.shape
    if shape is None or getattr(shape, 'rank', 0) is None:
        return None
    return tuple(None if d is None or int(d) < 0 else int(d) for d in shape)


def signature_from(example, *, leading=False):
    """The specs of example data.

    Args:
      example: nest of arrays, scalars or tensors.
      leading: False keeps the shapes; None or an int is put before each as another dimension.

    Returns:
      The same nest of specs (`tf.TensorSpec` where TensorFlow is imported).
    """

    def spec(leaf):
        from reverb_tf import leaves

        number, shape, _ = leaves.to_bytes(leaf, '')
        if leading is not False:
            shape = (leading, *shape)
        return make_spec(shape, number, None)

    return map_structure(spec, example)


def make_spec(shape, number, name):
    """A `tf.TensorSpec` where TensorFlow is imported, else a `TensorSpec`."""
    tf = sys.modules.get('tensorflow')
    if tf is not None and hasattr(tf, 'TensorSpec'):
        return tf.TensorSpec(shape, tf.dtypes.as_dtype(number), name)
    return TensorSpec(shape, dtypes.to_numpy(number), name)


# ---- StructuredValue -------------------------------------------------------------


def _bytes_field(number, data):
    return varint.encode(number << 3 | 2) + varint.encode(len(data)) + data


def _int_field(number, value):
    return varint.encode(number << 3) + varint.encode(value)


def spec_number(spec, where):
    """The number of a spec's dtype; ValueError for what is no spec or can't be stored."""
    if isinstance(spec, type) or not hasattr(spec, 'shape') or not hasattr(spec, 'dtype'):
        got = spec.__name__ if isinstance(spec, type) else type(spec).__name__
        raise ValueError(f'{where} must be a spec with shape and dtype (tf.TensorSpec), got {got}')
    number = dtypes.number_of(spec.dtype)
    if number is None:
        raise ValueError(f'{where} has the unsupported dtype {spec.dtype}')
    return number


def _encode_spec(spec, path):
    where = f"signature leaf '{path}'" if path else 'signature'
    number = spec_number(spec, where)
    shape = shape_of(spec)
    if shape is None:
        shape_bytes = _int_field(3, 1)
    else:
        shape_bytes = b''.join(
            _bytes_field(2, _int_field(1, -1 if d is None else d) if d != 0 else b'') for d in shape
        )
    name = getattr(spec, 'name', None)
    body = _bytes_field(1, name.encode()) if isinstance(name, str) and name else b''
    return body + _bytes_field(2, shape_bytes) + _int_field(3, number)


def encode(nest, path=''):
    """The StructuredValue bytes of a nest of specs; ValueError naming a bad leaf."""
    if type(nest).__name__ == 'BoundedTensorSpec':
        return _encode_with_tensorflow(nest)
    if nest is PLACEHOLDER:
        return _bytes_field(1, b'')
    inner = children(nest)
    if inner is None:
        return _bytes_field(33, _encode_spec(nest, path))
    encoded = [(name, encode(child, join(path, name))) for name, child in inner.items()]
    if isinstance(nest, dict):
        for key in nest:
            if not isinstance(key, str):
                raise ValueError(f'signature keys must be str, got {key!r}')
        pairs = (_bytes_field(1, k.encode()) + _bytes_field(2, v) for k, v in encoded)
        return _bytes_field(53, b''.join(_bytes_field(1, p) for p in pairs))
    if is_namedtuple(nest):
        pairs = (_bytes_field(1, k.encode()) + _bytes_field(2, v) for k, v in encoded)
        body = _bytes_field(1, type(nest).__name__.encode())
        return _bytes_field(54, body + b''.join(_bytes_field(2, p) for p in pairs))
    values = b''.join(_bytes_field(1, v) for _, v in encoded)
    return _bytes_field(51 if isinstance(nest, list) else 52, values)


def _encode_with_tensorflow(spec):
    from tensorflow.python.saved_model import nested_structure_coder

    return nested_structure_coder.encode_structure(spec).SerializeToString()


def _fields(data):
    """(number, value) pairs of a message: ints for varints, memoryviews for the rest."""
    i = 0

    def varint():
        nonlocal i
        shift = value = 0
        while True:
            byte = data[i]
            i += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while i < len(data):
        tag = varint()
        wire = tag & 7
        if wire == 0:
            yield tag >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(wire) or varint()
            yield tag >> 3, data[i : i + size]
            i += size


def _signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


def _decode_spec(data):
    name, shape, number = None, (), 0
    for field, value in _fields(data):
        if field == 1:
            name = bytes(value).decode()
        elif field == 2:
            dims = []
            for f, v in _fields(value):
                if f == 2:
                    size = next((_signed(s) for g, s in _fields(v) if g == 1), 0)
                    dims.append(None if size < 0 else size)
            unknown = any(f == 3 and v for f, v in _fields(value))
            shape = None if unknown else tuple(dims)
        elif field == 3:
            number = value
    return make_spec(shape, number, name)


def _decode_pairs(data, field):
    for number, value in _fields(data):
        if number == field:
            pair = dict(_fields(value))
            yield bytes(pair[1]).decode(), decode(bytes(pair[2]))


def _decode_bounded(message):
    tf = sys.modules.get('tensorflow')
    if tf is None:
        return None
    from tensorflow.core.protobuf import struct_pb2
    from tensorflow.python.saved_model import nested_structure_coder

    return nested_structure_coder.decode_proto(struct_pb2.StructuredValue.FromString(message))


def decode(data):
    """The nest of specs of StructuredValue bytes."""
    for field, value in _fields(memoryview(data)):
        if field == 1:
            return PLACEHOLDER
        if field == 35:
            return _decode_bounded(bytes(data)) or _decode_spec(value)
        if field == 33:
            return _decode_spec(value)
        if field in (51, 52):
            items = [decode(bytes(v)) for f, v in _fields(value) if f == 1]
            return items if field == 51 else tuple(items)
        if field == 53:
            return dict(_decode_pairs(value, 1))
        if field == 54:
            name = next((bytes(v).decode() for f, v in _fields(value) if f == 1), 'Tuple')
            pairs = list(_decode_pairs(value, 2))
            cls = collections.namedtuple(name, [k for k, _ in pairs])
            return cls(*(v for _, v in pairs))
    raise ValueError('not a nest of tensor specs')
