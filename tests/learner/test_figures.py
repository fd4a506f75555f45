"""The figures show what the evaluation says, can be read, and leave matplotlib as it was."""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from tests.support import CORPUS_PATH, corpus_rows, python

from tileguard.features.anchor import regime
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.features.reduction import REDUCTION_SCHEMA
from tileguard.learner.corpus import Corpus, read_corpus, write_corpus
from tileguard.learner.evaluate import Evaluation, evaluate, tiers
from tileguard.learner.figures import (
    CLIP,
    importances,
    loss_against_rnumel,
    top_k_curve,
    winners_in_tile_space,
)

SELECTORS = ("host_default", "host_coordinate_descent", "formula", "formula_all_warps")


@pytest.fixture(scope="module")
def evaluation(corpus: Corpus, h200: HardwareSpec) -> Evaluation:
    return evaluate(corpus, h200, None)


@pytest.fixture(scope="module")
def booster() -> Any:
    """Splits on two of four features of a kernel and a tile, the first the stronger."""
    import lightgbm

    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4))
    names = ["log2_xblock", "log2_rnumel", "rho", "inner"]
    data = lightgbm.Dataset(x, 10 * (x[:, 0] > 0) + (x[:, 1] > 0), feature_name=names)
    return lightgbm.train({"verbosity": -1, "num_threads": 1, "num_leaves": 4}, data, 10)


@pytest.fixture(scope="module")
def curves(corpus: Corpus) -> dict[str, dict[int, npt.NDArray[np.float64]]]:
    """The best of the first k tiles in two orders."""
    ks = (1, 2, 4, 8, 16, 32)
    return {
        "forwards": {k: np.array([sweep.slowdown[:k].min() for sweep in corpus.sweeps]) for k in ks},
        "backwards": {k: np.array([sweep.slowdown[-k:].min() for sweep in corpus.sweeps]) for k in ks},
    }


@pytest.fixture(scope="module")
def points(evaluation: Evaluation) -> dict[str, tuple[float, float]]:
    summaries = {name: evaluation.summary(name) for name in evaluation.sets}
    return {name: (summary["set_mean"], summary["lossless"]) for name, summary in summaries.items()}


@pytest.fixture(scope="module")
def figures(
    corpus: Corpus,
    evaluation: Evaluation,
    booster: Any,
    curves: dict[str, dict[int, npt.NDArray[np.float64]]],
    points: dict[str, tuple[float, float]],
) -> dict[str, Figure]:
    return {
        "two panels": loss_against_rnumel(evaluation, SELECTORS[:2]),
        "three panels": loss_against_rnumel(evaluation, SELECTORS[:3]),
        "four panels": loss_against_rnumel(evaluation, SELECTORS),
        "winners": winners_in_tile_space(corpus),
        "curve": top_k_curve(curves, points),
        "one curve": top_k_curve({"forwards": curves["forwards"]}, {}),
        "importances": importances(booster),
    }


