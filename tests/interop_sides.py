"""Who takes part in tests with the released dm-reverb: this package, or that one in a process of its own."""

import os
import pathlib
import pickle
import struct
import subprocess

import reverb_tf
from tests import interop_peer as peer_lib

PYTHON = os.environ.get('REVERB_TF_PEER_PYTHON')
HOW_TO = (
    'REVERB_TF_PEER_PYTHON names no interpreter that has dm-reverb. To get one: python3 -m venv PEER && '
    "PEER/bin/pip install dm-reverb==0.14.0 tensorflow==2.15.1 'numpy<2' 'protobuf<5' dm-tree portpicker; "
    'then bazel test --test_env=REVERB_TF_PEER_PYTHON=PEER/bin/python //tests:interop_test'
)


class Side:
    """Calls functions of interop_peer with one of the packages."""

    def outcome(self, function, *args, **kwargs):
        """('ok', result), or the exception's class names and its text."""
        raise NotImplementedError

    def run(self, function, *args, **kwargs):
        """The result; an exception becomes an AssertionError."""
        state, result = self.outcome(function, *args, **kwargs)
        assert state == 'ok', f'{function}: {state[0]}: {result}'
        return result

    def fails(self, function, *args, **kwargs):
        """The exception's class names and its text."""
        state, result = self.outcome(function, *args, **kwargs)
        assert state != 'ok', f'{function} succeeded: {result}'
        return state, result


class Ours(Side):
    """This package, over gRPC or in process."""

    def __init__(self, in_process):
        self.in_process = '1' if in_process else '0'

    def outcome(self, function, *args, **kwargs):
        os.environ['REVERB_TF_INPROCESS'] = self.in_process
        return peer_lib.outcome(reverb_tf, function, *args, **kwargs)


class Theirs(Side):
    """dm-reverb, in a process of its own."""

    def __init__(self):
        environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
        self.process = subprocess.Popen(
            [PYTHON, str(pathlib.Path(peer_lib.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment, TF_CPP_MIN_LOG_LEVEL='3', CUDA_VISIBLE_DEVICES=''),
        )

    def outcome(self, function, *args, **kwargs):
        request = pickle.dumps((function, args, kwargs), protocol=4)
        self.process.stdin.write(struct.pack('<Q', len(request)) + request)
        self.process.stdin.flush()
        head = self.process.stdout.read(8)
        assert len(head) == 8, f'dm-reverb ended in {function}: {self.process.wait()}'
        return pickle.loads(self.process.stdout.read(struct.unpack('<Q', head)[0]))

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
