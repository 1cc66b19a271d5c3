"""Log lines: which logger they go to, what hides them, and that routine causes none."""

import textwrap

import pytest

from tests import testing_util

# Many small items, a full table and a server that isn't there: all that is logged and more.
NOISY = """
    import sys
    import reverb_tf
    server = reverb_tf.Server([
        reverb_tf.Table('t', reverb_tf.selectors.Uniform(), reverb_tf.selectors.Fifo(), 1000,
                        reverb_tf.rate_limiters.MinSize(1)),
        reverb_tf.Table.queue('full', 1)])
    client = reverb_tf.Client(server.address, in_process='local' in sys.argv)
    writer = client.trajectory_writer(1)
    writer.append(1)
    for _ in range(200):
        writer.create_item('t', 1.0, writer.history[-1])
    writer.flush()
    for _ in range(3):
        next(client.sample('t', 1))
    writer.end_episode()
    writer.close()
    if 'drop' in sys.argv:
        writer = client.trajectory_writer(1)
        writer.append(1)
        for _ in range(4):
            writer.create_item('full', 1.0, writer.history[-1])
        writer.close(timeout=0)
        reverb_tf.rate_limiters.RateLimiter(3, 1, 0, 2)
    server.stop()
"""


def output(before='', arguments=(), **environment):
    """What NOISY prints, with lines of code `before` it."""
    source = f'import sys; sys.argv += {list(arguments)!r}\n{before}\n' + textwrap.dedent(NOISY)
    process = testing_util.start_script(source, **environment)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out + err


@pytest.mark.parametrize('road', ['local', 'remote'])
def test_routine_is_not_logged(road):
    assert output(arguments=[road]) == ''


def test_warnings_go_to_the_logger_of_the_package():
    text = output(
        "import logging; logging.basicConfig(format='%(name)s %(levelname)s %(message)s')",
        ['local', 'drop'],
    )
    lines = text.splitlines()
    assert len(lines) == 2
    assert all(line.startswith('reverb_tf WARNING') for line in lines)
    assert 'items dropped' in text
    assert 'both sides can block' in text


@pytest.mark.parametrize(
    'before, environment',
    [
        ("import logging; logging.getLogger('reverb_tf').setLevel(logging.ERROR)", {}),
        ("import logging; logging.getLogger('reverb_tf').disabled = True", {}),
        ('import logging; logging.disable(logging.CRITICAL)', {}),
        ('from absl import logging; logging.set_verbosity(logging.ERROR)', {}),
        ("from absl import logging; logging.set_verbosity('fatal')", {}),
        ('', {'TF_CPP_MIN_LOG_LEVEL': '2'}),
        ('', {'TF_CPP_MIN_LOG_LEVEL': '3'}),
    ],
)
@pytest.mark.parametrize('road', ['local', 'remote'])
def test_each_level_hides_warnings(before, environment, road):
    assert output(before, [road, 'drop'], **environment) == ''


@pytest.mark.parametrize('level', ['0', '1', '', 'x'])
def test_levels_below_leave_warnings(level):
    assert 'items dropped' in output(arguments=['local', 'drop'], TF_CPP_MIN_LOG_LEVEL=level)


def test_an_unset_absl_level_hides_nothing():
    assert 'items dropped' in output('from absl import logging', ['local', 'drop'])


@pytest.mark.parametrize('hide', ['', "logging.getLogger('reverb_tf').setLevel(logging.CRITICAL)"])
def test_a_wait_is_logged_once_unless_hidden(hide):
    process = testing_util.start_script(
        'import logging\nimport reverb_tf\n'
        f'{hide}\n'
        'try:\n'
        "    reverb_tf.Client('localhost:1').server_info(timeout=3.5)\n"
        'except TimeoutError:\n'
        '    pass\n'
    )
    _, err = process.communicate(timeout=60)
    assert err.count('localhost:1') == (0 if hide else 1)
