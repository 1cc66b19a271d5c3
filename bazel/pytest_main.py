"""Runs pytest on the files given as arguments; `bazel test --test_arg=-k --test_arg=name` reaches pytest too."""

import os
import sys

import pytest


def main() -> int:
    args = [
        '-p',
        'no:cacheprovider',
        f'--rootdir={os.getcwd()}',
        '-v',
        '--tb=short',
        '--durations=5',
    ]
    xml = os.environ.get('XML_OUTPUT_FILE')
    if xml:
        args.append(f'--junit-xml={xml}')
    if os.environ.get('TESTBRIDGE_TEST_ONLY'):  # bazel test --test_filter=...
        args += ['-k', os.environ['TESTBRIDGE_TEST_ONLY']]
    # A bare `python3` in a test means the interpreter that runs it, and the package under test is the built one.
    os.environ['PYTHONPATH'] = os.pathsep.join(p for p in sys.path if p)
    return pytest.main(args + sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
