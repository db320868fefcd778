"""RMS norm as a backend, with h5py: candidate_h5py.py REQUEST CANDIDATE. h5py gives bfloat16 as float32, exactly."""
import sys

import h5py
import numpy as np

request, candidate = sys.argv[1:3]
with h5py.File(request, "r") as given, h5py.File(candidate, "w") as written:
    x, scale = given["inputs/x"][()], given["weights/scale"][()]
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale
    results = {"outputs/y": y}
    for path in given.attrs["expects"]:
        if path in results:
            written[path] = results[path]
    written.attrs["kind"] = "candidate"
