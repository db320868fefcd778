#!/usr/bin/env bash
# Every command while a call of the system fails: the first time that it is made, the second ..., alone and from then on. No crash, no wrong
# verdict, no half file, nothing left behind. usage: failing_calls.sh PROGRAM LIBRARY EXAMPLE [MOST]
# LIBRARY is failing_call.c, EXAMPLE the example backend; each call fails up to its MOST-th time (3).
set -euo pipefail
assay=$1 library=$2 example=$3 most=${4:-3}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
export TMPDIR=$work/temporary
case=rms_norm/one-row
mkdir "$TMPDIR" "$work/made"
if ! (ulimit -v 3000000 && "$assay" --version) >/dev/null 2>&1; then
  echo "a sanitizer must be loaded first: nothing is tried"
  exit 0
fi
expect 0 run "$case" --quiet --backend "$example" --keep "$work/good"
golden=$(ls "$work"/good/*.golden.h5) candidate=$(ls "$work"/good/*.candidate.h5)
expect 0 generate "$case" --set seed=7 -o "$work/other.h5"
made=$work/made
commands=(
  "generate $case -o $made/new.h5 --quiet"
  "request $case -o $made/new.safetensors --quiet"
  "compare $golden $candidate --json $made/r.json --junit $made/r.xml --html $made/r.html --quiet"
  "run $case --backend $example --json $made/r.json --quiet"
  "run $golden --backend $example --keep $made/kept --quiet"
  "verify $golden --budget 0"
  "power $golden --json $made/r.json"
  "convert $golden $made/new.safetensors"
  "list mlp/* --json"
  "show mlp/silu --graph --svg $made/steps.svg"
)
failing=(fsync rename linkat pwrite pread ftruncate fork pipe2 socketpair mkdtemp)
tried=0 noticed=0
for command in "${commands[@]}"; do
  for call in "${failing[@]}"; do
    for ((at = 1; at <= most; at++)); do
      for on in '' 1; do
        status=0
        env LD_PRELOAD="$library" FAIL_CALL="$call" FAIL_AT="$at" FAIL_ERRNO="$((at % 2 ? 5 : 28))" ${on:+FAIL_ON=1} \
          "$assay" $command >"$work/out" 2>"$work/err" || status=$?
        tried=$((tried + 1))
        what="$call fails at $at ${on:+and on }in assay $command"
        case $status in
        0) [ ! -s "$work/err" ] || complain "status 0 with a message: $what" ;;
        2)
          noticed=$((noticed + 1))
          [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q '^assay' "$work/err" || complain "no line: $what"
          ;;
        *) complain "status $status: $what" ;;
        esac
        [ -z "$(ls -A "$TMPDIR")" ] || complain "left by $what: $(find "$TMPDIR")"
        [ -z "$(find "$made" -name '*partial*' -o -name 'assay-run-*')" ] || complain "left by $what: $(find "$made")"
        for file in "$made"/*.h5 "$made"/*.safetensors; do
          [ ! -e "$file" ] || "$assay" convert "$file" "$work/again.safetensors" >/dev/null || complain "half a file: $what"
        done
        rm -rf "${made:?}"/*
      done
    done
  done
done
[ "$noticed" -gt 0 ] || complain "no call failed"
echo "$tried runs with a failing call, $noticed of them ended with a message"
