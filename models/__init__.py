"""The shipped champions, one folder a kernel family and hardware: ranker.onnx, manifest.json, card.md."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent


def champion_path(family: str, hardware: str) -> Path:
    """Where the champion of `family` on `hardware` lies, whether or not there is one."""
    return ROOT / f"{family}-{hardware}"


def shipped() -> tuple[Path, ...]:
    """Every shipped model's folder, sorted."""
    return tuple(sorted(path.parent for path in ROOT.glob("*/manifest.json")))
