"""The race: few launches, the right winner, ties to the default."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileguard.runtime.hooks.race import Measure, RacePolicy, RaceResult, Stage, middle_us, race, standard_error_us


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
    host = data.draw(st.lists(st.sampled_from(range(len(times))), unique=True))
    found = race(len(times), measure, host=host)
    assert found.winner is not None
    assert times[found.winner] <= min(times) + (RacePolicy().resolution_us if found.winner in host else 0.0)
    assert not host or times[found.winner] <= min(times[i] for i in host)
    assert set(asked) == set(range(len(times)))


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_under_noise_the_winner_is_within_two_percent_of_the_best(seed: int) -> None:
    draw = random.Random(seed)
    times = [draw.uniform(3.0, 12.0) for _ in range(25)]
    measure, _ = stand(times, noise=0.02, seed=seed)
    found = race(25, measure, host=[0])
    assert found.winner is not None
    assert times[found.winner] <= 1.02 * min(times) + (RacePolicy().resolution_us if found.winner == 0 else 0.0)


def share(times: list[float], host: list[int], winner: int, *, noise: float = 0.01) -> float:
    """How often `winner` wins among candidates of these times."""
    seeds = range(50)
    return sum(race(len(times), stand(times, noise=noise, seed=s)[0], host=host).winner == winner for s in seeds) / 50


def test_a_tie_goes_to_the_hosts_choice_and_a_difference_beyond_the_noise_does_not() -> None:
    assert share([5.0, 5.0, 5.0], [2], 2) >= 0.9
    assert share([5.0, 4.6, 5.0], [2], 1) == 1.0


def test_of_the_hosts_own_list_the_fastest_counts_not_the_first() -> None:
    assert share([5.0, 4.8, 5.2], [0, 1], 1) == 1.0
    assert share([5.0, 4.8, 4.7], [0, 1], 1) == 1.0  # beaten by less than events resolve
    assert share([5.0, 5.0, 5.0], [1, 0], 1) >= 0.8  # equal: the default, which stands first


def test_a_difference_below_what_events_resolve_is_none() -> None:
    assert race(2, stand([3.8, 3.6])[0], host=[0]).winner == 0
    assert race(2, stand([3.9, 3.6])[0], host=[0]).winner == 1
    assert race(2, stand([3.8, 3.6])[0]).winner == 1


def test_the_hosts_candidates_stay_to_the_end_where_an_unlucky_look_would_have_put_them_out() -> None:
    measure, asked = stand([20.0, 27.0, 27.0])
    race(3, measure, host=[1])
    assert asked.count(1) == asked.count(0) > asked.count(2)


def test_short_kernels_are_timed_oftener_and_the_order_changes_from_round_to_round() -> None:
    short, asked_short = stand([4.0, 4.1])
    long, asked_long = stand([40.0, 41.0])
    race(2, short), race(2, long)
    assert len(asked_short) - 2 == pytest.approx(4 * (len(asked_long) - 2))
    orders = {tuple(asked_long[i : i + 2]) for i in range(2, len(asked_long), 2)}
    assert orders == {(0, 1), (1, 0)}
    again, asked_again = stand([40.0, 41.0])
    race(2, again)
    assert asked_again == asked_long


def test_only_what_is_near_the_best_is_timed_long() -> None:
    times = [25.0, *[100.0] * 20, 26.0, 31.0]
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
    assert found.times_us[0] == math.inf
    nothing = race(2, stand([math.inf, math.inf])[0])
    assert nothing.winner is None


def test_no_stage_begins_after_the_budget() -> None:
    now = iter(range(100))
    clock: Callable[[], float] = lambda: float(next(now))
    found = race(4, stand([30.0, 30.3, 30.6, 30.9])[0], policy=RacePolicy(budget_s=1.5), clock=clock)
    assert found.cut_short
    assert found.winner == 0
    assert max(found.rounds) < sum(stage.rounds for stage in RacePolicy().stages)


def test_a_candidate_that_dropped_out_cannot_win() -> None:
    # Its one long first look is worse than the others' by more than a stage allows, whatever comes later.
    series = {0: [5.0] * 100, 1: [7.0, 7.0] + [1.0] * 100}

    def measure(indices: Sequence[int]) -> list[float]:
        return [series[i].pop(0) for i in indices]

    policy = RacePolicy(stages=(Stage(math.inf, 1), Stage(1.1, 5)), most=1.0)
    found: RaceResult = race(2, measure, policy=policy)
    assert found.winner == 0


@pytest.mark.parametrize(("mad", "rounds", "error"), [(1.0, 4, 0.806), (0.5, 16, 0.201), (1.0, 0, math.inf)])
def test_standard_error_of_the_middle_halfs_mean(mad: float, rounds: int, error: float) -> None:
    assert standard_error_us(mad, rounds) == pytest.approx(error, rel=1e-2)


@pytest.mark.parametrize(
    ("times", "middle"),
    [([3.0], 3.0), ([1.0, 2.0], 1.5), ([1.0, 90.0, 3.0], 3.0), ([0.0, 1.0, 3.0, 90.0], 2.0), ([*range(8)], 3.5)],
)
def test_the_middle_half_leaves_out_a_quarter_at_each_end(times: list[float], middle: float) -> None:
    assert middle_us(times) == middle


def lagging(times: Sequence[float], *, seed: int) -> Measure:
    """A stopwatch as a GPU's events are: late by up to a microsecond, in ticks of 32 ns."""
    draw = random.Random(seed)
    return lambda indices: [0.032 * round((times[i] + draw.uniform(2.3, 3.3)) / 0.032) for i in indices]


def test_of_the_hosts_own_short_kernels_one_that_is_five_percent_slower_does_not_win() -> None:
    # Two reductions of an H200, CUPTI's times (µs): the default's tile first, others of the host's list after it.
    for times in ([1.595, 1.449, 1.516], [1.54, 1.31, 1.40, 1.31]):
        winners = [race(len(times), lagging(times, seed=s), host=range(len(times))).winner for s in range(40)]
        assert sum(winner is not None and times[winner] <= 1.05 * min(times) for winner in winners) >= 38


def test_only_a_tie_that_the_noise_makes_is_timed_for_longer() -> None:
    policy = RacePolicy()
    tie = race(2, lagging([1.5, 1.5], seed=0), host=[0, 1])
    assert min(tie.rounds) > policy.tie_rounds
    for clear in (
        race(2, stand([4.0, 4.0])[0], host=[0, 1]),  # no noise
        race(2, lagging([1.5, 2.5], seed=0), host=[0, 1]),  # no tie
        race(2, lagging([1.5, 1.5], seed=0), host=[0]),  # one of the host's own
        race(2, lagging([150.0, 150.0], seed=0), host=[0, 1]),  # the noise is nothing beside their time
    ):
        assert max(clear.rounds) < policy.tie_rounds
