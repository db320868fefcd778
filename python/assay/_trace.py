"""A program (docs/programs.md) of a function of PyTorch or JAX: what is recorded as it runs on an example, or as JAX traces it.

Each dimension of a tensor is an axis of its own until an operator says that two are the same. What an operator does is written down
as steps; the letters of axes come last. Casts are dropped, unless they are meant: the program is the mathematics, whatever types the function computes it in.
"""
from __future__ import annotations

import copy
import functools
import importlib.util
import inspect
import itertools
import json
import linecache
import math
import operator
import os
import re
import shutil
import string
import sys
import tempfile
import traceback
import types
import weakref
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from . import _attention
from . import _library as lib
from ._case import Case

LONGEST_NAME = 39  #: of a tensor or a step
FEW = 32  #: numbers of a constant that are no whole ones
MOST = 1 << 16  #: numbers of a constant
MOST_PARTS = 6  #: that are put together at once
MOST_AXES = 12  #: of a tensor
FAR = -1e30  #: for -inf behind a mask, and what is lower: a program has finite numbers
#: Of numbers that the function knows.
FOLDED: dict[str, Callable[..., float]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "maximum": max, "minimum": min,
                                           "less": operator.lt, "equal": operator.eq}
#: Steps that make whole numbers of whole numbers, which nothing rounds.
EXACT = ("float", "less", "equal", "add", "sub", "mul", "maximum", "minimum", "neg", "abs", "square", "where", "rearrange", "reshape", "slice", "concatenate", "max", "gather", "pick", "cumsum", "floor_div", "mod")
JUMPS = ("floor", "round", "above")  #: whole numbers of others: a kernel's errors may carry a number over the edge
REPEATS = ("add", "sub", "mul", "div", "maximum", "minimum", "where", "rearrange")
#: What PyTorch says of a function that has no gradients: it writes over what they need, or has an operator without.
NO_GRADIENT = ("needed for gradient computation has been modified by an inplace operation", "derivative for aten::")
HALVES = ("bfloat16", "float16")
CODES = ("float8_e4m3fn", "float8_e5m2")  #: types of results that are judged as codes
LETTERS = "TDHNKFEBSRPVCGMJLQUWXYZIAO" + string.ascii_lowercase


#: Steps that a function has by their names, with the axes of operands and result; * are any in front.
NAMED = {"attention": "BSNH,BTKH,BTKV->BSNV", "attention_lse": "BSNH,BTKH,BTKV->BNS", "quantise": "*->*",
         "gated_delta_rule": "*TNK,*TNK,*TNV,*TN,*TN,*NKV->*TNV", "gated_delta_state": "*TNK,*TNK,*TNV,*TN,*TN,*NKV->*NKV", "linear_scan": "*TC,*TC->*TC"}
RECORDERS: list[Any] = []  #: of functions of PyTorch that run now


class Axis:
    """A dimension; `same` leads to the one that it turned out to be."""

    def __init__(self, size: int) -> None:
        self.size, self.same, self.letter = size, None, ""  # type: int, Axis | None, str

    def root(self) -> "Axis":
        return self if self.same is None else self.same.root()


class Origin(NamedTuple):
    """The operator that made a value, for those that are known by several: x sigmoid(x) is silu(x)."""

    operator: str
    operands: tuple["Value", ...]
    dims: list[tuple[Axis, ...]]
    places: tuple[int, ...] = ()  #: that a sum or maximum goes over


class Guard:
    """Rows that a mask chooses, as `nonzero` has them: here they are all there, and where they are added up those that it leaves out are 0."""

    def __init__(self, mask: "Value", given: "Value") -> None:
        self.mask, self.given = mask, given  #: as 0 and 1, and as the function has it
        self.axes = tuple(a for d in mask.dims for a in d)


class Value:
    """A tensor of the function. Each of its dimensions is axes of the program's tensor, in their order: one, several that a view has merged,
    or none where its size is 1."""

    def __init__(self, dims: Sequence[Sequence[Axis]], text: Callable[[], str], step: "Step | None" = None) -> None:
        self.dims = [tuple(d) for d in dims]
        self.text = text  #: the expression, once axes have letters
        self.step = step
        self.integer = False  #: indices: an argument, a constant or a choice
        self.truth = False  #: of these: 0 and 1
        self.mask = False  #: of these: read as whether they are not 0
        self.inverted = False  #: or whether they are 0
        self.low = 0  #: the least of these
        self.whole = False  #: numbers that follow from indices without a rounding
        self.flows = False  #: a gradient flows back from it
        self.number: float | None = None
        self.origin: Origin | None = None
        self.guards: frozenset[Guard] = frozenset()  #: its rows are those that these masks choose
        self.refused = ""  #: why no program has it: said where an output needs it
        self.core = self  #: the same for the same numbers

    def seen(self, dims: Sequence[Sequence[Axis]]) -> "Value":
        """The same numbers, whose axes are these dimensions."""
        made = copy.copy(self)
        made.dims = [tuple(d) for d in dims]
        return made

    @property
    def axes(self) -> list[Axis]:
        return [a for d in self.dims for a in d]

    def came(self, operator: str) -> "tuple[Value, ...]":
        """The operands, where that operator made it and nothing has moved it since."""
        return self.origin.operands if self.origin and self.origin.operator == operator and alike(self.origin.dims, self.dims) else ()


def alike(a: Sequence[Sequence[Axis]], b: Sequence[Sequence[Axis]]) -> bool:
    return len(a) == len(b) and all(roots(x) == roots(y) for x, y in zip(a, b))


def same(a: Value, b: Value) -> bool:
    """One tensor, seen alike."""
    return a.core is b.core and alike(a.dims, b.dims)


def single(axes: Sequence[Axis]) -> list[tuple[Axis, ...]]:
    return [(a,) for a in axes]


def roots(axes: Sequence[Axis]) -> list[Axis]:
    return [a.root() for a in axes]


class Step:
    def __init__(self, base: str, text: Callable[[], str], axes: Sequence[Axis], place: tuple[str, int], reads: Sequence[Value]) -> None:
        self.base, self.text, self.axes, self.place, self.reads = base, text, list(axes), place, list(reads)
        self.name = ""
        self.alone = False  #: it keeps a line of its own
        self.known = False  #: it follows from whole numbers alone
        self.exact = False  #: and nothing rounds it
        self.fused = False  #: nothing stores it: a line of its own
        self.coded = False  #: a line of its own, of a step or an output
        self.stores = False  #: a line of its own, whose sums the framework stores as they grow
        self.jumped = False  #: a line of its own: what jumps reads it


def by_places(array: "np.ndarray[Any, Any]") -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None":
    """A number for each index of one axis and whole numbers that it multiplies."""
    least = abs(array[array != 0]).min(initial=np.inf)
    if not least > 1e-30:  # what a tensor holds that is not filled yet
        return None
    for axis in range(array.ndim):
        rows = np.moveaxis(array, axis, 0)
        if len(rows) < 2 or rows[0].size < 2 or not all(row.any() for row in rows):
            continue
        units = np.array([abs(row[row != 0]).min() for row in rows])
        whole = np.rint(rows[0] / units[0])
        shape = [-1 if i == axis else 1 for i in range(array.ndim)]
        if (abs(units.reshape(-1, *[1] * (array.ndim - 1)) * whole - rows) <= 1e-7 * abs(rows)).all() and abs(whole).max() < 2**24 and np.ptp(whole) > 0:
            return units.reshape(shape), np.expand_dims(whole, axis)
    return None


