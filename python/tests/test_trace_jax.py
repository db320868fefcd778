"""Functions of JAX as programs: traced, evaluated, and held against the function itself in float64."""
import dis
import math
import re
import types

import assay
import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
F32 = jnp.float32


def gated(x, scale, w):
    n = x.astype(F32) * jax.lax.rsqrt(jnp.mean(x.astype(F32) ** 2, -1, keepdims=True) + 1e-6)
    h = (n.astype(x.dtype) * scale) @ w
    a, b = jnp.split(h, 2, -1)
    return jax.nn.silu(a) * b


def gated_without_casts(x, scale, w):
    h = (x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale) @ w
    a, b = jnp.split(h, 2, -1)
    return jax.nn.silu(a) * b


def attention(x, wq, wk, wv, wo):
    q, k, v = (jnp.einsum("bsd,dnh->bsnh", x, w) for w in (wq, wk, wv))
    s = jnp.einsum("bsnh,btnh->bnst", q, k) / math.sqrt(q.shape[-1])
    s = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), s, -1e30)
    o = jnp.einsum("bnst,btnh->bsnh", jax.nn.softmax(s, axis=-1), v)
    return x + jnp.einsum("bsnh,nhd->bsd", o, wo)


def cross_entropy(x, head, target):
    logits = x @ head.T
    nothing = jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], -1)[:, 0]
    return {"loss": -nothing, "again": jax.nn.logsumexp(logits, -1) - logits[jnp.arange(x.shape[0]), target]}


def rotated(x, angle):
    a, b = x[..., :4], x[..., 4:]
    c, s = jnp.cos(angle)[..., None, :], jnp.sin(angle)[..., None, :]
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1)


def normed(x, weight, bias, table, index):
    centred = x - jnp.mean(x, -1, keepdims=True)
    y = centred * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * weight + bias
    z = jax.nn.gelu(y) + jax.nn.gelu(y, approximate=False) + jnp.take(table, index, axis=0) + table[index]
    p = jnp.clip(z, -1, 1) - 0.5 * jax.nn.relu(z) + jax.nn.logsumexp(z, -1, keepdims=True) + jax.nn.softplus(z)
    return jnp.cumsum(p, 0), jnp.max(z, 1), jax.nn.softmax(z, 0).sum(1), jnp.logaddexp(y, z) ** 3


def masked(x, y, mask):
    chosen = jnp.where(mask[:, None] != 0, x, y)
    return jnp.stack([chosen, x * 2], 1), jnp.where(mask == 0, x.sum(1), 0), jnp.repeat(x, 3, axis=1)[:, 1:5], jnp.take(x, 3, axis=1) + x[:, -1] + x[:, ::2].sum(1)


def positions(x, y, at, group, ids):
    """MaxText's rotation, GPT-J's pairs, a window within groups, and a load of experts."""
    half = x.shape[-1] // 2
    sinusoid = at[:, None, None] / (10000.0 ** (2 * jnp.arange(half) / x.shape[-1]))
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([first * jnp.cos(sinusoid) - second * jnp.sin(sinusoid), second * jnp.cos(sinusoid) + first * jnp.sin(sinusoid)], -1)
    angle = (jnp.arange(y.shape[0])[:, None] / 500.0 ** (jnp.arange(0, 6, 2) / 6))[:, None]
    even, odd = y[..., ::2], y[..., 1::2]
    pairs = jnp.stack([even * jnp.cos(angle) - odd * jnp.sin(angle), odd * jnp.cos(angle) + even * jnp.sin(angle)], -1).reshape(y.shape)
    seen = (at[:, None] >= at) & (at[:, None] - at < 3) & (group[:, None] == group)
    scores = jnp.where(seen, jnp.einsum("tnh,snh->ts", x, x), -jnp.inf)
    best = jnp.argmax(y[:, 0], -1)
    hot = jax.nn.one_hot(best, 6) + jax.nn.one_hot(ids, 6)
    return turned, pairs, jax.nn.softmax(scores, -1), hot * y[:, 1] + jnp.bincount(ids, length=6), jax.ops.segment_sum(y, ids, 6), y[:, 0] * jnp.cos((at // 3 + at % 7) * 0.7)[:, None]


def convolved(x, taps):
    y = jax.lax.conv_general_dilated(x, taps.T[:, None], (1,), [(3, 0)], dimension_numbers=("NTC", "TIO", "NTC"), feature_group_count=x.shape[-1])
    return jax.nn.silu(y)


def pieces(x):
    x = 3 * x
    return jax.nn.leaky_relu(x), jax.nn.elu(x), jax.nn.selu(x), jax.nn.hard_tanh(x), jnp.where(x > 0.5, x, 0.5)


def routed(x, gate, experts):
    logits = x @ gate
    best, ids = jax.lax.top_k(logits, 3)
    p = jax.nn.softmax(best, -1)
    return {"y": jnp.einsum("tk,tkf->tf", p, experts[ids]), "ids": ids}


def windows(x, w, v):
    """Convolutions of a dimension, as they are, with steps and transposed; pooling."""
    y = jax.lax.conv_general_dilated(x, w, (2,), [(2, 1)], rhs_dilation=(2,)), jax.lax.conv_transpose(x, v, (2,), "SAME", dimension_numbers=("NCT", "IOT", "NCT"))
    grouped = jax.lax.conv_general_dilated(x, w[:, :2], (1,), "SAME", feature_group_count=3)
    return *y, grouped, jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, 3), (1, 1, 2), "VALID"), jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3), (1, 1, 3), "SAME")


