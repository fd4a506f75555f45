"""Sweeps under an objective: the same measurements, judged by T_compile + N · T_run instead of T_run (Tile→XIR report §4).

A sweep under N calls has for `us` the cost of one call with its share of compiling, so that whatever ranks, judges or
draws sweeps needs to know no more; what it must tell a ranker is `calls_of` the sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tileguard.features.errors import InvalidInput
from tileguard.runtime.feature_space import FOREVER

from .corpus import Corpus, KernelSweep, content_digest

TRAINED_CALLS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)
"""What a ranker that knows calls is trained on, beside run time."""

JUDGED_CALLS = (1.0, 100.0, 1e4, 1e6)
"""What it is judged on, beside run time."""

_CALLS = "calls"


def calls_of(sweep: KernelSweep) -> float:
    """The calls that a sweep's times share one compilation over; infinite for plain run times."""
    return float(sweep.extra.get(_CALLS, FOREVER))


def amortised(sweep: KernelSweep, calls: float) -> KernelSweep:
    """The sweep with `us` = (T_compile + calls · T_run) / max(calls, 1), in µs; for infinite calls the sweep itself.

    Raises InvalidInput where a tile that works has no compile time.
    """
    if calls == FOREVER:
        return sweep
    works = ~np.isnan(sweep.us)
    if np.isnan(sweep.compile_ms[works]).any():
        raise InvalidInput("calls", calls, f"left out: {sweep.kernel_id} has tiles without a compile time")
    cost = (1e3 * sweep.compile_ms + calls * sweep.us) / max(calls, 1.0)
    return replace(sweep, us=np.where(works, cost, math.nan), extra={**sweep.extra, _CALLS: calls})


def under(corpus: Corpus, calls: Sequence[float], indices: Iterable[int] | None = None) -> Corpus:
    """The sweeps at `indices` (left out: all) under each of `calls`, as a corpus: all of the first one's, then the
    next one's."""
    chosen = corpus.sweeps if indices is None else [corpus.sweeps[i] for i in indices]
    sweeps = tuple(amortised(sweep, n) for n in calls for sweep in chosen)
    return Corpus(sweeps, content_digest(sweeps), corpus.path, corpus.files, corpus.schema)
