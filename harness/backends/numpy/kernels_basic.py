"""RMS norm, grouped product, permutation, gated MLP. Each gives its result and the function that takes the result's
gradient to those of the inputs."""
import math

import numpy as np

from kernels_quantize import hidden
from quant_recipes import Recipe


def layer_norm(ar, x, scale, bias, epsilon):
    mean = ar.mean(x)
    fast = ar.variant.backward == "delta"  # the variance as the mean of squares less the square of the mean
    variance = np.maximum(ar.mean(x * x) - mean * mean, 0) if fast else ar.mean((x - mean) * (x - mean))
    r = ar.reciprocal_root(variance + ar.float(epsilon))
    n = ar.keep((x - mean) * r)

    def back(dy):
        g = dy * scale
        rows = lambda d: d.reshape(-1, x.shape[-1])
        return r * (g - ar.mean(g) - n * ar.mean(g * n)), ar.sum(rows(dy * n), 0), ar.sum(rows(dy), 0)

    return n * scale + bias, back


def rms_norm(ar, x, scale, epsilon):
    r = ar.reciprocal_root(ar.mean(x * x) + ar.float(epsilon))
    n = ar.keep(x * r)

    def back(dy):
        g = dy * scale
        if ar.variant.backward == "delta":
            dx = r * (g - n * ar.mean(g * n))
        else:
            dx = r * g - x * (r * r * r * ar.mean(g * x))
        return dx, ar.sum((dy * n).reshape(-1, x.shape[-1]), 0)

    return n * scale, back


def over_root(ar, x, epsilon, total, count):
    """x over the root of the sum of its squares, or of their mean."""
    r = ar.reciprocal_root(total(x * x) + ar.float(epsilon))
    count = ar.float(count)

    def back(dy):
        n = ar.keep(x * r)
        fast = ar.variant.backward == "delta"
        return r * (dy - n * (ar.sum(dy * n)[..., None] / count)) if fast else r * dy - x * (r * r * r * (ar.sum(dy * x)[..., None] / count))

    return x * r, back


def grouped_product(ar, lhs, rhs, group_sizes, recipe=None):
    """Rows beyond the last group give 0 and reach nothing."""
    if recipe is not None:
        lhs, rhs = recipe.x, recipe.w
    ends = np.cumsum(group_sizes)
    groups = [(slice(end - size, end), g) for g, (end, size) in enumerate(zip(ends, group_sizes)) if size]
    y = np.zeros((len(lhs), rhs.shape[-1]), ar.float)
    for rows, g in groups:
        y[rows] = ar.linear(lhs[rows], rhs[g])

    def back(dy):
        d_lhs, d_rhs = np.zeros(lhs.shape, ar.float), np.zeros(rhs.shape, ar.float)
        dy_of_x, w, x, dy_of_w = (dy, rhs, lhs, dy) if recipe is None else recipe.back(dy)
        for rows, g in groups:
            d_lhs[rows] = ar.linear(dy_of_x[rows], w[g].T)
            d_rhs[g] = ar.weight_gradient(x[rows], dy_of_w[rows])
        return d_lhs, d_rhs

    return y, back


