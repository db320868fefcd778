#!/usr/bin/env python3
"""JAX and what stands on it as a backend: their own functions forward, jax.vjp backward. Nothing is emulated.

    assay run 'gmm/*' --backend 'python3 backend.py --form megablox {request} {candidate}'
    assay run 'gmm/*' --serve --backend 'python3 backend.py --serve --form megablox'

--form says whose code is called:

    jax           jax.lax.ragged_dot and ragged_dot_general, jax.nn.dot_product_attention, flax.nnx.RMSNorm, jax.nn's activations and softmax
    megablox      the grouped product of jax.experimental.pallas.ops.tpu.megablox, interpreted
    splash        jax.experimental.pallas.ops.tpu.splash_attention, interpreted; splash_fused with its fused backward kernel
    tokamax       tokamax's functions, implementation="xla"
    tokamax_gmm   its Pallas kernel of the grouped product for TPUs, in Pallas' interpreter of TPUs, told that it is on one
    tokamax_splash    its splash attention, interpreted
    qwix          codes and scales of qwix.quantize, numbers of qwix.dequantize, quantised products and their gradients;
                  qwix_reciprocal has qwix's switch on that multiplies by 1 / scale

--dtype is the type that tensors have. Interpreted kernels compute what their source says, block by block, on the processor; what Mosaic
makes of them on a TPU they do not show. Routers are not here: neither JAX nor tokamax's XLA forms have MaxText's.
"""
import argparse
import os
import pathlib
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[2] / "harness/backends/shell"))

import jax

import jax.numpy as jnp
import numpy as np

import serving
from jax_operations import FORMS, run
from qwix_forms import multiply_by_reciprocals
from request import Request, write_candidate

DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32, "f64": jnp.float64}


def main() -> None:
    parser = argparse.ArgumentParser(description="JAX's kernels")
    serving.add_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--form", choices=FORMS, default="jax")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.dtype == "f64")
    if options.form == "qwix_reciprocal":
        multiply_by_reciprocals()

    def answer(request: str, candidate: str) -> None:
        results = run(Request(request, np.float64), DTYPES[options.dtype], options.form)
        write_candidate(candidate, results)

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
