"""Programs (docs/programs.md): each step as a kernel by itself would have it, and the way back by the chain rule.

An expression is a call as Python has it, so Python's own parser reads it. Tensors are arrays with their axes' letters.
"""
import ast
import json
import keyword
import math
import re

import numpy as np

from kernels_attention import attention
from kernels_recurrent import gated_delta_rule, linear_scan
from kernels_basic import layer_norm, over_root, rms_norm
from kernels_quantize import FORMATS, Operand, hidden, operands, rules_of_step
from request import Unsupported
from storage import is_statistic

CONSTANTS = {"true": True, "false": False}
WORDS = re.compile(rf'"[^"]*"|\b({"|".join(keyword.kwlist)})\b')  # texts, and words of Python
EXACT = ("add", "sub", "mul", "maximum", "minimum", "neg", "abs", "square", "where", "rearrange", "reshape", "detach", "slice", "concatenate", "max", "gather", "pick", "cumsum")  # of whole numbers


class Tensor:
    def __init__(self, axes, value, operands=(), back=None):
        self.axes, self.value, self.operands, self.back, self.gradient, self.ar, self.exact, self.registers = axes, value, operands, back, None, None, False, False


class Program:
    """Sizes and lines of a case file."""

    def __init__(self, yaml):
        self.sizes = {axis: int(size) for axis, size in re.findall(r"(\w): (\d+)", re.search(r"^sizes: \{(.*)\}$", yaml, re.M)[1])}
        self.fused = re.findall(r"\w+", (re.search(r"^fused: \[(.*)\]$", yaml, re.M) or [0, ""])[1])
        self.sums = dict(re.findall(r"(\w+): (\w+)", (re.search(r"^accumulate: \{(.*)\}$", yaml, re.M) or [0, ""])[1]))
        self.axes = {name: axes.replace(", ", "") for name, axes in re.findall(r"^  (\w+): \{axes: \[([\w, ]*)\]", yaml, re.M)}
        self.steps, self.outputs = (self.lines(yaml, key) for key in ("steps", "outputs"))
        types = dict(re.findall(r"([\w/]+)'?: (\w+)", (re.search(r"^dtypes: \{(.*)\}$", yaml, re.M) or [0, ""])[1]))
        self.kept = {name: types.get(name, types.get(f"outputs/{name}")) for name in self.outputs}

    def operand_axes(self, _settings, path, rank):
        """How the first product that reads the tensor takes it: leading axes of matrices, axes of their rows, whether it sums over these."""
        name = as_python(path.split("/")[1])
        calls = [node for text in (self.steps | {f"outputs/{key}": x for key, x in self.outputs.items()}).values()
                 for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Call) and node.func.id in ("product", "grouped_product")]
        for call in calls:
            names = [getattr(a, "id", "") for a in call.args[1:3]]
            if name not in names:
                continue
            place, (inputs, out) = names.index(name), call.args[0].value.split("->")
            own, other = inputs.split(",")[place], inputs.split(",")[1 - place]
            grouped = call.func.id == "grouped_product" and place == 1
            batch = 1 if grouped else next(i for i, a in enumerate(own) if not (a in other and a in out))
            sums_rows = own[batch] not in out
            return batch, sum((a not in out) == sums_rows for a in own[batch:]), sums_rows
        return 0, rank - 1, False

    @staticmethod
    def lines(yaml, key):
        block = re.search(rf"^{key}:(?: \{{\}})?\n((?:  .*\n)*)", yaml, re.M)[1]
        found = re.findall(r"^  (\w+): (.*)$", block, re.M)
        return {name: as_python(json.loads(text) if text.startswith('"') else text) for name, text in found}


def as_python(expression):
    """An expression whose names may be words of Python: in_ for in."""
    return WORDS.sub(lambda found: found[0] + "_" if found[1] else found[0], expression)


