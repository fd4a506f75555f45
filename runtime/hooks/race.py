"""The race: which of several candidates is fastest, in few launches and with a steadier answer than one long pass.

All candidates are timed in short interleaved rounds, so that a clock that drifts or a neighbour that wakes up hits
all of them alike; only those close to the best are timed again, the closer the longer. A difference inside the noise
is none: the host's default then stays.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Measure = Callable[[Sequence[int]], list[float]]
"""Times each of the given candidates once, in that order; µs, infinite for one that cannot be launched."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Candidates whose median is within `near` times the best are timed `rounds` more times."""

    near: float
    rounds: int


@dataclass(frozen=True, slots=True)
class RacePolicy:
    """How long to look.

    stages: from all candidates to the last few. patience_us: device time that one candidate may take in a stage; a
    slow kernel gets fewer rounds (at least `least`), since its times vary less. hopeless, hopeless_us: a candidate so
    many times slower than the best in its very first launch, and over so many µs, is not launched again. noise:
    standard errors of the difference of two medians within which they are equal; so are they within resolution_us,
    what device events can tell apart (on an H200 smaller differences were as often wrong as right). budget_s: wall
    time after which no stage begins.
    """

    stages: tuple[Stage, ...] = (Stage(math.inf, 3), Stage(1.3, 10), Stage(1.1, 12), Stage(1.04, 20))
    patience_us: float = 10_000.0
    least: int = 2
    hopeless: float = 8.0
    hopeless_us: float = 2_000.0
    noise: float = 1.5
    resolution_us: float = 0.25
    budget_s: float = 5.0


@dataclass(frozen=True, slots=True)
class RaceResult:
    """winner: index, None where no candidate could be launched. medians_us, mads_us: infinite and zero for a candidate
    that could not, or was hopeless. launched: whether it could. rounds: how often each was timed. cut_short: the
    budget ended it before its last stage."""

    winner: int | None
    medians_us: tuple[float, ...]
    mads_us: tuple[float, ...]
    launched: tuple[bool, ...]
    rounds: tuple[int, ...]
    cut_short: bool


def race(
    n: int,
    measure: Measure,
    *,
    default: int | None = 0,
    policy: RacePolicy | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> RaceResult:
    """The fastest of candidates 0 to n-1, `default` (the host's own choice) where it ties with the fastest.

    The first round warms caches and code up and counts for nothing, but what cannot be launched there is out.
    """
    policy = policy or RacePolicy()
    times: list[list[float]] = [[] for _ in range(n)]
    began = clock()
    warm = measure(range(n))
    hopeless = max(policy.hopeless * min(warm, default=0.0), policy.hopeless_us)
    alive = [i for i in range(n) if math.isfinite(warm[i]) and (warm[i] <= hopeless or i == default)]
    cut_short = False
    for number, stage in enumerate(policy.stages):
        if number and clock() - began > policy.budget_s:
            cut_short = True
            break
        if number:
            medians = {i: statistics.median(times[i]) for i in alive}
            bar = stage.near * min(medians.values(), default=0.0)
            # The default stays in: what is won over it is measured as long as the winner.
            alive = [i for i in alive if medians[i] <= bar or (i == default and medians[i] <= 2 * bar)]
        if len(alive) < 2 and number:
            break
        for turn in range(_rounds(stage, policy, [warm[i] for i in alive])):
            # No candidate always follows the same one.
            shift = turn % max(len(alive), 1)
            order = [*alive[shift:], *alive[:shift]]
            if turn % 2:
                order.reverse()
            for i, us in zip(order, measure(order), strict=True):
                times[i].append(us)
            alive = [i for i in alive if math.isfinite(times[i][-1])]
    medians_us = tuple(
        statistics.median(t) if t and all(map(math.isfinite, t)) else math.inf for t in times
    )  # fmt: skip
    mads = tuple(
        statistics.median(abs(us - middle) for us in t) if math.isfinite(middle) else 0.0
        for t, middle in zip(times, medians_us, strict=True)
    )
    rounds = tuple(len(t) for t in times)
    winner = _winner(alive, medians_us, mads, rounds, default, policy)
    launched = tuple(map(math.isfinite, warm))
    return RaceResult(winner, medians_us, mads, launched, rounds, cut_short)


def standard_error_us(mad_us: float, rounds: int) -> float:
    """Of a median over `rounds` normal samples with that median absolute deviation: 1.2533 · 1.4826 · MAD / √n."""
    return 1.2533 * 1.4826 * mad_us / math.sqrt(rounds) if rounds else math.inf


def _rounds(stage: Stage, policy: RacePolicy, warm_us: list[float]) -> int:
    slowest = max(warm_us, default=0.0)
    return max(min(stage.rounds, int(policy.patience_us / max(slowest, 1e-3))), min(policy.least, stage.rounds))


def _winner(
    alive: list[int],
    medians: tuple[float, ...],
    mads: tuple[float, ...],
    rounds: tuple[int, ...],
    default: int | None,
    policy: RacePolicy,
) -> int | None:
    # Whoever dropped out early was timed too little to be called the fastest of all.
    best = min(alive, key=lambda i: (medians[i], i), default=None)
    if best is None:
        return None
    if default is not None and math.isfinite(medians[default]):
        band = policy.noise * math.hypot(*(standard_error_us(mads[i], rounds[i]) for i in (best, default)))
        if medians[default] - medians[best] <= max(band, policy.resolution_us):
            return default
    return best
