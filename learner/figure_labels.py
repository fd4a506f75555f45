"""Where a figure's labels may stand so that they cover neither the data nor each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tileguard.runtime.optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OFFSETS = (
    (9, 0), (-9, 0), (0, 9), (0, -9), (8, 8), (8, -8), (-8, 8), (-8, -8),
    (20, 18), (20, -18), (-20, 18), (-20, -18), (0, 26), (0, -26), (40, 30), (40, -30), (-40, 30), (-40, -30),
)  # fmt: skip
"""Where a label may stand from its point, in points (1/72 inch), best first."""

_FAR = 12
"""Labels further away than this, in points, are tied to their point by a line."""


@dataclass(frozen=True, slots=True)
class Label:
    """A text for the point (x, y), in data coordinates."""

    text: str
    x: float
    y: float
    colour: str
    bold: bool = False


def along(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Points on the polyline through (xs, ys) over a log2 axis, dense enough that no label fits between two of them."""
    where = np.linspace(0, len(xs) - 1, 12 * len(xs))
    log_x = np.interp(where, range(len(xs)), np.log2(xs))
    return [(float(2**x), float(y)) for x, y in zip(log_x, np.interp(where, range(len(xs)), ys), strict=True)]


def place_labels(
    axes: Axes, labels: Sequence[Label], taken: Sequence[tuple[float, float]], *, size: float, line_colour: str
) -> None:
    """Write each label beside its point, where it covers no taken point and no other label. size: of the font.

    Greedy over several orders, of which the one with the nearest labels is kept; a label that finds no free place
    stands beside its point, towards the middle of the panel.
    """
    _fix_layout(axes)
    boxes = _free_boxes(axes, labels, taken, size)
    ranks = range(len(labels))
    scarce = sorted(ranks, key=lambda i: sum(box is not None for box in boxes[i]))
    keys = (lambda i: labels[i].x, lambda i: -labels[i].x, lambda i: labels[i].y, lambda i: -labels[i].y)
    gap = _pixels_a_point(axes)
    tries = [_greedy(boxes, order, gap) for order in (scarce, *(sorted(ranks, key=key) for key in keys))]
    frame = axes.get_window_extent()
    for label, rank in zip(labels, min(tries, key=sum), strict=True):
        past_middle = axes.transData.transform((label.x, label.y))[0] > (frame.x0 + frame.x1) / 2
        dx, dy = _OFFSETS[rank if rank < len(_OFFSETS) else int(past_middle)]
        far = max(abs(dx), abs(dy)) > _FAR
        axes.annotate(
            label.text, (label.x, label.y), (dx, dy), textcoords="offset points",
            ha=("right", "center", "left")[int(np.sign(dx)) + 1], va=("top", "center", "bottom")[int(np.sign(dy)) + 1],
            arrowprops={"arrowstyle": "-", "color": line_colour, "linewidth": 0.7, "shrinkB": 4} if far else None,
            **_style(label, size),
        )  # fmt: skip


def _fix_layout(axes: Axes) -> None:
    """Fix the layout, and with it what an offset in points covers."""
    figure: Any = axes.figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _pixels_a_point(axes: Axes) -> float:
    figure: Any = axes.figure
    return float(figure.dpi / 72)


def _free_boxes(
    axes: Axes, labels: Sequence[Label], taken: Sequence[tuple[float, float]], size: float
) -> list[list[Any]]:
    """Per label, per offset: the box in pixels that it would cover there, None where a taken point or the frame is."""
    figure: Any = axes.figure
    bbox = require("matplotlib.transforms").Bbox
    renderer = figure.canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    dots = axes.transData.transform(np.array(taken, dtype=np.float64))
    scale = _pixels_a_point(axes)
    boxes: list[list[Any]] = []
    for label in labels:
        probe = axes.text(label.x, label.y, label.text, **_style(label, size))
        extent = probe.get_window_extent(renderer)
        probe.remove()
        px, py = axes.transData.transform((label.x, label.y))
        options = []
        for dx, dy in _OFFSETS:
            left = px + scale * dx - extent.width * (0.5 - 0.5 * np.sign(dx))
            low = py + scale * dy - extent.height * (0.5 - 0.5 * np.sign(dy))
            box = bbox.from_bounds(left, low, extent.width, extent.height)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            clear = not any(box.padded(2 * scale).contains(*dot) for dot in dots)
            options.append(box if inside and clear else None)
        boxes.append(options)
    return boxes


def _greedy(boxes: Sequence[Sequence[Any]], order: Sequence[int], gap: float) -> list[int]:
    """Per label, the index of its offset when they choose in `order`; the number of offsets where none was free."""
    chosen = [len(_OFFSETS)] * len(boxes)
    placed: list[Any] = []
    for i in order:
        for rank, box in enumerate(boxes[i]):
            if box is not None and not any(box.overlaps(other) for other in placed):
                chosen[i] = rank
                placed.append(box.padded(gap))
                break
    return chosen


def _style(label: Label, size: float) -> dict[str, Any]:
    weight = "bold" if label.bold else "normal"
    return {"fontsize": size, "color": label.colour, "fontweight": weight, "zorder": 5}
