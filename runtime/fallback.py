"""What is proposed without a model: the formula's pairs as legal tiles of a hardware."""

from __future__ import annotations

import numpy as np

from tileguard.features.anchor import ASCEND_910B3
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.pow2 import pow2_ceil, pow2_floor
from tileguard.features.reduction import derived_warps
from tileguard.features.tiles import ReductionTile

from .formula import FITTED, select_candidates
from .lattice import is_legal, lattice, persistent_r0, warp_counts


def formula_tiles(
    kernel: ReductionKernel, hardware: HardwareSpec, *, all_warps: bool = False
) -> tuple[ReductionTile, ...]:
    """The formula's candidates on `hardware`, legal and sorted; never empty.

    Each pair gets the derived warp count, next_pow2(X·R0 // 128) within the hardware's limits, or with `all_warps`
    every count that the lattice knows for the tile. A persistent kernel keeps only the pairs' XBLOCK; where blocks
    must be powers of two, an R0 of rnumel (the formula's FILL and SMALL columns) becomes the power of two that covers
    it, or on the CPU, where no block exceeds its axis, the one below.
    """
    pairs = select_candidates(
        kernel.xnumel, kernel.rnumel, kernel.dtype, kernel.num_load, kernel.num_reduction, kernel.min_bytes,
        params=FITTED.get(hardware.name, ASCEND_910B3),
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
