"""A raw sweep that grows: finished kernels in a journal, one JSON line each, until a run ends and packs them.

Needs the standard library alone: a measuring machine has no more. A run that is killed leaves the journal beside the
sweep; carried along together, the next run goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from tileguard.features.errors import InvalidInput

Record = dict[str, Any]

ENDINGS = (".jsonl.xz", ".jsonl")
PRESET = 3
"""Of xz: a tenth of the default's time for a tenth more bytes."""


class RawSweep:
    """The sweep `path` (.jsonl or .jsonl.xz) and its journal. Held open by one process at a time.

    Raises InvalidInput for another ending, where another process holds it, or for a line that is no JSON object.
    """

    def __init__(self, path: Path) -> None:
        if not path.name.endswith(ENDINGS):
            raise InvalidInput("out", str(path), "a file ending in .jsonl.xz, .jsonl or .parquet")
        self.path, self.journal = path, beside(path, ".partial.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self.journal.open("ab")
        _hold(self._stream, path)
        cut_torn_line(self.journal)
        # What a run that was killed as it packed has left: those in the sweep count.
        self.records = {record["key"]: record for record in [*read_lines(self.journal), *self._packed()]}

    def append(self, record: Record) -> None:
        """Add a kernel, with its `key`; on disk when this returns."""
        self.records[record["key"]] = record
        append_line(self._stream, record)

    def close(self) -> None:
        """Bring the journal into the sweep, which is whole or as before at any moment; then the journal goes."""
        if self._stream.closed:
            return
        if self.journal.stat().st_size:
            spare = beside(self.path, ".tmp")
            with open_text(spare, "wt", packed=self.path.suffix == ".xz") as stream:
                for record in self.records.values():
                    stream.write(json.dumps(record, separators=(",", ":")) + "\n")
            spare.replace(self.path)
        self.journal.unlink()
        self._stream.close()

    def _packed(self) -> Iterator[Record]:
        return read_lines(self.path) if self.path.exists() else iter(())


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def read_lines(path: Path) -> Iterator[Record]:
    """The objects of a .jsonl or .jsonl.xz file. Raises InvalidInput naming the line."""
    try:
        with open_text(path, "rt", packed=path.suffix == ".xz") as stream:
            for number, line in enumerate(stream, start=1):
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise InvalidInput(f"{path}, line {number}", type(record).__name__, "a JSON object")
                record.setdefault("key", f"{path.name}:{number}")  # of a sweep that another program made
                yield record
    except (ValueError, EOFError, lzma.LZMAError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(str(path), str(error)[:200], "an intact .jsonl or .jsonl.xz file") from None


def append_line(stream: Any, record: Record) -> None:
    stream.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    stream.flush()
    os.fsync(stream.fileno())


def cut_torn_line(path: Path) -> None:
    """What a kill left of a last line goes."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def check_same(records: Iterable[Record], where: Path, **wanted: str) -> None:
    """Raises InvalidInput where a record was measured otherwise: times of both would not compare."""
    for record in records:
        for name, value in wanted.items():
            if record.get(name, value) != value:
                raise InvalidInput(f"{where}, {name}", record[name], f"{value}; collect into another file")


def open_text(path: Path, mode: Literal["rt", "wt"], *, packed: bool) -> TextIO:
    if not packed:
        return path.open(mode, encoding="utf-8")
    if mode == "rt":
        return lzma.open(path, mode, encoding="utf-8")
    return lzma.open(path, mode, encoding="utf-8", preset=PRESET)


def _hold(stream: Any, path: Path) -> None:
    with contextlib.suppress(ImportError):  # Windows: run one collector at a time
        import fcntl

        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput("out", str(path), "a file that no other collector writes at the moment") from None
