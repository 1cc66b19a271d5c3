#!/usr/bin/env python3
"""Counts what `bazel test --build_event_json_file=FILE` ran: `tools/count_tests.py FILE...`.

Prints the end of each failed test's log, and as the last line `N passed, N failed` over the test cases of all files.
Exits 1 if any failed or none passed.
"""

import argparse
from collections.abc import Iterator
import json
from pathlib import Path
import sys
from urllib.parse import unquote, urlparse
import xml.etree.ElementTree as ElementTree

LOG_LINES = 120


def events(path: Path) -> Iterator[dict]:
    for line in path.read_text().splitlines() if path.exists() else []:
        yield json.loads(line)


def output(event: dict, name: str) -> Path | None:
    for file in event.get('testActionOutput', []):
        if file['name'] == name:
            return Path(unquote(urlparse(file['uri']).path))
    return None


def count_cases(xml: Path | None) -> tuple[int, int]:
    """(passed, failed) test cases of a test.xml."""
    try:
        cases = list(ElementTree.parse(xml).getroot().iter('testcase'))
    except (OSError, TypeError, ElementTree.ParseError):
        return 0, 0
    failed = [c for c in cases if c.find('failure') is not None or c.find('error') is not None]
    left_out = [c for c in cases if c.find('skipped') is not None or c.get('status') == 'notrun']
    return len(cases) - len(failed) - len(left_out), len(failed)


def count(path: Path) -> tuple[int, int]:
    """(passed, failed) of one run; a target that did not build, or whose program died, counts as one failure."""
    passed = failed = 0
    exit_code = None
    for event in events(path):
        identity = event['id']
        if 'testResult' in identity and 'testResult' in event:
            label, status = identity['testResult']['label'], event['testResult']['status']
            case_passed, case_failed = count_cases(output(event['testResult'], 'test.xml'))
            passed += case_passed
            if status not in ('PASSED', 'FLAKY'):
                failed += max(case_failed, 1)
                log = output(event['testResult'], 'test.log')
                lines = log.read_text(errors='replace').splitlines() if log and log.exists() else []
                print(f'\n==== {label}: {status}', *lines[-LOG_LINES:], sep='\n')
        elif 'targetCompleted' in identity and not event.get('completed', {}).get('success'):
            print(f'\n==== {identity["targetCompleted"]["label"]}: did not build')
            failed += 1
        elif 'finished' in event:
            exit_code = event['finished'].get('exitCode', {}).get('code', 0)
    if exit_code != 0 and not failed:
        print(f'\n==== {path.stem}: bazel ended with code {exit_code}')
        failed += 1
    if not passed + failed:
        print(f'\n==== {path.stem}: no test ran')
        failed += 1
    return passed, failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--lint_failures', type=int, default=0, help='failed checks that are no tests'
    )
    parser.add_argument('files', type=Path, nargs='+')
    args = parser.parse_args()
    counts = {path: count(path) for path in args.files}
    print()
    for path, (passed, failed) in counts.items():
        print(f'{path.stem}: {passed} cases passed, {failed} failed')
    if args.lint_failures:
        print(f'lint: {args.lint_failures} checks failed, see above')
    passed, failed = (sum(column) for column in zip(*counts.values()))
    failed += args.lint_failures
    print(f'{passed} passed, {failed} failed')
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main())
