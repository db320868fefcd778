"""A MoE block in PyTorch: bfloat16 between kernels, float32 sums, the router in float32; one device, autograd for the backward.

An example of a kernel under test, to be replaced by your own: test_torch_moe.py tries it over the catalogue. On a CPU it makes
products in float32 of bfloat16 numbers, as tensor cores do; PyTorch 1.13's own bfloat16 product there sums in bfloat16.
"""
from __future__ import annotations

import torch
from torch import Tensor

DEEPSEEK3 = ("glm4_moe", "kimi_k2")

# What this block has, for @assay.cases(supports=SUPPORTS); of other keys it takes every value. None: as where a case says nothing.
SUPPORTS = {
    "decoder_block": lambda block: block not in ("llama4", "gemma4"),
    "inputs": "x",  # no choice of experts that is given
    "mesh": None,
    "capacity_factor": -1,
    "fused_moe_func": False,
    "first_num_hash_layers": 0,
    "routing_method": None,
    "norm_topk_epsilon": 0,
    "use_random_routing": False,
    "local_num_experts": 0,
    "num_redundant_experts": 0,
    "num_fused_shared_experts": 0,
    "apply_router_weight_on_input": False,
    "apply_routed_scaling_factor_on_output": True,
    "router_z_loss_weight": 0,
    "load_balance_loss_scope": "sequence",
    "load_balance_loss_pre_bias": False,
    "quant_formats": None,
    "quant_hidden_format": None,
    "quant_recipe": None,
}


def route(config: dict, logits: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Chosen experts and weights [T,K], and what they are chosen by [T,E]."""
    block, name, k = config["decoder_block"], config["model_name"], config["num_experts_per_tok"]
    deepseek = block.startswith("deepseek") or block in DEEPSEEK3
    function = config["routed_score_func"]
    if function == "softmax":
        scores = logits.softmax(-1)
    elif function == "sigmoid":
        scores = logits.sigmoid()
    else:
        scores = torch.nn.functional.softplus(logits).sqrt() if function else logits
    biased = scores if bias is None else scores + bias
    allowed = biased.detach()
    if deepseek and config["n_routing_groups"] > 0:
        groups = allowed.unflatten(-1, (config["n_routing_groups"], -1))
        top2 = config["group_score"] == "top2_sum" or (not config["group_score"] and bias is not None)
        score = groups.topk(2, -1).values.sum(-1) if top2 else groups.amax(-1)
        kept = torch.zeros_like(score).scatter(-1, score.topk(config["topk_routing_group"], -1).indices, 1) > 0
        allowed = groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    chosen = allowed.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    if not deepseek:
        weights = biased.gather(-1, chosen).softmax(-1)
        divides = config["norm_topk_prob"]
    else:
        by_scores = block in DEEPSEEK3 or function != "softmax" or bias is not None
        weights = (scores if by_scores and not name.startswith("deepseek2") else biased).gather(-1, chosen)
        divides = function in ("sigmoid", "sqrtsoftplus")
    if divides:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * config["routed_scaling_factor"] if deepseek else weights, biased


def balance(config: dict, chosen: Tensor, biased: Tensor, batch: int) -> dict[str, Tensor]:
    """The balance loss over sequences, and the updates of the bias."""
    experts, k = config["num_experts"], config["num_experts_per_tok"]
    counts = torch.nn.functional.one_hot(chosen, experts).sum(1).float()  # [T,E]
    found = {}
    if config["load_balance_loss_weight"] > 0:
        density = counts.unflatten(0, (batch, -1)).mean(1)
        p = biased.softmax(-1).unflatten(0, (batch, -1)).mean(1)
        found["outputs/lb_loss"] = (density * p).mean() * experts**2 * config["load_balance_loss_weight"]
    if config["routed_bias_update_rate"] > 0:
        total = counts.sum(0)
        found["outputs/bias_updates"] = config["routed_bias_update_rate"] * torch.sign(total.mean() - total)
    return found


def gated_mlp(config: dict, x: Tensor, wi_0: Tensor, wi_1: Tensor, wo: Tensor, biases=(), limit: float = 0) -> Tensor:
    a, b = (x.float() @ w.float() for w in (wi_0, wi_1))
    if biases:
        a, b = a + biases[0].float(), b + biases[1].float()
    a, b = a.to(x.dtype).float(), b.to(x.dtype).float()
    if limit > 0:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    functions = torch.nn.functional
    if config["decoder_block"] == "gpt_oss":
        h = a * torch.sigmoid(1.702 * a) * (b + 1)
    else:
        kind = config["mlp_activations"][0]
        h = (functions.gelu(a, approximate="tanh") if kind == "gelu" else a if kind == "linear" else getattr(functions, kind)(a)) * b
    y = h.to(x.dtype).float() @ wo.float()
    return (y + biases[2].float() if biases else y).to(x.dtype)


def moe(given: dict[str, Tensor], config: dict) -> dict[str, Tensor]:
    """Results by path of a block whose inputs and weights are `given` by path."""
    x = given["inputs/x"]
    w = {path.removeprefix("weights/"): tensor for path, tensor in given.items() if path.startswith("weights/")}
    flat = x.flatten(0, 1).float()  # a token's copies have one gradient, which is rounded once
    bias = w["gate/bias"].float() if "gate/bias" in w else None
    chosen, weights, biased = route(config, flat @ w["gate/kernel"].float(), bias)
    if "wi" in w:
        shards = w["wi"].unflatten(-1, (config["w13_reorder_size"], 2, -1))
        w["wi_0"], w["wi_1"] = shards[..., 0, :].flatten(-2), shards[..., 1, :].flatten(-2)
    names = ["wi_0", "wi_1", "wo"] + ["wi_0_bias", "wi_1_bias", "wo_bias"] * ("wo_bias" in w)
    experts = list(zip(*(w[name].unbind(0) for name in names)))
    y = torch.zeros_like(flat)
    for e in chosen.unique().tolist():
        token, slot = (chosen == e).nonzero(as_tuple=True)
        out = gated_mlp(config, flat[token].to(x.dtype), *experts[e][:3], experts[e][3:], config["mlp_activations_limit"])
        y = y.index_add(0, token, out.float() * weights[token, slot, None])
    if "shared_experts/wo/kernel" in w:
        shared = (w[f"shared_experts/{name}/kernel"] for name in ("wi_0", "wi_1", "wo"))
        out = gated_mlp(config, x.flatten(0, 1), *shared).float()
        if "shared_expert_gate/kernel" in w:
            out = out * torch.sigmoid(flat @ w["shared_expert_gate/kernel"].float())
        y = y + out
    results = {"outputs/y": y.to(x.dtype).view_as(x), "routing/selected_experts": chosen.view(*x.shape[:2], -1)}
    return {**results, **balance(config, chosen, biased, len(x))}
