"""New tokens into the pages of a cache by PyTorch's own types: bfloat16, float8_e4m3fn, float8_e8m0fnu. It has no cast to e2m1."""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from request import Settings
    from torch_operations import Call, Tensors

# numbers of a scale (0: the row) and the scale's type; where scales lie: in the row, behind the page's rows, apart, or given; bytes of a token's scales
FORMATS = {"auto": None, "bfloat16": None, "fp8_ds_mla": (128, torch.float32, "row", 0), "fp8_model1": (64, torch.float8_e8m0fnu, "behind", 8),
           "fp8_indexer": (128, torch.float32, "behind", 0), "fp8_e4m3": (0, torch.float32, "given", 0), "fp8_e4m3_per_head": (0, torch.float32, "given", 0),
           "fp8_e4m3_per_token": (0, torch.float32, "apart", 0), "mxfp8": (32, torch.float8_e8m0fnu, "apart", 0)}
KEEPS_ROPE = ("auto", "bfloat16", "fp8_ds_mla", "fp8_model1")  # in bfloat16
LARGEST = torch.finfo(torch.float8_e4m3fn).max


def bytes_of(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def scales_of(s: Settings, blocks: Tensor) -> Tensor:
    """Of the last axis, which stays with length 1."""
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=s.number("quant_smallest_amax"))
    s.need(s["quant_scale"] in ("divide", "multiply") and s["quant_scale_rounding"] in ("nearest", "up"), "no inverted scales, none rounded down")
    scale = amax / LARGEST if s["quant_scale"] == "divide" else amax * (1 / torch.tensor(LARGEST))
    if s["quant_scale_rounding"] == "nearest":
        return scale
    mantissa, exponent = torch.frexp(scale)
    power = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int()).clamp(min=2.0**-127)
    return power.masked_fill(scale == 0, 0)


def quantised(s: Settings, rows: Tensor, columns: int, kind: torch.dtype, given: Tensor | None) -> tuple[Tensor, Tensor]:
    """[rows, columns] of float32 to bytes of codes and of scales."""
    s.need(s.true("quant_negative_zero"), "PyTorch keeps the sign of 0")
    width = rows.shape[1]
    columns = min(columns or width, width)
    blocks = F.pad(rows, (0, -width % columns)).unflatten(1, (-1, columns))
    scale = scales_of(s, blocks) if given is None else given.reshape(-1, 1, 1)
    codes = blocks / scale if s["quant_elements"] == "divide" else blocks * (1 / scale).clamp(max=torch.finfo(torch.float32).max)
    codes = torch.where(scale == 0, 0 * blocks, codes).flatten(1)[:, :width]
    codes = codes.clamp(-LARGEST, LARGEST) if s.true("quant_saturate") else codes
    return bytes_of(codes.to(torch.float8_e4m3fn)), bytes_of(scale[..., 0].to(kind))


def append(c: Call, x: Tensor, rope: Tensor | None, given: Tensor | None, cache: Tensor, scale_cache: Tensor | None) -> list[Tensor]:
    """x [T, heads, numbers] and rope [T, numbers] into copies of a cache and of its scales, if these lie apart."""
    s, layout = c.s, FORMATS[c.s["kv_cache_dtype"]]
    if rope is not None and s["kv_cache_dtype"] not in KEEPS_ROPE:
        x, rope = torch.cat([x, rope[:, None]], 2), None
    tokens, heads = x.shape[:2]
    page = s.count("pagedattn_tokens_per_page")
    stride = s.count("pagedattn_page_stride") or page
    columns, kind, where, room = layout or (0, None, "", 0)
    scales = x.new_zeros(tokens * heads, 0, dtype=torch.uint8)
    if layout is None:
        row = bytes_of(x.flatten(0, 1).to(torch.bfloat16))
    else:
        given = None if given is None else given.repeat(tokens * heads // len(given))
        row, scales = quantised(s, x.flatten(0, 1), columns, kind, given)
    row = torch.cat([row, scales] if where == "row" else [row], 1)
    row = row if rope is None else torch.cat([row, bytes_of(rope.to(torch.bfloat16))], 1)
    kept = c.t["inputs/slot_mapping"] >= 0
    slots = c.t["inputs/slot_mapping"][kept][:, None]
    token, head = slots % page, torch.arange(heads)
    number = head * stride + token if s["kv_layout"] == "HND" else token * heads + head

    def put(pages: Tensor, first: int, width: int, what: Tensor) -> None:
        """Every row has so many bytes; what it is given fills the first of them."""
        of_rows = pages[:, first:first + stride * heads * width].unflatten(1, (-1, width))
        of_rows[slots // page, number, :what.shape[1]] = what.unflatten(0, (tokens, heads))[kept]

    put(cache, 0, row.shape[1], row)
    if where == "behind":
        put(cache, stride * heads * row.shape[1], max(room, scales.shape[1]), scales)
    if where == "apart":
        put(scale_cache, 0, scales.shape[1], scales)
    return [x.int() for x in (cache, scale_cache) if x is not None]


def run_cache_append(c: Call) -> Tensors:
    c.s.need_written_as_given()
    c.s.need(c.s["kv_cache_dtype"] in FORMATS, "no " + c.s["kv_cache_dtype"])
    streams = [("kv_c", "k_pe", "kv_cache", "kv_scale")]
    if "inputs/key" in c.raw:
        streams = [("key", "", "key_cache", "k_scale"), ("value", "", "value_cache", "v_scale")]
    elif c.s.true("kv_cache_split"):
        streams = [("kv_c", "", "ckv_cache", "kv_scale"), ("k_pe", "", "kpe_cache", "kv_scale")]

    def given(name: str, kind: torch.dtype = torch.float32) -> Tensor | None:
        """In float32, whatever type the run has: no number is rounded before the cache."""
        return torch.from_numpy(c.raw["inputs/" + name]).to(kind) if "inputs/" + name in c.raw else None

    made = {}
    for name, rope, cache, scale in streams:
        x = given(name)
        if x is not None:
            paths = [cache] + [cache + "_scale"] * (f"inputs/{cache}_scale" in c.raw)
            pages = [given(path, torch.uint8) for path in paths] + [None]
            found = append(c, x if x.ndim == 3 else x[:, None], given(rope), given(scale), pages[0], pages[1])
            made.update(zip(["outputs/" + path for path in paths], found))
    return made
