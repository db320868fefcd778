"""Recomputes all digests of a fixture in HDF5 with h5py and hashlib alone, one dataset in memory at a time: digests.py FILE"""
import hashlib
import sys

import h5py
import numpy as np


LEAF = 4 << 20


def dataset_digest(dataset, version):
    raw = np.empty(dataset.shape, f"u{dataset.id.get_type().get_size()}")
    if raw.size:  # the bits as they lie in the file: memory type = file type
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, dataset.id.get_type())
    content = raw.tobytes()
    if version >= 2 and len(content) > LEAF:
        leaves = [content[at:at + LEAF] for at in range(0, len(content), LEAF)]
        content = b"".join(hashlib.sha256(leaf).digest() for leaf in leaves)
    shape = ",".join(map(str, dataset.shape))
    return hashlib.sha256(f"{dataset.attrs['float_type']} [{shape}]\n".encode() + content).hexdigest()


def root_digest(file, datasets):
    digest = hashlib.sha256()
    for name in sorted(set(file.attrs) - {"digest", "recipes"}):
        value = file.attrs[name]
        kind = "text" if isinstance(value, str) else "texts" if np.ndim(value) else "integer"
        texts = [str(text).encode() for text in np.atleast_1d(np.asarray(value, dtype=object))]
        digest.update(f"attribute {name} {kind} {len(texts)}\n".encode())
        for text in texts:
            digest.update(b"%d\n%s\n" % (len(text), text))
    lines = {}
    for path, dataset in datasets.items():
        shape, labels = ",".join(map(str, dataset.shape)), ",".join(axis.label for axis in dataset.dims)
        lines[path] = f"{dataset.attrs['float_type']} [{shape}] [{labels}] {dataset.attrs['digest']}"
    for recipe in file.attrs.get("recipes", []):
        path, *words = recipe.split()
        lines[path] = " ".join([*words[:3], words[-1]])
    for path in sorted(lines):
        digest.update(f"dataset {path} {lines[path]}\n".encode())
    return digest.hexdigest()


with h5py.File(sys.argv[1], "r") as file:
    datasets = {}
    file.visititems(lambda path, item: datasets.update({path: item} if isinstance(item, h5py.Dataset) else {}))
    version = file.attrs["format_version"]
    wrong = [path for path, dataset in datasets.items() if dataset_digest(dataset, version) != dataset.attrs["digest"]]
    if root_digest(file, datasets) != file.attrs["digest"]:
        wrong.append("/")
    print(f"{len(datasets)} datasets;", f"wrong digests: {wrong}" if wrong else "all digests right")
    sys.exit(bool(wrong))
