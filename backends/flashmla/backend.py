#!/usr/bin/env python3
"""Files of FlashMLA's tests as a backend. tests/quant.py is one of cache_append: tokens are quantised by it as they lie in their slots, and rows that
have a token replace those of the cache. What its reader makes of the bytes is held to its formula here, since no operation of ours shows it.
--reference NAME: its references in PyTorch, of mla_decode (reference.py)."""
import argparse
import importlib
import pathlib
import sys
import types

BACKENDS = pathlib.Path(__file__).resolve().parents[2] / "harness/backends"
sys.path.append(str(BACKENDS / "shell"))

import numpy as np
import torch

import reference
import serving
from request import Request, write_candidate
from torch_results import stored

TESTS = BACKENDS.parents[1] / "build/backends/flashmla/tests"
FORMATS = {"fp8_ds_mla": ("V32_FP8Sparse", 512), "fp8_model1": ("MODEL1_FP8Sparse", 448)}
RULES = {"quant_scale": "divide", "quant_scale_rounding": "up", "quant_elements": "divide", "quant_saturate": "true",
         "quant_negative_zero": "true", "quant_smallest_amax": "0.0448", "dtype": "bfloat16"}


def upstream(name):
    """A file of its tests. What they import for their timings and kernels needs a GPU, and stays out; of it the references call `cdiv` alone."""
    if not (TESTS / f"{name}.py").exists():
        sys.exit(f"no {TESTS}/{name}.py of FlashMLA: ci/setup backends flashmla, then ci/backends flashmla, fetches it")
    sys.path.append(str(TESTS))
    for absent in ("flash_mla", "kernelkit"):
        sys.modules[absent] = types.ModuleType(absent)
    sys.modules["kernelkit"].cdiv = lambda a, b: -(-a // b)
    return importlib.import_module(name)


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


def cache_append(quant, r):
    s = r.settings
    s.need(r.op == "cache_append", "no op " + r.op)
    s.need_written_as_given()
    s.need(s["kv_cache_dtype"] in FORMATS, "no such cache")
    s.need((s.count("kv_lora_rank"), s.count("qk_rope_head_dim")) == (FORMATS[s["kv_cache_dtype"]][1], 64), "other widths")
    for key, value in RULES.items():
        s.need(s[key] == value, f"{key} other than {value}")
    return append(quant, s, r.tensors)


def mla_decode(module, call, r):
    r.settings.need(r.op == "mla_decode", "no op " + r.op)
    return {name: stored(x) for name, x in reference.mla_decode(module, call, r.settings, r.tensors).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="FlashMLA's writer of caches, and its references")
    serving.add_arguments(parser)
    parser.add_argument("--reference", choices=reference.FORMS)
    options = parser.parse_args()
    name, form = reference.FORMS.get(options.reference, ("quant", None))
    module = upstream(name)

    def answer(path, candidate):
        request = Request(path, np.float32)
        write_candidate(candidate, cache_append(module, request) if form is None else mla_decode(module, form, request))

    serving.start(parser, options, answer)
