"""RMS norm as a backend, safetensors by numpy alone: candidate_safetensors.py REQUEST CANDIDATE"""
import json
import struct
import sys

import numpy as np

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "F8_E4M3": "u1", "F8_E5M2": "u1",
         "F8_E8M0": "u1", "U8": "u1", "F4": "u1"}


def load(path):  # attributes, and arrays: bfloat16 as float32, exactly, fp8 and fp4 as their bits
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    metadata, arrays = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        array = np.frombuffer(data[slice(*entry["data_offsets"])], TYPES[entry["dtype"]])
        if entry["dtype"] == "F4":  # of two codes in a byte the first is in the low bits
            array = np.stack([array & 15, array >> 4], -1)
        array = array.reshape(entry["shape"])
        arrays[name] = (array.astype("<u4") << 16).view("<f4") if entry["dtype"] == "BF16" else array
    return metadata, arrays


def save(path, arrays):  # uint16 is taken for the bits of bfloat16
    header, end = {}, 0
    for name, array in arrays.items():
        dtype = next(dtype for dtype, kind in TYPES.items() if array.dtype == kind)
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.tobytes())


request, candidate = sys.argv[1:3]
metadata, given = load(request)
x, scale = given["inputs/x"], given["weights/scale"]
results = {"outputs/y": x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale}
save(candidate, {path: results[path] for path in json.loads(metadata["expects"]) if path in results})
