"""vLLM's Triton kernels, forward. Two are missing: its fused MoE is launched on what moe_align_block_size made, an operator of CUDA;
its prefill attention gives no log-sum-exp."""
import torch
import triton.language as tl
from vllm.model_executor.layers.fused_moe.experts.fused_batched_moe import invoke_moe_batched_triton_kernel
from vllm.model_executor.layers.fused_moe.moe_fused_mul_sum import moe_fused_mul_sum
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

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


OPERATIONS = {"gmm": gmm, "unpermute": unpermute, "attention": attention}
