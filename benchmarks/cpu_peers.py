"""Against what a user would otherwise run: numpy, numba and torch.compile's C++ back end, on this machine's CPU.

    PYTHONPATH=src python benchmarks/cpu_peers.py [--model DIR] [--families softmax,sum] [--sizes 17x7,511x1025t]

Every family at twelve sizes, fp32, one thread. tileguard's entry is the winner that `tune` finds over the union of
model and formula. All contenders of a case read the same operands, in the same guarded buffers, and each is checked in
full against float64. They are called from Python one call at a time: a sample is a batch of such calls, a round takes
one sample of each in a random order, the clock is the thread's CPU time, and ratios are taken within a round. PyTorch
in eager mode stands beside them for the record. Needs PyTorch, numba and a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import tileguard

if (ROOT := str(Path(__file__).resolve().parents[1])) not in sys.path:  # started as a file
    sys.path.insert(0, ROOT)

from benchmarks.cpu_peers_numba import NUMBA, numba
from benchmarks.cpu_peers_ops import FAMILIES, NUMPY, TORCH
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.cli import console as wide_console
from tileguard.runtime.devices.base import Compiled, WrongResult
from tileguard.runtime.devices.cpu import CpuDevice, cpu_kernel
from tileguard.runtime.devices.cpu.budgets import cpu_tiles
from tileguard.runtime.devices.cpu.ops import find_op
from tileguard.runtime.devices.cpu.workspace import Workspace
from tileguard.runtime.selector import Selector
from tileguard.runtime.tuner import tune

RESULTS = Path(__file__).parent / "results" / "cpu_peers.json"
DTYPE = "fp32"
GOAL = 1.0
"""Least geometric mean of the best other one's time over tileguard's."""

LOST = 1 / 1.05
"""Ratios below it are losses by over 5 %."""

LEAST_CALLS = 3
"""Of a batch: a lone call would find the caches as another contender left them."""

TILEGUARD, EAGER = "tileguard", "torch eager"
OUT_BYTES = 1 << 20
"""From an output of this size on, compiled PyTorch is also given tensors to write to: fresh ones may cost page faults."""


@dataclass(frozen=True, slots=True)
class Size:
    """float32[xnumel, rnumel], reduced over r; the contiguous axis, or with `inner` false the other one."""

    xnumel: int
    rnumel: int
    inner: bool = True

    @property
    def name(self) -> str:
        return f"{self.xnumel}x{self.rnumel}{'' if self.inner else 't'}"

    @property
    def kind(self) -> str:
        """tiny: Python's own cost of a call rules; else by layout and where an operand fits (2^18 numbers are the
        1 MiB of a core's L2 cache)."""
        numel = self.xnumel * self.rnumel
        if numel <= 1 << 14:
            return "tiny"
        if not self.inner:
            return "outer axis"
        return "L2" if numel <= 1 << 18 else "beyond L2"


SIZES = (
    Size(17, 7), Size(64, 256), Size(64, 513), Size(17, 1537), Size(1024, 256), Size(4095, 63), Size(3, 100_003),
    Size(64, 16384), Size(1024, 4096), Size(32768, 128), Size(511, 1025, False), Size(2048, 1000, False),
)  # fmt: skip

KINDS = ("tiny", "L2", "beyond L2", "outer axis")


@dataclass(frozen=True, slots=True)
class Contender:
    """call: one call as a user makes it; it returns what it computed, or None where it wrote to the buffers."""

    name: str
    call: Callable[[], Sequence[Any] | None]


