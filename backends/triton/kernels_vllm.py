"""vLLM's Triton kernels, forward. Two are missing: its fused MoE is launched on what moe_align_block_size made, an operator of CUDA;
its prefill attention gives no log-sum-exp."""
import math

import torch
import triton.language as tl
from vllm.model_executor.layers.fused_moe.experts.fused_batched_moe import invoke_moe_batched_triton_kernel
from vllm.model_executor.layers.fused_moe.moe_fused_mul_sum import moe_fused_mul_sum
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd
from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

from kernels_attention import window_of

SPLITS = 4
TYPES = {torch.float32: tl.float32, torch.float16: tl.float16}
TILES = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "num_warps": 4, "num_stages": 2}


def gmm(c):
    """The product of batched experts: every group has room for the same number of rows, of which the first are its own."""
    c.forward_only()
    c.s.need(c.dtype in TYPES, "no type but float32 and float16")
    c.s.need(c.s["gmm_layout"] in ("masked", "ragged"), f"no layout {c.s['gmm_layout']}")
    lhs, rhs = c.t["inputs/lhs"].detach(), c.t["weights/rhs"].detach()
    sizes = c.t["inputs/masked_m" if lhs.ndim == 3 else "inputs/group_sizes"]
    rows = lhs
    if lhs.ndim == 2:
        rows, first = lhs.new_zeros(len(sizes), max(1, int(sizes.max())), lhs.shape[1]), 0
        for group, size in enumerate(sizes.tolist()):
            rows[group, :size] = lhs[first:first + size]
            first += size
    y = rows.new_zeros(*rows.shape[:2], rhs.shape[2])
    invoke_moe_batched_triton_kernel(rows, rhs.transpose(1, 2).contiguous(), y, sizes, TYPES[c.dtype], None, None, None, False, False, False, TILES,
                                     False)
    if lhs.ndim == 2:
        own = torch.cat([y[group, :size] for group, size in enumerate(sizes.tolist())])
        y = torch.cat([own, own.new_zeros(len(lhs) - len(own), own.shape[1])])
    return {"outputs/y": y}


def unpermute(c):
    """The weighted sum of each token's rows, which vLLM has side by side."""
    c.forward_only()
    order, weights = c.t["inputs/sorted_selected_experts"].long(), c.t["inputs/weights"].detach()
    c.s.need(bool((order >= 0).all()), "no slots of -1")
    copies = c.t["inputs/sorted"].detach()[torch.argsort(order)].reshape(*weights.shape, -1)
    return {"outputs/y": moe_fused_mul_sum(copies.contiguous(), weights.contiguous())}


def attention(c):
    """Decoding: each query is a request of its own over the keys before it, in SPLITS parts whose states a second kernel merges."""
    c.forward_only()
    query, key, value = (c.t["inputs/" + name].detach() for name in ("query", "key", "value"))
    c.s.need("inputs/segment_ids" not in c.t and "weights/sinks" not in c.t and window_of(c.s) == 0, "no segments, sinks or windows")
    (batch, length, heads), width = query.shape[:3], value.shape[-1]
    rows = batch * length
    out, lse = query.new_empty(rows, heads, width), query.new_empty(rows, heads)
    parts = torch.empty(rows, heads, SPLITS, width + 1)
    first = torch.arange(batch, dtype=torch.int32).repeat_interleave(length)[:, None] * length
    lengths = torch.arange(1, length + 1, dtype=torch.int32).repeat(batch)
    places = first + torch.arange(length, dtype=torch.int32)
    decode_attention_fwd(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), out, lse, places, lengths, parts, SPLITS, 1.0)
    return {"outputs/attention_out": out.reshape(batch, length, heads, width), "outputs/lse": lse.reshape(batch, length, heads).transpose(1, 2)}


