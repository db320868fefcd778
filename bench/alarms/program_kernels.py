"""Programs that people write, each with a kernel in all the forms that docs/programs.md promises to pass, in PyTorch; nothing of the oracle's. A program is the text of its
case and a function of `k`, which draws the forms; `k.wrong(name)` is a planted mistake, of which one at most is on."""
import functools
import random

import numpy as np
import torch
import torch.nn.functional as F

import library_attention
from engine_arithmetic import Arithmetic, Forms, power_of_two

PROFILES = ("f64", "f32", "bf16", "f16")
LOG2E = 1.4426950408889634
SIGMOID_BY_TANH = {torch.float16: -8.0, torch.bfloat16: -8.0, None: -2.0}  # as (1 + tanh(x / 2)) / 2 above it: below it loses its digits


class Contract(torch.autograd.Function):
    """An einsum of two operands in the type of products, with its gradients."""

    @staticmethod
    def forward(ctx, a, b, letters, k):
        a, b = k.ar.operand(a), k.ar.operand(b)
        ctx.save_for_backward(a, b)
        ctx.letters, ctx.k = letters, k
        return k.einsum(letters, a, b)

    @staticmethod
    def backward(ctx, d):
        (a, b), k = ctx.saved_tensors, ctx.k
        (of_a, of_b), out = ctx.letters.split("->")[0].split(","), ctx.letters.split("->")[1]
        d = k.ar.operand(d)
        return k.einsum(f"{out},{of_b}->{of_a}", d, b), k.einsum(f"{of_a},{out}->{of_b}", a, d), None, None


class Softmax(torch.autograd.Function):
    """Over the last axis, with the gradient by hand."""

    @staticmethod
    def forward(ctx, x, k):
        p = k.probabilities(x)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, d):
        p, = ctx.saved_tensors
        return p * (d - (p * d).sum(-1, keepdim=True)), None


class Flash(torch.autograd.Function):
    """softmax(scores) value; backward from the log-sum-exp and <out, d_out> of what was stored."""

    @staticmethod
    def forward(ctx, scores, value, k):
        p = k.probabilities(scores)
        out = k.ar.round(k.einsum("bnst,bnth->bnsh", k.ar.operand(p), k.ar.operand(value)))
        ctx.save_for_backward(scores, value, out, torch.logsumexp(scores, -1, keepdim=True))
        ctx.k = k
        return out

    @staticmethod
    def backward(ctx, d):
        (scores, value, out, lse), k = ctx.saved_tensors, ctx.k
        two = k.form("probabilities of the backward", "exp", "exp2") == "exp2" and not k.ar.exact
        p, d = torch.exp2(scores * LOG2E - lse * LOG2E) if two else torch.exp(scores - lse), k.ar.operand(d)
        dp = k.einsum("bnsh,bnth->bnst", d, k.ar.operand(value))
        return p * (dp - (d * out).sum(-1, keepdim=True)), k.einsum("bnst,bnsh->bnth", k.ar.operand(p), d), None


def erf_of_seven_digits(x):
    """Abramowitz and Stegun 7.1.26: 1.5e-7 off at most."""
    t, total = 1 / (1 + 0.3275911 * x.abs()), torch.zeros_like(x)
    for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        total = (total + a) * t
    return torch.sign(x) * (1 - total * torch.exp(-x * x))


class Gelu(torch.autograd.Function):
    """By that erf, forward and backward."""

    @staticmethod
    def forward(ctx, x):
        phi = 0.5 * (1 + erf_of_seven_digits(x * 0.7071067811865476))
        ctx.save_for_backward(x, phi)
        return x * phi

    @staticmethod
    def backward(ctx, d):
        x, phi = ctx.saved_tensors
        return d * (phi + x * torch.exp(-0.5 * x * x) * 0.3989422804014327)


class Through(torch.autograd.Function):
    """What codes stand for, with x's gradient."""

    @staticmethod
    def forward(ctx, x, value):
        return value.clone()

    @staticmethod
    def backward(ctx, d):
        return d, None


