"""PriorityUpdater: priorities from `fit` to the table, the table's figures to TensorBoard."""

import logging
import re
import signal
import warnings

import absl.logging
import keras
import numpy as np
import pytest
import tensorflow as tf

import reverb_tf
from reverb_tf import errors
from reverb_tf.keras import PriorityUpdater
from tests import testing_util

SIGNATURE = {'x': tf.TensorSpec([2], tf.float32), 'y': tf.TensorSpec([1], tf.float32)}
ITEMS = 32
# What no model of these tests gives.
INITIAL = 77.0


@pytest.fixture
def server():
    """Of two tables of the same items, with the same initial priority."""
    selectors = [reverb_tf.selectors.Uniform(), reverb_tf.selectors.Prioritized(1.0)]
    tables = [
        reverb_tf.Table(
            name,
            sampler,
            reverb_tf.selectors.Fifo(),
            100,
            reverb_tf.rate_limiters.MinSize(1),
            signature=SIGNATURE,
        )
        for name, sampler in zip(['t', 'per'], selectors)
    ]
    with reverb_tf.Server(tables) as server:
        random = np.random.default_rng(0)
        client = reverb_tf.Client(server.address)
        for _ in range(ITEMS):
            x, y = random.normal(size=[2]), random.normal(size=[1])
            client.insert(
                {'x': x.astype(np.float32), 'y': y.astype(np.float32)},
                {'t': INITIAL, 'per': INITIAL},
            )
        yield server


@pytest.fixture(params=[True, False], ids=['in_process', 'remote'])
def client(request, server):
    return reverb_tf.Client(server.address, timeout=60, in_process=request.param)


@pytest.fixture
def log(caplog):
    """The package's log lines from INFO up."""
    caplog.set_level(logging.INFO, logger='reverb_tf')
    # abseil, which TensorFlow imports, hides them unless it is told not to.
    before = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.INFO)
    yield lambda: [r.getMessage() for r in caplog.records if r.name == 'reverb_tf']
    absl.logging.set_verbosity(before)


def dataset(server, batch_size=8, table='t', **keywords):
    return reverb_tf.TrajectoryDataset.from_table_signature(
        server.address, table, batch_size=batch_size, **keywords
    )


def keyed(ds):
    return ds.map(lambda s: (s.data['x'], s.data['y'], s.info.key))


def fixed_batches(count, batch_size=4):
    """Batches with keys that need no server."""
    keys = tf.range(1, count * batch_size + 1, dtype=tf.int64)
    x = tf.ones([count * batch_size, 2])
    ds = tf.data.Dataset.from_tensor_slices((x, x[:, :1], tf.cast(keys, tf.uint64)))
    return ds.batch(batch_size)


def plain_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])


def frozen(updater, model=None, priority=None, **keywords):
    """A wrapped model that training doesn't change, so that its priorities are known."""
    wrapped = updater.wrap(model or plain_model(), priority)
    wrapped.compile(keras.optimizers.SGD(0.0), 'mse', **keywords)
    return wrapped


def stored(client, table='t'):
    """key -> (x, y, priority) of all items that were sampled so far, and of others."""
    items = {}
    while len(items) < ITEMS:
        for s in client.sample(table, 100, emit_timesteps=False):
            items[s.info.key] = (s.data['x'].reshape([2]), s.data['y'].item(), s.info.priority)
    return items


def expected_priorities(client, model):
    items = stored(client)
    predictions = model.predict(np.stack([x for x, _, _ in items.values()]), verbose=0)[:, 0]
    errors_of = np.abs(np.array([y for _, y, _ in items.values()]) - predictions)
    return dict(zip(items, errors_of))


def assert_priorities(client, want):
    """That the table has these, and the initial one for other keys."""
    for key, (_, _, priority) in stored(client).items():
        np.testing.assert_allclose(priority, want.get(key, INITIAL), rtol=1e-5)


# ---- Priorities ------------------------------------------------------------------


