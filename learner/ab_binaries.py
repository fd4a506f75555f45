"""Digests of everything whose code takes part in an A/B run: taken before and after, they must be the same."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import tileguard
from tileguard.features.errors import TileguardError
from tileguard.runtime.optional import require

MAPS = Path("/proc/self/maps")
DELETED = " (deleted)"

ANONYMOUS = ("/memfd:", "/dev/", "/SYSV")
"""Beginnings of what looks like a file there and is memory: libffi's trampolines, say."""


class BinariesChanged(TileguardError):
    """Code changed under a run, which then proves nothing. `names`: what changed."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        super().__init__("changed during the run: " + ", ".join(names))


def binary_digests() -> dict[str, str]:
    """SHA-256 by name: `python` (the executable), `llvmlite`, `numpy` (their compiled cores), `tileguard` (its own
    sources), and the path of every file that this process has mapped as code, where the system tells."""
    paths: dict[str, Path] = {
        "python": Path(sys.executable).resolve(),
        "llvmlite": _llvmlite_library(),
        "numpy": _numpy_core(),
    }
    digests = {name: _file_digest(path) for name, path in paths.items()}
    known = {path: digests[name] for name, path in paths.items()}
    for path in _mapped_code():
        digests[str(path)] = known.get(path) or _file_digest(path)
    return {**digests, "tileguard": package_digest(Path(tileguard.__file__).parent)}


def package_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all Python files in a package."""
    found = hashlib.sha256()
    files = [Path(top) / name for top, _, names in os.walk(folder, followlinks=True) for name in names]
    for path in sorted(path for path in files if path.suffix == ".py"):
        found.update(f"{path.relative_to(folder).as_posix()}\0{_file_digest(path)}\0".encode())
    return found.hexdigest()


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Names whose digest is another afterwards, or that are there only once."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise BinariesChanged([str(path)]) from None


def _mapped_code() -> list[Path]:
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # no such thing on this system
        return []
    fields = [line.split(maxsplit=5) for line in lines]
    code = {field[5] for field in fields if len(field) == 6 and "x" in field[1] and field[5].startswith("/")}
    names = sorted(name for name in code if not name.startswith(ANONYMOUS))
    if replaced := [name for name in names if name.endswith(DELETED)]:
        raise BinariesChanged(replaced)
    return [Path(name) for name in names]


def _llvmlite_library() -> Path:
    binding: Any = require("llvmlite.binding")
    folder = Path(binding.__file__).parent
    return next(path for path in sorted(folder.iterdir()) if path.stem in ("libllvmlite", "llvmlite")).resolve()


def _numpy_core() -> Path:
    names = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
    return Path(next(str(sys.modules[name].__file__) for name in names if name in sys.modules)).resolve()
