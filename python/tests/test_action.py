"""The steps of action.yml, run as a runner of GitHub does; what it uses of others (the cache, the artifact) is left out."""
import os
import re
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("ASSAY_PROGRAM", ROOT / "build/release/harness/assay"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
BACKEND = f"/usr/bin/python3 {ROOT}/harness/backends/numpy/"


def run(folder, **given):
    """The status of the first step that fails, or 0."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built")
    inputs = {name: str(given.get(name, spec.get("default"))) for name, spec in ACTION["inputs"].items()}
    assert all(name in ACTION["inputs"] for name in given)
    where = {"github.action_path": str(ROOT), "github.action_ref": "v0", **{f"inputs.{name}": value for name, value in inputs.items()}}

    def filled(text):
        return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda match: where[match[1]], str(text))

    (folder / "bin").mkdir(exist_ok=True)
    if not (folder / "bin/assay").exists():
        (folder / "bin/assay").symlink_to(PROGRAM)
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_PATH": str(folder / "path")}
    status = 0
    for step in ACTION["runs"]["steps"]:
        for value in step.get("with", {}).values():
            filled(value)
        if "run" in step and status == 0:
            assert step["shell"] == "bash"
            own = {key: filled(value) for key, value in step.get("env", {}).items()}
            status = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(step["run"])], cwd=folder, env={**environment, **own}).returncode
        else:
            assert "run" in step or re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
    return status


def test_a_right_backend_and_a_wrong_one(tmp_path):
    cases = "rms_norm/deepseek mlp/primes"
    assert run(tmp_path, cases=cases, backend=BACKEND + "backend.py {request} {candidate}") == 0
    reports = tmp_path / "assay-reports"
    assert 'failures="0"' in (reports / "assay.xml").read_text() and "2 passed, 0 failed" in (tmp_path / "summary.md").read_text() and (reports / "assay.html").exists()
    golden = next((tmp_path / "assay-goldens").rglob("*.h5"))
    made = golden.stat().st_mtime_ns
    assert run(tmp_path, cases=cases, backend=BACKEND + "planted_bugs.py last_tile_dropped {request} {candidate}", shard="1/1", reports="other") == 1
    assert golden.stat().st_mtime_ns == made and "<failure" in (tmp_path / "other/assay.xml").read_text()


def test_a_server_and_known_failures(tmp_path):
    (tmp_path / "known.txt").write_text("mlp/silu this one is broken\n")
    assert run(tmp_path, cases="mlp/silu", backend="false {request} {candidate}", known="known.txt") == 3  # nothing was shown of a kernel
    assert run(tmp_path, cases="mlp/silu", backend=BACKEND + "backend.py", serve="true", reports="served") == 0
    assert run(tmp_path, cases="mlp/silu", backend=BACKEND + "backend.py", serve="true", known="nowhere.txt") == 2
