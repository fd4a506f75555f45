"""The candidate sets that a compiler engineer would use today, as indices into a sweep's measured tiles.

A tile that the sweep did not measure can neither win nor be counted: a set is what is left of it on the lattice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tileguard.features.anchor import FormulaParams
from tileguard.features.hardware import HardwareSpec
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.fallback import formula_tiles

from .corpus import KernelSweep

Candidates = tuple[int, ...]
"""Distinct indices into a sweep's tiles, in the order in which they would be compiled."""

COORDINATE_DESCENT_THRESHOLD = 0.001
"""TorchInductor's coordinate descent moves only for a gain of 0.1 %."""


def measured(sweep: KernelSweep, tiles: Iterable[Any]) -> Candidates:
    """Those of `tiles` that the sweep measured, in order."""
    return tuple(dict.fromkeys(sweep.index[tile] for tile in tiles if tile in sweep.index))


def union(*sets: Candidates) -> Candidates:
    """Candidate sets together, in order, without duplicates."""
    return tuple(dict.fromkeys(index for one in sets for index in one))


def dense(sweep: KernelSweep) -> Candidates:
    """Every tile of the sweep."""
    return tuple(range(len(sweep.tiles)))


def host_default(sweep: KernelSweep) -> Candidates:
    """The compiler's own list."""
    return sweep.host_default


def host_max_autotune(sweep: KernelSweep) -> Candidates:
    """The compiler's longer list, where the user asks for it."""
    return sweep.host_max_autotune


def host_coordinate_descent(sweep: KernelSweep) -> Candidates:
    """Coordinate descent from the best of the max-autotune list, simulated on the sweep.

    All neighbours that double or halve one of XBLOCK, R0_BLOCK, num_warps are tried, the best is taken when it gains
    over 0.1 %, until none does. TorchInductor walks one field at a time, which tries fewer tiles and ends worse: this
    is the stronger form. Neighbours outside the sweep are skipped.
    """
    tried = dict.fromkeys(sweep.host_max_autotune)
    if not tried:
        return ()
    slowdown = sweep.slowdown
    best = min(tried, key=lambda i: slowdown[i])
    while neighbours := [sweep.index[tile] for tile in _neighbours(sweep.tiles[best]) if tile in sweep.index]:
        tried.update(dict.fromkeys(neighbours))
        nearest = min(neighbours, key=lambda i: slowdown[i])
        if not slowdown[nearest] < slowdown[best] * (1 - COORDINATE_DESCENT_THRESHOLD):
            break
        best = nearest
    return tuple(tried)


def _neighbours(tile: ReductionTile) -> list[ReductionTile]:
    fields = ("xblock", "r0_block", "num_warps")
    start = {name: getattr(tile, name) for name in fields}
    return [
        ReductionTile(**(start | {name: value}), num_stages=tile.num_stages, lowering=tile.lowering)
        for name in fields
        if start[name] is not None
        for value in (start[name] * 2, start[name] // 2)
        if value >= 1
    ]


def formula(
    sweep: KernelSweep,
    hardware: HardwareSpec,
    *,
    all_warps: bool,
    params: FormulaParams | None = None,
    propose: Callable[..., tuple[Any, ...]] = formula_tiles,
) -> Candidates:
    """The formula's tiles on `hardware`, with their own warp counts or with every one that was measured. params: as
    `propose` takes them, what the kernel's family proposes without a model."""
    tiles = propose(sweep.kernel, hardware, params=params)
    if not all_warps:
        return measured(sweep, tiles)
    blocks = {(tile.xblock, tile.r0_block) for tile in tiles}
    return tuple(i for i, tile in enumerate(sweep.tiles) if (tile.xblock, tile.r0_block) in blocks)
