"""Functions of PyTorch as programs: traced, evaluated, and held against the function itself in float64."""
import dis
import math
import re
import threading

import assay
import numpy as np
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
    small = F.elu(x, 1.5) + F.selu(y) + torch.where(x < 0, 0.2 * x, x) + F.leaky_relu(d, 0.1) * F.hardtanh(d, -1, 2) + F.mish(x) + y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
    return F.cross_entropy(x, target.long()), F.nll_loss(y, target.long(), reduction="none"), small, x.var(-1), F.normalize(y, dim=-1), torch.logaddexp(x, y), x[:, -1] * y[:, 0]


def llama(x, wq, at):
    """transformers' module and apply_rotary_pos_emb, with its float32 as float64."""
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, 8, 2, dtype=torch.int64).double() / 8))
    freqs = (inv_freq[None, :, None].expand(at.shape[0], -1, 1) @ at[:, None, :].double()).transpose(1, 2)
    emb = torch.cat((freqs, freqs), dim=-1)
    cos, sin = (emb.cos() * 1.0).to(x.dtype).unsqueeze(1), (emb.sin() * 1.0).to(x.dtype).unsqueeze(1)
    q = (x @ wq).view(*x.shape[:2], -1, 8).transpose(1, 2)
    half = torch.cat((-q[..., 4:], q[..., :4]), dim=-1)
    return q * cos + half * sin


def rotations(x, y, ids):
    """Pairs next to each other at positions of its own, and a table of cosines of which a part is turned."""
    angle = torch.arange(y.shape[0])[:, None] * 500.0 ** (-torch.arange(0, 6, 2).double() / 6)
    c, s = angle.cos(), angle.sin()
    pairs = torch.stack((y[:, ::2] * c - y[:, 1::2] * s, y[:, 1::2] * c + y[:, ::2] * s), -1).flatten(-2)
    table = torch.outer(torch.arange(90).double(), 10000.0 ** (-torch.arange(4).double() / 4))
    c, s = torch.cat([table.cos(), table.sin()], -1)[ids.long()].chunk(2, -1)
    a, b = x[:, :4], x[:, 4:8]
    first, second = x[:, :8:2], x[:, :8][:, 1::2]
    apart = torch.cat([first * c - second * s, second * c + first * s], -1)  # as DeepSeek has it
    return pairs, apart, torch.cat([torch.cat([a * c - b * s, b * c + a * s], -1), x[:, 8:]], -1), y * (ids.double() * 0.7).cos()[:, None]


def whole(x, s, at, group, ids, keep):
    seen = (at[:, None] >= at) & (group[:, None] == group) & (at[:, None] - at < 3) & (keep != 0)
    p = torch.softmax(s.masked_fill(~seen, torch.finfo(s.dtype).min), -1)
    hot = F.one_hot(ids.long(), 6) * 2 + F.one_hot(x.argmax(-1), 6)
    return p @ x + hot * x + (at // 2 + at % 3)[:, None] * x, torch.zeros(6, 6, dtype=x.dtype).index_add_(0, ids.long(), x), torch.bincount(ids, minlength=6) * x[0]


def dispatched(x, gate, experts):
    """A router whose choice is a dense matrix of weights, and its balance loss."""
    scores = torch.sigmoid(x @ gate)
    best, ids = scores.topk(3, -1)
    weights = torch.zeros_like(scores).scatter_(-1, ids, best / best.sum(-1, keepdim=True))
    chosen = torch.zeros_like(scores).scatter(1, ids, 1.0)
    return weights @ experts, (chosen.mean(0) * scores.mean(0)).sum() * 8, torch.where(chosen.bool(), scores, 0.0)


CASES = {
    "llama": (llama, {"x": (2, 5, 8), "wq": (8, 24)}, {"at": ((2, 5), 90)}),
    "llama_one_row": (llama, {"x": (2, 5, 8), "wq": (8, 24)}, {"at": ((1, 5), 90)}),
    "rotations": (rotations, {"x": (5, 12), "y": (5, 6)}, {"ids": ((5,), 90)}),
    "whole": (whole, {"x": (5, 6), "s": (5, 5)}, {"at": ((5,), 6), "group": ((5,), 2), "ids": ((5,), 6), "keep": ((5,), 2)}),
    "dispatched": (dispatched, {"x": (9, 16), "gate": (16, 8), "experts": (8, 12)}, {}),
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
    arguments = {path.split("/")[1]: x for path, x in given.items() if "constant" not in path}
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


def test_a_tensor_of_two_numbers_is_a_mask():
    seen = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))

    def softmax(x, hidden):
        return torch.softmax(x + seen.masked_fill(hidden == 3, 0.25), -1)

    example = {"x": torch.randn(6, 6), "hidden": torch.arange(6)}
    assert "less(" in str(assay.trace(softmax, example))  # which the trace holds to the function in float64
    assay.assert_correct(softmax, softmax, example, precision="f32")


def test_a_program_reads_like_the_function():
    text = str(program_of("gated"))
    assert '  h: product("TD,DH->TH", rms_norm(x, scale, epsilon=1e-06, unfused=true), w)\n' in text
    assert '  y: mul(silu(slice("H->N", h)), slice("H->N", h, first=6))\n' in text


def test_a_rotation_is_one_step():
    assert '  y: rearrange("TDKF->TKDF", rope(q, at, theta=10000.0))\n' in str(program_of("llama"))
    text = str(program_of("rotations"))
    assert "  y0: rope(y, iota(\"T\"), theta=500.0, interleave=true)\n" in text
    assert re.search(r'rope\(slice\("D->\w", x\), ids, theta=10000.0\)', text) and "fused: [" in text


def test_frequencies_that_are_scaled_are_an_input_of_rope():
    row = torch.tensor([1.0, 0.3, 0.02, 0.0001])

    def scaled(x, at):
        angle = torch.cat([at[:, None] * row] * 2, -1)
        cosine, sine = 1.25 * angle.cos(), angle.sin() * 1.25  # as YaRN has it
        return x * cosine + torch.cat([-x[:, 4:], x[:, :4]], -1) * sine

    def apart(x, at):
        angle = at[:, None] * row
        a, b = x[:, ::2], x[:, 1::2]
        return torch.stack([a * angle.cos() - b * angle.sin() * 2, b * angle.cos() + a * angle.sin() * 2], -1).flatten(1)

    def from_0_on(x):
        return scaled(x, torch.arange(len(x)))

    def slower(x):
        return scaled(x, torch.arange(len(x)) / 4)

    example = {"x": torch.randn(5, 8), "at": torch.arange(5)}
    assert '  y: mul(rope(x, iota("T"), frequencies), 1.25)\n' in str(assay.trace(from_0_on, example["x"]))
    text = str(assay.trace(slower, example["x"]))
    assert '  y: mul(rope(x, iota("T"), frequencies), 1.25)\n' in text and "values: [0.25, 0.075, 0.005, 2.5e-05]" in text
    text = str(assay.trace(scaled, example))
    assert "  y: mul(rope(x, at, frequencies), 1.25)\n" in text
    assert "  frequencies: {axes: [H], values: [1.0, 0.3, 0.02, 0.0001]}\n" in text and 'dtypes: {"inputs/frequencies": "float64"}' in text
    assay.assert_correct(scaled, scaled, example, precision="f32")
    with pytest.raises(assay.Mismatch, match="outputs/y"):
        assay.assert_correct(lambda x, at: scaled(x, at) / 1.25, scaled, example, precision="bf16")
    assert "rope" not in str(assay.trace(apart, example))  # cosines and sines by two factors turn nothing


