"""Functions of the batch-split module that have a recipe, in numpy, over all shards: docs/operations.md#batch_split."""
import numpy as np

from kernels_basic import GatedMlp, activation, grouped_product
from kernels_moe import Router
from quant_recipes import Recipe, vectors
from request import Unsupported

PRODUCTS = {"gmm": ("inputs", ["kernel"], ["output"]), "compute_gating": ("x", ["w0", "w1"], ["layer_w0", "layer_w1"])}


def expert_shards(s):
    words = s.words("mesh")
    return int(words[words.index("expert") + 1])


def psum_scatter(ar, s, t, cotangent):
    """x [M, P T, D] -> each shard's T rows of the sum; its gradient: codes of all P shards, each with its own scales."""
    parts = expert_shards(s)
    made = {}
    if "inputs/x" in t:
        x = t["inputs/x"]
        terms = x.reshape(-1, parts, parts, x.shape[1] // parts, x.shape[2])
        total = terms[:, 0]
        for i in range(1, parts):
            total = (total if i == 1 else ar.keep(total)) + terms[:, i]
        made["out"] = total.reshape(len(x), -1, x.shape[2])
    dy = t[cotangent("out")]
    of_shards = [vectors(s, "e5m2", shard, 1, "bwd_quantization_calibration_method") for shard in dy]
    numbers = np.stack([codes * scale for codes, scale in of_shards]).astype(ar.float)
    gathered = numbers.reshape(len(dy) // parts, 1, -1, dy.shape[2]).repeat(parts, 1)
    return made, {"x": gathered.reshape(len(dy), -1, dy.shape[2])}, {}


def products(ar, s, t, cotangent, names):
    """One grouped product of the same rows for each weight; shards of one place of the expert axis have the same experts."""
    rows, weights, results = names
    x, parts = t["inputs/" + rows], expert_shards(s)
    kernels = [t["weights/" + w] for w in weights]
    dys = [t[cotangent(r)] for r in results]
    local = len(kernels[0]) // parts
    merged = s.true("merge_gating_gmm") and len(weights) > 1
    made, d_weights, d_rows = {r: [] for r in results}, {w: [] for w in weights}, []
    for shard, sizes in enumerate(t["inputs/group_sizes"]):
        own = [k[shard % parts * local :][:local] for k in kernels]
        dy = [d[shard] for d in dys]
        if merged:
            own, dy = [np.concatenate(own, -1)], [np.concatenate(dy, -1)]
        d_row = 0
        y, d_w = [], []
        for kernel, d in zip(own, dy):
            recipe = Recipe(s, x[shard], kernel, sizes) if s.text.get("quant_recipe", "") else None
            y_of, back = grouped_product(ar, x[shard], kernel, sizes, recipe)
            d_lhs, d_rhs = back(d)
            d_row = d_row + (d_lhs if len(own) == 1 else ar.keep(d_lhs))
            y.append(y_of)
            d_w.append(d_rhs)
        if merged:
            y, d_w = np.split(y[0], 2, -1), np.split(d_w[0], 2, -1)
        d_rows.append(d_row)
        for r, value in zip(results, y):
            made[r].append(value)
        for w, value in zip(weights, d_w):
            d_weights[w].append(value)
    return ({r: np.stack(v) for r, v in made.items()}, {rows: np.stack(d_rows)},
            {w: np.stack(v) for w, v in d_weights.items()})


def linear(ar, s, t, cotangent):
    """From gate and up on, each row weighed before the product."""
    a, b, weight, wo = (t[n] for n in ("inputs/layer_w0", "inputs/layer_w1", "inputs/weights", "weights/wo"))
    sizes, dy, parts = t["inputs/group_sizes"], t[cotangent("layer_wo")], expert_shards(s)
    local, recipe = len(wo) // parts, s.text.get("quant_recipe", "") != ""
    f, df = activation(ar, s, "silu")(a)
    h = ar.keep(f * b)
    weighed = ar.keep(ar.made("intermediate_layer", h * weight[..., None]))
    y, d_weighed, d_wo = [], [], []
    for shard, x in enumerate(weighed):
        own = wo[shard % parts * local :][:local]
        y_of, back = grouped_product(ar, x, own, sizes[shard], Recipe(s, x, own, sizes[shard]) if recipe else None)
        for to, value in zip((y, d_weighed, d_wo), (y_of, *back(dy[shard]))):
            to.append(value)
    d = ar.keep(np.stack(d_weighed))
    dh = ar.keep(d * weight[..., None])
    return {"layer_wo": np.stack(y)}, {"layer_w0": dh * b * df, "layer_w1": dh * f, "weights": ar.sum(h * d, -1)}, {
        "wo": np.stack(d_wo)}, {"intermediate_layer": weighed} if recipe else {}


def shared_expert(ar, s, t, cotangent):
    """A gated MLP of each shard."""
    weights = ("shared_w0", "shared_w1", "shared_wo")
    wi_0, wi_1, wo = (t["weights/" + w] for w in weights)
    x, dy = t["inputs/inputs"], t[cotangent("y")]
    y, d_x, d_w, shown = [], [], {w: [] for w in weights}, {}
    for shard, d in zip(x, dy):
        mlp, rows = GatedMlp(ar, s), shard.reshape(-1, x.shape[-1])
        y_of, back = mlp.by_recipe(rows, (wi_0, wi_1), wo) if mlp.recipe else mlp(rows, wi_0, wi_1, wo)
        d_rows, gradients, _ = back(d.reshape(rows.shape))
        y.append(y_of)
        d_x.append(d_rows)
        for w, gradient in zip(weights, gradients):
            d_w[w].append(gradient)
        if mlp.recipe:
            numbers = (mlp.made[2], *mlp.made_back[:2])
            for name, value in zip(("shared_intermediate", "shared_mlpwi_0_gradient", "shared_mlpwi_1_gradient"), numbers):
                shown.setdefault(name, []).append(value.reshape(*shard.shape[:-1], -1))
    return {"y": np.stack(y).reshape(x.shape)}, {"inputs": np.stack(d_x).reshape(x.shape)}, {
        w: np.stack(v) for w, v in d_w.items()}, {n: np.stack(v) for n, v in shown.items()}


def selection(ar, s, t, cotangent):
    """Experts of each shard's tokens; no gradient reaches the bias, which only chooses."""
    kernel, bias = t["weights/routing_kernel"], t["weights/routing_bias"]
    recipe, shown = s.text.get("quant_recipe", "") != "", []
    made, d_x, d_w = {"selected_experts": [], "weights": [], "group_sizes": []}, [], []
    for x, d in zip(t["inputs/x"], t[cotangent("weights")]):
        of_recipe = Recipe(s, x, kernel[None], [len(x)]) if recipe else None
        router = Router(ar, s, ar.contract(of_recipe.x, of_recipe.w[0]) if recipe else ar.contract(x, kernel), bias, 1)
        d_logits, _ = router.back(d, None)
        dy_of_x, w, x_of_w, dy_of_w = of_recipe.back(d_logits) if recipe else (d_logits, kernel[None], x, d_logits)
        d_x.append(ar.contract(dy_of_x, w[0].T))
        d_w.append(ar.contract(x_of_w.T, dy_of_w))
        shown.append(d_logits)
        counts = np.bincount(router.chosen.reshape(-1), minlength=kernel.shape[1])
        for to, value in zip(made.values(), (router.chosen.astype(np.int32), router.weights, counts.astype(np.int32))):
            to.append(value)
    return {n: np.stack(v) for n, v in made.items()}, {"x": np.stack(d_x)}, {
        "routing_kernel": np.stack(d_w), "routing_bias": np.zeros_like(bias)}, {"logits_gradient": np.stack(shown)} if recipe else {}


def key_value(ar, s, t, cotangent):
    """One product of all rows; the rotated part of keys is the same for every head."""
    x, rope, kernel = t["inputs/low_rank_main"], t.get("inputs/key_rope"), t["weights/wkv_b_weights"]
    s.need(len(x) == 1, "no keys and values of several shards")
    nope, heads = s.count("qk_nope_head_dim"), kernel.shape[1]
    flat, w = x.reshape(-1, x.shape[-1]), kernel.reshape(1, len(kernel), -1)
    recipe = Recipe(s, flat, w, [len(flat)]) if s.text.get("quant_recipe", "") else None
    y, back = grouped_product(ar, flat, w, [len(flat)], recipe)
    kv = y.reshape(*x.shape[:-1], heads, -1)
    dkey, dvalue = t[cotangent("key")], t[cotangent("value")]
    d_flat, d_w = back(np.concatenate([dkey[..., :nope], dvalue], -1).reshape(len(flat), -1))
    made = {"value": kv[..., nope:]}
    if rope is not None:
        shared = np.broadcast_to(rope[..., None, :], (*rope.shape[:-1], heads, rope.shape[-1]))
        made["key"] = np.concatenate([kv[..., :nope], shared], -1)
    return made, {"low_rank_main": d_flat.reshape(x.shape), "key_rope": ar.sum(dkey[..., nope:], -2)}, {
        "wkv_b_weights": d_w.reshape(1, *kernel.shape)}


def run_function(ar, s, t):
    name = s["function"]
    backward = name.endswith("_bwd")
    forward = name[: -len("_bwd")] if backward else name

    def cotangent(result):
        return f"inputs/{result}_grad" if backward else "cotangents/" + result

    quantised = {}
    if forward == "quantized_psum_scatter":
        made, d_inputs, d_weights = psum_scatter(ar, s, t, cotangent)
    elif forward == "compute_linear":
        made, d_inputs, d_weights, quantised = linear(ar, s, t, cotangent)
    elif forward == "shared_expert":
        made, d_inputs, d_weights, quantised = shared_expert(ar, s, t, cotangent)
    elif forward == "expert_selection":
        made, d_inputs, d_weights, quantised = selection(ar, s, t, cotangent)
    elif forward == "get_key_value":
        made, d_inputs, d_weights = key_value(ar, s, t, cotangent)
    elif forward in PRODUCTS:
        made, d_inputs, d_weights = products(ar, s, t, cotangent, PRODUCTS[forward])
    else:
        raise Unsupported("no function " + name)
    quantised = {"checkpoints/" + n: v for n, v in quantised.items()}
    if backward:
        return quantised | {f"outputs/{n}_grad": g for n, g in (d_inputs | d_weights).items()}
    parts = expert_shards(s)
    whole = {}
    for n, g in d_weights.items():  # shards behind each other have the same experts again, or all the whole weight
        if n == "routing_bias":
            g = g[None]
        groups = g if g.shape[1:] == t["weights/" + n].shape else g.reshape(-1, parts * g.shape[1], *g.shape[2:])
        whole["gradients/weights/" + n] = groups[0] if len(groups) == 1 else ar.sum(ar.keep(groups), 0)
    return quantised | {"outputs/" + n: v for n, v in made.items()} | {"gradients/inputs/" + n: g for n, g in d_inputs.items()} | whole
