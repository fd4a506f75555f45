"""Corpora: dense measurements, one row a (kernel, tile), as Parquet; read, validate, merge, write."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.base import NOT_MEASURED, OK, Timing
from tileguard.runtime.optional import require

pa = require("pyarrow")
pc = require("pyarrow.compute")
pq = require("pyarrow.parquet")

from .corpus_check import CHECKS, check_rows, column_values, is_text
from .corpus_schema import (
    CORPUS_SCHEMA,
    LATER_FIELDS,
    METADATA_PREFIX,
    SCHEMA_VERSION,
    VERSION_KEY,
    CorpusError,
    row_kernel,
    row_tile,
)


@dataclass(frozen=True, eq=False)
class KernelSweep:
    """All measured tiles of one kernel. Arrays have one entry a tile; `us` is NaN where the candidate failed.

    host_default and host_max_autotune are indices into `tiles`, in the host's own order.
    """

    kernel_id: str
    workload: str
    family: str
    hardware: str
    kernel: ReductionKernel
    tiles: tuple[ReductionTile, ...]
    us: npt.NDArray[np.float64]
    timings: tuple[Timing | None, ...]
    compile_ms: npt.NDArray[np.float64]
    status: tuple[str, ...]
    host_default: tuple[int, ...]
    host_max_autotune: tuple[int, ...]
    source: str | None

    @cached_property
    def measured(self) -> tuple[int, ...]:
        """Indices of the tiles that were tried, failures included; not those that only a host's list names."""
        return tuple(i for i, status in enumerate(self.status) if status != NOT_MEASURED)

    @property
    def best_us(self) -> float:
        """Time of the fastest measured tile, in µs."""
        return float(np.nanmin(self.us))

    @cached_property
    def slowdown(self) -> npt.NDArray[np.float64]:
        """us / best_us; +inf where the candidate failed."""
        ratio = self.us / self.best_us
        return np.where(np.isnan(ratio), np.inf, ratio)

    @cached_property
    def index(self) -> dict[ReductionTile, int]:
        """Tile -> position in `tiles`."""
        return {tile: i for i, tile in enumerate(self.tiles)}


@dataclass(frozen=True, eq=False)
class Corpus:
    """Kernel sweeps in file order, and the digest of their content. files: name -> digest of each file read."""

    sweeps: tuple[KernelSweep, ...]
    digest: str
    path: str
    files: Mapping[str, str]

    @property
    def families(self) -> tuple[str, ...]:
        """Workload family of each sweep: the unit of every split."""
        return tuple(sweep.family for sweep in self.sweeps)

    @property
    def n_rows(self) -> int:
        return sum(len(sweep.tiles) for sweep in self.sweeps)

    def subset(self, indices: Iterable[int]) -> Corpus:
        """The sweeps at `indices`, as a corpus of their own."""
        sweeps = tuple(self.sweeps[i] for i in indices)
        return Corpus(sweeps, content_digest(sweeps), self.path, self.files)


def read_corpus(path: str | Path, *, hardware: str | None = None) -> Corpus:
    """Read a Parquet corpus, or a raw sweep (`.jsonl`, `.jsonl.xz`) of kernels on `hardware`.

    Columns that the schema does not name are ignored on purpose: a corpus may carry notes of its own. Raises
    CorpusError naming file, row (of a raw sweep the line) and column; InvalidInput for a missing file or unknown
    ending.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidInput("corpus", str(path), "an existing .parquet, .jsonl or .jsonl.xz file")
    if path.name.endswith((".jsonl", ".jsonl.xz")):
        from .sweep_import import read_sweep

        if hardware is None:
            raise InvalidInput("hardware", hardware, f"the hardware that {path.name} was measured on")
        rows = read_sweep(path, hardware=hardware)
        return _from_rows(path, rows)
    if path.suffix != ".parquet":
        raise InvalidInput("corpus", str(path), "a file ending in .parquet, .jsonl or .jsonl.xz")
    return _from_rows(path, read_rows(path)[0])


def read_rows(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(rows, metadata) of a Parquet corpus; column types are checked, values only for fitting them. metadata: as
    write_corpus takes it. Columns that the schema does not name are ignored on purpose.

    Raises CorpusError naming file and column.
    """
    try:
        table = pq.read_table(path)
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorpusError(path, "(file)", str(error).partition("\n")[0], "a Parquet file") from None
    for name in CORPUS_SCHEMA.names:
        if names.count(name) > 1:
            raise CorpusError(path, name, f"{names.count(name)} columns", "one column of this name")
    stored = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in (table.schema.metadata or {}).items()
    }
    metadata = {
        key.removeprefix(METADATA_PREFIX): value for key, value in stored.items()
        if key.startswith(METADATA_PREFIX) and key != VERSION_KEY
    }  # fmt: skip
    return table_rows(path, table), metadata


