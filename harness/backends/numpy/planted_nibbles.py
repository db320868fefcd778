#!/usr/bin/env python3
"""The numpy backend with codes of four bits the wrong way round, to see it found: of two in a byte the first is in the high bits.

    assay fuzz --op quantize --serve --backend 'python3 planted_nibbles.py'
"""
import backend
import operations
from kernels_quantize import FORMATS, packed

right = operations.quantize


def wrong(s, x):
    made = right(s, x)
    if packed(s, FORMATS[s["quant_format"]][0]):
        made["codes"] = made["codes"] >> 4 | (made["codes"] & 15) << 4
    return made


operations.quantize = wrong
backend.main()
