#!/bin/sh
# What Bazel may stamp into the wheel.
echo "GIT_COMMIT $(git describe --always --dirty 2>/dev/null)"
