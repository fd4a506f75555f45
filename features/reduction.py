"""Reduction kernel x tiles x hardware -> numbers, one row a tile, vectorised over tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .access import ACCESS_FEATURES, CODE_FEATURES, access_columns, assumed_code, code_columns
from .anchor import anchor
from .hardware import HardwareSpec
from .kernels import ReductionKernel, dtype_bytes
from .pow2 import is_pow2
from .schema import FeatureSchema
from .tiles import ReductionTile, tile_columns
from .waves import waves

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

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
    "log2_contiguous_threads", "log2_vector_bytes", "log2_vectors_per_thread",
    "log2_reduce_threads", "log2_rows_of_threads", "log2_serial",
)  # fmt: skip

REDUCTION_SCHEMA = FeatureSchema("reduction", 2, KERNEL_FEATURES + CODE_FEATURES + TILE_FEATURES + ACCESS_FEATURES)
"""The order of the columns that `reduction_features` returns."""

MAX_VECTOR_BYTES = 16
"""A thread's widest load, where the contiguous extent is aligned."""

_CAP = float(1 << 20)
"""Counts above this are one case: the grid is far larger than the machine."""


def reduction_features(kernel: ReductionKernel, tiles: Sequence[ReductionTile], hardware: HardwareSpec) -> FloatArray:
    """float64[n, d] in the order of REDUCTION_SCHEMA; finite for every numel up to 2^48.

    A tile without num_warps is given the derived number, next_pow2(X·R0 // 128) within the hardware's limits
    (reduction RFC §3.1). Raises InvalidInput for an empty list of tiles.
    """
    x, r, warps, stages = tile_columns(tiles)
    # In floating point: the product of two long axes does not fit 64 bits.
    tile = np.minimum(x * r.astype(np.float64), 2.0**62).astype(np.int64)
    warps = np.where(warps > 0, warps, derived_warps(tile, hardware))
    grid = _grid(kernel, x, r, tile, warps * hardware.warp_size)
    columns = {
        **_shape_columns(kernel, grid, hardware),
        **_thread_columns(kernel, grid),
        "log2_warps": np.log2(warps),
        "num_stages": stages,
    }
    # Filled by column, where writes are contiguous, and turned once.
    out = np.empty((len(REDUCTION_SCHEMA.names), len(tiles)), dtype=np.float64)
    code = kernel.code or assumed_code(kernel)
    constant = kernel_features(kernel) + code_columns(kernel, code)
    out[: len(constant)] = np.array(constant)[:, np.newaxis]
    for position, name in enumerate(TILE_FEATURES, start=len(constant)):
        out[position] = columns[name]
    blocks = (x.astype(np.float64), r.astype(np.float64), warps.astype(np.float64))
    out[len(constant) + len(TILE_FEATURES) :] = access_columns(kernel, code, *blocks, hardware)
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


