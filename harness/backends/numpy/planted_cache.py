#!/usr/bin/env python3
"""The numpy backend with a bug where it norms and rotates what it writes into a cache (cache_norm, cache_rope), to see it found.

    assay run cache_append/norm-rope-ds-mla --serve --backend 'python3 planted_cache.py rope_by_slot'

The norm is left out (norm_missing), its weights are (scale_missing) or are added to 1 (one_more), it is over the latents alone where it should be over
the row, or the reverse (norm_of_others), or comes after the rotation (norm_last). The rotation is left out (rope_missing), done twice (rope_twice), by
slots (by_slot), of the numbers beside (rope_of_rest), of whole heads (whole_heads) or of other pairs (other_pairs). Scales are those of the numbers
before they are rotated (amax_first), or one code is the next but one (one_code). `none`: no bug.
With ",alone" behind the name the bytes are given alone, without the numbers that became them.
"""
import sys

import numpy as np

import backend
import kernels_cache
import operations

bug, _, alone = sys.argv.pop(1).partition(",")
normed, turned, made, append = kernels_cache.normed, kernels_cache.turned, kernels_cache.made_numbers, kernels_cache.append
before = {}


def wrong_norm(ar, s, t, numbers):
    if bug == "norm_missing" or (bug == "norm_last" and "inputs/positions" in t):
        return
    weights = {name: value for name, value in t.items() if name.endswith("_norm/scale")}
    if bug in ("scale_missing", "one_more"):
        weights = {name: np.ones_like(value) if bug == "scale_missing" else value + 1 for name, value in weights.items()}
    if bug == "norm_of_others" and "k_pe" in numbers:
        rank, rope = numbers["kv_c"].shape[-1], numbers["k_pe"].shape[-1]
        s = s.changed(cache_norm="latent" if s["cache_norm"] == "row" else "row")
        weights = {name: np.append(value, np.ones(rope, value.dtype))[: rank + (rope if s["cache_norm"] == "row" else 0)]
                   for name, value in weights.items()}
    normed(ar, s, t | weights, numbers)


def wrong_turn(ar, s, positions, numbers):
    before.update(numbers)
    if bug == "rope_missing":
        return
    if bug == "by_slot":
        positions = np.maximum(before["slots"], 0).reshape(positions.shape)
    if bug == "other_pairs":
        s = s.changed(rope_interleave=str(not s.true("rope_interleave")).lower(), rope_pairwise="false")
    if bug == "whole_heads":
        s = s.changed(partial_rotary_factor="1")
    if bug == "rope_of_rest":
        name = "key" if "key" in numbers else "kv_c"
        width = int(numbers[name].shape[-1] * s.number("partial_rotary_factor")) if name == "key" else numbers["k_pe"].shape[-1]
        part = {"k_pe": numbers[name][..., -width:] if name == "key" else numbers[name][..., :width]}
        turned(ar, s, positions, part)
        whole = np.array(numbers[name])
        whole[..., slice(-width, None) if name == "key" else slice(0, width)] = part["k_pe"]
        numbers[name] = whole
        return
    turned(ar, s, positions, numbers)
    if bug == "rope_twice":
        turned(ar, s, positions, numbers)
    if bug == "norm_last" and before["given"]:
        normed(ar, s, before["given"], numbers)


def wrong_numbers(ar, s, t, names):
    before.clear()
    before["slots"] = t["inputs/slot_mapping"]
    before["given"] = t if s["cache_norm"] != "none" else None
    numbers = made(ar, s, t, names)
    if alone:
        ar.checkpoints.clear()
    return numbers


def wrong_scales(s, slots, x, second, given, cache, scale_cache):
    codes, scales = append(s, slots, x, second, given, cache, scale_cache)
    if bug == "amax_first" and scales is not None and (x.ndim == 3 and "key" in before or second is not None):
        first = before.get("key", x)
        other = append(s, slots, first, before.get("k_pe"), given, cache, scale_cache)
        return codes, other[1]
    if bug == "one_code":
        codes = np.array(codes)
        page, byte = np.argwhere(codes != cache)[3]
        codes[page, byte] ^= 2
    return codes, scales


if bug not in __doc__:
    sys.exit(f"no bug {bug}")
kernels_cache.normed, kernels_cache.turned, kernels_cache.append = wrong_norm, wrong_turn, wrong_scales
kernels_cache.made_numbers = wrong_numbers
backend.main()
