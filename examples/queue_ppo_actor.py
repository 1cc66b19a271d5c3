"""An actor of queue_ppo.py: plays CartPole and puts pieces of its games into the learner's queue.

The learner starts it; on another machine it would be started by hand:

    python examples/queue_ppo_actor.py --server=learner:8000 --actor=2
"""

import pathlib
import sys

from absl import app, flags
import gymnasium
import numpy as np

import reverb_tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cartpole import dense_network  # noqa: E402

FLAGS = flags.FLAGS
# Steps of an item.
ROLLOUT = 32
GAMES = 4
# Seconds without room in the queue after which an actor takes its learner for dead.
LEARNER_TIMEOUT = 120


class Game:
    """One CartPole after another, and the writer of what happens in them."""

    def __init__(self, client: reverb_tf.Client, seed: int):
        self._env = gymnasium.make('CartPole-v1')
        self.observation, _ = self._env.reset(seed=seed)
        # With one item on its way, an actor is at most a rollout ahead of a full queue.
        self._writer = client.trajectory_writer(num_keep_alive_refs=ROLLOUT, max_in_flight_items=1)

    def step(self, action: int, log_probability: float) -> None:
        seen, reward, terminated, truncated, _ = self._env.step(action)
        self._writer.append(
            {
                'observation': self.observation,
                'action': np.int32(action),
                'log_probability': np.float32(log_probability),
                'reward': np.float32(reward),
                # The cut at 500 steps is no failure: what would follow counts.
                'next_observation': seen,
                'terminated': terminated,
                'ended': terminated or truncated,
            }
        )
        self.observation = self._env.reset()[0] if terminated or truncated else seen

    def send(self) -> None:
        """An item of the newest steps; waits while the queue is full."""
        history = self._writer.history
        rollout = {name: history[name][-ROLLOUT:] for name in history}
        self._writer.create_item('rollouts', 1.0, rollout)


def play(games, rng, weights) -> None:
    """A rollout of each game."""
    for _ in range(ROLLOUT):
        logits = dense_network(weights, np.stack([game.observation for game in games]))
        logits -= logits.max(1, keepdims=True)
        log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        # The larger of logits with Gumbel noise is a draw from the softmax.
        actions = (logits + rng.gumbel(size=logits.shape)).argmax(1)
        for i, game in enumerate(games):
            game.step(int(actions[i]), log_probabilities[i, actions[i]])
    for game in games:
        game.send()


def main(_) -> None:
    client = reverb_tf.Client(FLAGS.server, timeout=LEARNER_TIMEOUT)
    rng = np.random.default_rng([FLAGS.seed, FLAGS.actor])
    games = [Game(client, seed=int(rng.integers(2**31))) for _ in range(GAMES)]
    try:
        while True:
            newest = next(client.sample('weights', emit_timesteps=False))
            play(games, rng, [array[0] for array in newest.data])  # of the item's only step
    except (reverb_tf.errors.UnavailableError, reverb_tf.DeadlineExceededError, KeyboardInterrupt):
        pass  # The learner has finished.


if __name__ == '__main__':
    flags.DEFINE_string('server', None, 'Address of the learner.', required=True)
    flags.DEFINE_integer('actor', 0, 'Number of this actor.')
    flags.DEFINE_integer('seed', 0, 'Seed, shared by all.')
    app.run(main)
