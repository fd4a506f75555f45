"""The two figures of the reduction RFC (§4), top-k curves and feature importances, as matplotlib Figures.

Nothing here touches pyplot or matplotlib's settings: each function builds a Figure of its own on the Agg canvas.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tileguard.features.anchor import ASCEND_910B3, regime
from tileguard.features.errors import InvalidInput, checked_int
from tileguard.features.matmul import MATMUL_KERNEL_FEATURES
from tileguard.features.reduction import KERNEL_FEATURES
from tileguard.runtime.devices.cpu.features import CPU_KERNEL_FEATURES
from tileguard.runtime.optional import require

from .corpus import Corpus
from .evaluate import LOSSLESS, MINOR, SEVERE, Evaluation, tiers
from .figure_labels import Label, along, place_labels

if TYPE_CHECKING:
    from lightgbm import Booster
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
CLIP = 2.0
"""Slowdowns above this are drawn at the upper edge, under an arrow."""

# Okabe and Ito's colours tell apart under every common colour blindness; the tiers also run from cool to warm.
_INK, _GRAY, _FAINT = "#222222", "#767676", "#d4d4d4"
_TIERS = (
    ("lossless", LOSSLESS, "#0072b2"),
    ("5–10 %", MINOR, "#56b4e9"),
    ("10–30 %", SEVERE, "#e69f00"),
    ("severe", math.inf, "#c43c00"),
)
_REGIMES = {"small": ("o", "●", "#0072b2"), "mid": ("^", "▲", "#7a7a7a"), "hole": ("s", "■", "#c43c00")}
_LINES = ("#0072b2", "#c43c00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_TEXT, _SMALL_TEXT = 10.0, 9.0

_PRODUCTS = (1024, 2048, 4096, 8192)
"""Where the RFC finds 88 % of all winners' X·R0 (§3.1)."""

_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


def loss_against_rnumel(evaluation: Evaluation, selectors: Sequence[str]) -> Figure:
    """The RFC's figure 1, one panel for each of 2 to 4 selectors: every kernel by rnumel (elements, log) and slowdown
    (best time in the set ÷ dense best), coloured by loss tier, its marker by regime.

    The slowdown axis is logarithmic in slowdown - 1, so that every tier gets room. Raises InvalidInput for another
    number of selectors or an unknown one.
    """
    if not 2 <= len(selectors) <= 4:
        raise InvalidInput("selectors", tuple(selectors), "2 to 4 names")
    for name in selectors:
        if name not in evaluation.sets:
            raise InvalidInput("selectors", name, "one of " + ", ".join(evaluation.sets))
    rows, columns = (2, 2) if len(selectors) == 4 else (1, len(selectors))
    figure = _figure(3.9 * columns + 0.8, 3.7 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, name in zip(grid.flat, selectors, strict=True):
        _loss_panel(axes, evaluation, name)
    for axes in grid[:, -1]:
        _label_tiers(axes)
    for axes in grid[:, 0]:
        axes.set_ylabel("best time in set ÷ dense best", fontsize=_TEXT, color=_INK)
    for axes in grid[-1, :]:
        axes.set_xlabel(f"rnumel, elements ({len(evaluation.corpus.sweeps)} kernels)", fontsize=_TEXT, color=_INK)
    return figure


def winners_in_tile_space(corpus: Corpus) -> Figure:
    """The RFC's figure 2: the fastest tile of every kernel by XBLOCK and R0_BLOCK (elements, log2), by regime.

    Winners of the same tile are spread around it in a spiral, the same at each call. Drawn behind them: what the
    formula emits for the regimes HOLE and SMALL, and diagonals of equal product P = X·R0, the most frequent bold.
    """
    winners = [(sweep.tiles[int(np.argmin(sweep.slowdown))], regime(sweep.kernel.rnumel)) for sweep in corpus.sweeps]
    products = Counter(tile.xblock * tile.r0_block for tile, _ in winners)
    cells: dict[tuple[int, int], list[str]] = defaultdict(list)
    for tile, name in winners:
        cells[tile.xblock, tile.r0_block].append(name)
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in _REGIMES}
    for (x, r), names in sorted(cells.items()):
        for name, (dx, dy) in zip(sorted(names), _spiral(len(names)), strict=True):
            points[name].append((math.log2(x) + dx, math.log2(r) + dy))

    right = max(7.0, *(math.log2(x) for x, _ in cells)) + 0.7
    top = max(13.0, *(math.log2(r) for _, r in cells)) + 0.7
    figure = _figure(0.46 * (right + 0.7) + 2.6, 0.46 * (top + 0.7) + 1.0)
    axes = figure.subplots()
    axes.set(xlim=(-0.7, right), ylim=(-0.7, top), aspect="equal")
    _formula_regions(axes, right)
    _diagonals(axes, products, right, top)
    for name, (marker, _, colour) in _REGIMES.items():
        if points[name]:
            xs, ys = zip(*points[name], strict=True)
            label = f"{name}: {len(xs)} kernels"
            axes.scatter(
                xs, ys, s=30, marker=marker, color=colour, edgecolor="white", linewidth=0.5, label=label, zorder=4
            )
    axes.set_xticks(range(int(right) + 1), [str(2**i) for i in range(int(right) + 1)])
    axes.set_yticks(range(int(top) + 1), [str(2**i) for i in range(int(top) + 1)])
    axes.set_xlabel("XBLOCK, elements", fontsize=_TEXT, color=_INK)
    axes.set_ylabel("R0_BLOCK, elements", fontsize=_TEXT, color=_INK)
    _title(axes, "Fastest tile of every kernel", f"{len(winners)} kernels, dense measurements")
    axes.legend(loc="upper right", frameon=True, framealpha=1.0, edgecolor=_FAINT, fontsize=_SMALL_TEXT)
    _strip(axes)
    return figure


