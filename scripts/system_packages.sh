#!/bin/sh
# Debian packages that some tests use: scripts/system_packages.sh PACKAGE...
# Quick and harmless where they cannot be had: those tests are then skipped by name.
set -u
wanted=
for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || wanted="$wanted $package"
done
[ -z "$wanted" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
    echo "not installed:$wanted. Tests that need it are skipped" >&2
    exit 0
fi
get() { timeout 300 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=10 "$@" >/dev/null 2>&1; }
# RUNLEVEL=1: no service is started, the tests start their own.
# shellcheck disable=SC2086
install() { DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 get install -y --no-install-recommends $wanted; }
install || { get update && install; } || echo "cannot be had:$wanted. Tests that need it are skipped" >&2
exit 0
