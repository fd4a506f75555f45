"""Collection loses no finished kernel and doubles none, wherever it is killed; it refuses what does not compare."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from rich.console import Console
from tests.support import CPU, ROOT

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.collect import CollectProgress, collect, sweep
from tileguard.learner.corpus import Corpus, read_corpus, read_rows, write_corpus
from tileguard.learner.journal import Journal, journal_path, lock_path
from tileguard.learner.progress import bars, clock, collect_with_progress, lines
from tileguard.learner.workloads import Workload, cpu_workload
from tileguard.runtime.devices.base import Compiled, CompileError, OutOfResource, Timing
from tileguard.runtime.devices.replay import ReplayDevice
from tileguard.runtime.lattice import lattice

WORKLOADS = tuple(cpu_workload("sum", x, 6, "fp32") for x in (2, 3, 5, 8, 1))
TINY = cpu_workload("max", 1, 2, "fp32")
FAILING_TILE = ReductionTile(1, 4)
Hook = Callable[[ReductionKernel], None]


@dataclass
class FakeDevice:
    """Times made of kernel and tile alone. `on_compile` and `on_bench` are told each kernel, and may die of it;
    `hopeless` are xnumels of kernels of which every tile fails. `seen`: kernels compiled, in order, once each."""

    hardware: HardwareSpec = CPU
    toolchain: str = "fake 1.0"
    hopeless: tuple[int, ...] = ()
    on_compile: Hook = lambda kernel: None
    on_bench: Hook = lambda kernel: None
    seen: dict[ReductionKernel, int] = field(default_factory=dict)

    def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> Compiled:
        self.seen[kernel] = self.seen.get(kernel, 0) + 1
        self.on_compile(kernel)
        if kernel.xnumel in self.hopeless:
            raise CompileError(f"tile {tile}: does not work")
        if tile == FAILING_TILE:
            raise OutOfResource(f"tile {tile}: registers is 3, over the limit of 2")
        return Compiled(kernel, tile, 1.5, handle=crc32(repr((kernel, tile)).encode()) % 1000 + 1.25, n_regs=7)

    def bench(self, compiled: Sequence[Compiled]) -> list[Timing]:
        assert compiled
        self.on_bench(compiled[0].kernel)
        return [Timing(one.handle, one.handle + 1, one.handle - 1, 0.1, 9) for one in compiled]

    def close(self) -> None:
        pass


def kernels(workloads: Iterable[Workload]) -> list[ReductionKernel]:
    return [one.kernel for one in workloads]


def names(corpus: Corpus) -> list[str]:
    return [one.workload for one in corpus.sweeps]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "c.parquet"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """What an uninterrupted run collects."""
    path = tmp_path_factory.mktemp("whole") / "c.parquet"
    collect(WORKLOADS, FakeDevice(), path)
    return read_corpus(path)


def assert_whole(out: Path, whole: Corpus) -> None:
    assert read_corpus(out).digest == whole.digest
    assert read_rows(out)[0] == read_rows(Path(whole.path))[0]
    assert files(out.parent) == {out.name}


def test_every_tile_of_every_kernel_is_a_row_with_its_result(out: Path) -> None:
    summary = collect(WORKLOADS, FakeDevice(), out)
    corpus = read_corpus(out)
    assert names(corpus) == [one.workload for one in WORKLOADS]
    assert [one.kernel for one in corpus.sweeps] == kernels(WORKLOADS)
    assert all(one.tiles == lattice(one.kernel, CPU).tiles for one in corpus.sweeps)
    rows, metadata = read_rows(out)
    assert metadata == {"toolchain": "fake 1.0"}
    for row in rows:
        failed = (row["xblock"], row["r0_block"]) == (1, 4)
        assert row["status"] == ("out_of_resource" if failed else "ok")
        assert (row["error"] is not None) == failed
        if not failed:
            assert (row["us_median"], row["us_min"]) == (row["us"] + 1, row["us"] - 1)
            assert (row["us_mad"], row["reps"], row["compile_ms"], row["n_regs"]) == (0.1, 9, 1.5, 7)
        assert (row["hardware"], row["op"], row["family"]) == ("cpu-test", "sum", "sum")
        assert row["host_default_rank"] is row["host_max_autotune_rank"] is row["source"] is None
    assert "registers is 3" in next(row["error"] for row in rows if row["status"] == "out_of_resource")
    failures = sum(row["status"] != "ok" for row in rows)
    assert (summary.swept, summary.known, summary.left, summary.hopeless) == (5, 0, 0, ())
    assert (summary.tiles_ok, summary.tiles_failed) == (len(rows) - failures, failures)
    assert files(out.parent) == {out.name}


def test_a_kernel_of_unstated_element_sizes_is_known_again(out: Path) -> None:
    plain = Workload(ReductionKernel(4, 8, "fp16", 1, 1, op="sum"), "plain", "sum")
    collect([plain], FakeDevice(), out)
    device = FakeDevice()
    assert collect([plain], device, out).known == 1
    assert not device.seen


def test_kernels_in_the_corpus_are_skipped_and_others_added(out: Path, whole: Corpus) -> None:
    collect(WORKLOADS[:2], FakeDevice(), out)
    device = FakeDevice()
    summary = collect(WORKLOADS, device, out)
    assert list(device.seen) == kernels(WORKLOADS[2:])
    assert (summary.swept, summary.known) == (3, 2)
    assert_whole(out, whole)
    assert collect(WORKLOADS, FakeDevice(), out).swept == 0
    assert_whole(out, whole)


def test_a_recorded_corpus_can_be_collected_from_its_replay(out: Path, whole: Corpus, tmp_path: Path) -> None:
    device = ReplayDevice(list[Any](whole.sweeps), CPU)
    collect(WORKLOADS, device, out)
    assert read_corpus(out).digest == whole.digest


# Each entry makes a fake device, or the collector, kill its own process at one moment.
DEATHS = {
    "first compile": "device.on_compile = die",
    "in the third kernel": "device.on_compile = lambda kernel: kernel.xnumel == 5 and die()",
    "timing the fourth kernel": "device.on_bench = lambda kernel: kernel.xnumel == 8 and die()",
    "before the journal is synced": "os.fsync = lambda descriptor: die()",
    "after the second line": "append = Journal.append; Journal.append = lambda *a: (append(*a), len(device.seen) == 2 and die())",
    "half a line written": "journal.json = Half",
    "before the corpus is written": "collect.write_corpus = die",
    "half the corpus written": "corpus.pq.write_table = lambda table, path, **_: (open(path, 'wb').write(b'PAR1'), die())",
    "before the corpus is put in place": "from pathlib import Path; Path.replace = die",
    "before the journal is removed": "Journal.keep = die",
    "before the lock is removed": "keep = Journal.keep; Journal.keep = lambda *a: (keep(*a), die())",
}  # fmt: skip

KILLED = """
import json, os, signal, sys
from tests.learner.test_collect import FakeDevice, WORKLOADS
from tileguard.learner import collect, corpus, journal
Journal = collect.Journal

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

