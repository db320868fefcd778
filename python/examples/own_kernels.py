"""Kernels for programs of the catalogue (assay list 'program/*'), each with a wrong form: what a kernel of one's own looks like to assay.

They compute in float32 and store once, as fused kernels do; autograd runs them back. What a kernel has of the program's steps it gives as well: so a
report names the first step that is wrong.
"""
import torch
import torch.nn.functional as F


def wide(g, *names):
    """Inputs and weights of these names, in float32."""
    given = {path.split("/")[1]: x for path, x in g.items() if not path.startswith("cotangents/")}
    return (given[n].float() if given[n].is_floating_point() else given[n].long() for n in names)


def rms_norm(x, scale, epsilon=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * scale


def rope(x, positions, theta, turn=1.0):
    """x [.., R] or [.., N, R], halves turned against each other."""
    half = x.shape[-1] // 2
    angle = positions.double()[..., None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = angle.reshape(*positions.shape, *[1] * (x.dim() - positions.dim() - 1), half)
    c, s = angle.cos().float(), turn * angle.sin().float()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, a * s + b * c], -1)


def norm_rope(g, turn=1.0):
    x, positions, scale, w = wide(g, "x", "positions", "scale", "w")
    q = torch.einsum("td,dnr->tnr", rms_norm(x, scale), w)
    return {"checkpoints/q": q, "y": rope(q, positions, 10000.0, turn)}


def qk_norm_rope(g, swapped=False):
    q, k, positions, q_scale, k_scale = wide(g, "q", "k", "positions", "q_scale", "k_scale")
    if swapped:
        q_scale, k_scale = k_scale, q_scale
    qn, kn = rms_norm(q, q_scale), rms_norm(k, k_scale)
    return {"checkpoints/qn": qn, "checkpoints/kn": kn, "query": rope(qn, positions, 1e6), "key": rope(kn, positions, 1e6)}


def swiglu(g, act=F.silu):
    x, token_scale, gate, up = wide(g, "x", "token_scale", "gate", "up")
    g, u = x @ gate, x @ up
    return {"checkpoints/g": g, "checkpoints/u": u, "h": act(g) * u * token_scale[:, None]}


def add_norm(g, of_sum=True):
    x, residual, scale = wide(g, "x", "residual", "scale")
    s = x + residual
    return {"sum": s, "y": rms_norm(s if of_sum else x, scale)}


def cross_entropy(g, columns=None):
    x, target, head = wide(g, "x", "target", "head")
    logits = x @ head
    return {"loss": torch.logsumexp(logits[:, :columns], -1) - logits.gather(-1, target[:, None])[:, 0]}


def lora(g, alpha=2.0):
    x, w, a, b = wide(g, "x", "w", "a", "b")
    low = x @ a
    return {"checkpoints/low": low, "y": x @ w + alpha * low @ b}


def causal_conv(g, shift=0):
    x, taps = wide(g, "x", "taps")
    k = taps.shape[1]
    padded = F.pad(x.transpose(1, 2), (k - 1 - shift, shift))
    v = F.conv1d(padded, taps[:, None], groups=taps.shape[0]).transpose(1, 2)
    return {"checkpoints/v": v, "y": F.silu(v)}


def merge_states(g, base=1.0):
    first, second, a, b = wide(g, "first", "second", "first_lse", "second_lse")
    lse = torch.logaddexp(a, b)
    return {"out": torch.exp((a - lse) * base)[..., None] * first + torch.exp((b - lse) * base)[..., None] * second, "lse": lse}


def hyper_connections(g, rounds=2):
    streams, mixing = wide(g, "streams", "mixing")
    m = torch.exp(mixing)
    for _ in range(rounds):
        m = m / m.sum(1, keepdim=True)
        m = m / m.sum(0, keepdim=True)
    return {"checkpoints/h": m, "y": torch.einsum("ij,tjd->tid", m, streams)}


