"""The log keeps every record and never fails its host; the report's sums are right; the table fits its terminal."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from tests.support import python

from tileguard.features.errors import InvalidInput
from tileguard.runtime import report_cli, selector
from tileguard.runtime.hooks.matmul_records import NUMBERS, MatmulRecord, MatmulTileRecord
from tileguard.runtime.hooks.records import FAILURES, OUTCOMES, PROPOSERS, STATUSES
from tileguard.runtime.hooks.report import KernelRecord, Log, Report, TileRecord, read_log

TIMES = st.none() | st.floats(min_value=0, allow_infinity=False)
TILES = st.builds(
    TileRecord,
    xblock=st.integers(1, 1 << 20),
    r0_block=st.integers(1, 1 << 20),
    num_warps=st.none() | st.integers(1, 32),
    num_stages=st.integers(1, 4),
    proposers=st.lists(st.sampled_from(PROPOSERS), max_size=4).map(tuple),
    status=st.sampled_from(STATUSES),
    compile_ms=TIMES,
    us=TIMES,
    us_mad=TIMES,
    reps=st.integers(0, 100),
)


@st.composite
def records(draw: st.DrawFn) -> KernelRecord:
    tiles = tuple(draw(st.lists(TILES, max_size=4)))
    text, numel = st.text(st.characters(), max_size=20), st.none() | st.integers(0, 1 << 62)
    seconds = st.floats(0, 1e9)
    return KernelRecord(
        kernel=draw(text), source=draw(text), outcome=draw(st.sampled_from(OUTCOMES)), xnumel=draw(numel),
        rnumel=draw(numel), dtype=draw(st.none() | text), persistent=draw(st.booleans()),
        hardware=draw(st.none() | text), reason=draw(st.none() | text), verdict=draw(st.none() | text),
        verdict_detail=draw(text), select_us=draw(TIMES), tiles=tiles,
        winner=draw(st.none() | st.integers(0, len(tiles) - 1)) if tiles else None,
        host_us=draw(TIMES), winner_us=draw(TIMES), compile_s=draw(seconds), bench_s=draw(seconds),
        over_budget=draw(st.booleans()), time=draw(seconds), pid=draw(st.integers(0, 1 << 22)),
    )  # fmt: skip


@st.composite
def products(draw: st.DrawFn) -> MatmulRecord:
    numbers = [st.none() | st.integers(0, 1 << 20) for _ in NUMBERS]
    who = st.lists(st.sampled_from(PROPOSERS), max_size=4).map(tuple)
    text, size = st.text(st.characters(), max_size=20), st.integers(0, 1 << 40)
    choice = st.builds(
        MatmulTileRecord, text, *numbers, who, st.sampled_from(STATUSES), TIMES, TIMES, st.integers(0, 100)
    )  # fmt: skip
    tiles = tuple(draw(st.lists(choice, max_size=4)))
    return MatmulRecord(
        op=draw(text), batch=draw(size), m=draw(size), n=draw(size), k=draw(size), dtype=draw(text),
        outcome=draw(st.sampled_from(OUTCOMES)), hardware=draw(st.none() | text), reason=draw(st.none() | text),
        verdict=draw(st.none() | text), verdict_detail=draw(text), select_us=draw(TIMES), tiles=tiles,
        winner=draw(st.none() | st.integers(0, len(tiles) - 1)) if tiles else None,
        host_us=draw(TIMES), winner_us=draw(TIMES), bench_s=draw(st.floats(0, 1e9)), over_budget=draw(st.booleans()),
        time=draw(st.floats(0, 1e9)), pid=draw(st.integers(0, 1 << 22)),
    )  # fmt: skip


HOST_TILE = TileRecord(1, 1024, 8, 1, ("host",), "ok", 120.0, 12.0, 0.1, 15)
MODEL_TILE = TileRecord(4, 256, 8, 2, ("model",), "ok", 140.0, 8.0, 0.1, 25)
SPILLED = TileRecord(64, 4096, 4, 1, ("formula", "model"), "spilled", 300.0)
SKIPPED = TileRecord(32, 4096, 4, 1, ("formula",), "over_budget")


def record(**changes: Any) -> KernelRecord:
    """A tuned kernel whose winner only the model proposed, 1.5 times as fast as the host's default."""
    facts: dict[str, Any] = {
        "kernel": "triton_red_fused_mean_0", "source": "0123456789abcdef", "outcome": "tuned", "xnumel": 2048,
        "rnumel": 768, "dtype": "fp32", "hardware": "h200", "verdict": "trust", "select_us": 4000.0,
        "tiles": (HOST_TILE, MODEL_TILE, SPILLED, SKIPPED), "winner": 1, "host_us": 12.0, "winner_us": 8.0,
        "compile_s": 1.5, "bench_s": 0.25, "over_budget": True, "time": 1.7e9, "pid": 77,
    }  # fmt: skip
    return KernelRecord(**facts | changes)


