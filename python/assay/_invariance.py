"""Whether rows of a result depend on the company that they are computed in: a kernel against itself, without a golden."""
from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from . import _library as lib
from . import _results, _tensors

__tracebackhide__ = True  # pytest shows the test, not these functions

BY_TOKEN = ("rms_norm", "layer_norm", "l2_norm", "mlp", "moe", "routing")  #: operations whose rows are tokens; of others they are sequences
CHECKS = ("repeat", "batch", "order", "pad", "chunk")
SPLITS = (0, 1, 2, 3, 5)  #: of a cache, for the check `split`, which is made where it is asked for
#: Keys by which rows depend on each other by definition: what the key must be, and why.
BOUND: dict[str, tuple[Callable[[Any], Any], str]] = {
    "capacity_factor": (lambda value: value <= 0, "drops rows, and which depends on the others"),
    "ragged_buffer_factor": (lambda value: value <= 0, "drops rows, and which depends on the others"),
    "quant_recipe": (lambda value: value in ("", "none"), "has scales of several rows together"),
    "gmm_layout": (lambda value: value in ("", "ragged"), "has groups at places that depend on the others"),
}
OTHERS = (0, 1, 7, 64, 257)
PADDING = 7
#: Operations whose rows lie where the others let them.
PLACED = {"batch_split": "a function of the schedule has rows of one shard; deepseek_layer has the schedule's layers", "permute": "where a row goes depends on the others",
          "unpermute": "where a row comes from depends on the others", "cache_append": "no two rows may have one slot"}  # fmt: skip


class Difference(NamedTuple):
    """The first tensor that differs in some company, of the results in their order."""

    check: str  #: repeat, batch, order, pad, chunk or split
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
    """Rows `kept` of the case at `places` among `total`; the others are drawn anew, or `padding`."""

    total: int
    kept: tuple[int, ...]
    places: tuple[int, ...]
    padding: float | None = None
    sets: tuple[str, ...] = ()


def beginning(total: int, kept: Sequence[int], at: int = 0, padding: float | None = None) -> Company:
    """One after the other, from `at` on."""
    return Company(total, tuple(kept), tuple(range(at, at + len(kept))), padding)


