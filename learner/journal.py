"""What makes a collection survive a kill: the journal of finished kernels, the lock, writes that are on disk."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tileguard.features.errors import InvalidInput
from tileguard.runtime.devices.base import Device
from tileguard.runtime.lattice import lattice

from .corpus_schema import KERNEL_FIELDS, row_kernel, row_tile

logger = logging.getLogger("tileguard")
Row = dict[str, Any]


def journal_path(out: str | Path) -> Path:
    """The journal beside a corpus: one JSON object a line, a finished kernel each."""
    return _beside(Path(out), ".partial.jsonl")


def lock_path(out: str | Path) -> Path:
    """The file that a collector of `out` holds locked while it runs."""
    return _beside(Path(out), ".lock")


class Journal:
    """Finished kernels, one JSON line each: {"toolchain", "kernel": columns, "rows": [columns]}."""

    def __init__(self, path: Path, device: Device) -> None:
        self._path = path
        self._device = device

    def read(self) -> dict[str, list[Row]]:
        """Corpus rows by kernel_id, in order; a torn last line is cut off the file first."""
        return {entry["kernel"]["kernel_id"]: rows for _, entry, rows in self._entries()}

    def check(self) -> None:
        """Raises InvalidInput where a kernel was measured on another hardware, with another toolchain, or over other
        tiles than a sweep would take now."""
        hardware, toolchain = self._device.hardware, self._device.toolchain
        for number, entry, rows in self._entries():
            self._must(number, "hardware", rows[0]["hardware"], hardware.name)
            self._must(number, "toolchain", entry["toolchain"], toolchain)
            kernel = row_kernel(rows[0])
            found, wanted = tuple(map(row_tile, rows)), lattice(kernel, hardware).tiles
            if found != wanted:
                self._must(number, "tiles", f"{len(found)} tiles", f"the present lattice ({len(wanted)} tiles)")

    def append(self, rows: Sequence[Row]) -> None:
        """Add one kernel; on disk when this returns."""
        columns = [name for name, _, _ in KERNEL_FIELDS]
        entry: dict[str, Any] = {
            "toolchain": self._device.toolchain,
            "kernel": {name: rows[0][name] for name in columns},
            "rows": [{name: value for name, value in row.items() if name not in columns} for row in rows],
        }
        fresh = not self._path.exists()
        with self._path.open("ab") as stream:
            stream.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        if fresh:
            sync(self._path.parent)

    def keep(self, names: Iterable[str]) -> None:
        """Drop all kernels but `names`, and the file where none is left."""
        wanted = set(names)
        lines = [json.dumps(entry, separators=(",", ":")) + "\n" for _, entry, rows in self._entries()
                 if rows[0]["kernel_id"] in wanted]  # fmt: skip
        if lines:
            temporary = spare_path(self._path)
            temporary.write_text("".join(lines), encoding="utf-8")
            sync(temporary)
            temporary.replace(self._path)
        else:
            self._path.unlink(missing_ok=True)

    def _entries(self) -> list[tuple[int, dict[str, Any], list[Row]]]:
        """(line number, entry, rows) of each line; the first of several lines of one kernel counts."""
        if not self._path.exists():
            return []
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self._path, whole)
        found: dict[str, tuple[int, dict[str, Any], list[Row]]] = {}
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                entry = json.loads(line)
                rows = [entry["kernel"] | row for row in entry["rows"]]
                found.setdefault(rows[0]["kernel_id"], (number, {**entry, "toolchain": str(entry["toolchain"])}, rows))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                self._reject(number, "line", f"{type(error).__name__}: {error}", "what a collector wrote")
        return list(found.values())

    def _must(self, number: int, what: str, found: str, wanted: str) -> None:
        if found != wanted:
            self._reject(number, what, found, wanted)

    def _reject(self, number: int, what: str, found: str, wanted: str) -> None:
        cure = "delete the journal to measure its kernels anew, or collect into another file"
        raise InvalidInput(f"{self._path}, line {number}, {what}", found, f"{wanted}; {cure}")


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the lock of `out`; raises InvalidInput where another process does. It dies with its holder."""
    try:
        import fcntl
    except ImportError:  # Windows
        logger.warning("no file locks on this system: run one collector at a time on %s", out)
        yield
        return
    path = lock_path(out)
    while True:
        stream = path.open("ab")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.close()
            raise InvalidInput("out", str(out), "a file that no other collector writes at the moment") from None
        # The last holder removes the file: what we locked may be gone, and others would lock a new one.
        if _same_file(stream, path):
            break
        stream.close()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        stream.close()


def _same_file(stream: Any, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def sync(path: Path) -> None:
    """Have a file, or a directory's entries, on disk."""
    with contextlib.suppress(PermissionError):  # directories cannot be opened on Windows
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def spare_path(journal: Path) -> Path:
    return _beside(journal, ".tmp")


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)
