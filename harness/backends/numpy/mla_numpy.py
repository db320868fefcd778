#!/usr/bin/env python3
"""A backend as a command: rotary embedding, attention, MLA, the DeepSeek layer and stacks of it, in numpy float32.

    assay run 'mla/*' --set dtype=float32 --set profiles=f32 --backend 'python3 mla_numpy.py {request} {candidate}'

Forward and backward written out: each function gives its results and a function from their gradients to those of what it
was given. Whole score matrices, for clarity. Needs h5py and numpy, and the MoE block of moe_numpy.py beside it.
"""
import sys

import numpy as np

from moe_numpy import FLOAT, has, mlp, moe, run, unsupported


def number(s, key):
    return float(s[key].replace("_", ""))


def linear(x, w):
    """x [..., n] times w [n, ...]; backward gives dx and dw."""
    flat_x, flat_w = x.reshape(-1, w.shape[0]), w.reshape(w.shape[0], -1)

    def back(dy):
        dy = dy.reshape(len(flat_x), -1)
        return (dy @ flat_w.T).reshape(x.shape), (flat_x.T @ dy).reshape(w.shape)

    return (flat_x @ flat_w).reshape(x.shape[:-1] + w.shape[1:]), back


def rms_norm(x, scale, epsilon):
    r = FLOAT(1) / np.sqrt((x * x).mean(-1, keepdims=True) + FLOAT(epsilon))

    def back(dy):
        g = dy * scale
        dx = r * (g - x * r * r * (g * x).mean(-1, keepdims=True))
        return dx, (dy * x * r).reshape(-1, x.shape[-1]).sum(0)

    return x * r * scale, back


def frequencies(s, dim):
    """In float64; rope_type yarn stretches the slow ones by rope_factor."""
    theta, pair = number(s, "rope_max_timescale"), np.arange(dim // 2)
    base = theta ** (-2.0 * pair / dim)
    if s["rope_type"] != "yarn":
        return base

    def corner(turns):
        return dim * np.log(number(s, "original_max_position_embeddings") / (turns * 2 * np.pi)) / (2 * np.log(theta))

    low, high = corner(number(s, "beta_fast")), corner(number(s, "beta_slow"))
    if s["rope_truncate"] == "true":
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((pair - low) / (0.001 if low == high else high - low), 0, 1)
    return base / number(s, "rope_factor") * ramp + base * (1 - ramp)


def rope(s, positions, x):
    """x [B, S, N, Dr], positions [B, S]."""
    half = x.shape[-1] // 2
    angle = (positions[..., None] * frequencies(s, x.shape[-1]))[:, :, None, :]
    factor = number(s, "rope_factor")
    size = 0.1 * np.log(factor) + 1 if s["rope_attention_scaling"] == "true" and factor > 1 else 1
    cos, sin = (np.cos(angle) * size).astype(FLOAT), (np.sin(angle) * size).astype(FLOAT)
    neighbours, halves = (slice(0, None, 2), slice(1, None, 2)), (slice(0, half), slice(half, None))
    given = neighbours if s["rope_interleave"] == "true" else halves
    made = neighbours if s["rope_pairwise"] == "true" else halves

    def turn(x, sin, given, made):
        y = np.empty_like(x)
        a, b = x[..., given[0]], x[..., given[1]]
        y[..., made[0]], y[..., made[1]] = a * cos - b * sin, a * sin + b * cos
        return y

    return turn(x, sin, given, made), lambda dy: turn(dy, -sin, made, given)


def attention(s, query, key, value, segment_ids):
    """[B, S, N, .] -> out and lse [B, N, S]."""
    length = query.shape[1]
    seen = np.tril(np.ones((length, length), bool))[None]
    blind = np.zeros(query.shape[:2], bool)
    if segment_ids is not None:
        seen = seen & (segment_ids[:, :, None] == segment_ids[:, None, :])
        if s["mask_padding"] == "true":
            blind = segment_ids == 0
            seen = seen & ~blind[:, :, None]
    blind, seen = blind[:, :, None, None], seen[:, None]
    query, key, value = (np.where(blind, FLOAT(0), x) for x in (query, key, value))  # padding may hold NaN
    scores = np.where(seen, np.einsum("bind,bjnd->bnij", query, key), -np.inf).astype(FLOAT)
    largest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(largest), FLOAT(0), largest))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, FLOAT(1), total)
    out = np.einsum("bnij,bjnd->bind", p, value)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[..., 0]

    def back(d_out, d_lse=None):
        d_out = np.where(blind, FLOAT(0), d_out)
        through = np.einsum("bind,bind->bni", d_out, out)
        if d_lse is not None:
            through = through - d_lse
        ds = p * (np.einsum("bind,bjnd->bnij", d_out, value) - through[..., None])
        return (np.einsum("bnij,bjnd->bind", ds, key), np.einsum("bnij,bind->bjnd", ds, query),
                np.einsum("bnij,bind->bjnd", p, d_out))

    return out, lse, back


