"""Helpers for `tf.data` datasets of `ReplaySample`: batches of items of unequal length."""

import tensorflow as tf

from reverb_tf.reverb_types import PaddedSample, ReplaySample

__all__ = ['padded_batch', 'ragged_batch']


def _check(dataset):
    spec = dataset.element_spec
    if not isinstance(spec, ReplaySample):
        raise TypeError(f'elements must be ReplaySample, got {type(spec).__name__}')
    return spec


def _rows(tensor):
    """Size of the first dimension, 1 for scalars."""
    return tf.shape(tensor)[0] if tensor.shape.rank != 0 else tf.constant(1)


def _padding(spec, values):
    """Padding for every component of `spec`, with `values` for its data."""

    def zero(leaf):
        return tf.constant('' if leaf.dtype == tf.string else 0, leaf.dtype)

    padding = tf.nest.map_structure(zero, spec)
    if values is None:
        return padding
    if not tf.nest.is_nested(values):
        data = tf.nest.map_structure(lambda leaf: tf.cast(values, leaf.dtype), spec.data)
    else:
        tf.nest.assert_same_structure(spec.data, values, check_types=False)
        flat = [
            tf.constant(value, leaf.dtype)
            for leaf, value in zip(tf.nest.flatten(spec.data), tf.nest.flatten(values), strict=True)
        ]
        data = tf.nest.pack_sequence_as(spec.data, flat)
    return padding._replace(data=data)


def padded_batch(
    dataset, batch_size, drop_remainder=False, padding_values=None, with_lengths=False
):
    """Batches of samples whose columns are padded to the longest of the batch.

    Args:
      dataset: any dataset of `ReplaySample`.
      batch_size: samples of a batch.
      drop_remainder: whether a short last batch is left out.
      padding_values: a value for all columns, or a nest as the data; None for zeros and
        empty strings.
      with_lengths: whether the elements tell the lengths, as `PaddedSample`s.

    Returns:
      A dataset of `ReplaySample` or `PaddedSample`.
    """
    _check(dataset)
    if with_lengths:
        dataset = dataset.map(
            lambda s: PaddedSample(s.info, s.data, tf.nest.map_structure(_rows, s.data))
        )
    padding = _padding(dataset.element_spec, padding_values)
    return dataset.padded_batch(batch_size, padding_values=padding, drop_remainder=drop_remainder)


def ragged_batch(dataset, batch_size, drop_remainder=False):
    """Batches with dense info, and `tf.RaggedTensor`s for columns of unknown dimensions.

    Args:
      dataset: any dataset of `ReplaySample`.
      batch_size: samples of a batch.
      drop_remainder: whether a short last batch is left out.

    Returns:
      A dataset of `ReplaySample`.
    """
    _check(dataset)
    return dataset.ragged_batch(batch_size, drop_remainder=drop_remainder)
