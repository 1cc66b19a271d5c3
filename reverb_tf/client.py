"""The client of a server: insert, write, sample, update."""

import os

from reverb_tf import _native, arguments, errors, logs, reverb_types, signatures, timeouts
from reverb_tf import sampler as sampler_lib
from reverb_tf import structured_writer as structured_writer_lib
from reverb_tf import trajectory_writer as writer_lib
from reverb_tf.reverb_types import MutateResult, ServerInfo
from reverb_tf.writer import Writer

__all__ = ['Client', 'Writer']


class Client:
    """A client of the server at an address. Thread-safe; connects when first used.

    Args:
      server_address: 'host:port', '[v6]:port', 'unix:/path' or a gRPC target.
      timeout: seconds for calls that are given none; None takes the package's default.
      in_process: use a server of this process directly, without the network.

    Raises:
      ValueError: a malformed address. A server that isn't there is no error: calls wait.
    """

    def __init__(self, server_address, *, timeout=None, in_process=True):
        if isinstance(server_address, (list, tuple)):
            raise NotImplementedError('several addresses are not part of this version')
        self._server_address = arguments.text(server_address, 'server_address')
        self._timeout = None if timeout is None else timeouts.check(timeout, 'timeout')
        self._in_process = in_process
        self._server = None
        self._signatures = {}
        logs.start()
        local = in_process and os.environ.get('REVERB_TF_INPROCESS', '1') != '0'
        self._native = _native.Client(server_address, local)

    @property
    def server_address(self):
        """The address as given."""
        return self._server_address

    @property
    def in_process(self):
        """Whether a server of this process is used directly, as given."""
        return self._in_process

    @property
    def timeout(self):
        """Seconds for calls that are given none, or None."""
        return self._timeout

    def _seconds(self, timeout):
        return timeouts.resolve(timeout, self._timeout)

    def insert(self, data, priorities, timeout=None):
        """Inserts one step as one item a table; the data is sent once.

        Args:
          data: nest of arrays, numbers, strings or tensors.
          priorities: dict of table name to priority.
          timeout: seconds; on a timeout what is not yet in is withdrawn.

        Returns:
          Dict of table name to item key, once all are in.

        Raises:
          ValueError: no table, an unknown one, a bad priority, or data that doesn't match a
            table's signature. Nothing was inserted then.
        """
        if not isinstance(priorities, dict):
            raise TypeError(
                f'priorities must be a dict of table to priority, got {type(priorities).__name__}'
            )
        if not priorities:
            raise ValueError('priorities must name at least one table')
        pairs = [
            (arguments.text(table, 'table of priorities'), _priority(priority, table))
            for table, priority in priorities.items()
        ]
        keys = self._native.insert(data, pairs, self._seconds(timeout))
        return dict(zip(priorities, keys, strict=True))

    def writer(
        self, max_sequence_length, delta_encoded=False, chunk_length=None, max_in_flight_items=25
    ):
        """A `Writer`: items are the newest steps. See also `trajectory_writer`.

        Args:
          max_sequence_length: most steps of an item, >= 1.
          delta_encoded: compresses integers as differences from step to step; lossless.
          chunk_length: steps stored together, 1 ... max_sequence_length; None: automatic.
          max_in_flight_items: `create_item` waits while so many are unconfirmed; None: never.
        """
        length = arguments.integer(max_sequence_length, 'max_sequence_length', 1)
        if chunk_length is not None:
            chunk_length = arguments.integer(chunk_length, 'chunk_length', 1, length)
        native = self._native.row_writer(
            length,
            chunk_length,
            arguments.boolean(delta_encoded, 'delta_encoded'),
            _bound(max_in_flight_items, 'max_in_flight_items'),
            self._seconds(None),
        )
        return Writer(native, timeout=self._timeout)

    def trajectory_writer(
        self,
        num_keep_alive_refs,
        *,
        validate_items=True,
        step_spec=None,
        max_in_flight_items=None,
        max_in_flight_bytes=None,
        timeout=None,
    ):
        """A `TrajectoryWriter`.

        Args:
          num_keep_alive_refs: newest cells of each column that items may refer to, >= 1.
          validate_items: checks items against the tables' signatures at `create_item`
            (fetched now); the server checks in any case.
          step_spec: nest of specs; values are cast to their dtypes.
          max_in_flight_items: `create_item` waits while so many are unconfirmed; None: never.
          max_in_flight_bytes: the same in bytes.
          timeout: seconds for this call and the default of the writer's calls.
        """
        seconds = self._seconds(timeout)
        native = self._native.trajectory_writer(
            arguments.integer(num_keep_alive_refs, 'num_keep_alive_refs', 1),
            bool(validate_items),
            _bound(max_in_flight_items, 'max_in_flight_items'),
            _bound(max_in_flight_bytes, 'max_in_flight_bytes'),
            seconds,
        )
        return writer_lib.TrajectoryWriter(
            native,
            step_spec=step_spec,
            timeout=timeout if timeout is not None else self._timeout,
        )

    def structured_writer(
        self,
        configs,
        *,
        step_spec=None,
        validate_items=True,
        max_in_flight_items=None,
        max_in_flight_bytes=None,
        timeout=None,
    ):
        """A `StructuredWriter`, which inserts items by the patterns of `configs`.

        Args:
          configs: sequence of `structured.create_config(...)`; copied.
          step_spec: nest of specs; values are cast to their dtypes, and the configs are
            checked against the tables' signatures with dtypes and shapes.
          validate_items: checks configs and items against the tables' signatures (fetched
            now); the server checks in any case.
          max_in_flight_items: `append` waits, before it does anything, while its items would
            make more unconfirmed ones; None: never.
          max_in_flight_bytes: `append` waits while so many bytes are unconfirmed.
          timeout: seconds for this call and the default of the writer's calls.

        Raises:
          ValueError: no config; or names the position of one that is bad or doesn't fit its
            table.
        """
        specs = None
        if step_spec is not None:
            specs = [
                (
                    path,
                    signatures.spec_number(s, f"step_spec leaf '{path}'"),
                    signatures.shape_of(s),
                )
                for path, s in signatures.flatten(step_spec)
            ]
        native = self._native.structured_writer(
            structured_writer_lib.serialize(configs),
            specs,
            arguments.boolean(validate_items, 'validate_items'),
            _bound(max_in_flight_items, 'max_in_flight_items'),
            _bound(max_in_flight_bytes, 'max_in_flight_bytes'),
            self._seconds(timeout),
        )
        return structured_writer_lib.StructuredWriter(
            native,
            step_spec=step_spec,
            timeout=timeout if timeout is not None else self._timeout,
        )

    def _signature(self, table, timeout):
        if table not in self._signatures:
            self.server_info(timeout)
        # An unknown table is for the sampler to report.
        return self._signatures.get(table)

    def sampler(
        self,
        table,
        *,
        max_samples=None,
        emit_timesteps=False,
        max_in_flight=None,
        num_workers=1,
        consume_ahead=0,
        timeout=None,
        on_timeout='error',
    ):
        """A `Sampler`: an iterator of structured samples.

        Args:
          table: its name.
          max_samples: samples in all; None: no end.
          emit_timesteps: each element is the list of an item's steps.
          max_in_flight: samples asked for ahead (not on tables whose items are used up).
          num_workers: streams.
          consume_ahead: items held ahead on tables whose items are used up.
          timeout: seconds per element.
          on_timeout: 'error' raises `DeadlineExceededError`, 'end' stops the iteration.
        """
        return self._make_sampler(
            table,
            max_samples,
            emit_timesteps=emit_timesteps,
            structured=True,
            max_in_flight=16 if max_in_flight is None else max_in_flight,
            num_workers=num_workers,
            consume_ahead=consume_ahead,
            timeout=timeout,
            on_timeout=on_timeout,
        )

    def _make_sampler(
        self,
        table,
        max_samples,
        *,
        emit_timesteps,
        structured,
        max_in_flight,
        num_workers,
        consume_ahead,
        timeout,
        on_timeout,
    ):
        arguments.text(table, 'table')
        if on_timeout not in ('error', 'end'):
            raise ValueError(f"on_timeout must be 'error' or 'end', got {on_timeout!r}")
        if max_samples is not None:
            max_samples = arguments.integer(max_samples, 'max_samples', 1)
        max_in_flight = arguments.integer(max_in_flight, 'max_in_flight', 1)
        num_workers = arguments.integer(num_workers, 'num_workers', 1, 2**31 - 1)
        consume_ahead = arguments.integer(consume_ahead, 'consume_ahead', 0)
        seconds = self._seconds(timeout)

        def make_native():
            return self._native.sampler(
                table,
                max_in_flight,
                num_workers,
                max_samples,
                consume_ahead,
                seconds,
                on_timeout == 'end',
                emit_timesteps,
            )

        return sampler_lib.Sampler(
            make_native,
            lambda wait: self._signature(table, wait),
            timeout=seconds,
            on_timeout=on_timeout,
            emit_timesteps=emit_timesteps,
            structured=structured,
        )

    def sample(
        self,
        table,
        num_samples=1,
        *,
        emit_timesteps=True,
        unpack_as_table_signature=None,
        timeout=None,
        on_timeout='error',
    ):
        """A generator of `num_samples` samples.

        Args:
          table: its name; an unknown one raises `NotFoundError` at the first element.
          num_samples: >= 1. Samples are not taken before they are asked for on tables whose
            items are used up, and at most 16 ahead on others.
          emit_timesteps: True gives for each item the list of its steps, False one
            `ReplaySample` with whole columns.
          unpack_as_table_signature: True: data in the signature's structure; False: a flat
            list; None: structured if not emit_timesteps, else flat.
          timeout: seconds per element.
          on_timeout: 'error' raises `DeadlineExceededError`, 'end' stops the generator.

        Raises:
          ValueError: an item that has no steps, with emit_timesteps; it is given back.
        """
        num_samples = arguments.integer(num_samples, 'num_samples', 1)
        if unpack_as_table_signature is None:
            unpack_as_table_signature = not emit_timesteps
        sampler = self._make_sampler(
            table,
            num_samples,
            emit_timesteps=emit_timesteps,
            structured=unpack_as_table_signature,
            max_in_flight=min(16, num_samples),
            num_workers=1,
            consume_ahead=0,
            timeout=timeout,
            on_timeout=on_timeout,
        )

        def generate():
            with sampler:
                yield from sampler

        return generate()

    def mutate_priorities(self, table, updates=None, deletes=None, timeout=None):
        """Deletes, then updates priorities, as one batch: all or nothing.

        Args:
          table: its name.
          updates: mapping or iterable of pairs of key and priority.
          deletes: iterable of keys.
          timeout: seconds.

        Returns:
          `MutateResult(updated, deleted, not_found)`.
        """
        arguments.text(table, 'table')
        if hasattr(updates, 'items'):
            updates = updates.items()
        pairs = [] if updates is None else arguments.sequence(updates, 'updates', 'pairs')
        keys = [] if deletes is None else arguments.sequence(deletes, 'deletes', 'keys')
        pairs = [_key_and_priority(pair) for pair in pairs]
        keys = [_key(key, 'key of deletes') for key in keys]
        return MutateResult(*self._native.mutate(table, pairs, keys, self._seconds(timeout)))

    def reset(self, table, timeout=None):
        """Empties a table; its counters start anew."""
        arguments.text(table, 'table')
        self._native.reset(table, self._seconds(timeout))

    def server_info(self, timeout=None):
        """Dict of table name to `TableInfo`, in the server's order."""
        _, tables = self._native.server_info(self._seconds(timeout))
        infos = ServerInfo((t['name'], reverb_types.table_info_from_native(t)) for t in tables)
        self._signatures = {name: info.signature for name, info in infos.items()}
        return infos

    def checkpoint(self, timeout=None):
        """Asks the server for a checkpoint; returns its path."""
        return self._native.checkpoint(self._seconds(timeout))

    def explain(self, table=None, timeout=None):
        """Why samples or inserts wait, and the state of this client's connection."""
        infos = self.server_info(timeout)
        if table is not None and arguments.text(table, 'table') not in infos:
            raise errors.NotFoundError(f'no table {table!r}, only {", ".join(map(repr, infos))}')
        lines = [i.explain for name, i in infos.items() if table in (None, name)]
        return '\n'.join([*lines, self._native.describe()])

    def close(self):
        """Ends this client's samplers and waiting calls; writers go on. Idempotent."""
        self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        return f'Client({self._server_address!r})'

    def __reduce__(self):
        return _restore, (self._server_address, self._timeout, self._in_process)


def _priority(value, table):
    return arguments.number(value, f"priority for table '{table}'")


def _bound(value, name):
    return 0 if value is None else arguments.integer(value, name, 1)


def _key(value, name):
    return arguments.integer(value, name, 0, 2**64 - 1)


def _key_and_priority(pair):
    try:
        key, priority = pair
    except (TypeError, ValueError):
        raise TypeError(
            'updates must be a mapping or pairs of key and priority, got an element of type '
            f'{type(pair).__name__}'
        ) from None
    key = _key(key, 'key of updates')
    return key, arguments.number(priority, f'priority of key {key}')


def _restore(server_address, timeout, in_process):
    return Client(server_address, timeout=timeout, in_process=in_process)
