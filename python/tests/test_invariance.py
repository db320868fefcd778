"""Rows in other company: planted faults are found, by the command and in Python; kernels that have none are not called so."""
from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.__main__ import program

ROOT = Path(__file__).parents[2]
NUMPY = f"'{sys.executable}' '{ROOT}/harness/backends/numpy/backend.py'"

# An mlp with silu that adds up x @ w in an order of its own; y in float32.
KERNEL = '''
import itertools, os
import numpy as np

calls = itertools.count(int.from_bytes(os.urandom(3), "little"))

def ordered(x, w, orders):
    y = np.zeros(x.shape[:-1] + w.shape[1:], np.float32)
    for index in np.ndindex(*x.shape[:-1]):
        for k in orders[index[-1] % len(orders)]:
            y[index] += x[index][k] * w[k]
    return y

def parts(width, count):
    return [np.arange(start, width, count) for start in range(count)]

def product(fault, x, w):
    rows, width = x.shape[1], x.shape[-1]
    plain, back = np.arange(width), np.arange(width)[::-1]
    orders = [plain]
    if fault == "batch":                      # another order for many rows
        orders = [back] if rows > 32 else orders
    if fault == "split":                      # split-K by size: partial sums, added up
        count = 4 if rows >= 64 else 1
        return sum((ordered(x, w, [part]) for part in parts(width, count)), np.float32(0))
    if fault == "thread":
        orders = [back] if os.environ.get("OMP_NUM_THREADS") else orders
    if fault == "address":
        orders = [np.roll(plain, x.__array_interface__["data"][0] // 4096 % width)]
    if fault == "atomics":
        orders = [np.random.default_rng(next(calls)).permutation(width)]
    if fault == "position":                   # rows of a tile come from both ends
        orders = [plain, back]
    y = ordered(x, w, orders)
    if fault == "scale":                      # a scale that all rows share
        largest = np.abs(x).max()
        y = ordered(x / largest, w, orders) * largest
    return y

def mlp(fault, given):
    x, wi_0, wi_1, wo = (given[path] for path in ("inputs/x", "weights/wi_0/kernel", "weights/wi_1/kernel", "weights/wo/kernel"))
    a, b = product(fault, x, wi_0), product(fault, x, wi_1)
    with np.errstate(all="ignore"):
        return product(fault, a / (1 + np.exp(-a)) * b, wo)
'''
BACKEND = '''
import sys, h5py
from kernel import mlp

with h5py.File(sys.argv[1]) as request:
    given = {path: request[path][()].astype("float32") for path in ("inputs/x", "weights/wi_0/kernel", "weights/wi_1/kernel", "weights/wo/kernel")}
with h5py.File(sys.argv[2], "w") as candidate:
    candidate["outputs/y"] = mlp(sys.argv[3], given)
'''
scope: dict[str, Any] = {}
exec(KERNEL, scope)  # noqa: S102: the text above
SIZES = {"base_emb_dim": 12, "base_mlp_dim": 16, "batch": 1, "sequence": 6}
FAULTS = {"batch": "batch", "split": "batch", "atomics": "repeat", "position": "order", "scale": "batch", "address": "repeat", "thread": "repeat"}


def float32(given: dict[str, Any]) -> dict[str, Any]:
    return {path: assay.to_float32(value) if value.dtype == np.uint16 else value for path, value in given.items()}


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program(), "check", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("fault", ["none", "batch", "address", "thread"])
def test_the_command_finds_planted_faults(fault: str, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "backend.py").write_text(BACKEND)
    sets = itertools.chain(*(("--set", f"{key}={value}") for key, value in {**SIZES, "gradients": "none"}.items()))
    backend = f"'{sys.executable}' '{tmp_path}/backend.py' {{request}} {{candidate}} {fault}"
    made = check("mlp/silu", *sets, "--equivalence", "repeat,batch,order,pad,chunk", "--precision", "f32", "--backend", backend)
    assert made.returncode == (0 if fault == "none" else 1), made.stdout + made.stderr
    if fault == "batch":  # 33 rows are the first
        assert "outputs/y" in made.stdout and "among 32 others, and do not among 31" in made.stdout and "within rounding" in made.stdout, made.stdout
    if fault == "address":
        assert "outputs/y" in made.stdout and "bits" in made.stdout, made.stdout
    elif fault != "none":
        assert any(line.startswith("FAIL") and FAULTS[fault] in line for line in made.stdout.splitlines()), made.stdout


