"""Checks of a corpus's rows and columns; every fault names file, row and column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tileguard.features.errors import InvalidInput
from tileguard.runtime.devices.base import NOT_MEASURED, OK, STATUSES
from tileguard.runtime.optional import require

pa = require("pyarrow")
pc = require("pyarrow.compute")
pq = require("pyarrow.parquet")

from .corpus_schema import CorpusError, CorpusSchema, schema_of

MINIMA = {
    "reps": 1, "n_regs": 0, "n_spills": 0, "shared": 0, "host_default_rank": 0, "host_max_autotune_rank": 0,
}  # fmt: skip
"""Least value of the integer columns that neither a kernel nor a tile checks."""

TIES = 1e-9
"""Share by which us_min may exceed us and us_median: they can be one number, rounded in different ways."""

MAX_EXACT = 1 << 53
"""Largest integer taken as a time: up to it a double holds every one."""


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
            return is_text(value)
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


@cache
def checks_of(schema: CorpusSchema) -> tuple[_Check, ...]:
    """One check a column, in order."""
    return tuple(_check_of(*field) for field in schema.fields)


_TIMES_OF = itemgetter("us", "us_min", "us_mad", "compile_ms", "us_median")


def is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def column_values(path: Path, check: _Check, column: Any) -> list[Any]:
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
    for check in checks_of(schema_of(rows)):
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
    schema = schema_of(rows)
    kernel_columns = [name for name, _, _ in schema.kernel_fields]
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
            tile = schema.tile(row)
            kernel = kernel_of(row)
            known = first_of.get(kernel_id)
            if known is None:
                schema.kernel(row)
                first_of[kernel_id] = (index, kernel)
        except InvalidInput as error:
            raise CorpusError(path, error.field, error.value, error.allowed, number) from None
        if known is not None and known[1] != kernel:
            name = next(n for n, a, b in zip(kernel_columns, known[1], kernel, strict=True) if a != b)
            raise CorpusError(path, name, row[name], f"the value of row {known[0]}, the same kernel_id", number)
        first = tiles.setdefault((kernel_id, *tile.sort_key), index)
        if first != index:
            other = f"row {first}'s tile" if line is None else "an earlier tile of the line"
            raise CorpusError(path, schema.tile_fields[0][0], str(tile), f"no duplicate of {other}", number)
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
