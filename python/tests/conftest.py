from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all tests of the run, and none of the user's."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
