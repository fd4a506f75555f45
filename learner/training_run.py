"""Training as a user runs it: the model's folder, the figures and the MLflow record from one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.feature_space import REDUCTION

from .corpus import Corpus
from .figures import importances, loss_against_rnumel, top_k_curve, winners_in_tile_space
from .pipeline import Trained, train_model, write_model
from .store import Store, open_store
from .tracking import LoggedTraining, TrainingRecord, log_training
from .train import TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class RecordedTraining:
    """A training with everything that it left behind."""

    trained: Trained
    logged: LoggedTraining
    store: Store
    model_dir: Path
    figures_dir: Path

    @property
    def where(self) -> str:
        """Where MLflow keeps it, in words."""
        return f"MLflow {self.store.uri}, run {self.logged.run_id}, version {self.logged.model_version}"

    def to_json(self) -> dict[str, Any]:
        return {
            "model": str(self.model_dir),
            "figures": str(self.figures_dir),
            "store": self.store.uri,
            "run_id": self.logged.run_id,
            "model_version": self.logged.model_version,
            "seconds": self.trained.seconds,
            "held_out": self.trained.manifest.metrics["held_out"],
        }


def train_and_record(
    corpus: Corpus,
    hardware: HardwareSpec,
    config: TrainConfig,
    *,
    out: Path,
    store: str | Path | None,
    command: str,
    on_step: Callable[[str], None] = lambda step: None,
) -> RecordedTraining:
    """Train, draw, record, then write OUT/model and OUT/figures. Errors: those of train_model and log_training."""
    target = open_store(store)
    trained = train_model(corpus, hardware, config, command=command, on_step=on_step)
    on_step("drawing figures")
    figures = training_figures(trained)
    on_step(f"recording in MLflow, {target.uri}")
    record = TrainingRecord(
        name=f"{corpus.family}-{hardware.name}", config=config, evaluation=trained.held_out.evaluation,
        folds=trained.held_out.folds, curve=trained.held_out.curve, figures=figures, onnx=trained.onnx,
        manifest=trained.manifest, card=trained.card, seconds=trained.seconds, by_calls=trained.held_out.by_calls,
    )  # fmt: skip
    logged = log_training(target, record)
    model_dir = write_model(dataclasses.replace(trained, manifest=logged.manifest), out / "model")
    figures_dir = out / "figures"
    save_figures(figures, figures_dir)
    return RecordedTraining(trained, logged, target, model_dir, figures_dir)


def training_figures(trained: Trained) -> dict[str, Figure]:
    """Of reductions the RFC's two figures; the top-k curve and the importances, by file name."""
    held_out = trained.held_out
    evaluation = held_out.evaluation
    shown = [name for name in ("host_default", "formula", "model@8", "union@8") if name in evaluation.sets]
    points = {
        name: (evaluation.summary(name)["set_mean"], evaluation.summary(name)["lossless"])
        for name in evaluation.sets
        if not name.startswith(("dense", "model@"))
    }
    figures = {
        "top_k_curve": top_k_curve({"model": held_out.curve}, points),
        "importances": importances(trained.booster),
    }
    if evaluation.corpus.family == REDUCTION:
        figures["loss_against_rnumel"] = loss_against_rnumel(evaluation, shown)
        if not trained.manifest.hardware.startswith(
            "cpu-"
        ):  # it shows the RFC's regions, which no CPU's winners lie in
            figures["winners_in_tile_space"] = winners_in_tile_space(evaluation.corpus)
    return figures


def save_figures(figures: dict[str, Figure], directory: Path) -> None:
    """One PNG a figure."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(directory / f"{name}.png", dpi=150)
