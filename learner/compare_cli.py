"""Commands that set recorded and judged candidate sets side by side: compare, runs. cli.py imports it for its commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tileguard.features.errors import InvalidInput
from tileguard.runtime.cli import JSON_VERSION, Json, app, console, print_json, say

from .cli import (
    HardwareOption,
    StoreOption,
    corpus_hardware,
    load_model,
    parse_ks,
    trained_on,
    warn_trained_on,
)

if TYPE_CHECKING:
    from tileguard.features.hardware import HardwareSpec
    from tileguard.runtime.ranker import OnnxRanker

    from .compare import Column
    from .corpus import Corpus
    from .evaluate import Evaluation
    from .store import Store

CORPUS_ENDINGS = (".parquet", ".jsonl", ".jsonl.xz")
RUN, RUNS = "run:", "runs"


@app.command("compare")
def compare_command(
    things: Annotated[
        list[str],
        typer.Argument(
            metavar="THING... [CORPUS...]",
            help="champion, a model's folder, run:ID (or its beginning), runs; then corpora to judge the models on.",
        ),
    ],
    hardware: HardwareOption = None,
    top_k: Annotated[int, typer.Option(help="Tiles that each model picks.")] = 8,
    store: StoreOption = None,
    most: Annotated[int, typer.Option(min=1, help="How many of the store's newest runs `runs` stands for.")] = 6,
    record: Annotated[
        bool, typer.Option("--record", help="Record each model judged here as a run of the store.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Two models or more, and recorded runs, side by side: tiers, tiles, regimes, curves, device.

    Models are judged on the corpora; without any, by the held-out figures that they carry.
    """
    from .compare import comparable
    from .store import open_store
    from .tables import compare_tables, curve_table, differences, side_tables

    (k,) = parse_ks(str(top_k))
    corpora = [Path(thing) for thing in things if thing.endswith(CORPUS_ENDINGS)]
    names = [thing for thing in things if not thing.endswith(CORPUS_ENDINGS)]
    models = [name for name in names if name != RUNS and not name.startswith(RUN)]
    if record and not (models and corpora):
        raise InvalidInput("record", "--record", "models and corpora to judge them on")
    target = open_store(store) if record or len(models) < len(names) else None
    recorded = _recorded(target, [name for name in names if name not in models], most) if target else {}
    judged = _judge(models, corpora, hardware, k, record=record) if corpora else None
    columns: list[Column] = []
    for name in names:
        columns += recorded[name] if name in recorded else [judged.column(name) if judged else _carried(name, hardware)]
    if len(columns) < 2:
        raise InvalidInput("things", " ".join(names) or "(none)", "two models or runs at least, to compare")
    if record and judged and target:
        judged.record(target)
    two = judged if judged and len(models) == len(names) == 2 else None
    selectors = (f"model@{k}", f"union@{k}")
    if as_json:
        found: dict[str, Any] = {"version": JSON_VERSION, "columns": [column.to_json(k) for column in columns]}
        if two:
            one, other = (two.evaluations[name] for name in models)
            found |= {
                "kernels": len(two.corpus.sweeps), "a": models[0], "b": models[1],
                "selectors": {s: {"a": one.summary(s), "b": other.summary(s)} for s in selectors},
                "differences": differences(one, other, selectors[0]),
                "trained_on": {side: two.seen(name) for side, name in zip("ab", models, strict=True)},
            }  # fmt: skip
        print_json(found)
        return
    width = console().width
    if two:
        one, other = (two.evaluations[name] for name in models)
        tables = [
            *compare_tables(one, other, (models[0], models[1]), selectors[0], width=width),
            curve_table(columns, title="k tiles of the model alone: ≤ 5 % / > 30 %"),
        ]
    else:
        tables = side_tables(columns, k, width=width)
    for table in tables:
        console().print(table)
    if not comparable(columns):
        say("not judged on the same corpora: differences may be the corpora's")
    for name in dict.fromkeys(models):
        warn_trained_on(name, judged.seen(name) if judged else [])