def top_k_curve(
    curves: Mapping[str, Mapping[int, npt.NDArray[np.float64]]], points: Mapping[str, tuple[float, float]]
) -> Figure:
    """Share of kernels lossless against the number of tiles compiled (log2), and below it the severe share.

    curves: per name, per k, float64[kernels] slowdowns (evaluate.curve). points: baselines as (mean number of tiles
    compiled, share lossless). Raises InvalidInput without a curve.
    """
    if not curves:
        raise InvalidInput("curves", tuple(curves), "one curve at least")
    figure = _figure(8.4, 6.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    taken: list[tuple[float, float]] = []
    for by_k, colour in zip(curves.values(), _cycle(len(curves)), strict=True):
        ks = sorted(by_k)
        shares = [tiers(by_k[k]) for k in ks]
        for axes, tier in ((upper, "lossless"), (lower, "severe")):
            ys = [100 * share[tier] for share in shares]
            axes.plot(ks, ys, color=colour, linewidth=2, marker="o", markersize=4.5, zorder=3, clip_on=False)
            if axes is upper:
                taken += along(ks, ys)
    counts = [n for n, _ in points.values() if n > 0]
    ks_all = [k for by_k in curves.values() for k in by_k]
    upper.set_xscale("log", base=2)
    upper.set_xlim(min(ks_all + counts) / 1.15, max(ks_all + counts) * 1.15)
    for n, share in points.values():
        upper.plot([n], [100 * share], "D", color=_INK, markersize=6, markeredgecolor="white", zorder=4, clip_on=False)
        taken.append((n, 100 * share))
    floor = min(y for _, y in taken)
    upper.set_ylim(max(0.0, 10 * math.floor((floor - 4) / 10)), 103)
    lower.set_ylim(0, 1.08 * max(1.0, lower.get_ylim()[1]))
    ticks = [2**i for i in range(20) if upper.get_xlim()[0] <= 2**i <= upper.get_xlim()[1]]
    lower.set_xticks(ticks, [str(tick) for tick in ticks])
    lower.minorticks_off()
    lower.set_xlabel("tiles compiled a kernel", fontsize=_TEXT, color=_INK)
    upper.set_ylabel("lossless (≤ 5 %), % of kernels", fontsize=_TEXT, color=_INK)
    lower.set_ylabel("severe (> 30 %)", fontsize=_TEXT, color=_INK)
    _title(
        upper, "Quality against compile cost", "lines: the first k tiles; diamonds: baselines at their mean set size"
    )
    for axes in (upper, lower):
        axes.grid(color=_FAINT, linewidth=0.6)
        _strip(axes)
    labels = [Label(name, n, 100 * share, _INK) for name, (n, share) in points.items()]
    for (name, by_k), colour in zip(curves.items(), _cycle(len(curves)), strict=True):
        last = max(by_k)
        labels.append(Label(name, last, 100 * tiers(by_k[last])["lossless"], colour, bold=True))
    place_labels(upper, labels, taken, size=_TEXT, line_colour=_GRAY)
    return figure


def importances(booster: Booster, top: int = 20) -> Figure:
    """The `top` features by their share of the gain of all splits, in %; features of the kernel lighter than those of
    the tile."""
    top = checked_int("top", top, minimum=1)
    gains = np.asarray(booster.feature_importance(importance_type="gain"), dtype=np.float64)
    shares = 100 * gains / max(float(gains.sum()), np.finfo(np.float64).tiny)
    names = booster.feature_name()
    order = np.argsort(-shares, kind="stable")[:top][::-1]
    figure = _figure(7.2, 0.9 + 0.27 * len(order))
    axes = figure.subplots()
    of_kernel = {*KERNEL_FEATURES, *CPU_KERNEL_FEATURES, *MATMUL_KERNEL_FEATURES}
    colours = [_TIERS[1][2] if names[i] in of_kernel else _TIERS[0][2] for i in order]
    axes.barh(range(len(order)), shares[order], color=colours, height=0.72)
    for position, i in enumerate(order):
        axes.annotate(
            f"{shares[i]:.1f}", (shares[i], position), (4, 0), textcoords="offset points",
            va="center", fontsize=_SMALL_TEXT, color=_INK,
        )  # fmt: skip
    axes.set_yticks(range(len(order)), [names[i] for i in order])
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlim(0, max(float(shares.max()), 1.0) * 1.08)
    axes.xaxis.set_visible(False)
    covered = float(shares[order].sum())
    _title(
        axes, "Feature importance", f"share of split gain, %; these {len(order)} of {len(names)} hold {covered:.0f} %"
    )
    for dy, colour, text in ((22, _TIERS[0][2], "of the tile"), (6, _TIERS[1][2], "of the kernel")):
        axes.annotate(
            f"■ {text}", (1, 1), (0, dy), xycoords="axes fraction", textcoords="offset points",
            ha="right", fontsize=_TEXT, color=colour, fontweight="bold",
        )  # fmt: skip
    _strip(axes)
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)
    return figure


