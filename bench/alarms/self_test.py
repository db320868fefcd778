#!/usr/bin/env python3
"""That ci/alarms counts: some runs at float64, where any wrong formula shows, none of which fails, and the same runs with results that are 2 % off, most of
which do; and so of ci/blocks. usage: self_test.py PROGRAM, with ASSAY_LIBRARY set"""
import argparse
import sys
import time

import alarms
import blocks


def tried(program, **more):
    options = argparse.Namespace(program=program, profiles=["f64"], kinds=alarms.KINDS, variants=1, op=[], end=time.time() + 600, **more)
    counts, failures = alarms.batch(7, options)
    return sum(n for key, n in counts.items() if key[4] in ("passed", "failed")), failures


def off(kernels):
    def run(*given):
        return {path: x if x.dtype.kind == "i" else x * 1.02 for path, x in kernels(*given).items()}

    return run


runs, failures = tried(sys.argv[1])
assert runs >= 30, runs
assert not failures, [f[:6] + f[7:] for f in failures]
alarms.by_numpy, alarms.by_torch, alarms.by_programs = off(alarms.by_numpy), off(alarms.by_torch), off(alarms.by_programs)
again, failures = tried(sys.argv[1])
assert again == runs, (again, runs)
assert len(failures) > runs / 2, (len(failures), runs)
assert {failure[0] for failure in failures} == set(alarms.KINDS)
print(f"{runs} correct runs pass, {len(failures)} of them fail with results that are 2 % off")

for name in ("kda", "moe-align"):
    assert not blocks.tried(name, "bf16", 1, range(6))[1]
blocks.block_kernels.run = off(blocks.block_kernels.run)
for name in ("kda", "moe-align"):
    assert len(blocks.tried(name, "bf16", 1, range(6))[1]) == 6
    assert blocks.tried(name, "f64", 1, range(1))[2] > blocks.FAR
print("and so of ci/blocks")
