#!/usr/bin/env bash
# ci/layers on a small tree: silent on a good one, and one line for each thing that it must reject.
set -euo pipefail
layers=$(cd "$(dirname "$0")/.." && pwd)/ci/layers
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
git init -q

# A good tree: low/{a,b} below high/c, a test that looks inside.
plant() {
  git rm -rqf --ignore-unmatch .
  mkdir -p docs low/tests high other
  printf '```layers\nlow # the ground\n--- the core ends here ---\nhigh\n```\n' >docs/conventions.md
  printf 'int a(int x);\n' >low/a.h
  printf '#include "low/a.h"\n\nint a(int x)\n{\n    return x;\n}\n' >low/a.c
  printf 'int b(int x);\n' >low/low_internal.h
  printf '#include "low/a.h"\n#include "low/low_internal.h"\n\nint b(int x)\n{\n    return a(x);\n}\n' >low/b.c
  printf '#include "low/low_internal.h"\n' >low/tests/test_b.c
  printf 'int c(int x);\n' >high/c.h
  printf '#include "high/c.h"\n#include "low/a.h"\n\nint c(int x)\n{\n    int b = a(x); /* b() and "high/c.h" */\n    return b;\n}\n' >high/c.c
  git add -A
}

passes() {
  "$layers" "$work" >out || { echo "FAILED: a tree where $1 is refused:" >&2; cat out >&2; exit 1; }
}

# Two arguments: what is wrong, a pattern for the line that says so.
fails() {
  git add -A
  if "$layers" "$work" >out; then echo "FAILED: passes where $1" >&2; exit 1; fi
  grep -q "$2" out || { echo "FAILED: where $1, no line has '$2':" >&2; cat out >&2; exit 1; }
}

plant
passes "nothing is wrong"

plant
sed -i '1i #include "high/c.h"' low/b.c
fails "an include points up" 'low/b.c:1: includes high/c.h, which stands above it'

plant
sed -i '1i #include "low/low_internal.h"' high/c.c
fails "another folder's insides are included" 'high/c.c:1: includes low/low_internal.h, the insides of another folder'

plant # declared low, defined high
echo 'int c(int x);' >>low/a.h
sed -i 's/return x;/return c(x);/' low/a.c
fails "a call points up" 'low/a.c: uses c of high/c.c, which stands above it'

plant
sed -i -e '1i #include "low/low_internal.h"' -e 's/return x;/return b(x);/' low/a.c
fails "two files call each other" 'circle of low/a.c, low/b.c'

plant
echo '#include "low/low_internal.h"' >>low/a.h
echo '#include "low/a.h"' >>low/low_internal.h
fails "headers include each other" 'circle of includes: low/a.h, low/low_internal.h'

plant
echo 'int d;' >other/d.c
fails "a folder is not in the list" 'other/d.c: lies in no folder of the list'

plant
echo 'int t;' >low/tests/t.h
sed -i '1i #include "low/tests/t.h"' low/b.c
fails "what is shipped includes a test's header" 'low/b.c:1: includes low/tests/t.h, which belongs to tests'

plant
echo '#include "high/c.h"' >>low/tests/test_b.c
fails "a test looks up" 'low/tests/test_b.c:2: includes high/c.h, which stands above it'

plant
seq 200000 >low/tests/many.h
fails "tests have many lines" 'lines of C, tests: 200001, expected at most'

plant
seq 200000 >high/many.h
fails "the product has many lines" 'lines of C, the product: '
echo "layers: one good tree passes, 11 bad ones fail"
