"""Rotary embedding, causal attention, multi-head latent and grouped-query attention."""
import numpy as np

from kernels_basic import rms_norm
from kernels_quantize import Operand
from quant_recipes import Recipe


def dense(ar, x, w, s=None):
    """x [..., n] times w [n, ...]; s: the settings, where these may have a training recipe."""
    flat_x, flat_w = x.reshape(-1, w.shape[0]), w.reshape(w.shape[0], -1)
    recipe = None
    if s is not None and s.text.get("quant_recipe", ""):
        rows = flat_x if isinstance(flat_x, Operand) else ar.keep(flat_x)
        recipe = Recipe(s, rows, flat_w[None], [len(rows)])

    def back(dy):
        dy = dy.reshape(len(flat_x), -1)
        dy_of_x, w_of_x, x_of_w, dy_of_w = (dy, flat_w[None], flat_x, dy) if recipe is None else recipe.back(ar.keep(dy))
        return ar.linear(dy_of_x, w_of_x[0].T).reshape(x.shape), ar.weight_gradient(x_of_w, dy_of_w).reshape(w.shape)

    y = ar.linear(flat_x, flat_w) if recipe is None else ar.linear(recipe.x, recipe.w[0])
    return y.reshape(x.shape[:-1] + w.shape[1:]), back


def frequencies(s, dim):
    """rope_type yarn stretches the slow ones by rope_factor."""
    theta, pair = s.number("rope_max_timescale"), np.arange(dim // 2)
    base = theta ** (-2.0 * pair / dim)
    if s["rope_type"] != "yarn":
        return base

    def corner(turns):
        length = s.number("original_max_position_embeddings")
        return dim * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(theta))

    low, high = corner(s.number("beta_fast")), corner(s.number("beta_slow"))
    if s.true("rope_truncate"):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((pair - low) / (0.001 if low == high else high - low), 0, 1)
    return base / s.number("rope_factor") * ramp + base * (1 - ramp)


def rope(ar, s, positions, x):
    """x [B, S, N, Dr], positions [B, S]. Frequencies and phases are float32 numbers, as cos and sin are."""
    half, factor = x.shape[-1] // 2, s.number("rope_factor")
    angle = ar.value(ar.value(positions)[..., None] * ar.value(frequencies(s, x.shape[-1])))[:, :, None, :]
    scaled = s["rope_type"] == "yarn" and s.true("rope_attention_scaling") and factor > 1
    size = ar.float(0.1 * np.log(factor) + 1 if scaled else 1)
    cos, sin = ar.function(np.cos, angle) * size, ar.function(np.sin, angle) * size
    neighbours, halves = (slice(0, None, 2), slice(1, None, 2)), (slice(0, half), slice(half, None))
    given = neighbours if s.true("rope_interleave") else halves
    made = neighbours if s.true("rope_pairwise") else halves

    def turn(x, sin, given, made):
        y = np.empty_like(x)
        a, b = x[..., given[0]], x[..., given[1]]
        y[..., made[0]], y[..., made[1]] = a * cos - b * sin, a * sin + b * cos
        return y

    return turn(x, sin, given, made), lambda dy: turn(dy, -sin, made, given)


def partial_rope(ar, s, positions, x):
    """The first numbers of a head are turned, the others pass."""
    turned = int(float(s.text.get("partial_rotary_factor", 1)) * x.shape[-1])
    y, back = rope(ar, s, positions, x[..., :turned])
    beside = lambda a, of: np.concatenate([a, of[..., turned:]], -1)
    return beside(y, x), lambda dy: beside(back(dy[..., :turned]), dy)


def plain_softmax(ar, scores, value):
    """scores [B, N, S, S] with -inf where nothing is seen, value [B, N, S, Dv]: out, log-sum-exp, probabilities."""
    scores = ar.keep(scores)
    largest = scores.max(-1, keepdims=True)
    largest = np.where(np.isinf(largest), ar.float(0), largest)
    e = ar.exp(scores - largest)
    total = ar.sum(e)[..., None]
    p = e / np.where(total == 0, ar.float(1), total)
    return ar.product(p, value), (largest + ar.log(total))[..., 0], p


