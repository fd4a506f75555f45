"""`tileguard fit-formula`. Imported by learner/cli.py for its side effect."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from tileguard.features.errors import InvalidInput
from tileguard.runtime.cli import JSON_VERSION, Json, app, console, counted, print_json, say
from tileguard.runtime.feature_space import REDUCTION


@app.command("fit-formula")
def fit_formula_command(
    corpora: Annotated[list[Path], typer.Argument(help="Corpora: .parquet, or raw sweeps .jsonl, .jsonl.xz.")],
    out: Annotated[Path, typer.Option(help="Folder to write: formula.json, report.md and figures.")],
    hardware: Annotated[
        str | None, typer.Option("--hardware", help="What it was measured on; a Parquet corpus says it itself.")
    ] = None,
    tiles: Annotated[
        float | None, typer.Option(help="Mean tiles a kernel, warps included; 16 if left out, on a CPU 12.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds of workload families, to judge by.")] = 5,
    store: Annotated[
        str | None, typer.Option("--store", help="Record it in MLflow: a folder (SQLite inside) or a tracking URI.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit the formula to a hardware: regimes, P*, split, warps, the offsets worth compiling; judged on held-out families."""
    from tileguard.runtime.formula import params_json

    from .cli import check_folder, corpus_hardware
    from .corpus import read_corpora
    from .fit_formula import FitConfig, fit_config, fit_formula
    from .formula_judge import FORMULA, RFC, RFC_REFITTED, judge_held_out
    from .formula_report import formula_facts, formula_report
    from .tables import selector_table

    corpus = read_corpora(corpora, hardware=hardware)
    if corpus.family != REDUCTION:
        raise InvalidInput(
            "corpus", f"{corpus.path}, of {corpus.family}", f"one of {REDUCTION}: only these have a formula"
        )
    spec = corpus_hardware(corpus, hardware)
    tiles = fit_config(spec).tiles if tiles is None else tiles
    config = FitConfig(tiles=tiles, folds=folds)
    check_folder("out", out)
    started = time.perf_counter()
    judged = judge_held_out(corpus, spec, config)
    fit = fit_formula(corpus.sweeps, spec, config)
    seconds = time.perf_counter() - started
    facts = formula_facts(fit, judged, spec, config)

    from .figures import loss_against_rnumel, winners_in_tile_space

    figures = {
        "loss_against_rnumel": loss_against_rnumel(judged.evaluation, (RFC, RFC_REFITTED, FORMULA)),
    }
    if spec.kind != "cpu":
        figures["winners_in_tile_space"] = winners_in_tile_space(corpus)
    texts = {"formula.json": params_json(fit.params), "report.md": formula_report(fit, facts)}
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=150)
    where = ""
    if store is not None:
        from .store import open_store
        from .tracking import log_evaluation

        target = open_store(store)
        command = shlex.join(
            [
                "tileguard",
                "fit-formula",
                *map(str, corpora),
                "--out",
                str(out),
                "--tiles",
                f"{tiles:g}",
                "--folds",
                str(folds),
            ]
        )
        run_id = log_evaluation(
            target, kind="formula", name=f"formula {spec.name} {tiles:g} tiles", evaluation=judged.evaluation,
            judged=FORMULA, params={"tiles": tiles, "folds": folds, **facts["constants"]}, folds=judged.folds,
            figures=figures, artifacts=texts, command=command, seconds=seconds,
        )  # fmt: skip
        facts["run_id"], where = run_id, f"; MLflow {target.uri}, run {run_id}"
    if as_json:
        print_json({"version": JSON_VERSION, "formula": str(out / "formula.json"), "seconds": seconds, **facts})
        return
    title = f"{len(corpus.sweeps)} kernels on {spec.name}, each judged by a formula that saw none of its family"
    console().print(selector_table(judged.evaluation, title=title, width=console().width))
    say(f"{out / 'formula.json'}, report.md, {counted(len(figures), 'figure')}; {seconds:.0f} s{where}")
