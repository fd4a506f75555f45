"""Corpora: what is written is read again, and what is wrong is named by row and column."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import CORPUS_PATH, corpus_row, corpus_rows, failed_row

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import Corpus, content_digest, read_corpora, read_corpus, write_corpus
from tileguard.learner.corpus_schema import CORPUS_SCHEMA, LATER_FIELDS, CorpusError

Rows = list[dict[str, Any]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "corpus.parquet"


def raw_table(rows: Rows) -> Any:
    """Rows as a table that nothing has validated."""
    return pa.Table.from_pylist(rows, schema=CORPUS_SCHEMA)


# Round trip


def test_what_is_written_is_read_again(path: Path) -> None:
    rows = [
        corpus_row(xblock=1, us=3.0, host_default_rank=1, host_max_autotune_rank=0, n_regs=32, shared=1024),
        corpus_row(xblock=2, us=2.5, us_min=2.4, us_median=2.6, reps=7, compile_ms=55.5, host_default_rank=0),
        failed_row("out_of_resource", xblock=4, host_max_autotune_rank=1),
        corpus_row(kernel_id="k1", workload="softmax:9", family="softmax", xnumel=7, num_warps=None, lowering="loop",
                   op="softmax", source="code", us_median=None, us=4.0, us_min=4.0),
    ]  # fmt: skip
    write_corpus(rows, path)
    corpus = read_corpus(path)
    assert corpus.n_rows == 4
    assert corpus.families == ("sum", "softmax")
    first, second = corpus.sweeps
    assert first.kernel == ReductionKernel(100, 1000, "fp32", 1, 1, 1, 4, 4, 8)
    assert (first.kernel_id, first.workload, first.hardware, first.source) == ("k0", "sum:1", "h200", None)
    assert first.tiles == tuple(ReductionTile(x, 256, 4) for x in (1, 2, 4))
    assert first.status == ("ok", "ok", "out_of_resource")
    assert np.array_equal(first.us, [3.0, 2.5, math.nan], equal_nan=True)
    assert (first.host_default, first.host_max_autotune) == ((1, 0), (0, 2))
    assert first.timings[2] is None
    assert first.timings[1] is not None
    assert (first.timings[1].us, first.timings[1].us_median, first.timings[1].us_min, first.timings[1].reps) == (
        2.5, 2.6, 2.4, 7,
    )  # fmt: skip
    assert first.best_us == 2.5
    assert first.slowdown.tolist() == [1.2, 1.0, math.inf]
    assert first.index == {tile: i for i, tile in enumerate(first.tiles)}
    assert second.kernel.op == "softmax"
    assert second.tiles == (ReductionTile(1, 256, lowering="loop"),)
    assert second.timings[0] is not None
    assert second.timings[0].us_median == 4.0


def test_the_shipped_corpus_survives_a_round_trip(corpus: Corpus, path: Path) -> None:
    write_corpus(pq.read_table(CORPUS_PATH).to_pylist(), path)
    again = read_corpus(path)
    assert again.digest == corpus.digest
    assert again.n_rows == corpus.n_rows == 16117
    assert len(again.sweeps) == len(corpus.sweeps) == 166
    assert again.sweeps[7].timings == corpus.sweeps[7].timings


def test_the_digest_depends_on_the_content_and_not_on_the_encoding(path: Path) -> None:
    rows = corpus_rows([[3.0, 2.0], [5.0, 4.0]])
    write_corpus(rows, path)
    digest = read_corpus(path).digest
    plain = raw_table(rows)
    for name in plain.column_names:
        if pa.types.is_dictionary(plain.schema.field(name).type):
            position = plain.schema.get_field_index(name)
            plain = plain.set_column(position, name, plain.column(name).cast(pa.string()))
    shuffled = plain.select(sorted(plain.column_names))
    for table, options in (
        (plain, {"compression": "none"}),
        (raw_table(rows), {"compression": "gzip", "row_group_size": 1}),
        (shuffled, {"use_dictionary": False}),
    ):
        pq.write_table(table, path, **options)
        assert read_corpus(path).digest == digest


@pytest.mark.parametrize(
    "change",
    [{"us": 3.0000001}, {"xblock": 64}, {"num_warps": 8}, {"host_default_rank": 0}, {"host_max_autotune_rank": 0}],
)
def test_any_change_of_content_changes_the_digest(path: Path, change: dict[str, Any]) -> None:
    rows = corpus_rows([[3.0, 2.0], [5.0, 4.0]])
    write_corpus(rows, path)
    before = read_corpus(path).digest
    rows[0] |= change
    write_corpus(rows, path)
    assert read_corpus(path).digest != before


def test_a_subset_is_a_corpus_of_its_own(corpus: Corpus) -> None:
    part = corpus.subset([5, 2])
    assert part.sweeps == (corpus.sweeps[5], corpus.sweeps[2])
    assert part.digest == content_digest(part.sweeps) != corpus.digest
    assert corpus.subset(range(len(corpus.sweeps))).digest == corpus.digest


def test_a_failed_write_leaves_the_old_file_and_no_other(path: Path) -> None:
    write_corpus([corpus_row()], path)
    before = path.read_bytes()
    with pytest.raises(CorpusError):
        write_corpus([corpus_row(us=-1.0)], path)
    with pytest.raises(CorpusError):
        write_corpus([corpus_row(xblock=1 << 40)], path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_several_corpora_are_one(tmp_path: Path) -> None:
    write_corpus([corpus_row()], tmp_path / "a.parquet")
    write_corpus([corpus_row(kernel_id="other", xnumel=5)], tmp_path / "b.parquet")
    both = read_corpora([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert [sweep.kernel_id for sweep in both.sweeps] == ["k0", "other"]
    with pytest.raises(CorpusError) as caught:
        read_corpora([tmp_path / "a.parquet", tmp_path / "a.parquet"])
    assert (caught.value.field, caught.value.value) == ("kernel_id", "k0")


# What is refused


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"us": math.nan}, "us"),
        ({"us": math.inf}, "us"),
        ({"us": -1.0}, "us"),
        ({"us": 0.0}, "us"),
        ({"us": None}, "us"),
        ({"us_min": math.nan}, "us_min"),
        ({"us_mad": -0.1}, "us_mad"),
        ({"compile_ms": None}, "compile_ms"),
        ({"us_median": math.nan}, "us_median"),
        ({"us_median": math.inf}, "us_median"),
        ({"us_median": -1.0}, "us_median"),
        ({"us_median": 0.0}, "us_median"),
        ({"us_min": 2.1}, "us_min"),
        ({"us": 3.0, "us_median": 1.9}, "us_min"),
        ({"status": "compile_error", "us": None, "compile_ms": math.nan}, "compile_ms"),
        ({"reps": 0}, "reps"),
        ({"n_regs": -1}, "n_regs"),
        ({"n_spills": -1}, "n_spills"),
        ({"shared": -1}, "shared"),
        ({"host_default_rank": -1}, "host_default_rank"),
        ({"host_max_autotune_rank": -1}, "host_max_autotune_rank"),
        ({"kernel_id": ""}, "kernel_id"),
        ({"status": "fine"}, "status"),
        ({"status": None}, "status"),
        ({"status": "compile_error"}, "us"),
        ({"kernel_id": None}, "kernel_id"),
        ({"xblock": 0}, "xblock"),
        ({"num_warps": -1}, "num_warps"),
        ({"lowering": "magic"}, "lowering"),
        ({"rnumel": 1001}, "rnumel"),
        ({"persistent": True}, "persistent"),
        ({"workload": "other"}, "workload"),
        ({"source": "other"}, "source"),
        ({"kernel_id": "k9", "xnumel": 0}, "xnumel"),
        ({"kernel_id": "k9", "dtype": "fp33"}, "dtype"),
        ({"kernel_id": "k9", "num_reduction": 0}, "num_reduction"),
        ({"kernel_id": "k9", "min_ptr_elem_bytes": 8}, "max_ptr_elem_bytes"),
    ],
    ids=str,
)
@pytest.mark.parametrize("reading", [False, True], ids=["writing", "reading"])
def test_a_wrong_value_is_refused_by_file_row_and_column(
    path: Path, change: dict[str, Any], column: str, reading: bool
) -> None:
    rows = corpus_rows([[3.0, 2.0, 4.0]])
    rows[1] |= change
    if reading:
        loose = pa.schema([field.with_nullable(True) for field in CORPUS_SCHEMA], metadata=CORPUS_SCHEMA.metadata)
        pq.write_table(pa.Table.from_pylist(rows, schema=loose), path)
    with pytest.raises(CorpusError) as caught:
        read_corpus(path) if reading else write_corpus(rows, path)
    assert (caught.value.row, caught.value.field) == (2, column)
    assert f"{path}: row 2, column {column}: " in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("xblock", 1 << 40),
        ("xblock", True),
        ("xblock", 1.0),
        ("xnumel", 1 << 63),
        ("xnumel", 10**5000),
        ("num_load", 1 << 40),
        ("inner", 1),
        ("workload", 3),
        ("workload", "half \ud800"),
        ("kernel_id", "half \ud800"),
        ("status", ["ok"]),
        ("error", {}),
        ("error", b"bytes"),
        ("source", 5),
        ("us", True),
        ("us", "3.0"),
        ("us", 10**400),
        ("us", (1 << 53) + 1),
        ("compile_ms", "x"),
        ("reps", "a"),
        ("reps", 20.0),
        ("n_regs", "abc"),
        ("shared", 1 << 33),
        ("host_default_rank", 1 << 15),
    ],
    ids=lambda value: ascii(value) if not isinstance(value, int) or value < 1 << 64 else "huge",
)
def test_a_value_that_the_schema_cannot_hold_is_refused(path: Path, column: str, value: Any) -> None:
    rows = corpus_rows([[3.0, 2.0, 4.0]])
    rows[1] |= {column: value}
    with pytest.raises(CorpusError) as caught:
        write_corpus(rows, path)
    assert (caught.value.row, caught.value.field) == (2, column)
    message = str(caught.value)
    assert f"{path}: row 2, column {column}: " in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 400
    assert not path.exists()


def test_a_deeply_nested_value_is_refused(path: Path) -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(CorpusError, match="too large to show"):
        write_corpus([corpus_row(error=nested)], path)


def test_integers_and_numpy_numbers_are_taken_as_times(path: Path) -> None:
    plain = [corpus_row(us=3.0, us_median=3.0, us_min=2.0, n_regs=32, host_default_rank=1)]
    write_corpus(plain, path)
    digest = read_corpus(path).digest
    numpy = {"us": 3, "us_median": np.float64(3), "us_min": np.int64(2), "n_regs": np.int64(32), "xblock": np.int32(1)}
    write_corpus([plain[0] | numpy], path)
    assert read_corpus(path).digest == digest


def test_us_is_the_median_or_the_minimum(path: Path) -> None:
    write_corpus([corpus_row(us=2.5, us_median=3.0, us_min=2.5 * (1 + 1e-12)), corpus_row(xblock=2)], path)
    assert read_corpus(path).n_rows == 2


@pytest.mark.parametrize("column", ["host_default_rank", "host_max_autotune_rank"])
def test_a_host_rank_used_twice_within_a_kernel_is_refused(path: Path, column: str) -> None:
    rows = corpus_rows([[3.0, 2.0, 4.0], [5.0]])
    for row in (rows[0], rows[3]):
        row[column] = 0
    write_corpus(rows, path)
    rows[2][column] = 0
    with pytest.raises(CorpusError) as caught:
        write_corpus(rows, path)
    assert (caught.value.row, caught.value.field) == (3, column)
    assert "row 1" in str(caught.value)


def test_metadata_that_is_no_text_is_refused(path: Path) -> None:
    with pytest.raises(CorpusError) as caught:
        write_corpus([corpus_row()], path, metadata={"toolchain": "\ud800"})
    assert caught.value.field == "tileguard.corpus.toolchain"


def test_a_tile_measured_twice_is_refused_with_both_rows(path: Path) -> None:
    rows = corpus_rows([[3.0, 2.0, 4.0]])
    rows[2] |= {"xblock": 1}
    with pytest.raises(CorpusError) as caught:
        write_corpus(rows, path)
    assert (caught.value.row, caught.value.field) == (3, "xblock")
    assert "row 1" in str(caught.value)


def test_the_same_tile_of_two_kernels_is_no_duplicate(path: Path) -> None:
    write_corpus(corpus_rows([[3.0], [2.0]]), path)
    assert len(read_corpus(path).sweeps) == 2


def test_a_kernel_of_which_nothing_worked_is_refused(path: Path) -> None:
    rows = [
        corpus_row(),
        failed_row("compile_error", kernel_id="k1"),
        failed_row("compile_error", kernel_id="k1", xblock=2),
    ]
    with pytest.raises(CorpusError) as caught:
        write_corpus(rows, path)
    assert (caught.value.row, caught.value.field) == (2, "status")
    assert "k1" in str(caught.value)


def test_an_empty_corpus_is_refused(path: Path) -> None:
    with pytest.raises(CorpusError, match="at least one row"):
        write_corpus([], path)
    pq.write_table(raw_table([]), path)
    with pytest.raises(CorpusError, match="at least one row"):
        read_corpus(path)


def test_a_corpus_of_before_a_column_was_kept_reads_as_if_it_were_empty(path: Path) -> None:
    pq.write_table(raw_table([corpus_row()]).drop_columns(list(LATER_FIELDS)), path)
    assert read_corpus(path).sweeps[0].kernel.code is None


@pytest.mark.parametrize("column", [name for name in CORPUS_SCHEMA.names if name not in LATER_FIELDS])
def test_a_missing_column_is_named(path: Path, column: str) -> None:
    pq.write_table(raw_table([corpus_row()]).drop_columns([column]), path)
    with pytest.raises(CorpusError) as caught:
        read_corpus(path)
    assert caught.value.field == column
    row = corpus_row()
    del row[column]
    with pytest.raises(CorpusError) as caught:
        write_corpus([row], path)
    assert (caught.value.row, caught.value.field) == (1, column)


def test_further_columns_do_no_harm(path: Path) -> None:
    table = raw_table([corpus_row()])
    pq.write_table(table.append_column("note", pa.array(["hello"])), path)
    assert read_corpus(path).digest == read_corpus_digest([corpus_row()], path.with_name("b.parquet"))


def read_corpus_digest(rows: Rows, path: Path) -> str:
    write_corpus(rows, path)
    return read_corpus(path).digest


@pytest.mark.parametrize(
    "metadata",
    [{"tileguard.corpus.version": v} for v in ("2", "", b"\xff")] + [{}, None],
)
def test_another_schema_version_is_refused(path: Path, metadata: dict[str, Any] | None) -> None:
    pq.write_table(raw_table([corpus_row()]).replace_schema_metadata(metadata), path)
    with pytest.raises(CorpusError) as caught:
        read_corpus(path)
    assert caught.value.field == "tileguard.corpus.version"
    assert "expected 1" in str(caught.value)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("us", ["fast"]),
        ("xblock", [1.5]),
        ("xblock", ["one"]),
        ("inner", ["yes"]),
        ("xnumel", [[1]]),
        ("reps", [1 << 40]),
        ("xblock", [1.0]),
        ("xblock", [True]),
        ("xblock", ["1"]),
        ("us", ["3.0"]),
        ("us", [True]),
        ("us_median", [True]),
        ("inner", [2]),
        ("inner", ["true"]),
        ("host_default_rank", [0.0]),
        ("n_regs", [[3]]),
    ],
)
def test_a_column_of_another_type_is_refused_by_name(path: Path, column: str, values: list[Any]) -> None:
    pq.write_table(with_column(raw_table([corpus_row()]), column, pa.array(values)), path)
    with pytest.raises(CorpusError) as caught:
        read_corpus(path)
    assert caught.value.field == column
    assert str(CORPUS_SCHEMA.field(column).type) in str(caught.value)


def with_column(table: Any, column: str, values: Any) -> Any:
    return table.set_column(table.schema.get_field_index(column), column, values)


@pytest.mark.parametrize("values", [[5], [b"sum"], [True], [1.5], [["sum"]]], ids=str)
@pytest.mark.parametrize("column", ["workload", "error", "status", "source", "dtype"])
def test_a_column_of_strings_takes_no_other_kind(path: Path, column: str, values: list[Any]) -> None:
    for array in (pa.array(values), pa.array(values).dictionary_encode() if values != [["sum"]] else pa.array(values)):
        pq.write_table(with_column(raw_table([corpus_row()]), column, array), path)
        with pytest.raises(CorpusError, match="the type string") as caught:
            read_corpus(path)
        assert caught.value.field == column


@pytest.mark.parametrize(
    ("column", "values", "row"),
    [
        ("xblock", pa.array([1, 1 << 40, 1 << 41]), 2),
        ("xblock", pa.array([1, 2, -(1 << 40)]), 3),
        ("reps", pa.array([1, None, 1 << 31]), 3),
        ("host_default_rank", pa.array([0, 1 << 15, None]), 2),
        ("xnumel", pa.array([100, 100, 1 << 63], pa.uint64()), 3),
        ("us", pa.array([3, 4, (1 << 53) + 1]), 3),
    ],
)
def test_a_number_that_the_column_cannot_hold_is_refused_by_row(path: Path, column: str, values: Any, row: int) -> None:
    pq.write_table(with_column(raw_table(corpus_rows([[3.0, 2.0, 4.0]])), column, values), path)
    with pytest.raises(CorpusError) as caught:
        read_corpus(path)
    assert (caught.value.row, caught.value.field) == (row, column)
    assert caught.value.value == values[row - 1].as_py()


@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "dictionary"])
@pytest.mark.parametrize("large", [False, True], ids=["string", "large_string"])
@pytest.mark.parametrize("column", ["error", "workload", "status", "source"])
def test_a_string_that_is_not_utf8_is_refused_by_row(path: Path, column: str, large: bool, encoded: bool) -> None:
    kinds = (pa.large_binary(), pa.large_string()) if large else (pa.binary(), pa.string())
    values = pa.array([b"fine", b"caf\xe9", b"fine", b"\xff"], kinds[0]).view(kinds[1])
    table = with_column(
        raw_table(corpus_rows([[3.0, 2.0, 4.0, 5.0]])), column, values.dictionary_encode() if encoded else values
    )
    pq.write_table(table, path, row_group_size=1)
    with pytest.raises(CorpusError) as caught:
        read_corpus(path)
    assert (caught.value.row, caught.value.field, caught.value.value) == (2, column, b"caf\xe9")


def test_a_column_name_that_is_not_utf8_or_occurs_twice_is_refused(path: Path) -> None:
    table = raw_table([corpus_row()])
    pq.write_table(table.append_column("us", pa.array([3.0])), path)
    with pytest.raises(CorpusError):
        read_corpus(path)
    pq.write_table(table, path)
    path.write_bytes(path.read_bytes().replace(b"compile_ms", b"compile_\xff\xfe"))
    with pytest.raises(CorpusError):
        read_corpus(path)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("xblock", pa.array([1], pa.int64())),
        ("xblock", pa.array([1], pa.uint8())),
        ("xnumel", pa.array([100], pa.int32())),
        ("us", pa.array([3])),
        ("us", pa.array([3.0], pa.float32())),
        ("reps", pa.array([20]).dictionary_encode()),
        ("op", pa.nulls(1)),
        ("n_regs", pa.nulls(1)),
        ("workload", pa.array(["sum:1"], pa.large_string())),
        ("workload", pa.array(["sum:1"], pa.large_string()).dictionary_encode()),
    ],
)
def test_a_column_of_a_wider_or_narrower_type_is_taken(path: Path, column: str, values: Any) -> None:
    table = raw_table([corpus_row()])
    pq.write_table(table, path)
    digest = read_corpus(path).digest
    pq.write_table(with_column(table, column, values), path)
    assert read_corpus(path).digest == digest
    assert read_corpus(path).sweeps[0].tiles == (ReductionTile(1, 256, 4),)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\x00" * 100 + b"PAR1", b"kernel_id,us\nk0,3\n"])
def test_a_file_that_is_no_parquet_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="a Parquet file"):
        read_corpus(path)


def test_a_truncated_parquet_file_is_refused(path: Path) -> None:
    content = CORPUS_PATH.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorpusError, match="a Parquet file"):
        read_corpus(path)


@pytest.mark.parametrize("name", ["absent.parquet", "absent.jsonl", "", "corpus.csv"])
def test_a_missing_file_a_folder_and_another_ending_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "corpus.csv").write_text("kernel_id,us\n")
    with pytest.raises(InvalidInput) as caught:
        read_corpus(tmp_path / name)
    assert caught.value.field == "corpus"
    assert ".parquet" in caught.value.allowed


# Raw sweeps


def record(**changes: Any) -> dict[str, Any]:
    """One kernel of a raw sweep, as the sweep program writes it."""
    base: dict[str, Any] = {
        "label": "sum:4x8:float16", "kernel": "triton_red_fused_sum_0", "heuristic": "REDUCTION",
        "numels": {"xnumel": 100, "r0_numel": 1000},
        "signature": {"in_ptr0": "*fp16", "in_ptr1": "*fp16", "in_ptr2": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32"},
        "inductor_meta": {"num_load": 3, "num_store": 1, "num_reduction": 1, "reduction_hint": "ReductionHint.INNER"},
        "baselines": {"default": [[2, 512, 4, 1], [1, 1024, 8, 1]], "max_autotune": [[8, 64, 2, 1], [2, 512, 4, 1]]},
        "src": "def triton_red(): pass",
        "rows": [
            {"X": 1, "R": 256, "w": 4, "st": 1, "us": 3.0, "us_min": 2.9, "mad": 0.05, "reps": 20, "compile_ms": 150.0,
             "regs": 32, "spills": 0, "shared": 512},
            {"X": 2, "R": 512, "w": 4, "st": 1, "us": 2.5, "us_min": 2.4, "mad": 0.04, "reps": 20, "compile_ms": 160.0},
            {"X": 64, "R": 4096, "w": 8, "st": 1, "error": "OutOfResources: shared memory", "compile_ms": 90.0},
            {"X": 32, "R": 4096, "w": 8, "st": 1, "error": "PTXAS died"},
        ],
    }  # fmt: skip
    return base | changes


def write_sweep(path: Path, *records: Any) -> Path:
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records)
    path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["sweep.jsonl", "sweep.jsonl.xz"])
def test_a_raw_sweep_becomes_a_corpus(tmp_path: Path, name: str) -> None:
    path = write_sweep(tmp_path / name, record(), "", record(label="mean:2", heuristic="PERSISTENT_REDUCTION"))
    corpus = read_corpus(path, hardware="h200")
    first, second = corpus.sweeps
    assert first.kernel_id == "sum:4x8:float16/triton_red_fused_sum_0/100x1000"
    assert (first.workload, first.family, first.hardware) == ("sum:4x8:float16", "sum", "h200")
    assert first.kernel == ReductionKernel(100, 1000, "fp16", 3, 1, 1, 2, 4, 12, inner=True)
    assert first.tiles == (
        ReductionTile(1, 256, 4), ReductionTile(2, 512, 4), ReductionTile(64, 4096, 8), ReductionTile(32, 4096, 8),
        ReductionTile(1, 1024, 8), ReductionTile(8, 64, 2),
    )  # fmt: skip
    assert first.status == ("ok", "ok", "out_of_resource", "compile_error", "not_measured", "not_measured")
    assert (first.host_default, first.host_max_autotune) == ((1, 4), (5, 1))
    assert first.best_us == 2.5
    assert first.source == "def triton_red(): pass"
    assert second.kernel.persistent
    assert corpus.families == ("sum", "mean")


def test_a_raw_sweep_written_as_a_corpus_has_the_same_digest(tmp_path: Path) -> None:
    from tileguard.learner.sweep_import import read_sweep

    path = write_sweep(tmp_path / "sweep.jsonl", record())
    write_corpus(read_sweep(path, hardware="h200"), tmp_path / "corpus.parquet")
    assert read_corpus(tmp_path / "corpus.parquet").digest == read_corpus(path, hardware="h200").digest


def test_a_persistent_kernels_r0_is_the_axis_rounded_up(tmp_path: Path) -> None:
    row = record()["rows"][0] | {"R": None}
    path = write_sweep(tmp_path / "s.jsonl", record(heuristic="PERSISTENT_REDUCTION", rows=[row], baselines={}))
    assert read_corpus(path, hardware="h200").sweeps[0].tiles == (ReductionTile(1, 1024, 4),)


def test_the_same_kernel_of_two_lines_gets_two_ids(tmp_path: Path) -> None:
    corpus = read_corpus(write_sweep(tmp_path / "s.jsonl", record(), record()), hardware="h200")
    assert [sweep.kernel_id.rsplit("/", 1)[-1] for sweep in corpus.sweeps] == ["100x1000", "2"]


@pytest.mark.parametrize(
    ("hint", "inner"),
    [("ReductionHint.INNER", True), ("ReductionHint.OUTER", False), ("DEFAULT", False), (None, False)],
)
def test_the_reduced_axis_is_contiguous_where_the_hint_says_so(tmp_path: Path, hint: str | None, inner: bool) -> None:
    meta = record()["inductor_meta"] | {"reduction_hint": hint}
    corpus = read_corpus(write_sweep(tmp_path / "s.jsonl", record(inductor_meta=meta)), hardware="h200")
    assert corpus.sweeps[0].kernel.inner is inner


def test_a_host_list_that_could_not_be_made_is_empty(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s.jsonl", record(baselines={"default": "RuntimeError: no", "max_autotune": None}))
    sweep = read_corpus(path, hardware="h200").sweeps[0]
    assert (sweep.host_default, sweep.host_max_autotune) == ((), ())


def test_a_raw_sweep_needs_a_known_hardware(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s.jsonl", record())
    for name in (None, "h300"):
        with pytest.raises(InvalidInput) as caught:
            read_corpus(path, hardware=name)
        assert caught.value.field == "hardware"


@pytest.mark.parametrize(
    "key", ["label", "kernel", "heuristic", "numels", "signature", "inductor_meta", "baselines", "rows"]
)
def test_a_raw_line_without_a_key_is_refused_by_line_and_key(tmp_path: Path, key: str) -> None:
    broken = record()
    del broken[key]
    with pytest.raises(CorpusError) as caught:
        read_corpus(write_sweep(tmp_path / "s.jsonl", record(), broken), hardware="h200")
    assert (caught.value.row, caught.value.field) == (2, key)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        record(numels={"xnumel": 100}),
        record(inductor_meta=None),
        record(signature={"in_ptr0": "*fp33"}),
        record(signature={"xnumel": "i32"}),
        record(rows=[{"X": 1}]),
        record(rows=[record()["rows"][0] | {"us": -1.0}]),
        record(rows=[record()["rows"][0] | {"us": math.nan}]),
        record(rows=[record()["rows"][0] | {"X": 0}]),
        record(rows=[]),
        record(rows=["row"]),
        record(rows=3),
    ],
    ids=[
        "cut", "list", "number", "no_numel", "no_meta", "dtype", "no_pointer", "no_warps", "negative", "nan", "no_block",
        "no_rows", "row_in_words", "rows_number",
    ],
)  # fmt: skip
def test_a_raw_line_that_makes_no_sense_is_a_corpus_error(tmp_path: Path, line: Any) -> None:
    with pytest.raises(CorpusError) as caught:
        read_corpus(write_sweep(tmp_path / "s.jsonl", line), hardware="h200")
    assert "s.jsonl" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        record(rows=[record()["rows"][0] | {"us": "fast"}]),
        record(rows=[record()["rows"][0] | {"compile_ms": [1]}]),
        record(signature=["*fp16"]),
        record(signature={"in_ptr0": 3}),
        record(label=3),
        record(baselines=[]),
    ],
    ids=["time_in_words", "time_in_a_list", "signature_list", "pointer_number", "label_number", "baselines_list"],
)
def test_a_raw_value_of_another_type_is_a_corpus_error(tmp_path: Path, line: Any) -> None:
    with pytest.raises(CorpusError) as caught:
        read_corpus(write_sweep(tmp_path / "s.jsonl", line), hardware="h200")
    assert "s.jsonl" in str(caught.value)


ROW = record()["rows"][0]
FAILED = {"X": 8, "R": 256, "w": 4, "st": 1, "error": "PTXAS died"}


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (record(baselines={"default": [[1, 2]]}), "baselines.default"),
        (record(baselines={"default": [[]]}), "baselines.default"),
        (record(baselines={"max_autotune": [[1, 256, 4, 1, 1]]}), "baselines.max_autotune"),
        (record(baselines={"max_autotune": [[True, 256, 4, 1]]}), "baselines.max_autotune"),
        (record(baselines={"max_autotune": [[1, "R", 4, 1]]}), "baselines.max_autotune"),
        (record(baselines={"default": [[x, 4, 1, 1] for x in range(1, 32_770)]}), "host_default_rank"),
        (record(rows=[ROW, FAILED | {"compile_ms": "x"}]), "compile_ms"),
        (record(rows=[ROW, FAILED | {"error": ["words"]}]), "error"),
        (record(rows=[ROW, FAILED | {"error": 5}]), "error"),
        (record(rows=[FAILED | {"regs": "abc"}]), "n_regs"),
        (record(rows=[ROW | {"us": 10**400}]), "us"),
        (record(rows=[ROW | {"us": True}]), "us"),
        (record(rows=[ROW | {"us": "3"}]), "us"),
        (record(rows=[ROW | {"us_min": 3.1}]), "us_min"),
        (record(rows=[ROW | {"X": 1 << 40}]), "xblock"),
        (record(rows=[ROW | {"X": True}]), "xblock"),
        (record(rows=[ROW | {"X": 1.0}]), "xblock"),
        (record(rows=[ROW, ROW]), "xblock"),
        (record(rows=[ROW | {"regs": "abc"}]), "n_regs"),
        (record(rows=[ROW | {"shared": 1 << 33}]), "shared"),
        (record(rows=[ROW | {"reps": "a"}]), "reps"),
        (record(rows=[ROW | {"error": {}}]), "error"),
        (record(src=5), "source"),
        (record(label="half \ud800"), "kernel_id"),
        (record(label=3), "label"),
        (record(kernel={}), "kernel"),
        (record(numels={"xnumel": "100", "r0_numel": 1000}), "xnumel"),
        (record(numels={"xnumel": 100, "r0_numel": "1000"}), "r0_numel"),
        (record(inductor_meta=record()["inductor_meta"] | {"num_load": 1 << 40}), "num_load"),
        ("[" * 100_000, "(line)"),
        ('{"label": ' + "[" * 100_000, "(line)"),
        ('{"label": ' + "9" * 5000 + "}", "(line)"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_a_raw_value_that_no_corpus_holds_is_refused_by_line_and_column(tmp_path: Path, line: Any, column: str) -> None:
    path = write_sweep(tmp_path / "s.jsonl", record(), line)
    with pytest.raises(CorpusError) as caught:
        read_corpus(path, hardware="h200")
    assert (caught.value.row, caught.value.field) == (2, column)
    assert f"{path}: row 2, column {column}: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not xz", lzma.compress(b'{"label": 1}\n' * 99)[:-20]])
def test_a_broken_xz_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.jsonl.xz"
    path.write_bytes(content)
    with pytest.raises(CorpusError):
        read_corpus(path, hardware="h200")


def test_a_raw_sweep_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\xff\xfe{}\n")
    with pytest.raises(CorpusError, match="intact"):
        read_corpus(path, hardware="h200")
