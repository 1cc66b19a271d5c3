"""Log lines of the native library, handed to Python's logger `reverb_tf`."""

import atexit
import logging
import os
import threading

from reverb_tf import _native

logger = logging.getLogger('reverb_tf')
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_lock = threading.Lock()
_thread = None


def _hidden(level):
    # TensorFlow's switch: 1 hides info, 2 warnings, 3 errors.
    try:
        hide = int(os.environ.get('TF_CPP_MIN_LOG_LEVEL', '0'))
    except ValueError:
        hide = 0
    return level < (0, logging.WARNING, logging.ERROR, logging.CRITICAL)[min(max(hide, 0), 3)]


def _absl_hides(level):
    import sys

    absl = sys.modules.get('absl.logging')
    if absl is None:
        return False
    try:
        return not absl.get_absl_logger().isEnabledFor(level) and absl.get_verbosity() < 0
    except AttributeError:
        return False


def log(level, text):
    """Logs one line at a `logging` level, unless a level of Python, absl or TF hides it."""
    if not _hidden(level) and not _absl_hides(level):
        logger.log(level, '%s', text)


def _drain():
    while (line := _native.pop_log()) is not None:
        log(_LEVELS[line[0]], line[1])


def _stop():
    _native.stop_log()
    if _thread is not None:
        _thread.join(timeout=2)


def start():
    """Begins to hand lines over; called by what may cause some."""
    global _thread
    with _lock:
        if _thread is None:
            _native.start_log()
            _thread = threading.Thread(target=_drain, name='reverb_tf_log', daemon=True)
            _thread.start()
            atexit.register(_stop)
