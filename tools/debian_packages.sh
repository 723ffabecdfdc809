#!/bin/sh
# Make sure of what the build needs from Debian: a C compiler, its headers, and Python's venv.
# Installs only what is missing: as root, else through sudo, else it prints the command and stops.
# Usage: debian_packages.sh PYTHON [PACKAGE...]
# PACKAGE: needed as well: one of Vulkan's, or one that brings a command of its own name.
set -eu

python=$1
shift

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "tierd needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3" >&2
    exit 1
fi

# Whether the Vulkan loader lists such a file (a pattern) in its data folders.
loader_lists() {
    IFS=:
    for data in ${XDG_DATA_DIRS:-/usr/local/share:/usr/share}; do
        for file in "$data"/vulkan/$1; do
            [ ! -e "$file" ] || return 0
        done
    done
    return 1
}

# Whether the compiler finds a header.
has_header() {
    printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | gcc -E - >/dev/null 2>&1
}

# Whether what a package is needed for is there, wherever it came from.
present() {
    case $1 in
        libvulkan1) "$python" -c 'import ctypes; ctypes.CDLL("libvulkan.so.1")' 2>/dev/null ;;
        mesa-vulkan-drivers) (loader_lists 'icd.d/lvp_icd*.json') ;;
        vulkan-validationlayers) (loader_lists explicit_layer.d/VkLayer_khronos_validation.json) ;;
        libvulkan-dev) has_header vulkan/vulkan.h ;;
        libfmt-dev) has_header fmt/core.h ;;
        pybind11-dev) has_header pybind11/pybind11.h ;;
        nodejs) command -v node >/dev/null ;;
        systemd) command -v systemd-analyze >/dev/null ;;
        bubblewrap) command -v bwrap >/dev/null ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

packages=""
command -v gcc >/dev/null || packages="$packages gcc"
echo '#include <pthread.h>' | gcc -E - >/dev/null 2>&1 || packages="$packages libc6-dev"
"$python" -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3-venv"
for needed in "$@"; do
    present "$needed" || packages="$packages $needed"
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
