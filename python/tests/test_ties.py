"""Which of equal numbers a kernel may choose."""
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
