"""Liger-Kernel: its autograd functions, so the backward is its own too."""
import math

import torch
from liger_kernel.ops.fused_moe import LigerFusedMoEFunction
from liger_kernel.ops.geglu import LigerGELUMulFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction

from kernels_attention import frequencies


def rms_norm(c):
    epsilon = c.s.number("normalization_layer_epsilon")
    return {"outputs/y": LigerRMSNormFunction.apply(c.t["inputs/x"], c.t["weights/scale"], epsilon, 0.0, "llama", False)}


def glu(c):
    """act(a) b of an MLP without clamps."""
    functions = {"silu": LigerSiLUMulFunction.apply, "gelu": LigerGELUMulFunction.apply}
    activation, up = c.s.words("mlp_activations")
    c.s.need(activation in functions and up == "linear", f"no activation {activation}, {up}")
    c.s.need(c.s.number("mlp_activations_limit") == 0 and c.s["decoder_block"] != "gpt_oss", "no clamped unit")
    return functions[activation]


def mlp(c):
    """The projections are PyTorch's, as in LigerSwiGLUMLP."""
    x, w = c.t["inputs/x"], c.under("weights/")
    gate, up = w["wi/kernel"].chunk(2, -1) if "wi/kernel" in w else (w["wi_0/kernel"], w["wi_1/kernel"])
    c.s.need("wo/bias" not in w, "no biases")
    return {"outputs/y": glu(c)(x @ gate, x @ up) @ w["wo/kernel"]}


def yarn_rope(c):
    """Pairs are halves; the tables of cos and sin are a caller's, in float32: the kernel computes in their type. Its keys are the queries again."""
    s, x = c.s, c.t["inputs/x"]
    s.need(not s.true("rope_interleave"), "no pairs side by side")
    angle = c.t["inputs/positions"].double()[..., None] * torch.from_numpy(frequencies(s, x.shape[-1]))
    factor = s.number("rope_factor")
    size = 0.1 * math.log(factor) + 1 if s["rope_type"] == "yarn" and s.true("rope_attention_scaling") and factor > 1 else 1.0
    cos, sin = (torch.cat([size * table, size * table], -1).to(c.wide) for table in (angle.cos(), angle.sin()))
    heads = x.transpose(1, 2)
    return {"outputs/y": LigerRopeFunction.apply(heads, heads.detach().clone(), cos, sin)[0].transpose(1, 2)}


def moe(c):
    """The experts, behind a given choice with given weights: Liger has no router."""
    s, w, x = c.s, c.under("weights/"), c.t["inputs/x"]
    s.need("inputs/routing_weights" in c.t and "inputs/selected_experts" in c.t, "no router")
    for key in ("apply_router_weight_on_input", "fused_moe_func"):
        s.need(not s.true(key), f"no {key}")
    s.need(s.number("capacity_factor") <= 0 and s.count("local_num_experts") == 0, "no dropping, no experts elsewhere")
    s.need(s.words("mlp_activations") == ["silu", "linear"] and s.number("mlp_activations_limit") == 0, "no activation but silu")
    s.need("wo_bias" not in w, "no biases")
    ids, weights = (c.t[path].flatten(0, 1) for path in ("inputs/selected_experts", "inputs/routing_weights"))
    s.need(bool((ids >= 0).all()), "no slots of -1")
    gate_up = w["wi"] if "wi" in w else torch.cat([w["wi_0"], w["wi_1"]], -1)
    y = LigerFusedMoEFunction.apply(x.flatten(0, 1), gate_up.transpose(1, 2), w["wo"].transpose(1, 2), ids, weights).reshape(x.shape)
    if "shared_experts/wo/kernel" in w:
        shared = [w[f"shared_experts/{name}/kernel"] for name in ("wi_0", "wi_1", "wo")]
        y = y + LigerSiLUMulFunction.apply(x @ shared[0], x @ shared[1]) @ shared[2]
    return {"outputs/y": y, "routing/selected_experts": c.t["inputs/selected_experts"], "routing/weights": c.t["inputs/routing_weights"].to(c.wide)}


OPERATIONS = {"rms_norm": rms_norm, "mlp": mlp, "yarn_rope": yarn_rope, "moe": moe}