def softmax_scale(s, dim):
    m = 0.1 * number(s, "mscale") * np.log(number(s, "rope_factor")) + 1
    stretched = number(s, "max_position_embeddings") > number(s, "original_max_position_embeddings")
    return FLOAT(dim**-0.5 * (m * m if stretched else 1))


def mla(s, t, prefix, x):
    """t holds the weights under `prefix`; backward gives dx and the gradients by their paths."""
    w = {name[len(prefix):]: value for name, value in t.items() if name.startswith(prefix)}
    rank, rotated, epsilon = w["kv_norm/scale"].shape[0], int(s["qk_rope_head_dim"]), number(s, "normalization_layer_epsilon")
    nope, positions = int(s["qk_nope_head_dim"]), t["inputs/positions"]
    scale = softmax_scale(s, nope + rotated)
    if compressed := "wq_a/kernel" in w:
        q_a, back_q_a = linear(x, w["wq_a/kernel"])
        q_n, back_q_n = rms_norm(q_a, w["q_norm/scale"], epsilon)
        q, back_q = linear(q_n, w["wq_b/kernel"])
    else:
        q, back_q = linear(x, w["query/kernel"])
    q_pe, back_q_pe = rope(s, positions, q[..., nope:])
    query = np.concatenate([q[..., :nope], q_pe], -1) * scale
    kv_a, back_kv_a = linear(x, w["wkv_a/kernel"])
    c_kv, back_c_kv = rms_norm(kv_a[..., :rank], w["kv_norm/scale"], epsilon)
    kv, back_kv = linear(c_kv, w["wkv_b/kernel"])
    k_pe, back_k_pe = rope(s, positions, kv_a[:, :, None, rank:])
    heads = kv.shape[2]
    key = np.concatenate([kv[..., :nope], np.repeat(k_pe, heads, 2)], -1)
    out, _, back_attention = attention(s, query, key, kv[..., nope:], t.get("inputs/segment_ids"))
    flat = out.reshape(*x.shape[:2], -1)
    y, back_out = linear(flat, w["out/kernel"].reshape(flat.shape[-1], -1))

    def back(dy):
        g = {}
        d_flat, g["out/kernel"] = back_out(dy)
        d_query, d_key, d_value = back_attention(d_flat.reshape(out.shape))
        dq = np.concatenate([d_query[..., :nope], back_q_pe(d_query[..., nope:])], -1) * scale
        if compressed:
            d_q_n, g["wq_b/kernel"] = back_q(dq)
            d_q_a, g["q_norm/scale"] = back_q_n(d_q_n)
            dx, g["wq_a/kernel"] = back_q_a(d_q_a)
        else:
            dx, g["query/kernel"] = back_q(dq)
        d_c_kv, g["wkv_b/kernel"] = back_kv(np.concatenate([d_key[..., :nope], d_value], -1))
        d_latent, g["kv_norm/scale"] = back_c_kv(d_c_kv)
        d_k_pe = back_k_pe(d_key[..., nope:].sum(2, keepdims=True))[:, :, 0]
        dx_kv, g["wkv_a/kernel"] = back_kv_a(np.concatenate([d_latent, d_k_pe], -1))
        g["out/kernel"] = g["out/kernel"].reshape(w["out/kernel"].shape)
        return dx + dx_kv, {"gradients/" + prefix + name: d for name, d in g.items()}

    return y, back