def permute(ar, x, experts):
    """experts [T, K]: copies of the rows of x in the order of their experts."""
    k = experts.shape[1]
    order = np.argsort(experts.reshape(-1), kind="stable")
    place = np.argsort(order, kind="stable")

    def back(dy):
        return ar.sum(dy[place].reshape(*experts.shape, -1), 1)

    return x[order // k], order, back


def unpermute(ar, rows, order, weights):
    """The weighted sum over each token's K rows, which are not rounded on the way."""
    place = np.argsort(order, kind="stable")
    copies = rows[place].reshape(*weights.shape, -1)

    def back(dy):
        d_copies = weights[..., None] * dy[:, None, :]
        return d_copies.reshape(rows.shape)[order], ar.sum(copies * dy[:, None, :])

    return ar.sum(weights[..., None] * copies, 1), back


def activation(ar, s, name):
    """x -> act(x) and its derivative."""
    one = ar.float(1)

    def silu(x):
        f = ar.activation_sigmoid(x)
        return x * f, f * (one + x * (one - f))

    def sigmoid(x):
        f = ar.activation_sigmoid(x)
        return f, f * (one - f)

    def gelu(x):
        root, cube, half = (ar.float(v) for v in (np.sqrt(2 / np.pi), 0.044715, 0.5))
        t = ar.tanh(root * (x + cube * x * x * x))
        inner = root * (one + ar.float(3) * cube * x * x)
        return half * x * (one + t), half * (one + t) + half * x * (one - t * t) * inner

    def gelu_exact(x):
        half, tail = ar.float(0.5), ar.function(np.vectorize(math.erfc, otypes=[float]), -x * ar.float(np.sqrt(0.5)))
        return half * x * tail, half * tail + x * ar.exp(-half * x * x) * ar.float(1 / np.sqrt(2 * np.pi))

    def relu(x):
        return np.maximum(x, 0), (x > 0).astype(x.dtype)

    table = {"silu": silu, "sigmoid": sigmoid, "gelu": gelu, "gelu_exact": gelu_exact, "relu": relu, "linear": lambda x: (x, np.ones_like(x))}
    s.need(name in table, "no activation " + name)
    return table[name]


def clamped(ar, limit):
    """GPT-OSS: a' sigmoid(1.702 a') (b' + 1) of a' = min(a, limit) and b' = clip(b, -limit, limit), as gate and up."""
    one, slope, limit = ar.float(1), ar.float(1.702), ar.float(limit)

    def gate(a):
        x = np.minimum(a, limit)
        f = ar.activation_sigmoid(slope * x)
        return x * f, np.where(a > limit, ar.float(0), f * (one + slope * x * (one - f)))

    def up(b):
        return np.clip(b, -limit, limit) + one, np.where(np.abs(b) > limit, ar.float(0), one)

    return gate, up


class GatedMlp:
    """h = act(x wi_0 + b_0) act_1(x wi_1 + b_1), y = h wo + b_o. Biases may be None."""

    def __init__(self, ar, s, both=True):
        limit, gpt_oss = s.number("mlp_activations_limit"), s["decoder_block"] == "gpt_oss"
        s.need(gpt_oss or limit == 0, "no clamps")
        names = s.words("mlp_activations")
        self.ar, self.s = ar, s
        self.requantises = s.text.get("quant_hidden_format", "") != ""
        self.recipe = s.text.get("quant_recipe", "") != ""
        self.gate, self.up = clamped(ar, limit) if gpt_oss else (
            activation(ar, s, names[0]), activation(ar, s, names[1] if both else "linear"))

    def quantise(self, h):
        return hidden(self.s, h)

    def back_to_input(self, da, db, wi_0, wi_1):
        return self.ar.keep(self.ar.linear(da, wi_0.T)) + self.ar.keep(self.ar.linear(db, wi_1.T))

    def by_recipe(self, x, ups, wo, *biases, weight=None):
        """All rows are one group."""
        biases = [None if bias is None else bias[None] for bias in biases]
        y, back_groups = self.groups_by_recipe(x, [w[None] for w in ups], wo[None], *biases, sizes=[len(x)], weight=weight)

        def back(d_y):
            dx, gradients, d_weight = back_groups(d_y)
            return dx, [None if d is None else d[0] for d in gradients], d_weight

        return y, back

    def groups_by_recipe(self, x, ups, wo, b_0=None, b_1=None, b_o=None, *, sizes, weight=None):
        """Rows of groups one after the other, kernels and biases with an axis of groups. ups: the kernel of gate and up side by side, or
        those of both; weight as below."""
        ar, s, group = self.ar, self.s, np.repeat(np.arange(len(sizes)), sizes)
        products = [grouped_product(ar, x, w, sizes, Recipe(s, x, w, sizes)) for w in ups]
        pair = np.split(np.concatenate([y for y, _ in products], -1), 2, -1)
        a, b = (ar.made(name, ar.keep(v if bias is None else v + bias[group])) for name, v, bias in zip(("mlpwi_0", "mlpwi_1"), pair, (b_0, b_1)))
        (f, df), (g, dg) = self.gate(a), self.up(b)
        h = ar.keep(ar.made("intermediate", f * g))
        codes, scale, taken = self.quantise(h) if self.requantises else (None, None, h)
        y, back_down = grouped_product(ar, taken, wo, sizes, Recipe(s, taken, wo, sizes))
        y = ar.made("mlpwo", y if b_o is None else y + b_o[group])
        self.made = a, b, h, y, codes, scale
        out = y if weight is None else ar.keep(y)

        def back(d_y):
            dy = d_y if weight is None else ar.keep(d_y * weight)
            dh, d_wo = back_down(dy)
            dh = ar.keep(dh)
            da, db = ar.keep(dh * g * df), ar.keep(dh * f * dg)
            self.made_back = da, db, dy
            of_ups = [back_up(d) for (_, back_up), d in zip(products, (da, db) if len(ups) == 2 else (np.concatenate([da, db], -1),))]
            d_wi = np.split(np.concatenate([d_w for _, d_w in of_ups], -1), 2, -1)
            biases = [None if bias is None else np.stack([ar.sum(d[group == i], 0) for i in range(len(sizes))])
                      for d, bias in ((da, b_0), (db, b_1), (dy, b_o))]
            return sum(ar.keep(dx) for dx, _ in of_ups), [*d_wi, d_wo, *biases], None if weight is None else ar.sum(out * d_y)

        return out if weight is None else out * weight, back

    def __call__(self, x, wi_0, wi_1, wo, b_0=None, b_1=None, b_o=None, weight=None):
        """weight [rows, 1]: of each row of y; its gradient is the last of the results of back."""
        ar, early = self.ar, weight is not None and self.ar.variant.weigh_early and not self.requantises
        a, b = (ar.keep(ar.linear(x, w) if bias is None else ar.linear(x, w) + bias)
                for w, bias in ((wi_0, b_0), (wi_1, b_1)))
        a, b = ar.made("mlpwi_0", a), ar.made("mlpwi_1", b)
        (f, df), (g, dg) = self.gate(a), self.up(b)
        h = ar.made("intermediate", f * g)
        h = ar.keep(h) if self.requantises else ar.store(h)
        weighed = ar.store(h * weight) if early else h
        codes = scale = None
        if self.requantises:
            codes, scale, weighed = self.quantise(h)
        y = ar.linear(weighed, wo)
        if b_o is not None:
            y = y + (b_o * weight if early else b_o)
        y = ar.made("mlpwo", y)
        self.made = a, b, h, None if early else y, codes, scale
        if weight is not None and not early:
            out = ar.keep(y)
            y = out * weight

        def back(dy):
            d_out = dy if weight is None or early else ar.store(dy * weight)
            d_weighed = ar.keep(ar.linear(d_out, wo.T))
            dh = ar.keep(d_weighed * weight) if early else d_weighed
            da, db = ar.store(dh * g * df), ar.store(dh * f * dg)
            dx = self.back_to_input(da, db, wi_0, wi_1)
            gradients = [ar.weight_gradient(*pair) for pair in ((x, da), (x, db), (weighed, d_out))]
            gradients += [ar.sum(d, 0) if bias is not None else None for d, bias in ((da, b_0), (db, b_1))]
            d_bias = None if b_o is None else ar.sum(dy * weight if weight is not None else dy, 0)
            d_weight = None
            if weight is not None:
                d_weight = ar.sum(h * d_weighed) if early else ar.sum(out * dy)
                if early and b_o is not None:
                    d_weight = d_weight + ar.sum(b_o * dy)
            return dx, [*gradients, d_bias], d_weight

        return y, back