def test_numbers_that_a_kernel_rounds_are_no_indices():
    assert "  y: where(above(x), x, sub(x, 1))\n" in str(assay.trace(lambda x: torch.where(x > 0, x, x - 1), {"x": torch.randn(4)}))
    with pytest.raises(assay.BadInput, match="numbers as whole numbers"):
        assay.trace(lambda x, i: x[(x[:3] * 2).long() + i], {"x": torch.randn(4), "i": torch.arange(3)})


COMPUTED_INDICES = {
    "shifted": lambda x, i: F.cross_entropy(x[:-1], i[1:]),
    "turned": lambda x, i: x[i.reshape(2, 3).T.reshape(-1)],
    "next": lambda x, i: x[(i + 1).clamp(max=5)],
    "none where negative": lambda x, i: torch.where((i - 2)[:, None] >= 0, x[(i - 2).clamp(min=0)], 0.0),
    "looked up": lambda x, i: torch.where(i[i][:, None] > 2, x, 0.0),
    "counted": lambda x, i: x[(i > 3).long().cumsum(0)],
    "arguments alone": lambda x, i: i * 2 - 1,
    "moved": lambda x, i: (i.flip(0), x * 2),
}


@pytest.mark.parametrize("name", COMPUTED_INDICES)
def test_whole_numbers_are_computed(name):
    x, i = torch.randn(6, 6), torch.tensor([0, 2, 1, 5, 3, 4])
    case = assay.trace(COMPUTED_INDICES[name], {"x": x, "i": i}, dtype="float64", profiles="f64").case("f64")
    given = case.inputs(torch, requires_grad=True)
    made = COMPUTED_INDICES[name](given.get("inputs/x", x), given["inputs/i"].long())
    made = {f"outputs/y{n}": y for n, y in enumerate(made)} if isinstance(made, tuple) else {"outputs/y": made}
    floats = {path: y for path, y in made.items() if y.is_floating_point()}
    gradients = case.backward(floats, given) if floats else {}
    case.check({**made, **gradients})
    if len(floats) < len(made):
        with pytest.raises(assay.Mismatch, match="integers differ"):
            case.check({**{path: y if path in floats else y + 1 for path, y in made.items()}, **gradients})


def rows_of(*shape):
    return torch.arange(shape[0])[:, None], torch.arange(shape[1])[None]


def masked(mask):
    return lambda s: torch.softmax(s.masked_fill(~mask, float("-inf")), -1)


