"""What each part of the ranker is worth: the shipped configuration with one thing changed, families held out.

    python benchmarks/ablation_h200.py [--store FOLDER]

Every arm is cross-validated over the same folds as the reported figures, several seeds each, since seeds alone move a
figure by half a point; written to benchmarks/results/ablation_h200.json, and with --store recorded as an MLflow run
(seed 0). Takes some ten minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from tileguard.features.access import ACCESS_FEATURES, CODE_FEATURES
from tileguard.features.hardware import host_cpu, known_hardware
from tileguard.features.placement import PLACEMENT_FEATURES
from tileguard.learner.corpus import read_corpus
from tileguard.learner.demo import H200_CORPUS
from tileguard.learner.evaluate import LOSSLESS, SEVERE, curve, evaluate
from tileguard.learner.pipeline import EVALUATED_K, held_out_model
from tileguard.learner.store import open_store
from tileguard.learner.tracking import log_evaluation
from tileguard.learner.train import TrainConfig, library_versions

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "ablation_h200.json"
SEEDS = (0, 1, 2)
JUDGED_K = (1, 4, 8, 12)

ESTIMATES = (
    "log2_code_time", "log2_moved_time", "log2_compute_over_memory",
)  # fmt: skip
RESIDENCY = (
    "code_resident_blocks", "code_waves", "log2_code_fill", "log2_code_registers", "n_wave", "rho", "wave_efficiency",
)  # fmt: skip
ANCHOR = ("dist_px", "dist_pr", "dist_tile")

SHIPPED = TrainConfig()
ARMS: dict[str, TrainConfig] = {
    "shipped": SHIPPED,
    "without what the source says": dataclasses.replace(SHIPPED, without=CODE_FEATURES + ACCESS_FEATURES),
    "without run lengths and traffic": dataclasses.replace(SHIPPED, without=ACCESS_FEATURES),
    "without estimated times": dataclasses.replace(SHIPPED, without=ESTIMATES),
    "without waves and residency": dataclasses.replace(SHIPPED, without=RESIDENCY),
    "without how tiles are dealt": dataclasses.replace(SHIPPED, without=PLACEMENT_FEATURES),
    "without the formula's anchor": dataclasses.replace(SHIPPED, without=ANCHOR),
    "XE-NDCG": dataclasses.replace(SHIPPED, objective="rank_xendcg"),
    "regression of log slowdown": dataclasses.replace(SHIPPED, objective="regression", rounds=2 * SHIPPED.rounds),
    "the k best scores": dataclasses.replace(SHIPPED, diversity=0.0),
    "twice the trees": dataclasses.replace(SHIPPED, rounds=2 * SHIPPED.rounds),
    "half the leaves": dataclasses.replace(SHIPPED, num_leaves=SHIPPED.num_leaves // 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="an MLflow store to record every arm in")
    parser.add_argument("--json", type=Path, default=RESULT)
    arguments = parser.parse_args()
    corpus, hardware = read_corpus(H200_CORPUS), known_hardware("h200")
    arms: dict[str, Any] = {}
    for name, arm in ARMS.items():
        seeds = []
        for seed in SEEDS:
            config = dataclasses.replace(arm, seed=seed)
            began = time.perf_counter()
            folds, model = held_out_model(corpus, hardware, config)
            seconds = time.perf_counter() - began
            regret = curve(corpus, model)
            seeds.append({f"model@{k}": summary(regret[k]) for k in JUDGED_K})
            if arguments.store and seed == SEEDS[0]:
                log_evaluation(
                    open_store(arguments.store), kind="ablation", name=name, params=config.asdict(), curve=regret,
                    evaluation=evaluate(corpus, hardware, model, ks=EVALUATED_K), seconds=seconds, folds=folds,
                )  # fmt: skip
        mean = {k: {tier: fmean(one[k][tier] for one in seeds) for tier in seeds[0][k]} for k in seeds[0]}
        changed = {
            key: value for key, value in dataclasses.asdict(arm).items() if value != dataclasses.asdict(SHIPPED)[key]
        }
        arms[name] = {"changed": changed, "mean": mean, "seeds": seeds}
        print(
            f"{name:34}" + "  ".join(f"{k} {m['lossless']:.3f}/{m['severe']:.3f}" for k, m in mean.items()), flush=True
        )
    result = {
        "command": "python benchmarks/ablation_h200.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "run_on": host_cpu().name,
        "libraries": library_versions(),
        "corpus": {"file": f"corpora/{H200_CORPUS.name}", "digest": corpus.digest, "kernels": len(corpus.sweeps)},
        "seeds": SEEDS,
        "arms": arms,
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def summary(slowdown: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    return {
        "lossless": float((slowdown <= LOSSLESS).mean()),
        "severe": float((slowdown > SEVERE).mean()),
        "p95": float(np.percentile(slowdown, 95, method="higher")),
        "worst": float(slowdown.max()),
    }


if __name__ == "__main__":
    main()
