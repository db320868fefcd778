"""Kernels of programs in forms that a correct kernel may have, in float32 by hand: they pass."""
import json

import assay
import numpy as np
import pytest

LOG2E = np.float32(1.4426950408889634)
TYPES = {"f32": np.float32, "f16": np.float16}


def rejected(program, kernel, precision, seeds, **inputs):
    """Seeds with which the kernel is not called right."""
    wrong = []
    for seed in seeds:
        case = assay.case("case: mine/kernel\nop: program\n" + program, precision=precision, dtype=TYPES[precision].__name__, seed=seed,
                          explain=False, cache="", inputs=inputs)
        given = {path.rsplit("/")[-1]: np.asarray(x, np.float32) for path, x in case.inputs().items()}
        given["dy"] = np.asarray(case.cotangents()["cotangents/y"], np.float32)
        results = kernel(given, TYPES[precision])
        if case.judge({path: np.asarray(x, TYPES[precision]) for path, x in results.items()}).verdict != "PASS":
            wrong.append(seed)
    return wrong


def fill(scale):
    return {"distribution": "normal", "scale": scale}


def along(x, f=np.sum):
    return f(x, -1, keepdims=True)


def by_lse(z):
    m = along(z, np.max)
    return np.exp(z - (m + np.log(along(np.exp(z - m)))))


def by_exp2(z):
    e = np.exp2(z * LOG2E - along(z, np.max) * LOG2E)
    return e / along(e)


def by_inverse(z):
    e = np.exp(z - along(z, np.max))
    return e * (np.float32(1 - 2**-24) / along(e))  # a reciprocal that is off by a unit


ROWS = "sizes: {T: 16, E: %d}\ninputs: {z: [T, E]}\nsteps: {}\noutputs:\n  y: %s\n"


@pytest.mark.parametrize("width", [1, 64])
@pytest.mark.parametrize("form", [by_lse, by_exp2, by_inverse])
def test_softmax(form, width):
    def kernel(g, _):
        p = form(g["z"])
        return {"outputs/y": p, "gradients/inputs/z": p * (g["dy"] - along(p * g["dy"]))}

    for scale in 1, 10, 100:
        assert rejected(ROWS % (width, 'softmax(z, over="E")'), kernel, "f32", range(1, 5), z=fill(scale)) == []


def test_exp_by_exp2():
    def kernel(g, _):
        y = np.exp2(g["z"] * LOG2E)
        return {"outputs/y": y, "gradients/inputs/z": g["dy"] * y}

    assert rejected(ROWS % (64, "exp(z)"), kernel, "f32", range(1, 5), z=fill(10)) == []


@pytest.mark.parametrize("back", ["by the result", "by the softmax"])
def test_logsumexp_by_exp2(back):
    def kernel(g, _):
        m = along(g["z"], np.max) * LOG2E
        y = (np.log2(along(np.exp2(g["z"] * LOG2E - m))) + m) / LOG2E
        p = np.exp(g["z"] - y) if back == "by the result" else by_exp2(g["z"])
        return {"outputs/y": y[:, 0], "gradients/inputs/z": g["dy"][:, None] * p}

    for scale in 1, 10, 100:
        assert rejected(ROWS % (64, 'logsumexp(z, over="E")'), kernel, "f32", range(1, 5), z=fill(scale)) == []


def flash(q, k, v, dout, stored, shown=True, cap=0.0, bias=0.0, sinks=None, cast=False):
    """Out and gradients of queries, keys, values, bias and sinks; <out, dout> is that of out as it is stored. q [N,T,H]."""
    turned = k.swapaxes(-1, -2)
    s, slope = q @ turned * np.float32(q.shape[-1] ** -0.5), np.float32(1)
    if cap:
        t = np.tanh(s / np.float32(cap))
        s, slope = np.float32(cap) * t, 1 - t * t
    s = np.where(shown, s + bias, -np.inf)
    m = along(s, np.max)
    sink = np.full_like(m, -np.inf) if sinks is None else sinks[:, None] + 0 * m
    m = np.maximum(m, sink)
    e = np.exp(s - m)
    sum_e = along(e) + np.exp(sink - m)
    out = stored((stored(e / sum_e) if cast else e / sum_e) @ v)
    lse = m + np.log(sum_e)
    p = np.exp(s - lse)
    delta = along(dout * out)
    db = p * (dout @ v.swapaxes(-1, -2) - delta)
    ds = db * slope * np.float32(q.shape[-1] ** -0.5)
    return out, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout, db, -(np.exp(sink - lse) * delta).sum(1)


