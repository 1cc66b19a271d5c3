"""Forks: a child leaves its parent's objects alone, and is told what it can't do."""

import textwrap

import pytest

from tests import testing_util

PARENT = """
    import os
    import sys
    import reverb_tf
    from tests import testing_util

    def fork(child):
        pid = os.fork()
        if pid == 0:
            child()
            sys.exit(3)
        print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

    server = reverb_tf.Server([testing_util.uniform_table()])
    client = reverb_tf.Client(server.address, timeout=20, in_process={in_process})
    writer = client.trajectory_writer(1)
    row_writer = client.writer(1)
    structured_writer = client.structured_writer([reverb_tf.structured.create_config(
        reverb_tf.structured.create_reference_step(1)[-1], 't')])
    for each in (writer, row_writer, structured_writer):
        each.append(1)
    writer.create_item('t', 1.0, writer.history[-1])
    row_writer.create_item('t', 1, 1.0)
    sampler = client.sampler('t')
    next(sampler)
"""


def run(in_process, script):
    source = textwrap.dedent(PARENT).format(in_process=in_process)
    process = testing_util.start_script(source + textwrap.dedent(script))
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    return out.splitlines()


@pytest.mark.parametrize('in_process', [True, False])
def test_a_child_ends_normally_and_the_parent_goes_on(in_process):
    out = run(
        in_process,
        """
        fork(lambda: None)
        writer.close()
        row_writer.close()
        structured_writer.close()
        print(client.server_info()['t'].current_size)
        """,
    )
    assert out == ['child 3', '3']


@pytest.mark.parametrize('in_process', [True, False])
def test_a_child_can_use_nothing_of_its_parent(in_process):
    out = run(
        in_process,
        """
        def child():
            calls = {
                'info': client.server_info,
                'append': lambda: writer.append(1),
                'item': lambda: row_writer.create_item('t', 1, 1.0),
                'step': lambda: structured_writer.append(1),
                'next': lambda: next(sampler),
                'wait': lambda: server.wait(0),
                'client': lambda: reverb_tf.Client('localhost:1'),
                'server': lambda: reverb_tf.Server([testing_util.uniform_table()]),
            }
            for name, call in calls.items():
                try:
                    call()
                    print(name, 'worked', flush=True)
                except RuntimeError as error:
                    if not str(error).startswith('created before fork'):
                        print(name, error, flush=True)
            server.stop()
            client.close()
            sampler.close()
            writer.close()
        fork(child)
        """,
    )
    assert out == ['child 3']


def test_a_child_of_a_parent_that_only_imported_the_package_is_free():
    process = testing_util.start_script(
        """
        import os
        import reverb_tf
        from tests import testing_util
        pid = os.fork()
        if pid == 0:
            with reverb_tf.Server([testing_util.uniform_table()]) as server:
                client = reverb_tf.Client(server.address, timeout=20, in_process=False)
                client.insert(1, {'t': 1.0})
                print(client.server_info()['t'].current_size, flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    out, error = process.communicate(timeout=60)
    assert out.split() == ['1', '0'], error
