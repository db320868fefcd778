"""Tensors of other libraries to results and back."""
from __future__ import annotations

import json
import sys
import types

import assay
import numpy as np
import pytest
import torch
from assay import _library, _tensors


def taken(value: object, expects_integers: bool = False) -> tuple[np.ndarray, str]:
    return _tensors.take("outputs/y", value, expects_integers)


@pytest.mark.parametrize(
    "value, name, bits",
    [
        (torch.tensor([1.5, -2.0]), "float32", [1.5, -2.0]),
        (torch.tensor([1.5], dtype=torch.float64), "float64", [1.5]),
        (torch.tensor([1.5], dtype=torch.float16), "float16", [1.5]),
        (torch.tensor([1.0, -2.0], dtype=torch.bfloat16), "bfloat16", [0x3F80, 0xC000]),
        (torch.tensor(1.0, dtype=torch.bfloat16), "bfloat16", 0x3F80),
        (torch.arange(6.0).reshape(2, 3).T, "float32", [[0, 3], [1, 4], [2, 5]]),
        (torch.arange(6).reshape(2, 3).T.to(torch.bfloat16)[1:], "bfloat16", [[0x3F80, 0x4080], [0x4000, 0x40A0]]),
        (torch.tensor([1.0], requires_grad=True) * 2, "float32", [2]),
        (np.array([1.5], ">f4"), "float32", [1.5]),
        (np.arange(4.0)[::2], "float64", [0, 2]),
        (np.array([0x3F80], np.uint16), "bfloat16", [0x3F80]),
        (np.float64(2), "float64", 2),
        (2.5, "float64", 2.5),
        (assay.bits(np.array([0x38], np.uint8), "float8_e4m3fn"), "float8_e4m3fn", [0x38]),
        (assay.bits(torch.tensor([0x38], dtype=torch.uint8), "float8_e5m2"), "float8_e5m2", [0x38]),
        (assay.bits(np.array([0x3C00], np.uint16), "float16"), "float16", [1.0]),
    ],
)
def test_taken(value: object, name: str, bits: object) -> None:
    array, found = taken(value)
    assert found == name
    assert array.dtype == np.dtype(_library.TYPES[name]) and array.flags.c_contiguous
    np.testing.assert_array_equal(array, np.array(bits, array.dtype))


def test_codes_are_taken_as_integers() -> None:
    codes = assay.bits(np.array([0x38, 0xFE], np.uint8), "float8_e4m3fn")
    array, found = _tensors.take("outputs/codes", codes, True)
    assert found == "int32"
    np.testing.assert_array_equal(array, [0x38, 0xFE])


def test_taken_by_protocol() -> None:
    class Array:
        def __array__(self, *_: object) -> np.ndarray:
            return np.array([4.0], np.float32)

    class Capsule:
        def __init__(self, array: np.ndarray):
            self.array = array

        def __dlpack__(self, stream: object = None) -> object:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    class Unread(Capsule):
        """bfloat16, which numpy's DLPack does not know and PyTorch's does."""

    half = taken(Unread(torch.tensor([1.0, -2.0], dtype=torch.bfloat16)))  # type: ignore[arg-type]
    assert half[1] == "bfloat16" and half[0].tolist() == [0x3F80, 0xC000]
    assert taken(Array())[0].tolist() == [4.0]
    assert taken(Capsule(np.array([5.0])))[0].tolist() == [5.0]


def test_integers_are_narrowed_where_they_fit() -> None:
    array, name = taken(np.array([2**31 - 1, -(2**31)]), expects_integers=True)
    assert name == "int32" and array.tolist() == [2**31 - 1, -(2**31)]
    assert taken(np.array([3], np.uint16), expects_integers=True)[1] == "int32"
    assert taken(torch.tensor([3, -1]), expects_integers=True)[0].tolist() == [3, -1]
    assert taken(np.array([True, False]), expects_integers=True)[0].tolist() == [1, 0]
    for values, where in (([0, 2**31], "[1] is 2147483648"), ([-(2**31) - 1], "[0] is -2147483649")):
        with pytest.raises(assay.BadInput, match="no int32") as error:
            taken(torch.tensor(values), expects_integers=True)
        assert where in str(error.value)
    with pytest.raises(assay.BadInput, match="no int32"):
        taken(np.array([2**63], np.uint64), expects_integers=True)


@pytest.mark.parametrize(
    "value, words",
    [
        (np.array([1j]), "outputs/y is ndarray of complex128"),
        ("text", "outputs/y is str"),
        (np.ma.masked_array(np.zeros(2, np.float32), [0, 1]), "outputs/y is a masked array"),
        (np.array([None]), "of object"),
        (np.array([1], np.longdouble), "elements of"),
        (np.array([1], np.uint8), "assay.bits"),
        (np.zeros([1] * 13), "13 axes"),
        (torch.tensor([1j]), "expected one of"),
        (torch.zeros(2, 3).to_sparse(), "outputs/y is a tensor of torch.sparse_coo, expected a dense one"),
        (torch.zeros(2, device="meta"), "outputs/y is on the device meta"),
        (torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8), "outputs/y is torch.qint8.*dequantize"),
        (torch.tensor([3]), "outputs/y is int64, expected the float type"),
        (torch.tensor([True]), "outputs/y is bool, expected the float type"),
        (np.array([3], np.int16), r'int16, expected .* assay.bits\(array, "bfloat16"\)'),
        ([1.0, [2.0, 3.0]], "outputs/y is list, which cannot be read"),
    ],
)
def test_refused(value: object, words: str) -> None:
    with pytest.raises(assay.BadInput, match=words):
        taken(value)


