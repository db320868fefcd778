#!/usr/bin/env python3
"""How often assay rejects a correct kernel: cases are drawn as `assay fuzz` draws them, and three sets of kernels that share nothing with the oracle run
them at every profile, judged whole and stage by stage. `ci/alarms` starts it (docs/power.md, "How correct runs are made").

Everything is in one process for each job: cases and verdicts by the Python package, no files between."""
import argparse
import collections
import concurrent.futures
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "python"), str(ROOT / "harness/backends/shell"), str(ROOT / "harness/backends/numpy"), str(ROOT / "bench/alarms")]
PROFILES = ("f64", "f32", "bf16", "f16", "tf32", "fp8_e4m3_block128")
KINDS = ("numpy", "torch", "programs")  # the last has cases of its own: program_kernels.py
COMMANDS = {"numpy": "harness/backends/numpy/backend.py", "torch": "bench/alarms/backend.py", "programs": "bench/alarms/backend.py"}
VANISHED = "numbers below 1e-36, of which correct kernels may have 0"
BATCH = 25  # cases that a job takes at once
PROGRAMS = 10  # and so many of program_kernels.py
VARIANTS = 1000  # of a set of kernels


class Given:
    """A case's tensors as a kernel takes them, from the package; like numpy's Request, of which this has the attributes."""

    def __init__(self, case, float_type):
        from assay import _case, _tensors, to_float32
        from request import Settings

        self.yaml = case.yaml
        self.settings, self.op, self.case = Settings(self.yaml), case.op, case.name
        self.expects = set(case.expected)
        self.tensors, self.wide = {}, set()
        coded = {p.strip() + end for p in self.settings.text.get("quant_formats", "").strip("{}").replace(":", ",").split(",")
                 for end in ("", "_scale", "_tensor_scale")}
        of_bits = self.op == "dequantize"
        narrow = self.settings["dtype"] not in ("float32", "float64")
        test = case._open()
        for path, tensor in _case.given(test):
            array, kind = _tensors.view(test, tensor)
            if path not in coded and array.dtype.kind != "i" and not (of_bits and array.dtype.itemsize == 1):
                array = (to_float32(array, kind) if kind in _tensors.NARROW else array).astype(float_type)
            self.tensors[path] = array
            if narrow and kind in ("float32", "float64"):
                self.wide.add(path)


def by_numpy(case, profile, variant):
    import arithmetic
    import operations
    from request import Unsupported

    if profile != "f64" and profile not in arithmetic.STORAGE:
        raise Unsupported("no profile " + profile)
    ar = arithmetic.Arithmetic(profile, arithmetic.variant(variant))
    given = Given(case, ar.float)
    given.expects = [path for path in given.expects if not path.startswith("routing/")]
    return operations.run(ar, given)


def by_torch(case, profile, variant):
    import numpy
    import engine_operations

    given = Given(case, numpy.float64)
    given.settings.need_usual(given.op, given.tensors)
    return engine_operations.run(given.op, given.settings, given.tensors, given.wide, given.expects, profile, variant)


def by_programs(case, profile, variant, mistake=""):
    import numpy
    import program_kernels

    return program_kernels.run(case.name.split("/")[1], Given(case, numpy.float64).tensors, list(case.expected), profile, variant, mistake)[0]


def judged(case, kind, profile, variant):
    """A word, and a line where there is something to say."""
    from assay import BadInput
    from request import Unsupported

    try:
        results = {"numpy": by_numpy, "torch": by_torch, "programs": by_programs}[kind](case, profile, variant)
    except Unsupported as reason:
        return "unsupported", str(reason)
    except Exception as reason:  # of a case that the oracle refuses too, or the kernels' fault
        results, line = {}, f"{type(reason).__name__}: {reason}"
    try:
        report = case.judge(results, precision=profile)
    except BadInput as reason:
        return "refused", str(reason)
    if not results:
        return "failed", line
    if report.verdict not in ("FAIL", "NOT COMPARABLE"):
        return "passed", report.message
    if report.verdict == "NOT COMPARABLE" and VANISHED in report.message:  # as `assay fuzz` has it
        return "refused", report.message
    if profile == "f16" and beyond_float16(case):
        return "refused", "beyond float16"
    return "failed", report.message


