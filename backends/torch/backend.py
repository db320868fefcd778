#!/usr/bin/env python3
"""PyTorch as a backend: its own operators forward, its autograd backward. Nothing is emulated.

    assay run 'moe/*' --backend 'python3 backend.py {request} {candidate}'
    assay run 'moe/*' --serve --backend 'python3 backend.py --serve'

--dtype is the type that tensors have; routers, norms, softmax and rotations are float32 inside, as in the models that people run, and float64
in float64. --form says by what of PyTorch it is computed:
    wide     softmax and activations in float32; experts chosen by a stable sort
    plain    softmax and activations in the tensors' type, sums over experts as Hugging Face's models write them (index_add and gathers),
             experts chosen by topk
    grouped  as wide, with F.grouped_mm for grouped products and the experts of a sparse block
    sdpa     as wide, with F.scaled_dot_product_attention and F.rms_norm
    torchao  `quantize` by torchao's encoders
    scaled   fp8 operands of a grouped product by F.scaled_mm
    flex     as wide, with flex_attention, which has no backward on the processor; caches in pages by its PagedAttention
--compile: gated MLP and attention by torch.compile. --device cuda puts it all there.
"""
import argparse
import pathlib
import sys

BACKENDS = pathlib.Path(__file__).resolve().parents[2] / "harness/backends"
sys.path += [str(BACKENDS / "shell"), str(BACKENDS / "numpy")]

import numpy as np
import torch

import serving
from request import Request, write_candidate
from torch_operations import run
from torch_results import stored

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


def main() -> None:
    parser = argparse.ArgumentParser(description="PyTorch's kernels")
    serving.add_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--form", choices=("wide", "plain", "grouped", "sdpa", "flex", "scaled", "torchao"), default="wide")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    def answer(request: str, candidate: str) -> None:
        results = run(Request(request, np.float64, ("attn_logits_soft_cap",)), DTYPES[options.dtype], options)
        write_candidate(candidate, {path: stored(tensor) for path, tensor in results.items()})

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