MASKS = {
    "causal": lambda i, j: i >= j,
    "window": lambda i, j: (i >= j) & (i - j < 5),
    "chunks": lambda i, j: (i >= j) & (i // 4 == j // 4),
    "prefix": lambda i, j: (i >= j) | (j < 3),
    "documents": lambda i, j: (i // 7 == j // 7) & (i >= j),
    "hidden": lambda i, j: (i < j) | (i - j > 6),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", [(11, 11), (9, 12)])
def test_masks_are_rules_of_places(name, shape):
    """They hold no mask, and their mutants show one key more."""
    mask = MASKS[name](*rows_of(*shape))
    if not mask.any(-1).all():
        mask = mask | (torch.arange(shape[1]) == 0)
    text = str(assay.trace(masked(mask), {"s": torch.randn(shape)}, dtype="float64"))
    assert "less(" in text and "iota(" in text and not re.search(r"constant\w*: {axes: \[\w, ", text)
    itself(masked(mask), False, s=torch.randn(shape))


def test_more_functions_of_numbers_and_constants():
    frequencies = 10000.0 ** (-torch.arange(0, 80, 2).double() / 80) * torch.linspace(1, 0.025, 40).double()
    itself(lambda x, at: x * (at[:, None] * frequencies).cos(), False, x=torch.randn(5, 40), at=torch.arange(5))
    itself(lambda x: torch.where(x >= x.topk(3, -1).values[..., -1:], x, 0.0), False, x=torch.randn(4, 9))
    itself(lambda x, w: F.binary_cross_entropy_with_logits(x, torch.sigmoid(w)) + torch.tan(x).prod(1).sum() + torch.log2(1 + w.exp()).mean(), False, x=torch.randn(3, 4) / 4, w=torch.randn(3, 4))
    itself(lambda x: (x.square() + 1) ** 3.5 + x**5 + torch.diagonal(x @ x), False, x=torch.randn(4, 4) / 2)
    text = str(assay.trace(lambda x, at: x * (at[:, None] * frequencies).cos(), {"x": torch.randn(5, 40), "at": torch.arange(5)}))
    assert 'dtypes: {"inputs/constant": "float64"}' in text and 'gradients: ["inputs/x"]' in text


@pytest.mark.skipif(not hasattr(torch.nn.functional, "rms_norm"), reason="complex tensors of this PyTorch say nothing of their numbers")
def test_rotations_by_complex_numbers():
    def turned(x, angle):
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(z).flatten(-2)

    itself(turned, False, x=torch.randn(3, 5, 8), angle=torch.randn(5, 4))


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

    def filled(x, w):
        y = torch.empty(4, 6)
        y[:, :2] = x[:, :2] * 3
        y[:, 2:] = x[:, 2:]
        y[1] += w
        z = torch.zeros(4, 6)
        z[2, 1:3] = w[:2]
        return y.mul_(2), z

    assert "  y: add(mul(x, 2), 1)\n" in str(assay.trace(written, {"x": torch.randn(4)}))
    case = assay.trace(filled, {"x": torch.randn(4, 6), "w": torch.randn(6)}, dtype="float32").case("f32")
    given = case.inputs(torch)
    made = filled(given["inputs/x"], given["inputs/w"])
    case.check({"outputs/y0": made[0], "outputs/y1": made[1]}, gradients=False)
    with pytest.raises(assay.BadInput, match="add_: writes into what others read"):
        assay.trace(looked_at, {"x": torch.randn(4)})
    assert "  y: mul(x, 2)\n" in str(assay.trace(lambda x: x.mul_(2), {"x": torch.randn(4)}))
    assert "  y: div(clamp(add(x, 3), low=0.0, high=6.0, kink=0.0), 6)\n" in str(assay.trace(lambda x: F.hardsigmoid(x), {"x": torch.randn(4)}))  # PyTorch's sixth is of float32


def scores(q, k, mask=None):
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(s if mask is None else s.masked_fill(mask, -math.inf), -1)


def rotated_in_part(x, first):
    """Rotations of a part, put together with the rest at once."""
    angle = torch.arange(x.shape[0])[:, None] * (1e4 ** (-torch.arange(0, 4, 2).double() / 4))
    a, b = x[:, first : first + 2], x[:, first + 2 : first + 4]
    return torch.cat([x[:, :first], a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), x[:, first + 4 :]], -1)


#: As people write them: each is its program.
WRITTEN = {
    "contrastive loss": lambda x, z: F.cross_entropy(F.normalize(x, dim=-1) @ F.normalize(z, dim=-1).T / 0.07, torch.arange(4)),
    "focal loss": lambda x, m: (lambda lp: (-(1 - lp.exp()).pow(2) * lp).mean())(F.log_softmax(x, 1).gather(1, m.long()[:, None]).squeeze(1)),
    "policy loss": lambda x, z: -torch.min((x - z).exp() * z, torch.clamp((x - z).exp(), 0.8, 1.2) * z).mean(),
    "triplet loss": lambda x, z: F.relu((x - z).pow(2).sum(-1) - (x + z).pow(2).sum(-1) + 1).mean(),
    "z loss": lambda x, m: F.cross_entropy(x, m.long()) + 1e-4 * torch.logsumexp(x, -1).square().mean(),
    "kl": lambda x, z: F.kl_div(F.log_softmax(x, -1), F.log_softmax(z, -1), reduction="sum", log_target=True),
    "distillation": lambda x, z: -(torch.softmax(z / 2, -1).detach() * torch.log_softmax(x / 2, -1)).sum(-1).mean() * 4,
    "squares": lambda x, z: F.mse_loss(x, z) + F.mse_loss(x, z, reduction="sum") + F.mse_loss(x, z, reduction="none") + torch.lerp(x, z, 0.3) + torch.addcmul(x, x, z, value=0.5),
    "preferences": lambda x, z: -F.logsigmoid(0.1 * (x - z)).mean() + torch.exp2(x),
    "deviations": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + torch.var_mean(x, -1, keepdim=True, unbiased=False)[0],
    "norm of groups": lambda x: (lambda g: ((g - g.mean(-1, keepdim=True)) * (g.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()).view(4, 8))(x.view(4, 2, 4)),
    "norm over a batch": lambda x: (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5),
    "norm of a range": lambda x: (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)),
    "stopped norm": lambda x: x / x.norm(dim=-1, keepdim=True).detach(),
    "activations": lambda x: F.mish(x) + F.selu(x) + F.elu(x, alpha=0.5) + F.softplus(x, beta=3) + F.hardtanh(x) + F.relu6(3 * x) + F.glu(x).sum() + 5 * torch.tanh(x / 5),
    "attention": lambda x, z: scores(x, z) @ z,
    "causal attention": lambda x, z: scores(x, z, torch.ones(4, 4, dtype=torch.bool).triu(1)) @ z,
    "window": lambda x, z: scores(x, z, (torch.arange(4)[:, None] - torch.arange(4)).abs() > 1) @ z,
    "segments": lambda x, z, m: scores(x, z, m[:, None] != m[None]) @ z,
    "lengths": lambda x, z, m: scores(x, z, torch.arange(4)[None] > m[:, None]) @ z,
    "sink": lambda x, z: torch.softmax(torch.cat([x @ z.T, x[:, :1]], -1), -1)[:, :-1] @ z,
    "linear attention": lambda x, z: ((F.elu(x) + 1) @ ((F.elu(z) + 1).T @ z)) / ((F.elu(x) + 1) @ (F.elu(z) + 1).sum(0)[:, None]),
    "retention": lambda x, z: (x @ z.T).masked_fill(~torch.ones(4, 4, dtype=torch.bool).tril(), 0.0) @ z,
    "router": lambda x: (lambda best, ids: torch.zeros_like(x).scatter(-1, ids, best / best.sum(-1, keepdim=True)))(*torch.softmax(x, -1).topk(3, -1)),
    "router with a bias": lambda x, z: (lambda s: (lambda i: s.gather(-1, i) / s.gather(-1, i).sum(-1, keepdim=True) * 2.5)((s + z[0]).topk(3, -1)[1]))(x.sigmoid()),
    "balance": lambda x: (lambda p: (F.one_hot(p.topk(2, -1)[1], 8).to(p.dtype).sum(1).mean(0) * p.mean(0)).sum() * 8)(x.softmax(-1)),
    "groups": lambda x: x.sigmoid().view(4, 4, 2).topk(2, -1)[0].sum(-1).topk(2, -1)[0],
    "quantiser": lambda x: x / (x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448),
    "straight through": lambda x: x + (torch.tanh(4 * x) / 4 - x).detach(),
    "blocks": lambda x: (lambda b: (b / b.abs().amax(-1, keepdim=True)).reshape(4, 8))(x.view(4, 2, 4)),
    "rotation in front": lambda x: rotated_in_part(x, 0),
    "rotation behind": lambda x: rotated_in_part(x, 4),
    "rows": lambda x, m: x[m.long()] + x.index_select(0, m.long()) + x.index_add(0, m.long(), x),
    "parts": lambda x: x[-1] + x[:, -2].sum() + x[1:-1].sum(0) + x[..., 3:].mean() + x[None, :, None][0, 0],
    "written": lambda x, z: x.clone().mul_(2).add_(z).clamp_(min=-1),
    "shifted": lambda x: F.pad(x, (0, 0, 1, 0))[:-1] + x.flip(0).cumsum(0).flip(0),
    "differences of sums": lambda x: (x.cumsum(-1)[:, :, None] - x.cumsum(-1)[:, None, :]).masked_fill(~torch.ones(8, 8, dtype=torch.bool).tril(), -1e9).exp(),
    "einsums": lambda x, z: torch.einsum("td,sd->ts", x, z) @ torch.einsum("sd,se->de", x, z)[:4] + torch.einsum("td->d", x) * torch.einsum("td,td->t", x, z).sum(),
    "distances": lambda x, z: (-(x.square().sum(-1)[:, None] + z.square().sum(-1) - 2 * x @ z.T)).exp(),
    "convolution": lambda x, z: F.silu(F.conv1d(x.T[None], z[:2].T[:, None], padding=1, groups=8)[..., :4]),
    "mean of a mask": lambda x, m: (x * (m > 1)[:, None]).sum(0) / (m > 1).sum().clamp(min=1),
    "doubly stochastic": lambda x: (lambda a: a / a.sum(1, keepdim=True))((lambda a: a / a.sum(0, keepdim=True))(x.exp())),
    "batch norm": lambda x, z: F.batch_norm(x, None, None, z[0], z[1], training=True) + F.batch_norm(x[:, :, None], x.new_zeros(8), x.new_ones(8))[..., 0],
    "group norm": lambda x, z: F.group_norm(x.view(2, 4, 4), 2, z[0, :4], z[1, :4]).view(4, 8) + F.instance_norm(x.view(1, 4, 8))[0],
    "norm over two dimensions": lambda x, z: F.layer_norm(x, (4, 8), z, z) + F.layer_norm(x, (4, 8)),
    "hard activations": lambda x: F.hardswish(x) + F.softshrink(x, 0.3),
    "robust losses": lambda x, z: F.smooth_l1_loss(3 * x, z, beta=0.5) + F.huber_loss(3 * x, z, delta=0.7, reduction="sum"),
    "kl of probabilities": lambda x, z: F.kl_div(x, z.softmax(-1), reduction="batchmean"),
    "least of each": lambda x: (lambda v, i: v + x.gather(0, i[None])[0] + x.argmin(1).sum() * 0)(*x.min(0)),
    "sorted": lambda x: x.sort(0, descending=True)[0] * x.sort()[0],
    "best of one": lambda x: (lambda v, i: x * v + x.masked_fill(torch.zeros(4, 1).scatter(1, i, 1.0) == 0, 0.0))(*x.mean(-1, keepdim=True).topk(1)),
    "triangles": lambda x: x.tril() + 2 * x.triu(1),
    "product of all before": lambda x: x.cumprod(1) + x.cumprod(0),
    "sum of all before": lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)], 1),
    "1-D convolutions": lambda x, z: F.conv1d(x[None], z.view(4, 4, 2), stride=2, dilation=3, padding=2).sum() * F.conv1d(x[None], z.view(8, 2, 2), z.view(-1)[:8], groups=2)[0, :4],
    "convolution of 1 x 1": lambda x, z: F.conv2d(x.view(1, 4, 4, 2), z.view(8, 4, 1, 1), stride=2),
    "transposed convolution": lambda x, z: F.conv_transpose1d(x[None], z.view(4, 4, 2), stride=2, padding=1, dilation=2, output_padding=1, groups=2),
    "padded convolution": lambda x, z: F.conv1d(F.pad(x[None], (2, 0)), z[:, None, :3], groups=4)[0] + F.conv1d(x[None], z[:, None, :3], z[:, 0], padding=2, groups=4)[0, :, :8],
    "pooling": lambda x: F.avg_pool1d(x[None], 4, 2, 1).sum() * F.max_pool1d(x[None], 3, 2, 1)[0] + F.adaptive_avg_pool1d(x[None], 4)[0],
    "windows": lambda x: x.unfold(1, 3, 2).sum(-1) * x.unfold(1, 2, 2).mean(1, keepdim=True)[..., 0][:, :1],
    "softplus": lambda x: torch.where(x > 20, x, torch.log(1 + x.exp())) + torch.where(x <= 30, torch.log1p(x.exp()), x),
    "triangular": lambda x, z: torch.linalg.solve_triangular(torch.eye(4, dtype=x.dtype) + (x @ x.T).tril(-1), z, upper=False)
    + torch.linalg.solve_triangular((z @ z.T).exp().triu(), x, upper=True),
    "turned round": lambda x: x[:, :4].flip(0, 1) + x.flip(-1)[:, :4],
    "gate": lambda x, z: (lambda t: t * torch.tanh(z) + (1 - t) * x)(torch.sigmoid(x * z)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_function_is_its_program(name):
    function = WRITTEN[name]
    itself(function, "m" in function.__code__.co_varnames[: function.__code__.co_argcount])


@pytest.mark.skipif(not hasattr(torch, "func"), reason="their parameters cannot be arguments before PyTorch 2")
def test_recurrent_layers_are_traced():
    for layer in (torch.nn.LSTM(4, 3, batch_first=True), torch.nn.RNN(4, 3), torch.nn.GRU(4, 3, num_layers=2, bidirectional=True)):
        program = str(assay.trace(layer, torch.randn(2, 3, 4)))
        assert "  y0: " in program and "  y1" in program


def experts(x, gate, up, down, loop=True, mix=False):
    """As transformers has it: the experts that any token chose, and the tokens of each."""
    best, ids = torch.softmax(x @ gate, -1).topk(2, -1)
    y, chosen = torch.zeros_like(x), F.one_hot(ids, 4).permute(2, 1, 0)
    hit = torch.greater(chosen.sum(dim=(-1, -2)), 0).nonzero() if loop else torch.arange(4)[:, None]
    for expert in hit:
        expert = expert[0]
        slot, token = torch.where(chosen[expert])
        h = F.silu(x[token] @ up[expert])
        h = torch.softmax(h, 0) if mix else h
        y.index_add_(0, token, (h @ down[expert]) * best[token, slot, None])
    return y


ROUTED = {"x": torch.randn(6, 5), "gate": torch.randn(5, 4), "up": torch.randn(4, 5, 7), "down": torch.randn(4, 7, 5)}


def test_experts_one_after_another():
    for loop in (True, False):
        itself(lambda x, gate, up, down: experts(x, gate, up, down, loop), False, **ROUTED)
    few = {name: x[:2] if name == "x" else x for name, x in ROUTED.items()}  # so that some experts are not hit
    itself(lambda x, gate, up, down: experts(x, gate, up, down), False, **few)
    with pytest.raises(assay.BadInput, match="rows that a mask chooses meet each other, expected index_add"):
        assay.trace(lambda x, gate, up, down: experts(x, gate, up, down, mix=True), ROUTED)


MASKED = {
    "their number": (lambda x, m: x[(m > 1).nonzero()[:, 0]], "y has rows that a mask chooses: how many they are no program knows"),
    "a loop": (lambda x, m: sum(x[i] for i in (m > 1).nonzero()[:, 0]), "unbind: of indices that a mask chooses"),
    "the mean": (lambda x, m: x[(m > 1).nonzero()[:, 0]].mean(0), "rows that a mask chooses meet each other"),
    "others": (lambda x, m: x[(m > 1).nonzero()[:, 0] // 2], "floor_divide: of indices that a mask chooses"),
    "many": (lambda x, m: (torch.greater(F.one_hot(m.long(), 4).sum(0), 1).nonzero() * 1.0).sum() * x, "of indices that a mask chooses"),
}


@pytest.mark.parametrize("name", MASKED)
def test_what_nonzero_does_not_reach(name):
    with pytest.raises(assay.BadInput, match=MASKED[name][1]):
        assay.trace(MASKED[name][0], {"x": torch.randn(4, 8), "m": torch.tensor([0, 1, 2, 3])})


def test_random_numbers_are_none():
    for function in (torch.nn.Dropout(0.5), lambda input: input * torch.randn(4, 8), lambda input: input + torch.randn_like(input).square()):
        with pytest.raises(assay.BadInput, match="random numbers, which no program has: trace a module after its eval"):
            assay.trace(function, {"input": X})
    assert "  y: mul(input, 1)\n" in str(assay.trace(torch.nn.Dropout(0.5).eval(), {"input": X}))


@pytest.mark.skipif(not hasattr(torch, "func"), reason="PyTorch before 2 has no parameters that are made anew")
def test_parameters_that_are_made_of_arguments_have_no_gradient_there():
    def reference(x, w):
        layer = torch.nn.Linear(8, 3, bias=False)
        layer.weight = torch.nn.Parameter(w)
        return layer(x)

    assert 'product("TD,HD->TH", x, detach(w))' in str(assay.trace(reference, {"x": torch.randn(4, 8), "w": torch.randn(3, 8)}))


def test_a_function_that_writes_over_what_its_gradient_needs_has_none():
    def reference(x):
        h, y = torch.zeros(3), torch.zeros(4, 3)
        for i in range(4):
            y[i] = torch.tanh(x[i] + h)
            h = y[i] * y[i]
        return y

    program = assay.trace(reference, {"x": torch.randn(4, 3)}, dtype="float64")
    assert 'gradients: "none"' in str(program)
    case = program.case("f64")
    h, rows = np.zeros(3), []
    for row in case.inputs()["inputs/x"]:
        rows.append(np.tanh(row + h))
        h = rows[-1] ** 2
    assert np.allclose(case.golden("outputs/y"), rows, 1e-12) and set(case.expected) == {"outputs/y"}


@pytest.mark.skipif(not hasattr(torch, "func"), reason="names of modules within modules")
def test_long_names_are_cut_at_a_dot():
    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a_name_that_is_as_long_as_can_be = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(4, 4)) for _ in range(2)])

        def forward(self, x):
            for layer in self.a_name_that_is_as_long_as_can_be:
                a_variable_that_is_longer_than_a_step_may_be = layer(x)
                x = a_variable_that_is_longer_than_a_step_may_be * 2
            return x

    program = str(assay.trace(Deep(), torch.ones(3, 4)))
    assert "  name_that_is_as_long_as_can_be_0_0_weight: " not in program and "  that_is_as_long_as_can_be_1_0_weight: {axes:" in program
    assert assay.assert_correct(Deep().bfloat16(), Deep(), torch.ones(3, 4), precision="bf16").verdict == "PASS"


