"""JAX's primitives as steps of a program: those of a function's jaxpr, with what it calls put in its place."""
from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, Mapping, Sequence, Union

import jax
import numpy as np
from jax.extend.core import Literal, Primitive

from . import _library as lib
from ._attention import kinds_of
from ._trace import Axis, Tracer, Value, named, place_of, shape_of, short_names, shortest, size_of, types_of
from ._trace_rope import Operand, Turn, Turns

SAME = ("copy", "copy_p", "optimization_barrier", "sharding_constraint", "pvary", "mesh_cast")
MAPS = {"logistic": "sigmoid", **{name: name for name in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "erf", "tanh", "sin", "cos", "square")}}
BINARY = {"max": "maximum", "min": "minimum", "add_any": "add", **{name: name for name in ("add", "sub", "mul", "div")}}
LOOPS = ("scan", "while", "cond", "custom_linear_solve", "shard_map")
ROUNDS = 10000  #: of a loop that does not end before
COMPARISONS = ("lt", "gt", "le", "ge", "eq", "ne")
MOVES = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "slice", "split", "concatenate", "stack", "rev")
#: What a rotation is made of (_trace_rope.py).
WHOLE = {"floor_divide": "floor_div", "remainder": "mod"}  #: functions of jax.numpy that are one step, of whole numbers
TURNS = {**{name: "move" for name in MOVES}, "dot_general": "product", "gather": "rows", **{name: name for name in ("mul", "div", "add", "sub", "neg", "cos", "sin")}}
#: Parameters that no handler need read: they say how it is computed, not what; and what others are in any function that a program has.
ASIDE = ("accuracy", "precision", "preferred_element_type", "sharding", "out_sharding", "weak_type", "index_dtype", "is_stable", "unique_indices", "indices_are_sorted",
         "mode", "fill_value", "update_jaxpr", "update_consts", "conjugate_a", "linear", "unroll", "_split_transpose", "ft_in", "ft_out")
PLAIN = {"reverse": False, "batch_group_count": 1, "out_dtype": None, "group_offset": None}
NEVER_READ = "a program has it within gelu alone"

NAMED_STEP = Primitive("assay_step")  #: assay.step
NAMED_STEP.def_abstract_eval(lambda *given, step, parameters: jax.core.ShapedArray(tuple(shape_of(step, [x.shape for x in given])), given[-1 if len(given) < 3 else 2].dtype))

Known = Union[Value, "np.ndarray[Any, Any]", "Joined"]


def rounds(given: Any, to: Any, casts: str) -> bool:
    """Whether a cast is one that loses something and counts: one to a byte does, others if casts are kept."""
    if not (jax.numpy.issubdtype(given, np.floating) and jax.numpy.issubdtype(to, np.floating) and (casts == "keep" or to.itemsize == 1)):
        return False
    before, after = jax.numpy.finfo(given), jax.numpy.finfo(to)
    return bool(after.eps > before.eps or after.max < before.max)


def array_of(x: Any) -> Any:
    """As numpy has it, but for what random numbers are made from."""
    return x if jax.dtypes.issubdtype(getattr(x, "dtype", np.float64), jax.dtypes.prng_key) else np.asarray(x)


