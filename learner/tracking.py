"""MLflow as the place where trainings are recorded and compared: one run a training, one nested run a fold.

The names of metrics, stable for dashboards and queries. SELECTOR is the evaluation's name with `@` written `_at_`, as
MLflow allows no `@` (`model@8` -> `model_at_8`); shares are fractions:

    SELECTOR/{lossless,loss_5_10,loss_10_30,severe,geomean,p5,p95,worst,time_weighted,n_pred_mean,n_pred_p95,set_mean,set_p95}
    SELECTOR/{snap1,snap2}/{hit,lossless,loss_5_10,loss_10_30,severe}
    SELECTOR/{small,mid,hole}/{lossless,severe,geomean}      by regime of rnumel; regime/{small,mid,hole}: kernels
    SELECTOR/loses_to_{formula,host_default}                 model_at_K only: share over 2 % slower
    curve/{lossless,severe,geomean}                          stepped: step = k, the number of tiles compiled
    superset_violations, verdict/REASON, kernels, rows, families, train_seconds

A fold's run has the first two groups over its held-out kernels, and kernels. SQLite keeps +inf as the largest double.

Everything goes through clients with an explicit address, and is logged before the run is marked finished: the process's
own MLflow settings and active run stay as they were, and a failure leaves a run marked FAILED.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput
from tileguard.runtime.manifest import Manifest
from tileguard.runtime.optional import require
from tileguard.runtime.ranker import MANIFEST_FILE

from .card import CARD_FILE
from .evaluate import Evaluation, by_regime, tiers
from .registry import alias_newest, register
from .store import Store, all_pages, client_of, is_error, quiet
from .train import Fold, TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KIND, _TRAINING, _FOLD = "tileguard.kind", "training", "fold"


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """A finished training. name: of the registered model and the experiment, such as reduction-h200.

    evaluation: over all kernels, each judged by the fold that held its family out. curve: per k, float64[kernels]
    slowdowns of the model's first k tiles. seconds: how long the training took. manifest: its mlflow_run_id is filled
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


@dataclass(frozen=True, slots=True)
class LoggedTraining:
    """Where a training was recorded; manifest is the record's with the run's id in it."""

    run_id: str
    model_version: int
    experiment_id: str
    manifest: Manifest


@quiet
def log_training(store: Store, record: TrainingRecord) -> LoggedTraining:
    """Record a training and register its model as a new version, aliased `challenger`, and `champion` where there is
    none yet.

    The version is registered and the run marked FINISHED only after all else is stored. An exception marks the run
    (and the fold's run in progress) FAILED and is raised on.
    """
    _check(record)
    client = client_of(store)
    experiment_id = _experiment(client, store, record.name)
    with _run(client, experiment_id, _run_name(record), _tags(record)) as run_id:
        manifest = replace(record.manifest, mlflow_run_id=run_id)
        _log_parameters(client, run_id, record)
        _log_metrics(client, run_id, training_metrics(record))
        _log_curve(client, run_id, record.curve)
        _log_datasets(client, run_id, manifest)
        for fold in record.folds:
            _log_fold(client, experiment_id, run_id, record, fold)
        for name, figure in record.figures.items():
            client.log_figure(run_id, figure, f"figures/{name}.png")
        client.log_text(run_id, manifest.to_json(), MANIFEST_FILE)
        client.log_text(run_id, record.card, CARD_FILE)
        version = register(
            client, record.name, experiment_id=experiment_id, run_id=run_id,
            onnx=record.onnx, manifest=manifest, card=record.card,
        )  # fmt: skip
        client.set_tag(run_id, "tileguard.model_version", str(version))
        alias_newest(client, record.name, version)
    return LoggedTraining(run_id, version, experiment_id, manifest)


@quiet
def list_runs(store: Store) -> list[dict[str, Any]]:
    """Every training, newest first: run_id, name, experiment, status, started (UTC, ISO 8601), seconds (of logging;
    None while it runs), hardware, family, tileguard, model_version (None where none was registered), parameters,
    metrics."""
    client = client_of(store)
    names = {experiment.experiment_id: experiment.name for experiment in all_pages(client.search_experiments)}
    if not names:
        return []
    runs = all_pages(
        functools.partial(
            client.search_runs, list(names), f"tags.`{_KIND}` = '{_TRAINING}'", order_by=["attributes.start_time DESC"]
        )
    )
    return [_row(run, names[run.info.experiment_id]) for run in runs]