class Machine:
    def __init__(self, ar, program, given):
        self.ar, self.p, self.fused, self.order, self.line, self.codes = ar, program, False, [], "", {}
        self.plain = ar
        self.named = {path.split("/", 1)[1]: self.put(program.axes[path.split("/", 1)[1]], x)
                      for path, x in given.items() if not path.startswith("cotangents/")}

    def put(self, axes, value, back=None, operands=(), exact=False):
        """What a step gives: in memory between kernels, unless it is said to stay in registers, or is whole numbers."""
        stays = self.fused or exact or not operands or value.dtype.kind == "i" or isinstance(value, Operand)
        made = Tensor(axes, value if stays else self.ar.keep(value), operands, back)
        made.ar, made.exact = self.ar, exact
        made.registers = self.fused and bool(operands)
        self.order.append(made)
        return made

    def evaluate(self, node):
        if isinstance(node, ast.Name):
            return self.named[node.id if node.id in self.named else node.id[:-1]]
        if isinstance(node, (ast.Constant, ast.UnaryOp)):
            number = Tensor("", np.asarray(ast.literal_eval(node), self.ar.float))
            number.exact = number.value == np.rint(number.value)
            return number
        words = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        operands = [self.evaluate(a) for a in node.args if not (isinstance(a, ast.Constant) and isinstance(a.value, str))]
        options = {k.arg: CONSTANTS[k.value.id] if isinstance(k.value, ast.Name) else ast.literal_eval(k.value) for k in node.keywords if k.arg != "unfused"}  # these are kernels of one step
        step = getattr(self, "step_" + node.func.id, None)
        whole = [t.exact or t.value.dtype.kind == "i" for t in operands]
        exact = node.func.id in ("float", "less", "equal", "floor_div", "mod") or (node.func.id in EXACT and all(whole))
        if step is not None:
            return self.put(*step(*words, *operands, **options), operands=operands, exact=exact)
        if node.func.id not in MAPS and node.func.id not in BINARY:
            raise Unsupported("no step " + node.func.id)
        return self.put(*self.elementwise(node.func.id, operands, **options), operands=operands, exact=exact)

    def run(self, lines):
        for name, text in lines.items():
            self.line, self.ar = name, self.plain.with_sums(self.p.sums[name]) if self.p.sums.get(name, "stored") != "stored" else self.plain
            self.fused = name in self.p.fused or any(is_statistic("outputs/" + output) or self.p.kept[output] for output, of in self.p.outputs.items() if name in (output, of))
            yield name, self.evaluate(ast.parse(text, mode="eval").body)

    # axes

    def spread(self, t, axes):
        """t with the axes of another, of size 1 where it lacks them."""
        order = [t.axes.index(a) for a in axes if a in t.axes]
        return np.transpose(t.value, order).reshape([t.value.shape[t.axes.index(a)] if a in t.axes else 1 for a in axes])

    def union(self, operands):
        axes = ""
        for t in operands:
            if all(a in t.axes for a in axes) and len(t.axes) > len(axes):
                axes = ""
            axes += "".join(a for a in t.axes if a not in axes)
        return axes

    def fold(self, d, axes, t):
        """A gradient with `axes` summed over what t lacks, laid out as t."""
        for a in [a for a in axes if a not in t.axes]:
            d = self.ar.sum(d, axes.index(a))
            axes = axes.replace(a, "")
        return np.transpose(d, [axes.index(a) for a in t.axes])

    # numbers one by one

    def elementwise(self, name, operands, kink=None):
        axes = self.union(operands)
        shape = [self.p.sizes[a] for a in axes]
        x = [self.spread(t, axes) for t in operands]
        if name in MAPS:
            value, slope = MAPS[name](self.ar, x[0])
            at = lambda: slope() if kink is None else np.where(x[0] == 0, self.ar.float(kink), slope())
            return axes, value, lambda d: [d * at()]
        value, slopes = BINARY[name](*x) if kink is None else BINARY[name](*x, self.ar.float(kink))
        back = lambda d: [self.fold(d * np.broadcast_to(s, shape), axes, t) for s, t in zip(slopes(), operands)]
        return axes, np.broadcast_to(value, shape), back

    def step_float(self, x):
        return x.axes, x.value.astype(self.ar.float), None

    def step_clamp(self, x, low=-np.inf, high=np.inf, kink=1):
        on = (x.value == self.ar.float(low)) | (x.value == self.ar.float(high))
        inside = np.where(on, self.ar.float(kink), ((x.value > low) & (x.value < high)).astype(self.ar.float))
        return x.axes, np.clip(x.value, self.ar.float(low), self.ar.float(high)), lambda d: [d * inside]

    def step_where(self, mask, a, b):
        axes = self.union([mask, a, b])
        shape = [self.p.sizes[letter] for letter in axes]
        chosen = np.broadcast_to(self.spread(mask, axes) != 0, shape)
        back = lambda d: [None, self.fold(d * chosen, axes, a), self.fold(d * ~chosen, axes, b)]
        return axes, np.where(chosen, self.spread(a, axes), self.spread(b, axes)), back

    def step_cast(self, type, x):
        return x.axes, rounded(type, x.value).astype(self.ar.float), lambda d: [d]

    # codes

    def step_quantise(self, name, x, **rules):
        """Codes and scales go beside the outputs; a product takes exactly their numbers."""
        rows = x.value.reshape(-1, x.value.shape[-1])
        codes, scale, found = hidden(rules_of_step(name, **rules), rows)
        shape = x.value.shape
        self.codes[f"checkpoints/{self.line}/codes"] = codes.reshape(shape)
        self.codes[f"checkpoints/{self.line}/scale"] = scale if FORMATS[name][2] > 1 else scale.reshape(shape[:-1] + (-1,))
        return x.axes, found.reshape(shape), lambda d: [d]

    # along axes

    def last(self, x, over):
        """x with these axes behind the others, as one; and back."""
        kept = "".join(a for a in x.axes if a not in over)
        over = "".join(a for a in x.axes if a in over)
        order = [x.axes.index(a) for a in kept + over]
        turned = np.transpose(x.value, order)
        flat = turned.reshape(turned.shape[: len(kept)] + (-1,))
        return kept, flat, lambda d: np.transpose(np.broadcast_to(d, flat.shape).reshape(turned.shape), np.argsort(order))

    def step_sum(self, x, over):
        kept, flat, back = self.last(x, over)
        return kept, self.ar.sum(flat), lambda d: [back(d[..., None])]

    def step_mean(self, x, over):
        kept, flat, back = self.last(x, over)
        count = self.ar.float(flat.shape[-1])
        return kept, self.ar.sum(flat) / count, lambda d: [back(d[..., None] / count)]

    def step_max(self, x, over, first=False):
        kept, flat, back = self.last(x, over)
        largest = flat == flat.max(-1, keepdims=True)
        if first:
            largest &= np.cumsum(largest, -1) == 1
        return kept, flat.max(-1), lambda d: [back(d[..., None] * largest / largest.sum(-1, keepdims=True).astype(self.ar.float))]

    def step_softmax(self, x, over):
        kept, flat, back = self.last(x, over)
        p = self.ar.softmax(flat)
        made = self.ar.keep(p)
        return x.axes, back(p), lambda d: [back(made * (self.last(Tensor(x.axes, d), over)[1] - self.ar.sum(made * self.last(Tensor(x.axes, d), over)[1])[..., None]))]

    def step_logsumexp(self, x, over):
        kept, flat, back = self.last(x, over)
        largest = flat.max(-1)
        y = largest + self.ar.log(self.ar.sum(self.ar.exp(flat - largest[..., None])))
        return kept, y, lambda d: [back(d[..., None] * self.ar.exp(flat - y[..., None]))]

    def step_cumsum(self, x, over):
        axis = x.axes.index(over)
        back = lambda d: [np.flip(np.cumsum(np.flip(d, axis), axis, d.dtype), axis)]
        return x.axes, np.cumsum(x.value, axis, x.value.dtype), back

    def norm(self, *operands):
        """A scale that is computed in registers meets what nothing has rounded."""
        return self.ar.in_registers() if any(t.registers for t in operands) else self.ar

    def step_l2_norm(self, x, epsilon=1e-6):
        y, back = over_root(self.ar, x.value, epsilon, lambda squares: self.ar.sum(squares)[..., None], 1)
        return x.axes, y, lambda d: [back(d)]

    def step_rms_norm(self, x, scale=None, epsilon=1e-6):
        if scale is None:
            y, back = over_root(self.ar, x.value, epsilon, self.ar.mean, x.value.shape[-1])
            return x.axes, y, lambda d: [back(d)]
        y, back = rms_norm(self.norm(scale), x.value, scale.value, epsilon)
        return x.axes, y, back

    def step_layer_norm(self, x, scale, bias, epsilon=1e-6):
        y, back = layer_norm(self.norm(scale, bias), x.value, scale.value, bias.value, epsilon)
        return x.axes, y, back

    # products

    def step_product(self, pattern, a, b):
        (left, right), out = pattern.split("->")[0].split(","), pattern.split("->")[1]
        batch, summed = ("".join(c for c in left if c in right and (c in out) == kept) for kept in (True, False))
        rows, columns = "".join(c for c in left if c not in right), "".join(c for c in right if c not in left)
        size = lambda axes: int(np.prod([self.p.sizes[c] for c in axes], dtype=int))

        def matrices(x, axes, first, second):
            turned = np.transpose(x, [axes.index(c) for c in batch + first + second])
            return turned.reshape([self.p.sizes[c] for c in batch] + [size(first), size(second)])

        def laid(y, first, second, axes):
            whole = y.reshape([self.p.sizes[c] for c in batch + first + second])
            return np.transpose(whole, [(batch + first + second).index(c) for c in axes])

        x, w = matrices(a.value, left, rows, summed), matrices(b.value, right, summed, columns)
        across = lambda m: np.swapaxes(m, -1, -2)

        def back(d):
            dy = matrices(d, out, rows, columns)
            return [laid(self.ar.product(dy, across(w)), rows, summed, left), laid(self.ar.product(across(x), dy), summed, columns, right)]

        return out, laid(self.ar.product(x, w), rows, columns, out), back

    def step_grouped_product(self, pattern, x, w, group_sizes):
        rows, groups = x.value.reshape(len(x.value), -1), w.value.reshape(len(w.value), int(np.prod(x.value.shape[1:])), -1)
        ends = np.cumsum(group_sizes.value)
        own = [slice(end - size, end) for end, size in zip(ends, group_sizes.value)]

        def of_each(values, matrices, width):
            y = np.zeros((len(rows), width), self.ar.float)
            for place, matrix in zip(own, matrices):
                y[place] = self.ar.product(values[place], matrix)
            return y

        def back(d):
            dy = d.reshape(len(rows), -1)
            dx = of_each(dy, np.swapaxes(groups, 1, 2), rows.shape[1])
            return [dx.reshape(x.value.shape), np.stack([self.ar.product(rows[p].T, dy[p]) for p in own]).reshape(w.value.shape), None]

        out = pattern.split("->")[1]
        return out, of_each(rows, groups, groups.shape[2]).reshape([self.p.sizes[a] for a in out]), back

    def step_causal_conv(self, x, w, state=None, newest_first=False):
        before, taps, length = w.value.shape[1] - 1, w.value[:, ::-1] if newest_first else w.value, x.value.shape[-2]
        pad = [(0, 0)] * (x.value.ndim - 2) + [(before, 0), (0, 0)]
        whole = np.pad(x.value, pad) if state is None else np.concatenate([state.value, x.value], -2)
        shifted = [whole[..., k : k + length, :] for k in range(before + 1)]
        y = self.ar.sum(np.stack([s * taps[:, k] for k, s in enumerate(shifted)]), 0)

        def back(d):
            late = np.pad(d, [(0, 0)] * (d.ndim - 2) + [(before, before), (0, 0)])
            dx = self.ar.sum(np.stack([late[..., before - k : 2 * before - k + length, :] * taps[:, k] for k in range(before + 1)]), 0)
            dw = np.stack([self.ar.sum((d * s).reshape(-1, d.shape[-1]), 0) for s in shifted], -1)
            return [dx[..., before:, :], dw[:, ::-1] if newest_first else dw, *([] if state is None else [dx[..., :before, :]])]

        return x.axes, y, back

    # attention

    def step_rope(self, x, positions, own=None, theta=10000.0, interleave=False):
        half = x.value.shape[-1] // 2
        frequencies = self.ar.value(theta ** (-np.arange(half) / half)) if own is None else own.value
        angle = self.ar.value(self.ar.value(positions.value)[..., None] * frequencies)
        angle = angle.reshape(positions.value.shape + (1,) * (x.value.ndim - positions.value.ndim - 1) + (half,))
        cos, sin = self.ar.function(np.cos, angle), self.ar.function(np.sin, angle)
        parts = (slice(0, None, 2), slice(1, None, 2)) if interleave else (slice(0, half), slice(half, None))

        def turn(v, sine):
            y = np.empty_like(v)
            a, b = v[..., parts[0]], v[..., parts[1]]
            y[..., parts[0]], y[..., parts[1]] = a * cos - b * sine, a * sine + b * cos
            return y

        return x.axes, turn(x.value, sin), lambda d: [turn(d, -sin)]

    def shown(self, query, key, of, own, masks, mask, window, chunk, prefix):
        """What is seen by places, segments of queries and of keys, and masks, [B, N, S, T]."""
        axes, queries, keys = query.axes[0] + query.axes[2] + query.axes[1] + key.axes[1], query.value.shape[1], key.value.shape[1]
        i, j = np.arange(queries)[:, None] + (0 if mask == "causal_first" else keys - queries), np.arange(keys)
        seen = j <= i if mask != "full" else np.ones((queries, keys), bool)
        seen = seen & (i - j < window) & ((j - i < window) | (mask != "full")) if window else seen
        seen = seen & (i // chunk == j // chunk) if chunk else seen
        seen = (seen | (j < prefix))[None, None]
        if of is not None:
            seen = seen & (of[:, None, :, None] == own[:, None, None]) & (own[:, None, None] > 0)
        for t in masks:
            seen = seen & (self.spread(t, axes) != 0)
        return seen

    def attend(self, query, key, value, *others, scale=0, window=0, soft_cap=0, mask="causal", chunk=0, prefix=0):
        """Out and lse, and what goes back to the operands; of the others whole numbers are segments, what follows from such is a mask."""
        s = type("", (), {"true": lambda self, key: True, "text": {"attn_logits_soft_cap": str(soft_cap)}, "number": lambda self, key: float(soft_cap)})()
        factor = self.ar.float(scale or query.value.shape[-1] ** -0.5)
        q = self.ar.keep(query.value * factor)
        kinds = ["segments" if t.value.dtype.kind == "i" else "mask" if t.exact else "sinks" if t.axes == query.axes[2] else "bias" for t in others]
        segments, masks, sinks, biases = ([t for t, kind in zip(others, kinds) if kind == wanted] for wanted in ("segments", "mask", "sinks", "bias"))
        segments = [t.value for t in sorted(segments, key=lambda t: t.axes[1] != query.axes[1])]
        axes = query.axes[0] + query.axes[2] + query.axes[1] + key.axes[1]
        by_rule = key.axes[1] != query.axes[1] or mask != "causal" or chunk or prefix
        shown = self.shown(query, key, segments[0] if segments else None, segments[-1] if segments else None, masks, mask, window, chunk, prefix) if by_rule else None
        out, lse, back = attention(self.ar, s, q, key.value, value.value, None if by_rule or not segments else segments[0], window=int(window),
                                   sinks=sinks[0].value if sinks else None, shown=shown, bias=self.spread(biases[0], axes) if biases else None)

        def all_back(*d):
            dq, dk, dv, dsinks, *dbias = back(*d)
            made = {"segments": lambda t: None, "mask": lambda t: None, "sinks": lambda t: dsinks, "bias": lambda t: self.fold(dbias[0], axes, t)}
            return [self.ar.keep(dq) * factor, dk, dv, *(made[kind](t) for t, kind in zip(others, kinds))]

        return out, lse, all_back

    def step_attention(self, *operands, **options):
        out, _lse, back = self.attend(*operands, **options)
        return operands[0].axes[:3] + operands[2].axes[3], out, back

    def step_attention_lse(self, *operands, **options):
        out, lse, back = self.attend(*operands, **options)
        b, s, n, _h = operands[0].axes
        return b + n + s, lse, lambda d: back(np.zeros_like(out), d)

    # recurrences

    def step_linear_scan(self, a, b, over):
        axis = b.axes.index(over)
        front = lambda x: np.moveaxis(x, axis, 0)
        gate = np.broadcast_to(self.spread(a, b.axes), b.value.shape)
        y = linear_scan(self.ar, front(gate), front(b.value))

        def back(d):
            decay = front(gate)
            late = np.concatenate([decay[1:], np.zeros_like(decay[:1])])
            g = np.flip(linear_scan(self.ar, np.flip(late, 0), np.flip(front(d), 0)), 0)
            before = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
            return [self.fold(np.moveaxis(g * before, 0, axis), b.axes, a), np.moveaxis(g, 0, axis)]

        return b.axes, np.moveaxis(y, 0, axis), back

    def step_gated_delta_rule(self, *operands):
        y, _last, back = gated_delta_rule(self.ar, *(t.value for t in operands))
        return operands[2].axes, y, back

    def step_gated_delta_state(self, *operands):
        _y, last, back = gated_delta_rule(self.ar, *(t.value for t in operands))
        q, v = operands[0].axes, operands[2].axes
        return q[:-3] + q[-2:] + v[-1], last, lambda d: back(None, d)

    # moves

    def step_rearrange(self, pattern, x):
        left, out = pattern.split("->")
        t = Tensor(left, x.value)
        shape = [self.p.sizes[a] for a in out]
        return out, np.broadcast_to(self.spread(t, out), shape), lambda d: [self.fold(d, out, t)]

    def step_reshape(self, axes, x):
        return axes, x.value.reshape([self.p.sizes[a] for a in axes]), lambda d: [d.reshape(x.value.shape)]

    def step_detach(self, x):
        return x.axes, x.value, None

    def step_slice(self, pattern, x, first=0):
        of, to = pattern.split("->")
        place = (slice(None),) * x.axes.index(of) + (slice(int(first), int(first) + self.p.sizes[to]) if to else int(first),)

        def back(d):
            dx = np.zeros_like(x.value)
            dx[place] = d
            return [dx]

        return x.axes.replace(of, to), x.value[place], back

    def step_concatenate(self, pattern, *parts):
        of, to = pattern.split("->")
        if not of:
            return to + parts[0].axes, np.stack([t.value for t in parts]), lambda d: list(d)
        axis = parts[0].axes.index(of[0])
        ends = np.cumsum([t.value.shape[axis] for t in parts])[:-1]
        return parts[0].axes.replace(of[0], to), np.concatenate([t.value for t in parts], axis), lambda d: np.split(d, ends, axis)

    def rows_added(self, shape, index, rows):
        total, there = np.zeros(shape, np.float64), (index.ravel() >= 0) & (index.ravel() < shape[0])
        np.add.at(total, index.ravel()[there], rows.reshape((index.size,) + tuple(shape[1:]))[there].astype(np.float64))
        return self.ar.value(total)

    @staticmethod
    def rows_of(table, index):
        """Rows by their indices; 0 where an index is none."""
        there = (index >= 0) & (index < len(table))
        return np.where(there.reshape(there.shape + (1,) * (table.ndim - 1)), table[np.where(there, index, 0)], table.dtype.type(0))

    def step_gather(self, table, index):
        back = lambda d: [self.rows_added(table.value.shape, index.value, d), None]
        return index.axes + table.axes[1:], self.rows_of(table.value, index.value), back

    def step_scatter_add(self, axis, x, index):
        shape = (self.p.sizes[axis],) + x.value.shape[index.value.ndim :]
        back = lambda d: [self.rows_of(d, index.value), None]
        return axis + x.axes[len(index.axes) :], self.rows_added(shape, index.value, x.value), back

    def step_pick(self, x, index):
        rows = x.value.reshape(-1, x.value.shape[-1])
        given = index.value.reshape(len(rows), -1)
        there = (given >= 0) & (given < rows.shape[-1])
        places = np.where(there, given, 0)

        def back(d):
            dx = np.zeros_like(rows)
            np.add.at(dx, (np.arange(len(rows))[:, None], places), d.reshape(places.shape) * there)
            return [dx.reshape(x.value.shape), None]

        return index.axes, (np.take_along_axis(rows, places, -1) * there).reshape(index.value.shape), back

    def step_top_k(self, axes, x, lowest=False, above=-np.inf, ascending=False):  # of equal ones the lowest in any case
        best = np.argsort(-x.value, -1, kind="stable")[..., : self.p.sizes[axes[-1]]]
        best = np.where((np.take_along_axis(x.value, best, -1) > above) | (above == -np.inf), best, -1)
        if ascending:
            behind = x.value.shape[-1]
            best = np.sort(np.where(best < 0, behind, best), -1)
            best = np.where(best == behind, -1, best)
        return x.axes[:-1] + axes[-1], best.astype(np.int32), None

    def step_index(self, x):
        return x.axes, x.value.astype(np.int32), None

    def step_iota(self, axes):
        return axes, np.arange(self.p.sizes[axes], dtype=np.int32), None

    def step_argsort(self, axes, x):
        return axes, np.argsort(x.value.reshape(-1), kind="stable").astype(np.int32), None

    def step_bincount(self, axes, x):
        bins = self.p.sizes[axes]
        there = x.value[(x.value >= 0) & (x.value < bins)]
        return axes, np.bincount(there, minlength=bins).astype(np.int32), None

    # the way back

    def add(self, t, d):
        if d is None or t.value.dtype.kind == "i":
            return
        d = self.ar.keep(np.asarray(d, self.ar.float))
        t.gradient = d if t.gradient is None else self.ar.keep(t.gradient + d)

    def differentiate(self):
        for t in reversed(self.order):
            if t.gradient is None or t.back is None:
                continue
            self.ar = t.ar
            for operand, d in zip(t.operands, t.back(t.gradient)):
                self.add(operand, d)


def rounded(type, x):
    """To a type that numpy may lack: nearest, ties to even, subnormals kept; beyond the largest NaN or infinite."""
    digits, least, most, beyond = TYPES[type]
    exponent = np.maximum(np.frexp(x)[1].astype(int), least + 1)
    y = np.ldexp(np.rint(np.ldexp(x.astype(np.float64), digits - exponent)), exponent - digits)
    return np.where(np.abs(y) > most, np.copysign(beyond, y), y)


TYPES = {  # significand bits, least normal exponent, largest number, and what is larger
    "float32": (24, -126, float(np.finfo(np.float32).max), np.inf), "bfloat16": (8, -126, 2.0**127 * (2 - 2.0**-7), np.inf),
    "float16": (11, -14, 65504.0, np.inf), "float8_e4m3fn": (4, -6, 448.0, np.nan), "float8_e5m2": (3, -14, 57344.0, np.inf),
    "float4_e2m1fn": (2, 0, 6.0, 6.0)}


def activation(value, slope):
    return lambda ar, x: (value(ar, x), lambda: slope(ar, x))


def gelu_parts(ar, x):
    z = ar.float(np.sqrt(2 / np.pi)) * (x + ar.float(0.044715) * x * x * x)
    t = ar.tanh(z)
    return t, ar.float(np.sqrt(2 / np.pi)) * (1 + ar.float(3 * 0.044715) * x * x)


def gelu(ar, x):
    t, _ = gelu_parts(ar, x)
    return ar.float(0.5) * x * (1 + t)


def gelu_slope(ar, x):
    t, dz = gelu_parts(ar, x)
    return ar.float(0.5) * (1 + t) + ar.float(0.5) * x * (1 - t * t) * dz


def normal_share(ar, x):
    return ar.function(np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2))), x)


