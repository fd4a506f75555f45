"""Quality of candidate sets of matrix products on an H200, every product judged by a model that saw none of its family.

    python benchmarks/matmul_held_out.py

Cross-validates the shipped configuration on corpora/h200-matmul.parquet: the sets, ATen and the host's list beside them,
other seeds and other folds, what mode="prune" would drop and lose, how much of what a compiler would choose from was
measured, how the planner's times compare with measured ones, and how far two measurements of one product lie apart; then,
of the products whose lattice was measured whole, the sets that a compiler would really try, by folds and with one family
held out at a time. Writes benchmarks/results/matmul_held_out.json; takes two minutes on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.hardware import HardwareSpec, host_cpu, known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.features.matmul_time import MatmulTimes, matmul_times
from tileguard.features.tiles import matmul_columns
from tileguard.learner.calibrate import calibration
from tileguard.learner.corpus import Corpus, matmul_sweeps, read_corpus
from tileguard.learner.evaluate import LOSSLESS, NOISE, Model, curve, set_slowdown, tiers
from tileguard.learner.pipeline import default_config, held_out_metrics, held_out_model, judge_held_out
from tileguard.learner.tables import evaluation_notes, selector_table
from tileguard.learner.train import library_versions
from tileguard.runtime.calibration import calibrated_k
from tileguard.runtime.choose import choose
from tileguard.runtime.cli import console
from tileguard.runtime.manifest import finite
from tileguard.runtime.matmul_selector import PRUNE_RISK, unlikely
from tileguard.runtime.matmul_tiles import matmul_lattice, planner_tiles
from tileguard.runtime.optional import require

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path.insert(0, str(ROOT))

from benchmarks.noise_h200 import identity, paired, summary

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CORPUS, AGAIN = (ROOT / "corpora" / f"{name}.parquet" for name in ("h200-matmul", "h200-matmul-again"))
RESULT = ROOT / "benchmarks" / "results" / "matmul_held_out.json"
OTHERS = {
    "seed 1": {"seed": 1}, "seed 2": {"seed": 2}, "folds 1": {"fold_seed": 1}, "folds 2": {"fold_seed": 2},
}  # fmt: skip
"""Trained again so, to know how far a figure moves for no reason."""

CURVE = (1, 4, 8, 12)
DENSE_SHARE = 0.7
"""Of a product's lattice, at least, that must have been measured for its best tile to be taken as the dense best."""

TARGETS = {"union@8": {"geomean": 0.985, "p5": 0.93}, "model@8": {"geomean": 0.97}}
"""Of best time ÷ the set's, over dense products: what was aimed at, at least."""

