"""@assay.cases."""
from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, TypeVar

from . import _library as lib
from ._case import Case, names, settings
from ._supports import checked

Test = TypeVar("Test", bound=Callable[..., Any])


def cases(
    *globs: str,
    precision: str | None = None,
    exclude: str | Iterable[str] = (),
    supports: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Callable[[Test], Test]:
    """Runs a test once for each case that matches, as its argument `case`; the name of the case is the test's id.

    `exclude`: tags, operations or globs. `supports`: what the kernel has, {"capacity_factor": -1, "quant_formats": None,
    "decoder_block": ["deepseek", "mixtral"]}; cases with other values are skipped, and the reason says the key. Other keywords are those of `assay.case`: overrides of the cases' keys, `threads`,
    `cache` and so on.
    """
    import pytest

    excluded = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    options = {key: overrides.pop(key) for key in ("threads", "false_alarm", "cache", "explain", "staged") if key in overrides}
    options["supports"] = checked(supports or {})
    found = names(globs, excluded)
    if not found:
        without = f" without {', '.join(excluded)}" if excluded else ""
        raise lib.BadInput(f"cases: no case of the catalogue matches {', '.join(globs) or 'nothing'}{without}")
    parameters = [pytest.param(Case(name, settings(overrides), precision, **options), id=name) for name in found]
    return pytest.mark.parametrize("case", parameters)
