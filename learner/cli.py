"""Commands of the training side: corpus, train, evaluate, collect, demo. Imported by the `tileguard` script."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tileguard.features.errors import InvalidInput, checked_choice
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.runtime.cli import (
    JSON_VERSION,
    CallsOption,
    Json,
    TargetOption,
    app,
    console,
    objective_option,
    print_json,
    say,
    show_help,
)
from tileguard.runtime.guard import ModelRejected, check_fit
from tileguard.runtime.ranker import OnnxRanker, load_ranker
from tileguard.runtime.selector import load_champion

if TYPE_CHECKING:
    from .corpus import Corpus

corpus_app = typer.Typer(help="Dense measurements: import, look at, validate.")
app.add_typer(corpus_app, name="corpus")

Corpora = Annotated[list[Path], typer.Argument(help="Corpora: .parquet, or raw sweeps .jsonl, .jsonl.xz.")]
HardwareOption = Annotated[
    str | None, typer.Option("--hardware", help="What it was measured on; a Parquet corpus says it itself.")
]
__all__ = ["app"]

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="MLflow: a folder (SQLite inside) or a tracking URI. Default: TILEGUARD_STORE, MLFLOW_TRACKING_URI, out/mlflow.",
    ),
]


MOST_TILES = 1_000_000
"""The largest k that `--top-k` takes: no lattice is as large."""


@corpus_app.callback(invoke_without_command=True)
def corpus_root(context: typer.Context) -> None:
    show_help(context)


@corpus_app.command("import")
def corpus_import(
    sources: Annotated[
        list[Path], typer.Argument(help="Raw sweeps, .jsonl or .jsonl.xz; the fuller one of a kernel counts.")
    ],
    out: Annotated[Path, typer.Argument(help="The Parquet corpus to write.")],
    hardware: Annotated[str, typer.Option(help="The hardware that the sweep was measured on.")],
) -> None:
    """Convert raw sweeps into one validated Parquet corpus."""
    from .corpus import read_corpus, write_corpus
    from .sweep_import import read_sweep

    if out.suffix != ".parquet":
        raise InvalidInput("out", str(out), "a file ending in .parquet")
    known_hardware(hardware)
    for source in sources:
        if not source.is_file():
            raise InvalidInput("source", str(source), "an existing .jsonl or .jsonl.xz file")
    check_file("out", out)
    write_corpus(read_sweep(*sources, hardware=hardware), out)
    corpus = read_corpus(out)
    say(f"{out}: {len(corpus.sweeps)} kernels, {corpus.n_rows} tiles, digest {corpus.digest[:12]}…")


@corpus_app.command("validate")
def corpus_validate(corpora: Corpora, hardware: HardwareOption = None) -> None:
    """Check corpora; the first fault is named with its row and column, and the exit status is 2."""
    from .corpus import read_corpus

    for path in corpora:
        corpus = read_corpus(path, hardware=hardware)
        say(f"{path}: valid, {len(corpus.sweeps)} kernels, {corpus.n_rows} tiles")


@corpus_app.command("info")
def corpus_info(corpora: Corpora, hardware: HardwareOption = None, as_json: Json = False) -> None:
    """Kernels, tiles, families, hardware and the spread between best and worst tile."""
    from .corpus_info import corpus_facts, corpus_table

    facts = corpus_facts(corpora, hardware=hardware)
    if as_json:
        print_json({"version": JSON_VERSION, "corpora": facts})
        return
    for entry in facts:
        console().print(corpus_table(entry))


@app.command("evaluate")
def evaluate_command(
    corpora: Corpora,
    hardware: HardwareOption = None,
    model: Annotated[str, typer.Option(help="champion (the shipped one), a model's folder, or none.")] = "champion",
    top_k: Annotated[str, typer.Option(help="Numbers of tiles the model may add, comma-separated.")] = "4,8,12",
    calls: CallsOption = None,
    as_json: Json = False,
) -> None:
    """Judge every selector on dense measurements: loss tiers against the dense best, tiles compiled, superset checks."""
    from .amortised import under
    from .corpus import read_corpora
    from .evaluate import evaluate
    from .pipeline import champion_model
    from .tables import evaluation_notes, selector_table

    corpus = read_corpora(corpora, hardware=hardware)
    spec = corpus_hardware(corpus, hardware)
    objective = objective_option(calls)
    corpus = under(corpus, [objective.calls])
    ranker = load_model(model, spec, corpus.family) if model != "none" else None
    evaluation = evaluate(
        corpus, spec, champion_model(ranker, spec) if ranker is not None else None, ks=parse_ks(top_k)
    )
    seen = trained_on(ranker, corpus)
    if as_json:
        print_json({"version": JSON_VERSION, **evaluation.to_json(), "trained_on": seen})
        return
    judged = "best time in the set" if calls is None else f"least cost in the set over {calls:g} calls"
    title = f"{len(corpus.sweeps)} kernels on {spec.name}; {judged} ÷ dense best; model: {model}"
    console().print(selector_table(evaluation, title=title, width=console().width))
    for note in evaluation_notes(evaluation):
        say(note)
    warn_trained_on(model, seen)


@app.command("train")
def train_command(
    corpora: Corpora,
    out: Annotated[Path, typer.Option(help="Folder to write: the model, and figures beside it.")],
    hardware: HardwareOption = None,
    store: StoreOption = None,
    seed: Annotated[int, typer.Option(help="Same corpus, seed and libraries: same model, byte for byte.")] = 0,
    rounds: Annotated[int | None, typer.Option(help="Trees; more rank better and score slower.")] = None,
    folds: Annotated[int, typer.Option(help="Folds of workload families.")] = 5,
    as_json: Json = False,
) -> None:
    """Train a ranker: cross-validate by workload family, fit, export to ONNX, verify, record in MLflow."""
    from .corpus import read_corpora
    from .pipeline import default_config
    from .tables import evaluation_notes, selector_table
    from .training_run import train_and_record

    corpus = read_corpora(corpora, hardware=hardware)
    spec = corpus_hardware(corpus, hardware)
    config = default_config(spec, corpus.family, seed=seed, folds=folds)
    if rounds is not None:
        config = dataclasses.replace(config, rounds=rounds)
    command = shlex.join(["tileguard", "train", *map(str, corpora), "--out", str(out), *_flags(seed, rounds, folds)])
    console_ = console()
    step = (lambda text: None) if as_json else (lambda text: console_.print(f"[dim]{escape(text)} …[/dim]"))
    check_folder("out", out)
    check_folder("out", out / "figures", make=False)
    result = train_and_record(corpus, spec, config, out=out, store=store, command=command, on_step=step)
    if as_json:
        print_json({"version": JSON_VERSION, **result.to_json()})
        return
    evaluation = result.trained.held_out.evaluation
    title = f"{len(corpus.sweeps)} kernels on {spec.name}, each judged by a model that saw none of its family"
    console_.print(selector_table(evaluation, title=title, width=console_.width))
    for note in evaluation_notes(evaluation):
        say(note)
    say(f"model {result.model_dir}; figures {result.figures_dir}; {result.where}")


def _flags(seed: int, rounds: int | None, folds: int) -> list[str]:
    flags = ["--seed", str(seed), "--folds", str(folds)]
    return flags if rounds is None else [*flags, "--rounds", str(rounds)]


@app.command("collect")
def collect_command(
    out: Annotated[Path, typer.Option(help="The corpus to write, or to go on with: Parquet; on a GPU .jsonl.xz too.")],
    device: Annotated[
        str, typer.Option(help="cpu: compiled by LLVM, timed on this machine; inductor: what torch.compile generates.")
    ] = "cpu",
    workloads: Annotated[
        Path | None,
        typer.Option(
            help="cpu: JSON list of {op, xnumel, rnumel, dtype}, with inner: false for an outer axis; inductor: a Python "
            "file with workloads(seed)."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="cpu: generated kernels, without --workloads (60); inductor: kernels at most.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the generated kernels.")] = 0,
    budget: Annotated[float | None, typer.Option(help="Seconds; it stops after the kernel in work.")] = None,
    tiles: Annotated[str, typer.Option(help="inductor: dense, or so many tiles a kernel.")] = "dense",
    repeat: Annotated[
        Path | None, typer.Option(help="inductor: a sweep (.jsonl.xz) whose kernels and tiles to measure again.")
    ] = None,
    family: Annotated[str, typer.Option(help="inductor: of kernels, reduction or matmul.")] = "reduction",
    min_log2: Annotated[
        float | None,
        typer.Option(help="log2 of the elements that generated workloads reduce, at least; cpu: 12 if left out."),
    ] = None,
    ops: Annotated[
        str, typer.Option(help="cpu: operations of generated kernels: passes, programs, or all of both.")
    ] = "passes",
    compile_again: Annotated[
        float, typer.Option(help="cpu: ms of compiling a tile that is enough; the least of up to 5 compiles counts.")
    ] = 0.0,
    target: TargetOption = None,
) -> None:
    """Sweep kernels' whole lattices into a corpus. Kill it at any moment and run it again: it goes on where it was."""
    check_file("out", out)
    if device == "inductor":
        if target is not None:
            raise InvalidInput("target", target, "left out, for --device inductor")
        from .inductor.collect import Settings, collect_inductor, now_and_then, parse_tiles

        settings = Settings(
            out, workloads, repeat, parse_tiles(tiles), count=count, budget_s=budget, seed=seed, min_log2=min_log2 or 0.0,
            family=family,
        )  # fmt: skip
        for line in collect_inductor(settings, tell=now_and_then(say)).lines():
            say(line)
        return
    from tileguard.runtime.devices.cpu import CpuDevice

    from .progress import collect_with_progress
    from .workloads import NUMEL_LOG2, OP_SETS, cpu_workloads, parse_workloads

    if device != "cpu":
        raise InvalidInput("device", device, "cpu or inductor")
    if tiles != "dense" or repeat is not None or family != "reduction":
        raise InvalidInput("device", device, "inductor, for --tiles, --repeat and --family")
    if workloads is not None and (count is not None or min_log2 is not None or ops != "passes"):
        raise InvalidInput(
            "workloads", str(workloads), "left out with --count, --ops and --min-log2: they draw kernels"
        )
    chosen = (
        parse_workloads(workloads)
        if workloads is not None
        else cpu_workloads(
            60 if count is None else count, seed, ops=OP_SETS[checked_choice("ops", ops, tuple(OP_SETS))],
            min_log2=NUMEL_LOG2[0] if min_log2 is None else min_log2,
        )
    )  # fmt: skip
    machine = CpuDevice(compile_again_ms=compile_again, target=target)
    try:
        summary = collect_with_progress(chosen, machine, out, budget_s=budget, console=console())
    finally:
        machine.close()
    say(
        f"{summary.out}: {summary.swept} kernels swept, {summary.known} known before, {summary.left} left; "
        f"{summary.tiles_ok} tiles timed, {summary.tiles_failed} failed; {summary.seconds:.0f} s"
    )
    for name in summary.hopeless:
        say(f"no tile works: {name}")


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo writes.")] = Path("out/demo"),
) -> None:
    """Train on the shipped H200 corpus with families held out, verify the export, then tune four CPU kernels for real."""
    from .demo import run_demo

    check_folder("out", out)
    run_demo(out, console())


