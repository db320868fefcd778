"""assay in a test: the inputs of a case as tensors, and the verdict on what a kernel made of them.

    import assay, torch
    from mine import moe

    @assay.cases("moe/*", precision="bf16", exclude="mesh")
    def test_moe(case):
        given = case.inputs(torch, device="cuda", requires_grad=True)
        outputs = {"outputs/y": moe(given, case.config)}
        case.check({**outputs, **case.backward(outputs, given)})
"""
import importlib
from typing import Any

from ._between import between
from ._case import Case, Expected, Unsupported, case, names
from ._correct import assert_close, assert_correct
from ._evaluate import Evaluation, evaluate
from ._invariance import NotInvariant
from ._library import BadInput
from ._mark import cases
from ._report import Mismatch, Report
from ._tensors import Bits, bits, to_float32
from ._trace import Program, Reference, program, step, trace

PEERS = ("backendbench", "flashinfer", "gpumode", "kernelbench")  #: modules for the forms of others, loaded where they are used

__all__ = [
    "BadInput",
    "Bits",
    "Case",
    "Evaluation",
    "Expected",
    "Mismatch",
    "NotInvariant",
    "Program",
    "Reference",
    "Report",
    "Unsupported",
    "assert_close",
    "assert_correct",
    "between",
    "bits",
    "case",
    "cases",
    "evaluate",
    "names",
    "program",
    "step",
    "to_float32",
    "trace",
    "version",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version().split()[0]
    if name in PEERS:
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def version() -> str:
    """Of the library: release, and where they are known the commit and the instruction set."""
    from ._library import call, text

    return text(call("version"))
