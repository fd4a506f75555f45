"""The race of a matrix product's choices, where tileguard added some.

TorchInductor times each choice by itself, once, with the least of many launches; of a product of some µs that is mostly
what the host takes to launch it, and the more choices there are the likelier a lucky one wins. Here those that may be
fastest, the host's and the added alike, are timed again in interleaved rounds (race.py), the device kept busy
meanwhile: an added choice wins by more than the noise, or not at all.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from . import process_log
from .locks import ForkLock
from .matmul_log import Timing, is_recorded, timing
from .matmul_records import FAR, RACE_ERROR, UNTIMED
from .race import Measure, RaceResult, race
from .telling import warn_once

BENCHMARK = "benchmark_choices"
ADDED = "added_by_tileguard"
"""An attribute of a template's choice that the host did not list."""

NEAR, LAUNCH_MS = 3.0, 0.05
"""A choice is raced if the host found it to take up to so many times the least, or so much longer: what launching may
have added."""

_TAKING = ForkLock()
"""Held by the one thread that stands in for the host's stopwatch."""


def race_target(active: Callable[[], bool]) -> tuple[Any, str, Callable[[Any], Any]]:
    """What to patch, for Patches.put. Raises where torch's names or signatures are other ones."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    kind = vars(AlgorithmSelectorCache)
    check_parameters(kind[BENCHMARK].__func__, ("cls", "choices", "autotune_args", "is_collective"))
    check_parameters(kind["benchmark_choice"].__func__, ("cls", "choice", "autotune_args"))
    return AlgorithmSelectorCache, BENCHMARK, functools.partial(wrap, active=active)


def wrap(original: Any, *, active: Callable[[], bool]) -> Any:
    """The class method that takes the host's timings and, where choices were added, races; on any failure just those."""
    plain = original.__func__

    @functools.wraps(plain)
    def benchmark_choices(
        cls: Any, choices: Sequence[Any], autotune_args: Any, is_collective: bool = False
    ) -> dict[Any, float]:
        timings: dict[Any, float] = plain(cls, choices, autotune_args, is_collective)
        seen = timing()
        seen.asked = True
        try:
            if active() and any(map(is_added, timings)):
                seen.host_ms = timings
                if not is_collective:
                    with on_device_of(autotune_args), hosts_lock():
                        return raced(timings, lambda choice: run_of(cls, choice, autotune_args), seen=seen)
        except Exception as error:
            seen.why = RACE_ERROR
            if not is_recorded():
                process_log.current().count_untouched(RACE_ERROR)
            warn_once("tileguard leaves the timing of a matrix product to the host", error)
        return timings

    return classmethod(benchmark_choices)


def raced(
    timings: dict[Any, float],
    run: Callable[[Any], Callable[[], Any]],
    *,
    measure_of: Callable[[Sequence[Callable[[], Any]], Sequence[int]], Measure] | None = None,
    seen: Timing | None = None,
) -> dict[Any, float]:
    """The host's timings (ms, infinite for a choice that failed), with those of the raced ones in their place, on the
    host's scale; as they are where no added choice is among the near-best. run: what launches a choice. seen: is told
    what the race said, or why there was none."""
    seen = seen or Timing()
    least = min(timings.values(), default=math.inf)
    near = [
        choice for choice, ms in timings.items() if ms <= max(NEAR * least, least + LAUNCH_MS) and math.isfinite(ms)
    ]
    host = [i for i, choice in enumerate(near) if not is_added(choice)]
    if len(host) == len(near) or not least > 0.0:
        seen.why = FAR if 0.0 < least < math.inf else UNTIMED
        return timings
    began = time.perf_counter()
    runs = [run(choice) for choice in near]
    result = race(len(near), (measure_of or measured)(runs, host), host=host)
    seen.bench_s = time.perf_counter() - began
    if result.winner is None:
        seen.why = UNTIMED
        return timings
    seen.raced, seen.result, seen.scale = near, result, scale_of(result, least)
    return {**timings, **dict(zip(near, told(result, least), strict=True))}


