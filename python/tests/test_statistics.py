"""A log-sum-exp is kept in float32: rounded to bfloat16 it fails, whatever errors the case allows."""
import assay
import numpy as np
import pytest


def rounded(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", ["mla_decode/small", "mla_decode/splits", "mla_decode/naive-splits", "gqa_decode/chunked-window", "attention/seven", "merge_states/splits"])
def test_lse_in_bfloat16(name):
    case = assay.case(name, precision="bf16", checkpoints="none")
    right = {p: case.golden(p).astype(np.float32) for p in case.expected if p.startswith("outputs/")}
    case.check(right, gradients=False)
    with pytest.raises(assay.Mismatch, match="outputs/lse: (all elements are numbers of bfloat16, coarser than profile bf16 allows: float32|.* beyond their threshold)"):
        case.check({**right, "outputs/lse": rounded(right["outputs/lse"])}, gradients=False)


@pytest.mark.parametrize("name", ["attention/one-token", "attention/window-of-one", "mla_decode/one-key", "gqa_decode/window-1"])
def test_lse_over_one_key_is_its_score(name):
    """Which a kernel may store: the error scales say that."""
    case = assay.case(name, precision="bf16", checkpoints="none", explain=False)
    right = {path: case.golden(path) for path in case.expected if path.startswith("outputs/")}
    case.check({**right, "outputs/lse": rounded(right["outputs/lse"])}, gradients=False)
