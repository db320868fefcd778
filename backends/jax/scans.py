"""State-space models and recurrent networks of twelve papers as programs (docs/programs.md): each is a short function with `lax.scan`, traced, and its
gradients too. A kernel in float32 that stores bfloat16 once passes (one that takes all tokens at once by `associative_scan`, where the paper's recurrence
allows that), and a kernel that loses its state half-way does not.

usage: scans.py [WORD]: of those whose name has the word. build/environments/jax/bin/python3, with ASSAY_LIBRARY and PYTHONPATH set
"""
import sys

import assay
import jax
import jax.numpy as jnp
import numpy as np

T, H, N = 12, 5, 4
DRAW = np.random.default_rng(1)
FUNCTIONS = {}


def paper(name, weights="", fills=None, **example):
    """An argument's example: its shape."""

    def add(function):
        FUNCTIONS[name] = (function, {n: DRAW.standard_normal(shape).astype(np.float32) for n, shape in example.items()}, weights.split(), fills or {})
        return function

    return add


class Scan:
    """As the papers have it."""

    def recur(self, step, start, xs):
        return jax.lax.scan(step, start, xs)[1]

    def linear(self, a, b):
        """h[t] = a[t] h[t-1] + b[t]"""
        def step(h, x):
            h = x[0] * h + x[1]
            return h, h

        return self.recur(step, jnp.zeros_like(b[0]), (a, b))


class AllAtOnce(Scan):
    def linear(self, a, b):
        return jax.lax.associative_scan(lambda x, y: (y[0] * x[0], y[0] * x[1] + y[1]), (jnp.broadcast_to(a, b.shape), b))[1]