def main() -> None:
    """Run the benchmark; exit 1 where the goal is missed."""
    arguments = parse_arguments()
    console, load_before, started = Console(stderr=True), os.getloadavg(), time.monotonic()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # read when it first compiles
    torch.set_num_threads(1)
    device = CpuDevice()
    cases = []
    try:
        selector = Selector(device.hardware, model=arguments.model)
        for size in arguments.sizes:
            for family in arguments.families:
                case = judge(family, size, device, selector, arguments)
                cases.append(case)
                best, ratio = case["best_other"], case["ratio"]["median"]
                console.print(f"{family} {size.name}: {ratio:.2f} x {best} ({case['tileguard']['winner']})")
    finally:
        device.close()
    report = {
        "benchmark": "cpu_peers", "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": asdict(device.hardware), "cpus": os.cpu_count(),
        "load_average": {"before": load_before, "after": os.getloadavg()}, "toolchain": device.toolchain,
        "versions": versions(), "clock": "CPU time of the one thread", "dtype": DTYPE, "rounds": arguments.rounds,
        "sample_us": arguments.sample_us, "goal": f"geomean of {GOAL} or more", "n": len(cases), "seconds": time.monotonic() - started,
        "summary": summary(cases), "cases": cases,
    }  # fmt: skip
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show(report)
    sys.exit(report["summary"]["all"]["geomean"] < GOAL)


def parse_arguments() -> argparse.Namespace:
    named = {size.name: size for size in SIZES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=chosen({name: name for name in FAMILIES}), default=FAMILIES)
    parser.add_argument("--sizes", type=chosen(named), default=SIZES, help=f"of {', '.join(named)}")
    parser.add_argument("--model", default="champion", help="folder of a model (the shipped champion)")
    parser.add_argument("--sweep", type=int, metavar="N", help="give tune every N-th tile of the lattice besides")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (15)")
    parser.add_argument("--sample-us", type=float, default=500.0, help="least CPU time of a batch (500)")
    parser.add_argument("--seed", type=int, default=0, help="of operands and of the order within a round (0)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def chosen(named: dict[str, Any]) -> Callable[[str], tuple[Any, ...]]:
    """A parser of comma-separated names."""

    def parse(text: str) -> tuple[Any, ...]:
        unknown = [name for name in text.split(",") if name not in named]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(named)}")
        return tuple(named[name] for name in text.split(","))

    return parse


