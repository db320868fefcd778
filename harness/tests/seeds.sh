#!/usr/bin/env bash
# Every function that oracle/README.md names is in the file that it names, and every case in the catalogue.
set -euo pipefail
root=$1
assay=$2
cases=$("$assay" list | awk '{print $1}')
failed=0
functions=0
complain() {
  echo "FAILED: oracle/README.md: $1"
  failed=1
}
while IFS='|' read -r _ there here used _; do
  [[ $there == *there* || $there == *---* || -z $here ]] && continue
  function=$(sed -n 's/.*`\([a-zA-Z_0-9]*\)` in .*/\1/p' <<<"$here")
  file=$(grep -o ' in [a-z_/0-9]*\.[ch]' <<<"$here" | head -1 | cut -c5- || true)
  [[ -n $function && -n $file ]] || { complain "no function and file for$there"; continue; }
  functions=$((functions + 1))
  [[ -f $root/$file ]] || { complain "no file $file"; continue; }
  grep -qw "$function" "$root/$file" || complain "no $function in $file"
  names=$(grep -o '`[^`]*`' <<<"$used" | tr -d '`') || complain "no case for$there"
  for name in $names; do
    grep -qxF "$name" <<<"$cases" || complain "no case $name"
  done
done < <(grep '^|' "$root/oracle/README.md")

# A case of op batch_split is of a function in the table of docs/operations.md, which ci/tables makes from the functions' own table.
section=$(sed -n '/made by ci\/tables: batch-split-functions/,/<!-- end -->/p' "$root/docs/operations.md")
section+=$(sed -n '/^## batch_split/,/made by ci\/tables/p' "$root/docs/operations.md")
prefixes=$(cut -d '|' -f 2 <<<"$section" | grep -o '`[a-z_]*`' | tr -d '`' | tr _ - | sort -u)
[[ $(wc -l <<<"$prefixes") -ge 60 ]] || complain "only $(wc -l <<<"$prefixes") functions of the batch-split module in docs/operations.md"
for name in $(grep -o '^batch_split/[^ ]*' <<<"$cases"); do
  of_a_function=
  for prefix in $prefixes; do
    [[ $name == batch_split/$prefix* ]] && of_a_function=yes && break
  done
  [[ -n $of_a_function ]] || complain "the case $name is of no function of docs/operations.md"
done
[[ $functions -ge 60 ]] || complain "only $functions functions"
exit $failed
