"""torch_moe.py over the catalogue: python3 -m pytest test_torch_moe.py (-n 2 with pytest-xdist)."""
import assay
import torch
from torch_moe import lacks, moe


@assay.cases("moe/*", precision="bf16", exclude=["mesh"])
def test_moe(case):
    given = case.inputs(torch, requires_grad=True)
    why = lacks(case.config, given)
    if why:
        case.unsupported(why)
    outputs = moe(given, case.config)
    case.check({**outputs, **case.backward(outputs, given)})
