"""JAX's primitives as steps of a program: those of a function's jaxpr, with what it calls put in its place."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Mapping, Sequence, Union

import jax
import numpy as np
from jax.extend.core import Literal, Primitive

from . import _library as lib
from ._trace import Axis, Tracer, Value, shape_of
from ._trace_rope import Operand, Turn, Turns

SAME = ("copy", "copy_p", "optimization_barrier", "reduce_precision", "sharding_constraint", "pvary", "mesh_cast")
MAPS = {"logistic": "sigmoid", **{name: name for name in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "erf", "tanh", "sin", "cos", "square")}}
BINARY = {"max": "maximum", "min": "minimum", "add_any": "add", **{name: name for name in ("add", "sub", "mul", "div")}}
LOOPS = ("scan", "while", "cond", "custom_linear_solve", "shard_map")
COMPARISONS = ("lt", "gt", "le", "ge", "eq", "ne")
MOVES = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "slice", "split", "concatenate", "stack", "rev")
#: What a rotation is made of (_trace_rope.py).
TURNS = {**{name: "move" for name in MOVES}, "dot_general": "product", "gather": "rows", **{name: name for name in ("mul", "div", "add", "sub", "neg", "cos", "sin")}}
NEVER_READ = "a program has it within gelu alone"

NAMED_STEP = Primitive("assay_step")  #: assay.step
NAMED_STEP.def_abstract_eval(lambda *given, step, parameters: jax.core.ShapedArray(tuple(shape_of(step, [x.shape for x in given])), given[-1 if step == "quantise" else 2].dtype))

Known = Union[Value, "np.ndarray[Any, Any]", "Joined"]


def rounds(given: Any, to: Any) -> bool:
    """Whether a cast loses anything."""
    if not (jax.numpy.issubdtype(given, np.floating) and jax.numpy.issubdtype(to, np.floating)):
        return False
    before, after = jax.numpy.finfo(given), jax.numpy.finfo(to)
    return bool(after.eps > before.eps or after.max < before.max)


def array_of(x: Any) -> Any:
    """As numpy has it, but for what random numbers are made from."""
    return x if jax.dtypes.issubdtype(getattr(x, "dtype", np.float64), jax.dtypes.prng_key) else np.asarray(x)


class Joined:
    """Indices side by side: x[jnp.arange(T), i]."""

    def __init__(self, parts: Sequence[Known]) -> None:
        self.parts = list(parts)


class Walk:
    """Each variable of the jaxpr is an array that no argument is in, or a value. Dimensions of a value along which it is only repeated have no axes."""

    def __init__(self, tracer: Tracer, function: Callable[..., Any]) -> None:
        self.t = tracer
        code = getattr(inspect.unwrap(function), "__code__", None)
        self.file, self.first = (code.co_filename, code.co_firstlineno) if code else ("", 0)
        self.within: list[str] = []  # names of the functions that are called
        self.turns: dict[int, tuple[Known, Turn]] = {}  # of what is known, by its id
        self.rotations = Turns(tracer)

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Known], place: tuple[str, int] | None) -> list[Known]:
        known: dict[Any, Known] = {**dict(zip(jaxpr.constvars, map(array_of, constants))), **dict(zip(jaxpr.invars, arguments))}
        for eqn in jaxpr.eqns:
            given = [np.asarray(v.val) if isinstance(v, Literal) else known[v] for v in eqn.invars]
            self.t.place = place or self.place(eqn)
            for var, made in zip(eqn.outvars, self.step(eqn, given, place)):
                known[var] = made
        return [np.asarray(v.val) if isinstance(v, Literal) else known[v] for v in jaxpr.outvars]

    def place(self, eqn: Any) -> tuple[str, int]:
        """The line of the function's file."""
        trace = eqn.source_info.traceback
        lines = [frame.line_num for frame in (trace.frames if trace else ()) if frame.file_name == self.file]
        return self.file, lines[0] if lines else self.first

    def step(self, eqn: Any, given: Sequence[Known], place: tuple[str, int] | None) -> Sequence[Known]:
        name, where = eqn.primitive.name, self.t.place
        if name not in LOOPS:
            inner = next((eqn.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in eqn.params), None)
            if inner is not None:
                body, constants = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
                ours = f"{self.file}:" in (body.debug_info.func_src_info or "")
                self.within.append(str(eqn.params.get("name", "")))
                results = self.run(body, constants, given, None if ours and place is None else where)
                self.within.pop()
                self.t.place = where
                return results
            turns = self.turned(eqn, given)
            if all(isinstance(v, np.ndarray) for v in given):
                return self.turning(eqn, self.constants(eqn, given), turns)
            rope = self.rotations.rope(turns[0])
            if rope is not None:
                return [rope]
        shapes = [v.aval.shape for v in eqn.outvars]
        try:
            found = self.record(name, eqn, given)
        except lib.BadInput as why:  # which is said where an output needs it: jax.numpy computes much that nobody reads
            found, refused = [], self.t.needed([v for v in given if isinstance(v, Value)])[1]
            for shape in shapes:
                nothing = self.t.nowhere(name, (), [(Axis(n),) for n in shape], str(why))
                nothing.refused = refused or nothing.refused
                found.append(nothing)
        made: list[Known] = found if isinstance(found, list) else [found]
        for v, var in zip(made, eqn.outvars):
            if isinstance(v, Value):
                kind = getattr(var.aval.dtype, "kind", "?")  # of random keys there is none
                v.integer = kind in "biu" and not v.whole and (v.step is None or v.integer)
                v.truth |= kind == "b"
        return self.turning(eqn, made, turns) if name not in LOOPS else made

    def turned(self, eqn: Any, given: Sequence[Known]) -> list[Turn | None]:
        """What the results are of a rotation."""
        name, nothing = eqn.primitive.name, [None] * len(eqn.outvars)  # type: str, list[Turn | None]
        kind = "same" if name in (*SAME, "convert_element_type") else TURNS.get(name, "")
        shapes, n = [tuple(v.aval.shape) for v in eqn.invars], eqn.params.get("dimension_numbers")
        if kind == "" or any(isinstance(v, Joined) for v in given):
            return nothing
        if kind == "rows":
            whole = tuple(eqn.params["slice_sizes"]) == (1, *shapes[0][1:]) and tuple(n.collapsed_slice_dims) == tuple(n.start_index_map) == (0,)
            if not whole or n.operand_batching_dims or tuple(n.offset_dims) != tuple(range(len(shapes[1]) - 1, len(eqn.outvars[0].aval.shape))):
                return nothing
            shapes[1] = shapes[1][:-1]

        def apply(arrays: Sequence[Any]) -> list[Any]:
            parameters = {**eqn.params, **({"preferred_element_type": None} if kind == "product" else {})}
            made = eqn.primitive.bind(*map(jax.numpy.asarray, arrays), **parameters)
            return [np.asarray(m) for m in (made if eqn.primitive.multiple_results else [made])]

        operands = []
        for v, shape in zip(given, shapes):
            turn = self.turns[id(v)][1] if id(v) in self.turns else None
            operands.append(Operand(turn, v if isinstance(v, Value) else None, v if isinstance(v, np.ndarray) else None, shape))
        return [self.rotations.begin(operands[0])] if kind == "same" else self.rotations.follow(kind, operands, apply, len(nothing))

    def turning(self, eqn: Any, made: Sequence[Known], turns: Sequence[Turn | None]) -> Sequence[Known]:
        for v, turn, var in zip(made, turns, eqn.outvars):
            if turn is not None:
                self.turns[id(v)] = v, turn
                if isinstance(v, Value):
                    self.rotations.remember(turn, v, var.aval.shape)
        return made

    def constants(self, eqn: Any, given: Sequence[Known]) -> list[Known]:
        """What is computed of no argument, in float64."""
        floats = [isinstance(v, np.ndarray) and v.dtype.kind not in "biu" for v in given]
        wide = [shortest(v).astype(np.float64) if is_float and isinstance(v, np.ndarray) else v for v, is_float in zip(given, floats)]
        if eqn.primitive.name == "convert_element_type" and floats[0] and eqn.outvars[0].aval.dtype.kind not in "biu":
            return wide
        made = eqn.primitive.bind(*wide, **eqn.params)
        return [array_of(v) for v in (made if eqn.primitive.multiple_results else [made])]

    def of(self, x: Known) -> Value:
        if isinstance(x, Joined):
            raise lib.BadInput("indices that are put together")
        return x if isinstance(x, Value) else self.t.constant(shortest(x))

    def whole(self, x: Known, var: Any) -> Value:
        """With an axis for each dimension that repeats."""
        v, shape = self.of(x), var.aval.shape
        if v.number is not None and shape:
            raise lib.BadInput("a tensor that is none of the function's arguments")
        return self.t.ordered(v, [d or (() if n == 1 else (Axis(n),)) for d, n in zip(v.dims, shape)])

    def record(self, name: str, eqn: Any, given: Sequence[Known]) -> Any:
        t, parameters = self.t, eqn.params
        handler = getattr(self, "on_" + name.replace("-", "_"), None)
        if handler is not None:
            return handler(eqn, given, **parameters)
        if name in SAME:
            return given[0]
        if name in COMPARISONS:
            return t.compare(name, self.of(given[0]), self.of(given[1]))
        if name in ("div", "and", "or") and eqn.outvars[0].aval.dtype.kind in "iu":
            raise lib.BadInput("a program has it of numbers and of masks alone")
        if name in ("and", "or"):
            return t.both("mul" if name == "and" else "maximum", self.of(given[0]), self.of(given[1]))
        if name in MAPS:
            return t.map(MAPS[name], t.numbers(self.of(given[0])))
        if name in BINARY:
            return t.together(BINARY[name], [t.numbers(self.of(v)) for v in given])
        raise lib.BadInput("a program has no such operator")

    # numbers one by one

    def on_convert_element_type(self, eqn: Any, given: Sequence[Known], **_: Any) -> Known:
        v, kind = given[0], eqn.outvars[0].aval.dtype.kind
        if not isinstance(v, Value):
            return v
        if kind == "b" and not v.truth:
            return self.t.compare("ne", v, self.t.number(0))
        if kind in "iu" and v.integer and eqn.invars[0].aval.dtype.kind == "b":
            return self.t.truth(v)
        if v.integer and kind not in "biu":
            return self.t.numbers(v)
        if kind in "biu" and not v.integer and not v.whole:
            raise lib.BadInput("numbers as whole numbers")
        if self.t.casts and rounds(eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype):
            return self.t.map("cast", v, type=eqn.outvars[0].aval.dtype.name)
        return v.seen(v.dims)

    def on_assay_step(self, eqn: Any, given: Sequence[Known], step: str, parameters: Any) -> Value:
        return self.t.step(step, [self.whole(v, var) for v, var in zip(given, eqn.invars)], dict(parameters))

    def on_integer_pow(self, eqn: Any, given: Sequence[Known], y: int, **_: Any) -> Value:
        return self.t.power(self.of(given[0]), y)

    def on_pow(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        power = self.of(given[1])
        if power.number is None:
            raise lib.BadInput("the power is a tensor, expected a number")
        return self.t.power(self.of(given[0]), power.number)

    def on_max(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        for v, number in ((v, self.of(w).number) for v, w in ((given[0], given[1]), (given[1], given[0]))):
            if isinstance(v, Value) and v.integer and number is not None and number <= v.low:
                return v
        a, b = (self.t.numbers(self.of(v)) for v in given)
        for number, other in ((a.number, b), (b.number, a)):
            if number == float("-inf"):
                return other
            if number == 0 and "relu" in self.within:
                return self.t.map("relu", other)
        return self.t.together("maximum", [a, b])

    def on_log1p(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        return self.t.log1p(self.of(given[0]))

    def on_expm1(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        return self.t.together("sub", [self.t.map("exp", self.of(given[0])), self.t.number(1)])

    def on_erfc(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        x = self.of(given[0])
        return self.t.nowhere(eqn.primitive.name, [x], x.dims, NEVER_READ)

    def on_stop_gradient(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        x = self.of(given[0])
        made = x.seen(x.dims)
        made.refused = x.refused or self.t.said("stop_gradient", "a program has it within softmax and logsumexp alone")
        return made

    def on_is_finite(self, eqn: Any, given: Sequence[Known], **_: Any) -> Known:
        return np.ones(eqn.outvars[0].aval.shape, bool)

    def on_ne(self, eqn: Any, given: Sequence[Known], **_: Any) -> Known:
        a, b = given
        if isinstance(a, Value) and isinstance(b, Value) and a.core is b.core:  # is it a number?
            return np.zeros(eqn.outvars[0].aval.shape, bool)
        return self.t.compare("ne", self.of(a), self.of(b))

    def on_lt(self, eqn: Any, given: Sequence[Known], **_: Any) -> Known:
        a, b = (self.of(v) for v in given)
        if a.integer and a.low >= 0 and b.number == 0:  # indices from the end
            return np.zeros(eqn.outvars[0].aval.shape, bool)
        return self.t.compare("lt", a, b)

    def on_not(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        return self.t.opposite(self.of(given[0]))

    def on_select_n(self, eqn: Any, given: Sequence[Known], **_: Any) -> Known:
        mask, *cases = given
        if isinstance(mask, np.ndarray) and (mask == mask.flat[0]).all():
            return cases[int(mask.flat[0])]
        return self.t.where(self.of(mask), *(self.t.numbers(self.of(v)) for v in cases[1::-1]))

    def on_clamp(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        low, x, high = (self.of(v) for v in given)
        return self.t.together("minimum", [self.t.together("maximum", [x, low]), high])

    # along dimensions

    def over(self, step: str, eqn: Any, given: Sequence[Known], places: Sequence[int]) -> Value:
        return self.t.over(step, self.whole(self.t.numbers(self.of(given[0])), eqn.invars[0]), places, False)

    def on_reduce_sum(self, eqn: Any, given: Sequence[Known], axes: Sequence[int], **_: Any) -> Value:
        return self.over("sum", eqn, given, axes)

    def on_reduce_max(self, eqn: Any, given: Sequence[Known], axes: Sequence[int], **_: Any) -> Value:
        return self.over("max", eqn, given, axes)

    def on_reduce_min(self, eqn: Any, given: Sequence[Known], axes: Sequence[int], **_: Any) -> Value:
        return self.t.map("neg", self.over("max", eqn, [self.t.map("neg", self.of(given[0]))], axes))

    def on_cumsum(self, eqn: Any, given: Sequence[Known], axis: int, reverse: bool, **_: Any) -> Value:
        if reverse:
            raise lib.BadInput("from the end on")
        return self.t.along("cumsum", self.whole(given[0], eqn.invars[0]), axis)

    # products

    def on_dot_general(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any, **_: Any) -> Value:
        over, batch = dimension_numbers
        values = []
        for v, var, used in zip(given, eqn.invars, zip(over, batch)):
            x = self.of(v)
            repeats = [i for i in range(len(x.dims)) if not x.dims[i] and i not in used[1]]
            whole = self.whole(x, var)
            values.append(whole if any(whole.dims[i] for i in repeats) else x)
        return self.t.contract(values[0], values[1], batch, over)

    def on_conv_general_dilated(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any, padding: Any, feature_group_count: int, **parameters: Any) -> Value:
        x, w = (self.whole(v, var) for v, var in zip(given, eqn.invars))
        xs, ws, out = dimension_numbers.lhs_spec, dimension_numbers.rhs_spec, dimension_numbers.out_spec
        taps = eqn.invars[1].aval.shape[ws[2]] if len(ws) == 3 else 0
        plain = all(n == 1 for key in ("window_strides", "lhs_dilation", "rhs_dilation") for n in parameters[key])
        channels = eqn.invars[0].aval.shape[xs[1]]
        if len(xs) != 3 or not plain or tuple(padding[0]) != (taps - 1, 0) or feature_group_count != channels != eqn.invars[1].aval.shape[ws[0]]:
            raise lib.BadInput("expected a causal convolution of each channel")
        x = self.t.ordered(x, [x.dims[xs[i]] for i in (0, 2, 1)])
        w = self.t.renamed(w, [() if i == ws[1] else d for i, d in enumerate(w.dims)])
        w = self.t.ordered(w, [w.dims[ws[i]] for i in (0, 2)])
        made = self.t.causal_conv(x, w)
        return self.t.ordered(made, [made.dims[(0, 2, 1)[out.index(i)]] for i in range(3)])

    # moves

    def on_reshape(self, eqn: Any, given: Sequence[Known], **_: Any) -> Value:
        shape = eqn.outvars[0].aval.shape
        x = self.of(given[0])
        kept = [d for d, n in zip(x.dims, eqn.invars[0].aval.shape) if n != 1]
        if [n for n in eqn.invars[0].aval.shape if n != 1] == [n for n in shape if n != 1]:  # what repeats may stay so
            rest = iter(kept)
            if all(len(d) == 0 for d, n in zip(x.dims, eqn.invars[0].aval.shape) if n == 1):
                return x.seen([() if n == 1 else next(rest) for n in shape])
        return self.t.reshape(self.whole(x, eqn.invars[0]), shape)

    on_squeeze = on_expand_dims = on_reshape

    def on_broadcast_in_dim(self, eqn: Any, given: Sequence[Known], shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Value:
        x, before = self.of(given[0]), eqn.invars[0].aval.shape
        x = self.t.renamed(x, [() if n == 1 != shape[place] else d for d, n, place in zip(x.dims, before, broadcast_dimensions)])
        dims: list[Sequence[Axis]] = [()] * len(shape)
        for d, place in zip(x.dims, broadcast_dimensions):
            dims[place] = d
        return x.seen(dims)

    def on_transpose(self, eqn: Any, given: Sequence[Known], permutation: Sequence[int], **_: Any) -> Value:
        x = self.of(given[0])
        return self.t.ordered(x, [x.dims[i] for i in permutation])

    def on_slice(self, eqn: Any, given: Sequence[Known], start_indices: Sequence[int], limit_indices: Sequence[int], strides: Any, **_: Any) -> Value:
        x, shape = self.of(given[0]), eqn.invars[0].aval.shape
        if strides is None or max(strides) == 1:
            return self.parts(x, shape, start_indices, limit_indices)
        place = max(range(len(shape)), key=lambda i: int(strides[i]))
        if list(limit_indices) != list(shape) or any(first for i, first in enumerate(start_indices) if i != place) or sum(n > 1 for n in strides) > 1:
            raise lib.BadInput("every few indices of a part")
        return self.t.every(self.whole(x, eqn.invars[0]), place, start_indices[place], strides[place])

    def parts(self, x: Value, shape: Sequence[int], begins: Sequence[int], ends: Sequence[int]) -> Value:
        for i, (n, first, end) in enumerate(zip(shape, begins, ends)):
            if x.dims[i] and (first, end) != (0, n):
                x = self.t.slice(x, i, first, end)
        return x

    def on_dynamic_slice(self, eqn: Any, given: Sequence[Known], slice_sizes: Sequence[int], **_: Any) -> Value:
        begins = [self.of(v).number for v in given[1:]]
        if None in begins:
            raise lib.BadInput("where it begins is computed")
        shape = eqn.invars[0].aval.shape
        firsts = [min(int(b or 0), n - m) for b, n, m in zip(begins, shape, slice_sizes)]
        return self.parts(self.of(given[0]), shape, firsts, [f + m for f, m in zip(firsts, slice_sizes)])

    def on_split(self, eqn: Any, given: Sequence[Known], sizes: Sequence[int], axis: int, **_: Any) -> list[Value]:
        made, first = [], 0
        for size in map(int, sizes):
            x = self.of(given[0])
            made.append(self.t.slice(x, axis, first, first + size) if x.dims[axis] else x)
            first += size
        return made

    def on_concatenate(self, eqn: Any, given: Sequence[Known], dimension: int, **_: Any) -> Known:
        if eqn.outvars[0].aval.dtype.kind in "iu" and dimension == len(eqn.outvars[0].aval.shape) - 1:
            return Joined(given)
        return self.t.concatenate([self.whole(v, var) for v, var in zip(given, eqn.invars)], dimension)

    def on_stack(self, eqn: Any, given: Sequence[Known], axis: int, **_: Any) -> Value:
        parts = []
        for v, var in zip(given, eqn.invars):
            x = self.whole(v, var)
            parts.append(x.seen([*x.dims[:axis], (), *x.dims[axis:]]))
        return self.t.concatenate(parts, axis)

    def on_gather(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any, slice_sizes: Sequence[int], **_: Any) -> Value:
        table, shape, n = self.whole(given[0], eqn.invars[0]), eqn.invars[0].aval.shape, dimension_numbers
        rank, index_shape = len(shape), eqn.invars[1].aval.shape
        gone, batch = tuple(n.collapsed_slice_dims), tuple(n.operand_batching_dims)
        if isinstance(given[1], Joined):  # each row's number at its index
            rows, index = (given[1].parts + [None])[:2]
            if rank == len(given[1].parts) == 2 and gone == (0, 1) and isinstance(rows, np.ndarray) and isinstance(index, Value):
                if (rows[..., 0] == np.arange(shape[0])).all() and tuple(n.start_index_map) == (0, 1):
                    return self.t.pick(table, index.seen(index.dims[:-1]))
            raise lib.BadInput("expected indices of one dimension")
        rest = [i for i in range(rank) if i not in gone and i not in batch]
        if isinstance(given[1], np.ndarray) and given[1].shape == (1,) and len(gone) == 1 and not batch and all(slice_sizes[i] == shape[i] for i in rest):
            at = gone[0], int(given[1][0])  # one index that is known
            return self.t.reshape(self.t.slice(table, at[0], at[1], at[1] + 1), [shape[i] for i in rest])
        index = self.t.indices(self.whole(given[1], eqn.invars[1]))
        if len(gone) != 1 or tuple(n.start_index_map) != gone or any(slice_sizes[i] != shape[i] for i in rest):
            raise lib.BadInput("expected indices of one dimension")
        index = index.seen(index.dims[:-1])
        if not batch:
            made = self.t.rows(self.t.ordered(table, [table.dims[i] for i in (*gone, *rest)]), index)
            order = [i for i in range(len(made.dims)) if i not in n.offset_dims] + list(n.offset_dims)
            return self.t.ordered(made, [made.dims[order.index(i)] for i in range(len(order))])
        if batch == tuple(range(rank - 1)) == tuple(n.start_indices_batching_dims) and gone == (rank - 1,) and not rest:
            return self.t.pick(table, index)
        raise lib.BadInput(f"expected indices of the last dimension of {list(shape)}, found {list(index_shape)}")

    def on_scatter_add(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any, **_: Any) -> Value:
        n, shape = dimension_numbers, eqn.invars[0].aval.shape
        index = self.of(given[1])
        index = index.seen(index.dims[:-1])
        last = tuple(range(len(index.dims), len(eqn.invars[2].aval.shape)))
        if tuple(n.inserted_window_dims) != (0,) or tuple(n.scatter_dims_to_operand_dims) != (0,) or tuple(n.update_window_dims) != last or n.operand_batching_dims:
            raise lib.BadInput("expected indices of the first dimension alone")
        x, rows = self.of(given[0]), self.t.numbers(self.of(given[2]))
        made = self.t.scatter_add(rows if rows.number is not None and len(shape) == 1 else self.whole(rows, eqn.invars[2]), index, shape[0])
        return made if x.number == 0 else self.t.together("add", [x, made])

    def on_argmax(self, eqn: Any, given: Sequence[Known], axes: Sequence[int], **_: Any) -> Value:
        index = self.on_top_k(eqn, given, 1, axes[0])[1]
        return self.t.reshape(index, eqn.outvars[0].aval.shape)

    def on_top_k(self, eqn: Any, given: Sequence[Known], k: int, axis: int = -1, **_: Any) -> list[Value]:
        x = self.whole(given[0], eqn.invars[0])
        if axis % len(x.dims) != len(x.dims) - 1:
            raise lib.BadInput("expected the best of the last dimension")
        index = self.t.top_k(x, k)
        return [self.t.pick(x, index), index]


def shortest(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """One number that repeats is what the function meant before it was rounded to float32: 1/sqrt(128) or 1e-6, the shortest decimal."""
    if x.size == 0 or x.dtype.kind in "biuc" or x.dtype == np.float64 or not (x == x.flat[0]).all():
        return x
    rounded = x.flat[0]
    number = float(str(rounded))
    if len(str(rounded).strip("-0.").replace(".", "")) > 6 and 1e-3 < abs(number) < 1e3:
        for power in (0.5, -0.5):
            root = float(np.copysign(round(number ** (1 / power)) ** power, number)) if number ** (1 / power) > 0.5 else 0.0
            number = root if x.dtype.type(root) == rounded else number
    return np.full(x.shape, number)


def record(tracer: Tracer, function: Callable[..., Any], example: dict[str, Any], weights: set[str], counts: Mapping[str, int]) -> list[tuple[str, Value]]:
    shapes, values = [], []
    for name, x in example.items():
        floats = np.dtype(x.dtype).kind not in "biu"
        if not floats and name not in counts and not hasattr(x, "__array__"):
            raise lib.BadInput(f"{name}: integers of {x}: expected how many there are, integers={{{name!r}: 1000}}")
        most = 0 if floats else counts[name] - 1 if name in counts else int(np.asarray(x).max())
        shapes.append(jax.ShapeDtypeStruct(x.shape, np.dtype(np.float64) if floats else x.dtype))
        values.append(tracer.given(name, x.shape, None if floats else f"[0, {most}]", name in weights))
        values[-1].truth = np.dtype(x.dtype).kind == "b"
    names: list[str] = []

    def flat(*arguments: Any) -> list[Any]:
        result = function(**dict(zip(example, arguments)))
        results = result if isinstance(result, dict) else {f"y{i}": y for i, y in enumerate(result)} if isinstance(result, (tuple, list)) else {"y": result}
        names[:] = list(results)
        return list(results.values())

    with jax.enable_x64(True):  # numbers of the function in full
        closed = jax.make_jaxpr(flat)(*shapes)
        walk = Walk(tracer, function)
        made = walk.run(closed.jaxpr, closed.consts, values, None)
    outputs = []
    for name, value, var in zip(names, made, closed.jaxpr.outvars):
        v = walk.of(value)
        if v.integer:
            tracer.choices.append(v)  # a result by itself
        else:
            v = v if v.refused else walk.whole(v, var)
            outputs.append((name, v if v.refused or all(len(d) == 1 for d in v.dims) else tracer.reshape(v, var.aval.shape, True)))
    return outputs
