"""torch_decode.py over the catalogue: python3 -m pytest test_torch_decode.py (-n 2 with pytest-xdist)."""
import math

import assay
import pytest
import torch
from torch_decode import SUPPORTS, decode


def scale_of(config):
    """Of the model: never that of the absorbed query's width. YaRN's factor is in it, squared."""
    if config["query_pre_attn_scalar"]:
        return config["query_pre_attn_scalar"]
    if config["head_dim"]:
        return config["head_dim"] ** -0.5
    longer = config["max_position_embeddings"] > config["original_max_position_embeddings"] and config["rope_factor"] > 1
    m = 0.1 * config["mscale"] * math.log(config["rope_factor"]) + 1 if longer else 1
    return (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5 * m**2


@assay.cases("mla_decode/*", "gqa_decode/*", precision="bf16", supports=SUPPORTS)
def test_decode(case):
    case.check(decode(case.inputs(torch), case.config, scale_of(case.config)))


def test_a_reader_of_powers_is_named():
    case = assay.case("mla_decode/fp8-ds-mla", precision="bf16")
    with pytest.raises(assay.Mismatch, match="known bug cache_scales_as_e8m0"):
        case.check(decode(case.inputs(torch), case.config, scale_of(case.config), powers=True))
