"""Random trajectories, written in random ways, come back by every road as a plain model has them.

REVERB_TF_EXAMPLES says how many programs are tried on each road (default 150).
"""

import collections
import os

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from tests.interop_peer import plain
from tests.interop_sides import PYTHON, Theirs

NAMES = ('a', 'b', 'c')
DTYPES = {'a': tf.int64, 'b': tf.string, 'c': tf.float32}
SHAPES = dict.fromkeys(NAMES, tf.TensorShape(None))
ROADS = ('client', 'dataset', 'batched', 'graph')
EXAMPLES = settings(
    max_examples=int(os.environ.get('REVERB_TF_EXAMPLES', '150')),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def cell(writer, name, step):
    """What `writer` appends to a column at a step; tells where it is from."""
    number = 1_000 * writer + step
    if name == 'a':
        return np.array([number, -number, number // 3], np.int64)
    if name == 'b':
        return np.array(b'%d' % number * (1 + step % 3), object)
    return np.full((2, 2), number / 8, np.float32)


# ---- Programs ----------------------------------------------------------------


@st.composite
def writer_options(draw):
    keep = draw(st.integers(1, 12))
    columns = {}
    for name in NAMES:
        columns[name] = {
            'max_chunk_length': draw(st.none() | st.integers(1, keep)),
            'codec': draw(st.sampled_from(['auto', 'snappy', 'none'])),
            'delta_encode': name == 'a' and draw(st.booleans()),
        }
    return keep, columns


class ModelWriter:
    """Writes with a trajectory writer, and knows what its items hold."""

    def __init__(self, client, number, options):
        self.number = number
        self.keep, columns = options
        self.writer = client.trajectory_writer(self.keep)
        for name, column in columns.items():
            self.writer.configure(name, **column)
        self.steps = 0  # of all episodes
        self.history = collections.defaultdict(list)  # the episode's cells; None: a hole

    def append(self, present, in_parts):
        values = {name: cell(self.number, name, self.steps) for name in present}
        if in_parts:
            for name, value in values.items():
                self.writer.append({name: value}, partial_step=True)
            self.writer.append({})
        else:
            self.writer.append(values)
        for name in NAMES:
            self.history[name].append(values.get(name))
        self.steps += 1

    def end_episode(self, clear):
        self.writer.end_episode(clear_buffers=clear)
        if clear:
            self.history.clear()

    def usable(self, name):
        """Positions in the history that an item may refer to."""
        cells = self.history[name]
        first = max(0, len(cells) - self.keep)
        return [i for i in range(first, len(cells)) if cells[i] is not None]

    def draw_pick(self, draw, name):
        """An index of the history: a cell, a slice or a list, from the end or the beginning."""
        usable = self.usable(name)
        assume(usable)
        length = len(self.history[name])
        kind = draw(st.sampled_from(['cell', 'slice', 'list']))
        if kind == 'cell':
            position = draw(st.sampled_from(usable))
            return position - length if draw(st.booleans()) else position
        if kind == 'slice':
            ends = st.none() | st.integers(-length - 1, length + 1)
            pick = slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, 3, -1, -2])))
            picked = range(length)[pick]
            if len(picked) > 0 and set(picked) <= set(usable):
                return pick
        return draw(st.lists(st.sampled_from(usable), min_size=1, max_size=6))

    def expected(self, picks):
        """The columns' plain values."""
        columns = []
        for name in NAMES:
            cells = self.history[name]
            pick = picks[name]
            if isinstance(pick, int):
                columns.append(plain(cells[pick]))
            else:
                positions = range(len(cells))[pick] if isinstance(pick, slice) else pick
                columns.append(plain(np.stack([cells[i] for i in positions])))
        return columns

    def create_item(self, table, picks):
        trajectory = {name: self.writer.history[name][picks[name]] for name in NAMES}
        return self.writer.create_item(table, 1.0, trajectory)


def run_program(draw, client, tables):
    """Writes to `tables` what is drawn; returns table -> key -> the item's plain columns."""
    for table in tables:
        client.reset(table)  # of what a failed program left
    writers = [
        ModelWriter(client, number, draw(writer_options()))
        for number in range(draw(st.integers(1, 2)))
    ]
    try:
        return run_steps(draw, writers, tables)
    finally:
        # Also of a program that is given up, so that nothing of it comes later.
        for writer in writers:
            writer.writer.close()


def run_steps(draw, writers, tables):
    items = {table: {} for table in tables}
    for _ in range(draw(st.integers(1, 16))):
        writer = draw(st.sampled_from(writers))
        present = draw(st.sets(st.sampled_from(NAMES), min_size=1))
        writer.append(sorted(present), in_parts=draw(st.booleans()))
        if draw(st.booleans()) and all(writer.usable(name) for name in NAMES):
            picks = {name: writer.draw_pick(draw, name) for name in NAMES}
            for table in tables:
                items[table][writer.create_item(table, picks)] = writer.expected(picks)
        if draw(st.integers(0, 9)) == 0:
            writer.end_episode(clear=draw(st.booleans()))
    return items


# ---- Roads -------------------------------------------------------------------


class Roads:
    """A server with a queue for each road, and what reads them."""

    def __init__(self, in_process):
        self.peer = Theirs() if PYTHON and not in_process else None
        self.tables = ROADS + (('peer',) if self.peer else ())
        self.server = reverb_tf.Server([reverb_tf.Table.queue(t, 1000) for t in self.tables])
        address = self.server.address
        self.client = reverb_tf.Client(address, timeout=60, in_process=in_process)
        self.unbatched = iter(reverb_tf.TrajectoryDataset(address, 'dataset', DTYPES, SHAPES))
        self.batched = iter(
            reverb_tf.TrajectoryDataset(address, 'batched', DTYPES, SHAPES, batch_size=1)
        )
        tf_client = reverb_tf.TFClient(address)
        self.graph_sample = tf.function(
            lambda: tf_client.sample('graph', DTYPES, emit_trajectory=True)
        )

    def read(self, table, count):
        """Key -> plain columns of the next `count` items."""
        if table == 'peer':
            return self.peer.run('sample_keyed', self.server.address, count, name='peer')
        if table == 'client':
            # The table has no signature: data is a list of the columns.
            samples = self.client.sample('client', count, emit_timesteps=False)
            return {int(s.info.key): [plain(column) for column in s.data] for s in samples}
        if table == 'dataset':
            samples = [next(self.unbatched) for _ in range(count)]
        elif table == 'batched':
            samples = [
                tf.nest.map_structure(lambda x: x[0], next(self.batched)) for _ in range(count)
            ]
        else:
            samples = [self.graph_sample() for _ in range(count)]
        return {int(s.info.key): [plain(s.data[name]) for name in NAMES] for s in samples}

    def close(self):
        del self.unbatched, self.batched
        if self.peer:
            self.peer.close()
        self.client.close()
        self.server.stop()


@pytest.fixture(scope='module', params=['in_process', 'grpc'])
def roads(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('REVERB_TF_INPROCESS', '1' if request.param == 'in_process' else '0')
        made = Roads(in_process=request.param == 'in_process')
        yield made
        made.close()


@EXAMPLES
@given(data=st.data())
def test_every_road_gives_what_the_model_says(roads, data):
    items = run_program(data.draw, roads.client, roads.tables)
    for table, expected in items.items():
        if expected:
            assert roads.read(table, len(expected)) == expected, table
