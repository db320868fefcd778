#!/usr/bin/env python3
"""vLLM's kernels for processors as a backend: decode over a paged cache, forward.

    python3 harness/backends/vllm/backend.py --serve --dtype bf16

The extension of the wheel is loaded by itself, the AVX2 one with --isa AVX2. Its kernels give no log-sum-exp (return_lse: false).
"""
import argparse
import importlib.util
import pathlib
import sys

BACKENDS = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(BACKENDS / "shell"), str(BACKENDS / "numpy")]

import numpy as np
import torch

import serving
from request import Request, write_candidate
from torch_results import stored

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # get_supported_head_sizes


def extension(isa):
    package = pathlib.Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
    torch.ops.load_library(package / f"_C{isa}.abi3.so")
    return torch.ops._C


def scale_of(s, width):
    """As the case says; else that of the key's numbers, of MLA those of its unabsorbed key."""
    return s.number("query_pre_attn_scalar") or width ** -0.5


def mla_decode(kernels, s, t):
    s.need(s["attn_impl"] == "absorb", "no query that is not absorbed")
    s.need(t["inputs/query"].shape[1] == 1, "no more than one token")
    s.need("inputs/block_table" in t and s.count("pagedattn_page_stride") == 0, "no cache without pages, no stride")
    s.need("weights/sinks" not in t and s.count("sliding_window_size") == 0 and s.number("attn_logits_soft_cap") == 0, "no sinks, windows or caps")
    s.need(s.number("query_pre_attn_scalar") != 0, "no scale that follows from mscale")
    s.need(t["inputs/kv_cache"].shape[1] == 16, "no pages but of 16 tokens")
    query, cache = t["inputs/query"][:, 0].contiguous(), t["inputs/kv_cache"]
    rank = s.count("kv_lora_rank")
    s.need((cache.shape[-1], rank) in ((576, 512), (512, 448)), "no rows but of 576 and 512 numbers")
    out = query.new_empty(*query.shape[:2], rank)
    kernels.mla_decode_kvcache(out, query, cache, scale_of(s, 0), t["inputs/block_table"], t["inputs/cache_seqlens"])
    return {"outputs/attention_out": out[:, None]}


def gqa_decode(kernels, s, t):
    s.need("inputs/block_table" in t and s.count("pagedattn_page_stride") == 0, "no cache without pages, no stride")
    query, key, value = t["inputs/query"], t["inputs/key_cache"], t["inputs/value_cache"]
    if s["kv_layout"] == "HND":
        key, value = key.transpose(1, 2), value.transpose(1, 2)
    (batch, tokens, heads, width), (pages, page, kv_heads) = query.shape, key.shape[:3]
    s.need(width in HEADS, f"no heads of {width}")
    s.need(page % 32 == 0, "no pages but of 32 tokens and their multiples")
    lengths = t["inputs/cache_seqlens"]
    s.need(bool((lengths >= tokens).all()), "no sequence shorter than its query")
    window = s.count("sliding_window_size") if s["attention_type"] == "local_sliding" else 0
    isa = "vec" if width % 32 == 0 else "vec16"
    caches = [torch.empty(pages, kv_heads, page, width, dtype=key.dtype) for _ in range(2)]
    slots = torch.arange(pages * page, dtype=torch.int64)
    kernels.cpu_attn_reshape_and_cache(key.flatten(0, 1).contiguous(), value.flatten(0, 1).contiguous(), *caches, slots, isa)
    starts = torch.arange(batch + 1, dtype=torch.int32) * tokens
    schedule = kernels.get_scheduler_metadata(batch, heads, kv_heads, width, lengths, query.dtype, starts, True, window or -1, isa, True, None)
    out = torch.empty(batch * tokens, heads, width, dtype=query.dtype)
    sinks = t.get("weights/sinks")
    kernels.cpu_attention_with_kv_cache(query.flatten(0, 1).contiguous(), *caches, out, starts, lengths, scale_of(s, width), True, None, window or -1,
                                        t["inputs/block_table"], s.number("attn_logits_soft_cap"), schedule, None if sinks is None else sinks.float(), None)
    return {"outputs/attention_out": out.reshape(batch, tokens, heads, width)}


OPERATIONS = {"mla_decode": mla_decode, "gqa_decode": gqa_decode}


def main():
    parser = argparse.ArgumentParser(description="vLLM's kernels for processors")
    serving.add_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--isa", choices=("AVX2", "AVX512"), help="the wheel's extension for it; by default that for any processor")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels = extension("_" + options.isa if options.isa else "")

    def answer(path, candidate):
        request = Request(path, np.float64, ("attn_logits_soft_cap",))
        s = request.settings
        s.need(request.op in OPERATIONS, "no " + request.op)
        s.need("outputs/lse" not in request.expects, "no lse")
        s.need(s["kv_cache_dtype"] == "auto" and "inputs/ckv_cache" not in request.tensors, "no cache of bytes, none in two parts")
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in request.tensors.items()}
        tensors = {name: x.to(DTYPES[options.dtype]) if x.is_floating_point() else x for name, x in tensors.items()}
        write_candidate(candidate, {name: stored(x) for name, x in OPERATIONS[request.op](kernels, s, tensors).items()})

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
