"""Which offsets around the anchors are worth compiling: a greedy cover of the kernels of a corpus.

Every kernel has some tiles near its best; an offset stands for one tile of each kernel. Offsets are taken one by one,
of whichever class gains most for each tile that it adds, until the budget of tiles is spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tileguard.features.anchor import AnchorRule, Offset
from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.rules import placed

from .corpus import KernelSweep
from .evaluate import LOSSLESS, SEVERE

FloatArray = npt.NDArray[np.float64]

_SPLIT_X, _SPLIT_R, _SPLIT_WARPS, _SPLIT_SUM = 5, 5, 4, 6
_OTHER_X, _OTHER_WARPS = 3, 2
_SHORT_R = (2, 3, 4, 5)
"""How far, in doublings, offsets may lie from their anchor (for short and wide: log2 R0); winners lie well within."""


@dataclass(frozen=True, slots=True)
class Class:
    """Kernels of one class with the rule that places tiles on them; its offsets are those to choose from."""

    rule: AnchorRule
    sweeps: Sequence[KernelSweep]


def offset_pool(*, persistent: bool, has_warps: bool) -> tuple[Offset, ...]:
    """Every offset that a rule may take, nearest first, so that ties fall to the simpler one."""
    pool = []
    if persistent:
        pool += [Offset("fill", x, 0, w) for x in _around(_SPLIT_X) for w in _around(_SPLIT_WARPS)]
    else:
        pool += [
            Offset("split", x, r, w)
            for x in _around(_SPLIT_X) for r in _around(_SPLIT_R) for w in _around(_SPLIT_WARPS)
            if abs(x) + abs(r) + abs(w) <= _SPLIT_SUM
        ]  # fmt: skip
        pool += [Offset("fill", x, 0, w) for x in _around(_OTHER_X) for w in _around(_OTHER_WARPS)]
        pool += [Offset("short", x, r, w) for x in _around(_OTHER_X) for r in _SHORT_R for w in _around(_OTHER_WARPS)]
        pool += [Offset("wide", 0, r, w) for r in _SHORT_R for w in _around(_OTHER_WARPS)]
    return tuple(offset for offset in pool if has_warps or offset.warps == 0)


def cover(
    classes: Mapping[tuple[bool, bool], Class], hardware: HardwareSpec, tiles: float
) -> dict[tuple[bool, bool], tuple[Offset, ...]]:
    """The offsets of each class, in the order taken: `tiles` a kernel on average over all of them.

    A tile that a sweep did not measure counts as no gain there, and is paid for all the same.
    """
    states = {name: _State(one, hardware) for name, one in classes.items()}
    budget = tiles * sum(len(one.sweeps) for one in classes.values())
    best = {name: state.best() for name, state in states.items()}
    spent = 0
    while best and spent < budget:
        name = max(best, key=lambda key: best[key][0])
        gain, position = best[name]
        if gain <= 0.0:
            break
        spent += states[name].take(position)
        best[name] = states[name].best()
    return {name: tuple(state.taken) for name, state in states.items()}


def worth(slowdown: FloatArray) -> FloatArray:
    """What a tile is worth to its kernel: 1 at the best, a step down past each tier of loss that counts, 0 unmeasured."""
    capped = np.minimum(np.where(np.isfinite(slowdown), slowdown, 2.0), 2.0)
    graded = np.where(
        capped <= LOSSLESS,
        1.0 - 0.5 * (capped - 1.0),
        np.where(capped <= SEVERE, 0.7 - 1.2 * (capped - LOSSLESS), 0.3 - 0.3 * (capped - SEVERE)),
    )
    return np.where(np.isfinite(slowdown), graded, 0.0)


class _State:
    """One class during the cover. worth_, place: [kernels, offsets]; place is -1 where there is no tile (any more)."""

    def __init__(self, one: Class, hardware: HardwareSpec) -> None:
        self.offsets = one.rule.offsets
        self.taken: list[Offset] = []
        shape = (len(one.sweeps), len(self.offsets))
        self.place = np.full(shape, -1, dtype=np.int64)
        slowdown = np.full(shape, np.inf)
        for row, sweep in enumerate(one.sweeps):
            # Several offsets may mean one tile, then the same object: told apart sooner than by what they hold.
            known: dict[int, tuple[int, float]] = {}
            for column, tile in enumerate(placed(one.rule, sweep.kernel, hardware)):
                if tile is not None:
                    if id(tile) not in known:
                        index = sweep.index.get(tile)
                        known[id(tile)] = len(known), np.inf if index is None else float(sweep.slowdown[index])
                    self.place[row, column], slowdown[row, column] = known[id(tile)]
        self.worth = worth(slowdown)
        self.held = np.zeros(len(one.sweeps))

    def best(self) -> tuple[float, int]:
        """(gain a tile, place in the pool) of the offset that gains most. An offset that fits few kernels is told apart
        from luck by a constant in the cost."""
        new = self.place >= 0
        gain = np.where(new, np.maximum(self.worth - self.held[:, np.newaxis], 0.0), 0.0).sum(axis=0)
        ratio = gain / (new.sum(axis=0) + 0.03 * len(self.held) + 1.0)
        position = int(np.argmax(ratio))
        return float(ratio[position]), position

    def take(self, position: int) -> int:
        """Take an offset; how many tiles it adds over all kernels."""
        mine = self.place[:, position].copy()
        new = mine >= 0
        self.held = np.where(new, np.maximum(self.held, self.worth[:, position]), self.held)
        self.place[(self.place == mine[:, np.newaxis]) & new[:, np.newaxis]] = -1
        self.taken.append(self.offsets[position])
        return int(new.sum())


def _around(reach: int) -> list[int]:
    return sorted(range(-reach, reach + 1), key=lambda step: (abs(step), step))
