"""The pytest plugin, in runs of their own."""
from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch_moe

# A kernel that is right, wrong on one case, and without another.
KERNEL = """
import assay
import torch

@assay.cases("rms_norm/*", precision="bf16", exclude=["rms_norm/epsilon*", "gmm"])
def test_norm(case):
    given = case.inputs(torch, requires_grad=True)
    if case.name == "rms_norm/prime-width":
        case.unsupported("no odd widths")
    x = given["inputs/x"].float()
    wrong = case.name == "rms_norm/small-latents"
    epsilon = 0 if wrong else case.config["normalization_layer_epsilon"]
    y = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * given["weights/scale"].float()
    outputs = {"outputs/y": y.bfloat16()}
    case.check({**outputs, **case.backward(outputs, given)})
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    pytester.makepyfile(test_kernel=KERNEL)
    return lambda *options: pytester.runpytest_inprocess("-p", "assay.pytest_plugin", *options)


def test_one_test_for_each_case(run) -> None:
    result = run("-v", "-rs", "--tb=short")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1 and outcomes["skipped"] == 1 and outcomes["passed"] >= 5
    text = result.stdout.str()
    assert "test_kernel.py::test_norm[rms_norm/deepseek] PASSED" in text
    assert "test_norm[rms_norm/small-latents] FAILED" in text
    assert "rms_norm/epsilon-1e-5" not in text
    assert re.search(r"SKIPPED \[1\] test_kernel.py:\d+: unsupported: no odd widths", text)


def test_failure_shows_the_report_and_none_of_our_code(run) -> None:
    result = run("-q")
    text = result.stdout.str()
    assert "looks like this:" in text or "known bugs:" in text
    assert "op rms_norm, profile bf16" in text
    assert re.search(r"^FAIL rms_norm/small-latents  .*outputs/y: .* beyond their threshold", text, re.M)
    assert re.search(r"^E +assay.Mismatch: FAIL rms_norm/small-latents", text, re.M)
    assert re.search(r"^test_kernel.py:\d+: Mismatch$", text, re.M)
    assert "_case.py" not in text and "_report.py" not in text and "ctypes" not in text


KNOWN = "# what the kernel lacks\n*/small-latents   epsilon is missing # known since spring\n"


def test_expected_failures(run, pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("known.txt").write_text(KNOWN)
    result = run("-q", "-rx", "--assay-known", "known.txt")
    outcomes = result.parseoutcomes()
    assert result.ret == 0 and outcomes["xfailed"] == 1 and "failed" not in outcomes
    result.stdout.fnmatch_lines(["XFAIL *small-latents* - epsilon is missing"])


def test_an_expected_failure_that_passes_fails(run, pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("known.txt").write_text(KNOWN + "rms_norm/deepseek wrong long ago\n")
    result = run("-q", "--assay-known", "known.txt")
    assert result.ret == 1 and result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*XPASS(strict)* wrong long ago"])


@pytest.mark.parametrize("error", ["ImportError", "MemoryError", "assay.BadInput", "AssertionError"])
def test_an_expected_failure_is_one_by_its_verdict(pytester: pytest.Pytester, error: str) -> None:
    pytester.path.joinpath("known.txt").write_text("rms_norm/deepseek epsilon is missing\n")
    pytester.makepyfile(f"""
        import assay
        @assay.cases("rms_norm/deepseek")
        def test_norm(case):
            raise {error}("the kernel does not start")
    """)
    result = pytester.runpytest_inprocess("-q", "-p", "assay.pytest_plugin", "--assay-known", "known.txt")
    assert result.ret == 1 and result.parseoutcomes() == {"failed": 1}


@pytest.mark.parametrize(
    "text, words",
    [
        ("rms_norm/deepseek\n", "known.txt:1: no reason, expected a case"),
        ("\nmla/small why\nmla/small again\n", "known.txt:3: the case of an earlier line again"),
        ("fuzz/* drawn\nrms_norm/deepsek why\n", "known.txt:2: no case is named rms_norm/deepsek, did you mean rms_norm/deepseek?"),
        ("gmm/typo* why\n", "known.txt:1: no case is named gmm/typo*"),
        (None, "known.txt"),
    ],
)
def test_bad_known_file(run, pytester: pytest.Pytester, text: str | None, words: str) -> None:
    if text is not None:
        pytester.path.joinpath("known.txt").write_text(text)
    result = run("--assay-known", "known.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{words}*".replace("[", "[[]")])


def test_a_known_file_that_never_ends(run, pytester: pytest.Pytester) -> None:
    os.mkfifo(pytester.path / "known.txt")
    result = run("--assay-known", "known.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*known.txt is no ordinary file*"])


@pytest.mark.parametrize("workers", [0, 2])
def test_page(run, pytester: pytest.Pytester, workers: int) -> None:
    second = KERNEL.replace("test_norm", "test_other").replace('== "rms_norm/small-latents"', '.startswith("rms_norm/small")').replace("name .s", "name.s")
    pytester.makepyfile(test_second=second)
    options = ["-n", str(workers)] if workers else []
    result = run("-q", "--assay-html", "artefacts/page.html", "--junitxml", "junit.xml", *options)
    assert result.parseoutcomes()["failed"] == 3
    result.stdout.fnmatch_lines(["assay: 3 failing reports in artefacts/page.html"])
    page = pytester.path.joinpath("artefacts/page.html").read_text()
    sections = re.findall(r'<section id="r(\d+)"', page)
    assert sections == ["0", "1", "2"] and page.count("</title><style>") == 1
    identities = re.findall(r'id="([^"]+)"', page)
    assert len(identities) == len(set(identities))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(identities)
    assert "python3 -m pytest &#x27;test_kernel.py::test_norm[rms_norm/small-latents]&#x27;" in page
    assert list(pytester.path.joinpath("artefacts").iterdir()) == [pytester.path / "artefacts" / "page.html"]
    cases = ElementTree.parse(pytester.path / "junit.xml").findall(".//testcase[failure]")
    assert len(cases) == 3 and all("beyond their threshold" in (case[0].get("message") or "") for case in cases)


def test_page_without_failures(run, pytester: pytest.Pytester) -> None:
    result = run("-q", "--assay-html", "page.html", "-k", "deepseek")
    assert result.ret == 0 and "0 failing reports" in pytester.path.joinpath("page.html").read_text()


@pytest.mark.parametrize("path, words", [("kernel.txt/page.html", "File exists"), (".", "Is a directory")])
def test_page_that_cannot_be_written(run, pytester: pytest.Pytester, path: str, words: str) -> None:
    pytester.path.joinpath("kernel.txt").write_text("")
    before = sorted(pytester.path.iterdir())
    result = run("-q", "--assay-html", path)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and "passed" not in result.stdout.str()
    errors = [line for line in result.stderr.lines if line]
    assert errors == [f"ERROR: --assay-html {path}: {words}"]
    assert sorted(pytester.path.iterdir()) == before


def test_page_that_can_no_longer_be_written(run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import pathlib\ndef pytest_collection_finish(): pathlib.Path('page.html').mkdir()")
    result = run("-q", "--assay-html", "page.html", "-k", "deepseek")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--assay-html page.html: Is a directory"])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_cache(run, pytester: pytest.Pytester) -> None:
    for _ in range(2):
        assert run("-q", "--assay-cache", "goldens", "-k", "deepseek").ret == 0
        entries = {path.name: path.stat().st_ino for path in Path(pytester.path, "goldens").glob("*golden*")}
        assert len(entries) == 1
    assert run("-q", "--assay-cache", "goldens", "-k", "deepseek", "-n", "2").ret == 0


def test_no_match_and_typing_errors(pytester: pytest.Pytester) -> None:
    pytester.makepyfile('import assay\n@assay.cases("moe/nothing*")\ndef test_x(case): pass\n')
    result = pytester.runpytest_inprocess("-p", "assay.pytest_plugin")
    result.stdout.fnmatch_lines(["*BadInput: moe/nothing[*]: expected a case*"])
    assert result.ret != 0


def test_without_the_plugin(run, pytester: pytest.Pytester) -> None:
    """The decorator and skips need none."""
    result = pytester.runpytest_subprocess("-q", "-p", "no:assay", "test_kernel.py")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1 and outcomes["skipped"] == 1


def test_a_failed_backward_ends(pytester: pytest.Pytester) -> None:
    """Leaves over memory of numpy hang at exit in PyTorch 1.13, when a second backward has failed."""
    shutil.copy(Path(torch_moe.__file__), pytester.path)
    pytester.makepyfile(
        """
        import assay, torch, torch_moe
        def test_twice():
            case = assay.case("moe/deepseek3-tiny-sparse")
            given = case.inputs(torch, requires_grad=True)
            outputs = torch_moe.moe(given, case.config)
            case.backward(outputs, given)
            case.backward(outputs, given)
        """
    )
    result = pytester.runpytest_subprocess("-q", "-p", "assay.pytest_plugin", timeout=60)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*RuntimeError: Trying to backward through the graph a second time*"])
