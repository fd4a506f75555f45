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
from .selector import ChosenSet, FamilySelector, Selector

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


SELECTORS: dict[str, type[FamilySelector[Any, Any]]] = {kind.family: kind for kind in (Selector, MatmulSelector)}
"""The selector of each kernel family."""
