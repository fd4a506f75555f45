"""Commands that need no training stack: select, tune, report, doctor. `learner/cli.py` adds the rest."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tileguard import __version__
from tileguard.features.errors import InvalidInput, checked_int
from tileguard.features.hardware import KNOWN, known_hardware
from tileguard.features.kernels import ReductionKernel

from .calibration import DEFAULT_RISK, calibrated_k
from .devices.cpu import OPS, PROGRAM_OPS, cpu_kernel
from .doctor import diagnose
from .hooks.records import UNTOUCHED
from .hooks.report import read_log
from .manifest import finite
from .objective import AmortisedTime, Objective, RunTime
from .report_cli import ORDERS, legend, ordered, report_table, summary_grid
from .selector import DEFAULT_TOP_K, CandidateSet, Selector

JSON_VERSION = 1
"""Version of every `--json` object; it rises when a key changes meaning or goes."""

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False,
    help="A learned autotune model with a guarded fallback, for compilers.",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    show_help(context)


Xnumel = Annotated[int, typer.Option(help="Length of the output axis, exact.")]
Rnumel = Annotated[int, typer.Option(help="Length of the reduced axis, exact.")]
Dtype = Annotated[str, typer.Option(help="Element type: fp32, bf16, fp16, fp64, … or an alias such as f16.")]
ModelOption = Annotated[str, typer.Option("--model", help="champion (the shipped one), a model's folder, or none.")]
TopK = Annotated[str, typer.Option(help="Tiles that the model may add: a number, or calibrated.")]
Risk = Annotated[float, typer.Option(help="With --top-k calibrated: share of kernels that may lose over 5 %.")]
CallsOption = Annotated[
    float | None,
    typer.Option("--calls", help="Count compiling too: T_compile + N · T_run over so many calls; left out, run time."),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", help="cpu: generate code for this CPU, such as x86-64-v3, and not for the machine's own."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Outer = Annotated[bool, typer.Option("--outer", help="The reduced axis is not the contiguous one.")]


@app.command("select")
def select_command(
    xnumel: Xnumel,
    rnumel: Rnumel,
    dtype: Dtype = "fp32",
    num_load: Annotated[int | None, typer.Option(help="Buffers read; left out 1, or what --op reads on a CPU.")] = None,
    num_store: Annotated[int | None, typer.Option(help="Buffers written, likewise.")] = None,
    num_reduction: Annotated[int | None, typer.Option(help="Reductions in the kernel, likewise.")] = None,
    outer: Outer = False,
    persistent: Annotated[bool, typer.Option(help="One block covers the reduced axis.")] = False,
    op: Annotated[str | None, typer.Option(help="Operation, for --hardware cpu: its lattice depends on it.")] = None,
    hardware: Annotated[str, typer.Option(help=", ".join([*KNOWN, "cpu"]))] = "h200",
    model: ModelOption = "champion",
    top_k: TopK = str(DEFAULT_TOP_K),
    risk: Risk = DEFAULT_RISK,
    calls: CallsOption = None,
    as_json: Json = False,
) -> None:
    """The candidate set of one reduction, with who proposed each tile and what the guard says."""
    counts = (num_load, num_reduction, num_store)
    of_cpu = known_hardware(hardware).kind == "cpu"
    if of_cpu != (op is not None):
        raise InvalidInput(
            "op", op, "one of " + ", ".join((*OPS, *PROGRAM_OPS)) if of_cpu else "left out: it is for CPUs"
        )
    if op is not None and counts == (None, None, None):
        kernel = dataclasses.replace(cpu_kernel(op, xnumel, rnumel, dtype, inner=not outer), persistent=persistent)
    else:
        loads, reductions, stores = (1 if count is None else count for count in counts)
        kernel = ReductionKernel(
            xnumel, rnumel, dtype, loads, reductions, stores, inner=not outer, persistent=persistent, op=op
        )
    selector = Selector(hardware, model=model_option(model), top_k=top_k_option(top_k), risk=risk)
    result = selector.select(kernel, calls=objective_option(calls).calls)
    if as_json:
        print_json(candidate_set_json(result, selector))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("tile", "proposed by"):
        table.add_column(name, overflow="fold")
    table.add_column("score", justify="right", no_wrap=True)
    for c in result.candidates:
        score = "" if c.score is None else f"{c.score:.3f}"
        table.add_row(escape(str(c.tile)), escape(", ".join(c.proposers)), score)
    console().print(table)
    say(
        f"{counted(len(result.candidates), 'candidate')} for {xnumel} × {rnumel} {kernel.dtype} on {result.hardware}; "
        f"model: {result.verdict}; selected in {result.times.total_us / 1e3:.1f} ms, loading the model included"
    )
    ranker = selector.guard.ranker
    # What was held out was judged by run time, and kernels of the range.
    if ranker is not None and ranker.manifest.calibration and result.verdict.trusted and calls is None:
        say(calibration_line(ranker.manifest.calibration, result.top_k, selector.risk))


@app.command("report")
def report_command(
    log: Annotated[Path, typer.Argument(help="The JSON lines that tileguard.install(log=PATH) wrote.")],
    top: Annotated[int | None, typer.Option(help="Show the first so many kernels; the sums are over all.")] = None,
    sort: Annotated[str, typer.Option(help=", ".join(ORDERS))] = "gain",
    as_json: Json = False,
) -> None:
    """What happened in a compiler: per kernel and product the tiles, the winner, its gain over the host's own choice; the
    sums."""
    report = read_log(log)
    most = None if top is None else checked_int("top", top, minimum=1)
    records = ordered(report.records, sort)
    if as_json:
        shown = [record.to_dict() for record in records[:most]]
        print_json({**report.to_dict(), "version": JSON_VERSION, "records": shown})
        return
    out = console()
    if touched := [record for record in records if record.outcome != UNTOUCHED]:
        out.print(report_table(touched[:most], width=out.width))
        cut = f"{most} of {len(touched)} kernels by {sort}; " if most and most < len(touched) else ""
        out.print(cut + legend(touched[:most], width=out.width) + "\n", style="dim")
    out.print(summary_grid(report))


@app.command("doctor")
def doctor_command(as_json: Json = False) -> None:
    """What is installed, which devices and models are usable, and why not."""
    findings = diagnose()
    if as_json:
        print_json({"version": JSON_VERSION, "findings": [dataclasses.asdict(f) for f in findings]})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("area", "name", "", "finding"):
        table.add_column(name, overflow="fold", no_wrap=name == "")
    previous = ""
    for f in findings:
        mark = {True: "[green]ok[/green]", False: "[yellow]no[/yellow]", None: ""}[f.ok]
        table.add_row(escape(f.area) if f.area != previous else "", escape(f.name), mark, escape(f.detail))
        previous = f.area
    console().print(table)


def candidate_set_json(result: CandidateSet, selector: Selector) -> dict[str, Any]:
    """`select --json`: the set in order, the verdict, and the model's held-out misses per k."""
    ranker = selector.guard.ranker
    return {
        "version": JSON_VERSION,
        "kernel": dataclasses.asdict(result.kernel),
        "hardware": result.hardware,
        "verdict": {"reason": result.verdict.reason, "detail": result.verdict.detail},
        "digest": result.digest,
        "top_k": result.top_k,
        "calibrated_k": calibrated_k(ranker.manifest.calibration, selector.risk) if ranker is not None else None,
        "calibration": [dict(entry) for entry in ranker.manifest.calibration] if ranker is not None else [],
        "candidates": [
            {"tile": dataclasses.asdict(c.tile), "proposers": list(c.proposers), "score": c.score}
            for c in result.candidates
        ],
        "times_us": dataclasses.asdict(result.times),
    }