def block(s, t, prefix, results, x):
    """The layer's second block: a gated MLP or a MoE block. Backward computes it once more."""
    shape = x.shape
    if prefix + "mlp/wo/kernel" in t:
        names = [prefix + "mlp/" + n for n in ("wi_0/kernel", "wi_1/kernel", "wo/kernel")]
        fused = prefix + "mlp/wi/kernel" in t
        halves = np.split(t[prefix + "mlp/wi/kernel"], 2, -1) if fused else [t[n] for n in names[:2]]
        flat = x.reshape(-1, shape[-1])

        def dense(dy):
            y, dx, d0, d1, do = mlp(flat, *halves, t[names[2]], lambda _: dy.reshape(flat.shape))
            g = {"gradients/" + names[2]: do, "gradients/" + names[0]: d0, "gradients/" + names[1]: d1}
            if fused:
                g["gradients/" + prefix + "mlp/wi/kernel"] = np.concatenate([d0, d1], -1)
            return y.reshape(shape), dx.reshape(shape), g

        return dense(np.zeros_like(x))[0], lambda dy: dense(dy)[1:]

    own = {"weights/" + n[len(prefix) + 4:]: v for n, v in t.items() if n.startswith(prefix + "moe/")}

    def experts(dy):
        r = moe(s, {"inputs/x": x, "cotangents/y": dy, **own})
        g = {"gradients/" + prefix + "moe/" + n[len("gradients/weights/"):]: v
             for n, v in r.items() if n.startswith("gradients/weights/")}
        g["routing/" + results + "selected_experts"] = r["routing/selected_experts"]
        return r["outputs/y"], r["gradients/inputs/x"], g

    return experts(np.zeros_like(x))[0], lambda dy: experts(dy)[1:]


def layer(s, t, results, x):
    """results: "layers/3/", or "" for a layer alone."""
    prefix, epsilon = "weights/" + results, number(s, "normalization_layer_epsilon")
    pre, post = (prefix + n + "_self_attention_layer_norm/scale" for n in ("pre", "post"))
    x_n, back_pre = rms_norm(x, t[pre], epsilon)
    y, back_mla = mla(s, t, prefix + "self_attention/", x_n)
    h = x + y
    h_n, back_post = rms_norm(h, t[post], epsilon)
    y, back_block = block(s, t, prefix, results, h_n)

    def back(dy):
        d, g = back_block(dy)
        dh, g["gradients/" + post] = back_post(d)
        dh = dh + dy
        d, of_mla = back_mla(dh)
        dx, g["gradients/" + pre] = back_pre(d)
        return dx + dh, {**g, **of_mla}

    return h + y, back


def run_rope(s, t):
    y, back = rope(s, t["inputs/positions"], t["inputs/x"])
    return {"outputs/y": y, "gradients/inputs/x": back(t["cotangents/y"])}


def run_attention(s, t):
    out, lse, back = attention(s, *(t["inputs/" + n] for n in ("query", "key", "value")), t.get("inputs/segment_ids"))
    r = {"outputs/attention_out": out, "outputs/lse": lse}
    gradients = back(t.get("cotangents/attention_out", np.zeros_like(out)), t.get("cotangents/lse"))
    return r | {"gradients/inputs/" + n: g for n, g in zip(("query", "key", "value"), gradients)}


def run_mla(s, t):
    y, back = mla(s, t, "weights/", t["inputs/x"])
    dx, g = back(t["cotangents/y"])
    return {"outputs/y": y, "gradients/inputs/x": dx, **g}


def run_stack(s, t):
    if any("/moe/" in n for n in t) and not has(s):
        unsupported("this block is not among those that moe_numpy.py has")
    if any(n.endswith(("wi_0/bias", "wi_1/bias")) for n in t):
        unsupported("no biases")
    numbers = {n.split("/")[2] for n in t if n.startswith("weights/layers/")}
    y, backs, results = t["inputs/x"], [], {}
    for results_of in [f"layers/{i}/" for i in range(len(numbers))] or [""]:
        y, back = layer(s, t, results_of, y)
        backs.append(back)
    d = t["cotangents/y"]
    for back in reversed(backs):
        d, g = back(d)
        results.update(g)
    return {"outputs/y": y, "gradients/inputs/x": d, **results}


if __name__ == "__main__":
    run(*sys.argv[1:], {"yarn_rope": run_rope, "attention": run_attention, "mla": run_mla,
                        "deepseek_layer": run_stack, "deepseek_stack": run_stack})
