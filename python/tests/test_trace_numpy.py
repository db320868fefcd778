"""Functions of numpy as references, which JAX traces, and numpy's own float64 checks."""
import math

import assay
import numpy as np
import pytest

jax = pytest.importorskip("jax")
special = pytest.importorskip("scipy.special")
F32 = np.float32


def ones(*shape):
    return np.ones(shape, F32)


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q, k, v):
    out, seen = np.zeros_like(q), np.tril(np.ones((q.shape[2],) * 2, dtype=bool))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            out[b, h] = softmax(np.where(seen, q[b, h] @ k[b, h].T / math.sqrt(q.shape[3]), -np.inf)) @ v[b, h]
    return out


def experts(x, g, w):
    logits, out = x @ g, np.zeros_like(x)
    ids = np.argsort(-logits, axis=-1)[:, :2]
    p = softmax(np.take_along_axis(logits, ids, -1))
    for t in range(len(x)):
        for j in range(2):
            out[t] += p[t, j] * (x[t] @ w[ids[t, j]])
    return out


def one_by_one(a, b):
    c = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(b.shape[0]):
                c[i, j] += a[i, k] * b[k, j]
    return c


def scan(decay, u, c):
    out, state = np.empty(u.shape, np.float32), np.zeros((u.shape[0], c.shape[0]))
    for t in range(u.shape[1]):
        state = decay[:, t, None] * state + u[:, t, None]
        out[:, t] = (state * c[None, :, t]).sum(1)
    return out


def in_place(x):
    y = x.copy()
    row = y[0]
    row += 1
    y[:, ::2] *= 2
    y[1:3] -= y.max(-1, keepdims=True)[1:3]
    np.exp(y, out=y)
    np.add.at(y, np.array([0, 0, 3]), x[:3])
    return y / np.float32(3)


def of_scipy(x):
    return special.softmax(x, axis=-1) * special.erf(x) + special.expit(x) + special.logsumexp(x, axis=-1, keepdims=True)


FUNCTIONS = {
    "attention": (attention, [ones(1, 2, 9, 8)] * 3),
    "experts": (experts, [ones(5, 8), ones(8, 4), ones(4, 8, 8)]),
    "one by one": (one_by_one, [ones(3, 4), ones(4, 5)]),
    "scan": (scan, [ones(4, 6), ones(4, 6), ones(3, 6)]),
    "in place": (in_place, [ones(4, 8)]),
    "scipy": (of_scipy, [ones(4, 8)]),
    "moments": (lambda x: (x.mean(1), x.std(0, ddof=1), np.linalg.norm(x, axis=1), np.take_along_axis(x, np.argpartition(-x, 2)[:, :2], -1).sum(-1) + np.partition(x, 1)[:, 1]), [ones(6, 5)]),
    "rows": (lambda t, i: t[i] * np.float32(2), [ones(7, 4), np.array([[0, 6], [3, 2]])]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_numpy_passes_against_itself(name):
    function, example = FUNCTIONS[name]
    assert assay.assert_correct(function, function, example, precision="f32").verdict == "PASS"

    def wrong(*given):
        made = function(*given)
        return tuple(1.01 * y for y in made) if isinstance(made, tuple) else 1.01 * made

    with pytest.raises(assay.Mismatch):
        assay.assert_correct(wrong, function, example, precision="f32")


def test_kernels_of_jax_have_gradients():
    def norm(x, w):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w

    def kernel(x, w, slope=1.0):
        x = x.astype(F32)
        n = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        return (slope * n * w + (1 - slope) * jax.lax.stop_gradient(n * w)).astype(jax.numpy.bfloat16)

    example = {"x": ones(5, 16), "w": ones(16)}
    assert "gradients/weights/w" in str(assay.assert_correct(kernel, norm, example, precision="bf16", weights=["w"]))
    with pytest.raises(assay.Mismatch, match="gradients/"):
        assay.assert_correct(lambda x, w: kernel(x, w, 0.9), norm, example, precision="bf16", weights=["w"])


def test_refused():
    for function, why in ((lambda x: x if x.sum() > 0 else -x, "boolean conversion"), (lambda x: x + np.random.randn(4, 8), "it computes what no program has"),
                          (lambda x: np.fft.fft(x).real, "fft: jax.numpy has no such function")):
        with pytest.raises(assay.BadInput, match=why):
            assay.trace(function, {"x": ones(4, 8)})
