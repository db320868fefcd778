"""The data flow of a layer, found by running it: a tensor depends on what changes it.

    data_flow.py ASSAY CASE [KEY=VALUE...] > flow.dot

Each input and weight is replaced by other numbers, one at a time, and the layer is evaluated again. What differs depends on that tensor.
A result comes before another where all that it depends on is among what the other depends on, and more; arrows that others
imply are left out."""
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np

GIVEN = ("inputs/", "weights/")
SHOWN = ("checkpoints/", "routing/", "outputs/")
COLOURS = {"inputs": "#cfe3f5", "weights": "#f1f1f1", "checkpoints": "#ffffff", "routing": "#fbe5c2", "outputs": "#cdeccf"}


def evaluate(assay, case, settings, path, inputs=None):
    command = [assay, "generate", case, "-o", path, "--quiet", "--set", "checkpoints=all", "--set", "gradients=none",
               "--set", "profiles=[]"]
    for setting in settings:
        command += ["--set", setting]
    if inputs:
        command += ["--inputs", inputs]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = {}

    def keep(name, dataset):
        if isinstance(dataset, h5py.Dataset) and name.startswith(GIVEN + SHOWN):
            found[name] = dataset[()]

    with h5py.File(path) as file:
        file.visititems(keep)
    return found


def other_numbers(values):
    """The same ones in another order, so that they lie on the same grid."""
    turned = np.roll(values, 1, axis=-1) if values.shape[-1] > 1 else np.roll(values, 1)
    return turned if not np.array_equal(turned, values) else values * 2


def dependencies(assay, case, settings):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "golden.h5")
        plain = evaluate(assay, case, settings, path)
        needs = {name: set() for name in plain if name.startswith(SHOWN)}
        for given in [name for name in plain if name.startswith(GIVEN) and plain[name].dtype.kind == "f"]:
            inputs = os.path.join(folder, "inputs.h5")
            with h5py.File(inputs, "w") as file:
                file[given] = other_numbers(plain[given])
            for name, values in evaluate(assay, case, settings, os.path.join(folder, "other.h5"), inputs).items():
                if name in needs and not np.array_equal(values, plain[name], equal_nan=True):
                    needs[name].add(given)
            os.remove(inputs)
            os.remove(os.path.join(folder, "other.h5"))
    return plain, needs


def arrows(needs):
    """Between tensors of the same needs nothing can be told: they stand in one box."""
    boxes = {}
    for name in sorted(needs):
        if needs[name]:
            boxes.setdefault(frozenset(needs[name]), []).append(name)
    keys = list(boxes)
    for key in keys:
        before = [other for other in keys if other < key]
        direct = [other for other in before if not any(other < between for between in before)]
        yield boxes[key], key - frozenset().union(*direct), [boxes[other] for other in direct]


def box(names, plain):
    rows = []
    for name in names:
        folder, _, rest = name.partition("/")
        shape = ",".join(str(size) for size in plain[name].shape)
        rows.append(f'<tr><td bgcolor="{COLOURS[folder]}" align="left">{rest}</td>'
                    f'<td bgcolor="{COLOURS[folder]}" align="right"><font color="#666666">[{shape}]</font></td></tr>')
    return f'<<table border="0" cellborder="1" cellspacing="0" cellpadding="3">{"".join(rows)}</table>>'


def main():
    assay, case, *settings = sys.argv[1:]
    plain, needs = dependencies(assay, case, settings)
    print('digraph flow { rankdir=TB; nodesep=0.15; ranksep=0.3; node [shape=plain, fontname="Helvetica", fontsize=10];'
          ' edge [color="#888888", arrowsize=0.6];')
    for names, own, before in arrows(needs):
        print(f'  "{names[0]}" [label={box(names, plain)}];')
        inputs = sorted(own)
        if inputs:
            print(f'  "of {names[0]}" [label={box(inputs, plain)}]; "of {names[0]}" -> "{names[0]}";')
        for other in before:
            print(f'  "{other[0]}" -> "{names[0]}";')
    print("}")


if __name__ == "__main__":
    main()
