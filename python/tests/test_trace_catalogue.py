"""The same function in PyTorch and in JAX is the same program: the numbers of one of the catalogue, bit for bit; and what both are used for alike."""
import contextlib
import re

import assay
import numpy as np
import pytest


def swiglu_torch(x, token_scale, gate, up):
    g = x @ gate
    u = x @ up
    return {"h": torch.nn.functional.silu(g) * u * token_scale[:, None]}


def swiglu_jax(x, token_scale, gate, up):
    g = x @ gate
    u = x @ up
    return {"h": jax.nn.silu(g) * u * token_scale[:, None]}


def cross_entropy_torch(x, target, head):
    logits = x @ head
    return {"loss": torch.logsumexp(logits, -1) - logits.gather(-1, target.long()[:, None])[:, 0]}


def cross_entropy_jax(x, target, head):
    logits = x @ head
    return {"loss": jax.nn.logsumexp(logits, -1) - jax.numpy.take_along_axis(logits, target[:, None], -1)[:, 0]}


def lora(x, w, a, b):
    low = x @ a
    return x @ w + (low @ b) * 2


def merge_states_torch(first, second, first_lse, second_lse):
    d = first_lse - second_lse
    p = torch.sigmoid(d)
    q = torch.sigmoid(-d)
    lse = torch.maximum(first_lse, second_lse) + torch.nn.functional.softplus(-d.abs())
    return {"out": first * p[..., None] + second * q[..., None], "lse": lse}


def merge_states_jax(first, second, first_lse, second_lse):
    d = first_lse - second_lse
    p = jax.nn.sigmoid(d)
    q = jax.nn.sigmoid(-d)
    lse = jax.numpy.maximum(first_lse, second_lse) + jax.nn.softplus(-jax.numpy.abs(d))
    return {"out": first * p[..., None] + second * q[..., None], "lse": lse}


def sinkhorn(e):
    a = e / e.sum(1, keepdims=True)
    b = a / a.sum(0, keepdims=True)
    c = b / b.sum(1, keepdims=True)
    return c / c.sum(0, keepdims=True)


def hyper_connections_torch(streams, mixing):
    return torch.einsum("ij,tjd->tid", sinkhorn(torch.exp(mixing)), streams)


def hyper_connections_jax(streams, mixing):
    return jax.numpy.einsum("ij,tjd->tid", sinkhorn(jax.numpy.exp(mixing)), streams)


def top_k_softmax_torch(x, gate, experts):
    logits = x @ gate
    best, ids = torch.topk(logits, 3)
    weights = torch.softmax(best, -1)
    return {"y": torch.einsum("tk,tkf->tf", weights, experts[ids]), "ids": ids}


def top_k_softmax_jax(x, gate, experts):
    logits = x @ gate
    best, ids = jax.lax.top_k(logits, 3)
    weights = jax.nn.softmax(best)
    return {"y": jax.numpy.einsum("tk,tkf->tf", weights, experts[ids]), "ids": ids}


def causal_conv_torch(x, taps):
    x = x.transpose(1, 2)
    y = torch.nn.functional.conv1d(x, taps[:, None], padding=3, groups=x.shape[1])[..., : x.shape[2]]
    return torch.nn.functional.silu(y).transpose(1, 2)


def causal_conv_jax(x, taps):
    y = jax.lax.conv_general_dilated(x, taps[:, None], (1,), [(3, 0)], dimension_numbers=("NTC", "OIT", "NTC"), feature_group_count=x.shape[-1])
    return jax.nn.silu(y)


def add_norm_torch(x, residual, scale):
    s = x + residual
    return {"sum": s, "y": s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6) * scale}


def add_norm_jax(x, residual, scale):
    s = x + residual
    return {"sum": s, "y": s * jax.lax.rsqrt((s * s).mean(-1, keepdims=True) + 1e-6) * scale}


def rms_norm(x, scale, root, epsilon=1e-6):
    return x * root((x * x).mean(-1, keepdims=True) + epsilon) * scale


def rope_torch(x, positions, theta):
    """As transformers has it: [..,T,N,R] at positions [..,T]."""
    inv_freq = 1.0 / (theta ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1]))
    freqs = positions[..., None].double() * inv_freq
    emb = torch.cat((freqs, freqs), dim=-1).unsqueeze(-2)
    half = x.shape[-1] // 2
    return x * emb.cos() + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * emb.sin()


