"""Routing and the MoE block. The router is float32 whatever the profile."""
import numpy as np

from kernels_basic import GatedMlp


def family_of(s):
    name, block = s["model_name"], s["decoder_block"]
    s.need(block not in ("llama4", "gemma4"), "not this family of routers")
    s.need(s.count("first_num_hash_layers") == 0, "no hash routing")
    if s.true("fused_moe_func"):
        return "fused"
    if block in ("glm4_moe", "kimi_k2"):
        return "deepseek3"
    if not (block.startswith("deepseek") or block == "" and name.startswith("deepseek")):
        return "default"
    if name.startswith(("deepseek3", "deepseek4")):
        return "deepseek3"
    plain_softmax = s["routed_score_func"] == "softmax" and not s.true("routed_bias")
    return "deepseek2" if name.startswith("deepseek2") or plain_softmax else "deepseek3"


def best(scores, count):
    """Of equal ones the first."""
    return np.argsort(-scores, axis=-1, kind="stable")[:, :count]


class Router:
    """Choice and weights of [T, E] logits, balance loss, and the gradients."""

    def __init__(self, ar, s, logits, bias, batch):
        self.ar, self.family, self.batch, self.bias = ar, family_of(s), batch, bias
        self.k, self.experts = s.count("num_experts_per_tok"), logits.shape[-1]
        deepseek, self.fused = self.family.startswith("deepseek"), self.family == "fused"
        self.factor = ar.float(s.number("routed_scaling_factor") if deepseek else 1)
        self.late = s.text.get("apply_routed_scaling_factor_on_output") == "false"  # the case's weights are without it
        self.score = s["routed_score_func"]
        if self.fused:
            self.score, logits = self.score if s.words("routed_score_func") else "softmax", logits if bias is None else logits + bias
        self.scores, self.derivative = self.score_of(logits)
        self.biased = self.scores if bias is None or self.fused else self.scores + bias
        allowed = self.groups(s) if deepseek and s.count("n_routing_groups") > 0 else self.biased
        self.chosen = self.choose(allowed)
        self.from_scores = self.fused or self.family == "deepseek3"
        gathered = np.take_along_axis(self.scores if self.from_scores else self.biased, self.chosen, -1)
        self.gathered = gathered if deepseek or self.fused else ar.softmax(gathered)
        divides = self.score in ("sigmoid", "sqrtsoftplus") if deepseek else self.fused or s.true("norm_topk_prob")
        self.total = ar.sum(self.gathered)[:, None] + ar.float(s.number("norm_topk_epsilon") or (1e-20 if deepseek else 0)) if divides else None
        self.weights = (self.gathered / self.total if divides else self.gathered) * self.factor
        self.balance(s)

    def choose(self, allowed):
        return best(allowed, self.k)

    def score_of(self, x):
        """f(logits), and the function from its gradient to the logits'."""
        ar = self.ar
        if self.score == "sigmoid":
            f = ar.sigmoid(x)
            return f, lambda d: d * f * (1 - f)
        if self.score == "softmax":
            f = ar.softmax(x)
            return f, lambda d: f * (d - ar.sum(d * f)[:, None])
        if self.score == "sqrtsoftplus":
            far = x < -40  # exp(x / 2) there: softplus(x) vanishes long before its root
            f = np.where(far, ar.exp(x / 2), ar.sqrt(ar.softplus(x)))
            return f, lambda d: d * np.where(far, f, ar.sigmoid(x) / np.where(far, 1, f)) / 2
        return x, lambda d: d

    def groups(self, s):
        grouped = self.biased.reshape(len(self.biased), s.count("n_routing_groups"), -1)
        top2 = s["group_score"] == "top2_sum" or (s["group_score"] == "" and self.bias is not None)
        score = np.sort(grouped, -1)[..., -2:].sum(-1) if top2 else grouped.max(-1)
        kept = best(score, s.count("topk_routing_group"))
        mask = np.zeros_like(score, bool)
        np.put_along_axis(mask, kept, True, -1)
        return np.where(mask[..., None], grouped, -np.inf).reshape(self.biased.shape)

    def balance(self, s):
        ar, tokens = self.ar, len(self.chosen)
        counts = np.bincount(self.chosen.reshape(-1), minlength=self.experts)
        self.loss_weight, rate = s.number("load_balance_loss_weight"), s.number("routed_bias_update_rate")
        self.updates = ar.value(rate * np.sign(tokens * self.k - counts * self.experts)) if rate > 0 else None
        self.loss = None
        if self.loss_weight > 0:
            rows = self.chosen.reshape(self.batch, -1)
            chosen = np.stack([np.bincount(row, minlength=self.experts) for row in rows])
            self.density = ar.value(chosen / (tokens / self.batch))
            self.pre_bias = s.text.get("load_balance_loss_pre_bias") == "true"
            self.p = ar.softmax(self.scores if self.pre_bias else self.biased).reshape(self.batch, -1, self.experts)
            mean = ar.mean(self.p, 1)[:, 0]
            self.loss = ar.mean(ar.mean(self.density * mean)[:, 0], 0)[0] * ar.float(self.experts**2 * self.loss_weight)

    def back(self, dw, d_loss):
        """d logits and d bias."""
        ar = self.ar
        dw = dw * self.factor
        if self.total is not None:
            dw = (dw - ar.sum(dw * self.gathered / self.total)[:, None]) / self.total
        if self.family == "default":
            dw = self.gathered * (dw - ar.sum(dw * self.gathered)[:, None])
        ds, d_biased = np.zeros_like(self.scores), np.zeros_like(self.scores)
        np.put_along_axis(ds if self.from_scores else d_biased, self.chosen, dw, -1)
        if self.loss is not None and d_loss is not None:
            d = d_loss * ar.float(self.loss_weight * self.experts / len(self.chosen)) * self.density[:, None, :]
            of_p = (self.p * (d - ar.sum(d * self.p)[..., None])).reshape(d_biased.shape)
            ds, d_biased = (ds + of_p, d_biased) if self.pre_bias else (ds, d_biased + of_p)
        d_logits = self.derivative(ds + d_biased)
        return d_logits, ar.sum(d_logits if self.fused else d_biased, 0)

    def outputs(self):
        named = {"lb_loss": self.loss, "bias_updates": self.updates}
        return {name: value for name, value in named.items() if value is not None}


