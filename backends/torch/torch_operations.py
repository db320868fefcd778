"""The operations of docs/operations.md by PyTorch's operators. Each gives outputs by path; gradients are autograd's."""
from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import ScalingType
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from kernels_attention import frequencies, window_of
from kernels_moe import family_of
from operations import rows_of_groups
from request import Request, Settings, Unsupported
from torch_cache import run_cache_append
from torch_decode import cap_of, capped, run_gqa_decode, run_merge_states, run_mla_decode
from torch_results import with_gradients
from torchao_quantize import run_quantize

Tensors = dict[str, Tensor]


class Call:
    """Settings and tensors of one case. `wide` is the type inside of routers, norms, softmax and rotations."""

    def __init__(self, request: Request, dtype: torch.dtype, options: argparse.Namespace):
        self.s, self.dtype, self.options = request.settings, dtype, options
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.backward = any(path.startswith("gradients/") for path in request.expects)
        self.t = {path: self.tensor(path, value) for path, value in request.tensors.items()}
        self.raw = request.tensors

    def tensor(self, path: str, value: np.ndarray) -> Tensor:
        """The router's weights and logits stay wide, as the profiles say."""
        made = torch.from_numpy(np.array(value)).to(self.options.device)
        if not made.is_floating_point():
            return made.long()
        router = "/gate/" in path or path.endswith(("inputs/logits", "per_expert_scale", "/lb_loss", "/z_loss", "lse"))
        made = made.to(self.wide if router or path.endswith("cotangents/weights") else self.dtype)
        return made.requires_grad_(self.backward and path.startswith(("inputs/", "weights/")))

    def under(self, prefix: str) -> Tensors:
        return {path[len(prefix):]: tensor for path, tensor in self.t.items() if path.startswith(prefix)}

    def counts(self, ids: Tensor) -> Tensor:
        return torch.bincount(ids.reshape(-1), minlength=self.s.count("num_experts"))


# ---- norms, projections, gated MLP ----


def rms_norm(c: Call, x: Tensor, scale: Tensor, epsilon: str = "normalization_layer_epsilon") -> Tensor:
    if c.options.form == "sdpa":
        return F.rms_norm(x, scale.shape, scale, c.s.number(epsilon))
    n = x.to(c.wide)
    n = n * torch.rsqrt(n.pow(2).mean(-1, keepdim=True) + c.s.number(epsilon))
    return scale * n.to(x.dtype)


def dense(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., n] times kernel [n, ...], which is laid out as F.linear's weight transposed."""
    flat = kernel.reshape(kernel.shape[0], -1)
    y = F.linear(x, flat.t(), None if bias is None else bias.reshape(-1))
    return y.reshape(*x.shape[:-1], *kernel.shape[1:])


ACTIVATIONS = {"silu": F.silu, "gelu": lambda x: F.gelu(x, approximate="tanh"), "gelu_exact": F.gelu, "relu": F.relu,
               "sigmoid": torch.sigmoid, "linear": lambda x: x}


