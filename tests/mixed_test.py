"""Random operations of six processes on one server, whose figures stay true to the end.

The short run is the default; the long one:

    bazel test //tests:mixed_test --nocache_test_results --test_output=all --test_arg=-s --test_timeout=2400 \\
        --test_env=REVERB_TF_MIXED_SECONDS=1800
"""

import collections
import faulthandler
import json
import logging
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

import child_processes
from child_processes import Child, Parent
import numpy as np
import pytest

import reverb_tf

SECONDS = float(os.environ.get('REVERB_TF_MIXED_SECONDS', '12'))
# Of the six, those that use TensorFlow, which takes long to import.
WITH_TENSORFLOW = (4, 5)
NUM_CLIENTS = 6
SEED = 7
TABLES = ('uniform', 'prioritized', 'queue', 'stack', 'heap')
STEP = {'number': np.int64(0), 'noise': np.zeros(64, np.uint8), 'text': np.array(b'', object)}
SHORT = 0.02  # seconds that an operation may wait
Refused = (reverb_tf.errors.InvalidArgumentError, ValueError, reverb_tf.errors.NotFoundError)


def make_tables():
    common = {
        'signature': reverb_tf.signature_from(STEP, leading=None),
        'signature_scope': 'trajectory',
    }
    selectors = reverb_tf.selectors

    def table(name, sampler, remover, max_size, **options):
        limiter = reverb_tf.rate_limiters.MinSize(1)
        return reverb_tf.Table(name, sampler, remover, max_size, limiter, **common, **options)

    return [
        table('uniform', selectors.Uniform(), selectors.Fifo(), 300),
        table('prioritized', selectors.Prioritized(0.7), selectors.Lifo(), 200, max_bytes=60_000),
        table('heap', selectors.MaxHeap(), selectors.MinHeap(), 100, max_times_sampled=3),
        reverb_tf.Table.queue('queue', 50, **common),
        reverb_tf.Table.stack('stack', 40, **common),
    ]


# ---- What the child processes do -------------------------------------------------


def serve(parent: Parent, record: int) -> None:
    with reverb_tf.Server(make_tables()) as server:
        parent.ready(server.address)
        parent.stop.wait()


