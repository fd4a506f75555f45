"""No kernel is judged by a model that saw its family; what is written is what was trained."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import CORPUS_PATH

from tileguard.features.hardware import known_hardware
from tileguard.learner import train as train_module
from tileguard.learner.corpus import Corpus, KernelSweep, read_corpus
from tileguard.learner.pipeline import ParityError, judge_held_out, train_model, write_model
from tileguard.learner.train import TrainConfig, cross_validate, family_folds
from tileguard.runtime.guard import Reason
from tileguard.runtime.ranker import load_ranker
from tileguard.runtime.selector import Selector

H200 = known_hardware("h200")
QUICK = TrainConfig(rounds=5, num_leaves=7)


@pytest.fixture(scope="module")
def few() -> Corpus:
    """Three kernels of each family of the shipped corpus."""
    corpus = read_corpus(CORPUS_PATH)
    seen: dict[str, int] = {}
    chosen = []
    for i, family in enumerate(corpus.families):
        seen[family] = seen.get(family, 0) + 1
        if seen[family] <= 3:
            chosen.append(i)
    return corpus.subset(chosen)


def test_folds_share_no_family_and_hold_every_kernel_out_once(few: Corpus) -> None:
    held_out: list[int] = []
    for train, test in family_folds(few, 5):
        assert not {few.families[i] for i in train} & {few.families[i] for i in test}
        assert sorted((*train, *test)) == list(range(len(few.sweeps)))
        held_out += test
    assert sorted(held_out) == list(range(len(few.sweeps)))


def poisoned(corpus: Corpus, families: tuple[str, ...]) -> Corpus:
    """The corpus with the times of `families` turned upside down."""

    def turned(sweep: KernelSweep) -> KernelSweep:
        return dataclasses.replace(sweep, us=1.0 / sweep.us) if sweep.family in families else sweep

    return dataclasses.replace(corpus, sweeps=tuple(map(turned, corpus.sweeps)))


def test_the_times_of_held_out_families_cannot_change_their_fold_s_model(few: Corpus) -> None:
    fold = cross_validate(few, H200, QUICK)[0]
    again = cross_validate(poisoned(few, fold.families), H200, QUICK)
    assert again[0].booster.model_to_string() == fold.booster.model_to_string()
    # The same poison is in the others' training data: the comparison can tell.
    assert again[1].booster.model_to_string() != cross_validate(few, H200, QUICK)[1].booster.model_to_string()


def test_every_kernel_is_scored_by_the_fold_that_held_it_out(few: Corpus) -> None:
    held_out = judge_held_out(few, H200, QUICK)
    for fold in held_out.folds:
        for i in fold.test:
            scorer: Any = held_out.model.scorer_of(i)
            assert scorer.booster is fold.booster
            assert held_out.model.selector_of(i, 4).guard._load is not None
    assert held_out.evaluation.superset_violations == 0
    for k in (4, 8, 12):
        union, alone = (held_out.evaluation.slowdown(f"{name}@{k}") for name in ("union", "model"))
        assert (union <= alone).all()
        assert (union <= held_out.evaluation.slowdown("formula")).all()
        assert (union <= held_out.evaluation.slowdown("host_default")).all()


def test_a_trained_model_is_written_whole_and_loads_as_it_was(few: Corpus, tmp_path: Path) -> None:
    trained = train_model(few, H200, QUICK, command="test")
    for _ in range(2):  # over an older model too
        write_model(trained, tmp_path / "m")
        assert {path.name for path in tmp_path.iterdir()} == {"m"}
        assert {path.name for path in (tmp_path / "m").iterdir()} == {"ranker.onnx", "manifest.json", "card.md"}
    ranker = load_ranker(tmp_path / "m", H200)
    sweep = few.sweeps[0]
    expected = trained.booster.predict(train_module.design_matrix(few, H200, [0])[0], num_threads=1)
    assert np.array_equal(ranker.score(sweep.kernel, sweep.tiles), expected)
    assert json.loads((tmp_path / "m" / "manifest.json").read_text())["corpora"] == dict(few.files)
    assert f"{len(few.sweeps)} kernels" in trained.card
    assert Selector(H200, model=tmp_path / "m").select(sweep.kernel).verdict.reason is Reason.TRUST


def test_an_interrupt_between_old_and_new_leaves_the_old(
    few: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = train_model(few, H200, QUICK, command="test")
    write_model(trained, tmp_path / "m")
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if target == tmp_path / "m" and ".old." not in str(self):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_model(trained, tmp_path / "m")
    assert load_ranker(tmp_path / "m", H200).manifest.onnx_sha256 == trained.manifest.onnx_sha256


def test_same_corpus_and_seed_give_the_same_bytes(few: Corpus) -> None:
    one, other = (train_model(few, H200, QUICK, command="test") for _ in range(2))
    assert one.onnx == other.onnx


def test_an_export_that_differs_is_not_written(few: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    from tileguard.learner import pipeline

    other = train_model(few, H200, dataclasses.replace(QUICK, seed=1), command="test").onnx
    monkeypatch.setattr(pipeline, "export_onnx", lambda booster, n_features: other)
    with pytest.raises(ParityError, match="rows differ"):
        train_model(few, H200, QUICK, command="test")
