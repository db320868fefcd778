"""What is wrong with results before they are judged: paths that the case does not have, and tensors that are none."""
from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Callable, Collection

from . import _library as lib

__tracebackhide__ = True  # pytest shows the test, not these functions


def meant(path: str, known: Collection[str]) -> str:
    """", did you mean outputs/y?" of "y", or nothing."""
    whole = [name for name in known if name.endswith("/" + path)]
    found = whole[:3] or difflib.get_close_matches(path, known, 3, 0.8)
    return f", did you mean {' or '.join(found)}?" if found else ""


def check_mapping(what: str, results: Any) -> None:
    if not isinstance(results, Mapping):
        raise lib.BadInput(f'{what}: {kind(results)}, expected a dict by path, as {{"outputs/y": y}}')
    for path in results:
        if not isinstance(path, str):
            raise lib.BadInput(f'{what}: {path!r} is {kind(path)}, expected a path, as "outputs/y"')


def kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def check_paths(results: Mapping[str, Any], expected: Collection[str], checkpoints: Callable[[], Collection[str]]) -> None:
    """`checkpoints`: those that the case would have if they were asked for."""
    for path in results:
        if path in expected:
            continue
        if path.startswith("checkpoints/") and path in checkpoints():
            raise lib.BadInput(f"{path}: the case asks for no such checkpoint; open it with checkpoints=\"all\"")
        lib.encoded(path)
        raise lib.BadInput(f"{path}: no result of the case{meant(path, expected) or '; case.expected lists those that it has'}")
    for path, value in results.items():
        if value is None:
            zeros = "; of an input that no output depends on give zeros" if path.startswith("gradients/") else ""
            raise lib.BadInput(f"{path} is None, expected a tensor: leave out what is not there{zeros}")
