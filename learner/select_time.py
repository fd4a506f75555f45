"""How long a selection takes, of several models in turns, on the machine that asks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.guard import GuardPolicy
from tileguard.runtime.matmul_selector import SELECTORS
from tileguard.runtime.ranker import OnnxRanker

from .corpus import Corpus

TILES = 200
"""The size of lattice that the budget of a selection is for."""

KERNELS, ROUNDS = 12, 25


def kernels_of_size(
    corpus: Corpus, hardware: HardwareSpec, tiles: int = TILES, *, count: int = KERNELS
) -> tuple[Any, ...]:
    """The `count` different kernels of a corpus whose lattices come nearest to so many tiles."""
    lattice = SELECTORS[corpus.family].lattice
    sizes = {sweep.kernel: len(lattice(sweep.kernel, hardware)) for sweep in corpus.sweeps}
    return tuple(sorted(sizes, key=lambda kernel: abs(sizes[kernel] - tiles))[:count])


def select_times(
    models: Mapping[str, OnnxRanker],
    kernels: Sequence[Any],
    hardware: HardwareSpec,
    *,
    rounds: int = ROUNDS,
) -> dict[str, npt.NDArray[np.float64]]:
    """Name -> float64[rounds · kernels], µs of `Selector.select`, warm; the models take turns on every kernel, so that
    what else the machine does meets them alike."""
    policy = GuardPolicy(score_budget_s=float("inf"))
    selectors = {
        name: SELECTORS[ranker.manifest.family](hardware, model=ranker, policy=policy)
        for name, ranker in models.items()
    }
    found: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 1):
        for kernel in kernels:
            for name, selector in selectors.items():
                started = time.perf_counter_ns()
                selector.select(kernel)
                if number:  # the first round warms up
                    found[name].append((time.perf_counter_ns() - started) / 1e3)
    return {name: np.array(times) for name, times in found.items()}
