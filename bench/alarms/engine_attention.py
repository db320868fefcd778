"""Causal attention in the forms that engines have, on [B, N, S, .]: whole rows, an online softmax over tiles of keys, parts of the keys
merged by their log-sum-exps (split KV), the order of a ring; backward by autograd or from the log-sum-exp."""
import math

import torch


def pieces(ar, form, length):
    """Keys in the order in which they are met: for whole rows all at once, for a ring another order for each block of queries."""
    f = ar.forms
    if form == "whole":
        return [(slice(0, length), [slice(0, length)])]
    size = -(-length // f.parts) if form == "split_kv" else f.tile
    parts = [slice(i, min(i + size, length)) for i in range(0, length, size)]
    if form != "ring":
        return [(slice(0, length), [parts[i] for i in f.order(len(parts))] if form == "split_kv" else parts)]
    return [(rows, [parts[(i - turn) % len(parts)] for turn in range(len(parts))]) for i, rows in enumerate(parts)]


def finite(x):
    return torch.where(torch.isinf(x), torch.zeros_like(x), x)


def one_part(ar, scores, value):
    """Of some keys the unnormalised sum, its maximum [.., 1] and the sum of exponentials."""
    largest = finite(scores.amax(-1, keepdim=True)).detach()
    e = ar.exp(scores - largest)
    return ar.product(e, value), largest, e.sum(-1, keepdim=True)


def online(ar, scores, value, parts):
    """One tile after the other, with what there is shrunk to the new maximum. -> out, lse [..., 1]"""
    out = total = largest = None
    for keys in parts:
        o, m, s = one_part(ar, scores[..., keys], value[..., keys, :])
        m = torch.where(s == 0, torch.full_like(m, -math.inf), m)  # a tile that is seen by nobody
        if out is None:
            out, total, largest = o, s, m
            continue
        grown = torch.maximum(largest, m)
        old, new = ar.exp(largest - finite(grown)), ar.exp(m - finite(grown))
        out, total, largest = out * old + o * new, total * old + s * new, grown
    empty = total == 0
    one = torch.where(empty, torch.ones_like(total), total)
    return torch.where(empty, torch.zeros_like(out), out / one), torch.where(empty, -math.inf, finite(largest) + torch.log(one))


def split(ar, scores, value, parts):
    """Each part is done by itself, and the parts are merged by their log-sum-exps."""
    outs, sums = [], []
    for keys in parts:
        o, m, s = one_part(ar, scores[..., keys], value[..., keys, :])
        empty = s == 0
        one = torch.where(empty, torch.ones_like(s), s)
        outs.append(o / one)
        sums.append(torch.where(empty, torch.full_like(s, -math.inf), m + torch.log(one)))
    lses = torch.cat(sums, -1)
    largest = finite(lses.amax(-1, keepdim=True)).detach()
    weights = ar.exp(lses - largest)
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    lse = largest + torch.log(torch.where(empty, torch.ones_like(total), total))
    merged = ar.in_turn([o * ar.exp(lses[..., i : i + 1] - lse) for i, o in enumerate(outs)])
    return merged, torch.where(empty, torch.full_like(lse, -math.inf), lse)


def forward(ar, form, scores, value):
    """-> out and lse [..., 1]; rows that see nothing have 0 and -inf."""
    length, rows_of = scores.shape[-1], []
    for rows, parts in pieces(ar, form, length):
        rows_of.append((split if form == "split_kv" else online)(ar, scores[..., rows, :], value, parts))
    out, lse = (torch.cat(x, -2) for x in zip(*rows_of))
    return out, lse


class Flash(torch.autograd.Function):
    """Forward in any form; backward from the log-sum-exp and rowsum(dO O), which takes out again that such probabilities do not add up to 1. scores [B,N,S,S] come masked with -inf."""

    @staticmethod
    def forward(ctx, scores, value, ar):
        out, lse = forward(ar, ar.forms.attention, scores, value)
        ctx.ar = ar
        ctx.save_for_backward(scores, value, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        (scores, value, out, lse), ar = ctx.saved_tensors, ctx.ar
        p = torch.where(torch.isinf(lse), torch.zeros_like(scores), ar.exp(scores - finite(lse)))
        d_out = ar.operand(d_out)
        dp = ar.contract(d_out, ar.operand(value).transpose(-1, -2))
        delta = (d_out * ar.store(out)).sum(-1, keepdim=True)
        d_value = ar.contract(ar.operand(p).transpose(-1, -2), d_out)
        return p * (dp - delta + d_lse), d_value, None


class FlashSinks(torch.autograd.Function):
    """With a sink [N,1,1], one more score whose value is 0: out is shrunk by sigmoid(lse - sink), lse stays as it was."""

    @staticmethod
    def forward(ctx, scores, value, sink, ar):
        out, lse = forward(ar, ar.forms.attention, scores, value)
        share = torch.sigmoid(lse - sink)
        out = out * share
        ctx.ar = ar
        ctx.save_for_backward(scores, value, sink, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        (scores, value, sink, out, lse), ar = ctx.saved_tensors, ctx.ar
        p = torch.where(torch.isinf(lse), torch.zeros_like(scores), ar.exp(scores - finite(lse)))
        kept = torch.sigmoid(lse - sink)
        d_out = ar.operand(d_out)
        dp = ar.contract(d_out, ar.operand(value).transpose(-1, -2))
        delta = (d_out * ar.store(out)).sum(-1, keepdim=True)
        d_value = ar.contract(ar.operand(p * kept).transpose(-1, -2), d_out)
        lost = (delta * torch.sigmoid(sink - lse)).transpose(0, 1).reshape(len(sink), -1)
        return p * (kept * (dp - delta) + d_lse), d_value, -ar.total(lost.t()).view_as(sink), None


def with_column(ar, scores, value, sink):
    """The sink as one more score, by autograd."""
    column = sink.expand(*scores.shape[:-1], 1)
    both = torch.cat([scores, column], -1)
    e = ar.exp(both - finite(both.amax(-1, keepdim=True)).detach())
    p = e[..., :-1] / e.sum(-1, keepdim=True)
    return ar.product(p, value), torch.logsumexp(scores, -1, keepdim=True)


def attend(ar, scores, value, sink):
    f = ar.forms
    by_autograd = f.attention.startswith("autograd")
    if not by_autograd:
        return Flash.apply(scores, value, ar) if sink is None else FlashSinks.apply(scores, value, sink, ar)
    if sink is not None and f.sink == "column" and not torch.isinf(scores.amax(-1)).any():
        return with_column(ar, scores, value, sink)
    if f.attention == "autograd" and not torch.isinf(scores.amax(-1)).any():
        out, lse = ar.product(torch.softmax(scores, -1), value), torch.logsumexp(scores, -1, keepdim=True)
    else:
        out, lse = forward(ar, "split_kv" if f.attention == "autograd_split" else "whole", scores, value)
    return (out, lse) if sink is None else (out * torch.sigmoid(lse - sink), lse)


def attention(ar, query, key, value, segments, mask_padding, scale=None, window=0, sinks=None):
    """[B, S, N, .], of key and value [B, S, Nkv, .] -> out [B, S, N, Dv] and lse [B, N, S]. `scale` is of the scores."""
    length, copies = query.shape[1], query.shape[2] // key.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if window > 0:
        seen &= ~torch.ones(length, length, dtype=torch.bool).tril(-window)
    seen, blind = seen[None, None], None
    turned = [x.transpose(1, 2) for x in (query, key, value)]
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
        if mask_padding:
            blind = (segments == 0)[:, None, :, None]
            seen = seen & ~blind
            turned = [x.masked_fill(blind, 0) for x in turned]  # what padding holds, NaN too, reaches nothing
    query, key, value = turned
    if copies > 1:
        key, value = (spread(ar, x, copies) for x in (key, value))
    scores = ar.product(query, key.transpose(-1, -2))
    scores = scores if scale is None else scores * scale
    if ar.forms.attention in ("whole", "autograd"):
        scores = ar.keep("scores", scores)
    scores = scores.masked_fill(~seen, -math.inf)
    out, lse = attend(ar, scores, value, None if sinks is None else sinks[:, None, None])
    if blind is not None:  # nor does what their gradients hold
        out, lse = out.masked_fill(blind, 0), lse.masked_fill(blind, -math.inf)
    return ar.store(out).transpose(1, 2), lse[..., 0]


def spread(ar, x, copies):
    """Key or value once for each of the heads that share it."""
    x = x[:, :, None].expand(-1, -1, copies, -1, -1)
    if ar.forms.heads == "stored":
        x = ar.part(x, False, True)
    return x.flatten(1, 2)
