"""Every format of a cache has a case with a block of zeros and one of subnormal numbers, which are written."""
import assay
import numpy as np
import pytest

CASES = {
    "fp8-ds-mla": "kv_c", "fp8-ds-mla-vllm": "kv_c", "fp8-model1": "kv_c", "mxfp8": "kv_c", "fp8-indexer": "key",
    "fp4-indexer-zeros": "key", "fp8-tokens": "key", "fp8-heads": "key", "nvfp4": "key",
}


def rows(case, name):
    """The largest magnitude of each row, and its slot."""
    given = case.inputs()
    slots = given["inputs/slot_mapping"].ravel()
    x = given[f"inputs/{name}"]
    x = (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x
    return np.abs(x.reshape(len(slots), -1, x.shape[-1])).max(2), slots


@pytest.mark.parametrize("name", CASES)
def test_blocks_at_the_end_of_the_range(name):
    largest, slots = rows(assay.case(f"cache_append/{name}", precision="f32"), CASES[name])
    written = largest[slots >= 0]
    assert (written == 0).any() and ((written > 0) & (written < 2.0**-126)).any()


def test_scale_of_zeros():
    """Before its pull request 49435 vLLM's writer took amax / 448, but FLT_MIN at least: the least normal number of float32."""
    case = assay.case("cache_append/fp8-ds-mla-vllm", precision="f32")
    largest, slots = rows(case, "kv_c")
    tokens = case.config["pagedattn_tokens_per_page"]
    pages = case.golden("outputs/kv_cache").astype(np.uint8).reshape(2, case.config["pagedattn_page_stride"], 656)
    for row, slot in enumerate(slots):
        if slot >= 0 and largest[row] < 2.0**-126:
            scales = pages[slot // tokens, slot % tokens, 512:528].copy().view(np.uint32)
            assert (scales == 0x00800000).all()
