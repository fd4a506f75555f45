"""Compiling a list on threads: order, failures, budgets, a hang."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

from tileguard.runtime.hooks import compiling
from tileguard.runtime.hooks.compiling import ALWAYS, compile_all


def test_every_outcome_is_at_its_configs_place_whatever_fails() -> None:
    def build(number: int) -> int:
        if number % 3 == 0:
            raise ValueError(number)
        if number % 5 == 0:
            raise SystemExit(number)
        return number * 10

    found = compile_all(build, list(range(20)), [i < 4 for i in range(20)], limit_s=None)
    assert all(outcome.done for outcome in found)
    for i, outcome in enumerate(found):
        if i % 3 == 0:
            assert isinstance(outcome.error, ValueError)
        elif i % 5 == 0:
            assert isinstance(outcome.error, SystemExit)
        else:
            assert (outcome.result, outcome.error) == (i * 10, None)


def test_past_the_budget_the_required_and_the_first_others_run_and_nothing_else() -> None:
    begun: list[int] = []

    def build(number: int) -> int:
        begun.append(number)
        return number

    found = compile_all(build, list(range(10)), [i in (7, 8) for i in range(10)], limit_s=0.0)
    assert sorted(begun) == [0, 1, 7, 8]
    assert ALWAYS == 2
    assert begun[:2] == [7, 8] or set(begun[:2]) <= {7, 8, 0, 1}
    assert [outcome.done for outcome in found] == [i in (0, 1, 7, 8) for i in range(10)]


def test_a_candidate_that_hangs_is_left_behind_but_a_required_one_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "ALWAYS_S", 0.3)
    monkeypatch.setattr(compiling, "COMPILE_THREADS", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    release = threading.Event()

    def build(number: int) -> int:
        if number == 1:
            release.wait(30.0)
        if number == 0:
            time.sleep(0.5)
        return number

    began = time.perf_counter()
    found = compile_all(build, list(range(4)), [True, False, False, False], limit_s=0.1)
    assert time.perf_counter() - began < 10.0
    release.set()
    assert found[0].result == 0
    assert not found[1].done


def test_threads_see_the_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("set by the caller")
    found = compile_all(lambda _: variable.get(), [0, 1, 2], [True] * 3, limit_s=None)
    assert [outcome.result for outcome in found] == ["set by the caller"] * 3