def _figure(width: float, height: float) -> Figure:
    """An empty white Figure, in inches, on the Agg canvas."""
    figure: Figure = require("matplotlib.figure").Figure(
        figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained"
    )
    require("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure


def _strip(axes: Axes) -> None:
    axes.set_facecolor("white")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(_GRAY)
    axes.tick_params(colors=_INK, labelsize=_SMALL_TEXT, color=_GRAY)


def _title(axes: Axes, first: str, second: str) -> None:
    axes.set_title(first, loc="left", pad=21, fontsize=_TEXT + 1.5, fontweight="bold", color=_INK)
    axes.annotate(
        second, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=_SMALL_TEXT, color=_GRAY
    )


def _cycle(n: int) -> list[str]:
    return [_LINES[i % len(_LINES)] for i in range(n)]


def _loss_panel(axes: Axes, evaluation: Evaluation, name: str) -> None:
    slowdown = evaluation.slowdown(name)
    rnumel = np.array([sweep.kernel.rnumel for sweep in evaluation.corpus.sweeps], dtype=np.float64)
    regimes = np.array([regime(sweep.kernel.rnumel) for sweep in evaluation.corpus.sweeps])
    axes.set_xscale("log")
    # Log in slowdown - 1, shifted by 3 % so that 1 has a place; a plain log would press two tiers into one line.
    axes.set_yscale("function", functions=(lambda y: np.log(np.maximum(y, 0.98) - 0.97), lambda v: np.exp(v) + 0.97))
    axes.set_ylim(0.992, 3.4)
    axes.set_yticks([1.0, 1.02, LOSSLESS, MINOR, 1.2, SEVERE, 1.5, CLIP], minor=False)
    axes.set_yticklabels(["1", "1.02", "1.05", "1.1", "1.2", "1.3", "1.5", "2"])
    axes.minorticks_off()
    for edge in (LOSSLESS, SEVERE):
        axes.axhline(edge, color=_GRAY, linewidth=0.8, zorder=1)
    for edge in (ASCEND_910B3.rn_small, ASCEND_910B3.rn_hole):
        axes.axvline(edge, color=_LINES[0], linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)

    low = 0.0
    beyond = slowdown > CLIP
    shown = np.minimum(slowdown, CLIP)
    for _, high, colour in _TIERS:
        for kind, (marker, _, _) in _REGIMES.items():
            here = (slowdown > low) & (slowdown <= high) & (regimes == kind)
            axes.scatter(
                rnumel[here], shown[here], s=26, marker=marker, color=colour, edgecolor="white", linewidth=0.4, zorder=3
            )
        low = high
    if beyond.any():
        severe = _TIERS[-1][2]
        axes.scatter(rnumel[beyond], np.full(beyond.sum(), 1.08 * CLIP), s=22, marker=6, color=severe, zorder=3)
        axes.text(
            0.99, 1.26 * CLIP, f"{beyond.sum()} over {CLIP:g}×, worst {slowdown.max():.1f}×",
            transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=_SMALL_TEXT, color=severe,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    _label_regimes(axes, rnumel)
    summary = evaluation.summary(name)
    _title(
        axes, name,
        f"lossless {_percent(summary['lossless'])}   severe {_percent(summary['severe'])}"
        f"   {summary['set_mean']:.1f} tiles compiled",
    )  # fmt: skip
    _strip(axes)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _label_regimes(axes: Axes, rnumel: npt.NDArray[np.float64]) -> None:
    low = min(float(rnumel.min()), ASCEND_910B3.rn_small / 4) / 1.4
    high = max(float(rnumel.max()), ASCEND_910B3.rn_hole * 8) * 1.4
    axes.set_xlim(low, high)
    edges = (low, ASCEND_910B3.rn_small, ASCEND_910B3.rn_hole, high)
    for (name, (_, glyph, _)), left, right in zip(_REGIMES.items(), edges[:-1], edges[1:], strict=True):
        axes.text(
            math.sqrt(left * right),
            1.5 * CLIP,
            f"{glyph} {name}",
            ha="center",
            va="center",
            fontsize=_SMALL_TEXT,
            color=_GRAY,
        )


def _label_tiers(axes: Axes) -> None:
    """The tiers' names in their colours, right of the panel, at the middle of their bands."""
    for (name, _, colour), height in zip(_TIERS, (1.02, 1.072, 1.175, 1.6), strict=True):
        axes.annotate(
            name, (1, height), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center", fontsize=_TEXT, color=colour, fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _spiral(n: int) -> list[tuple[float, float]]:
    """n places around a tile in a sunflower's spiral, within 0.4 of a doubling; one alone sits in the middle."""
    step = min(0.145, 0.4 / math.sqrt(max(n - 1, 1)))
    return [
        (step * math.sqrt(i) * math.cos(i * _GOLDEN_ANGLE), step * math.sqrt(i) * math.sin(i * _GOLDEN_ANGLE))
        for i in range(n)
    ]


def _formula_regions(axes: Axes, right: float) -> None:
    rectangle = require("matplotlib.patches").Rectangle
    params = ASCEND_910B3
    x0, x1 = math.log2(params.hole_x[0]) - 0.5, math.log2(params.hole_x[-1]) + 0.5
    r0, r1 = math.log2(params.hole_r[0]) - 0.5, math.log2(params.hole_r[-1]) + 0.5
    hole, small = _REGIMES["hole"][2], _REGIMES["small"][2]
    axes.add_patch(rectangle((x0, r0), x1 - x0, r1 - r0, fill=False, edgecolor=hole, linewidth=1.8, zorder=3))
    axes.text(
        x1 + 0.15, r1,
        f"formula, HOLE\nX {params.hole_x[0]}–{params.hole_x[-1]}\nR0 {params.hole_r[0]}–{params.hole_r[-1]}",
        fontsize=_SMALL_TEXT, color=hole, va="top", zorder=5,
    )  # fmt: skip
    top = math.log2(params.rn_small) + 0.5
    axes.add_patch(rectangle((-0.7, -0.7), right + 0.7, top + 0.7, facecolor=small, alpha=0.07, zorder=0))
    axes.text(
        right - 0.1, -0.6, f"formula, SMALL: R0 = rnumel ≤ {params.rn_small}",
        fontsize=_SMALL_TEXT, color=small, ha="right", va="bottom", zorder=5,
    )  # fmt: skip


def _diagonals(axes: Axes, products: Counter[int], right: float, top: float) -> None:
    """Lines of equal X·R0, labelled where they leave the frame at the right, or at the bottom."""
    mode, times = max(products.items(), key=lambda item: (item[1], -item[0]))
    for product in sorted({*_PRODUCTS, mode}):
        total = math.log2(product)
        bold = product == mode
        end = min(right, total + 0.7)
        axes.plot(
            [total - top, end], [top, total - end],
            color=_GRAY if bold else _FAINT, linewidth=1.8 if bold else 1.0, zorder=1,
        )  # fmt: skip
        axes.annotate(
            f"P = {product}" + (f"\nmode, {100 * times / products.total():.0f} %" if bold else ""),
            (end, total - end), (5, 0), textcoords="offset points", va="center", annotation_clip=False,
            fontsize=_SMALL_TEXT, color=_INK if bold else _GRAY, fontweight="bold" if bold else "normal", zorder=5,
        )  # fmt: skip
