"""Blocks of the catalogue's programs by MaxText's modules: the indexer of DeepSeek-V3.2 with its loss, and multi-token prediction."""
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from maxtext.common.common_types import ShardMode
from maxtext.layers.attention_mla import MLA, Indexer
from maxtext.layers.embeddings import RotaryEmbedding
from maxtext.layers.linears import MlpBlock
from maxtext.layers.multi_token_prediction import MultiTokenPredictionBlock, calculate_mtp_loss
from maxtext.layers.normalizations import RMSNorm
from maxtext.utils import max_utils

from request import Request, Unsupported

UNSEEN = -1e30
MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))


class Told(SimpleNamespace):
    """A configuration; what is not said is off."""

    def __getattr__(self, name):
        return False


def placed(module, weights: dict):
    """The module with weights in its parameters, by their names."""
    for path, value in weights.items():
        at = module
        *folders, last = path.split(".")
        for name in folders:
            at = getattr(at, name)
        assert getattr(at, last).value.shape == value.shape, path
        getattr(at, last).set_value(value)
    return module


def indexer_loss(t: dict, w: dict, dtype, sparse: bool) -> dict:
    keys, queries = len(t["of"]), len(t["at"])
    if t["at"].tolist() != list(range(keys - queries, keys)) or t["of"].tolist() != list(range(keys)):
        raise Unsupported("queries are the last tokens")
    rotated = 4
    told = Told(dtype=dtype, weight_dtype=dtype, max_target_length=keys, indexer_n_heads=w["wq"].shape[1], indexer_head_dim=w["wq"].shape[2],
                           indexer_topk=6 if sparse else keys - 1, emb_dim=t["x"].shape[1], qk_rope_head_dim=rotated, q_lora_rank=t["qr"].shape[1],
                           matmul_precision="highest", shard_mode=ShardMode.AUTO, indexer_mask_exact_topk=True)
    rotary = RotaryEmbedding(min_timescale=1, max_timescale=10000, mesh=MESH, embedding_dims=rotated, fprop_dtype=dtype, rngs=nnx.Rngs(0))
    names = {"wq": "wq_b.kernel", "wk": "wk.kernel", "k_scale": "k_norm.scale", "k_bias": "k_norm.bias", "weights_proj": "weights_proj.kernel"}
    indexer = placed(Indexer(told, rotary, rngs=nnx.Rngs(0)), {there: w[here] for here, there in names.items()})
    seen = jnp.where(t["at"][:, None] >= t["of"], 0, UNSEEN).astype(dtype)
    front = ((keys - queries, 0), (0, 0))
    causal = jnp.where(t["of"][:, None] >= t["of"], 0, UNSEEN).astype(dtype)
    chosen, _, score = indexer(t["x"][None], jnp.pad(t["qr"], front)[None], t["x"][None], inputs_positions=t["of"][None], attention_mask=causal[None])
    query, key = t["main"][None] * t["main"].shape[2] ** -0.5, t["keys"][None, :, None]
    loss = MLA.calculate_indexer_loss(SimpleNamespace(config=told), score[:, -queries:], query, key, seen[None], chosen[:, -queries:], sparse, 1.0)
    return {"loss": loss}, {"top_k": jnp.argsort(-chosen[0, -queries:], axis=-1, stable=True)[:, :6].astype(jnp.int32)} if sparse else {}


class Unit(nnx.Module):
    """What the program has behind the projection: a norm and a gated unit."""

    def __init__(self, config, mesh, model_mode, rngs):
        told = {"dtype": config.dtype, "weight_dtype": config.weight_dtype, "rngs": rngs}
        self.norm = RMSNorm(config.emb_dim, epsilon=1e-6, **told)
        self.mlp = MlpBlock(config, mesh, config.emb_dim, config.mlp_dim, ("silu", "linear"), intermediate_dropout_rate=0.0, **told)

    def __call__(self, inputs, **_):
        return inputs + self.mlp(self.norm(inputs), deterministic=True)


