"""PyTorch or numpy at the work of a golden, forward and backward in float64: peers.py torch|numpy THREADS

A server as docs/your-kernel.md says: the first request reads the golden, computes it once, and holds every output and gradient against the golden's;
each request after it computes it once more. PyTorch's form is the eager one that people write, without what they would leave out: no loop
over tokens, a parameter of its own for each expert, no kept graph, gradients by autograd. numpy's is harness/backends/numpy.
"""
from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / "harness/backends" / name) for name in ("shell", "numpy")]
ALLOWED = 1e-10  # of the largest element: two orders of the same sums are far within


def torch_work(request, threads: int) -> Callable[[], dict]:
    import torch
    import torch.nn.functional as F
    from kernels_attention import frequencies

    torch.set_num_threads(threads)
    s, t = request.settings, {path: torch.from_numpy(value) for path, value in request.tensors.items()}
    top = "weights/moe/" if request.op == "deepseek_layer" else "weights/"
    for name in ("wi_0", "wi_1", "wo"):
        t[top + name] = [expert.clone() for expert in t[top + name]]
    leaves = {path: x for path, x in t.items() if path.startswith(("inputs/x", "weights/"))}
    for x in leaves.values():
        for leaf in x if isinstance(x, list) else [x]:
            leaf.requires_grad_()

    def rms_norm(x, scale):
        return scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.number("normalization_layer_epsilon")))

    def gated_mlp(x, wi_0, wi_1, wo):
        return (F.silu(x @ wi_0) * (x @ wi_1)) @ wo

    def moe(x):
        flat, k = x.reshape(-1, x.shape[-1]), s.count("num_experts_per_tok")
        scores = torch.sigmoid(flat @ t[top + "gate/kernel"])
        chosen = (scores + t[top + "gate/bias"]).topk(k, -1).indices
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * s.number("routed_scaling_factor")
        order = torch.argsort(chosen.reshape(-1), stable=True)
        token, counts = order // k, torch.bincount(chosen.reshape(-1), minlength=scores.shape[-1]).tolist()
        rows = flat.index_select(0, token).split(counts)
        experts = zip(rows, t[top + "wi_0"], t[top + "wi_1"], t[top + "wo"])
        made = torch.cat([gated_mlp(*expert) for expert in experts]) * weights.reshape(-1)[order][:, None]
        y = torch.zeros_like(flat).index_add(0, token, made)
        if top + "shared_experts/wo/kernel" in t:
            y = y + gated_mlp(flat, *(t[f"{top}shared_experts/{name}/kernel"] for name in ("wi_0", "wi_1", "wo")))
        return y.reshape(x.shape)

    def rope(x, turn):
        turned = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn)
        return turned.transpose(-1, -2).flatten(-2)

    def mla(x):
        w = {path[len("weights/self_attention/"):]: x for path, x in t.items() if path.startswith("weights/self_attention/")}
        rank, nope = w["kv_norm/scale"].shape[0], s.count("qk_nope_head_dim")
        angle = t["inputs/positions"][..., None] * torch.from_numpy(frequencies(s, s.count("qk_rope_head_dim")))
        turn = torch.polar(torch.ones_like(angle), angle)[:, :, None]
        q = torch.einsum("bsl,lnd->bsnd", rms_norm(x @ w["wq_a/kernel"], w["q_norm/scale"]), w["wq_b/kernel"])
        kv_a = x @ w["wkv_a/kernel"]
        kv = torch.einsum("bsl,lnd->bsnd", rms_norm(kv_a[..., :rank], w["kv_norm/scale"]), w["wkv_b/kernel"])
        k_pe = rope(kv_a[:, :, None, rank:], turn).expand(-1, -1, kv.shape[2], -1)
        m = 0.1 * s.number("mscale") * math.log(s.number("rope_factor")) + 1
        scale = q.shape[-1] ** -0.5 * m * m
        query = torch.cat([q[..., :nope], rope(q[..., nope:], turn)], -1).transpose(1, 2) * scale
        key, value = torch.cat([kv[..., :nope], k_pe], -1).transpose(1, 2), kv[..., nope:].transpose(1, 2)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        p = torch.softmax((query @ key.transpose(-1, -2)).masked_fill(future, -math.inf), -1)
        return (p @ value).transpose(1, 2).flatten(-2) @ w["out/kernel"].flatten(0, 1)

    def layer(x):
        h = x + mla(rms_norm(x, t["weights/pre_self_attention_layer_norm/scale"]))
        return h + moe(rms_norm(h, t["weights/post_self_attention_layer_norm/scale"]))

    def gradient(x):
        if isinstance(x, list):
            return [gradient(leaf) for leaf in x]
        return torch.zeros_like(x).numpy() if x.grad is None else x.grad.numpy()

    def work() -> dict:
        for x in leaves.values():
            for leaf in x if isinstance(x, list) else [x]:
                leaf.grad = None
        y = (layer if request.op == "deepseek_layer" else moe)(t["inputs/x"])
        y.backward(t["cotangents/y"])
        return {"outputs/y": y.detach().numpy(), **{"gradients/" + path: gradient(x) for path, x in leaves.items()}}

    return work


def numpy_work(request, threads: int) -> Callable[[], dict]:
    from arithmetic import Arithmetic
    from operations import run

    ar = Arithmetic("f64")
    return lambda: run(ar, request)


def start(kind: str, threads: int, golden: str) -> Callable[[], dict]:
    """Refuses a golden that it computes otherwise."""
    import h5py
    import numpy as np
    from request import Request

    work = {"torch": torch_work, "numpy": numpy_work}[kind](Request(golden, np.float64), threads)
    found = work()
    with h5py.File(golden) as file:
        wanted: list[str] = []
        file.visit(lambda path: wanted.append(path) if path.startswith(("outputs/", "gradients/")) else None)
        for path in [path for path in wanted if isinstance(file[path], h5py.Dataset)]:
            right = file[path][()]
            error = np.abs(np.asarray(found[path]) - right).max()
            if not error <= ALLOWED * np.abs(right).max():
                raise ValueError(f"{path} is up to {error:.3g} off, expected at most {ALLOWED} of {np.abs(right).max():.3g}")
    return work


def main() -> None:
    kind, threads, work = sys.argv[1], int(sys.argv[2]), None
    for line in sys.stdin:
        try:
            if work is None:
                work = start(kind, threads, line.split("\t")[0])
            else:
                work()
            print("assay: done", flush=True)
        except Exception as error:
            print("assay: failed", type(error).__name__, " ".join(str(error).split()), flush=True)


if __name__ == "__main__":
    main()
