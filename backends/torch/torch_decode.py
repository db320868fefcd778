"""Attention over caches: a few tokens at the end of each sequence, and the merge of states. The forms are those of backend.py; `flex` reads
pages where they lie, by PyTorch's own PagedAttention, the others gather them."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from kernels_attention import chunk_starts, split_starts, window_of

if TYPE_CHECKING:
    from torch_operations import Call, Tensors

INPUTS = {"inputs/" + name for name in ("query", "query_nope", "query_pe", "kv_cache", "key_cache", "value_cache", "cache_seqlens", "block_table",
                                      "indices", "topk_length")}
State = tuple[Tensor, Tensor]  # out and the natural log-sum-exp, -inf where there is no key


def merged(partial: Tensor, lse: Tensor, sinks: Tensor | None) -> State:
    """Of parts [P, ..., N, S, V] and [P, ..., N, S]; what a part without keys holds counts for nothing. Weights as exp(lse - whole) would have
    the rounding of a large `whole` in them (merge_states/large-lse)."""
    empty = lse.isinf()
    lse = lse.masked_fill(empty, -math.inf)
    whole, weights = torch.logsumexp(lse, 0), torch.softmax(lse, 0).masked_fill(empty, 0)
    out = (weights[..., None] * partial.masked_fill(empty[..., None], 0)).sum(0)
    return out if sinks is None else out * gate(whole, sinks)[..., None], whole


def gate(lse: Tensor, sinks: Tensor) -> Tensor:
    """What a sink of each head leaves of out; 0 where there is no key."""
    return torch.sigmoid(lse - sinks.to(lse.dtype)[:, None]).masked_fill(lse.isinf(), 0)


def cap_of(c: Call) -> float:
    return float(c.s.text.get("attn_logits_soft_cap", 0))


def capped(c: Call, scores: Tensor) -> Tensor:
    cap = cap_of(c)
    return scores if cap == 0 else cap * torch.tanh(scores / cap)


def seen_of(c: Call, tokens: int, length: int) -> Tensor:
    """[S, L]: the S tokens are the last of L."""
    seen = torch.ones(tokens, length, dtype=torch.bool, device=c.options.device).tril(length - tokens)
    window = window_of(c.s)
    return seen & ~torch.ones_like(seen).tril(length - tokens - window) if window > 0 else seen


def attend(c: Call, query: Tensor, key: Tensor, value: Tensor, scale: float, seen: Tensor, sinks: Tensor | None) -> State:
    """query [N, S, W] over key [Nkv, L, W] and value [Nkv, L, V]."""
    heads, tokens, shared = query.shape[0], query.shape[1], key.shape[0]
    if c.options.form == "sdpa":
        c.s.need(sinks is None and cap_of(c) == 0, "no sinks and no cap in sdpa")
        made = F.scaled_dot_product_attention(query[None], key[None], value[None], seen, scale=scale, enable_gqa=heads != shared)
        return made[0], query.new_zeros(heads, tokens)
    scores = torch.matmul(query.unflatten(0, (shared, -1)), key[:, None].transpose(-1, -2)).flatten(0, 1)
    scores = scores if c.options.form == "plain" else scores.to(c.wide)
    scores = capped(c, scores * scale).masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores.to(c.wide), -1)
    p = torch.softmax(scores, -1).masked_fill(lse.isinf()[..., None], 0)
    p = p if sinks is None else p * gate(lse, sinks)[..., None]
    return torch.matmul(p.to(value.dtype).unflatten(0, (shared, -1)), value[:, None]).flatten(0, 1), lse


def rows_of(c: Call, cache: Tensor, b: int, length: int) -> Tensor:
    """A sequence of a cache whose heads stand before rows: [Nkv, length, .]."""
    table = c.t.get("inputs/block_table")
    if table is None:
        return cache[b, :, :length]
    page = c.s.count("pagedattn_tokens_per_page")
    pages = table[b, :-(-length // page)]
    return cache[pages, :, :page].transpose(0, 1).flatten(1, 2)[:, :length]


def flex_pages(c: Call, query: Tensor, key: Tensor, value: Tensor, scale: float) -> State:
    """query [B, N, S, W] over caches [P, Nkv, K, .]. Values of unused rows are multiplied by 0, so that they may not be NaN."""
    lengths, table, page = c.t["inputs/cache_seqlens"], c.t["inputs/block_table"], c.s.count("pagedattn_tokens_per_page")
    batch, heads, tokens, window = *query.shape[:3], window_of(c.s)
    pages = PagedAttention(len(key), page, batch, device=c.options.device)
    for b, length in enumerate(lengths.tolist()):
        own = table[b, :-(-length // page)]
        pages.physical_to_logical[b, own] = torch.arange(len(own), device=c.options.device)

    def own_keys(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        last = lengths[b] - tokens + i
        return torch.where((j <= last) & (j > last - window) if window > 0 else j <= last, capped(c, score), -math.inf)

    def flat(cache: Tensor) -> Tensor:
        return cache[:, :, :page].transpose(0, 1).flatten(1, 2)[None].nan_to_num(0).expand(batch, -1, -1, -1)

    out, aux = flex_attention(query, flat(key), flat(value), pages.get_score_mod(own_keys, lengths), scale=scale, enable_gqa=heads != key.shape[1],
                              return_aux=AuxRequest(lse=True))
    return out, aux.lse


def named(c: Call) -> bool:
    """Whether the case names the parts."""
    return c.s.count("num_kv_splits") > 0 or c.s.true("use_chunked_prefill")


def most_keys(c: Call, cache: Tensor) -> int:
    """Of a sequence."""
    table = c.t.get("inputs/block_table")
    return cache.shape[2] if table is None else table.shape[1] * c.s.count("pagedattn_tokens_per_page")


def listed(c: Call, query: Tensor, key: Tensor, value: Tensor, scale: float, splits: int, sinks: Tensor | None) -> list[list[Tensor]]:
    """As `decode` has states, of rows that lists name: those of each token are its own."""
    page = c.s.count("pagedattn_tokens_per_page") if c.s.count("pagedattn_num_pages") else key.shape[2]
    keys, values = (x[:, :, :page].transpose(0, 1).flatten(1, 2) for x in (key, value))
    states = []
    for b, of_tokens in enumerate(c.t["inputs/indices"]):
        count = int(c.t["inputs/topk_length"][b]) if "inputs/topk_length" in c.t else of_tokens.shape[1]
        each, of_parts = -(-count // splits), []
        for part in range(splits):
            made = []
            for token, entries in enumerate(of_tokens[:, min(part * each, count):min((part + 1) * each, count)]):
                rows = entries[(entries >= 0) & (entries < keys.shape[1])]
                seen = torch.ones(1, len(rows), dtype=torch.bool, device=rows.device)
                made.append(attend(c, query[b, :, token:token + 1], keys[:, rows], values[:, rows], scale, seen, sinks))
            of_parts.append([torch.cat(x, 1) for x in zip(*made)])
        states.append([torch.stack(x) for x in zip(*of_parts)])
    return states


def decode(c: Call, query: Tensor, key: Tensor, value: Tensor, scale: float, made: Tensors) -> State:
    """query [B, S, N, W], caches with heads before rows: out [B, N, S, .] and lse [B, N, S]. Splits that are named become checkpoints."""
    query, sinks, splits = query.transpose(1, 2), c.t.get("weights/sinks"), c.s.count("num_kv_splits")
    if c.options.form == "flex":
        c.s.need("inputs/block_table" in c.t and sinks is None and not named(c), "flex: pages alone, no sinks, no splits, no chunks")
        return flex_pages(c, query, key, value, scale)
    c.s.need(not named(c) or c.options.form != "sdpa", "no splits without log-sum-exps")
    states = listed(c, query, key, value, scale, splits or 1, None if named(c) else sinks) if "inputs/indices" in c.t else []
    for b, length in enumerate([] if states else c.t["inputs/cache_seqlens"].tolist()):
        own_key, own_value, seen = rows_of(c, key, b, length), rows_of(c, value, b, length), seen_of(c, query.shape[2], length)
        starts = split_starts(c.s, length, "inputs/block_table" in c.t, splits or 1)
        if c.s.true("use_chunked_prefill"):
            starts = chunk_starts(c.s, length, query.shape[2], most_keys(c, key))
        parts = [attend(c, query[b], own_key[:, first:end], own_value[:, first:end], scale, seen[:, first:end], None if named(c) else sinks)
                 for first, end in zip(starts, starts[1:])]
        states.append([torch.stack(x) for x in zip(*parts)])
    out, lse = (torch.stack(x, 1) for x in zip(*states))
    if not named(c):
        return out[0], lse[0]
    made["checkpoints/partial_out"], made["checkpoints/partial_lse"] = out.transpose(2, 3), based(c, lse)
    out, lse = merged(out, lse, sinks)
    return out.to(c.dtype), lse


def unit(c: Call) -> float:
    return math.log(2) if c.s["lse_base"].strip("'") == "2" else 1.0


def based(c: Call, lse: Tensor) -> Tensor:
    """By the convention of the case."""
    return (lse / unit(c)).masked_fill(lse.isinf(), float(c.s["empty_row"].strip("'")))


def results(c: Call, out: Tensor, lse: Tensor, made: Tensors) -> Tensors:
    if c.options.form != "sdpa":
        lse = based(c, lse)
        made["outputs/lse"] = lse if c.s["lse_layout"] == "BNS" else lse.transpose(1, 2)
    return {**made, "outputs/attention_out": out}


def need_numbers(c: Call) -> None:
    c.s.need(c.s["kv_cache_dtype"] == "auto", "no cache of bytes")
    c.s.need(set(c.t) <= INPUTS | {"weights/sinks", "weights/wkv_b/kernel"}, "a tensor that is not known here")


def run_mla_decode(c: Call) -> Tensors:
    """Unabsorbed the forms differ: `wide` absorbs wkv_b into the query, the others expand the cache with it; and so does it where parts are named."""
    need_numbers(c)
    s, cache, kernel, made = c.s, c.t["inputs/kv_cache"][:, None], c.t.get("weights/wkv_b/kernel"), {}
    rank, nope = s.count("kv_lora_rank"), s.count("qk_nope_head_dim")
    m = 0.1 * s.number("mscale") * math.log(s.number("rope_factor")) + 1
    stretched = s.number("max_position_embeddings") > s.number("original_max_position_embeddings")
    scale = s.number("query_pre_attn_scalar") or (nope + s.count("qk_rope_head_dim")) ** -0.5 * (m * m if stretched else 1)
    if kernel is None:
        out, lse = decode(c, c.t["inputs/query"], cache, cache[..., :rank], scale, made)
        return results(c, out.transpose(1, 2), lse, made)
    query, query_pe = c.t["inputs/query_nope"], c.t["inputs/query_pe"]
    if c.options.form == "wide" and not named(c):
        absorbed = torch.cat([torch.einsum("bsnd,cnd->bsnc", query, kernel[..., :nope]), query_pe], -1)
        out, lse = decode(c, absorbed, cache, cache[..., :rank], scale, made)
        return results(c, torch.einsum("bnsc,cnv->bsnv", out, kernel[..., nope:]), lse, made)
    kv = torch.einsum("ptrc,cnv->pnrv", cache[..., :rank], kernel)
    key = torch.cat([kv[..., :nope], cache[..., rank:].expand(-1, kv.shape[1], -1, -1)], -1)
    out, lse = decode(c, torch.cat([query, query_pe], -1), key, kv[..., nope:], scale, made)
    return results(c, out.transpose(1, 2), lse, made)


def run_gqa_decode(c: Call) -> Tensors:
    need_numbers(c)
    key, value, made = c.t["inputs/key_cache"], c.t["inputs/value_cache"], {}
    if c.s["kv_layout"] != "HND":
        key, value = key.transpose(1, 2), value.transpose(1, 2)
    out, lse = decode(c, c.t["inputs/query"], key, value, c.s.number("query_pre_attn_scalar") or key.shape[-1] ** -0.5, made)
    return results(c, out.transpose(1, 2), lse, made)


def run_merge_states(c: Call) -> Tensors:
    out, lse = merged(c.t["inputs/partial_out"].transpose(2, 3).to(c.wide), c.t["inputs/partial_lse"] * unit(c), c.t.get("weights/sinks"))
    return {"outputs/attention_out": out.transpose(1, 2).to(c.dtype), "outputs/lse": based(c, lse)}
