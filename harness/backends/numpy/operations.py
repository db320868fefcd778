"""The operations of docs/operations.md, from tensors by path to results by path."""
import numpy as np

from batch_split import run_function
from kernels_attention import attention, decode, decode_back, decode_back_naive, gqa, merge_states, mla, rope, softmax_scale, window_of
from kernels_basic import GatedMlp, grouped_product, permute, layer_norm, over_root, rms_norm, unpermute
from kernels_cache import cache_append, caches
from kernels_moe import Router, expert_checkpoints, gradient_checkpoints, moe
from kernels_quantize import Operand, dequantize, operands, quantize
from programs import Program, run_program
from quant_recipes import Recipe
from request import Unsupported
from storage import is_statistic


def run_rms_norm(ar, s, t):
    y, back = rms_norm(ar, t["inputs/x"], t["weights/scale"], s.number("normalization_layer_epsilon"))
    dx, d_scale = back(t["cotangents/y"])
    return {"outputs/y": y, "gradients/inputs/x": dx, "gradients/weights/scale": d_scale}


def run_layer_norm(ar, s, t):
    y, back = layer_norm(ar, t["inputs/x"], t["weights/scale"], t["weights/bias"], s.number("normalization_layer_epsilon"))
    dx, d_scale, d_bias = back(t["cotangents/y"])
    return {"outputs/y": y, "gradients/inputs/x": dx, "gradients/weights/scale": d_scale, "gradients/weights/bias": d_bias}


def run_l2_norm(ar, s, t):
    y, back = over_root(ar, t["inputs/x"], s.number("normalization_layer_epsilon"), lambda squares: ar.sum(squares)[..., None], 1)
    return {"outputs/y": y, "gradients/inputs/x": back(t["cotangents/y"])}


