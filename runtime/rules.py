"""A fitted hardware's formula: the tiles at a rule's offsets around its anchors, on the kernel's lattice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tileguard.features.anchor import ANCHORS, AnchorRule, Offset
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile, TileSpace

from .lattice import lattice, persistent_r0, warp_counts

IntArray = npt.NDArray[np.int64]

_SPLIT, _FILL, _SHORT, _WIDE = range(len(ANCHORS))


def rule_tiles(rule: AnchorRule, kernel: ReductionKernel, hardware: HardwareSpec) -> tuple[ReductionTile, ...]:
    """The rule's tiles for a kernel of its class, sorted, without duplicates: legal, since all are of the lattice. May
    be empty."""
    known = lattice(kernel, hardware).position
    # Sorted as plain numbers: comparing tiles is slow, and a compiler waits.
    tiles = (_tile(*place, hardware) for place in sorted(set(_places(rule, kernel, hardware))))
    return tuple(tile for tile in tiles if tile in known)


def placed(rule: AnchorRule, kernel: ReductionKernel, hardware: HardwareSpec) -> list[ReductionTile | None]:
    """The tile at each of the rule's offsets, in their order; None where the lattice has none there."""
    known = lattice(kernel, hardware).position
    tiles = (_tile(*place, hardware) for place in _places(rule, kernel, hardware))
    return [tile if tile in known else None for tile in tiles]


def _tile(x: int, r: int, warps: int, hardware: HardwareSpec) -> ReductionTile:
    return ReductionTile(x, r, warps) if hardware.has_warps else ReductionTile(x, r)


def _places(rule: AnchorRule, kernel: ReductionKernel, hardware: HardwareSpec) -> Iterator[tuple[int, int, int]]:
    """(XBLOCK, R0_BLOCK, num_warps) at each offset; 1 warp where there are none.

    Blocks are kept within the lattice's largest and smallest, warps within what the lattice knows for the tile's size,
    so that several offsets may mean one tile.
    """
    x_largest, r_least, r_largest, largest = _extent(lattice(kernel, hardware))
    x_most, r_most = x_largest.bit_length() - 1, r_largest.bit_length() - 1
    whole = persistent_r0(kernel, hardware) if kernel.persistent else min(persistent_r0(kernel, hardware), r_largest)
    # Kernels far larger than any fitted to would else be given tiles that no lattice has.
    log_product = min(max(_log_product(rule, kernel), 0.0), math.log2(largest))
    x_starts, r_start = _starts(rule, kernel, log_product, whole, x_most, r_most)
    lowest, highest = _warp_range(kernel.persistent, hardware) if hardware.has_warps else ((), ())
    # Two dozen offsets are sooner done one by one than as arrays, and a compiler waits.
    for kind, dx, dr, dw in _numbered(rule.offsets):
        start = x_starts[_FILL] if kernel.persistent else x_starts[kind]
        if kernel.persistent or kind == _FILL:
            r = whole
        else:
            log_r = min(max(r_start + dr if kind == _SPLIT else dr, r_least.bit_length() - 1), r_most)
            if kind == _SHORT:
                start = round(log_product) - log_r
            r = 1 << log_r
        x = 1 << min(max(start + dx, 0), x_most)
        if not hardware.has_warps:
            yield x, r, 1
            continue
        log_size = math.log2(x) + math.log2(r)
        size = int(log_size)
        wanted = round(rule.warp_intercept + rule.warp_slope * log_size) + dw
        yield x, r, 1 << min(max(wanted, lowest[size]), highest[size])


@lru_cache(maxsize=1024)
def _extent(space: TileSpace) -> tuple[int, int, int, int]:
    """Largest XBLOCK, smallest and largest R0_BLOCK, and elements of the largest tile, of a lattice."""
    x, r, *_ = space.columns
    return int(x.max()), int(r.min()), int(r.max()), int((x * r).max())


def _log_product(rule: AnchorRule, kernel: ReductionKernel) -> float:
    narrow = rule.product_narrow if kernel.min_bytes <= 2 else 0.0
    return rule.product_intercept + narrow + rule.product_slope * (math.log2(kernel.xnumel) + math.log2(kernel.rnumel))


def _starts(
    rule: AnchorRule, kernel: ReductionKernel, log_product: float, whole: int, x_most: int, r_most: int
) -> tuple[tuple[int, int, int, int], int]:
    """log2 X of each anchor (short's depends on the offset's R0), and log2 R0 of split."""
    split = rule.split_intercept + rule.split_slope * (math.log2(kernel.xnumel) - math.log2(kernel.rnumel))
    by_split = _within(round((log_product + split) / 2), x_most)
    by_fill = _within(round(log_product - math.log2(whole)), x_most)
    return (by_split, by_fill, 0, x_most), _within(round((log_product - split) / 2), r_most)


def _within(exponent: int, most: int) -> int:
    return min(max(exponent, 0), most)


@lru_cache(maxsize=64)
def _numbered(offsets: tuple[Offset, ...]) -> tuple[tuple[int, int, int, int], ...]:
    """The anchor's place in ANCHORS, x, r, warps of each."""
    return tuple((ANCHORS.index(o.anchor), o.x, o.r, o.warps) for o in offsets)


@lru_cache(maxsize=16)
def _warp_range(persistent: bool, hardware: HardwareSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By log2 of a tile's size: log2 of the fewest and the most warps that the lattice has for it."""
    one = ReductionKernel(1, 1, "fp32", 1, 1, persistent=persistent)
    most = hardware.max_threads_per_block // hardware.warp_size
    # A tile past every count is the lattice's last resort, with the most warps there are.
    counts = [warp_counts(1 << exponent, one, hardware) or (most,) for exponent in range(128)]
    return tuple(c[0].bit_length() - 1 for c in counts), tuple(c[-1].bit_length() - 1 for c in counts)
