"""PyTorch's operators as steps of a program: those of ATen that reach a dispatch mode."""
from __future__ import annotations

import contextlib
import os
import traceback
from typing import Any, Callable, Mapping, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import _library as lib
from ._trace import Axis, Tracer, Value, size_of

CONSTANTS = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "arange")
SAME = ("_to_copy", "clone", "alias", "contiguous", "to", "lift_fresh_copy", "lift_fresh", "positive")
MAPS = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sigmoid", "silu", "erf", "tanh", "relu", "sin", "cos", "reciprocal", "square", "softplus")
LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__, contextlib.__file__))
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")


def rounds(given: Any, to: Any) -> bool:
    """Whether a cast loses anything."""
    if not (given.is_floating_point and to.is_floating_point):
        return False
    before, after = torch.finfo(given), torch.finfo(to)
    return after.eps > before.eps or after.max < before.max


class Recorder(TorchDispatchMode):
    def __init__(self, tracer: Tracer, function: Callable[..., Any]) -> None:
        super().__init__()
        self.t, self.function = tracer, function
        self.values: dict[int, Value] = {}
        self.alive: list[Any] = []  # so that no id is used again
        self.given: set[int] = set()

    def bind(self, tensor: Any, value: Value) -> None:
        self.alive.append(tensor)
        self.values[id(tensor)] = value

    def alone(self, tensor: Any) -> bool:
        """Whether it is a result that nothing else looks at: then it may be written into."""
        def memory(t: Any) -> int:
            return int(t.storage().data_ptr())

        return id(tensor) not in self.given and [memory(t) for t in self.alive].count(memory(tensor)) == 1

    def place(self) -> tuple[str, int]:
        """The line that runs, of the function or of what it calls outside of PyTorch."""
        for frame in reversed(traceback.extract_stack()):
            if not frame.filename.startswith((*LIBRARIES, "<")):
                return frame.filename, frame.lineno or 0
        return "", 0

    def of(self, x: Any) -> Value:
        if isinstance(x, (int, float, bool)):
            return self.t.number(float(x))
        if id(x) in self.values:
            return self.values[id(x)]
        self.bind(x, self.t.constant(x.numpy()))
        return self.values[id(x)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        operator = func.__name__.split(".")[0]
        self.t.place = self.place()
        if operator in CONSTANTS:
            return out
        known = [x for x in list(args) + [y for a in args if isinstance(a, (list, tuple)) for y in a] if id(x) in self.values]
        if not known:
            return out  # a constant
        try:
            inplace = operator.endswith("_") and not operator.endswith("__") and out is args[0]
            if inplace and not self.alone(out):
                raise lib.BadInput("writes into what others read")
            made = self.record(operator[: len(operator) - inplace], out, args, kwargs)
        except lib.BadInput as why:
            raise lib.BadInput(f"{self.t.place[0]}:{self.t.place[1]}: {operator}: {why}") from None
        for tensor, value in zip(out, made) if isinstance(made, list) else [(out, made)]:
            if len(value.dims) == tensor.dim():  # a constant may be longer than what it meets
                value = self.t.ordered(value, [d or (() if n == 1 else (Axis(n),)) for d, n in zip(value.dims, tensor.shape)])
            self.bind(tensor, value)
        return out

    def record(self, operator: str, out: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value | list[Value]:
        t = self.t
        if operator in SAME:
            value = self.of(args[0])
            return t.map("cast", value, type=str(out.dtype).split(".")[1]) if t.casts and rounds(args[0].dtype, out.dtype) else value
        handler: Callable[..., Value | list[Value]] | None = getattr(self, "on_" + operator, None)
        if handler is not None:
            return handler(out, *args, **kwargs)
        if operator in MAPS:
            if self.of(args[0]).integer:
                raise lib.BadInput("whole numbers as numbers")
            return t.map(operator, self.of(args[0]))
        if operator in BINARY:
            if operator == "add" and (masked := self.masked(args[0], args[1]) or self.masked(args[1], args[0])):
                return masked
            if self.of(args[0]).integer or self.of(args[1]).integer:
                raise lib.BadInput("whole numbers as numbers")
            alpha = kwargs.get("alpha", 1)
            second = self.of(args[1])
            if alpha != 1:
                second = t.together("mul", [second, t.number(alpha)])
            return t.together(operator, [self.of(args[0]), second])
        raise lib.BadInput("a program has no such operator")

    # numbers one by one

    def on_detach(self, out: Any, x: Any) -> Value:
        v = self.of(x)
        made = v.seen(v.dims)
        made.refused = "" if v.integer else v.refused or self.t.said("detach", "a program has it within softmax and logsumexp alone")
        return made

    def mask(self, x: Any, other: Any, inverted: bool) -> Value:
        """Whole numbers, held against 0."""
        v = self.of(x)
        if not v.integer or isinstance(other, torch.Tensor) or other != 0:
            raise lib.BadInput("a mask is computed, expected an argument of integers")
        made = v.seen(v.dims)
        made.inverted = inverted
        return made

    def on_eq(self, out: Any, x: Any, other: Any) -> Value:
        return self.mask(x, other, True)

    def on_ne(self, out: Any, x: Any, other: Any) -> Value:
        return self.mask(x, other, False)

    on_gt = on_ne

    def on_logical_not(self, out: Any, x: Any) -> Value:
        v = self.of(x)
        made = v.seen(v.dims)
        made.inverted = not v.inverted
        return made

    on_bitwise_not = on_logical_not

    def masked(self, x: Any, mask: Any) -> Value | None:
        """x and a tensor that the function makes of 0 and a number far below."""
        if not isinstance(mask, torch.Tensor) or id(mask) in self.values or mask.dim() == 0 or mask.max() != 0:
            return None
        low = float(mask[mask != 0].max()) if (mask != 0).any() else 0.0
        if low > -1e9 or (mask[mask != 0] != low).any():
            return None
        return self.t.where(self.t.constant((mask == 0).numpy()), self.of(x), self.t.number(low))

    def on_masked_fill(self, out: Any, x: Any, mask: Any, value: Any) -> Value:
        return self.t.where(self.of(mask), self.of(value), self.of(x))

    def on_log1p(self, out: Any, x: Any) -> Value:
        return self.t.log1p(self.of(x))

    def on_logaddexp(self, out: Any, x: Any, y: Any) -> Value:
        a, b = self.of(x), self.of(y)
        return self.t.together("add", [self.t.together("maximum", [a, b]), self.t.map("softplus", self.t.map("neg", self.t.map("abs", self.t.together("sub", [a, b]))))])

    def on_rsub(self, out: Any, x: Any, other: Any, alpha: float = 1) -> Value:
        return self.t.together("sub", [self.of(other), self.of(x)])

    def on_pow(self, out: Any, x: Any, power: Any) -> Value:
        return self.t.power(self.of(x), power)

    def on_gelu(self, out: Any, x: Any, approximate: str = "none") -> Value:
        return self.t.map("gelu" if approximate == "tanh" else "gelu_exact", self.of(x))

    def on_clamp(self, out: Any, x: Any, low: Any = None, high: Any = None, **named: Any) -> Value:
        low, high = named.get("min", low), named.get("max", high)
        bounds = {key: float(value) for key, value in (("low", low), ("high", high)) if value is not None}
        return self.t.map("clamp", self.of(x), **bounds)

    def on_clamp_min(self, out: Any, x: Any, low: float) -> Value:
        return self.t.map("clamp", self.of(x), low=float(low))

    def on_hardtanh(self, out: Any, x: Any, low: float = -1, high: float = 1) -> Value:
        return self.t.map("clamp", self.of(x), low=float(low), high=float(high))

    def on_leaky_relu(self, out: Any, x: Any, slope: float = 0.01) -> Value:
        if not 0 <= slope <= 1:
            raise lib.BadInput(f"the slope {slope}, expected one from 0 to 1")
        return self.t.together("maximum", [self.of(x), self.t.together("mul", [self.of(x), self.t.number(slope)])])

    def on_mish(self, out: Any, x: Any) -> Value:
        return self.t.together("mul", [self.of(x), self.t.map("tanh", self.t.map("softplus", self.of(x)))])

    def on_glu(self, out: Any, x: Any, place: int = -1) -> Value:
        half = x.shape[place] // 2
        a, b = (self.t.slice(self.of(x), place, first, first + half) for first in (0, half))
        return self.t.together("mul", [a, self.t.map("sigmoid", b)])

    def on_where(self, out: Any, mask: Any, a: Any, b: Any) -> Value:
        return self.t.where(self.of(mask), self.of(a), self.of(b))

    # along dimensions

    def on_sum(self, out: Any, x: Any, dims: Any = None, keepdim: bool = False, **named: Any) -> Value:
        return self.t.over("sum", self.of(x), dims if dims else range(x.dim()), keepdim)

    def on_mean(self, out: Any, x: Any, dims: Any = None, keepdim: bool = False, **named: Any) -> Value:
        return self.t.over("mean", self.of(x), dims if dims else range(x.dim()), keepdim)

    def on_amax(self, out: Any, x: Any, dims: Any = (), keepdim: bool = False) -> Value:
        return self.t.over("max", self.of(x), dims if dims else range(x.dim()), keepdim)

    def on_max(self, out: Any, x: Any, *rest: Any, **named: Any) -> Value | list[Value]:
        if isinstance(out, torch.Tensor):
            return self.t.over("max", self.of(x), range(x.dim()), False)
        largest = self.on_amax(out, x, [rest[0]], rest[1] if len(rest) > 1 else named.get("keepdim", False))
        return [largest, self.t.nowhere("max", [self.of(x)], largest.dims, "a program has no indices of a maximum, but those of top_k")]

    def on_var(self, out: Any, x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
        t, v, places = self.t, self.of(x), list(dims) if dims else range(x.dim())
        count = float(size_of([a for p in places for a in v.dims[p]]))
        squares = t.map("square", t.together("sub", [v, t.over("mean", v, places, True)]))
        return t.together("div", [t.over("sum", squares, places, keepdim), t.number(count - correction)])

    def on_linalg_vector_norm(self, out: Any, x: Any, order: float = 2, dims: Any = None, keepdim: bool = False, **named: Any) -> Value:
        if order != 2:
            raise lib.BadInput(f"the norm {order}, expected 2")
        return self.t.map("sqrt", self.t.over("sum", self.t.map("square", self.of(x)), dims if dims else range(x.dim()), keepdim))

    on_norm = on_linalg_vector_norm

    def on_nll_loss_forward(self, out: Any, logs: Any, target: Any, weight: Any, reduction: int, ignored: int) -> list[Value]:
        if weight is not None or logs.dim() != 2 or ignored >= 0:
            raise lib.BadInput("expected logs [T,V], and neither weights nor an index that is passed over")
        each = self.t.map("neg", self.t.pick(self.of(logs), self.of(target)))
        loss = self.t.over(("", "mean", "sum")[reduction], each, [0], False) if reduction else each
        return [loss, self.t.number(logs.shape[0])]

    def on_logsumexp(self, out: Any, x: Any, dims: Any, keepdim: bool = False) -> Value:
        return self.t.over("logsumexp", self.of(x), dims, keepdim)

    def on__softmax(self, out: Any, x: Any, dim: int, half: bool) -> Value:
        return self.t.along("softmax", self.of(x), dim)

    def on__safe_softmax(self, out: Any, x: Any, dim: int, dtype: Any = None) -> Value:
        return self.t.along("softmax", self.of(x), dim)

    def on__log_softmax(self, out: Any, x: Any, dim: int, half: bool) -> Value:
        v = self.of(x)
        return self.t.together("sub", [v, self.t.over("logsumexp", v, [dim], True)])

    def on_cumsum(self, out: Any, x: Any, dim: int, **named: Any) -> Value:
        return self.t.along("cumsum", self.of(x), dim)

    def on_native_layer_norm(self, out: Any, x: Any, shape: Any, weight: Any, bias: Any, epsilon: float) -> list[Value]:
        if len(shape) != 1:
            raise lib.BadInput("expected a norm over the last dimension")
        if weight is None or bias is None:
            t = self.t
            centred = t.together("sub", [self.of(x), t.over("mean", self.of(x), [-1], True)])
            spread = t.map("rsqrt", t.together("add", [t.over("mean", t.map("square", centred), [-1], True), t.number(epsilon)]))
            y = t.together("mul", [centred, spread])
            y = t.together("mul", [y, self.of(weight)]) if weight is not None else y
            return [t.together("add", [y, self.of(bias)]) if bias is not None else y] * 3
        v, (w, b) = self.of(x), (self.of(p) for p in (weight, bias))
        v = self.t.merged(v, [len(v.dims) - 1])
        made = [self.t.fit(p, 0, v.dims[-1]) for p in (w, b)]
        y = self.t.call("layer_norm", [v, *made], v.dims, epsilon=float(epsilon))
        return [y, y, y]

    # products

    def on_mm(self, out: Any, a: Any, b: Any) -> Value:
        return self.t.product(self.of(a), self.of(b), 0)

    def on_bmm(self, out: Any, a: Any, b: Any) -> Value:
        return self.t.product(self.of(a), self.of(b), 1)

    def on_addmm(self, out: Any, bias: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Value:
        if beta != 1 or alpha != 1:
            raise lib.BadInput("beta or alpha is not 1")
        return self.t.together("add", [self.t.product(self.of(a), self.of(b), 0), self.of(bias)])

    def on_mv(self, out: Any, a: Any, b: Any) -> Value:
        return self.t.product(self.of(a), self.of(b), 0)

    def on_baddbmm(self, out: Any, x: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Value:
        t, made = self.t, self.on_bmm(out, a, b)
        if alpha != 1:
            made = t.together("mul", [made, t.number(alpha)])
        if beta == 0:
            return made
        first = self.of(x) if beta == 1 else t.together("mul", [self.of(x), t.number(beta)])
        return t.together("add", [first, made])

    def on_convolution(self, out: Any, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *rest: Any) -> Value:
        """What begins before the first index; the first as many indices as there were are a causal convolution."""
        channels = x.shape[1] if x.dim() == 3 else 0
        wanted = [[1], [1], [w.shape[-1] - 1], channels, False]
        if [list(stride), list(dilation), list(padding), rest[-1], transposed] != wanted or w.shape[:2] != (channels, 1):
            raise lib.BadInput("expected a causal convolution of each channel")
        v, taps = self.of(x), self.of(w)
        values = [v, taps] + ([self.of(bias)] if bias is not None else [])
        return self.t.nowhere("convolution", values, [*v.dims[:2], (Axis(out.shape[2]),)], "a program has it up to its operand's length alone")

    # moves

    def on_view(self, out: Any, x: Any, shape: Any) -> Value:
        return self.t.reshape(self.of(x), out.shape)

    on__unsafe_view = on_reshape = on__reshape_alias = lambda self, out, x, *shape: self.t.reshape(self.of(x), out.shape)

    def on_permute(self, out: Any, x: Any, order: Sequence[int]) -> Value:
        v = self.of(x)
        return self.t.ordered(v, [v.dims[i] for i in order])

    def on_transpose(self, out: Any, x: Any, first: int, second: int) -> Value:
        order = list(range(x.dim()))
        order[first], order[second] = order[second], order[first]
        return self.on_permute(out, x, order)

    def on_t(self, out: Any, x: Any) -> Value:
        return self.on_permute(out, x, range(x.dim() - 1, -1, -1))

    def on_unsqueeze(self, out: Any, x: Any, place: int) -> Value:
        v = self.of(x)
        dims = list(v.dims)
        dims.insert(place % (x.dim() + 1), ())
        return v.seen(dims)

    def on_squeeze(self, out: Any, x: Any, place: Any = None) -> Value:
        return self.t.reshape(self.of(x), out.shape)

    def on_expand(self, out: Any, x: Any, shape: Any, **named: Any) -> Value:
        v = self.of(x)
        dims = [()] * (len(out.shape) - len(v.dims)) + list(v.dims)
        return self.t.ordered(v, [(Axis(n),) if not d and n != 1 else d for d, n in zip(dims, out.shape)])

    def on_slice(self, out: Any, x: Any, place: int = 0, first: Any = None, end: Any = None, step: int = 1) -> Value:
        size = x.shape[place]
        if step != 1:
            if end is not None and end < size:
                raise lib.BadInput("every few indices of a part")
            return self.t.every(self.of(x), place % x.dim(), first or 0, step)
        first, end = first or 0, size if end is None else min(end, size)
        first, end = first + size * (first < 0), end + size * (end < 0)
        v = self.of(x)
        convolved = v.came("convolution")
        if convolved and place % x.dim() == 2 and (first, end) == (0, size_of(convolved[0].dims[2])):
            a, w, *bias = convolved
            made = self.t.causal_conv(self.t.ordered(a, [a.dims[i] for i in (0, 2, 1)]), self.t.renamed(w, [w.dims[0], (), w.dims[2]]).seen([w.dims[0], w.dims[2]]))
            made = self.t.together("add", [made, *bias]) if bias else made
            return self.t.ordered(made, [made.dims[i] for i in (0, 2, 1)])
        return self.t.slice(v, place, first, end)

    def on_split(self, out: Any, x: Any, size: Any, place: int = 0) -> list[Value]:
        made, first = [], 0
        for part in out:
            made.append(self.t.slice(self.of(x), place, first, first + part.shape[place]))
            first += part.shape[place]
        return made

    on_split_with_sizes = on_split
    on_chunk = on_split

    def on_select(self, out: Any, x: Any, place: int, index: int) -> Value:
        return self.t.reshape(self.t.slice(self.of(x), place, index % x.shape[place], index % x.shape[place] + 1), out.shape)

    def on_cat(self, out: Any, parts: Any, place: int = 0) -> Value:
        return self.t.concatenate([self.of(p) for p in parts], place)

    def on_stack(self, out: Any, parts: Any, place: int = 0) -> Value:
        return self.t.concatenate([self.on_unsqueeze(out, p, place) for p in parts], place)

    def on_unbind(self, out: Any, x: Any, place: int = 0) -> list[Value]:
        return [self.on_select(part, x, place, i) for i, part in enumerate(out)]

    def on_embedding(self, out: Any, table: Any, index: Any, *rest: Any, **named: Any) -> Value:
        return self.t.rows(self.of(table), self.of(index))

    def on_index(self, out: Any, x: Any, indices: Sequence[Any]) -> Value:
        if len(indices) == 2 == x.dim() and indices[0] is not None and indices[0].flatten().equal(torch.arange(x.shape[0])):
            return self.t.pick(self.of(x), self.of(indices[1]))  # each row's number at its index
        if len(indices) != 1 or indices[0] is None or not self.of(indices[0]).integer:
            raise lib.BadInput("expected indices of the first dimension alone")
        return self.on_embedding(out, x, indices[0])

    def on_gather(self, out: Any, x: Any, place: int, index: Any, **named: Any) -> Value:
        if place % x.dim() != x.dim() - 1:
            raise lib.BadInput("expected indices of the last dimension")
        return self.t.pick(self.of(x), self.of(index))

    def on_topk(self, out: Any, x: Any, count: int, place: int = -1, largest: bool = True, ordered: bool = True) -> list[Value]:
        v = self.of(x)
        if place % x.dim() != x.dim() - 1:
            raise lib.BadInput("expected the best of the last dimension")
        index = self.t.top_k(v if largest else self.t.map("neg", v), count)
        return [self.t.pick(v, index), index]


def plain_attention() -> Any:
    """Attention as products and a softmax, and not one operator of some processor."""
    if not hasattr(torch.nn, "attention"):  # before PyTorch 2.3
        return contextlib.nullcontext()
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


def record(tracer: Tracer, function: Callable[..., Any], example: dict[str, Any], weights: set[str],
           counts: Mapping[str, int]) -> list[tuple[str, Value]]:
    recorder = Recorder(tracer, function)
    arguments = {}
    for name, tensor in example.items():
        tensor = torch.as_tensor(tensor).detach()
        recorder.given.add(id(tensor))
        most = counts.get(name, 0) - 1 if name in counts or tensor.is_floating_point() else int(tensor.max())
        integers = None if tensor.is_floating_point() else f"[0, {most}]"
        value = tracer.given(name, tensor.shape, integers, name in weights)
        recorder.bind(tensor, value)
        arguments[name] = tensor
    with torch.no_grad(), recorder, plain_attention():
        result = function(**arguments)
    results = result if isinstance(result, dict) else {"y": result} if isinstance(result, torch.Tensor) else {f"y{i}": r for i, r in enumerate(result)}
    outputs = []
    for name, tensor in results.items():
        value = recorder.of(tensor)
        if value.integer:
            continue  # a choice is a result by itself
        outputs.append((name, value if value.refused or all(len(d) == 1 for d in value.dims) else tracer.reshape(value, tensor.shape, True)))
    return outputs
