"""A kernel against a reference of PyTorch, JAX or numpy, in one line."""
from __future__ import annotations

import inspect
import os
import sys
from typing import Any, Callable, Mapping

import numpy as np

from . import _library as lib
from ._case import Case
from ._case import case as open_case
from ._report import Mismatch, Report
from ._results import check_paths
from ._trace import Program, as_function, led_to, library_of, module_of, named, positional, trace

__tracebackhide__ = True  # pytest shows the test, not these functions


GRIDS = {"f64": "float64", "f32": "float32", "f16": "float16"}  # what is drawn for a kernel of such a profile; of others bfloat16


def assert_correct(kernel: Callable[..., Any], reference: Callable[..., Any], example: Any, *, precision: str | None = None, gradients: bool = True,
                   seeds: int = 1, **settings: Any) -> Report:
    """Raises `Mismatch`, an AssertionError with the report, unless the kernel computes what the reference does.

        assay.assert_correct(my_norm, reference, {"x": torch.ones(64, 512), "scale": torch.ones(512)}, precision="bf16")

    The reference is a function of PyTorch, JAX or numpy, or a module of PyTorch or flax; `example` has tensors for its arguments, by their names or in
    their order; tensors may stand in tuples and dictionaries. A kernel that gives nothing has written into what no result of the reference depends on. `trace` makes its program, a case draws inputs, weights and cotangents, and the kernel is called with them as the reference
    would be: a module gets the reference's parameters under their own names, any other kernel of a module's as keywords, dots as underscores. Its results are
    judged at `precision`, and so are its gradients, by autograd or `jax.vjp`; ``gradients=False`` leaves these out, and a kernel of numpy has none. What is drawn has that profile's
    type, float32 at f32. `seeds`: so many cases, each with other numbers; the report is the last one's. Other keywords are those of `trace`: weights,
    fills, integers, axes, dtype.
    """
    function, given, weights = as_function(reference, example)
    library = library_of(function, given)
    settings.setdefault("weights", weights)
    settings.setdefault("dtype", GRIDS.get(precision or "", "bfloat16"))
    program = trace(function, given, **settings)
    call = kernel_of(kernel, reference, function, {name: given[name] for name in weights})
    others = [root for root in led_to(kernel, set()) if root in ("torch", "jax")] if library == "numpy" else []
    caller = (others or [library])[0]
    report = None
    for seed in range(1, max(1, seeds) + 1):
        with program.case(precision, **({"seed": seed} if seeds > 1 else {})) as case:
            results = {"torch": with_torch, "jax": with_jax, "numpy": with_numpy}[caller](program, case, call, given, gradients)
            try:
                report = case.judge(results, gradients=gradients and caller != "numpy")
            except lib.BadInput as why:
                fused = '; a kernel may store what is on the way: fused="all" says that it does not' if "emulated correct runs overflow" in str(why) else ""
                raise lib.BadInput(f"{why}{fused}") from None
            if report.verdict != "PASS":
                raise Mismatch(report)
    assert report is not None
    return report


PROFILES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def case_of_numbers(reference: Callable[..., Any], example: Any, results: Mapping[str, Any], precision: str | None = None, explain: bool = True,
                    **settings: Any) -> tuple[Case, dict[str, Any]]:
    """A case of a reference on the numbers of the example, without gradients, and results of the reference's names by their paths there; the profile is that of the
    narrowest of these."""
    function, given, weights = as_function(reference, example)
    kinds = {name: str(x.dtype).split(".")[-1] for name, x in given.items() if hasattr(x, "dtype")}
    widths = [kind for kind in reversed(PROFILES) if kind in [str(x.dtype).split(".")[-1] for x in results.values()]]
    narrowest = next((kind for kind in reversed(PROFILES) if kind in kinds.values()), "float32")
    keys: dict[str, Any] = {"gradients": "none", "dtype": narrowest, **settings}
    program = trace(function, given, weights=weights, **keys)
    with program.case(precision, cache="") as drawn:
        paths = [path for path in drawn.inputs() if path.split("/")[1] in given]  # and no constants
    own = {path: given[path.split("/")[1]] for path in paths}
    types = {path: kinds[path.split("/")[1]] for path in paths if kinds[path.split("/")[1]] in PROFILES}
    profile = precision or (PROFILES[widths[0]] if widths else None)
    own_alone = {"profiles": [profile]} if profile in PROFILES.values() else {}  # no others' error scales, which take time
    made = program.case(profile, cache="", inputs=own, explain=explain, **own_alone, dtypes={path: kind for path, kind in types.items() if kind != narrowest})
    return made, {program.path_of(name): x for name, x in results.items()}


def assert_close(actual: Any, case: Case | str | os.PathLike[str], path: str = "outputs/y", *, precision: str | None = None) -> Report:
    """In the place of ``torch.testing.assert_close(actual, expected, atol, rtol)``: one result of a case, which may be a name of the catalogue or a golden's file. Raises
    `Mismatch` unless it is right at the precision."""
    opened = case if isinstance(case, Case) else open_case(case)
    check_paths({path: actual}, opened.expected, tuple)
    return opened.check({path: actual}, precision, only=[path])


