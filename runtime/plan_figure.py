"""The picture behind `tileguard plan --draw`: the rounds of every strategy over time, and the tail's tiles.

Nothing here touches pyplot or matplotlib's settings: the figure is built on the Agg canvas.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .optional import require
from .tail.cuts import EXACT, Cut
from .tail.placement import tail_rects
from .tail.plan import TailPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

_MAIN, _TAIL, _IDLE, _INK = "#56b4e9", "#e69f00", "#eeeeee", "#222222"
_LINES = 40
"""Rounds up to which each is outlined; above, the full ones are one area."""

_PLANES = 3
"""Batches of the tail drawn at most."""


def save_plan(plan: TailPlan, path: Path) -> None:
    """Write the picture. Raises MissingDependency without matplotlib, OSError where the file cannot be written."""
    plan_figure(plan).savefig(path, dpi=150)


def plan_figure(plan: TailPlan) -> Figure:
    """A row of rounds a strategy, all on one time axis; below, the batches that the chosen strategy's tail is cut from."""
    figures = require("matplotlib.figure")
    require("matplotlib.backends.backend_agg")
    cuts = [cut for cut in plan.cuts.values() if cut is not None]
    planes = _tail_planes(plan)
    heights = [1.0] * len(cuts) + ([2.4] if planes else [])
    figure: Figure = figures.Figure(figsize=(9, 0.9 + 1.05 * sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), max(1, len(planes)), height_ratios=heights)
    longest = max(cut.us for cut in cuts)
    for row, cut in enumerate(cuts):
        axes = figure.add_subplot(grid[row, :])
        _rounds(axes, plan, cut, longest)
        if row < len(cuts) - 1:
            axes.set_xticklabels([])
        else:
            axes.set_xlabel("µs")
    for column, (batch, cells) in enumerate(planes):
        _plane(figure.add_subplot(grid[len(cuts), column]), plan, batch, cells)
    kernel = plan.kernel
    figure.suptitle(
        f"{kernel.batch} × ({kernel.m} × {kernel.k}) · ({kernel.k} × {kernel.n}), {kernel.dtype} on {plan.hardware}: "
        f"{plan.strategy}, rule {plan.rule.number}",
        fontsize=11,
    )
    return figure


def _rounds(axes: Axes, plan: TailPlan, cut: Cut, longest: float) -> None:
    full = cut.n_wave - 1 if cut.r else cut.n_wave
    block, cores = cut.block.block, plan.cores
    axes.add_patch(_box(0, 0, full * block, cores, _MAIN))
    if full <= _LINES:
        for index in range(1, full):
            axes.plot([index * block] * 2, [0, cores], color="white", linewidth=0.8)
    if cut.r:
        start = full * block
        axes.add_patch(_box(start, 0, cut.us - start, cores, _IDLE))
        axes.add_patch(_box(start, 0, cut.us - start, cut.tail_blocks, _TAIL if cut.new_tail else _MAIN))
        if full:
            axes.plot([start] * 2, [0, cores], color="white", linewidth=0.8)
    axes.set_xlim(0, longest * 1.02)
    axes.set_ylim(0, cores)
    axes.set_yticks([0, cores])
    axes.set_ylabel("cores", fontsize=8)
    axes.tick_params(labelsize=8)
    tail = f", tail {cut.tail_tile[0]} × {cut.tail_tile[1]}" if cut.new_tail else ""
    title = f"{cut.strategy}: {cut.us:.4g} µs; {cut.main_tile[0]} × {cut.main_tile[1]}{tail}; {cut.n_blk} blocks"
    axes.set_title(
        title, loc="left", fontsize=9, color=_INK, fontweight="bold" if cut.strategy == plan.strategy else "normal"
    )


def _tail_planes(plan: TailPlan) -> list[tuple[int, list[tuple[int, int, int, int]]]]:
    """(batch, its tail tiles as m0, m1, n0, n1) of the first few batches in the tail of the chosen strategy."""
    cut = plan.chosen
    if plan.geometry != EXACT or not cut.r:
        return []
    found: dict[int, list[tuple[int, int, int, int]]] = {}
    for batch, m0, m1, n0, n1 in tail_rects(plan, cut).tolist():
        found.setdefault(batch, []).append((m0, m1, n0, n1))
    return sorted(found.items())[:_PLANES]


def _plane(axes: Axes, plan: TailPlan, batch: int, cells: list[tuple[int, int, int, int]]) -> None:
    cut, kernel = plan.chosen, plan.kernel
    axes.add_patch(_box(0, 0, kernel.n, kernel.m, _MAIN))
    if max(cut.split) <= _LINES:
        for row in range(1, cut.split[0]):
            axes.plot([0, kernel.n], [row * cut.main_tile[0]] * 2, color="white", linewidth=0.6)
        for column in range(1, cut.split[1]):
            axes.plot([column * cut.main_tile[1]] * 2, [0, kernel.m], color="white", linewidth=0.6)
    for m0, m1, n0, n1 in cells:
        axes.add_patch(_box(n0, m0, n1 - n0, m1 - m0, _TAIL, edge="white", above=True))
    axes.set_xlim(0, kernel.n)
    axes.set_ylim(kernel.m, 0)
    axes.set_xticks([0, kernel.n])
    axes.set_yticks([0, kernel.m])
    axes.tick_params(labelsize=8)
    axes.set_title(f"batch {batch}: {len(cells)} blocks of the last round", loc="left", fontsize=9)


def _box(
    x: float, y: float, width: float, height: float, colour: str, *, edge: str = "none", above: bool = False
) -> Rectangle:
    """A filled rectangle; `above` the lines between blocks, or below them."""
    patches = require("matplotlib.patches")
    box: Rectangle = patches.Rectangle(
        (x, y), width, height, facecolor=colour, edgecolor=edge, linewidth=0.8, zorder=3 if above else 1
    )
    return box
