#!/usr/bin/env python3
"""The kernels of engine_operations.py as a backend: what `ci/alarms` prints to repeat a run.

    assay run CASE.yml --precision bf16 --backend 'python3 bench/alarms/backend.py {request} {candidate} --precision bf16 --variant 17'

Without paths a server for assay run --serve. PyTorch 1.13 or later, numpy, h5py; nothing of assay.
"""
import argparse
import pathlib
import sys

BACKENDS = pathlib.Path(__file__).resolve().parents[2] / "harness/backends"
sys.path += [str(BACKENDS / "shell"), str(BACKENDS / "numpy")]

import numpy as np

import engine_operations
import program_kernels
import serving
from request import Request
from storage import usual_precision, write_stored


def main():
    parser = argparse.ArgumentParser(description="kernels in the forms of engines, in PyTorch; without paths a server for assay run --serve")
    serving.add_arguments(parser)
    parser.add_argument("--precision", help="a profile; else that of the case's grid")
    parser.add_argument("--variant", type=int, default=0)
    options = parser.parse_args()

    def answer(path, candidate):
        precision, request = options.precision or usual_precision(path), Request(path, np.float64)
        if request.op == "program":
            made, _ = program_kernels.run(request.case.split("/")[1], request.tensors, list(request.expects), precision, options.variant)
            return write_stored(candidate, made, precision)
        write_stored(candidate, engine_operations.run(request.op, request.settings, request.tensors, request.wide, set(request.expects),
                                                      precision, options.variant), precision)

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
