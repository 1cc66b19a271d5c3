"""Loads the op library, after a check that it was built for the TensorFlow in use."""

import _thread
import ctypes
import functools
import pathlib
import signal
import threading

__all__ = ['check_tensorflow_version', 'ops', 'watch_interrupts']

# Not resolved: a build tree links the modules and the libraries from different places.
_LIBRARY = pathlib.Path(__file__).absolute().parent.parent / '_reverb_ops.so'
_lock = threading.Lock()


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


def _on_interrupt(number, frame):
    """As Python's own handler, but not where TensorFlow makes an exception of a status.

    That is the first Python code to run after a wait that SIGINT ended. An exception raised
    there would replace TensorFlow's in C++, which takes that for a fault; so the signal is
    put off to the next instruction.
    """
    from tensorflow.python.eager import core

    if frame is not None and frame.f_code is core._NotOkStatusException.__init__.__code__:
        _thread.interrupt_main(number)
    else:
        signal.default_int_handler(number, frame)


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
