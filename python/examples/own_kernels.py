"""Kernels for programs of the catalogue (assay list 'program/*'), each with a wrong form: what a kernel of one's own looks like to assay.

They compute in float32 and store once, as fused kernels do; autograd runs them back.
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
    return {"y": rope(q, positions, 10000.0, turn)}


def qk_norm_rope(g, swapped=False):
    q, k, positions, q_scale, k_scale = wide(g, "q", "k", "positions", "q_scale", "k_scale")
    if swapped:
        q_scale, k_scale = k_scale, q_scale
    return {"query": rope(rms_norm(q, q_scale), positions, 1e6), "key": rope(rms_norm(k, k_scale), positions, 1e6)}


def swiglu(g, act=F.silu):
    x, token_scale, gate, up = wide(g, "x", "token_scale", "gate", "up")
    return {"h": act(x @ gate) * (x @ up) * token_scale[:, None]}


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
    return {"y": x @ w + alpha * (x @ a) @ b}


def causal_conv(g, shift=0):
    x, taps = wide(g, "x", "taps")
    k = taps.shape[1]
    padded = F.pad(x.transpose(1, 2), (k - 1 - shift, shift))
    return {"y": F.silu(F.conv1d(padded, taps[:, None], groups=taps.shape[0])).transpose(1, 2)}


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
    return {"y": torch.einsum("ij,tjd->tid", m, streams)}


def top_k_softmax(g, over_all=False):
    x, gate, experts = wide(g, "x", "gate", "experts")
    logits = x @ gate
    best, ids = torch.topk(logits, 3, dim=-1)
    p = torch.softmax(logits, -1).gather(-1, ids) if over_all else torch.softmax(best, -1)
    return {"y": torch.einsum("tk,tkf->tf", p, experts[ids]), "routing/ids/top_k": ids.to(torch.int32)}


# the kernel, its wrong form, and what that is
KERNELS = {
    "norm-rope": (norm_rope, {"turn": -1.0}, "it turns the other way"),
    "qk-norm-rope": (qk_norm_rope, {"swapped": True}, "each has the other's scale"),
    "swiglu": (swiglu, {"act": torch.sigmoid}, "a sigmoid for SiLU"),
    "add-norm": (add_norm, {"of_sum": False}, "the norm of x alone"),
    "cross-entropy": (cross_entropy, {"columns": 128}, "the last columns, no whole tile, are missed"),
    "lora": (lora, {"alpha": 1.0}, "the adapter's factor is left out"),
    "causal-conv": (causal_conv, {"shift": 1}, "it sees the next token"),
    "merge-states": (merge_states, {"base": 0.6931471805599453}, "log-sum-exps are taken for base 2"),
    "hyper-connections": (hyper_connections, {"rounds": 1}, "one round too few"),
    "top-k-softmax": (top_k_softmax, {"over_all": True}, "the softmax is over all, and the best are not renormalised"),
}


def run(name, case, **how):
    """What case.check takes: outputs in the case's type, statistics and indices as they are, and gradients."""
    given = case.inputs(torch, requires_grad=True)
    kernel = KERNELS[name][0]
    made = kernel(given, **how)
    dtype = next(x.dtype for path, x in given.items() if x.is_floating_point())
    outputs = {"outputs/" + n if "/" not in n else n: y if n == "lse" or not y.is_floating_point() else y.to(dtype) for n, y in made.items()}
    differentiable = {path: y for path, y in outputs.items() if y.is_floating_point()}
    return {**outputs, **case.backward(differentiable, given)}
