#!/usr/bin/env python3
"""Writes docs/api_coverage.md: which tests call each public member, and with which arguments.

    bazel run //:install && .venv/bin/python tools/api_coverage.py [tests/x_test.py ...]

Runs the tests (all, or those named, whose results are added to what the table has) and watches which
functions of the package are called from where. `--check` runs none: it fails if a public member is
missing from the table, or a test that the table names is gone.
"""

import argparse
import ast
import collections
import inspect
import json
import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile
import threading

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / 'docs' / 'api_coverage.md'
MODULES = (
    '',
    'compat',
    'data',
    'errors',
    'keras',
    'pattern_dataset',
    'rate_limiters',
    'selectors',
    'structured',
)
# Tests named a member.
MOST_TESTS = 3
# Where the tests run as a plugin of pytest, the file that the results go to.
RESULTS = 'REVERB_TF_API_COVERAGE'

HEAD = """# Which tests call what

Written by `tools/api_coverage.py`, which watches the tests run. "Given": the arguments that some test gives
another value than the default; "never": those that none does.

| member | tests | given | never |
|---|---|---|---|
"""


# ---- The public members ------------------------------------------------------


def own_names(module):
    names = getattr(module, '__all__', None)
    if names is None:
        names = [n for n in vars(module) if not n.startswith('_')]
    return sorted(names)


def functions_of(cls):
    """Public methods and properties that the package itself defines, as (name, function)."""
    for name in sorted(dir(cls)):
        if name.startswith('_') and name != '__init__':
            continue
        value = inspect.getattr_static(cls, name)
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        value = inspect.unwrap(value) if callable(value) else value
        if inspect.isfunction(value) and value.__module__.startswith('reverb_tf'):
            yield name, value


def public_members():
    """Name -> function, of all that has Python code of its own; a class without: the class."""
    import reverb_tf

    members = {}
    for module_name in MODULES:
        module = getattr(reverb_tf, module_name) if module_name else reverb_tf
        for name in own_names(module):
            value = getattr(module, name)
            path = f'{module_name}.{name}' if module_name else name
            if inspect.isclass(value) and value.__module__.startswith('reverb_tf'):
                found = dict(functions_of(value))
                members.setdefault(path, found.pop('__init__', value))
                members.update({f'{path}.{n}': f for n, f in found.items()})
            elif inspect.isfunction(value) and value.__module__.startswith('reverb_tf'):
                members[path] = inspect.unwrap(value)
    return members


# ---- Watching, as a plugin of pytest -----------------------------------------


class Watcher:
    """Notes, for each member, the tests that call it and the arguments that are no default."""

    def __init__(self):
        self._paths = collections.defaultdict(list)
        self._defaults = {}
        self._classes = {}
        for path, value in public_members().items():
            if inspect.isclass(value):
                self._classes[path] = value
                continue
            self._paths[value.__code__].append(path)
            self._defaults[value.__code__] = inspect.signature(value).parameters
        self.test = None
        self.tests = collections.defaultdict(dict)
        self.given = collections.defaultdict(set)

    def profile(self, frame, event, argument):
        code = frame.f_code
        if event != 'call' or code not in self._paths or self.test is None:
            return
        given = [
            name
            for name, parameter in self._defaults[code].items()
            if name != 'self' and not self._is_default(frame.f_locals.get(name), parameter)
        ]
        for path in self._paths[code]:
            self.tests[path][self.test] = None
            self.given[path].update(given)

    @staticmethod
    def _is_default(value, parameter):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return not value
        return value is parameter.default

    def note_words(self, source):
        """Classes without code (named tuples, exceptions) count as used where they are named."""
        for path in self._classes:
            if re.search(rf'\b{path.rsplit(".", 1)[-1]}\b', source):
                self.tests[path][self.test] = None


def pytest_configure(config):
    config.watcher = Watcher()


def pytest_runtest_call(item):
    watcher = item.config.watcher
    watcher.test = f'{item.path.name}::{item.originalname}'
    watcher.note_words(inspect.getsource(item.function))
    threading.setprofile(watcher.profile)
    sys.setprofile(watcher.profile)


def pytest_runtest_teardown(item):
    sys.setprofile(None)
    threading.setprofile(None)
    item.config.watcher.test = None


