"""PriorityUpdater: a Keras callback that writes priorities back and logs a table's figures.

With a plain model, which `wrap` gives a `fit` for batches with keys:

```python
import tensorflow as tf

import reverb_tf
from reverb_tf.keras import PriorityUpdater

table = reverb_tf.Table(
    'replay',
    sampler=reverb_tf.selectors.Prioritized(0.8),
    remover=reverb_tf.selectors.Fifo(),
    max_size=1000,
    rate_limiter=reverb_tf.rate_limiters.MinSize(1),
    signature={'x': tf.TensorSpec([4], tf.float32), 'y': tf.TensorSpec([1], tf.float32)},
)
server = reverb_tf.Server([table])
client = reverb_tf.Client(server.address)
for x in tf.random.normal([64, 4]):
    client.insert({'x': x, 'y': x[:1]}, {'replay': 1.0})

model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(1)])
updater = PriorityUpdater(client, 'replay')
trained = updater.wrap(model)  # the same layers and weights
trained.compile('adam', 'mse')
dataset = reverb_tf.TrajectoryDataset.from_table_signature(
    server.address, 'replay', batch_size=16
)
trained.fit(
    dataset.map(lambda s: (s.data['x'], s.data['y'], s.info.key)),
    steps_per_epoch=10,
    callbacks=[updater],
)
```

A model with a `train_step` of its own calls `record` in it, and needs no `wrap`:

```python
class Learner(tf.keras.Model):

    def train_step(self, sample):
        with tf.GradientTape() as tape:
            errors = sample.data['y'] - self(sample.data['x'], training=True)
            loss = tf.reduce_mean(errors**2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        updater.record(sample.info.key, tf.abs(errors[:, 0]))
        return {'loss': loss}


learner = Learner(model.inputs, model.outputs)
learner.compile('adam', jit_compile=False)
learner.fit(dataset, steps_per_epoch=10, callbacks=[updater])
```
"""

import logging
import math
import threading
import time
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from reverb_tf import arguments, errors, logs, timeouts
from reverb_tf import client as client_lib

__all__ = ['PriorityUpdater']

# A lost server is left alone for so many timeouts: training loses a tenth of its time at most.
_REST = 10
# Recorded batches that nobody wrote: the callback isn't in use.
_MAX_RECORDED = 10_000


