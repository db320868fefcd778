#!/usr/bin/env python3
"""How many of KernelBench's problems are traced: kernelbench.py CHECKOUT [LEVEL...]

Each problem's module is made with its sizes cut to a few, as few as it runs with, and traced as anybody's: assay.trace holds the
program to the module in float64, values and gradients. Prints a line for each problem, and how many of each level there are.
Two problems want einops beside PyTorch.
"""
import collections
import pathlib
import re
import signal
import sys

import assay
from assay.kernelbench import SIZES, made

SECONDS = 150  #: for a problem


def outcome(path):
    why = None
    for most in SIZES:
        try:
            module, given, _ = made(path, most)
        except Exception as error:
            why = error
            continue
        try:
            assay.trace(module, given)
            return "traced", ""
        except assay.BadInput as error:
            return "refused", re.sub(r"^.*?:\d+: ", "", str(error))
    return "did not run", str(why)


def late(*_):
    raise TimeoutError(f"more than {SECONDS} s")


def main(checkout, *levels):
    signal.signal(signal.SIGALRM, late)
    for level in levels or ("1", "2", "3"):
        count = collections.Counter()
        for path in sorted(pathlib.Path(checkout, "KernelBench", f"level{level}").glob("*.py"), key=lambda p: int(p.stem.split("_")[0])):
            signal.alarm(SECONDS)
            try:
                how, why = outcome(path)
            except Exception as error:
                how, why = "failed", f"{type(error).__name__}: {error}"
            signal.alarm(0)
            count[how] += 1
            print(f"{how:12} {level}/{path.stem}  {why.splitlines()[0][:150] if why else ''}", flush=True)
        print(f"level {level}: {sum(count.values())} problems, " + ", ".join(f"{n} {how}" for how, n in count.items()), flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
