"""Recurrences: linear ones of numbers, and the gated delta rule."""
import numpy as np


def linear_scan(ar, a, b):
    """y[t] = a[t] y[t-1] + b[t] along the first axis; some variants by doubling, as parallel kernels do."""
    if ar.variant.order in ("pairwise", "split"):
        a, y, step = a.copy(), b.copy(), 1
        while step < len(a):
            y[step:] = ar.partial(y[step:] + a[step:] * y[:-step])
            a[step:] = a[step:] * a[:-step]
            step *= 2
        return y
    y = b.copy()
    for t in range(1, len(a)):
        y[t] = ar.partial(a[t] * y[t - 1] + b[t])
    return y


def gated_delta_rule(ar, query, key, value, gate, beta, state=None):
    """query, key [..,T,N,K], value [..,T,N,V], gate, beta [..,T,N], of gates of rows [..,T,N,K], state [..,N,K,V]: token by token with a state
    in the type of sums; online variants a chunk at a time, by products whose operands are rounded: not where the state has a finer type of
    its own, nor with gates of rows or a given state. Gives y, the last state, and what runs back from both."""
    lead = value.shape
    turned = lambda x, tail: np.moveaxis(x.reshape((-1,) + lead[-3:-1] + tail), 1, 0)  # [T,B,N,..]
    whole = lambda x, like: np.moveaxis(x, 0, 1).reshape(like.shape)
    q, k, v = (turned(x, x.shape[-1:]) for x in (query, key, value))
    g, b = turned(gate, gate.shape[len(lead) - 1:] or (1,)), turned(beta, ())
    before = np.zeros(k.shape[1:] + v.shape[-1:], ar.float) if state is None else state.reshape(k.shape[1:] + v.shape[-1:])
    by_chunks = ar.variant.softmax == "online" and ar.sums in (None, "bfloat16") and state is None and gate.shape == beta.shape
    states, rests = chunked(ar, k, v, g[..., 0], b) if by_chunks else sequential(ar, k, v, g, b, before)
    y = of_chunks(ar, states, q, k, v, g[..., 0], b) if by_chunks else np.stack([read(ar, q[t], states[t + 1]) for t in range(len(q))])

    def back(d, dlast=None):
        (dq, dk, dv), (dg, db) = (np.zeros_like(x) for x in (q, k, v)), (np.zeros_like(x) for x in (g, b))
        dy = np.zeros_like(v) if d is None else turned(d, d.shape[-1:])
        later = np.zeros_like(states[0]) if dlast is None else dlast.reshape(states[0].shape).copy()
        for t in reversed(range(len(q))):
            decay = ar.exp(g[t])[..., None]
            later = ar.partial(later + q[t][..., None] * dy[t][..., None, :])
            dq[t] = ar.sum(states[t + 1] * dy[t][..., None, :])
            dd = read(ar, k[t], later)
            dv[t] = b[t][..., None] * dd
            db[t] = ar.sum(dd * rests[t])
            decayed = decay * states[t]
            dk[t] = ar.sum(later * (b[t][..., None] * rests[t])[..., None, :]) - ar.sum(decayed * dv[t][..., None, :])
            later = ar.partial(later - k[t][..., None] * dv[t][..., None, :])
            dg[t] = ar.sum((later * decayed).reshape(*g[t].shape, -1))
            later = ar.partial(decay * later)
        found = [whole(x, like) for x, like in zip((dq, dk, dv, dg, db), (query, key, value, gate, beta))]
        return found if state is None else [*found, later.reshape(state.shape)]

    return whole(y, value), states[-1].reshape(lead[:-3] + states[-1].shape[1:]), back


def read(ar, x, state):
    return ar.sum(x[..., None] * state, -2)


def sequential(ar, k, v, g, b, before):
    """The states before and after each token, and what each value was off by."""
    states, rests = [before], []
    for t in range(len(k)):
        decayed = ar.exp(g[t])[..., None] * states[-1]
        rests.append(v[t] - read(ar, k[t], decayed))
        states.append(ar.partial(decayed + k[t][..., None] * (b[t][..., None] * rests[-1])[..., None, :]))
    return states, rests


def chunks(ar, k, g):
    """Of each chunk its tokens, and gates added up."""
    for first in range(0, len(k), ar.variant.keys):
        own = slice(first, first + ar.variant.keys)
        yield own, np.cumsum(g[own], 0, dtype=ar.float)


def chunked(ar, k, v, g, b):
    """As fla-core's chunk_gated_delta_rule: what a chunk writes is found at once, from the state before it."""
    state = np.zeros(k.shape[1:] + v.shape[-1:], ar.float)
    states, rests = [state], []
    for own, total in chunks(ar, k, g):
        written, after = write_chunk(ar, state, k[own], v[own], total, b[own])
        for t in range(len(total)):  # what backward reads
            decayed = ar.exp(g[own][t])[..., None, None] * states[-1]
            rests.append(v[own][t] - read(ar, k[own][t], decayed))
            states.append(decayed + k[own][t][..., None] * written[t][..., None, :])
        state = states[-1] = ar.partial(after)
    return states, rests


def within(ar, total, strictly):
    """exp of the gates between two tokens of a chunk, [B,N,C,C]."""
    sums = np.moveaxis(total, 0, -1)
    seen = np.tril(np.ones((len(total),) * 2, bool), -1 if strictly else 0)
    return np.where(seen, ar.exp(np.where(seen, sums[..., :, None] - sums[..., None, :], 0)), ar.float(0))


def write_chunk(ar, state, k, v, total, b):
    """beta times what each value was off by, [C,B,N,V], and the state behind the chunk."""
    k, v, b = (np.moveaxis(x, 0, 2) for x in (k, v, b))  # [B,N,C,..]
    sums = np.moveaxis(total, 0, -1)
    weights = ar.product(b[..., None] * k, np.swapaxes(k, -1, -2)) * within(ar, total, True)
    inverse = ar.store(ar.value(np.linalg.inv(np.eye(len(total)) + weights.astype(np.float64))))
    values = ar.store(ar.product(inverse, ar.store(b[..., None] * v)))
    keys = ar.store(ar.product(inverse, ar.store((b * ar.exp(sums))[..., None] * k)))
    written = values - ar.product(keys, state)
    last = sums[..., -1:]
    after = ar.exp(last)[..., None] * state + ar.product(np.swapaxes(k, -1, -2), ar.exp(last - sums)[..., None] * written)
    return np.moveaxis(written, 2, 0), after


def of_chunks(ar, states, q, k, v, g, b):
    y = np.empty_like(v)
    for own, total in chunks(ar, k, g):
        state = states[own.start]
        written = np.moveaxis(write_chunk(ar, state, k[own], v[own], total, b[own])[0], 0, 2)
        queries, keys = (np.moveaxis(x[own], 0, 2) for x in (q, k))
        scores = ar.product(queries, np.swapaxes(keys, -1, -2)) * within(ar, total, False)
        of_state = ar.product(queries, state) * ar.exp(np.moveaxis(total, 0, -1))[..., None]
        y[own] = np.moveaxis(of_state + ar.product(scores, written), 2, 0)
    return y