ATTENTION = """sizes: {{T: {T}, S: {S}, N: 3, H: {H}}}
inputs: {{q: [T, N, H], k: [S, N, H], v: [S, N, H], bias: [N, T, S]}}
steps:
  s: mul(product("TNH,SNH->NTS", q, k), {scale})
  p: softmax({shown}, over="S")
outputs:
  y: {y}
"""
PLAIN = 'product("NTS,SNH->TNH", p, v)'


def attend(g, dtype, **how):
    q, k, v, dy = (g[x].swapaxes(0, 1) for x in ("q", "k", "v", "dy"))
    out, *back, db, dsinks = flash(q, k, v, dy, lambda x: np.asarray(np.asarray(x, dtype), np.float32), bias=g["bias"], **how)
    gradients = {f"gradients/inputs/{name}": x.swapaxes(0, 1) for name, x in zip("qkv", back)}
    results = {"outputs/y": out.swapaxes(0, 1), **gradients, "gradients/inputs/bias": db}
    return results if "sinks" not in how else {**results, "gradients/weights/sinks": dsinks}


PRODUCTS = {
    "probabilities first": PLAIN,
    "values first": 'rearrange("NHT->TNH", product("SNH,NTS->NHT", v, p))',
    "other letters": 'product("NTA,ANH->TNH", p, reshape("ANH", v))',
    "another order": 'product("STN,SNH->TNH", rearrange("NTS->STN", p), v)',
    "in registers": PLAIN + "\nfused: all",
}


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("operands", PRODUCTS)
def test_flash_backward_where_a_row_sees_one_key(precision, operands):
    y = PRODUCTS[operands]
    shown = np.tril(np.ones((6, 6), bool))
    program = ATTENTION.format(T=6, S=6, H=64, scale=64**-0.5, y=y, shown="where(mask, add(s, bias), -1e+30)")
    mask = {"axes": ["T", "S"], "integers": [0, 1], "values": shown.astype(int).ravel().tolist()}
    program = program.replace("bias: [N, T, S]", f"bias: [N, T, S], mask: {json.dumps(mask)}")
    program = program.replace("S: 6,", "S: 6, A: 6,") if "A" in y else program
    assert rejected(program, lambda g, dtype: attend(g, dtype, shown=shown), precision, range(1, 9)) == []


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("cap", [0, 5])
def test_flash_backward_where_one_key_rules_a_row(precision, cap):
    shown = "add(mul(tanh(div(s, 5.0)), 5.0), bias)" if cap else "add(s, bias)"
    program = ATTENTION.format(T=17, S=5, H=7, scale=7**-0.5, y=PLAIN, shown=shown)
    inputs = {name: fill(10) for name in ("q", "k", "v", "bias")}
    assert rejected(program, lambda g, dtype: attend(g, dtype, cap=cap), precision, range(1, 9), **inputs) == []


