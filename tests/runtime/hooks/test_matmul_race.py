"""The race of a product's choices: the real host's timing loop over choices whose times are made up."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.select_algorithm import AlgorithmSelectorCache

from tileguard.runtime.hooks import matmul_race, process_log
from tileguard.runtime.hooks.matmul_log import Timing
from tileguard.runtime.hooks.matmul_race import ADDED, race_target, raced, run_of, told
from tileguard.runtime.hooks.patches import Patches
from tileguard.runtime.hooks.race import Measure, RaceResult


class Choice:
    """What the host's stopwatch says of it, in ms, and what a launch really takes, in µs."""

    def __init__(self, host_ms: float, us: float, *, added: bool = False) -> None:
        self.host_ms, self.us = host_ms, us
        self.annotations = {"ktc": SimpleNamespace(**{ADDED: True})} if added else {}

    def launch(self) -> Choice:
        return self

    def benchmark(self, *inputs: Any, out: Any) -> float:
        if math.isinf(self.host_ms):
            raise RuntimeError("invalid argument")
        return float(benchmarker.benchmark(self.launch, device="cuda"))


class Arguments:
    expected = None

    def get_benchmark_tensors(self, extern: bool) -> Any:
        return SimpleNamespace(unpack=lambda: ([torch.zeros(2)], torch.zeros(2)))


def true_times(runs: Sequence[Callable[[], Any]], host: Sequence[int]) -> Measure:
    return lambda indices: [runs[i]().us for i in indices]


def winner(timings: dict[Any, float]) -> Any:
    """As the host takes it."""
    return min(timings, key=timings.__getitem__)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[Any, float]]]:
    """The host's own `benchmark_choices`, with the race on top of it."""
    monkeypatch.setattr(benchmarker, "benchmark_gpu", lambda run, **kwargs: run().host_ms)
    monkeypatch.setattr(matmul_race, "measured", true_times)
    patches = Patches()

    def run(*choices: Choice, active: bool = True, **more: Any) -> dict[Any, float]:
        patches.undo()
        patches.put(*race_target(lambda: active))
        timings: dict[Any, float] = AlgorithmSelectorCache.benchmark_choices(choices, Arguments(), **more)
        return timings

    yield run
    patches.undo()


def test_a_lucky_added_choice_does_not_win(timed: Callable[..., dict[Any, float]]) -> None:
    aten, host, ours = Choice(0.040, 8.5), Choice(0.016, 13.9), Choice(0.015, 19.9, added=True)
    assert winner(timed(aten, host, ours)) is aten
    assert winner(timed(aten, host, ours, active=False)) is ours


def test_an_added_choice_that_is_faster_wins(timed: Callable[..., dict[Any, float]]) -> None:
    host, ours = Choice(0.016, 13.9), Choice(0.017, 10.0, added=True)
    timings = timed(host, ours)
    assert winner(timings) is ours
    assert timings == {host: pytest.approx(1.39 * 0.016), ours: 0.016}


def test_a_gain_within_the_noise_leaves_the_hosts_choice_the_least(timed: Callable[..., dict[Any, float]]) -> None:
    host, ours = Choice(0.016, 10.1), Choice(0.015, 10.0, added=True)
    timings = timed(host, ours)
    assert winner(timings) is host
    assert timings[host] < timings[ours] < 1.02 * timings[host]


def test_without_an_added_choice_near_the_best_the_hosts_timings_stand(timed: Callable[..., dict[Any, float]]) -> None:
    host, slow = Choice(0.5, 9.0), Choice(5.0, 1.0, added=True)
    for choices in ((host, Choice(0.6, 1.0)), (host, slow), (host, Choice(math.inf, 1.0, added=True))):
        assert timed(*choices) == {choice: choice.host_ms for choice in choices}
    assert timed(host, Choice(0.6, 1.0, added=True), is_collective=False)[host] == pytest.approx(9 * 0.5)