def check_folder(field: str, path: Path, *, make: bool = True) -> None:
    """Raises InvalidInput where nothing can be written into a folder `path`; makes it, unless told not to."""
    try:
        if make:
            path.mkdir(parents=True, exist_ok=True)
        usable = os.access(path, os.W_OK | os.X_OK) and path.is_dir() if path.exists() else not make
    except OSError as error:
        raise InvalidInput(field, str(path), f"a folder that can be written ({error.strerror})") from None
    if not usable:
        raise InvalidInput(field, str(path), "a folder that can be written")


def check_file(field: str, path: Path) -> None:
    """Raises InvalidInput where no file `path` can be written; makes its folder."""
    try:
        if path.is_dir():
            raise InvalidInput(field, str(path), "a file, not a folder")
    except OSError as error:
        raise InvalidInput(field, str(path), f"a file that can be written ({error.strerror})") from None
    check_folder(field, path.parent)


def corpus_hardware(corpus: Corpus, asked: str | None) -> HardwareSpec:
    """The one hardware of a corpus; `asked`, where given, must be it."""
    names = sorted({sweep.hardware for sweep in corpus.sweeps})
    if asked is not None:
        known = known_hardware(asked)
        if names != [known.name]:
            raise InvalidInput("hardware", asked, f"what the corpus was measured on: {', '.join(names)}")
        return known
    if len(names) > 1:
        raise InvalidInput("hardware", ", ".join(names), "corpora of one hardware")
    return known_hardware(names[0])


