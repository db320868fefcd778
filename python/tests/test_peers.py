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


def test_backendbench_operators_that_begin_with_a_line_and_that_write():
    x = torch.randn(2, 1000) * 1e-3
    for wrong, good in ((0.0, True), (1.0, False)):
        right = torch.softmax(x.double(), -1).float()
        assert assay.backendbench.verdict(torch.ops.aten._softmax.default, (x, -1, False), {}, right * (1 - wrong) + wrong / 1000) == good
    with pytest.raises(assay.BadInput, match="writes into its arguments"):
        assay.backendbench.verdict(torch.ops.aten.add_.Tensor, (x, x), {}, x)


def test_backendbench_s_own_evaluation(peer, monkeypatch):
    package = types.ModuleType("BackendBench")  # without what asks models
    package.__path__ = [str(peer("BackendBench") / "BackendBench")]
    monkeypatch.setitem(sys.modules, "BackendBench", package)
    module = pytest.importorskip("BackendBench.eval")
    test = lambda *args: types.SimpleNamespace(args=args, kwargs={})  # noqa: E731
    x = torch.rand(5, 200) * 1e-2
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
        ({**ATTENTION, "outputs": {"ids": {"shape": [], "dtype": "int64"}}, "reference": "def run(q, kv, indptr, scale):\n    return q.argmax(-1)"}, solution("def run(*given):\n    return given[0].argmax(-1)"),
         "its result|choice"),
        (ATTENTION, solution("", language="cuda"), "a solution in cuda, expected python or triton"),
        ({**ATTENTION, "reference": RIGHT.replace("torch.softmax(s, -1)", "torch.bernoulli(s.sigmoid())")}, solution(RIGHT), "bernoulli"),
    ):
        with pytest.raises(assay.BadInput, match=line):
            assay.flashinfer.evaluate(definition, workload, own, root=tmp_path)
    with pytest.raises(assay.BadInput, match="own.safetensors: indptr: FileNotFoundError"):
        assay.flashinfer.evaluate(ATTENTION, workload, solution(RIGHT), root=tmp_path / "elsewhere")


