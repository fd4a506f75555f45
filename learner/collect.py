"""Dense sweeps on a device into a corpus. A killed collector loses no finished kernel and doubles none.

Every finished kernel is one line of a journal beside the corpus, synced to disk. When a run ends the Parquet file is
replaced by itself and the journal together, then the journal goes; a crash at any moment in between leaves kernels in
both files at worst, and those in the Parquet file count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.base import OK, CandidateError, Compiled, Device, Timing
from tileguard.runtime.lattice import lattice

from .corpus import read_rows, write_corpus
from .corpus_schema import RESULT_FIELDS, TILE_FIELDS, row_kernel
from .journal import Journal, Row, journal_path, locked, spare_path, sync
from .workloads import Workload, check_distinct

TOOLCHAIN = "toolchain"
"""Key of the corpus's metadata under which the device's toolchain stands."""


@dataclass(frozen=True, slots=True)
class CollectProgress:
    """Where a run stands, told before a kernel's first tile, after each compile, and when the kernel is done.

    kernels, tiles: to do in this run, and done of them; kernel_tiles: of the current kernel. failed: candidates that
    failed so far in this run. best_us: the current kernel's best time, once it is done and had a tile that works.
    """

    workload: Workload
    kernels_done: int
    kernels: int
    tiles_done: int
    tiles: int
    kernel_tiles_done: int
    kernel_tiles: int
    failed: int
    seconds: float
    kernel_done: bool = False
    best_us: float | None = None

    @property
    def left_s(self) -> float | None:
        """Estimate of the time left, from tiles done per second; None before the first."""
        return self.seconds / self.tiles_done * (self.tiles - self.tiles_done) if self.tiles_done else None


@dataclass(frozen=True, slots=True)
class CollectSummary:
    """What a run did. swept: kernels of this run; known: those found done; left: those that the budget left undone.

    hopeless: the names of kernels without one tile that works, of this run or an earlier one. They are not in the
    corpus, and stay in the journal so that no run tries them again: delete it to have them retried.
    """

    out: Path
    swept: int
    known: int
    left: int
    hopeless: tuple[str, ...]
    tiles_ok: int
    tiles_failed: int
    seconds: float

    def __str__(self) -> str:
        text = (
            f"{self.out}: {self.swept} kernels swept in {self.seconds:.0f} s ({self.tiles_ok} tiles, "
            f"{self.tiles_failed} failed), {self.known} known before, {self.left} left"
        )
        if self.left:
            text += "; run it again to go on"
        if self.hopeless:
            text += f"; no tile works of {', '.join(self.hopeless)} (kept in {journal_path(self.out).name})"
        return text


def collect(
    workloads: Sequence[Workload],
    device: Device,
    out: str | Path,
    *,
    budget_s: float | None = None,
    on_progress: Callable[[CollectProgress], None] | None = None,
) -> CollectSummary:
    """Sweep the whole lattice of every workload that `out` (a .parquet file) lacks.

    budget_s: wall time after which no further kernel begins; the first one always does, so every run gets on. An
    interrupted run (KeyboardInterrupt) writes what is done and raises it again. Raises InvalidInput where another
    collector writes `out`, or where `out` or its journal was measured otherwise (it says what to do).
    """
    out, workloads = Path(out), tuple(workloads)
    if out.suffix != ".parquet":
        raise InvalidInput("out", str(out), "a path ending in .parquet")
    if not workloads:
        raise InvalidInput("workloads", (), "one workload or more")
    if budget_s is not None and not (budget_s > 0 and math.isfinite(budget_s)):
        raise InvalidInput("budget_s", budget_s, "a positive number of seconds, or None")
    check_distinct(workloads)
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out):
        run = _Run(workloads, device, out, budget_s, on_progress or (lambda progress: None))
        try:
            run.sweep_all()
        except KeyboardInterrupt:
            run.finish()
            raise
        hopeless = run.finish()
    return CollectSummary(
        out, run.swept, len(workloads) - len(run.pending), len(run.pending) - run.swept, hopeless,
        run.tiles_done - run.failed, run.failed, time.monotonic() - run.started,
    )  # fmt: skip


def sweep(
    workload: Workload,
    device: Device,
    *,
    tiles: Sequence[ReductionTile] | None = None,
    on_tile: Callable[[bool], None] | None = None,
) -> list[Row]:
    """Corpus rows of one kernel, in the order of `tiles` (left out: its whole lattice).

    Each tile is compiled, then all that compiled are timed together. on_tile is told after each compile whether it
    worked.
    """
    kernel = workload.kernel
    tiles = lattice(kernel, device.hardware) if tiles is None else tiles
    compiled: dict[ReductionTile, Compiled] = {}
    errors: dict[ReductionTile, CandidateError] = {}
    for tile in tiles:
        try:
            compiled[tile] = device.compile(kernel, tile)
        except CandidateError as error:
            errors[tile] = error
        if on_tile is not None:
            on_tile(tile in compiled)
    timings = dict(zip(compiled, device.bench(list(compiled.values())) if compiled else [], strict=True))
    shared = _kernel_columns(workload, device.hardware)
    return [
        shared
        | {name: getattr(tile, name) for name, _, _ in TILE_FIELDS}
        | (_ok(compiled[tile], timings[tile]) if tile in compiled else _failed(errors[tile]))
        for tile in tiles
    ]


class _Run:
    """One run of collect, under the lock."""

    def __init__(
        self,
        workloads: tuple[Workload, ...],
        device: Device,
        out: Path,
        budget_s: float | None,
        tell: Callable[[CollectProgress], None],
    ) -> None:
        self.started = time.monotonic()
        self.swept = self.failed = self.tiles_done = 0
        self._device, self._out, self._budget_s, self._tell = device, out, budget_s, tell
        self._journal = Journal(journal_path(out), device)
        _remove_leftovers(out)
        self._old = _old_rows(out, device)
        self._journal.check()
        known = {name: rows[0] for name, rows in self._journal.read().items()}
        known |= {row["kernel_id"]: row for row in self._old}
        for one in workloads:
            if one.workload in known and row_kernel(known[one.workload]) != _with_sizes(one.kernel):
                kernel = row_kernel(known[one.workload])
                raise InvalidInput("workload", one.workload, f"another name: {out} has {kernel} under this one")
        self.pending = tuple(one for one in workloads if one.workload not in known)
        self._tiles = sum(len(lattice(one.kernel, device.hardware)) for one in self.pending)

    def sweep_all(self) -> None:
        """Sweep what is pending, until the budget is spent."""
        for workload in self.pending:
            spent = self._budget_s is not None and time.monotonic() - self.started >= self._budget_s
            if spent and self.swept:
                return
            self._sweep(workload)

    def finish(self) -> tuple[str, ...]:
        """Bring the journal into the corpus; the names of kernels that have no place there."""
        # Read anew: an interrupt may have cut the last line short.
        old = {row["kernel_id"] for row in self._old}
        entries = {name: rows for name, rows in self._journal.read().items() if name not in old}
        hopeless = {name: rows for name, rows in entries.items() if all(row["status"] != OK for row in rows)}
        new = [row for name, rows in entries.items() if name not in hopeless for row in rows]
        if new:
            write_corpus([*self._old, *new], self._out, metadata={TOOLCHAIN: self._device.toolchain})
            sync(self._out)
            sync(self._out.parent)
        self._journal.keep(hopeless)
        return tuple(hopeless)

    def _sweep(self, workload: Workload) -> None:
        total = len(lattice(workload.kernel, self._device.hardware))
        before = self.tiles_done

        def tell(*, done: bool = False, best_us: float | None = None) -> None:
            self._tell(
                CollectProgress(
                    workload, self.swept, len(self.pending), self.tiles_done, self._tiles, self.tiles_done - before,
                    total, self.failed, time.monotonic() - self.started, done, best_us,
                )
            )  # fmt: skip

        def on_tile(worked: bool) -> None:
            self.tiles_done += 1
            self.failed += not worked
            tell()

        tell()
        rows = sweep(workload, self._device, on_tile=on_tile)
        self._journal.append(rows)
        self.swept += 1
        tell(done=True, best_us=min((row["us"] for row in rows if row["status"] == OK), default=None))


def _kernel_columns(workload: Workload, hardware: HardwareSpec) -> Row:
    kernel = _with_sizes(workload.kernel)
    own = {name: getattr(kernel, name) for name in ReductionKernel.__slots__}
    names = {"kernel_id": workload.workload, "workload": workload.workload, "family": workload.family}
    return {**names, "hardware": hardware.name, **own, "source": None}


def _with_sizes(kernel: ReductionKernel) -> ReductionKernel:
    """The kernel as a corpus gives it back: element sizes spelled out."""
    return replace(
        kernel, min_ptr_elem_bytes=kernel.min_bytes, max_ptr_elem_bytes=kernel.max_bytes,
        total_ptr_elem_bytes=kernel.total_bytes,
    )  # fmt: skip


def _ok(compiled: Compiled, timing: Timing) -> Row:
    return _EMPTY | {
        "status": OK, "compile_ms": compiled.compile_ms, "us": timing.us, "us_median": timing.us_median,
        "us_min": timing.us_min, "us_mad": timing.us_mad, "reps": timing.reps, "n_regs": compiled.n_regs,
        "n_spills": compiled.n_spills, "shared": compiled.shared,
    }  # fmt: skip


def _failed(error: CandidateError) -> Row:
    return _EMPTY | {"status": error.status, "error": str(error)}


_EMPTY: Row = dict.fromkeys(name for name, _, _ in RESULT_FIELDS)


def _old_rows(out: Path, device: Device) -> list[Row]:
    """Rows of the corpus so far; it must be of the same hardware and toolchain as what will be added."""
    if not out.exists():
        return []
    rows, metadata = read_rows(out)
    wanted = {"hardware": device.hardware.name, TOOLCHAIN: device.toolchain}
    found = [("hardware", name) for name in dict.fromkeys(row["hardware"] for row in rows)]
    for field, value in [*found, (TOOLCHAIN, metadata.get(TOOLCHAIN, "(none stated)"))]:
        if value != wanted[field]:
            cure = "collect into another file, times of both would not compare"
            raise InvalidInput(f"{out}, {field}", value, f"{wanted[field]}; {cure}")
    return rows


def _remove_leftovers(out: Path) -> None:
    """Temporary files of a run that was killed as it wrote: `OUT.<random>.tmp`, and the journal's."""
    for path in out.parent.iterdir():
        middle = path.name.removeprefix(out.name + ".").removesuffix(".tmp")
        if path.name == f"{out.name}.{middle}.tmp" and ("." not in middle or path == spare_path(journal_path(out))):
            path.unlink(missing_ok=True)
