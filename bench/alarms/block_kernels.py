"""Kernels for the blocks of models of 2026 (cases/catalogue/program_blocks.yml), each in at least three forms that correct kernels have; nothing of the
oracle's. As in program_kernels.py `k` draws what else kernels are free in. What a block's program fuses is not stored here either."""
import numpy as np
import torch
import torch.nn.functional as F

from program_kernels import QUANTISERS, Flash, Kernel, evaluated, nearest, quantised


def seen_from(at, of):
    return at[:, None] >= of


def turned(x, positions, theta=10000.0, interleave=False, back=False):
    """x [T,..,R]."""
    half = x.shape[-1] // 2
    angle = positions.double()[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = angle.reshape(len(x), *[1] * (x.dim() - 2), half)
    c, s = angle.cos().to(x.dtype), (-angle if back else angle).sin().to(x.dtype)
    a, b = (x[..., ::2], x[..., 1::2]) if interleave else (x[..., :half], x[..., half:])
    parts = a * c - b * s, b * c + a * s
    return torch.stack(parts, -1).flatten(-2) if interleave else torch.cat(parts, -1)


def mhc(k, x, f, fn, base, scale):
    t, n, _ = x.shape
    flat = x.reshape(t, -1)
    root = k.rsqrt(k.sum(flat * flat)[:, None] / flat.shape[1] + 1e-6)
    early = k.main == "norm in front"
    m = k.product("tf,mf->tm", flat * root, fn) if early else k.product("tf,mf->tm", flat, fn) * root
    pre, post, comb = (part * s + b for part, s, b in zip(m.split([n, n, n * n], -1), scale, base.split([n, n, n * n])))
    pre, post = k.sigmoid(pre) + 1e-6, 2 * k.sigmoid(post)
    a = k.softmax(comb.reshape(t, n, n)) + 1e-6
    over = (lambda s: a * (1 / s)) if k.main == "reciprocals" else (lambda s: a / s)
    for i in range(39):
        a = over(a.sum(-1 if i % 2 else -2, keepdim=True) + 1e-6)
    if k.main == "streams in turn":
        u = sum(pre[:, j, None] * x[:, j] for j in range(n))
        return {"u": u, "y": torch.stack([sum(a[:, j, i, None] * x[:, j] for j in range(n)) + post[:, i, None] * f for i in range(n)], 1)}
    return {"u": k.product("tj,tjd->td", pre, x), "y": post[..., None] * f[:, None] + k.product("tjk,tjd->tkd", a, x)}


def mhc_head(k, x, fn, base, scale, norm):
    flat = x.reshape(len(x), -1)
    root = k.rsqrt(k.sum(flat * flat)[:, None] / flat.shape[1] + 1e-6)
    m = k.product("tf,jf->tj", flat * root, fn) if k.main == "norm in front" else k.product("tf,jf->tj", flat, fn) * root
    pre = k.sigmoid(k.step("m", m) * scale + base) + 1e-6
    u = sum(pre[:, j, None] * x[:, j] for j in range(x.shape[1])) if k.main == "streams in turn" else k.product("tj,tjd->td", k.step("pre", pre), x)
    return {"y": k.rms_norm(u, norm)}


def streams_apart(k, x, f, fn, base, scale):
    t, n, _ = x.shape
    flat = x.reshape(t, -1)
    root = k.rsqrt(k.sum(flat * flat)[:, None] / flat.shape[1] + 1e-6)
    m = k.einsum("tf,mf->tm", flat * root, fn) if k.main == "norm in front" else k.product("tf,mf->tm", flat, fn) * root  # what is normed stays in float32
    pre, post = (k.sigmoid(part * s + b) for part, s, b in zip(m.split(n, -1), scale, base.split(n)))
    pre, post = pre + 1e-6, 2 * post + 1e-6
    u = sum(pre[:, j, None] * x[:, j] for j in range(n)) if k.main == "streams in turn" else k.product("tj,tjd->td", pre, x)
    return {"u": u, "y": post[..., None] * f[:, None] + x}


def muon(k, g, momentum, w):
    b = k.step("b", torch.lerp(momentum, g, 0.05) if k.main == "lerp" else momentum * 0.95 + g * 0.05)
    u = torch.lerp(g, b, 0.95) if k.main == "lerp" else g * 0.05 + b * 0.95
    tall = g.shape[0] > g.shape[1]
    u = k.step("u", u.T if tall else u)
    x = k.step("x0", u / u.norm().clamp(min=1e-7) if k.main == "lerp" else u * (1 / torch.sqrt((u * u).sum()).clamp(min=1e-7)))
    for i in range(1, 6):
        a = k.step(f"a{i}", k.product("mn,pn->mp", x, x))
        mixed = k.step(f"b{i}", -4.775 * a + 2.0315 * k.product("mp,pq->mq", a, a))
        if k.main == "one matrix":  # (3.4445 I + b) x
            mixed = 3.4445 * torch.eye(len(a), dtype=a.dtype) + mixed
        x = k.step(f"x{i}", k.product("mp,pn->mn", mixed, x) + (0 if k.main == "one matrix" else 3.4445 * x))
    x = x.T if tall else x
    return {"buffer": b, "update": x, "weight": w * 0.998 - (0.02 * max(1, g.shape[0] / g.shape[1]) ** 0.5) * x}


def adamw(k, g, m, v, master):
    lerp = k.main == "lerp"
    m = k.step("first", torch.lerp(m, g, 0.1) if lerp else m * 0.9 + g * 0.1)
    v = k.step("second", torch.lerp(v, g * g, 0.05) if lerp else v * 0.95 + g * g * 0.05)
    of_m, of_v = 1 - 0.9**10, 1 - 0.95**10
    if k.main == "step size":
        new = master * 0.9999 - (0.001 / of_m) * (m / (v.sqrt() / of_v**0.5 + 1e-8))
    else:
        new = master * 0.9999 - 0.001 * k.step("change", (m / of_m) / ((v / of_v).sqrt() + 1e-8))
    new = k.step("new", new)
    return {"m": m, "v": v, "master": new, "weight": new.bfloat16().to(new.dtype)}


def cross_entropy_parts(k, x, head, cap):
    """Of each row the log-sum-exp of its logits, their mean and a function that picks some."""
    logits = lambda part: capped(k, k.keep("logits", k.product("td,vd->tv", x, part)), cap)
    if k.main != "tiles of the vocabulary":
        c = k.keep("cap", logits(head))
        return k.logsumexp(c), c.mean(-1), lambda labels: c.gather(1, labels[:, None])[:, 0]
    parts = [logits(part) for part in head.split(48)]
    z = torch.logsumexp(torch.stack([torch.logsumexp(c, -1) for c in parts], -1), -1)
    return z, sum(c.sum(-1) for c in parts) / len(head), lambda labels: torch.cat(parts, 1).gather(1, labels[:, None])[:, 0]


def capped(k, x, cap):
    return x if cap is None else cap * torch.tanh(x / cap) if k.form("cap", "divided", "multiplied") == "divided" else torch.tanh(x * (1 / cap)) * cap


def linear_cross_entropy(k, x, labels, head, cap, penalty):
    counts, made = labels != -100, []
    for rows, own in zip(*(t.split(7 if k.main == "rows in chunks" else len(x)) for t in (x, labels))):
        z, mean, pick = cross_entropy_parts(k, rows, head, cap)
        z = k.step("z", z)
        made.append((0.9 * (z - pick(own.clamp(min=0))) + 0.1 * (z - mean), penalty * z * z))
    each, of_z = (torch.cat(parts) for parts in zip(*made))
    n = counts.sum()
    return {"loss": torch.where(counts, each + of_z, torch.zeros_like(each)).sum() / n, "z_loss": torch.where(counts, of_z, torch.zeros_like(each)).sum() / n}


def ssd(k, xbc, dt, z, taps, bias, dt_bias, A_log, D, norm, groups=1):
    c = F.conv1d(F.pad(xbc.transpose(1, 2), (taps.shape[1] - 1, 0)), taps[:, None], groups=len(taps)).transpose(1, 2)
    c = k.step("c", k.silu(c + bias))
    width, heads = len(norm), dt.shape[-1]
    x, b, read = c.split([width, (c.shape[-1] - width) // 2, (c.shape[-1] - width) // 2], -1)
    x = x.unflatten(-1, (heads, -1))
    b, read = (t.unflatten(-1, (groups, -1)).repeat_interleave(heads // groups, 2) for t in (b, read))  # [B,T,N,S]
    d = F.softplus(dt + dt_bias)
    log = -d * A_log.exp()
    state, made = x.new_zeros(len(x), *x.shape[2:], b.shape[-1]), []
    size = {"tokens": 1, "chunks of 8": 8, "chunks of 5": 5, "products of chunks": 8}[k.main]
    product = k.product if k.main == "products of chunks" else lambda letters, *t: torch.einsum(letters, *t)  # whose operands are rounded, or not
    for xc, bc, rc, dc, lc in zip(*(t.split(size, 1) for t in (x, b, read, d, log))):
        if size == 1:
            state = lc[:, 0].exp()[..., None, None] * state + (dc[:, 0, :, None] * xc[:, 0])[..., None] * bc[:, 0, :, None]
            made.append(k.product("bnps,bns->bnp", state, rc[:, 0])[:, None])
            continue
        total = lc.cumsum(1)
        ones = torch.ones(lc.shape[1], lc.shape[1], dtype=x.dtype).tril()[None, :, :, None]
        within = torch.exp((total[:, :, None] - total[:, None]) * ones) * ones * dc[:, None]
        own = product("btln,blnp->btnp", product("btns,blns->btln", rc, bc) * within, xc)
        made.append(own + total.exp()[..., None] * product("btns,bnps->btnp", rc, state))
        left = (total[:, -1:] - total).exp() * dc
        state = total[:, -1].exp()[..., None, None] * state + product("blnp,blns->bnps", xc, left[..., None] * bc)
    y = k.step("y", torch.cat(made, 1) + D[:, None] * x).flatten(2) * k.silu(z)
    if groups == 1:
        return {"y": k.rms_norm(y, norm, 1e-5)}
    n = k.step("n", y.unflatten(-1, (groups, -1)))
    return {"y": (n * k.rsqrt(k.sum(n * n)[..., None] / n.shape[-1] + 1e-5)).flatten(2) * norm}


def index_scores(k, x, qr, at, of, wq, wk, k_scale, k_bias, weights_proj, rotated):
    """[T,S], with a weight for each head that has both of its factors."""
    heads, width = wq.shape[1:]
    q, key = k.step("q", k.product("tq,qhi->thi", qr, wq)), k.step("k", k.layer_norm(k.product("sd,di->si", x, wk), k_scale, k_bias))
    query, key = (k.step(name, torch.cat([turned(t[..., :rotated], p), t[..., rotated:]], -1)) for name, t, p in (("query", q, at), ("key", key, of)))
    weight = k.step("weight", k.product("td,dh->th", x[len(x) - len(at) :], weights_proj) * heads**-0.5)
    if k.main in ("heads in turn", "dense"):
        return k.step("score", sum(weight[:, h, None] * F.relu(k.product("ti,si->ts", query[:, h], key) * width**-0.5) for h in range(heads)))
    return k.step("score", k.product("th,ths->ts", weight, F.relu(k.product("thi,si->ths", query, key) * width**-0.5)))


def sparse_attention(k, x, qr, main, latent, at, of, wq, wk, k_scale, k_bias, weights_proj, rotated, count, scale=None, width=None):
    """The first numbers of a key, `width` of them, are its value; without a number all."""
    seen = seen_from(at, of)
    score = index_scores(k, x, qr, at, of, wq, wk, k_scale, k_bias, weights_proj, rotated)
    ids = score.detach().masked_fill(~seen, -1e30).sort(dim=-1, descending=True, stable=True).indices[:, :count]
    k.choice = {"routing/ids/top_k": ids.int().numpy()}
    scale = scale or latent.shape[-1] ** -0.5
    if k.main == "dense":  # all keys, of which the others have no weight
        mask = torch.full_like(score, -1e30).scatter(1, ids, 0.0).masked_fill(~seen, -1e30)
        p = k.softmax(k.product("tnc,sc->tns", main, latent) * scale + mask[:, None])
        return {"o": k.product("tns,sc->tnc", p, latent[:, :width])}
    chosen = latent[ids]
    s = k.step("s", k.product("tnc,tkc->tnk", main, chosen) * scale).masked_fill(~seen.gather(1, ids)[:, None], -1e30)
    if k.main == "flash":
        return {"o": k.attend(s[None].transpose(0, 1), chosen[:, None, :, :width])[:, 0]}
    return {"o": k.product("tnk,tkc->tnc", k.step("p", k.softmax(s)), chosen[..., :width])}


def indexer_loss(k, x, qr, main, keys, at, of, wq, wk, k_scale, k_bias, weights_proj, rotated=4):
    seen = seen_from(at, of)
    score = index_scores(k, x.detach(), qr.detach(), at, of, wq, wk, k_scale, k_bias, weights_proj, rotated)
    every = k.product("tnc,sc->tns", main, keys) * keys.shape[-1] ** -0.5
    heads = k.step("heads", k.softmax(every.masked_fill(~seen[:, None], -1e30)))
    whole = k.step("all", heads.sum(1))
    target = k.step("target", whole / (whole.sum(-1, keepdim=True) + 1e-8)).detach()
    masked = score.masked_fill(~seen, -1e30)
    own = k.step("own", torch.exp(torch.log_softmax(masked, -1)) if k.main == "log softmax" else k.softmax(masked))
    each = target * (torch.log(target + 1e-8) - torch.log(own + 1e-8))
    return {"loss": k.sum(each).mean()}


def indexer_loss_sparse(k, x, qr, main, keys, at, of, wq, wk, k_scale, k_bias, weights_proj, rotated=4, count=6):
    score = index_scores(k, x.detach(), qr.detach(), at, of, wq, wk, k_scale, k_bias, weights_proj, rotated)
    ids = score.detach().masked_fill(~seen_from(at, of), -1e30).sort(dim=-1, descending=True, stable=True).indices[:, :count]
    k.choice = {"routing/ids/top_k": ids.int().numpy()}
    heads = k.step("heads", k.softmax(k.product("tnc,tkc->tnk", main, keys[ids]) * keys.shape[-1] ** -0.5))
    whole = k.step("all", heads.sum(1))
    target = k.step("target", whole / (whole.sum(-1, keepdim=True) + 1e-8)).detach()
    chosen = score.gather(1, ids)
    own = k.step("own", torch.exp(torch.log_softmax(chosen, -1)) if k.main == "log softmax" else k.probabilities(chosen, of_differences=True))
    return {"loss": k.sum(target * (torch.log(target + 1e-8) - torch.log(own + 1e-8))).mean()}


def codes(k, name, x):
    """e4m3 with a power of two for each row, of at least the row's largest number over 448."""
    scale = (x.detach().double().abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448).float()
    half, exponent = torch.frexp(scale)
    unit = torch.ldexp(torch.ones_like(scale), exponent - (half == 0.5).int()).double()
    made = nearest(x.detach().double() / unit, 448.0, -6, 3)
    k.codes[f"checkpoints/{name}/codes"], k.codes[f"checkpoints/{name}/scale"] = made.float().numpy(), unit.float().numpy()
    return made.to(x.dtype), unit.to(x.dtype)


def turned_by_hadamard(k, x, matrix):
    """By the matrix, or by sums and differences, half as many apart each time."""
    if k.main == "matrix":
        return k.product("..i,ij->..j".replace("..", "thx"[: x.dim() - 1]), x, matrix.to(x.dtype)) * x.shape[-1] ** -0.5
    size, apart = x.shape[-1], 1
    while apart < size:
        a, b = x.unflatten(-1, (-1, 2, apart)).unbind(-2)
        x, apart = torch.stack([a + b, a - b], -2).flatten(-3), 2 * apart
    return x * size**-0.5


def indexer_codes(k, q, k_, weight, hadamard, count=4):
    (query, of_query), (key, of_key) = (codes(k, name, k.keep(name, turned_by_hadamard(k, x, hadamard))) for name, x in (("query", q), ("key", k_)))
    products = k.einsum("thj,sj->ths", query, key)
    if k.main == "scales behind":  # as kernels of codes do: relu(codes) w s_q, added up, times s_k
        score = (F.relu(products) * (weight * of_query[..., 0])[..., None]).sum(1) * of_key[:, 0]
    else:
        score = k.product("th,ths->ts", weight, F.relu(products * of_query * of_key[:, 0]))
    score = k.step("score", score)
    ids = score.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    k.choice = {"routing/ids/top_k": ids.int().numpy()}
    return {"y": score.gather(1, ids)}


def by_group(k, x, w, group_sizes):
    if k.main == "gathered":
        return k.product("td,tdf->tf", x, w[torch.arange(len(w)).repeat_interleave(group_sizes)])
    return torch.cat([k.product("td,df->tf", rows, own) for rows, own in zip(x.split(group_sizes.tolist()), w)])


def weighed_hidden_codes(k, x, weight, group_sizes, gate, up, down):
    g, u = (by_group(k, x, w, group_sizes) for w in (gate, up))
    if k.main == "gate and up as one":
        g, u = by_group(k, x, torch.cat([gate, up], -1), group_sizes).chunk(2, -1)
    h = k.step("h", k.silu(k.step("g", g)) * k.step("u", u) * weight[:, None])
    return {"y": by_group(k, quantised(k, "q", h, QUANTISERS["mxfp8_e4m3"]), down, group_sizes)}


def overlapping_entries(k, name, x, wkv, wgate, bias, norm, first, rotated):
    """Of each window's tokens the second half of what they are projected to, and the first half of the window before."""
    ratio, width = len(bias), len(norm)
    z = k.step(name + "z", k.product("sd,de->se", x, wgate).unflatten(0, (-1, ratio)) + bias)
    kv = k.step(name + "kv", k.product("sd,de->se", x, wkv).unflatten(0, (-1, ratio)))
    gates = torch.cat([torch.cat([torch.full_like(z[:1, :, :width], -1e30), z[:-1, :, :width]]), z[..., width:]], 1)
    rows = torch.cat([torch.cat([torch.zeros_like(kv[:1, :, :width]), kv[:-1, :, :width]]), kv[..., width:]], 1)
    n = k.step(name + "n", k.rms_norm((k.softmax(gates.transpose(1, 2)) * rows.transpose(1, 2)).sum(-1), norm))
    return torch.cat([n[..., :-rotated], turned(n[..., -rotated:], first, 160000.0, True)], -1)


def over_window_and_chosen(k, q, own, c, ids, at, sinks, window=3):
    """Attention of a window of tokens and of the entries of these indices, with a sink."""
    (tokens, heads, width), place = q.shape, torch.arange(len(own))
    near = (place <= at[:, None]) & (place > at[:, None] - window)
    scores = (k.product("tnc,sc->tns", q, own) * width**-0.5).masked_fill(~near[:, None], -1e30)
    sink = sinks.expand(tokens, heads)[..., None]
    if k.main == "dense":  # over all entries, of which those that are not chosen have no weight
        mask = torch.full((tokens, len(c)), -1e30, dtype=q.dtype).scatter(1, ids, 0.0)
        p = k.softmax(torch.cat([scores, k.product("tnc,wc->tnw", q, c) * width**-0.5 + mask[:, None], sink], -1))
        o = k.product("tny,yc->tnc", p[..., :-1], torch.cat([own, c]))
    else:
        s = k.product("tnc,tkc->tnk", q, c[ids]) * width**-0.5
        if k.main == "parts":  # each with its lse, and the sink where they meet
            made = [k.product("tns,sc->tnc", torch.softmax(scores, -1), own), k.product("tnk,tkc->tnc", torch.softmax(s, -1), c[ids])]
            share = torch.softmax(torch.cat([torch.logsumexp(scores, -1, True), torch.logsumexp(s, -1, True), sink], -1), -1)
            o = share[..., :1] * made[0] + share[..., 1:2] * made[1]
        else:
            p = k.step("p", k.softmax(torch.cat([scores, s, sink], -1)))
            o = k.product("tns,sc->tnc", p[..., : len(own)], own) + k.product("tnk,tkc->tnc", p[..., len(own) : -1], c[ids])
    return k.step("o", o)


def compressed_sparse_attention(k, x, qr, q, own, at, first, wkv, wgate, bias, norm, index_wkv, index_wgate, index_bias, index_norm, index_wq, weights_proj, sinks, count=3, window=3, rotated=4):
    tokens, ratio = len(q), len(bias)
    c = k.step("c", overlapping_entries(k, "", x, wkv, wgate, bias, norm, first, rotated))
    ik = k.step("ik", overlapping_entries(k, "i", x, index_wkv, index_wgate, index_bias, index_norm, first, rotated))
    iq = k.step("iq", k.product("tq,qhi->thi", qr, index_wq))
    query = k.step("query", torch.cat([iq[..., :-rotated], turned(iq[..., -rotated:], at, 160000.0, True)], -1))
    weight = k.step("weight", k.product("td,dh->th", x[-tokens:], weights_proj) * iq.shape[1] ** -0.5)
    score = k.step("score", k.product("th,thw->tw", weight, F.relu(k.product("thi,wi->thw", query, ik)) * iq.shape[2] ** -0.5))
    past = first + ratio <= at[:, None] + 1
    ids = score.detach().masked_fill(~past, -1e30).sort(dim=-1, descending=True, stable=True).indices[:, :count]
    k.choice = {"routing/ids/top_k": ids.int().numpy()}
    o = over_window_and_chosen(k, q, own, c, ids, at, sinks, window)
    return {"y": torch.cat([o[..., :-rotated], turned(o[..., -rotated:], at, 160000.0, True, True)], -1)}


def compressed_blocks_attention(k, x, qr, q, own, before, before_qr, at, of, first, wkv, wgate, norm, wk, k_norm, source_wq, source_weights, index_wq, index_weights, sinks, wo,
                                best=2, count=3):
    ratio, block, rotated = len(x) // len(first), 4, 4
    turn = lambda t, positions, back=False: torch.cat([t[..., :-rotated], turned(t[..., -rotated:], positions, 160000.0, True, back)], -1)
    z, kv = (k.step(name, k.product("sd,dc->sc", x, w).unflatten(0, (-1, ratio))) for name, w in (("z", wgate), ("kv", wkv)))
    n = k.step("n", k.rms_norm((k.softmax(z.transpose(1, 2)) * kv.transpose(1, 2)).sum(-1), norm))
    c = k.step("c", turn(n, first))
    ikey = k.step("ikey", turn(k.step("ik", k.rms_norm(k.product("wc,ci->wi", n.detach(), wk), k_norm)), first))

    def scores(name, tokens, latents, wq, weights):
        query = k.step((name or "i") + "query", turn(k.step((name or "i") + "q", k.product("tq,qhi->thi", latents, wq)), at))
        weight = k.step(name + "weight", k.product("td,dh->th", tokens, weights) * (wq.shape[1] * wq.shape[2]) ** -0.5)
        return k.step(name + "score", k.product("th,thw->tw", weight, F.relu(k.product("thi,wi->thw", query, ikey)))).detach()

    first_of = lambda t, many: t.sort(dim=-1, descending=True, stable=True).indices[:, :many]
    seen = first + ratio <= at[:, None] + 1
    of_blocks = scores("s", before, before_qr, source_wq, source_weights).masked_fill(~seen, -1e30).unflatten(1, (-1, block)).amax(-1)
    newest = ((at + 1) // ratio - 1) // block
    blocks = first_of(of_blocks.scatter(1, newest[:, None], 1e30), best)
    kept = torch.zeros_like(of_blocks).scatter(1, blocks, 1.0).bool().repeat_interleave(block, 1)
    ids = first_of(scores("", x[-len(q) :], qr, index_wq, index_weights).masked_fill(~(seen & kept), -1e30), count)
    k.choice = {"routing/blocks/top_k": blocks.int().numpy(), "routing/ids/top_k": ids.int().numpy()}
    r = k.step("r", turn(over_window_and_chosen(k, q, own, c, ids, at, sinks), at, True))
    return {"y": k.product("tge,geo->tgo", r.reshape(len(q), len(wo), -1), wo)}


def without_weight(k, x, epsilon):
    return x * k.rsqrt(k.sum(x * x)[..., None] / x.shape[-1] + epsilon)


def layer(k, x, positions, q_proj, k_proj, v_proj, o_proj, gate, up, down, before_attention, before_mlp, q_norm=None, k_norm=None, behind_attention=None, behind_mlp=None,
          chunks=None, family="gemma3", window=3):
    """A layer of Gemma 3, Gemma 4 or Llama 4."""
    llama, epsilon = family == "llama4", 1e-5 if family == "llama4" else 1e-6
    norm = lambda x, w: x if w is None else k.rms_norm(x, w + 1 if family == "gemma3" else w, epsilon)
    turn = lambda x: turned(x.flatten(0, 1), positions.flatten(), 500000.0 if llama else 10000.0, llama).reshape(x.shape)
    n = k.step("n", norm(x, before_attention))
    q, key, v = (k.product("btd,nhd->btnh", n, w) for w in (q_proj, k_proj, v_proj))
    if llama:
        q, key = (without_weight(k, k.step("turned_" + name, turn(x)), epsilon) for name, x in (("q", q), ("k", key)))
    else:
        q, key = turn(norm(q, q_norm)), turn(norm(key, k_norm))
    v = without_weight(k, k.step("values", v), epsilon) if family == "gemma4" else v
    q, key, v = (k.step(name, x) for name, x in (("q", q), ("k", key), ("v", v)))
    place = torch.arange(x.shape[1])
    seen = place[:, None] >= place
    seen = seen & (chunks[:, :, None] == chunks[:, None]) if llama else (seen & (place[:, None] - place < window)).expand(len(x), -1, -1)
    q, key, v = (x.transpose(1, 2) for x in (q, key.repeat_interleave(q.shape[2] // key.shape[2], 2), v.repeat_interleave(q.shape[2] // v.shape[2], 2)))
    scores = k.product("bnsh,bnth->bnst", q, key) * (1.0 if family == "gemma4" else q.shape[-1] ** -0.5)
    scores = scores.masked_fill(~seen[:, None], -1e30)
    o = Flash.apply(scores, v, k) if k.main == "flash" else k.product("bnst,bnth->bnsh", k.softmax(scores), v)
    r = k.step("r", x + norm(k.product("btnh,dnh->btd", k.step("o", o.transpose(1, 2)), o_proj), behind_attention))
    m = k.step("m", norm(r, before_mlp))
    if k.main == "gate and up as one":
        g, u = k.product("btd,fd->btf", m, torch.cat([gate, up])).chunk(2, -1)
    else:
        g, u = k.product("btd,fd->btf", m, gate), k.product("btd,fd->btf", m, up)
    h = k.step("h", (k.silu(g) if llama else F.gelu(g, approximate="tanh")) * u)
    return {"y": r + norm(k.product("btf,df->btd", h, down), behind_mlp)}


def glm_layer(k, x, positions, q_a, q_norm, q_b, kv_a, kv_norm, kv_b, o_proj, index_q, index_k, k_scale, k_bias, weights_proj, before_attention, before_mlp, gate, up, down, count=4):
    (heads, wide, _), latent, value, rotated = q_b.shape, len(kv_norm), o_proj.shape[2], len(kv_a) - len(kv_norm)
    apart = wide - rotated
    turn = lambda t: turned(t, positions, interleave=True)
    n = k.step("n", k.rms_norm(x, before_attention, 1e-5))
    qr = k.step("qr", k.rms_norm(k.product("sd,qd->sq", n, q_a), q_norm))
    q = k.step("q", k.product("sq,neq->sne", qr, q_b))
    query = k.step("query", torch.cat([q[..., :apart], turn(q[..., apart:])], -1))
    kv = k.step("kv", k.product("sd,wd->sw", n, kv_a))
    both = k.step("both", k.product("sc,ngc->sng", k.rms_norm(kv[:, :latent], kv_norm), kv_b))
    key = k.step("key", torch.cat([both[..., :apart], k.step("turned", turn(kv[:, latent:]))[:, None].expand(-1, heads, -1)], -1))
    values = k.step("value", both[..., apart:])
    iq = k.step("iq", k.product("sq,hiq->shi", qr, index_q).detach())
    ik = k.step("ik", k.layer_norm(k.product("sd,id->si", n, index_k).detach(), k_scale, k_bias))
    iquery, ikey = (k.step(name, torch.cat([turn(t[..., :rotated]), t[..., rotated:]], -1)) for name, t in (("iquery", iq), ("ikey", ik)))
    weight = k.step("weight", k.product("td,hd->th", n, weights_proj) * len(index_q) ** -0.5)
    score = k.step("score", k.product("th,ths->ts", weight, F.relu(k.product("thi,si->ths", iquery, ikey) * iq.shape[2] ** -0.5)))
    hidden = torch.ones_like(score).triu(1).bool()
    ids = score.detach().masked_fill(hidden, -1e30).sort(dim=-1, descending=True, stable=True).indices[:, :count]
    k.choice = {"routing/ids/top_k": ids.int().numpy()}
    if k.main == "chosen":
        s = k.product("tne,tkne->tnk", query, key[ids]) * wide**-0.5
        s = s.masked_fill(hidden.gather(1, ids)[:, None], -1e30)  # the first tokens see fewer than are chosen
        o = k.product("tnk,tknv->tnv", k.step("p", k.softmax(s)), values[ids])
    else:
        s = (k.product("tne,sne->nts", query, key) * wide**-0.5).masked_fill(hidden | torch.ones_like(score).scatter(1, ids, 0.0).bool(), -1e30)
        o = Flash.apply(s[None], values.transpose(0, 1)[None], k)[0] if k.main == "flash" else k.product("nts,snv->ntv", k.softmax(s), values)
        o = o.transpose(0, 1)
    r = k.step("r", x + k.product("tnv,dnv->td", o, o_proj))
    m = k.step("m", k.rms_norm(r, before_mlp, 1e-5))
    h = k.step("h", k.silu(k.product("td,fd->tf", m, gate)) * k.product("td,fd->tf", m, up))
    return {"y": r + k.product("tf,df->td", h, down)}


def gated_attention(k, x, positions, q_proj, k_proj, v_proj, o_proj, q_norm, k_norm, rotated=4):
    width = v_proj.shape[1]
    if k.main == "query and gate apart":
        q, gate = (k.product("btd,ngd->btng", x, w) for w in q_proj.split(width, 1))
    else:
        q, gate = k.product("btd,ngd->btng", x, q_proj).split(width, -1)
    q, gate, key, v = (k.step(name, t) for name, t in (("both", q), ("both gate", gate), ("kn in", k.product("btd,nhd->btnh", x, k_proj)), ("v", k.product("btd,nhd->btnh", x, v_proj))))
    turn = lambda t: torch.cat([turned(t[..., :rotated].flatten(0, 1), positions.flatten()).reshape(*t.shape[:-1], rotated), t[..., rotated:]], -1)
    q, key = (k.step(name, turn(k.step(name + "n", k.rms_norm(t, w + 1)))) for name, t, w in (("q", q, q_norm), ("k", key, k_norm)))
    q, key, v = (t.transpose(1, 2) for t in (q, key.repeat_interleave(q.shape[2] // key.shape[2], 2), v.repeat_interleave(q.shape[2] // v.shape[2], 2)))
    scores = k.product("bnsh,bnth->bnst", q, key) * width**-0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -1e30)
    o = Flash.apply(scores, v, k) if k.main == "flash" else k.product("bnst,bnth->bnsh", k.softmax(scores), v)
    o = k.step("o", o.transpose(1, 2) * k.sigmoid(gate))
    return {"y": k.product("btnh,dnh->btd", o, o_proj)}


def gated_delta(k, q, k_, v, a, b, start, A_log, dt_bias):
    """A gate for each token: the decay between two is a factor of what they have in common."""
    length = lambda x: x * k.rsqrt(k.sum(x * x)[..., None] + 1e-6)
    query, key = k.step("query", length(q) * q.shape[-1] ** -0.5), k.step("key", length(k_))
    gate, beta = k.step("gate", -F.softplus(a + dt_bias) * A_log.exp()), k.step("beta", k.sigmoid(b))
    query, key, v, gate, beta = (x.transpose(1, 2) for x in (query, key, v, gate, beta[..., None]))  # [B,N,T,..]
    state, made = start, []
    size = {"tokens": 1, "chunks of 16": 16, "chunks of 64": 64}[k.main]
    for qc, kc, vc, gc, bc in zip(*(x.split(size, 2) for x in (query, key, v, gate, beta))):
        total = gc.cumsum(-1)
        decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        system = torch.eye(gc.shape[-1], dtype=q.dtype) + (bc * k.product("bntk,bnsk->bnts", kc, kc) * decay).tril(-1)
        written = torch.linalg.solve(system, bc * (vc - total.exp()[..., None] * k.product("bntk,bnkv->bntv", kc, state)))
        made.append(total.exp()[..., None] * k.product("bntk,bnkv->bntv", qc, state) + k.product("bnts,bnsv->bntv", k.product("bntk,bnsk->bnts", qc, kc) * decay, written))
        last = total[..., -1:, None]
        state = last.exp() * state + k.product("bntk,bntv->bnkv", kc * (last - total[..., None]).exp(), written)
    return {"state": state, "y": torch.cat(made, 2).transpose(1, 2)}


def moe_align(k, x, ids, size=4, experts=5, places=8):
    """The ways in which kernels find a copy's place among those of its expert."""
    flat, copies = ids.flatten(), ids.numel()
    count = torch.bincount(flat, minlength=experts)
    blocks = -(-count // size)
    begin = (blocks.cumsum(0) - blocks) * size
    if k.main == "sorted":
        order = flat.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(copies) - (count.cumsum(0) - count)[flat[order]]
    elif k.main == "one-hot":
        rank = F.one_hot(flat, experts).cumsum(0)[torch.arange(copies), flat] - 1
    else:
        rank = torch.tensor([int((flat[:i] == flat[i]).sum()) for i in range(copies)])
    sorted_ids = torch.full((places * size,), copies)
    sorted_ids[begin[flat] + rank] = torch.arange(copies)
    expert_ids = torch.full((places,), -1)
    expert_ids[: int(blocks.sum())] = torch.arange(experts).repeat_interleave(blocks)
    rows = torch.cat([x.repeat_interleave(ids.shape[1], 0), torch.zeros_like(x[:1])])
    return {"sorted_ids": sorted_ids, "expert_ids": expert_ids, "padded": blocks.sum() * size, "y": rows[sorted_ids]}


def dispatch_combine(k, x, back, ids, ranks=4, each=2):
    tokens = len(x)
    of = torch.where(ids >= 0, ids // each, -1)
    sent = (of[..., None] == torch.arange(ranks)).any(1)
    received, y = torch.zeros_like(back), torch.zeros_like(x)
    lists = [sent[:, r].nonzero()[:, 0] for r in range(ranks)]
    if k.main == "gathered":
        place = (sent.cumsum(0) - 1).clamp(min=0)
        received = torch.stack([torch.cat([x[rows], x.new_zeros(tokens - len(rows), x.shape[1])]) for rows in lists])
        y = k.sum((back[torch.arange(ranks), place] * sent[..., None]).transpose(1, 2))
    else:
        turn = range(ranks)[:: -1 if k.main == "last rank first" else 1]
        for r in turn:
            received = received.index_put((torch.tensor(r), torch.arange(len(lists[r]))), x[lists[r]])
            y = y.index_add(0, lists[r], back[r, : len(lists[r])])
    return {"per_expert": torch.bincount(ids[ids >= 0], minlength=ranks * each), "per_rank": sent.sum(0), "in_rank": sent.long(), "received": received, "y": y}


def dispatch_low_latency(k, x, back, weight, ids, experts=6):
    (ranks, tokens, width), chosen = x.shape, ids.reshape(-1, ids.shape[-1])
    rows, w, places = x.reshape(-1, width), weight.reshape(chosen.shape), ranks * tokens
    hit = (chosen[..., None] == torch.arange(experts)).any(1)
    lists = [hit[:, e].nonzero()[:, 0] for e in range(experts)]
    source = torch.stack([torch.cat([own, own.new_full((places - len(own),), -1)]) for own in lists])
    by_rank = torch.stack([torch.bincount(own // tokens, minlength=ranks) for own in lists])
    received = rows[source.clamp(min=0)] * (source >= 0)[..., None]
    if k.main == "gathered":
        place = (hit.cumsum(0) - 1).gather(1, chosen.clamp(min=0))
        y = k.product("ck,ckd->cd", w * (chosen >= 0), back[chosen.clamp(min=0), place])
    else:  # an expert's rows are weighed where they are, or added up by the token
        y = torch.zeros_like(rows)
        for e in range(experts)[:: -1 if k.main == "last expert first" else 1]:
            own = lists[e]
            y = y.index_add(0, own, back[e, : len(own)] * (w * (chosen == e)).sum(1)[own, None])
    return {"count": hit.sum(0), "by_rank": by_rank, "begin": by_rank.cumsum(1) - by_rank, "source": source, "received": received, "y": y.reshape(x.shape)}


def replicated(load, places):
    """How many copies experts have, and of the replicas: whose they are, and which of its copies."""
    copies, of, replica = [1] * len(load), list(range(len(load))), [0] * len(load)
    for _ in range(places - len(load)):
        most = max(range(len(load)), key=lambda e: (load[e] * (12 // copies[e]), -e))
        of, replica = of + [most], replica + [copies[most]]
        copies[most] += 1
    return copies, of, replica


def packed(k, own, packs):
    """What goes where, the heaviest first, and how much each has. As a list, an array or a heap has the loads."""
    filled, loads = [[] for _ in range(packs)], [0] * packs
    for p in sorted(range(len(own)), key=lambda p: -own[p]):
        room = [g for g in range(packs) if len(filled[g]) < len(own) // packs]
        if k.main == "heap":
            least = sorted((loads[g], g) for g in room)[0][1]
        else:
            least = room[int(np.argmin([loads[g] for g in room]))] if k.main == "array" else min(room, key=loads.__getitem__)
        filled[least].append(p)
        loads[least] += own[p]
    return filled, loads


def eplb(k, load, parts, places=8, devices=4):
    """All in whole numbers: twelfths of a load."""
    copies, of, replica = replicated(load.tolist(), places)
    filled, loads = packed(k, [int(load[e]) * (12 // copies[e]) for e in of], devices)
    rows = [p for device in filled for p in device]
    return {"copies": torch.tensor(copies), "expert": torch.tensor([of[p] for p in rows]), "replica_of": torch.tensor([replica[p] for p in rows]),
            "y": torch.tensor(loads).to(k.ar.wide) / 12}


def eplb_nodes(k, load, parts, places=12, devices=4, groups=4, nodes=2):
    each = load.reshape(groups, -1)
    filled, by_node = packed(k, each.sum(1).tolist(), nodes)
    copies, expert, replica_of, y = torch.zeros_like(load), [], [], []
    for own in filled:  # each node by itself
        of_node = [g * each.shape[1] + i for g in own for i in range(each.shape[1])]
        counts, of, replica = replicated(load[of_node].tolist(), places // nodes)
        copies[of_node] = torch.tensor(counts, dtype=load.dtype)
        put, loads = packed(k, [int(load[of_node[e]]) * (12 // counts[e]) for e in of], devices // nodes)
        expert += [of_node[of[p]] for device in put for p in device]
        replica_of += [replica[p] for device in put for p in device]
        y.append(loads)
    return {"copies": copies, "expert": torch.tensor(expert), "replica_of": torch.tensor(replica_of), "by_node": torch.tensor(by_node), "y": torch.tensor(y).to(k.ar.wide) / 12}


def lora_by_token(k, x, adapter, number, w, a, b, factor=4 / 3**0.5):
    if k.main == "sorted":
        rows, added = adapter.argsort(stable=True), torch.zeros(len(x), w.shape[1], dtype=x.dtype)
        for i in range(len(a)):
            own = rows[adapter[rows] == i]
            added = added.index_add(0, own, factor * k.product("tr,rf->tf", k.keep("low", k.product("td,dr->tr", x[own], a[i])), b[i]))
    elif k.main == "gathered":
        low = k.keep("low", k.product("td,tdr->tr", x, a[adapter.clamp(min=0)]) * (adapter >= 0)[:, None])
        added = k.product("tr,trf->tf", low, b[adapter.clamp(min=0)]) * factor
    else:
        low = k.keep("low", k.product("td,ldr->tlr", x, a) * (adapter[:, None] == number)[..., None])
        added = k.product("tlr,lrf->tf", low, b) * factor
    return {"y": k.product("td,df->tf", x, w) + added}


def lora_experts(k, x, weight, group_sizes, w, a, b):
    if k.main == "groups":
        parts = list(zip(x.split(group_sizes.tolist()), w, a, b))
        base = torch.cat([k.product("td,df->tf", own, we) for own, we, _, _ in parts])
        low = k.step("low", torch.cat([k.product("td,dr->tr", own, ae) for own, _, ae, _ in parts]))
        change = torch.cat([k.product("tr,rf->tf", own, be) for own, be in zip(low.split(group_sizes.tolist()), b)])
    else:
        of = torch.arange(len(w)).repeat_interleave(group_sizes)
        base, low = k.product("td,tdf->tf", x, w[of]), k.step("low", k.product("td,tdr->tr", x, a[of]))
        change = k.product("tr,trf->tf", low, b[of])
    return {"y": base * weight[:, None] + change * (2 * weight)[:, None] if k.main == "weight on each" else (base + k.step("change", change * 2)) * weight[:, None]}


def mtp(k, h, t1, t2, t3, table, final, **w):
    def loss(h, labels):
        parts = [cross_entropy_parts(k, rows, table, None) + (own,) for rows, own in
                 zip(*(t.split(5 if k.main == "rows in chunks" else len(h)) for t in (k.rms_norm(h, final), labels)))]
        each = torch.cat([z - pick(own.clamp(min=0)) for z, _, pick, own in parts])
        return torch.where(labels != -100, each, torch.zeros_like(each)).sum()

    def depth(h, ids, i):
        named = lambda name: w[f"{name}{i}"]
        token = table[ids.clamp(min=0)] * (ids >= 0)[:, None]
        joined = torch.cat([k.rms_norm(token, named("e_norm")), k.rms_norm(h, named("h_norm"))], -1)
        r = k.step(f"r{i}", k.product("tq,qd->td", k.step(f"j{i}", joined), named("proj")))
        n = k.step(f"n{i}", k.rms_norm(r, named("norm")))
        hidden = k.silu(k.product("td,df->tf", n, named("gate"))) * k.product("td,df->tf", n, named("up"))
        return k.step(f"h{i}", r + k.product("tf,fd->td", hidden, named("down")))

    h1 = depth(h, t1, 1)
    h2 = depth(h1, t2, 2)
    s0, s1, s2 = (loss(*pair) for pair in ((h, t1), (h1, t2), (h2, t3)))
    n0, n1, n2 = ((t != -100).sum().to(h.dtype) for t in (t1, t2, t3))
    return {"main": s0 / n0, "by_depth": 0.15 * (s1 / n1 + s2 / n2), "by_token": 0.1 * (s1 + s2) / (n1 + n2 + 1e-8)}


def kda(k, q, k_, v, f, b, start, A_log, dt_bias, bounded=False):
    """[T,N,K]. In chunks what its tokens write is found at once from the state before them."""
    length = lambda x: x * k.rsqrt(k.sum(x * x)[..., None] + 1e-6)
    query, key = k.step("query", length(q) * q.shape[-1] ** -0.5), k.step("key", length(k_))
    rate = A_log.exp()[:, None]
    gate = k.step("gate", -5 * k.sigmoid((f + dt_bias) * rate) if bounded else -F.softplus(f + dt_bias) * rate)
    beta = k.step("beta", k.sigmoid(b))
    state, made = start, []
    size = {"tokens": 1, "chunks of 16": 16, "chunks of 4": 4, "factors": 4}[k.main]
    for qc, kc, vc, gc, bc in zip(*(t.split(size) for t in (query, key, v, gate, beta[..., None]))):
        if size == 1:
            state = gc[0].exp()[..., None] * state
            written = bc[0] * (vc[0] - k.product("nk,nkv->nv", kc[0], state))
            state = state + kc[0][..., None] * written[:, None]
            made.append(k.product("nk,nkv->nv", qc[0], state)[None])
            continue
        total = gc.cumsum(0)
        if k.main == "factors":  # e^(G_t - G_0) and e^(G_0 - G_s), from the middle of the chunk on, which has no gradient
            middle = total[len(total) // 2].detach()
            there, here = (total - middle).exp(), (middle - total).exp()
            of = lambda x: k.product("tnk,snk->nts", x * there, kc * here)
        else:
            later = torch.ones(len(gc), len(gc)).tril().bool()[:, :, None, None]
            decay = (total[:, None] - total[None]).masked_fill(~later, -torch.inf).exp()
            of = lambda x: torch.einsum("tnk,snk,tsnk->nts", x, kc, decay)
        vc, bc = vc.transpose(0, 1), bc.transpose(0, 1)
        system = torch.eye(len(gc), dtype=q.dtype) + (bc * of(kc)).tril(-1)
        written = torch.linalg.solve(system, bc * (vc - k.product("tnk,nkv->ntv", kc * total.exp(), state)))
        made.append((k.product("tnk,nkv->ntv", qc * total.exp(), state) + k.product("nts,nsv->ntv", of(qc).tril(), written)).transpose(0, 1))
        state = total[-1].exp()[..., None] * state + k.product("tnk,ntv->nkv", kc * (total[-1] - total).exp(), written)
    return {"state": state, "y": torch.cat(made)}


def compressed_attention(k, x, q, own, at, of, first, wkv, wgate, bias, norm, sinks, wo, window=3, rotated=4):
    ratio, entries, (tokens, heads, width) = len(bias), len(first), q.shape
    used = x[: ratio * entries]
    z = k.step("z", k.product("td,dc->tc", used, wgate).unflatten(0, (entries, ratio)) + bias)
    kv = k.step("kv", k.product("td,dc->tc", used, wkv).unflatten(0, (entries, ratio)))
    n = k.step("n", k.rms_norm((k.softmax(z.transpose(1, 2)) * kv.transpose(1, 2)).sum(-1), norm))
    turn = lambda t, positions, back: torch.cat([t[..., :-rotated], turned(t[..., -rotated:], positions, 160000.0, True, back)], -1)
    c = k.step("c", turn(n, first, False))
    distance = at[:, None] - of
    near, past = (distance >= 0) & (distance < window), at[:, None] >= first + ratio - 1
    keys, seen = torch.cat([own, c]), torch.cat([near, past], 1)
    if k.main == "parts":  # the window and what is compressed, each with its lse, and the sink where they meet
        made = []
        for part, mask in ((own, near), (c, past)):
            s = (k.product("tnc,yc->tny", q, part) * width**-0.5).masked_fill(~mask[:, None], -1e30)
            made.append((torch.logsumexp(s, -1), k.product("tny,yc->tnc", torch.softmax(s, -1), part)))
        lse = torch.stack([made[0][0], made[1][0], sinks.expand(tokens, heads)], -1)
        share = torch.softmax(lse, -1)
        o = share[..., :1] * made[0][1] + share[..., 1:2] * made[1][1]
    else:
        s = (k.step("scores", k.product("tnc,yc->tny", q, keys) * width**-0.5)).masked_fill(~seen[:, None], -1e30)
        if k.main == "sink as a factor":
            o = k.product("tny,yc->tnc", k.softmax(s), keys) * torch.sigmoid(torch.logsumexp(s, -1) - sinks)[..., None]
        else:
            p = k.step("p", k.softmax(torch.cat([s, sinks.expand(tokens, heads)[..., None]], -1)))
            o = k.product("tny,yc->tnc", p[..., :-1], keys)
    r = k.step("r", turn(k.step("o", o), at, True))
    return {"y": k.product("tge,geo->tgo", r.reshape(tokens, len(wo), -1), wo)}


MIXED, STEPPED, ROWS = ("norm in front", "reciprocals", "streams in turn"), ("lerp", "sums", "one matrix"), ("whole", "tiles of the vocabulary", "rows in chunks")
SPARSE, LORA, SCAN = ("chosen", "dense", "flash"), ("masked", "gathered", "sorted"), ("tokens", "chunks of 8", "chunks of 5", "products of chunks")
DELTA = ("tokens", "chunks of 16", "chunks of 4", "factors")
# program: its kernel, the forms, what the kernel is told
KERNELS = {
    "mhc": (mhc, MIXED, {}), "mhc-three-streams": (mhc, MIXED, {}), "mhc-head": (mhc_head, MIXED, {}),
    "hyper-connections-apart": (streams_apart, ("norm in front", "norm behind", "streams in turn"), {}),
    "muon": (muon, STEPPED, {}), "muon-tall": (muon, STEPPED, {}), "adamw": (adamw, ("lerp", "sums", "step size"), {}),
    "linear-cross-entropy": (linear_cross_entropy, ROWS, {"cap": 10, "penalty": 0.01}), "linear-cross-entropy-stored": (linear_cross_entropy, ROWS, {"cap": 30, "penalty": 0.05}),
    "ssd": (ssd, SCAN, {}), "ssd-groups": (ssd, SCAN, {"groups": 2}),
    "sparse-attention": (sparse_attention, SPARSE, {"rotated": 4, "count": 5}), "sparse-attention-odd": (sparse_attention, SPARSE, {"rotated": 2, "count": 3}),
    "indexer-loss": (indexer_loss, ("products", "heads in turn", "log softmax"), {}),
    "indexer-loss-sparse": (indexer_loss_sparse, ("products", "heads in turn", "log softmax"), {}),
    "indexer-codes": (indexer_codes, ("matrix", "sums and differences", "scales behind"), {}),
    "weighed-hidden-codes": (weighed_hidden_codes, ("groups", "gathered", "gate and up as one"), {}),
    **{f"{family}-layer": (layer, ("products", "flash", "gate and up as one"), {"family": family}) for family in ("gemma3", "gemma4", "llama4")},
    "glm5-layer": (glm_layer, ("dense", "chosen", "flash"), {}), "qwen3-next-attention": (gated_attention, ("products", "flash", "query and gate apart"), {}),
    "gated-delta-states": (gated_delta, ("tokens", "chunks of 16", "chunks of 64"), {}),
    "moe-align": (moe_align, ("sorted", "one-hot", "counted"), {}),
    "dispatch-combine": (dispatch_combine, ("gathered", "first rank first", "last rank first"), {}),
    "dispatch-low-latency": (dispatch_low_latency, ("gathered", "first expert first", "last expert first"), {}),
    "eplb": (eplb, ("list", "array", "heap"), {}), "eplb-nodes": (eplb_nodes, ("list", "array", "heap"), {}),
    "lora-by-token": (lora_by_token, LORA, {}), "lora-experts": (lora_experts, ("groups", "gathered", "weight on each"), {}),
    "mtp": (mtp, ROWS, {}), "kda": (kda, DELTA, {}), "kda-bounded": (kda, DELTA, {"bounded": True}),
    "compressed-attention": (compressed_attention, ("columns", "sink as a factor", "parts"), {}),
    "compressed-sparse-attention": (compressed_sparse_attention, ("chosen", "dense", "parts"), {}),
    "compressed-blocks-attention": (compressed_blocks_attention, ("chosen", "dense", "parts"), {}),
}
# The same at true size, with what those programs count instead of being given
TRUE_SIZE = {
    "true-size/sparse-attention": (sparse_attention, SPARSE, {
        "rotated": 64, "count": 2048, "scale": 192**-0.5, "width": 512, "at": torch.arange(3056, 3072), "of": torch.arange(3072)}),
    "true-size/compressed-attention": (compressed_attention, ("columns", "sink as a factor", "parts"), {
        "window": 128, "at": torch.arange(2016, 2048), "of": torch.arange(2048), "first": torch.arange(0, 2048, 128), "rotated": 64}),
    "true-size/compressed-sparse-attention": (compressed_sparse_attention, ("chosen", "dense", "parts"), {
        "count": 512, "window": 128, "at": torch.arange(3056, 3072), "first": torch.arange(0, 3072, 4), "rotated": 64}),
    "true-size/mtp": (mtp, ROWS, {}),
    "true-size/lora-by-token": (lora_by_token, LORA, {"factor": 8}),
    "true-size/moe-align": (moe_align, ("sorted", "one-hot", "counted"), {"size": 16, "experts": 128, "places": 248}),
    "true-size/dispatch-combine": (dispatch_combine, ("gathered", "first rank first", "last rank first"), {"ranks": 8, "each": 32}),
    "true-size/eplb": (eplb, ("list", "array", "heap"), {"places": 288, "devices": 32}),
    "true-size/gemma3-layer": (layer, ("products", "flash", "gate and up as one"), {"family": "gemma3", "window": 512}),
}
UNROUNDED = {"outputs/z_loss"}  # statistics
CODES = {"indexer-codes", "weighed-hidden-codes"}  # these kernels give theirs


def forms(name):
    return (TRUE_SIZE if name in TRUE_SIZE else KERNELS)[name][1]


def run(name, tensors, expects, profile, number, fused):
    """Results by path, of the form that the number gives."""
    kernel, forms, told = (TRUE_SIZE if name in TRUE_SIZE else KERNELS)[name]
    k = Kernel(profile, number, False, "")
    k.main = forms[number % len(forms)]
    k.keep = lambda line, x: x if line in fused or fused == ["all"] else k.ar.keep(line, x)
    if fused:
        k.step = k.keep
    rename = {"k": "k_"} if kernel in (kda, gated_delta, indexer_codes) else {}
    return evaluated(k, lambda **given: kernel(k, **{rename.get(n, n): x for n, x in given.items()}, **told), tensors, expects, UNROUNDED)
