"""The rules by which other projects' tests accept a result, each as they compute it, and what each says of a candidate.

A rule sees a float tensor as the golden's float64 values and as the candidate's, and says whether it accepts. Before any
rule: a result that is missing or misshapen, integers that differ, and NaN or infinities where the golden has none are
rejected by all of them. bench/power/README.md says where each rule comes from.
"""
from dataclasses import dataclass

import numpy as np

from arithmetic import STORAGE, storage_profile

FRACTION_BITS = {"f32": 23, "bf16": 7, "f16": 10}
LEAST_NORMAL = {"f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-14}
# by family of the operands' formats
FLASHINFER = {"": (0.05, 0.05), "fp8": (0.15, 0.85), "mxfp8": (0.15, 0.85), "mxfp4": (0.05, 0.3), "nvfp4": (0.15, 0.1)}  # share of the largest, rtol
CALC_DIFF = {"mxfp4": 0.01, "nvfp4": 0.02}  # one operand in 4 bits, both
TRITON_LARGEST = {"mxfp4": 3e-2}
MERGE = {"f32": (1e-3, 1e-3), "f16": (1e-2, 1e-3), "bf16": (1e-2, 1e-3)}  # rtol, atol
DECODE = ("mla_decode", "gqa_decode")
ASSERT_CLOSE = {"f32": (1.3e-6, 1e-5), "bf16": (1.6e-2, 1e-5), "f16": (1e-3, 1e-5)}  # rtol, atol


def type_of(profile):
    """In which results are stored."""
    return "bf16" if profile.startswith("fp8") else storage_profile(profile)


@dataclass
class Tensor:
    path: str
    golden: np.ndarray  # float64
    value: np.ndarray  # the candidate's, float64
    plain: np.ndarray  # of the plain implementation in the same precision
    profile: str
    family: str = ""  # of quantised operands
    bound: tuple = None  # of a product: its length, and the sum of absolute terms of each element
    op: str = ""

    def rounded(self, x):
        return STORAGE[type_of(self.profile)](np.asarray(x, np.float32)).astype(np.float64)


def within(tensor, reference, value, rtol, atol):
    return bool((np.abs(value - reference) <= atol + rtol * np.abs(reference)).all())


def maxtext(tensor):
    atol = 8e-2 if tensor.path.startswith("gradients/") else 1e-2
    return within(tensor, tensor.golden, tensor.value, 1e-2, atol)


def assert_close(tensor):
    rtol, atol = ASSERT_CLOSE[type_of(tensor.profile)]
    return within(tensor, tensor.rounded(tensor.golden), tensor.rounded(tensor.value), rtol, atol)


def flash_attention(tensor):
    """Twice the error of a plain implementation, plus twice what adding and taking away 0.3 costs."""
    golden = tensor.rounded(tensor.golden)
    there_and_back = tensor.rounded(tensor.rounded(golden + 0.3) - 0.3)
    largest = lambda x: np.abs(x).max(initial=0)
    slack = 2 * largest(there_and_back - golden)
    return bool(largest(tensor.value - tensor.golden) <= 2 * largest(tensor.plain - tensor.golden) + slack)


def nmse(tensor):
    error, size = ((tensor.value - tensor.golden) ** 2).sum(), (tensor.golden**2).sum()
    return bool(error == 0 or error < 5e-4 * size)


def calc_diff(tensor):
    sizes = (tensor.value**2 + tensor.golden**2).sum()
    return bool(sizes == 0 or 1 - 2 * (tensor.value * tensor.golden).sum() / sizes < CALC_DIFF.get(tensor.family, 1e-3))


def flashinfer(tensor):
    """A share of the golden's largest number for all elements, and one of each."""
    share, rtol = FLASHINFER[tensor.family]
    return within(tensor, tensor.golden, tensor.value, rtol, share * np.abs(tensor.golden).max(initial=0) + 1e-3)


def aiter(tensor):
    """One in twenty elements may be off by more."""
    off = np.abs(tensor.value - tensor.golden) > 1e-2 + 1e-2 * np.abs(tensor.golden)
    return bool(off.mean() <= 0.05) if off.size else True


def triton_kernels(tensor):
    """Relative to the golden's element or its RMS, whichever is larger: 2 % at most (3 % of mxfp4), 0.4 % as an RMS."""
    if not tensor.golden.size:
        return True
    golden, value = tensor.golden, tensor.value
    largest = np.abs(golden).max() + 1e-30
    golden, value = golden / largest, value / largest
    relative = np.abs(value - golden) / np.maximum(np.sqrt((golden**2).mean()) + 1e-30, np.abs(golden))
    return bool(relative.max() <= TRITON_LARGEST.get(tensor.family, 2e-2) and np.sqrt((relative**2).mean()) <= 4e-3)


def tosa(tensor):
    """Products of exact operands only. Errors in units of |a||b| 2^-(fraction bits + 1): at most K each, 0.4 K on average
    squared."""
    if tensor.bound is None or tensor.profile.startswith("fp8"):
        return None
    k, absolute = tensor.bound
    unit = np.maximum(absolute * 2.0 ** -(1 + FRACTION_BITS[type_of(tensor.profile)]), LEAST_NORMAL[type_of(tensor.profile)])
    error = (tensor.value - tensor.golden) / unit
    zero = absolute == 0
    if (tensor.value[zero] != 0).any():
        return False
    error, k = error[~zero], np.broadcast_to(k, absolute.shape)[~zero]
    return bool((np.abs(error) <= k).all() and (error**2).sum() <= 0.4 * k.sum())


def flashmla(tensor):
    """Decode alone. An element by its absolute error or its relative one, and the whole by its cosine."""
    if tensor.op not in DECODE:
        return None
    lse = tensor.path.endswith("lse")
    golden, value = (x.astype(np.float32).astype(np.float64) if lse else tensor.rounded(x) for x in (tensor.golden, tensor.value))
    atol, rtol, cosine = (1e-6, 8.01 / 65536, 1e-7) if lse else (8e-4, 2.01 / 128, 5e-6)
    error = np.abs(value - golden)
    if not ((error < atol) | (error / (np.abs(golden) + 1e-6) < rtol)).all():
        return False
    size = (golden**2).sum()
    return bool(size < 1e-12 or abs(1 - 2 * (value * golden).sum() / (size + (value**2).sum())) <= cosine)


def flashinfer_mla(tensor):
    """Decode alone."""
    return within(tensor, tensor.golden, tensor.value, 1e-3, 1e-3) if tensor.op in DECODE else None


def cutlass_mla(tensor):
    """Decode alone."""
    return within(tensor, tensor.golden, tensor.value, 1e-2, 1e-2) if tensor.op in DECODE else None


def trtllm_fp8(tensor):
    """Decode alone, of FlashInfer's tests with fp8 queries and caches."""
    return within(tensor, tensor.golden, tensor.value, 1e-1, 1e-1) if tensor.op in DECODE else None


def xqa_mla(tensor):
    """Decode alone. One in twenty elements may be off by more."""
    if tensor.op not in DECODE:
        return None
    error = np.abs(tensor.value - tensor.golden)
    return bool(((error <= 0.05) | (error <= 0.05 * (np.abs(tensor.golden) + 1e-8))).mean() >= 0.95) if error.size else True


def vllm_merge(tensor):
    """The outputs of the merge of states alone; its kernels have no gradients."""
    judged = tensor.op == "merge_states" and tensor.path.startswith("outputs/")
    return within(tensor, tensor.golden, tensor.value, *MERGE[type_of(tensor.profile)]) if judged else None


RULES = {"MaxText": maxtext, "assert_close": assert_close, "FlashAttention": flash_attention, "NMSE": nmse,
         "calc_diff": calc_diff, "FlashInfer": flashinfer, "aiter": aiter, "triton_kernels": triton_kernels, "TOSA": tosa,
         "FlashMLA": flashmla, "FlashInfer MLA": flashinfer_mla, "Cutlass MLA": cutlass_mla, "trtllm-gen fp8": trtllm_fp8,
         "XQA MLA": xqa_mla, "vLLM merge": vllm_merge}
OF_OPERATIONS = {"FlashMLA": DECODE, "FlashInfer MLA": DECODE, "Cutlass MLA": DECODE, "trtllm-gen fp8": DECODE, "XQA MLA": DECODE,
                 "vLLM merge": ("merge_states",)}


def product_bounds(op, tensors):
    """Of gmm's results, where groups follow one another: length and absolute sum of each product."""
    if op != "gmm" or not {"inputs/group_sizes", "weights/rhs"} <= tensors.keys():
        return {}
    lhs, rhs, dy = (np.abs(tensors[n].astype(np.float64)) for n in ("inputs/lhs", "weights/rhs", "cotangents/y"))
    y, d_lhs, d_rhs = np.zeros(dy.shape), np.zeros(lhs.shape), np.zeros(rhs.shape)
    sizes = tensors["inputs/group_sizes"]
    for g, (end, size) in enumerate(zip(np.cumsum(sizes), sizes)):
        rows = slice(end - size, end)
        y[rows], d_lhs[rows], d_rhs[g] = lhs[rows] @ rhs[g], dy[rows] @ rhs[g].T, lhs[rows].T @ dy[rows]
    return {"outputs/y": (lhs.shape[1], y), "gradients/inputs/lhs": (dy.shape[1], d_lhs),
            "gradients/weights/rhs": (np.asarray(sizes)[:, None, None], d_rhs)}


def finite_alike(golden, value):
    """Same shape, and the same where the golden is not finite; the rest finite."""
    if golden.shape != value.shape:
        return False
    infinite = ~np.isfinite(golden)
    return bool(np.isfinite(value[~infinite]).all() and (value[infinite] == golden[infinite]).all())


def speaks(name, op, bounds):
    """Whether a rule is one for the operation."""
    return bool(bounds) if name == "TOSA" else op in OF_OPERATIONS.get(name, (op,))


def judge(golden, candidate, plain, profile, bounds, op, family=""):
    """By rule: None where it has nothing to say, True where it accepts every tensor, False where it rejects one."""
    family = family or ("fp8" if profile.startswith("fp8") else "")
    said = {name: [] for name in RULES}
    for path, reference in golden.items():
        value = candidate.get(path)
        if value is not None and value.shape == reference.shape and reference.dtype.kind == "f":
            unwritten = np.isnan(plain[path]) & ~np.isnan(reference)  # rows that no group has
            reference, value = np.where(unwritten, 0, reference), np.where(unwritten, 0, value)
        if value is None or not finite_alike(reference, np.asarray(value, np.float64)):
            return {name: False if speaks(name, op, bounds) else None for name in RULES}
        if reference.dtype.kind == "i":
            if not np.array_equal(reference, value):
                return {name: False if speaks(name, op, bounds) else None for name in RULES}
            continue
        finite = np.isfinite(reference)
        cut = lambda x: np.where(finite, np.asarray(x, np.float64), 0)
        tensor = Tensor(path, cut(reference), cut(value), cut(plain[path]), profile, family, bounds.get(path), op)
        for name, rule in RULES.items():
            said[name].append(rule(tensor))
    return {name: all(v for v in verdicts if v is not None) if any(v is not None for v in verdicts) else None
            for name, verdicts in said.items()}