def kernel_of(kernel: Callable[..., Any], reference: Callable[..., Any], function: Callable[..., Any], weights: Mapping[str, Any]) -> Callable[..., Any]:
    """The kernel as a function of the tensors of the reference's arguments, by their names; a module's arguments and parameters may have other names, in the
    order of the reference's."""
    together = getattr(function, "together", dict)
    if not module_of(reference):
        return lambda given: kernel(*together(given).values())
    if not module_of(kernel):
        lacks = [name for name in weights if not takes(kernel, name)]
        if lacks:
            raise lib.BadInput(f"the kernel has no argument {lacks[0]}, expected the parameters of the reference as arguments: {', '.join(weights)}")
        return lambda given: kernel(**together(given))
    own, parameters, _ = as_function(kernel, {})
    shapes, expected = ({name: tuple(x.shape) for name, x in tensors.items()} for tensors in (parameters, weights))
    if shapes != expected and list(shapes.values()) != list(expected.values()):
        raise lib.BadInput(f"the kernel's parameters are {shapes}, expected those of the reference, by their names or in their order: {expected}")
    called = {} if shapes == expected else dict(zip(expected, shapes))
    theirs, ours = positional(reference), positional(kernel)
    if len(theirs) == len(ours):
        called.update(zip(theirs, ours))
    return lambda given: own(**{called.get(name, name): x for name, x in together(given).items()})


def takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it does not say
        return True
    return any(p.kind is p.VAR_KEYWORD or p.name == name for p in parameters)


def results_of(program: Program, case: Case, call: Callable[..., Any], given: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Of a kernel that gives nothing what it has written into: the arguments that no result depends on."""
    result = call(given)
    if result is None and others:
        result = dict(zip([path.split("/")[1] for path in case.expected if path.startswith("outputs/")], others.values()))
    found = {program.path_of(name): x for name, x in named(call, result).items()}
    shapes = {path: case.expected[path].shape for path in found if path.startswith("routing/") and path in case.expected}
    return {path: x.reshape(shapes[path]) if path in shapes else x for path, x in found.items()}  # a choice of rows that are one dimension


def with_torch(program: Program, case: Case, call: Callable[..., Any], example: Mapping[str, Any], gradients: bool) -> dict[str, Any]:
    torch = sys.modules["torch"]
    devices = {x.device for x in example.values() if isinstance(x, torch.Tensor) and x.device.type != "meta"}
    device = next(iter(devices), None)
    inputs = case.inputs(torch, device=device, requires_grad=gradients)
    given = {path.split("/")[1]: x for path, x in inputs.items() if path.split("/")[1] in example}
    given = {name: x if x.is_floating_point() or not isinstance(example[name], torch.Tensor) else x.to(example[name].dtype) for name, x in given.items()}
    types = [x.dtype for x in given.values() if x.is_floating_point()]
    others = {name: torch.as_tensor(x).detach().clone() for name, x in example.items() if name not in given}  # as buffers of results
    others = {name: x.to(types[0]) if x.is_floating_point() and types else x for name, x in others.items()}
    outputs = results_of(program, case, call, {name: given[name] if name in given else others[name] for name in example}, others)
    if not gradients or not any(path.startswith("gradients/") for path in case.expected):
        return outputs
    if not any(getattr(x, "requires_grad", False) for x in outputs.values()):
        raise lib.BadInput("assert_correct: no result of the kernel has a graph, expected one for its gradients, or gradients=False")
    return {**outputs, **case.backward(outputs, inputs)}


def with_numpy(program: Program, case: Case, call: Callable[..., Any], example: Mapping[str, Any], _: bool) -> dict[str, Any]:
    """numpy has no gradients."""
    inputs = case._give(("inputs/", "weights/"), np, names=example)
    given = {path.split("/")[1]: x if x.dtype.kind not in "biu" else x.astype(example[path.split("/")[1]].dtype) for path, x in inputs.items()}
    others = {name: np.array(x) for name, x in example.items() if name not in given}
    return results_of(program, case, call, {name: given[name] if name in given else others[name] for name in example}, others)


def with_jax(program: Program, case: Case, call: Callable[..., Any], example: Mapping[str, Any], gradients: bool) -> dict[str, Any]:
    jax = sys.modules["jax"]
    inputs = case._give(("inputs/", "weights/"), jax, names=example)  # and no constants, whose float64 it may not have
    inputs = {path: x.astype(jax.dtypes.canonicalize_dtype(example[path.split("/")[1]].dtype)) if jax.numpy.issubdtype(x.dtype, jax.numpy.integer) else x for path, x in inputs.items()}
    found = {path for path in case.expected if path.startswith("gradients/")} if gradients else set()
    leaves = [path for path in inputs if "gradients/" + path in found]
    others = {name: jax.numpy.zeros(x.shape, x.dtype) for name, x in example.items() if all(path.split("/")[1] != name for path in inputs)}

    def forward(*arrays: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        given = {**inputs, **dict(zip(leaves, arrays))}
        own = {path.split("/")[1]: x for path, x in given.items()}
        made = results_of(program, case, call, {name: own[name] if name in own else others[name] for name in example}, {})
        whole = {path for path, x in made.items() if not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)}  # which have no gradient
        return {path: x for path, x in made.items() if path not in whole}, {path: made[path] for path in whole}

    given = [inputs[path] for path in leaves]
    try:
        outputs, back, integers = jax.vjp(forward, *given, has_aux=True)
    except Exception as error:
        if leaves:
            forward(*given)  # what ends this is the kernel's own
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise lib.BadInput(f"assert_correct: jax.vjp of the kernel ends by {why} Expected a kernel with gradients, or gradients=False") from error
        raise
    if not leaves:
        return {**outputs, **integers}
    upstream = {path.replace("cotangents/", "outputs/", 1): x for path, x in case.cotangents(jax).items()}
    zeros = {path: jax.numpy.zeros_like(x) for path, x in outputs.items() if path not in upstream}
    found_gradients = back({**{path: x.astype(outputs[path].dtype) for path, x in upstream.items() if path in outputs}, **zeros})
    return {**outputs, **integers, **{"gradients/" + path: x for path, x in zip(leaves, found_gradients)}}
