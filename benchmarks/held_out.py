"""Quality of candidate sets on an H200, every kernel judged by a model that saw none of its workload family.

    python benchmarks/held_out.py

Cross-validates the shipped configuration on the shipped corpus, writes every figure of the README's table to
benchmarks/results/held_out_h200.json and the pictures to docs/figures/. Takes a minute on two cores; benchmarks/
readme.py then brings the README up to date.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tileguard.features.hardware import HardwareSpec, host_cpu, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.learner.corpus import Corpus, read_corpus
from tileguard.learner.demo import H200_CORPUS
from tileguard.learner.evaluate import Evaluation, Model, curve, evaluate, tiers
from tileguard.learner.pipeline import PATIENT, Trained, held_out_metrics, held_out_model, train_model
from tileguard.learner.tables import evaluation_notes, selector_table
from tileguard.learner.train import BoosterRanker, TrainConfig, library_versions
from tileguard.learner.training_run import save_figures, training_figures
from tileguard.runtime.cli import console
from tileguard.runtime.lattice import lattice
from tileguard.runtime.manifest import finite
from tileguard.runtime.selector import Selector

ROOT = Path(__file__).resolve().parents[1]


SECOND = ROOT / "corpora" / "h200-reduction-ops.parquet"
BINS_US = (0.0, 1.2, 2.0, 5.0, 20.0, float("inf"))
SEEDS = (1, 2, 3, 4)
"""Trained again with these, to know how far a figure of the table moves for no reason."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "held_out_h200.json")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures")
    arguments = parser.parse_args()

    corpus = read_corpus(H200_CORPUS)
    hardware = known_hardware("h200")
    config = TrainConfig()
    trained = train_model(corpus, hardware, config, command="python benchmarks/held_out.py")
    evaluation = trained.held_out.evaluation
    console().print(selector_table(evaluation, title=f"{len(corpus.sweeps)} kernels, held-out families"))
    for note in evaluation_notes(evaluation):
        console().print(note)
    save_figures(training_figures(trained), arguments.figures)

    def lossless(seed: int) -> dict[str, float]:
        regret = curve(corpus, held_out_model(corpus, hardware, dataclasses.replace(config, seed=seed))[1])
        return {f"model@{k}": tiers(regret[k])["lossless"] for k in (1, 4, 8, 12)}

    result = {
        "command": "python benchmarks/held_out.py",
        "measured_on": "one NVIDIA H200 (corpora/README.md); judged on " + host_cpu().name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "libraries": library_versions(),
        "corpus": {"file": f"corpora/{H200_CORPUS.name}", "digest": corpus.digest},
        "config": config.asdict(),
        "parity": trained.manifest.metrics["parity"],
        "other_seeds": {str(seed): lossless(seed) for seed in SEEDS},
        "kernels_with_a_twin": twins(corpus),
        "by_sweep": by_sweep(evaluation, hardware),
        "by_time": by_time(evaluation),
        "second_opinion": second_opinion(trained, hardware),
        **held_out_metrics(trained.held_out),
    }
    arguments.json.write_text(json.dumps(finite(result), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def by_sweep(evaluation: Evaluation, hardware: HardwareSpec) -> dict[str, Any]:
    """Apart: kernels of which the whole lattice was measured, and those where a sample stands for it."""
    groups: dict[str, list[int]] = {"whole lattice": [], "sampled": []}
    for i, sweep in enumerate(evaluation.corpus.sweeps):
        measured = {sweep.tiles[j] for j in sweep.measured}
        whole = all(tile in measured for tile in lattice(sweep.kernel, hardware))
        groups["whole lattice" if whole else "sampled"].append(i)
    return {name: judged(evaluation, indices) for name, indices in groups.items()}


def by_time(evaluation: Evaluation) -> dict[str, Any]:
    """Apart by the time of the best tile: short kernels are full of near-equal tiles, and of noise."""
    best = [sweep.best_us for sweep in evaluation.corpus.sweeps]
    return {
        f"{low:g} to {high:g} µs": judged(evaluation, [i for i, us in enumerate(best) if low < us <= high])
        for low, high in pairwise(BINS_US)
    }


def second_opinion(trained: Trained, hardware: HardwareSpec) -> dict[str, Any]:
    """The model trained on every family, on a corpus of another run and collector that no training has seen."""
    corpus = read_corpus(SECOND)
    config = trained.config
    ranker = BoosterRanker(trained.booster, hardware, trained.manifest)
    selectors = {k: Selector(hardware, model=ranker, top_k=k, policy=PATIENT) for k in (1, 4, 8, 12)}
    model = Model(lambda i: ranker, lambda i, k: selectors[k], config.diversity)
    found = evaluate(corpus, hardware, model, ks=tuple(selectors))
    return {"file": f"corpora/{SECOND.name}", "digest": corpus.digest, **found.to_json()}


def judged(evaluation: Evaluation, indices: list[int]) -> dict[str, Any]:
    names = [name for name in evaluation.sets if name.startswith(("model@", "union@", "formula", "host_default"))]
    return {"kernels": len(indices), **{name: evaluation.summary(name, indices) for name in names}}


def twins(corpus: Corpus) -> int:
    """Kernels that another family has in equal description: held out by name, seen by features."""
    families: dict[ReductionKernel, set[str]] = {}
    for sweep in corpus.sweeps:
        families.setdefault(sweep.kernel, set()).add(sweep.family)
    return sum(len(families[sweep.kernel]) > 1 for sweep in corpus.sweeps)


if __name__ == "__main__":
    main()
