"""The operations of docs/operations.md by modules of transformers. A module takes its parameters from the request's tensors, laid out as
its checkpoint has them (torch.func.functional_call), so autograd carries gradients back to the request's own layout.

What is set beside a config: `scaling` of an attention whose case says another scale of the query, which is a plain attribute; a shared expert of
zeros where the block of transformers has one and the case has none; a choice that the case gives stands in the place of the router."""
import functools
import math

import torch
from torch import nn
from torch.func import functional_call
from transformers import masking_utils
from transformers.models.deepseek_v2 import configuration_deepseek_v2, modeling_deepseek_v2
from transformers.models.deepseek_v3 import configuration_deepseek_v3, modeling_deepseek_v3
from transformers.models.deepseek_v4 import configuration_deepseek_v4, modeling_deepseek_v4
from transformers.models.glm4_moe import configuration_glm4_moe, modeling_glm4_moe
from transformers.models.gpt_oss import configuration_gpt_oss, modeling_gpt_oss
from transformers.models.llama4 import configuration_llama4, modeling_llama4
from transformers.models.minimax_m2 import configuration_minimax_m2, modeling_minimax_m2
from transformers.models.mixtral import configuration_mixtral, modeling_mixtral
from transformers.models.qwen3_moe import configuration_qwen3_moe, modeling_qwen3_moe
from transformers.models.qwen3_next import configuration_qwen3_next, modeling_qwen3_next

from request import Unsupported
from torch_results import with_gradients
from transformers_blocks import run_program

ACTIVATIONS = {"silu": "silu", "gelu": "gelu_pytorch_tanh", "gelu_exact": "gelu", "relu": "relu", "sigmoid": "sigmoid", "linear": "linear"}


class Family:
    """A model type: its files, and the names of its parts. fp32: what it keeps in float32."""

    def __init__(self, modeling, configuration, stem, block, router="gate", shared="shared_experts"):
        self.modeling, self.stem, self.block, self.router, self.shared = modeling, stem, block, router, shared
        self.config = getattr(configuration, stem + "Config")
        self.fp32 = getattr(getattr(modeling, stem + "PreTrainedModel", None), "_keep_in_fp32_modules_strict", None) or []

    def part(self, end):
        return getattr(self.modeling, self.stem + end)


FAMILIES = {
    "deepseek_v2": Family(modeling_deepseek_v2, configuration_deepseek_v2, "DeepseekV2", "Moe"),
    "deepseek_v3": Family(modeling_deepseek_v3, configuration_deepseek_v3, "DeepseekV3", "MoE"),
    "deepseek_v4": Family(modeling_deepseek_v4, configuration_deepseek_v4, "DeepseekV4", "SparseMoeBlock"),
    "glm4_moe": Family(modeling_glm4_moe, configuration_glm4_moe, "Glm4Moe", "MoE"),
    "mixtral": Family(modeling_mixtral, configuration_mixtral, "Mixtral", "SparseMoeBlock", shared=None),
    "qwen3_moe": Family(modeling_qwen3_moe, configuration_qwen3_moe, "Qwen3Moe", "SparseMoeBlock", shared=None),
    "qwen3_next": Family(modeling_qwen3_next, configuration_qwen3_next, "Qwen3Next", "SparseMoeBlock", shared="shared_expert"),
    "minimax_m2": Family(modeling_minimax_m2, configuration_minimax_m2, "MiniMaxM2", "SparseMoeBlock", shared=None),
    "gpt_oss": Family(modeling_gpt_oss, configuration_gpt_oss, "GptOss", "MLP", router="router", shared=None),
    "llama4": Family(modeling_llama4, configuration_llama4, "Llama4Text", "Moe", router="router", shared="shared_expert"),
}
ROUTERS = {"deepseek_v2": "TopkRouter", "deepseek_v3": "TopkRouter", "glm4_moe": "TopkRouter"}  # the others: TopKRouter
METHODS = {"Default": "qwen3_moe", "RenormalizeNaive": "qwen3_moe", "Renormalize": "mixtral", "DeepSeekV3": "deepseek_v3",
           "MiniMax2": "minimax_m2", "Llama4": "llama4"}
