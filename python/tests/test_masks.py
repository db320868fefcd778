"""Attention by a mask: `assay.step` against its definition, attention as people write it against itself, and wrong masks by their names."""
import math

import assay
import numpy as np
import pytest

torch = pytest.importorskip("torch")
B, N, K, S, T, H = 2, 4, 2, 5, 8, 8
SEGMENTS = torch.tensor([[1, 1, 1, 2, 2], [1, 2, 2, 0, 3]]), torch.tensor([[1, 1, 1, 1, 1, 1, 2, 2], [1, 2, 2, 2, 2, 2, 0, 0]])


def places(queries=S, keys=T, last=True):
    return torch.arange(queries)[:, None] + (keys - queries if last else 0), torch.arange(keys)[None]


def attention(q, k, v, seen, bias=0.0, sinks=None, cap=0.0, scale=H**-0.5):
    """By definition: [B,S,N,H], and the log of the sum of exponentials. A query that sees nothing has 0, and the log of 0."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bsnh,btnh->bnst", q, k) * scale
    scores = (cap * torch.tanh(scores / cap) if cap else scores) + bias
    any_seen = seen.any(-1, keepdim=True)
    scores = torch.where(seen, scores, torch.where(any_seen, -math.inf, 0.0).to(scores.dtype))
    lse = scores.logsumexp(-1)
    gate = torch.sigmoid(lse - sinks[:, None]) if sinks is not None else torch.ones_like(lse)
    out = torch.einsum("bnst,btnh->bsnh", scores.softmax(-1) * any_seen, v) * gate.transpose(1, 2)[..., None]
    return out, lse.masked_fill(~any_seen[..., 0].expand(lse.shape), -math.inf)


def same(segments):
    return ((segments[0][:, :, None] == segments[1][:, None]) & (segments[1][:, None] > 0))[:, None]

i, j = places()
first, _ = places(last=False)
RULES = {  # parameters, operands behind the value, and what is seen
    "causal": ({}, (), j <= i),
    "causal_first": ({"mask": "causal_first"}, (), j <= first),
    "full": ({"mask": "full"}, (), (j >= 0).expand(S, T)),
    "window": ({"window": 3}, (), (j <= i) & (i - j < 3)),
    "both_sides": ({"mask": "full", "window": 2}, (), (i - j).abs() < 2),
    "chunk": ({"chunk": 3}, (), (j <= i) & (i // 3 == j // 3)),
    "prefix": ({"window": 2, "prefix": 2}, (), ((j <= i) & (i - j < 2)) | (j < 2)),
    "documents": ({"mask": "full"}, ("of", "own"), same(SEGMENTS)),
    "packed": ({"mask": "causal_first"}, ("of", "own"), same(SEGMENTS) & (j <= first)),
    "sinks": ({"soft_cap": 2.0, "scale": 0.7}, ("sinks",), j <= i),
    "bias": ({}, ("bias", "sinks"), j <= i),
}
GIVEN = {"of": SEGMENTS[0], "own": SEGMENTS[1], "sinks": torch.ones(N), "bias": torch.ones(N, S, T)}


@pytest.mark.parametrize("name", RULES)
def test_a_mask_is_what_its_rule_says(name):
    parameters, operands, seen = RULES[name]
    settings = {"cap": parameters.get("soft_cap", 0.0), "scale": parameters.get("scale", H**-0.5)}

    def reference(q, k, v, one=None, two=None):
        return assay.step("attention", q, k, v, *(x for x in (one, two) if x is not None), **parameters)

    def kernel(q, k, v, *others):
        given = dict(zip(operands, others))
        return attention(q, k, v, seen, given.get("bias", 0.0), given.get("sinks"), **settings)[0]

    def beside(q, k, v, *others):
        return kernel(q, k.roll(1, 1), v.roll(1, 1), *others)

    def as_example(function):  # segments as they are, whatever is drawn
        if operands[:1] != ("of",):
            return function
        return lambda q, k, v: function(q, k, v, *SEGMENTS)

    tensors = [torch.ones(B, S, N, H), torch.ones(B, T, K, H), torch.ones(B, T, K, H)]
    example = tensors + ([] if operands[:1] == ("of",) else [GIVEN[x] for x in operands])
    assay.assert_correct(as_example(kernel), as_example(reference), example, precision="f32")
    if name != "full":
        with pytest.raises(assay.Mismatch):
            assay.assert_correct(as_example(beside), as_example(reference), example, precision="f32")


def test_the_step_takes_masks_of_ones_own():
    def reference(q, k, v, seen):
        return assay.step("attention", q, k, v, seen != 0, mask="full")

    def kernel(q, k, v, seen):
        return attention(q, k, v, (seen != 0)[None, None])[0]

    shown = (torch.arange(T) % 2).expand(S, T).contiguous()
    shown[2] = 0  # a query that sees nothing
    example = [torch.ones(B, S, N, H), torch.ones(B, T, K, H), torch.ones(B, T, K, H), shown]
    assay.assert_correct(kernel, reference, example, precision="f32")
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda q, k, v, seen: kernel(q, k, v, 1 - seen), reference, example, precision="f32")


def test_self_attention_and_its_sums():
    own = assay.trace(lambda x: {"y": assay.step("attention", x, x, x, mask="full"), "l": assay.step("attention_lse", x, x, x, chunk=4)}, {"x": torch.ones(B, S, N, H)})
    with own.case(precision="f32") as case:
        x = case.inputs(torch, requires_grad=True)["inputs/x"].float()
        whole, _ = attention(x, x, x, torch.ones(S, S, dtype=torch.bool))
        chunks = torch.arange(S)[:, None] // 4 == torch.arange(S) // 4
        case.check({"outputs/y": whole, "outputs/l": attention(x, x, x, chunks & torch.ones(S, S).tril().bool())[1]}, gradients=False)


def test_a_bias_of_one_batch_and_a_mask_of_queries_alone():
    def reference(q, k, v, bias, hidden):
        return assay.step("attention", q, k, v, bias, hidden == 0, mask="full", soft_cap=3.0)

    def kernel(q, k, v, bias, hidden):
        return attention(q, k, v, (hidden == 0).expand(B, 1, S, T), bias, cap=3.0)[0]

    hidden = (torch.arange(S) == 2).int()[:, None].contiguous()  # a query that sees nothing
    example = [torch.ones(B, S, N, H), torch.ones(B, T, K, H), torch.ones(B, T, K, H), torch.ones(1, N, 1, T), hidden]
    assay.assert_correct(kernel, reference, example, precision="f32")
    whole = assay.trace(lambda q: assay.step("attention", q, q, q, -(torch.arange(S)[:, None] - torch.arange(S)).abs() * 1.0, mask="full"), {"q": torch.ones(B, S, N, H)})
    with whole.case(precision="f32") as case:  # a bias that follows from whole numbers is no mask
        q = case.inputs(torch)["inputs/q"].float()
        distance = -(torch.arange(S)[:, None] - torch.arange(S)).abs()
        case.check({"outputs/y": attention(q, q, q, torch.ones(S, S, dtype=torch.bool), distance)[0]}, gradients=False)


def test_the_plain_form_is_the_masked_one():
    """Which the first form has as other steps, and the second form as another formula."""
    text = """case: mine/both
