"""PPO on CartPole: two actor processes feed a queue, whose bound keeps them close to the policy.

    python examples/queue_ppo.py --seed=0

Proximal policy optimisation (Schulman et al., 2017) with generalised advantages. Each item is a
piece of a game and is delivered once; actors wait while the queue is full, so what the learner
reads is a few updates old at most. The exit code is 0 if 20 greedy episodes reached a mean return
of `--goal` in time.
"""

import os
import pathlib
import subprocess
import sys
import time

from absl import app, flags
import tensorflow as tf
import tqdm

import reverb_tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cartpole  # noqa: E402
import queue_ppo_actor  # noqa: E402
from queue_ppo_actor import ROLLOUT  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_integer('seed', 0, 'Seed of networks and games.')
flags.DEFINE_float('goal', 450, 'Mean return of 20 greedy episodes (at most 500) to reach.')
flags.DEFINE_float('max_minutes', 10, 'Time to reach the goal in.')

NUM_ACTORS = 2
BATCH_SIZE = 32  # rollouts
GAMMA = 0.99
LAMBDA = 0.95
CLIP = 0.2
EPOCHS = 6
MINIBATCHES = 4
LEARNING_RATE = 1e-3
ENTROPY = 0.005
EVALUATE_EVERY = 10


def make_server() -> reverb_tf.Server:
    rollouts = reverb_tf.Table.queue(
        'rollouts',
        max_size=BATCH_SIZE,
        signature={
            'observation': tf.TensorSpec([ROLLOUT, 4], tf.float32),
            'action': tf.TensorSpec([ROLLOUT], tf.int32),
            'log_probability': tf.TensorSpec([ROLLOUT], tf.float32),
            'reward': tf.TensorSpec([ROLLOUT], tf.float32),
            'next_observation': tf.TensorSpec([ROLLOUT, 4], tf.float32),
            'terminated': tf.TensorSpec([ROLLOUT], tf.bool),
            'ended': tf.TensorSpec([ROLLOUT], tf.bool),
        },
    )
    weights = reverb_tf.Table(
        name='weights',
        sampler=reverb_tf.selectors.Fifo(),
        remover=reverb_tf.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb_tf.rate_limiters.MinSize(1),
    )
    return reverb_tf.Server([rollouts, weights])


def start_actors(address: str) -> list[subprocess.Popen]:
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(p for p in sys.path if p)}
    command = [
        sys.executable,
        queue_ppo_actor.__file__,
        f'--server={address}',
        f'--seed={FLAGS.seed}',
    ]
    return [
        subprocess.Popen([*command, f'--actor={i}'], env=environment) for i in range(NUM_ACTORS)
    ]


def make_network(outputs: int) -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input([4]),
            layers.Dense(64, activation='relu'),
            layers.Dense(64, activation='relu'),
            layers.Dense(outputs),
        ]
    )


class Learner:
    def __init__(self):
        self.policy = make_network(outputs=2)
        self._value = make_network(outputs=1)
        self._variables = self.policy.trainable_variables + self._value.trainable_variables
        self._optimizer = tf.keras.optimizers.Adam(LEARNING_RATE, epsilon=1e-5)
        self._optimizer.build(self._variables)

    def _values(self, observations):
        """[B, T, 4] -> [B, T]."""
        flat = self._value(tf.reshape(observations, [-1, 4]))
        return tf.reshape(flat, tf.shape(observations)[:2])

    def _advantages(self, data, values):
        """Generalised advantage estimates (Schulman et al., 2016), [B, T]."""
        going_on = 1.0 - tf.cast(data['terminated'], tf.float32)
        same_game = 1.0 - tf.cast(data['ended'], tf.float32)
        following = self._values(data['next_observation'])
        errors = data['reward'] + GAMMA * going_on * following - values
        advantages, ahead = [], tf.zeros_like(errors[:, 0])
        for t in reversed(range(ROLLOUT)):
            ahead = errors[:, t] + GAMMA * LAMBDA * same_game[:, t] * ahead
            advantages.append(ahead)
        return tf.stack(advantages[::-1], axis=1)

    @tf.function(jit_compile=False)
    def train(self, data):
        """A few epochs over a batch of rollouts."""
        values = self._values(data['observation'])
        advantages = self._advantages(data, values)
        steps = {
            'observation': tf.reshape(data['observation'], [-1, 4]),
            'action': tf.reshape(data['action'], [-1]),
            'log_probability': tf.reshape(data['log_probability'], [-1]),
            'advantage': tf.reshape(advantages, [-1]),
            'return': tf.reshape(advantages + values, [-1]),
        }
        for _ in tf.range(EPOCHS):
            order = tf.random.shuffle(tf.range(BATCH_SIZE * ROLLOUT))
            for part in tf.split(order, MINIBATCHES):
                self._update({name: tf.gather(x, part) for name, x in steps.items()})

    def _update(self, steps):
        advantage = steps['advantage'] - tf.reduce_mean(steps['advantage'])
        advantage /= tf.math.reduce_std(advantage) + 1e-8
        with tf.GradientTape() as tape:
            all_log_probabilities = tf.nn.log_softmax(self.policy(steps['observation']))
            log_probability = tf.gather(all_log_probabilities, steps['action'], batch_dims=1)
            ratio = tf.exp(log_probability - steps['log_probability'])
            clipped = tf.clip_by_value(ratio, 1 - CLIP, 1 + CLIP)
            gain = tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage))
            entropy = -tf.reduce_mean(
                tf.reduce_sum(tf.exp(all_log_probabilities) * all_log_probabilities, axis=1)
            )
            error = steps['return'] - self._value(steps['observation'])[:, 0]
            loss = 0.5 * tf.reduce_mean(error**2) - gain - ENTROPY * entropy
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self._variables), 0.5)
        self._optimizer.apply_gradients(zip(gradients, self._variables, strict=True))


def learn(server: reverb_tf.Server, deadline: float) -> float:
    """Trains until the goal or the deadline; returns the last mean return."""
    learner = Learner()
    client = reverb_tf.Client(server.address)
    client.insert(learner.policy.get_weights(), {'weights': 1.0})
    dataset = reverb_tf.TrajectoryDataset.from_table_signature(
        server.address,
        'rollouts',
        batch_size=BATCH_SIZE,
        drop_remainder=True,
        rate_limiter_timeout_ms=60_000,  # no rollout for so long: the actors have died
        on_timeout='error',
    )
    score = 0.0
    with tqdm.tqdm(dataset, unit=' updates', mininterval=1) as progress:
        for update, sample in enumerate(progress, start=1):
            learner.train(sample.data)
            client.insert(learner.policy.get_weights(), {'weights': 1.0})
            if update % EVALUATE_EVERY == 0:
                score = cartpole.mean_return(learner.policy.get_weights(), seed=10_000 + update)
                progress.set_postfix(mean_return=f'{score:.1f}')
                if score >= FLAGS.goal or time.monotonic() > deadline:
                    break
    client.close()
    print(f'mean return {score:.1f} after {update * BATCH_SIZE * ROLLOUT} steps')
    return score


def main(_) -> int:
    tf.keras.utils.set_random_seed(FLAGS.seed)
    deadline = time.monotonic() + 60 * FLAGS.max_minutes
    server = make_server()
    actors = start_actors(server.address)
    try:
        score = learn(server, deadline)
    finally:
        for actor in actors:
            actor.terminate()
            actor.wait()
        server.stop()
    return 0 if score >= FLAGS.goal else 1


if __name__ == '__main__':
    app.run(main)
