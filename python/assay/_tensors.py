"""Tensors of assay as those of numpy, torch, jax and others, and back. Numbers narrower than float16 travel as their bits."""
from __future__ import annotations

import ctypes
import importlib
import json
import sys
from ctypes import c_int64, c_void_p
from types import ModuleType
from typing import Any, Mapping, NamedTuple

import numpy as np

from . import _library as lib

__tracebackhide__ = True  # pytest shows the test, not these functions

NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "float8_e8m0fnu")  # numpy has none of them


class Bits(NamedTuple):
    """Numbers of a type that the array's own type does not say."""

    array: Any
    type: str


def bits(array: Any, type: str) -> Bits:  # noqa: A002
    """Says what the bits in an integer array are: ``assay.bits(y, "float8_e4m3fn")``, for a result of `Case.check`.

    `type` is bfloat16, float8_e4m3fn, float8_e5m2, float4_e2m1fn (a code a byte), float8_e8m0fnu or float16. uint16 needs no such word: it is taken for bfloat16.
    """
    width = {**{name: np.dtype(lib.TYPES[name]).itemsize for name in NARROW}, "float16": 2}.get(type)
    if width is None:
        raise lib.BadInput(f"bits: type is {type!r}, expected one of {', '.join(NARROW)}, float16")
    size = itemsize(array)
    if size != width:
        raise lib.BadInput(f"bits: elements of {size} bytes, expected {width} for {type}")
    return Bits(array, type)


def itemsize(array: Any) -> int:
    return int(array.element_size() if hasattr(array, "element_size") else np.asarray(array).dtype.itemsize)


