"""A function of numpy, as JAX traces it: jax.numpy has numpy's names. Its results are held against numpy's own, in float64."""
from __future__ import annotations

import functools
import importlib
import types
from typing import Any, Callable, Mapping

import numpy as np

from . import _library as lib
from . import _trace_jax
from ._trace import Tracer, Value, named, root_of
from ._trace_jax import rounded, types_at

__all__ = ["evaluate", "record", "rounded", "types_at"]
jax: Any = importlib.import_module("jax")
#: What makes arrays that a function writes into.
MAKES = ("array", "asarray", "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like", "arange", "eye", "tri", "linspace", "copy")


def held(x: Any) -> Any:
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(map(held, x))
    return x.held if isinstance(x, Array) else {key: held(y) for key, y in x.items()} if isinstance(x, dict) else x


def given_back(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return tuple(map(given_back, x)) if isinstance(x, tuple) else list(map(given_back, x))
    return Array(x) if isinstance(x, jax.Array) else x


def of_jax(name: str) -> Any:
    """The function of jax.numpy that has the name of numpy's, or of scipy's."""
    whole = {"argpartition": jax.numpy.argsort, "partition": jax.numpy.sort}.get(name)
    if whole is not None:  # which is one of those
        return lambda x, kth, axis=-1: whole(x, axis)
    own = getattr(jax.numpy, name, None) or getattr(jax.scipy.special, name, None)
    if not callable(own):
        raise lib.BadInput(f"{name}: jax.numpy has no such function")
    return own


def written(x: Any, index: tuple[Any, ...], part: Any) -> Any:
    """x with another part there."""
    around = index.index(...) if ... in index else len(index)
    places = [*index[:around], *[slice(None)] * (x.ndim - len(index) + (... in index)), *index[around + 1 :]]
    if not all(isinstance(i, int) or (isinstance(i, slice) and i.step in (None, 1)) for i in places):
        return x.at[index].set(part)
    bounds = [(i % n, i % n + 1) if isinstance(i, int) else i.indices(n)[:2] for i, n in zip(places, x.shape)]
    shape = [max(0, end - first) for first, end in bounds]
    part = jax.numpy.broadcast_to(part, [n for i, n in zip(places, shape) if isinstance(i, slice)]).astype(x.dtype).reshape(shape)
    wholes = [x]
    for axis, (first, end) in enumerate(bounds):
        wholes.append(jax.lax.slice_in_dim(wholes[-1], first, max(first, end), axis=axis))
    for axis, (first, end) in reversed(list(enumerate(bounds))):  # one dimension after the other
        if end - first < x.shape[axis]:
            part = jax.lax.dynamic_update_slice_in_dim(wholes[axis], part, first, axis)
    return part


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """What numpy's functions, operators and methods take for an array, and JAX traces."""

    def __init__(self, x: Any) -> None:
        self.held = x
        self.part_of: tuple[Array, Any] | None = None  #: of what it is a view: what is written into it is written there, too

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **settings: Any) -> Any:
        own = of_jax(ufunc.__name__)
        if method == "at":
            inputs[0].put(own.at(*map(held, inputs), inplace=False))
            return None
        made = (own if method == "__call__" else getattr(own, method))(*map(held, inputs), **held(settings))
        if out == ():
            return given_back(made)
        out[0].put(jax.numpy.broadcast_to(made, out[0].shape).astype(out[0].dtype))
        return out[0]

    def __array_function__(self, function: Any, _: Any, args: Any, settings: Any) -> Any:
        linear = function.__module__ == "numpy.linalg"
        return given_back((getattr(jax.numpy.linalg, function.__name__) if linear else of_jax(function.__name__))(*held(args), **held(settings)))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.held, name)
        return (lambda *args, **settings: given_back(found(*held(args), **held(settings)))) if callable(found) else given_back(found)

    def __getitem__(self, index: Any) -> Any:
        index = held(index)
        row = isinstance(index, jax.Array) and index.ndim == 0 and index.dtype.kind in "iu"
        made = given_back(jax.numpy.take(self.held, index, 0) if row else self.held[index])
        if all(isinstance(i, (int, slice, type(None), type(...))) for i in (index if isinstance(index, tuple) else (index,))):
            made.part_of = self, index
        return made

    def __setitem__(self, index: Any, x: Any) -> None:
        self.put(written(self.held, held(index if isinstance(index, tuple) else (index,)), held(x)))

    def put(self, x: Any) -> None:
        self.held = x
        if self.part_of is not None:
            self.part_of[0][self.part_of[1]] = x

    def fill(self, x: Any) -> None:
        self.put(jax.numpy.full_like(self.held, held(x)))

    def sort(self, axis: int = -1) -> None:
        self.put(jax.numpy.sort(self.held, axis))

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Any:
        return map(given_back, self.held)

    def __float__(self) -> float:
        return float(self.held)

    def __index__(self) -> int:
        return int(self.held)

    def __bool__(self) -> bool:
        return bool(self.held)


