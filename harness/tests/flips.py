"""Single bits of a golden flipped: each flip is seen by `assay verify`, or h5py reads what it read before.

usage: flips.py PROGRAM CASE [COUNT] [COPIES] [SEED]

COUNT bits anywhere in the file (100), and one bit of each byte at the beginning of the first COPIES (1) of each kind of
HDF5's own structures. Prints how many were tried, seen and without effect.
"""

import hashlib
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

SIGNATURES = rb"OHDR|OCHK|FRHP|FHDB|FHIB|FSHD|FSSE|BTHD|BTIN|BTLF|GCOL|FAHD|FADB|EAHD|EADB|EASB|EAIB|SMTB|SMLI"
BYTES_OF_STRUCTURE = 40


def attributes(thing) -> list:
    found = []
    for name in sorted(thing.attrs):
        value = thing.attrs[name]
        found.append((name, str(value.tolist() if isinstance(value, np.ndarray) else value)))
    return found


def content(path: Path) -> list:
    """All that h5py gives: names in the order of visititems, attributes, shapes, labels, bits."""
    found = []
    with h5py.File(path, "r") as file:
        found.append(attributes(file))

        def visit(name: str, thing) -> None:
            entry = [name, type(thing).__name__, attributes(thing)]
            if isinstance(thing, h5py.Dataset):
                raw = np.empty(thing.shape, f"u{thing.id.get_type().get_size()}")
                if raw.size:
                    thing.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, thing.id.get_type())
                entry += [thing.shape, str(thing.dtype), thing.chunks, [d.label for d in thing.dims]]
                entry += [hashlib.sha256(raw.tobytes()).hexdigest()]
            found.append(entry)

        file.visititems(visit)
        found.append(sorted(file))
    return found


def places(raw: bytes, count: int, copies: int, draw: random.Random) -> list[tuple[int, int]]:
    """(byte, bit)"""
    chosen = [(draw.randrange(len(raw)), draw.randrange(8)) for _ in range(count)]
    met: dict[bytes, int] = {}
    for found in re.finditer(SIGNATURES, raw):
        met[found.group()] = met.get(found.group(), 0) + 1
        if met[found.group()] <= copies:
            end = min(found.start() + BYTES_OF_STRUCTURE, len(raw))
            chosen += [(at, draw.randrange(8)) for at in range(found.start(), end)]
    return chosen


def try_flips(assay: str, case: str, folder: Path, numbers: list[int]) -> int:
    count, copies, seed = numbers
    golden, flipped = folder / "golden.h5", folder / "flipped.h5"
    subprocess.run([assay, "generate", case, "--quiet", "-o", golden], check=True, stdout=subprocess.DEVNULL)
    raw = golden.read_bytes()
    expected = content(golden)
    if b"FSHD" not in raw:
        print("the golden has no list of free space: choose another case", file=sys.stderr)
        return 1
    tried = seen = wrong = 0
    for at, bit in places(raw, count, copies, random.Random(seed)):
        changed = bytearray(raw)
        changed[at] ^= 1 << bit
        flipped.write_bytes(changed)
        said = subprocess.run([assay, "verify", "--budget", "0", flipped], capture_output=True)
        (said.stdout + said.stderr).decode()  # what is shown is UTF-8 whatever the file holds
        tried += 1
        if said.returncode in (1, 2):
            seen += 1
            continue
        try:
            same = said.returncode == 0 and content(flipped) == expected
        except Exception as error:  # whatever h5py raises is what its user sees
            same = False
            print(error, file=sys.stderr)
        if not same:
            wrong += 1
            print(f"bit {bit} of byte {at}: status {said.returncode}", file=sys.stderr)
    without = tried - seen - wrong
    print(f"{tried} flips: {seen} seen by verify, {without} without effect on what h5py reads, {wrong} unseen")
    return 1 if wrong or not seen or not without else 0


def main() -> int:
    numbers = [int(text) for text in sys.argv[3:]]
    with tempfile.TemporaryDirectory() as folder:
        return try_flips(sys.argv[1], sys.argv[2], Path(folder), numbers + [100, 1, 1][len(numbers) :])


if __name__ == "__main__":
    sys.exit(main())
