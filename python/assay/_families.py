"""Families of flashinfer-trace as operations of the catalogue: a row each of `FAMILIES`, from a definition's tensors to a case with its numbers.

A row takes the names that the definitions have, and gives a `Row`, or None where it lacks one of them. Whoever takes a row holds the definition's own reference against it
before a solution: a reference that is another function is traced instead.
"""
from __future__ import annotations

import functools
import itertools
import re
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from ._case import Case, case
from ._correct import case_of_numbers
from ._trace import step as assay_step


class Row(NamedTuple):
    """A case, and where each result of the definition stands in it: the path, and the shape there."""

    open: Callable[..., Case]  #: at a precision, with keywords of `case`
    results: dict[str, tuple[str, tuple[int, ...]]]


def paged(given: Mapping[str, Any], keys: int) -> "tuple[Any, Any, Any]":
    """Of each query as a sequence of its own: how many keys it sees, its pages, and which pages are used at all. `keys` are those of a page."""
    import torch

    starts = given["kv_indptr"].long()
    indices = given["kv_indices"].long() if "kv_indices" in given else torch.arange(int(starts[-1]))
    pages = starts.diff()
    last = given["kv_last_page_len"].long()[: len(pages)] if "kv_last_page_len" in given else torch.full_like(pages, keys)
    lengths = torch.where(pages > 0, (pages - 1) * keys + last, 0)
    new = given["qo_indptr"].long().diff() if "qo_indptr" in given else torch.ones_like(pages)
    of = torch.arange(len(pages)).repeat_interleave(new)
    place = torch.arange(len(of)) - (new.cumsum(0) - new)[of]
    seen = (lengths[of] - new[of] + place + 1).clamp(min=0)
    used, renamed = torch.unique(indices, return_inverse=True)
    table = torch.full((len(pages), max(1, int(pages.max()))), -1)
    for i, (first, count) in enumerate(zip(starts.tolist(), pages.tolist())):
        table[i, :count] = renamed[first : first + count]
    return seen, table[of], used


def attention_case(op: str, keys: Mapping[str, Any], rows: int, inputs: Mapping[str, Any], lse: bool = True) -> Callable[..., Case]:
    model = {"lse_base": "2", "empty_row": "-inf", "lse_layout": "BSN", "return_lse": lse, **keys}
    inputs = {f"inputs/{name}": x if x.is_floating_point() else x.int() for name, x in inputs.items()}
    return opened({"case": "flashinfer/attention", "op": op, "model": model, "batch": rows, "sequence": 1}, inputs)


def opened(text: Mapping[str, Any], inputs: Mapping[str, Any]) -> Callable[..., Case]:
    return lambda precision, **keywords: case(text, precision=precision, cache="", inputs=inputs, profiles=[precision], **keywords)


