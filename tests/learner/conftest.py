"""Trainings to record and stores to record them in. MLflow is imported by those alone who ask for a store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import FakeRanker, manifest_for

from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.manifest import parse_manifest
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE
from tileguard.runtime.selector import Selector

if TYPE_CHECKING:
    from tests.learner.trainings import Tracked

    from tileguard.learner.corpus import Corpus
    from tileguard.learner.tracking import TrainingRecord


@pytest.fixture(scope="session")
def record(corpus: Corpus, h200: HardwareSpec, model_dir: Path) -> TrainingRecord:
    """Every third kernel of the corpus, ranked by a hash, and a small real model."""
    from tests.learner.trainings import CONFIG, NAME

    from tileguard.learner.evaluate import Model, curve, evaluate
    from tileguard.learner.figures import winners_in_tile_space
    from tileguard.learner.tracking import TrainingRecord
    from tileguard.learner.train import Fold, family_folds

    part = corpus.subset(range(0, len(corpus.sweeps), 3))
    ranker = FakeRanker(manifest_for("h200"))
    model = Model(lambda index: ranker, lambda index, k: Selector(h200, model=ranker, top_k=k), diversity=1.0)
    folds = [
        Fold(number, train, test, tuple(sorted({part.sweeps[i].family for i in test})), None)
        for number, (train, test) in enumerate(family_folds(part, CONFIG.folds))
    ]
    manifest = parse_manifest((model_dir / MANIFEST_FILE).read_text(encoding="utf-8"))
    return TrainingRecord(
        name=NAME,
        config=CONFIG,
        evaluation=evaluate(part, h200, model, ks=(4, 8)),
        folds=folds,
        curve=curve(part, model, ks=(1, 4, 16)),
        figures={"winners": winners_in_tile_space(part)},
        onnx=(model_dir / ONNX_FILE).read_bytes(),
        manifest=replace(manifest, corpora={"h200.parquet": corpus.digest}, command="tileguard train h200.parquet"),
        card="# A card\n",
        seconds=12.5,
    )


@pytest.fixture(scope="session")
def unsynced_sqlite() -> Iterator[None]:
    """SQLite that does not wait for the disk: MLflow makes a database in 70 transactions, and these need not last."""
    from sqlalchemy import Engine, event

    def relax(connection: Any, record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", relax)
    yield
    event.remove(Engine, "connect", relax)


@pytest.fixture(scope="session")
def blank_database(tmp_path_factory: pytest.TempPathFactory, unsynced_sqlite: None) -> Path:
    """A database as MLflow makes it, to be copied: making one runs every migration there ever was."""
    from tileguard.learner.store import open_store
    from tileguard.learner.tracking import list_runs

    directory = tmp_path_factory.mktemp("blank")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert list_runs(open_store(directory)) == []
    return directory / "mlflow.db"


@pytest.fixture(scope="module")
def tracked(
    tmp_path_factory: pytest.TempPathFactory, record: TrainingRecord, blank_database: Path
) -> Iterator[Tracked]:
    from tests.learner.trainings import NAME, Tracked

    from tileguard.learner.registry import aliases
    from tileguard.learner.store import open_store
    from tileguard.learner.tracking import log_training

    directory = tmp_path_factory.mktemp("tracked")
    (directory / "cwd").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory / "cwd")
        store = open_store("../store")
        shutil.copy(blank_database, directory / "store" / "mlflow.db")
        first = log_training(store, record)
        after_first = aliases(store, NAME)
        yield Tracked(directory, store, record, first, after_first, log_training(store, record))


@pytest.fixture
def client(tracked: Tracked) -> Any:
    import mlflow

    return mlflow.MlflowClient(tracking_uri=tracked.store.uri)
