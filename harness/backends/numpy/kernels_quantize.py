"""Codes and scales in numpy's own float32, a whole tensor at a time."""
import re

import numpy as np

WHOLE = 1 << 40  # as long as any axis
ONE, LARGEST = np.float32(1), np.finfo(np.float32).max
FORMATS = {  # elements, scales, rows and columns of a block
    "mxfp4": ("e2m1", "e8m0", 1, 32), "mxfp8_e4m3": ("e4m3", "e8m0", 1, 32), "mxfp8_e5m2": ("e5m2", "e8m0", 1, 32),
    "nvfp4": ("e2m1", "e4m3", 1, 16), "nvfp4_16x16": ("e2m1", "e4m3", 16, 16), "fp4_e4m3_1x16": ("e2m1", "e4m3", 1, 16),
    "fp4_1x32": ("e2m1", "f32", 1, 32), "fp4_1x128": ("e2m1", "f32", 1, 128),
    "fp8_e4m3_1x128": ("e4m3", "f32", 1, 128), "fp8_e4m3_128x1": ("e4m3", "f32", 128, 1),
    "fp8_e4m3_128x128": ("e4m3", "f32", 128, 128), "fp8_e5m2_1x128": ("e5m2", "f32", 1, 128),
    "fp8_e5m2_128x128": ("e5m2", "f32", 128, 128), "fp8_e4m3_row": ("e4m3", "f32", 1, WHOLE), "fp8_e4m3_tensor": ("e4m3", "f32", WHOLE, WHOLE),
    "fp8_e5m2_row": ("e5m2", "f32", 1, WHOLE), "fp8_e5m2_tensor": ("e5m2", "f32", WHOLE, WHOLE)}
INPUT_LARGEST = {"bfloat16": 2.0**127 * (2 - 2.0**-7), "float16": 65504.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0,
                 "float4_e2m1fn": 6.0}


def numbers(kind):
    """Of each code without a sign, up to the largest."""
    fraction, bias, codes = {"e2m1": (1, 1, 8), "e4m3": (3, 7, 127), "e5m2": (2, 15, 124)}[kind]
    exponent, whole = np.divmod(np.arange(codes), 1 << fraction)
    return ((whole + ((exponent > 0) << fraction)) * 2.0 ** (np.maximum(exponent, 1) - bias - fraction)).astype(np.float32)


def codes_of(kind, x, down=False, saturate=True):
    table = numbers(kind)
    next_one = 2 * table[-1] - table[-2]
    steps = np.append(table, next_one)
    middle = (steps[1:] + steps[:-1]) / 2  # exact
    below = np.searchsorted(middle, np.abs(x), "left")
    above = np.searchsorted(middle, np.abs(x), "right")
    code = below if down else np.where(below % 2 == 0, below, above)
    sign = np.signbit(x)
    if kind == "e2m1" or saturate:
        code = np.minimum(code, len(table) - 1)
    elif kind == "e4m3":
        sign = sign & (code < len(table))
    return np.minimum(code, len(table)) | sign * (8 if kind == "e2m1" else 128)


