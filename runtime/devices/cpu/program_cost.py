"""What program_emit.py would write for a program and what memory it would take, without writing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .counting import Counter
from .lowering import expanded, expands, kept, stepped
from .operation import compute_bytes
from .programs import Carried, Fold, Let, Load, Loop, Map, Program, Read, Store, View

_ADDRESS = 2
"""Operations of an address in memory."""

_Cost = Callable[[bool], int]
"""Of an element, at an index that is dynamic or not."""

LOOP_OPERATIONS = 12
"""Of a loop's counter, test and jumps, and of an accumulator."""


@dataclass(frozen=True, slots=True)
class Use:
    """IR operations written, allocas, address computations and stores of kept tiles included; bytes of local arrays,
    of all rows of a vector and of what is left over together."""

    operations: int
    local_bytes: int


def program_use(program: Program, *, lowering: str, width: int, unroll: int) -> Use:
    """Of a program under a lowering. Operations are never too few; in a long program of fp32 up to a third too many."""
    widths = [w for w, some in ((width, program.rows >= width), (1, program.rows % width > 0)) if some]
    parts = [_Rows(program, lowering, w, unroll) for w in widths]
    return Use(sum(part.operations() for part in parts), sum(part.local_bytes() for part in parts))


class _Rows:
    def __init__(self, program: Program, lowering: str, width: int, unroll: int) -> None:
        self.program, self.lowering, self.width, self.unroll = program, lowering, width, unroll
        self.kept, self.expanded = kept(program, lowering), expanded(program, lowering)
        self.extents = program.extents
        self.recipes: dict[str, Load | Map] = {}  # tiles computed where they are read, so far

    def local_bytes(self) -> int:
        total = 0
        for statement in self.program.body:
            if isinstance(statement, Loop):
                names = [one.name for one in statement.carried]
                total += sum(2 * self.extents[name] for name in names if not self.expands(name))
            elif isinstance(statement, Load | Map) and statement.name in self.kept and not self.expands(statement.name):
                total += self.extents[statement.name]
        return total * self.width * compute_bytes(self.program.dtype)

    def operations(self) -> int:
        total = LOOP_OPERATIONS + 4 * sum(self.lanes(view) for view in self.program.views)
        for statement in self.program.body:
            if isinstance(statement, Load | Map):
                total += self.definition(statement)
            elif isinstance(statement, Let):
                total += self.value(statement, dynamic=False)
            elif isinstance(statement, Fold):
                combine = Counter(self.program.dtype)
                statement.combine(combine, None, None)
                total += LOOP_OPERATIONS + combine.total + self.value(statement, dynamic=True)
            elif isinstance(statement, Loop):
                total += LOOP_OPERATIONS + sum(self.carried(one) for one in statement.carried)
            else:
                total += self.store(statement)
        return total

    def definition(self, statement: Load | Map) -> int:
        name, extent = statement.name, self.extents[statement.name]
        if name not in self.kept:
            self.recipes[name] = statement
            return 0
        if self.expands(name):
            return extent * self.made(statement, dynamic=False)
        return 1 + self.each(extent, lambda dynamic: 2 + self.made(statement, dynamic=dynamic))

    def carried(self, one: Carried) -> int:
        extent = self.extents[one.name]
        begin = Read(one.start)
        if self.expands(one.name):
            first = extent * (2 + self.read(begin, dynamic=False))  # a slot and a store
            return first + extent * (3 + self.value(one, dynamic=True))
        first = 1 + self.each(extent, lambda dynamic: 2 + self.read(begin, dynamic=dynamic))
        return first + 4 + self.each(extent, lambda dynamic: 3 + self.value(one, dynamic=True))

    def store(self, statement: Store) -> int:
        view = self.program.views[statement.view]
        stored = Counter(self.program.dtype).store + self.lanes(view) * (_ADDRESS + 2)
        read = Read(statement.tile)
        return self.each(view.extent, lambda dynamic: stored + self.read(read, dynamic=dynamic))

    def lanes(self, view: View) -> int:
        """Loads or stores of an element: one where rows lie side by side or are one."""
        return self.width if view.pitch > 1 else 1

    def made(self, statement: Load | Map, *, dynamic: bool) -> int:
        if isinstance(statement, Map):
            return self.value(statement, dynamic=dynamic)
        return self.load(self.program.views[statement.view])

    def load(self, view: View) -> int:
        raw = self.lanes(view) * (_ADDRESS + 2) + 1
        return raw + (2 if view.flags else Counter(self.program.dtype).load)

    def value(self, statement: Map | Let | Fold | Carried, *, dynamic: bool) -> int:
        count = Counter(self.program.dtype)
        statement.value(count, [None] * len(statement.reads), [None] * len(statement.scalars))
        return count.total + sum(self.read(read, dynamic=dynamic) for read in statement.reads)

    def read(self, read: Read, *, dynamic: bool) -> int:
        """An element of a tile, its index and the guard of an extract included."""
        dynamic = dynamic and (read.index.dynamic or not self.expanded or bool(read.index.element))
        index = 7 if dynamic else 0
        if read.tile in self.recipes:
            return index + self.made(self.recipes[read.tile], dynamic=dynamic)
        if self.expands(read.tile):
            moving = read.index.dynamic or (dynamic and not self.expanded)
            return index + (3 + 2 * self.extents[read.tile] if moving else 0)
        return index + 3

    def expands(self, name: str) -> bool:
        return expands(self.lowering, self.extents[name])

    def each(self, extent: int, cost: _Cost) -> int:
        step, looped = stepped(extent, extent if self.expanded else self.unroll)
        in_loop = LOOP_OPERATIONS + step * (1 + cost(True)) if looped else 0
        return in_loop + (extent - looped) * cost(False)
