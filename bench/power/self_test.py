"""Roundings on values that are easy to get wrong, and the peers' rules on both sides of their limits."""
import numpy as np

from arithmetic import Arithmetic, Variant, to_bfloat16, to_float16, to_float8_e4m3
from peers import OF_OPERATIONS, RULES, judge


def same(found, expected):
    found = np.asarray(found, np.float64)
    assert np.array_equal(found, np.asarray(expected, np.float64), equal_nan=True), (found, expected)


def check_roundings():
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
    same(Arithmetic("f32", Variant(block=0)).product(column, ones), [[np.float32(1 + 255 * 2.0**-24)]])
    ulps = Arithmetic("f32", Variant(functions="ulps")).exp(np.linspace(-20, 5, 999, dtype=np.float32))
    exact = Arithmetic("f64").exp(np.linspace(-20, 5, 999, dtype=np.float32).astype(np.float64))
    off = np.abs(ulps / exact - 1)
    assert 2.0**-24 < off.max() < 3 * 2.0**-23, off.max()


def check_rules():
    """Each rule on a tensor of ones, a factor just inside its limit and one just outside."""
    ones = np.ones(64)
    plain = {"outputs/y": ones * (1 + 2.0**-6), "gradients/inputs/x": ones}
    limits = {  # path, inside, outside
        "MaxText": [("outputs/y", 0.0199, 0.0201), ("gradients/inputs/x", 0.0899, 0.0901)],
        "assert_close": [("outputs/y", 2.0**-6, 3 * 2.0**-7)],
        "FlashAttention": [("outputs/y", 2.0**-5, 2.0**-5 + 2.0**-6 + 1e-6), ("gradients/inputs/x", 0, 2.0**-6 + 1e-6)],
        "NMSE": [("outputs/y", 0.0223, 0.0224)],
        "calc_diff": [("outputs/y", 0.0456, 0.0459)],
        "FlashInfer": [("outputs/y", 0.1009, 0.1011)],
        "aiter": [("outputs/y", 0.0199, 0.0201)],
        "triton_kernels": [("outputs/y", 0.0039, 0.0041)],
        "TOSA": [("outputs/y", 1.99 * 2.0**-8, 2.01 * 2.0**-8)],  # 0.4 K on average squared; K is below, for one element
    }
    bounds = {"outputs/y": (10, ones)}
    plain["outputs/lse"] = ones
    limits |= {"FlashMLA": [("outputs/lse", 1.2e-4, 1.3e-4)], "FlashInfer MLA": [("outputs/y", 0.0019, 0.0021)],
               "Cutlass MLA": [("outputs/y", 0.0199, 0.0201)], "trtllm-gen fp8": [("outputs/y", 0.199, 0.201)],
               "XQA MLA": [("outputs/y", 0.0499, 0.0501)], "vLLM merge": [("outputs/y", 0.0109, 0.0111)]}
    assert set(limits) == set(RULES)
    for name, entries in limits.items():
        op = OF_OPERATIONS.get(name, ("gmm",))[0]
        for path, inside, outside in entries:
            for error, accepted in ((inside, True), (outside, False)):
                said = judge({path: ones}, {path: ones * (1 + error)}, plain, "bf16", bounds, op)[name]
                assert said is accepted, (name, path, error, said)
    # the first few elements alone
    for name, inside, outside in (("TOSA", (1, 9.9 * 2.0**-8), (1, 10.1 * 2.0**-8)),
                                  ("triton_kernels", (1, 0.0199), (1, 0.0201)),
                                  ("XQA MLA", (3, 1), (4, 1)),
                                  ("aiter", (3, 1), (4, 1))):  # of 64, a twentieth is 3.2
        some = [np.where(np.arange(64) < count, 1 + error, ones) for count, error in (inside, outside)]
        said = [judge({"outputs/y": ones}, {"outputs/y": v}, plain, "bf16", bounds, OF_OPERATIONS.get(name, ("gmm",))[0])[name] for v in some]
        assert said == [True, False], (name, said)


def check_families():
    """Limits that are those of a format: nothing at all is within FlashInfer's of fp8."""
    ones, bounds = np.ones(64), {}
    for name, family, inside, outside in (("FlashInfer", "fp8", -1, 1.0011), ("FlashInfer", "mxfp4", 0.3509, 0.3511),
                                          ("FlashInfer", "nvfp4", 0.2509, 0.2511), ("calc_diff", "mxfp8", 0.0456, 0.0459),
                                          ("calc_diff", "mxfp4", 0.152, 0.154), ("calc_diff", "nvfp4", 0.221, 0.224)):
        for error, accepted in ((inside, True), (outside, False)):
            said = judge({"outputs/y": ones}, {"outputs/y": ones * (1 + error)}, {"outputs/y": ones}, "bf16", bounds, "gmm", family)[name]
            assert said is accepted, (name, family, error, said)


def check_what_all_reject():
    ones, plain, bounds = np.ones(4), {"outputs/y": np.ones(4)}, {"outputs/y": (10, np.ones(4))}
    golden = {"outputs/y": ones, "outputs/group_sizes": np.arange(4, dtype=np.int32)}
    infinite = {"outputs/y": np.array([1, -np.inf, 1, 1])}
    wrong = [{}, {**golden, "outputs/y": np.ones((2, 2))}, {**golden, "outputs/y": np.array([1, np.nan, 1, 1])},
             {**golden, "outputs/group_sizes": np.array([0, 1, 2, 4], np.int32)}]
    for candidate in wrong:
        assert not any(judge(golden, candidate, plain, "f32", bounds, "gmm").values()), candidate
    assert False not in judge(golden, golden, plain, "f32", bounds, "gmm").values()
    assert False not in judge(infinite, infinite, infinite, "f32", bounds, "gmm").values()
    assert not any(judge(infinite, {"outputs/y": ones}, infinite, "f32", bounds, "gmm").values())


def check():
    check_roundings()
    check_rules()
    check_families()
    check_what_all_reject()
