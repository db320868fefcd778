"""assay's operations by ONNX Runtime's operators.

Layouts of weights, rotary tables and masks are the shell's, what is computed with them is ONNX Runtime's."""
from __future__ import annotations

import math

import numpy as np

from kernels_attention import frequencies, window_of
from ort_graph import Graph
from request import Request

Results = dict[str, np.ndarray]


def rms_norm(g: Graph, r: Request, x: str, path: str) -> str:
    return g.add("SimplifiedLayerNormalization", x, g.input(r.tensors[path]), axis=-1, stash_type=1,
                 epsilon=r.settings.number("normalization_layer_epsilon"))


def run_rms_norm(g: Graph, r: Request) -> Results:
    return g.run({"outputs/y": rms_norm(g, r, g.input(r.tensors["inputs/x"]), "weights/scale")})


def product(g: Graph, r: Request, x: str, kernel: np.ndarray, bias: str) -> str:
    y = g.add("MatMul", x, g.input(kernel))
    return g.add("Add", y, g.input(r.tensors[bias].reshape(-1))) if bias in r.tensors else y


# ---- gated MLP ----


def gate(g: Graph, x: str, alpha: float) -> str:
    """x sigmoid(alpha x). By the operator, or by Exp: its sigmoid has an absolute error, which hides what else may be wrong."""
    if not g.by_exp:
        return g.microsoft("QuickGelu", x, alpha=alpha)
    power = g.add("Exp", g.add("Mul", x, g.scalar(-alpha)))
    return g.add("Div", x, g.add("Add", power, g.scalar(1)))


def sigmoid(g: Graph, x: str) -> str:
    if not g.by_exp:
        return g.add("Sigmoid", x)
    return g.add("Reciprocal", g.add("Add", g.add("Exp", g.add("Neg", x)), g.scalar(1)))


ACTIVATIONS = {"silu": lambda g, x: gate(g, x, 1.0), "gelu": lambda g, x: g.add("Gelu", x, approximate="tanh"),
               "gelu_exact": lambda g, x: g.add("Gelu", x), "relu": lambda g, x: g.add("Relu", x), "sigmoid": sigmoid, "linear": lambda g, x: x}


def gated_mlp(g: Graph, r: Request, x: str, prefix: str, limit: float) -> str:
    t, kinds = r.tensors, r.settings.words("mlp_activations")
    r.settings.need(all(kind in ACTIVATIONS for kind in kinds), f"no activation {kinds}")
    if prefix + "wi/kernel" in t:
        halves = g.add("Split", g.add("MatMul", x, g.input(t[prefix + "wi/kernel"])), outputs=2, axis=-1, num_outputs=2)
        biases = [prefix + name for name in ("wi_0/bias", "wi_1/bias")]
        a, b = (g.add("Add", half, g.input(t[bias])) if bias in t else half for half, bias in zip(halves, biases))
    else:
        a, b = (product(g, r, x, t[f"{prefix}wi_{i}/kernel"], f"{prefix}wi_{i}/bias") for i in range(2))
    if limit > 0:
        a, b = g.add("Clip", a, "", g.scalar(limit)), g.add("Clip", b, g.scalar(-limit), g.scalar(limit))
    if r.settings["decoder_block"] == "gpt_oss":
        a, b = gate(g, a, 1.702), g.add("Add", b, g.scalar(1))
    else:
        a, b = (ACTIVATIONS[kind](g, half) for kind, half in zip(kinds, (a, b)))
    return product(g, r, g.add("Mul", a, b), t[prefix + "wo/kernel"], prefix + "wo/bias")


def run_mlp(g: Graph, r: Request) -> Results:
    y = gated_mlp(g, r, g.input(r.tensors["inputs/x"]), "weights/", r.settings.number("mlp_activations_limit"))
    return g.run({"outputs/y": y})


# ---- MoE: the operator chooses by softmax, and has an interleaved SwiGLU ----