@pytest.mark.parametrize('steps_per_execution', [1, 5])
@pytest.mark.parametrize('jit_compile', [False, 'auto'])
def test_the_table_has_the_priorities_of_a_plain_model(
    server, client, steps_per_execution, jit_compile
):
    model = plain_model()
    updater = PriorityUpdater(client, 't')
    wrapped = frozen(
        updater, model, steps_per_execution=steps_per_execution, jit_compile=jit_compile
    )
    wrapped.fit(keyed(dataset(server)), steps_per_epoch=50, verbose=0, callbacks=[updater])
    assert_priorities(client, expected_priorities(client, model))
    assert (updater.not_found, updater.dropped) == (0, 0)
    assert updater.written > ITEMS


def test_only_items_that_were_trained_on_are_updated(server, client):
    model = plain_model()
    seen = []
    updater = PriorityUpdater(client, 't')
    wrapped = frozen(updater, model, run_eagerly=True)
    ds = keyed(dataset(server)).take(2).cache()
    wrapped.fit(ds, epochs=2, verbose=0, callbacks=[updater])
    for _, _, keys in ds:
        seen += keys.numpy().tolist()
    want = expected_priorities(client, model)
    assert_priorities(client, {key: want[key] for key in seen})


def test_the_last_execution_may_have_fewer_steps(server, client):
    updater = PriorityUpdater(client, 't')
    wrapped = frozen(updater, steps_per_execution=4)
    wrapped.fit(keyed(dataset(server)).take(6), verbose=0, callbacks=[updater])
    ran_out = updater.written
    assert 16 <= ran_out <= ITEMS * 2


def test_priorities_are_written_when_a_batch_ends(server, client):
    updater = PriorityUpdater(client, 't')
    written = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: written.append(updater.written)
    )
    ds = keyed(dataset(server, batch_size=1)).take(3)
    frozen(updater).fit(ds, verbose=0, callbacks=[updater, watch])
    assert written == [1, 2, 3]


def test_a_later_priority_of_an_item_counts(client, server):
    updater = PriorityUpdater(client, 't')
    key = next(client.sample('t', 1, emit_timesteps=False)).info.key
    updater.record(np.array([key], np.uint64), np.array([1.0]))
    updater.record(np.array([key], np.uint64), np.array([2.0]))
    updater.flush()
    assert stored(client)[key][2] == 2.0
    assert updater.written == 1


def test_a_priority_function_is_asked(server, client):
    model = plain_model()
    updater = PriorityUpdater(client, 't')
    wrapped = frozen(
        updater, model, priority=lambda y, y_pred: tf.square(y - y_pred)[:, 0] + tf.constant(1.0)
    )
    wrapped.fit(keyed(dataset(server)), steps_per_epoch=50, verbose=0, callbacks=[updater])
    want = expected_priorities(client, model)
    assert_priorities(client, {key: error**2 + 1 for key, error in want.items()})


def test_the_priority_of_a_row_is_the_mean_of_its_outputs(client):
    updater = PriorityUpdater(client, 't')
    keys = [key for key in stored(client)][:2]
    outputs = np.array([[[1, 2], [3, 6]], [[0, 0], [0, 4]]], np.float32)
    model = keras.Sequential([keras.Input([2, 2]), keras.layers.Identity(dtype='float32')])
    wrapped = updater.wrap(model)
    wrapped.compile(loss='mse', run_eagerly=True)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='The model does not have any trainable')
        wrapped.train_step(
            (tf.constant(outputs), tf.zeros([2, 2, 2]), tf.constant(keys, tf.uint64))
        )
    updater.flush()
    got = stored(client)
    assert [got[key][2] for key in keys] == [3.0, 1.0]


def test_sample_weights_weigh_the_loss_and_leave_the_priorities(server, client):
    model = plain_model()
    updater = PriorityUpdater(client, 't')
    wrapped = frozen(updater, model)
    ds = dataset(server).map(
        lambda s: (s.data['x'], s.data['y'], tf.zeros_like(s.info.priority), s.info.key)
    )
    history = wrapped.fit(ds, steps_per_epoch=50, verbose=0, callbacks=[updater])
    assert history.history['loss'] == [0.0]
    assert_priorities(client, expected_priorities(client, model))