def calibration_line(entries: Sequence[Mapping[str, Any]], top_k: int, risk: float) -> str:
    """What held-out kernels say of this k, and which k is calibrated for the risk."""
    seen = max((entry for entry in entries if entry["k"] <= top_k), key=lambda entry: entry["k"], default=entries[0])
    found = calibrated_k(entries, risk)
    line = f"on held-out kernels {seen['k']} of the model's tiles alone lost over 5 % in {seen['misses']} of {seen['kernels']}"
    if "upper" in seen:
        line += f" (at most {100 * seen['upper']:.1f} % with 95 % confidence)"
    return f"{line}; calibrated for {100 * risk:g} %: " + (f"k = {found}" if found else "no k that was looked at")


def counted(n: int, noun: str) -> str:
    """`1 candidate`, `2 candidates`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def objective_option(calls: float | None) -> Objective:
    """`--calls`: run time, or compiling and so many calls."""
    return RunTime() if calls is None else AmortisedTime(calls)


def top_k_option(text: str) -> int | str:
    """`--top-k`: a number, or a word that the selector judges."""
    return int(text) if text.lstrip("-").isdecimal() else text


def model_option(text: str) -> str | None:
    """`--model`: champion, a folder, or none."""
    return None if text == "none" else text


def console() -> Console:
    """Where people read: the terminal's width, or wide enough for every table when piped."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 160)


def say(text: str) -> None:
    """Print a sentence as it stands: what looks like markup came from data."""
    console().print(text, markup=False)


def show_help(context: typer.Context) -> None:
    """The help of a group of commands where none was named."""
    if context.invoked_subcommand is None and (text := context.get_help()):  # empty where typer printed it itself
        typer.echo(text)


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on standard output; no NaN, no infinity (they become null)."""
    sys.stdout.write(json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


from . import plan_cli, tune_cli  # noqa: F401  (last: their commands use what is above)
