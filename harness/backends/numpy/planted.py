#!/usr/bin/env python3
"""The numpy backend with a wrong layer, to see it found: the gradients of wo in the experts of layer LAYER are FACTOR times what they should be.

    assay run layer4.h5 --serve --backend 'python3 planted.py 4 1.05'

The golden is of a layer alone, by the key `only_layer` (docs/large.md).
"""
import sys

import backend
import operations

layer, factor = sys.argv.pop(1), float(sys.argv.pop(1))
right = operations.moe


def wrong(ar, s, t, prefix, x):
    y, router, back = right(ar, s, t, prefix, x)

    def back_wrong(dy, d_loss):
        dx, gradients = back(dy, d_loss)
        if s["only_layer"] == layer:
            gradients[f"gradients/{prefix}wo"] *= ar.float(factor)
        return dx, gradients

    return y, router, back_wrong


operations.moe = wrong
backend.main()
