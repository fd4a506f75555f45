"""From scores to a short list: the k tiles to compile, best first, no two of them alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tileguard.features.tiles import ReductionTile, tile_columns

LIKENESS_RANGE = 2.0
"""Doublings over which the likeness of two tiles falls to 1/e."""

WARP_WEIGHT = 0.7
"""A doubled warp count is a smaller step than a doubled block size: it changes no memory access."""


def choose(
    scores: npt.NDArray[np.float64], tiles: Sequence[ReductionTile], k: int, *, diversity: float = 0.0
) -> tuple[int, ...]:
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
        return _greedy(scores, tile_columns(tiles), k, diversity)


def _greedy(
    scores: npt.NDArray[np.float64], columns: npt.NDArray[np.int64], k: int, diversity: float
) -> tuple[int, ...]:
    n = len(scores)
    # Scaled first: scores may be as large as doubles get, and their squares larger.
    scaled = scores / max(float(np.abs(scores).max()), np.finfo(np.float64).tiny)
    centred = scaled - scaled.sum() / n
    spread = math.sqrt(float(centred @ centred) / n)
    value = centred / spread if spread > 0 else np.zeros(n)
    # While fewer than k are chosen, one of the k best is left, and likeness takes `diversity` of it at most: what lies
    # further below the k-th is never chosen.
    contenders = np.flatnonzero(value >= np.partition(value, n - k)[n - k] - diversity)
    value = value[contenders]
    x, r, warps, _ = columns[:, contenders]
    place = np.log2(np.stack([x, r, np.maximum(warps, 1)]).astype(np.float64)) / LIKENESS_RANGE
    place[2] *= WARP_WEIGHT
    nearest = np.zeros(len(contenders))
    chosen: list[int] = []
    pick = int(np.argmax(scores[contenders]))
    for _ in range(k):
        chosen.append(pick)
        value[pick] = -np.inf
        likeness = np.exp(-np.abs(place - place[:, pick : pick + 1]).sum(axis=0))
        np.maximum(nearest, likeness, out=nearest)
        pick = int(np.argmax(value - diversity * nearest))
    return tuple(contenders[chosen].tolist())