def mtp(t: dict, w: dict, dtype) -> dict:
    """Documents are rows of a batch: of packed ones MaxText's second depth takes tokens over the border."""
    ends = [i + 1 for i, label in enumerate(t["t1"].tolist()) if label == -100]
    rows = [slice(a, b) for a, b in zip([0] + ends, ends)]
    length = max(row.stop - row.start for row in rows)

    def batch(x, fill):
        return jnp.stack([jnp.pad(x[row], ((0, length - row.stop + row.start),) + ((0, 0),) * (x.ndim - 1), constant_values=fill) for row in rows])

    labels = batch(t["t1"], -100)
    told = Told(mtp_num_layers=2, emb_dim=t["h"].shape[1], mlp_dim=w["gate1"].shape[1], normalization_layer_epsilon=1e-6, dtype=dtype, weight_dtype=dtype,
                           context_sharding="context", mtp_loss_scaling_factor=0.1, shard_mode=ShardMode.AUTO, matmul_precision="highest")
    final = placed(RMSNorm(told.emb_dim, epsilon=1e-6, dtype=dtype, weight_dtype=dtype, rngs=nnx.Rngs(0)), {"scale": w["final"]})
    decoder = SimpleNamespace(model_mode="train", _apply_embedding=lambda table, ids, *_, **__: table[ids], apply_output_head=lambda table, x, *_, **__: x @ table.T)
    block = MultiTokenPredictionBlock(told, MESH, Unit, decoder, nnx.Rngs(0))
    for k in ("1", "2"):
        names = {"embedding_norm.scale": "e_norm" + k, "hidden_state_norm.scale": "h_norm" + k, "projection_layer.kernel": "proj" + k, "final_norm.scale": "final",
                 "transformer_layer.norm.scale": "norm" + k, "transformer_layer.mlp.wi_0.kernel": "gate" + k, "transformer_layer.mlp.wi_1.kernel": "up" + k,
                 "transformer_layer.mlp.wo.kernel": "down" + k}
        placed(getattr(block, "mtp_layer_" + k), {there: w[here] for there, here in names.items()})
    h, counts = batch(t["h"], 0), labels != -100
    ids = jnp.pad(jnp.where(counts, labels, 0), ((0, 0), (1, 0)))[:, :-1]
    block(w["table"], h, ids, jnp.where(counts, labels, 0), counts, position_ids=jnp.arange(length)[None], decoder_segment_ids=None, model_mode="train", deterministic=True)
    losses, weights = block.losses.value, block.weights.value
    logits = final(h) @ w["table"].T
    main, _ = max_utils.cross_entropy_with_logits(logits, jax.nn.one_hot(labels, len(w["table"]), dtype=dtype))
    by_token = calculate_mtp_loss({"mtp_losses": {"mtp_block": {"losses": losses, "weights": weights}}}, told)
    return {"main": (main * counts).sum() / counts.sum(), "by_depth": 0.3 / 2 * (losses / weights).sum(), "by_token": by_token}, {}


BLOCKS = {"indexer-loss": (indexer_loss, {"sparse": False}), "indexer-loss-sparse": (indexer_loss, {"sparse": True}), "mtp": (mtp, {})}


def run(request: Request, dtype: str) -> dict:
    name = request.case.removeprefix("program/")
    if name not in BLOCKS:
        raise Unsupported(f"no module here is {request.case}")
    block, told = BLOCKS[name]
    given = {path: jnp.asarray(x) if x.dtype.kind == "i" else jnp.asarray(x, dtype) for path, x in request.tensors.items()}
    fixed, leaves = ({path.split("/", 1)[1]: x for path, x in given.items() if path.startswith(start)} for start in ("inputs/", "weights/"))
    moving = {name: x for name, x in fixed.items() if x.dtype.kind == "f"}
    outputs, back, more = jax.vjp(lambda x, w: block({**fixed, **x}, w, jnp.dtype(dtype), **told), moving, leaves, has_aux=True)
    d_inputs, d_weights = back({name: given["cotangents/" + name].astype(y.dtype) for name, y in outputs.items()})
    return {**{"outputs/" + n: y for n, y in outputs.items()}, **{"routing/ids/" + n: ids for n, ids in more.items()},
            **{"gradients/inputs/" + n: d for n, d in d_inputs.items()}, **{"gradients/weights/" + n: d for n, d in d_weights.items()}}