@pytest.mark.parametrize("theta, size", [(10000.0, 128), (500000.0, 64), (1e6, 6)])
def test_a_rotary_module_has_frequencies_of_float32(theta, size):
    class Rotary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("inv_freq", 1.0 / theta ** (torch.arange(0, size, 2).float() / size))

        def forward(self, x, at):
            angle = (self.inv_freq[None, :, None].expand(1, -1, 1) @ at[:, None, :].float()).transpose(1, 2)
            angle = torch.cat([angle, angle], -1)
            a, b = x.chunk(2, -1)
            return x * angle.cos().to(x.dtype) + torch.cat([-b, a], -1) * angle.sin().to(x.dtype)

    program = str(assay.trace(Rotary(), [torch.randn(1, 5, size), torch.arange(5)[None]]))
    assert f"theta={theta!r}" in program
    decay = torch.tensor([1.0, 0.7, 0.49, 0.343, 0.2401, 0.16807])  # no powers of a theta: the decimals of what they are
    assert "0.16807" in str(assay.trace(lambda x: x * decay, {"x": torch.randn(4, 6)}))


def test_an_axis_of_size_1_is_repeated():
    itself(lambda x, first: torch.cat([first.expand(4, -1, -1), x], 1), False, x=torch.randn(4, 2, 3), first=torch.randn(1, 1, 3))


