"""How good is a model on a CPU that it was not trained on, and what does `tileguard adapt` make of it?

    PYTHONPATH=src python benchmarks/cpu_adapt.py

The other CPU is this one's code generator told to know no AVX-512: for x86-64-v3, vectors of half the width, half the
registers, other compile times. Everything else is the same, which real other CPUs are not.

1. Sweeps 24 kernels for the target, as `tileguard adapt` does, and 40 more to judge by. A later run continues.
2. Judges on the 40, none of which any model has seen: as a user would have it, with their families known from other
   kernels; and with their families held out of model and formula alike.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import tileguard
from tileguard.features.hardware import HardwareSpec
from tileguard.learner.adapt import BASE_CORPUS, Joint, Judgement, judge, local_weight, local_workloads, objective_name
from tileguard.learner.amortised import JUDGED_CALLS, under
from tileguard.learner.corpus import Corpus, read_corpus
from tileguard.learner.evaluate import Evaluation, Model, evaluate
from tileguard.learner.pipeline import PATIENT, default_config
from tileguard.learner.progress import collect_with_progress
from tileguard.learner.train import BoosterRanker, library_versions
from tileguard.runtime.cli import console as wide_console
from tileguard.runtime.devices.cpu import CpuDevice
from tileguard.runtime.feature_space import FOREVER
from tileguard.runtime.selector import Selector

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "cpu_adapt.json"
TARGET, LOCAL, JUDGED = "x86-64-v3", 24, 40
COMPILE_AGAIN_MS = 60.0
OBJECTIVES = (FOREVER, *JUDGED_CALLS)
MEASURES = ("lossless", "severe", "geomean", "worst", "set_mean")
BASE, BASE_UNION = "base model@8", "base union@8, were it trusted"
UNWEIGHTED, ALONE = "adapted, all weighing 1: model@8", "local kernels alone: model@8"
SETS = (BASE, BASE_UNION, "adapted model@8", "adapted union@8", "formula", UNWEIGHTED, ALONE)


def main() -> None:
    """Sweep, train, judge, write the results."""
    arguments = parse_arguments()
    logging.getLogger("tileguard").setLevel(logging.ERROR)  # verdicts of folds: kernels outside their ranges
    console = Console(stderr=True)
    base = read_corpus(arguments.base)
    device = CpuDevice(compile_again_ms=COMPILE_AGAIN_MS, target=arguments.target)
    drawn = local_workloads(base, arguments.local + arguments.judged, 0)
    files = {"local": drawn[: arguments.local], "judge": drawn[arguments.local :]}
    try:
        for name, workloads in files.items():
            collect_with_progress(workloads, device, arguments.out / f"{name}.parquet", console=console)
    finally:
        device.close()
    local, judged = (read_corpus(arguments.out / f"{name}.parquet") for name in files)
    started = time.monotonic()
    config = default_config(device.hardware)
    weight = local_weight(len(base.sweeps), len(local.sweeps))
    joint = Joint(base, local, device.hardware, config, weight)
    known = as_deployed(joint, judged)
    console.print("judged with families known; now with families held out")
    _, judgements = judge(joint, judged)
    seconds = time.monotonic() - started
    report = {
        "benchmark": "cpu_adapt",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": asdict(device.hardware),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "toolchain": device.toolchain,
        "versions": {"tileguard": tileguard.__version__, "python": platform.python_version(), **library_versions()},
        "base": {
            "hardware": sorted({sweep.hardware for sweep in base.sweeps}), "files": dict(base.files),
            "kernels": len(base.sweeps), "rows": base.n_rows,
        },
        "local": {"kernels": len(local.sweeps), "rows": local.n_rows, "weight": weight, "digest": local.digest},
        "judged": {"kernels": len(judged.sweeps), "rows": judged.n_rows, "digest": judged.digest},
        "parameters": config.asdict(), "train_and_judge_s": seconds,
        "families_known": known, "families_held_out": [held_out(one) for one in judgements],
    }  # fmt: skip
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show(report)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=BASE_CORPUS, help="corpus of the other CPU (the shipped one)")
    parser.add_argument("--target", default=TARGET, help=f"CPU to generate code for ({TARGET})")
    parser.add_argument("--local", type=int, default=LOCAL, help=f"kernels to adapt by ({LOCAL})")
    parser.add_argument("--judged", type=int, default=JUDGED, help=f"kernels to judge by ({JUDGED})")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "cpu_adapt", help="folder of the sweeps")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the results file")
    return parser.parse_args()


def as_deployed(joint: Joint, judged: Corpus) -> list[dict[str, Any]]:
    """Models trained on all there is, and the shipped formula: what a user has for a new kernel of a known family."""
    everything, n = range(len(joint.corpus.sweeps)), joint.n_base
    plain = Joint(joint.base, joint.local, joint.hardware, joint.config, 1.0)
    rankers = {
        BASE: joint.ranker(everything[:n]), "adapted": joint.ranker(everything),
        UNWEIGHTED: plain.ranker(everything), ALONE: joint.ranker(everything[n:]),
    }  # fmt: skip
    rows = []
    for calls in OBJECTIVES:
        corpus = under(judged, [calls])
        found = {name: evaluation(corpus, joint.hardware, one) for name, one in rankers.items()}
        adapted = found.pop("adapted")
        sets = {
            BASE_UNION: measures(found[BASE], "union@8"),
            "adapted model@8": measures(adapted, "model@8"), "adapted union@8": measures(adapted, "union@8"),
            "formula": measures(adapted, "formula"),
            **{name: measures(one, "model@8") for name, one in found.items()},
        }  # fmt: skip
        rows.append(row(calls, sets, adapted))
    return rows


def held_out(one: Judgement) -> dict[str, Any]:
    """An objective's judgement without the families."""
    sets = {
        BASE: measures(one.base, "model@8"),
        BASE_UNION: measures(one.base, "union@8"), "adapted model@8": measures(one.adapted, "model@8"),
        "adapted union@8": measures(one.adapted, "union@8"), "formula": measures(one.adapted, "formula"),
    }  # fmt: skip
    return row(one.calls, sets, one.adapted)


