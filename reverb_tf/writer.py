"""The row writer: append steps, create items of the newest ones."""

from reverb_tf import arguments, timeouts
from reverb_tf.trajectory_writer import flush_on_error

__all__ = ['Writer']


class Writer:
    """Appends steps and creates items of the newest ones; made by `Client.writer`.

    Order of use: (append | append_sequence | create_item | flush)* close. All steps belong to
    one episode. Each call is atomic; calls of several threads interleave whole. An item that
    the server refuses raises its error once, at the writer's next call; the writer stays
    usable. Unconfirmed items are sent again after a lost connection or a server's restart.
    """

    def __init__(self, internal, *, timeout=None):
        self._native = internal
        self._timeout = timeout
        self._closed = False

    def _check(self):
        if self._closed:
            raise RuntimeError('called after close(); get another writer from the client')

    def append(self, data):
        """Appends one step.

        Args:
          data: nest of arrays, numbers, strings or tensors, with the same paths in every step.

        Raises:
          ValueError: paths are missing or extra; names them.
          TypeError: with the path: a value that can't be stored.
        """
        self._check()
        self._native.append(data)

    def append_sequence(self, sequence):
        """Appends T steps.

        Args:
          sequence: nest as of `append`, whose leaves are [T, ...] with one T >= 1 for all.

        Raises:
          ValueError: as `append`; a leaf without a first dimension, or of another or no length.
        """
        self._check()
        self._native.append_sequence(sequence)

    def create_item(self, table, num_timesteps, priority):
        """Queues an item of the newest steps.

        Waits while `max_in_flight_items` are unconfirmed.

        Args:
          table: its name.
          num_timesteps: 1 ... the steps kept, at most `max_sequence_length`.
          priority: number; finite and >= 0 for tables with `Prioritized`.

        Returns:
          The item's key, an int.

        Raises:
          ValueError: fewer steps are kept, they differ in dtype or shape, an unknown table, a
            bad priority, or steps that don't match the table's signature.
        """
        self._check()
        return self._native.create_item(
            arguments.text(table, 'table'),
            arguments.integer(num_timesteps, 'num_timesteps'),
            arguments.number(priority, 'priority'),
            timeouts.resolve(None, self._timeout),
        )

    @property
    def pending_items(self):
        """Items created and not confirmed by the server."""
        return self._native.pending_items

    def flush(self, timeout=None):
        """Waits until all items are confirmed, which means inserted by their tables.

        On `DeadlineExceededError` the work goes on.
        """
        self._check()
        self._native.flush(timeouts.resolve(timeout, self._timeout))

    def close(self, retry_on_unavailable=True, timeout=None):
        """Waits until all items are confirmed, then ends the writer.

        The writer has ended also when an error is raised; the items that are unconfirmed
        then are dropped, with a warning in the log.

        Args:
          retry_on_unavailable: False raises `UnavailableError` as soon as the server can't be
            reached instead of trying again.
          timeout: seconds.

        Raises:
          ValueError: closed before.
          DeadlineExceededError: items are unconfirmed after `timeout`; says how many and why.
        """
        if self._closed:
            raise ValueError('close() was called already on this Writer')
        self._check()
        seconds = timeouts.resolve(timeout, self._timeout)
        retry = arguments.boolean(retry_on_unavailable, 'retry_on_unavailable')
        self._closed = True
        self._native.close(retry, seconds)

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, tb):
        if self._closed:
            return
        if exc_type is None:
            self.close()
        else:
            flush_on_error(self, exc_type)

    def __del__(self):
        try:
            self.close(timeout=2)
        except Exception:  # noqa: BLE001 (never raises)
            pass

    def __repr__(self):
        return f'Writer({self.pending_items} items pending{", closed" if self._closed else ""})'
