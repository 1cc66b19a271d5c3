"""The package beside TensorFlow, in every order of import, and without it."""

import subprocess
import sys
import textwrap

import pytest

USE = """
def use():
    import numpy as np
    import reverb_tf
    import tensorflow as tf
    server = reverb_tf.Server([reverb_tf.Table.queue('t', 10)])
    address = f'localhost:{server.port}'
    for local in (True, False):
        client = reverb_tf.Client(address, in_process=local)
        client.insert([np.int32(7)], {'t': 1.0})
    ds = reverb_tf.TrajectoryDataset(address, 't', (tf.int32,), ([1],), max_samples=2)
    assert [int(s.data[0][0]) for s in ds] == [7, 7]
    server.stop()
"""

ORDERS = {
    'tensorflow_first': """
        import tensorflow
        import reverb_tf
        use()
    """,
    'reverb_tf_first': """
        import reverb_tf
        import tensorflow
        use()
    """,
    'reverb_tf_at_work_before_tensorflow': """
        import sys
        import numpy as np
        import reverb_tf
        server = reverb_tf.Server([reverb_tf.Table.queue('t', 10)])
        client = reverb_tf.Client(f'localhost:{server.port}', in_process=False)
        client.insert([np.int32(7)], {'t': 1.0})
        assert 'tensorflow' not in sys.modules
        use()
        client.insert([np.int32(7)], {'t': 1.0})
        assert client.server_info()['t'].current_size == 2
        server.stop()
    """,
    'tensorflow_only_in_a_thread': """
        import threading
        import reverb_tf
        failed = []
        def work():
            try:
                use()
            except BaseException as e:
                failed.append(e)
                raise
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not failed
    """,
    'beside_a_tf_data_service': """
        import tensorflow as tf
        import reverb_tf
        dispatcher = tf.data.experimental.service.DispatchServer()
        worker = tf.data.experimental.service.WorkerServer(
            tf.data.experimental.service.WorkerConfig(
                dispatcher_address=dispatcher.target.split('://')[1]))
        ds = tf.data.Dataset.range(5).apply(
            tf.data.experimental.service.distribute('parallel_epochs', dispatcher.target))
        assert sorted(int(x) for x in ds) == [0, 1, 2, 3, 4]
        use()
        assert sorted(int(x) for x in ds) == [0, 1, 2, 3, 4]
    """,
}


def run(code):
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.parametrize('order', ORDERS)
def test_both_work_in_one_process(order):
    run(USE + textwrap.dedent(ORDERS[order]))


def test_the_package_does_not_import_tensorflow():
    assert run("import sys, reverb_tf; print('tensorflow' in sys.modules)").strip() == 'False'


def test_a_dataset_is_read_by_a_tf_data_service():
    run(
        textwrap.dedent("""
            import numpy as np
            import reverb_tf
            import tensorflow as tf
            service = tf.data.experimental.service
            server = reverb_tf.Server([reverb_tf.Table.queue('t', 10)])
            address = f'localhost:{server.port}'
            reverb_tf.Client(address).insert([np.int32(7)], {'t': 1.0})
            dispatcher = service.DispatchServer()
            worker = service.WorkerServer(
                service.WorkerConfig(dispatcher_address=dispatcher.target.split('://')[1]))
            ds = reverb_tf.TrajectoryDataset(address, 't', (tf.int32,), ([1],), max_samples=1)
            options = tf.data.Options()
            options.experimental_external_state_policy = (
                tf.data.experimental.ExternalStatePolicy.IGNORE)
            ds = ds.with_options(options).apply(
                service.distribute('parallel_epochs', dispatcher.target))
            assert [int(s.data[0][0]) for s in ds] == [7]
            server.stop()
        """)
    )