def triangular(x, y):
    solve = jax.scipy.linalg.solve_triangular
    return solve(jnp.eye(6) + jnp.tril(x, -1), y, lower=True), solve(jnp.exp(x), y, trans=1), solve(x, y, lower=True, unit_diagonal=True), jnp.cumprod(x, 0), jax.lax.cumlogsumexp(y, 0)


def chosen(x, y):
    return jnp.sort(x, 0), x * jnp.argmin(y, 1)[:, None], y[jnp.argmax(x, 0)], y[jnp.argsort(x[:, 0])]


def heads(q, k, v):
    return jax.nn.dot_product_attention(q, k[:, :, :1], v[:, :, :1], is_causal=True), jax.nn.dot_product_attention(q, k, v), jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(2, 0))


def grouped(x, gate, w, y):
    """Experts on rows that are sorted; each token's rows of a table of its own."""
    best, ids = jax.lax.top_k(x @ gate, 2)
    order = jnp.argsort(ids.reshape(-1))
    rows = jax.lax.ragged_dot(jnp.repeat(x, 2, 0)[order], w, jnp.bincount(ids.reshape(-1), length=4))
    return (rows[jnp.argsort(order)].reshape(*ids.shape, -1) * best[..., None]).sum(1), jnp.take_along_axis(y, ids[..., None], 1)


CASES = {
    "grouped": (grouped, {"x": (9, 8), "gate": (8, 4), "w": (4, 8, 6), "y": (9, 4, 5)}, {}),
    "windows": (windows, {"x": (2, 6, 9), "w": (3, 6, 3), "v": (6, 4, 3)}, {}),
    "triangular": (triangular, {"x": (6, 6), "y": (6, 3)}, {}),
    "chosen": (chosen, {"x": (6, 8), "y": (6, 5)}, {}),
    "pieces": (pieces, {"x": (9, 16)}, {}),
    "routed": (routed, {"x": (9, 16), "gate": (16, 8), "experts": (8, 12)}, {}),
    "gated": (gated, {"x": (5, 8), "scale": (8,), "w": (8, 12)}, {}),
    "attention": (attention, {"x": (2, 7, 32), "wq": (32, 4, 8), "wk": (32, 4, 8), "wv": (32, 4, 8), "wo": (4, 8, 32)}, {}),
    "cross_entropy": (cross_entropy, {"x": (5, 8), "head": (11, 8)}, {"target": ((5,), 11)}),
    "rotated": (rotated, {"x": (3, 5, 8), "angle": (3, 4)}, {}),
    "normed": (normed, {"x": (6, 8), "weight": (8,), "bias": (8,), "table": (9, 8)}, {"index": ((6,), 9)}),
    "masked": (masked, {"x": (6, 8), "y": (6, 1)}, {"mask": ((6,), 2)}),
    "positions": (positions, {"x": (5, 2, 8), "y": (5, 2, 6)}, {"at": ((5,), 90), "group": ((5,), 2), "ids": ((5,), 6)}),
    "convolved": (convolved, {"x": (2, 9, 6), "taps": (6, 4)}, {}),
}


