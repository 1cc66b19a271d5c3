"""Stores each frame of CartPole's picture once, and trains on stacks of four.

    python examples/frame_stacking.py

Every step is one grey 84x84 frame and every item refers to the newest four, so a frame is in four
items and in memory once. A convolutional network learns the pole's angular velocity from the
stacks, which no single frame shows. The exit code is 0 if the table held single frames and the
network explains more than `--min_explained` of the velocity's variance.
"""

import sys

from absl import app, flags
import gymnasium
import numpy as np
import tensorflow as tf

import reverb_tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('frames', 4_000, 'Frames to play and store.')
flags.DEFINE_integer('batches', 600, 'Batches of 32 stacks to train on.')
flags.DEFINE_float('min_explained', 0.5, 'Share of the variance that is to be explained.')
flags.DEFINE_integer('seed', 0, 'Seed of the games and of the network.')

STACK = 4
SIZE = 84
ANGULAR_VELOCITY = 3
SIGNATURE = {
    'frame': tf.TensorSpec([STACK, SIZE, SIZE], tf.uint8),
    'velocity': tf.TensorSpec([], tf.float32),
}


def make_server(max_size: int) -> reverb_tf.Server:
    table = reverb_tf.Table(
        name='stacks',
        sampler=reverb_tf.selectors.Uniform(),
        remover=reverb_tf.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=reverb_tf.rate_limiters.MinSize(1),
        signature=SIGNATURE,
    )
    return reverb_tf.Server([table])


def grey_frame(picture: np.ndarray) -> np.ndarray:
    """The middle 336 x 336 pixels of a [400, 600, 3] picture as uint8 [84, 84]."""
    grey = picture[32:368, 132:468].mean(axis=2)
    return grey.reshape(SIZE, 4, SIZE, 4).mean(axis=(1, 3)).astype(np.uint8)


def play(client: reverb_tf.Client, frames: int, seed: int) -> int:
    """Writes `frames` frames of random games; returns the number of items."""
    env = gymnasium.make('CartPole-v1', render_mode='rgb_array')
    env.action_space.seed(seed)
    items = 0
    with client.trajectory_writer(num_keep_alive_refs=STACK) as writer:
        state, _ = env.reset(seed=seed)
        for _ in range(frames):
            velocity = np.float32(state[ANGULAR_VELOCITY])
            writer.append({'frame': grey_frame(env.render()), 'velocity': velocity})
            if writer.episode_steps >= STACK:
                stack = {
                    'frame': writer.history['frame'][-STACK:],
                    'velocity': writer.history['velocity'][-1],
                }
                writer.create_item('stacks', 1.0, stack)
                items += 1
            state, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                writer.end_episode()
                state, _ = env.reset()
        writer.end_episode()
    env.close()
    return items


def make_network() -> tf.keras.Model:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input([STACK, SIZE, SIZE]),
            layers.Permute([2, 3, 1]),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 8, strides=4, activation='relu'),
            layers.Conv2D(32, 4, strides=2, activation='relu'),
            layers.Flatten(),
            layers.Dense(64, activation='relu'),
            layers.Dense(1),
        ]
    )
    model.compile(tf.keras.optimizers.Adam(1e-3), 'mse')
    return model


def explained_variance(model: tf.keras.Model, dataset: tf.data.Dataset) -> float:
    stacks, velocities = next(iter(dataset))
    errors = velocities - model(stacks)[:, 0]
    return float(1 - tf.math.reduce_variance(errors) / tf.math.reduce_variance(velocities))


def main(_) -> int:
    tf.keras.utils.set_random_seed(FLAGS.seed)
    server = make_server(FLAGS.frames)
    client = reverb_tf.Client(server.address)
    items = play(client, FLAGS.frames, FLAGS.seed)

    held = client.server_info()['stacks'].bytes_uncompressed
    single = FLAGS.frames * SIZE * SIZE
    stacked = items * STACK * SIZE * SIZE
    print(
        f'{items} stacks of {STACK} frames: the table holds {held / 1e6:.1f} MB; single frames '
        f'are {single / 1e6:.1f} MB, stacks would be {stacked / 1e6:.1f} MB'
    )

    def batches(size, seed):
        dataset = reverb_tf.TrajectoryDataset.from_table_signature(
            server.address, 'stacks', batch_size=size, seed=seed
        )
        return dataset.map(lambda sample: (sample.data['frame'], sample.data['velocity']))

    model = make_network()
    model.fit(batches(32, 1), steps_per_epoch=FLAGS.batches, epochs=1, verbose=2)
    explained = explained_variance(model, batches(512, 2))
    print(f'explained variance {explained:.3f}')
    server.stop()
    return 0 if held <= 1.01 * single and explained > FLAGS.min_explained else 1


if __name__ == '__main__':
    app.run(lambda argv: sys.exit(main(argv)))
