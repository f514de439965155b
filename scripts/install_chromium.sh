#!/bin/sh
# Chromium for tests/browser, from Debian's packages. Quick and harmless where it cannot be had: the tests are
# then skipped by name.
set -u
for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
[ -n "${CHROMIUM:-}" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
    echo "no Chromium: tests of the report in a browser will be skipped (install it, or set CHROMIUM)" >&2
    exit 0
fi
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; }
install || { apt-get update -qq >/dev/null 2>&1 && install; } ||
    echo "Chromium cannot be installed: tests of the report in a browser will be skipped" >&2
exit 0
