"""Shared inputs: the shipped corpus, and a small but real model directory trained on a part of it."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support import CORPUS_PATH, manifest_for

from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE

if TYPE_CHECKING:
    from tileguard.learner.corpus import Corpus

# A user's switch, or models, must not decide what the tests see.
os.environ.pop("TILEGUARD", None)
os.environ["TILEGUARD_MODELS"] = os.devnull


LONGEST = "test_inductor.py"
"""Takes nearly as long as all others together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first, so that it is not the last to end while other workers wait."""
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.fixture(autouse=True)
def _warnings_are_heard() -> None:
    """The command line hushes the library's logger for its process, which here is every test's."""
    logging.getLogger("tileguard").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def h200() -> HardwareSpec:
    return known_hardware("h200")


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """The shipped corpus: 166 kernels on an H200."""
    from tileguard.learner.corpus import read_corpus

    return read_corpus(CORPUS_PATH)


@pytest.fixture(scope="session")
def trained_on(corpus: Corpus) -> list[int]:
    """The sweeps that the small model learned from."""
    return list(range(0, len(corpus.sweeps), 8))


@pytest.fixture(scope="session")
def model_dir(
    tmp_path_factory: pytest.TempPathFactory, corpus: Corpus, trained_on: list[int], h200: HardwareSpec
) -> Path:
    """A model of a few small trees, with its manifest. Shared: copy it before changing it (`own_model`)."""
    from tileguard.learner.export import export_onnx
    from tileguard.learner.train import TrainConfig, design_matrix, feature_ranges, fit
    from tileguard.runtime.feature_space import feature_space

    booster = fit(corpus, h200, trained_on, TrainConfig(rounds=12, num_leaves=7, min_data_in_leaf=5))
    onnx = export_onnx(booster)
    manifest = manifest_for(
        h200.name,
        ranges=feature_ranges(design_matrix(corpus, h200, trained_on), feature_space(h200).schema.names),
        onnx_sha256=hashlib.sha256(onnx).hexdigest(),
    )
    directory = tmp_path_factory.mktemp("models") / "reduction-h200"
    directory.mkdir()
    (directory / ONNX_FILE).write_bytes(onnx)
    (directory / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return directory


@pytest.fixture
def own_model(model_dir: Path, tmp_path: Path) -> Path:
    """A copy of `model_dir` that the test may break."""
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


@pytest.fixture(scope="session")
def known_kernel(corpus: Corpus, trained_on: list[int]) -> ReductionKernel:
    """A kernel that the small model was trained on."""
    return corpus.sweeps[trained_on[0]].kernel
