"""Serves a table, writes trajectories, trains on batches of them and updates priorities.

python examples/quickstart.py
"""

from absl import app
import numpy as np
import tensorflow as tf

import reverb_tf

TRAJECTORY = {
    'observation': tf.TensorSpec([3, 4], tf.float32),
    'reward': tf.TensorSpec([3], tf.float32),
}


def make_server() -> reverb_tf.Server:
    table = reverb_tf.Table(
        name='replay',
        sampler=reverb_tf.selectors.Prioritized(0.6),
        remover=reverb_tf.selectors.Fifo(),
        max_size=10_000,
        rate_limiter=reverb_tf.rate_limiters.MinSize(10),
        signature=TRAJECTORY,
    )
    return reverb_tf.Server([table])


def write_episode(client: reverb_tf.Client, rng: np.random.Generator, steps: int) -> None:
    """Appends every step once; each item refers to the last three of them."""
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for _ in range(steps):
            observation = rng.normal(size=4).astype(np.float32)
            writer.append({'observation': observation, 'reward': observation.sum()})
            if writer.episode_steps >= 3:
                last_three = {name: column[-3:] for name, column in writer.history.items()}
                writer.create_item('replay', 1.0, last_three)
        writer.end_episode()


def main(_) -> None:
    server = make_server()
    client = reverb_tf.Client(server.address)
    rng = np.random.default_rng(0)
    for _ in range(5):
        write_episode(client, rng, steps=20)
    print(client.server_info()['replay'].explain)

    # One element is a whole batch, filled straight from the server's memory.
    dataset = reverb_tf.TrajectoryDataset.from_table_signature(
        server.address, 'replay', batch_size=32
    )
    weights = tf.Variable(tf.zeros([4, 1]))
    optimizer = tf.keras.optimizers.SGD(0.1)
    for step, sample in enumerate(dataset.take(100)):
        with tf.GradientTape() as tape:
            predicted = tf.squeeze(sample.data['observation'] @ weights, -1)
            errors = tf.reduce_mean(tf.square(predicted - sample.data['reward']), axis=1)
            loss = tf.reduce_mean(errors)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        priorities = dict(zip(sample.info.key.numpy(), errors.numpy() + 1e-3, strict=True))
        client.mutate_priorities('replay', updates=priorities)
        if step % 20 == 0:
            print(f'step {step}: loss {loss:.4f}')
    print(f'final loss {loss:.6f}')
    server.stop()


if __name__ == '__main__':
    app.run(main)