def row(calls: float, sets: Mapping[str, dict[str, float]], adapted: Evaluation) -> dict[str, Any]:
    return {
        "calls": None if calls == FOREVER else calls, "sets": {name: sets[name] for name in SETS if name in sets},
        "superset_violations": adapted.superset_violations,
    }  # fmt: skip


def evaluation(corpus: Corpus, hardware: HardwareSpec, ranker: BoosterRanker) -> Evaluation:
    selector = Selector(hardware, model=ranker, top_k=8, policy=PATIENT)
    model = Model(lambda index: ranker, lambda index, k: selector, ranker.manifest.diversity)
    return evaluate(corpus, hardware, model, ks=(8,))


def measures(found: Evaluation, selector: str) -> dict[str, float]:
    summary = found.summary(selector)
    return {name: summary[name] for name in MEASURES}


def show(report: dict[str, Any]) -> None:
    """One table for each way of judging."""
    for key, words in (("families_known", "families known"), ("families_held_out", "families held out")):
        wide_console().print(
            table(f"{report['judged']['kernels']} kernels, {words}: ≤ 5 % / > 30 % / geomean", report[key])
        )


def table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    names = [name for name in SETS if name in rows[0]["sets"]]
    out = Table(title=title, title_justify="left")
    out.add_column("objective")
    for name in names:
        out.add_column(name, justify="right")
    for one in rows:
        cells = (one["sets"][name] for name in names)
        shares = [f"{100 * c['lossless']:.1f} / {100 * c['severe']:.1f} / {c['geomean']:.3f}" for c in cells]
        out.add_row(objective_name(one["calls"]), *shares)
    return out


if __name__ == "__main__":
    main()