def mhc(g, transposed=False, rounds=20):
    """Four streams, of which a block is given one, and the four behind it (mHC)."""
    x, f, fn, base, scale = wide(g, "x", "f", "fn", "base", "scale")
    t, n, _ = x.shape
    flat = x.reshape(t, -1)
    m = flat @ fn.T * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + 1e-6)
    pre, post, comb = ((part * s + b) for part, s, b in zip(m.split([n, n, n * n], -1), scale, base.split([n, n, n * n])))
    pre, post = torch.sigmoid(pre) + 1e-6, 2 * torch.sigmoid(post)
    a = torch.softmax(comb.reshape(t, n, n), -1) + 1e-6
    a = a / (a.sum(-2, keepdim=True) + 1e-6)
    for _ in range(rounds - 1):
        a = a / (a.sum(-1, keepdim=True) + 1e-6)
        a = a / (a.sum(-2, keepdim=True) + 1e-6)
    mixed = torch.einsum("tkj,tjd->tkd" if transposed else "tjk,tjd->tkd", a, x)
    u = torch.einsum("tj,tjd->td", pre, x)
    return {"checkpoints/pre": pre, "checkpoints/post": post, "checkpoints/c20": a, "u": u, "y": post[..., None] * f[:, None] + mixed}


def muon(g, by_element=False, rounds=5):
    """A step of Muon: the momentum's matrix made nearly orthogonal."""
    grad, momentum, w = wide(g, "g", "momentum", "w")
    buffer = torch.lerp(momentum, grad, 0.05)
    x = torch.lerp(grad, buffer, 0.95)
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(rounds):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * (a * a if by_element else a @ a)) @ x
    return {"checkpoints/x5": x, "buffer": buffer, "update": x, "weight": w * 0.998 - 0.02 * x}


def adamw(g, corrected=True):
    """The tenth step: float32 weights, and those in bfloat16 that the model computes with."""
    grad, m, v, master = wide(g, "g", "m", "v", "master")
    m, v = torch.lerp(m, grad, 0.1), torch.lerp(v, grad * grad, 0.05)
    change = (m / (1 - 0.9**10)) / ((v / (1 - 0.95**10 if corrected else 1)).sqrt() + 1e-8)
    new = master * 0.9999 - 0.001 * change
    return {"checkpoints/change": change, "m": m, "v": v, "master": new, "weight": new.bfloat16().float()}


def linear_cross_entropy(g, tile=48, ignored=True):
    """The head and its loss, a tile of the vocabulary at a time: of a token there are three numbers."""
    x, labels, head = wide(g, "x", "labels", "head")
    z, total, own = x.new_full(labels.shape, -torch.inf), 0, 0
    for first in range(0, head.shape[0], tile):
        cap = 10 * torch.tanh(x @ head[first : first + tile].T / 10)
        z = torch.logaddexp(z, torch.logsumexp(cap, -1))
        total = total + cap.sum(-1)
        here = (labels >= first) & (labels < first + cap.shape[1])
        own = own + cap.gather(-1, (labels - first).clamp(0, cap.shape[1] - 1)[:, None])[:, 0] * here
    counts = labels != -100
    penalty = 0.01 * z * z
    each = 0.9 * (z - own) + 0.1 * (z - total / head.shape[0])
    n = counts.sum() if ignored else labels.numel()
    return {"checkpoints/z": z, "loss": (each + penalty)[counts].sum() / n, "z_loss": penalty[counts].sum() / n}


