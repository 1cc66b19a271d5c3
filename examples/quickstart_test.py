"""The quickstart runs and learns."""

import pathlib
import re
import subprocess
import sys


def test_the_quickstart_learns():
    script = pathlib.Path(__file__).parent / 'quickstart.py'
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert float(re.search(r'final loss (\S+)', result.stdout).group(1)) < 0.05
