"""Compiling a list on threads: order, failures, budgets, a hang."""

from __future__ import annotations

import contextvars
import os
import threading
import time

import pytest
from tests.support import python

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
    assert [outcome.done for outcome in found] == [i in (0, 1, 7, 8) for i in range(10)]


def test_what_is_required_begins_before_what_is_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "COMPILE_THREADS", 1)
    begun: list[int] = []
    compile_all(begun.append, list(range(5)), [i in (3, 4) for i in range(5)], limit_s=None)
    assert begun == [3, 4, 0, 1, 2]


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


def test_where_no_thread_is_to_be_had_the_caller_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found = compile_all(lambda number: (number, threading.current_thread().name), [0, 1], [True, False], limit_s=None)
    assert [outcome.result for outcome in found] == [(0, "MainThread"), (1, "MainThread")]


def test_what_is_left_behind_begins_nothing_more_and_is_waited_for_at_exit() -> None:
    code = """
import time
from tileguard.runtime.hooks.compiling import compile_all
begun = []
def build(number):
    begun.append(number)
    time.sleep(1.0 if number > 2 else 0.0)
    print("done", number, flush=True)
compile_all(build, list(range(40)), [True] + [False] * 39, limit_s=0.3)
print("left", flush=True)
"""
    lines = python(code).splitlines()
    assert lines.index("left") < len(lines) - 1, "nothing was left behind: the test shows nothing"
    assert len(lines) < 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_inherit_a_held_lock() -> None:
    code = """
import os, threading, time
from tileguard.runtime.hooks.locks import ForkLock
lock, held = ForkLock(), threading.Event()
def hold():
    with lock:
        held.set()
        time.sleep(3.0)
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    with lock:
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(code).strip() == "7"
