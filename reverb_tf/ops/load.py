"""Loads the op library, after a check that it was built for the TensorFlow in use."""

import ctypes
import functools
import pathlib
import signal
import sys
import threading

__all__ = ['check_tensorflow_version', 'ops', 'watch_interrupts']

# Not resolved: a build tree links the modules and the libraries from different places.
_LIBRARY = pathlib.Path(__file__).absolute().parent.parent / '_reverb_ops.so'
_lock = threading.Lock()
# Where TensorFlow's C++ makes Python exceptions.
_EXCEPTION_SOURCES = (
    'tensorflow/python/eager/core.py',
    'tensorflow/python/framework/errors_impl.py',
)


def _minor(version):
    return '.'.join(version.split('.')[:2])


def check_tensorflow_version(found, built=None):
    """Refuses a TensorFlow that the op library wasn't built for.

    Args:
      found: version of the TensorFlow in use, such as '2.21.0'.
      built: the version built for; by default this build's.

    Raises:
      ImportError: major or minor version differ. Names both, and the cure.
    """
    if built is None:
        from reverb_tf import _build_info

        built = _build_info.TF_VERSION
    if _minor(found) != _minor(built):
        raise ImportError(
            f'reverb_tf is built for TensorFlow {_minor(built)}, found {found}; run '
            f"pip install 'tensorflow=={_minor(built)}.*'"
        )


@functools.cache
def _load():
    import tensorflow as tf

    check_tensorflow_version(tf.__version__)
    return tf.load_op_library(str(_LIBRARY))


def ops():
    """The generated Python functions of the ops, `ops().reverb_tf_trajectory_dataset` and so on."""
    with _lock:
        return _load()


def _is_making_exception(frame):
    """Whether TensorFlow is making an exception of a status, at or above this frame."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == '__init__' and code.co_filename.endswith(_EXCEPTION_SOURCES):
            return True
        frame = frame.f_back
    return False


def _on_interrupt(number, frame):
    """As Python's own handler, but not where TensorFlow makes an exception of a status.

    That is the first Python code to run after a wait that SIGINT ended. An exception raised
    there would replace TensorFlow's in C++, which takes that for a fault; so it is put off
    until that code has returned.
    """
    if not _is_making_exception(frame):
        signal.default_int_handler(number, frame)
    if getattr(sys.getprofile(), 'raises_interrupt', False):
        return
    previous = sys.getprofile()

    def raise_outside(frame, event, argument):
        if not _is_making_exception(frame):
            sys.setprofile(previous)
            raise KeyboardInterrupt

    raise_outside.raises_interrupt = True
    sys.setprofile(raise_outside)


def watch_interrupts():
    """Lets Ctrl-C end waits of the op library with KeyboardInterrupt.

    TensorFlow doesn't return to Python while an op waits, so Python alone could not raise
    it. Programs with a handler of their own for SIGINT are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_interrupt)
    elif handler is not _on_interrupt:
        return
    ops()
    ctypes.CDLL(str(_LIBRARY)).reverb_tf_watch_interrupts()