class Kernel:
    def __init__(self, profile, number, staged, mistake):
        self.ar, self.number, self.staged, self.mistake, self.mistakes = Arithmetic(profile, Forms(number)), number, staged, mistake, []
        if staged:  # what is given as a checkpoint is what is read
            self.ar.forms.stored = 1.0
        self.chosen, self.choice, self.codes = {}, {}, {}

    def wrong(self, name):
        self.mistakes.append(name)
        return name == self.mistake

    def form(self, name, *values):
        if name not in self.chosen:
            self.chosen[name] = values[0] if self.number == 0 else random.Random(f"{self.number} {name}").choice(values)
        return self.chosen[name]

    def step(self, name, x):
        kept = self.ar.keep(name, x)
        self.ar.checkpoint(name, kept)
        return kept

    def product(self, letters, a, b):
        return Contract.apply(a, b, letters, self)

    def einsum(self, letters, a, b):
        of_a, of_b = letters.split("->")[0].split(",")
        summed = [c for c in of_a if c in of_b and c not in letters.split("->")[1]]
        form = self.form("product", "library", "split", "reversed", "exact", "shuffled")
        if form == "exact":
            return torch.einsum(letters, a.double(), b.double()).to(a.dtype)
        if not summed or form == "library":
            return torch.einsum(letters, a, b)
        at, bt = of_a.index(summed[0]), of_b.index(summed[0])
        if form == "split":
            size = -(-a.shape[at] // self.ar.forms.parts)
            return self.ar.in_turn([torch.einsum(letters, x, y) for x, y in zip(a.split(size, at), b.split(size, bt))])
        order = torch.arange(a.shape[at]).flip(0) if form == "reversed" else torch.randperm(a.shape[at], generator=torch.Generator().manual_seed(self.number))
        return torch.einsum(letters, a.index_select(at, order), b.index_select(bt, order))

    def sum(self, x):
        """Over the last axis."""
        form = self.form("sum", "library", "tree", "reversed")
        if form == "library":
            return x.sum(-1)
        parts = list(x.unbind(-1))
        if form == "reversed":
            return self.ar.in_turn(parts[::-1])
        while len(parts) > 1:
            parts = [sum(parts[i : i + 2]) for i in range(0, len(parts), 2)]
        return parts[0]

    def amax(self, x):
        if self.form("amax", "library", "halves") == "library" or x.shape[-1] % 2:
            return x.amax(-1)
        return torch.maximum(x[..., ::2].amax(-1), x[..., 1::2].amax(-1))

    def exp(self, x):
        return torch.exp2(x * LOG2E) if self.form("exp", "e", "2") == "2" and not self.ar.exact else torch.exp(x)

    def probabilities(self, x, of_differences=False):
        form = self.form("softmax", "library", "reciprocal", "exp2 of differences", "online", *(() if of_differences else ("exp2", "lse")))
        largest = x.amax(-1, keepdim=True).detach()
        if form == "library" or self.ar.exact:
            return torch.softmax(x, -1)
        if form == "lse":
            return torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
        if form == "online":
            m, s = torch.full_like(largest, -1e30), torch.zeros_like(largest)
            for tile in x.split(self.ar.forms.tile, -1):
                grown = torch.maximum(m, tile.amax(-1, keepdim=True)).detach()
                s, m = s * torch.exp(m - grown) + torch.exp(tile - grown).sum(-1, keepdim=True), grown
            return torch.exp(x - m) / s
        e = torch.exp(x - largest) if form == "reciprocal" else torch.exp2(x * LOG2E - largest * LOG2E) if form == "exp2" else torch.exp2((x - largest) * LOG2E)
        return e * (1 / self.sum(e)[..., None])

    def softmax(self, x):
        if self.wrong("softmax is not normalised"):
            return torch.exp(x - x.amax(-1, keepdim=True))
        return Softmax.apply(x, self) if self.form("softmax backward", "autograd", "hand") == "hand" else self.probabilities(x)

    def attend(self, scores, value):
        """[B,N,S,T], [B,N,T,H]."""
        if self.form("attention", "products", "flash", "flash") == "flash" and not self.mistake:
            return Flash.apply(scores, value, self)
        return self.product("bnst,bnth->bnsh", self.softmax(scores), value)

    def library_attention(self, q, key, v, bias, scale):
        """[B,N,S,H] and [S,T]; None: none is drawn, or this Python has not the one that is."""
        form = self.form("library attention", "own", "own", "SDPA", "JAX")
        if self.mistake or not library_attention.THERE.get(form):
            return None
        return library_attention.BY[form](q, key, v, bias, scale, self.ar, self.ar.forms.tile)

    def logsumexp(self, x):
        form = self.form("logsumexp", "library", "exp2", "online")
        if form == "library" or self.ar.exact:
            return torch.logsumexp(x, -1)
        m = x.amax(-1, keepdim=True).detach()
        if form == "exp2":
            return (m + torch.log(torch.exp2((x - m) * LOG2E).sum(-1, keepdim=True)))[..., 0]
        return torch.logsumexp(torch.stack([torch.logsumexp(t, -1) for t in x.split(self.ar.forms.tile, -1)], -1), -1)

    def best(self, x, count):
        """The step i: of equal ones the lower index."""
        chosen = x.sort(dim=-1, descending=True, stable=True).indices[:, :count]
        self.choice = {"routing/i/top_k": chosen.int().numpy()} if count == 2 else {}
        return chosen

    def sigmoid(self, x):
        if self.form("sigmoid", "engine", "engine", "tanh") == "engine" or self.ar.exact:
            return self.ar.sigmoid(x)
        return torch.where(x > SIGMOID_BY_TANH[self.ar.type], 0.5 + 0.5 * torch.tanh(0.5 * x), self.ar.sigmoid(x))

    def silu(self, x):
        return x * self.sigmoid(x) if not self.wrong("silu is gelu") else F.gelu(x)

    def gelu(self, x):
        if self.form("erf", "library", "1e-7") == "1e-7" and not self.ar.exact:
            return Gelu.apply(x)
        return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))

    def rsqrt(self, x):
        form = self.form("rsqrt", "library", "divided", "above", "below")
        y = 1 / torch.sqrt(x) if form == "divided" else torch.rsqrt(x)
        return y * {"above": 1 + 2**-23, "below": 1 - 2**-23}.get(form, 1.0) if not self.ar.exact else y

    def rms_norm(self, x, scale, epsilon=1e-6):
        mean = self.sum(x * x) / (x.shape[-1] - (1 if self.wrong("mean over one less") else 0))
        n = x * self.rsqrt(mean[..., None] + epsilon)
        return n * (scale + 1 if self.wrong("norm by 1 + scale") else scale)

    def layer_norm(self, x, scale, bias, epsilon=1e-6):
        mean = self.sum(x)[..., None] / x.shape[-1]
        form = "two passes" if self.ar.exact else self.form("variance", "two passes", "squares", "Welford", "library")
        if form == "library" and not self.mistake:
            return F.layer_norm(x, x.shape[-1:], scale, bias, epsilon)
        if form == "squares":
            variance = self.sum(x * x)[..., None] / x.shape[-1] - mean * mean
            variance = variance.clamp(min=0)
        elif form == "Welford":
            m, s = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
            for i, v in enumerate(x.unbind(-1), 1):
                d = v - m
                m = m + d / i
                s = s + d * (v - m)
            mean, variance = m[..., None], s[..., None] / x.shape[-1]
        else:
            variance = self.sum((x - mean) ** 2)[..., None] / (x.shape[-1] - (1 if self.wrong("variance of a sample") else 0))
        return (x - mean) * self.rsqrt(variance + epsilon) * scale + (0 if self.wrong("no bias") else bias)


