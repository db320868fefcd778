"""Rotations of positions in a traced function: however its operators write them, they are one step, `rope`.

Beside the steps of a function goes what its tensors are in terms of a rotation: numbers of one tensor in some order and with signs (x), positions (p), positions times
frequencies (angle), their cosines and sines (trig), a product of x and trig (term), and a sum of two of these. An operator that only moves numbers
is applied to these parts as it is to the tensor.
"""
from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from ._trace import Tracer, Value

Array = "np.ndarray[Any, Any]"
LARGEST = 1 << 20  #: numbers of a tensor that is followed


class Turn(NamedTuple):
    """What a tensor is. Parts have its shape: x (place, from 1 on, below 0 where negated), p (place), angle (frequency, place of the position), trig
    (1 for a sine, frequency, place), term (place in x, and those of trig), sum (those of two terms). Without positions a frequency is the angle itself."""

    what: str
    x: Value | None
    positions: Value | None
    parts: tuple[Any, ...]
    factor: float = 1.0  #: of trig and what is made of it: attention's scaling


class Operand(NamedTuple):
    turn: Turn | None
    value: Value | None
    array: Any  #: of what is known
    shape: tuple[int, ...]


Apply = Callable[[Sequence[Any]], "list[Any]"]


class Turns:
    def __init__(self, tracer: Tracer) -> None:
        self.t = tracer
        self.seen: list[tuple[Turn, Value, tuple[int, ...]]] = []  #: tensors that are x

    def begin(self, o: Operand) -> Turn | None:
        """A tensor by itself."""
        size = int(np.prod(o.shape, dtype=np.int64))
        if o.turn is not None or o.value is None or size > LARGEST or o.value.number is not None:
            return o.turn
        places = np.arange(size).reshape(o.shape)
        if o.value.integer:
            return Turn("p", None, o.value, (places,))
        if o.value.whole:
            return None
        turn = Turn("x", o.value, None, (places + 1,))
        self.remember(turn, o.value, o.shape)
        return turn

    def remember(self, turn: Turn | None, value: Value, shape: Sequence[int]) -> None:
        if turn is not None and turn.what == "x":
            self.seen.append((turn, value, tuple(shape)))

    def follow(self, kind: str, operands: Sequence[Operand], apply: Apply, outputs: int = 1) -> list[Turn | None]:
        """What an operator makes; kind: how it is known, else it is nothing here."""
        nothing: list[Turn | None] = [None] * outputs
        if kind == "rows":
            return [self.rows(*operands)] if len(operands) == 2 else nothing
        if kind == "move":
            turns = [self.begin(o) for o in operands]
            first = turns[0]
            if first is None or any(t is None or (t.what, t.factor) != (first.what, first.factor) or t.x is not first.x or t.positions is not first.positions for t in turns):
                return nothing
            parts = [apply([t.parts[i] for t in turns if t is not None]) for i in range(len(first.parts))]
            return [first._replace(parts=tuple(part[k] for part in parts)) for k in range(outputs)]
        made: Turn | None = None
        if kind == "neg":
            made = self.negative(self.begin(operands[0]))
        elif kind in ("cos", "sin"):
            made = self.trig(kind == "sin", operands[0])
        elif kind in ("mul", "div", "product") and len(operands) == 2:
            made = self.angle(kind, operands, apply) or self.scaled(kind, *operands) or (self.term(*operands) if kind == "mul" else None)
        elif kind in ("add", "sub") and len(operands) == 2:
            made = self.sum(operands[0].turn, operands[1].turn, kind == "sub")
        return [made] * outputs

    def negative(self, turn: Turn | None) -> Turn | None:
        return turn._replace(parts=(-turn.parts[0], *turn.parts[1:])) if turn is not None and turn.what in ("x", "term") else None

    def trig(self, sine: bool, o: Operand) -> Turn | None:
        if o.turn is not None and o.turn.what == "angle":
            return o.turn._replace(what="trig", parts=(np.full(o.shape, int(sine)), *o.turn.parts))
        if o.array is None or o.array.ndim == 0 or o.array.size > LARGEST:
            return None
        return Turn("trig", None, None, (np.full(o.shape, int(sine)), np.asarray(o.array, np.float64), np.zeros(o.shape, np.int64)))

    def angle(self, kind: str, operands: Sequence[Operand], apply: Apply) -> Turn | None:
        """Positions times numbers that are known, or divided by them: which numbers, and which positions, the operator says itself."""
        for i, o in enumerate(operands):
            other = operands[1 - i].array
            p = self.begin(o) if o.value is not None and (o.value.integer or o.turn is not None) else None
            if p is None or p.what not in ("p", "angle") or other is None or (kind == "div" and i == 1) or np.ndim(other) == 0 and p.what == "p":
                continue
            def made(numbers: Any) -> Any:
                pair = [np.asarray(numbers, np.float64), np.asarray(other, np.float64)]
                return np.asarray(apply(pair if i == 0 else pair[::-1])[0])

            if p.what == "angle":
                return p._replace(parts=(made(p.parts[0]), np.broadcast_to(p.parts[1], made(p.parts[0]).shape))) if kind != "product" else None
            frequency = made(np.ones(o.shape))
            if (frequency == 0).any():
                return None
            return Turn("angle", None, p.positions, (frequency, np.rint(made(p.parts[0]) / frequency).astype(np.int64)))
        return None

    def rows(self, table: Operand, index: Operand) -> Turn | None:
        """Rows of cosines that are known: of the angles of each position from 0 on."""
        p = self.begin(index)
        if table.turn is None or table.turn.what != "trig" or table.turn.positions is not None or p is None or p.what != "p" or table.shape[0] < 2:
            return None
        kind, angle, _ = (np.asarray(part) for part in table.turn.parts)
        if (kind != kind[1]).any() or not np.allclose(angle, angle[1] * np.arange(len(angle)).reshape([-1] + [1] * (angle.ndim - 1)), 1e-5, 1e-6):
            return None
        shape = index.shape + table.shape[1:]
        places = np.asarray(p.parts[0]).reshape(index.shape + (1,) * (len(table.shape) - 1))
        return Turn("trig", None, p.positions, tuple(np.broadcast_to(part, shape) for part in (kind[1], angle[1], places)))

    def scaled(self, kind: str, a: Operand, b: Operand) -> Turn | None:
        """Cosines times a number, as YaRN scales them."""
        for o, by in ((a, b), (b, a)) if kind == "mul" else ((a, b),) if kind == "div" else ():
            if o.turn is not None and o.turn.what == "trig" and by.array is not None and by.array.size and (by.array == by.array.flat[0]).all() and np.broadcast_shapes(o.shape, by.shape) == o.shape:
                number = float(by.array.flat[0])
                return o.turn._replace(factor=o.turn.factor * number if kind == "mul" else o.turn.factor / number) if number != 0 else None
        return None

    def term(self, a: Operand, b: Operand) -> Turn | None:
        for o, by in ((a, b), (b, a)):
            if o.turn is None or o.turn.what != "trig":
                continue
            x = self.begin(by)
            if x is None or x.what != "x":
                return None
            shape = np.broadcast_shapes(o.shape, by.shape)
            return Turn("term", x.x, o.turn.positions, tuple(np.broadcast_to(part, shape) for part in (*x.parts, *o.turn.parts)), o.turn.factor)
        return None

    def sum(self, a: Turn | None, b: Turn | None, negated: bool) -> Turn | None:
        if a is None or b is None or a.what != "term" or b.what != "term" or a.x is not b.x or a.positions is not b.positions or a.factor != b.factor:
            return None
        second = self.negative(b) if negated else b
        assert second is not None
        if a.parts[0].shape != second.parts[0].shape:
            return None
        return a._replace(what="sum", parts=a.parts + second.parts)

    def joined(self, operands: Sequence[Operand], place: int) -> list[Value | int]:
        """Of tensors that are put behind each other the rotations that follow each other as one; of others their places."""
        made: list[Value | int] = []
        first = 0
        while first < len(operands):
            turn, end = operands[first].turn, first + 1
            while is_sum(turn) and end < len(operands) and is_sum(operands[end].turn):
                end += 1
            whole = self.follow("move", operands[first:end], lambda arrays: [np.concatenate(arrays, place)])[0] if end > first + 1 else turn
            found = self.rope(whole)
            made.append(first if found is None else found)
            first = first + 1 if found is None else end
        return made

    def rope(self, turn: Turn | None) -> Value | None:
        """The step, where a sum is a whole rotation."""
        if turn is None or turn.what != "sum":
            return None
        parts = [np.asarray(part) for part in turn.parts]
        first, second = parts[:4], parts[4:]
        swapped = first[1] == 1
        cosine, sine = ([np.where(swapped, b, a) for a, b in zip(*pair)] for pair in ((first, second), (second, first)))
        if cosine[1].any() or not sine[1].all() or cosine[0].ndim == 0 or cosine[0].shape[-1] % 2:
            return None
        if not (np.allclose(cosine[2], sine[2], 1e-9, 0) and (cosine[3] == sine[3]).all()):
            return None
        whole = self.part(turn, cosine[0])
        interleave, apart = pairs_of(cosine[0], sine[0]), False
        half = cosine[0].shape[-1] // 2
        if whole is None and interleave is False:  # pairs, of which the first ones are put in front of the second ones
            whole, apart = self.part(turn, np.stack([cosine[0][..., :half], cosine[0][..., half:]], -1).reshape(cosine[0].shape)), True
        if whole is None or interleave is None:
            return None
        frequency, place, positions = cosine[2], cosine[3], turn.positions
        rounded = False
        if positions is None:  # angles are known: of the first frequency, which is 1, or the least angle of one token
            angles = frequency[..., 0]
            for unit in (1.0, float(np.min(angles[angles > 0], initial=np.inf))):
                numbers = np.rint(angles / unit)
                most = np.unravel_index(int(np.argmax(numbers)), numbers.shape)
                if numbers[most] > 0 and np.allclose(frequency, numbers[..., None] * (frequency[most] / numbers[most]), 1e-5, 1e-6):
                    break
            else:
                return None
            row = frequency[most] / numbers[most]
            rounded = not np.allclose(frequency, numbers[..., None] * row, 1e-13, 0)
            row = row if rounded else np.array([float(f"{x:.15g}") for x in row])
            varies = [i for i in range(numbers.ndim) if (numbers != numbers.take([0], i)).any()]
            short = numbers[tuple(slice(None) if i in varies else 0 for i in range(numbers.ndim))]
            positions = self.t.constant(short.astype(np.int64))
            if not positions.integer:
                return None
        else:
            row = frequency.reshape(-1, frequency.shape[-1])[0]
            if not np.allclose(frequency, row, 1e-9, 0) or (place != place[..., :1]).any():
                return None
            at = place[..., 0]
            varies = [i for i in range(at.ndim) if (at != at.take([0], i)).any()]
            sizes = [at.shape[i] for i in varies]
            wanted = np.arange(int(np.prod(sizes, dtype=int))).reshape([at.shape[i] if i in varies else 1 for i in range(at.ndim)])
            if (at != wanted).any() or [a.size for a in positions.axes if a.size > 1] != [n for n in sizes if n > 1]:
                return None
        theta, own = theta_of(row, interleave), half_of(row, interleave)
        if theta is None and (rounded or own is None or len(own) < 2 or (own == own[0]).all() or (own == np.rint(own)).all()):
            return None  # of angles that are known and rounded frequencies do not follow
        made = self.put(*whole, positions, varies, theta, own, interleave or apart)
        if made is not None and turn.factor != 1:
            made = self.t.together("mul", [made, self.t.number(turn.factor)])
        if made is None or not apart:
            return made
        made = self.t.reshape(made, [*whole[1][:-1], half, 2])
        return self.t.reshape(self.t.ordered(made, [*made.dims[:-2], made.dims[-1], made.dims[-2]]), whole[1])

    def part(self, turn: Turn, places: Any) -> tuple[Value, tuple[int, ...]] | None:
        """The tensor whose numbers have these places, or the part of one."""
        last = places.ndim - 1
        for x, v, shape in self.seen:
            own = np.asarray(x.parts[0])
            if x.x is not turn.x or len(shape) != places.ndim or shape[:last] != places.shape[:last] or shape[last] < places.shape[last]:
                continue
            first = int(np.argmax(own.reshape(-1, shape[last])[0] == places.flat[0]))
            if np.array_equal(own[..., first : first + places.shape[last]], places):
                return self.t.slice(v, last, first, first + places.shape[last]), places.shape
        return None

    def put(self, x: Value, shape: Sequence[int], positions: Value, varies: Sequence[int], theta: float | None, frequencies: Any, interleave: bool) -> Value | None:
        """The axes of positions first, then at most one other, then the last."""
        t, last = self.t, len(shape) - 1
        x = t.merged(t.ordered(x, [d or (() if n == 1 else t.fresh(n)) for d, n in zip(x.dims, shape)]), range(len(shape)))
        if not x.dims[last]:
            return None
        between = [i for i in range(last) if i not in varies and x.dims[i]]
        rest, first, order = list(varies), [], []  # type: list[int], list[tuple[Any, ...]], list[int]
        for axis in positions.axes:  # one of size 1 may be none of x
            own = next((i for i in (rest if axis.size > 1 else between) if (shape[i] > 1) == (axis.size > 1)), None)
            if own is not None:
                (rest if axis.size > 1 else between).remove(own)
                order.append(own)
            first.append((axis,) if own is None else x.dims[own])
        whole = t.ordered(x, [x.dims[i] for i in (*order, *between, last)])
        turned = t.reshape(whole, [*(shape[i] for i in order), int(np.prod([shape[i] for i in between])), shape[last]]) if len(between) > 1 else whole
        turned = t.renamed(turned, [*first, *(turned.dims[len(order) :])])
        turned = t.merged(turned, range(len(turned.dims)))
        for i, axis in enumerate(positions.axes):
            turned = t.fit(turned, i, (axis,))
        parameters: dict[str, Any] = {**({"theta": theta} if theta is not None else {}), **({"interleave": True} if interleave else {})}
        row = [] if theta is not None else [t.constant(frequencies, row=True)]
        made = t.call("rope", [turned, positions.seen([(a,) for a in positions.axes]), *row], turned.dims, None, **parameters)
        made = t.renamed(made, whole.dims)
        back: list[Any] = [()] * len(shape)
        for i, d in zip((*order, *between, last), made.dims):
            back[i] = d
        return t.ordered(made, back)