def rope_jax(x, positions, theta):
    """As MaxText has it."""
    half = x.shape[-1] // 2
    timescale = theta ** (2 * jax.numpy.arange(0, half) / x.shape[-1])
    sinusoid = positions[..., None, None] / timescale
    first, second = jax.numpy.split(x, 2, axis=-1)
    sin, cos = jax.numpy.sin(sinusoid), jax.numpy.cos(sinusoid)
    return jax.numpy.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def norm_rope_torch(x, positions, scale, w):
    q = torch.einsum("td,dnr->tnr", rms_norm(x, scale, torch.rsqrt), w)
    return {"y": rope_torch(q, positions, 10000.0)}


def norm_rope_jax(x, positions, scale, w):
    q = jax.numpy.einsum("td,dnr->tnr", rms_norm(x, scale, jax.lax.rsqrt), w)
    return {"y": rope_jax(q, positions, 10000.0)}


def qk_norm_rope_torch(q, k, positions, q_scale, k_scale):
    qn = rms_norm(q, q_scale, torch.rsqrt)
    kn = rms_norm(k, k_scale, torch.rsqrt)
    return {"query": rope_torch(qn, positions, 1e6), "key": rope_torch(kn, positions, 1e6)}


def qk_norm_rope_jax(q, k, positions, q_scale, k_scale):
    qn = rms_norm(q, q_scale, jax.lax.rsqrt)
    kn = rms_norm(k, k_scale, jax.lax.rsqrt)
    return {"query": rope_jax(qn, positions, 1e6), "key": rope_jax(kn, positions, 1e6)}


def norm_rope_quantise_torch(x, positions, scale, w):
    return {"y": assay.step("quantise", norm_rope_torch(x, positions, scale, w)["y"], format="mxfp8_e4m3")}


def norm_rope_quantise_jax(x, positions, scale, w):
    return {"y": assay.step("quantise", norm_rope_jax(x, positions, scale, w)["y"], format="mxfp8_e4m3")}


def swiglu_quantise_torch(x, gate, up, down):
    q = assay.step("quantise", torch.nn.functional.silu(x @ gate) * (x @ up), format="fp8_e4m3_1x128")
    return q @ down


def swiglu_quantise_jax(x, gate, up, down):
    q = assay.step("quantise", jax.nn.silu(x @ gate) * (x @ up), format="fp8_e4m3_1x128")
    return q @ down


def gated_delta_net_torch(q, k, v, a, b, A_log, dt_bias):
    query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    gate = -(torch.nn.functional.softplus(a + dt_bias) * torch.exp(A_log))
    return assay.step("gated_delta_rule", query * 0.25, key, v, gate, torch.sigmoid(b))