PRUNED_K = BLIND_K = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULT)
    arguments = parser.parse_args()
    corpus, hardware = read_corpus(CORPUS), known_hardware("h200")
    config = default_config(hardware, corpus.family)
    held_out = judge_held_out(corpus, hardware, config)
    console().print(selector_table(held_out.evaluation, title=f"{len(corpus.sweeps)} products, held-out families"))
    for note in evaluation_notes(held_out.evaluation):
        console().print(note)

    def again(changes: dict[str, Any]) -> dict[str, Any]:
        regret = curve(corpus, held_out_model(corpus, hardware, dataclasses.replace(config, **changes))[1], CURVE)
        return {
            f"model@{k}": {
                "lossless": tiers(found)["lossless"],
                # No tile at all of some product ran: null.
                "geomean": float(np.exp(np.log(found).mean())) if np.isfinite(found).all() else None,
            }
            for k, found in regret.items()
        }  # fmt: skip

    keep = calibrated_k(calibration(held_out.curve), PRUNE_RISK)
    result = {
        "command": "python benchmarks/matmul_held_out.py",
        "measured_on": "one NVIDIA H200 (corpora/README.md); judged on " + host_cpu().name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "libraries": library_versions(),
        "corpus": {"file": f"corpora/{CORPUS.name}", "digest": corpus.digest},
        "config": config.asdict(),
        "others": {name: again(changes) for name, changes in OTHERS.items()},
        "prune": pruning(corpus, held_out.model, keep),
        "noise": noise(corpus),
        "measured": coverage(corpus, hardware),
        "planner": planner(corpus, hardware),
        "dense": dense(corpus, hardware, held_out.model, "5 folds by family"),
        "dense_leave_one_out": dense(
            corpus,
            hardware,
            held_out_model(corpus, hardware, dataclasses.replace(config, folds=len(set(corpus.families))))[1],
            "one family held out at a time",
        ),
        **held_out_metrics(held_out),
    }
    arguments.json.write_text(json.dumps(finite(result), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for name in ("others", "prune", "noise", "measured", "planner", "dense", "dense_leave_one_out"):
        console().print_json(data=result[name])


def pruning(corpus: Corpus, model: Model, keep: int | None) -> dict[str, Any]:
    """What mode="prune" drops of the host's list at k = 8, and what the set then loses against the union."""
    dropped, listed, lost, slowdowns = 0, 0, [], []
    for i, sweep in enumerate(corpus.sweeps):
        host = tuple(sweep.tiles[j] for j in sweep.host_default)
        space = [sweep.tiles[j] for j in sweep.measured]
        chosen = model.selector_of(i, PRUNED_K).select(sweep.kernel, host, space=space)
        bad = unlikely(chosen, keep)
        tried = set(sweep.measured)
        kept = {tile: sweep.index[tile] for tile in chosen.tiles if sweep.index.get(tile) in tried}
        union = set_slowdown(sweep, tuple(kept.values()))
        pruned = set_slowdown(sweep, tuple(j for tile, j in kept.items() if tile not in bad))
        dropped, listed = dropped + len(bad), listed + len(host)
        lost.append(pruned > NOISE * union)
        slowdowns.append(pruned)
    found = np.array(slowdowns)
    return {
        "calibrated_k": keep, "risk": PRUNE_RISK, "kernels": len(lost), "host_tiles": listed, "dropped": dropped,
        "over_2_percent_slower_than_the_union": fmean(lost), **tiers(found),
        "geomean": float(np.exp(np.log(found).mean())), "worst": float(found.max()),
    }  # fmt: skip


def coverage(corpus: Corpus, hardware: HardwareSpec) -> dict[str, Any]:
    """Of what the running selector's model chooses from, how much was measured; and what as many tiles drawn blindly from
    the measured ones would do."""
    ranked, known, outside, blind = [], [], [], []
    for sweep in matmul_sweeps(corpus):
        space, measured = set(matmul_lattice(sweep.kernel, hardware)), [sweep.tiles[i] for i in sweep.measured]
        good = int((sweep.slowdown[list(sweep.measured)] <= LOSSLESS).sum())
        ranked.append(len(space))
        known.append(len(space.intersection(measured)))
        outside.append(sweep.tiles[int(np.argmin(sweep.slowdown))] not in space)
        blind.append(1 - math.comb(len(measured) - good, BLIND_K) / math.comb(len(measured), BLIND_K))
    return {
        "lattice_mean": fmean(ranked), "measured_of_it_mean": fmean(known), "best_outside_it": fmean(outside),
        "measured_mean": fmean(len(sweep.measured) for sweep in matmul_sweeps(corpus)), "blind_8_lossless": fmean(blind),
    }  # fmt: skip


def dense(corpus: Corpus, hardware: HardwareSpec, model: Model, split: str) -> dict[str, Any]:
    """Sets as the running selector makes them, from the whole lattice, of the products of which at least DENSE_SHARE of it
    was measured: tiers, and geomean, p5 and worst of best time ÷ the set's. A tile that was not measured counts as none.
    best_outside: share of these products whose best measured tile the lattice lacks; outside_behind: by how much the
    lattice's best is behind it, at most."""
    slowdowns: dict[str, list[float]] = {}
    behind, whole = [], 0
    for i, sweep in enumerate(matmul_sweeps(corpus)):
        space = matmul_lattice(sweep.kernel, hardware)
        tried = {sweep.tiles[j]: float(sweep.slowdown[j]) for j in sweep.measured}
        inside = [tried[tile] for tile in space if tile in tried]
        if len(inside) < DENSE_SHARE * len(space) or not inside:
            continue
        whole += 1
        behind.append(min(inside))
        host = tuple(sweep.tiles[j] for j in sweep.host_default)
        sets = {"host_default": host, "planner": planner_tiles(sweep.kernel, hardware), "lattice": tuple(space)}
        for k in CURVE[1:]:
            scores = model.scorer_of(i).score(sweep.kernel, space)
            sets[f"model@{k}"] = tuple(space[j] for j in choose(scores, space, k, diversity=model.diversity))
            sets[f"union@{k}"] = model.selector_of(i, k).select(sweep.kernel, host).tiles
        for name, tiles in sets.items():
            slowdowns.setdefault(name, []).append(min((tried[t] for t in tiles if t in tried), default=float("inf")))
    found = {name: np.array(values) for name, values in slowdowns.items()}
    union, hosts = found["union@8"], found["host_default"]
    selectors = {
        name: {
            **tiers(values), "geomean": float(np.exp(-np.log(values).mean())),
            "p5": float(np.percentile(1 / values, 5)), "worst": float(1 / values.max()),
        }
        for name, values in found.items()
    }  # fmt: skip
    return {
        "split": split, "products": whole,
        "best_outside": float(np.mean(np.array(behind) > 1.0)), "outside_behind": max(behind),
        "union_behind_host": int((union > hosts).sum()),
        "targets": {
            f"{name} {measure}": {"value": selectors[name][measure], "limit": limit,
                                  "met": selectors[name][measure] >= limit}
            for name, limits in TARGETS.items() for measure, limit in limits.items()
        },
        "selectors": selectors,
    }  # fmt: skip


def planner(corpus: Corpus, hardware: HardwareSpec) -> dict[str, Any]:
    """The planner's predicted times against measured ones: rank correlation within a product, the fastest tile's predicted ÷
    measured time, how far the measured tile that it calls fastest is behind the best; by dtype, the median error of all
    tiles' times; and what a step along k lasts."""
    stats = require("scipy.stats")
    correlations, ratios, slowdowns = [], [], []
    errors: dict[str, list[FloatArray]] = {}
    steps: dict[int, list[float]] = {}
    for sweep in matmul_sweeps(corpus):
        works = [i for i in sweep.measured if np.isfinite(sweep.us[i])]
        columns = matmul_columns([sweep.tiles[i] for i in works])
        times = matmul_times(sweep.kernel, columns, hardware)
        predicted, us = times.us, sweep.us[works]
        if np.ptp(predicted) > 0:  # else HBM alone is predicted to matter, and there is nothing to rank by
            correlations.append(float(stats.spearmanr(predicted, us).statistic))
        ratios.append(float(predicted[us.argmin()] / us.min()))
        slowdowns.append(float(us[predicted.argmin()] / us.min()))
        errors.setdefault(sweep.kernel.dtype, []).append(np.abs(np.log2(np.array((times.bound_us, predicted)) / us)))
        for stages, step_us in zip(columns[4].tolist(), steps_us(sweep.kernel, columns, times, us), strict=True):
            if step_us:
                steps.setdefault(stages, []).append(step_us)
    return {
        **{
            name: dict(zip(("least", "p50", "p95", "most"), np.percentile(found, (0, 50, 95, 100)).tolist(), strict=True))
            for name, found in (
                ("spearman", correlations), ("predicted_over_measured", ratios), ("fastest_predicted_slowdown", slowdowns),
            )
        },
        "error_log2_p50": {
            dtype: dict(zip(("bound", "predicted"), np.median(np.hstack(found), axis=1).tolist(), strict=True))
            for dtype, found in sorted(errors.items())
        },
        "step_us_p25": {str(stages): float(np.percentile(found, 25)) for stages, found in sorted(steps.items())},
    }  # fmt: skip


ROW_BYTES, LEAST_STEPS, LAUNCH_US = 64, 16, 1.5
"""Steps that are compared: of rows of so many bytes of k, of blocks that have so many at least; a launch takes no step."""


def steps_us(kernel: MatmulKernel, columns: IntArray, times: MatmulTimes, us: FloatArray) -> list[float]:
    """What one step along k lasted, where all blocks run at once and wait more than they move; 0 elsewhere."""
    steps = np.ceil(kernel.k / columns[2])
    alone = (times.grid.n_wave == 1) & (steps >= LEAST_STEPS) & (columns[2] * kernel.elem_bytes == ROW_BYTES)
    alone &= times.memory_us < us / 2
    lasted: list[float] = np.where(alone, (us - LAUNCH_US) / steps, 0.0).tolist()
    return lasted


def noise(corpus: Corpus) -> dict[str, Any]:
    """The same products compiled and timed once more in another process."""
    other = read_corpus(AGAIN)
    known = {identity(sweep): sweep for sweep in corpus.sweeps}
    return {"corpus": dict(other.files), **summary([paired(known[identity(sweep)], sweep) for sweep in other.sweeps])}


if __name__ == "__main__":
    main()