def is_sum(turn: Turn | None) -> bool:
    return turn is not None and turn.what == "sum"


def pairs_of(x: Any, other: Any) -> bool | None:
    """Whether numbers next to each other turn against each other, or halves: the sine of which number has which other one."""
    half = x.shape[-1] // 2
    if np.array_equal(other, np.concatenate([-x[..., half:], x[..., :half]], -1)):
        return False
    if np.array_equal(other, np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)):
        return True
    return None


def half_of(row: Any, interleave: bool) -> Any:
    """The frequencies of pairs, where each number of a pair has the same."""
    half = len(row) // 2
    own = row[::2] if interleave else row[:half]
    return own if np.array_equal(row, np.repeat(own, 2) if interleave else np.tile(own, 2)) else None


def theta_of(row: Any, interleave: bool) -> float | None:
    """Of the frequencies theta^(-2i/R), which may have gone through float32."""
    own, half = half_of(row, interleave), len(row) // 2
    if own is None:
        return None
    theta = float(own[-1]) ** (-half / (half - 1)) if half > 1 and own[-1] > 0 else 10000.0
    for digits in range(1, 9):
        number = float(f"{theta:.{digits}g}")
        if number > 1 and np.allclose(own, number ** (-np.arange(half) / half), 2e-6, 0):
            return number
    return None
