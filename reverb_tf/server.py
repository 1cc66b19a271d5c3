"""The server: serves tables to clients of this and other processes."""

import logging
import os

from reverb_tf import _native, arguments, client, errors, logs, timeouts
from reverb_tf.table import Table, TableExtensionBase

# Tables and their extensions are here too, as in dm-reverb.
__all__ = ['Server', 'Table', 'TableExtensionBase']


def _check_tables(tables):
    tables = arguments.sequence(tables, 'tables', 'Table')
    if not tables:
        raise ValueError('tables must not be empty')
    names = set()
    for table in tables:
        if not isinstance(table, Table):
            raise TypeError(f'tables must hold Table objects, got {type(table).__name__}')
        if table.name in names:
            raise ValueError(f"table name '{table.name}' occurs twice; names must be unique")
        names.add(table.name)
    return tables


def _check_port(port):
    return 0 if port is None else arguments.integer(port, 'port (0 or None: a free one)', 0, 65535)


class Server:
    """Serves tables over gRPC, and to clients of this process without it.

    Args:
      tables: non-empty sequence of `Table`; unique names, none served elsewhere.
      port: None or 0 takes a free port (see `port`); 1 ... 65535 else.
      checkpointer: None; checkpoints are not part of this version.
      host: 'localhost' serves this machine only; '0.0.0.0', '::' or an address makes the
        server reachable from others (there is no authentication); 'unix:/path' a socket.
        None takes the environment's `REVERB_TF_HOST`, else 'localhost'.

    Raises:
      AddressInUseError: the address is taken.
      ValueError, TypeError: bad tables, port or host.
    """

    def __init__(self, tables=None, port=None, checkpointer=None, *, host=None):
        self._native = None
        tables = _check_tables(tables)
        if checkpointer is not None:
            raise NotImplementedError('checkpointers are not part of this version')
        if host is None:
            host = os.environ.get('REVERB_TF_HOST', 'localhost')
        arguments.text(host, 'host')
        port = _check_port(port)
        logs.start()
        if host not in ('localhost', '127.0.0.1', '::1') and not host.startswith('unix:'):
            logs.log(
                logging.WARNING,
                f'server on host {host}: reachable from other machines, without TLS or authentication',
            )
        try:
            self._native = _native.Server(host, port, [t._native for t in tables])
        except errors.AlreadyExistsError as e:
            raise errors.AddressInUseError(str(e)) from None
        except errors.FailedPreconditionError as e:
            raise ValueError(f'{e}; use replace() for another table like it') from None
        self._host = host
        self._tables = {t.name: t for t in tables}
        self._port = self._native.port
        self._address = self._native.address

    @property
    def port(self):
        """The bound port (0 for a unix socket)."""
        return self._port

    @property
    def host(self):
        """The host as given."""
        return self._host

    @property
    def address(self):
        """What a `Client` takes: 'localhost:PORT', 'HOST:PORT' or 'unix:/path'."""
        return self._address

    @property
    def tables(self):
        """Dict of name to `Table`."""
        return dict(self._tables)

    @property
    def is_running(self):
        """False once stopped."""
        return self._native.is_running

    def stop(self, grace=0.0):
        """Stops: new calls are refused, waiting ones end with `UnavailableError`.

        Returns within `grace` + 2 s, with the port free. Idempotent, any thread.

        Args:
          grace: seconds that calls under way are given to finish.
        """
        if self._native is not None:
            self._native.stop(timeouts.check(grace, 'grace'))

    def wait(self, timeout=None):
        """Waits until the server is stopped; Ctrl-C raises `KeyboardInterrupt`.

        Args:
          timeout: seconds; None waits for ever.

        Returns:
          True when stopped, False on a timeout.
        """
        return self._native.wait(timeouts.resolve(float('inf') if timeout is None else timeout))

    def localhost_client(self, timeout=None):
        """A `Client` of this server, which it keeps alive."""
        local = client.Client(self._address, timeout=timeout)
        local._server = self
        return local

    def explain(self):
        """One line a table: size, and why samples or inserts wait."""
        return '\n'.join(t.explain() for t in self._tables.values())

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.stop()

    def __del__(self):
        try:
            self.stop()
        except Exception:  # noqa: BLE001 (the interpreter may be going down)
            pass

    def __repr__(self):
        return f'Server(tables={list(self._tables)}, address={self._address!r})'

    def __reduce__(self):
        raise TypeError('a Server cannot be pickled; pickle server.address')
