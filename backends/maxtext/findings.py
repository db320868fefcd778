#!/usr/bin/env python3
"""What docs/findings says of MaxText, each as a function that runs MaxText's own code: `findings.py NAME`, or all of them without one.

Prints "confirmed" or "refuted" and the numbers. float64 but where the module says float32.
"""
import inspect
import os
import pathlib
import sys
from types import SimpleNamespace

os.environ.update(JAX_PLATFORMS="cpu", DECOUPLE_GCLOUD="TRUE", HF_HUB_OFFLINE="1", XLA_FLAGS="--xla_force_host_platform_device_count=8")
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "harness/backends/shell"))

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.linen import partitioning

jax.config.update("jax_enable_x64", True)

import config as configuration


def verdict(confirmed: bool, text: str) -> bool:
    print("confirmed:" if confirmed else "refuted:", text)
    return confirmed


def drawn(seed: int, *shape) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def in_mesh(config, build):
    mesh = configuration.device_mesh(config)
    with mesh, partitioning.axis_rules(config.logical_axis_rules):
        return build(mesh)


# ---- DeepSeek-V3.2's indexer ----


def indexer(length: int, topk: int, sparse: bool, segments=None, use_indexer: bool = True, longest: int = 0):
    """(output, loss, gradients of the indexer's weights) of MLA with an indexer."""
    from maxtext.layers.attention_mla import MLA

    rank, heads = 12, 2
    keys = {"base_emb_dim": 24, "base_num_query_heads": heads, "base_num_kv_heads": heads, "q_lora_rank": rank, "kv_lora_rank": 8, "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 4, "v_head_dim": 4, "use_indexer": use_indexer, "indexer_n_heads": 2, "indexer_head_dim": 8, "indexer_topk": topk,
            "indexer_sparse_training": sparse, "indexer_loss_scaling_factor": 1.0 if use_indexer else 0.0, "max_target_length": longest or length,
            "max_position_embeddings": 163840, "original_max_position_embeddings": 4096, "base_mlp_dim": 16, "base_moe_mlp_dim": 16, "vocab_size": 8,
            "first_num_dense_layers": 1, "base_num_decoder_layers": 1, "num_experts": 4, "num_experts_per_tok": 2}
    config = configuration.initialize("float64", (), tuple({"model_name": "deepseek3-tiny", "attention_type": "mla", **keys}.items()))

    def build(mesh):
        return MLA(config=config, num_query_heads=heads, num_kv_heads=heads, head_dim=8, max_target_length=length, mesh=mesh, attention_kernel="dot_product",
                   inputs_q_shape=(1, length, 24), inputs_kv_shape=(1, length, 24), dtype=config.dtype, weight_dtype=config.weight_dtype, q_lora_rank=rank,
                   kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4, rngs=nnx.Rngs(params=0))

    def run(mesh):
        structure, parameters, rest = nnx.split(build(mesh), nnx.Param, ...)
        x, positions = drawn(1, 1, 16, 24)[:, :length], jnp.arange(length)[None]
        ids = jnp.ones((1, length), jnp.int32) if segments is None else jnp.asarray(segments, jnp.int32)[None]

        def loss(parameters):
            module = nnx.merge(structure, parameters, rest)
            y = module(x, x, positions, decoder_segment_ids=ids, deterministic=True)[0]
            value = module.indexer_loss.get_value() if use_indexer and hasattr(module, "indexer_loss") else jnp.zeros(())
            return value, y

        (value, y), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        own = {"/".join(map(str, p)): v.get_value() for p, v in nnx.to_flat_state(gradients) if p[0] == "indexer"}
        return y, float(value), own

    return in_mesh(config, run)


def indexer_early_return() -> bool:
    """(a) With no more keys than indexer_topk the dense warm-up trains nothing: since 0.2.5 the configuration refuses it, but for shorter rows."""
    try:
        indexer(8, 8, sparse=False)
        refused = ""
    except Exception as error:
        refused = str(error).split("Value error, ")[-1].split(" when")[0]
    largest = {}
    for length in (8, 9):
        _, loss, gradients = indexer(length, 8, sparse=False, longest=9)
        largest[length] = loss, max(float(abs(g).max()) for g in gradients.values())
    return verdict(not refused, f"the configuration refuses it ({refused}); what is left: max_target_length 9, indexer_topk 8, dense warm-up: a batch of 8 tokens gives the "
                   f"indexer a gradient of {largest[8][1]:.3g} at a loss of {largest[8][0]:.3g}, one of 9 tokens {largest[9][1]:.3g} at {largest[9][0]:.3g}")


