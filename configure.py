#!/usr/bin/env python3
"""Finds what reverb_tf builds against and writes .configure.bazelrc, which .bazelrc imports.

    python3 configure.py              look, check, write; installs nothing and says what is missing
    python3 configure.py --install    first install what is missing: Debian or Ubuntu packages, and .venv

The Python that is built for is .venv's, else the one that runs this script; --python names another.
"""

import argparse
import json
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys

ROOT = Path(__file__).resolve().parent
VENV = ROOT / '.venv'
VENV_PYTHON = VENV / 'bin' / 'python'
OUTPUT = ROOT / '.configure.bazelrc'
REQUIREMENTS = ROOT / 'requirements.txt'
CACHE = Path.home() / '.cache' / 'reverb_tf'
CURE = 'run: python3 configure.py --install'

MIN_PYTHON = '3.11'
MIN_TENSORFLOW = '2.16'
# What a build cannot do without. The rest of requirements.txt is for tests, examples and lint.
BUILD_REQUIREMENTS = (
    'tensorflow',
    'nanobind',
    'numpy',
    'protobuf',
    'absl-py',
    'ml-dtypes',
    'pytest',
)

# What shows that a Debian package is there: a program, a folder, or a library of pkg-config's and its least version.
PROGRAMS = {
    'g++': 'g++',
    'bazel-bootstrap': 'bazel',
    'clang-format': 'clang-format',
    'pkg-config': 'pkg-config',
    'protobuf-compiler': 'protoc',
    'protobuf-compiler-grpc': 'grpc_cpp_plugin',
}
FOLDERS = {
    'bazel-rules-java': '/usr/share/bazel/rules/java',
    'bazel-rules-proto': '/usr/share/bazel/rules/proto',
    'bazel-platforms': '/usr/share/bazel/platforms',
    'bazel-skylib': '/usr/share/bazel/tools/skylib',
}
LIBRARIES = {
    'libabsl-dev': ('absl_flat_hash_map', '20220623'),
    'libgmock-dev': ('gmock_main', '1.11'),
    'libgrpc++-dev': ('grpc++', '1.51'),
    'libgtest-dev': ('gtest', '1.11'),
    'libprotobuf-dev': ('protobuf', '3.21'),
    'libsnappy-dev': ('snappy', '1.1.8'),
}
# Files of packages that only tests need, which are skipped without; only --install looks for them.
FOR_TESTS = {
    'nginx-light': '/usr/sbin/nginx',
}

# Run by the interpreter that is looked at. TensorFlow is not imported here: that takes seconds.
PROBE = """
import importlib.metadata as m, importlib.util as u, json, os, sys, sysconfig
def folder(name):
    spec = u.find_spec(name)
    return os.path.dirname(spec.origin) if spec and spec.origin else ''
names = [(d.metadata['Name'] or '', d.version) for d in m.distributions()]
print(json.dumps({'version': '%d.%d' % sys.version_info[:2], 'include': sysconfig.get_paths()['include'],
                  'ensurepip': bool(u.find_spec('ensurepip')), 'prefix': sys.base_prefix,
                  'packages': {name.lower().replace('_', '-'): version for name, version in names},
                  'nanobind': folder('nanobind'), 'tensorflow': folder('tensorflow')}))
"""
TF_PROBE = """
import json, tensorflow as tf
print(json.dumps({'include': tf.sysconfig.get_include(), 'lib': tf.sysconfig.get_lib(),
                  'compile': tf.sysconfig.get_compile_flags(), 'link': tf.sysconfig.get_link_flags()}))
"""


class ConfigureError(Exception):
    """Something that the user has to cure; the text says how."""


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r'\d+', version))


def run(*command, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, **kwargs)


def run_visibly(*command) -> None:
    line = [str(c) for c in command]
    print('+', *line, flush=True)
    if subprocess.run(line, stdin=subprocess.DEVNULL, check=False).returncode:
        raise ConfigureError(f'this failed: {" ".join(line)}')


def probe(python: Path) -> dict:
    result = run(python, '-c', PROBE)
    if result.returncode:
        raise ConfigureError(f'{python} does not run: {result.stderr.strip()}')
    found = json.loads(result.stdout)
    if numbers(found['version']) < numbers(MIN_PYTHON):
        raise ConfigureError(
            f'{python} is Python {found["version"]}; run this script with at least {MIN_PYTHON}'
        )
    return found


def library_problem(name: str, least: str) -> str:
    """What is wrong with a library; empty if nothing is."""
    if not shutil.which('pkg-config'):
        return 'pkg-config is needed to look for it'
    version = run('pkg-config', '--modversion', name).stdout.strip() or '0 (unknown to pkg-config)'
    return (
        ''
        if numbers(version) >= numbers(least)
        else f'{name} is {version}, at least {least} is needed'
    )


def system_problems(python: Path) -> dict[str, str]:
    """Debian package -> what is wrong with it."""
    problems = {
        package: f'no program {name}'
        for package, name in PROGRAMS.items()
        if not shutil.which(name)
    }
    problems |= {
        package: f'no {folder}' for package, folder in FOLDERS.items() if not Path(folder).exists()
    }
    problems |= {
        package: text for package, what in LIBRARIES.items() if (text := library_problem(*what))
    }
    found = probe(python)
    incomplete = {}
    if not (Path(found['include']) / 'Python.h').exists():
        incomplete['python3-dev'] = f'no {found["include"]}/Python.h'
    if not found['ensurepip']:
        incomplete['python3-venv'] = f'{python} cannot make a virtual environment'
    if incomplete and found['prefix'] != '/usr':
        raise ConfigureError(
            f"{'; '.join(incomplete.values())}. This is not the system's Python: install it in full, "
            'or run this script with /usr/bin/python3'
        )
    return problems | incomplete


