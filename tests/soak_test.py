"""Many writers and samplers, each a process, against one server process: nothing lost, doubled or leaked.

On each road (TCP, Unix socket) writers fill a queue and a prioritized replay table from the same steps; samplers
empty the queue and draw from the replay table, whose priorities they update. Meanwhile one sampler and one writer are
killed, and the writer is started again.

The short run is the default. The full one, ten writers and ten samplers for a minute on each road:

    bazel test //tests:soak_test --nocache_test_results --test_output=all --test_arg=-s --test_timeout=600 \\
        --test_env=REVERB_TF_SOAK=full

With the wheel installed, from any folder but the repository's root: `REVERB_TF_SOAK=full python -m pytest -s FILE`.
"""

import collections
import contextlib
import faulthandler
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import child_processes
from child_processes import Child, Parent
import numpy as np
import pytest
import testing_util

import reverb_tf

Scale = collections.namedtuple('Scale', 'writers samplers seconds')
SCALES = {'short': Scale(3, 3, 10.0), 'full': Scale(10, 10, 60.0)}
# The sampler that is killed. Samplers take turns at the three ways of reading, see READERS.
VICTIMS = {'tcp': 0, 'unix': 2}
RESTARTED = 1

EPISODE = 50  # Steps; a writer confirms them all before the next episode.
REPLAY_STEPS = 3
PAYLOAD_BYTES = 300
BATCH = 4
QUEUE_SIZE = 200
REPLAY_SIZE = 500
# The server's peak memory in the last quarter of a run may be above that of the quarter before by so much.
RSS_BOUND_KIB = 4096


def payload(writer: int, number: int) -> bytes:
    """What a step carries beside these two."""
    return hashlib.shake_128(f'{writer}/{number}'.encode()).digest(PAYLOAD_BYTES)


# ---- What the child processes do -------------------------------------------------


def serve(parent: Parent, record: int, host: str) -> None:
    step = {
        'writer': np.int32(0),
        'number': np.int64(0),
        'payload': np.zeros(PAYLOAD_BYTES, np.uint8),
    }
    signature = reverb_tf.signature_from(step, leading=None)
    replay = reverb_tf.Table(
        'replay',
        reverb_tf.selectors.Prioritized(0.8),
        reverb_tf.selectors.Fifo(),
        REPLAY_SIZE,
        reverb_tf.rate_limiters.MinSize(1),
        signature=signature,
    )
    queue = reverb_tf.Table.queue('queue', QUEUE_SIZE, signature=signature)
    with reverb_tf.Server([queue, replay], host=host) as server:
        parent.ready(server.address)
        parent.stop.wait()


def write(parent: Parent, record: int, address: str, writer: str, number: str) -> None:
    """Writes from `number` on; the record tells below which number all is confirmed."""
    writer, number = int(writer), int(number)
    # Every other writer bounds what is in flight.
    in_flight = 16 if writer % 2 else None
    writing = reverb_tf.Client(address).trajectory_writer(
        REPLAY_STEPS, max_in_flight_items=in_flight
    )
    parent.ready()
    while not parent.stop.is_set():
        os.write(record, b'%d\n' % number)
        for _ in range(EPISODE):
            data = np.frombuffer(payload(writer, number), np.uint8)
            writing.append(
                {'writer': np.int32(writer), 'number': np.int64(number), 'payload': data}
            )
            number += 1
            write_items(writing)
        writing.end_episode()
    os.write(record, b'%d\n' % number)
    assert writing.close() == 0
    assert writing.rejected_items == 0


def write_items(writing: reverb_tf.TrajectoryWriter) -> None:
    """The newest step for the queue, the newest three for the replay table."""
    history = writing.history
    writing.create_item('queue', 1.0, {name: column[-1:] for name, column in history.items()})
    if writing.episode_steps >= REPLAY_STEPS:
        steps = {name: column[-REPLAY_STEPS:] for name, column in history.items()}
        writing.create_item('replay', 1.0, steps)


def read_by_sampler(parent: Parent, client: reverb_tf.Client, table: str):
    """(keys, data) of [item, step, ...] from one sampler without end, which the watching thread closes."""
    sampler = client.sampler(table)
    parent.on_stop.append(sampler.close)
    with contextlib.suppress(reverb_tf.errors.CancelledError):
        for sample in sampler:
            yield (
                [sample.info.key],
                {name: column[np.newaxis] for name, column in sample.data.items()},
            )


def read_by_sample(parent: Parent, client: reverb_tf.Client, table: str):
    """The same from short generators, some ended by a timeout."""
    while not parent.stop.is_set():
        for steps in client.sample(
            table, 5, unpack_as_table_signature=True, timeout=0.05, on_timeout='end'
        ):
            data = {name: np.stack([step.data[name] for step in steps]) for name in steps[0].data}
            yield [steps[0].info.key], {name: column[np.newaxis] for name, column in data.items()}