def test_a_wrapped_model_trains_the_layers_of_the_model(server, client):
    model = plain_model()
    before = model.get_weights()[0]
    updater = PriorityUpdater(client, 't')
    wrapped = updater.wrap(model)
    wrapped.compile('sgd', 'mse')
    wrapped.fit(keyed(dataset(server)), steps_per_epoch=5, verbose=0, callbacks=[updater])
    assert not np.allclose(model.get_weights()[0], before)
    x = np.ones([3, 2], np.float32)
    np.testing.assert_array_equal(wrapped.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_wrapped_model_learns_as_the_model_does(server, client):
    batches = [s for s in dataset(server, seed=1).take(20)]

    def history(keys):
        model = plain_model()
        updater = PriorityUpdater(client, 't')
        trained = updater.wrap(model) if keys else model
        trained.compile(keras.optimizers.SGD(0.1), 'mse', metrics=['mae'])
        rows = [(s.data['x'], s.data['y'], s.info.key) for s in batches]
        data = tf.data.Dataset.from_generator(
            lambda: iter(rows),
            output_signature=tuple(tf.TensorSpec(t.shape, t.dtype) for t in rows[0]),
        )
        data = data if keys else data.map(lambda x, y, key: (x, y))
        return trained.fit(data, verbose=0, callbacks=[updater]).history

    with_keys, without = history(True), history(False)
    assert with_keys.keys() == without.keys()
    for name, values in with_keys.items():
        np.testing.assert_allclose(values, without[name], rtol=1e-6)


def test_validation_goes_without_keys(server, client):
    updater = PriorityUpdater(client, 't')
    x, y = np.ones([8, 2], np.float32), np.ones([8, 1], np.float32)
    wrapped = frozen(updater)
    history = wrapped.fit(
        keyed(dataset(server)).take(2),
        validation_data=(x, y),
        verbose=0,
        callbacks=[updater],
    )
    assert history.history['val_loss'] == [pytest.approx(wrapped.evaluate(x, y, verbose=0))]
    assert updater.written <= 16


class OwnStep(keras.Model):
    """A learner that reads samples, and gives each step's number as priority."""

    def __init__(self, updater):
        super().__init__()
        self.updater = updater
        self.dense = keras.layers.Dense(1)
        self.step = self.add_weight(
            shape=(), initializer='zeros', dtype='float32', trainable=False, name='step'
        )

    def call(self, x):
        return self.dense(x)

    def train_step(self, sample):
        with tf.GradientTape() as tape:
            td_errors = sample.data['y'] - self(sample.data['x'])
            loss = tf.reduce_mean(td_errors**2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.step.assign_add(1.0)
        self.updater.record(sample.info.key, tf.fill(tf.shape(sample.info.key), self.step.value))
        return {'loss': loss}


@pytest.mark.parametrize('steps_per_execution', [1, 3])
def test_a_train_step_of_its_own_records(server, client, steps_per_execution):
    updater = PriorityUpdater(client, 't')
    model = OwnStep(updater)
    model.compile('sgd', steps_per_execution=steps_per_execution)
    ds = dataset(server).take(9).cache()
    model.fit(ds, verbose=0, callbacks=[updater])
    want = {}
    for step, sample in enumerate(ds, start=1):
        want.update(dict.fromkeys(sample.info.key.numpy().tolist(), step))
    assert_priorities(client, want)


def test_a_loop_without_fit_flushes(client):
    updater = PriorityUpdater(client, 't')
    keys = list(stored(client))[:2]

    @tf.function
    def step(priorities):
        updater.record(tf.constant(keys, tf.int64), priorities)

    step(tf.constant([1.0, 2.0], tf.bfloat16))
    updater.flush()
    assert_priorities(client, dict(zip(keys, [1.0, 2.0])))


def test_items_that_are_gone_are_counted(client):
    updater = PriorityUpdater(client, 't')
    key = next(client.sample('t', 1, emit_timesteps=False)).info.key
    updater.record(np.array([key, 5], np.uint64), np.array([1.0, 1.0]))
    updater.flush()
    assert (updater.written, updater.not_found) == (1, 1)


def test_an_address_will_do(server):
    updater = PriorityUpdater(server.address, 't')
    frozen(updater).fit(keyed(dataset(server)).take(2), verbose=0, callbacks=[updater])
    assert updater.written > 0


def test_the_next_samples_follow_the_priorities(server, client):
    updater = PriorityUpdater(client, 'per')
    only = next(client.sample('per', 1, emit_timesteps=False)).info.key
    keys = tf.constant(list(stored(client, 'per')), tf.uint64)
    updater.record(keys, tf.cast(keys == tf.constant(only, tf.uint64), tf.float32))
    updater.flush()
    assert {s.info.key for s in client.sample('per', 50, emit_timesteps=False)} == {only}


def test_nothing_warns(server, client, log, recwarn, capfd, tmp_path):
    updater = PriorityUpdater(client, 't', log_dir=str(tmp_path), log_every=2)
    wrapped = frozen(updater, steps_per_execution=2)
    wrapped.fit(
        keyed(dataset(server)), steps_per_epoch=6, shuffle=False, verbose=0, callbacks=[updater]
    )
    assert [str(w.message) for w in recwarn] == []
    assert log() == []
    assert 'reverb' not in capfd.readouterr().err


# ---- Figures ---------------------------------------------------------------------


def figures_in(folder):
    """tag -> {step: value} of the event files under a folder."""
    figures = {}
    for path in folder.rglob('*tfevents*'):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name:
                    assert value.metadata.plugin_data.plugin_name == 'scalars'
                number = tf.make_ndarray(value.tensor).item()
                figures.setdefault(value.tag, {})[event.step] = number
    return figures


def test_figures_are_the_tables(server, client, tmp_path):
    updater = PriorityUpdater(client, 't', log_dir=str(tmp_path), log_every=5)
    seen = {}

    def look(batch, logs):
        seen[batch + 1] = client.server_info()['t']

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    # All samples are taken before the first step.
    ds = keyed(dataset(server)).take(10).cache()
    list(ds)
    frozen(updater).fit(ds, verbose=0, callbacks=[updater, watch])
    figures = figures_in(tmp_path)
    steps = [5, 10]
    for name, number in {
        'size': lambda info: info.current_size,
        'inserts': lambda info: info.insert_count,
        'samples': lambda info: info.sample_count,
        'samples_per_insert': lambda info: info.sample_count / info.insert_count,
        'bytes': lambda info: info.bytes_stored,
    }.items():
        want = {step: pytest.approx(number(seen[step])) for step in steps}
        assert figures[f'reverb/t/{name}'] == want
    assert figures['reverb/t/size'][5] == ITEMS
    assert figures['reverb/t/samples'][5] > 0


def test_figures_have_the_batchs_priorities(client, tmp_path):
    updater = PriorityUpdater(client, 't', log_dir=str(tmp_path), log_every=1)
    frozen(updater, priority=lambda y, y_pred: tf.constant([1.0, 2.0, 3.0, 10.0])).fit(
        fixed_batches(1), verbose=0, callbacks=[updater]
    )
    figures = figures_in(tmp_path)
    assert figures['reverb/t/mean_priority'] == {1: 4.0}
    assert figures['reverb/t/max_priority'] == {1: 10.0}


@pytest.mark.parametrize(
    'log_every, steps_per_execution, steps',
    [(1, 1, [1, 2, 3, 4, 5, 6]), (2, 1, [2, 4, 6]), (4, 3, [6]), (2, 3, [3, 6]), (7, 1, [])],
)
def test_figures_come_every_so_many_batches(
    client, tmp_path, log_every, steps_per_execution, steps
):
    updater = PriorityUpdater(client, 't', log_dir=str(tmp_path), log_every=log_every)
    wrapped = frozen(updater, steps_per_execution=steps_per_execution)
    wrapped.fit(fixed_batches(6), verbose=0, callbacks=[updater])
    assert list(figures_in(tmp_path).get('reverb/t/size', {})) == steps


def test_steps_go_on_over_epochs_and_fits(client, tmp_path):
    updater = PriorityUpdater(client, 't', log_dir=str(tmp_path), log_every=3)
    wrapped = frozen(updater)
    for _ in range(2):
        wrapped.fit(fixed_batches(3), epochs=2, verbose=0, callbacks=[updater])
    assert list(figures_in(tmp_path)['reverb/t/size']) == [3, 6, 9, 12]


def test_a_model_without_priorities_has_figures_of_the_table(client, tmp_path):
    updater = PriorityUpdater(client, 't', log_dir=str(tmp_path), log_every=1)
    model = plain_model()
    model.compile('sgd', 'mse', jit_compile=True)
    x = np.ones([4, 2], np.float32)
    model.fit(x, x[:, :1], verbose=0, callbacks=[updater])
    figures = figures_in(tmp_path)
    assert figures['reverb/t/size'] == {1: ITEMS}
    assert 'reverb/t/mean_priority' not in figures


def test_no_figures_without_a_directory(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    updater = PriorityUpdater(client, 't', log_every=1)
    frozen(updater).fit(fixed_batches(2), verbose=0, callbacks=[updater])
    assert list(tmp_path.iterdir()) == []


# ---- A lost server ---------------------------------------------------------------


def fit_through(server, on_batch, updater, **keywords):
    """Trains 20 batches, and calls `on_batch` after the fifth."""

    def end(batch, logs):
        if batch == 4:
            on_batch()

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=end)
    history = frozen(updater).fit(
        fixed_batches(20), shuffle=False, verbose=0, callbacks=[updater, watch], **keywords
    )
    assert len(history.epoch) == 1


@pytest.mark.parametrize('in_process', [True, False], ids=['in_process', 'remote'])
def test_a_server_that_stops_is_logged_once_and_fit_goes_on(
    server, in_process, log, recwarn, tmp_path
):
    client = reverb_tf.Client(server.address, in_process=in_process)
    updater = PriorityUpdater(client, 't', log_dir=str(tmp_path), log_every=1, timeout=0.2)
    fit_through(server, server.stop, updater)
    lines = log()
    assert len(lines) == 1
    assert server.address in lines[0] and "'t'" in lines[0]
    assert updater.not_found == 20  # of the first five batches
    assert updater.dropped == 60
    assert [str(w.message) for w in recwarn] == []
    figures = figures_in(tmp_path)
    assert list(figures['reverb/t/size']) == [1, 2, 3, 4, 5]
    assert len(figures['reverb/t/mean_priority']) == 20


@pytest.mark.parametrize('how', ['killed', 'frozen'])
def test_a_server_that_is_gone_or_silent_does_not_stop_fit(how, log):
    process, address = testing_util.start_server()
    end = process.kill if how == 'killed' else lambda: testing_util.freeze(process)
    try:
        updater = PriorityUpdater(address, 't', timeout=0.2)
        fit_through(None, end, updater)
        assert updater.dropped == 60
        assert len([line for line in log() if 'dropped' in line]) == 1
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def test_a_server_that_was_never_there_is_no_error(log):
    updater = PriorityUpdater('localhost:1', 't', timeout=0.1)
    frozen(updater).fit(fixed_batches(3), verbose=0, callbacks=[updater])
    assert updater.dropped == 12
    assert len([line for line in log() if 'dropped' in line]) == 1


def test_priorities_are_written_again_when_the_server_answers(log):
    process, address = testing_util.start_server()
    try:
        updater = PriorityUpdater(address, 't', timeout=0.05)
        keys, priorities = np.array([1], np.uint64), np.array([1.0])
        testing_util.freeze(process)
        updater.record(keys, priorities)
        updater.flush()
        assert updater.dropped == 1
        process.send_signal(signal.SIGCONT)

        def written():
            updater.record(keys, priorities)
            updater.flush()
            return updater.not_found == 1

        testing_util.eventually(written)
        assert [line for line in log() if 'answers again' in line] != []
    finally:
        process.kill()
        process.wait()


# ---- Misuse ----------------------------------------------------------------------


def test_an_unknown_table_is_refused_when_training_begins(client):
    updater = PriorityUpdater(client, 'x')
    with pytest.raises(errors.NotFoundError, match="no table 'x', only 't', 'per'"):
        frozen(updater).fit(fixed_batches(1), verbose=0, callbacks=[updater])


@pytest.mark.parametrize('table', ['t', 'per'])
def test_a_priority_that_is_no_number_is_refused(client, table):
    updater = PriorityUpdater(client, table)
    key = next(client.sample(table, 1, emit_timesteps=False)).info.key
    updater.record(np.array([key, 5], np.uint64), np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match='NaN for key 5.*diverged'):
        updater.flush()
    assert stored(client, table)[key][2] == INITIAL


def test_a_priority_that_the_table_refuses_ends_fit(client):
    updater = PriorityUpdater(client, 'per')
    key = next(client.sample('per', 1, emit_timesteps=False)).info.key
    updater.record(np.array([key], np.uint64), np.array([-1.0]))
    with pytest.raises(errors.InvalidArgumentError, match='-1'):
        frozen(updater).fit(fixed_batches(1), verbose=0, callbacks=[updater])


@pytest.mark.parametrize(
    'keywords, error, text',
    [
        ({'client': 3}, TypeError, 'server_address must be a str'),
        ({'client': 'no_port'}, ValueError, 'no_port'),
        ({'client': ['localhost:1', 'localhost:2']}, NotImplementedError, 'several'),
        ({'table': 3}, TypeError, 'table must be a str'),
        ({'table': ''}, ValueError, 'table must not be empty'),
        ({'log_dir': 3}, TypeError, 'log_dir must be a str'),
        ({'log_dir': ''}, ValueError, 'log_dir must not be empty'),
        ({'log_every': 0}, ValueError, 'log_every must be >= 1'),
        ({'log_every': 1.5}, TypeError, 'log_every must be an int'),
        ({'timeout': 0}, ValueError, 'timeout must be > 0'),
        ({'timeout': -1}, ValueError, 'timeout must be >= 0'),
        ({'timeout': 'x'}, TypeError, 'timeout must be a number'),
        ({'timeout': None}, TypeError, 'timeout must be a number'),
    ],
)
def test_bad_arguments(keywords, error, text):
    with pytest.raises(error, match=text):
        PriorityUpdater(**{'client': 'localhost:1', 'table': 't', **keywords})


@pytest.mark.parametrize(
    'keys, priorities, error, text',
    [
        (np.array([1], np.int32), np.array([1.0]), TypeError, 'keys must be uint64 or int64'),
        (np.array([1.0]), np.array([1.0]), TypeError, 'keys must be uint64 or int64'),
        (np.array([1], np.uint64), np.array([1]), TypeError, 'priorities must be floats'),
        (np.array([[1]], np.uint64), np.array([1.0]), ValueError, 'keys must be of rank 1'),
        (np.array([1], np.uint64), np.array([[1.0]]), ValueError, 'priorities must be of rank 1'),
        (np.array([1], np.uint64), np.array(1.0), ValueError, 'priorities must be of rank 1'),
        (np.array([1], np.uint64), np.array([1.0, 2.0]), ValueError, 'equally many'),
    ],
)
@pytest.mark.parametrize('graph', [False, True], ids=['eager', 'graph'])
def test_bad_records(keys, priorities, error, text, graph):
    updater = PriorityUpdater('localhost:1', 't')
    record = tf.function(updater.record) if graph else updater.record
    with pytest.raises(error, match=text):
        record(tf.constant(keys), tf.constant(priorities))


def test_lengths_that_a_graph_cannot_know_are_checked_when_it_runs():
    updater = PriorityUpdater('localhost:1', 't')
    specs = [tf.TensorSpec([None], tf.uint64), tf.TensorSpec([None], tf.float32)]
    record = tf.function(updater.record, input_signature=specs)
    with pytest.raises(tf.errors.InvalidArgumentError, match='equally many'):
        record(tf.constant([1, 2], tf.uint64), tf.constant([1.0]))


def test_a_model_that_xla_compiles_is_refused(client):

    class Compiled(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            updater.record(data[2], data[1][:, 0])
            return super().train_step(data[:2])

    updater = PriorityUpdater(client, 't')
    model = Compiled()
    model.compile('sgd', 'mse', jit_compile=True)
    with pytest.raises(ValueError, match='jit_compile=False'):
        model.fit(fixed_batches(1), verbose=0, callbacks=[updater])


def test_a_callback_that_is_not_in_use_says_so():
    updater = PriorityUpdater('localhost:1', 't')
    keys, priorities = tf.constant([1], tf.uint64), tf.constant([1.0])
    with pytest.raises(RuntimeError, match='callbacks='):
        for _ in range(20_000):
            updater.record(keys, priorities)


def test_only_models_are_wrapped():
    updater = PriorityUpdater('localhost:1', 't')
    with pytest.raises(TypeError, match='model must be a keras.Model, got function'):
        updater.wrap(plain_model)
    with pytest.raises(TypeError, match='priority must be callable, got int'):
        updater.wrap(plain_model(), 3)
    with pytest.raises(ValueError, match='record.keys, priorities. in it'):
        updater.wrap(OwnStep(updater))


@pytest.mark.parametrize(
    'batch',
    [
        lambda x, y, keys: (x, y),
        lambda x, y, keys: (x, y, tf.ones([4])),
        lambda x, y, keys: (x, keys),
        lambda x, y, keys: (x, y, y, y, keys),
        lambda x, y, keys: x,
    ],
)
def test_batches_without_keys_are_refused(client, batch):
    updater = PriorityUpdater(client, 't')
    with pytest.raises(TypeError, match='takes batches .x, y, keys.'):
        frozen(updater).fit(fixed_batches(1).map(batch), verbose=0, callbacks=[updater])


def test_several_outputs_need_a_priority_function(client):
    inputs = keras.Input([2])
    outputs = [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)]
    updater = PriorityUpdater(client, 't')
    wrapped = updater.wrap(keras.Model(inputs, outputs))
    wrapped.compile('sgd', ['mse', 'mse'])
    ds = fixed_batches(1).map(lambda x, y, keys: (x, (y, y), keys))
    with pytest.raises(TypeError, match='several outputs'):
        wrapped.fit(ds, verbose=0, callbacks=[updater])


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, 'backend', lambda: 'jax')
    with pytest.raises(RuntimeError, match="got 'jax'; set KERAS_BACKEND=tensorflow"):
        PriorityUpdater('localhost:1', 't')


# ---- The module ------------------------------------------------------------------


def test_the_package_imports_neither_keras_nor_tensorflow():
    process = testing_util.start_script(
        """
        import sys
        import reverb_tf
        print('keras' in sys.modules, 'tensorflow' in sys.modules)
        print(reverb_tf.keras.PriorityUpdater.__name__)
        """,
        TF_CPP_MIN_LOG_LEVEL='3',
    )
    out, err = process.communicate(timeout=120)
    assert out.split() == ['False', 'False', 'PriorityUpdater'], err


def test_the_example_of_the_docstring_runs():
    blocks = re.findall(r'```python\n(.*?)```', reverb_tf.keras.__doc__, re.DOTALL)
    assert len(blocks) == 2
    names = {}
    exec('\n'.join(blocks), names)
    info = names['client'].server_info()['replay']
    assert names['updater'].written > 0
    assert names['updater'].dropped == 0
    assert info.sample_count >= 20 * 16
    names['server'].stop()
