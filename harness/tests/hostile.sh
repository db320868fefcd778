#!/usr/bin/env bash
# What hostile backends and sudden ends must not do: outlive a run, leave files, fill the disk, spoil another run. And a table of
# hostile backends with the verdict that each gets. usage: hostile.sh PROGRAM PYTHON LIBRARY EXAMPLE
# LIBRARY is the example backend with behaviours (behaviours.c), EXAMPLE the one without.
set -euo pipefail
assay=$1 python=$2 library=$3 example=$4
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
export TMPDIR=$work/temporary
mkdir "$TMPDIR"
case=rms_norm/one-row
run=("$assay" run "$case" --quiet --backend)

# until COMMAND...: waits until it succeeds, 10 s at most.
until_() {
  for ((i = 0; i < 200; i++)); do
    ! "$@" || return 0
    sleep 0.05
  done
  complain "not within 10 s: $*"
}
is_gone() { ! kill -0 "$1" 2>/dev/null; }
is_clean() { [ -z "$(ls -A "$TMPDIR")" ]; }
# background ARGUMENT...: a run that signals reach (the shell has its jobs ignore SIGINT); its number is $program.
background() {
  rm -f "$work"/*.pid
  "$python" -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "${run[@]}" "$@" >"$work/out" 2>"$work/err" &
  program=$!
}
daemon="setsid sh -c 'echo \$\$ >\"$work/daemon.new\"; mv \"$work/daemon.new\" \"$work/daemon.pid\"; exec sleep 300' & : {request} {candidate};"

## signals: the backend, its daemon and the folder go at once, and the signal is what ended the program
for signal in INT TERM HUP; do
  background "$daemon sleep 300"
  until_ test -s "$work/daemon.pid"
  kill -$signal "$program"
  status=0
  wait "$program" 2>/dev/null || status=$?
  [ "$status" -eq $((128 + $(kill -l $signal))) ] || complain "status $status after SIG$signal"
  is_clean || complain "left by SIG$signal: $(find "$TMPDIR")"
  until_ is_gone "$(cat "$work/daemon.pid")"
done
# SIGKILL leaves the folder; the next start removes it, but not a living one's, nor one that only looks like it
background "$daemon sleep 300"
until_ test -s "$work/daemon.pid"
dead=$program left=$(cd "$TMPDIR" && echo assay-*) gone=$(cat "$work/daemon.pid")
kill -KILL "$dead"
wait "$dead" 2>/dev/null || true
until_ is_gone "$gone"
[ -d "$TMPDIR/$left" ] || complain "no folder is left by SIGKILL"
mkdir "$TMPDIR/assay-backup"
background "$daemon sleep 300"
until_ test -s "$work/daemon.pid"
[ ! -e "$TMPDIR/$left" ] || complain "the folder of a dead process was not removed"
living=$(cd "$TMPDIR" && ls -d assay-* | grep -v backup)
expect 0 run "$case" --quiet --backend "$example"
[ -d "$TMPDIR/$living" ] && [ -d "$TMPDIR/assay-backup" ] || complain "removed: a living process's folder, or another's"
kill -TERM "$program"
wait "$program" 2>/dev/null || true
rmdir "$TMPDIR/assay-backup"
is_clean || complain "left: $(find "$TMPDIR")"

## daemons: they end with the run that started them
expect 1 run "$case" --quiet --backend "$daemon until [ -s '$work/daemon.pid' ]; do sleep 0.01; done"
is_gone "$(cat "$work/daemon.pid")" || complain "a daemon outlives its run"

## --keep: one run at a time
background "$daemon sleep 300" --keep "$work/kept"
until_ test -s "$work/daemon.pid"
refuses "--keep .*kept: another run of assay uses this folder now" run "$case" --backend "$example" --keep "$work/kept"
kill -KILL "$program"
wait "$program" 2>/dev/null || true
until_ is_gone "$(cat "$work/daemon.pid")"
expect 0 run "$case" --quiet --backend "$example" --keep "$work/kept"
[ -z "$(find "$work/kept" -name 'assay-run-*')" ] || complain "a dead run's folder stays in --keep"

## output: its end is kept, and an endless one ends with its time
expect 1 run "$case" --quiet --keep "$work/kept" \
  --backend "yes | head -c 300000000; echo; echo the end; exit 3 # {request} {candidate}"
prints 'ended with status 3: the end$'
[ "$(stat -c %s "$work/kept"/*.log)" -lt 8500000 ] || complain "the log has $(stat -c %s "$work/kept"/*.log) bytes"
head -1 "$work/kept"/*.log | grep -q '^(the beginning was left out)$' || complain "the log does not say that it is cut"
tail -1 "$work/kept"/*.log | grep -q '^the end$' || complain "the log has no end"
expect 1 run "$case" --quiet --timeout 0.5 --backend 'yes # {request} {candidate}'
prints 'took longer than 0.5 s'
expect 1 run "$case" --quiet --timeout 0.5 --serve --backend 'yes'
prints 'took longer than 0.5 s'

## memory
limits_hold=true # but under a sanitizer
(ulimit -v 3000000 && "$assay" --version) >/dev/null 2>&1 || limits_hold=false
if $limits_hold; then
  expect 1 run "$case" --quiet --memory 512M --backend "'$python' -c 'bytearray(1 << 30)' # {request} {candidate}"
  prints 'MemoryError'
  expect 0 run "$case" --quiet --memory 1G --backend "$example"
  BEHAVIOUR=takes_memory expect 1 fuzz --quiet --op rms_norm --cases 1 --memory 1G --backend "$library"
  prints 'repeat: .* --memory 1024M'
  expect 0 fuzz --quiet --op rms_norm --cases 1 --memory 1G --backend "$example"
fi
for size in 0G 512 -1G much 1e30G; do
  refuses "--memory is \"$size\", expected a size from 1M up" run "$case" --backend "$example" --memory=$size
done

## the table of hostile commands: what each does with {request} and {candidate}, the exit status and what is said
mkdir "$work/good"
expect 0 run "$case" --quiet --backend "$example" --keep "$work/good"
good=("$work"/good/*.candidate.h5)
[ -s "${good[0]}" ] || complain "no candidate"
table=(
  '0|PASS .*|cp "$good" {candidate}'
  '0|PASS .*|cp "$good" {candidate}; kill -TERM $PPID; sleep 0.1'
  '1|crashed: Killed|cp "$good" {candidate}; kill -KILL $PPID; sleep 10'
  '1|took longer|kill -STOP $PPID; sleep 10'
  '0|PASS .*|cp "$good" {candidate}; echo x >>{request}'
  '0|PASS .*|cp "$good" {candidate}; (sleep 0.05; echo x >{candidate}) &'
  '1|a link|ln -s "$good" {candidate}'
  '1|a link|ln -s {request} {candidate}'
  '1|a link|ln -s /nonexistent {candidate}'
  '1|a link|ln -s /dev/zero {candidate}'
  '1|candidate|mkfifo {candidate}'
  '1|candidate|mkdir {candidate}'
  '1|candidate|truncate -s 100G {candidate}'
  '1|candidate|: >{candidate}'
  '1|wrote no candidate|rm -rf "$(dirname {candidate})"'
  '1|ended with status 3|cp "$good" {candidate}; exit 3'
  '0|PASS .*|cp "$good" {candidate}; head -c 1000000 /dev/zero'
  '0|PASS .*|cp "$good" {candidate}; mkdir -p a/b; cd "$(dirname {candidate})"; mkdir -p d/e; touch d/e/f; chmod 500 d/e; chmod 0 d'
  '3|not mine|echo not mine; exit 77'
  '3|gave no reason|cp "$good" {candidate}; exit 77'
  '1|is no HDF5 file|echo hello >{candidate}'
  '0|PASS .*|cp "$good" {candidate}; truncate -s 100G {candidate}'
  '0|PASS .*|cat "$good" "$good" >{candidate}'
  '0|PASS .*|cp "$good" {candidate}; rm -f {request}'
  '1|the candidate is the request|cp {request} {candidate}'
  '1|is a link|ln {request} {candidate}'
  '1|left something at|mkdir "$(echo {request} | sed s/request/golden/)"; cp "$good" {candidate}'
  '1|left something at|ln -s "$good" "$(echo {request} | sed s/request/golden/)"; cp "$good" {candidate}'
  '1|ended with status 1|cp "$(dirname {request})"/*/*candidate.h5 {candidate}'
  '1|ended with status 1|cp "$(echo {request} | sed s/request/golden/)" {candidate}'
  '1|crashed: Segmentation fault|kill -SEGV $$'
  '1|crashed: Aborted|kill -ABRT $$'
  '1|took longer|trap "" TERM INT HUP; sleep 10'
  '1|took longer|cp "$good" {candidate}; exec sleep 10'
  '0|PASS .*|cp "$good" {candidate}; setsid sleep 300 &'
  '1|wrote no candidate|echo "assay: done"'
  '0|PASS .*|cp "$good" {candidate}; exec >&- 2>&- <&-'
)
commands=${#table[@]}
cd "$work"
for row in "${table[@]}"; do
  IFS='|' read -r status said command <<<"$row"
  limit=60
  [ "$said" != 'took longer' ] || limit=1
  expect "$status" run "$case" --quiet --timeout $limit --backend "good='${good[0]}'; : {request} {candidate}; $command"
  prints "$said"
  is_clean || complain "left by $command: $(find "$TMPDIR")"
done

## the table of hostile shared objects: exit status, behaviour, what is said
signals=handle_segv=0:handle_sigbus=0:handle_sigfpe=0 # they end a process under a sanitizer as without
export ASAN_OPTIONS=$signals:${ASAN_OPTIONS:-} TSAN_OPTIONS=$signals:${TSAN_OPTIONS:-}
table='
1 exits              wrote no candidate file: it ended the process
1 exits_at_once      wrote no candidate file: it ended the process
1 exits_1            ended with status 1
1 aborts             crashed: Aborted
1 segfaults          crashed: Segmentation fault
1 divides_by_zero    crashed: Floating point exception
3 exits_77           gave no reason
1 is_killed          crashed: Killed
1 gets_alarm         crashed: Alarm clock
1 stops              took longer than 1 s
1 hangs              took longer than 1 s
1 hangs_apart        took longer than 1 s
1 does_nothing       outputs/
0 ends_parent        PASS
1 kills_parent       crashed: Killed
1 stops_parent       took longer than 1 s
0 leaves_child       PASS
0 leaves_many        PASS
0 has_thread         PASS
0 ignores_signals    PASS
0 goes_away          PASS
0 takes_permissions  PASS
1 deletes_request    in a second run
0 prints_answer      PASS
1 fills_message      AAAA
1 colours            <b>&
1 hangs_at_exit      took longer than 1 s
1 aborts_at_exit     crashed: Aborted
1 takes_memory       gave no reason
0 prints_much        PASS
1 forges             is no HDF5 file
1 plants_golden      left something at
0 looks_for_golden   PASS
0 traces_parent      PASS
1 opens_all          cannot be written
0 flushes_denormals  PASS
1 writes_before      wrote before the buffer
1 writes_behind      wrote behind the buffer
1 writes_5000_behind wrote behind the buffer
1 writes_5000_before wrote before the buffer
1 gives_bad_type     set type 99
0 gives_null         PASS
1 says_not_written   outputs/
1 answers_5          gave no reason
1 rounds_up          different bits
0 closes_all         PASS
1 limits_files       cannot be written
1 limits_descriptors ended with status
1 changes_inputs     the backend changed inputs/x
1 differs            different bits
1 lacks_it_later     in a second run'
behaviours=0
while read -r status behaviour said; do
  [ -n "$behaviour" ] || continue
  [ "$behaviour" != takes_memory ] || $limits_hold || continue
  memory=()
  [ "$behaviour" != takes_memory ] || memory=(--memory 2G)
  limit=60
  [ "$said" != 'took longer than 1 s' ] || limit=1
  BEHAVIOUR=$behaviour expect "$status" run "$case" --quiet --timeout $limit --backend "$library" "${memory[@]}"
  prints "$said"
  is_clean || complain "left by $behaviour: $(find "$TMPDIR")"
  behaviours=$((behaviours + 1))
done <<<"$table"
for loaded in exits aborts; do
  BEHAVIOUR_LOADED=$loaded expect 1 run "$case" --quiet --backend "$library"
done
! pgrep -f "shared-object $library" >/dev/null || complain "what a backend left lives: $(pgrep -fa "shared-object $library")"

## what is shown of others' texts
expect 1 run "$case" --quiet -v --backend 'printf "\377\302\233red\033[2J\n"; exit 3 # {request} {candidate}'
! LC_ALL=C grep -q "$(printf '[\033\233\377]')" "$work/out" || complain "a backend's bytes reach the terminal"
printf 'case: a\nop: moe\nmodel: /etc/passwd\n' >"$work/foreign.yml"
refuses '/etc/passwd:1:1: model: expected a mapping \(key: value\), found a text$' show "$work/foreign.yml"

## HDF5 loads no filter for a candidate
mkdir "$work/plugins"
cp "$library" "$work/plugins/libfilter.so"
"$python" - "${good[0]}" "$work/filter.h5" <<'PY'
import sys

import h5py

with h5py.File(sys.argv[1]) as good, h5py.File(sys.argv[2], "w") as file:
    (name,) = [key for key in good["outputs"]][:1]
    y = good["outputs"][name]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(y.shape)
    plist.set_filter(32000, h5py.h5z.FLAG_OPTIONAL, ())
    group = file.create_group("outputs")
    dataset = h5py.h5d.create(group.id, name.encode(), h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple(y.shape), plist)
    dataset.write_direct_chunk((0,) * len(y.shape), bytes(4 * y.size))
PY
expect 0 generate "$case" -o "$work/golden.h5"
status=0
HDF5_PLUGIN_PATH=$work/plugins BEHAVIOUR_TRACE=$work/trace "$assay" compare "$work/golden.h5" "$work/filter.h5" >"$work/out" 2>"$work/err" || status=$?
[ "$status" -eq 1 ] || [ "$status" -eq 2 ] || complain "status $status of a candidate with an unknown filter"
[ ! -e "$work/trace" ] || complain "HDF5 has loaded a filter"

echo "$behaviours hostile shared objects, $commands hostile commands, $checks calls"
