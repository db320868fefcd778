"""Kernels with the bugs of public reports: each is rejected, and named by its step and by what happens there."""
import assay
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

PROGRAM = "case: test/named\nop: program\n"
NORM = PROGRAM + """
sizes: {T: 9, D: 96}
inputs: {x: [T, D]}
weights: {s: [D]}
steps: {r: 'rsqrt(add(mean(square(x), over="D"), 1.0e-6))'}
outputs: {y: 'mul(mul(x, r), s)'}
"""
GATED = PROGRAM + """
sizes: {T: 9, D: 24, H: 32, N: 16}
inputs: {x: [T, D]}
weights: {w: [D, H]}
steps: {z: 'product("TD,DH->TH", x, w)'}
outputs: {y: 'mul(silu(slice("H->N", z)), slice("H->N", z, first=16))'}
"""
SCAN = PROGRAM + """
sizes: {B: 2, T: 40, C: 6}
inputs: {x: [B, T, C], a: {axes: [B, T, C], distribution: uniform, low: 0.5, high: 1.0}}
steps: {}
outputs: {y: 'linear_scan(a, x, over="T")'}
"""
PRODUCT = PROGRAM + """
sizes: {B: 2, S: 5, N: 3, H: 4, E: 7}
inputs: {x: [B, S, N, H], g: [B, S, N]}
weights: {w: [N, H, E]}
steps: {h: 'mul(x, g)'}
outputs: {y: 'product("BSNH,NHE->BSE", h, w)'}
"""
TILES = PROGRAM + """
sizes: {T: 9, D: 72, E: 16}
inputs: {x: [T, D]}
weights: {w: [D, E]}
steps: {}
outputs: {y: 'product("TD,DE->TE", x, w)'}
"""
GROUPS = PROGRAM + """
sizes: {T: 9, D: 16, E: 8, K: 3, G: 4, P: 2, H: 2, F: 12}
inputs: {x: [T, D], number: {axes: [E], integers: [0, 3], values: [0, 0, 1, 1, 2, 2, 3, 3]}}
weights: {gate: [D, E], experts: [E, F]}
steps:
  scores: sigmoid(product("TD,DE->TE", x, gate))
  best: top_k(max(reshape("TGP", scores), over="P"), "G->H")
  inside: max(equal(rearrange("TH->HT", float(best)), float(number)), over="H")
  ids: top_k(where(inside, scores, -1), "E->K")
outputs: {y: 'product("TK,TKF->TF", pick(scores, ids), gather(experts, ids))'}
"""


ROUNDS = PROGRAM + """
sizes: {T: 7, H: 6, K: 6}
inputs: {u: [T, H], h: [H]}
weights: {w: [H, K]}
steps:
  tokens:
    scan: T
    steps: {g: 'sigmoid(at(u))', h: 'add(mul(g, h), tanh(add(at(u), reshape("H", product("H,HK->K", h, w)))))'}
    stack: {hs: h}
outputs: {y: hs}
"""


TURNED = PROGRAM + """
sizes: {T: 9, R: 8}
inputs: {q: [T, R], k: [T, R], positions: {axes: [T], integers: [0, 50]}}
steps: {a: 'rope(q, positions)', b: 'rope(k, positions)'}
weights: {w: [R]}
outputs: {y: 'mul(mul(a, b), w)'}
"""
JOINED = PROGRAM + """
sizes: {T: 9, D: 6, P: 6, Q: 12}
inputs: {x: [T, D], h: [T, P]}
weights: {w: [Q, D]}
steps: {}
outputs: {y: 'product("TQ,QD->TD", concatenate("D,P->Q", x, h), w)'}
"""


