"""Matmuls go the same way as reductions, from a problem to a corpus, on a GPU that is not there."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import ROOT, corpus_row

from tileguard.features.errors import InvalidInput
from tileguard.features.tiles import MatmulTile
from tileguard.learner.corpus import matmul_sweeps, read_corpora, read_corpus, read_rows, write_corpus
from tileguard.learner.corpus_info import corpus_facts, corpus_table
from tileguard.learner.corpus_schema import CorpusError
from tileguard.learner.inductor.collect import FAMILIES, Settings, repeated
from tileguard.learner.inductor.kinds import KINDS, check_same_kind
from tileguard.learner.inductor.raw_sweep import read_lines
from tileguard.learner.inductor.timing import ROUNDS, SHORT_ROUNDS
from tileguard.learner.sweep_import import read_sweep

HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("triton") is not None
pytestmark = pytest.mark.skipif(not HAS_TORCH, reason="torch and triton")

HOST = [sys.executable, "-m", "tests.learner.inductor.collector", "--family", "matmul", "--processes", "2"]
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "TINY_PROBLEMS": "1",
}  # fmt: skip


def collect(*arguments: object) -> str:
    done = subprocess.run(
        [*HOST, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("matmul") / "s.jsonl.xz"
    said = collect("--out", out, "--tiles", "8")
    assert "3 kernels swept, 0 known before, 0 left" in said
    assert ", 0 failed" in said
    return out


def records(path: Path) -> dict[str, dict[str, Any]]:
    return {record["op"]: record for record in read_lines(path)}


def test_every_operation_is_swept_with_aten_beside(sweep: Path) -> None:
    found = records(sweep)
    assert set(found) == {"mm", "bmm", "addmm"}
    assert set(found["addmm"]["references"]) == {"aten::addmm", "aten::bias_addmm"}
    for op, record in found.items():
        assert f"aten::{op}" in record["references"]
        assert all(row["us"] > 0 and row["reps"] in (ROUNDS, SHORT_ROUNDS) for row in record["references"].values())
        host = [row for row in record["rows"] if row["by"].startswith("host")]
        assert record["rows"][: len(host)] == host
        assert len(host) == len(record["baselines"]["default"])
        assert all(row["us"] > 0 and row["regs"] > 0 and row["compile_ms"] > 1 for row in record["rows"])
        assert (record["hardware"], record["heuristic"], record["tiles"]) == ("h200", "TEMPLATE", 8)


def test_a_finished_sweep_is_not_measured_again(sweep: Path) -> None:
    assert "0 kernels swept, 3 known before, 0 left" in collect("--out", sweep, "--tiles", "8")


def test_a_repetition_measures_the_same_tiles(sweep: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.parquet"
    assert f"{again}: corpus written" in collect("--repeat", sweep, "--out", again, "--count", "1")
    (record,) = read_lines(tmp_path / "again.jsonl.xz")
    before = records(sweep)[record["op"]]
    same = ("BM", "BN", "BK", "w", "st", "g", "by")
    assert [[row[name] for name in same] for row in record["rows"]] == [
        [row[name] for name in same] for row in before["rows"]
    ]
    assert len(read_corpus(again).sweeps) == 1


def test_a_sweep_of_another_family_is_not_gone_on_with(sweep: Path) -> None:
    for family, allowed in (("matmul", True), ("reduction", False)):
        with contextlib.nullcontext() if allowed else pytest.raises(InvalidInput, match="same family"):
            check_same_kind(list(read_lines(sweep)), KINDS[family], sweep)
        with contextlib.nullcontext() if allowed else pytest.raises(InvalidInput, match="same family"):
            assert len(repeated(sweep, family)) == 3


def test_a_sweep_becomes_a_corpus_of_its_own_kind(sweep: Path, tmp_path: Path) -> None:
    rows = read_sweep(sweep, hardware="h200")
    path = tmp_path / "c.parquet"
    write_corpus(rows, path, metadata={"toolchain": "t"})
    assert read_rows(path) == (rows, {"toolchain": "t"})
    corpus, raw = read_corpus(path), read_corpus(sweep, hardware="h200")
    assert corpus.schema.family == "matmul"
    assert corpus.digest == raw.digest == corpus.subset(range(3)).digest
    for one in matmul_sweeps(corpus):
        record = records(sweep)[one.extra["op"]]
        assert (one.kernel.m, one.kernel.k, one.kernel.dtype) == (record["m"], record["k"], record["dtype"])
        assert one.extra["aten_us"] == min(row["us"] for row in record["references"].values())
        assert one.extra["allow_tf32"] == record["allow_tf32"] == (one.extra["op"] == "addmm")
        default = [list(one.tiles[i].sort_key) for i in one.host_default]
        assert default == record["baselines"]["default"]
        listed = record["baselines"]["max_autotune"]
        ranked = [listed.index(list(one.tiles[i].sort_key)) for i in one.host_max_autotune]
        assert ranked == sorted(ranked)
        assert one.source is not None
        assert "BLOCK_M : tl.constexpr" in one.source
        assert all(isinstance(tile, MatmulTile) for tile in one.tiles)
    (facts,) = corpus_facts([path], hardware=None)
    assert facts["ops"] == {"addmm": 1, "bmm": 1, "mm": 1}
    assert "regimes" not in facts
    assert corpus_table(facts).row_count > 5


def test_tiles_of_the_hosts_list_that_were_not_measured_are_rows(sweep: Path, tmp_path: Path) -> None:
    record = records(sweep)["mm"]
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text(json.dumps(record | {"rows": record["rows"][1:], "references": {}}) + "\n")
    (one,) = matmul_sweeps(read_corpus(fewer, hardware="h200"))
    assert len(one.tiles) == len(record["rows"])
    assert list(one.tiles[one.host_default[0]].sort_key) == record["baselines"]["default"][0]
    assert one.host_default[0] not in one.measured
    assert one.extra["aten_us"] is None


def test_families_do_not_mix(sweep: Path, tmp_path: Path) -> None:
    reductions, matmuls = tmp_path / "r.parquet", tmp_path / "m.parquet"
    write_corpus([corpus_row()], reductions)
    write_corpus(read_sweep(sweep, hardware="h200"), matmuls)
    with pytest.raises(CorpusError, match="reduction, as"):
        read_corpora([reductions, matmuls])
    with pytest.raises(CorpusError, match="matmul"):
        matmul_sweeps(read_corpus(reductions))
    with pytest.raises(CorpusError, match="op"):
        write_corpus([*read_sweep(sweep, hardware="h200"), corpus_row()], tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("change", "column"),
    [({"even_k": None}, "even_k"), ({"op": "mv"}, "op"), ({"aten_us": -1.0}, "aten_us"), ({"m": 0}, "m"),
     ({"block_k": 7}, "even_k"), ({"allow_tf32": False, "dtype": "tf32"}, "allow_tf32"), ({"group_m": 0}, "group_m")],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_column(sweep: Path, tmp_path: Path, change: dict[str, Any], column: str) -> None:
    row = read_sweep(sweep, hardware="h200")[0]
    row |= {"even_k": True, "k": 32, "block_k": 16} | change
    with pytest.raises(CorpusError) as error:
        write_corpus([row], tmp_path / "x.parquet")
    assert error.value.field == column


def test_a_raw_line_without_a_key_is_refused(sweep: Path, tmp_path: Path) -> None:
    record = records(sweep)["bmm"]
    del record["batch"]
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(CorpusError, match="batch"):
        read_sweep(path, hardware="h200")


def test_the_family_is_named_and_matmuls_take_no_file(tmp_path: Path) -> None:
    assert tuple(KINDS) == FAMILIES
    for changes, field in (
        ({"family": "conv"}, "family"),
        ({"family": "matmul", "workloads": Path("w.py")}, "workloads"),
    ):
        with pytest.raises(InvalidInput) as error:
            Settings(tmp_path / "o.jsonl", **changes)
        assert error.value.field == field
