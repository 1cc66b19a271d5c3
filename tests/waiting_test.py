"""Everything that waits ends by its timeout and by Ctrl-C, and says in the log what it waits for.

One table of calls, tried with servers that were never there, that were killed, stopped or
frozen, and with tables whose rate limiter lets nothing through.
"""

import contextlib
import functools
import logging
import os
import re
import signal
import socket
import textwrap
import threading
import time
from typing import NamedTuple

import pytest

import reverb_tf
from reverb_tf import errors
from tests import testing_util

# TensorFlow is imported where it is needed: processes that only serve do without.

# Past the log's first line, which comes after 3 s.
TIMEOUT = 4.0
# A frozen server is asked for the reason, in vain, for 1 s; the rest is for a busy machine.
SLACK = 2.5
FOREVER = float('inf')
INTERRUPT_LIMIT = 1.0


class Target(NamedTuple):
    """What a call is tried with."""

    client: reverb_tf.Client
    address: str
    table: str  # of this call alone
    seconds: float  # the call's timeout

    @property
    def ms(self):
        return -1 if self.seconds == FOREVER else int(1000 * self.seconds)


# ---- The calls -------------------------------------------------------------------
# Each function makes what its call needs, while the server is well, and returns the call.


def server_info(t):
    return lambda: t.client.server_info(t.seconds)


def explain(t):
    return lambda: t.client.explain(timeout=t.seconds)


def mutate_priorities(t):
    return lambda: t.client.mutate_priorities(t.table, {1: 1.0}, timeout=t.seconds)


def reset(t):
    return lambda: t.client.reset(t.table, t.seconds)


def checkpoint(t):
    return lambda: t.client.checkpoint(t.seconds)


def trajectory_writer(t):
    return lambda: t.client.trajectory_writer(1, timeout=t.seconds)


def from_table_signature(t):
    return lambda: reverb_tf.TrajectoryDataset.from_table_signature(
        t.address, t.table, get_signature_timeout_secs=t.seconds
    )


def insert(t):
    return lambda: t.client.insert(1, {t.table: 1.0}, t.seconds)


# All of them, to be closed without a flush.
_writers = []


def _writer(t, **keywords):
    """A writer with an item that the server doesn't confirm."""
    writer = t.client.trajectory_writer(1, validate_items=False, **keywords)
    _writers.append(writer)
    writer.append(1)
    writer.create_item(t.table, 1.0, writer.history[-1])
    return writer


def create_item(t):
    writer = _writer(t, max_in_flight_items=1)
    return lambda: writer.create_item(t.table, 1.0, writer.history[-1], timeout=t.seconds)


def create_item_by_default(t):
    writer = _writer(t, max_in_flight_items=1, timeout=t.seconds)
    return lambda: writer.create_item(t.table, 1.0, writer.history[-1])


def flush(t):
    writer = _writer(t)
    return lambda: writer.flush(timeout=t.seconds)


def flush_all_but_one(t):
    writer = _writer(t)
    writer.create_item(t.table, 1.0, writer.history[-1])
    return lambda: writer.flush(1, timeout_ms=t.ms)


def end_episode(t):
    writer = _writer(t)
    return lambda: writer.end_episode(timeout=t.seconds)


def close(t):
    writer = _writer(t)
    return lambda: writer.close(timeout=t.seconds)


def sample(t):
    return lambda: next(t.client.sample(t.table, timeout=t.seconds))


def sample_again(t):
    samples = t.client.sample(t.table, 2, timeout=t.seconds)
    next(samples)
    return lambda: next(samples)


def sampler(t):
    return lambda: next(t.client.sampler(t.table, timeout=t.seconds))


def sampler_again(t):
    samples = t.client.sampler(t.table, timeout=t.seconds)
    next(samples)
    return lambda: next(samples)


def _dataset(t, limiter_ms=None, **keywords):
    import tensorflow as tf

    ds = reverb_tf.TrajectoryDataset(
        t.address,
        t.table,
        tf.int64,
        [None],
        rate_limiter_timeout_ms=t.ms if limiter_ms is None else limiter_ms,
        reconnect_timeout_ms=t.ms,
        on_timeout='error',
        **keywords,
    )
    options = tf.data.Options()
    options.autotune.enabled = False  # TensorFlow takes seconds to end its thread
    return ds.with_options(options)


