"""Candidate sets of matrix products: the host's list first, the planner's tiles, the ranker's top k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileguard.features.anchor import FormulaParams
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import MatmulKernel
from tileguard.features.tiles import MatmulTile

from .feature_space import MATMUL
from .matmul_tiles import matmul_lattice, planner_tiles
from .selector import HOST, ChosenSet, FamilySelector, Selector

MatmulSet = ChosenSet[MatmulKernel, MatmulTile]


class MatmulSelector(FamilySelector[MatmulKernel, MatmulTile]):
    """Candidate sets of matrix products; see FamilySelector. The planner stands for the formula, and has no constants of
    its own: `formula` is not looked at. Without scores its tiles stand in its own order, the likeliest first."""

    family = MATMUL
    kernel_type, tile_type, widens = MatmulKernel, MatmulTile, False
    lattice = staticmethod(matmul_lattice)

    @staticmethod
    def fallback(
        kernel: MatmulKernel, hardware: HardwareSpec, *, all_warps: bool = False, params: FormulaParams | None = None
    ) -> tuple[MatmulTile, ...]:
        return planner_tiles(kernel, hardware)

    @staticmethod
    def order(fallback: tuple[MatmulTile, ...]) -> Callable[[MatmulTile], Any]:
        place = {tile: i for i, tile in enumerate(fallback)}
        return lambda tile: (place.get(tile, len(place)), tile.sort_key)


PRUNE_RISK = 0.05
"""Share of products on which as many tiles as are kept, chosen by the model alone, may lose over 5 %."""


def unlikely(chosen: MatmulSet, keep: int | None) -> frozenset[MatmulTile]:
    """The host's tiles that a trusted model ranks behind `keep` others of the set: what pruning may drop. Never the
    host's first; none at all where the model is not trusted or `keep`, its calibrated k for PRUNE_RISK, is None."""
    if keep is None or not chosen.verdict.trusted:
        return frozenset()
    ranked = sorted(chosen.candidates, key=lambda one: (-(one.score or 0.0), one.tile.sort_key))
    return frozenset(one.tile for one in ranked[keep:] if HOST in one.proposers) - {chosen.tiles[0]}


SELECTORS: dict[str, type[FamilySelector[Any, Any]]] = {kind.family: kind for kind in (Selector, MatmulSelector)}
"""The selector of each kernel family."""
