"""What one selection costs a host compiler: µs a kernel, cold and warm, and the time to import and to load.

    python benchmarks/select_latency.py [--model DIR | --no-model] [--json PATH]

Cold is a kernel's first selection in a fresh process that has a session already; warm is a repeated one. `best` takes
each kernel's fastest over all processes or repeats, which other programs on the machine disturb least. One thread, the
H200 corpus's kernels and host lists.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tileguard
from tileguard.features.hardware import host_cpu
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import read_corpus
from tileguard.runtime.guard import GuardPolicy
from tileguard.runtime.lattice import lattice
from tileguard.runtime.selector import SelectionTimes, Selector

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "corpora" / "h200-reduction-ops.parquet"
RESULT = ROOT / "benchmarks" / "results" / "select_latency.json"
HARDWARE = "h200"
TARGET_US = {"p50": 1000.0, "p99": 3000.0}
MUST_BE_ABSENT = ("lightgbm", "matplotlib", "mlflow", "pandas", "pyarrow", "rich", "sklearn", "torch", "typer")
LARGE_LATTICE = 190
"""Kernels with as many tiles to rank are told apart: ranking is most of the time, and grows with them."""

PATIENT = GuardPolicy(score_budget_s=10.0)

Work = Sequence[tuple[ReductionKernel, tuple[ReductionTile, ...]]]

# Reads kernels and host lists from standard input, since reading the corpus here would import pyarrow.
_FRESH = """
import json, sys, time
started = time.perf_counter()
import tileguard.runtime
imported = time.perf_counter()
from tileguard.features import ReductionKernel, ReductionTile
from tileguard.features.code import KernelCode
from tileguard.runtime import GuardPolicy, Selector
work = [
    (ReductionKernel(**k | {"code": KernelCode.from_json(code) if code else None}), [ReductionTile(**t) for t in host])
    for k, code, host in json.load(sys.stdin)
]
selector = Selector("h200", model=sys.argv[1] or None, policy=GuardPolicy(score_budget_s=10.0))
ready = time.perf_counter()
selector.select(ReductionKernel(3, 5, "fp32", 1, 1))  # makes the session; fills no cache that the work below uses
loaded = time.perf_counter()
found = [selector.select(kernel, host) for kernel, host in work]
print(json.dumps({
    "import_ms": 1e3 * (imported - started), "session_and_first_select_ms": 1e3 * (loaded - ready),
    "times": [[one.times.total_us, one.times.propose_us, one.times.score_us] for one in found],
    "verdicts": [one.verdict.reason for one in found], "tiles": [len(one.candidates) for one in found],
    "modules": sorted({name.split(".")[0] for name in sys.modules}),
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="champion", metavar="DIR", help="a model's folder (default: the champion)")
    parser.add_argument("--no-model", action="store_true", help="time the fallbacks alone")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="warm selections of each kernel")
    parser.add_argument("--starts", type=int, default=7, metavar="N", help="fresh processes")
    parser.add_argument("--json", type=Path, default=RESULT, metavar="PATH", help="where the result is written")
    args = parser.parse_args()

    model = None if args.no_model else args.model
    result = measure(model, repeats=args.repeats, starts=args.starts)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def measure(model: str | None, *, repeats: int, starts: int) -> dict[str, Any]:
    """Everything that the result file holds."""
    sweeps = read_corpus(CORPUS).sweeps
    work = [(sweep.kernel, tuple(sweep.tiles[i] for i in sweep.host_default)) for sweep in sweeps]
    runs = [fresh_process(model, work) for _ in range(starts)]
    selector = Selector(HARDWARE, model=model, policy=PATIENT)
    rounds = [[as_row(selector.select(kernel, host).times) for kernel, host in work] for _ in range(repeats + 1)]
    cold, warm = np.array([run["times"] for run in runs]), np.array(rounds[1:])
    large = [i for i, (kernel, _) in enumerate(work) if len(lattice(kernel, selector.hardware)) >= LARGE_LATTICE]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": host_cpu().name.removeprefix("cpu-"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": versions(),
        "model": describe(model, selector),
        "kernels": len(work),
        "verdicts": dict(Counter(runs[0]["verdicts"])),
        "tiles_per_kernel_mean": round(statistics.fmean(runs[0]["tiles"]), 1),
        "target_us": TARGET_US,
        "cold": percentiles(cold),
        "warm": percentiles(warm),
        "around_200_tiles": {
            "kernels": len(large),
            "cold": percentiles(cold[:, large]),
            "warm": percentiles(warm[:, large]),
        },
        "start": {
            "n": starts,
            "import_ms": round(statistics.median(run["import_ms"] for run in runs), 1),
            "session_and_first_select_ms": round(
                statistics.median(run["session_and_first_select_ms"] for run in runs), 1
            ),
            "heavy_modules": sorted({*MUST_BE_ABSENT} & {name for run in runs for name in run["modules"]}),
        },
    }


def fresh_process(model: str | None, work: Work) -> dict[str, Any]:
    """Import, load and select each kernel once, in a process of its own."""
    text = json.dumps(
        [
            (asdict(kernel) | {"code": None}, kernel.code and kernel.code.to_json(), [asdict(tile) for tile in host])
            for kernel, host in work
        ]
    )
    command = [sys.executable, "-c", _FRESH, model or ""]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    run: dict[str, Any] = json.loads(done.stdout)
    return run


def as_row(times: SelectionTimes) -> tuple[float, float, float]:
    return times.total_us, times.propose_us, times.score_us


def percentiles(times: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Of float64[rounds, kernels, (total, propose, score)] in µs, over all rounds and over each kernel's best one.

    propose: formula and lattice; score: features, model, the hop to the guard's thread; other: choice, union, order.
    """
    fastest = times[:, :, 0].argmin(axis=0)
    best = times[fastest, np.arange(times.shape[1])]
    return {"n": times.shape[0] * times.shape[1], **split(times.reshape(-1, 3)), "best": split(best)}


def split(rows: npt.NDArray[np.float64]) -> dict[str, dict[str, float]]:
    total, propose, score = rows.T
    parts = {"total_us": total, "propose_us": propose, "score_us": score, "other_us": total - propose - score}
    return {
        name: {
            "p50": round(float(np.percentile(values, 50)), 1),
            "p99": round(float(np.percentile(values, 99)), 1),
            "max": round(float(values.max()), 1),
        }
        for name, values in parts.items()
    }


def describe(model: str | None, selector: Selector) -> dict[str, Any] | None:
    """Which model it was: by digest and size, since a folder's name says nothing elsewhere."""
    ranker = selector.guard.ranker
    if model is None or ranker is None:
        return None
    manifest = ranker.manifest
    return {"onnx_sha256": manifest.onnx_sha256, "parameters": dict(manifest.parameters), "created": manifest.created}


def versions() -> dict[str, str]:
    return {
        "tileguard": tileguard.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("numpy", "onnxruntime")},
    }


if __name__ == "__main__":
    main()