def dataset_next(t):
    it = iter(_dataset(t))
    return lambda: next(it)


def dataset_next_again(t):
    it = iter(_dataset(t))
    next(it)
    return lambda: next(it)


def impatient_dataset(t):
    """The limiter's clock starts anew while the server is away; the log's doesn't."""
    it = iter(_dataset(t, limiter_ms=300))
    next(it)
    return lambda: next(it)


def impatient_dataset_of_queue(t):
    return impatient_dataset(t)


def dataset_for(t):
    ds = _dataset(t)
    return lambda: [x for x in ds]


def dataset_batched(t):
    it = iter(_dataset(t, batch_size=2))
    return lambda: next(it)


def dataset_prefetched(t):
    it = iter(_dataset(t).prefetch(1))
    return lambda: next(it)


def dataset_in_function(t):
    import tensorflow as tf

    ds = _dataset(t)

    @tf.function
    def count():
        n = 0
        for _ in ds:
            n += 1
        return n

    count.get_concrete_function()
    return count


def next_in_function(t):
    import tensorflow as tf

    it = iter(_dataset(t))
    first = tf.function(lambda: next(it).info.key)
    first.get_concrete_function()
    return first


ASK = [server_info, explain, mutate_priorities, reset, checkpoint, trajectory_writer]
WRITE = [
    insert,
    create_item,
    create_item_by_default,
    flush,
    flush_all_but_one,
    end_episode,
    close,
]
SAMPLE = [sample, sampler]
DATASET = [
    dataset_next,
    dataset_for,
    dataset_batched,
    dataset_prefetched,
    dataset_in_function,
    next_in_function,
]
# These have had one sample before.
AGAIN = [sample_again, sampler_again, dataset_next_again]
IMPATIENT = [impatient_dataset, impatient_dataset_of_queue]

ANY_SERVER = [*ASK, from_table_signature, *WRITE, *SAMPLE, *DATASET]
LOST_SERVER = [*ANY_SERVER, *AGAIN]
FULL_OR_EMPTY_TABLE = [*WRITE, *SAMPLE, *DATASET, *AGAIN]


# ---- The servers -----------------------------------------------------------------

# Of queues, samples are taken one by one; of the other tables some are fetched ahead.
QUEUES = [
    *WRITE,
    sample,
    sample_again,
    dataset_next,
    dataset_batched,
    impatient_dataset_of_queue,
]


def _table(call):
    """The call's own, in which it has to wait."""
    name = call.__name__
    if call in QUEUES:
        return reverb_tf.Table.queue(name, 1)
    return reverb_tf.Table(
        name,
        reverb_tf.selectors.Uniform(),
        reverb_tf.selectors.Fifo(),
        100,
        reverb_tf.rate_limiters.RateLimiter(1.0, 1, 0.0, 10.0),
    )


def start_server():
    server = reverb_tf.Server([_table(call) for call in FULL_OR_EMPTY_TABLE + IMPATIENT])
    with reverb_tf.Client(server.address) as client:
        for call in WRITE + AGAIN + IMPATIENT:
            client.insert(1, {call.__name__: 1.0})
    return server