def program_of(name):
    function, floats, indices = CASES[name]
    example = {key: jax.ShapeDtypeStruct(shape, jnp.float32) for key, shape in floats.items()}
    example.update({key: jax.ShapeDtypeStruct(shape, jnp.int32) for key, (shape, _) in indices.items()})
    return assay.trace(function, example, integers={key: most for key, (_, most) in indices.items()}, dtype="float64", profiles="f64")


def results(function, case):
    """What the function itself gives in float64, and its gradients."""
    with jax.enable_x64(True):
        given = {path.split("/")[1]: x for path, x in case.inputs(jax).items() if "constant" not in path}
        folder = {path.split("/")[1]: path.split("/")[0] for path in case.inputs()}
        integers = {key: x for key, x in given.items() if x.dtype == jnp.int32}
        floats = {key: x for key, x in given.items() if key not in integers}

        def outputs(floats):
            made = function(**floats, **integers)
            made = made if isinstance(made, dict) else dict(enumerate(made)) if isinstance(made, tuple) else {"": made}
            return {f"outputs/{key if isinstance(key, str) and key else f'y{key}'}": y for key, y in made.items() if y.dtype != jnp.int32}

        made, back = jax.vjp(outputs, floats)
        gradients = back({path.replace("cotangents", "outputs"): x for path, x in case.cotangents(jax).items()})[0]
        return {**made, **{f"gradients/{folder[key]}/{key}": x for key, x in gradients.items()}}


ITSELF = {"gated": gated_without_casts}  # what the program is of, where the function rounds on its way


@pytest.mark.parametrize("name", CASES)
def test_the_function_itself_passes_in_float64(name):
    case = program_of(name).case("f64")
    case.check(results(ITSELF.get(name, CASES[name][0]), case))


def test_what_several_primitives_compute_is_one_step():
    def functions(x):
        return {"a": jax.nn.softmax(x), "b": jax.nn.logsumexp(x, 0), "c": jax.nn.gelu(x), "d": jax.nn.gelu(x, approximate=False), "e": jax.nn.softplus(x),
                "f": jnp.mean(x), "g": x.astype(F32) / math.sqrt(8),
                "h": x * jnp.sqrt(jnp.array(2, F32)).astype(jnp.bfloat16)}

    text = str(assay.trace(functions, {"x": jax.ShapeDtypeStruct((5, 8), jnp.bfloat16)}))
    steps = ['a: softmax(x, over="D", unfused=true)', 'b: logsumexp(x, over="T", unfused=true)', "c: gelu(x, unfused=true)", "d: gelu_exact(x, unfused=true)", "e: softplus(x, unfused=true)", 'f: mean(x, over="TD")', f"g: div(x, {8**0.5!r})",
             f"h: mul(x, {2**0.5!r})"]
    assert text.split("outputs:\n")[1] == "".join(f"  {step}\n" for step in steps)


def test_attention_has_a_softmax():
    assert str(assay.trace(heads, {name: jax.ShapeDtypeStruct((2, 6, 4, 8), F32) for name in "qkv"})).count("softmax(") == 3


def test_a_rotation_is_one_step():
    text = str(program_of("positions"))
    assert "  y0: rope(x, at, theta=10000.0)\n" in text and 'rope(y, iota("T"), theta=500.0, interleave=true)' in text
    assert "less(float(at)" in text and "sin(" not in text and 'fused: ["mul' in text


def test_scaled_frequencies_are_an_input_of_rope():
    def scaled(x, at):
        angle = at[:, None] * jnp.array([1.0, 0.3, 0.02, 0.0001], F32)
        cosine, sine = jnp.cos(angle) * 1.25, jnp.sin(angle) * 1.25
        a, b = x[:, :4], x[:, 4:]
        return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    text = str(assay.trace(scaled, {"x": jax.ShapeDtypeStruct((5, 8), F32), "at": jnp.arange(5)}))
    assert "  y: mul(rope(x, at, frequencies), 1.25)\n" in text and "values: [1.0, 0.3, 0.02, 0.0001]" in text


