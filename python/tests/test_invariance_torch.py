"""Rows in other company of PyTorch's kernels, and of a shared object in C: each planted fault is found with its grade and its edge, and kernels that are invariant by
construction are not called so. No golden is evaluated but to say whether rounding explains a difference."""
from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Iterable

import pytest

import assay
from assay.__main__ import program

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
Kernel = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def ordered(x: Any, w: Any, order: Iterable[int]) -> Any:
    """x @ w in float32, one term after the other: no row knows another one."""
    y = torch.zeros(*x.shape[:-1], w.shape[-1])
    for k in order:
        y = y + x[..., k, None] * w[k]
    return y


kept: list[Any] = []  # so that no address comes twice
calls = itertools.count(int.from_bytes(os.urandom(3), "little"))


def product(fault: str, x: Any, w: Any) -> Any:
    """x @ w whose order of terms depends on what the fault says."""
    rows, width = x.shape[-2], x.shape[-1]
    plain, back = list(range(width)), list(range(width))[::-1]
    if fault == "batch" and rows > 32:
        return ordered(x, w, back)
    if fault == "split" and rows >= 64:  # split-K by size: partial sums, added up
        return sum((ordered(x, w, range(start, width, 4)) for start in range(4)), torch.zeros(()))
    if fault == "thread" and torch.get_num_threads() > 1:
        return ordered(x, w, back)
    if fault == "address":
        kept.append(x)
        return ordered(x, w, [(k + x.data_ptr() // 64) % width for k in plain])
    if fault == "atomics":  # index_add_ of the terms as they come
        terms = torch.randperm(width, generator=torch.Generator().manual_seed(next(calls)))
        y, index = torch.zeros(rows, w.shape[-1]), torch.arange(rows).repeat(width)
        return y.index_add_(0, index, torch.cat([x.reshape(rows, width)[:, k, None] * w[k] for k in terms])).reshape(*x.shape[:-1], -1)
    if fault == "position":  # rows of a tile come from both ends
        return torch.where((torch.arange(rows) % 2 == 0)[:, None], ordered(x, w, plain), ordered(x, w, back))
    if fault == "scale":  # that all rows share
        largest = x.abs().max()
        return ordered(x / largest, w, plain) * largest
    return ordered(x, w, plain)


def mlp(fault: str) -> Kernel:
    def kernel(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        x, wi_0, wi_1, wo = (given[path].float() for path in ("inputs/x", "weights/wi_0/kernel", "weights/wi_1/kernel", "weights/wo/kernel"))
        return {"outputs/y": product(fault, torch.nn.functional.silu(product(fault, x, wi_0)) * product(fault, x, wi_1), wo)}

    return kernel


def rms_norm(fault: str) -> Kernel:
    """Rows behind the last whole tile of 8 are added up by another loop."""

    def kernel(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        x, scale = given["inputs/x"].float(), given["weights/scale"].float()
        squares = ordered(x.square(), torch.ones(x.shape[-1], 1), range(x.shape[-1]))
        if fault == "tail":
            tail = torch.arange(x.shape[1]) >= x.shape[1] // 8 * 8
            squares = torch.where(tail[:, None], ordered(x.square(), torch.ones(x.shape[-1], 1), reversed(range(x.shape[-1]))), squares)
        return {"outputs/y": x * (squares / x.shape[-1] + config["normalization_layer_epsilon"]).rsqrt() * scale}

    return kernel


def decode(fault: str) -> Kernel:
    """One query over a cache. A heuristic splits the keys where there are few sequences."""

    def kernel(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        query, keys, values = (given[f"inputs/{name}"].float() for name in ("query", "key_cache", "value_cache"))
        out, lse = torch.zeros(*query.shape), torch.zeros(query.shape[0], query.shape[2], 1)
        splits = 2 if fault == "heuristic" and len(query) <= 16 else 1
        shared = query.shape[2] // keys.shape[2]
        for b, h in itertools.product(range(len(query)), range(query.shape[2])):
            parts = []
            for part in torch.arange(int(given["inputs/cache_seqlens"][b])).chunk(splits):
                scores = (keys[b, part, h // shared] * query[b, 0, h]).sum(-1) * query.shape[-1] ** -0.5
                parts.append((torch.logsumexp(scores, 0), torch.softmax(scores, 0) @ values[b, part, h // shared]))
            lse[b, h, 0] = torch.logsumexp(torch.stack([one for one, _ in parts]), 0) if len(parts) > 1 else parts[0][0]
            out[b, 0, h] = sum(torch.exp(one - lse[b, h, 0]) * part for one, part in parts) if len(parts) > 1 else parts[0][1]
        return {"outputs/attention_out": out, "outputs/lse": lse}

    return kernel


def gmm(fault: str) -> Kernel:
    def kernel(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        x, w = given["inputs/lhs"].float(), given["weights/rhs"].float()
        y, start = torch.zeros(len(x), w.shape[2]), 0
        for g, size in enumerate(given["inputs/group_sizes"].tolist()):
            split = "split" if fault == "split" and size > 64 else "none"
            y[start : start + size] = product(split, x[start : start + size], w[g])
            start += size
        return {"outputs/y": y}

    return kernel


MLP = ("mlp/silu", {"base_emb_dim": 12, "base_mlp_dim": 16, "batch": 1, "sequence": 6})
NORM = ("rms_norm/deepseek", {"base_emb_dim": 48, "batch": 1, "sequence": 13})
DECODE = ("gqa_decode/contiguous", {})
GMM = ("gmm/ragged", {"base_emb_dim": 32, "base_moe_mlp_dim": 6, "sequence": 20, "num_experts": 4, "num_experts_per_tok": 1, "batch": 1, "inputs.group_sizes": "{values: [5, 0, 4, 9]}"})

# kernel, fault, case: the check that finds it, and what it says
FAULTS = [
    (mlp, "batch", MLP, "batch", "among 32 others, and not among 31"),
    (mlp, "split", MLP, "batch", "among 63 others, and not among 62"),
    (mlp, "thread", MLP, "repeat", "again, on other addresses and threads"),
    (mlp, "address", MLP, "repeat", "again, on other addresses and threads"),
    (mlp, "atomics", MLP, "repeat", "again, on other addresses and threads"),
    (mlp, "position", MLP, "order", "in reverse order"),
    (mlp, "scale", MLP, "batch", "others, and not among"),
    (rms_norm, "tail", NORM, "order", "in reverse order"),
    (decode, "heuristic", DECODE, "batch", "among 16 others, and not among 15"),
    (gmm, "split", GMM, "batch", "rows of expert 3 differ when its group has more than 64 rows"),
]  # fmt: skip


def case_of(named: tuple[str, dict[str, Any]]) -> assay.Case:
    return assay.case(named[0], precision="f32", gradients="none", **named[1])


@pytest.mark.parametrize("kernel, fault, named, check, what", FAULTS, ids=[f"{kernel.__name__}-{fault}" for kernel, fault, *_ in FAULTS])
def test_each_fault_is_found(kernel: Callable[[str], Kernel], fault: str, named: tuple[str, dict[str, Any]], check: str, what: str) -> None:
    with pytest.raises(assay.NotInvariant) as raised:
        case_of(named).check_invariance(kernel(fault), module=torch)
    found = {difference.check: difference for difference in raised.value.differences}
    assert check in found and what in found[check].what, raised.value
    assert found[check].path.startswith("outputs/") and found[check].grade == "within rounding" and 0 < found[check].last_places < 1e4, raised.value


@pytest.mark.parametrize("kernel, named", [(mlp, MLP), (rms_norm, NORM), (decode, DECODE), (gmm, GMM)], ids=["mlp", "rms_norm", "decode", "gmm"])
def test_invariant_kernels_are_not_called_otherwise(kernel: Callable[[str], Kernel], named: tuple[str, dict[str, Any]]) -> None:
    case_of(named).check_invariance(kernel("none"), module=torch)


def test_what_rounding_does_not_explain_is_said_so() -> None:
    def kernel(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        y = mlp("none")(given, config)["outputs/y"]
        return {"outputs/y": torch.where(torch.arange(y.shape[-2])[:, None] < 32, y, 1.01 * y)}

    with pytest.raises(assay.NotInvariant, match="beyond rounding"):
        case_of(MLP).check_invariance(kernel, module=torch, checks=["batch"])


# A shell in C: rms_norm of float32, whose sum has an order of its own.
SHELL = r"""
#include <assay/backend.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const assay_backend_tensor *find(const assay_backend_request *r, const char *path)
{
    for (int i = 0; i < r->tensor_count; i++)
        if (strcmp(r->tensors[i].path, path) == 0) return &r->tensors[i];
    return NULL;
}

int assay_backend_run(const assay_backend_request *r)
{
    const assay_backend_tensor *x = find(r, "inputs/x"), *scale = find(r, "weights/scale");
    const char *fault = getenv("FAULT");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    float epsilon = 0;
    for (int i = 0; i < r->setting_count; i++)
        if (strcmp(r->settings[i].key, "normalization_layer_epsilon") == 0) epsilon = (float)atof(r->settings[i].value);
    const long rows = x->dims[0] * x->dims[1], n = x->dims[2];
    for (long row = 0; row < rows; row++) {
        const float *from = (const float *)x->data + row * n, *w = scale->data;
        float sum = 0, parts[4] = {0};
        long first = 0;
        const int back = (strcmp(fault, "batch") == 0 && rows > 32) || (strcmp(fault, "thread") == 0 && getenv("OMP_NUM_THREADS") != NULL) ||
                         (strcmp(fault, "position") == 0 && row % 2 == 1);
        if (strcmp(fault, "atomics") == 0) first = now.tv_nsec / 64 % n;
        for (long i = 0; i < n; i++) {
            const long k = back ? n - 1 - i : (i + first) % n;
            *(strcmp(fault, "split") == 0 && rows >= 64 ? &parts[k % 4] : &sum) += from[k] * from[k];
        }
        sum += parts[0] + parts[1] + parts[2] + parts[3];
        if (strcmp(fault, "beyond") == 0 && row + 1 < rows) sum += 0 * from[n];
        for (long i = 0; i < n; i++) ((float *)r->results[0].data)[row * n + i] = from[i] / sqrtf(sum / (float)n + epsilon) * w[i];
    }
    r->results[0].type = ASSAY_BACKEND_FLOAT32;
    r->results[0].written = 1;
    return ASSAY_BACKEND_DONE;
}
"""
SHELL_FAULTS = {"batch": ("batch", "among 32 others, and do not among 31"), "split": ("batch", "among 63 others, and do not among 62"), "thread": ("repeat", "again"),
                "atomics": ("repeat", "two runs gave different bits in outputs/y"), "position": ("order", "in reverse order"), "beyond": ("pad", "beside 7 rows of padding")}  # fmt: skip


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("shell")
    (folder / "shell.c").write_text(SHELL)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-I{ROOT}/include", folder / "shell.c", "-o", folder / "shell.so", "-lm"], check=True)
    return folder / "shell.so"


@pytest.mark.parametrize("fault", ["none", *SHELL_FAULTS])
def test_a_shared_object(fault: str, shell: Path) -> None:
    sets = itertools.chain(*(("--set", one) for one in ("dtype=float32", "gradients=none", "base_emb_dim=1000", "batch=1", "sequence=12")))
    made = subprocess.run([program(), "check", "rms_norm/deepseek", *sets, "--equivalence", "repeat,batch,order,pad,chunk", "--precision", "f32", "--backend", shell],
                          env={**os.environ, "FAULT": fault}, capture_output=True, text=True)  # fmt: skip
    if fault == "none":
        assert made.returncode == 0 and "5 equivalences held, 0 failed" in made.stdout, made.stdout + made.stderr
        return
    check, what = SHELL_FAULTS[fault]
    lines = [line for line in made.stdout.splitlines() if line.startswith("FAIL") and what in line]
    assert made.returncode == 1 and lines, made.stdout + made.stderr
    if fault != "atomics":  # whose runs all differ: nothing else is asked
        assert f" {check} " in lines[0] and "outputs/y: " in lines[0], lines
        assert ("beyond rounding" if fault == "beyond" else "within rounding") in lines[0], lines