def gated_delta_net_jax(q, k, v, a, b, A_log, dt_bias):
    query, key = (x * jax.lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    gate = -(jax.nn.softplus(a + dt_bias) * jax.numpy.exp(A_log))
    return assay.step("gated_delta_rule", query * 0.25, key, v, gate, jax.nn.sigmoid(b))


def layer(module, root, rope, silu, x, positions, segment_ids, pre, post, wq, wk, wv, wo, gate, up, down):
    n = rms_norm(x, pre, root)
    q = rope(module.einsum("bsd,dnh->bsnh", n, wq), positions, 5e5)
    k = rope(module.einsum("bsd,dkh->bskh", n, wk), positions, 5e5)
    o = assay.step("attention", q, k, module.einsum("bsd,dkh->bskh", n, wv), segment_ids, window=6)
    r = x + module.einsum("bsnh,nhd->bsd", o, wo)
    m = rms_norm(r, post, root)
    return r + (silu(m @ gate) * (m @ up)) @ down


def transformer_layer_torch(x, positions, segment_ids, pre, post, wq, wk, wv, wo, gate, up, down):
    return layer(torch, torch.rsqrt, rope_torch, torch.nn.functional.silu, x, positions, segment_ids, pre, post, wq, wk, wv, wo, gate, up, down)


def transformer_layer_jax(x, positions, segment_ids, pre, post, wq, wk, wv, wo, gate, up, down):
    return layer(jax.numpy, jax.lax.rsqrt, rope_jax, jax.nn.silu, x, positions, segment_ids, pre, post, wq, wk, wv, wo, gate, up, down)


SEGMENTS = [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
torch = jax = None
CASES = {  # the seed, what is fused, and how some inputs are filled
    "swiglu": (8, [], ""),
    "add-norm": (9, [], ""),
    "cross-entropy": (10, ["logits"], ""),
    "lora": (11, [], ""),
    "causal-conv": (12, [], ""),
    "merge-states": (13, ["d", "p", "q"], ("_lse: {axes: [T, N]}", "_lse: {axes: [T, N], distribution: normal, scale: 3}")),
    "hyper-connections": (14, [], ""),
    "top-k-softmax": (21, [], ""),
    "norm-rope": (6, [], ""),
    "qk-norm-rope": (7, [], ""),
    "norm-rope-quantise": (31, [], ""),
    "swiglu-quantise": (32, [], ""),
    "gated-delta-net": (28, [], ""),
    "transformer-layer": (15, [], ("integers: [0, 3]", f"integers: [0, 3], values: {SEGMENTS}")),
}


COUNTS = {"target": 151, "positions": 4097, "segment_ids": 4}


def example_of(case, library):
    """Tensors as the case has them, by the names of arguments."""
    given = {path.split("/")[1]: x for path, x in case.inputs().items()}
    if library == "torch":
        return {name: torch.as_tensor(x) for name, x in given.items()}
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in given.items()}


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_a_function_is_a_program_of_the_catalogue(name, library):
    globals()[library] = pytest.importorskip(library)
    seed, fused, fill = CASES[name]
    base = name.replace("-", "_")
    function = globals().get(base) or globals()[f"{base}_{library}"]
    settings = {"dtype": "float64", "profiles": "f64", "checkpoints": "none"}
    case = assay.case("program/" + name, precision="f64", **settings)
    weights = [path.split("/")[1] for path in case.inputs() if path.startswith("weights/")]
    axes = {"first_lse": "TN", "second_lse": "TN"} if name == "merge-states" else {}
    counts = {**COUNTS, **{"qk-norm-rope": {"positions": 32768}, "transformer-layer": {"positions": 101}}.get(name, {})}
    keys = {**settings, "seed": seed, **({"fused": fused} if fused else {})}
    example = example_of(case, library)
    counts = {name: most for name, most in counts.items() if name in example}
    traced = assay.trace(function, example, weights=weights, integers=counts, axes=axes, name="program/" + name, **keys)
    text = re.sub(r"(epsilon=[\d.e-]+), unfused=true", r"\1", str(traced))  # of several operators a norm is the same but for last bits
    mine = assay.Program(text.replace(*fill) if fill else text).case("f64")
    given, wanted = mine.inputs(), case.inputs()
    assert list(given) == list(wanted) and list(mine.expected) == list(case.expected)
    for path in wanted:
        np.testing.assert_array_equal(given[path], wanted[path], err_msg=path)
    for path in case.expected:
        np.testing.assert_array_equal(mine.golden(path), case.golden(path), err_msg=f"{path} of\n{traced}")


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_steps_by_name_are_those_that_no_operator_says(library):
    globals()[library] = module = pytest.importorskip(library)
    x = module.ones((3, 4)) if library == "torch" else jax.numpy.ones((3, 4))
    with pytest.raises(assay.BadInput, match="step: softmax, expected one of attention, attention_lse, quantise, gated_delta_rule"):
        assay.trace(lambda x: assay.step("softmax", x), {"x": x})
    with pytest.raises(assay.BadInput, match="step: quantise is there in a function that assay.trace runs alone"):
        assay.step("quantise", x, format="mxfp4")
    with pytest.raises(assay.BadInput, match=r"expected operands of BSNH,BTKH,BTKV->BSNV"):
        assay.trace(lambda x: assay.step("attention", x, x, x), {"x": x})


def stored_torch(x, w):
    h = torch.exp(x).to(torch.bfloat16)
    return h.float() @ w


def stored_jax(x, w):
    h = jax.numpy.exp(x).astype(jax.numpy.bfloat16)
    return h.astype(jax.numpy.float32) @ w


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_casts_that_are_kept_are_roundings(library):
    globals()[library] = module = pytest.importorskip(library)
    function = globals()[f"stored_{library}"]
    example = {"x": np.ones((5, 8), np.float32), "w": np.ones((8, 3), np.float32)}
    example = {name: torch.as_tensor(x) if library == "torch" else jax.numpy.asarray(x) for name, x in example.items()}
    assert "cast" not in str(assay.trace(function, example))
    program = assay.trace(function, example, casts="keep", dtype="float32")
    assert '  h: cast(exp(x), type="bfloat16")\n' in str(program)
    case = program.case("f32")
    x, w = (case.inputs(module)["inputs/" + name] for name in "xw")
    with jax.default_matmul_precision("highest") if library == "jax" else contextlib.nullcontext():
        case.check({"outputs/y": function(x, w)}, gradients=False)
        with pytest.raises(assay.Mismatch):
            case.check({"outputs/y": module.exp(x) @ w if library == "torch" else jax.numpy.exp(x) @ w}, gradients=False)
    with pytest.raises(assay.BadInput, match="casts is 'half', expected drop or keep"):
        assay.trace(function, example, casts="half")


def by_codes_torch(x, w, to=None):
    s = x.float().abs().amax(-1, keepdim=True) / 448
    return ((x.float() / s).to(to or torch.float8_e4m3fn).float() @ w.float() * s).to(x.dtype)


def by_codes_jax(x, w, to=None):
    s = abs(x.astype(np.float32)).max(-1, keepdims=True) / 448
    codes = (x.astype(np.float32) / s).astype(to or jax.numpy.float8_e4m3fn)
    return (jax.numpy.matmul(codes.astype(np.float32), w.astype(np.float32), precision="highest") * s).astype(x.dtype)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_cast_to_fp8_is_a_step(library):
    globals()[library] = module = pytest.importorskip(library)
    if not hasattr(module if library == "torch" else module.numpy, "float8_e4m3fn"):
        pytest.skip("no fp8 in this PyTorch")
    function = globals()[f"by_codes_{library}"]
    example = {"x": np.ones((6, 32), np.float32), "w": np.ones((32, 5), np.float32)}
    example = {name: torch.as_tensor(x) if library == "torch" else jax.numpy.asarray(x) for name, x in example.items()}
    text = str(assay.trace(function, example))
    assert "  x: {axes: [T, D]}  # no gradient: a cast to fp8 is on its way\n" in text and 'gradients: ["inputs/w"]\n' in text
    other = (module if library == "torch" else module.numpy).float8_e5m2
    for precision in ("bf16", "f32"):
        assert "gradients/inputs/w" in str(assay.assert_correct(function, function, example, precision=precision))
        with pytest.raises(assay.Mismatch):
            assay.assert_correct(lambda x, w: function(x, w, other), function, example, precision=precision)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_reference_is_a_case_at_each_size(library):
    globals()[library] = pytest.importorskip(library)

    @assay.program(T=[1, 7], D=16, F=[8, 24], weights=["w"])
    def reference(x: "T D", w: "D F"):  # noqa: F722
        return torch.nn.functional.silu(x @ w) if library == "torch" else jax.nn.silu(x @ w)

    cases = [parameter.values[0] for parameter in reference.cases(precision="bf16").args[1]]
    assert [tuple(case.inputs()["weights/w"].shape) for case in cases] == [(16, 8), (16, 24)] * 2
    for case in cases:
        if library == "torch":
            given = case.inputs(torch, requires_grad=True)
            outputs = {"outputs/y": torch.nn.functional.silu(given["inputs/x"].float() @ given["weights/w"].float()).to(torch.bfloat16)}
            case.check({**outputs, **case.backward(outputs, given)})
            continue
        given, wide = case.inputs(jax), jax.numpy.float32
        y, back = jax.vjp(lambda x, w: jax.nn.silu(x.astype(wide) @ w.astype(wide)).astype(x.dtype), given["inputs/x"], given["weights/w"])
        dx, dw = back(case.cotangents(jax)["cotangents/y"])
        case.check({"outputs/y": y, "gradients/inputs/x": dx, "gradients/weights/w": dw})
