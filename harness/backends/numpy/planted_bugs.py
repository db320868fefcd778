#!/usr/bin/env python3
"""The numpy backend with one of the errors of planted_bugs.txt, to see it caught, or with another choice that a correct kernel may make
(ascending_slots, last_tokens_first, bf16_router, other_roundings).

    assay run mla/late-positions --serve --backend 'python3 planted_bugs.py mscale_missing'
    assay check moe/small --serve --backend 'python3 planted_bugs.py gate_up_swapped --where "prefuse_moe_weights: true"'

With --where the error is made in cases alone whose YAML has something of this regular expression.
"""
import contextlib
import re
import sys
from unittest import mock

import numpy as np

import backend
import kernels_attention
import kernels_moe
import operations
from arithmetic import Arithmetic, to_bfloat16, variant
from kernels_basic import GatedMlp
from kernels_moe import Router, best

VECTOR, TILE = 8, 16


# routers

def after_init(change):
    """A router that is changed when it has chosen."""
    def wrong(right):
        def init(self, *rest):
            right(self, *rest)
            change(self)
        return init
    return [(Router, "__init__", wrong)]


def biased_weights(router):
    router.from_scores, router.total = False, None
    router.gathered = np.take_along_axis(router.biased, router.chosen, -1)
    router.weights = router.gathered * router.factor


def no_renormalisation(router):
    router.total, router.weights = None, router.gathered * router.factor


def scaling_twice(router):
    router.weights, router.factor = router.weights * router.factor, router.factor * router.factor


def bias_updates_negated(router):
    router.updates = None if router.updates is None else -router.updates


def group_fill_zero(right):
    def groups(self, s):
        allowed = right(self, s)
        return np.where(np.isinf(allowed), self.ar.float(0), allowed)
    return groups


def group_score_other(right):
    def groups(self, s):
        top2 = s["group_score"] == "top2_sum" or (s["group_score"] == "" and self.bias is not None)
        return right(self, s.changed(group_score="max" if top2 else "top2_sum"))
    return groups


def router_bias_dropped(right):
    return lambda self, ar, s, logits, bias, batch: right(self, ar, s, logits, None if bias is None else bias * 0, batch)


def router_gradient_missing(right):
    return lambda self, dw, d_loss: right(self, dw * 0, d_loss)


def ties_to_higher(_):
    return lambda scores, count: scores.shape[-1] - 1 - best(scores[:, ::-1], count)


def wrong_expert(_):
    def choose(self, allowed):
        chosen = best(allowed, self.k + 1)
        return np.append(chosen[:, : self.k - 1], chosen[:, self.k :], -1)
    return choose


def ascending_slots(right):
    return lambda self, allowed: np.sort(right(self, allowed), -1)


def last_tokens_first(right):
    return lambda chosen, e: tuple(places[::-1] for places in right(chosen, e))


def order_is_given(right):
    def routed(router, shape, results=""):
        rows = [token * router.k + k for token, k in (kernels_moe.copies_of(router.chosen, e) for e in range(router.experts))]
        return right(router, shape, results) | {f"routing/{results}sorted_selected_experts": np.concatenate(rows).astype(np.int32)}
    return routed


def bf16_logits(right):
    def init(self, ar, s, logits, *rest):
        right(self, ar, s, to_bfloat16(logits), *rest)
        self.weights = to_bfloat16(self.weights)
    return init


def bf16_scores(right):
    def score_of(self, x):
        f, derivative = right(self, x)
        return to_bfloat16(f), derivative
    return score_of


def other_roundings(right):
    def run(ar, request):
        ar.variant = variant(3)
        return right(ar, request)
    return run


# the grouped product and the gated MLP

def empty_expert_unwritten(right):
    def moe(ar, s, t, prefix, x):
        y, router, back = right(ar, s, t, prefix, x)

        def back_wrong(*given):
            dx, gradients = back(*given)
            idle = np.setdiff1d(np.arange(router.experts), router.chosen)
            for name, value in gradients.items():
                if name.split("/")[-1].startswith("w") and len(idle):
                    value[idle] = np.nan
            return dx, gradients
        return y, router, back_wrong
    return moe


