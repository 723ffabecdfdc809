#!/usr/bin/env bash
# Clone this repository into an empty folder and, with an empty HOME, run `make test` and `make serve`
# there, as a newcomer would. The clone holds what is committed.
# Usage: fresh_clone.sh [FOLDER]       FOLDER: where to work (a temporary one, removed afterwards)
set -euo pipefail

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ $# -gt 0 ]; then
    work=$1
    mkdir -p "$work"
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir "$work/home"
export HOME=$work/home
unset XDG_DATA_HOME XDG_CACHE_HOME TIERD_CONFIG TIERD_TEST_MODELS

git clone --quiet "$source" "$work/tierd"
cd "$work/tierd"
time make test
# The first run may still have something to build; the second must be quick.
python3 tests/bench/first_token.py --within 600
python3 tests/bench/first_token.py