def indexer_dense_warmup_mask() -> bool:
    """(b) In the dense warm-up the main attention is sparse all the same."""
    plain, _, _ = indexer(8, 8, sparse=False, use_indexer=False)
    warm_up, _, _ = indexer(8, 3, sparse=False)
    trained, _, _ = indexer(8, 3, sparse=True)
    off, same = float(abs(warm_up - plain).max()), float(abs(warm_up - trained).max())
    return verdict(off > 1e-3 and same < 1e-12,
                   f"8 tokens, indexer_topk 3: MLA's output in the dense warm-up is {off:.3g} from dense attention and {same:.3g} from that of the sparse stage")


def indexer_loss_padding() -> bool:
    """(c) Rows of padding count in the mean of the indexer's loss."""
    _, alone, _ = indexer(8, 3, sparse=False)
    _, padded, _ = indexer(16, 3, sparse=False, segments=[1] * 8 + [0] * 8)
    return verdict(abs(padded - alone) > 0.01 * alone, f"a document of 8 tokens: loss {alone:.4g} alone, {padded:.4g} with 8 rows of padding behind it "
                   f"(a mean over its own rows would be {alone:.4g} again)")


# ---- DeepSeek-V4 ----


def v4_rope_without_yarn() -> bool:
    """(d) The rotation of V4's compressed layers has no YaRN."""
    from maxtext.layers.embeddings import DeepSeekV4RotaryEmbedding, YarnRotaryEmbedding

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    own = DeepSeekV4RotaryEmbedding(head_dim=512, partial_rotary_factor=64 / 512, rope_theta=160000.0, mesh=mesh, embedding_dims=64, rngs=nnx.Rngs(0))
    yarn = YarnRotaryEmbedding(64, mesh, 16385, 65536, 32, 1, 160000.0, 16, rngs=nnx.Rngs(0))
    has_option = any("yarn" in name or "factor" in name.replace("partial_rotary_factor", "") for name in inspect.signature(type(own).__init__).parameters)
    at_one = np.angle(np.asarray(yarn.freqs_cis[1]))  # frequencies are below pi
    apart = abs(np.asarray(own.inv_freq, np.float64) - at_one)
    off = {p: float(p * apart.max()) for p in (512, 4096, 16384)}
    return verdict(not has_option and off[4096] > 1, f"theta 160000, factor 16 over 65536: {int((apart > 1e-6).sum())} of 32 pairs have another frequency; the largest "
                   "phase is off by " + ", ".join(f"{v:.3g} at position {p}" for p, v in off.items()))


def compressed(ratio: int, x, positions, segments):
    """The output of V4's attention with compressed keys, all of them visible."""
    from maxtext.layers.attention_compressed import CompressedAttention

    length, heads = x.shape[1], 4
    more = {"max_target_length": length, "base_num_decoder_layers": 3, "use_indexer": False, "vocab_size": 8, "sliding_window_size": 4,
            "compress_ratios": (0, 0, ratio)}
    config = configuration.initialize("float64", (), tuple({"model_name": "deepseek4-tiny", "attention_type": "compressed", **more}.items()))

    def run(mesh):
        module = CompressedAttention(
            config=config, num_query_heads=heads, num_kv_heads=1, head_dim=config.head_dim, max_target_length=length, mesh=mesh, attention_kernel="dot_product",
            inputs_q_shape=x.shape, inputs_kv_shape=x.shape, dtype=config.dtype, weight_dtype=config.weight_dtype, sliding_window_size=4,
            q_lora_rank=config.q_lora_rank, compress_ratio=ratio, rngs=nnx.Rngs(params=0))
        return module(x, x, jnp.asarray(segments, jnp.int32), jnp.asarray(positions, jnp.int32), True)[0]

    return in_mesh(config, run)


def v4_windows_of_packed_documents() -> bool:
    """(e) Compressed windows are cut at row offsets, not where documents begin."""
    ratio, length = 8, 32
    document, before = drawn(2, 1, length, 64), drawn(3, 1, ratio, 64)
    alone = compressed(ratio, document, [range(length)], [[1] * length])
    off = {}
    for n in (ratio, 3):  # a document of this many tokens in front
        row = jnp.concatenate([before[:, :n], document], 1)
        packed = compressed(ratio, row, [[*range(n), *range(length)]], [[1] * n + [2] * length])
        off[n] = float(abs(packed[:, n:] - alone).max() / abs(alone).max())
    return verdict(off[ratio] < 1e-5 < 1e-2 < off[3], f"windows of {ratio}, a document of {length} tokens: packed behind one of {ratio} it differs by {off[ratio]:.2g} of the "
                   f"largest element from itself alone, behind one of 3 by {off[3]:.2g}")


