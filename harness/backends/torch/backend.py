#!/usr/bin/env python3
"""PyTorch as a backend: its own operators forward, its autograd backward. Nothing is emulated.

    assay run 'moe/*' --backend 'python3 backend.py {request} {candidate}'
    assay run 'moe/*' --serve --backend 'python3 backend.py --serve'

--dtype is the type that tensors have; routers, norms, softmax and rotations are float32 inside, as in the models that people run, and float64
in float64. --form plain has softmax and activations in the tensors' type too, sums over experts as Hugging Face's models write them (index_add and
gathers), and chooses experts by topk; --form wide lets PyTorch do the first three in float32, and chooses by a stable sort. --script compiles gated MLP and attention with torch.jit.script. --device cuda puts it all there.
--wide-sums computes products of float32 copies and rounds their results: what a failure at bf16 without it, and not with it, comes from.
"""
import argparse
import contextlib
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "numpy"))

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from request import Request, Unsupported
from torch_operations import run

UNSUPPORTED = 77
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


class WideSums(TorchFunctionMode):
    """Products, and those of their gradients, are float32 until they are done."""

    PRODUCTS = (F.linear, torch.matmul, torch.bmm, torch.baddbmm, torch.einsum)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function not in self.PRODUCTS:
            return function(*args, **(kwargs or {}))
        narrow = next(a.dtype for a in args if isinstance(a, torch.Tensor))
        wide = (a.float() if isinstance(a, torch.Tensor) and a.dtype == torch.bfloat16 else a for a in args)
        return function(*wide, **(kwargs or {})).to(narrow)


def store(file: h5py.File, path: str, tensor: torch.Tensor) -> None:
    """bfloat16 by its bits, any other type as it is."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        file[path] = tensor.view(torch.int16).numpy().view(np.uint16)
        file[path].attrs["float_type"] = "bfloat16"
    else:
        file[path] = tensor.numpy()


def answer(request: str, candidate: str, options: argparse.Namespace) -> None:
    with WideSums() if options.wide_sums else contextlib.nullcontext():
        results = run(Request(request, np.float64), DTYPES[options.dtype], options)
    with h5py.File(candidate, "w", libver=("v110", "v110")) as file:
        file.attrs["kind"] = "candidate"
        for path, tensor in results.items():
            store(file, path, tensor)


def serve(options: argparse.Namespace) -> None:
    """A request a line, REQUEST<TAB>CANDIDATE; the answer is a line that begins with "assay: "."""
    for line in sys.stdin:
        try:
            answer(*line.rstrip("\n").split("\t"), options)
            print("assay: done", flush=True)
        except Unsupported as reason:
            print("assay: unsupported", reason, flush=True)
        except Exception as reason:  # whatever PyTorch raises is this case's failure, not the next one's
            print("assay: failed", " ".join(str(reason).split()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="PyTorch's kernels")
    parser.add_argument("request", nargs="?")
    parser.add_argument("candidate", nargs="?")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--form", choices=("wide", "plain"), default="wide")
    parser.add_argument("--script", action="store_true")
    parser.add_argument("--wide-sums", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.serve:
        return serve(options)
    if options.candidate is None:
        parser.error("expected a request and a candidate, or --serve")
    try:
        answer(options.request, options.candidate, options)
    except Unsupported as reason:
        print(reason)
        sys.exit(UNSUPPORTED)


if __name__ == "__main__":
    main()
