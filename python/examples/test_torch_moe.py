"""torch_moe.py over the catalogue: python3 -m pytest test_torch_moe.py (-n 2 with pytest-xdist)."""
import assay
import torch
from torch_moe import SUPPORTS, moe


@assay.cases("moe/*", precision="bf16", exclude="mesh", supports=SUPPORTS)
def test_moe(case):
    given = case.inputs(torch, requires_grad=True)
    outputs = moe(given, case.config)
    case.check({**outputs, **case.backward(outputs, given)})
