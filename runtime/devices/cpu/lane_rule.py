"""What is proposed on a CPU without a model: the tiles of a LaneRule, on the kernel's lattice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tileguard.features.kernels import ReductionKernel
from tileguard.features.lanes import LaneRule, LaneTile
from tileguard.features.tiles import ReductionTile

from .operation import compute_bytes
from .program_ops import PROGRAM_OPS


def lane_class(kernel: ReductionKernel) -> tuple[bool, bool]:
    """(program, inner): the class whose LaneRule a kernel takes."""
    return kernel.op in PROGRAM_OPS, kernel.inner


def lane_tile(kernel: ReductionKernel, tile: ReductionTile) -> LaneTile:
    """What a tile of powers of two is in registers."""
    flat = kernel.op in PROGRAM_OPS or not kernel.inner
    wide, beside = (tile.xblock, tile.r0_block) if flat else (tile.r0_block, tile.xblock)
    return LaneTile((wide * compute_bytes(kernel.dtype)).bit_length() - 1, beside.bit_length() - 1, tile.lowering)


def placed(
    wanted: Sequence[LaneTile], kernel: ReductionKernel, tiles: Iterable[ReductionTile]
) -> list[ReductionTile | None]:
    """For each of `wanted` the tile of `tiles` that is it, or the largest that exceeds it in neither extent, the wider
    one first; None where there is none of its lowering."""
    at = {lane_tile(kernel, tile): tile for tile in tiles}
    out: list[ReductionTile | None] = []
    for want in wanted:
        if want in at:
            out.append(at[want])
            continue
        within = [
            have for have in at
            if have.lowering == want.lowering and have.bytes_log2 <= want.bytes_log2
            and have.beside_log2 <= want.beside_log2
        ]  # fmt: skip
        out.append(at[max(within, key=lambda have: have[:2])] if within else None)
    return out


def lane_tiles(
    rules: Sequence[LaneRule], kernel: ReductionKernel, tiles: Iterable[ReductionTile]
) -> tuple[ReductionTile, ...]:
    """The tiles that a kernel's rule names, sorted, without duplicates; empty where no rule is for its class."""
    for rule in rules:
        if (rule.program, rule.inner) == lane_class(kernel):
            return tuple(sorted({tile for tile in placed(rule.tiles, kernel, tiles) if tile is not None}))
    return ()
