"""Snapshot against select on the cases of the Tile→XIR report (§2), beside the speed-ups that it published.

    PYTHONPATH=src python benchmarks/xir_lowerings.py

Every lowering of the seven reductions and the control is compiled twice (CPU time of both is kept), checked in full
against float64 and between guard bytes, then timed: single thread, thread CPU time, W = 8 rows a vector as in the
report. A round takes one batch of every candidate of a case, the next round in the reverse order; ratios are taken
within a round, and their median is the speed-up. Then the sizes at which the report had no result (§4), within the
device's own budgets.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

import tileguard
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.workloads import REPORT_KERNELS
from tileguard.runtime.cli import console as wide_console
from tileguard.runtime.devices.base import CandidateError
from tileguard.runtime.devices.cpu import CpuBudgets, CpuDevice, cpu_kernel
from tileguard.runtime.devices.cpu.budgets import local_bytes, ssa_expansion
from tileguard.runtime.devices.cpu.compiler import ChildCompiler
from tileguard.runtime.devices.cpu.timing import cpu_us

RESULTS = Path(__file__).parent / "results" / "xir_lowerings.json"
PUBLISHED = (1.170, 3.623, 2.582, 3.252, 5.315, 3.338, 3.017, 1.015)
"""old/new of the report's table (§2), in the order of REPORT_KERNELS."""

WIDTH, BOUND = 8, 8
"""Rows a vector, and elements a turn of the bounded loop."""

OPEN_BUDGETS = CpuBudgets(ssa_expansion=1 << 17, instructions=1 << 17)
"""Four times the device's own: 64×513 expands to more than it allows by select, and by an expanded snapshot."""

LARGE = ((17, 1537, 8), (1024, 4096, 8), (64, 16384, 4))
"""(rows, length, width): at a width of 8 the last one's snapshot would be 512 KiB."""


@dataclass(frozen=True)
class Variant:
    """A lowering, and how much of a row a turn of its loops makes; None: all of it, as the report's (§1) does."""

    name: str
    lowering: str
    bound: int | None


VARIANTS = (
    Variant("select", "select", None),
    Variant("snapshot, definition expanded", "snapshot", None),
    Variant("snapshot, bounded loop", "snapshot", BOUND),
    Variant("loop, bounded", "loop", BOUND),
)


