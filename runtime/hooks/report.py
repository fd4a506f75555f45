"""What happened: the process's log of kernel records, and the report that sums them up.

A log file holds JSON lines (docs/cli.md, report): one object a record, each appended by one write, so that several
processes may share it. Imports the standard library and nothing heavier: it runs in the host compiler.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tileguard.features.errors import InvalidInput, checked_choice

from .matmul_records import MatmulRecord, MatmulTileRecord, parse_product
from .records import (
    FAILED,
    OUTCOMES,
    PROPOSERS,
    TUNED,
    UNTOUCHED,
    KernelRecord,
    TileRecord,
    checked_text,
    parse_kernel,
    ratio,
)

__all__ = [
    "KernelRecord", "Log", "MatmulRecord", "MatmulTileRecord", "Record", "Report", "TileRecord", "Totals", "read_log",
]  # fmt: skip

logger = logging.getLogger("tileguard")

Record = KernelRecord | MatmulRecord

_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Record]] = {"kernel": parse_kernel, "product": parse_product}
"""By the event of a log's line."""

REPORT_VERSION = 1
"""Version of a log's lines and of `Report.to_dict`; it rises when a key changes meaning or goes."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over records. Counts by reason, verdict and status are sorted, the commonest first.

    kernels: by outcome, matrix products among them; products: how many of the records are such. gain_kernels: tuned kernels whose gain over the host's own choice is known, of which geomean_gain,
    time_weighted_gain (Σ host ÷ Σ winner) and worst_gain speak. wins: how often each proposer's tiles won,
    model_alone_wins: those that nobody else proposed, of `winners` winners in all, remembered ones included.
    """

    kernels: Mapping[str, int]
    products: int
    untouched: Mapping[str, int]
    failures: Mapping[str, int]
    verdicts: Mapping[str, int]
    tiles: Mapping[str, int]
    tiles_compiled: int
    tiles_failed: int
    compile_s: float
    bench_s: float
    over_budget: int
    winners: int
    wins: Mapping[str, int]
    model_alone_wins: int
    gain_kernels: int
    geomean_gain: float | None
    time_weighted_gain: float | None
    worst_gain: float | None
    worst_kernel: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """What `tileguard.report()` returns; print it for a summary.

    untouched: kernels that were counted by reason without a record. lost_lines: records that could not be written to
    the log. notes: what reading a log left out.
    """

    records: tuple[Record, ...] = ()
    untouched: Mapping[str, int] = field(default_factory=dict)
    lost_lines: int = 0
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> Totals:
        return _totals(self.records, self.untouched)

    def to_dict(self) -> dict[str, Any]:
        """JSON's own types throughout, with `version`; its keys are in docs/cli.md."""
        return {
            "version": REPORT_VERSION,
            "totals": asdict(self.totals),
            "lost_lines": self.lost_lines,
            "notes": list(self.notes),
            "records": [record.to_dict() for record in self.records],
        }

    def summary(self) -> tuple[tuple[str, str], ...]:
        """(label, sentence) lines; what is not worth a line is left out."""
        t = self.totals
        skipped = sum(t.tiles.values()) - t.tiles_compiled - t.tiles_failed
        wins = f"proposed by {_counts(t.wins)}; by the model alone {t.model_alone_wins}"
        lines = [
            ("kernels", ", ".join(f"{count} {outcome}" for outcome, count in t.kernels.items())),
            ("products", f"{t.products} of these are matrix products" if t.products else ""),
            ("untouched", _counts(t.untouched)),
            ("failed", _counts(t.failures)),
            ("verdicts", _counts(t.verdicts)),
            ("tiles", f"{t.tiles_compiled} compiled, {t.tiles_failed} failed, {skipped} skipped" if t.tiles else ""),
            ("time", f"{t.compile_s:.1f} s compiling, {t.bench_s:.1f} s timing" if t.kernels[TUNED] else ""),
            ("budget", f"ended before the last tile on {t.over_budget}" if t.over_budget else ""),
            ("winners", f"{t.winners}, {wins}" if t.winners else ""),
            ("gain", _gain(t)),
            ("worst gain", f"{t.worst_gain:.3f}× on {t.worst_kernel}" if t.worst_gain else ""),
            ("log", f"{self.lost_lines} records could not be written" if self.lost_lines else ""),
            *(("note", note) for note in self.notes),
        ]
        return tuple((label, text) for label, text in lines if text)

    def __str__(self) -> str:
        lines = self.summary()
        width = max(len(label) for label, _ in lines)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)


