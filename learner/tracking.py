"""MLflow as the place where whatever is judged is recorded and compared: one run a training, an arm of an ablation, a
fitted formula, or a model judged again; one nested run a fold.

The names of metrics, the same for every kind of run, stable for dashboards and queries. SELECTOR is the evaluation's
name with `@` written `_at_`, as MLflow allows no `@` (`model@8` -> `model_at_8`); shares are fractions:

    SELECTOR/{lossless,loss_5_10,loss_10_30,severe,geomean,p5,p95,worst,time_weighted,n_pred_mean,n_pred_p95,set_mean,set_p95}
    SELECTOR/{snap1,snap2}/{hit,lossless,loss_5_10,loss_10_30,severe}
    SELECTOR/REGIME/{lossless,severe,geomean}                by regime of the family; regime/REGIME: kernels. REGIME is of
                                                             {small,mid,hole} by rnumel, of products by waves
                                                             {under_a_wave,few_waves,many_waves}
    SELECTOR/against_{aten,host}/{geomean,p5,slower}         matrix products: ATen's or the host's time ÷ the set's
    SELECTOR/calls_N/{lossless,severe,geomean}               by T_compile + N · T_run; a training that knows calls
    SELECTOR/loses_to_{formula,host_default}                 model_at_K only: share over 2 % slower
    judged/…                                                 the same again of the set that the run is about
    curve/{lossless,severe,geomean}                          stepped: step = k, the number of tiles compiled
    superset_violations, verdict/REASON, kernels, rows, families, train_seconds

What a run is about is its tag and parameter `judged`: model@8 of a training, formula of a fitted formula. So
`judged/lossless` lines runs of every kind up in one column. A fold's run has the first two groups over its held-out
kernels, and kernels. SQLite keeps +inf as the largest double.

Everything goes through clients with an explicit address, and is logged before the run is marked finished: the process's
own MLflow settings and active run stay as they were, and a failure leaves a run marked FAILED.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tileguard import __version__
from tileguard.features.errors import InvalidInput
from tileguard.runtime.manifest import Manifest
from tileguard.runtime.ranker import MANIFEST_FILE

from .card import CARD_FILE
from .evaluate import Evaluation, by_regime, tiers
from .mlflow_run import (
    Artifact,
    experiment_of,
    git_commit,
    running,
    write_artifacts,
    write_datasets,
    write_metrics,
    write_params,
    write_stepped,
)
from .registry import alias_newest, register
from .runs import FOLD, KIND, KINDS, TRAINING, list_runs
from .store import Store, client_of, quiet
from .train import Fold, TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "LoggedTraining", "TrainingRecord", "curve_points", "evaluation_metrics", "judged_of", "list_runs",
    "log_evaluation", "log_training", "metric_name",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """A finished training. name: of the registered model and the experiment, such as reduction-h200.

    evaluation: over all kernels, each judged by the fold that held its family out. curve: per k, float64[kernels]
    slowdowns of the model's first k tiles. by_calls: judged by T_compile + N · T_run instead. seconds: how long the
    training took. manifest: its mlflow_run_id is filled
    in when logged.
    """

    name: str
    config: TrainConfig
    evaluation: Evaluation
    folds: Sequence[Fold]
    curve: Mapping[int, npt.NDArray[np.float64]]
    figures: Mapping[str, Figure]
    onnx: bytes
    manifest: Manifest
    card: str
    seconds: float
    by_calls: Mapping[float, Evaluation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoggedTraining:
    """Where a training was recorded; manifest is the record's with the run's id in it."""

    run_id: str
    model_version: int
    experiment_id: str
    manifest: Manifest


@quiet
def log_evaluation(
    store: Store,
    *,
    kind: str,
    name: str,
    evaluation: Evaluation,
    params: Mapping[str, object] | None = None,
    curve: Mapping[int, npt.NDArray[np.float64]] | None = None,
    judged: str | None = None,
    folds: Sequence[Fold] = (),
    metrics: Mapping[str, float] | None = None,
    figures: Mapping[str, Figure] | None = None,
    artifacts: Mapping[str, Artifact] | None = None,
    tags: Mapping[str, str] | None = None,
    command: str = "",
    seconds: float | None = None,
    experiment: str | None = None,
) -> str:
    """Record whatever was judged as one run with the metrics that this module documents; the run's id.

    kind: ablation, formula, evaluation (training where no model is registered). name: of the run, such as
    `ablation no-roofline`. params: its settings. curve: per k, float64[kernels] slowdowns of its first k tiles.
    judged: the selector that it is about (left out: `judged_of`). folds: one nested run each. metrics: more of them,
    under names of their own. figures: become figures/NAME.png. artifacts: path in the run -> text, or a file of that
    name. tags: as they stand. seconds: of training or fitting. experiment: left out, FAMILY-HARDWARE, so that every
    kind stands on one page.

    Raises InvalidInput before anything is recorded; any later exception marks the run FAILED and is raised on.
    """
    run = _Run(
        kind=kind, name=name, experiment=experiment or f"{evaluation.corpus.family}-{_hardware(evaluation)}", evaluation=evaluation,
        hardware=_hardware(evaluation), corpora=evaluation.corpus.files, params=params or {}, curve=curve or {},
        judged=judged or judged_of(evaluation), folds=folds, metrics=metrics or {}, figures=figures or {},
        artifacts=artifacts or {}, tags=tags or {}, command=command, seconds=seconds,
    )  # fmt: skip
    with _recorded(client_of(store), store, run) as (_, run_id):
        pass
    return run_id


@quiet
def log_training(store: Store, record: TrainingRecord) -> LoggedTraining:
    """Record a training and register its model as a new version, aliased `challenger`, and `champion` where there is
    none yet.

    The version is registered and the run marked FINISHED only after all else is stored. An exception marks the run
    (and the fold's run in progress) FAILED and is raised on.
    """
    _check_digest(record)
    client = client_of(store)
    with _recorded(client, store, _training_run(record)) as (experiment_id, run_id):
        manifest = replace(record.manifest, mlflow_run_id=run_id)
        write_artifacts(client, run_id, {}, {MANIFEST_FILE: manifest.to_json(), CARD_FILE: record.card})
        version = register(
            client, record.name, experiment_id=experiment_id, run_id=run_id,
            onnx=record.onnx, manifest=manifest, card=record.card,
        )  # fmt: skip
        client.set_tag(run_id, "tileguard.model_version", str(version))
        alias_newest(client, record.name, version)
    return LoggedTraining(run_id, version, experiment_id, manifest)


def evaluation_metrics(evaluation: Evaluation, judged: str) -> dict[str, float]:
    """A run's metrics, save curve and seconds, by the names that this module documents."""
    corpus = evaluation.corpus
    found: dict[str, float] = {
        "superset_violations": evaluation.superset_violations,
        "kernels": len(corpus.sweeps),
        "rows": corpus.n_rows,
        "families": len(set(corpus.families)),
    }
    found |= {f"verdict/{reason}": count for reason, count in evaluation.verdicts.items()}
    against = evaluation.against()
    for selector in evaluation.sets:
        values = _flat(evaluation.summary(selector))
        for regime, summary in by_regime(evaluation, selector).items():
            found[f"regime/{regime}"] = summary["kernels"]
            values |= {f"{regime}/{key}": summary[key] for key in ("lossless", "severe", "geomean")}
        for other, measures in against.get(selector, {}).items():
            values |= {f"against_{other}/{key}": measures[key] for key in ("geomean", "p5", "slower")}
        if selector.startswith("model@"):
            for other in ("formula", "host_default"):
                if other in evaluation.sets:
                    values[f"loses_to_{other}"] = evaluation.loses(selector, other)
        for prefix in (metric_name(selector), "judged")[: 2 if selector == judged else 1]:
            found |= {f"{prefix}/{key}": value for key, value in values.items()}
    return {name: float(value) for name, value in found.items()}


def calls_metrics(by_calls: Mapping[float, Evaluation]) -> dict[str, float]:
    """A training's metrics where compiling counts, by the names that this module documents."""
    return {
        f"{metric_name(selector)}/calls_{calls:.0f}/{key}": float(evaluation.summary(selector)[key])
        for calls, evaluation in by_calls.items()
        for selector in evaluation.sets
        for key in ("lossless", "severe", "geomean")
    }


def curve_points(curve: Mapping[int, npt.NDArray[np.float64]]) -> dict[int, dict[str, float]]:
    """k -> {lossless, severe, geomean} of float64[kernels] slowdowns."""
    points = {}
    for k, slowdown in sorted(curve.items()):
        found = tiers(slowdown)
        geomean = float(np.exp(np.log(slowdown).mean()))
        points[k] = {"lossless": found["lossless"], "severe": found["severe"], "geomean": geomean}
    return points


def metric_name(selector: str) -> str:
    """A selector's name as MLflow allows it: model@8 -> model_at_8."""
    return selector.replace("@", "_at_")


def judged_of(evaluation: Evaluation) -> str:
    """The selector that a run is about: model@8, else the model's largest k, else the formula, else the last."""
    models = [name for name in evaluation.sets if name.startswith("model@")]
    if "model@8" in models:
        return "model@8"
    if models:
        return max(models, key=lambda name: int(name.partition("@")[2]))
    return "formula" if "formula" in evaluation.sets else list(evaluation.sets)[-1]


@dataclass(frozen=True, eq=False)
class _Run:
    """What every kind of run has."""

    kind: str
    name: str
    experiment: str
    evaluation: Evaluation
    hardware: str
    corpora: Mapping[str, str]
    params: Mapping[str, object]
    curve: Mapping[int, npt.NDArray[np.float64]]
    judged: str
    folds: Sequence[Fold] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput("kind", self.kind, "one of " + ", ".join(KINDS))
        if not self.experiment or any(sign in self.experiment for sign in "/:'\""):
            raise InvalidInput("name", self.experiment, "a name without /, : and quotes, such as reduction-h200")
        if self.judged not in self.evaluation.sets:
            raise InvalidInput("judged", self.judged, "one of " + ", ".join(self.evaluation.sets))


@contextmanager
def _recorded(client: Any, store: Store, run: _Run) -> Iterator[tuple[str, str]]:
    """(experiment's id, run's id) of a run with all of `run` in it, to which the block adds; it ends with the block."""
    experiment_id = experiment_of(client, store, run.experiment)
    with running(client, experiment_id, run.name, _tags(run)) as run_id:
        corpus = run.evaluation.corpus
        common = {
            "kind": run.kind, "hardware": run.hardware, "judged": run.judged, "kernels": len(corpus.sweeps),
            "rows": corpus.n_rows, "families": len(set(corpus.families)), "command": run.command,
        }  # fmt: skip
        write_params(client, run_id, {**common, **_leaves(run.params)})
        seconds = {} if run.seconds is None else {"train_seconds": run.seconds}
        write_metrics(client, run_id, evaluation_metrics(run.evaluation, run.judged) | seconds | dict(run.metrics))
        points = curve_points(run.curve).items()
        write_stepped(client, run_id, {k: {f"curve/{key}": v for key, v in point.items()} for k, point in points})
        write_datasets(client, run_id, run.corpora, context="training" if run.kind == TRAINING else "evaluation")
        for fold in run.folds:
            _log_fold(client, experiment_id, run_id, run, fold)
        write_artifacts(client, run_id, run.figures, run.artifacts)
        yield experiment_id, run_id


def _training_run(record: TrainingRecord) -> _Run:
    manifest = record.manifest
    params = {
        **record.config.asdict(), "objective": record.config.lightgbm()["objective"],
        "features": len(manifest.feature_names), "schema_version": manifest.schema_version,
        "schema_digest": manifest.schema_digest,
    }  # fmt: skip
    tags = {
        "tileguard.family": manifest.family,
        "tileguard.version": manifest.tileguard_version,
        "tileguard.onnx_sha256": manifest.onnx_sha256,
    }
    return _Run(
        kind=TRAINING, name=f"{record.name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}", experiment=record.name,
        evaluation=record.evaluation, hardware=manifest.hardware, corpora=manifest.corpora, params=params,
        curve=record.curve, judged=judged_of(record.evaluation), folds=record.folds, figures=record.figures, tags=tags,
        command=manifest.command, seconds=record.seconds, metrics=calls_metrics(record.by_calls),
    )  # fmt: skip


def _check_digest(record: TrainingRecord) -> None:
    """Refuse a model that is not its manifest's, before anything is recorded."""
    found = hashlib.sha256(record.onnx).hexdigest()
    if found != record.manifest.onnx_sha256:
        raise InvalidInput("onnx_sha256", record.manifest.onnx_sha256, f"the SHA-256 of the model, {found}")


def _hardware(evaluation: Evaluation) -> str:
    return "+".join(sorted({sweep.hardware for sweep in evaluation.corpus.sweeps}))


def _tags(run: _Run) -> dict[str, str]:
    tags = {
        KIND: run.kind,
        "tileguard.hardware": run.hardware,
        "tileguard.family": run.evaluation.corpus.family,
        "tileguard.version": __version__,
        "tileguard.judged": run.judged,
        "tileguard.corpora": json.dumps(dict(run.corpora), sort_keys=True),
        "mlflow.source.name": run.command or "tileguard",
        "mlflow.source.type": "LOCAL",
    }
    commit = git_commit()
    return tags | ({"mlflow.source.git.commit": commit} if commit else {}) | dict(run.tags)


def _log_fold(client: Any, experiment_id: str, parent: str, run: _Run, fold: Fold) -> None:
    tags = {KIND: FOLD, "mlflow.parentRunId": parent, "tileguard.hardware": run.hardware}
    with running(client, experiment_id, f"fold {fold.number}", tags) as run_id:
        families = ", ".join(fold.families)
        write_params(client, run_id, {"fold": fold.number, "families": families, "trained_on": len(fold.train)})
        found: dict[str, float] = {"kernels": len(fold.test)}
        for selector in run.evaluation.sets:
            measures = _flat(run.evaluation.summary(selector, fold.test))
            found |= {f"{metric_name(selector)}/{key}": value for key, value in measures.items()}
        write_metrics(client, run_id, found)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested mappings as one, with / between the keys."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _leaves(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _flat(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in _leaves(values).items()}  # type: ignore[arg-type]
