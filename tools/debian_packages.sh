#!/bin/sh
# Make sure of what the build needs from Debian: a C compiler, its headers, and Python's venv.
# Installs only what is missing: as root, else through sudo, else it prints the command and stops.
# Usage: debian_packages.sh PYTHON [COMMAND...]
# COMMAND: needed as well; Debian's package has the same name.
set -eu

python=$1
shift

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "tierd needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3" >&2
    exit 1
fi

packages=""
command -v gcc >/dev/null || packages="$packages gcc"
echo '#include <pthread.h>' | gcc -E - >/dev/null 2>&1 || packages="$packages libc6-dev"
"$python" -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3-venv"
for needed in "$@"; do
    command -v "$needed" >/dev/null || packages="$packages $needed"
done
[ -n "$packages" ] || exit 0

command="apt-get update && apt-get install --yes --no-install-recommends$packages"
if command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    if [ "$(id -u)" = 0 ]; then
        echo "Installing from Debian:$packages"
        exec sh -c "$command"
    fi
    if command -v sudo >/dev/null; then
        echo "Installing from Debian, through sudo:$packages"
        if [ -t 0 ]; then sudo sh -c "$command" && exit; else sudo -n sh -c "$command" && exit; fi
    fi
fi
echo "Some packages are missing. Have an administrator run this, then try again:" >&2
echo "    sudo sh -c '$command'" >&2
exit 1
