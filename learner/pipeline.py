"""The whole training: cross-validate, fit, export, verify, write the model's folder, record it in MLflow."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tileguard import __version__
from tileguard.features.anchor import ASCEND_910B3, FormulaParams
from tileguard.features.errors import TileguardError
from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.feature_space import MATMUL, REDUCTION, feature_space
from tileguard.runtime.formula import fitted
from tileguard.runtime.guard import GuardPolicy
from tileguard.runtime.manifest import Manifest
from tileguard.runtime.matmul_selector import SELECTORS
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE, OnnxRanker
from tileguard.runtime.selector import FamilySelector

from .amortised import JUDGED_CALLS, TRAINED_CALLS, under
from .calibrate import calibration
from .card import CARD_FILE, model_card
from .corpus import Corpus
from .evaluate import Evaluation, Model, by_family, by_regime, curve, evaluate
from .export import check_parity, export_onnx, parity_rows
from .fit_formula import fit_config, fit_formula
from .formula_facts import FEW
from .train import (
    BoosterRanker,
    FloatArray,
    Fold,
    TrainConfig,
    cross_validate,
    design_matrix,
    feature_ranges,
    fit,
    library_versions,
    training_corpus,
)

EVALUATED_K = (1, 4, 8, 12)


PATIENT = GuardPolicy(score_budget_s=float("inf"))
"""Judging must not depend on how busy the machine is."""


class ParityError(TileguardError):
    """The exported graph does not score every row as LightGBM does; nothing was written."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Cross-validation over families: the folds, every kernel judged by the fold that did not see it, the curve.

    by_calls: the same judged by T_compile + N · T_run, for a ranker that was trained on numbers of calls.
    """

    folds: tuple[Fold, ...]
    evaluation: Evaluation
    model: Model
    by_calls: Mapping[float, Evaluation]
    curve: dict[int, np.ndarray[Any, np.dtype[np.float64]]]


KNOWS_CALLS: dict[str, Any] = {"calls": TRAINED_CALLS, "rounds": 120, "learning_rate": 0.08, "diversity": 1.5}
"""Where the features know the number of calls, one ranker learns every objective, in twice as many trees, each half as
bold."""

PRODUCTS: dict[str, Any] = {
    "rounds": 95,
    "num_leaves": 31,
    "min_data_in_leaf": 30,
    "learning_rate": 0.1,
    "feature_fraction": 0.3,
    "diversity": 1.5,
    "prior": "log2_predicted_over_roofline",
    "prior_weight": 2.0,
}
"""Of matrix products there are a tenth as many measurements: smaller trees, which set out from what the planner predicts."""


def default_config(hardware: HardwareSpec, family: str = REDUCTION, **changes: Any) -> TrainConfig:
    """TrainConfig for a family of kernels on a hardware."""
    known = PRODUCTS if family == MATMUL else {}
    return TrainConfig(**{**known, **(KNOWS_CALLS if feature_space(hardware, family).knows_calls else {}), **changes})


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished training."""

    config: TrainConfig
    held_out: HeldOut
    booster: Any
    onnx: bytes
    manifest: Manifest
    card: str
    seconds: float


def train_model(
    corpus: Corpus,
    hardware: HardwareSpec,
    config: TrainConfig,
    *,
    command: str,
    on_step: Callable[[str], None] = lambda step: None,
) -> Trained:
    """Cross-validate by family, fit on everything, export and verify.

    on_step is told what begins. Raises InvalidInput for a corpus with too few families, ParityError where the export
    is not bit-equal on the corpus, on random rows and on rows that sit on thresholds.
    """
    started = time.perf_counter()
    on_step(f"cross-validating over {config.folds} folds of workload families")
    held_out = judge_held_out(corpus, hardware, config)
    on_step("fitting on every family")
    everything = range(len(corpus.sweeps))
    schema = feature_space(hardware, corpus.family).schema
    learned = training_corpus(corpus, everything, config)
    matrices = design_matrix(learned, hardware, range(len(learned.sweeps)))
    booster = fit(corpus, hardware, everything, config)
    on_step("exporting to ONNX and comparing every score")
    onnx, rows = exported(booster, matrices, config)
    metrics = {"held_out": held_out_metrics(held_out), "parity": {"rows": rows, "unequal": 0}}
    manifest = full_manifest(
        corpus, hardware, config, onnx=onnx, ranges=feature_ranges(matrices, schema.names), command=command,
        metrics=metrics, calibrated=calibration(held_out.curve),
    )  # fmt: skip
    return Trained(config, held_out, booster, onnx, manifest, model_card(manifest), time.perf_counter() - started)