def called(eqn: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr that an equation calls, and its constants."""
    inner: Any = next((eqn.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in eqn.params), None)
    return (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())


class Joined:
    """Indices side by side: x[jnp.arange(T), i]."""

    def __init__(self, parts: Sequence[Known]) -> None:
        self.parts = list(parts)


class Walk:
    """Each variable of the jaxpr is an array that no argument is in, or a value. Dimensions of a value along which it is only repeated have no axes."""

    def __init__(self, tracer: Tracer, function: Callable[..., Any]) -> None:
        self.t = tracer
        self.file, self.first = place_of(function)
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
            body, constants = called(eqn)
            whole = WHOLE.get(str(eqn.params.get("name"))) if body is not None and any(isinstance(v, Value) for v in given) else None
            if whole is not None and eqn.outvars[0].aval.dtype.kind in "iu":
                return [self.t.divided(whole, self.of(given[0]), self.of(given[1]))]
            if body is not None:
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
        if any(0 in shape for shape in shapes):
            return [self.t.nothing(name, shape) for shape in shapes]
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
                v.truth |= kind == "b" and not v.integer
        return self.turning(eqn, made, turns) if name not in LOOPS else made

    def operand(self, v: Known, shape: tuple[int, ...]) -> Operand:
        turn = self.turns[id(v)][1] if id(v) in self.turns else None
        return Operand(turn, v if isinstance(v, Value) else None, shortest(v) if isinstance(v, np.ndarray) else None, shape)

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

        operands = [self.operand(v, shape) for v, shape in zip(given, shapes)]
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
        if isinstance(x, Value):
            return x
        return self.t.constant(shortest(x))

    def whole(self, x: Known, var: Any) -> Value:
        """With an axis for each dimension that repeats."""
        v, shape = self.of(x), var.aval.shape
        return self.t.ordered(v, [d or (() if n == 1 else (Axis(n),)) for d, n in zip(v.dims, shape)])

    def record(self, name: str, eqn: Any, given: Sequence[Known]) -> Any:
        if name in SAME:
            return list(given)
        handler = self.handler(name)
        if handler is None:
            raise lib.BadInput("a program has no such operator")
        takes = inspect.signature(handler).parameters
        for key, value in eqn.params.items():
            if key not in takes and key not in ASIDE and (key not in PLAIN or value != PLAIN[key]):
                raise lib.BadInput(f"{key} is {value}, expected {PLAIN.get(key, 'a primitive without it')}")
        return handler(eqn, given, **{key: value for key, value in eqn.params.items() if key in takes})

    def handler(self, name: str) -> Callable[..., Any] | None:
        """What writes a primitive down: a function of its equation, its operands and those of its parameters that it reads."""
        t = self.t
        own: Callable[..., Any] | None = getattr(self, "on_" + name.replace("-", "_"), None)
        if own is not None:
            return own
        if name in COMPARISONS:
            return lambda eqn, given: t.compare(name, self.of(given[0]), self.of(given[1]))
        if name in ("and", "or"):
            return lambda eqn, given: self.masks(name, eqn, given)
        if name in MAPS:
            own_operators = {"unfused": True} if name == "logistic" else {}
            return lambda eqn, given: t.map(MAPS[name], t.numbers(self.of(given[0])), **own_operators)
        if name in BINARY:
            return lambda eqn, given: self.together(BINARY[name], eqn, given)
        return None

    def masks(self, name: str, eqn: Any, given: Sequence[Known]) -> Value:
        if eqn.outvars[0].aval.dtype.kind in "iu":
            return self.bits(name, eqn, given)
        return self.t.both("mul" if name == "and" else "maximum", self.of(given[0]), self.of(given[1]))

    def together(self, step: str, eqn: Any, given: Sequence[Known]) -> Value:
        if step == "div" and eqn.outvars[0].aval.dtype.kind in "iu":
            raise lib.BadInput("a quotient of whole numbers that is one again")
        return self.t.together(step, [self.t.numbers(self.of(v)) for v in given])

    def bits(self, how: str, eqn: Any, given: Sequence[Known]) -> Value:
        a, b = given[::-1] if how == "and" and isinstance(given[1], Value) else given
        if not isinstance(b, np.ndarray) or how not in ("and", "left", "right"):
            raise lib.BadInput("the bits of whole numbers, expected masks, or constants")
        return self.t.bits(how, self.of(a), b, len(eqn.outvars[0].aval.shape))

    def on_shift_left(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.bits("left", eqn, given)

    def on_shift_right_arithmetic(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.bits("right", eqn, given)

    on_shift_right_logical = on_shift_right_arithmetic

    # numbers one by one

    def on_convert_element_type(self, eqn: Any, given: Sequence[Known], new_dtype: Any) -> Known:
        v, kind = given[0], np.dtype(new_dtype).kind
        if not isinstance(v, Value):
            return v
        if kind == "b" and not v.truth:
            return self.t.compare("ne", v, self.t.number(0))
        if kind != "b" and eqn.invars[0].aval.dtype.kind == "b":
            return self.t.truth(v)
        if v.integer and kind not in "biu":
            return self.t.numbers(v)
        if kind in "biu" and not v.integer and not v.whole:
            raise lib.BadInput("numbers as whole numbers")
        if rounds(eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype, self.t.casts):
            return self.t.map("cast", v, type=eqn.outvars[0].aval.dtype.name)
        return v.seen(v.dims)

    def on_reduce_precision(self, eqn: Any, given: Sequence[Known], exponent_bits: int, mantissa_bits: int) -> Known:
        if self.t.casts == "drop":
            return given[0]
        types = {(8, 7): "bfloat16", (5, 10): "float16", (8, 23): "float32"}
        if (exponent_bits, mantissa_bits) not in types:
            raise lib.BadInput(f"{exponent_bits} bits of exponents and {mantissa_bits} of mantissas are no type that a cast has")
        return self.t.map("cast", self.of(given[0]), type=types[exponent_bits, mantissa_bits])

    def on_assay_step(self, eqn: Any, given: Sequence[Known], step: str, parameters: Any) -> Value:
        return self.t.step(step, [self.whole(v, var) for v, var in zip(given, eqn.invars)], dict(parameters), kinds_of([var.aval for var in eqn.invars]))

    def on_integer_pow(self, eqn: Any, given: Sequence[Known], y: int) -> Value:
        return self.t.power(self.of(given[0]), self.t.number(y))

    def on_one_minus_square(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.together("sub", [self.t.number(1), self.t.map("square", self.of(given[0]))])

    def on_pow(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.power(self.of(given[0]), self.of(given[1]))

    def on_max(self, eqn: Any, given: Sequence[Known]) -> Value:
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

    def on_log1p(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.log1p(self.of(given[0]))

    def on_expm1(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.expm1(self.of(given[0]))

    def on_sinh(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.sinh(self.of(given[0]))

    def on_cosh(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.cosh(self.of(given[0]))

    def on_sign(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.signum(self.t.numbers(self.of(given[0])))

    def on_floor(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.rounded("floor", self.of(given[0]))

    def on_ceil(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.rounded("ceil", self.of(given[0]))

    def on_round(self, eqn: Any, given: Sequence[Known], rounding_method: Any) -> Value:
        if int(rounding_method) != 1:
            raise lib.BadInput("halves away from zero, expected to the even number")
        return self.t.rounded("round", self.of(given[0]))

    def on_erfc(self, eqn: Any, given: Sequence[Known]) -> Value:
        x = self.of(given[0])
        return self.t.nowhere(eqn.primitive.name, [x], x.dims, NEVER_READ)

    def on_stop_gradient(self, eqn: Any, given: Sequence[Known]) -> Value:
        return self.t.detach(self.of(given[0]))

    def on_is_finite(self, eqn: Any, given: Sequence[Known]) -> Known:
        return np.ones(eqn.outvars[0].aval.shape, bool)

    def on_ne(self, eqn: Any, given: Sequence[Known]) -> Known:
        a, b = given
        if isinstance(a, Value) and isinstance(b, Value) and a.core is b.core:  # is it a number?
            return np.zeros(eqn.outvars[0].aval.shape, bool)
        return self.t.compare("ne", self.of(a), self.of(b))

    def on_lt(self, eqn: Any, given: Sequence[Known]) -> Known:
        a, b = (self.of(v) for v in given)
        if b.number == 0 and (self.t.passed_over(a) is not None or (a.integer and a.low >= 0)):  # indices from the end
            return np.zeros(eqn.outvars[0].aval.shape, bool)
        return self.t.compare("lt", a, b)

    def on_not(self, eqn: Any, given: Sequence[Known]) -> Value:
        if eqn.outvars[0].aval.dtype.kind != "b":
            raise lib.BadInput("the bits of whole numbers, expected a mask")
        return self.t.opposite(self.of(given[0]))

    def on_select_n(self, eqn: Any, given: Sequence[Known]) -> Known:
        mask, *cases = given
        if isinstance(mask, np.ndarray) and (mask == mask.flat[0]).all():
            return cases[int(mask.flat[0])]
        return self.t.where(self.of(mask), *(self.t.numbers(self.of(v)) for v in cases[1::-1]))

    def on_clamp(self, eqn: Any, given: Sequence[Known]) -> Value:
        low, x, high = (self.of(v) for v in given)
        return self.t.together("minimum", [self.t.together("maximum", [x, low], kink=0.0), high], kink=0.0)

    # along dimensions

    def over(self, step: str, eqn: Any, given: Sequence[Known], places: Sequence[int]) -> Value:
        return self.t.over(step, self.whole(self.t.numbers(self.of(given[0])), eqn.invars[0]), places, False)

    def on_reduce_sum(self, eqn: Any, given: Sequence[Known], axes: Sequence[int]) -> Value:
        return self.over("sum", eqn, given, axes)

    def on_reduce_max(self, eqn: Any, given: Sequence[Known], axes: Sequence[int]) -> Value:
        return self.over("max", eqn, given, axes)

    def on_reduce_or(self, eqn: Any, given: Sequence[Known], axes: Sequence[int]) -> Value:
        return self.t.whether_any(self.whole(given[0], eqn.invars[0]), axes, False)

    def on_reduce_and(self, eqn: Any, given: Sequence[Known], axes: Sequence[int]) -> Value:
        return self.t.opposite(self.t.whether_any(self.t.opposite(self.t.truth(self.whole(given[0], eqn.invars[0]))), axes, False))

    def on_reduce_min(self, eqn: Any, given: Sequence[Known], axes: Sequence[int]) -> Value:
        return self.t.map("neg", self.over("max", eqn, [self.t.map("neg", self.of(given[0]))], axes))

    def on_cumsum(self, eqn: Any, given: Sequence[Known], axis: int) -> Value:
        return self.t.along("cumsum", self.whole(given[0], eqn.invars[0]), axis)

    def on_cummax(self, eqn: Any, given: Sequence[Known], axis: int) -> Value:
        return self.t.up_to("max", self.whole(given[0], eqn.invars[0]), axis)

    def on_cummin(self, eqn: Any, given: Sequence[Known], axis: int) -> Value:
        return self.t.map("neg", self.t.up_to("max", self.t.map("neg", self.whole(given[0], eqn.invars[0])), axis))

    def on_reduce_prod(self, eqn: Any, given: Sequence[Known], axes: Sequence[int]) -> Value:
        x = self.whole(given[0], eqn.invars[0])
        for place in axes:
            x = self.t.prod(x, place)
        return x.seen([d for i, d in enumerate(x.dims) if i not in axes])

    def on_cumlogsumexp(self, eqn: Any, given: Sequence[Known], axis: int) -> Value:
        """By pairs of pairs, of which each may be stored, as JAX has them on processors."""
        closed = jax.make_jaxpr(lambda x: jax.lax.associative_scan(jax.numpy.logaddexp, x, axis=axis))(eqn.invars[0].aval)
        return self.of(self.run(closed.jaxpr, closed.consts, given, self.t.place)[0])

    def on_cumprod(self, eqn: Any, given: Sequence[Known], axis: int) -> Value:
        return self.t.cumprod(self.whole(given[0], eqn.invars[0]), axis)

    # products

    def on_dot_general(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any) -> Value:
        over, batch = dimension_numbers
        values = []
        for v, var, used in zip(given, eqn.invars, zip(over, batch)):
            x = self.of(v)
            repeats = [i for i in range(len(x.dims)) if not x.dims[i] and i not in used[1]]
            whole = self.whole(x, var)
            values.append(whole if any(whole.dims[i] for i in repeats) else x)
        return self.t.contract(values[0], values[1], batch, over)

    def on_conv_general_dilated(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any, window_strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any,
                                feature_group_count: int) -> Value:
        x, w = (self.whole(v, var) for v, var in zip(given, eqn.invars))
        xs, ws, out = dimension_numbers.lhs_spec, dimension_numbers.rhs_spec, dimension_numbers.out_spec
        x, w = self.t.ordered(x, [x.dims[i] for i in xs]), self.t.ordered(w, [w.dims[i] for i in ws])
        for i, step in enumerate(lhs_dilation):
            x = self.t.spread(x, 2 + i, step)
        made = self.t.convolution(x, w, window_strides, rhs_dilation, [(int(before), int(behind)) for before, behind in padding], feature_group_count)
        return self.t.ordered(made, [made.dims[out.index(i)] for i in range(len(out))])

    def windows(self, step: str, eqn: Any, given: Sequence[Known], sizes: Sequence[int], stride: Sequence[int], padding: Any, dilation: Sequence[int], base: Sequence[int]) -> Value:
        if max(base) > 1:
            raise lib.BadInput("base_dilation, expected none")
        return self.t.pooled(step, self.whole(given[0], eqn.invars[0]), sizes, stride, dilation, [(int(a), int(b)) for a, b in padding])

    def on_reduce_window_sum(self, eqn: Any, given: Sequence[Known], window_dimensions: Any, window_strides: Any, padding: Any, window_dilation: Any, base_dilation: Any) -> Value:
        return self.windows("sum", eqn, given, window_dimensions, window_strides, padding, window_dilation, base_dilation)

    def on_reduce_window_max(self, eqn: Any, given: Sequence[Known], window_dimensions: Any, window_strides: Any, padding: Any, window_dilation: Any, base_dilation: Any) -> Value:
        return self.windows("max", eqn, given, window_dimensions, window_strides, padding, window_dilation, base_dilation)

    def on_triangular_solve(self, eqn: Any, given: Sequence[Known], left_side: bool, lower: bool, transpose_a: bool, unit_diagonal: bool) -> Value:
        a, b = (self.whole(v, var) for v, var in zip(given, eqn.invars))
        if not left_side:  # x a = b, so a^T x^T = b^T
            b = self.t.ordered(b, [*b.dims[:-2], b.dims[-1], b.dims[-2]])
        if left_side == transpose_a:
            a, lower = self.t.ordered(a, [*a.dims[:-2], a.dims[-1], a.dims[-2]]), not lower
        made = self.t.solved(a, b, lower, unit_diagonal)
        return made if left_side else self.t.ordered(made, [*made.dims[:-2], made.dims[-1], made.dims[-2]])

    # moves

    def on_reshape(self, eqn: Any, given: Sequence[Known], new_sizes: Sequence[int], dimensions: Any = None) -> Value:
        if dimensions is not None:
            raise lib.BadInput("dimensions in another order")
        x = self.of(given[0])
        kept = [d for d, n in zip(x.dims, eqn.invars[0].aval.shape) if n != 1]
        if [n for n in eqn.invars[0].aval.shape if n != 1] == [n for n in new_sizes if n != 1]:  # what repeats may stay so
            rest = iter(kept)
            if all(len(d) == 0 for d, n in zip(x.dims, eqn.invars[0].aval.shape) if n == 1):
                return x.seen([() if n == 1 else next(rest) for n in new_sizes])
        return self.t.reshape(self.whole(x, eqn.invars[0]), new_sizes)

    def on_squeeze(self, eqn: Any, given: Sequence[Known], dimensions: Sequence[int]) -> Value:
        return self.on_reshape(eqn, given, [n for i, n in enumerate(eqn.invars[0].aval.shape) if i not in dimensions])

    def on_broadcast_in_dim(self, eqn: Any, given: Sequence[Known], shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Value:
        x, before = self.of(given[0]), eqn.invars[0].aval.shape
        x = self.t.renamed(x, [() if n == 1 != shape[place] else d for d, n, place in zip(x.dims, before, broadcast_dimensions)])
        dims: list[Sequence[Axis]] = [()] * len(shape)
        for d, place in zip(x.dims, broadcast_dimensions):
            dims[place] = d
        return x.seen(dims)

    def on_transpose(self, eqn: Any, given: Sequence[Known], permutation: Sequence[int]) -> Value:
        x = self.of(given[0])
        return self.t.ordered(x, [x.dims[i] for i in permutation])

    def on_slice(self, eqn: Any, given: Sequence[Known], start_indices: Sequence[int], limit_indices: Sequence[int], strides: Any) -> Value:
        x, shape = self.of(given[0]), eqn.invars[0].aval.shape
        if strides is None or max(strides) == 1:
            return self.parts(x, shape, start_indices, limit_indices)
        place = max(range(len(shape)), key=lambda i: int(strides[i]))
        if sum(n > 1 for n in strides) > 1:
            raise lib.BadInput("every few indices of several dimensions")
        x = self.parts(self.whole(x, eqn.invars[0]), shape, start_indices, limit_indices)
        return self.t.every(x, place, 0, strides[place])

    def parts(self, x: Value, shape: Sequence[int], begins: Sequence[int], ends: Sequence[int]) -> Value:
        for i, (n, first, end) in enumerate(zip(shape, begins, ends)):
            if x.dims[i] and (first, end) != (0, n):
                x = self.t.slice(x, i, first, end)
        return x

    # loops, whose rounds follow each other

    def on_scan(self, eqn: Any, given: Sequence[Known], jaxpr: Any, length: int, reverse: bool, num_consts: int = 0, num_carry: int = 0, ft_in: Any = None) -> list[Known]:
        if ft_in is not None:  # from JAX 0.12 on: trees of constants, states and series
            num_consts, num_carry, _ = map(len, ft_in.unpack())
        constants, carry, series = list(given[:num_consts]), list(given[num_consts : num_consts + num_carry]), given[num_consts + num_carry :]
        rounds: list[list[Known]] = []
        for i in range(length)[:: -1 if reverse else 1]:
            rows = [v[i] if isinstance(v, np.ndarray) else self.row(self.of(v), i, var.aval.shape) for v, var in zip(series, eqn.invars[num_consts + num_carry :])]
            made = self.body(eqn, jaxpr, [*constants, *carry, *rows])
            carry = made[:num_carry]
            rounds.append(made[num_carry:])
        rounds = rounds[::-1] if reverse else rounds
        inner = getattr(jaxpr, "jaxpr", jaxpr).outvars[num_carry:]
        return [*carry, *(self.stacked([r[k] for r in rounds], var) for k, var in enumerate(inner))]

    def on_while(self, eqn: Any, given: Sequence[Known], cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int) -> list[Known]:
        asked, constants, carry = list(given[:cond_nconsts]), list(given[cond_nconsts : cond_nconsts + body_nconsts]), list(given[cond_nconsts + body_nconsts :])
        for _ in range(ROUNDS):
            goes_on = self.body(eqn, cond_jaxpr, [*asked, *carry])[0]
            if not isinstance(goes_on, np.ndarray):
                raise lib.BadInput("when the loop ends is computed from the arguments")
            if not goes_on:
                return carry
            carry = self.body(eqn, body_jaxpr, [*constants, *carry])
        raise lib.BadInput(f"the loop has more than {ROUNDS} rounds")

    def on_cond(self, eqn: Any, given: Sequence[Known], branches: Sequence[Any]) -> list[Known]:
        if not isinstance(given[0], np.ndarray):
            raise lib.BadInput("which branch runs is computed from the arguments")
        return self.body(eqn, branches[min(max(int(given[0]), 0), len(branches) - 1)], given[1:])

    def body(self, eqn: Any, closed: Any, given: Sequence[Known]) -> list[Known]:
        where, body = self.t.place, getattr(closed, "jaxpr", closed)
        ours = f"{self.file}:" in (body.debug_info.func_src_info or "")
        made = self.run(body, getattr(closed, "consts", ()), given, None if ours else where)
        self.t.place = where
        return made

    def row(self, x: Value, i: int, shape: Sequence[int]) -> Value:
        if x.dims[0]:
            x = self.t.slice(x, 0, i, i + 1)
        return self.t.reshape(self.t.ordered(x, [d or (() if n == 1 else (Axis(n),)) for d, n in zip(x.dims, (1, *shape[1:]))]), shape[1:])

    def stacked(self, rows: Sequence[Known], var: Any) -> Known:
        arrays = [v for v in rows if isinstance(v, np.ndarray)]
        if len(arrays) == len(rows):
            return np.stack(arrays) if arrays else np.zeros((0, *var.aval.shape))
        values = [self.whole(v, var) for v in rows]
        return self.t.concatenate([v.seen([(), *v.dims]) for v in values], 0)

    def on_dynamic_update_slice(self, eqn: Any, given: Sequence[Known]) -> Value:
        begins = [self.of(v).number for v in given[2:]]
        shapes = [v.aval.shape for v in eqn.invars[:2]]
        places = [i for i, (n, m) in enumerate(zip(*shapes)) if n != m]
        if None in begins or len(places) > 1:
            raise lib.BadInput("where it is written is computed, or in several dimensions")
        if not places:
            return self.of(given[1])
        at, n, m = places[0], shapes[0][places[0]], shapes[1][places[0]]
        x, part = (self.whole(v, var) for v, var in zip(given[:2], eqn.invars[:2]))
        return self.t.written(x, shapes[0], at, min(max(int(begins[at] or 0), 0), n - m), part)

    def on_dynamic_slice(self, eqn: Any, given: Sequence[Known], slice_sizes: Sequence[int]) -> Value:
        begins = [self.of(v).number for v in given[1:]]
        if None in begins:
            raise lib.BadInput("where it begins is computed")
        shape = eqn.invars[0].aval.shape
        firsts = [min(int(b or 0), n - m) for b, n, m in zip(begins, shape, slice_sizes)]
        return self.parts(self.of(given[0]), shape, firsts, [f + m for f, m in zip(firsts, slice_sizes)])

    def on_tile(self, eqn: Any, given: Sequence[Known], reps: Sequence[int]) -> Value:
        return self.t.tiled(self.whole(given[0], eqn.invars[0]), reps)

    def on_rev(self, eqn: Any, given: Sequence[Known], dimensions: Sequence[int]) -> Value:
        x = self.whole(given[0], eqn.invars[0])
        for place in dimensions:
            x = self.t.flipped(x, place)
        return x

    def on_pad(self, eqn: Any, given: Sequence[Known], padding_config: Any) -> Value:
        x, number = self.whole(given[0], eqn.invars[0]), self.of(given[1]).number
        if number is None:
            raise lib.BadInput("expected a number around a tensor")
        for i, (before, behind, within) in enumerate(padding_config):
            n = eqn.invars[0].aval.shape[i]
            if within:  # numbers between those of x: behind each of them, but for the last
                spread = self.t.padded(x.seen([*x.dims[: i + 1], (), *x.dims[i + 1 :]]), i + 1, 0, int(within), number)
                shape = [m if k != i else n * (within + 1) for k, m in enumerate(size_of(d) for d in x.dims)]
                x = self.t.slice(self.t.reshape(spread, shape), i, 0, n + (n - 1) * within)
            x = self.t.padded(x, i, int(before), int(behind), number) if (before, behind) != (0, 0) else x
        return x

    def on_split(self, eqn: Any, given: Sequence[Known], sizes: Sequence[int], axis: int) -> list[Value]:
        made, first = [], 0
        for size in map(int, sizes):
            x = self.of(given[0])
            made.append(self.t.slice(x, axis, first, first + size) if x.dims[axis] else x)
            first += size
        return made

    def on_concatenate(self, eqn: Any, given: Sequence[Known], dimension: int) -> Known:
        if eqn.outvars[0].aval.dtype.kind in "iu" and dimension == len(eqn.outvars[0].aval.shape) - 1:
            return Joined(given)
        joined = self.rotations.joined([self.operand(v, tuple(var.aval.shape)) for v, var in zip(given, eqn.invars)], dimension)
        return self.t.concatenate([v if isinstance(v, Value) else self.whole(given[v], eqn.invars[v]) for v in joined], dimension)

    def on_stack(self, eqn: Any, given: Sequence[Known], axis: int) -> Value:
        parts = []
        for v, var in zip(given, eqn.invars):
            x = self.whole(v, var)
            parts.append(x.seen([*x.dims[:axis], (), *x.dims[axis:]]))
        return self.t.concatenate(parts, axis)

    def on_gather(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any, slice_sizes: Sequence[int]) -> Value:
        table, shape, n = self.whole(given[0], eqn.invars[0]), eqn.invars[0].aval.shape, dimension_numbers
        rank, index_shape = len(shape), eqn.invars[1].aval.shape
        gone, batch = tuple(n.collapsed_slice_dims), tuple(n.operand_batching_dims)
        if isinstance(given[1], Joined):  # each row's number at its index
            rows, index = (given[1].parts + [None])[:2]
            if rank == len(given[1].parts) == 2 and gone == (0, 1) and isinstance(rows, np.ndarray) and isinstance(index, Value):
                rows = rows[..., 0]
                if rows.shape[:1] == shape[:1] and (rows == np.arange(shape[0]).reshape([-1] + [1] * (rows.ndim - 1))).all() and tuple(n.start_index_map) == (0, 1):
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
        if batch == tuple(range(gone[0])) == tuple(n.start_indices_batching_dims) and tuple(n.offset_dims) == tuple(range(len(index.dims), len(index.dims) + len(rest))):
            tables = int(np.prod([shape[i] for i in batch]))  # one below the other
            first = np.arange(tables).reshape([*(shape[i] for i in batch), *[1] * (len(index.dims) - len(batch))]) * shape[gone[0]]
            place = self.t.together("add", [self.t.numbers(v) for v in (index, self.t.constant(first))])
            return self.t.rows(self.t.reshape(table, [tables * shape[gone[0]], *(shape[i] for i in rest)]), place)
        raise lib.BadInput(f"expected indices of the last dimension of {list(shape)}, found {list(index_shape)}")

    def on_scatter(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any) -> Value:
        n, shape, index = dimension_numbers, eqn.invars[0].aval.shape, given[1]
        row = (tuple(n.inserted_window_dims), tuple(n.scatter_dims_to_operand_dims), tuple(n.update_window_dims)) == ((0,), (0,), tuple(range(len(shape) - 1)))
        if not row or not isinstance(index, np.ndarray) or index.size != 1 or n.operand_batching_dims:
            return self.written(eqn, given, n, False)
        new = self.whole(given[2], eqn.invars[2])
        return self.t.written(self.whole(given[0], eqn.invars[0]), shape, 0, int(index.flat[0]), new.seen([(), *new.dims]))

    def written(self, eqn: Any, given: Sequence[Known], n: Any, adds: bool) -> Value:
        """Where indices of one dimension say."""
        place, rank, many = tuple(n.inserted_window_dims), len(eqn.invars[0].aval.shape), len(eqn.invars[2].aval.shape)
        if len(place) != 1 or tuple(n.scatter_dims_to_operand_dims) != place or n.operand_batching_dims or len(n.update_window_dims) != rank - 1:
            raise lib.BadInput("expected indices of one dimension")
        index, new = self.whole(given[1], eqn.invars[1]), self.whole(self.t.numbers(self.of(given[2])), eqn.invars[2])
        index = index.seen(index.dims[:-1])
        window = list(n.update_window_dims)  # in the place of the dimension are those of the index
        order = [*window[: place[0]], *(i for i in range(many) if i not in window), *window[place[0] :]]
        return self.t.written_at(self.whole(given[0], eqn.invars[0]), place[0], index, self.t.ordered(new, [new.dims[i] for i in order]) if new.axes else new, adds)

    def on_scatter_add(self, eqn: Any, given: Sequence[Known], dimension_numbers: Any) -> Value:
        n, shape = dimension_numbers, eqn.invars[0].aval.shape
        index = self.of(given[1])
        index = index.seen(index.dims[:-1])
        last = tuple(range(len(index.dims), len(eqn.invars[2].aval.shape)))
        if tuple(n.inserted_window_dims) != (0,) or tuple(n.scatter_dims_to_operand_dims) != (0,) or tuple(n.update_window_dims) != last or n.operand_batching_dims:
            return self.written(eqn, given, n, True)
        x, rows = self.of(given[0]), self.t.numbers(self.of(given[2]))
        made = self.t.scatter_add(rows if rows.number is not None and len(shape) == 1 else self.whole(rows, eqn.invars[2]), index, shape[0])
        return made if x.number == 0 else self.t.together("add", [x, made])

    def on_ragged_dot_general(self, eqn: Any, given: Sequence[Known], ragged_dot_dimension_numbers: Any) -> Value:
        n = ragged_dot_dimension_numbers
        plain = (tuple(map(tuple, n.dot_dimension_numbers[0])), tuple(map(tuple, n.dot_dimension_numbers[1]))) == (((1,), (1,)), ((), ()))
        if not plain or (tuple(n.lhs_ragged_dimensions), tuple(n.rhs_group_dimensions)) != ((0,), (0,)):
            raise lib.BadInput("expected rows in groups, each by its own matrix")
        x, w, sizes = (self.whole(v, at) for v, at in zip(given, eqn.invars))
        return self.t.grouped_product(x, w, sizes)

    def on_argmax(self, eqn: Any, given: Sequence[Known], axes: Sequence[int]) -> Value:
        return self.best(eqn, self.whole(given[0], eqn.invars[0]), axes[0])

    def on_argmin(self, eqn: Any, given: Sequence[Known], axes: Sequence[int]) -> Value:
        return self.best(eqn, self.t.map("neg", self.whole(given[0], eqn.invars[0])), axes[0])

    def best(self, eqn: Any, x: Value, place: int) -> Value:
        x = self.t.ordered(x, [*(d for i, d in enumerate(x.dims) if i != place), x.dims[place]])
        return self.t.reshape(self.t.top_k(x, 1), eqn.outvars[0].aval.shape)

    def on_sort(self, eqn: Any, given: Sequence[Known], dimension: int, num_keys: int) -> list[Value]:
        x = self.whole(given[0], eqn.invars[0])
        order = [i for i in range(len(x.dims)) if i != dimension] + [dimension]
        iota = given[1] if len(given) == 2 else None
        along = np.arange(size_of(x.dims[dimension])).reshape([-1 if i == dimension else 1 for i in range(len(x.dims))])
        if num_keys != 1 or len(given) > 2 or (iota is not None and not (isinstance(iota, np.ndarray) and iota.dtype.kind in "iu" and (iota == along).all())):
            raise lib.BadInput("expected one tensor, and where its numbers stood")
        if (x.integer or x.whole) and len(given) == 2 and len(x.dims) == 1:
            index = self.t.argsort(x)
            return [self.t.rows(x, index), index]
        x = self.t.ordered(x, [x.dims[i] for i in order])
        index = self.t.top_k(self.t.map("neg", x), size_of(x.dims[-1]))
        made = [self.t.pick(x, index), *([index] if iota is not None else [])]
        return [self.t.ordered(v, [v.dims[order.index(i)] for i in range(len(order))]) for v in made]

    def on_top_k(self, eqn: Any, given: Sequence[Known], k: int, axis: int = -1) -> list[Value]:
        x = self.whole(given[0], eqn.invars[0])
        if axis % len(x.dims) != len(x.dims) - 1:
            raise lib.BadInput("expected the best of the last dimension")
        index = self.t.top_k(x, k)
        return [self.t.pick(x, index), index]


def record(tracer: Tracer, function: Callable[..., Any], example: dict[str, Any], weights: set[str], counts: Mapping[str, int]) -> list[tuple[str, Value]]:
    shapes, values = [], []
    for name, x in example.items():
        if not hasattr(x, "dtype") or not hasattr(x, "shape") or np.dtype(x.dtype).kind == "c":
            raise lib.BadInput(f"{name} of the example is of {getattr(x, 'dtype', type(x).__name__)}, expected a tensor of real numbers, or its shape; what is none is bound to the function "
                               "beforehand, by functools.partial or a lambda")
        if 0 in x.shape:
            raise lib.BadInput(f"{name} is {list(x.shape)}, expected a tensor with numbers")
        floats = np.dtype(x.dtype).kind not in "biu"
        if not floats and name not in counts and not hasattr(x, "__array__"):
            raise lib.BadInput(f"{name}: integers of {x}: expected how many there are, integers={{{name!r}: 1000}}")
        shapes.append(jax.ShapeDtypeStruct(x.shape, np.dtype(np.float64) if floats else x.dtype))
        values.append(tracer.given(name, x.shape, None if floats else np.array([0, counts[name] - 1]) if name in counts else np.asarray(x).astype(np.int64), name in weights))
        values[-1].truth = np.dtype(x.dtype).kind == "b"
        values[-1].low = 0 if floats or name in counts else int(np.min(np.asarray(x), initial=0))
    names: list[str] = []

    def flat(*arguments: Any) -> list[Any]:
        results = named(function, function(**dict(zip(example, arguments))))
        names[:] = list(results)
        return list(results.values())

    with jax.enable_x64(True):  # numbers of the function in full
        closed = jax.make_jaxpr(flat)(*shapes)
        tracer.stores = True
        walk = Walk(tracer, function)
        made = walk.run(closed.jaxpr, closed.consts, values, None)
    outputs: list[tuple[str, Value]] = []
    for name, value, var in zip(names, made, closed.jaxpr.outvars):
        v = walk.of(value)
        tracer.output(name, v if v.refused or v.integer or v.number is not None else walk.whole(v, var), var.aval.shape, str(var.aval.dtype), outputs)
    return outputs


def types_at(function: Callable[..., Any], example: Mapping[str, Any], dtype: str) -> dict[str, str]:
    """Of a function's results, where its arguments are of that type; none, where it does not run so."""
    own = types_of(example)
    given = {name: jax.ShapeDtypeStruct(x.shape, x.dtype if np.dtype(x.dtype).kind in "biu" or name in own else jax.numpy.dtype(dtype)) for name, x in example.items()}
    try:
        return {name: str(x.dtype) for name, x in jax.eval_shape(lambda given: named(function, function(**given)), given).items()}
    except Exception:  # one that says in which type its arguments are
        return {}


def functional(module: Any, example: dict[str, Any]) -> tuple[Any, dict[str, Any], list[str]]:
    """A module of flax as a function of its arguments and its parameters, which are called by their paths with underscores between; other variables are
    constants."""
    linen = hasattr(module, "variables")
    if linen:
        own, variables = module.unbind()
        leaves, tree = jax.tree_util.tree_flatten_with_path(variables["params"])
    else:
        nnx = importlib.import_module("flax.nnx")
        graph, parameters, rest = nnx.split(module, nnx.Param, ...)
        leaves, tree = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(parameters))
    paths = [".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path, _ in leaves]
    names = short_names(paths)
    called = {path: name for name, path in names.items()}

    def run(**given: Any) -> Any:
        made = jax.tree_util.tree_unflatten(tree, [given.get(called[path], leaf) for path, (_, leaf) in zip(paths, leaves)])
        arguments = {name: x for name, x in given.items() if name not in names}
        if linen:
            return own.apply({**variables, "params": made}, **arguments)
        state = jax.tree.map(lambda x: x, parameters)
        nnx.replace_by_pure_dict(state, made)
        return nnx.merge(graph, state, rest)(**arguments)

    run.__name__, run.__wrapped__ = type(module).__name__, type(module).__call__  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature([inspect.Parameter("given", inspect.Parameter.VAR_KEYWORD)])  # type: ignore[attr-defined]
    return run, {**example, **{called[path]: leaf for path, (_, leaf) in zip(paths, leaves)}}, list(names)


def rounded(x: Any, type: str) -> Any:
    return np.asarray(x).astype(jax.numpy.dtype(type)).astype(np.float64)


def evaluate(function: Callable[..., Any], example: Mapping[str, Any], given: Mapping[str, Any], cotangents: Mapping[str, Any],
             kinks: bool, casts: str = "drop", backward: bool = True) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
    """What a function gives in float64 at these numbers, its gradients, and which primitives met a kink."""
    floats = [name for name, x in example.items() if np.dtype(x.dtype).kind not in "biu"]

    def run(leaves: Mapping[str, Any], others: Mapping[str, Any], upstream: Mapping[str, Any]) -> Any:
        def outputs(leaves: Mapping[str, Any]) -> Any:
            made = named(function, function(**{name: leaves[name] if name in leaves else others[name] for name in example}))
            return {name: y for name, y in made.items() if name in upstream}, {name: y for name, y in made.items() if y.dtype.kind in "biu"}

        if not backward:
            made, whole = outputs(leaves)
            return {**made, **whole}, {}
        made, back, whole = jax.vjp(outputs, leaves, has_aux=True)
        return {**made, **whole}, back({name: upstream[name].astype(y.dtype) for name, y in made.items()})[0]

    with jax.enable_x64(True):
        arguments = ({name: jax.numpy.asarray(given[name]) for name in floats}, {name: jax.numpy.asarray(given[name]).astype(example[name].dtype) for name in example if name not in floats},
                     {name: jax.numpy.asarray(x) for name, x in cotangents.items()})
        with jax.disable_jit():
            closed, shapes = jax.make_jaxpr(run, return_shape=True)(*arguments)
        wide = Wide(casts, kinks)
        leaves = jax.tree.leaves(arguments)
        back = set(closed.jaxpr.invars[len(leaves) - len(cotangents) :])
        flat = lambda *leaves: wide.run(closed.jaxpr, closed.consts, leaves, back)  # noqa: E731
        made = (flat if kinks else jax.jit(flat))(*leaves)
        results, gradients = jax.tree.unflatten(jax.tree.structure(shapes), [np.asarray(x) for x in made])
    return results, gradients, wide.kinked


class Wide:
    """A jaxpr in float64, whatever types its function names."""

    def __init__(self, casts: str, kinks: bool) -> None:
        self.casts, self.kinks = casts, kinks  #: which casts round, whether to look for kinks
        self.kinked: set[str] = set()  #: primitives that had one

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any], back: set[Any]) -> list[Any]:
        """back: what a gradient is in, through which casts let it pass."""
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], map(widest, [*constants, *arguments])))

        def of(v: Any) -> Any:
            return widest(v.val) if isinstance(v, Literal) else known[v]

        for eqn in jaxpr.eqns:
            operands = [of(v) for v in eqn.invars]
            is_back = any(v in back for v in eqn.invars if not isinstance(v, Literal))
            back |= set(eqn.outvars) if is_back else set()
            if self.kinks and has_kink(eqn.primitive.name, operands, eqn.params):
                self.kinked.add(eqn.primitive.name)
            body, inner = called(eqn) if eqn.primitive.name not in LOOPS else (None, ())
            if body is not None:
                known.update(zip(eqn.outvars, self.run(body, inner, operands, {own for own, v in zip(body.invars, eqn.invars) if not isinstance(v, Literal) and v in back})))
                continue
            parameters = {key: jax.numpy.float64.dtype if key.endswith("dtype") and is_float(value) else None if key == "preferred_element_type" else value
                          for key, value in eqn.params.items()}
            cast = eqn.primitive.name
            if cast == "reduce_precision" and (self.casts == "drop" or is_back):
                made = operands[0]
            elif cast == "convert_element_type" and not is_back and rounds(eqn.invars[0].aval.dtype, eqn.params["new_dtype"], self.casts):
                made = operands[0].astype(eqn.params["new_dtype"]).astype(np.float64)
            elif cast == "scatter-add":  # whose sum was traced for the type that the function names
                parameters = {key: value for key, value in parameters.items() if not key.startswith("update_")}
                made = jax.lax.scatter_add(*operands, **parameters)
            else:
                made = eqn.primitive.bind(*operands, **parameters)
            known.update(zip(eqn.outvars, made if eqn.primitive.multiple_results else [made]))
        return [of(v) for v in jaxpr.outvars]


def is_float(dtype: Any) -> bool:
    return dtype is not None and jax.numpy.issubdtype(dtype, np.floating)


def widest(x: Any) -> Any:
    return x if not is_float(getattr(x, "dtype", None)) or x.dtype == np.float64 else jax.numpy.asarray(shortest(np.asarray(x)), np.float64)


def has_kink(name: str, operands: Sequence[Any], parameters: Mapping[str, Any]) -> bool:
    """Whether a primitive that has no one gradient there meets such a point."""
    x = operands[0]
    if not is_float(getattr(x, "dtype", None)):
        return False
    if name in ("abs", "sign", "sqrt"):
        return bool((x == 0).any())
    if name in ("max", "min", *COMPARISONS):
        return bool((x == operands[1]).any())
    if name == "clamp":
        return any(bool((operands[1] == bound).any()) for bound in (operands[0], operands[2]))
    if name in ("reduce_max", "reduce_min", "argmax"):
        most = (jax.numpy.min if name == "reduce_min" else jax.numpy.max)(x, parameters["axes"], keepdims=True)
        return bool(((x == most).sum(parameters["axes"]) > 1).any())
    return name == "top_k" and bool((jax.numpy.diff(jax.numpy.sort(x, -1)) == 0).any())
