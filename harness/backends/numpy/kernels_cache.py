"""Tokens into the pages of a cache, as bytes: a whole page is an array of bytes, of which rows and scales are views."""
import numpy as np

from kernels_attention import partial_rope, rope
from kernels_basic import rms_norm
from kernels_quantize import LARGEST, ONE, Operand, codes_of, in_blocks, numbers, scales_of

# elements, scales, numbers of a block (0: the row), where scales lie, whether rope stays bfloat16, multiples of a token's scales and of a page
FORMATS = {
    "auto": ("bf16", None, 0, None, True, 1, 1), "bfloat16": ("bf16", None, 0, None, True, 1, 1),
    "fp8_ds_mla": ("e4m3", "f32", 128, "row", True, 1, 1), "fp8_model1": ("e4m3", "e8m0", 64, "behind", True, 8, 576),
    "fp8_indexer": ("e4m3", "f32", 128, "behind", False, 1, 1), "fp4_indexer": ("e2m1", "e8m0", 32, "behind", False, 4, 1),
    "fp8_e4m3": ("e4m3", None, 0, "given", False, 1, 1), "fp8_e4m3_per_head": ("e4m3", None, 0, "given", False, 1, 1),
    "fp8_e4m3_per_token": ("e4m3", "f32", 0, "apart", False, 1, 1), "mxfp8": ("e4m3", "e8m0", 32, "apart", False, 1, 1),
    "nvfp4": ("e2m1", "e4m3", 16, "apart", False, 1, 1)}


