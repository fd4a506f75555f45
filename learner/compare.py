"""Candidate-set quality side by side: what a run recorded, a model that is judged now, or what a model's manifest says.

Every one becomes a Column by way of the metric names of tracking.py, so that all of them answer alike.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.runtime.manifest import Manifest

from .evaluate import Evaluation
from .regimes import REGIMES as REGIMES_OF
from .tracking import curve_points, evaluation_metrics, judged_of, metric_name

REGIMES = tuple(regime for regimes in REGIMES_OF.values() for regime in regimes)
"""Of every family, in order."""


@dataclass(frozen=True, eq=False)
class Column:
    """One thing in a comparison.

    kind: of a run, or judged (just now), or manifest (the held-out figures that a model carries). corpora: file name
    -> SHA-256 of what it was judged on. judged: the selector that it is about. measures: selector -> measure -> value, by
    the names of tracking.py without the selector. curve: k -> {lossless, severe, geomean}.
    """

    name: str
    kind: str
    hardware: str
    corpora: Mapping[str, str]
    judged: str
    measures: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    regime_kernels: Mapping[str, float]
    curve: Mapping[int, Mapping[str, float]]

    def selector(self, k: int) -> str:
        """model@k where it was judged, else what the column is about."""
        return f"model@{k}" if f"model@{k}" in self.measures else self.judged

    def value(self, selector: str, measure: str) -> float | None:
        """None for what was not recorded."""
        return self.measures.get(selector, {}).get(measure)

    def to_json(self, k: int) -> dict[str, Any]:
        selector, union = self.selector(k), f"union@{k}"
        return {
            "name": self.name, "kind": self.kind, "hardware": self.hardware, "corpora": dict(self.corpora), **self.totals,
            "set": selector, "measures": {name: dict(self.measures.get(name, {})) for name in (selector, union)},
            "regimes": {
                regime: {
                    "kernels": kernels,
                    **{key: self.value(selector, f"{regime}/{key}") for key in ("lossless", "severe", "geomean")},
                }
                for regime, kernels in self.regime_kernels.items()
            },
            "curve": {str(step): dict(point) for step, point in self.curve.items()},
        }  # fmt: skip


def column_of_run(row: Mapping[str, Any], curve: Mapping[int, Mapping[str, float]]) -> Column:
    """A row of `list_runs` and what `run_curve` says of it."""
    metrics = {name: math.inf if value >= sys.float_info.max else value for name, value in row["metrics"].items()}
    judged = row["judged"] or ("model@8" if "model_at_8/lossless" in metrics else "formula")
    name = f"{row['name']} ({row['run_id'][:8]})"
    return _column(name, row["kind"], row["hardware"] or "", json.loads(row["corpora"] or "{}"), judged, metrics, curve)


def column_of_evaluation(
    name: str, kind: str, hardware: str, evaluation: Evaluation, curve: Mapping[int, npt.NDArray[np.float64]]
) -> Column:
    judged = judged_of(evaluation)
    metrics = evaluation_metrics(evaluation, judged)
    return _column(name, kind, hardware, evaluation.corpus.files, judged, metrics, curve_points(curve))


def column_of_manifest(name: str, manifest: Manifest) -> Column:
    """The held-out figures that a model carries; of its curve the lossless shares, as its calibration counts them."""
    held_out: Mapping[str, Any] = manifest.metrics.get("held_out", {})
    metrics: dict[str, float] = {key: held_out[key] for key in ("kernels", "rows", "families") if key in held_out}
    for selector, summary in held_out.get("selectors", {}).items():
        metrics |= {f"{metric_name(selector)}/{key}": value for key, value in summary.items() if _is_number(value)}
    for regime, summary in held_out.get("by_regime", {}).items():
        metrics[f"regime/{regime}"] = summary["kernels"]
        shown = {key: summary[key] for key in ("lossless", "severe", "geomean")}
        metrics |= {f"model_at_8/{regime}/{key}": value for key, value in shown.items() if _is_number(value)}
    points = {int(c["k"]): {"lossless": 1 - c["misses"] / c["kernels"]} for c in manifest.calibration if c["kernels"]}
    return _column(name, "manifest", manifest.hardware, manifest.corpora, "model@8", metrics, points)


def comparable(columns: Sequence[Column]) -> bool:
    """Whether all were judged on the same corpora."""
    return len({tuple(sorted(column.corpora.values())) for column in columns}) <= 1


def _column(
    name: str, kind: str, hardware: str, corpora: Mapping[str, str], judged: str, metrics: Mapping[str, float],
    curve: Mapping[int, Mapping[str, float]],
) -> Column:  # fmt: skip
    measures: dict[str, dict[str, float]] = {}
    for metric, value in metrics.items():
        group, mark, measure = metric.partition("/")
        if mark and group not in ("curve", "regime", "verdict", "judged"):
            measures.setdefault(_NUMBERED.sub(r"\1@\2", group), {})[measure] = value
    kernels = {regime: metrics[f"regime/{regime}"] for regime in REGIMES if f"regime/{regime}" in metrics}
    totals = {key: metrics[key] for key in ("kernels", "families", "superset_violations") if key in metrics}
    return Column(name, kind, hardware, dict(corpora), judged, measures, totals, kernels, curve)


_NUMBERED = re.compile(r"^(model|union)_at_(\d+)$")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
