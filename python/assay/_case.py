"""A case of the catalogue, or of the user's own."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from ctypes import byref, c_void_p
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple, NoReturn, Sequence

import numpy as np

from . import _library as lib
from . import _invariance, _results, _supports, _tensors
from ._report import Mismatch, Report

__tracebackhide__ = True  # pytest shows the test, not these functions


class Unsupported(unittest.SkipTest):
    """The kernel does not have this case: pytest and unittest skip the test."""


class Expected(NamedTuple):
    """A result that may be given to `Case.check`."""

    shape: tuple[int, ...]
    required: bool
    integer: bool  #: int32; any float type otherwise


def settings(overrides: Mapping[str, Any]) -> list[str]:
    """As --set takes them: key=value, with mesh.expert=2 for mesh={"expert": 2}."""
    flat: dict[str, Any] = {}
    for key, value in overrides.items():
        flat.update({f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {key: value})
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in flat.items()]


def share_of_cores() -> int:
    """Threads of one worker of pytest-xdist; 0 leaves it to the library."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return 0 if workers == 1 else max(1, len(os.sched_getaffinity(0)) // workers)


class Case:
    """Inputs, weights and cotangents of a case, and the judge of what a kernel makes of them. `assay.case` makes one.

    Nothing is opened before it is asked for. Threads may share a case. `close` forgets what was drawn and evaluated; arrays given out stay.
    """

    def __init__(
        self,
        what: str,
        sets: Sequence[str] = (),
        precision: str | None = None,
        threads: int = 0,
        false_alarm: float = 0.0,
        cache: str | os.PathLike[str] | None = None,
        explain: bool = True,
        inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        weights: str | os.PathLike[str] | None = None,
        staged: bool = False,
        supports: Mapping[str, Any] | None = None,
        unscaled: bool = False,
    ):
        self.what, self._sets, self._precision = what, tuple(sets), precision
        self._options: dict[str, Any] = {
            "threads": threads or share_of_cores(),
            "false_alarm": false_alarm,
            "cache": None if cache is None else os.fspath(cache),
            "explain": explain,
            "inputs": None if inputs is None or isinstance(inputs, Mapping) else os.fspath(inputs),
            "weights": None if weights is None else os.fspath(weights),
            "staged": staged,
            "unscaled": unscaled,  # goldens alone
        }
        self._supports = _supports.checked(supports or {})
        self._arrays = dict(inputs) if isinstance(inputs, Mapping) else None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of the file with these arrays
        self._tests: dict[tuple[str | None, tuple[str, ...]], lib.Test] = {}  # by precision and what is required
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"<assay.Case {' '.join((self.what.strip().splitlines()[0], *self._sets))}>"

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, also in another process: it is opened anew."""
        return {**vars(self), "_folder": None, "_tests": {}, "_opening": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _opening=threading.Lock())

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forgets what was drawn and evaluated. The case can be used again: it is opened anew."""
        with self._opening:
            self._tests.clear()

    def _open(self, precision: str | None = None, only: Sequence[str] = ()) -> lib.Test:
        """A test of these; raises `Unsupported` where the kernel does not have the case."""
        key = (precision or self._precision, tuple(only))
        with self._opening:
            if self._arrays is not None and self._folder is None:
                folder = tempfile.TemporaryDirectory(prefix="assay-")
                self._options["inputs"] = os.path.join(folder.name, "inputs.safetensors")
                _tensors.write(self._options["inputs"], self._arrays)
                self._folder = folder
            if key not in self._tests:
                test = lib.Test(self.what, self._sets, key[0], only=key[1], **self._options)
                why = self._supports and _supports.lacks(self._supports, lib.config(test), lambda: inputs_of(test))
                if why:
                    self.unsupported(why)
                self._tests[key] = test
            return self._tests[key]

    @property
    def name(self) -> str:
        """Its name, ``moe/mixtral``."""
        return lib.text(lib.call("name", self._open().handle))

    @property
    def op(self) -> str:
        """Its operation: docs/operations.md has the formulas and the tensors of each."""
        return lib.text(lib.call("op", self._open().handle))

    @property
    def yaml(self) -> str:
        """The whole case, as `assay show --all` prints it."""
        return lib.text(lib.call("yaml", self._open().handle))

    @property
    def precision(self) -> str:
        """The profile that it is judged at where `check` names none."""
        return lib.text(lib.call("precision", self._open().handle))

    @property
    def config(self) -> dict[str, Any]:
        """Every setting: MaxText's model keys, and op, case, batch, sequence, dtype, mesh.data, mesh.expert ..."""
        return lib.config(self._open())

    @property
    def expected(self) -> dict[str, Expected]:
        """What may be given to `check`, by path. Outputs and gradients are required; routing and checkpoints are not."""
        return expected(self._open())

    def _give(self, folders: tuple[str, ...], module: Any, device: Any = None, wanted: Collection[str] = (), names: Collection[str] | None = None) -> dict[str, Any]:
        """`wanted`: gradients of those that require one. `names`: only these."""
        test, library = self._open(), _tensors.module_of(module)
        return {
            path: _tensors.give(*_tensors.view(test, tensor), library, device, "gradients/" + path in wanted)
            for path, tensor in given(test)
            if path.startswith(folders) and (names is None or path.split("/")[1] in names)
        }

    def numbers(self, *folders: str) -> dict[str, np.ndarray[Any, Any]]:
        """In float64, whatever their types; whole numbers as they are."""
        views = {path: _tensors.view(self._open(), tensor) for path, tensor in given(self._open()) if path.startswith(folders)}
        arrays = {path: _tensors.to_float32(array, type) if type in _tensors.NARROW else array for path, (array, type) in views.items()}
        return {path: array.astype(np.float64 if array.dtype.kind == "f" else array.dtype) for path, array in arrays.items()}

    def inputs(self, module: Any = np, device: Any = None, requires_grad: bool = False) -> dict[str, Any]:
        """Inputs and weights by path ("inputs/x", "weights/wo"), in the type of the case's grid; `module` is torch, jax or numpy, or
        the name of one.

        They are the caller's: a kernel may write into them. `requires_grad` (torch): those that the case has a gradient
        of are leaves that require it. numpy has no bfloat16 and fp8: they are ml_dtypes' where that package is there, else
        bits in uint16 and uint8, which `assay.to_float32` reads.
        """
        return self._give(("inputs/", "weights/"), module, device, self.expected if requires_grad else ())

    def cotangents(self, module: Any = np, device: Any = None) -> dict[str, Any]:
        """Upstream gradients of outputs by path: "cotangents/y" is that of "outputs/y". Otherwise as `inputs`."""
        return self._give(("cotangents/",), module, device)

    def backward(self, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Gradients by PyTorch's autograd, through the case's cotangents: {"gradients/inputs/x": ...}.

        `outputs` are results ("outputs/y") with their graph, `inputs` those of ``inputs(torch, requires_grad=True)``. An input that
        no output depends on has the gradient 0, as the formula says. Of a case without gradients it gives none.
        """
        _results.check_mapping("backward: outputs", outputs)
        _results.check_mapping("backward: inputs", inputs)
        found = self.expected
        if not any(path.startswith("gradients/") for path in found):
            return {}
        if "torch" not in sys.modules:
            raise lib.BadInput("backward: torch is not imported, and its autograd gives the gradients")
        torch = sys.modules["torch"]
        for path in outputs:
            if path not in found and "/" not in path:
                raise lib.BadInput(f"backward: outputs: {path}: no result of the case{_results.meant(path, found)}")
        leaves = {path: tensor for path, tensor in inputs.items() if getattr(tensor, "requires_grad", False) and "gradients/" + path in found}
        if not leaves:
            raise lib.BadInput("backward: no input requires a gradient; take them by inputs(torch, requires_grad=True)")
        results, upstream = [], []
        for path, cotangent in self.cotangents(torch).items():
            output: Any = outputs.get(path.replace("cotangents/", "outputs/", 1))
            if getattr(output, "requires_grad", False):
                shape = found["outputs/" + path.removeprefix("cotangents/")].shape
                if tuple(output.shape) != shape:
                    raise lib.BadInput(f"backward: {path.replace('cotangents/', 'outputs/', 1)}: shape is {list(output.shape)}, expected {list(shape)}")
                results.append(output)
                upstream.append(cotangent.to(output.device, output.dtype).reshape(output.shape))
        if not results:
            raise lib.BadInput(f"backward: no output with a graph among {', '.join(outputs) or 'none'}")
        gradients = torch.autograd.grad(results, list(leaves.values()), upstream, allow_unused=True)
        return {
            "gradients/" + path: torch.zeros_like(leaf) if gradient is None else gradient
            for (path, leaf), gradient in zip(leaves.items(), gradients)
        }

    def golden(self, path: str) -> np.ndarray[Any, Any]:
        """The right result: float64 (int32 for indices), read-only. Evaluates the golden, unless the cache has it."""
        if not isinstance(path, str):
            raise lib.BadInput(f"golden: {path!r}: expected the path of a result, as outputs/y")
        test, tensor = self._open(), lib.Tensor()
        lib.attempt("golden", test.handle, lib.encoded(path), byref(tensor))
        return _tensors.view(test, tensor)[0]

    def threshold(self, path: str) -> np.ndarray[Any, Any]:
        """What each element of a float result may be off by (docs/comparing.md, thresholds): float64, in the result's shape."""
        thresholds = np.zeros(self.golden(path).shape)
        lib.attempt("threshold", self._open().handle, lib.encoded(path), thresholds.ctypes.data, thresholds.size)
        return thresholds

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the golden as `assay generate` does."""
        lib.attempt("save", self._open().handle, lib.encoded(os.fspath(path)))

    def power(self) -> dict[str, list[str]]:
        """The mutants of the case by what the verdict at the kernel's precision makes of them, as `assay power` says it: "detected", "passes", "no effect", and "not
        here" of those that other inputs would show (docs/power.md)."""
        found: dict[str, list[str]] = {"detected": [], "passes": [], "no effect": [], "not here": []}
        mutants = self._answer("power", "--precision", self.precision)["fixtures"][0]["mutants"]
        for mutant in mutants:
            found.get("not here" if mutant.get("without_effect_here") else mutant["outcome"], []).append(mutant["name"])
        return found

    def tolerances(self, audit: str | None = None, runs: int = 16) -> dict[str, Any]:
        """The smallest atol and rtol of each result that accept correct kernels, and the known bugs that they miss, as `assay tolerance` has it in
        JSON; or what the rule `audit` lets through, as "atol=5e-3,rtol=0" (docs/power.md)."""
        more = [] if audit is None else ["--audit", audit]
        return dict(self._answer("tolerance", "--precision", self.precision, "--runs", str(runs), *more)["fixtures"][0])

    def check_invariance(
        self, kernel: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]], module: Any = np, checks: Sequence[str] = _invariance.CHECKS, rows: str | None = None
    ) -> None:
        """Raises `NotInvariant` unless rows of the kernel's results are the same bits in any company (docs/further-checks.md): called again, on
        other addresses and threads; alone and among 1, 7, 64 and 257 others; in reverse order; beside rows of NaN; in two chunks.

        ``kernel(given, config)`` gets inputs, weights and cotangents by path as tensors of `module`, and gives results by path. Rows are tokens, or
        sequences where tokens see each other; `rows` names another key of the case, and of a program the letter of an axis (else the first whose indices do not know each other). Gradients of weights are
        compared by repeat alone. `checks` may have "split" too: a cache in other numbers of splits. No golden is needed, but to say whether rounding explains a difference.
        """
        known = (*_invariance.CHECKS, "split")
        unknown = [check for check in checks if check not in known]
        if unknown:
            raise lib.BadInput(f"check_invariance: {unknown[0]!r}, expected some of {', '.join(known)}")
        found = list(_invariance.differences(_invariance.Checker(self, kernel, module, rows), checks))
        if found:
            raise _invariance.NotInvariant(found)

    def _sized(self, key: str, size: int, *sets: str) -> Case:
        """The same case with so many rows, drawn anew, and these settings."""
        if self.what.endswith((".h5", ".safetensors")) or self._arrays is not None or self._options["inputs"]:
            raise lib.BadInput("check_invariance: inputs are given, and have one size; open a case whose inputs are drawn")
        options: dict[str, Any] = {**self._options, "unscaled": True}
        return Case(self.what, (*self._sets, f"{key}={size}", *sets), self._precision, **options)

    def _answer(self, command: str, *options: str, results: Sequence[Mapping[str, Any]] = ()) -> Any:
        """What the program says of the golden, and of files with these results, as JSON."""
        from .__main__ import program

        with tempfile.TemporaryDirectory(prefix="assay-") as folder:
            golden, answer = (os.path.join(folder, name) for name in ("golden.h5", "answer.json"))
            files = [os.path.join(folder, f"{i}.safetensors") for i in range(len(results))]
            for file, tensors in zip(files, results):
                _tensors.write(file, tensors)
            if self.what.endswith((".h5", ".safetensors")):
                golden = self.what
            else:
                self.save(golden)
            try:
                made = subprocess.run([program(), command, golden, *files, *options, "--json", answer], capture_output=True, text=True)
            except OSError as error:
                raise lib.BadInput(f"{command}: {program()}: {error.strerror}") from error
            if not os.path.exists(answer):
                raise lib.BadInput(f"{command}: {made.stderr.strip()}")
            with open(answer) as text:
                return json.load(text)

    def _at(self, profiles: Sequence[str]) -> Case:
        """The same case with these profiles and all checkpoints; a golden is as it is."""
        if self.what.endswith((".h5", ".safetensors")):
            return self
        options = {**self._options, "inputs": self._options["inputs"] if self._arrays is None else self._arrays}
        sets = (*self._sets, f"profiles={json.dumps(list(dict.fromkeys(profiles)))}", "checkpoints=[all]")
        return Case(self.what, sets, profiles[0], **options)

    def judge(
        self, results: Mapping[str, Any], precision: str | None = None, gradients: bool = True, only: str | Iterable[str] = ()
    ) -> Report:
        """The report on results by path; `check` raises where this has another verdict than PASS."""
        required = [only] if isinstance(only, str) else list(only)
        _results.check_mapping("check", results)
        test = self._open(precision, required or ([] if gradients else ["outputs/*"]))
        found = self.expected
        _results.check_paths(results, found, self._checkpoints)
        integers = {path for path, of in found.items() if of.integer}
        arrays = {path: _tensors.take(path, value, path in integers) for path, value in results.items()}
        tensors = (lib.Tensor * max(1, len(arrays)))(*(_tensors.struct(path, *array) for path, array in arrays.items()))
        report = c_void_p()
        lib.attempt("check", test.handle, len(arrays), tensors, byref(report))
        return Report(report, test, self.name)

    def _checkpoints(self) -> Collection[str]:
        """All that the case could be asked for; none of a golden, which is as it is."""
        try:
            return expected(lib.Test(self.what, (*self._sets, "checkpoints=[all]"), self._precision, **self._options))
        except lib.BadInput:
            return ()

    def check(
        self, results: Mapping[str, Any], precision: str | None = None, gradients: bool = True, only: str | Iterable[str] = ()
    ) -> Report:
        """Judges results by path and raises `Mismatch`, an AssertionError with the report, unless they are right.

        Values are tensors of torch (any device, strides, with or without graph), jax, numpy, or of whatever has
        ``__dlpack__`` or ``__array__``. Give each in the type in which the kernel computed it. `precision` is the
        arithmetic that the kernel claims: a profile's name (docs/comparing.md) or a YAML file. ``gradients=False``: no gradient need
        be given. ``only=["outputs/y", "gradients/inputs/*"]``: no other than these need be.
        """
        report = self.judge(results, precision, gradients, only)
        if report.verdict != "PASS":
            raise Mismatch(report)
        return report

    def unsupported(self, why: str) -> NoReturn:
        """The kernel does not have this case: the test is skipped, and `why` is its reason."""
        raise Unsupported(f"unsupported: {why}")


