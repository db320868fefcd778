#!/usr/bin/env bash
# Installs into a folder of its own; the program runs from there, and a user's program finds library and headers through pkg-config.
# usage: install.sh BUILD_FOLDER COMPILER [FLAG...]
set -euo pipefail
build=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
complain() {
  echo "FAILED: $*" >&2
  exit 1
}

[[ $(ninja -C "$build" -t query harness/assay) == *libassay.so* ]] || complain "target assay leaves the library out, which --install wants"
cmake --install "$build" --prefix "$work/usr" >"$work/log" || { cat "$work/log" >&2; complain "cmake --install"; }
[[ $("$work/usr/bin/assay" list) == *moe/small* ]] || complain "the program"

cat >"$work/user.c" <<'C'
#include <assay.h>
#include <stdio.h>

int main(void)
{
    assay_context ctx = assay_context_default(1);
    const double x[2] = {3, 4}, scale[2] = {1, 2};
    double y[2], rstd[1];
    assay_rms_norm_forward(&ctx, y, rstd, x, scale, 1, 2, 0.0);
    printf("%.6f %.6f\n", y[0], y[1]);
    return 0;
}
C
pc=$(find "$work/usr" -name assay.pc)
export PKG_CONFIG_PATH=${pc%/*}
library=$(pkg-config --variable=libdir assay)
"$@" "$work/user.c" -o "$work/user" $(pkg-config --cflags --libs assay) -Wl,-rpath,"$library" || complain "a program with <assay.h>"
[ "$("$work/user")" = "0.848528 2.262742" ] || complain "the program gives $("$work/user")"
echo "installed: program, library, headers and pkg-config file"