def online_softmax(ar, scores, value):
    """Block by block of keys; the probabilities of backward come from the log-sum-exp."""
    shape = scores.shape[:-1] + (1,)
    largest, total = np.full(shape, -np.inf, ar.float), np.zeros(shape, ar.float)
    out = np.zeros(scores.shape[:-1] + value.shape[-1:], ar.float)
    for first in range(0, scores.shape[-1], ar.variant.keys):
        keys = slice(first, first + ar.variant.keys)
        block = scores[..., keys]
        grown = np.maximum(largest, block.max(-1, keepdims=True))
        base = np.where(np.isinf(grown), ar.float(0), grown)
        e, shrink = ar.exp(block - base), ar.exp(np.where(np.isinf(largest), -np.inf, largest - base))
        total = total * shrink + ar.sum(e)[..., None]
        out = out * shrink + ar.product(e, value[..., keys, :])
        largest = grown
    empty = total == 0
    lse = np.where(empty, -np.inf, np.where(empty, ar.float(0), largest) + ar.log(total))
    p = ar.exp(scores - np.where(empty, ar.float(0), lse))
    return out / np.where(empty, ar.float(1), total), lse[..., 0], p


def window_of(s, results=""):
    """results: "layers/3/" in a stack. GPT-OSS has a window in every other layer; alone a layer is the first, or, where attention is global, the second."""
    window = s.count("sliding_window_size")
    if s["decoder_block"] == "gpt_oss" and results:
        return 0 if int(results.split("/")[1]) % 2 else window
    return 0 if s["attention_type"] == "global" else window


def soft_cap(ar, s, scores):
    """Scores, and what their gradients are multiplied by."""
    cap = float(s.text.get("attn_logits_soft_cap", 0))
    if cap == 0:
        return scores, None
    share = ar.function(np.tanh, ar.keep(scores) / ar.float(cap))
    return share * ar.float(cap), 1 - share * share


def causal(length):
    """A query sees its own key and earlier ones."""
    return np.tril(np.ones((length, length), bool))


def attention(ar, s, query, key, value, segment_ids, scale=None, window=0, sinks=None, shown=None, bias=None):
    """[B, S, N, .], of key and value [B, S, Nkv, .] -> out and lse [B, N, S]. `scale` multiplies the scores where the
    query does not have it. The last of the gradients is that of the sinks [N], and behind it that of a bias [B, N, S, T]. shown [B, N, S, T]:
    what is seen of [B, T, Nkv, .], by any rule."""
    length, shared = query.shape[1], key.shape[2]
    copies = query.shape[2] // shared
    seen = causal(length)[None]
    if window > 0:
        seen = seen & ~np.tril(np.ones((length, length), bool), -window)[None]
    seen = seen[:, None] if shown is None else shown
    blind = np.zeros(query.shape[:2], bool)
    if segment_ids is not None:
        seen = seen & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
        if s.true("mask_padding"):
            blind = segment_ids == 0
            seen = seen & ~blind[:, None, :, None]
    blind = blind[:, None, :, None]
    turned = lambda x: np.where(blind, ar.float(0), np.moveaxis(x, 2, 1)) if blind.any() else np.moveaxis(x, 2, 1)  # padding may hold NaN
    query, key, value = turned(query), *(np.repeat(turned(x), copies, 1) for x in (key, value))
    across = lambda x: np.swapaxes(x, -1, -2)
    scores = ar.product(query, across(key))
    if scale is not None:
        scores = scores * scale
    scores, slope = soft_cap(ar, s, scores)
    scores = scores if bias is None else ar.keep(scores) + bias
    scores = np.where(seen, scores, ar.float(-np.inf))
    out, lse, p = (online_softmax if ar.variant.softmax == "online" else plain_softmax)(ar, scores, value)
    kept = None
    if sinks is not None:  # one more score, whose value is zero
        kept = 1 / (1 + ar.exp(sinks[None, :, None] - lse))[..., None]
        out = out * kept
    out = ar.store(out)

    def fold(d):
        return ar.sum(d.reshape(len(d), shared, copies, *d.shape[2:]), 2) if copies > 1 else d

    def of_scores(ds):
        ds = ds if slope is None else ds * slope
        return ds if scale is None else ds * scale

    def back(d_out, d_lse=None):
        d_out = turned(d_out)
        dp = ar.product(d_out, across(value))
        if kept is not None:
            return back_sinks(d_out, dp, d_lse)
        # probabilities from the log-sum-exp add up to 1 but for its rounding, which only the first form takes out again
        flash = ar.variant.backward == "delta" or ar.variant.softmax == "online"
        through = ar.sum(d_out * out) if flash else ar.sum(p * dp)
        if d_lse is not None:
            through = through - d_lse
        d_bias = p * (dp - through[..., None])
        ds = of_scores(d_bias)
        d = ar.product(ds, key), fold(ar.product(across(ds), query)), fold(ar.product(across(p), d_out))
        return (*(np.moveaxis(g, 1, 2) for g in d), None, d_bias)[: 4 if bias is None else 5]

    def back_sinks(d_out, dp, d_lse):
        share = p * kept
        through = ar.sum(d_out * out)
        ds = share * (dp - through[..., None])
        if d_lse is not None:
            ds = ds + p * d_lse[..., None]
        d_bias, ds = ds, of_scores(ds)
        d = ar.product(ds, key), fold(ar.product(across(ds), query)), fold(ar.product(across(share), d_out))
        lost = ar.sum((through * (1 - kept[..., 0])).swapaxes(0, 1).reshape(query.shape[1], -1))
        return (*(np.moveaxis(g, 1, 2) for g in d), -lost, d_bias)[: 4 if bias is None else 5]

    return np.moveaxis(out, 1, 2), lse, back


