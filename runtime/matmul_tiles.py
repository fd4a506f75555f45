"""Triton tiles for a matrix product on a GPU, from the planner's terms: what to try where nothing has been learnt.

The terms of the tail planner (runtime/tail) with what a GPU adds: tensor cores by dtype, L2 and HBM apart, shared memory,
sides that are powers of two. docs/tail.md says what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import MatmulKernel
from tileguard.features.pow2 import pow2_ceil
from tileguard.features.tiles import MatmulTile
from tileguard.features.waves import waves

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MOST = 10
"""Tiles that are proposed."""

SIDES = (16, 32, 64, 128, 256)
"""Triton's dot takes powers of two from 16 on."""

STEP_BYTES = 128
"""Of a row of BLOCK_K elements: a cache line, and the widest swizzle of shared memory."""

LEAST_BLOCK_K = 16
LEAST_BLOCK_K_BYTE = 32
"""The second for elements of one byte."""

MOST_STAGES = 4
THREAD_ACCUMULATORS = 128
"""fp32 accumulators of a thread, of its 255 registers; more are spilled, or leave none for addresses."""

MOST_WARPS, WARP = 8, 32
TALL = 256
"""A block of so many rows has MOST_WARPS: with half of them the compiler spilled registers."""

WARP_OUTPUTS = 256
"""Least outputs of a warp, 16 x 16: the host's own rule."""

WGMMA_ROWS, WGMMA_WARPS = 64, 4
"""Least BLOCK_M, and what warps come in, for Hopper's asynchronous products; they keep one buffer more."""

MMA_SYNC_SHARE = 0.63
"""Of the peak rate, what a Hopper's older, synchronous products reach (Luo et al. 2024, microbenchmarks)."""

NEAR = 2.0
"""Tiles that are predicted to take more times the least are not proposed."""

_CAP = 1 << 48


