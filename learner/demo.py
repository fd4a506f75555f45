"""`tileguard demo`: the whole job on real measurements, in minutes.

First the H200 corpus that ships with the package: train with workload families held out, judge every selector, export,
verify. Then this machine's CPU: sweep a few small kernels, train on them, and tune four reductions that the model has
not seen, for real; each is swept densely too, so that the union's winner can be set against the dense best.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tileguard import models
from tileguard.features.errors import TileguardError
from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.base import Device
from tileguard.runtime.devices.cpu import CpuDevice
from tileguard.runtime.optional import require
from tileguard.runtime.ranker import load_ranker
from tileguard.runtime.selector import Selector
from tileguard.runtime.tuner import TuningResult, tune
from tileguard.runtime.winners import Winners

from .collect import collect
from .corpus import Corpus, read_corpus
from .pipeline import fit_ranker
from .progress import collect_with_progress
from .tables import evaluation_notes, selector_table
from .train import TrainConfig
from .training_run import train_and_record
from .workloads import Workload, cpu_workload

H200_CORPUS = models.ROOT.parent / "corpora" / "h200-inductor.parquet"

TUNED: tuple[Workload, ...] = (
    cpu_workload("sum", 3000, 500, "fp32"),
    cpu_workload("softmax", 384, 1000, "fp32"),
    cpu_workload("layernorm", 512, 768, "bf16"),
    cpu_workload("max", 4096, 203, "fp32", inner=False),
)
"""The four reductions that the demo tunes; no kernel of the training sweep has their shapes."""

TRAINED: tuple[Workload, ...] = (
    cpu_workload("softmax", 256, 512, "fp32"),
    cpu_workload("layernorm", 256, 1024, "bf16"),
    cpu_workload("sum", 1000, 1024, "fp32"),
    cpu_workload("sum", 2048, 300, "bf16"),
    cpu_workload("max", 1024, 512, "fp32", inner=False),
    cpu_workload("add_sum", 512, 777, "fp32"),
    cpu_workload("sum", 64, 8192, "fp32"),
    cpu_workload("max", 3000, 130, "bf16", inner=False),
    cpu_workload("add_sum", 4096, 256, "fp32", inner=False),
    cpu_workload("max", 777, 900, "fp32"),
    cpu_workload("sum", 8192, 64, "fp32"),
    cpu_workload("add_sum", 300, 2000, "bf16"),
)
"""What the small training sweep measures: quick to compile, other shapes than those of TUNED."""

TRAINING_BUDGET_S = 60.0
REMEASURED = 3
CPU_CONFIG = TrainConfig(rounds=60, num_leaves=15, folds=3)
"""Smaller than the GPU's: a minute of sweeping gives a few thousand tiles."""


@dataclass(frozen=True, eq=False)
class TunedKernel:
    """One tuned reduction against the dense best: ratio is the winner's time ÷ the dense best's, both timed side by
    side, median of `REMEASURED` rounds."""

    workload: Workload
    result: TuningResult
    dense_tiles: int
    dense_best: ReductionTile
    ratio: float
    spread: float


