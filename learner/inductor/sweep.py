"""Capture, then sweep: the loop that keeps every core compiling while the GPU times what is done.

Three kinds of forked processes: those that run workloads, those that compile a tile at a time, and one that has the GPU
and times a kernel once all its tiles are compiled. This process hands out the work and writes down what comes back; it
never touches the GPU.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, cast

from tileguard.features.errors import InvalidInput, TileguardError

from .capture import Capture, Named
from .job_pool import TIMEOUT, JobPool, Outcome, next_outcomes
from .plan import Plan, in_turn
from .raw_sweep import RawSweep, Record, append_line, check_same, cut_torn_line, read_lines
from .swept import Row, SweptKernel
from .timing import CompileJob, Machine, TimingJob, tile_compiler, tile_timer

TICK_S = 0.2
CAPTURE_LIMIT_S, TIMING_LIMIT_S = 180.0, 120.0
"""Longest that one workload, and the timing of one kernel, may take."""

KERNELS_EACH = 150
"""Kernels that a process times before another takes its place: a loaded binary never leaves a GPU's memory."""

AHEAD = 4
"""Tiles a compiler that are kept waiting."""

BACKLOG = 12
"""Compiled kernels that wait for the GPU at most."""

GRACE_S = 20.0
"""After the budget, for timing what is compiled."""

MOST_SPLITS = 24
"""Of one kernel's timing that fails as a whole, as where one tile writes where it must not and the GPU's context is lost:
its tiles are then timed in halves, in fresh processes, down to the one that fails."""

TIMING_FAULTS = 5
"""Kernels in a row that could not be timed: then it is the machine, and they are not written down."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a phase stands: capture (of workloads) or sweep (of kernels). gained: distinct kernels, or compiled
    tiles, so far; failed: workloads, or tiles; left_s: estimate of the time that the rest takes, None before there is one."""

    phase: str
    done: int
    total: int
    gained: int
    failed: int
    seconds: float
    left_s: float | None


Tell = Callable[[Progress], None]


class Load(Protocol):
    """Makes a captured kernel of a line's object again. Raises InvalidInput naming `where`."""

    def __call__(self, data: Record, *, where: str) -> SweptKernel: ...


class TimingFault(TileguardError):
    """Timing does not work on this machine."""


@dataclass(slots=True)
class Counts:
    """What a run did. kernels, ok, failed: finished kernels and their tiles; compiled: tiles, of unfinished ones too;
    hopeless: names of kernels of which no tile works."""

    kernels: int = 0
    ok: int = 0
    failed: int = 0
    compiled: int = 0
    hopeless: list[str] = field(default_factory=list)

    def add(self, record: Record) -> None:
        ok = sum("us" in row for row in record["rows"])
        self.kernels += 1
        self.ok += ok
        self.failed += len(record["rows"]) - ok
        if not ok:
            self.hopeless.append(f"{record['label']}/{record['kernel']}")


class Captures:
    """Kernels captured so far, in a file beside the sweep: one line a workload, so that no run does one again. keys: of
    the distinct ones."""

    def __init__(self, path: Path, *, toolchain: str) -> None:
        self._path, self._toolchain = path, toolchain
        self._lines: list[Record] = []
        if path.exists():
            cut_torn_line(path)
            self._lines = list(read_lines(path))
        check_same(self._lines, path, toolchain=toolchain)
        self.keys = {kernel["key"] for line in self._lines for kernel in line["kernels"]}

    @property
    def done(self) -> set[tuple[str, str]]:
        """(family, name) of the workloads that worked; one that failed runs again in the next run."""
        return {(line["family"], line["name"]) for line in self._lines if line["error"] is None}

    @property
    def failed(self) -> dict[str, str]:
        """family:name -> error."""
        latest = {(line["family"], line["name"]): line["error"] for line in self._lines}
        return {":".join(names): error for names, error in latest.items() if error}

    @property
    def skipped(self) -> Counter[str]:
        """Kernels that are no business of ours, by reason."""
        return sum((Counter(line["skipped"]) for line in self._lines), Counter[str]())

    def kernels(self, order: Sequence[Named], load: Load) -> list[SweptKernel]:
        """Each distinct kernel once, of the workload that stands first in `order`. load: from a line's object."""
        rank = {(one.family, one.name): i for i, one in enumerate(order)}
        found: dict[str, SweptKernel] = {}
        for line in sorted(self._lines, key=lambda line: rank.get((line["family"], line["name"]), len(rank))):
            for data in line["kernels"]:
                kernel = load(data, where=str(self._path))
                found.setdefault(kernel.key, kernel)
        return list(found.values())

    def add(self, workload: Named, capture: Capture | None, error: str | None) -> None:
        line: Record = {
            "family": workload.family, "name": workload.name, "toolchain": self._toolchain, "error": error,
            "seconds": round(capture.seconds, 2) if capture else None, "skipped": capture.skipped if capture else {},
            "kernels": [kernel.to_json() for kernel in capture.kernels] if capture else [],
        }  # fmt: skip
        self._lines.append(line)
        self.keys.update(kernel["key"] for kernel in line["kernels"])
        with self._path.open("ab") as stream:
            append_line(stream, line)


