#!/usr/bin/env bash
# The example backend through the program: right, it passes every operation; with each of its planted errors it fails on a
# case made for that, and the diagnosis names the mutant or says that it does not know. usage: planted_bugs.sh PROGRAM BACKEND
set -euo pipefail
assay=$1 backend=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../../tests/cli_test.sh"

table=$(grep -v '^#' "$here/planted_bugs.txt")
known=$(sed -n 's/^ *X([A-Z_0-9]*, "\([a-z_0-9]*\)".*/\1/p' "$here/../example.h" | sort)
[ "$known" = "$(awk '{print $1}' <<<"$table" | sort)" ] || complain "BUG_TABLE and planted_bugs.txt differ"

mapfile -t cases < <(awk '{print $2}' <<<"$table" | sort -u)
expect 0 run "${cases[@]}" rms_norm/deepseek deepseek_layer/moe deepseek_stack/three-layers --set profiles=bf16 --backend "$backend" --quiet
prints "^$((${#cases[@]} + 3)) cases: $((${#cases[@]} + 3)) passed, "

while read -r bug case where name; do
  ASSAY_EXAMPLE_BUG=$bug expect 1 run "$case" --set profiles=bf16 --backend "$backend" --quiet
  prints "^FAIL *$case *$where:"
  case $name in
  unknown) prints '^    known bugs: no known bug explains it' ;;
  *) prints "^    known bugs: equals mutant (.* or )?$name \\(" ;;
  esac
done <<<"$table"
echo "$checks calls"