def bfloat16_bytes(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return rounded.astype("<u2").view(np.uint8)


def bytes_of_codes(kind, codes):
    return codes[:, ::2] | codes[:, 1::2] << 4 if kind == "e2m1" else codes


def quantise(s, kind, scales, columns, rows, given):
    """[rows, columns] to bytes of codes, and of scales."""
    blocks = in_blocks(rows.astype(np.float32), 1, columns)  # [rows, 1, J, columns]
    amax = np.maximum(np.abs(blocks).max((1, 3)), np.float32(s.number("quant_smallest_amax")))
    if scales is None:
        scale, times, code = given, ONE / given, np.zeros((len(rows), 0), np.uint8)
    elif scales == "e4m3":
        code = codes_of("e4m3", np.minimum(amax * ((ONE / given[0, 0]) * (ONE / np.float32(6))), np.float32(448)))
        scale = (numbers("e4m3")[code] * given[0, 0]).astype(np.float32)
        times = np.minimum(ONE / scale, LARGEST)
    else:
        code, times = scales_of(s, kind, scales, amax)
        scale = code.astype(np.int32).view(np.float32) if scales == "f32" else np.ldexp(ONE, code - 127)
    times = np.broadcast_to(np.asarray(times, np.float32), amax.shape)[:, None, :, None]
    divisor = np.broadcast_to(np.asarray(scale, np.float32), amax.shape)[:, None, :, None]
    divides = s["quant_elements"] == "divide"
    y = np.where(times != 0, blocks / divisor, 0 * blocks) if divides else blocks * times
    codes = codes_of(kind, y.reshape(len(rows), -1)[:, :rows.shape[1]], s["quant_ties"] == "down", s.true("quant_saturate"))
    if not s.true("quant_negative_zero"):
        codes = np.where(codes == (8 if kind == "e2m1" else 128), 0, codes)
    width = "<i4" if scales == "f32" else np.uint8
    return bytes_of_codes(kind, codes).astype(np.uint8), np.ascontiguousarray(code.astype(width)).view(np.uint8).reshape(len(rows), -1)


def padded(x, multiple):
    return -(-x // multiple) * multiple


def append(s, slots, x, second, given, cache, scale_cache):
    """x [T, heads, numbers], second [T, numbers] or None, into copies of the caches [pages, bytes]."""
    kind, scales, columns, at, plain, scale_multiple, page_multiple = FORMATS[s["kv_cache_dtype"]]
    tokens, heads = x.shape[:2]
    page = int(s.number("pagedattn_tokens_per_page"))
    stride = int(s.number("pagedattn_page_stride")) or page
    if second is not None and not plain:
        x, second = np.concatenate([x, second[:, None]], 2), None
    rows = x.reshape(tokens * heads, -1)
    if given is not None:
        given = np.tile(given.astype(np.float32), tokens * heads // len(given))[:, None]
    with np.errstate(all="ignore"):
        codes, of_scales = (bfloat16_bytes(rows), np.zeros((len(rows), 0), np.uint8)) if kind == "bf16" else quantise(
            s, kind, scales, columns or rows.shape[1], rows, given)
    tail = np.zeros((len(rows), 0), np.uint8) if second is None else bfloat16_bytes(second)
    row = np.concatenate([codes, of_scales, tail] if at == "row" else [codes, tail], 1)
    cache = cache.astype(np.uint8)
    cache_rows = cache[:, :stride * heads * row.shape[1]].reshape(len(cache), stride * heads, row.shape[1])
    places, written = [cache_rows], [row]
    if at in ("behind", "apart"):
        wide = padded(of_scales.shape[1], scale_multiple)
        behind = stride * heads * row.shape[1]
        home = cache[:, behind:behind + stride * heads * wide] if at == "behind" else scale_cache.astype(np.uint8)
        places.append(home.reshape(len(cache), stride * heads, wide))
        written.append(of_scales)
    for i, slot in enumerate(slots):
        for head in range(heads if slot >= 0 else 0):
            token = slot % page
            number = head * stride + token if s["kv_layout"] == "HND" else token * heads + head
            for place, what in zip(places, written):
                place[slot // page, number, :what.shape[1]] = what[i * heads + head]
    cache[:, :cache_rows[0].size] = cache_rows.reshape(len(cache), -1)
    if at == "behind":
        cache[:, behind:behind + places[1][0].size] = places[1].reshape(len(cache), -1)
    return cache.astype(np.int32), places[1].reshape(len(cache), -1).astype(np.int32) if at == "apart" else None


def numbers_of_codes(kind, rows):
    if kind == "bf16":
        return (np.ascontiguousarray(rows).view("<u2").astype(np.uint32) << 16).view(np.float32)
    codes = np.stack([rows & 15, rows >> 4], -1).reshape(*rows.shape[:-1], -1) if kind == "e2m1" else rows
    table = np.append(numbers(kind), np.float32(np.nan))  # the last code of e4m3
    sign = 8 if kind == "e2m1" else 128
    return np.where(codes & sign, -table[codes % sign], table[codes % sign])


def numbers_of_scales(scales, rows):
    if scales == "f32":
        return np.ascontiguousarray(rows).view("<f4")
    return np.ldexp(ONE, rows.astype(np.int32) - 127) if scales == "e8m0" else numbers_of_codes("e4m3", rows)


def read(ar, s, pages, scale_pages, given, heads, columns, rope):
    """Pages of bytes [P, bytes] to numbers [P, rows, heads, columns + rope], with kv_layout HND [P, heads, rows, .]."""
    kind, scales, block, at, plain, multiple, _ = FORMATS[s["kv_cache_dtype"]]
    if not plain:
        columns, rope = columns + rope, 0
    pages, block = pages.astype(np.uint8), block or columns
    if s.count("pagedattn_num_pages") > 0:
        rows = s.count("pagedattn_page_stride") or s.count("pagedattn_tokens_per_page")
    else:
        rows = s.count("cache_length")
    codes = columns * 2 if kind == "bf16" else columns // 2 if kind == "e2m1" else columns
    own = -(-columns // block) * (4 if scales == "f32" else 1) if at in ("row", "behind", "apart") else 0
    wide = padded(own, multiple)
    row = codes + 2 * rope + (wide if at == "row" else 0)
    lines = pages[:, :rows * heads * row].reshape(len(pages), rows * heads, row)
    home = {"row": lines[..., codes:], "behind": pages[:, rows * heads * row:], "apart": scale_pages}.get(at)
    with np.errstate(all="ignore"):
        y = numbers_of_codes(kind, lines[..., :codes]).astype(np.float64)
        if own:
            home = home if at == "row" else home[:, :rows * heads * wide].astype(np.uint8).reshape(len(pages), rows * heads, wide)
            scale = numbers_of_scales(scales, home[..., :own])
            if ar.variant.fused and not ar.variant.scales_after:  # a product in the type of the query
                scale = ar.round(scale)
            y = y * np.repeat(np.asarray(scale, np.float64), block, -1)[..., :columns]
        if given is not None:
            of_rows = np.repeat(given, rows) if s["kv_layout"] == "HND" else np.tile(given, rows)
            y = y * (of_rows if len(given) == heads else given)[..., None].astype(np.float64)
        if rope:
            y = np.concatenate([y, numbers_of_codes("bf16", lines[..., row - 2 * rope:])], -1)
        y = y if ar.variant.scales_after else ar.round(y)
    return y.reshape(len(pages), *((heads, rows) if s["kv_layout"] == "HND" else (rows, heads)), -1)


def caches(ar, s, t):
    """The inputs of attention over a cache, with caches of numbers in the places of others."""
    found, split = {}, s.true("kv_cache_split")
    if s["kv_cache_dtype"] == "auto":
        if split:
            found = {"inputs/kv_cache": np.concatenate([t["inputs/ckv_cache"], t["inputs/kpe_cache"]], -1)}
        return t | found

    def numbers_in(name, scale, heads, columns, rope):
        return read(ar, s, t[f"inputs/{name}"], t.get(f"inputs/{name}_scale"), t.get("inputs/" + scale), heads, columns, rope)

    if "inputs/key_cache" in t:
        heads = s.count("base_num_kv_heads") or s.count("base_num_query_heads")
        for name in ("key", "value"):
            found[f"inputs/{name}_cache"] = numbers_in(name + "_cache", name[0] + "_scale", heads, s.count("head_dim"), 0)
    else:
        rank, rope = s.count("kv_lora_rank"), s.count("qk_rope_head_dim")
        parts = [("ckv_cache", rank, 0), ("kpe_cache", rope, 0)] if split else [("kv_cache", rank, rope)]
        found["inputs/kv_cache"] = np.concatenate([numbers_in(name, "kv_scale", 1, *size)[:, :, 0] for name, *size in parts], -1)
    return t | {name: y.view(Operand) if ar.variant.scales_after else y for name, y in found.items()}


def normed(ar, s, t, numbers):
    """cache_norm: of the latents, of them with their rope, or of each key."""
    scale = t.get("weights/kv_norm/scale", t.get("weights/key_norm/scale"))
    if "key" in numbers:
        numbers["key"], _ = rms_norm(ar, numbers["key"], scale, s.number("normalization_layer_epsilon"))
        return
    epsilon = s.number("latent_norm_epsilon")
    epsilon = s.number("normalization_layer_epsilon") if epsilon == -1 else epsilon
    whole, rank = s["cache_norm"] == "row", numbers["kv_c"].shape[-1]
    row = np.concatenate([numbers["kv_c"], numbers["k_pe"]], -1) if whole else numbers["kv_c"]
    row, _ = rms_norm(ar, row, scale, epsilon)
    numbers["kv_c"] = row[..., :rank]
    if whole:
        numbers["k_pe"] = row[..., rank:]


def turned(ar, s, positions, numbers):
    name, turn = ("key", partial_rope) if "key" in numbers else ("k_pe", rope)
    x = ar.keep(numbers[name]) if s["cache_norm"] == "row" else numbers[name]
    heads = x.shape[1] if x.ndim == 3 else 1
    numbers[name] = turn(ar, s, positions, x.reshape(*positions.shape, heads, -1))[0].reshape(x.shape)


def made_numbers(ar, s, t, names):
    """What is written, by name: a kernel that is not fused stores it before."""
    numbers = {name: t["inputs/" + name] for name in names if "inputs/" + name in t}
    norm, turns = s.text.get("cache_norm", "none"), "inputs/positions" in t
    if norm == "none" and not turns:
        return numbers
    if norm != "none":
        normed(ar, s, t, numbers)
    if turns:
        turned(ar, s, t["inputs/positions"], numbers)
    for name, x in numbers.items():
        ar.checkpoint(name, x)
    return {name: ar.keep(x) for name, x in numbers.items()}


def cache_append(ar, s, t):
    streams = [("kv_c", "k_pe", "kv_cache", "kv_scale")]
    if "inputs/key" in t:
        streams = [("key", None, "key_cache", "k_scale"), ("value", None, "value_cache", "v_scale")]
    elif s.true("kv_cache_split"):
        streams = [("kv_c", None, "ckv_cache", "kv_scale"), ("k_pe", None, "kpe_cache", "kv_scale")]
    numbers = made_numbers(ar, s, t, [name for stream in streams for name in stream[:2] if name is not None])
    results = {}
    for name, second, cache, scale in streams:
        if name not in numbers:
            continue
        x = numbers[name]
        x = x if x.ndim == 3 else x[:, None]
        found, of_scales = append(s, t["inputs/slot_mapping"], x, None if second is None else numbers[second],
                                  t.get("inputs/" + scale), t[f"inputs/{cache}"], t.get(f"inputs/{cache}_scale"))
        results["outputs/" + cache] = found
        if of_scales is not None:
            results[f"outputs/{cache}_scale"] = of_scales
    return results
