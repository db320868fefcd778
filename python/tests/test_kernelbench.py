"""KernelBench's problems: right solutions pass, zeros do not. $ASSAY_PEERS is a folder with a checkout KernelBench."""
import json
import os
import subprocess
import sys
from pathlib import Path

import assay
import pytest

torch = pytest.importorskip("torch")
PEER = Path(os.environ.get("ASSAY_PEERS", "/nowhere"), "KernelBench", "KernelBench")
ZEROS = "import torch\nclass ModelNew(torch.nn.Module):\n    def __init__(self, *_):\n        super().__init__()\n    def forward(self, x):\n        return torch.zeros_like({})\n"
#: Whose right results are so small that atol 1e-2 takes zeros for them, and what has their shape.
SMALL = {"23_Softmax": "x", "37_FrobeniusNorm_": "x", "39_L2Norm_": "x", "53_Min_reduction_over_a_dimension": "x[:, 0]"}
PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.up = torch.nn.Linear(wide, 3 * wide)
    def forward(self, x):
        return torch.softmax(self.up(x), -1)
wide = 1 << 14
def get_inputs():
    return [torch.rand(1024, wide)]
def get_init_inputs():
    return [wide]
"""


def of_peer(name):
    path = next(PEER.glob(f"level*/{name}.py"), None)
    return path or pytest.skip("$ASSAY_PEERS has no checkout KernelBench")


def test_a_problem_in_its_form(tmp_path):
    problem, candidate = tmp_path / "1_problem.py", tmp_path / "candidate.py"
    problem.write_text(PROBLEM)
    candidate.write_text(PROBLEM.replace("Model(", "ModelNew(").replace("self.up =", "self.other ="))
    candidate.write_text(candidate.read_text().replace("self.up(x)", "self.other(x)"))
    run = subprocess.run([sys.executable, "-m", "assay.kernelbench", problem, candidate], capture_output=True, text=True)
    score = json.loads(run.stdout)
    assert run.returncode == 0 and score["problem"] == "1_problem.py" and score["correct"] is True and len(score["trials"]) == 10
    assert {trial["what"] for trial in score["trials"]} == {"x [6, 6]", "x [128, 128]"}
    candidate.write_text(candidate.read_text().replace(", -1)", ", -1) * 0"))
    assert assay.kernelbench.evaluate(problem, candidate, trials=1).trials[0].verdict == "FAIL"


@pytest.mark.parametrize("arguments,line", [((), "usage: "), (("no.py", "no.py"), "no.py: no such file"), (("", "no.py"), "KeyError: 'get_init_inputs'")])
def test_refused(arguments, line, tmp_path):
    (tmp_path / "problem.py").write_text("Model = None\n")
    arguments = [name or str(tmp_path / "problem.py") for name in arguments]
    run = subprocess.run([sys.executable, "-m", "assay.kernelbench", *arguments], capture_output=True, text=True)
    assert run.returncode == 2 and line in run.stderr and len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", SMALL)
def test_zeros_are_no_solution(name, tmp_path):
    problem, candidate = of_peer(name), tmp_path / "candidate.py"
    candidate.write_text(ZEROS.format(SMALL[name]))
    result = assay.kernelbench.evaluate(problem, candidate, trials=2)
    assert not result and {trial.verdict for trial in result.trials} == {"FAIL"}, str(result)


@pytest.mark.parametrize("name", [*SMALL, "40_LayerNorm", "26_GELU_", "9_Matmul_Subtract_Multiply_ReLU", "1_MLP"])
def test_the_problem_itself_is_one(name, tmp_path):
    problem, candidate = of_peer(name), tmp_path / "candidate.py"
    candidate.write_text(problem.read_text().replace("Model", "ModelNew"))
    result = assay.kernelbench.evaluate(problem, candidate, trials=1)
    assert result, str(result)
