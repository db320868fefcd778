"""GPU MODE's tasks: in reference.py `check_implementation = assay.gpumode.make_match(ref_kernel)` stands in the place of make_match_reference."""
from __future__ import annotations

import inspect
from typing import Any, Callable

from . import _library as lib
from ._correct import case_of_numbers
from ._trace import named


def make_match(ref_kernel: Callable[..., Any], *, precision: "str | None" = None, **settings: Any) -> Callable[[Any, Any], "tuple[bool, str]"]:
    """What holds a submission's output against float64 on the data that it was given, at the precision of the data's type or at `precision`. Other keywords are those of
    `assay.trace`. What cannot be judged is no match, and the text says why."""
    argument = next(iter(inspect.signature(ref_kernel).parameters))

    def check_implementation(data: Any, output: Any) -> "tuple[bool, str]":
        try:
            case, results = case_of_numbers(ref_kernel, {argument: data}, named(ref_kernel, output), precision, **settings)
            report = case.judge(results, gradients=False)
        except lib.BadInput as why:
            return False, f"not judged: {why}"
        return report.verdict == "PASS", "" if report.verdict == "PASS" else f"{report.verdict}: {report.message}"

    return check_implementation