def read_corpora(paths: Sequence[str | Path], *, hardware: str | None = None) -> Corpus:
    """Several corpora as one; a kernel_id may occur in one of them only."""
    corpora = [read_corpus(path, hardware=hardware) for path in paths]
    seen: dict[str, str] = {}
    for corpus in corpora:
        for sweep in corpus.sweeps:
            if sweep.kernel_id in seen:
                raise CorpusError(corpus.path, "kernel_id", sweep.kernel_id, f"no kernel of {seen[sweep.kernel_id]}")
            seen[sweep.kernel_id] = corpus.path
    sweeps = tuple(sweep for corpus in corpora for sweep in corpus.sweeps)
    files = {name: digest for corpus in corpora for name, digest in corpus.files.items()}
    return Corpus(sweeps, content_digest(sweeps), ", ".join(corpus.path for corpus in corpora), files)


def write_corpus(
    rows: Sequence[dict[str, Any]], path: str | Path, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Validate rows and write them as Parquet, atomically (a crash leaves the old file or none, and at worst a
    temporary `NAME.*.tmp`). `metadata`: facts of the whole file, such as its toolchain, kept in its schema."""
    path = Path(path)
    check_rows(path, rows)
    extra = {METADATA_PREFIX + key: value for key, value in (metadata or {}).items()}
    for key, value in extra.items():
        if not (is_text(key) and is_text(value)):
            raise CorpusError(path, key, value, "a string of valid Unicode")
    schema = CORPUS_SCHEMA.with_metadata({**CORPUS_SCHEMA.metadata, **extra})
    table = pa.Table.from_pylist(list(rows), schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".", suffix=".tmp")
    os.close(handle)
    try:
        pq.write_table(table, temporary, compression="zstd")
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def table_rows(path: Path, table: Any) -> list[dict[str, Any]]:
    """A table's rows after checking its version, columns and types; further columns are left out.

    An integer column may be of any width as long as its values fit, and may stand for a column of floats. Nothing
    else is cast from one kind to another.
    """
    version = (table.schema.metadata or {}).get(VERSION_KEY.encode(), b"").decode(errors="replace")
    for name in LATER_FIELDS:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table)))
    missing = [name for name in CORPUS_SCHEMA.names if name not in table.column_names]
    if missing:
        raise CorpusError(path, missing[0], "(missing)", f"the columns {', '.join(CORPUS_SCHEMA.names)}")
    if version != str(SCHEMA_VERSION):
        raise CorpusError(path, VERSION_KEY, version, str(SCHEMA_VERSION))
    columns = [column_values(path, check, table.column(check.name)) for check in CHECKS]
    return [dict(zip(CORPUS_SCHEMA.names, values, strict=True)) for values in zip(*columns, strict=True)]


def content_digest(sweeps: Sequence[KernelSweep]) -> str:
    """SHA-256 over every kernel, tile, status and time, independent of the file's encoding."""
    digest = hashlib.sha256()
    for sweep in sweeps:
        digest.update(repr((sweep.kernel_id, sweep.workload, sweep.family, sweep.hardware, sweep.kernel)).encode())
        digest.update(repr([tile.sort_key for tile in sweep.tiles]).encode())
        digest.update(repr(sweep.status).encode())
        digest.update(np.ascontiguousarray(sweep.us).tobytes())
        digest.update(np.ascontiguousarray(sweep.compile_ms).tobytes())
        digest.update(repr((sweep.host_default, sweep.host_max_autotune)).encode())
    return digest.hexdigest()


def _from_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Corpus:
    check_rows(path, rows)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["kernel_id"], []).append(row)
    sweeps = tuple(_sweep(group) for group in groups.values())
    digest = content_digest(sweeps)
    return Corpus(sweeps, digest, str(path), {path.name: digest})


def _sweep(rows: list[dict[str, Any]]) -> KernelSweep:
    first = rows[0]

    def column(name: str) -> npt.NDArray[np.float64]:
        return np.array([math.nan if row[name] is None else row[name] for row in rows], dtype=np.float64)

    def host(name: str) -> tuple[int, ...]:
        ranked = sorted((row[name], i) for i, row in enumerate(rows) if row[name] is not None)
        return tuple(i for _, i in ranked)

    return KernelSweep(
        kernel_id=first["kernel_id"], workload=first["workload"], family=first["family"], hardware=first["hardware"],
        kernel=row_kernel(first), tiles=tuple(row_tile(row) for row in rows),
        us=column("us"), timings=tuple(_timing(row) for row in rows), compile_ms=column("compile_ms"),
        status=tuple(row["status"] for row in rows),
        host_default=host("host_default_rank"), host_max_autotune=host("host_max_autotune_rank"), source=first["source"],
    )  # fmt: skip


def _timing(row: dict[str, Any]) -> Timing | None:
    if row["status"] != OK:
        return None
    median = row["us_median"] if row["us_median"] is not None else row["us"]
    return Timing(row["us"], median, row["us_min"], row["us_mad"], row["reps"] or 1)
