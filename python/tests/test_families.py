"""Configurations of Hugging Face's families: each kind of router by its formula, and what is refused."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import assay
import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "cases" / "hugging_face"))
import read_families

Numbers = NDArray[Any]

ROUTED = {"hidden_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
NUMBERED = {"hidden_size": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
LOCAL = {"hidden_size": 16, "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 12}
GROUPED = {**ROUTED, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}

HY = {"model_type": "hy_v3", **NUMBERED, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
      "max_position_embeddings": 64, "rope_theta": 1e4, "intermediate_size": 24, "router_scaling_factor": 2.5, "num_shared_experts": 1,
      "mlp_layer_types": ["dense", "sparse"]}  # fmt: skip


def sigmoid(x: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-x))


def softmax(x: Numbers) -> Numbers:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def best(scores: Numbers, k: int) -> Numbers:
    """1 where one of the k largest of a row is."""
    return (np.argsort(np.argsort(-scores, -1), -1) < k).astype(float)


def divided(weights: Numbers) -> Numbers:
    return weights / weights.sum(-1, keepdims=True)


def groups(scores: Numbers, count: int, kept: int) -> Numbers:
    """Experts of the groups whose two largest scores have the largest sums, the others at -inf."""
    parts = scores.reshape(len(scores), count, -1)
    stay = best(np.sort(parts, -1)[..., -2:].sum(-1), kept)
    return np.where(stay[..., None] == 1, parts, -np.inf).reshape(scores.shape)


# model type, configuration, weights [tokens, experts] of logits and bias
KINDS: list[tuple[str, dict[str, object], Any]] = [
    ("deepseek_v32", GROUPED, lambda x, b: 2.5 * divided(sigmoid(x) * best(groups(sigmoid(x) + b, 4, 2), 3))),
    ("glm_moe_dsa", {**GROUPED, "n_group": 1, "topk_group": 1}, lambda x, b: 2.5 * divided(sigmoid(x) * best(sigmoid(x) + b, 3))),
    ("lfm2_moe", {**NUMBERED, "use_expert_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.5},
     lambda x, b: (lambda w: 1.5 * w / (w.sum(-1, keepdims=True) + 1e-6))(sigmoid(x) * best(sigmoid(x) + b, 3))),
    ("minimax_m2", LOCAL, lambda x, b: divided(sigmoid(x) * best(sigmoid(x) + b, 3))),
    ("deepseek_v4", {**ROUTED, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "routed_scaling_factor": 1.5},
     lambda x, b: 1.5 * divided(np.sqrt(np.log1p(np.exp(x))) * best(np.sqrt(np.log1p(np.exp(x))) + b, 3))),
    ("flint", {**NUMBERED, "norm_topk_prob": True, "shared_expert_intermediate_size": 24}, lambda x, b: divided(sigmoid(x) * best(x, 3))),
    ("flint", {**NUMBERED, "norm_topk_prob": False, "shared_expert_intermediate_size": 24}, lambda x, b: sigmoid(x) * best(x, 3)),
    ("olmoe", {**NUMBERED, "moe_intermediate_size": None, "intermediate_size": 12, "norm_topk_prob": True}, lambda x, b: divided(softmax(x) * best(x, 3))),
    ("lara_mini", {**NUMBERED, "norm_topk_prob": False, "shared_expert_intermediate_size": 12}, lambda x, b: softmax(x) * best(x, 3)),
    ("granitemoe", LOCAL, lambda x, b: divided(softmax(x) * best(x, 3))),
    ("jamba", {**NUMBERED, "moe_intermediate_size": None, "intermediate_size": 12}, lambda x, b: softmax(x) * best(x, 3)),
    ("unlimited_ocr_text", {**ROUTED, "n_shared_experts": 2, "n_group": None, "topk_group": None, "topk_method": "greedy", "routed_scaling_factor": 2.0},
     lambda x, b: 2 * softmax(x) * best(x, 3)),
    ("longcat_flash", {"hidden_size": 16, "n_routed_experts": 8, "moe_topk": 3, "expert_ffn_hidden_size": 12, "routed_scaling_factor": 6.0, "zero_expert_num": 0},
     lambda x, b: 6 * softmax(x) * best(softmax(x) + b, 3)),
    ("llama4_text", {**LOCAL, "num_experts_per_tok": 1}, lambda x, b: x * best(x, 1)),
    ("qwen2_moe", {**NUMBERED, "norm_topk_prob": True, "shared_expert_intermediate_size": 48}, lambda x, b: divided(softmax(x) * best(x, 3))),
]


def test_table() -> None:
    """Each rule has keys of MaxText that there are, and each family what it is made of; no word is in two lists."""
    keys = {line.split(",")[0] for line in (ROOT / "docs" / "keys.csv").read_text().splitlines()} | {"shared_width", "dense_layers"}
    layers = set((ROOT / "cases" / "neutral_keys" / "hugging_face_layers.txt").read_text().split())
    families = list(read_families.read())
    assert len({family.name for family in families}) == len(families) >= 65
    for family in families:
        assert set(family.either) <= set(family.rules) and (family.because != "") == family.is_router_alone
        for name, rule in family.rules.items():
            assert set(rule.to) <= keys and len(rule.to) <= 2 and (rule.to or rule.only or rule.note), (family.name, name)
    alone = [family for family in families if family.is_moe_alone or family.is_router_alone]
    assert not {family.name for family in families} & set(read_families.refused())
    assert {name for family in alone for name in family.rules if name in layers} <= {"intermediate_size"}


def written(folder: Path, config: dict[str, object]) -> str:
    kept = {key: value for key, value in config.items() if key != "moe_intermediate_size" or value is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(kept))
    return str(path)


def opened(folder: Path, name: str, **config: object) -> assay.Case:
    return assay.case(name, model=written(folder, config), dtype="float32", precision="f32")


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind[0] for kind in KINDS])
def test_routers(kind: int, tmp_path: Path) -> None:
    model_type, config, formula = KINDS[kind]
    case = opened(tmp_path, "routing/deepseek3-groups", model_type=model_type, **config)
    given = {path: np.asarray(value, np.float64) for path, value in case.inputs().items()}
    kernel, bias = given["weights/gate/kernel"], given.get("weights/gate/bias", np.zeros(8))
    logits = given["inputs/x"].reshape(-1, 16) @ kernel
    ids, weights = case.golden("routing/selected_experts"), case.golden("outputs/weights")
    found = np.zeros_like(logits)
    np.put_along_axis(found, ids.reshape(len(logits), -1).astype(np.int64), weights.reshape(len(logits), -1), -1)
    assert np.abs(found - formula(logits, bias)).max() < 1e-12


def test_layers(tmp_path: Path) -> None:
    """Grouped queries with DeepSeek-V3's experts; layers without experts by a number, or by a list."""
    case = opened(tmp_path, "decoder_layer/qwen3", **HY)
    assert case.config["first_num_dense_layers"] == 1 and case.config["use_qk_norm"] and "weights/mlp/wi_0/kernel" in case.inputs()
    case = assay.case("decoder_layer/qwen3", model=written(tmp_path, HY), first_num_dense_layers=0, dtype="float32", precision="f32")
    assert {"weights/moe/shared_experts/wi_0/kernel", "weights/moe/gate/bias", "weights/self_attention/query_norm/scale"} <= set(case.inputs())


