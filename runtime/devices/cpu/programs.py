"""Tile programs: what is done to each row of some buffers, as data, tile by tile.

A tile is a short array of one row, known from the statement that defines it; nothing that happens later changes it,
a store to overlapping memory included. Its elements are read where they stand (element i of the result from element i
of the tile) or extracted by an index that a loop counts; an extract from outside the tile is 0. How tiles live in
registers and memory is the lowering's business (lowering.py, program_emit.py). Needs nothing but Python.

Every program is strict: operations happen in the order written, are rounded one by one and never reassociated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tileguard.features.errors import InvalidInput, checked_int

from .operation import Vocabulary

Value = Callable[[Vocabulary, Sequence[Any], Sequence[Any]], Any]
"""value(e, elements, scalars): one element of a tile, from elements that were read and scalars."""


@dataclass(frozen=True, slots=True)
class View:
    """`extent` numbers of every row in one parameter of the program: element i of row x is number
    offset + x·pitch + i·stride. pitch 0: all rows share them. flags: bytes, read as 1.0 where non-zero, else 0.0.

    Memory of different views may overlap, and that of different rows where only reads meet.
    """

    extent: int
    pitch: int
    stride: int = 1
    offset: int = 0
    flags: bool = False

    def __post_init__(self) -> None:
        for field in ("extent", "pitch", "offset"):
            checked_int(field, getattr(self, field), minimum=0)
        checked_int("stride", self.stride, minimum=1)


@dataclass(frozen=True, slots=True)
class Index:
    """element·i + turn·r + power·2^r + offset, where i is the element being made and r the loop's turn."""

    element: int = 0
    turn: int = 0
    power: int = 0
    offset: int = 0

    @property
    def dynamic(self) -> bool:
        return bool(self.turn or self.power)

    def span(self, extent: int, count: int) -> tuple[int, int]:
        """Least and largest value for i below `extent` and r below `count`, both 1 at least."""
        terms = ((self.element, extent - 1), (self.turn, count - 1))
        low = self.offset + sum(min(0, factor * most) for factor, most in terms)
        high = self.offset + sum(max(0, factor * most) for factor, most in terms)
        powers = (self.power, self.power << (count - 1))
        return low + min(powers), high + max(powers)


OWN = Index(element=1)
"""Element i of the tile for element i of the result: no extract."""

EACH = Index(turn=1)
"""Element r in turn r."""


@dataclass(frozen=True, slots=True)
class Read:
    """An element of a tile."""

    tile: str
    index: Index = OWN


@dataclass(frozen=True, slots=True)
class Load:
    """tile `name`: the elements of a view, as they are now."""

    name: str
    view: int


@dataclass(frozen=True, slots=True)
class Map:
    """tile `name`: `extent` elements, each a value of what was read."""

    name: str
    extent: int
    reads: tuple[Read, ...]
    value: Value
    scalars: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Let:
    """scalar `name`: a value of scalars and of elements at indices that depend on nothing."""

    name: str
    value: Value
    scalars: tuple[str, ...] = ()
    reads: tuple[Read, ...] = ()


@dataclass(frozen=True, slots=True)
class Fold:
    """scalar `name`: `start` combined with the value of every turn r, one after the other.

    Left: combine(accumulator, value) for r = 0, 1, …; right: combine(value, accumulator) for r = count - 1, …, 0.
    """

    name: str
    count: int
    reads: tuple[Read, ...]
    value: Value
    combine: Callable[[Vocabulary, Any, Any], Any]
    start: float = 0.0
    scalars: tuple[str, ...] = ()
    right: bool = False


