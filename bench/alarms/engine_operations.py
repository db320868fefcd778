"""The operations of docs/operations.md as engines compute them, in PyTorch, from tensors by path to results by path. Forward is written out; backward is
autograd's between the functions of engine_arithmetic.py and engine_attention.py, which have their own."""
import math

import numpy as np
import torch
import torch.nn.functional as F

from engine_arithmetic import ROUNDINGS, Arithmetic, Forms
from engine_attention import attention
from request import Unsupported


class Call:
    """Settings and tensors of a case; inputs and weights are leaves."""

    def __init__(self, ar, settings, tensors, wide):
        self.ar, self.s, self.t = ar, settings, {}
        for path, value in tensors.items():
            made = torch.from_numpy(np.array(value, order="C"))
            if made.is_floating_point():
                made = self.given(path, made.to(ar.wide), path in wide).requires_grad_(path.startswith(("inputs/", "weights/")))
            else:
                made = made.long()
            self.t[path] = made

    def given(self, path, x, as_it_is):
        """What a router adds to its scores, or takes them from, is float32."""
        as_it_is = as_it_is or self.ar.forms.inputs == "wide" or path.endswith(("/gate/bias", "/logits", "/per_expert_scale"))
        return x.clone() if as_it_is or self.ar.type is None else self.ar.round(x)

    def under(self, prefix):
        return {path[len(prefix):]: tensor for path, tensor in self.t.items() if path.startswith(prefix)}


# ---- norm, projections, gated MLP ----


class RmsNorm(torch.autograd.Function):
    """Backward as it is written: r (g - n mean(g n)), n stored or not."""

    @staticmethod
    def forward(ctx, x, scale, epsilon, ar):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
        n = x * r
        n = ar.round(n) if ar.forms.stores("normed") else n
        ctx.save_for_backward(n, r, scale)
        ctx.ar = ar
        return n * scale

    @staticmethod
    def backward(ctx, d):
        n, r, scale = ctx.saved_tensors
        g = d * scale
        return r * (g - n * (g * n).mean(-1, keepdim=True)), ctx.ar.total((d * n).reshape(-1, n.shape[-1])), None, None


def rms_norm(c, x, scale):
    ar, epsilon = c.ar, c.s.number("normalization_layer_epsilon")
    if ar.forms.norm == "written":
        return RmsNorm.apply(x, scale, epsilon, ar)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * scale


def dense(c, point, x, kernel, bias=None):
    """x [..., n] times kernel [n, ...]; between kernels it is stored, and so is the gradient of x."""
    flat = c.ar.linear(c.ar.part(x.reshape(-1, kernel.shape[0]), False, c.ar.forms.stores(point + " dx")), kernel.reshape(kernel.shape[0], -1))
    if bias is not None:
        flat = c.ar.add_bias(flat, bias.reshape(-1))
    return c.ar.keep(point, flat).reshape(*x.shape[:-1], *kernel.shape[1:])


def activation(c, name):
    sigmoid = c.ar.sigmoid
    table = {"silu": lambda x: x * sigmoid(x), "sigmoid": sigmoid, "linear": lambda x: x, "relu": torch.relu,
             "gelu": lambda x: F.gelu(x, approximate="tanh"), "gelu_exact": F.gelu}
    c.s.need(name in table, "no activation " + name)
    return table[name]


class Mlp:
    """A gated MLP; `routed` and `dense_layer` say which clamps and activations it has."""

    def __init__(self, c, routed, dense_layer):
        s, self.c = c.s, c
        names, self.limit = s.words("mlp_activations"), s.number("mlp_activations_limit")
        self.gpt_oss = s["decoder_block"] == "gpt_oss" and (routed or dense_layer)
        if not (routed or dense_layer):
            self.limit = 0
        self.gate, self.up = activation(c, names[0]), activation(c, names[1] if dense_layer else "linear")

    def hidden(self, a, b):
        if self.limit > 0:
            a, b = a.clamp(max=self.limit), b.clamp(-self.limit, self.limit)
        if self.gpt_oss:
            return a * self.c.ar.sigmoid(1.702 * a) * (b + 1)
        return self.gate(a) * self.up(b)

    def __call__(self, x, ups, biases, wo, b_o, weight=None):
        """x [rows, D]; ups: kernels of gate and up, or one with both. weight [rows, 1]: a routing weight. -> y, and what it made"""
        c, ar, f = self.c, self.c.ar, self.c.ar.forms
        if len(ups) == 2 and f.gate_up == "one":
            ups = [torch.cat(ups, -1)]
        if len(ups) == 1:
            a, b = dense(c, "gate and up", x, ups[0], None if biases[0] is None else torch.cat(biases, -1)).chunk(2, -1)
        else:
            a, b = (dense(c, name, x, w, bias) for name, w, bias in zip(("gate", "up"), ups, biases))
        h = ar.store(self.hidden(a, b))
        early = weight is not None and f.weigh == "early"
        y = ar.linear(ar.store(h * weight) if early else h, wo)
        made = [a, b, h, None if early else y]
        if b_o is not None:
            y = y + b_o * weight if early else ar.add_bias(y, b_o)
            made[3] = None if early else y
        if weight is None:
            return ar.keep("down", y), made
        if early:
            return ar.keep("weighed", y), made
        if f.weigh == "output":
            y = ar.keep("down", y)
        return ar.keep("weighed", ar.store_gradient(y) * weight), made