def state_space(x, a, b, c):
    def one(h, token):
        xt, at, bt, ct = token
        h = jax.nn.sigmoid(at)[:, None] * h + xt[:, None] * bt[None, :]
        return h, h @ ct

    return jax.lax.scan(one, jnp.zeros((x.shape[1], b.shape[1]), x.dtype), (x, a, b, c))[1]


def backwards(x, w, h0):
    return jax.lax.scan(lambda h, t: (jnp.tanh(t + h @ w),) * 2, h0, x, reverse=True)


def sinkhorn(x):
    def one(_, m):
        m = m / (m.sum(-1, keepdims=True) + 1e-6)
        return m / (m.sum(-2, keepdims=True) + 1e-6)

    return jax.lax.fori_loop(0, 20, one, jnp.exp(x))


def linear(a, b):
    return jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (jax.nn.sigmoid(a), b))[1]


def written(x):
    y = jax.lax.fori_loop(0, x.shape[0], lambda i, y: y.at[i].set(jnp.tanh(x[i])), jnp.zeros_like(x))
    return jax.lax.fori_loop(1, x.shape[0], lambda i, z: jax.lax.dynamic_update_slice(z, (y[i] * z[i - 1])[None], (i, 0)), y)


def mapped(x, w):
    return jax.lax.map(lambda row: jnp.sin(row @ w), x)


@pytest.mark.parametrize("function, shapes", [
    (state_space, {"x": (9, 4), "a": (9, 4), "b": (9, 3), "c": (9, 3)}), (backwards, {"x": (7, 4), "w": (4, 4), "h0": (4,)}), (sinkhorn, {"x": (3, 4, 4)}),
    (linear, {"a": (13, 3), "b": (13, 3)}), (written, {"x": (6, 3)}), (mapped, {"x": (5, 3), "w": (3, 4)})], ids=lambda x: getattr(x, "__name__", ""))
def test_loops_follow_round_after_round(function, shapes):
    example = {name: jax.ShapeDtypeStruct(shape, F32) for name, shape in shapes.items()}
    assert assay.assert_correct(function, function, example, precision="f32").verdict == "PASS"  # trace held it to its own numbers and gradients


def test_a_maximum_of_elsewhere_is_no_softmax():
    def other(x):
        e = jnp.exp(x - jnp.max(x, 0, keepdims=True))
        return e / jnp.sum(e, 1, keepdims=True)

    assert "softmax" not in str(assay.trace(other, {"x": jax.ShapeDtypeStruct((5, 5), F32)}))


@pytest.mark.parametrize("line, what", [
    ("jax.lax.erf_inv(x)", "erf_inv: a program has no such operator"),
    ("jax.lax.while_loop(lambda s: s.sum() < 3., lambda s: s * 2, x)", "while: when the loop ends is computed from the arguments"),
    ("jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)", "cond: which branch runs is computed from the arguments"),
    ("jax.lax.erfc(x)", "erfc: a program has it within gelu alone"),
    ("x.sum() * jnp.linspace(0., 1., 1 << 17).reshape(2, 1 << 16)", "mul: a tensor [2, 65536] that is none of the function's arguments: 131072 numbers, expected at most 65536 finite ones, or an argument"),
    ("x[i ^ 1]", "xor: a program has no such operator"),
    ("[x, None]", "of its results y1 is None, expected a tensor, several of them, or a dictionary with their names"),
    ("x[:0]", "slice: a tensor without numbers"),
    ("jnp.where((jnp.arange(300)[:, None] * jnp.arange(300)) % 7 == 0, 0, x[0, 0])", "select_n: whole numbers or a mask [300, 300] that are none of the function's arguments: 90000 numbers, "
     "expected at most 65536, or an argument"),
])
def test_what_no_program_has_is_refused_with_its_line(line, what):
    def function(x, i):
        return eval(line, {"jax": jax, "jnp": jnp, "x": x, "i": i})

    first = function.__code__.co_firstlineno
    with pytest.raises(assay.BadInput) as refused:
        assay.trace(function, {"x": jax.ShapeDtypeStruct((4, 8), F32), "i": jnp.arange(4)})
    assert str(refused.value) in (f"{__file__}:{first + 1}: {what}", f"{__file__}:{first}: {what}")  # of a line, of the function


