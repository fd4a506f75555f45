"""Quality of candidate sets on an H200, every kernel judged by a model that saw none of its workload family.

    python benchmarks/held_out.py

Cross-validates the shipped configuration on the shipped corpus, writes every figure of the README's table to
benchmarks/results/held_out_h200.json, the table itself into the README and the pictures to docs/figures/. Takes half a
minute on two cores.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tileguard.features.hardware import host_cpu, known_hardware
from tileguard.learner.corpus import read_corpus
from tileguard.learner.demo import H200_CORPUS
from tileguard.learner.pipeline import held_out_metrics, train_model
from tileguard.learner.recorded import save_figures, training_figures
from tileguard.learner.tables import evaluation_notes, percent, selector_table
from tileguard.learner.train import TrainConfig, library_versions
from tileguard.runtime.cli import console

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- results: written by benchmarks/held_out.py -->", "<!-- end of results -->"
LABELS = {
    "host_default": "Inductor's default",
    "host_max_autotune": "Inductor's max-autotune",
    "host_coordinate_descent": "max-autotune, then coordinate descent (simulated)",
    "formula": "the RFC's formula, derived warps",
    "formula_all_warps": "the RFC's formula, every warp count",
    "model@4": "model alone, k = 4",
    "model@8": "model alone, k = 8",
    "model@12": "model alone, k = 12",
    "union@4": "**tileguard's union, k = 4**",
    "union@8": "**tileguard's union, k = 8**",
    "union@12": "**tileguard's union, k = 12**",
}


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
    README.write_text(with_results(README.read_text(encoding="utf-8"), readme_block(result)), encoding="utf-8")


def readme_block(result: dict[str, Any]) -> str:
    """The README's table of results, from a results file."""
    rows = [
        "| candidate set | ≤ 5 % | 5–10 % | 10–30 % | > 30 % | geomean | p95 | worst | tiles compiled |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, label in LABELS.items():
        s = result["selectors"][name]
        shares = " | ".join(percent(s[key]) for key in ("lossless", "loss_5_10", "loss_10_30", "severe"))
        figures = " | ".join(f"{s[key]:.3f}" for key in ("geomean", "p95", "worst"))
        rows.append(f"| {label} | {shares} | {figures} | {s['n_pred_mean']:.1f} |")
    loses = result["model_loses"]["model@8"]
    rows += [
        "",
        (
            f"{result['kernels']} kernels in {result['families']} families, {result['folds']} folds by family; slowdown is "
            f"the best time in the set ÷ the dense best. Superset violations: {result['superset_violations']}. Eight tiles of "
            f"the model alone are over 2 % slower than the formula's on {percent(loses['formula'])} of kernels, than the "
            f"host's default on {percent(loses['host_default'])}."
        ),
    ]
    return "\n".join(rows)


def with_results(readme: str, block: str) -> str:
    """The README with `block` between its two markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


if __name__ == "__main__":
    main()
