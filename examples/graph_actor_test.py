"""Actors in graphs feed a learner that gets better than chance."""

import pathlib
import subprocess
import sys


def test_the_learner_improves_on_what_graphs_wrote():
    script = pathlib.Path(__file__).parent / 'graph_actor.py'
    # Random play lasts about 22 steps, the untrained greedy policy about 9.
    result = subprocess.run(
        [sys.executable, str(script), '--goal=40', '--max_minutes=3'],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    assert 'mean return' in result.stdout
