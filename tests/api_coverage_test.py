"""Every public member is called by a test that docs/api_coverage.md names."""

from pathlib import Path
import subprocess
import sys

# The source tree, behind the links of the runfiles: the table names tests of other targets.
ROOT = Path(__file__).resolve().parent.parent


def test_each_public_member_has_a_test():
    result = subprocess.run(
        [sys.executable, str(ROOT / 'tools' / 'api_coverage.py'), '--check'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert 'members have their tests' in result.stdout