def test_published_keys(tmp_path: Path) -> None:
    """What files on the hub have beside transformers' own keys: groups that are not there, and layers of other kinds."""
    solar = {key: value for key, value in GROUPED.items() if "group" not in key}
    layer = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "rope_theta": 1e4}
    case = opened(tmp_path, "moe/small", model_type="solar_open", **solar, **layer, head_dim=8, intermediate_size=40, first_k_dense_replace=0)
    assert case.config["n_routing_groups"] == -1 and case.config["routed_scaling_factor"] == 2.5
    case = opened(tmp_path, "moe/small", model_type="deepseek_v32", **GROUPED, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc", index_topk=2048)
    assert case.config["n_routing_groups"] == 4
    kimi = {"num_experts_per_token": 3, "moe_renormalize": True, "num_expert_group": 1, "topk_group": 1, "num_shared_experts": 1}
    case = opened(tmp_path, "moe/small", model_type="kimi_linear", hidden_size=16, num_experts=8, moe_intermediate_size=12, routed_scaling_factor=2.0, **kimi,
                  linear_attn_config={"kda_layers": [1]}, moe_router_activation_func="sigmoid")  # fmt: skip
    assert case.config["num_experts_per_tok"] == 3 and case.config["norm_topk_prob"]


def test_experts(tmp_path: Path) -> None:
    """How wide shared experts are, which gate they have, and where experts are clamped."""
    case = opened(tmp_path, "moe/small", model_type="qwen2_moe", **NUMBERED, norm_topk_prob=True, shared_expert_intermediate_size=48)
    assert case.inputs()["weights/shared_experts/wi_0/kernel"].shape == (16, 48)
    assert "weights/shared_expert_gate/kernel" in case.inputs()
    case = opened(tmp_path, "moe/small", model_type="hy_v4", **GROUPED, swiglu_limit=10.0)
    assert case.config["mlp_activations_limit"] == 10 and case.config["shared_experts"] == 1
    parts = {"model_type": "qwen3_5_moe", "vision_config": {"depth": 2}, "text_config": {"model_type": "qwen3_5_moe_text", **NUMBERED,
             "shared_expert_intermediate_size": 12, "linear_num_key_heads": 4}}
    case = opened(tmp_path, "moe/small", **parts)
    assert case.config["num_experts"] == 8 and case.config["model_name"] == "qwen3_5_moe_text"


@pytest.mark.parametrize("name, config, words", [
    ("moe/small", {"model_type": "phimoe"}, "model_type: no operation here is of phimoe: its router masks logits by their distance"),
    ("moe/small", {"model_type": "dots2"}, "model_type: expected one that docs/hugging-face.md has, found dots2, did you mean dots1?"),
    ("moe/small", {"model_type": "llava", "text_config": {"hidden_size": 16}}, "docs/hugging-face.md has, found none"),
    ("moe/small", {"model_type": "axk1", **{**GROUPED, "n_group": 1, "topk_group": 1}}, "which is known by its router alone: op moe"),
    ("gqa/qwen3", {"model_type": "granitemoe", **LOCAL}, "decoder_block is moe_default, which has another attention"),
    ("rms_norm/deepseek", {"model_type": "granitemoe", **LOCAL}, "which is known by its router and experts alone: op rms_norm"),
    ("decoder_layer/qwen3", {"model_type": "granitemoe", **LOCAL}, "which has a layer of another form"),
    ("moe/small", {"model_type": "deepseek_v32", **GROUPED, "norm_topk_prob": False}, "norm_topk_prob is false, expected true"),
    ("moe/small", {"model_type": "deepseek_v32", **GROUPED, "n_routed_experts": None}, "n_routed_experts is null, expected a value"),
    ("moe/small", {"model_type": "deepseek_v32", **ROUTED}, "the key norm_topk_prob is missing, which a configuration of deepseek_v32 has"),
    ("moe/small", {"model_type": "deepseek_v32", **GROUPED, "num_experts_per_token": 3}, "unknown key num_experts_per_token in a configuration of deepseek_v32"),
    ("moe/small", {"model_type": "laguna", **NUMBERED, "shared_expert_intermediate_size": 12, "moe_routed_scaling_factor": 1.0,
                   "moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping: expected 0"),
    ("moe/small", {"model_type": "granitemoehybrid", **LOCAL, "shared_intermediate_size": 13}, "shared experts are 13 wide, expected a multiple of 12"),
    ("moe/small", {"model_type": "dots3_note_text", **GROUPED, "shared_experts_intermediate_size": 24}, "shared experts are 24 wide, expected 12"),
    ("moe/small", {"model_type": "mellum", **NUMBERED, "num_local_experts": 8, "norm_topk_prob": True}, "num_experts stands there too"),
    ("moe/small", {"model_type": "minimax_m2", **LOCAL, "use_routing_bias": False}, "use_routing_bias: expected true"),
    ("moe/small", {"model_type": "mistral4", **GROUPED}, "n_group: expected 1"),
    ("moe/small", {"model_type": "glm4v_moe_text", **GROUPED, "hidden_act": "gelu"}, "hidden_act: expected silu|swish"),
    ("moe/small", {**HY, "mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types: expected layers that are dense, and behind them sparse ones"),
    ("moe/small", {**HY, "mlp_layer_types": 1}, "mlp_layer_types: expected layers that are dense"),
    ("moe/small", {**HY, "first_k_dense_replace": 1}, "mlp_layer_types: first_k_dense_replace stands there too"),
    ("moe/small", {"model_type": "mixtral", "attention_multiplier": 1.0}, "the key hidden_size is missing"),
])  # fmt: skip
def test_refusals(name: str, config: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        opened(tmp_path, name, **config).golden("outputs/y")
    assert words in str(error.value)
