"""A program (docs/programs.md) of a PyTorch function: its operators are recorded as it runs on an example.

Each dimension of a tensor is an axis of its own until an operator says that two are the same. What an operator does is written down
as steps; the letters of axes come last. Casts are dropped: the program is the mathematics, whatever types the function computes it in.
"""
from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import linecache
import os
import re
import string
import sys
import tempfile
from typing import Any, Callable, Mapping, Sequence

from . import _library as lib
from ._case import Case

LETTERS = "TDHNKFEBSRPVCGMJLQUWXYZIAO" + string.ascii_lowercase


class Axis:
    """A dimension; `same` leads to the one that it turned out to be."""

    def __init__(self, size: int) -> None:
        self.size, self.same, self.letter = size, None, ""  # type: int, Axis | None, str

    def root(self) -> "Axis":
        return self if self.same is None else self.same.root()


class Value:
    """A tensor of the function. Each of its dimensions is axes of the program's tensor, in their order: one, several that a view has merged,
    or none where its size is 1."""

    def __init__(self, dims: Sequence[Sequence[Axis]], text: Callable[[], str]) -> None:
        self.dims = [tuple(d) for d in dims]
        self.text = text  #: the expression, once axes have letters
        self.integer = False

    def seen(self, dims: Sequence[Sequence[Axis]]) -> "Value":
        """The same numbers, whose axes are these dimensions."""
        made = Value(dims, self.text)
        made.integer = self.integer
        return made

    @property
    def axes(self) -> list[Axis]:
        return [a for d in self.dims for a in d]


def single(axes: Sequence[Axis]) -> list[tuple[Axis, ...]]:
    return [(a,) for a in axes]


def roots(axes: Sequence[Axis]) -> list[Axis]:
    return [a.root() for a in axes]


class Step:
    def __init__(self, base: str, text: Callable[[], str], axes: Sequence[Axis], place: tuple[str, int]) -> None:
        self.base, self.text, self.axes, self.place = base, text, list(axes), place
        self.name = ""
        self.alone = False  #: it keeps a line of its own


