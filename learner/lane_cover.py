"""Fitting LaneRules to a corpus of a CPU: a greedy cover of its kernels under every objective.

Every kernel has some tiles near its best, by run time and, where compiling counts, others. Of each class of kernels the
tile that helps most kernels is taken, then the one that helps most beside it, until a kernel has `tiles` on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tileguard.features.lanes import LaneRule, LaneTile
from tileguard.runtime.devices.cpu.lane_rule import lane_class, lane_tile, placed
from tileguard.runtime.feature_space import FOREVER

from .amortised import JUDGED_CALLS, amortised
from .corpus import KernelSweep
from .formula_cover import worth
from .formula_facts import FEW


def fit_lanes(
    sweeps: Sequence[KernelSweep], *, tiles: float, calls: Sequence[float] = (FOREVER, *JUDGED_CALLS)
) -> tuple[LaneRule, ...]:
    """A rule for each class of at least FEW kernels. tiles: of a kernel, on average over its class, at most."""
    classes = sorted({lane_class(sweep.kernel) for sweep in sweeps})
    members = {name: [sweep for sweep in sweeps if lane_class(sweep.kernel) == name] for name in classes}
    return tuple(
        LaneRule(*name, _cover(mine, tiles, calls)) for name, mine in members.items() if len(mine) >= FEW
    )  # fmt: skip


def _cover(sweeps: Sequence[KernelSweep], tiles: float, calls: Sequence[float]) -> tuple[LaneTile, ...]:
    pool = sorted({lane_tile(s.kernel, tile) for s in sweeps for tile in s.tiles}, key=_simplest)
    at = np.array([_columns(sweep, pool) for sweep in sweeps])  # int[kernels, pool], -1 where there is none
    values = np.concatenate([_worths(sweeps, at, n) for n in calls])
    reached = np.zeros(len(values))
    taken: list[int] = []
    while True:
        gain = np.maximum(values, reached[:, None]).sum(axis=0) - reached.sum()
        gain[taken] = 0.0
        best = int(np.argmax(gain))
        if gain[best] <= 0.0 or _tiles_a_kernel(at[:, [*taken, best]]) > tiles:
            return tuple(pool[i] for i in taken)
        taken.append(best)
        reached = np.maximum(reached, values[:, best])


def _simplest(tile: LaneTile) -> tuple[int, int, int, str]:
    """The order in which equals are taken: the smaller one, the default lowering first."""
    return (tile.bytes_log2 + tile.beside_log2, tile.bytes_log2, tile.lowering is not None, tile.lowering or "")


def _columns(sweep: KernelSweep, pool: Sequence[LaneTile]) -> list[int]:
    found = placed(pool, sweep.kernel, sweep.tiles)
    return [-1 if tile is None else sweep.index[tile] for tile in found]


def _worths(
    sweeps: Sequence[KernelSweep], at: np.ndarray[tuple[int, int], np.dtype[np.int64]], calls: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    rows = []
    for sweep, columns in zip(sweeps, at, strict=True):
        slowdown = np.append(amortised(sweep, calls).slowdown, math.inf)
        rows.append(worth(slowdown[columns]))
    return np.array(rows)


def _tiles_a_kernel(at: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> float:
    return float(np.mean([len(set(row) - {-1}) for row in at.tolist()]))
