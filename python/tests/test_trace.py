"""Functions of PyTorch as programs: traced, evaluated, and held against the function itself in float64."""
import math

import assay
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


def gated(x, scale, w):
    n = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    h = (n.to(x.dtype) * scale) @ w
    a, b = h.chunk(2, -1)
    return F.silu(a) * b


def gated_without_casts(x, scale, w):
    a, b = ((x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale) @ w).chunk(2, -1)
    return F.silu(a) * b


def attention(x, wq, wk, wv, wo):
    batch, length, _ = x.shape
    q, k, v = (t.view(batch, length, 4, -1).transpose(1, 2) for t in (x @ wq, x @ wk, x @ wv))
    s = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(8)
    o = torch.matmul(torch.softmax(s, -1), v)
    return x + o.transpose(1, 2).reshape(batch, length, -1) @ wo


def cross_entropy(x, head, target):
    logits = F.linear(x, head)
    lp = torch.log_softmax(logits, -1)
    return {"loss": -lp.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)}


def rotated(x, angle):
    a, b = x[..., :4], x[..., 4:]
    c, s = angle.cos().unsqueeze(-2), angle.sin().unsqueeze(-2)
    return torch.cat([a * c - b * s, a * s + b * c], -1)


def normed(x, weight, bias, table, index):
    y = F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)
    z = F.gelu(y) + F.gelu(y, approximate="tanh") + F.embedding(index.long(), table)
    p = torch.clamp(z, -1, 1) - 0.5 * torch.relu(z) + torch.logsumexp(z, -1, keepdim=True)
    return p.cumsum(0), torch.amax(z, 1), torch.softmax(z, 0).sum(1)


def steep(x, y, z):
    """Slopes that PyTorch has as differences of numbers near 1."""
    return F.gelu(3 * x, approximate="tanh"), torch.tanh(6 * y) + torch.erf(2 * z), F.silu(4 * z)


def routed(x, gate, experts):
    logits = x @ gate
    best, ids = torch.topk(logits, 3, dim=-1)
    p = torch.softmax(best, -1)
    return {"y": torch.matmul(p.unsqueeze(-2), experts[ids]).squeeze(-2), "ids": ids}


