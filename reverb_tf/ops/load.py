"""Loads the op library, after a check that it was built for the TensorFlow in use."""

import ctypes
import functools
import pathlib
import signal
import threading

from reverb_tf import _native

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


def watch_interrupts():
    """Lets Ctrl-C end waits of the op library with KeyboardInterrupt.

    Python's C handler of SIGINT only makes a note, and Python raises KeyboardInterrupt when
    code of its own runs again; but TensorFlow doesn't return to it while an op waits. So a C
    handler ahead of that one sets a flag that ends the waits, and Python's handler is one that
    lets TensorFlow turn them into exceptions undisturbed (see native/interrupts.h). Programs
    with a handler of their own for SIGINT are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _native.raise_interrupt)
    elif handler is not _native.raise_interrupt:
        return
    ops()
    flag = ctypes.c_void_p(_native.watch_interrupts())
    ctypes.CDLL(str(_LIBRARY)).reverb_tf_set_interrupt_flag(flag)