def ssd(g, chunk=10, stale=False):
    """Mamba-2 a chunk of tokens at a time, of any length: products within it, a state from the one before."""
    xbc, dt, z, taps, bias, dt_bias, a_log, skip, norm = wide(g, "xbc", "dt", "z", "taps", "bias", "dt_bias", "A_log", "D", "norm")
    padded = F.pad(xbc.transpose(1, 2), (taps.shape[1] - 1, 0))
    c = F.silu(F.conv1d(padded, taps[:, None], bias, groups=taps.shape[0]).transpose(1, 2))
    x, b, c_own = c.split([norm.shape[0], (c.shape[-1] - norm.shape[0]) // 2, (c.shape[-1] - norm.shape[0]) // 2], -1)
    x = x.unflatten(-1, (dt.shape[-1], -1))
    d = F.softplus(dt + dt_bias)
    decay = -d * a_log.exp()  # a logarithm
    state, parts = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[-1]), []  # [B,N,P,S]
    for first in range(0, x.shape[1], chunk):
        xc, bc, cc, dc, lc = (t[:, first : first + chunk] for t in (x, b, c_own, d, decay))
        total = lc.cumsum(1)
        ones = torch.ones(xc.shape[1], xc.shape[1]).tril()[None, :, :, None]
        within = torch.exp((total[:, :, None] - total[:, None]) * ones) * ones  # [B,T,L,N]
        parts.append(torch.einsum("bts,bls,btln,bln,blnp->btnp", cc, bc, within, dc, xc) + torch.einsum("bts,btn,bnps->btnp", cc, total.exp(), state))
        left = (total[:, -1:] - total).exp()
        kept = state if stale else total[:, -1].exp()[..., None, None] * state
        state = kept + torch.einsum("bln,bln,blnp,bls->bnps", left, dc, xc, bc)
    y = torch.cat(parts, 1) + skip[:, None] * x
    return {"checkpoints/c": c, "checkpoints/y": y, "y": rms_norm(y.flatten(2) * F.silu(z), norm, 1e-5)}


def top_k_softmax(g, over_all=False):
    x, gate, experts = wide(g, "x", "gate", "experts")
    logits = x @ gate
    best, ids = torch.topk(logits, 3, dim=-1)
    p = torch.softmax(logits, -1).gather(-1, ids) if over_all else torch.softmax(best, -1)
    y = torch.einsum("tk,tkf->tf", p, experts[ids])
    return {"checkpoints/logits": logits, "routing/ids/top_k": ids.to(torch.int32), "checkpoints/weights": p, "y": y}


def e4m3(x):
    """The nearest numbers of float8_e4m3fn, which not every PyTorch has."""
    step = torch.ldexp(torch.ones_like(x), torch.frexp(x)[1].clamp(min=-5) - 4)
    return (torch.round(x / step) * step).clamp(-448, 448)


def norm_rope_quantise(g, rounded_up=0):
    """MXFP8: blocks of 32 with a power of two each."""
    x, positions, scale, w = wide(g, "x", "positions", "scale", "w")
    q = torch.einsum("td,dnr->tnr", rms_norm(x, scale), w)
    turned = rope(q, positions, 10000.0)
    blocks = turned.unflatten(-1, (-1, 32))
    exponent = torch.frexp(blocks.abs().amax(-1))[1] - 9 + rounded_up  # 2^8 is e4m3's largest power of two
    factor = torch.ldexp(torch.ones_like(blocks[..., 0]), exponent)
    codes = e4m3(blocks.detach() / factor[..., None])
    y = turned + ((codes * factor[..., None]).flatten(-2) - turned).detach()  # the gradient goes straight through
    return {"checkpoints/q": q, "checkpoints/y/codes": codes.flatten(-2), "checkpoints/y/scale": factor, "y": y}


def swiglu_quantise(g, of_activation=False):
    """A scale for each token, which has less than 128 numbers."""
    x, gate, up, down = wide(g, "x", "gate", "up", "down")
    a, b = x @ gate, x @ up
    h = F.silu(a) * b
    factor = (F.silu(a) if of_activation else h).detach().abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    codes = e4m3(h.detach() / factor)
    taken = h + (codes * factor - h).detach()
    return {"checkpoints/g": a, "checkpoints/u": b, "checkpoints/q/codes": codes, "checkpoints/q/scale": factor, "y": taken @ down}


def gated_delta_net(g, chunk=16, stale=False):
    """The gated delta rule a chunk at a time: what its tokens write is found at once, from the state before them."""
    q, k, v, a, b, rate, bias = wide(g, "q", "k", "v", "a", "b", "A_log", "dt_bias")
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    query, gate, beta = q / q.shape[-1] ** 0.5, -F.softplus(a + bias) * rate.exp(), torch.sigmoid(b)
    state, parts = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[-1]), []  # [B,N,K,V]
    for first in range(0, q.shape[1], chunk):
        own = slice(first, first + chunk)
        qc, kc, vc, bc = (x[:, own].transpose(1, 2) for x in (query, k, v, beta[..., None]))  # [B,N,C,..]
        total = gate[:, own].transpose(1, 2).cumsum(-1)
        ones = torch.ones(total.shape[-1], total.shape[-1])
        decay = torch.exp((total[..., :, None] - total[..., None, :]).tril()).tril()
        system = ones.diag().diag() + (bc * (kc @ kc.transpose(-1, -2)) * decay).tril(-1)
        written = torch.linalg.solve(system, bc * (vc - total.exp()[..., None] * (kc @ state)))
        parts.append(total.exp()[..., None] * (qc @ state) + (qc @ kc.transpose(-1, -2) * decay) @ written)
        last = total[..., -1:, None]
        kept = state if stale else last.exp() * state
        state = kept + (kc * (last - total[..., None]).exp()).transpose(-1, -2) @ written
    steps = {"checkpoints/query": query, "checkpoints/key": k, "checkpoints/gate": gate, "checkpoints/beta": beta}
    return {**steps, "y": torch.cat(parts, 2).transpose(1, 2)}


