"""A/B harness: frozen candidates against each other in interleaved rounds, all that was seen kept for an audit.

The method is that of the Tile→XIR report (§2): two rounds or more in the order A→B, B→A; batches and single calls
apart; the p50 of a round; the median of the rounds' ratios, not the ratio of medians; every output compared in full
with float64, guard bytes around it; digests of all code before and after; what came out worse is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tileguard.runtime.devices.cpu import CpuBudgets
from tileguard.runtime.devices.cpu.compiler import ChildCompiler

from .ab_binaries import BinariesChanged, binary_digests, changed
from .ab_measure import CaseRun
from .ab_report import load_average, machine_facts, make_report, versions
from .ab_spec import SIDES, AbSpec, digest_of


def run_ab(
    spec: AbSpec, *, tensors: Path | None = None, compile_timeout_s: float = 60.0,
    on_step: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:  # fmt: skip
    """Measure every case of a spec; the report (ab_report.make_report). tensors: a folder for the operands and outputs
    of each case, by its number.

    A candidate that fails to compile, or computes something wrong, has no times and its case says so. Raises
    BinariesChanged where any code that takes part is another afterwards: a library, the package, a candidate's object.
    """
    started, load = datetime.now(UTC), load_average()
    compiler, budgets = ChildCompiler(timeout_s=compile_timeout_s), CpuBudgets()
    runs = [
        CaseRun(case, spec, compiler, budgets, tensors / f"{number}.npz" if tensors is not None else None)
        for number, case in enumerate(spec.cases)
    ]
    try:
        for case, run in zip(spec.cases, runs, strict=True):
            on_step(f"compile {case.name}")
            run.compile()
        _load_all(spec, compiler, budgets)
        before, origin = binary_digests(), time.perf_counter_ns()
        for case, run in zip(spec.cases, runs, strict=True):
            on_step(f"measure {case.name}")
            run.measure(origin)
        for run in reversed(runs):
            run.compile_again()
        after = binary_digests()
    finally:
        compiler.close()
    cases = [run.raw for run in runs]
    if found := [*changed(before, after), *_other_objects(cases)]:
        raise BinariesChanged(found)
    return make_report(
        {
            "spec": spec.to_json(), "spec_sha256": digest_of(spec.to_json()),
            "date": started.isoformat(timespec="seconds"), "seconds": (datetime.now(UTC) - started).total_seconds(),
            "machine": machine_facts(), "versions": versions(),
            "load_average": {"before": load, "after": load_average()},
            "binaries": {"before": before, "after": after}, "cases": cases,
        }
    )  # fmt: skip


def _load_all(spec: AbSpec, compiler: ChildCompiler, budgets: CpuBudgets) -> None:
    """Go the whole way once, with the first case: what is loaded on the way then counts as there before."""
    rehearsal = CaseRun(
        spec.cases[0], AbSpec(spec.cases[:1], rounds=2, samples=3, singles=3, sample_us=1.0), compiler, budgets
    )
    rehearsal.compile()
    rehearsal.measure(time.perf_counter_ns())


def _other_objects(cases: list[dict[str, Any]]) -> list[str]:
    """Candidates whose object was not the same when compiled again."""
    return [
        f"object of {case['name']} {side.upper()}"
        for case in cases
        for side in SIDES
        if len({entry["sha256"] for entry in case[side].get("compiles", ())}) > 1
    ]
