"""Tuning on a replayed corpus: the argmin, the ties, the failures, the store."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support import FakeRanker, corpus_row, failed_row, manifest_for

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import Corpus, KernelSweep, read_corpus, write_corpus
from tileguard.runtime.devices.base import OK, STATUSES, CandidateError, Compiled, CompileError, OutOfResource, Timing
from tileguard.runtime.devices.replay import ReplayDevice
from tileguard.runtime.guard import GuardPolicy, Reason
from tileguard.runtime.objective import AmortisedTime, RunTime, break_even
from tileguard.runtime.selector import HOST, MODEL, Selector
from tileguard.runtime.tuner import (
    CONFIRM_BAND,
    CONFIRM_MOST,
    TIE_BAND,
    CandidateResult,
    NoCandidate,
    measure,
    pick_winner,
    tune,
)
from tileguard.runtime.winners import Winner, Winners

H200 = known_hardware("h200")


class Watched:
    """A device that counts what it is asked, and may fail some tiles."""

    def __init__(self, inner: ReplayDevice, fails: dict[ReductionTile, CandidateError] | None = None) -> None:
        self.inner = inner
        self.fails = fails or {}
        self.compiled: list[ReductionTile] = []
        self.benched: list[list[ReductionTile]] = []

    @property
    def hardware(self) -> HardwareSpec:
        return self.inner.hardware

    @property
    def toolchain(self) -> str:
        return self.inner.toolchain

    def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> Compiled:
        self.compiled.append(tile)
        if tile in self.fails:
            raise self.fails[tile]
        return self.inner.compile(kernel, tile)

    def bench(self, compiled: Sequence[Compiled]) -> list[Timing]:
        self.benched.append([one.tile for one in compiled])
        return self.inner.bench(compiled)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def device(corpus: Corpus) -> Watched:
    return Watched(ReplayDevice(corpus.sweeps, H200, toolchain="triton 3.6"))


@pytest.fixture
def sweep(corpus: Corpus) -> KernelSweep:
    return corpus.sweeps[0]


def host_tiles(sweep: KernelSweep) -> tuple[ReductionTile, ...]:
    return tuple(sweep.tiles[i] for i in sweep.host_default)


def test_on_every_kernel_of_the_corpus_the_winner_is_the_argmin_within_the_tie_band(corpus: Corpus) -> None:
    selector = Selector(H200, model=None)
    for sweep in corpus.sweeps:
        result = tune(sweep.kernel, ReplayDevice([sweep], H200), selector, host_tiles=host_tiles(sweep))
        timed = {c.tile: c for c in result.candidates if c.timing is not None}
        assert set(timed) == {c.tile for c in result.candidates} & set(sweep.tiles)
        best = min(sweep.us[sweep.index[tile]] for tile in timed)
        tile = result.winner.tile
        assert best <= result.winner.us <= best * (1 + TIE_BAND)
        assert result.winner.us == sweep.us[sweep.index[tile]]
        assert result.winner.compile_ms == sweep.compile_ms[sweep.index[tile]]
        assert best <= min(sweep.us[i] for i in sweep.host_default)


def test_every_candidate_is_accounted_for_in_the_sets_order(sweep: KernelSweep, device: Watched) -> None:
    selector = Selector(H200, model=None)
    result = tune(sweep.kernel, device, selector, host_tiles=host_tiles(sweep))
    expected = selector.select(sweep.kernel, host_tiles(sweep))
    assert [(c.tile, c.proposers) for c in result.candidates] == [(c.tile, c.proposers) for c in expected.candidates]
    for candidate in result.candidates:
        assert candidate.status in STATUSES
        assert (candidate.status == OK) == (candidate.timing is not None) == (candidate.error is None)
    assert device.compiled == list(expected.tiles)
    everything, finalists = device.benched
    assert everything == [c.tile for c in result.candidates if c.status == OK]
    times = {c.tile: c.timing.us for c in result.candidates if c.timing is not None}
    near = [
        tile
        for tile in sorted(times, key=lambda t: times[t])
        if times[tile] <= (1 + CONFIRM_BAND) * min(times.values())
    ]
    assert finalists == near[:CONFIRM_MOST]
    assert not result.from_store
    assert result.hardware == "h200"
    assert result.seconds >= 0


def test_another_objective_has_a_winner_of_its_own(sweep: KernelSweep, device: Watched) -> None:
    @dataclasses.dataclass(frozen=True)
    class Slowest:
        calls: float = math.inf

        def cost_us(self, timing: Timing, compile_ms: float) -> float:
            return -timing.us

    winners = Winners(None)
    selector = Selector(H200, model=None)
    fast = tune(sweep.kernel, device, selector, winners=winners)
    slow = tune(sweep.kernel, device, selector, winners=winners, objective=Slowest())
    assert not slow.from_store
    assert slow.winner.us > fast.winner.us
    assert tune(sweep.kernel, device, selector, winners=winners).winner == fast.winner


def test_a_selector_of_another_hardware_is_refused(sweep: KernelSweep, device: Watched) -> None:
    with pytest.raises(InvalidInput, match="h200"):
        tune(sweep.kernel, device, Selector("ascend910b3", model=None))


def test_one_disturbed_round_does_not_pick_the_winner(sweep: KernelSweep) -> None:
    class Disturbed(Watched):
        """The fastest tile reads 20 % slow the first time."""

        def bench(self, compiled: Sequence[Compiled]) -> list[Timing]:
            timings = super().bench(compiled)
            if len(self.benched) == 1:
                best = min(range(len(timings)), key=lambda i: timings[i].us)
                timings[best] = dataclasses.replace(timings[best], us=timings[best].us * 1.2)
            return timings

    selector = Selector(H200, model=None)
    quiet, disturbed = (
        tune(sweep.kernel, device, selector)
        for device in (Watched(ReplayDevice([sweep], H200)), Disturbed(ReplayDevice([sweep], H200)))
    )
    assert disturbed.winner == quiet.winner


def test_a_model_that_is_trusted_proposes_and_is_named(
    corpus: Corpus, device: Watched, model_dir: Path, known_kernel: ReductionKernel
) -> None:
    selector = Selector(H200, model=model_dir, policy=GuardPolicy(score_budget_s=60.0))
    result = tune(known_kernel, device, selector)
    assert result.verdict.reason is Reason.TRUST
    assert any(MODEL in c.proposers for c in result.candidates)
    assert result.proposers


def test_failing_candidates_cost_only_themselves(sweep: KernelSweep, device: Watched) -> None:
    selector = Selector(H200, model=None)
    whole = tune(sweep.kernel, device, selector)
    best = whole.winner.tile
    device.fails = {best: OutOfResource("shared memory: 300000 of 232448 bytes")}
    result = tune(sweep.kernel, device, selector)
    failed = next(c for c in result.candidates if c.tile == best)
    assert (failed.status, failed.timing, failed.compile_ms) == ("out_of_resource", None, None)
    assert failed.error == "shared memory: 300000 of 232448 bytes"
    assert result.winner.tile != best
    assert [c for c in result.candidates if c.tile != best] == [c for c in whole.candidates if c.tile != best]


def test_all_failing_raises_no_candidate_that_says_how(sweep: KernelSweep, device: Watched) -> None:
    selector = Selector(H200, model=None)
    tiles = selector.select(sweep.kernel).tiles
    device.fails = dict.fromkeys(tiles, CompileError("ptxas died"))
    with pytest.raises(NoCandidate) as caught:
        tune(sweep.kernel, device, selector)
    assert str(len(tiles)) in str(caught.value)
    assert "ptxas died" in str(caught.value)
    assert "compile_error" in str(caught.value)


def test_a_kernel_that_was_never_recorded_has_no_candidate(device: Watched) -> None:
    with pytest.raises(NoCandidate):
        tune(ReductionKernel(3, 5, "fp32", 1, 1), device, Selector(H200, model=None), winners=Winners(None))


def test_an_error_that_is_no_candidates_is_not_swallowed(sweep: KernelSweep, device: Watched) -> None:
    class Bug(Exception):
        pass

    device.fails = {tile: Bug() for tile in Selector(H200, model=None).select(sweep.kernel).tiles}  # type: ignore[misc]
    with pytest.raises(Bug):
        tune(sweep.kernel, device, Selector(H200, model=None))


def test_a_known_winner_compiles_nothing(sweep: KernelSweep, device: Watched, tmp_path: Path) -> None:
    selector, host = Selector(H200, model=None), host_tiles(sweep)
    first = tune(sweep.kernel, device, selector, host_tiles=host, winners=Winners(tmp_path / "w.sqlite"))
    device.compiled.clear()
    device.benched.clear()
    again = tune(sweep.kernel, device, selector, host_tiles=host, winners=Winners(tmp_path / "w.sqlite"))
    assert (device.compiled, device.benched) == ([], [])
    assert again.from_store
    assert again.candidates == ()
    assert (again.winner, again.proposers, again.verdict) == (first.winner, first.proposers, first.verdict)


def test_another_toolchain_or_candidate_set_is_tuned_anew(corpus: Corpus, sweep: KernelSweep, device: Watched) -> None:
    selector, winners = Selector(H200, model=None), Winners(None)
    tune(sweep.kernel, device, selector, winners=winners)
    assert tune(sweep.kernel, device, selector, winners=winners).from_store
    assert not tune(sweep.kernel, device, selector, winners=winners, host_tiles=sweep.tiles[-1:]).from_store
    newer = ReplayDevice(corpus.sweeps, H200, toolchain="triton 3.7")
    assert not tune(sweep.kernel, newer, selector, winners=winners).from_store


def test_a_stored_tile_that_is_no_candidate_is_not_believed(sweep: KernelSweep, device: Watched) -> None:
    selector, winners = Selector(H200, model=None), Winners(None)
    digest = selector.select(sweep.kernel).digest
    foreign = Winner(ReductionTile(3, 3, 3), 0.001, 1.0)
    winners.put(sweep.kernel, "h200", "triton 3.6; RunTime()", digest, foreign)
    result = tune(sweep.kernel, device, selector, winners=winners)
    assert not result.from_store
    assert winners.get(sweep.kernel, "h200", "triton 3.6; RunTime()", digest) == result.winner != foreign


def result_of(tile: ReductionTile, us: float, *, compile_ms: float = 100.0, mad: float = 0.0) -> CandidateResult:
    return CandidateResult(tile, (HOST,), OK, None, compile_ms, Timing(us, us, us, mad, 10))


A, B, C = (ReductionTile(x, 64, 1) for x in (1, 2, 4))


def test_no_result_has_no_winner() -> None:
    assert pick_winner([], RunTime()) is None
    assert pick_winner([CandidateResult(A, (HOST,), "compile_error", "no")], RunTime()) is None


@pytest.mark.parametrize(
    ("results", "winner"),
    [
        ([result_of(A, 10.0), result_of(B, 9.0)], B),
        # Within 2 % but outside both deviations: no tie.
        ([result_of(A, 10.1, compile_ms=1.0), result_of(B, 10.0)], B),
        # Within 2 % and within both deviations: the cheaper compile.
        ([result_of(A, 10.1, compile_ms=1.0, mad=0.06), result_of(B, 10.0, mad=0.06)], A),
        ([result_of(A, 10.1, compile_ms=200.0, mad=0.06), result_of(B, 10.0, mad=0.06)], B),
        # Within both deviations but beyond 2 %: no tie.
        ([result_of(A, 10.3, compile_ms=1.0, mad=5.0), result_of(B, 10.0, mad=5.0)], B),
        # Equal in all: the set's order.
        ([result_of(C, 10.0), result_of(A, 10.0), result_of(B, 10.0)], C),
        ([CandidateResult(A, (HOST,), "compile_error", "no"), result_of(B, 9.0)], B),
    ],
)
def test_ties_inside_the_noise_go_to_the_cheaper_compile_then_to_the_order(
    results: list[CandidateResult], winner: ReductionTile
) -> None:
    found = pick_winner(results, RunTime())
    assert found is not None
    assert found.tile == winner
    own = next(r for r in results if r.tile == winner)
    assert own.timing is not None
    assert found == Winner(winner, own.timing.us, own.compile_ms or 0.0)


def test_the_objective_decides_what_is_best() -> None:
    class CompileOnly:
        calls = 0.0

        def cost_us(self, timing: Timing, compile_ms: float) -> float:
            return compile_ms * 1e3

    results = [result_of(A, 1.0, compile_ms=500.0), result_of(B, 50.0, compile_ms=20.0)]
    found = pick_winner(results, CompileOnly())
    assert found == Winner(B, 50.0, 20.0)


def test_compiling_counts_where_the_objective_says_so() -> None:
    results = [result_of(A, 1.0, compile_ms=500.0), result_of(B, 50.0, compile_ms=20.0)]
    calls = break_even((20.0, 50.0), (500.0, 1.0))
    assert calls is not None
    assert calls == pytest.approx(480e3 / 49)
    assert pick_winner(results, AmortisedTime(calls * 0.9)) == Winner(B, 50.0, 20.0)
    assert pick_winner(results, AmortisedTime(calls * 1.1)) == Winner(A, 1.0, 500.0)


def test_the_selector_is_told_the_calls_and_near_the_best_is_compiled_twice(sweep: KernelSweep) -> None:
    class Slowing(ReplayDevice):
        """Every second compile of a tile takes half as long."""

        def __init__(self) -> None:
            super().__init__([sweep], H200)
            self.seen: Counter[ReductionTile] = Counter()

        def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> Compiled:
            self.seen[tile] += 1
            made = super().compile(kernel, tile)
            return dataclasses.replace(made, compile_ms=made.compile_ms / self.seen[tile])

    device, selector = Slowing(), Selector(H200, model=FakeRanker(manifest_for("h200")))
    found = tune(sweep.kernel, device, selector, objective=AmortisedTime(1e6))
    assert found.verdict.reason is Reason.OUT_OF_RANGE
    assert "calls=1e+06 (trained on run time)" in found.verdict.detail
    twice = {tile for tile, n in device.seen.items() if n == 2}
    assert 2 <= len(twice) <= CONFIRM_MOST
    assert set(device.seen.values()) == {1, 2}
    recorded = float(sweep.compile_ms[sweep.index[found.winner.tile]])
    assert found.winner.tile in twice
    assert found.winner.compile_ms == recorded / 2
    again = tune(sweep.kernel, Slowing(), selector)
    assert again.verdict.trusted


def test_a_second_compile_that_fails_leaves_the_first(sweep: KernelSweep) -> None:
    class Once(ReplayDevice):
        def __init__(self) -> None:
            super().__init__([sweep], H200)
            self.seen: set[ReductionTile] = set()

        def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> Compiled:
            if tile in self.seen:
                raise CompileError("no more")
            self.seen.add(tile)
            return super().compile(kernel, tile)

    found = tune(sweep.kernel, Once(), Selector(H200, model=None), objective=AmortisedTime(1e6))
    assert found.winner.compile_ms == float(sweep.compile_ms[sweep.index[found.winner.tile]])


def test_winners_of_different_numbers_of_calls_are_kept_apart(sweep: KernelSweep, device: Watched) -> None:
    winners, selector = Winners(None), Selector(H200, model=None)
    first = tune(sweep.kernel, device, selector, winners=winners, objective=AmortisedTime(1))
    assert not tune(sweep.kernel, device, selector, winners=winners, objective=AmortisedTime(1e6)).from_store
    again = tune(sweep.kernel, device, selector, winners=winners, objective=AmortisedTime(1.0))
    assert again.from_store
    assert again.winner == first.winner


def test_recorded_failures_are_failures_again(tmp_path: Path) -> None:
    rows = [
        corpus_row(xblock=1, r0_block=1024, num_warps=8, us=5.0),
        failed_row("out_of_resource", xblock=2, r0_block=1024, num_warps=8),
        failed_row("not_measured", xblock=4, r0_block=1024, num_warps=8),
    ]
    write_corpus(rows, tmp_path / "c.parquet")
    corpus = read_corpus(tmp_path / "c.parquet")
    (sweep,) = corpus.sweeps
    candidate_set = Selector(H200, model=None).select(sweep.kernel, sweep.tiles)
    results = measure(candidate_set, ReplayDevice(corpus.sweeps, H200), RunTime())
    assert [r.status for r in results[:3]] == ["ok", "out_of_resource", "compile_error"]
