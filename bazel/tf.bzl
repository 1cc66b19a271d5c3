"""@tf: TensorFlow as its wheel ships it, in two targets, by symlink: nothing is copied."""

load("//bazel:facts.bzl", "FACTS", "fact")

_BUILD = """
package(default_visibility = ["//visibility:public"])

# The folders that a kernel's includes reach. The wheel ships five times as many headers (for GPUs, other
# runtimes and their tests), and each input of a compilation costs a look at it.
cc_library(
    name = "headers",
    hdrs = glob(
        [
            "include/Eigen/**",
            "include/absl/**",
            "include/google/**",
            "include/ml_dtypes/**",
            "include/tensorflow/c/**",
            "include/tensorflow/core/**",
            "include/tsl/**",
            "include/unsupported/**",
            "include/xla/tsl/**",
        ],
    ),
    # As TensorFlow itself was compiled: its tensors' alignment is part of its ABI.
    defines = ["EIGEN_MAX_ALIGN_BYTES=64"],
    includes = ["include"],
)

# For reverb_cc_shared(link_files = ...).
filegroup(
    name = "framework",
    srcs = ["{framework}"],
)
"""

_INFO = """
TF_VERSION = "{version}"
COMPILER = "{compiler}"
"""

def _tf_impl(ctx):
    framework = fact(ctx, "REVERB_TF_FRAMEWORK")
    ctx.symlink(fact(ctx, "REVERB_TF_INCLUDE"), "include")
    ctx.symlink(fact(ctx, "REVERB_TF_LIB_DIR") + "/" + framework, framework)
    ctx.file("BUILD", _BUILD.format(framework = framework))
    ctx.file("info.bzl", _INFO.format(
        version = fact(ctx, "REVERB_TF_VERSION"),
        compiler = fact(ctx, "REVERB_COMPILER"),
    ))

tf_repository = repository_rule(implementation = _tf_impl, environ = FACTS, local = True)
