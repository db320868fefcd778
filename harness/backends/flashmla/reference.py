"""FlashMLA's references in PyTorch as decode of mla_decode: of its dense decode, and of its sparse ones with every key that a query sees among the indices."""
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
    s.need("weights/sinks" not in t and window(s) == 0 and "inputs/block_table" in t, "dense: no sinks, no windows, no cache without pages")
    query, page = t["inputs/query"], s.count("pagedattn_tokens_per_page")
    cache = t["inputs/kv_cache"][:, :page, None]
    return module.reference_torch(t["inputs/cache_seqlens"], t["inputs/block_table"], query * (scale_of(s) * query.shape[-1] ** 0.5), cache,
                                  s.count("kv_lora_rank"), True)


def places(s, t):
    """[B, S, L]: rows of the cache, -1 where a query does not see the key."""
    cache, lengths, tokens = t["inputs/kv_cache"], t["inputs/cache_seqlens"], t["inputs/query"].shape[1]
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
    query, cache, rank = t["inputs/query"], t["inputs/kv_cache"], s.count("kv_lora_rank")
    batch, tokens, heads, width = query.shape
    p = types.SimpleNamespace(h_kv=1, decode=types.SimpleNamespace(b=batch), s_q=tokens, h_q=heads, d_qk=width, d_v=rank)
    scope = types.SimpleNamespace(indices_in_kvcache=places(s, t), topk_length=None, blocked_k=cache[:, :, None])
    return module.ref_sparse_attn_decode(p, types.SimpleNamespace(q=query, attn_sink=t.get("weights/sinks"), sm_scale=scale_of(s), kv_scope=scope,
                                                                  extra_kv_scope=None))


def sparse_prefill(module, s, t):
    """A sequence at a time, and its rows alone: this reference reads row 0 for every index that is none, and NaN there comes through."""
    cache, query, of_all = t["inputs/kv_cache"].flatten(0, 1), t["inputs/query"], places(s, t)
    outs, lses = [], []
    for b in range(len(query)):
        rows = of_all[b][of_all[b] >= 0].unique()
        own = cache[rows] if len(rows) else torch.zeros(1, cache.shape[1])
        indices = torch.where(of_all[b] >= 0, torch.searchsorted(rows, of_all[b]), -1)
        p = types.SimpleNamespace(topk=indices.shape[1], s_q=query.shape[1], s_kv=len(own), h_q=query.shape[2], d_qk=own.shape[1],
                                  d_v=s.count("kv_lora_rank"))
        case = types.SimpleNamespace(q=query[b], kv=own, indices=indices[:, None], topk_length=None, sm_scale=scale_of(s),
                                     attn_sink=t.get("weights/sinks"))
        _, out, _, lse = module.ref_sparse_attn_fwd(p, case)
        outs.append(out)
        lses.append(lse.T)
    return torch.stack(outs), torch.stack(lses)


INPUTS = {"inputs/query", "inputs/kv_cache", "inputs/cache_seqlens", "inputs/block_table", "weights/sinks"}
# which module of FlashMLA's tests, and the call
FORMS = {"dense": ("test_flash_mla_dense_decoding", dense), "sparse_decode": ("ref", sparse_decode), "sparse_prefill": ("ref", sparse_prefill)}


def mla_decode(module, call, s, t):
    s.need(s["attn_impl"] == "absorb", "no heads of their own")
    s.need(s["kv_cache_dtype"] == "auto", "no cache of bytes")
    s.need(set(t) <= INPUTS, "a tensor that is not known here")
    s.need(s.number("attn_logits_soft_cap") == 0 and s.count("num_kv_splits") == 0, "no caps, no splits")
    s.need(s["lse_layout"] == "BNS" and s["lse_base"].strip("'") == "e", "no log-sum-exp but natural ones, [B,N,S]")
    made = {name: torch.from_numpy(x).to(torch.float32) if x.dtype.kind == "f" else torch.from_numpy(x) for name, x in t.items()}
    out, lse = call(module, s, made)
    return {"outputs/attention_out": out, "outputs/lse": lse}