# Of each family one reference of a few lines, with the names and layouts of its definitions: floats, whole numbers, and a wrong form.
PAGES = {"kv_indptr": [0, 2, 2, 5], "kv_indices": [4, 1, 0, 6, 2], "kv_last_page_len": [3, 1, 2]}
SEEN = """
import math, torch
def attend(q, k, v, scale):
    s = torch.einsum("hd,thd->ht", q.float(), k.float()) * scale
    return torch.einsum("ht,thd->hd", s.softmax(-1), v.float()).bfloat16(), s.logsumexp(-1) / math.log(2.0)
def keys_of(cache, kv_indptr, kv_indices, kv_last_page_len, i):
    pages = kv_indices[kv_indptr[i]:kv_indptr[i + 1]].long()
    return cache[pages].flatten(0, 1)[: (len(pages) - 1) * cache.shape[1] + int(kv_last_page_len[i])] if len(pages) else cache[:0].flatten(0, 1)
def rows(several):
    out = [x if x is not None else (torch.zeros(WIDE).bfloat16(), torch.full(WIDE[:1], -math.inf)) for x in several]
    return torch.stack([x for x, _ in out]), torch.stack([x for _, x in out])
"""
FAMILIES = {
    "gqa_paged": ("gqa_decode", {"q": [7, 4, 8], "k_cache": [7, 4, 2, 8], "v_cache": [7, 4, 2, 8]}, {**PAGES, "qo_indptr": [0, 3, 4, 7]}, SEEN.replace("WIDE", "(4, 8)") + """
def run(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, qo_indptr, sm_scale):
    several = []
    for i in range(3):
        k, v = (keys_of(x, kv_indptr, kv_indices, kv_last_page_len, i).repeat_interleave(2, 1) for x in (k_cache, v_cache))
        new = int(qo_indptr[i + 1] - qo_indptr[i])
        for j in range(new):
            n = len(k) - new + 1 + j
            several.append(attend(q[int(qo_indptr[i]) + j], k[:n], v[:n], sm_scale) if n > 0 else None)
    return rows(several)
""", ("+ 1 + j", "+ j")),
    "gqa_ragged": ("gqa_decode", {"q": [5, 4, 8], "k": [6, 2, 8], "v": [6, 2, 8]}, {"qo_indptr": [0, 3, 5], "kv_indptr": [0, 2, 6]}, SEEN.replace("WIDE", "(4, 8)") + """
def run(q, k, v, qo_indptr, kv_indptr, sm_scale):
    several = []
    for first, end, start, last in zip(qo_indptr[:-1].tolist(), qo_indptr[1:].tolist(), kv_indptr[:-1].tolist(), kv_indptr[1:].tolist()):
        for t in range(first, end):
            n = last - (end - t) + 1
            several.append(attend(q[t], *(x[start:n].repeat_interleave(2, 1) for x in (k, v)), sm_scale) if n > start else None)
    return rows(several)
""", ("math.log(2.0)", "1.0")),
    "mla_paged": ("mla_decode", {"q_nope": [3, 4, 16], "q_pe": [3, 4, 4], "ckv_cache": [7, 4, 16], "kpe_cache": [7, 4, 4]}, PAGES, SEEN.replace("WIDE", "(4, 16)") + """
def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    several = []
    for i in range(3):
        c, p = (keys_of(x, kv_indptr, kv_indices, kv_last_page_len, i)[:, None].expand(-1, 4, -1) for x in (ckv_cache, kpe_cache))
        several.append(attend(torch.cat([q_nope[i], q_pe[i]], -1), torch.cat([c, p], -1), c, sm_scale) if len(c) else None)
    return rows(several)
""", ("int(kv_last_page_len[i])", "1")),
    "dsa_paged": ("mla_decode", {"q_nope": [3, 4, 16], "q_pe": [3, 4, 4], "ckv_cache": [5, 4, 16], "kpe_cache": [5, 4, 4]},
                  {"sparse_indices": [[3, 19, 8, -1], [-1, -1, -1, -1], [0, 2, 7, 11]]}, SEEN.replace("WIDE", "(4, 16)") + """
def run(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale):
    several = []
    for i in range(3):
        at = [j for j in sparse_indices[i].tolist() if j >= 0]
        c, p = (x.flatten(0, 1)[at][:, None].expand(-1, 4, -1) for x in (ckv_cache, kpe_cache))
        several.append(attend(torch.cat([q_nope[i], q_pe[i]], -1), torch.cat([c, p], -1), c, sm_scale) if at else None)
    return rows(several)
""", ("j >= 0", "j > 0")),
    "gdn": ("program", {"q": [7, 2, 8], "k": [7, 2, 8], "v": [7, 4, 8], "state": [3, 4, 8, 8], "A_log": [4], "a": [7, 4], "dt_bias": [4], "b": [7, 4]}, {"cu_seqlens": [0, 2, 2, 7]}, """
import torch
def run(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, sm_scale):
    decay, beta = (-A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias)).exp(), b.float().sigmoid()
    q, k, v = q.float().repeat_interleave(2, 1) * 8 ** -0.5, k.float().repeat_interleave(2, 1), v.float()
    y, last = torch.zeros(7, 4, 8), torch.zeros(3, 4, 8, 8)
    for i in range(3):
        for t in range(int(cu_seqlens[i]), int(cu_seqlens[i + 1])):
            s = (state[i] if t == int(cu_seqlens[i]) else last[i]) * decay[t][:, None, None]
            last[i] = s + torch.einsum("hv,hk->hvk", beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", s, k[t])), k[t])
            y[t] = torch.einsum("hvk,hk->hv", last[i], q[t])
    return y.bfloat16(), last
""", ("beta[t][:, None] *", "")),
    "moe": ("moe", {"hidden_states": [6, 16], "routing_logits": [6, 8], "routing_bias": [8], "gemm1_weights": [4, 24, 16], "gemm2_weights": [4, 16, 12]}, {}, """
import torch
def run(hidden_states, routing_logits, routing_bias, gemm1_weights, gemm2_weights, sm_scale, local_expert_offset=2, routed_scaling_factor=2.5):
    score = routing_logits.float().sigmoid()
    ids = (score + routing_bias.float()).topk(3).indices
    weights = score.gather(1, ids) / score.gather(1, ids).sum(-1, keepdim=True) * 2.5
    y = torch.zeros(6, 16)
    for t in range(6):
        for e, w in zip(ids[t].tolist(), weights[t]):
            if 2 <= e < 6:
                up, gate = (gemm1_weights[e - 2].float() @ hidden_states[t].float()).chunk(2)
                y[t] += w * (gemm2_weights[e - 2].float() @ (torch.nn.functional.silu(gate) * up))
    return y.bfloat16()
""", ("silu(gate) * up", "silu(up) * gate")),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_operations(family):
    operation, floats, whole, text, (right, other) = FAMILIES[family]
    torch.manual_seed(1)
    given = {name: torch.randn(shape).to(torch.float32 if name in ("A_log", "dt_bias", "state", "routing_logits") else torch.bfloat16) for name, shape in floats.items()}
    given.update({name: torch.tensor(numbers, dtype=torch.int32) for name, numbers in whole.items()}, sm_scale=0.0 if family == "gdn" else 0.3)
    given.update({"local_expert_offset": 2, "routed_scaling_factor": 2.5} if family == "moe" else {})
    outputs = {"gdn": ["output", "new_state"], "moe": ["output"]}.get(family, ["output", "lse"])
    definition = {"name": "own_topk3", "op_type": family, "outputs": dict.fromkeys(outputs), "reference": text}
    expected = assay.flashinfer.outputs_of(definition, assay.flashinfer.reference_of(definition, text)(**given))
    verdict, log, errors = assay.flashinfer.judged(definition, given, expected, expected, None)
    assert verdict == "PASS" and errors["extra"]["operation"] == operation, log
    assert right in text
    wrong = assay.flashinfer.outputs_of(definition, assay.flashinfer.reference_of(definition, text.replace(right, other))(**given))
    assert assay.flashinfer.judged(definition, given, wrong, expected, None)[0] == "FAIL"


def test_a_reference_that_is_another_function_is_traced():
    torch.manual_seed(1)
    definition = {"name": "own", "op_type": "gqa_ragged", "outputs": {"output": None}, "reference": """
def run(q, k, v, qo_indptr, kv_indptr, sm_scale):
    return ((q.float()[:, None] * k.float()).sum(-1).mul(sm_scale).tanh().softmax(1).unsqueeze(-1) * v.float()).sum(1).bfloat16()
"""}  # fmt: skip
    given = {name: torch.randn(5, 2, 8).bfloat16() for name in "qkv"}
    given.update({name: torch.tensor([0, 5], dtype=torch.int32) for name in ("qo_indptr", "kv_indptr")}, sm_scale=0.3)
    expected = assay.flashinfer.outputs_of(definition, assay.flashinfer.reference_of(definition, definition["reference"])(**given))
    verdict, log, errors = assay.flashinfer.judged(definition, given, expected, expected, None)
    assert verdict == "PASS" and errors["extra"]["operation"] == "program", log


def test_rows_of_pages_that_scores_choose():
    torch.manual_seed(1)
    definition = {"name": "own", "op_type": "nsa_paged", "outputs": {"ids": None, "scores": None}, "reference": """
import torch
def run(q, k, lengths, table):
    ids, scores = torch.full((3, 4), -1, dtype=torch.int32), torch.full((3, 4), -float("inf"))
    for b in range(3):
        n = int(lengths[b])
        if n > 0:
            rows = table[b, :n].long()
            best = (q[b].float() @ k[rows].float().T).mean(0).topk(min(4, n))
            ids[b, : min(4, n)], scores[b, : min(4, n)] = rows[best.indices].int(), best.values
    return ids, scores
"""}
    given = {"q": torch.randn(3, 2, 16).bfloat16(), "k": torch.randn(20, 16).bfloat16(), "lengths": torch.tensor([9, 0, 3]), "table": torch.stack([torch.randperm(20)[:9] for _ in range(3)])}
    expected = assay.flashinfer.outputs_of(definition, assay.flashinfer.reference_of(definition, definition["reference"])(**given))
    assert assay.flashinfer.judged(definition, given, expected, expected, None)[0] == "PASS"
    for name, wrong in (("ids", expected["ids"].flip(1)), ("scores", expected["scores"] * 1.01)):
        assert assay.flashinfer.judged(definition, given, {**expected, name: wrong}, expected, None)[0] == "FAIL"


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