def test_numbers_above_0_are_drawn_where_a_logarithm_wants_them():
    program = str(assay.trace(lambda p, x: (p * p.log()).sum(-1) * x, {"p": torch.linspace(0.125, 1.25, 32).reshape(4, 8), "x": torch.rand(4)}))
    assert "  p: {axes: [T, D], distribution: uniform, low: 0.125, high: 1.25}" in program
    assert "uniform" not in str(assay.trace(lambda p: p * 2, {"p": torch.rand(4, 8) + 0.1}))
    with pytest.raises(assay.BadInput, match="expected a finite number"):
        assay.trace(lambda p: p.log(), {"p": torch.ones(4, 8)})


def test_constants_by_value():
    table = torch.tensor([0.1, 0.25, 0.3])
    itself(lambda x: x * (torch.linspace(0, 1, 8, dtype=x.dtype) ** 2), False, x=torch.randn(4, 8))
    itself(lambda x: (x @ torch.ones(3, 3, dtype=x.dtype).tril() + torch.eye(3, dtype=x.dtype), x * torch.tensor([0.1, 0.25, 0.3], dtype=x.dtype)), False, x=torch.randn(3, 3))
    assert "rearrange(\"->H\", 0.1)" in str(assay.trace(lambda x: x * table, {"x": torch.randn(4, 3)}))


def test_more_axes_than_letters():
    itself(lambda x: torch.stack([x[:, i : i + 2].sum(-1) * x[i % 4, 0] for i in range(0, 60)]).cumsum(0), False, x=torch.randn(4, 62))


def test_a_letter_of_two_arguments():
    def attention(q, k, v):
        return torch.softmax(q @ k.T, -1) @ v

    program = str(assay.trace(attention, {"q": torch.randn(5, 3), "k": torch.randn(5, 3), "v": torch.randn(5, 4)}, axes={"q": "TD", "k": "TD", "v": "TE"}))
    assert "q: {axes: [T, D]}" in program and 'product("TD,HD->TH"' in program and "v: {axes: [H, E]}" in program
    with pytest.raises(assay.BadInput, match="the axis T of inputs/z is 8, and 4 of another argument"):
        assay.trace(lambda x, z: x @ z, {"x": torch.ones(4, 8), "z": torch.ones(8, 4)}, axes={"x": "TD", "z": "T"})


def test_arguments_with_tensors_within_them():
    def reference(data, config):
        a, (b, out) = data
        out[...] = a @ b * config["scale"] + config["bias"]
        return out

    def kernel(data, config):
        a, (b, out) = data
        out.copy_((a.float() @ b.float() * config["scale"] + config["bias"].float()).to(out.dtype))

    example = {"data": (torch.randn(4, 6), (torch.randn(6, 5), torch.empty(4, 5))), "config": {"scale": 2, "bias": torch.randn(5)}}
    program = str(assay.trace(reference, example))
    assert "  y: add(mul(product(\"TD,DH->TH\", data_0, data_1_0), 2), config_bias)\n" in program and program.startswith("case: traced/reference  # no result depends on data_1_1\n")
    assert assay.assert_correct(kernel, reference, example, precision="bf16", gradients=False).verdict == "PASS"
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda data, config: kernel(data, {**config, "scale": 3}), reference, example, precision="bf16", gradients=False)


def test_what_is_written_into_is_a_result():
    def filled(a, b, out):
        out.copy_(a * b)

    def cached(cache, k):
        cache[:, 2:3] = k
        return cache.sum(1)

    assert "outputs:\n  out: mul(a, b)\n" in str(assay.trace(filled, {"a": X, "b": X, "out": torch.empty(4, 8)}))
    assert "concatenate(" in str(assay.trace(cached, {"cache": torch.randn(2, 5, 3), "k": torch.randn(2, 1, 3)}))


def in_a_thread(x):
    made = []
    worker = threading.Thread(target=lambda: made.append(x * 2))
    worker.start()
    worker.join()
    return made[0]



X, WIDE, LAYER = torch.ones(4, 8), torch.randn(8, 8200), torch.nn.Linear(8, 8)
#: A function, its example, what else trace is told, and the line that refuses it.
REFUSED = {
    "none": (lambda x: None, {"x": X}, {}, "of its results y is None, expected a tensor"),
    "nested": (lambda x: [x, [x * 2, 1]], {"x": X}, {}, "of its results y1_1 is a int, expected a tensor"),
    "generator": (lambda x: (yield x), {"x": X}, {}, "of its results y is a generator, expected a tensor"),
    "a key": (lambda x: {0: x * 2}, {"x": X}, {}, "of its results 0 is no name"),
    "constant": (lambda x: torch.ones(3), {"x": X}, {}, "y depends on no argument"),
    "thread": (in_a_thread, {"x": X}, {}, r"a tensor \[4, 8\] that is computed where trace does not see it"),
    "star": (lambda *given: given[0] * 2, {"x": X}, {}, "unexpected keyword argument 'x': the example has x"),
    "missing": (lambda x, y: x * y, {"x": X}, {}, "missing a required argument: 'y': the example has x"),
    "no example": (lambda x: x * 2, None, {}, "the example is of NoneType, expected tensors by the names"),
    "no tensor": (lambda x, e: x * 2, {"x": X, "e": object()}, {}, "e of the example is of object, expected a tensor"),
    "no elements": (lambda x: x * 2, {"x": torch.ones(0, 8)}, {}, r"x is \[0, 8\], expected a tensor with numbers"),
    "no whole numbers": (lambda x, i: x[i], {"x": X, "i": torch.ones(0, dtype=torch.int64)}, {}, r"i is \[0\], expected a tensor with numbers"),
    "complex": (lambda x: x * 2, {"x": X.to(torch.complex64)}, {}, "x of the example is of torch.complex64"),
    "raises": (lambda x: x * {}["a"], {"x": X}, {}, "KeyError: 'a'"),
    "whole numbers alone": (lambda x: x.argmax(-1), {"x": X}, {}, "all results are a choice, expected one that is computed of it, too"),
    "2-D": (lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]), {"x": X}, {}, "2-D and 3-D convolutions and pooling are none of its steps"),
    "parameter": (LAYER.forward, {"input": X}, {}, r"a parameter \[8\] of a module, which is none of the function's arguments: torch.func.functional_call makes it one"),
    "global": (lambda x: x @ WIDE, {"x": X}, {}, r"mm: a tensor \[8, 8200\] that is none of the function's arguments: 65600 numbers, expected at most 65536 finite ones, or an argument"),
    "mask": (lambda x: x.masked_fill(torch.arange(300)[:, None] * torch.arange(300) % 7 == 0, 0), {"x": torch.ones(300, 300)}, {},
             r"whole numbers or a mask \[300, 300\] that are none of the function's arguments: 90000 numbers, expected at most 65536, or an argument"),
    "weights": (lambda w: w * 2, {"w": X}, {"weights": ["W"]}, "weights has W, expected an argument of the example: w"),
    "axes": (lambda x: x * 2, {"x": X}, {"axes": {"x": "TDE"}}, "axes says 'TDE' of x, expected a letter for each of its 2 axes"),
    "integers": (lambda x: x * 2, {"x": X}, {"integers": {"x": 3}}, "integers has x, expected an argument of whole numbers"),
    "setting": (lambda x: x * 2, {"x": X}, {"seed": X}, "seed is of Tensor, expected what a case file has"),
    "name": (lambda x: x * 2, {"x": X}, {"name": "a b"}, "case: expected a name such as"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_is_refused_in_a_line(name):
    function, example, told, why = REFUSED[name]
    with pytest.raises(assay.BadInput, match=why) as refused:
        assay.trace(function, example, **told)
    text = str(refused.value)
    assert "\n" not in text and "program.yml" not in text
    assert name in ("setting",) or re.match(r".+\.py:\d+: ", text), text


def test_a_case_that_is_refused_names_the_function():
    program = assay.trace(lambda x: x * 2, {"x": X}, fused="all")
    assert '\nfused: "all"\n' in str(program)
    program.case("bf16")
    for fused in ("nope", ["nope"]):
        line = assay.trace(lambda x: x * 2, {"x": X}, fused=fused)
        with pytest.raises(assay.BadInput, match=rf"^{re.escape(__file__)}:\d+: fused has nope, which is no step"):
            line.case("bf16")


@pytest.mark.parametrize("size", [1, 2, 128, 512])
def test_masks_of_any_size(size):
    def causal(x):
        far = torch.arange(size)[:, None] - torch.arange(size)
        hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
        return x.masked_fill(~torch.ones(size, size, dtype=torch.bool).tril(), 0.0), torch.where(hidden, x, 0.5 * x), torch.where((far >= 0) & (far < 9), x, 2 * x), x.masked_fill(far.abs() > 3, 2.0)

    itself(causal, False, x=torch.randn(size, size))


def test_a_tensor_against_its_transpose():
    itself(lambda x: (x + x.T, x.cumsum(0).T * x.cumsum(1), x @ x + x.T), False, x=torch.randn(5, 5))


def test_a_module_is_traced_with_its_parameters_as_arguments():
    functional_call = getattr(torch, "func", None) or __import__("torch.nn.utils.stateless", fromlist=["stateless"])
    layer = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.SiLU())
    names = {"layer_" + name.replace(".", "_"): name for name, _ in layer.named_parameters()}

    def reference(x, **weights):
        return functional_call.functional_call(layer, {names[key]: w for key, w in weights.items()}, (x,))

    example = {"x": torch.ones(5, 8), **{key: layer.get_parameter(name) for key, name in names.items()}}
    program = assay.trace(reference, example, weights=list(names), dtype="float64", profiles="f64")
    case = program.case("f64")
    assert list(case.inputs()) == ["inputs/x", *("weights/" + key for key in names)]
    case.check(results(reference, case))


