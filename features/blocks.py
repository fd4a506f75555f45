"""Tiles as arrays: what follows from the tiles on a hardware alone, and how one kernel's axes are cut by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .hardware import HardwareSpec
from .kernels import ReductionKernel
from .tiles import ReductionTile, TileSpace, tile_columns
from .waves import waves

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """n tiles on a hardware, all in floating point, which is exact up to 2^53.

    sides: XBLOCK and R0_BLOCK, [2, n]; log_sides: their log2. size: elements of a tile, 2^62 at most; log_size: log2 of
    the whole product. threads: of a block. per_thread: elements of each, at least 1.
    """

    sides: FloatArray
    log_sides: FloatArray
    r_is_pow2: npt.NDArray[np.bool_]
    size: FloatArray
    log_size: FloatArray
    stages: FloatArray
    log_warps: FloatArray
    threads: FloatArray
    log_threads: FloatArray
    per_thread: FloatArray


def blocks(tiles: Sequence[ReductionTile], hardware: HardwareSpec) -> Blocks:
    """The tiles as arrays; worked out once for a TileSpace, which many kernels share.

    A tile without num_warps is given the derived number. Raises InvalidInput for an empty list of tiles.
    """
    most = most_warps(hardware) if hardware.has_warps else 0
    if isinstance(tiles, TileSpace):
        return _of_space(tiles, most, hardware.warp_size)
    return _of_columns(tile_columns(tiles), most, hardware.warp_size)


def most_warps(hardware: HardwareSpec) -> int:
    """Warps of the largest block, at least 1."""
    return max(hardware.max_threads_per_block // hardware.warp_size, 1)


def derived_warps(size: IntArray, hardware: HardwareSpec) -> IntArray:
    """next_pow2(size // 128), at least 1 and at most one block's threads; 1 without warps (reduction RFC §3.1)."""
    return _derived_warps(size, most_warps(hardware) if hardware.has_warps else 0)


def _derived_warps(size: IntArray, most: int) -> IntArray:
    if not most:
        return np.ones_like(size)
    wanted = np.minimum(np.maximum(size // 128, 1), most)
    return np.int64(1) << np.ceil(np.log2(wanted)).astype(np.int64)


@lru_cache(maxsize=1024)
def _of_space(space: TileSpace[ReductionTile], most: int, warp_size: int) -> Blocks:
    return _of_columns(tile_columns(space), most, warp_size)


def _of_columns(columns: IntArray, most: int, warp_size: int) -> Blocks:
    x, r, warps, stages = columns.astype(np.float64)
    size = np.minimum(x * r, 2.0**62)
    if not warps.all():
        warps = np.where(warps > 0, warps, _derived_warps(size.astype(np.int64), most))
    threads = warps * warp_size
    per_thread = np.maximum(size / threads, 1.0)
    sides = np.array((x, r))
    log_sides = np.log2(sides)
    return Blocks(
        sides, log_sides, (columns[1] & (columns[1] - 1)) == 0, size, log_sides[0] + log_sides[1], stages,
        np.log2(warps), threads, np.log2(threads), per_thread,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A kernel's two axes, the output axis first, cut into blocks: arrays [2, n] but for the last two.

    counts: blocks along each axis (programs, trips). covered: elements that they cover, padding among them. inside:
    elements of a block that lie within the axis, at most. n_wave, rho: of the programs (waves.py).
    """

    numels: FloatArray
    counts: FloatArray
    covered: FloatArray
    inside: FloatArray
    n_wave: IntArray
    rho: FloatArray


def cut(kernel: ReductionKernel, tiles: Blocks, hardware: HardwareSpec) -> Cut:
    """The kernel's axes under each tile, its programs dealt to the hardware's cores."""
    numels = np.array(((kernel.xnumel,), (kernel.rnumel,)), dtype=np.float64)
    counts = np.ceil(numels / tiles.sides)
    dealt = waves(counts[0], hardware.cores)
    return Cut(
        numels, counts, counts * tiles.sides, np.minimum(tiles.sides, numels), dealt.n_wave, dealt.rho,
    )  # fmt: skip