def test_integers_want_a_range():
    with pytest.raises(assay.BadInput, match="i: integers of .*: expected how many there are"):
        assay.trace(lambda x, i: x[i], {"x": jax.ShapeDtypeStruct((4, 8), F32), "i": jax.ShapeDtypeStruct((3,), jnp.int32)})


@jax.custom_vjp
def scaled(x):
    return x * 1


scaled.defvjp(lambda x: (x * 1, None), lambda _, g: (g / 4,))


@jax.custom_vjp
def same_gradient(x):
    return jnp.square(x)


same_gradient.defvjp(lambda x: (jnp.square(x), x), lambda x, g: (2 * x * g,))

#: A function of x [4,8], z [4,8] and m [4], of 0 to 3, and how it is refused; "": its program is the function.
ARGUMENTS = {
    "truths": (lambda x, z, m: x * m.astype(bool).astype(F32)[:, None] + m.astype(bool).astype(jnp.int32)[:, None] * z, ""),
    "logical": (lambda x, z, m: x * jnp.logical_and(m, m - 1)[:, None] + jnp.count_nonzero(m) * z, ""),
    "moved truths": (lambda x, z, m: jnp.where((m == 0)[1:, None], x[1:], z[1:]) + (m != 0)[:3, None] * x[1:], ""),
    "inverted bits": (lambda x, z, m: x * (~m)[:, None] + z, "not: the bits of whole numbers"),
    "bits": (lambda x, z, m: x * (m & 1)[:, None] + jnp.tile((m[:, None] >> jnp.arange(2)) & 1, (1, 4)) * z + (m << 2)[:, None], ""),
    "other bits": (lambda x, z, m: x * (m & 2)[:, None] + z, "and: the bits of whole numbers by 2, expected 2\\^n - 1, or a shift"),
    "reversed": (lambda x, z, m: jax.lax.cumsum(x, 0, reverse=True) + z * m[:, None], "cumsum: reverse is True, expected False"),
    "pairs of indices": (lambda x, z, m: x[:, :4][jnp.arange(4), m[:, None]] + z[:, :4], "gather: expected indices of one dimension"),
    "a rule of its own": (lambda x, z, m: scaled(x) + z * m[:, None], "gradients/inputs/x.*its gradients are others"),
    "the same rule": (lambda x, z, m: same_gradient(x.astype(F32)) + z * m[:, None], ""),
    "two to a power": (lambda x, z, m: 2.0**x + z * m[:, None], ""),
    "a tensor to a power": (lambda x, z, m: x**z + m[:, None], "pow: the power is a tensor"),
    "casts": (lambda x, z, m: jax.nn.softmax(x.astype(jnp.bfloat16)).astype(F32) + jax.nn.relu(z.astype(F32)) * m[:, None], ""),
    "padding": (lambda x, z, m: jnp.pad(x, ((1, 2), (0, 1)), mode="edge") + jnp.pad(z, ((0, 3), (1, 0)), constant_values=2.0) * m[0], ""),
    "moved": (lambda x, z, m: jnp.flip(x) + jnp.roll(z, (1, -3), (0, 1)) + m[1:, None].sum() * x, ""),
    "size 1": (lambda x, z, m: jnp.where(jnp.tril(jnp.ones((1, 1), bool)), x[:1, :1], 0) * z + m[:, None], ""),
    "causal": (lambda x, z, m: jnp.where(jnp.tril(jnp.ones((128, 128), bool)), jnp.tile(x, (32, 16)), -1.0)[:4, :8] * z + m[:, None], ""),
    "stopped": (lambda x, z, m: x * jax.lax.stop_gradient(jnp.max(jnp.abs(x), -1, keepdims=True)) + z * m[:, None], ""),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_a_primitive_is_told_is_in_the_program_or_refused(name):
    function, refused = ARGUMENTS[name]
    example = {"x": np.ones((4, 8), np.float32), "z": np.ones((4, 8), np.float32), "m": np.arange(4, dtype=np.int32)}
    try:
        case = assay.trace(function, example, dtype="float64", profiles="f64").case("f64")
        assert not refused
    except assay.BadInput as why:
        assert f"{__file__}:{function.__code__.co_firstlineno}" in str(why)
        assert refused and re.search(refused, str(why)), str(why)
    else:
        with jax.enable_x64(True):
            given = {path.split("/")[1]: x for path, x in case.inputs(jax).items() if "constant" not in path}
            wide = lambda x, z: function(x, z, given["m"])  # noqa: E731
            if name != "casts":  # which the program leaves out
                y, back = jax.vjp(wide, given["x"], given["z"])
                dx, dz = back(case.cotangents(jax)["cotangents/y"].astype(y.dtype))
                assert np.abs(np.asarray(y) - case.golden("outputs/y")).max() < 1e-6
                assert max(np.abs(np.asarray(d) - case.golden(f"gradients/inputs/{n}")).max() for n, d in (("x", dx), ("z", dz))) < 1e-6


def test_a_parameter_that_is_not_read_is_refused():
    from assay import _trace, _trace_jax

    walk = _trace_jax.Walk(_trace.Tracer("walk", len), gated)
    names = [name.removeprefix("on_").replace("scatter_add", "scatter-add") for name in dir(walk) if name.startswith("on_")]
    for name in (*names, *_trace_jax.MAPS, *_trace_jax.BINARY, *_trace_jax.COMPARISONS, "and", "or"):
        handler = walk.handler(name)
        takes = handler.__code__.co_varnames[: handler.__code__.co_argcount]
        named = takes[takes.index("given") + 1 :]
        loads = [op.argval if isinstance(op.argval, tuple) else (op.argval,) for op in dis.get_instructions(handler.__code__) if op.opname.startswith("LOAD")]
        assert all(key in sum(loads, ()) or key in handler.__code__.co_cellvars for key in named), name
        with pytest.raises(assay.BadInput, match="another is 3, expected a primitive without it"):
            walk.record(name, types.SimpleNamespace(params={key: None for key in named} | {"another": 3}), [])


# Labels that are passed over.


def of_labels(x, t):
    counts = t != -100
    each = -jnp.take_along_axis(jax.nn.log_softmax(x, -1), jnp.where(counts, t, 0)[:, None], -1)[:, 0]
    return jnp.where(counts, each, 0.0).sum() / counts.sum()


def of_labels_by_comparison(x, t):
    counts = t != -100
    each = -jnp.sum(jax.nn.log_softmax(x, -1) * jax.nn.one_hot(t, x.shape[-1], dtype=x.dtype), -1)
    return jnp.where(counts, each, 0.0).sum() / counts.sum()


def by_all_tokens(x, t):
    return of_labels(x, t) * (t != -100).sum() / len(t)


def all_labels(x, t):
    return of_labels(x, jnp.maximum(t, 0))


@pytest.mark.parametrize("function", [of_labels, of_labels_by_comparison])
def test_labels_that_are_passed_over_are_drawn(function):
    program = assay.trace(function, {"x": np.ones((6, 32), np.float32), "t": np.array([1, 5, -100, 31, 0, 2])}, dtype="float32")
    assert "t: {axes: [T], integers: [0, 31]}  # a quarter of them is -100\n" in str(program)
    case = program.case("f32")
    case.check(results(function, case))
    for wrong in (by_all_tokens, all_labels):
        with pytest.raises(assay.Mismatch):
            case.check(results(wrong, case))


def test_assert_correct():
    def reference(x, w):
        return jax.nn.silu(x @ w)

    def kernel(x, w):
        return jax.nn.silu(x.astype(jnp.float32) @ w.astype(jnp.float32)).astype(jnp.bfloat16)

    example = {"x": jax.ShapeDtypeStruct((6, 16), jnp.float32), "w": jax.ShapeDtypeStruct((16, 12), jnp.float32)}
    assert "gradients/weights/w" in str(assay.assert_correct(kernel, reference, example, precision="bf16", weights=["w"]))
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda x, w: kernel(x, w) * 1.05, reference, example, precision="bf16", weights=["w"])