def pytest_unconfigure(config):
    watcher = config.watcher
    result = {
        path: {'tests': list(tests), 'given': sorted(watcher.given[path])}
        for path, tests in watcher.tests.items()
    }
    Path(os.environ[RESULTS]).write_text(json.dumps(result))


# ---- The table ---------------------------------------------------------------


def run_tests(files):
    """Member -> {'tests', 'given'} of the tests of these files."""
    total = {}
    with tempfile.TemporaryDirectory() as scratch:
        # Apart from the source tree, whose package has no binaries.
        for name in ('tests', 'README.md', 'pyproject.toml'):
            os.symlink(ROOT / name, Path(scratch) / name)
        for file in files:
            result = Path(scratch) / 'result.json'
            result.unlink(missing_ok=True)
            paths = [scratch, str(ROOT / 'tools')]
            subprocess.run(
                [sys.executable, '-m', 'pytest', '-q', '-p', 'api_coverage', f'tests/{file}'],
                cwd=scratch,
                env={**os.environ, RESULTS: str(result), 'PYTHONPATH': os.pathsep.join(paths)},
                check=False,
            )
            for member, found in json.loads(result.read_text()).items():
                entry = total.setdefault(member, {'tests': [], 'given': []})
                entry['tests'] += found['tests']
                entry['given'] += found['given']
    return total


def read_table():
    """Member -> {'tests', 'given'} of the table as it is."""
    if not TABLE.exists():
        return {}
    total = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if len(cells) == 4 and cells[0].startswith('`'):
            words = [re.findall(r'`([^`]+)`', cell) for cell in cells]
            total[words[0][0]] = {'tests': words[1], 'given': words[2]}
    return total


def most_telling(tests, member):
    """Those of files named after the member first; one a file while there are other files."""
    words = set(re.findall(r'[a-z]+', re.sub('([A-Z])', r'_\1', member).lower()))
    ranked = sorted(dict.fromkeys(tests), key=lambda t: -len(words & set(re.findall('[a-z]+', t))))
    first_of_file = {}
    for test in ranked:
        first_of_file.setdefault(test.split('::')[0], test)
    first = list(first_of_file.values())
    return (first + [t for t in ranked if t not in first])[:MOST_TESTS]


def write_table(found):
    lines = []
    for member, value in sorted(public_members().items()):
        entry = found.get(member, {'tests': [], 'given': []})
        parameters = [] if inspect.isclass(value) else list(inspect.signature(value).parameters)
        given = [p for p in parameters if p in entry['given']]
        never = [p for p in parameters if p not in given and p not in ('self', 'cls')]
        cells = [[member], most_telling(entry['tests'], member), given, never if given else []]
        lines.append('| ' + ' | '.join(', '.join(f'`{w}`' for w in c) for c in cells) + ' |\n')
    TABLE.write_text(HEAD + ''.join(lines))


def check():
    """What is wrong with the table."""
    table = read_table()
    problems = [
        f'{member}: not in {TABLE.name}, or no test calls it'
        for member in public_members()
        if not table.get(member, {}).get('tests')
    ]
    for file in {t.split('::')[0] for entry in table.values() for t in entry['tests']}:
        path = ROOT / 'tests' / file
        tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        for member, entry in table.items():
            problems += [
                f'{member}: {test} is gone'
                for test in entry['tests']
                if test.split('::')[0] == file and test.split('::')[1] not in functions
            ]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('tests', nargs='*', help='test files; default: all')
    parser.add_argument('--check', action='store_true', help='only look whether the table is whole')
    arguments = parser.parse_args()
    if arguments.check:
        problems = check()
        print('\n'.join(problems) or f'{len(public_members())} members have their tests')
        return 1 if problems else 0
    files = [Path(t).name for t in arguments.tests]
    found = read_table() if files else {}
    for member, entry in run_tests(
        files or sorted(p.name for p in (ROOT / 'tests').glob('*_test.py'))
    ).items():
        old = found.setdefault(member, {'tests': [], 'given': []})
        old['tests'] += entry['tests']
        old['given'] += entry['given']
    write_table(found)
    return 0


if __name__ == '__main__':
    sys.exit(main())
