"""The arithmetic of a kernel on a GPU or TPU, emulated in numpy: what it rounds, and the liberties that it has.

A profile (docs/comparing.md) says what must be rounded: operands of products and what lies in memory between kernels to
the storage type, to nearest even; sums and elementary functions in float32. A Variant says how one of the correct
implementations uses what the profile leaves open. Profile f64 rounds nothing: it shows that the formulas are right.
"""
import copy
from dataclasses import dataclass, fields, replace

import numpy as np

from kernels_quantize import Operand

LOG2_E = np.float32(1.4426950408889634)
FP8_BLOCK, FP8_LARGEST = 128, 448.0


@dataclass(frozen=True)
class Variant:
    name: str = "plain"
    block: int = 8  # terms of a sum that are added exactly before float32 rounds; 0: all, 1: a rounding for each term
    order: str = "forward"  # of these blocks: forward, reversed, pairwise, split (two halves, as split-K does)
    fused: bool = False  # what need not go through memory stays float32
    functions: str = "rounded"  # exp and the like: "rounded" correctly, "ulps" up to two off, "exp2": other formulas
    softmax: str = "plain"  # or "online": over blocks of keys, with a running maximum and sum
    keys: int = 16  # such a block
    backward: str = "delta"  # of softmax and norm; "product" is other algebra for the same
    weigh_early: bool = False  # routing weights go onto the hidden layer, not onto an expert's output
    wide_results: bool = False  # results are written in float32
    truncates: bool = False  # fp8: the accumulator within a block of 128 cuts off after 13 bits, as Hopper's does
    power_scales: bool = False  # fp8: scales are powers of two
    scales_after: bool = False  # codes of quantised operands are multiplied first, and each block's sum by its scale
    wide_inputs: bool = False  # inputs, weights and cotangents stay float32 where no product takes them


PLAIN = Variant()
VARIANTS = (
    PLAIN,
    Variant("fused", block=16, fused=True, softmax="online", keys=64, truncates=True),
    Variant("sequential", block=1, functions="ulps", power_scales=True, scales_after=True),
    Variant("reversed", block=64, order="reversed", functions="exp2", backward="product"),
    Variant("pairwise", block=4, order="pairwise", fused=True, softmax="online", keys=16, functions="exp2"),
    Variant("split-k", block=128, order="split", fused=True, weigh_early=True, backward="product", scales_after=True),
    Variant("wide", block=1, order="reversed", fused=True, functions="ulps", weigh_early=True, wide_results=True, truncates=True, power_scales=True,
            wide_inputs=True),
)
CHOICES = {"block": (0, 1, 4, 16, 64, 128), "order": ("forward", "reversed", "pairwise", "split"), "fused": (False, True),
           "functions": ("rounded", "ulps", "exp2"), "softmax": ("plain", "online"), "keys": (4, 16, 64),
           "backward": ("delta", "product"), "weigh_early": (False, True), "wide_results": (False, True), "truncates": (False, True),
           "power_scales": (False, True), "wide_inputs": (False, True), "scales_after": (False, True)}
assert set(CHOICES) == {field.name for field in fields(Variant)} - {"name"}


def variant(number):
    """The fixed ones first, then drawn ones, the same for the same number."""
    if number < len(VARIANTS):
        return VARIANTS[number]
    random = np.random.Generator(np.random.PCG64(number))
    drawn = {name: values[random.integers(len(values))] for name, values in CHOICES.items()}
    drawn["block"] = CHOICES["block"][number % len(CHOICES["block"])]  # what matters most, in turn
    return replace(PLAIN, name=f"drawn-{number}", **drawn)


def to_bfloat16(x):
    """Nearest even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32)).reshape(np.shape(x))


def to_float16(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def to_float8_e4m3(x):
    """Nearest even, saturating at 448."""
    x = np.asarray(x, np.float64)
    exponent = np.maximum(np.frexp(x)[1] - 1, -6)
    step = np.ldexp(1.0, exponent - 3)
    return np.clip(np.rint(x / step) * step, -FP8_LARGEST, FP8_LARGEST)


SUMS = {"float32": lambda x: x, "bfloat16": to_bfloat16, "float16": to_float16}
STORAGE = {"f32": lambda x: np.asarray(x, np.float32), "bf16": to_bfloat16, "f16": to_float16,
           "fp8_e4m3_block128": to_bfloat16}


# Profiles of one's own (docs/comparing.md), whose sums of products are cut off (bench/power/*.yml): the profile that they are like, bits
# after the leading one, and after how many products a sum is added to another in float32; None: never.
CUT_SUMS = {"sums_13_bits": ("bf16", 13, FP8_BLOCK), "sums_cut_off": ("f32", 23, None)}


def storage_profile(profile):
    return CUT_SUMS.get(profile, (profile,))[0]


def fp8_tiles(x, rows, powers):
    """x [..., m, k] in e4m3 with a float32 scale for each tile of rows by 128 numbers."""
    y = np.empty(x.shape, np.float64)
    for top in range(0, x.shape[-2], rows):
        for left in range(0, x.shape[-1], FP8_BLOCK):
            tile = (..., slice(top, top + rows), slice(left, left + FP8_BLOCK))
            part = x[tile].astype(np.float64)
            scale = (np.abs(part).max((-2, -1), keepdims=True) / FP8_LARGEST).astype(np.float32).astype(np.float64)
            if powers:
                scale = np.exp2(np.ceil(np.log2(np.where(scale == 0, 1, scale))))
            scale = np.where(scale == 0, 1, scale)
            y[tile] = to_float8_e4m3(part / scale) * scale
    return y


def cut_off(x, bits):
    """Towards 0, to that many bits after the leading one."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)


