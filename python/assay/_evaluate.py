"""A kernel that nobody trusts, in many trials: docs/further-checks.md, "Kernels that nobody trusts"."""
from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import os
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from . import _candidate, _tensors
from . import _library as lib
from ._candidate import Block, Broken, Slot, skeleton
from ._case import Case, case, names
from ._case import given as given_of
from ._correct import GRIDS
from ._report import Report
from ._trace import Reference, as_function, library_of, module_of, named, program, short_names, trace

__tracebackhide__ = True  # pytest shows the test, not these functions

EDGES = sorted({1, 2, 3, *(tile + by for tile in (8, 16, 32, 64, 128, 256, 512, 1024) for by in (-1, 0, 1))})  #: of tiles
SKEWED = "a common direction, which skews experts"  #: whole numbers of a function are the first quarter of theirs
#: How floats are filled, beside what a case has by itself.
STRUCTURES: dict[str, dict[str, Any]] = {
    "rows of all sizes": {"distribution": "row_powers", "low": -6, "high": 4},
    "large numbers": {"scale": 24.0},
    "small numbers": {"scale": 2.0**-9},
    "near ties": {"distribution": "near_ties", "low": -3, "high": 3},
    "a long tail": {"distribution": "block_powers", "low": -3, "high": 6},
    SKEWED: {"mean": 2.0},
}
CALLS = ("new numbers", "the same addresses, other numbers", "other addresses, the first numbers again")
SPARE = 1 << 20  #: bytes that an answer may have beyond what is expected


class Call(NamedTuple):
    verdict: str  #: PASS, FAIL, INPUT CHANGED, EXCEPTION, ENDED, LATE, NO TENSORS; VACUOUS and NOT COMPARABLE as in a report
    message: str
    report: "Report | None" = None


class Trial(NamedTuple):
    what: str  #: the case and its sizes
    fill: str
    seed: int
    calls: tuple[Call, ...]
    seconds: "float | None"  #: of one call, where that was asked for

    @property
    def verdict(self) -> str:
        """Of the first call that did not pass."""
        return next((call.verdict for call in self.calls if call.verdict != "PASS"), "PASS")


class Evaluation:
    """What came of the trials: `correct`, `trials`, and `seconds` of each of these if all are correct and it was asked for; `str` is the report."""

    def __init__(self, kernel: str, precision: str, asked: int, trials: Sequence[Trial], log: str) -> None:
        self.kernel, self.precision, self.asked, self.trials, self.log = kernel, precision, asked, list(trials), log
        self.correct = len(trials) == asked > 0 and all(trial.verdict == "PASS" for trial in trials)
        self.seconds = [trial.seconds for trial in trials if trial.seconds is not None] if self.correct else []

    def __bool__(self) -> bool:
        return self.correct

    def __str__(self) -> str:
        passed = f"{self.kernel}: {sum(t.verdict == 'PASS' for t in self.trials)} of {self.asked} trials correct at {self.precision}"
        if self.correct:
            return f"PASS  {passed}" + (f", {statistics.median(self.seconds):.3g} s a call in the middle one" if self.seconds else "")
        lines = [f"FAIL  {passed}"]
        for number, trial in enumerate(self.trials):
            wrong = next(((how, call) for how, call in zip(CALLS, trial.calls) if call.verdict != "PASS"), None)
            if wrong is not None:
                lines.append(f"  trial {number}: {trial.what}, {trial.fill}, seed {trial.seed}\n    {wrong[1].verdict} with {wrong[0]}: {wrong[1].message}")
        if len(self.trials) < self.asked:
            lines.append(f"  the other {self.asked - len(self.trials)} did not run")
        return "\n".join(lines + [f"  its log: {line}" for line in self.log.splitlines()[-5:] if line.strip()])

    @property
    def json(self) -> dict[str, Any]:
        trials = [{"what": t.what, "fill": t.fill, "seed": t.seed, "verdict": t.verdict, "calls": [{"verdict": c.verdict, "message": c.message} for c in t.calls]}
                  for t in self.trials]  # fmt: skip
        return {"kernel": self.kernel, "correct": self.correct, "precision": self.precision, "asked": self.asked, "trials": trials, "seconds": self.seconds}


