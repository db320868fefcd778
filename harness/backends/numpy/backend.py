#!/usr/bin/env python3
"""A backend as a command: every operation, forward and backward, in numpy.

    assay run 'moe/*' --backend 'python3 backend.py {request} {candidate}'
    assay run 'moe/*' --backend 'python3 backend.py {request} {candidate} --precision f32 --variant 3'
    assay run 'moe/*' --backend 'python3 backend.py' --serve

Reads the request, writes the candidate; exit status 77 says that a case is not supported. Needs h5py and numpy, nothing of
assay. Arithmetic is emulated (arithmetic.py): --precision names a profile, --variant one of the correct implementations
that it allows.
"""
import argparse
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "shell"))

import serving
from arithmetic import Arithmetic, variant
from operations import run
from request import RARE, Request
from storage import usual_precision, write_stored


def main():
    parser = argparse.ArgumentParser(description="assay's operations in numpy; without paths a server for assay run --serve")
    serving.add_arguments(parser)
    parser.add_argument("--precision", help="a profile; else that of the case's grid")
    parser.add_argument("--variant", type=int, default=0)
    options = parser.parse_args()

    def answer(request, candidate):
        precision = options.precision or usual_precision(request)
        ar = Arithmetic(precision, variant(options.variant))
        write_stored(candidate, run(ar, Request(request, ar.float, (*RARE, "latent_window", "latent_scale", "nan_padding"))), precision)

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
