"""KernelBench's problems: a module Model with get_inputs and get_init_inputs in a file, and a file with ModelNew, which shall compute the same.

    python3 -m assay.kernelbench 23_Softmax.py candidate.py     # a score as JSON; status 0: correct, 1: not

Problems have gigabytes of inputs: their whole numbers are cut, to as few as the module runs with and to as many as are judged in seconds.
"""
from __future__ import annotations

import ast
import copy
import json
import os
import sys
from typing import Any

from . import _library as lib
from ._evaluate import Evaluation
from ._evaluate import evaluate as tried

SIZES = (6, 8, 12, 16, 24, 32, 64, 128, 256)
LARGEST = 3e7  #: parameters of a module
JUDGED = 2e5  #: numbers of a problem with the larger sizes


class Cut(ast.NodeTransformer):
    """Whole numbers above `most` are that."""

    def __init__(self, most: int) -> None:
        self.most = most

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        try:
            number = eval(compile(ast.Expression(ast.fix_missing_locations(node)), "", "eval"), {})
        except Exception:  # of names
            return node
        return ast.copy_location(self.visit_Constant(ast.Constant(number)), node) if type(number) is int else node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        large = type(node.value) is int and node.value > self.most
        return ast.copy_location(ast.Constant(self.most), node) if large else node


def made(path: "str | os.PathLike[str]", most: int) -> tuple[Any, list[Any], list[Any]]:
    """The module, its arguments, and what it was made with, once it has run on them."""
    import torch

    with open(path) as file:
        tree, space = ast.parse(file.read()), {"__name__": "problem"}
    for i, node in enumerate(tree.body):
        if isinstance(node, ast.Assign) or getattr(node, "name", "") in ("get_inputs", "get_init_inputs"):
            tree.body[i] = Cut(most).visit(node)
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), space)
    torch.manual_seed(1)
    init: list[Any] = list(space["get_init_inputs"]())  # type: ignore[operator]
    module, given = space["Model"](*init), list(space["get_inputs"]())  # type: ignore[operator]
    if sum(p.numel() for p in module.parameters()) > LARGEST:
        raise ValueError("the module is large")
    with torch.no_grad():
        copy.deepcopy(module)(*given)
    return module, given, init


def numbers(module: Any, given: list[Any]) -> int:
    return sum(x.numel() for x in (*module.parameters(), *given) if hasattr(x, "numel"))


def evaluate(reference_file: "str | os.PathLike[str]", candidate_file: "str | os.PathLike[str]", *, precision: str = "f32", trials: int = 5, **how: Any) -> Evaluation:
    """`assay.evaluate` of ModelNew against Model, with the least and with larger sizes, as many trials of each. ModelNew gets Model's parameters, newly drawn, by
    their names or in their order."""
    if not os.path.isfile(reference_file):
        raise lib.BadInput(f"kernelbench: {os.fspath(reference_file)}: no such file")
    found: list[tuple[Any, list[Any], list[Any]]] = []
    why: Exception | None = None
    for most in SIZES:
        try:
            problem = made(reference_file, most)
        except Exception as error:
            why = error
            continue
        if not found or numbers(*problem[:2]) <= JUDGED:
            found = [*found[:1], problem]
        else:
            break
    if not found:
        raise lib.BadInput(f"kernelbench: {os.fspath(reference_file)}: {type(why).__name__}: {why}")
    done: list[Evaluation] = []
    for module, given, init in found:
        done.append(tried(f"{os.fspath(candidate_file)}::ModelNew", module, shapes=tuple(given), init=init, precision=precision, trials=trials, **how))
    return Evaluation(done[0].kernel, precision, trials * len(found), [trial for one in done for trial in one.trials], "\n".join(one.log for one in done))


def main(*arguments: str) -> int:
    if len(arguments) != 2:
        print("usage: python3 -m assay.kernelbench REFERENCE CANDIDATE", file=sys.stderr)
        return 2
    try:
        result = evaluate(*arguments)
    except lib.BadInput as why:
        print(why, file=sys.stderr)
        return 2
    print(json.dumps({"problem": os.path.basename(arguments[0]), **result.json}, indent=1))
    return 0 if result else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
