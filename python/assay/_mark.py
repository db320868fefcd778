"""@assay.cases."""
from __future__ import annotations

from typing import Any, Callable, Iterable, TypeVar

from . import _library as lib
from ._case import Case, names, settings

Test = TypeVar("Test", bound=Callable[..., Any])


def cases(
    *globs: str, precision: str | None = None, exclude: str | Iterable[str] = (), **overrides: Any
) -> Callable[[Test], Test]:
    """Runs a test once for each case that matches, as its argument `case`; the name of the case is the test's id.

    `exclude`: tags, operations or globs. Other keywords are those of `assay.case`: overrides of the cases' keys, `threads`,
    `cache` and so on.
    """
    import pytest

    excluded = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    options = {key: overrides.pop(key) for key in ("threads", "false_alarm", "cache", "explain", "staged") if key in overrides}
    found = names(globs, excluded)
    if not found:
        without = f" without {', '.join(excluded)}" if excluded else ""
        raise lib.BadInput(f"cases: no case of the catalogue matches {', '.join(globs) or 'nothing'}{without}")
    parameters = [pytest.param(Case(name, settings(overrides), precision, **options), id=name) for name in found]
    return pytest.mark.parametrize("case", parameters)