class Plan(NamedTuple):
    """A trial, before its numbers are drawn."""

    what: str
    open: Callable[[int], Case]
    arguments: Callable[[Case], "Arguments"]
    results: Callable[[Any], dict[str, Any]]  #: by path, of what the kernel gives


class Arguments(NamedTuple):
    header: dict[str, Any]
    blocks: list[Block]
    paths: list[str]  #: "" of a buffer of results


class Wrong(Exception):
    """No results: the verdict, and why."""

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict, self.message = verdict, message


def evaluate(kernel: Any, reference: Any, *, shapes: Any = None, trials: int = 20, precision: "str | None" = None, gradients: bool = False,
             init: Sequence[Any] = (), files: "Sequence[str | os.PathLike[str]]" = (), writes: Sequence[str] = (), device: str = "cpu", timeout: float = 120.0,
             seed: "int | None" = None, timed: bool = False, module: "str | None" = None, **settings: Any) -> Evaluation:
    """Tries a kernel that may have been made to please its checker: it runs in a process of its own, which never has a golden.

        print(assay.evaluate("generated.py::norm", reference, shapes={"T": range(1, 300), "D": [512, 640]}, precision="bf16"))

    `module` is "torch", "jax" or "numpy": whose tensors the kernel takes and gives; by default the reference's.
    `kernel` is "FILE::NAME", of a file that is copied alone (with `files`) and is never imported here, or a function of a file; a class is made with
    `init`. `reference` is a function as `trace` takes it; what `assay.program` makes; a module; or a name, a glob or an operation of the catalogue, whose kernel is called
    with the inputs by path and the configuration. `shapes`: sizes of axes (keys of a case), each a number, a list of them, or a range of which edges of
    tiles are drawn; or an example as `trace` takes it, or a list of these.

    A trial draws sizes, a fill and two seeds. It calls the kernel with new numbers, with others at the same addresses, and with the first ones at other addresses.
    Results are fixed when the kernel returns; what it was given must be as it was, but for arguments in `writes`; then the golden is evaluated. `gradients`:
    those of autograd, too. `timed`: how long a call takes, by this process's clock. `seed` repeats an evaluation. Other keywords are those of `trace` or `assay.case`.
    """
    chance = random.Random(secrets.randbits(64) if seed is None else seed)
    path, name = located(kernel)
    own = reference.function if isinstance(reference, Reference) else reference
    module = module or (library_of(own, {}) if callable(own) and not module_of(own) else module_of(own)) or "torch"
    if module not in ("torch", "jax", "numpy") or (module == "numpy" and gradients) or (module != "torch" and device != "cpu"):
        raise lib.BadInput(f"evaluate: module {module} on {device}{' with gradients' if gradients else ''}, expected torch, jax on its own device, or numpy without gradients")
    makers = of_catalogue(reference, shapes, precision, settings, chance) if isinstance(reference, str) else of_function(reference, shapes, precision, settings, chance)
    done: list[Trial] = []
    with Candidate(path, name, files, init, device, timeout, module) as process, Candidate(_candidate.__file__, "Blank", (), (), device, timeout, module) as blank:
        for number in range(trials):
            make, fill = next(makers), "plain" if number % 2 == 0 else chance.choice(list(STRUCTURES))
            trial = None
            for fill, last in ((fill, False), ("plain", False), ("plain", False), ("plain", True)):  # a golden of zeros says nothing
                trial = trial or tried(process, blank if timed else None, make, fill, chance, gradients, writes, last)
            assert trial is not None
            done.append(trial)
            if process.over:
                break
        log = process.log()
    return Evaluation(f"{os.path.basename(path)}::{name}", precision or "the profile of its type", trials, done, log)


