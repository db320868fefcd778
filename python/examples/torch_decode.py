"""Decode attention over pages in PyTorch, as a kernel's launcher sees it: queries of a few tokens, a cache of pages, of bfloat16 or of bytes.

An example of a kernel under test, to be replaced by your own: test_torch_decode.py tries it over the catalogue. Parts of the keys are
merged by their log-sum-exp, as split kernels do.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

# What this kernel has, for @assay.cases(supports=SUPPORTS); of other keys it takes every value.
SUPPORTS = {
    "kv_cache_dtype": ["auto", "fp8_ds_mla", "fp8_e4m3", "fp8_e4m3_per_head"],
    "kv_cache_split": False,
    "attn_impl": "absorb",
    "num_kv_splits": 0,
    "use_indexer": False,
    "sliding_window_size": 0,
    "attn_logits_soft_cap": 0,
    "attention_sink": False,
}
KEYS_OF_A_PART = 16


def e4m3() -> Tensor:
    """The number of each byte; PyTorch from 2.1 on has torch.float8_e4m3fn for it."""
    code = torch.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    size = torch.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    size[[127, 255]] = math.nan
    return torch.where(code > 127, -size, size)


def dequantise(pages: Tensor, config: dict, heads: int, scale: Tensor | None) -> Tensor:
    """Pages of bytes [P, bytes] to [P, rows, heads, numbers], with kv_layout HND [P, heads, rows, numbers], in bfloat16."""
    rows = config["pagedattn_page_stride"] or config["pagedattn_tokens_per_page"] or config["cache_length"]
    order = (heads, rows) if config["kv_layout"] == "HND" else (rows, heads)
    codes = pages.to(torch.uint8).reshape(len(pages), *order, -1)
    if config["kv_cache_dtype"] == "fp8_ds_mla":
        rank, blocks = config["kv_lora_rank"], config["kv_lora_rank"] // 128
        scales = codes[..., rank : rank + 4 * blocks].contiguous().view(torch.float32)
        rope = codes[..., rank + 4 * blocks :].contiguous().view(torch.bfloat16)
        latent = e4m3()[codes[..., :rank].long()] * scales.repeat_interleave(128, -1)
        return torch.cat([latent.bfloat16(), rope], -1)
    numbers = e4m3()[codes.long()]
    of_heads = scale.expand(heads)
    return (numbers * (of_heads[:, None, None] if config["kv_layout"] == "HND" else of_heads[:, None])).bfloat16()


def gather(cache: Tensor, table: Tensor | None, config: dict, sequence: int, length: int) -> Tensor:
    """The rows of a sequence, [length, heads, numbers]."""
    if cache.ndim == 3:  # latents have one head
        cache = cache[:, :, None]
    elif config["kv_layout"] == "HND":
        cache = cache.transpose(1, 2)
    if table is None:
        return cache[sequence, :length]
    size = config["pagedattn_tokens_per_page"]
    pages = table[sequence, : -(-length // size)].long()
    return cache[pages, :size].flatten(0, 1)[:length]


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, first: int, length: int) -> tuple[Tensor, Tensor]:
    """query [S,N,W] over the keys from `first` on, [k,N,W], of `length`: out [S,N,V], lse [S,N], of float32."""
    last = length - len(query) + torch.arange(len(query))
    unseen = first + torch.arange(len(key)) > last[:, None]
    scores = torch.einsum("snw,knw->snk", query.float(), key.float()) * scale
    scores = scores.masked_fill(unseen[:, None], -math.inf)
    lse = scores.logsumexp(-1)
    p = (scores - lse.clamp(min=-1e30)[..., None]).exp()
    return torch.einsum("snk,knv->snv", p.bfloat16().float(), value.float()), lse


def decode(given: dict, config: dict, scale: float, **wrong) -> dict:
    """The results of op mla_decode or gqa_decode. `wrong`: powers=True reads float32 scales as powers of two."""
    query, lengths, table = given["inputs/query"], given["inputs/cache_seqlens"], given.get("inputs/block_table")
    latent = "inputs/kv_cache" in given
    heads = 1 if latent else config["base_num_kv_heads"] or query.shape[2]
    key_cache, value_cache = (given["inputs/kv_cache"],) * 2 if latent else (given["inputs/key_cache"], given["inputs/value_cache"])
    if config["kv_cache_dtype"] != "auto":
        of_key, of_value = (given.get("inputs/" + name) for name in (("kv_scale",) * 2 if latent else ("k_scale", "v_scale")))
        if wrong.get("powers"):
            key_cache = exponents_alone(key_cache, config)
        key_cache, value_cache = dequantise(key_cache, config, heads, of_key), None if latent else dequantise(value_cache, config, heads, of_value)
    batch, tokens, count, _ = query.shape
    width = config["kv_lora_rank"] if latent else config["head_dim"]
    out = torch.zeros(batch, tokens, count, width)
    lse = torch.full((batch, tokens, count), -math.inf)
    for b, length in enumerate(lengths.tolist()):
        key = gather(key_cache, table, config, b, length)
        value = key[..., :width] if latent else gather(value_cache, table, config, b, length)
        key, value = (x.repeat_interleave(count // heads, 1) for x in (key, value))
        for first in range(0, length, KEYS_OF_A_PART):
            part = slice(first, first + KEYS_OF_A_PART)
            o, l = attend(query[b], key[part], value[part], scale, first, length)
            merged = torch.logaddexp(lse[b], l)
            weigh = lambda of: (of - merged.clamp(min=-1e30)).exp()[..., None]
            out[b], lse[b] = out[b] * weigh(lse[b]) + o * weigh(l), merged
    empty = float(config["empty_row"])
    lse = torch.where(lse == -math.inf, torch.tensor(empty), lse / (math.log(2) if str(config["lse_base"]) == "2" else 1))
    results = {"outputs/attention_out": out.to(query.dtype)}
    if config["return_lse"]:
        results["outputs/lse"] = lse if config["lse_layout"] == "BSN" else lse.transpose(1, 2).contiguous()
    return results


def exponents_alone(pages: Tensor, config: dict) -> Tensor:
    """A bug that kernels had: the scales of fp8_ds_mla go through e8m0."""
    rank, blocks = config["kv_lora_rank"], config["kv_lora_rank"] // 128
    rows = config["pagedattn_page_stride"] or config["pagedattn_tokens_per_page"]
    lines = pages.to(torch.uint8).reshape(len(pages), rows, -1).clone()
    bits = lines[..., rank : rank + 4 * blocks].contiguous().view(torch.int32) & 0x7F800000
    lines[..., rank : rank + 4 * blocks] = bits.view(torch.uint8)
    return lines.reshape(len(pages), -1)