def turned(x, positions, pairs):
    angle = positions[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    a, b = (x[:, ::2], x[:, 1::2]) if pairs else x.chunk(2, -1)
    parts = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return torch.stack(parts, -1).flatten(1) if pairs else torch.cat(parts, -1)


def scores(q, k, positions, w, pairs=False):
    return turned(q, positions, pairs) * turned(k, positions, pairs) * w


def by_token(x, adapter, number, w, a, b, factor=4 / 3**0.5):
    own = adapter[:, None] == number
    return x @ w + torch.einsum("tlr,lrf->tf", torch.einsum("td,ldr->tlr", x, a) * own[..., None], b) * factor


def cross_entropy(x, head, target):
    z = x @ head
    return torch.logsumexp(z, -1) - z.gather(1, target.long()[:, None])[:, 0]


def mix(streams, mixing, pattern="ij,tjd->tid"):
    e = mixing.exp()
    for over in (1, 0, 1, 0):
        e = e / e.sum(over, keepdim=True)
    return torch.einsum(pattern, e, streams)


def lora(x, w, a, b):
    return x @ w + 2 * ((x @ a) @ b)


def convolve(x, taps):
    padded = F.pad(x.transpose(1, 2), (taps.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, taps[:, None], groups=taps.shape[0]).transpose(1, 2))


def handed_over(x, taps, state, chunk=16, once=False):
    """The last inputs of a chunk, as `state` has them, are what the next one begins with."""
    parts = [convolve(x[:, :chunk], taps)]
    for first in range(chunk, x.shape[1], x.shape[1] if once else chunk):
        part = torch.cat([state(x[:, first - 3:first]), x[:, first:] if once else x[:, first:first + chunk]], 1)
        parts.append(convolve(part, taps)[:, 3:])
    return torch.cat(parts, 1)


def other_layout(state):
    return state.reshape(state.shape[0], state.shape[2], state.shape[1]).transpose(1, 2)


def behind(x, count):
    """What lies behind the end of each row, and zeros behind the last."""
    return torch.cat([x[1:, :count], torch.zeros(1, count)])


def norm(x, s, read=96, more=0):
    squares = x[:, :read].square().sum(-1, keepdim=True) + behind(x, more).square().sum(-1, keepdim=True)
    return x * torch.rsqrt(squares / 96 + 1e-6) * s


def tiles(x, w, more=0):
    return x @ w + behind(x, more) @ w[8:8 + more]


def chosen(x, gate, experts, weigh=lambda z, ids: torch.softmax(z.gather(1, ids), -1)):
    z = x @ gate
    ids = z.topk(3, -1).indices
    return torch.einsum("tk,tkf->tf", weigh(z, ids), experts[ids])


def undivided(z, ids):
    z = z.gather(1, ids)
    return torch.exp(z - z.max(-1, keepdim=True).values)


def within_groups(x, number, gate, experts, alone=False):
    scores = torch.sigmoid(x @ gate)
    best = scores.view(9, 4, 2).amax(-1).topk(2, -1).indices
    inside = (best[:, :, None] == number).any(1)
    ids = torch.where(inside, scores, -1).topk(3, -1).indices
    own = scores.topk(3, -1).indices if alone else ids
    return torch.einsum("tk,tkf->tf", scores.gather(1, own), experts[ids])


def gated(x, w, interleaved=False):
    z = x @ w
    a, b = (z[:, 0::2], z[:, 1::2]) if interleaved else z.chunk(2, -1)
    return F.silu(a) * b


def scan(a, x, chunk=1000, layout=None, at=(16, 32)):
    state, rows = 0, []
    for t in range(x.shape[1]):
        if layout is not None and t in at:
            state = layout(state)
        state = (a[:, t] if t == 0 or t % chunk else 0 * a[:, t]) * state + x[:, t]
        rows.append(state)
    return torch.stack(rows, 1)


def rounds(u, h, w, out=0):
    rows = []
    for x in u:
        g = torch.sigmoid(x)
        h = g * (1 if out == 1 else h) + torch.tanh(x + h @ (w.T if out == 2 else w))
        rows.append(h)
    return torch.stack(rows)


def product(x, g, w):
    return torch.einsum("bsnh,nhe->bse", x * g[..., None], w)


def first_of(t, dim):
    """Index 0 for all, with a gradient for each index of its own."""
    return t.narrow(dim, 0, 1).detach().expand_as(t) + (t - t.detach())


# case, the right kernel, the wrong one, what the report says
BUGS = [
    ("program/hyper-connections", mix, lambda streams, mixing: mix(streams, mixing, "ji,tjd->tid"), "step:y:transposed_h_IJ"),
    ("program/hyper-connections", mix, lambda streams, mixing: mix(streams, mixing.T), "step:e:transposed_mixing_IJ"),
    ("program/lora", lora, lambda x, w, a, b: lora(x, w, a, b.reshape(b.shape[1], b.shape[0]).T), "step:y.product2:transposed_b_RF"),
    ("program/causal-conv", convolve, lambda x, taps: convolve(x, taps.flip(1)), "step:v:reversed"),
    (NORM, norm, lambda x, s: norm(x, s, read=64), "step:r.mean:above_power_of_two_not_read"),
    (GATED, gated, lambda x, w: gated(x, w, interleaved=True), "step:z:interleaved"),
    (SCAN, scan, lambda a, x: scan(a, x, chunk=16), "step:y:state_lost_16"),
    (SCAN, scan, lambda a, x: scan(a, x, layout=lambda s: s.reshape(6, 2).T), "step:y:state_transposed_16"),
    ("program/causal-conv", convolve, lambda x, taps: handed_over(x, taps, other_layout), "step:v:state_transposed_16"),
    ("program/causal-conv", convolve, lambda x, taps: handed_over(x, taps, lambda s: s.flip(1)), "step:v:state_reversed_16"),
    ("program/causal-conv", convolve, lambda x, taps: handed_over(x, taps, other_layout, 20, True), "step:v:state_transposed_once_20"),
    ("program/causal-conv", convolve, lambda x, taps: handed_over(x, taps, lambda s: s.flip(1), 20, True), "step:v:state_reversed_once_20"),
    (SCAN, scan, lambda a, x: scan(a, x, layout=lambda s: s.reshape(6, 2).T, at=[13]), "step:y:state_transposed_once_13"),
    (SCAN, scan, lambda a, x: scan(a, x, layout=lambda s: 0 * s, at=[13]), "step:y:state_lost_once_13"),
    (TURNED, scores, lambda **given: scores(**given, pairs=True), "step:rope:other_pairs"),
    (JOINED, lambda x, h, w: torch.cat([x, h], 1) @ w, lambda x, h, w: torch.cat([h, x], 1) @ w, "step:y.concatenate:exchanged"),
    ("program/lora-by-token", by_token, lambda **given: by_token(**given, factor=4 / 3), "step:y.mul2:factor_twice"),
    (ROUNDS, rounds, lambda **given: rounds(**given, out=1), "step:h.mul:first_alone"),
    (ROUNDS, rounds, lambda **given: rounds(**given, out=2), "step:h.product:transposed_w_HK"),
    (NORM, norm, lambda x, s: norm(x, s, more=32), "step:r.mean:reads_on_64_of_r.square"),
    (TILES, tiles, lambda x, w: tiles(x, w, more=56), "step:y:reads_on_64_of_x"),
    (TILES, tiles, lambda x, w: x @ w + x[:, 8:64] @ w[8:64], "step:y:tail_twice_64_of_x"),
    ("program/top-k-softmax", chosen, lambda **given: chosen(**given, weigh=undivided), "step:weights:not_divided"),
    ("program/top-k-softmax", chosen, lambda **given: chosen(**given, weigh=lambda z, ids: torch.softmax(z, -1).gather(1, ids)), "step:weights:of_all"),
    (GROUPS, within_groups, lambda **given: within_groups(**given, alone=True), "step:y.pick:chooses_by_scores"),
    (PRODUCT, product, lambda x, g, w: product(x, first_of(g, 2), w), "step:h:index_0_of_g_N_gradients_apart"),
    (PRODUCT, product, lambda x, g, w: product(x, g[:, :1].expand_as(g), w), "step:h:index_0_of_g_S"),
    (PRODUCT, product, lambda x, g, w: product(x.reshape(2, 3, 5, 4).permute(0, 2, 1, 3), g, w), "step:h:transposed_x_SN"),
]


def results(case, kernel, cotangent=lambda c: c):
    given = {p: v.float().requires_grad_(True) if v.is_floating_point() else v for p, v in case.inputs(torch).items()}
    y = kernel(**{p.split("/")[1]: v for p, v in given.items()})
    (path, dy), = case.cotangents(torch).items()
    wanted = [p for p in given if given[p].requires_grad]
    gradients = torch.autograd.grad(y, [given[p] for p in wanted], cotangent(dy.float()))
    return {path.replace("cotangents", "outputs"): y.detach(), **{f"gradients/{p}": g for p, g in zip(wanted, gradients)}}


def opened(what, tmp_path, precision="f32"):
    if what.startswith("case:"):
        file = tmp_path / "case.yml"
        file.write_text(what)
        what = str(file)
    return assay.case(what, precision=precision)


@pytest.mark.parametrize("what, right, wrong, name", BUGS, ids=[b[3] for b in BUGS])
def test_named(what, right, wrong, name, tmp_path):
    case = opened(what, tmp_path)
    case.check(results(case, right))
    with pytest.raises(assay.Mismatch, match=f"known bug {name}(:| or)"):
        case.check(results(case, wrong))


def test_one_cotangent_for_all(tmp_path):
    case = opened("program/cross-entropy", tmp_path)
    case.check(results(case, cross_entropy))
    with pytest.raises(assay.Mismatch, match="known bug step:loss:gradient_of_index_0_T:"):
        case.check(results(case, cross_entropy, lambda c: c[:1].expand_as(c)))


ROUTER = """
case: test/router
op: routing
model: mixtral-8x7b
config: {base_emb_dim: 24, num_experts: 6, num_experts_per_tok: 2}
batch: 2
sequence: 9
"""


def test_a_softmax_over_all_experts(tmp_path):
    """Weights of the chosen experts that are not divided by their sum."""
    file = tmp_path / "case.yml"
    file.write_text(ROUTER)
    case = assay.case(str(file), precision="f32")
    given = {path: value.float().requires_grad_(True) for path, value in case.inputs(torch).items()}
    logits = given["inputs/x"] @ given["weights/gate/kernel"]
    chosen = logits.topk(2, -1).indices

    def routed(weights):
        gradients = torch.autograd.grad(weights, list(given.values()), case.cotangents(torch)["cotangents/weights"].float(), retain_graph=True)
        return {"outputs/weights": weights.detach(), "routing/selected_experts": chosen.int(), **{f"gradients/{p}": g for p, g in zip(given, gradients)}}

    case.check(routed(torch.softmax(logits.gather(-1, chosen), -1)))
    with pytest.raises(assay.Mismatch, match="known bug division_missing:"):
        case.check(routed(torch.softmax(logits, -1).gather(-1, chosen)))


SHIFTED = PROGRAM + """
sizes: {T: 256, D: 64}
inputs: {x: [T, D]}
weights: {w: {axes: [D], scale: 0.1}}
steps: {}
outputs: {y: 'rms_norm(x, add(w, 1.0))'}
fused: all
"""


def shifted(x, w, stored=False):
    s = 1 + w
    s = s + (s.bfloat16().float() - s).detach() if stored else s
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * s


IN_BF16 = [
    (SHIFTED, shifted, lambda x, w: shifted(x, w, stored=True), "step:y.add:stored"),
    ("program/causal-conv", convolve, lambda x, taps: handed_over(x, taps, other_layout, 20, True), "step:v:state_transposed_once_20"),
]


@pytest.mark.parametrize("what, right, wrong, name", IN_BF16, ids=[b[3] for b in IN_BF16])
def test_named_where_bfloat16_is_stored(what, right, wrong, name, tmp_path):
    case = opened(what, tmp_path, "bf16")
    stored = lambda kernel: {path: value.bfloat16() for path, value in results(case, kernel).items()}
    case.check(stored(right))
    with pytest.raises(assay.Mismatch, match=f"known bug {name}:"):
        case.check(stored(wrong))