def read_by_dataset(parent: Parent, client: reverb_tf.Client, table: str):
    """The same from iterators of fused batches, some short by a timeout."""
    dataset = reverb_tf.TrajectoryDataset.from_table_signature(
        client.server_address,
        table,
        batch_size=BATCH,
        max_samples=10 * BATCH + 1,
        rate_limiter_timeout_ms=50,
    )
    while not parent.stop.is_set():
        for sample in dataset.as_numpy_iterator():
            yield sample.info.key, sample.data


READERS = (read_by_sampler, read_by_sample, read_by_dataset)


def sample(parent: Parent, record: int, address: str, reader: str) -> None:
    """Empties the queue, an element a line of the record; now and then draws from the replay table."""
    read = READERS[int(reader)]
    if read is read_by_dataset:
        child_processes.import_tensorflow()
    client = reverb_tf.Client(address)
    rng = np.random.default_rng(int(reader))
    replayed = collections.Counter()
    parent.ready()
    replay = read(parent, client, 'replay')
    for count, (_, data) in enumerate(read(parent, client, 'queue')):
        items = zip(data['writer'].flat, data['number'].flat)
        os.write(
            record, (' '.join(f'{writer}:{number}' for writer, number in items) + '\n').encode()
        )
        check_data(data, steps=1)
        if count % 4 == 0 and (drawn := next(replay, None)):
            check_data(drawn[1], steps=REPLAY_STEPS)
            updates = {int(key): rng.uniform(0, 2) for key in drawn[0]}
            result = client.mutate_priorities('replay', updates)
            assert result.updated + result.not_found == len(updates), result
            replayed.update(drawn=len(drawn[0]), updated=result.updated, evicted=result.not_found)
    print(json.dumps(replayed), flush=True)


def check_data(data: dict, steps: int) -> None:
    """That each step's payload is its own, and each item's steps follow on each other."""
    assert data['number'].shape[1] == steps, data['number']
    assert np.all(np.diff(data['number'], axis=1) == 1), data['number']
    assert np.all(data['writer'] == data['writer'][:, :1]), data['writer']
    for writer, number, got in zip(
        data['writer'].flat, data['number'].flat, data['payload'].reshape(-1, PAYLOAD_BYTES)
    ):
        assert got.tobytes() == payload(writer, number), (writer, number)


def main() -> None:
    """Of a child: ROLE RECORD ARGUMENTS..."""
    faulthandler.enable()
    role = {'serve': serve, 'write': write, 'sample': sample}[sys.argv[1]]
    record = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    role(Parent(), record, *sys.argv[3:])


# ---- The parent ------------------------------------------------------------------


@pytest.fixture
def folder():
    # Not pytest's: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory() as path:
        yield pathlib.Path(path)


