#!/bin/sh
# Put the commands of Prometheus into a folder: those that are there, else out of Debian's package.
# The package is not installed, as it would start a service; nor does this take an administrator.
# Usage: unpack_prometheus.sh FOLDER
set -eu

folder=$1
mkdir -p "$folder"

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    ln -sf "$(command -v prometheus)" "$(command -v promtool)" "$folder"
    exit
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "prometheus and promtool are missing: install Prometheus 2.42 or newer, then try again" >&2
    exit 1
fi

there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
chmod 755 "$there"

# Where no list of packages is there yet, it takes an administrator to fetch one.
download() { (cd "$there" && apt-get -qq download prometheus 2>/dev/null); }
update() { if [ "$(id -u)" = 0 ]; then apt-get -qq update; else sudo -n apt-get -qq update; fi; }
if ! download && ! { update && download; }; then
    echo "Prometheus cannot be had from Debian. Have an administrator run this, then try again:" >&2
    echo "    sudo apt-get update" >&2
    exit 1
fi
echo "Unpacking from Debian: $(basename "$there"/*.deb)"
dpkg-deb --fsys-tarfile "$there"/*.deb |
    tar --extract --directory "$folder" --strip-components 3 ./usr/bin/prometheus ./usr/bin/promtool