def test_a_default_of_a_reference_is_kept():
    @assay.program(T=3, D=8)
    def reference(x: "T D", epsilon: float = 1e-3):  # noqa: F722
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)

    assert "0.001" in str(reference.programs()[0])
    with pytest.raises(assay.BadInput, match="y is annotated by no axes"):
        assay.program(T=3, D=8)(lambda y: y)


def test_the_version_is_there():
    assert assay.version().startswith(assay.__version__) and re.match(r"\d+\.\d+", assay.__version__)


def test_axes_that_have_no_size_are_refused():
    def other(x: "T D"):  # noqa: F722
        return x + 1

    with pytest.raises(assay.BadInput, match="of which D has no size"):
        assay.program(T=4)(other)


def handled():
    """Every operator that the tracer writes down, with an overload of it and the function that does so."""
    from assay import _trace, _trace_torch

    recorder = _trace_torch.Recorder(_trace.Tracer("walk", len), lambda: None)
    names = [name.removeprefix("on_") for name in dir(recorder) if name.startswith("on_")]
    for name in (*names, *_trace_torch.SAME, *_trace_torch.MAPS, *_trace_torch.BINARY, *_trace_torch.COMPARISONS, *_trace_torch.MASKS):
        packet = getattr(torch.ops.aten, name, None)  # another PyTorch may have no such operator
        for overload in packet.overloads() if packet is not None else ():
            if not overload.endswith("out"):
                yield _trace_torch.read_by, recorder.handler(name), getattr(packet, overload)


def is_read(function, name):
    """Whether the function's code does anything with that argument."""
    code = function.__code__
    return name in code.co_cellvars or any(op.opname.startswith("LOAD") and name in (op.argval if isinstance(op.argval, tuple) else (op.argval,)) for op in dis.get_instructions(code))


def test_an_argument_that_is_not_its_default_is_read_or_refused():
    from assay import _trace_torch

    count = 0
    for read_by, handler, func in handled():
        before = []
        for argument in func._schema.arguments:
            other = object()  # is no default
            args, kwargs = ([], {argument.name: other}) if argument.kwarg_only else ([*before, other], {})
            before += [] if argument.kwarg_only else [other]
            try:
                given, named = read_by(handler, func, args, kwargs)
            except assay.BadInput as why:
                assert f"{argument.name} is " in str(why) or len(args) > 1
                continue
            if argument.name in _trace_torch.ASIDE:
                continue
            takes = handler.__code__.co_varnames[1 + hasattr(handler, "__self__") : handler.__code__.co_argcount]
            assert other in (*given, *named.values()), (func, argument.name)
            name = argument.name if other in named.values() else takes[len(given) - 1]
            assert name.startswith("_") or is_read(handler, name), (func, argument.name)
            count += 1
    assert count > 250


def scaled(x):
    return Scaled.apply(x * 2) + 1


class Scaled(torch.autograd.Function):
    """A gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g / 4


class Gelu(torch.autograd.Function):
    """What backward computes is what forward's gradient is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.702 * x)
        return g * (s + 1.702 * x * s * (1 - s))


def without_gradient(x):
    with torch.no_grad():
        most = x.abs().amax(-1, keepdim=True)
    return x / most


def switched_off(x):
    torch.set_grad_enabled(False)
    mean = x.mean(-1, keepdim=True)
    torch.set_grad_enabled(True)
    return x * mean


def cut(x):
    y = x * 2
    y.detach_()
    return x * y


def hooked(x):
    y = x * 2
    y.register_hook(lambda g: g / 2)
    return y + 1


@torch.no_grad()
def mean_of(x):
    return x.mean(-1, keepdim=True)


def bands(x):
    """A buffer, as the function computes it in float32, and in its own type."""
    table = torch.zeros(6, 8)
    at = torch.arange(6)[:, None] * torch.exp(torch.arange(0, 8, 2) / 3)
    table[:, 0::2], table[:, 1::2] = torch.sin(at), torch.cos(at)
    return x * table.to(x.dtype) + torch.arange(48).reshape(6, 8).sqrt()


def put(x, i, rows):
    y = x.clone()
    y[i] = rows
    y[:, torch.tensor([1, 5])] = 2.0
    return y


def fake_quantised(x, w):
    h = x @ w
    scale = h.abs().amax(-1, keepdim=True) / 127
    return torch.round(h / scale) * scale + torch.remainder(h, 1.5) + torch.trunc(h) * torch.sign(h)


def grouped_router(x, w):
    """The best of one group of two, as modules have it: its choice is of all rows in one dimension."""
    scores = (x.reshape(-1, 8) @ w).sigmoid()
    best = torch.topk(scores.view(-1, 2, 2).sum(-1), k=1, dim=-1)[1]
    mask = torch.zeros(scores.shape[0], 2).scatter_(1, best, 1).unsqueeze(-1).expand(-1, 2, 2).reshape(-1, 4)
    values, chosen = torch.topk(scores.masked_fill(~mask.bool(), 0.0), 2)
    return {"chosen": chosen, "values": values, "places": torch.arange(3.0)[None].expand(2, 3) * x[0, 0, 0]}


