"""PyTorch's operators as steps of a program: those of ATen that reach a dispatch mode."""
from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import unittest.mock
import warnings
from typing import AbstractSet as Set
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from . import _library as lib
from ._attention import kinds_of
from ._trace import RECORDERS, Axis, Guard, Origin, Tracer, Value, is_table, named, place_of, shape_of, short_names, shortest, size_of, types_of, unrepeated
from ._trace_rope import Operand, Turn, Turns

CONSTANTS = ("empty_like", "new_empty", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "arange")
SAME = ("_to_copy", "clone", "alias", "contiguous", "to", "lift_fresh_copy", "lift_fresh", "positive")
MAPS = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sigmoid", "silu", "erf", "tanh", "relu", "sin", "cos", "reciprocal", "square", "softplus")
LARGEST = 1 << 16  #: numbers of a constant that is computed in float64, too
LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__, contextlib.__file__))
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
MOVES = ("view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice", "split",
         "split_with_sizes", "chunk", "select", "unbind", "cat", "stack")
COMPARISONS = ("lt", "gt", "le", "ge", "eq", "ne")
MASKS = {name: step for names, step in ((("__and__", "bitwise_and", "logical_and"), "mul"), (("__or__", "bitwise_or", "logical_or"), "maximum")) for name in names}
#: Arguments that no handler need read: they say where numbers lie and in which type they are computed, or are of gradients that are as they are anyway.
ASIDE = ("dtype", "out_dtype", "use_fast_accum", "layout", "device", "pin_memory", "memory_format", "non_blocking", "sparse", "sparse_grad", "half_to_float", "implicit", "sorted", "stable")
#: What a rotation is made of (_trace_rope.py).
TURNS = {**{name: "move" for name in MOVES}, **{name: "product" for name in ("mm", "bmm", "mv", "dot")}, "embedding": "rows", "index": "rows", "index_select": "rows",
         **{name: name for name in ("mul", "div", "add", "sub", "neg", "cos", "sin")}}


COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
REAL = {complex: real for real, complex in COMPLEX.items()}


def rounds(given: Any, to: Any, casts: str | None) -> bool:
    """Whether a cast is one that loses something and counts: one to a byte does, others if casts are kept. None: none does."""
    if not (given.is_floating_point and to.is_floating_point and (casts == "keep" or (casts and torch.finfo(to).bits == 8))):
        return False
    before, after = torch.finfo(given), torch.finfo(to)
    return after.eps > before.eps or after.max < before.max


