"""What is proposed without a model: the formula's tiles, legal on a hardware."""

from __future__ import annotations

import numpy as np

from tileguard.features.anchor import FormulaParams
from tileguard.features.blocks import derived_warps
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.pow2 import pow2_ceil, pow2_floor
from tileguard.features.tiles import SORT_KEY, ReductionTile

from .formula import fitted, select_candidates
from .lattice import is_legal, lattice, persistent_r0, warp_counts
from .rules import rule_tiles


def formula_tiles(
    kernel: ReductionKernel,
    hardware: HardwareSpec,
    *,
    all_warps: bool = False,
    params: FormulaParams | None = None,
) -> tuple[ReductionTile, ...]:
    """The formula's candidates on `hardware`, legal and sorted; never empty. params: left out, those fitted to the
    hardware, and without any the RFC's.

    Where the kernel's class has a fitted rule, they are the rule's tiles. Otherwise each of the RFC's pairs gets the
    derived warp count, next_pow2(X·R0 // 128) within the hardware's limits. With `all_warps` each block gets every count
    that the lattice knows for it besides.
    """
    params = fitted(hardware) if params is None else params
    if hardware.kind == "cpu" and params.lanes and (found := _lane_tiles(params, kernel)):
        return found
    rule = params.rule_of(kernel)
    if rule is not None and (tiles := rule_tiles(rule, kernel, hardware)):
        if not all_warps or not hardware.has_warps:
            return tiles
        blocks = {(tile.xblock, tile.r0_block) for tile in tiles}
        more = {ReductionTile(x, r, warps) for x, r in blocks for warps in warp_counts(x * r, kernel, hardware)}
        return tuple(sorted(more.union(tiles), key=SORT_KEY))
    return _rfc_tiles(kernel, hardware, params, all_warps=all_warps)


def _lane_tiles(params: FormulaParams, kernel: ReductionKernel) -> tuple[ReductionTile, ...]:
    from .devices.cpu.budgets import cpu_tiles
    from .devices.cpu.lane_rule import lane_tiles

    return lane_tiles(params.lanes, kernel, cpu_tiles(kernel))


def _rfc_tiles(
    kernel: ReductionKernel, hardware: HardwareSpec, params: FormulaParams, *, all_warps: bool
) -> tuple[ReductionTile, ...]:
    """The RFC's pairs as tiles. A persistent kernel keeps only the pairs' XBLOCK; where blocks must be powers of two, an
    R0 of rnumel (the formula's FILL and SMALL columns) becomes the power of two that covers it, or on the CPU, where no
    block exceeds its axis, the one below.
    """
    pairs = select_candidates(
        kernel.xnumel, kernel.rnumel, kernel.dtype, kernel.num_load, kernel.num_reduction, kernel.min_bytes,
        params=params,
    )  # fmt: skip
    if kernel.persistent:
        pairs = sorted({(x, persistent_r0(kernel, hardware)) for x, _ in pairs})
    elif hardware.kind == "nvidia":
        pairs = sorted({(x, pow2_ceil(r)) for x, r in pairs})
    elif hardware.kind == "cpu":
        pairs = sorted({(x, pow2_floor(min(r, kernel.rnumel))) for x, r in pairs})
    if not hardware.has_warps:
        tiles = [ReductionTile(x, r) for x, r in pairs]
    else:
        # X·R0 may pass 64 bits, but from far below that on it takes the most warps there are.
        sizes = np.array([min(x * r, 1 << 32) for x, r in pairs], dtype=np.int64)
        derived = derived_warps(sizes, hardware).tolist()
        tiles = [
            ReductionTile(x, r, warps)
            for (x, r), own in zip(pairs, derived, strict=True)
            for warps in (sorted({own, *warp_counts(x * r, kernel, hardware)}) if all_warps else (own,))
        ]
    legal = tuple(tile for tile in tiles if is_legal(tile, kernel, hardware))
    # Of a kernel that the hardware cannot take, one tile is left, and compiling it says why.
    return legal or lattice(kernel, hardware)[:1]