def causal(k, scores):
    s, t = scores.shape[-2:]
    return scores.masked_fill(torch.ones(s, t).triu(2 if k.wrong("mask off by one") else 1).bool(), -1e30)


def attention(k, q, key, v, window=0, cap=0.0):
    copies, (b, s, n, h) = q.shape[2] // key.shape[2], q.shape
    spread = lambda x: x.repeat(1, 1, copies, 1) if k.mistake == "heads in turn" else x.repeat_interleave(copies, 2)
    k.wrong("heads in turn")
    q, key, v = (x.transpose(1, 2) for x in (q, spread(key), spread(v)))
    if not cap:
        seen = torch.ones(s, s).tril() - (torch.ones(s, s).tril(-window) if window else 0)
        y = k.library_attention(q, key, v, torch.where(seen > 0, 0.0, -1e30).to(q.dtype), h**-0.5)
        if y is not None:
            return {"y": y.transpose(1, 2)}
    scores = k.product("bnsh,bnth->bnst", q, key) * (1 / h if k.wrong("scale 1 / H") else h**-0.5)
    if cap:
        scores = scores if k.wrong("no cap") else cap * torch.tanh(scores / cap)
    scores = causal(k, scores)
    if window:
        w = window + 1 if k.wrong("window one more") else window
        scores = scores.masked_fill(torch.ones(s, s).tril(-w).bool(), -1e30)
    return {"y": k.attend(scores, v).transpose(1, 2)}


def attention_bias(k, q, key, v, bias):
    y = None if k.staged else k.library_attention(q, key, v, bias, 0.25)
    if y is not None:
        return {"y": y}
    scores = k.step("s", k.product("bnsh,bnth->bnst", q, key)) * 0.25
    return {"y": k.attend(scores if k.wrong("no bias") else scores + bias, v)}


def scan(k, gate, b):
    """a = sigmoid(gate): [T, F]."""
    a = k.step("a", k.sigmoid(gate))
    if not k.mistake and k.form("scan", "tokens", "chunks") == "chunks" and not k.ar.exact and k.ar.round(a).min() > 0:  # a chunk takes logarithms
        made, y = [], torch.zeros_like(b[0])
        for ga, gb in zip(a.split(4), b.split(4)):
            log = torch.log(ga).cumsum(0)
            difference = (log[:, None] - log[None]).masked_fill(torch.ones(len(ga), len(ga)).triu(1).bool()[..., None], -1e30)
            chunk = (torch.exp(difference) * gb[None]).sum(1) + torch.exp(log) * y
            made.append(chunk)
            y = chunk[-1]
        return {"y": torch.cat(made)}
    made, y = [], torch.zeros_like(b[0])
    for t in range(len(a)):
        y = (a[max(t - 1, 0)] if k.mistake == "gate of the token before" else a[t]) * y + b[t]
        y = torch.zeros_like(y) if k.mistake == "state is lost" and t == len(a) // 2 else y
        made.append(y)
    k.wrong("gate of the token before"), k.wrong("state is lost")
    return {"y": torch.stack(made)}


