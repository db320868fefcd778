#!/usr/bin/env python3
"""FlashMLA's tests/quant.py as a backend of cache_append: tokens are quantised by it as they lie in their slots, and rows that have a token
replace those of the cache. What its reader makes of the bytes is held to its formula here, since no operation of ours shows it."""
import argparse
import importlib.util
import pathlib
import sys

BACKENDS = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(BACKENDS / "shell"))

import numpy as np
import torch

import serving
from request import Request, write_candidate

SOURCE = BACKENDS.parents[1] / "build/backends/flashmla/tests/quant.py"
FORMATS = {"fp8_ds_mla": ("V32_FP8Sparse", 512), "fp8_model1": ("MODEL1_FP8Sparse", 448)}
RULES = {"quant_scale": "divide", "quant_scale_rounding": "up", "quant_elements": "divide", "quant_saturate": "true",
         "quant_negative_zero": "true", "quant_smallest_amax": "0.0448", "dtype": "bfloat16"}


def upstream():
    spec = importlib.util.spec_from_file_location("quant", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_reader(quant, packed, layout, codes, scales, rope):
    """Codes times scales, both exact in float32, to bfloat16, bit for bit but for NaN; codes [pages,tokens,blocks,columns]."""
    expected = (codes.float() * scales[..., None]).to(torch.bfloat16).flatten(2)
    found = quant.dequantize_k_cache(packed, layout)[:, :, 0]
    expected = torch.cat([expected, rope], 2)
    same = (found.view(torch.int16) == expected.view(torch.int16)) | (found.isnan() & expected.isnan())
    if not same.all():
        raise ValueError(f"the reader: {int((~same).sum())} of {same.numel()} numbers are not code times scale")


def append(quant, s, t):
    name, latent = FORMATS[s["kv_cache_dtype"]]
    layout = quant.FP8KVCacheLayout[name]
    tokens = s.count("pagedattn_tokens_per_page")
    stride = s.count("pagedattn_page_stride") or tokens
    kept = t["inputs/slot_mapping"] >= 0
    slots = t["inputs/slot_mapping"][kept]
    cache = t["inputs/kv_cache"].astype(np.uint8)
    pages = len(cache)
    rows = torch.zeros(pages * tokens, latent + 64, dtype=torch.bfloat16)
    rows[torch.from_numpy(slots.astype(np.int64))] = torch.from_numpy(
        np.concatenate([t["inputs/kv_c"], t["inputs/k_pe"]], 1)[kept]).to(torch.bfloat16)
    rows = rows.view(pages, tokens, 1, latent + 64)
    packed = quant.quantize_k_cache(rows, layout)
    raw = packed.view(torch.uint8).reshape(pages, -1).numpy()
    row = 656 if latent == 512 else 576
    written = raw[:, :tokens * row].reshape(pages, tokens, row)
    of_cache = cache[:, :stride * row].reshape(pages, stride, row)
    of_cache[slots // tokens, slots % tokens] = written[slots // tokens, slots % tokens]
    codes = torch.from_numpy(written[:, :, :latent].copy()).view(torch.float8_e4m3fn)
    if latent == 512:
        cache[:, :stride * row] = of_cache.reshape(pages, -1)
        scales = torch.from_numpy(written[:, :, 512:528].copy()).view(torch.float32)
    else:
        cache[:, :tokens * row] = of_cache.reshape(pages, -1)
        behind = cache[:, tokens * row:tokens * (row + 8)].reshape(pages, tokens, 8)
        scales = raw[:, tokens * row:tokens * (row + 8)].reshape(pages, tokens, 8)[:, :, :7]
        behind[slots // tokens, slots % tokens, :7] = scales[slots // tokens, slots % tokens]
        cache[:, tokens * row:tokens * (row + 8)] = behind.reshape(pages, -1)
        scales = torch.from_numpy(scales.copy()).view(torch.float8_e8m0fnu).float()
    check_reader(quant, packed, layout, codes.view(pages, tokens, scales.shape[2], -1), scales, rows[:, :, 0, latent:])
    return {"outputs/kv_cache": cache.astype(np.int32)}


def answer(request, candidate):
    r = Request(request, np.float32)
    s = r.settings
    s.need(r.op == "cache_append", "no op " + r.op)
    s.need(s["kv_cache_dtype"] in FORMATS, "no such cache")
    s.need((s.count("kv_lora_rank"), s.count("qk_rope_head_dim")) == (FORMATS[s["kv_cache_dtype"]][1], 64), "other widths")
    for key, value in RULES.items():
        s.need(s[key] == value, f"{key} other than {value}")
    write_candidate(candidate, append(upstream(), s, r.tensors))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="FlashMLA's writer of caches")
    serving.add_arguments(parser)
    serving.start(parser, parser.parse_args(), answer)
