#!/usr/bin/env python3
"""A backend as a command: every operation, forward and backward, in numpy.

    assay run 'moe/*' --backend 'python3 backend.py {request} {candidate}'
    assay run 'moe/*' --backend 'python3 backend.py {request} {candidate} --precision f32 --variant 3'

Reads the request, writes the candidate; exit status 77 says that a case is not supported. Needs h5py and numpy, nothing of
assay. Arithmetic is emulated (arithmetic.py): --precision names a profile, --variant one of the correct implementations
that it allows.
"""
import argparse
import sys

from arithmetic import Arithmetic, variant
from operations import run
from request import Request, Unsupported, write_candidate


def main():
    parser = argparse.ArgumentParser(description="assay's operations in numpy")
    parser.add_argument("request")
    parser.add_argument("candidate")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--variant", type=int, default=0)
    options = parser.parse_args()
    ar = Arithmetic(options.precision, variant(options.variant))
    try:
        results = run(ar, Request(options.request, ar.float))
    except Unsupported as reason:
        print(reason)
        sys.exit(77)
    write_candidate(options.candidate, results, options.precision)


if __name__ == "__main__":
    main()
