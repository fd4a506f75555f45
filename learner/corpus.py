"""Corpora: dense measurements, one row a (kernel, tile), as Parquet; read, validate, merge, write."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
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
pc = require("pyarrow.compute")
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


MINIMA = {
    "reps": 1, "n_regs": 0, "n_spills": 0, "shared": 0, "host_default_rank": 0, "host_max_autotune_rank": 0,
}  # fmt: skip
"""Least value of the integer columns that neither a kernel nor a tile checks."""

TIES = 1e-9
"""Share by which us_min may exceed us and us_median: they can be one number, rounded in different ways."""

MAX_EXACT = 1 << 53
"""Largest integer taken as a time: up to it a double holds every one."""

MAX_SHOWN = 200
"""Characters of a refused value that an error shows."""


class CorpusError(InvalidInput):
    """A corpus that cannot be used; names the file, the row (1 is the first) and the column.

    row: of a raw sweep the line. A value too long to show is cut.
    """

    def __init__(self, path: object, column: str, value: object, allowed: str, row: int | None = None) -> None:
        value = _shown(value)
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
    check_rows(path, rows)
    extra = {_METADATA_PREFIX + key: value for key, value in (metadata or {}).items()}
    for key, value in extra.items():
        if not (_is_text(key) and _is_text(value)):
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
    version = (table.schema.metadata or {}).get(_VERSION_KEY.encode(), b"").decode(errors="replace")
    missing = [name for name in CORPUS_SCHEMA.names if name not in table.column_names]
    if missing:
        raise CorpusError(path, missing[0], "(missing)", f"the columns {', '.join(CORPUS_SCHEMA.names)}")
    if version != str(SCHEMA_VERSION):
        raise CorpusError(path, _VERSION_KEY, version, str(SCHEMA_VERSION))
    columns = [_column_values(path, check, table.column(check.name)) for check in _CHECKS]
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


def row_kernel(row: dict[str, Any]) -> ReductionKernel:
    """The kernel columns of a row as a ReductionKernel."""
    return ReductionKernel(**{name: row[name] for name in ReductionKernel.__slots__})


def row_tile(row: dict[str, Any]) -> ReductionTile:
    """The tile columns of a row as a ReductionTile."""
    return ReductionTile(**{name: row[name] for name, _, _ in TILE_FIELDS})


@dataclass(frozen=True, slots=True)
class _Check:
    """What the values of one column must be. low, high: of an integer column; kind: str, bool, int or float."""

    name: str
    type: Any
    nullable: bool
    kind: type
    low: int
    high: int

    @property
    def allowed(self) -> str:
        if self.kind is int:
            return f"an integer of {self.low} to {self.high} ({self.type})"
        words = {str: "a string of valid Unicode", bool: "True or False"}
        return words.get(self.kind, f"a finite number ({self.type})")

    def takes_column(self, found: Any) -> bool:
        """Whether a column of the type `found` can be read; one of nulls only can, as any type."""
        is_a = pa.types
        if is_a.is_null(found):
            return True
        if self.kind is str:
            return bool(is_a.is_string(found) or is_a.is_large_string(found) or is_a.is_string_view(found))
        if self.kind is bool:
            return bool(is_a.is_boolean(found))
        return bool(is_a.is_integer(found) or (self.kind is float and is_a.is_floating(found)))

    def takes(self, value: Any) -> bool:
        """Whether a value that is not None fits; numpy's numbers do as Python's do."""
        if self.kind is str:
            return _is_text(value)
        if self.kind is bool:
            return isinstance(value, bool)
        if isinstance(value, bool):
            return False
        if isinstance(value, int | np.integer):
            return self.low <= int(value) <= self.high
        return self.kind is float and isinstance(value, float | np.floating) and bool(math.isfinite(value))


def _check_of(name: str, wanted: Any, nullable: bool) -> _Check:
    if pa.types.is_integer(wanted):
        limit = 1 << (wanted.bit_width - 1)
        return _Check(name, wanted, nullable, int, MINIMA.get(name, -limit), limit - 1)
    if pa.types.is_floating(wanted):
        return _Check(name, wanted, nullable, float, -MAX_EXACT, MAX_EXACT)
    if pa.types.is_boolean(wanted):
        return _Check(name, wanted, nullable, bool, 0, 0)
    return _Check(name, pa.string(), nullable, str, 0, 0)


_CHECKS = tuple(_check_of(*field) for field in _FIELDS)
_TIMES_OF = itemgetter("us", "us_min", "us_mad", "compile_ms", "us_median")


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _shown(value: object) -> object:
    """`value`, or the beginning of its text where that is long."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested too deep; an integer of more digits than Python prints
        return f"({type(value).__name__} too large to show)"
    return value if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _column_values(path: Path, check: _Check, column: Any) -> list[Any]:
    """A column as Python values, of the schema's type."""
    found = column.type
    encoded = pa.types.is_dictionary(found)
    if not check.takes_column(found.value_type if encoded else found):
        raise CorpusError(path, check.name, str(found), f"the type {check.type}")
    try:
        if check.kind is str:
            return [value for chunk in column.chunks for value in _strings(chunk, encoded)]
        plain = column.cast(found.value_type) if encoded else column
        return _numbers(plain.cast(check.type))
    except (pa.ArrowInvalid, UnicodeDecodeError):
        row, value = _offender(check, column.cast(found.value_type) if encoded else column)
    raise CorpusError(path, check.name, value, check.allowed, row)


def _strings(chunk: Any, encoded: bool) -> list[str | None]:
    if not encoded:
        values: list[str | None] = chunk.to_pylist()
        return values
    words = [*chunk.dictionary.to_pylist(), None]
    return [words[i] for i in _filled(chunk.indices, len(words) - 1)]