def capture_workloads(
    workloads: Sequence[Named],
    capturer: Callable[[Sequence[Any]], Callable[[int], Capture]],
    captures: Captures,
    *,
    processes: int,
    deadline: float,
    enough: Callable[[], bool],
    tell: Tell,
) -> bool:
    """Run the workloads that are not done, in order, until `deadline` (of time.monotonic) or `enough`; whether none is
    left to run. capturer: makes, in each process, what turns a workload's place into what it gave."""
    done = captures.done
    todo = deque(i for i, one in enumerate(workloads) if (one.family, one.name) not in done)
    began, total, finished, failed = time.monotonic(), len(todo), 0, 0
    with JobPool(lambda: capturer(workloads), processes, limit_s=CAPTURE_LIMIT_S, fresh_after_error=True) as pool:
        while (todo or pool.busy) and time.monotonic() < deadline and not enough():
            while todo and pool.busy < processes:
                pool.submit(todo[0], todo.popleft())
            for outcome in next_outcomes([pool], timeout_s=TICK_S)[0]:
                captures.add(workloads[int(str(outcome.tag))], outcome.result, outcome.error)
                finished, failed = finished + 1, failed + (outcome.error is not None)
                seconds = time.monotonic() - began
                left_s = seconds / finished * (total - finished)
                tell(Progress("capture", finished, total, len(captures.keys), failed, seconds, left_s))
    return finished == total


def ordered(kernels: Sequence[SweptKernel], *, seed: int) -> list[SweptKernel]:
    """One of each family after another, shuffled: wherever a budget ends, every family has its share."""
    groups: dict[str, list[SweptKernel]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.family, []).append(kernel)
    return in_turn(list(groups.values()), seed=str(seed))


@dataclass(slots=True)
class _Kernel:
    """One in work, by place among its planned tiles: outcomes, then rows of those timed, and errors of those that could
    not be. timing: jobs that are not back; splits: those that were halved."""

    kernel: SweptKernel
    plan: Plan
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    references: Sequence[Row] = ()
    timing: int = 0
    splits: int = 0

    @property
    def compiled(self) -> bool:
        return len(self.outcomes) == len(self.plan.tiles)


