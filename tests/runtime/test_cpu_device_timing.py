"""The order and number of samples, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tileguard.runtime.devices.cpu import timing
from tileguard.runtime.devices.cpu.timing import BenchRecipe, interleave, summary

Fake = Callable[..., list[tuple[int, int]]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Candidates that take the given µs a call; the returned list fills with (candidate, calls) as they are run."""

    def set_up(*us: float) -> list[tuple[int, int]]:
        log: list[tuple[int, int]] = []

        def cpu_us(run: Callable[[int], None], calls: int) -> float:
            run(calls)
            return us[log[-1][0]] * calls

        monkeypatch.setattr(timing, "cpu_us", cpu_us)
        return log

    return set_up


def _runs(log: list[tuple[int, int]], count: int) -> list[Callable[[int], None]]:
    def run(index: int) -> Callable[[int], None]:
        return lambda calls: log.append((index, calls))

    return [run(index) for index in range(count)]


def test_timings_come_in_the_order_given(clock: Fake) -> None:
    log = clock(3.0, 1.0, 2.0)
    found = interleave(_runs(log, 3), ["k"] * 3, BenchRecipe(), seed=0)
    assert [t.us for t in found] == pytest.approx([3.0, 1.0, 2.0])


def test_the_slow_stop_early_and_keep_their_timing(clock: Fake) -> None:
    recipe = BenchRecipe()
    log = clock(1.0, 1.25, 1.4, 3.9, 4.1)
    found = interleave(_runs(log, 5), ["k"] * 5, recipe, seed=0)
    every = recipe.screen_rounds + recipe.rounds
    assert [t.reps for t in found] == [every, every, recipe.screen_rounds, recipe.screen_rounds, recipe.early_rounds]


def test_candidates_race_those_of_their_own_kernel_only(clock: Fake) -> None:
    log = clock(1.0, 100.0)
    assert {t.reps for t in interleave(_runs(log, 2), ["a", "b"], BenchRecipe(), seed=0)} == {20}


def test_a_sample_is_long_enough(clock: Fake) -> None:
    us = (0.01, 0.6, 25.0, 5000.0)
    log = clock(*us)
    recipe = BenchRecipe(screen_ratio=1e9, early_ratio=1e9)
    interleave(_runs(log, 4), ["k"] * 4, recipe, seed=0)
    for index, calls in log[-40:]:
        assert recipe.sample_us <= us[index] * calls <= max(2 * recipe.sample_us, us[index])


def test_every_round_has_its_own_order_and_a_seed_repeats_it(clock: Fake) -> None:
    def rounds(seed: int) -> list[list[int]]:
        log = clock(*[1.0] * 6)
        interleave(_runs(log, 6), ["k"] * 6, BenchRecipe(), seed=seed)
        order = [index for index, _ in log[-6 * 20 :]]
        return [order[i : i + 6] for i in range(0, len(order), 6)]

    first = rounds(1)
    assert all(sorted(order) == list(range(6)) for order in first)
    assert len({tuple(order) for order in first}) > 10
    assert rounds(1) == first
    assert rounds(2) != first


def test_time_spent_ends_the_rounds_but_leaves_everyone_a_sample(clock: Fake) -> None:
    log = clock(1.0, 1.0)
    assert [t.reps for t in interleave(_runs(log, 2), ["k"] * 2, BenchRecipe(limit_s=-1.0), seed=0)] == [1, 1]


def test_a_summary_takes_the_least(clock: Fake) -> None:
    found = summary([5.0, 1.0, 2.0, 9.0, 3.0])
    assert (found.us, found.us_min, found.us_median, found.us_mad, found.reps) == (1.0, 1.0, 3.0, 2.0, 5)


def test_nothing_to_time(clock: Fake) -> None:
    assert interleave([], [], BenchRecipe(), seed=0) == []