def expected(test: lib.Test) -> dict[str, Expected]:
    results = (lib.call("expected", test.handle, i).contents for i in range(lib.call("expected_count", test.handle)))
    return {lib.text(r.path): Expected(lib.dims(r), bool(r.required), lib.TYPE_NAMES[r.type] == "int32") for r in results}


def given(test: lib.Test) -> Iterator[tuple[str, lib.Tensor]]:
    for i in range(lib.call("given_count", test.handle)):
        tensor = lib.Tensor()
        lib.attempt("given", test.handle, i, byref(tensor))
        yield lib.text(tensor.path), tensor


def inputs_of(test: lib.Test) -> list[str]:
    """Names of what is given beside the weights: x, selected_experts."""
    return [path.split("/", 1)[1] for path, _ in given(test) if path.startswith("inputs/")]


def case(
    what: str | os.PathLike[str] | Mapping[str, Any],
    *,
    precision: str | None = None,
    threads: int = 0,
    false_alarm: float = 0.0,
    cache: str | os.PathLike[str] | None = None,
    explain: bool = True,
    weights: str | os.PathLike[str] | None = None,
    staged: bool = False,
    supports: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Case:
    """Opens a case: a name of the catalogue, the text of a case file, a mapping with its keys, the path of a case file or golden.

    Other keywords override its keys: ``assay.case("moe/mixtral", sequence=17, sparse_matmul=False)``. `precision`: the profile
    that results are judged at (default: that of the case's dtype). `threads`, `false_alarm`: as the program's
    options. `cache`: the folder of goldens (default: $ASSAY_CACHE, else assay/ in the user's cache folder; "": none).
    ``inputs="mine.safetensors"``: a file with inputs, weights and cotangents of your own, any of them; or arrays by path, as
    ``{"inputs/x": x}`` and what ``numpy.load("mine.npz")`` gives.
    ``weights="model.safetensors"``, or ``"folder:model.layers.3"``: the weights of a checkpoint of Hugging Face
    (docs/hugging-face.md). ``explain=False``: failures are not held against the known bugs, which takes time.
    ``staged=True``: every checkpoint that is given is held to float64 that starts from your own inputs to that stage
    (docs/comparing.md, "Stage by stage"); with ``checkpoints="all"`` `expected` lists them.
    `supports`: what the kernel has, by key; another case raises `Unsupported` (docs/your-kernel.md, "What a kernel has").
    """
    if isinstance(what, Mapping):
        what = json.dumps(dict(what)) + "\n"
    own = overrides.get("inputs")
    fills = isinstance(own, Mapping) and not any(map(_tensors.is_array, own.values()))
    inputs = None if fills else overrides.pop("inputs", None)
    opened = Case(os.fspath(what), settings(overrides), precision, threads, false_alarm, cache, explain, inputs, weights, staged, supports)
    opened._open()
    return opened


def names(globs: str | Iterable[str] = "*", exclude: str | Iterable[str] = ()) -> list[str]:
    """Cases of the catalogue that match a glob and have none of `exclude`: tags, operations or globs."""
    one = (globs,) if isinstance(globs, str) else tuple(globs)
    return lib.names(one, (exclude,) if isinstance(exclude, str) else tuple(exclude))
