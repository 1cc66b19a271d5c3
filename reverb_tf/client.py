"""The client of a server: insert, write, sample, update."""

import os

from reverb_tf import _native, arguments, logs, reverb_types, timeouts
from reverb_tf import sampler as sampler_lib
from reverb_tf import trajectory_writer as writer_lib
from reverb_tf.reverb_types import MutateResult, ServerInfo

__all__ = ['Client']


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
        if not isinstance(server_address, str):
            raise TypeError(f'server_address must be a str, got {type(server_address).__name__}')
        if timeout is not None:
            timeouts.resolve(timeout)
        self._server_address = server_address
        self._timeout = timeout
        self._in_process = in_process
        self._server = None
        self._pid = os.getpid()
        self._signatures = {}
        logs.start()
        local = in_process and os.environ.get('REVERB_TF_INPROCESS', '1') != '0'
        self._native = _native.Client(server_address, local)

    @property
    def server_address(self):
        """The address as given."""
        return self._server_address

    @property
    def timeout(self):
        """Seconds for calls that are given none, or None."""
        return self._timeout

    def _seconds(self, timeout):
        if os.getpid() != self._pid:
            raise RuntimeError(
                'this Client was created before fork; create it in the child or use the '
                "'spawn' start method"
            )
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
        pairs = [(table, float(priority)) for table, priority in priorities.items()]
        keys = self._native.insert(data, pairs, self._seconds(timeout))
        return dict(zip(priorities, keys, strict=True))

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
            0 if max_in_flight_items is None else arguments.integer(max_in_flight_items, 'max_in_flight_items', 1),
            0 if max_in_flight_bytes is None else arguments.integer(max_in_flight_bytes, 'max_in_flight_bytes', 1),
            seconds,
        )
        return writer_lib.TrajectoryWriter(
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
        if not isinstance(table, str):
            raise TypeError(f'table must be a str, got {type(table).__name__}')
        if not table:
            raise ValueError('table must not be empty')
        if on_timeout not in ('error', 'end'):
            raise ValueError(f"on_timeout must be 'error' or 'end', got {on_timeout!r}")
        if max_samples is not None:
            arguments.integer(max_samples, 'max_samples', 1)
        arguments.integer(max_in_flight, 'max_in_flight', 1)
        arguments.integer(num_workers, 'num_workers', 1)
        arguments.integer(consume_ahead, 'consume_ahead', 0)
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
        arguments.integer(num_samples, 'num_samples', 1)
        if unpack_as_table_signature is None:
            unpack_as_table_signature = not emit_timesteps
        sampler = self._make_sampler(
            table,
            int(num_samples),
            emit_timesteps=emit_timesteps,
            structured=unpack_as_table_signature,
            max_in_flight=min(16, int(num_samples)),
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
        pairs = updates.items() if hasattr(updates, 'items') else (updates or ())
        pairs = [(int(key), float(priority)) for key, priority in pairs]
        keys = [int(key) for key in (deletes if deletes is not None else ())]
        return MutateResult(*self._native.mutate(table, pairs, keys, self._seconds(timeout)))

    def reset(self, table, timeout=None):
        """Empties a table; its counters start anew."""
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
        lines = [i.explain for name, i in infos.items() if table in (None, name)]
        return '\n'.join([*lines, self._native.describe()])

    def close(self):
        """Ends this client's samplers and waiting calls; writers go on. Idempotent."""
        if os.getpid() == self._pid:
            self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        return f'Client({self._server_address!r})'

    def __reduce__(self):
        return _restore, (self._server_address, self._timeout, self._in_process)


def _restore(server_address, timeout, in_process):
    return Client(server_address, timeout=timeout, in_process=in_process)
