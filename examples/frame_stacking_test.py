"""Stacks of frames take the memory of single frames, and batches of them train a network."""

import pathlib
import re
import subprocess
import sys


def test_stacks_are_stored_as_single_frames():
    script = pathlib.Path(__file__).parent / 'frame_stacking.py'
    result = subprocess.run(
        [sys.executable, str(script), '--frames=300', '--batches=2', '--min_explained=-100'],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    held, single, stacked = map(
        float, re.search(r'holds (\S+) MB.* are (\S+) MB.* be (\S+) MB', result.stdout).groups()
    )
    assert single <= held < single * 1.05
    assert stacked > 3 * held
