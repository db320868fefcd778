#!/usr/bin/env python3
"""How many of KernelBench's problems are traced: kernelbench.py CHECKOUT [LEVEL...]

Each problem's module is made with its sizes cut to a few, as few as it runs with, and traced as anybody's: assay.trace holds the
program to the module in float64, values and gradients. Prints a line for each problem, and how many of each level there are.
Two problems want einops beside PyTorch.
"""
import ast
import collections
import copy
import pathlib
import re
import signal
import sys

import torch

import assay

SECONDS = 150  #: for a problem
SIZES = (6, 8, 12, 16, 24, 32, 64, 128)
LARGEST = 3e7  #: parameters of a module


class Cut(ast.NodeTransformer):
    """Whole numbers above `most` are that."""

    def __init__(self, most):
        self.most = most

    def visit_BinOp(self, node):
        self.generic_visit(node)
        try:
            number = eval(compile(ast.Expression(ast.fix_missing_locations(node)), "", "eval"), {})
        except Exception:  # of names
            return node
        return ast.copy_location(self.visit_Constant(ast.Constant(number)), node) if type(number) is int else node

    def visit_Constant(self, node):
        large = type(node.value) is int and node.value > self.most
        return ast.copy_location(ast.Constant(self.most), node) if large else node


def made(path, most):
    """The module and its arguments, once it has run on them."""
    tree, space = ast.parse(path.read_text()), {"__name__": "problem"}
    for i, node in enumerate(tree.body):
        if isinstance(node, ast.Assign) or getattr(node, "name", "") in ("get_inputs", "get_init_inputs"):
            tree.body[i] = Cut(most).visit(node)
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), space)
    torch.manual_seed(1)
    module, given = space["Model"](*space["get_init_inputs"]()), space["get_inputs"]()
    if sum(p.numel() for p in module.parameters()) > LARGEST:
        raise ValueError("the module is large")
    with torch.no_grad():
        copy.deepcopy(module)(*given)
    return module, given


def outcome(path):
    why = None
    for most in SIZES:
        try:
            module, given = made(path, most)
        except Exception as error:
            why = error
            continue
        try:
            assay.trace(module, list(given))
            return "traced", ""
        except assay.BadInput as error:
            return "refused", re.sub(r"^.*?:\d+: ", "", str(error))
    return "did not run", str(why)


def late(*_):
    raise TimeoutError(f"more than {SECONDS} s")


def main(checkout, *levels):
    signal.signal(signal.SIGALRM, late)
    for level in levels or ("1", "2", "3"):
        count = collections.Counter()
        for path in sorted(pathlib.Path(checkout, "KernelBench", f"level{level}").glob("*.py"), key=lambda p: int(p.stem.split("_")[0])):
            signal.alarm(SECONDS)
            try:
                how, why = outcome(path)
            except Exception as error:
                how, why = "failed", f"{type(error).__name__}: {error}"
            signal.alarm(0)
            count[how] += 1
            print(f"{how:12} {level}/{path.stem}  {why.splitlines()[0][:150] if why else ''}", flush=True)
        print(f"level {level}: {sum(count.values())} problems, " + ", ".join(f"{n} {how}" for how, n in count.items()), flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