def delta(k, q, key, v, f, b):
    """The gated delta rule, 1, 8 or 16 tokens at once: what these write is found from the state before them. q, key: [T, N, K]."""
    n = k.step("n", key * k.rsqrt(k.sum(key * key)[..., None] + 1e-6))
    gate, beta = k.step("g", -F.softplus(f)), k.step("beta", k.sigmoid(b))
    if k.wrong("beta is left out"):
        beta = torch.ones_like(b)
    q, n, v, gate, beta = (x.transpose(0, 1) for x in (q, n, v, gate, beta))
    state, made, size = q.new_zeros(len(q), q.shape[-1], v.shape[-1]), [], k.form("chunk", 8, 1, 16)
    stale = q.shape[1] > 2 * size and k.wrong("state is not decayed where a chunk ends")
    for qc, kc, vc, gc, bc in zip(*(x.split(size, 1) for x in (q, n, v, gate, beta[..., None]))):
        total = gc.cumsum(-1)
        decay = (total[:, :, None] - total[:, None]).tril().exp().tril()
        system = torch.eye(gc.shape[1], dtype=q.dtype) + (bc * k.product("ntk,nsk->nts", kc, kc) * decay).tril(-1)
        written = torch.linalg.solve(system, bc * (vc - total.exp()[..., None] * k.product("ntk,nkv->ntv", kc, state)))
        made.append(total.exp()[..., None] * k.product("ntk,nkv->ntv", qc, state)
                    + k.product("nts,nsv->ntv", k.product("ntk,nsk->nts", qc, kc) * decay, written))
        last = total[:, -1:, None]
        state = (state if stale else last.exp() * state) + k.product("ntk,ntv->nkv", kc * (last - total[..., None]).exp(), written)
    return {"y": torch.cat(made, 1).transpose(0, 1)}


def rms(k, x, scale):
    return {"y": k.rms_norm(x, scale)}


def layer(k, x, scale, bias):
    return {"y": k.layer_norm(x, scale, bias)}


def residual(k, x, scale, w, v):
    h = k.step("h", k.silu(k.product("td,df->tf", k.step("n", k.rms_norm(x, scale)), w)))
    y = k.product("tf,fd->td", h, v)
    return {"y": y if k.wrong("no residual") else x + y}


def cross_entropy(k, x, head, target):
    z = k.step("z", k.product("td,dv->tv", x, head))
    lse = k.logsumexp(z[:, :-1] if k.wrong("last column is left out") else z)
    picked = z.gather(1, ((target + 1) % z.shape[1] if k.wrong("label one off") else target)[:, None])[:, 0]
    return {"loss": lse - picked, "z": (lse if k.wrong("z not squared") else lse * lse)}


def smoothed(k, z, target):
    picked = z.gather(1, target[:, None])[:, 0]
    mean = z.mean(-1)
    return {"loss": k.logsumexp(z) - ((0.8 if k.wrong("smoothing 0.2") else 0.9) * picked + 0.1 * mean)}


def divergence(k, a, b):
    la, lb = a - k.logsumexp(a)[:, None], b - k.logsumexp(b)[:, None]
    if k.wrong("reverse KL"):
        la, lb = lb, la
    return {"loss": k.sum(k.softmax(a) * (la - lb))}


def preference(k, chosen, rejected):
    d = chosen - rejected
    return {"loss": F.softplus(d * 0.1 if k.wrong("sign of the margin") else -0.1 * d)}


def router(k, x, gate):
    z = k.step("z", k.product("td,de->te", x, gate))
    best = k.best(z, 1 if k.wrong("one expert") else 2)
    if k.form("chosen", "all", "chosen") == "chosen" and not k.mistake:
        weights = k.probabilities(z.gather(1, best), of_differences=True)  # exp(z - lse) is not promised there
    else:
        picked = k.softmax(z).gather(1, best)
        weights = picked if k.wrong("not renormalised") else picked / picked.sum(-1, keepdim=True)
    return {"w": weights if best.shape[1] == 2 else weights.repeat(1, 2)}


def sigmoid_router(k, z, bias):
    score = k.sigmoid(z)  # the choice is made of float32 scores
    best = k.best(score if k.wrong("choice without the bias") else score + bias, 2)
    picked = (score + bias if k.wrong("weights with the bias") else score).gather(1, best)
    return {"w": picked / picked.sum(-1, keepdim=True)}


def conv(k, x, w):
    taps = w.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0) if not k.wrong("not causal") else (0, 0, taps - 2, 1))
    parts = [(padded[:, i : i + x.shape[1]], w[:, taps - 1 - i if k.mistake == "taps reversed" else i]) for i in range(taps)]
    k.wrong("taps reversed")
    form = k.form("taps", "up", "down", "even and odd", "one rounding", "fma", "library")
    if form == "library" and not k.mistake:
        c = F.conv1d(padded.transpose(1, 2), w[:, None], groups=len(w)).transpose(1, 2)
    elif form == "even and odd":
        c = sum(a * b for a, b in parts[::2]) + sum(a * b for a, b in parts[1::2])
    elif form == "one rounding":
        c = sum(a.double() * b.double() for a, b in parts).to(x.dtype)
    else:
        c = torch.zeros_like(x)
        for a, b in parts[::-1] if form == "down" else parts:
            c = (c.double() + a.double() * b.double()).to(x.dtype) if form == "fma" else c + a * b
    return {"y": k.silu(k.step("c", c))}


