"""@python: the interpreter that configure.py chose, its headers, and nanobind, which is compiled from its wheel."""

load("//bazel:facts.bzl", "FACTS", "fact")

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

exports_files(["python"])

py_runtime(
    name = "runtime",
    interpreter_path = "{python}",
    stub_shebang = "#!{python}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)

cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
)

# One source that includes all the others. Not our code: no warnings, and the flags that its authors ask for.
cc_library(
    name = "nanobind",
    srcs = ["nanobind/src/nb_combined.cpp"],
    hdrs = glob(["nanobind/include/**/*.h"]),
    copts = [
        "-w",
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
    ],
    defines = ["NB_COMPACT_ASSERTIONS"],
    includes = ["nanobind/include"],
    textual_hdrs = glob(
        [
            "nanobind/src/*",
            "nanobind/ext/robin_map/include/**/*.h",
        ],
        exclude = ["nanobind/src/nb_combined.cpp"],
    ),
    deps = [
        ":headers",
        ":robin_map",
    ],
)

cc_library(
    name = "robin_map",
    includes = ["nanobind/ext/robin_map/include"],
)
"""

_INFO = """
# Facts that BUILD files use.
PYTHON = "{python}"
PYTHON_VERSION = "{version}"
WHEEL_TAG = "cp{nodot}-cp{nodot}-linux_{machine}"
"""

def _python_impl(ctx):
    python = fact(ctx, "REVERB_PYTHON")
    version = fact(ctx, "REVERB_PYTHON_VERSION")
    nanobind = fact(ctx, "REVERB_NANOBIND_DIR")
    ctx.symlink(python, "python")
    ctx.symlink(fact(ctx, "REVERB_PYTHON_INCLUDE"), "include")
    for part in ["include", "src", "ext"]:
        ctx.symlink(nanobind + "/" + part, "nanobind/" + part)
    ctx.file("BUILD", _BUILD.format(python = python))
    ctx.file("info.bzl", _INFO.format(
        python = python,
        version = version,
        nodot = version.replace(".", ""),
        machine = ctx.execute(["uname", "-m"]).stdout.strip(),
    ))

python_repository = repository_rule(implementation = _python_impl, environ = FACTS, local = True)
