"""What `tileguard report` shows: a table with one row a kernel, as wide as the terminal allows, and the sums under it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from tileguard.features.errors import checked_choice
from tileguard.features.tiles import ReductionTile

from .guard import Reason
from .hooks.matmul_records import MatmulRecord, MatmulTileRecord
from .hooks.records import CACHED, FAILED, TUNED, TileRecord
from .hooks.report import Record, Report

KERNEL, SHAPE, DTYPE, VERDICT, TILES = "kernel", "x × r", "dtype", "verdict", "tiles"
WINNER, PROPOSED, HOST_US, WINNER_US, GAIN = "winner", "proposed by", "host µs", "winner µs", "gain"
INITIALS = "by"
"""The title of PROPOSED where its words do not fit."""

_EXPENDABLE = (DTYPE, VERDICT, HOST_US, TILES, INITIALS, SHAPE, WINNER_US)
"""Columns that a narrow terminal does without, in the order in which they go."""

_WORDS = (KERNEL, DTYPE, VERDICT, WINNER, PROPOSED, INITIALS)
_GAP, _EDGES = 2, 2
"""Columns between two cells of a table without vertical lines, and on its sides."""

LEAST_KERNEL, MOST_KERNEL = 18, 60
"""Columns for a kernel's name: other columns go before it gets fewer (unless the last of them is left), none has more."""

PLAIN = ("triton::mm", "triton::bmm")
"""Templates of a product that are told by their tile alone."""

WON, LOST = 1.02, 0.98
"""Gains over and below which a row is coloured: anything between is noise."""

_ORDERS: Mapping[str, Callable[[Record], tuple[float, str]]] = {
    "gain": lambda record: (-(record.gain or -math.inf), record.kernel),
    "time": lambda record: (-(record.winner_us or record.host_us or -math.inf), record.kernel),
    "name": lambda record: (0.0, record.kernel),
}
ORDERS = tuple(_ORDERS)


def ordered(records: Sequence[Record], order: str) -> list[Record]:
    """By gain (largest first), time of the winner (longest first) or name; what is not known comes last."""
    return sorted(records, key=_ORDERS[checked_choice("sort", order, ORDERS)])


def report_table(records: Sequence[Record], *, width: int) -> Table:
    """One row a kernel, in the order given, for a terminal of `width` columns."""
    columns, rows = _fitted([_cells(record) for record in records], width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def legend(records: Sequence[Record], *, width: int) -> str:
    """What the columns of that table mean, where their titles do not say it."""
    columns, _ = _fitted([_cells(record) for record in records], width)
    parts = ["tiles: compiled/failed"] if TILES in columns else []
    parts += ["by: proposed by host, formula, model"] if INITIALS in columns else []
    return "; ".join([*parts, "gain: the host's own choice ÷ winner"])


def summary_grid(report: Report) -> Table:
    """The report's sums, label and sentence side by side."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, sentence in report.summary():
        grid.add_row(label, Text(sentence))
    return grid


def shortened(name: str, room: int) -> str:
    """A kernel's name in `room` columns: its middle goes, since its end tells it from its namesakes."""
    if len(name) <= room:
        return name
    tail = max(room // 3, 1)
    return f"{name[: max(room - tail - 1, 0)]}…{name[-tail:]}"


def _cells(record: Record) -> dict[str, Text]:
    gain = record.gain
    return {
        KERNEL: Text(record.kernel, "dim" if record.outcome == CACHED else ""),
        SHAPE: Text(_shape(record)),
        DTYPE: Text(record.dtype or ""),
        VERDICT: Text(record.verdict or "", "" if record.verdict == Reason.TRUST else "yellow"),
        TILES: _tiles(record),
        WINNER: _winner(record),
        PROPOSED: Text(", ".join(record.winner_proposers)),
        INITIALS: Text("·".join(who[0].upper() for who in record.winner_proposers)),
        HOST_US: Text(_us(record.host_us)),
        WINNER_US: Text(_us(record.winner_us)),
        GAIN: Text(
            f"{gain:.2f}×" if gain else "",
            "" if gain is None else "bold green" if gain > WON else "bold red" if gain < LOST else "",
        ),
    }


def _shape(record: Record) -> str:
    """Rows and length of a reduction; a product's sizes are in its name."""
    return "" if isinstance(record, MatmulRecord) else f"{_known(record.xnumel)} × {_known(record.rnumel)}"


def _tiles(record: Record) -> Text:
    if record.outcome == CACHED:
        return Text(CACHED, "dim")
    return Text(f"{record.compiled}/{record.failed}")


def _winner(record: Record) -> Text:
    if record.winner is None:
        return Text("" if record.outcome == TUNED else record.outcome, "red" if record.outcome == FAILED else "dim")
    return Text(_tile(record.tiles[record.winner]))


def _tile(tile: TileRecord | MatmulTileRecord) -> str:
    """A tile's numbers; of another template than the plain one, such as ATen, its name."""
    if isinstance(tile, TileRecord):
        return str(ReductionTile(tile.xblock, tile.r0_block, tile.num_warps, tile.num_stages))
    if tile.template not in PLAIN:
        return tile.template
    sizes = f"M{tile.block_m}·N{tile.block_n}·K{tile.block_k}"
    return f"{sizes}·w{tile.num_warps}·s{tile.num_stages}·G{tile.group_m}"


def _fitted(rows: Sequence[Mapping[str, Text]], width: int) -> tuple[list[str], list[dict[str, Text]]]:
    """The columns that fit, and the rows with kernels' names made short."""
    fitted = [dict(row) for row in rows]
    columns = [KERNEL, SHAPE, DTYPE, VERDICT, TILES, WINNER, PROPOSED, HOST_US, WINNER_US, GAIN]
    if not any(row[SHAPE].plain for row in fitted):
        columns.remove(SHAPE)
    longest = max((row[KERNEL].cell_len for row in fitted), default=0)
    wanted = min(longest, LEAST_KERNEL)
    if _room(columns, fitted, width) < wanted:
        columns[columns.index(PROPOSED)] = INITIALS
    for name in _EXPENDABLE:
        if name in columns and _room(columns, fitted, width) < wanted:
            columns.remove(name)
    room = max(min(_room(columns, fitted, width), MOST_KERNEL), 1)
    common = "triton_" if longest > room else ""
    for row in fitted:
        row[KERNEL] = Text(shortened(row[KERNEL].plain.removeprefix(common), room), row[KERNEL].style)
    return columns, fitted


def _room(columns: Sequence[str], rows: Sequence[Mapping[str, Text]], width: int) -> int:
    """What the other columns leave to the kernels' names."""
    others = [max(len(name), *(row[name].cell_len for row in rows), 0) for name in columns if name != KERNEL]
    return width - _EDGES - sum(others) - _GAP * len(others)


def _known(numel: int | None) -> str:
    return "?" if numel is None else str(numel)


def _us(us: float | None) -> str:
    return "" if us is None else f"{us:.2f}" if us < 1000 else f"{us:.0f}"
