"""Stores an array of JAX in an open h5py file: of bfloat16 and fp8 its bits. jnp.asarray(given["inputs/x"][()], jnp.bfloat16) reads an
input exactly; of fp8 given["inputs/x"][()].view(ml_dtypes.float8_e4m3fn)."""
import numpy as np


def store(file, path, array):
    array = np.asarray(array)
    name = array.dtype.name
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        file[path] = array.view(f"uint{8 * array.itemsize}")
        file[path].attrs["float_type"] = name
    else:
        file[path] = array