class PriorityUpdater(keras.callbacks.Callback):
    """Writes the priorities of each training batch to its table, and logs the table's figures.

    The model records priorities within its graph, by `wrap` or `record`. They are written
    when Keras ends the batch (with `steps_per_execution=n`: the n batches), a later priority
    of an item over an earlier one. Loops without `fit` call `flush`.

    A server that is lost or slow holds up training for `timeout` seconds at a time and for a
    tenth of the time on the whole. That is logged once; meanwhile priorities are dropped, and
    counted in `dropped`. Priorities that the table refuses, such as negative ones, raise.

    Figures are scalars of TensorBoard's, named 'reverb/<table>/...': size, inserts, samples,
    samples_per_insert, bytes, and, of the newest batch, mean_priority and max_priority. Their
    step is the number of batches that this object has seen.
    """

    def __init__(self, client, table, *, log_dir=None, log_every=100, timeout=1.0):
        """Makes the callback; nothing is connected before training begins.

        Args:
          client: a `Client`, or the address of one's server.
          table: name of the table that the batches come from.
          log_dir: directory of TensorBoard's event files; None for no figures.
          log_every: batches from figures to figures.
          timeout: longest wait for the server in seconds, > 0.

        Raises:
          TypeError: an argument of the wrong type.
          ValueError: an argument out of its range, or a malformed address.
          RuntimeError: Keras runs on another backend than TensorFlow.
        """
        super().__init__()
        if keras.backend.backend() != 'tensorflow':
            raise RuntimeError(
                "PriorityUpdater needs Keras's TensorFlow backend, got "
                f"'{keras.backend.backend()}'; set KERAS_BACKEND=tensorflow before importing keras"
            )
        self._timeout = timeouts.check(timeout, 'timeout')
        if self._timeout == 0:
            raise ValueError('timeout must be > 0, got 0: every write waits for an answer')
        if not isinstance(client, client_lib.Client):
            client = client_lib.Client(client)
        self._client = client
        self._table = arguments.text(table, 'table')
        self._log_dir = None if log_dir is None else arguments.text(log_dir, 'log_dir')
        self._log_every = arguments.integer(log_every, 'log_every', 1)
        self._lock = threading.Lock()
        self._recorded = []
        self._newest = None  # priorities of the newest batch that was flushed
        self._writer = None
        self._steps = 0
        self._first = 0  # number of the batch that began
        self._is_lost = False
        self._retry_at = -math.inf
        self._written = self._not_found = self._dropped = 0

    @property
    def written(self):
        """Number of priorities that the table took; 0 of a server that doesn't tell."""
        return self._written

    @property
    def not_found(self):
        """Number of priorities whose items were gone; 0 of a server that doesn't tell."""
        return self._not_found

    @property
    def dropped(self):
        """Number of priorities that were not written since the server was lost."""
        return self._dropped

    def record(self, keys, priorities):
        """Notes a batch's priorities, to be written at the end of the batch.

        Works in eager code and in a `tf.function`, but not in one with `jit_compile=True`:
        XLA can't call back.

        Args:
          keys: uint64 or int64 tensor [B], such as `sample.info.key`.
          priorities: tensor of floats [B].

        Raises:
          TypeError: keys or priorities of another dtype.
          ValueError: other ranks or unequal lengths, or a model compiled with XLA.
        """
        keys = _vector(keys, 'keys', (tf.uint64, tf.int64), 'uint64 or int64')
        priorities = _vector(priorities, 'priorities', None, 'floats')
        if not keys.shape.is_compatible_with(priorities.shape):
            raise ValueError(_unequal(keys.shape, priorities.shape))
        priorities = tf.cast(priorities, tf.float64)
        if tf.executing_eagerly():
            self._put(keys.numpy(), priorities.numpy())
            return
        if self.model is not None and self.model.jit_compile:
            raise ValueError(
                'record() needs a model compiled without XLA, got jit_compile=True (which '
                "'auto' chooses on a GPU); call model.compile(..., jit_compile=False)"
            )
        tf.numpy_function(self._put, [keys, priorities], [])

    def wrap(self, model, priority=None):
        """A model of the same layers and weights whose `fit` also records priorities.

        Its `fit` takes batches (x, y, keys) or (x, y, sample_weight, keys); `evaluate`,
        `predict` and `validation_data` go without keys. Compile the wrapped model; save the
        original one.

        Args:
          model: a `keras.Model` without a `train_step` of its own.
          priority: fn(y, y_pred) -> tensor [B]; None for |y - y_pred|, the mean of each row.

        Returns:
          The `keras.Model`.

        Raises:
          TypeError: not a model, or priority isn't callable.
          ValueError: the model has a `train_step` of its own.
        """
        if not isinstance(model, keras.Model):
            raise TypeError(f'model must be a keras.Model, got {type(model).__name__}')
        if type(model).train_step is not keras.Model.train_step:
            raise ValueError(
                f"model must have Keras's own train_step, got the one of {type(model).__name__}; "
                'call record(keys, priorities) in it instead of wrapping the model'
            )
        if priority is not None and not callable(priority):
            raise TypeError(f'priority must be callable, got {type(priority).__name__}')
        return _KeyedModel(model, self.record, priority or _absolute_error)

    def flush(self):
        """Writes what was recorded; `fit` does so at the end of each batch.

        Raises:
          ValueError: a priority that is NaN, or that the table refuses: none was written.
          NotFoundError: an unknown table.
        """
        with self._lock:
            batches, self._recorded = self._recorded, []
        if not batches:
            return
        updates = {}
        for keys, priorities in batches:
            updates.update(zip(keys.tolist(), priorities.tolist(), strict=True))
        self._newest = batches[-1][1]
        self._check_numbers(updates)
        counts = self._ask(
            lambda wait: self._client.mutate_priorities(self._table, updates, timeout=wait)
        )
        if counts is None:
            self._dropped += len(updates)
        else:
            self._written += max(counts.updated, 0)
            self._not_found += max(counts.not_found, 0)

    # ---- Keras's hooks ---------------------------------------------------------------

    def on_train_begin(self, logs=None):
        self._table_info()
        if self._log_dir is not None and self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)

    def on_train_batch_begin(self, batch, logs=None):
        self._first = batch

    def on_train_batch_end(self, batch, logs=None):
        self.flush()
        before = self._steps
        self._steps += batch - self._first + 1
        if self._writer is not None and self._steps // self._log_every > before // self._log_every:
            self._write_figures()

    def on_train_end(self, logs=None):
        self.flush()
        if self._writer is not None:
            self._writer.flush()

    # ---- The server ------------------------------------------------------------------

    def _put(self, keys, priorities):
        if keys.shape != priorities.shape:
            raise ValueError(_unequal(keys.shape, priorities.shape))
        with self._lock:
            if len(self._recorded) >= _MAX_RECORDED:
                raise RuntimeError(
                    f'record() was called {_MAX_RECORDED} times and nothing was written; pass '
                    'this callback to fit(callbacks=[...]), or call flush() after each step'
                )
            self._recorded.append((keys, priorities))

    def _check_numbers(self, updates):
        key = next((k for k, priority in updates.items() if math.isnan(priority)), None)
        if key is not None:
            raise ValueError(
                f'priorities for table {self._table!r} must be numbers, got NaN for key {key}; '
                'the model has diverged, or its priorities need a bound before record()'
            )

    def _ask(self, call):
        """The result of `call(timeout)`, or None while the server is lost."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            result = call(self._timeout)
        except (errors.UnavailableError, errors.DeadlineExceededError) as e:
            self._retry_at = time.monotonic() + _REST * self._timeout
            if not self._is_lost:
                logs.log(
                    logging.WARNING,
                    f'priorities for table {self._table!r} are dropped until '
                    f'{self._client.server_address} answers: {e}',
                )
            self._is_lost = True
            return None
        if self._is_lost:
            self._is_lost = False
            logs.log(
                logging.INFO,
                f'{self._client.server_address} answers again; {self._dropped} priorities for '
                f'table {self._table!r} were dropped',
            )
        return result

    def _table_info(self):
        """The table's `TableInfo`, or None while the server is lost."""
        infos = self._ask(self._client.server_info)
        if infos is None or self._table in infos:
            return infos and infos[self._table]
        names = ', '.join(map(repr, infos))
        raise errors.NotFoundError(
            f'the server at {self._client.server_address} has no table {self._table!r}, '
            f'only {names}'
        )

    # ---- Figures ---------------------------------------------------------------------

    def _write_figures(self):
        figures = {}
        info = self._table_info()
        if info is not None:
            figures['size'] = info.current_size
            figures['inserts'] = info.insert_count
            figures['samples'] = info.sample_count
            if info.insert_count:
                figures['samples_per_insert'] = info.sample_count / info.insert_count
            figures['bytes'] = info.bytes_stored
        if self._newest is not None and self._newest.size:
            figures['mean_priority'] = np.mean(self._newest)
            figures['max_priority'] = np.max(self._newest)
        # Whatever another callback has set for its own.
        with self._writer.as_default(), tf.summary.record_if(True):
            for name, value in figures.items():
                tf.summary.write(
                    f'reverb/{self._table}/{name}',
                    tf.constant(value, tf.float32),
                    step=self._steps,
                    metadata=_scalar_metadata(),
                )


