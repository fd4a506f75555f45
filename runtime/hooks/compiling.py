"""Compiling the candidates of one kernel on a few threads, within a budget. Knows no torch."""

from __future__ import annotations

import atexit
import contextvars
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

COMPILE_THREADS = 8
"""Candidates of one kernel that compile at once, beside the host's own parallelism over kernels."""

ALWAYS, ALWAYS_S = 2, 10.0
"""Best-ranked candidates that run even when the budget is spent, and the seconds that they are waited for."""

EXIT_S = 30.0
"""Longest wait, when the interpreter ends, for a compilation that was left behind: ended in C++, it would abort."""

_ending = threading.Event()
_running: set[threading.Thread] = set()


class Outcome:
    """Of one compilation: its result or its error, and wall ms; `done` is False where the budget ended first."""

    __slots__ = ("done", "error", "ms", "result")

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.ms = 0.0
        self.done = False


def compile_into(outcome: Outcome, build: Callable[[Any], Any], config: Any) -> None:
    """Compile `config` on this thread; whatever comes of it, an exception of any kind too, is the outcome."""
    start = time.perf_counter()
    outcome.result = outcome.error = None
    try:
        outcome.result = build(config)
    except BaseException as error:
        outcome.error = error
    outcome.ms = (time.perf_counter() - start) * 1e3
    outcome.done = True


def compile_all(
    build: Callable[[Any], Any], configs: Sequence[Any], required: Sequence[bool], *, limit_s: float | None
) -> list[Outcome]:
    """Compile every config on a few threads: the required ones, then the others in order.

    Past `limit_s`, of the others only the first ALWAYS are still begun; what runs then is waited for only if it is
    required, or one of those within ALWAYS_S. Exceptions of any kind are outcomes.
    """
    began = time.perf_counter()
    deadline = math.inf if limit_s is None else began + limit_s
    others = [i for i, is_required in enumerate(required) if not is_required]
    first = set(others[:ALWAYS])
    outcomes = [Outcome() for _ in configs]
    left = set(range(len(configs)))
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for i in sorted(left, key=lambda i: (not required[i], i)):
        todo.put(i)
    changed = threading.Condition()
    given_up = threading.Event()

    def work() -> None:
        try:
            work_off()
        finally:
            _running.discard(threading.current_thread())

    def work_off() -> None:
        while not (given_up.is_set() or _ending.is_set()):
            try:
                i = todo.get_nowait()
            except queue.Empty:
                return
            outcome = Outcome()
            if required[i] or i in first or time.perf_counter() < deadline:
                compile_into(outcome, build, configs[i])
            with changed:
                outcomes[i] = outcome
                left.discard(i)
                changed.notify()

    def wait_until() -> float:
        if any(required[i] for i in left):
            return math.inf
        return max(deadline, began + ALWAYS_S) if left & first else deadline

    if not sum(_started(work) for _ in range(min(COMPILE_THREADS, len(configs), os.cpu_count() or 1))):
        work_off()  # no thread is to be had
    try:
        with changed:
            while left and (patience := wait_until() - time.perf_counter()) > 0:
                changed.wait(timeout=None if math.isinf(patience) else patience)
            # A copy: a thread that was left behind may still write.
            return list(outcomes)
    finally:
        given_up.set()


def _started(work: Callable[[], None]) -> bool:
    # TorchInductor's settings are context variables: a thread of ours must see this one's.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="tileguard-compile", daemon=True)
    _running.add(thread)
    try:
        thread.start()
    except RuntimeError:
        _running.discard(thread)
        return False
    return True


@atexit.register
def _end() -> None:
    _ending.set()
    deadline = time.perf_counter() + EXIT_S
    for thread in tuple(_running):
        thread.join(max(deadline - time.perf_counter(), 0.0))
