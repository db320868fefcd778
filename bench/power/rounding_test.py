"""The roundings of arithmetic.py, on values that are easy to get wrong."""
import numpy as np

from arithmetic import Arithmetic, Variant, to_bfloat16, to_float16, to_float8_e4m3


def same(found, expected):
    found = np.asarray(found, np.float64)
    assert np.array_equal(found, np.asarray(expected, np.float64), equal_nan=True), (found, expected)


def check():
    up, infinite = 2.0**-7, np.inf
    same(to_bfloat16(np.float32([1 + up / 2, 1 + 3 * up / 2, 1 + up / 2 + 2.0**-20, -1 - up / 2, 3.4e38, np.nan, -infinite])),
         [1, 1 + 2 * up, 1 + up, -1, infinite, np.nan, -infinite])
    same(to_float16(np.float32([1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519, 65520, 2.0**-25, 3 * 2.0**-25])),
         [1, 1 + 2.0**-9, 65504, infinite, 0, 2.0**-23])
    same(to_float8_e4m3([1.0625, 1.1875, 1000, -449, 2.0**-10, 3 * 2.0**-10, 0, 17.5]),
         [1, 1.25, 448, -448, 0, 2.0**-8, 0, 18])
    # a term at a time, 1 + 2^-24 is 1 again and again; all at once it is not
    column, ones = np.full((1, 2**8), 2.0**-24, np.float32), np.ones((2**8, 1), np.float32)
    column[0, 0] = 1
    for order, expected in (("forward", 1), ("reversed", 1 + 255 * 2.0**-24)):
        found = Arithmetic("f32", Variant(block=1, order=order)).product(column, ones)
        same(found, [[np.float32(expected)]])
    same(Arithmetic("f32").product(column, ones), [[np.float32(1 + 255 * 2.0**-24)]])
    ulps = Arithmetic("f32", Variant(functions="ulps")).exp(np.linspace(-20, 5, 999, dtype=np.float32))
    exact = Arithmetic("f64").exp(np.linspace(-20, 5, 999, dtype=np.float32).astype(np.float64))
    off = np.abs(ulps / exact - 1)
    assert 2.0**-24 < off.max() < 3 * 2.0**-23, off.max()
