#!/usr/bin/env bash
# The numpy backend through the program: right, it passes every operation; with each of its planted errors it fails on a
# case made for that, and the diagnosis names the mutant, or the verdict what is wrong with the choice. usage: planted_bugs.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../tests/cli_test.sh"
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
right=(--serve --quiet --backend "'$python' '$here/backend.py'")
# planted STATUS NAME ARGUMENT...
planted() { expect "$1" run "${@:3}" --serve --quiet --backend "'$python' '$here/planted_bugs.py' $2"; }

table=$(grep -v '^#' "$here/planted_bugs.txt")
mapfile -t cases < <(awk '{print $2}' <<<"$table" | sort -u)
expect 0 generate "${cases[@]}" rms_norm/deepseek --set profiles=bf16 -o "$work/goldens" --quiet
expect 0 run "$work/goldens" "${right[@]}"
prints "^$((${#cases[@]} + 1)) cases: $((${#cases[@]} + 1)) passed, "

# The router's gradient at experts that no token chose is what cancels but for the rounding of a sum over the chosen ones.
for seed in 97 86; do expect 0 run moe/qwen3 --set fused_moe_func=true --seed $seed --set profiles=bf16 "${right[@]}"; done

while read -r bug case where name; do
  planted 1 "$bug" "$work/goldens/$case.h5"
  prints "^FAIL *$case *$where:"
  case $name in
  *" "*) prints "^FAIL *$case *$where: .*$name" ;;
  *) prints "^    known bugs: equals mutant (.* or )?$name \\(" ;;
  esac
done <<<"$table"
# every error that can be planted is in the table, or is another choice that a correct kernel may make
"$python" "$here/planted_bugs.py" none 2>"$work/names" && complain "a bug that there is not is planted"
known=$(sed -n 's/.*expected one of \(.*\), found .*/\1/p' "$work/names" | tr ' ' '\n' | sort)
choices='ascending_slots bf16_router last_tokens_first other_roundings'
[ "$known" = "$( (awk '{print $1}' <<<"$table" && tr ' ' '\n' <<<"$choices") | sort)" ] || complain "planted_bugs.py and planted_bugs.txt differ"

# Other choices than the golden's, which a correct backend may make: the golden is evaluated again given them.
again="compared with the golden evaluated again given the candidate's choice"
near='moe/near-ties-bf16 moe/near-ties-bf16-groups'
planted 0 ascending_slots moe/small moe/near-ties moe/deepseek3-groups $near --set profiles=bf16 --precision bf16 -v
[ "$(grep -c "routing: .* 0 admissible, 0 wrong; $again" "$work/out")" -eq 5 ] || complain "five cases evaluated again"
planted 0 bf16_router $near --precision bf16_router -v
[ "$(grep -c "routing: .* exact, [1-9][0-9]* admissible, 0 wrong; $again" "$work/out")" -eq 2 ] || complain "admissible choices"
# ... which the profile bf16 does not claim
planted 1 bf16_router $near --precision bf16
prints "^FAIL *moe/near-ties-bf16 *routing/selected_experts: token .* times what errors allow"
planted 1 ties_to_higher moe/near-ties --keep "$work/kept" --json "$work/ties.json" --junit "$work/ties.xml"
prints "^FAIL *moe/near-ties *routing/selected_experts: token .* ties with it exactly: the lower index comes first"
grep -q '"wrong":[[:space:]]*[1-9]' "$work/ties.json" || complain "wrong tokens expected in JSON"
grep -q '<property name="routing" value="12 tokens: ' "$work/ties.xml" || complain "routing expected in JUnit"
# assay compare says the same
expect 1 compare "$work"/kept/moe-near-ties.golden.h5 "$work"/kept/moe-near-ties.candidate.h5
prints "ties with it exactly: the lower index comes first"
planted 0 ascending_slots moe/small --keep "$work/kept"
expect 0 compare "$work"/kept/moe-small.golden.h5 "$work"/kept/moe-small.candidate.h5
prints "$again"
# Copies for one expert in another order: right, and judged by that order
planted 0 last_tokens_first moe/small moe/deepseek3-tiny-checkpoints --set profiles=bf16 --precision bf16 -v
[ "$(grep -c "order: rows of one expert come in another order" "$work/out")" -eq 2 ] || complain "two other orders"
echo "$checks calls"
