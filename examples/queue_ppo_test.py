"""Actors in processes feed a queue, and the policy gets better than chance."""

import pathlib
import subprocess
import sys


def test_the_policy_improves_on_what_the_queue_delivered():
    script = pathlib.Path(__file__).parent / 'queue_ppo.py'
    # Random play lasts about 22 steps, an untrained greedy policy about 9.
    result = subprocess.run(
        [sys.executable, str(script), '--goal=100', '--max_minutes=3'],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    assert 'mean return' in result.stdout
