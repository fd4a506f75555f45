"""What can be chosen: frozen, ordered, hashable tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import total_ordering
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from .errors import InvalidInput, checked_choice, checked_int

LOWERINGS = ("loop", "snapshot", "select")

SORT_KEY = attrgetter("sort_key")
"""The tiles' own order as a key: one tuple a tile, where comparing tiles makes two a comparison."""


@total_ordering
@dataclass(frozen=True, slots=True)
class ReductionTile:
    """One choice of (XBLOCK, R0_BLOCK, num_warps, num_stages) or, on the CPU, of a lowering.

    `num_warps` is None where the hardware derives or ignores it. Ordered by its fields, None first.
    """

    xblock: int
    r0_block: int
    num_warps: int | None = None
    num_stages: int = 1
    lowering: str | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        for field in ("xblock", "r0_block", "num_stages"):
            put(self, field, checked_int(field, getattr(self, field), minimum=1))
        if self.num_warps is not None:
            put(self, "num_warps", checked_int("num_warps", self.num_warps, minimum=1))
        if self.lowering is not None:
            checked_choice("lowering", self.lowering, LOWERINGS)

    @property
    def sort_key(self) -> tuple[int, int, int, int, str]:
        return (self.xblock, self.r0_block, self.num_warps or 0, self.num_stages, self.lowering or "")

    def __lt__(self, other: ReductionTile) -> bool:
        return self.sort_key < other.sort_key

    def __str__(self) -> str:
        parts = [f"X{self.xblock}", f"R{self.r0_block}"]
        if self.num_warps is not None:
            parts.append(f"w{self.num_warps}")
        if self.num_stages != 1:
            parts.append(f"s{self.num_stages}")
        if self.lowering is not None:
            parts.append(self.lowering)
        return "·".join(parts)


@total_ordering
@dataclass(frozen=True, slots=True)
class MatmulTile:
    """One choice of (BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, GROUP_M)."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int | None = None
    num_stages: int = 1
    group_m: int = 8

    def __post_init__(self) -> None:
        put = object.__setattr__
        for field in ("block_m", "block_n", "block_k", "num_stages", "group_m"):
            put(self, field, checked_int(field, getattr(self, field), minimum=1))
        if self.num_warps is not None:
            put(self, "num_warps", checked_int("num_warps", self.num_warps, minimum=1))

    @property
    def sort_key(self) -> tuple[int, int, int, int, int, int]:
        return (self.block_m, self.block_n, self.block_k, self.num_warps or 0, self.num_stages, self.group_m)

    def __lt__(self, other: MatmulTile) -> bool:
        return self.sort_key < other.sort_key


def tile_columns(tiles: Sequence[ReductionTile]) -> npt.NDArray[np.int64]:
    """int64[4, n]: xblock, r0_block, num_warps (0 where None), num_stages."""
    if not tiles:
        raise InvalidInput("tiles", tiles, "at least one tile")
    columns = (
        [t.xblock for t in tiles], [t.r0_block for t in tiles], [t.num_warps or 0 for t in tiles],
        [t.num_stages for t in tiles],
    )  # fmt: skip
    return np.array(columns, dtype=np.int64)