class Player:
    """One client and what it has open; each method is an operation."""

    def __init__(self, address: str, number: int):
        self.address = address
        self.random = random.Random(1_000 * SEED + number)
        self.client = reverb_tf.Client(address, timeout=30)
        self.writer = self.client.trajectory_writer(6, max_in_flight_items=8)
        self.samplers = []
        self.keys = collections.deque(maxlen=200)  # (table, key) seen

    def table(self):
        return self.random.choice(TABLES)

    def step(self):
        number = self.random.randrange(1 << 40)
        return {
            'number': np.int64(number),
            'noise': np.frombuffer(self.random.randbytes(64), np.uint8),
            'text': np.array(b'%d' % number, object),
        }

    def check(self, data):
        """A step's text tells its number."""
        pairs = zip(np.ravel(data['number']), np.ravel(data['text']), strict=True)
        assert all(int(text) == number for number, text in pairs), data

    # Writing.

    def append(self):
        for _ in range(self.random.randint(1, 5)):
            self.writer.append(self.step())

    def create_item(self):
        length = min(6, self.writer.episode_steps)
        if length == 0:
            return
        history = self.writer.history
        count = self.random.randint(1, length)
        trajectory = {name: column[-count:] for name, column in history.items()}
        table = self.table()
        try:
            priority = self.random.uniform(0, 3)
            key = self.writer.create_item(table, priority, trajectory, timeout=SHORT)
        except reverb_tf.DeadlineExceededError:
            return  # the table is full
        self.keys.append((table, key))

    def flush(self):
        try:
            self.writer.flush(timeout=SHORT)
        except reverb_tf.DeadlineExceededError:
            pass

    def end_episode(self):
        try:
            self.writer.end_episode(timeout=SHORT, clear_buffers=self.random.random() < 0.5)
        except reverb_tf.DeadlineExceededError:
            pass

    def new_writer(self):
        """Drops the old one with what is unsent."""
        self.writer.close(timeout=SHORT)
        self.writer = self.client.trajectory_writer(6, max_in_flight_items=8)

    def structured(self):
        pattern = reverb_tf.structured.pattern_from_transform(
            STEP, lambda s: {name: s[name][-2:] for name in STEP}
        )
        config = reverb_tf.structured.create_config(pattern, 'uniform', [])
        writer = self.client.structured_writer([config])
        for _ in range(4):
            writer.append(self.step())
        writer.close(timeout=1)

    # Reading.

    def sample(self):
        table = self.table()
        samples = self.client.sample(
            table,
            self.random.randint(1, 20),
            emit_timesteps=False,
            timeout=SHORT,
            on_timeout='end',
        )
        for sample in samples:
            self.check(sample.data)
            self.keys.append((table, int(sample.info.key)))
            if self.random.random() < 0.1:
                break  # the rest goes back

    def open_sampler(self):
        if len(self.samplers) < 3:
            self.samplers.append(
                self.client.sampler(
                    self.table(), timeout=SHORT, consume_ahead=self.random.choice([0, 5])
                )
            )

    def read_sampler(self):
        if not self.samplers:
            return
        sampler = self.random.choice(self.samplers)
        try:
            for _ in range(self.random.randint(1, 10)):
                self.check(next(sampler).data)
        except reverb_tf.DeadlineExceededError:
            pass

    def close_sampler(self):
        if self.samplers:
            self.samplers.pop(self.random.randrange(len(self.samplers))).close()

    # Changing.

    def mutate(self):
        table = self.table()
        known = list(dict.fromkeys(key for t, key in self.keys if t == table))
        keys = self.random.sample(known, min(len(known), 5)) + [self.random.randrange(1 << 60)]
        updates = {key: self.random.uniform(0, 3) for key in keys[::2]}
        deletes = keys[1::2]
        result = self.client.mutate_priorities(table, updates, deletes)
        assert result.updated + result.deleted + result.not_found == len(keys), result

    def reset(self):
        if self.random.random() < 0.02:
            self.client.reset(self.table())

    def info(self):
        check_info(self.client.server_info())

    # Refused.

    def bad_table(self):
        with pytest.raises(Refused):
            next(self.client.sample('no such table', timeout=5))

    def bad_priority(self):
        with pytest.raises(Refused):
            self.client.mutate_priorities(self.table(), {1: float('nan')})

    def bad_dtype(self):
        with pytest.raises(Refused):
            step = {**self.step(), 'number': np.float32(1)}
            self.client.insert(step, {self.table(): 1.0}, timeout=5)

    def close(self):
        for sampler in self.samplers:
            sampler.close()
        self.writer.close(timeout=1)
        self.client.close()


class GraphPlayer(Player):
    """Reads and writes by ops."""

    def __init__(self, address: str, number: int):
        super().__init__(address, number)
        child_processes.import_tensorflow()
        self.tf_client = reverb_tf.TFClient(address)

    def dataset(self):
        table = self.table()
        dataset = reverb_tf.TrajectoryDataset.from_table_signature(
            self.address,
            table,
            batch_size=self.random.choice([None, 1]),
            rate_limiter_timeout_ms=int(1_000 * SHORT),
            max_samples=self.random.randint(1, 30),
        )
        for sample in dataset.as_numpy_iterator():
            self.check(sample.data)

    def timesteps(self):
        dataset = reverb_tf.TimestepDataset.from_table_signature(
            self.address,
            self.random.choice(TABLES[1:]),  # in the first are also items of one wide step
            batch_size=8,
            rate_limiter_timeout_ms=int(1_000 * SHORT),
            max_samples=self.random.randint(1, 10),
        )
        for sample in dataset.as_numpy_iterator():
            self.check(sample.data)

    def tf_insert(self):
        step = self.step()
        del step['text']  # refused: a column is missing
        with pytest.raises(Exception, match='text'):
            self.tf_client.insert(step, ['uniform'], [1.0])
        self.tf_client.insert({k: v[None] for k, v in self.step().items()}, ['uniform'], [1.0])

    def tf_update(self):
        keys = [key for t, key in self.keys if t == 'prioritized'][:5]
        if keys:
            self.tf_client.update_priorities(
                'prioritized', np.array(keys, np.uint64), np.full(len(keys), 0.5)
            )


