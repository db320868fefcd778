"""docs/code/random_inputs.py and random_inputs_jax.py give the bits of requests. usage: random_inputs.py ROOT PROGRAM [--host|--device MAKER...]

A MAKER makes tensors from lines on its standard input: on a device, or random_header.c on the host, where int32 tensors are made too. They are held to the same bits.
"""
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import h5py
import numpy as np

ALL = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
SEEDS = ["1", "18446744073709551615", "4294967296"]
# a case with its settings, the types it is asked for in, the distributions that it is here for
CASES = [
    ("gmm/primes", ALL, "normal values"),
    ("gmm/primes --set fill=bell", ALL, "bell values"),
    ("gmm/primes --set inputs.rhs={distribution: bell, scale: -0.3, mean: 0.7}", ALL, "bell values"),
    ("gmm/ragged", ["bfloat16"], "group_sizes"),
    ("gmm/row-powers --set base_emb_dim=300", ALL, "row_powers"),
    ("gmm/block-powers", ALL, "block_powers"),
    ("gmm/cancelling", ALL, "cancel constant"),
    ("gmm/exact-padded", ["bfloat16", "float32"], "integers"),
    ("gmm/k384-n640", ["float64"], "normal"),
    ("routing/one-ulp-apart", ["bfloat16", "float16", "float64"], "near_ties"),
    ("unpermute/deepseek3-tiny", ["bfloat16", "float32"], "permutation uniform"),
    ("permute/deepseek3-tiny", ["bfloat16"], "experts"),
    ("yarn_rope/ten-dimensions", ["bfloat16"], "ramp"),
]
CODES = {"float64": np.uint64, "float32": np.uint32, "float16": np.uint16, "int32": np.uint32}
ON_DEVICE = ("bell", "normal", "uniform", "integers", "constant", "near_ties", "block_powers", "row_powers", "cancel")
TENSOR = re.compile(r"^((?:inputs|weights|cotangents)/\S+) +(\S+) +\[([\d,]*)\] +\S+  ([a-z_]+)(.*)$")


def recipe(root: Path) -> dict:
    try:
        import jax.numpy
    except ImportError:
        print("no JAX: its form runs on numpy's arrays, which is all of it but XLA")
        sys.modules["jax"] = types.ModuleType("jax")
        sys.modules["jax"].numpy = sys.modules["jax.numpy"] = np  # type: ignore[attr-defined]
    names: dict = {}
    for file in ("random_inputs.py", "random_inputs_jax.py"):
        exec((root / "docs/code" / file).read_text(), names)
    return names


def fills(shown: str) -> list:
    """(path, type, shape, keywords of `fill`) of the tensors that the seed makes."""
    found = []
    for line in shown.splitlines():
        match = TENSOR.match(line)
        if match is None or match[4] == "follows":
            continue
        words = match[5].split()
        keys = {name: float(words[words.index(name) + 1]) for name in ("scale", "mean") if name in words}
        if match[4] == "constant":
            keys["mean"] = float(words[0])
        if match[4] == "ramp":
            keys = {"mean": float(words[1]), "scale": float(words[3])}
        if words and ".." in words[0]:
            keys["low"], keys["high"] = map(float, words[0].split(".."))
        if match[4] == "values":
            name = match[1].removeprefix("inputs/")
            keys["values"] = list(map(float, re.search(rf"^  {name}: .*values: \[([^]]*)\]", shown, re.M)[1].split(",")))
        shape = tuple(map(int, match[3].split(",")))
        found.append((match[1], match[2], shape, {"distribution": match[4], **keys}))
    return found


def bits(dtype: str, values: np.ndarray) -> np.ndarray:
    """The code of each number. fp8 and fp4 have all of its numbers in a table, by value."""
    if dtype == "bfloat16":
        return values.astype(np.float32).view(np.uint32) >> 16
    if dtype.startswith(("float8", "float4")):
        sign = 8 if dtype == "float4_e2m1fn" else 0x80
        table = np.array([number_of(dtype, code) for code in range(sign)])
        code = np.argmax(table == np.abs(values)[..., None], axis=-1)
        code[np.isnan(values)] = 0x7F
        return (code | np.where(np.signbit(values) & ~np.isnan(values), sign, 0)).astype(np.uint8)
    kind = np.int32 if dtype == "int32" else dtype
    return values.astype(kind).view(CODES[dtype])


def number_of(dtype: str, code: int) -> float:
    fraction, bias = {"float8_e4m3fn": (3, 7), "float8_e5m2": (2, 15), "float4_e2m1fn": (1, 1)}[dtype]
    exponent, whole = code >> fraction, code & ((1 << fraction) - 1)
    if dtype == "float8_e4m3fn" and code == 0x7F or dtype == "float8_e5m2" and code > 0x7C:
        return np.nan
    if dtype == "float8_e5m2" and code == 0x7C:
        return np.inf
    return (whole + (exponent > 0) * 2.0**fraction) * 2.0 ** (max(exponent, 1) - bias - fraction)


