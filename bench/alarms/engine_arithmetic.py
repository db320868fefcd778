"""The arithmetic of an engine's kernels in PyTorch: float32 sums in the orders that engines have, operands and stored tensors in the type
of a profile (docs/comparing.md). A number draws the liberties that a profile leaves: Forms."""
import random

import torch

# Of each choice the first is the plain one, which number 0 has throughout.
CHOICES = {
    "sums": ("library", "rows", "split_k", "blocks", "multiply_add", "exact"),  # products: terms one by one, in parts, in blocks, without fma
    "parts": (2, 3, 4, 7),  # of a split sum, or of keys
    "tile": (32, 16, 64, 8),  # terms of a block, keys of a tile
    "shuffled": (False, True),  # parts, and rows that add to one place, come in any order, as atomics let them
    "stored": (1.0, 0.5, 0.0),  # how many of the tensors between kernels go through memory; each is drawn
    "norm": ("written", "autograd"),
    "attention": ("whole", "online", "split_kv", "ring", "autograd", "autograd_split"),
    "heads": ("summed", "stored"),  # gradients of a shared key's heads are stored before they are added
    "sink": ("column", "sigmoid"),  # one more score, or out times sigmoid(lse - sink)
    "scale": ("query", "scores"),  # where the softmax scale goes
    "exponential": ("exp", "exp2"),
    "gate_up": ("two", "one"),  # products with gate and up, or one with both side by side
    "sigmoid": ("library", "divided"),
    "softmax": ("library", "divided", "lse"),  # a router's
    "weigh": ("output", "early", "epilogue"),  # a routing weight goes on an expert's output, on h, or on the output before it is stored
    "combine": ("gathered", "added"),  # copies of a token side by side, or rows added one after the other
    "rope": ("turned", "halves", "float32"),  # pairs; x cos + rotated x sin; frequencies by float32 powers
    "results": ("stored", "wide"),
    "inputs": ("rounded", "wide"),  # those on a finer grid than the profile's: where they are read, or in products alone
    "scales": ("amax", "power"),  # fp8
    "accumulator": ("wide", "cut"),  # fp8: 13 bits within a block of 128
    "chosen": ("softmax", "naive"),  # a softmax over the chosen, or over all and divided by their sum
}
ROUNDINGS = {"f64": None, "f32": None, "bf16": torch.bfloat16, "f16": torch.float16, "tf32": None, "fp8_e4m3_block128": torch.bfloat16}
FP8_BLOCK, FP8_LARGEST = 128, 448.0


class Forms:
    def __init__(self, number):
        draw = random.Random(number)
        for name, values in CHOICES.items():
            setattr(self, name, values[0] if number == 0 else draw.choice(values))
        self.number = number

    def order(self, count):
        places = list(range(count))
        if self.shuffled:
            random.Random(self.number + count).shuffle(places)
        return places

    def stores(self, point):
        """Whether the tensor of that name goes through memory."""
        return self.stored == 1.0 or (self.stored > 0.0 and random.Random(f"{self.number} {point}").random() < self.stored)


def to_bits(x, bits):
    """Nearest even, to so many bits after the leading one: of float32, by its own bits."""
    drop = 23 - bits
    whole = x.contiguous().view(torch.int32)
    rounded = (whole + (1 << (drop - 1)) - 1 + ((whole >> drop) & 1)) & -(1 << drop)
    return torch.where(torch.isfinite(x), rounded.view(torch.float32), x)


def power_of_two(exponent):
    return ((exponent.long().clamp(min=-1022) + 1023) << 52).view(torch.float64)


def to_e4m3(x):
    """float64 to nearest even, saturating at 448."""
    step = power_of_two(torch.frexp(x)[1].clamp(min=-5) - 4)
    return ((x / step).round() * step).clamp(-FP8_LARGEST, FP8_LARGEST)


