"""What `assay.step("attention", ..)` takes, in functions of PyTorch and JAX."""
from __future__ import annotations

from typing import Any, Mapping, Sequence

from . import _library as lib

MASKS = ("causal", "causal_first", "full")
PARAMETERS = ("scale", "window", "soft_cap", "mask", "chunk", "prefix")


def kinds_of(operands: Sequence[Any]) -> list[str]:
    """Of each operand behind the value: a mask, whole numbers, sinks of heads or a bias."""
    types = [str(x.dtype) for x in operands]
    return ["mask" if "bool" in t else "segments" if "int" in t else "sinks" if len(x.shape) == 1 else "bias" for x, t in list(zip(operands, types))[3:]]


def check(operands: Sequence[Any], parameters: Mapping[str, Any]) -> None:
    other = next((name for name in parameters if name not in PARAMETERS), None)
    if other is not None:
        raise lib.BadInput(f"step: attention has no parameter {other}, expected {', '.join(PARAMETERS)}")
    if len(operands) < 3:
        raise lib.BadInput(f"step: attention has query, key and value, found {len(operands)} operands")
    mask, kinds = parameters.get("mask", "causal"), kinds_of(operands)
    if mask not in MASKS:
        raise lib.BadInput(f"step: mask is {mask}, expected {', '.join(MASKS)}")
    for name in ("window", "chunk", "prefix"):
        if not isinstance(parameters.get(name, 0), int) or parameters.get(name, 0) < 0:
            raise lib.BadInput(f"step: {name} is {parameters[name]}, expected a whole number, 0 or more")
    if mask == "full" and parameters.get("prefix"):
        raise lib.BadInput("step: a prefix widens a causal mask, and this one is full")
    plain = mask == "causal" and not (parameters.get("chunk") or parameters.get("prefix")) and operands[0].shape[1] == operands[1].shape[1]
    if kinds.count("segments") > 2 or (kinds.count("segments") == 1 and not (plain and set(kinds) <= {"segments", "sinks"})):
        raise lib.BadInput("step: segments are those of queries [B,S] and of keys [B,T], expected both")
    twice = next((kind for kind in ("mask", "sinks", "bias") if kinds.count(kind) > 1), None)
    if twice is not None:
        raise lib.BadInput(f"step: {twice} is given twice")
