"""Layer norms whose variance is E[x^2] - E[x]^2 pass by scales of their own, and a bug of a kernel of two passes does not pass by them."""
import assay
import pytest

torch = pytest.importorskip("torch")


def two_passes(x):
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean).square().mean(-1, keepdim=True)


def squares(x):
    mean = x.mean(-1, keepdim=True)
    return mean, x.square().mean(-1, keepdim=True) - mean * mean


def in_order(x):
    sums = [torch.zeros_like(x[..., :1])] * 2
    for i in range(x.shape[-1]):
        one = x[..., i : i + 1]
        sums = [sums[0] + one, sums[1] + one * one]
    mean, square = (s / x.shape[-1] for s in sums)
    return mean, square - mean * mean


def in_float64(x):
    mean, square = (t.double().mean(-1, keepdim=True).float() for t in (x, x.double().square()))
    return mean, square - mean * mean


def judged(form, dtype, seed, outside=False):
    case = assay.case("layer_norm/large-mean", precision="f32", dtype=dtype, seed=seed, gradients="none")
    x, scale, bias = (v.float() for v in case.inputs(torch).values())
    epsilon = case.config["normalization_layer_epsilon"]
    mean, variance = form(x)
    root = variance.clamp(min=0).sqrt() + epsilon if outside else (variance.clamp(min=0) + epsilon).sqrt()
    return case.judge({"outputs/y": (x - mean) / root * scale + bias})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_forms(dtype, seed):
    accurate = judged(two_passes, dtype, seed)
    assert accurate.verdict == "PASS" and "  form: " not in str(accurate)
    for form in (squares, in_order, in_float64):
        report = judged(form, dtype, seed)
        assert report.verdict == "PASS" and "  form: as the less accurate of two forms" in str(report), report
    assert judged(two_passes, dtype, seed, outside=True).verdict == "FAIL"
