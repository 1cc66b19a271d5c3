"""Fixtures of several tests."""

import numpy as np
import pytest

import reverb_tf
from tests import testing_util


@pytest.fixture(params=['in_process', 'grpc'])
def connect(request):
    """fn(tables) -> a client of a server of these tables."""
    servers = []

    def make(*tables):
        servers.append(reverb_tf.Server(tables))
        return reverb_tf.Client(
            servers[-1].address, timeout=20, in_process=request.param == 'in_process'
        )

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(params=['in_process', 'grpc'])
def client(request):
    """Of a server with a replay table, queues and a table with a signature."""
    tables = [
        testing_util.uniform_table('t', max_size=10_000),
        reverb_tf.Table.queue('q', 10_000),
        testing_util.uniform_table(
            'signed',
            signature={
                'obs': np.zeros((3,), np.float32),
                'act': np.zeros((), np.int32),
            },
        ),
        reverb_tf.Table.queue('small', 1),
    ]
    with reverb_tf.Server(tables) as server:
        yield reverb_tf.Client(server.address, timeout=20, in_process=request.param == 'in_process')
