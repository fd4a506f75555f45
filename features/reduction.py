"""Reduction kernel x tiles x hardware -> numbers, one row a tile, vectorised over tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .access import ACCESS_FEATURES, CODE_FEATURES, access_columns, assumed_code, code_columns, occupancy
from .anchor import anchor
from .blocks import Blocks, Cut, blocks, cut
from .hardware import HardwareSpec
from .kernels import ReductionKernel, dtype_bytes
from .placement import PLACEMENT_FEATURES, placement_columns
from .pow2 import is_pow2
from .schema import FeatureSchema
from .tiles import ReductionTile

FloatArray = npt.NDArray[np.float64]

KERNEL_FEATURES = (
    "log2_xnumel", "log2_rnumel", "log2_x_over_r", "log2_numel",
    "dtype_bytes", "min_ptr_bytes", "max_ptr_bytes", "total_ptr_bytes",
    "num_load", "num_store", "num_reduction", "buffers",
    "inner", "persistent", "xnumel_is_pow2", "rnumel_is_pow2", "log2_alignment",
)  # fmt: skip
TILE_FEATURES = (
    "log2_xblock", "log2_r0_block", "log2_tile", "log2_x_over_r0", "num_stages",
    "log2_xblock_over_xnumel", "log2_r0_over_rnumel", "log2_trips", "x_padding", "r_padding", "work_padding",
    "r0_block_is_pow2", "x_divides", "r_divides", "x_covers", "r_covers",
    "dist_px", "dist_pr", "dist_tile",
    "log2_tile_bytes", "onchip_share", "log2_contiguous_bytes",
    "log2_programs", "log2_programs_per_core", "n_wave", "rho", "wave_efficiency",
    "log2_warps", "log2_elems_per_thread", "log2_bytes_per_thread",
)  # fmt: skip

REDUCTION_SCHEMA = FeatureSchema(
    "reduction", 4, KERNEL_FEATURES + CODE_FEATURES + TILE_FEATURES + ACCESS_FEATURES + PLACEMENT_FEATURES
)
"""The order of the columns that `reduction_features` returns."""

_CAP = float(1 << 20)
"""Counts above this are one case: the grid is far larger than the machine."""


def reduction_features(kernel: ReductionKernel, tiles: Sequence[ReductionTile], hardware: HardwareSpec) -> FloatArray:
    """float64[n, d] in the order of REDUCTION_SCHEMA; finite for every numel up to 2^48.

    A tile without num_warps is given the derived number, next_pow2(X·R0 // 128) within the hardware's limits
    (reduction RFC §3.1). Raises InvalidInput for an empty list of tiles.
    """
    shaped = blocks(tiles, hardware)
    pieces = cut(kernel, shaped, hardware)
    columns = _tile_columns(kernel, shaped, pieces, hardware)
    code = kernel.code or assumed_code(kernel)
    constant = kernel_features(kernel) + code_columns(kernel, code)
    held = occupancy(kernel, code, shaped, hardware)
    varying = [columns[name] for name in TILE_FEATURES]
    varying += access_columns(kernel, code, shaped, pieces, held, hardware)
    varying += placement_columns(kernel, code, shaped, pieces, held, hardware)
    # Filled by column, where writes are contiguous, and turned once.
    out = np.empty((len(constant) + len(varying), len(tiles)), dtype=np.float64)
    out[: len(constant)] = np.array(constant, dtype=np.float64)[:, np.newaxis]
    for position, column in enumerate(varying, start=len(constant)):
        out[position] = column
    return np.ascontiguousarray(out.T)


def kernel_features(kernel: ReductionKernel) -> list[float]:
    """The part of a row that no tile changes, in the order of KERNEL_FEATURES."""
    log_x, log_r = math.log2(kernel.xnumel), math.log2(kernel.rnumel)
    return [
        log_x, log_r, log_x - log_r, log_x + log_r,
        dtype_bytes(kernel.dtype), kernel.min_bytes, kernel.max_bytes, kernel.total_bytes,
        kernel.num_load, kernel.num_store, kernel.num_reduction, kernel.buffers,
        kernel.inner, kernel.persistent, is_pow2(kernel.xnumel), is_pow2(kernel.rnumel),
        math.log2(_alignment(kernel)),
    ]  # fmt: skip


def _tile_columns(
    kernel: ReductionKernel, tiles: Blocks, pieces: Cut, hardware: HardwareSpec
) -> dict[str, npt.NDArray[Any]]:
    """What follows from block sizes, warps and numels: fit, padding, waves, the distance to the formula's anchor."""
    centre, log_bytes = anchor(kernel), math.log2(kernel.total_bytes)
    log_px, log_pr = math.log2(centre.x), math.log2(centre.r)
    log_x, log_r = tiles.log_sides
    x_over_numel, r_over_numel = tiles.log_sides - ((math.log2(kernel.xnumel),), (math.log2(kernel.rnumel),))
    x_padding, r_padding = pieces.covered / pieces.numels  # in this order: 1 exactly where the tile divides
    x_divides, r_divides = pieces.covered == pieces.numels
    x_covers, r_covers = tiles.sides >= pieces.numels
    log_programs, log_trips = np.log2(pieces.counts)
    dist_px, dist_pr = tiles.log_sides - ((log_px,), (log_pr,))
    log_per_thread = tiles.log_size - tiles.log_threads
    return {
        "log2_xblock": log_x,
        "log2_r0_block": log_r,
        "log2_tile": tiles.log_size,
        "log2_x_over_r0": log_x - log_r,
        "num_stages": tiles.stages,
        "log2_xblock_over_xnumel": x_over_numel,
        "log2_r0_over_rnumel": r_over_numel,
        "log2_trips": log_trips,
        "x_padding": x_padding,
        "r_padding": r_padding,
        "work_padding": np.minimum(x_padding * r_padding, _CAP),
        "r0_block_is_pow2": tiles.r_is_pow2,
        "x_divides": x_divides,
        "r_divides": r_divides,
        "x_covers": x_covers,
        "r_covers": r_covers,
        "dist_px": dist_px,
        "dist_pr": dist_pr,
        "dist_tile": tiles.log_size - log_px - log_pr,
        "log2_tile_bytes": tiles.log_size + log_bytes,
        "onchip_share": tiles.size * (kernel.total_bytes * hardware.onchip_overhead / hardware.onchip_bytes),
        "log2_contiguous_bytes": np.log2(pieces.inside[int(kernel.inner)] * dtype_bytes(kernel.dtype)),
        "log2_programs": log_programs,
        "log2_programs_per_core": log_programs - math.log2(hardware.cores),
        "n_wave": np.minimum(pieces.n_wave, _CAP),
        "rho": pieces.rho,
        "wave_efficiency": pieces.counts[0] / (pieces.n_wave * hardware.cores),
        "log2_warps": tiles.log_warps,
        "log2_elems_per_thread": log_per_thread,
        "log2_bytes_per_thread": log_per_thread + log_bytes,
    }


def _alignment(kernel: ReductionKernel) -> int:
    """Largest power of two, up to 16, that divides the contiguous extent: with an odd one no row starts aligned."""
    extent = kernel.rnumel if kernel.inner else kernel.xnumel
    return min(extent & -extent, 16)
