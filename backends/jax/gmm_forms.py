"""Grouped products: jax.lax.ragged_dot, megablox, tokamax."""
from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import tokamax
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.megablox import gmm as megablox_gmm
from jax.sharding import AbstractDevice, AbstractMesh
from tokamax._src.ops.ragged_dot import base
from tokamax._src.ops.ragged_dot.pallas_mosaic_tpu import Config, PallasMosaicTpuRaggedDot

import qwix_forms
from case import Case, Operation, Tensors

ROWS_ARE_SUMMED = jax.lax.RaggedDotDimensionNumbers(dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0],
                                                    rhs_group_dimensions=[])
# left to itself it asks the device for its kind, to choose tiles, and does so again for the products of its gradient; its pipeline
# asks too, and runs in the interpreter of TPUs alone
TOKAMAX_PRODUCT = PallasMosaicTpuRaggedDot(interpret=pltpu.InterpretParams(), config=Config(), bypass_device_check=True)
TOKAMAX_GMM = TOKAMAX_PRODUCT.replace(vjp=functools.partial(base.vjp, dlhs_ragged_dot=TOKAMAX_PRODUCT, drhs_ragged_dot=TOKAMAX_PRODUCT))
TPU = AbstractMesh((), (), (), abstract_device=AbstractDevice(device_kind="TPU v6 lite", num_cores=1, platform="tpu"))
LARGEST_TILE = 32  # of rows: cases are small, and groups are to begin and end inside of tiles


@functools.cache
def product_by(form: str) -> Callable:
    def product(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        if form == "megablox":  # its tiles of rows must fill lhs
            rows = next(tile for tile in range(LARGEST_TILE, 0, -1) if len(lhs) % tile == 0)
            return megablox_gmm(lhs, rhs, sizes, lhs.dtype, (rows, 128, 128), None, None, False, True)
        if form == "tokamax":
            return tokamax.ragged_dot(lhs, rhs, sizes, implementation="xla")
        if form == "tokamax_gmm":
            return TOKAMAX_GMM(lhs, rhs, group_sizes=sizes)
        return jax.lax.ragged_dot(lhs, rhs, sizes)

    def gmm(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        return {"outputs/y": product(given["inputs/lhs"], given["weights/rhs"], rest["sizes"])}, {}

    if form == "tokamax_gmm":
        gmm.mesh = TPU
    return gmm


@functools.cache
def k_grouped_by(form: str) -> Callable:
    general = functools.partial(tokamax.ragged_dot_general, implementation="xla") if form == "tokamax" else jax.lax.ragged_dot_general

    def gmm(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        y = general(given["inputs/lhs"], given["inputs/rhs"], rest["sizes"], ROWS_ARE_SUMMED)
        return {"outputs/y": y + given["inputs/c"] if "inputs/c" in given else y}, {}

    return gmm


def gmm(c: Case) -> Operation:
    s, layout = c.s, c.s["gmm_layout"]
    s.need(layout in ("ragged", "k_grouped"), f"no layout {layout}")
    sizes = {"sizes": c.tensors["inputs/group_sizes"]}
    if c.form == "qwix":
        return qwix_forms.gmm(c, sizes)
    c.forms("jax", "megablox", "tokamax", "tokamax_gmm")
    c.unquantised()
    if c.form in ("megablox", "tokamax_gmm"):
        s.need(c.dtype in (jnp.bfloat16, jnp.float32), "bfloat16 and float32 alone")
        s.need(layout == "ragged", "the product over rows has no gradient")
    if c.form == "tokamax_gmm":
        s.need(all(size % 128 == 0 for size in c.tensors["inputs/lhs"].shape + c.tensors["weights/rhs"].shape[1:]), "whole tiles of 128 alone")
    return (product_by if layout == "ragged" else k_grouped_by)(c.form), c.given, sizes