class Forgets(Scan):
    def recur(self, step, start, xs):
        halves = [super(Forgets, self).recur(step, start, jax.tree.map(lambda x: x[part], xs)) for part in (slice(None, T // 2), slice(T // 2, None))]
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), *halves)


def complex_linear(s, a, b):
    """Of complex numbers as pairs; a does not change with the tokens."""
    def step(h, x):
        h = (a[0] * h[0] - a[1] * h[1] + x[0], a[0] * h[1] + a[1] * h[0] + x[1])
        return h, h

    return s.recur(step, (jnp.zeros_like(b[0][0]), jnp.zeros_like(b[1][0])), b)


@paper("S4D (Gu, Goel, Gupta, Re 2022)", "log_dt a c_re c_im d", {"log_dt": {"mean": -2, "scale": 0.5}}, u=(T, H), log_dt=(H,), a=(H, N), c_re=(H, N), c_im=(H, N), d=(H,))
def s4d(s, u, log_dt, a, c_re, c_im, d):
    """The zero-order hold of a diagonal system with imaginary parts pi n."""
    dt, re, im = jnp.exp(log_dt)[:, None], -jnp.exp(a), jnp.pi * jnp.arange(N)
    size = jnp.exp(dt * re)
    a_re, a_im = size * jnp.cos(dt * im), size * jnp.sin(dt * im)
    b_re, b_im = ((a_re - 1) * re + a_im * im) / (re * re + im * im), (a_im * re - (a_re - 1) * im) / (re * re + im * im)  # (e^(dt A) - 1) / A
    h_re, h_im = complex_linear(s, (a_re, a_im), (b_re * u[..., None], b_im * u[..., None]))
    return 2 * (c_re * h_re - c_im * h_im).sum(-1) + d * u


@paper("S5 (Smith, Warrington, Linderman 2023)", "log_dt a b_re b_im c_re c_im d", {"log_dt": {"mean": -2, "scale": 0.5}}, u=(T, H), log_dt=(N,), a=(N,), b_re=(N, H), b_im=(N, H),
       c_re=(H, N), c_im=(H, N), d=(H,))
def s5(s, u, log_dt, a, b_re, b_im, c_re, c_im, d):
    dt, re, im = jnp.exp(log_dt), -jnp.exp(a), jnp.pi * jnp.arange(N)
    size = jnp.exp(dt * re)
    a_re, a_im = size * jnp.cos(dt * im), size * jnp.sin(dt * im)
    g_re, g_im = ((a_re - 1) * re + a_im * im) / (re * re + im * im), (a_im * re - (a_re - 1) * im) / (re * re + im * im)
    v_re, v_im = u @ b_re.T, u @ b_im.T
    h_re, h_im = complex_linear(s, (a_re, a_im), (g_re * v_re - g_im * v_im, g_re * v_im + g_im * v_re))
    return 2 * (h_re @ c_re.T - h_im @ c_im.T) + d * u


@paper("LRU (Orvieto and others 2023)", "nu theta b_re b_im c_re c_im d", {"nu": {"mean": -1, "scale": 0.5}}, u=(T, H), nu=(N,), theta=(N,), b_re=(N, H), b_im=(N, H), c_re=(H, N), c_im=(H, N),
       d=(H,))
def lru(s, u, nu, theta, b_re, b_im, c_re, c_im, d):
    size, turn = jnp.exp(-jnp.exp(nu)), jnp.exp(theta)
    gamma = jnp.sqrt(1 - size * size)
    h_re, h_im = complex_linear(s, (size * jnp.cos(turn), size * jnp.sin(turn)), (gamma * (u @ b_re.T), gamma * (u @ b_im.T)))
    return h_re @ c_re.T - h_im @ c_im.T + d * u


@paper("Mamba (Gu and Dao 2023)", "w_dt dt_bias w_b w_c a_log d", {"dt_bias": {"mean": -2}}, u=(T, H), w_dt=(H, H), dt_bias=(H,), w_b=(H, N), w_c=(H, N), a_log=(H, N), d=(H,))
def mamba(s, u, w_dt, dt_bias, w_b, w_c, a_log, d):
    dt = jax.nn.softplus(u @ w_dt + dt_bias)
    h = s.linear(jnp.exp(-dt[..., None] * jnp.exp(a_log)), (dt * u)[..., None] * (u @ w_b)[:, None])
    return (h * (u @ w_c)[:, None]).sum(-1) + d * u


@paper("Mamba-2 (Dao and Gu 2024)", "dt_bias a_log d", {"dt_bias": {"mean": -2}}, x=(T, H, 3), b=(T, N), c=(T, N), dt=(T, H), dt_bias=(H,), a_log=(H,), d=(H,))
def mamba2(s, x, b, c, dt, dt_bias, a_log, d):
    dt = jax.nn.softplus(dt + dt_bias)
    h = s.linear(jnp.exp(-dt * jnp.exp(a_log))[..., None, None], (dt[..., None] * x)[..., None] * b[:, None, None])
    return jnp.einsum("thpn,tn->thp", h, c) + d[:, None] * x


@paper("RetNet (Sun and others 2023)", q=(T, 2, H), k=(T, 2, H), v=(T, 2, N))
def retnet(s, q, k, v):
    decay = jnp.array([1 - 2.0**-5, 1 - 2.0**-6])[None, :, None, None]
    state = s.linear(decay * jnp.ones((T, 1, 1, 1)), k[..., None] * v[:, :, None])
    return jnp.einsum("thk,thkv->thv", q, state) * H**-0.5


@paper("gated linear attention (Yang and others 2024)", "w_gate bias", q=(T, H), k=(T, H), v=(T, N), x=(T, H), w_gate=(H, H), bias=(H,))
def gla(s, q, k, v, x, w_gate, bias):
    gate = jnp.exp(jax.nn.log_sigmoid(x @ w_gate + bias) / 16)
    state = s.linear(gate[..., None], k[..., None] * v[:, None])
    return jnp.einsum("tk,tkv->tv", q, state) * H**-0.5


@paper("RWKV-6 (Peng and others 2024)", "bonus", {"w": {"mean": -1}}, r=(T, H), k=(T, H), v=(T, N), w=(T, H), bonus=(H,))
def rwkv6(s, r, k, v, w, bonus):
    """What a token writes it reads with a weight of its own; the decay comes behind."""
    written, decay = k[..., None] * v[:, None], jnp.exp(-jnp.exp(w))

    def step(state, x):
        r, written, decay = x
        return decay[:, None] * state + written, jnp.einsum("k,kv->v", r, state + bonus[:, None] * written)

    return s.recur(step, jnp.zeros((H, N)), (r, written, decay))


@paper("minGRU (Feng and others 2024)", "w_z w_h", x=(T, H), w_z=(H, H), w_h=(H, H))
def min_gru(s, x, w_z, w_h):
    z = jax.nn.sigmoid(x @ w_z)
    return s.linear(1 - z, z * (x @ w_h))


@paper("LSTM (Hochreiter and Schmidhuber 1997; Gers 2000)", "w u b", x=(T, H), w=(H, 4 * N), u=(N, 4 * N), b=(4 * N,))
def lstm(s, x, w, u, b):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x + h @ u, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return s.recur(step, (jnp.zeros(N), jnp.zeros(N)), x @ w + b)


@paper("mLSTM of xLSTM (Beck and others 2024)", "", {"f": {"mean": 2}}, q=(T, H), k=(T, H), v=(T, N), i=(T,), f=(T,))
def mlstm(s, q, k, v, i, f):
    """With the largest exponent so far taken out of the state."""
    def step(carry, x):
        c, n, m = carry
        q, k, v, i, f = x
        new = jnp.maximum(f + m, i)
        keep, write = jnp.exp(f + m - new), jnp.exp(i - new)
        c, n = keep * c + write * k[:, None] * v, keep * n + write * k
        return (c, n, new), (q @ c) / jnp.maximum(jnp.abs(q @ n), jnp.exp(-new))

    k = k * H**-0.5
    return s.recur(step, (jnp.zeros((H, N)), jnp.zeros(H), jnp.zeros(())), (q, k, v, i, jax.nn.log_sigmoid(f)))


@paper("DeltaNet (Yang and others 2024)", q=(T, H), k=(T, H), v=(T, N), b=(T,))
def delta_net(s, q, k, v, b):
    k = k * jax.lax.rsqrt((k * k).sum(-1, keepdims=True) + 1e-6)

    def step(state, x):
        q, k, v, beta = x
        state = state + k[:, None] * (beta * (v - k @ state))
        return state, q @ state

    return s.recur(step, jnp.zeros((H, N)), (q, k, v, jax.nn.sigmoid(b)))


def named(function, example):
    """As a function of these arguments, by name; a trace asks for that."""
    scope = {"call": lambda *tensors: function(Scan(), *tensors)}
    exec(f"def reference({', '.join(example)}): return call({', '.join(example)})", scope)
    return scope["reference"]


def judged(case, function, form):
    """A kernel that computes in float32 and stores once, with its gradients."""
    given = {path: x for path, x in case.inputs(jax).items() if path.startswith(("inputs/", "weights/"))}
    y, back = jax.vjp(lambda *tensors: function(form, *(x.astype(jnp.float32) for x in tensors)).astype(jnp.bfloat16), *given.values())
    gradients = back(case.cotangents(jax)["cotangents/y"])
    return case.judge({"outputs/y": y, **{"gradients/" + path: d for path, d in zip(given, gradients)}})


def outcome(function, example, weights, fills):
    try:
        program = assay.trace(named(function, example), example, weights=weights, fills=fills)
    except assay.BadInput as why:
        return f"refused: {why}"
    for seed in range(1, 4):
        case = program.case("bf16", seed=seed, explain=False)
        for form in (Scan(), AllAtOnce()):
            report = judged(case, function, form)
            if report.verdict != "PASS":
                return f"FAIL: {report.message}"
    return "ok" if judged(case, function, Forgets()).verdict == "FAIL" else "FAIL: a kernel that loses its state passes"


def main():
    found = []
    for name, made in FUNCTIONS.items():
        if not sys.argv[1:] or sys.argv[1] in name:
            found.append(outcome(*made))
            print(f"{name:55} {found[-1]}", flush=True)
    print(f"{found.count('ok')} of {len(found)} pass")
    return any(f != "ok" for f in found)


if __name__ == "__main__":
    sys.exit(main())
