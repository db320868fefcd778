"""Whether rows of a result depend on the company that they are computed in: a kernel against itself, without a golden."""
from __future__ import annotations

import sys
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from . import _library as lib
from . import _results, _tensors

__tracebackhide__ = True  # pytest shows the test, not these functions

BY_TOKEN = ("rms_norm", "layer_norm", "l2_norm", "mlp", "moe", "routing")  #: operations whose rows are tokens; of others they are sequences
CHECKS = ("repeat", "batch", "order", "pad", "chunk")
OTHERS = (0, 1, 7, 64, 257)
PADDING = 7


class Difference(NamedTuple):
    """The first tensor that differs in some company, of the results in their order."""

    check: str  #: repeat, batch, order, pad or chunk
    path: str
    rows: tuple[int, ...]  #: of the case, those that differ
    last_places: float  #: the largest difference, in last places of the tensor's type
    grade: str  #: "within rounding" or "beyond rounding"
    what: str  #: "among 33 others, and not among 32"

    def __str__(self) -> str:
        return f"{self.check}: {self.path}: rows {list(self.rows[:8])} differ by up to {self.last_places:.3g} last places, {self.grade}, {self.what}"


class NotInvariant(AssertionError):
    """Results depend on the company of their rows; `differences` says how."""

    def __init__(self, differences: Sequence[Difference]):
        super().__init__("\n".join(map(str, differences)))
        self.differences = tuple(differences)


class Company(NamedTuple):
    """Rows `kept` of the case at `at` on among `total`; the others are drawn anew, or `padding`."""

    total: int
    kept: tuple[int, ...]
    at: int = 0
    padding: float | None = None


