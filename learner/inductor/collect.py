"""`tileguard collect --device inductor`: dense measurements of the kernels that TorchInductor generates on a GPU.

On a machine with torch and numpy alone: `PYTHONPATH=src python3 -m tileguard.learner.inductor.collect --out FILE`.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tileguard.features.errors import InvalidInput, TileguardError, checked_choice
from tileguard.features.hardware import usable_cpus
from tileguard.runtime.optional import require

from .cuda_fork import keep_cuda_closed
from .raw_sweep import RawSweep, beside, check_same, read_lines
from .scratch import make_scratch

if TYPE_CHECKING:
    from .plan import Plan
    from .sweep import Counts, Progress
    from .swept import SweptKernel

logger = logging.getLogger("tileguard")

ENVIRONMENT = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # the processes that capture are many themselves
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for a GPU must not open it before processes are forked
    "TRITON_STORE_BINARY_ONLY": "1",
}
"""For this process and those it forks; read when torch and triton are first imported."""

CAPTURE_SHARE = 0.25
"""Of the time that is left, for capturing before sweeping begins."""

MOST_MIN_LOG2 = 24.0

DENSE = "dense"
TOLD_EVERY_S = 5.0

PROGRAMS = 1000
"""Workloads that are taken of a registry: the one that ships never ends."""

FAMILIES = ("reduction", "matmul")


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure and how.

    workloads: a Python file (left out: the registry that ships). repeat: a sweep whose kernels and tiles are measured
    again in place of workloads. tiles: a cap a kernel, None for the whole lattice. stages: num_stages to try beside the
    host's own; on CUDA the binaries of TorchInductor's reductions do not differ by it (docs/collect.md). count: kernels
    at most, those of earlier runs included; programs: workloads at most. model: whose top tiles a plan holds,
    "champion", a folder, or None. budget_s: wall seconds, all told. processes: that capture, then compile.
    min_log2: of the elements that the registry's workloads reduce, at least. family: of kernels, one of FAMILIES; of
    matmuls workloads, stages, model and min_log2 say nothing. Raises InvalidInput naming the field.
    """

    out: Path
    workloads: Path | None = None
    repeat: Path | None = None
    tiles: int | None = None
    stages: tuple[int, ...] = (1,)
    count: int | None = None
    programs: int = PROGRAMS
    model: str | None = "champion"
    budget_s: float | None = None
    seed: int = 0
    processes: int = field(default_factory=lambda: spare_cpus())
    compile_limit_s: float = 10.0
    min_log2: float = 0.0
    family: str = "reduction"

    def __post_init__(self) -> None:
        checked_choice("family", self.family, FAMILIES)
        for name in ("tiles", "count", "programs", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(name, value, "a number above 0")
        for name in ("budget_s", "compile_limit_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InvalidInput(name, value, "a positive number of seconds")
        if not 0 <= self.min_log2 <= MOST_MIN_LOG2:
            raise InvalidInput("min_log2", self.min_log2, f"0 to {MOST_MIN_LOG2:g}")
        if not self.stages or min(self.stages) < 1:
            raise InvalidInput("stages", self.stages, "numbers of stages from 1 on")
        if self.workloads is not None and self.repeat is not None:
            raise InvalidInput("repeat", str(self.repeat), "either a file of workloads or a sweep to repeat")
        if self.workloads is not None and self.family == "matmul":
            raise InvalidInput("workloads", str(self.workloads), "none: matmuls are drawn by seed")

    @property
    def raw(self) -> Path:
        """The raw sweep: `out`, or beside a Parquet `out` the .jsonl.xz of its name."""
        return self.out.with_suffix(".jsonl.xz") if self.out.suffix == ".parquet" else self.out


def spare_cpus() -> int:
    """All that this process may use but one, which is for timing."""
    return max(1, usable_cpus() - 1)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did. known: kernels of earlier runs; left: captured kernels that the budget left, uncaptured: whether
    it left workloads too. failed_workloads: name -> error; skipped: kernels that no list of ours may be put into, by
    reason. parquet: the corpus, where it was written."""

    raw: Path
    counts: Counts
    known: int
    left: int
    uncaptured: bool
    failed_workloads: dict[str, str]
    skipped: dict[str, int]
    parquet: Path | None
    hardware: str
    seconds: float

    def lines(self) -> list[str]:
        """For a reader."""
        counts = self.counts
        left = f"{self.left}{' or more' if self.uncaptured else ''} left"
        swept = f"{counts.kernels} kernels swept, {self.known} known before, {left}"
        tiles = f"{counts.ok} tiles timed, {counts.failed} failed, {counts.compiled} compiled"
        shown = [f"{self.raw}: {swept}; {tiles}; {self.seconds:.0f} s"]
        shown += [f"workload failed: {name}: {error}" for name, error in self.failed_workloads.items()]
        shown += [f"no tile works: {name}" for name in counts.hopeless]
        if self.skipped:
            shown.append("not swept: " + ", ".join(f"{n} {reason}" for reason, n in self.skipped.items()))
        shown.append(
            f"{self.parquet}: corpus written"
            if self.parquet
            else f"tileguard corpus import {self.raw} OUT.parquet --hardware {self.hardware}"
        )
        return shown


def collect_inductor(settings: Settings, *, tell: Callable[[Progress], None] = lambda progress: None) -> Summary:
    """Capture, compile, time, and write. Killed at any moment and run again, it goes on where it was.

    Beside the raw sweep stand, while it grows, its journal (`.partial.jsonl`) and the captured kernels (`.kernels.jsonl`).
    An interruption (KeyboardInterrupt) packs what is done and raises again. Raises InvalidInput for bad input, without
    a GPU, or where the sweep was begun on another machine or toolchain; MissingDependency without torch or triton.
    """
    began = time.monotonic()
    end = began + (math.inf if settings.budget_s is None else settings.budget_s)
    prepare_process()
    sweep = RawSweep(settings.raw)
    try:
        return _collect(settings, sweep, began, end, tell)
    finally:
        sweep.close()


def _collect(
    settings: Settings, sweep: RawSweep, began: float, end: float, tell: Callable[[Progress], None]
) -> Summary:
    from .kinds import KINDS, check_same_kind
    from .sweep import Captures, Counts, Sweeper, capture_workloads, ordered

    known, counts, captures, left, complete = len(sweep.records), Counts(), None, 0, True
    wanted = settings.count or sys.maxsize
    common: dict[str, object]
    kind = KINDS[settings.family]
    check_same_kind(list(sweep.records.values()), kind, sweep.path)
    again = repeated(settings.repeat, settings.family) if settings.repeat is not None else {}
    workloads = [] if again else kind.workloads(settings)
    with Sweeper(compilers=settings.processes, compile_limit_s=settings.compile_limit_s, tell=tell) as sweeper:
        machine = sweeper.machine()
        same = {"hardware": machine.hardware.name, "toolchain": machine.toolchain}
        check_same(sweep.records.values(), sweep.path, **same)
        if again:
            common = {**same, "machine": machine.facts, "repeat_of": str(settings.repeat)}
        else:
            captures = Captures(beside(settings.raw, ".kernels.jsonl"), toolchain=machine.toolchain)
            common = {**same, "machine": machine.facts, "tiles": settings.tiles or DENSE}
        planner = kind.planner(settings, machine.hardware)

        def plan(kernel: SweptKernel) -> Plan:
            return again[kernel.key][1] if again else planner(kernel)

        while True:
            kernels = [kernel for kernel, _ in again.values()]
            if captures is not None:
                share = CAPTURE_SHARE * (end - time.monotonic())
                complete = capture_workloads(
                    workloads, kind.capturer, captures,
                    processes=min(settings.processes, kind.capturers or settings.processes),
                    deadline=time.monotonic() + share,
                    enough=lambda: len(captures.keys | sweep.records.keys()) >= wanted, tell=tell,
                )  # fmt: skip
                kernels = captures.kernels(workloads, kind.load)
            new = [kernel for kernel in kernels if kernel.key not in sweep.records]
            chosen = ordered(new, seed=settings.seed)[: max(0, wanted - len(sweep.records))]
            left = len(chosen) - sweeper.sweep(chosen, plan, sweep, counts, deadline=end, common=common)
            if complete or not chosen or time.monotonic() >= end or len(sweep.records) >= wanted:
                break
    sweep.close()
    return Summary(
        settings.raw, counts, known, left, not complete and len(sweep.records) < wanted,
        captures.failed if captures else {}, dict(captures.skipped) if captures else {},
        _write_parquet(settings, machine.hardware.name), machine.hardware.name, time.monotonic() - began,
    )  # fmt: skip


def repeated(path: Path, family: str) -> dict[str, tuple[SweptKernel, Plan]]:
    """Kernels of a sweep and their tiles that worked, by key. Raises InvalidInput for a sweep without arguments, or of
    another family."""
    from .kinds import KINDS, check_same_kind
    from .plan import Plan, PlannedTile

    if not path.is_file():
        raise InvalidInput("repeat", str(path), "an existing .jsonl or .jsonl.xz file")
    found: dict[str, tuple[SweptKernel, Plan]] = {}
    for record in read_lines(path):
        check_same_kind([record], KINDS[family], path)
        kernel = KINDS[family].load(record, where=f"repeat {path}")
        tiles = tuple(
            PlannedTile(kernel.tile(row), tuple(row["by"].split("+"))) for row in record["rows"] if "us" in row
        )
        if tiles:
            found[kernel.key] = kernel, Plan(tiles, record["lattice_size"])
    if not found:
        raise InvalidInput("repeat", str(path), "a sweep with one kernel or more")
    return found


def _write_parquet(settings: Settings, hardware: str) -> Path | None:
    """The corpus, where one is asked for, pyarrow is there and there is anything to write."""
    if settings.out.suffix != ".parquet" or not settings.raw.exists():
        return None
    try:
        from ..corpus import write_corpus
        from ..sweep_import import read_sweep

        rows = read_sweep(settings.raw, hardware=hardware)
    except (ImportError, InvalidInput) as error:
        logger.warning("%s is not written: %s", settings.out, error)
        return None
    if not rows:
        return None
    write_corpus(rows, settings.out)
    return settings.out


def prepare_process() -> None:
    """Set ENVIRONMENT and empty caches, then import what every forked process needs; once a process.

    Raises MissingDependency without torch or triton.
    """
    global _prepared
    if not _prepared:
        _prepared = True
        if "torch._inductor.config" in sys.modules:
            logger.warning("TorchInductor was imported before the collector: its settings stay as they are")
        cache = make_scratch()
        os.environ.update(ENVIRONMENT)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/inductor"
        os.environ["TRITON_CACHE_DIR"] = f"{cache}/triton"
        os.environ["TMPDIR"] = cache  # what goes to the assembler and comes back
    require("triton")
    keep_cuda_closed()
    for module in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.runtime.triton_heuristics"):
        require(module)


_prepared = False


def progress_line(now: Progress) -> str:
    """One line of where a phase stands."""
    left = "-" if now.left_s is None or not math.isfinite(now.left_s) else f"{now.left_s:.0f} s"
    what, gained = ("workloads", "distinct kernels") if now.phase == "capture" else ("kernels", "tiles compiled")
    return (
        f"{now.phase}: {now.done}/{now.total} {what}, {now.gained} {gained}, {now.failed} failed; "
        f"{now.seconds:.0f} s gone, {left} left at this pace"
    )


def now_and_then(say: Callable[[str], None]) -> Callable[[Progress], None]:
    """A `tell` that says a line every TOLD_EVERY_S, and the last of a phase."""
    last = -math.inf

    def tell(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= TOLD_EVERY_S or now.done == now.total:
            last = time.monotonic()
            say(progress_line(now))

    return tell


def parse_tiles(text: str) -> int | None:
    """`dense` is None, the whole lattice; else a number of tiles a kernel."""
    if text == DENSE:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise InvalidInput("tiles", text, f"{DENSE}, or a number of tiles")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command, for machines without the command line's libraries; its exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tileguard.learner.inductor.collect", description=__doc__)
    parser.add_argument("workloads", nargs="?", type=Path, help="Python file with workloads(seed); else what ships")
    parser.add_argument("--family", default="reduction", help="of kernels: " + " or ".join(FAMILIES))
    parser.add_argument("--out", type=Path, required=True, help=".jsonl.xz, .jsonl or .parquet, to write or go on with")
    parser.add_argument("--budget", type=float, help="seconds of wall time, all told")
    parser.add_argument("--tiles", default=DENSE, help="dense, or so many tiles a kernel")
    parser.add_argument("--stages", type=int, nargs="+", default=[1], help="num_stages to try")
    parser.add_argument("--count", type=int, help="kernels at most, those of earlier runs included")
    parser.add_argument("--programs", type=int, default=PROGRAMS, help="workloads at most")
    parser.add_argument("--min-log2", type=float, default=0.0, help="log2 of the elements that ours reduce, at least")
    parser.add_argument("--repeat", type=Path, help="a sweep whose kernels and tiles to measure again")
    parser.add_argument("--model", default="champion", help="champion, a folder, or none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, help="that compile; else a CPU each but one")
    parser.add_argument("--compile-limit", type=float, default=10.0, help="seconds of one tile")
    given = parser.parse_args(arguments)
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    try:
        settings = Settings(
            given.out, given.workloads, given.repeat, parse_tiles(given.tiles), tuple(given.stages), given.count,
            given.programs, None if given.model == "none" else given.model, given.budget, given.seed,
            given.processes if given.processes is not None else spare_cpus(), given.compile_limit, given.min_log2,
            given.family,
        )  # fmt: skip
        summary = collect_inductor(settings, tell=now_and_then(say))
    except TileguardError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    for line in summary.lines():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