#: Functions that pass as kernels against themselves, where each operator stores its result in bfloat16.
STORED = {
    "product of all": (lambda x: torch.prod(x, -1), {"x": torch.ones(8, 16)}),
    "sorted": (lambda x: torch.sort(x, -1)[0], {"x": torch.ones(8, 256)}),
    "best": (lambda x: torch.topk(-2 * x, 4)[0].softmax(-1), {"x": torch.ones(8, 256)}),
    "median": (lambda x: torch.median(x, -1)[0] + torch.kthvalue(x, 3)[0], {"x": torch.ones(8, 64)}),
    "running": (lambda x: torch.cummax(x, 1)[0] + torch.logcumsumexp(x, 1), {"x": torch.ones(4, 16)}),
    "a table": (bands, {"x": torch.ones(6, 8)}),
    "rows that are written": (put, {"x": torch.ones(8, 16), "i": torch.tensor([0, 7, 3]), "rows": torch.ones(3, 16)}),
    "rows that are added": (lambda x, i, j, v: x.index_put((i, j), v, accumulate=True).scatter_add(0, i[:, None].expand(3, 16), v[:, None] * x[:3]),
                            {"x": torch.ones(8, 16), "i": torch.tensor([0, 7, 7]), "j": torch.tensor([1, 2, 2]), "v": torch.ones(3)}),
    "distances": (lambda x, y: torch.cdist(x, y), {"x": torch.ones(30, 8), "y": torch.ones(35, 8)}),
    "bilinear": (torch.nn.Bilinear(8, 5, 4), (torch.ones(6, 8), torch.ones(6, 5))),
    "norms": (lambda x: x.norm(p=1, dim=-1) + x.norm(p=3, dim=-1) + x.abs().amax(-1) + torch.nan_to_num(x).sum(-1), {"x": torch.ones(8, 8)}),
    "crosses": (lambda x, y: torch.linalg.cross(x, y) + torch.diag(x[0]).sum(0), {"x": torch.ones(6, 3), "y": torch.ones(6, 3)}),
    "norm of several operators": (lambda x, b: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * b, {"x": torch.ones(64, 256), "b": torch.ones(256)}),
    "layer norms": (lambda x, w, b: F.layer_norm(x, (16,), w[0], b[0]) + F.layer_norm(x.reshape(-1, 8, 16), (8, 16), w, b).reshape(-1, 16),
                    {"x": torch.ones(512, 16), "w": torch.ones(8, 16), "b": torch.ones(8, 16)}),
    "grouped router": (grouped_router, {"x": torch.ones(2, 3, 8), "w": torch.ones(8, 4)}),
    "what jumps": (fake_quantised, {"x": torch.ones(16, 64), "w": torch.ones(64, 32)}),
    "thresholds": (lambda x: torch.where(x * 3 > 1, x, 0.1 * x.exp()) + F.hardshrink(x) + F.celu(x, 2.0) + torch.where(x > 0, x, torch.exp(x) - 1) + x.cosh(), {"x": torch.ones(8, 64)}),
    "wider": (lambda x: F.interpolate(F.pixel_shuffle(x, 2).flatten(2), scale_factor=2), {"x": torch.ones(2, 8, 3, 3)}),
}


@pytest.mark.parametrize("name", STORED)
def test_a_function_passes_against_itself_in_bfloat16(name):
    function, example = STORED[name]
    try:
        assay.assert_correct(function, function, example, precision="bf16", seeds=2)
    except RuntimeError as why:
        if "not implemented for 'BFloat16'" not in str(why):
            raise
        pytest.skip(str(why))  # by an older PyTorch


INDICES = torch.tensor([1, 3, 1, 0])
#: A function of x [4,8], z [4,8] and m [4], of 0 to 3, and how it is refused; "": its program is the function.
ARGUMENTS = {
    "softplus beta": (lambda x, z, m: F.softplus(x, beta=2.0), ""),
    "softplus threshold": (lambda x, z, m: F.softplus(x, threshold=0.5), "softplus: threshold is 0.5"),
    "div floor": (lambda x, z, m: torch.div(x * 7, 3.0, rounding_mode="floor"), ""),
    "div of whole numbers": (lambda x, z, m: x * torch.div(m, 2, rounding_mode="trunc")[:, None], ""),
    "rsub alpha": (lambda x, z, m: torch.rsub(x, z, alpha=2), ""),
    "scatter reduce": (lambda x, z, m: x.scatter(1, m[:, None].long(), z[:, :1], reduce="add"), "scatter: reduce is add"),
    "scatter twice": (lambda x, z, m: x.scatter(1, m[:, None].long().expand(4, 2), z[:, :2]), "scatter: an index may stand twice in a row"),
    "pairs of indices": (lambda x, z, m: x[:, :4][torch.arange(4), m[:, None].long()], ""),
    "numbers as truths": (lambda x, z, m: x * z.bool().float(), ""),
    "whole numbers as truths": (lambda x, z, m: x * m.bool().float()[:, None] + m.bool().int()[:, None], ""),
    "moved truths": (lambda x, z, m: torch.where((m == 0)[1:, None], x[1:], z[1:]) + (m != 0)[:3, None] * x[1:], ""),
    "bits": (lambda x, z, m: x * (m & 1)[:, None] + ((m[:, None] >> torch.arange(0, 2)) & 1).repeat(1, 4) * z + (m << 2)[:, None], ""),
    "other bits": (lambda x, z, m: x * (m & 2)[:, None], "__and__|bitwise_and: the bits of whole numbers by 2, expected 2\\^n - 1, or a shift"),
    "bits of two": (lambda x, z, m: x * (m & (m + 1))[:, None], "__and__|bitwise_and: the bits of whole numbers, expected masks, or constants"),
    "inverted bits": (lambda x, z, m: x * (~m)[:, None], "bitwise_not: the bits of whole numbers"),
    "logical": (lambda x, z, m: x * torch.logical_and(m, m - 1)[:, None] + torch.logical_not(m)[:, None] * z, ""),
    "clamp by tensors": (lambda x, z, m: torch.clamp(x, max=z) + torch.clamp(x, min=z[0]) + x.clamp(max=0.3), ""),
    "two to a power": (lambda x, z, m: 2.0**x + torch.pow(3, z), ""),
    "a tensor to a power": (lambda x, z, m: x**z, "pow: the power is a tensor"),
    "a function of its own": (lambda x, z, m: scaled(x), r"gradients/inputs/x.* by the function.*its gradients are others"),
    "the same gradient": (lambda x, z, m: Gelu.apply(x) * z, ""),
    "hook": (lambda x, z, m: hooked(x), r"gradients/inputs/x.*its gradients are others"),
    "another each time": (lambda x, z, m: x * float(np.random.rand()), r"outputs/y.*it computes what no program has"),
    "frequency": (lambda x, z, m: F.embedding(INDICES, x, scale_grad_by_freq=True), "embedding: scale_grad_by_freq is True"),
    "moved": (lambda x, z, m: x.flip(0, 1) + z.roll((1, -3), (0, 1)) + x[:2, :4].repeat(2, 2) + m[1:, None].sum() * z, ""),
    "minimum of rows": (lambda x, z, m: x.min(-1)[0] + z.amin(0).sum(), ""),
}
#: Gradients that are stopped.
STOPPED = {
    "no_grad": lambda x: without_gradient(x),
    "set_grad_enabled": lambda x: switched_off(x),
    "decorated": lambda x: x * mean_of(x),
    "data": lambda x: x * torch.sigmoid(x.data),
    "detach": lambda x: x * torch.softmax(x, -1).detach(),
    "detach_": cut,
    "requires_grad_": lambda x: x[:2] + (x * 2).detach().requires_grad_(False)[2:] * x[2:],
    "padding_idx": lambda x: F.embedding(INDICES, x, padding_idx=1),
}


def itself(function, integers, **given):
    example = given or {name: torch.randn(4, 8) for name in function.__code__.co_varnames[: function.__code__.co_argcount] if name != "m"}
    example.update({"m": torch.tensor([0, 1, 2, 3], dtype=torch.int32)} if integers else {})
    program = assay.trace(function, example, dtype="float64", profiles="f64")
    unread = set(example) - set(re.findall(r"\w+", str(program)))
    assert not unread
    program.case("f64").check(results(lambda **given: function(**given), program.case("f64")))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_an_operator_is_told_is_in_the_program_or_refused(name):
    function, refused = ARGUMENTS[name]
    code = function.__code__
    used = [n for n in ("x", "z", "m") if n in code.co_cellvars or is_read(function, n)]
    only = eval(f"lambda {', '.join(used)}: f({', '.join(n if n in used else 'None' for n in ('x', 'z', 'm'))})", {"f": function})
    if refused:
        with pytest.raises(assay.BadInput, match=refused) as why:
            itself(only, "m" in used)
        assert f"{__file__}:" in str(why.value) or "<string>" in str(why.value)
    else:
        itself(only, "m" in used)