class Tracer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.place = ("", 0)  #: file and line of what is recorded
        self.inputs: list[tuple[str, Value, str | None]] = []
        self.steps: list[Step] = []
        self.tensors: list[list[Axis]] = []  #: axes that must stay apart

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

    def given(self, name: str, shape: Sequence[int], integers: str | None, weight: bool) -> Value:
        value = Value(single([Axis(n) for n in shape]), lambda: name)
        value.integer = integers is not None
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

        axes = [a for d in dims for a in d]
        self.tensors.append(axes)
        made = Step(step, text, axes, self.place)
        self.steps.append(made)
        return Value(dims, lambda: made.name or f"<{id(made)}>")

    def renamed(self, x: Value, dims: Sequence[Sequence[Axis]]) -> Value:
        """The same numbers under other axes."""
        axes = [a for d in dims for a in d]
        if roots(x.axes) == roots(axes):
            return x.seen(dims)
        return self.call("reshape", [x], dims, lambda: self.letters(axes))

    def merged(self, x: Value, places: Sequence[int]) -> Value:
        """These dimensions are one axis each."""
        dims = [(Axis(size_of(d)),) if i in places and len(d) > 1 else d for i, d in enumerate(x.dims)]
        return self.renamed(x, dims)

    def ordered(self, x: Value, dims: Sequence[Sequence[Axis]]) -> Value:
        """x with these axes in this order; axes that it lacks repeat it."""
        axes, before = [a for d in dims for a in d], x.axes
        if roots(before) == roots(axes):
            return x.seen(dims)
        return self.call("rearrange", [x], dims, lambda: f"{self.letters(before)}->{self.letters(axes)}")

    # what operators are made of

    def number(self, x: float) -> Value:
        return Value([], lambda: repr(int(x)) if float(x).is_integer() and abs(x) < 1e15 else repr(float(x)))

    def map(self, step: str, x: Value, **parameters: Any) -> Value:
        return self.call(step, [x], x.dims, **parameters)

    def fit(self, v: Value, place: int, dim: Sequence[Axis]) -> Value:
        """v with its dimension on these axes, of which it has as many numbers."""
        own = v.dims[place]
        if len(own) == len(dim) and all([self.unify(a, b) for a, b in zip(dim, own)]):
            return v
        return self.renamed(v, [dim if i == place else d for i, d in enumerate(v.dims)])

    def together(self, step: str, values: Sequence[Value]) -> Value:
        """Numbers of several tensors one by one, as broadcasting has it."""
        rank = max(len(v.dims) for v in values)
        dims: list[tuple[Axis, ...]] = [()] * rank
        operands = []
        for v in values:
            first = rank - len(v.dims)
            for i in range(len(v.dims)):
                if v.dims[i] and dims[first + i]:
                    v = self.fit(v, i, dims[first + i])
                elif v.dims[i]:
                    dims[first + i] = v.dims[i]
            operands.append(v)
        axes: list[Axis] = []
        for v in operands:  # as docs/programs.md says what axes the result has
            if all(a in roots(v.axes) for a in roots(axes)):
                axes = []
            axes += [a for a in v.axes if a.root() not in roots(axes)]
        return self.ordered(self.call(step, operands, single(axes)), dims)

    def over(self, step: str, x: Value, places: Sequence[int], keep: bool) -> Value:
        """A sum, mean or maximum; along a dimension of size 1 it is x itself."""
        places = [p % len(x.dims) for p in places]
        if step == "logsumexp":
            x = self.merged(x, places)
        gone = [a for p in places for a in x.dims[p]]
        dims = [() if i in places else d for i, d in enumerate(x.dims)]
        if gone:
            x = self.call(step, [x], dims, over=lambda: self.letters(gone))
        return x.seen(dims if keep else [d for i, d in enumerate(dims) if i not in places])

    def along(self, step: str, x: Value, place: int) -> Value:
        place %= len(x.dims)
        x = self.merged(x, [place])
        axes = x.dims[place]
        if not axes:
            raise lib.BadInput(f"{step} along a dimension of size 1")
        return self.call(step, [x], x.dims, over=lambda: self.letters(axes))

    def product(self, a: Value, b: Value, batch: int) -> Value:
        """[batch.., m, k] times [batch.., k, n]; each may lack its last ones."""
        for i in range(batch):
            if bool(a.dims[i]) != bool(b.dims[i]):
                raise lib.BadInput("one of the operands is repeated")
            b = self.fit(b, i, a.dims[i])
        b = self.fit(b, batch, a.dims[-1])
        own = [x for d in b.dims[batch + 1 :] for x in d]
        twice = [x for x in own if x.root() in roots(a.axes)]  # a tensor times itself, say
        if twice:
            b = self.renamed(b, [[Axis(x.size) if x in twice else x for x in d] if i > batch else d for i, d in enumerate(b.dims)])
        left, right = a.axes, b.axes
        dims = [*a.dims[:-1], *b.dims[batch + 1 :]]
        axes = [x for d in dims for x in d]
        return self.call("product", [a, b], dims, lambda: f"{self.letters(left)},{self.letters(right)}->{self.letters(axes)}")

    def reshape(self, x: Value, shape: Sequence[int], whole: bool = False) -> Value:
        """Axes are merged without a step; where one is split the tensor gets new ones. whole: each dimension is one axis."""
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
            if first == place and not (whole and len(group) != 1):
                dims.append(tuple(group))
            else:
                split = True
                dims += [(Axis(m),) for m in shape[first : place + 1]]
            place += 1
        if not split:
            return x.seen(dims)
        axes = [a for d in dims for a in d]
        return self.call("reshape", [x], dims, lambda: self.letters(axes))

    def slice(self, x: Value, place: int, first: int, end: int) -> Value:
        place %= len(x.dims)
        size = size_of(x.dims[place])
        if first == 0 and end >= size:
            return x
        x = self.merged(x, [place])
        axis, part = x.dims[place][0], Axis(min(end, size) - first)
        dims = [(part,) if i == place else d for i, d in enumerate(x.dims)]
        begins = {"first": first} if first > 0 else {}
        return self.call("slice", [x], dims, lambda: f"{self.letters([axis])}->{self.letters([part])}", **begins)

    def top_k(self, x: Value, count: int) -> Value:
        """The indices of the largest along the last dimension."""
        x = self.merged(x, [len(x.dims) - 1])
        if not x.dims[-1]:
            raise lib.BadInput("along a dimension of size 1")
        whole, part = x.dims[-1][0], Axis(count)
        made = self.call("top_k", [x], [*x.dims[:-1], (part,)], lambda: f"{self.letters([whole])}->{self.letters([part])}")
        self.steps[-1].alone = made.integer = True
        return made

    def pick(self, x: Value, index: Value) -> Value:
        """Of each row of x the numbers at its indices."""
        x = self.merged(x, [len(x.dims) - 1])
        rows = x.axes[:-1]
        if not index.integer or len(index.axes) < len(rows) or not all([self.unify(a, b) for a, b in zip(rows, index.axes)]):
            raise lib.BadInput("rows of the indices are others than those of the tensor")
        return self.call("pick", [x, index], index.dims)

    def concatenate(self, parts: Sequence[Value], place: int) -> Value:
        place %= len(parts[0].dims)
        made: list[Value] = []
        for v in parts:
            v = self.merged(v, [place])
            if not v.dims[place]:
                v = self.renamed(v, [(Axis(1),) if i == place else d for i, d in enumerate(v.dims)])
            for i in range(len(v.dims)):
                if made and i != place:
                    v = self.fit(v, i, made[0].dims[i])
            made.append(v)
        of = [v.dims[place][0] for v in made]
        whole = Axis(sum(a.size for a in of))
        dims = [(whole,) if i == place else d for i, d in enumerate(made[0].dims)]
        return self.call("concatenate", made, dims, lambda: f"{','.join(self.letters([a]) for a in of)}->{self.letters([whole])}")

    # the program

    def put_letters(self, hints: Mapping[str, str]) -> list[Axis]:
        taken: dict[str, Axis] = {}
        for path, value, _ in self.inputs:
            for axis, letter in zip(value.axes, hints.get(path.split("/")[1], "").replace(" ", "")):
                root = axis.root()
                if taken.setdefault(letter, root) is not root or root.letter not in ("", letter):
                    raise lib.BadInput(f"{self.name}: the axis {letter} of {path} is no axis of its own, or another one")
                root.letter = letter
        used: list[Axis] = []
        for axes in self.tensors:
            used += [a for a in roots(axes) if a not in used]
        free = [c for c in LETTERS if c not in taken]
        for root in used:
            if root.letter == "":
                if not free:
                    raise lib.BadInput(f"{self.name}: more than {len(LETTERS)} axes")
                root.letter = free.pop(0)
        return used

    def put_names(self) -> None:
        """A step that a variable is assigned to is called as that, if nothing else is."""
        taken = {path.split("/")[1] for path, _, _ in self.inputs}
        variables = {step.place: step for step in self.steps}  # the last one of a line
        for step in self.steps:
            match = re.match(r"\s*([A-Za-z_]\w*)\s*(?::[^=]*)?=[^=]", linecache.getline(*step.place))
            if match and variables[step.place] is step and match[1] not in taken:
                step.name = match[1]
                taken.add(step.name)
        for step in self.steps:
            second = re.match(r"\s*[A-Za-z_]\w*\s*,\s*([A-Za-z_]\w*)\s*=[^=]", linecache.getline(*step.place))
            if step.alone and second and second[1] not in taken:  # the values of the best, and their indices
                step.name = second[1]
                taken.add(step.name)
        for step in self.steps:
            name, number = step.base, 1
            while step.name == "" and name in taken:
                number += 1
                name = f"{step.base}{number}"
            if step.name == "":
                step.name = name if step.alone else "_" + name
                taken.add(name)

    def yaml(self, outputs: Sequence[tuple[str, Value]], hints: Mapping[str, str], settings: Mapping[str, Any]) -> str:
        used = self.put_letters(hints)
        self.put_names()
        texts = {step.name: step.text() for step in self.steps}
        results = {name: value.text() for name, value in outputs}
        inline(texts, results, {step.name for step in self.steps if step.alone})
        kept = [step for step in self.steps if step.name in texts]
        letters = set("".join(self.letters(v.axes) for _, v, _ in self.inputs) + "".join(self.letters(s.axes) for s in kept))
        letters |= set(re.sub(r"[^A-Za-z]", "", "".join(re.findall(r'"([^"]*)"', "".join([*texts.values(), *results.values()])))))
        lines = [f"case: {self.name}", "op: program",
                 "sizes: {" + ", ".join(f"{r.letter}: {r.size}" for r in used if r.letter in letters) + "}"]
        for folder in ("inputs", "weights"):
            block = [f"  {path.split('/')[1]}: {{axes: [{', '.join(self.letters(v.axes))}]{', integers: ' + i if i else ''}}}"
                     for path, v, i in self.inputs if path.startswith(folder)]
            lines += [f"{folder}:" + ("" if block else " {}")] + block
        lines += ["steps:" + ("" if kept else " {}")] + [f"  {s.name}: {quoted(texts[s.name])}" for s in kept]
        lines += ["outputs:"] + [f"  {name}: {quoted(text)}" for name, text in results.items()]
        lines += [f"{key}: {json.dumps(value)}" for key, value in settings.items()]
        return "\n".join(lines) + "\n"


