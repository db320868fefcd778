"""Two kernels' results of a case against each other."""
from __future__ import annotations

from typing import Any, Mapping

from . import _results
from ._case import Case
from ._case import case as open_case

__tracebackhide__ = True  # pytest shows the test, not these functions


def between(case: Case | str, a: Mapping[str, Any], b: Mapping[str, Any], precision: str | None = None, other_precision: str | None = None) -> dict[str, Any]:
    """Whether rounding explains how far results `b` lie from results `a`, as `assay between` says it in JSON (docs/further-checks.md).

    `a` and `b` are results by path, as `Case.check` takes them. `precision` is the profile of `a`, and of `b` unless `other_precision` names
    another. ["verdict"] is "SAME BITS", "ROUNDING" or "BEYOND ROUNDING", ["message"] says why, ["tensors"] has each tensor's RMS of error over
    error scale: "a" and "b" against the golden, "apart" of the one against the other.
    """
    opened = case if isinstance(case, Case) else open_case(case, precision=precision)
    first = precision or opened.precision
    source = opened._at([first, other_precision or first])
    for name, results in (("a", a), ("b", b)):
        _results.check_mapping(f"between: {name}", results)
        _results.check_paths(results, source.expected, tuple)
    return dict(source._answer("between", "--precision", first, "--other-precision", other_precision or first, results=(a, b)))