def kda(g, chunk=16, stale=False):
    """Kimi's delta rule: a gate for each channel, so the decay between two tokens is within the sum over channels."""
    q, k, v, f, b, state, rate, bias = wide(g, "q", "k", "v", "f", "b", "start", "A_log", "dt_bias")
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    query, gate, beta = q / q.shape[-1] ** 0.5, -F.softplus(f + bias) * rate.exp()[:, None], torch.sigmoid(b)
    steps, parts = {"checkpoints/query": query, "checkpoints/key": k, "checkpoints/gate": gate, "checkpoints/beta": beta}, []
    for qc, kc, vc, gc, bc in zip(*(x.split(chunk) for x in (query, k, v, gate, beta))):
        total = gc.cumsum(0)
        later = torch.ones(len(gc), len(gc)).tril().bool()[:, :, None, None]
        decay = (total[:, None] - total[None]).masked_fill(~later, -torch.inf).exp()  # [T,S,N,K]
        system = torch.eye(len(gc)) + (bc.T[..., None] * torch.einsum("tnk,snk,tsnk->nts", kc, kc, decay)).tril(-1)
        rest = vc - torch.einsum("tnk,nkv->tnv", kc * total.exp(), state)
        written = torch.linalg.solve(system, (bc[..., None] * rest).transpose(0, 1))  # [N,T,V]
        own = torch.einsum("nts,nsv->tnv", torch.einsum("tnk,snk,tsnk->nts", qc, kc, decay), written)
        parts.append(own + torch.einsum("tnk,nkv->tnv", qc * total.exp(), state))
        kept = state if stale else total[-1].exp()[..., None] * state
        state = kept + torch.einsum("tnk,ntv->nkv", kc * (total[-1] - total).exp(), written)
    return {**steps, "state": state, "y": torch.cat(parts)}


def sparse_attention(g, interleaved=False):
    """The indexer's choice for each query, and attention over that alone."""
    names = ("x", "qr", "main", "latent", "at", "of", "wq", "wk", "k_scale", "k_bias", "weights_proj")
    x, qr, main, latent, at, of, wq, wk, k_scale, k_bias, weights_proj = wide(g, *names)
    q, k = torch.einsum("tq,qhi->thi", qr, wq), F.layer_norm(x @ wk, k_scale.shape, k_scale, k_bias, 1e-6)
    pairs = [0, 2, 1, 3]  # this indexer's halves are turned against each other, main attention's neighbours are
    turn = lambda t, places: torch.cat([rope(t[..., pairs] if interleaved else t[..., :4], places, 10000.0), t[..., 4:]], -1)
    query, key = turn(q, at), turn(k, of)
    weight = x[-len(at) :] @ weights_proj / wq.shape[1] ** 0.5
    score = torch.einsum("th,ths->ts", weight, F.relu(torch.einsum("thi,si->ths", query, key) / wq.shape[2] ** 0.5))
    seen = at[:, None] >= of
    ids = torch.topk(score.masked_fill(~seen, -1e30), 5).indices
    s = torch.einsum("tnc,tkc->tnk", main, latent[ids]) / latent.shape[1] ** 0.5
    p = torch.softmax(s.masked_fill(~seen.gather(1, ids)[:, None], -1e30), -1)
    steps = {"checkpoints/q": q, "checkpoints/k": k, "checkpoints/query": query, "checkpoints/key": key, "checkpoints/score": score}
    return {**steps, "routing/ids/top_k": ids.to(torch.int32), "o": torch.einsum("tnk,tkc->tnc", p, latent[ids])}


