#!/usr/bin/env python3
"""Whether `assay between` calls two correct kernels rounding, and tells wrong ones from correct ones as often as `assay compare` does: docs/further-checks.md.

Pairs are two correct runs of a case, of different variants, with checkpoints. Mutants are those of `assay power` that have an effect, each against a correct run,
without checkpoints.
"""
import argparse
import fnmatch
import json
import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[2] / "harness/backends" / name) for name in ("shell", "numpy"))]

from arithmetic import Arithmetic, variant  # noqa: E402
from cases import CASES  # noqa: E402
from operations import run  # noqa: E402
from request import Request, Unsupported  # noqa: E402
from runs import call, listed  # noqa: E402
from storage import write_stored  # noqa: E402

MANY = 500_000  # bytes of a golden: larger cases have no mutants tried
EVERY = 4  # of programs every fourth has mutants tried
BEYOND = "BEYOND ROUNDING"


@dataclass(frozen=True)
class Task:
    assay: str
    case: str
    profile: str
    pairs: tuple  # of two numbers of variants
    mutants: bool


def options():
    parser = argparse.ArgumentParser(prog="ci/between", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="pairs of correct runs of each case (3)")
    parser.add_argument("--profile", default="bf16", metavar="P", help="of both kernels (bf16)")
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="only these of the cases")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (all cores)")
    parser.add_argument("--assay", required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def correct_run(golden, profile, number, path):
    arithmetic = Arithmetic(profile, variant(number))
    write_stored(path, run(arithmetic, Request(golden, arithmetic.float)), profile)
    return path


def between(task, golden, a, b, folder):
    answer = str(Path(folder) / "answer.json")
    call(task.assay, "between", golden, a, b, "--precision", task.profile, "--json", answer, "--quiet", "--threads", "1", accept=(0, 1))
    return json.loads(Path(answer).read_text())


def perform(task):
    """What was said of each pair, and of each mutant by both."""
    made = {"case": task.case, "pairs": [], "mutants": []}
    with tempfile.TemporaryDirectory(prefix="between-") as folder:
        golden, staged = (str(Path(folder) / name) for name in ("golden.h5", "staged.h5"))
        one, other = (str(Path(folder) / name) for name in ("one.h5", "other.h5"))
        words = [task.assay, "generate", task.case, "--quiet", "--threads", "1", "--set", f"profiles=[{task.profile}]"]
        try:
            call(*words, "-o", golden, accept=(0,))
            call(*words, "-o", staged, "--set", "checkpoints=all", accept=(0,))
            for pair in task.pairs:
                found = between(task, staged, *(correct_run(staged, task.profile, number, path) for number, path in zip(pair, (one, other))), folder)
                made["pairs"].append({"variants": pair, "verdict": found["verdict"], "message": found["message"]})
        except (Unsupported, RuntimeError) as reason:
            return made | {"unsupported": str(reason)}
        if not task.mutants or os.path.getsize(golden) > MANY:
            return made
        report, candidates = str(Path(folder) / "power.json"), Path(folder) / "mutants"
        call(task.assay, "power", golden, "--precision", task.profile, "--json", report, "--quiet", "--threads", "1", "--write", str(candidates))
        correct_run(golden, task.profile, task.pairs[0][0], one)
        for mutant in json.loads(Path(report).read_text())["fixtures"][0]["mutants"]:
            file = candidates / (mutant["name"] + ".h5")
            if mutant["outcome"] not in ("detected", "passes") or not file.exists():
                continue
            made["mutants"].append({"mutant": mutant["name"], "fails": mutant["fails"], "verdict": between(task, golden, one, str(file), folder)["verdict"]})
    return made


def tasks(o):
    """The study's cases, programs, and one or a few of each other operation (the tag smoke); mutants of the first two."""
    more = [c["case"] for c in listed(o.assay) if c["case"] not in CASES and not c["case"].startswith("true-size/") and (c["op"] == "program" or "smoke" in c["tags"])]
    for index, case in enumerate(case for case in (*CASES, *more) if fnmatch.fnmatch(case, o.cases)):
        pairs = tuple((n % 14, n % 14 + 1 + index % 6) for n in range(index, index + o.pairs))
        yield Task(o.assay, case, o.profile, pairs, case in CASES or (case.startswith("program/") and index % EVERY == 0))


def main():
    o = options()
    with multiprocessing.Pool(o.jobs) as pool:
        made = list(pool.imap(perform, tasks(o)))
    pairs = [(task["case"], pair) for task in made for pair in task["pairs"]]
    mutants = [(task["case"], mutant) for task in made for mutant in task["mutants"]]
    beyond = [(case, pair) for case, pair in pairs if pair["verdict"] == BEYOND]
    print(f"{len(pairs)} pairs of correct kernels of {len({case for case, _ in pairs})} cases: {len(beyond)} beyond rounding")
    print(f"{len(mutants)} mutants: the verdict rejects {sum(m['fails'] for _, m in mutants)}, {sum(m['verdict'] == BEYOND for _, m in mutants)} are beyond rounding")
    for case, mutant in mutants:
        if mutant["fails"] != (mutant["verdict"] == BEYOND):
            print(f"  {case} {mutant['mutant']}: {'rejected' if mutant['fails'] else 'passes'}, {mutant['verdict']}")
    for case, pair in beyond:
        print(f"between: {case} variants {pair['variants']}: {pair['message']}", file=sys.stderr)
    sys.exit(1 if beyond else 0)


if __name__ == "__main__":
    main()