def main() -> None:
    """Run the benchmark, write its results, show them."""
    arguments = parse_arguments()
    load_before = os.getloadavg()
    device, compiler = CpuDevice(budgets=OPEN_BUDGETS, compile_timeout_s=120.0), ChildCompiler(timeout_s=120.0)
    strict = CpuDevice(rounds=5)
    try:
        cases = [
            judge(workload.workload, workload.kernel, published, device, compiler, arguments)
            for workload, published in zip(REPORT_KERNELS, PUBLISHED, strict=True)
        ]
        large = [entry for shape in LARGE for entry in large_entries(*shape, strict)]
    finally:
        device.close()
        strict.close()
        compiler.close()
    report = {
        "benchmark": "xir_lowerings", "source": "xir-tile-snapshot, §2 and §4",
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": asdict(device.hardware),
        "cpus": os.cpu_count(), "load_average": {"before": load_before, "after": os.getloadavg()},
        "toolchain": device.toolchain,
        "versions": {"tileguard": tileguard.__version__, "python": platform.python_version()},
        "clock": "CPU time of the one thread", "rounds": arguments.rounds, "sample_us": arguments.sample_us,
        "width": WIDTH, "cases": cases, "large": large,
    }  # fmt: skip
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show(report)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds, an even number (30)")
    parser.add_argument("--sample-us", type=float, default=3000.0, help="CPU time of a batch (3000)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def judge(
    name: str,
    kernel: ReductionKernel,
    published: float,
    device: CpuDevice,
    compiler: ChildCompiler,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """All lowerings of one case."""
    tiles = [tile_of(variant, kernel, WIDTH) for variant in VARIANTS]
    compiled = [device.compile(kernel, tile) for tile in tiles]
    again = [compiler.compile(kernel, tile) for tile in tiles]
    samples = interleaved([one.handle.run for one in compiled], arguments.rounds, arguments.sample_us)
    default = CpuBudgets()
    return {
        "kernel": name,
        "published_speedup": published,
        "lowerings": [
            {
                "name": variant.name, "tile": str(tile), "compile_ms": [one.compile_ms, other.compile_ms],
                "object_bytes": len(other.image), "ssa_expansion": ssa_expansion(kernel, tile),
                "local_bytes": local_bytes(kernel, tile),
                "within_default_budgets": ssa_expansion(kernel, tile) <= default.ssa_expansion,
                "us_median": statistics.median(us), "us_min": min(us),
                "speedup_over_select": paired(samples[0], us), "us": us,
            }
            for variant, tile, one, other, us in zip(VARIANTS, tiles, compiled, again, samples, strict=True)
        ],
    }  # fmt: skip


def tile_of(variant: Variant, kernel: ReductionKernel, width: int) -> ReductionTile:
    return ReductionTile(width, min(variant.bound or kernel.rnumel, kernel.rnumel), lowering=variant.lowering)


def interleaved(runs: Sequence[Any], rounds: int, sample_us: float) -> list[list[float]]:
    """µs a call of every run, a round after the other: forwards, then backwards."""
    batches = []
    for run in runs:
        run(1)
        once = min(cpu_us(run, 1) for _ in range(3))
        batches.append(max(1, int(sample_us / max(once, 0.01))))
    samples: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        order = range(len(runs)) if number % 2 == 0 else reversed(range(len(runs)))
        for index in order:
            samples[index].append(cpu_us(runs[index], batches[index]) / batches[index])
    return samples


def paired(before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """Of the ratios within each round: quartiles."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(before, after, strict=True)], n=4)
    return {"median": middle, "low": low, "high": high}


def large_entries(rows: int, length: int, width: int, device: CpuDevice) -> list[dict[str, Any]]:
    """RMSNorm at a size that the report's own lowering did not reach, as far as the device's budgets go."""
    kernel, entries = cpu_kernel("tile_rmsnorm", rows, length, "fp32"), []
    for variant in VARIANTS:
        tile = tile_of(variant, kernel, width)
        entry: dict[str, Any] = {
            "kernel": f"tile_rmsnorm:{rows}x{length}:fp32",
            "name": variant.name,
            "tile": str(tile),
        }
        try:
            made = device.compile(kernel, tile)
        except CandidateError as error:
            entries.append({**entry, "status": error.status, "error": str(error)})
            continue
        (timing,) = device.bench([made])
        entries.append({**entry, "status": "ok", "compile_ms": made.compile_ms, "us_min": timing.us_min})
    return entries


def show(report: dict[str, Any]) -> None:
    """Both tables."""
    console = wide_console()
    load = " → ".join(f"{report['load_average'][when][0]:.1f}" for when in ("before", "after"))
    table = Table(title=f"{report['hardware']['name']}, {report['toolchain']}, load {load}")
    for name in ("kernel", "lowering", "us", "compile ms", "object KiB", "select / it", "published"):
        table.add_column(name, justify="left" if name in ("kernel", "lowering") else "right")
    for case in report["cases"]:
        for number, one in enumerate(case["lowerings"]):
            ratio = one["speedup_over_select"]
            table.add_row(
                "" if number else case["kernel"], one["name"], f"{one['us_median']:.3f}", f"{min(one['compile_ms']):.0f}",
                f"{one['object_bytes'] / 1024:.1f}", f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})",
                f"{case['published_speedup']:.2f}" if number == 1 else "",
            )  # fmt: skip
    console.print(table)
    for entry in report["large"]:
        result = entry.get("error") or f"compiled in {entry['compile_ms']:.0f} ms, {entry['us_min']:.0f} us"
        console.print(f"{entry['kernel']} {entry['name']}: {result}", highlight=False)


if __name__ == "__main__":
    main()