def to_float32(array: Any, type: str = "bfloat16") -> np.ndarray[Any, Any]:  # noqa: A002
    """The numbers that bits stand for, exactly: uint16 (bfloat16) or uint8 (fp8 and fp4) to float32."""
    raw = np.asarray(bits(array, type).array)
    raw = raw.view(f"u{raw.dtype.itemsize}")
    if type == "bfloat16":
        return np.asarray(raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if type == "float16":
        return raw.view(np.float16).astype(np.float32)
    numbers: np.ndarray[Any, Any]
    codes = np.arange(256, dtype=np.int32)
    if type == "float8_e8m0fnu":
        numbers = np.where(codes == 0xFF, np.float32(np.nan), np.ldexp(np.float32(1), np.minimum(codes, 254) - 127))[raw]
        return numbers
    if type == "float4_e2m1fn":
        sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        numbers = np.where(raw & 8, -sizes[raw & 7], sizes[raw & 7])
        return numbers
    mantissa_bits, bias = (3, 7) if type == "float8_e4m3fn" else (2, 15)
    exponent, mantissa = (codes & 0x7F) >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    value = np.ldexp(
        np.where(exponent > 0, (1 << mantissa_bits) + mantissa, mantissa).astype(np.float32),
        np.maximum(exponent, 1) - bias - mantissa_bits,
    )
    if type == "float8_e4m3fn":
        value[(codes & 0x7F) == 0x7F] = np.nan
    else:
        value = np.where(exponent == 31, np.where(mantissa == 0, np.float32(np.inf), np.float32(np.nan)), value)
    numbers = np.where(codes >= 128, -value, value).astype(np.float32)[raw]
    return numbers


def ml_dtype(name: str) -> Any:
    """The numpy type of bfloat16 and fp8, where the package ml_dtypes is there (jax brings it); else None."""
    try:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ImportError:
        return None


def module_of(module: Any) -> Any:
    """torch, jax, numpy or another that makes arrays; a name will do."""
    if isinstance(module, str):
        try:
            module = importlib.import_module(module)
        except ImportError as error:
            raise lib.BadInput(f"{error}; expected torch, jax, numpy or another module with asarray") from error
    if not isinstance(module, ModuleType) or not (module.__name__ in ("torch", "jax") or hasattr(module, "asarray")):
        raise lib.BadInput(f"{module!r}: expected torch, jax, numpy or another module with asarray")
    return module


def view(test: lib.Test, tensor: lib.Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """A read-only array over the library's memory, which keeps the test alive; and its type."""
    name = lib.TYPE_NAMES[tensor.type]
    shape, dtype = lib.dims(tensor), np.dtype(lib.TYPES[name])
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.zeros(shape, dtype), name
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(tensor.data)
    memory._test = test  # type: ignore[attr-defined]
    array = np.frombuffer(memoryview(memory), dtype).reshape(shape)
    array.flags.writeable = False
    return array, name


def give(array: np.ndarray[Any, Any], name: str, module: Any, device: Any, requires_grad: bool) -> Any:
    """A tensor of `module` with the numbers of a read-only view; the caller's own, whatever he writes into it."""
    kind = module.__name__.split(".")[0]
    if kind == "torch":
        return give_torch(array, name, module, device, requires_grad)
    if requires_grad:
        raise lib.BadInput(f"requires_grad: tensors of {kind} have none")
    narrow = ml_dtype(name) if name in NARROW else None
    if narrow is not None:
        array = array.view(narrow)
    if kind == "numpy":
        if device is not None:
            raise lib.BadInput(f"device is {device!r}: arrays of numpy have none")
        return array.copy()
    if kind == "jax":
        given = (module.numpy if hasattr(module, "numpy") else module).asarray(array)
        if device is not None:
            given = sys.modules["jax"].device_put(given, device)
    else:
        given = module.asarray(array.copy(), **({} if device is None else {"device": device}))
    if np.dtype(getattr(given.dtype, "name", str(given.dtype).split(".")[-1])) != array.dtype:
        why = '; jax.config.update("jax_enable_x64", True) lets it have them' if kind == "jax" else ""
        raise lib.BadInput(f"{kind} made {given.dtype} of {array.dtype}{why}")
    return given


def give_torch(array: np.ndarray[Any, Any], name: str, torch: Any, device: Any, requires_grad: bool) -> Any:
    if name == "bfloat16":
        array = array.view(np.int16)  # PyTorch before 2.3 has no uint16
    tensor = torch.tensor(array)  # in memory of its own: leaves over memory of numpy may hang at exit, in PyTorch 1.13
    if name in NARROW and hasattr(torch, name):  # PyTorch before 2.1 has no float8: uint8
        tensor = tensor.view(getattr(torch, name))
    if device is not None:
        tensor = tensor.to(device)
    return tensor.requires_grad_() if requires_grad and tensor.is_floating_point() else tensor


def take(path: str, value: Any, expects_integers: bool) -> tuple[np.ndarray[Any, Any], str]:
    """A result as a contiguous array of this machine's memory, and its type. Refuses what is no tensor of numbers."""
    said = None
    if isinstance(value, Bits):
        value, said = value
    if isinstance(value, np.ma.MaskedArray):
        raise lib.BadInput(f"{path} is a masked array, expected numbers alone: give value.filled(...)")
    array, name = read(path, value)
    name = said or name or array.dtype.name
    if expects_integers and name in NARROW and name != "bfloat16":  # codes and scales, which are judged as integers
        array, name = np.asarray(array, order="C").view(np.uint8), "uint8"
    if name in ("bool", "int8", "uint8", "int16", "uint16", "int64", "uint32", "uint64"):
        if name == "uint16" and not expects_integers:
            name = "bfloat16"
        elif name == "uint8" and not expects_integers:
            raise lib.BadInput(f'{path} is uint8: give assay.bits(array, "float8_e4m3fn") or "float8_e5m2"')
        elif not expects_integers:
            bits_of = '; bits are given as assay.bits(array, "bfloat16")' if name == "int16" else ""
            raise lib.BadInput(f"{path} is {name}, expected the float type in which the kernel computed it{bits_of}")
        else:
            array, name = narrowed(path, array), "int32"
    if name not in lib.TYPES:
        raise lib.BadInput(f"{path}: elements of {array.dtype}, expected one of {', '.join(lib.TYPES)} or integers")
    if array.ndim > lib.RANK:
        raise lib.BadInput(f"{path}: {array.ndim} axes, expected at most {lib.RANK}")
    dtype = np.dtype(lib.TYPES[name])
    array = np.asarray(array, order="C")
    return (array.view(dtype) if said or name in NARROW else array.astype(dtype, copy=False)), name


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def read(path: str, value: Any) -> tuple[np.ndarray[Any, Any], str | None]:
    """An array of this machine's memory; the type where its own does not say it."""
    kind = type(value).__name__
    try:
        if not is_torch(value) and not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            value = of_dlpack(value)
        return take_torch(path, value) if is_torch(value) else (as_numpy(path, value), None)
    except lib.BadInput:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, BufferError) as error:
        raise lib.BadInput(f"{path} is {kind}, which cannot be read: {str(error).splitlines()[0] if str(error) else error!r}") from error


def of_dlpack(value: Any) -> Any:
    """PyTorch knows types and devices that numpy does not."""
    torch = sys.modules.get("torch")
    try:
        return np.from_dlpack(value)
    except (RuntimeError, BufferError, TypeError, AttributeError) as error:
        if torch is None:
            raise RuntimeError(f"{error} Where torch is imported, it reads it") from error
        return torch.from_dlpack(value)


def take_torch(path: str, tensor: Any) -> tuple[np.ndarray[Any, Any], str | None]:
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided or tensor.is_nested:
        raise lib.BadInput(f"{path} is a tensor of {tensor.layout}, expected a dense one, as to_dense() gives")
    if tensor.is_meta:
        raise lib.BadInput(f"{path} is on the device meta, expected a tensor with numbers")
    if tensor.is_quantized:
        raise lib.BadInput(f"{path} is {tensor.dtype}, expected numbers, as dequantize() gives, or int_repr() where codes are judged")
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    name = str(tensor.dtype).split(".")[-1]
    if name not in NARROW:
        return tensor.numpy(), None
    integers = torch.int16 if name == "bfloat16" else torch.uint8
    return tensor.reshape(-1).view(integers).numpy().reshape(tuple(tensor.shape)), name


def as_numpy(path: str, value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype == "V2":  # bfloat16 of ml_dtypes, as numpy.load gives it
        array = array.view(np.uint16)
    if array.dtype.kind not in "biuf" and array.dtype.name not in NARROW:
        raise lib.BadInput(f"{path} is {type(value).__name__} of {array.dtype}, expected a tensor of real numbers")
    return array if array.dtype.name in NARROW else array.astype(array.dtype.newbyteorder("="), copy=False)


def is_array(value: Any) -> bool:
    return isinstance(value, Bits) or hasattr(value, "__array__") or hasattr(value, "__dlpack__")


STORED = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "float8_e4m3fn": "F8_E4M3",
          "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn": "U8"}  # fmt: skip


def write(path: str, tensors: Mapping[str, Any]) -> None:
    """A file of safetensors with these arrays, for the library to read."""
    header: dict[str, Any] = {"__metadata__": {}}
    arrays, end = [], 0
    for name, value in tensors.items():
        integers = str(getattr(value, "dtype", "")).split(".")[-1] in ("bool", "int8", "int16", "int32", "int64", "uint32", "uint64")
        array, kind = take(name, value, integers)
        header[name] = {"dtype": STORED[kind], "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        header["__metadata__"][f"float_type:{name}"] = kind
        arrays.append(array)
        end += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(array.tobytes() for array in arrays)


def narrowed(path: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As int32, where it fits."""
    limits = np.iinfo(np.int32)
    if array.dtype.kind != "b" and array.size > 0:
        outside = (array > limits.max) | ((array < limits.min) if array.dtype.kind == "i" else False)
        if outside.any():
            index = np.unravel_index(int(np.argmax(outside)), array.shape)
            raise lib.BadInput(f"{path}{list(map(int, index))} is {array[index]}, which is no int32")
    return array.astype(np.int32)


def struct(path: str, array: np.ndarray[Any, Any], name: str) -> lib.Tensor:
    """For the library; valid as long as the array is."""
    shape = (c_int64 * max(1, array.ndim))(*array.shape)
    data = c_void_p(array.ctypes.data)
    return lib.Tensor(lib.encoded(path), lib.TYPE_NAMES.index(name), array.ndim, shape, data)
