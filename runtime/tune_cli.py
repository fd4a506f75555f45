"""`tileguard tune`. Imported by cli.py for its side effect."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from tileguard.features.errors import InvalidInput
from tileguard.features.tiles import ReductionTile

from .calibration import DEFAULT_RISK
from .cli import (
    JSON_VERSION,
    CallsOption,
    Dtype,
    Json,
    ModelOption,
    Outer,
    Risk,
    Rnumel,
    TargetOption,
    TopK,
    Xnumel,
    app,
    console,
    counted,
    model_option,
    objective_option,
    print_json,
    say,
    top_k_option,
)
from .devices.base import OK, Timing
from .devices.cpu import OPS, PROGRAM_OPS, cpu_kernel
from .objective import Objective, schedule
from .selector import DEFAULT_TOP_K, Selector
from .tuner import TIE_BAND, CandidateResult, TuningResult, tune
from .winners import Winners

NARROW = 70
"""Columns of a terminal below which the spread and the compile time of each tile are left out."""


@app.command("tune")
def tune_command(
    op: Annotated[str, typer.Option(help=", ".join((*OPS, *PROGRAM_OPS)))],
    xnumel: Xnumel,
    rnumel: Rnumel,
    dtype: Dtype = "fp32",
    outer: Outer = False,
    device: Annotated[str, typer.Option(help="cpu: compiled by LLVM, timed on this machine.")] = "cpu",
    model: ModelOption = "champion",
    top_k: TopK = str(DEFAULT_TOP_K),
    risk: Risk = DEFAULT_RISK,
    calls: CallsOption = None,
    winners: Annotated[Path | None, typer.Option(help="SQLite file that keeps winners over processes.")] = None,
    target: TargetOption = None,
    as_json: Json = False,
) -> None:
    """Tune one reduction for real: compile the candidate set, check and time every tile, keep the best.

    Best is the fastest; with --calls, what costs least to compile once and call so often.
    """
    if device != "cpu":
        raise InvalidInput("device", device, "cpu; GPU kernels are tuned inside their compiler")
    from .devices.cpu import CpuDevice

    kernel = cpu_kernel(op, xnumel, rnumel, dtype, inner=not outer)
    objective = objective_option(calls)
    kept = Winners(winners) if winners is not None else None
    if kept is not None and not kept.persistent:
        raise InvalidInput("winners", str(winners), "a SQLite file that can be read and written")
    machine = CpuDevice(target=target)
    try:
        selector = Selector(machine.hardware, model=model_option(model), top_k=top_k_option(top_k), risk=risk)
        result = tune(kernel, machine, selector, objective=objective, winners=kept)
    finally:
        machine.close()
    if as_json:
        print_json(tuning_json(result, objective))
        return
    if not result.from_store:
        console().print(tuning_table(result, objective, width=console().width))
    source = "from the store" if result.from_store else f"of {counted(len(result.candidates), 'candidate')}"
    console().print(
        f"winner {source}: [bold]{escape(str(result.winner.tile))}[/bold], {three_digits(result.winner.us)} µs, compiled in "
        f"{result.winner.compile_ms:.0f} ms; proposed by {escape(', '.join(result.proposers))}; "
        f"model: {escape(str(result.verdict))}; {result.seconds:.1f} s"
    )
    if calls is not None:
        say(cost_line(result, objective))
    if not result.from_store:
        say(schedule_line(result))


def tuning_json(result: TuningResult, objective: Objective) -> dict[str, Any]:
    """`tune --json`: every candidate with status, compile time, timing and cost; the winner; the schedule."""
    return {
        "version": JSON_VERSION,
        "kernel": dataclasses.asdict(result.kernel),
        "hardware": result.hardware,
        "verdict": {"reason": result.verdict.reason, "detail": result.verdict.detail},
        "calls": objective.calls if objective.calls < math.inf else None,
        "from_store": result.from_store,
        "winner": {**dataclasses.asdict(result.winner), "proposers": list(result.proposers)},
        "schedule": [
            {"tile": dataclasses.asdict(tile), "from_calls": since} for tile, since in cheapest_by_calls(result)
        ],
        "candidates": [
            {**dataclasses.asdict(c), "cost_us": None if c.timing is None else cost_us(c, objective)}
            for c in result.candidates
        ],
        "seconds": result.seconds,
    }


def cost_us(candidate: CandidateResult, objective: Objective) -> float:
    """What a candidate costs under an objective, in µs; infinite where it failed."""
    if candidate.timing is None:
        return math.inf
    return objective.cost_us(candidate.timing, candidate.compile_ms or 0.0)


def cost_line(result: TuningResult, objective: Objective) -> str:
    """What the winner costs under an objective that counts compiling."""
    winner = result.winner
    cost = objective.cost_us(Timing(winner.us, winner.us, winner.us, 0.0, 1), winner.compile_ms)
    return (
        f"compiled once and called {objective.calls:,.10g} times: {cost / 1e3:.3g} ms, of which compiling "
        f"{100 * 1e3 * winner.compile_ms / cost if cost else 100:.0f} %"
    )


def cheapest_by_calls(result: TuningResult) -> list[tuple[ReductionTile, float]]:
    """The candidates that are best for some number of calls, compiling counted, and from how many on; without those that
    run less than TIE_BAND faster than the one before: noise decides between them."""
    works = [(c.tile, c.compile_ms or 0.0, c.timing.us) for c in result.candidates if c.timing is not None]
    found: list[tuple[ReductionTile, float]] = []
    fastest = math.inf
    for i, since in schedule([(ms, us) for _, ms, us in works]):
        if works[i][2] < (1 - TIE_BAND) * fastest:
            found.append((works[i][0], since))
            fastest = works[i][2]
    return found


def schedule_line(result: TuningResult) -> str:
    """Which candidate is best from how many calls on, compiling counted: two digits, as compile times repeat no better."""
    parts = [
        f"{tile}" + (f" from about {float(f'{math.ceil(since):.2g}'):,.0f} on" if since else "")
        for tile, since in cheapest_by_calls(result)
    ]
    return "cheapest by calls, compiling counted: " + ", ".join(parts)


def tuning_table(result: TuningResult, objective: Objective, *, width: int = NARROW) -> Table:
    """Candidates by cost, failures last."""
    amortised = objective.calls < math.inf
    figures = ["µs"] if width < NARROW else ["µs", "MAD", "compile ms"]
    figures = ["total ms", *figures] if amortised else figures
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("tile", "proposed by"):
        table.add_column(name, overflow="fold")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    for c in sorted(result.candidates, key=lambda c: cost_us(c, objective)):
        shown = {"total ms": "", "µs": "", "MAD": "", "compile ms": ""}
        if c.timing is not None:
            shown = {
                "total ms": three_digits(cost_us(c, objective) / 1e3), "µs": three_digits(c.timing.us),
                "MAD": f"{c.timing.us_mad:.{decimals(c.timing.us)}f}", "compile ms": f"{c.compile_ms:.0f}",
            }  # fmt: skip
        table.add_row(
            escape(str(c.tile)), escape(", ".join(c.proposers)), *(shown[name] for name in figures),
            OK if c.status == OK else escape(f"{c.status}: {c.error}"),
            style="bold" if c.tile == result.winner.tile else "",
        )  # fmt: skip
    return table


def decimals(value: float) -> int:
    """Of a positive number with three significant digits, or with one decimal where it is large."""
    return max(1, 2 - math.floor(math.log10(value))) if value > 0 else 2


def three_digits(value: float) -> str:
    """A time, without an exponent."""
    return f"{value:,.{decimals(value)}f}"