def silu_slope(ar, x):
    s = ar.activation_sigmoid(x)
    return s * (1 + x * (1 - s))


MAPS = {
    "neg": activation(lambda ar, x: -x, lambda ar, x: -np.ones_like(x)),
    "abs": activation(lambda ar, x: np.abs(x), lambda ar, x: np.sign(x)),
    "square": activation(lambda ar, x: x * x, lambda ar, x: 2 * x),
    "reciprocal": activation(lambda ar, x: 1 / x, lambda ar, x: -1 / (x * x)),
    "exp": activation(lambda ar, x: ar.exp(x), lambda ar, x: ar.exp(x)),
    "expm1": activation(lambda ar, x: ar.function(np.expm1, x), lambda ar, x: ar.exp(x)),
    "log": activation(lambda ar, x: ar.log(x), lambda ar, x: 1 / x),
    "log1p": activation(lambda ar, x: ar.function(np.log1p, x), lambda ar, x: 1 / (1 + x)),
    "sqrt": activation(lambda ar, x: ar.sqrt(x), lambda ar, x: ar.float(0.5) / ar.sqrt(x)),
    "rsqrt": activation(lambda ar, x: ar.reciprocal_root(x), lambda ar, x: ar.float(-0.5) * ar.reciprocal_root(x) / x),
    "sigmoid": activation(lambda ar, x: ar.activation_sigmoid(x), lambda ar, x: ar.sigmoid(x) * ar.sigmoid(-x)),
    "silu": activation(lambda ar, x: x * ar.activation_sigmoid(x), silu_slope),
    "gelu": activation(gelu, gelu_slope),
    "gelu_exact": activation(lambda ar, x: x * normal_share(ar, x),
                             lambda ar, x: normal_share(ar, x) + x * ar.exp(-x * x / 2) * ar.float((2 * np.pi) ** -0.5)),
    "erf": activation(lambda ar, x: ar.function(np.vectorize(math.erf), x), lambda ar, x: ar.float(2 / np.pi**0.5) * ar.exp(-x * x)),
    "tanh": activation(lambda ar, x: ar.tanh(x), lambda ar, x: 1 - ar.tanh(x) ** 2),
    "relu": activation(lambda ar, x: np.maximum(x, 0), lambda ar, x: (x > 0).astype(x.dtype)),
    "softplus": activation(lambda ar, x: ar.softplus(x), lambda ar, x: ar.sigmoid(x)),
    "sin": activation(lambda ar, x: ar.function(np.sin, x), lambda ar, x: ar.function(np.cos, x)),
    "cos": activation(lambda ar, x: ar.function(np.cos, x), lambda ar, x: -ar.function(np.sin, x)),
    "floor": activation(lambda ar, x: np.floor(x), lambda ar, x: np.zeros_like(x)),
    "round": activation(lambda ar, x: np.rint(x), lambda ar, x: np.zeros_like(x)),
    "above": activation(lambda ar, x: (x > 0).astype(x.dtype), lambda ar, x: np.zeros_like(x)),
}