@pytest.mark.parametrize("what, words", [(b"moe/small", "expected a text, found bytes"), ("\ud800", "that UTF-8 can have"), ("a\0b", "without zero bytes")])
def test_texts_that_are_none_are_refused(what: object, words: str) -> None:
    with pytest.raises(assay.BadInput, match=words):
        _library.encoded(what)  # type: ignore[arg-type]


def test_bits_are_checked() -> None:
    with pytest.raises(assay.BadInput, match="expected one of bfloat16"):
        assay.bits(np.zeros(1, np.uint8), "float4")
    with pytest.raises(assay.BadInput, match="elements of 4 bytes, expected 2 for bfloat16"):
        assay.bits(np.zeros(1, np.float32), "bfloat16")


def test_to_float32() -> None:
    values = torch.tensor([1.0, -3.5, 1e-40, float("inf")], dtype=torch.bfloat16)
    np.testing.assert_array_equal(assay.to_float32(values.view(torch.int16).numpy()), values.float().numpy())
    assert assay.to_float32(np.array(0x3FC0, np.uint16)) == 1.5  # of no axes, as the cotangent of a loss
    e4m3 = {0x38: 1.0, 0x7E: 448.0, 0xFE: -448.0, 0x01: 2.0**-9, 0x08: 2.0**-6, 0x00: 0.0, 0x7F: np.nan}
    e5m2 = {0x3C: 1.0, 0x7B: 57344.0, 0x01: 2.0**-16, 0xFC: -np.inf, 0x7E: np.nan, 0x04: 2.0**-14}
    e2m1 = {0x00: 0.0, 0x01: 0.5, 0x03: 1.5, 0x07: 6.0, 0x08: -0.0, 0x0D: -3.0, 0x0F: -6.0}
    e8m0 = {0x00: 2.0**-127, 0x01: 2.0**-126, 0x7F: 1.0, 0x80: 2.0, 0xFE: 2.0**127, 0xFF: np.nan}
    tables = {"float8_e4m3fn": e4m3, "float8_e5m2": e5m2, "float4_e2m1fn": e2m1, "float8_e8m0fnu": e8m0}
    for name, table in tables.items():
        found = assay.to_float32(np.array(list(table), np.uint8), name)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, np.array(list(table.values()), np.float32))


def given(module: object, dtype: str = "bfloat16", **options: object) -> dict:
    return assay.case("mlp/silu", dtype=dtype, precision="f64").inputs(module, **options)


def test_given_to_torch() -> None:
    case = assay.case("mlp/silu")
    first, second = case.inputs(torch), case.inputs(torch)
    x = first["inputs/x"]
    assert x.dtype == torch.bfloat16 and list(first) == ["inputs/x", *(p for p in first if p.startswith("weights/"))]
    np.testing.assert_array_equal(assay.to_float32(case.inputs()["inputs/x"]), x.float().numpy())
    assert not x.requires_grad
    x.zero_()
    assert second["inputs/x"].float().abs().sum() > 0
    assert case.inputs(torch)["inputs/x"].equal(second["inputs/x"])
    y = case.golden("outputs/y")
    assert case.judge({"outputs/y": y}, gradients=False).verdict == "PASS"
    assert not y.flags.writeable
    wanted = case.inputs(torch, device="cpu", requires_grad=True)
    assert all(tensor.requires_grad and tensor.is_leaf for tensor in wanted.values())
    for dtype, expected in (("float32", torch.float32), ("float64", torch.float64), ("float16", torch.float16)):
        assert given(torch, dtype)["inputs/x"].dtype == expected
    fp8 = given(torch, "float8_e4m3fn")["inputs/x"].dtype
    assert fp8 == getattr(torch, "float8_e4m3fn", torch.uint8)


def test_given_outlives_the_case() -> None:
    case = assay.case("mlp/silu", dtype="float32")
    golden = case.golden("outputs/y")
    before = golden.copy()
    x = case.inputs()["inputs/x"]
    case.close()
    del case
    np.testing.assert_array_equal(golden, before)
    assert x.flags.writeable and np.isfinite(x).all()


def test_given_to_numpy_and_others() -> None:
    assert given(np, "float16")["inputs/x"].dtype == np.float16
    bits = given(np)["inputs/x"]
    if "ml_dtypes" not in sys.modules:
        assert bits.dtype == np.uint16
    assert given("torch", "float32")["inputs/x"].dtype == torch.float32
    assert given("numpy", "float32")["inputs/x"].dtype == np.float32
    for module in ("cuda", torch.float32, None, json):
        with pytest.raises(assay.BadInput, match="expected torch, jax, numpy or another module"):
            given(module)
    with pytest.raises(assay.BadInput, match="device is 'cuda'"):
        given(np, device="cuda")
    with pytest.raises(assay.BadInput, match="requires_grad"):
        given(np, requires_grad=True)


def test_given_to_any_array_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """As jax does it: bfloat16 of ml_dtypes; float64 made float32 is refused, not passed on."""

    class BFloat16:  # in place of ml_dtypes, which Debian has not: a type of two bytes
        bfloat16 = np.int16

    monkeypatch.setitem(sys.modules, "ml_dtypes", BFloat16)
    other = types.ModuleType("other.numpy")
    other.asarray = lambda array, device=None: array  # type: ignore[attr-defined]
    assert given(other)["inputs/x"].dtype == np.int16
    other.asarray = lambda array, device=None: array.astype(np.float32)  # type: ignore[attr-defined]
    with pytest.raises(assay.BadInput, match="made float32 of float64"):
        given(other, "float64")
