"""qwix: codes and scales of tensors, and the quantised products that MaxText's fp8_full is made of. Its public functions, and below them
ragged_dot_qt and dot_general_qt, which its rules put in the place of JAX's."""
from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import qwix
from qwix._src.core import qarray
from qwix._src.core.dot_general_qt import DotGeneralQtConfig, dot_general_qt
from qwix._src.core.ragged_dot_qt import RaggedDotQtConfig, ragged_dot_qt

from case import Case, Operation, Tensors
from request import Settings

E2M1, E4M3, E5M2, E8M0 = jnp.float4_e2m1fn, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e8m0fnu
# elements, scales, rows and columns of a block, qwix's name of the type where it has one for the block
FORMATS = {
    "mxfp4": (E2M1, E8M0, 1, 32, "mxfp4"), "mxfp8_e4m3": (E4M3, E8M0, 1, 32, "mxfp8"), "mxfp8_e5m2": (E5M2, E8M0, 1, 32, ""),
    "nvfp4": (E2M1, E4M3, 1, 16, ""), "nvfp4_16x16": (E2M1, E4M3, 16, 16, ""), "fp4_e4m3_1x16": (E2M1, E4M3, 1, 16, "nvfp4"),
    "fp4_1x32": (E2M1, jnp.float32, 1, 32, E2M1), "fp4_1x128": (E2M1, jnp.float32, 1, 128, E2M1),
    **{f"fp8_{name}_{rows}x{columns}": (kind, jnp.float32, rows, columns, kind) for name, kind in (("e4m3", E4M3), ("e5m2", E5M2))
       for rows, columns in ((1, 128), (128, 1), (128, 128))}}


def bits(array: jax.Array) -> jax.Array:
    unsigned = {4: jnp.uint4, 8: jnp.uint8, 32: jnp.int32}[jnp.finfo(array.dtype).bits]
    made = jax.lax.bitcast_convert_type(array, unsigned)
    return made.astype(jnp.uint8) if unsigned == jnp.uint4 else made


def from_bits(raw: jax.Array, kind: jnp.dtype) -> jax.Array:
    return jax.lax.bitcast_convert_type(raw.astype(jnp.uint8).astype(jnp.uint4 if kind == E2M1 else jnp.uint8), kind)


def whole_blocks(s: Settings, shape: tuple[int, int], rows: int, columns: int) -> None:
    s.need(shape[0] % rows == 0 and shape[1] % columns == 0, "no blocks that are cut short")
    s.need(s["quant_scale_layout"] == "row_major", "no swizzled scales")


# ---- quantize and dequantize ----