def gate_and_up(c: Call, routed: bool, dense_layer: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """h of a and b. Shared experts have no clamps; a dense layer has an activation of b besides."""
    s, plain = c.s, c.options.form == "plain"
    names, limit = s.words("mlp_activations"), s.number("mlp_activations_limit")
    s.need(all(name in ACTIVATIONS for name in names), f"no activation {names}")
    gate, up = ACTIVATIONS[names[0]], ACTIVATIONS[names[1] if dense_layer else "linear"]

    def h(a: Tensor, b: Tensor) -> Tensor:
        return factors(a, b) if plain else factors(a.to(c.wide), b.to(c.wide)).to(a.dtype)

    def factors(a: Tensor, b: Tensor) -> Tensor:
        if limit > 0 and (routed or dense_layer):
            a, b = a.clamp(max=limit), b.clamp(-limit, limit)
        if s["decoder_block"] == "gpt_oss" and (routed or dense_layer):
            return a * torch.sigmoid(1.702 * a) * (b + 1)
        return gate(a) * up(b)

    return h


def swiglu(x: Tensor, wi_0: Tensor, wi_1: Tensor, wo: Tensor) -> Tensor:
    return torch.matmul(F.silu(torch.matmul(x, wi_0)) * torch.matmul(x, wi_1), wo)


def is_swiglu(s: Settings) -> bool:
    return s.words("mlp_activations") == ["silu", "linear"] and s.number("mlp_activations_limit") == 0


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For all shapes at once. Compiled anew for each case: which program PyTorch takes for a shape depends on the shapes before it."""
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(function, dynamic=True)


def halves(w: Tensors, end: str) -> list[Tensor | None]:
    """Gate and up, whether they are apart or in one."""
    if "wi" + end in w:
        return list(w["wi" + end].chunk(2, -1))
    return [w.get("wi_0" + end), w.get("wi_1" + end)]


def gated_mlp(c: Call, w: Tensors, x: Tensor, shared: bool = False) -> Tensor:
    (wi_0, wi_1), (b_0, b_1) = halves(w, "/kernel"), halves(w, "/bias")
    if c.options.compile and is_swiglu(c.s) and b_0 is None:
        return compiled(swiglu)(x, wi_0, wi_1, w["wo/kernel"])
    h = gate_and_up(c, False, not shared)
    return dense(h(dense(x, wi_0, b_0), dense(x, wi_1, b_1)), w["wo/kernel"], w.get("wo/bias"))


# ---- grouped product, permutation ----


def ends_of(sizes: list[int]) -> Tensor:
    return torch.tensor(sizes).cumsum(0).int()


def run_gmm(c: Call) -> Tensors:
    s, t = c.s, c.t
    places, sizes = rows_of_groups(s, {path: np.asarray(value) for path, value in c.raw.items()})
    places = torch.from_numpy(places).to(c.options.device)
    lhs = t["inputs/lhs"].reshape(-1, t["inputs/lhs"].shape[-1])[places]
    if s["gmm_layout"] == "k_grouped":
        rhs = t["inputs/rhs"][places]
        if c.options.form == "grouped":
            y = F.grouped_mm(lhs.t(), rhs, offs=ends_of(sizes))
        else:
            y = torch.stack([torch.matmul(a.t(), b) for a, b in zip(lhs.split(sizes), rhs.split(sizes))])
        return {"outputs/y": y + t["inputs/c"] if "inputs/c" in t else y}
    if c.options.form == "grouped":
        rows = F.grouped_mm(lhs, t["weights/rhs"], offs=ends_of(sizes))
    else:
        rows = torch.cat([torch.matmul(a, w) for a, w in zip(lhs.split(sizes), t["weights/rhs"])])
    shape = (*t["inputs/lhs"].shape[:-1], rows.shape[-1])
    y = rows.new_zeros(math.prod(shape[:-1]), shape[-1])
    return {"outputs/y": y.index_copy(0, places, rows).reshape(shape)}


def run_scaled_gmm(c: Call) -> Tensors:
    """By F.scaled_mm, which has scales of rows and of columns on the processor: a block has to be as long as the rows, or longer."""
    formats = {"inputs/lhs": "fp8_e4m3_1x128", "weights/rhs": "fp8_e4m3_128x128"}
    c.s.need(re.findall(r"([\w/]+): (\w+)", c.s.text["quant_formats"]) == list(formats.items()), "scaled_mm: formats " + c.s.text["quant_formats"])
    lhs, rhs = (torch.from_numpy(c.raw[path]).view(torch.float8_e4m3fn) for path in formats)
    of_rows, of_columns = (torch.from_numpy(c.raw[path + "_scale"]) for path in formats)
    c.s.need(of_rows.shape[1] == 1 and of_columns.shape[2] == 1, "scaled_mm: scales of rows and columns alone")
    places, sizes = rows_of_groups(c.s, c.raw)
    y = torch.zeros(len(lhs), rhs.shape[-1], dtype=c.dtype)
    for e, rows in enumerate(torch.from_numpy(places).split(sizes)):
        y[rows] = F.scaled_mm(lhs[rows], rhs[e].t().contiguous().t(), of_rows[rows], ScalingType.RowWise,
                              of_columns[e].expand(1, y.shape[1]).contiguous(), ScalingType.RowWise, output_dtype=c.dtype)
    return {"outputs/y": y}


def spread(c: Call, x: Tensor, ids: Tensor, order: Tensor) -> Tensor:
    """x's copies, sorted: [T*K, D]. Autograd adds the copies' gradients in x's type where it gathers, wide where it expands."""
    k = ids.shape[-1]
    if c.options.form == "plain":
        return x[order // k]
    return x[:, None].expand(-1, k, -1).reshape(-1, x.shape[-1])[order]


def combine(c: Call, rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of each token's rows, which come sorted."""
    tokens, k = weights.shape
    if c.options.form == "plain":
        weighted = rows * weights.reshape(-1)[order][:, None].to(rows.dtype)
        return torch.zeros(tokens, rows.shape[-1], dtype=rows.dtype, device=rows.device).index_add(0, order // k, weighted)
    copies = rows[torch.argsort(order)].reshape(tokens, k, -1)
    return (copies.to(c.wide) * weights[..., None].to(c.wide)).sum(1).to(rows.dtype)


def run_permute(c: Call) -> Tensors:
    ids = c.t["inputs/selected_experts"]
    c.s.need(bool((ids >= 0).all()), "no slots of -1")
    order = torch.argsort(ids.reshape(-1), stable=True)
    return {"outputs/sorted_inputs": spread(c, c.t["inputs/x"], ids, order), "outputs/sorted_selected_experts": order,
            "outputs/group_sizes": c.counts(ids)}


def run_unpermute(c: Call) -> Tensors:
    order = c.t["inputs/sorted_selected_experts"]
    c.s.need(bool((order >= 0).all()), "no slots of -1")
    return {"outputs/y": combine(c, c.t["inputs/sorted"], order, c.t["inputs/weights"])}


# ---- routing ----


def best(c: Call, values: Tensor, k: int) -> Tensor:
    """topk takes any of equal values, a stable sort the first."""
    if c.options.form == "plain":
        return values.topk(k, -1).indices
    return values.sort(stable=True, dim=-1, descending=True).indices[..., :k]


def sqrtsoftplus(x: Tensor) -> Tensor:
    """exp(x / 2) far below 0: there softplus is 0 in float32, and the gradient of its root is NaN."""
    far = x < -40
    return torch.where(far, torch.exp(x.clamp(max=0) / 2), torch.sqrt(F.softplus(x.masked_fill(far, 0))))


class Router:
    """Choice, weights and losses from [T, E] logits."""

    def __init__(self, c: Call, logits: Tensor, bias: Tensor | None, batch: int):
        s, self.family, self.experts = c.s, family_of(c.s), logits.shape[-1]
        self.batch, self.k = batch, s.count("num_experts_per_tok")
        fused, deepseek = self.family == "fused", self.family not in ("default", "fused")
        score = s["routed_score_func"] or ("softmax" if fused else "")
        if fused and bias is not None:
            logits, bias = logits + bias, None
        functions = {"sigmoid": torch.sigmoid, "softmax": lambda x: torch.softmax(x, -1),
                     "sqrtsoftplus": sqrtsoftplus}
        scores = functions.get(score, lambda x: x)(logits)
        self.biased = scores if bias is None else scores + bias
        allowed = self.of_groups(c, bias) if deepseek and s.count("n_routing_groups") > 0 else self.biased
        self.chosen = best(c, allowed, self.k)
        gathered = (scores if self.family == "deepseek3" else self.biased).gather(-1, self.chosen)
        self.weights = gathered if deepseek or fused else torch.softmax(gathered, -1)
        divides = score in ("sigmoid", "sqrtsoftplus") if deepseek else fused or s.true("norm_topk_prob")
        if divides:
            self.weights = self.weights / (self.weights.sum(-1, keepdim=True) + (1e-20 if deepseek else 0))
        self.weights = self.weights * (s.number("routed_scaling_factor") if deepseek else 1)
        linear = score == "" and self.family != "deepseek3"  # the logits' own bias, which the z-loss has too
        self.outputs = self.balance(c, self.biased if linear else logits)

    def of_groups(self, c: Call, bias: Tensor | None) -> Tensor:
        """-inf for the experts of groups that are not kept."""
        s = c.s
        grouped = self.biased.reshape(len(self.biased), s.count("n_routing_groups"), -1)
        top2 = s["group_score"] == "top2_sum" or (s["group_score"] == "" and bias is not None)
        score = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1) if top2 else grouped.amax(-1)
        kept = best(c, score, s.count("topk_routing_group"))
        mask = torch.ones_like(score, dtype=torch.bool).scatter(-1, kept, False)
        return grouped.masked_fill(mask[..., None], -math.inf).reshape(self.biased.shape)

    def balance(self, c: Call, logits: Tensor) -> Tensors:
        s, tokens, made = c.s, len(self.chosen), {}
        if s.number("routed_bias_update_rate") > 0:
            made["bias_updates"] = s.number("routed_bias_update_rate") * torch.sign(
                tokens * self.k - c.counts(self.chosen) * self.experts).to(c.wide)
        if s.number("load_balance_loss_weight") > 0:
            s.need(s["load_balance_loss_scope"] == "sequence", "no balance loss but over sequences")
            s.need(s.text.get("load_balance_loss_pre_bias", "false") == "false", "the balance loss has the bias in it")
            p = torch.softmax(self.biased, -1).reshape(self.batch, -1, self.experts)
            chosen = F.one_hot(self.chosen, self.experts).sum(1).reshape(p.shape).to(c.wide)
            made["lb_loss"] = (chosen.mean(1) * p.mean(1)).mean() * self.experts**2 * s.number("load_balance_loss_weight")
        if s.number("router_z_loss_weight") > 0:
            made["z_loss"] = s.number("router_z_loss_weight") * torch.logsumexp(logits, -1).pow(2).mean()
        return made


def refuse_forms(c: Call) -> None:
    """What blocks with a router may have, and this backend has not."""
    s = c.s
    for key, only in (("routing_method", ""), ("apply_router_weight_on_input", "false"), ("weights_on_shards", "false"),
                      ("apply_routed_scaling_factor_on_output", "true"), ("use_random_routing", "false")):
        s.need(s[key] == only, f"no {key}")
    for key, most in (("local_num_experts", 0), ("num_fused_shared_experts", 0), ("num_redundant_experts", 0), ("norm_topk_epsilon", 0),
                      ("ragged_buffer_factor", 0), ("capacity_factor", 0)):
        s.need(s.number(key) <= most, f"no {key}")
    for path in c.t:
        s.need(not path.endswith(("/selected_experts", "/routing_weights", "/expert_map")), "no given choice")


def run_routing(c: Call) -> Tensors:
    refuse_forms(c)
    kernel, bias = c.t.get("weights/gate/kernel"), c.t.get("weights/gate/bias")
    given = c.t["inputs/logits" if kernel is None else "inputs/x"]
    flat = given.reshape(-1, given.shape[-1])
    router = Router(c, flat if kernel is None else F.linear(flat.to(c.wide), kernel.t()), bias, len(given))
    shape = (*given.shape[:2], -1)
    return {"outputs/weights": router.weights.reshape(shape), "routing/selected_experts": router.chosen.reshape(shape),
            **{"outputs/" + name: value for name, value in router.outputs.items()}}


def experts_sorted(c: Call, w: Tensors, x: Tensor, router: Router) -> Tensor:
    """Copies sorted by expert, three products for each expert that has some, the weighted sum."""
    order = torch.argsort(router.chosen.reshape(-1), stable=True)
    (wi_0, wi_1), (b_0, b_1) = halves(w, ""), halves(w, "_bias")
    h, b_o = gate_and_up(c, True, False), w.get("wo_bias")
    made, rows, sizes = [], spread(c, x, router.chosen, order), c.counts(router.chosen).tolist()
    if c.options.form == "grouped":
        ends, of = ends_of(sizes), torch.repeat_interleave(torch.tensor(sizes))

        def product(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
            y = F.grouped_mm(x, kernel, offs=ends)
            return y if bias is None else y + bias[of]

        return combine(c, product(h(product(rows, wi_0, b_0), product(rows, wi_1, b_1)), w["wo"], b_o), order, router.weights)
    for e, rows in enumerate(rows.split(sizes)):
        own = [None if bias is None else bias[e] for bias in (b_0, b_1, b_o)]
        made.append(dense(h(dense(rows, wi_0[e], own[0]), dense(rows, wi_1[e], own[1])), w["wo"][e], own[2]))
    return combine(c, torch.cat(made), order, router.weights)


def experts_dense(c: Call, w: Tensors, x: Tensor, router: Router) -> Tensor:
    """Every expert on every token: batched products."""
    (wi_0, wi_1), (b_0, b_1) = halves(w, ""), halves(w, "_bias")
    every = x.expand(len(w["wo"]), *x.shape)

    def product(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        return torch.bmm(x, kernel) if bias is None else torch.baddbmm(bias[:, None], x, kernel)

    out = product(gate_and_up(c, True, False)(product(every, wi_0, b_0), product(every, wi_1, b_1)), w["wo"], w.get("wo_bias"))
    weights = torch.zeros_like(router.biased).scatter_add(1, router.chosen, router.weights)
    return torch.einsum("etd,te->td", out.to(c.wide), weights).to(x.dtype)


def moe(c: Call, prefix: str, x: Tensor) -> tuple[Tensor, Router]:
    refuse_forms(c)
    w, flat = c.under(prefix), x.reshape(-1, x.shape[-1])
    c.s.need("gate/kernel" in w, "no block without a router")
    router = Router(c, F.linear(flat.to(c.wide), w["gate/kernel"].t()), w.get("gate/bias"), len(x))
    y = (experts_sorted if c.s.true("sparse_matmul") else experts_dense)(c, w, flat, router)
    shared = {name[len("shared_experts/"):]: value for name, value in w.items() if name.startswith("shared_experts/")}
    if shared:
        of_shared = gated_mlp(c, shared, flat, shared=True)
        if "shared_expert_gate/kernel" in w:
            of_shared = torch.sigmoid(F.linear(flat, w["shared_expert_gate/kernel"].t())) * of_shared
        y = y + of_shared
    return y.reshape(x.shape), router


def routed(router: Router, shape: torch.Size, results: str = "") -> Tensors:
    made = {f"outputs/{results}{name}": value for name, value in router.outputs.items()}
    return {**made, f"routing/{results}selected_experts": router.chosen.reshape(*shape[:2], -1)}


# ---- rotation, attention ----


def rope(c: Call, x: Tensor) -> Tensor:
    """Neighbours as complex numbers, as DeepSeek's own code does it; halves as two tensors, as Hugging Face's."""
    s, factor = c.s, c.s.number("rope_factor")
    angle = c.t["inputs/positions"].to(c.wide)[..., None] * torch.from_numpy(frequencies(s, x.shape[-1])).to(x.device, c.wide)
    angle = angle[:, :, None]
    size = 0.1 * math.log(factor) + 1 if s["rope_type"] == "yarn" and s.true("rope_attention_scaling") and factor > 1 else 1.0
    if s.true("rope_interleave"):
        turned = torch.view_as_complex(x.to(c.wide).unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(turned * torch.polar(torch.full_like(angle, size), angle))
        return (turned if s.true("rope_pairwise") else turned.transpose(-1, -2)).flatten(-2).to(x.dtype)
    (a, b), cos, sin = x.to(c.wide).chunk(2, -1), angle.cos() * size, angle.sin() * size
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, empty: Tensor) -> Tensor:
    scores = torch.matmul(query, key.transpose(-1, -2)).masked_fill(~seen, -float("inf")).masked_fill(empty, 0.0)
    return torch.matmul(torch.softmax(scores, -1).masked_fill(empty, 0.0), value)


def sdpa(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch chooses the kernel. It gives no log-sum-exp."""
    out = F.scaled_dot_product_attention(query, key, value, seen, scale=1.0, enable_gqa=query.shape[1] != key.shape[1])
    return out, query.new_zeros(0)


def flex(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, cap: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The mask is a score_mod, as those of documents are where no whole block can be left out."""
    seen = seen.expand(len(query), 1, *seen.shape[2:])[:, 0]

    def masked(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(seen[b, i, j], cap(score), -math.inf)

    out, aux = flex_attention(query, key, value, masked, scale=1.0, enable_gqa=query.shape[1] != key.shape[1],
                              return_aux=AuxRequest(lse=True))
    return out, aux.lse


def attention(c: Call, query: Tensor, key: Tensor, value: Tensor, window: int = 0, sinks: Tensor | None = None
              ) -> tuple[Tensor, Tensor]:
    """[B, S, N, .], of key and value [B, S, Nkv, .] -> out and lse [B, N, S]. A row that sees nothing has to be kept from
    softmax, which makes NaN of it; and so has padding, which may hold NaN, here and in the gradient."""
    length, copies, ids = query.shape[1], query.shape[2] // key.shape[2], c.t.get("inputs/segment_ids")
    seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    if window > 0:
        seen = seen & ~torch.ones_like(seen).tril(-window)
    seen, empty = seen[None, None], torch.zeros(1, 1, length, 1, dtype=torch.bool, device=query.device)
    if ids is not None:
        seen = seen & (ids[:, None, :, None] == ids[:, None, None, :])
        if c.s.true("mask_padding"):
            empty = (ids == 0)[:, None, :, None]
    query, key, value = (x.transpose(1, 2).masked_fill(empty, 0) for x in (query, key, value))
    if c.options.form in ("sdpa", "flex"):
        c.s.need(sinks is None, "no sinks in " + c.options.form)
        c.s.need(cap_of(c) == 0 or c.options.form == "flex", "no cap in sdpa")
        out, lse = sdpa(query, key, value, seen | empty) if c.options.form == "sdpa" else flex(query, key, value, seen | empty, partial(capped, c))
        return out.masked_fill(empty, 0).transpose(1, 2), lse.masked_fill(empty[..., 0], -math.inf) if len(lse) else lse
    key, value = (x[:, :, None].expand(-1, -1, copies, -1, -1).flatten(1, 2) for x in (key, value))
    if c.options.compile and sinks is None and cap_of(c) == 0:
        out = compiled(masked_attention)(query, key, value, seen, empty).masked_fill(empty, 0)
        return out.transpose(1, 2), query.new_zeros(0)
    scores = torch.matmul(query, key.transpose(-1, -2))
    scores = capped(c, scores if c.options.form == "plain" else scores.to(c.wide)).masked_fill(~seen, -math.inf).masked_fill(empty, 0)
    lse = torch.logsumexp(scores.to(c.wide), -1).masked_fill(empty[..., 0], -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)], -1)
    p = torch.softmax(scores, -1)[..., :length].masked_fill(empty, 0).to(query.dtype)
    return torch.matmul(p, value).masked_fill(empty, 0).transpose(1, 2), lse


def run_attention(c: Call) -> Tensors:
    out, lse = attention(c, *(c.t["inputs/" + n] for n in ("query", "key", "value")), window_of(c.s), c.t.get("weights/sinks"))
    return {"outputs/attention_out": out, "outputs/lse": lse} if len(lse) else {"outputs/attention_out": out}


def mla(c: Call, prefix: str, x: Tensor) -> Tensor:
    s, w = c.s, c.under(prefix)
    rank, nope = w["kv_norm/scale"].shape[0], s.count("qk_nope_head_dim")
    epsilon = "latent_norm_epsilon"
    q = dense(rms_norm(c, dense(x, w["wq_a/kernel"]), w["q_norm/scale"], epsilon), w["wq_b/kernel"]) if (
        "wq_a/kernel" in w) else dense(x, w["query/kernel"])
    kv_a = dense(x, w["wkv_a/kernel"])
    kv = dense(rms_norm(c, kv_a[..., :rank], w["kv_norm/scale"], epsilon), w["wkv_b/kernel"])
    k_pe = rope(c, kv_a[:, :, None, rank:]).expand(-1, -1, kv.shape[2], -1)
    m = 0.1 * s.number("mscale") * math.log(s.number("rope_factor")) + 1
    stretched = s.number("max_position_embeddings") > s.number("original_max_position_embeddings")
    query = torch.cat([q[..., :nope], rope(c, q[..., nope:])], -1) * (q.shape[-1] ** -0.5 * (m * m if stretched else 1))
    out, _ = attention(c, query, torch.cat([kv[..., :nope], k_pe], -1), kv[..., nope:])
    return dense(out.flatten(-2), w["out/kernel"].flatten(0, 1))


def gqa(c: Call, prefix: str, x: Tensor) -> Tensor:
    w, heads = c.under(prefix), c.s.count("base_num_query_heads")
    if "qkv_proj/kernel" in w:
        made = dense(x, w["qkv_proj/kernel"], w.get("qkv_proj/bias"))
        shared = (made.shape[2] - heads) // 2
        query, key, value = made.split([heads, shared, shared], 2)
    else:
        query, key, value = (dense(x, w[n + "/kernel"], w.get(n + "/bias")) for n in ("query", "key", "value"))
    if "query_norm/scale" in w:
        query, key = rms_norm(c, query, w["query_norm/scale"]), rms_norm(c, key, w["key_norm/scale"])
    query = rope(c, query) * c.s.number("query_pre_attn_scalar")
    out, _ = attention(c, query, rope(c, key), value, window_of(c.s), w.get("sinks"))
    return dense(out.flatten(-2), w["out/kernel"].flatten(0, 1), w.get("out/bias"))


# ---- layers ----


def layer(c: Call, results: str, x: Tensor) -> tuple[Tensor, Tensors]:
    """results: "layers/3/", or "" for a layer alone."""
    prefix, made = "weights/" + results, {}
    attend = mla if prefix + "self_attention/wkv_a/kernel" in c.t else gqa
    h = x + attend(c, prefix + "self_attention/", rms_norm(c, x, c.t[prefix + "pre_self_attention_layer_norm/scale"]))
    n = rms_norm(c, h, c.t[prefix + "post_self_attention_layer_norm/scale"])
    if prefix + "mlp/wo/kernel" in c.t:
        y = gated_mlp(c, c.under(prefix + "mlp/"), n)
    else:
        y, router = moe(c, prefix + "moe/", n)
        made = routed(router, x.shape, results)
    return h + y, made


def run_stack(c: Call) -> Tensors:
    c.s.need(not c.s.true("use_batch_split_schedule"), "no batch-split schedule")
    c.s.need(c.s["decoder_block"] != "gpt_oss" or c.s.number("sliding_window_size") == 0, "no windows in every other layer")
    numbers = {int(path.split("/")[2]) for path in c.t if path.startswith("weights/layers/")}
    y, made = c.t["inputs/x"], {}
    for results in [f"layers/{i}/" for i in sorted(numbers)] or [""]:
        y, beside = layer(c, results, y)
        made.update(beside)
    return {"outputs/y": y, **made}


def run_moe(c: Call) -> Tensors:
    y, router = moe(c, "weights/", c.t["inputs/x"])
    return {"outputs/y": y, **routed(router, y.shape)}


OPERATIONS: dict[str, Callable[[Call], Tensors]] = {
    "rms_norm": lambda c: {"outputs/y": rms_norm(c, c.t["inputs/x"], c.t["weights/scale"])},
    "layer_norm": lambda c: {"outputs/y": F.layer_norm(c.t["inputs/x"], c.t["weights/scale"].shape, c.t["weights/scale"], c.t["weights/bias"],
                                                       c.s.number("normalization_layer_epsilon"))},
    "mlp": lambda c: {"outputs/y": gated_mlp(c, c.under("weights/"), c.t["inputs/x"])},
    "yarn_rope": lambda c: {"outputs/y": rope(c, c.t["inputs/x"])},
    "mla": lambda c: {"outputs/y": mla(c, "weights/", c.t["inputs/x"])},
    "gqa": lambda c: {"outputs/y": gqa(c, "weights/", c.t["inputs/x"])},
    "gmm": run_gmm, "permute": run_permute, "unpermute": run_unpermute, "routing": run_routing, "moe": run_moe,
    "attention": run_attention, "merge_states": run_merge_states, "mla_decode": run_mla_decode, "gqa_decode": run_gqa_decode,
    "cache_append": run_cache_append, "deepseek_layer": run_stack, "deepseek_stack": run_stack, "decoder_layer": run_stack,
    "decoder_stack": run_stack}


# an operator that PyTorch does not have in this type; grouped_mm with an odd width, which it does not have either
REFUSALS = ("not implemented for", "strides should be multiple of 16 bytes")


def run(request: Request, dtype: torch.dtype, options: argparse.Namespace) -> Tensors:
    """The results that the request expects, and the choice of experts."""
    s = request.settings
    if request.op == "quantize" and options.form == "torchao":
        return run_quantize(request)
    s.need(request.op in OPERATIONS, "no " + request.op)
    s.need_no_mesh()
    scaled = options.form == "scaled" and request.op == "gmm" and "quant_formats" in s.text
    s.need((scaled or "quant_formats" not in s.text) and not s.text.get("quant_recipe"), "no quantised operands")
    s.need(not s.text.get("quant_hidden_format"), "no requantised h")
    s.need(s.count("w13_reorder_size") == 1, "no fused weights laid out for tensor shards")
    c = Call(request, dtype, options)
    try:
        return with_gradients(run_scaled_gmm(c) if scaled else OPERATIONS[request.op](c), c.t, request.expects)
    except RuntimeError as error:
        if isinstance(error, NotImplementedError) or any(words in str(error) for words in REFUSALS):
            raise Unsupported(str(error).splitlines()[0]) from error
        raise
