"""Triton tiles for a matrix product on a GPU, from the planner's terms: what to try where nothing has been learnt.

The terms of the tail planner (runtime/tail) with what a GPU adds: tensor cores by dtype, L2 and HBM apart, shared memory,
sides that are powers of two. docs/tail.md says what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from tileguard.features.errors import checked_type
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import MatmulKernel
from tileguard.features.matmul_time import WGMMA_ROWS, WGMMA_WARPS, matmul_times, predicted_us
from tileguard.features.pow2 import pow2_ceil
from tileguard.features.tiles import MatmulTile, TileSpace, matmul_columns

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

NEAR = 2.0
"""Tiles that are predicted to take more times the least are not proposed."""

LATTICE_STAGES, LATTICE_WARPS = (1, 2, 3, 4, 5), (1, 2, 4, 8)
LATTICE_BLOCK_K = (16, 32, 64, 128, 256)
MOST_RANKED = 256
"""Tiles of a lattice: what a ranker scores in well under a millisecond."""


def planner_tiles(kernel: MatmulKernel, hardware: HardwareSpec, *, most: int = MOST) -> tuple[MatmulTile, ...]:
    """Up to `most` tiles worth trying, the likeliest first; none where the hardware's rate for the dtype is not known.

    Three in five are the best tile each of a shape (BLOCK_M, BLOCK_N), by predicted time; the others the best of them
    with another BLOCK_K, number of warps or of stages. Every tile is legal for Triton, and `fits`. Deterministic; raises
    nothing for a valid kernel. Cached by its arguments.
    """
    return _planner_tiles(kernel, hardware, most)


@lru_cache(maxsize=256)
def _planner_tiles(kernel: MatmulKernel, hardware: HardwareSpec, most: int) -> tuple[MatmulTile, ...]:
    if not is_rated(kernel, hardware):
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


def matmul_lattice(kernel: MatmulKernel, hardware: HardwareSpec) -> TileSpace[MatmulTile]:
    """The tiles that a ranker chooses from, sorted: of the host's exhaustive search space those that fit and that the
    planner does not think hopeless, the MOST_RANKED likeliest. Empty where it knows no rate. Cached by its arguments.

    GROUP_M is the host's 8 throughout.
    """
    return _lattice(kernel, hardware)


def is_rated(kernel: MatmulKernel, hardware: HardwareSpec) -> bool:
    """Whether there are Triton tiles to propose: on a GPU whose rate for the dtype is known. Raises InvalidInput for what
    is no kernel or no hardware."""
    checked_type("kernel", kernel, MatmulKernel)
    checked_type("hardware", hardware, HardwareSpec)
    return hardware.kind == "nvidia" and hardware.matmul is not None and kernel.dtype in hardware.matmul.rates


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


@lru_cache(maxsize=256)
def _lattice(kernel: MatmulKernel, hardware: HardwareSpec) -> TileSpace[MatmulTile]:
    if not is_rated(kernel, hardware):
        return TileSpace(())
    least = _least_block_k(kernel)
    fitting = [tile for tile in _grid() if tile.block_k >= least and fits(tile, kernel, hardware)]
    if not fitting:
        return TileSpace(())
    us = predicted_us(kernel, fitting, hardware)
    likeliest = np.argsort(us, kind="stable")[:MOST_RANKED]
    return TileSpace(
        sorted((fitting[i] for i in likeliest if us[i] <= NEAR * us.min()), key=lambda tile: tile.sort_key)
    )


@lru_cache(maxsize=1)
def _grid() -> tuple[MatmulTile, ...]:
    """Every tile with enough outputs for its warps, and registers for them."""
    return tuple(
        MatmulTile(m, n, k, warps, stages)
        for m in SIDES for n in SIDES for warps in LATTICE_WARPS
        if WARP_OUTPUTS * warps <= m * n <= THREAD_ACCUMULATORS * WARP * warps
        for k in LATTICE_BLOCK_K for stages in LATTICE_STAGES
    )  # fmt: skip


def _least_block_k(kernel: MatmulKernel) -> int:
    return LEAST_BLOCK_K_BYTE if kernel.elem_bytes == 1 else LEAST_BLOCK_K


def _step_bytes(tile: MatmulTile, kernel: MatmulKernel) -> int:
    """Of one K step of both inputs."""
    return (tile.block_m + tile.block_n) * tile.block_k * kernel.elem_bytes


def _whole_warp_groups(tile: MatmulTile) -> bool:
    return tile.block_m >= WGMMA_ROWS and tile.num_warps is not None and tile.num_warps % WGMMA_WARPS == 0


def _of_shape(block_m: int, block_n: int, kernel: MatmulKernel, hardware: HardwareSpec) -> Iterator[MatmulTile]:
    """The tile of a shape, if one fits: a cache line of K, as many warps as accumulators want, the deepest pipeline."""
    if block_m * block_n > THREAD_ACCUMULATORS * MOST_WARPS * WARP:
        return
    block_k = max(_least_block_k(kernel), min(STEP_BYTES // kernel.elem_bytes, pow2_ceil(kernel.k)))
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
    if k // 2 >= _least_block_k(kernel):
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
    times = matmul_times(kernel, matmul_columns(found), hardware)
    us, of_blocks = times.us, times.blocks_us
    order = sorted(
        range(len(found)),
        key=lambda i: (us[i], of_blocks[i], -found[i].block_m * found[i].block_n, -found[i].block_m),
    )
    return [found[i] for i in order if us[i] <= NEAR * us.min()]
