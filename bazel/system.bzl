"""@system: the libraries that the distribution packages. Their headers are on the compiler's own path.

configure.py has checked with pkg-config that each is there and new enough.
"""

# name: what to link. abseil's list is what its containers, hashing and strings need; --as-needed drops the rest.
_ABSL = [
    "-labsl_synchronization",
    "-labsl_raw_hash_set",
    "-labsl_hash",
    "-labsl_city",
    "-labsl_low_level_hash",
    "-labsl_strings",
    "-labsl_strings_internal",
    "-labsl_str_format_internal",
    "-labsl_cord",
    "-labsl_cord_internal",
    "-labsl_status",
    "-labsl_statusor",
    "-labsl_time",
    "-labsl_int128",
    "-labsl_throw_delegate",
    "-labsl_raw_logging_internal",
    "-labsl_base",
]

_LIBRARIES = {
    "absl": _ABSL,
    "gmock": ["-lgmock", "-lgtest", "-lpthread"],
    "grpc++": ["-lgrpc++", "-lgrpc", "-lgpr", "-lprotobuf"] + _ABSL,
    "grpc++_reflection": ["-lgrpc++_reflection", "-lgrpc++", "-lgrpc", "-lgpr", "-lprotobuf"] + _ABSL,
    "gtest": ["-lgtest", "-lpthread"],
    "gtest_main": ["-lgmock_main", "-lgmock", "-lgtest", "-lpthread"],
    "protobuf": ["-lprotobuf"],
    "snappy": ["-lsnappy"],
    "zlib": ["-lz"],
}

_TEMPLATE = """
cc_library(
    name = "{name}",
    linkopts = {linkopts},
)
"""

def _system_impl(ctx):
    text = "package(default_visibility = [\"//visibility:public\"])\n"
    for name in sorted(_LIBRARIES):
        linkopts = ["-Wl,--push-state,--as-needed"] + _LIBRARIES[name] + ["-Wl,--pop-state"]
        text += _TEMPLATE.format(name = name, linkopts = repr(linkopts))
    ctx.file("BUILD", text)

system_repository = repository_rule(implementation = _system_impl, local = True)
