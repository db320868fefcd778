"""A file of HDF5's older format whose text attributes are damaged, which libhdf5 1.10 does not survive.

usage: damaged_candidate.py crash|memory FILE

The last 16 bytes of such an attribute are the text's length (4 bytes), the address of a heap (8) and an index in it (4)."""

import sys

import h5py

kind, path = sys.argv[1:]
with h5py.File(path, "w", libver="earliest") as file:
    file.create_dataset("outputs/y", data=[1.0, 2.0]).attrs["badly"] = "text"
with open(path, "r+b") as file:
    whole = bytearray(file.read())
    value = whole.index(b"badly\0\0\0") + 8 + 24 + 8  # behind the name, the type and the shape
    if kind == "crash":
        whole[value + 12 : value + 16] = b"\xff\xff\xff\xff"  # an object that the heap does not have
    else:
        whole[value : value + 4] = b"\xff\xff\xff\xff"  # four gigabytes of text
    file.seek(0)
    file.write(whole)
