"""Causal attention: jax.nn, tokamax, and the splash kernels of both, interpreted."""
from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from tokamax._src.ops.attention import api as tokamax_api
from tokamax._src.ops.attention.base import CausalMask, Mask
from tokamax._src.ops.experimental.tpu.splash_attention import base as tokamax_splash_base
from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_kernel as tokamax_splash
from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask as tokamax_masks

from case import Case, Operation, Tensors

BLOCK = 128  # the least that these kernels take


def window_of(c: Case) -> int:
    return 0 if c.s["attention_type"] == "global" else c.s.count("sliding_window_size")


@functools.cache
def whole_by(form: str, window: int) -> Callable:
    """jax.nn's and tokamax's, the whole of [B,N,S,S]. tokamax's in chunks gives no statistics of rows."""

    def attend(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        query, key, value = (given["inputs/" + name] for name in ("query", "key", "value"))
        mask, lengths = rest.get("mask"), rest.get("lengths")
        if form == "jax":
            out, lse = jax.nn.dot_product_attention(query, key, value, mask=mask, scale=1.0, is_causal=True, query_seq_lengths=lengths,
                                                    key_value_seq_lengths=lengths, return_residual=True,
                                                    local_window_size=(window - 1, 0) if window > 0 else None)
            return {"outputs/attention_out": out}, {"outputs/lse": jnp.swapaxes(lse, 1, 2)}
        # as its dot_product_attention makes the mask; called below it, since that gives no statistics of rows
        ends = None if lengths is None else lengths[:, None, None]
        seen = Mask(mask, is_causal=True, q_end=ends, k_end=ends)
        seen = seen & CausalMask(offset=0, window_size=window) if window > 0 else seen
        out, (largest, total) = tokamax_api.IMPLEMENTATIONS["xla"](query, key, value, mask=seen, logits_scale=1.0, return_residuals=True)
        return {"outputs/attention_out": out}, {"outputs/lse": largest + jnp.log(total)}

    return attend


@functools.cache
def splash_by(form: str, window: int, heads: int, length: int) -> Callable:
    """Kernels of one sequence: [N,S,D], of keys [Nkv,S,D]."""
    blocks = dict(block_q=BLOCK, block_kv=BLOCK, block_kv_compute=BLOCK, block_q_dkv=BLOCK, block_kv_dkv=BLOCK, block_kv_dkv_compute=BLOCK)
    shape, masks, ids = (length, length), splash, splash.SegmentIds
    if form == "tokamax_splash":
        masks, ids = tokamax_masks, tokamax_splash_base.SegmentIds
    mask = masks.LocalMask(shape, (window - 1, 0), 0) if window > 0 else masks.CausalMask(shape)
    if form == "tokamax_splash":
        make = functools.partial(tokamax_splash.make_splash_mha_single_device, mask,
                                 config=tokamax_splash.SplashConfig(**blocks, interpret=True))
    else:
        fused = form == "splash_fused"
        sizes = splash.BlockSizes(**blocks, use_fused_bwd_kernel=fused, **({} if fused else dict(block_q_dq=BLOCK, block_kv_dq=BLOCK)))
        make = functools.partial(splash.make_splash_mha_single_device, splash.MultiHeadMask([mask] * heads), block_sizes=sizes, interpret=True)

    def attend(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        tensors = [jnp.swapaxes(given["inputs/" + name], 1, 2) for name in ("query", "key", "value")]
        segments, sinks = rest.get("segments"), given.get("weights/sinks")

        def of_batch(kernel: Callable, tensors: list[jax.Array], sinks: jax.Array | None) -> jax.Array:
            def one(query: jax.Array, key: jax.Array, value: jax.Array, segment: jax.Array | None) -> jax.Array:
                return kernel(query, key, value, None if segment is None else ids(q=segment, kv=segment), sinks)
            return jax.vmap(one)(*tensors, segments)

        out = of_batch(make(), tensors, sinks)
        _, statistics = of_batch(make(save_residuals=True), *jax.lax.stop_gradient((tensors, sinks)))
        statistics = statistics["logsumexp"] if isinstance(statistics, dict) else statistics[0]
        return {"outputs/attention_out": jnp.swapaxes(out, 1, 2)}, {"outputs/lse": statistics}

    return attend


def attention(c: Case) -> Operation:
    s, given = c.s, c.given
    splashes = c.form in ("splash", "splash_fused", "tokamax_splash")
    if not splashes:
        c.forms("jax", "tokamax")
    s.need(not c.has_gradient_of("lse"), "no gradient of lse")
    query, value, ids = given["inputs/query"], given["inputs/value"], c.raw.get("inputs/segment_ids")
    length, padded = query.shape[1], ids is not None and s.true("mask_padding") and bool(np.any(ids == 0))
    if splashes:
        s.need(c.dtype in (jnp.bfloat16, jnp.float32), "bfloat16 and float32 alone")
        s.need(length % BLOCK == 0, f"sequences of whole blocks of {BLOCK} alone")
        s.need(not padded, "segment 0 is a segment like any other")
        rest = {} if ids is None else {"segments": jnp.asarray(ids, jnp.int32)}
        return splash_by(c.form, window_of(c), query.shape[2], length), given, rest
    s.need("weights/sinks" not in given, "no sinks")
    s.need(c.form != "jax" or value.shape[-1] == query.shape[-1], "values are as wide as keys")
    rest = {}
    if ids is not None:
        rest["mask"] = jnp.asarray(ids[:, None, :, None] == ids[:, None, None, :])
    if padded:
        lengths = (ids != 0).sum(1)
        s.need(bool(np.all((ids != 0) == (np.arange(length) < lengths[:, None]))), "padding is behind the tokens alone")
        rest["lengths"] = jnp.asarray(lengths, jnp.int32)
    return whole_by(c.form, window_of(c)), given, rest