def halves(w, end):
    if "wi" + end in w:
        return [w["wi" + end]]
    return [w.get("wi_0" + end), w.get("wi_1" + end)]


def pair(biases):
    return list(biases[0].chunk(2, -1)) if len(biases) == 1 else biases


def gated_mlp(c, w, x, shared=False):
    flat = x.reshape(-1, x.shape[-1])
    y, made = Mlp(c, False, not shared)(flat, halves(w, "/kernel"), pair(halves(w, "/bias")), w["wo/kernel"], w.get("wo/bias"))
    mlp_checkpoints(c, "", made, "wi/kernel" in w, x.shape[:2])
    return y.reshape(x.shape)


def mlp_checkpoints(c, place, made, fused, rows):
    a, b, h, y = (None if m is None else m.reshape(*rows, -1) for m in made)
    named = {"mlpwi": torch.cat([a, b], -1)} if fused else {"mlpwi_0": a, "mlpwi_1": b}
    for name, value in {**named, "intermediate" if place else "mlp_intermediate": h, "mlpwo": y}.items():
        if value is not None:
            c.ar.checkpoint(place + name, value)


def run_mlp(c):
    return {"outputs/y": gated_mlp(c, c.under("weights/"), c.t["inputs/x"])}


# ---- grouped product, permutation ----


