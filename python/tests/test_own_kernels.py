"""examples/own_kernels.py: the kernels pass, and their wrong forms do not."""
import assay
import pytest

pytest.importorskip("torch")
from own_kernels import KERNELS, run


@pytest.mark.parametrize("precision", ["bf16", "f32"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name, precision):
    dtype = {"bf16": "bfloat16", "f32": "float32"}[precision]
    case = assay.case("program/" + name, precision=precision, dtype=dtype, checkpoints="all")
    case.check(run(name, case))


@pytest.mark.parametrize("name", KERNELS)
def test_wrong_form_is_named_by_its_step(name):
    _, how, _, step = KERNELS[name]
    smaller = {"sizes.B": 1, "sizes.T": 11} if name == "ssd" else {}  # hundreds of wrong ones are tried
    case = assay.case("program/" + name, precision="bf16", checkpoints="all", **smaller)
    with pytest.raises(assay.Mismatch) as wrong:
        case.check(run(name, case, **how))
    assert wrong.value.report.first_wrong == step
