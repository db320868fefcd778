#!/usr/bin/env python3
"""What docs/findings says of MaxText's MoE block, each as a function that runs it: `findings_moe.py NAME`, or all of them without one.

Prints "confirmed" or "refuted" and the numbers, in float64.
"""
import os
import sys

os.environ.update(JAX_PLATFORMS="cpu", DECOUPLE_GCLOUD="TRUE", HF_HUB_OFFLINE="1", XLA_FLAGS="--xla_force_host_platform_device_count=8")
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../harness/backends/shell"))

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning

jax.config.update("jax_enable_x64", True)

import config as configuration
import exchange
import moe
import wide_casts

wide_casts.apply()
MODEL = {"model_name": "deepseek3-tiny", "base_emb_dim": 16, "base_moe_mlp_dim": 12, "base_mlp_dim": 12, "num_experts": 8, "num_experts_per_tok": 2,
         "shared_experts": 0, "base_num_decoder_layers": 1, "first_num_dense_layers": 0, "megablox": False, "use_ragged_sort": False,
         "float32_weight_sum": False, "load_balance_loss_weight": 0.01}


def block(mesh_shape: tuple, keys: dict, wanted):
    """wanted(call, weights) of a block of 8 experts, where call(weights) gives y, the balance loss and bias updates of four sequences of 6 tokens."""
    config = configuration.initialize("float64", mesh_shape, tuple((MODEL | keys).items()))
    mesh = configuration.device_mesh(config)
    structure, state = moe.state_of(config, mesh, "routed", False)
    random = np.random.default_rng(1)
    shapes = {"gate/kernel": (16, 8), "gate/bias": (8,), "wi_0": (8, 16, 12), "wi_1": (8, 16, 12), "wo": (8, 12, 16)}
    weights = {name: jnp.asarray(random.standard_normal(shape) * 0.25) for name, shape in shapes.items()}
    x = jnp.asarray(random.standard_normal((4, 6, 16)))
    with exchange.replaced("float64"), mesh, partitioning.axis_rules(config.logical_axis_rules):
        return jax.jit(lambda weights: wanted(lambda w: moe.merged("routed", structure, state, w)(x), weights))(weights)


def balance(mesh_shape=(), **keys):
    """The balance loss, and its gradients of the gate's kernel and bias."""
    value, gradients = block(mesh_shape, keys, lambda call, weights: jax.value_and_grad(lambda w: call(w)[1])(weights))
    return float(value), np.asarray(gradients["gate/kernel"]), np.asarray(gradients["gate/bias"])


def output(mesh_shape=(), **keys) -> np.ndarray:
    return np.asarray(block(mesh_shape, {"megablox": bool(mesh_shape)} | keys, lambda call, weights: call(weights)[0]))


def verdict(confirmed: bool, text: str) -> bool:
    print("confirmed:" if confirmed else "refuted:", text)
    return confirmed


def balance_loss_dense() -> bool:
    sparse, dense = balance(sparse_matmul=True), balance(sparse_matmul=False)
    return verdict(abs(sparse[0] - dense[0]) > 1e-6, f"loss sparse {sparse[0]:.6f}, dense {dense[0]:.6f}; largest gradient of the bias "
                   f"{np.abs(sparse[2]).max():.2g} and {np.abs(dense[2]).max():.2g}")


def balance_loss_shards() -> bool:
    one, two, four = balance(), balance((("data", 2),)), balance((("data", 4),))
    apart = max(np.abs(other[1] - one[1]).max() / np.abs(one[1]).max() for other in (two, four))
    return verdict(abs(two[0] - one[0]) > 1e-6 and apart < 1e-10, f"loss on one device {one[0]:.6f}, two shards of data {two[0]:.6f}, "
                   f"four {four[0]:.6f}; gradients of the gate agree to {apart:.2g}")


def ring_without_megablox() -> bool:
    try:
        balance((("expert", 2),), use_ring_of_experts=True)
    except TypeError as error:
        return verdict(True, str(error))
    return verdict(False, "it runs")


def ring_experts_on_fsdp() -> bool:
    shape = (("fsdp", 2), ("expert", 2))
    one, ring, by_experts = output(), output(shape, use_ring_of_experts=True), output(shape, use_ring_of_experts=True, shard_exp_on_fsdp=True)
    errors = [np.abs(y - one).max() / np.abs(one).max() for y in (ring, by_experts)]
    return verdict(errors[0] < 1e-10 and errors[1] > 1e-3, f"y of a ring on 2 x 2 devices is off by {errors[0]:.2g}, "
                   f"with shard_exp_on_fsdp by {errors[1]:.2g} of the largest")


NAMES = {f.__name__.replace("_", "-"): f for f in (
    balance_loss_dense, balance_loss_shards, ring_without_megablox, ring_experts_on_fsdp)}

if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        print(f"{name}: ", end="")
        NAMES[name]()
