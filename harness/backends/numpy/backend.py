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
import sys
import traceback

from arithmetic import Arithmetic, variant
from operations import run
from request import Request, Unsupported, usual_precision, write_candidate


def answer(options, request, candidate):
    precision = options.precision or usual_precision(request)
    ar = Arithmetic(precision, variant(options.variant))
    write_candidate(candidate, run(ar, Request(request, ar.float)), precision)


def serve(options):
    for line in sys.stdin:
        request, candidate = line.rstrip("\n").split("\t")
        try:
            answer(options, request, candidate)
            print("assay: done", flush=True)
        except Unsupported as reason:
            print(f"assay: unsupported {reason}", flush=True)
        except Exception as error:
            traceback.print_exc()
            print(f"assay: failed {type(error).__name__}: {error}".replace("\n", " "), flush=True)


def main():
    parser = argparse.ArgumentParser(description="assay's operations in numpy; without paths a server for assay run --serve")
    parser.add_argument("request", nargs="?")
    parser.add_argument("candidate", nargs="?")
    parser.add_argument("--precision", help="a profile; else that of the case's grid")
    parser.add_argument("--variant", type=int, default=0)
    options = parser.parse_args()
    if (options.request is None) != (options.candidate is None):
        parser.error("expected both request and candidate, or neither: a server")
    if options.request is None:
        serve(options)
        return
    try:
        answer(options, options.request, options.candidate)
    except Unsupported as reason:
        print(reason)
        sys.exit(77)


if __name__ == "__main__":
    main()
