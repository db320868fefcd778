#!/usr/bin/env python3
"""A backend as a command: the MoE block, forward and backward, in numpy float32.

    assay run 'moe/*' --set dtype=float32 --backend 'python3 moe_numpy.py {request} {candidate}'

Reads the request, writes the candidate; exit status 77 says that a case is not supported. Needs h5py and numpy, nothing of
assay. Families: deepseek3 and deepseek2 (sigmoid or softmax scores, groups, bias) and the default (softmax over the chosen).
"""
import re
import sys

import h5py
import numpy as np

FLOAT = np.float32


def unsupported(reason):
    print(reason)
    sys.exit(77)


def settings_of(yaml):
    """The scalar keys of case_yaml, which is flat enough for a regular expression."""
    return {k: v.strip('"') for k, v in re.findall(r"^\s*([a-z_0-9]+): *(\S*)", yaml, re.M)}


def sigmoid(x):
    return FLOAT(1) / (FLOAT(1) + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Router:
    """Selection and weights of [T, E] logits, and the gradient of the weights."""

    def __init__(self, s, logits, bias):
        self.deepseek = s["model_name"].startswith("deepseek")
        self.deepseek3 = s["model_name"].startswith("deepseek3")
        self.function = s["routed_score_func"]
        self.k = int(s["num_experts_per_tok"])
        self.factor = FLOAT(float(s["routed_scaling_factor"])) if self.deepseek else FLOAT(1)
        if self.function not in ("", "sigmoid", "softmax"):
            unsupported("routed_score_func " + self.function)
        self.scores = {"sigmoid": sigmoid, "softmax": softmax, "": lambda x: x}[self.function](logits)
        biased = self.scores + bias if bias is not None else self.scores
        allowed = self.groups(s, biased, bias) if self.deepseek else biased
        self.chosen = np.argsort(-allowed, axis=-1, kind="stable")[:, : self.k]
        self.divide = self.deepseek3 and self.function == "sigmoid"
        source = self.scores if self.deepseek3 else biased
        self.gathered = np.take_along_axis(source, self.chosen, -1)
        if not self.deepseek:
            self.gathered = softmax(self.gathered)
        self.total = self.gathered.sum(-1, keepdims=True) + FLOAT(1e-20)
        self.weights = self.gathered / self.total if self.divide else self.gathered
        self.weights = self.weights * self.factor

    def groups(self, s, biased, bias):
        count = int(s["n_routing_groups"])
        if count <= 0:
            return biased
        grouped = biased.reshape(len(biased), count, -1)
        top2 = s["group_score"] == "top2_sum" or (s["group_score"] == "" and bias is not None)
        score = np.sort(grouped, -1)[..., -2:].sum(-1) if top2 else grouped.max(-1)
        kept = np.argsort(-score, axis=-1, kind="stable")[:, : int(s["topk_routing_group"])]
        mask = np.zeros_like(score, bool)
        np.put_along_axis(mask, kept, True, -1)
        return np.where(mask[..., None], grouped, -np.inf).reshape(biased.shape)

    def gradient(self, dw):
        """d logits and d bias from d weights."""
        dw = dw * self.factor
        if self.divide:
            dw = (dw - (dw * self.gathered / self.total).sum(-1, keepdims=True)) / self.total
        if not self.deepseek:
            dw = self.gathered * (dw - (dw * self.gathered).sum(-1, keepdims=True))
        ds = np.zeros_like(self.scores)
        np.put_along_axis(ds, self.chosen, dw, -1)
        f = self.scores
        if self.function == "sigmoid":
            dlogits = ds * f * (1 - f)
        elif self.function == "softmax":
            dlogits = f * (ds - (ds * f).sum(-1, keepdims=True))
        else:
            dlogits = ds
        # deepseek3 weighs the scores before the bias, so that the bias gets nothing
        return dlogits, np.zeros(f.shape[1], FLOAT) if self.deepseek3 else ds.sum(0)


def mlp(x, wi_0, wi_1, wo, dy_of):
    """silu(x wi_0) * (x wi_1) wo; dy_of(y) gives the cotangent once y is known."""
    a, b = x @ wi_0, x @ wi_1
    s = sigmoid(a)
    h = a * s * b
    y = h @ wo
    dy = dy_of(y)
    dh = dy @ wo.T
    da, db = dh * b * s * (1 + a * (1 - s)), dh * a * s
    return y, da @ wi_0.T + db @ wi_1.T, x.T @ da, x.T @ db, h.T @ dy


def moe(s, t):
    x = t["inputs/x"]
    shape, dim = x.shape, x.shape[-1]
    x, dy = x.reshape(-1, dim), t["cotangents/y"].reshape(-1, dim)
    kernel = t["weights/gate/kernel"]
    router = Router(s, x @ kernel, t.get("weights/gate/bias"))
    fused = "weights/wi" in t
    wi_0, wi_1 = np.split(t["weights/wi"], 2, -1) if fused else (t["weights/wi_0"], t["weights/wi_1"])
    wo = t["weights/wo"]
    y, dx, dw = np.zeros_like(x), np.zeros_like(x), np.zeros_like(router.weights)
    d0, d1, do = np.zeros_like(wi_0), np.zeros_like(wi_1), np.zeros_like(wo)
    for e in range(len(wo)):
        token, k = np.nonzero(router.chosen == e)
        w = router.weights[token, k][:, None]

        def cotangent(out):
            y[token] += w * out
            dw[token, k] = (out * dy[token]).sum(-1)
            return w * dy[token]

        _, d_in, d0[e], d1[e], do[e] = mlp(x[token], wi_0[e], wi_1[e], wo[e], cotangent)
        dx[token] += d_in
    dlogits, dbias = router.gradient(dw)
    dx += dlogits @ kernel.T
    out = {"gradients/weights/gate/kernel": x.T @ dlogits, "gradients/weights/gate/bias": dbias,
           "gradients/weights/wo": do, "routing/selected_experts": router.chosen.reshape(*shape[:2], -1).astype(np.int32)}
    if fused:
        out["gradients/weights/wi"] = np.concatenate([d0, d1], -1)
    else:
        out["gradients/weights/wi_0"], out["gradients/weights/wi_1"] = d0, d1
    shared = "weights/shared_experts/"
    if shared + "wo/kernel" in t:
        names = [shared + n + "/kernel" for n in ("wi_0", "wi_1", "wo")]
        y_s, dx_s, *grads = mlp(x, *(t[n] for n in names), lambda _: dy)
        y, dx = y + y_s, dx + dx_s
        out.update({"gradients/" + n: g for n, g in zip(names, grads)})
    out["outputs/y"], out["gradients/inputs/x"] = y.reshape(shape), dx.reshape(shape)
    return out


def has(s):
    """Whether the block is among those of this file."""
    family = s["model_name"].startswith(("deepseek2", "deepseek3")) or s["decoder_block"] == "mixtral"
    plain = s["mlp_activations_limit"] in ("0", "0.0") and s["capacity_factor"].startswith("-") and s["mlp_bias"] == "false"
    plain = plain and s["ragged_buffer_factor"].startswith("-")
    return family and plain and s["fused_moe_func"] != "true" and "silu" in s["mlp_activations"]


def run(request, candidate, operations):
    """Reads the request, computes with operations[op](settings, tensors), writes what it gives."""
    with h5py.File(request) as f:
        s = settings_of(f.attrs["case_yaml"])
        expects = [p for p in f.attrs["expects"] if p.startswith(("outputs/", "gradients/"))]
        tensors = {}

        def read(name, item):
            if isinstance(item, h5py.Dataset):
                tensors[name] = item[()].astype(np.int32 if item.dtype.kind == "i" else FLOAT)

        f.visititems(read)
        op = f.attrs["op"]
    if op not in operations:
        unsupported("no " + op)
    results = operations[op](s, tensors)
    if missing := [p for p in expects if p not in results]:
        unsupported("no " + missing[0])
    with h5py.File(candidate, "w", libver="v110") as f:
        for path in results:
            if path in expects or path.startswith("routing/"):
                f.create_dataset(path, data=results[path])


def main(s, t):
    if not has(s):
        unsupported("this block is not among those that moe_numpy.py has")
    return moe(s, t)


if __name__ == "__main__":
    run(*sys.argv[1:], {"moe": main})