SCORES = {"sigmoid": "deepseek_v3", "softmax": "deepseek_v2", "sqrtsoftplus": "deepseek_v4"}


class Call:
    """Settings and tensors of one case; `t` are leaves in the request's layout, in the types that the model has."""

    def __init__(self, request, dtype, experts, peers):
        self.s, self.case, self.dtype, self.experts, self.peers, self.raw = request.settings, request.case, dtype, experts, peers, request.tensors
        self.t, self.routed = {}, {}

    def read(self, fp32=()):
        """fp32: words in the names of what transformers keeps in float32."""
        for path, value in self.raw.items():
            made = torch.as_tensor(value.copy())
            if made.is_floating_point():
                router = {"gate.weight": "/gate/kernel", "e_score_correction_bias": "/gate/bias"}
                narrow = self.dtype == torch.bfloat16
                kept = narrow and any(path.endswith(router.get(word, "no such")) for word in fp32)
                made = made.to(torch.float32 if kept else self.dtype).requires_grad_(path.startswith(("inputs/", "weights/")))
            self.t[path] = made if made.is_floating_point() else made.long()

    def under(self, prefix):
        return {path[len(prefix):]: tensor for path, tensor in self.t.items() if path.startswith(prefix)}


# ---- which model, and its config ----


def family_of(s):
    """Of the MoE block."""
    block, name, method = s["decoder_block"], s["model_name"], s.text.get("routing_method", "")
    s.need(s.number("norm_topk_epsilon") == 0, "no epsilon but each router's own")
    s.need(not s.true("fused_moe_func"), "no fused_moe_func: each model type has one router")
    if method:
        s.need(method in METHODS, f"no model type here has the router {method}")
        divided = method in ("Renormalize", "RenormalizeNaive")  # Mixtral's and Qwen3's routers are one then
        return block if divided and block in ("mixtral", "qwen3_moe", "qwen3_next") else METHODS[method]
    score = s["routed_score_func"]
    if block in ("mixtral", "qwen3_moe", "qwen3_next", "gpt_oss", "llama4", "glm4_moe"):
        s.need(block != "glm4_moe" or score == "sigmoid", "GLM-4.5's router has sigmoids")
        return block
    s.need(block != "gemma4", "Gemma 4's router has a norm of its own in front")
    s.need(block.startswith("deepseek") or block == "kimi_k2" or name.startswith("deepseek"), f"no model type for the block '{block}'")
    s.need(score in SCORES, "every router of DeepSeek has a score function")
    return SCORES[score]


def rope_of(s):
    rope = {"rope_type": s["rope_type"], "rope_theta": s.number("rope_max_timescale")}
    s.need(rope["rope_type"] in ("default", "yarn"), "no rope_type " + rope["rope_type"])
    if rope["rope_type"] == "default":
        return rope
    factor, size = s.number("rope_factor"), 1.0
    if s.true("rope_attention_scaling") and factor > 1:
        size = 0.1 * math.log(factor) + 1
    rope.update(factor=factor, beta_fast=s.number("beta_fast"), beta_slow=s.number("beta_slow"), attention_factor=size,
                original_max_position_embeddings=s.count("original_max_position_embeddings"), truncate=s.true("rope_truncate"))
    return rope


