"""Merges of attention states as kernels write them, where log-sum-exps are large: all of them pass."""
import math

import assay
import pytest

torch = pytest.importorskip("torch")

CASE = """
case: test/merge
op: merge_states
model: {base_num_query_heads: 2, v_head_dim: 16, num_states: 3}
batch: 2
sequence: 127
profiles: [f32]
dtype: float32
gradients: none
"""
LOG2_E = torch.tensor(1 / math.log(2))


def by_shares(out, lse):
    return torch.softmax(lse, 0), torch.logsumexp(lse, 0)


def by_whole(out, lse):
    whole = torch.logsumexp(lse, 0)
    return torch.exp(lse - whole), whole


def in_base_2(out, lse):
    whole = torch.logsumexp(lse, 0)
    return torch.exp2(lse * LOG2_E - whole * LOG2_E), whole


def in_pairs(out, lse):
    weights, whole = torch.ones_like(lse), lse[0]
    for part in range(1, len(lse)):
        merged = torch.logaddexp(whole, lse[part])
        weights[:part] *= torch.exp(whole - merged)
        weights[part] = torch.exp(lse[part] - merged)
        whole = merged
    return weights, whole


@pytest.mark.parametrize("merge", [by_shares, by_whole, in_base_2, in_pairs])
@pytest.mark.parametrize("mean", [100.0, 5000.0])
def test_merges(merge, mean, tmp_path):
    (tmp_path / "case.yml").write_text(CASE)
    for seed in range(1, 5):
        fill = {"partial_lse": {"distribution": "normal", "scale": 3.0, "mean": mean}}
        case = assay.case(str(tmp_path / "case.yml"), precision="f32", seed=seed, inputs=fill)
        given = case.inputs(torch)
        out, lse = given["inputs/partial_out"], given["inputs/partial_lse"]
        weights, whole = merge(out, lse)
        merged = sum(o * w.transpose(1, 2)[..., None] for o, w in zip(out, weights))
        case.check({"outputs/attention_out": merged, "outputs/lse": whole})


def decode(given, scale, parts, merge):
    """[B,N,R] and [B,N] of a cache whose splits are merged."""
    outs, lses = [], []
    for query, pages, length in zip(given["inputs/query"][:, 0], given["inputs/block_table"], given["inputs/cache_seqlens"]):
        keys = given["inputs/kv_cache"][pages.long().clamp(min=0)].flatten(0, 1)[: int(length)]
        scores = (query @ keys.T) * scale
        ends = [len(keys) * i // parts for i in range(parts + 1)]
        out = torch.stack([torch.softmax(scores[:, a:b], 1) @ keys[a:b, :16] for a, b in zip(ends, ends[1:])])
        lse = torch.stack([torch.logsumexp(scores[:, a:b], 1) for a, b in zip(ends, ends[1:])])
        weights, whole = merge(out, lse)
        outs.append((out * weights[..., None]).sum(0))
        lses.append(whole)
    return torch.stack(outs)[:, None], torch.stack(lses)[..., None]


@pytest.mark.parametrize("merge", [by_shares, by_whole, in_base_2, in_pairs])
def test_splits_of_a_cache(merge):
    scale = 12**-0.5 * (0.1 * math.log(40) + 1) ** 2
    for seed in range(1, 7):
        case = assay.case("mla_decode/large-scores", precision="f32", seed=seed, dtype="float32")
        given = case.inputs(torch)
        for parts in (2, 3, 4):
            out, lse = decode(given, torch.tensor(scale), parts, merge)
            case.check({"outputs/attention_out": out, "outputs/lse": lse})


def test_pairs_with_stored_gradients():
    """Back through pairs what flows to the parts before is stored each time."""
    for seed in range(1, 9):
        case = assay.case("merge_states/splits", precision="bf16", seed=seed)
        given = {path: value.float().requires_grad_(True) for path, value in case.inputs(torch).items()}
        out, lse = given["inputs/partial_out"], given["inputs/partial_lse"]
        stored = Stored.apply
        merged, whole = out[0], lse[0]
        for part in range(1, len(lse)):
            both = torch.logaddexp(whole, lse[part])
            weight = lambda of: torch.exp(of - both).transpose(1, 2)[..., None]
            merged, whole = stored(merged * weight(whole) + out[part] * weight(lse[part])), both
        dy = case.cotangents(torch)
        d_out, d_lse = torch.autograd.grad([merged, whole], [out, lse], [dy["cotangents/attention_out"].float(), dy["cotangents/lse"].float()])
        case.check({
            "outputs/attention_out": merged.detach().bfloat16(),
            "outputs/lse": whole.detach(),
            "gradients/inputs/partial_out": d_out.bfloat16(),
            "gradients/inputs/partial_lse": d_lse.bfloat16(),
        })


class Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().float()

    @staticmethod
    def backward(ctx, dy):
        return dy.bfloat16().float()
