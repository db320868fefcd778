"""flashinfer-trace: a solution of a definition on a workload, judged as its Trace.

    trace = assay.flashinfer.evaluate("rmsnorm_h128.json", workload, solution)     # dictionaries of their schema, or files of these
    trace["evaluation"]["status"]                                                  # PASSED, INCORRECT_NUMERICAL ...

A definition of attention over a cache, of experts or of a gated delta rule is an operation of the catalogue (`_families.py`), if its reference is right there. Any other reference is
traced as a function is, with its whole numbers (page tables, offsets) as they are in the workload. A row without a key is -inf where the reference leaves it so.
"""
from __future__ import annotations

import datetime
import functools
import json
import math
import os
import platform
import re
import tempfile
import time
from typing import Any, Callable, Mapping

import numpy as np

from . import _candidate
from . import _library as lib
from ._candidate import Slot, as_block, as_tensor, put_together
from ._case import Case
from ._correct import PROFILES, case_of_numbers
from ._evaluate import SPARE, Candidate, Wrong, header_of
from ._families import FAMILIES, Row

FAR = -(2.0**100)  #: for -inf, which no program has
INFINITE = re.compile(r"""-\s*(?:float\((["'])inf(?:inity)?\1\)|(?:torch|math|np)\.inf)|float\((["'])-inf(?:inity)?\2\)""")
STATUS = {"EXCEPTION": "RUNTIME_ERROR", "ENDED": "RUNTIME_ERROR", "LATE": "TIMEOUT", "NO TENSORS": "RUNTIME_ERROR"}
LANGUAGES = ("python", "triton")  #: of solutions that are imported; others are compiled by tools of their own


def evaluate(definition: Any, workload: Any, solution: Any, *, root: "str | os.PathLike[str]" = ".", precision: "str | None" = None, device: str = "cpu",
             timeout: float = 120.0) -> dict[str, Any]:
    """The Trace of a solution, which runs in a process of its own. `root` is the folder of a workload's safetensors. What cannot be judged is `BadInput` with its
    reason: a reference that no program has, results that are drawn."""
    definition, workload, solution = (loaded(x) for x in (definition, workload, solution))
    workload = workload.get("workload", workload)
    language, entry = solution["spec"].get("language"), solution["spec"]["entry_point"]
    if language not in LANGUAGES or any(os.path.dirname(source["path"]) for source in solution["sources"]):
        raise lib.BadInput(f"flashinfer: {solution['name']}: a solution in {language}, expected {' or '.join(LANGUAGES)} in one folder")
    given = inputs_of(definition, workload, os.fspath(root))
    began = time.perf_counter()
    try:
        expected = outputs_of(definition, reference_of(definition, definition["reference"])(**given))
    except (RuntimeError, ValueError, TypeError, LookupError, AssertionError, NotImplementedError) as why:
        raise lib.BadInput(f"flashinfer: {definition['name']}: its reference ends by {type(why).__name__}: {why}") from why
    reference_took = time.perf_counter() - began
    with tempfile.TemporaryDirectory(prefix="assay-solution-") as folder:
        for source in solution["sources"]:
            with open(os.path.join(folder, source["path"]), "w") as file:
                file.write(source["content"])
        files = [os.path.join(folder, source["path"]) for source in solution["sources"]]
        path, _, name = entry.rpartition("::")
        first = [file for file in files if os.path.basename(file) == path]
        with Candidate((first or [path])[0], name, [file for file in files if file not in first], (), device, timeout) as process:
            found = run(process, definition, solution, given, expected)
            log = process.log()
    if isinstance(found, str):
        return trace_of(definition, workload, solution, found.split(":")[0], f"{found}\n{log}", device)
    results, took = found
    for path, x in expected.items():
        for what, own, wanted in (("SHAPE", tuple(results[path].shape), tuple(x.shape)), ("DTYPE", results[path].dtype, x.dtype)):
            if own != wanted:
                return trace_of(definition, workload, solution, f"INCORRECT_{what}", f"{path} is {own}, expected {wanted}\n{log}", device)
    verdict, text, correctness = judged(definition, given, results, expected, precision)
    performance = {"latency_ms": 1e3 * took, "reference_latency_ms": 1e3 * reference_took, "speedup_factor": reference_took / took}
    return trace_of(definition, workload, solution, "PASSED" if verdict == "PASS" else "INCORRECT_NUMERICAL", f"{text}\n{log}", device, correctness, performance if verdict == "PASS" else None)


def loaded(x: Any) -> dict[str, Any]:
    if isinstance(x, Mapping):
        return dict(x)
    with open(x) as file:
        return dict(json.loads(file.read().splitlines()[0] if os.fspath(x).endswith(".jsonl") else file.read()))