def rows_of_groups(c):
    s, t = c.s, c.t
    layout, groups, align = s["gmm_layout"], range(s.count("num_experts")), s.count("mk_alignment_for_contiguous_layout")
    if layout == "contiguous":
        return [torch.nonzero(t["inputs/m_indices"] == g)[:, 0] for g in groups]
    if layout == "masked":
        return [g * t["inputs/lhs"].shape[1] + torch.arange(n) for g, n in enumerate(t["inputs/masked_m"].tolist())]
    if layout == "psum":
        ends = t["inputs/psum_m"].tolist()
        starts = [0] + [-(-end // align) * align for end in ends]
    else:
        ends = np.cumsum(t["inputs/group_sizes"].tolist()).tolist()
        starts = [0] + ends
    return [torch.arange(start, end) for start, end in zip(starts, ends)]


def run_gmm(c):
    """Each group in blocks of rows, as a grid of tiles has them; a group's rows come in any order where it sums over them."""
    ar, s, t = c.ar, c.s, c.t
    lhs, groups, made = t["inputs/lhs"].reshape(-1, t["inputs/lhs"].shape[-1]), rows_of_groups(c), []
    groups = [rows[ar.forms.order(len(rows))] if len(rows) else rows for rows in groups]
    if s["gmm_layout"] == "k_grouped":
        shape = (lhs.shape[-1], t["inputs/rhs"].shape[-1])
        s.need(not ar.fp8, "no k_grouped product in fp8")
        zero = torch.zeros(shape, dtype=ar.wide)
        y = torch.stack([ar.product(lhs[rows].t(), t["inputs/rhs"][rows]) if len(rows) else zero for rows in groups])
        return {"outputs/y": y + t["inputs/c"] if "inputs/c" in t else y}
    serving = s["gmm_layout"] != "ragged"
    y = torch.full((len(lhs), t["weights/rhs"].shape[-1]), math.nan if serving else 0.0, dtype=ar.wide)
    for rows, w in zip(groups, t["weights/rhs"].unbind(0)):
        if len(rows):
            y = y.index_copy(0, rows, ar.linear(lhs[rows], w))
    return {"outputs/y": y.reshape(*t["inputs/lhs"].shape[:-1], -1)}


def sorted_copies(c, ids, experts):
    """Token and slot of each copy, by expert; those of an expert in any order, as slots taken by atomics have it."""
    copies = []
    for e in range(experts):
        rows = torch.nonzero(ids.reshape(-1) == e)[:, 0]
        copies.append(rows[c.ar.forms.order(len(rows))] if len(rows) else rows)
    return copies


def copied(c, x, places, k):
    """Rows of x for the copies at these places. Their gradients are added side by side, or one after the other."""
    if c.ar.forms.combine == "added":
        return Copies.apply(x, places // k, c.ar)
    return x[:, None].expand(-1, k, -1).reshape(-1, x.shape[-1])[places]


class Copies(torch.autograd.Function):
    """Gradients of copies are added to their token's row one after the other, in the order in which the rows lie."""

    @staticmethod
    def forward(ctx, x, tokens, ar):
        ctx.save_for_backward(tokens)
        ctx.shape, ctx.ar = x.shape, ar
        return x[tokens]

    @staticmethod
    def backward(ctx, d):
        (tokens,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=d.dtype).index_add(0, tokens, d), None, None


def combined(c, rows, places, tokens, k):
    """The sum of each token's rows, which have their weights already."""
    if c.ar.forms.combine == "added":
        return torch.zeros(tokens, rows.shape[-1], dtype=rows.dtype).index_add(0, places // k, rows)
    copies = torch.zeros(tokens * k, rows.shape[-1], dtype=rows.dtype).index_copy(0, places, rows)
    return c.ar.in_turn(list(copies.reshape(tokens, k, -1).unbind(1)))


def run_permute(c):
    ids = c.t["inputs/selected_experts"]
    c.s.need(bool((ids >= 0).all()), "no slots of -1")
    places = torch.cat(sorted_copies(c, ids, c.s.count("num_experts")))
    return {"outputs/sorted_inputs": copied(c, c.t["inputs/x"], places, ids.shape[1]), "outputs/sorted_selected_experts": places,
            "outputs/group_sizes": torch.bincount(ids.reshape(-1), minlength=c.s.count("num_experts"))}


def run_unpermute(c):
    places, weights = c.t["inputs/sorted_selected_experts"], c.t["inputs/weights"]
    c.s.need(bool((places >= 0).all()), "no slots of -1")
    rows = c.t["inputs/sorted"] * weights.reshape(-1)[places][:, None]
    return {"outputs/y": combined(c, rows, places, *weights.shape)}


# ---- routing ----


def family_of(s):
    name, block = s["model_name"], s["decoder_block"]
    s.need(not s.true("fused_moe_func") and block not in ("llama4", "gemma4") and s.count("first_num_hash_layers") == 0, "no such router")
    for key, only in (("routing_method", ""), ("use_random_routing", "false"), ("load_balance_loss_scope", "sequence")):
        s.need(s[key] == only, "no " + key)
    if block in ("glm4_moe", "kimi_k2"):
        return "deepseek3"
    if not (block.startswith("deepseek") or block == "" and name.startswith("deepseek")):
        return "default"
    if name.startswith("deepseek2"):
        return "deepseek2"
    if name.startswith(("deepseek3", "deepseek4")):
        return "deepseek3"
    return "deepseek2" if s["routed_score_func"] == "softmax" and not s.true("routed_bias") else "deepseek3"


def root_of_softplus(x):
    far = x < -40
    return torch.where(far, torch.exp(x.clamp(max=0) / 2), torch.sqrt(F.softplus(x.masked_fill(far, 0.0))))


def best(values, k):
    """The lower index first where values are equal."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :k]


class Router:
    """Choice, weights and losses from logits [T, E], all of it in float32."""

    def __init__(self, c, logits, bias, batch):
        s, ar = c.s, c.ar
        family, score = family_of(s), s["routed_score_func"]
        deepseek, k, experts = family != "default", s.count("num_experts_per_tok"), logits.shape[-1]
        scores = {"sigmoid": ar.sigmoid, "softmax": ar.softmax, "sqrtsoftplus": root_of_softplus}.get(score, lambda x: x)(logits)
        biased = scores if bias is None else ar.add_bias(scores, bias)
        allowed = self.in_groups(s, biased, bias) if deepseek and s.count("n_routing_groups") > 0 else biased
        self.chosen = best(allowed.detach(), k)
        naive = not deepseek and score == "" and ar.forms.chosen == "naive"
        weighed = ar.softmax(biased) if naive else scores if family == "deepseek3" else biased
        weights = weighed.gather(-1, self.chosen)
        if naive:
            weights = weights / weights.sum(-1, keepdim=True)
        elif not deepseek:
            weights = ar.softmax(weights)
        divides = score in ("sigmoid", "sqrtsoftplus") if deepseek else s.true("norm_topk_prob")
        if divides:
            weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if deepseek else 0.0))
        self.weights = weights * s.number("routed_scaling_factor") if deepseek else weights
        self.outputs = {}
        counts = torch.bincount(self.chosen.reshape(-1), minlength=experts)
        if s.number("routed_bias_update_rate") > 0:
            self.outputs["bias_updates"] = s.number("routed_bias_update_rate") * torch.sign(len(logits) * k - counts * experts).to(ar.wide)
        if s.number("load_balance_loss_weight") > 0:
            p = ar.softmax(scores if s.true("load_balance_loss_pre_bias") else biased).reshape(batch, -1, experts)
            density = F.one_hot(self.chosen, experts).sum(1).reshape(p.shape).to(ar.wide).mean(1)
            self.outputs["lb_loss"] = (density * p.mean(1)).mean() * (experts**2 * s.number("load_balance_loss_weight"))
        if s.number("router_z_loss_weight") > 0:
            linear_bias = bias is not None and s["decoder_block"] == "gpt_oss"
            s.need(not linear_bias, "no z-loss of a router with a linear bias")
            self.outputs["z_loss"] = s.number("router_z_loss_weight") * torch.logsumexp(logits, -1).square().mean()

    def in_groups(self, s, biased, bias):
        grouped = biased.detach().reshape(len(biased), s.count("n_routing_groups"), -1)
        top2 = s["group_score"] == "top2_sum" or (s["group_score"] == "" and bias is not None)
        score = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1) if top2 else grouped.amax(-1)
        gone = torch.ones_like(score, dtype=torch.bool).scatter(-1, best(score, s.count("topk_routing_group")), False)
        return grouped.masked_fill(gone[..., None], -math.inf).reshape(biased.shape)


def refuse(c):
    for path in c.t:
        c.s.need(not path.endswith(("/selected_experts", "/routing_weights", "/expert_map", "/physical_to_logical_map")), "no given choice")
    for key in ("local_num_experts", "num_fused_shared_experts", "num_redundant_experts", "capacity_factor", "ragged_buffer_factor"):
        c.s.need(c.s.number(key) <= 0, "no " + key)
    c.s.need(not c.s.true("apply_router_weight_on_input") and c.s.true("apply_routed_scaling_factor_on_output"), "no weights at other places")


def run_routing(c):
    refuse(c)
    kernel = c.t.get("weights/gate/kernel")
    given = c.t["inputs/logits" if kernel is None else "inputs/x"]
    flat = given.reshape(-1, given.shape[-1])
    router = Router(c, flat if kernel is None else c.ar.router_product(flat, kernel), c.t.get("weights/gate/bias"), len(given))
    shape = (*given.shape[:2], -1)
    return {"outputs/weights": router.weights.reshape(shape), "routing/selected_experts": router.chosen.reshape(shape),
            **{"outputs/" + name: value for name, value in router.outputs.items()}}


def experts(c, w, x, router):
    """Copies sorted by expert, a gated MLP for each group, the sum over a token's copies."""
    groups, k, mlp = sorted_copies(c, router.chosen, len(w["wo"])), router.chosen.shape[1], Mlp(c, True, False)
    kernels, biases, rows, made = halves(w, ""), pair(halves(w, "_bias")), [], []
    of_experts = list(zip(*(m.unbind(0) for m in kernels)))
    of_biases = [[None, None] if biases[0] is None else list(b) for b in (zip(*(m.unbind(0) for m in biases)) if biases[0] is not None else groups)]
    downs = w["wo"].unbind(0)
    of_down = w["wo_bias"].unbind(0) if "wo_bias" in w else [None] * len(downs)
    places = torch.cat(groups)
    copies = copied(c, x, places, k).split([len(g) for g in groups])
    weights = router.weights.reshape(-1)
    for e, group in enumerate(groups):
        if len(group):
            y, parts = mlp(copies[e], list(of_experts[e]), of_biases[e], downs[e], of_down[e], weights[group][:, None])
            rows.append(y)
            made.append(parts)
    if c.s.true("sparse_matmul"):
        stable = torch.cat([g.argsort() + before for g, before in zip(groups, np.cumsum([0] + [len(g) for g in groups]).tolist())])
        joined = [None if m[0] is None else torch.cat(m)[stable] for m in zip(*made)]
        mlp_checkpoints(c, "moe_", joined, "wi" in w, (len(places),))
    return combined(c, torch.cat(rows), places, len(x), k)


def moe(c, prefix, x):
    refuse(c)
    w, ar, flat = c.under(prefix), c.ar, x.reshape(-1, x.shape[-1])
    c.s.need("gate/kernel" in w, "no block without a router")
    router = Router(c, ar.router_product(ar.part(flat, False, ar.forms.stores("router dx")), w["gate/kernel"]), w.get("gate/bias"), len(x))
    y = ar.keep("routed", experts(c, w, flat, router))
    shared = {name[len("shared_experts/"):]: value for name, value in w.items() if name.startswith("shared_experts/")}
    if shared:
        of_shared = gated_mlp(c, shared, x, shared=True).reshape(flat.shape)
        if "shared_expert_gate/kernel" in w:
            of_shared = ar.keep("gated", ar.sigmoid(ar.router_product(flat, w["shared_expert_gate/kernel"])) * of_shared)
        y = y + of_shared
    return y.reshape(x.shape), router


def routed(router, shape, results=""):
    made = {f"outputs/{results}{name}": value for name, value in router.outputs.items()}
    return {**made, f"routing/{results}selected_experts": router.chosen.reshape(*shape[:2], -1)}


def run_moe(c):
    y, router = moe(c, "weights/", c.t["inputs/x"])
    return {"outputs/y": y, **routed(router, y.shape)}


# ---- rotation, attention with its projections ----


def frequencies(c, dim):
    """In float64, or by float32 powers as models compute them."""
    s = c.s
    theta, pairs = s.number("rope_max_timescale"), torch.arange(0, dim, 2, dtype=torch.float64)
    if c.ar.forms.rope == "float32" and not c.ar.exact:
        base = 1.0 / (theta ** (pairs.float() / dim))
    else:
        base = theta ** (-pairs / dim)
    if s["rope_type"] != "yarn":
        return base.to(c.ar.wide)
    turns = [dim * math.log(s.number("original_max_position_embeddings") / (s.number(key) * 2 * math.pi)) / (2 * math.log(theta))
             for key in ("beta_fast", "beta_slow")]
    low, high = (math.floor(turns[0]), math.ceil(turns[1])) if s.true("rope_truncate") else turns
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=base.dtype) - low) / (0.001 if low == high else high - low)).clamp(0, 1)
    return (base / s.number("rope_factor") * ramp + base * (1 - ramp)).to(c.ar.wide)


def rope(c, x):
    """x [B, S, N, Dr]. Angles, cos and sin are float32."""
    s, factor = c.s, c.s.number("rope_factor")
    angle = (c.t["inputs/positions"].to(c.ar.wide)[..., None] * frequencies(c, x.shape[-1]))[:, :, None]
    size = 0.1 * math.log(factor) + 1 if s["rope_type"] == "yarn" and s.true("rope_attention_scaling") and factor > 1 else 1.0
    cos, sin = torch.cos(angle) * size, torch.sin(angle) * size
    a, b = (x[..., 0::2], x[..., 1::2]) if s.true("rope_interleave") else x.chunk(2, -1)
    neighbours = s.true("rope_interleave") and s.true("rope_pairwise")
    if c.ar.forms.rope == "halves" and not neighbours:
        ordered, turned = torch.cat([a, b], -1), torch.cat([-b, a], -1)
        return ordered * torch.cat([cos, cos], -1) + turned * torch.cat([sin, sin], -1)
    made = a * cos - b * sin, b * cos + a * sin
    return torch.stack(made, -1).flatten(-2) if neighbours else torch.cat(made, -1)


def window_of(c):
    """GPT-OSS has a window in layers 0, 2, 4 ...; a layer alone is the first, or the second where attention is global."""
    s = c.s
    if s["decoder_block"] == "gpt_oss" and c.ar.layer:
        return (s.count("sliding_window_size"), 0)[int(c.ar.layer.split("/")[1]) % 2]
    return 0 if s["attention_type"] == "global" else s.count("sliding_window_size")


def attend(c, query, key, value, scale, window=0, sinks=None):
    """The scale goes on the query before it is stored, or on the scores."""
    ar, late = c.ar, c.ar.forms.scale == "scores"
    scaled = query if late else ar.keep("scaled query", ar.store(query) * scale if ar.forms.stores("query") else query * scale)
    out, lse = attention(ar, scaled, key, value, c.t.get("inputs/segment_ids"), c.s.true("mask_padding"), scale if late else None, window, sinks)
    for name, made in {"query_proj": query * scale if late else scaled, "key_proj": key, "value_proj": value, "attention_out": out, "lse": lse}.items():
        ar.checkpoint(name, made)
    return ar.store_gradient(out)


def run_attention(c):
    out, lse = attention(c.ar, *(c.t["inputs/" + n] for n in ("query", "key", "value")), c.t.get("inputs/segment_ids"),
                         c.s.true("mask_padding"), None, window_of(c), c.t.get("weights/sinks"))
    return {"outputs/attention_out": out, "outputs/lse": lse}


def mla(c, prefix, x):
    s, ar, w = c.s, c.ar, c.under(prefix)
    rank, nope, v = w["kv_norm/scale"].shape[0], s.count("qk_nope_head_dim"), s.count("v_head_dim")
    if "wq_a/kernel" in w:
        low = dense(c, "query_wa_proj", x, w["wq_a/kernel"])
        normed = ar.store(rms_norm(c, low, w["q_norm/scale"]))
        ar.checkpoint("query_wa_proj", low)
        ar.checkpoint("mla_q", normed)
        q = dense(c, "q", normed, w["wq_b/kernel"])
    else:
        q = dense(c, "q", x, w["query/kernel"])
    kv_a = dense(c, "kv_wa_proj", x, w["wkv_a/kernel"])
    c_kv = ar.store(rms_norm(c, kv_a[..., :rank], w["kv_norm/scale"]))
    ar.checkpoint("kv_wa_proj", kv_a)
    ar.checkpoint("mla_kv", c_kv)
    kv = dense(c, "kv", c_kv, w["wkv_b/kernel"])
    k_pe = rope(c, kv_a[:, :, None, rank:]).expand(-1, -1, kv.shape[2], -1)
    key = torch.cat([kv[..., :nope], k_pe], -1)
    m = 0.1 * s.number("mscale") * math.log(s.number("rope_factor")) + 1
    stretched = s.number("max_position_embeddings") > s.number("original_max_position_embeddings")
    query = torch.cat([q[..., :nope], rope(c, q[..., nope:])], -1)
    out = attend(c, query, ar.keep("key", key), kv[..., nope:], q.shape[-1] ** -0.5 * (m * m if stretched else 1.0))
    y = dense(c, "out_proj", out.reshape(*x.shape[:2], -1), w["out/kernel"].reshape(-1, x.shape[-1]))
    ar.checkpoint("out_proj", y)
    return y


def gqa(c, prefix, x):
    s, ar, w = c.s, c.ar, c.under(prefix)
    heads = s.count("base_num_query_heads")
    if "qkv_proj/kernel" in w:
        made = dense(c, "qkv", x, w["qkv_proj/kernel"], w.get("qkv_proj/bias"))
        ar.checkpoint("qkv_proj", made)
        shared = (made.shape[2] - heads) // 2
        query, key, value = made.split([heads, shared, shared], 2)
    else:
        query, key, value = (dense(c, n, x, w[n + "/kernel"], w.get(n + "/bias")) for n in ("query", "key", "value"))
    if "query_norm/scale" in w:
        query, key = (ar.keep(n + " normed", rms_norm(c, v, w[n + "_norm/scale"])) for n, v in (("query", query), ("key", key)))
    query, key = rope(c, query), ar.keep("key rotated", rope(c, key))
    out = attend(c, query, key, value, s.number("query_pre_attn_scalar"), window_of(c), w.get("sinks"))
    y = dense(c, "out_proj", out.reshape(*x.shape[:2], -1), w["out/kernel"].reshape(-1, x.shape[-1]), w.get("out/bias"))
    ar.checkpoint("out_proj", y)
    return y


# ---- layers ----


def layer(c, results, x):
    """results: "layers/3/", or "" for a layer alone."""
    ar, prefix, made = c.ar, "weights/" + results, {}
    ar.layer = results
    ar.checkpoint("decoder_layer_input", x)
    attend_by = mla if prefix + "self_attention/wkv_a/kernel" in c.t else gqa
    normed = ar.store(rms_norm(c, x, c.t[prefix + "pre_self_attention_layer_norm/scale"]))
    h = ar.keep("residual", x + attend_by(c, prefix + "self_attention/", normed))
    normed = ar.store(rms_norm(c, h, c.t[prefix + "post_self_attention_layer_norm/scale"]))
    if prefix + "mlp/wo/kernel" in c.t:
        y = gated_mlp(c, c.under(prefix + "mlp/"), normed)
    else:
        y, router = moe(c, prefix + "moe/", normed)
        made = routed(router, x.shape, results)
    return ar.keep("layer", h + ar.keep("block", y)), made


def run_stack(c):
    s = c.s
    s.need(not s.true("use_batch_split_schedule"), "no batch-split schedule")
    numbers = {int(path.split("/")[2]) for path in c.t if path.startswith("weights/layers/")}
    y, made = c.t["inputs/x"], {}
    for results in [f"layers/{i}/" for i in sorted(numbers)] or [""]:
        y, beside = layer(c, results, y)
        made.update(beside)
    return {"outputs/y": y, **made}


OPERATIONS = {
    "rms_norm": lambda c: {"outputs/y": rms_norm(c, c.t["inputs/x"], c.t["weights/scale"])},
    "yarn_rope": lambda c: {"outputs/y": rope(c, c.t["inputs/x"])},
    "mla": lambda c: {"outputs/y": mla(c, "weights/", c.t["inputs/x"])},
    "gqa": lambda c: {"outputs/y": gqa(c, "weights/", c.t["inputs/x"])},
    "mlp": run_mlp, "gmm": run_gmm, "permute": run_permute, "unpermute": run_unpermute, "routing": run_routing, "moe": run_moe,
    "attention": run_attention, "deepseek_layer": run_stack, "deepseek_stack": run_stack, "decoder_layer": run_stack, "decoder_stack": run_stack}


def result(ar, op, path, value):
    """Routers, losses and the log-sum-exp are float32 at every profile."""
    router = path.endswith(("/lse", "/lb_loss", "/z_loss", "/bias_updates", "/gate/kernel", "/gate/bias")) or op == "routing" or path.startswith("routing/")
    if not value.is_floating_point():
        return value.int()
    return value if router or ar.forms.results == "wide" else ar.round(value)


def run(op, settings, tensors, wide, expects, profile, number):
    """Results by path that are expected, and the choice of experts. `tensors`: float64 or integers by path; `wide`: those used as they are."""
    s = settings
    s.need(op in OPERATIONS, "no " + op)
    s.need_no_mesh()
    s.need("quant_formats" not in s.text and not s.text.get("quant_recipe") and not s.text.get("quant_hidden_format"), "no quantised operands")
    s.need(s.count("w13_reorder_size") == 1, "no fused weights laid out for tensor shards")
    s.need(profile in ROUNDINGS, "no profile " + profile)
    ar = Arithmetic(profile, Forms(number))
    c = Call(ar, s, tensors, wide)
    made = OPERATIONS[op](c)
    for path, value in ar.checkpoints.items():
        if "gradients/" + path in expects and value.requires_grad and not value.is_leaf:
            value.retain_grad()
    ends = [(v, c.t["cotangents/" + path[8:]]) for path, v in made.items() if "cotangents/" + path[8:] in c.t and v.requires_grad]
    if ends:
        torch.autograd.backward([v for v, _ in ends], [d.reshape(v.shape) for v, d in ends])
    made = {**ar.checkpoints, **made}
    results = {path: value for path, value in made.items() if path in expects or path.startswith("routing/")}
    for path in expects:
        of = c.t.get(path[len("gradients/"):], ar.checkpoints.get(path[len("gradients/"):])) if path.startswith("gradients/") else None
        if of is not None:
            results[path] = torch.zeros_like(of) if of.grad is None else of.grad
        s.need(path in results or path.startswith(("checkpoints/", "routing/")), "no " + path)
    return {path: result(ar, op, path, value.detach()).numpy() for path, value in results.items()}