@dataclass(frozen=True, slots=True)
class Carried:
    """A tile that a loop carries: `name` after and within it, the tile `start` before. value: its next elements."""

    name: str
    start: str
    reads: tuple[Read, ...]
    value: Value
    scalars: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """`count` turns r = 0, 1, … in which all carried tiles change together: every read sees the last turn's."""

    count: int
    carried: tuple[Carried, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Write a tile to a view of its extent."""

    view: int
    tile: str


Statement = Load | Map | Let | Fold | Loop | Store


@dataclass(frozen=True, slots=True)
class Program:
    """Statements for each of `rows` rows; every view is a parameter, a pointer to numbers of `dtype`.

    apart: whoever calls it has proven that no view stored to overlaps another one, or itself between rows.
    Raises InvalidInput for a name that is not known where it is read, or defined twice, and for extents that differ.
    """

    rows: int
    dtype: str
    views: tuple[View, ...]
    body: tuple[Statement, ...]
    apart: bool = False

    def __post_init__(self) -> None:
        checked_int("rows", self.rows, minimum=0)
        _check(self)

    @property
    def extents(self) -> dict[str, int]:
        """Of every tile."""
        found: dict[str, int] = {}
        for statement in self.body:
            if isinstance(statement, Load):
                found[statement.name] = self.views[statement.view].extent
            elif isinstance(statement, Map):
                found[statement.name] = statement.extent
            elif isinstance(statement, Loop):
                found |= {one.name: found[one.start] for one in statement.carried}
        return found

    @property
    def has_loop(self) -> bool:
        return any(isinstance(statement, Loop) for statement in self.body)

    @property
    def extracted(self) -> set[str]:
        """Tiles of which an element is read elsewhere than where it stands: by a loop's index, or moved."""
        reads: list[Read] = []
        for statement in self.body:
            if isinstance(statement, Map):
                reads += [read for read in statement.reads if read.index != OWN]
            elif isinstance(statement, Fold):
                reads += [read for read in statement.reads if read.index.dynamic]
            elif isinstance(statement, Loop):
                reads += [read for one in statement.carried for read in one.reads if read.index != OWN]
        return {read.tile for read in reads}

    @property
    def exposed(self) -> set[str]:
        """Loaded tiles whose memory a later store may change."""
        found: set[str] = set()
        for place, statement in enumerate(self.body):
            if isinstance(statement, Load):
                later = [s.view for s in self.body[place:] if isinstance(s, Store)]
                if statement.view in later or (later and not self.apart):
                    found.add(statement.name)
        return found


def _check(program: Program) -> None:
    tiles: dict[str, int] = {}
    scalars: set[str] = set()

    def define(name: str) -> None:
        if not name or name in tiles or name in scalars:
            raise InvalidInput("body", name, "a new name for every tile and scalar")

    def reads(of: Map | Let | Fold | Carried, known: set[str]) -> None:
        for read in of.reads:
            if read.tile not in known:
                raise InvalidInput("body", read.tile, "a tile defined before it is read")
        for name in of.scalars:
            if name not in scalars:
                raise InvalidInput("body", name, "a scalar defined before it is read")

    def view(index: int) -> View:
        if not 0 <= index < len(program.views):
            raise InvalidInput("body", index, f"a view below {len(program.views)}")
        return program.views[index]

    for statement in program.body:
        if isinstance(statement, Load):
            define(statement.name)
            tiles[statement.name] = view(statement.view).extent
        elif isinstance(statement, Map):
            define(statement.name)
            reads(statement, set(tiles))
            tiles[statement.name] = checked_int("extent", statement.extent, minimum=0)
        elif isinstance(statement, Let):
            define(statement.name)
            reads(statement, set(tiles))
            if any(read.index.dynamic or read.index.element for read in statement.reads):
                raise InvalidInput("body", statement.name, "only fixed indices in Let")
            scalars.add(statement.name)
        elif isinstance(statement, Fold):
            define(statement.name)
            reads(statement, set(tiles))
            checked_int("count", statement.count, minimum=0)
            scalars.add(statement.name)
        elif isinstance(statement, Loop):
            checked_int("count", statement.count, minimum=0)
            inside = {*tiles, *(one.name for one in statement.carried)}
            for one in statement.carried:
                define(one.name)
                reads(one, inside)
                if one.start not in tiles:
                    raise InvalidInput("body", one.start, "a tile defined before the loop that carries it")
            tiles |= {one.name: tiles[one.start] for one in statement.carried}
        elif statement.tile not in tiles or view(statement.view).extent != tiles[statement.tile]:
            raise InvalidInput("body", statement.tile, f"a tile of the extent of view {statement.view}")
        elif view(statement.view).flags or not view(statement.view).pitch:
            raise InvalidInput("body", statement.view, "a view of numbers, each row its own, to store to")
