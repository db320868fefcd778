"""What a training recipe makes of the operands of a grouped product and of its two gradients, in numpy: oracle/ops/quant_recipe.h."""
import numpy as np

from kernels_quantize import LARGEST, ONE, Operand, codes_of, floor_power, signed

ROOTS = {"float32": 2.0**-63, "bfloat16": 2.0**-63, "float16": 2.0**-7}


def rounded(s, x):
    """float32 numbers to the type of the case's tensors."""
    x = np.asarray(x, np.float32)
    if s["dtype"] == "float16":
        return x.astype(np.float16).astype(np.float32)
    if s["dtype"] == "bfloat16":
        bits = x.view(np.uint32)
        bits = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)
    return x


def in_blocks_of_rows(x, powers):
    """e4m3 with a scale for every 128 rows of each column."""
    out = np.zeros(x.shape, np.float64)
    for first in range(0, len(x), 128):
        part = x[first : first + 128].astype(np.float32)
        scale = np.maximum(np.abs(part).max(0), np.float32(1e-4)) / np.float32(448)
        if powers:
            power = floor_power(scale)
            scale = np.where(power < scale, 2 * power, power)
        times = np.minimum(ONE / scale, LARGEST)
        out[first : first + 128] = signed("e4m3", codes_of("e4m3", part * times)) * scale.astype(np.float64)
    return out


def along_rows(x, sizes, powers):
    """Blocks begin anew with each group."""
    parts = np.split(x, np.cumsum(sizes)[:-1])
    return np.concatenate([in_blocks_of_rows(part, powers) for part in parts]).view(Operand)


def along_columns(x, powers):
    return in_blocks_of_rows(x.T, powers).T.view(Operand)


def vectors(s, kind, x, axis, calibration):
    """Codes as numbers, and scales with an axis of 1; `axis`: along which a scale is shared."""
    method, *numbers = s[calibration].strip('"').split(",")
    x, largest = np.asarray(x, np.float32), np.float32(57344 if kind == "e5m2" else 448)
    amax = np.abs(x).max(axis, keepdims=True) if x.size else np.zeros((1, 1), np.float32)
    if method == "fixed":
        amax = rounded(s, np.full_like(amax, float(numbers[-1])))
    elif numbers:
        amax = rounded(s, amax * rounded(s, float(numbers[0])))
    scale = rounded(s, amax / largest)
    scale = np.where(scale < np.float32(ROOTS[s["dtype"]]), ONE, scale)
    y = np.clip(rounded(s, x / scale), -largest, largest)
    return signed(kind, codes_of(kind, y)).astype(np.float64), scale


class Recipe:
    """x [M, K] with the rows of groups one after the other, w [G, K, N], and what forward takes of them."""

    def __init__(self, s, x, w, sizes):
        self.s, self.sizes, self.shape = s, sizes, w.shape
        self.name, self.powers = s["quant_recipe"], s["quant_scale_rounding"] == "up" if "quant_scale_rounding" in s.text else False
        self.x, self.w, self.codes_of_w = x, w, w
        if self.name == "fp8_full":
            x = rounded(s, x)
            flat = w.reshape(-1, w.shape[-1])
            self.codes_of_x, self.scale_of_x = vectors(s, "e4m3", x, 1, "act_quantization_calibration_method")
            codes, self.scale_of_w = vectors(s, "e4m3", flat, 0, "weight_quantization_calibration_method")
            self.x = (self.codes_of_x * self.scale_of_x).view(Operand)
            self.w = (codes * self.scale_of_w).reshape(w.shape).view(Operand)
            self.codes_of_w = codes.reshape(w.shape).view(Operand)

    def back(self, dy):
        """dy and w for the gradient of x; x and dy for that of w."""
        s, powers = self.s, self.powers
        if self.name == "deepseek_v3":
            return along_columns(dy, powers), self.w, along_rows(self.x, self.sizes, powers), along_rows(dy, self.sizes, powers)
        method, dy = "bwd_quantization_calibration_method", rounded(s, dy)
        codes, scale = vectors(s, "e5m2", rounded(s, dy * self.scale_of_w.astype(np.float32)), 1, method)
        for_x = (codes * scale).view(Operand)
        codes, scale = vectors(s, "e5m2", rounded(s, dy * self.scale_of_x.astype(np.float32)), 0, method)
        return for_x, self.codes_of_w, self.codes_of_x.view(Operand), (codes * scale).view(Operand)
