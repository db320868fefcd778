"""MLA, grouped-query attention, rotations and norms by MaxText's modules: the attention that its own decoder layers construct."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import layers
from maxtext.layers.embeddings import RotaryEmbedding, YarnRotaryEmbedding
from maxtext.layers.normalizations import RMSNorm

from request import Request, Unsupported


def of_layer(config, mesh, kind):
    """The attention of a layer, with what a case says of it and a layer has as a constant."""
    name, sliding, scalar, norms = kind
    layer = layers.layer(config, mesh, (name, sliding))
    return layer.GptOssAttention if name == "gpt_oss" else layer.self_attention


def apply(module, x, fixed):
    return module(x, x, fixed["positions"], decoder_segment_ids=fixed["segment_ids"], deterministic=True, model_mode="train")[0]


def run_attention_block(request: Request, dtype: str) -> dict:
    s = request.settings
    s.need(not s.text.get("quant_recipe", ""), "no training recipe here")
    block = layers.block_of(s)
    keys = {"base_num_decoder_layers": 1}
    if block == "deepseek":
        s.need(s.number("latent_norm_epsilon") == s.number("normalization_layer_epsilon"), "one epsilon for all norms")
        keys["first_num_dense_layers"] = 1
    else:
        family = {"mixtral": 1.0}.get(block, s.count("head_dim") ** -0.5)
        s.need(abs(s.number("query_pre_attn_scalar") - family) < 1e-12, "a model's layer has its own softmax scale")
    call = layers.Call(request, dtype, block, **keys)
    name = "dense" if block == "deepseek" else block
    outputs, gradients = layers.differentiated(of_layer, apply, call, (name, layers.attention_of(s, block), None, None), call.weights(str))
    return call.answer(str, outputs, gradients)


def simple(request: Request, dtype: str, build, apply, weights: dict) -> dict:
    """A module of one input x, by jax.vjp."""
    x, dy = (jnp.asarray(request.tensors[p], dtype) for p in ("inputs/x", "cotangents/y"))
    weights = {n: jnp.asarray(w, dtype) for n, w in weights.items()}

    def run(x, weights, dy):
        y, back = jax.vjp(lambda x, w: apply(build(), x, w), x, weights)
        return y, *back(dy.astype(y.dtype))

    y, d_x, d_weights = jax.jit(run)(x, weights, dy)
    return {"outputs/y": y, "gradients/inputs/x": d_x, **{"gradients/weights/" + n: d for n, d in d_weights.items()}}


def run_rms_norm(request: Request, dtype: str) -> dict:
    s, scale = request.settings, request.tensors["weights/scale"]

    def apply(module, x, weights):
        module.scale.set_value(weights["scale"])
        return module(x)

    return simple(request, dtype, lambda: RMSNorm(len(scale), epsilon=s.number("normalization_layer_epsilon"), dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0)),
                  apply, {"scale": scale})


def run_rope(request: Request, dtype: str) -> dict:
    s, positions = request.settings, request.tensors["inputs/positions"]
    width = request.tensors["inputs/x"].shape[-1]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))

    def build():
        if s["rope_type"] == "default":
            s.need(not s.true("rope_interleave"), "RotaryEmbedding has halves alone")
            return RotaryEmbedding(min_timescale=1, max_timescale=s.number("rope_max_timescale"), mesh=mesh, embedding_dims=width,
                                   fprop_dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
        return YarnRotaryEmbedding(
            width, mesh, s.count("max_position_embeddings"), s.count("original_max_position_embeddings"), s.number("beta_fast"), s.number("beta_slow"),
            s.number("rope_max_timescale"), s.number("rope_factor"), fprop_dtype=jnp.dtype(dtype), interleave=s.true("rope_interleave"),
            truncate=s.true("rope_truncate"), attention_scaling=s.true("rope_attention_scaling"), pairwise=s.true("rope_pairwise"), rngs=nnx.Rngs(0))

    return simple(request, dtype, build, lambda module, x, w: module(x, position=jnp.asarray(positions)), {})


RUNS = {"mla": run_attention_block, "gqa": run_attention_block, "rms_norm": run_rms_norm, "yarn_rope": run_rope}


def run(request: Request, dtype: str) -> dict:
    if request.op not in RUNS:
        raise Unsupported(f"no {request.op} in MaxText")
    return RUNS[request.op](request, dtype)
