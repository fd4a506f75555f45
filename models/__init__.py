"""Ranking models, one folder a kernel family and hardware: ranker.onnx, manifest.json, card.md. The shipped champions
are beside this file; a user's own, as `tileguard adapt` writes them, come before them.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent

FOLDER_VARIABLE = "TILEGUARD_MODELS"
"""Environment variable that names the user's models folder."""


def user_root() -> Path | None:
    """The user's models folder, whether or not it exists: TILEGUARD_MODELS, else tileguard/models in XDG_DATA_HOME, else
    in ~/.local/share. None where a user has no home."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    try:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError:
        return None
    return data / "tileguard" / "models"


def champion_path(family: str, hardware: str) -> Path:
    """Where the shipped champion of `family` on `hardware` lies, whether or not there is one."""
    return ROOT / folder_name(family, hardware)


def folder_name(family: str, hardware: str) -> str:
    """What the folder of a model is called, in either root."""
    return f"{family}-{hardware}"


def model_path(family: str, hardware: str) -> Path | None:
    """The model of exactly this hardware, the user's own before the shipped one; None where there is neither. A folder
    that cannot be looked into counts as none."""
    name = folder_name(family, hardware)
    roots = (user_root(), ROOT)
    return next((root / name for root in roots if root is not None and _is_folder(root / name)), None)


def other_cpus(family: str) -> tuple[str, ...]:
    """Names of the CPUs that a model is shipped for, sorted."""
    prefix = f"{family}-"
    return tuple(path.name.removeprefix(prefix) for path in shipped() if path.name.startswith(f"{prefix}cpu-"))


def shipped() -> tuple[Path, ...]:
    """Every shipped model's folder, sorted."""
    return _models_in(ROOT)


def own() -> tuple[Path, ...]:
    """Every model's folder in the user's models folder, sorted; empty where that cannot be read."""
    root = user_root()
    return _models_in(root) if root is not None else ()


def _models_in(root: Path) -> tuple[Path, ...]:
    try:
        return tuple(sorted(path.parent for path in root.glob("*/manifest.json")))
    except OSError:
        return ()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # no permission; a name that no file can have
        return False
