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
from tileguard.runtime.devices.base import NOT_MEASURED, OK, STATUSES, Timing
from tileguard.runtime.optional import require

pa = require("pyarrow")
pq = require("pyarrow.parquet")

SCHEMA_VERSION = 1
_METADATA_PREFIX = "tileguard.corpus."
_VERSION_KEY = _METADATA_PREFIX + "version"
_STRING = pa.dictionary(pa.int32(), pa.string())

KERNEL_FIELDS = (
    ("kernel_id", _STRING, False), ("workload", _STRING, False), ("family", _STRING, False),
    ("hardware", _STRING, False), ("op", _STRING, True),
    ("xnumel", pa.int64(), False), ("rnumel", pa.int64(), False), ("dtype", _STRING, False),
    ("num_load", pa.int32(), False), ("num_store", pa.int32(), False), ("num_reduction", pa.int32(), False),
    ("min_ptr_elem_bytes", pa.int32(), False), ("max_ptr_elem_bytes", pa.int32(), False),
    ("total_ptr_elem_bytes", pa.int32(), False), ("inner", pa.bool_(), False), ("persistent", pa.bool_(), False),
    ("source", _STRING, True),
)  # fmt: skip
TILE_FIELDS = (
    ("xblock", pa.int32(), False), ("r0_block", pa.int32(), False), ("num_warps", pa.int32(), True),
    ("num_stages", pa.int32(), False), ("lowering", _STRING, True),
)  # fmt: skip
RESULT_FIELDS = (
    ("status", _STRING, False), ("error", pa.string(), True), ("compile_ms", pa.float64(), True),
    ("us", pa.float64(), True), ("us_median", pa.float64(), True), ("us_min", pa.float64(), True),
    ("us_mad", pa.float64(), True), ("reps", pa.int32(), True),
    ("n_regs", pa.int32(), True), ("n_spills", pa.int32(), True), ("shared", pa.int32(), True),
    ("host_default_rank", pa.int16(), True), ("host_max_autotune_rank", pa.int16(), True),
)  # fmt: skip
_FIELDS = (*KERNEL_FIELDS, *TILE_FIELDS, *RESULT_FIELDS)
CORPUS_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=nullable) for name, kind, nullable in _FIELDS],
    metadata={_VERSION_KEY: str(SCHEMA_VERSION)},
)


class CorpusError(InvalidInput):
    """A corpus that cannot be used; names the file, the row (1 is the first) and the column."""

    def __init__(self, path: object, column: str, value: object, allowed: str, row: int | None = None) -> None:
        super().__init__(column, value, allowed)
        self.row = row
        where = f"row {row}, column {column}" if row is not None else f"column {column}"
        self.args = (f"{path}: {where}: {value!r} is not allowed; expected {allowed}",)


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

    Raises CorpusError naming file, row and column; InvalidInput for a missing file or unknown ending.
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
    """(rows, metadata) of a Parquet corpus; columns are checked, values are not. metadata: as write_corpus takes it.

    Raises CorpusError naming file and column.
    """
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorpusError(path, "(file)", str(error).splitlines()[0], "a Parquet file") from None
    stored = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in (table.schema.metadata or {}).items()
    }
    metadata = {
        key.removeprefix(_METADATA_PREFIX): value for key, value in stored.items()
        if key.startswith(_METADATA_PREFIX) and key != _VERSION_KEY
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
    _check_rows(path, rows)
    extra = {_METADATA_PREFIX + key: value for key, value in (metadata or {}).items()}
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
    """A table's rows after checking its version, columns and types."""
    version = (table.schema.metadata or {}).get(_VERSION_KEY.encode(), b"").decode()
    missing = [name for name in CORPUS_SCHEMA.names if name not in table.column_names]
    if missing:
        raise CorpusError(path, missing[0], "(missing)", f"the columns {', '.join(CORPUS_SCHEMA.names)}")
    if version != str(SCHEMA_VERSION):
        raise CorpusError(path, _VERSION_KEY, version, str(SCHEMA_VERSION))
    table = table.select(CORPUS_SCHEMA.names)
    for name in CORPUS_SCHEMA.names:
        wanted, found = CORPUS_SCHEMA.field(name).type, table.schema.field(name).type
        try:
            column = table.column(name)
            if pa.types.is_dictionary(found):
                column = column.cast(found.value_type)
            value_type = wanted.value_type if pa.types.is_dictionary(wanted) else wanted
            table = table.set_column(table.schema.get_field_index(name), name, column.cast(value_type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise CorpusError(path, name, str(found), f"the type {wanted}") from None
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


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
    _check_rows(path, rows)
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


def row_kernel(row: dict[str, Any]) -> ReductionKernel:
    """The kernel columns of a row as a ReductionKernel."""
    return ReductionKernel(**{name: row[name] for name in ReductionKernel.__slots__})


def row_tile(row: dict[str, Any]) -> ReductionTile:
    """The tile columns of a row as a ReductionTile."""
    return ReductionTile(**{name: row[name] for name, _, _ in TILE_FIELDS})


def _check_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        raise CorpusError(path, "(rows)", 0, "at least one row")
    nullable = {name: null for name, _, null in _FIELDS}
    kernel_columns = [name for name, _, _ in KERNEL_FIELDS]
    first_of: dict[str, tuple[int, tuple[Any, ...]]] = {}
    tiles: dict[tuple[Any, ...], int] = {}
    measured: set[str] = set()
    for number, row in enumerate(rows, start=1):
        for name, null in nullable.items():
            if name not in row:
                raise CorpusError(path, name, "(missing)", "a value in every row", number)
            if row[name] is None and not null:
                raise CorpusError(path, name, None, "a value", number)
        if row["status"] not in STATUSES:
            raise CorpusError(path, "status", row["status"], "one of " + ", ".join(STATUSES), number)
        if row["status"] == OK:
            for name in ("us", "us_min", "us_mad", "compile_ms"):
                value = row[name]
                zero_ok = name != "us" and name != "us_min"
                number_ok = isinstance(value, int | float) and math.isfinite(value)
                if not number_ok or value < 0 or (value == 0 and not zero_ok):
                    raise CorpusError(path, name, value, "a finite positive time where status is ok", number)
            measured.add(row["kernel_id"])
        elif row["us"] is not None:
            raise CorpusError(path, "us", row["us"], f"no time where status is {row['status']}", number)
        try:
            tile = row_tile(row)
            kernel = tuple(row[name] for name in kernel_columns)
            known = first_of.get(row["kernel_id"])
            if known is None:
                row_kernel(row)
                first_of[row["kernel_id"]] = (number, kernel)
        except InvalidInput as error:
            raise CorpusError(path, error.field, error.value, error.allowed, number) from None
        if known is not None and known[1] != kernel:
            name = next(n for n, a, b in zip(kernel_columns, known[1], kernel, strict=True) if a != b)
            raise CorpusError(path, name, row[name], f"the value of row {known[0]}, the same kernel_id", number)
        key = (row["kernel_id"], *tile.sort_key)
        if key in tiles:
            raise CorpusError(path, "xblock", str(tile), f"no duplicate of row {tiles[key]}'s tile", number)
        tiles[key] = number
    for kernel_id, (number, _) in first_of.items():
        if kernel_id not in measured:
            raise CorpusError(path, "status", NOT_MEASURED, f"one ok row at least of kernel {kernel_id}", number)
