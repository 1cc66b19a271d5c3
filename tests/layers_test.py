"""The include rules hold, and the tool that checks them can fail."""

from pathlib import Path
import subprocess
import sys

import pytest

# The source tree, behind the links of the runfiles: the tool looks at folders that no target names.
ROOT = Path(__file__).resolve().parent.parent


def check(root: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(ROOT / 'tools' / 'check_layers.py'), str(root)],
        capture_output=True,
        text=True,
        check=False,
    )


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tree_keeps_its_layers():
    result = check(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    'name, include',
    [
        ('cc/base/x.h', '"cc/core/table.h"'),
        ('cc/base/x.cc', '"absl/strings/str_cat.h"'),
        ('cc/compress/x.cc', '"cc/core/chunk.h"'),
        ('cc/core/x.cc', '"cc/store/store.h"'),
        ('cc/core/x_test.cc', '"cc/store/store.h"'),
        ('cc/core/x.cc', '"absl/container/flat_hash_map.h"'),
        ('cc/core/x.cc', '<gtest/gtest.h>'),
        ('cc/core/selectors/x.cc', '<snappy.h>'),
        ('cc/store/x.cc', '"absl/synchronization/mutex.h"'),
        ('cc/service/x.cc', '"cc/client/transport.h"'),
        ('cc/client/x.cc', '<grpcpp/grpcpp.h>'),
        ('cc/client/x.cc', '"cc/store/store.h"'),
        ('cc/rpc/grpc_server.h', '<grpcpp/grpcpp.h>'),
        ('cc/rpc/x.cc', '"cc/server/config.h"'),
        ('cc/server/x.cc', '<google/protobuf/text_format.h>'),
        ('cc/api/x.h', '"cc/store/store.h"'),
        ('cc/api/x.h', '"cc/core/table.h"'),
        ('cc/api/loader.cc', '"cc/core/table_info.h"'),
        ('cc/api/entry.cc', '<grpcpp/grpcpp.h>'),
        ('reverb_tf/kernels/x.cc', '"cc/rpc/reverb.pb.h"'),
        ('reverb_tf/kernels/x.cc', '"cc/core/table.h"'),
        ('reverb_tf/ops/x.cc', '"cc/api/client.h"'),
        ('reverb_tf/ops/x.cc', '"tensorflow/core/kernels/ops_util.h"'),
        ('reverb_tf/native/x.cc', '"tensorflow/core/framework/op.h"'),
        ('cc/base/x.cc', '"cc/base/../base/status.h"'),
        ('cc/base/x.cc', '"status.h"'),
    ],
)
def test_a_forbidden_include_is_reported(tmp_path, name, include):
    write(tmp_path, 'cc/base/fine.cc', '#include <vector>\n#include "cc/base/status.h"\n')
    assert check(tmp_path).returncode == 0
    write(tmp_path, name, f'#include <string>\n#include {include}\n')
    result = check(tmp_path)
    assert result.returncode == 1
    assert result.stdout.startswith(f'{name}: includes ')
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    'name, include',
    [
        ('cc/core/x_test.cc', '<gtest/gtest.h>'),
        ('cc/client/x_test.cc', '"cc/store/store.h"'),
        ('cc/rpc/x.cc', '<grpcpp/grpcpp.h>'),
        ('cc/api/entry.cc', '"cc/rpc/grpc_server.h"'),
        ('reverb_tf/kernels/x.cc', '"cc/core/signature.h"'),
        ('reverb_tf/ops/x.cc', '"tensorflow/core/framework/op.h"'),
        ('reverb_tf/native/x.cc', '<nanobind/nanobind.h>'),
    ],
)
def test_an_include_of_the_layer_is_not_reported(tmp_path, name, include):
    write(tmp_path, name, f'#include {include}\n')
    result = check(tmp_path)
    assert result.returncode == 0, result.stdout


def test_a_folder_without_a_rule_is_reported(tmp_path):
    write(tmp_path, 'cc/elsewhere/x.h', '')
    result = check(tmp_path)
    assert result.returncode == 1
    assert 'no row' in result.stdout


def test_an_empty_tree_is_no_success(tmp_path):
    assert check(tmp_path).returncode == 1
