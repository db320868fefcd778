"""Decoder layers and stacks: MaxText's own layer classes, and its NNXDecoder, which wraps each layer in jax.checkpoint by the case's remat policy.

A stack's embedding and head are none of a case: NNXDecoder takes x as its decoder_input_embeddings, and its hidden state is the result.
"""
import functools
import re

import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import partitioning

import batch_split
import config as configuration
import exchange
from maxtext.common.common_types import AttentionType
from maxtext.layers.nnx_decoders import NNXDecoder
from maxtext.models.deepseek import DeepSeekDenseLayer, DeepSeekMoELayer
from maxtext.models.gpt_oss import GptOssDecoderLayer
from maxtext.models.mixtral import MixtralDecoderLayer
from maxtext.models.qwen3 import Qwen3MoeDecoderLayer
import moe

from request import Request, Settings, Unsupported

LAYERS = {"mixtral": MixtralDecoderLayer, "qwen3_moe": Qwen3MoeDecoderLayer, "gpt_oss": GptOssDecoderLayer, "dense": DeepSeekDenseLayer,
          "deepseek": DeepSeekMoELayer}
# what assay calls moe/ and self_attention/, by the block
BLOCKS = {"mixtral": ("MoeBlock_0/", "self_attention/"), "qwen3_moe": ("moe_block/", "self_attention/"),
          "gpt_oss": ("GptOssMlp/", "GptOssAttention/"), "deepseek": ("DeepSeekMoeBlock_0/MoeBlock_0/", "self_attention/")}