class Log:
    """Collects this process's records and, with a path, appends each to that file as it comes.

    Thread-safe; a forked child starts empty and appends to the same file. The file is never the reason that anything
    fails: what cannot be written is counted and told once, and stays in memory.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        with contextlib.suppress(OSError):  # no working directory any more
            # A later change of the working directory must not move the log.
            self.path = self.path and self.path.absolute()
        self._told = self._torn = False
        self._start()
        _LOGS.add(self)

    def add(self, record: Record) -> None:
        """Keep a record, and write it."""
        with self._lock:
            self._records.append(record)
        if self.path is not None:
            event = "product" if isinstance(record, MatmulRecord) else "kernel"
            self._write(self.path, event, record.to_dict())

    def count_untouched(self, reason: str) -> None:
        """Count a kernel that was none of ours, by a short reason, and write that."""
        with self._lock:
            self._untouched[reason] += 1
        if self.path is not None:
            self._write(self.path, "untouched", {"reason": reason, "time": time.time(), "pid": os.getpid()})

    def report(self) -> Report:
        """What has happened so far."""
        with self._lock:
            return Report(tuple(self._records), dict(self._untouched), self._lost_lines)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._untouched: Counter[str] = Counter()
        self._lost_lines = 0

    def _write(self, path: Path, event: str, facts: Mapping[str, Any]) -> None:
        line = json.dumps({"version": REPORT_VERSION, "event": event, **facts}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            # A line that a full disk cut short must not swallow the next one.
            line = b"\n" + line if self._torn else line
            try:
                written = _append(path, line)
                if written == len(line):
                    self._torn = False
                    return
                self._torn = self._torn or written > 0
                problem: object = "no space left"
            except (OSError, ValueError) as error:
                problem = error
            self._lost_lines += 1
            told, self._told = self._told, True
        if not told:
            logger.warning("the log %s cannot be written (%s); what it lacks stays in memory", path, problem)


def read_log(path: str | Path) -> Report:
    """A log file's records, as the report of all processes that wrote it.

    A line that breaks off, as a full disk or a killed process leaves it, is skipped with a note. Raises InvalidInput
    for any other malformed line, naming line, field, value and what is allowed; OSError where there is no such file.
    """
    records: list[Record] = []
    untouched: Counter[str] = Counter()
    notes: list[str] = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                value = _parse_object(line)
                if value is None:
                    notes.append(f"line {number} breaks off and was skipped")
                    continue
                event = checked_choice("event", value.get("event"), (*_PARSERS, "untouched"))
                if event in _PARSERS:
                    records.append(_PARSERS[event](value))
                else:
                    untouched[checked_text("reason", value.get("reason"))] += 1
            except InvalidInput as error:
                where = f"{path}, line {number}" + (f", {error.field}" if error.field else "")
                raise InvalidInput(where, error.value, error.allowed) from None
    return Report(tuple(records), dict(untouched), notes=tuple(notes))


def _append(path: Path, line: bytes) -> int:
    """Append by one write, making the folder where it is missing; how much was written. A FIFO that nobody reads is an
    error, not a wait."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o666)
    try:
        return os.write(descriptor, line)
    finally:
        os.close(descriptor)


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)


def _parse_object(line: bytes) -> dict[str, Any] | None:
    """The object of a log's line; None where the line breaks off. Raises InvalidInput where it is none of a log."""
    line = line.strip()
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        bare = _STRING.sub(b"", line)
        if line.startswith(b"{") and sum(map(bare.count, (b"{", b"["))) > sum(map(bare.count, (b"}", b"]"))):
            return None
        value = line[:80].decode("utf-8", "replace")
    if not isinstance(value, dict):
        raise InvalidInput("", value, "a JSON object")
    if value.get("version") != REPORT_VERSION:
        raise InvalidInput("version", value.get("version"), str(REPORT_VERSION))
    return value


def _totals(records: Iterable[Record], untouched: Mapping[str, int]) -> Totals:
    records = tuple(records)
    reasons = Counter(untouched)
    reasons.update(r.reason or "unknown" for r in records if r.outcome == UNTOUCHED)
    outcomes = Counter(r.outcome for r in records) + Counter({UNTOUCHED: sum(untouched.values())})
    winners = [r.winner_proposers for r in records if r.winner is not None]
    gains = [(r.gain, r) for r in records if r.outcome == TUNED and r.gain is not None]
    worst = min(gains, key=lambda pair: pair[0], default=None)
    host_us = sum(r.host_us or 0.0 for _, r in gains)
    winner_us = sum(r.winner_us or 0.0 for _, r in gains)
    return Totals(
        kernels={outcome: outcomes[outcome] for outcome in OUTCOMES},
        products=sum(isinstance(r, MatmulRecord) for r in records),
        untouched=_sorted(reasons),
        failures=_sorted(Counter(r.reason or "unknown" for r in records if r.outcome == FAILED)),
        verdicts=_sorted(Counter(r.verdict for r in records if r.verdict is not None)),
        tiles=_sorted(Counter(tile.status for r in records for tile in r.tiles)),
        tiles_compiled=sum(r.compiled for r in records),
        tiles_failed=sum(r.failed for r in records),
        compile_s=sum(r.compile_s for r in records if isinstance(r, KernelRecord)),
        bench_s=sum(r.bench_s for r in records),
        over_budget=sum(r.over_budget for r in records),
        winners=len(winners),
        wins={who: sum(who in proposers for proposers in winners) for who in PROPOSERS},
        model_alone_wins=winners.count(("model",)),
        gain_kernels=len(gains),
        geomean_gain=math.exp(math.fsum(math.log(gain) for gain, _ in gains) / len(gains)) if gains else None,
        time_weighted_gain=ratio(host_us, winner_us),
        worst_gain=worst[0] if worst else None,
        worst_kernel=worst[1].kernel if worst else None,
    )


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _gain(totals: Totals) -> str:
    if totals.geomean_gain is None:
        return ""
    weighted = f", time-weighted {totals.time_weighted_gain:.3f}×" if totals.time_weighted_gain else ""
    return f"{totals.geomean_gain:.3f}× over the host's own choice, geomean of {totals.gain_kernels} kernels{weighted}"


_LOGS: weakref.WeakSet[Log] = weakref.WeakSet()


def _renew_after_fork() -> None:
    """A forked child reports on itself alone, and a lock that another thread held would never be released."""
    for log in _LOGS:
        log._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)
