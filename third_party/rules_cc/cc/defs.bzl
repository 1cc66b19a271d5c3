"""The rules of rules_cc, as the native rules that Bazel 4 still has built in. See third_party/README.md."""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
objc_import = native.objc_import
objc_library = native.objc_library

# Loaded by Bazel's own tools, never instantiated here.
cc_flags_supplier = None
