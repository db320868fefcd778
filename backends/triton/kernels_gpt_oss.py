"""GPT-OSS as OpenAI wrote it in PyTorch (gpt_oss.torch.model): its blocks, with a case's tensors in the place of its parameters.

No Triton: it is here for the environment. Its norms and the tables of its rotation are float32 in every type. A MoE block by itself
is its block with an identity for the norm; the input, which the block adds to its result, is taken off again, exactly enough in float64 alone.
"""
import torch
from gpt_oss.torch.model import MLPBlock, ModelConfig, TransformerBlock
from torch.overrides import TorchFunctionMode


class Choices(TorchFunctionMode):
    """Notes what its topk chose."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.topk:
            self.seen.append(result.indices)
        return result


def configured(c, hidden):
    s = c.s
    s.need(s["decoder_block"] == "gpt_oss", "no model but GPT-OSS")
    s.need(s.number("mlp_activations_limit") > 0 and s.number("normalization_layer_epsilon") == 1e-5, "no other clamp, no other epsilon")
    for key in ("fused_moe_func", "apply_router_weight_on_input", "fused_qkv", "prefuse_moe_weights"):
        s.need(not s.true(key), f"no {key}")
    s.need(s.number("norm_topk_epsilon") == 0 and s.number("capacity_factor") <= 0 and not s["routing_method"], "no dropping, no other router")
    s.need(s.number("load_balance_loss_weight") == 0 and s.number("router_z_loss_weight") == 0, "no losses")
    s.need("inputs/selected_experts" not in c.t and "inputs/segment_ids" not in c.t, "no given choice, no segments")
    if "inputs/positions" in c.t:
        ids = c.t["inputs/positions"]
        s.need(bool((ids == torch.arange(ids.shape[-1])).all()), "no positions but from 0 on")
        s.need(s["rope_type"] == "yarn" and not s.true("rope_truncate") and s.true("rope_attention_scaling"), "no other rotation")
        scale = s.number("query_pre_attn_scalar") or s.number("head_dim") ** -0.5
        s.need(abs(scale * s.number("head_dim") ** 0.5 - 1) < 1e-12, "no other scale of queries")
    return ModelConfig(num_experts=s.count("num_experts"), experts_per_token=s.count("num_experts_per_tok"), hidden_size=hidden,
                       intermediate_size=s.count("base_moe_mlp_dim"), swiglu_limit=s.number("mlp_activations_limit"), head_dim=s.count("head_dim"),
                       num_attention_heads=s.count("base_num_query_heads"), num_key_value_heads=s.count("base_num_kv_heads"),
                       sliding_window=s.count("sliding_window_size"), initial_context_length=s.count("original_max_position_embeddings"),
                       rope_theta=s.number("rope_max_timescale"), rope_scaling_factor=s.number("rope_factor"),
                       rope_ntk_alpha=s.number("beta_slow"), rope_ntk_beta=s.number("beta_fast"))


def of_attention(w):
    """Queries, keys and values are one product."""
    columns = [w[f"{name}/kernel"].flatten(1) for name in ("query", "key", "value")]
    biases = [w[f"{name}/bias"].flatten() for name in ("query", "key", "value")]
    return {"sinks": w["sinks"], "qkv.weight": torch.cat(columns, 1).t(), "qkv.bias": torch.cat(biases),
            "out.weight": w["out/kernel"].flatten(0, 1).t(), "out.bias": w["out/bias"]}


def of_mlp(w, dtype):
    """Gate and up take turns."""
    return {"gate.weight": w["gate/kernel"].t().to(dtype), "gate.bias": w["gate/bias"].to(dtype),
            "mlp1_weight": torch.stack([w["wi_0"], w["wi_1"]], -1).flatten(-2).transpose(1, 2),
            "mlp1_bias": torch.stack([w["wi_0_bias"], w["wi_1_bias"]], -1).flatten(-2),
            "mlp2_weight": w["wo"].transpose(1, 2), "mlp2_bias": w["wo_bias"]}


def apply(c, block, parameters, x):
    """A sequence at a time, as the model takes it."""
    block = block.to(c.dtype)
    with Choices() as choices:
        rows = [torch.func.functional_call(block, parameters, (row,)) for row in x]
    return torch.stack(rows), torch.stack(choices.seen) if choices.seen else None


def moe(c):
    c.s.need(c.dtype == torch.float64, "no block by itself but in float64")
    x = c.t["inputs/x"]
    block = MLPBlock(configured(c, x.shape[-1]))
    block.norm = torch.nn.Identity()
    y, chosen = apply(c, block, of_mlp(c.under("weights/"), c.dtype), x)
    return {"outputs/y": y - x, "routing/selected_experts": chosen}


def layers(c):
    numbers = sorted({int(path.split("/")[2]) for path in c.t if path.startswith("weights/layers/")})
    y, made = c.t["inputs/x"], {}
    config = configured(c, y.shape[-1])
    for i, name in [(i, f"layers/{i}/") for i in numbers] or [(int(c.s["attention_type"] == "global"), "")]:
        w = c.under("weights/" + name)
        parts = {"attn.": of_attention({key[len("self_attention/"):]: value for key, value in w.items() if key.startswith("self_attention/")}),
                 "mlp.": of_mlp({key[len("moe/"):]: value for key, value in w.items() if key.startswith("moe/")}, c.dtype)}
        parameters = {prefix + key: value for prefix, part in parts.items() for key, value in part.items()}
        parameters |= {"attn.norm.scale": w["pre_self_attention_layer_norm/scale"], "mlp.norm.scale": w["post_self_attention_layer_norm/scale"]}
        y, made[f"routing/{name}selected_experts"] = apply(c, TransformerBlock(config, i), parameters, y)
    return {"outputs/y": y, **made}


OPERATIONS = {"moe": moe, "decoder_layer": layers, "decoder_stack": layers}
