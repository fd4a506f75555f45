"""Timing many candidates side by side on a machine that others use too.

The clock is the thread's own CPU time, so waiting for a core does not count. Every round takes one sample of every
candidate still in the race, in a new order, so that slow drifts fall on all alike. The estimate is the minimum: what
disturbs a sample only ever adds to it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ..base import Timing

Run = Callable[[int], None]
"""Runs a candidate the given number of times in one go."""


@dataclass(frozen=True, slots=True)
class BenchRecipe:
    """How long and how often to measure.

    A sample is a batch of calls of `sample_us` at least. After `early_rounds` candidates slower than `early_ratio`
    times the best are done, after `screen_rounds` those slower than `screen_ratio` times; the others get `rounds`
    more. Once `limit_s` of wall time have gone by no new round begins; every candidate has one sample at least.
    """

    sample_us: float = 700.0
    early_rounds: int = 2
    early_ratio: float = 4.0
    screen_rounds: int = 5
    screen_ratio: float = 1.3
    rounds: int = 15
    limit_s: float = 60.0


def interleave(runs: Sequence[Run], groups: Sequence[Hashable], recipe: BenchRecipe, *, seed: int) -> list[Timing]:
    """Time every run; timings in their order. Only candidates of the same group (kernel) race each other."""
    order_of = random.Random(seed)
    batches = [_batch_size(run, recipe.sample_us) for run in runs]
    samples: list[list[float]] = [[] for _ in runs]
    racing = list(range(len(runs)))
    deadline = time.monotonic() + recipe.limit_s
    for done in range(recipe.screen_rounds + recipe.rounds):
        if done == recipe.early_rounds:
            racing = _within(racing, samples, groups, recipe.early_ratio)
        if done == recipe.screen_rounds:
            racing = _within(racing, samples, groups, recipe.screen_ratio)
        if done and time.monotonic() > deadline:
            break
        order_of.shuffle(racing)
        for index in racing:
            samples[index].append(cpu_us(runs[index], batches[index]) / batches[index])
    return [summary(found) for found in samples]


def cpu_us(run: Run, calls: int) -> float:
    """CPU time in µs that this thread spends in `calls` calls."""
    start = time.thread_time_ns()
    run(calls)
    return (time.thread_time_ns() - start) / 1e3


def summary(samples: Sequence[float]) -> Timing:
    """The timing of one candidate from its samples (µs a call)."""
    median, least = statistics.median(samples), min(samples)
    spread = statistics.median(abs(sample - median) for sample in samples)
    return Timing(us=least, us_median=median, us_min=least, us_mad=spread, reps=len(samples))


def _batch_size(run: Run, sample_us: float) -> int:
    """Calls that take about `sample_us`, by doubling: also warms caches and branch predictors up."""
    calls = 1
    while (took := cpu_us(run, calls)) < sample_us / 2:
        calls = max(calls * 2, int(calls * sample_us / 2 / took) if took > sample_us / 64 else calls * 8)
    return max(1, -int(-calls * sample_us // took))


def _within(
    racing: Sequence[int], samples: Sequence[Sequence[float]], groups: Sequence[Hashable], ratio: float
) -> list[int]:
    best: dict[Hashable, float] = {}
    for index in racing:
        best[groups[index]] = min(best.get(groups[index], float("inf")), min(samples[index]))
    return [index for index in racing if min(samples[index]) <= ratio * best[groups[index]]]
