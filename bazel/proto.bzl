"""protoc and its gRPC plugin, the system's, as genrules around our few .proto files.

    reverb_proto_library(name, srcs, deps, grpc)    a C++ library: x.pb.h, and x.grpc.pb.h with grpc = True
    reverb_py_proto_library(name, srcs, deps)       a Python library: x_pb2.py beside the .proto, for tests
"""

def _names(srcs, endings):
    for src in srcs:
        if not src.endswith(".proto"):
            fail("%s is not a .proto" % src)
    return [src[:-len(".proto")] + ending for src in srcs for ending in endings]

def reverb_proto_library(name, srcs, deps = [], grpc = False, visibility = ["//visibility:public"]):
    """Compiles `srcs` (files of this package) to C++.

    Args:
      deps: other reverb_proto_library targets whose .proto files these import.
      grpc: also generate services and link gRPC.
    """
    imported = [dep + "_protos" for dep in deps]
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + imported,
        visibility = visibility,
    )
    headers = _names(srcs, [".pb.h"] + ([".grpc.pb.h"] if grpc else []))
    sources = _names(srcs, [".pb.cc"] + ([".grpc.pb.cc"] if grpc else []))
    plugin = "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) --grpc_out=$(GENDIR) " if grpc else ""
    native.genrule(
        name = name + "_generated",
        srcs = srcs + imported,
        outs = headers + sources,
        cmd = "protoc --proto_path=. --cpp_out=$(GENDIR) " + plugin + " ".join(["$(location %s)" % src for src in srcs]),
    )
    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        copts = ["-w"],  # Generated.
        visibility = visibility,
        deps = deps + (["@system//:grpc++"] if grpc else ["@system//:protobuf"]),
    )

def reverb_py_proto_library(name, srcs, deps = [], visibility = ["//visibility:public"]):
    """Compiles `srcs` to Python. deps: reverb_proto_library targets whose .proto files these import."""
    native.genrule(
        name = name + "_generated",
        srcs = srcs + [dep + "_protos" for dep in deps],
        outs = _names(srcs, ["_pb2.py"]),
        visibility = visibility,
        cmd = "protoc --proto_path=. --python_out=$(GENDIR) " + " ".join(["$(location %s)" % src for src in srcs]),
    )
    native.py_library(
        name = name,
        srcs = [":" + name + "_generated"],
        visibility = visibility,
    )
