"""The work of the study: goldens, correct runs, mutants."""
import json
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py
import numpy as np

from arithmetic import Arithmetic, PLAIN, VARIANTS, variant
from cases import FP8, FP8_CASES, PROFILES
from kernels_quantize import operands
from programs import Program
from operations import run
from peers import judge, product_bounds
from request import Request, Unsupported
from storage import write_stored


# How far the kernel in float64 may be from the golden.
AGREES = 1e-9
# Less than a unit of the type: `assay power` says that it has an effect only where it is detected.
BELOW_A_UNIT = ("truncated",)


@dataclass(frozen=True)
class Task:
    """One golden: a case and a seed."""
    assay: str
    case: str
    seed: int  # 0: the case's own
    profiles: tuple
    variants: tuple  # numbers
    mutants: bool
    staged: bool = False  # candidates that give checkpoints are judged stage by stage too
    family: str = ""  # of the format of quantised operands
    words: tuple = ()  # of `assay generate`, beside the case and the seed
    own_profiles: tuple = ()  # files

    def name(self):
        return f"{self.case} in {self.family}" if self.words else self.case

    def group(self, profile):
        """Of the tables: a format, and a format whose sums are others."""
        return self.family if profile in self.profiles else f"{self.family}, {profile}"


def call(*words, accept=(0, 1, 3)):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in accept:
        raise RuntimeError(" ".join(words) + ": " + done.stderr.strip())
    return done


def knows(assay, command, word):
    """Whether the help text of a command names something."""
    return word in call(assay, command, "--help").stdout


def read_results(path):
    """Outputs and gradients of a golden or candidate, bfloat16 bits as numbers; the profiles of a golden, some of which a case may not have."""
    found = {}
    with h5py.File(path) as f:
        def read(name, item):
            if isinstance(item, h5py.Dataset) and name.startswith(("outputs/", "gradients/", "routing/")):
                value = item[()]
                if item.dtype == np.uint16:
                    value = (np.asarray(value, np.uint32) << 16).view(np.float32)
                found[name] = np.asarray(value)

        f.visititems(read)
        profiles = set(f.get("error_scale", ()))
    return found, profiles


class Golden:
    def __init__(self, task, folder):
        self.task, self.path = task, str(Path(folder) / "golden.h5")
        self.generate(self.path)
        self.with_checkpoints = self.make_with_checkpoints(folder) if task.staged else None
        results, has = read_results(self.path)
        self.results = {p: v for p, v in results.items() if not p.startswith("routing/")}
        self.choices = {p: v for p, v in results.items() if p.endswith("selected_experts") and p.startswith("routing/")}
        self.profiles = [p for p in task.profiles if p in has] + [Path(file).stem for file in task.own_profiles]
        self.bounds = product_bounds(*self.operation_and_tensors())

    def generate(self, path, *more):
        words = [self.task.assay, "generate", self.task.case, "-o", path, "--quiet", "--threads", "1", *self.task.words, *more]
        if self.task.seed:
            words += ["--seed", str(self.task.seed)]
        if FP8 in self.task.profiles:
            words += ["--set", "profiles=[" + ", ".join(self.task.profiles) + "]"]
        call(*words, accept=(0,))
        for file in self.task.own_profiles:
            call(self.task.assay, "calibrate", path, "--precision", file, "--quiet", "--threads", "1", accept=(0,))

    def make_with_checkpoints(self, folder):
        """None where the operation has none."""
        path = str(Path(folder) / "with-checkpoints.h5")
        self.generate(path, "--set", "checkpoints=all")
        with h5py.File(path) as f:
            return path if "checkpoints" in f else None

    def operation_and_tensors(self):
        request = Request(self.path, np.float64)
        return request.op, operands(request.settings, request.tensors) if request.op == "gmm" else request.tensors

    def self_test(self):
        """The kernel without a rounding, against the golden: the worst error over each tensor's largest value."""
        request = Request(self.path, np.float64)
        results, worst = run(Arithmetic("f64"), request), 0.0
        kept = Program(request.yaml).kept if request.op == "program" else {}
        for path, golden in self.results.items():
            if kept.get(path.split("/")[1]):  # in a type of its own
                continue
            value, finite = np.asarray(results[path]), np.isfinite(golden)
            if value.shape != golden.shape or not np.array_equal(value[~finite], golden[~finite], equal_nan=True):
                return np.inf
            error = np.abs(value[finite] - golden[finite]).max(initial=0)
            # a gradient that is 0 but for float64's own rounding has no relative error
            worst = max(worst, error / max(np.abs(golden[finite]).max(initial=0), 1e-5))
        return float(worst)


def compare(assay, golden, candidate, profile, folder, *more):
    report = str(Path(folder) / "report.json")
    call(assay, "compare", golden, candidate, "--precision", profile, "--json", report, "--quiet", "--threads", "1",
         *more)
    return json.loads(Path(report).read_text())["reports"][0]


