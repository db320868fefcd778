"""What a kernel has, key by key."""
from __future__ import annotations

from typing import Any

import assay
import pytest


def skipped(name: str, supports: dict[str, Any], **overrides: Any) -> str:
    """The reason; empty where the case is run."""
    try:
        assay.case(name, supports=supports, cache="", **overrides)
    except assay.Unsupported as why:
        return str(why)
    return ""


FORMATS = ["fp8_e4m3_128x128", "mxfp4"]


@pytest.mark.parametrize(
    "name, supports, reason",
    [
        ("moe/mixtral", {}, ""),
        ("moe/mixtral", {"capacity_factor": -1}, ""),
        ("moe/deepseek3-capacity", {"capacity_factor": -1}, "unsupported: capacity_factor is 1.25 (supported: -1)"),
        ("moe/deepseek3-capacity", {"capacity_factor": None}, "unsupported: capacity_factor is 1.25 (supported: none)"),
        ("moe/deepseek3-capacity", {"capacity_factor": [None, 1.25]}, ""),
        ("moe/deepseek3-capacity", {"num_experts": 16, "decoder_block": "deepseek"}, ""),  # of others nothing is said
        ("moe/mixtral", {"decoder_block": ["deepseek", "mixtral"]}, ""),
        ("moe/mixtral", {"decoder_block": ["deepseek", "gpt_oss"]}, "unsupported: decoder_block is mixtral (supported: ['deepseek', 'gpt_oss'])"),
        ("moe/mixtral", {"decoder_block": "mix"}, "unsupported: decoder_block is mixtral (supported: mix)"),
        ("moe/mixtral", {"quant_formats": None, "quant_recipe": None, "quant_hidden_format": None}, ""),
        ("moe/deepseek3-fp8", {"quant_formats": None}, "unsupported: quant_formats.weights/wi_0 is fp8_e4m3_128x128 (supported: none)"),
        ("moe/deepseek3-fp8", {"quant_formats": FORMATS}, ""),
        ("moe/deepseek3-fp8", {"quant_formats": {"weights/wo": "mxfp4"}}, "unsupported: quant_formats.weights/wo is fp8_e4m3_128x128 (supported: mxfp4)"),
        ("moe/recipe-fp8-full", {"quant_recipe": None}, "unsupported: quant_recipe is fp8_full (supported: none)"),
        ("moe/mixtral", {"mesh": None}, ""),
        ("moe/mesh-hash", {"mesh": 1}, "unsupported: mesh.expert is 4 (supported: 1)"),
        ("moe/mesh-hash", {"mesh": {"expert": [1, 4]}}, ""),
        ("moe/mixtral", {"sequence": lambda n: n % 2 == 0, "num_experts": range(1, 9)}, ""),
        ("moe/mixtral", {"num_experts": lambda n: n % 3 == 0}, "unsupported: num_experts is 8"),
        ("mlp/silu", {"mlp_activations": ["silu", "linear"]}, ""),
        ("mlp/silu", {"mlp_activations": [["gelu", "linear"], "silu,linear"]}, ""),
        ("mlp/silu", {"mlp_activations": [["gelu", "linear"]]}, "unsupported: mlp_activations is ['silu', 'linear'] (supported: [['gelu', 'linear']])"),
        ("moe/given-ids", {"inputs": "x"}, "unsupported: inputs/selected_experts is given (supported: x)"),
        ("moe/given-ids", {"inputs": ["x", "selected_experts"]}, ""),
    ],
)
def test_supports(name: str, supports: dict[str, Any], reason: str) -> None:
    assert skipped(name, supports) == reason


def test_overrides_are_looked_at() -> None:
    assert skipped("moe/mixtral", {"sequence": 16}, sequence=17) == "unsupported: sequence is 17 (supported: 16)"


@pytest.mark.parametrize(
    "supports, words",
    [
        ({"capacity_facto": -1}, "unknown key capacity_facto, did you mean capacity_factor"),
        ({"quant_format.weights/wo": None}, "unknown key quant_format.weights/wo"),
        ({"mesh": {"experts": 1}}, "unknown key mesh.experts, did you mean mesh.expert"),
        ({3: 1}, "unknown key 3"),
        (["capacity_factor"], "supports is list, expected a dict"),
    ],
)
def test_refused(supports: Any, words: str) -> None:
    for make in (lambda: assay.case("mlp/silu", supports=supports), lambda: assay.cases("mlp/silu", supports=supports)):
        with pytest.raises(assay.BadInput, match=words):
            make()


def test_of_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import assay
        @assay.cases("rms_norm/*", supports={"base_emb_dim": lambda width: width % 2 == 0, "dtype": "bfloat16"})
        def test_norm(case):
            assert case.config["dtype"] == "bfloat16" and case.config["base_emb_dim"] % 2 == 0
        """
    )
    result = pytester.runpytest_inprocess("-q", "-rs", "-p", "assay.pytest_plugin")
    outcomes = result.parseoutcomes()
    assert result.ret == 0 and outcomes["passed"] > 3 and outcomes["skipped"] > 1
    result.stdout.fnmatch_lines(["SKIPPED*unsupported: dtype is float32 (supported: bfloat16)"])