def test_flash_backward_of_probabilities_that_are_cast():
    program = ATTENTION.format(T=17, S=33, H=16, scale=0.25, y=PLAIN.replace("p,", 'cast(p, "float16"),'), shown="add(s, bias)")
    assert rejected(program, lambda g, dtype: attend(g, dtype, cast=True), "f16", range(1, 9), q=fill(16)) == []


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_flash_backward_with_a_sink(precision):
    """A column of the softmax that has no value."""
    program = """sizes: {T: 9, S: 9, N: 3, H: 32, A: 1, R: 10}
inputs: {q: [T, N, H], k: [S, N, H], v: [S, N, H], bias: [N, T, S]}
weights: {sinks: {axes: [N, A], scale: 1.0}}
steps:
  s: add(mul(product("TNH,SNH->NTS", q, k), 0.17677669529663687), bias)
  p: softmax(concatenate("S,A->R", s, rearrange("NA->NTA", sinks)), over="R")
outputs:
  y: product("NTS,SNH->TNH", slice("R->S", p), v)
"""
    assert rejected(program, lambda g, dtype: attend(g, dtype, sinks=g["sinks"]), precision, range(1, 9), q=fill(16)) == []


def test_a_residual_gradient_is_added_in_pieces():
    """As automatic differentiation adds them: the norm's factor, then what comes through its mean of squares."""
    program = """sizes: {T: 32, D: 96, F: 48}
inputs: {x: [T, D]}
weights: {g: [D], w: [D, F], u: [F, D]}
steps:
  n: rms_norm(x, g)
  h: product("TD,DF->TF", n, w)
outputs:
  y: add(x, product("TF,FD->TD", h, u))
"""

    def kernel(given, _):
        x, scale, w, u, dy = (given[name] for name in ("x", "g", "w", "u", "dy"))
        rstd = 1 / np.sqrt(along(x * x, np.mean) + np.float32(1e-6))
        n = x * rstd
        h = n * scale @ w
        dh = dy @ u.T
        dn = dh @ w.T
        d = dn * scale
        return {
            "outputs/y": x + h @ u,
            "gradients/inputs/x": (dy + d * rstd) - x * (rstd**3 * along(d * x, np.mean)),
            "gradients/weights/g": (dn * n).sum(0),
            "gradients/weights/w": (n * scale).T @ dh,
            "gradients/weights/u": h.T @ dy,
        }

    assert rejected(program, kernel, "f32", range(1, 5), x=fill(300)) == []


ROUTER = """sizes: {T: 13, D: 32, E: 8, K: 3, F: 8}
inputs: {x: [T, D]}
weights: {gate: [D, E], experts: [E, F]}
steps:
  p: softmax(product("TD,DE->TE", x, gate), over="E")
  ids: top_k(p, "E->K")
  w: pick(p, ids)
  n: div(w, %s)
outputs:
  y: product("TK,TKF->TF", n, gather(experts, ids))
"""


@pytest.mark.parametrize("divisor", ['sum(w, over="K")', 'add(sum(w, over="K"), 1e-20)'])
def test_a_router_as_a_softmax_of_the_chosen_logits(divisor):
    def kernel(g, _):
        z = g["x"] @ g["gate"]
        ids = np.argsort(-z, -1, kind="stable")[:, :3]
        chosen = np.take_along_axis(z, ids, -1)
        e = np.exp(chosen - along(chosen, np.max))
        n, values = e / along(e), g["experts"][ids]
        dn = np.einsum("tf,tkf->tk", g["dy"], values)
        dz, dvalues = np.zeros_like(z), np.zeros_like(g["experts"])
        np.put_along_axis(dz, ids, n * (dn - along(n * dn)), -1)
        np.add.at(dvalues, ids, n[..., None] * g["dy"][:, None])
        return {
            "outputs/y": np.einsum("tk,tkf->tf", n, values),
            "gradients/inputs/x": dz @ g["gate"].T,
            "gradients/weights/gate": g["x"].T @ dz,
            "gradients/weights/experts": dvalues,
        }

    for scale in 3, 10, 30:
        assert rejected(ROUTER % divisor, kernel, "f32", range(1, 5), x=fill(scale)) == []


