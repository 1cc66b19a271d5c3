"""DQN on CartPole: actor processes write to the learner's server, which replays by priority.

    python examples/dqn_cartpole.py --seed=0

The learner samples fused batches in process, corrects for the priorities with importance
weights and sends TD errors back as new priorities. Actors play with the newest weights, which
they read from a table of one item. The exit code is 0 if 20 greedy episodes reached a mean
return of 450 in time.
"""

import os
import pathlib
import subprocess
import sys
import time

from absl import app, flags
import matplotlib
import numpy as np
import tensorflow as tf
import tqdm

import reverb_tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cartpole  # noqa: E402
import cartpole_actor  # noqa: E402
from cartpole_actor import GAMMA, N_STEP  # noqa: E402

matplotlib.use('Agg')
from matplotlib import pyplot  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_integer('seed', 0, 'Seed of networks, games and sampling.')
flags.DEFINE_float('max_minutes', 15, 'Time to reach the goal in.')
flags.DEFINE_string('plot', 'dqn_cartpole.png', 'File of the learning curve; empty for none.')

GOAL = 450
NUM_ACTORS = 2
BATCH_SIZE = 64
SAMPLES_PER_INSERT = 16
LEARNING_RATE = 1e-3
# Share of the difference by which the target network moves in a step.
TARGET_RATE = 0.01
PRIORITY_EXPONENT = 0.6
IMPORTANCE_EXPONENT = 0.6
PUBLISH_EVERY = 50
EVALUATE_EVERY = 500


def make_server() -> reverb_tf.Server:
    length = N_STEP + 1
    replay = reverb_tf.Table(
        name='replay',
        sampler=reverb_tf.selectors.Prioritized(PRIORITY_EXPONENT),
        remover=reverb_tf.selectors.Fifo(),
        max_size=50_000,
        rate_limiter=reverb_tf.rate_limiters.SampleToInsertRatio(
            samples_per_insert=SAMPLES_PER_INSERT,
            min_size_to_sample=1_000,
            error_buffer=100 * SAMPLES_PER_INSERT,
        ),
        signature={
            'observation': tf.TensorSpec([length, 4], tf.float32),
            'action': tf.TensorSpec([length], tf.int32),
            'reward': tf.TensorSpec([length], tf.float32),
            'discount': tf.TensorSpec([length], tf.float32),
        },
    )
    weights = reverb_tf.Table(
        name='weights',
        sampler=reverb_tf.selectors.Fifo(),
        remover=reverb_tf.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb_tf.rate_limiters.MinSize(1),
    )
    return reverb_tf.Server([replay, weights])


def start_actors(address: str) -> list[subprocess.Popen]:
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(p for p in sys.path if p)}
    return [
        subprocess.Popen(
            [
                sys.executable,
                cartpole_actor.__file__,
                f'--server={address}',
                f'--actor={i}',
                f'--seed={FLAGS.seed}',
                f'--epsilon={0.02 * 5**i}',
            ],
            env=environment,
        )
        for i in range(NUM_ACTORS)
    ]


def make_network() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input([4]),
            layers.Dense(128, activation='relu'),
            layers.Dense(128, activation='relu'),
            layers.Dense(2),
        ]
    )


class Learner:
    """Double DQN with n-step returns and a slowly moving target network."""

    def __init__(self):
        self.network = make_network()
        self._target = make_network()
        self._target.set_weights(self.network.get_weights())
        self._optimizer = tf.keras.optimizers.Adam(LEARNING_RATE)
        self._optimizer.build(self.network.trainable_variables)

    @tf.function(jit_compile=False)
    def train(self, sample):
        """One step on a batch; returns the TD errors' magnitudes."""
        data = sample.data
        returns, discounts = tf.zeros_like(data['reward'][:, 0]), 1.0
        for i in range(N_STEP):
            returns += discounts * data['reward'][:, i]
            discounts *= GAMMA * data['discount'][:, i]
        last = data['observation'][:, -1]
        best = tf.argmax(self.network(last), axis=1)
        bootstrap = tf.gather(self._target(last), best, batch_dims=1)
        targets = returns + discounts * bootstrap
        # Undoes, in part, that high priorities are replayed more often.
        expected = tf.cast(sample.info.table_size, tf.float64) * sample.info.probability
        weights = tf.cast(expected**-IMPORTANCE_EXPONENT, tf.float32)
        weights /= tf.reduce_max(weights)
        with tf.GradientTape() as tape:
            values = self.network(data['observation'][:, 0])
            errors = tf.gather(values, data['action'][:, 0], batch_dims=1) - targets
            size = tf.abs(errors)
            huber = tf.where(size < 1, 0.5 * errors**2, size - 0.5)
            loss = tf.reduce_mean(weights * huber)
        variables = self.network.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 10.0)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        for slow, fast in zip(self._target.trainable_variables, variables, strict=True):
            slow.assign_add(TARGET_RATE * (fast - slow))
        return size


def publish(client: reverb_tf.Client, weights: list[np.ndarray]) -> None:
    client.insert(weights, {'weights': 1.0})


def learn(server: reverb_tf.Server, deadline: float) -> list[tuple[int, float]]:
    """Trains until the goal or the deadline; returns (step, mean return) pairs."""
    learner = Learner()
    client = reverb_tf.Client(server.address)
    publish(client, learner.network.get_weights())
    dataset = reverb_tf.TrajectoryDataset.from_table_signature(
        server.address, 'replay', batch_size=BATCH_SIZE, drop_remainder=True
    )
    curve = []
    with tqdm.tqdm(dataset, unit=' steps', mininterval=1) as progress:
        for step, sample in enumerate(progress, start=1):
            priorities = np.minimum(learner.train(sample).numpy(), 10.0) + 1e-2
            client.mutate_priorities(
                'replay', updates=zip(sample.info.key.numpy(), priorities, strict=True)
            )
            if step % PUBLISH_EVERY == 0:
                publish(client, learner.network.get_weights())
            if step % EVALUATE_EVERY == 0:
                score = cartpole.mean_return(learner.network.get_weights(), seed=10_000 + step)
                curve.append((step, score))
                progress.set_postfix(mean_return=f'{score:.1f}')
                if score >= GOAL or time.monotonic() > deadline:
                    break
    client.close()
    return curve


def plot(curve: list[tuple[int, float]], path: str) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(*zip(*curve, strict=True), marker='o')
    axes.axhline(GOAL, color='grey', linestyle='--', label=f'goal: {GOAL}')
    axes.set(
        xlabel=f'learner steps (batches of {BATCH_SIZE})',
        ylabel='mean return of 20 greedy episodes',
        title=f'DQN on CartPole-v1, seed {FLAGS.seed}',
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(_) -> int:
    tf.keras.utils.set_random_seed(FLAGS.seed)
    deadline = time.monotonic() + 60 * FLAGS.max_minutes
    server = make_server()
    actors = start_actors(server.address)
    try:
        curve = learn(server, deadline)
    finally:
        for actor in actors:
            actor.terminate()
            actor.wait()
        server.stop()
    if FLAGS.plot and curve:
        plot(curve, FLAGS.plot)
        print(f'learning curve: {FLAGS.plot}')
    reached = bool(curve) and curve[-1][1] >= GOAL
    print(
        f'mean return {curve[-1][1] if curve else 0:.1f} after {curve[-1][0] if curve else 0} steps'
    )
    return 0 if reached else 1


if __name__ == '__main__':
    app.run(main)