def normalized(r: Request) -> int:
    """Whether weights are divided by their sum over the chosen; softmax over the chosen is the same."""
    s = r.settings
    s.need(s.number("norm_topk_epsilon") == 0, "no norm_topk_epsilon")
    if s["routing_method"] == "Default":
        return 0
    if s["routing_method"] in ("Renormalize", "RenormalizeNaive"):
        return 1
    s.need(s["routing_method"] == "", "routing_method: " + s["routing_method"])
    if s.true("fused_moe_func"):
        s.need(s["routed_score_func"] == "softmax", "routed_score_func: " + s["routed_score_func"])
        return 1
    if s["decoder_block"] == "deepseek":
        s.need(s["routed_score_func"] == "softmax" and not s.true("routed_bias") and s.number("n_routing_groups") < 0, "DeepSeek-V3's router")
        s.need(s["model_name"].startswith("deepseek2"), "model_name: " + s["model_name"])
        return 0
    s.need(s["decoder_block"] not in ("llama4", "gemma4", "deepseek4"), "decoder_block: " + s["decoder_block"])
    s.need(s["routed_score_func"] == "", "routed_score_func: " + s["routed_score_func"])
    return 1


def run_moe(g: Graph, r: Request) -> Results:
    s, t = r.settings, r.tensors
    for key, only in (("num_redundant_experts", "0"), ("local_num_experts", "0"), ("num_fused_shared_experts", "0"), ("w13_reorder_size", "1"),
                      ("apply_router_weight_on_input", "false"), ("use_random_routing", "false"), ("first_num_hash_layers", "0"),
                      ("load_balance_loss_weight", "0.0"), ("router_z_loss_weight", "0.0"), ("routed_bias_update_rate", "0.0")):
        s.need(s[key] == only, key)
    for path in ("inputs/selected_experts", "inputs/expert_map", "weights/per_expert_scale", "weights/shared_expert_gate/kernel"):
        s.need(path not in t, path)
    normalize, oss, limit = normalized(r), s["decoder_block"] == "gpt_oss", s.number("mlp_activations_limit")
    s.need(s.number("capacity_factor") <= 0, "capacity_factor")
    s.need(oss or s.words("mlp_activations") == ["silu", "linear"], "mlp_activations: " + s["mlp_activations"])

    def interleaved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Gate and up of [.., H] by turns: [.., 2 H]."""
        return np.stack([a, b], -1).reshape(*a.shape[:-1], -1)

    x, wo, experts, k = t["inputs/x"], t["weights/wo"], s.count("num_experts"), s.count("num_experts_per_tok")
    halves = np.split(t["weights/wi"], 2, -1) if "weights/wi" in t else [t["weights/wi_0"], t["weights/wi_1"]]
    fc1, fc2 = g.input(interleaved(*halves).transpose(0, 2, 1)), g.input(wo.transpose(0, 2, 1))
    bias1 = bias2 = ""
    if "weights/wi_0_bias" in t:
        bias1 = g.input(interleaved(t["weights/wi_0_bias"], t["weights/wi_1_bias"]))
        bias2 = g.input(t["weights/wo_bias"])
    tokens = g.input(x.reshape(-1, x.shape[-1]))
    logits = product(g, r, tokens, t["weights/gate/kernel"], "weights/gate/bias")
    clamp = {"swiglu_limit": limit} if limit > 0 else {}
    y = g.microsoft("MoE", tokens, logits, fc1, bias1, fc2, bias2, k=k, activation_type="swiglu", swiglu_fusion=1,
                    normalize_routing_weights=normalize, activation_alpha=1.702 if oss else 1.0, activation_beta=1.0 if oss else 0.0, **clamp)
    if s.number("routed_scaling_factor") != 1:
        y = g.add("Mul", y, g.scalar(s.number("routed_scaling_factor")))
    if "weights/shared_experts/wo/kernel" in t:
        y = g.add("Add", y, gated_mlp(g, r, tokens, "weights/shared_experts/", 0))
    probabilities = g.add("Softmax", g.float32(logits), axis=-1)
    made = g.run({"outputs/y": g.reshape(y, *x.shape), "probabilities": probabilities}, wide=("probabilities",))
    # which experts it chose, it does not say: it sorts its probabilities, and of equal ones takes the higher index
    order = np.argsort(-made.pop("probabilities")[:, ::-1], axis=-1, kind="stable")[:, :k]
    return {**made, "routing/selected_experts": (experts - 1 - order).astype(np.int32).reshape(*x.shape[:2], k)}


# ---- rotations ----


def rotated(g: Graph, r: Request, x: str, shape: tuple[int, ...]) -> str:
    """x [B,S,N,Dr] as it is laid out; the tables are the shell's."""
    s, factor, width = r.settings, r.settings.number("rope_factor"), shape[-1]
    angle = r.tensors["inputs/positions"].astype(np.float64)[..., None] * frequencies(s, width)
    size = 0.1 * math.log(factor) + 1 if s["rope_type"] == "yarn" and s.true("rope_attention_scaling") and factor > 1 else 1.0
    rows = np.arange(angle.shape[0] * angle.shape[1]).reshape(angle.shape[:2])
    cos, sin = (g.input((size * f(angle)).reshape(-1, width // 2)) for f in (np.cos, np.sin))
    heads = g.transpose(x, 0, 2, 1, 3)
    y = g.microsoft("RotaryEmbedding", heads, g.input(rows), cos, sin, interleaved=int(s.true("rope_interleave")))
    return g.transpose(y, 0, 2, 1, 3)


def run_yarn_rope(g: Graph, r: Request) -> Results:
    x, s = r.tensors["inputs/x"], r.settings
    y = rotated(g, r, g.input(x), x.shape)
    if s.true("rope_interleave") and not s.true("rope_pairwise"):  # first components, then second ones
        pairs = g.reshape(y, *x.shape[:-1], x.shape[-1] // 2, 2)
        y = g.reshape(g.transpose(pairs, 0, 1, 2, 4, 3), *x.shape)
    return g.run({"outputs/y": y})


# ---- attention: GroupQueryAttention where it has the form, else MultiHeadAttention ----


def blind(r: Request) -> np.ndarray | None:
    """[B,S]: tokens that are padding and see nothing."""
    ids = r.tensors.get("inputs/segment_ids")
    return None if ids is None else (ids == 0) & r.settings.true("mask_padding")


def mask_of(r: Request, length: int, window: int) -> np.ndarray:
    """[B or 1,1,S,S]: 0 for what is seen, -infinity elsewhere; rows that see nothing are left open, since the shell writes their results."""
    i, j, ids = np.arange(length)[:, None], np.arange(length), r.tensors.get("inputs/segment_ids")
    seen = ((j <= i) & ((window == 0) | (i - j < window)))[None]
    if ids is not None:
        seen = seen & (ids[:, :, None] == ids[:, None, :]) | blind(r)[:, :, None]
    return np.where(seen, 0, -np.inf).astype(np.float32)[:, None]


def with_padding(g: Graph, r: Request, name: str, value: float, *shape: int) -> str:
    """That value where a token is padding."""
    rows = blind(r)
    return name if rows is None else g.add("Where", g.input(rows.reshape(shape)), g.scalar(value), name)


def attend(g: Graph, r: Request, names: list[str], q: tuple[int, ...], v: tuple[int, ...]) -> str:
    """query [B,S,N,Dqk], key [B,S,Nkv,Dqk] and value [B,S,Nkv,Dv] -> [B,S,N*Dv]; the scale is in the query."""
    (batch, length, heads, width), (_, _, shared, wide), window = q, v, window_of(r.settings)
    sinks, packed = r.tensors.get("weights/sinks"), "inputs/segment_ids" in r.tensors
    query, key, value = (g.reshape(name, batch, length, size) for name, size in zip(names, (heads * width, shared * width, shared * wide)))
    bias = g.input(np.broadcast_to(mask_of(r, length, 0), (batch, 1, length, length))) if packed else ""
    if heads == shared and sinks is None and window == 0:
        out = g.microsoft("MultiHeadAttention", query, key, value, "", "", bias, num_heads=heads, scale=1.0, unidirectional=int(not packed))
    else:
        r.settings.need(width == wide, "GroupQueryAttention: values of another width than keys")
        r.settings.need(width % 8 == 0, "GroupQueryAttention: a head size that is no multiple of 8")
        lengths, total = g.integers([length - 1] * batch, np.int32), g.integers([length], np.int32)
        local = {"local_window_size": window} if window > 0 else {}
        out, _, _ = g.microsoft("GroupQueryAttention", query, key, value, "", "", lengths, total, "", "", "", bias,
                                "" if sinks is None else g.input(sinks), outputs=3, num_heads=heads, kv_num_heads=shared, scale=1.0, **local)
    return with_padding(g, r, out, 0, batch, length, 1)


def run_attention(g: Graph, r: Request) -> Results:
    arrays = [r.tensors["inputs/" + name] for name in ("query", "key", "value")]
    rows = blind(r)
    if rows is not None:  # what padding holds is not read
        arrays = [np.where(rows[..., None, None], 0, array) for array in arrays]
    (batch, length, heads, width), (_, _, shared, wide) = arrays[0].shape, arrays[2].shape
    names = [g.input(array) for array in arrays]
    out = g.reshape(attend(g, r, names, arrays[0].shape, arrays[2].shape), batch, length, heads, wide)
    # the log-sum-exp of scores in float32; [B,Nkv,N/Nkv,S,.], so that heads of keys are shared
    query = g.transpose(g.reshape(g.float32(names[0]), batch, length, shared, heads // shared, width), 0, 2, 3, 1, 4)
    key = g.transpose(g.reshape(g.float32(names[1]), batch, length, shared, 1, width), 0, 2, 3, 4, 1)
    scores = g.reshape(g.add("MatMul", query, key), batch, heads, length, length)
    masked = g.add("Add", scores, g.float32(g.input(mask_of(r, length, window_of(r.settings)))))
    lse = g.add("ReduceLogSumExp", masked, g.integers([3]), keepdims=0)
    made = g.run({"outputs/attention_out": out, "outputs/lse": lse}, wide=("outputs/lse",))
    if rows is not None:
        made["outputs/lse"] = np.where(rows[:, None], np.float32(-np.inf), made["outputs/lse"])
    return made


def run_gqa(g: Graph, r: Request) -> Results:
    s, t, x = r.settings, r.tensors, r.tensors["inputs/x"]
    heads, width = s.count("base_num_query_heads"), s.count("head_dim")
    shared, given = s.count("base_num_kv_heads") or heads, g.input(x)

    def projected(name: str, count: int) -> str:
        y = product(g, r, given, t[f"weights/{name}/kernel"].reshape(x.shape[-1], -1), f"weights/{name}/bias")
        return g.reshape(y, *x.shape[:2], count, width)

    if s.true("fused_qkv"):
        parts = g.add("Split", projected("qkv_proj", heads + 2 * shared), g.integers([heads, shared, shared]), outputs=3, axis=2)
    else:
        parts = [projected("query", heads), projected("key", shared), projected("value", shared)]
    for i, name, count in ((0, "query", heads), (1, "key", shared)):
        if f"weights/{name}_norm/scale" in t:
            parts[i] = rms_norm(g, r, parts[i], f"weights/{name}_norm/scale")
        parts[i] = rotated(g, r, parts[i], (*x.shape[:2], count, width))
    parts[0] = g.add("Mul", parts[0], g.scalar(s.number("query_pre_attn_scalar")))
    out = attend(g, r, parts, (*x.shape[:2], heads, width), (*x.shape[:2], shared, width))
    y = product(g, r, out, t["weights/out/kernel"].reshape(heads * width, -1), "weights/out/bias")
    return g.run({"outputs/y": y})


OPERATIONS = {"rms_norm": run_rms_norm, "mlp": run_mlp, "moe": run_moe, "yarn_rope": run_yarn_rope, "attention": run_attention, "gqa": run_gqa}
