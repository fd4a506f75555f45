"""The command line: bad input is one line and exit 2; `--json` is one valid object; every command does its job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tests.support import CORPUS_PATH, python

from tileguard.__main__ import main
from tileguard.learner import demo
from tileguard.learner.corpus import CORPUS_SCHEMA, read_corpus, read_rows, write_corpus
from tileguard.learner.workloads import cpu_workload
from tileguard.runtime.devices.cpu import CpuDevice

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit status, standard output, standard error) of one command."""

    def command(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return command


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few kernels of every family of the shipped corpus."""
    rows, metadata = read_rows(CORPUS_PATH)
    kept: dict[str, list[str]] = {}
    for row in rows:
        ids = kept.setdefault(row["family"], [])
        if row["kernel_id"] not in ids and len(ids) < 3:
            ids.append(row["kernel_id"])
    wanted = {name for ids in kept.values() for name in ids}
    path = tmp_path_factory.mktemp("corpus") / "small.parquet"
    write_corpus([row for row in rows if row["kernel_id"] in wanted], path, metadata=metadata)
    return path


def damaged(path: Path, change: Callable[[Any], Any], source: Path) -> Path:
    """`source` with its table changed behind the writer's back."""
    table = change(pq.read_table(source))
    pq.write_table(table.replace_schema_metadata(CORPUS_SCHEMA.metadata), path)
    return path


def with_nan_time(table: Any) -> Any:
    times = table.column("us").to_pylist()
    times[6] = float("nan")
    return table.set_column(table.schema.get_field_index("us"), "us", pa.array(times, pa.float64()))


def with_duplicate_row(table: Any) -> Any:
    return pa.concat_tables([table, table.slice(3, 1)])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("select", "--xnumel", 0, "--rnumel", 5), "xnumel"),
        (("select", "--xnumel", 5, "--rnumel", -3), "rnumel"),
        (("select", "--xnumel", 5, "--rnumel", 3, "--dtype", "fp33"), "dtype"),
        (("select", "--xnumel", 5, "--rnumel", 3, "--hardware", "h999"), "hardware"),
        (("select", "--xnumel", 5, "--rnumel", 3, "--top-k", 0), "top_k"),
        (("select", "--xnumel", "many", "--rnumel", 3), "--xnumel"),
        (("select", "--rnumel", 3), "xnumel"),
        (("tune", "--op", "median", "--xnumel", 5, "--rnumel", 3), "op"),
        (("tune", "--op", "sum", "--xnumel", 5, "--rnumel", 3, "--device", "tpu"), "device"),
        (("evaluate", "nowhere.parquet"), "corpus"),
        (("evaluate", CORPUS_PATH, "--hardware", "h999"), "hardware"),
        (("evaluate", CORPUS_PATH, "--hardware", "h100"), "hardware"),
        (("evaluate", CORPUS_PATH, "--top-k", "4,x"), "top-k"),
        (("evaluate", CORPUS_PATH, "--model", "nowhere"), "no_model"),
        (("compare", "champion", "nowhere", CORPUS_PATH), "nowhere"),
        (("corpus", "import", "nowhere.jsonl", "out.parquet", "--hardware", "h200"), "source"),
        (("corpus", "import", CORPUS_PATH, "out.csv", "--hardware", "h200"), "out"),
        (("collect", "--out", "c.csv", "--count", 1), "out"),
        (("frobnicate",), "frobnicate"),
    ],
)
def test_bad_input_is_one_line_that_names_the_field_and_exit_2(
    run: Run, arguments: tuple[object, ...], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tileguard: ")
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda table: table.drop_columns(["num_load"]), "column num_load"),
        (with_nan_time, "row 7, column us"),
        (with_duplicate_row, "column xblock"),
    ],
    ids=["missing column", "NaN time", "duplicate row"],
)
@pytest.mark.parametrize("command", ["corpus validate", "corpus info", "evaluate"])
def test_a_damaged_corpus_is_one_line_that_names_row_and_column(
    run: Run, command: str, change: Callable[[Any], Any], named: str, tmp_path: Path, small_corpus: Path
) -> None:
    path = damaged(tmp_path / "bad.parquet", change, small_corpus)
    code, out, err = run(*command.split(), path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err


def test_select_prints_a_table_and_the_same_facts_as_json(run: Run) -> None:
    arguments = ("select", "--xnumel", 2048, "--rnumel", 768, "--num-load", 6, "--num-reduction", 2)
    code, table, err = run(*arguments)
    assert (code, err) == (0, "")
    code, text, _ = run(*arguments, "--json")
    found = json.loads(text)
    assert code == 0
    assert found["verdict"]["reason"] == "trust"
    assert found["version"] == 1
    assert f"{len(found['candidates'])} candidates" in table
    assert found["calibration"]
    assert {"tile", "proposers", "score"} == set(found["candidates"][0])


def test_evaluate_json_has_every_selector_and_measure(run: Run, small_corpus: Path) -> None:
    code, text, _ = run("evaluate", small_corpus, "--top-k", "4,8", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["superset_violations"] == 0
    assert set(found["selectors"]) == {
        "dense", "host_default", "host_max_autotune", "host_coordinate_descent", "formula", "formula_all_warps",
        "model@4", "model@8", "union@4", "union@8",
    }  # fmt: skip
    for summary in found["selectors"].values():
        tiers = ("lossless", "loss_5_10", "loss_10_30", "severe")
        assert sum(summary[tier] for tier in tiers) == pytest.approx(1)
        assert {"geomean", "p95", "worst", "time_weighted", "n_pred_mean", "n_pred_p95", "snap1", "snap2"} <= set(
            summary
        )
    assert found["trained_on"] == []
    code, text, _ = run("evaluate", CORPUS_PATH, "--top-k", "8", "--json")
    assert json.loads(text)["trained_on"] == [CORPUS_PATH.name]


def test_train_leaves_a_model_that_evaluate_and_compare_take(run: Run, small_corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "mlflow"
    for name, rounds in (("a", 5), ("b", 20)):
        code, text, err = run(
            "train", small_corpus, "--out", tmp_path / name, "--store", store, "--rounds", rounds, "--json"
        )
        assert code == 0, err
        assert json.loads(text)["held_out"]["superset_violations"] == 0
        assert {path.name for path in (tmp_path / name / "model").iterdir()} == {
            "card.md", "manifest.json", "ranker.onnx",
        }  # fmt: skip
        assert len(list((tmp_path / name / "figures").glob("*.png"))) == 4
    models = (tmp_path / "a" / "model", tmp_path / "b" / "model")
    code, text, _ = run("compare", *models, small_corpus, "--json")
    compared = json.loads(text)
    assert code == 0
    assert compared["trained_on"] == {"a": ["small.parquet"], "b": ["small.parquet"]}
    assert compared["differences"]
    code, text, _ = run("compare", *models, small_corpus)
    assert "by regime" in text
    assert "differ most" in text


def test_corpus_import_info_and_validate_work_on_a_raw_sweep(run: Run, tmp_path: Path, small_corpus: Path) -> None:
    code, text, _ = run("corpus", "info", small_corpus, "--json")
    (facts,) = json.loads(text)["corpora"]
    assert code == 0
    assert facts["kernels"] == len(read_corpus(small_corpus).sweeps)
    code, text, _ = run("corpus", "validate", small_corpus)
    assert code == 0
    assert "valid" in text


def test_tune_compiles_times_and_remembers(run: Run, tmp_path: Path) -> None:
    arguments = ("tune", "--op", "sum", "--xnumel", 64, "--rnumel", 100, "--winners", tmp_path / "w.sqlite", "--json")
    code, text, err = run(*arguments)
    assert code == 0, err
    first = json.loads(text)
    assert first["from_store"] is False
    assert any(candidate["timing"] for candidate in first["candidates"])
    code, text, _ = run(*arguments)
    second = json.loads(text)
    assert second["from_store"] is True
    assert second["winner"]["tile"] == first["winner"]["tile"]


def test_collect_sweeps_a_workload_file_and_goes_on(run: Run, tmp_path: Path) -> None:
    workloads = tmp_path / "w.json"
    workloads.write_text(json.dumps([{"op": "sum", "xnumel": 8, "rnumel": 12, "dtype": "fp32", "inner": True}]))
    arguments = ("collect", "--workloads", workloads, "--out", tmp_path / "c.parquet")
    assert run(*arguments)[0] == 0
    code, text, _ = run(*arguments)
    assert code == 0
    assert "1 known" in text
    assert len(read_corpus(tmp_path / "c.parquet").sweeps) == 1


def test_doctor_names_libraries_devices_and_models(run: Run) -> None:
    code, text, _ = run("doctor", "--json")
    findings = json.loads(text)["findings"]
    assert code == 0
    assert {"reduction-h200", "cpu", "onnxruntime", "llvmlite"} <= {f["name"] for f in findings if f["ok"]}
    code, text, _ = run("doctor")
    assert "pip install 'tileguard[inductor]'" in text or "torch" in {f["name"] for f in findings if f["ok"]}


def test_the_demo_tunes_reductions_it_has_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = tuple(cpu_workload(op, x, r, "fp32") for op, x, r in (("sum", 8, 16), ("max", 16, 8), ("add_sum", 8, 8)))
    monkeypatch.setattr(demo, "TRAINED", trained)
    monkeypatch.setattr(demo, "TUNED", (cpu_workload("sum", 12, 20, "fp32"),))
    device = CpuDevice(rounds=3)
    console = Console(file=(tmp_path / "log").open("w"), width=160)
    try:
        (tuned,) = demo.tune_on_cpu(device, tmp_path, console)
        again = demo.tune_on_cpu(device, tmp_path, console)
    finally:
        device.close()
    assert not tuned.result.from_store
    assert again[0].result.from_store
    assert 0 < tuned.ratio < 20
    assert tuned.dense_tiles >= len(tuned.result.candidates) > 1


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    code = (
        "import subprocess, sys\n"
        "done = subprocess.run(sys.executable + ' -m tileguard select --xnumel 99 --rnumel 999 | head -1', shell=True,"
        " stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)\n"
        "print(done.returncode, done.stderr.decode())"
    )
    assert python(code).strip() == "0"