def padding_in_last_group(right):
    def rows_of_groups(s, t):
        places, sizes = right(s, t)
        beyond = np.arange(len(places), t["inputs/lhs"].shape[-2])
        return np.append(places, beyond), sizes[:-1] + [sizes[-1] + len(beyond)]
    return rows_of_groups


def vector_tail_dropped(right):
    def grouped_product(ar, lhs, rhs, *rest):
        whole = np.array(lhs)
        whole[:, lhs.shape[1] // VECTOR * VECTOR :] = 0
        return right(ar, whole, rhs, *rest)[0], right(ar, lhs, rhs, *rest)[1]
    return grouped_product


def empty_group_shifts(right):
    def grouped_product(ar, lhs, rhs, sizes, *rest):
        filled = sizes[sizes > 0]
        return right(ar, lhs, rhs, np.append(filled, np.zeros(len(sizes) - len(filled), int)), *rest)
    return grouped_product


def last_tile_dropped(right):
    def init(self, *rest, **options):
        right(self, *rest, **options)
        gate = self.gate
        self.gate = lambda a: tuple(np.where(np.arange(a.shape[-1]) < a.shape[-1] // TILE * TILE, x, self.ar.float(0)) for x in gate(a))
    return init


def gate_up_swapped(right):
    def init(self, *rest, **options):
        right(self, *rest, **options)
        self.gate, self.up = self.up, self.gate
    return init


def dx_without_up(_):
    return lambda self, da, db, wi_0, wi_1: self.ar.keep(self.ar.linear(da, wi_0.T))


# attention

def setting(**text):
    """A function (ar, s, ...) that reads other settings."""
    return lambda right: lambda ar, s, *rest: right(ar, s.changed(**text), *rest)


def scale_from_hidden(right):
    return lambda ar, s, dim: right(ar, s, s.count("base_emb_dim") // s.count("base_num_query_heads"))


def rope_other_pairs(right):
    return lambda ar, s, *rest: right(ar, s.changed(rope_interleave=str(not s.true("rope_interleave")).lower()), *rest)


def rope_phase_bf16(right):
    return lambda self, f, x: right(self, f, to_bfloat16(x) if f in (np.cos, np.sin) else x)


def kv_norm_omitted(right):
    def mla(ar, s, t, prefix, x):
        def norm(ar, x, scale, epsilon, of=kernels_attention.rms_norm):
            return (x, lambda dy: (dy, np.zeros_like(scale))) if scale is t[prefix + "kv_norm/scale"] else of(ar, x, scale, epsilon)
        with mock.patch.object(kernels_attention, "rms_norm", norm):
            return right(ar, s, t, prefix, x)
    return mla


def attention_results(change):
    """Attention of which `change` makes other results: (ar, out, lse) to two of them."""
    def wrong(right):
        def attention(ar, *rest, **options):
            out, lse, back = right(ar, *rest, **options)
            return *change(ar, out, lse), back
        return attention
    return wrong


def lse_base_2(ar, out, lse):
    return out, lse / ar.float(np.log(2))


def masked_rows_nan(ar, out, lse):
    return np.where(np.isinf(np.swapaxes(lse, 1, 2))[..., None], ar.float(np.nan), out), lse


def dv_narrow_heads(right):
    def attention(ar, s, query, key, value, *rest, **options):
        out, lse, back = right(ar, s, query, key, value, *rest, **options)

        def back_wrong(*given):
            d_query, d_key, d_value, d_sinks = back(*given)
            if value.shape[-1] < query.shape[-1]:
                d_value[..., (value.shape[-1] - 1) // VECTOR * VECTOR :] = 0
            return d_query, d_key, d_value, d_sinks
        return out, lse, back_wrong
    return attention


def mask_off_by_one(_):
    return lambda length: np.tril(np.ones((length, length), bool), 1)


def last_keys_dropped(right):
    return lambda length: right(length) & (np.arange(length) < length // TILE * TILE)


def everywhere(name, wrong):
    return [(module, name, wrong) for module in (operations, kernels_attention) if hasattr(module, name)]


BUGS = {
    "biased_weights": after_init(biased_weights),
    "no_renormalisation": after_init(no_renormalisation),
    "scaling_twice": after_init(scaling_twice),
    "bias_updates_negated": after_init(bias_updates_negated),
    "group_fill_zero": [(Router, "groups", group_fill_zero)],
    "group_score_other": [(Router, "groups", group_score_other)],
    "router_bias_dropped": [(Router, "__init__", router_bias_dropped)],
    "router_gradient_missing": [(Router, "back", router_gradient_missing)],
    "ties_to_higher": [(kernels_moe, "best", ties_to_higher)],
    "wrong_expert": [(Router, "choose", wrong_expert)],
    "empty_expert_unwritten": [(operations, "moe", empty_expert_unwritten)],
    "padding_in_last_group": [(operations, "rows_of_groups", padding_in_last_group)],
    "vector_tail_dropped": [(operations, "grouped_product", vector_tail_dropped)],
    "empty_group_shifts": [(operations, "grouped_product", empty_group_shifts)],
    "last_tile_dropped": [(GatedMlp, "__init__", last_tile_dropped)],
    "gate_up_swapped": [(GatedMlp, "__init__", gate_up_swapped)],
    "dx_without_up": [(GatedMlp, "back_to_input", dx_without_up)],
    "mscale_missing": [(kernels_attention, "softmax_scale", setting(mscale="0"))],
    "scale_from_hidden": [(kernels_attention, "softmax_scale", scale_from_hidden)],
    "rope_times_mscale": everywhere("rope", setting(rope_attention_scaling="true")),
    "yarn_not_truncated": everywhere("rope", setting(rope_truncate="false")),
    "rope_other_pairs": everywhere("rope", rope_other_pairs),
    "rope_phase_bf16": [(Arithmetic, "function", rope_phase_bf16)],
    "latent_epsilon": [(operations, "mla", setting(latent_norm_epsilon="1e-5"))],
    "kv_norm_omitted": [(operations, "mla", kv_norm_omitted)],
    "lse_base_2": everywhere("attention", attention_results(lse_base_2)),
    "masked_rows_nan": everywhere("attention", attention_results(masked_rows_nan)),
    "dv_narrow_heads": everywhere("attention", dv_narrow_heads),
    "mask_off_by_one": [(kernels_attention, "causal", mask_off_by_one)],
    "last_keys_dropped": [(kernels_attention, "causal", last_keys_dropped)],
    "ascending_slots": [(Router, "choose", ascending_slots)],
    "last_tokens_first": [(kernels_moe, "copies_of", last_tokens_first), (operations, "routed", order_is_given)],
    "bf16_router": [(Router, "__init__", bf16_logits), (Router, "score_of", bf16_scores)],
    "other_roundings": [(operations, "run", other_roundings)],
}


def main():
    name, where = sys.argv.pop(1) if len(sys.argv) > 1 else "", ""
    if name not in BUGS:
        sys.exit(f"planted_bugs.py: expected one of {' '.join(BUGS)}, found {name!r}")
    if sys.argv[1:2] == ["--where"]:
        where = sys.argv.pop(2)
        sys.argv.pop(1)

    def run(ar, request):
        with contextlib.ExitStack() as stack:
            for owner, attribute, wrong in BUGS[name] if re.search(where, request.yaml) else ():
                stack.enter_context(mock.patch.object(owner, attribute, wrong(getattr(owner, attribute))))
            return operations.run(ar, request)

    backend.run = run
    backend.main()


if __name__ == "__main__":
    main()
