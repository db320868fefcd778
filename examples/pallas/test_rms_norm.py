"""RMSNorm as two Pallas kernels, forward and backward, and its test: python3 -m pytest -q test_rms_norm.py (-n 2 with pytest-xdist)."""
import functools

import assay
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

ROWS = 8  # of a block
INTERPRET = jax.default_backend() == "cpu"


def normed(x_ref, epsilon, rows):
    """x / its root mean square and 1 / that, in float32; 0 in rows of the last block that x does not have."""
    there = pl.program_id(0) * ROWS + jax.lax.broadcasted_iota(jnp.int32, (ROWS, 1), 0) < rows
    x = jnp.where(there, x_ref[...].astype(jnp.float32), 0)
    r = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon)
    return x * r, r, there


def forward_kernel(x_ref, scale_ref, y_ref, *, epsilon, rows):
    n, _, _ = normed(x_ref, epsilon, rows)
    y_ref[...] = (n * scale_ref[...].astype(jnp.float32)).astype(y_ref.dtype)


def backward_kernel(x_ref, scale_ref, dy_ref, dx_ref, dscale_ref, *, epsilon, rows):
    n, r, there = normed(x_ref, epsilon, rows)
    dy = jnp.where(there, dy_ref[...].astype(jnp.float32), 0)
    dn = dy * scale_ref[...].astype(jnp.float32)
    dx_ref[...] = (r * (dn - n * jnp.mean(dn * n, -1, keepdims=True))).astype(dx_ref.dtype)

    @pl.when(pl.program_id(0) == 0)
    def _():
        dscale_ref[...] = jnp.zeros_like(dscale_ref)

    dscale_ref[...] += jnp.sum(dy * n, 0)  # the same block for every program: a sum over all of them


def call(kernel, epsilon, results, x, *others):
    """Over blocks of rows; scale and its gradient are whole in each."""
    def block(array):
        return pl.BlockSpec(array.shape, lambda i: (0,)) if array.ndim == 1 else pl.BlockSpec((ROWS, array.shape[1]), lambda i: (i, 0))

    return pl.pallas_call(functools.partial(kernel, epsilon=epsilon, rows=len(x)), grid=(pl.cdiv(len(x), ROWS),),
                          in_specs=[block(a) for a in (x, *others)], out_specs=[block(a) for a in results], out_shape=results,
                          interpret=INTERPRET)(x, *others)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x, scale, epsilon):
    """x [rows, width], scale [width]."""
    return call(forward_kernel, epsilon, [jax.ShapeDtypeStruct(x.shape, x.dtype)], x, scale)[0]


def rms_norm_forward(x, scale, epsilon):
    return rms_norm(x, scale, epsilon), (x, scale)


def rms_norm_backward(epsilon, saved, dy):
    x, scale = saved
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(scale.shape, jnp.float32)]
    dx, dscale = call(backward_kernel, epsilon, results, x, scale, dy)
    return dx, dscale.astype(scale.dtype)


rms_norm.defvjp(rms_norm_forward, rms_norm_backward)


@assay.cases("rms_norm/*", precision="bf16")
def test_rms_norm(case):
    given, epsilon = case.inputs(jax), case.config["normalization_layer_epsilon"]

    def kernel(given):
        x, scale = given["inputs/x"], given["weights/scale"]
        y = rms_norm(x.reshape(-1, x.shape[-1]), scale, epsilon)
        return y.reshape(x.shape)

    y, backward = jax.vjp(kernel, given)
    (gradients,) = backward(case.cotangents(jax)["cotangents/y"].astype(y.dtype))
    case.check({"outputs/y": y, **{"gradients/" + path: gradient for path, gradient in gradients.items()}})
