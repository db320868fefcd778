"""docs/code/sketches.py gives the sums of goldens. usage: sketches.py ROOT PROGRAM"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

CASE, ABOVE = "moe/sketched", 2000


def names_of(root: Path, file: str) -> dict:
    names: dict = {}
    exec((root / "docs/code" / file).read_text(), names)
    return names


def main(root: Path, program: str) -> None:
    random, sketches = names_of(root, "random_inputs.py"), names_of(root, "sketches.py")

    def bits(seed: int, path: str, i: int) -> int:
        low, high = random["words"](random["key_of"](seed, path), 2, np.array([2 * i, 2 * i + 1], np.uint64))
        return int(low) | int(high) << 32

    with tempfile.TemporaryDirectory() as folder:
        for name, more in (("sketched", []), ("whole", ["--set", "sketch_above=0"])):
            subprocess.run([program, "generate", CASE, *more, "-o", f"{folder}/{name}.h5", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        with h5py.File(f"{folder}/sketched.h5") as sketched, h5py.File(f"{folder}/whole.h5") as whole:
            seed = int(re.search(r"^seed: (\d+)$", sketched.attrs["case_yaml"], re.M)[1])
            checked = 0
            for name in ("wi_0", "wi_1", "wo"):
                path = f"gradients/weights/{name}"
                gradient = whole[path][()]
                assert path + "/sketch" in sketched and not isinstance(sketched[path], h5py.Dataset)
                for part, sums in sketches["sketch"](bits, seed, path, gradient).items():
                    assert (part in sketched) == (sums.size <= ABOVE or part.endswith("blocks")), part
                    if part not in sketched:
                        continue
                    found = sketched[part][()]
                    assert found.shape == sums.shape, part
                    assert np.abs(found - sums).max() <= 1e-12 * np.abs(gradient).max() * gradient[0].size**0.5, part
                    checked += 1
                rows = gradient.reshape(-1, gradient.shape[-1])
                n = min(16, len(rows), ABOVE // rows.shape[1])
                for i, row in enumerate(sketched[path + "/sketch/slice_rows"][()]):
                    first, end = i * len(rows) // n, (i + 1) * len(rows) // n
                    place = first + (bits(seed, path + "/sketch/slice_rows", i) * (end - first) >> 64)
                    assert np.array_equal(row, rows[place]), (path, i)
    assert checked >= 9, checked
    print(f"{checked} tensors of sums")


main(Path(sys.argv[1]), sys.argv[2])
