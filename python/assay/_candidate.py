"""The process of a kernel that nobody trusts, and how the checker talks with it: `_evaluate.py` starts this file, which knows nothing of goldens.

A message is a line of JSON and the bytes of tensors behind it. What has tensors in it (arguments, results) travels as a skeleton of JSON that says
where each one stands. PyTorch, JAX or numpy is imported where a
tensor is made.
"""
from __future__ import annotations

import functools
import importlib.util
import json
import os
import select
import sys
import time
import traceback
from typing import Any, Callable, Mapping, NamedTuple, Sequence

__tracebackhide__ = True  # pytest shows the test, not these functions

TYPES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1, "int16": 2, "int32": 4,
         "int64": 8, "bool": 1, "float4_e2m1fn": 1, "float8_e8m0fnu": 1}  # fmt: skip
LONGEST = 1 << 20  #: of a line of JSON
DEEPEST = 20  #: of a skeleton


class Broken(Exception):
    """The other side has ended, is late, or has sent no message. The first word says which."""


class Slot(NamedTuple):
    """Where the tensor of that number stands."""

    number: int


class Block:
    """A tensor as its bytes."""

    def __init__(self, type: str, shape: tuple[int, ...], data: "bytes | bytearray") -> None:  # noqa: A002
        self.type, self.dtype, self.shape, self.data = type, type, shape, data


class Channel:
    """Both ends of two pipes; `until` is a time of `monotonic`, None: it waits."""

    def __init__(self, read: int, write: int) -> None:
        self.ends = read, write
        self.until: float | None = None
        os.set_blocking(read, False)
        os.set_blocking(write, False)

    def wait(self, end: int) -> None:
        left = None if self.until is None else self.until - time.monotonic()
        if left is not None and left <= 0:
            raise Broken("late")
        ready = select.select([end] if end == self.ends[0] else [], [end] if end == self.ends[1] else [], [], left)
        if not any(ready):
            raise Broken("late")

    def put(self, data: "bytes | bytearray") -> None:
        rest = memoryview(data).cast("B")
        while rest:
            self.wait(self.ends[1])
            try:
                rest = rest[os.write(self.ends[1], rest[: 1 << 20]) :]
            except BlockingIOError:
                pass
            except OSError as error:
                raise Broken("ended") from error

    def take(self, count: int) -> bytearray:
        data, have = bytearray(count), 0
        while have < count:
            self.wait(self.ends[0])
            try:
                got = os.readv(self.ends[0], [memoryview(data)[have : have + (1 << 20)]])
            except BlockingIOError:
                continue
            if got == 0:
                raise Broken("ended")
            have += got
        return data

    def send(self, header: Mapping[str, Any], blocks: Sequence[Block] = ()) -> None:
        line = json.dumps({**header, "blocks": [[b.type, b.shape] for b in blocks]}).encode()
        self.put(len(line).to_bytes(8, "little") + line)
        for block in blocks:
            self.put(block.data)

    def receive(self, most: int) -> tuple[dict[str, Any], list[Block]]:
        """A message with at most so many bytes of tensors. Nothing is taken that is no message."""
        length = int.from_bytes(self.take(8), "little")
        if length > LONGEST:
            raise Broken("no message")
        try:
            header = json.loads(self.take(length))
            declared = [(kind, tuple(shape)) for kind, shape in header["blocks"]]
            sizes = [TYPES[kind] * product(shape) for kind, shape in declared]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Broken("no message") from error
        if sum(sizes) > most:
            raise Broken(f"no message: {sum(sizes)} bytes of tensors, expected at most {most}")
        return header, [Block(kind, shape, self.take(size)) for (kind, shape), size in zip(declared, sizes)]


