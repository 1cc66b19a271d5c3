#!/usr/bin/env bash
# Formats all C++ that git knows or would add. `tools/format.sh --check` only says what is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(-i)
if [[ "${1:-}" == --check ]]; then mode=(--dry-run -Werror); fi
git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' | xargs -0 --no-run-if-empty clang-format "${mode[@]}"