def kept(**changes: Any) -> KernelRecord:
    """A tuned kernel where the host's own tile stayed."""
    return record(winner=0, host_us=100.0, winner_us=100.0, over_budget=False, **changes)


ATEN = MatmulTileRecord("aten::mm", None, None, None, None, None, None, ("host",), "ok", 30.0, 0.1, 20)
PLANNED = MatmulTileRecord("triton::mm", 128, 64, 32, 4, 3, 8, ("formula",), "ok", 20.0, 0.1, 20)
BROKEN = MatmulTileRecord("triton::mm", 256, 64, 32, 4, 3, 8, ("model",), "launch_error")


def product(**changes: Any) -> MatmulRecord:
    """A tuned product whose winner the planner proposed, 1.5 times as fast as ATen."""
    facts: dict[str, Any] = {
        "op": "mm", "batch": 1, "m": 512, "n": 1024, "k": 256, "dtype": "bf16", "outcome": "tuned",
        "hardware": "h200", "verdict": "trust", "tiles": (ATEN, PLANNED, BROKEN), "winner": 1, "host_us": 30.0,
        "winner_us": 20.0, "bench_s": 0.25, "time": 1.7e9, "pid": 77,
    }  # fmt: skip
    return MatmulRecord(**facts | changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a log in a folder that does not exist yet."""
    return tmp_path / "on" / "the way" / "log.jsonl"


@given(records() | products())
def test_a_record_survives_its_way_through_a_log(
    tmp_path_factory: pytest.TempPathFactory, one: KernelRecord | MatmulRecord
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.jsonl"
    path.unlink(missing_ok=True)
    log = Log(path)
    log.add(one)
    found = read_log(path)
    assert found.records == log.report().records == (one,)
    assert found.to_dict() == log.report().to_dict()
    assert str(found) == str(log.report())
    json.dumps(found.to_dict(), allow_nan=False)


def test_derived_figures() -> None:
    one = record()
    assert one.gain == 1.5
    assert one.winner_proposers == ("model",)
    assert (one.compiled, one.failed) == (2, 1)
    assert replace(SKIPPED, compile_ms=90.0).compiled
    assert not any(replace(SPILLED, status=status).compiled for status in FAILURES)
    for unknown in (record(host_us=None), record(winner_us=None), record(winner_us=0.0)):
        assert unknown.gain is None
    assert record(winner=None).winner_proposers == ()


def test_a_time_that_is_not_finite_is_not_known_and_proposers_have_one_order() -> None:
    tile = TileRecord(1, 2, None, 1, ("model", "host", "model"), "spilled", math.nan, math.inf, None)
    assert (tile.compile_ms, tile.us, tile.proposers) == (None, None, ("host", "model"))
    assert PROPOSERS == selector.PROPOSERS


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: replace(HOST_TILE, status="fine"), "status"),
        (lambda: replace(HOST_TILE, proposers=cast(Any, "host")), "proposers"),
        (lambda: replace(HOST_TILE, proposers=("nobody",)), "proposers"),
        (lambda: replace(HOST_TILE, xblock=0), "xblock"),
        (lambda: replace(HOST_TILE, us=-1.0), "us"),
        (lambda: replace(HOST_TILE, us=cast(Any, "3")), "us"),
        (lambda: record(outcome="won"), "outcome"),
        (lambda: record(winner=4), "winner"),
        (lambda: record(kernel=None), "kernel"),
        (lambda: record(over_budget=1), "over_budget"),
        (lambda: record(tiles=({},)), "tiles"),
        (lambda: product(tiles=(HOST_TILE,)), "tiles"),
        (lambda: product(winner=3), "winner"),
        (lambda: product(m=-1), "m"),
        (lambda: product(op=7), "op"),
        (lambda: product(outcome="won"), "outcome"),
        (lambda: product(over_budget=None), "over_budget"),
        (lambda: replace(PLANNED, block_k="32"), "block_k"),  # type: ignore[arg-type]
        (lambda: replace(PLANNED, status="fine"), "status"),
        (lambda: replace(PLANNED, proposers=("nobody",)), "proposers"),
    ],
)
def test_a_record_names_the_field_that_is_wrong(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert refused.value.field == field


def test_totals_sum_up_what_happened() -> None:
    cached = record(outcome="cached", tiles=(HOST_TILE, replace(MODEL_TILE, us=None)), compile_s=0.0, bench_s=0.0)
    untouched = KernelRecord(kernel="k", source="s", outcome="untouched", reason="dynamic_shape")
    failed = KernelRecord(kernel="k", source="s", outcome="failed", reason="no tile works", verdict="out_of_range")
    report = Report((record(), kept(), cached, untouched, failed), {"not_a_reduction": 3, "dynamic_shape": 1})
    t = report.totals
    assert t.kernels == {"tuned": 2, "cached": 1, "untouched": 5, "failed": 1}
    assert list(t.untouched.items()) == [("not_a_reduction", 3), ("dynamic_shape", 2)]
    assert t.failures == {"no tile works": 1}
    assert t.verdicts == {"trust": 3, "out_of_range": 1}
    assert t.tiles == {"ok": 6, "over_budget": 2, "spilled": 2}
    assert (t.tiles_compiled, t.tiles_failed, t.over_budget) == (6, 2, 2)
    assert (t.compile_s, t.bench_s) == (3.0, 0.5)
    assert (t.winners, t.wins, t.model_alone_wins) == (3, {"host": 1, "formula": 0, "model": 2}, 2)
    assert t.gain_kernels == 2  # what was remembered was not measured
    assert t.geomean_gain == pytest.approx(math.sqrt(1.5))
    assert t.time_weighted_gain == pytest.approx(112 / 108)
    assert (t.worst_gain, t.worst_kernel) == (1.0, "triton_red_fused_mean_0")
    assert str(report) == SUMMARY


SUMMARY = """\
kernels     2 tuned, 1 cached, 5 untouched, 1 failed
untouched   not_a_reduction 3, dynamic_shape 2
failed      no tile works 1
verdicts    trust 3, out_of_range 1
tiles       6 compiled, 2 failed, 2 skipped
time        3.0 s compiling, 0.5 s timing
budget      ended before the last tile on 2
winners     3, proposed by host 1, formula 0, model 2; by the model alone 2
gain        1.225× over the host's own choice, geomean of 2 kernels, time-weighted 1.037×
worst gain  1.000× on triton_red_fused_mean_0"""


def test_totals_speak_of_products_and_reductions_alike() -> None:
    cached = product(outcome="cached", reason="cache", winner=0, host_us=None, winner_us=30.0, bench_s=0.0)
    failed = product(outcome="failed", reason="matmul_race_error", winner=None, host_us=None, winner_us=None)
    report = Report((record(), kept(), product(), cached, failed), {"matmul_deterministic": 2})
    t = report.totals
    assert t.kernels == {"tuned": 3, "cached": 1, "untouched": 2, "failed": 1}
    assert t.products == 3
    assert (t.untouched, t.failures) == ({"matmul_deterministic": 2}, {"matmul_race_error": 1})
    assert (t.tiles_compiled, t.tiles_failed) == (10, 5)
    assert (t.compile_s, t.bench_s) == (3.0, 1.0)
    assert (t.winners, t.wins, t.model_alone_wins) == (4, {"host": 2, "formula": 1, "model": 1}, 1)
    assert t.gain_kernels == 3
    assert t.geomean_gain == pytest.approx((1.5 * 1.0 * 1.5) ** (1 / 3))
    assert t.time_weighted_gain == pytest.approx((12 + 100 + 30) / (8 + 100 + 20))
    assert "products    3 of these are matrix products\n" in str(report)
    slow = product(op="bmm", batch=8, winner=0, host_us=10.0, winner_us=20.0)
    assert Report((slow,)).totals.worst_kernel == slow.kernel == "bmm 8×512×1024×256"


def test_nothing_is_a_report_too() -> None:
    assert str(Report()) == str(Log().report()) == "kernels  0 tuned, 0 cached, 0 untouched, 0 failed"
    assert Report().totals.geomean_gain is None


def test_figures_too_large_for_doubles_are_not_known() -> None:
    huge = record(host_us=1.5e308, winner_us=1e308)
    assert Report((huge, huge)).totals.time_weighted_gain is None
    assert record(host_us=1e308, winner_us=1e-10).gain is None


WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from tests.runtime.hooks.test_report import record
from tileguard.runtime.hooks.report import Log
log = Log(sys.argv[1])
def write(thread):
    for i in range(20):
        log.add(record(kernel=f"{sys.argv[2]}-{thread}-{i}", verdict_detail="x" * 6000))
        log.count_untouched("pointwise")
with ThreadPoolExecutor(8) as pool:
    list(pool.map(write, range(8)))
assert log.report().totals.kernels["untouched"] == 160 == len(log.report().records)
"""


def test_threads_and_processes_share_a_log_and_every_line_is_whole(path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: python(WRITER, str(path), name), "ab"))
    found = read_log(path)
    assert {r.kernel for r in found.records} == {f"{p}-{t}-{i}" for p in "ab" for t in range(8) for i in range(20)}
    assert found.untouched == {"pointwise": 320}
    assert found.notes == ()
    assert len(path.read_bytes().splitlines()) == 640


