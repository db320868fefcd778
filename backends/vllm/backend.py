#!/usr/bin/env python3
"""vLLM's kernels for processors as a backend: decode over a paged cache, forward, and its writers of caches.

    python3 backends/vllm/backend.py --serve --dtype bf16

The extension of the wheel is loaded by itself, the AVX2 one with --isa AVX2. Its kernels give no log-sum-exp (return_lse: false).
"""
import argparse
import importlib.util
import pathlib
import sys

BACKENDS = pathlib.Path(__file__).resolve().parents[2] / "harness/backends"
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


def bytes_of(pages, row, kind):
    """Pages of bytes as [pages, rows, numbers of a row]."""
    return pages.to(torch.uint8).view(kind).unflatten(1, (-1, row))


def places(s):
    """Of pages with heads and tokens in the order of the case to those with heads first, and back."""
    return (0, 2, 1, 3) if s["kv_layout"] != "HND" else (0, 1, 2, 3)


def caches_of(s, t, heads, width, kind):
    """Keys and values as vLLM has them, from the bytes of the case: the same in another order, heads before tokens and keys by columns."""
    page = s.count("pagedattn_tokens_per_page")
    shape = (page, heads) if s["kv_layout"] != "HND" else (heads, page)
    keys, values = (bytes_of(t[f"inputs/{name}_cache"], width, kind).unflatten(1, shape).permute(places(s)) for name in ("key", "value"))
    return [keys.transpose(2, 3).contiguous().view(-1, heads, page, width), values.contiguous()]


