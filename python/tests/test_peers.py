"""Kernels in the forms of others, judged where those have a tolerance. $ASSAY_PEERS is a folder with checkouts of theirs: reference-kernels, BackendBench, flashinfer-bench."""
import importlib
import json
import os
import sys
import types
from pathlib import Path

import assay
import pytest

torch = pytest.importorskip("torch")
PEERS = Path(os.environ.get("ASSAY_PEERS", "/nowhere"))


@pytest.fixture
def peer(monkeypatch):
    """Makes folders of a checkout importable for a test."""
    before = set(sys.modules)

    def folder(*paths):
        for path in paths:
            if not (PEERS / path).is_dir():
                pytest.skip(f"$ASSAY_PEERS has no {path}")
            monkeypatch.syspath_prepend(str(PEERS / path))
        return PEERS / paths[0]

    yield folder
    for name in set(sys.modules) - before:
        if str(PEERS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def half_products():
    """PyTorch 1.13 has none on a processor."""
    try:
        torch.ones(2, 2).half() @ torch.ones(2, 2).half()
    except RuntimeError as why:
        pytest.skip(str(why))


# GPU MODE


def ref_kernel(data):
    x, scale, output = data
    output[...] = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale
    return output


def test_gpumode():
    check = assay.gpumode.make_match(ref_kernel)
    data = (torch.randn(7, 32).bfloat16(), torch.rand(32).bfloat16(), torch.empty(7, 32).bfloat16())
    right = ref_kernel(tuple(x.float() for x in data)).bfloat16()
    assert check(data, right) == (True, "")
    wrong = right.clone()
    wrong[-1] = 0
    good, why = check(data, wrong)
    assert not good and "outputs/" in why
    good, why = check(data, right[:3])
    assert not good and "shape" in why
    good, why = assay.gpumode.make_match(lambda data: torch.linalg.eigvalsh(data))(torch.eye(3), torch.ones(3))
    assert not good and why.startswith("not judged: ")


@pytest.mark.parametrize("task", ["grayscale_py", "matmul_py", "vectoradd_py"])
def test_gpumode_s_own_tasks(task, peer, monkeypatch):
    peer(f"reference-kernels/problems/pmpp_v2/{task}", "reference-kernels/problems/pmpp_v2")
    reference, submission = importlib.import_module("reference"), importlib.import_module("submission")
    make = {"grayscale_py": [torch.rand(16, 16, 3), torch.empty(16, 16)], "matmul_py": [torch.rand(9, 24).half(), torch.rand(24, 5).half(), torch.empty(9, 5).half()],
            "vectoradd_py": [torch.randn(8, 8).half(), torch.randn(8, 8).half(), torch.empty(8, 8).half()]}  # fmt: skip
    check = assay.gpumode.make_match(reference.ref_kernel)
    if task == "matmul_py":
        half_products()
    output = submission.custom_kernel(tuple(x.clone() for x in make[task]))
    assert check(tuple(make[task]), output) == (True, "")
    assert not check(tuple(make[task]), output * 1.01)[0]


# BackendBench


def test_backendbench_verdict():
    x, w = torch.randn(6, 40).bfloat16(), torch.randn(40, 12).bfloat16()
    for op, args, keywords in ((torch.ops.aten.mm.default, (x, w), {}), (torch.ops.aten.softmax.int, (x, -1), {}), (torch.ops.aten.sum.dim_IntList, (x, [-1], True), {}),
                               (torch.ops.aten.gelu.default, (x,), {"approximate": "tanh"})):  # fmt: skip
        right = op(*(a.float() if isinstance(a, torch.Tensor) else a for a in args), **keywords).bfloat16()
        assert assay.backendbench.verdict(op, args, keywords, right)
        assert not assay.backendbench.verdict(op, args, keywords, right * 1.05)
        assert not assay.backendbench.verdict(op, args, keywords, torch.zeros_like(right))


def test_backendbench_s_own_evaluation(peer):
    peer("BackendBench")
    module = pytest.importorskip("BackendBench.eval")
    test = lambda *args: types.SimpleNamespace(args=args, kwargs={})  # noqa: E731
    x = torch.rand(5, 100) * 1e-2
    op = torch.ops.aten.softmax.int
    tests = [test(x, -1), test(x[:2], 0)]
    zeros = lambda x, dim: torch.zeros_like(x)  # noqa: E731
    assert module.eval_correctness(op, zeros, tests[:1])[0] == 1  # that is what their tolerance says
    with assay.backendbench.judging(module) as kept:
        assert module.eval_correctness(op, zeros, tests)[0] == 0
        assert module.eval_correctness(op, op, tests)[0] == 1 and not kept
        assert module.eval_correctness(torch.ops.aten.linalg_det.default, torch.linalg.det, [test(torch.eye(3))])[0] == 1
        assert "linalg_det" in str(kept)
    assert module.eval_correctness(op, zeros, tests[:1])[0] == 1


# flashinfer-trace

ATTENTION = {
    "name": "paged", "op_type": "gqa_paged",
    "axes": {"batch": {"type": "var"}, "offsets": {"type": "var"}, "pages": {"type": "var"}, "heads": {"type": "const", "value": 2}, "dim": {"type": "const", "value": 16}},
    "inputs": {"q": {"shape": ["batch", "heads", "dim"], "dtype": "bfloat16"}, "kv": {"shape": ["pages", "dim"], "dtype": "bfloat16"}, "indptr": {"shape": ["offsets"], "dtype": "int32"},
               "scale": {"shape": None, "dtype": "float32"}},
    "outputs": {"output": {"shape": ["batch", "heads", "dim"], "dtype": "bfloat16"}, "lse": {"shape": ["batch", "heads"], "dtype": "float32"}},
    "reference": """
import math, torch
@torch.no_grad()
def run(q, kv, indptr, scale):
    output, lse = torch.zeros(q.shape, dtype=torch.bfloat16), torch.full(q.shape[:2], -float("inf"))
    for b in range(q.shape[0]):
        first, end = int(indptr[b].item()), int(indptr[b + 1].item())
        if first < end:
            k = kv[first:end].float()
            s = q[b].float() @ k.T * scale
            lse[b] = torch.logsumexp(s, -1) / math.log(2.0)
            output[b] = (torch.softmax(s, -1) @ k).bfloat16()
    return output, lse
"""}  # fmt: skip
INTO = "def run(q, kv, indptr, scale, output, lse):\n    a, b = value(q, kv, indptr, scale)\n    output.copy_(a)\n    lse.copy_(b)\n"


def offsets(path, numbers):
    header = json.dumps({"indptr": {"dtype": "I32", "shape": [len(numbers)], "data_offsets": [0, 4 * len(numbers)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(n.to_bytes(4, "little") for n in numbers))
    return {"definition": "paged", "workload": {"uuid": "1", "axes": {"batch": len(numbers) - 1, "offsets": len(numbers), "pages": numbers[-1]}, "inputs": {
        "q": {"type": "random"}, "kv": {"type": "random"}, "indptr": {"type": "safetensors", "path": path.name, "tensor_key": "indptr"}, "scale": {"type": "scalar", "value": 0.25}}}}


def solution(text, passes=False, **spec):
    return {"name": "mine", "definition": "paged", "author": "a", "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run", "destination_passing_style": passes, **spec},
            "sources": [{"path": "main.py", "content": text}]}  # fmt: skip


RIGHT = ATTENTION["reference"]
SOLUTIONS = {
    "right": (RIGHT, False, "PASSED"),
    "right, into buffers": (RIGHT.replace("def run", "def value") + INTO, True, "PASSED"),
    "natural logarithm": (RIGHT.replace(" / math.log(2.0)", ""), False, "INCORRECT_NUMERICAL"),
    "last key left out": (RIGHT.replace("kv[first:end]", "kv[first:max(first + 1, end - 1)]"), False, "INCORRECT_NUMERICAL"),
    "an empty row is 0": (RIGHT.replace('-float("inf")', "0.0"), False, "INCORRECT_NUMERICAL"),
    "a row too many": (RIGHT.replace("return output, lse", "return output, lse[:1]"), False, "INCORRECT_SHAPE"),
    "float64": (RIGHT.replace("return output, lse", "return output, lse.double()"), False, "INCORRECT_DTYPE"),
    "one result": (RIGHT.replace("return output, lse", "return output"), False, "RUNTIME_ERROR"),
    "raises": (RIGHT.replace("return output, lse", "raise ValueError('no')"), False, "RUNTIME_ERROR"),
    "is no Python": ("def run(:", False, "COMPILE_ERROR"),
    "writes into its input": (RIGHT.replace("return output, lse", "kv.zero_()\n    return output, lse"), False, "RUNTIME_ERROR"),
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_flashinfer(name, tmp_path):
    text, passes, status = SOLUTIONS[name]
    trace = assay.flashinfer.evaluate(ATTENTION, offsets(tmp_path / "own.safetensors", [0, 4, 4, 11]), solution(text, passes), root=tmp_path)
    assert trace["evaluation"]["status"] == status, trace["evaluation"]["log"]
    assert (trace["evaluation"]["performance"] is not None) == (status == "PASSED")
    assert (trace["evaluation"]["correctness"] is not None) == (status in ("PASSED", "INCORRECT_NUMERICAL"))
    assert trace["definition"] == "paged" and trace["workload"]["uuid"] == "1" and trace["solution"] == "mine"


def test_flashinfer_refuses(tmp_path):
    workload = offsets(tmp_path / "own.safetensors", [0, 3])
    for definition, own, line in (
        ({**ATTENTION, "outputs": {"y": {"shape": [], "dtype": "int64"}}}, solution(""), "its result y is of int64"),
        (ATTENTION, solution("", language="cuda"), "a solution in cuda, expected python or triton"),
        ({**ATTENTION, "reference": RIGHT.replace("torch.softmax(s, -1)", "torch.bernoulli(s.sigmoid())")}, solution(RIGHT), "bernoulli"),
    ):
        with pytest.raises(assay.BadInput, match=line):
            assay.flashinfer.evaluate(definition, workload, own, root=tmp_path)
    with pytest.raises(assay.BadInput, match="own.safetensors: indptr: FileNotFoundError"):
        assay.flashinfer.evaluate(ATTENTION, workload, solution(RIGHT), root=tmp_path / "elsewhere")


def test_flashinfer_s_own_example_and_schema(peer):
    half_products()
    root = peer("flashinfer-bench") / "examples/ffi/Example-FlashInfer-Trace"
    definition = json.loads((root / "definitions/gemm_n4096_k4096.json").read_text())
    workload = json.loads((root / "workloads/gemm_n4096_k4096.jsonl").read_text().splitlines()[-1])
    workload["workload"]["axes"]["M"] = 2
    for text, status in (("def run(A, B):\n    return (A.float() @ B.float().T).half()", "PASSED"), ("def run(A, B):\n    return (A.float() @ B.float().T).half() * 1.02", "INCORRECT_NUMERICAL")):
        trace = assay.flashinfer.evaluate(definition, workload, solution(text))
        assert trace["evaluation"]["status"] == status, trace["evaluation"]["log"]
        pytest.importorskip("pydantic")
        pytest.importorskip("safetensors")
        package = types.ModuleType("flashinfer_bench")  # without what it has for GPUs
        package.__path__ = [str(PEERS / "flashinfer-bench/flashinfer_bench")]
        sys.modules["flashinfer_bench"] = package
        theirs = importlib.import_module("flashinfer_bench.data.trace").Trace.model_validate(trace)
        assert theirs.evaluation.status.value == status
