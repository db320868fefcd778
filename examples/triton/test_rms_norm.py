"""An RMS norm in Triton, forward and backward, over the catalogue: python3 -m pytest test_rms_norm.py

Without a GPU Triton's interpreter runs the kernels. A kernel to copy: put your own in the place of RmsNorm.
"""
import os

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import assay
import triton
import triton.language as tl


@triton.jit
def forward(x, scale, y, inverse, epsilon, columns, WIDTH: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    here = i < columns
    a = tl.load(x + row * columns + i, here, 0).to(tl.float32)
    r = tl.rsqrt(tl.sum(a * a, 0) / columns + epsilon)
    tl.store(inverse + row, r)
    tl.store(y + row * columns + i, a * r * tl.load(scale + i, here, 0).to(tl.float32), here)


@triton.jit
def backward(x, scale, inverse, dy, dx, columns, WIDTH: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    here = i < columns
    r = tl.load(inverse + row)
    n = tl.load(x + row * columns + i, here, 0).to(tl.float32) * r
    dn = tl.load(dy + row * columns + i, here, 0).to(tl.float32) * tl.load(scale + i, here, 0).to(tl.float32)
    tl.store(dx + row * columns + i, r * (dn - n * (tl.sum(dn * n, 0) / columns)), here)


@triton.jit
def backward_of_scale(x, inverse, dy, dscale, rows, columns, WIDTH: tl.constexpr):
    """A sum over rows in a fixed order: atomic additions would give other bits in each run."""
    i = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    here, total = i < columns, tl.zeros([WIDTH], tl.float32)
    for row in range(rows):
        n = tl.load(x + row * columns + i, here, 0).to(tl.float32) * tl.load(inverse + row)
        total += n * tl.load(dy + row * columns + i, here, 0).to(tl.float32)
    tl.store(dscale + i, total, here)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, epsilon):
        columns, width = x.shape[-1], triton.next_power_of_2(x.shape[-1])
        y, inverse = torch.empty_like(x), x.new_empty(x.numel() // columns, dtype=torch.float32)
        forward[(len(inverse),)](x, scale, y, inverse, epsilon, columns, WIDTH=width)
        ctx.save_for_backward(x, scale, inverse)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, scale, inverse = ctx.saved_tensors
        columns, width, dy = x.shape[-1], triton.next_power_of_2(x.shape[-1]), dy.contiguous()
        dx, dscale = torch.empty_like(x), torch.empty_like(scale)
        backward[(len(inverse),)](x, scale, inverse, dy, dx, columns, WIDTH=width)
        backward_of_scale[(triton.cdiv(columns, 64),)](x, inverse, dy, dscale, len(inverse), columns, WIDTH=64)
        return dx, dscale, None


# The interpreter has no bfloat16: float32 in it, your own type on a GPU.
@assay.cases("rms_norm/*", precision="f32", dtype="float32")
def test_rms_norm(case):
    given = case.inputs(torch, device=DEVICE, requires_grad=True)
    y = RmsNorm.apply(given["inputs/x"], given["weights/scale"], case.config["normalization_layer_epsilon"])
    outputs = {"outputs/y": y}
    case.check({**outputs, **case.backward(outputs, given)})