class Tracer:
    def __init__(self, name: str, function: Callable[..., Any], casts: str = "drop", gradients: bool = True) -> None:
        self.name, self.function = name, function
        self.casts, self.gradients = casts, gradients  #: casts: "keep": all that round are steps; gradients: what stops them is
        self.stores = False  #: sums in gradients of what is repeated are stored as they grow, as JAX has them on processors
        self.parts: dict[str, Any] = {"unfused": True}  #: of a function of several operators, which may store what each gives; not where the function keeps that in float32
        self.place = place_of(function)  #: file and line of what is recorded
        self.inputs: list[tuple[str, Value, np.ndarray[Any, Any] | str | None]] = []  #: whole numbers: those of the example, or their text
        self.compared: dict[int, set[int]] = {}  #: numbers that an argument is compared with
        self.rows_of: dict[int, int] = {}  #: how many there are of what an argument counts
        self.counted: dict[int, tuple[Value, Axis]] = {}  #: of numbers that say how often there is each, what they count
        self.group_sizes: set[int] = set()  #: arguments whose sum has a bound: they are as in the example
        self.distinct: dict[int, int] = {}  #: arguments whose rows hold each number once; of indices, how many there are of what they count
        self.steps: list[Step] = []
        self.tensors: list[list[Axis]] = []  #: axes that must stay apart
        self.choices: dict[str, Value] = {}  #: results of the function that are choices
        self.types: dict[str, str] = {}  #: of its results that are fp8
        self.halves: list[str] = []  #: its results that are bfloat16 or float16
        self.floats: dict[str, np.ndarray[Any, Any]] = {}  #: constants that are no whole numbers, by their names
        self.narrowed: set[str] = set()  #: arguments whose gradient would go through a cast to fp8, which frameworks round and kernels pass
        self.places: list[Value] = []  #: 0, 1, ..
        self.far = FAR  #: of float16 its own lowest
        self.stored: list[str] = []  #: lines whose sums are stored as they grow
        self.stands_alone = False  #: it has a step that only `assay.step` says, and so no numbers
        self.constants: list[tuple[np.ndarray[Any, Any], Value]] = []
        self.called: list[str] = []  #: their names

    # axes

    def letters(self, axes: Sequence[Axis]) -> str:
        return "".join(a.root().letter for a in axes)

    def unify(self, a: Axis, b: Axis) -> bool:
        """Whether both are one axis from now on: not where a tensor has both, or where they differ."""
        a, b = a.root(), b.root()
        if a is b:
            return True
        if a.size != b.size or any(a in own and b in own for own in map(roots, self.tensors)):
            return False
        b.same = a
        return True

    def given(self, name: str, shape: Sequence[int], integers: "np.ndarray[Any, Any] | str | None", weight: bool) -> Value:
        if 0 in shape:
            raise lib.BadInput(f"{name} is {list(shape)}, expected a tensor with numbers")
        value = Value(single([Axis(n) for n in shape]), lambda: name)
        value.integer = integers is not None
        value.flows = not value.integer
        self.tensors.append(value.axes)
        self.inputs.append((("weights/" if weight else "inputs/") + name, value, integers))
        return value

    def call(self, step: str, operands: Sequence[Value], dims: Sequence[Sequence[Axis]], pattern: Callable[[], str] | None = None,
             **parameters: Any) -> Value:
        def text() -> str:
            words = [json.dumps(pattern())] if pattern is not None else []
            words += [v.text() for v in operands]
            for key, value in parameters.items():
                said = value() if callable(value) else value
                words.append(f"{key}={json.dumps(said) if isinstance(said, (str, bool)) else repr(said)}")
            return f"{step}({', '.join(words)})"

        if step not in ("float", "where"):
            operands = [self.numbers(v) for v in operands] if any(v.inverted or v.mask for v in operands) else operands
        if step in ("slice", "concatenate", "reshape", "rearrange", "cumsum", "gather", "pick"):  # which have numbers alone, but for their indices
            operands = [v if i and step in ("gather", "pick") else self.numbers(v) for i, v in enumerate(operands)]
        axes = [a for d in dims for a in d]
        self.tensors.append(axes)
        made = Step(step, text, axes, self.place, operands)
        self.steps.append(made)
        repeats = step in REPEATS and any(v.flows and v.axes and len(v.axes) < len(axes) for v in operands)
        made.stores = self.stores and (repeats or step in ("cumsum", "linear_scan", "rms_norm"))
        value = Value(dims, lambda: made.name, made)
        value.whole = step in JUMPS or step in EXACT and all(v.whole or v.integer or (v.number is not None and v.number.is_integer()) for v in operands)
        value.flows = step not in ("detach", "top_k", *JUMPS) and any(v.flows for v in operands)
        made.exact = value.whole
        value.truth = step in ("rearrange", "reshape", "slice") and operands[0].truth and not operands[0].integer
        value.guards = frozenset().union(*(v.guards for v in operands))
        for guard in value.guards:
            if any(a not in roots(axes) for a in roots(guard.axes)):
                raise lib.BadInput("rows that a mask chooses meet each other, expected index_add")
        made.known = value.whole or (bool(operands) and all(v.integer or v.number is not None or (v.step is not None and v.step.known) for v in operands))
        return value

    def fresh(self, size: int) -> tuple[Axis]:
        return (Axis(size),)

    def nowhere(self, operator: str, operands: Sequence[Value], dims: Sequence[Sequence[Axis]], why: str) -> Value:
        """What no step gives: it is refused where an output needs it."""
        made = Value(dims, lambda: "")
        made.origin = Origin(operator, tuple(operands), made.dims)
        made.refused = next((v.refused for v in operands if v.refused), self.said(operator, why))
        return made

    def nothing(self, operator: str, shape: Sequence[int]) -> Value:
        return self.nowhere(operator, (), [(Axis(n),) if n != 1 else () for n in shape], "a tensor without numbers")

    def said(self, operator: str, why: str) -> str:
        return ": ".join([said_place(self.place), *([operator] if operator else []), why])

    def renamed(self, x: Value, dims: Sequence[Sequence[Axis]]) -> Value:
        """The same numbers under other axes."""
        axes = [a for d in dims for a in d]
        if roots(x.axes) == roots(axes):
            return x.seen(dims)
        if x.step is not None and x.step.base == "reshape":  # one after another
            before = x.step.reads[0]
            if roots(before.axes) == roots(axes):
                return before.seen(dims)
            x = before
        return self.call("reshape", [x], dims, lambda: self.letters(axes))

    def merged(self, x: Value, places: Sequence[int]) -> Value:
        """These dimensions are one axis each."""
        dims = [(Axis(size_of(d)),) if i in places and len(d) > 1 else d for i, d in enumerate(x.dims)]
        return self.renamed(x, dims)

    def ordered(self, x: Value, dims: Sequence[Sequence[Axis]]) -> Value:
        """x with these axes in this order; axes that it lacks repeat it."""
        axes = [a for d in dims for a in d]
        if roots(x.axes) == roots(axes):
            return x.seen(dims)
        if x.origin is not None and x.origin.operator == "rearrange":  # one order after another
            return self.ordered(x.origin.operands[0], dims)
        before = x.axes
        made = self.call("rearrange", [x], dims, lambda: f"{self.letters(before)}->{self.letters(axes)}")
        made.origin = Origin("rearrange", (x,), made.dims)
        return made

    # what operators are made of

    def number(self, x: float) -> Value:
        if x in (float("inf"), float("-inf")) or x != x:
            made = Value([], lambda: "")
            made.number, made.refused = x, self.said(str(x), "expected a finite number")
            return made
        made = Value([], lambda: repr(int(x)) if float(x).is_integer() and abs(x) < 1e15 else repr(float(x)))
        made.number = float(x)
        return made

    def constant(self, array: "np.ndarray[Any, Any]", what: str = "", anew: bool = False, row: bool = False) -> Value:
        """A number, or whole numbers that the case file has as an input; what: it is, where that is known; anew: with axes of its own; row: an input,
        however few numbers it has."""
        if array.size and (array == array.flat[0]).all():
            return self.number(float(array.flat[0])).seen([()] * array.ndim)
        whole = not what and is_whole(array)
        levels = np.unique(array) if not whole and not what and not row else np.zeros(0)
        if len(levels) == 2 and array.ndim > 1 and levels[1] < np.inf:  # a mask that is added
            return self.where(self.constant(array == levels[1]), self.number(float(levels[1])), self.number(max(float(levels[0]), self.far)))
        factors = None if whole or what or row or array.size <= FEW or not (abs(array) < 1e30).all() else by_places(array)
        if factors is not None:  # ALiBi: a slope for each head times a distance
            return self.together("mul", [self.constant(factors[0]), self.constant(factors[1])])
        if not whole and (what or array.size > MOST or not np.isfinite(array).all()):
            raise lib.BadInput(what or f"a tensor {list(array.shape)} that is none of the function's arguments: {array.size} numbers, expected at most {MOST} finite ones, or an argument")
        if not whole and array.size <= FEW and not row:
            parts = [self.ordered(self.number(float(x)), [self.fresh(1)]) for x in array.flat]
            return self.reshape(self.concatenate(parts, 0), array.shape)
        if whole and array.dtype.kind == "f":
            return self.numbers(self.constant(array.astype(np.int64)))
        array = array.astype(np.int64 if whole else np.float64)
        array = unrepeated(array)
        shape = [n for n in array.shape if n > 1]
        if array.size > FEW and whole and len(shape) == 2 and not anew:
            far = self.distances(array.reshape(shape))
            if far is not None:
                dims = iter(far.dims)
                return far.seen([next(dims) if n > 1 else () for n in array.shape])
        if array.size > FEW and whole and len(shape) > 1 and not anew and 0 <= array.min() and array.max() <= 1:
            band = (self.band(array.reshape(shape)) if len(shape) == 2 else None) or self.intervals(array.reshape(shape))
        else:
            band = None
        if band is None and array.size > MOST:
            raise lib.BadInput(f"whole numbers or a mask {list(array.shape)} that are none of the function's arguments: {array.size} numbers, expected at most {MOST}, or an argument")
        if band is not None:
            dims = iter(band.dims)
            return band.seen([next(dims) if n > 1 else () for n in array.shape])
        if whole and len(shape) == 1 and (array.reshape(-1) == np.arange(shape[0])).all():
            made = next((v for v in self.places if not anew and size_of(v.dims[0]) == shape[0]), None) or self.iota(shape[0])
            return made.seen([made.dims[0] if n > 1 else () for n in array.shape])
        stem = "frequencies" if row else "constant"
        for called, (values, before) in zip(self.called, self.constants) if whole or row else ():
            if not anew and called.startswith(stem) and list(values.shape) == shape and (values == array.reshape(shape)).all():
                axes = iter(before.axes)
                return before.seen([(next(axes),) if n > 1 else () for n in array.shape])
        name = next(n for n in (f"{stem}{i or ''}" for i in itertools.count()) if all(path != "inputs/" + n for path, _, _ in self.inputs))
        number = len(self.constants)
        self.called.append(name)
        truth = array.min() >= 0 and array.max() <= 1
        made = self.given(name, shape, f"[{array.min()}, {array.max()}], values: {array.flatten().tolist()}" if whole else None, False)
        made.truth, made.low, made.text, made.flows = bool(truth and whole), int(array.min()), lambda: self.called[number], False
        self.constants.append((array.reshape(shape), made))
        axes = iter(made.axes)
        seen = made.seen([(next(axes),) if n > 1 else () for n in array.shape])
        return seen if whole or row else self.together("mul", [seen, self.number(1)])  # a kernel may store it in its type

    def iota(self, size: int) -> Value:
        axis = self.fresh(size)
        made = self.call("iota", [], [axis], lambda: self.letters(axis))
        made.integer = True
        self.places.append(made)
        return made

    def distances(self, array: "np.ndarray[Any, Any]") -> Value | None:
        """Whole numbers that say how far a column is from a row, with a sign or without."""
        row, column = (self.constant(np.arange(n).reshape(shape)) for n, shape in ((array.shape[0], (-1, 1)), (array.shape[1], (1, -1))))
        far = np.arange(array.shape[1]) - np.arange(array.shape[0])[:, None]
        for sign, (one, other) in ((1, (column, row)), (-1, (row, column))):
            if array.shape[0] > 1 and array.shape[1] > 1 and (array == array[0, 0] + sign * far).all():
                made = self.together("sub", [self.numbers(one), self.numbers(other)])
                return self.together("add", [made, self.number(int(array[0, 0]))]) if array[0, 0] else made
            if (array == sign * abs(far)).all():
                made = self.map("abs", self.together("sub", [self.numbers(row), self.numbers(column)]))
                return made if sign > 0 else self.map("neg", made)
        return None

    def band(self, mask: "np.ndarray[Any, Any]") -> Value | None:
        """A mask that says how far behind a row's index a column's may be: a causal one, a window; or what such a one hides."""
        rows, columns = mask.shape
        far = np.concatenate([mask[:0:-1, 0], mask[0]])  # by column - row, from 1 - rows on
        if mask.min() < 0 or mask.max() > 1 or (mask != far[np.arange(columns) - np.arange(rows)[:, None] + rows - 1]).any():
            return None
        edges = np.flatnonzero(np.diff(far)) + 2 - rows  # the first of another kind
        hides = far[0] == 1 and len(edges) == 2
        if len(edges) > 2:
            return None
        row, column = (self.constant(np.arange(n).reshape(shape)) for n, shape in ((rows, (-1, 1)), (columns, (1, -1))))
        below = [self.compare("lt", column, self.together("add", [self.numbers(row), self.number(int(edge))])) for edge in edges]  # column - row < edge
        made = below[0] if len(edges) == 1 else self.together("sub", [below[1], below[0]])
        made.truth = True
        return self.opposite(made) if hides or (len(edges) == 1 and far[0] == 0) else made

    def intervals(self, mask: "np.ndarray[Any, Any]") -> Value | None:
        """A mask that shows, or hides, of each row's columns those from one to another: documents, chunks, a prefix."""
        columns = np.arange(mask.shape[-1])
        for kind in (1, 0):
            shown = mask == kind
            prefix = int(shown.all(tuple(range(mask.ndim - 1))).cumprod().sum())
            causal = columns <= np.arange(len(mask)).reshape([-1] + [1] * (mask.ndim - 1)) + int(shown[-1].sum()) - len(mask)
            if mask.ndim == 2 and 0 < prefix < mask.shape[1] and (shown == (causal | (columns < prefix))).all():
                made = self.both("maximum", self.constant(causal), self.compare("lt", self.constant(columns.reshape(1, -1)), self.number(prefix)))
                return made if kind else self.opposite(made)
        for kind in (1, 0):
            first = (mask == kind).argmax(-1)
            end = first + (mask == kind).sum(-1)
            if (((first[..., None] <= columns) & (columns < end[..., None])) == (mask == kind)).all():
                column = self.constant(columns.reshape([1] * (mask.ndim - 1) + [-1]))
                made = self.compare("lt", column, self.constant(end[..., None]))
                if first.any():
                    made = self.both("mul", made, self.compare("ge", column, self.constant(first[..., None])))
                return made if kind else self.opposite(made)
        return None

    def map(self, step: str, x: Value, **parameters: Any) -> Value:
        made = self.call(step, [x], x.dims, **parameters)
        made.origin = Origin(step, (x,), made.dims)
        return made

    def jump(self, step: str, x: Value) -> Value:
        """floor, round or above, of a step that has a line of its own: so it is known how far errors carry its numbers."""
        x = self.numbers(x)
        if x.number is not None:
            return self.number(x.number > 0 if step == "above" else round(x.number) if step == "round" else math.floor(x.number)).seen(x.dims)
        if x.whole and step != "above":
            return x
        if x.step is not None:
            x.step.jumped = True
        made = self.map(step, x)
        made.truth = step == "above"
        return made

    def signum(self, x: Value) -> Value:
        return self.together("sub", [self.jump("above", x), self.jump("above", self.map("neg", x))])

    def rounded(self, how: str, x: Value) -> Value:
        """floor, ceil, round or trunc."""
        if how == "ceil":
            return self.map("neg", self.jump("floor", self.map("neg", x)))
        if how == "trunc":
            return self.together("mul", [self.signum(x), self.jump("floor", self.map("abs", x))])
        return self.jump(how, x)

    def detach(self, x: Value) -> Value:
        """The same numbers, through which no gradient flows."""
        return self.map("detach", x) if x.flows and self.gradients and not x.refused else x

    def power(self, x: Value, to: Value) -> Value:
        maps = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
        power = to.number
        if power is None:
            if x.number is None or not x.number > 0:
                raise lib.BadInput("the power is a tensor, expected a number, or a number above 0 to a power")
            return self.map("exp", self.together("mul", [to, self.number(math.log(x.number))]))
        if power == 1:
            return x
        if power in maps:
            return self.map(maps[power], x)
        if power in (3, 4):
            squared = self.map("square", x)
            return self.map("square", squared) if power == 4 else self.together("mul", [squared, x])
        if power < 0:
            return self.map("reciprocal", self.power(x, self.number(-power)))
        if power.is_integer() and 0 < power <= 64:
            half = self.map("square", self.power(x, self.number(power // 2)))
            return self.together("mul", [half, x]) if power % 2 else half
        return self.map("exp", self.together("mul", [self.map("log", x), self.number(power)]))

    def log1p(self, x: Value) -> Value:
        if x.came("exp"):
            return self.map("softplus", *x.came("exp"), **self.parts)
        return self.map("log1p", x)

    def expm1(self, x: Value) -> Value:
        return self.map("expm1", x)

    def sinh(self, x: Value) -> Value:
        return self.together("mul", [self.together("sub", [self.expm1(x), self.expm1(self.map("neg", x))]), self.number(0.5)])

    def cosh(self, x: Value) -> Value:
        return self.together("mul", [self.together("add", [self.map("exp", x), self.map("exp", self.map("neg", x))]), self.number(0.5)])

    # whole numbers

    def numbers(self, v: Value) -> Value:
        """Indices, as numbers; a mask as 0 and 1."""
        if not v.integer:
            return v
        made = self.call("float", [v], v.dims)
        made.origin = Origin("float", (v,), made.dims)
        made.truth = v.truth
        if v.inverted or (v.mask and not v.truth):
            made = self.together("equal", [made, self.number(0)])
            made.truth = True
        return made if v.inverted or not v.mask or v.truth else self.opposite(made)

    def divided(self, step: str, a: Value, b: Value) -> Value:
        """floor_div or mod."""
        a = self.numbers(a)
        if a.whole and b.number is not None and b.number >= 1 and b.number.is_integer():
            return self.together(step, [a, b])
        quotient = self.jump("floor", self.together("div", [a, self.numbers(b)]))
        return quotient if step == "floor_div" else self.together("sub", [a, self.together("mul", [quotient, b])])

    def bits(self, how: str, x: Value, by: "np.ndarray[Any, Any]", rank: int) -> Value:
        """Of whole numbers those below 2^n - 1 ("and"), or a shift ("left", "right"), by a constant of one dimension at most; in a tensor of that rank."""
        by = by.reshape([1] * (rank - by.ndim) + list(by.shape))
        x = self.numbers(x)
        x = x.seen([*[()] * (rank - len(x.dims)), *x.dims])
        wide = [i for i, n in enumerate(by.shape) if n > 1]
        if len(wide) > 1 or by.size > 64:
            raise lib.BadInput("bits by a table, expected one of one dimension and at most 64 numbers")
        if wide:
            place = wide[0]
            parts = [self.slice(x, place, i, i + 1) if x.dims[place] else x for i in range(by.size)]
            return self.concatenate([self.bits(how, part, by.take([i], place), rank) for i, part in enumerate(parts)], place)
        n = int(by.flat[0])
        if n < 0 or (how == "and" and n & (n + 1)):
            raise lib.BadInput(f"the bits of whole numbers by {n}, expected 2^n - 1, or a shift")
        if how == "left":
            return self.together("mul", [x, self.number(2**n)])
        return self.divided("mod", x, self.number(n + 1)) if how == "and" else self.divided("floor_div", x, self.number(2**n))

    def truth(self, v: Value) -> Value:
        """Whether it is not 0, as numbers that are 0 or 1."""
        if v.number is not None:
            return self.number(v.number != 0).seen(v.dims)
        return self.numbers(v if v.truth or v.inverted else self.compare("ne", v, self.number(0)))

    def compare(self, how: str, a: Value, b: Value) -> Value:
        """Of whole numbers; others may be the same in one kernel and not in another."""
        if a.number is not None and b.number is not None:
            return self.number(float(getattr(operator, how)(a.number, b.number))).seen([()] * max(len(a.dims), len(b.dims)))
        total = a.origin
        if b.number == 0 and how in ("gt", "ne", "eq", "le") and a.came("sum") and total is not None and total.operands[0].truth:  # whether there is any
            found = self.over("max", total.operands[0], total.places, len(a.dims) == len(total.operands[0].dims))
            found.truth = True
            return found if how in ("gt", "ne") else self.opposite(found)
        chosen = self.best_of(a, b) if how in ("ge", "lt") else self.best_of(b, a) if how in ("le", "gt") else None
        if chosen is not None:
            return chosen if how in ("ge", "le") else self.opposite(chosen)
        if any(v.number in (math.inf, -math.inf) for v in (a, b)) and how in ("eq", "ne"):
            return self.number(how == "ne").seen([()] * max(len(a.dims), len(b.dims)))
        if any(not (v.integer or v.whole or v.number is not None) for v in (a, b)) and not (a.refused or b.refused):
            return self.beyond(how, self.numbers(a), self.numbers(b))
        if a.integer and b.number == 0 and how in ("eq", "ne"):  # a mask as it is
            made = a.seen(a.dims)
            made.mask, made.inverted = True, a.inverted != (how == "eq")
            return made
        for v, other in ((a, b), (b, a)):
            if v.integer and how in ("eq", "ne") and other.number is not None:
                self.compared.setdefault(id(v.core), set()).add(int(other.number))
        a, b = (self.numbers(v) for v in (a, b))
        made = self.together("less" if how[0] in "lg" else "equal", [b, a] if how in ("gt", "le") else [a, b])
        made.truth = True
        return self.opposite(made) if how in ("le", "ge", "ne") else made

    def beyond(self, how: str, a: Value, b: Value) -> Value:
        """Of numbers that a kernel may round: what errors carry over the edge may be on either side. Where it decides between two that meet there
        `where` has no need of that."""
        def made(first: Value, second: Value) -> Value:
            return self.jump("above", first if second.number == 0 else self.map("neg", second) if first.number == 0 else self.together("sub", [first, second]))

        found = made(a, b) if how in ("gt", "le") else made(b, a) if how in ("lt", "ge") else self.together("add", [made(a, b), made(b, a)])
        if how in ("le", "ge", "eq"):
            found = self.opposite(found)
        found.truth = True
        found.origin = Origin(how, (a, b), found.dims)
        return found

    def best_of(self, x: Value, least: Value) -> Value | None:
        """Where x is at least its k-th largest: its k best."""
        cut = least.origin
        pick = cut.operands[0].origin if cut is not None and cut.operator == "slice" else None
        if cut is None or pick is None or pick.operator != "pick" or pick.operands[0].core is not x.core or not alike(pick.operands[0].dims, x.dims):
            return None
        index = pick.operands[1]
        if index.step is None or index.step.base != "top_k" or cut.places != (len(index.dims) - 1, size_of(index.dims[-1]) - 1):
            return None
        made = self.scattered(self.number(0).seen([()] * len(x.dims)), index, self.number(1), size_of(x.dims[-1]), False)
        made.truth = True
        return made

    def opposite(self, mask: Value) -> Value:
        if mask.integer:
            made = mask.seen(mask.dims)
            made.mask, made.inverted = True, not mask.inverted
            return made
        if mask.came("sub") and mask.came("sub")[0].number == 1:
            return mask.came("sub")[1]
        made = self.together("sub", [self.number(1), mask])
        made.truth = True
        return made

    def both(self, step: str, a: Value, b: Value) -> Value:
        """mul: both masks, maximum: one of them."""
        made = self.together(step, [self.truth(a), self.truth(b)])
        made.truth = True
        return made

    def written_at(self, x: Value, place: int, index: Value, given: Value, adds: bool) -> Value:
        """x with other numbers, or more, where indices of one dimension say, in whose place those of the index are."""
        size = size_of(x.dims[place])
        front = self.ordered(x, [x.dims[place], *x.dims[:place], *x.dims[place + 1 :]])
        rest, rank = front.dims[1:], len(index.dims)
        given = given.seen([()] * (rank + len(rest) - len(given.dims)) + list(given.dims))
        own = [given.dims[place : place + rank], given.dims[:place] + given.dims[place + rank :]]
        given = given.seen(given.dims) if not given.axes else self.ordered(given, [d for part in own for d in part])
        given = given if given.axes else given.seen([*own[0], *own[1]])
        for i, d in enumerate([*index.dims, *rest]):
            if given.dims[i] and d:
                given = self.fit(given, i, d)
        if not adds and not self.differ(index) and not self.made_distinct(index, size):
            raise lib.BadInput("an index may stand twice, expected an argument of as many at most, known ones, or those of top_k")
        if given.number is None:
            whole = self.ordered(given, [d or e for d, e in zip(given.dims, [*index.dims, *rest])])
            made = self.scatter_add(whole, index, size)
        else:
            made = given.seen([()] * len(front.dims))
        if adds and given.number is None:
            made = self.together("add", [front, made]) if front.number != 0 else made
        elif adds:
            count = self.scatter_add(given, index, size)
            made = self.together("add", [front, count.seen([*count.dims, *[()] * len(rest)])])
        else:
            hot = self.one_hot(index, rank, Axis(size))
            found = self.over("max", hot, range(rank), False) if index.axes else hot
            made = self.where(found.seen([*found.dims, *[()] * len(rest)]), made, front)
        made = self.ordered(made, [d or e for d, e in zip(made.dims, front.dims)])
        return self.ordered(made, [*made.dims[1 : place + 1], made.dims[0], *made.dims[place + 1 :]])

    def made_distinct(self, index: Value, rows: int) -> bool:
        """Whether an argument can be drawn with each index once in a row."""
        if index.step is not None or not index.integer or len(index.dims) == 0 or size_of(index.axes[-1:]) > rows or size_of(index.dims[-1]) != size_of(index.axes):
            return False
        self.distinct[id(index.core)] = rows
        return True

    def one_hot(self, index: Value, place: int, axis: Axis) -> Value:
        """1 where the index along that axis, which is put in its place, is the index's."""
        lone = index.seen([*index.dims[:place], (), *index.dims[place:]])
        numbers = self.constant(np.arange(axis.size).reshape([-1] + [1] * (len(index.dims) - place)))
        if axis.size > 1:
            self.unify(axis, numbers.axes[0])
        return self.compare("eq", lone, numbers)

    def where(self, mask: Value, a: Value, b: Value) -> Value:
        found = pieces_of(self, mask, a, b)
        if mask.refused or found is not None:
            return self.nowhere("where", [mask, a, b], mask.dims, "") if found is None else found
        if mask.number is not None:  # of one number all over
            chosen = a if mask.number else b
            return chosen.seen([()] * (len(mask.dims) - len(chosen.dims)) + list(chosen.dims))
        if not mask.integer and not mask.whole:
            raise lib.BadInput("the mask is computed, expected whole numbers")
        a, b = (self.number(self.far) if v.number is not None and v.number < self.far else v for v in (a, b))
        if mask.truth and (a.number, b.number) in ((1, 0), (0, 1)):
            return self.truth(mask if a.number == 1 else self.opposite(mask))
        if mask.inverted:
            mask, a, b = mask.seen(mask.dims), b, a
            mask.inverted = False
        return self.together("where", [mask, a, b])

    def fit(self, v: Value, place: int, dim: Sequence[Axis]) -> Value:
        """v with its dimension on these axes, of which it has as many numbers."""
        own = v.dims[place]
        if len(own) == len(dim) and all([self.unify(a, b) for a, b in zip(dim, own)]):
            return v
        return self.renamed(v, [dim if i == place else d for i, d in enumerate(v.dims)])

    def together(self, step: str, values: Sequence[Value], **parameters: Any) -> Value:
        """Numbers of several tensors one by one, as broadcasting has it."""
        rank = max(len(v.dims) for v in values)
        numbers = [v.number for v in values if v.number is not None and not v.refused]
        if len(numbers) == len(values) and step in FOLDED and not (step == "div" and numbers[1] == 0):
            return self.number(FOLDED[step](*numbers)).seen([()] * rank)
        dims: list[tuple[Axis, ...]] = [()] * rank
        most = [max(size_of(v.dims[i - rank]) for v in values if i >= rank - len(v.dims)) for i in range(rank)]
        operands = []
        for v in values:
            first = rank - len(v.dims)
            v = self.renamed(v, [() if size_of(d) == 1 != n else d for d, n in zip(v.dims, most[first:])])
            crossed = [any(a in roots(d) for n, d in enumerate(dims) if n != first + i for a in roots(v.dims[i])) for i in range(len(v.dims))]
            if any(crossed):  # a tensor against itself
                v = self.renamed(v, [self.fresh(size_of(d)) if own else d for own, d in zip(crossed, v.dims)])
            for i in range(len(v.dims)):
                if v.dims[i] and dims[first + i]:
                    v = self.fit(v, i, dims[first + i])
                elif v.dims[i]:
                    dims[first + i] = v.dims[i]
            operands.append(v)
        known = self.known(step, values, dims)
        if known is not None:
            return known
        made = self.ordered(self.call(step, operands, single(axes_of(operands)), **parameters), dims)
        made.origin = Origin(step, tuple(values), made.dims)
        return made

    def known(self, step: str, values: Sequence[Value], dims: list[tuple[Axis, ...]]) -> Value | None:
        """What several operators compute together, where one step does."""
        a, b = values[0], values[-1]
        if step == "mul" and 0 in (a.number, b.number):
            return self.number(0).seen([()] * len(dims))
        if step == "add" and 0 in (a.number, b.number):
            return self.ordered(a if b.number == 0 else b, dims)
        if step == "mul":
            found = silu_of(a, b) or silu_of(b, a)
            if found is not None:
                return self.map("silu", found, **self.parts)
            normed = rms_norm_of(a, b) or rms_norm_of(b, a) or scaled_root_of(a, b) or scaled_root_of(b, a)
            if normed is not None:
                return self.rms_norm(*normed, **self.parts)
            gelu = gelu_of(self, values, dims)
            return None if gelu is None else self.map(*gelu, **self.parts)
        if step == "div":
            x, place = sum_of(b)
            whole = shifted(a.came("exp")[0], place) if x is not None and same(x, a) and len(a.dims) == len(b.dims) and a.came("exp") else None
            if whole is not None:
                return self.along("softmax", whole, place, **self.parts)
            over = a.origin
            if over is not None and over.operator == "sum" and b.number == size_of([x for p in over.places for x in over.operands[0].dims[p]]):
                return self.over("mean", over.operands[0], over.places, True).seen(a.dims)
        if step == "sub":
            if b.number == 0:
                return a
            x, place = exponentials_of(b)
            whole = shifted(x, place) if x is not None and same(x, a) and len(b.dims) == len(x.dims) else None
            if whole is not None:
                whole = a if self.stores else whole  # which JAX rounds
                return self.together("sub", [whole, self.over("logsumexp", whole, [place], True, **self.parts)])
        if step == "add":
            x, place = exponentials_of(a)
            whole = shifted(x, place) if x is not None else None
            if whole is not None and x is not None and x.came("sub")[1].core is b.core and alike(a.dims, b.dims):
                return self.over("logsumexp", whole, [place], True, **self.parts).seen(a.dims)
            positive = a.came("maximum")
            tail = b.came("softplus") and b.came("softplus")[0].came("neg") and b.came("softplus")[0].came("neg")[0].came("abs")
            if positive and tail and positive[1].number == 0 and same(positive[0], tail[0]):
                return self.map("softplus", tail[0], **self.parts)
        return None

    def rms_norm(self, x: Value, scale: Value, epsilon: float, **parameters: Any) -> Value:
        x = self.merged(x, [len(x.dims) - 1])
        return self.call("rms_norm", [x, self.fit(scale, 0, x.dims[-1])], x.dims, epsilon=epsilon, **parameters)

    def over(self, step: str, x: Value, places: Sequence[int], keep: bool, **parameters: Any) -> Value:
        """A sum, mean or maximum; along a dimension of size 1 it is x itself."""
        places = [p % len(x.dims) for p in places]
        if step == "logsumexp":
            x = self.merged(x, places)
        gone = [a for p in places for a in x.dims[p]]
        dims = [() if i in places else d for i, d in enumerate(x.dims)]
        made = self.call(step, [x], dims, over=lambda: self.letters(gone), **parameters) if gone else x
        made = made.seen(dims if keep else [d for i, d in enumerate(dims) if i not in places])
        made.origin = Origin(step, (x,), made.dims, tuple(places))
        return made

    def masked_by_constant(self, x: Value) -> bool:
        """Whether a mask of no argument puts something in the place of numbers."""
        return any(self.is_constant(v.came("where")[0]) for v in (x, *x.came("add")) if v.came("where"))

    def is_constant(self, x: Value) -> bool:
        """Whether it is of no argument."""
        if x.step is None:
            return x.number is not None or any(made.core is x.core for _, made in self.constants)
        return all(self.is_constant(v) for v in x.step.reads)

    def whether_any(self, mask: Value, places: Sequence[int], keep: bool) -> Value:
        made = self.over("max", self.truth(mask), places, keep)
        made.truth = True
        return made

    def along(self, step: str, x: Value, place: int, **parameters: Any) -> Value:
        place %= len(x.dims)
        x = self.merged(x, [place])
        axes = x.dims[place]
        if not axes:  # of one number
            return self.number(1).seen([()] * len(x.dims)) if step == "softmax" else x
        return self.call(step, [x], x.dims, over=lambda: self.letters(axes), **parameters)

    def cumprod(self, x: Value, place: int) -> Value:
        """A scan whose gates are the numbers, and whose only input is the first one."""
        x = self.merged(x, [place])
        axes = x.dims[place]
        if not axes:
            return x
        first = self.constant((np.arange(size_of(axes)) == 0).reshape([-1] + [1] * (len(x.dims) - 1 - place)))
        start = self.where(first, x, self.number(0))
        return self.call("linear_scan", [x, start], x.dims, over=lambda: self.letters(axes))

    def prod(self, x: Value, place: int) -> Value:
        """The product along a dimension, which stays with one number: of halves, each of which a kernel may store."""
        size = size_of(x.dims[place])
        while size > 1:
            half = size // 2
            first, second = self.slice(x, place, 0, half), self.slice(x, place, half, 2 * half)
            rest = [self.slice(x, place, 2 * half, size)] if size % 2 else []
            x, size = self.concatenate([self.together("mul", [first, second]), *rest], place), half + size % 2
        return self.renamed(x, [() if i == place else d for i, d in enumerate(x.dims)])

    def up_to(self, step: str, x: Value, place: int, **parameters: Any) -> Value:
        """The largest, or ln of the sum of e^x, of all up to each."""
        at = np.arange(size_of(x.dims[place]))
        x = self.ordered(x, [*(d for i, d in enumerate(x.dims) if i != place), x.dims[place]])
        shown = self.where(self.constant(at[:, None] >= at), x.seen([*x.dims[:-1], (), x.dims[-1]]), self.number(FAR))
        made = self.over(step, shown, [len(x.dims)], False, **parameters)
        return self.ordered(made, [*made.dims[:place], made.dims[-1], *made.dims[place:-1]])

    def solved(self, a: Value, b: Value, lower: bool, unit: bool) -> Value:
        """x of a x = b, of a triangular a [.., n, n]: with its diagonal taken out, the sum of the powers of what is left, which are 0 from the n-th on."""
        n = size_of(a.dims[-1])
        rank = [()] * (len(a.dims) - 2)
        at = np.arange(n)
        if not unit:
            diagonal = self.over("sum", self.where(self.constant(at[:, None] == at), a, self.number(0)), [len(a.dims) - 1], True)
            a, b = (self.together("div", [v, diagonal]) for v in (a, b))
        beside = self.constant((at[:, None] > at) if lower else (at[:, None] < at))
        power = self.together("neg", [self.where(beside.seen([*rank, *beside.dims]), a, self.number(0))])
        batch, reach = len(a.dims) - 2, 1
        while reach < n:
            b = self.together("add", [b, self.product(power, b, batch)])
            reach *= 2
            power = self.product(power, power, batch) if reach < n else power
        return b

    def normed(self, x: Value, places: Sequence[int], epsilon: float, weight: Value | None = None, bias: Value | None = None) -> Value:
        """(x - mean(x)) / sqrt(var(x) + epsilon) over several dimensions, times the weight plus the bias."""
        mean = self.over("mean", x, places, True)
        return self.centred(x, mean, self.over("mean", self.map("square", self.together("sub", [x, mean])), places, True), epsilon, weight, bias)

    def centred(self, x: Value, mean: Value, variance: Value, epsilon: float, weight: Value | None, bias: Value | None) -> Value:
        """As PyTorch computes norms: x times a factor plus what is left, which rounds more than (x - mean) / sqrt(variance) where the mean is large beside that."""
        factor = self.map("rsqrt", self.together("add", [variance, self.number(float(epsilon))]))
        factor = factor if weight is None else self.together("mul", [factor, weight])
        rest = self.together("mul", [mean, factor])
        rest = self.map("neg", rest) if bias is None else self.together("sub", [bias, rest])
        return self.together("add", [self.together("mul", [x, factor]), rest])

    def product(self, a: Value, b: Value, batch: int) -> Value:
        """[batch.., m, k] times [batch.., k, n]; each may lack its last ones."""
        along = list(range(batch))
        return self.contract(a, b, (along, along), ([len(a.dims) - 1], [batch]))

    def contract(self, a: Value, b: Value, batch: tuple[Sequence[int], Sequence[int]], over: tuple[Sequence[int], Sequence[int]]) -> Value:
        """The sum over pairs of dimensions, where others go along: those first, then the rest of a and of b."""
        if 0 in (a.number, b.number):  # a state before the first step
            return self.number(0).seen([()] * (len(a.dims) + len(b.dims) - len(batch[0]) - 2 * len(over[0])))
        if len(a.axes) + len(b.axes) - sum(len(a.dims[i]) for i in (*batch[0], *over[0], *over[0])) > MOST_AXES:
            a, b = (self.merged(v, range(len(v.dims))) for v in (a, b))
        for i, j in (*zip(*batch), *zip(*over)):
            if a.dims[i] and b.dims[j]:
                if any(x in roots(b.axes) and x not in roots(b.dims[j]) for x in roots(a.dims[i])):  # of others of b, as queries and keys of one tensor
                    a = self.renamed(a, [[Axis(x.size) for x in d] if n == i else d for n, d in enumerate(a.dims)])
                b = self.fit(b, j, a.dims[i])
            elif (i, j) in zip(*over) and (a.dims[i] or b.dims[j]):  # of size 1, where one has an axis for it, or the same number all along it
                a, b = (self.over("sum", v, [at], True) if v.dims[at] and size_of(v.dims[at]) > 1 else v for v, at in ((a, i), (b, j)))
                a, b = (self.renamed(v, [() if n == at else d for n, d in enumerate(v.dims)]) for v, at in ((a, i), (b, j)))
        paired = {x for j in (*batch[1], *over[1]) for x in roots(b.dims[j])}
        twice = [x for x in roots(b.axes) if x in roots(a.axes) and x not in paired]  # a tensor times itself, say
        if twice:
            b = self.renamed(b, [[Axis(x.size) if x.root() in twice else x for x in d] for d in b.dims])
        dims = [a.dims[i] or b.dims[j] for i, j in zip(*batch)]
        dims += [d for v, used in ((a, (*batch[0], *over[0])), (b, (*batch[1], *over[1]))) for i, d in enumerate(v.dims) if i not in used]
        if not any(a.dims[i] for i in over[0]):
            return self.ordered(self.call("mul", [a, b], single(axes_of([a, b]))), dims)
        a, b = (v.origin.operands[0] if v.origin is not None and v.origin.operator == "rearrange" and len(v.origin.operands[0].axes) == len(v.axes) else v
                for v in (a, b))  # the order of their axes is nothing to a product
        left, right = a.axes, b.axes
        axes = [x for d in dims for x in d]
        return self.call("product", [a, b], dims, lambda: f"{self.letters(left)},{self.letters(right)}->{self.letters(axes)}")

    def reshape(self, x: Value, shape: Sequence[int], whole: bool = False) -> Value:
        """Axes are merged without a step; where one is split the tensor gets new ones. whole: each dimension is one axis."""
        if x.number is not None and not whole:
            return x.seen([()] * len(shape))
        atoms, dims, i, split = x.axes, [], 0, False  # type: list[Axis], list[Sequence[Axis]], int, bool
        place = 0
        while place < len(shape):
            group, count, n, first = [], 1, shape[place], place  # type: list[Axis], int, int, int
            while count != n or (n == 1 and whole and not group):
                if count < n or (n == 1 and i < len(atoms) and atoms[i].size == 1):
                    if i == len(atoms):
                        break
                    group.append(atoms[i])
                    count *= atoms[i].size
                    i += 1
                    continue
                if n == 1:
                    break
                place += 1
                n *= shape[place]
            if place == len(shape) - 1:  # axes of size 1 that are left
                group += atoms[i:]
            if first == place and not (whole and len(group) != 1):
                dims.append(tuple(group))
            else:
                split = True
                dims += [(Axis(m),) for m in shape[first : place + 1]]
            place += 1
        if not split and (len(shape) > 0 or not atoms):
            return x.seen(dims)
        axes = [a for d in dims for a in d]
        return self.call("reshape", [x], dims, lambda: self.letters(axes))

    def slice(self, x: Value, place: int, first: int, end: int) -> Value:
        place %= len(x.dims)
        size = size_of(x.dims[place])
        if (first == 0 and end >= size) or (x.number is not None and first < end):
            return x
        if first >= min(end, size):
            return self.nowhere("slice", [x], [(Axis(0),) if i == place else d for i, d in enumerate(x.dims)], "a tensor without numbers")
        joined, start = x.came("concatenate"), 0
        for part_of in joined if joined and x.origin is not None and x.origin.places == (place,) else ():  # a part of those that are one behind the other
            count = size_of(part_of.dims[place])
            if (start, start + count) == (first, min(end, size)):
                return part_of
            start += count
        x = self.merged(x, [place])
        axis, part = x.dims[place][0], Axis(min(end, size) - first)
        dims = [(part,) if i == place else d for i, d in enumerate(x.dims)]
        begins = {"first": first} if first > 0 else {}
        made = self.call("slice", [x], dims, lambda: f"{self.letters([axis])}->{self.letters([part])}", **begins)
        made.origin = Origin("slice", (x,), made.dims, (place, first))
        return made

    def every(self, x: Value, place: int, first: int, step: int) -> Value:
        """Each step'th index from `first` on."""
        size = size_of(x.dims[place])
        if size % step or first >= step:
            last = first + (size - first - 1) // step * step  # by itself: none is behind it
            alone = self.slice(x, place, last, last + 1)
            return self.concatenate([self.every(self.slice(x, place, first, last), place, 0, step), alone], place) if last > first else alone
        pairs = (Axis(size // step), Axis(step))
        x = self.renamed(x, [*x.dims[:place], pairs[:1], pairs[1:], *x.dims[place + 1 :]])
        x = self.slice(x, place + 1, first, first + 1)
        return self.renamed(x, [*x.dims[: place + 1], (), *x.dims[place + 2 :]]).seen([*x.dims[: place + 1], *x.dims[place + 2 :]])

    def tiled(self, x: Value, times: Sequence[int]) -> Value:
        """The whole as often behind itself along each dimension."""
        x = x.seen([()] * (len(times) - len(x.dims)) + list(x.dims))
        return self.ordered(x, [(*([Axis(n)] if n > 1 else []), *d) for n, d in zip(times, x.dims)])

    def flipped(self, x: Value, place: int) -> Value:
        """From the end on."""
        order = [place, *(i for i in range(len(x.dims)) if i != place)]
        made = self.rows(self.ordered(x, [x.dims[i] for i in order]), self.constant(np.arange(size_of(x.dims[place]))[::-1], anew=True))
        return self.ordered(made, [made.dims[order.index(i)] for i in range(len(order))])

    def rolled(self, x: Value, place: int, by: int) -> Value:
        """What leaves a dimension at its end comes in at its beginning."""
        size = size_of(x.dims[place])
        first = -by % size
        return self.concatenate([self.slice(x, place, first, size), self.slice(x, place, 0, first)], place) if first else x

    def top_k(self, x: Value, count: int) -> Value:
        """The indices of the largest along the last dimension."""
        x = self.merged(x, [len(x.dims) - 1])
        if not x.dims[-1]:  # the best of one
            return self.number(0).seen([()] * len(x.dims))
        whole, part = x.dims[-1][0], Axis(count)
        self.sorts(x)
        made = self.call("top_k", [x], [*x.dims[:-1], (part,)], lambda: f"{self.letters([whole])}->{self.letters([part])}")
        self.steps[-1].alone = made.integer = True
        return made

    def argsort(self, x: Value) -> Value:
        """Where whole numbers along a dimension stand in their order."""
        axis = self.fresh(size_of(x.dims[0]))
        made = self.call("argsort", [self.indices(x)], [axis], lambda: self.letters(axis))
        made.integer = True
        return made

    def grouped_product(self, x: Value, w: Value, sizes: Value) -> Value:
        """Rows of x, group after group, by the matrix of their group."""
        x, w = self.merged(x, [0, 1]), self.merged(w, [0, 1, 2])
        if not all((*x.dims, *w.dims)):
            raise lib.BadInput("a grouped product along a dimension of size 1")
        if any(a in roots(x.dims[0]) + roots(x.dims[1]) for a in roots([*w.dims[0], *w.dims[2]])):
            w = self.renamed(w, [self.fresh(size_of(w.dims[0])), w.dims[1], self.fresh(size_of(w.dims[2]))])
        w = self.fit(w, 1, x.dims[1])
        if id(sizes.core) in self.counted:
            index, axis = self.counted[id(sizes.core)]
            sizes = self.call("bincount", [self.indices(index)], [(axis,)], lambda: self.letters([axis]))
            sizes.integer = True
        self.group_sizes.add(id(sizes.core))
        sizes = self.fit(self.indices(sizes), 0, w.dims[0])
        left, right, dims = x.axes, w.axes, [x.dims[0], w.dims[2]]
        return self.call("grouped_product", [x, w, sizes], dims, lambda: f"{self.letters(left)},{self.letters(right)}->{self.letters([a for d in dims for a in d])}")

    def rows(self, table: Value, index: Value) -> Value:
        """Rows of the first dimension."""
        if index.number is not None:
            row = self.slice(table, 0, int(index.number), int(index.number) + 1)
            return self.renamed(row, [(), *row.dims[1:]]).seen([*index.dims, *row.dims[1:]])
        table = self.merged(table, [0])
        index = self.indices(index, size_of(table.dims[0]))
        return self.call("gather", [table, index], [*index.dims, *table.dims[1:]])

    def chosen(self, x: Value, guard: Guard, columns: Sequence[int], first: int) -> Value:
        """Rows of x that a mask chooses: dimensions of x from the first on are those of the mask in these columns."""
        for i, column in enumerate(columns, first):
            if size_of(x.dims[i]) != size_of(guard.mask.dims[column]):
                raise lib.BadInput("rows of the mask are others than those of the tensor")
            x = self.fit(x, i, guard.mask.dims[column])
        made = self.ordered(x, [*x.dims[:first], guard.axes, *x.dims[first + len(columns) :]])
        made = made.seen(made.dims)
        made.guards |= {guard}
        return made

    def added_up(self, rows: Value, guard: Guard, column: int) -> Value:
        """By the index that this column has."""
        rows = self.fit(rows, 0, guard.axes)
        rows = self.where(guard.mask.seen([guard.axes, *[()] * (len(rows.dims) - 1)]), rows, self.number(0))
        rows = self.ordered(rows, [*guard.mask.dims, *rows.dims[1:]])
        rows.guards -= {guard}
        return self.over("sum", rows, [i for i in range(len(guard.mask.dims)) if i != column], False)

    def indices(self, index: Value, rows: int = 0) -> Value:
        index = self.passed_over(index) or index
        if index.integer and not index.inverted:
            self.rows_of[id(index.core)] = max(rows, self.rows_of.get(id(index.core), 0))
            return index
        if not (index.whole or index.integer):
            raise lib.BadInput("numbers as whole numbers")
        made = self.call("index", [self.numbers(index)], index.dims)
        made.integer = True
        return made

    def passed_over(self, index: Value) -> Value | None:
        """labels, of where(labels == -100, 0, labels): as an index -100 is no row in a program."""
        if index.number is not None or index.origin is None or index.origin.operator != "where":
            return None
        for v in index.origin.operands[1:]:
            labels = v.origin.operands[0] if v.origin is not None and v.origin.operator == "float" else v
            if labels.integer and any(n < 0 for n in self.compared.get(id(labels.core), ())) and roots(labels.axes) == roots(index.axes):
                return labels.seen(index.dims)
        return None

    def range_of(self, v: Value, integers: "np.ndarray[Any, Any] | str") -> str:
        """From the least to the largest of the example, but for what is passed over; as indices from 0 on. One number alone says nothing of a range."""
        if isinstance(integers, str):
            return integers
        numbers, rows = integers, self.rows_of.get(id(v.core), 0)
        for n in self.compared.get(id(v.core), ()):
            numbers = numbers[numbers != n] if n < 0 or n > np.max(numbers[numbers != n], initial=0) else numbers
        least, most = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
        if v.truth or (least == most and least in (0, 1) and not rows):
            return "[0, 1]"
        if least == most:
            return f"[{min(least, 0)}, {max(most, rows - 1)}]" if rows else f"[{least}, {most + 1}]"
        return f"[{min(least, 0) if rows else least}, {most}]"

    def fill_of(self, v: Value, integers: "np.ndarray[Any, Any] | str | None", fill: Mapping[str, Any]) -> Mapping[str, Any]:
        if fill or isinstance(integers, str):
            return fill
        if integers is not None and id(v.core) in self.group_sizes:
            return {"values": integers.ravel().tolist()}
        if id(v.core) not in self.distinct:
            return {}
        if integers is not None:
            return {"distribution": "experts", "high": self.distinct[id(v.core)] - 1}
        return {"values": distinct_rows([a.root().size for a in v.axes])}

    def as_in_example(self, x: Value) -> None:
        while x.step is not None and x.step.base in ("slice", "reshape", "float"):
            x = x.step.reads[0]
        self.group_sizes.add(id(x.core))

    def sorts(self, x: Value) -> None:
        """Equal numbers of a row may come out in either order, each with the other's gradient: so those of an argument are drawn as different ones."""
        while x.step is not None and x.step.base in ("neg", "reshape", "rearrange", "mul", "add", "sub", "float"):
            x = next((v for v in x.step.reads if v.number is None), x.step.reads[0])
        if x.step is None and x.flows and x.axes and MOST >= size_of(x.axes):
            self.distinct[id(x.core)] = 0

    def note(self, name: str, v: Value, fill: Mapping[str, Any]) -> str:
        over = [n for n in self.compared.get(id(v.core), ()) if n < 0 and not fill]
        return f"  # a quarter of them is {over[-1]}" if over else "  # no gradient: a cast to fp8 is on its way" if name in self.narrowed else ""

    def scatter_add(self, x: Value, index: Value, size: int) -> Value:
        """Rows of x, whose first dimensions are those of the index, added up by their index."""
        if x.number is not None:  # how often there is each
            count = self.over("sum", self.one_hot(index, len(index.dims), Axis(size)), range(len(index.dims)), False)
            self.counted[id(count.core)] = index, Axis(size)
            return count if x.number == 1 else self.together("mul", [count, x])
        index = self.indices(index, size)
        if not index.axes or not all(index.dims):
            raise lib.BadInput("expected indices of whole dimensions")
        for i, d in enumerate(index.dims):
            x = self.fit(x, i, d)
        whole = Axis(size)
        return self.call("scatter_add", [x, index], [(whole,), *x.dims[len(index.dims) :]], lambda: self.letters([whole]))

    def scattered(self, x: Value, index: Value, given: Value, size: int, adds: bool) -> Value:
        """x with numbers at the indices of its last dimension, which are different ones of a row."""
        if given.number is None and not adds and not self.differ(index) and not self.made_distinct(index, size):
            raise lib.BadInput("an index may stand twice in a row, expected the indices of top_k")
        last = len(index.dims) - 1
        axis = x.dims[-1][0] if x.dims and len(x.dims[-1]) == 1 else Axis(size)
        hot = self.one_hot(index if index.number is not None else self.indices(index, size), last + 1, axis)
        if given.number is not None and not adds:
            found = self.over("max", hot, [last], False)
            return self.where(found, given, x)
        numbers = self.together("mul", [hot, given.seen([*given.dims, ()]) if given.number is None else given])
        made = self.over("sum", numbers, [last], False)
        if not adds:
            found = self.over("max", hot, [last], False) if x.number != 0 else hot
            return made if x.number == 0 else self.where(found, made, x)
        return made if x.number == 0 else self.together("add", [x, made])

    def differ(self, index: Value) -> bool:
        """Whether no index stands twice in a row: of a choice, of one in each row, or of known ones."""
        last = index.dims[-1] if index.dims else ()
        if size_of(last) == 1 or (index.step is not None and index.step.base == "top_k" and roots(last) == roots(index.step.axes[-1:])):
            return True
        if any(v.core is index.core for v in self.places):
            return True
        known = [array for array, value in self.constants if value.core is index.core and roots(value.axes[-1:]) == roots(last)]
        return bool(known) and all(len(set(row)) == len(row) for row in known[0].reshape(-1, known[0].shape[-1]).tolist())

    def pick(self, x: Value, index: Value) -> Value:
        """Of each row of x the numbers at its indices."""
        x = self.merged(x, [len(x.dims) - 1])
        if index.number is not None:  # the same of each row
            found = self.slice(x, len(x.dims) - 1, int(index.number), int(index.number) + 1)
            found = self.renamed(found, [*found.dims[:-1], ()])
            return found if len(index.dims) == len(found.dims) else found.seen(found.dims[:-1])
        index = self.indices(index, size_of(x.dims[-1]))
        for i in range(len(x.dims) - 1):
            if i < len(index.dims) and size_of(x.dims[i]) == size_of(index.dims[i]):
                x = self.fit(x, i, index.dims[i])
        rows = x.axes[:-1]
        if len(index.axes) < len(rows) or not all([self.unify(a, b) for a, b in zip(rows, index.axes)]):
            raise lib.BadInput("rows of the indices are others than those of the tensor")
        made = self.call("pick", [x, index], index.dims)
        made.origin = Origin("pick", (x, index), made.dims)
        return made

    def windows(self, x: Value, place: int, size: int, stride: int = 1, dilation: int = 1, around: tuple[int, int] = (0, 0), fill: float = 0.0) -> Value:
        """What each window of a dimension holds, as a dimension behind it."""
        x = self.padded(x, place, *around, fill) if around != (0, 0) else x
        have, reach = size_of(x.dims[place]), dilation * (size - 1)
        count = (have - reach - 1) // stride + 1
        if count < 1:
            raise lib.BadInput(f"a window of {reach + 1} in {have} numbers")
        if size == stride and dilation == 1:
            x = self.slice(x, place, 0, count * size)
            dims = [(Axis(n),) if n > 1 else () for n in (count, size)]
            return self.renamed(x, [*x.dims[:place], *dims, *x.dims[place + 1 :]])
        more = reach + count * stride - have
        x = self.padded(x, place, 0, more, fill) if more > 0 and stride > 1 else x
        parts = []
        for first in range(0, reach + 1, dilation):
            part = self.slice(x, place, first, first + (count if stride == 1 else count * stride))
            part = part if stride == 1 else self.every(part, place, 0, stride)
            parts.append(part.seen([*part.dims[: place + 1], (), *part.dims[place + 1 :]]))
        return self.concatenate(parts, place + 1)

    def convolution(self, x: Value, w: Value, stride: Sequence[int], dilation: Sequence[int], around: Sequence[tuple[int, int]], groups: int) -> Value:
        """x [batch, channels, ..], w [channels of the result, channels of a group, ..]: the windows of x by w; of each channel with those before it a step."""
        rank, (channels, *taps) = len(stride), (size_of(d) for d in w.dims[1:])
        self.lone(taps)
        alone = (rank, groups, size_of(x.dims[1]), channels, *stride, *dilation) == (1, size_of(w.dims[0]), size_of(w.dims[0]), 1, 1, 1)
        if alone and taps[0] > 1 and around[0] == (taps[0] - 1, 0):
            return self.causal(x, w)
        x = self.reshape(x, [size_of(x.dims[0]), groups, channels, *(size_of(d) for d in x.dims[2:])])
        w = self.reshape(w, [groups, size_of(w.dims[0]) // groups, channels, *taps])
        for i in reversed(range(rank)):
            x = self.windows(x, 3 + i, taps[i], stride[i], dilation[i], around[i])
        places = [4 + 2 * i for i in range(rank)]
        made = self.contract(x, w, ([1], [0]), ([2, *places], [2, *range(3, 3 + rank)]))  # groups, batch, .., channels
        return self.ordered(made, [made.dims[1], made.dims[0] + made.dims[-1], *made.dims[2:-1]])

    def lone(self, taps: Sequence[int]) -> None:
        if sum(n > 1 for n in taps) > 1:
            raise lib.BadInput("a program has windows along one dimension alone: 2-D and 3-D convolutions and pooling are none of its steps")

    def causal(self, x: Value, w: Value) -> Value:
        """x [batch, channels, time], w [channels, 1, taps]"""
        made = self.causal_conv(self.ordered(x, [x.dims[i] for i in (0, 2, 1)]), self.renamed(w, [w.dims[0], (), w.dims[2]]).seen([w.dims[0], w.dims[2]]))
        return self.ordered(made, [made.dims[i] for i in (0, 2, 1)])

    def pooled(self, step: str, x: Value, sizes: Sequence[int], stride: Sequence[int], dilation: Sequence[int], around: Sequence[tuple[int, int]]) -> Value:
        """The sum, mean or maximum of windows of the last dimensions."""
        self.lone(sizes)
        rank = len(sizes)
        first = len(x.dims) - rank
        for i in reversed(range(rank)):
            x = self.windows(x, first + i, sizes[i], stride[i], dilation[i], around[i], self.far if step == "max" else 0.0)
        return self.over(step, x, [first + 1 + 2 * i for i in range(rank)], False)

    def spread(self, x: Value, place: int, stride: int) -> Value:
        """With stride - 1 zeros between numbers."""
        have = size_of(x.dims[place])
        if stride == 1:
            return x
        x = self.padded(x.seen([*x.dims[: place + 1], (), *x.dims[place + 1 :]]), place + 1, 0, stride - 1, 0.0)
        x = x.seen([*x.dims[:place], x.dims[place] + x.dims[place + 1], *x.dims[place + 2 :]])
        return self.slice(x, place, 0, (have - 1) * stride + 1)

    def causal_conv(self, x: Value, w: Value) -> Value:
        """x [.., time, channels], w [channels, taps]"""
        last = len(x.dims) - 1
        x, w = self.merged(x, [last - 1, last]), self.merged(w, [0, 1])
        return self.call("causal_conv", [x, self.fit(w, 0, x.dims[last])], x.dims)

    def concatenate(self, parts: Sequence[Value], place: int) -> Value:
        place %= len(parts[0].dims)
        made: list[Value] = []
        parts = [v for v in parts if size_of(v.dims[place]) > 0]
        if len(parts) == 1:
            return parts[0]
        if len(parts) > MOST_PARTS:
            return self.concatenate([self.concatenate(parts[i : i + MOST_PARTS], place) for i in range(0, len(parts), MOST_PARTS)], place)
        for v in parts:
            v = self.merged(v, [place])
            if not v.dims[place]:
                v = self.renamed(v, [(Axis(1),) if i == place else d for i, d in enumerate(v.dims)])
            for i in range(len(v.dims)):
                if made and i != place:
                    v = self.fit(v, i, made[0].dims[i])
            made.append(v)
        of = [v.dims[place][0] for v in made]
        parts = made
        whole = Axis(sum(a.size for a in of))
        dims = [(whole,) if i == place else d for i, d in enumerate(made[0].dims)]
        joined = self.call("concatenate", made, dims, lambda: f"{','.join(self.letters([a]) for a in of)}->{self.letters([whole])}")
        joined.origin = Origin("concatenate", tuple(parts), joined.dims, (place,))
        return joined

    def written(self, x: Value, shape: Sequence[int], place: int, first: int, part: Value) -> Value:
        """x with another part of a dimension, from its index `first` on."""
        size = size_of(part.dims[place])
        x, part = (self.ordered(v, [d or (() if n == 1 else self.fresh(n)) for d, n in zip(v.dims, shape if v is x else [*shape[:place], size, *shape[place + 1 :]])])
                   if v.refused == "" else v for v in (x, part))
        around = [self.slice(x, place, 0, first) if first > 0 else None, part, self.slice(x, place, first + size, shape[place]) if first + size < shape[place] else None]
        return self.concatenate([v for v in around if v is not None], place)

    def padded(self, x: Value, place: int, before: int, behind: int, number: float) -> Value:
        shape = [size_of(d) for d in x.dims]
        x = self.slice(x, place, max(0, -before), shape[place] - max(0, -behind))
        def fill(n: int) -> list[Value]:
            dims = [self.fresh(n) if i == place else d for i, d in enumerate(x.dims)]
            return [self.ordered(self.number(number), dims)] if n > 0 else []

        made = self.concatenate([*fill(before), x, *fill(behind)], place)
        if number == 0 and behind == 0 < before:
            made.origin = Origin("pad", (x,), made.dims, (place, before))
        return made

    def attended(self, values: Sequence[Value], kinds: Sequence[str], masked: bool) -> tuple[list[Value], list[str]]:
        """Operands of attention and their axes, of masks and biases those that are not 1. By a mask keys have an axis of their own."""
        made = [self.renamed(v, [d or self.fresh(1) for d in v.dims]) for v in values[:3]]
        apart = masked or size_of(values[0].dims[1]) != size_of(values[1].dims[1]) or "mask" in kinds or "bias" in kinds or kinds.count("segments") > 1
        if apart and roots(made[0].dims[1]) == roots(made[1].dims[1]):
            made[1] = self.renamed(made[1], [self.fresh(size_of(d)) if i == 1 else d for i, d in enumerate(made[1].dims)])
        keys = "T" if apart else "S"
        words = ["BSNH", f"B{keys}KH", f"B{keys}KV"]
        if apart:
            self.tensors.append([*made[0].dims[1], *made[1].dims[1]])
        for v, kind in zip(values[3:], kinds):
            if kind in ("mask", "bias"):
                v = self.truth(v) if kind == "mask" else self.numbers(v)
                v = self.ordered(v, [made[1].dims[1]]) if not any(v.dims) else v
                whole = [made[0].dims[0], made[0].dims[2], made[0].dims[1], made[1].dims[1]]  # B, N, S, T
                kept = [i for i in range(-len(v.dims), 0) if v.dims[i] and (size_of(v.dims[i]) > 1 or size_of(whole[i]) == 1)]
                v, word = self.renamed(v, [v.dims[i] for i in kept]), "".join("BNST"[i] for i in kept)
                if len(v.dims) > 4 or any(size_of(v.dims[at]) != size_of(whole[i]) for at, i in enumerate(kept)):
                    raise lib.BadInput(f"expected a {kind} of the axes B, N, S and T, or the last of them")
                v = self.call("div", [v, self.number(1)], v.dims) if kind == "bias" and v.whole else v  # no mask, though it follows from whole numbers
            else:
                word = "N" if kind == "sinks" else "BT" if "BS" in words else "BS"  # segments of queries go first
            made.append(v)
            words.append(word)
        return made, words

    def step(self, name: str, values: Sequence[Value], parameters: Mapping[str, Any], kinds: Sequence[str] = ()) -> Value:
        """What `assay.step` says; kinds of what attention has behind the value."""
        self.stands_alone = True
        if name == "linear_scan":  # repeated along what they lack
            rank = max(len(v.dims) for v in values)
            values = [v.seen([*[()] * (rank - len(v.dims)), *v.dims]) for v in values]
            pairs = [list(zip(v.dims, values[1 - i].dims)) for i, v in enumerate(values)]
            values = [self.renamed(v, [() if size_of(d) == 1 != size_of(other) else d for d, other in pair]) for v, pair in zip(values, pairs)]
            values = [self.ordered(v, [d or other for d, (_, other) in zip(v.dims, pair)]) for v, pair in zip(values, pairs)]
            parameters = {"over": lambda: self.letters(axes["T"])}
        given, out = NAMED[name].split("->")
        words = given.split(",")[: len(values)]
        if name.startswith("attention") and all(len(v.dims) == 4 for v in values[:3]):
            parameters = {key: x for key, x in parameters.items() if x and (key, x) != ("mask", "causal")}
            values, words = self.attended(values, kinds, bool({"mask", "chunk", "prefix"} & set(parameters)))
        if len(values) > len(words):
            raise lib.BadInput(f"expected operands of {NAMED[name].replace('*', '..')}")
        more = "*" * (len(values[0].dims) - len(words[0].strip("*")))
        axes: dict[str, tuple[Axis, ...]] = {}
        operands = []
        for v, word in zip(values, words):
            letters = [f"*{i}" for i in range(len(more))] * ("*" in word) + list(word.strip("*"))
            v = self.merged(v, range(len(v.dims)))
            if len(letters) != len(v.dims):
                raise lib.BadInput(f"expected operands of {NAMED[name].replace('*', '..')}")
            for i, letter in enumerate(letters):
                v = self.fit(v, i, axes[letter]) if letter in axes else v
                axes.setdefault(letter, v.dims[i])
            operands.append(v)
        made = self.call(name, operands, [axes[x] for x in [f"*{i}" for i in range(len(more))] * ("*" in out) + list(out.strip("*"))], None, **parameters)
        self.steps[-1].coded = name == "quantise"
        return made

    # the program

    def output(self, name: str, value: Value, shape: Sequence[int], dtype: str, outputs: list[tuple[str, Value]]) -> None:
        """A result of the function."""
        if value.integer and value.step is not None and value.step.base == "top_k":
            self.choices[name] = value  # a result by itself
            return
        if dtype in HALVES:
            self.halves.append(name)
        if dtype in CODES:
            self.types[name] = dtype
            value = value.came("cast")[0] if value.came("cast") else value
        if value.number is None and not value.refused and (value.whole or value.integer) and (dtype == "bool" or "int" in dtype):
            value = self.indices(value if value.step is not None and not value.mask else self.numbers(value))
        if value.number is not None or (value.step is None and not value.refused and not value.flows):
            raise lib.BadInput(f"{self.at}: {name} {'depends on no argument' if value.number is not None else 'is an argument of whole numbers'}, expected what is computed of tensors")
        if value.guards:
            raise lib.BadInput(f"{self.at}: {name} has rows that a mask chooses: how many they are no program knows")
        if value.step is None and not value.refused:  # an argument as it is
            value = self.together("mul", [value, self.number(1)])
        outputs.append((name, value if value.refused or all(len(d) == 1 for d in value.dims) else self.reshape(value, shape, True)))

    @property
    def at(self) -> str:
        return said_place(place_of(self.function))

    def fuse(self, outputs: Sequence[tuple[str, Value]]) -> list[Step]:
        """Angles of positions and the like: what only whole numbers make, and only such read, stays in registers."""
        readers: dict[int, list[Step]] = {}
        for step in self.steps:
            for v in step.reads:
                readers.setdefault(id(v.step), []).append(step)
        shown = {id(v.step) for _, v in outputs}
        within = [s for s in self.steps if s.known and not s.exact and id(s) not in shown and all(r.known for r in readers.get(id(s), []))]
        for step in within:
            step.fused = any(r not in within for r in readers.get(id(step), []))
        return within

    def needed(self, wanted: list[Value]) -> tuple[set[int], str]:
        """The steps behind these values, and why one of them cannot be had."""
        found: set[int] = set()
        while wanted:
            value = wanted.pop()
            if value.refused:
                return found, value.refused
            if value.step is not None and id(value.step) not in found:
                found.add(id(value.step))
                wanted += value.step.reads
        return found, ""

    def live(self, outputs: Sequence[tuple[str, Value]]) -> list[Step]:
        """What the outputs need, and lines that stand alone."""
        found, refused = self.needed([value for _, value in outputs] + [*self.choices.values()])
        if refused:
            raise lib.BadInput(refused)
        return [step for step in self.steps if id(step) in found]

    def behind_narrow_casts(self) -> set[str]:
        """The arguments that numbers of fp8 are made of."""
        read: set[int] = set()
        for step in reversed(self.steps):
            if step.base == "cast" or id(step) in read:
                read |= {id(v.core if v.step is None else v.step) for v in step.reads if v.flows}
        return {path.split("/")[1] for path, v, _ in self.inputs if id(v.core) in read}

    def put_constants(self, outputs: Sequence[tuple[str, Value]]) -> None:
        """Those that are read have the first names."""
        read = {id(v.core) for v in [*(v for s in self.steps for v in s.reads), *(v for _, v in outputs)]}
        names = list(self.called)
        free = {stem: iter([name for name in names if name.startswith(stem)]) for stem in ("constant", "frequencies")}
        for number, (_, value) in enumerate(self.constants):
            if id(value.core) in read:
                self.called[number] = next(free["frequencies" if names[number].startswith("f") else "constant"])
        paths = {"inputs/" + name: number for number, name in enumerate(names)}
        self.inputs = [(path if path not in paths else "inputs/" + self.called[paths[path]], v, i) for path, v, i in self.inputs
                       if path not in paths or id(self.constants[paths[path]][1].core) in read]

    def put_letters(self, hints: Mapping[str, str]) -> list[Axis]:
        taken: dict[str, Axis] = {}
        for path, value, _ in self.inputs:
            for axis, letter in zip(value.axes, hints.get(path.split("/")[1], "").replace(" ", "")):
                root, first = axis.root(), taken.get(letter)
                if first is not None and first.size != root.size:
                    raise lib.BadInput(f"{self.at}: the axis {letter} of {path} is {root.size}, and {first.size} of another argument")
                if first is None and root.letter == "":  # two that meet each other, as queries and keys: the second has a letter of its own
                    taken[letter], root.letter = root, letter
        used: list[Axis] = []
        seen: set[int] = set()
        for axes in [*(v.axes for _, v, _ in self.inputs), *([*(a for v in s.reads for a in v.axes), *s.axes] for s in self.steps)]:
            for root in roots(axes):
                used += [] if id(root) in seen else [root]
                seen.add(id(root))
        free = [c for c in LETTERS if c not in taken]
        few = self.beside(used) if len([r for r in used if r.letter == ""]) > len(free) else None
        for root in used:
            if root.letter == "":
                again = next((r for r in used if r.letter and r.same is None and r.size == root.size and id(r) not in few[id(root)]), None) if few is not None else None
                if again is None and not free:
                    raise lib.BadInput(f"{self.at}: {len(used)} axes of their own, of which more than {len(LETTERS)} meet")
                root.letter = free.pop(0) if again is None else again.letter
                if few is not None and again is not None:
                    few[id(again)] |= few[id(root)]
                    for other in few[id(root)]:
                        few[other].add(id(again))
                    root.same = again
        return [root for root in used if root.same is None]

    def beside(self, used: Sequence[Axis]) -> dict[int, set[int]]:
        """Of each axis those that are in one step with it."""
        found: dict[int, set[int]] = {id(root): set() for root in used}
        for axes in [*([*s.axes, *(a for v in s.reads for a in v.axes)] for s in self.steps), *(v.axes for _, v, _ in self.inputs)]:
            met = {id(root) for root in roots(axes)}
            for one in met:
                if one in found:
                    found[one] |= met - {one}
        return found

    def put_names(self, outputs: Sequence[tuple[str, Value]]) -> None:
        """A step that a variable is assigned to is called as that, if nothing else is."""
        taken = {path.split("/")[1] for path, _, _ in self.inputs} | {name for name, _ in outputs}
        variables = {step.place: step for step in self.steps}  # the last one of a line
        for step in self.steps:
            match = re.match(r"\s*([A-Za-z_]\w*)\s*(?::[^=]*)?=[^=]", linecache.getline(*step.place))
            if match and len(match[1]) <= LONGEST_NAME and variables[step.place] is step and (match[1] not in taken or any(match[1] == name and v.step is step for name, v in outputs)):
                step.name = match[1]
                taken.add(step.name)
        for step in self.steps:
            second = re.match(r"\s*[A-Za-z_]\w*\s*,\s*([A-Za-z_]\w*)\s*=[^=]", linecache.getline(*step.place))
            if step.alone and second and len(second[1]) <= LONGEST_NAME and second[1] not in taken:  # the values of the best, and their indices
                step.name = second[1]
                taken.add(step.name)
        for step in self.steps:
            name, number = step.base, 1
            while step.name == "" and name in taken:
                number += 1
                name = f"{step.base}{number}"
            if step.name == "":
                step.name = name if step.alone or step.fused or step.coded else "_" + name
                taken.add(name)

    def yaml(self, outputs: Sequence[tuple[str, Value]], hints: Mapping[str, str], fills: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str], dict[int, tuple[str, int]]]:
        """The lines of the case file, the steps that stay in registers, and of which line of the function each line is."""
        self.steps = self.live(outputs)
        self.narrowed = self.behind_narrow_casts() if self.casts == "drop" else set()
        self.put_constants(outputs)
        self.floats = {self.called[i]: array for i, (array, made) in enumerate(self.constants) if array.dtype.kind == "f" and any(v.core is made.core for _, v, _ in self.inputs)}
        fills = {**fills, **{name: {"values": array.flatten().tolist()} for name, array in self.floats.items()}}
        used = self.put_letters(hints)
        within = self.fuse(outputs)
        self.put_names(outputs)
        texts = {step.name: step.text() for step in self.steps}
        results = {name: value.text() for name, value in outputs}
        closed = {step.name for step in self.steps if step.stores}
        inline(texts, results, {step.name for step in self.steps if step.alone or step.fused or step.jumped} | closed, {step.name for step in self.steps if step.coded}, closed)
        self.stored = sorted(closed & set(texts))
        kept = [step for step in self.steps if step.name in texts]
        words = set(re.findall(r"\b\w+\b(?!=)", re.sub(r'"[^"]*"', "", " ".join([*texts.values(), *results.values()]))))
        unread = [path.split("/")[1] for path, _, _ in self.inputs if path.split("/")[1] not in words]  # as output buffers are
        self.inputs = [(path, v, i) for path, v, i in self.inputs if path.split("/")[1] in words]
        letters = set("".join(self.letters(v.axes) for _, v, _ in self.inputs) + "".join(self.letters(s.axes) for s in kept))
        quotes = re.findall(r'"([^"]*)"', "".join([*texts.values(), *results.values()]))
        letters |= set(re.sub(r"[^A-Za-z]", "", "".join(word for word in quotes if not re.search(r"\d", word))))  # no types
        lines = [f"case: {self.name}" + (f"  # no result depends on {', '.join(unread)}" if unread else ""), "op: program",
                 "sizes: {" + ", ".join(f"{r.letter}: {r.size}" for r in used if r.letter in letters) + "}"]
        for folder in ("inputs", "weights"):
            block = [f"  {path.split('/')[1]}: {{axes: [{', '.join(self.letters(v.axes))}]{', integers: ' + self.range_of(v, i) if i is not None else ''}"
                     f"{''.join(f', {key}: {json.dumps(value)}' for key, value in self.fill_of(v, i, fills.get(path.split('/')[1], {})).items())}}}{self.note(path.split('/')[1], v, fills.get(path.split('/')[1], {}))}"
                     for path, v, i in self.inputs if path.startswith(folder)]
            lines += [f"{folder}:" + ("" if block else " {}")] + block
        places = {len(lines) + 2 + i: step.place for i, step in enumerate(kept)}
        lines += ["steps:" + ("" if kept else " {}")] + [f"  {s.name}: {quoted(texts[s.name])}" for s in kept]
        places.update({len(lines) + 2 + i: value.step.place for i, (_, value) in enumerate(outputs) if value.step is not None})
        lines += ["outputs:"] + [f"  {name}: {quoted(text)}" for name, text in results.items()]
        return lines, [step.name for step in kept if step in within], places


def distinct_rows(shape: Sequence[int]) -> list[float]:
    """Numbers as normal ones of which bfloat16 has each: of up to 2240 in a row none stands twice."""
    draw = np.random.default_rng(list(shape))
    bits = np.arange(0x3C00, 0x4060, dtype=np.uint32)  # from 2^-7 to 3.5
    sizes = (bits << 16).view(np.float32).astype(np.float64)
    weights = np.exp(-sizes * sizes / 2) * np.gradient(sizes)
    grid, share = np.concatenate([sizes, -sizes]), np.concatenate([weights, weights]) / (2 * weights.sum())
    rows = [draw.choice(grid, shape[-1], shape[-1] > len(grid), share) for _ in range(math.prod(shape[:-1]))]
    return [float(x) for x in np.concatenate(rows)]


def unrepeated(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    for i in range(array.ndim):
        if (array == array.take([0], i)).all():
            array = array.take([0], i)
    return array


def is_whole(array: "np.ndarray[Any, Any]") -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array).all() and (array == np.rint(array)).all() and np.abs(array).max() < 2**31)


def is_table(array: "np.ndarray[Any, Any]") -> bool:
    """Whether a constant is data of the program: neither a few numbers, nor whole ones, nor a mask that is added."""
    return array.size > FEW and array.dtype.kind == "f" and not is_whole(array) and len(np.unique(array)) > 2


def size_of(dim: Sequence[Axis]) -> int:
    count = 1
    for a in dim:
        count *= a.size
    return count


def axes_of(operands: Sequence[Value]) -> list[Axis]:
    """Of a step of numbers one by one, as docs/programs.md says."""
    axes: list[Axis] = []
    for v in operands:
        if len(v.axes) > len(axes) and all(a in roots(v.axes) for a in roots(axes)):
            axes = []
        axes += [a for a in v.axes if a.root() not in roots(axes)]
    return axes


# Functions that are written as several operators. A value is known by what made it.


def silu_of(x: Value, s: Value) -> Value | None:
    return x if s.came("sigmoid") and same(s.came("sigmoid")[0], x) else None


def rms_norm_of(normed: Value, scale: Value) -> tuple[Value, Value, float] | None:
    """x, the scale of its last dimension and epsilon, of x rsqrt(mean(x^2) + epsilon) times the scale."""
    if not scale.dims or any(scale.dims[:-1]) or not scale.dims[-1]:
        return None
    scale = scale.seen(scale.dims[-1:])
    pair = normed.came("mul")
    for x, root in ((pair, pair[::-1]) if pair else ()):
        epsilon = epsilon_of(x, root)
        if epsilon is not None and size_of(scale.dims[0]) == size_of(x.dims[-1]):
            return x, scale, epsilon
    return None


def scaled_root_of(x: Value, factor: Value) -> tuple[Value, Value, float] | None:
    """The same of x times (rsqrt(mean(x^2) + epsilon) times the scale)."""
    pair = factor.came("mul")
    for root, scale in ((pair, pair[::-1]) if pair else ()):
        epsilon = epsilon_of(x, root)
        if epsilon is not None and scale.dims and not any(scale.dims[:-1]) and size_of(scale.dims[-1]) == size_of(x.dims[-1]) > 1:
            return x, scale.seen(scale.dims[-1:]), epsilon
    return None


def epsilon_of(x: Value, root: Value) -> float | None:
    """Of rsqrt(mean(x^2) + epsilon) over the last dimension of x."""
    total = root.came("rsqrt")[0].came("add") if root.came("rsqrt") else ()
    for mean, epsilon in ((total, total[::-1]) if total else ()):
        of = mean.origin
        if epsilon.number is None or of is None or of.operator != "mean" or of.places != (len(x.dims) - 1,):
            continue
        square = of.operands[0].came("square") or of.operands[0].came("mul")
        if square and all(same(s, x) for s in square):
            return epsilon.number
    return None


def factors_of(values: Sequence[Value]) -> Iterator[tuple[Value | None, float]]:
    """Of a product: tensors, and numbers."""
    for v in values:
        if v.number is not None:
            yield None, v.number
        elif v.came("mul"):
            yield from factors_of(v.came("mul"))
        elif v.came("neg"):
            yield None, -1.0
            yield from factors_of(v.came("neg"))
        elif v.came("square"):
            yield from factors_of(v.came("square") * 2)
        elif v.came("div") and v.came("div")[1].number:
            yield None, 1 / (v.came("div")[1].number or 1)
            yield from factors_of(v.came("div")[:1])
        else:
            yield v, 1.0


def product_of(values: Sequence[Value]) -> tuple[list[Value], float]:
    factors = list(factors_of(values))
    number = 1.0
    for _, n in factors:
        number *= n
    return [v for v, _ in factors if v is not None], number


def near(number: float, wanted: float) -> bool:
    """Also where it went through float32."""
    return abs(number - wanted) <= 1e-6 * abs(wanted)


def gelu_of(t: Tracer, values: Sequence[Value], dims: Sequence[Sequence[Axis]]) -> tuple[str, Value] | None:
    """x/2 (1 + tanh(..)), x/2 (1 + erf(..)) or x/2 erfc(-..)."""
    tensors, number = product_of(values)
    if number != 0.5 or len(tensors) != 2:
        return None
    for x, s in (tensors, tensors[::-1]):
        one = s.came("add")
        inner = (one[0] if one[-1].number == 1 else one[1] if one[0].number == 1 else s) if one else s
        for function, step in (("tanh", "gelu"), ("erf", "gelu_exact"), ("erfc", "gelu_exact")):
            argument = inner.came(function)
            if not argument or (function == "erfc") != (inner is s) or not alike(x.dims, dims):
                continue
            of, scale = product_of(argument)
            if function != "tanh" and len(of) == 1 and same(of[0], x) and near(scale, (-1 if function == "erfc" else 1) * 0.5**0.5):
                return step, x
            if function == "tanh" and near(scale, (2 / np.pi) ** 0.5) and len(of) == 1 and is_cubic(of[0], x):
                return step, x
    return None


def is_cubic(v: Value, x: Value) -> bool:
    """x + 0.044715 x^3"""
    terms = v.came("add")
    if len(terms) != 2 or not any(same(term, x) for term in terms):
        return False
    of, scale = product_of([term for term in terms if not same(term, x)])
    return len(of) == 3 and all(same(y, x) for y in of) and near(scale, 0.044715)


def sum_of(v: Value) -> tuple[Value | None, int]:
    """The tensor and the one dimension that it is the sum along."""
    while v.origin is not None and v.origin.operator == "abs" and alike(v.origin.dims, v.dims):
        v = v.origin.operands[0]
    if v.origin is None or v.origin.operator != "sum" or len(v.origin.places) != 1:
        return None, 0
    (x,), (place,) = v.origin.operands, v.origin.places
    kept = [() if i == place else d for i, d in enumerate(x.dims)]
    return (x, place) if alike(v.dims, kept) or alike(v.dims, kept[:place] + kept[place + 1 :]) else (None, 0)


def shifted(x: Value, place: int) -> Value | None:
    """y, where x is y - max(y) along that dimension."""
    of = x.came("sub")
    most = of[1].origin if of and len(of[1].dims) == len(of[0].dims) else None
    while most is not None and most.operator in ("detach", "rearrange"):  # its gradients cancel anyway
        most = most.operands[0].origin
    if most is None or most.operator != "max" or len(most.places) != 1:
        return None
    if most.places == (place,) and same(most.operands[0], of[0]):
        return of[0]
    a, b = (v.origin.operands[0].core if v.origin is not None and v.origin.operator == "rearrange" else v.core for v in (most.operands[0], of[0]))
    moved = a is b and roots(most.operands[0].dims[most.places[0]]) == roots(of[0].dims[place])  # both are in another order
    return of[0] if moved and alike(of[1].dims, [() if i == place else d for i, d in enumerate(of[0].dims)]) else None


def exponentials_of(v: Value) -> tuple[Value | None, int]:
    """x and a dimension, where v is log(sum(exp(x))) along that."""
    of = v.came("log")
    e, place = sum_of(of[0]) if of else (None, 0)
    return (e.came("exp")[0], place) if e is not None and e.came("exp") else (None, 0)


AT_ZERO: dict[str, Callable[..., Any]] = {"exp": math.exp, "expm1": math.expm1, "neg": operator.neg, "mul": operator.mul, "add": operator.add, "sub": operator.sub, "tanh": math.tanh}


def pieces_of(t: Tracer, mask: Value, a: Value, b: Value) -> Value | None:
    """x above a number and something else below it, where both meet there: a kernel may come out on either side. max(x, c), min(x, c), and x above 0 or a
    function of min(x, 0), or of x times a number, that is 0 at 0."""
    how = mask.origin.operator if mask.origin is not None else ""
    pair = mask.came(how)
    if how not in ("lt", "le", "gt", "ge") or len(pair) != 2 or pair[1].number is None:
        return None
    x, number = pair[0], pair[1].number
    above, below = (a, b) if how[0] == "g" else (b, a)
    if number >= 20 and same(above, x) and softplus_of(below, x):
        return t.map("softplus", x, **t.parts)
    if same(above, x) and below.number == number:
        return t.map("relu", x) if number == 0 else t.together("maximum", [x, below])
    if above.number == number and (same(below, x) or (below.came("maximum") and (below.came("maximum")[1].number or 0) <= number and same(below.came("maximum")[0], x))):
        return t.together("minimum", [below, above])
    if number != 0 or not same(above, x):
        return None
    for slope, of in (below.came("mul"), below.came("mul")[::-1]) if below.came("mul") else ():
        if same(of, x) and slope.number is not None:
            return t.together("add", [t.map("relu", x), t.together("mul", [t.together("minimum", [x, t.number(0)]), slope])])
    below = with_operand(t, below, x, t.together("minimum", [x, t.number(0)], kink=0.0)) or below
    return t.together("add", [t.map("relu", x), below]) if at_zero(below, x) == 0 else None


def with_operand(t: Tracer, v: Value, x: Value, other: Value) -> Value | None:
    """A function of x as one of another tensor; None: it may be one of something else."""
    if same(v, x):
        return other
    if v.number is not None:
        return v
    if v.origin is None or not alike(v.origin.dims, v.dims) or v.origin.operator not in AT_ZERO:
        return None
    operands = [with_operand(t, o, x, other) for o in v.origin.operands]
    known = [o for o in operands if o is not None]
    if len(known) < len(operands):
        return None
    return t.map(v.origin.operator, known[0]) if len(known) == 1 else t.together(v.origin.operator, known)


def softplus_of(v: Value, x: Value) -> bool:
    """log(1 + exp(x))"""
    of = v.came("softplus") or (v.came("log")[0].came("add") if v.came("log") else ())
    if len(of) == 2:
        e = of[0] if of[1].number == 1 else of[1] if of[0].number == 1 else None
        of = e.came("exp") if e is not None else ()
    return bool(of) and same(of[0], x)


def at_zero(v: Value, x: Value) -> float | None:
    """A function of min(x, 0) where that is 0; None: it may be one of something else."""
    low = v.came("minimum")
    if low and same(low[0], x) and low[1].number == 0:
        return 0.0
    if v.number is not None or v.origin is None or not alike(v.origin.dims, v.dims):
        return v.number
    operands = [at_zero(o, x) for o in v.origin.operands]
    known = [o for o in operands if o is not None]
    return float(AT_ZERO[v.origin.operator](*known)) if v.origin.operator in AT_ZERO and len(known) == len(operands) else None


def quoted(text: str) -> str:
    return json.dumps(text) if '": ' in text or " #" in text else text


LONGEST = 110  #: of an expression that others are put into


def inline(texts: dict[str, str], results: dict[str, str], alone: set[str], lines: set[str], closed: set[str]) -> None:
    """Steps without a variable's name that one other reads alone go into that; what nothing reads goes. Those that stand alone stay, and those that are lines
    are in no other expression, and no other expression is in those that are closed."""

    where: dict[str, dict[tuple[bool, str], None]] = {}  # of each word: the texts that may have it, of results or not, in their order

    def noted(text: str, result: bool, key: str) -> None:
        for word in re.findall(r"\w+", text):
            where.setdefault(word, {})[result, key] = None

    def readers(name: str) -> list[tuple[dict[str, str], str]]:
        texts_of = [(results if result else texts, key) for result, key in where.get(name, ())]
        return [(of, key) for of, key in texts_of if key in of for _ in re.findall(rf"(?<![\w\"]){name}\b(?!=)", bare(of[key]))]

    def bare(text: str) -> str:
        return re.sub(r'"[^"]*"', lambda m: '"' + " " * (len(m[0]) - 2) + '"', text)

    for result, of in ((False, texts), (True, results)):
        for key, text in of.items():
            noted(text, result, key)
    for name in reversed(list(texts)):
        if not readers(name):
            del texts[name]
    for name in list(texts):
        found = readers(name)
        whole = len(found) == 1 and found[0][0] is results and results[found[0][1]] == name
        if name in alone or not (whole or name.startswith("_")) or len(found) != 1 or (name in lines and not whole):
            continue
        of, key = found[0]
        if of is texts and key in closed:
            continue
        if whole or len(of[key]) + len(texts[name]) <= LONGEST:
            at = re.search(rf"(?<![\w\"]){name}\b(?!=)", bare(of[key]))
            assert at is not None
            of[key] = of[key][: at.start()] + texts[name] + of[key][at.end() :]
            noted(texts[name], of is results, key)
            del texts[name]


class Program:
    """A function as a program: `str` gives its case file, `case` a case of it."""

    def __init__(self, yaml: str, place: tuple[str, int] = ("", 0), places: Mapping[int, tuple[str, int]] | None = None, choices: Mapping[str, str] | None = None) -> None:
        self.yaml, self._place, self._places, self._choices = yaml, place, places or {}, choices or {}

    def __str__(self) -> str:
        return self.yaml

    @property
    def where(self) -> str:
        """The function's place."""
        return said_place(self._place)

    def path_of(self, name: str) -> str:
        """Of a result of the function; whole numbers that were chosen stand apart."""
        own = re.findall(r"^  (\w+):", self.yaml.partition("\noutputs:\n")[2], re.M)
        if name in ("y", "y0") and name not in (*own, *self._choices):
            theirs = "one tensor" if own == ["y"] else "several: " + ", ".join([*own, *self._choices])
            raise lib.BadInput(f"the kernel gives {'one tensor' if name == 'y' else 'a tuple or a list'}, and the reference {theirs}")
        return self._choices.get(name, f"outputs/{name}")

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w") as file:
            file.write(self.yaml)

    def case(self, precision: str | None = None, **options: Any) -> Case:
        """As `assay.case` of the case file."""
        from ._case import case

        folder = tempfile.mkdtemp(prefix="assay-")
        path = os.path.join(folder, "program.yml")
        self.save(path)
        try:
            made = case(path, precision=precision, **options)
        except lib.BadInput as why:
            shutil.rmtree(folder, ignore_errors=True)
            raise lib.BadInput(self.said(str(why), path)) from None
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(made, shutil.rmtree, folder, True)  # a case reads its file again where other results are wanted
        return made

    def said(self, why: str, path: str) -> str:
        """With the function's line, in place of one of a file that nobody wrote."""
        match = re.match(rf"{re.escape(path)}(?::(\d+))?(?::\d+)?: ", why)
        if match is None:
            return why
        file, line = self._places.get(int(match[1] or 0), self._place)
        return said_place((file, line)) + ": " + why[match.end() :]


def shortest(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """One number that repeats is what the function meant before it was rounded to float32: 1/sqrt(128) or 1e-6, the shortest decimal. A few
    that differ are decimals, too; frequencies are powers of theta."""
    if x.size == 0 or x.dtype.kind in "biuc" or x.dtype == np.float64 or not (x == x.flat[0]).all():
        powers = frequencies(x)
        return powers if powers is not None else shortened(x) if x.size <= FEW else x
    rounded = x.flat[0]
    number = float(str(rounded))
    if len(str(rounded).strip("-0.").replace(".", "")) > 6 and 1e-3 < abs(number) < 1e3:
        for power in (0.5, -0.5):
            root = float(np.copysign(round(number ** (1 / power)) ** power, number)) if number ** (1 / power) > 0.5 else 0.0
            number = root if x.dtype.type(root) == rounded else number
    return np.full(x.shape, number)


def frequencies(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any] | None":
    """theta^(-2i/R) in full, where these are that in float32."""
    if x.dtype != np.float32 or x.size < 2 or x.size != max(x.shape) or x.flat[0] != 1:
        return None
    theta = importlib.import_module("._trace_rope", __package__).theta_of(np.tile(x.reshape(-1).astype(np.float64), 2), False)
    if theta is None or theta < 100 or theta != float(f"{theta:.4g}"):  # no number that someone writes
        return None
    powers = theta ** (-np.arange(x.size).reshape(x.shape) / x.size)
    return powers if np.allclose(powers, x, 1e-6, 0) else None


def shortened(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Numbers of float32 as the decimals that they are written as."""
    return np.array([float(str(n)) for n in x.flat], np.float64).reshape(x.shape) if x.dtype == np.float32 else x


def shape_of(name: str, shapes: Sequence[Sequence[int]]) -> list[int]:
    """Of a step's result."""
    if name == "attention_lse":
        return [shapes[0][i] for i in (0, 2, 1)]
    if name == "linear_scan":
        return list(np.broadcast_shapes(*(tuple(shape) for shape in shapes)))
    if name == "gated_delta_state":
        return [*shapes[0][:-3], *shapes[0][-2:], shapes[2][-1]]
    return [*shapes[0][:-1], shapes[2][-1]] if name in ("attention", "gated_delta_rule") else list(shapes[0])


def step(name: str, *operands: Any, **parameters: Any) -> Any:
    """A step of programs in a function that is traced, where no operator says it: `assay.step("quantise", x, format="mxfp8_e4m3")`, attention,
    attention_lse, gated_delta_rule, gated_delta_state, and linear_scan of gates and inputs [.., time, channels]. Numbers it has none: such a function is there to be traced."""
    if name not in NAMED:
        raise lib.BadInput(f"step: {name}, expected one of {', '.join(NAMED)}; the others are operators of PyTorch and JAX")
    if name.startswith("attention"):
        _attention.check(operands, parameters)
    if RECORDERS:
        return RECORDERS[-1].named(name, operands, parameters)
    if "jax" in sys.modules and any(isinstance(x, sys.modules["jax"].core.Tracer) for x in operands):
        return importlib.import_module("._trace_jax", __package__).NAMED_STEP.bind(*operands, step=name, parameters=tuple(sorted(parameters.items())))
    raise lib.BadInput(f"step: {name} is there in a function that assay.trace runs alone")


def place_of(function: Callable[..., Any]) -> tuple[str, int]:
    """Where a function stands."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else (getattr(function, "__name__", type(function).__name__), 0)


def said_place(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}" if place[1] else place[0]


def named(function: Callable[..., Any], result: Any) -> dict[str, Any]:
    """A function's results by their names; of results within results y0_1, of complex numbers two."""
    found: dict[str, Any] = {}

    def put(name: str, x: Any) -> None:
        several = dict(enumerate(x)) if isinstance(x, (tuple, list)) else x if isinstance(x, dict) and name else {}
        if "complex" in str(getattr(x, "dtype", "")):
            several = {"real": x.real, "imag": x.imag}
        for key, part in several.items():
            if part is not None or not isinstance(x, tuple):
                put(f"{name}{'' if name == 'y' and isinstance(key, int) else '_'}{key}", part)
        if not several:
            found[name] = x

    for name, x in result.items() if isinstance(result, dict) else [("y", result)]:
        put(name, x) if isinstance(name, str) else found.update({name: x})
    for name, x in found.items() or [("it", None)]:
        if not isinstance(name, str) or not (hasattr(x, "dtype") and hasattr(x, "shape")):
            what = f"{name!r} is no name" if not isinstance(name, str) else f"{name} is {'None' if x is None else 'a ' + type(x).__name__}"
            raise lib.BadInput(f"{said_place(place_of(function))}: of its results {what}, expected a tensor, several of them, or a dictionary with their names")
    return found


def library_of(function: Callable[..., Any], example: Mapping[str, Any]) -> str:
    """torch, jax or numpy: whose the example's tensors are, else that which the function's names lead to; numpy if there is no other; else what is imported."""
    arrays = {root_of(type(x)) for x in example.values()}
    found = [*arrays, *led_to(inspect.unwrap(function), set())]
    library = next((root for root in found if root in ("torch", "jax")), "")
    own = next((name for name in ("torch", "jax") if name in sys.modules), "")
    if library == "" and "numpy" in found and (own == "" or importlib.util.find_spec("jax")):
        return "numpy"
    return library or own


def root_of(x: Any) -> str:
    root = str(getattr(x, "__module__", None) or getattr(x, "__name__", "")).split(".")[0]
    return {"jaxlib": "jax"}.get(root, root)


def led_to(function: Any, seen: set[int]) -> list[str]:
    """The packages of what a function reads, and of what the functions beside it read that it calls."""
    code, seen = getattr(function, "__code__", None), seen | {id(function)}
    if code is None:
        return []
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    read = [function.__globals__[name] for name in code.co_names if name in function.__globals__] + cells
    within = [root for x in read if getattr(x, "__globals__", None) is function.__globals__ and id(x) not in seen for root in led_to(x, seen)]
    return [root_of(x) for x in read] + within


def module_of(function: Any) -> str:
    """torch or jax, of a module of PyTorch or flax; else nothing."""
    flax = any(base.__module__.split(".")[0] == "flax" for base in type(function).__mro__)
    return "torch" if hasattr(function, "named_parameters") else "jax" if flax else ""


def names_of_arguments(function: Callable[..., Any]) -> list[str]:
    """None of a function that does not say."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def positional(function: Callable[..., Any]) -> list[str]:
    """The names of what a function or a module may be given without a name."""
    module: Any = function if module_of(function) else None
    call = function if module is None else getattr(module, "_orig_mod", module).forward if module_of(function) == "torch" else type(module).__call__
    return [name for name, p in inspect.signature(call).parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and name != "self"]


def as_function(function: Callable[..., Any], example: Any) -> tuple[Callable[..., Any], Any, list[str]]:
    """A function, its example by the names of its arguments, and which of these are weights: of a module of PyTorch or flax its parameters. Tensors
    within an argument are arguments by themselves."""
    library = module_of(function)
    module: Any = function if library else None
    if isinstance(example, (tuple, list)) or hasattr(example, "shape"):
        given = list(example) if isinstance(example, (tuple, list)) else [example]
        names = positional(function)
        given = [tuple(given)] if len(given) > len(names) == 1 else given
        if len(given) > len(names):
            raise lib.BadInput(f"{said_place(place_of(function))}: the example has {len(given)} tensors, expected at most {len(names)}: {', '.join(names)}")
        example = dict(zip(names, given))
    elif module is None and isinstance(example, Mapping):  # in the order in which a kernel is called
        order = names_of_arguments(function)
        example = dict(sorted(example.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    weights: list[str] = []
    if module is not None and isinstance(example, Mapping):
        function, example, weights = importlib.import_module(f"._trace_{library}", __package__).functional(module, dict(example))
    if isinstance(example, Mapping) and any(is_bound(x) or isinstance(x, (tuple, list, dict)) for x in example.values()):
        flat: dict[str, Any] = {}
        shape = {name: parts_of(name, x, flat) for name, x in example.items()}
        whole, example = function, flat

        def function(**given: Any) -> Any:
            return whole(**function.together(given))  # type: ignore[attr-defined]

        function.together = lambda given: {name: put_together(part, given) for name, part in shape.items()}  # type: ignore[attr-defined]
        function.__name__, function.__wrapped__ = getattr(whole, "__name__", "function"), inspect.unwrap(whole)  # type: ignore[attr-defined]
        function.__signature__ = inspect.Signature([inspect.Parameter("given", inspect.Parameter.VAR_KEYWORD)])  # type: ignore[attr-defined]
    return function, example, weights


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Names for these paths: underscores for dots, a letter first, and of a long one its end."""
    names: dict[str, str] = {}
    for path in paths:
        name = re.sub(r"\W", "_", path)
        while len(name) > LONGEST_NAME and "_" in name[:-1]:
            name = name.split("_", 1)[1]
        first = name = (name if name[:1].isalpha() else "layer_" + name)[-LONGEST_NAME:]
        name = next(n for n in itertools.chain([name], (f"{first[:LONGEST_NAME - 4]}_{i}" for i in itertools.count(2))) if n not in names)
        names[name] = path
    return names


class Part(NamedTuple):
    """An argument that is a tensor by itself."""

    name: str


def is_bound(x: Any) -> bool:
    """What is no tensor: the function has it as it is."""
    return x is None or isinstance(x, (bool, int, str))


def parts_of(name: str, x: Any, flat: dict[str, Any]) -> Any:
    if isinstance(x, (tuple, list, dict)):
        pairs = x.items() if isinstance(x, dict) else enumerate(x)
        made = {key: parts_of(re.sub(r"\W", "_", f"{name}_{key}"), part, flat) for key, part in pairs}
        return made if isinstance(x, dict) else list(made.values()) if isinstance(x, list) else tuple(made.values())
    if is_bound(x):
        return x
    flat[name] = x
    return Part(name)


def put_together(part: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(part, Part):
        return given[part.name]
    if isinstance(part, dict):
        return {key: put_together(x, given) for key, x in part.items()}
    return type(part)(put_together(x, given) for x in part) if isinstance(part, (tuple, list)) else part


def trace(function: Callable[..., Any], example: Any, *, weights: Sequence[str] = (), axes: Mapping[str, str] | None = None,
          name: str | None = None, integers: Mapping[str, int] | None = None, casts: str = "drop", check: bool = True,
          fills: Mapping[str, Mapping[str, Any]] | None = None, types: Mapping[str, str] | None = None, **settings: Any) -> Program:
    """The program of a function of PyTorch, which runs once on the tensors of `example`, by the names of its arguments or in their order; or of JAX,
    which is traced: there shapes will do, as jax.ShapeDtypeStruct has them; or of numpy, through JAX. Of a `torch.nn.Module`, a module of `flax.nnx`, or one of `flax.linen` that is bound to its variables, the parameters are weights, under their names
    with underscores for dots, and buffers are constants.

    `weights` are those of them that are no inputs. `axes` gives axes their letters: {"x": "TD"}; the others get letters that are free. `integers`
    says how many indices there are for an argument that holds some: {"target": 1000}; else they are those from its least to its largest one. `fills` says how
    arguments are filled: {"bias": {"scale": 0.1}, "gate": {"distribution": "uniform", "low": -1, "high": 0}}. `types` says which type an argument comes in, and a result is kept
    in: {"loss": "float32"}; a result of fp8 is judged as codes. A cast to fp8 is a step, and what goes through
    it alone has no gradient: frameworks round that, too, and kernels let it pass. ``casts="keep"``: each cast to fewer bits is a step, which gradients pass; else the others are dropped. The function then runs once more, in float64 on the
    numbers that a case draws, and its results and its own gradients are held against the program's: ``check=False`` leaves that out. Other keywords are keys of the case: dtype, seed, checkpoints. What a program cannot have is refused with the line of the function.
    """
    if casts not in ("drop", "keep"):
        raise lib.BadInput(f"trace: casts is {casts!r}, expected drop or keep")
    function, example, parameters = as_function(function, example)
    weights = ([weights] if isinstance(weights, str) else list(weights)) + [name for name in parameters if name not in weights]
    check_names(function, example, weights=weights, axes=axes or {}, integers=integers or {}, fills=fills or {})
    library = library_of(function, example)
    if library == "":
        raise lib.BadInput("trace: neither torch nor jax is imported")
    if library == "numpy" and importlib.util.find_spec("jax") is None:
        raise lib.BadInput("trace: functions of numpy are traced by JAX, which is not installed")
    framework = importlib.import_module(f"._trace_{library}", __package__)
    title = name or "traced/" + (getattr(function, "__name__", "").strip("<>").lstrip("_") or "function")

    def recorded(gradients: bool) -> tuple[Tracer, list[tuple[str, Value]]]:
        tracer = Tracer(title, function, casts, gradients)
        tracer.far = -65504.0 if settings.get("dtype") == "float16" else FAR
        try:
            return tracer, framework.record(tracer, function, dict(example), set(weights), integers or {})
        except lib.BadInput as why:
            raise lib.BadInput(str(why) if re.match(r".+:\d+: ", str(why)) else f"{tracer.at}: {why}") from None
        except Exception as error:
            raise lib.BadInput(f"{failed_at(error, function)}: {said_by(error)}") from error

    try:
        tracer, outputs = recorded(True)
    except lib.BadInput as why:
        if library != "torch" or not str(why).endswith(("writes into what others read", "of its results y is None, expected a tensor, several of them, or a dictionary with their names")):
            raise
        function = framework.filling(function)
        tracer, outputs = recorded(True)
    for path, value, _ in tracer.inputs:
        if path.split("/")[1] in (integers or {}) and not value.integer:
            raise lib.BadInput(f"{tracer.at}: integers has {path.split('/')[1]}, expected an argument of whole numbers")
    if any(v.flows for _, v, _ in tracer.inputs) and not any(v.flows for _, v in outputs):  # a function without gradients
        tracer, outputs = recorded(False)
        settings = {"gradients": "none", **settings}
    if not outputs:
        raise lib.BadInput(f"{tracer.at}: all results are a choice, expected one that is computed of it, too: the numbers that were chosen, say")
    own_types = {path.split("/")[1]: type for path, _, _ in tracer.inputs for type in [types_of(example).get(path.split("/")[1])] if type is not None}
    low = settings.get("dtype", "bfloat16")
    # a statistic, unless the function gives it in its own type; and what it rounds on purpose
    asked = [name for name, _ in outputs if name in tracer.halves or (name == "lse" and low in HALVES)]
    kinds = framework.types_at(function, example, low) if asked else {}
    own_types.update({name: kinds[name] for name in asked if kinds.get(name) in HALVES and (kinds[name] != low or name == "lse")})
    dtypes = typed(tracer, [name for name, _ in outputs], {**own_types, **tracer.types, **(types or {})})
    lines, fused, places = tracer.yaml(outputs, axes or {}, fills or {})
    choices = {name: f"routing/{value.step.name}/top_k" for name, value in tracer.choices.items() if value.step is not None}
    dtypes.update({"inputs/" + name: "float64" for name in tracer.floats})  # in full, and without gradients
    if tracer.floats or tracer.narrowed:
        without = {*tracer.floats, *tracer.narrowed}
        settings.setdefault("gradients", [path for path, v, integers in tracer.inputs if integers is None and path.split("/")[1] not in without] or "none")
    if dtypes:
        settings["dtypes"] = {**dtypes, **settings.get("dtypes", {})}
    if tracer.stored:
        settings["accumulate"] = {**{name: "stored" for name in tracer.stored}, **settings.get("accumulate", {})}
    own = settings.get("fused", [])
    if fused and own != "all":
        settings["fused"] = [*([own] if isinstance(own, str) else own), *fused]

    def program(keys: Mapping[str, Any]) -> Program:
        return Program("\n".join(lines + [f"{key}: {as_json(key, value)}" for key, value in keys.items()]) + "\n", place_of(function), places, choices)

    if check and not tracer.stands_alone:
        evaluate = functools.partial(framework.evaluate, casts=casts, **({"tables": {np.sort(array, None).tobytes() for array in tracer.floats.values()}} if library == "torch" else {}))
        rounded = {f"outputs/{name}": functools.partial(framework.rounded, type=type) for name, type in tracer.types.items()}
        try:
            held(evaluate, function, example, program({key: settings[key] for key in ("seed", "gradients", "dtypes") if key in settings}), rounded)
        except lib.BadInput as why:
            above = positive(tracer, example, fills or {}) if "expected a finite number" in str(why) else {}
            if above:  # a logarithm or a root: numbers as those of the example
                lines[:] = [next((line.replace("]}", f"], {text}}}") for name, text in above.items() if line.startswith(f"  {name}: {{axes:")), line) for line in lines]
                held(evaluate, function, example, program({key: settings[key] for key in ("seed", "gradients", "dtypes") if key in settings}), rounded)
                return program(settings)
            if settings.get("gradients") == "none" or not any(text in str(why) for text in NO_GRADIENT):
                raise
            settings["gradients"] = "none"
            held(evaluate, function, example, program({key: settings[key] for key in ("seed", "gradients", "dtypes") if key in settings}), rounded)
    return program(settings)


def types_of(example: Mapping[str, Any]) -> dict[str, str]:
    """Of arguments that the example has in fp8, and in float32 beside narrower ones."""
    kinds = {name: str(getattr(x, "dtype", "")).split(".")[-1] for name, x in example.items()}
    mixed = any(kind in ("bfloat16", "float16", *CODES) for kind in kinds.values())
    return {name: kind for name, kind in kinds.items() if kind in CODES or (mixed and kind == "float32")}


def typed(tracer: Tracer, outputs: Sequence[str], types: Mapping[str, str]) -> dict[str, str]:
    """By the paths of arguments and results."""
    paths = [*(path for path, _, _ in tracer.inputs), *("outputs/" + name for name in outputs)]
    for name in types:
        if name not in [path.split("/")[1] for path in paths]:
            raise lib.BadInput(f"{tracer.at}: types has {name}, expected an argument or a result: {', '.join(path.split('/')[1] for path in paths)}")
    found = {path: types[path.split("/")[1]] for path in paths if path.split("/")[1] in types}
    narrow = {path.replace("outputs/", "cotangents/", 1): type for path, type in found.items() if path.startswith("outputs/") and type in HALVES}
    return {**narrow, **found}  # what goes back has the result's type


def positive(tracer: Tracer, example: Mapping[str, Any], fills: Mapping[str, Any]) -> dict[str, str]:
    """How arguments are filled whose numbers in the example are different ones and all above 0."""
    found = {}
    for path, value, integers in tracer.inputs:
        name = path.split("/")[1]
        numbers = numbers_of(example[name]) if integers is None and name not in fills and name in example else np.zeros(1)
        if numbers.min() > 0 and numbers.max() > numbers.min():
            found[name] = f"distribution: uniform, low: {numbers.min():.6g}, high: {numbers.max():.6g}"
    return found


def check_names(function: Callable[..., Any], example: Any, **others: Any) -> None:
    """An example has the function's arguments, and what is said of them are some of these."""
    where = said_place(place_of(function))
    if not isinstance(example, Mapping) or not example:
        raise lib.BadInput(f"{where}: the example is {'empty' if isinstance(example, Mapping) else 'of ' + type(example).__name__}, expected tensors by the names of the function's arguments")
    try:
        inspect.signature(function).bind(**example)
    except TypeError as why:
        raise lib.BadInput(f"{where}: {why}: the example has {', '.join(map(str, example))}") from None
    except ValueError:
        pass  # a function that says nothing of its arguments
    for key, names in others.items():
        for name in names:
            if name not in example:
                raise lib.BadInput(f"{where}: {key} has {name}, expected an argument of the example: {', '.join(example)}")
    for name, letters in others["axes"].items():
        if not isinstance(letters, str) or len(letters.replace(" ", "")) > len(getattr(example[name], "shape", ())):
            raise lib.BadInput(f"{where}: axes says {letters!r} of {name}, expected a letter for each of its {len(getattr(example[name], 'shape', ()))} axes")


def as_json(key: str, value: Any) -> str:
    try:
        return json.dumps(value, default=lambda x: x.item())
    except (TypeError, ValueError, AttributeError, RuntimeError):
        raise lib.BadInput(f"trace: {key} is of {type(value).__name__}, expected what a case file has") from None


def held(evaluate: Callable[..., Any], function: Callable[..., Any], example: Mapping[str, Any], program: Program, rounded: Mapping[str, Callable[..., Any]]) -> None:
    """The program against the function itself, in float64 and by its own gradients, on the numbers that a case draws."""
    made = Case(program.yaml, ("dtype=float64",), "f64", unscaled=True)
    try:
        made._open()
    except lib.BadInput as why:
        raise lib.BadInput(program.said(str(why), "case")) from None
    given = {name: numbers_of(x) for name, x in example.items()}
    given.update({path.split("/")[1]: array for path, array in made.numbers("inputs/", "weights/").items()})
    cotangents = {path.split("/")[1]: array for path, array in made.numbers("cotangents/").items()}
    folders = {path.split("/")[1]: path.split("/")[0] for path in made.inputs()}

    def results(kinks: bool = False) -> tuple[dict[str, Any], set[str]]:
        try:
            outputs, gradients, kinked = evaluate(function, example, given, cotangents, kinks=kinks, backward=any(path.startswith("gradients/") for path in made.expected))
        except Exception as error:
            raise lib.BadInput(f"{failed_at(error, function)}: in float64 on the numbers of the case the function ends by {said_by(error)}; check=False leaves this run out") from error
        found = {f"outputs/{name}": array for name, array in outputs.items()}
        return {**found, **{f"gradients/{folders[name]}/{name}": array for name, array in gradients.items() if name in folders}}, kinked

    own, _ = results()
    most = max((np.nanmax(np.abs(a)) for a in own.values() if a.size and not np.isnan(a).all()), default=0.0)
    for path in made.expected:
        if path not in own:
            continue
        golden, array = rounded.get(path, np.asarray)(made.golden(path)), own[path]
        if golden.shape != array.shape:
            raise lib.BadInput(f"{program.where}: {path} is {list(golden.shape)} in the program, and {list(array.shape)} of the function")
        off = np.where(np.isnan(array), 0.0, np.abs(golden - array))  # what the function itself leaves open is not held
        if off.size == 0 or off.max() <= max(1e-9 * np.nanmax(np.abs(array)), 1e-12 * most):  # what cancels is noise, 300 times as large behind the root of an epsilon of 1e-5
            continue
        kinked = results(kinks=True)[1]
        if kinked and (path.startswith("gradients/") or kinked & {"topk", "top_k", "argmax"}):
            continue
        at = np.unravel_index(int(off.argmax()), off.shape)
        what = "its gradients are others than those of what it computes" if path.startswith("gradients/") else "it computes what no program has"
        raise lib.BadInput(f"{program.where}: {path}{[int(i) for i in at]} is {array[at]:.9g} by the function, run in float64, and {golden[at]:.9g} by its program: {what}")


def numbers_of(x: Any) -> "np.ndarray[Any, Any]":
    """Of an argument that no result depends on; a shape has none."""
    if getattr(x, "is_meta", False) or not (hasattr(x, "detach") or hasattr(x, "__array__") or isinstance(x, float)):
        return np.zeros(x.shape)
    return np.asarray(x.detach().cpu().double() if hasattr(x, "detach") else x)


def said_by(error: Exception) -> str:
    if "a leaf Variable that requires grad" in str(error):  # since arguments have gradients
        return "writes into what others read"
    return " ".join([type(error).__name__ + ":", *str(error).splitlines()[:1]])


def failed_at(error: Exception, function: Callable[..., Any]) -> str:
    """The line of the function, or of what it calls outside of libraries, that ended by an exception."""
    file, line = place_of(function)
    for frame in traceback.extract_tb(error.__traceback__):
        if not re.search(r"[/\\](site-packages|dist-packages|assay|lib/python[\d.]*)[/\\]", frame.filename) and not frame.filename.startswith("<"):
            file, line = frame.filename, frame.lineno or 0
    return said_place((file, line))


class Reference:
    """A function whose arguments say their axes, at all combinations of sizes; `program` makes it."""

    def __init__(self, function: Callable[..., Any], sizes: Mapping[str, Any], dtype: str, weights: Sequence[str], integers: Mapping[str, int],
                 fills: Mapping[str, Mapping[str, Any]], types: Mapping[str, str]) -> None:
        self.function, self.dtype, self.weights, self.integers, self.fills, self.types = function, dtype, weights, integers, fills, types
        self.sizes = {axis: list(n) if isinstance(n, (list, tuple)) else [n] for axis, n in sizes.items()}
        self.axes = {}
        for name, p in inspect.signature(function).parameters.items():
            if p.default is not p.empty:  # as it is: epsilon=1e-6
                continue
            if not isinstance(p.annotation, str):
                raise lib.BadInput(f"program: {name} is annotated by no axes, expected their letters in quotes, or a default")
            self.axes[name] = p.annotation.strip("'\"").replace(" ", "")
        for name, axes in self.axes.items():
            unknown = [a for a in axes if a not in self.sizes]
            if unknown:
                raise lib.BadInput(f"program: {name} has the axes {axes!r}, of which {unknown[0]} has no size; an argument is annotated by its axes")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def example(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Its arguments at these sizes."""
        example = {}
        for name, axes in self.axes.items():
            shape = [sizes[a] for a in axes]
            most = self.integers.get(name)
            example[name] = np.ones(shape, np.float32) if most is None else np.resize(np.arange(most, dtype=np.int32), shape)
        return example

    def programs(self) -> list[Program]:
        """One for each combination of sizes."""
        made = []
        for sizes in (dict(zip(self.sizes, values)) for values in itertools.product(*self.sizes.values())):
            example = self.example(sizes)
            label = f"traced/{self.function.__name__.lstrip('_') or 'function'}-" + "-".join(f"{a}{n}" for a, n in sizes.items())
            made.append(trace(self.function, example, weights=self.weights, axes=self.axes, name=label, dtype=self.dtype, integers=self.integers, fills=self.fills,
                              types=self.types))
        return made

    def cases(self, precision: str | None = None, **options: Any) -> Any:
        """Runs a test once for each combination, as its argument `case`."""
        import pytest

        programs = self.programs()
        return pytest.mark.parametrize("case", [pytest.param(p.case(precision, **options), id=p.yaml.split()[1]) for p in programs])


def program(*, dtype: str = "bfloat16", weights: Sequence[str] = (), integers: Mapping[str, int] | None = None,
            fills: Mapping[str, Mapping[str, Any]] | None = None, types: Mapping[str, str] | None = None,
            **sizes: int | Sequence[int]) -> Callable[[Callable[..., Any]], Reference]:
    """A function of PyTorch or JAX as the reference of a kernel:

        @assay.program(T=[1, 7, 64], D=512, F=128, weights=["w"])
        def reference(x: "T D", w: "D F"):
            return torch.nn.functional.silu(x @ w)

        @reference.cases(precision="bf16")
        def test_mine(case): ...

    `integers` says of arguments that hold indices how many there are: {"target": 1000}; `fills` how arguments are filled: {"bias": {"scale": 0.1}}, `types`
    which types arguments and results have: {"loss": "float32"}.
    """
    return lambda function: Reference(function, sizes, dtype, weights, integers or {}, fills or {}, types or {})
