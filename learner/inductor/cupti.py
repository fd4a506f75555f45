"""Durations of launches as CUPTI sees them, through torch's profiler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tileguard.runtime.optional import require

FLUSH_BYTES = 160 << 20
"""Written before each launch: several times an H200's L2 of 60 MB."""

WAITS = frozenset({"Context Sync", "Event Sync", "Stream Sync", "Stream Wait Event", "Unknown Sync"})
"""What a profiler may report of a GPU beside work."""


class Event(NamedTuple):
    """What ran on the GPU, in ns."""

    name: str
    start_ns: int
    end_ns: int


class CuptiStopwatch:
    """Durations by CUPTI, in µs: launchers take turns in rounds, in a new random order each, on a cold L2.

    A launcher may launch several kernels, as ATen's do: its time is from the first one's start to the last one's end.
    `time` raises LostEvents where events got lost twice.
    """

    def __init__(self, device: str = "cuda") -> None:
        self._torch = require("torch")
        self._flush = self._torch.empty(FLUSH_BYTES // 4, dtype=self._torch.int32, device=device)
        self._shuffle = random.Random(0)
        self._flush_name: str | None = None

    def launch(self, launcher: Any, args: Sequence[Any]) -> None:
        launcher(*args, stream=self._torch.cuda.current_stream().cuda_stream)

    def time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
        try:
            return self._time(launchers, args, rounds)
        except LostEvents:
            return self._time(launchers, args, rounds)

    def _time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
        if self._flush_name is None:
            self._flush_name = self._name_of_flush()
        stream = self._torch.cuda.current_stream().cuda_stream
        order: list[int] = []
        with self._recording() as profiler:
            for _ in range(rounds):
                turn = self._shuffle.sample(range(len(launchers)), len(launchers))
                for i in turn:
                    self._flush.zero_()
                    launchers[i](*args, stream=stream)
                order += turn
            self._torch.cuda.synchronize()
        found: list[list[float]] = [[] for _ in launchers]
        for i, us in zip(order, durations(_events(profiler), self._flush_name, len(order)), strict=True):
            found[i].append(us)
        return found

    def _name_of_flush(self) -> str:
        """How CUPTI calls what overwrites the cache: of anything that it sees then, what lasts longest."""
        with self._recording() as profiler:
            self._flush.zero_()
            self._torch.cuda.synchronize()
        events = _events(profiler)
        if not events:
            raise LostEvents("no event seen of one launch: CUPTI is not there, or another process has it")
        return max(events, key=lambda event: event.end_ns - event.start_ns).name

    def _recording(self) -> Any:
        from torch.profiler import ProfilerActivity, profile

        self._torch.cuda.synchronize()
        return profile(activities=[ProfilerActivity.CUDA])


def _events(profiler: Any) -> list[Event]:
    events = [one for one in profiler.profiler.kineto_results.events() if str(one.device_type()).endswith("CUDA")]
    return [
        Event(one.name(), one.start_ns(), one.start_ns() + one.duration_ns())
        for one in events
        if one.name() not in WAITS
    ]


def durations(events: Sequence[Event], flush: str, launches: int) -> list[float]:
    """µs of each launch, in order: of what ran between one event named `flush` and the next.

    Raises LostEvents where there are not `launches` of them, or one has nothing.
    """
    spans: list[list[Event]] = []
    for event in sorted(events, key=lambda event: event.start_ns):
        if event.name == flush:
            spans.append([])
        elif spans:
            spans[-1].append(event)
    seen = sum(map(bool, spans))
    if not len(spans) == seen == launches:
        raise LostEvents(f"{seen} launches seen of {launches}")
    return [(max(event.end_ns for event in span) - span[0].start_ns) / 1e3 for span in spans]


class LostEvents(RuntimeError):
    """CUPTI saw fewer launches, or more, than there were."""