def training_metrics(record: TrainingRecord) -> dict[str, float]:
    """The parent run's metrics, save the curve, by the names that this module documents."""
    evaluation = record.evaluation
    corpus = evaluation.corpus
    found: dict[str, float] = {
        "superset_violations": evaluation.superset_violations,
        "kernels": len(corpus.sweeps),
        "rows": corpus.n_rows,
        "families": len(set(corpus.families)),
        "train_seconds": record.seconds,
    }
    found |= {f"verdict/{reason}": count for reason, count in evaluation.verdicts.items()}
    for selector in evaluation.sets:
        name = metric_name(selector)
        found |= _flat(name, evaluation.summary(selector))
        for regime, summary in by_regime(evaluation, selector).items():
            found[f"regime/{regime}"] = summary["kernels"]
            found |= {f"{name}/{regime}/{key}": summary[key] for key in ("lossless", "severe", "geomean")}
        if selector.startswith("model@"):
            for other in ("formula", "host_default"):
                if other in evaluation.sets:
                    found[f"{name}/loses_to_{other}"] = evaluation.loses(selector, other)
    return {name: float(value) for name, value in found.items()}


def metric_name(selector: str) -> str:
    """A selector's name as MLflow allows it: model@8 -> model_at_8."""
    return selector.replace("@", "_at_")


def _check(record: TrainingRecord) -> None:
    """Refuse what would be recorded wrongly, before anything is recorded."""
    if not record.name or any(sign in record.name for sign in "/:'\""):
        raise InvalidInput("name", record.name, "a name without /, : and quotes, such as reduction-h200")
    found = hashlib.sha256(record.onnx).hexdigest()
    if found != record.manifest.onnx_sha256:
        raise InvalidInput("onnx_sha256", record.manifest.onnx_sha256, f"the SHA-256 of the model, {found}")


def _experiment(client: Any, store: Store, name: str) -> str:
    """The id of the experiment `name`, made if missing."""
    found = client.get_experiment_by_name(name)
    if found is None:
        location = (store.artifacts / name).as_uri() if store.artifacts else None
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except require("mlflow.exceptions").MlflowException as error:
            # Another process was faster.
            found = client.get_experiment_by_name(name)
            if found is None or not is_error(error, "RESOURCE_ALREADY_EXISTS"):
                raise
    return str(found.experiment_id)


@contextmanager
def _run(client: Any, experiment_id: str, name: str, tags: Mapping[str, str]) -> Iterator[str]:
    """The id of a new run that ends FINISHED, or FAILED when the block raises."""
    run_id: str = client.create_run(experiment_id, run_name=name, tags=dict(tags)).info.run_id
    try:
        yield run_id
        _end(client, run_id, "FINISHED")
    except BaseException:
        with suppress(Exception):  # the block's own error says more
            _end(client, run_id, "FAILED")
        raise


def _end(client: Any, run_id: str, status: str) -> None:
    # Against a server, MLflow prints two lines with links to standard output, which belongs to the caller.
    variable = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
    before = os.environ.get(variable)
    os.environ[variable] = "true"
    try:
        client.set_terminated(run_id, status)
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _run_name(record: TrainingRecord) -> str:
    return f"{record.name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"


def _tags(record: TrainingRecord) -> dict[str, str]:
    manifest = record.manifest
    tags = {
        _KIND: _TRAINING,
        "tileguard.hardware": manifest.hardware,
        "tileguard.family": manifest.family,
        "tileguard.version": manifest.tileguard_version,
        "tileguard.corpora": json.dumps(dict(manifest.corpora), sort_keys=True),
        "tileguard.onnx_sha256": manifest.onnx_sha256,
        "mlflow.source.name": manifest.command,
        "mlflow.source.type": "LOCAL",
    }
    commit = _git_commit()
    return tags | ({"mlflow.source.git.commit": commit} if commit else {})


