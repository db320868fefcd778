"""BackendBench: its check of a kernel is the verdict, for the operators that the tracer has.

    import BackendBench.eval
    with assay.backendbench.judging(BackendBench.eval) as kept: ...     # what it runs in there; kept: operators that it judges itself, with the reason
"""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Mapping, Sequence

from . import _library as lib
from ._correct import case_of_numbers
from ._trace import named


def verdict(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, precision: "str | None" = None) -> bool:
    """Whether that is what the operator gives of these arguments; `BadInput` where no program has the operator."""
    from torch.utils import _pytree

    if getattr(getattr(op, "_schema", None), "is_mutable", False):
        raise lib.BadInput(f"{op} writes into its arguments, which are no longer what they were")
    leaves, form = _pytree.tree_flatten((list(args), dict(kwargs)))
    example = {f"x{i}": x for i, x in enumerate(leaves) if hasattr(x, "dtype") and hasattr(x, "shape")}

    def function(**given: Any) -> Any:
        own, keywords = _pytree.tree_unflatten([given.get(f"x{i}", x) for i, x in enumerate(leaves)], form)
        return op(*own, **keywords)

    function.__name__ = str(getattr(op, "__name__", "operator")).replace(".", "_")
    case, results = case_of_numbers(function, example, named(function, result), precision)
    return case.judge(results, gradients=False).verdict == "PASS"


@contextlib.contextmanager
def judging(module: Any) -> Iterator[dict[str, str]]:
    """`module` is BackendBench.eval, whose tests are judged so while this lasts."""
    theirs, allclose, kept = module.eval_correctness_test, module.allclose, dict[str, str]()

    def eval_correctness_test(op: Any, impl: Any, test: Any) -> Any:
        def judged(reference: Any, result: Any, *tolerances: Any) -> bool:
            try:
                return verdict(op, test.args, test.kwargs, result)
            except lib.BadInput as why:
                kept[str(op)] = str(why)
                return bool(allclose(reference, result, *tolerances))

        module.allclose = judged
        try:
            return theirs(op, impl, test)
        finally:
            module.allclose = allclose

    module.eval_correctness_test = eval_correctness_test
    try:
        yield kept
    finally:
        module.eval_correctness_test = theirs
