"""assay beside PyTorch and h5py, which bring an OpenMP, a BLAS and an HDF5 of their own: each does its work."""
from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

WORK = """
import threading
torch.set_num_threads(2)
case = assay.case("moe/deepseek3-tiny-sparse", cache="")
a = torch.randn(300, 300, dtype=torch.float64)
before = a @ a
def judge():
    assert case.judge({"outputs/y": case.golden("outputs/y")}, gradients=False).verdict == "PASS"
thread = threading.Thread(target=judge)
thread.start()
for i in range(20):
    assert torch.equal(a @ a, before)
    with h5py.File(f"{i}.h5", "w") as file:
        file.create_dataset("a", data=a.numpy(), compression="gzip", fletcher32=True)
    with h5py.File(f"{i}.h5", "r") as file:
        assert (file["a"][()] == a.numpy()).all()
thread.join()
case.save("golden.h5")
with h5py.File("golden.h5", "r") as file:
    assert (file["outputs/y"][()] == case.golden("outputs/y")).all()
judge()
print("done")
"""


@pytest.mark.parametrize("order", list(itertools.permutations(["torch", "h5py", "assay"]))[::2])
def test_in_one_process(order: tuple[str, ...], tmp_path) -> None:
    pytest.importorskip("h5py")
    program = "".join(f"import {name}\n" for name in order) + WORK
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
