"""LLVM IR of a tile program under a lowering: rows in lanes, tiles as values, local arrays or recipes.

Rows are taken `width` at a time, and what is left over one at a time, by the same statements one lane wide. A loop
over the elements of a tile makes `unroll` of them a turn: the bound on what is expanded, whatever the tile's extent.
No parameter is said to be apart from another; what may overlap was settled when the program was written (exposed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..base import CompileError
from .lowering import expanded, expands, illegal, kept, stepped
from .programs import Carried, Fold, Index, Let, Load, Loop, Map, Program, Read, Store, View
from .vocabulary import I8, I32, I64, ir
from .writer import Writer

Place = Any
"""An index: an int where it is known, else an i64."""


def emit_program(module: Any, program: Program, *, lowering: str, width: int, unroll: int) -> Any:
    """Write the function `kernel` of a program into `module` and return it. Raises CompileError where the lowering is
    not legal for it."""
    if why := illegal(program, lowering):
        raise CompileError(f"lowering {lowering} is not legal: {why}")
    writer = Writer(module, program.dtype, len(program.views), flags=())
    whole = program.rows // width * width
    if whole:
        with writer.loop(whole, width) as row:
            _Rows(writer, program, lowering, width, unroll).run(row)
    if program.rows > whole:
        with writer.loop(program.rows, 1, start=whole) as row:
            _Rows(writer, program, lowering, 1, unroll).run(row)
    writer.builder.ret_void()
    return writer.function


@dataclass(frozen=True)
class _Values:
    """Every element an SSA value."""

    values: Sequence[Any]

    @property
    def extent(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class _Array:
    """Elements in a local array from element `base` on; how many and where is fixed."""

    pointer: Any
    extent: int
    base: Place = 0


@dataclass(frozen=True)
class _Recipe:
    """Elements made where they are read."""

    make: Callable[[Place], Any]
    extent: int


_Tile = _Values | _Array | _Recipe


@dataclass
class _Rows:
    """The statements for `width` rows from `row` on."""

    writer: Writer
    program: Program
    lowering: str
    width: int
    unroll: int
    tiles: dict[str, _Tile] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.b, self.e = self.writer.builder, self.writer.e
        self.vector = ir.VectorType(self.writer.element_type, self.width)
        self.kept = kept(self.program, self.lowering)
        self.expanded = expanded(self.program, self.lowering)
        self.row: Any = None
        self.begins: list[list[Any]] = []

    def run(self, row: Any) -> None:
        self.row = row
        self.begins = [self.begin(number) for number in range(len(self.program.views))]
        for statement in self.program.body:
            if isinstance(statement, Load):
                self.define_load(statement)
            elif isinstance(statement, Map):
                self.define_map(statement)
            elif isinstance(statement, Let):
                elements = [self.read(read, 0, 0, (1, 1)) for read in statement.reads]
                self.scalars[statement.name] = statement.value(self.e, elements, self.named(statement.scalars))
            elif isinstance(statement, Fold):
                self.scalars[statement.name] = self.fold(statement)
            elif isinstance(statement, Loop):
                self.carry(statement)
            else:
                self.store(statement)

    def named(self, scalars: Sequence[str]) -> list[Any]:
        return [self.scalars[name] for name in scalars]

    def constant(self, value: float) -> Any:
        return self.e.splat(self.vector, value)

    # Definitions

    def define_load(self, load: Load) -> None:
        self.define(load.name, _Recipe(partial(self.load, load.view), self.program.views[load.view].extent))

    def define_map(self, step: Map) -> None:
        def make(i: Place) -> Any:
            elements = [self.read(read, i, 0, (step.extent, 1)) for read in step.reads]
            return step.value(self.e, elements, self.named(step.scalars))

        self.define(step.name, _Recipe(make, step.extent))

    def define(self, name: str, recipe: _Recipe) -> None:
        """Keep a tile where the lowering does, as it is at this point."""
        if name not in self.kept:
            self.tiles[name] = recipe
        elif expands(self.lowering, recipe.extent):
            self.tiles[name] = _Values([recipe.make(i) for i in range(recipe.extent)])
        else:
            self.tiles[name] = array = _Array(self.array(recipe.extent), recipe.extent)
            self.fill(array, recipe.make)

    def for_each(self, extent: int, body: Callable[[Place], None]) -> None:
        """`body` for every element: `step` a turn, then those left over."""
        step, looped = stepped(extent, extent if self.expanded else self.unroll)
        if looped:
            with self.writer.loop(looped, step) as start:
                for k in range(step):
                    body(self.b.add(start, I64(k)))
        for i in range(looped, extent):
            body(i)

    # Loops

    def fold(self, fold: Fold) -> Any:
        accumulator = self.writer.local(self.vector)
        self.b.store(self.constant(fold.start), accumulator)
        with self.turns(fold.count) as turn:
            r = self.b.sub(I64(fold.count - 1), turn) if fold.right else turn
            elements = [self.read(read, 0, r, (1, fold.count)) for read in fold.reads]
            value = fold.value(self.e, elements, self.named(fold.scalars))
            so_far = self.b.load(accumulator, typ=self.vector)
            pair = (value, so_far) if fold.right else (so_far, value)
            self.b.store(fold.combine(self.e, *pair), accumulator)
        return self.b.load(accumulator, typ=self.vector)

    def carry(self, loop: Loop) -> None:
        """All carried tiles change together: a turn makes every new element from the old ones, then they take their
        place. An array has two halves: each turn reads the one and writes the other."""
        starts = {one.name: self.tiles[one.start] for one in loop.carried}
        slots: dict[str, list[Any]] = {}
        arrays: dict[str, Any] = {}
        for name, tile in starts.items():
            if expands(self.lowering, tile.extent):
                slots[name] = [self.writer.local(self.vector) for _ in range(tile.extent)]
                for i, slot in enumerate(slots[name]):
                    self.b.store(self.at(tile, i), slot)
            else:
                arrays[name] = self.array(2 * tile.extent)
                self.fill(_Array(arrays[name], tile.extent), partial(self.at, tile))
        with self.turns(loop.count) as turn:
            odd = self.b.and_(turn, I64(1))
            old = {name: self.b.mul(odd, I64(starts[name].extent)) for name in arrays}
            for name, pointer in arrays.items():
                self.tiles[name] = _Array(pointer, starts[name].extent, old[name])
            self.see(slots)
            made: list[tuple[Any, Any]] = []
            for one in loop.carried:
                extent = starts[one.name].extent
                make = partial(self.next_element, one, r=turn, counts=(extent, loop.count))
                if one.name in slots:
                    made += [(slot, make(i)) for i, slot in enumerate(slots[one.name])]
                else:
                    new = self.b.sub(I64(extent), old[one.name])
                    self.fill(_Array(arrays[one.name], extent, new), make)
            for slot, value in made:
                self.b.store(value, slot)
        for name, pointer in arrays.items():
            extent = starts[name].extent
            self.tiles[name] = _Array(pointer, extent, loop.count % 2 * extent)
        self.see(slots)

    def see(self, slots: Mapping[str, Sequence[Any]]) -> None:
        """Carried tiles are now the values in these slots."""
        for name, places in slots.items():
            self.tiles[name] = _Values([self.b.load(place, typ=self.vector) for place in places])

    def fill(self, array: _Array, make: Callable[[Place], Any]) -> None:
        self.for_each(array.extent, lambda i: self.b.store(make(i), self.slot(array, i)))

    def next_element(self, one: Carried, i: Place, *, r: Any, counts: tuple[int, int]) -> Any:
        elements = [self.read(read, i, r, counts) for read in one.reads]
        return one.value(self.e, elements, self.named(one.scalars))

    @contextmanager
    def turns(self, count: int) -> Iterator[Any]:
        with self.writer.loop(count, 1) as turn:
            yield turn

    # Elements

    def read(self, read: Read, i: Place, r: Place, counts: tuple[int, int]) -> Any:
        """The element of a read; counts: how many i and r there are. Zero outside of the tile."""
        tile = self.tiles[read.tile]
        low, high = read.index.span(*(max(1, count) for count in counts))
        return self.at(tile, self.place(read.index, i, r), inside=low >= 0 and high < tile.extent)

    def place(self, index: Index, i: Place, r: Place) -> Place:
        total: Place = index.offset
        power = self.b.shl(I64(1), r) if index.power and not isinstance(r, int) else 1 << r if index.power else 0
        for factor, value in ((index.element, i), (index.turn, r), (index.power, power)):
            if not factor or (isinstance(value, int) and value == 0):
                continue
            if isinstance(value, int) and isinstance(total, int):
                total += factor * value
            else:
                term = self.as_i64(value)
                term = term if factor == 1 else self.b.mul(term, I64(factor))
                total = term if isinstance(total, int) and total == 0 else self.b.add(self.as_i64(total), term)
        return total

    @staticmethod
    def as_i64(value: Place) -> Any:
        return I64(value) if isinstance(value, int) else value

    def at(self, tile: _Tile, i: Place, *, inside: bool = True) -> Any:
        """Element i; `inside`: known to be within the tile."""
        if isinstance(i, int):
            return self.element(tile, i) if 0 <= i < tile.extent else self.constant(0.0)
        if not tile.extent:
            return self.constant(0.0)
        if isinstance(tile, _Values):
            return self.chosen(tile.values, i, inside=inside)
        if inside:
            return self.element(tile, i)
        within = self.b.icmp_unsigned("<", i, I64(tile.extent))
        value = self.element(tile, self.b.select(within, i, I64(0)))
        return self.b.select(within, value, self.constant(0.0))

    def element(self, tile: _Tile, i: Place) -> Any:
        if isinstance(tile, _Values):
            return tile.values[i]
        if isinstance(tile, _Recipe):
            return tile.make(i)
        return self.b.load(self.slot(tile, i), typ=self.vector)

    def chosen(self, values: Sequence[Any], i: Any, *, inside: bool) -> Any:
        """The value at a dynamic index: one comparison and one selection for each there is."""
        numbers = ir.VectorType(I32, self.width)
        single = ir.Constant(ir.VectorType(I32, 1), ir.Undefined)
        index = self.e.broadcast(self.b.insert_element(single, self.b.trunc(i, I32), I32(0)), numbers)
        chosen = values[0] if inside else self.constant(0.0)
        for k in range(int(inside), len(values)):
            here = self.b.icmp_signed("==", index, self.e.splat(numbers, k))
            chosen = self.b.select(here, values[k], chosen)
        return chosen

    # Memory

    def array(self, extent: int) -> Any:
        return self.writer.local(ir.ArrayType(self.vector, extent))

    def slot(self, array: _Array, i: Place) -> Any:
        place = i if isinstance(array.base, int) and array.base == 0 else self.sum(array.base, i)
        return self.b.gep(array.pointer, [self.as_i64(place)], source_etype=self.vector)

    def sum(self, a: Place, b: Place) -> Place:
        return a + b if isinstance(a, int) and isinstance(b, int) else self.b.add(self.as_i64(a), self.as_i64(b))

    def store(self, store: Store) -> None:
        view, tile = self.program.views[store.view], self.tiles[store.tile]

        def put(i: Place) -> None:
            value = self.writer.narrowed(self.at(tile, i))
            if self.together(view):
                self.b.store(value, self.address(store.view, i), align=self.writer.align())
                return
            for lane in range(self.width):
                one = self.b.extract_element(value, I32(lane))
                self.b.store(one, self.address(store.view, i, lane), align=self.writer.align())

        self.for_each(view.extent, put)

    def load(self, number: int, i: Place) -> Any:
        """Element i of a view for every row, in the lanes."""
        view, b = self.program.views[number], self.b
        storage, align = self.kind(view), self.writer.align(view.flags)
        if self.together(view) or not view.pitch:
            count = self.width if view.pitch else 1
            raw = b.load(self.address(number, i), align=align, typ=ir.VectorType(storage, count))
        else:
            raw = ir.Constant(ir.VectorType(storage, self.width), ir.Undefined)
            for lane in range(self.width):
                one = b.load(self.address(number, i, lane), align=align, typ=storage)
                raw = b.insert_element(raw, one, I32(lane))
        value = self.flagged(raw) if view.flags else self.writer.widened(raw)
        return value if value.type.count == self.width else self.e.broadcast(value, self.vector)

    def flagged(self, raw: Any) -> Any:
        kind = ir.VectorType(self.writer.element_type, raw.type.count)
        counts = self.b.icmp_unsigned("!=", raw, ir.Constant(raw.type, None))
        return self.b.select(counts, self.e.splat(kind, 1.0), self.e.splat(kind, 0.0))

    def together(self, view: View) -> bool:
        """Whether the rows of a vector lie side by side."""
        return view.pitch == 1 or self.width == 1

    def kind(self, view: View) -> Any:
        return I8 if view.flags else self.writer.storage

    def begin(self, number: int) -> list[Any]:
        """Where each row of a view begins; only the first where they lie side by side, or are one."""
        view, b = self.program.views[number], self.b
        lanes = 1 if self.together(view) or not view.pitch else self.width
        places = [b.mul(b.add(self.row, I64(lane)), I64(view.pitch)) for lane in range(lanes)]
        pointer = self.writer.function.args[number]
        return [b.gep(pointer, [b.add(place, I64(view.offset))], source_etype=self.kind(view)) for place in places]

    def address(self, number: int, i: Place, lane: int = 0) -> Any:
        view = self.program.views[number]
        moved = I64(i * view.stride) if isinstance(i, int) else self.b.mul(i, I64(view.stride))
        return self.b.gep(self.begins[number][lane], [moved], source_etype=self.kind(view))
