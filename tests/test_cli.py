"""The command line: bad input is one line and exit 2; `--json` is one valid object; every command does its job."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from rich.table import Table
from tests.support import CORPUS_PATH, ROOT, corpus_row, python

from tileguard import __version__
from tileguard.__main__ import main
from tileguard.features.hardware import known_hardware
from tileguard.learner import demo
from tileguard.learner.cli import trained_on
from tileguard.learner.corpus import read_corpus, read_rows, write_corpus
from tileguard.learner.corpus_schema import CORPUS_SCHEMA
from tileguard.learner.evaluate import by_regime, evaluate
from tileguard.learner.tables import compare_tables, selector_table
from tileguard.learner.workloads import cpu_workload
from tileguard.runtime import cli, tune_cli
from tileguard.runtime.devices.cpu import CpuDevice
from tileguard.runtime.doctor import Finding
from tileguard.runtime.hooks.report import KernelRecord, Log, MatmulRecord, MatmulTileRecord, TileRecord
from tileguard.runtime.objective import AmortisedTime, RunTime
from tileguard.runtime.selector import Selector, load_champion
from tileguard.runtime.tuner import tune

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
        (("evaluate", CORPUS_PATH, "--top-k", "²"), "top-k"),
        (("evaluate", CORPUS_PATH, "--top-k", "9" * 5000), "top-k"),
        (("evaluate", CORPUS_PATH, "--top-k", "0"), "top-k"),
        (("compare", "champion", "champion", CORPUS_PATH, "--top-k", 10**7), "top-k"),
        (("evaluate", CORPUS_PATH, "--model", "nowhere"), "no_model"),
        (("compare", "champion", "nowhere", CORPUS_PATH), "nowhere"),
        (("corpus", "import", "nowhere.jsonl", "out.parquet", "--hardware", "h200"), "source"),
        (("corpus", "import", CORPUS_PATH, "out.csv", "--hardware", "h200"), "out"),
        (("collect", "--out", "c.csv", "--count", 1), "out"),
        (("collect", "--out", "/dev/null/c.parquet", "--count", 1), "/dev/null"),
        (("collect", "--out", CORPUS_PATH / "c.parquet", "--count", 1), "out"),
        (("train", CORPUS_PATH, "--out", CORPUS_PATH), "out"),
        (("train", CORPUS_PATH, "--out", CORPUS_PATH / "models"), "out"),
        (("demo", "--out", CORPUS_PATH), "out"),
        (("evaluate", "a" * 5000 + ".parquet"), "File name too long"),
        (("evaluate", CORPUS_PATH, "--model", "a" * 5000), "File name too long"),
        (("report", "nowhere.jsonl"), "nowhere.jsonl"),
        (("report", CORPUS_PATH.parent), "Is a directory"),
        (("report", CORPUS_PATH), "line 1"),
        (("report", "/dev/null", "--top", 0), "top"),
        (("report", "/dev/null", "--sort", "mood"), "sort"),
        (("report",), "log"),
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


def test_what_a_model_was_trained_on_is_known_by_content() -> None:
    champion = load_champion(known_hardware("h200"))
    for path, known in ((demo.H200_CORPUS, [demo.H200_CORPUS.name]), (CORPUS_PATH, [])):
        assert trained_on(champion, read_corpus(path)) == known


def test_train_leaves_a_model_that_evaluate_and_compare_take(run: Run, small_corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "mlflow"
    for name, rounds in (("a", 5), ("b", 20)):
        code, text, err = run(
            "train",
            small_corpus,
            "--out",
            tmp_path / name,
            "--store",
            store,
            "--rounds",
            rounds,
            "--folds",
            2,
            "--json",
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


def kernel_record(**changes: Any) -> KernelRecord:
    """A tuned kernel of a host compiler, and a tile that only the model proposed."""
    tiles = (
        TileRecord(1, 1024, 8, 1, ("host",), "ok", 100.0, 12.0, 0.1, 15),
        TileRecord(4, 256, 8, 2, ("model",), "ok", 100.0, 8.0, 0.1, 25),
    )
    facts: dict[str, Any] = {
        "kernel": "triton_red_fused_0", "source": "0" * 16, "outcome": "tuned", "xnumel": 2048, "rnumel": 768,
        "dtype": "fp32", "verdict": "trust", "tiles": tiles, "winner": 1, "host_us": 12.0, "winner_us": 8.0,
    }  # fmt: skip
    return KernelRecord(**facts | changes)


def test_report_prints_a_log_as_a_table_and_the_same_facts_as_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path)
    log.add(kernel_record())
    log.add(kernel_record(kernel=f"{MARKUP}kernel", winner=0, winner_us=12.0, verdict=MARKUP))
    log.add(KernelRecord(kernel="scan", source="1" * 16, outcome="untouched", reason=f"{MARKUP}reason"))
    log.count_untouched("pointwise")
    code, out, err = run("report", path)
    assert (code, err) == (0, "")
    for text in (
        "X4·R256·w8·s2",
        "1.50×",
        f"{MARKUP}kernel",
        f"{MARKUP}reason 1",
        "pointwise 1",
        "by the model alone 1",
    ):
        assert text in out
    assert "scan" not in out
    code, out, _ = run("report", path, "--top", 1)
    assert "1 of 2 kernels by gain" in out
    assert "kernel" in out and f"{MARKUP}kernel" not in out.split("worst gain")[0]
    code, text, _ = run("report", path, "--json")
    found = json.loads(text)
    assert code == 0
    assert found == {**json.loads(json.dumps(log.report().to_dict())), "version": 1}
    assert found["totals"]["kernels"] == {"tuned": 2, "cached": 0, "untouched": 2, "failed": 0}
    assert found["records"][0]["gain"] == 1.5
    for documented in {*found, *found["totals"], *found["records"][0], *found["records"][0]["tiles"][0]}:
        assert f'"{documented}"' in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    code, text, _ = run("report", path, "--json", "--sort", "name", "--top", 1)
    (first,) = json.loads(text)["records"]
    assert first["kernel"] == f"{MARKUP}kernel"
    assert json.loads(text)["totals"] == found["totals"]


def test_report_shows_matrix_products_beside_reductions(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path)
    log.add(kernel_record())
    aten = MatmulTileRecord(f"aten::{MARKUP}", None, None, None, None, None, None, ("host",), "ok", 20.0, 0.1, 20)
    facts: dict[str, Any] = {"op": "mm", "batch": 1, "m": 512, "n": 1024, "k": 256, "dtype": "bf16", "outcome": "tuned"}
    log.add(MatmulRecord(**facts, tiles=(aten,), winner=0, host_us=20.0, winner_us=20.0))
    code, out, err = run("report", path)
    assert (code, err) == (0, "")
    for text in ("mm 512×1024×256", f"aten::{MARKUP}", "X4·R256·w8·s2", "1 of these are matrix products"):
        assert text in out
    code, text, _ = run("report", path, "--json", "--sort", "name")
    found = json.loads(text)
    assert found["totals"]["products"] == 1
    assert found["records"][0] == json.loads(json.dumps(log.report().records[1].to_dict()))
    for documented in {*found["records"][0], *found["records"][0]["tiles"][0]}:
        assert f'"{documented}"' in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_report_says_what_it_skipped_and_that_nothing_happened(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"version": 1, "ev')
    code, out, err = run("report", path)
    assert (code, err) == (0, "")
    assert "line 1 breaks off" in out
    assert "0 tuned" in out


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


@pytest.mark.parametrize("path", ["file/c.parquet", "folder.parquet"])
def test_corpus_import_needs_a_place_for_its_file(
    run: Run, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder.parquet").mkdir()
    Path("sweep.jsonl").touch()
    code, out, err = run("corpus", "import", "sweep.jsonl", path, "--hardware", "h200")
    assert (code, out) == (2, "")
    assert err.startswith("tileguard: out: ")
    assert err.count("\n") == 1


def test_train_keeps_its_hands_off_a_file_in_the_place_of_the_figures(run: Run, tmp_path: Path) -> None:
    (tmp_path / "figures").touch()
    code, _, err = run("train", CORPUS_PATH, "--out", tmp_path, "--store", tmp_path / "mlflow")
    assert code == 2
    assert "figures" in err
    assert not (tmp_path / "mlflow").exists()


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError("odd"), PermissionError(13, "no", "f")]
)
def test_an_unusable_file_is_no_defect(run: Run, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "diagnose", fail)
    code, out, err = run("doctor")
    assert (code, out) == (2, "")
    assert err.startswith("tileguard: ")
    assert "defect" not in err
    assert err.count("\n") == 1


MARKUP = "[/x][b]:b:"
"""Closes what was not opened, makes bold, and is an emoji."""


def test_markup_in_data_is_printed_as_it_stands(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("select", "--xnumel", 4, "--rnumel", 4, "--model", MARKUP)
    assert (code, err) == (0, "")
    assert MARKUP in out
    path = Path("[b]") / f"{MARKUP[1:]}.parquet"
    names = {"kernel_id": f"{MARKUP}id", "workload": f"{MARKUP}lab:1", "family": f"{MARKUP}fam"}
    write_corpus([corpus_row(**names, xblock=xblock) for xblock in (1, 2)], path)
    code, out, err = run("corpus", "validate", path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: valid")
    code, out, err = run("corpus", "info", path)
    assert (code, err) == (0, "")
    assert f"{MARKUP}fam 1" in out
    assert str(path) in out
    assert run("evaluate", path, "--model", "none")[0] == 0
    model = tmp_path / MARKUP.replace("/", "")
    model.symlink_to(ROOT / "models" / "reduction-h200")
    code, out, err = run("compare", "champion", model, path)
    assert (code, err) == (0, "")
    assert model.name in out
    code, out, err = run("evaluate", path, "--model", model)
    assert (code, err) == (0, "")
    assert model.name in out


def test_markup_in_the_name_of_a_finding_is_printed_as_it_stands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "diagnose", lambda: (Finding(MARKUP, MARKUP + "name", True, MARKUP + "detail"),))
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert MARKUP + "name" in out
    assert MARKUP + "detail" in out


@pytest.mark.parametrize("arguments", ["--help", "select --help", "select --xnumel 9 --rnumel 99", "doctor"])
def test_an_encoding_without_our_symbols_is_no_reason_to_fail(
    run: Run, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    code, _, err = run(*arguments.split())
    assert (code, err) == (0, "")
    assert stream.buffer.seek(0, io.SEEK_END) > 100


def test_without_a_command_the_help_is_printed_and_no_complaint(run: Run) -> None:
    for arguments in ((), ("corpus",)):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        assert "Usage: tileguard" in out
    out = run("--help")[1]
    for name, words in COMMANDS.items():
        assert f" {name} " in out
        assert words in out
    code, out, err = run("--version")
    assert (code, out, err) == (0, f"{__version__}\n", "")


COMMANDS = {
    "select": "The candidate set", "tune": "for real", "doctor": "What is installed", "corpus": "Dense measurements",
    "evaluate": "Judge every selector", "compare": "Two models or more", "train": "Train a ranker", "collect": "Sweep kernels",
    "demo": "shipped H200 corpus", "report": "What happened", "plan": "tail of a batched", "promote": "champion",
    "restore": "champion", "fit-formula": "formula", "runs": "recorded",
    "ab": "two candidates", "audit": "Recompute",
}  # fmt: skip


def test_an_interrupt_of_the_imports_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupts:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "tileguard.learner.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "tileguard.learner.cli")
    monkeypatch.setattr("sys.meta_path", [Interrupts(), *sys.meta_path])
    assert run("doctor") == (130, "", "tileguard: interrupted\n")


def test_standard_output_that_cannot_be_written_is_one_line_or_none() -> None:
    code = (
        "import json, subprocess, sys\n"
        "for arguments in ('select --xnumel 99 --rnumel 999', 'select --xnumel 99 --rnumel 999 --json', '--help',"
        " '--version'):\n"
        "    for end in ('>&-', '>/dev/full', '| true; exit ${PIPESTATUS[0]}', '2>&- >/dev/null'):\n"
        "        done = subprocess.run(['bash', '-c', f'{sys.executable} -m tileguard {arguments} {end}'],"
        " capture_output=True, text=True)\n"
        "        print(json.dumps([end[:4], done.returncode, done.stdout, done.stderr]))"
    )
    for line in python(code).splitlines():
        end, status, out, err = json.loads(line)
        assert out == ""
        if end in (">&-", ">/de"):
            assert status == 2
            assert err.startswith("tileguard: ")
            assert err.count("\n") == 1
        else:
            assert (status, err) == (141 if end == "| tr" else 0, "")


@pytest.mark.parametrize("width", [40, 80, 160])
def test_figures_stay_whole_on_a_narrow_terminal(width: int) -> None:
    corpus, spec = read_corpus(CORPUS_PATH), known_hardware("h200")
    evaluation = evaluate(corpus, spec, None, ks=[])
    name = "host_default"
    summary = evaluation.summary(name)
    table = selector_table(evaluation, title="t", width=width)
    text = shown(table, width)
    assert "…" not in text
    for figure in (f"{100 * summary['lossless']:.1f} %", f"{summary['worst']:.3f}", f"{summary['set_mean']:.1f}"):
        assert figure in text
    long = "/a/long/path" * 5
    for table in compare_tables(evaluation, evaluation, (long, long), name, width=width):
        text = shown(table, width)
        assert "…" not in text
    tiers, regimes, _ = compare_tables(evaluation, evaluation, (long, long), name, width=width)
    assert shown(tiers, width).count(f"{summary['worst']:.3f}") == 2
    for regime in by_regime(evaluation, name).values():
        assert shown(regimes, width).count(f"{100 * regime['lossless']:.1f} %") >= 2


def shown(table: Table, width: int) -> str:
    """A table as a terminal of that width shows it, no line longer."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    text = cast(io.StringIO, console.file).getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


def test_tuning_and_doctor_tables_stay_whole_on_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cpu_workload("sum", 16, 64, "fp32").kernel
    device = CpuDevice(rounds=3)
    try:
        result = tune(kernel, device, Selector(device.hardware, model=None))
    finally:
        device.close()
    for width in (40, 80):
        for objective in (RunTime(), AmortisedTime(100)):
            text = shown(tune_cli.tuning_table(result, objective, width=width), width)
            assert "…" not in text
            for candidate in result.candidates:
                assert candidate.timing is None or f" {tune_cli.three_digits(candidate.timing.us)} " in text
    monkeypatch.setattr(cli, "console", lambda: Console(width=40, highlight=False, emoji=False))
    code, out, _ = run("doctor")
    assert code == 0
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 40
