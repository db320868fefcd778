"""MaxText's MoE block on your laptop's processor, forward and backward, against assay's goldens (docs/your-kernel.md).

    python3 -m pytest test_moe.py

Copy it to where you change moe.py. A case's keys are MaxText's own, and so are the names of its weights."""
import functools
import os

os.environ.update(JAX_PLATFORMS="cpu", DECOUPLE_GCLOUD="TRUE", HF_HUB_OFFLINE="1")

import assay
import jax
import jax.numpy as jnp
import maxtext
import pytest
from flax import nnx
from flax.linen import partitioning
from maxtext.configs import pyconfig
from maxtext.layers import moe
from maxtext.layers.initializers import nd_dense_init
from maxtext.utils import maxtext_utils

BASE = os.path.join(os.path.dirname(maxtext.__file__), "configs/decoupled_base_test.yml")
KEYS = ("model_name", "base_emb_dim", "base_moe_mlp_dim", "num_experts", "num_experts_per_tok", "shared_experts", "routed_score_func", "routed_bias",
        "routed_scaling_factor", "n_routing_groups", "topk_routing_group", "norm_topk_prob", "mlp_activations")
TILES = {f"{product}_tile_{way}_{dim}": 8 for product in ("wi", "wo") for way in ("fwd", "dlhs", "drhs") for dim in ("batch_seq", "embed_dim", "mlp_dim")}
FORMS = {"dense": {"sparse_matmul": False}, "ragged_dot": {"sparse_matmul": True, "megablox": False}, "megablox": {"sparse_matmul": True, "megablox": True, **TILES}}
SUPPORTS = {"model_name": ("deepseek3-tiny", "mixtral-8x7b", "qwen3-30b-a3b"), "inputs": "x", "mesh": None, "capacity_factor": -1, "fused_moe_mlp": False,
            "load_balance_loss_weight": 0, "router_z_loss_weight": 0, "routed_bias_update_rate": 0, "quant_formats": None, "quant_hidden_format": None}


@functools.cache
def block_of(keys):
    """(structure, state, mesh, rules) of a block; the state is replaced by the case's weights."""
    config = pyconfig.initialize([None, BASE], run_name="test", enable_checkpointing=False, override_model_config=True, skip_jax_distributed_system=True, log_config=False,
                                 dtype="float32", weight_dtype="float32", matmul_precision="highest", attention="dot_product", base_num_decoder_layers=1,
                                 ici_fsdp_parallelism=1, **{key: list(value) if isinstance(value, tuple) else value for key, value in keys})
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config, jax.devices()[:1]), config.mesh_axes)
    common = {"config": config, "mesh": mesh, "rngs": nnx.Rngs(params=0), "dtype": config.dtype, "weight_dtype": config.weight_dtype,
              "kernel_init": nd_dense_init(1.0, "fan_in", "truncated_normal"), "kernel_axes": ("embed", None)}
    with mesh, partitioning.axis_rules(config.logical_axis_rules):
        if config.shared_experts:
            module = moe.RoutedAndSharedMoE(**common)
        else:
            module = moe.RoutedMoE(num_experts=config.num_experts, num_experts_per_tok=config.num_experts_per_tok, intermediate_dim=config.moe_mlp_dim, **common)
    return *nnx.split(module), mesh, config.logical_axis_rules


def forward(given, structure, state):
    pure = nnx.to_pure_dict(state)
    for path, value in given.items():
        if path.startswith("weights/"):
            names = path.split("/")[1:]
            names = ["MoeBlock_0", *names] if "MoeBlock_0" in pure and names[0] != "shared_experts" else names
            functools.reduce(lambda at, name: at[name], names[:-1], pure)[names[-1]] = value
    nnx.replace_by_pure_dict(state, pure)
    module = nnx.merge(structure, state)
    routed = module.routed_moe if hasattr(module, "routed_moe") else module
    logits, before_bias = routed.gate(given["inputs/x"])
    return module(given["inputs/x"])[0], routed.get_topk(logits, before_bias, None)[1]


@pytest.mark.parametrize("form", FORMS)
@assay.cases("moe/*", precision="f32", supports=SUPPORTS)
def test_moe(case, form):
    keys = {key: case.config[key] for key in KEYS if case.config.get(key) not in (None, "")} | FORMS[form]
    keys["base_mlp_dim"] = keys["base_moe_mlp_dim"]  # as MaxText asks where every layer is MoE
    structure, state, mesh, rules = block_of(tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in keys.items()))
    given = {path: value.astype(jnp.float32) for path, value in case.inputs(jax).items()}
    with mesh, partitioning.axis_rules(rules):
        y, backward, chosen = jax.vjp(lambda given: forward(given, structure, state), given, has_aux=True)
        (gradients,) = backward(case.cotangents(jax)["cotangents/y"].astype(y.dtype))
    case.check({"outputs/y": y, "routing/selected_experts": chosen, **{"gradients/" + path: value for path, value in gradients.items()}})
