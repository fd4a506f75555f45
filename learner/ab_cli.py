"""Commands of trusted comparisons: ab measures two candidates, audit recomputes a report. Imported by learner/cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tileguard.runtime.cli import JSON_VERSION, Json, app, console, print_json, say

REFUSED = 1
"""Exit status where code changed under a run, or a report fails its audit."""


@app.command("ab")
def ab_command(
    a: Annotated[Path, typer.Argument(help="JSON: A's candidate or a list of them; without B, cases of A and B each.")],
    b: Annotated[
        Path | None, typer.Argument(help="JSON: B's candidates, of the same kernels in the same order.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The report to write, with all raw data.")] = Path("out/ab/REPORT.json"),
    rounds: Annotated[int, typer.Option(help="Rounds, two at least: A→B, B→A in turn.")] = 4,
    samples: Annotated[int, typer.Option(help="Batches a round and side.")] = 7,
    singles: Annotated[int, typer.Option(help="Single calls a round and side.")] = 50,
    sample_us: Annotated[float, typer.Option(help="CPU time of a batch, µs.")] = 3000.0,
    seed: Annotated[int, typer.Option(help="Of the operands.")] = 0,
    tensors: Annotated[
        Path | None, typer.Option(help="Folder for the operands and outputs themselves.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Time two candidates against each other, checked and interleaved; exit 1 where code changed during the run."""
    from .ab import run_ab
    from .ab_binaries import BinariesChanged
    from .ab_report import report_table, write_report
    from .ab_spec import AbSpec, read_cases
    from .cli import check_file, check_folder

    spec = AbSpec(read_cases(a, b), rounds=rounds, samples=samples, singles=singles, sample_us=sample_us, seed=seed)
    check_file("out", out)
    if tensors is not None:
        check_folder("tensors", tensors)
    console_ = console()
    step = (lambda text: None) if as_json else (lambda text: console_.print(f"[dim]{escape(text)} …[/dim]"))
    try:
        report = run_ab(spec, tensors=tensors, on_step=step)
    except BinariesChanged as error:
        if as_json:
            print_json({"version": JSON_VERSION, "report": None, "changed": error.names})
        else:
            say(f"refused, nothing written; {error}")
        raise typer.Exit(REFUSED) from None
    write_report(report, out)
    if as_json:
        facts = {name: report[name] for name in ("metric", "raw_sha256", "summary")}
        print_json({"version": JSON_VERSION, "report": str(out), "changed": [], **facts})
        return
    console_.print(report_table(report, width=console_.width))
    raw = report["raw"]
    load = " → ".join(f"{side[0]:.1f}" for side in raw["load_average"].values() if side)
    say(
        f"A / B: {report['metric']}, {rounds} rounds; {raw['machine']['hardware']['name']}, "
        f"{raw['versions']['toolchain']}, load {load or 'unknown'}; {len(raw['binaries']['after'])} binaries unchanged; "
        f"{out}, raw data {report['raw_sha256'][:12]}…"
    )


@app.command("audit")
def audit_command(
    report: Annotated[Path, typer.Argument(help="What tileguard ab wrote.")],
    tensors: Annotated[
        Path | None, typer.Option(help="Its tensors, to be computed again in float64.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute an A/B report from its raw data; exit 1 with the checks that fail."""
    from .audit import audit, audit_table, read_report

    result = audit(read_report(report), tensors)
    if as_json:
        print_json({"version": JSON_VERSION, "report": str(report), **result.to_json()})
    elif result.ok:
        say(f"{report}: {len(result.checks)} checks hold for {result.cases} cases ({', '.join(result.checks)})")
    else:
        console().print(audit_table(result))
        say(f"{report}: refused, {len(result.failed)} of {len(result.checks)} checks fail")
    if not result.ok:
        raise typer.Exit(REFUSED)