def tried(process: "Candidate", blank: "Candidate | None", make: Callable[[str], Plan], fill: str, chance: random.Random, gradients: bool,
          writes: Sequence[str], last: bool) -> "Trial | None":
    """None: numbers of this fill show nothing here, since the reference overflows or what it gives vanishes."""
    seeds = [chance.getrandbits(31) for _ in range(2)]
    try:
        plan = make(fill)
        cases = [plan.open(seed) for seed in seeds]
        given = [plan.arguments(case) for case in cases]
        process.require({block.type for block in given[0].blocks})
    except lib.BadInput:
        if fill == "plain":
            raise
        return None
    answers: "list[tuple[int, dict[str, Any] | Wrong]]" = []
    seconds = []
    for which, anew in ((0, True), (1, False), (0, True)):
        try:
            results, took, form = process.call(plan, cases[which], given[which], anew, gradients, writes)
            answers.append((which, results))
            seconds.append(took - (blank.call(plan, cases[which], given[which], anew, False, (), form)[1] if blank is not None else 0))
        except Wrong as why:
            answers.append((which, why))
            break
    calls = []
    for which, found in answers:  # and now there is a golden
        if isinstance(found, Wrong):
            calls.append(Call(found.verdict, found.message))
            continue
        try:
            cases[which].golden(next(path for path in cases[which].expected if path.startswith("outputs/")))
        except lib.BadInput:
            if fill == "plain":
                raise
            return None
        calls.append(judged(cases[which], found, gradients))
        if (fill != "plain" and calls[-1].verdict == "NOT COMPARABLE") or (not last and calls[-1].verdict == "VACUOUS"):
            return None
    return Trial(plan.what, fill, seeds[0], tuple(calls), max(0.0, min(seconds[:2])) if blank is not None and seconds else None)


def judged(of: Case, results: Mapping[str, Any], gradients: bool) -> Call:
    try:
        report = of.judge(results, gradients=gradients)
    except lib.BadInput as why:
        return Call("NO TENSORS", str(why))
    return Call(report.verdict, report.message, report)


def located(kernel: Any) -> tuple[str, str]:
    """The file of a kernel and its name there."""
    if isinstance(kernel, (str, os.PathLike)):
        path, _, name = os.fspath(kernel).rpartition("::")
        if not path or not all(part.isidentifier() for part in name.split(".")):
            raise lib.BadInput(f"evaluate: the kernel is {os.fspath(kernel)!r}, expected FILE::NAME")
    else:
        path, name = inspect.getsourcefile(inspect.unwrap(kernel)) or "" if callable(kernel) else "", getattr(kernel, "__qualname__", "<locals>")
        if not path or "<" in name:
            raise lib.BadInput(f"evaluate: the kernel is {kernel!r}, expected FILE::NAME, or a function that has a name in a file")
    if not os.path.isfile(path):
        raise lib.BadInput(f"evaluate: {path}: no such file")
    return path, name


