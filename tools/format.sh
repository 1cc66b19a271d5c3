#!/usr/bin/env bash
# Formats all C++ and Python that git knows or would add. `tools/format.sh --check` only says what is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(-i)
python_mode=()
if [[ "${1:-}" == --check ]]; then
  mode=(--dry-run -Werror)
  python_mode=(--check)
fi
git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' | xargs -0 --no-run-if-empty clang-format "${mode[@]}"
.venv/bin/python -m ruff format --quiet "${python_mode[@]}"
