"""A kernel against a reference of PyTorch or JAX, in one line."""
from __future__ import annotations

import sys
from typing import Any, Callable, Mapping, Sequence

from . import _library as lib
from ._case import Case
from ._report import Mismatch, Report
from ._trace import as_function, library_of, named, trace

__tracebackhide__ = True  # pytest shows the test, not these functions


GRIDS = {"f64": "float64", "f32": "float32", "f16": "float16"}  # what is drawn for a kernel of such a profile; of others bfloat16


def assert_correct(kernel: Callable[..., Any], reference: Callable[..., Any], example: Any, *, precision: str | None = None, gradients: bool = True,
                   seeds: int = 1, **settings: Any) -> Report:
    """Raises `Mismatch`, an AssertionError with the report, unless the kernel computes what the reference does.

        assay.assert_correct(my_norm, reference, {"x": torch.ones(64, 512), "scale": torch.ones(512)}, precision="bf16")

    The reference is a function or a module of PyTorch, or a function of JAX; `example` has tensors for its arguments, by their names or in
    their order. `trace` makes its program, a case draws inputs, weights and cotangents, and the kernel is called with them as the reference
    would be: a module gets the reference's parameters under their own names, any other kernel of a module's as keywords, dots as underscores. Its results are
    judged at `precision`, and so are its gradients, by autograd or `jax.vjp`; ``gradients=False`` leaves these out. What is drawn has that profile's
    type, float32 at f32. `seeds`: so many cases, each with other numbers; the report is the last one's. Other keywords are those of `trace`: weights,
    fills, integers, axes, dtype.
    """
    function, given, weights = as_function(reference, example)
    library = library_of(function, given)
    settings.setdefault("weights", weights)
    settings.setdefault("dtype", GRIDS.get(precision or "", "bfloat16"))
    program = trace(function, given, **settings)
    call = kernel_of(kernel, reference)
    report = None
    for seed in range(1, max(1, seeds) + 1):
        with program.case(precision, **({"seed": seed} if seeds > 1 else {})) as case:
            report = case.judge((with_jax if library == "jax" else with_torch)(case, call, given, gradients), gradients=gradients)
            if report.verdict != "PASS":
                raise Mismatch(report)
    assert report is not None
    return report


def kernel_of(kernel: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel as a function of the reference's arguments, by their names."""
    if not hasattr(reference, "named_parameters"):
        return lambda given: kernel(*given.values())
    if hasattr(kernel, "named_parameters"):
        own, _, _ = as_function(kernel, {})
        return lambda given: own(**given)
    return lambda given: kernel(**given)


def results_of(kernel: Callable[..., Any], call: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {f"outputs/{name}": x for name, x in named(kernel, call(given)).items()}


def with_torch(case: Case, call: Callable[..., Any], example: Mapping[str, Any], gradients: bool) -> dict[str, Any]:
    torch = sys.modules["torch"]
    devices = {x.device for x in example.values() if isinstance(x, torch.Tensor) and x.device.type != "meta"}
    device = next(iter(devices), None)
    inputs = case.inputs(torch, device=device, requires_grad=gradients)
    outputs = results_of(call, call, {path.split("/")[1]: x for path, x in inputs.items() if path.split("/")[1] in example})
    if not gradients or not any(path.startswith("gradients/") for path in case.expected):
        return outputs
    if not any(getattr(x, "requires_grad", False) for x in outputs.values()):
        raise lib.BadInput("assert_correct: no result of the kernel has a graph, expected one for its gradients, or gradients=False")
    return {**outputs, **case.backward(outputs, inputs)}


def with_jax(case: Case, call: Callable[..., Any], example: Mapping[str, Any], gradients: bool) -> dict[str, Any]:
    jax = sys.modules["jax"]
    inputs = {path: x for path, x in case.inputs(jax).items() if path.split("/")[1] in example}
    found = {path for path in case.expected if path.startswith("gradients/")} if gradients else set()
    leaves = [path for path in inputs if "gradients/" + path in found]

    def forward(*arrays: Any) -> dict[str, Any]:
        given = {**inputs, **dict(zip(leaves, arrays))}
        return results_of(call, call, {path.split("/")[1]: x for path, x in given.items()})

    outputs, back = jax.vjp(forward, *(inputs[path] for path in leaves))
    if not leaves:
        return dict(outputs)
    upstream = {path.replace("cotangents/", "outputs/", 1): x for path, x in case.cotangents(jax).items()}
    zeros = {path: jax.numpy.zeros_like(x) for path, x in outputs.items() if path not in upstream}
    found_gradients = back({**{path: x.astype(outputs[path].dtype) for path, x in upstream.items() if path in outputs}, **zeros})
    return {**outputs, **{"gradients/" + path: x for path, x in zip(leaves, found_gradients)}}