def in_blocks(x, rows, columns):
    """[I, rows, J, columns], with zeros behind the edges."""
    rows, columns = min(rows, x.shape[0]), min(columns, x.shape[1])
    high, wide = -(-x.shape[0] // rows), -(-x.shape[1] // columns)
    padded = np.zeros((high * rows, wide * columns), x.dtype)
    padded[:x.shape[0], :x.shape[1]] = x
    return padded.reshape(high, rows, wide, columns)


def floor_power(x):
    return np.ldexp(ONE, np.frexp(x)[1] - 1).astype(np.float32)


def scales_of(s, kind, scales, amax):
    """The codes of the scales, and what elements are multiplied by."""
    q, rounding = numbers(kind)[-1], s["quant_scale_rounding"]
    if s["quant_scale"] == "invert":
        e = (q / amax).astype(np.float32)
        e = np.where(np.isinf(e), np.float32(INPUT_LARGEST.get(s["dtype"], LARGEST)), e)
        e = np.where(amax == 0, ONE, floor_power(e) if rounding == "up" else e)
        return (ONE / e).view(np.int32), e
    q = floor_power(q) if rounding == "down" else q
    scale = (amax * (ONE / q) if s["quant_scale"] == "multiply" else amax / q).astype(np.float32)
    if scales == "e4m3":
        code = codes_of("e4m3", scale)
        scale = numbers("e4m3")[code]
        return code, np.where(scale == 0, 0, ONE / scale)
    if rounding == "nearest":
        return scale.view(np.int32), np.where(scale == 0, 0, np.minimum(ONE / scale, LARGEST))
    subnormal = s.true("quant_subnormal_scale")
    least = np.float32(2.0**-127 if subnormal else 2.0**-126)
    power = floor_power(scale)
    if rounding == "up":
        power = np.maximum(np.where(power < scale, 2 * power, power), least)
    power = np.where((scale == 0) | (power < least), 0, power).astype(np.float32)
    if scales == "f32":
        return power.view(np.int32), np.where(power == 0, 0, ONE / power)
    code = np.where(power < np.float32(2.0**-126), 0, power.view(np.int32) >> 23)
    return code, np.where(power == 0, np.float32(2.0**127 if subnormal else 0), ONE / power)


def packed(s, kind):
    return kind == "e2m1" and s.true("pack_codes")


def swizzled(s):
    return s["quant_scale_layout"] == "swizzled_128x4"


def swizzle(scale):
    """Tiles of 128 x 4, in each of which row 32 q + r is piece q of line r."""
    high, wide = -(-scale.shape[0] // 128), -(-scale.shape[1] // 4)
    padded = np.zeros((high * 128, wide * 4), scale.dtype)
    padded[:scale.shape[0], :scale.shape[1]] = scale
    return padded.reshape(high, 4, 32, wide, 4).transpose(0, 3, 2, 1, 4).reshape(padded.shape)


def row_major(scale):
    high, wide = scale.shape[0] // 128, scale.shape[1] // 4
    return scale.reshape(high, wide, 32, 4, 4).transpose(0, 3, 2, 1, 4).reshape(scale.shape)


def quantize(s, x):
    kind, scales, rows, columns = FORMATS[s["quant_format"]]
    x = x.astype(np.float32)
    blocks = in_blocks(x, rows, columns)
    amax = np.maximum(np.abs(blocks).max((1, 3)), np.float32(s.number("quant_smallest_amax")))
    found = {}
    if s["quant_format"].startswith("nvfp4"):
        g = np.minimum(np.float32(448 * 6) / np.abs(x).max(), LARGEST)
        code = codes_of("e4m3", np.minimum(amax * (g * (ONE / np.float32(6))), np.float32(448)))
        times = np.minimum(ONE / (numbers("e4m3")[code] * (ONE / g)), LARGEST)
        found["tensor_scale"] = (ONE / g).reshape(1).view(np.int32)
    else:
        code, times = scales_of(s, kind, scales, amax)
    y = blocks * times.astype(np.float32)[:, None, :, None]
    if s["quant_elements"] == "divide" and not s["quant_format"].startswith("nvfp4"):
        y = np.where(y == 0, y, blocks / scale_numbers(scales, code.view(np.float32) if scales == "f32" else code)[:, None, :, None])
    y = y.reshape(blocks.shape[0] * blocks.shape[1], -1)[:x.shape[0], :x.shape[1]]
    codes = codes_of(kind, y, s["quant_ties"] == "down", s.true("quant_saturate"))
    if not s.true("quant_negative_zero"):
        codes = np.where(codes == (8 if kind == "e2m1" else 128), 0, codes)
    found["codes"] = codes[:, ::2] | codes[:, 1::2] << 4 if packed(s, kind) else codes
    return {**found, "scale": swizzle(code) if swizzled(s) else code}


def signed(kind, codes):
    table, sign = numbers(kind), 8 if kind == "e2m1" else 128
    return np.where(codes & sign, -table[codes % sign], table[codes % sign])


def spread(blocks, rows, columns, shape):
    """[.., I, J] to [.., *shape]."""
    return np.repeat(np.repeat(blocks, min(rows, shape[0]), -2), min(columns, shape[1]), -1)[..., :shape[0], :shape[1]]


def dequantize(s, codes, scale, tensor_scale, float_type=np.float32):
    """codes and e8m0 or e4m3 scales are bytes."""
    kind, scales, rows, columns = FORMATS[s["quant_format"]]
    codes = codes.astype(np.int32)
    if packed(s, kind):
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
    if scales != "f32":
        raw = scale.astype(np.int32)
        scale = np.ldexp(1.0, raw - 127) if scales == "e8m0" else signed(scales, raw)
    if swizzled(s):
        scale = row_major(scale)
    wide = spread(scale, rows, columns, codes.shape)
    y = (signed(kind, codes) * wide).astype(float_type)
    return y if tensor_scale is None else y * float_type(tensor_scale[0])


class Operand(np.ndarray):
    """A quantised operand: its numbers, in float64, where codes times scales are exact. Nothing rounds it before a product, as a kernel
    multiplies codes; what comes out of any operation is a plain array."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return getattr(ufunc, method)(*(np.asarray(x) for x in inputs), **options)


def scale_numbers(kind, raw):
    if kind == "f32":
        return raw.astype(np.float64)
    codes = raw.astype(np.int32)
    return np.ldexp(1.0, codes - 127) if kind == "e8m0" else signed(kind, codes).astype(np.float64)


def operand(name, codes, scale, tensor_scale, batch, rows, sums_rows):
    """For each index of the first `batch` axes a matrix, whose rows are the next `rows` axes: products sum over its columns, or over its
    rows, and blocks lie along these."""
    kind, scales, high, wide = FORMATS[name]
    if sums_rows:
        high, wide = wide, high
    y = signed(kind, codes.astype(np.int32)).astype(np.float64)
    y = y.reshape(np.prod(y.shape[:batch], dtype=int), np.prod(y.shape[batch : batch + rows], dtype=int), -1)
    blocks = scale_numbers(scales, scale).reshape(len(y), -(-y.shape[1] // high), -(-y.shape[2] // wide))
    y = y * spread(blocks, high, wide, y.shape[1:])
    if tensor_scale is not None:
        y = y * tensor_scale.astype(np.float64).reshape(-1, 1, 1)
    return y.reshape(codes.shape).view(Operand)


def axes_of(s, path, rank):
    """Of a weight [.., K, N] that is summed over K, of mla's, whose first axis or two are K and the others N, or of rows [.., K] that are
    summed over K."""
    if path.startswith("weights/") and s["op"] == "mla":
        return 0, 2 if path.endswith("out/kernel") else 1, True
    if path.startswith("weights/"):
        return rank - 2, 1, True
    return 0, rank - 1, s["gmm_layout"] == "k_grouped"


def operands(s, tensors, axes=axes_of):
    """Codes and scales by path to Operands by path, which take the codes' place; the scales go."""
    found = {}
    for path, name in re.findall(r"([\w/]+): (\w+)", s.text.get("quant_formats", "")):
        codes, *scales = (tensors.pop(path + end, None) for end in ("", "_scale", "_tensor_scale"))
        found[path] = operand(name, codes, *scales, *axes(s, path, codes.ndim))
    return {**tensors, **found}


def rules_of_step(name, scale=None, scale_rounding=None, ties="even", smallest_amax=None, tensor_scale=0, **flags):
    """What a program's step says, under the names of a case's keys; what it does not say is the format's own."""
    scales = FORMATS[name][1]
    flags = {"subnormal_scale": True, "saturate": True, "negative_zero": True, **flags}
    return StepRules({
        "quant_hidden_format": name, "quant_scale": scale or ("invert" if name.startswith("nvfp4") else "divide"),
        "quant_scale_rounding": scale_rounding or ("down" if scales == "e8m0" else "nearest"), "quant_ties": ties,
        "quant_smallest_amax": smallest_amax if smallest_amax is not None else 1e-4 if scales == "f32" else 0,
        "quant_hidden_tensor_scale": tensor_scale, "dtype": "float32", **{"quant_" + key: flag for key, flag in flags.items()}})


class StepRules(dict):
    number = true = dict.__getitem__


def hidden(s, h):
    """h [rows, H] as a kernel quantises it: codes and scales as bits, and the numbers that they are. Steps are float32's, whatever h is."""
    name = s["quant_hidden_format"]
    kind, scales, rows, columns = FORMATS[name]
    blocks = in_blocks(h, rows, columns)
    amax = np.maximum(np.abs(blocks).max((1, 3)), np.float32(s.number("quant_smallest_amax")))
    of_tensor = np.float32(s.number("quant_hidden_tensor_scale"))
    if name.startswith("nvfp4"):
        scale = (amax * ((ONE / of_tensor) * (ONE / np.float32(6)))).astype(np.float32)
        code = codes_of("e4m3", np.minimum(scale, np.float32(448)))
        times = np.minimum(ONE / (numbers("e4m3")[code] * of_tensor), LARGEST)
    else:
        code, times = scales_of(s, kind, scales, amax)
    y = (blocks * times.astype(np.float32)[:, None, :, None]).reshape(blocks.shape[0] * blocks.shape[1], -1)[:len(h), :h.shape[1]]
    codes = codes_of(kind, y.astype(np.float32), s["quant_ties"] == "down", s.true("quant_saturate"))
    if not s.true("quant_negative_zero"):
        codes = np.where(codes == (8 if kind == "e2m1" else 128), 0, codes)
    scale = code.view(np.float32).astype(np.float64) if scales == "f32" else scale_numbers(scales, code)
    wide = spread(scale, rows, columns, h.shape)
    found = signed(kind, codes) * wide * (float(of_tensor) or 1)
    return codes.astype(np.int32), code.astype(np.int32), found.view(Operand)
