"""What the benchmarks on a GPU share: pieces made by processes of their own, kept as files, and summed up at the end."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CLEARED = ("TORCHINDUCTOR_", "TILEGUARD")
"""Environment variables that a piece must not take from outside."""


def run_fresh(script: str, options: Sequence[str], settings: Mapping[str, str], *, log: Path | None = None) -> int:
    """A script's exit status, run with empty caches and nothing of Inductor's set but `settings`.

    log: where its standard error goes; its last lines are shown where it fails.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(CLEARED)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton"}
        environment |= settings
        command = [sys.executable, str(Path(script).resolve()), *options]
        if log is None:
            return subprocess.run(command, env=environment, check=False).returncode
        with log.open("a", encoding="utf-8") as stderr:
            failed = subprocess.run(command, env=environment, check=False, stderr=stderr).returncode
    if failed:
        print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]), flush=True)
    return failed


def mode_file(out: Path, mode: str) -> Path:
    return out / f"mode-{mode}.json"


def judge_file(out: Path) -> Path:
    return out / "judge.json"


def load_modes(out: Path, modes: Iterable[str]) -> dict[str, Any]:
    """The pieces of these modes, as far as they are there."""
    return {
        mode: json.loads(mode_file(out, mode).read_text("utf-8")) for mode in modes if mode_file(out, mode).exists()
    }


def write(path: Path, value: Any) -> None:
    """Whole or not at all."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def geomean(values: Sequence[float]) -> float | None:
    return round(statistics.geometric_mean(values), 4) if values else None


def total(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    summed: dict[str, float] = {}
    for one in counts:
        for name, value in one.items():
            summed[name] = round(summed.get(name, 0) + value, 3)
    return summed


def at_most(value: float | None, limit: float) -> dict[str, Any]:
    known = value is not None and math.isfinite(value)
    return {
        "value": round(value, 4) if known and value is not None else None,
        "limit": limit,
        "met": bool(known and value is not None and value <= limit),
    }