@pytest.mark.parametrize("name", STOPPED)
def test_a_gradient_that_is_stopped_is_stopped_in_the_program(name):
    itself(STOPPED[name], False)


def test_a_function_meets_the_types_of_its_example():
    def typed(x):
        assert x.dtype == torch.bfloat16
        return (x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps)).to(x.dtype) * torch.full((), 0.1)

    example = {"x": torch.randn(4, 8).bfloat16()}
    assert "0.0078125" in str(assay.trace(typed, example)) and "cast(" in str(assay.trace(typed, example, casts="keep"))


@pytest.mark.skipif(not hasattr(torch, "func"), reason="PyTorch before 2 writes into what is masked")
def test_labels_are_smoothed():
    itself(lambda x, m: F.cross_entropy(x, m.long(), label_smoothing=0.1), True)


def test_check_false_takes_a_function_as_it_is():
    with pytest.raises(assay.BadInput, match="gradients/inputs/x"):
        assay.trace(scaled, {"x": torch.randn(4)})
    assert "  y: add(mul(mul(x, 2), 1), 1)\n" in str(assay.trace(scaled, {"x": torch.randn(4)}, check=False))


def test_a_function_without_gradients_is_a_case_without_them():
    program = assay.trace(mean_of, {"x": torch.randn(4, 8)}, dtype="float32")
    case = program.case("f32")
    assert set(case.expected) == {"outputs/y"} and case.check({"outputs/y": mean_of(case.inputs(torch)["inputs/x"])})


# Whole numbers: what is drawn of them.


def of_labels(x, t):
    return F.cross_entropy(x, t.long())


def of_labels_by_hand(x, t):
    counts = t != -100
    each = -torch.log_softmax(x, -1).gather(-1, t.long().masked_fill(~counts, 0)[:, None])[:, 0]
    return torch.where(counts, each, 0.0).sum() / counts.sum()


def all_labels(x, t):
    return F.cross_entropy(x, t.long().clamp(min=0))


def by_all_tokens(x, t):
    return F.cross_entropy(x, t.long(), reduction="sum") / len(t)


PADDED = torch.tensor([1, 5, -100, 31, 0, 2])


@pytest.mark.parametrize("function", [of_labels, of_labels_by_hand])
@pytest.mark.parametrize("labels", [PADDED, torch.full((6,), -100)])
def test_labels_that_are_passed_over_are_drawn(function, labels):
    program = assay.trace(function, {"x": torch.randn(6, 32), "t": labels}, dtype="float32")
    assert "t: {axes: [T], integers: [0, 31]}  # a quarter of them is -100\n" in str(program)
    case = program.case("f32")
    assert (case.inputs()["inputs/t"] == -100).any() and (case.inputs()["inputs/t"] >= 0).any()
    case.check(results(function, case))
    for wrong in (all_labels, by_all_tokens):
        with pytest.raises(assay.Mismatch):
            case.check(results(wrong, case))


WHOLE = {"labels": (of_labels, {"x": torch.randn(4, 8), "t": torch.tensor([1, 3, 2, 3])}, "t", "[0, 3]"),
         "labels of one class": (of_labels, {"x": torch.randn(4, 8), "t": torch.zeros(4, dtype=torch.int64)}, "t", "[0, 7]"),
         "segments": (lambda x, s: x * (s == 1), {"x": torch.randn(4), "s": torch.tensor([2, 1, 4, 4])}, "s", "[1, 4]"),
         "below 0": (lambda x, s: x * s, {"x": torch.randn(4), "s": torch.tensor([2, -3, 4, 4])}, "s", "[-3, 4]"),
         "a mask of ones": (lambda x, s: x * s, {"x": torch.randn(4), "s": torch.ones(4, dtype=torch.int64)}, "s", "[0, 1]"),
         "a count": (lambda x, s: x / s, {"x": torch.randn(4), "s": torch.tensor(7)}, "s", "[7, 8]")}


@pytest.mark.parametrize("name", WHOLE)
def test_ranges_come_from_the_example(name):
    function, example, argument, expected = WHOLE[name]
    assert re.search(rf"  {argument}: {{axes: \[\w?\], integers: {re.escape(expected)}}}\n", str(assay.trace(function, example)))


def test_arguments_are_filled_as_is_said():
    def biased(x: "T D", bias: "D"):
        return x + bias

    example = {"x": torch.randn(64, 32), "bias": torch.randn(32)}
    fills = {"bias": {"scale": 0.125}, "x": {"distribution": "uniform", "low": 2, "high": 3}}
    given = assay.trace(biased, example, fills=fills, dtype="float32").case("f32").inputs()
    assert given["inputs/bias"].std() < 0.25 and given["inputs/x"].min() >= 2 and given["inputs/x"].max() <= 3
    with pytest.raises(assay.BadInput, match="fills has bais, expected an argument of the example: x, bias"):
        assay.trace(biased, example, fills={"bais": {"scale": 1}})
    own = assay.program(T=4, D=64, fills={"bias": {"scale": 0.125}})(biased)
    assert "  bias: {axes: [D], scale: 0.125}\n" in str(own.programs()[0])


@pytest.mark.parametrize("function", [lambda x: F.relu(x), lambda x: F.relu6(x), lambda x: F.hardtanh(x, -1.0, 1.0), lambda x: F.leaky_relu(x, 0.1),
                                      lambda x: F.elu(x, 0.5), torch.abs, lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=torch.tensor(-1.0)),
                                      lambda x: x.amax(-1)])
def test_the_golden_has_the_frameworks_slope_on_a_kink(function):
    x = torch.tensor([[-1.0, 0.0, 1.0, 6.0, 2.0], [3.0, -2.0, 0.0, 1.0, -1.0]])
    program = assay.trace(function, {"x": x})
    case = program.case(inputs={"inputs/x": {"distribution": "values", "values": x.flatten().tolist()}}, dtype="float32", precision="f32")
    (cotangent,) = case.cotangents(torch).values()
    wide = x.double().requires_grad_(True)
    function(wide).backward(cotangent.double())
    np.testing.assert_allclose(case.golden("gradients/inputs/x"), wide.grad.numpy(), rtol=1e-12, atol=1e-12)


def test_what_is_joined_may_be_empty():
    def reference(x):
        return torch.cat([torch.empty(0, 1, 4), x[torch.tensor([2, 0])], torch.empty(0, 1, 4)]).sum(1)

    assert "outputs:" in str(assay.trace(reference, {"x": torch.randn(3, 1, 4)}))


def test_what_is_kept_in_float32_stores_no_parts():
    def norm(x, w):
        n = x.float()
        return (n * torch.rsqrt(n.square().mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype)

    for dtype, parts in ((torch.bfloat16, ""), (torch.float32, ", unfused=true")):
        example = {"x": torch.randn(3, 8).to(dtype), "w": torch.randn(8).to(dtype)}
        assert f"rms_norm(x, w, epsilon=1e-06{parts})" in str(assay.trace(norm, example))
    plain = lambda x: torch.nn.functional.silu(x) * 2 if x.dtype == torch.float32 else x * torch.sigmoid(x)  # noqa: E731
    assert "silu(x, unfused=true)" in str(assay.trace(plain, {"x": torch.randn(3, 8).bfloat16()}))