class Candidate:
    """The kernel's process. Of what it says tensors alone count, and whether they came."""

    def __init__(self, path: str, name: str, files: "Sequence[str | os.PathLike[str]]", init: Sequence[Any], device: str, timeout: float,
                 module: str = "torch") -> None:
        self.module = module
        self.files, self.name, self.init, self.device, self.timeout = [path, *(os.fspath(file) for file in files)], name, list(init), device, timeout
        self.process: "subprocess.Popen[bytes] | None" = None
        self.over = False

    def __enter__(self) -> "Candidate":
        self.folder = tempfile.TemporaryDirectory(prefix="assay-candidate-")
        self.written = tempfile.TemporaryFile()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.end()
            for end in self.channel.ends:
                os.close(end)
        self.written.close()
        self.folder.cleanup()

    def end(self) -> str:
        """How it ended, by itself or now."""
        assert self.process is not None
        self.over = True
        try:
            status = self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # also what it has started
        except ProcessLookupError:
            pass
        self.process.wait()
        return "" if status is None else f"signal {-status}" if status < 0 else f"status {status}"

    def require(self, kinds: Iterable[str]) -> None:
        lacking = [kind for kind in sorted(kinds) if self.module == "numpy" and not hasattr(np, kind)]
        if lacking and importlib.util.find_spec("ml_dtypes") is None:
            raise lib.BadInput(f"evaluate: a kernel of numpy would be given {lacking[0]}, which needs the package ml_dtypes")

    def log(self) -> str:
        self.written.seek(0)
        return self.written.read(1 << 20).decode(errors="replace")

    def start(self) -> None:
        for file in self.files:
            if not os.path.isfile(file):
                raise lib.BadInput(f"evaluate: {file}: no such file")
            shutil.copy(file, self.folder.name)
        (its_end, write), (read, its_other) = os.pipe(), os.pipe()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ASSAY")}
        command = [sys.executable, _candidate.__file__, str(its_end), str(its_other)]
        self.process = subprocess.Popen(command, cwd=self.folder.name, env=environment, stdin=subprocess.DEVNULL, stdout=self.written, stderr=self.written,
                                        pass_fds=(its_end, its_other), start_new_session=True)
        os.close(its_end)
        os.close(its_other)
        self.channel = _candidate.Channel(read, write)
        try:
            init = skeleton(self.init, lambda x: None)
        except TypeError as why:
            raise lib.BadInput(f"evaluate: init has {why}, or numbers and texts") from None
        path = os.path.join(self.folder.name, os.path.basename(self.files[0]))
        self.say({"path": path, "name": self.name, "init": init, "device": self.device, "module": self.module}, ())
        self.hear(0)

    def say(self, header: Mapping[str, Any], blocks: Sequence[Block]) -> None:
        self.channel.until = time.monotonic() + self.timeout
        self.hold(lambda: self.channel.send(header, blocks))

    def hear(self, most: int) -> tuple[dict[str, Any], list[Block]]:
        header, blocks = self.hold(lambda: self.channel.receive(most))
        if "failed" in header:
            self.end()
            raise Wrong("EXCEPTION", str(header["failed"]))
        return header, blocks

    def hold(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Broken as why:
            how = self.end()
            if str(why) == "late":
                raise Wrong("LATE", f"no answer in {self.timeout:g} s") from None
            raise Wrong(*("ENDED", f"its process ended by {how}") if str(why) == "ended" else ("NO TENSORS", f"its answer is {why}")) from None

    def call(self, plan: Plan, of: Case, given: Arguments, anew: bool, gradients: bool, writes: Sequence[str],
             form: "Sequence[tuple[str, tuple[int, ...]]] | None" = None) -> tuple[dict[str, Any], float, list[tuple[str, tuple[int, ...]]]]:
        """The results by path, how long they took, and what they are. `form`: Blank gives such ones."""
        if self.process is None:
            self.start()
        expected = of.expected
        leaves = [i for i, path in enumerate(given.paths) if gradients and "gradients/" + path in expected]
        counts = [_candidate.product(result.shape) for result in expected.values()]
        most = SPARE + 16 * sum(counts) + 2 * sum(len(block.data) for block in given.blocks)
        header = {**given.header, "anew": anew, "leaves": leaves, "sizes": [size * count for count in counts for size in (2, 4)], "blank": form}
        began = time.perf_counter()
        self.say(header, given.blocks)
        said, blocks = self.hear(most)
        took = time.perf_counter() - began
        gradient: list[Block] = []
        try:
            value = _candidate.put_together(said["result"], blocks)
            if leaves:
                numbers = {id(block): i for i, block in enumerate(blocks)}
                upstream = {numbers[id(x)]: path.replace("outputs/", "cotangents/") for path, x in plan.results(value).items() if path.startswith("outputs/")}
                cotangents = tensors_of(of, "cotangents/")
                upstream = {i: path for i, path in upstream.items() if path in cotangents}
                self.say({"of": list(upstream)}, [cotangents[path] for path in upstream.values()])
                gradient = self.hear(most)[1]
            after = self.hear(most)[1]
            buffers = [block for block, path in zip(after, given.paths) if not path]
            wanted = [path for path in expected if path.startswith("outputs/")]
            results = {} if form is not None else dict(zip(wanted, buffers)) if value is None and buffers else plan.results(value)
            results = {path: array_of(x) for path, x in results.items()}
            results.update({"gradients/" + given.paths[i]: array_of(x) for i, x in zip(leaves, gradient)})
        except lib.BadInput as why:
            raise Wrong("NO TENSORS", str(why)) from None
        except (ValueError, KeyError, TypeError, IndexError, RecursionError, AttributeError) as why:
            raise Wrong("NO TENSORS", f"its answer is none: {type(why).__name__}: {why}") from None
        for path, block, now in zip(given.paths, given.blocks, after):
            if path and path.split("/")[-1] not in writes and bytes(block.data) != bytes(now.data):
                raise Wrong("INPUT CHANGED", f"the kernel has written into {path}; what it may write into stands in writes")
        return results, took, [(block.type, block.shape) for block in blocks]


def array_of(block: Any) -> Any:
    """For the judge."""
    if not isinstance(block, Block):
        raise TypeError(f"a result is a {type(block).__name__}, expected a tensor")
    array = np.frombuffer(block.data, np.dtype(lib.TYPES.get(block.type, block.type))).reshape(block.shape)
    return _tensors.Bits(array, block.type) if block.type in _tensors.NARROW else array


def tensors_of(of: Case, folders: "str | tuple[str, ...]") -> dict[str, Block]:
    test, found = of._open(), {}
    for path, tensor in given_of(test):
        if path.startswith(folders):
            array, kind = _tensors.view(test, tensor)
            found[path] = Block(kind, array.shape, array.tobytes())
    return found


def draws(sizes: Mapping[str, Any], chance: random.Random) -> Iterator[dict[str, Any]]:
    """All largest, all least, then any."""
    several = {key: list(n) if isinstance(n, (list, tuple, range)) else [n] for key, n in sizes.items()}
    for key, n in several.items():
        if not n:
            raise lib.BadInput(f"evaluate: shapes has nothing for {key}, expected a number, a list of them, or a range")
    edges = {key: [n for n in own if n in EDGES] if isinstance(sizes[key], range) else [] for key, own in several.items()}
    yield {key: max(n) if isinstance(sizes[key], range) else n[-1] for key, n in several.items()}
    yield {key: min(n) if isinstance(sizes[key], range) else n[0] for key, n in several.items()}
    while True:
        yield {key: chance.choice(edges[key] if edges[key] and chance.random() < 0.75 else n) for key, n in several.items()}


def of_catalogue(globs: str, shapes: Any, precision: "str | None", settings: Mapping[str, Any], chance: random.Random) -> Iterator[Callable[[str], Plan]]:
    found = [globs] if "\n" in globs or os.path.exists(globs) else names(globs) or names(f"{globs}/*")
    if not found:
        raise lib.BadInput(f"evaluate: {globs}: no case of that name")
    for sizes in draws(shapes or {}, chance):
        what = chance.choice(found)

        def arguments(of: Case) -> Arguments:
            tensors = tensors_of(of, ("inputs/", "weights/"))
            slots = {path: Slot(i) for i, path in enumerate(tensors)}
            return Arguments(header_of([slots, of.config], {}), list(tensors.values()), list(tensors))

        def results(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise TypeError(f"a {type(value).__name__}, expected a dictionary by path")
            return value

        def make(fill: str, what: str = what, sizes: Mapping[str, Any] = sizes) -> Plan:
            own = {**settings, **sizes, **({"inputs": {"x": STRUCTURES[fill]}} if fill in STRUCTURES else {})}
            label = " ".join([what.strip().splitlines()[0], *(f"{key}={n}" for key, n in sizes.items())])
            return Plan(label, lambda seed: case(what, precision=precision, cache="", explain=False, seed=seed, **own), arguments, results)

        yield make


def of_function(reference: Any, shapes: Any, precision: "str | None", settings: Mapping[str, Any], chance: random.Random) -> Iterator[Callable[[str], Plan]]:
    """Examples of a function's arguments, and the case of each."""
    several = isinstance(shapes, list) and all(isinstance(x, (dict, tuple)) for x in shapes)
    if several or is_example(shapes):
        of, examples = reference, ((example, "") for example in itertools.cycle(shapes if several else [shapes]))
    else:
        keys = {key: settings[key] for key in ("weights", "integers", "fills") if key in settings}
        made = reference if isinstance(reference, Reference) else program(**keys, **(shapes or {}))(reference)
        settings = {**settings, "weights": made.weights, "integers": made.integers, "fills": made.fills, "axes": made.axes}
        of, examples = made.function, ((made.example(sizes), " ".join(f"{axis}={n}" for axis, n in sizes.items())) for sizes in draws(shapes or made.sizes, chance))
    for example, label in examples:
        yield functools.partial(plan_of, of, example, label, precision, settings)


def is_example(x: Any) -> bool:
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else ()
    return hasattr(x, "shape") or any(map(is_example, parts))


def header_of(args: Sequence[Any], keywords: Mapping[str, Any], parameters: "Mapping[str, int] | None" = None, weights: Sequence[str] = ()) -> dict[str, Any]:
    def put(x: Any) -> "int | None":
        return x.number if isinstance(x, Slot) else None

    return {"args": skeleton(list(args), put), "keywords": skeleton(dict(keywords), put), "parameters": dict(parameters or {}), "names": list(weights)}


def plan_of(reference: Any, example: Any, label: str, precision: "str | None", settings: Mapping[str, Any], fill: str) -> Plan:
    function, own, parameters = as_function(reference, example)
    kinds = {name: str(x.dtype).split(".")[-1] for name, x in own.items() if hasattr(x, "dtype")}
    weights = [*settings.get("weights", ()), *parameters]
    filled = {name: STRUCTURES[fill] for name, kind in kinds.items() if fill in STRUCTURES and "float" in kind and name not in weights}
    keys: dict[str, Any] = {"dtype": GRIDS.get(precision or "", "bfloat16"), **settings, "weights": weights, "fills": {**filled, **settings.get("fills", {})}}
    traced = trace(function, own, **keys)
    ranges = re.findall(r"  (\w+): \{axes: \[[^]]*\], integers: \[(-?\d+), (-?\d+)\]\}", traced.yaml) if fill == SKEWED else []
    few = {f"inputs.{name}": f"{{distribution: integers, low: {low}, high: {int(low) + (int(high) - int(low)) // 4}}}" for name, low, high in ranges}
    whole = getattr(function, "together", dict)({name: Slot(i) for i, name in enumerate(own)})
    paths = short_names(name for name, _ in reference.named_parameters()) if parameters else {}
    header = header_of([], whole, {paths[name]: whole[name].number for name in parameters}, parameters) if parameters else header_of(list(whole.values()), {})

    def arguments(of: Case) -> Arguments:
        tensors = {path.split("/")[1]: (path, block) for path, block in tensors_of(of, ("inputs/", "weights/")).items()}
        blocks, where = [], []
        for name, x in own.items():
            path, block = tensors.get(name, ("", None))
            kind = kinds[name]
            if block is None:  # a buffer, with NaN in it
                kind = keys["dtype"] if "float" in kind else kind
                block = Block(kind, tuple(x.shape), b"\xff" * (_candidate.TYPES[kind] * _candidate.product(x.shape)))
            elif block.type == "int32":
                block = Block(kind, block.shape, np.frombuffer(block.data, np.int32).astype(kind).tobytes())
            blocks.append(block)
            where.append(path)
        return Arguments(header, blocks, where)

    def results(value: Any) -> dict[str, Any]:
        return {traced.path_of(name): x for name, x in named(function, value).items()}

    shown = ", ".join(f"{name} {list(x.shape)}" for name, x in own.items() if name not in weights)
    return Plan(label or shown, lambda seed: traced.case(precision, seed=seed, cache="", explain=False, **few), arguments, results)