def merge_states(ar, s, out, lse, sinks=None):
    """out [P, B, S, N, Dv] and lse [P, B, N, S] of parts -> those of the whole. Fused variants merge two at a time."""
    unit = ar.float(np.log(2) if s["lse_base"] == "2" else 1)
    empty = np.moveaxis(np.isinf(lse), 2, 3)[..., None]
    lse = np.where(empty, ar.float(-np.inf), np.moveaxis(lse, 2, 3)[..., None] * unit)
    out = np.where(empty, ar.float(0), out)

    def merged(out, lse):
        largest = lse.max(0)
        largest = np.where(np.isinf(largest), ar.float(0), largest)
        p = ar.exp(lse - largest)
        total = p.sum(0)
        some = total > 0
        of_all = np.where(some, np.log(np.where(some, total, 1)) + largest, ar.float(-np.inf))
        if ar.variant.backward == "product":  # as FlashMLA's and FlashAttention's combine kernels weigh
            return (ar.exp(lse - np.where(some, of_all, ar.float(0))) * out).sum(0), of_all
        return (p * out).sum(0) / np.where(some, total, ar.float(1)), of_all

    whole, of_all = merged(out, lse)
    if ar.variant.fused:
        whole, of_all = out[0], lse[0]
        for i in range(1, len(out)):
            whole, of_all = merged(np.stack([ar.store(whole), out[i]]), np.stack([of_all, lse[i]]))
    blind = np.isinf(of_all)
    finite = np.where(blind, ar.float(0), of_all)
    gate = ar.float(1) if sinks is None else np.where(blind, ar.float(0), 1 / (1 + ar.exp(sinks[:, None] - finite)))
    whole = ar.store(whole * gate)

    def back(d_out, d_lse=None):
        p = np.where(blind, ar.float(0), ar.exp(lse - finite))
        through = ar.sum(d_out * whole)[..., None]
        d = ar.sum(d_out * out)[..., None]
        change = gate * (d - through)
        if d_lse is not None:
            change = change + np.moveaxis(d_lse, 1, 2)[..., None] / unit
        d_sinks = None if sinks is None else -ar.sum((through * (1 - gate))[..., 0].reshape(-1, whole.shape[2]).T)
        return p * (gate * d_out), np.moveaxis((p * change * unit)[..., 0], 3, 2), d_sinks

    nothing = ar.float(-np.inf if s["empty_row"].strip("'") == "-inf" else np.inf)
    return whole, np.moveaxis(np.where(blind, nothing, of_all / unit)[..., 0], 1, 2), back


