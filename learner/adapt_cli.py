"""`tileguard adapt`. Imported by learner/cli.py for its side effect."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from tileguard import models
from tileguard.features.errors import InvalidInput
from tileguard.runtime.cli import JSON_VERSION, Json, TargetOption, app, console, print_json, say

if TYPE_CHECKING:
    from .adapt import Adaptation
    from .pipeline import Trained
    from .tracking import LoggedTraining

COMPILE_AGAIN_MS = 60.0
"""A tile is compiled until so much time went into it: of short compiles one is not enough to go by."""


@app.command("adapt")
def adapt_command(
    base: Annotated[
        Path | None, typer.Option(help="Corpus of another CPU to start from; left out, the shipped one.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Models folder to write to; left out, the user's own: TILEGUARD_MODELS, else tileguard/models in "
            "XDG_DATA_HOME, else in ~/.local/share."
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Kernels to sweep on this machine, 8 or more.")] = 24,
    budget: Annotated[float, typer.Option(help="Seconds of sweeping; run it again to go on.")] = 180.0,
    seed: Annotated[int, typer.Option(help="Of the kernels drawn, and of the training.")] = 0,
    target: TargetOption = None,
    store: Annotated[
        str | None, typer.Option("--store", help="Record it in MLflow: a folder (SQLite inside) or a tracking URI.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a ranker to this CPU: sweep a few kernels, train on them and on another CPU's corpus, judge, and install it."""
    from tileguard.runtime.devices.cpu import CpuDevice

    from .adapt import BASE_CORPUS, AdaptRefused, adapt, checked_base, local_workloads
    from .cli import check_folder
    from .collect import collect
    from .corpus import read_corpus
    from .pipeline import default_config, write_model
    from .progress import collect_with_progress
    from .store import open_store

    root = models.user_root() if out is None else out
    if root is None:
        raise InvalidInput("out", None, "a folder, where the user has no home")
    start = read_corpus(BASE_CORPUS if base is None else base)
    measured = checked_base(start)
    workloads = local_workloads(start, count, seed)
    check_folder("out", root)
    if store is not None:
        open_store(store)  # fails now rather than after the sweep
    device = CpuDevice(compile_again_ms=COMPILE_AGAIN_MS, target=target)
    try:
        hardware = device.hardware
        local = local_corpus(root, hardware.name)
        if not as_json:
            say(base_line(measured, hardware.name, len(start.sweeps)))
        if as_json:
            swept = collect(workloads, device, local, budget_s=budget)
        else:
            swept = collect_with_progress(workloads, device, local, budget_s=budget, console=console())
    finally:
        device.close()
    if not local.is_file():
        raise AdaptRefused(f"no tile of {', '.join(swept.hopeless)} works on this machine")
    console_ = console()
    step = (lambda text: None) if as_json else (lambda text: console_.print(f"[dim]{escape(text)} …[/dim]"))
    command = shlex.join(["tileguard", "adapt", *_flags(base, count, seed, target)])
    result = adapt(
        start, read_corpus(local), hardware, default_config(hardware, seed=seed), command=command, on_step=step
    )
    written, run = None, None
    if result.trained is not None:
        trained = result.trained
        if store is not None:
            logged = record(trained, hardware.name, store)
            trained, run = dataclasses.replace(trained, manifest=logged.manifest), logged.run_id
        written = write_model(trained, root / models.folder_name("reduction", hardware.name))
    if as_json:
        facts = {**result.to_json(), "model": str(written) if written else None, "run_id": run, "left": swept.left}
        print_json({"version": JSON_VERSION, **facts})
    else:
        console_.print(adaptation_table(result))
        if swept.left:
            say(f"{swept.left} kernels are left: run it again to go on from {local}")
        if written is not None:
            say(f"model {written}{where(root)}; sweep {local}" + (f"; MLflow run {run}" if run else ""))
    if result.refusal is not None:
        raise AdaptRefused(f"no model is written: {result.refusal}")


def local_corpus(root: Path, hardware: str) -> Path:
    """The file that keeps a machine's own sweep, beside its model."""
    return root / f"local-{hardware}.parquet"


def base_line(measured: str, hardware: str, kernels: int) -> str:
    """What the base is to this machine."""
    if measured == hardware:
        return f"the base, {kernels} kernels, was measured on this hardware, {hardware}: new kernels are added to it"
    return f"the base, {kernels} kernels, was measured on {measured}; this is {hardware}"


def where(root: Path) -> str:
    """Whether the selector finds a model that lies there, in words."""
    user = models.user_root()
    if user is not None and user.absolute() == root.absolute():
        return ""
    return f" (found with {models.FOLDER_VARIABLE}={root})"


def adaptation_table(result: Adaptation) -> Table:
    """One row a set and objective: lossless, severe, geomean."""
    from .adapt import JUDGED, judged_json, objective_name
    from .tables import percent

    title = (
        f"{len(result.local.sweeps)} kernels on {result.hardware.name}, each judged without its family; trained on "
        f"{len(result.base.sweeps)} of the base and on these, which count {result.weight:.1f} times"
    )
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("objective")
    table.add_column("set")
    for name in ("≤ 5 %", "> 30 %", "geomean", "tiles"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in judged_json(result.judgements):
        for place, name in enumerate(JUDGED):
            found = one[name]
            table.add_row(
                objective_name(one["calls"]) if place == 0 else "", "adapted model@8" if name == "model@8" else name,
                percent(found["lossless"]), percent(found["severe"]), f"{found['geomean']:.3f}",
                f"{found['set_mean']:.1f}", end_section=name == JUDGED[-1],
            )  # fmt: skip
    return table


def record(trained: Trained, hardware: str, store: str) -> LoggedTraining:
    """Record an adaptation in MLflow as the training that it is."""
    from .store import open_store
    from .tracking import TrainingRecord, log_training

    held_out = trained.held_out
    return log_training(
        open_store(store),
        TrainingRecord(
            name=f"reduction-{hardware}", config=trained.config, evaluation=held_out.evaluation, folds=held_out.folds,
            curve=held_out.curve, figures={}, onnx=trained.onnx, manifest=trained.manifest, card=trained.card,
            seconds=trained.seconds, by_calls=held_out.by_calls,
        ),
    )  # fmt: skip


def _flags(base: Path | None, count: int, seed: int, target: str | None) -> list[str]:
    flags = ["--count", str(count), "--seed", str(seed)]
    flags += ["--base", str(base)] if base is not None else []
    return [*flags, "--target", target] if target is not None else flags
