"""Clients and writers when their server dies and another takes its address."""

import pytest

import reverb_tf
from reverb_tf import errors
from tests import testing_util

SCRIPT = """
    import sys
    import reverb_tf
    server = reverb_tf.Server([reverb_tf.Table(
        't', reverb_tf.selectors.Fifo(), reverb_tf.selectors.Fifo(), 100,
        reverb_tf.rate_limiters.MinSize(1))], port=int(PORT))
    print(server.port, flush=True)
    server.wait()
"""


def start(port=0):
    process = testing_util.start_script(SCRIPT.replace('PORT', str(port)))
    return process, int(process.stdout.readline())


@pytest.mark.parametrize('orderly', [True, False], ids=['sigterm', 'sigkill'])
def test_writer_and_client_go_on_with_the_successor(orderly):
    process, port = start()
    client = reverb_tf.Client(f'localhost:{port}', timeout=30)
    writer = client.trajectory_writer(1)
    writer.append({'x': 0})
    writer.create_item('t', 1.0, {'x': writer.history['x'][:]})
    writer.flush()
    sampler = client.sampler('t', max_in_flight=1)
    assert next(sampler).data == [[0]]
    (process.terminate if orderly else process.kill)()
    process.wait()
    for i in (1, 2, 3):
        writer.append({'x': i})
        writer.create_item('t', 1.0, {'x': writer.history['x'][-1:]})
    with pytest.raises(errors.DeadlineExceededError, match='3 items unconfirmed'):
        writer.flush(timeout=0.3)
    process, _ = start(port)
    try:
        writer.flush()
        assert writer.pending_items == 0
        assert client.server_info()['t'].current_size == 3
        client.insert({'x': 4}, {'t': 1.0})
        samples = (next(client.sample('t', 1, emit_timesteps=False)) for _ in range(3))
        assert {s.data[0].item() for s in samples} <= {1, 2, 3, 4}
        assert writer.close() == 0
    finally:
        process.kill()
        process.wait()