def read_by(handler: Callable[..., Any], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operator for its handler; one that it does not read is refused, unless it is the default."""
    parameters = list(inspect.signature(handler).parameters.values())[1:]  # behind `out`
    takes, places = [p.name for p in parameters], sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
    schema = func._schema.arguments
    by_position = [a for a in schema if not a.kwarg_only]
    given, named = list(args[:places]), {}
    for a, value in [*zip(by_position, args), *((a, kwargs[a.name]) for a in schema if a.name in kwargs)][len(given) :]:
        if a.name in takes:
            named[a.name] = value
        elif a.name not in ASIDE and value is not None and not (a.has_default_value() and not isinstance(value, torch.Tensor) and value == a.default_value):
            raise lib.BadInput(f"{a.name} is {value if not isinstance(value, torch.Tensor) else 'a tensor'}, expected an operator without it")
    return given, named


def has_any(mask: Value) -> bool:
    """Whether a mask says where a sum of 0 and 1 is above 0: what it leaves out has nothing in it."""
    how = mask.origin.operator if mask.origin is not None else ""
    pair = mask.came(how)[:: -1 if how == "less" else 1]
    total = pair[0].origin if how in ("gt", "ne", "less") and pair and pair[1].number == 0 else mask.origin if how == "max" else None
    return total is not None and total.operator in ("sum", "max") and total.operands[0].truth


DRAWN = "random numbers, which no program has: trace a module after its eval()"


def draws(func: Any) -> bool:
    """Whether an operator draws random numbers."""
    return getattr(getattr(torch, "Tag", None), "nondeterministic_seeded", None) in getattr(func, "tags", ())


def swapped(of: Sequence[Any], first: int, second: int) -> list[Any]:
    made = list(of)
    made[first], made[second] = made[second], made[first]
    return made


def array_of(x: Any) -> Any:
    x = x.detach().cpu()
    return x.double().numpy() if x.is_floating_point() else x.numpy()  # bfloat16 is none of numpy's


def slope_on_bound(of_tensors: bool) -> float:
    """The gradient of clamp on its bound, which versions of PyTorch differ in."""
    with torch.inference_mode(False), torch.enable_grad():  # type: ignore[no-untyped-call]
        x = torch.zeros(1, requires_grad=True)
        made = torch.clamp(x, min=torch.zeros(1)) if of_tensors else torch.clamp(x, min=0.0)
        (slope,) = torch.autograd.grad(made, x)
    return float(slope)


class Recorder(TorchDispatchMode):
    def __init__(self, tracer: Tracer, function: Callable[..., Any]) -> None:
        super().__init__()
        self.t, self.function, self.operator = tracer, function, ""
        self.values: dict[int, Value] = {}
        self.turns: dict[int, Turn] = {}
        self.pairs: dict[int, tuple[Value, Value]] = {}  #: of complex tensors
        self.rotations = Turns(tracer)
        self.alive: list[Any] = []  # so that no id is used again
        self.given: set[int] = set()
        self.narrow = False  #: arguments are in coarser types than float32
        self.numbers_read: dict[float, Value] = {}  #: by item(): what they are of
        self.own: set[int] = set()  #: what is computed of no argument
        self.random: set[int] = set()  #: and drawn
        self.wide = Wide(None, False)
        self.exact: dict[int, Any] = {}  #: of these, what they are if all is computed in float64
        self.guarded: dict[int, tuple[Guard, int | None]] = {}  #: indices that nonzero gave, or a column of them
        self.memories: dict[int, int] = {}
        self.substituted: dict[int, tuple[Value, int]] = {}  #: tensors whose rows are substituted one by one: as they were, and how many rows are done
        self.views: dict[int, tuple[Any, Any, int, int, int]] = {}  #: parts: the tensor, what it is a part of, the dimension, the first index, each so many'th

    def bind(self, tensor: Any, value: Value) -> None:
        self.alive.append(tensor)
        self.values[id(tensor)] = value
        self.memories.pop(id(tensor), None)  # set_ gives it another

    def bases(self, tensor: Any) -> list[tuple[Any, Any, int, int, int]]:
        """Of a part: that, and what it is a part of in turn."""
        chain = []
        while id(tensor) in self.views:
            chain.append(self.views[id(tensor)])
            tensor = chain[-1][1]
        return chain

    def memory(self, tensor: Any) -> int:
        """Where it lies, of a tensor that is kept alive."""
        if id(tensor) not in self.memories:
            self.memories[id(tensor)] = int((tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()).data_ptr())
        return self.memories[id(tensor)]

    def write(self, tensor: Any, value: Value, operator: str) -> None:
        """The value of what is written into, and of all that it is a part of; whoever else looks at this memory may not any more."""
        if tensor.numel() == 0:
            return
        chain = self.bases(tensor)
        solved = self.substitution(chain, value)
        self.bind(tensor, value)
        for part, whole, place, first, step in chain:
            v = self.values[id(part)]
            v = v if part.dim() == whole.dim() else v.seen([*v.dims[:place], (), *v.dims[place:]])
            shape = list(part.shape) if part.dim() == whole.dim() else [*part.shape[:place], 1, *part.shape[place:]]
            v = self.t.ordered(v, [d or (() if n == 1 else (Axis(n),)) for d, n in zip(v.dims, shape)])
            each = None if step == 1 else self.t.constant(np.arange(first, first + step * shape[place], step))
            self.bind(whole, self.t.written(self.of(whole), whole.shape, place, first, v) if each is None else self.t.written_at(self.full(whole), place, each, v, False))
        if solved is not None:
            self.bind(chain[-1][1], solved)
        kept = {id(tensor), *(id(whole) for _, whole, *_ in chain)}
        if chain:  # parts that lie beside it
            part, whole, place, first, step = chain[0]
            end = first + (step * (part.shape[place] - 1) + 1 if part.dim() == whole.dim() else 1)
            kept |= {id(o) for o, w, p, f, n in self.views.values() if w is whole and p == place and o.dim() == part.dim() == w.dim() and (f >= end or f + n * (o.shape[p] - 1) < first)}
        here = self.memory(tensor)
        for other in [*self.alive, *(view[0] for view in self.views.values())]:
            if id(other) not in kept and self.memory(other) == here:
                kept.add(id(other))
                self.bind(other, self.t.nowhere(operator, (), [(Axis(n),) if n != 1 else () for n in other.shape], "writes into what others read"))

    def substitution(self, chain: Sequence[tuple[Any, Any, int, int, int]], value: Value) -> Value | None:
        """Of a loop over rows, a[i, :i] = a[i, :i] + (a[i, :i, None] * a[:i, :i]).sum(-2), what it ends with: the solution of (1 - a) x = a. Forward substitution row
        by row would take an axis for each length."""
        if len(chain) != 2:
            return None
        (part, row, last, first, step), (_, whole, place, i, _) = chain
        n = whole.shape[-1]
        sums = [v.came("sum")[0] for v in value.came("add") if v.came("sum")]
        if not (whole.shape[-2] == n > 2 and row.dim() == whole.dim() - 1 == place + 1 and (last, first, step) == (place, 0, 1) and part.shape[-1] == i and sums and sums[0].came("mul")):
            return None
        if i == 1:
            self.substituted[id(whole)] = (self.of(whole), 0)
        before, done = self.substituted.pop(id(whole), (value, -1))
        if done != i - 1:
            return None
        self.substituted[id(whole)] = (before, i)
        if i < n - 1:
            return None
        at = np.arange(n)
        below = self.t.constant(at[:, None] > at)
        return self.t.where(below.seen([*[()] * place, *below.dims]), self.t.solved(self.t.map("neg", before), before, True, True), before)

    def named(self, name: str, operands: Sequence[Any], parameters: Mapping[str, Any]) -> Any:
        """assay.step"""
        self.t.place = self.place()
        made = torch.zeros(shape_of(name, [x.shape for x in operands]), dtype=operands[-1 if len(operands) < 3 else 2].dtype)
        made.requires_grad_(torch.is_grad_enabled() and any(x.requires_grad for x in operands))
        self.bind(made, self.t.step(name, [self.of(x) for x in operands], parameters, kinds_of(operands)))
        return made

    def place(self) -> tuple[str, int]:
        """The line that runs, of the function or of what it calls outside of PyTorch."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if not frame.f_code.co_filename.startswith((*LIBRARIES, "<")):
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return place_of(self.function)

    def has_own_backward(self) -> bool:
        """Whether the forward function of a torch.autograd.Function runs: what comes of that has the gradient of what it computes, if none differs."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount > 0 else None
            if isinstance(first, torch.autograd.function.FunctionCtx) or (code.co_name == "apply" and code.co_filename == torch.autograd.function.__file__):
                return True
            frame = frame.f_back
        return False

    def constant_of(self, x: Any) -> Any:
        """A constant as it is in float64."""
        array = x.detach().cpu().numpy() if x.dtype == torch.float32 else array_of(x)
        return self.exact[id(x)][0].cpu().numpy() if id(x) in self.exact and array.size and not (array == array.flat[0]).all() else shortest(array)

    def of(self, x: Any) -> Value:
        if isinstance(x, (int, float, bool)):
            return self.numbers_read.get(x) or self.t.number(float(x))
        if id(x) in self.values:
            value = self.values[id(x)]
            if value.flows and not x.requires_grad and not self.has_own_backward():  # it was computed where no gradients are, or is cut off
                self.bind(x, self.t.detach(value))
                self.turns.pop(id(x), None)
            return self.values[id(x)]
        try:
            if id(x) in self.random:
                raise lib.BadInput(DRAWN)
            if x.grad_fn is not None and id(x) not in self.own:
                raise lib.BadInput(f"a tensor {list(x.shape)} that is computed where trace does not see it: in another thread, or before")
            array = shortest(x.detach().cpu().numpy()) if x.dtype == torch.float32 else self.constant_of(x)
            made = self.t.constant(array if is_table(array) else self.constant_of(x), self.unknown(x))  # a table is as the function has it
        except lib.BadInput as why:  # which is said where an output needs it: it may be a table of cosines
            return self.t.nowhere(self.operator, (), [() if n == 1 else (Axis(n),) for n in x.shape], str(why))
        self.bind(x, made)
        return made

    def full(self, x: Any) -> Value:
        """With an axis for each dimension that repeats."""
        v = self.of(x)
        return self.t.ordered(v, [d or (() if n == 1 else (Axis(n),)) for d, n in zip(v.dims, x.shape)])

    def unknown(self, x: Any) -> str:
        """What a tensor is that is no argument."""
        if id(x) in self.random:
            return DRAWN
        if x.requires_grad:
            return f"a parameter {list(x.shape)} of a module, which is none of the function's arguments: torch.func.functional_call makes it one"
        return ""

    def numbers(self, x: Any) -> Value:
        """Of a tensor that may hold whole numbers."""
        v = self.of(x)
        return self.t.truth(v) if isinstance(x, torch.Tensor) and x.dtype == torch.bool else self.t.numbers(v)

    def operand(self, x: Any) -> Operand:
        return Operand(self.turns.get(id(x)), self.values.get(id(x)), None if id(x) in self.values else self.constant_of(x), tuple(x.shape))

    def turned(self, func: Any, operator: str, out: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Turn | None]:
        """What the results are of a rotation."""
        results = list(out) if isinstance(out, (list, tuple)) else [out]
        kind = "same" if operator in SAME else TURNS.get(operator, "")
        flat = [x for a in args for x in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(x, torch.Tensor)]
        if kind in ("mul", "div", "add", "sub") and len(args) > 1 and not isinstance(args[1], torch.Tensor):
            flat.append(torch.tensor(args[1], dtype=torch.float64))
        if kind == "" or kwargs.get("alpha", 1) != 1 or any(x.dtype.is_complex for x in flat):
            return [None] * len(results)

        def apply(arrays: Sequence[Any]) -> list[Any]:
            given: Any = iter([torch.tensor(a) for a in arrays])
            if "view" in operator or "reshape" in operator:
                return [next(given).reshape(out.shape).numpy()]
            made = func(*([next(given) for _ in a] if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)
                          else next(given) if isinstance(a, torch.Tensor) else a for a in args))
            return [m.numpy() for m in (made if isinstance(made, (list, tuple)) else [made])]

        operands = [self.operand(x) for x in flat if x.dtype != torch.bool]
        if not operands:
            return [None] * len(results)
        if kind == "same":
            return [self.rotations.begin(operands[0])]
        return self.rotations.follow(kind, operands, apply, len(results))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = self.operator = func.__name__.split(".")[0]
        self.t.place = self.place()
        inplace = operator.endswith("_") and not operator.endswith("__") and bool(args)
        written = [args[0], *(whole for _, whole, *_ in self.bases(args[0]))] if inplace else []
        if inplace and any(id(x) in self.values for x in [*args, *written]):
            for x in written:
                self.of(x)  # as it is before it is written into
        everything = list(args) + [y for a in args if isinstance(a, (list, tuple)) for y in a]
        for x in everything:
            if isinstance(x, torch.nn.Parameter) and id(x) not in self.values:
                self.remade(x)
        known = [x for x in everything if id(x) in self.values]
        for x in known:
            self.of(x)  # without a gradient, where it has none any more
        if operator == "nonzero" and known:
            return self.nonzero(args[0])
        out = func(*args, **kwargs)
        if "empty" in operator:
            out.zero_()  # what memory holds is nothing that a program has
        if operator in CONSTANTS:
            return out
        if (known or any(id(x) in self.pairs for x in everything)) and any(isinstance(x, torch.Tensor) and x.is_complex() for x in (*everything, out)):
            try:
                return self.complex(operator, func, out, args, kwargs)
            except lib.BadInput as why:
                raise lib.BadInput(f"{self.t.place[0]}:{self.t.place[1]}: {operator}: {why}") from None
        if self.guarded:
            self.follow(operator, out, args)
        if operator in ("slice", "select"):
            place, first = (args[1] if len(args) > 1 else 0) % args[0].dim(), (args[2] if len(args) > 2 else 0) or 0
            self.views[id(out)] = (out, args[0], place, max(0, first + args[0].shape[place] * (first < 0)), args[4] if len(args) > 4 else 1)
        if operator in ("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "unsafe_chunk"):
            place, first = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % args[0].dim(), 0
            for part in out:
                self.views[id(part)] = (part, args[0], place, first, 1)
                first += part.shape[place]
        turns = self.turned(func, operator, out, args, kwargs) if not inplace else [None]
        for tensor, turn in zip(out if isinstance(out, (list, tuple)) else [out], turns):
            if turn is not None:
                self.alive.append(tensor)
                self.turns[id(tensor)] = turn
        if operator == "_local_scalar_dense" and (id(args[0]) not in self.values or self.of(args[0]).whole):
            return out  # of indices: as the example has it
        if operator == "_local_scalar_dense" and isinstance(out, float) and not out.is_integer():  # known again where an operator has it
            self.numbers_read[out] = self.t.detach(self.t.reshape(self.of(args[0]), []))
            return out
        if not known:
            results = list(out) if isinstance(out, (list, tuple)) else [out]
            self.alive += results
            self.own |= {id(x) for x in results}
            if draws(func) or any(id(x) in self.random for x in args):
                self.random |= {id(x) for x in results}
            self.widened(func, results, args, kwargs, inplace)
            return out  # a constant
        try:
            if any(id(x) in self.given for x in written):
                raise lib.BadInput("writes into what others read")
            rope = self.rotations.rope(turns[0])
            made = self.record(operator[: len(operator) - inplace], func, out, args, kwargs) if rope is None else rope
        except lib.BadInput as why:
            raise lib.BadInput(f"{self.t.place[0]}:{self.t.place[1]}: {operator}: {why}") from None
        if rope is not None:
            del self.turns[id(out)]
        for tensor, value in zip(out, made) if isinstance(made, list) else [(out, made)]:
            index = value.number is not None and tensor.dtype in (torch.int32, torch.int64)
            if len(value.dims) == tensor.dim() and not index:  # a constant may be longer than what it meets
                value = self.t.ordered(value, [d or (() if n == 1 else (Axis(n),)) for d, n in zip(value.dims, tensor.shape)])
            self.write(tensor, value, operator) if inplace else self.bind(tensor, value)
            self.rotations.remember(self.turns.get(id(tensor)), value, tensor.shape)
        return out

    # complex numbers, as two tensors

    def parts(self, x: Any) -> tuple[Value, Value]:
        """Real and imaginary; of a constant as it is in float64."""
        if id(x) in self.pairs:
            return self.pairs[id(x)]
        if not isinstance(x, torch.Tensor) or not x.is_complex():
            return self.numbers(x), self.t.number(0)
        wide = (self.exact[id(x)][0] if id(x) in self.exact else x).detach().cpu().numpy()
        real, imaginary = (self.t.constant(shortest(np.ascontiguousarray(a))) for a in (wide.real, wide.imag))
        return real, imaginary

    def complex(self, operator: str, func: Any, out: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        t = self.t
        self.alive.append(out)
        if operator in ("polar", "complex"):
            a, b = (self.numbers(x) for x in args)
            self.pairs[id(out)] = (a, b) if operator == "complex" else (t.together("mul", [a, t.map("cos", b)]), t.together("mul", [a, t.map("sin", b)]))
        elif operator == "view_as_complex":
            self.pairs[id(out)] = self.on_select(out, args[0], args[0].dim() - 1, 0), self.on_select(out, args[0], args[0].dim() - 1, 1)
        elif operator in ("view_as_real", "real", "imag", "abs"):
            a, b = self.parts(args[0])
            shape = list(args[0].shape)
            a, b = (t.ordered(v, [d or (() if n == 1 else (Axis(n),)) for d, n in zip([*[()] * (len(shape) - len(v.dims)), *v.dims], shape)]) for v in (a, b))
            if operator == "view_as_real":
                self.bind(out, t.concatenate([v.seen([*v.dims, ()]) for v in (a, b)], len(shape)))
            elif operator == "abs":
                self.bind(out, t.map("sqrt", t.together("add", [t.map("square", a), t.map("square", b)])))
            else:
                self.bind(out, a if operator == "real" else b)
        elif operator in ("mul", "add", "sub"):
            (a, b), (c, d) = (self.parts(x) for x in args[:2])
            products = [t.together("mul", [x, y]) for x, y in ((a, c), (b, d), (a, d), (b, c))] if operator == "mul" else []
            self.pairs[id(out)] = (t.together("sub", products[:2]), t.together("add", products[2:])) if products else (t.together(operator, [a, c]), t.together(operator, [b, d]))
        elif operator in ("_conj", "conj"):
            a, b = self.parts(args[0])
            self.pairs[id(out)] = a, t.map("neg", b)
        elif operator in SAME or operator == "detach":
            a, b = self.parts(args[0])
            self.pairs[id(out)] = (a, b) if operator in SAME else (t.detach(a), t.detach(b))
        elif operator in MOVES and isinstance(args[0], torch.Tensor):
            halves = []
            for v in self.parts(args[0]):  # as one of real numbers
                given = torch.zeros(args[0].shape)
                self.bind(given, v)
                moved = func(given, *args[1:], **kwargs)
                halves.append(self.record(operator, func, moved, (given, *args[1:]), kwargs))
            if not all(isinstance(v, Value) for v in halves):
                raise lib.BadInput("complex numbers, expected a product, a sum or a view of them")
            self.pairs[id(out)] = halves[0], halves[1]  # type: ignore[assignment]
        else:
            raise lib.BadInput("a program has no such operator")
        return out

    def widened(self, func: Any, results: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any], inplace: bool) -> None:
        """What a constant is in float64; of what is written into it is not known."""
        if inplace:
            place = args[0].data_ptr()
            self.exact = {key: x for key, x in self.exact.items() if x[1] != place}
            return
        if not any(isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()) and x.numel() <= LARGEST for x in results):
            return

        def of(x: Any) -> Any:
            if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
                return type(x)(map(of, x))
            known = self.exact.get(id(x))
            return x if known is None else Held.of(known[0], x.dtype, self.wide)  # type: ignore[union-attr]

        try:
            made = self.wide.__torch_dispatch__(func, (), of(tuple(args)), {key: of(x) for key, x in kwargs.items()})
        except Exception:  # an operator that has no float64
            return
        for x, held in zip(results, made if isinstance(made, (list, tuple)) else [made]):
            if isinstance(held, Held):
                self.exact[id(x)] = held.held.detach().clone(), x.data_ptr()
        self.wide.alive.clear()

    def remade(self, parameter: Any) -> None:
        """A parameter that is made of a known tensor, which has no gradient from there."""
        for x in self.alive:
            if id(x) in self.values and (x.data_ptr(), x.shape, x.stride()) == (parameter.data_ptr(), parameter.shape, parameter.stride()):
                return self.bind(parameter, self.t.detach(self.values[id(x)]))

    def nonzero(self, mask: Any) -> Any:
        """All indices, of which a mask chooses."""
        guard = Guard(self.t.truth(self.full(mask)), self.of(mask))
        grid = torch.ones(mask.shape, dtype=torch.bool, device=mask.device).nonzero()
        self.alive += [mask, grid]
        self.own.add(id(grid))
        self.guarded[id(grid)] = guard, None
        return grid

    def follow(self, operator: str, out: Any, args: Sequence[Any]) -> None:
        """What an operator makes of such indices: a column, or, of a mask that says which have any, all of them one after another."""
        guard, column = self.guarded.get(id(args[0]), (None, None)) if args else (None, None)
        inside = [x for a in args for x in (a if isinstance(a, (list, tuple)) else [a]) if id(x) in self.guarded]
        if not inside or operator in ("index", "index_add", "index_add_"):
            return
        place = args[1] if len(args) > 1 and isinstance(args[1], int) else 0
        made = list(out) if isinstance(out, (list, tuple)) else [out]
        if guard is not None and (operator in SAME or (operator == "slice" and out.shape == args[0].shape)):
            self.guarded[id(out)] = guard, column
        elif guard is not None and column is None and operator in ("unbind", "select", "squeeze") and (place % 2 == 1 or operator == "squeeze" and args[0].shape[1] == 1):
            for i, x in enumerate(made):
                self.guarded[id(x)] = guard, (args[2] if operator == "select" else i)
        elif not (guard is not None and operator in ("unbind", "select", "_local_scalar_dense") and has_any(guard.given)):
            raise lib.BadInput(f"{self.t.place[0]}:{self.t.place[1]}: {operator}: of indices that a mask chooses, expected those of rows, and index_add")
        self.alive += made

    def record(self, operator: str, func: Any, out: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value | list[Value]:
        handler = self.handler(operator)
        if handler is None:
            raise lib.BadInput(DRAWN if draws(func) else "a program has no such operator")
        if isinstance(out, torch.Tensor) and out.numel() == 0:
            return self.t.nothing(operator, out.shape)
        given, named = read_by(handler, func, args, kwargs)
        first = out if isinstance(out, torch.Tensor) else out[0]
        self.t.parts = {} if self.narrow and first.dtype in (torch.float32, torch.float64) else {"unfused": True}
        made = handler(out, *given, **named)
        for v, tensor in zip(made, out) if isinstance(made, list) else [(made, out)]:
            if not tensor.is_floating_point() and not (v.integer or v.refused or v.number is not None or (v.step is not None and v.step.known)):
                raise lib.BadInput("numbers as whole numbers")
        return made

    def handler(self, operator: str) -> Callable[..., Value | list[Value]] | None:
        """What writes an operator down: a function of its result and of those of its arguments that it reads."""
        t = self.t
        own: Callable[..., Value | list[Value]] | None = getattr(self, "on_" + operator, None)
        if own is not None:
            return own
        if operator in SAME:
            return self.copied
        if operator in MAPS:
            return lambda out, x: t.map(operator, self.numbers(x))
        if operator in ("add", "sub"):
            return lambda out, a, b, alpha=1: self.added(operator, a, b, alpha)
        if operator in BINARY:
            return lambda out, a, b: t.together(operator, [self.numbers(a), self.numbers(b)])
        if operator in COMPARISONS:
            return lambda out, a, b: t.compare(operator, self.of(a), self.of(b))
        if operator in MASKS:
            return lambda out, a, b: self.masks(operator, a, b)
        return None

    def copied(self, out: Any, x: Any) -> Value:
        v = self.of(x)
        if out.dtype == torch.bool and x.dtype != torch.bool:
            return self.t.compare("ne", v, self.t.number(0))
        if x.dtype == torch.bool != out.dtype and not (v.integer and v.truth and not v.inverted and not out.is_floating_point()):
            return self.t.truth(v)
        if out.is_floating_point() and not x.is_floating_point():
            return self.t.numbers(v)
        if x.is_floating_point() and not out.is_floating_point() and not (v.whole or v.refused or (v.number is not None and v.number.is_integer())):
            raise lib.BadInput("numbers as whole numbers")
        return self.t.map("cast", v, type=str(out.dtype).split(".")[1]) if rounds(x.dtype, out.dtype, self.t.casts) else v

    def added(self, operator: str, a: Any, b: Any, alpha: float) -> Value:
        if operator == "add" and alpha == 1 and (masked := self.masked(a, b) or self.masked(b, a)):
            return masked
        second = self.numbers(b)
        return self.t.together(operator, [self.numbers(a), second if alpha == 1 else self.t.together("mul", [second, self.t.number(alpha)])])

    def masks(self, operator: str, a: Any, b: Any) -> Value:
        if "logical" not in operator and any(isinstance(x, (int, float)) and not isinstance(x, bool) or isinstance(x, torch.Tensor) and x.dtype != torch.bool for x in (a, b)):
            return self.bits("and" if "and" in operator else operator, a, b)
        return self.t.both(MASKS[operator], self.of(a), self.of(b))

    def bits(self, how: str, a: Any, b: Any) -> Value:
        if how == "and" and isinstance(b, torch.Tensor) and id(b) in self.values:
            a, b = b, a
        if (isinstance(b, torch.Tensor) and id(b) in self.values) or how not in ("and", "left", "right"):
            raise lib.BadInput("the bits of whole numbers, expected masks, or constants")
        return self.t.bits(how, self.of(a), np.asarray(b), max(np.ndim(a), np.ndim(b)))

    def on_bitwise_left_shift(self, out: Any, a: Any, b: Any) -> Value:
        return self.bits("left", a, b)

    def on_bitwise_right_shift(self, out: Any, a: Any, b: Any) -> Value:
        return self.bits("right", a, b)

    on___lshift__, on___rshift__ = on_bitwise_left_shift, on_bitwise_right_shift

    # numbers one by one

    def on_detach(self, out: Any, x: Any) -> Value:
        return self.t.detach(self.of(x))

    def on_eq(self, out: Any, a: Any, b: Any) -> Value:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename == __file__:
            frame = frame.f_back
        if isinstance(b, int) and b == -100 and not out.any() and frame.f_code.co_filename.startswith(LIBRARIES[0]):  # as cross_entropy compares; nobody thinks of it
            return self.t.number(0).seen([()] * out.dim())
        return self.t.compare("eq", self.of(a), self.of(b))

    def on_logical_not(self, out: Any, x: Any) -> Value:
        return self.t.opposite(self.of(x)) if x.dtype == torch.bool else self.t.compare("eq", self.of(x), self.t.number(0))

    def on_bitwise_not(self, out: Any, x: Any) -> Value:
        if x.dtype != torch.bool:
            raise lib.BadInput("the bits of whole numbers, expected a mask")
        return self.t.opposite(self.of(x))

    def on_softplus(self, out: Any, x: Any, beta: float = 1, threshold: float = 20) -> Value:
        if threshold < 20:
            raise lib.BadInput(f"threshold is {threshold}, expected 20 or more: below it jumps")
        scaled = self.of(x) if beta == 1 else self.t.together("mul", [self.of(x), self.t.number(beta)])
        made = self.t.map("softplus", scaled)
        return made if beta == 1 else self.t.together("div", [made, self.t.number(beta)])

    def masked(self, x: Any, mask: Any) -> Value | None:
        """x and a tensor that the function makes of 0 and a number far below."""
        if not isinstance(mask, torch.Tensor) or id(mask) in self.values or mask.dim() == 0 or mask.max() != 0:
            return None
        low = float(mask[mask != 0].max()) if (mask != 0).any() else 0.0
        if low > -1e9 or (mask[mask != 0] != low).any():
            return None
        return self.t.where(self.t.constant((mask == 0).numpy()), self.of(x), self.t.number(low))

    def on_masked_fill(self, out: Any, x: Any, mask: Any, value: Any) -> Value:
        return self.t.where(self.of(mask), self.numbers(value), self.numbers(x))

    def on_log2(self, out: Any, x: Any) -> Value:
        return self.t.together("mul", [self.t.map("log", self.of(x)), self.t.number(1 / np.log(2))])

    def on_log10(self, out: Any, x: Any) -> Value:
        return self.t.together("mul", [self.t.map("log", self.of(x)), self.t.number(1 / np.log(10))])

    def on_tan(self, out: Any, x: Any) -> Value:
        return self.t.together("div", [self.t.map("sin", self.of(x)), self.t.map("cos", self.of(x))])

    def on_binary_cross_entropy_with_logits(self, out: Any, x: Any, y: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Value:
        if pos_weight is not None:
            raise lib.BadInput("pos_weight is a tensor, expected an operator without it")
        each = self.t.together("sub", [self.t.map("softplus", self.of(x)), self.t.together("mul", [self.of(x), self.numbers(y)])])
        return self.reduced(each if weight is None else self.t.together("mul", [each, self.of(weight)]), reduction)

    def on_prod(self, out: Any, x: Any, place: Any = None, _keepdim: bool = False) -> Value:
        v = self.full(x) if place is not None else self.t.reshape(self.full(x), [x.numel()])
        made = self.t.prod(v, (place or 0) % len(v.dims))
        return self.t.reshape(made, out.shape)

    def on_hypot(self, out: Any, x: Any, y: Any) -> Value:
        return self.t.map("sqrt", self.t.together("add", [self.t.map("square", self.of(x)), self.t.map("square", self.of(y))]))

    def on_trace(self, out: Any, x: Any) -> Value:
        return self.t.over("sum", self.on_diagonal(out, x), [0], False)

    def on_diag_embed(self, out: Any, x: Any, offset: int = 0, first: int = -2, second: int = -1) -> Value:
        if offset != 0 or (first % out.dim(), second % out.dim()) != (out.dim() - 2, out.dim() - 1):
            raise lib.BadInput("expected the diagonal of a square")
        v, at = self.full(x), np.arange(x.shape[-1])
        return self.t.where(self.t.constant(at[:, None] == at), v.seen([*v.dims[:-1], (), v.dims[-1]]), self.t.number(0))

    def on_diag(self, out: Any, x: Any, diagonal: int = 0) -> Value:
        return self.on_diag_embed(out, x, diagonal) if x.dim() == 1 else self.on_diagonal(out, x, diagonal)

    def on_linalg_cross(self, out: Any, x: Any, y: Any, *, dim: int = -1) -> Value:
        t, (v, w) = self.t, (self.full(p) for p in (x, y))
        turned = [t.together("mul", [t.rolled(v, dim % x.dim(), a), t.rolled(w, dim % x.dim(), b)]) for a, b in ((-1, 1), (1, -1))]
        return t.together("sub", turned)

    def on_upsample_nearest1d(self, out: Any, x: Any, _sizes: Any, _scale: Any = None, _second: Any = None, _third: Any = None) -> Value:
        if any(m % n for n, m in zip(x.shape[2:], out.shape[2:])):
            raise lib.BadInput("expected a size that is a multiple of what was")
        v = self.full(x)
        repeated = [d for n, m, own in zip(x.shape[2:], out.shape[2:], v.dims[2:]) for d in (own, (Axis(m // n),) if m > n else ())]
        return self.t.reshape(self.t.ordered(v.seen([*v.dims[:2], *[d for own in v.dims[2:] for d in (own, ())]]), [*v.dims[:2], *repeated]), out.shape)

    on_upsample_nearest2d = on_upsample_nearest3d = on_upsample_nearest1d

    def on_pixel_shuffle(self, out: Any, x: Any, factor: int) -> Value:
        parts = [*x.shape[:-3], x.shape[-3] // factor**2, factor, factor, *x.shape[-2:]]
        v, lead = self.t.reshape(self.full(x), parts), x.dim() - 3
        return self.t.reshape(self.t.ordered(v, [v.dims[i] for i in (*range(lead + 1), lead + 3, lead + 1, lead + 4, lead + 2)]), out.shape)

    def on_pixel_unshuffle(self, out: Any, x: Any, factor: int) -> Value:
        parts = [*x.shape[:-2], x.shape[-2] // factor, factor, x.shape[-1] // factor, factor]
        v, lead = self.t.reshape(self.full(x), parts), x.dim() - 3
        return self.t.reshape(self.t.ordered(v, [v.dims[i] for i in (*range(lead + 1), lead + 2, lead + 4, lead + 1, lead + 3)]), out.shape)

    def on_diagonal(self, out: Any, x: Any, offset: int = 0, first: int = 0, second: int = 1) -> Value:
        if x.dim() != 2 or offset != 0 or first == second or x.shape[0] != x.shape[1]:
            raise lib.BadInput("expected the diagonal of a square")
        return self.t.pick(self.full(x), self.t.constant(np.arange(x.shape[0]), anew=True))

    def on_log1p(self, out: Any, x: Any) -> Value:
        return self.t.log1p(self.of(x))

    def on_expm1(self, out: Any, x: Any) -> Value:
        return self.t.expm1(self.of(x))

    def on_sinh(self, out: Any, x: Any) -> Value:
        return self.t.sinh(self.of(x))

    def on_cosh(self, out: Any, x: Any) -> Value:
        return self.t.cosh(self.of(x))

    def on_sign(self, out: Any, x: Any) -> Value:
        return self.t.signum(self.numbers(x))

    on_sgn = on_sign

    def on_floor(self, out: Any, x: Any) -> Value:
        return self.t.rounded("floor", self.numbers(x))

    def on_ceil(self, out: Any, x: Any) -> Value:
        return self.t.rounded("ceil", self.numbers(x))

    def on_trunc(self, out: Any, x: Any) -> Value:
        return self.t.rounded("trunc", self.numbers(x))

    def on_frac(self, out: Any, x: Any) -> Value:
        return self.t.together("sub", [self.of(x), self.on_trunc(out, x)])

    def on_fmod(self, out: Any, x: Any, other: Any) -> Value:
        quotient = self.t.rounded("trunc", self.t.together("div", [self.numbers(x), self.numbers(other)]))
        return self.t.together("sub", [self.numbers(x), self.t.together("mul", [quotient, self.numbers(other)])])

    def on_round(self, out: Any, x: Any, *, decimals: int = 0) -> Value:
        if decimals == 0:
            return self.t.rounded("round", self.numbers(x))
        scale = self.t.number(10.0**decimals)
        return self.t.together("div", [self.t.rounded("round", self.t.together("mul", [self.of(x), scale])), scale])

    def on_hardshrink(self, out: Any, x: Any, by: float = 0.5) -> Value:
        return self.t.where(self.t.compare("gt", self.t.map("abs", self.of(x)), self.t.number(by)), self.of(x), self.t.number(0))

    def on_threshold(self, out: Any, x: Any, edge: float, value: float) -> Value:
        return self.t.where(self.t.compare("gt", self.of(x), self.t.number(edge)), self.of(x), self.t.number(value))

    def on_celu(self, out: Any, x: Any, alpha: float = 1.0) -> Value:
        return self.on_elu(out, x, alpha, 1, 1 / alpha)

    def on_logaddexp2(self, out: Any, x: Any, y: Any) -> Value:
        a, b, two = self.of(x), self.of(y), self.t.number(float(np.log(2)))
        apart = self.t.map("neg", self.t.map("abs", self.t.together("sub", [a, b])))
        tail = self.t.together("div", [self.t.map("softplus", self.t.together("mul", [apart, two])), two])
        return self.t.together("add", [self.t.together("maximum", [a, b]), tail])

    def on_exp2(self, out: Any, x: Any) -> Value:
        return self.t.power(self.t.number(2), self.numbers(x))

    def on_log_sigmoid_forward(self, out: Any, x: Any) -> list[Value]:
        return [self.t.map("neg", self.t.map("softplus", self.t.map("neg", self.of(x)))), self.t.number(0)]

    def on_addcmul(self, out: Any, x: Any, a: Any, b: Any, *, value: float = 1, how: str = "mul") -> Value:
        part = self.t.together(how, [self.numbers(a), self.numbers(b)])
        return self.t.together("add", [self.numbers(x), part if value == 1 else self.t.together("mul", [part, self.t.number(value)])])

    def on_addcdiv(self, out: Any, x: Any, a: Any, b: Any, *, value: float = 1) -> Value:
        return self.on_addcmul(out, x, a, b, value=value, how="div")

    def on_lerp(self, out: Any, x: Any, y: Any, weight: Any) -> Value:
        return self.t.together("add", [self.of(x), self.t.together("mul", [self.numbers(weight), self.t.together("sub", [self.of(y), self.of(x)])])])

    def on_hardsigmoid(self, out: Any, x: Any) -> Value:
        t = self.t
        return t.together("div", [t.map("clamp", t.together("add", [self.of(x), t.number(3)]), low=0.0, high=6.0, kink=0.0), t.number(6)])

    def on_hardswish(self, out: Any, x: Any) -> Value:
        t = self.t
        return t.together("div", [t.together("mul", [self.of(x), t.map("clamp", t.together("add", [self.of(x), t.number(3)]), low=0.0, high=6.0)]), t.number(6)])

    def on_softshrink(self, out: Any, x: Any, by: float = 0.5) -> Value:
        return self.t.together("sub", [self.of(x), self.t.map("clamp", self.of(x), low=-float(by), high=float(by))])

    def on_smooth_l1_loss(self, out: Any, x: Any, y: Any, reduction: int = 1, beta: float = 1.0) -> Value:
        return self.huber(x, y, reduction, beta, beta)

    def on_huber_loss(self, out: Any, x: Any, y: Any, reduction: int = 1, delta: float = 1.0) -> Value:
        return self.huber(x, y, reduction, delta, 1.0)

    def huber(self, x: Any, y: Any, reduction: int, edge: float, over: float) -> Value:
        """c (|x - y| - c / 2), c at most the edge."""
        t = self.t
        far = t.map("abs", t.together("sub", [self.of(x), self.of(y)]))
        near = t.together("minimum", [far, t.number(edge)])
        each = t.together("mul", [near, t.together("sub", [far, t.together("mul", [near, t.number(0.5)])])])
        return self.reduced(each if over == 1 else t.together("div", [each, t.number(over)]), reduction)

    def reduced(self, each: Value, reduction: int) -> Value:
        return self.t.over(("", "mean", "sum")[reduction], each, range(len(each.dims)), False) if reduction else each

    def on_xlogy(self, out: Any, x: Any, y: Any) -> Value:
        return self.t.together("mul", [self.of(x), self.t.map("log", self.of(y))])

    def on_logaddexp(self, out: Any, x: Any, y: Any) -> Value:
        a, b = self.of(x), self.of(y)
        return self.t.together("add", [self.t.together("maximum", [a, b]), self.t.map("softplus", self.t.map("neg", self.t.map("abs", self.t.together("sub", [a, b]))))])

    def on_rsub(self, out: Any, x: Any, other: Any, alpha: float = 1) -> Value:
        v = self.numbers(x)
        return self.t.together("sub", [self.numbers(other), v if alpha == 1 else self.t.together("mul", [v, self.t.number(alpha)])])

    def on_remainder(self, out: Any, x: Any, other: Any) -> Value:
        return self.t.divided("mod", self.of(x), self.of(other))

    def on_floor_divide(self, out: Any, x: Any, other: Any) -> Value:
        return self.t.divided("floor_div", self.of(x), self.of(other))

    def on_div(self, out: Any, x: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
        if rounding_mode == "floor":
            return self.on_floor_divide(out, x, other)
        if rounding_mode == "trunc":
            return self.t.rounded("trunc", self.t.together("div", [self.numbers(x), self.numbers(other)]))
        if rounding_mode is not None:
            raise lib.BadInput(f"rounding_mode is {rounding_mode}, expected floor or trunc")
        return self.t.together("div", [self.numbers(x), self.numbers(other)])

    def on_pow(self, out: Any, x: Any, power: Any) -> Value:
        return self.t.power(self.numbers(x), self.numbers(power))

    def on_gelu(self, out: Any, x: Any, approximate: str = "none") -> Value:
        return self.t.map("gelu" if approximate == "tanh" else "gelu_exact", self.of(x))

    def on_clamp(self, out: Any, x: Any, min: Any = None, max: Any = None) -> Value:  # noqa: A002
        v = self.numbers(x)
        if v.whole:
            v = v if min is None else self.t.together("maximum", [v, self.numbers(min)])
            return v if max is None else self.t.together("minimum", [v, self.numbers(max)])
        kink = slope_on_bound(isinstance(min, torch.Tensor) or isinstance(max, torch.Tensor))
        if any(isinstance(bound, torch.Tensor) for bound in (min, max)):
            v = v if min is None else self.t.together("maximum", [v, self.numbers(min)], kink=kink)
            return v if max is None else self.t.together("minimum", [v, self.numbers(max)], kink=kink)
        min, max = (None if bound in (float("-inf"), float("inf")) else bound for bound in (min, max))
        if min is not None and max is not None and min > max:
            return self.t.number(float(max)).seen([()] * x.dim())
        return self.t.map("clamp", v, kink=kink, **{key: float(value) for key, value in (("low", min), ("high", max)) if value is not None})

    def on_clamp_min(self, out: Any, x: Any, low: Any) -> Value:
        return self.on_clamp(out, x, low)

    def on_clamp_max(self, out: Any, x: Any, high: Any) -> Value:
        return self.on_clamp(out, x, None, high)

    def on_hardtanh(self, out: Any, x: Any, low: float = -1, high: float = 1) -> Value:
        return self.t.map("clamp", self.of(x), low=float(low), high=float(high), kink=0.0)

    def on_leaky_relu(self, out: Any, x: Any, slope: float = 0.01) -> Value:
        if not 0 <= slope <= 1:
            raise lib.BadInput(f"the slope {slope}, expected one from 0 to 1")
        return self.t.together("maximum", [self.of(x), self.t.together("mul", [self.of(x), self.t.number(slope)])], kink=0.0)

    def on_elu(self, out: Any, x: Any, alpha: float = 1, scale: float = 1, inner: float = 1) -> Value:
        t, v = self.t, self.of(x)
        low = t.together("minimum", [v, t.number(0)], kink=1.0)
        low = low if inner == 1 else t.together("mul", [low, t.number(inner)])
        low = t.expm1(low) if alpha == 1 else t.together("mul", [t.expm1(low), t.number(alpha)])
        made = t.together("add", [t.map("relu", v), low])
        return made if scale == 1 else t.together("mul", [made, t.number(scale)])

    def on_mish(self, out: Any, x: Any) -> Value:
        return self.t.together("mul", [self.of(x), self.t.map("tanh", self.t.map("softplus", self.of(x)))])

    def on_glu(self, out: Any, x: Any, place: int = -1) -> Value:
        half = x.shape[place] // 2
        a, b = (self.t.slice(self.of(x), place, first, first + half) for first in (0, half))
        return self.t.together("mul", [a, self.t.map("sigmoid", b)])

    def on_where(self, out: Any, mask: Any, a: Any, b: Any) -> Value:
        return self.t.where(self.of(mask), self.numbers(a), self.numbers(b))

    # along dimensions

    def on_sum(self, out: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Value:
        return self.t.over("sum", self.t.truth(self.full(x)) if x.dtype == torch.bool else self.t.numbers(self.full(x)), dims if dims else range(x.dim()), keepdim)

    def on_mean(self, out: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Value:
        return self.t.over("mean", self.full(x), dims if dims else range(x.dim()), keepdim)

    def on_any(self, out: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Value:
        places = range(x.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
        return self.t.whether_any(self.of(x), places, keepdim)

    def on_all(self, out: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Value:
        places = range(x.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
        return self.t.opposite(self.t.whether_any(self.t.opposite(self.t.truth(self.full(x))), places, keepdim))

    def on_amax(self, out: Any, x: Any, dims: Any = (), keepdim: bool = False) -> Value:
        return self.t.over("max", self.numbers(x), dims if dims else range(x.dim()), keepdim)

    def on_amin(self, out: Any, x: Any, dims: Any = (), keepdim: bool = False) -> Value:
        return self.t.map("neg", self.t.over("max", self.t.map("neg", self.numbers(x)), dims if dims else range(x.dim()), keepdim))

    def on_max(self, out: Any, x: Any, place: Any = None, keepdim: bool = False) -> Value | list[Value]:
        return self.most(self.on_amax, "max", out, x, place, keepdim)

    def on_min(self, out: Any, x: Any, place: Any = None, keepdim: bool = False) -> Value | list[Value]:
        return self.most(self.on_amin, "min", out, x, place, keepdim)

    def most(self, of: Callable[..., Value], name: str, out: Any, x: Any, place: Any, keepdim: bool) -> Value | list[Value]:
        if isinstance(out, torch.Tensor):
            return of(out, x)
        return [of(out[0], x, [place], keepdim), self.best(out[1], x, place, name == "min")]

    def best(self, out: Any, x: Any, place: Any, least: bool = False) -> Value:
        """Where the largest is along a dimension, or of all numbers."""
        v = self.of(x)
        if place is None:
            v, place = self.t.reshape(v, [x.numel()]), 0
        place %= len(v.dims)
        v = self.t.ordered(v, [d for i, d in enumerate(v.dims) if i != place] + [v.dims[place]])
        index = self.t.top_k(self.t.map("neg", v) if least else v, 1)
        return self.t.reshape(index, out.shape)

    def on_var(self, out: Any, x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
        t, v, places = self.t, self.of(x), list(dims) if dims else range(x.dim())
        count = float(size_of([a for p in places for a in v.dims[p]]))
        squares = t.map("square", t.together("sub", [v, t.over("mean", v, places, True)]))
        return t.together("div", [t.over("sum", squares, places, keepdim), t.number(count - (1 if correction is None else correction))])

    def on_std(self, out: Any, x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
        return self.t.map("sqrt", self.on_var(out, x, dims, correction=correction, keepdim=keepdim))

    def on_var_mean(self, out: Any, x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> list[Value]:
        return [self.on_var(out[0], x, dims, correction=correction, keepdim=keepdim), self.on_mean(out[1], x, dims, keepdim)]

    def on_mse_loss(self, out: Any, x: Any, y: Any, reduction: int = 1) -> Value:
        return self.reduced(self.t.map("square", self.t.together("sub", [self.of(x), self.of(y)])), reduction)

    def on_linalg_solve_triangular(self, out: Any, a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Value:
        if not left:
            raise lib.BadInput("left is False, expected True")
        return self.t.solved(self.full(a), self.full(b), not upper, unitriangular)

    def on_linalg_vector_norm(self, out: Any, x: Any, order: Any = 2, dims: Any = None, keepdim: bool = False) -> Value:
        return self.norm_of(self.full(x), 2 if order is None else order, [dims] if isinstance(dims, int) else dims if dims else range(x.dim()), keepdim)

    def norm_of(self, v: Value, order: float, places: Any, keepdim: bool) -> Value:
        t, size = self.t, None if order == 2 else self.t.map("abs", v)
        if size is None:
            return t.map("sqrt", t.over("sum", t.map("square", v), places, keepdim))
        if order in (1, float("inf")):
            return t.over("sum" if order == 1 else "max", size, places, keepdim)
        if order < 1:
            raise lib.BadInput(f"the norm {order}, expected 1 or more")
        return t.power(t.over("sum", t.power(size, t.number(order)), places, keepdim), t.number(1 / order))

    on_norm = on_linalg_vector_norm

    def on_nll_loss_forward(self, out: Any, logs: Any, target: Any, weight: Any, reduction: int, ignored: int) -> list[Value]:
        if weight is not None or logs.dim() != 2:
            raise lib.BadInput("expected logs [T,V], and no weights")
        labels = self.of(target)
        each = self.t.map("neg", self.t.pick(self.of(logs), labels))
        if ignored == -100 and not bool((target == ignored).any()):  # nobody thinks of it
            return [self.t.over(("", "mean", "sum")[reduction], each, [0], False) if reduction else each, self.t.number(logs.shape[0])]
        over = self.t.compare("eq", labels, self.t.number(ignored))
        each, count = self.t.where(over, self.t.number(0), each), self.t.over("sum", self.t.truth(self.t.opposite(over)), [0], False)
        loss = self.t.over("sum", each, [0], False) if reduction else each
        return [self.t.together("div", [loss, count]) if reduction == 1 else loss, count]

    def on_logsumexp(self, out: Any, x: Any, dims: Any, keepdim: bool = False) -> Value:
        return self.t.over("logsumexp", self.of(x), dims, keepdim, unfused=True)

    def on__softmax(self, out: Any, x: Any, dim: int) -> Value:
        return self.t.along("softmax", self.of(x), dim)

    def on__safe_softmax(self, out: Any, x: Any, dim: int) -> Value:
        """Of rows of which a mask leaves nothing 0."""
        v, shown = self.of(x), (x != float("-inf")).any(dim, keepdim=True)
        made = self.t.along("softmax", v, dim)
        return made if shown.all() or not self.t.masked_by_constant(v) else self.t.where(self.t.constant(shown.cpu().numpy()), made, self.t.number(0))

    def on__log_softmax(self, out: Any, x: Any, dim: int) -> Value:
        v = self.of(x)
        return self.t.together("sub", [v, self.t.over("logsumexp", v, [dim], True)])

    def on_cumsum(self, out: Any, x: Any, dim: int) -> Value:
        return self.t.along("cumsum", self.full(x), dim)

    def on_cumprod(self, out: Any, x: Any, dim: int) -> Value:
        return self.t.cumprod(self.of(x), dim % x.dim())

    def on_cummax(self, out: Any, x: Any, dim: int) -> list[Value]:
        return [self.t.up_to("max", self.full(x), dim % x.dim()), self.t.nothing("cummax", [0])]

    def on_cummin(self, out: Any, x: Any, dim: int) -> list[Value]:
        return [self.t.map("neg", self.t.up_to("max", self.t.map("neg", self.full(x)), dim % x.dim())), self.t.nothing("cummin", [0])]

    on__cummax_helper, on__cummin_helper = on_cummax, on_cummin

    def on_logcumsumexp(self, out: Any, x: Any, dim: int) -> Value:
        return self.t.up_to("logsumexp", self.full(x), dim % x.dim(), unfused=True)

    on__logcumsumexp = on_logcumsumexp

    def on_kthvalue(self, out: Any, x: Any, k: int, place: int = -1, _keepdim: bool = False) -> list[Value]:
        """The k-th from the least on."""
        v, index = self.on_topk(out, x, k, place, False)
        made = [self.t.slice(w, place, k - 1, k) for w in (v, index)]
        return [self.t.reshape(w, y.shape) for w, y in zip(made, out)]

    def on_median(self, out: Any, x: Any, place: Any = None, _keepdim: bool = False) -> Value | list[Value]:
        """Of an even number of numbers the lower one in the middle."""
        if place is not None:
            return self.on_kthvalue(out, x, (x.shape[place] + 1) // 2, place)
        flat = self.t.reshape(self.full(x), [x.numel()])
        index = self.t.top_k(self.t.map("neg", flat), (x.numel() + 1) // 2)
        return self.t.reshape(self.t.slice(self.t.pick(flat, index), 0, (x.numel() - 1) // 2, x.numel()), [])

    def on_isnan(self, out: Any, x: Any) -> Value:
        return self.t.number(0).seen([()] * x.dim())

    on_isinf = on_isnan

    def on_isfinite(self, out: Any, x: Any) -> Value:
        return self.t.number(1).seen([()] * x.dim())

    def on_nan_to_num(self, out: Any, x: Any, _nan: Any = None, _above: Any = None, _below: Any = None) -> Value:
        return self.of(x)  # which are all finite

    def on_native_layer_norm(self, out: Any, x: Any, shape: Any, weight: Any, bias: Any, epsilon: float) -> list[Value]:
        last = [x.dim() - 1 - i for i in range(len(shape))]
        mean = self.t.over("mean", self.of(x), last, True)
        variance = self.t.over("mean", self.t.map("square", self.t.together("sub", [self.of(x), mean])), last, True)
        others = [mean, self.t.map("rsqrt", self.t.together("add", [variance, self.t.number(float(epsilon))]))]
        if len(shape) != 1 or weight is None or bias is None or shape[0] == 1:
            return [self.scaled(self.t.normed(self.of(x), last, epsilon), weight, bias, len(shape), True), *others]
        v, (w, b) = self.of(x), (self.of(p) for p in (weight, bias))
        v = self.t.merged(v, [len(v.dims) - 1])
        made = [self.t.fit(p, 0, v.dims[-1]) for p in (w, b)]
        y = self.t.call("layer_norm", [v, *made], v.dims, epsilon=float(epsilon))
        self.t.steps[-1].stores = True  # sums over rows, on processors
        return [y, *others]

    def scaled(self, v: Value, weight: Any, bias: Any, rank: int, stores: bool = False) -> Value:
        """v times the weight plus the bias, whose dimensions begin there from the end."""
        for step, p in (("mul", weight), ("add", bias)):
            if p is not None:
                own = self.of(p)
                v = self.t.together(step, [v, own.seen([*own.dims, *[()] * (rank - len(own.dims))])])
                if v.step is not None:
                    v.step.stores |= stores
        return v

    def on_native_batch_norm(self, out: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, _momentum: float, epsilon: float) -> list[Value]:
        def channels(p: Any) -> Value | None:
            return None if p is None else self.of(p).seen([*self.of(p).dims, *[()] * (x.dim() - 2)])

        if training or mean is None:
            y = self.t.normed(self.of(x), [i for i in range(x.dim()) if i != 1], epsilon, channels(weight), channels(bias))
        else:
            y = self.t.centred(self.of(x), channels(mean), channels(variance), epsilon, channels(weight), channels(bias))  # type: ignore[arg-type]
        return [y, *[self.t.nothing("batch_norm", [0])] * (len(out) - 1)]

    def on_native_group_norm(self, out: Any, x: Any, weight: Any, bias: Any, _batch: int, channels: int, _rest: int, groups: int, epsilon: float) -> list[Value]:
        shape = [groups, channels // groups]
        w, b = (None if p is None else self.t.reshape(self.of(p), [*shape, *[1] * (x.dim() - 2)]) for p in (weight, bias))
        v = self.t.reshape(self.of(x), [x.shape[0], *shape, *x.shape[2:]])
        y = self.t.reshape(self.t.normed(v, range(2, len(v.dims)), epsilon, w, b), x.shape)
        return [y, *[self.t.nothing("group_norm", [0])] * 2]

    # products

    def on_mm(self, out: Any, a: Any, b: Any) -> Value:
        return self.t.product(self.full(a), self.full(b), 0)

    def on_bmm(self, out: Any, a: Any, b: Any) -> Value:
        return self.t.product(self.full(a), self.full(b), 1)

    def on_addmm(self, out: Any, x: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Value:
        t, made = self.t, self.t.product(self.full(a), self.full(b), a.dim() - 2)
        if alpha != 1:
            made = t.together("mul", [made, t.number(alpha)])
        if beta == 0:
            return made
        return t.together("add", [made, self.of(x) if beta == 1 else t.together("mul", [self.of(x), t.number(beta)])])

    on_baddbmm = on_addmm

    def on__scaled_mm(self, out: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> Value:
        """Of scales of rows and columns, or of the whole."""
        if any(s.dim() > 0 and s.numel() not in (1, n) for s, n in zip((scale_a, scale_b), out.shape)):
            raise lib.BadInput("scales of blocks, expected one of each row and column, or of the whole")
        made = functools.reduce(lambda v, s: self.t.together("mul", [v, self.of(s)]), (scale_a, scale_b), self.on_mm(out, a, b))
        return made if bias is None else self.t.together("add", [made, self.of(bias)])

    def on_mv(self, out: Any, a: Any, b: Any) -> Value:
        return self.t.product(self.full(a), self.full(b), 0)

    on_dot = on_mv

    def on__trilinear(self, out: Any, a: Any, w: Any, b: Any, first: Any, of_w: Any, last: Any, over: Any, _unroll: int = 1) -> Value:
        """Of a bilinear layer."""
        if (list(first), list(of_w), list(last), list(over)) != ([1, 3], [0], [1, 2], [2, 3]):
            raise lib.BadInput("expected what a bilinear layer has")
        inner = self.t.contract(self.full(a), self.full(w), ([], []), ([1], [1]))  # rows, results, b's
        return self.t.contract(inner, self.full(b), ([0], [0]), ([2], [1]))

    def on__cdist_forward(self, out: Any, x: Any, y: Any, power: float, _mode: Any = None) -> Value:
        t, v, w = self.t, self.full(x), self.full(y)
        apart = t.together("sub", [v.seen([*v.dims[:-1], (), v.dims[-1]]), w.seen([*w.dims[:-2], (), *w.dims[-2:]])])
        return self.norm_of(apart, power, [len(apart.dims) - 1], False)

    def on__euclidean_dist(self, out: Any, x: Any, y: Any) -> Value:
        """By a product, as PyTorch computes it of many rows."""
        t, v, w, last = self.t, self.full(x), self.full(y), x.dim() - 1
        ones = [t.ordered(t.number(1), [*of.dims[:-1], t.fresh(1)]) for of in (v, w)]
        squares = [t.over("sum", t.map("square", of), [last], True) for of in (v, w)]
        a = t.concatenate([t.together("mul", [v, t.number(-2)]), squares[0], ones[0]], last)
        b = t.concatenate([w, ones[1], squares[1]], last)
        far = t.product(a, self.t.ordered(b, swapped(b.dims, last - 1, last)), x.dim() - 2)
        return t.map("sqrt", t.map("clamp", far, low=0.0, kink=slope_on_bound(False)))

    def on_dist(self, out: Any, x: Any, y: Any, power: float = 2) -> Value:
        apart = self.t.together("sub", [self.full(x), self.full(y)])
        return self.norm_of(apart, power, range(len(apart.dims)), False)

    def on_convolution(self, out: Any, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
                       output_padding: Any, groups: int) -> Value:
        t, rank, taps = self.t, x.dim() - 2, list(w.shape[2:])
        stride, padding, dilation, output_padding = (list(of) * (rank if len(of) == 1 else 1) for of in (stride, padding, dilation, output_padding))
        t.lone(taps)
        v, own = self.full(x), self.full(w)
        around = [(p, p) for p in padding]
        if transposed:
            own = t.reshape(own, [groups, x.shape[1] // groups, *w.shape[1:]])
            own = t.reshape(t.ordered(own, swapped(own.dims, 1, 2)), [groups * w.shape[1], x.shape[1] // groups, *taps])
            for i in range(rank):
                v, own = t.spread(v, 2 + i, stride[i]), t.flipped(own, 2 + i) if taps[i] > 1 else own
            reach = [d * (k - 1) - p for d, k, p in zip(dilation, taps, padding)]
            around, stride = [(n, n + more) for n, more in zip(reach, output_padding)], [1] * rank
        elif v.origin is not None and v.came("pad") and v.origin.places[0] == 2 and around[0] == (0, 0):
            around[0], v = (v.origin.places[1], 0), v.came("pad")[0]
        made = t.convolution(v, own, stride, dilation, around, groups)
        if around == [(taps[0] - 1, taps[0] - 1)] and (groups, w.shape[1]) == (w.shape[0], 1) and (stride, dilation) == ([1], [1]) and not transposed:
            made.origin = Origin("convolution", (v, own), made.dims)  # the step, where what lies behind is cut off
        return self.scaled(made, None, bias, rank + 1)

    def pooled(self, step: str, out: Any, x: Any, sizes: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int] = (1,)) -> Value:
        rank = len(sizes)
        stride, padding, dilation = (list(of) * (rank if len(of) == 1 else 1) for of in (stride or sizes, padding, dilation))
        made = self.t.pooled(step, self.full(x), sizes, stride, dilation, [(p, p) for p in padding])
        if [size_of(d) for d in made.dims] != list(out.shape):
            raise lib.BadInput("a last window that is not whole")
        return made

    def on_avg_pool2d(self, out: Any, x: Any, sizes: Any, stride: Any = (), padding: Any = (0,), _ceil_mode: bool = False, count_include_pad: bool = True) -> Value:
        if not count_include_pad and any(padding):
            raise lib.BadInput("count_include_pad is False, expected True")
        return self.pooled("mean", out, x, sizes, stride, padding)

    on_avg_pool1d = on_avg_pool3d = on_avg_pool2d

    def on_max_pool2d_with_indices(self, out: Any, x: Any, sizes: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), _ceil_mode: bool = False) -> list[Value]:
        return [self.pooled("max", out[0], x, sizes, stride, padding, dilation), self.t.nothing("max_pool", [0])]

    on_max_pool3d_with_indices = on_max_pool2d_with_indices

    def on__adaptive_avg_pool2d(self, out: Any, x: Any, _sizes: Any) -> Value:
        rank = len(_sizes)
        if any(n % m for n, m in zip(x.shape[-rank:], out.shape[-rank:])):
            raise lib.BadInput("windows of several sizes")
        sizes = [n // m for n, m in zip(x.shape[-rank:], out.shape[-rank:])]
        return self.pooled("mean", out, x, sizes, sizes, [0])

    on__adaptive_avg_pool3d = on__adaptive_avg_pool2d

    def on_unfold(self, out: Any, x: Any, place: int, size: int, step: int) -> Value:
        place %= x.dim()
        made = self.t.windows(self.full(x), place, size, step)
        return self.t.ordered(made, [d for i, d in enumerate(made.dims) if i != place + 1] + [made.dims[place + 1]])

    # moves

    # an argument with a _ in front is said by the shape of the result, or written over

    def on_view(self, out: Any, x: Any, _shape: Any, _stride: Any = None) -> Value:
        return self.t.reshape(self.of(x), out.shape)

    on__unsafe_view = on_reshape = on__reshape_alias = on_view

    def on_permute(self, out: Any, x: Any, order: Sequence[int]) -> Value:
        v = self.of(x)
        return self.t.ordered(v, [v.dims[i] for i in order])

    def on_transpose(self, out: Any, x: Any, first: int, second: int) -> Value:
        return self.on_permute(out, x, swapped(range(x.dim()), first, second))

    def on_t(self, out: Any, x: Any) -> Value:
        return self.on_permute(out, x, range(x.dim() - 1, -1, -1))

    def on_unsqueeze(self, out: Any, x: Any, place: int) -> Value:
        v = self.of(x)
        dims = list(v.dims)
        dims.insert(place % (x.dim() + 1), ())
        return v.seen(dims)

    def on_squeeze(self, out: Any, x: Any, _place: Any = None) -> Value:
        return self.t.reshape(self.of(x), out.shape)

    def on_expand(self, out: Any, x: Any, _shape: Any) -> Value:
        v = self.of(x)
        v = v.seen([()] * (len(out.shape) - len(v.dims)) + list(v.dims))
        v = self.t.renamed(v, [() if size_of(d) == 1 != n else d for d, n in zip(v.dims, out.shape)])  # an axis of size 1 is repeated
        return self.t.ordered(v, [(Axis(n),) if not d and n != 1 else d for d, n in zip(v.dims, out.shape)])

    def on_slice(self, out: Any, x: Any, place: int = 0, first: Any = None, end: Any = None, step: int = 1) -> Value:
        size = x.shape[place]
        if step != 1:
            first = (first or 0) + size * ((first or 0) < 0)
            v = self.of(x)
            whole = first < step and out.shape[place] * step == size
            if not whole:
                if first + out.shape[place] * step > size:
                    raise lib.BadInput("every few indices of a part")
                v, first = self.t.slice(v, place, first, first + out.shape[place] * step), 0
            return self.t.every(v, place % x.dim(), first, step)
        first, end = (max(0, i + size * (i < 0)) for i in (first or 0, size if end is None else min(end, size)))
        v = self.of(x)
        biased = v.came("add")  # what lies behind the first ones of a causal convolution is cut off
        convolved = (biased[0] if biased else v).came("convolution")
        if convolved and place % x.dim() == 2 and (first, end) == (0, size_of(convolved[0].dims[2])):
            made = self.t.causal(*convolved)
            return self.t.together("add", [made, *biased[1:]]) if biased else made
        return self.t.slice(v, place, first, end)

    def on_repeat(self, out: Any, x: Any, times: Sequence[int]) -> Value:
        return self.t.tiled(self.of(x), times)

    def on_flip(self, out: Any, x: Any, places: Sequence[int]) -> Value:
        v = self.of(x)
        for place in places:
            v = self.t.flipped(v, place % x.dim())
        return v

    def on_roll(self, out: Any, x: Any, shifts: Sequence[int], places: Sequence[int] = ()) -> Value:
        if not places:
            raise lib.BadInput("expected the dimensions that it moves along")
        v = self.of(x)
        for place, by in zip(places, shifts):
            v = self.t.rolled(v, place % x.dim(), by)
        return v

    def on_split(self, out: Any, x: Any, _size: Any, place: int = 0) -> list[Value]:
        made, first = [], 0
        for part in out:
            made.append(self.t.slice(self.of(x), place, first, first + part.shape[place]))
            first += part.shape[place]
        return made

    on_split_with_sizes = on_chunk = on_unsafe_split = on_unsafe_split_with_sizes = on_unsafe_chunk = on_split

    def on_select(self, out: Any, x: Any, place: int, index: int) -> Value:
        return self.t.reshape(self.t.slice(self.of(x), place, index % x.shape[place], index % x.shape[place] + 1), out.shape)

    def on_cat(self, out: Any, parts: Any, place: int = 0) -> Value:
        parts = [x for x in parts if x.numel()]
        joined = self.rotations.joined([self.operand(x) for x in parts], place)
        return self.t.concatenate([v if isinstance(v, Value) else self.full(parts[v]) for v in joined], place)

    def on_stack(self, out: Any, parts: Any, place: int = 0) -> Value:
        place %= out.dim()
        wholes = [self.full(p) for p in parts]
        return self.t.concatenate([v.seen([*v.dims[:place], (), *v.dims[place:]]) for v in wholes], place)

    def on_unbind(self, out: Any, x: Any, place: int = 0) -> list[Value]:
        return [self.on_select(part, x, place, i) for i, part in enumerate(out)]

    def on_embedding(self, out: Any, table: Any, index: Any, padding_idx: int = -1) -> Value:
        made = self.t.rows(self.of(table), self.of(index))
        if padding_idx < 0:
            return made
        padding = self.t.compare("eq", self.of(index), self.t.number(padding_idx))  # whose row has no gradient
        padding = padding.seen([*padding.dims, *[()] * (len(made.dims) - len(padding.dims))])
        return self.t.where(padding, self.t.detach(made), made)

    def on_index(self, out: Any, x: Any, indices: Sequence[Any]) -> Value:
        first = next((i for i, index in enumerate(indices) if index is not None), 0)
        pairs = [self.guarded[id(index)] for index in indices[first:] if id(index) in self.guarded]
        if pairs:
            guard, columns = pairs[0][0], [column for _, column in pairs if column is not None]
            if len(columns) != len(indices) - first or any(own is not guard for own, _ in pairs):
                raise lib.BadInput("indices that a mask chooses, and others")
            return self.t.chosen(self.full(x), guard, columns, first)
        if len(indices) == 2 == x.dim() and all(i is not None for i in indices):
            rows, index = indices  # each row's number at its index
            if rows.dim() == index.dim() and index.shape == out.shape and rows.shape[0] == rows.numel() and rows.flatten().equal(torch.arange(x.shape[0])):
                return self.t.pick(self.of(x), self.of(index))
        v, place, index = self.one_index(x, indices)
        return self.rows(v, place, index)

    def one_index(self, x: Any, indices: Sequence[Any]) -> tuple[Value, int, Value]:
        """Indices of several dimensions that follow each other, as one of them all together."""
        given = [i for i, index in enumerate(indices) if index is not None]
        if not given or given != list(range(given[0], given[-1] + 1)) or any(indices[i].dtype == torch.bool for i in given):
            raise lib.BadInput("expected indices of dimensions that follow each other")
        v, places = self.full(x), given[0]
        if len(given) == 1:
            return v, places, self.positive(indices[places], x.shape[places])
        flat = self.t.numbers(self.positive(indices[given[0]], x.shape[given[0]]))
        for i in given[1:]:
            flat = self.t.together("add", [self.t.together("mul", [flat, self.t.number(x.shape[i])]), self.t.numbers(self.positive(indices[i], x.shape[i]))])
        size = int(np.prod([x.shape[i] for i in given]))
        return self.t.merged(self.t.reshape(v, [*x.shape[:places], size, *x.shape[given[-1] + 1 :]]), [places]), places, flat

    def positive(self, index: Any, size: int) -> Value:
        """Known ones from the end, as from the beginning."""
        known = id(index) not in self.values and bool((index < 0).any())
        return self.t.constant(array_of(torch.where(index < 0, index + size, index))) if known else self.of(index)

    def on_index_put(self, out: Any, x: Any, indices: Sequence[Any], given: Any, accumulate: bool = False, _unsafe: bool = False) -> Value:
        masks = [index for index in indices if index is not None]
        if len(masks) == 1 == len(indices) and masks[0].dtype == torch.bool and given.dim() == 0 and not accumulate:
            mask = self.of(masks[0])
            return self.t.where(mask.seen([*mask.dims, *[()] * (x.dim() - len(mask.dims))]), self.numbers(given), self.numbers(x))
        v, place, index = self.one_index(x, indices)
        made = self.t.written_at(v, place, index if not index.whole else self.t.indices(index), self.numbers(given), accumulate)
        return self.t.reshape(made, x.shape)

    on__index_put_impl = on__unsafe_index_put = on_index_put

    def on_index_copy(self, out: Any, x: Any, place: int, index: Any, rows: Any) -> Value:
        return self.t.written_at(self.full(x), place % x.dim(), self.of(index), self.numbers(rows), False)

    def on_index_fill(self, out: Any, x: Any, place: int, index: Any, number: Any) -> Value:
        return self.t.written_at(self.full(x), place % x.dim(), self.of(index), self.numbers(number), False)

    def on_scatter_reduce(self, out: Any, x: Any, place: int, index: Any, given: Any, reduce: str, *, include_self: bool = True) -> Value:
        if reduce != "sum":
            raise lib.BadInput(f"reduce is {reduce}, expected sum")
        if not include_self:
            raise lib.BadInput("include_self is False, expected True")
        return self.scattered(x, place, index, given, True)

    def rows(self, v: Value, place: int, index: Value) -> Value:
        """Of any dimension, in whose place those of the index are."""
        if place == 0:
            return self.t.rows(v, index)
        made = self.t.rows(self.t.ordered(v, [v.dims[place], *v.dims[:place], *v.dims[place + 1 :]]), index)
        own, rest = made.dims[: len(index.dims)], made.dims[len(index.dims) :]
        return self.t.ordered(made, [*rest[:place], *own, *rest[place:]])

    def on_gather(self, out: Any, x: Any, place: int, index: Any) -> Value:
        last, (v, i) = x.dim() - 1, (self.of(x), self.of(index))
        if place % x.dim() == last:
            return self.t.pick(v, i)
        v, i = (self.t.ordered(w, swapped(w.dims, place % x.dim(), last)) for w in (v, i))
        made = self.t.pick(v, i)
        return self.t.ordered(made, swapped(made.dims, place % x.dim(), last))

    def on_copy(self, out: Any, _before: Any, given: Any) -> Value:
        v = self.numbers(given) if out.is_floating_point() else self.of(given)
        return v.seen([()] * (out.dim() - len(v.dims)) + list(v.dims))

    on_fill = on_copy

    def on_zero(self, out: Any, _before: Any) -> Value:
        return self.t.number(0).seen([()] * out.dim())

    def on_constant_pad_nd(self, out: Any, x: Any, pad: Sequence[int], number: float = 0) -> Value:
        v = self.of(x)
        if v.integer:
            raise lib.BadInput("whole numbers are moved")
        for i in range(0, len(pad), 2):
            v = self.t.padded(v, x.dim() - 1 - i // 2, pad[i], pad[i + 1], float(number)) if (pad[i], pad[i + 1]) != (0, 0) else v
        return v

    def on_histc(self, out: Any, x: Any, bins: int = 100, least: float = 0, most: float = 0) -> Value:
        v = self.of(x)
        index = v.came("float")[0] if v.came("float") else v
        if least != 0 or most not in (bins - 1, bins):
            raise lib.BadInput(f"bins from {least} to {most}, expected one for each index")
        return self.t.scatter_add(self.t.number(1), self.t.indices(index), bins)

    def on_aminmax(self, out: Any, x: Any) -> list[Value]:
        return [self.on_amin(out[0], x), self.on_amax(out[1], x)]

    def on__prelu_kernel(self, out: Any, x: Any, slope: Any) -> Value:
        low = self.t.together("minimum", [self.of(x), self.t.number(0)])
        return self.t.together("add", [self.t.map("relu", self.of(x)), self.t.together("mul", [self.of(slope), low])])

    def on_index_select(self, out: Any, x: Any, place: int, index: Any) -> Value:
        return self.rows(self.full(x), place % x.dim(), self.of(index))

    def on_index_add(self, out: Any, x: Any, place: int, index: Any, rows: Any) -> Value:
        if place % x.dim() != 0:
            return self.t.written_at(self.full(x), place % x.dim(), self.of(index), self.numbers(rows), True)
        guard, column = self.guarded.get(id(index), (None, None))
        if guard is not None and column is not None:
            made = self.t.added_up(self.full(rows), guard, column)
            return made if self.of(x).number == 0 else self.t.together("add", [self.of(x), made])
        made = self.t.scatter_add(self.of(rows), self.of(index), x.shape[0])
        return made if self.of(x).number == 0 else self.t.together("add", [self.of(x), made])

    def on_scatter(self, out: Any, x: Any, place: int, index: Any, given: Any) -> Value:
        return self.scattered(x, place, index, given, False)

    def scattered(self, x: Any, place: int, index: Any, given: Any, adds: bool) -> Value:
        place, last = place % x.dim(), x.dim() - 1
        others = [i for i in range(x.dim()) if i != place]
        if any(x.shape[i] != index.shape[i] for i in others) or (isinstance(given, torch.Tensor) and given.dim() > 0 and given.shape != index.shape):
            raise lib.BadInput("expected an index for each number, in tensors that differ in that dimension alone")
        v, i, g = self.numbers(x), self.of(index), self.numbers(given)
        if place != last:
            v, i, g = (w if not w.dims else self.t.ordered(w, swapped(w.dims, place, last)) for w in (v, i, g))
        made = self.t.scattered(v, i, g, x.shape[place], adds)
        return made if place == last else self.t.ordered(made, swapped(made.dims, place, last))

    def on_scatter_add(self, out: Any, x: Any, place: int, index: Any, given: Any) -> Value:
        return self.scattered(x, place, index, given, True)

    def on_bucketize(self, out: Any, x: Any, edges: Any, right: bool = False) -> Value:
        """How many edges are below, or right: not above. They ascend, as the example's."""
        self.t.as_in_example(self.of(edges))
        below = self.t.compare("le" if right else "lt", self.of(edges), self.of(x).seen([*self.of(x).dims, ()]))
        counted = self.t.along("cumsum", below, x.dim())  # whose last number is the sum, of whole numbers
        return self.t.indices(self.t.reshape(self.t.slice(counted, x.dim(), len(edges) - 1, len(edges)), x.shape))

    def on_searchsorted(self, out: Any, edges: Any, x: Any, right: bool = False, side: Any = None) -> Value:
        if edges.dim() != 1:
            raise lib.BadInput("expected edges of one dimension")
        return self.on_bucketize(out, x, edges, right or side == "right")

    def on_bincount(self, out: Any, index: Any, weights: Any = None, least: int = 0) -> Value:
        if weights is not None or least < out.shape[0]:
            raise lib.BadInput("expected as many as are counted at least")
        return self.t.scatter_add(self.t.number(1), self.of(index), out.shape[0])

    def on_argmax(self, out: Any, x: Any, place: Any = None, _keepdim: bool = False) -> Value:
        return self.best(out, x, place)

    def on_argmin(self, out: Any, x: Any, place: Any = None, _keepdim: bool = False) -> Value:
        return self.best(out, x, place, True)

    def on_topk(self, out: Any, x: Any, count: int, place: int = -1, largest: bool = True) -> list[Value]:
        v, last = self.of(x), x.dim() - 1
        if place % x.dim() != last:
            v = self.t.ordered(v, swapped(v.dims, place % x.dim(), last))
        index = self.t.top_k(v if largest else self.t.map("neg", v), count)
        made = [self.t.pick(v, index), index]
        return made if place % x.dim() == last else [self.t.ordered(m, swapped(m.dims, place % x.dim(), last)) for m in made]

    def on_sort(self, out: Any, x: Any, place: int = -1, descending: bool = False) -> list[Value]:
        if not x.is_floating_point() and x.dim() == 1 and not descending:
            order = self.t.argsort(self.of(x))
            return [self.t.rows(self.of(x), order), order]
        return self.on_topk(out, x, x.shape[place], place, descending)

    def triangle(self, x: Any, array: Any) -> Value:
        return self.t.where(self.t.constant(array), self.numbers(x), self.t.number(0))

    def on_tril(self, out: Any, x: Any, diagonal: int = 0) -> Value:
        return self.triangle(x, np.tril(np.ones(x.shape[-2:], bool), diagonal))

    def on_triu(self, out: Any, x: Any, diagonal: int = 0) -> Value:
        return self.triangle(x, np.triu(np.ones(x.shape[-2:], bool), diagonal))


def flex_attention(query: Any, key: Any, value: Any, score_mod: Callable[..., Any], block_mask: Sequence[Any], scale: float, *_options: Any) -> tuple[Any, Any, Any]:
    """What torch.nn.attention.flex_attention calls, as products and a softmax: score_mod and mask_mod get the places of all scores, not one after another."""
    library: Any = torch
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1).expand(query.shape[0], -1, -1, -1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * scale
    places = [torch.arange(n, device=query.device).reshape([-1] + [1] * (3 - i)) for i, n in enumerate(scores.shape)]
    seen = block_mask[-1](*places)
    scores = score_mod(scores, *places).masked_fill(~seen, float("-inf"))
    out = library._safe_softmax(scores, -1).to(value.dtype) @ value
    log2 = float(np.log(2))  # of which the caller takes these times that
    return out.masked_fill(~seen.any(-1, keepdim=True), 0.0), scores.logsumexp(-1) / log2, scores.amax(-1) / log2


def without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is neither traced nor computed in float64."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with getattr(torch.utils._python_dispatch, "_disable_current_modes")():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """With gradients; attention and recurrent layers as products and maps, and not one operator of some processor."""
    library: Any = torch
    plain = hasattr(torch.nn, "attention")  # since PyTorch 2.3
    attention = library.nn.attention.sdpa_kernel(library.nn.attention.SDPBackend.MATH) if plain else contextlib.nullcontext()
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    own: dict[str, Any] = {}
    if flex is not None:
        own = {"flex_attention_hop": flex_attention, "create_mask": without_modes(flex.create_mask), "_validate_device": lambda *_: None, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True}
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.filterwarnings("ignore", "TF32 acceleration on top of oneDNN")  # what flags() says, of GPUs
        if own:
            stack.enter_context(unittest.mock.patch.multiple(flex, **own))
        with library.inference_mode(False), torch.enable_grad(), attention, library.backends.mkldnn.flags(enabled=False):
            yield


def record(tracer: Tracer, function: Callable[..., Any], example: dict[str, Any], weights: set[str],
           counts: Mapping[str, int]) -> list[tuple[str, Value]]:
    recorder = Recorder(tracer, function)
    arguments = {}
    for name, tensor in example.items():
        tensor = tensor_of(name, tensor).detach()
        recorder.given.add(id(tensor))
        integers = None if tensor.is_floating_point() else np.array([0, counts[name] - 1]) if name in counts else tensor.cpu().numpy().astype(np.int64)
        value = tracer.given(name, tensor.shape, integers, name in weights)
        value.truth = tensor.dtype == torch.bool
        recorder.narrow |= tensor.is_floating_point() and tensor.element_size() < 4
        recorder.bind(tensor, value)
        arguments[name] = tensor.requires_grad_(tensor.is_floating_point())
    RECORDERS.append(recorder)
    try:
        with plainly(), recorder:
            results = named(function, function(**arguments))
    finally:
        RECORDERS.pop()
    outputs: list[tuple[str, Value]] = []
    for name, tensor in results.items():
        value = recorder.of(tensor)
        whole = value.refused or value.integer or value.number is not None
        tracer.output(name, value if whole else recorder.full(tensor), tensor.shape, str(tensor.dtype).split(".")[1], outputs)
    return outputs


def types_at(function: Callable[..., Any], example: Mapping[str, Any], dtype: str) -> dict[str, str]:
    """Of a function's results, where its arguments are of that type; none, where it does not run so."""
    given = {name: tensor_of(name, x).detach().clone() for name, x in example.items()}
    own = types_of(example)
    given = {name: x.to(getattr(torch, dtype)) if x.is_floating_point() and name not in own else x for name, x in given.items()}
    try:
        with torch.no_grad():
            return {name: str(x.dtype).split(".")[1] for name, x in named(function, function(**given)).items()}
    except Exception:  # one with assay.step, say
        return {}


def tensor_of(name: str, x: Any) -> Any:
    """An argument of the example."""
    try:
        x = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        raise lib.BadInput(f"{name} of the example is of {type(x).__name__}, expected a tensor; what is none is bound to the function beforehand, by functools.partial or a lambda") from None
    if x.is_complex() or x.layout != torch.strided:
        raise lib.BadInput(f"{name} of the example is of {x.dtype} and {x.layout} on {x.device}, expected a dense tensor of real numbers")
    if x.numel() == 0:
        raise lib.BadInput(f"{name} is {list(x.shape)}, expected a tensor with numbers")
    return x


class Held(torch.Tensor):
    """Numbers in float64 that say to the function that they have another type."""

    held: Any
    run: "Wide"
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def of(inner: Any, dtype: Any, mode: "Wide") -> Any:
        tensor: Any = torch.Tensor
        made = tensor._make_wrapper_subclass(Held, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=dtype, device=inner.device)
        made.held, made.run = inner, mode
        mode.alive.append(made)  # else a gradient's formula may meet another object in its place
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = [x for a in args for x in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(x, Held)]
        return held[0].run.__torch_dispatch__(func, types, args, kwargs)  # on the way back, where no mode is


class Wide(TorchDispatchMode):
    """Everything in float64, whatever types a function computes it in."""

    def __init__(self, casts: str | None, kinks: bool, tables: Set[bytes] = frozenset()) -> None:
        super().__init__()
        self.casts, self.kinks = casts, kinks  #: which casts round, whether to look for kinks
        self.stored = tables  #: that the program has
        self.kinked: set[str] = set()  #: operators that had one
        self.alive: list[Any] = []
        self.own: dict[int, Any] = {}  #: what is computed of no argument, as the function has it
        self.tables: dict[int, Any] = {}  #: of these, tables: shortest decimals of that

    def of_no_argument(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operator: str) -> Any:
        """What an operator gives whose operands are of no argument, in the function's own types; None: some are."""
        flat = [x for a in args for x in (a if isinstance(a, (list, tuple)) else [a])]
        if any(isinstance(x, Held) and id(x) not in self.own for x in flat):
            written = args[0] if operator.endswith("_") and not operator.endswith("__") else None
            if id(written) in self.own:
                place = self.own[id(written)].storage().data_ptr()
                self.own = {key: x for key, x in self.own.items() if x.storage().data_ptr() != place}
            return None

        def own(x: Any) -> Any:
            if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
                return type(x)(map(own, x))
            return self.own.get(id(x), x)

        try:
            with torch.no_grad(), no_dispatch():
                return func(*own(tuple(args)), **kwargs)
        except Exception:  # an operator that has no such type
            return None

    def as_read(self, x: Any, meets: bool) -> Any:
        """A constant where it meets an argument: a table is as the function has it."""
        if not meets or id(x) not in self.own:
            return x.held
        if id(x) not in self.tables:
            own = self.own[id(x)]
            found = shortest(own.numpy()).astype(np.float64) if self.stored and own.dtype == torch.float32 and own.device.type == "cpu" else np.zeros(0)
            self.tables[id(x)] = torch.tensor(found) if found.size and np.sort(unrepeated(found), None).tobytes() in self.stored else None
        return x.held if self.tables[id(x)] is None else self.tables[id(x)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator, library, usual = func.__name__.split(".")[0], torch, torch.get_default_dtype()  # type: str, Any, Any
        floats: list[Any] = []  # tensors and types among the arguments
        constant = self.of_no_argument(func, args, kwargs or {}, operator)

        def wide(x: Any) -> Any:
            if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
                return type(x)(map(wide, x))
            if isinstance(x, torch.dtype) and x.is_floating_point:
                floats.append(x)
                return torch.float64
            if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
                return x
            floats.append(x)
            return self.as_read(x, constant is None) if isinstance(x, Held) else widest(x)

        own, named = wide(tuple(args)), {key: wide(x) for key, x in (kwargs or {}).items()}
        types = [x for x in floats if isinstance(x, torch.dtype)]
        tensors = [torch.empty([0] * x.dim(), dtype=x.dtype) for x in floats if isinstance(x, torch.Tensor)]
        dtype = types[0] if types else functools.reduce(torch.promote_types, [x.dtype for x in tensors if x.dim() > 0] or [x.dtype for x in tensors] or [usual])
        if self.kinks and has_kink(operator, *own):
            self.kinked.add(operator)
        library.set_default_dtype(torch.float64)
        try:
            if operator == "hardsigmoid_backward":  # PyTorch's sixth is one of float32
                made = torch.where(own[1].abs() < 3, own[0] / 6, 0.0)
            elif operator == "_scaled_mm":  # which takes fp8 alone
                made = own[0] @ own[1] * own[2] * own[3] + (0.0 if len(own) < 5 or own[4] is None else own[4])
            else:
                made = func(*own, **named)
            if operator == "_conj":  # which says so of itself alone
                made = torch.complex(own[0].real, -own[0].imag)
            if operator == "_to_copy" and tensors and types and rounds(tensors[0].dtype, dtype, self.casts):
                made = made.to(dtype).double()
        finally:
            library.set_default_dtype(usual)

        def held(x: Any) -> Any:
            if isinstance(x, (list, tuple)):
                return type(x)(map(held, x))
            if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
                return x
            written = [a for a in args if isinstance(a, Held) and a.held is x]
            if written and written[0].shape != x.shape:  # squeeze_: what it says of itself changes too
                with no_dispatch():
                    func(*args, **(kwargs or {}))
            own = dtype if dtype.is_complex == x.is_complex() else COMPLEX.get(dtype, torch.complex64) if x.is_complex() else REAL[dtype]
            return written[0] if written else Held.of(x, own, self)

        results = held(made)
        for x, own_x in zip(*([y if isinstance(y, (list, tuple)) else [y] for y in (results, constant)])) if constant is not None else ():
            if isinstance(x, Held):
                self.own[id(x)] = own_x
                self.tables.pop(id(x), None)
        return results


def filling(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes into its arguments, on tensors of its own; if it gives nothing, its results are what it has filled."""

    def run(**given: Any) -> Any:
        own = {name: x.clone() for name, x in given.items()}
        before = {name: x._version for name, x in own.items()}
        result = function(**own)
        return {name: x for name, x in own.items() if x._version != before[name]} or None if result is None else result

    run.__name__, run.__wrapped__ = getattr(function, "__name__", "function"), inspect.unwrap(function)  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature([inspect.Parameter("given", inspect.Parameter.VAR_KEYWORD)])  # type: ignore[attr-defined]
    return run


def functional(module: Any, example: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any], list[str]]:
    """A module as a function of its arguments and its parameters, which are called by their names with underscores for dots, a letter first."""
    call = torch.func.functional_call if hasattr(torch, "func") else torch.nn.utils.stateless.functional_call
    paths = {path.replace("_orig_mod.", ""): path for path, _ in module.named_parameters()}  # torch.compile puts that before them
    names = {name: paths[path] for name, path in short_names(paths).items()}

    def run(**given: Any) -> Any:
        with getattr(torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext)():  # since PyTorch 2.0
            narrow = {x.dtype for x in given.values() if isinstance(x, torch.Tensor)} & {torch.bfloat16, torch.float16}
            buffers = {name: x.to(*narrow) if x.is_floating_point() and len(narrow) == 1 else x.clone() for name, x in module.named_buffers()}  # which a norm may write into
        parameters = {names[name]: x for name, x in given.items() if name in names}
        return call(module, {**parameters, **buffers}, (), {name: x for name, x in given.items() if name not in names})

    run.__name__, run.__wrapped__ = type(module).__name__, getattr(module, "_orig_mod", module).forward  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature([inspect.Parameter("given", inspect.Parameter.VAR_KEYWORD)])  # type: ignore[attr-defined]
    return run, {**example, **{name: module.get_parameter(path).detach() for name, path in names.items()}}, list(names)


def widest(x: Any) -> Any:
    """A number of float32 as what it was rounded from."""
    if x.is_complex():
        return x.to(torch.complex128)
    return torch.tensor(shortest(array_of(x) if x.dtype != torch.float32 else x.detach().cpu().numpy()), dtype=torch.float64, device=x.device)


def has_kink(operator: str, x: Any, other: Any = None, *rest: Any) -> bool:
    """Whether an operator that has no one gradient there meets such a point."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.numel() == 0:
        return False
    if operator in ("abs", "relu", "leaky_relu", "elu", "sign", "sqrt", "_prelu_kernel", "linalg_vector_norm"):
        return bool((x == 0).any())
    if operator in ("maximum", "minimum", *COMPARISONS):
        return bool((x == other).any())
    if operator in ("clamp", "hardtanh", "clamp_min", "clamp_max"):
        return any(bool((x == bound).any()) for bound in (other, *rest) if bound is not None)
    if operator == "topk":
        return bool((x.sort(-1)[0].diff() == 0).any())
    for name in ("max", "min"):
        if operator in (name, f"a{name}", f"arg{name}", "aminmax"):
            dims = [other] if isinstance(other, int) else list(other) if other else list(range(x.dim()))
            most = x.amax(dims, keepdim=True) if name == "max" else x.amin(dims, keepdim=True)
            if bool(((x == most).sum(dims) > 1).any()):
                return True
    return False


def rounded(x: Any, type: str) -> Any:
    return torch.tensor(x).to(getattr(torch, type)).double().numpy()


def evaluate(function: Callable[..., Any], example: Mapping[str, Any], given: Mapping[str, Any], cotangents: Mapping[str, Any],
             kinks: bool, casts: str | None = "drop", backward: bool = True, tables: Set[bytes] = frozenset()) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
    """What a function gives in float64 at these numbers, its gradients, and which operators met a kink."""
    arguments, mode = {}, Wide(casts, kinks, tables)
    for name, tensor in example.items():
        like = tensor_of(name, tensor)
        made = torch.tensor(given[name], dtype=torch.float64 if like.is_floating_point() else like.dtype, device="cpu" if like.is_meta else like.device)
        arguments[name] = Held.of(made, like.dtype, mode).requires_grad_(backward) if like.is_floating_point() else made
    with plainly(), mode:
        results = {name: x for name, x in named(function, function(**dict(arguments))).items() if name in cotangents or not x.is_floating_point()}
        leaves = {name: x for name, x in arguments.items() if x.is_floating_point()}
    mode.casts = None  # gradients pass
    with plainly():
        pairs = [(x, Held.of(torch.tensor(cotangents[name], device=x.device), x.dtype, mode)) for name, x in results.items() if backward and x.requires_grad and name in cotangents]
        found = torch.autograd.grad([x for x, _ in pairs], list(leaves.values()), [c for _, c in pairs], allow_unused=True) if pairs and leaves else [None] * len(leaves)

    def numbers(x: Any) -> Any:
        return (x.held if isinstance(x, Held) else x).detach().cpu().numpy()

    gradients = {name: np.zeros(tuple(x.shape)) if g is None else numbers(g) for (name, x), g in zip(leaves.items(), found)}
    return {name: numbers(x) for name, x in results.items()}, gradients, mode.kinked