def size_of(dim: Sequence[Axis]) -> int:
    count = 1
    for a in dim:
        count *= a.size
    return count


def quoted(text: str) -> str:
    return json.dumps(text) if '": ' in text or " #" in text else text


LONGEST = 110  #: of an expression that others are put into


def inline(texts: dict[str, str], results: dict[str, str], alone: set[str]) -> None:
    """Steps without a variable's name that one other reads alone go into that; what nothing reads goes. Those that stand alone stay."""

    def readers(name: str) -> list[tuple[dict[str, str], str]]:
        return [(of, key) for of in (texts, results) for key, text in of.items() for _ in re.findall(rf"(?<![\w\"]){name}\b(?!=)", bare(text))]

    def bare(text: str) -> str:
        return re.sub(r'"[^"]*"', lambda m: '"' + " " * (len(m[0]) - 2) + '"', text)

    for name in reversed(list(texts)):
        if not readers(name):
            del texts[name]
    for name in list(texts):
        found = readers(name)
        whole = len(found) == 1 and found[0][0] is results and results[found[0][1]] == name
        if name in alone or not (whole or name.startswith("_")) or len(found) != 1:
            continue
        of, key = found[0]
        if whole or len(of[key]) + len(texts[name]) <= LONGEST:
            at = re.search(rf"(?<![\w\"]){name}\b(?!=)", bare(of[key]))
            assert at is not None
            of[key] = of[key][: at.start()] + texts[name] + of[key][at.end() :]
            del texts[name]