def extreme(larger):
    def of(a, b, kink=0.5):
        equal = a == b
        first = (a > b) if larger else (a < b)
        share = lambda chosen, own: np.where(equal, a.dtype.type(own), chosen.astype(a.dtype))
        return (np.maximum if larger else np.minimum)(a, b), lambda: (share(first, kink), share(~first, 1 - kink))

    return of


BINARY = {
    "add": lambda a, b: (a + b, lambda: (np.ones_like(a), np.ones_like(b))),
    "sub": lambda a, b: (a - b, lambda: (np.ones_like(a), -np.ones_like(b))),
    "mul": lambda a, b: (a * b, lambda: (b, a)),
    "div": lambda a, b: (a / b, lambda: (1 / b, -a / (b * b))),
    "less": lambda a, b: ((a < b).astype(a.dtype), lambda: (np.zeros_like(a), np.zeros_like(b))),
    "equal": lambda a, b: ((a == b).astype(a.dtype), lambda: (np.zeros_like(a), np.zeros_like(b))),
    "floor_div": lambda a, b: (np.floor(a / b), lambda: (np.zeros_like(a), np.zeros_like(b))),
    "mod": lambda a, b: (a - b * np.floor(a / b), lambda: (np.zeros_like(a), np.zeros_like(b))),
    "maximum": extreme(True),
    "minimum": extreme(False),
}


