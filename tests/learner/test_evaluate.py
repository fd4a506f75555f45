"""The measures: by hand on small sweeps, and the relations that must hold on the shipped corpus."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import FakeRanker, corpus_row, corpus_rows, manifest_for, pseudo_scores

from tileguard.features.hardware import known_hardware
from tileguard.learner.corpus import Corpus, KernelSweep, read_corpus, write_corpus
from tileguard.learner.evaluate import (
    CURVE_K,
    Evaluation,
    Model,
    by_family,
    by_regime,
    curve,
    evaluate,
    hits,
    set_slowdown,
    snap,
    tiers,
)
from tileguard.learner.labels import LABEL_GAIN, relevance
from tileguard.runtime.guard import GuardPolicy
from tileguard.runtime.ranker import load_ranker
from tileguard.runtime.selector import Selector

H200 = known_hardware("h200")
PATIENT = GuardPolicy(score_budget_s=60.0)
KS = (1, 4, 8)


@pytest.fixture(scope="module")
def judged(corpus: Corpus, model_dir: Path) -> Evaluation:
    """The small model on every kernel of the corpus."""
    ranker = load_ranker(model_dir, H200)
    selectors = {k: Selector(H200, model=ranker, top_k=k, policy=PATIENT) for k in KS}
    model = Model(lambda i: ranker, lambda i, k: selectors[k], ranker.manifest.diversity)
    return evaluate(corpus, H200, model, ks=KS)


def corpus_of(tmp_path: Path, times: list[list[float]]) -> Corpus:
    write_corpus(corpus_rows(times), tmp_path / "c.parquet")
    return read_corpus(tmp_path / "c.parquet")


# Labels


@given(st.lists(st.floats(1.0, 100.0) | st.just(math.inf) | st.integers(1, 40).map(float), min_size=2, max_size=30))
def test_labels_never_rise_with_slowdown_and_every_one_has_a_gain(slowdowns: list[float]) -> None:
    grades = relevance(np.array(sorted(slowdowns)))
    assert (np.diff(grades) <= 0).all()
    assert grades.min() >= 0
    assert grades.max() < len(LABEL_GAIN)


def test_the_best_tile_has_the_best_grade_and_a_failed_one_none() -> None:
    assert relevance(np.array([1.0, math.inf])).tolist() == [len(LABEL_GAIN) - 1, 0]


def test_lossless_tiles_are_graded_above_slow_ones() -> None:
    grades = relevance(np.array([1.0, 1.05, 1.3, 2.0, 10.0])).tolist()
    assert sorted(set(grades), reverse=True) == grades


def test_a_better_grade_has_a_greater_gain() -> None:
    assert all(low < high for low, high in pairwise(LABEL_GAIN))


# Tiers and snap


@given(st.lists(st.floats(1.0, 5.0) | st.just(math.inf) | st.sampled_from([1.05, 1.10, 1.30]), min_size=1, max_size=50))
def test_tiers_share_out_every_kernel(slowdowns: list[float]) -> None:
    shares = tiers(np.array(slowdowns))
    assert set(shares) == {"lossless", "loss_5_10", "loss_10_30", "severe"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= 0


def test_an_edge_belongs_to_the_better_tier() -> None:
    shares = tiers(np.array([1.0, 1.05, 1.10, 1.30, math.inf]))
    assert shares == {"lossless": 0.4, "loss_5_10": 0.2, "loss_10_30": 0.2, "severe": 0.2}


def test_a_snap_needs_the_winner_itself_or_a_neighbour_within_a_factor_of_two_on_both_axes(tmp_path: Path) -> None:
    rows = [
        corpus_row(xblock=x, r0_block=r, us=us, us_min=us)
        for x, r, us in ((8, 64, 1.0), (16, 32, 1.5), (8, 256, 1.2), (32, 64, 1.2), (4, 128, 1.04))
    ]
    write_corpus(rows, tmp_path / "c.parquet")
    (sweep,) = read_corpus(tmp_path / "c.parquet").sweeps

    def hit(candidates: tuple[int, ...], factor: float) -> tuple[float, float]:
        found = snap(hits([sweep], [candidates], factor=factor), np.array([set_slowdown(sweep, candidates)]))
        return found["hit"], found["lossless"]

    assert hit((0,), 1.0) == hit((0,), 2.0) == (1.0, 1.0)
    assert hit((1,), 1.0) == (0.0, 0.0)
    assert hit((1,), 2.0) == (1.0, 1.0)
    assert hit((2, 3), 2.0) == (0.0, 0.0)
    assert hit((4,), 1.0) == (0.0, 1.0)
    assert hit((), 2.0) == (0.0, 0.0)


# Summaries


def test_a_summary_is_the_one_computed_by_hand(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[1.0, 2.0], [10.0, 10.4], [4.0, 2.0]])
    sets = {"first": ((0,), (0,), (0,)), "second": ((1,), (1,), (1,)), "both": ((0, 1),) * 3, "none": ((), (0,), (1,))}
    sizes = {name: tuple(len(one) + 1 for one in column) for name, column in sets.items()}
    found = Evaluation(corpus, sets, sizes, 0, {})
    assert found.slowdown("first").tolist() == [1.0, 1.0, 2.0]
    assert found.slowdown("second").tolist() == [2.0, 1.04, 1.0]
    summary = found.summary("second")
    assert summary["lossless"] == pytest.approx(2 / 3)
    assert summary["severe"] == pytest.approx(1 / 3)
    assert summary["geomean"] == pytest.approx((2.0 * 1.04) ** (1 / 3))
    assert summary["worst"] == summary["p95"] == 2.0
    assert summary["time_weighted"] == pytest.approx((2.0 + 10.4 + 2.0) / (1.0 + 10.0 + 2.0))
    assert (summary["n_pred_mean"], summary["snap1"]["hit"]) == (1.0, pytest.approx(1 / 3))
    assert found.summary("both")["geomean"] == 1.0
    assert found.summary("none")["worst"] == math.inf
    assert found.summary("second", [1])["worst"] == pytest.approx(1.04)
    assert found.loses("second", "first") == pytest.approx(2 / 3)
    assert found.loses("first", "first") == 0.0


def test_a_set_is_as_slow_as_its_best_tile(tmp_path: Path) -> None:
    (sweep,) = corpus_of(tmp_path, [[3.0, 2.0, 6.0]]).sweeps
    assert set_slowdown(sweep, (0, 2)) == 1.5
    assert set_slowdown(sweep, (2, 1)) == 1.0
    assert set_slowdown(sweep, ()) == math.inf


# On the shipped corpus


def test_snap_2_hits_wherever_snap_1_does_and_loses_nothing(judged: Evaluation) -> None:
    for name in judged.sets:
        summary = judged.summary(name)
        assert summary["snap2"]["hit"] >= summary["snap1"]["hit"], name
        assert summary["snap2"]["lossless"] >= summary["snap1"]["lossless"] >= summary["lossless"], name
        assert summary["snap2"]["severe"] <= summary["snap1"]["severe"] <= summary["severe"], name


def test_every_summary_shares_out_every_kernel(judged: Evaluation) -> None:
    for name in judged.sets:
        summary = judged.summary(name)
        for shares in (summary, summary["snap1"], summary["snap2"]):
            assert sum(shares[tier] for tier in ("lossless", "loss_5_10", "loss_10_30", "severe")) == pytest.approx(1.0)


@pytest.mark.parametrize("k", KS)
def test_a_union_is_never_worse_than_any_of_its_parts_on_any_kernel(judged: Evaluation, k: int) -> None:
    union = judged.slowdown(f"union@{k}")
    for part in (f"model@{k}", "formula", "host_default"):
        assert (union <= judged.slowdown(part)).all(), part
    for whole, model, formula, host in zip(
        *(judged.sets[name] for name in (f"union@{k}", f"model@{k}", "formula", "host_default")), strict=True
    ):
        assert set(whole) >= {*model, *formula, *host}
    assert judged.superset_violations == 0


def test_more_tiles_are_never_worse(judged: Evaluation) -> None:
    for name in ("model", "union"):
        for fewer, more in pairwise(KS):
            assert (judged.slowdown(f"{name}@{more}") <= judged.slowdown(f"{name}@{fewer}")).all()


def test_the_dense_set_is_perfect(judged: Evaluation) -> None:
    summary = judged.summary("dense")
    assert (summary["lossless"], summary["worst"], summary["time_weighted"], summary["snap1"]["hit"]) == (1, 1, 1, 1)


def test_every_verdict_is_counted(judged: Evaluation, corpus: Corpus) -> None:
    assert sum(judged.verdicts.values()) == len(KS) * len(corpus.sweeps)
    assert judged.verdicts["trust"] > 0


def test_the_json_holds_the_promised_keys_and_is_json(judged: Evaluation, corpus: Corpus) -> None:
    found = json.loads(json.dumps(judged.to_json()))
    assert found["kernels"] == len(corpus.sweeps)
    assert found["superset_violations"] == 0
    names = {"dense", "host_default", "host_max_autotune", "host_coordinate_descent", "formula", "formula_all_warps"}
    assert set(found["selectors"]) == names | {f"{kind}@{k}" for kind in ("model", "union") for k in KS}
    promised = {
        "lossless", "loss_5_10", "loss_10_30", "severe", "geomean", "p95", "worst", "time_weighted", "n_pred_mean",
        "n_pred_p95", "snap1", "snap2",
    }  # fmt: skip
    assert all(set(summary) >= promised for summary in found["selectors"].values())


def test_a_selector_that_drops_a_proposal_is_a_violation(corpus: Corpus) -> None:
    class Forgetful(Selector):
        def select(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            found = super().select(*args, **kwargs)  # type: ignore[arg-type]
            return type(found)(
                found.kernel, found.hardware, found.candidates[1:], found.verdict, found.times, found.top_k
            )

    part = corpus.subset(range(6))
    ranker = FakeRanker(manifest_for("h200"))
    whole, less = (
        Model(lambda i: ranker, lambda i, k, kind=kind: kind(H200, model=ranker, top_k=k, policy=PATIENT), 1.0)  # type: ignore[misc]
        for kind in (Selector, Forgetful)
    )
    assert evaluate(part, H200, whole, ks=(4,)).superset_violations == 0
    assert evaluate(part, H200, less, ks=(4,)).superset_violations == 6


def test_without_a_host_list_there_are_no_host_baselines(tmp_path: Path) -> None:
    found = evaluate(corpus_of(tmp_path, [[1.0, 2.0]]), H200, None)
    assert set(found.sets) == {"dense", "formula", "formula_all_warps"}


def test_the_curve_is_regret_at_k(corpus: Corpus) -> None:
    ranker = FakeRanker(manifest_for("h200"))
    part = corpus.subset(range(0, 160, 8))
    model = Model(lambda i: ranker, lambda i, k: Selector(H200, model=None), 0.0)
    found = curve(part, model)
    assert tuple(found) == CURVE_K
    for fewer, more in pairwise(CURVE_K):
        assert (found[more] <= found[fewer]).all()
    for k in (1, 8):
        expected = [best_of(sweep, pseudo_scores(sweep.tiles), k) for sweep in part.sweeps]
        assert found[k].tolist() == expected


def best_of(sweep: KernelSweep, scores: npt.NDArray[np.float64], k: int) -> float:
    return float(min(sweep.slowdown[i] for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]))


def test_groups_share_out_every_kernel(judged: Evaluation, corpus: Corpus) -> None:
    regimes, families = by_regime(judged, "union@8"), by_family(judged, "union@8")
    assert set(regimes) <= {"small", "mid", "hole"}
    assert set(families) == set(corpus.families)
    for groups in (regimes, families):
        assert sum(group["kernels"] for group in groups.values()) == len(corpus.sweeps)
        lossless = sum(group["kernels"] * group["lossless"] for group in groups.values())
        assert lossless / len(corpus.sweeps) == pytest.approx(judged.summary("union@8")["lossless"])
