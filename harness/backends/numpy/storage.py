"""The types that results are stored in."""
import h5py
import numpy as np

from arithmetic import storage_profile
from request import Bfloat16, Settings, write_candidate


def usual_precision(path):
    """The profile that goes with the grid of the case's inputs."""
    with h5py.File(path) as f:
        dtype = Settings(f.attrs["case_yaml"])["dtype"]
    return {"float64": "f64", "float32": "f32", "float16": "f16"}.get(dtype, "bf16")


def is_statistic(path):
    """Whether a result is float32 whatever activations are stored in."""
    return path.endswith(("/lse", "/partial_lse", "/lb_loss", "/z_loss", "/bias_updates")) or path.startswith("routing/") or path == "outputs/weights"


def stored(path, value, profile):
    """bfloat16 as its bits where the numbers are such, else the numpy type."""
    value = np.array(value, order="C")
    if value.dtype == np.float32 and not is_statistic(path) and storage_profile(profile) in ("bf16", "fp8_e4m3_block128"):
        bits = value.view(np.uint32)
        if not (bits & 0xFFFF).any():
            return Bfloat16((bits >> 16).astype(np.uint16))
    return value


def write_stored(path, results, profile):
    write_candidate(path, {name: stored(name, value, profile) for name, value in results.items()})
