"""What the hook costs TorchInductor a kernel, in place: from the generated source to the ranked list in its metadata.

    python benchmarks/hook_latency.py [--programs 60] [--threads 2] [--json PATH]

Real torch.compile, forward and backward, with real compile workers; only the GPU is the tests' fake one, for which
Triton writes real binaries. The host's own work between two kernels leaves little of ours in a processor's caches, so that this
is what a user pays; select_latency.py repeats selections in a process that does nothing else. Only the host's and the
best-ranked tiles of each kernel are compiled (`kernel_budget_s` 0). The first kernel loads the model.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tileguard.features.hardware import host_cpu

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "hook_latency.json"
TARGET_US, TARGET_SHARE = 2000.0, 0.01
"""At p50: of one kernel, and of its compile time."""

WORKLOADS = ("softmax", "short_softmax", "sum0", "layer_norm", "cross_entropy")
ROWS_LOG2, COLUMNS_LOG2 = (6.0, 13.0), (4.0, 14.0)
MAX_LOG2 = 24.0
"""log2 of the matrices' sides and elements, drawn log-uniformly."""

EVERY_SIZE_ANEW = (
    "import torch._dynamo as d; d.config.recompile_limit = d.config.accumulated_recompile_limit = 10_000; "
    "d.config.automatic_dynamic_shapes = False"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--programs", type=int, default=60, help="to compile; each has one reduction or more (default: 60)"
    )
    parser.add_argument("--threads", type=int, default=2, help="compile workers (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if min(arguments.programs, arguments.threads) < 1:
        parser.error("--programs and --threads are at least 1")
    programs = drawn(arguments.programs, arguments.seed)
    with tempfile.TemporaryDirectory() as cache:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.inductor_host", "--cache", cache, "--threads", str(arguments.threads),
             "--before", EVERY_SIZE_ANEW, "--tileguard", json.dumps({"kernel_budget_s": 0}), *programs],
            cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    found = json.loads(ran.stdout)
    records = [one for one in found["tileguard"]["records"] if one["outcome"] == "tuned" and one["select_us"]]
    times = [one["select_us"] for one in records]
    share = [one["select_us"] / 1e6 / one["compile_s"] for one in records]
    result = {
        "command": "python benchmarks/hook_latency.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": host_cpu().name,
        "torch": found["torch"],
        "compile_workers": arguments.threads,
        "kernels": len(records),
        "programs": len(programs),
        "first_us": round(times[0], 1),
        "select_us": quantiles(times, 1),
        "share_of_compile": quantiles(share, 5),
        "targets": {"select_us_p50": TARGET_US, "share_of_compile_p50": TARGET_SHARE},
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def drawn(count: int, seed: int) -> list[str]:
    """NAME:ROWSxCOLUMNS of programs, the workloads in turn."""
    draw = random.Random(seed)
    programs: list[str] = []
    while len(programs) < count:
        rows, columns = (2.0 ** draw.uniform(*span) for span in (ROWS_LOG2, COLUMNS_LOG2))
        if rows * columns <= 2.0**MAX_LOG2:
            programs.append(f"{WORKLOADS[len(programs) % len(WORKLOADS)]}:{rows:.0f}x{columns:.0f}")
    return programs


def quantiles(values: Sequence[float], digits: int) -> dict[str, Any]:
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return {"p50": round(statistics.median(values), digits), "p95": round(cuts[18], digits)}


if __name__ == "__main__":
    main()