op: program
sizes: {B: 2, S: 9, T: 9, N: 4, K: 2, H: 8}
inputs: {q: [B, S, N, H], k: [B, S, K, H], v: [B, S, K, H], of: {axes: [B, S], integers: [0, 2]}, own: {axes: [B, T], integers: [0, 2]}}
weights: {sinks: [N]}
steps:
  a: reshape("BTKH", k)
  b: reshape("BTKH", v)
outputs:
  x: attention(q, k, v, of, sinks, window=4, soft_cap=3)
  z: attention(q, a, b, of, own, sinks, window=4, soft_cap=3)
  l: attention_lse(q, k, v, window=4)
  y: attention_lse(q, a, b, window=4)
"""
    segments = "values: [1, 1, 1, 2, 2, 2, 2, 0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 1]}"
    text = text.replace("2]}, own", f"2], {segments}, own").replace("2]}}", f"2], {segments}}}")
    with assay.case(text, precision="f32") as case:
        for plain, masked in (("x", "z"), ("l", "y")):
            np.testing.assert_allclose(case.golden(f"outputs/{plain}"), case.golden(f"outputs/{masked}"), rtol=1e-12, atol=1e-13)


def test_a_mask_is_one_step_whose_bugs_have_its_name():
    def reference(q, k, v):
        o = assay.step("attention", q, k, v, window=3)
        return o * 2.0

    example = [torch.ones(B, S, N, H), torch.ones(B, T, K, H), torch.ones(B, T, K, H)]
    assert "  o: attention(q, k, v, window=3)" in str(assay.trace(reference, example))
    for seen, name in (((j <= i) & (i - j < 4), "step:o.less2?:one_longer"), (j <= i, "step:o.less2?:always"), ((j <= first) & (first - j < 3), "")):
        with pytest.raises(assay.Mismatch, match=name):
            assay.assert_correct(lambda q, k, v: attention(q, k, v, seen)[0] * 2.0, reference, example, precision="f32")


WRONG = {"mask=triangle": "mask is triangle, expected causal", "window=-1": "window is -1, expected a whole number", "causal=True": "no parameter causal",
         "mask=full prefix=2": "a prefix widens"}


@pytest.mark.parametrize("said", WRONG)
def test_what_no_mask_is_refused(said):
    parameters = {k: int(v) if v.lstrip("-").isdigit() else v for k, v in (word.split("=") for word in said.split())}
    with pytest.raises(assay.BadInput, match=WRONG[said]):
        assay.trace(lambda q, k: assay.step("attention", q, k, k, **parameters), {"q": torch.ones(B, S, N, H), "k": torch.ones(B, T, N, H)})


def soft(scores, v, hidden=None):
    return torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -math.inf), -1) @ v


def scores_of(q, k):
    return q @ k.transpose(-2, -1) * H**-0.5


def causal(q, k, v):
    i, j = places(q.shape[-2], k.shape[-2])
    return soft(scores_of(q, k), v, j > i)


def causal_first(q, k, v):
    return soft(scores_of(q, k), v, torch.ones(q.shape[-2], k.shape[-2]).tril() == 0)


def window(width):
    def f(q, k, v):
        i, j = places(q.shape[-2], k.shape[-2])
        return soft(scores_of(q, k), v, ~((j <= i) & (i - j < width)))
    return f


def alibi(slopes):
    def f(q, k, v):
        i, j = places(q.shape[-2], k.shape[-2])
        bias = torch.tensor(slopes, dtype=torch.float64)[:, None, None] * (j - i)
        return soft(scores_of(q, k) + bias.to(q.dtype), v, j > i)
    return f


def prefix(q, k, v):
    i, j = places(q.shape[-2], k.shape[-2])
    return soft(scores_of(q, k), v, ~((j <= i) | (j < 5)))


def varlen(q, k, v, ends):
    i, j = places(q.shape[-2], k.shape[-2])
    document = torch.bucketize(torch.arange(q.shape[-2]), ends[1:], right=True)
    return soft(scores_of(q, k), v, ~((document[:, None] == document) & (j <= i)))


def lengths(q, k, v, count, more=0):
    """Queries behind the length see nothing, and give 0."""
    seen = (torch.arange(q.shape[-2])[:, None] < count[:, None, None, None]) & (torch.arange(k.shape[-2]) < count[:, None, None, None] + more)
    low = torch.finfo(q.dtype).min
    return torch.softmax(scores_of(q, k).masked_fill(~seen, low), -1).masked_fill(~seen, 0.0) @ v


def loop(q, k, v):
    out = torch.full_like(q, 0.3)
    out[1] = 0.7  # a table of constants that is written over
    for low, high in ((0, 4), (4, 9)):
        out[low:high] = causal(*(x[low:high].transpose(0, 1) for x in (q, k, v))).transpose(0, 1)
    return out


def in_float32(function):
    """As kernels compute; PyTorch on a processor may lack products of float16."""
    def kernel(q, k, v, *others):
        return function(q.float(), k.float(), v.float(), *others).to(q.dtype)
    return kernel


LONG = [torch.ones(B, N, 9, H)] * 3
SHORT = [torch.ones(B, N, S, H), *[torch.ones(B, N, T, H)] * 2]
TRACED = {  # a function, its example, a wrong form and the mutant that it is
    "alignment": (causal, SHORT, causal_first, "other_alignment"),
    "causal": (causal, LONG, lambda q, k, v: soft(scores_of(q, k), v), "always"),
    "window": (window(3), LONG, window(4), "one_longer|one_shorter"),
    "shorter": (window(3), LONG, window(2), "one_longer|one_shorter"),
    "alibi": (alibi([0.5**(h + 1) for h in range(N)]), LONG, alibi([0.5**(N - h) for h in range(N)]), ""),
    "prefix": (prefix, LONG, causal, "never"),
    "documents": (varlen, [*LONG, torch.tensor([0, 3, 4, 7, 9])], lambda q, k, v, ends: causal(q, k, v), "always"),
    "loop": (loop, [torch.ones(9, N, H)] * 3, lambda q, k, v: causal(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1), ""),
    "lengths": (lengths, [*LONG, torch.tensor([5, 9])], lambda q, k, v, count: lengths(q, k, v, count, 1), "one_longer"),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_mask_that_is_traced_rejects_another_alone(name):
    function, example, wrong, mutant = TRACED[name]
    for precision in ("bf16", "f16", "f32"):
        assay.assert_correct(in_float32(function), function, example, precision=precision)
    with pytest.raises(assay.Mismatch, match=mutant):
        assay.assert_correct(in_float32(wrong), function, example, precision="bf16")


flex = pytest.importorskip("torch.nn.attention.flex_attention") if hasattr(torch.nn, "attention") else None
LENGTH = 8
OWNER = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
SLOPES = torch.tensor([0.5, 0.25])
SEEN = {"causal": lambda b, h, i, j: i >= j, "window": lambda b, h, i, j: (i >= j) & (i - j < 3), "prefix": lambda b, h, i, j: (i >= j) | (j < 2),
        "documents": lambda b, h, i, j: (OWNER[i] == OWNER[j]) & (i >= j), "late": lambda b, h, i, j: (i >= j) & (i > 1)}
SCORED = {"alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i), "cap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
          "hidden": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf"))}


@pytest.mark.skipif(flex is None, reason="PyTorch before 2.5 has no flex_attention")
@pytest.mark.parametrize("name", [*SEEN, *SCORED])
def test_flex_attention_is_traced(name):
    """Its rules of places against the same attention by a mask; each query later by one is none."""
    rule, score = SEEN.get(name, SEEN["causal"]), SCORED.get(name)

    def reference(q, k, v):
        mask = flex.create_block_mask(rule, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8)
        out, aux = flex.flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=True, return_aux=flex.AuxRequest(lse=True))
        return {"y": out, "sums": aux.lse} if name != "late" else out  # of nothing seen -inf

    def kernel(q, k, v, later=0):
        h, i, j = torch.arange(2)[:, None, None], torch.arange(LENGTH)[:, None] + later, torch.arange(LENGTH)[None]
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) / 8**0.5
        scores = scores if score is None else score(scores, 0, h, i.clamp(max=LENGTH - 1), j)
        seen = rule(0, 0, i.clamp(max=LENGTH - 1), j)
        scores = scores.masked_fill(~seen, -1e30)
        out = (torch.softmax(scores, -1) @ v) * seen.any(-1, keepdim=True)
        return {"y": out, "sums": torch.logsumexp(scores, -1)} if name != "late" else out

    example = (torch.randn(2, 2, LENGTH, 8), torch.randn(2, 1, LENGTH, 8), torch.randn(2, 1, LENGTH, 8))
    assert assay.assert_correct(kernel, reference, example, precision="f32").verdict == "PASS"
    assert assay.assert_correct(reference, reference, example, precision="f32", gradients=False).verdict == "PASS"
    if name != "cap":
        with pytest.raises(assay.Mismatch):
            assay.assert_correct(lambda *given: kernel(*given, later=1), reference, example, precision="f32")
