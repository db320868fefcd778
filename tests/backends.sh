#!/usr/bin/env bash
# ci/backends where no library is installed: it says that nothing was tried, and no more.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#!/bin/sh\nexit 1\n' >"$work/dpkg-query"
chmod +x "$work/dpkg-query"
status=0
PATH=$work:$PATH ASSAY=/bin/true "$root/ci/backends" --quick --no-setup torch jax >"$work/out" 2>&1 || status=$?
[ "$status" -eq 3 ] && grep -q '^ci/backends: nothing was tried' "$work/out" && ! grep -q explained "$work/out" ||
  { echo "status $status, expected 3:"; cat "$work/out"; exit 1; }