class Arithmetic:
    def __init__(self, profile, variant=PLAIN):
        self.cut = CUT_SUMS.get(profile)
        profile = storage_profile(profile)
        self.exact = profile == "f64"
        self.float = np.float64 if self.exact else np.float32
        self.fp8 = profile.startswith("fp8")
        self.narrow = profile != "f32" and not self.exact
        self.variant = variant
        self.checkpoints, self.layer = {}, ""
        self.sums = None
        self.round = (lambda x: np.asarray(x, np.float64)) if self.exact else STORAGE[profile]

    def with_sums(self, type):
        """The same, but that all sums are kept in a type of their own."""
        other = copy.copy(self)
        other.sums = type
        return other

    def in_registers(self):
        """The same, but that nothing is stored which need not be."""
        other = copy.copy(self)
        other.variant = replace(self.variant, fused=True)
        return other

    def made(self, name, x):
        """Every intermediate goes through here on its way: for planted_stage.py, which changes one."""
        return x

    def checkpoint(self, name, x):
        """An intermediate for who asks for it, whether or not this implementation has it in memory."""
        if x is not None:
            self.checkpoints["checkpoints/" + self.layer + name] = x

    # what lies in memory

    def given(self, path, x):
        """An input, weight or cotangent: what a router adds to its scores, or takes them from, is float32."""
        wide = x.dtype.kind == "i" or self.variant.wide_inputs or path.endswith(("/gate/bias", "/logits"))
        return x if wide else self.round(x)

    def store(self, x):
        """What every implementation writes to memory or feeds to a product."""
        return self.round(x)

    def keep(self, x):
        """What a fused implementation keeps in registers."""
        return x if self.variant.fused else self.round(x)

    def result(self, x):
        return x if self.variant.wide_results else self.round(x)

    def value(self, x):
        """A number of float32: parameters, and float64 results of functions."""
        return np.asarray(x).astype(self.float)

    # sums

    def partial(self, x):
        """A sum so far."""
        x = self.value(x)
        return x if self.exact or self.sums is None else SUMS[self.sums](x)

    def product(self, a, b):
        """[..., m, k] times [..., k, n], operands in the storage type."""
        return self.contract(self.operand(a), self.operand(b))

    def operand(self, x):
        return x if isinstance(x, Operand) else self.round(x)

    def linear(self, x, w):
        """The product with a weight, which an fp8 profile takes in e4m3: x in tiles of 1 x 128, w of 128 x 128."""
        return self.scaled_product(x, w, FP8_BLOCK) if self.fp8 else self.product(x, w)

    def weight_gradient(self, x, dy):
        """x [m, k], dy [m, n] to [k, n]; both in tiles of 1 x 128 along m."""
        return self.scaled_product(x.T, dy, 1) if self.fp8 else self.product(x.T, dy)

    def scaled_product(self, a, b, rows_of_b):
        powers = self.variant.power_scales
        a = fp8_tiles(self.round(a), 1, powers)
        b = fp8_tiles(self.round(b).T, rows_of_b, powers).T
        return self.sums_of_blocks(a, b, 13 if self.variant.truncates else None, FP8_BLOCK)

    def sums_of_blocks(self, a, b, bits, size):
        """Within a block a sum is cut off after that many bits (None: exact); blocks are added in float32."""
        count = max(a.shape[-1], 1)
        size = size or count
        step = min(self.variant.block or size, size)

        def block(first):
            end, total = min(first + size, a.shape[-1]), 0.0
            for i in range(first, end, step):
                total = total + a[..., i : min(i + step, end)] @ b[..., i : min(i + step, end), :]
                total = total if bits is None else cut_off(total, bits)
            return total

        return self.reduce(block, range(0, count, size))

    def contract(self, a, b):
        """Operands as they are; the router's are float32."""
        if self.exact:
            return np.asarray(a) @ np.asarray(b)
        if self.cut:
            return self.sums_of_blocks(np.asarray(a, np.float64), np.asarray(b, np.float64), *self.cut[1:])
        if self.variant.scales_after and isinstance(b, Operand):
            return self.scaled_sums(np.asarray(a, np.float64), np.asarray(b))
        a, b = np.asarray(a), np.asarray(b)
        a, b, count = a.astype(np.float64), b.astype(np.float64), a.shape[-1]
        step = self.variant.block or max(count, 1)
        return self.reduce(lambda i: a[..., i : i + step] @ b[..., i : i + step, :], range(0, max(count, 1), step))

    def scaled_sums(self, a, b):
        """As contract, but that each block of 16 terms has a sum in units of its scale, which is rounded before and after it is multiplied
        by that: the largest number of a column stands for the scale."""

        def block(i):
            scale = np.abs(b[..., i : i + 16, :]).max(-2, keepdims=True).astype(np.float32).astype(np.float64)
            scale = np.where(scale == 0, 1, scale)
            return self.value(self.value(a[..., i : i + 16] @ b[..., i : i + 16, :] / scale).astype(np.float64) * scale).astype(np.float64)

        return self.reduce(block, range(0, max(a.shape[-1], 1), 16))

    def sum(self, x, axis=-1):
        if self.exact:
            return x.sum(axis)
        x = np.moveaxis(x, axis, -1).astype(np.float64)
        step = self.variant.block or max(x.shape[-1], 1)
        return self.reduce(lambda i: x[..., i : i + step].sum(-1), range(0, max(x.shape[-1], 1), step))

    def mean(self, x, axis=-1):
        return np.expand_dims(self.sum(x, axis) / self.float(x.shape[axis]), axis)

    def reduce(self, block, starts, order=None):
        """The sum of block(i), rounded after each addition."""
        order = order or self.variant.order
        if order in ("pairwise", "split") and len(starts) > 1:
            half, of_parts = len(starts) // 2, "pairwise" if order == "pairwise" else "forward"
            parts = (self.reduce(block, part, of_parts) for part in (starts[:half], starts[half:]))
            return self.partial(next(parts).astype(np.float64) + next(parts))
        total = None
        for i in reversed(starts) if order == "reversed" else starts:
            total = self.partial(block(i) if total is None else total + block(i))
        return total

    # elementary functions

    def function(self, f, x):
        """f in float64, rounded to float32; variant "ulps": up to two of its last bits off, the same for the same value."""
        with np.errstate(all="ignore"):
            y = self.value(f(np.asarray(x, np.float64)))
        if self.exact or self.variant.functions != "ulps":
            return y
        bits = np.ascontiguousarray(y).view(np.int32)
        off = ((bits.astype(np.int64) * 2654435761 >> 7) % 5 - 2).astype(np.int32)
        moved = (bits + off).view(np.float32)
        # what every implementation has exactly stays: exp(0), and 0 and infinities
        sound = (y != 0) & (y != 1) & np.isfinite(y) & np.isfinite(moved) & (np.abs(y) > 1e-37)
        return np.where(sound, moved, y).reshape(np.shape(y))

    def other_formulas(self):
        return self.variant.functions == "exp2" and not self.exact

    def exp(self, x):
        if self.other_formulas():
            return self.function(np.exp2, np.asarray(x, np.float32) * LOG2_E)
        return self.function(np.exp, x)

    def sigmoid(self, x):
        return self.float(1) / (self.float(1) + self.exp(-x))

    def activation_sigmoid(self, x):
        """0.5 + 0.5 tanh(x / 2) cancels where x is far below 0, so that only results of 16 bits come from it, and no
        router's; below -8 it has not even these."""
        if self.other_formulas() and self.narrow:
            near = self.float(0.5) + self.float(0.5) * self.tanh(self.float(0.5) * x)
            return np.where(x < -8, self.sigmoid(x), near)
        return self.sigmoid(x)

    def tanh(self, x):
        return self.function(np.tanh, x)

    def log(self, x):
        return self.function(np.log, x)

    def softplus(self, x):
        return self.function(lambda v: np.logaddexp(0, v), x)

    def sqrt(self, x):
        return self.function(np.sqrt, x)

    def reciprocal_root(self, x):
        return self.function(lambda v: 1 / np.sqrt(v), x)

    def softmax(self, x):
        e = self.exp(x - x.max(-1, keepdims=True))
        return e / self.sum(e)[..., None]
