#!/bin/sh
# Installs a wheel: run_install.sh PYTHON WHEEL. Its dependencies are there, since it was built against them.
set -eu
exec "$1" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$2"
