"""Writes the wheel: a zip of the package and its metadata, which come from pyproject.toml. Needs no network."""

import argparse
import base64
import hashlib
from pathlib import Path
import re
import tomllib
import zipfile


def entry(name: str, mode: int = 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.external_attr = (0o100000 | mode) << 16
    return info


class Wheel:
    """A wheel being written. The same content gives the same bytes."""

    def __init__(self, path: Path):
        self._zip = zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED)
        self._record = []

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        self._zip.writestr(entry(name, 0o755 if executable else 0o644), data, zipfile.ZIP_DEFLATED)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
        self._record.append(f'{name},sha256={digest},{len(data)}')

    def close(self, record_name: str) -> None:
        self._record.append(f'{record_name},,')
        self._zip.writestr(entry(record_name), '\n'.join(self._record) + '\n')
        self._zip.close()


def metadata(project: dict, version: str, tensorflow: str, readme: str) -> str:
    major, minor = (int(part) for part in tensorflow.split('.')[:2])
    # The op library is compiled for one minor release of TensorFlow.
    extras = {
        **project.get('optional-dependencies', {}),
        'tensorflow': [f'tensorflow>={major}.{minor},<{major}.{minor + 1}'],
    }
    lines = [
        'Metadata-Version: 2.1',
        f'Name: {project["name"]}',
        f'Version: {version}',
        f'Summary: {project["description"]}',
        f'Requires-Python: {project["requires-python"]}',
    ]
    lines += [f'Classifier: {c}' for c in project.get('classifiers', [])]
    lines += [f'Requires-Dist: {d}' for d in project['dependencies']]
    for extra, dependencies in extras.items():
        lines += [f'Provides-Extra: {extra}']
        lines += [f'Requires-Dist: {d}; extra == "{extra}"' for d in dependencies]
    if readme:
        lines += ['Description-Content-Type: text/markdown', '', readme]
    return '\n'.join(lines) + '\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--version', required=True)
    parser.add_argument('--tag', required=True)
    parser.add_argument('--tensorflow', required=True)
    parser.add_argument('--status', type=Path, required=True)
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('files', type=Path, nargs='+')
    args = parser.parse_args()

    commit = re.search(r'^GIT_COMMIT (\S+)$', args.status.read_text(), re.MULTILINE)
    package, outer = {}, {}
    for path in args.files:
        # A built file's path in the package is what follows bazel-out/<configuration>/bin/.
        name = re.sub(r'^bazel-out/[^/]+/bin/', '', str(path))
        (package if name.startswith('reverb_tf/') else outer)[name] = path
    info = f'reverb_tf-{args.version}.dist-info'

    wheel = Wheel(args.out)
    for name, path in sorted(package.items()):
        data = path.read_bytes()
        if name == 'reverb_tf/_build_info.py' and commit:
            data = data.replace(b"GIT_COMMIT = ''", f"GIT_COMMIT = '{commit[1]}'".encode())
        wheel.add(name, data, executable=name == 'reverb_tf/reverb_server')
    if 'reverb_tf/reverb_server' in package:
        script = outer['bazel/reverb_server_script.py'].read_bytes()
        wheel.add(f'reverb_tf-{args.version}.data/scripts/reverb_server', script, executable=True)
    project = tomllib.loads(outer['pyproject.toml'].read_text())['project']
    readme = outer['README.md'].read_text() if 'README.md' in outer else ''
    wheel.add(f'{info}/METADATA', metadata(project, args.version, args.tensorflow, readme).encode())
    wheel.add(
        f'{info}/WHEEL',
        (
            f'Wheel-Version: 1.0\nGenerator: reverb_tf\nRoot-Is-Purelib: false\nTag: {args.tag}\n'
        ).encode(),
    )
    wheel.add(f'{info}/top_level.txt', b'reverb_tf\n')
    wheel.close(f'{info}/RECORD')


if __name__ == '__main__':
    main()