class Run:
    """The server and its clients."""

    def __init__(self, folder: pathlib.Path, road: str, scale: Scale):
        self.folder = folder
        self.children = []
        self.server = self._start(
            'server', 'serve', {'tcp': 'localhost', 'unix': f'unix:{folder}/socket'}[road]
        )
        self.address = self.server.wait_ready()
        self.server.go()
        self.client = reverb_tf.Client(self.address, timeout=20)
        self.writers = [self.start_writer(i, 0) for i in range(scale.writers)]
        readers = [i % len(READERS) for i in range(scale.samplers)]
        self.samplers = [
            self._start(f'sampler{i}', 'sample', self.address, r) for i, r in enumerate(readers)
        ]
        self.victim = self.samplers[VICTIMS[road]]
        self.ended_writer = None
        self.first_number = 0  # of the writer that took its place
        self.rss_kib = []

    def _start(self, name: str, role: str, *arguments) -> Child:
        self.children.append(Child(__file__, self.folder, name, role, *arguments))
        return self.children[-1]

    def start_writer(self, index: int, number: int) -> Child:
        return self._start(f'writer{index}from{number}', 'write', self.address, index, number)

    def begin(self) -> None:
        """All at once, so that nobody has to wait for long."""
        for child in self.writers + self.samplers:
            child.wait_ready()
        for child in self.writers + self.samplers:
            child.go()

    def proceed_until(self, deadline: float) -> None:
        """Watches the memory and the processes."""
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.process.wait(timeout=0.05)
            self.server.check_running()
            for child in self.writers + [s for s in self.samplers if s is not self.victim]:
                child.check_running()
            self.rss_kib.append(self.server.rss_kib())

    def restart_writer(self) -> None:
        """The next one begins with the episode that the killed one can't have begun."""
        self.ended_writer = self.writers[RESTARTED]
        self.ended_writer.kill()
        self.first_number = int(self.ended_writer.lines()[-1]) + EPISODE
        self.writers[RESTARTED] = self.start_writer(RESTARTED, self.first_number)
        self.writers[RESTARTED].go()

    def info(self, table: str) -> reverb_tf.TableInfo:
        return self.client.server_info()[table]

    def end_writers(self) -> None:
        for writer in self.writers:
            writer.end()
        for writer in self.writers:
            writer.finish()

    def await_empty_queue(self) -> None:
        def is_empty():
            info = self.info('queue')
            return info.current_size == 0 and info.rate_limiter_info.sample_stats.in_flight == 0

        testing_util.eventually(is_empty, timeout=60)

    def end_samplers(self) -> collections.Counter:
        """What they did with the replay table."""
        survivors = [sampler for sampler in self.samplers if sampler is not self.victim]
        for sampler in survivors:
            sampler.end()
        return sum(
            (collections.Counter(json.loads(s.finish())) for s in survivors), collections.Counter()
        )

    def abort(self) -> None:
        """Ends what still runs; each process writes its stacks to its stderr."""
        for child in self.children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGABRT)

    # -- Of the writers' and samplers' records --

    def check_delivery(self) -> None:
        """That the queue's items all came once, in order, but for what the victim had in its hands."""
        times = collections.Counter(
            item for s in self.samplers for element in elements(s) for item in element
        )
        # Delivered to the victim, which died before the server knew.
        doubled = {item for item, count in times.items() if count > 1}
        assert doubled <= set(elements(self.victim)[-1]), (doubled, elements(self.victim)[-1])
        assert max(times.values()) <= 2
        # Delivered to the victim, which died before it had written that down.
        written = self.written(set(times))
        lost = written - set(times)
        assert len(lost) <= BATCH, sorted(lost)
        assert not set(times) - written, sorted(set(times) - written)
        stats = self.info('queue').rate_limiter_info.sample_stats
        assert stats.delivered == len(written), stats
        # Only what came back from the victim may come late.
        late = {item for s in self.samplers for item in late_items(elements(s))}
        assert len(late) <= stats.returned <= 2 * BATCH, (late, stats)
        print(
            f'queue: {len(written)} items, {len(doubled)} doubled and {len(lost)} lost with the killed sampler, '
            f'{stats.returned} given back, {len(late)} late'
        )
        # The killed writer may have been ahead with either table.
        expected = sum(number % EPISODE >= REPLAY_STEPS - 1 for _, number in written)
        inserted = self.info('replay').insert_count
        print(f'replay: {inserted} items')
        assert abs(inserted - expected) < EPISODE, (inserted, expected)

    def written(self, delivered: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """What must be delivered: all of the writers' items, of the killed one those that the server took."""
        items = {
            (index, number)
            for index, writer in enumerate(self.writers)
            for number in range(
                self.first_number if index == RESTARTED else 0, int(writer.lines()[-1])
            )
        }
        confirmed = int(self.ended_writer.lines()[-1])
        taken = [n + 1 for writer, n in delivered if writer == RESTARTED and n < self.first_number]
        return items | {(RESTARTED, number) for number in range(max([confirmed, *taken]))}

    def check_memory(self) -> None:
        """That the server's does not grow in the second half."""
        quarter = len(self.rss_kib) // 4
        before, after = (
            max(self.rss_kib[2 * quarter : 3 * quarter]),
            max(self.rss_kib[3 * quarter :]),
        )
        print(
            f'server RSS in KiB: first {self.rss_kib[0]}, peak of the third quarter {before}, of the last {after}'
        )
        assert after <= before + RSS_BOUND_KIB

    def check_reset(self) -> None:
        """That nothing is left once the tables are emptied and the clients gone."""
        for table in ('queue', 'replay'):
            self.client.reset(table)
        for name, info in self.client.server_info().items():
            left = (
                info.current_size,
                info.num_chunks,
                info.bytes_stored,
                info.num_writers,
                info.num_samplers,
            )
            assert left == (0, 0, 0, 0, 0), f'{name}: {info}'


def elements(sampler: Child) -> list[list[tuple[int, int]]]:
    """The (writer, number) of each element that it was handed."""
    return [[tuple(map(int, item.split(':'))) for item in line.split()] for line in sampler.lines()]


def late_items(elements: list[list[tuple[int, int]]]) -> set[tuple[int, int]]:
    """What came after a later item of the same writer."""
    newest = {}
    late = set()
    for writer, number in (item for element in elements for item in element):
        if number < newest.get(writer, -1):
            late.add((writer, number))
        newest[writer] = max(number, newest.get(writer, -1))
    return late


@pytest.mark.parametrize('road', ['tcp', 'unix'])
def test_soak(folder, road):
    scale = SCALES[os.environ.get('REVERB_TF_SOAK', 'short')]
    run = Run(folder, road, scale)
    watchdog = threading.Timer(scale.seconds + 200, run.abort)
    watchdog.start()
    try:
        run.begin()
        start = time.monotonic()
        run.proceed_until(start + 0.3 * scale.seconds)
        run.victim.kill()
        run.proceed_until(start + 0.4 * scale.seconds)
        run.restart_writer()
        run.proceed_until(start + scale.seconds)
        run.end_writers()
        run.await_empty_queue()
        replayed = run.end_samplers()
        print(f'{road}: of the replay table {dict(replayed)}')
        assert replayed['drawn'] and replayed['updated']
        run.check_delivery()
        run.check_memory()
        run.check_reset()
        run.server.finish()
    finally:
        watchdog.cancel()
        run.abort()


if __name__ == '__main__':
    main()
