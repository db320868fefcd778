"""Every command while memory runs out: the Nth allocation fails, alone and with all that follow.

usage: failing_memory.py PROGRAM LIBRARY EXAMPLE [COUNT] [COMMAND]

LIBRARY is failing_memory.c, EXAMPLE the example backend. N goes over the first allocation of each distinct call stack, or over
COUNT of them (0, the default: all), and in the processes that the command starts over as many again; in COMMAND alone where it
is named. A run must end as it would have, or with status 2 and one line; what it wrote must be whole, and its temporary folder
empty. Where a library below us dies, assay says so in its line: those are counted, with where they died. What fails in the
backend's process, or while its candidate is tried in one, may fail the case: it cannot be told from what a backend does.
"""

import concurrent.futures
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 120
OTHERS = re.compile(r"^_?(H5|OPENSSL_|EVP_|CRYPTO_|OSSL_|yaml_|cJSON_|gomp_|GOMP_|lib\S+\.so|ld-linux)")
BACKENDS = re.compile(rb"FAIL (.|\n)*(the.backend.(crashed|ended.with.status)|candidate.h5(: | ended its reader))")
STACKS = 1 << 18  # as in failing_memory.c
TIMES = re.compile(rb" *[0-9.e+-]+ s\b|[0-9]+ a second")


@dataclass
class Command:
    name: str
    arguments: str  # {made}: an empty folder; {data}: the one with the files that are read
    result: tuple[int, bytes, dict[str, bytes]] = (0, b"", {})


@dataclass
class Tally:
    tried: int = 0
    as_ever: int = 0
    with_message: int = 0
    failed: int = 0  # cases, of what failed in a backend's process
    died: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


COMMANDS = [
    Command("generate", "generate rms_norm/one-row -o {made}/new.h5 --certify --threads 1"),
    Command("generate-many", "generate rms_norm/one-row permute/one-token -o {made} --threads 2 --container safetensors"),
    Command("request", "request rms_norm/one-row -o {made}/new.safetensors --threads 1"),
    Command("compare", "compare {data}/golden.h5 {data}/candidate.h5 -v --threads 1 --json {made}/r.json --junit {made}/r.xml --html {made}/r.html"),
    Command("compare-wrong", "compare {data}/golden.h5 {data}/wrong.h5 -v --threads 1 --json {made}/r.json --junit {made}/r.xml --html {made}/r.html"),
    Command("run", "run rms_norm/one-row --backend {example} --threads 1 --json {made}/r.json"),
    Command("run-golden", "run {data}/golden.h5 --backend {example} --threads 1 --keep {made}/kept --junit {made}/r.xml"),
    Command("verify", "verify {data}/golden.h5 --threads 1"),
    Command("power", "power {data}/golden.h5 --threads 1 --json {made}/r.json"),
    Command("calibrate", "calibrate {made}/golden.h5 --precision tf32 --threads 1"),
    Command("check", "check mlp/silu --set base_emb_dim=4 --set base_mlp_dim=2 --set batch=1 --set sequence=1 --threads 1"),
    Command("show", "show moe/mixtral"),
    Command("show-graph", "show decoder_stack/mixtral --graph --svg {made}/steps.svg"),
    Command("list", "list rms_norm/* --json"),
    Command("trace", "trace {data}/schedule.h5 -o {made}/trace.json"),
    Command("convert", "convert {data}/golden.h5 {made}/new.safetensors --threads 1"),
    Command("fuzz", "fuzz --op rms_norm --cases 2 --backend {example} --threads 1 -o {made}/found"),
]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def is_whole(name: str, content: bytes) -> bool:
    try:
        if name.endswith(".json"):
            json.loads(content)
        elif name.endswith(".xml"):
            xml.etree.ElementTree.fromstring(content)
        else:
            return name.endswith(".html") and content.rstrip().endswith(b"</html>")
    except (ValueError, xml.etree.ElementTree.ParseError):
        return False
    return True


