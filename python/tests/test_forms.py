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


def welford(x):
    mean, squares = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for i in range(x.shape[-1]):
        off = x[..., i : i + 1] - mean
        mean = mean + off / (i + 1)
        squares = squares + off * (x[..., i : i + 1] - mean)
    return mean, squares / x.shape[-1]


def in_parts(x):
    count = 0
    for part in x.split(8, -1):
        own, mean_of_part = part.shape[-1], part.mean(-1, keepdim=True)
        squares_of_part = (part - mean_of_part).square().sum(-1, keepdim=True)
        if count == 0:
            mean, squares, count = mean_of_part, squares_of_part, own
            continue
        off, total = mean_of_part - mean, count + own
        mean, squares = mean + off * (own / total), squares + squares_of_part + off * off * (count * own / total)
        count = total
    return mean, squares / count


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


def backward(case, form):
    """The gradients too, with the mean and the root as the form has them."""
    x, scale, bias = (v.float() for v in case.inputs(torch).values())
    (dy,) = (v.float() for v in case.cotangents(torch).values())
    mean, variance = form(x)
    root = torch.rsqrt(variance.clamp(min=0) + case.config["normalization_layer_epsilon"])
    n, g = (x - mean) * root, dy * scale
    dx = root * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))
    rows = (0, 1)
    found = {"outputs/y": n * scale + bias, "gradients/inputs/x": dx, "gradients/weights/scale": (dy * n).sum(rows)}
    return found | {"gradients/weights/bias": dy.sum(rows)}


@pytest.mark.parametrize("form", [two_passes, welford, in_parts, squares, in_order, in_float64])
@pytest.mark.parametrize("width", [2, 3, 8, 64])
def test_gradients(form, width):
    """Few rows, narrow ones, numbers that a sum has exactly (multiples of 1/2): each form passes with its gradients."""
    for mean, scale, rows, dtype, precision in (
        (64, 1.0, 1, "bfloat16", "f32"),
        (64, 0.25, 9, "float32", "f32"),
        (64, 1.0, 9, "bfloat16", "f32"),
        (0, 100.0, 9, "float32", "bf16"),
    ):
        x = {"distribution": "normal", "mean": mean, "scale": scale}
        for seed in (1, 2):
            changes = dict(base_emb_dim=width, sequence=rows, dtype=dtype, seed=seed, inputs={"x": x})
            case = assay.case("layer_norm/large-mean", precision=precision, explain=False, **changes)
            stored = torch.bfloat16 if precision == "bf16" else torch.float32
            report = case.judge({path: values.to(stored) for path, values in backward(case, form).items()})
            assert report.verdict in ("PASS", "VACUOUS"), (changes, report)
