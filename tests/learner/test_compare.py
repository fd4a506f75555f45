"""Side by side: every kind of run under the same names, and what is judged, recorded or carried in one table."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.learner.trainings import NAME, Tracked
from tests.support import CORPUS_PATH

from tileguard.__main__ import main
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.learner.compare import Column, column_of_evaluation, column_of_run, comparable
from tileguard.learner.evaluate import evaluate, tiers
from tileguard.learner.runs import find_run, list_runs, run_curve
from tileguard.learner.tables import side_tables
from tileguard.learner.tracking import TrainingRecord, judged_of, log_evaluation


@pytest.fixture(scope="module")
def kinds(tracked: Tracked, h200: HardwareSpec) -> dict[str, str]:
    """Run ids of one run of each kind in the store of `tracked`."""
    record, store = tracked.record, tracked.store
    formula = evaluate(record.evaluation.corpus, h200, None, ks=())
    ids = {"training": tracked.second.run_id}
    ids["ablation"] = log_evaluation(
        store, kind="ablation", name="without roofline", evaluation=record.evaluation, curve=record.curve,
        params={"features": 40, "dropped": {"group": "roofline"}}, folds=record.folds, seconds=3.5,
        tags={"tileguard.ablation": "features"}, metrics={"extra/bytes": 7},
    )  # fmt: skip
    ids["formula"] = log_evaluation(
        store, kind="formula", name="fitted", evaluation=formula, artifacts={"report/fit.md": "# R²\n"},
        curve={4: formula.slowdown("formula"), 20: formula.slowdown("formula")}, params={"p": [1, 2]},
    )  # fmt: skip
    ids["evaluation"] = log_evaluation(store, kind="evaluation", name="again", evaluation=record.evaluation)
    return ids


def row_of(tracked: Tracked, run_id: str) -> dict[str, Any]:
    return find_run(list_runs(tracked.store), run_id)


def test_every_kind_is_recorded_under_the_same_names(tracked: Tracked, kinds: dict[str, str]) -> None:
    metrics = {kind: set(row_of(tracked, run_id)["metrics"]) for kind, run_id in kinds.items()}
    assert metrics["ablation"] - {"extra/bytes"} == metrics["training"]
    assert metrics["evaluation"] == {
        name for name in metrics["training"] if not name.startswith(("curve/", "train_seconds"))
    }
    beyond = metrics["formula"] - metrics["training"]
    assert not beyond
    assert {name for name in metrics["training"] - metrics["formula"] if name.startswith("judged/")} == {
        "judged/loses_to_formula", "judged/loses_to_host_default"
    }  # fmt: skip
    assert {"curve/lossless", "curve/severe", "regime/mid", "kernels"} <= metrics["formula"]


def test_one_experiment_holds_all_kinds_so_that_the_page_compares_them(tracked: Tracked, kinds: dict[str, str]) -> None:
    rows = [row_of(tracked, run_id) for run_id in kinds.values()]
    assert {row["experiment"] for row in rows} == {NAME}
    assert [row["kind"] for row in rows] == list(kinds)
    assert [row["parameters"]["judged"] for row in rows] == ["model@8", "model@8", "formula", "model@8"]
    assert {row["parameters"]["hardware"] for row in rows} == {"h200"}
    for row in rows:
        group = row["judged"].replace("@", "_at_")
        for measure in ("lossless", "severe", "set_mean", "mid/geomean", "snap2/hit"):
            assert row["metrics"][f"judged/{measure}"] == row["metrics"][f"{group}/{measure}"]


def test_parameters_artifacts_tags_and_folds_of_any_kind_are_kept(
    tracked: Tracked, kinds: dict[str, str], client: Any, tmp_path: Path
) -> None:
    run = client.get_run(kinds["ablation"])
    assert run.data.params["dropped/group"] == "roofline"
    assert run.data.tags["tileguard.ablation"] == "features"
    assert (run.data.metrics["train_seconds"], run.data.metrics["extra/bytes"]) == (3.5, 7)
    assert run.inputs.dataset_inputs[0].dataset.name == CORPUS_PATH.name
    folds = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{kinds['ablation']}'")
    assert len(folds) == len(tracked.record.folds)
    report = client.download_artifacts(kinds["formula"], "report/fit.md", str(tmp_path))
    assert Path(report).read_text() == "# R²\n"


def test_what_would_be_recorded_wrongly_is_refused_before_it_is(tracked: Tracked, record: TrainingRecord) -> None:
    before = len(list_runs(tracked.store))
    for field, wrong in (
        ("kind", {"kind": "guess"}),
        ("judged", {"judged": "model@3"}),
        ("name", {"experiment": "a/b"}),
    ):
        options: dict[str, Any] = {"kind": "ablation", **wrong}
        with pytest.raises(InvalidInput, match=rf"^{field}: "):
            log_evaluation(tracked.store, name="x", evaluation=record.evaluation, **options)
    assert len(list_runs(tracked.store)) == before


def test_a_run_reads_back_as_what_was_recorded(tracked: Tracked, kinds: dict[str, str], record: TrainingRecord) -> None:
    run_id = kinds["ablation"]
    recorded = column_of_run(row_of(tracked, run_id), run_curve(tracked.store, run_id))
    judged = column_of_evaluation("it", "judged", "h200", record.evaluation, record.curve)
    assert {name: recorded.measures[name] for name in judged.measures} == judged.measures
    assert recorded.curve == judged.curve and recorded.regime_kernels == judged.regime_kernels
    assert recorded.totals == judged.totals and recorded.judged == judged.judged == judged_of(record.evaluation)
    assert recorded.curve[4]["lossless"] == tiers(record.curve[4])["lossless"]
    assert comparable([recorded, judged])
    assert not comparable([recorded, replace(judged, corpora={"other": "0"})])


def test_an_empty_set_comes_back_infinite(tracked: Tracked, record: TrainingRecord) -> None:
    sets = {**record.evaluation.sets, "formula": tuple(() for _ in record.evaluation.corpus.sweeps)}
    evaluation = replace(record.evaluation, sets=sets)
    run_id = log_evaluation(
        tracked.store, kind="formula", name="empty", evaluation=evaluation, judged="formula", experiment="empty",
        curve={1: evaluation.slowdown("formula")},
    )  # fmt: skip
    column = column_of_run(row_of(tracked, run_id), run_curve(tracked.store, run_id))
    assert column.value("formula", "worst") == np.inf
    assert column.value("formula", "severe") == 1.0


def test_a_runs_beginning_stands_for_it_where_it_is_one(tracked: Tracked, kinds: dict[str, str]) -> None:
    rows = list_runs(tracked.store)
    assert find_run(rows, kinds["formula"][:8])["run_id"] == kinds["formula"]
    for wrong in ("", kinds["formula"][:3], "zzzz"):
        with pytest.raises(InvalidInput, match=r"^run: "):
            find_run(rows, wrong)
    twins = [{"run_id": "abcdef1"}, {"run_id": "abcdef2"}]
    with pytest.raises(InvalidInput, match="more of the id, which fits abcdef1, abcdef2"):
        find_run(twins, "abcdef")


@pytest.mark.parametrize("width", [40, 80, 160])
def test_figures_of_many_columns_stay_whole_at_any_width(record: TrainingRecord, width: int) -> None:
    column = column_of_evaluation("a/long/name" * 4, "judged", "h200", record.evaluation, record.curve)
    console = Console(file=(text := io.StringIO()), width=width, highlight=False)
    for table in side_tables([column] * 7, 8, width=width):
        console.print(table)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text.getvalue()
    worst = f"{column.value('model@8', 'worst'):.3f}"
    assert text.getvalue().count(worst) >= 7


# The commands.


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return (int(ended.value.code or 0), *capfd.readouterr())


def test_runs_are_listed_with_their_kinds(
    tracked: Tracked, kinds: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    store = tracked.directory / "store"
    code, out, err = run(capfd, "runs", "--store", store, "--json")
    listed = json.loads(out)["runs"]
    assert (code, err) == (0, "")
    assert {kinds[kind] for kind in kinds} <= {row["run_id"] for row in listed}
    assert [row["started"] for row in listed] == sorted((row["started"] for row in listed), reverse=True)
    code, out, err = run(capfd, "runs", "--store", store, "--kind", "ablation")
    assert (code, err) == (0, "")
    assert kinds["ablation"][:8] in out and kinds["formula"][:8] not in out
    assert run(capfd, "runs", "--store", store, "--kind", "guess")[0] == 2


def test_runs_and_a_models_folder_stand_side_by_side(
    tracked: Tracked, kinds: dict[str, str], model_dir: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tracked.directory / "store"
    code, out, err = run(
        capfd, "compare", model_dir, f"run:{kinds['training'][:10]}", f"run:{kinds['formula']}", CORPUS_PATH,
        "--store", store, "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    judged, training, formula = json.loads(out)["columns"]
    assert [column["set"] for column in (judged, training, formula)] == ["model@8", "model@8", "formula"]
    assert judged["kernels"] == 166 and training["kernels"] < 166
    assert set(judged["measures"]["model@8"]) == set(training["measures"]["model@8"])
    assert {column["hardware"] for column in (judged, training, formula)} == {"h200"}
    assert "8" in judged["curve"] and "20" in formula["curve"]
    code, out, err = run(capfd, "compare", "runs", "--store", store, "--most", "3")
    assert (code, err) == (0, "")
    for words in ("device", "h200", "by regime", "k = 4", "formula"):
        assert words in out
    assert kinds["evaluation"][:8] in out
    for wrong in (
        ("compare", model_dir),
        ("compare", "run:zzzzzz", "runs"),
        ("compare", f"run:{kinds['formula']}", CORPUS_PATH),
    ):
        code, out, err = run(capfd, *wrong, "--store", store)
        assert (code, out, err.count("\n")) == (2, "", 1), err


def test_a_judged_model_is_recorded_when_told_to(
    tracked: Tracked, own_model: Path, model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tracked.directory / "store"
    code, out, err = run(capfd, "compare", own_model, model_dir, CORPUS_PATH, "--store", store, "--record", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"a", "b", "selectors", "differences", "trained_on", "columns"} <= set(found)
    newest, before = list_runs(tracked.store, ("evaluation",))[:2]
    by_model = {row["parameters"]["model"]: row for row in (newest, before)}
    assert set(by_model) == {str(own_model), str(model_dir)}
    for side, name in (("a", str(own_model)), ("b", str(model_dir))):
        expected = found["selectors"]["model@8"][side]["lossless"]
        assert by_model[name]["metrics"]["model_at_8/lossless"] == expected
    trained = set(list_runs(tracked.store, ("training",))[0]["metrics"])
    missing = trained - set(newest["metrics"])
    assert {name.partition("/")[0] for name in missing} <= {"verdict", "train_seconds"}
    assert run(capfd, "compare", "runs", "--store", store, "--record")[0] == 2


def test_a_column_knows_the_set_that_it_is_about() -> None:
    column = Column("x", "formula", "h200", {}, "formula", {"formula": {"lossless": 0.5}}, {}, {}, {})
    assert column.selector(8) == "formula"
    assert column.value("model@8", "lossless") is None