SLIDING, GLOBAL = AttentionType.LOCAL_SLIDING, AttentionType.GLOBAL
REMAT_NAMES = ("decoder_layer_input", "query_proj", "key_proj", "value_proj", "qkv_proj", "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv", "attention_out",
               "context", "out_proj", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo")


def path_in(block: str, path: str) -> str:
    """Where MaxText's layer has a weight that assay calls so."""
    experts, attention = BLOCKS[block]
    if path.startswith("moe/shared_experts/"):
        return path.replace("moe/", "DeepSeekMoeBlock_0/")
    return path.replace("moe/", experts, 1).replace("self_attention/", attention, 1)


def block_of(s: Settings) -> str:
    block = {"kimi_k2": "deepseek"}.get(s["decoder_block"], s["decoder_block"])
    s.need(block in BLOCKS, f"no layer of {block or 'no block'} here")
    return block


def keys_of(s: Settings, block: str) -> dict:
    """What MaxText's configuration has beside the keys that a case hands on."""
    more = {"max_target_length": s.count("sequence"), "per_device_batch_size": float(s.count("batch")), "scan_layers": False, "vocab_size": 8,
            "max_position_embeddings": s.count("max_position_embeddings"), "original_max_position_embeddings": s.count("original_max_position_embeddings"),
            "dropout_rate": 0.0, "use_ragged_sort": False, "rope_type": s["rope_type"], "fused_qkv": s.true("fused_qkv"), **moe.TILES}
    if s.true("use_ring_of_experts"):
        more["megablox"] = True
    s.need(block == "gpt_oss" or s.count("sliding_window_size") == 0, "windows are GPT-OSS's alone")
    s.need(not s.text.get("quant_recipe", ""), "no training recipe in a layer")
    s.need(s["rope_type"] != "default" or not s.true("rope_interleave"), "RotaryEmbedding has halves alone")
    if block == "deepseek":
        more |= {"base_num_kv_heads": s.count("base_num_query_heads"), "attention_type": "mla", "q_lora_rank": s.count("q_lora_rank")}
    if s.count("first_num_dense_layers") == 0 and s.count("base_moe_mlp_dim"):  # MaxText wants one width of a model that has experts alone
        more["base_mlp_dim"] = s.count("base_moe_mlp_dim")
    return more


class Call:
    """One case: configuration, tensors."""

    def __init__(self, request: Request, dtype: str, block: str, **keys):
        s = self.s = request.settings
        self.dtype, self.t, self.request = jnp.dtype(dtype), request.tensors, request
        narrow = {"float32_gate_logits": dtype == "bfloat16", "float32_weight_sum": dtype != "float64"}
        ids = self.t.get("inputs/segment_ids")
        s.need(ids is None or ids.min() > 0 or not s.true("mask_padding"), "segment 0 is a document in MaxText's attention, not padding")
        self.config, self.mesh = configuration.load(s, dtype, **narrow, **keys_of(s, block), **keys)
        self.fixed = {"positions": self.array("inputs/positions"), "segment_ids": None if ids is None else self.array("inputs/segment_ids")}
        self.cotangents = {p.removeprefix("cotangents/"): self.array(p) for p in self.t if p.startswith("cotangents/")}
        self.x = self.array("inputs/x")

    def array(self, path: str):
        value = self.t[path]
        if value.dtype.kind == "i":
            return jnp.asarray(value, jnp.int32)
        wide = self.dtype == jnp.bfloat16 and (path in self.request.wide or "/gate/" in path or path.endswith("lb_loss"))
        return jnp.asarray(value, jnp.float32 if wide else self.dtype)

    def weights(self, names) -> dict:
        """By MaxText's paths; names gives that of a path of assay's."""
        return {names(p.removeprefix("weights/")): self.array(p) for p in self.t if p.startswith("weights/")}

    def answer(self, names, outputs, gradients) -> dict:
        own = {names(p.removeprefix("weights/")): p for p in self.t if p.startswith("weights/")}
        d_weights, d_x = gradients
        made = {"outputs/" + n: v for n, v in outputs.items()} | {"gradients/inputs/x": d_x}
        made |= {"gradients/" + own[p]: v for p, v in d_weights.items()}
        missing = [p for p in self.request.expects if p not in made and not p.startswith("checkpoints/")]
        self.s.need(not missing, "MaxText gives no " + ", ".join(missing[:3]))
        return made


def differentiated(build, function, call: Call, kind, weights: dict) -> tuple:
    """Outputs and gradients of function(module, x, fixed), compiled once for a configuration and its shapes."""
    with call.mesh, partitioning.axis_rules(call.config.logical_axis_rules), exchange.replaced(str(call.dtype)):
        return compiled(build, function, call.config, call.mesh, kind)(weights, call.x, call.fixed, call.cotangents)


@functools.cache
def state_of(build, config, mesh, kind):
    """(structure, state) of a module without the work of drawing weights: those of a case replace these zeros."""
    with mesh, partitioning.axis_rules(config.logical_axis_rules):
        structure, state = nnx.split(nnx.eval_shape(lambda: build(config, mesh, kind)))
    return structure, jax.tree.map(zeros, state)


def merged(structure, state, weights: dict):
    """The module with these weights, by their paths; a stack's last norm and its head, which no case has, stay zero."""
    pure = nnx.to_pure_dict(state)
    for path, value in weights.items():
        at, names = pure, [int(n) if n.isdigit() else n for n in path.split("/")]
        for name in names[:-1]:
            at = at.get(name, {})
        if names[-1] not in at or at[names[-1]].shape != value.shape:
            raise Unsupported(f"MaxText has no {path} {value.shape}")
        at[names[-1]] = value
    state = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(state, pure)
    return nnx.merge(structure, state)


def zeros(leaf):
    return jnp.zeros(leaf.shape, leaf.dtype) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jax.random.key(0)


@functools.cache
def compiled(build, function, config, mesh, kind):
    structure, state = state_of(build, config, mesh, kind)

    def run(weights, x, fixed, cotangents):
        def forward(weights, x):
            module = merged(structure, state, weights)
            y = function(module, x, fixed)
            return {"y": y, **losses(module)}, beside(module)

        outputs, back, more = jax.vjp(forward, weights, x, has_aux=True)
        given = {n: cotangents[n].astype(v.dtype) if n in cotangents else jnp.zeros_like(v) for n, v in outputs.items()}
        return outputs | more, back(given)

    return jax.jit(run)


def sown(module, name: str) -> dict:
    """What layers left under this name, by assay's path: a layer's own, or that of each layer of a stack."""
    made = {}
    for path, value in nnx.to_flat_state(nnx.state(module, nnx.Intermediate)):
        if name in path:
            value = value.get_value()
            value = value[-1] if isinstance(value, tuple) else value
            numbers = [re.fullmatch(r"(dense_|moe_)?layers_(\d+)", str(p)) for p in path]
            layer = next((m for m in numbers if m), None)
            first = module.config.first_num_dense_layers if layer and layer[1] == "moe_" else 0
            made[f"layers/{int(layer[2]) + first}/" if layer else ""] = value
    return made


def losses(module) -> dict:
    return {at + "lb_loss": value for at, value in sown(module, "moe_lb_loss").items()}


def beside(module) -> dict:
    return {at + "bias_updates": value for at, value in sown(module, "moe_bias_updates").items()}


# ---- one layer ----


def layer(config, mesh, kind):
    name, attention = kind
    more = {"attention_type": attention} if name == "gpt_oss" else {"quant": None} if name == "qwen3_moe" else {}
    return LAYERS[name](config=config, mesh=mesh, model_mode="train", rngs=nnx.Rngs(params=0, dropout=0), **more)


def apply_layer(module, x, fixed):
    return module(x, fixed["segment_ids"], fixed["positions"], True, "train")[0]


def attention_of(s: Settings, block: str):
    """GPT-OSS alone has windows, in some of its layers."""
    sliding = s["attention_type"] != "global" and s.count("sliding_window_size") > 0
    return (SLIDING if sliding else GLOBAL) if block == "gpt_oss" else None


def run_layer(request: Request, dtype: str) -> dict:
    s = request.settings
    moe.check(s)
    block = block_of(s)
    s.need("inputs/selected_experts" not in request.tensors, "a layer has its router's choice")
    dense = any("/mlp/" in p for p in request.tensors)
    keys = {"base_num_decoder_layers": 1, "first_num_dense_layers": 1} if dense else {"base_num_decoder_layers": 1}
    call = Call(request, dtype, block, **keys)
    names = functools.partial(path_in, block)
    outputs, gradients = differentiated(layer, apply_layer, call, ("dense" if dense else block, attention_of(s, block)), call.weights(names))
    return call.answer(names, outputs, gradients)


# ---- stacks ----


def decoder(config, mesh, kind):
    return NNXDecoder(config, mesh, rngs=nnx.Rngs(params=0, dropout=0))


def apply_decoder(module, x, fixed):
    tokens = jnp.zeros(x.shape[:2], jnp.int32)
    return module(None, tokens, fixed["positions"], fixed["segment_ids"], deterministic=True, decoder_input_embeddings=x)[1]


def path_in_stack(block: str, dense: int, path: str) -> str:
    number, rest = re.fullmatch(r"layers/(\d+)/(.*)", path).groups()
    number = int(number)
    at = f"layers_{number}" if block != "deepseek" else f"dense_layers_{number}" if number < dense else f"moe_layers_{number - dense}"
    return f"{at}/{path_in(block, rest)}"


def run_stack(request: Request, dtype: str) -> dict:
    s = request.settings
    moe.check(s)
    block = block_of(s)
    s.need(not any("selected_experts" in p for p in request.tensors), "a layer has its router's choice")
    policy = s["remat_policy"]
    keys = {"base_num_decoder_layers": s.count("base_num_decoder_layers"), "remat_policy": policy}
    if policy == "custom":
        keys |= {n: s[n] for n in REMAT_NAMES if n in s.text and s[n] not in ("", "spill")}
    call = Call(request, dtype, block, **keys)
    names = functools.partial(path_in_stack, block, s.count("first_num_dense_layers"))
    outputs, gradients = differentiated(decoder, apply_decoder, call, None, call.weights(names))
    return call.answer(names, outputs, gradients)


def run(request: Request, dtype: str) -> dict:
    if request.settings.true("use_batch_split_schedule"):
        return batch_split.run_schedule(request, dtype)
    return run_stack(request, dtype) if request.op.endswith("_stack") else run_layer(request, dtype)
