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
  names=$(grep -o '`[^`]*`' <<<"$used" | tr -d '`') || complain "no case for$there"
  for name in $names; do
    grep -qxF "$name" <<<"$cases" || complain "no case $name"
  done
done < <(grep '^|' "$root/docs/seeds.md")

# Every function of the batch-split module that has numbers is one of the op batch_split, with a case of it.
section=$(sed -n '/^## The batch-split model/,/^## /p' "$root/docs/seeds.md" | grep '^| `')
rows=0
while IFS='|' read -r _ there here used _; do
  [[ $here == *'no numbers'* || $here == *'no counterpart'* || $here == *'the op `deepseek_stack`'* ]] && continue
  for function in $(grep -o '`[^`]*`' <<<"$there" | tr -d '`'); do
    rows=$((rows + 1))
    grep -q "^    {\"$function\"[,}]" "$root/oracle/layer/batch_split_function.c" ||
      complain "$function is no function of the op batch_split"
    [[ $used == *batch_split/* ]] || complain "no case of op batch_split for $function"
  done
done <<<"$section"
[[ $rows -ge 50 ]] || complain "only $rows functions of the batch-split module"

# And the table has none that the document lacks.
for name in $(grep -o '^batch_split/[^ ]*' <<<"$cases"); do
  grep -qF "\`$name\`" <<<"$section" || complain "the case $name stands in no row"
done
[[ $functions -ge 60 ]] || complain "only $functions functions"
exit $failed
