"""MaxText's configuration of a case: its keys are MaxText's own, so they are handed on. One for all cases that ask for the same."""
import copy
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
import yaml

import maxtext
from maxtext.configs import pyconfig
from maxtext.configs.types import MaxTextConfig
from maxtext.utils import maxtext_utils

from request import Settings, Unsupported

BASE = os.path.join(os.path.dirname(maxtext.__file__), "configs/decoupled_base_test.yml")
MESH = {"data": "ici_data_parallelism", "fsdp": "ici_fsdp_parallelism", "fsdp_transpose": "ici_fsdp_transpose_parallelism", "context": "ici_context_parallelism",
        "mlp_tensor": "ici_tensor_parallelism", "expert": "ici_expert_parallelism"}
# of blocks that a case names without a model; MaxText takes parts of the family from the model's name
MODELS = {"deepseek": "deepseek3-tiny", "deepseek4": "deepseek4-tiny", "kimi_k2": "kimi-k2-1t", "mixtral": "mixtral-8x7b", "qwen3_moe": "qwen3-30b-a3b",
          "gpt_oss": "gpt-oss-20b", "gemma4": "gemma4-26b", "llama4": "llama4-17b-16e", "qwen3_next": "qwen3-next-80b-a3b", "": "default"}
BLOCKS = {"kimi_k2": "deepseek", "": "llama2"}  # the block in MaxText's words
# what a case has another meaning of, or MaxText takes from elsewhere; the checkpoint names of remat policies say nothing without the policy `custom`
PASSED_OVER = {"model_name", "decoder_block", "vocab_size", "remat_policy", "decoder_layer_input", "query_proj", "key_proj", "value_proj", "qkv_proj", "query_wa_proj",
               "kv_wa_proj", "mla_q", "mla_kv", "attention_out", "context", "out_proj", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi", "moe_mlpwi_0", "moe_mlpwi_1",
               "moe_mlpwo", "max_position_embeddings", "attention_type", "use_batch_split_schedule", "batch_split_factor", "merge_gating_gmm", "fused_mlp"}
WHERE_GIVEN = {"num_experts", "num_experts_per_tok", "base_num_kv_heads", "head_dim", "q_lora_rank", "attention_type"}  # 0 and "" leave them to the model


choices = {"megablox": False}  # what options of the shell ask for, in every case
read_once = functools.cache(pyconfig._load_config)  # the same few files
pyconfig._load_config = lambda path: copy.deepcopy(read_once(path))  # whose caller changes what it gets


@functools.cache
def initialize(dtype: str, mesh_shape: tuple, keys: tuple):
    """MaxText's own loader. It has no float64, so that is put in behind it."""
    more = {MESH[axis]: size for axis, size in mesh_shape}
    config = pyconfig.initialize(
        [None, BASE], run_name="assay", enable_checkpointing=False, override_model_config=True, skip_jax_distributed_system=True, log_config=False,
        dtype="float32" if dtype == "float64" else dtype, weight_dtype="float32" if dtype == "float64" else dtype, matmul_precision="highest",
        attention="dot_product", **{"ici_fsdp_parallelism": 1, **more, **{key: list(value) if isinstance(value, tuple) else value for key, value in keys}})
    for name in ("dtype", "weight_dtype"):
        config._flat_config[name] = jnp.dtype(dtype)
    return config


def axes(s: Settings) -> dict:
    """Of the mesh, those with more than one device."""
    return {axis: size for axis, size in yaml.safe_load(s["mesh"]).items() if size > 1}


def mesh_shape(s: Settings) -> tuple:
    unknown = [axis for axis in axes(s) if axis not in MESH]
    s.need(not unknown, f"MaxText has no mesh axis for {', '.join(unknown)}")
    return tuple(axes(s).items())


def balance_loss_weight(s: Settings, model: str, sparse: bool) -> float:
    """Of the case's loss: MaxText divides the densities by the number of chosen experts. On its sparse path the bias that selects has no part in it."""
    if s.number("load_balance_loss_weight") > 0 and model.startswith(("deepseek3", "deepseek4", "kimi-k2")) and s.true("routed_bias"):
        s.need(s.true("load_balance_loss_pre_bias") == sparse,
               f"the bias has {'no' if sparse else 'a'} part in the balance loss of MaxText's {'sparse' if sparse else 'dense'} path")
    return s.number("load_balance_loss_weight") * s.count("num_experts_per_tok")


def load(s: Settings, dtype: str, sparse=None, **more):
    """The configuration and its mesh. `more` are keys that a case does not have; `sparse`: the path, where the case does not say it."""
    block, name = s["decoder_block"], s["model_name"] or MODELS.get(s["decoder_block"], "")
    if block == "deepseek4" and not name.startswith("deepseek4"):
        name = MODELS[block]
    keys = {"model_name": name, "decoder_block": BLOCKS.get(block, block), "base_num_decoder_layers": 1}
    for key, text in s.text.items():
        if key in MaxTextConfig.model_fields and key not in PASSED_OVER | {"dtype"}:
            value = "" if key == "routed_score_func" and not text else yaml.safe_load(text)
            if value is not None and not (key in WHERE_GIVEN and value in (0, "")):
                keys[key] = value
    if "load_balance_loss_weight" in keys:
        keys["load_balance_loss_weight"] = balance_loss_weight(s, name, s.true("sparse_matmul") if sparse is None else sparse)
    keys.update(choices | more)
    shape = mesh_shape(s)
    try:
        config = initialize(dtype, shape, tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in keys.items()))
    except pydantic.ValidationError as error:
        raise Unsupported("MaxText refuses it: " + error.errors()[0]["msg"].removeprefix("Value error, "))
    return config, device_mesh(config)


def device_mesh(config) -> jax.sharding.Mesh:
    devices = jax.devices()[:int(np.prod(config.ici_parallelism))]
    return jax.sharding.Mesh(maxtext_utils.create_device_mesh(config, devices), config.mesh_axes)
