#!/usr/bin/env python3
"""The kernels of engine_operations.py as a backend: what `ci/alarms` prints to repeat a run.

    assay run CASE.yml --precision bf16 --backend 'python3 bench/alarms/backend.py {request} {candidate} --precision bf16 --variant 17'

Without paths a server for assay run --serve. PyTorch 1.13 or later, numpy, h5py; nothing of assay.
"""
import argparse
import pathlib
import sys
import traceback

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "harness/backends/numpy"))

import numpy as np

import engine_operations
from request import Request, Unsupported, usual_precision, write_candidate


def answer(options, path, candidate):
    precision, request = options.precision or usual_precision(path), Request(path, np.float64)
    results = engine_operations.run(request.op, request.settings, request.tensors, request.wide, set(request.expects), precision, options.variant)
    write_candidate(candidate, results, precision)


def serve(options):
    for line in sys.stdin:
        try:
            answer(options, *line.rstrip("\n").split("\t"))
            print("assay: done", flush=True)
        except Unsupported as reason:
            print(f"assay: unsupported {reason}", flush=True)
        except Exception as error:  # this case's failure, not the next one's
            traceback.print_exc()
            print(f"assay: failed {type(error).__name__}: {error}".replace("\n", " "), flush=True)


def main():
    parser = argparse.ArgumentParser(description="kernels in the forms of engines, in PyTorch; without paths a server for assay run --serve")
    parser.add_argument("request", nargs="?")
    parser.add_argument("candidate", nargs="?")
    parser.add_argument("--precision", help="a profile; else that of the case's grid")
    parser.add_argument("--variant", type=int, default=0)
    options = parser.parse_args()
    if options.candidate is None:
        return serve(options)
    try:
        answer(options, options.request, options.candidate)
    except Unsupported as reason:
        print(reason)
        sys.exit(77)


if __name__ == "__main__":
    main()
