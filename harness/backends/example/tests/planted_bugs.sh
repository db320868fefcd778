#!/usr/bin/env bash
# The example backend through the program: right, it passes every operation; with each of its planted errors it fails on a
# case made for that, and the diagnosis names the mutant, or the verdict what is wrong with the choice. usage: planted_bugs.sh PROGRAM BACKEND
set -euo pipefail
assay=$1 backend=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../../tests/cli_test.sh"

table=$(grep -v '^#' "$here/planted_bugs.txt")
known=$(sed -n 's/^ *X([A-Z_0-9]*, "\([a-z_0-9]*\)".*/\1/p' "$here/../example.h" | sort)
[ "$known" = "$(awk '{print $1}' <<<"$table" | sort)" ] || complain "BUG_TABLE and planted_bugs.txt differ"

mapfile -t cases < <(awk '{print $2}' <<<"$table" | sort -u)
expect 0 generate "${cases[@]}" rms_norm/deepseek --set profiles=bf16 -o "$work/goldens" --quiet
expect 0 run "$work/goldens" --backend "$backend" --quiet
prints "^$((${#cases[@]} + 1)) cases: $((${#cases[@]} + 1)) passed, "

# The router's gradient at experts that no token chose is what cancels but for the rounding of a sum over the chosen ones.
expect 0 run moe/qwen3 --set fused_moe_func=true --seed 97 --set profiles=bf16 --backend "$backend" --quiet
expect 0 run moe/qwen3 --set fused_moe_func=true --seed 86 --set profiles=bf16 --backend "$backend" --quiet

while read -r bug case where name; do
  ASSAY_EXAMPLE_BUG=$bug expect 1 run "$work/goldens/$case.h5" --backend "$backend" --quiet
  prints "^FAIL *$case *$where:"
  case $name in
  *" "*) prints "^FAIL *$case *$where: .*$name" ;;
  *) prints "^    known bugs: equals mutant (.* or )?$name \\(" ;;
  esac
done <<<"$table"
# Other choices than the golden's, which a correct backend may make: the golden is evaluated again given them.
again="compared with the golden evaluated again given the candidate's choice"
near='moe/near-ties-bf16 moe/near-ties-bf16-groups'
ASSAY_EXAMPLE_VARIANT=ascending_slots expect 0 run moe/small moe/near-ties moe/deepseek3-groups $near \
  --set profiles=bf16 --precision bf16 --backend "$backend" --quiet -v
[ "$(grep -c "routing: .* 0 admissible, 0 wrong; $again" "$work/out")" -eq 5 ] || complain "five cases evaluated again"
ASSAY_EXAMPLE_VARIANT=bf16_router expect 0 run $near --precision bf16_router --backend "$backend" --quiet -v
[ "$(grep -c "routing: .* exact, [1-9][0-9]* admissible, 0 wrong; $again" "$work/out")" -eq 2 ] || complain "admissible choices"
# ... which the profile bf16 does not claim
ASSAY_EXAMPLE_VARIANT=bf16_router expect 1 run $near --precision bf16 --backend "$backend" --quiet
prints "^FAIL *moe/near-ties-bf16 *routing/selected_experts: token .* times what errors allow"
ASSAY_EXAMPLE_BUG=ties_to_higher expect 1 run moe/near-ties --backend "$backend" --quiet --keep "$work/kept" \
  --json "$work/ties.json" --junit "$work/ties.xml"
prints "^FAIL *moe/near-ties *routing/selected_experts: token .* ties with it exactly: the lower index comes first"
grep -q '"wrong":[[:space:]]*[1-9]' "$work/ties.json" || complain "wrong tokens expected in JSON"
grep -q '<property name="routing" value="12 tokens: ' "$work/ties.xml" || complain "routing expected in JUnit"
# assay compare says the same
expect 1 compare "$work"/kept/moe-near-ties.golden.h5 "$work"/kept/moe-near-ties.candidate.h5
prints "ties with it exactly: the lower index comes first"
ASSAY_EXAMPLE_VARIANT=ascending_slots expect 0 run moe/small --backend "$backend" --quiet --keep "$work/kept"
expect 0 compare "$work"/kept/moe-small.golden.h5 "$work"/kept/moe-small.candidate.h5
prints "$again"
# Copies for one expert in another order: right, and judged by that order
ASSAY_EXAMPLE_VARIANT=last_tokens_first expect 0 run moe/small moe/deepseek3-tiny-checkpoints --set profiles=bf16 --precision bf16 \
  --backend "$backend" --quiet -v
[ "$(grep -c "order: rows of one expert come in another order" "$work/out")" -eq 2 ] || complain "two other orders"
ASSAY_EXAMPLE_VARIANT=other expect 1 run moe/small --backend "$backend" --quiet
prints "ASSAY_EXAMPLE_VARIANT may be"
echo "$checks calls"