def play(parent: Parent, record: int, address: str, number: str) -> None:
    # Writers that are dropped with unsent items say so, rightly.
    logging.getLogger('reverb_tf').setLevel(logging.ERROR)
    kind = GraphPlayer if int(number) in WITH_TENSORFLOW else Player
    player = kind(address, int(number))
    operations = [
        getattr(player, name)
        for cls in (Player, GraphPlayer)
        for name, f in vars(cls).items()
        if issubclass(kind, cls)
        and name not in ('table', 'step', 'check', 'close')
        and name[0] != '_'
    ]
    done = collections.Counter()
    parent.ready()
    while not parent.stop.is_set():
        operation = player.random.choice(operations)
        operation()
        done[operation.__name__] += 1
    player.close()
    print(json.dumps(done), flush=True)


def check_info(infos) -> None:
    """What holds at any moment."""
    for name, info in infos.items():
        stats = info.rate_limiter_info.sample_stats
        assert 0 <= info.current_size <= info.max_size, (name, info)
        assert info.max_bytes == 0 or info.bytes_stored <= info.max_bytes, (name, info)
        assert info.insert_count - info.delete_count == info.current_size, (name, info)
        assert stats.completed == stats.delivered + stats.returned + stats.in_flight, (name, stats)
        assert (info.num_chunks == 0) == (info.bytes_stored == 0), (name, info)


def main() -> None:
    """Of a child: ROLE RECORD ARGUMENTS..."""
    faulthandler.enable()
    role = {'serve': serve, 'play': play}[sys.argv[1]]
    record = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    role(Parent(), record, *sys.argv[3:])


# ---- The parent ------------------------------------------------------------------


def check_end(client: reverb_tf.Client) -> None:
    """The clients are gone: nothing waits or is under way; a reset leaves nothing."""
    infos = client.server_info()
    check_info(infos)
    for name, info in infos.items():
        assert info.rate_limiter_info.sample_stats.in_flight == 0, (name, info)
        assert info.num_waiting_inserts == info.num_waiting_samples == 0, (name, info)
        client.reset(name)
    for name, info in client.server_info().items():
        left = (
            info.current_size,
            info.num_chunks,
            info.bytes_stored,
            info.num_writers,
            info.num_samplers,
        )
        assert left == (0, 0, 0, 0, 0), (name, info)


def test_figures_hold_whatever_the_clients_do():
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        server = Child(__file__, folder, 'server', 'serve')
        address = server.wait_ready()
        players = [
            Child(__file__, folder, f'player{i}', 'play', address, i) for i in range(NUM_CLIENTS)
        ]
        watchdog = threading.Timer(SECONDS + 200, server.process.kill)
        watchdog.start()
        try:
            server.go()
            for player in players:
                player.wait_ready()
            for player in players:
                player.go()
            client = reverb_tf.Client(address, timeout=20)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                check_info(client.server_info())
                for child in [server, *players]:
                    child.check_running()
            for player in players:
                player.end()
            done = [json.loads(player.finish()) for player in players]
            print(f'operations: {[sum(d.values()) for d in done]}')
            assert all(sum(d.values()) > 10 for d in done), done
            check_end(client)
            client.close()
            server.finish()
        finally:
            watchdog.cancel()
            for child in [server, *players]:
                child.process.kill()


if __name__ == '__main__':
    main()