def inputs_of(definition: Mapping[str, Any], workload: Mapping[str, Any], root: str) -> dict[str, Any]:
    """Tensors and numbers by name, in their order."""
    import torch

    sizes = {axis: spec.get("value", workload["axes"].get(axis)) for axis, spec in definition["axes"].items()}
    given: dict[str, Any] = {}
    for name, spec in definition["inputs"].items():
        if spec.get("optional") and name not in workload["inputs"]:
            given[name] = None
            continue
        own = workload["inputs"].get(name, {"type": "random"})
        kind = getattr(torch, spec["dtype"], None)
        if own["type"] == "scalar":
            given[name] = own["value"]
            continue
        if own["type"] == "safetensors":
            given[name] = stored(os.path.join(root, own["path"]), own.get("tensor_key", name))
            continue
        lacking = [axis for axis in spec["shape"] or () if type(axis) is not int and sizes.get(axis) is None]
        if kind is None or not kind.is_floating_point or spec["shape"] is None or lacking:
            why = f"without a size of {lacking[0]}" if lacking else f"random numbers of {spec['dtype']}, expected numbers or a file"
            raise lib.BadInput(f"flashinfer: {definition['name']}: {name}: {why}")
        given[name] = torch.randn([sizes.get(axis, axis) for axis in spec["shape"]]).clamp(-8, 8).to(kind)
    return given


def stored(path: str, key: str) -> Any:
    """A tensor of a file of safetensors."""
    kinds = {kind: name for name, kind in {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int8": "I8",
                                           "uint8": "U8", "int16": "I16", "int32": "I32", "int64": "I64", "bool": "BOOL"}.items()}  # fmt: skip
    try:
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            at = file.tell()
            first, end = header[key]["data_offsets"]
            file.seek(at + first)
            return as_tensor(_candidate.Block(kinds[header[key]["dtype"]], tuple(header[key]["shape"]), bytearray(file.read(end - first))))
    except (OSError, ValueError, KeyError, RuntimeError) as why:
        raise lib.BadInput(f"flashinfer: {path}: {key}: {type(why).__name__}: {why}") from None


def reference_of(definition: Mapping[str, Any], source: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"__name__": "definition"}
    exec(compile(source, definition["name"], "exec"), space)
    return lambda **given: space["run"](**given)


def outputs_of(definition: Mapping[str, Any], result: Any) -> dict[str, Any]:
    if isinstance(result, dict):
        result = [result.get(name) for name in definition["outputs"]]
    several = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(several) != len(definition["outputs"]) or not all(hasattr(x, "dtype") for x in several):
        raise lib.BadInput(f"{definition['name']}: {len(several)} results, expected the tensors {', '.join(definition['outputs'])}")
    return dict(zip(definition["outputs"], several))


def run(process: Candidate, definition: Mapping[str, Any], solution: Mapping[str, Any], given: Mapping[str, Any], expected: Mapping[str, Any]) -> "str | tuple[dict[str, Any], float]":
    """The solution's results and how long it took; or the status and why."""
    tensors = {name: x for name, x in given.items() if hasattr(x, "dtype")}
    slots = {name: Slot(i) for i, name in enumerate(tensors)}
    args = [slots.get(name, x) for name, x in given.items()]
    blocks = [as_block(x) for x in tensors.values()]
    passes = solution["spec"].get("destination_passing_style", True)
    for x in expected.values() if passes else ():
        args.append(Slot(len(blocks)))
        block = as_block(x)
        blocks.append(_candidate.Block(block.type, block.shape, b"\xff" * len(block.data)))
    sizes = [x.numel() * x.element_size() for x in expected.values()]
    most = SPARE + 4 * sum(sizes) + sum(len(block.data) for block in blocks)
    try:
        process.start()
    except Wrong as why:
        return f"{'TIMEOUT' if why.verdict == 'LATE' else 'COMPILE_ERROR'}: {why.message}"
    try:
        began = time.perf_counter()
        process.say({**header_of(args, {}), "anew": True, "leaves": [], "sizes": sizes, "blank": None}, blocks)
        said, found = process.hear(most)
        took = time.perf_counter() - began
        after = process.hear(most)[1]
        changed = [name for name, block, now in zip(tensors, blocks, after) if bytes(block.data) != bytes(now.data)]
        if changed:
            return f"RUNTIME_ERROR: it has written into {changed[0]}"
        value = tuple(map(as_tensor, after[len(tensors) :])) if passes else put_together(said["result"], [as_tensor(block) for block in found])
        return outputs_of(definition, value), took
    except Wrong as why:
        return f"{STATUS[why.verdict]}: {why.message}"
    except (lib.BadInput, ValueError, KeyError, TypeError, IndexError, RecursionError, AttributeError) as error:
        return f"RUNTIME_ERROR: {error}"


Place = Callable[[Mapping[str, Any]], "dict[str, Any]"]  #: results by their paths in a case, of those by their names