class Sweep:
    def __init__(self, assay: str, library: str, example: str, data: Path, work: Path):
        self.assay, self.library, self.example, self.data, self.work = assay, library, example, data, work

    def run(self, command: Command, **settings: str) -> tuple[int, bytes, bytes, dict[str, bytes], list[str]]:
        """status, standard output and error, what was written, what was left in TMPDIR"""
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            made, temporary = Path(folder, "made"), Path(folder, "temporary")
            made.mkdir()
            temporary.mkdir()
            if command.name == "calibrate":
                shutil.copy(self.data / "golden.h5", made)
            environment = {**os.environ, "TMPDIR": str(temporary), "LD_PRELOAD": self.library, **settings}
            words = [w.format(made=made, data=self.data, example=self.example) for w in command.arguments.split()]
            try:
                done = subprocess.run([self.assay, *words], env=environment, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
            except subprocess.TimeoutExpired:
                return 124, b"", b"", {}, []
            said = [text.replace(str(folder).encode(), b"FOLDER") for text in (done.stdout, done.stderr)]
            return done.returncode, TIMES.sub(b" TIME", said[0]), said[1], content(made), sorted(os.listdir(temporary))

    def stacks(self, command: Command) -> tuple[list[str], list[str]]:
        """PROCESS:NUMBER of the process itself, and of those that it starts"""
        with tempfile.NamedTemporaryFile(dir=self.work) as listed, tempfile.NamedTemporaryFile(dir=self.work) as met:
            met.truncate(8 * STACKS)
            status, out, error, made, left = self.run(command, MEMORY_LIST=listed.name, MEMORY_MET=met.name)
            if error or left:
                raise SystemExit(f"{command.name}: status {status}, {error!r}, left {left}")
            command.result = (status, out, made)
            lines = Path(listed.name).read_text().split()
            own = [line for line in lines if line.startswith("0:")]
            return own, sorted(set(lines) - set(own))

    def find_functions(self, stack: str) -> list[str]:
        """Those of a line of the note, the innermost first; of a library its name where it has no symbols here."""
        names = []
        for frame in stack.split()[1:]:
            module, _, offset = frame.partition("+")
            if module == Path(self.library).name or module.startswith("libgcc"):
                continue
            if module == Path(self.assay).name:
                found = subprocess.run(["addr2line", "-f", "-e", self.assay, hex(int(offset, 16) - 1)], capture_output=True, text=True)
                module = found.stdout.split("\n")[0]
            names.append(module)
        return names

    def find_fault(self, command: Command, settings: dict[str, str]) -> list[str]:
        """The functions of the crash, or where there was none of the allocation that failed. A crash in malloc or free is the fault
        of who lacked memory."""
        with tempfile.NamedTemporaryFile(dir=self.work) as noted:
            self.run(command, MEMORY_NOTE=noted.name, MEMORY_CRASH="1", **settings)
            lines = Path(noted.name).read_text().splitlines()
        failed = self.find_functions(next((line for line in lines if line.startswith("failed")), ""))
        crashed = self.find_functions(next((line for line in lines if line.startswith("crashed")), ""))
        names = failed if not crashed or crashed[0].startswith("libc.") else crashed
        return [name for name in names if not name.startswith("libc.")]

    def judge(self, command: Command, settings: dict[str, str], tally: Tally) -> None:
        status, out, error, made, left = self.run(command, **settings)
        wanted, good_out, good = command.result
        what = f"assay {command.arguments} with {settings}"
        failed = status == 1 and not error and not settings["MEMORY_FAILS"].startswith("0:") and bool(BACKENDS.search(out))
        tally.tried += 1
        lines = error.decode(errors="replace").splitlines()
        if left:
            tally.wrong.append(f"left {left}: {what}")
        for name, bytes_ in made.items():
            before = (self.data / "golden.h5").read_bytes() if command.name == "calibrate" else None
            # a log has what it has
            if failed and name.startswith("found/"):  # the case that fuzz has seen fail
                continue
            if name not in good:
                tally.wrong.append(f"{name} is left: {what}")
            elif bytes_ not in (good[name], before) and not name.endswith((".log", ".txt")) and not is_whole(name, bytes_):
                tally.wrong.append(f"{name} is not whole: {what}")
        if status == wanted and not lines:
            tally.as_ever += 1
            if out != good_out:
                other = next((line for line in out.splitlines() if line not in good_out.splitlines()), b"less")
                if re.search(rb"not tried: .*memory", other):  # the verdict stands, and what could not be found out is said
                    return
                tally.wrong.append(f"status {status} with another output: {what}\n    {other.decode(errors='replace')}")
            if made.keys() != good.keys():
                tally.wrong.append(f"status {status} without {sorted(good.keys() - made.keys())}: {what}")
        elif status == 2 and len(lines) == 1 and lines[0].startswith("assay") and "a library below" not in lines[0]:
            tally.with_message += 1
        elif failed:
            tally.failed += 1
        elif status == 124:
            tally.wrong.append(f"hangs: {what}")
        else:
            names = self.find_fault(command, settings)
            fault = next((n for n in names if n), "?")
            if status == 2 and lines and lines[-1].startswith("assay") and any(OTHERS.match(n) for n in names[:1]):
                tally.died[fault] += 1
            else:
                tally.wrong.append(f"status {status}, {lines}: {what}\n    in {' < '.join(names[:8])}")

    def sweep(self, command: Command, count: int) -> Tally:
        tally = Tally()
        own, copies = self.stacks(command)
        draw = random.Random(count)
        chosen = [n for some in (own, copies) for n in (some if count == 0 else draw.sample(some, min(count, len(some))))]
        tasks = [({"MEMORY_FAILS": n} | ({"MEMORY_ON": "1"} if on else {})) for n in chosen for on in (False, True)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(self.judge, command, settings, tally) for settings in tasks]:
                done.result()
        died = "".join(f", {number} in {name}" for name, number in tally.died.most_common())
        print(
            f"{command.name}: {len(own)} call stacks and {len(copies)} in what it starts, {tally.tried} runs: "
            f"{tally.as_ever} as ever, {tally.with_message} with a message, {tally.failed} cases failed, {sum(tally.died.values())} ended by a library{died}, {len(tally.wrong)} wrong",
            flush=True,
        )
        for complaint in tally.wrong[:20]:
            print("  " + complaint, flush=True)
        return tally


def prepare(assay: str, example: str, data: Path) -> None:
    def call(*words: object) -> None:
        subprocess.run([assay, *map(str, words), "--quiet"], check=True, stdout=subprocess.DEVNULL)

    call("run", "rms_norm/one-row", "--backend", example, "--keep", data / "kept")
    shutil.move(next((data / "kept").glob("*.candidate.h5")), data / "candidate.h5")
    call("generate", "rms_norm/one-row", "-o", data / "golden.h5")
    call("power", data / "golden.h5", "--write", data / "mutants")
    shutil.move(next((data / "mutants").glob("*.h5")), data / "wrong.h5")
    call("generate", "deepseek_stack/batch-split-one-microbatch", "-o", data / "schedule.h5")


def is_sanitized(assay: str) -> bool:
    """Its own library must be loaded before ours."""
    limit = (3 << 30, 3 << 30)
    done = subprocess.run([assay, "--version"], capture_output=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
    return done.returncode != 0


def main() -> int:
    assay, library, example = sys.argv[1:4]
    if is_sanitized(assay):
        print("a sanitizer must be loaded first: nothing is tried")
        return 0
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    commands = [c for c in COMMANDS if len(sys.argv) <= 5 or c.name == sys.argv[5]]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        prepare(assay, example, data)
        sweep = Sweep(assay, str(Path(library).resolve()), example, data, Path(folder))
        tallies = [sweep.sweep(command, count) for command in commands]
    tried, wrong = sum(t.tried for t in tallies), sum(len(t.wrong) for t in tallies)
    print(
        f"{tried} runs with failing allocations, {sum(t.with_message for t in tallies)} with a message, "
        f"{sum(t.failed for t in tallies)} cases failed, {sum(sum(t.died.values()) for t in tallies)} ended by a library, {wrong} wrong"
    )
    return 1 if wrong or not any(t.with_message for t in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