def slots_of(s, t):
    """[B S, keys]: where the keys of each token lie, -1 for none."""
    page, tokens = s.count("pagedattn_tokens_per_page"), t["inputs/query"].shape[1]
    if "inputs/indices" in t:
        slots = t["inputs/indices"].flatten(0, 1).long()
        lengths = t["inputs/topk_length"].repeat_interleave(tokens)[:, None] if "inputs/topk_length" in t else slots.shape[1]
        none = (slots < 0) | (slots >= len(t["inputs/kv_cache"]) * page) | (torch.arange(slots.shape[1]) >= lengths)
        return torch.where(none, -1, slots)
    lengths, table = t["inputs/cache_seqlens"], t["inputs/block_table"]
    key = torch.arange(max(1, int(lengths.max())))
    last = lengths[:, None, None] - tokens + torch.arange(tokens)[:, None]
    slots = table[:, key // page].long() * page + key % page
    return torch.where(key <= last, slots[:, None], -1).flatten(0, 1)


def mla_decode_bytes(kernels, s, t):
    """DeepSeek-V4's: rows of 584 bytes, and its values have the rope too, which the case's have not. The second cache is none."""
    s.need((s["kv_cache_dtype"], s.count("kv_lora_rank"), s.count("qk_rope_head_dim")) == ("fp8_model1", 448, 64), "no bytes but DeepSeek-V4's")
    s.need(s.count("pagedattn_page_stride") == 0 and s.count("sliding_window_size") == 0 and s.number("attn_logits_soft_cap") == 0
           and ("inputs/block_table" in t or "inputs/indices" in t), "no stride, windows, caps, no cache without pages")
    query, cache, heads = t["inputs/query"].flatten(0, 1).contiguous(), t["inputs/kv_cache"].to(torch.uint8).contiguous(), t["inputs/query"].shape[2]
    s.need(query.dtype == torch.bfloat16, "no numbers but bfloat16")
    sinks = t["weights/sinks"].float() if "weights/sinks" in t else torch.full((heads,), -torch.inf)
    out, slots = torch.empty_like(query), slots_of(s, t)
    kernels.flash_mla_with_kvcache_cpu(out, query, cache, slots, s.count("pagedattn_tokens_per_page"), cache, slots.new_empty(len(slots), 0), 1, sinks,
                                       s.number("query_pre_attn_scalar"))
    return {"outputs/attention_out": out[..., :448].unflatten(0, t["inputs/query"].shape[:2])}


def mla_decode(kernels, s, t):
    if s["kv_cache_dtype"] != "auto":
        return mla_decode_bytes(kernels, s, t)
    s.need("inputs/kv_cache" in t, "no cache in two parts")
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
    query, key, value, coded = t["inputs/query"], t["inputs/key_cache"], t["inputs/value_cache"], s["kv_cache_dtype"] != "auto"
    s.need(s["kv_cache_dtype"] in ("auto", "fp8_e4m3"), "no bytes but of e4m3")
    if s["kv_layout"] == "HND" and not coded:
        key, value = key.transpose(1, 2), value.transpose(1, 2)
    (batch, tokens, heads, width), pages = query.shape, len(key)
    page, kv_heads = (s.count("pagedattn_tokens_per_page"), s.count("base_num_kv_heads")) if coded else key.shape[1:3]
    s.need(width in HEADS, f"no heads of {width}")
    s.need(page % 32 == 0, "no pages but of 32 tokens and their multiples")
    lengths = t["inputs/cache_seqlens"]
    s.need(bool((lengths >= tokens).all()), "no sequence shorter than its query")
    window = s.count("sliding_window_size") if s["attention_type"] == "local_sliding" else 0
    isa = "vec" if width % 32 == 0 else "vec16"
    scales, kind = (1.0, 1.0), "auto"
    if coded:
        caches, scales, kind = caches_of(s, t, kv_heads, width, torch.uint8), (float(t["inputs/k_scale"]), float(t["inputs/v_scale"])), "fp8_e4m3"
    else:
        caches = [torch.empty(pages, kv_heads, page, width, dtype=key.dtype) for _ in range(2)]
        slots = torch.arange(pages * page, dtype=torch.int64)
        kernels.cpu_attn_reshape_and_cache(key.flatten(0, 1).contiguous(), value.flatten(0, 1).contiguous(), *caches, slots, isa)
    starts = torch.arange(batch + 1, dtype=torch.int32) * tokens
    schedule = kernels.get_scheduler_metadata(batch, heads, kv_heads, width, lengths, query.dtype, starts, True, window or -1, isa, True, None)
    out = torch.empty(batch * tokens, heads, width, dtype=query.dtype)
    sinks = t.get("weights/sinks")
    kernels.cpu_attention_with_kv_cache(query.flatten(0, 1).contiguous(), *caches, out, starts, lengths, scale_of(s, width), True, None, window or -1,
                                        t["inputs/block_table"], s.number("attn_logits_soft_cap"), schedule, None if sinks is None else sinks.float(), None, *scales, kind)
    return {"outputs/attention_out": out.reshape(batch, tokens, heads, width)}


def cache_append(kernels, s, t):
    s.need_written_as_given()
    s.need(s["dtype"] == "bfloat16" and s.count("pagedattn_page_stride") == 0, "no numbers but bfloat16, no stride")
    slots, page = t["inputs/slot_mapping"].long(), s.count("pagedattn_tokens_per_page")
    if "inputs/kv_c" in t:
        s.need(s["kv_cache_dtype"] in ("auto", "bfloat16") and not s.true("kv_cache_split"), "no latents but of bfloat16, in one cache")
        latent, rope = t["inputs/kv_c"].bfloat16(), t["inputs/k_pe"].bfloat16()
        cache = bytes_of(t["inputs/kv_cache"], latent.shape[1] + rope.shape[1], torch.bfloat16)
        kernels.concat_and_cache_mla_cpu(latent, rope, cache, slots)
        return {"outputs/kv_cache": cache.flatten(1).view(torch.uint8).int()}
    s.need(s["kv_cache_dtype"] in ("auto", "bfloat16", "fp8_e4m3") and "inputs/value" in t, "no such cache")
    x = [t["inputs/" + name].bfloat16().contiguous() for name in ("key", "value")]
    kind, (_, heads, width) = torch.bfloat16 if s["kv_cache_dtype"] != "fp8_e4m3" else torch.uint8, x[0].shape
    s.need(width in HEADS and page % 32 == 0, "no heads of other widths, no pages but of 32 tokens and their multiples")
    caches = caches_of(s, t, heads, width, kind)
    scales = [float(t[f"inputs/{name}_scale"]) if f"inputs/{name}_scale" in t else 1.0 for name in ("k", "v")]
    kernels.cpu_attn_reshape_and_cache(*x, *caches, slots, "vec" if width % 32 == 0 else "vec16", *scales, "fp8_e4m3" if kind == torch.uint8 else "auto")
    caches[0] = caches[0].view(-1, heads, width, page).transpose(2, 3)
    return {f"outputs/{name}_cache": cache.permute(places(s)).contiguous().flatten(1).view(torch.uint8).int() for name, cache in zip(("key", "value"), caches)}


OPERATIONS = {"mla_decode": mla_decode, "gqa_decode": gqa_decode, "cache_append": cache_append}


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
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in request.tensors.items()}
        if request.op != "cache_append":
            tensors = {name: x.to(DTYPES[options.dtype]) if x.is_floating_point() and not name.endswith("_scale") else x for name, x in tensors.items()}
        s.need(options.isa != "AVX2" or s["kv_cache_dtype"] != "fp8_e4m3", "no fp8 cache without AVX-512")
        write_candidate(candidate, {name: stored(x) for name, x in OPERATIONS[request.op](kernels, s, tensors).items()})

    serving.start(parser, options, answer)


if __name__ == "__main__":
    main()
