"""The audit of an A/B report: everything recomputed from the raw data, by nothing that took part in the measuring.

It imports no module of the harness (ab*.py), on purpose: formulas stand here a second time. What it cannot see is a
whole report made up consistently: digests are no signatures, and only a run elsewhere can answer that.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from tileguard.features.errors import InvalidInput

from .audit_checks import CHECKS, WHOLE, ratios, valid

_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that fails: its name, the case (or `WHOLE`), and what was found."""

    check: str
    case: str
    finding: str


@dataclass(frozen=True, slots=True)
class Audit:
    """checks: names of all that were made; failures: in their order; cases: how many; recomputed: speed-ups of batches
    by the name of the case, None where nothing may be claimed."""

    checks: tuple[str, ...]
    failures: tuple[Failure, ...]
    cases: int
    recomputed: tuple[tuple[str, float | None], ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(failure.check for failure in self.failures))

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok, "checks": list(self.checks), "cases": self.cases,
            "failures": [{"check": f.check, "case": f.case, "finding": f.finding} for f in self.failures],
            "recomputed": [{"name": name, "speedup": speedup} for name, speedup in self.recomputed],
        }  # fmt: skip


def read_report(path: Path) -> dict[str, Any]:
    """The object in a file. Raises InvalidInput for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput("report", str(path), f"a readable file ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput("report", str(path), f"a JSON file ({error})") from None
    if not isinstance(found, dict):
        raise InvalidInput("report", str(path), "a JSON object")
    return found


def audit(report: Mapping[str, Any], tensors: Path | None = None) -> Audit:
    """Make every check; one that cannot be made, since its data are missing or malformed, fails.

    tensors: the folder of the run's operands and outputs, which are then computed again in float64.
    """
    failures: list[Failure] = []
    checks = dict(CHECKS)
    if tensors is not None:
        from .audit_tensors import check_tensors

        checks["tensors"] = partial(check_tensors, folder=tensors)
    for name, check in checks.items():
        try:
            failures += [Failure(name, case, finding) for case, finding in check(report)]
        except _MALFORMED as error:
            failures.append(Failure(name, WHOLE, f"missing or malformed: {type(error).__name__}: {error}"))
    recomputed: list[tuple[str, float | None]] = []
    try:
        for case in report["raw"]["cases"]:
            speedup = statistics.median(ratios(case, "batch")) if valid(case) else None
            recomputed.append((str(case["name"]), speedup))
    except _MALFORMED:
        recomputed = []
    return Audit(tuple(checks), tuple(failures), len(recomputed), tuple(recomputed))


def audit_table(result: Audit) -> Table:
    """The checks that failed."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("check", "case", "finding"):
        table.add_column(name, overflow="fold")
    for failure in result.failures:
        table.add_row(failure.check, escape(failure.case), escape(failure.finding))
    return table
