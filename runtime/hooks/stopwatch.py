"""Times launches on the device: of a CachingAutotuner's candidates, or of any."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from .race import Measure

CYCLES_PER_US = 2000
"""Of a GPU's clock, rounded up; only how long it busies itself hangs on it."""

MAX_AHEAD_US = 5_000.0
"""Longest busy wait before a round."""


def spills(autotuner: Any, launcher: Any) -> bool:
    """Whether a candidate spills more registers than the host tolerates, which then does not time it at all."""
    threshold = autotuner.inductor_meta.get("spill_threshold", 32 if torch.version.hip else 16)
    return launcher.n_spills is not None and launcher.n_spills > threshold


def stopwatch(
    autotuner: Any, launchers: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any], host: Container[int]
) -> Measure:
    """Times launches as `device_measure` does and, where the kernel writes over its inputs, on copies. A candidate that
    spills more than the host tolerates is infinite."""
    device = autotuner.get_device_interface()
    stream = device.get_raw_stream(device.current_device())
    copies = autotuner.copy_args_to_cpu_if_needed(*args, **kwargs)
    in_place = bool(copies or autotuner.mutated_arg_names or autotuner.reset_to_zero_arg_names)
    flush = l2_buffer(device, autotuner.device_props.type)

    def launch(i: int, start: Any, end: Any) -> None:
        own_args, own_kwargs = autotuner.maybe_clone_args(copies, *args, **kwargs) if in_place else (args, kwargs)
        if in_place:
            autotuner.reset_to_zero_args(*args, **kwargs)
        flush.zero_()
        start.record()
        launchers[i](*own_args, **own_kwargs, stream=stream)
        end.record()
        if in_place:
            autotuner.restore_args_from_cpu(copies)

    out = {i for i, launcher in enumerate(launchers) if spills(autotuner, launcher)}
    return device_measure(device, launch, len(launchers), host, out)


def l2_buffer(device: Any, device_type: str) -> Any:
    """A tensor to write over between launches, as large as the L2 of the current device."""
    nbytes = getattr(torch.cuda.get_device_properties(device.current_device()), "L2_cache_size", 0) or 64 << 20
    return torch.empty(nbytes // 4, dtype=torch.int, device=device_type)


def device_measure(
    device: Any, launch: Callable[[int, Any, Any], None], n: int, host: Container[int], out: set[int]
) -> Measure:
    """Times launches by device events, each with a cold L2.

    device: torch's interface. launch(i, start, end): queues candidate i between the records of two events, after
    whatever must not be timed. The device is kept busy while a round's launches are queued, for as long as queueing has
    taken so far: an interval in which it waits for the host would measure the host. Those in `out`, and whoever asks
    for an impossible launch, are infinite; so is any that cannot be launched, but for those of the `host`, whose
    failures are raised.
    """
    events = [(device.Event(enable_timing=True), device.Event(enable_timing=True)) for _ in range(n)]
    busy = getattr(torch.cuda, "_sleep", None)
    proven: set[int] = set()
    queueing_us = 50.0

    def prove(i: int) -> None:
        try:
            launch(i, *events[0])
            device.synchronize()
            proven.add(i)
        except Exception as error:
            # The host's own rule (benchmarking.py): an impossible launch is a slow one, anything else is real. An error
            # that sticks to the device will fail the next launch too.
            if i in host and "invalid configuration" not in str(error).lower():
                raise
            out.add(i)

    def measure(indices: Sequence[int]) -> list[float]:
        nonlocal queueing_us
        for i in indices:
            if i not in proven and i not in out:
                prove(i)
        running = [i for i in indices if i not in out]
        if busy is not None:
            busy(int(min(1.5 * queueing_us * len(running) + 50.0, MAX_AHEAD_US) * CYCLES_PER_US))
        began = time.perf_counter()
        for i, pair in zip(running, events, strict=False):
            launch(i, *pair)
        if running:
            queueing_us = (time.perf_counter() - began) * 1e6 / len(running)
        device.synchronize()
        times = {i: start.elapsed_time(end) * 1e3 for i, (start, end) in zip(running, events, strict=False)}
        return [times.get(i, math.inf) for i in indices]

    return measure