def derived_warps(tile: IntArray, hardware: HardwareSpec) -> IntArray:
    """next_pow2(tile // 128), at least 1 and at most one block's threads; 1 without warps (reduction RFC §3.1)."""
    if not hardware.has_warps:
        return np.ones_like(tile)
    most = max(hardware.max_threads_per_block // hardware.warp_size, 1)
    wanted = np.minimum(np.maximum(tile // 128, 1), most)
    return np.int64(1) << np.ceil(np.log2(wanted)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """Tiles of one kernel as arrays, with what several features share."""

    x: IntArray
    r: IntArray
    tile: IntArray
    log_x: FloatArray
    log_r: FloatArray
    log_tile: FloatArray
    programs: IntArray
    trips: IntArray
    threads: IntArray
    per_thread: FloatArray


def _grid(kernel: ReductionKernel, x: IntArray, r: IntArray, tile: IntArray, threads: IntArray) -> _Grid:
    log_x, log_r = np.log2(x), np.log2(r)
    per_thread = np.maximum(tile / threads, 1.0)
    return _Grid(
        x, r, tile, log_x, log_r, log_x + log_r, -(-kernel.xnumel // x), -(-kernel.rnumel // r), threads, per_thread,
    )  # fmt: skip


def _shape_columns(
    kernel: ReductionKernel, grid: _Grid, hardware: HardwareSpec
) -> dict[str, FloatArray | npt.NDArray[np.bool_]]:
    """What follows from block sizes and numels: fit, padding, waves, the distance to the formula's anchor."""
    centre = anchor(kernel)
    log_px, log_pr = math.log2(centre.x), math.log2(centre.r)
    contiguous, extent = (grid.r, kernel.rnumel) if kernel.inner else (grid.x, kernel.xnumel)
    x_padding = grid.programs * grid.x / kernel.xnumel  # in this order: 1 exactly where the tile divides
    r_padding = grid.trips * grid.r / kernel.rnumel
    dealt = waves(grid.programs, hardware.cores)
    log_programs = np.log2(grid.programs)
    return {
        "log2_xblock": grid.log_x,
        "log2_r0_block": grid.log_r,
        "log2_tile": grid.log_tile,
        "log2_x_over_r0": grid.log_x - grid.log_r,
        "log2_xblock_over_xnumel": grid.log_x - math.log2(kernel.xnumel),
        "log2_r0_over_rnumel": grid.log_r - math.log2(kernel.rnumel),
        "log2_trips": np.log2(grid.trips),
        "x_padding": x_padding,
        "r_padding": r_padding,
        "work_padding": np.minimum(x_padding * r_padding, _CAP),
        "r0_block_is_pow2": (grid.r & (grid.r - 1)) == 0,
        "x_divides": kernel.xnumel % grid.x == 0,
        "r_divides": kernel.rnumel % grid.r == 0,
        "x_covers": grid.x >= kernel.xnumel,
        "r_covers": grid.r >= kernel.rnumel,
        "dist_px": grid.log_x - log_px,
        "dist_pr": grid.log_r - log_pr,
        "dist_tile": grid.log_tile - log_px - log_pr,
        "log2_tile_bytes": grid.log_tile + math.log2(kernel.total_bytes),
        "onchip_share": grid.tile * (kernel.total_bytes * hardware.onchip_overhead / hardware.onchip_bytes),
        "log2_contiguous_bytes": np.log2(np.minimum(contiguous, extent) * dtype_bytes(kernel.dtype)),
        "log2_programs": log_programs,
        "log2_programs_per_core": log_programs - math.log2(hardware.cores),
        "n_wave": np.minimum(dealt.n_wave, _CAP),
        "rho": dealt.rho,
        "wave_efficiency": grid.programs / (dealt.n_wave * hardware.cores),
    }


def _thread_columns(kernel: ReductionKernel, grid: _Grid) -> dict[str, FloatArray]:
    """What follows from how threads share a tile: vector loads, the reduction tree.

    Triton deals a tile to threads along the contiguous axis first, a vector each; what threads remain go along the
    other axis. Threads that share one output must exchange partial results, through shared memory between warps.
    """
    elem_bytes = dtype_bytes(kernel.dtype)
    contiguous, other = (grid.r, grid.x) if kernel.inner else (grid.x, grid.r)
    widest = min(max(MAX_VECTOR_BYTES // elem_bytes, 1), _alignment(kernel))
    vector = np.maximum(np.minimum(np.minimum(widest, contiguous), grid.tile // grid.threads), 1)
    along = np.minimum(np.maximum(contiguous // vector, 1), grid.threads)
    across = np.minimum(np.maximum(grid.threads // along, 1), other)
    reduce_threads, rows = (along, across) if kernel.inner else (across, along)
    serial = grid.trips * np.maximum(grid.r // reduce_threads, 1)
    log_threads, log_per_thread = np.log2(grid.threads), np.log2(grid.per_thread)
    return {
        "log2_elems_per_thread": grid.log_tile - log_threads,
        "log2_bytes_per_thread": grid.log_tile - log_threads + math.log2(kernel.total_bytes),
        "log2_contiguous_threads": np.minimum(np.log2(contiguous), log_threads),
        "log2_vector_bytes": np.log2(vector * elem_bytes),
        "log2_vectors_per_thread": log_per_thread - np.log2(vector),
        "log2_reduce_threads": np.log2(reduce_threads),
        "log2_rows_of_threads": np.log2(rows),
        "log2_serial": np.log2(serial),
    }


def _alignment(kernel: ReductionKernel) -> int:
    """Largest power of two, up to 16, that divides the contiguous extent: with an odd one no row starts aligned."""
    extent = kernel.rnumel if kernel.inner else kernel.xnumel
    return min(extent & -extent, 16)
