"""A log-sum-exp is kept in float32: rounded to bfloat16 it fails, whatever errors the case allows."""
import assay
import numpy as np
import pytest


def rounded(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", ["mla_decode/small", "mla_decode/splits", "mla_decode/large-scores", "gqa_decode/chunked-window", "attention/seven", "merge_states/splits"])
def test_lse_in_bfloat16(name):
    case = assay.case(name, precision="bf16", checkpoints="none")
    right = {p: case.golden(p).astype(np.float32) for p in case.expected if p.startswith("outputs/")}
    case.check(right, gradients=False)
    with pytest.raises(assay.Mismatch, match="outputs/lse: (all elements are numbers of bfloat16, coarser than profile bf16 allows: float32|.* beyond their threshold)"):
        case.check({**right, "outputs/lse": rounded(right["outputs/lse"])}, gradients=False)
