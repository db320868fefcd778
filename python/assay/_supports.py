"""What a kernel has, key by key: the rest of the catalogue is skipped."""
from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any, Callable, Iterable, Mapping

from . import _library as lib

__tracebackhide__ = True  # pytest shows the test, not these functions

GROUPS = ("mesh", "quant_formats")  # keys of which a case has several: mesh.expert, quant_formats.weights/wo
INPUTS = "inputs"  # no key: what is given beside the weights


@lru_cache(maxsize=None)
def usual() -> dict[str, Any]:
    """Every key with the value that it has where a case says nothing."""
    config = lib.config(lib.Test("case: usual\nop: rms_norm\nmodel: {base_emb_dim: 1}\n", cache=""))
    return {**config, "base_emb_dim": 0, "only_layer": None}


def checked(supports: Mapping[str, Any]) -> dict[str, Any]:
    """By key, {"mesh": {"expert": 2}} as mesh.expert; refuses keys that no case has."""
    if not isinstance(supports, Mapping):
        raise lib.BadInput(f"supports is {type(supports).__name__}, expected a dict of keys and the values that the kernel has")
    flat: dict[str, Any] = {}
    for key, value in supports.items():
        flat.update({f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {key: value})
    known = [*usual(), *GROUPS, INPUTS]
    for key in flat:
        if key in known or (isinstance(key, str) and key.startswith("quant_formats.")):
            continue
        close = difflib.get_close_matches(str(key), known, 3, 0.7)
        raise lib.BadInput(f"supports: unknown key {key}" + (f", did you mean {' or '.join(close)}?" if close else ""))
    return flat


def accepts(has: Any, value: Any, default: Any) -> bool:
    """`has`: a value, None (the default), a function that says, or values and Nones."""
    if has is None:
        return bool(value == default)
    if callable(has):
        return bool(has(value))
    if isinstance(value, list) and has == ",".join(value):
        return True
    if value == has or isinstance(has, str) or not isinstance(has, Iterable):
        return bool(value == has)
    return any(accepts(one, value, default) for one in has)


def lacks(supports: Mapping[str, Any], config: Mapping[str, Any], inputs: Callable[[], Iterable[str]]) -> str:
    """What of a case the kernel does not have; empty where it has everything that is mentioned."""
    for key, has in supports.items():
        if key == INPUTS:
            values = {f"inputs/{name}": name for name in inputs()}
        else:
            values = {member: value for member, value in config.items() if member == key or member.startswith(key + ".")}
        for member, value in values.items():
            if not accepts(has, value, usual().get(member)):
                supported = "" if callable(has) else f" (supported: {'none' if has is None else has})"
                return f"{member} is {'given' if key == INPUTS else value}{supported}"
    return ""