def test_figures_are_white_sharp_and_on_agg(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        assert figure.dpi == 150, name
        assert to_hex(figure.get_facecolor()) == "#ffffff", name
        assert isinstance(figure.canvas, FigureCanvasAgg), name


def test_no_text_covers_another_or_leaves_the_figure(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        figure.canvas.draw()
        frame = figure.bbox.padded(1)
        boxes = [(text.get_text(), text.get_window_extent()) for text in written(figure)]
        assert len(boxes) > 3, name
        for text, box in boxes:
            assert frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1), (name, text)
        for (one, box), (two, other) in itertools.combinations(boxes, 2):
            assert not box.overlaps(other), (name, one, two)


def test_matplotlib_is_left_as_it_was(tmp_path: Path) -> None:
    code = """
import sys, matplotlib
before = matplotlib.rcParams.copy()  # dict() would look the backend up, which imports pyplot
from tileguard.learner.corpus import read_corpus
from tileguard.learner.figures import winners_in_tile_space
winners_in_tile_space(read_corpus(sys.argv[1])).savefig(sys.argv[2])
assert matplotlib.rcParams.copy() == before
print("matplotlib.pyplot" in sys.modules)
"""
    assert python(code, str(CORPUS_PATH), str(tmp_path / "winners.png")).strip() == "False"


# Figure 1.


def test_every_kernel_is_a_point_in_the_colour_of_its_tier(evaluation: Evaluation, figures: dict[str, Figure]) -> None:
    panels = figures["four panels"].axes
    assert len(panels) == 4
    for panel, name in zip(panels, SELECTORS, strict=True):
        slowdown = evaluation.slowdown(name)
        found = np.vstack([offsets(dots) for dots in scatters(panel)])
        assert len(found) == len(slowdown) + (slowdown > CLIP).sum()  # the clipped have an arrow as well
        shares = tiers(slowdown)
        colours: Counter[str] = Counter()
        for dots in scatters(panel):
            below = offsets(dots)[:, 1] <= CLIP
            faces: Any = dots.get_facecolor()
            colours[to_hex(faces[0])] += int(below.sum())
        expected = [round(share * len(slowdown)) for share in shares.values()]
        assert sorted(colours.values()) == sorted(count for count in expected if count)  # no dots, no colour


def test_points_lie_at_rnumel_and_slowdown(evaluation: Evaluation, figures: dict[str, Figure]) -> None:
    rnumel = [sweep.kernel.rnumel for sweep in evaluation.corpus.sweeps]
    for panel, name in zip(figures["two panels"].axes, SELECTORS, strict=False):
        drawn = np.vstack([offsets(dots) for dots in scatters(panel)])
        drawn = drawn[drawn[:, 1] <= CLIP]
        expected = np.column_stack([rnumel, np.minimum(evaluation.slowdown(name), CLIP)])
        np.testing.assert_allclose(sorted(drawn.tolist()), sorted(expected.tolist()))
        low, high = panel.get_xlim()
        assert low < min(rnumel) and high > max(rnumel)


def test_clipped_kernels_are_counted_and_the_worst_is_named(evaluation: Evaluation, figures: dict[str, Figure]) -> None:
    for panel, name in zip(figures["four panels"].axes, SELECTORS, strict=True):
        slowdown = evaluation.slowdown(name)
        beyond = int((slowdown > CLIP).sum())
        note = f"{beyond} over 2×, worst {slowdown.max():.1f}×"
        assert (note in texts(panel)) == (beyond > 0)
    assert (evaluation.slowdown("host_default") > CLIP).any()


def test_titles_state_shares_and_cost(evaluation: Evaluation, figures: dict[str, Figure]) -> None:
    for panel, name in zip(figures["three panels"].axes, SELECTORS, strict=False):
        summary = evaluation.summary(name)
        assert panel.get_title(loc="left") == name
        (line,) = [text for text in texts(panel) if text.startswith("lossless ") and "compiled" in text]
        assert f"lossless {100 * summary['lossless']:.1f} %" in line
        assert f"severe {100 * summary['severe']:.1f} %" in line
        assert f"{summary['set_mean']:.1f} tiles compiled" in line


def test_regime_and_tier_edges_are_drawn(figures: dict[str, Figure]) -> None:
    for panel in figures["four panels"].axes:
        lines = [line_points(line) for line in panel.get_lines()]
        assert {line[0, 1] for line in lines if line[:, 0].tolist() == [0, 1]} == {1.05, 1.30}
        assert {line[0, 0] for line in lines if line[:, 1].tolist() == [0, 1]} == {64, 50_000}


def test_an_empty_set_is_drawn_as_clipped(evaluation: Evaluation) -> None:
    n = len(evaluation.corpus.sweeps)
    sets = {"none": ((),) * n, "dense": evaluation.sets["dense"]}
    figure = loss_against_rnumel(
        Evaluation(evaluation.corpus, sets, dict.fromkeys(sets, (1,) * n), 0, {}), ["none", "dense"]
    )
    figure.canvas.draw()
    assert f"{n} over 2×, worst inf×" in texts(figure.axes[0])


@pytest.mark.parametrize("names", [(), ("formula",), (*SELECTORS, "dense"), ("formula", "nobody")])
def test_another_number_of_selectors_or_an_unknown_one_is_refused(
    evaluation: Evaluation, names: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidInput, match=r"^selectors: "):
        loss_against_rnumel(evaluation, names)


# Figure 2.


def test_every_winner_is_drawn_close_to_its_tile_in_its_regimes_series(
    corpus: Corpus, figures: dict[str, Figure]
) -> None:
    (axes,) = figures["winners"].axes
    drawn = {str(dots.get_label()).partition(":")[0]: offsets(dots) for dots in scatters(axes)}
    for name, found in drawn.items():
        winners = [
            sweep.tiles[int(np.argmin(sweep.slowdown))]
            for sweep in corpus.sweeps
            if regime(sweep.kernel.rnumel) == name
        ]
        tiles = np.log2([[tile.xblock, tile.r0_block] for tile in winners])
        assert len(found) == len(tiles)
        # A spiral stays within 0.4 of a doubling, and tiles are a doubling apart at least but for odd R0.
        assert Counter(map(tuple, np.round(found).tolist())) == Counter(map(tuple, np.round(tiles).tolist()))
    assert sum(map(len, drawn.values())) == len(corpus.sweeps)


def test_winners_of_one_tile_do_not_hide_each_other(figures: dict[str, Figure]) -> None:
    (axes,) = figures["winners"].axes
    found = np.vstack([offsets(dots) for dots in scatters(axes)])
    gaps = np.linalg.norm(found[:, None] - found[None], axis=2) + 9 * np.eye(len(found))
    assert gaps.min() > 0.08


def test_the_formulas_box_and_the_most_frequent_product_stand_out(corpus: Corpus, figures: dict[str, Figure]) -> None:
    (axes,) = figures["winners"].axes
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    assert [box.get_bbox().bounds for box in boxes] == [(-0.5, 8.5, 4.0, 4.0)]  # X 1..8, R0 512..4096 and half a step
    winners = [sweep.tiles[int(np.argmin(sweep.slowdown))] for sweep in corpus.sweeps]
    (mode, times), *_ = Counter(tile.xblock * tile.r0_block for tile in winners).most_common()
    bold = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert bold == [f"P = {mode}\nmode, {100 * times / len(winners):.0f} %"]
    for product in (1024, 2048, 4096, 8192):
        assert any(text.startswith(f"P = {product}") for text in texts(axes))


def test_equal_corpora_give_equal_pictures(corpus: Corpus) -> None:
    def picture() -> bytes:
        file = io.BytesIO()
        winners_in_tile_space(corpus).savefig(file, format="png")
        return file.getvalue()

    assert picture() == picture()


def test_a_corpus_of_one_kernel_is_drawn(tmp_path: Path) -> None:
    write_corpus(corpus_rows([[3.0, 2.0]]), tmp_path / "one.parquet")
    figure = winners_in_tile_space(read_corpus(tmp_path / "one.parquet"))
    figure.canvas.draw()
    assert "P = 512\nmode, 100 %" in texts(figure.axes[0])


# The curve.


def test_curves_show_the_tiers_of_each_k(
    curves: dict[str, dict[int, npt.NDArray[np.float64]]], figures: dict[str, Figure]
) -> None:
    upper, lower = figures["curve"].axes
    for axes, tier in ((upper, "lossless"), (lower, "severe")):
        drawn = [line_points(line) for line in axes.get_lines() if line.get_linestyle() == "-"]
        for found, by_k in zip(drawn, curves.values(), strict=False):
            expected = [(k, 100 * tiers(slowdown)[tier]) for k, slowdown in sorted(by_k.items())]
            np.testing.assert_allclose(found, expected)


def test_baselines_are_markers_with_their_names(
    points: dict[str, tuple[float, float]], figures: dict[str, Figure]
) -> None:
    upper = figures["curve"].axes[0]
    marked = {tuple(line_points(line)[0].tolist()) for line in upper.get_lines() if line.get_marker() == "D"}
    assert marked == {(n, 100 * share) for n, share in points.values()}
    assert {"forwards", "backwards", *points} <= set(texts(upper))
    assert upper.get_xlim()[1] > max(n for n, _ in points.values())
    assert upper.get_xscale() == "log"


def test_a_crowd_of_baselines_is_still_labelled_with_each_name_once() -> None:
    crowd = {f"baseline {i}": (8 + 0.2 * i, 0.9 + 0.004 * i) for i in range(8)}
    figure = top_k_curve({"model": {1: np.array([1.0, 1.2]), 8: np.array([1.0, 1.0])}}, crowd)
    found = Counter(texts(figure.axes[0]))
    assert all(found[name] == 1 for name in (*crowd, "model"))


def test_no_curve_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^curves: "):
        top_k_curve({}, {"formula": (20.0, 0.9)})


# Importances.


def test_bars_are_shares_of_gain_in_order(booster: Any) -> None:
    (axes,) = importances(booster, top=2).axes
    gains = booster.feature_importance(importance_type="gain")
    widths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
    np.testing.assert_allclose(widths, sorted(100 * gains / gains.sum())[-2:])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["log2_rnumel", "log2_xblock"]
    colours = [to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert colours[0] != colours[1]  # one is the kernel's, one the tile's
    assert {"log2_rnumel", "log2_xblock"} <= set(REDUCTION_SCHEMA.names)


def test_more_bars_than_features_shows_all_and_none_is_refused(booster: Any) -> None:
    assert len(importances(booster, top=50).axes[0].patches) == 4
    with pytest.raises(InvalidInput, match=r"^top: "):
        importances(booster, top=0)


def written(figure: Figure) -> Iterator[Text]:
    """Titles, axis labels, annotations and legends: all text but tick labels, which matplotlib itself keeps apart."""
    for axes in figure.axes:
        legend = axes.get_legend()
        titles = [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]  # type: ignore[attr-defined]
        for text in (*titles, *axes.texts, *(legend.get_texts() if legend else [])):
            if text.get_visible() and text.get_text():
                yield text


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def scatters(axes: Axes) -> list[PathCollection]:
    """The non-empty scatters of a panel."""
    return [dots for dots in axes.collections if isinstance(dots, PathCollection) and len(offsets(dots))]


def offsets(dots: PathCollection) -> npt.NDArray[np.float64]:
    found = np.asarray(np.ma.filled(dots.get_offsets(), math.nan), dtype=np.float64)
    return found.reshape(-1, 2)


def line_points(line: Line2D) -> npt.NDArray[np.float64]:
    """float64[n, 2]"""
    return np.column_stack([np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)])
