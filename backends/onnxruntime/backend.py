#!/usr/bin/env python3
"""ONNX Runtime's processor kernels as a backend, forward only: one model of few operators for each request.

    assay run 'moe/*' --serve --set gradients=none --precision f32 --backend 'python3 backend.py --serve'

--dtype f16 makes every tensor float16. --exp takes silu and sigmoid by Exp, which is more exact than the operators are.
"""
import argparse
import pathlib
import sys

BACKENDS = pathlib.Path(__file__).resolve().parents[2] / "harness/backends"
sys.path += [str(BACKENDS / "shell"), str(BACKENDS / "numpy")]

import numpy as np

import serving
from ort_graph import Graph
from ort_operations import OPERATIONS
from request import Request, write_candidate

DTYPES = {"f32": np.float32, "f16": np.float16}


def main() -> None:
    parser = argparse.ArgumentParser(description="ONNX Runtime's kernels")
    serving.add_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--exp", action="store_true")
    options = parser.parse_args()

    def answer(path: str, candidate: str) -> None:
        request = Request(path, np.float32)
        s = request.settings
        s.need(request.op in OPERATIONS, "no " + request.op)
        s.need("quant_formats" not in s.text and not s.text.get("quant_recipe"), "no quantised operands")
        s.need(not s.text.get("quant_hidden_format"), "no requantised h")
        s.need_no_mesh()
        graph = Graph(DTYPES[options.dtype], options.exp)
        write_candidate(candidate, OPERATIONS[request.op](graph, request))

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
