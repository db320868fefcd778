"""Attention of other hands for program_kernels.py: PyTorch's scaled_dot_product_attention, and a flash attention in plain functions of JAX. Each is there where this
Python can import it. Heads are in front: [B,N,S,H], and `bias` [S,T] is added to the scores (-1e30: masked)."""
import functools
import importlib.util

import torch
import torch.nn.functional as F

THERE = {"SDPA": hasattr(F, "scaled_dot_product_attention"), "JAX": importlib.util.find_spec("jax") is not None}


def by_sdpa(q, key, v, bias, scale, ar, tile):
    narrow = [x.to(ar.type or ar.wide) for x in (q, key, v)]
    mask = bias.to(narrow[0].dtype) if bias.requires_grad else bias > -1e29  # flash kernels take a mask without a gradient
    return F.scaled_dot_product_attention(*narrow, attn_mask=mask, scale=scale).to(ar.wide)


@functools.cache
def flash():
    """The function with its gradients by hand: keys in tiles, backward from the log-sum-exp and <out, d_out>."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def product(letters, a, b, wide):
        return jnp.einsum(letters, a, b, preferred_element_type=wide)

    def tiles(key, v, bias, tile):
        return [(key[:, :, i : i + tile], v[:, :, i : i + tile], bias[:, i : i + tile]) for i in range(0, key.shape[2], tile)]

    def forward(q, key, v, bias, scale, tile):
        wide = bias.dtype
        m, total, out = jnp.full(q.shape[:3] + (1,), -1e30, wide), jnp.zeros(q.shape[:3] + (1,), wide), jnp.zeros(q.shape[:3] + v.shape[3:], wide)
        for k, x, b in tiles(key, v, bias, tile):
            s = product("bnsh,bnth->bnst", q, k, wide) * scale + b
            grown = jnp.maximum(m, s.max(-1, keepdims=True))
            p, less = jnp.exp(s - grown), jnp.exp(m - grown)
            m, total, out = grown, total * less + p.sum(-1, keepdims=True), out * less + product("bnst,bnth->bnsh", p.astype(q.dtype), x, wide)
        out = (out / total).astype(q.dtype)
        return out, (q, key, v, bias, out, m + jnp.log(total))

    def backward(scale, tile, kept, d):
        q, key, v, bias, out, lse = kept
        wide = bias.dtype
        delta, dq, parts = (d.astype(wide) * out.astype(wide)).sum(-1, keepdims=True), jnp.zeros(q.shape, wide), []
        for k, x, b in tiles(key, v, bias, tile):
            p = jnp.exp(product("bnsh,bnth->bnst", q, k, wide) * scale + b - lse)
            ds = p * (product("bnsh,bnth->bnst", d, x, wide) - delta)
            scaled = (ds * scale).astype(q.dtype)
            dq += product("bnst,bnth->bnsh", scaled, k, wide)
            parts.append((product("bnst,bnsh->bnth", scaled, q, wide), product("bnst,bnsh->bnth", p.astype(q.dtype), d, wide), ds.sum((0, 1))))
        dkey, dv, dbias = (jnp.concatenate(x, axis) for x, axis in zip(zip(*parts), (2, 2, 1)))
        return dq.astype(q.dtype), dkey.astype(key.dtype), dv.astype(v.dtype), dbias

    attend = jax.custom_vjp(lambda *given: forward(*given)[0], nondiff_argnums=(4, 5))
    attend.defvjp(forward, backward)

    def call(q, key, v, bias, scale, tile, dtype):
        narrow = [jnp.asarray(x.detach().numpy()).astype(dtype) for x in (q, key, v)]
        out, back = jax.vjp(lambda *given: attend(*given, scale, tile), *narrow, jnp.asarray(bias.detach().numpy()))
        to = lambda x: torch.tensor(jax.device_get(x.astype(bias.detach().numpy().dtype)))
        return to(out), lambda d: [to(x) for x in back(jnp.asarray(d.numpy()).astype(dtype))]

    return call


class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, key, v, bias, scale, dtype, tile):
        out, ctx.back = flash()(q, key, v, bias, scale, tile, dtype)
        return out

    @staticmethod
    def backward(ctx, d):
        return *ctx.back(d.contiguous()), None, None, None


def by_jax(q, key, v, bias, scale, ar, tile):
    return Flash.apply(q, key, v, bias, scale, str(ar.type or ar.wide).split(".")[1], tile)


BY = {"SDPA": by_sdpa, "JAX": by_jax}