def serve():
    """Serves until SIGINT; then it stops, but the process doesn't end."""
    server = start_server()
    print(server.port, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.wait()
    server.stop()
    print('stopped', flush=True)
    signal.pause()


class State(NamedTuple):
    """Where calls wait, and what happens to the server."""

    address: str
    calls: list  # those that have to wait there
    begin: object = lambda: None  # called before the calls
    change: object = lambda: None  # called while they wait


@contextlib.contextmanager
def absent():
    """Nobody listens there, and nobody else can."""
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        yield State(f'127.0.0.1:{s.getsockname()[1]}', ANY_SERVER)


@contextlib.contextmanager
def _server_process():
    process = testing_util.start_script('from tests import waiting_test; waiting_test.serve()')
    try:
        yield process, f'localhost:{int(process.stdout.readline())}'
    finally:
        process.kill()
        process.wait()


def _kill(process):
    process.kill()
    process.wait()


def _stop(process):
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == 'stopped\n'


@contextlib.contextmanager
def killed():
    with _server_process() as (process, address):
        yield State(address, LOST_SERVER + IMPATIENT, begin=lambda: _kill(process))


@contextlib.contextmanager
def killed_meanwhile():
    with _server_process() as (process, address):
        yield State(
            address,
            LOST_SERVER,
            begin=lambda: testing_util.freeze(process),
            change=lambda: _kill(process),
        )


@contextlib.contextmanager
def stopped():
    with _server_process() as (process, address):
        yield State(address, LOST_SERVER, begin=lambda: _stop(process))


@contextlib.contextmanager
def frozen():
    with _server_process() as (process, address):
        yield State(address, LOST_SERVER, begin=lambda: testing_util.freeze(process))


@contextlib.contextmanager
def blocked():
    with _server_process() as (_, address):
        yield State(address, FULL_OR_EMPTY_TABLE)


@contextlib.contextmanager
def blocked_in_process():
    with start_server() as server:
        yield State(server.address, FULL_OR_EMPTY_TABLE)


CALLS = {
    absent: ANY_SERVER,
    killed: LOST_SERVER + IMPATIENT,
    killed_meanwhile: LOST_SERVER,
    stopped: LOST_SERVER,
    frozen: LOST_SERVER,
    blocked: FULL_OR_EMPTY_TABLE,
    blocked_in_process: FULL_OR_EMPTY_TABLE,
}
REASONS = {
    absent: 'Connection (refused|reset)',
    killed: 'Connection (refused|reset)',
    killed_meanwhile: 'Connection (refused|reset)',
    stopped: 'Connection (refused|reset)',
    frozen: 'no answer yet|before receiving SETTINGS frame',
    blocked: 'blocked by rate limiter',
    blocked_in_process: 'blocked by rate limiter',
}


def _each(states):
    """Parameters: each state with each of its calls."""
    return pytest.mark.parametrize(
        ('state', 'call'),
        [
            pytest.param(state, call, id=f'{state.__name__}-{call.__name__}')
            for state in states
            for call in CALLS[state]
        ],
    )


def _prepare(state, seconds):
    client = reverb_tf.Client(state.address)
    calls = {c: c(Target(client, state.address, c.__name__, seconds)) for c in state.calls}
    state.begin()
    return calls


def _drop_writers():
    while _writers:
        with contextlib.suppress(errors.ReverbError):
            _writers.pop().close(timeout=0)


def until_at_rest():
    """Returns when this process does nothing but wait."""
    times = []

    def at_rest():
        times.append((time.monotonic(), time.process_time()))
        before = [cpu for wall, cpu in times if wall <= times[-1][0] - 0.2]
        return before and times[-1][1] - before[-1] < 0.02

    testing_util.eventually(at_rest, 60)


# ---- Timeouts and the log --------------------------------------------------------


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Outcome(NamedTuple):
    error: BaseException | None
    seconds: float


class Waits(NamedTuple):
    address: str
    outcomes: dict  # call -> Outcome
    lines: list  # of the log


def _outcome(call):
    start = time.monotonic()
    try:
        call()
    except Exception as e:  # noqa: BLE001 (whatever it is, it is looked at)
        return Outcome(e, time.monotonic() - start)
    return Outcome(None, time.monotonic() - start)


@functools.cache
def wait_for_all(where):
    """All calls of a state at once, a thread each."""
    log = _Lines()
    logger = logging.getLogger('reverb_tf')
    logger.addHandler(log)
    outcomes = {}
    with where() as state:
        threads = [
            threading.Thread(target=lambda c=c, f=f: outcomes.update({c: _outcome(f)}))
            for c, f in _prepare(state, TIMEOUT).items()
        ]
        for thread in threads:
            thread.start()
        if where is killed_meanwhile:
            until_at_rest()
        state.change()
        for thread in threads:
            thread.join(60)
        _drop_writers()
    logger.removeHandler(log)
    return Waits(state.address, outcomes, log.lines)


@_each(CALLS)
def test_it_ends_by_its_timeout(state, call):
    bound = TIMEOUT + SLACK
    if (state, call) == (frozen, dataset_next_again):
        bound += TIMEOUT  # that of the limiter, then that of the server
    assert wait_for_all(state).outcomes[call].seconds < bound


def _error_type(state, call):
    import tensorflow as tf

    if call in FULL_OR_EMPTY_TABLE and 'dataset' not in call.__name__:
        if call is not next_in_function:
            return errors.DeadlineExceededError
    elif call in ASK or call is from_table_signature:
        return errors.DeadlineExceededError
    if state in (blocked, blocked_in_process) or (state, call) == (frozen, dataset_next_again):
        return tf.errors.DeadlineExceededError
    if call in (dataset_in_function, next_in_function):
        return tf.errors.OpError  # TensorFlow makes INTERNAL of UNAVAILABLE in functions
    return tf.errors.UnavailableError


@_each(CALLS)
def test_its_error_says_what_it_waited_for(state, call):
    waits = wait_for_all(state)
    error = waits.outcomes[call].error
    if call is close:  # gives up
        assert error is None
        return
    assert isinstance(error, _error_type(state, call)), repr(error)
    assert waits.address in str(error)
    assert re.search(REASONS[state], str(error))


@pytest.mark.parametrize('state', CALLS)
def test_the_log_says_what_each_call_waits_for(state):
    waits = wait_for_all(state)
    # `close` asks nobody, so as to end in time: it says what the server said before.
    reason = re.compile(f'still waiting .*({REASONS[state]}|last heard)')
    left = [line for line in waits.lines if reason.search(line)]
    shared = []
    for call in CALLS[state]:
        name = call.__name__
        own = [x for x in left if f"'{name}'" in x or f': {name} of {waits.address}' in x]
        if call is server_info or not own:
            shared.append(name)
        else:
            left.remove(own[0])
    asking = [line for line in left if f': server_info of {waits.address}' in line]
    assert len(asking) >= len(shared), f'{shared}\n' + '\n'.join(waits.lines)
    if state in (blocked, blocked_in_process):
        assert shared == []


def test_clients_of_a_stopped_local_server_fail_at_once():
    with start_server() as server:
        client = reverb_tf.Client(server.address)
        calls = [c(Target(client, server.address, c.__name__, 30)) for c in ASK + SAMPLE + [insert]]
        server.stop()
        for call in calls:
            outcome = _outcome(call)
            assert isinstance(outcome.error, errors.UnavailableError), repr(outcome.error)
            assert 'stopped' in str(outcome.error)
            assert outcome.seconds < 2


# ---- Ctrl-C ----------------------------------------------------------------------


def interrupt_each(where):
    """Sends this process SIGINT in each call of a state, and prints what came of it."""
    with where() as state:
        for call, wait in _prepare(state, FOREVER).items():
            sent = []

            def interrupt(sent=sent):
                until_at_rest()
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            interrupter = threading.Thread(target=interrupt)
            try:
                interrupter.start()
                wait()
                outcome = 'it returned'
            except KeyboardInterrupt:
                outcome = f'{time.monotonic() - sent[0]:.3f}'
            except BaseException as e:  # noqa: BLE001 (for the report)
                outcome = repr(e)
            interrupter.join()
            print(f'{call.__name__}: {outcome}', flush=True)
        _drop_writers()
        print('done', flush=True)


# Their processes run side by side.
INTERRUPTED = [absent, killed, frozen, blocked, blocked_in_process]


@functools.cache
def _interrupted_processes():
    return {
        state: testing_util.start_script(
            f'from tests import waiting_test as w; w.interrupt_each(w.{state.__name__})'
        )
        for state in INTERRUPTED
    }


class Interrupted(NamedTuple):
    outcomes: dict  # name of the call -> seconds until KeyboardInterrupt, or what else
    returncode: int
    stderr: str


@functools.cache
def interrupted(state):
    process = _interrupted_processes()[state]
    outcomes = {}
    for line in iter(process.stdout.readline, 'done\n'):
        if not line:
            break
        name, _, outcome = line.strip().partition(': ')
        outcomes[name] = outcome
    _, stderr = process.communicate(timeout=60)
    return Interrupted(outcomes, process.returncode, stderr[-3000:])


@_each(INTERRUPTED)
def test_ctrl_c_interrupts_it_within_a_second(state, call):
    result = interrupted(state)
    assert call.__name__ in result.outcomes, result.stderr
    assert float(result.outcomes[call.__name__]) < INTERRUPT_LIMIT


@pytest.mark.parametrize('state', INTERRUPTED)
def test_an_interrupted_process_ends_well(state):
    result = interrupted(state)
    assert result.returncode == 0, result.stderr


UNCAUGHT = """
    import os, signal, sys, threading
    import reverb_tf
    from tests import waiting_test as w

    def interrupt():
        w.until_at_rest()
        os.kill(os.getpid(), signal.SIGINT)

    address = '127.0.0.1:1'
    client = reverb_tf.Client(address)
    wait = w.{call}(w.Target(client, address, 't', float('inf')))
    threading.Thread(target=interrupt).start()
    wait()
"""


@pytest.mark.parametrize('call', [server_info, dataset_next])
def test_an_uncaught_ctrl_c_ends_the_process_as_python_does(call):
    process = testing_util.start_script(UNCAUGHT.format(call=call.__name__))
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == -signal.SIGINT
    assert stderr.strip().endswith('KeyboardInterrupt')


# SIGINT comes when TensorFlow has left Python and no op of ours waits yet.
BEFORE_THE_WAIT = """
    import os, signal, sys
    import tensorflow as tf
    import reverb_tf

    it = iter(reverb_tf.TrajectoryDataset('127.0.0.1:1', 't', 'int64', [None]))

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    @tf.function
    def first():
        with tf.control_dependencies([tf.numpy_function(interrupt, [], tf.int64)]):
            return next(it).info.key

    try:
        first()
    except KeyboardInterrupt:
        print('interrupted')
"""


def test_ctrl_c_just_before_a_wait_ends_it(tmp_path):
    script = tmp_path / 'script.py'  # tf.function reads its source
    script.write_text(textwrap.dedent(BEFORE_THE_WAIT))
    process = testing_util.start_script(f'import runpy; runpy.run_path({str(script)!r})')
    try:
        out, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert out == 'interrupted\n', stderr[-3000:]


def test_ctrl_c_after_the_waits_is_a_plain_one():
    it = iter(_dataset(Target(None, '127.0.0.1:1', 't', 0.05)))
    with pytest.raises(Exception, match='refused|no answer'):
        next(it)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_one_wait_and_not_the_next():
    import tensorflow as tf

    it = iter(_dataset(Target(None, '127.0.0.1:1', 't', 0.05)))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(tf.errors.UnavailableError):
        next(it)


def test_ctrl_c_goes_to_a_handler_that_the_program_had_before():
    calls = []
    previous = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        _dataset(Target(None, '127.0.0.1:1', 't', 1))
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert calls == [1]


def test_ctrl_c_goes_to_a_handler_that_the_program_sets_later():
    import tensorflow as tf

    it = iter(_dataset(Target(None, '127.0.0.1:1', 't', 0.05)))
    calls = []
    previous = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(tf.errors.UnavailableError):
            next(it)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert calls == [1]


def test_a_program_without_a_dataset_keeps_pythons_handler():
    process = testing_util.start_script(
        """
        import signal
        import reverb_tf
        with reverb_tf.Server([reverb_tf.Table.queue('t', 1)]) as server:
            reverb_tf.Client(server.address).insert(1, {'t': 1.0})
        import reverb_tf.trajectory_dataset
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        """
    )
    out, stderr = process.communicate(timeout=60)
    assert out == 'True\n', stderr[-3000:]