def load_model(text: str, spec: HardwareSpec, family: str) -> OnnxRanker:
    """`--model` for evaluate and compare; where a guard would fall back, a refused model is an error here."""
    try:
        ranker = load_champion(spec, family) if text == "champion" else load_ranker(text, spec, family)
        check_fit(ranker.manifest, family=family, hardware=spec)
    except ModelRejected as error:
        raise InvalidInput("model", text, f"a usable model ({error})") from None
    return ranker


def trained_on(ranker: OnnxRanker | None, corpus: Corpus) -> list[str]:
    """Files of the corpus that the model was trained on: over those it remembers rather than predicts."""
    known = set(ranker.manifest.corpora.values()) if ranker is not None else set()
    return sorted(name for name, digest in corpus.files.items() if digest in known)


def warn_trained_on(model: str, files: list[str]) -> None:
    """Say that figures are too good, where they are."""
    if files:
        console().print(
            f"[yellow]{escape(model)} was trained on {escape(', '.join(files))}: its figures here show what it "
            "remembers, as do those of a formula fitted to it; the manifest's metrics are from families held out[/yellow]"
        )


def parse_ks(text: str) -> list[int]:
    """`4,8,12` -> [4, 8, 12]."""
    parts = [part.strip() for part in text.split(",")]
    digits = len(str(MOST_TILES))
    if not all(part.isdecimal() and len(part) <= digits and 1 <= int(part) <= MOST_TILES for part in parts):
        raise InvalidInput("top-k", text, f"integers from 1 to {MOST_TILES}, comma-separated")
    return sorted({int(part) for part in parts})


from . import ab_cli, adapt_cli, compare_cli, formula_cli, promote_cli  # noqa: F401  (last: their commands use what is above)