def planner_tiles(kernel: MatmulKernel, hardware: HardwareSpec, *, most: int = MOST) -> tuple[MatmulTile, ...]:
    """Up to `most` tiles worth trying, the likeliest first; none where the hardware's rate for the dtype is not known.

    Three in five are the best tile each of a shape (BLOCK_M, BLOCK_N), by predicted time; the others the best of them
    with another BLOCK_K, number of warps or of stages. Every tile is legal for Triton, and `fits`. Deterministic; raises
    nothing for a valid kernel.
    """
    if hardware.kind != "nvidia" or hardware.matmul is None or kernel.dtype not in hardware.matmul.rates:
        return ()
    shapes = _ranked(
        [tile for m in SIDES for n in SIDES for tile in _of_shape(m, n, kernel, hardware)], kernel, hardware
    )
    first = shapes[: max(1, most * 3 // 5)]
    others = [tile for one in first for tile in _variants(one, kernel, hardware)]
    found = list(dict.fromkeys((*first, *others, *shapes)))[:most]
    if not found:
        return ()
    return tuple(found[i] for i in np.argsort(predicted_us(kernel, found, hardware), kind="stable"))


def predicted_us(kernel: MatmulKernel, tiles: Sequence[MatmulTile], hardware: HardwareSpec) -> FloatArray:
    """Time of each tile, µs: float64[n].

    The longer of n_wave·T_block, a block's arithmetic, its loads from L2 or its stores, whichever lasts longest (with
    one stage arithmetic and loads one after the other), and of all that HBM moves: both inputs once while they fit in
    L2, else what the cores of one wave share, wave by wave; and the product. K counts in whole steps, blocks count as
    whole ones, so ragged edges cost what they cost. For comparing tiles: of launching and filling pipelines it knows
    nothing, nor of what a compiler makes of a tile. Raises InvalidInput where hardware or dtype has no known rate.
    """
    return np.maximum(*_times(kernel, tiles, hardware))


def fits(tile: MatmulTile, kernel: MatmulKernel, hardware: HardwareSpec) -> bool:
    """Whether a tile can run, and differs from a smaller one: its buffers fit the shared memory, no axis is padded to
    twice what covers it, and there are K steps for its stages.

    Buffers as Triton 3.6 allocates them for sm_90: as many as stages where a product is asynchronous, one fewer where
    it is not (seen in 13 binaries; tests/learner/inductor/test_matmul_plan.py compiles some).
    """
    # Of 32-bit inputs only some are asynchronous.
    asynchronous = kernel.elem_bytes == 2 and _whole_warp_groups(tile)
    buffers = tile.num_stages if asynchronous else tile.num_stages - 1
    return (
        _step_bytes(tile, kernel) * max(1, buffers) <= hardware.onchip_bytes
        and tile.num_stages <= -(-kernel.k // tile.block_k) + 1
        and all(
            block < 2 * max(size, 16)
            for block, size in ((tile.block_m, kernel.m), (tile.block_n, kernel.n), (tile.block_k, kernel.k))
        )
    )


def _step_bytes(tile: MatmulTile, kernel: MatmulKernel) -> int:
    """Of one K step of both inputs."""
    return (tile.block_m + tile.block_n) * tile.block_k * kernel.elem_bytes


def _whole_warp_groups(tile: MatmulTile) -> bool:
    return tile.block_m >= WGMMA_ROWS and tile.num_warps is not None and tile.num_warps % WGMMA_WARPS == 0


def _of_shape(block_m: int, block_n: int, kernel: MatmulKernel, hardware: HardwareSpec) -> Iterator[MatmulTile]:
    """The tile of a shape, if one fits: a cache line of K, as many warps as accumulators want, the deepest pipeline."""
    if block_m * block_n > THREAD_ACCUMULATORS * MOST_WARPS * WARP:
        return
    least = LEAST_BLOCK_K_BYTE if kernel.elem_bytes == 1 else LEAST_BLOCK_K
    block_k = max(least, min(STEP_BYTES // kernel.elem_bytes, pow2_ceil(kernel.k)))
    warps = max(MOST_WARPS if block_m >= TALL else WGMMA_WARPS, block_m * block_n // (THREAD_ACCUMULATORS * WARP))
    yield from _deepest(block_m, block_n, block_k, warps, kernel, hardware)


def _variants(tile: MatmulTile, kernel: MatmulKernel, hardware: HardwareSpec) -> Iterator[MatmulTile]:
    """A tile with twice BLOCK_K, twice the warps, one stage fewer, half of BLOCK_K: each where it is legal and fits."""
    m, n, k, warps = tile.block_m, tile.block_n, tile.block_k, tile.num_warps or WGMMA_WARPS
    yield from _deepest(m, n, 2 * k, warps, kernel, hardware)
    if warps < MOST_WARPS:
        yield from _deepest(m, n, k, 2 * warps, kernel, hardware)
    if tile.num_stages > 2:
        yield MatmulTile(m, n, k, warps, tile.num_stages - 1, tile.group_m)
    if k // 2 >= (LEAST_BLOCK_K_BYTE if kernel.elem_bytes == 1 else LEAST_BLOCK_K):
        yield from _deepest(m, n, k // 2, warps, kernel, hardware)


def _deepest(
    block_m: int, block_n: int, block_k: int, warps: int, kernel: MatmulKernel, hardware: HardwareSpec
) -> Iterator[MatmulTile]:
    """The tile with the most stages that surely fit, if any do: 32-bit inputs may need the asynchronous buffer too."""
    warps = min(warps, max(1, block_m * block_n // WARP_OUTPUTS))
    for stages in range(MOST_STAGES, 0, -1):
        tile = MatmulTile(block_m, block_n, block_k, warps, stages)
        if _step_bytes(tile, kernel) * stages <= hardware.onchip_bytes and fits(tile, kernel, hardware):
            yield tile
            return


def _ranked(tiles: Iterable[MatmulTile], kernel: MatmulKernel, hardware: HardwareSpec) -> list[MatmulTile]:
    """Those within NEAR of the least predicted time, the fastest first; where HBM rules, the one whose blocks are
    done soonest; then the larger, and the taller."""
    found = list(tiles)
    if not found:
        return []
    of_blocks, of_memory = _times(kernel, found, hardware)
    us = np.maximum(of_blocks, of_memory)
    order = sorted(
        range(len(found)),
        key=lambda i: (us[i], of_blocks[i], -found[i].block_m * found[i].block_n, -found[i].block_m),
    )
    return [found[i] for i in order if us[i] <= NEAR * us.min()]


def _times(kernel: MatmulKernel, tiles: Sequence[MatmulTile], hardware: HardwareSpec) -> tuple[FloatArray, FloatArray]:
    """µs of all blocks, wave by wave, and of all that HBM moves: two of float64[n]."""
    unit = hardware.matmul
    if unit is None:
        raise InvalidInput("hardware", hardware.name, "one whose matrix unit is known")
    if kernel.dtype not in unit.rates:
        raise InvalidInput(
            "dtype", kernel.dtype, f"one whose rate on {hardware.name} is known: {', '.join(unit.rates)}"
        )
    # A block past every axis covers it like any other that does; as it stands it might not fit 64 bits.
    columns = [(t.block_m, t.block_n, t.block_k, t.num_stages, t.group_m) for t in tiles]
    capped = np.minimum(np.array(columns, dtype=object).reshape(-1, 5), _CAP).astype(np.int64)
    s_m, s_n, step, stages, group = capped.T
    m_cnt, n_cnt = -(-kernel.m // s_m), -(-kernel.n // s_n)
    grid = waves(kernel.batch * (m_cnt * n_cnt), hardware.cores)
    k = -(-kernel.k // step) * step.astype(np.float64)
    area, sides = s_m.astype(np.float64) * s_n, s_m.astype(np.float64) + s_n

    share = np.ones(len(tiles))
    if kernel.dtype != "fp32":  # which no tensor core multiplies
        share[[not _whole_warp_groups(tile) for tile in tiles]] = MMA_SYNC_SHARE
    compute_s = 2.0 * area * k / (unit.rates[kernel.dtype] * share)
    load_s = sides * k * kernel.elem_bytes / unit.l2_bytes_per_s_per_core
    store_s = area * kernel.out_bytes / unit.gm_bytes_per_s_per_core
    inner_s = np.where(stages == 1, compute_s + load_s, np.maximum(compute_s, load_s))
    blocks_s = grid.n_wave * np.maximum(inner_s, store_s)

    moved = np.full(len(tiles), float(kernel.input_bytes))
    if kernel.input_bytes > hardware.l2_bytes:
        # GROUP_M rows of blocks are walked column by column: what runs at once is that many rows by so many columns.
        rows = np.minimum(group, m_cnt)
        at_once = np.minimum(grid.n_blk, hardware.cores)
        shared = rows * s_m.astype(np.float64) + np.ceil(at_once / rows) * s_n
        each = grid.n_blk / at_once.astype(np.float64)
        moved = np.maximum(moved, each * shared * kernel.k * kernel.elem_bytes)
    moved = moved + float(kernel.batch) * kernel.m * kernel.n * kernel.out_bytes
    return 1e6 * blocks_s, 1e6 * moved / hardware.dram_bytes_per_s
