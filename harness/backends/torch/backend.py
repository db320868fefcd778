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
import pathlib
import sys

BACKENDS = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(BACKENDS / "shell"), str(BACKENDS / "numpy")]

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import serving
from request import Bfloat16, Request, write_candidate
from torch_operations import run

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


def stored(tensor: torch.Tensor) -> np.ndarray | Bfloat16:
    tensor = tensor.detach().cpu().contiguous()
    return Bfloat16(tensor.view(torch.int16).numpy().view(np.uint16)) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description="PyTorch's kernels")
    serving.add_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--form", choices=("wide", "plain"), default="wide")
    parser.add_argument("--script", action="store_true")
    parser.add_argument("--wide-sums", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    def answer(request: str, candidate: str) -> None:
        with WideSums() if options.wide_sums else contextlib.nullcontext():
            results = run(Request(request, np.float64), DTYPES[options.dtype], options)
        write_candidate(candidate, {path: stored(tensor) for path, tensor in results.items()})

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