@pytest.mark.parametrize("place", ["/dev/null/log.jsonl", "/dev/full", "a\0b", "folder"])
def test_a_log_that_cannot_be_written_is_told_once_counted_and_harms_nothing(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if place == "folder":
        place = str(tmp_path)
    log = Log(place)
    for _ in range(3):
        log.add(record())
        log.count_untouched("pointwise")
    (said,) = caplog.records
    assert (said.name, said.levelno) == ("tileguard", logging.WARNING)
    assert place in said.getMessage()
    report = log.report()
    assert len(report.records) == report.untouched["pointwise"] == 3
    assert report.lost_lines == 6
    assert "6 records could not be written" in str(report)


def test_a_pipe_that_nobody_reads_does_not_stop_the_host(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    log = Log(tmp_path / "pipe")
    log.add(record())
    assert log.report().lost_lines == 1


def test_a_line_that_a_full_disk_cut_short_costs_only_itself(path: Path) -> None:
    code = """
import resource, sys
from tests.runtime.hooks.test_report import record
from tileguard.runtime.hooks.report import Log
log = Log(sys.argv[1])
log.add(record(kernel="first"))
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, most))
log.add(record(kernel="cut"))
log.add(record(kernel="lost"))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
log.add(record(kernel="last"))
print(log.report().lost_lines)
"""
    assert python(code, str(path)).strip() == "2"
    found = read_log(path)
    assert [r.kernel for r in found.records] == ["first", "last"]
    assert found.notes == ("line 2 breaks off and was skipped",)


def test_wherever_the_last_line_breaks_off_the_others_are_read(path: Path) -> None:
    log = Log(path)
    log.add(record(kernel="whole"))
    whole = path.read_bytes()
    line = (json.dumps({"version": 1, "event": "kernel", **record(kernel='o"{[\\dd').to_dict()})).encode()
    for end in range(1, len(line), 3):
        path.write_bytes(whole + line[:end])
        found = read_log(path)
        assert len(found.records) == len(found.notes) == 1
    assert "line 2 breaks off and was skipped" in str(found)
    path.write_bytes(whole + line)
    assert len(read_log(path).records) == 2


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(json.dumps({"version": 1, "event": "kernel", **record().to_dict()}))
    change(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        (b"hello", "", "hello"),
        (b"[1, 2]", "", [1, 2]),
        (b"{}}", "", "{}}"),
        (b'{"a": \xff}', "", '{"a": \ufffd}'),
        (b"9" * 5000, "", "9" * 80),
        (changed(lambda v: v.update(version=2)), ", version", 2),
        (changed(lambda v: v.pop("version")), ", version", None),
        (changed(lambda v: v.update(event="party")), ", event", "party"),
        (changed(lambda v: v.pop("xnumel")), ", xnumel", "(missing)"),
        (changed(lambda v: v.update(rnumel="many")), ", rnumel", "many"),
        (changed(lambda v: v.update(outcome="won")), ", outcome", "won"),
        (changed(lambda v: v.update(tiles=None)), ", tiles", None),
        (changed(lambda v: v["tiles"].append(3)), ", tiles[4]", 3),
        (changed(lambda v: v["tiles"][2].update(xblock=0)), ", tiles[2].xblock", 0),
        (changed(lambda v: v["tiles"][0].pop("status")), ", tiles[0].status", "(missing)"),
        (changed(lambda v: v.update(winner=9)), ", winner", 9),
        (b'{"version": 1, "event": "untouched"}', ", reason", None),
    ],
)
def test_a_malformed_line_is_named_with_field_and_value(path: Path, line: bytes, field: str, value: object) -> None:
    Log(path).add(record())
    path.write_bytes(path.read_bytes() + b"\n" + line + b"\n" + path.read_bytes())
    with pytest.raises(InvalidInput) as refused:
        read_log(path)
    assert refused.value.field == f"{path}, line 3{field}"
    assert refused.value.value == value
    assert refused.value.allowed


OLD = (
    '{"version":1,"event":"kernel","kernel":"triton_red_fused_mean_0","source":"0123456789abcdef","outcome":"tuned",'
    '"xnumel":2048,"rnumel":768,"dtype":"fp32","persistent":false,"hardware":"h200","reason":null,"verdict":"trust",'
    '"verdict_detail":"","select_us":4000.0,"tiles":[{"xblock":1,"r0_block":1024,"num_warps":8,"num_stages":1,'
    '"proposers":["host"],"status":"ok","compile_ms":120.0,"us":12.0,"us_mad":0.1,"reps":15}],"winner":0,"host_us":12.0,'
    '"winner_us":12.0,"compile_s":1.5,"bench_s":0.25,"over_budget":true,"time":1700000000.0,"pid":77,'
    '"winner_proposers":["host"],"gain":1.0,"compiled":1,"failed":0}\n'
    '{"version":1,"event":"untouched","reason":"matmul_deterministic","time":1700000000.0,"pid":77}\n'
)
"""A log from before there were records of products."""


def test_a_log_may_hold_old_lines_and_products(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(OLD, encoding="utf-8")
    Log(path).add(product())
    old = record(tiles=(HOST_TILE,), winner=0, winner_us=12.0)
    assert read_log(path) == Report((old, product()), {"matmul_deterministic": 1})
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["kernel", "untouched", "product"]


def test_keys_of_a_later_release_are_left_alone(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(changed(lambda v: (v.update(mood="good"), v["tiles"][0].update(n_regs=32))))
    assert read_log(path).records == (record(),)


def test_a_forked_child_reports_on_itself_and_needs_no_lock_of_its_parent(path: Path) -> None:
    code = """
import os, sys, threading
from tests.runtime.hooks.test_report import record
from tileguard.runtime.hooks.report import Log
log = Log(sys.argv[1])
log.add(record(kernel="parent"))
held, done = threading.Event(), threading.Event()
def hold():
    with log._lock:
        held.set()
        done.wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    log.add(record(kernel="child"))
    os._exit([r.kernel for r in log.report().records] != ["child"])
done.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(log.report().records))
"""
    assert python(code, str(path), timeout=30.0).split() == ["0", "1"]
    assert [r.kernel for r in read_log(path).records] == ["parent", "child"]


def test_a_change_of_the_working_directory_does_not_move_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = Log("log.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    log.add(record())
    assert len(read_log(tmp_path / "log.jsonl").records) == 1


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = Log()
    log.add(record())
    log.count_untouched("pointwise")
    assert log.report().totals.kernels["tuned"] == 1
    assert list(tmp_path.iterdir()) == []


def test_the_log_brings_nothing_into_a_host_compiler_but_the_standard_library() -> None:
    code = """
import sys
import tileguard.runtime.hooks, tileguard.features.errors
before = set(sys.modules)
import tileguard.runtime.hooks.report
assert "tileguard.runtime.selector" not in sys.modules
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names - {"tileguard"}))
"""
    assert python(code).strip() == "[]"


def shown(table: Table, width: int) -> str:
    """A table as a terminal of that width shows it, no line longer."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    text = cast(io.StringIO, console.file).getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


LONG = "triton_red_fused_native_layer_norm_native_layer_norm_backward_add_mul_sum_12"
SHOWN = (
    record(xnumel=1048576, rnumel=151936, host_us=23456.7, winner_us=15000.0),
    kept(kernel=LONG, tiles=(HOST_TILE, replace(MODEL_TILE, proposers=PROPOSERS))),
    record(kernel="triton_per_fused_3", outcome="cached", host_us=None, winner_us=None),
    record(kernel="triton_red_fused_4", outcome="failed", winner=None, host_us=None, winner_us=None),
)


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (40, "kernel winner gain"),
        (80, "kernel x × r winner by winner µs gain"),
        (115, "kernel x × r dtype verdict tiles winner by host µs winner µs gain"),
        (120, "kernel x × r dtype verdict tiles winner proposed by host µs winner µs gain"),
    ],
)
def test_figures_stay_whole_at_every_width(width: int, columns: str) -> None:
    table = report_cli.report_table(SHOWN, width=width)
    text = shown(table, width)
    header, rows = text.splitlines()[1], text.splitlines()[3:]
    assert " ".join(header.split()) == columns
    assert "1.56×" in rows[0]
    assert "X4·R256·w8·s2" in rows[0]
    assert "1.00×" in rows[1]
    assert "_12" in rows[1]
    assert "failed" in rows[3]
    for text in ("1048576 × 151936", "15000") if width >= 80 else ():
        assert text in rows[0]
    if width >= 115:
        assert "2/1" in rows[0]
        assert "23457" in rows[0]
        assert "cached" in rows[2]
    for line in rows:
        _, *others = line.split("  ")
        assert "…" not in "".join(others)


def test_products_stand_in_the_table_by_their_sizes_and_the_tile_or_template_that_won() -> None:
    aten = product(op="bmm", batch=8, winner=0, winner_us=30.0)
    failed = product(outcome="failed", winner=None, host_us=None, winner_us=None)
    both = (*SHOWN, product(), aten, failed)
    header, _, *rows = shown(report_cli.report_table(both, width=160), 160).splitlines()[1:]
    assert "x × r" in header
    for text in ("mm 512×1024×256", "bf16", "2/1", "M128·N64·K32·w4·s3·G8", "formula", "30.00", "20.00", "1.50×"):
        assert text in rows[4]
    for text in ("bmm 8×512×1024×256", "aten::mm", "host", "1.00×"):
        assert text in rows[5]
    assert "failed" in rows[6]
    alone = shown(report_cli.report_table((product(),), width=120), 120)
    assert "x × r" not in alone
    assert "mm 512×1024×256" in shown(report_cli.report_table(both[4:], width=80), 80)
    assert [r.kernel for r in report_cli.ordered((aten, product()), "gain")] == ["mm 512×1024×256", aten.kernel]


def test_the_legend_speaks_of_the_columns_that_are_there() -> None:
    assert report_cli.legend(SHOWN, width=160) == "tiles: compiled/failed; gain: the host's own choice ÷ winner"
    assert "by: proposed by host, formula, model" in report_cli.legend(SHOWN, width=80)
    assert "tiles" not in report_cli.legend(SHOWN, width=80)


def test_rows_come_by_gain_by_time_or_by_name_and_the_unknown_last() -> None:
    def names(order: str) -> list[str]:
        return [re.sub(r"\D", "", r.kernel) for r in report_cli.ordered(SHOWN, order)]

    assert names("gain") == ["0", "12", "3", "4"]
    assert names("time") == ["0", "12", "3", "4"]
    assert names("name") == ["3", "4", "0", "12"]
    with pytest.raises(InvalidInput):
        report_cli.ordered(SHOWN, "mood")
