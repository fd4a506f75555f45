"""What can be chosen: frozen, ordered, hashable tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import total_ordering
from operator import attrgetter
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .errors import InvalidInput, checked_choice, checked_int, checked_type

_CAP = 1 << 48
_CAPS = np.array([_CAP, _CAP, 1 << 20, 1 << 20], dtype=np.int64)
_MATMUL_CAPS = (_CAP, _CAP, _CAP, 1 << 20, 1 << 20, _CAP)

T = TypeVar("T")

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
        warps = self.num_warps
        if (
            type(self.xblock) is type(self.r0_block) is type(self.num_stages) is int
            and self.xblock > 0 and self.r0_block > 0 and self.num_stages > 0 and self.lowering is None
            and (warps is None or (type(warps) is int and warps > 0))
        ):  # fmt: skip
            return  # a lattice makes hundreds in a compiler's way
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


class TileSpace(Sequence[T]):
    """Distinct tiles with what is asked of them for every kernel, worked out once: a lattice serves many kernels.

    tiles: in order; position: of each tile.
    """

    __slots__ = ("_before", "_columns", "position", "tiles")

    def __init__(self, tiles: Iterable[T]) -> None:
        self.tiles: tuple[T, ...] = tuple(tiles)
        self.position: dict[T, int] = {tile: i for i, tile in enumerate(self.tiles)}
        if len(self.position) < len(self.tiles):
            self.tiles = tuple(dict.fromkeys(self.tiles))
            self.position = {tile: i for i, tile in enumerate(self.tiles)}
        self._before: TileSpace[T] | None = None
        self._columns: npt.NDArray[np.int64] | None = None

    def with_extra(self, extra: Iterable[T]) -> TileSpace[T]:
        """This space, then those of `extra` that it lacks."""
        new = tuple(tile for tile in dict.fromkeys(extra) if tile not in self.position)
        if not new:
            return self
        joined: TileSpace[T] = TileSpace.__new__(TileSpace)
        joined.tiles = self.tiles + new
        joined.position = self.position | {tile: i for i, tile in enumerate(new, start=len(self.tiles))}
        joined._before, joined._columns = self, None
        return joined

    @property
    def columns(self) -> npt.NDArray[np.int64]:
        """The tiles as `tile_columns` or `matmul_columns` gives them, made when first asked for."""
        if self._columns is None:
            before = self._before
            if before is None or not before.tiles:
                self._columns = _columns_of(self.tiles)
            else:
                self._columns = np.concatenate((before.columns, _columns_of(self.tiles[len(before) :])), axis=1)
        return self._columns

    def __len__(self) -> int:
        return len(self.tiles)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.tiles[index]


def tile_columns(tiles: Sequence[ReductionTile]) -> npt.NDArray[np.int64]:
    """int64[4, n]: xblock, r0_block (2^48 at most), num_warps (0 where None), num_stages. Raises InvalidInput for no tile, and
    for what is none."""
    if not tiles:
        raise InvalidInput("tiles", tiles, "at least one tile")
    return tiles.columns if isinstance(tiles, TileSpace) else _columns(_all_of(ReductionTile, tiles))


def matmul_columns(tiles: Sequence[MatmulTile]) -> npt.NDArray[np.int64]:
    """int64[6, n]: block_m, block_n, block_k, num_warps (0 where None), num_stages, group_m; sides and group 2^48 at
    most. Read-only. Raises InvalidInput for what is no tile."""
    return tiles.columns if isinstance(tiles, TileSpace) else _matmul_columns(_all_of(MatmulTile, tiles))


def _all_of(kind: type[T], tiles: Sequence[T]) -> Sequence[T]:
    for tile in tiles:
        checked_type("tiles", tile, kind)
    return tiles


def _columns_of(tiles: Sequence[Any]) -> npt.NDArray[np.int64]:
    return _matmul_columns(tiles) if tiles and isinstance(tiles[0], MatmulTile) else _columns(tiles)


def _matmul_columns(tiles: Sequence[MatmulTile]) -> npt.NDArray[np.int64]:
    # As in _columns: a side past every axis might not fit 64 bits.
    rows = [tile.sort_key for tile in tiles]
    try:
        array = np.array(rows, dtype=np.int64)
    except OverflowError:
        array = np.array([[min(n, _CAP) for n in row] for row in rows], dtype=np.int64)
    array = np.ascontiguousarray(np.minimum(array.reshape(-1, 6), _MATMUL_CAPS).T)
    array.flags.writeable = False
    return array


def _columns(tiles: Sequence[ReductionTile]) -> npt.NDArray[np.int64]:
    # A block past every axis covers it like any other that does; as it stands it might not fit 64 bits.
    rows = [(t.xblock, t.r0_block, t.num_warps or 0, t.num_stages) for t in tiles]
    try:
        array = np.array(rows, dtype=np.int64)
    except OverflowError:
        array = np.array([[min(n, _CAP) for n in row] for row in rows], dtype=np.int64)
    array = np.ascontiguousarray(np.minimum(array, _CAPS).T)
    array.flags.writeable = False
    return array