def lora_by_token(g, stale=False):
    """Rows of an adapter together; a token without one has the projection alone, and not the adapter of the token before."""
    x, adapter, w, a, b = wide(g, "x", "adapter", "w", "a", "b")
    if stale:
        adapter = adapter.clamp(min=0)
    y = x @ w
    for i in range(len(a)):
        rows = (adapter == i).nonzero()[:, 0]
        y = y.index_add(0, rows, x[rows] @ a[i] @ b[i] * (4 / 3**0.5))
    return {"y": y}


def moe_align(g, size=4, padded=True):
    """Copies sorted by expert, each expert's up to a whole block."""
    x, ids = wide(g, "x", "ids")
    flat, experts = ids.flatten(), 5
    count = torch.bincount(flat, minlength=experts)
    blocks = -(-count // size)
    begin = (blocks.cumsum(0) - blocks) * size if padded else count.cumsum(0) - count
    order = flat.argsort(stable=True)
    place = begin[flat[order]] + torch.arange(len(flat)) - (count.cumsum(0) - count)[flat[order]]
    sorted_ids, expert_ids = torch.full((32,), len(flat)).index_put((place,), order), torch.full((8,), -1)
    expert_ids[: int(blocks.sum())] = torch.arange(experts).repeat_interleave(blocks)
    rows = torch.cat([x.repeat_interleave(ids.shape[1], 0), torch.zeros_like(x[:1])])
    return {"sorted_ids": sorted_ids, "expert_ids": expert_ids, "padded": blocks.sum() * size, "y": rows[sorted_ids]}


def mtp(g, shifted=True):
    """Two more tokens ahead: each depth joins the embedding of its own next token to the hidden state before it, in this order."""
    names = ("table", "final", *(name + i for i in "12" for name in ("e_norm", "h_norm", "proj", "norm", "gate", "up", "down")))
    h, t1, t2, t3, table, final, *depths = wide(g, "h", "t1", "t2", "t3", *names)

    def loss(h, labels):
        logits = rms_norm(h, final) @ table.T
        return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum"), (labels != -100).sum()

    def depth(h, ids, e_norm, h_norm, proj, norm, gate, up, down):
        token = rms_norm(table[ids.clamp(min=0)] * (ids >= 0)[:, None], e_norm)  # behind a document there is none
        joined = torch.cat([token, rms_norm(h, h_norm)], -1)
        r = joined @ proj
        n = rms_norm(r, norm)
        return joined, r + F.silu(n @ gate) * (n @ up) @ down

    j1, h1 = depth(h, t1, *depths[:7])
    j2, h2 = depth(h1, t2 if shifted else t1, *depths[7:])
    (s0, n0), (s1, n1), (s2, n2) = loss(h, t1), loss(h1, t2), loss(h2, t3)
    steps = {"checkpoints/j1": j1, "checkpoints/h1": h1, "checkpoints/j2": j2, "checkpoints/h2": h2}
    return {**steps, "main": s0 / n0, "by_depth": 0.3 / 2 * (s1 / n1 + s2 / n2), "by_token": 0.1 * (s1 + s2) / (n1 + n2 + 1e-8)}


def turned_pairs(x, positions, theta, back=False):
    """The last four numbers of a head, neighbours against each other."""
    angle = positions.double()[:, None] * theta ** (-torch.arange(2, dtype=torch.float64) / 2)
    angle = angle.reshape(len(positions), *[1] * (x.dim() - 2), 2)
    c, s = angle.cos().float(), (-1 if back else 1) * angle.sin().float()
    a, b = x[..., -4::2], x[..., -3::2]
    return torch.cat([x[..., :-4], torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)], -1)


