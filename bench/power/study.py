#!/usr/bin/env python3
"""False alarms and power of assay, and of the rules that its peers use, on the same runs: docs/power.md."""
import argparse
import fnmatch
import json
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[2] / "harness/backends" / name) for name in ("shell", "numpy"))]

import quantised  # noqa: E402
import self_test  # noqa: E402
from cases import CASES, FP8, PROFILES, QUICK  # noqa: E402
from runs import AGREES, catalogue, knows, perform, tasks  # noqa: E402
from table import markdown, run_rejected  # noqa: E402


def options():
    parser = argparse.ArgumentParser(prog="ci/power", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one case of each operation, few runs")
    parser.add_argument("--all", action="store_true", help="every case of the catalogue that the kernels have, without mutants")
    parser.add_argument("--staged", action="store_true", help="correct candidates give checkpoints too and are judged by assay compare --staged; a table with and without")
    parser.add_argument("--quantised", action="store_true", help="cases of quantised operands, and of quantize and dequantize, by format")
    parser.add_argument("--self-test", action="store_true", help="only: roundings, and kernels in float64 against goldens")
    parser.add_argument("--profiles", default=",".join((*PROFILES, FP8)), metavar="P,...", help="only these (all)")
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="only those of the cases")
    parser.add_argument("--runs", type=int, metavar="N", help="correct runs of each case and profile (28; quick: 3)")
    parser.add_argument("--output", metavar="FOLDER", help="where power.json goes, with every run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (all cores)")
    parser.add_argument("--assay", required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def perform_all(work, jobs):
    made = []
    with multiprocessing.Pool(jobs) as pool:
        for done in pool.imap(perform, work):
            made.append(done)
            if sys.stderr.isatty():
                print(f"\r\033[K{len(made)} of {len(work)}  {done['case']}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return made


def problems(made, mutants):
    """What makes the study fail, a line each."""
    for task in made:
        if not task["self_test"] <= AGREES:
            yield f"{task['case']} seed {task['seed']}: the kernel in float64 is {task['self_test']:.1e} from the golden"
        for r in task["runs"]:
            if run_rejected(r) or run_rejected(r, True):
                yield f"{r['case']} seed {r['seed']} {r['profile']} variant {r['number']}: a correct run is rejected"
    for m in mutants:
        if m["required"] and m["outcome"] == "passes" and m["fixture"] != "VACUOUS":
            yield f"{m['case']} {m['profile']}: {m['mutant']} is required and passes, and the golden is not VACUOUS"


def main():
    o = options()
    self_test.check()
    chosen = QUICK if o.quick else catalogue(o.assay) if o.all else CASES
    if o.quantised and o.all:
        sys.exit("ci/power: --quantised and --all are two sets of cases")
    names = [c for c in chosen if fnmatch.fnmatch(c, o.cases)]
    if not names and not o.quantised:
        sys.exit(f"ci/power: no case of the study matches {o.cases}")
    runs = o.runs if o.runs is not None else 3 if o.quick else 28
    wanted = o.profiles.split(",")
    if unknown := set(wanted) - {*PROFILES, FP8}:
        sys.exit(f"ci/power: --profiles has {', '.join(sorted(unknown))}, expected of {', '.join((*PROFILES, FP8))}")
    fp8 = knows(o.assay, "compare", FP8)
    skipped = [] if fp8 else [f"Not run: profile {FP8}, which this assay does not have.", ""]
    if not knows(o.assay, "power", "--write"):
        skipped += ["Not judged by the peers' rules: mutants, which this assay does not write.", ""]
    runs, mutants_too = 1 if o.self_test else runs, not (o.self_test or o.all)
    if o.quantised:
        work = quantised.tasks(o.assay, o.cases, runs, mutants_too, o.quick)
    else:
        work = tasks(o.assay, names, runs, fp8, mutants_too)
    work = [replace(t, staged=o.staged, variants=() if o.self_test else t.variants,
                    profiles=tuple(p for p in t.profiles if p in wanted)) for t in work]
    done = perform_all(work, o.jobs)
    made = [t for t in done if "unsupported" not in t]
    if left := sorted({t["case"] for t in done} - {t["case"] for t in made}):
        skipped += [f"{len(left)} cases are not among those of the kernels.", ""]
    all_runs, mutants = [r for t in made for r in t["runs"]], [m for t in made for m in t["mutants"]]
    found = list(problems(made, mutants))
    if o.output:
        Path(o.output).mkdir(parents=True, exist_ok=True)
        record = {"runs": all_runs, "mutants": mutants, "self_test": {t["case"]: t["self_test"] for t in made}}
        Path(o.output, "power.json").write_text(json.dumps(record, indent=1) + "\n")
    if o.self_test:
        worst = max(t["self_test"] for t in made)
        print(f"{len(made)} kernels in float64 agree with their goldens, the worst to {worst:.1e}" if not found else "")
    else:
        print(markdown(all_runs, mutants, skipped, o.staged, o.quantised))
    for line in found:
        print("power: " + line, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