def _git_commit() -> str | None:
    """The commit that this file is tracked in, `-dirty` where the tree has changes; None outside a repository, or in
    one that merely surrounds an installed package."""
    here = Path(__file__).resolve()
    answers = []
    for command in (
        ("ls-files", "--error-unmatch", here.name),
        ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"),
    ):
        try:
            done = subprocess.run(
                ("git", *command), cwd=here.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=10, check=True, env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(done.stdout.strip())
    return answers[-1]


def _log_parameters(client: Any, run_id: str, record: TrainingRecord) -> None:
    corpus = record.evaluation.corpus
    manifest = record.manifest
    _log_params(
        client, run_id,
        {
            **record.config.asdict(), "objective": record.config.lightgbm()["objective"],
            "kernels": len(corpus.sweeps), "rows": corpus.n_rows, "families": len(set(corpus.families)),
            "features": len(manifest.feature_names), "schema_version": manifest.schema_version,
            "schema_digest": manifest.schema_digest, "command": manifest.command,
        },
    )  # fmt: skip


def _log_params(client: Any, run_id: str, values: Mapping[str, object]) -> None:
    param = require("mlflow.entities").Param
    client.log_batch(run_id, params=[param(name, str(value)) for name, value in values.items()])


def _log_metrics(client: Any, run_id: str, values: Mapping[str, float]) -> None:
    metric = require("mlflow.entities").Metric
    now = int(time.time() * 1000)
    batch = [metric(name, value, now, 0) for name, value in values.items()]
    for start in range(0, len(batch), 1000):  # MLflow's limit a call
        client.log_batch(run_id, metrics=batch[start : start + 1000])


def _log_curve(client: Any, run_id: str, curve: Mapping[int, npt.NDArray[np.float64]]) -> None:
    metric = require("mlflow.entities").Metric
    now = int(time.time() * 1000)
    batch = []
    for k, slowdown in sorted(curve.items()):
        found = tiers(slowdown)
        values = {"lossless": found["lossless"], "severe": found["severe"], "geomean": np.exp(np.log(slowdown).mean())}
        batch += [metric(f"curve/{name}", float(value), now, k) for name, value in values.items()]
    client.log_batch(run_id, metrics=batch)


def _log_datasets(client: Any, run_id: str, manifest: Manifest) -> None:
    entities = require("mlflow.entities")
    context = [entities.InputTag("mlflow.data.context", "training")]
    client.log_inputs(
        run_id,
        [
            # MLflow takes 36 characters of a digest; the tag tileguard.corpora has all.
            entities.DatasetInput(entities.Dataset(name, digest[:36], "local", json.dumps({"uri": name})), context)
            for name, digest in manifest.corpora.items()
        ],
    )


def _log_fold(client: Any, experiment_id: str, parent: str, record: TrainingRecord, fold: Fold) -> None:
    tags = {_KIND: _FOLD, "mlflow.parentRunId": parent, "tileguard.hardware": record.manifest.hardware}
    with _run(client, experiment_id, f"fold {fold.number}", tags) as run_id:
        families = ", ".join(fold.families)
        _log_params(client, run_id, {"fold": fold.number, "families": families, "trained_on": len(fold.train)})
        found: dict[str, float] = {"kernels": len(fold.test)}
        for selector in record.evaluation.sets:
            found |= _flat(metric_name(selector), record.evaluation.summary(selector, fold.test))
        _log_metrics(client, run_id, found)


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Nested mappings as one, with / between the keys."""
    flat: dict[str, float] = {}
    for key, value in values.items():
        flat |= _flat(f"{prefix}/{key}", value) if isinstance(value, Mapping) else {f"{prefix}/{key}": float(value)}
    return flat


def _row(run: Any, experiment: str) -> dict[str, Any]:
    info, data = run.info, run.data
    started, ended = info.start_time, info.end_time
    version = data.tags.get("tileguard.model_version")
    return {
        "run_id": info.run_id,
        "name": info.run_name,
        "experiment": experiment,
        "status": info.status,
        "started": datetime.fromtimestamp(started / 1000, UTC).isoformat(timespec="seconds"),
        "seconds": (ended - started) / 1000 if ended else None,
        "hardware": data.tags.get("tileguard.hardware"),
        "family": data.tags.get("tileguard.family"),
        "tileguard": data.tags.get("tileguard.version"),
        "model_version": int(version) if version else None,
        "parameters": dict(data.params),
        "metrics": dict(data.metrics),
    }
