#!/usr/bin/env python3
"""Hugging Face's own modelling files as a backend, with eager attention: forward, and gradients by autograd.

    assay run 'moe/*' --serve --backend 'python3 backend.py --serve'

--dtype is the type of the model. What transformers keeps in float32 stays so (routers of DeepSeek and GLM, their correction biases).
--experts is how experts are computed: eager (the loop of the modelling file), batched_mm or grouped_mm (transformers/integrations/moe.py).
--wide-casts replaces the type float32 by float64 in every call of PyTorch: transformers casts to float32 inside of norms, routers,
softmax and rotations whatever the type of the model is, so that float64 would be float32 there. Nothing else is replaced.
--peers: programs by files of other projects, from checkouts in the folder $ASSAY_PEERS (peer_blocks.py).
"""
import argparse
import contextlib
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "harness/backends/shell"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything loads Triton

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

import serving
from request import Request, write_candidate
from torch_results import stored
from transformers_operations import run

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


class WideCasts(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wide(value):
            return torch.float64 if value is torch.float32 else value

        if function is torch.Tensor.float:
            return args[0].double()
        return function(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def main():
    parser = argparse.ArgumentParser(description="Hugging Face's modelling files")
    serving.add_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--experts", choices=("eager", "batched_mm", "grouped_mm"), default="eager")
    parser.add_argument("--wide-casts", action="store_true")
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def answer(request, candidate):
        with WideCasts() if options.wide_casts else contextlib.nullcontext():
            results = run(Request(request, np.float64), DTYPES[options.dtype], options.experts, options.peers)
        write_candidate(candidate, {path: stored(tensor) for path, tensor in results.items()})

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
