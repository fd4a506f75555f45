"""What one tail plan costs, and what the planner finds on random problems: ms a plan, the table against enumeration.

    python benchmarks/tail_plan.py [--problems N] [--json PATH]

Problems are drawn log-uniformly (batch to 64, M and N to 2^13, K to 2^14), all layouts. Large ones have batch·M·N =
2^40, each shape in every layout and with a short and a long K. Times are of this machine, one thread; all else is arithmetic
and repeats exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import tileguard
from tileguard.features.hardware import host_cpu, known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.runtime.tail import TailPlan, plan_tail
from tileguard.runtime.tail.cuts import GEOMETRIES
from tileguard.runtime.tail.plan import FIRSTS

RESULT = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "tail_plan.json"
HARDWARE = "ascend950pr"
TARGET_MS = {"p50": 5.0, "at_2_40": 50.0}
SEED = 0
NEAR = 1.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=2000, metavar="N", help="random problems")
    parser.add_argument("--json", type=Path, default=RESULT, metavar="PATH", help="where the result is written")
    args = parser.parse_args()

    result = measure(args.problems)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def measure(problems: int) -> dict[str, Any]:
    """Everything that the result file holds."""
    rng = random.Random(SEED)
    kernels = [random_kernel(rng) for _ in range(problems)]
    plan_tail(kernels[0], known_hardware(HARDWARE))  # imports and first calls
    runs = {(geometry, first): timed(kernels, geometry, first) for geometry, first in product(GEOMETRIES, FIRSTS)}
    exact = [plan for plan, _ in runs["exact", "waves"]]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": host_cpu().name.removeprefix("cpu-"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"tileguard": tileguard.__version__, "numpy": np.__version__},
        "hardware": HARDWARE,
        "problems": problems,
        "target_ms": TARGET_MS,
        "plan_ms": {f"{geometry}, {first}": ms([t for _, t in run]) for (geometry, first), run in runs.items()},
        "at_2_40_ms": {f"{geometry}, {first}": large(geometry, first) for geometry, first in runs},
        "chosen": counts(plan.strategy for plan in exact),
        "rules": counts(str(plan.rule.number) for plan in exact),
        "table_within_1_percent_of_the_fastest": {
            f"{geometry}, {first}": table_agrees([plan for plan, _ in run]) for (geometry, first), run in runs.items()
        },
        "a1b_slower_than_a0_or_b": {
            f"{geometry}, {first}": sum(a1b_slower(plan) for plan, _ in run)
            for (geometry, first), run in runs.items()
            if first != "fill"
        },
        "a1b_of_area_not_reached_by_exact": not_reached(exact, [plan for plan, _ in runs["area", "waves"]]),
        "joint_over_waves": gains(exact, [plan for plan, _ in runs["exact", "joint"]]),
        "waves_over_fill": gains([plan for plan, _ in runs["exact", "fill"]], exact),
    }


def random_kernel(rng: random.Random) -> MatmulKernel:
    batch, m, n, k = (int(2 ** rng.uniform(0, most)) for most in (6, 13, 13, 14))
    layout = rng.random() < 0.25, rng.random() < 0.4
    return MatmulKernel(batch, m, n, k, rng.choice(["bf16", "fp16", "fp8"]), None, *layout)


def timed(kernels: Sequence[MatmulKernel], geometry: str, first: str) -> list[tuple[TailPlan, float]]:
    """Each kernel's plan and its time in ms, the better of two."""
    hardware = known_hardware(HARDWARE)
    found = []
    for kernel in kernels:
        times = []
        for _ in range(2):
            started = time.perf_counter()
            plan = plan_tail(kernel, hardware, geometry=geometry, first=first)
            times.append(1e3 * (time.perf_counter() - started))
        found.append((plan, min(times)))
    return found


def large(geometry: str, first: str) -> dict[str, float]:
    shapes = [(1, 1 << 20, 1 << 20), (7, 397_187, 395_481), (1024, 1 << 15, 1 << 15), (1 << 20, 1 << 10, 1 << 10),
              (1 << 40, 1, 1), (1, 1 << 40, 1)]  # fmt: skip
    kernels = [
        MatmulKernel(batch, m, n, k, "bf16", None, a, b)
        for (batch, m, n), k, a, b in product(shapes, (16, 4096), (False, True), (False, True))
    ]
    return ms([t for _, t in timed(kernels, geometry, first)])


def ms(times: Sequence[float]) -> dict[str, float]:
    return {
        "p50": round(float(np.percentile(times, 50)), 2),
        "p99": round(float(np.percentile(times, 99)), 2),
        "max": round(max(times), 2),
    }


def counts(names: Any) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def table_agrees(plans: Sequence[TailPlan]) -> float:
    """Share of plans where a strategy that the table's row picks is as fast as the fastest, to 1 %."""
    good = 0
    for plan in plans:
        times = [plan.latency_us[name] for name in plan.rule.strategies]
        good += any(us is not None and us <= plan.us * NEAR for us in times)
    return round(good / len(plans), 4)


def a1b_slower(plan: TailPlan) -> bool:
    others = [plan.latency_us[name] for name in ("A0", "B")]
    return any(us is not None and plan["A1b"].us > us * (1 + 1e-9) for us in others)


def not_reached(exact: Sequence[TailPlan], area: Sequence[TailPlan]) -> dict[str, float]:
    """Where the area promises a faster A1b than A0: how often exact rectangles are over 0.1 % and 1 % slower than promised."""
    pairs = [(e["A1b"].us, a["A1b"].us) for e, a in zip(exact, area, strict=True) if a["A1b"].new_tail]
    return {
        "promised": len(pairs),
        "over_0_1_percent": sum(e > 1.001 * a for e, a in pairs),
        "over_1_percent": sum(e > 1.01 * a for e, a in pairs),
        "worst": round(max(e / a for e, a in pairs), 4),
    }


def gains(slower: Sequence[TailPlan], faster: Sequence[TailPlan]) -> dict[str, float]:
    """Time of the first over the second, in the fastest strategy of each."""
    ratios = [a.us / b.us for a, b in zip(slower, faster, strict=True)]
    return {
        "geomean": round(statistics.geometric_mean(ratios), 4),
        "over_0_1_percent": sum(ratio > 1.001 for ratio in ratios),
        "least": round(min(ratios), 4),
        "most": round(max(ratios), 4),
    }


if __name__ == "__main__":
    main()
