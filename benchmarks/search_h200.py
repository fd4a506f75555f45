"""A recorded search of the ranker's hyper-parameters, on families alone.

    python benchmarks/search_h200.py [--samples 40] [--store FOLDER]

Draws configurations (scikit-learn's ParameterSampler, fixed seed), the shipped one first, and cross-validates each over
families that are dealt to folds in another way than for the reported figures, so that those are not what was searched
on. Judged by the mean over k = 4, 8, 12 of the lossless share. Every line of benchmarks/results/search_h200.json is one
configuration; with --store every one is an MLflow run as well. Takes some ten minutes on one core.
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

from tileguard.features.hardware import host_cpu, known_hardware
from tileguard.learner.corpus import read_corpus
from tileguard.learner.demo import H200_CORPUS
from tileguard.learner.evaluate import curve, evaluate, tiers
from tileguard.learner.pipeline import EVALUATED_K, held_out_model
from tileguard.learner.store import open_store
from tileguard.learner.tracking import log_evaluation
from tileguard.learner.train import TrainConfig, library_versions
from tileguard.runtime.optional import require

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "search_h200.json"
FOLD_SEED = 1
JUDGED_K = (4, 8, 12)
LARGEST = 60 * 128
"""Leaves of a model: at 32 bytes a leaf some 250 kB."""

SPACE: dict[str, list[Any]] = {
    "rounds": [40, 50, 60, 80], "num_leaves": [24, 31, 48, 64, 96, 128], "learning_rate": [0.08, 0.1, 0.12, 0.15, 0.2],
    "min_data_in_leaf": [10, 20, 30, 50, 80], "feature_fraction": [0.3, 0.4, 0.5, 0.7],
    "bagging_fraction": [0.5, 0.7, 0.9], "sigmoid": [0.5, 1.0, 2.0], "diversity": [0.75, 1.0, 1.5, 2.0],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--store", help="an MLflow store to record every configuration in")
    parser.add_argument("--json", type=Path, default=RESULT)
    arguments = parser.parse_args()
    corpus, hardware = read_corpus(H200_CORPUS), known_hardware("h200")
    sampler = require("sklearn.model_selection").ParameterSampler(SPACE, arguments.samples, random_state=0)
    drawn = [one for one in sampler if one["rounds"] * one["num_leaves"] <= LARGEST]
    shipped = {name: getattr(TrainConfig(), name) for name in SPACE}
    tried: list[dict[str, Any]] = []
    for parameters in [shipped, *drawn]:
        config = TrainConfig(**parameters, fold_seed=FOLD_SEED)
        began = time.perf_counter()
        folds, model = held_out_model(corpus, hardware, config)
        seconds = time.perf_counter() - began
        regret = curve(corpus, model)
        found = {f"model@{k}": tiers(regret[k]) for k in JUDGED_K}
        worst = {f"model@{k}": float(np.max(regret[k])) for k in JUDGED_K}
        score = fmean(tier["lossless"] for tier in found.values())
        tried.append({**parameters, "score": score, "tiers": found, "worst": worst, "seconds": round(seconds, 1)})
        print(f"{score:.4f} " + " ".join(f"{k} {t['lossless']:.3f}" for k, t in found.items()), parameters, flush=True)
        if arguments.store:
            log_evaluation(
                open_store(arguments.store), kind="ablation", name="search", params=config.asdict(), curve=regret,
                evaluation=evaluate(corpus, hardware, model, ks=EVALUATED_K), seconds=seconds, folds=folds,
            )  # fmt: skip
        tried.sort(key=lambda one: -one["score"])
        result = {
            "command": "python benchmarks/search_h200.py",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "run_on": host_cpu().name,
            "libraries": library_versions(),
            "corpus": {"file": f"corpora/{H200_CORPUS.name}", "digest": corpus.digest, "kernels": len(corpus.sweeps)},
            "folds": TrainConfig().folds,
            "fold_seed": FOLD_SEED,
            "space": SPACE,
            "shipped": dataclasses.asdict(TrainConfig()),
            "tried": tried,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