def product(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        if type(n) is not int or n < 0:
            raise ValueError(n)
        count *= n
    return count


def skeleton(x: Any, put: Callable[[Any], "int | None"], depth: int = 0) -> Any:
    """Where tensors stand in x; `put` gives the number of one, None of what is none."""
    number = put(x)
    if number is not None:
        return {"tensor": number}
    if depth < DEEPEST and isinstance(x, dict):
        return {"dict": [[key, skeleton(part, put, depth + 1)] for key, part in x.items()]}
    if depth < DEEPEST and isinstance(x, (tuple, list)):
        return {"tuple" if isinstance(x, tuple) else "list": [skeleton(part, put, depth + 1) for part in x]}
    if x is None or isinstance(x, (bool, int, float, str)):
        return {"value": x}
    raise TypeError(f"{type(x).__module__}.{type(x).__name__}, expected plain tensors, in tuples, lists and dictionaries")


def put_together(node: Any, tensors: Sequence[Any]) -> Any:
    ((kind, x),) = node.items()
    if kind == "tensor":
        return tensors[x]
    if kind == "dict":
        return {key: put_together(part, tensors) for key, part in x}
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(put_together(part, tensors) for part in x)
    return x


def as_tensor(block: Block) -> Any:
    """Over the block's own memory."""
    import torch

    kind = getattr(torch, block.type, torch.uint8)
    return (torch.frombuffer(block.data, dtype=kind) if len(block.data) else torch.empty(0, dtype=kind)).reshape(block.shape)


def as_block(x: Any) -> Block:
    """A copy of what the tensor holds now."""
    import torch

    name = str(x.dtype).split(".")[-1]
    if name not in TYPES or x.layout != torch.strided:
        raise TypeError(f"a tensor of {name} and {x.layout}, expected a dense one of {', '.join(TYPES)}")
    plain = x.detach().resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()
    return Block(name, tuple(plain.shape), plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")


def defined(path: str, name: str) -> Any:
    """What a file has under a name."""
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    assert spec is not None and spec.loader is not None
    found: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class Kernel:
    """What the file defines under a name, and the arguments of its last call."""

    def __init__(self, path: str, name: str, init: Any, device: str) -> None:
        import torch

        self.device = device
        self.function = defined(path, name)
        if isinstance(self.function, type):
            torch.manual_seed(0)
            self.function = self.function(*init)
            if isinstance(self.function, torch.nn.Module):
                self.function = self.function.to(device)
        self.given: list[Any] = []
        self.kept: list[Any] = []  #: so that what comes next has other addresses

    def load(self, blocks: Sequence[Block], anew: bool, leaves: Sequence[int]) -> None:
        import torch

        fresh = [as_tensor(block) for block in blocks]
        if anew or [(x.shape, x.dtype) for x in fresh] != [(x.shape, x.dtype) for x in self.given]:
            self.kept = self.given
            self.given = [torch.empty_like(x, device=self.device) for x in fresh]
        with torch.no_grad():
            for own, x in zip(self.given, fresh):
                own.detach().copy_(x)
        self.given = [x.detach().requires_grad_(i in leaves) for i, x in enumerate(self.given)]

    def poison(self, sizes: Sequence[int]) -> None:
        """What the allocator gives next has NaN in it."""
        import torch

        blocks = [torch.full((max(1, size),), 255, dtype=torch.uint8, device=self.device) for size in sizes for _ in range(3)]
        del blocks

    def call(self, header: Mapping[str, Any]) -> Any:
        args, keywords = (put_together(header[key], self.given) for key in ("args", "keywords"))
        if not hasattr(self.function, "named_parameters"):
            return self.function(*args, **keywords)
        import torch

        functional = torch.func.functional_call if hasattr(torch, "func") else torch.nn.utils.stateless.functional_call
        parameters = self.parameters({path: self.given[i] for path, i in header["parameters"].items()})
        positional = [x for name, x in keywords.items() if name not in header["names"]]
        return functional(self.function, parameters, (*args, *positional))

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a module by their names, else in their order."""
        own = {name: tuple(p.shape) for name, p in self.function.named_parameters()}
        theirs = {name: tuple(x.shape) for name, x in given.items()}
        if own == theirs:
            return dict(given)
        if list(own.values()) == list(theirs.values()):
            return dict(zip(own, given.values()))
        raise ValueError(f"the module has the parameters {own}, expected those of the reference, by their names or in their order: {theirs}")


class Blank:
    """A kernel that does nothing: what handing over takes."""

    def __init__(self, *results: Any) -> None:
        torch = sys.modules.get("torch")
        self.results = [torch.empty(shape, dtype=getattr(torch, kind, torch.uint8)) for kind, shape in results] if torch else []

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.results


def answer(channel: Channel, kernel: Kernel, header: Mapping[str, Any], blocks: Sequence[Block]) -> None:
    import torch

    leaves = header["leaves"]
    if header["blank"] is not None:
        kernel.function = Blank(*header["blank"])
    kernel.load(blocks, header["anew"], leaves)
    kernel.poison(header["sizes"])
    results: list[Any] = []

    def put(x: Any) -> "int | None":
        if not isinstance(x, torch.Tensor):
            return None
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError(f"{type(x).__module__}.{type(x).__name__}, a subclass, expected plain tensors")
        results.append(x)
        return len(results) - 1

    with torch.enable_grad() if leaves else torch.no_grad():
        result = kernel.call(header)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    form = skeleton(result, put)
    channel.send({"result": form}, [as_block(x) for x in results])
    upstream: dict[int, Any] = {}
    if leaves:
        asked, cotangents = channel.receive(1 << 40)
        upstream = {i: as_tensor(block).to(kernel.device, results[i].dtype).reshape(results[i].shape) for i, block in zip(asked["of"], cotangents)}
        upstream = {i: g for i, g in upstream.items() if results[i].requires_grad}
        if not upstream:
            raise TypeError("no result has a graph, expected one for its gradients")
        wanted = [kernel.given[i] for i in leaves]
        found = torch.autograd.grad([results[i] for i in upstream], wanted, list(upstream.values()), allow_unused=True)
        channel.send({}, [as_block(torch.zeros_like(x) if g is None else g) for x, g in zip(wanted, found)])
    channel.send({}, [as_block(x) for x in kernel.given])


class ArrayKernel:
    """The same of numpy or JAX, whose arrays cannot be filled again: each call of JAX has new ones."""

    def __init__(self, path: str, name: str, init: Any, jax: Any) -> None:
        self.jax, self.function = jax, defined(path, name)
        if isinstance(self.function, type):
            self.function = self.function(*init)
        self.given: list[Any] = []
        self.kept: list[Any] = []

    def load(self, blocks: Sequence[Block], anew: bool) -> None:
        fresh = [as_array(block) for block in blocks]
        if self.jax or anew or [(x.shape, x.dtype) for x in fresh] != [(x.shape, x.dtype) for x in self.given]:
            self.kept = self.given
            self.given = [self.jax.numpy.array(x) if self.jax else x.copy() for x in fresh]
        for own, x in zip(self.given, () if self.jax else fresh):
            own[...] = x

    def poison(self, sizes: Sequence[int]) -> None:
        import numpy as np

        blocks = [(self.jax.numpy if self.jax else np).full(max(1, size), 255, np.uint8) for size in sizes for _ in range(3)]
        del blocks

    def answer(self, channel: Channel, header: Mapping[str, Any], blocks: Sequence[Block]) -> None:
        import numpy as np

        leaves = header["leaves"]
        self.load(blocks, header["anew"])
        self.poison(header["sizes"])
        results: list[Any] = []
        form: Any = None

        def put(x: Any) -> "int | None":
            if not (isinstance(x, self.jax.Array) if self.jax else type(x) is np.ndarray or isinstance(x, np.generic)):
                return None
            results.append(x)
            return len(results) - 1

        def call(*own: Any) -> list[Any]:
            nonlocal form
            results.clear()
            given = [own[leaves.index(i)] if i in leaves else x for i, x in enumerate(self.given)]
            form = skeleton(self.function(*put_together(header["args"], given), **put_together(header["keywords"], given)), put)
            return list(results)

        back = None
        if header["blank"] is not None:  # nothing is done
            results = [np.empty(shape, named_type(kind)) for kind, shape in header["blank"]]
            form = {"list": [{"tensor": i} for i in range(len(results))]}
        elif leaves:
            results, back = self.jax.vjp(call, *(self.given[i] for i in leaves))
        else:
            results = call()
        results = self.jax.block_until_ready(results) if self.jax else results
        channel.send({"result": form}, [of_array(x) for x in results])
        if back is not None:
            asked, cotangents = channel.receive(1 << 40)
            upstream = [self.jax.numpy.zeros(x.shape, x.dtype) for x in results]
            for i, block in zip(asked["of"], cotangents):
                upstream[i] = self.jax.numpy.array(as_array(block)).astype(results[i].dtype).reshape(results[i].shape)
            channel.send({}, [of_array(x) for x in back(upstream)])
        channel.send({}, [of_array(x) for x in self.given])


def named_type(name: str) -> Any:
    """numpy's type of that name; those that it lacks are ml_dtypes'."""
    import numpy as np

    if hasattr(np, name):
        return np.dtype(name)
    return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))


def as_array(block: Block) -> Any:
    import numpy as np

    return np.frombuffer(block.data, named_type(block.type)).reshape(block.shape)


def of_array(x: Any) -> Block:
    """A copy of what the array holds now."""
    import numpy as np

    plain = np.asarray(x)
    if plain.dtype.name not in TYPES:
        raise TypeError(f"an array of {plain.dtype.name}, expected one of {', '.join(TYPES)}")
    return Block(plain.dtype.name, plain.shape, plain.tobytes())


def main(read: str, write: str) -> None:
    channel = Channel(int(read), int(write))
    try:
        header, _ = channel.receive(0)
        what = header["path"], header["name"], put_together(header["init"], ())
        if header["module"] == "torch":
            respond = functools.partial(answer, channel, Kernel(*what, header["device"]))
        else:
            respond = functools.partial(ArrayKernel(*what, __import__("jax") if header["module"] == "jax" else None).answer, channel)
        channel.send({"opened": True})
        while True:
            respond(*channel.receive(1 << 40))
    except Broken:
        sys.exit(0)
    except Exception as error:  # of the kernel: said, and the process ends
        where = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
        channel.send({"failed": " ".join([type(error).__name__ + ":", *str(error).split("\n")[:1]])[:2000] + f" ({where[-1]})"})


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, which has nothing for a kernel
    main(*sys.argv[1:])