@app.command("runs")
def runs_command(
    store: StoreOption = None,
    kind: Annotated[str | None, typer.Option(help="training, ablation, formula or evaluation; left out, all.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """Recorded runs, newest first: kind, device, kernels, tiers and tiles of model, union and the set it is about."""
    from .runs import KINDS, list_runs
    from .store import open_store
    from .tables import runs_table

    if kind is not None and kind not in KINDS:
        raise InvalidInput("kind", kind, "one of " + ", ".join(KINDS))
    target = open_store(store)
    rows = list_runs(target, KINDS if kind is None else (kind,))
    if as_json:
        print_json({"version": JSON_VERSION, "store": target.uri, "runs": rows[:top]})
        return
    title = f"{min(top, len(rows))} of {len(rows)} runs in {target.uri}"
    console().print(runs_table(rows[:top], title=title, width=console().width))


class _Judged:
    """Models judged on the same corpora, by the names that the user gave."""

    def __init__(self, rankers: dict[str, OnnxRanker], corpus: Corpus, spec: HardwareSpec, ks: list[int]) -> None:
        from .evaluate import CURVE_K, curve, evaluate
        from .pipeline import champion_model

        self.rankers, self.corpus, self.spec = rankers, corpus, spec
        self.evaluations: dict[str, Evaluation] = {}
        self.curves = {}
        for name, ranker in rankers.items():
            model = champion_model(ranker, spec)
            self.evaluations[name] = evaluate(corpus, spec, model, ks=ks)
            self.curves[name] = curve(corpus, model, sorted({*CURVE_K, *ks}))

    def column(self, name: str) -> Column:
        from .compare import column_of_evaluation

        return column_of_evaluation(name, "judged", self.spec.name, self.evaluations[name], self.curves[name])

    def seen(self, name: str) -> list[str]:
        return trained_on(self.rankers[name], self.corpus)

    def record(self, store: Store) -> None:
        from .runs import EVALUATION
        from .tracking import log_evaluation

        for name, ranker in self.rankers.items():
            digest = ranker.manifest.onnx_sha256
            log_evaluation(
                store, kind=EVALUATION, name=f"{name} {digest[:12]}", evaluation=self.evaluations[name],
                curve=self.curves[name], tags={"tileguard.onnx_sha256": digest},
                params={"model": name, "onnx_sha256": digest, "trained_on": ", ".join(self.seen(name))},
            )  # fmt: skip


def _judge(models: list[str], corpora: list[Path], hardware: str | None, k: int, *, record: bool) -> _Judged:
    if not models:
        raise InvalidInput("corpora", ", ".join(map(str, corpora)), "a model to judge on them; a run has its own")
    from .corpus import read_corpora
    from .pipeline import EVALUATED_K

    corpus = read_corpora(corpora, hardware=hardware)
    spec = corpus_hardware(corpus, hardware)
    # What is recorded has the names that trainings have.
    ks = {k, *EVALUATED_K} if record else {k}
    return _Judged({name: load_model(name, spec, corpus.family) for name in models}, corpus, spec, sorted(ks))


def _carried(name: str, hardware: str | None) -> Column:
    """A model that there is no corpus for."""
    from tileguard.features.hardware import known_hardware
    from tileguard.runtime.feature_space import REDUCTION
    from tileguard.runtime.manifest import parse_manifest
    from tileguard.runtime.ranker import MANIFEST_FILE

    from .compare import column_of_manifest

    file, family = Path(name) / MANIFEST_FILE, REDUCTION
    if file.is_file():
        manifest = parse_manifest(file.read_text(encoding="utf-8"))
        hardware, family = hardware or manifest.hardware, manifest.family
    if hardware is None:
        raise InvalidInput("model", name, "a model's folder, or a corpus or --hardware with it")
    return column_of_manifest(name, load_model(name, known_hardware(hardware), family).manifest)


def _recorded(store: Store, names: list[str], most: int) -> dict[str, list[Column]]:
    """What `run:ID` and `runs` stand for."""
    from .compare import column_of_run
    from .runs import find_run, list_runs, run_curve

    rows = list_runs(store)
    chosen = {
        name: [row for row in rows if row["status"] == "FINISHED"][:most]
        if name == RUNS
        else [find_run(rows, name.removeprefix(RUN))]
        for name in names
    }
    return {
        name: [column_of_run(row, run_curve(store, row["run_id"])) for row in found] for name, found in chosen.items()
    }
