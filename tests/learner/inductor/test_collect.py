"""Collecting what TorchInductor generates: nothing is lost or measured twice, every failure is a row, budgets hold."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.support import ROOT, python

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import known_hardware
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import read_corpus, write_corpus
from tileguard.learner.inductor import sweep as inductor_sweep
from tileguard.learner.inductor import timing as inductor_timing
from tileguard.learner.inductor.capture import CapturedKernel, label_of, load_workloads
from tileguard.learner.inductor.collect import Settings, main, parse_tiles, progress_line
from tileguard.learner.inductor.job_pool import JobPool, Outcome, next_outcomes
from tileguard.learner.inductor.plan import Plan, PlannedTile, plan_tiles, stratified
from tileguard.learner.inductor.raw_sweep import RawSweep, read_lines
from tileguard.learner.inductor.sweep import Counts, Progress, Sweeper, TimingFault, ordered
from tileguard.learner.inductor.timing import CompiledTile, CompileJob, Machine, TimingJob
from tileguard.learner.sweep_import import read_sweep
from tileguard.runtime.devices.base import OK
from tileguard.runtime.lattice import lattice
from tileguard.runtime.selector import Selector

H200 = known_hardware("h200")
HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("triton") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch and triton")


def captured(x: int = 1000, r: int = 5000, *, family: str = "softmax", **changes: Any) -> CapturedKernel:
    """A kernel as if captured, described like a softmax over rows."""
    kernel = CapturedKernel(
        key=f"{family}-{x}-{r}", label=f"{family}:{x}x{r}", kernel="triton_red_fused_0", heuristic="REDUCTION",
        size_hints={"x": 1024, "r0_": 8192}, numels={"xnumel": x, "r0_numel": r},
        signature={"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "r0_numel": "i32"},
        inductor_meta={"num_load": 1, "num_store": 1, "num_reduction": 2, "reduction_hint": "ReductionHint.INNER"},
        baselines={"default": [[1, 2048, 16, 1]], "max_autotune": [[1, 2048, 16, 1], [8, 512, 4, 1]]},
        head="", src="def triton_red_fused_0(): pass",
        arg_names=("in_ptr0", "out_ptr0", "xnumel", "r0_numel", "XBLOCK", "R0_BLOCK"), args=(),
    )  # fmt: skip
    return replace(kernel, **changes)


KERNELS = tuple(captured(x) for x in (64, 96, 128, 160))
SELECTOR = Selector(H200, model=None)


def small_plan(kernel: CapturedKernel) -> Plan:
    plan = plan_tiles(kernel, SELECTOR, most=1)
    return replace(plan, tiles=(*plan.tiles, PlannedTile(ReductionTile(32, 64, 4), ("sample",))))


def compiling(job: CompileJob) -> CompiledTile:
    """Stands in for the compiler: tiles of 2 warps fail, one of 8 rows ends its process, one of 32 hangs."""
    if job.tile.num_warps == 2:
        raise RuntimeError("out of resource: shared memory")
    if job.tile == ReductionTile(8, 512, 4):
        os._exit(7)
    if job.tile.xblock == 32:
        time.sleep(60)
    return CompiledTile(5.0, None)


def timing(job: TimingJob | None) -> Any:
    """Stands in for the GPU: 1 to 2 µs a tile; a kernel of 96 rows cannot be timed."""
    if job is None:
        return Machine(H200, "fake 1.0", {"gpu": "none"})
    assert isinstance(job.kernel, CapturedKernel)
    if job.kernel.numels["xnumel"] == 96:
        raise RuntimeError("lost events")
    us = [1 + crc32(repr(tile.sort_key).encode()) / 2**32 for tile in job.tiles]
    return [{"us": one, "us_min": one, "mad": 0.0, "reps": 9, "regs": 32, "spills": 0, "shared": 16} for one in us]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_sweep, "tile_compiler", lambda: compiling)
    monkeypatch.setattr(inductor_sweep, "tile_timer", lambda: timing)


def run_sweep(
    out: Path,
    kernels: Sequence[CapturedKernel] = KERNELS,
    *,
    plan: Callable[[CapturedKernel], Plan] = small_plan,
    budget_s: float = math.inf,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Counts:
    counts = Counts()
    sweep = RawSweep(out)
    try:
        with Sweeper(compilers=2, compile_limit_s=0.25, tell=tell) as sweeper:
            todo = [kernel for kernel in kernels if kernel.key not in sweep.records]
            sweeper.sweep(todo, plan, sweep, counts, deadline=time.monotonic() + budget_s, common={"hardware": "h200"})
    finally:
        sweep.close()
    return counts


def records(path: Path) -> dict[str, dict[str, Any]]:
    found = list(read_lines(path))
    by_key = {record["key"]: record for record in found}
    assert len(by_key) == len(found), "a kernel twice"
    return by_key


# What is measured


def test_a_dense_plan_is_the_lattice_that_the_ranker_chooses_from_and_the_hosts_lists() -> None:
    plan = plan_tiles(captured(), SELECTOR, most=None)
    tiles = [planned.tile for planned in plan.tiles]
    space = lattice(captured().described, H200)
    assert tiles[:2] == [ReductionTile(1, 2048, 16), ReductionTile(8, 512, 4)]
    assert set(space) <= set(tiles)
    assert len(set(tiles)) == len(tiles)
    assert plan.lattice_size == len(space)
    for planned in plan.tiles:
        assert ("lattice" in planned.by) == (planned.tile in space.position)


def test_a_capped_plan_holds_host_formula_and_model_and_fills_up_with_a_sample() -> None:
    plan = plan_tiles(captured(), Selector(H200, top_k=10), most=60)
    assert len(plan.tiles) == 60 < plan.lattice_size
    rules = Counter(rule for planned in plan.tiles for rule in planned.by)
    assert rules["host"] == 2
    assert rules["model"] == 10
    assert rules["formula"] > 5
    assert rules["sample"] > 10
    assert all(planned.by == ("sample",) or "sample" not in planned.by for planned in plan.tiles)
    assert plan == plan_tiles(captured(), Selector(H200, top_k=10), most=60)
    assert plan != plan_tiles(captured(), Selector(H200, top_k=10), most=60, seed=1)


def test_a_sample_takes_all_sizes_and_warp_counts_before_it_takes_one_twice() -> None:
    space = lattice(captured().described, H200)
    strata = {(tile.xblock * tile.r0_block, tile.num_warps) for tile in space}
    sample = stratified(space, len(strata), seed="0")
    assert {(tile.xblock * tile.r0_block, tile.num_warps) for tile in sample} == strata
    assert len(set(stratified(space, 10**6, seed="0"))) == len(space)


def test_tiles_that_the_generated_code_cannot_take_are_not_planned() -> None:
    one_row = captured(arg_names=("in_ptr0", "out_ptr0", "xnumel", "r0_numel", "R0_BLOCK"), baselines={})
    assert {planned.tile.xblock for planned in plan_tiles(one_row, SELECTOR, most=None).tiles} == {1}
    floored = captured(minimums={"R0_BLOCK": 256}, baselines={})
    assert min(planned.tile.r0_block for planned in plan_tiles(floored, SELECTOR, most=None).tiles) == 256


def test_every_num_stages_that_is_asked_for_is_planned_beside_the_hosts_own() -> None:
    plan = plan_tiles(captured(), SELECTOR, most=1, stages=(1, 3))
    assert {planned.tile.num_stages for planned in plan.tiles} == {1, 3}
    assert len(plan.tiles) == 2 * len(plan_tiles(captured(), SELECTOR, most=1).tiles)


def test_families_take_turns_so_that_a_budget_cuts_all_of_them_alike() -> None:
    kernels = [captured(x, family=name) for name in ("a", "b", "c") for x in range(10, 15)]
    order = ordered(kernels, seed=0)
    assert sorted(one.key for one in order) == sorted(one.key for one in kernels)
    assert all({one.family for one in order[i : i + 3]} == {"a", "b", "c"} for i in range(0, 15, 3))
    assert order == ordered(kernels, seed=0) != ordered(kernels, seed=1)


# How it is measured, without torch


def test_failures_are_rows_and_the_sweep_imports_as_a_corpus(fake: None, tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl.xz"
    counts = run_sweep(out)
    found = records(out)
    assert set(found) == {kernel.key for kernel in KERNELS}
    errors = Counter(
        row["error"].split(":")[0] for record in found.values() for row in record["rows"] if "error" in row
    )
    assert set(errors) == {"RuntimeError", "Died", "CompileTimeout", "timing"}
    assert all("lost events" in row["error"] for row in found["softmax-96-5000"]["rows"] if "compile_ms" in row)
    assert (counts.kernels, counts.failed) == (4, sum(errors.values()))
    assert counts.hopeless == ["softmax:96x5000/triton_red_fused_0"]
    for kernel in KERNELS:
        rows = found[kernel.key]["rows"]
        assert [(row["X"], row["R"], row["w"], row["st"]) for row in rows] == [
            planned.tile.sort_key[:4] for planned in small_plan(kernel).tiles
        ]
        assert all(row["by"] for row in rows)
    rows = read_sweep(out, hardware="h200")
    assert {row["kernel_id"] for row in rows} == {
        f"{kernel.label}/{kernel.kernel}/{kernel.numels['xnumel']}x5000" for kernel in KERNELS
    } - {"softmax:96x5000/triton_red_fused_0/96x5000"}
    assert Counter(row["status"] for row in rows)[OK] == counts.ok
    write_corpus(rows, tmp_path / "c.parquet")
    assert len(read_corpus(tmp_path / "c.parquet").sweeps) == 3


def test_a_budget_ends_the_sweep_and_the_next_run_goes_on(fake: None, tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    assert run_sweep(out, budget_s=0.0).kernels == 0
    assert not out.exists()
    told: list[Progress] = []
    run_sweep(out, KERNELS[:1], tell=told.append)
    assert (told[-1].done, told[-1].total, told[-1].left_s) == (1, 1, 0.0)
    first = records(out)
    run_sweep(out)
    assert next(iter(records(out))) == KERNELS[0].key
    assert records(out)[KERNELS[0].key] == first[KERNELS[0].key]
    assert set(records(out)) == {kernel.key for kernel in KERNELS}
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_tile_that_loses_the_gpus_context_costs_itself_alone(
    fake: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel = KERNELS[0]
    timed = [one.tile for one in small_plan(kernel).tiles if one.tile.num_warps != 2 and one.tile.xblock not in (8, 32)]
    bad = timed[len(timed) // 2]

    def illegal(job: TimingJob | None) -> Any:
        if job is not None and bad in job.tiles:
            raise RuntimeError("an illegal memory access")
        return timing(job)

    monkeypatch.setattr(inductor_sweep, "tile_timer", lambda: illegal)
    run_sweep(tmp_path / "s.jsonl", [kernel])
    rows = records(tmp_path / "s.jsonl")[kernel.key]["rows"]
    lost = [kernel.tile(row) for row in rows if "illegal memory access" in row.get("error", "")]
    assert lost == [bad]
    assert {kernel.tile(row) for row in rows if "us" in row} == set(timed) - {bad}
    assert len(timed) > 2


def test_where_no_kernel_can_be_timed_the_run_stops_and_writes_none_of_them(fake: None, tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    with pytest.raises(TimingFault, match="lost events"):
        run_sweep(out, [captured(96, r) for r in range(4096, 4106)])
    assert not out.exists()


def test_a_pool_outlives_whatever_its_processes_do() -> None:
    def worker(job: str) -> str:
        if job == "die":
            os._exit(3)
        if job == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "hang":
            subprocess.run(["sleep", "60"], check=True)
        if job == "raise":
            raise ValueError("no")
        return job.upper()

    jobs = ["a", "die", "hang", "crash", "raise", "b", "c"]
    outcomes: list[Outcome] = []
    began = time.monotonic()
    with JobPool(lambda: worker, 2, limit_s=0.5, jobs_each=1) as pool:
        for job in jobs:
            pool.submit(job, job)
        while pool.waiting or pool.busy:
            outcomes += next_outcomes([pool], timeout_s=0.1)[0]
    assert time.monotonic() - began < 10
    assert {str(one.tag): one.result for one in outcomes if one.error is None} == {"a": "A", "b": "B", "c": "C"}
    errors = {str(one.tag): one.error for one in outcomes if one.error is not None}
    assert errors == {
        "die": "Died: exit status 3", "crash": "Died: SIGKILL", "hang": "Timeout: over 0.5 s", "raise": "ValueError: no",
    }  # fmt: skip


def test_a_pool_whose_processes_cannot_start_says_why() -> None:
    def make() -> Any:
        raise OSError("no GPU")

    with JobPool(make, 1, limit_s=5.0) as pool:
        pool.submit("one", 1)
        while not (outcomes := next_outcomes([pool], timeout_s=1.0)[0]):
            pass
    assert [one.error for one in outcomes] == ["OSError: no GPU"]


def test_a_torn_line_is_dropped_and_what_a_crash_left_twice_counts_once(tmp_path: Path) -> None:
    out, journal = tmp_path / "s.jsonl.xz", tmp_path / "s.jsonl.xz.partial.jsonl"
    sweep = RawSweep(out)
    sweep.append({"key": "a", "n": 1})
    sweep.close()
    journal.write_text('{"key":"a","n":2}\n{"key":"b","n":3}\n{"key":"c","n"')
    sweep = RawSweep(out)
    assert sweep.records == {"a": {"key": "a", "n": 1}, "b": {"key": "b", "n": 3}}
    with pytest.raises(InvalidInput, match="no other collector"):
        RawSweep(out)
    sweep.close()
    assert [record["key"] for record in read_lines(out)] == ["a", "b"]
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_scratch_folders_go_with_their_process_and_a_killed_ones_with_the_next(
    tmp_path: Path,
) -> None:
    code = f"""
