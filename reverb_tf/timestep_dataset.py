"""TimestepDataset: the steps of a table's items as a `tf.data.Dataset`."""

import tensorflow as tf

from reverb_tf import signatures, trajectory_dataset

__all__ = ['TimestepDataset']


class TimestepDataset(trajectory_dataset.SampleDataset):
    """Steps of a table's items, each element a `ReplaySample(info, data)` of one step.

    The steps of an item come one after another, each with the item's info; nothing marks
    an item's end. With `batch_size=B` an element is B steps in one set of tensors: data
    [B, ...] and info vectors [B], filled straight from the stored data; a batch goes on with
    the next item where an item ends.

    An item counts as delivered (and for `max_samples`) with its first step. Steps that were
    not read when the iterator closes are dropped, never repeated;
    `rate_limiter_info.sample_stats.partial` of the table's info counts such items.
    """

    def __init__(
        self,
        server_address,
        table,
        dtypes,
        shapes,
        max_in_flight_samples_per_worker=None,
        num_workers_per_iterator=-1,
        max_samples_per_stream=-1,
        rate_limiter_timeout_ms=-1,
        max_samples=-1,
        *,
        batch_size=None,
        drop_remainder=False,
        on_timeout='end',
        consume_ahead=0,
        max_age_ms=-1,
        drop_deleted=False,
        seed=None,
        reconnect_timeout_ms=-1,
        shard_selection='proportional',
        name=None,
    ):
        """Makes the dataset; nothing is connected before its first element is asked for.

        Args:
          server_address: as of `TrajectoryDataset`, like all that isn't described here.
          table: see there.
          dtypes: nest of a step's dtypes.
          shapes: the same nest of a step's shapes, without time and batch dimensions.
          max_in_flight_samples_per_worker: items asked for per round and worker; None for
            max(2 * batch_size, 16).
          num_workers_per_iterator: see there.
          max_samples_per_stream: see there.
          rate_limiter_timeout_ms: see there.
          max_samples: so many items are delivered, then the dataset ends; -1 for no bound.
          batch_size: steps of an element; None for one, without batch dimension.
          drop_remainder: as in `Dataset.batch`. Of a short last batch the items of which no
            step was delivered are given back.
          on_timeout: see there.
          consume_ahead: see there.
          max_age_ms: see there. An item of which a step was delivered is never too old.
          drop_deleted: see there.
          seed: see there.
          reconnect_timeout_ms: see there.
          shard_selection: see there.
          name: of the op.

        Raises:
          ValueError: a malformed address, an empty table, structures that differ, or a
            number out of its range.
          TypeError: a value of the wrong type.
          NotImplementedError: several servers, or `drop_deleted`.
        """
        super().__init__(
            'reverb_tf_timestep_dataset',
            server_address,
            table,
            dtypes,
            shapes,
            batch_size=batch_size,
            drop_remainder=drop_remainder,
            pad_to_longest=False,
            on_timeout=on_timeout,
            drop_deleted=drop_deleted,
            seed=seed,
            shard_selection=shard_selection,
            name=name,
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
            consume_ahead=consume_ahead,
            max_age_ms=max_age_ms,
            reconnect_timeout_ms=reconnect_timeout_ms,
        )

    @classmethod
    def from_table_signature(
        cls,
        server_address,
        table,
        max_in_flight_samples_per_worker=None,
        num_workers_per_iterator=-1,
        max_samples_per_stream=-1,
        rate_limiter_timeout_ms=-1,
        get_signature_timeout_secs=None,
        max_samples=-1,
        *,
        batch_size=None,
        drop_remainder=False,
        on_timeout='end',
        consume_ahead=0,
        max_age_ms=-1,
        drop_deleted=False,
        seed=None,
        reconnect_timeout_ms=-1,
        shard_selection='proportional',
        name=None,
    ):
        """A dataset of the table's own signature, which is asked of the server now.

        Of a table whose signature describes trajectories (`signature_scope` 'trajectory') the
        first dimension is dropped; else the signature is taken to describe a step.

        Args:
          server_address: str.
          table: str.
          max_in_flight_samples_per_worker: as in the constructor, like all not named here.
          num_workers_per_iterator: see above.
          max_samples_per_stream: see above.
          rate_limiter_timeout_ms: see above.
          get_signature_timeout_secs: longest wait for the server, in seconds; None for the
            package's default.
          max_samples: see above.
          batch_size: see above.
          drop_remainder: see above.
          on_timeout: see above.
          consume_ahead: see above.
          max_age_ms: see above.
          drop_deleted: see above.
          seed: see above.
          reconnect_timeout_ms: see above.
          shard_selection: see above.
          name: see above.

        Returns:
          The dataset.

        Raises:
          ValueError: the server has no such table, the table has no signature, or it
            describes trajectories and has a leaf without time dimension.
          DeadlineExceededError: the server didn't answer in time.
        """
        info = trajectory_dataset.signed_table(server_address, table, get_signature_timeout_secs)
        return cls(
            server_address,
            table,
            signatures.map_structure(lambda spec: spec.dtype, info.signature),
            _step_shapes(info),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
            batch_size=batch_size,
            drop_remainder=drop_remainder,
            on_timeout=on_timeout,
            consume_ahead=consume_ahead,
            max_age_ms=max_age_ms,
            drop_deleted=drop_deleted,
            seed=seed,
            reconnect_timeout_ms=reconnect_timeout_ms,
            shard_selection=shard_selection,
            name=name,
        )


def _step_shapes(info):
    if info.signature_scope != 'trajectory':
        return signatures.map_structure(lambda spec: spec.shape, info.signature)
    scalars = [path for path, spec in signatures.flatten(info.signature) if spec.shape.rank == 0]
    if scalars:
        raise ValueError(
            f'the signature of table {info.name!r} describes trajectories, and '
            f'{", ".join(map(repr, scalars))} has no time dimension to be split into steps; '
            "use TrajectoryDataset, or give the table signature_scope='step' if the signature "
            'describes steps'
        )

    def shape(spec):
        return tf.TensorShape(None) if spec.shape.rank is None else spec.shape[1:]

    return signatures.map_structure(shape, info.signature)
