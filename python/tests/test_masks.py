"""Attention by a mask, as people write it: it passes against itself, and a wrong mask is called by its name."""
import math

import assay
import pytest

torch = pytest.importorskip("torch")
B, N, K, S, T, H = 2, 4, 2, 5, 8, 8


def places(queries=S, keys=T, last=True):
    return torch.arange(queries)[:, None] + (keys - queries if last else 0), torch.arange(keys)[None]


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
    "lengths": (lengths, [*LONG, torch.tensor([5, 9])], lambda q, k, v, count: lengths(q, k, v, count, 1), "one_longer"),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_mask_that_is_traced_rejects_another_alone(name):
    function, example, wrong, mutant = TRACED[name]
    for precision in ("bf16", "f16", "f32"):
        assay.assert_correct(in_float32(function), function, example, precision=precision)
    with pytest.raises(assay.Mismatch, match=mutant):
        assay.assert_correct(in_float32(wrong), function, example, precision="bf16")
