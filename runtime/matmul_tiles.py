"""Triton tiles for a matrix product on a GPU, from the planner's terms: what to try where nothing has been learnt.

The terms of the tail planner (runtime/tail) with what a GPU adds: tensor cores by dtype, L2 and HBM apart, shared memory,
sides that are powers of two. docs/tail.md says what is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from tileguard.features.errors import checked_type
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import MatmulKernel
from tileguard.features.matmul_time import WGMMA_ROWS, WGMMA_WARPS, matmul_times, predicted_us
from tileguard.features.tiles import MatmulTile, TileSpace, matmul_columns

MOST = 10
"""Tiles that are proposed."""

SHAPES = 4
"""Of ten tiles, those of different shapes; of 3 to 8, what made the best of the ten fastest on the H200's corpus."""

SIDES = (16, 32, 64, 128, 256)
"""Triton's dot takes powers of two from 16 on."""

LEAST_BLOCK_K = 16
LEAST_BLOCK_K_BYTE = 32
"""The second for elements of one byte."""

THREAD_ACCUMULATORS = 128
"""fp32 accumulators of a thread, of its 255 registers; more are spilled, or leave none for addresses."""

WARP = 32
WARP_OUTPUTS = 256
"""Least outputs of a warp, 16 x 16: the host's own rule."""

NEAR = 2.0
"""Tiles that take more times the least by their rates alone are not in the lattice."""

LATTICE_STAGES, LATTICE_WARPS = (1, 2, 3, 4, 5), (1, 2, 4, 8)
LATTICE_BLOCK_K = (16, 32, 64, 128, 256)
MOST_RANKED = 256
"""Tiles of a lattice: what a ranker scores in well under a millisecond."""


def planner_tiles(kernel: MatmulKernel, hardware: HardwareSpec, *, most: int = MOST) -> tuple[MatmulTile, ...]:
    """Up to `most` tiles worth trying, the likeliest first; none where the hardware's rate for the dtype is not known.

    Of the lattice, SHAPES in ten are the best tile each of a shape (BLOCK_M, BLOCK_N), by predicted time; the others the
    best with another BLOCK_K or number of warps. Every tile is legal for Triton, and `fits`. Deterministic; raises nothing
    for a valid kernel. Cached by its arguments.
    """
    return _planner_tiles(kernel, hardware, most)


@lru_cache(maxsize=256)
def _planner_tiles(kernel: MatmulKernel, hardware: HardwareSpec, most: int) -> tuple[MatmulTile, ...]:
    space = matmul_lattice(kernel, hardware)
    if not len(space):
        return ()
    order = np.argsort(predicted_us(kernel, space, hardware), kind="stable")
    ranked = [space[i] for i in order if _surely_fits(space[i], kernel, hardware)]
    first = _best_of_each(ranked, lambda tile: (tile.block_m, tile.block_n))[: max(1, most * SHAPES // 10)]
    others = _best_of_each(ranked, lambda tile: (tile.block_m, tile.block_n, tile.block_k, tile.num_warps))
    found = {*list(dict.fromkeys((*first, *others)))[:most]}
    return tuple(tile for tile in ranked if tile in found)


def _best_of_each(ranked: Sequence[MatmulTile], kind: Callable[[MatmulTile], object]) -> list[MatmulTile]:
    """The first of each kind, in their order."""
    best: dict[object, MatmulTile] = {}
    for tile in ranked:
        best.setdefault(kind(tile), tile)
    return list(best.values())


def matmul_lattice(kernel: MatmulKernel, hardware: HardwareSpec) -> TileSpace[MatmulTile]:
    """The tiles that a ranker chooses from, sorted: of the host's exhaustive search space those that fit and that are not
    hopeless by their rates alone (`bound_us`), the MOST_RANKED likeliest. Empty where it knows no rate. Cached by its arguments.

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


def _surely_fits(tile: MatmulTile, kernel: MatmulKernel, hardware: HardwareSpec) -> bool:
    """Whether a tile that fits does so where its products turn out asynchronous: of 32-bit inputs only some are."""
    return not _whole_warp_groups(tile) or _step_bytes(tile, kernel) * tile.num_stages <= hardware.onchip_bytes


@lru_cache(maxsize=256)
def _lattice(kernel: MatmulKernel, hardware: HardwareSpec) -> TileSpace[MatmulTile]:
    if not is_rated(kernel, hardware):
        return TileSpace(())
    least = _least_block_k(kernel)
    fitting = [tile for tile in _grid() if tile.block_k >= least and fits(tile, kernel, hardware)]
    if not fitting:
        return TileSpace(())
    us = matmul_times(kernel, matmul_columns(fitting), hardware).bound_us
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
