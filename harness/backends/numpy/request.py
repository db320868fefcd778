"""What a case asks for: settings, tensors, and results by their paths."""
import re
from pathlib import Path

import h5py
import numpy as np

from arithmetic import storage_profile

RESULTS = ("outputs/", "gradients/", "checkpoints/")


class Unsupported(Exception):
    pass


class Settings:
    """The keys of case_yaml, which is flat enough for a regular expression."""

    def __init__(self, yaml):
        self.text = {k: v.strip().strip('"') for k, v in re.findall(r"^ *([a-z_0-9]+):(.*)$", yaml, re.M)}

    def __getitem__(self, key):
        return self.text[key]

    def number(self, key):
        return float(self.text[key].replace("_", ""))

    def count(self, key):
        return int(self.number(key))

    def true(self, key):
        return self.text[key] == "true"

    def words(self, key):
        return re.findall(r"\w+", self.text[key])

    def need(self, condition, reason):
        if not condition:
            raise Unsupported(reason)


def usual_precision(path):
    """The profile that goes with the grid of the case's inputs."""
    with h5py.File(path) as f:
        dtype = Settings(f.attrs["case_yaml"])["dtype"]
    return {"float64": "f64", "float32": "f32", "float16": "f16"}.get(dtype, "bf16")


def drawn(recipes):
    """(path, type, elements) of the tensors that the file has recipes of, by the code of docs/random-inputs.md."""
    document = Path(__file__).resolve().parents[3] / "docs/random-inputs.md"
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", document.read_text(), re.M | re.S) if len(recipes) else []:
        if "import jax" not in block:
            exec(block, names)
    return [names["from_recipe"](line) for line in recipes]


class Request:
    """From a request, or from a golden, which holds the same tensors."""

    def __init__(self, path, float_type):
        with h5py.File(path) as f:
            self.settings = Settings(f.attrs["case_yaml"])
            self.op, self.case = f.attrs["op"], f.attrs["case"]
            self.tensors, self.wide, expects = {}, set(), []
            coded = {p + end for p in re.findall(r"([\w/]+): \w+", self.settings.text.get("quant_formats", ""))
                     for end in ("", "_scale", "_tensor_scale")}
            narrow = self.settings["dtype"] not in ("float32", "float64")

            def read(name, item):
                if not isinstance(item, h5py.Dataset):
                    return
                if name.startswith(("inputs/", "weights/", "cotangents/")):
                    if name in coded:
                        self.tensors[name] = item[()]
                        return
                    self.tensors[name] = item[()] if item.dtype.kind == "i" else item[()].astype(float_type)
                    if narrow and item.attrs.get("float_type") == "float32":
                        self.wide.add(name)  # float32 beside a narrower grid: used as it is
                elif name.startswith(RESULTS):
                    expects.append(name)

            f.visititems(read)
            for name, kind, elements in drawn(f.attrs.get("recipes", [])):
                self.tensors[name] = elements.astype(float_type)
                if narrow and kind == "float32":
                    self.wide.add(name)
            self.expects = expects or [p for p in f.attrs["expects"] if p.startswith(RESULTS)]


def is_statistic(path):
    """Whether a result is float32 whatever activations are stored in."""
    return path.endswith(("/lse", "/lb_loss", "/z_loss", "/bias_updates")) or path.startswith("routing/") or path == "outputs/weights"


def write_candidate(path, results, profile):
    """bfloat16 as its bits where the numbers are such, else the numpy type."""
    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        f.attrs["kind"] = "candidate"
        for name, value in results.items():
            value = np.array(value, order="C")
            if value.dtype == np.float32 and not is_statistic(name) and storage_profile(profile) in ("bf16", "fp8_e4m3_block128"):
                bits = value.view(np.uint32)
                if not (bits & 0xFFFF).any():
                    f[name] = (bits >> 16).astype(np.uint16)
                    f[name].attrs["float_type"] = "bfloat16"
                    continue
            f[name] = value
