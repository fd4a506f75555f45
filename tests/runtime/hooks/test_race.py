"""The race: few launches, the right winner, ties to the default."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileguard.runtime.hooks.race import Measure, RacePolicy, RaceResult, Stage, race, standard_error_us


def stand(times: Sequence[float], *, noise: float = 0.0, seed: int = 0) -> tuple[Measure, list[int]]:
    """A stopwatch over candidates of known times (multiplicative normal noise), and what it was asked for."""
    draw, asked = random.Random(seed), list[int]()

    def measure(indices: Sequence[int]) -> list[float]:
        asked.extend(indices)
        return [times[i] * math.exp(noise * draw.gauss(0.0, 1.0)) for i in indices]

    return measure, asked


@given(st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=40), st.data())
@settings(max_examples=200, deadline=None)
def test_without_noise_the_fastest_wins_and_every_candidate_is_launched(
    times: list[float], data: st.DataObject
) -> None:
    measure, asked = stand(times)
    default = data.draw(st.sampled_from([None, *range(len(times))]))
    found = race(len(times), measure, default=default)
    assert found.winner is not None
    assert times[found.winner] <= min(times) + (RacePolicy().resolution_us if found.winner == default else 0.0)
    assert set(asked) == set(range(len(times)))


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_under_noise_the_winner_is_within_two_percent_of_the_best(seed: int) -> None:
    draw = random.Random(seed)
    times = [draw.uniform(3.0, 12.0) for _ in range(25)]
    measure, _ = stand(times, noise=0.02, seed=seed)
    found = race(25, measure)
    assert found.winner is not None
    assert times[found.winner] <= 1.02 * min(times) + (RacePolicy().resolution_us if found.winner == 0 else 0.0)


def test_a_tie_goes_to_the_default_and_a_difference_beyond_the_noise_does_not() -> None:
    ties = sum(race(3, stand([5.0, 5.0, 5.0], noise=0.01, seed=seed)[0], default=2).winner == 2 for seed in range(50))
    clear = sum(race(3, stand([5.0, 4.6, 5.0], noise=0.01, seed=seed)[0], default=2).winner == 1 for seed in range(50))
    assert ties >= 40
    assert clear == 50


def test_a_difference_below_what_events_resolve_is_none() -> None:
    assert race(2, stand([3.8, 3.6])[0], default=0).winner == 0
    assert race(2, stand([3.9, 3.6])[0], default=0).winner == 1
    assert race(2, stand([3.8, 3.6])[0], default=None).winner == 1


def test_only_what_is_near_the_best_is_timed_long() -> None:
    times = [5.0, *[20.0] * 20, 5.2, 6.2]
    measure, asked = stand(times)
    found = race(len(times), measure)
    counts = [asked.count(i) for i in range(len(times))]
    assert max(counts[1:21]) == 4  # one warm-up, three heats
    assert counts[0] == counts[21] > counts[22] > counts[1]
    assert sum(counts) < 25 * len(times)  # less than a long pass over all
    assert found.rounds[0] == counts[0] - 1


def test_a_slow_kernel_gets_fewer_rounds_and_a_hopeless_candidate_one() -> None:
    measure, asked = stand([9_000.0, 9_100.0, 200_000.0])
    found = race(3, measure)
    assert found.winner == 0
    assert asked.count(2) == 1
    assert found.launched == (True, True, True)
    assert asked.count(0) <= 10


def test_what_cannot_be_launched_loses_even_if_it_is_all_there_is() -> None:
    measure, _ = stand([math.inf, 7.0, math.inf])
    found = race(3, measure)
    assert (found.winner, found.launched) == (1, (False, True, False))
    assert found.medians_us[0] == math.inf
    nothing = race(2, stand([math.inf, math.inf])[0])
    assert nothing.winner is None


def test_no_stage_begins_after_the_budget() -> None:
    now = iter(range(100))
    clock: Callable[[], float] = lambda: float(next(now))
    found = race(4, stand([1.0, 1.01, 1.02, 1.03])[0], policy=RacePolicy(budget_s=1.5), clock=clock)
    assert found.cut_short
    assert found.winner == 0
    assert max(found.rounds) < sum(stage.rounds for stage in RacePolicy().stages)


def test_a_candidate_that_dropped_out_cannot_win() -> None:
    # Its one long first look is worse than the others' by more than a stage allows, whatever comes later.
    series = {0: [5.0] * 100, 1: [7.0, 7.0] + [1.0] * 100}

    def measure(indices: Sequence[int]) -> list[float]:
        return [series[i].pop(0) for i in indices]

    policy = RacePolicy(stages=(Stage(math.inf, 1), Stage(1.1, 5)))
    found: RaceResult = race(2, measure, policy=policy)
    assert found.winner == 0


@pytest.mark.parametrize(("mad", "rounds", "error"), [(1.0, 4, 0.929), (0.5, 16, 0.232), (1.0, 0, math.inf)])
def test_standard_error_of_a_median(mad: float, rounds: int, error: float) -> None:
    assert standard_error_us(mad, rounds) == pytest.approx(error, rel=1e-2)