def test_a_sigmoid_by_tanh_is_named():
    """(1 + tanh(x / 2)) / 2 has an absolute error: it is no correct kernel far below 0, and the report says so."""
    case = assay.case(
        "case: mine/kernel\nop: program\nsizes: {B: 2, T: 37, C: 24, K: 4}\ninputs: {x: {axes: [B, T, C], scale: 10}}\nweights: {taps: [C, K]}\n"
        "steps:\n  v: causal_conv(x, taps)\noutputs:\n  y: silu(v)\n",
        precision="f16", dtype="float16", cache="")
    x, taps = (np.asarray(case.inputs()[path], np.float32) for path in ("inputs/x", "weights/taps"))
    v = sum(np.pad(x, ((0, 0), (3 - k, 0), (0, 0)))[:, :37] * taps[:, k] for k in range(4))
    right, by_tanh = 1 / (1 + np.exp(-v)), np.float32(0.5) + np.float32(0.5) * np.float32(np.tanh(np.float64(v) / 2))
    assert case.judge({"outputs/y": (v * right).astype(np.float16)}, gradients=False).verdict == "PASS"
    report = case.judge({"outputs/y": (v * by_tanh).astype(np.float16)}, gradients=False)
    assert report.verdict == "FAIL" and "equals mutant step:y:by_tanh" in str(report)


def scan_in_chunks(g, length):
    """Mamba-2's form: exp of differences of sums of log a = -d within a chunk, and back as automatic differentiation has it."""
    d, x, dy = g["d"], g["x"], g["dy"]
    y, dlog, dx = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    state, starts, kept = np.zeros_like(x[:, 0]), range(0, x.shape[1], length), []
    for first in starts:
        at = slice(first, first + length)
        sums = np.cumsum(-d[:, at], 1, dtype=np.float32)
        later = np.tril(np.ones((sums.shape[1],) * 2, bool))[None, :, :, None]
        decay = np.exp(np.where(later, sums[:, :, None] - sums[:, None], -np.inf))  # [B,T,S,C]
        carried = np.exp(sums)
        kept.append((at, decay, carried, state))
        y[:, at] = (decay * x[:, None, at]).sum(2) + carried * state[:, None]
        state = y[:, at][:, -1]
    back = np.zeros_like(state)
    for at, decay, carried, state in reversed(kept):
        dout = dy[:, at].copy()
        dout[:, -1] += back
        dx[:, at] = (decay * dout[:, :, None]).sum(1)
        terms = decay * (dout[:, :, None] * x[:, None, at])
        dsums = terms.sum(2) - terms.sum(1) + carried * (dout * state[:, None])
        dlog[:, at] = np.cumsum(dsums[:, ::-1], 1, dtype=np.float32)[:, ::-1]
        back = (carried * dout).sum(1)
    return {"outputs/y": y, "gradients/inputs/d": -dlog, "gradients/inputs/x": dx}


def scan_one_by_one(g, _):
    a, x, dy = np.exp(-g["d"]), g["x"], g["dy"]
    y, da, dx = np.empty_like(x), np.zeros_like(x), np.empty_like(x)
    for t in range(x.shape[1]):
        y[:, t] = x[:, t] + (a[:, t] * y[:, t - 1] if t else 0)
    for t in reversed(range(x.shape[1])):
        dx[:, t] = dy[:, t] + (a[:, t + 1] * dx[:, t + 1] if t + 1 < x.shape[1] else 0)
        if t:
            da[:, t] = dx[:, t] * y[:, t - 1]
    return {"outputs/y": y, "gradients/inputs/d": -(da * a), "gradients/inputs/x": dx}


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("length", [0, 4, 8, 16, 64, 256])
@pytest.mark.parametrize("most", [0.125, 1])
def test_linear_scan_in_chunks(precision, length, most):
    program = f"""sizes: {{B: 2, T: 64, C: 6}}
inputs: {{x: [B, T, C], d: {{axes: [B, T, C], distribution: uniform, low: 0.0, high: {most}}}}}
steps: {{a: exp(neg(d))}}
outputs:
  y: linear_scan(a, x, over="T")
fused: [a]
"""

    def kernel(g, _):
        return scan_in_chunks(g, length) if length else scan_one_by_one(g, _)

    assert rejected(program, kernel, precision, range(1, 9)) == []
