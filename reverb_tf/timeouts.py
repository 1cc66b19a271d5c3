"""Timeouts: one meaning for every blocking call.

`timeout=` is in seconds: None takes the default, 0 does not wait, `float('inf')` waits for
ever. `timeout_ms=` (calls that dm-reverb has it for) is in milliseconds, with -1 for ever.
"""

import math
import os

from reverb_tf import arguments

_FOREVER = math.inf
_default = None


def check(seconds, name):
    """`seconds` as a float >= 0; the errors name the argument."""
    seconds = arguments.number(seconds, name)
    if seconds < 0:
        raise ValueError(
            f'{name} must be >= 0 (0: do not wait; float("inf"): for ever), got {seconds}'
        )
    return seconds


def set_default_timeout(seconds):
    """Sets the timeout of calls that are given none.

    Args:
      seconds: a float >= 0, or None for the environment's `REVERB_TF_TIMEOUT` (seconds),
        which itself defaults to for ever.
    """
    global _default
    _default = None if seconds is None else check(seconds, 'seconds')


def get_default_timeout():
    """The timeout in seconds of calls that are given none; `inf` is for ever."""
    if _default is not None:
        return _default
    value = os.environ.get('REVERB_TF_TIMEOUT')
    if not value:
        return _FOREVER
    try:
        return check(float(value), 'REVERB_TF_TIMEOUT')
    except ValueError as e:
        raise ValueError(f'REVERB_TF_TIMEOUT must be seconds, got {value!r}') from e


def resolve(timeout, default=None, timeout_ms=None):
    """Seconds to wait, from what a caller gave and the defaults in turn."""
    if timeout is not None and timeout_ms is not None:
        raise ValueError('give either timeout or timeout_ms, not both')
    if timeout_ms is not None:
        timeout_ms = arguments.number(timeout_ms, 'timeout_ms')
        return _FOREVER if timeout_ms == -1 else check(timeout_ms, 'timeout_ms') / 1000
    if timeout is not None:
        return check(timeout, 'timeout')
    if default is not None:
        return check(default, 'timeout')
    return get_default_timeout()
