"""The snippets of docs/your-kernel.md, "A test in Python", work."""
from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
import torch  # noqa: F401  # cannot be imported again, after pytester has put the modules back

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "your-kernel.md").read_text().split("\n## A test in Python\n")[1].split("\n## ")[0]
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet(snippet: str, pytester: pytest.Pytester) -> None:
    if "jax" in snippet and importlib.util.find_spec("jax") is None:
        compile(snippet, "docs/your-kernel.md", "exec")
        pytest.skip("jax is not there")
    if "@assay.cases" not in snippet:
        exec(compile(snippet, "docs/your-kernel.md", "exec"), {})
        return
    shutil.copy(ROOT / "python" / "examples" / "torch_moe.py", pytester.path)
    pytester.syspathinsert()
    pytester.makepyfile(snippet)
    result = pytester.runpytest_inprocess("-q", "-p", "assay.pytest_plugin")
    assert result.ret == 0 and result.parseoutcomes()["passed"] >= 4


def test_the_bug_of_the_first_example_is_shown_so(pytester: pytest.Pytester) -> None:
    kernel = (ROOT / "python" / "examples" / "torch_moe.py").read_text()
    wrong = kernel.replace('weights * config["routed_scaling_factor"] if deepseek else weights', "weights")
    assert wrong != kernel
    pytester.makepyfile(torch_moe_wrong=wrong, test_first=SNIPPETS[0].replace("from torch_moe ", "from torch_moe_wrong "))
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess("-q", "-p", "assay.pytest_plugin", "-k", "tiny-sparse")
    assert result.ret == 1
    shown = re.search(r"^```\n(assay.Mismatch.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert shown is not None
    lines = [line.removesuffix("...") for line in shown[1].splitlines() if line != "..."]
    assert len(lines) == 5
    for line in lines:  # other processors round otherwise, in the last place
        pattern = r"\d[\d.]*".join(re.escape(part) for part in re.split(r"\d[\d.]*", line.strip()))
        assert re.search(pattern, result.stdout.str()), pattern