def compressed_attention(g, early=False):
    """DeepSeek-V4's: a window of three tokens, and of what lies before one entry for every four."""
    names = ("x", "q", "own", "at", "of", "first", "wkv", "wgate", "bias", "norm", "sinks", "wo")
    x, q, own, at, of, first, wkv, wgate, bias, norm, sinks, wo = wide(g, *names)
    kv, z = ((x @ w)[:16].unflatten(0, (4, 4)) for w in (wkv, wgate))
    n = rms_norm((torch.softmax(z + bias, 1) * kv).sum(1), norm)
    c = turned_pairs(n, first, 160000.0)
    near = (of <= at[:, None]) & (of > at[:, None] - 3)
    past = at[:, None] >= first + (0 if early else 3)  # an entry is there when its last token is
    keys, seen = torch.cat([own, c]), torch.cat([near, past], 1)
    scores = torch.einsum("tnc,yc->tny", q, keys) / q.shape[-1] ** 0.5
    with_sink = torch.cat([scores.masked_fill(~seen[:, None], -1e30), sinks.expand(*q.shape[:2])[..., None]], -1)
    o = torch.einsum("tny,yc->tnc", torch.softmax(with_sink, -1)[..., :-1], keys)
    r = turned_pairs(o, at, 160000.0, back=True)
    y = torch.einsum("tge,geo->tgo", r.reshape(len(x), 2, 24), wo)
    return {"checkpoints/n": n, "checkpoints/c": c, "checkpoints/past": past.float(), "checkpoints/o": o, "checkpoints/r": r, "y": y}


def transformer_layer(g, window=6):
    x, positions, segments, pre, post, wq, wk, wv, wo, gate, up, down = wide(
        g, "x", "positions", "segment_ids", "pre", "post", "wq", "wk", "wv", "wo", "gate", "up", "down")
    n = rms_norm(x, pre)
    q, k = (rope(torch.einsum("bsd,dnh->bsnh", n, w), positions, 5e5) for w in (wq, wk))
    v = torch.einsum("bsd,dkh->bskh", n, wv)
    keys, values = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
    place = torch.arange(x.shape[1])
    seen = (place[:, None] >= place) & (place[:, None] - place < window) & (segments[:, :, None] == segments[:, None, :]) & (segments[:, :, None] != 0)
    scores = torch.einsum("bsnh,btnh->bnst", q, keys) / q.shape[-1] ** 0.5
    p = torch.softmax(scores.masked_fill(~seen[:, None], -1e30), -1) * seen[:, None]
    o = torch.einsum("bnst,btnh->bsnh", p, values)
    r = x + torch.einsum("bsnh,nhd->bsd", o, wo)
    m = rms_norm(r, post)
    h = F.silu(m @ gate) * (m @ up)
    names = {"n": n, "q": q, "k": k, "v": v, "o": o, "r": r, "m": m, "h": h}
    return {**{"checkpoints/" + name: t for name, t in names.items()}, "y": r + h @ down}


def gemma3_layer(g, plus_one=True, window=3):
    """Norms by 1 + w, in front of both halves and behind them; queries and keys normed by head; a window of tokens."""
    names = ("before_attention", "q_norm", "k_norm", "behind_attention", "before_mlp", "behind_mlp")
    before_attention, q_norm, k_norm, behind_attention, before_mlp, behind_mlp = (w + 1 if plus_one else w for w in wide(g, *names))
    x, positions, q_proj, k_proj, v_proj, o_proj, gate, up, down = wide(g, "x", "positions", "q_proj", "k_proj", "v_proj", "o_proj", "gate", "up", "down")
    n = rms_norm(x, before_attention)
    q, k, v = (torch.einsum("btd,nhd->btnh", n, w) for w in (q_proj, k_proj, v_proj))
    q, k = rope(rms_norm(q, q_norm), positions, 10000.0), rope(rms_norm(k, k_norm), positions, 10000.0)
    keys, values = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
    place = torch.arange(x.shape[1])
    seen = (place[:, None] >= place) & (place[:, None] - place < window)
    scores = torch.einsum("bsnh,btnh->bnst", q, keys) / q.shape[-1] ** 0.5
    o = torch.einsum("bnst,btnh->bsnh", torch.softmax(scores.masked_fill(~seen, -1e30), -1), values)
    r = x + rms_norm(torch.einsum("btnh,dnh->btd", o, o_proj), behind_attention)
    m = rms_norm(r, before_mlp)
    h = F.gelu(m @ gate.T, approximate="tanh") * (m @ up.T)
    steps = {"n": n, "q": q, "k": k, "v": v, "o": o, "r": r, "m": m, "h": h}
    return {**{"checkpoints/" + name: t for name, t in steps.items()}, "y": r + rms_norm(h @ down.T, behind_mlp)}