def install_system(packages: list[str]) -> None:
    if not shutil.which('apt-get'):
        raise ConfigureError(
            'apt-get is not here; install by your own means: ' + ' '.join(packages)
        )
    apt = [
        *([] if os.geteuid() == 0 else ['sudo']),
        'env',
        'DEBIAN_FRONTEND=noninteractive',
        'apt-get',
        '-qq',
    ]
    run_visibly(*apt, 'update')
    run_visibly(*apt, 'install', '-y', '--no-install-recommends', *packages)


def install_venv() -> None:
    if not VENV_PYTHON.exists() or run(VENV_PYTHON, '-m', 'pip', '--version').returncode:
        run_visibly(sys.executable, '-m', 'venv', '--clear', VENV)
    lines = [
        line.split('#')[0].strip().lower().replace('_', '-')
        for line in REQUIREMENTS.read_text().splitlines()
    ]
    packages = probe(VENV_PYTHON)['packages']
    if any(
        packages.get(name) != version
        for name, version in (line.split('==') for line in lines if line)
    ):
        run_visibly(
            VENV_PYTHON,
            '-m',
            'pip',
            'install',
            '--quiet',
            '--disable-pip-version-check',
            '-r',
            REQUIREMENTS,
        )


def tensorflow_facts(python: Path, folder: str, version: str) -> dict:
    """tf.sysconfig's answers; kept in the cache for this very installation, since the import takes seconds."""
    stamp = f'{python} {version} {(Path(folder) / "__init__.py").stat().st_mtime_ns}'
    cache = CACHE / 'tensorflow.json'
    known = json.loads(cache.read_text()) if cache.exists() else {}
    if stamp not in known:
        result = run(python, '-c', TF_PROBE, env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'})
        if result.returncode:
            raise ConfigureError(
                f'TensorFlow {version} is there, but {python} cannot import it:\n{result.stderr}'
            )
        known[stamp] = json.loads(result.stdout.splitlines()[-1])
        CACHE.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(known, indent=1))
    facts = known[stamp]
    if '-D_GLIBCXX_USE_CXX11_ABI=1' not in facts['compile']:
        raise ConfigureError(
            f'TensorFlow {version} was not compiled with _GLIBCXX_USE_CXX11_ABI=1 (its flags: '
            f'{" ".join(facts["compile"])}); install a release from {MIN_TENSORFLOW} on'
        )
    return facts


def bazelrc(python: Path) -> str:
    found = probe(python)
    absent = [name for name in BUILD_REQUIREMENTS if name not in found['packages']]
    if absent:
        raise ConfigureError(f'{python} lacks {", ".join(absent)}; {CURE}')
    version = found['packages']['tensorflow']
    tf = tensorflow_facts(python, found['tensorflow'], version)
    compiler = os.environ.get('CC', 'gcc')
    facts = {
        'CC': compiler,
        'REVERB_COMPILER': f'{Path(compiler).name} {run(compiler, "-dumpfullversion").stdout.strip()}',
        'REVERB_PYTHON': python,
        'REVERB_PYTHON_INCLUDE': found['include'],
        'REVERB_PYTHON_VERSION': found['version'],
        'REVERB_NANOBIND_DIR': found['nanobind'],
        'REVERB_TF_FRAMEWORK': next(flag[3:] for flag in tf['link'] if flag.startswith('-l:')),
        'REVERB_TF_INCLUDE': tf['include'],
        'REVERB_TF_LIB_DIR': tf['lib'],
        'REVERB_TF_VERSION': version,
    }
    lines = [
        '# Written by configure.py; run it again instead of editing this. Own flags go into user.bazelrc.',
        # Shared by all clones, so a fresh one compiles nothing that another has compiled.
        f'build --disk_cache={CACHE / "bazel"}',
    ]
    # `bazel query` takes no flags of build.
    lines += [
        f'{command} "--repo_env={k}={v}"'
        for command in ('build', 'query')
        for k, v in facts.items()
    ]
    return '\n'.join(lines) + '\n'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--install', action='store_true', help='install what is missing')
    parser.add_argument(
        '--python', type=Path, help='the interpreter to build for, with its packages'
    )
    args = parser.parse_args()
    problems = system_problems(Path(sys.executable))
    if args.install:
        for_tests = [package for package, path in FOR_TESTS.items() if not Path(path).exists()]
        if problems or for_tests:
            install_system([*problems, *for_tests])
    elif problems:
        listing = ''.join(f'  {package}: {why}\n' for package, why in problems.items())
        raise ConfigureError(f'system packages are missing:\n{listing}{CURE}')
    if args.install and not args.python:
        install_venv()
    python = args.python or (VENV_PYTHON if VENV_PYTHON.exists() else Path(sys.executable))
    OUTPUT.write_text(bazelrc(python.absolute()))
    print(f'{OUTPUT.name}: built for {python}')


if __name__ == '__main__':
    try:
        main()
    except ConfigureError as error:
        sys.exit(f'configure.py: {error}')
