#!/usr/bin/env python3
"""The numpy backend with one wrong intermediate, which flows on: to see that stage named, and no other.

    assay run mla/packed --staged --serve --backend 'python3 planted_stage.py mla_kv factor:8'

The intermediate NAME (mla_kv, attention_out, mlpwi_0, intermediate ...) is, in every layer, 1 + 2^-N times what it should be
(factor:N), 2 % too large in the last quarter of its columns (tile), or NaN in its last element (nan).
"""
import sys

import numpy as np

import backend
from arithmetic import Arithmetic

name, what = sys.argv.pop(1), sys.argv.pop(1)


def made(self, of, x):
    if of != name:
        return x
    x = np.array(x)
    if what.startswith("factor:"):
        return x * self.float(1 + 2.0 ** -int(what.split(":")[1]))
    if what == "tile":
        x[..., -(x.shape[-1] // 4) :] *= self.float(1.02)
    elif what == "nan":
        x.reshape(-1)[-1] = np.nan
    else:
        sys.exit(f"no bug {what}")
    return x


Arithmetic.made = made
backend.main()