def v4_check_norm() -> bool:
    """(f) A tolerance on vectors divided by their norms that a constant passes. The comparison is the test's, which no package has."""
    y = np.random.default_rng(4).standard_normal((2, 4096, 256))
    constant, zero_but_first = np.ones_like(y), np.where(np.arange(4096)[:, None] < 2048, y, 0)

    def passes(made):
        return np.allclose(made / np.linalg.norm(made), y / np.linalg.norm(y), rtol=5e-3, atol=5e-3)

    return verdict(passes(constant), f"outputs [2,4096,256], each divided by its norm, at atol=5e-3: a constant passes: {passes(constant)}; the right output with its "
                   f"second half set to 0 passes: {passes(zero_but_first)}; its negative passes: {passes(-y)}")


# ---- multi-token prediction ----


def mtp_packed_documents() -> bool:
    """(g) With two depths or more a document's last token is trained on a token of the next document."""
    from maxtext.layers.multi_token_prediction import MultiTokenPredictionBlock

    seen = []
    zeros = jnp.zeros((1, 8, 4))

    class Layer:
        def __call__(self, **given):
            return zeros
        final_norm = staticmethod(lambda h: h)

    decoder = SimpleNamespace(model_mode="train", _apply_embedding=lambda table, ids, *rest, **more: seen.append(np.asarray(ids)[0]) or zeros,
                              apply_output_head=lambda *a, **k: jnp.zeros((1, 8, 32)))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    config = SimpleNamespace(context_sharding="context", packing=True, mtp_num_layers=2, mtp_eval_target_module=0, shard_mode="auto", debug_sharding=False,
                             context_parallel_size=1, context_parallel_load_balance=False, logical_axis_rules=())
    block = SimpleNamespace(config=config, mesh=mesh, decoder=decoder, mtp_layer_1=Layer(), mtp_layer_2=Layer())
    ids, segments = jnp.arange(11, 19)[None], jnp.array([[1, 1, 1, 1, 2, 2, 2, 2]])
    import maxtext.layers.multi_token_prediction as module
    patched = module.sharding.maybe_shard_with_logical
    module.sharding.maybe_shard_with_logical = lambda x, *a, **k: x  # one device
    try:
        MultiTokenPredictionBlock.__call__(block, None, zeros, ids, ids, segments, position_ids=jnp.arange(8)[None], decoder_segment_ids=segments,
                                           model_mode="train", deterministic=True)
    finally:
        module.sharding.maybe_shard_with_logical = patched
    second = seen[1]
    wrong = [int(i) for i in range(4) if second[i] > 14]
    return verdict(bool(wrong), f"ids 11..18 of documents {np.asarray(segments)[0].tolist()}: depth 2 has {second.tolist()}; place {wrong} of the first document has a "
                   f"token of the second, and the weights count {np.asarray(block.weights.get_value()).tolist()} targets")


# ---- grouped-query attention ----


def fused_qkv_shards() -> bool:
    """With fused_qkv the same kernel is another function on another number of tensor shards."""
    from maxtext.models.mixtral import MixtralDecoderLayer

    made = {}
    for shards in (1, 3):
        keys = {"model_name": "mixtral-8x7b", "base_emb_dim": 15, "base_num_query_heads": 6, "base_num_kv_heads": 3, "head_dim": 4, "fused_qkv": True, "vocab_size": 8,
                "base_num_decoder_layers": 1, "base_mlp_dim": 8, "base_moe_mlp_dim": 8, "num_experts": 2, "num_experts_per_tok": 1, "max_target_length": 8}
        config = configuration.initialize("float64", (("mlp_tensor", shards),) if shards > 1 else (), tuple(keys.items()))

        def run(mesh):
            structure, state = nnx.split(MixtralDecoderLayer(config, mesh, "train", rngs=nnx.Rngs(params=0, dropout=0)).self_attention)
            pure = nnx.to_pure_dict(state)
            pure["qkv_proj"]["kernel"], pure["out"]["kernel"] = drawn(5, 15, 12, 4), drawn(6, 6, 4, 15)
            nnx.replace_by_pure_dict(state, pure)
            x, positions = drawn(7, 1, 8, 15), jnp.arange(8)[None]
            return jax.jit(lambda state: nnx.merge(structure, state)(x, x, positions, deterministic=True)[0])(state)

        made[shards] = np.asarray(in_mesh(config, run))
    off = float(abs(made[3] - made[1]).max() / abs(made[1]).max())
    return verdict(off > 1e-3, f"6 heads of queries, 3 of keys, one kernel [15,12,4]: the output on 3 tensor shards differs from that of one device by {off:.2g} of its largest element")


NAMES = {f.__name__.replace("_", "-"): f for f in (
    indexer_early_return, indexer_dense_warmup_mask, indexer_loss_padding, v4_rope_without_yarn, v4_windows_of_packed_documents, v4_check_norm, mtp_packed_documents,
    fused_qkv_shards)}

if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        print(f"{name}: ", end="")
        NAMES[name]()
