"""Commands that change the champion: promote, restore. Imported by learner/cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tileguard import models
from tileguard.features.errors import checked_choice
from tileguard.features.hardware import known_hardware
from tileguard.runtime.cli import JSON_VERSION, Json, app, console, print_json, say
from tileguard.runtime.feature_space import FAMILIES

if TYPE_CHECKING:
    from .promote_run import Promotion

REFUSED = 1
"""Exit status of a promotion that the gate refused."""

SHIPPED = "champion"


@app.command("promote")
def promote_command(
    challenger: Annotated[Path, typer.Argument(help="The challenger's folder: OUT/model of a training.")],
    corpora: Annotated[list[Path], typer.Argument(help="The corpora it was trained on, and others to judge on.")],
    champion: Annotated[
        str | None,
        typer.Option(
            help="What it must not fall behind: champion (the shipped one), or a folder. Default: what stands in --into.",
            show_default=False,
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="The folder to install into. Default: the champion's.", show_default=False)
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            help="A corpus of families that neither saw; may be repeated. Default: cross-validation over CORPORA.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="MLflow of the challenger's training. Default: where train records.")
    ] = None,
    latency_budget_us: Annotated[
        float, typer.Option(help="Most µs that a selection may take, at p50 on this machine.")
    ] = 1000.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Judge; record and replace nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make a challenger the champion, if it is in no way worse on held-out families; exit 1 where it is refused."""
    from .promote_run import promote
    from .promotion import Rules, read_contender

    new = read_contender(challenger)
    shipped = models.champion_path(new.manifest.family, new.manifest.hardware)
    named = shipped if champion == SHIPPED else Path(champion) if champion is not None else None
    target = into if into is not None else named if named is not None else shipped
    rival = named if named is not None else target if target.exists() else shipped
    # A champion that is named must be there; the first of its hardware has no rival.
    old = read_contender(rival) if rival.exists() or champion not in (None, SHIPPED) else None
    console_ = console()
    step = (lambda text: None) if as_json else (lambda text: console_.print(f"[dim]{escape(text)} …[/dim]"))
    result = promote(
        new, old, target, corpora, held_out=held_out or (), store=store,
        rules=Rules(latency_budget_us=latency_budget_us), dry_run=dry_run, on_step=step,
    )  # fmt: skip
    if as_json:
        print_json({**result.to_json(), "version": JSON_VERSION})
    else:
        _show(result)
    if not result.decision.promoted:
        raise typer.Exit(REFUSED)


@app.command("restore")
def restore_command(
    champion: Annotated[
        str, typer.Argument(help="champion (the shipped one), or the folder whose model was replaced.")
    ] = SHIPPED,
    hardware: Annotated[str, typer.Option(help="Of the shipped one.")] = "h200",
    family: Annotated[str, typer.Option(help="Of the shipped one: reduction or matmul.")] = "reduction",
    to: Annotated[
        str | None,
        typer.Option(help="First digits of a former champion's digest. Default: the last.", show_default=False),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the former champions; change nothing.")] = False,
    store: Annotated[
        str | None, typer.Option(help="MLflow, whose alias `champion` follows. Default: where train records.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring the champion back that was replaced. The one it replaces is kept in turn: once more undoes it."""
    from .champions import replaced
    from .promote_run import describe, registered_name, restore
    from .promote_tables import former_table

    folder = Path(champion)
    if champion == SHIPPED:
        folder = models.champion_path(checked_choice("family", family, FAMILIES), known_hardware(hardware).name)
    if listed:
        former = replaced(folder)
        if as_json:
            entries = [{"model": one.onnx12, "replaced": one.replaced, "folder": str(one.folder)} for one in former]
            print_json({"version": JSON_VERSION, "folder": str(folder), "former": entries})
        else:
            console().print(former_table(str(folder), former))
        return
    result = restore(folder, to=to, store=store, name=registered_name(folder))
    if as_json:
        kept = str(result.replaced.folder) if result.replaced else None
        print_json(
            {
                "version": JSON_VERSION, "folder": str(folder), "restored": result.onnx12, "kept": kept,
                "registry": result.registry,
            }
        )  # fmt: skip
        return
    kept = f"; the one it replaced is {describe(result.replaced)}" if result.replaced else ""
    say(f"restored: {folder} is {result.onnx12}…{kept}")
    say(f"registry: {result.registry}")


def _show(result: Promotion) -> None:
    from .promote_run import describe
    from .promote_tables import LEGEND, checks_table, paired_table

    decision = result.decision
    console().print(checks_table(decision))
    if decision.paired:
        console().print(paired_table(decision))
        say(LEGEND)
    for note in decision.notes:
        say(note)
    if decision.judged:
        say(f"judged on {decision.held_out}")
    if result.installed is not None:
        kept = f"; `tileguard restore` brings the former one back, {describe(result.kept)}" if result.kept else ""
        say(f"promoted: {result.installed} is {decision.challenger.onnx_sha256[:12]}…{kept}")
    elif decision.promoted:
        say("every check passed; nothing was replaced")
    else:
        say(f"refused: {', '.join(decision.failed)}" + ("" if decision.judged else "; the rest was not judged"))
    say(f"recorded: {result.recorded}")
