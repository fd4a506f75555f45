"""From scores to a short list: the k tiles to compile, best first, no two of them alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.tiles import LOWERINGS, MatmulTile, TileSpace, matmul_columns, tile_columns

LIKENESS_RANGE = 2.0
"""Doublings over which the likeness of two tiles falls to 1/e."""

WARP_WEIGHT = 0.7
"""A doubled warp count is a smaller step than a doubled block size: it changes no memory access."""

LOWERING_LIKENESS = math.exp(-2.0)
"""Of one block under two lowerings: as far apart as two blocks four doublings away from each other."""

_TINY = float(np.finfo(np.float64).tiny)


def choose(scores: npt.NDArray[np.float64], tiles: Sequence[Any], k: int, *, diversity: float = 0.0) -> tuple[int, ...]:
    """Indices of at most k tiles, in the order chosen; ties go to the earlier tile.

    The first is the best-scored one. Each next one maximises its standardised score less `diversity` times its
    likeness to the nearest chosen tile, e^(-d/2) at a distance of d doublings: where scores are close, a different
    tile tells more than the neighbour of one that is measured anyway.
    """
    n = len(tiles)
    k = min(k, n)
    if not diversity or not n:
        return tuple(np.argsort(-scores, kind="stable")[:k].tolist())
    # A host may have told numpy to raise where a number underflows.
    with np.errstate(all="ignore"):
        places, lowerings = _of_space(tiles) if isinstance(tiles, TileSpace) else _places(tiles)
        return _greedy(scores, places, lowerings, k, diversity)


def _places(tiles: Sequence[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64] | None]:
    """float64[axes, n]: where tiles of one family lie, so that likeness is e to the minus sum of differences. int64[n]:
    their lowerings, None where no tile has one."""
    if isinstance(tiles[0], MatmulTile):
        return _matmul_places(tiles), None
    x, r, warps, _ = tile_columns(tiles)
    places = np.log2(np.array((x, r, np.maximum(warps, 1)), dtype=np.float64)) / LIKENESS_RANGE
    places[2] *= WARP_WEIGHT
    named = [0 if tile.lowering is None else 1 + LOWERINGS.index(tile.lowering) for tile in tiles]
    return places, np.array(named) if any(named) else None


def _matmul_places(tiles: Sequence[MatmulTile]) -> npt.NDArray[np.float64]:
    """float64[6, n]: the three sides, then warps, stages and GROUP_M, which change how a block runs, not what it is."""
    m, n, k, warps, stages, group = matmul_columns(tiles)
    places = np.log2(np.array((m, n, k, np.maximum(warps, 1), stages, group), dtype=np.float64)) / LIKENESS_RANGE
    places[3:] *= WARP_WEIGHT
    return places


_of_space = lru_cache(maxsize=1024)(_places)
"""Of a TileSpace, once: many kernels share one."""


def prepare(space: TileSpace[Any]) -> None:
    """Work out where a space's tiles lie, before a compiler waits for it."""
    _of_space(space)


def _greedy(
    scores: npt.NDArray[np.float64],
    places: npt.NDArray[np.float64],
    lowerings: npt.NDArray[np.int64] | None,
    k: int,
    diversity: float,
) -> tuple[int, ...]:
    n = len(scores)
    # Scaled first: scores may be as large as doubles get, and their squares larger.
    scaled = scores / max(float(np.abs(scores).max()), _TINY)
    centred = scaled - scaled.sum() / n
    spread = math.sqrt(float(centred @ centred) / n)
    value = centred / spread if spread > 0 else np.zeros(n)
    # While fewer than k are chosen, one of the k best is left, and likeness takes `diversity` of it at most: what lies
    # further below the k-th is never chosen.
    kth = sorted(value.tolist())[n - k]
    contenders = (value >= kth - diversity).nonzero()[0]
    value, places = value[contenders], places[:, contenders]
    lowerings = None if lowerings is None else lowerings[contenders]
    nearest = np.zeros(len(contenders))
    pick = int(scores[contenders].argmax())
    chosen = [pick]
    while len(chosen) < k:
        value[pick] = -np.inf
        likeness = np.exp(-np.add.reduce(np.abs(places - places[:, pick : pick + 1])))
        if lowerings is not None:
            likeness[lowerings != lowerings[pick]] *= LOWERING_LIKENESS
        np.maximum(nearest, likeness, out=nearest)
        pick = int((value - diversity * nearest).argmax())
        chosen.append(pick)
    return tuple(contenders[chosen].tolist())