def expert_checkpoints(ar, place, made, fused, rows=()):
    """Of a gated MLP what it made: a, b, h and y, the rows in the shape of tokens where `rows` says so."""
    a, b, h, y, codes, scale = (None if m is None else m.reshape(*(rows or m.shape[:1]), -1) for m in made)
    pairs = {"mlpwi": np.concatenate([a, b], -1)} if fused else {"mlpwi_0": a, "mlpwi_1": b}
    for name, value in (pairs | {"intermediate" if place else "mlp_intermediate": h, "mlpwo": y}).items():
        ar.checkpoint(place + name, value)
    for name, value in (("hidden_codes", codes), ("hidden_codes_scale", scale)):
        ar.checkpoint((place or "mlp_") + name, value)


def gradient_checkpoints(ar, place, made, fused, rows=()):
    """What a recipe quantises of gate and up on the way back."""
    da, db, dy = (m.reshape(*(rows or m.shape[:1]), -1) for m in made)
    if place:
        ar.checkpoint(place + "mlpwo_gradient", dy)
    for name, value in ({"mlpwi": np.concatenate([da, db], -1)} if fused else {"mlpwi_0": da, "mlpwi_1": db}).items():
        ar.checkpoint(place + name + "_gradient", value)


def sorted_copies(chosen):
    """The token and the slot of each copy, by expert."""
    order = np.argsort(chosen.reshape(-1), kind="stable")
    return np.divmod(order, chosen.shape[1])


def copies_of(chosen, e):
    """The token and the slot of each copy for expert e, in the order of the rows."""
    return np.nonzero(chosen == e)


