"""What the three binaries link and export keeps TensorFlow's gRPC and protobuf apart from the system's."""

from pathlib import Path
import re
import subprocess

import pytest

PACKAGE = Path(__file__).parent.parent / 'reverb_tf'
# What any C++ shared library needs.
RUNTIME = {
    'libstdc++',
    'libm',
    'libgcc_s',
    'libc',
    'ld-linux-x86-64',
    'ld-linux-aarch64',
    'libpthread',
    'libdl',
}


def output(*command) -> str:
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=True
    ).stdout


def dynamic(name: str, kind: str) -> list[str]:
    return re.findall(rf'\({kind}\).*\[(.*)\]', output('readelf', '-dW', PACKAGE / name))


def needed(name: str) -> set[str]:
    """The libraries that it links, without versions and without the C++ runtime."""
    return {library.split('.so')[0] for library in dynamic(name, 'NEEDED')} - RUNTIME


def exported(name: str) -> set[str]:
    lines = output('nm', '-D', '--defined-only', PACKAGE / name).splitlines()
    return {line.split()[-1].split('@')[0] for line in lines}


def test_libreverb_exports_one_symbol():
    assert exported('libreverb.so') == {'reverb_tf_api'}


def test_libreverb_links_grpc_and_neither_tensorflow_nor_python():
    libraries = needed('libreverb.so')
    assert {'libgrpc++', 'libprotobuf'} <= libraries
    allowed = re.compile(
        r'lib(grpc|gpr|protobuf|absl_|snappy|zstd|z$|upb|cares|re2|address_sorting)'
    )
    assert [library for library in libraries if not allowed.match(library)] == []


def test_the_extension_exports_its_entry_and_links_nothing():
    assert exported('_native.so') == {'PyInit__native'}
    assert needed('_native.so') == set()


def test_the_op_library_links_the_framework_only():
    assert needed('_reverb_ops.so') == {'libtensorflow_framework'}


def test_the_op_library_keeps_the_boundary_to_itself():
    ours = {
        symbol for symbol in exported('_reverb_ops.so') if re.match(r'_Z\w*9reverb_tf\d', symbol)
    }
    assert {symbol for symbol in ours if not re.search('10tensorflow|3tsl', symbol)} == set()


@pytest.mark.parametrize('name', ['libreverb.so', '_native.so', '_reverb_ops.so'])
def test_no_search_path_of_the_build_is_left(name):
    assert dynamic(name, 'RPATH') + dynamic(name, 'RUNPATH') == []