def told(result: RaceResult, least_ms: float) -> list[float]:
    """Times in ms for a host that takes the least: the race's, scaled so that the winner's is the least that the host found.

    That keeps the winner below those that were not raced, and comparable with what the host times itself later, launch
    and all (a fused kernel: scheduler.py, speedup_by_fusion). No other is as low: the winner may owe its place to the
    noise.
    """
    scale = scale_of(result, least_ms)
    behind = math.nextafter(least_ms, math.inf)
    return [
        least_ms if i == result.winner else max(us * scale, behind) for i, us in enumerate(result.times_us)
    ]  # fmt: skip


def scale_of(result: RaceResult, least_ms: float) -> float:
    """What makes the winner's time the host's least: ms on the host's scale ÷ µs of the race."""
    assert result.winner is not None
    return least_ms / result.times_us[result.winner]


def is_added(choice: Any) -> bool:
    """Whether a choice of the host's autotuner was made for a tile of ours."""
    return bool(getattr(getattr(choice, "annotations", {}).get("ktc"), ADDED, False))


def run_of(cls: Any, choice: Any, autotune_args: Any) -> Callable[[], Any]:
    """What the host launches when it times a choice, taken from where it hands that to its stopwatch. Raises RuntimeError
    where it hands over nothing, or what it closes again."""
    from torch._inductor.runtime.benchmarking import benchmarker

    if hasattr(vars(choice).get("bmreq"), "DLL"):
        # CUTLASS (autotune_process.py, cleanup_run_fn): a launch would jump into a library that is unloaded by then.
        raise RuntimeError(f"the host unloads {choice} once it is timed")
    found: list[Callable[[], Any]] = []
    own = threading.get_ident()

    def keep(run: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != own:  # another graph's, which must be timed
            return before(run, *args, **kwargs)
        found.append(run)
        return 1.0

    with _TAKING:  # two that stand in at once would put each other back
        before = benchmarker.benchmark_gpu
        replaced = vars(benchmarker).get("benchmark_gpu")
        try:
            benchmarker.benchmark_gpu = keep
            cls.benchmark_choice(choice, autotune_args)
        finally:
            if replaced is not None:
                benchmarker.benchmark_gpu = replaced
            else:
                vars(benchmarker).pop("benchmark_gpu", None)
    if len(found) != 1:
        raise RuntimeError(f"the host times {choice} in {len(found)} launches")
    return found[0]


def on_device_of(autotune_args: Any) -> AbstractContextManager[Any]:
    """The device that the host's tensors are on, as the current one."""
    import torch

    _, output = autotune_args.get_benchmark_tensors(False).unpack()
    return torch.cuda.device(output.device) if output.device.type == "cuda" else nullcontext()


def hosts_lock() -> AbstractContextManager[Any]:
    """What the host enters for every timing, so that whoever shares the device can wait; torch before 2.13 has none."""
    from torch._inductor.runtime import benchmarking

    lock: Callable[[], AbstractContextManager[Any]] = getattr(benchmarking, "maybe_gpu_benchmark_lock", nullcontext)
    return lock()


def measured(runs: Sequence[Callable[[], Any]], host: Sequence[int]) -> Measure:
    """A stopwatch for these launches on the current device."""
    from torch._dynamo.device_interface import get_interface_for_device

    from .stopwatch import device_measure, l2_buffer

    device = get_interface_for_device("cuda")
    flush = l2_buffer(device, "cuda")

    def launch(i: int, start: Any, end: Any) -> None:
        flush.zero_()
        start.record()
        runs[i]()
        end.record()

    return device_measure(device, launch, len(runs), host, set())


def check_parameters(function: Callable[..., Any], expected: Iterable[str]) -> None:
    """Raise TypeError unless a function of the host's takes these."""
    found = tuple(inspect.signature(function).parameters)
    if found != tuple(expected):
        raise TypeError(f"{function.__qualname__} takes {found}, not {tuple(expected)}")
