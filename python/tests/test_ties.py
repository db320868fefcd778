"""Which of equal numbers a kernel may choose, and rows that have fewer to choose than there is room for."""
import assay
import numpy as np
import pytest

CASE = """case: mine/ties
op: program
sizes: {T: 3, E: 5, K: KEPT}
inputs: {x: {axes: [T, E], values: [1, 3, 3, 3, 0, 2, 2, 2, 2, 2, 5, 4, 3, 2, 1]}}
steps: {ids: 'top_k("E->K", xLOWEST)'}
outputs: {y: 'pick(x, ids)'}
gradients: none
"""
CHOSEN = {  # places, whether any of equal ones may be chosen, and the lowest alone
    "lowest": ([[1, 2], [0, 1], [0, 1]], True, True),
    "another order": ([[2, 1], [1, 0], [1, 0]], True, True),
    "others": ([[2, 3], [0, 1], [0, 1]], True, False),
    "last": ([[1, 2], [3, 4], [0, 1]], True, False),
    "not the best": ([[1, 0], [0, 1], [0, 1]], False, False),
    "one twice": ([[1, 1], [0, 1], [0, 1]], False, False),
    "one": ([[1], [0], [0]], True, True),
    "another one": ([[3], [4], [0]], True, False),
    "not the best one": ([[0], [0], [0]], False, False),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_of_equal_numbers(name, tmp_path):
    places, *right = CHOSEN[name]
    index = np.array(places, np.int32)
    for lowest, passes in zip(("", ", lowest=true"), right):
        (tmp_path / "ties.yml").write_text(CASE.replace("KEPT", str(index.shape[1])).replace("LOWEST", lowest))
        with assay.case(str(tmp_path / "ties.yml"), precision="f32", dtype="float32") as case:
            y = np.take_along_axis(case.inputs(np)["inputs/x"], index, 1)
            assert (case.judge({"outputs/y": y, "routing/ids/top_k": index}).verdict == "PASS") == passes


PADDED = {  # places of the numbers above 2.5 in the rows, and whether they are right
    "all above": ([[1, 2, 3, -1], [-1, -1, -1, -1], [0, 1, 2, -1]], True),
    "another order": ([[-1, 3, 2, 1], [-1, -1, -1, -1], [2, -1, 1, 0]], True),
    "one is missing": ([[1, 2, -1, -1], [-1, -1, -1, -1], [0, 1, 2, -1]], False),
    "one too many": ([[1, 2, 3, 0], [-1, -1, -1, -1], [0, 1, 2, -1]], False),
    "no padding": ([[1, 2, 3, 0], [0, 1, 2, 3], [0, 1, 2, 3]], False),
    "one twice": ([[1, 2, 3, 3], [-1, -1, -1, -1], [0, 1, 2, -1]], False),
    "beyond": ([[1, 2, 3, -2], [-1, -1, -1, -1], [0, 1, 2, -1]], False),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_of_rows_with_fewer(name, tmp_path):
    places, right = PADDED[name]
    index = np.array(places, np.int32)
    (tmp_path / "ties.yml").write_text(CASE.replace("KEPT", "4").replace("LOWEST", ", above=2.5"))
    with assay.case(str(tmp_path / "ties.yml"), precision="f32", dtype="float32") as case:
        x = case.inputs(np)["inputs/x"]
        y = np.where(index < 0, 0, np.take_along_axis(x, np.maximum(index, 0), 1))
        assert (case.judge({"outputs/y": y, "routing/ids/top_k": index}).verdict == "PASS") == right


@pytest.mark.parametrize("precision, dtype", [("f32", "float32"), ("bf16", "bfloat16")])
def test_lengths_of_rows(precision, dtype):
    torch = pytest.importorskip("torch")
    def judged(case, off, gives=True):
        given = case.inputs(torch, requires_grad=True)
        x, length = given["inputs/x"], given["inputs/length"].long()
        hidden = torch.arange(24) >= length[:, None] + off
        best, index = x.float().masked_fill(hidden, -torch.inf).topk(6)
        index = index.masked_fill(best.isinf(), 99).sort(-1).values  # the lowest index first, and then none
        index = index.masked_fill(index == 99, -1)
        y = ((x.float() * 2).gather(1, index.clamp(min=0)) * (index >= 0)).to(x.dtype)
        outputs = {"outputs/y": y, **({"routing/ids/top_k": index.int()} if gives else {})}
        return case.judge({**outputs, **case.backward({"outputs/y": y}, given)}).verdict

    with assay.case("program/top-k-lengths", precision=precision, dtype=dtype) as case:
        assert judged(case, 0) == judged(case, 0, False) == "PASS"
        assert judged(case, 1) == "FAIL" and judged(case, -1) == "FAIL"
