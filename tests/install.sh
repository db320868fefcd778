#!/usr/bin/env bash
# Installs into a folder of its own; the program runs from there, a user's program finds library and headers through pkg-config, and
# the examples of tests in process through find_package.
# usage: install.sh BUILD_FOLDER COMPILER [FLAG...]
set -euo pipefail
build=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
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

export ASSAY_CACHE=$work/cache
case $(basename "$1") in
*clang*) cxx=${1/clang/clang++} ;;
*gcc*) cxx=${1/gcc/g++} ;;
*) cxx=${1%cc}c++ ;;
esac
{
  cmake -G Ninja -S examples/in_process -B "$work/examples" -DCMAKE_PREFIX_PATH="$work/usr" -DCMAKE_C_COMPILER="$1" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_C_FLAGS="${*:2}" -DCMAKE_CXX_FLAGS="${*:2}" &&
    cmake --build "$work/examples" && ctest --test-dir "$work/examples" --output-on-failure --no-tests=error
} >"$work/log" 2>&1 || { cat "$work/log" >&2; complain "the examples of tests in process"; }
[ "$(find "$ASSAY_CACHE" -name '*.golden.h5' | wc -l)" = 2 ] || complain "goldens of two cases are kept"

# The library exports no name but its own
lib=$(echo "$library"/libassay.so)
foreign=$(nm -D --defined-only "$lib" | awk '$3 !~ /^assay_/ {print $3}' | head -5)
[ -z "$foreign" ] || complain "the library exports" $foreign
echo "installed: program, library, headers, pkg-config file and CMake package; the examples pass"