class Checker:
    def __init__(self, case: Any, kernel: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]], module: Any, rows: str | None):
        self.case, self.kernel, self.module = case, kernel, _tensors.module_of(module)
        program = case.op == "program"
        if program and rows is None:
            raise lib.BadInput('check_invariance: rows is missing: the letter of the axis whose rows do not know each other, as rows="T"')
        self.key = f"sizes.{rows}" if program else rows or ("sequence" if case.op in BY_TOKEN else "batch")
        self.count = len_of(case, self.key)
        self.before = self.run(Company(self.count, tuple(range(self.count))))[0]

    def run(self, company: Company) -> tuple[dict[str, tuple[Any, str]], dict[str, int | None]]:
        """What the kernel gives in this company, and along which axis each result has rows."""
        bigger, probe = (self.case._sized(self.key, company.total + more) for more in (0, 1))  # the shapes of the second tell axes of rows
        later = shapes(probe)
        given: dict[str, Any] = {}
        own = {**self.case.inputs(), **self.case.cotangents()}
        for path, value in {**bigger.inputs(), **bigger.cotangents()}.items():
            axis = axis_of(value.shape, later[path])
            value = place(company, own[path], value, axis)
            given[path] = _tensors.give(*_tensors.take(path, value, np.asarray(value).dtype.kind == "i"), self.module, None, False)
        results = self.kernel(given, bigger.config)
        _results.check_mapping("check_invariance: the kernel's results", results)
        expected, longer = bigger.expected, probe.expected
        _results.check_paths(results, expected, tuple)
        axes = {path: axis_of(expected[path].shape, longer[path].shape) for path in results}
        return {path: _tensors.take(path, value, expected[path].integer) for path, value in results.items()}, axes

    def compare(self, check: str, company: Company, what: str) -> Difference | None:
        found, axes = self.run(company)
        for path, (array, kind) in found.items():
            axis = axes[path]
            if axis is None and check != "repeat" or path not in self.before:
                continue
            one, other = number(*self.before[path]), number(array, kind)
            if axis is not None:
                one = np.moveaxis(one, axis, 0)[list(company.kept)]
                other = np.moveaxis(other, axis, 0)[company.at : company.at + len(company.kept)]
            different = (one != other) & ~(np.isnan(one) & np.isnan(other))
            if not different.any():
                continue
            error = np.where(different, np.abs(other - one), 0)
            places = float((error / np.maximum(np.spacing(np.abs(one).astype(np.float32)) * width(kind), 1e-45)).max())
            allowed = self.allowed(path, axis, company)
            within = allowed is not None and bool((error <= allowed).all())
            changed = different.reshape(len(different), -1).any(1) if axis is not None else np.array([True])
            rows = tuple(company.kept[i] if axis is not None else 0 for i in np.flatnonzero(changed))
            return Difference(check, path, rows, places, "within rounding" if within else "beyond rounding", what)
        return None

    def allowed(self, path: str, axis: int | None, company: Company) -> Any:
        """Two correct results lie within their thresholds of the golden, and so within two of each other."""
        if self.case.expected[path].integer:
            return None
        threshold = 2 * self.case.threshold(path)
        return threshold if axis is None else np.moveaxis(threshold, axis, 0)[list(company.kept)]

    def repeat(self) -> Difference | None:
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch is not None else 0
        if torch is not None:
            torch.set_num_threads(1 if threads > 1 else 2)
        try:
            return self.compare("repeat", Company(self.count, tuple(range(self.count))), "again, on other addresses and threads")
        finally:
            if torch is not None:
                torch.set_num_threads(threads)

    def among(self, others: int) -> Difference | None:
        total = others + 1
        kept = tuple(range(min(self.count, total)))
        return self.compare("batch", Company(total, kept, (total - len(kept)) // 2), f"among {others} others")

    def batch(self) -> Difference | None:
        fewer, found = -1, None
        for others in OTHERS:
            found = self.among(others)
            if found is not None:
                break
            fewer = others
        while found is not None and fewer >= 0 and others - fewer > 1:  # the edge
            middle = (others + fewer) // 2
            nearer = self.among(middle)
            if nearer is None:
                fewer = middle
            else:
                found, others = nearer, middle
        return found if found is None or fewer < 0 else found._replace(what=f"{found.what}, and not among {fewer}")

    def order(self) -> Difference | None:
        return self.compare("order", Company(self.count, tuple(reversed(range(self.count)))), "in reverse order")

    def pad(self) -> Difference | None:
        company = Company(self.count + PADDING, tuple(range(self.count)), 0, np.nan)
        return self.compare("pad", company, f"beside {PADDING} rows of NaN")

    def chunk(self) -> Difference | None:
        half = self.count // 2
        for rows in (range(half), range(half, self.count)) if half > 0 else ():
            found = self.compare("chunk", Company(len(rows), tuple(rows)), f"rows {rows[0]} to {rows[-1]} alone")
            if found is not None:
                return found
        return None


def len_of(case: Any, key: str) -> int:
    """How many rows the case has, by an input that is longer with more of them."""
    own = shapes(case)
    for path, shape in shapes(case._sized(key, 2 + max(max(shape, default=0) for shape in own.values()))).items():
        axis = axis_of(own[path], shape)
        if axis is not None:
            return own[path][axis]
    raise lib.BadInput(f"check_invariance: no input of {case.name} has rows by {key}")


def axis_of(shape: tuple[int, ...], later: tuple[int, ...]) -> int | None:
    """Where one row more makes it longer."""
    return next((i for i, (a, b) in enumerate(zip(shape, later)) if a != b), None)


def shapes(case: Any) -> dict[str, tuple[int, ...]]:
    """Of all that is given."""
    return {path: value.shape for path, value in {**case.inputs(), **case.cotangents()}.items()}


def place(company: Company, own: Any, value: Any, axis: int | None) -> Any:
    if axis is None:
        if own.shape != value.shape:
            raise lib.BadInput("check_invariance: an input has another size in other company, and no rows")
        return own
    value, rows = np.array(value), np.moveaxis(own, axis, 0)
    if company.padding is not None and value.dtype.kind != "i":
        value = padded(value, company.padding)
    np.moveaxis(value, axis, 0)[company.at : company.at + len(company.kept)] = rows[list(company.kept)]
    return value


def padded(value: Any, padding: float) -> Any:
    """All NaN; of bfloat16 as bits."""
    if value.dtype == np.uint16:
        return np.full_like(value, 0x7FC0)
    return np.full_like(value, padding) if value.dtype.kind == "f" else value


def number(array: Any, kind: str) -> Any:
    wide = _tensors.to_float32(array, kind) if kind in _tensors.NARROW else array
    return np.asarray(wide, np.float64)


def width(kind: str) -> float:
    """Of a last place, in those of float32."""
    return {"bfloat16": 2.0**16, "float16": 2.0**13, "float64": 2.0**-29}.get(kind, 1.0)


def differences(checker: Checker, checks: Sequence[str]) -> Iterator[Difference]:
    for check in checks:
        found = getattr(checker, check)()
        if found is not None:
            yield found
