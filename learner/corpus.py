"""Corpora: dense measurements, one row a (kernel, tile), as Parquet; read, validate, merge, write."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import MatmulKernel, ReductionKernel
from tileguard.features.tiles import MatmulTile, ReductionTile
from tileguard.runtime.devices.base import NOT_MEASURED, OK, Timing
from tileguard.runtime.optional import require

pa = require("pyarrow")
pc = require("pyarrow.compute")
pq = require("pyarrow.parquet")

from .corpus_check import check_rows, checks_of, column_values, is_text
from .corpus_schema import (
    FAMILY_KEY,
    METADATA_PREFIX,
    REDUCTION,
    SCHEMA_VERSION,
    SCHEMAS,
    VERSION_KEY,
    CorpusError,
    CorpusSchema,
    schema_of,
)

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Sweep(Generic[K, T]):
    """All measured tiles of one kernel. Arrays have one entry a tile; `us` is NaN where the candidate failed.

    host_default and host_max_autotune are indices into `tiles`, in the host's own order. extra: what the family's
    schema keeps beside its kernel.
    """

    kernel_id: str
    workload: str
    family: str
    hardware: str
    kernel: K
    tiles: tuple[T, ...]
    us: npt.NDArray[np.float64]
    timings: tuple[Timing | None, ...]
    compile_ms: npt.NDArray[np.float64]
    status: tuple[str, ...]
    host_default: tuple[int, ...]
    host_max_autotune: tuple[int, ...]
    source: str | None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def measured(self) -> tuple[int, ...]:
        """Indices of the tiles that were tried, failures included; not those that only a host's list names."""
        return tuple(i for i, status in enumerate(self.status) if status != NOT_MEASURED)

    @cached_property
    def best_us(self) -> float:
        """Time of the fastest measured tile, in µs."""
        return float(np.nanmin(self.us))

    @cached_property
    def slowdown(self) -> npt.NDArray[np.float64]:
        """us / best_us; +inf where the candidate failed."""
        ratio = self.us / self.best_us
        return np.where(np.isnan(ratio), np.inf, ratio)

    @cached_property
    def index(self) -> dict[T, int]:
        """Tile -> position in `tiles`."""
        return {tile: i for i, tile in enumerate(self.tiles)}


KernelSweep = Sweep[ReductionKernel, ReductionTile]
MatmulSweep = Sweep[MatmulKernel, MatmulTile]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Kernel sweeps in file order, and the digest of their content. files: name -> digest of each file read.

    schema: of one family of kernels. `sweeps` are typed as the first one's; `matmul_sweeps` gives the other's.
    """

    sweeps: tuple[KernelSweep, ...]
    digest: str
    path: str
    files: Mapping[str, str]
    schema: CorpusSchema = REDUCTION

    @property
    def families(self) -> tuple[str, ...]:
        """Workload family of each sweep: the unit of every split."""
        return tuple(sweep.family for sweep in self.sweeps)

    @property
    def family(self) -> str:
        """Of kernels: reduction or matmul."""
        return self.schema.family

    @property
    def n_rows(self) -> int:
        return sum(len(sweep.tiles) for sweep in self.sweeps)

    def subset(self, indices: Iterable[int]) -> Corpus:
        """The sweeps at `indices`, as a corpus of their own."""
        sweeps = tuple(self.sweeps[i] for i in indices)
        return Corpus(sweeps, content_digest(sweeps), self.path, self.files, self.schema)


def matmul_sweeps(corpus: Corpus) -> tuple[MatmulSweep, ...]:
    """The sweeps of a corpus of matmuls. Raises CorpusError for one of another family."""
    if corpus.schema.family != "matmul":
        raise CorpusError(corpus.path, FAMILY_KEY, corpus.schema.family, "matmul")
    return cast("tuple[MatmulSweep, ...]", corpus.sweeps)


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
        return _from_rows(path, rows, schema_of(rows))
    if path.suffix != ".parquet":
        raise InvalidInput("corpus", str(path), "a file ending in .parquet, .jsonl or .jsonl.xz")
    table, schema, _ = _read_table(path)
    return _from_rows(path, table_rows(path, table), schema)


def read_rows(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(rows, metadata) of a Parquet corpus; column types are checked, values only for fitting them. metadata: as
    write_corpus takes it. Columns that the schema does not name are ignored on purpose.

    Raises CorpusError naming file and column.
    """
    table, _, metadata = _read_table(path)
    return table_rows(path, table), metadata


