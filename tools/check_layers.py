#!/usr/bin/env python3
"""Checks every #include against the layers of docs/design.md: `tools/check_layers.py [ROOT]`.

A file may include what its row allows, and the C, C++ and system's libraries. The first row that matches it counts.
Tests, fakes and fuzz targets may besides include googletest and every layer below the one that they stand in.
Prints one line an offence and exits 1 if there is any.
"""

from pathlib import Path
import re
import sys

BASE = ['cc/base/']
CORE = BASE + ['cc/compress/', 'cc/core/']
STORE = BASE + ['cc/core/', 'cc/store/']
SERVICE = STORE + ['cc/service/']
# What crosses the boundary: abstract classes and plain values.
API = BASE + [
    'cc/api/',
    'cc/core/table_info.h',
    'cc/core/signature.h',
    'cc/core/rate_limiter.h',
    'cc/core/selectors/selector_config.h',
]
# The client reaches a store through a service only.
CLIENT = BASE + ['cc/api/', 'cc/compress/', 'cc/core/', 'cc/service/', 'cc/client/']
RPC = CLIENT + ['cc/store/', 'cc/checkpoint/', 'cc/rpc/']
GRPC = ['absl/', 'google/protobuf/', 'grpc/', 'grpcpp/']
TENSORFLOW = ['absl/', 'tensorflow/', 'tsl/', 'xla/tsl/']

# (files, what they may include)
RULES = [
    (r'cc/base/', BASE),
    (r'cc/compress/', BASE + ['cc/compress/', 'snappy.h', 'snappy-c.h']),
    (r'cc/core/', CORE),
    (r'cc/store/', STORE),
    (r'cc/checkpoint/', STORE + ['cc/checkpoint/', 'cc/compress/']),
    (r'cc/service/', SERVICE + ['cc/checkpoint/']),
    (r'cc/client/', CLIENT),
    # Remove the folder, and everything but remote access still builds: what others include of it shows no gRPC.
    (r'cc/rpc/grpc_(server|transport)\.h', RPC),
    (r'cc/rpc/', RPC + GRPC),
    (r'cc/server/', RPC + ['cc/server/']),
    (r'cc/api/entry\.cc', RPC),
    (r'cc/api/loader\.', BASE + ['cc/api/']),
    (r'cc/api/', API),
    (r'reverb_tf/kernels/', API + TENSORFLOW + ['reverb_tf/kernels/']),
    (
        r'reverb_tf/ops/',
        ['absl/status/', 'absl/strings/', 'tensorflow/core/framework/', 'reverb_tf/ops/'],
    ),
    (r'reverb_tf/native/', API + ['nanobind/', 'Python.h', 'numpy/', 'reverb_tf/native/']),
]

# Tests and their helpers: what their layer stands on, also where its own sources must not reach through.
IS_TEST = re.compile(r'_test\.cc$|_fuzz(er)?\.cc$|(^|[/_])(fuzz|fake|scripted|testing|test_?util)')
TEST = ['gtest/', 'gmock/']
BELOW = [('cc/client/', SERVICE), ('cc/api/', RPC)]

SYSTEM = [
    'arpa/',
    'cxxabi.h',
    'dirent.h',
    'dlfcn.h',
    'fcntl.h',
    'fnmatch.h',
    'malloc.h',
    'netdb.h',
    'netinet/',
    'poll.h',
    'pthread.h',
    'sched.h',
    'signal.h',
    'strings.h',
    'sys/',
    'time.h',
    'unistd.h',
]
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def allowed_for(path: str) -> list[str] | None:
    for pattern, allowed in RULES:
        if re.match(pattern, path):
            if not IS_TEST.search(path):
                return allowed + SYSTEM
            below = [name for folder, names in BELOW if path.startswith(folder) for name in names]
            return allowed + SYSTEM + TEST + below
    return None


def is_allowed(name: str, allowed: list[str]) -> bool:
    if '/' not in name and '.' not in name:  # <vector>, <cstdint>
        return True
    return any(
        name == entry or (entry.endswith('/') and name.startswith(entry)) for entry in allowed
    )


def offences(root: Path, path: str) -> list[str]:
    """What is wrong with the includes of the file `path` under `root`."""
    allowed = allowed_for(path)
    if allowed is None:
        return ['stands in a folder that has no row in tools/check_layers.py']
    found = []
    for quote, name in INCLUDE.findall((root / path).read_text()):
        ours = (root / name).exists() or name.startswith(('cc/', 'reverb_tf/'))
        if '..' in name.split('/') or (quote == '"' and '/' not in name and name not in allowed):
            found.append(f'includes "{name}": write the path from the root')
        elif name.startswith('absl/synchronization/') and path.startswith('cc/'):
            found.append(f'includes {name}: use cc/base/mutex.h, which ThreadSanitizer understands')
        elif quote == '<' and ours:
            found.append(f'includes <{name}>: our own headers take quotes')
        elif not is_allowed(name, allowed):
            found.append(f'includes {name}: not allowed in its layer')
    return found


def main(root: Path) -> int:
    files = sorted(
        str(p.relative_to(root))
        for folder in ('cc', 'reverb_tf')
        for ending in ('cc', 'h')
        for p in (root / folder).rglob(f'*.{ending}')
    )
    bad = [f'{path}: {text}' for path in files for text in offences(root, path)]
    print('\n'.join(bad) if bad else f'{len(files)} files keep to their layers')
    return 1 if bad or not files else 0


if __name__ == '__main__':
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
