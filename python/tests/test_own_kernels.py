"""examples/own_kernels.py: the kernels pass, and their wrong forms do not."""
import assay
import pytest

pytest.importorskip("torch")
from own_kernels import KERNELS, run


@pytest.mark.parametrize("precision", ["bf16", "f32"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name, precision):
    dtype = {"bf16": "bfloat16", "f32": "float32"}[precision]
    case = assay.case("program/" + name, precision=precision, dtype=dtype)
    case.check(run(name, case))


@pytest.mark.parametrize("name", KERNELS)
def test_wrong_form(name):
    case = assay.case("program/" + name, precision="bf16")
    with pytest.raises(assay.Mismatch, match="^FAIL program/"):
        case.check(run(name, case, **KERNELS[name][1]))