def read_corpora(paths: Sequence[str | Path], *, hardware: str | None = None) -> Corpus:
    """Several corpora of one family as one; a kernel_id may occur in one of them only."""
    corpora = [read_corpus(path, hardware=hardware) for path in paths]
    seen: dict[str, str] = {}
    schema = corpora[0].schema if corpora else REDUCTION
    for corpus in corpora:
        if corpus.schema is not schema:
            raise CorpusError(corpus.path, FAMILY_KEY, corpus.schema.family, f"{schema.family}, as {corpora[0].path}")
        for sweep in corpus.sweeps:
            if sweep.kernel_id in seen:
                raise CorpusError(corpus.path, "kernel_id", sweep.kernel_id, f"no kernel of {seen[sweep.kernel_id]}")
            seen[sweep.kernel_id] = corpus.path
    sweeps = tuple(sweep for corpus in corpora for sweep in corpus.sweeps)
    files = {name: digest for corpus in corpora for name, digest in corpus.files.items()}
    return Corpus(sweeps, content_digest(sweeps), ", ".join(corpus.path for corpus in corpora), files, schema)


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
    arrow = schema_of(rows).arrow
    schema = arrow.with_metadata({**arrow.metadata, **extra})
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
    schema = _table_schema(path, table)
    version = (table.schema.metadata or {}).get(VERSION_KEY.encode(), b"").decode(errors="replace")
    for name in schema.later_fields:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table)))
    names = [name for name, _, _ in schema.fields]
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise CorpusError(path, missing[0], "(missing)", f"the columns {', '.join(names)}")
    if version != str(SCHEMA_VERSION):
        raise CorpusError(path, VERSION_KEY, version, str(SCHEMA_VERSION))
    columns = [column_values(path, check, table.column(check.name)) for check in checks_of(schema)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def content_digest(sweeps: Sequence[Sweep[Any, Any]]) -> str:
    """SHA-256 over every kernel, tile, status and time, independent of the file's encoding."""
    digest = hashlib.sha256()
    for sweep in sweeps:
        digest.update(repr((sweep.kernel_id, sweep.workload, sweep.family, sweep.hardware, sweep.kernel)).encode())
        digest.update(repr([tile.sort_key for tile in sweep.tiles]).encode())
        digest.update(repr(sweep.status).encode())
        digest.update(np.ascontiguousarray(sweep.us).tobytes())
        digest.update(np.ascontiguousarray(sweep.compile_ms).tobytes())
        digest.update(repr((sweep.host_default, sweep.host_max_autotune)).encode())
        if sweep.extra:
            digest.update(repr(sorted(sweep.extra.items())).encode())
    return digest.hexdigest()


def _read_table(path: Path) -> tuple[Any, CorpusSchema, dict[str, str]]:
    """The Arrow table of a Parquet file, its schema, and the metadata that write_corpus was given."""
    try:
        table = pq.read_table(path)
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorpusError(path, "(file)", str(error).partition("\n")[0], "a Parquet file") from None
    schema = _table_schema(path, table)
    for name, _, _ in schema.fields:
        if names.count(name) > 1:
            raise CorpusError(path, name, f"{names.count(name)} columns", "one column of this name")
    stored = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in (table.schema.metadata or {}).items()
    }
    metadata = {
        key.removeprefix(METADATA_PREFIX): value for key, value in stored.items()
        if key.startswith(METADATA_PREFIX) and key not in (VERSION_KEY, FAMILY_KEY)
    }  # fmt: skip
    return table, schema, metadata


def _table_schema(path: Path, table: Any) -> CorpusSchema:
    """The schema of the family that a table's metadata names."""
    family = (table.schema.metadata or {}).get(FAMILY_KEY.encode(), b"reduction").decode(errors="replace")
    if family not in SCHEMAS:
        raise CorpusError(path, FAMILY_KEY, family, "one of " + ", ".join(SCHEMAS))
    return SCHEMAS[family]


def _from_rows(path: Path, rows: Sequence[dict[str, Any]], schema: CorpusSchema) -> Corpus:
    check_rows(path, rows)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["kernel_id"], []).append(row)
    sweeps = tuple(_sweep(group, schema) for group in groups.values())
    digest = content_digest(sweeps)
    return Corpus(sweeps, digest, str(path), {path.name: digest}, schema)


def _sweep(rows: list[dict[str, Any]], schema: CorpusSchema) -> Sweep[Any, Any]:
    first = rows[0]

    def column(name: str) -> npt.NDArray[np.float64]:
        return np.array([math.nan if row[name] is None else row[name] for row in rows], dtype=np.float64)

    def host(name: str) -> tuple[int, ...]:
        ranked = sorted((row[name], i) for i, row in enumerate(rows) if row[name] is not None)
        return tuple(i for _, i in ranked)

    return Sweep(
        kernel_id=first["kernel_id"], workload=first["workload"], family=first["family"], hardware=first["hardware"],
        kernel=schema.kernel(first), tiles=tuple(schema.tile(row) for row in rows),
        us=column("us"), timings=tuple(_timing(row) for row in rows), compile_ms=column("compile_ms"),
        status=tuple(row["status"] for row in rows),
        host_default=host("host_default_rank"), host_max_autotune=host("host_max_autotune_rank"), source=first["source"],
        extra={name: first[name] for name in schema.extra},
    )  # fmt: skip


def _timing(row: dict[str, Any]) -> Timing | None:
    if row["status"] != OK:
        return None
    median = row["us_median"] if row["us_median"] is not None else row["us"]
    return Timing(row["us"], median, row["us_min"], row["us_mad"], row["reps"] or 1)
