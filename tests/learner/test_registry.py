"""Registered models: they come back as they were logged, by aliases that move as they should, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import onnxruntime
import pytest
from tests.learner.trainings import NAME, Tracked

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.features.reduction import REDUCTION_SCHEMA
from tileguard.learner import promote_run
from tileguard.learner.card import CARD_FILE, with_promotion
from tileguard.learner.decision import DECISION_FILE, Check, Decision, Paired, Side
from tileguard.learner.promotion import read_contender
from tileguard.learner.registry import (
    Registered,
    aliases,
    decision_metrics,
    load_model,
    load_onnx,
    record_decision,
    set_champion,
    version_of_bytes,
    version_of_run,
)
from tileguard.runtime.manifest import Manifest, parse_manifest
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE, OnnxRanker


def test_a_model_comes_back_as_the_bytes_that_were_logged(tracked: Tracked, h200: HardwareSpec) -> None:
    assert load_onnx(tracked.store, NAME, "champion") == tracked.record.onnx
    files = load_model(tracked.store, NAME, "challenger")
    assert (files.version, files.run_id, files.card) == (2, tracked.second.run_id, tracked.record.card)
    manifest: Manifest = parse_manifest(files.manifest)
    assert manifest.mlflow_run_id == tracked.second.run_id
    sweep = tracked.record.evaluation.corpus.sweeps[0]
    assert np.isfinite(OnnxRanker(manifest, files.onnx, h200).score(sweep.kernel, sweep.tiles)).all()


def test_mlflow_itself_serves_the_model_with_the_same_scores(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracked.store.uri)
    model = mlflow.pyfunc.load_model(f"models:/{NAME}@champion")
    width = model.metadata.signature.inputs.to_dict()[0]["tensor-spec"]["shape"][1]
    assert width == len(REDUCTION_SCHEMA.names)
    rows = np.random.default_rng(0).normal(size=(20, width)) * 10
    scores = np.asarray(model.predict(rows)["scores"]).ravel().tolist()
    session = onnxruntime.InferenceSession(tracked.record.onnx, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"X": rows})
    assert scores == np.asarray(expected).ravel().tolist()


def test_the_first_model_is_champion_and_the_second_only_challenges(tracked: Tracked) -> None:
    assert tracked.aliases_after_first == {"champion": 1, "challenger": 1}
    assert aliases(tracked.store, NAME) == {"champion": 1, "challenger": 2}
    assert (tracked.first.model_version, tracked.second.model_version) == (1, 2)


def test_a_champion_can_be_promoted_and_put_back(tracked: Tracked) -> None:
    set_champion(tracked.store, NAME, 2)
    assert aliases(tracked.store, NAME) == {"champion": 2, "challenger": 2}
    set_champion(tracked.store, NAME, 1)
    assert aliases(tracked.store, NAME) == {"champion": 1, "challenger": 2}


def test_unknown_names_versions_and_aliases_are_refused(tracked: Tracked) -> None:
    for call in (aliases, load_onnx):
        with pytest.raises(InvalidInput, match=rf"^name: 'nobody' is not allowed; expected one of {NAME}"):
            call(tracked.store, "nobody")
    with pytest.raises(InvalidInput, match=r"^alias: 'best' is not allowed; expected one of challenger, champion"):
        load_onnx(tracked.store, NAME, "best")
    with pytest.raises(InvalidInput, match=r"^version: 3 is not allowed; expected one of 1, 2"):
        set_champion(tracked.store, NAME, 3)
    with pytest.raises(InvalidInput, match=r"^name: "):
        set_champion(tracked.store, "nobody", 1)


def test_bytes_changed_behind_the_registrys_back_are_refused(tracked: Tracked) -> None:
    (file,) = (
        path
        for path in tracked.directory.rglob("model.onnx")
        if tracked.second.run_id in (path.parent / MANIFEST_FILE).read_text()
    )
    file.write_bytes(tracked.record.onnx + b"\0")
    try:
        with pytest.raises(InvalidInput, match=r"^ranker.onnx: "):
            load_onnx(tracked.store, NAME, "challenger")
    finally:
        file.write_bytes(tracked.record.onnx)


# Promotions.


def decision_for(onnx_sha256: str, run_id: str, *, passed: bool = True) -> Decision:
    return Decision(
        hardware="h200", family="reduction",
        challenger=Side("new", onnx_sha256, run_id, "its ONNX file"), champion=Side("old", "c" * 64, None, "its ONNX file"),
        held_out="held-out corpora: 10 kernels in 5 families of unseen.parquet", kernels=10,
        checks=(
            Check("size", True, {"onnx_bytes": 1234}, "≤ 300 kB", "1.2 kB"),
            Check("lossless", passed, {}, "not lower than the champion's", "model@8 90.0 % (champion 80.0 %)"),
            Check("latency", True, {"select_p50_us": 700.5}, "p50 ≤ 1000 µs on this machine", "700 µs"),
        ),
        paired=(Paired("model@8", 10, (0.9, 0.8), (0.0, 0.1), (1.01, 1.02), (1.2, 1.4), 3, 2, 5, 2, 1, 1.0),),
        notes=(), judged=True, made="2026-01-01T00:00:00+00:00", tileguard_version="0", libraries={},
    )  # fmt: skip


@pytest.fixture
def aliased(tracked: Tracked) -> Iterator[None]:
    """Leaves the aliases as they were."""
    before = aliases(tracked.store, NAME)
    yield
    client = mlflow.MlflowClient(tracking_uri=tracked.store.uri)
    for alias in aliases(tracked.store, NAME).keys() - before.keys():
        client.delete_registered_model_alias(NAME, alias)
    for alias, version in before.items():
        client.set_registered_model_alias(NAME, alias, str(version))


@pytest.fixture
def challenger(tracked: Tracked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the second training."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "challenger"
    folder.mkdir()
    (folder / ONNX_FILE).write_bytes(tracked.record.onnx)
    (folder / MANIFEST_FILE).write_text(tracked.second.manifest.to_json(), encoding="utf-8")
    (folder / CARD_FILE).write_text(tracked.record.card, encoding="utf-8")
    return folder


def test_a_decision_is_on_the_run_the_version_and_the_card(tracked: Tracked, client: Any) -> None:
    version = version_of_run(tracked.store, tracked.second.run_id)
    assert version == Registered(NAME, 2, tracked.second.run_id, tracked.record.manifest.onnx_sha256)
    for passed in (True, False):
        decision = decision_for(version.onnx_sha256, version.run_id, passed=passed)
        record_decision(tracked.store, version, decision, with_promotion(tracked.record.card, decision))
        run = client.get_run(version.run_id)
        assert run.info.status == "FINISHED"
        assert {name: run.data.metrics[name] for name in decision_metrics(decision)} == decision_metrics(decision)
        assert run.data.metrics["promotion/model_at_8/lossless_difference"] == pytest.approx(0.1)
        assert run.data.metrics["promotion/select_p50_us"] == 700.5
        tags = client.get_model_version(NAME, "2").tags
        assert tags["promotion"] == run.data.tags["tileguard.promotion"] == ("promoted" if passed else "refused")
        assert tags["promotion.failed"] == ("" if passed else "lossless")
        folder = Path(client.download_artifacts(version.run_id, DECISION_FILE))
        assert json.loads(folder.read_text(encoding="utf-8")) == decision.to_json()
        card = Path(client.download_artifacts(version.run_id, CARD_FILE)).read_text(encoding="utf-8")
        assert card.count("## Promotion") == 1


def test_what_was_never_registered_has_no_version(tracked: Tracked) -> None:
    for run_id in ("0" * 32, "", "it's"):
        assert version_of_run(tracked.store, run_id) is None
    assert version_of_bytes(tracked.store, NAME, "0" * 64) is None
    assert version_of_bytes(tracked.store, "it's", tracked.record.manifest.onnx_sha256) is None
    found = version_of_bytes(tracked.store, NAME, tracked.record.manifest.onnx_sha256)
    assert found is not None and found.version == 2


@pytest.mark.usefixtures("aliased")
def test_a_promotion_moves_the_alias_and_restore_puts_it_back(
    tracked: Tracked, challenger: Path, own_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = read_contender(challenger)
    decision = decision_for(new.manifest.onnx_sha256, tracked.second.run_id)
    monkeypatch.setattr(promote_run, "decide", lambda *_, **__: decision)
    # The champion is version 1; both trainings gave the same bytes, so it gets others here.
    (own_model / ONNX_FILE).write_bytes(b"another")
    store = str(tracked.directory / "store")
    result = promote_run.promote(new, None, own_model, [], store=store)
    assert (result.version, result.installed) == (2, own_model)
    assert aliases(tracked.store, NAME) == {"champion": 2, "challenger": 2, "replaced": 1}
    assert "version 2" in result.recorded

    restored = promote_run.restore(own_model, store=store, name=NAME)
    assert "no version of reduction-h200 with these bytes" in restored.registry
    set_champion(tracked.store, NAME, 1)
    restored = promote_run.restore(own_model, store=store, name=NAME)  # the promoted one again
    assert "reduction-h200@champion is version 2" in restored.registry
    assert aliases(tracked.store, NAME)["champion"] == 2


@pytest.mark.usefixtures("aliased")
def test_a_folder_that_cannot_be_replaced_leaves_the_alias_as_it_was(
    tracked: Tracked, challenger: Path, own_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = read_contender(challenger)
    decision = decision_for(new.manifest.onnx_sha256, tracked.second.run_id)
    monkeypatch.setattr(promote_run, "decide", lambda *_, **__: decision)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(promote_run, "install", full)
    (own_model / ONNX_FILE).write_bytes(b"another")
    with pytest.raises(OSError, match="no space left"):
        promote_run.promote(new, None, own_model, [], store=str(tracked.directory / "store"))
    assert aliases(tracked.store, NAME)["champion"] == 1


def test_a_store_without_the_challenger_s_run_is_refused_where_it_was_named(
    tracked: Tracked, challenger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tracked.directory / "store")
    new = read_contender(challenger)
    assert promote_run.find_target(new, None) is None  # none lies where trainings go: none is made either
    assert not Path("out").exists()
    assert promote_run.find_target(new, store) is not None
    for changed in ("0" * 32, None):
        other = replace(new, manifest=replace(new.manifest, mlflow_run_id=changed))
        with pytest.raises(InvalidInput, match=r"^store: "):
            promote_run.find_target(other, store)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracked.store.uri)
        assert promote_run.find_target(other, None) is None
