"""Messages of the protocol, as Python classes."""

from reverb_tf.cc import patterns_pb2, schema_pb2

__all__ = ['patterns_pb2', 'schema_pb2']