def stored_bits(dtype: str, dataset: h5py.Dataset) -> np.ndarray:
    if dtype == "bfloat16":
        return dataset[()].astype(np.float32).view(np.uint32) >> 16
    return dataset[()].view(CODES.get(dtype, np.uint8))


def differing_bells(names: dict) -> int:
    """Where JAX's form, of 32 bits, makes another number than numpy's."""
    wrong = 0
    for seed, first, scale, mean in (1, 0, 1.0, 0.0), (2**64 - 1, 4 * 2**32 - 64, 0.0118, 0.0), (22, 2**40 + 8, -0.7, 0.3):
        key = names["key_of"](seed, "weights/wi_0")
        made = np.asarray(names["bells_32"](key, first, 256, scale, mean))
        wrong += made.dtype != np.float32
        wrong += (made.astype(float) != names["bells"](key, first + np.arange(256, dtype=np.uint64), scale, mean)).sum()
    return wrong


def main() -> int:
    root, program, host, makers = Path(sys.argv[1]), sys.argv[2], sys.argv[3:4] == ["--host"], sys.argv[4:]
    names, compared, failed, missing, jobs = recipe(root), 0, 0, [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, (case, dtypes, wanted) in enumerate(CASES):
            seen = set()
            for dtype in dtypes:
                seed = SEEDS[(number + dtypes.index(dtype)) % len(SEEDS)]
                name, *settings = case.split(" --set ")
                options = [name, "--seed", seed] + [word for s in [f"dtype={dtype}", *settings] for word in ("--set", s)]
                request = f"{folder}/{number}-{dtype}.h5"
                shown = subprocess.run([program, "show", *options], check=True, capture_output=True, text=True).stdout
                subprocess.run([program, "request", *options, "-o", request], check=True, capture_output=True)
                with h5py.File(request) as file:
                    for path, kind, shape, keys in fills(shown):
                        given = stored_bits(kind, file[path])
                        made = bits(kind, names["fill"](int(seed), path, shape, kind, **keys))
                        kept = ~np.isnan(file[path][()].astype(float)) if "float8" not in kind else np.full(shape, True)
                        seen.add(keys["distribution"])
                        compared += 1
                        if (made != given)[kept].any():
                            failed += 1
                            print(f"FAILED: {case} {dtype} {path}: {(made != given)[kept].sum()} of {made.size} elements differ")
                        if keys["distribution"] in ON_DEVICE and kind != "int32" or host and keys["distribution"] != "values":
                            out = f"{folder}/{len(jobs)}.bin"
                            numbers = [keys.get("mean", 0), keys.get("scale", 1), keys.get("low", 0), keys.get("high", 1)]
                            words = [path, seed, kind, made.size, shape[-1], keys["distribution"], *map(repr, numbers), out]
                            jobs.append((case, path, kind, out, given, kept, " ".join(map(str, words))))
            missing += [f"{case}: {name}" for name in wanted.split() if name not in seen]
        for maker in makers:
            # one that was compiled to fuse multiplies and adds, which bell alone allows
            asked = [job for job in jobs if not maker.endswith("fused") or " bell " in job[-1]]
            subprocess.run([maker], input="\n".join(job[-1] for job in asked) + "\n", check=True, text=True)
            for case, path, kind, out, given, kept, _ in asked:
                made = np.fromfile(out, given.dtype if kind != "bfloat16" else np.uint16).reshape(given.shape)
                compared += 1
                if (made != given)[kept].any():
                    failed += 1
                    print(f"FAILED: {maker}: {case} {kind} {path}: {(made != given)[kept].sum()} of {made.size} elements differ")
        shown = subprocess.run([program, "request", "gmm/primes", "-o", f"{folder}/primes.h5"], check=True, capture_output=True)
        with h5py.File(f"{folder}/primes.h5") as file:
            sys.path.insert(0, str(root / "docs/code"))  # the page's own example
            exec(re.search(r"^```python\n(.*?)^```", (root / "docs/random-inputs.md").read_text(), re.M | re.S)[1], names)
            failed += not np.array_equal(names["weights"], file["weights/rhs"][()].astype(float))
    failed += (wrong := differing_bells(names)) > 0
    if wrong:
        print(f"FAILED: {wrong} of JAX's bells differ")
    for name in missing:
        print(f"FAILED: no tensor of that distribution in {name}")
    print(f"{compared} tensors compared, {failed} differ")
    return 1 if failed or missing or compared < 60 else 0


if __name__ == "__main__":
    sys.exit(main())
