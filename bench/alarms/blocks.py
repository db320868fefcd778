#!/usr/bin/env python3
"""What a verdict on each block of 2026 is worth: a line for each program of block_kernels.py. `ci/blocks` starts it.

How often correct kernels are rejected, over forms, seeds and liberties; how far the same kernels are from the golden in float64; whether binary128
agrees (assay verify); how many mutants are detected with checkpoints (assay power)."""
import argparse
import collections
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import alarms  # and so the paths of Python's modules
import block_kernels

PER_SEED = 20  # runs of one golden
FAR = 1e-10  # of a tensor's largest number


def whole_name(name):
    return name if "/" in name else "program/" + name


def tried(name, precision, seed, runs):
    """Of each form how many runs there were, and the failures; at f64 the largest distance from the golden."""
    import assay
    import numpy as np
    import torch

    torch.set_num_threads(1)
    dtype = {"bf16": "bfloat16", "f32": "float32", "f64": "float64"}[precision]
    case = assay.case(whole_name(name), precision=precision, dtype=dtype, seed=seed, threads=1, cache="", explain=False,
                       checkpoints="all" if name in block_kernels.CODES else "none")
    tensors, expects = alarms.Given(case, np.float64).tensors, [path for path in case.expected if not path.startswith("checkpoints/")]
    fused = re.search(r"^fused: (.*)$", case.yaml, re.M)
    fused = [] if fused is None else fused[1].strip(" []").split(", ")
    counts, failures, distance = collections.Counter(), [], 0.0
    for number in runs:
        results = block_kernels.run(name, tensors, expects, precision, number, fused)
        form = block_kernels.forms(name)[number % len(block_kernels.forms(name))]
        counts[form] += 1
        if precision == "f64":
            for path, x in ((path, x) for path, x in results.items() if not path.startswith("checkpoints/")):
                golden = case.golden(path)
                off = np.abs(x - golden).max() / max(np.abs(golden).max(), 1e-300) if x.dtype.kind == "f" else float((x != golden).any())
                distance = max(distance, float(off)) if off == off else float("inf")
        report = case.judge(results, precision=precision)
        if report.verdict != "PASS":
            failures.append(f"{name} {precision} seed {seed} run {number} ({form}): {report.message}")
    return counts, failures, distance


def told(program, name):
    """Whether binary128 agrees, and mutants at bf16: detected with checkpoints, and of how many."""
    with tempfile.TemporaryDirectory() as folder:
        golden = f"{folder}/golden.h5"
        subprocess.run([program, "generate", whole_name(name), "-o", golden, "--set", "profiles=bf16"], check=True, stdout=subprocess.DEVNULL)
        certified = subprocess.run([program, "verify", golden], stdout=subprocess.DEVNULL).returncode == 0
        said = subprocess.run([program, "power", golden, "--precision", "bf16"], stdout=subprocess.PIPE, text=True).stdout
    of = re.search(r"power: (\d+) of (\d+) mutants that have an effect here are detected(?:, (\d+) with checkpoints)?", said)
    return certified, int(of[3] or of[1]), int(of[2])


def main():
    parser = argparse.ArgumentParser(prog="ci/blocks", description="what a verdict on each block of 2026 is worth")
    parser.add_argument("names", nargs="*", default=["*"], help="programs, without program/, or patterns; those of true size as true-size/NAME")
    parser.add_argument("--runs", type=int, default=120, help="correct runs of each program at bf16, and as many at f32 (default 120)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--no-mutants", action="store_true", help="correct kernels alone")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--program", default=str(alarms.ROOT / "build/release/harness/assay"))
    options = parser.parse_args()
    wanted = lambda name: any(fnmatch.fnmatch(name, p) and p.startswith("true-size") == name.startswith("true-size") for p in options.names)
    names = [name for name in (*block_kernels.KERNELS, *block_kernels.TRUE_SIZE) if wanted(name)]
    failed = 0
    print("Blocks")
    print("| program | certified | forms | from the golden at float64 | rejected at bf16 | rejected at f32 | mutants found |\n| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        for name in names:
            cells = {}
            for precision, count in (("f64", min(12, options.runs)), ("bf16", options.runs), ("f32", options.runs)):
                parts = [range(first, min(first + PER_SEED, count)) for first in range(0, count, PER_SEED)]
                made = list(pool.map(tried, *zip(*((name, precision, options.seed + i, part) for i, part in enumerate(parts)))))
                wrong = [line for _, failures, _ in made for line in failures]
                cells[precision] = f"{len(wrong)} of {sum(sum(c.values()) for c, _, _ in made)}", max(far for _, _, far in made)
                failed += len(wrong) + (cells[precision][1] > FAR)
                for line in wrong:
                    print(line, file=sys.stderr, flush=True)
            certified, found, of = (None, 0, 0) if options.no_mutants else pool.submit(told, options.program, name).result()
            failed += certified is False
            share = "" if certified is None else f"{100 * found / of:.1f} % ({found} of {of})"
            print(f"| {name} | {'' if certified is None else 'yes' if certified else 'NO'} | {len(block_kernels.forms(name))} | {cells['f64'][1]:.0e} | {cells['bf16'][0]} | "
                  f"{cells['f32'][0]} | {share} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