def cached(s, cache, table, b, length):
    """Rows of a sequence [length, Nkv, .] in a cache, contiguous or in pages, in either order of rows and heads."""
    if cache.ndim == 3:
        cache = cache[:, :, None]
    elif s["kv_layout"] == "HND":
        cache = np.moveaxis(cache, 1, 2)
    if table is None:
        return cache[b, :length]
    size = s.count("pagedattn_tokens_per_page")
    return cache[table[b, : -(-length // size)], :size].reshape(-1, *cache.shape[2:])[:length]


def listed(s, cache, indices, splits):
    """Rows of a latent cache that a list names, and where its splits begin among these, and end."""
    size = s.count("pagedattn_tokens_per_page") if s.count("pagedattn_num_pages") > 0 else s.count("cache_length")
    valid = (indices >= 0) & (indices < len(cache) * size)
    before = np.concatenate([[0], np.cumsum(valid)])
    named = indices[valid]
    return cache[named // size, named % size][:, None], [before[i] for i in split_starts(s, len(indices), False, splits)]


def split_starts(s, length, paged, splits):
    """Where the parts of a sequence begin, and its end: equal numbers of pages, or of keys without pages."""
    unit = s.count("pagedattn_tokens_per_page") if paged else 1
    each = -(-(-(-length // unit)) // splits) * unit
    return [min(i * each, length) for i in range(splits)] + [length]


def chunk_starts(s, length, tokens, most):
    """The same of chunked prefill: chunks of what was there before these tokens, and these. `most`: keys that a sequence may have."""
    chunk, context = s.count("prefill_chunk_size"), max(length - tokens, 0)
    return [min(i * chunk, context) for i in range(max(-(-(most - tokens) // chunk), 0) + 1)] + [length]


def decode_sequence(ar, s, query, key, value, scale, starts):
    """query [S, N, W], key [L, Nkv, W], value [L, Nkv, V]: out [parts, S, N, V], lse [parts, N, S] of the parts between starts."""
    tokens, heads, _ = query.shape
    shared, length = key.shape[1], key.shape[0]
    if early := ar.variant.backward == "product":
        query = ar.store(query * scale)
    last = length - tokens + np.arange(tokens)[:, None]
    seen = np.arange(length)[None] <= last
    if window_of(s) > 0:
        seen = seen & (np.arange(length)[None] > last - window_of(s))
    rows = np.moveaxis(query, 1, 0).reshape(shared, -1, query.shape[-1])  # of a head of keys: head by head, token by token
    key, value = np.moveaxis(key, 1, 0), np.moveaxis(value, 1, 0)
    scores = ar.product(rows, np.swapaxes(key, 1, 2))
    scores, _ = soft_cap(ar, s, scores if early else scores * scale)
    scores = np.where(np.tile(seen, (heads // shared, 1)), scores, ar.float(-np.inf))
    outs, lses = [], []
    for first, end in zip(starts, starts[1:]):
        out, lse = np.zeros(scores.shape[:2] + value.shape[-1:], ar.float), np.full(scores.shape[:2], -np.inf, ar.float)
        if end > first:
            softmax = online_softmax if ar.variant.softmax == "online" else plain_softmax
            out, lse, _ = softmax(ar, scores[..., first:end], value[:, first:end])
        outs.append(np.moveaxis(out.reshape(heads, tokens, -1), 0, 1))
        lses.append(lse.reshape(heads, tokens))
    return np.stack(outs), np.stack(lses)


def decode(ar, s, t, scale):
    """Attention over a cache -> out [B, S, N, .], lse. A kernel may take keys in parts of its own where none are named."""
    lengths, table, sinks = t.get("inputs/cache_seqlens"), t.get("inputs/block_table"), t.get("weights/sinks")
    indices, counts = t.get("inputs/indices"), t.get("inputs/topk_length")
    key_cache = t["inputs/kv_cache"] if "inputs/kv_cache" in t else t["inputs/key_cache"]
    kernel, query = t.get("weights/wkv_b/kernel"), t.get("inputs/query")
    rank = s.count("kv_lora_rank")
    expands = kernel is not None and ar.variant.order in ("forward", "pairwise")
    if kernel is not None:
        nope, query_pe = t["inputs/query_nope"], t["inputs/query_pe"]
        width = nope.shape[-1]
        if expands:
            query = np.concatenate([nope, query_pe], -1)
        else:
            absorbed = [ar.linear(nope[:, :, n].reshape(-1, width), kernel[:, n, :width].T) for n in range(nope.shape[2])]
            query = np.concatenate([ar.store(np.stack(absorbed, 1)).reshape(*nope.shape[:3], rank), query_pe], -1)
    chunked, paged = s.true("use_chunked_prefill"), table is not None
    named = chunked or s.count("num_kv_splits") > 0
    splits = s.count("num_kv_splits") or (3 if ar.variant.order == "split" else 1)
    most = table.shape[1] * s.count("pagedattn_tokens_per_page") if paged else s.count("cache_length")
    outs, lses = [], []
    tokens = query.shape[1]
    for b in range(len(query) if indices is None else query.shape[0] * tokens):
        if indices is None:
            key, rows = cached(s, key_cache, table, b, lengths[b]), query[b]
            value = key[..., :rank] if "inputs/kv_cache" in t else cached(s, t["inputs/value_cache"], table, b, lengths[b])
        else:  # each token has keys of its own
            entries = indices[b // tokens, b % tokens]
            key, starts = listed(s, key_cache, entries if counts is None else entries[: counts[b // tokens]], splits)
            value, rows = key[..., :rank], query[b // tokens, b % tokens][None]
        length = len(key)
        if expands:
            made = ar.store(ar.linear(key[:, 0, :rank], kernel.reshape(rank, -1))).reshape(length, *kernel.shape[1:])
            k_pe = np.repeat(key[..., rank:], kernel.shape[1], 1)
            key, value = np.concatenate([made[..., :width], k_pe], -1), made[..., width:]
        if indices is None:
            starts = chunk_starts(s, length, tokens, most) if chunked else split_starts(s, length, paged, splits)
        out, lse = decode_sequence(ar, s, rows, key, value, scale, starts)
        outs.append(out)
        lses.append(lse)
    out, lse = np.stack(outs, 1), np.stack(lses, 1)
    if indices is not None:
        out = out.reshape(len(out), *query.shape[:3], -1)
        lse = np.moveaxis(lse.reshape(len(lse), *query.shape[:3]), 2, 3)
    unit = ar.float(np.log(2) if s["lse_base"].strip("'") == "2" else 1)
    nothing = ar.float(-np.inf if s["empty_row"].strip("'") == "-inf" else np.inf)
    based = lambda lse: np.where(np.isinf(lse), nothing, lse / unit)
    releases = kernel is not None and not expands

    def release(out):
        rows = ar.store(out)
        heads = [ar.linear(rows[..., n, :].reshape(-1, rank), kernel[:, n, width:]) for n in range(kernel.shape[1])]
        return ar.store(np.stack(heads, 1)).reshape(*out.shape[:-1], -1)

    if named:
        out = release(out) if releases else out
        out, lse = ar.made("partial_out", ar.keep(out)), ar.made("partial_lse", lse)
        if ar.variant.fused:  # whose splits without keys write nothing
            out = np.where(np.isinf(np.moveaxis(lse, 2, 3))[..., None], ar.float(np.nan), out)
        ar.checkpoint("partial_out", out)
        ar.checkpoint("partial_lse", based(lse))
    whole, whole_lse, _ = merge_states(ar, s, out, based(lse), sinks)
    if splits == 1 and not named:
        blind = np.isinf(lse[0])
        gate = 1 if sinks is None else 1 / (1 + ar.exp(sinks[:, None] - np.where(blind, ar.float(0), lse[0])))
        whole, whole_lse = ar.store(out[0] * np.where(blind, ar.float(0), gate).swapaxes(1, 2)[..., None]), based(lse[0])
    if releases and not named:
        whole = release(whole)
    return whole, whole_lse if s["lse_layout"] == "BNS" else np.swapaxes(whole_lse, 1, 2)


def decode_back(ar, s, t, scale, out, lse):
    """The gradients of queries, of caches of numbers and of sinks, from log-sum-exps of the whole."""
    query, table, indices, sinks = t["inputs/query"], t.get("inputs/block_table"), t.get("inputs/indices"), t.get("weights/sinks")
    latent, rank, heads, hnd = "inputs/kv_cache" in t, s.count("kv_lora_rank"), query.shape[2], s["kv_layout"] == "HND"
    own = lambda cache: cache[:, :, None] if cache.ndim == 3 else np.moveaxis(cache, 1, 2) if hnd else cache
    keys = own(t["inputs/kv_cache"] if latent else t["inputs/key_cache"])
    values = keys[..., :rank] if latent else own(t["inputs/value_cache"])
    size = s.count("pagedattn_tokens_per_page") if s.count("pagedattn_num_pages") > 0 else keys.shape[1]
    unit = ar.float(np.log(2) if s["lse_base"].strip("'") == "2" else 1)
    tokens_first = lambda x: x if s["lse_layout"] == "BSN" else np.swapaxes(x, 1, 2)
    d_lse = tokens_first(t.get("cotangents/lse", np.zeros(lse.shape, ar.float))) / unit
    lse = tokens_first(lse) * unit
    d_out, blind = t.get("cotangents/attention_out", np.zeros_like(out)), np.isinf(lse)
    lse = np.where(blind, ar.float(0), lse)
    gate = np.where(blind, ar.float(0), 1 if sinks is None else 1 / (1 + ar.exp(sinks - lse)))
    through = ar.sum(d_out * np.where(blind[..., None], ar.float(0), out))
    d_query, d_keys, d_values = (np.zeros(x.shape, ar.float) for x in (query, keys, values))
    shared, tokens = keys.shape[2], query.shape[1] if indices is None else 1
    by_head = lambda x: np.moveaxis(x, 1, 0).reshape(shared, -1, x.shape[-1])
    for unit in range(len(query) * (query.shape[1] // tokens)):
        b, at = unit * tokens // query.shape[1], slice(None) if indices is None else slice(unit % query.shape[1], unit % query.shape[1] + 1)
        rows = np.arange(t["inputs/cache_seqlens"][b]) if indices is None else indices[b, at.start][: t["inputs/topk_length"][b] if "inputs/topk_length" in t else None]
        rows = rows if indices is None else rows[(rows >= 0) & (rows < len(keys) * size)]
        page = rows // size if indices is not None else np.full(len(rows), b) if table is None else table[b, rows // size]
        key, value = (np.moveaxis(x[page, rows % size], 1, 0) for x in (keys, values))
        last = len(rows) - tokens + np.arange(tokens)[:, None]
        seen = np.arange(len(rows))[None] <= (last if indices is None else len(rows))
        if window_of(s) > 0:
            seen = seen & (np.arange(len(rows))[None] > last - window_of(s))
        q, d = by_head(query[b, at]), by_head(d_out[b, at])
        of_rows = lambda x: by_head(x[b, at][..., None])
        scores, slope = soft_cap(ar, s, ar.product(q, np.swapaxes(key, 1, 2)) * scale)
        p = np.where(np.tile(seen, (heads // shared, 1)), ar.exp(scores - of_rows(lse)), ar.float(0))
        ds = p * (of_rows(gate) * (ar.product(d, np.swapaxes(value, 1, 2)) - of_rows(through)) + of_rows(d_lse))
        ds = (ds if slope is None else ds * slope) * scale
        d_query[b, at] = np.moveaxis(ar.product(ds, key).reshape(heads, tokens, -1), 0, 1)
        np.add.at(d_keys, (page, rows % size), np.moveaxis(ar.product(np.swapaxes(ds, 1, 2), q), 0, 1))
        np.add.at(d_values, (page, rows % size), np.moveaxis(ar.product(np.swapaxes(p * of_rows(gate), 1, 2), d), 0, 1))
    if latent:
        d_keys[..., :rank] += d_values
    back = lambda x: x[:, :, 0] if latent else np.moveaxis(x, 2, 1) if hnd else x
    found = {"gradients/inputs/query": d_query}
    if "inputs/ckv_cache" in t:
        found |= {"gradients/inputs/ckv_cache": back(d_keys)[..., :rank], "gradients/inputs/kpe_cache": back(d_keys)[..., rank:]}
    else:
        found |= {"gradients/inputs/kv_cache": back(d_keys)} if latent else {
            "gradients/inputs/key_cache": back(d_keys), "gradients/inputs/value_cache": back(d_values)}
    if sinks is not None:
        found["gradients/weights/sinks"] = -ar.sum((through * (1 - gate) * ~blind).reshape(-1, heads).T)
    return found if s["kv_cache_dtype"] == "auto" else {name: x for name, x in found.items() if "cache" not in name}


def decode_back_naive(ar, s, t, scale):
    """From wkv_b on: those of attention over latents, through the products before and behind it."""
    kernel, nope, d_out = t["weights/wkv_b/kernel"], t["inputs/query_nope"], t["cotangents/attention_out"]
    width, rank = nope.shape[-1], len(kernel)
    rows = lambda x, n: x[:, :, n].reshape(-1, x.shape[-1])
    beside = lambda heads: np.stack(heads, 1).reshape(*nope.shape[:3], -1)
    by_head = lambda x, w: beside([ar.linear(rows(x, n), w[:, n].T) for n in range(kernel.shape[1])])
    own = {name: x for name, x in t.items() if name not in ("weights/wkv_b/kernel", "inputs/query_nope")} | {
        "inputs/query": np.concatenate([ar.store(by_head(nope, kernel[..., :width])), t["inputs/query_pe"]], -1),
        "cotangents/attention_out": ar.store(by_head(d_out, kernel[..., width:]))}
    latent, lse = decode(ar, s, own, scale)
    found = decode_back(ar, s, own, scale, ar.store(latent), lse)
    d_query = ar.store(found.pop("gradients/inputs/query"))
    d_absorbed = d_query[..., :rank]
    d_kernel = [np.concatenate([ar.weight_gradient(rows(d_absorbed, n), rows(nope, n)),
                                ar.weight_gradient(rows(ar.store(latent), n), rows(d_out, n))], 1) for n in range(kernel.shape[1])]
    return found | {"gradients/inputs/query_nope": by_head(d_absorbed, np.swapaxes(kernel[..., :width], 0, 2)),
                    "gradients/inputs/query_pe": d_query[..., rank:], "gradients/weights/wkv_b/kernel": np.stack(d_kernel, 1)}


def softmax_scale(ar, s, dim):
    if s.number("query_pre_attn_scalar") != 0:
        return ar.float(s.number("query_pre_attn_scalar"))
    m = 0.1 * s.number("mscale") * np.log(s.number("rope_factor")) + 1
    stretched = s.number("max_position_embeddings") > s.number("original_max_position_embeddings")
    return ar.float(dim**-0.5 * (m * m if stretched else 1))


class Queries:
    """x to q [B, S, N, Dn + Dr], with or without compression."""

    def __init__(self, ar, s, w, x, epsilon):
        self.ar, self.compressed = ar, "wq_a/kernel" in w
        self.recipe = s.text.get("quant_recipe", "") != ""
        if self.compressed:
            q_a, self.back_a = dense(ar, x, w["wq_a/kernel"], s)
            q_a = ar.made("query_wa_proj", q_a)
            q_n, self.back_n = rms_norm(ar, ar.keep(q_a), w["q_norm/scale"], epsilon)
            q_n = ar.made("mla_q", q_n)
            ar.checkpoint("query_wa_proj", q_a)
            ar.checkpoint("mla_q", q_n)
            self.q, self.back_b = dense(ar, q_n, w["wq_b/kernel"], s)
        else:
            self.q, self.back_b = dense(ar, x, w["query/kernel"], s)

    def back(self, dq, g):
        if not self.compressed:
            dx, g["query/kernel"] = self.back_b(dq)
            return dx
        d_n, g["wq_b/kernel"] = self.back_b(dq)
        d_a, g["q_norm/scale"] = self.back_n(self.ar.keep(d_n))
        if self.recipe:
            self.ar.checkpoint("query_wa_proj_gradient", d_a)
        dx, g["wq_a/kernel"] = self.back_a(d_a)
        return dx


def mla(ar, s, t, prefix, x):
    """t holds the weights under `prefix`; back gives dx and the gradients by path."""
    w = {name[len(prefix):]: value for name, value in t.items() if name.startswith(prefix)}
    rank, nope, rotated = w["kv_norm/scale"].shape[0], s.count("qk_nope_head_dim"), s.count("qk_rope_head_dim")
    epsilon, positions = s.number("latent_norm_epsilon"), t["inputs/positions"]
    scale, late = softmax_scale(ar, s, nope + rotated), ar.variant.fused
    queries = Queries(ar, s, w, x, epsilon)
    q = ar.keep(queries.q)
    q_pe, back_q_pe = rope(ar, s, positions, q[..., nope:])
    query = ar.made("query_proj", np.concatenate([q[..., :nope], q_pe], -1))
    kv_a, back_kv_a = dense(ar, x, w["wkv_a/kernel"], s)
    kv_a = ar.keep(ar.made("kv_wa_proj", kv_a))
    c_kv, back_c_kv = rms_norm(ar, kv_a[..., :rank], w["kv_norm/scale"], epsilon)
    c_kv = ar.made("mla_kv", c_kv)
    kv, back_kv = dense(ar, c_kv, w["wkv_b/kernel"], s)
    k_pe, back_k_pe = rope(ar, s, positions, kv_a[:, :, None, rank:])
    kv = np.concatenate([kv[..., :nope], ar.made("value_proj", kv[..., nope:])], -1)
    key = ar.made("key_proj", np.concatenate([kv[..., :nope], np.repeat(k_pe, kv.shape[2], 2)], -1))
    segments = t.get("inputs/segment_ids")
    query = query if late else ar.store(query) * scale
    out, lse, back_attention = attention(ar, s, query, key, kv[..., nope:], segments, scale if late else None, window_of(s))
    out = ar.made("attention_out", out)
    flat = out.reshape(*x.shape[:2], -1)
    y, back_out = dense(ar, flat, w["out/kernel"].reshape(flat.shape[-1], -1), s)
    y = ar.made("out_proj", y)
    for name, made in {"kv_wa_proj": kv_a, "mla_kv": c_kv, "query_proj": query * scale if late else query, "key_proj": key,
                       "value_proj": kv[..., nope:], "lse": lse, "attention_out": out, "out_proj": y}.items():
        ar.checkpoint(name, made)

    def back(dy):
        g = {}
        d_flat, g["out/kernel"] = back_out(dy)
        d_query, d_key, d_value = (ar.keep(d) for d in back_attention(ar.store(d_flat).reshape(out.shape))[:3])
        dq = np.concatenate([d_query[..., :nope], back_q_pe(d_query[..., nope:])], -1)
        dq = dq if late else dq * scale
        dx = ar.keep(queries.back(dq, g))
        d_kv = np.concatenate([d_key[..., :nope], d_value], -1)
        d_c_kv, g["wkv_b/kernel"] = back_kv(d_kv)
        d_latent, g["kv_norm/scale"] = back_c_kv(ar.keep(d_c_kv))
        d_k_pe = back_k_pe(ar.sum(d_key[..., nope:], 2)[:, :, None])[:, :, 0]
        d_kv_a = np.concatenate([d_latent, d_k_pe], -1)
        d, g["wkv_a/kernel"] = back_kv_a(d_kv_a)
        if queries.recipe:
            for name, made in {"q_gradient": dq, "kv_gradient": d_kv, "kv_wa_proj_gradient": d_kv_a}.items():
                ar.checkpoint(name, made)
        g["out/kernel"] = g["out/kernel"].reshape(w["out/kernel"].shape)
        return dx + ar.keep(d), {"gradients/" + prefix + name: d for name, d in g.items()}

    return y, back


class Projection:
    """x times a kernel plus its bias; a recipe quantises what comes back."""

    def __init__(self, ar, s, w, name, x):
        self.ar, self.w, self.name, self.recipe = ar, w, name, bool(s.text.get("quant_recipe", ""))
        y, self.back_x = dense(ar, x, w[name + "/kernel"], s)
        y = ar.keep(y)
        self.y = ar.keep(y + w[name + "/bias"]) if name + "/bias" in w else y

    def back(self, d, g):
        if self.recipe:
            self.ar.checkpoint(self.name + "_gradient", d)
        dx, g[self.name + "/kernel"] = self.back_x(d)
        if self.name + "/bias" in self.w:
            g[self.name + "/bias"] = self.ar.sum(d.reshape(-1, *d.shape[2:]), 0)
        return self.ar.keep(dx)


class Heads:
    """Heads of query or key, normed where there is a norm, and rotated; those of value as they are."""

    def __init__(self, ar, s, w, name, y, positions):
        self.ar, self.name, self.back_norm, self.back_rope = ar, name, None, None
        if name + "_norm/scale" in w:
            y, self.back_norm = rms_norm(ar, y, w[name + "_norm/scale"], s.number("normalization_layer_epsilon"))
        if name != "value":
            y, self.back_rope = partial_rope(ar, s, positions, y)
        self.y = y

    def back(self, d, g):
        d = self.back_rope(d) if self.back_rope else d
        if self.back_norm:
            d, g[self.name + "_norm/scale"] = self.back_norm(self.ar.keep(d))
        return self.ar.keep(d)


def gqa(ar, s, t, prefix, x):
    """t holds the weights under `prefix`; back gives dx and the gradients by path."""
    w = {name[len(prefix):]: value for name, value in t.items() if name.startswith(prefix)}
    names, fused, heads = ("query", "key", "value"), "qkv_proj/kernel" in w, s.count("base_num_query_heads")
    products = [Projection(ar, s, w, n, x) for n in (("qkv_proj",) if fused else names)]
    parts = [p.y for p in products]
    if fused:
        shared = (parts[0].shape[2] - heads) // 2
        ar.checkpoint("qkv_proj", parts[0])
        parts = [np.ascontiguousarray(part) for part in np.split(parts[0], (heads, heads + shared), 2)]
    made = [Heads(ar, s, w, n, part, t["inputs/positions"]) for n, part in zip(names, parts)]
    scale, late = ar.float(s.number("query_pre_attn_scalar")), ar.variant.fused
    query = made[0].y if late else ar.store(made[0].y) * scale
    out, lse, back_attention = attention(ar, s, query, made[1].y, made[2].y, t.get("inputs/segment_ids"),
                                         scale if late else None, window_of(s, ar.layer), w.get("sinks"))
    flat = out.reshape(*x.shape[:2], -1)
    y, back_out = dense(ar, flat, w["out/kernel"].reshape(flat.shape[-1], -1), s)
    if "out/bias" in w:
        y = ar.keep(y) + w["out/bias"]
    for name, value in {"query_proj": query * scale if late else query, "key_proj": made[1].y, "value_proj": made[2].y,
                        "attention_out": out, "lse": lse, "out_proj": y}.items():
        ar.checkpoint(name, value)

    def back(dy):
        g = {}
        d_flat, g["out/kernel"] = back_out(dy)
        g["out/kernel"] = g["out/kernel"].reshape(w["out/kernel"].shape)
        if "out/bias" in w:
            g["out/bias"] = ar.sum(dy.reshape(-1, dy.shape[-1]), 0)
        *d, d_sinks = back_attention(ar.store(d_flat).reshape(out.shape))
        if d_sinks is not None:
            g["sinks"] = d_sinks
        d = [ar.keep(x) for x in d]
        d[0] = d[0] if late else ar.keep(d[0] * scale)
        d = [of.back(x, g) for of, x in zip(made, d)]
        dx = [p.back(x, g) for p, x in zip(products, [np.concatenate(d, 2)] if fused else d)]
        total = dx[0] if fused else ar.keep(dx[0] + dx[1]) + dx[2]
        return total, {"gradients/" + prefix + name: d for name, d in g.items()}

    return y, back
