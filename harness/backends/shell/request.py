"""What a case asks for: settings, tensors, and results by their paths. Needs h5py and numpy, nothing of assay."""
import copy
import re
from pathlib import Path

import h5py
import numpy as np

RESULTS = ("outputs/", "gradients/", "checkpoints/")
RARE = {"attn_logits_soft_cap": 0, "partial_rotary_factor": 1}  # what few libraries honour, and the value that is nothing


class Unsupported(Exception):
    pass


class Settings:
    """The keys of case_yaml, which is flat enough for a regular expression."""

    def __init__(self, yaml):
        self.text = {k: v.strip().strip('"') for k, v in re.findall(r"^ *([a-z_0-9]+):(.*)$", yaml, re.M)}

    def __getitem__(self, key):
        return self.text[key]

    def changed(self, **text):
        """The same with others in their places."""
        other = copy.copy(self)
        other.text = {**self.text, **text}
        return other

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

    def one_device(self):
        """A ring of one device has shards too: one loss for each."""
        return self.words("mesh") == ["data", "1", "fsdp", "1", "expert", "1"] and self.text.get("use_ring_of_experts") != "true"

    def need_usual(self, op, tensors, honours=()):
        """Refuses what few libraries have and this one does not name among `honours`."""
        for key in RARE:
            self.need(key in honours or float(self.text.get(key, RARE[key])) == RARE[key], "no " + key)
        latent = any(path.endswith("wkv_a/kernel") for path in tensors)
        window = float(self.text.get("sliding_window_size", 0)) > 0
        self.need(not latent or not window or "latent_window" in honours, "no window in latent attention")
        scaled = float(self.text.get("query_pre_attn_scalar", 0)) != 0
        self.need(not latent or not scaled or "latent_scale" in honours, "no scale of its own in latent attention")
        takes_padding = op in ("mla", "gqa") or op.endswith(("_layer", "_stack"))
        tokens = tensors["inputs/x"] if takes_padding else np.zeros(0)
        self.need(np.isfinite(tokens).all() or "nan_padding" in honours, "NaN in x of padding reaches products of weights")

    def need_written_as_given(self):
        norm, turns = self.text.get("cache_norm", "none"), self.text.get("cache_rope", "false")
        self.need((norm, turns) == ("none", "false"), "no norm and no rotation before a cache is written")

    def need_no_mesh(self):
        self.need(self.one_device(), "no mesh")


def drawn(recipes):
    """(path, type, elements) of the tensors that the file has recipes of, by docs/code/random_inputs.py."""
    names = {}
    if len(recipes):
        exec((Path(__file__).resolve().parents[3] / "docs/code/random_inputs.py").read_text(), names)
    return [names["from_recipe"](line) for line in recipes]


class Request:
    """From a request, or from a golden, which holds the same tensors."""

    def __init__(self, path, float_type, honours=()):
        """honours: which of RARE the library has."""
        with h5py.File(path) as f:
            self.yaml = f.attrs["case_yaml"]
            self.settings = Settings(self.yaml)
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
                    if narrow and item.attrs.get("float_type") in ("float32", "float64"):
                        self.wide.add(name)  # finer beside a narrower grid: used as it is
                elif name.startswith(RESULTS):
                    expects.append(name)

            f.visititems(read)
            for name, kind, elements in drawn(f.attrs.get("recipes", [])):
                self.tensors[name] = elements.astype(float_type)
                if narrow and kind == "float32":
                    self.wide.add(name)
            self.settings.need_usual(self.op, self.tensors, honours)
            self.expects = expects or [p for p in f.attrs["expects"] if p.startswith(RESULTS)]


class Bfloat16:
    """Numbers that numpy has no type of, by their bits (uint16)."""

    def __init__(self, bits):
        self.bits = bits


def write_candidate(path, results):
    """Results by their paths: arrays; bfloat16 as Bfloat16, or of ml_dtypes' type."""
    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        f.attrs["kind"] = "candidate"
        for name, value in results.items():
            value = value if isinstance(value, Bfloat16) else np.array(value, order="C")
            if not isinstance(value, Bfloat16) and value.dtype.name == "bfloat16":
                value = Bfloat16(value.view(np.uint16))
            if isinstance(value, Bfloat16):
                f[name] = value.bits
                f[name].attrs["float_type"] = "bfloat16"
            else:
                f[name] = value
