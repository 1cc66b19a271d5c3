"""Every Python block of the README runs as printed, one after another."""

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[1] / 'README.md'


def test_python_blocks_run_in_order(tmp_path):
    blocks = re.findall(r'```python\n(.*?)```', README.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    script = tmp_path / 'readme.py'
    script.write_text('\n'.join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'ReplaySample' in done.stdout
