"""Forked processes that take one job after another, and may be killed over any of them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Self

Worker = Callable[[Any], Any]

TIMEOUT = "Timeout"
DIED = "Died"
"""What an error begins with where a job outlasted its limit, and where its process ended by itself."""

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl."""

_OPEN: set[Connection] = set()
"""The parent's ends of all pipes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one job: its result, or an error's type and text, and the seconds that it took."""

    tag: Hashable
    result: Any
    error: str | None
    seconds: float


class JobPool:
    """`size` processes, each forked when it is first needed. A process that dies, or is killed over its time limit,
    costs the job that it had; the next job gets a new one.

    make: called once in every process, gives what turns a job into a result (both travel through a pipe). limit_s: of
    one job. jobs_each: after how many a process is replaced. fresh_after_error: whether an exception is enough for that.
    Whoever makes a pool must not have used the GPU: forked processes could not.
    """

    def __init__(
        self,
        make: Callable[[], Worker],
        size: int,
        *,
        limit_s: float,
        jobs_each: int | None = None,
        fresh_after_error: bool = False,
    ) -> None:
        self._make, self._size, self._limit_s = make, size, limit_s
        self._jobs_each, self._fresh_after_error = jobs_each, fresh_after_error
        self._members: list[_Member] = []
        self._jobs: deque[tuple[Hashable, Any]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """Jobs that no process has yet."""
        return len(self._jobs)

    @property
    def busy(self) -> int:
        """Jobs in work."""
        return sum(member.tag is not None for member in self._members)

    def submit(self, tag: Hashable, job: Any) -> None:
        """Queue a job; `tag`, which must not be None, comes back with its outcome."""
        self._jobs.append((tag, job))
        self._feed()

    def drop_waiting(self) -> None:
        """Forget the jobs that have not begun."""
        self._jobs.clear()

    def close(self) -> None:
        """Kill every process, and what it started."""
        for member in self._members:
            member.kill()
        self._members.clear()
        self._jobs.clear()

    def _feed(self) -> None:
        while self._jobs:
            idle = next((member for member in self._members if member.tag is None), None)
            if idle is None and len(self._members) < self._size:
                idle = _Member(self._make)
                self._members.append(idle)
            if idle is None:
                return
            idle.give(*self._jobs.popleft())

    def _collect(self, ready: Sequence[Any]) -> list[Outcome]:
        outcomes = []
        now = time.monotonic()
        for member in list(self._members):
            if member.tag is None:
                continue
            seconds = now - member.began
            if member.pipe in ready:
                try:
                    result, error = member.pipe.recv()
                except (EOFError, OSError):
                    result, error = None, f"{DIED}: {self._drop(member, grace_s=5.0)}"
            elif seconds > self._limit_s:
                result, error = None, f"{TIMEOUT}: over {self._limit_s:g} s"
                self._drop(member)
            else:
                continue
            outcomes.append(Outcome(member.tag, result, error, seconds))
            member.tag, member.jobs = None, member.jobs + 1
            if member in self._members and (member.jobs == self._jobs_each or (error and self._fresh_after_error)):
                self._drop(member)
        self._feed()
        return outcomes

    def _drop(self, member: _Member, *, grace_s: float = 0.0) -> str:
        self._members.remove(member)
        return member.kill(grace_s=grace_s)

    def _pipes(self) -> list[Connection]:
        return [member.pipe for member in self._members if member.tag is not None]


def next_outcomes(pools: Sequence[JobPool], *, timeout_s: float) -> list[list[Outcome]]:
    """What has come of the jobs of each pool, after a wait of `timeout_s` at most."""
    ready = wait([pipe for pool in pools for pipe in pool._pipes()], timeout=timeout_s)
    return [pool._collect(ready) for pool in pools]


class _Member:
    """One process, the pipe to it, and the job that it has."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, far = context.Pipe()
        _OPEN.add(self.pipe)
        self.tag: Hashable | None = None
        self.began, self.jobs = 0.0, 0
        self._process = context.Process(target=_serve, args=(make, far), daemon=True)
        self._process.start()
        far.close()

    def give(self, tag: Hashable, job: Any) -> None:
        self.tag, self.began = tag, time.monotonic()
        with contextlib.suppress(OSError):  # dead already: reading says so
            self.pipe.send(job)

    def kill(self, *, grace_s: float = 0.0) -> str:
        """End the process and what it started; how it ended, if it did so by itself within `grace_s`."""
        self._process.join(timeout=grace_s)
        code = self._process.exitcode
        pid = self._process.pid
        if pid is not None:
            # It leads its group, unless it has not come to that yet; the assembler that it runs goes with it.
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end(pid, signal.SIGKILL)
        self._process.join()
        _OPEN.discard(self.pipe)
        self.pipe.close()
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"


def _serve(make: Callable[[], Worker], pipe: Connection) -> None:
    """The life of a process: it ends when the parent does, whose ends of the pipes nobody else may hold."""
    os.setpgid(0, 0)
    _die_with_parent()
    gc.freeze()  # what the parent had is not worth looking through
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent closes the pool
    for other in _OPEN:
        other.close()
    try:
        work = make()
        broken = None
    except Exception as error:
        broken = _text(error)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            break
        try:
            answer = (None, broken) if broken else (work(job), None)
        except Exception as error:
            answer = None, _text(error)
        try:
            pipe.send(answer)
        except OSError:
            break
    os._exit(0)  # no handlers of the parent's, and no waiting for a driver's


def _die_with_parent() -> None:
    """At once, where the system can do that, and not after the job in hand: it may hold what the next run needs."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