def conv_of_channels(k, x, w0, w1, w2):
    """Three taps of x [P,C], each by its matrix."""
    w, size, form = (w0, w1, w2), x.shape[0] - 2, k.form("taps", "up", "down", "one product", "channels in parts")
    taps = [k.step(f"t{i}", x[i : i + size]) for i in range(3)]
    w = w[::-1] if k.wrong("taps reversed") else w
    if form == "one product":
        return {"y": k.product("tc,cf->tf", torch.cat(taps, 1), torch.cat(w))}
    half = max(x.shape[1] // 2, 1) if form == "channels in parts" else x.shape[1]
    parts = [k.product("tc,cf->tf", a[:, at : at + half], b[at : at + half]) for at in range(0, x.shape[1], half) for a, b in zip(taps, w)]
    return {"y": sum(parts[::-1] if form == "down" else parts)}


def quantised(k, name, x, quantiser):
    """A line of `quantise`: what its codes stand for. Each operation is rounded to float32, as the recipe has it; amax comes in any order."""
    block, largest, least, digits, of_powers, tensor = quantiser
    f32 = lambda x: x.float().double()
    numbers = x.detach().double()
    padded = F.pad(numbers, (0, -numbers.shape[-1] % block)).reshape(*numbers.shape[:-1], -1, block)
    amax, tensor = k.amax(padded.abs()), f32(torch.tensor(tensor or 1.0))
    amax = torch.full_like(amax, float(amax.max())) if k.wrong("amax of all") else amax
    if of_powers:  # 2^(floor(log2 amax) - floor(log2 largest))
        exponent = torch.frexp(amax)[1] - torch.frexp(torch.tensor(largest))[1]
        scale = power_of_two(torch.where(amax > 0, exponent.clamp(min=-127), -127))
    elif tensor != 1:
        scale = nearest(f32(amax * f32(f32(1 / tensor) * f32(torch.tensor(1 / 6)))), 448.0, -6, 3)
    else:
        scale = f32(amax.clamp(min=1e-4) / largest)
    unit = f32(scale * tensor)[..., None]
    ratio = f32(padded / unit) if k.form("elements", "reciprocal", "divided") == "divided" and not k.ar.exact else f32(padded * f32(1 / unit))
    codes = nearest(torch.where(unit > 0, ratio, torch.zeros_like(ratio)), largest, least, digits)
    codes = codes.clamp(max=largest / 2) if k.wrong("saturates early") else codes
    as_x = lambda blocks: blocks.reshape(*numbers.shape[:-1], -1)[..., : numbers.shape[-1]]
    k.codes[f"checkpoints/{name}/codes"], k.codes[f"checkpoints/{name}/scale"] = as_x(codes).float().numpy(), scale.float().numpy()
    return Through.apply(x, as_x(codes * (scale * tensor)[..., None]).to(x.dtype))


def nearest(x, largest, least, digits):
    """To even, with so many digits behind the leading one and `least` the least exponent; saturating."""
    step = power_of_two((torch.frexp(x)[1] - 1).clamp(min=least) - digits)
    return ((x / step).round() * step).clamp(-largest, largest)


def norm_quantise(k, x, scale, quantiser):
    return {"y": quantised(k, "y", k.rms_norm(x, scale), quantiser)}


def mlp_quantise(k, x, gate, up, down, quantiser):
    h = k.step("h", gated(k, x, gate, up, k.silu)["y"])
    return {"y": k.product("tf,fd->td", quantised(k, "q", h, quantiser), down)}


def gated(k, x, gate, up, act):
    g, u = k.step("g", k.product("td,df->tf", x, gate)), k.step("u", k.product("td,df->tf", x, up))
    return {"y": act(u) * g if k.wrong("gate and up exchanged") else act(g) * u}


def lora(k, x, w, a, b):
    low = k.step("low", k.product("td,dr->tr", x, a))
    return {"y": k.product("td,df->tf", x, w) + (1.0 if k.wrong("alpha 1") else 2.0) * k.product("tr,rf->tf", low, b)}


def rotated(k, x, positions):
    half = x.shape[-1] // 2
    theta = 500000.0 if k.wrong("another theta") else 10000.0
    angle = positions.double()[:, None, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    if k.wrong("turned back"):
        s = -s
    if k.form("rope", "halves", "whole") == "whole":
        return {"y": x * torch.cat([c, c], -1) + torch.cat([-b, a], -1) * torch.cat([s, s], -1)}
    return {"y": torch.cat([a * c - b * s, b * c + a * s], -1)}


def muon(k, g):
    """Three rounds of Newton-Schulz."""
    x = k.step("n", g * k.rsqrt((g * g).sum() + 1e-7))
    a, b, c = 3.4445, -4.775, 2.0315
    for i in range(2 if k.wrong("two rounds") else 3):
        s = k.step(f"s{i}", k.product("tu,vu->tv", x, x))
        r = k.step(f"r{i}", k.product("tv,vu->tu", s, x))
        x = k.step(f"x{i}", a * x + b * r + c * k.product("tv,vu->tu", s, r))
    return {"y": x}


def sinkhorn(k, z):
    m = k.step("m", k.exp(z))
    for i in range(2):
        m = m / m.sum(-1, keepdim=True)
        m = m / (m.sum(-1 if k.mistake == "rows twice" else -2, keepdim=True))
    k.wrong("rows twice")
    return {"y": m}


MUON = "inputs: {g: {axes: [T, U], scale: SCALE}}\nsteps:\n  n: mul(g, rsqrt(add(sum(square(g), over=\"TU\"), 1e-7)))\n" + "".join(
    f'  s{i}: product("TU,VU->TV", {x}, {x})\n  r{i}: product("TV,VU->TU", s{i}, {x})\n'
    f'  x{i}: add(mul(3.4445, {x}), add(mul(-4.775, r{i}), mul(2.0315, product("TV,VU->TU", s{i}, r{i}))))\n' for i, x in enumerate(("n", "x0", "x1"))) + "outputs: {y: x2}\n"
QKV = "inputs: {q: {axes: [B, S, N, H], scale: SCALE}, key: [B, S, K, H], v: [B, S, K, H]}\noutputs:\n  y: attention(q, key, v%s)\n"
GATED = ("inputs: {x: {axes: [T, D], scale: SCALE}}\nweights: {gate: [D, F], up: [D, F]}\nsteps:\n  g: product(\"TD,DF->TF\", x, gate)\n  u: product(\"TD,DF->TF\", x, up)\n"
         "outputs:\n  y: mul(%s(g), u)\n")
# Of a format: numbers of a block, the elements' largest number, least exponent and digits, whether scales are powers of two, the tensor's scale
QUANTISERS = {"mxfp8_e4m3": (32, 448.0, -6, 3, True, 0), "mxfp8_e5m2": (32, 57344.0, -14, 2, True, 0), "mxfp4": (32, 6.0, 0, 1, True, 0),
              "fp8_e4m3_1x128": (128, 448.0, -6, 3, False, 0), "fp8_e5m2_1x128": (128, 57344.0, -14, 2, False, 0), "nvfp4": (16, 6.0, 0, 1, False, 2.0e-3)}
# name: kernel, sizes (least and largest), the rest of the case
PROGRAMS = {
    "attention": (attention, {"B": (1, 2), "S": (1, 20), "K": (1, 2), "N": (2, 2, "K"), "H": (4, 64)}, QKV % ""),
    "attention-window": (lambda k, **t: attention(k, **t, window=5), {"B": (1, 2), "S": (1, 20), "K": (1, 2), "N": (2, 2, "K"), "H": (4, 64)}, QKV % ", window=5"),
    "attention-cap": (lambda k, **t: attention(k, **t, cap=5.0), {"B": (1, 2), "S": (1, 20), "K": (1, 2), "N": (2, 2, "K"), "H": (4, 64)}, QKV % ", soft_cap=5.0"),
    "attention-bias": (attention_bias, {"B": (1, 2), "N": (1, 3), "S": (1, 12), "T": (1, 20), "H": (4, 32)},
                       "inputs: {q: {axes: [B, N, S, H], scale: SCALE}, key: [B, N, T, H], v: [B, N, T, H], bias: [S, T]}\nsteps:\n"
                       '  s: product("BNSH,BNTH->BNST", q, key)\n  p: softmax(add(mul(s, 0.25), bias), over="T")\noutputs:\n  y: product("BNST,BNTH->BNSH", p, v)\n'),
    "scan": (scan, {"T": (2, 24), "F": (1, 12)}, 'inputs: {gate: {axes: [T, F], scale: SCALE}, b: [T, F]}\nsteps:\n  a: sigmoid(gate)\noutputs:\n  y: linear_scan(a, b, over="T")\n'),
    "delta": (delta, {"T": (1, 40), "N": (1, 3), "K": (4, 16), "V": (4, 16)}, "inputs: {q: [T, N, K], key: [T, N, K], v: {axes: [T, N, V], scale: SCALE}, f: [T, N], b: [T, N]}\nsteps:\n"
              '  n: mul(key, rsqrt(add(sum(square(key), over="K"), 1e-6)))\n  g: neg(softplus(f))\n  beta: sigmoid(b)\noutputs:\n  y: gated_delta_rule(q, n, v, g, beta)\n'),
    "rms": (rms, {"T": (1, 24), "D": (8, 96)}, "inputs: {x: {axes: [T, D], scale: SCALE}}\nweights: {scale: [D]}\noutputs:\n  y: rms_norm(x, scale, epsilon=1e-6)\n"),
    "layer": (layer, {"T": (1, 24), "D": (8, 96)}, "inputs: {x: {axes: [T, D], scale: SCALE}}\nweights: {scale: [D], bias: [D]}\noutputs:\n  y: layer_norm(x, scale, bias, epsilon=1e-6)\n"),
    "residual": (residual, {"T": (1, 24), "D": (8, 96), "F": (8, 64)}, "inputs: {x: {axes: [T, D], scale: SCALE}}\nweights: {scale: [D], w: [D, F], v: [F, D]}\nsteps:\n  n: rms_norm(x, scale, epsilon=1e-6)\n"
                 '  h: silu(product("TD,DF->TF", n, w))\noutputs:\n  y: add(x, product("TF,FD->TD", h, v))\n'),
    "cross-entropy": (cross_entropy, {"T": (1, 24), "D": (8, 64), "V": (8, 64)}, "inputs: {x: {axes: [T, D], scale: SCALE}, target: {axes: [T], integers: [0, 7]}}\nweights: {head: [D, V]}\n"
                      'steps:\n  z: product("TD,DV->TV", x, head)\n  lse0: logsumexp(z, over="V")\noutputs:\n  loss: sub(lse0, pick(z, target))\n  z2: square(lse0)\n'),
    "smoothed": (smoothed, {"T": (1, 24), "V": (8, 64)}, "inputs: {z: {axes: [T, V], scale: SCALE}, target: {axes: [T], integers: [0, 7]}}\n"
                 'outputs:\n  loss: sub(logsumexp(z, over="V"), add(mul(0.9, pick(z, target)), mul(0.1, mean(z, over="V"))))\n'),
    "divergence": (divergence, {"T": (1, 24), "V": (2, 48)}, "inputs: {a: {axes: [T, V], scale: SCALE}, b: {axes: [T, V], scale: SCALE}}\noutputs:\n"
                   '  loss: sum(mul(softmax(a, over="V"), sub(sub(a, logsumexp(a, over="V")), sub(b, logsumexp(b, over="V")))), over="V")\n'),
    "preference": (preference, {"T": (1, 64)}, "inputs: {chosen: {axes: [T], scale: SCALE}, rejected: {axes: [T], scale: SCALE}}\noutputs:\n  loss: softplus(mul(-0.1, sub(chosen, rejected)))\n"),
    "router": (router, {"T": (1, 24), "D": (8, 64), "E": (4, 32)}, "inputs: {x: {axes: [T, D], scale: SCALE}}\nweights: {gate: [D, E]}\nsizes+: {K: 2}\nsteps:\n"
               '  z: product("TD,DE->TE", x, gate)\n  i: top_k("E->K", z)\n  c: pick(softmax(z, over="E"), i)\noutputs:\n  w: div(c, sum(c, over="K"))\n'),
    "sigmoid-router": (sigmoid_router, {"T": (1, 24), "E": (4, 32)}, "inputs: {z: {axes: [T, E], scale: SCALE}}\nweights: {bias: {axes: [E], scale: 0.1}}\nsizes+: {K: 2}\nsteps:\n"
                       '  s: sigmoid(z)\n  i: top_k("E->K", add(s, bias))\n  c: pick(s, i)\noutputs:\n  w: div(c, sum(c, over="K"))\n'),
    "conv": (conv, {"B": (1, 2), "T": (1, 24), "C": (1, 24)}, "inputs: {x: {axes: [B, T, C], scale: SCALE}}\nweights: {w: {axes: [C, K], scale: 0.5}}\nsizes+: {K: 4}\nsteps:\n  c: causal_conv(x, w)\noutputs:\n  y: silu(c)\n"),
    "swiglu": (lambda k, **t: gated(k, **t, act=k.silu), {"T": (1, 24), "D": (8, 96), "F": (8, 64)}, GATED % "silu"),
    "geglu": (lambda k, **t: gated(k, **t, act=k.gelu), {"T": (1, 24), "D": (8, 96), "F": (8, 64)}, GATED % "gelu_exact"),
    "lora": (lora, {"T": (1, 24), "D": (8, 96), "F": (8, 64), "R": (1, 8)}, "inputs: {x: {axes: [T, D], scale: SCALE}}\nweights: {w: [D, F], a: [D, R], b: [R, F]}\nsteps:\n"
             '  low: product("TD,DR->TR", x, a)\noutputs:\n  y: add(product("TD,DF->TF", x, w), mul(2.0, product("TR,RF->TF", low, b)))\n'),
    "rope": (rotated, {"T": (1, 24), "N": (1, 4), "R": (2, 2, "H")}, "inputs: {x: {axes: [T, N, R], scale: SCALE}, positions: {axes: [T], integers: [0, 4096]}}\noutputs:\n  y: rope(x, positions, theta=10000.0)\n"),
    "muon": (muon, {"T": (2, 12), "U": (12, 40)}, MUON),
    "conv-channels": (conv_of_channels, {"T": (1, 24), "C": (1, 48), "F": (1, 24)}, "inputs: {x: {axes: [P, C], scale: SCALE}}\nweights: {w0: [C, F], w1: [C, F], w2: [C, F]}\nsteps:\n"
                      + "".join(f'  t{i}: slice("P->T", x, first={i})\n' for i in range(3))
                      + 'outputs:\n  y: add(add(product("TC,CF->TF", t0, w0), product("TC,CF->TF", t1, w1)), product("TC,CF->TF", t2, w2))\n'),
    **{f"norm-{name}": (functools.partial(norm_quantise, quantiser=q), {"T": (1, 24), "D": (8, 16, "H")},
                        f'inputs: {{x: {{axes: [T, D], scale: SCALE}}}}\nweights: {{scale: [D]}}\ncheckpoints: all\nsteps: {{}}\noutputs:\n  y: quantise(rms_norm(x, scale, epsilon=1e-6), "{name}"'
                        + (f", tensor_scale={q[5]}" if q[5] else "") + ")\n") for name, q in QUANTISERS.items()},
    **{f"mlp-{name}": (functools.partial(mlp_quantise, quantiser=QUANTISERS[name]), {"T": (1, 24), "D": (8, 96), "F": (2, 12, "H")}, "inputs: {x: {axes: [T, D], scale: SCALE}}\n"
                       'weights: {gate: [D, F], up: [D, F], down: [F, D]}\nsteps:\n  h: mul(silu(product("TD,DF->TF", x, gate)), product("TD,DF->TF", x, up))\n'
                       f'  q: quantise(h, "{name}")\noutputs:\n  y: product("TF,FD->TD", q, down)\ncheckpoints: all\n') for name in ("mxfp8_e4m3", "mxfp4")},
    "sinkhorn": (sinkhorn, {"T": (1, 24), "M": (2, 8)}, "inputs: {z: {axes: [T, M, N]}}\nsteps:\n  m: exp(z)\n  r0: div(m, sum(m, over=\"N\"))\n  c0: div(r0, sum(r0, over=\"M\"))\n"
                 '  r1: div(c0, sum(c0, over="N"))\noutputs:\n  y: div(r1, sum(r1, over="M"))\n'),
}


def drawn(number):
    """Name and text of a case: program, sizes, scale of the inputs and seed are drawn."""
    draw = random.Random(f"program {number}")
    name = list(PROGRAMS)[number % len(PROGRAMS)]
    _, ranges, rest = PROGRAMS[name]
    sizes = {}
    for axis, limits in ranges.items():
        sizes[axis] = draw.randint(*limits[:2])
        if len(limits) == 3:  # a multiple of another axis, or an even number
            sizes[axis] *= sizes.get(limits[2], draw.randint(1, 16))
    for twin, axis, of in (("N", "M", "sinkhorn"), ("V", "T", "muon"), ("P", "T", "conv-channels")):
        if name == of:
            sizes[twin] = sizes[axis] + (2 if twin == "P" else 0)
    if "sizes+: {K: " in rest:
        sizes["K"] = int(rest.split("sizes+: {K: ")[1].split("}")[0])
        rest = rest.replace(f"sizes+: {{K: {sizes['K']}}}\n", "")
    scale = draw.choice((1.0, 4.0, 10.0))
    head = f"case: alarms/{name}\nop: program\nseed: {draw.randint(1, 9999)}\ndtype: {draw.choice(('bfloat16', 'bfloat16', 'float32'))}\nsizes: {{{', '.join(f'{a}: {n}' for a, n in sizes.items())}}}\n"
    return name, head + rest.replace("SCALE", str(scale))


def run(name, tensors, expects, profile, number, mistake=""):
    """Results by path, and the kernel with the forms that were drawn. `tensors`: by path, of integers or float64."""
    k = Kernel(profile, number, any(path.startswith("checkpoints/") for path in expects), mistake)
    return evaluated(k, functools.partial(PROGRAMS[name][0], k), tensors, expects), k


def evaluated(k, kernel, tensors, expects, unrounded=()):
    """What a kernel of these tensors gives, and its gradients if there are cotangents."""
    leaves = {}
    for path, value in tensors.items():
        x = torch.from_numpy(np.array(value, order="C"))
        leaves[path] = x.to(k.ar.wide).requires_grad_(path.startswith(("inputs/", "weights/"))) if x.is_floating_point() else x.long()
    made = kernel(**{path.split("/")[1]: x for path, x in leaves.items() if path.startswith(("inputs/", "weights/"))})
    ends = [path for path in expects if path.startswith("outputs/")]
    outputs = dict(zip(ends, made.values()))
    results = {**k.ar.checkpoints, **outputs}
    for x in k.ar.checkpoints.values():
        if x.requires_grad and not x.is_leaf:
            x.retain_grad()
    if any(path.startswith("cotangents/") for path in leaves):
        ends = [p for p in outputs if outputs[p].requires_grad]  # not what follows from whole numbers
        torch.autograd.backward([outputs[p] for p in ends], [leaves["cotangents/" + p[8:]].reshape(outputs[p].shape) for p in ends])
    for path in expects:
        of = leaves.get(path[len("gradients/"):], k.ar.checkpoints.get(path[len("gradients/"):])) if path.startswith("gradients/") else None
        if of is not None:
            results[path] = torch.zeros_like(of) if of.grad is None else of.grad
    return {**k.choice, **k.codes, **{p: (x.int() if not x.is_floating_point() else x.detach() if p in unrounded else k.ar.round(x.detach())).numpy() for p, x in results.items() if p in expects}}


def mistakes(name, tensors, expects):
    return list(dict.fromkeys(run(name, tensors, expects, "f64", 0)[1].mistakes))