import pathlib
from tileguard.learner.inductor import scratch
scratch.MEMORY, scratch.LEAST_BYTES = pathlib.Path({str(tmp_path)!r}), 1
print(scratch.make_scratch())
"""
    killed = subprocess.Popen([sys.executable, "-c", code + "import time; print(flush=True); time.sleep(60)"],
                              env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert killed.stdout is not None
    first = Path(killed.stdout.readline().strip())
    killed.stdout.readline()
    python(code)
    assert list(tmp_path.iterdir()) == [first], "in use"
    killed.kill()
    killed.wait()
    killed.stdout.close()
    python(code)
    assert list(tmp_path.iterdir()) == []


# What a user may give


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"tiles": 0}, "tiles"), ({"count": 0}, "count"), ({"budget_s": 0.0}, "budget_s"), ({"stages": (0,)}, "stages"),
     ({"processes": 0}, "processes"), ({"workloads": Path("w.py"), "repeat": Path("r.jsonl")}, "repeat")],
)  # fmt: skip
def test_bad_settings_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Settings(Path("o.jsonl.xz"), **changes)
    assert error.value.field == field


def test_tiles_is_a_number_or_dense() -> None:
    assert (parse_tiles("dense"), parse_tiles("64")) == (None, 64)
    for text in ("0", "-1", "all", "1e3"):
        with pytest.raises(InvalidInput):
            parse_tiles(text)


def test_progress_is_a_line() -> None:
    line = progress_line(Progress("sweep", 3, 9, 200, 2, 10.0, 20.0))
    assert line == "sweep: 3/9 kernels, 200 tiles compiled, 2 failed; 10 s gone, 20 s left at this pace"
    assert "- left" in progress_line(Progress("capture", 0, 9, 0, 0, 0.0, None))


@pytest.mark.parametrize(
    ("source", "fault"),
    [("", "defines workloads"), ("def workloads(seed): return []", "yields one workload"),
     ("from types import SimpleNamespace as N\ndef workloads(seed): return [N(family='a:b', name='x', run=print)]", "colon"),
     ("from types import SimpleNamespace as N\ndef workloads(seed): return 2 * [N(family='a', name='x', run=print)]", "distinct"),
     ("def workloads(seed): return [1]", "family, name and run")],
)  # fmt: skip
def test_a_file_of_workloads_that_is_none_is_refused(source: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "w.py"
    path.write_text(source)
    with pytest.raises(InvalidInput, match=fault):
        load_workloads(path, seed=0, most=10)


# The real Inductor and the real ptxas, on a GPU that is not there

WORKLOADS = """
from functools import partial
from types import SimpleNamespace