class Program:
    """A function as a program: `str` gives its case file, `case` a case of it."""

    def __init__(self, yaml: str) -> None:
        self.yaml = yaml

    def __str__(self) -> str:
        return self.yaml

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
            return case(path, precision=precision, **options)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(folder)


def trace(function: Callable[..., Any], example: Mapping[str, Any], *, weights: Sequence[str] = (), axes: Mapping[str, str] | None = None,
          name: str | None = None, integers: Mapping[str, int] | None = None, **settings: Any) -> Program:
    """The program of a PyTorch function, which runs once on the tensors of `example`, by the names of its arguments.

    `weights` are those of them that are no inputs. `axes` gives axes their letters: {"x": "TD"}; the others get letters that are free. `integers`
    says how many indices there are for an argument that holds some: {"target": 1000}; else they go up to its largest one. Other keywords are keys of the case: dtype, seed, checkpoints. What a program cannot have is refused with the line of the function.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise lib.BadInput("trace: torch is not imported, and no other library is traced")
    from ._trace_torch import record

    title = name or "traced/" + getattr(function, "__name__", "function").strip("<>")
    tracer = Tracer(title)
    outputs = record(tracer, function, dict(example), set(weights), integers or {})
    return Program(tracer.yaml(outputs, axes or {}, settings))


class Reference:
    """A function whose arguments say their axes, at all combinations of sizes; `program` makes it."""

    def __init__(self, function: Callable[..., Any], sizes: Mapping[str, Any], dtype: str, weights: Sequence[str], integers: Mapping[str, int]) -> None:
        self.function, self.dtype, self.weights, self.integers = function, dtype, weights, integers
        self.sizes = {axis: list(n) if isinstance(n, (list, tuple)) else [n] for axis, n in sizes.items()}
        self.axes = {name: str(p.annotation).strip("'\"").replace(" ", "") for name, p in inspect.signature(function).parameters.items()}
        for name, axes in self.axes.items():
            unknown = [a for a in axes if a not in self.sizes]
            if unknown:
                raise lib.BadInput(f"program: {name} has the axes {axes!r}, of which {unknown[0]} has no size; an argument is annotated by its axes")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def programs(self) -> list[Program]:
        """One for each combination of sizes."""
        import torch

        made = []
        for sizes in (dict(zip(self.sizes, values)) for values in itertools.product(*self.sizes.values())):
            example = {}
            for name, axes in self.axes.items():
                shape = [sizes[a] for a in axes]
                most = self.integers.get(name)
                example[name] = torch.ones(shape) if most is None else torch.arange(most).repeat(1 + torch.Size(shape).numel())[: torch.Size(shape).numel()].view(shape)
            label = f"traced/{self.function.__name__}-" + "-".join(f"{a}{n}" for a, n in sizes.items())
            made.append(trace(self.function, example, weights=self.weights, axes=self.axes, name=label, dtype=self.dtype, integers=self.integers))
        return made

    def cases(self, precision: str | None = None, **options: Any) -> Any:
        """Runs a test once for each combination, as its argument `case`."""
        import pytest

        programs = self.programs()
        return pytest.mark.parametrize("case", [pytest.param(p.case(precision, **options), id=p.yaml.split()[1]) for p in programs])


def program(*, dtype: str = "bfloat16", weights: Sequence[str] = (), integers: Mapping[str, int] | None = None,
            **sizes: int | Sequence[int]) -> Callable[[Callable[..., Any]], Reference]:
    """A PyTorch function as the reference of a kernel:

        @assay.program(T=[1, 7, 64], D=512, F=128, weights=["w"])
        def reference(x: "T D", w: "D F"):
            return torch.nn.functional.silu(x @ w)

        @reference.cases(precision="bf16")
        def test_mine(case): ...

    `integers` says of arguments that hold indices how many there are: {"target": 1000}.
    """
    return lambda function: Reference(function, sizes, dtype, weights, integers or {})
