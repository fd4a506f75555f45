"""A fitted hardware's formula: the tiles at a rule's offsets around its anchors, on the kernel's lattice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

from tileguard.features.anchor import AnchorRule
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile, TileSpace

from .lattice import block_warps, lattice, persistent_r0

_Key: TypeAlias = tuple[int, int, int, int, str]


def rule_tiles(rule: AnchorRule, kernel: ReductionKernel, hardware: HardwareSpec) -> tuple[ReductionTile, ...]:
    """The rule's tiles for a kernel of its class, sorted, without duplicates: legal, since all are of the lattice. May
    be empty."""
    space = lattice(kernel, hardware)
    known = _by_key(space)
    return tuple(known[key] for key in sorted(set(_keys(rule, kernel, space, hardware))) if key in known)


def placed(rule: AnchorRule, kernel: ReductionKernel, hardware: HardwareSpec) -> list[ReductionTile | None]:
    """The tile at each of the rule's offsets, in their order; None where the lattice has none there."""
    space = lattice(kernel, hardware)
    known = _by_key(space)
    return [known.get(key) for key in _keys(rule, kernel, space, hardware)]


def prepare(space: TileSpace[ReductionTile]) -> None:
    """Work out what `rule_tiles` asks of a lattice, before a compiler waits for it."""
    _by_key(space)
    _extent(space)


@lru_cache(maxsize=1024)
def _by_key(space: TileSpace[ReductionTile]) -> dict[_Key, ReductionTile]:
    """A lattice's tiles by their sort keys: a plain tuple is made, sorted and found sooner than a tile, and a compiler
    waits."""
    return {tile.sort_key: tile for tile in space}


def _keys(
    rule: AnchorRule, kernel: ReductionKernel, space: TileSpace[ReductionTile], hardware: HardwareSpec
) -> Iterator[_Key]:
    """The sort key of the tile at each offset.

    Blocks are kept within the lattice's largest and smallest, warps within what the lattice knows for the tile's size,
    so that several offsets may mean one tile.
    """
    persistent, has_warps = kernel.persistent, hardware.has_warps
    x_largest, r_least, r_largest, largest = _extent(space)
    x_most, r_fewest, r_most = x_largest.bit_length() - 1, r_least.bit_length() - 1, r_largest.bit_length() - 1
    whole = persistent_r0(kernel, hardware)
    whole = whole if persistent else min(whole, r_largest)
    log_whole = math.log2(whole)
    # Kernels far larger than any fitted to would else be given tiles that no lattice has.
    log_product = min(max(_log_product(rule, kernel), 0.0), math.log2(largest))
    x_starts, r_start = _starts(rule, kernel, log_product, log_whole, x_most, r_most)
    most = hardware.max_threads_per_block // hardware.warp_size
    lowest, highest = _warp_range(persistent, most, hardware.warp_size) if has_warps else ((), ())
    # Two dozen offsets are sooner done one by one than as arrays.
    for kind, dx, dr, dw in rule.offsets:
        start = x_starts["fill" if persistent else kind]
        log_r: float
        if persistent or kind == "fill":
            r, log_r = whole, log_whole
        else:
            exponent = min(max(r_start + dr if kind == "split" else dr, r_fewest), r_most)
            if kind == "short":
                start = round(log_product) - exponent
            r, log_r = 1 << exponent, exponent
        log_x = min(max(start + dx, 0), x_most)
        warps = 0
        if has_warps:
            log_size = log_x + log_r
            size = int(log_size)
            wanted = round(rule.warp_intercept + rule.warp_slope * log_size) + dw
            warps = 1 << min(max(wanted, lowest[size]), highest[size])
        yield 1 << log_x, r, warps, 1, ""


@lru_cache(maxsize=1024)
def _extent(space: TileSpace[ReductionTile]) -> tuple[int, int, int, int]:
    """Largest XBLOCK, smallest and largest R0_BLOCK, and elements of the largest tile, of a lattice."""
    x, r, *_ = space.columns
    return int(x.max()), int(r.min()), int(r.max()), int((x * r).max())


def _log_product(rule: AnchorRule, kernel: ReductionKernel) -> float:
    narrow = rule.product_narrow if kernel.min_bytes <= 2 else 0.0
    return rule.product_intercept + narrow + rule.product_slope * (math.log2(kernel.xnumel) + math.log2(kernel.rnumel))


def _starts(
    rule: AnchorRule, kernel: ReductionKernel, log_product: float, log_whole: float, x_most: int, r_most: int
) -> tuple[dict[str, int], int]:
    """log2 X of each anchor (short's depends on the offset's R0), and log2 R0 of split."""
    split = rule.split_intercept + rule.split_slope * (math.log2(kernel.xnumel) - math.log2(kernel.rnumel))
    by_split = _within(round((log_product + split) / 2), x_most)
    by_fill = _within(round(log_product - log_whole), x_most)
    x_starts = {"split": by_split, "fill": by_fill, "short": 0, "wide": x_most}
    return x_starts, _within(round((log_product - split) / 2), r_most)


def _within(exponent: int, most: int) -> int:
    return min(max(exponent, 0), most)


@lru_cache(maxsize=16)
def _warp_range(persistent: bool, max_warps: int, warp_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By log2 of a tile's size: log2 of the fewest and the most warps that the lattice has for it."""
    # A tile past every count is the lattice's last resort, with the most warps there are.
    counts = [block_warps(1 << exponent, persistent, max_warps, warp_size) or {max_warps} for exponent in range(128)]
    return tuple(min(c).bit_length() - 1 for c in counts), tuple(max(c).bit_length() - 1 for c in counts)
