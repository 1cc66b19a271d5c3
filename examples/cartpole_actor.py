"""An actor of dqn_cartpole.py: plays CartPole and writes what it saw to the learner's server.

The learner starts it; on another machine it would be started by hand:

    python examples/cartpole_actor.py --server=learner:8000 --epsilon=0.1

It needs numpy only, so it starts quickly and leaves the cores to the learner.
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
N_STEP = 3
GAMMA = 0.99
# Exploration falls from 1 to --epsilon over so many steps of an actor.
WARM_UP_STEPS = 3_000
# Seconds without room in the table after which an actor takes its learner for dead.
LEARNER_TIMEOUT = 120


class Recorder:
    """Writes an actor's steps, and an item for every window of N_STEP transitions."""

    def __init__(self, client: reverb_tf.Client):
        self._writer = client.trajectory_writer(
            num_keep_alive_refs=N_STEP + 1, max_in_flight_items=500
        )

    def step(self, observation, action, reward, discount):
        """Records what was seen, done and got. A discount of 0 ends the game."""
        self._writer.append(
            {
                'observation': np.asarray(observation, np.float32),
                'action': np.int32(action),
                'reward': np.float32(reward),
                'discount': np.float32(discount),
            }
        )
        if self._writer.episode_steps > N_STEP:
            history = self._writer.history
            window = {name: history[name][-N_STEP - 1 :] for name in history}
            self._writer.create_item('replay', 1.0, window)

    def end(self, observation, terminated):
        """Records the last observation of an episode."""
        # A lost game goes on for ever without reward, so that its last windows are full.
        for _ in range(N_STEP if terminated else 1):
            self.step(observation, 0, 0.0, 0.0 if terminated else 1.0)
        self._writer.end_episode()


def play_episode(env, recorder, rng, weights, epsilons):
    """Plays one episode; each step takes its exploration from `epsilons`."""
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    while True:
        if rng.random() < next(epsilons):
            action = int(rng.integers(2))
        else:
            action = int(dense_network(weights, observation[None])[0].argmax())
        seen, reward, terminated, truncated, _ = env.step(action)
        recorder.step(observation, action, reward, 0.0 if terminated else 1.0)
        observation = seen
        if terminated or truncated:
            recorder.end(observation, terminated)
            return


def epsilons(last):
    """Falls from 1 to `last`, then stays."""
    step = 0
    while True:
        yield max(last, 1 - step / WARM_UP_STEPS)
        step += 1


def main(_) -> None:
    client = reverb_tf.Client(FLAGS.server, timeout=LEARNER_TIMEOUT)
    recorder = Recorder(client)
    rng = np.random.default_rng([FLAGS.seed, FLAGS.actor])
    exploration = epsilons(FLAGS.epsilon)
    env = gymnasium.make('CartPole-v1')
    try:
        while True:
            newest = next(client.sample('weights', emit_timesteps=False))
            weights = [array[0] for array in newest.data]  # of the item's only step
            play_episode(env, recorder, rng, weights, exploration)
    except (reverb_tf.errors.UnavailableError, reverb_tf.DeadlineExceededError, KeyboardInterrupt):
        pass  # The learner has finished.


if __name__ == '__main__':
    flags.DEFINE_string('server', None, 'Address of the learner.', required=True)
    flags.DEFINE_integer('actor', 0, 'Number of this actor.')
    flags.DEFINE_integer('seed', 0, 'Seed, shared by all.')
    flags.DEFINE_float('epsilon', 0.1, 'Exploration after the first steps.')
    app.run(main)
