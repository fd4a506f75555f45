"""The race: which of several candidates is fastest, in few launches and with a steadier answer than one long pass.

All candidates are timed in short interleaved rounds, so that a clock that drifts or a neighbour that wakes up hits
all of them alike; only those close to the best are timed again, the closer the longer. A difference inside the noise
is none: the host's own choice then stays. A time is the mean of the middle half of a candidate's rounds: events come in
ticks and lag by a fraction of a microsecond, which is much of a kernel of 2 µs, and a mean tells more than a median of
ticks.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Measure = Callable[[Sequence[int]], list[float]]
"""Times each of the given candidates once, in that order; µs, infinite for one that cannot be launched."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Candidates whose time is within `near` times the best are timed `rounds` more times."""

    near: float
    rounds: int


@dataclass(frozen=True, slots=True)
class RacePolicy:
    """How long to look.

    stages: from all candidates to the last few, in rounds for a kernel of typical_us; a shorter one, whose differences
    are smaller, gets up to `most` times as many, a longer one fewer, but `least`. host_near: so near to the best, the
    host's own candidates stay in to the end. hopeless, hopeless_us: a candidate so many times slower than the best in
    its very first launch, and over so many µs, is not launched again. noise: standard errors of the difference of two
    times within which they are equal; so are, of candidates that the host did not ask for, those within
    resolution_us, what device events can tell apart. Where the host's default equals the fastest of its own only because
    the noise is over `unsure` times their time, all that do get `tie_rounds` more. budget_s: wall time after which no stage begins.
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
    unsure: float = 0.01
    tie_rounds: int = 400
    resolution_us: float = 0.25
    budget_s: float = 5.0


@dataclass(frozen=True, slots=True)
class RaceResult:
    """winner: index, None where no candidate could be launched. times_us, mads_us (median absolute deviations): infinite
    and zero for a candidate that could not, or was hopeless. launched: whether it could. rounds: how often each was timed. cut_short: the
    budget ended it before its last stage."""

    winner: int | None
    times_us: tuple[float, ...]
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

    def run(candidates: list[int], rounds: int) -> list[int]:
        """Those that could still be launched in the last of so many rounds."""
        for _ in range(rounds):
            order = draw.sample(candidates, len(candidates))
            for i, us in zip(order, measure(order), strict=True):
                times[i].append(us)
            candidates = [i for i in candidates if math.isfinite(times[i][-1])]
        return candidates

    for number, stage in enumerate(policy.stages):
        if number and clock() - began > policy.budget_s:
            cut_short = True
            break
        best = min(warm[i] if not number else middle_us(times[i]) for i in alive) if alive else 0.0
        if number:
            bar, host_bar = stage.near * best, max(stage.near, policy.host_near) * best
            alive = [i for i in alive if middle_us(times[i]) <= (host_bar if i in host else bar)]
        if len(alive) < 2 and number:
            break
        slowest = max((warm[i] for i in alive), default=0.0)
        alive = run(alive, _rounds(stage.rounds, policy, best, slowest))
    tied = [] if cut_short else _unsure(_seen(times), [i for i in host if i in alive], policy)
    if tied:
        rounds = _patient(policy.tie_rounds, policy, max(warm[i] for i in tied))
        lost = set(tied) - set(run(tied, rounds))
        alive = [i for i in alive if i not in lost]
    seen = _seen(times)
    winner = _winner(seen, alive, [i for i in host if i in alive], policy)
    launched = tuple(map(math.isfinite, warm))
    return RaceResult(winner, seen.us, seen.mads, launched, seen.rounds, cut_short)


def middle_us(times: Sequence[float]) -> float:
    """Mean of the middle half, at least of the middle one or two."""
    ordered = sorted(times)
    cut = min(math.ceil(len(ordered) / 4), (len(ordered) - 1) // 2)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def standard_error_us(mad_us: float, rounds: int) -> float:
    """Of the middle half's mean of `rounds` normal samples with that median absolute deviation: 1.087 · 1.4826 · MAD /
    √n."""
    return 1.087 * 1.4826 * mad_us / math.sqrt(rounds) if rounds else math.inf


class _Seen(NamedTuple):
    """Of every candidate, and infinite for one that was not timed or not always."""

    us: tuple[float, ...]
    mads: tuple[float, ...]
    rounds: tuple[int, ...]


def _seen(times: Sequence[Sequence[float]]) -> _Seen:
    us, mads = [], []
    for own in times:
        whole = bool(own) and all(map(math.isfinite, own))
        us.append(middle_us(own) if whole else math.inf)
        middle = statistics.median(own) if whole else 0.0
        mads.append(statistics.median(abs(one - middle) for one in own) if whole else 0.0)
    return _Seen(tuple(us), tuple(mads), tuple(map(len, times)))


def _noise_us(seen: _Seen, one: int, other: int, policy: RacePolicy) -> float:
    """What the times of two candidates may differ by for no reason."""
    errors = (standard_error_us(seen.mads[i], seen.rounds[i]) for i in (one, other))
    return policy.noise * math.hypot(*errors)


def _unsure(seen: _Seen, tried: Sequence[int], policy: RacePolicy) -> list[int]:
    """Those of the host's own that only much noise makes equal to the fastest of them; none where the default is not."""
    fastest = min(tried, key=lambda i: seen.us[i], default=None)
    if fastest is None:
        return []
    noises = {i: _noise_us(seen, i, fastest, policy) for i in tried}
    tied = [i for i in tried if seen.us[i] - seen.us[fastest] <= noises[i]]
    much = any(noises[i] > policy.unsure * seen.us[fastest] for i in tied)
    return tied if len(tied) > 1 and tied[0] == tried[0] and much else []


def _rounds(wanted: int, policy: RacePolicy, best_us: float, slowest_us: float) -> int:
    scale = min(max(policy.typical_us / max(best_us, 1e-3), 1.0), policy.most)
    return _patient(round(wanted * scale), policy, slowest_us)


def _patient(wanted: int, policy: RacePolicy, slowest_us: float) -> int:
    return max(min(wanted, int(policy.patience_us / max(slowest_us, 1e-3))), min(policy.least, wanted))


def _winner(seen: _Seen, alive: Sequence[int], tried: Sequence[int], policy: RacePolicy) -> int | None:
    """tried: the host's own among those alive, its default first."""

    def gain_is_noise(slower: int, faster: int, at_least_us: float) -> bool:
        return seen.us[slower] - seen.us[faster] <= max(_noise_us(seen, slower, faster, policy), at_least_us)

    # Whoever dropped out early was timed too little to be called the fastest of all.
    best = min(alive, key=lambda i: (seen.us[i], i), default=None)
    if best is None or not tried:
        return best
    kept = min(tried, key=lambda i: seen.us[i])
    if kept != tried[0] and gain_is_noise(tried[0], kept, 0.0):
        kept = tried[0]
    return kept if best in tried or gain_is_noise(kept, best, policy.resolution_us) else best
