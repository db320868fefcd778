"""<assay/test.h> through ctypes: structs, prototypes, and where the library is."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, Sequence

__tracebackhide__ = True  # pytest shows the test, not these functions

MESSAGE = 512  # ASSAY_TEST_MESSAGE
VERDICTS = ("PASS", "FAIL", "VACUOUS", "NOT COMPARABLE")  # ASSAY_TEST_PASS ...
RANK = 12

# Element types in the order of assay_backend_type, with the numpy type that holds their bits.
TYPES = {
    "float64": "<f8",
    "float32": "<f4",
    "bfloat16": "<u2",
    "float16": "<f2",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
    "int32": "<i4",
    "float4_e2m1fn": "u1",
    "float8_e8m0fnu": "u1",
}
TYPE_NAMES = tuple(TYPES)


class BadInput(ValueError):
    """What was asked for cannot be: an unknown case, a setting that is refused, a tensor of no type."""

    __module__ = "assay"  # as a failing test shows it


class Options(Structure):
    _fields_ = [
        ("sets", POINTER(c_char_p)),
        ("set_count", c_int32),
        ("threads", c_int32),
        ("precision", c_char_p),
        ("false_alarm", c_double),
        ("cache", c_char_p),
        ("cache_bytes", c_int64),
        ("no_explanation", c_int32),
        ("only_count", c_int32),
        ("only", POINTER(c_char_p)),
        ("inputs", c_char_p),
        ("weights", c_char_p),
        ("staged", c_int32),
        ("unscaled", c_int32),
    ]


class Tensor(Structure):
    _fields_ = [
        ("path", c_char_p),
        ("type", c_int),
        ("rank", c_int32),
        ("dims", POINTER(c_int64)),
        ("data", c_void_p),
    ]


class Result(Structure):
    _fields_ = [
        ("path", c_char_p),
        ("type", c_int),
        ("rank", c_int32),
        ("dims", POINTER(c_int64)),
        ("data", c_void_p),
        ("required", c_int32),
        ("written", c_int32),
    ]


class Setting(Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


_texts, _message = POINTER(c_char_p), c_char_p

# Name: what it returns, what it takes.
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "open": (c_int, [c_char_p, POINTER(Options), POINTER(c_void_p), _message]),
    "close": (None, [c_void_p]),
    "name": (c_char_p, [c_void_p]),
    "op": (c_char_p, [c_void_p]),
    "yaml": (c_char_p, [c_void_p]),
    "precision": (c_char_p, [c_void_p]),
    "setting_count": (c_int32, [c_void_p]),
    "setting": (POINTER(Setting), [c_void_p, c_int32]),
    "given_count": (c_int32, [c_void_p]),
    "given": (c_int, [c_void_p, c_int32, POINTER(Tensor), _message]),
    "expected_count": (c_int32, [c_void_p]),
    "expected": (POINTER(Result), [c_void_p, c_int32]),
    "prepare": (c_int, [c_void_p, _message]),
    "golden": (c_int, [c_void_p, c_char_p, POINTER(Tensor), _message]),
    "threshold": (c_int, [c_void_p, c_char_p, c_void_p, c_int64, _message]),
    "save": (c_int, [c_void_p, c_char_p, _message]),
    "check": (c_int, [c_void_p, c_int32, POINTER(Tensor), POINTER(c_void_p), _message]),
    "report_free": (None, [c_void_p]),
    "report_verdict": (c_int, [c_void_p]),
    "report_message": (c_char_p, [c_void_p]),
    "report_first_wrong": (c_char_p, [c_void_p]),
    "report_bugs": (c_char_p, [c_void_p]),
    "report_text": (c_char_p, [c_void_p, c_int, c_int, _message]),
    "report_json": (c_char_p, [c_void_p, _message]),
    "report_html": (c_char_p, [c_void_p, _message]),
    "cases": (c_int, [c_int32, _texts, c_int32, _texts, POINTER(c_void_p), _message]),
    "free": (None, [c_void_p]),
    "version": (c_char_p, []),
}


@lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The library of $ASSAY_LIBRARY, else the one in this package, else the system's libassay.so.0."""
    beside = Path(__file__).with_name("libassay.so")
    name = os.environ.get("ASSAY_LIBRARY") or (str(beside) if beside.exists() else "libassay.so.0")
    try:
        loaded = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(f"assay finds no library: {error}; install the wheel, or set ASSAY_LIBRARY") from error
    for short, (returns, takes) in _PROTOTYPES.items():
        function = getattr(loaded, "assay_test_" + short)
        function.restype, function.argtypes = returns, takes
    return loaded


