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
from pathlib import Path

from tileguard.features.hardware import host_cpu, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.learner.corpus import Corpus, read_corpus
from tileguard.learner.demo import H200_CORPUS
from tileguard.learner.evaluate import tiers
from tileguard.learner.pipeline import held_out_metrics, judge_held_out, train_model
from tileguard.learner.tables import evaluation_notes, selector_table
from tileguard.learner.train import TrainConfig, library_versions
from tileguard.learner.training_run import save_figures, training_figures
from tileguard.runtime.cli import console

ROOT = Path(__file__).resolve().parents[1]


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
        curve = judge_held_out(corpus, hardware, dataclasses.replace(config, seed=seed)).curve
        return {f"model@{k}": tiers(curve[k])["lossless"] for k in (4, 8, 12)}

    result = {
        "command": "python benchmarks/held_out.py",
        "measured_on": "one NVIDIA H200 (corpora/README.md); judged on " + host_cpu().name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "libraries": library_versions(),
        "corpus": {"file": "corpora/h200-reduction-ops.parquet", "digest": corpus.digest},
        "config": config.asdict(),
        "parity": trained.manifest.metrics["parity"],
        "other_seeds": {str(seed): lossless(seed) for seed in SEEDS},
        "kernels_with_a_twin": twins(corpus),
        **held_out_metrics(trained.held_out),
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def twins(corpus: Corpus) -> int:
    """Kernels that another family has in equal description: held out by name, seen by features."""
    families: dict[ReductionKernel, set[str]] = {}
    for sweep in corpus.sweeps:
        families.setdefault(sweep.kernel, set()).add(sweep.family)
    return sum(len(families[sweep.kernel]) > 1 for sweep in corpus.sweeps)


if __name__ == "__main__":
    main()