def decode(c, key, value, scale, latent):
    """key and value [pages, rows, heads, numbers]. Each token is a request of its own, over the keys up to itself. The kernel cuts a request's keys
    into equal splits, so that those of pages are no splits of the case's."""
    s, query, table = c.s, c.t["inputs/query"].detach(), c.t.get("inputs/block_table")
    s.need("weights/sinks" not in c.t and window_of(s) == 0, "no sinks, no windows")
    s.need(s["lse_base"].strip("'") == "e", "no log-sum-exp but natural ones")
    s.need("inputs/cache_seqlens" in c.t, "no lists of rows")
    (batch, tokens, heads), width, named = query.shape[:3], value.shape[-1], s.count("num_kv_splits")
    rows, splits, page = batch * tokens, named or SPLITS, key.shape[1] if table is None else s.count("pagedattn_tokens_per_page")
    table = torch.arange(batch, dtype=torch.int32)[:, None] if table is None else table
    lengths = (c.t["inputs/cache_seqlens"][:, None] - tokens + 1 + torch.arange(tokens)).clamp(min=0).flatten().int()
    out, lse = query.new_empty(rows, heads, width), torch.empty(rows, heads)  # vLLM's caller has lse in the query's type
    parts = torch.full((rows, heads, splits, width + 1), -torch.inf)
    decode_attention_fwd(query.flatten(0, 1).contiguous(), key[:, :page], value[:, :page], out, lse, table.repeat_interleave(tokens, 0), lengths, parts,
                         splits, scale, page, s.number("attn_logits_soft_cap"), is_mla=latent)
    lse = lse.reshape(batch, tokens, heads)
    made = {"outputs/attention_out": out.reshape(batch, tokens, heads, width), "outputs/lse": lse if s["lse_layout"] == "BSN" else lse.transpose(1, 2)}
    if named and tokens == 1 and "inputs/block_table" not in c.t:
        made["checkpoints/partial_out"] = parts[..., :width].permute(2, 0, 1, 3)[:, :, None]
        made["checkpoints/partial_lse"] = parts[..., width].permute(2, 0, 1)[..., None]
    return made


def mla_decode(c):
    s = c.s
    s.need(s["attn_impl"] == "absorb", "no query that is not absorbed")
    s.need(s["kv_cache_dtype"] == "auto" and "inputs/kv_cache" in c.t, "no cache of bytes, none in two parts")
    cache = c.t["inputs/kv_cache"].detach()[:, :, None]
    m = 0.1 * s.number("mscale") * math.log(s.number("rope_factor")) + 1
    stretched = s.number("max_position_embeddings") > s.number("original_max_position_embeddings")
    scale = (s.count("qk_nope_head_dim") + s.count("qk_rope_head_dim")) ** -0.5 * (m * m if stretched else 1)
    return decode(c, cache, cache[..., :s.count("kv_lora_rank")], s.number("query_pre_attn_scalar") or scale, True)


def gqa_decode(c):
    c.s.need(c.s["kv_cache_dtype"] == "auto", "no cache of bytes")
    key, value = c.t["inputs/key_cache"].detach(), c.t["inputs/value_cache"].detach()
    if c.s["kv_layout"] == "HND":
        key, value = key.transpose(1, 2), value.transpose(1, 2)
    return decode(c, key, value, c.s.number("query_pre_attn_scalar") or key.shape[-1] ** -0.5, False)


def merge_states(c):
    """Two at a time; what there is in between keeps its type."""
    c.forward_only()
    out, lse = c.t["inputs/partial_out"].detach(), c.t["inputs/partial_lse"].detach().float()
    c.s.need("weights/sinks" not in c.t and c.s["lse_base"].strip("'") == "e", "no sinks, no log-sum-exp but natural ones")
    rows, of_rows = out.flatten(1, 2), lse.transpose(1, 2).flatten(2)  # [P,T,N,Dv], [P,N,T]
    made, of_made = rows[0].contiguous(), of_rows[0].contiguous()
    for part, of_part in zip(rows[1:], of_rows[1:]):
        prefix, of_prefix = made, of_made
        made, of_made = torch.empty_like(prefix), torch.empty_like(of_prefix)
        merge_attn_states(made, prefix, of_prefix, part.contiguous(), of_part.contiguous(), of_made)
    return {"outputs/attention_out": made.reshape(out.shape[1:]), "outputs/lse": of_made.unflatten(1, out.shape[1:3]).transpose(0, 1)}


OPERATIONS = {"gmm": gmm, "unpermute": unpermute, "attention": attention, "merge_states": merge_states, "mla_decode": mla_decode, "gqa_decode": gqa_decode}
