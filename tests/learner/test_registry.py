"""Registered models: they come back as they were logged, by aliases that move as they should, or not at all."""

from __future__ import annotations

import mlflow
import numpy as np
import onnxruntime
import pytest
from tests.learner.trainings import NAME, Tracked

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.features.reduction import REDUCTION_SCHEMA
from tileguard.learner.registry import aliases, load_model, load_onnx, set_champion
from tileguard.runtime.manifest import Manifest, parse_manifest
from tileguard.runtime.ranker import MANIFEST_FILE, OnnxRanker


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