@functools.cache
def quantize_by(name: str, packs: bool) -> Callable:
    _, scales, rows, columns, kind = FORMATS[name]
    each = [axis for axis, size in enumerate((rows, columns)) if size == 1]
    tiles = {axis: size for axis, size in enumerate((rows, columns)) if size > 1}

    def quantize(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        made = qwix.quantize(given["inputs/x"], kind, channelwise_axes=each, tiled_axes=tiles)
        codes = bits(made.qvalue)
        codes = codes[:, ::2] | codes[:, 1::2] << 4 if packs else codes
        return {"outputs/codes": codes, "outputs/scale": bits(made.scale.astype(scales))}, {}

    return quantize


def quantize(c: Case) -> Operation:
    s, x = c.s, c.tensors["inputs/x"]
    c.forms("qwix", "qwix_reciprocal")
    name = s["quant_format"]
    kind, scales, rows, columns, known = FORMATS[name]
    s.need(known != "", f"no {name}")
    whole_blocks(s, x.shape, rows, columns)
    # its source divides by the constant; XLA multiplies by the constant's reciprocal, eager too
    s.need(s["quant_scale"] == "multiply", "scales are amax times 1 / largest")
    s.need(s["quant_scale_rounding"] == ("up" if scales == E8M0 else "nearest"), "powers of two are rounded up, other scales to nearest")
    s.need(s.number("quant_smallest_amax") == 0, "no smallest amax")
    s.need(s.true("quant_saturate") and s["quant_ties"] == "even" and s.true("quant_negative_zero"), "no such rounding of elements")
    return quantize_by(name, kind == E2M1 and s.true("pack_codes")), {"inputs/x": x}, {}


@functools.cache
def dequantize_by(name: str, packed: bool) -> Callable:
    kind, scales, _, _, _ = FORMATS[name]

    def dequantize(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        codes, scale = rest["codes"].astype(jnp.uint8), rest["scale"]
        codes = jnp.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1) if packed else codes
        scale = scale if scales == jnp.float32 else from_bits(scale, scales).astype(jnp.float32)
        return {"outputs/y": qwix.dequantize(qwix.QArray(from_bits(codes, kind), scale))}, {}

    return dequantize


def dequantize(c: Case) -> Operation:
    s, name = c.s, c.s["quant_format"]
    c.forms("qwix")
    kind, _, rows, columns, _ = FORMATS[name]
    s.need("inputs/tensor_scale" not in c.raw, "no scale of the tensor")
    packed = kind == E2M1 and s.true("pack_codes")
    shape = c.raw["inputs/codes"].shape
    whole_blocks(s, (shape[0], shape[1] * (2 if packed else 1)), rows, columns)
    rest = {"codes": jnp.asarray(c.raw["inputs/codes"], jnp.int32), "scale": jnp.asarray(c.raw["inputs/scale"], jnp.float32)}
    return dequantize_by(name, packed), {}, rest


# ---- products ----


def calibrations(s: Settings) -> tuple[str, str, str]:
    """Of rows, weights and gradients: absmax, and the like."""
    return tuple(s[f"{operand}_quantization_calibration_method"] for operand in ("act", "weight", "bwd"))


@functools.cache
def gmm_fp8_full() -> Callable:
    config = RaggedDotQtConfig(lhs_qtype=E4M3, rhs_qtype=E4M3, dlhs_grad_qtype=E5M2, drhs_grad_qtype=E5M2)

    def gmm(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        return {"outputs/y": ragged_dot_qt(given["inputs/lhs"], given["weights/rhs"], rest["sizes"], config)}, {}

    return gmm


def gmm(c: Case, sizes: Tensors) -> Operation:
    s = c.s
    s.need(s.text.get("quant_recipe", "") == "fp8_full" and "quant_formats" not in s.text and s["gmm_layout"] == "ragged",
           "fp8_full of ragged rows alone")
    s.need(set(calibrations(s)) == {"absmax"}, "ragged_dot_qt has no calibration but absmax")
    return gmm_fp8_full(), c.given, sizes


@functools.cache
def mlp_fp8_full(gate: Callable, up: Callable, act: str, weight: str, backward: str) -> Callable:
    config = DotGeneralQtConfig(lhs_qtype=E4M3, rhs_qtype=E4M3, dlhs_grad_qtype=E5M2, drhs_grad_qtype=E5M2, lhs_calibration_method=act,
                                rhs_calibration_method=weight, dlhs_grad_calibration_method=backward, drhs_grad_calibration_method=backward)

    def dense(given: Tensors, name: str, x: jax.Array) -> jax.Array:
        return dot_general_qt(x, given[f"weights/{name}/kernel"], (((x.ndim - 1,), (0,)), ((), ())), config)

    def mlp(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        x = given["inputs/x"]
        a, b = jnp.split(dense(given, "wi", x), 2, -1) if "weights/wi/kernel" in given else (dense(given, "wi_0", x), dense(given, "wi_1", x))
        return {"outputs/y": dense(given, "wo", gate(a) * up(b))}, {}

    return mlp


def mlp(c: Case, activations: dict[str, Callable]) -> Operation:
    s = c.s
    s.need(s.text.get("quant_recipe", "") == "fp8_full", "fp8_full alone")
    s.need(s.number("mlp_activations_limit") == 0 and s["decoder_block"] != "gpt_oss", "no clamped unit")
    s.need(not any(path.endswith("/bias") for path in c.given), "dot_general_qt has no biases")
    return mlp_fp8_full(*(activations[name] for name in s.words("mlp_activations")), *calibrations(s)), c.given, {}


def multiply_by_reciprocals() -> None:
    """qwix's own switch: x (1 / scale) in the place of x / scale."""
    qarray.USE_RECIPROCAL_FOR_QUANTIZATION = True
