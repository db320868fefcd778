#!/usr/bin/env python3
"""Triton kernels of other hands, run by Triton's interpreter on the processor, called as their packages call them.

    python3 backends/triton/backend.py --kernels liger --serve

--kernels liger: Liger-Kernel, forward and its own backward. vllm: kernels of vLLM, forward. gpt_oss: GPT-OSS's PyTorch model.
--dtype is the type that tensors have. What a package leaves to PyTorch (projections around a GLU, routers, tables of rotations) is PyTorch's here too.
interpreter.py says what was put into Triton's interpreter. It computes no bfloat16: products of such tensors are products of their bits.
"""
import argparse
import importlib
import pathlib
import sys

BACKENDS = pathlib.Path(__file__).resolve().parents[2] / "harness/backends"
sys.path += [str(BACKENDS / "shell"), str(BACKENDS / "numpy")]

import interpreter  # before what uses Triton
import numpy as np
import torch

import serving
from call import Call
from request import Request, write_candidate
from torch_results import stored, with_gradients

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


def main():
    parser = argparse.ArgumentParser(description="Triton kernels in the interpreter")
    serving.add_arguments(parser)
    parser.add_argument("--kernels", choices=("liger", "vllm", "gpt_oss"), default="liger")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    operations = importlib.import_module("kernels_" + options.kernels).OPERATIONS

    def answer(path, candidate):
        request = Request(path, np.float64, ("attn_logits_soft_cap",) if options.kernels == "vllm" else ())
        s = request.settings
        s.need(request.op in operations, f"no {request.op}")
        s.need_no_mesh()
        s.need("quant_formats" not in s.text and not s.text.get("quant_recipe") and not s.text.get("quant_hidden_format"), "no quantised operands")
        call = Call(request, DTYPES[options.dtype])
        results = with_gradients(operations[request.op](call), call.t, call.expects, optional=["checkpoints/"])
        write_candidate(candidate, {name: stored(tensor) for name, tensor in results.items()})

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