def test_what_failed_stays_infinite_and_what_is_far_keeps_the_hosts_time(
    timed: Callable[..., dict[Any, float]],
) -> None:
    host, ours = Choice(1.0, 1000.0), Choice(1.1, 900.0, added=True)
    failed, far = Choice(math.inf, 1.0), Choice(4.0, 1.0, added=True)
    timings = timed(host, ours, failed, far)
    assert (timings[failed], timings[far]) == (math.inf, 4.0)
    assert winner(timings) is ours


@pytest.mark.parametrize("fault", [ZeroDivisionError, RuntimeError, MemoryError])
def test_a_race_that_fails_leaves_the_hosts_timings(
    timed: Callable[..., dict[Any, float]], monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    def fail(*args: Any) -> Any:
        raise fault("broken on purpose")

    host, ours = Choice(0.016, 13.9), Choice(0.015, 19.9, added=True)
    for name in ("measured", "run_of"):
        with monkeypatch.context() as patched:
            patched.setattr(matmul_race, name, fail)
            before = dict(process_log.report().untouched)
            assert timed(host, ours) == {host: 0.016, ours: 0.015}
            after = dict(process_log.report().untouched)
            assert after.get("matmul_race_error", 0) == before.get("matmul_race_error", 0) + 1


def test_the_launch_is_taken_without_timing_it_and_other_threads_are_timed(
    timed: Callable[..., dict[Any, float]],
) -> None:
    host = vars(benchmarker)["benchmark_gpu"]
    other = Choice(0.25, 1.0)
    seen: list[float] = []

    class Busy(Choice):
        def benchmark(self, *inputs: Any, out: Any) -> float:
            thread = threading.Thread(target=lambda: seen.append(other.benchmark(out=None)))
            thread.start()
            thread.join()
            return super().benchmark(*inputs, out=out)

    run = run_of(AlgorithmSelectorCache, Busy(0.016, 13.9), Arguments())
    assert run().us == 13.9
    assert seen == [0.25]
    assert vars(benchmarker)["benchmark_gpu"] is host

    class Silent(Choice):
        def benchmark(self, *inputs: Any, out: Any) -> float:
            return 0.0

    with pytest.raises(RuntimeError, match="in 0 launches"):
        run_of(AlgorithmSelectorCache, Silent(0.1, 1.0), Arguments())
    assert vars(benchmarker)["benchmark_gpu"] is host


def test_a_winner_by_noise_is_still_the_least_for_the_host() -> None:
    host, ours = Choice(0.016, 10.1), Choice(0.015, 10.0, added=True)
    timings = raced({host: 0.016, ours: 0.015}, lambda choice: choice.launch, measure_of=true_times)
    assert list(timings) == [host, ours]
    assert winner(timings) is host


def test_what_the_race_said_or_why_there_was_none_is_told() -> None:
    def seen(*choices: Choice) -> Timing:
        told = Timing()
        timings = {choice: choice.host_ms for choice in choices}
        raced(timings, lambda choice: choice.launch, measure_of=true_times, seen=told)
        return told

    host, ours, far = Choice(0.016, 13.9), Choice(0.017, 10.0, added=True), Choice(5.0, 1.0, added=True)
    one = seen(host, ours, far)
    assert one.result is not None and one.result.winner == 1
    assert (one.raced, one.why) == ([host, ours], None)
    assert one.scale * 10.0 == pytest.approx(0.016)
    assert one.bench_s > 0
    assert (seen(host, far).why, seen(host, far).result) == ("far", None)
    assert seen(Choice(math.inf, 1.0), Choice(math.inf, 1.0, added=True)).why == "untimed"
    assert seen(Choice(0.1, math.inf), Choice(0.1, math.inf, added=True)).why == "untimed"


def test_the_winner_is_below_every_other_whatever_the_race_says() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        us, least = draw.uniform(1.0, 4000.0), draw.uniform(1e-3, 5.0)
        result = RaceResult(1, (0.99 * us, us, math.inf), (0.0,) * 3, (True,) * 3, (5,) * 3, False)
        faster, winner_ms, failed = told(result, least)
        assert winner_ms == least < faster < 1.0001 * least
        assert failed == math.inf


def test_one_that_was_not_raced_does_not_win_because_the_device_is_slower_by_then() -> None:
    host, ours, far = Choice(1.0, 4200.0), Choice(0.9, 3900.0, added=True), Choice(3.1, 1.0)
    timings = raced({one: one.host_ms for one in (host, ours, far)}, lambda one: one.launch, measure_of=true_times)
    assert winner(timings) is ours
    assert timings == {host: pytest.approx(0.9 * 42 / 39), ours: 0.9, far: 3.1}


def test_nothing_takes_no_time_and_is_left_to_the_host() -> None:
    host, ours = Choice(0.0, 1.0), Choice(0.01, 1.0, added=True)
    timings = {one: one.host_ms for one in (host, ours)}
    assert raced(timings, lambda one: one.launch, measure_of=true_times) == timings


def test_two_threads_take_launches_and_leave_the_hosts_stopwatch(timed: Callable[..., dict[Any, float]]) -> None:
    host = vars(benchmarker)["benchmark_gpu"]
    inside, came = threading.Event(), threading.Event()
    taken: list[Any] = []

    class First(Choice):
        def benchmark(self, *inputs: Any, out: Any) -> float:
            inside.set()
            came.wait(0.2)  # for a second one that is let in meanwhile
            return super().benchmark(*inputs, out=out)

    class Second(Choice):
        def benchmark(self, *inputs: Any, out: Any) -> float:
            came.set()
            first.join(5.0)
            return super().benchmark(*inputs, out=out)

    def take(choice: Choice) -> None:
        taken.append(run_of(AlgorithmSelectorCache, choice, Arguments()))

    first = threading.Thread(target=take, args=(First(0.1, 1.0),))
    first.start()
    inside.wait()
    take(Second(0.1, 2.0))
    first.join()
    assert sorted(run().us for run in taken) == [1.0, 2.0]
    assert vars(benchmarker)["benchmark_gpu"] is host


def test_an_interrupt_leaves_the_hosts_stopwatch(timed: Callable[..., dict[Any, float]]) -> None:
    host = vars(benchmarker)["benchmark_gpu"]

    class Interrupted(Choice):
        def benchmark(self, *inputs: Any, out: Any) -> float:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_of(AlgorithmSelectorCache, Interrupted(0.1, 1.0), Arguments())
    assert vars(benchmarker)["benchmark_gpu"] is host


def test_a_library_that_the_host_unloads_after_timing_is_not_raced(timed: Callable[..., dict[Any, float]]) -> None:
    cutlass, ours = Choice(0.016, 13.9), Choice(0.015, 19.9, added=True)
    cutlass.bmreq = SimpleNamespace(DLL=None)  # type: ignore[attr-defined]  # as CUTLASSBenchmarkRequest of 2.11
    assert timed(cutlass, ours) == {cutlass: 0.016, ours: 0.015}


def test_the_race_is_inside_the_lock_of_the_hosts_timings(
    timed: Callable[..., dict[Any, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime import benchmarking

    inside: list[bool] = []
    locked = False

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        nonlocal locked
        before, locked = locked, True
        yield
        locked = before

    def measured(runs: Sequence[Callable[[], Any]], host: Sequence[int]) -> Measure:
        inside.append(locked)
        return true_times(runs, host)

    monkeypatch.setattr(benchmarking, "maybe_gpu_benchmark_lock", lock, raising=False)
    monkeypatch.setattr(matmul_race, "measured", measured)
    timed(Choice(0.016, 13.9), Choice(0.015, 19.9, added=True))
    assert (inside, locked) == ([True], False)