def with_room(s, router):
    """The choice, -1 where it is dropped: of a batch row an expert takes as many copies as its capacity is, the first ones."""
    factor, rows = s.number("capacity_factor"), router.chosen.reshape(router.batch, -1)
    if factor <= 0 or s.true("sparse_matmul"):
        return router.chosen
    s.need(s.one_device() and s.text.get("quant_recipe", "") == "", "no dropping there")
    is_for = rows[..., None] == np.arange(router.experts)
    place = np.take_along_axis(np.cumsum(is_for, 1), rows[..., None], -1)[..., 0]
    capacity = int(max(-(-rows.shape[1] // router.experts) * factor, factor))
    return np.where(place <= capacity, rows, -1).reshape(router.chosen.shape)


def moe(ar, s, t, prefix, x):
    """x [B, S, D] with the weights under `prefix`: y, the router, and back(dy, d_loss) to dx and gradients by path."""
    s.need(s.number("ragged_buffer_factor") < 0, "no dropping of a ragged buffer")
    w = {name[len(prefix):]: value for name, value in t.items() if name.startswith(prefix)}
    s.need("shared_expert_gate/kernel" not in w, "no gate of the shared expert")
    flat = x.reshape(-1, x.shape[-1])
    kernel = w["gate/kernel"]
    router = Router(ar, s, ar.contract(flat, kernel), w.get("gate/bias"), len(x))
    fused = "wi" in w
    wi_0, wi_1 = np.split(w["wi"], 2, -1) if fused else (w["wi_0"], w["wi_1"])
    names = ["wi_0", "wi_1", "wo", "wi_0_bias", "wi_1_bias", "wo_bias"]
    weights = [wi_0, wi_1, w["wo"], *(w.get(name) for name in names[3:])]
    expert, backs, chosen = GatedMlp(ar, s, both=False), [], with_room(s, router)
    sorted_rows = []
    terms = np.zeros((*router.weights.shape, flat.shape[-1]), ar.float)
    for e in [slice(None)] if expert.recipe else range(len(wi_0)):  # by a recipe all are groups of one call
        token, k = sorted_copies(router.chosen) if expert.recipe else copies_of(chosen, e)
        if len(token):
            own = [None if m is None else m[e] for m in weights]
            weight = router.weights[token, k][:, None]
            if expert.recipe:
                sizes = np.bincount(router.chosen.reshape(-1), minlength=len(wi_0))
                ups = [w["wi"]] if fused else own[:2]
                terms[token, k], back = expert.groups_by_recipe(flat[token], ups, *own[2:], sizes=sizes, weight=weight)
            else:
                terms[token, k], back = expert(flat[token], *own, weight=weight)
            backs.append((e, token, k, back))
            sorted_rows.append(expert.made)
    if s.true("sparse_matmul"):
        expert_checkpoints(ar, "moe_", [None if m[0] is None else np.concatenate(m) for m in zip(*sorted_rows)], fused)
    y, back_shared = ar.keep(ar.sum(terms, 1)), None
    shared = ["shared_experts/" + n + "/kernel" for n in ("wi_0", "wi_1", "wo")]
    if shared[0] in w:
        s.need(s["decoder_block"] != "gpt_oss", "no shared experts beside clamped ones")
        kernels = [w[n] for n in shared]
        y_shared, back_shared = expert.by_recipe(flat, kernels[:2], kernels[2]) if expert.recipe else expert(flat, *kernels)
        y = y + ar.keep(y_shared)
        expert_checkpoints(ar, "", expert.made, False, tuple(x.shape[:2]))

    def back(dy, d_loss):
        dy = dy.reshape(flat.shape)
        grads = [None if m is None else np.zeros_like(m) for m in weights]
        dw, d_copies, made_back = np.zeros_like(router.weights), np.zeros_like(terms), []
        for e, token, k, back_expert in backs:
            d_copies[token, k], of_expert, dw[token, k] = back_expert(dy[token])
            made_back += [expert.made_back] if expert.recipe else []
            for total, g in zip(grads, of_expert):
                if total is not None:
                    total[e] = g
        if expert.recipe:
            gradient_checkpoints(ar, "moe_", [np.concatenate(m) for m in zip(*made_back)], fused)
        d_logits, d_bias = router.back(dw, d_loss)
        dx = ar.keep(ar.sum(ar.keep(d_copies), 1)) + ar.keep(ar.contract(d_logits, kernel.T))
        g = {"gate/kernel": ar.contract(flat.T, d_logits), "gate/bias": d_bias, **dict(zip(names, grads))}
        if fused:
            g["wi"] = np.concatenate([g["wi_0"], g["wi_1"]], -1)
        if back_shared is not None:
            d, of_shared, _ = back_shared(dy)
            if expert.recipe:
                gradient_checkpoints(ar, "", expert.made_back, False, tuple(x.shape[:2]))
            dx = dx + ar.keep(d)
            g.update(zip(shared, of_shared))
        return dx.reshape(x.shape), {"gradients/" + prefix + n: v for n, v in g.items() if n in w}

    return y.reshape(x.shape), router, back