def judge(
    family: str, size: Size, device: CpuDevice, selector: Selector, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One family at one size: tune, check all contenders, time them."""
    kernel = cpu_kernel(family, size.xnumel, size.rnumel, DTYPE, inner=size.inner)
    swept = cpu_tiles(kernel)[:: arguments.sweep] if arguments.sweep else ()
    result = tune(kernel, device, selector, host_tiles=swept)
    workspace = Workspace(kernel, operands=operands_of(kernel, arguments.seed))
    with torch.inference_mode():
        entries = contenders(kernel, workspace, device.compile(kernel, result.winner.tile))
        for entry in entries:
            check(entry, kernel, workspace)
        samples = interleaved([entry.call for entry in entries], arguments)
    us = dict(zip((entry.name for entry in entries), samples, strict=True))
    rivals = [name for name in us if name not in (TILEGUARD, EAGER)]
    best = min(rivals, key=lambda name: statistics.median(us[name]))
    ratios = {name: paired(us[name], us[TILEGUARD]) for name in us if name != TILEGUARD}
    return {
        "family": family, "size": size.name, "kind": size.kind, "kernel": asdict(kernel),
        "tileguard": {
            "winner": str(result.winner.tile), "by": result.proposers, "verdict": str(result.verdict),
            "candidates": len(result.candidates), "compile_ms": result.winner.compile_ms,
            "batched_us": result.winner.us, "tune_s": result.seconds,
        },
        "best_other": best, "ratio": ratios[best], "ratios": ratios,
        "us_min": {name: min(found) for name, found in us.items()},
        "us_median": {name: statistics.median(found) for name, found in us.items()}, "us": us,
    }  # fmt: skip


def operands_of(kernel: ReductionKernel, seed: int) -> dict[str, Any]:
    """Operands by name. Every row of the mask leaves something: PyTorch makes NaN of an empty one."""
    op, random_of, shape = find_op(kernel.op), np.random.default_rng(seed), (kernel.xnumel, kernel.rnumel)
    made: dict[str, Any] = {name: random_of.standard_normal(shape, dtype=np.float32) for name in op.tile_inputs}
    if op.mask:
        made["mask"] = random_of.random(shape, dtype=np.float32) < 0.8
        made["mask"][:, kernel.rnumel // 2] = True
    return made | {name: random_of.standard_normal(kernel.rnumel, dtype=np.float32) + 1 for name in op.row_inputs}


def contenders(kernel: ReductionKernel, workspace: Workspace, compiled: Compiled) -> list[Contender]:
    """Everyone on the workspace's buffers, their arguments bound: a call is one of a function of nothing."""
    family, axis = str(kernel.op), 1 if kernel.inner else 0
    inputs, outputs = buffers(kernel, workspace)
    tensors, written = [torch.from_numpy(one) for one in inputs], [torch.from_numpy(one) for one in outputs]
    by_torch = TORCH[family]
    torch.compiler.reset()  # every case is compiled for its own shape
    fresh = torch.compile(partial(by_torch, axis), dynamic=False, fullgraph=True)
    found = [
        Contender(TILEGUARD, compiled.handle.linked.bind(workspace.pointers)),
        Contender("numpy", partial(NUMPY[family], axis, *inputs, *outputs)),
        Contender("numba", partial(NUMBA[family, kernel.inner], *inputs, *outputs)),
        Contender("torch.compile", partial(fresh, *tensors)),
        Contender(EAGER, partial(by_torch, axis, *tensors)),
    ]
    if outputs[0].nbytes >= OUT_BYTES:

        def copied(into: Sequence[Any], *given: Any) -> None:
            for out, value in zip(into, by_torch(axis, *given), strict=True):
                out.copy_(value)

        copying = torch.compile(copied, dynamic=False, fullgraph=True)
        found.append(Contender("torch.compile, out", partial(copying, written, *tensors)))
    return found


def buffers(kernel: ReductionKernel, workspace: Workspace) -> tuple[list[Any], list[Any]]:
    """(operands, outputs) of a workspace as arrays of its memory; masks as bool."""
    op = find_op(kernel.op)
    tile = (kernel.xnumel, kernel.rnumel) if kernel.inner else (kernel.rnumel, kernel.xnumel)
    shapes = [tile] * len(op.tile_inputs) + [(kernel.rnumel,)] * len(op.row_inputs)
    shapes += [tile if op.stores_tile else (kernel.xnumel,)] * len(op.outputs)
    names = (*op.tile_inputs, *op.row_inputs, *op.outputs)
    views = [
        view(workspace, place, shape, np.dtype(np.bool_ if op.mask and name == "mask" else np.float32))
        for name, place, shape in zip(names, workspace.pointers, shapes, strict=True)
    ]
    return views[: op.num_load], views[op.num_load :]


@dataclass(frozen=True, slots=True)
class _Memory:
    """What numpy makes an array of without a copy; the array keeps `owner` alive."""

    owner: Workspace
    __array_interface__: dict[str, Any]


def view(owner: Workspace, place: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    interface = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (place, False)}
    return np.asarray(_Memory(owner, interface))


def check(entry: Contender, kernel: ReductionKernel, workspace: Workspace) -> None:
    """Run once and compare all of the result with float64, by the device's own rule for a row summed serially.

    Raises WrongResult naming the contender.
    """
    workspace.poison()
    made = entry.call()
    for out, value in zip(buffers(kernel, workspace)[1], made or (), strict=False):
        out[...] = value.numpy()
    try:
        workspace.check(ReductionTile(1, 1))
    except WrongResult as error:
        raise WrongResult(f"{entry.name}: {error}") from error


def interleaved(calls: Sequence[Callable[[], Any]], arguments: argparse.Namespace) -> list[list[float]]:
    """µs a call of each, a round after the other."""
    order_of, order = random.Random(arguments.seed), list(range(len(calls)))
    batches = [batch_of(call, arguments.sample_us) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(arguments.rounds):
        order_of.shuffle(order)
        for index in order:
            samples[index].append(round(cpu_us(calls[index], batches[index]) / batches[index], 3))
    return samples


def batch_of(call: Callable[[], Any], sample_us: float) -> int:
    """Calls that take `sample_us` at least; what is compiled or allocated on a first call is by then."""
    calls = LEAST_CALLS
    while (took := cpu_us(call, calls)) < sample_us:
        calls = max(calls + 1, min(calls * 8, int(1.1 * calls * sample_us / max(took, 1.0))))
    return calls


def cpu_us(call: Callable[[], Any], calls: int) -> float:
    """CPU time in µs that this thread spends in so many calls from Python."""
    start = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - start) / 1e3


def paired(other: Sequence[float], own: Sequence[float]) -> dict[str, float]:
    """Quartiles of the ratios within each round: above 1, tileguard is faster."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(other, own, strict=True)], n=4)
    return {"median": middle, "low": low, "high": high}


def summary(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the ratio to the best other one, shares won, and what was lost by over 5 %."""

    def of(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
        ratios = [case["ratio"]["median"] for case in found]
        won = sum(ratio >= 1 for ratio in ratios)
        return {"n": len(found), "geomean": statistics.geometric_mean(ratios), "least": min(ratios), "won": won}

    names = sorted({name for case in cases for name in case["ratios"]})
    larger = [case for case in cases if case["kind"] != "tiny"]
    return {
        "all": of(cases),
        "without_tiny": of(larger) if larger else None,
        "families": {family: of(found) for family, found in grouped(cases, "family", FAMILIES)},
        "kinds": {kind: of(found) for kind, found in grouped(cases, "kind", KINDS)},
        "geomean_over": {
            name: statistics.geometric_mean([c["ratios"][name]["median"] for c in cases if name in c["ratios"]])
            for name in names
        },
        "best_other": Counter(case["best_other"] for case in cases),
        "lost": [
            {"family": case["family"], "size": case["size"], "to": case["best_other"], "ratio": case["ratio"]["median"]}
            for case in sorted(cases, key=lambda case: case["ratio"]["median"])
            if case["ratio"]["median"] < LOST
        ],
    }  # fmt: skip


def grouped(
    cases: Sequence[dict[str, Any]], field: str, order: Iterable[str]
) -> list[tuple[str, list[dict[str, Any]]]]:
    """(value, its cases) for every value of `field` that occurs, in order."""
    found = {value: [case for case in cases if case[field] == value] for value in order}
    return [(value, group) for value, group in found.items() if group]


def versions() -> dict[str, str]:
    """Of all contenders and of the compilers under them."""
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False)
    return {
        "tileguard": tileguard.__version__, "python": platform.python_version(), "numpy": np.__version__,
        "numba": numba.__version__, "torch": torch.__version__, "g++": (compiler.stdout.splitlines() or ["none"])[0],
        "torch_simd": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip


def show(report: dict[str, Any]) -> None:
    """Every case, the means, and the losses."""
    console, found = wide_console(), report["summary"]
    load = " → ".join(f"{report['load_average'][when][0]:.1f}" for when in ("before", "after"))
    table = Table(title=f"{report['hardware']['name']}, {report['dtype']}, load {load}; µs a call, median")
    names = list(dict.fromkeys(name for case in report["cases"] for name in case["us_median"]))
    for name in ("family", "size", *names, "best other", "ratio", "quartiles", "tile"):
        table.add_column(name, justify="left" if name in ("family", "size", "best other", "tile") else "right")
    for case in report["cases"]:
        us, ratio = case["us_median"], case["ratio"]
        table.add_row(
            case["family"], case["size"], *(f"{us[name]:.2f}" if name in us else "" for name in names),
            case["best_other"], f"{ratio['median']:.2f}", f"{ratio['low']:.2f}-{ratio['high']:.2f}",
            case["tileguard"]["winner"],
        )  # fmt: skip
    console.print(table)
    means = Table(title="best other / tileguard")
    for name in ("cases", "n", "geomean", "least", "won"):
        means.add_column(name, justify="left" if name == "cases" else "right")
    groups = {"all": found["all"], "all but tiny": found["without_tiny"], **found["families"], **found["kinds"]}
    for name, group in groups.items():
        if group is None:
            continue
        means.add_row(name, str(group["n"]), f"{group['geomean']:.2f}", f"{group['least']:.2f}", str(group["won"]))
    console.print(means)
    for name, ratio in found["geomean_over"].items():
        console.print(f"geometric mean over {name}: {ratio:.2f}", highlight=False)
    for loss in found["lost"]:
        console.print(f"lost: {loss['family']} {loss['size']} to {loss['to']}, {loss['ratio']:.2f}", highlight=False)


if __name__ == "__main__":
    main()
