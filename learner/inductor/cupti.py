"""Durations of Triton kernels as CUPTI sees them, through torch's profiler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tileguard.runtime.optional import require

FLUSH_BYTES = 160 << 20
"""Written before each launch: several times an H200's L2 of 60 MB."""


class CuptiStopwatch:
    """Kernel durations by CUPTI, in µs: launchers take turns in rounds, in a new random order each, on a cold L2.

    `time` raises LostEvents where events got lost twice.
    """

    def __init__(self, device: str = "cuda") -> None:
        self._torch = require("torch")
        self._flush = self._torch.empty(FLUSH_BYTES // 4, dtype=self._torch.int32, device=device)
        self._shuffle = random.Random(0)

    def launch(self, launcher: Any, args: Sequence[Any]) -> None:
        launcher(*args, stream=self._torch.cuda.current_stream().cuda_stream)

    def time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
        try:
            return self._time(launchers, args, rounds)
        except LostEvents:
            return self._time(launchers, args, rounds)

    def _time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
        from torch.profiler import ProfilerActivity, profile

        cuda = self._torch.cuda
        stream = cuda.current_stream().cuda_stream
        order: list[int] = []
        cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(rounds):
                turn = self._shuffle.sample(range(len(launchers)), len(launchers))
                for i in turn:
                    self._flush.zero_()
                    launchers[i](*args, stream=stream)
                order += turn
            cuda.synchronize()
        events = [one for one in profiler.profiler.kineto_results.events() if str(one.device_type()).endswith("CUDA")]
        ours = sorted((one for one in events if one.name().startswith("triton_")), key=lambda one: one.start_ns())
        if len(ours) != len(order):
            raise LostEvents(f"{len(ours)} kernels seen of {len(order)} launched")
        found: list[list[float]] = [[] for _ in launchers]
        for i, event in zip(order, ours, strict=True):
            found[i].append(event.duration_ns() / 1e3)
        return found


class LostEvents(RuntimeError):
    """CUPTI saw fewer kernels, or more, than were launched."""
