"""The formula fitted to an H200, judged on workload families that it was not fitted to.

    python benchmarks/formula_h200.py

Fits and judges on corpora/h200-inductor.parquet at several budgets of tiles, judges the shipped formula, which is fitted
to that corpus alone, on corpora/h200-reduction-ops.parquet, times it, and writes benchmarks/results/formula_h200.json and
the two figures docs/figures/formula_h200_*.png. Takes two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tileguard.features.hardware import HardwareSpec, host_cpu, known_hardware
from tileguard.learner.corpus import Corpus, read_corpus
from tileguard.learner.figures import loss_against_rnumel, winners_in_tile_space
from tileguard.learner.fit_formula import DEFAULT_TILES, FitConfig, fit_formula
from tileguard.learner.formula_judge import FORMULA, RFC, RFC_REFITTED, dense_sweeps, judge, judge_held_out
from tileguard.learner.formula_report import formula_facts, worst_kernels
from tileguard.learner.train import library_versions
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.formula import FITTED

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = (8.0, 12.0, 20.0)
SELECTORS = (RFC, RFC_REFITTED, FORMULA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "formula_h200.json")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures")
    arguments = parser.parse_args()

    hardware = known_hardware("h200")
    corpus = read_corpus(ROOT / "corpora" / "h200-inductor.parquet")
    other = read_corpus(ROOT / "corpora" / "h200-reduction-ops.parquet")
    config = FitConfig(DEFAULT_TILES)
    judged = judge_held_out(corpus, hardware, config)
    fit = fit_formula(corpus.sweeps, hardware, config)
    moved = judge(other, hardware, [FITTED["h200"]] * len(other.sweeps))
    result = {
        "command": "python benchmarks/formula_h200.py",
        "measured_on": "one NVIDIA H200 (corpora/README.md); judged on " + host_cpu().name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "libraries": library_versions(),
        "corpora": {**corpus.files, **other.files},
        "shipped_is_this_fit": fit.params == FITTED["h200"],
        **formula_facts(fit, judged, hardware, config),
        "by_budget": {f"{tiles:g}": _at_budget(corpus, hardware, tiles) for tiles in BUDGETS},
        "reduction_ops": {
            "kernels": len(other.sweeps),
            "all": {name: moved.summary(name) for name in SELECTORS},
            "dense": {name: moved.summary(name, dense_sweeps(other)) for name in SELECTORS},
        },
        "worst": worst_kernels(judged.evaluation),
        "latency_us": _latency(corpus, hardware),
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    figures = {
        "loss_against_rnumel": loss_against_rnumel(judged.evaluation, SELECTORS),
        "winners_in_tile_space": winners_in_tile_space(corpus),
    }
    for name, figure in figures.items():
        figure.savefig(arguments.figures / f"formula_h200_{name}.png", dpi=150)


def _at_budget(corpus: Corpus, hardware: HardwareSpec, tiles: float) -> dict[str, Any]:
    """The held-out summary with another number of tiles, over all kernels and over the dense sweeps."""
    evaluation = judge_held_out(corpus, hardware, FitConfig(tiles)).evaluation
    return {"all": evaluation.summary(FORMULA), "dense": evaluation.summary(FORMULA, dense_sweeps(corpus))}


def _latency(corpus: Corpus, hardware: HardwareSpec) -> dict[str, float]:
    """Of one call for each kernel of the corpus, after one call each: lattices are shared between kernels."""
    kernels = [sweep.kernel for sweep in corpus.sweeps]
    for kernel in kernels:
        formula_tiles(kernel, hardware)
    times = []
    for kernel in kernels:
        started = time.perf_counter_ns()
        formula_tiles(kernel, hardware)
        times.append((time.perf_counter_ns() - started) / 1e3)
    return {"p50": float(np.percentile(times, 50)), "p95": float(np.percentile(times, 95)), "calls": len(times)}


if __name__ == "__main__":
    main()
