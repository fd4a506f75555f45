"""Trainings in a real MLflow store: what is recorded, what a failure leaves, what stays untouched."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
from tests.learner.trainings import CONFIG, NAME, Tracked

from tileguard.features.errors import InvalidInput
from tileguard.features.reduction import REDUCTION_SCHEMA
from tileguard.learner import registry, tracking
from tileguard.learner.evaluate import by_regime, tiers
from tileguard.learner.registry import aliases, load_onnx
from tileguard.learner.store import open_store
from tileguard.learner.tracking import TrainingRecord, list_runs, log_training, metric_name
from tileguard.runtime.manifest import parse_manifest

# What is recorded.


def test_a_training_is_a_finished_run_with_one_nested_run_a_fold(tracked: Tracked, client: Any) -> None:
    runs = client.search_runs([tracked.first.experiment_id])
    assert client.get_experiment(tracked.first.experiment_id).name == NAME
    assert {run.info.status for run in runs} == {"FINISHED"}
    parents = {run.info.run_id for run in runs if "mlflow.parentRunId" not in run.data.tags}
    assert parents == {tracked.first.run_id, tracked.second.run_id}
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == tracked.first.run_id]
    assert sorted(run.data.params["fold"] for run in children) == ["0", "1"]


def test_every_measure_of_every_selector_is_a_metric(tracked: Tracked, client: Any) -> None:
    evaluation = tracked.record.evaluation
    found = client.get_run(tracked.first.run_id).data.metrics
    assert {"model@8", "union@4", "formula", "host_default", "dense"} <= set(evaluation.sets)
    for selector in evaluation.sets:
        for key, value in evaluation.summary(selector).items():
            for part, number in value.items() if isinstance(value, dict) else [(None, value)]:
                name = "/".join(filter(None, (metric_name(selector), key, part)))
                assert found[name] == number, name
        for regime, summary in by_regime(evaluation, selector).items():
            for key in ("lossless", "severe", "geomean"):
                assert found[f"{metric_name(selector)}/{regime}/{key}"] == summary[key]
            assert found[f"regime/{regime}"] == summary["kernels"]


def test_documented_metric_names_are_the_ones_recorded(tracked: Tracked, client: Any) -> None:
    found = client.get_run(tracked.first.run_id).data.metrics
    evaluation = tracked.record.evaluation
    for name in ("model_at_8/lossless", "union_at_8/severe", "formula/lossless", "model_at_4/snap2/hit"):
        assert name in found
    assert found["superset_violations"] == 0
    assert found["verdict/trust"] == sum(evaluation.verdicts.values())
    assert found["train_seconds"] == 12.5
    assert found["kernels"] == len(evaluation.corpus.sweeps) and found["rows"] == evaluation.corpus.n_rows
    for selector in ("model@4", "model@8"):
        for other in ("formula", "host_default"):
            assert found[f"{metric_name(selector)}/loses_to_{other}"] == evaluation.loses(selector, other)
    documented = tracking.__doc__ or ""
    for name in found:
        last = name.rpartition("/")[2]
        assert last in documented or last.startswith("loses_to_") or name.startswith("verdict/"), name


def test_the_curve_is_stepped_by_k(tracked: Tracked, client: Any) -> None:
    for tier in ("lossless", "severe"):
        history = client.get_metric_history(tracked.first.run_id, f"curve/{tier}")
        expected = {k: tiers(slowdown)[tier] for k, slowdown in tracked.record.curve.items()}
        assert {point.step: point.value for point in history} == expected
        assert len(history) == 3


def test_a_fold_has_its_families_and_its_own_measures(tracked: Tracked, client: Any) -> None:
    evaluation = tracked.record.evaluation
    runs = client.search_runs([tracked.first.experiment_id], f"tags.`mlflow.parentRunId` = '{tracked.first.run_id}'")
    by_number = {int(run.data.params["fold"]): run.data for run in runs}
    for fold in tracked.record.folds:
        data = by_number[fold.number]
        assert data.params["families"] == ", ".join(fold.families)
        assert data.params["trained_on"] == str(len(fold.train))
        assert data.metrics["kernels"] == len(fold.test)
        for selector in evaluation.sets:
            summary = evaluation.summary(selector, fold.test)
            assert data.metrics[f"{metric_name(selector)}/lossless"] == summary["lossless"]
            assert data.metrics[f"{metric_name(selector)}/snap2/hit"] == summary["snap2"]["hit"]


def test_parameters_tags_and_data_say_where_a_model_came_from(tracked: Tracked, client: Any) -> None:
    run = client.get_run(tracked.first.run_id)
    corpus = tracked.record.evaluation.corpus
    expected = {**CONFIG.asdict(), "objective": "lambdarank", "kernels": len(corpus.sweeps), "rows": corpus.n_rows}
    for name, value in expected.items():
        assert run.data.params[name] == str(value)
    assert run.data.params["schema_digest"] == REDUCTION_SCHEMA.digest
    tags = run.data.tags
    assert tags["tileguard.hardware"] == "h200" and tags["tileguard.family"] == "reduction"
    assert tags["tileguard.model_version"] == "1"
    digests = dict(tracked.record.manifest.corpora)
    assert json.loads(tags["tileguard.corpora"]) == digests
    (data,) = run.inputs.dataset_inputs
    assert data.dataset.name == "h200.parquet" and digests["h200.parquet"].startswith(data.dataset.digest)


def test_figures_manifest_and_card_are_artifacts(tracked: Tracked, client: Any, tmp_path: Path) -> None:
    run_id = tracked.first.run_id
    assert {file.path for file in client.list_artifacts(run_id)} == {"figures", "manifest.json", "card.md"}
    assert [file.path for file in client.list_artifacts(run_id, "figures")] == ["figures/winners.png"]
    picture = Path(client.download_artifacts(run_id, "figures/winners.png", str(tmp_path)))
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = Path(client.download_artifacts(run_id, "manifest.json", str(tmp_path))).read_text(encoding="utf-8")
    assert parse_manifest(text).mlflow_run_id == run_id
    assert parse_manifest(text) == parse_manifest(tracked.first.manifest.to_json())
    assert Path(client.download_artifacts(run_id, "card.md", str(tmp_path))).read_text() == tracked.record.card


def test_runs_are_listed_newest_first_without_the_folds(tracked: Tracked) -> None:
    rows = [row for row in list_runs(tracked.store) if row["status"] == "FINISHED"]
    assert [row["run_id"] for row in rows] == [tracked.second.run_id, tracked.first.run_id]
    assert [row["model_version"] for row in rows] == [2, 1]
    assert rows[0]["hardware"] == "h200" and rows[0]["experiment"] == NAME
    assert rows[0]["metrics"]["superset_violations"] == 0
    assert rows[0]["seconds"] > 0
    json.dumps(rows)


# What a failure leaves.


class Broken:
    """Stands where a figure should."""


def test_a_failure_marks_the_run_failed_and_registers_nothing(tracked: Tracked, client: Any) -> None:
    before = aliases(tracked.store, NAME)
    figures: Any = {"broken": Broken()}
    with pytest.raises(TypeError, match="Broken"):
        log_training(tracked.store, replace(tracked.record, figures=figures))
    newest = list_runs(tracked.store)[0]
    assert newest["status"] == "FAILED" and newest["model_version"] is None
    assert aliases(tracked.store, NAME) == before
    assert len(client.search_model_versions(f"name = '{NAME}'")) == 2


def test_a_failure_in_a_fold_marks_that_fold_and_the_training_failed(tracked: Tracked, client: Any) -> None:
    good = tracked.record.folds[0]
    bad = replace(good, number=7, test=(10_000,))
    with pytest.raises(IndexError):
        log_training(tracked.store, replace(tracked.record, folds=(good, bad)))
    newest = list_runs(tracked.store)[0]
    assert newest["status"] == "FAILED"
    children = client.search_runs([tracked.first.experiment_id], f"tags.`mlflow.parentRunId` = '{newest['run_id']}'")
    assert {run.data.params["fold"]: run.info.status for run in children} == {"0": "FINISHED", "7": "FAILED"}


def test_an_interrupt_while_the_model_is_stored_leaves_no_version(
    tracked: Tracked, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "_save_onnx", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log_training(tracked.store, tracked.record)
    newest = list_runs(tracked.store)[0]
    assert newest["status"] == "FAILED"
    assert len(client.search_model_versions(f"name = '{NAME}'")) == 2
    models = client.search_logged_models([tracked.first.experiment_id])
    assert [str(model.status) for model in models if model.source_run_id == newest["run_id"]] == ["FAILED"]


def test_a_model_that_is_not_its_manifests_is_refused_before_anything_is_recorded(tracked: Tracked) -> None:
    before = len(list_runs(tracked.store))
    for field, wrong in (
        ("onnx_sha256", replace(tracked.record, onnx=tracked.record.onnx + b"\0")),
        ("name", replace(tracked.record, name="reduction/h200")),
        ("name", replace(tracked.record, name="")),
    ):
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            log_training(tracked.store, wrong)
    assert len(list_runs(tracked.store)) == before


# What stays untouched.


def test_everything_is_written_inside_the_store(tracked: Tracked) -> None:
    assert sorted(path.name for path in tracked.directory.iterdir()) == ["cwd", "store"]
    assert not list((tracked.directory / "cwd").iterdir())
    assert {path.name for path in (tracked.directory / "store").iterdir()} >= {"mlflow.db", "artifacts"}


def test_from_an_empty_store_on_the_process_keeps_its_mlflow_settings_and_hears_nothing(
    tmp_path: Path,
    record: TrainingRecord,
    unsynced_sqlite: None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    for logger in loggers:
        monkeypatch.setattr(logger, "level", logging.INFO)

    def settings() -> tuple[object, ...]:
        run = mlflow.active_run()
        return (
            mlflow.get_tracking_uri(), mlflow.get_registry_uri(), run and run.info.run_id,
            dict(os.environ), [logger.level for logger in loggers],
        )  # fmt: skip

    before = settings()
    store = open_store(tmp_path / "a store")
    capfd.readouterr()
    assert list_runs(store) == []
    with pytest.raises(InvalidInput, match=r"^name: 'x' is not allowed; expected a registered model; there is none"):
        aliases(store, "x")
    log_training(store, record)
    assert load_onnx(store, NAME) == record.onnx
    assert settings() == before
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["a store"]


def test_the_users_own_run_is_left_alone(tracked: Tracked, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracked.store.uri)
    with mlflow.start_run() as own:
        log_training(tracked.store, tracked.record)
        active = mlflow.active_run()
        assert active is not None and active.info.run_id == own.info.run_id
        found = client.get_run(own.info.run_id)
        assert (found.info.status, found.data.metrics) == ("RUNNING", {})