def interleaved(x, y, angle):
    def turned(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    angle = torch.stack((angle, angle), -1).flatten(-2)
    return x * angle.cos() + turned(x) * angle.sin(), F.glu(y), torch.cat([x[..., 8:], x], -1) * 2


def causal(q, k, v, mask):
    if hasattr(torch.nn, "attention"):
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        s = q @ k.transpose(-1, -2) / math.sqrt(8)
        a = torch.softmax(s + torch.full(s.shape[-2:], -math.inf).triu(1), -1) @ v
    s = (q @ k.transpose(-1, -2)).masked_fill(mask == 0, -math.inf)
    s /= 2
    most, _ = s.max(-1, keepdim=True)
    return a, torch.softmax(s - most, -1) @ v


def losses(x, y, target):
    d = F.layer_norm(x, (x.shape[-1],)) + F.layer_norm(x, (x.shape[-1],), y[0])
    small = F.leaky_relu(d, 0.1) * F.hardtanh(d, -1, 2) + F.mish(x) + y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
    return F.cross_entropy(x, target.long()), F.nll_loss(y, target.long(), reduction="none"), small, x.var(-1), F.normalize(y, dim=-1), torch.logaddexp(x, y), x[:, -1] * y[:, 0]


CASES = {
    "interleaved": (interleaved, {"x": (3, 5, 8), "y": (5, 6), "angle": (3, 5, 4)}, {}),
    "causal": (causal, {"q": (2, 3, 6, 8), "k": (2, 3, 6, 8), "v": (2, 3, 6, 4)}, {"mask": ((6, 6), 2)}),
    "losses": (losses, {"x": (5, 7), "y": (5, 7)}, {"target": ((5,), 7)}),
    "routed": (routed, {"x": (9, 16), "gate": (16, 8), "experts": (8, 12)}, {}),
    "gated": (gated, {"x": (5, 8), "scale": (8,), "w": (8, 12)}, {}),
    "attention": (attention, {"x": (2, 7, 32), "wq": (32, 32), "wk": (32, 32), "wv": (32, 32), "wo": (32, 32)}, {}),
    "cross_entropy": (cross_entropy, {"x": (5, 8), "head": (11, 8)}, {"target": ((5,), 11)}),
    "rotated": (rotated, {"x": (3, 5, 8), "angle": (3, 4)}, {}),
    "steep": (steep, {"x": (90, 64), "y": (90, 64), "z": (90, 64)}, {}),
    "normed": (normed, {"x": (6, 8), "weight": (8,), "bias": (8,), "table": (9, 8)}, {"index": ((6,), 9)}),
}


def program_of(name):
    function, floats, indices = CASES[name]
    example = {key: torch.randn(shape) for key, shape in floats.items()}
    example.update({key: torch.randint(0, most, shape, dtype=torch.int32) for key, (shape, most) in indices.items()})
    order = {key: example[key] for key in function.__code__.co_varnames[: function.__code__.co_argcount]}
    return assay.trace(function, order, integers={key: most for key, (_, most) in indices.items()}, dtype="float64", profiles="f64")


def results(function, case):
    """What the function itself gives in float64, and its gradients."""
    given = case.inputs(torch, requires_grad=True)
    arguments = {path.split("/")[1]: x for path, x in given.items() if path != "inputs/constant"}
    made = function(**arguments)
    made = made if isinstance(made, dict) else {"y": made} if isinstance(made, torch.Tensor) else {f"y{i}": t for i, t in enumerate(made)}
    outputs = {"outputs/" + key: value for key, value in made.items() if value.is_floating_point()}
    return {**outputs, **case.backward(outputs, given)}


ITSELF = {"gated": gated_without_casts}  # what the program is of, where the function rounds on its way


@pytest.mark.parametrize("name", CASES)
def test_the_function_itself_passes_in_float64(name):
    case = program_of(name).case("f64")
    case.check(results(ITSELF.get(name, CASES[name][0]), case))


@pytest.mark.parametrize("name", CASES)
def test_another_function_fails(name):
    case = program_of(name).case("f64")
    wrong = results(ITSELF.get(name, CASES[name][0]), case)
    path = next(iter(wrong))
    wrong[path] = wrong[path] * (1 + 2.0**-40)
    with pytest.raises(assay.Mismatch):
        case.check(wrong)


def test_a_choice_is_judged_by_what_it_was_made_of():
    case = program_of("routed").case("bf16", dtype="bfloat16")
    assert "ids: top_k(" in str(program_of("routed"))
    made = results(routed, case)
    given = case.inputs(torch)
    ids = torch.topk(given["inputs/x"].float() @ given["inputs/gate"].float(), 3, dim=-1)[1].to(torch.int32)
    case.check({**made, "routing/ids/top_k": ids})
    with pytest.raises(assay.Mismatch, match="index . chosen, better is"):
        case.check({**made, "routing/ids/top_k": (ids + 1) % 8})


def test_a_program_reads_like_the_function():
    text = str(program_of("gated"))
    assert '  h: product("TD,DH->TH", rms_norm(x, scale, epsilon=1e-06), w)\n' in text
    assert '  y: mul(silu(slice("H->N", h)), slice("H->N", h, first=6))\n' in text


def test_casts_that_are_kept_are_roundings():
    def stored(x, w):
        h = torch.exp(x).to(torch.bfloat16)
        return h.float() @ w

    example = {"x": torch.randn(5, 8), "w": torch.randn(8, 3)}
    assert "cast" not in str(assay.trace(stored, example))
    program = assay.trace(stored, example, casts="keep", dtype="float32")
    assert '  h: cast(exp(x), type="bfloat16")\n' in str(program)
    case = program.case("f32")
    x, w = (case.inputs(torch)["inputs/" + name] for name in "xw")
    case.check({"outputs/y": stored(x, w)}, gradients=False)
    with pytest.raises(assay.Mismatch):
        case.check({"outputs/y": torch.exp(x) @ w}, gradients=False)
    with pytest.raises(assay.BadInput, match="casts is 'half', expected drop or keep"):
        assay.trace(stored, example, casts="half")


def test_what_no_program_has_is_refused_with_its_line():
    def transformed(x):
        y = x + 1
        return torch.fft.fft(y).real

    with pytest.raises(assay.BadInput, match=rf"{__file__}:\d+: _fft_r2c: a program has no such operator"):
        assay.trace(transformed, {"x": torch.randn(4)})


def test_writing_into_an_operand_and_tensors_of_elsewhere_are_refused():
    def written(x):
        y = x * 2
        y.add_(1)
        return y

    def looked_at(x):
        y = x * 2
        part = y[:2]
        y.add_(1)
        return part

    assert "  y: add(mul(x, 2), 1)\n" in str(assay.trace(written, {"x": torch.randn(4)}))
    with pytest.raises(assay.BadInput, match="add_: writes into what others read"):
        assay.trace(looked_at, {"x": torch.randn(4)})
    with pytest.raises(assay.BadInput, match="mul_: writes into what others read"):
        assay.trace(lambda x: x.mul_(2), {"x": torch.randn(4)})
    with pytest.raises(assay.BadInput, match="mul: a tensor that is none of the function's arguments"):
        assay.trace(lambda x: x * torch.linspace(0, 1, 4), {"x": torch.randn(4)})


@assay.program(T=[1, 7], D=16, F=[8, 24], weights=["w"])
def reference(x: "T D", w: "D F"):  # noqa: F722
    return F.silu(x @ w)


@reference.cases(precision="bf16")
def test_a_reference_at_each_size(case):
    given = case.inputs(torch, requires_grad=True)
    y = F.silu(given["inputs/x"].float() @ given["weights/w"].float()).to(torch.bfloat16)
    outputs = {"outputs/y": y}
    case.check({**outputs, **case.backward(outputs, given)})


def test_axes_that_have_no_size_are_refused():
    def other(x: "T D"):  # noqa: F722
        return x + 1

    with pytest.raises(assay.BadInput, match="of which D has no size"):
        assay.program(T=4)(other)