from tests.inductor_host import _run_workload

def fail():
    raise ValueError("on purpose")

def workloads(seed):
    for family, text in (
        ("softmax", "short_softmax:8x60"), ("other", "short_softmax:8x60"), ("sum", "sum0:40x24"), ("loop", "softmax:3x1500"),
    ):
        yield SimpleNamespace(family=family, name=f"{family}:{text}", run=partial(_run_workload, text, None))
    yield SimpleNamespace(family="bad", name="bad", run=fail)
"""
HOST = [sys.executable, "-m", "tests.learner.inductor.collector"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
OPTIONS = ("--tiles", "1", "--processes", "2")


@pytest.fixture(scope="module")
def workloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workloads") / "w.py"
    path.write_text(WORKLOADS)
    return path


def collect(*arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [*HOST, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT | environment, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def killed_and_finished(workloads: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """A sweep that was killed once one kernel was on disk, then run again: it, its first line, the second run's words."""
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("killed") / "s.jsonl.xz"
    journal = out.with_name(out.name + ".partial.jsonl")
    process = subprocess.Popen(
        [*HOST, str(workloads), "--out", str(out), *OPTIONS],
        cwd=ROOT, env=ENVIRONMENT | {"SLOW_TIMING_S": "1"}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.read_bytes().count(b"\n")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = journal.read_text().splitlines()[0]
    assert not out.exists()
    yield out, first, collect(workloads, "--out", out, *OPTIONS)


@needs_torch
def test_a_killed_run_loses_nothing_and_measures_nothing_twice(killed_and_finished: tuple[Path, str, str]) -> None:
    out, first, said = killed_and_finished
    found = records(out)
    assert json.loads(first) == found[json.loads(first)["key"]]
    known = int(said.split(" known before")[0].rsplit(" ", 1)[1])
    assert 1 <= known < len(found) == 3
    assert {path.name for path in out.parent.iterdir()} == {out.name, f"{out.name}.kernels.jsonl"}


@needs_torch
def test_kernels_are_captured_once_each_with_all_that_an_import_and_a_repetition_need(
    killed_and_finished: tuple[Path, str, str],
) -> None:
    out, _, said = killed_and_finished
    found = records(out)
    assert sorted(record["numels"]["r0_numel"] for record in found.values()) == [40, 60, 1500]
    assert {record["label"].split(":")[0] for record in found.values()} <= {"softmax", "sum", "loop"}, (
        "first comes first"
    )
    assert "workload failed: bad:bad: ValueError: on purpose" in said
    for record in found.values():
        assert record["hardware"] == "h200"
        assert record["machine"]["gpu"] == "NVIDIA H200"
        assert record["toolchain"].startswith("torch ")
        assert record["baselines"]["default"] and isinstance(record["baselines"]["max_autotune"], list)
        assert (record["head"] + record["src"]).count("def triton_") == 1
        assert all(row["us"] > 0 and row["regs"] > 0 and row["compile_ms"] > 1 for row in record["rows"])
        host = [row for row in record["rows"] if "host" in row["by"]]
        assert record["rows"][: len(host)] == host
    corpus = read_corpus(out, hardware="h200")
    assert len(corpus.sweeps) == 3
    assert all(sweep.host_default and sweep.host_max_autotune for sweep in corpus.sweeps)
    assert all(status == OK for sweep in corpus.sweeps for status in sweep.status)


@needs_torch
def test_a_repetition_measures_the_same_tiles_of_the_same_kernels_and_writes_parquet(
    killed_and_finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    out, _, _ = killed_and_finished
    again = tmp_path / "again.parquet"
    said = collect("--repeat", out, "--out", again, "--count", 1, "--processes", 2)
    assert f"{again}: corpus written" in said
    before, after = records(out), records(tmp_path / "again.jsonl.xz")
    assert len(after) == 1
    for key, record in after.items():
        assert record["repeat_of"] == str(out)
        same = ("X", "R", "w", "st", "by", "us", "regs")
        assert [[row[name] for name in same] for row in record["rows"]] == [
            [row[name] for name in same] for row in before[key]["rows"]
        ]
    assert {sweep.kernel_id for sweep in read_corpus(again).sweeps} <= {
        sweep.kernel_id for sweep in read_corpus(out, hardware="h200").sweeps
    }


def test_the_collector_needs_nothing_but_torch_and_numpy() -> None:
    code = """
import sys
for name in ("pyarrow", "typer", "rich", "lightgbm", "mlflow", "onnxruntime", "pandas", "sklearn", "scipy"):
    sys.modules[name] = None
import tileguard.learner.inductor.collect, tileguard.learner.inductor.sweep, tileguard.learner.inductor.plan
import tileguard.learner.inductor.capture, tileguard.learner.inductor.timing, tileguard.learner.inductor.raw_sweep
print("torch" in sys.modules)
"""
    assert python(code).strip() == "False"


@pytest.mark.skipif(not HAS_TORCH, reason="torch and triton")
def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    code = f"from tileguard.learner.inductor.collect import main; print(main(['--out', {str(tmp_path / 'o.jsonl')!r}]))"
    assert python(code).strip() == "2"


def test_labels_begin_with_the_family_once() -> None:
    from types import SimpleNamespace

    for name in ("softmax:1x2", "1x2"):
        workload: Any = SimpleNamespace(family="softmax", name=name, run=print)
        assert label_of(workload) == "softmax:1x2"


def test_main_is_a_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "o.csv"), "--tiles", "none"]) == 2
    assert "tiles" in capsys.readouterr().err


