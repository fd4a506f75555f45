"""Who computes what: every block of a plan's strategy with its round, core and rectangle, by enumeration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput

from .cuts import EXACT, Cut
from .plan import TailPlan
from .region import block_rects, region_rects, split_rects, tail_region
from .rules import A1A

IntArray = npt.NDArray[np.int64]

MOST_BLOCKS = 1 << 22
"""Blocks that one enumeration lists at most."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One entry a block: its round and core, int64[n]; its batch and the rows and columns that it writes (ends excluded),
    int64[n, 5] as batch, m0, m1, n0, n1."""

    wave: IntArray
    core: IntArray
    rects: IntArray


def placement(plan: TailPlan, strategy: str | None = None) -> Placement:
    """Every block of `strategy` (the chosen one) in launch order.

    Raises InvalidInput for a plan by area, which knows no rectangles, a strategy that does not exist, or too many blocks.
    """
    if plan.geometry != EXACT:
        raise InvalidInput("geometry", plan.geometry, f"{EXACT}: areas have no places")
    cut = plan[strategy or plan.strategy]
    if cut.n_blk > MOST_BLOCKS:
        raise InvalidInput("n_blk", cut.n_blk, f"at most {MOST_BLOCKS} blocks to list")
    kernel = plan.kernel
    shape = (kernel.batch, kernel.m, kernel.n, *cut.main_tile)
    main = block_rects(*shape, 0, cut.n_blk - cut.r)
    tail = tail_rects(plan, cut)
    index = np.arange(len(main), dtype=np.int64)
    return Placement(
        wave=np.concatenate((index // plan.cores, np.full(len(tail), cut.n_wave - 1))),
        core=np.concatenate((index % plan.cores, np.arange(len(tail), dtype=np.int64))),
        rects=np.concatenate((main, tail)),
    )


def tail_rects(plan: TailPlan, cut: Cut) -> IntArray:
    """int64[t, 5]: the blocks of the last, partial round: batch, m0, m1, n0, n1; none where every round is full."""
    kernel = plan.kernel
    shape = (kernel.batch, kernel.m, kernel.n, *cut.main_tile)
    if not cut.new_tail or cut.strategy == A1A:
        return split_rects(block_rects(*shape, cut.n_blk - cut.r, cut.n_blk), *cut.tail_tile)
    return split_rects(region_rects(tail_region(*shape, cut.r), *cut.tail_tile), *cut.tail_tile)