class Sweeper:
    """Compiles and times kernels into a raw sweep. It holds processes: to be used as a context manager."""

    def __init__(self, *, compilers: int, compile_limit_s: float, tell: Tell) -> None:
        self._tell, self._ahead = tell, AHEAD * compilers
        self._compilers = JobPool(tile_compiler, compilers, limit_s=compile_limit_s)
        self._timer = JobPool(tile_timer, 1, limit_s=TIMING_LIMIT_S, jobs_each=KERNELS_EACH, fresh_after_error=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._compilers.close()
        self._timer.close()

    def machine(self) -> Machine:
        """What the timing process runs on. Raises InvalidInput where it has no GPU."""
        self._timer.submit("machine", None)
        while True:
            for outcome in next_outcomes([self._timer], timeout_s=TICK_S)[0]:
                if isinstance(outcome.result, Machine):
                    return outcome.result
                raise InvalidInput("device", "inductor", f"a machine with a CUDA GPU ({outcome.error})")

    def sweep(
        self,
        kernels: Sequence[SweptKernel],
        plan: Callable[[Any], Plan],
        sweep: RawSweep,
        counts: Counts,
        *,
        deadline: float,
        common: Record,
    ) -> int:
        """Measure kernels that the sweep lacks, in order, until `deadline` (of time.monotonic); how many were finished.

        What is compiled by then is still timed, for GRACE_S at most. `common` goes into every record. A kernel of which
        no tile works is a record like any other. `counts` goes on. Raises TimingFault.
        """
        todo, done = deque(kernels), 0
        held: list[Record] = []
        working: dict[str, _Kernel] = {}
        began, total = time.monotonic(), len(todo)
        while todo or working:
            if time.monotonic() >= deadline:
                todo.clear()
                self._compilers.close()
                working = {key: one for key, one in working.items() if one.compiled}
                if not working or time.monotonic() >= deadline + GRACE_S:
                    break
            while todo and self._compilers.waiting < self._ahead and self._timer.waiting < BACKLOG:
                kernel = todo.popleft()
                working[kernel.key] = _Kernel(kernel, plan(kernel))
                self._begin(working[kernel.key])
            timed, compiled = next_outcomes([self._timer, self._compilers], timeout_s=TICK_S)
            for outcome in timed:
                one = working[cast("tuple[str, tuple[int, ...]]", outcome.tag)[0]]
                self._take(one, outcome)
                if one.timing:
                    continue
                del working[one.kernel.key]
                record = record_of(one.kernel, one.plan, one.outcomes, one.rows, one.errors, one.references) | common
                done += 1
                held.append(record)
                fault = outcome.error if not one.rows else None
                if fault is not None and len(held) < TIMING_FAULTS:
                    continue
                if fault is not None:
                    raise TimingFault(f"{len(held)} kernels in a row could not be timed: {fault}")
                for one_held in held:
                    sweep.append(one_held)
                    counts.add(one_held)
                held.clear()
            for outcome in compiled:
                key, place = cast("tuple[str, int]", outcome.tag)
                counts.compiled += 1
                working[key].outcomes[place] = outcome
                self._time_if_compiled(working[key])
            seconds = time.monotonic() - began
            left_s = seconds / done * (total - done) if done else None
            self._tell(Progress("sweep", done, total, counts.compiled, counts.failed, seconds, left_s))
        for record in held:
            sweep.append(record)
            counts.add(record)
        return done

    def _begin(self, one: _Kernel) -> None:
        for place, planned in enumerate(one.plan.tiles):
            self._compilers.submit((one.kernel.key, place), CompileJob(one.kernel, planned.tile))

    def _time_if_compiled(self, one: _Kernel) -> None:
        if one.compiled:
            self._submit(one, tuple(p for p in range(len(one.plan.tiles)) if one.outcomes[p].error is None))

    def _submit(self, one: _Kernel, places: tuple[int, ...]) -> None:
        tiles = tuple(one.plan.tiles[place].tile for place in places)
        digests = tuple(one.outcomes[place].result.digest for place in places)
        one.timing += 1
        self._timer.submit((one.kernel.key, places), TimingJob(one.kernel, tiles, digests))

    def _take(self, one: _Kernel, outcome: Outcome) -> None:
        """What a timing job gave; where it failed as a whole, though not for lack of time, its halves begin."""
        places = cast("tuple[str, tuple[int, ...]]", outcome.tag)[1]
        one.timing -= 1
        if outcome.error is None:
            one.rows |= dict(zip(places, outcome.result, strict=False))
            one.references = outcome.result[len(places) :]
        elif len(places) > 1 and one.splits < MOST_SPLITS and not outcome.error.startswith(TIMEOUT):
            one.splits += 1
            half = len(places) // 2
            self._submit(one, places[:half])
            self._submit(one, places[half:])
        else:
            one.errors |= dict.fromkeys(places, outcome.error)


def record_of(
    kernel: SweptKernel,
    plan: Plan,
    compiled: Mapping[int, Outcome],
    timed: Mapping[int, Row],
    failed: Mapping[int, str],
    references: Sequence[Row],
) -> Record:
    """A kernel's line in a raw sweep (docs/corpus.md). By place in the plan: compiled, all; timed and failed, those that
    compiled. references: what was timed beside them, in the kernel's order."""
    rows = []
    for place, planned in enumerate(plan.tiles):
        outcome = compiled[place]
        row: Row = kernel.row(planned.tile) | {"by": "+".join(planned.by)}
        if outcome.error is not None:
            row["error"] = _compile_error(outcome)
        else:
            row["compile_ms"] = round(outcome.result.ms, 1)
            row |= timed[place] if place in timed else {"error": f"timing: {failed[place]}"}
        rows.append(row)
    record = kernel.to_json() | {"rows": rows, "lattice_size": plan.lattice_size}
    if references:
        record["references"] = dict(zip(kernel.references(), references, strict=True))
    return record


def _compile_error(outcome: Outcome) -> str:
    error = str(outcome.error)
    return f"Compile{error}" if error.startswith(TIMEOUT) else error[:200]