# ---- Arguments -------------------------------------------------------------------


def _vector(value, name, dtypes, expected):
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in dtypes if dtypes else not tensor.dtype.is_floating:
        raise TypeError(f'{name} must be {expected}, got {tensor.dtype.name}')
    if tensor.shape.rank not in (None, 1):
        raise ValueError(
            f'{name} must be of rank 1, one for each sample of the batch, got shape '
            f'{tensor.shape}; give tf.squeeze or tf.reduce_mean of it'
        )
    return tensor


def _unequal(keys, priorities):
    return f'keys and priorities must be equally many, got shapes {keys} and {priorities}'


def _scalar_metadata():
    # tf.summary.scalar would need the tensorboard package, which the files don't.
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = 'scalars'
    metadata.data_class = 1  # DATA_CLASS_SCALAR
    return metadata


# ---- The wrapped model -----------------------------------------------------------


class _Keyed(NamedTuple):
    """What stands for x between the hooks of `_KeyedModel`."""

    x: Any
    keys: Any


class _KeyedModel(keras.Model):
    """See `PriorityUpdater.wrap`."""

    def __init__(self, model, record, priority):
        super().__init__(name=f'{model.name}_with_priorities')
        self.supports_jit = False  # so jit_compile='auto' chooses False
        self._wrapped = model
        self._record = record
        self._priority = priority

    def call(self, inputs, training=None):
        return self._wrapped(inputs.x if isinstance(inputs, _Keyed) else inputs)

    def train_step(self, data):
        *batch, keys = data if isinstance(data, tuple) else (None,)
        if len(batch) not in (2, 3) or getattr(keys, 'dtype', None) not in (tf.uint64, tf.int64):
            got = tf.nest.map_structure(lambda t: getattr(t, 'dtype', t), data)
            raise TypeError(
                'fit of a wrapped model takes batches (x, y, keys) or (x, y, sample_weight, '
                f"keys) with the samples' info.key last, got {got}"
            )
        return super().train_step((_Keyed(batch[0], keys), *batch[1:]))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if isinstance(x, _Keyed):
            self._record(x.keys, self._priority(y, y_pred))
            x = x.x
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def _absolute_error(y, y_pred):
    if not tf.is_tensor(y_pred) or not tf.is_tensor(y):
        raise TypeError(
            'a model of several outputs has no priority of its own; give wrap(model, '
            'priority=fn(y, y_pred) -> [B])'
        )
    errors_of = tf.abs(tf.reshape(tf.cast(y, y_pred.dtype), tf.shape(y_pred)) - y_pred)
    return tf.reduce_mean(tf.reshape(errors_of, [tf.shape(y_pred)[0], -1]), axis=1)
