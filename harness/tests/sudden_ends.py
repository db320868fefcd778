"""SIGKILL at random moments: every file is what it was, or what it becomes, and the next start cleans up.

usage: sudden_ends.py PROGRAM LIBRARY EXAMPLE [COUNT] [SEED]

COUNT kills (20) are shared out among generating over goldens, calibrating, and a run over a folder of goldens that keeps its files,
each with files that have no name while they are written, and without (LIBRARY is failing_call.c). EXAMPLE is the example backend.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CASES = ["rms_norm/one-row", "permute/one-token", "yarn_rope/two-dimensions"]
AGAIN = 10  # kills before a start that is let to its end


@dataclass
class Kind:
    name: str
    arguments: list[str]
    nameless: bool
    before: Path  # the folder as it was
    after: Path  # and as it becomes
    seconds: float = 0.0


def content(folder: Path) -> dict[str, bytes]:
    """Logs apart, which hold times."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix != ".log"}


def is_of_a_dead_one(name: str) -> bool:
    return ".partial-" in name or name.startswith("kept/assay-run-")


class Trial:
    def __init__(self, assay: str, library: str, work: Path):
        self.assay, self.library, self.work = assay, library, work
        self.temporary, self.folder = work / "temporary", work / "folder"
        self.temporary.mkdir()
        self.unfinished = self.changed = self.cleaned = 0

    def start(self, kind: Kind) -> subprocess.Popen:
        environment = {**os.environ, "TMPDIR": str(self.temporary)}
        if not kind.nameless:
            environment |= {"LD_PRELOAD": self.library, "NO_NAMELESS_FILES": "1"}
        return subprocess.Popen([self.assay, *kind.arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=self.work)

    def finish(self, kind: Kind) -> None:
        """What the dead one started ends with it, but not in the same instant: until then its folder is in use."""
        for _ in range(200):
            process = self.start(kind)
            error = process.communicate()[1]
            if b"another run of assay uses this folder" not in error:
                break
            time.sleep(0.05)
        if process.returncode != 0 or error:
            raise SystemExit(f"{kind.name}: status {process.returncode}: {error!r}")

    def begin(self, kind: Kind) -> None:
        """The folder as it was, but for what dead ones left."""
        shutil.copytree(kind.before, self.folder, dirs_exist_ok=True)

    def measure(self, kind: Kind) -> None:
        times = []
        for _ in range(3):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.begin(kind)
            started = time.monotonic()
            self.finish(kind)
            times.append(time.monotonic() - started)
        kind.seconds = sorted(times)[1]
        shutil.copytree(self.folder, kind.after)

    def check(self, kind: Kind, ended: bool) -> list[str]:
        before, after, found = content(kind.before), content(kind.after), content(self.folder)
        wrong = [name for name in before if name not in found]
        for name, bytes_ in found.items():
            if is_of_a_dead_one(name) and not ended:
                self.unfinished += 1
            elif bytes_ not in (before.get(name), after.get(name)) or (ended and bytes_ != after[name]):
                wrong.append(name)
            else:
                self.changed += bytes_ != before.get(name)
        if ended:
            wrong += [name for name in after if name not in found] + os.listdir(self.temporary)
        return wrong

    def kill(self, kind: Kind, count: int, draw: random.Random) -> None:
        for i in range(count):
            self.begin(kind)
            process = self.start(kind)
            time.sleep(draw.uniform(0, 1.1 * kind.seconds))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            wrong = self.check(kind, False)
            if not wrong and (i % AGAIN == AGAIN - 1 or i == count - 1):
                self.begin(kind)
                self.finish(kind)
                wrong = self.check(kind, True)
                self.cleaned += 1
            if wrong:
                raise SystemExit(f"{kind.name}: after {i + 1} kills: {', '.join(wrong)}")


def prepare(trial: Trial, example: str) -> list[Kind]:
    """Goldens of another seed are there before."""
    work, kinds = trial.work, []
    old = work / "old"
    subprocess.run([trial.assay, "generate", *CASES, "--quiet", "--seed", "5", "-o", old], check=True, stdout=subprocess.DEVNULL)
    files = [str(p.relative_to(old)) for p in sorted(old.rglob("*.h5"))]
    commands = {
        "generate": ["generate", *CASES, "--quiet", "-o", "folder"],
        "calibrate": ["calibrate", *[f"folder/{name}" for name in files], "--precision", "tf32", "--quiet"],
        "run": ["run", "folder", "--backend", example, "--precision", "bf16", "--quiet", "--keep", "folder/kept"],
    }
    for name, arguments in commands.items():
        for nameless in (True, False):
            kinds.append(Kind(f"{name} {'with' if nameless else 'without'} nameless files", arguments, nameless, old, work / f"{name}-{nameless}"))
    return kinds


def is_sanitized(assay: str) -> bool:
    limit = (3 << 30, 3 << 30)
    done = subprocess.run([assay, "--version"], capture_output=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
    return done.returncode != 0


def main() -> int:
    assay, library, example = (str(Path(name).resolve()) for name in sys.argv[1:4])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 20
    draw = random.Random(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(assay, library, Path(folder))
        kinds = [k for k in prepare(trial, example) if k.nameless or not is_sanitized(assay)]
        for i, kind in enumerate(kinds):
            trial.measure(kind)
            trial.kill(kind, count * (i + 1) // len(kinds) - count * i // len(kinds), draw)
    print(
        f"{count} kills: every file was whole; {trial.changed} times one was new already, {trial.unfinished} times an unfinished one lay beside it, "
        f"{trial.cleaned} starts cleaned up"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
