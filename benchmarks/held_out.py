"""Quality of candidate sets on an H200, every kernel judged by a model that saw none of its workload family.

    python benchmarks/held_out.py

Cross-validates the shipped configuration on the shipped corpus, writes every figure of the README's table to
benchmarks/results/held_out_h200.json and the pictures to docs/figures/. Takes half a minute on two cores; benchmarks/
readme.py then brings the README up to date.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from tileguard.features.hardware import host_cpu, known_hardware
from tileguard.learner.corpus import read_corpus
from tileguard.learner.demo import H200_CORPUS
from tileguard.learner.pipeline import held_out_metrics, train_model
from tileguard.learner.recorded import save_figures, training_figures
from tileguard.learner.tables import evaluation_notes, selector_table
from tileguard.learner.train import TrainConfig, library_versions
from tileguard.runtime.cli import console

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "held_out_h200.json")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures")
    arguments = parser.parse_args()

    corpus = read_corpus(H200_CORPUS)
    config = TrainConfig()
    trained = train_model(corpus, known_hardware("h200"), config, command="python benchmarks/held_out.py")
    evaluation = trained.held_out.evaluation
    console().print(selector_table(evaluation, title=f"{len(corpus.sweeps)} kernels, held-out families"))
    for note in evaluation_notes(evaluation):
        console().print(note)
    save_figures(training_figures(trained), arguments.figures)
    result = {
        "command": "python benchmarks/held_out.py",
        "measured_on": "one NVIDIA H200 (corpora/README.md); judged on " + host_cpu().name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "libraries": library_versions(),
        "corpus": {"file": "corpora/h200-reduction-ops.parquet", "digest": corpus.digest},
        "config": config.asdict(),
        "parity": trained.manifest.metrics["parity"],
        **held_out_metrics(trained.held_out),
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