class Half:
    loads = staticmethod(json.loads)
    @staticmethod
    def dumps(entry, **options):
        text = json.dumps(entry, **options)
        if entry["kernel"]["xnumel"] == 3:
            with collect.journal_path(sys.argv[1]).open("a") as stream:
                stream.write(text[: len(text) // 2])
            die()
        return text

device = FakeDevice()
DEATH
collect.collect(WORKLOADS, device, sys.argv[1])
"""


def run_killed(death: str, out: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    code = KILLED.replace("DEATH", death)
    return subprocess.run([sys.executable, "-c", code, str(out)], env=environment, check=False).returncode


@pytest.mark.parametrize("death", DEATHS)
def test_a_collector_killed_at_any_moment_goes_on_where_it_was(death: str, out: Path, whole: Corpus) -> None:
    assert run_killed(DEATHS[death], out) == -signal.SIGKILL
    journal = journal_path(out)
    lines_left = journal.read_bytes().count(b"\n") if journal.exists() else 0
    written = len(read_corpus(out).sweeps) if out.exists() else 0
    device = FakeDevice()
    summary = collect(WORKLOADS, device, out)
    assert list(device.seen) == kernels(WORKLOADS[max(lines_left, written) :])
    assert summary.known == max(lines_left, written)
    assert_whole(out, whole)


def test_a_collector_killed_again_and_again_ends_with_the_same_corpus(out: Path, whole: Corpus) -> None:
    for xnumel in (3, 3, 5, 1):
        assert run_killed(f"device.on_bench = lambda kernel: kernel.xnumel == {xnumel} and die()", out) == -9
    collect(WORKLOADS, FakeDevice(), out)
    assert_whole(out, whole)


def test_a_last_line_torn_at_any_byte_is_cut_off(tmp_path: Path) -> None:
    folder, out = tmp_path / "first", tmp_path / "c.parquet"
    run_until_second_line(folder / "c.parquet")
    journal = journal_path(folder / "c.parquet").read_bytes()
    first, second = journal.splitlines(keepends=True)
    for cut in range(len(second)):
        torn = journal_path(out)
        torn.write_bytes(first + second[:cut])
        read = Journal(torn, FakeDevice()).read()
        assert list(read) == [TINY.workload]
        assert torn.read_bytes() == first
    for cut in (0, 1, len(second) // 2, len(second) - 1):
        journal_path(out).write_bytes(first + second[:cut])
        device = FakeDevice()
        collect([TINY, WORKLOADS[0]], device, out)
        assert list(device.seen) == [WORKLOADS[0].kernel]
        assert names(read_corpus(out)) == [TINY.workload, WORKLOADS[0].workload]
        out.unlink()


def run_until_second_line(out: Path) -> None:
    """Leave a journal of two kernels, as a crash before the corpus is written does."""

    def crash(kernel: ReductionKernel) -> None:
        if kernel.xnumel == 3:
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError):
        collect([TINY, WORKLOADS[0], WORKLOADS[1]], FakeDevice(on_compile=crash), out)
    assert journal_path(out).read_bytes().count(b"\n") == 2


def test_an_interrupt_writes_what_is_done_and_comes_through(out: Path, whole: Corpus) -> None:
    def interrupt(kernel: ReductionKernel) -> None:
        if kernel.xnumel == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(WORKLOADS, FakeDevice(on_bench=interrupt), out)
    assert names(read_corpus(out)) == [one.workload for one in WORKLOADS[:2]]
    assert files(out.parent) == {out.name}
    collect(WORKLOADS, FakeDevice(), out)
    assert_whole(out, whole)


def test_an_interrupt_before_anything_is_done_writes_nothing(out: Path) -> None:
    def interrupt(kernel: ReductionKernel) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(WORKLOADS, FakeDevice(on_compile=interrupt), out)
    assert files(out.parent) == set()


def test_a_spent_budget_ends_after_the_kernel_in_work_and_the_next_run_goes_on(out: Path, whole: Corpus) -> None:
    for done in range(1, 6):
        summary = collect(WORKLOADS, FakeDevice(), out, budget_s=1e-9)
        assert (summary.swept, summary.known, summary.left) == (1, done - 1, 5 - done)
        assert names(read_corpus(out)) == [one.workload for one in WORKLOADS[:done]]
    assert "run it again" not in str(summary)
    assert_whole(out, whole)


def test_what_is_left_is_said(out: Path) -> None:
    assert "4 left; run it again" in str(collect(WORKLOADS, FakeDevice(), out, budget_s=1e-9))


@pytest.mark.parametrize("budget", [0, -1.0, float("inf"), float("nan")])
def test_a_budget_must_be_a_positive_time(out: Path, budget: float) -> None:
    with pytest.raises(InvalidInput, match="budget_s"):
        collect(WORKLOADS, FakeDevice(), out, budget_s=budget)


def test_a_second_collector_of_one_corpus_is_refused(out: Path, whole: Corpus) -> None:
    refused: list[str] = []
    other = "import sys\nfrom tests.learner.test_collect import *\ncollect(WORKLOADS, FakeDevice(), sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}

    def meanwhile(kernel: ReductionKernel) -> None:
        if refused:
            return
        with pytest.raises(InvalidInput, match="no other collector"):
            collect(WORKLOADS, FakeDevice(), out)
        done = subprocess.run(
            [sys.executable, "-c", other, str(out)], capture_output=True, text=True, env=environment, check=False
        )
        refused.append(done.stderr)

    collect(WORKLOADS, FakeDevice(on_compile=meanwhile), out)
    assert "no other collector" in refused[0]
    assert_whole(out, whole)


def test_a_lock_file_that_nobody_holds_stops_nobody(out: Path) -> None:
    lock_path(out).touch()
    assert collect(WORKLOADS, FakeDevice(), out).swept == 5


def test_corpora_side_by_side_do_not_touch_each_other(tmp_path: Path) -> None:
    other = tmp_path / "c.parquet.other.parquet"

    def meanwhile(kernel: ReductionKernel) -> None:
        collect([TINY], FakeDevice(), other)

    collect(WORKLOADS, FakeDevice(on_bench=meanwhile), tmp_path / "c.parquet")
    assert files(tmp_path) == {"c.parquet", "c.parquet.other.parquet"}


def test_only_its_own_temporary_files_are_removed(out: Path) -> None:
    own = {"c.parquet.a1b2_3c4.tmp", "c.parquet.partial.jsonl.tmp"}
    others = {"c.parquet.other.parquet.a1b2_3c4.tmp", "c.parquet.bak", "d.parquet.a1b2_3c4.tmp", "c.parquet.tmp"}
    for name in own | others:
        (out.parent / name).touch()
    collect([TINY], FakeDevice(), out)
    assert files(out.parent) == others | {out.name}


def test_a_kernel_without_a_working_tile_is_reported_and_not_tried_again(out: Path) -> None:
    first = collect(WORKLOADS, FakeDevice(hopeless=(3,)), out)
    assert first.hopeless == (WORKLOADS[1].workload,)
    assert WORKLOADS[1].workload in str(first)
    assert names(read_corpus(out)) == [one.workload for one in WORKLOADS if one.kernel.xnumel != 3]
    assert [json.loads(line)["rows"][0]["status"] for line in journal_path(out).open()] == ["compile_error"]
    device = FakeDevice()
    second = collect((*WORKLOADS, TINY), device, out)
    assert (second.hopeless, second.swept) == (first.hopeless, 1)
    assert list(device.seen) == [TINY.kernel]
    journal_path(out).unlink()
    assert collect(WORKLOADS, FakeDevice(), out).swept == 1


def test_where_nothing_works_there_is_no_corpus(out: Path) -> None:
    summary = collect(WORKLOADS[:2], FakeDevice(hopeless=(2, 3)), out)
    assert len(summary.hopeless) == 2
    assert files(out.parent) == {journal_path(out).name}


JOURNAL_CHANGES: dict[str, tuple[str, FakeDevice]] = {
    "hardware": ("hardware", FakeDevice(hardware=replace(CPU, name="cpu-other"))),
    "toolchain": ("toolchain", FakeDevice(toolchain="fake 2.0")),
}


@pytest.mark.parametrize("change", JOURNAL_CHANGES)
def test_a_journal_measured_otherwise_is_refused_with_a_cure(out: Path, change: str) -> None:
    run_until_second_line(out)
    before = journal_path(out).read_bytes()
    field_, device = JOURNAL_CHANGES[change]
    with pytest.raises(InvalidInput, match=rf"line 1, {field_}.*delete the journal.*another file"):
        collect(WORKLOADS, device, out)
    assert journal_path(out).read_bytes() == before
    journal_path(out).unlink()
    collect(WORKLOADS, device, out)


def test_a_journal_of_other_tiles_is_refused_with_a_cure(out: Path) -> None:
    run_until_second_line(out)
    entries = [json.loads(line) for line in journal_path(out).open()]
    entries[1]["rows"].pop()
    journal_path(out).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with pytest.raises(InvalidInput, match=r"line 2, tiles.*delete the journal"):
        collect(WORKLOADS, FakeDevice(), out)


@pytest.mark.parametrize("line", ["not json", "{}", "[]", '{"kernel": {}, "rows": []}', '{"kernel": 1, "rows": [{}]}'])
def test_a_whole_line_that_is_no_entry_is_refused(out: Path, line: str) -> None:
    run_until_second_line(out)
    with journal_path(out).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(InvalidInput, match=r"line 3, line.*delete the journal"):
        collect(WORKLOADS, FakeDevice(), out)


def test_a_doubled_line_counts_once(out: Path, whole: Corpus) -> None:
    run_until_second_line(out)
    journal = journal_path(out)
    journal.write_bytes(journal.read_bytes() * 2)
    collect(WORKLOADS, FakeDevice(), out)
    assert names(read_corpus(out)).count(TINY.workload) == 1


def test_a_journal_of_kernels_that_nobody_asked_for_goes_into_the_corpus(out: Path) -> None:
    run_until_second_line(out)
    collect([WORKLOADS[2]], FakeDevice(), out)
    assert names(read_corpus(out)) == [TINY.workload, WORKLOADS[0].workload, WORKLOADS[2].workload]


@pytest.mark.parametrize("device", [FakeDevice(toolchain="2"), FakeDevice(hardware=replace(CPU, name="cpu-other"))])
def test_a_corpus_measured_otherwise_is_not_added_to(out: Path, device: FakeDevice) -> None:
    collect(WORKLOADS[:2], FakeDevice(), out)
    before = out.read_bytes()
    with pytest.raises(InvalidInput, match="collect into another file"):
        collect(WORKLOADS, device, out)
    assert out.read_bytes() == before


def test_a_corpus_that_states_no_toolchain_is_not_added_to(out: Path, whole: Corpus) -> None:
    write_corpus(read_rows(Path(whole.path))[0], out)
    with pytest.raises(InvalidInput, match="none stated"):
        collect(WORKLOADS, FakeDevice(), out)


def test_another_kernel_of_a_known_name_is_refused(out: Path) -> None:
    collect(WORKLOADS[:1], FakeDevice(), out)
    impostor = replace(WORKLOADS[1], workload=WORKLOADS[0].workload)
    with pytest.raises(InvalidInput, match="another name"):
        collect([impostor], FakeDevice(), out)


def test_bad_arguments_are_refused(tmp_path: Path, out: Path) -> None:
    with pytest.raises(InvalidInput, match="parquet"):
        collect(WORKLOADS, FakeDevice(), tmp_path / "c.csv")
    with pytest.raises(InvalidInput, match="workloads"):
        collect([], FakeDevice(), out)
    with pytest.raises(InvalidInput, match=r"workloads\[1\]"):
        collect([TINY, TINY], FakeDevice(), out)
    assert files(tmp_path) == set()


def test_a_file_that_is_no_corpus_is_refused_and_kept(out: Path) -> None:
    out.write_text("mine")
    with pytest.raises(InvalidInput, match=r"c\.parquet"):
        collect(WORKLOADS, FakeDevice(), out)
    assert out.read_text() == "mine"


def test_progress_counts_kernels_tiles_and_failures(out: Path) -> None:
    told: list[CollectProgress] = []
    collect(WORKLOADS, FakeDevice(hopeless=(3,)), out, on_progress=told.append)
    ends = [one for one in told if one.kernel_done]
    assert [one.workload for one in ends] == list(WORKLOADS)
    assert [one.kernels_done for one in ends] == [1, 2, 3, 4, 5]
    assert [one.best_us is None for one in ends] == [False, True, False, False, False]
    assert all(one.kernel_tiles_done == one.kernel_tiles for one in ends)
    assert told[0].left_s is None
    assert (told[-1].tiles_done, told[-1].left_s) == (told[-1].tiles, 0.0)
    assert told[-1].failed == len(lattice(WORKLOADS[1].kernel, CPU)) + 4
    assert [one.tiles_done for one in told] == sorted(one.tiles_done for one in told)


def test_time_left_follows_from_tiles_a_second() -> None:
    progress = CollectProgress(TINY, 0, 2, 25, 100, 5, 10, 0, seconds=50.0)
    assert progress.left_s == 150.0


def test_without_a_terminal_there_is_a_line_a_kernel(out: Path) -> None:
    text = io.StringIO()
    summary = collect_with_progress(WORKLOADS, FakeDevice(hopeless=(3,)), out, console=Console(file=text, width=40))
    printed = text.getvalue().splitlines()
    assert len(printed) == summary.swept == 5
    assert printed[0].startswith(f"1/5 {WORKLOADS[0].workload}: 6 tiles, best ")
    assert "no tile works" in printed[1]
    assert "\x1b" not in text.getvalue()


def test_on_a_terminal_there_are_bars(out: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    collect_with_progress(WORKLOADS, FakeDevice(), out, console=console)
    assert "kernels" in text.getvalue()
    assert "5/5" in text.getvalue()
    assert WORKLOADS[-1].workload in text.getvalue()
    assert "4 tiles failed" in text.getvalue()


@pytest.mark.parametrize("shown", [bars, lines])
def test_both_displays_survive_an_interrupt(shown: Any) -> None:
    with pytest.raises(KeyboardInterrupt), shown(Console(file=io.StringIO(), force_terminal=True)) as tell:
        tell(CollectProgress(TINY, 0, 1, 1, 2, 1, 2, 0, 1.0))
        raise KeyboardInterrupt


def test_clock_is_hours_minutes_seconds() -> None:
    assert [clock(s) for s in (None, 0, 59.6, 3661)] == ["-:--:--", "0:00:00", "0:01:00", "1:01:01"]


def test_part_of_a_lattice_can_be_swept() -> None:
    rows = sweep(TINY, FakeDevice(), tiles=[ReductionTile(1, 2)])
    assert [(row["xblock"], row["r0_block"], row["status"]) for row in rows] == [(1, 2, "ok")]


def test_a_real_cpu_corpus_resumes_to_the_same_kernels_and_tiles(tmp_path: Path) -> None:
    pytest.importorskip("llvmlite")
    from tileguard.runtime.devices.cpu import BenchRecipe, CpuDevice

    workloads = [cpu_workload("sum", 3, 12, "fp32"), cpu_workload("softmax", 4, 9, "bf16", inner=False)]
    device = CpuDevice(rounds=1, recipe=BenchRecipe(sample_us=20.0, screen_rounds=2))
    try:
        collect(workloads, device, tmp_path / "a.parquet")
        collect(workloads, device, tmp_path / "b.parquet", budget_s=1e-9)
        collect(workloads, device, tmp_path / "b.parquet", budget_s=1e-9)
    finally:
        device.close()
    a, b = read_corpus(tmp_path / "a.parquet"), read_corpus(tmp_path / "b.parquet")
    assert [(s.kernel, s.tiles, s.status) for s in a.sweeps] == [(s.kernel, s.tiles, s.status) for s in b.sweeps]
    assert all(status == "ok" for s in a.sweeps for status in s.status)
    assert "llvmlite" in read_rows(tmp_path / "a.parquet")[1]["toolchain"]
