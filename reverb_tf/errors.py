"""Errors of reverb_tf: what servers, transports and the native library report.

Each class stands for one canonical status code and is also a subclass of the builtin
exception that fits, so `except TimeoutError` and the like work. Checks of local
arguments raise plain `ValueError`, `TypeError` and `IndexError`.
"""


class ReverbError(Exception):
    """Base of all errors of this package."""


class InvalidArgumentError(ReverbError, ValueError):
    """A request or item was refused for what it holds."""


class NotFoundError(ReverbError, RuntimeError, LookupError):
    """An unknown table."""


class AlreadyExistsError(ReverbError, ValueError):
    """What was to be made is there already."""


class FailedPreconditionError(ReverbError, RuntimeError):
    """The object is not in a state in which this can be done."""


class OutOfRangeError(ReverbError, IndexError):
    """The end of a sequence."""


class ResourceExhaustedError(ReverbError, IndexError):
    """A limit of the server was reached."""


class UnimplementedError(ReverbError, NotImplementedError):
    """The server can't do this."""


class UnavailableError(ReverbError, RuntimeError, ConnectionError):
    """The server can't be reached, or was stopped."""


class DeadlineExceededError(ReverbError, TimeoutError):
    """A timeout fired; the text ends in the reason of the wait."""


class CancelledError(ReverbError, RuntimeError):
    """The call was given up from this side (`close()`)."""


class DataLossError(ReverbError, RuntimeError):
    """Stored data can't be read back."""


class PermissionDeniedError(ReverbError, RuntimeError, PermissionError):
    """The server doesn't allow this."""


class InternalError(ReverbError, RuntimeError):
    """An error that should not have happened."""


class AddressInUseError(ReverbError, ValueError, OSError):
    """A server's address is taken."""


_BY_CODE = {
    1: CancelledError,
    2: InternalError,
    3: InvalidArgumentError,
    4: DeadlineExceededError,
    5: NotFoundError,
    6: AlreadyExistsError,
    7: PermissionDeniedError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    10: InternalError,
    11: OutOfRangeError,
    12: UnimplementedError,
    13: InternalError,
    14: UnavailableError,
    15: DataLossError,
    16: PermissionDeniedError,
}


def from_status(code, message):
    """The exception of a canonical status code."""
    return _BY_CODE.get(code, InternalError)(message)
