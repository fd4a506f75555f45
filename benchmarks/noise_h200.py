"""How far two independent measurements of one kernel on the H200 lie apart: what no figure can be better than.

    python benchmarks/noise_h200.py

60 kernels of corpora/h200-inductor.parquet were compiled and timed a second time, in another process
(corpora/h200-inductor-again.parquet). Writes benchmarks/results/noise_h200.json.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tileguard.learner.corpus import KernelSweep, read_corpus
from tileguard.learner.evaluate import LOSSLESS, NOISE

ROOT = Path(__file__).resolve().parents[1]
CORPORA = ROOT / "corpora"
NEAR = 1.10
"""Tiles that matter: within so much of the best."""

BINS_US = (0.0, 1.2, 2.0, 5.0, 20.0, float("inf"))
FIRST_K = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "noise_h200.json")
    arguments = parser.parse_args()
    first, again = (read_corpus(CORPORA / f"{name}.parquet") for name in ("h200-inductor", "h200-inductor-again"))
    known = {identity(sweep): sweep for sweep in first.sweeps}
    rows = [paired(known[identity(sweep)], sweep) for sweep in again.sweeps]
    bins = {
        f"{low:g} to {high:g} µs": [row for row in rows if low < row["best_us"] <= high]
        for low, high in pairwise(BINS_US)
    }
    result = {
        "command": "python benchmarks/noise_h200.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "measured_on": "one NVIDIA H200, two processes of one day (corpora/README.md)",
        "corpora": {**first.files, **again.files},
        "all": summary(rows),
        "by_time": {name: summary(found) for name, found in bins.items() if found},
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["all"], indent=1))


def identity(sweep: KernelSweep) -> tuple[Any, ...]:
    return (sweep.workload, sweep.kernel, sweep.source)


def paired(one: KernelSweep, other: KernelSweep) -> dict[str, Any]:
    """One kernel's tiles that both runs timed: how far near-best tiles differ, and what each run's choice costs in the
    other."""
    common = [tile for tile in other.tiles if tile in one.index and np.isfinite(one.us[one.index[tile]])]
    a = np.array([one.us[one.index[tile]] for tile in common])
    b = np.array([other.us[other.index[tile]] for tile in common])
    a, b = a[np.isfinite(b)], b[np.isfinite(b)]
    apart = np.abs(np.log(a / b) - np.median(np.log(a / b)))[a <= NEAR * a.min()]
    order = np.argsort(a, kind="stable")
    host = [common.index(one.tiles[i]) for i in one.host_default if one.tiles[i] in common]
    return {
        "best_us": float(a.min()),
        "apart": apart.tolist(),
        "first": {k: float(b[order[:k]].min() / b.min()) for k in FIRST_K},
        "back": float(a[int(np.argmin(b))] / a.min()),
        "host": float(b[order[0]] / b[host].min()) if host else None,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    apart = np.concatenate([row["apart"] for row in rows])
    hosts = [row["host"] for row in rows if row["host"] is not None]
    return {
        "kernels": len(rows),
        "near_best_apart_median": float(np.median(apart)),
        "near_best_apart_p90": float(np.percentile(apart, 90)),
        "winner_lossless_in_the_other": float(np.mean([row["first"][1] <= LOSSLESS for row in rows])),
        "winner_lossless_backwards": float(np.mean([row["back"] <= LOSSLESS for row in rows])),
        "first_k_lossless_in_the_other": {
            str(k): float(np.mean([row["first"][k] <= LOSSLESS for row in rows])) for k in FIRST_K
        },
        "winner_loses_to_host_default": float(np.mean([value > NOISE for value in hosts])) if hosts else None,
    }


if __name__ == "__main__":
    main()