def rows_of_groups(s, t):
    """The rows of each group, one list behind the other, and how long the lists are."""
    layout, align = s["gmm_layout"], s.count("mk_alignment_for_contiguous_layout")
    groups, rows = range(s.count("num_experts")), t["inputs/lhs"].shape[-2]
    if layout == "contiguous":
        lists = [np.flatnonzero(t["inputs/m_indices"] == g) for g in groups]
    elif layout == "masked":
        lists = [g * rows + np.arange(n) for g, n in enumerate(t["inputs/masked_m"])]
    else:
        psum = layout == "psum"
        ends = t["inputs/psum_m"] if psum else np.cumsum(t["inputs/group_sizes"])
        starts = [0] + [-(-end // align) * align if psum else end for end in ends[:-1]]
        lists = [np.arange(start, end) for start, end in zip(starts, ends)]
    return np.concatenate(lists).astype(int), [len(rows) for rows in lists]


def run_gmm(ar, s, t):
    places, sizes = rows_of_groups(s, t)
    k_grouped, serving = s["gmm_layout"] == "k_grouped", s["gmm_layout"] in ("contiguous", "masked", "psum")

    def packed(path):
        return t[path].reshape(-1, t[path].shape[-1])[places]

    def spread(rows, path):  # rows of no group stay unwritten where an engine leaves them so
        out = np.full(t[path].reshape(-1, t[path].shape[-1]).shape, np.nan if serving else 0, rows.dtype)
        out[places] = rows
        return out.reshape(t[path].shape)

    of_rows, of_groups = ("inputs/rhs", "cotangents/y") if k_grouped else ("cotangents/y", "weights/rhs")
    if s.text.get("quant_recipe", "") == "fp8_full" and s["gmm_layout"] == "ragged":  # all rows count for its scales
        places = np.arange(len(t["inputs/lhs"]))
    recipe = Recipe(s, packed("inputs/lhs"), t[of_groups], sizes) if s.text.get("quant_recipe", "") else None
    rows, back = grouped_product(ar, packed("inputs/lhs"), t[of_groups], np.array(sizes), recipe)
    d_lhs, groups = back(packed(of_rows))
    made = {"gradients/inputs/lhs": spread(d_lhs, "inputs/lhs")}
    if not k_grouped:
        return {**made, "outputs/y": spread(rows, "cotangents/y"), "gradients/weights/rhs": groups}
    if "inputs/c" in t:
        made["gradients/inputs/c"] = t["cotangents/y"]
        groups = groups + t["inputs/c"]
    return {**made, "gradients/inputs/rhs": spread(rows, "inputs/rhs"), "outputs/y": groups}


def run_permute(ar, s, t):
    experts = t["inputs/selected_experts"]
    rows, order, back = permute(ar, t["inputs/x"], experts)
    return {"outputs/sorted_inputs": rows, "outputs/sorted_selected_experts": order.astype(np.int32),
            "outputs/group_sizes": np.bincount(experts.reshape(-1), minlength=s.count("num_experts")).astype(np.int32),
            "gradients/inputs/x": back(t["cotangents/sorted_inputs"])}


def run_unpermute(ar, s, t):
    y, back = unpermute(ar, t["inputs/sorted"], t["inputs/sorted_selected_experts"], t["inputs/weights"])
    d_rows, d_weights = back(t["cotangents/y"])
    return {"outputs/y": y, "gradients/inputs/sorted": d_rows, "gradients/inputs/weights": d_weights}


def run_routing(ar, s, t):
    kernel, x = t.get("weights/gate/kernel"), t.get("inputs/x")
    given = t["inputs/logits"] if kernel is None else x
    flat = given.reshape(-1, given.shape[-1])
    logits = flat if kernel is None else ar.contract(flat, kernel)
    router = Router(ar, s, logits, t.get("weights/gate/bias"), len(given))
    d_logits, d_bias = router.back(t["cotangents/weights"].reshape(router.weights.shape), t.get("cotangents/lb_loss"))
    shape = (*given.shape[:2], -1)
    r = {"outputs/weights": router.weights.reshape(shape), "gradients/weights/gate/bias": d_bias,
         "routing/selected_experts": router.chosen.reshape(shape).astype(np.int32)}
    r |= {"outputs/" + name: value for name, value in router.outputs().items()}
    if kernel is None:
        return r | {"gradients/inputs/logits": d_logits.reshape(given.shape)}
    return r | {"gradients/inputs/x": ar.contract(d_logits, kernel.T).reshape(x.shape),
                "gradients/weights/gate/kernel": ar.contract(flat.T, d_logits)}


def gated_mlp(ar, s, t, prefix, x):
    """back gives dx and the gradients by path."""
    halves = ["wi_0", "wi_1"]
    named = {n: t.get(prefix + n) for w in ("wi_0", "wi_1", "wo") for n in (w + "/kernel", w + "/bias")}
    for kind in ("/kernel", "/bias"):
        if prefix + "wi" + kind in t:
            named["wi_0" + kind], named["wi_1" + kind] = np.split(t[prefix + "wi" + kind], 2, -1)
    order = [w + kind for kind in ("/kernel", "/bias") for w in (*halves, "wo")]
    mlp, flat, fused = GatedMlp(ar, s), x.reshape(-1, x.shape[-1]), prefix + "wi/kernel" in t
    ups = [t[prefix + w + "/kernel"] for w in (["wi"] if fused else halves)]
    rest = [named[n] for n in order[2:]]
    y, back_flat = mlp.by_recipe(flat, ups, *rest) if mlp.recipe else mlp(flat, *(named[n] for n in order))
    expert_checkpoints(ar, "", mlp.made, fused, x.shape[:2])

    def back(dy):
        dx, gradients, _ = back_flat(dy.reshape(-1, dy.shape[-1]))
        if mlp.recipe:
            gradient_checkpoints(ar, "", mlp.made_back, fused, x.shape[:2])
        g = dict(zip(order, gradients))
        for kind in ("/kernel", "/bias"):
            if g["wi_0" + kind] is not None:
                g["wi" + kind] = np.concatenate([g["wi_0" + kind], g["wi_1" + kind]], -1)
        return dx.reshape(x.shape), {"gradients/" + prefix + n: v for n, v in g.items() if prefix + n in t}

    return y.reshape(x.shape), back


def run_mlp(ar, s, t):
    y, back = gated_mlp(ar, s, t, "weights/", t["inputs/x"])
    dx, g = back(t["cotangents/y"])
    return {"outputs/y": y, "gradients/inputs/x": dx, **g}


def routed(router, shape, results=""):
    """What a MoE block gives beside its output; results: "layers/3/" in a stack."""
    r = {f"outputs/{results}{name}": value for name, value in router.outputs().items()}
    if not router.late:
        r[f"routing/{results}weights"] = router.weights.reshape(*shape[:2], -1)
    return r | {f"routing/{results}selected_experts": router.chosen.reshape(*shape[:2], -1).astype(np.int32)}


def run_moe(ar, s, t):
    x = t["inputs/x"]
    y, router, back = moe(ar, s, t, "weights/", x)
    dx, g = back(t["cotangents/y"], t.get("cotangents/lb_loss"))
    return {"outputs/y": y, "gradients/inputs/x": dx, **g, **routed(router, x.shape)}


def run_rope(ar, s, t):
    y, back = rope(ar, s, t["inputs/positions"], t["inputs/x"])
    return {"outputs/y": y, "gradients/inputs/x": back(t["cotangents/y"])}


def run_attention(ar, s, t):
    names = ("query", "key", "value")
    out, lse, back = attention(ar, s, *(t["inputs/" + n] for n in names), t.get("inputs/segment_ids"),
                               window=window_of(s), sinks=t.get("weights/sinks"))
    gradients = back(t.get("cotangents/attention_out", np.zeros_like(out)), t.get("cotangents/lse"))
    return {"outputs/attention_out": out, "outputs/lse": lse, "gradients/weights/sinks": gradients[3]} | {
        "gradients/inputs/" + n: g for n, g in zip(names, gradients)}


def run_decode(ar, s, t, scale):
    t = caches(ar, s, t)
    naive = s.true("cache_gradients") and "inputs/query_nope" in t
    gradients = decode_back_naive(ar, s, t, scale) if naive else {}
    out, lse = decode(ar, s, t, scale)
    if s.true("cache_gradients") and not naive:
        gradients = decode_back(ar, s, t, scale, out, lse)
    return {"outputs/attention_out": out, "outputs/lse": lse} | gradients


def run_mla_decode(ar, s, t):
    return run_decode(ar, s, t, softmax_scale(ar, s, s.count("qk_nope_head_dim") + s.count("qk_rope_head_dim")))


def run_gqa_decode(ar, s, t):
    return run_decode(ar, s, t, ar.float(s.number("query_pre_attn_scalar") or s.count("head_dim") ** -0.5))


def run_merge_states(ar, s, t):
    out, lse, back = merge_states(ar, s, t["inputs/partial_out"], t["inputs/partial_lse"], t.get("weights/sinks"))
    d_out, d_lse, d_sinks = back(t.get("cotangents/attention_out", np.zeros_like(out)), t.get("cotangents/lse"))
    return {"outputs/attention_out": out, "outputs/lse": lse, "gradients/inputs/partial_out": d_out,
            "gradients/inputs/partial_lse": d_lse, "gradients/weights/sinks": d_sinks}


def used_tokens(s, t):
    """x, of which padding that is not finite counts as 0."""
    x = t["inputs/x"]
    padding = s.true("mask_padding") & (t.get("inputs/segment_ids", np.ones(x.shape[:2])) == 0)
    return np.where(padding[..., None] & ~np.isfinite(x), 0, x)


def run_mla(ar, s, t):
    y, back = mla(ar, s, t, "weights/", used_tokens(s, t))
    dx, g = back(t["cotangents/y"])
    return {"outputs/y": y, "gradients/inputs/x": dx, **g}


def run_gqa(ar, s, t):
    y, back = gqa(ar, s, t, "weights/", used_tokens(s, t))
    dx, g = back(t["cotangents/y"])
    return {"outputs/y": y, "gradients/inputs/x": dx, **g}


def layer(ar, s, t, results, x):
    """results: "layers/3/", or "" for a layer alone. Gives y, results, and back from dy to dx and gradients."""
    prefix, epsilon = "weights/" + results, s.number("normalization_layer_epsilon")
    ar.layer = results
    ar.checkpoint("decoder_layer_input", x)
    pre, post = (prefix + n + "_self_attention_layer_norm/scale" for n in ("pre", "post"))
    x_n, back_pre = rms_norm(ar, x, t[pre], epsilon)
    inside = prefix + "self_attention/"
    attend = mla if inside + "wkv_a/kernel" in t else gqa
    y, back_attention = attend(ar, s, t, inside, ar.store(x_n))
    h = ar.keep(x + ar.keep(y))
    h_n, back_post = rms_norm(ar, h, t[post], epsilon)
    h_n, beside = ar.store(h_n), {}
    if prefix + "mlp/wo/kernel" in t:
        y, back_block = gated_mlp(ar, s, t, prefix + "mlp/", h_n)
    else:
        y, router, back_moe = moe(ar, s, t, prefix + "moe/", h_n)
        beside = routed(router, x.shape, results)
        back_block = lambda d: back_moe(d, t.get(f"cotangents/{results}lb_loss"))

    def back(dy):
        ar.layer = results
        d, g = back_block(dy)
        dh, g["gradients/" + post] = back_post(ar.keep(d))
        dh = ar.keep(ar.keep(dh) + dy)
        d, of_attention = back_attention(dh)
        dx, g["gradients/" + pre] = back_pre(ar.keep(d))
        return ar.keep(ar.keep(dx) + dh), {**g, **of_attention}

    return ar.keep(h + ar.keep(y)), beside, back


def run_stack(ar, s, t):
    numbers = {int(n.split("/")[2]) for n in t if n.startswith("weights/layers/")}
    y, backs, results = used_tokens(s, t), [], {}
    for results_of in [f"layers/{i}/" for i in sorted(numbers)] or [""]:
        y, beside, back = layer(ar, s, t, results_of, y)
        backs.append((f"gradients/checkpoints/{results_of}decoder_layer_input", back))
        results |= beside
    d = t["cotangents/y"]
    for boundary, back in reversed(backs):
        d, g = back(d)
        results |= g | {boundary: d}
    return {"outputs/y": y, "gradients/inputs/x": d, **results}


def run_quantize(ar, s, t):
    return {"outputs/" + name: bits.astype(np.int32) for name, bits in quantize(s, t["inputs/x"]).items()}


def run_dequantize(ar, s, t):
    return {"outputs/y": dequantize(s, t["inputs/codes"], t["inputs/scale"], t.get("inputs/tensor_scale"), ar.float)}


def run_cache_append(ar, s, t):
    return cache_append(ar, s, t)


OPERATIONS = {"quantize": run_quantize, "dequantize": run_dequantize, "rms_norm": run_rms_norm, "layer_norm": run_layer_norm, "l2_norm": run_l2_norm, "gmm": run_gmm, "permute": run_permute, "unpermute": run_unpermute,
              "routing": run_routing, "mlp": run_mlp, "moe": run_moe, "yarn_rope": run_rope, "attention": run_attention, "merge_states": run_merge_states,
              "mla_decode": run_mla_decode, "gqa_decode": run_gqa_decode, "cache_append": run_cache_append,
              "mla": run_mla, "gqa": run_gqa, "deepseek_layer": run_stack, "deepseek_stack": run_stack,
              "decoder_layer": run_stack, "decoder_stack": run_stack, "batch_split": run_function}


# What a serving engine adds to the block is not here: keys that must have these values.
PLAIN_VALUES = {"local_num_experts": "0", "num_fused_shared_experts": "0", "apply_router_weight_on_input": "false", "routing_method": "",
                "use_random_routing": "false", "load_balance_loss_scope": "sequence"}


def is_router_or_statistic(op, path):
    return is_statistic(path) or path.endswith(("/gate/kernel", "/gate/bias")) or op == "routing"


def run(ar, request):
    """The results that the request expects, and the choice of experts; of checkpoints those that there are."""
    s = request.settings
    if request.op == "program":
        with np.errstate(all="ignore"):
            made = run_program(ar, request)
        kept = Program(request.yaml).kept
        as_is = {path for path, x in made.items() if is_statistic(path) or kept.get(path.split("/")[1]) and path.startswith("outputs/") or np.asarray(x).dtype.kind == "i"}
        choices = {path: x for path, x in made.items() if path.startswith("routing/")}
        return choices | {path: made[path] if path in as_is else ar.result(np.asarray(made[path])) for path in request.expects if path in made}
    s.need(request.op in OPERATIONS, "no " + request.op)
    spread = request.op != "batch_split" and not s.one_device()
    if spread:  # computed in one place
        s.need(not s.true("weights_on_shards"), "no weights on shards")
        s.need(s.number("load_balance_loss_weight") == 0 == s.number("routed_bias_update_rate"), "no results per shard")
        s.need(s.text.get("quant_recipe", "") == "" or request.op in ("mla", "gqa"), "no scales per shard")
    s.need(s.count("w13_reorder_size") == 1, "no fused weights laid out for tensor shards")
    s.need(not s.true("use_batch_split_schedule"), "no batch-split schedule")
    for key, plain in PLAIN_VALUES.items():
        s.need(s.text.get(key, plain) == plain, f"no {key}")
    choices = [path for path in request.tensors if path.startswith("inputs/") and path.endswith("selected_experts")]
    s.need(request.op in ("permute", "unpermute") or not choices, "no choice of experts that is given")
    s.need("inputs/expert_map" not in request.tensors, "no map of a rank's experts")
    s.need(s["routing_method"] == "", "no routing_method")
    s.need(all((request.tensors[path] >= 0).all() for path in choices), "no slots without an expert")
    of_bits = request.op in ("quantize", "dequantize", "cache_append")  # of whose inputs none may be rounded
    tensors = operands(s, request.tensors)
    as_is = {path for path, x in tensors.items() if of_bits or path in request.wide or isinstance(x, Operand)}
    given = {path: x if path in as_is else ar.given(path, x) for path, x in tensors.items()}
    with np.errstate(all="ignore"):
        made = OPERATIONS[request.op](ar, s, given)
    results = {}
    made = made if spread else ar.checkpoints | made
    beside = [p for p in made if p.startswith("routing/")]
    for path in request.expects + beside:
        if path not in made and path.startswith("checkpoints/"):
            continue
        if path not in made:
            raise Unsupported("no " + path)
        value = np.asarray(made[path])
        wide = value.dtype.kind == "i" or is_router_or_statistic(request.op, path)
        results[path] = value if wide else ar.result(value)
    return results
