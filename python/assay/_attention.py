"""Attention by a mask that its rule says, in operators of PyTorch or JAX: what `assay.step` stands for where it is more than the step of programs."""
from __future__ import annotations

import math
import sys
from typing import Any, Mapping, Sequence

from . import _library as lib

MASKS = ("causal", "causal_first", "full")
PARAMETERS = ("scale", "window", "soft_cap", "mask", "chunk", "prefix")


def kind_of(x: Any) -> str:
    """Of an operand behind the value: a mask, whole numbers, sinks of heads or a bias."""
    dtype = str(x.dtype)
    return "mask" if "bool" in dtype else "segments" if "int" in dtype else "sinks" if len(x.shape) == 1 else "bias"


def is_masked(operands: Sequence[Any], parameters: Mapping[str, Any]) -> bool:
    """Whether it is more than causal attention of as many keys as queries, in a window and within segments."""
    kinds = [kind_of(x) for x in operands[3:]]
    rule = parameters.get("mask", "causal") != "causal" or bool(parameters.get("chunk") or parameters.get("prefix"))
    return rule or operands[0].shape[1] != operands[1].shape[1] or kinds.count("segments") > 1 or "mask" in kinds or "bias" in kinds


def check(operands: Sequence[Any], parameters: Mapping[str, Any]) -> None:
    other = next((name for name in parameters if name not in PARAMETERS), None)
    if other is not None:
        raise lib.BadInput(f"step: attention has no parameter {other}, expected {', '.join(PARAMETERS)}")
    mask, kinds = parameters.get("mask", "causal"), [kind_of(x) for x in operands[3:]]
    if mask not in MASKS:
        raise lib.BadInput(f"step: mask is {mask}, expected {', '.join(MASKS)}")
    for name in ("window", "chunk", "prefix"):
        if not isinstance(parameters.get(name, 0), int) or parameters.get(name, 0) < 0:
            raise lib.BadInput(f"step: {name} is {parameters[name]}, expected a whole number, 0 or more")
    if mask == "full" and parameters.get("prefix"):
        raise lib.BadInput("step: a prefix widens a causal mask, and this one is full")
    if kinds.count("segments") not in (0, 2):
        raise lib.BadInput("step: segments are those of queries [B,S] and of keys [B,T], expected both")
    twice = next((kind for kind in ("mask", "sinks", "bias") if kinds.count(kind) > 1), None)
    if twice is not None:
        raise lib.BadInput(f"step: {twice} is given twice")


def attention(operands: Sequence[Any], parameters: Mapping[str, Any], lse: bool) -> Any:
    """query [B,S,N,H], key [B,T,K,H], value [B,T,K,V], and in any order a mask and a bias as [B,N,S,T] or fewer of its last axes, segments of queries [B,S] and
    then of keys [B,T], sinks [N]. A query that sees nothing gives 0."""
    check(operands, parameters)
    query, key, value, *others = operands
    torch = sys.modules.get("torch")
    xp: Any = torch if torch is not None and isinstance(query, torch.Tensor) else sys.modules["jax"].numpy
    queries, keys, shared = query.shape[1], key.shape[1], query.shape[2] // key.shape[2]
    kinds = {kind: [x for x in others if kind_of(x) == kind] for kind in ("mask", "segments", "sinks", "bias")}
    seen = seen_by_rule(xp, queries, keys, parameters)
    if kinds["segments"]:
        of, own = (x[:, None] for x in kinds["segments"])
        seen = (of[..., None] == own[..., None, :]) & (own > 0)[..., None, :] & seen
    seen = seen & kinds["mask"][0] if kinds["mask"] else seen
    if shared > 1:  # each head of keys for as many of queries beside each other
        key, value = (x.repeat_interleave(shared, 2) if xp is torch else xp.repeat(x, shared, 2) for x in (key, value))
    scores = xp.einsum("bsnh,btnh->bnst", query, key) * (parameters.get("scale") or 1 / math.sqrt(query.shape[3]))
    cap = parameters.get("soft_cap", 0)
    scores = xp.tanh(scores / cap) * cap if cap else scores
    scores = scores + kinds["bias"][0] if kinds["bias"] else scores
    some = seen.any(-1)[..., None]
    blind = bool(kinds["segments"] or kinds["mask"]) or queries > keys
    far = float(xp.finfo(scores.dtype).min)
    scores = xp.where(seen, scores, xp.where(some, far, 0.0) if blind else far)
    if lse:
        return torch.logsumexp(scores, -1) if xp is torch else sys.modules["jax"].nn.logsumexp(scores, -1)
    p = torch.softmax(scores, -1) if xp is torch else sys.modules["jax"].nn.softmax(scores, -1)
    out = xp.einsum("bnst,btnv->bnsv", p, value)
    if kinds["sinks"]:
        total = torch.logsumexp(scores, -1) if xp is torch else sys.modules["jax"].nn.logsumexp(scores, -1)
        gate = total - kinds["sinks"][0][:, None]
        out = out * (torch.sigmoid(gate) if xp is torch else sys.modules["jax"].nn.sigmoid(gate))[..., None]
    out = xp.where(some, out, 0.0) if blind else out
    return out.transpose(1, 2) if xp is torch else out.swapaxes(1, 2)


def seen_by_rule(xp: Any, queries: int, keys: int, parameters: Mapping[str, Any]) -> Any:
    """[S,T]: the last query stands at the last key, of causal_first the first one at the first."""
    mask, window, chunk, prefix = (parameters.get(name, 0) for name in ("mask", "window", "chunk", "prefix"))
    i = xp.arange(queries)[:, None] + (0 if mask == "causal_first" else keys - queries)
    j = xp.arange(keys)[None]
    seen = j > -1 if mask == "full" else j <= i
    seen = seen & (i - j < window) if window else seen
    seen = seen & (j - i < window) if window and mask == "full" else seen
    seen = seen & (i // chunk == j // chunk) if chunk else seen
    return seen | (j < prefix) if prefix else seen & (i > -queries - keys)
