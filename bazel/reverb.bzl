"""The rules that BUILD files use: our compile flags, test tags and runners in one place.

    reverb_cc_library(name, srcs, hdrs, deps)          a C++ library
    reverb_cc_test(name, srcs, deps)                   a googletest program; gmock and a main are linked in
    reverb_cc_shared(name, srcs, deps, version_script) a shared library, named by its file
    reverb_py_test(name, srcs, deps, data)             a pytest file
"""

# C++17 and the ABI are given for everything in .bazelrc, since all three binaries must agree on them.
REVERB_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    # Callbacks and overrides often leave a parameter unused.
    "-Wno-unused-parameter",
]

# C++ packages that hold no foreign threads, hence can run under ThreadSanitizer: the system's gRPC and
# abseil are not instrumented, and their locks look like races to it.
_TSAN_PACKAGES = [
    "cc/base",
    "cc/compress",
    "cc/core",
    "cc/store",
    "cc/service",
    "cc/client",
]

# Layers whose users are listed in the root's BUILD file. The others (base, api) are for all.
_LAYERS = ["compress", "core", "store", "service", "client", "rpc", "checkpoint"]

def _in_packages(packages):
    here = native.package_name()
    for package in packages:
        if here == package or here.startswith(package + "/"):
            return True
    return False

def _visibility():
    for layer in _LAYERS:
        if _in_packages(["cc/" + layer]):
            return ["//:users_of_" + layer]
    return ["//visibility:public"]

def reverb_cc_library(name, copts = [], visibility = None, **kwargs):
    """A cc_library with our flags, visible to the layers above its own."""
    native.cc_library(
        name = name,
        copts = REVERB_COPTS + copts,
        visibility = visibility or _visibility(),
        **kwargs
    )

def reverb_cc_test(name, srcs, deps = [], data = [], copts = [], tags = [], size = "medium", tsan = None, **kwargs):
    """A googletest program.

    Args:
      tsan: whether it runs under `--config=tsan`; by default, when it stands in a package that can.
      tags: "manual" keeps it out of `//...`; "noasan" out of `--config=asan`.
    """
    if tsan == None:
        tsan = _in_packages(_TSAN_PACKAGES)
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = REVERB_COPTS + copts,
        data = data + ["//bazel:lsan.supp"],
        size = size,
        tags = tags + ["cc"] + (["tsan"] if tsan else []),
        deps = deps + ["@system//:gtest_main"],
        **kwargs
    )

def reverb_cc_shared(name, version_script = None, link_files = [], undefined = False, copts = [], linkopts = [], **kwargs):
    """A shared library.

    Args:
      name: the file's name, e.g. "_native.so".
      version_script: says which symbols are exported.
      link_files: shared libraries to link by their path, so that no search path into this build is written into the
        result: whoever loads it has loaded them before.
      undefined: whether symbols may be left to the process that loads it, as a Python extension does.
    """
    scripts = [version_script] if version_script else []
    native.cc_binary(
        name = name,
        linkshared = True,
        linkstatic = True,
        copts = REVERB_COPTS + copts,
        additional_linker_inputs = scripts + link_files,
        linkopts = linkopts +
                   ([] if undefined else ["-Wl,-z,defs"]) +
                   ["-Wl,--version-script=$(location %s)" % s for s in scripts] +
                   ["$(location %s)" % f for f in link_files],
        **kwargs
    )

def reverb_py_test(name, srcs, deps = [], data = [], args = [], tags = [], size = "medium", **kwargs):
    """Runs pytest on `srcs`, with the workspace's root on sys.path, so `import reverb_tf` finds the built package."""
    native.py_test(
        name = name,
        srcs = srcs + ["//bazel:pytest_main.py"],
        main = "//bazel:pytest_main.py",
        args = ["$(location %s)" % src for src in srcs] + args,
        data = data,
        python_version = "PY3",
        size = size,
        tags = tags + ["py"],
        deps = deps,
        **kwargs
    )