def config_of(c, family, **keys):
    s = c.s
    plain = {"hidden_act": ACTIVATIONS.get(s.words("mlp_activations")[0], "none"), "num_hidden_layers": 1, "vocab_size": 8,
             "max_position_embeddings": s.count("max_position_embeddings"), "rms_norm_eps": s.number("normalization_layer_epsilon"), **keys}
    if "rope_parameters" not in plain and family != "deepseek_v4":
        plain["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config = FAMILIES[family].config(**plain)
    config._attn_implementation, config._experts_implementation = "eager", c.experts
    return config


def moe_keys(c, family, width, hidden):
    """Of the MoE block: width of x, and of an expert."""
    s, k, e = c.s, c.s.count("num_experts_per_tok"), c.s.count("num_experts")
    limit, factor = s.number("mlp_activations_limit"), s.number("routed_scaling_factor")
    groups = s.count("n_routing_groups")
    keys = {"hidden_size": width, "num_experts_per_tok": k}
    if family in ("deepseek_v2", "deepseek_v3", "glm4_moe", "deepseek_v4"):
        keys.update(n_routed_experts=e, moe_intermediate_size=hidden, n_shared_experts=max(1, s.count("shared_experts")),
                    routed_scaling_factor=factor, num_attention_heads=1)
    if family in ("deepseek_v3", "glm4_moe"):
        keys.update(n_group=max(1, groups), topk_group=s.count("topk_routing_group") if groups > 0 else 1,
                    norm_topk_prob=s.true("norm_topk_prob"))
        s.need(groups <= 0 or s["group_score"] == "top2_sum", "groups by the sum of their two largest scores alone")
        s.need(e // keys["n_group"] > 1, "a group has two experts or more")
    if family == "deepseek_v2":
        s.need(not s.true("routed_bias"), "softmax scores have no bias")
        s.need(groups <= 0 or s["group_score"] == "max", "groups by their largest score alone")
        if groups > 0:
            keys.update(topk_method="group_limited_greedy", n_group=groups, topk_group=s.count("topk_routing_group"))
    if family == "deepseek_v4":
        s.need(groups <= 0, "no groups")
        hashed = s.count("first_num_hash_layers") > 0
        keys.update(swiglu_limit=limit if limit > 0 else math.inf, mlp_layer_types=["hash_moe" if hashed else "moe"],
                    vocab_size=s.count("vocab_size"))
    if family in ("mixtral", "gpt_oss", "minimax_m2", "llama4"):
        keys.update(num_local_experts=e, intermediate_size=hidden)
    if family in ("qwen3_moe", "qwen3_next"):
        method = s.text.get("routing_method", "")
        divides = method == "RenormalizeNaive" or method != "Default" and s.true("norm_topk_prob")
        keys.update(num_experts=e, moe_intermediate_size=hidden, norm_topk_prob=divides)
    if family == "qwen3_next":
        keys.update(shared_expert_intermediate_size=hidden * s.count("shared_experts"))
    if family == "gpt_oss":
        s.need(s.words("mlp_activations")[0] == "sigmoid" and limit > 0, "always with the clamped unit")
        keys.update(swiglu_limit=limit)
        keys.pop("hidden_act", None)
    else:
        s.need(limit <= 0 or family == "deepseek_v4", "no clamp")
        s.need(s.words("mlp_activations")[0] in ACTIVATIONS, "no such activation")
    if family == "minimax_m2":
        s.need(factor == 1, "no routed_scaling_factor")
    return keys


# ---- parameters as checkpoints of transformers have them ----


def linear(kernel):
    """[in, ...] as nn.Linear's [out, in]."""
    return kernel.reshape(kernel.shape[0], -1).t().contiguous()


def halves(w, end):
    if "wi" + end in w:
        fused = w["wi" + end]
        return list(fused.unbind(-2) if end == "/kernel" and fused.dim() == 3 else fused.chunk(2, -1))
    return [w.get("wi_0" + end), w.get("wi_1" + end)]


def mlp_parameters(w, to):
    """gate_proj, up_proj and down_proj below `to`."""
    made = {}
    for name, kernel, bias in zip(("gate_proj", "up_proj"), halves(w, "/kernel"), halves(w, "/bias")):
        made[f"{to}{name}.weight"] = linear(kernel)
        if bias is not None:
            made[f"{to}{name}.bias"] = bias
    made[to + "down_proj.weight"] = linear(w["wo/kernel"])
    if "wo/bias" in w:
        made[to + "down_proj.bias"] = w["wo/bias"]
    return made


def moe_parameters(c, family, w, to=""):
    own, made = FAMILIES[family], {}
    (gate, up), (b_gate, b_up) = halves(w, ""), halves(w, "_bias")
    if family == "gpt_oss":
        c.s.need(b_gate is not None, "experts always have biases")
        made[to + "experts.gate_up_proj"] = torch.stack([gate, up], -1).flatten(-2)
        made[to + "experts.gate_up_proj_bias"] = torch.stack([b_gate, b_up], -1).flatten(-2)
        made[to + "experts.down_proj"], made[to + "experts.down_proj_bias"] = w["wo"], w["wo_bias"]
    else:
        c.s.need(b_gate is None, "no biases of experts")
        fused, down = torch.cat([gate, up], -1), w["wo"]
        turned = family != "llama4"
        made[to + "experts.gate_up_proj"] = fused.transpose(1, 2).contiguous() if turned else fused
        made[to + "experts.down_proj"] = down.transpose(1, 2).contiguous() if turned else down
    made.update(router_parameters(c, family, w, f"{to}{own.router}."))
    shared = {name[len("shared_experts/"):]: value for name, value in w.items() if name.startswith("shared_experts/")}
    c.s.need(own.shared or not shared, "no shared expert")
    if own.shared:
        if not shared:
            c.s.need(family != "qwen3_next", "always with a shared expert")
            size, hidden = gate.shape[1:]
            shared = {"wi_0/kernel": gate.new_zeros(size, hidden), "wi_1/kernel": gate.new_zeros(size, hidden),
                      "wo/kernel": gate.new_zeros(hidden, size)}
        made.update(mlp_parameters(shared, f"{to}{own.shared}."))
    if "shared_expert_gate/kernel" in w:
        made[to + "shared_expert_gate.weight"] = linear(w["shared_expert_gate/kernel"])
    return made


def router_parameters(c, family, w, to):
    if "gate/kernel" not in w:
        return {}
    made, bias = {to + "weight": linear(w["gate/kernel"])}, w.get("gate/bias")
    if family == "gpt_oss":
        c.s.need(bias is not None, "the router always has a bias")
        made[to + "bias"] = bias
    elif family == "minimax_m2":
        pass  # the block has it
    elif bias is not None and "tid2eid" not in w:
        c.s.need(family in ("deepseek_v3", "deepseek_v4", "glm4_moe"), "the router has no bias")
        made[to + "e_score_correction_bias"] = bias.detach()  # a buffer, so without a gradient
    if "tid2eid" in w:
        made[to + "tid2eid"] = w["tid2eid"]
    return made


def attention_parameters(w, to=""):
    made = {}
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "wq_a": "q_a_proj", "wq_b": "q_b_proj",
             "wkv_a": "kv_a_proj_with_mqa", "wkv_b": "kv_b_proj"}
    norms = {"q_norm/scale": "q_a_layernorm.weight", "kv_norm/scale": "kv_a_layernorm.weight", "query_norm/scale": "q_norm.weight",
             "key_norm/scale": "k_norm.weight", "sinks": "sinks"}
    if "qkv_proj/kernel" in w:
        heads, shared = w["out/kernel"].shape[0], (w["qkv_proj/kernel"].shape[1] - w["out/kernel"].shape[0]) // 2
        for end, axis in (("kernel", 1), ("bias", 0)):
            if "qkv_proj/" + end in w:
                parts = w["qkv_proj/" + end].split([heads, shared, shared], axis)
                w = {**w, **{f"{name}/{end}": part for name, part in zip(("query", "key", "value"), parts)}}
    for ours, theirs in names.items():
        if ours + "/kernel" in w:
            made[f"{to}{theirs}.weight"] = linear(w[ours + "/kernel"])
        if ours + "/bias" in w:
            made[f"{to}{theirs}.bias"] = w[ours + "/bias"].flatten()
    made.update({to + theirs: w[ours] for ours, theirs in norms.items() if ours in w})
    made[to + "o_proj.weight"] = linear(w["out/kernel"].flatten(0, 1))
    if "out/bias" in w:
        made[to + "o_proj.bias"] = w["out/bias"]
    return made


def call(module, parameters, *args, **keywords):
    """With these parameters, and no other."""
    missing = {name for name, _ in module.named_parameters()} - set(parameters)
    unknown = set(parameters) - {name for name, _ in module.named_parameters()} - {name for name, _ in module.named_buffers()}
    if missing or unknown:
        raise Unsupported(f"{type(module).__name__} has other tensors: {', '.join(sorted(missing | unknown))}")
    return functional_call(module, parameters, args, keywords)


# ---- the MoE block ----


def refuse_forms(s):
    """What blocks may have, and no model of transformers has."""
    for key, only in (("apply_router_weight_on_input", "false"), ("weights_on_shards", "false"),
                      ("apply_routed_scaling_factor_on_output", "true"), ("use_random_routing", "false")):
        s.need(s.text.get(key, only) == only, f"no {key}")
    for key in ("local_num_experts", "num_fused_shared_experts", "num_redundant_experts", "ragged_buffer_factor", "capacity_factor",
                "load_balance_loss_weight", "router_z_loss_weight", "routed_bias_update_rate"):
        s.need(s.number(key) <= 0, f"no {key}")


class Given(nn.Module):
    """A choice in the router's place; no expert is num_experts, as transformers has it under expert parallelism."""

    def __init__(self, ids, weights, experts):
        super().__init__()
        self.answer = torch.where(ids < 0, experts, ids).flatten(0, 1), weights.flatten(0, 1)

    def forward(self, hidden_states, *_):
        ids, weights = self.answer
        return None, weights, ids


def chosen_of(c, family, made):
    """The choice out of what a router gave."""
    if family == "llama4":
        return made[0].argmax(-1, keepdim=True)
    return made[2]


def prepare(c, family, block, results):
    """The given choice where there is one, and a note of what the router chose."""
    given = c.t.get(f"inputs/{results}selected_experts")
    if given is not None:
        weights = c.t.get(f"inputs/{results}routing_weights")
        c.s.need(weights is not None, "no given ids without their weights")
        c.s.need(FAMILIES[family].router == "gate", "no given choice")
        block.gate = Given(given, weights, c.s.count("num_experts"))
    router = getattr(block, FAMILIES[family].router)
    router.register_forward_hook(lambda _, __, made: c.routed.update(
        {f"routing/{results}selected_experts": given if given is not None else chosen_of(c, family, made)}))


def run_moe(c):
    refuse_forms(c.s)
    family, x = family_of(c.s), c.raw["inputs/x"]
    c.s.need("inputs/expert_map" not in c.raw and "inputs/physical_to_logical_map" not in c.raw, "no map of experts")
    own, hidden = FAMILIES[family], c.raw["weights/wo"].shape[1]
    config = config_of(c, family, **moe_keys(c, family, x.shape[-1], hidden))
    c.read(own.fp32)
    block = own.part(own.block)(config, 0) if family == "deepseek_v4" else own.part(own.block)(config)
    prepare(c, family, block, "")
    w, x = c.under("weights/"), c.t["inputs/x"]
    parameters = moe_parameters(c, family, w)
    if family == "minimax_m2" and "gate/bias" in w:
        parameters["e_score_correction_bias"] = w["gate/bias"].detach()
    ids = [c.t["inputs/input_ids"]] if "inputs/input_ids" in c.t else []
    y = call(block, parameters, x, *ids)
    y = y[0] if isinstance(y, tuple) else y
    return {"outputs/y": y.reshape(x.shape), **{path: ids.reshape(*x.shape[:2], -1) for path, ids in c.routed.items()}}


def run_routing(c):
    """Logits that are given are hidden states before a router that is the identity."""
    refuse_forms(c.s)
    family = family_of(c.s)
    own = FAMILIES[family]
    c.s.need("inputs/selected_experts" not in c.raw, "no given choice")
    c.s.need(family != "llama4", "Llama 4's router gives sigmoids, and the weight is a logit")
    given = "inputs/x" if "inputs/x" in c.raw else "inputs/logits"
    c.s.need(c.dtype != torch.bfloat16 or given == "inputs/x" or c.s["dtype"] == "bfloat16", "no logits finer than the model's hidden states")
    keys = moe_keys(c, family, c.raw[given].shape[-1], 1)
    config = config_of(c, family, **keys)
    c.read(own.fp32)
    x, w = c.t[given], c.under("weights/")
    if given == "inputs/logits":
        w["gate/kernel"] = torch.eye(x.shape[-1], dtype=x.dtype)
    hashed = "tid2eid" in w
    router = own.part("HashRouter" if hashed else ROUTERS.get(family, "TopKRouter"))(config)
    parameters = router_parameters(c, family, w, "")
    more = [c.t["inputs/input_ids"]] if hashed else []
    if family == "minimax_m2":
        more = [w["gate/bias"].detach() if "gate/bias" in w else 0.0]
    _, weights, ids = call(router, parameters, x.flatten(0, 1), *more)
    shape = (*x.shape[:2], -1)
    return {"outputs/weights": weights.reshape(shape), "routing/selected_experts": ids.reshape(shape)}


# ---- norms, MLP, rotation ----


def run_rms_norm(c):
    family = c.s.text.get("decoder_block", "")
    own = FAMILIES[family if family in FAMILIES else "deepseek_v3"]
    c.read()
    x, scale = c.t["inputs/x"], c.t["weights/scale"]
    return {"outputs/y": call(own.part("RMSNorm")(x.shape[-1], eps=c.s.number("normalization_layer_epsilon")), {"weight": scale}, x)}


def run_mlp(c):
    s, limit = c.s, c.s.number("mlp_activations_limit")
    names = s.words("mlp_activations")
    s.need(names[1] == "linear", "no activation of up")
    s.need(s["decoder_block"] != "gpt_oss", "GPT-OSS has no dense layer")
    family = "deepseek_v4" if limit > 0 else "deepseek_v2"
    x, hidden = c.raw["inputs/x"], c.raw["weights/wo/kernel"].shape[0]
    keys = {"hidden_size": x.shape[-1], "mlp_bias": s.true("mlp_bias"), "num_attention_heads": 1}
    keys.update({"moe_intermediate_size": hidden, "swiglu_limit": limit} if limit > 0 else {"intermediate_size": hidden})
    config = config_of(c, family, **keys)
    c.read()
    return {"outputs/y": call(FAMILIES[family].part("MLP")(config), mlp_parameters(c.under("weights/"), ""), c.t["inputs/x"])}


def rotary(c, family, config):
    """cos and sin of the case's positions, or DeepSeek-V2's complex numbers."""
    module = FAMILIES[family].part("RotaryEmbedding")(config)
    return module(torch.empty(0, dtype=c.dtype), c.t["inputs/positions"])


def run_yarn_rope(c):
    s, dim = c.s, c.raw["inputs/x"].shape[-1]
    pairs = s.true("rope_interleave")
    family = "deepseek_v2" if pairs and s.true("rope_pairwise") else "deepseek_v3"
    s.need(pairs or not s.true("rope_pairwise"), "no pairs out of halves")
    config = config_of(c, family, hidden_size=dim, num_attention_heads=1, qk_rope_head_dim=dim, rope_parameters=rope_of(s))
    c.read()
    x = c.t["inputs/x"].transpose(1, 2)
    if family == "deepseek_v2":
        made, _ = modeling_deepseek_v2.apply_rotary_emb(x, x.detach(), rotary(c, family, config))
    else:
        turn = modeling_deepseek_v3.apply_rotary_pos_emb_interleave if pairs else modeling_deepseek_v3.apply_rotary_pos_emb
        made, _ = turn(x, x.detach(), *rotary(c, family, config))
    return {"outputs/y": made.transpose(1, 2)}


# ---- attention ----


def mask_of(c, config, x, window):
    """transformers' own mask function; documents are its packed sequences."""
    ids = c.t.get("inputs/segment_ids")
    packed = None
    if ids is not None:
        c.s.need(not (c.s.true("mask_padding") and bool((ids == 0).any())), "transformers has no rows that see nothing: padding attends too")
        packed = masking_utils.packed_sequence_mask_function(ids)
    make = masking_utils.create_sliding_window_causal_mask if window else masking_utils.create_causal_mask
    return make(config=config, inputs_embeds=x, attention_mask=None, cache=None, position_ids=None, and_mask_function=packed)


def mla_family(s):
    return "deepseek_v2" if s["model_name"].startswith("deepseek2") else "deepseek_v3"


def mla_keys(c, w, prefix=""):
    s = c.s
    heads, rope = w[prefix + "out/kernel"].shape[0], s.count("qk_rope_head_dim")
    s.need(s.number("latent_norm_epsilon") == 1e-6, "the latents' norms have an epsilon of 1e-6")
    rotation = rope_of(s)
    m, factor = s.number("mscale"), s.number("rope_factor")
    if m != 0 and factor != 1 and s.number("max_position_embeddings") > s.number("original_max_position_embeddings"):
        s.need(rotation["rope_type"] == "yarn" and factor > 1, "mscale is in the softmax scale with YaRN alone")
        rotation.update(mscale=m, mscale_all_dim=m)
        if rotation["attention_factor"] == 1:
            del rotation["attention_factor"]  # transformers finds it: the ratio of both
    lora = w[prefix + "wq_a/kernel"].shape[1] if prefix + "wq_a/kernel" in w else None
    keys = {"num_attention_heads": heads, "num_key_value_heads": heads, "q_lora_rank": lora,
            "kv_lora_rank": w[prefix + "kv_norm/scale"].shape[0], "qk_rope_head_dim": rope, "qk_nope_head_dim": s.count("qk_nope_head_dim"),
            "v_head_dim": w[prefix + "out/kernel"].shape[1], "rope_parameters": rotation}
    if mla_family(s) == "deepseek_v3":
        keys["rope_interleave"] = s.true("rope_interleave")
    else:
        s.need(s.true("rope_interleave"), "DeepSeek-V2 rotates pairs alone")
    return keys


def gqa_family(s, w, prefix=""):
    if prefix + "sinks" in w:
        return "gpt_oss"
    return "qwen3_moe" if prefix + "query_norm/scale" in w else "mixtral"


def gqa_keys(c, family, w, prefix=""):
    s = c.s
    heads, size = w[prefix + "out/kernel"].shape[:2]
    fused = w.get(prefix + "qkv_proj/kernel")
    shared = w[prefix + "key/kernel"].shape[1] if fused is None else (fused.shape[1] - heads) // 2
    s.need(not s.true("rope_interleave"), "halves are rotated, not pairs")
    s.need(s.number("latent_norm_epsilon") == s.number("normalization_layer_epsilon"), "one epsilon for all norms")
    window = s.count("sliding_window_size")
    keys = {"num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": size, "rope_parameters": rope_of(s)}
    if family in ("gpt_oss", "qwen3_moe"):
        keys["attention_bias"] = s.true("attention_bias")
    if family in ("gpt_oss", "mixtral"):
        keys["sliding_window"] = window if window > 0 else None
    elif window > 0:
        keys.update(use_sliding_window=True, sliding_window=window)
    return keys


def scaled(c, module):
    """MaxText's Mixtral has the softmax scale in the query's kernel."""
    scale = c.s.number("query_pre_attn_scalar")
    if scale > 0:
        module.scaling = scale


def run_mla(c):
    family, w = mla_family(c.s), c.raw
    width, keys = w["inputs/x"].shape[-1], mla_keys(c, w, "weights/")
    config = config_of(c, family, hidden_size=heads_width(width, keys["num_attention_heads"], family), **keys)
    config.hidden_size = width
    c.read()
    x = c.t["inputs/x"]
    module = FAMILIES[family].part("Attention")(config, 0)
    made, _ = call(module, attention_parameters(c.under("weights/")), hidden_states=x, position_embeddings=rotary(c, family, config),
                   attention_mask=mask_of(c, config, x, 0))
    return {"outputs/y": made}


def heads_width(width, heads, family):
    """DeepSeek-V2's config refuses a width that heads do not divide, and uses it nowhere."""
    return width if family != "deepseek_v2" or width % heads == 0 else width * heads


def run_gqa(c):
    family = gqa_family(c.s, c.raw, "weights/")
    config = config_of(c, family, hidden_size=c.raw["inputs/x"].shape[-1], **gqa_keys(c, family, c.raw, "weights/"))
    c.read()
    x = c.t["inputs/x"]
    window = c.s.count("sliding_window_size") > 0 and c.s.text.get("attention_type", "") != "global"
    module = FAMILIES[family].part("Attention")(config, 0)
    scaled(c, module)
    made, _ = call(module, attention_parameters(c.under("weights/")), hidden_states=x, position_embeddings=rotary(c, family, config),
                   attention_mask=mask_of(c, config, x, window))
    return {"outputs/y": made}


# ---- layers ----


def run_stack(c):
    """A layer, or layers one after the other: the loop of the model's forward, without embedding and last norm."""
    s, w = c.s, c.raw
    s.need(not s.true("use_batch_split_schedule"), "no batch-split schedule")
    refuse_forms(s)
    numbers = sorted({int(path.split("/")[2]) for path in w if path.startswith("weights/layers/")})
    results = [f"layers/{i}/" for i in numbers] or [""]
    first = "weights/" + results[0] + "self_attention/"
    latent = first + "wkv_a/kernel" in w
    routed = next((f"weights/{r}moe/" for r in results if f"weights/{r}moe/wo" in w), None)
    family = family_of(s) if routed or not latent else mla_family(s)
    s.need(not latent or family in ("deepseek_v2", "deepseek_v3"), "no such layer")
    s.need(latent or family == gqa_family(s, w, first), f"attention of another model type than {family}")
    own, width = FAMILIES[family], w["inputs/x"].shape[-1]
    keys = mla_keys(c, w, first) if latent else gqa_keys(c, family, w, first)
    if routed:
        keys = {**moe_keys(c, family, width, w[routed + "wo"].shape[1]), **keys}
    if latent:
        dense = [w[f"weights/{r}mlp/wo/kernel"].shape[0] for r in results if f"weights/{r}mlp/wo/kernel" in w]
        s.need(not dense or s.number("mlp_activations_limit") <= 0 and s.words("mlp_activations")[1] == "linear", "no clamp and no activation of up")
        keys.update(intermediate_size=max(dense, default=1), first_k_dense_replace=len(dense))
        keys["hidden_size"] = heads_width(width, keys["num_attention_heads"], family)
    alone = not numbers and family == "gpt_oss" and s.text.get("attention_type", "") == "global"  # GPT-OSS's layer 1
    config = config_of(c, family, **{"hidden_size": width, **keys, "num_hidden_layers": len(results) + alone})
    config.hidden_size = width
    c.read(own.fp32)
    y = c.t["inputs/x"]
    turned = rotary(c, family, config)
    for i, name in enumerate(results):
        layer = own.part("DecoderLayer")(config, i + alone)
        if not latent:
            scaled(c, layer.self_attn)
        window = c.s.count("sliding_window_size") > 0 and (family != "gpt_oss" or config.layer_types[i + alone] == "sliding_attention")
        under = c.under("weights/" + name)
        part = functools.partial(lambda begin, under: {k[len(begin):]: v for k, v in under.items() if k.startswith(begin)}, under=under)
        parameters = attention_parameters(part("self_attention/"), "self_attn.")
        parameters["input_layernorm.weight"] = under["pre_self_attention_layer_norm/scale"]
        parameters["post_attention_layernorm.weight"] = under["post_self_attention_layer_norm/scale"]
        if "moe/wo" in under:
            prepare(c, family, layer.mlp, name)
            parameters.update(moe_parameters(c, family, part("moe/"), "mlp."))
        else:
            parameters.update(mlp_parameters(part("mlp/"), "mlp."))
        y = call(layer, parameters, y, attention_mask=mask_of(c, config, y, window), position_embeddings=turned)
        y = y[0] if isinstance(y, tuple) else y
    shape = c.t["inputs/x"].shape[:2]
    return {"outputs/y": y, **{path: ids.reshape(*shape, -1) for path, ids in c.routed.items()}}


OPERATIONS = {"rms_norm": run_rms_norm, "mlp": run_mlp, "yarn_rope": run_yarn_rope, "routing": run_routing, "moe": run_moe, "mla": run_mla,
              "gqa": run_gqa, "deepseek_layer": run_stack, "deepseek_stack": run_stack, "decoder_layer": run_stack, "decoder_stack": run_stack, "program": run_program}


def run(request, dtype, experts, peers=False):
    """The results that the request expects, and the choice of experts."""
    s = request.settings
    s.need(request.op in OPERATIONS, "no " + request.op)
    s.need_no_mesh()
    s.need("quant_formats" not in s.text and not s.text.get("quant_recipe") and not s.text.get("quant_hidden_format"), "no quantised operands")
    s.need(s.text.get("w13_reorder_size", "1") == "1", "no fused weights laid out for tensor shards")
    s.need(not any(path.startswith("checkpoints/") for path in request.expects), "no checkpoints")
    c = Call(request, dtype, experts, peers)
    return with_gradients(OPERATIONS[request.op](c), c.t, request.expects)