def run_demo(out: Path, console: Console) -> None:
    """Run it all; everything is written under `out`."""
    started = time.perf_counter()
    require("llvmlite")  # part 2 needs it: better said now than after part 1
    console.rule("[bold]1. H200: train on measured reductions, whole workload families held out")
    corpus = read_corpus(H200_CORPUS)
    spec = known_hardware("h200")
    trained = train_and_record(
        corpus, spec, TrainConfig(), out=out / "h200", store=out / "mlflow",
        command="tileguard demo", on_step=lambda text: console.print(f"[dim]{escape(text)} …[/dim]"),
    )  # fmt: skip
    evaluation = trained.trained.held_out.evaluation
    title = f"{len(corpus.sweeps)} kernels, each judged by a model that saw none of its family"
    console.print(selector_table(evaluation, title=title, width=console.width))
    for note in evaluation_notes(evaluation):
        console.print(note)
    parity = trained.trained.manifest.metrics["parity"]
    ranker = load_ranker(trained.model_dir, spec)
    console.print(
        f"exported {len(trained.trained.onnx) / 1e3:.0f} kB of ONNX; digest checked, scores equal to LightGBM's on "
        f"{parity['rows']} rows ({parity['unequal']} differ)"
    )
    kernel = ReductionKernel(2048, 768, "fp32", num_load=6, num_reduction=2)
    chosen = Selector(spec, model=ranker).select(kernel)
    console.print(
        f"2048 × 768 fp32: {len(chosen.candidates)} candidates, verdict {chosen.verdict}, best ranked "
        + ", ".join(str(tile) for tile in chosen.tiles[:3])
    )

    console.rule("[bold]2. This machine's CPU: sweep, train, tune four unseen reductions")
    device = CpuDevice()
    try:
        tuned = tune_on_cpu(device, out / "cpu", console)
    finally:
        device.close()
    console.print(tuned_table(tuned))
    within = sum(kernel.ratio <= 1.05 for kernel in tuned)
    console.print(
        f"the union's winner is within 5 % of the dense best on {within} of {len(tuned)}; compiled: tiles of the union, of "
        "the dense lattice; ÷ dense best: both timed anew, side by side; worst tile: behind the dense best"
    )

    console.rule("[bold]3. Where things are")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("model", escape(str(trained.model_dir)))
    table.add_row("figures", escape(str(trained.figures_dir)))
    table.add_row("CPU corpus, winners", escape(str(out / "cpu")))
    table.add_row("MLflow", escape(f"{trained.store.uri}; run {trained.logged.run_id}"))
    serve = f"MLFLOW_DISABLE_TELEMETRY=true {Path(sys.executable).parent / 'mlflow'} ui --backend-store-uri"
    table.add_row("", escape(f"look at it: {serve} {trained.store.uri}"))
    table.add_row("took", f"{time.perf_counter() - started:.0f} s")
    console.print(table)


def tune_on_cpu(device: Device, out: Path, console: Console) -> list[TunedKernel]:
    """Sweep small kernels, train on them, then tune TUNED and measure them densely beside."""
    collect_with_progress(TRAINED, device, out / "training.parquet", budget_s=TRAINING_BUDGET_S, console=console)
    corpus = read_corpus(out / "training.parquet")
    selector = Selector(device.hardware, model=fit_ranker(corpus, device.hardware, CPU_CONFIG))
    console.print(
        f"trained on {len(corpus.sweeps)} kernels, {corpus.n_rows} tiles; now tuning {len(TUNED)} reductions of other "
        "shapes, and sweeping them densely to know the best there is (half a minute)"
    )
    winners = Winners(out / "winners.sqlite")
    results = [tune(w.kernel, device, selector, winners=winners) for w in TUNED]
    collect(TUNED, device, out / "tuned.parquet")
    dense = read_corpus(out / "tuned.parquet")
    return [_against_dense(w, result, dense, device) for w, result in zip(TUNED, results, strict=True)]


def _against_dense(workload: Workload, result: TuningResult, dense: Corpus, device: Device) -> TunedKernel:
    """The winner and the dense best once more, side by side: times of two separate runs do not compare."""
    found = [sweep for sweep in dense.sweeps if sweep.workload == workload.workload]
    if not found:
        raise TileguardError(f"the dense sweep of {workload.workload} has no tile that works")
    sweep = found[0]
    best = sweep.tiles[int(sweep.slowdown.argmin())]
    pair = [device.compile(workload.kernel, tile) for tile in (result.winner.tile, best)]
    rounds = [device.bench(pair) for _ in range(REMEASURED)]
    ratio = 1.0 if result.winner.tile == best else statistics.median(winner.us / top.us for winner, top in rounds)
    finite = sweep.slowdown[sweep.slowdown < float("inf")]
    return TunedKernel(workload, result, len(sweep.tiles), best, ratio, float(finite.max()))


def tuned_table(tuned: list[TunedKernel]) -> Table:
    """What was tuned, with how many compiles, and how near the dense best it came."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    left = ("kernel", "winner", "proposed by", "dense best")
    for name in ("kernel", "compiled", "winner", "proposed by", "µs", "dense best", "÷ dense best", "worst tile"):
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    for t in tuned:
        compiled = "0, stored" if t.result.from_store else f"{len(t.result.candidates)} of {t.dense_tiles}"
        table.add_row(
            t.workload.workload, compiled, str(t.result.winner.tile), ", ".join(t.result.proposers),
            f"{t.result.winner.us:.1f}", str(t.dense_best), f"{t.ratio:.3f}", f"{t.spread:.0f}×",
        )  # fmt: skip
    return table
