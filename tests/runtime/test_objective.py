"""T_compile + N · T_run: the report's break-even points, and what holds of any candidates."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileguard.features.errors import InvalidInput
from tileguard.runtime.devices.base import Timing
from tileguard.runtime.objective import AmortisedTime, RunTime, break_even, schedule

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "amortised_objective.json").read_text())
times = st.tuples(st.floats(0.1, 1e4), st.floats(0.01, 1e5))


def timing(us: float) -> Timing:
    return Timing(us, us, us, 0.0, 1)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["kernel"])
def test_the_reports_break_even_points(case: dict[str, dict[str, float]]) -> None:
    select, snapshot = ((1e3 * case[name]["compile_s"], case[name]["run_us"]) for name in ("select", "snapshot"))
    calls = break_even(select, snapshot)
    assert calls is not None
    assert math.ceil(calls) == pytest.approx(case["break_even_calls"], abs=1)
    for n, best in ((0.99 * calls, select), (1.01 * calls, snapshot)):
        costs = {pair: AmortisedTime(n).cost_us(timing(pair[1]), pair[0]) for pair in (select, snapshot)}
        assert min(costs, key=costs.__getitem__) == best


def test_what_never_pays_has_no_break_even_and_what_always_does_has_it_at_once() -> None:
    assert break_even((10, 5), (20, 5)) is None
    assert break_even((10, 5), (20, 6)) is None
    assert break_even((10, 5), (10, 5)) == break_even((10, 5), (9, 4)) == 0.0
    assert break_even((10, 5), (11, 4)) == 1000


@given(st.lists(times, max_size=12), st.floats(0, 1e9))
def test_the_schedule_holds_the_cheapest_for_every_number_of_calls(pairs: list[tuple[float, float]], n: float) -> None:
    found = schedule(pairs)
    assert bool(found) == bool(pairs)
    if not pairs:
        return
    assert found[0][1] == 0.0
    assert [since for _, since in found] == sorted({since for _, since in found})
    index = [i for i, since in found if since <= n][-1]
    cost = {i: AmortisedTime(n).cost_us(timing(us), ms) for i, (ms, us) in enumerate(pairs)}
    assert cost[index] <= min(cost.values()) * (1 + 1e-9)
    assert pairs[found[-1][0]][1] == min(us for _, us in pairs)


@given(times)
def test_run_time_is_the_limit_of_many_calls(pair: tuple[float, float]) -> None:
    ms, us = pair
    assert RunTime().cost_us(timing(us), ms) == us
    assert AmortisedTime(1e15).cost_us(timing(us), ms) / 1e15 == pytest.approx(us, rel=1e-3)
    assert AmortisedTime(0).cost_us(timing(us), ms) == 1e3 * ms
    assert RunTime().calls == math.inf


@pytest.mark.parametrize("n", [np.int64(8), np.float32(8), np.float64(8), 8])
def test_numbers_of_any_library_are_numbers(n: float) -> None:
    assert repr(AmortisedTime(n)) == "AmortisedTime(n_calls=8.0)"


@pytest.mark.parametrize("n", [-1, math.nan, math.inf, 1e16, "8", None, True])
def test_a_wrong_number_of_calls_is_named(n: object) -> None:
    with pytest.raises(InvalidInput, match="n_calls"):
        AmortisedTime(n)  # type: ignore[arg-type]


def test_objectives_have_reprs_that_tell_them_apart() -> None:
    assert repr(AmortisedTime(100)) == repr(AmortisedTime(100.0)) != repr(AmortisedTime(1)) != repr(RunTime())