def run_program(ar, request):
    """Results by their paths: outputs, gradients, and the steps as checkpoints."""
    p = Program(request.yaml)
    tensors = operands(request.settings, request.tensors, p.operand_axes)
    given = {path: x if path in request.wide or isinstance(x, Operand) else ar.given(path, x) for path, x in tensors.items()}
    m = Machine(ar, p, given)
    made = {}
    for name, t in m.run(p.steps):
        m.named[name] = t
        if not isinstance(t.value, Operand) and t.value.dtype.kind != "i":
            made["checkpoints/" + name] = t.value
        elif not isinstance(t.value, Operand) and p.steps[name].lstrip().startswith("top_k"):
            made[f"routing/{name}/top_k"] = t.value
    steps = dict(m.named)
    for name, t in m.run(p.outputs):
        made["outputs/" + name] = rounded(p.kept[name], t.value).astype(t.value.dtype) if p.kept[name] else t.value
        m.add(t, given.get("cotangents/" + name))
    made.update(m.codes)
    m.differentiate()
    for path, x in given.items():
        t = steps.get(path.split("/", 1)[1])
        if path.startswith("cotangents/") or x.dtype.kind == "i":
            continue
        made["gradients/" + path] = np.zeros_like(x) if t.gradient is None else t.gradient
    return made
