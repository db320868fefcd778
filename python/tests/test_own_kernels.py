"""examples/own_kernels.py: the kernels pass, and their wrong forms do not."""
import assay
import pytest

pytest.importorskip("torch")
from own_kernels import KERNELS, run

# the mutant that explains a wrong form, where one does
BUGS = {"cross-entropy": "loss.logsumexp:above_power_of_two_not_read", "lora": "y.mul:left_out", "mhc": "y.product:transposed_c20_JK", "adamw": "change.div2:first_alone",
        "top-k-softmax": "weights:of_all", "mtp": "j2.gather:second_reads_t1", "linear-cross-entropy": "n.equal:never", "compressed-attention": "past.add:first_alone", "transformer-layer": "o:window_ignored"}  # fmt: skip


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
    assert name not in BUGS or "step:" + BUGS[name] in wrong.value.report.bugs