def results_of_attention(given: Mapping[str, Any], rows: int, heads: int, width: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {"output": ("outputs/attention_out", (rows, 1, heads, width)), "lse": ("outputs/lse", (rows, 1, heads))}


def gqa(name: str, given: Mapping[str, Any]) -> Iterator[Row]:
    """Grouped queries over a cache in pages, or over keys that lie one behind the other: pages of one key."""
    q, k, v = given["q"], *(given[x] if x in given else given[x[0]].unsqueeze(1) for x in ("k_cache", "v_cache"))
    rows, heads, width = q.shape
    if k.shape != v.shape:
        return
    seen, table, used = paged(given, k.shape[1])
    keys = {"base_num_query_heads": heads, "base_num_kv_heads": k.shape[2], "head_dim": width, "pagedattn_num_pages": max(1, len(used)), "pagedattn_tokens_per_page": k.shape[1],
            "pagedattn_max_pages_per_group": table.shape[1], "query_pre_attn_scalar": given["sm_scale"]}  # fmt: skip
    used = used if len(used) else used.new_zeros(1)
    inputs = {"query": q.unsqueeze(1), "key_cache": k[used], "value_cache": v[used], "cache_seqlens": seen, "block_table": table}
    yield Row(attention_case("gqa_decode", keys, rows, inputs), results_of_attention(given, rows, heads, width))


def mla(name: str, given: Mapping[str, Any]) -> Iterator[Row]:
    """Latents in pages, all that a sequence has or those that a list names."""
    import torch

    latent, turned = given["ckv_cache"], given["kpe_cache"]
    query = torch.cat([given["q_nope"], given["q_pe"]], -1).unsqueeze(1)
    rows, _, heads, _ = query.shape
    keys = {"base_num_query_heads": heads, "kv_lora_rank": latent.shape[-1], "qk_rope_head_dim": turned.shape[-1], "qk_nope_head_dim": latent.shape[-1],
            "v_head_dim": latent.shape[-1], "kv_cache_split": True, "query_pre_attn_scalar": given["sm_scale"]}  # fmt: skip
    inputs: dict[str, Any]
    if "sparse_indices" in given:
        listed = given["sparse_indices"].long()
        latent, turned = (x.reshape(-1, 1, x.shape[-1]) for x in (latent, turned))
        used, renamed = torch.unique(listed.clamp(min=-1), return_inverse=True)
        shift = int(used[0] < 0)
        inputs = {"indices": (renamed - shift).unsqueeze(1)}
        used = used[shift:]
        keys.update(use_indexer=True, indexer_topk=listed.shape[1])
    else:
        seen, table, used = paged(given, latent.shape[1])
        inputs = {"cache_seqlens": seen, "block_table": table}
        keys.update(pagedattn_max_pages_per_group=table.shape[1])
    used = used if len(used) else used.new_zeros(1)
    keys.update(pagedattn_num_pages=len(used), pagedattn_tokens_per_page=latent.shape[1])
    inputs.update(query=query, ckv_cache=latent[used], kpe_cache=turned[used])
    yield Row(attention_case("mla_decode", keys, rows, inputs), results_of_attention(given, rows, heads, latent.shape[-1]))


def scaled(x: Any, *scales: Any) -> Any:
    """The numbers of codes, each scale repeated over the block that it is of; bytes are two codes of e2m1, the first in the low half."""
    import torch

    if x.dtype == torch.uint8:
        least = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        x = torch.cat([least, -least])[torch.stack([x & 15, x >> 4], -1).long()].flatten(-2)
    x = x.double()
    for scale in scales:
        scale = scale.double()
        for axis in range(scale.ndim):
            scale = scale.repeat_interleave(x.shape[axis] // scale.shape[axis], axis)
        x = x * scale.reshape([*scale.shape, *[1] * (x.ndim - scale.ndim)])
    return x


def choices(name: str, given: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The experts of each token and their weights, by the rules that a definition with these inputs may have."""
    import torch

    if "topk_weights" in given:
        yield given["topk_ids"].long(), given["topk_weights"].double()
        return
    if "topk_ids" in given:  # both halves of a word
        low, high = (given["topk_ids"].long() & 0xFFFF), (given["topk_ids"].long() >> 16) & 0xFFFF
        for ids, bits in ((high, low), (low, high)):
            yield ids, torch.where(bits < 1 << 15, bits, bits - (1 << 16)).to(torch.int16).view(torch.bfloat16).double()
        return
    logits, k = given["routing_logits"].double(), int(re.findall(r"topk(\d+)", name)[0])
    factor = given.get("routed_scaling_factor", 1.0)
    if "routing_bias" in given:
        score = logits.sigmoid()
        biased = score + given["routing_bias"].double()
        for groups, kept in ((int(a), int(b)) for a, b in re.findall(r"ng(\d+)_kg(\d+)", name)):
            if groups > 1:
                inner = biased.reshape(len(biased), groups, -1)
                best = inner.topk(2).values.sum(-1).topk(kept).indices
                away = torch.ones(len(biased), groups, dtype=torch.bool).scatter(1, best, False)
                biased = inner.masked_fill(away.unsqueeze(-1), -torch.inf).flatten(1)
        ids = biased.topk(k).indices
        yield ids, score.gather(1, ids) / score.gather(1, ids).sum(-1, keepdim=True) * factor
    best = logits.topk(k)
    yield best.indices, best.values.softmax(-1) * factor
    yield best.indices, best.values.sigmoid() * factor


def moe(name: str, given: Mapping[str, Any]) -> Iterator[Row]:
    """Experts of a choice that is given, with operands as the numbers that their codes are. Rows are tried until one is the reference: the choice, which half of gemm1 is the gate,
    and whether its weight is on the token."""
    import torch

    x, first, second = given["hidden_states"], given.get("gemm1_weights", given.get("w1")), given.get("gemm2_weights", given.get("w2"))
    blocks = [given[key] for key in ("hidden_states_scale",) if key in given]
    if first is None or not all(hasattr(scale, "ndim") for scale in blocks):
        return
    tokens = scaled(x, *(scale if x.dtype == torch.uint8 else scale.T for scale in blocks))
    offset = int(given.get("local_expert_offset", 0))
    for ids, weights in choices(name, given):
        here = (ids >= offset) & (ids < offset + len(first))
        used, renamed = torch.unique(torch.where(here, ids - offset, -1), return_inverse=True)
        shift = int(used[0] < 0)
        renamed, used = (renamed - shift).int(), used[shift:]
        used = torch.cat([used, used.new_zeros(max(0, ids.shape[1] - len(used)))])  # as many experts as choices
        scales = {key.replace("scales", "scale"): value[used] for key, value in given.items() if "scale" in key and hasattr(value, "ndim") and value.ndim and len(value) == len(first)}

        def part(x: Any, *keys: str, scales: Mapping[str, Any] = scales) -> Any:
            return scaled(x, *(scales[key] for key in keys if key in scales))

        halves = part(first[used], "gemm1_weights_scale").chunk(2, 1)
        halves = part(halves[0], "output1_scale_scalar"), part(halves[1], "output1_scale_gate_scalar")
        wo = part(second[used], "gemm2_weights_scale", "output2_scale_scalar").mT.contiguous()
        numbers = {"inputs/x": tokens[None], "inputs/selected_experts": renamed[None], "inputs/routing_weights": weights[None], "weights/wo": wo}
        model = {"decoder_block": "deepseek", "base_emb_dim": tokens.shape[1], "base_moe_mlp_dim": wo.shape[1], "num_experts": len(used), "num_experts_per_tok": ids.shape[1],
                 "mlp_activations": ["silu", "linear"], "shared_experts": 0}  # fmt: skip
        text = {"case": "flashinfer/moe", "op": "moe", "model": model, "batch": 1, "sequence": len(x), "dtype": "float64", "gradients": "none", "inputs": {
            "selected_experts": {"distribution": "experts", "low": 0, "high": len(used) - 1}, "routing_weights": {"distribution": "uniform", "low": 0, "high": 1}}}  # fmt: skip
        for on_input, gate in itertools.product((False, True) if ids.shape[1] == 1 else (False,), (1, 0)):
            own = {**numbers, "weights/wi_0": halves[gate].mT.contiguous(), "weights/wi_1": halves[1 - gate].mT.contiguous()}
            yield Row(opened({**text, "config": {"apply_router_weight_on_input": on_input}}, own), {"output": ("outputs/y", (1, *tokens.shape))})


def gdn(name: str, given: Mapping[str, Any]) -> Iterator[Row]:
    """The gated delta rule, of one token or several for each sequence, from a state on that is [K,V] or [V,K]."""
    import torch

    state = next((key for key in ("state", "initial_state") if given.get(key) is not None), "")
    scale = given.get("scale") or given["q"].shape[-1] ** -0.5
    starts = given["cu_seqlens"].tolist() if "cu_seqlens" in given else None
    slots = given["initial_state_indices"].long() if "initial_state_indices" in given else None

    def function(turned: bool, **own: Any) -> dict[str, Any]:
        own = {key: x.float() for key, x in own.items()}
        gate = own["g"].log() if "g" in own else -own["A_log"].exp() * torch.nn.functional.softplus(own["a"] + own["dt_bias"])
        beta = own["beta"] if "beta" in own else own["b"].sigmoid()
        v = own["v"]
        q, k = (own[key].repeat_interleave(v.shape[-2] // own[key].shape[-2], -2) for key in "qk")
        start = own.get(state)
        if start is not None:
            start = start.mT if turned else start
            start = start if slots is None else start[slots]
        parts = [slice(None)] if starts is None else [slice(a, b) for a, b in zip(starts, starts[1:])]
        outputs, states = [], []
        for i, part in enumerate(parts):
            x = [y if starts is None else y[part].unsqueeze(0) for y in (q * scale, k, v, gate, beta)]
            if start is not None:
                x.append(start if starts is None else start[i : i + 1])
            if not x[0].shape[1]:
                states.append(torch.zeros(1, v.shape[-2], q.shape[-1], v.shape[-1]))
            elif x[0].shape[1] == 1 and start is not None:  # one token
                before = x[3].exp().squeeze(1)[..., None, None] * x[5]
                change = x[4].squeeze(1)[..., None] * (x[2].squeeze(1) - torch.einsum("bhk,bhkv->bhv", x[1].squeeze(1), before))
                states.append(before + torch.einsum("bhk,bhv->bhkv", x[1].squeeze(1), change))
                outputs.append(torch.einsum("bhk,bhkv->bhv", x[0].squeeze(1), states[-1]))
            else:
                outputs.append(assay_step("gated_delta_rule", *x).reshape(-1, *v.shape[-2:]))
                states.append(assay_step("gated_delta_state", *x))
        last = torch.cat(states)
        return {"output": torch.cat(outputs).reshape(v.shape), **({} if slots is not None else {"state": last.mT if turned else last})}

    numbers = {key: x for key, x in given.items() if hasattr(x, "dtype") and x.is_floating_point()}
    where = {"output": ("outputs/output", tuple(given["v"].shape))}
    for turned in (True, False):
        if slots is None:
            shape = (given["v"].shape[0] if starts is None else len(starts) - 1, given["v"].shape[-2], *[given["v"].shape[-1], given["q"].shape[-1]][:: 1 if turned else -1])
            where = {**where, "new_state": ("outputs/state", shape), "final_state": ("outputs/state", shape)}

        def open_at(precision: str, turned: bool = turned, **keywords: Any) -> Case:
            types = {} if slots is not None else {"state": "float32"}
            return case_of_numbers(functools.partial(function, turned), numbers, {}, precision, types=types, **keywords)[0]

        yield Row(open_at, where)


FAMILIES: dict[str, Callable[[str, Mapping[str, Any]], Iterator[Row]]] = {
    "gqa_paged": gqa,
    "gqa_ragged": gqa,
    "mla_ragged": gqa,
    "mla_paged": mla,
    "dsa_paged": mla,
    "nsa_paged": mla,
    "moe": moe,
    "gdn": gdn,
}
