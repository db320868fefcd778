"""Tolerances: what `assay tolerance` finds, and each statement of an audit made again with numpy."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import assay
from assay.__main__ import program

NAMES = ["moe/small", "mla/small", "rms_norm/one-row", "attention/segments"]
TWO_FORMS, EXACT = "layer_norm/large-mean", "gmm/exact-k512"
RULES = ["atol=5e-3,rtol=0", "atol=1e-2,rtol=1e-2", "atol=0.3,rtol=0.3", "largest=0.15,rtol=0.85", "atol=1e-2,rtol=1e-2,matched=0.75", "diff=1e-3"]


def accepts(rule: dict[str, float], golden: Any, value: Any) -> bool:
    atol = rule.get("atol", 9e99 if list(rule) == ["diff"] else 0.0) + rule.get("largest", 0.0) * np.abs(golden).max()
    close = np.abs(value - golden) <= atol + rule.get("rtol", 0.0) * np.abs(golden)
    sizes = (golden**2 + value**2).sum()
    diff = 1 - 2 * (golden * value).sum() / sizes if sizes else 0.0
    return bool(1 - close.mean() <= 1 - rule.get("matched", 1.0) and diff <= rule.get("diff", 2.0))


def rows(golden: Any) -> Any:
    return golden.reshape(-1, golden.shape[-1] if golden.ndim else 1)


def last_row(golden: Any, value: float) -> Any:
    made = rows(golden).copy()
    made[-1] = value
    return made.reshape(golden.shape)


SPOILERS: dict[str, Callable[[Any, float], Any]] = {
    "zeros": lambda golden, _: np.zeros_like(golden),
    "negated": lambda golden, _: -golden,
    "next_row": lambda golden, _: np.roll(rows(golden), -1, 0).reshape(golden.shape),
    "next_column": lambda golden, _: np.roll(rows(golden), -1, 1).reshape(golden.shape),
    "last_row_zero": lambda golden, _: last_row(golden, 0.0),
    "last_row_anything": lambda golden, _: last_row(golden, 1e30),
    "scaled": lambda golden, number: golden * number,
}


@pytest.mark.parametrize("name", NAMES)
def test_what_an_audit_says_is_so(name: str) -> None:
    case, passed = assay.case(name, precision="bf16"), 0
    for text in RULES:
        rule = {key: float(value) for key, value in (member.split("=") for member in text.split(","))}
        found = case.tolerances(audit=text)
        for tensor in found["tensors"]:
            golden = case.golden(tensor["path"])
            for spoiler, says in tensor["lets_through"].items():
                if spoiler not in SPOILERS:
                    continue
                number = 0.0 if isinstance(says, bool) else says
                wrong = SPOILERS[spoiler](golden, number)
                assert accepts(rule, golden, wrong) == bool(says), (text, tensor["path"], spoiler, says)
                passed += bool(says)
                if number > 1:  # the largest
                    assert not accepts(rule, golden, SPOILERS[spoiler](golden, number * 1.02)), (text, tensor["path"], spoiler)
    assert passed > 10


@pytest.mark.parametrize("name", [*NAMES, TWO_FORMS, EXACT])
@pytest.mark.parametrize("precision", ["bf16", "f32"])
def test_what_is_found_accepts_what_the_thresholds_accept(name: str, precision: str) -> None:
    case = assay.case(name, precision=precision)
    found = case.tolerances(runs=8)
    assert found["runs"] == found["accepted"] == 8
    assert found["mutants"] >= found["missed"] >= len(found["missed_names"]) > -1
    for tensor in found["tensors"]:
        golden, threshold = case.golden(tensor["path"]), case.threshold(tensor["path"])
        allowed = tensor["atol"] + tensor["rtol"] * np.abs(golden)
        assert (allowed >= threshold).all()
        if golden.size > 1 and tensor["atol"] > 0:  # no smaller pair of these does: two digits
            assert not (tensor["atol"] * 0.88 + tensor["rtol"] * 0.88 * np.abs(golden) >= threshold).all()


def test_thresholds_are_those_of_the_verdict() -> None:
    case = assay.case("gmm/primes", precision="bf16", explain=False)
    results = {path: case.golden(path).copy() for path, of in case.expected.items() if of.required}
    golden, threshold = results["outputs/y"], case.threshold("outputs/y")
    assert threshold.shape == golden.shape and (threshold > 0).all()
    for share, fails in ((0.999, False), (1.001, True)):
        results["outputs/y"] = golden.copy()
        results["outputs/y"][0, 0] += share * threshold[0, 0]
        wrong = case.judge(results).verdict == "FAIL" and "elements beyond" in str(case.judge(results))
        assert wrong == fails


def test_the_snippet_runs() -> None:
    made = subprocess.run([program(), "tolerance", "gmm/primes", "--precision", "bf16", "--runs", "1", "--snippet"], capture_output=True, text=True)
    scope: dict[str, Any] = {"numpy": np}
    exec(made.stdout, scope)  # noqa: S102: our own text
    case = assay.case("gmm/primes", precision="bf16")
    golden = {path: case.golden(path) for path in scope["TOLERANCES"]}
    scope["check"](golden, golden)
    with pytest.raises(AssertionError):
        scope["check"]({path: 2 * value for path, value in golden.items()}, golden)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["gmm/primes", "--audit", "atol=x"], 'assay tolerance: --audit is "atol=x", expected'),
        (["gmm/primes", "--audit", "atol=1,"], "expected numbers from 0 up"),
        (["gmm/primes", "--audit", "rtol=nan"], "expected numbers from 0 up"),
        (["gmm/primes", "--audit", "atol=1,atol=1"], "expected numbers from 0 up"),
        (["gmm/primes", "--audit", "matched=2"], "expected numbers from 0 up"),
        (["gmm/primes", "--audit", "atol=1", "--snippet"], "--snippet writes tolerances that are found"),
        (["gmm/primes", "--runs", "0"], "--runs is"),
        (["gmm/primes", "--precision", "f8"], "--precision is"),
        (["no/such"], "no/such"),
        ([], "usage: assay tolerance"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    made = subprocess.run([program(), "tolerance", *arguments, "--json", os.fspath(answer)], capture_output=True, text=True)
    assert made.returncode == 2 and made.stdout == "" and not answer.exists()
    assert says in made.stderr and made.stderr.count("\n") == 1


def test_a_threshold_of_what_has_none_is_refused() -> None:
    case = assay.case("moe/small", precision="bf16")
    for path in ("inputs/x", "outputs/z"):
        with pytest.raises(assay.BadInput, match=path):
            case.threshold(path)
