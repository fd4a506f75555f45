"""What an A/B run's raw data comes to, and the report that keeps both. audit.py works the same out by itself."""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

import tileguard
from tileguard.features.hardware import host_cpu, usable_cpus
from tileguard.runtime.devices.base import OK
from tileguard.runtime.devices.cpu.jit import toolchain

from .ab_spec import SIDES, digest_of

KIND, AB_VERSION = "tileguard-ab", 1
METRIC = "median over rounds of p50(A) / p50(B)"
BAND = 1.02
"""B is called faster, or slower, where it is by over 2 % in every round; else there is no consistent difference."""

FASTER, SLOWER, EQUAL, FAILED = "B faster", "B slower", "no consistent difference", "no result"


def make_report(raw: dict[str, Any]) -> dict[str, Any]:
    """The report: raw data, their digest, and what they come to."""
    return {
        "kind": KIND, "version": AB_VERSION, "metric": METRIC, "raw_sha256": digest_of(raw),
        "summary": [summary(case) for case in raw["cases"]], "raw": raw,
    }  # fmt: skip


def summary(case: Mapping[str, Any]) -> dict[str, Any]:
    """Of one case: batches, single calls and compiles apart, each by paired ratios A / B; over 1 B is the faster.

    Where a side failed, or any check of its results did, nothing is claimed.
    """
    if not _right(case):
        return {"name": case["name"], "verdict": FAILED, "batch": None, "single": None, "compile": None}
    calls = {"batch": {side: case[side]["calls"] for side in SIDES}, "single": dict.fromkeys(SIDES, 1)}
    found = {
        kind: paired(
            *(
                [statistics.median(r[side][f"{kind}_ns"]) / calls[kind][side] / 1e3 for r in case["rounds"]]
                for side in SIDES
            )
        )
        for kind in ("batch", "single")
    }
    compiles = paired(*([entry["ms"] for entry in case[side]["compiles"]] for side in SIDES), unit="ms")
    return {"name": case["name"], "verdict": verdict(found["batch"]["ratios"]), **found, "compile": compiles}


def paired(a: Sequence[float], b: Sequence[float], *, unit: str = "us") -> dict[str, Any]:
    """p50 of each round by side; their medians (to be read, not divided); the rounds' ratios A / B and their median."""
    ratios = [one / other for one, other in zip(a, b, strict=True)]
    return {
        "rounds": {"a": list(a), "b": list(b)}, f"a_{unit}": statistics.median(a), f"b_{unit}": statistics.median(b),
        "ratios": ratios, "speedup": statistics.median(ratios),
    }  # fmt: skip


def verdict(ratios: Sequence[float]) -> str:
    """In words, of the rounds' ratios A / B."""
    return FASTER if min(ratios) > BAND else SLOWER if max(ratios) < 1 / BAND else EQUAL


def machine_facts() -> dict[str, Any]:
    """What the run happens on."""
    return {
        "hardware": asdict(host_cpu()), "platform": platform.platform(), "cpus": os.cpu_count(),
        "usable_cpus": usable_cpus(), "clock": "CPU time of the one thread, ns",
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Of everything that takes part."""
    return {
        "tileguard": tileguard.__version__, "python": platform.python_version(), "numpy": np.__version__,
        "toolchain": toolchain(),
    }  # fmt: skip


def load_average() -> list[float] | None:
    """1, 5 and 15 minutes; None where the system does not say."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def write_report(report: dict[str, Any], path: Path) -> None:
    """Put the report in the place of `path` at once, whole and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


WIDE = 110
"""Columns of a terminal below which only times of batches and their speed-up are shown."""

FIGURES = ("A µs", "B µs", "A / B", "rounds", "single A / B", "compile ms A, B")


def report_table(report: Mapping[str, Any], *, width: int = WIDE) -> Table:
    """A row a case: times of both sides, speed-ups of batches and single calls with the rounds' range, compile times."""
    figures = FIGURES if width >= WIDE else FIGURES[:3]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("kernel", "A", "B"):
        table.add_column(name, overflow="fold")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for case, entry in zip(report["raw"]["cases"], report["summary"], strict=True):
        names = [escape(case["name"]), *(escape(_tile_name(case[side]["tile"])) for side in SIDES)]
        batch, single, compiles = (entry[kind] for kind in ("batch", "single", "compile"))
        if batch is None:
            why = "; ".join(f"{side.upper()} {case[side]['error']}" for side in SIDES if case[side]["status"] != OK)
            table.add_row(
                *names, *[""] * len(figures), escape(f"{entry['verdict']}: {why or 'a check of the results failed'}")
            )
            continue
        cells = (
            f"{batch['a_us']:.3f}", f"{batch['b_us']:.3f}", f"{batch['speedup']:.3f}×",
            f"{min(batch['ratios']):.3f}-{max(batch['ratios']):.3f}", f"{single['speedup']:.3f}×",
            f"{compiles['a_ms']:.1f}, {compiles['b_ms']:.1f}",
        )  # fmt: skip
        style = "yellow" if entry["verdict"] == SLOWER else ""
        table.add_row(*names, *cells[: len(figures)], entry["verdict"], style=style)
    return table


def _right(case: Mapping[str, Any]) -> bool:
    """Whether both sides were measured and every result of theirs is right."""
    checks = [one[side]["check"] for one in case["rounds"] for side in SIDES]
    return bool(checks) and not any(
        check["guard_bytes_touched"] or any(output["wrong"] for output in check["outputs"].values()) for check in checks
    )


def _tile_name(tile: Mapping[str, Any]) -> str:
    lowering = f"·{tile['lowering']}" if tile["lowering"] else ""
    return f"X{tile['xblock']}·R{tile['r0_block']}{lowering}"