def exported(booster: Any, matrices: Sequence[FloatArray], config: TrainConfig) -> tuple[bytes, int]:
    """The booster as ONNX, and on how many rows it scored bit-equal: those of training, random ones, and some that sit on
    thresholds. Raises ParityError where any differs."""
    rows = np.vstack(matrices)
    onnx = export_onnx(booster, n_features=rows.shape[1])
    rows = parity_rows(booster, rows, n=config.rounds * config.num_leaves, seed=config.seed)
    parity = check_parity(booster, onnx, rows)
    if not parity.equal:
        raise ParityError(f"{parity.unequal_rows} of {parity.rows} rows differ, by {parity.max_abs_difference} at most")
    return onnx, parity.rows


def full_manifest(
    corpus: Corpus,
    hardware: HardwareSpec,
    config: TrainConfig,
    *,
    onnx: bytes,
    ranges: dict[str, tuple[float, float]],
    command: str,
    metrics: Mapping[str, Any],
    calibrated: tuple[dict[str, Any], ...],
) -> Manifest:
    """The manifest of a model that was trained on `corpus` for `hardware`."""
    return replace(
        bare_manifest(ranges, hardware, config, corpus.family),
        onnx_sha256=hashlib.sha256(onnx).hexdigest(),
        corpora=dict(corpus.files),
        command=command,
        libraries=library_versions(),
        metrics=metrics,
        calibration=calibrated,
        families=tuple(sorted(set(corpus.families))),
        created=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def judge_held_out(corpus: Corpus, hardware: HardwareSpec, config: TrainConfig) -> HeldOut:
    """Cross-validate and evaluate every kernel by the model of the fold that held its family out."""
    folds, model = held_out_model(corpus, hardware, config)
    judged = JUDGED_CALLS if config.calls else ()
    by_calls = {calls: evaluate(under(corpus, [calls]), hardware, model, ks=EVALUATED_K) for calls in judged}
    return HeldOut(folds, evaluate(corpus, hardware, model, ks=EVALUATED_K), model, by_calls, curve(corpus, model))


def held_out_model(corpus: Corpus, hardware: HardwareSpec, config: TrainConfig) -> tuple[tuple[Fold, ...], Model]:
    """The folds, and the model that asks for each kernel the fold that held its family out."""
    folds = cross_validate(corpus, hardware, config)
    fold_of = {i: fold for fold in folds for i in fold.test}
    formula = cache(lambda number: formula_without(corpus, hardware, folds[number].train))  # not every caller asks
    rankers = {fold.number: booster_ranker(fold.booster, corpus, hardware, config, fold.train) for fold in folds}
    selectors: dict[tuple[int, int], FamilySelector[Any, Any]] = {}

    def selector_of(index: int, k: int) -> FamilySelector[Any, Any]:
        number = fold_of[index].number
        if (number, k) not in selectors:
            selectors[number, k] = SELECTORS[corpus.family](
                hardware, model=rankers[number], top_k=k, policy=PATIENT, formula=formula(number)
            )
        return selectors[number, k]

    formula_of: Callable[[int], FormulaParams | None] = lambda i: formula(fold_of[i].number)
    return tuple(folds), Model(lambda i: rankers[fold_of[i].number], selector_of, config.diversity, formula_of)


def formula_without(corpus: Corpus, hardware: HardwareSpec, train: Sequence[int]) -> FormulaParams | None:
    """The formula that a fold may use: where the shipped one was fitted to measurements of this hardware, it has seen the
    families held out too, and one fitted to the training families alone stands in (with too few kernels the RFC's).
    Matrix products have a planner, which was fitted to nothing."""
    if corpus.family != REDUCTION:
        return None
    shipped = fitted(hardware)
    if not (shipped.rules or shipped.lanes):
        return None
    if len(train) < FEW:
        return ASCEND_910B3
    return fit_formula([corpus.sweeps[i] for i in train], hardware, fit_config(hardware)).params


def fit_ranker(
    corpus: Corpus, hardware: HardwareSpec, config: TrainConfig, indices: Sequence[int] | None = None
) -> BoosterRanker:
    """A ranker trained on the sweeps at `indices` (left out: all), not exported, with what the guard asks for."""
    indices = range(len(corpus.sweeps)) if indices is None else indices
    return booster_ranker(fit(corpus, hardware, indices, config), corpus, hardware, config, indices)


def booster_ranker(
    booster: Any, corpus: Corpus, hardware: HardwareSpec, config: TrainConfig, indices: Sequence[int]
) -> BoosterRanker:
    """A booster with a manifest whose ranges are those of the sweeps that it was trained on."""
    learned = training_corpus(corpus, indices, config)
    matrices = design_matrix(learned, hardware, range(len(learned.sweeps)))
    ranges = feature_ranges(matrices, feature_space(hardware, corpus.family).schema.names)
    return BoosterRanker(booster, hardware, bare_manifest(ranges, hardware, config, corpus.family))


def bare_manifest(
    ranges: dict[str, tuple[float, float]], hardware: HardwareSpec, config: TrainConfig, family: str = REDUCTION
) -> Manifest:
    """What the guard needs to know of a model, without what only a shipped one has (digests, metrics, calibration)."""
    schema = feature_space(hardware, family).schema
    return Manifest(
        family=family, hardware=hardware.name, schema_version=schema.version,
        schema_digest=schema.digest, feature_names=schema.names, ranges=ranges, onnx_sha256="",
        diversity=config.diversity, corpora={}, command="", seed=config.seed, parameters=config.asdict(), libraries={},
        metrics={}, calibration=(), mlflow_run_id=None, created="", tileguard_version=__version__,
    )  # fmt: skip


def held_out_metrics(held_out: HeldOut) -> dict[str, Any]:
    """The figures of a cross-validation as the manifest and the card keep them."""
    evaluation = held_out.evaluation
    corpus = evaluation.corpus
    return {
        **evaluation.to_json(),
        "rows": corpus.n_rows,
        "families": len(set(corpus.families)),
        "folds": len(held_out.folds),
        "by_regime": by_regime(evaluation, "model@8"),
        "by_family": by_family(evaluation, "model@8"),
        "by_calls": {f"{calls:.0f}": found.to_json() for calls, found in held_out.by_calls.items()},
    }


def champion_model(ranker: OnnxRanker, hardware: HardwareSpec) -> Model:
    """A loaded model as `evaluate` asks for it: the same scorer and selector for every kernel."""
    selectors: dict[int, FamilySelector[Any, Any]] = {}

    def selector_of(index: int, k: int) -> FamilySelector[Any, Any]:
        if k not in selectors:
            selectors[k] = SELECTORS[ranker.manifest.family](hardware, model=ranker, top_k=k, policy=PATIENT)
        return selectors[k]

    return Model(lambda i: ranker, selector_of, ranker.manifest.diversity)


def write_model(trained: Trained, directory: str | Path) -> Path:
    """Write ranker.onnx, manifest.json and card.md into `directory`, all or nothing: the folder is made beside it and
    swapped in; an older model of that name is replaced."""
    directory = Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=directory.parent, prefix=directory.name + "."))
    try:
        (staging / ONNX_FILE).write_bytes(trained.onnx)
        (staging / MANIFEST_FILE).write_text(trained.manifest.to_json(), encoding="utf-8")
        (staging / CARD_FILE).write_text(trained.card, encoding="utf-8")
        staging.chmod(0o755)
        if directory.exists():
            old = Path(tempfile.mkdtemp(dir=directory.parent, prefix=directory.name + ".old."))
            try:
                directory.rename(old / directory.name)
                staging.rename(directory)
            finally:
                if not directory.exists():  # interrupted in between: better the old one than none
                    (old / directory.name).rename(directory)
            shutil.rmtree(old)
        else:
            staging.rename(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return directory
