"""Training Keras models from datasets."""

import keras
import numpy as np
import tensorflow as tf

import reverb_tf

SIGNATURE = {'x': tf.TensorSpec([2], tf.float32), 'y': tf.TensorSpec([1], tf.float32)}


def make_server(queue=False):
    if queue:
        table = reverb_tf.Table.queue('t', 1000, signature=SIGNATURE)
    else:
        table = reverb_tf.Table(
            name='t',
            sampler=reverb_tf.selectors.Uniform(),
            remover=reverb_tf.selectors.Fifo(),
            max_size=1000,
            rate_limiter=reverb_tf.rate_limiters.MinSize(1),
            signature=SIGNATURE,
        )
    server = reverb_tf.Server([table])
    client = reverb_tf.Client(f'localhost:{server.port}')
    random = np.random.default_rng(0)
    with client.trajectory_writer(1) as writer:
        for _ in range(64):
            x = random.normal(size=2).astype(np.float32)
            y = (x @ np.float32([[2], [-1]]) + 0.5).astype(np.float32)
            writer.append({'x': x, 'y': y})
            item = {'x': writer.history['x'][-1], 'y': writer.history['y'][-1]}
            writer.create_item('t', 1.0, item)
        writer.flush()
    return server


def make_dataset(server, **keywords):
    ds = reverb_tf.TrajectoryDataset.from_table_signature(
        f'localhost:{server.port}', 't', **keywords
    )
    return ds.map(lambda s: (s.data['x'], s.data['y']))


def make_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss='mse')
    return model


def test_fit_learns_from_fused_batches():
    server = make_server()
    model = make_model()
    history = model.fit(
        make_dataset(server, batch_size=16), steps_per_epoch=50, epochs=2, verbose=0
    )
    assert history.history['loss'][-1] < 0.01
    server.stop()


def test_fit_learns_from_batches_of_tf_data():
    server = make_server()
    model = make_model()
    history = model.fit(make_dataset(server).batch(16), steps_per_epoch=50, epochs=2, verbose=0)
    assert history.history['loss'][-1] < 0.01
    server.stop()


def test_max_samples_makes_epochs_of_known_length():
    server = make_server()
    model = make_model()
    ds = make_dataset(server, batch_size=16, max_samples=40)
    steps = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda i, logs: steps.append(i))
    model.fit(ds, epochs=2, verbose=0, callbacks=[callback])
    assert steps == [0, 1, 2, 0, 1, 2]
    server.stop()


def test_an_epoch_ends_with_the_data():
    server = make_server(queue=True)
    model = make_model()
    ds = make_dataset(server, batch_size=16, rate_limiter_timeout_ms=200)
    steps = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda i, logs: steps.append(i))
    model.fit(ds, epochs=1, verbose=0, callbacks=[callback])
    assert steps == [0, 1, 2, 3]
    server.stop()