# the kernel, its wrong form, what that is, and the step that a report names
KERNELS = {
    "norm-rope": (norm_rope, {"turn": -1.0}, "it turns the other way", "outputs/y"),
    "qk-norm-rope": (qk_norm_rope, {"swapped": True}, "each has the other's scale", "checkpoints/qn"),
    "swiglu": (swiglu, {"act": torch.sigmoid}, "a sigmoid for SiLU", "outputs/h"),
    "add-norm": (add_norm, {"of_sum": False}, "the norm of x alone", "outputs/y"),
    "cross-entropy": (cross_entropy, {"columns": 128}, "the last columns, no whole tile, are missed", "outputs/loss"),
    "lora": (lora, {"alpha": 1.0}, "the adapter's factor is left out", "outputs/y"),
    "causal-conv": (causal_conv, {"shift": 1}, "it sees the next token", "checkpoints/v"),
    "merge-states": (merge_states, {"base": 0.6931471805599453}, "log-sum-exps are taken for base 2", "outputs/out"),
    "hyper-connections": (hyper_connections, {"rounds": 1}, "one round too few", "checkpoints/h"),
    "mhc": (mhc, {"transposed": True}, "the streams are mixed by the transposed matrix", "outputs/y"),
    "muon": (muon, {"by_element": True}, "the second power is that of each element", "checkpoints/x5"),
    "adamw": (adamw, {"corrected": False}, "the second moment is not corrected", "checkpoints/change"),
    "linear-cross-entropy": (linear_cross_entropy, {"ignored": False}, "labels of -100 count in the mean", "outputs/loss"),
    "ssd": (ssd, {"chunk": 4, "stale": True}, "the state is not decayed where a chunk ends", "checkpoints/y"),
    "top-k-softmax": (top_k_softmax, {"over_all": True}, "the softmax is over all, and the best are not renormalised", "checkpoints/weights"),
    "norm-rope-quantise": (norm_rope_quantise, {"rounded_up": 1}, "scales are rounded up", "checkpoints/y/scale"),
    "swiglu-quantise": (swiglu_quantise, {"of_activation": True}, "a token's scale is that of the activation alone", "checkpoints/q/scale"),
    "gated-delta-net": (gated_delta_net, {"stale": True}, "the state is not decayed where a chunk ends", "outputs/y"),
    "kda": (kda, {"stale": True}, "the state is not decayed where a chunk ends", "outputs/state"),
    "sparse-attention": (sparse_attention, {"interleaved": True}, "the indexer's neighbours are turned against each other", "checkpoints/query"),
    "lora-by-token": (lora_by_token, {"stale": True}, "a token without an adapter has the first one's", "outputs/y"),
    "moe-align": (moe_align, {"padded": False}, "experts begin where the one before ends, and not at a block", "outputs/sorted_ids"),
    "mtp": (mtp, {"shifted": False}, "the second depth is given the first one's token", "checkpoints/j2"),
    "compressed-attention": (compressed_attention, {"early": True}, "an entry is seen from its first token on", "checkpoints/past"),
    "gemma3-layer": (gemma3_layer, {"plus_one": False}, "norms multiply by w, and not by 1 + w", "checkpoints/n"),
    "transformer-layer": (transformer_layer, {"window": 99}, "the window is left out", "checkpoints/o"),
}


def run(name, case, **how):
    """What case.check takes: outputs in the case's type, statistics, steps and indices as they are, and gradients."""
    given = case.inputs(torch, requires_grad=True)
    kernel = KERNELS[name][0]
    made = kernel(given, **how)
    dtype = next(x.dtype for path, x in given.items() if x.is_floating_point())
    outputs = {"outputs/" + n if "/" not in n else n: y if n in ("lse", "z_loss") or "/" in n or not y.is_floating_point() else y.to(dtype) for n, y in made.items()}
    differentiable = {path: y for path, y in outputs.items() if path.startswith("outputs/") and y.is_floating_point()}
    return {**outputs, **case.backward(differentiable, given)}