def call(name: str, *arguments: Any) -> Any:
    """assay_test_NAME(arguments)."""
    return getattr(library(), "assay_test_" + name)(*arguments)


def attempt(name: str, *arguments: Any) -> Any:
    """Likewise a function whose last parameter is the message; BadInput where it fails."""
    message = ctypes.create_string_buffer(MESSAGE)
    result = call(name, *arguments, message)
    if result != 0:
        raise BadInput(message.value.decode(errors="replace"))
    return result


def attempt_text(name: str, *arguments: Any) -> str:
    """Likewise one that returns a text, NULL where it fails."""
    message = ctypes.create_string_buffer(MESSAGE)
    result = call(name, *arguments, message)
    if result is None:
        raise MemoryError(message.value.decode(errors="replace"))
    return text(result)


def text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def encoded(value: str | None) -> bytes | None:
    """For the library, which would read a text to its first zero byte."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadInput(f"{value!r}: expected a text, found {type(value).__name__}")
    if "\0" in value:
        raise BadInput(f"{value!r}: expected a text without zero bytes")
    try:
        return value.encode(errors="surrogateescape")  # as Python has bytes of a path that are no UTF-8
    except UnicodeEncodeError as error:
        raise BadInput(f"{value!r}: expected a text that UTF-8 can have") from error


def texts(values: Sequence[str]) -> Any:
    return (c_char_p * max(1, len(values)))(*map(encoded, values))


def dims(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.dims[: tensor.rank])


def names(globs: Sequence[str], exclude: Sequence[str]) -> list[str]:
    result = c_void_p()
    attempt("cases", len(globs), texts(globs), len(exclude), texts(exclude), byref(result))
    try:
        return text(ctypes.string_at(result.value or 0)).split() if result.value else []
    finally:
        call("free", result)


class Test:
    """An assay_test; freed when nothing refers to it any more, views of its tensors included."""

    handle = c_void_p()  # of one whose options were refused

    def __init__(
        self,
        what: str,
        sets: Sequence[str] = (),
        precision: str | None = None,
        threads: int = 0,
        false_alarm: float = 0.0,
        cache: str | None = None,
        explain: bool = True,
        only: Sequence[str] = (),
        inputs: str | None = None,
        weights: str | None = None,
        staged: bool = False,
        unscaled: bool = False,
    ):
        self.handle = c_void_p()
        try:
            options = Options(
                sets=texts(sets),
                set_count=len(sets),
                threads=threads,
                precision=encoded(precision),
                false_alarm=false_alarm,
                cache=encoded(cache),
                no_explanation=not explain,
                only_count=len(only),
                only=texts(only),
                inputs=encoded(inputs),
                weights=encoded(weights),
                staged=staged,
                unscaled=unscaled,
            )
        except TypeError as error:
            raise BadInput(f"options: {error}") from error
        if options.threads != threads:  # ctypes has cut it off
            raise BadInput(f"threads is {threads}, which is no int32")
        attempt("open", encoded(what), byref(options), byref(self.handle))

    def __del__(self) -> None:
        if self.handle:
            call("close", self.handle)
            self.handle = c_void_p()


def setting_value(key: str, text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if key == "mlp_activations":
        return text.split(",")
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def config(test: Test) -> dict[str, Any]:
    """Every setting of a case, as a number, bool, str or list."""
    pairs = (call("setting", test.handle, i).contents for i in range(call("setting_count", test.handle)))
    return {text(pair.key): setting_value(text(pair.key), text(pair.value)) for pair in pairs}