def beyond_float16(case):
    """Whether the case has a number, checkpoints too, that a kernel cannot store in float16; as `assay fuzz` refuses such cases."""
    import assay
    import numpy

    whole = assay.case(case.yaml, precision="f64", threads=1, cache="", explain=False, checkpoints="all")
    numbers = [whole.golden(path) for path in whole.expected] + [tensor for tensor in Given(whole, numpy.float64).tensors.values()]
    return any(x.size and numpy.nanmax(numpy.abs(numpy.where(numpy.isinf(x), 0, x))) > 65504 for x in numbers)


def try_case(text, draw, kinds, profiles, options):
    """At each profile some variants of each set of kernels, and of every other pair of case and profile one of one set in stages: that costs ten times as
    much. Variants are drawn by the case's number."""
    for place, profile in enumerate(profiles):
        for staged in (False, True) if (draw + place) % 2 == 0 else (False,):
            yield from try_profile(text, draw + place, profile, staged, kinds, options)


def try_profile(text, draw, profile, staged, kinds, options):
    import assay

    try:
        case = assay.case(text, precision=profile, threads=1, cache="", explain=False, staged=staged, **({"checkpoints": "all"} if staged else {}))
    except assay.BadInput as reason:
        yield None, profile, staged, 0, "refused", str(reason)
        return
    if staged and not any(p.startswith("checkpoints/") for p in case.expected):
        return  # an operation of one stage
    for i, kind in enumerate(kinds):
        for again in range(options.variants if not staged else (draw // 2 + i) % len(kinds) == 0):
            variant = (draw * options.variants + again) * 7 % VARIANTS + i
            yield kind, profile, staged, variant, *judged(case, kind, profile, variant)


def batch(number, options):
    """Draws its cases and tries them: counts, and the failures with their cases."""
    import torch

    torch.set_num_threads(1)
    counts, failures = collections.Counter(), []
    for op, name, text, draw, kinds, profiles in drawn(number, options):
        if time.time() > options.end:
            break
        for kind, profile, staged, variant, word, line in try_case(text, draw, kinds, profiles, options):
            counts[kind, profile, op, staged, word] += 1
            if word == "failed":
                failures.append((kind, profile, op, staged, variant, name, text, line))
    return counts, failures


def drawn(number, options):
    """A batch's cases: operation, a file's name, the text, a number, and what tries them. Of several operations batches take turns."""
    import program_kernels

    of_fuzz = tuple(kind for kind in options.kinds if kind != "programs")
    if of_fuzz:
        with tempfile.TemporaryDirectory() as folder:
            command = [options.program, "fuzz", "--draw-only", "--cases", str(BATCH), "--seed", str(number), "-o", folder]
            subprocess.run(command + (["--op", options.op[number % len(options.op)]] if options.op else []), check=True)
            paths = {int(path.stem.rsplit("-", 1)[1]): path for path in pathlib.Path(folder).iterdir()}
            for place, path in sorted(paths.items()):
                yield path.stem.split("-")[1], f"{number}-{path.name}", path.read_text(), number * BATCH + place, of_fuzz, options.profiles
    if "programs" in options.kinds and (not options.op or options.op[number % len(options.op)] == "program"):
        profiles = [profile for profile in options.profiles if profile in program_kernels.PROFILES]
        for draw in range(number * PROGRAMS, (number + 1) * PROGRAMS):
            name, text = program_kernels.drawn(draw)
            yield "program", f"{draw}-{name}.yml", text, draw, ("programs",), profiles


def tell_wrong(options):
    """Of each planted mistake of program_kernels.py how many runs were rejected, of 3 cases of its program."""
    import assay
    import program_kernels

    profiles = [profile for profile in options.profiles if profile in program_kernels.PROFILES]
    rejected, runs = collections.Counter(), collections.Counter()
    for draw in range(options.seed * 1000, options.seed * 1000 + 3 * len(program_kernels.PROGRAMS)):
        name, text = program_kernels.drawn(draw)
        for profile in profiles:
            case = assay.case(text, precision=profile, threads=1, cache="", explain=False)
            for mistake in program_kernels.mistakes(name, Given(case, "float64").tensors, list(case.expected)):
                runs[name, mistake, profile] += 1
                rejected[name, mistake, profile] += case.judge(by_programs(case, profile, 0, mistake), precision=profile).verdict == "FAIL"
    print(f"| program | mistake | {' | '.join(profiles)} |\n| --- | --- |{' --- |' * len(profiles)}")
    for name, mistake in dict.fromkeys(key[:2] for key in runs):
        print(f"| {name} | {mistake} | {' | '.join(f'{rejected[name, mistake, p]} of {runs[name, mistake, p]}' for p in profiles)} |")
    found = sum(any(rejected[key[0], key[1], p] for p in profiles) for key in dict.fromkeys(key[:2] for key in runs))
    print(f"{found} of {len(dict.fromkeys(key[:2] for key in runs))} mistakes are rejected somewhere, {sum(rejected.values())} of {sum(runs.values())} runs")


def tell(failure, options):
    kind, profile, op, staged, variant, name, text, line = failure
    folder = pathlib.Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    print(f"FAIL  {op} {profile} {kind} variant {variant}{' staged' if staged else ''}: {line}")
    print(f"    repeat: {os.path.relpath(options.program)} run {folder / name} --precision {profile} --set profiles={profile}{' --staged' if staged else ''} --backend "
          f"'{sys.executable} {COMMANDS[kind]} {{request}} {{candidate}} --precision {profile} --variant {variant}'", flush=True)


def table(title, rows, of, counts):
    print(f"\n| {title} | runs | staged | failed | refused | unsupported |\n| --- | --- | --- | --- | --- | --- |")
    for row in [*rows, "all"]:
        mine = [(key, n) for key, n in counts.items() if row == "all" or key[of] == row]
        runs = [(key, n) for key, n in mine if key[4] in ("passed", "failed")]
        total = lambda chosen: sum(n for _, n in chosen)
        print(f"| {row} | {total(runs)} | {total(x for x in runs if x[0][3])} | {total(x for x in runs if x[0][4] == 'failed')} | "
              f"{total(x for x in mine if x[0][4] == 'refused')} | {total(x for x in mine if x[0][4] == 'unsupported')} |")


def seconds(text):
    return float(text.rstrip("smh")) * {"m": 60, "h": 3600}.get(text[-1], 1)


def main():
    parser = argparse.ArgumentParser(prog="ci/alarms", description="how often assay rejects a correct kernel")
    parser.add_argument("--time", type=seconds, default=60.0, help="how long cases are tried: 90, 90s, 5m, 1h (default 60)")
    parser.add_argument("--runs", type=int, default=0, help="how many runs, in place of a time")
    parser.add_argument("--seed", type=int, default=1, help="the same cases again (default 1)")
    parser.add_argument("--only", choices=KINDS, help="one set of kernels")
    parser.add_argument("--op", action="append", default=[], help="cases of this operation alone; of several, batches take turns")
    parser.add_argument("--wrong", action="store_true", help="the planted mistakes of the programs' kernels, and which are rejected")
    parser.add_argument("--profiles", default=",".join(PROFILES), help="of " + ",".join(PROFILES))
    parser.add_argument("--variants", type=int, default=3, help="of each set of kernels, for a case and profile judged whole (default 3)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--program", default=str(ROOT / "build/release/harness/assay"))
    parser.add_argument("-o", "--output", default="build/alarms-found", help="the folder for cases that failed")
    options = parser.parse_args()
    options.kinds = (options.only,) if options.only else KINDS
    options.profiles = options.profiles.split(",")
    if options.wrong:
        return tell_wrong(options)
    started = time.time()
    options.end = started + (options.time if options.runs == 0 else 1e9)
    counts, failed, runs = collections.Counter(), 0, 0
    numbers = itertools.count(options.seed * 100000)
    stopped = []
    signal.signal(signal.SIGINT, lambda *_: stopped.append(True))  # the batches under way end, and the tables follow
    with concurrent.futures.ProcessPoolExecutor(options.jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        waiting = {pool.submit(batch, next(numbers), options) for _ in range(options.jobs)}
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                of_batch, failures = future.result()
                counts.update(of_batch)
                failed += len(failures)
                for failure in failures:
                    tell(failure, options)
            runs = sum(n for key, n in counts.items() if key[4] in ("passed", "failed"))
            over = stopped or time.time() > options.end or (options.runs and runs >= options.runs)
            waiting |= set() if over else {pool.submit(batch, next(numbers), options) for _ in done}
    table("profile", options.profiles, 1, counts)
    table("operation", sorted({key[2] for key in counts}), 2, counts)
    table("kernels", options.kinds, 0, counts)
    taken = time.time() - started
    print(f"\n{runs} runs in {taken:.0f} s ({runs / taken:.0f} a second), seed {options.seed}: {failed} failed")
    sys.exit(1 if failed else 0 if runs else 3)


if __name__ == "__main__":
    main()
