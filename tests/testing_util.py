"""What several tests use: servers, waiting for a condition, scripts in processes of their own."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np

import reverb_tf


def uniform_table(name='t', max_size=100, min_size=1, **kwargs):
    """A Uniform/Fifo table."""
    return reverb_tf.Table(
        name,
        reverb_tf.selectors.Uniform(),
        reverb_tf.selectors.Fifo(),
        max_size,
        reverb_tf.rate_limiters.MinSize(min_size),
        **kwargs,
    )


def eventually(condition, timeout=10.0):
    """Polls until `condition()` is true; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f'not within {timeout} s: {condition}'
        time.sleep(0.005)


def start_script(source, **kwargs):
    """A Python process that runs `source`."""
    return subprocess.Popen(
        [sys.executable, '-u', '-c', textwrap.dedent(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, **kwargs),
    )


def freeze(process):
    """Stops a process by SIGSTOP; all of its threads stand still when this returns."""
    os.kill(process.pid, signal.SIGSTOP)
    tasks = pathlib.Path(f'/proc/{process.pid}/task')

    def stopped():
        states = [(t / 'stat').read_text().rsplit(')', 1)[1].split()[0] for t in tasks.iterdir()]
        return all(state == 'T' for state in states)

    eventually(stopped)


SERVER_SCRIPT = """
    import sys
    import reverb_tf
    server = reverb_tf.Server([reverb_tf.Table(
        't', reverb_tf.selectors.Uniform(), reverb_tf.selectors.Fifo(), 100,
        reverb_tf.rate_limiters.MinSize(1))])
    print(server.port, flush=True)
    server.wait()
"""


def start_server():
    """A server in a process of its own: (process, address)."""
    process = start_script(SERVER_SCRIPT)
    return process, f'localhost:{int(process.stdout.readline())}'


def data_of(client, table='q'):
    """The columns of one sample."""
    return next(client.sample(table, 1, emit_timesteps=False)).data


def stored_form(value):
    """What comes back for a value: native byte order, strings as objects."""
    value = value.numpy() if hasattr(value, 'numpy') else value
    array = np.asarray(value.encode() if isinstance(value, str) else value)
    if array.dtype.kind in 'SU' or isinstance(value, bytes):
        array = np.array(value if isinstance(value, bytes) else array.tolist(), object)
    if array.dtype == object:
        flat = [e.encode() if isinstance(e, str) else e for e in array.ravel().tolist()]
        encoded = np.empty(len(flat), object)
        encoded[:] = flat
        return encoded.reshape(array.shape)
    return array.astype(array.dtype.newbyteorder('='), order='C')


def assert_same(got, want):
    """Asserts that arrays are alike to the bit."""
    assert isinstance(got, np.ndarray)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype == object:
        assert got.tolist() == want.tolist()
    else:
        assert got.tobytes() == want.tobytes()
