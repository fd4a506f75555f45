"""A ranker for matrix products from a corpus to a champion, by the code that reductions take."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.test_export import assert_parity
from tests.matmul_world import FAMILIES, H200, simulated_rows
from tests.support import CORPUS_PATH

from tileguard.__main__ import main
from tileguard.features.errors import InvalidInput
from tileguard.features.matmul import MATMUL_SCHEMA
from tileguard.learner.compare import column_of_manifest
from tileguard.learner.corpus import Corpus, read_corpus, write_corpus
from tileguard.learner.evaluate import by_regime, evaluate
from tileguard.learner.pipeline import Trained, default_config, train_model, write_model
from tileguard.learner.promotion import decide, read_contender
from tileguard.learner.regimes import REGIMES
from tileguard.learner.tracking import evaluation_metrics
from tileguard.learner.train import TrainConfig, design_matrix, fit_rows
from tileguard.runtime.doctor import _model
from tileguard.runtime.guard import GuardPolicy, Reason
from tileguard.runtime.matmul_selector import MatmulSelector
from tileguard.runtime.ranker import load_ranker

TINY = TrainConfig(rounds=8, num_leaves=15, min_data_in_leaf=10, folds=2)


@dataclass(frozen=True)
class World:
    path: Path
    corpus: Corpus
    trained: Trained
    model: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("products")
    write_corpus(simulated_rows(), folder / "mm.parquet")
    corpus = read_corpus(folder / "mm.parquet")
    trained = train_model(corpus, H200, TINY, command="test")
    return World(folder / "mm.parquet", corpus, trained, write_model(trained, folder / "model"))


def test_a_model_is_exported_bit_equal_and_trusted_where_it_was_trained(world: World) -> None:
    matrix = np.vstack(design_matrix(world.corpus, H200, range(len(world.corpus.sweeps))))
    assert_parity(world.trained.booster, matrix, n=200)
    ranker, sweep = load_ranker(world.model, H200, "matmul"), world.corpus.sweeps[3]
    assert ranker.manifest.family == "matmul"
    expected = world.trained.booster.predict(design_matrix(world.corpus, H200, [3])[0], num_threads=1)
    assert np.array_equal(ranker.score(sweep.kernel, sweep.tiles), expected)
    selector: Any = MatmulSelector(H200, model=world.model, policy=GuardPolicy(score_budget_s=60.0))
    found = selector.select(sweep.kernel)
    assert found.verdict.reason is Reason.TRUST
    assert len(found.proposed_by("model")) == 8


def test_held_out_families_are_judged_against_every_baseline(world: World) -> None:
    evaluation = world.trained.held_out.evaluation
    models = {f"{what}@{k}" for what in ("model", "union") for k in (1, 4, 8, 12)}
    assert set(evaluation.sets) == {"dense", "host_default", "formula"} | models
    assert evaluation.superset_violations == 0
    for k in (1, 4, 8, 12):
        for part in (f"model@{k}", "formula", "host_default"):
            assert (evaluation.slowdown(f"union@{k}") <= evaluation.slowdown(part)).all()
    # It learned something: a machine that differs from the planner's, on families that it did not see.
    assert evaluation.summary("model@8")["geomean"] < evaluation.summary("host_default")["geomean"]
    assert evaluation.summary("union@8")["geomean"] < evaluation.summary("formula")["geomean"]
    regimes = by_regime(evaluation, "model@8")
    assert set(regimes) <= set(REGIMES["matmul"])
    assert sum(one["kernels"] for one in regimes.values()) == len(world.corpus.sweeps)
    assert set(world.trained.manifest.metrics["held_out"]["by_family"]) == set(FAMILIES)


def test_sets_are_compared_with_aten_and_with_what_the_host_would_pick(world: World) -> None:
    evaluation = world.trained.held_out.evaluation
    against = evaluation.against()
    timed = [i for i, sweep in enumerate(world.corpus.sweeps) if sweep.extra["aten_us"] is not None]
    assert against["dense"]["aten"]["kernels"] == len(timed) < len(world.corpus.sweeps)
    assert against["dense"]["aten"]["geomean"] == pytest.approx(1.05)
    host = [
        min(world.corpus.sweeps[i].extra["aten_us"] / world.corpus.sweeps[i].best_us, slowdown)
        for i, slowdown in enumerate(evaluation.slowdown("host_default"))
        if i in timed
    ]
    assert against["dense"]["host"]["geomean"] == pytest.approx(np.exp(np.log(host).mean()))
    # The host's list is in the union, and ATen beside it: never behind what the host picks.
    assert against["host_default"]["host"]["geomean"] == pytest.approx(1)
    assert against["union@8"]["host"]["slower"] == 0
    assert "against" in world.trained.manifest.metrics["held_out"]
    metrics = evaluation_metrics(evaluation, "model@8")
    assert metrics["union_at_8/against_host/geomean"] == against["union@8"]["host"]["geomean"]
    assert evaluate(read_corpus(CORPUS_PATH).subset([0, 1]), H200, None).against() == {}


def test_the_card_and_the_columns_speak_of_products(world: World) -> None:
    card = world.trained.card
    for words in (
        "# matmul ranker for h200",
        "MatmulSelector",
        "waves of 128 x 128 blocks",
        "aten: ATen's fastest way",
    ):
        assert words in card
    assert "reduction" not in card and "rnumel" not in card
    column = column_of_manifest("m", world.trained.manifest)
    assert set(column.regime_kernels) <= set(REGIMES["matmul"])
    assert default_config(H200, "matmul").calls == ()


def test_a_corpus_or_champion_of_another_family_is_refused_by_the_gate(world: World) -> None:
    challenger = read_contender(world.model)
    with pytest.raises(InvalidInput, match=r"corpus: .*of reduction"):
        decide(challenger, None, [CORPUS_PATH])
    champion = read_contender(CORPUS_PATH.parents[1] / "models" / "reduction-h200")
    with pytest.raises(InvalidInput, match=r"champion: .*for reduction"):
        decide(challenger, champion, [world.path])


def test_the_commands_work_on_a_corpus_of_products(
    world: World, tmp_path: Path, blank_database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mlflow.db").write_bytes(blank_database.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tileguard.models.ROOT", tmp_path / "shipped")  # a first champion has no rival
    few = tmp_path / "few.parquet"
    write_corpus(simulated_rows(kernels=12, tiles=30), few)

    def run(*arguments: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert (ended.value.code or 0) == code, said.err + said.out
        return said.err if code else said.out

    options = ("--store", "store", "--json")
    trained = json.loads(run("train", few, "--out", "out", "--rounds", 3, "--folds", 2, *options))
    assert {path.name for path in Path("out/figures").iterdir()} == {"importances.png", "top_k_curve.png"}
    assert "against" in trained["held_out"]
    judged = json.loads(run("evaluate", few, "--model", "out/model", "--top-k", 8, "--json"))
    assert judged["superset_violations"] == 0
    assert judged["trained_on"] == ["few.parquet"]
    assert "against host" in run("evaluate", few, "--model", "none")
    promoted = json.loads(
        run("promote", "out/model", few, "--into", "models/matmul-h200", "--latency-budget-us", 1e9, *options)
    )
    assert promoted["promoted"] and "matmul-h200 version 1" in promoted["recorded"]
    assert "matmul on h200" in _model(Path("models/matmul-h200"))
    assert "corpus" in run("fit-formula", few, "--out", "formula", code=2)
    assert "wrong_family" in run("evaluate", CORPUS_PATH, "--model", "out/model", code=2)
    monkeypatch.setenv("TILEGUARD_MODELS", "models")
    text = run("compare", "champion", world.model, few)
    assert "waves of 128 x 128 blocks" in text
    assert "batch × m × n × k" in " ".join(text.split())
    assert MatmulSelector(H200).select(world.corpus.sweeps[0].kernel).verdict.reason is Reason.TRUST  # type: ignore[arg-type]


def test_trees_set_out_from_a_prior(world: World) -> None:
    """With next to no rounds, tiles stand in the order of the predicted time, in steps; exported as any other tree."""
    name = "log2_predicted_over_roofline"
    shy = TrainConfig(rounds=1, learning_rate=1e-9, num_leaves=2, min_data_in_leaf=10, folds=2, prior=name)
    matrices = design_matrix(world.corpus, H200, range(len(world.corpus.sweeps)))
    with_prior, without = (
        fit_rows(world.corpus.sweeps, matrices, H200, config, family="matmul")
        for config in (replace(shy, prior_weight=3.0), replace(shy, without=(name,)))
    )
    assert (with_prior.num_trees(), without.num_trees()) == (2, 1)
    column = MATMUL_SCHEMA.names.index(name)
    for matrix in matrices[:5]:
        scores, wanted = with_prior.predict(matrix, num_threads=1), -3.0 * matrix[:, column]
        assert np.abs((scores - scores.mean()) - (wanted - wanted.mean())).max() < 3.0 * 0.05
        assert np.ptp(without.predict(matrix, num_threads=1)) < 1e-6
    assert_parity(with_prior, np.vstack(matrices), n=200)
    with pytest.raises(InvalidInput, match="prior"):
        TrainConfig(prior="predicted")
    with pytest.raises(InvalidInput, match="prior_weight"):
        TrainConfig(prior_weight=float("nan"))
    with pytest.raises(InvalidInput, match="prior"):  # a reduction's
        fit_rows(world.corpus.sweeps, matrices, H200, replace(shy, prior="log2_rnumel"), family="matmul")
