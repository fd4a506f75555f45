"""A collection on the terminal: bars where there is one, else a line a kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tileguard.runtime.devices.base import Device
from tileguard.runtime.optional import require

from .collect import CollectProgress, CollectSummary, collect
from .workloads import Workload

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_S = 0.1
"""Least time between two drawings."""

Tell = Callable[[CollectProgress], None]


def collect_with_progress(
    workloads: Sequence[Workload],
    device: Device,
    out: str | Path,
    *,
    budget_s: float | None = None,
    console: Console | None = None,
) -> CollectSummary:
    """`collect`, shown on `console` (left out: standard error). Raises MissingDependency without rich."""
    require("rich")
    from rich.console import Console

    console = console or Console(stderr=True)
    shown = bars(console) if console.is_terminal else lines(console)
    with shown as tell:
        return collect(workloads, device, out, budget_s=budget_s, on_progress=tell)


@contextmanager
def bars(console: Console) -> Iterator[Tell]:
    """Two bars, kernels and the current one's tiles, with failures, time gone by and time left."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    # Drawn from here and by no thread of its own: that one would wake up in the middle of a measurement.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        kernels = progress.add_task("kernels", total=None, note="", visible=False)
        tiles = progress.add_task("", total=None, note="", visible=False)
        drawn = 0.0

        def tell(now: CollectProgress) -> None:
            nonlocal drawn
            note = f"{clock(now.seconds)} gone, {clock(now.left_s)} left, {now.failed} tiles failed"
            progress.update(kernels, total=now.kernels, completed=now.kernels_done, note=note, visible=True)
            step = "timing" if now.kernel_tiles_done == now.kernel_tiles and not now.kernel_done else "tiles"
            progress.update(
                tiles,
                description=now.workload.workload,
                total=now.kernel_tiles,
                completed=now.kernel_tiles_done,
                note=step,
                visible=True,
            )
            if step == "timing" or now.kernel_done or time.monotonic() - drawn >= REFRESH_S:
                progress.refresh()
                drawn = time.monotonic()

        yield tell


@contextmanager
def lines(console: Console) -> Iterator[Tell]:
    """One line for every finished kernel."""

    def tell(now: CollectProgress) -> None:
        if not now.kernel_done:
            return
        best = "no tile works" if now.best_us is None else f"best {now.best_us:.4g} us"
        console.print(
            f"{now.kernels_done}/{now.kernels} {now.workload.workload}: {now.kernel_tiles} tiles, {best}; "
            f"{clock(now.seconds)} gone, {clock(now.left_s)} left, {now.failed} tiles failed",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    yield tell


def clock(seconds: float | None) -> str:
    """h:mm:ss, or dashes where it is not known."""
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