@pytest.mark.parametrize("fault", ["none", *(fault for fault in FAULTS if fault not in ("address", "thread"))])
def test_python_finds_planted_faults(fault: str) -> None:
    case = assay.case("mlp/silu", precision="f32", gradients="none", **SIZES)

    def kernel(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        return {"outputs/y": scope["mlp"](fault, float32(given))}

    if fault == "none":
        case.check_invariance(kernel)
        return
    with pytest.raises(assay.NotInvariant) as raised:
        case.check_invariance(kernel)
    first = {found.check: found for found in raised.value.differences}
    assert FAULTS[fault] in first and first[FAULTS[fault]].path == "outputs/y"
    assert first[FAULTS[fault]].grade == "within rounding" and 0 < first[FAULTS[fault]].last_places < 1e4
    if fault == "batch":
        assert first["batch"].what == "among 32 others, and not among 31"


def test_a_traced_function_with_no_catalogue() -> None:
    torch = pytest.importorskip("torch")

    def reference(x: Any, w: Any) -> Any:
        return torch.nn.functional.silu(x @ w)

    case = assay.case(assay.trace(reference, {"x": torch.ones(5, 24), "w": torch.ones(24, 8)}, weights=["w"]).yaml, precision="f32", gradients="none")

    def kernel(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        x, w = float32(given)["inputs/x"], float32(given)["weights/w"]
        y = np.stack([(row * w.T).sum(1) for row in x])
        return {next(iter(case.expected)): y / (1 + np.exp(-y))}

    case.check_invariance(kernel)

    def wrong(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        (path, y), = kernel(given, config).items()
        return {path: y * (1 + 2e-7 * (len(y) > 5))}

    for rows in (None, "T"):
        with pytest.raises(assay.NotInvariant, match="batch: "):
            case.check_invariance(wrong, rows=rows)


GMM = {"base_emb_dim": 32, "base_moe_mlp_dim": 6, "sequence": 20, "gradients": "none", "num_experts": 4, "num_experts_per_tok": 1, "batch": 1,
       "inputs.group_sizes": "{values: [5, 0, 4, 9]}"}  # fmt: skip


@pytest.mark.parametrize("fault", ["none", "split", "position", "neighbour", "reads on"])
def test_rows_of_experts(fault: str) -> None:
    case = assay.case("gmm/ragged", precision="f32", **GMM)

    def kernel(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        x, w, sizes = float32(given)["inputs/lhs"], float32(given)["weights/rhs"], given["inputs/group_sizes"]
        y, start = np.zeros((len(x), w.shape[2]), np.float32), 0
        for g, size in enumerate(sizes):
            order = np.arange(x.shape[1])
            if fault == "split" and g == 3 and size > 64:
                order = order[::-1]
            if fault == "neighbour" and size > 0 and g > 0 and sizes[g - 1] % 2:
                order = order[::-1]
            for i in range(start, start + size):
                orders = [order, order[::-1]] if fault == "position" else [order]
                y[i] = ordered(x[i], w[g], orders[i % len(orders)])
            start += size
        if fault == "reads on" and start < len(x):
            y[start - 1] += 0 * x[start].sum()
        return {"outputs/y": y}

    def ordered(row: Any, w: Any, order: Any) -> Any:
        y = np.zeros(w.shape[1], np.float32)
        for k in order:
            y += row[k] * w[k]
        return y

    if fault == "none":
        case.check_invariance(kernel)
        return
    with pytest.raises(assay.NotInvariant) as raised:
        case.check_invariance(kernel)
    found = {difference.check: difference for difference in raised.value.differences}
    if fault == "split":
        assert "rows of expert 3 differ when its group has more than 64 rows" in found["batch"].what, found
        assert set(found["batch"].rows) <= set(range(9, 18)) and found["batch"].grade == "within rounding"
    assert {"split": "batch", "position": "order", "neighbour": "batch", "reads on": "pad"}[fault] in found


def test_the_command_takes_caches_and_codes() -> None:
    made = check("gqa_decode/contiguous", "mla_decode/small", "mla_decode/sparse-naive", "mla_decode/drawn", "mlp/nvfp4", "routing/z-loss", "moe/replicas", "--equivalence", "batch,order,pad,chunk")
    assert made.returncode == 0 and "28 equivalences held, 0 failed" in made.stdout, made.stdout + made.stderr
    made = check("mla_decode/sparse-contiguous", "mla_decode/fp8-token", "--equivalence", "batch,order", "-v")
    assert made.returncode == 2 and made.stdout.count("lists and bytes in a cache without pages") == 4, made.stdout + made.stderr


@pytest.mark.parametrize("name", ["gqa_decode/hnd", "mla_decode/splits"])
def test_caches_in_pages_and_splits(name: str) -> None:
    case = assay.case(name, precision="f64", gradients="none")
    free = re.sub(r"\n  \w+: \{distribution: values.*", "", case.yaml).replace("inputs:\npositions", "positions")

    def kernel(given: dict[str, Any], config: dict[str, Any], fault: float = 0.0) -> dict[str, Any]:
        sizes = {key: config[key] for key in ("batch", "num_kv_splits", "pagedattn_num_pages")}
        of = assay.case(free, inputs=given, precision="f64", cache="", gradients="none", **sizes)
        return {path: of.golden(path) * (1 + fault) for path, tensor in of.expected.items() if tensor.required}

    case.check_invariance(kernel, checks=["batch", "order", "chunk"])
    with pytest.raises(assay.NotInvariant, match="batch: outputs/.* among 64 others, and not among 63"):
        case.check_invariance(lambda given, config: kernel(given, config, 1e-3 * (config["batch"] > 64)), checks=["batch"])
    with pytest.raises(assay.NotInvariant, match="split: outputs/.* last places, within rounding, in . splits"):
        case.check_invariance(kernel, checks=["split"])  # the golden's numbers are other sums
    with pytest.raises(assay.NotInvariant, match="split: outputs/.* last places, beyond rounding, in . splits"):
        case.check_invariance(lambda given, config: kernel(given, config, 1e-3 * config["num_kv_splits"]), checks=["split"])


def test_a_mesh() -> None:
    case = assay.case("deepseek_layer/mesh-expert4", precision="f64", gradients="none")

    def kernel(given: dict[str, Any], config: dict[str, Any], fault: float = 0.0) -> dict[str, Any]:
        of = assay.case(case.what, inputs=given, precision="f64", cache="", gradients="none", batch=config["batch"])
        return {path: of.golden(path) * (1 + fault) for path, tensor in of.expected.items() if tensor.required}

    case.check_invariance(kernel)
    with pytest.raises(assay.NotInvariant, match="batch: outputs/y"):
        case.check_invariance(lambda given, config: kernel(given, config, 1e-3 * (config["batch"] > case.config["batch"])), checks=["batch"])


@pytest.mark.parametrize("name, why", [
    ("moe/given-dropping", "drops rows, and which depends on the others"),
    ("moe/recipe-fp8-full", "quant_recipe fp8_full has scales of several rows together"),
    ("batch_split/mla", "rows of one shard"),
    ("permute/stable", "where a row goes depends on the others"),
    ("mla_decode/sparse-contiguous", "lists of keys in a cache without pages count through all sequences"),
])  # fmt: skip
def test_what_depends_on_others_by_definition_is_refused(name: str, why: str) -> None:
    with pytest.raises(assay.BadInput, match=why):
        assay.case(name).check_invariance(lambda given, config: {})


def test_nothing_is_found_in_the_oracle_and_in_numpy() -> None:
    names = ["moe/small", "mlp/silu", "rms_norm/prime-width", "attention/segments", "gqa_decode/contiguous"]
    for more in ([], ["--serve", "--backend", NUMPY, "--precision", "bf16"]):
        made = check(*names, "--equivalence", "batch,order,pad,chunk", *more)
        assert made.returncode == 0 and " 0 failed" in made.stdout and made.stdout.count("PASS") >= 12, made.stdout + made.stderr


def test_what_is_passed_over_has_a_reason() -> None:
    made = check("moe/mesh-ring-expert2", "gmm/ragged", "moe/mixtral-capacity", "program/every-reduction", "attention/window-segments", "--equivalence", "repeat,batch", "-v")
    assert made.returncode == 0 and made.stdout.count("repeat   the same bits\n") == 5 and ": 6 equivalences held, 0 failed, 4 passed over" in made.stdout, made.stdout
    assert "attention/window-segments            batch    the same bits, among up to 257 others" in made.stdout, made.stdout
    for why in ("each shard has rows of its own", "inputs/lhs has another size, and no axis B of rows", "rows are dropped, by what the others are", "steps go over every axis of its inputs"):
        assert f"batch    passed over: {why}\n" in made.stdout, made.stdout


def test_programs_have_rows() -> None:
    made = check("program/*", "--equivalence", "order,pad,chunk")
    assert made.returncode == 0 and " 0 failed" in made.stdout and made.stdout.count("PASS") > 130, made.stdout + made.stderr
    with pytest.raises(assay.BadInput, match="program/every-reduction: steps go over every axis"):
        assay.case("program/every-reduction").check_invariance(lambda given, config: {})


def test_a_program_of_the_catalogue() -> None:
    case = assay.case("program/transformer-layer", precision="f64", gradients="none")  # rows are sequences, and it lists segments

    def kernel(given: dict[str, Any], config: dict[str, Any], fault: float = 0.0) -> dict[str, Any]:
        batch = len(given["inputs/x"])
        of = assay.case(case.what, inputs=given, precision="f64", cache="", gradients="none", **{"sizes.B": batch})
        return {path: of.golden(path) * (1 + fault * (batch > 8)) for path, tensor in of.expected.items() if tensor.required}

    checks = ["repeat", "batch", "order", "chunk"]  # of NaN there is no golden
    case.check_invariance(kernel, checks=checks)
    with pytest.raises(assay.NotInvariant, match="batch: outputs/y.* among 8 others, and not among 7"):
        case.check_invariance(lambda given, config: kernel(given, config, 1e-3), checks=checks)


def test_bad_input_is_one_line() -> None:
    made = check("mlp/silu", "--equivalence", "batch,sideways")
    assert made.returncode == 2 and made.stdout == "" and "a list of repeat, batch, order, pad, chunk" in made.stderr and made.stderr.count("\n") == 1
    made = check("moe/mesh-ring-expert2", "--equivalence", "batch")
    assert made.returncode == 2 and "rows in other company here; -v says why" in made.stderr and made.stderr.count("\n") == 1, made.stderr
    case = assay.case("mlp/silu", precision="f32", gradients="none", **SIZES)
    with pytest.raises(assay.BadInput, match="sideways"):
        case.check_invariance(lambda given, config: {}, checks=["sideways"])
