"""Two kernels' results against each other: correct ones of other orders lie apart by rounding, wrong ones do not."""
from __future__ import annotations

import json
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


@pytest.mark.parametrize("name, a, b", [("moe/small", 0, 3), ("mla/small", 0, 3), ("attention/segments", 0, 3), ("gqa_decode/small", 0, 3), ("program/types", 8, 13),
                                        ("rms_norm/true-width", 4, 8)])  # one keeps what the other rounds, a row to one side
def test_variants_of_a_backend(name: str, a: int, b: int) -> None:
    made = between(name, BACKEND + f" --variant {a}", BACKEND + f" --variant {b}", "--precision", "bf16", "-v")
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


# Routed experts with a shared one, in float32; a gate that is off by a last place of bfloat16 chooses otherwise at near ties.
ROUTER = '''
import sys, h5py, numpy as np

with h5py.File(sys.argv[1]) as f:
    t = {path: f[path][()] for path in ("inputs/x", "weights/gate/kernel", "weights/gate/bias", "weights/wi_0", "weights/wi_1", "weights/wo",
         *(f"weights/shared_experts/{w}/kernel" for w in ("wi_0", "wi_1", "wo")))}
    t = {path: np.float32(value) for path, value in t.items()}
    given = f["inputs/selected_experts"][()] if "inputs/selected_experts" in f else None

def mlp(x, wi_0, wi_1, wo):
    a = x @ wi_0
    return (a / (1 + np.exp(-a)) * (x @ wi_1)) @ wo

x, gate = t["inputs/x"], t["weights/gate/kernel"]
if sys.argv[3] == "off":
    gate = gate * np.float32(1 + 2.0**-8 * np.where(np.arange(gate.size).reshape(gate.shape) % 3, 1, -1))
scores = 1 / (1 + np.exp(-x @ gate))
biased = scores + t["weights/gate/bias"]
chosen = np.argsort(-biased, axis=-1, kind="stable")[..., :4] if given is None else given
weights = np.take_along_axis(scores, chosen, -1)
weights = weights / weights.sum(-1, keepdims=True) * np.float32(2.5)
y = mlp(x, *(t[f"weights/shared_experts/{w}/kernel"] for w in ("wi_0", "wi_1", "wo")))
for at in np.ndindex(*chosen.shape):
    e = chosen[at]
    y[at[:2]] += weights[at] * mlp(x[at[:2]], t["weights/wi_0"][e], t["weights/wi_1"][e], t["weights/wo"][e])
with h5py.File(sys.argv[2], "w") as f:
    f["outputs/y"], f["routing/selected_experts"], f["routing/weights"] = y, chosen.astype(np.int32), weights
'''


@pytest.mark.parametrize("name", ["moe/near-ties-bf16", "moe/near-ties-bf16-groups"])
def test_a_router_whose_near_ties_flip(name: str, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(ROUTER)
    kernel = f"'{sys.executable}' '{tmp_path}/kernel.py' {{request}} {{candidate}}"
    sets = ["--set", "gradients=none", "--set", "load_balance_loss_weight=0", "--set", "n_routing_groups=-1", "--set", "topk_routing_group=-1", "--set", "sequence=200"]
    found = {}
    for replay in ([], ["--replay", "A"]):
        made = between(name, kernel + " on", kernel + " off", "--precision", "bf16_router", *sets, *replay, answer=tmp_path / "answer.json")
        assert made.returncode == 0 and "ROUNDING  " in made.stdout, made.stdout + made.stderr
        found[bool(replay)] = json.loads((tmp_path / "answer.json").read_text())
    assert found[False]["choices"]["differ"] > 0 and 0 < found[False]["choices"]["margin"] < 0.02
    assert found[True]["choices"] == {**found[False]["choices"], "differ": 0, "margin": 0}
    assert found[True]["verdict"] == "ROUNDING" and found[True]["a"] == found[True]["b"] == "PASS"


def test_copies_of_other_choices_are_not_held_against_each_other(tmp_path: Path) -> None:
    (tmp_path / "off.py").write_text(f"""
import shutil, subprocess, sys
import h5py, numpy as np
other = sys.argv[2] + ".request.h5"
shutil.copy(sys.argv[1], other)
with h5py.File(other, "r+") as f:
    gate = f["weights/gate/kernel"][()].astype(np.float64)
    f["weights/gate/kernel"][...] = gate * (1 + 2.0**-8 * np.where(np.arange(gate.size).reshape(gate.shape) % 3, 1, -1))
sys.exit(subprocess.run([sys.executable, "{ROOT}/harness/backends/numpy/backend.py", other, sys.argv[2], "--precision", "bf16"]).returncode)
""")
    off = f"'{sys.executable}' '{tmp_path}/off.py' {{request}} {{candidate}}"
    made = between("moe/near-ties-bf16", BACKEND, off, "--precision", "bf16_router", "-v")
    assert made.returncode == 0 and "choices: 1 of 64 tokens" in made.stdout and "checkpoints/moe_mlpwo" not in made.stdout, made.stdout + made.stderr


STACK = """
case: own/stack
op: program
sizes: {T: 24, D: 32, F: 48, V: 50}
inputs: {x: [T, D]}
weights: {w: [D, F], o: [F, D], u: [D, F], p: [F, D], head: [D, V]}
steps:
  h: silu(product("TD,DF->TF", x, w))
  r: add(x, product("TF,FD->TD", h, o))
  g: silu(product("TD,DF->TF", r, u))
  s: add(r, product("TF,FD->TD", g, p))
outputs:
  logits: product("TD,DV->TV", s, head)
gradients: none
checkpoints: all
"""


def stack(case: assay.Case, stored: Any, gate: float = 1.0) -> dict[str, Any]:
    """Two layers and an output head; what lies between kernels is `stored`."""
    given = {path.split("/")[1]: assay.to_float32(value) for path, value in case.inputs(np).items()}

    def times(a: Any, b: str) -> Any:
        return a @ given[b]

    def silu(a: Any) -> Any:
        return a / (1 + np.exp(-a))

    h = stored(silu(times(given["x"], "w")))
    r = stored(given["x"] + times(h, "o"))
    g = stored(gate * silu(times(r, "u")))
    s = stored(r + times(g, "p"))
    return {"checkpoints/h": h, "checkpoints/r": r, "checkpoints/g": g, "checkpoints/s": s, "outputs/logits": bf16(times(s, "head"))}


def test_a_stack_with_an_output_head() -> None:
    case = assay.case(STACK, precision="bf16")
    found = assay.between(case, stack(case, bf16), stack(case, np.float32))
    assert found["verdict"] == "ROUNDING" and found["next_token"]["tokens"] == 24 and found["next_token"]["kl_largest"] < 1e-3, found
    assert found["next_token"]["other"] <= found["next_token"]["near_ties"] < 12
    wrong = assay.between(case, stack(case, bf16), stack(case, np.float32, 1.1))
    assert wrong["verdict"] == "BEYOND ROUNDING" and wrong["message"].startswith("checkpoints/g"), wrong["message"]
    assert wrong["next_token"]["kl_mean"] > 10 * found["next_token"]["kl_mean"]
    same = assay.case(STACK.replace("head: [D, V]", "head: {axes: [D, V], distribution: constant, mean: 0.125}"), precision="bf16")
    assert assay.between(same, stack(same, bf16), stack(same, np.float32))["next_token"]["near_ties"] == 24
