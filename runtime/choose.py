"""From scores to a short list: the k tiles to compile, best first, no two of them alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from operator import sub
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tileguard.features.tiles import LOWERINGS, MatmulTile, TileSpace, matmul_columns, tile_columns

LIKENESS_RANGE = 2.0
"""Doublings over which the likeness of two tiles falls to 1/e."""

WARP_WEIGHT = 0.7
"""A doubled warp count is a smaller step than a doubled block size: it changes no memory access."""

LOWERING_DISTANCE = 2.0
"""Of one block under two lowerings: as far apart as two blocks four doublings away from each other."""

_Place: TypeAlias = tuple[float, ...]

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
        value = _standardised(scores)
    places = _of_space(tiles) if isinstance(tiles, TileSpace) else _places(tiles)
    return _greedy(int(scores.argmax()), value, places, k, diversity)


def _places(tiles: Sequence[Any]) -> list[_Place]:
    """Where tiles of one family lie: likeness is e to the minus sum of differences."""
    if isinstance(tiles[0], MatmulTile):
        return _matmul_places(tiles)
    x, r, warps, _ = tile_columns(tiles)
    places = np.log2(np.array((x, r, np.maximum(warps, 1)), dtype=np.float64)) / LIKENESS_RANGE
    places[2] *= WARP_WEIGHT
    if all(tile.lowering is None for tile in tiles):
        return _points(places)
    # One axis a lowering: two that differ lie apart along two of them.
    named = np.array([0 if tile.lowering is None else 1 + LOWERINGS.index(tile.lowering) for tile in tiles])
    lowered = np.eye(1 + len(LOWERINGS))[named].T * (LOWERING_DISTANCE / 2)
    return _points(np.concatenate((places, lowered)))


def _matmul_places(tiles: Sequence[MatmulTile]) -> list[_Place]:
    """The three sides, then warps, stages and GROUP_M, which change how a block runs, not what it is."""
    m, n, k, warps, stages, group = matmul_columns(tiles)
    places = np.log2(np.array((m, n, k, np.maximum(warps, 1), stages, group), dtype=np.float64)) / LIKENESS_RANGE
    places[3:] *= WARP_WEIGHT
    return _points(places)


def _points(places: npt.NDArray[np.float64]) -> list[_Place]:
    return [tuple(place) for place in places.T.tolist()]


_of_space = lru_cache(maxsize=1024)(_places)
"""Of a TileSpace, once: many kernels share one."""


def prepare(space: TileSpace[Any]) -> None:
    """Work out where a space's tiles lie, before a compiler waits for it."""
    _of_space(space)


def _standardised(scores: npt.NDArray[np.float64]) -> list[float]:
    # Scaled first: scores may be as large as doubles get, and their squares larger.
    scaled = scores / max(float(np.abs(scores).max()), _TINY)
    centred = scaled - scaled.sum() / len(scores)
    spread = math.sqrt(float(centred @ centred) / len(scores))
    return (centred / spread).tolist() if spread > 0 else [0.0] * len(scores)


def _greedy(first: int, value: list[float], places: list[_Place], k: int, diversity: float) -> tuple[int, ...]:
    # While fewer than k are chosen, one of the k best is left, and likeness takes `diversity` of it at most: what lies
    # further below the k-th is never chosen.
    least = sorted(value)[len(value) - k] - diversity
    # Likeness to the nearest only grows, so that what an entry was worth earlier is the most it is worth now: the best is
    # found by bringing up to date what is first in the heap, until that is.
    heap = [(-worth, i) for i, worth in enumerate(value) if worth >= least and i != first]
    heapify(heap)
    chosen = [first]
    known: dict[int, tuple[int, float]] = {}
    while len(chosen) < k:
        _, i = heap[0]
        compared, nearest = known.get(i, (0, math.inf))
        if compared < len(chosen):
            place = places[i]
            for j in chosen[compared:]:
                nearest = min(nearest, sum(map(abs, map(sub, place, places[j]))))
            known[i] = len(chosen), nearest
            heapreplace(heap, (diversity * math.exp(-nearest) - value[i], i))
        else:
            heappop(heap)
            chosen.append(i)
    return tuple(chosen)