def test_a_time_is_the_mean_of_the_middle_half_and_finer_than_a_tick() -> None:
    ticks = [1.184, 1.216, 1.184, 1.216, 1.216, 1.184, 1.216, 9.9, 0.1]
    found = inductor_timing.summary(ticks)
    assert found["us"] == pytest.approx((1.184 * 2 + 1.216 * 3) / 5, abs=1e-4)
    assert (found["us_median"], found["us_min"], found["reps"]) == (1.216, 0.1, 9)
    one = inductor_timing.summary([2.0])
    assert (one["us"], one["us_median"], one["us_min"], one["mad"], one["reps"]) == (2.0, 2.0, 2.0, 0.0, 1)


@pytest.mark.parametrize(("best_us", "rounds"), [(2.0, inductor_timing.SHORT_ROUNDS), (20.0, inductor_timing.ROUNDS)])
def test_short_kernels_are_timed_more_often(best_us: float, rounds: int) -> None:
    asked: list[int] = []

    class Stopwatch:
        def time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
            asked.append(rounds)
            return [[best_us] * rounds for _ in launchers]

        def launch(self, launcher: Any, args: Sequence[Any]) -> None:
            raise AssertionError("all were launched before")

    inductor_timing.interleaved({0: None, 1: None}, (), Stopwatch(), hopeless=4.0)
    assert asked == [inductor_timing.LOOK_ROUNDS, rounds]
