"""`quantize` by torchao's encoders (torchao.prototype.mx_formats): MX formats and NVFP4, codes and scales as they come out of them."""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from request import Request, Unsupported

FORMATS = {"mxfp4": torch.float4_e2m1fn_x2, "mxfp8_e4m3": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.uint8).int()


def run_quantize(request: Request) -> dict[str, Tensor]:
    """An encoder is called by its name in torchao, whatever rule the case has for scales: a case asks for one of the source that it names, and
    where torchao computes the scale otherwise, but to the same end, the verdict says whether the bits are the same."""
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    s, kind = request.settings, request.settings["quant_format"]
    s.need(kind in FORMATS or kind in ("nvfp4", "fp4_e4m3_1x16"), "no " + kind)
    s.need(s["dtype"] in ("bfloat16", "float32"), "torchao takes bfloat16 and float32")
    s.need(kind.startswith("mxfp8") or s.true("pack_codes"), "torchao packs codes")
    s.need(s.true("quant_saturate") and s["quant_ties"] == "even" and s.true("quant_negative_zero"),
           "torchao saturates, ties to even, keeps the sign of 0")
    s.need(s.number("quant_smallest_amax") == 0, "no smallest amax to choose")
    x = torch.from_numpy(np.array(request.tensors["inputs/x"])).to(torch.bfloat16 if s["dtype"] == "bfloat16" else torch.float32)
    swizzled = s["quant_scale_layout"] == "swizzled_128x4"
    made = {}
    try:
        if kind in FORMATS:
            mode = {"up": ScaleCalculationMode.RCEIL, "down": ScaleCalculationMode.FLOOR}[s["quant_scale_rounding"]]
            scale, codes = to_mx(x, FORMATS[kind], 32, mode, swizzled)
        else:
            of_tensor = per_tensor_amax_to_scale(x.abs().max()) if kind == "nvfp4" else None
            if of_tensor is not None:
                made["outputs/tensor_scale"] = bits(of_tensor.reshape(1))
            encoded = NVFP4Tensor.to_nvfp4(x, 16, of_tensor, is_swizzled_scales=swizzled)
            scale, codes = encoded.scale, encoded.qdata
    except AssertionError as error:
        raise Unsupported(str(error)) from error
    if swizzled:  # the same bytes, as rows of scales
        scale = scale.reshape(-(-len(x) // 128) * 128, -1)
    return {**made, "outputs/scale": bits(scale), "outputs/codes": bits(codes)}
