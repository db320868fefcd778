"""FlashMLA's references in PyTorch as decode of mla_decode: of its dense decode, and of its sparse ones, which get the case's lists, or every key that a
query sees. Caches of bytes are read by its own reader, as its tests do."""
import importlib
import types

import torch


def scale_of(s):
    """As the case says; else that of MLA, with YaRN's factor."""
    m = 0.1 * s.number("mscale") * torch.log(torch.tensor(s.number("rope_factor"), dtype=torch.float64)).item() + 1
    stretched = s.number("max_position_embeddings") > s.number("original_max_position_embeddings")
    width = s.count("qk_nope_head_dim") + s.count("qk_rope_head_dim")
    return s.number("query_pre_attn_scalar") or width ** -0.5 * (m * m if stretched else 1)


def window(s):
    return s.count("sliding_window_size") if s["attention_type"] != "global" else 0


def dense(module, s, t):
    """Its scale is that of the key's whole width, whatever the case says: the query has the quotient in it."""
    s.need("weights/sinks" not in t and window(s) == 0 and "inputs/block_table" in t and s["kv_cache_dtype"] == "auto",
           "dense: no sinks, no windows, no lists, no bytes, no cache without pages")
    query, page = t["inputs/query"], s.count("pagedattn_tokens_per_page")
    cache = t["inputs/kv_cache"][:, :page, None]
    return module.reference_torch(t["inputs/cache_seqlens"], t["inputs/block_table"], query * (scale_of(s) * query.shape[-1] ** 0.5), cache,
                                  s.count("kv_lora_rank"), True)


def rows_of(s, t):
    """The cache as rows of numbers [pages, rows in memory, numbers]."""
    cache, kind = t["inputs/kv_cache"], s["kv_cache_dtype"]
    if kind == "auto":
        return cache
    quant = importlib.import_module("quant")
    s.need((kind, s.count("kv_lora_rank"), s.count("qk_rope_head_dim")) in (("fp8_ds_mla", 512, 64), ("fp8_model1", 448, 64)), "no such cache of bytes")
    tokens = s.count("pagedattn_page_stride") or s.count("pagedattn_tokens_per_page")
    layout, width = (quant.FP8KVCacheLayout.V32_FP8Sparse, 656) if kind == "fp8_ds_mla" else (quant.FP8KVCacheLayout.MODEL1_FP8Sparse, 584)
    packed = cache.to(torch.uint8)[:, :tokens * width].contiguous().view(torch.float8_e4m3fn)
    return quant.dequantize_k_cache(packed.view(len(cache), tokens, 1, width), layout)[:, :, 0].float()


def places(s, t, cache):
    """[B, S, L]: rows of the cache; below 0, or the largest number, where there is none."""
    if "inputs/indices" in t:
        page, index = s.count("pagedattn_tokens_per_page") or cache.shape[1], t["inputs/indices"].long()
        lawful = (index >= 0) & (index < len(cache) * page)
        none = torch.where(index < 0, index, 2**31 - 1)
        return torch.where(lawful, index // page * cache.shape[1] + index % page, none).int()
    lengths, tokens = t["inputs/cache_seqlens"], t["inputs/query"].shape[1]
    key = torch.arange(max(1, int(lengths.max())))
    last = lengths[:, None, None] - tokens + torch.arange(tokens)[:, None]
    seen = (key <= last) & (key >= 0) & ((key > last - window(s)) if window(s) > 0 else True)
    if "inputs/block_table" in t:
        page = s.count("pagedattn_tokens_per_page")
        row = t["inputs/block_table"][:, key // page] * cache.shape[1] + key % page
    else:
        row = torch.arange(len(cache))[:, None] * cache.shape[1] + key
    return torch.where(seen, row[:, None].expand_as(seen), -1).int()


def sparse_decode(module, s, t):
    """It takes -1 alone for an index that is none, as its kernel's interface says."""
    query, cache, rank = t["inputs/query"], rows_of(s, t), s.count("kv_lora_rank")
    batch, tokens, heads, width = query.shape
    p = types.SimpleNamespace(h_kv=1, decode=types.SimpleNamespace(b=batch), s_q=tokens, h_q=heads, d_qk=width, d_v=rank)
    indices = places(s, t, cache)
    indices = torch.where(indices == 2**31 - 1, -1, indices.clamp(min=-1))
    scope = types.SimpleNamespace(indices_in_kvcache=indices, topk_length=t.get("inputs/topk_length"), blocked_k=cache[:, :, None])
    return module.ref_sparse_attn_decode(p, types.SimpleNamespace(q=query, attn_sink=t.get("weights/sinks"), sm_scale=scale_of(s), kv_scope=scope,
                                                                  extra_kv_scope=None))


def sparse_prefill(module, s, t):
    """A sequence at a time, and its rows alone: this reference reads row 0 for every index that is none, and NaN there comes through."""
    cache, query = rows_of(s, t), t["inputs/query"]
    of_all, cache, lengths = places(s, t, cache), cache.flatten(0, 1), t.get("inputs/topk_length")
    outs, lses = [], []
    for b in range(len(query)):
        lawful = (of_all[b] >= 0) & (of_all[b] < len(cache))
        read = lawful if lengths is None else lawful & (torch.arange(of_all.shape[2]) < lengths[b])
        rows = of_all[b][read].unique()
        own = cache[rows] if len(rows) else torch.zeros(1, cache.shape[1])
        indices = torch.where(lawful, torch.searchsorted(rows, of_all[b]), of_all[b])
        p = types.SimpleNamespace(topk=indices.shape[1], s_q=query.shape[1], s_kv=len(own), h_q=query.shape[2], d_qk=own.shape[1],
                                  d_v=s.count("kv_lora_rank"))
        case = types.SimpleNamespace(q=query[b], kv=own, indices=indices[:, None], sm_scale=scale_of(s),
                                     attn_sink=t.get("weights/sinks"), topk_length=None if lengths is None else lengths[b].expand(query.shape[1]))
        _, out, _, lse = module.ref_sparse_attn_fwd(p, case)
        outs.append(out)
        lses.append(lse.T)
    return torch.stack(outs), torch.stack(lses)


INPUTS = {"inputs/query", "inputs/kv_cache", "inputs/cache_seqlens", "inputs/block_table", "inputs/indices", "inputs/topk_length", "weights/sinks"}
# which module of FlashMLA's tests, and the call
FORMS = {"dense": ("test_flash_mla_dense_decoding", dense), "sparse_decode": ("ref", sparse_decode), "sparse_prefill": ("ref", sparse_prefill)}


def mla_decode(module, call, s, t):
    s.need(s["attn_impl"] == "absorb", "no heads of their own")
    s.need(set(t) <= INPUTS, "a tensor that is not known here")
    s.need(s.number("attn_logits_soft_cap") == 0 and s.count("num_kv_splits") == 0, "no caps, no splits")
    s.need(s["lse_layout"] == "BNS" and s["lse_base"].strip("'") == "e", "no log-sum-exp but natural ones, [B,N,S]")
    made = {name: torch.from_numpy(x).to(torch.float32) if x.dtype.kind == "f" else torch.from_numpy(x) for name, x in t.items()}
    out, lse = call(module, s, made)
    return {"outputs/attention_out": out, "outputs/lse": lse}