def test_modules_of_flax():
    linen, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")

    class Gated(linen.Module):
        @linen.compact
        def __call__(self, x):
            n = linen.RMSNorm(epsilon=1e-6)(x)
            return linen.silu(linen.Dense(12)(n)) * linen.Dense(12, use_bias=False)(n)

    class Two(nnx.Module):
        def __init__(self, rngs):
            self.norm, self.up = nnx.RMSNorm(8, rngs=rngs), nnx.Linear(8, 12, rngs=rngs)

        def __call__(self, x):
            return nnx.gelu(self.up(self.norm(x)))

    x = jnp.ones((5, 8))
    for module, weight in ((Gated().bind(Gated().init(jax.random.key(0), x)), "Dense_0_kernel"), (Two(nnx.Rngs(0)), "up_kernel")):
        text = str(assay.trace(module, x))
        assert f"  {weight}: {{axes: [D, H]}}" in text and "rms_norm(x, " in text
        assert assay.assert_correct(module, module, x, precision="f32").verdict == "PASS"


def test_sizes_of_groups_are_those_of_the_example():
    example = {"x": jnp.ones((9, 8)), "w": jnp.ones((3, 8, 6)), "sizes": jnp.array([4, 0, 5], jnp.int32)}
    program = assay.trace(jax.lax.ragged_dot, {"lhs": example["x"], "rhs": example["w"], "group_sizes": example["sizes"]})
    assert "values: [4, 0, 5]" in str(program) and 'grouped_product("' in str(program)


