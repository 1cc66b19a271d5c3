"""Actors whose whole loop is one graph, and a learner that replays their single steps.

    python examples/graph_actor.py

Environment (CartPole's equations), policy and writing are one `tf.function`: no Python runs
between the steps of an actor. Items are pieces of up to eight steps; the learner reads batches of
single steps from them and trains a Q-network. The exit code is 0 if ten greedy episodes reached a
mean return of `--goal` in time.
"""

import sys
import threading
import time

from absl import app, flags
import tensorflow as tf

import reverb_tf

FLAGS = flags.FLAGS
flags.DEFINE_float('goal', 200, 'Mean return of ten greedy episodes (at most 500) to reach.')
flags.DEFINE_float('max_minutes', 5, 'Time to reach the goal in.')
flags.DEFINE_integer('seed', 0, 'Seed of network and games.')

NUM_ACTORS = 2
PIECE = 8
BATCH_SIZE = 256
GAMMA = 0.98
MAX_STEPS = 500
FLUSH_TIMEOUT = 2.0  # seconds
STEP = {
    'state': tf.TensorSpec([4], tf.float32),
    'action': tf.TensorSpec([], tf.int32),
    'next_state': tf.TensorSpec([4], tf.float32),
    'terminal': tf.TensorSpec([], tf.bool),
}


def first_state(generator):
    return generator.uniform([4], -0.05, 0.05)


def next_state(state, action):
    """One step of CartPole (Barto, Sutton & Anderson, 1983) as Gymnasium has it."""
    x, x_dot, theta, theta_dot = tf.unstack(state)
    force = tf.where(action == 1, 10.0, -10.0)
    sin, cos = tf.sin(theta), tf.cos(theta)
    push = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    x_acc = push - 0.05 * theta_acc * cos / 1.1
    moved = tf.stack([x_dot, x_acc, theta_dot, theta_acc])
    state += 0.02 * moved
    return state, (tf.abs(state[0]) > 2.4) | (tf.abs(state[2]) > 0.2095)


class Actor(tf.Module):
    """Plays epsilon-greedily and writes what happens."""

    def __init__(self, address, network, seed):
        self._network = network
        self._generator = tf.random.Generator.from_seed(seed)
        self._writer = reverb_tf.TFTrajectoryWriter(address, STEP, num_keep_alive_refs=PIECE)

    @tf.function
    def play(self, episodes, epsilon):
        for _ in tf.range(episodes):
            state, over, steps = first_state(self._generator), tf.constant(False), tf.constant(0)
            while not over:
                action = tf.argmax(self._network(state[tf.newaxis])[0], output_type=tf.int32)
                if self._generator.uniform([]) < epsilon:
                    action = self._generator.uniform([], 0, 2, tf.int32)
                after, terminal = next_state(state, action)
                self._writer.append(
                    {'state': state, 'action': action, 'next_state': after, 'terminal': terminal}
                )
                steps += 1
                over = terminal | (steps == MAX_STEPS)
                length = (steps - 1) % PIECE + 1
                if over | (length == PIECE):
                    history = self._writer.history
                    piece = {name: column[-length:] for name, column in history.items()}
                    self._writer.create_item('replay', 1.0, piece)
                state = after
            self._writer.end_episode(timeout=FLUSH_TIMEOUT)


def make_server():
    table = reverb_tf.Table(
        name='replay',
        sampler=reverb_tf.selectors.Uniform(),
        remover=reverb_tf.selectors.Fifo(),
        max_size=10_000,
        rate_limiter=reverb_tf.rate_limiters.SampleToInsertRatio(
            samples_per_insert=16, min_size_to_sample=100, error_buffer=1_600
        ),
    )
    return reverb_tf.Server([table])


def make_network():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input([4]),
            layers.Dense(128, activation='relu'),
            layers.Dense(128, activation='relu'),
            layers.Dense(2),
        ]
    )


def make_train_step(network, target):
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(network.trainable_variables)

    @tf.function
    def train_step(steps):
        values = network(steps['next_state'])
        best = tf.one_hot(tf.argmax(values, axis=1), 2)
        later = tf.reduce_sum(target(steps['next_state']) * best, axis=1)
        goal = 1.0 + GAMMA * tf.where(steps['terminal'], 0.0, later)
        with tf.GradientTape() as tape:
            chosen = tf.reduce_sum(network(steps['state']) * tf.one_hot(steps['action'], 2), axis=1)
            loss = tf.reduce_mean(tf.keras.losses.huber(goal[:, None], chosen[:, None]))
        variables = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for old, new in zip(target.variables, network.variables, strict=True):
            old.assign_add(0.01 * (new - old))
        return loss

    return train_step


@tf.function
def greedy_return(network, generator, episodes=10):
    """The mean return of `episodes` greedy episodes."""
    total = 0.0
    for _ in range(episodes):
        state, over, steps = first_state(generator), tf.constant(False), tf.constant(0)
        while not over:
            action = tf.argmax(network(state[tf.newaxis])[0], output_type=tf.int32)
            state, terminal = next_state(state, action)
            steps += 1
            over = terminal | (steps == MAX_STEPS)
        total += tf.cast(steps, tf.float32)
    return total / episodes


def act(actor, stop):
    """Plays until told to stop; the table's rate limiter keeps the pace."""
    while not stop.is_set():
        try:
            actor.play(tf.constant(5), tf.constant(0.1))
        except tf.errors.DeadlineExceededError:
            pass  # the learner is behind: what was written stays queued


def learn(address, network, deadline):
    """Trains until the goal is reached or the time is over; the last mean return."""
    target = tf.keras.models.clone_model(network)
    target.set_weights(network.get_weights())
    train_step = make_train_step(network, target)
    generator = tf.random.Generator.from_seed(FLAGS.seed)
    dataset = reverb_tf.TimestepDataset(
        address,
        'replay',
        {name: spec.dtype for name, spec in STEP.items()},
        {name: spec.shape for name, spec in STEP.items()},
        batch_size=BATCH_SIZE,
        rate_limiter_timeout_ms=60_000,
    )
    reached = 0.0
    for update, sample in enumerate(dataset, start=1):
        loss = train_step(sample.data)
        if update % 500 == 0:
            reached = float(greedy_return(network, generator))
            print(f'update {update}: loss {loss:.4f}, mean return {reached:.0f}', flush=True)
            if reached >= FLAGS.goal or time.monotonic() > deadline:
                return reached


def main(_):
    tf.keras.utils.set_random_seed(FLAGS.seed)
    deadline = time.monotonic() + 60 * FLAGS.max_minutes
    server = make_server()
    network = make_network()
    stop = threading.Event()
    actors = [Actor(server.address, network, FLAGS.seed + 1 + i) for i in range(NUM_ACTORS)]
    threads = [threading.Thread(target=act, args=(actor, stop)) for actor in actors]
    for thread in threads:
        thread.start()
    try:
        reached = learn(server.address, network, deadline)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        server.stop()
    return 0 if reached >= FLAGS.goal else 1


if __name__ == '__main__':
    app.run(lambda argv: sys.exit(main(argv)))
