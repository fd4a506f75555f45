"""Digests of the models that a hook may listen to: a changed model is a changed key of every cache of its lists."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tileguard import models


def model_digests(model: str | Path | None, family: str | None = None) -> list[str]:
    """One line a file of each model in question: the folder's own, or for "champion" every shipped one and the user's.
    family: of those alone; left out, of all."""
    if model is None:
        return []
    if model != "champion":
        return file_digests(Path(model))
    folders = (*models.shipped(), *models.own())
    prefix = "" if family is None else f"{family}-"
    return [digest for folder in folders if folder.name.startswith(prefix) for digest in file_digests(folder)]


def file_digests(folder: Path) -> list[str]:
    """Name and SHA-256 of a model's files; a sentence where there are none."""
    digests = []
    for path in sorted(p for p in folder.glob("*") if p.is_file() and p.suffix in (".json", ".onnx")):
        digests.append(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return digests or [f"{folder} holds no model"]
