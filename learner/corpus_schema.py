"""What a corpus is made of: its columns, and how a row names a kernel and a tile. One schema a family of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tileguard.features.code import KernelCode
from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import MatmulKernel, ReductionKernel
from tileguard.features.tiles import MatmulTile, ReductionTile
from tileguard.runtime.optional import require

pa = require("pyarrow")
pc = require("pyarrow.compute")
pq = require("pyarrow.parquet")

SCHEMA_VERSION = 1
METADATA_PREFIX = "tileguard.corpus."
VERSION_KEY = METADATA_PREFIX + "version"
FAMILY_KEY = METADATA_PREFIX + "family"
"""Left out of a corpus of reductions: the first ones had no other family beside them."""

_STRING = pa.dictionary(pa.int32(), pa.string())

_NAMES = (
    ("kernel_id", _STRING, False), ("workload", _STRING, False), ("family", _STRING, False),
    ("hardware", _STRING, False),
)  # fmt: skip
KERNEL_FIELDS = (
    *_NAMES, ("op", _STRING, True),
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
LATER_FIELDS = ("code",)
"""Columns that older corpora of this version lack; null stands in."""

MATMUL_KERNEL_FIELDS = (
    *_NAMES, ("op", _STRING, False),
    ("batch", pa.int64(), False), ("m", pa.int64(), False), ("n", pa.int64(), False), ("k", pa.int64(), False),
    ("dtype", _STRING, False), ("out_dtype", _STRING, True),
    ("a_transposed", pa.bool_(), False), ("b_transposed", pa.bool_(), False),
    ("allow_tf32", pa.bool_(), False), ("decompose_k", pa.bool_(), False), ("aten_us", pa.float64(), True),
    ("source", _STRING, True),
)  # fmt: skip
"""op: mm, bmm or addmm. dtype: what the tiles multiply, tf32 being fp32 in memory; allow_tf32: what ATen may. decompose_k: whether the host prefers to split k
and lists no Triton tile. aten_us: the fastest of ATen's ways, timed beside the tiles."""
MATMUL_TILE_FIELDS = (
    ("block_m", pa.int32(), False), ("block_n", pa.int32(), False), ("block_k", pa.int32(), False),
    ("num_warps", pa.int32(), True), ("num_stages", pa.int32(), False), ("group_m", pa.int32(), False),
    ("even_k", pa.bool_(), False),
)  # fmt: skip
"""even_k: whether block_k divides k; it follows from both, and decides which code is compiled."""
MATMUL_EXTRA = ("op", "allow_tf32", "decompose_k", "aten_us")


@dataclass(frozen=True, eq=False)
class CorpusSchema:
    """One family's corpora. fields: (name, Arrow type, nullable) of every column, in order; later_fields: columns that
    older corpora of this version lack; extra: kernel columns that a KernelSweep keeps beside its kernel. sizes, sides:
    names of a kernel's lengths and of a tile's, as reports give them.
    """

    family: str
    kernel_fields: tuple[tuple[str, Any, bool], ...]
    tile_fields: tuple[tuple[str, Any, bool], ...]
    later_fields: tuple[str, ...]
    extra: tuple[str, ...]
    sizes: tuple[str, ...]
    sides: tuple[str, ...]
    kernel: Callable[[Mapping[str, Any]], Any]
    tile: Callable[[Mapping[str, Any]], Any]

    @cached_property
    def fields(self) -> tuple[tuple[str, Any, bool], ...]:
        return (*self.kernel_fields, *self.tile_fields, *RESULT_FIELDS)

    @cached_property
    def arrow(self) -> Any:
        """The Arrow schema, version and family in its metadata."""
        metadata = {VERSION_KEY: str(SCHEMA_VERSION)}
        return pa.schema(
            [pa.field(name, kind, nullable=nullable) for name, kind, nullable in self.fields],
            metadata=metadata if self.family == "reduction" else metadata | {FAMILY_KEY: self.family},
        )


MATMUL_OPS = ("mm", "bmm", "addmm")

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


def row_kernel(row: Mapping[str, Any]) -> ReductionKernel:
    """The kernel columns of a row as a ReductionKernel."""
    code = row["code"]
    fields = {name: row[name] for name in ReductionKernel.__slots__ if name != "code"}
    return ReductionKernel(**fields, code=KernelCode.from_json(code) if code is not None else None)


def row_tile(row: Mapping[str, Any]) -> ReductionTile:
    """The tile columns of a row as a ReductionTile."""
    return ReductionTile(**{name: row[name] for name, _, _ in TILE_FIELDS})


def row_matmul(row: Mapping[str, Any]) -> MatmulKernel:
    """The kernel columns of a row as a MatmulKernel. Raises InvalidInput where they contradict one another."""
    if row["op"] not in MATMUL_OPS:
        raise InvalidInput("op", row["op"], "one of " + ", ".join(MATMUL_OPS))
    if row["dtype"] == "tf32" and not row["allow_tf32"]:
        raise InvalidInput("allow_tf32", row["allow_tf32"], "true where dtype is tf32")
    if row["aten_us"] is not None and row["aten_us"] <= 0:
        raise InvalidInput("aten_us", row["aten_us"], "a positive time, or none")
    return MatmulKernel(**{name: row[name] for name in MatmulKernel.__slots__})


def row_matmul_tile(row: Mapping[str, Any]) -> MatmulTile:
    """The tile columns of a row as a MatmulTile. Raises InvalidInput where even_k is not so."""
    tile = MatmulTile(**{name: row[name] for name in MatmulTile.__slots__})
    if row["even_k"] != (row["k"] % tile.block_k == 0):
        raise InvalidInput("even_k", row["even_k"], f"whether block_k divides k, {tile.block_k} and {row['k']}")
    return tile


def _shown(value: object) -> object:
    """`value`, or the beginning of its text where that is long."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested too deep; an integer of more digits than Python prints
        return f"({type(value).__name__} too large to show)"
    return value if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


REDUCTION = CorpusSchema(
    "reduction", KERNEL_FIELDS, TILE_FIELDS, LATER_FIELDS, (), ("xnumel", "rnumel"), ("xblock", "r0_block"),
    row_kernel, row_tile,
)  # fmt: skip
MATMUL = CorpusSchema(
    "matmul", MATMUL_KERNEL_FIELDS, MATMUL_TILE_FIELDS, (), MATMUL_EXTRA, ("batch", "m", "n", "k"),
    ("block_m", "block_n", "block_k"), row_matmul, row_matmul_tile,
)  # fmt: skip
SCHEMAS = {schema.family: schema for schema in (REDUCTION, MATMUL)}
CORPUS_SCHEMA = REDUCTION.arrow


def schema_of(rows: Sequence[Mapping[str, Any]]) -> CorpusSchema:
    """The schema of rows, by what their first one is about; of reductions where it cannot be told."""
    return MATMUL if rows and "block_m" in rows[0] else REDUCTION
