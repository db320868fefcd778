"""Two kernels' results against each other: correct ones of other orders lie apart by rounding, wrong ones do not."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.__main__ import program

ROOT = Path(__file__).parents[2]
BACKEND = f"'{sys.executable}' '{ROOT}/harness/backends/numpy/backend.py' {{request}} {{candidate}} --precision bf16"


def bf16(values: Any) -> Any:
    """Rounded to bfloat16, to nearest even."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def product(case: assay.Case, order: Any, scale: float = 1.0, stored: Any = bf16) -> dict[str, Any]:
    """Of an mlp with silu, in float32 with its sums in another order; y and what is `stored` in bfloat16."""
    given = {path: assay.to_float32(value) if value.dtype == np.uint16 else np.float32(value) for path, value in case.inputs(np).items()}
    x, up, gate, down = given["inputs/x"], given["weights/wi_1/kernel"], given["weights/wi_0/kernel"], given["weights/wo/kernel"]
    a, b = stored(x[..., order] @ gate[order]), stored(x[..., order] @ up[order])
    h = bf16(stored(a / (1 + np.exp(-a))) * b)
    return {"outputs/y": bf16(scale * (h @ down))}


def test_an_order_of_sums_is_rounding_and_a_factor_is_not() -> None:
    case = assay.case("mlp/silu", precision="bf16", gradients="none", sequence=16)
    width = case.config["base_emb_dim"]
    one, other = product(case, np.arange(width)), product(case, np.arange(width)[::-1], 1.0, np.float32)
    assert assay.between(case, one, one)["verdict"] == "SAME BITS"
    found = assay.between(case, one, other)
    assert found["verdict"] == "ROUNDING" and found["a"] == found["b"] == "PASS", found
    wrong = assay.between(case, one, product(case, np.arange(width), 1.03))
    assert wrong["verdict"] == "BEYOND ROUNDING" and wrong["message"].startswith("outputs/y"), wrong
    assert wrong["a"] == "PASS" and wrong["b"] == "FAIL"
    # the same mistake in both is rounding between them
    both = assay.between(case, product(case, np.arange(width), 1.03), product(case, np.arange(width)[::-1], 1.03, np.float32))
    assert both["verdict"] == "ROUNDING" and both["a"] == both["b"] == "FAIL", both


def test_profiles_of_their_own() -> None:
    case = assay.case("gmm/primes", precision="bf16", gradients="none")
    exact = {path: case.golden(path) for path, of in case.expected.items() if of.required}
    coarse = {path: bf16(value) for path, value in exact.items()}
    assert assay.between(case, coarse, exact, "bf16", "f32")["verdict"] == "ROUNDING"
    assert assay.between(case, exact, coarse, "f32", "f32")["verdict"] == "BEYOND ROUNDING"


def test_integers_and_what_one_lacks() -> None:
    case = assay.case("routing/mixtral", precision="bf16")
    right = {path: case.golden(path) for path, of in case.expected.items() if of.required}
    assert assay.between(case, right, right)["verdict"] == "SAME BITS"
    less = {path: value for path, value in right.items() if path != sorted(right)[0]}
    assert assay.between(case, right, less)["verdict"] == "BEYOND ROUNDING"


def between(*arguments: str, answer: Path | None = None) -> subprocess.CompletedProcess[str]:
    more = [] if answer is None else ["--json", os.fspath(answer)]
    return subprocess.run([program(), "between", *arguments, *more], capture_output=True, text=True)


@pytest.mark.parametrize("name", ["moe/small", "mla/small", "attention/segments", "gqa_decode/small"])
def test_variants_of_a_backend(name: str) -> None:
    made = between(name, BACKEND, BACKEND + " --variant 3", "--precision", "bf16", "-v")
    assert made.returncode == 0 and "ROUNDING  " in made.stdout, made.stdout + made.stderr


RECORDER = """
import sys, h5py, numpy
with h5py.File(sys.argv[1]) as request:
    numpy.save(sys.argv[3], request["inputs/selected_experts"][()])
sys.exit(77)
"""


def test_a_stage_is_named_and_a_choice_replayed(tmp_path: Path) -> None:
    planted = BACKEND.replace("backend.py'", "planted_stage.py' query_proj factor:4")
    made = between("mla/small", BACKEND, planted.replace(" --precision bf16", ""), "--precision", "bf16")
    assert made.returncode == 1 and "BEYOND ROUNDING  checkpoints/query_proj" in made.stdout, made.stdout + made.stderr
    (tmp_path / "b.py").write_text(RECORDER)
    recorder = f"'{sys.executable}' '{tmp_path}/b.py' {{request}} {{candidate}} '{tmp_path}/given.npy'"
    made = between("moe/small", BACKEND, recorder, "--precision", "bf16", "--replay", "A")
    assert made.returncode == 2 and "assay between: B: " in made.stderr, made.stdout + made.stderr
    chosen = assay.case("moe/small", precision="bf16").golden("routing/selected_experts")
    assert (np.load(tmp_path / "given.npy") == chosen).all()


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["gmm/primes", "A", "B"], '"A" is neither a shared object'),
        (["gmm/primes", "missing.h5", "other.h5"], "missing.h5"),
        (["gmm/primes", BACKEND, "b.h5", "--replay", "A"], "--replay A: B is a file"),
        (["gmm/primes", BACKEND, BACKEND, "--replay", "C"], '--replay is "C", expected A'),
        (["gmm/primes", BACKEND, BACKEND, "--replay", "A"], "gmm/primes chooses no experts"),
        (["gmm/primes", BACKEND, BACKEND, "--other-precision", "f8"], '--other-precision is "f8", expected'),
        (["gmm/*", BACKEND, BACKEND], "cases, expected one"),
        (["gmm/primes", BACKEND], "usage: assay between"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    made = between(*arguments, answer=tmp_path / "answer.json")
    assert made.returncode == 2 and made.stdout == "" and not (tmp_path / "answer.json").exists()
    assert says in made.stderr and made.stderr.count("\n") == 1, made.stderr


def test_the_next_token() -> None:
    text = """
case: own/head
op: program
sizes: {T: 12, D: 16, V: 40}
inputs: {x: [T, D]}
weights: {w: [D, V]}
outputs:
  logits: product("TD,DV->TV", x, w)
gradients: none
"""
    case = assay.case(text, precision="bf16")
    golden = case.golden("outputs/logits")
    near = golden * (1 + 1e-4 * np.sign(np.sin(np.arange(golden.size))).reshape(golden.shape))
    found = assay.between(case, {"outputs/logits": bf16(golden)}, {"outputs/logits": bf16(near)})["next_token"]
    a, b = (np.float64(bf16(x)) for x in (golden, near))
    p, q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (a, b))
    divergence = (np.exp(p) * (p - q)).sum(-1)
    assert found["tokens"] == 12 and found["other"] == (a.argmax(-1) != b.argmax(-1)).sum()
    assert found["kl_mean"] == pytest.approx(divergence.mean(), rel=1e-6) and found["kl_largest"] == pytest.approx(divergence.max(), rel=1e-6)
    wrong = np.where(np.arange(40) == 3, 1e3, golden)
    found = assay.between(case, {"outputs/logits": bf16(golden)}, {"outputs/logits": bf16(wrong)})
    assert found["verdict"] == "BEYOND ROUNDING" and found["next_token"]["other"] >= 11