def row_of(definition: Mapping[str, Any], given: Mapping[str, Any], expected: Mapping[str, Any], precision: str) -> "tuple[Callable[..., Case], Place] | None":
    """The first row of the definition's family in which its own reference is right."""
    try:
        for row in FAMILIES.get(definition.get("op_type", ""), lambda *_: iter(()))(definition["name"], given):

            def place(results: Mapping[str, Any], row: Row = row) -> dict[str, Any]:
                return {path: results[name].reshape(shape) for name, (path, shape) in row.results.items() if name in results}

            try:
                if row.open(precision, explain=False).judge(place(expected), gradients=False).verdict == "PASS":
                    return functools.partial(row.open, precision), place
            except lib.BadInput:  # the operation has no such case
                continue
    except KeyError:  # the row lacks a tensor
        pass
    return None


def traced(definition: Mapping[str, Any], given: Mapping[str, Any], expected: Mapping[str, Any], precision: str, explain: bool) -> "tuple[Case, Place]":
    floats = {name: x for name, x in given.items() if hasattr(x, "dtype") and x.is_floating_point()}
    source = reference_of(definition, INFINITE.sub(repr(FAR), definition["reference"]))

    def function(**own: Any) -> dict[str, Any]:
        return outputs_of(definition, source(**{**given, **own}))

    function.__name__ = definition["name"]
    case, placed = case_of_numbers(function, floats, expected, precision, explain=explain)
    paths = dict(zip(expected, placed))
    lacking = [name for name, path in paths.items() if path not in case.expected]
    if lacking:
        raise lib.BadInput(f"{definition['name']}: its program has no result {', '.join(lacking)}")
    empty = {name: x == float("-inf") for name, x in expected.items()}

    def place(results: Mapping[str, Any]) -> dict[str, Any]:
        return {paths[name]: x.masked_fill(empty[name], FAR) if empty[name].any() else x for name, x in results.items()}

    return case, place


def judged(definition: Mapping[str, Any], given: Mapping[str, Any], results: Mapping[str, Any], expected: Mapping[str, Any],
           precision: "str | None", explain: bool = True) -> tuple[str, str, dict[str, Any]]:
    """The verdict, the report, and the largest errors. `explain`: failures are held against known bugs."""
    import torch

    if not any(x.double().count_nonzero() for x in expected.values()):
        raise lib.BadInput(f"{definition['name']}: the reference gives nothing but zeros, as a kernel does that does nothing")
    for name, x in expected.items():
        if not torch.equal(x == float("-inf"), results[name] == float("-inf")):
            return "FAIL", f"{name}: -inf stands elsewhere than in the reference", {"max_relative_error": math.inf, "max_absolute_error": math.inf}
    kinds = [str(x.dtype).split(".")[-1] for x in expected.values()]
    profile = precision or next((PROFILES[kind] for kind in reversed(PROFILES) if kind in kinds), None) or "bf16"
    row = row_of(definition, given, expected, profile)
    if row is None:
        case, place = traced(definition, given, expected, profile, explain)
        placed = place(results)
        report = case.judge(placed, gradients=False)
    else:
        opened, place = row
        placed = place(results)
        wrong = [name for name in expected if len(place({name: expected[name]})) == 0 and not torch.equal(results[name], expected[name])]
        if wrong:  # what the reference copies
            return "FAIL", f"{wrong[0]}: it is not the reference's, which is a copy of an input", {"max_relative_error": math.inf, "max_absolute_error": math.inf}
        case = opened(explain=False)
        report = case.judge(placed, gradients=False)
        report = report if report.verdict == "PASS" or not explain else opened(explain=True).judge(placed, gradients=False)
    if report.verdict not in ("PASS", "FAIL"):
        raise lib.BadInput(f"{definition['name']}: {report.verdict}: {report.message}")
    pairs = [(x.double().cpu().numpy(), case.golden(path)) for path, x in placed.items() if path.startswith("outputs/")]
    off = [(np.abs(x - y), np.abs(y)) for x, y in ((x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in pairs)]
    errors = {"max_absolute_error": max(float(a.max(initial=0)) for a, _ in off),
              "max_relative_error": max(float((a / np.where(b > 0, b, 1)).max(initial=0)) for a, b in off)}
    return report.verdict, str(report), {**errors, "extra": {"verdict": report.verdict, "message": report.message, "precision": case.precision, "operation": case.op}}


def trace_of(definition: Mapping[str, Any], workload: Mapping[str, Any], solution: Mapping[str, Any], status: str, log: str, device: str, correctness: Any = None,
             performance: Any = None) -> dict[str, Any]:
    import torch

    hardware = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor() or platform.machine()
    libs = {"torch": str(torch.__version__), "assay": lib.text(lib.call("version")).split()[0]}
    return {"definition": definition["name"], "workload": workload, "solution": solution["name"], "evaluation": {
        "status": status, "log": log, "correctness": correctness, "performance": performance, "environment": {"hardware": hardware, "libs": libs},
        "timestamp": datetime.datetime.now().astimezone().isoformat()}}  # fmt: skip
