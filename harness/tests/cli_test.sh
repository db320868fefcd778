# What cli.sh and run.sh share. The program under test is $assay.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks=0
complain() {
  echo "FAILED: $*" >&2
  [ ! -s "$work/out" ] || sed 's/^/  stdout: /' "$work/out" >&2
  [ ! -s "$work/err" ] || sed 's/^/  stderr: /' "$work/err" >&2
  exit 1
}

# expect STATUS ARGUMENT...: runs the program; standard output and error are left in $work/out and $work/err.
expect() {
  local wanted=$1 found=0
  shift
  "$assay" "$@" >"$work/out" 2>"$work/err" </dev/null || found=$?
  [ "$found" -eq "$wanted" ] || complain "status $found, expected $wanted: assay $*"
  [ "$found" -eq 2 ] || [ ! -s "$work/err" ] || complain "something on standard error: assay $*"
  checks=$((checks + 1))
}

# refuses PATTERN ARGUMENT...: status 2, nothing on standard output, one line on standard error that matches.
refuses() {
  local pattern=$1
  shift
  expect 2 "$@"
  [ ! -s "$work/out" ] || complain "something on standard output: assay $*"
  [ "$(wc -l <"$work/err")" -eq 1 ] || complain "standard error is not one line: assay $*"
  grep -q "^assay" "$work/err" || complain "the line does not begin with the program: assay $*"
  grep -Eq -- "$pattern" "$work/err" || complain "\"$pattern\" expected: assay $*"
}

# leaves_nothing FOLDER: no file in it, no partial one either.
leaves_nothing() {
  local left
  left=$(find "$1" ! -type d | head -3)
  [ -z "$left" ] || complain "left behind: $left"
}

# prints PATTERN: on standard output of the call before.
prints() {
  grep -Eq -- "$1" "$work/out" || complain "\"$1\" expected on standard output"
}