def cut_off(x, bits):
    mantissa, exponent = torch.frexp(x)
    return (mantissa * 2.0 ** (bits + 1)).trunc() * power_of_two(exponent - bits - 1)


class Arithmetic:
    def __init__(self, profile, forms):
        self.forms, self.type = forms, ROUNDINGS[profile]
        self.exact, self.fp8, self.tf32 = profile == "f64", profile.startswith("fp8"), profile == "tf32"
        self.wide = torch.float64 if self.exact else torch.float32
        self.checkpoints, self.layer = {}, ""

    def checkpoint(self, name, x):
        self.checkpoints["checkpoints/" + self.layer + name] = x

    # what lies in memory

    def round(self, x):
        return x if self.type is None else x.to(self.type).to(self.wide)

    def store(self, x):
        """What every kernel stores, or feeds to a product."""
        return Rounded.apply(x, self, True, True) if self.type is not None else x

    def keep(self, point, x):
        """What a fused kernel keeps in registers; and so its gradient."""
        return self.part(x, self.forms.stores(point), self.forms.stores(point + " gradient"))

    def store_gradient(self, x):
        """The gradient that a product will take is stored before."""
        return self.part(x, False, True)

    def part(self, x, forward, backward):
        return Rounded.apply(x, self, forward, backward) if self.type is not None and (forward or backward) else x

    # sums

    def operand(self, x):
        return to_bits(x, 10) if self.tf32 else self.round(x)

    def contract(self, a, b):
        """[..., m, k] times [..., k, n] as they are."""
        k, f = a.shape[-1], self.forms
        if f.sums == "exact" and not self.exact:
            return torch.matmul(a.double(), b.double()).float()
        if f.sums in ("rows", "multiply_add"):
            return self.one_by_one(a, b)
        size = {"split_k": -(-k // f.parts), "blocks": f.tile}.get(f.sums, k)
        if size >= k:
            return torch.matmul(a, b)
        parts = [torch.matmul(x, y) for x, y in zip(a.split(size, -1), b.split(size, -2))]
        return self.in_turn(parts)

    def one_by_one(self, a, b):
        if a.shape[-1] == 0:
            return torch.matmul(a, b)
        total = None
        for x, y in zip(a.unbind(-1), b.unbind(-2)):
            x, y = x[..., :, None], y[..., None, :]
            if self.forms.sums == "multiply_add" or self.exact:
                term = x * y
                total = term if total is None else total + term
            else:
                term = x.double() * y.double()
                total = (term if total is None else total.double() + term).float()
        return total

    def in_turn(self, parts):
        total = None
        for i in self.forms.order(len(parts)):
            total = parts[i] if total is None else total + parts[i]
        return total

    def total(self, x):
        """The sum over the first axis."""
        if len(x) > 1 and self.forms.sums in ("rows", "multiply_add"):
            return self.in_turn(list(x))
        if len(x) > 1 and self.forms.sums in ("split_k", "blocks"):
            size = -(-len(x) // self.forms.parts) if self.forms.sums == "split_k" else self.forms.tile
            return self.in_turn([part.sum(0) for part in x.split(size)])
        return x.sum(0)

    def tiles(self, x, rows):
        """x [m, k] in e4m3, with a scale for each tile of rows by 128 numbers: codes and scales [m, k], as float64."""
        m, k = x.shape
        pad = torch.zeros(-(-m // rows) * rows, -(-k // FP8_BLOCK) * FP8_BLOCK, dtype=torch.float64)
        pad[:m, :k] = x
        cut = pad.view(len(pad) // rows, rows, -1, FP8_BLOCK)
        scale = (cut.abs().amax((1, 3), keepdim=True) / FP8_LARGEST).float().double()
        if self.forms.scales == "power":
            scale = torch.exp2(torch.ceil(torch.log2(torch.where(scale == 0, 1.0, scale))))
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        return [t.reshape(pad.shape)[:m, :k] for t in (to_e4m3(cut / scale), scale.expand(cut.shape))]

    def scaled(self, a, b, rows_of_b):
        """a [m, k] times b [k, n] in block-scaled e4m3; blocks of 128 products go into a float32 sum."""
        a, b = self.tiles(self.round(a), 1), [t.t() for t in self.tiles(self.round(b).t(), rows_of_b)]
        parts = []
        for x, of_x, y, of_y in zip(*(t.split(FP8_BLOCK, -1) for t in a), *(t.split(FP8_BLOCK, -2) for t in b)):
            if self.forms.accumulator == "wide":
                parts.append(torch.matmul(x * of_x, y * of_y).float())
                continue
            total = torch.zeros(len(x), y.shape[-1], dtype=torch.float64)
            for i in range(x.shape[-1]):
                total = cut_off(total + x[:, i, None] * y[i], 13)
            parts.append((total * of_x[:, :1] * of_y[:1]).float())  # codes are added up, and scaled after
        return self.in_turn(parts) if parts else torch.matmul(a[0], b[0]).float()

    # products with their gradients

    def product(self, a, b):
        """Operands, and the gradient that comes, in the type of products."""
        return Product.apply(a, b, self)

    def linear(self, x, w):
        """x [m, k] times a weight [k, n]: fp8 takes such products in e4m3."""
        return (ScaledProduct if self.fp8 else Product).apply(x, w, self)

    def router_product(self, x, w):
        return Product.apply(x, w, Plain(self))

    def add_bias(self, y, bias):
        return y if bias is None else AddBias.apply(y, bias, self)

    # elementary functions

    def exp(self, x):
        return torch.exp2(x * 1.4426950408889634) if self.forms.exponential == "exp2" and not self.exact else torch.exp(x)

    def sigmoid(self, x):
        if self.forms.sigmoid == "library":
            return torch.sigmoid(x)
        # no exponential that overflows, whose gradient is 0 times infinity; nor abs(x), which has the gradient 0 at 0
        e = torch.exp(torch.where(x < 0, x, -x))
        return torch.where(x < 0, e, torch.ones_like(e)) / (1 + e)

    def softmax(self, x):
        if self.forms.softmax == "library":
            return torch.softmax(x, -1)
        if self.forms.softmax == "lse":
            return torch.exp(torch.log_softmax(x, -1))  # x less the largest first: an lse of large scores is too coarse
        e = torch.exp(x - x.amax(-1, keepdim=True).detach())
        return e / e.sum(-1, keepdim=True)


class Plain:
    """A router's products: no operand is rounded."""

    def __init__(self, ar):
        self.contract = ar.contract

    def operand(self, x):
        return x


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ar, forward, backward):
        ctx.ar, ctx.rounds = ar, backward
        return ar.round(x) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx, d):
        return ctx.ar.round(d) if ctx.rounds else d, None, None, None


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, ar):
        a, b = ar.operand(a), ar.operand(b)
        ctx.save_for_backward(a, b)
        ctx.ar = ar
        return ar.contract(a, b)

    @staticmethod
    def backward(ctx, d):
        (a, b), ar = ctx.saved_tensors, ctx.ar
        d = ar.operand(d)
        return ar.contract(d, b.transpose(-1, -2)), ar.contract(a.transpose(-1, -2), d), None


class ScaledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, ar):
        ctx.save_for_backward(x, w)
        ctx.ar = ar
        return ar.scaled(x, w, FP8_BLOCK)

    @staticmethod
    def backward(ctx, d):
        (x, w), ar = ctx.saved_tensors, ctx.ar
        return ar.scaled(d, w.t(), FP8_BLOCK), ar.scaled(x.t(), d, 1), None


class AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, bias, ar):
        ctx.ar, ctx.shape = ar, bias.shape
        return y + bias

    @staticmethod
    def backward(ctx, d):
        return d, ctx.ar.total(d.reshape(-1, *ctx.shape)), None