class Checker:
    def __init__(self, case: Any, kernel: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]], module: Any, rows: str | None):
        self.case, self.kernel, self.module = case, kernel, _tensors.module_of(module)
        program = case.op == "program"
        if program and rows is None:
            rows = rows_of(case)
        if case.op in PLACED:
            raise lib.BadInput(f"check_invariance: {case.name}: {PLACED[case.op]}")
        for key, (free, why) in BOUND.items():
            if not program and not free(case.config.get(key, "")):
                raise lib.BadInput(f"check_invariance: {case.name}: {key} {case.config[key]} {why}")
        axes = [int(value) for key, value in case.config.items() if key.startswith("mesh.") or key == "batch_split_factor"]
        meshed = not program and any(axis > 1 for axis in axes)
        self.key = f"sizes.{rows}" if program else rows or ("sequence" if (case.op in BY_TOKEN or case.op == "gmm") and not meshed else "batch")
        self.own = {**case.inputs(), **case.cotangents()}
        if "inputs/indices" in self.own and case.op.endswith("_decode") and int(case.config["pagedattn_num_pages"]) == 0:
            raise lib.BadInput(f"check_invariance: {case.name}: lists of keys in a cache without pages count through all sequences")
        self.groups: list[int] = [int(n) for n in self.own["inputs/group_sizes"]] if case.op == "gmm" else []
        self.count = len_of(case, self.key) if program else sum(self.groups) if case.op == "gmm" else int(case.config[self.key])
        self.unit = self.count if meshed else 1  #: a mesh takes whole multiples of what the case has
        #: inputs whose values the case lists, which need as many as there are rows
        listed = re.findall(r"(\w+): \{([^}]*)\bvalues: \[([^\]]+)\]", "" if case.op == "gmm" else case.yaml)
        self.listed = {name: values.split(",") for name, said, values in listed if not program or re.search(rf"axes: \[[^\]]*\b{rows}\b", said)}
        self.before = self.run(self.together())[0]

    def together(self) -> Company:
        return beginning(self.count, range(self.count))

    def sized(self, company: Company, more: int) -> Any:
        """The case with the rows of the company, and `more`."""
        total, sets = company.total + more * self.unit, list(company.sets)
        if self.groups:
            each = len(self.own["inputs/lhs"]) // int(self.case.config["sequence"])
            total = -(-company.total // each) + more
            if not sets:
                sets = [groups_text(self.groups)]
        for name, values in self.listed.items():
            wanted = len(values) * total // self.count
            sets.append(f"inputs.{name}={{values: [{', '.join(itertools.islice(itertools.cycle(values), wanted))}]}}")
        pages = int(self.case.config.get("pagedattn_num_pages", 0)) if "inputs/block_table" in self.own else 0
        if pages > 0:  # of the others, behind those of the case
            sets.append(f"pagedattn_num_pages={pages + int(self.case.config['pagedattn_max_pages_per_group']) * (company.total + 1)}")
        return self.case._sized(self.key, total, *sets)

    def run(self, company: Company) -> tuple[dict[str, tuple[Any, str]], dict[str, int | None]]:
        """What the kernel gives in this company, and along which axis each result has rows."""
        bigger, probe = (self.sized(company, more) for more in (0, 1))  # the shapes of the second tell axes of rows
        later = shapes(probe)
        given: dict[str, Any] = {}
        for path, value in {**bigger.inputs(), **bigger.cotangents()}.items():
            axis = axis_of(value.shape, later[path])
            if self.case.op.endswith("_decode") and axis == 0 and value.dtype.kind == "i":  # the others read the same pages and lists
                value = np.resize(self.own[path], value.shape)
            if path != "inputs/group_sizes":
                value = place(company, self.own[path], value, axis)
            given[path] = _tensors.give(*_tensors.take(path, value, np.asarray(value).dtype.kind == "i"), self.module, None, False)
        results = self.kernel(given, bigger.config)
        _results.check_mapping("check_invariance: the kernel's results", results)
        expected, longer = bigger.expected, probe.expected
        _results.check_paths(results, expected, tuple)
        axes = {path: axis_of(expected[path].shape, longer[path].shape) for path in results}
        self.coupled = any(path.startswith("cotangents/") and axis_of(x.shape, later[path]) is None for path, x in given.items())  # a loss over all rows
        # rows that are sorted by expert lie anywhere
        axes = {path: axis if axis is None or self.groups or expected[path].shape[axis] == company.total else None for path, axis in axes.items()}
        return {path: _tensors.take(path, value, expected[path].integer) for path, value in results.items()}, axes

    def compare(self, check: str, company: Company, what: str) -> Difference | None:
        found, axes = self.run(company)
        for path, (array, kind) in found.items():
            axis = axes[path]
            elsewhere = self.unit > 1 and not path.startswith(("outputs/", "gradients/"))  # what each shard has of its own
            knows = (self.coupled and path.startswith("gradients/")) or path.endswith("physical_experts")  # replicas are chosen in turn
            if (axis is None or elsewhere or knows) and check not in ("repeat", "split") or path not in self.before:
                continue
            one, other = number(*self.before[path]), number(array, kind)
            if axis is not None:
                one, other = np.moveaxis(one, axis, 0)[list(company.kept)], np.moveaxis(other, axis, 0)[list(company.places)]
            different = (one != other) & ~(np.isnan(one) & np.isnan(other))
            if not different.any():
                continue
            with np.errstate(invalid="ignore"):
                error = np.where(different, np.abs(other - one), 0)
            places = float((error / np.maximum(np.spacing(np.abs(one).astype(np.float32)) * width(kind), 1e-45))[different].max())
            allowed = self.allowed(path, axis, company)
            within = allowed is not None and bool((error <= allowed)[different].all())
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
            return self.compare("repeat", self.together(), "again, on other addresses and threads")
        finally:
            if torch is not None:
                torch.set_num_threads(threads)

    def in_groups(self, sizes: Sequence[int], kept: Sequence[tuple[int, ...]], more: int = 0, padding: float | None = None) -> Company:
        """Of each group its rows `kept`, the first of `sizes` rows."""
        own, there = ([0, *itertools.accumulate(n)] for n in (self.groups, sizes))
        rows = tuple(own[g] + k for g, ks in enumerate(kept) for k in ks)
        places = tuple(there[g] + i for g, ks in enumerate(kept) for i in range(len(ks)))
        return Company(there[-1] + more, rows, places, padding, (groups_text(sizes),))

    def among(self, others: int) -> Difference | None:
        what = f"among {others} others"
        if self.groups:  # each group has so many more; none: its first row alone
            sizes = [n + others if others > 0 else min(n, 1) for n in self.groups]
            return self.compare("batch", self.in_groups(sizes, [tuple(range(min(n, size))) for n, size in zip(self.groups, sizes)]), what + " in each group")
        total = others + (1 if self.unit == 1 else self.count)
        kept = range(min(self.count, total))
        return self.compare("batch", beginning(total, kept, (total - len(kept)) // 2), what)

    def batch(self) -> Difference | None:
        fewer, found = -1, None
        for others in OTHERS if self.unit == 1 else (self.count, 7 * self.count):
            found = self.among(others)
            if found is not None:
                break
            fewer = others
        while found is not None and self.unit == 1 and fewer >= 0 and others - fewer > 1:  # the edge
            middle = (others + fewer) // 2
            nearer = self.among(middle)
            if nearer is None:
                fewer = middle
            else:
                found, others = nearer, middle
        if found is None or fewer < 0:
            return found
        if not self.groups:
            return found._replace(what=f"{found.what}, and not among {fewer}")
        ends = list(itertools.accumulate(self.groups))
        group = next(g for g, end in enumerate(ends) if found.rows[0] < end)
        size = self.groups[group] + others
        return found._replace(what=f"rows of expert {group} differ when its group has more than {size - 1} rows ({found.what}, and not among {fewer})")

    def order(self) -> Difference | None:
        if self.groups:
            return self.compare("order", self.in_groups(self.groups, [tuple(reversed(range(n))) for n in self.groups]), "in reverse order in each group")
        return self.compare("order", beginning(self.count, range(self.count)[::-1]), "in reverse order")

    def pad(self) -> Difference | None:
        what = f"beside {PADDING} rows of NaN"
        if self.groups:
            return self.compare("pad", self.in_groups(self.groups, [tuple(range(n)) for n in self.groups], PADDING, np.nan), what)
        if self.unit > 1:
            return None
        return self.compare("pad", beginning(self.count + PADDING, range(self.count), 0, np.nan), what)

    def chunk(self) -> Difference | None:
        half = self.count // 2 if self.unit == 1 else 0
        for rows in (range(half), range(half, self.count)) if half > 0 else ():
            what = f"rows {rows[0]} to {rows[-1]} alone" if len(rows) else ""
            company = beginning(len(rows), rows)
            if self.groups:  # the half of each group
                kept = [tuple(range(n)[: n // 2] if rows[0] == 0 else range(n)[n // 2 :]) for n in self.groups]
                company, what = self.in_groups([len(k) for k in kept], kept), "the half of each group alone"
            found = self.compare("chunk", company, what)
            if found is not None:
                return found
        return None

    def split(self) -> Difference | None:
        if "num_kv_splits" not in self.case.config or not self.case.op.endswith("decode"):
            raise lib.BadInput(f"check_invariance: split: {self.case.name} has no cache in splits (num_kv_splits)")
        for splits in SPLITS:
            found = self.compare("split", self.together()._replace(sets=(f"num_kv_splits={splits}",)), f"in {splits} splits")
            if found is not None:
                return found
        return None


def groups_text(sizes: Sequence[int]) -> str:
    return f"inputs.group_sizes={{values: [{', '.join(map(str, sizes))}]}}"


def rows_of(program: Any) -> str:
    """The letter of the axis whose indices do not know each other, as `assay show` has it."""
    found = re.search(r"^rows +(\w)$", show(program.yaml), re.MULTILINE)
    if found is None:
        raise lib.BadInput(f"check_invariance: {program.name}: steps go over every axis of its inputs, or know its indices; rows=\"T\" names one anyway")
    return found[1]


def show(yaml: str) -> str:
    from .__main__ import program

    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(yaml)
        file.flush()
        try:
            made = subprocess.run([program(), "show", file.name], capture_output=True, text=True)
        except OSError as error:
            raise lib.BadInput(f"check_invariance: {program()}: {error.strerror}") from error
    if made.returncode != 0:
        raise lib.BadInput(f"check_invariance: {made.stderr.strip()}")
    return made.stdout


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
    if axis is None and own.shape == value.shape:
        return own
    value = np.array(value)
    if axis is None:  # pages of a cache: those of the others lie behind
        if own.shape[1:] != value.shape[1:] or len(own) > len(value):
            raise lib.BadInput("check_invariance: an input has another size in other company, and no rows")
        value[: len(own)] = own
        return value
    if company.padding is not None and value.dtype.kind != "i":
        value = padded(value, company.padding)
    np.moveaxis(value, axis, 0)[list(company.places)] = np.moveaxis(own, axis, 0)[list(company.kept)]
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
