#!/usr/bin/env python3
"""MaxText as a backend: its own modules, their gradients by jax.vjp. Nothing is emulated.

    assay run 'moe/*' --serve --backend 'build/environments/maxtext/bin/python backend.py --serve'

An operation's file has run(request, dtype) -> {path: array}. --dtype is the type of activations and weights; f64 are the same modules under
jax_enable_x64. --wide-casts makes their own casts to float32 (routers, norms, softmax) casts to float64: jnp.float32 is jnp.float64 in what
MaxText's modules see. What agrees with it and not without it differs by these casts alone. --megablox: grouped products are MaxText's own Pallas
kernel, interpreted, in tiles of 8 rows; without it jax.lax.ragged_dot. A case with a mesh runs on devices of the processor, 24 at most.
"""
import argparse
import importlib
import os
import pathlib
import sys

os.environ.update(JAX_PLATFORMS="cpu", DECOUPLE_GCLOUD="TRUE",
                  XLA_FLAGS="--xla_force_host_platform_device_count=24 --xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "harness/backends/shell"))

import jax
import numpy as np

import serving
from request import Request, Unsupported, write_candidate

MOST_MAPPINGS = 30000  # of the 65530 that Linux gives a process (vm.max_map_count); XLA ends it by a signal where none is left
DTYPES = {"bf16": "bfloat16", "f32": "float32", "f64": "float64"}
LAYERS = {op: "layers" for op in ("deepseek_layer", "deepseek_stack", "decoder_layer", "decoder_stack")}
MODULES = {"moe": "moe", "routing": "moe", "mlp": "moe", "gmm": "moe", "permute": "moe", "unpermute": "moe",
           "mla": "attention", "gqa": "attention", "attention": "attention", "rms_norm": "attention", "yarn_rope": "attention",
           **LAYERS, "batch_split": "batch_split", "program": "programs"}


def drop_programs() -> None:
    """What one case compiles takes a hundred mappings of memory or more, on a mesh most; a server of a thousand cases has no more."""
    if pathlib.Path("/proc/self/maps").read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()


def main() -> None:
    parser = argparse.ArgumentParser(description="MaxText's modules")
    serving.add_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--wide-casts", action="store_true", help="with --dtype f64: MaxText's casts to float32 go to float64")
    parser.add_argument("--megablox", action="store_true", help="grouped products by MaxText's Pallas kernel, interpreted")
    options = parser.parse_args()
    if options.wide_casts and options.dtype != "f64":
        parser.error("--wide-casts is of --dtype f64")
    jax.config.update("jax_enable_x64", options.dtype == "f64")
    jax.config.update("jax_compilation_cache_dir", "build/backends/maxtext-compiled")  # half of the time is XLA's, and programs stay the same
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    def answer(path: str, candidate: str) -> None:
        drop_programs()
        request = Request(path, np.float64)
        if request.op not in MODULES:
            raise Unsupported(f"no {request.op} in MaxText")
        if "quant_formats" in request.settings.text:
            raise Unsupported("no quantised operands")
        module = importlib.import_module(MODULES[request.op])
        importlib.import_module("config").choices["megablox"] = options.megablox
        if options.wide_casts:
            importlib.import_module("wide_casts").apply()
        results = module.run(request, DTYPES[options.dtype])
        write_candidate(candidate, {p: value for p, value in results.items() if p in request.expects or p.startswith("routing/")})

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