def first_failure(report):
    """The tensor and element of the first wrong tensor."""
    for tensor in report["tensors"]:
        if tensor["verdict"] not in ("PASS", "VACUOUS") and tensor["compared"]:
            worst = (tensor["elements_worst"] or [None])[0]
            return {"path": tensor["path"], "finding": tensor["finding"], "worst_element": worst,
                    "worst_row": tensor["worst_row"], "rms_ratio": tensor["rms_ratio"]}
    return None


def correct_run(golden, profile, number, plain, folder):
    arithmetic = Arithmetic(profile, variant(number))
    request = Request(golden.with_checkpoints or golden.path, arithmetic.float)
    results = run(arithmetic, request)
    candidate = str(Path(folder) / "candidate.h5")
    write_stored(candidate, {p: v for p, v in results.items() if p in golden.results or p.startswith("routing/")}, profile)
    assay = golden.task.assay
    report = compare(assay, golden.path, candidate, profile, folder)
    staged = report
    if golden.with_checkpoints:
        write_stored(candidate, results, profile)
        staged = compare(assay, golden.with_checkpoints, candidate, profile, folder, "--staged")
    chose = all(np.array_equal(golden.choices[p], results[p]) for p in golden.choices if p in results)
    plain = plain or results
    return results, {
        "case": golden.task.name(), "family": golden.task.group(profile), "op": request.op, "profile": profile, "seed": golden.task.seed, "number": number,
        "variant": asdict(arithmetic.variant), "verdict": report["verdict"], "message": report["message"],
        "staged_verdict": staged["verdict"], "staged_message": staged["message"],
        "failure": first_failure(report), "same_choice": chose,
        "accepted": judge(golden.results, results, plain, profile, golden.bounds, request.op, golden.task.family)}


def mutants(golden, profile, plain, folder, write):
    """Each mutant with an effect: what assay says of it, and the peers' rules, where its candidate can be had."""
    report, candidates = Path(folder) / "mutants.json", Path(folder) / ("mutants-" + profile)
    words = [golden.task.assay, "power", golden.path, "--precision", profile, "--json", str(report), "--quiet",
             "--threads", "1"]
    call(*words, *(["--write", str(candidates)] if write else []))
    fixture, found = json.loads(report.read_text())["fixtures"][0], []
    for mutant in fixture["mutants"]:
        if mutant["outcome"] not in ("detected", "passes") and mutant["name"] not in BELOW_A_UNIT:
            continue
        file, accepted = candidates / (mutant["name"] + ".h5"), None
        if file.exists():
            accepted = judge(golden.results, read_results(file)[0], plain, profile, golden.bounds, fixture["op"], golden.task.family)
        found.append({"case": golden.task.name(), "family": golden.task.group(profile), "op": fixture["op"], "profile": profile, "mutant": mutant["name"],
                      "required": mutant["required"], "outcome": mutant["outcome"], "fixture": fixture["verdict"],
                      "fails": mutant.get("fails", False), "tensors": mutant["tensors"], "tensors_failed": mutant["tensors_failed"],
                      "by_stage": mutant["by_stage"], "excess": mutant["excess"], "accepted": accepted})
    return found


def perform(task):
    """All that is done with one golden."""
    made = {"case": task.name(), "seed": task.seed, "runs": [], "mutants": []}
    with tempfile.TemporaryDirectory(prefix="power-") as folder:
        try:
            golden = Golden(task, folder)
            made["self_test"] = golden.self_test()
        except Unsupported as reason:
            return made | {"unsupported": str(reason)}
        for profile in golden.profiles if task.variants else ():
            plain = None
            for number in task.variants:
                results, record = correct_run(golden, profile, number, plain, folder)
                plain = plain or results
                made["runs"].append(record)
            if task.mutants:
                write = knows(task.assay, "power", "--write")
                made["mutants"] += mutants(golden, profile, plain, folder, write)
    return made


def listed(assay):
    return json.loads(call(assay, "list", "--json").stdout)


def catalogue(assay):
    """Every case, but for those of true size."""
    return sorted(c["case"] for c in listed(assay) if not c["case"].startswith("true-size/"))


def numbers(runs, each):
    """The variants of each golden: as many goldens as it takes, each with the plain variant first."""
    for first in range(0, runs, each):
        count = min(each, runs - first)
        yield tuple(range(count)) if first == 0 else (0, *range(first + 1, first + count))


def tasks(assay, names, runs, fp8, mutants_too):
    """`runs` for each case and profile: as many goldens as the fixed variants need, each with the plain variant first."""
    made = []
    for case in names:
        profiles = PROFILES + ((FP8,) if fp8 and case in FP8_CASES else ())
        for index, drawn in enumerate(numbers(runs, len(VARIANTS))):
            made.append(Task(assay, case, 1000 + index if index else 0, profiles, drawn, mutants_too and index == 0))
    return made


assert variant(0) == PLAIN