class Numpy(types.ModuleType):
    """A module whose names stand for something else."""

    def __init__(self, module: Any, instead: Callable[[Any], Any]) -> None:
        super().__init__(module.__name__)
        self.module, self.instead = module, instead

    def __getattr__(self, name: str) -> Any:
        return instead_of(getattr(self.module, name), self.instead)


def instead_of(found: Any, instead: Callable[[Any], Any]) -> Any:
    is_module = isinstance(found, types.ModuleType) and found.__name__.split(".")[0] in ("numpy", "scipy", "ml_dtypes")
    return Numpy(found, instead) if is_module else instead(found)


def traced(found: Any) -> Any:
    """Functions of scipy that are no ufuncs as JAX's, and what makes arrays: JAX traces what is written into them."""
    name, root = getattr(found, "__name__", ""), root_of(found)
    if not callable(found) or isinstance(found, (type, np.ufunc)) or not (root == "scipy" or (root == "numpy" and name in MAKES)):
        return found
    return lambda *args, **settings: given_back(jax.numpy.asarray(of_jax(name)(*held(args), **held(settings))))


def widened(found: Any) -> Any:
    narrow = isinstance(found, type) and root_of(found) in ("numpy", "ml_dtypes") and found.__name__ in ("float32", "float16", "bfloat16")
    return np.float64 if narrow else found


def rebound(function: Any, instead: Callable[[Any], Any]) -> Any:
    """The function, and those beside it that it calls, with other things for what they read of numpy and scipy."""
    if isinstance(function, functools.partial):
        return functools.partial(rebound(function.func, instead), *function.args, **function.keywords)
    names: dict[str, Any] = {}
    own = function.__globals__

    def again(f: Any) -> Any:
        if not isinstance(f, types.FunctionType) or f.__globals__ is not own:
            return instead_of(f, instead)
        cells = tuple(types.CellType(again(cell.cell_contents)) for cell in f.__closure__ or ())
        made = types.FunctionType(f.__code__, names, f.__name__, f.__defaults__, cells)
        made.__kwdefaults__ = f.__kwdefaults__
        return made

    names.update({name: again(x) for name, x in own.items()})
    return again(function)


def record(tracer: Tracer, function: Callable[..., Any], example: dict[str, Any], weights: set[str], counts: Mapping[str, int]) -> list[tuple[str, Value]]:
    def run(**given: Any) -> Any:
        return held(rebound(function, traced)(**{name: Array(jax.numpy.asarray(x)) if hasattr(x, "shape") else x for name, x in given.items()}))

    run.__wrapped__ = function  # type: ignore[attr-defined]
    return _trace_jax.record(tracer, run, example, weights, counts)


def evaluate(function: Callable[..., Any], example: Mapping[str, Any], given: Mapping[str, Any], cotangents: Mapping[str, Any],
             kinks: bool, casts: str = "drop", backward: bool = True) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
    """What numpy gives, which has no gradients."""
    arguments = {name: np.array(given[name], None if x.dtype.kind not in "biu" else x.dtype) for name, x in example.items()}
    results = named(function, rebound(function, widened)(**arguments))
    return {name: np.asarray(x, np.float64 if np.asarray(x).dtype.kind not in "biu" else None) for name, x in results.items()}, {}, set()
