"""What a corpus is made of: its columns, and how a row names a kernel and a tile."""

from __future__ import annotations

from typing import Any

from tileguard.features.code import KernelCode
from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.optional import require

pa = require("pyarrow")
pc = require("pyarrow.compute")
pq = require("pyarrow.parquet")

SCHEMA_VERSION = 1
METADATA_PREFIX = "tileguard.corpus."
VERSION_KEY = METADATA_PREFIX + "version"
_STRING = pa.dictionary(pa.int32(), pa.string())

KERNEL_FIELDS = (
    ("kernel_id", _STRING, False), ("workload", _STRING, False), ("family", _STRING, False),
    ("hardware", _STRING, False), ("op", _STRING, True),
    ("xnumel", pa.int64(), False), ("rnumel", pa.int64(), False), ("dtype", _STRING, False),
    ("num_load", pa.int32(), False), ("num_store", pa.int32(), False), ("num_reduction", pa.int32(), False),
    ("min_ptr_elem_bytes", pa.int32(), False), ("max_ptr_elem_bytes", pa.int32(), False),
    ("total_ptr_elem_bytes", pa.int32(), False), ("inner", pa.bool_(), False), ("persistent", pa.bool_(), False),
    ("code", _STRING, True), ("source", _STRING, True),
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
FIELDS = (*KERNEL_FIELDS, *TILE_FIELDS, *RESULT_FIELDS)
LATER_FIELDS = ("code",)
"""Columns that older corpora of this version lack; null stands in."""

CORPUS_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=nullable) for name, kind, nullable in FIELDS],
    metadata={VERSION_KEY: str(SCHEMA_VERSION)},
)

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


def row_kernel(row: dict[str, Any]) -> ReductionKernel:
    """The kernel columns of a row as a ReductionKernel."""
    code = row["code"]
    fields = {name: row[name] for name in ReductionKernel.__slots__ if name != "code"}
    return ReductionKernel(**fields, code=KernelCode.from_json(code) if code is not None else None)


def row_tile(row: dict[str, Any]) -> ReductionTile:
    """The tile columns of a row as a ReductionTile."""
    return ReductionTile(**{name: row[name] for name, _, _ in TILE_FIELDS})


def _shown(value: object) -> object:
    """`value`, or the beginning of its text where that is long."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested too deep; an integer of more digits than Python prints
        return f"({type(value).__name__} too large to show)"
    return value if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