def _numbers(column: Any) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    values = _filled(column, 0)
    if not column.null_count:
        return values
    valid = column.is_valid().to_numpy().tolist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _filled(column: Any, value: int) -> list[Any]:
    """Python values of a column of numbers, with `value` for null."""
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64()) if pa.types.is_integer(column.type) else column, value)
    array = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    values: list[Any] = array.tolist()
    return values


def _offender(check: _Check, column: Any) -> tuple[int | None, object]:
    """(row, value) of the first value that has no place in a column of the schema's type."""
    raw = column
    if check.kind is str:
        raw = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    for number, scalar in enumerate(raw, start=1):
        value = scalar.as_py()
        if isinstance(value, bytes):
            try:
                value.decode()
            except UnicodeDecodeError:
                return number, value
        elif value is not None and not check.takes(value):
            return number, value
    return None, str(column.type)  # of a word that no row uses


def check_fields(path: Path, rows: Sequence[dict[str, Any]], *, line: int | None = None) -> None:
    """Check that every column is there, and every value of its type and range.

    line: where all rows come from, for a raw sweep; errors then name it in place of the row.
    """
    for check in _CHECKS:
        name = check.name
        try:
            values = [row[name] for row in rows]
        except KeyError:
            number = next(i for i, row in enumerate(rows, start=1) if name not in row)
            raise CorpusError(path, name, "(missing)", "a value in every row", line or number) from None
        if _all_fit(check, values):
            continue
        for number, value in enumerate(values, start=1):
            if value is None:
                if not check.nullable:
                    raise CorpusError(path, name, None, "a value", line or number)
            elif not check.takes(value):
                raise CorpusError(path, name, value, check.allowed, line or number)


def _all_fit(check: _Check, values: Sequence[Any]) -> bool:
    """Whether all values fit; False says only that a closer look is due."""
    types = set(map(type, values))
    if type(None) in types:
        if not check.nullable:
            return False
        types.remove(type(None))
        values = [value for value in values if value is not None]
    if not values:
        return True
    if types != {check.kind}:
        return False
    if check.kind is float:
        return bool(np.isfinite(np.array(values, dtype=np.float64)).all())
    return all(check.takes(value) for value in set(values))


def check_rows(path: Path, rows: Sequence[dict[str, Any]], *, line: int | None = None) -> None:
    """check_fields, then whether the rows make sense: times, kernels, tiles, the hosts' ranks."""
    if not rows:
        raise CorpusError(path, "(rows)", 0, "at least one row")
    check_fields(path, rows, line=line)
    kernel_columns = [name for name, _, _ in KERNEL_FIELDS]
    kernel_of = itemgetter(*kernel_columns)
    first_of: dict[str, tuple[int, tuple[Any, ...]]] = {}
    tiles: dict[tuple[Any, ...], int] = {}
    ranks: dict[tuple[str, str, int], int] = {}
    measured: set[str] = set()
    for index, row in enumerate(rows, start=1):
        number = line or index
        kernel_id = row["kernel_id"]
        if not kernel_id:
            raise CorpusError(path, "kernel_id", kernel_id, "a name that is not empty", number)
        if row["status"] not in STATUSES:
            raise CorpusError(path, "status", row["status"], "one of " + ", ".join(STATUSES), number)
        if row["status"] == OK:
            _check_times(path, row, number)
            measured.add(kernel_id)
        elif row["us"] is not None:
            raise CorpusError(path, "us", row["us"], f"no time where status is {row['status']}", number)
        try:
            tile = row_tile(row)
            kernel = kernel_of(row)
            known = first_of.get(kernel_id)
            if known is None:
                row_kernel(row)
                first_of[kernel_id] = (index, kernel)
        except InvalidInput as error:
            raise CorpusError(path, error.field, error.value, error.allowed, number) from None
        if known is not None and known[1] != kernel:
            name = next(n for n, a, b in zip(kernel_columns, known[1], kernel, strict=True) if a != b)
            raise CorpusError(path, name, row[name], f"the value of row {known[0]}, the same kernel_id", number)
        first = tiles.setdefault((kernel_id, *tile.sort_key), index)
        if first != index:
            other = f"row {first}'s tile" if line is None else "an earlier tile of the line"
            raise CorpusError(path, "xblock", str(tile), f"no duplicate of {other}", number)
        for name in ("host_default_rank", "host_max_autotune_rank"):
            rank = row[name]
            if rank is not None and (first := ranks.setdefault((kernel_id, name, rank), index)) != index:
                raise CorpusError(path, name, rank, f"another rank than row {first} of the same kernel_id", number)
    for kernel_id, (index, _) in first_of.items():
        if kernel_id not in measured:
            raise CorpusError(path, "status", NOT_MEASURED, f"one ok row at least of kernel {kernel_id}", line or index)


def _check_times(path: Path, row: dict[str, Any], number: int) -> None:
    """The times of a tile that worked. us is the median or, on a CPU, the minimum; us_median may be left out."""
    us, least, spread, compile_ms, median = _TIMES_OF(row)
    for name, value, zero_ok in (
        ("us", us, False), ("us_min", least, False), ("us_mad", spread, True), ("compile_ms", compile_ms, True),
        ("us_median", us if median is None else median, False),
    ):  # fmt: skip
        if value is None or value < 0 or (value == 0 and not zero_ok):
            raise CorpusError(path, name, value, "a finite positive time where status is ok", number)
    for name, value in (("us", us), ("us_median", median)):
        if value is not None and least > value * (1 + TIES):
            raise CorpusError(path, "us_min", least, f"at most {name}, {value!r}", number)
