#!/usr/bin/env python3
"""The numpy backend with a bug where it quantises h (quant_hidden_format), to see it found in the codes that it gives.

    assay run mlp/requantised-fp8 --serve --backend 'python3 planted_codes.py before_activation'

Scales are those of gate before its activation (before_activation), of the block after (next_block) or of the row after
(next_row), elements are rounded towards zero (truncated), one code is the next but one (one_code), or h goes on as it is beside the
right codes (as_it_is). `none`: no bug.
"""
import sys

import numpy as np

import backend
import kernels_basic
import kernels_moe
import operations
from kernels_quantize import FORMATS, Operand, codes_of, hidden, scale_numbers, signed

bug = sys.argv.pop(1)


class GatedMlp(kernels_basic.GatedMlp):
    def __call__(self, x, wi_0, *rest, **options):
        self.gate_of_rows = self.ar.linear(x, wi_0)
        return super().__call__(x, wi_0, *rest, **options)

    def quantise(self, h):
        codes, scale, product = hidden(self.s, h)
        kind, scales, _, columns = FORMATS[self.s["quant_hidden_format"]]
        of_tensor = self.s.number("quant_hidden_tensor_scale") or 1.0
        if bug == "as_it_is":
            return codes, scale, np.asarray(h, np.float64).view(Operand)
        if bug == "none":
            return codes, scale, product
        if bug == "before_activation":
            scale = hidden(self.s, self.gate_of_rows)[1]
        elif bug == "next_block":
            scale = np.roll(scale, -1, 1)
        elif bug == "next_row":
            scale = np.roll(scale, -1, 0)
        wide = scale.astype(np.int32).view(np.float32) if scales == "f32" else scale_numbers(scales, scale)
        wide = np.repeat(wide.astype(np.float64), columns, 1)[:, : h.shape[1]] * of_tensor
        if bug == "before_activation":
            codes = codes_of(kind, (h / np.where(wide == 0, 1, wide)).astype(np.float32))
        elif bug == "truncated":
            codes = codes - (np.abs(signed(kind, codes)) * wide > np.abs(h))
        elif bug == "one_code":
            codes = np.array(codes)
            codes[-1, 5] ^= 2
        elif not bug.startswith("next"):
            sys.exit(f"no bug {bug}")
        return codes.astype(np.int32), scale.astype(np.int32), (signed(kind, codes) * wide).view(Operand)


operations.GatedMlp = kernels_moe.GatedMlp = GatedMlp
backend.main()
