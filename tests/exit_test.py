"""The interpreter's exit while threads are in calls of the package."""

import pytest

from tests import testing_util

CALLS = {
    'server_info': 'while True: client.server_info()',
    'sample': "next(client.sampler('queue'))",
    'flush': 'writer.flush()',
    'wait': 'server.wait()',
}


@pytest.mark.parametrize('call', CALLS)
def test_daemon_threads_in_calls_do_not_disturb_the_exit(call):
    process = testing_util.start_script(f"""
        import os
        import sys
        import threading
        import time
        import reverb_tf

        class Lingers:
            # Keeps the interpreter in its last phase for longer than the interval at which waits look for signals.
            def __del__(self, sleep=time.sleep, write=os.write):
                sleep(0.3)
                write(1, b'lingered')

        sys.lingers = Lingers()
        server = reverb_tf.Server([reverb_tf.Table.queue('full', 1), reverb_tf.Table.queue('queue', 1)])
        client = reverb_tf.Client(server.address, in_process=False)
        writer = client.trajectory_writer(1)
        writer.append(1)
        for _ in range(2):
            writer.create_item('full', 1.0, writer.history[-1])
        started = threading.Event()

        def run():
            started.set()
            {CALLS[call]}

        threading.Thread(target=run, daemon=True).start()
        started.wait()
        """)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (0, 'lingered', '')
