#!/usr/bin/env bash
# Every function that docs/seeds.md names is in the file that it names, and every case in the catalogue.
set -euo pipefail
root=$1
assay=$2
cases=$("$assay" list | awk '{print $1}')
failed=0
functions=0
complain() {
  echo "FAILED: docs/seeds.md: $1"
  failed=1
}
while IFS='|' read -r _ there here used _; do
  [[ $there == *there* || $there == *---* || -z $here ]] && continue
  function=$(sed -n 's/.*`\([a-zA-Z_0-9]*\)` in .*/\1/p' <<<"$here")
  file=$(grep -o ' in [a-z_/0-9]*\.[ch]' <<<"$here" | head -1 | cut -c5-)
  [[ -n $function && -n $file ]] || { complain "no function and file for$there"; continue; }
  functions=$((functions + 1))
  [[ -f $root/$file ]] || { complain "no file $file"; continue; }
  grep -qw "$function" "$root/$file" || complain "no $function in $file"
  for name in $(grep -o '`[^`]*`' <<<"$used" | tr -d '`'); do
    grep -qxF "$name" <<<"$cases" || complain "no case $name"
  done
done < <(grep '^|' "$root/docs/seeds.md")
[[ $functions -ge 60 ]] || complain "only $functions functions"
exit $failed