DECAYS = np.exp(-0.1 * np.abs(np.arange(64)[:, None] - np.arange(64))) + 0.01 * np.eye(64)
ALONE = {"slope": lambda x: jax.grad(lambda y: jnp.tanh(y).sum())(x), "table": lambda x: x @ jnp.asarray(DECAYS, x.dtype), "exp": jnp.exp, "tanh": jnp.tanh, "reciprocal": lambda x: 1 / (x * x + 1), "erf": jax.scipy.special.erf, "gelu": jax.nn.gelu, "exact": lambda x: jax.nn.gelu(x, approximate=False),
         "silu": jax.nn.silu, "softmax": jax.nn.softmax, "logsumexp": lambda x: jax.nn.logsumexp(x, -1), "leaky": lambda x: jax.nn.leaky_relu(x, 0.1), "copies": lambda x: jnp.tile(jnp.repeat(x, 3, 0), (1, 2))}


@pytest.mark.parametrize("name", ALONE)
def test_a_function_passes_against_itself(name):
    """As it is, in bfloat16: what its operators store is not what a kernel in float32 does."""
    for precision in ("bf16", "f32"):
        assert assay.assert_correct(lambda x: ALONE[name](x), lambda x: ALONE[name](x), {"x": jnp.ones((24, 64))}, precision=precision).verdict == "PASS"
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda x: 0.98 * ALONE[name](x), lambda x: ALONE[name](x), {"x": jnp.ones((24, 64))}, precision="bf16")


def centred(x, b):
    return (x - x.mean(0)) * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) + b


@pytest.mark.parametrize("function", [centred, lambda x, b: jnp.cumsum(x, 0) + jax.nn.log_softmax(4 * x, -1) * b, lambda x, b: jnp.sort(jnp.prod(x.reshape(-1, 4, 8), 1), -1) * b])
def test_sums_are_stored_as_they_grow(function):
    """As JAX adds up, on processors: against itself the function passes."""
    example = {"x": jnp.ones((64, 8)), "b": jnp.ones(8)}
    assert "stored" in str(assay.trace(function, example))
    assay.assert_correct(function, function, example, precision="bf16")


def test_a_kernel_without_gradients_is_said():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def doubled(x, y):
        y[...] = x[...] * 2

    def kernel(x):
        rows = pallas.BlockSpec((4, 8), lambda i: (i, 0))
        return pallas.pallas_call(doubled, grid=(2,), in_specs=[rows], out_specs=rows, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    assay.assert_correct(kernel, lambda x: x * 2, {"x": jnp.ones((8, 8))}, precision="bf16", gradients=False)
    with pytest.raises(assay.BadInput, match="jax.vjp of the kernel ends by Linearization failed.*Expected a kernel with gradients, or gradients=False"):
        assay.assert_correct(kernel, lambda x: x * 2, {"x": jnp.ones((8, 8))}, precision="bf16")
