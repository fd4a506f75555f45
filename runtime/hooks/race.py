"""The race: which of several candidates is fastest, in few launches and with a steadier answer than one long pass.

All candidates are timed in short interleaved rounds, so that a clock that drifts or a neighbour that wakes up hits
all of them alike; only those close to the best are timed again, the closer the longer. A difference inside the noise
is none: the host's own choice then stays.
"""

from __future__ import annotations

import math
import random
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

    stages: from all candidates to the last few, in rounds for a kernel of typical_us; a shorter one, whose differences
    are smaller, gets up to `most` times as many, a longer one fewer, but `least`. host_near: so near to the best, the
    host's own candidates stay in to the end. hopeless, hopeless_us: a candidate so many times slower than the best in
    its very first launch, and over so many µs, is not launched again. noise: standard errors of the difference of two
    medians within which they are equal; so are, of candidates that the host did not ask for, those within
    resolution_us, what device events can tell apart. budget_s: wall time after which no stage begins.
    """

    stages: tuple[Stage, ...] = (Stage(math.inf, 3), Stage(1.3, 10), Stage(1.1, 12), Stage(1.04, 20))
    typical_us: float = 20.0
    most: float = 4.0
    least: int = 2
    patience_us: float = 10_000.0
    host_near: float = 1.5
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
    host: Sequence[int] = (),
    policy: RacePolicy | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> RaceResult:
    """The fastest of candidates 0 to n-1.

    host: what the host would have tried by itself, its default first. The fastest of these wins where no other beats it
    by more than the noise, and the first of them where no other of them does. The first round warms caches and code up
    and counts for nothing, but what cannot be launched there is out. The order within a round is drawn anew each time,
    equally in every process.
    """
    policy = policy or RacePolicy()
    times: list[list[float]] = [[] for _ in range(n)]
    draw = random.Random(0)
    began = clock()
    warm = measure(range(n))
    hopeless = max(policy.hopeless * min(warm, default=0.0), policy.hopeless_us)
    alive = [i for i in range(n) if math.isfinite(warm[i]) and (warm[i] <= hopeless or i in host)]
    cut_short = False
    for number, stage in enumerate(policy.stages):
        if number and clock() - began > policy.budget_s:
            cut_short = True
            break
        best = min(warm[i] if not number else statistics.median(times[i]) for i in alive) if alive else 0.0
        if number:
            bar, host_bar = stage.near * best, max(stage.near, policy.host_near) * best
            alive = [i for i in alive if statistics.median(times[i]) <= (host_bar if i in host else bar)]
        if len(alive) < 2 and number:
            break
        for _ in range(_rounds(stage, policy, best, max((warm[i] for i in alive), default=0.0))):
            order = draw.sample(alive, len(alive))
            for i, us in zip(order, measure(order), strict=True):
                times[i].append(us)
            alive = [i for i in alive if math.isfinite(times[i][-1])]
    medians = tuple(statistics.median(t) if t and all(map(math.isfinite, t)) else math.inf for t in times)
    mads = tuple(
        statistics.median(abs(us - middle) for us in t) if math.isfinite(middle) else 0.0
        for t, middle in zip(times, medians, strict=True)
    )
    rounds = tuple(len(t) for t in times)
    launched = tuple(map(math.isfinite, warm))
    winner = _winner(alive, host, medians, mads, rounds, policy)
    return RaceResult(winner, medians, mads, launched, rounds, cut_short)


def standard_error_us(mad_us: float, rounds: int) -> float:
    """Of a median over `rounds` normal samples with that median absolute deviation: 1.2533 · 1.4826 · MAD / √n."""
    return 1.2533 * 1.4826 * mad_us / math.sqrt(rounds) if rounds else math.inf


def _rounds(stage: Stage, policy: RacePolicy, best_us: float, slowest_us: float) -> int:
    scale = min(max(policy.typical_us / max(best_us, 1e-3), 1.0), policy.most)
    wanted = round(stage.rounds * scale)
    return max(min(wanted, int(policy.patience_us / max(slowest_us, 1e-3))), min(policy.least, wanted))


def _winner(
    alive: Sequence[int],
    host: Sequence[int],
    medians: Sequence[float],
    mads: Sequence[float],
    rounds: Sequence[int],
    policy: RacePolicy,
) -> int | None:
    def gain_is_noise(slower: int, faster: int, at_least_us: float) -> bool:
        errors = (standard_error_us(mads[i], rounds[i]) for i in (slower, faster))
        return medians[slower] - medians[faster] <= max(policy.noise * math.hypot(*errors), at_least_us)

    # Whoever dropped out early was timed too little to be called the fastest of all.
    best = min(alive, key=lambda i: (medians[i], i), default=None)
    tried = [i for i in host if i in alive]
    if best is None or not tried:
        return best
    kept = min(tried, key=lambda i: medians[i])
    if kept != tried[0] and gain_is_noise(tried[0], kept, 0.0):
        kept = tried[0]
    return kept if best in tried or gain_is_noise(kept, best, policy.resolution_us) else best
