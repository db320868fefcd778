"""A backend that cannot be wrong: what it writes are the results of a golden that was made before.

usage: copy_outputs.py GOLDEN CANDIDATE [TENSOR]; one element of TENSOR is changed."""

import sys

import h5py

golden_path, candidate_path = sys.argv[1:3]
changed = sys.argv[3] if len(sys.argv) > 3 else None
with h5py.File(golden_path, "r") as golden, h5py.File(candidate_path, "w") as candidate:

    def copy(name, item):
        if isinstance(item, h5py.Dataset) and name.split("/")[0] in ("outputs", "gradients", "routing"):
            values = item[()]
            if name == changed:
                values.reshape(-1)[0] += 1
            candidate.create_dataset(name, data=values)

    golden.visititems(copy)
