"""LLVM IR of one candidate: the walk over a kernel in tiles, around the passes of its operation.

Two functions come out. `kernel(inputs..., outputs...)` computes everything once: lanes of a vector lie on the
contiguous axis, the tile's other axis is unrolled beside it. `batch(inputs..., outputs..., n)` calls it n times, so
that timing a short kernel pays no Python per call.

Layout: element (x, r) lies at x·rnumel + r where the reduced axis is contiguous (`inner`), else at r·xnumel + x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

from .budgets import lanes, unroll
from .lowering import LOOP, SELECT, SNAPSHOT, lowering_of
from .ops import Op, Pass, find_op
from .program_emit import emit_program
from .program_ops import ProgramOp
from .vocabulary import I1, I8, I64, POINTER, ir
from .writer import Writer


def emit(kernel: ReductionKernel, tile: ReductionTile) -> str:
    """The IR of one candidate, as text. Raises CompileError for a lowering that is not legal for the kernel."""
    op, lowering = find_op(kernel.op), lowering_of(kernel, tile)
    module = ir.Module()
    if isinstance(op, ProgramOp):
        function = emit_program(module, op.program(kernel), lowering=lowering, width=tile.xblock, unroll=tile.r0_block)
    else:
        function = _Emitter(module, kernel, tile, op, lowering).function
    emit_batch(module, function)
    return str(module)


def emit_batch(module: Any, function: Any) -> None:
    """Write `batch`, which calls the function `kernel`."""
    pointers = len(function.args)
    batch = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * pointers + [I64]), "batch")
    # Without optimisation of the loop, and of the kernel into it, no call can be hoisted, merged or dropped.
    batch.attributes.add("noinline")
    batch.attributes.add("optnone")
    *arguments, count = batch.args
    entry, test, body, done = (batch.append_basic_block(name) for name in ("entry", "test", "body", "done"))
    builder = ir.IRBuilder(entry)
    left = builder.alloca(I64)
    builder.store(count, left)
    builder.branch(test)
    builder.position_at_end(test)
    now = builder.load(left)
    builder.cbranch(builder.icmp_signed(">", now, I64(0)), body, done)
    builder.position_at_end(body)
    builder.call(function, arguments)
    builder.store(builder.sub(now, I64(1)), left)
    builder.branch(test)
    builder.position_at_end(done)
    builder.ret_void()


class _Emitter(Writer):
    """Writes `kernel` for an operation of passes."""

    def __init__(self, module: Any, kernel: ReductionKernel, tile: ReductionTile, op: Op, lowering: str) -> None:
        super().__init__(module, kernel.dtype, op.num_load + len(op.outputs))
        self.kernel, self.tile, self.op = kernel, tile, op
        self.lowering = lowering if len(op.passes) > 1 else LOOP
        self.lanes, self.rows = lanes(kernel, tile), unroll(kernel, tile)
        self.vector = ir.VectorType(self.element_type, self.lanes)
        for argument in self.function.args:
            argument.add_attribute("noalias")  # true: the device's buffers lie apart, each used for one operand
        arguments = list(self.function.args)
        tiles = len(op.tile_inputs)
        self.tile_inputs, self.row_inputs = arguments[:tiles], arguments[tiles : op.num_load]
        self.outputs = arguments[op.num_load :]
        # Chunks of the reduced axis, the one left over included: what snapshots and selects index.
        self.chunks = -(-kernel.rnumel // tile.r0_block)
        self.snapshot: Any = None
        if self.lowering == SNAPSHOT:
            self.snapshot = self.local(ir.ArrayType(self.vector, self.chunks * self.rows))
        self.values: dict[
            tuple[int, int], Any
        ] = {}  # (chunk, row): elements as the last pass that defined them left them
        self.stats: list[list[Any]] = []  # stats[i][row]; one for all rows where the lanes are the x axis
        self.walk()

    def walk(self) -> None:
        """All tiles of x. A last tile that would pass the end is shifted back: it stores again what is there."""
        builder, last = self.builder, self.kernel.xnumel - self.tile.xblock
        with self.loop(self.kernel.xnumel, self.tile.xblock) as start:
            x = builder.select(builder.icmp_signed(">", start, I64(last)), I64(last), start)
            self.stats = []
            for index, step in enumerate(self.op.passes):
                self.walk_rows(index, step, x)
            if not self.op.stores_tile:
                self.store_stats(x)
        builder.ret_void()

    def walk_rows(self, index: int, step: Pass, x: Any) -> None:
        """One pass over the reduced axis: whole chunks in a loop, then what is left."""
        accumulators = [[self.local(self.vector) for _ in range(self.rows)] for _ in step.reduce]
        for reduce, row in zip(step.reduce, accumulators, strict=True):
            for slot in row:
                self.builder.store(self.e.splat(self.vector, reduce.identity), slot)
        rnumel, chunk = self.kernel.rnumel, self.tile.r0_block
        count = rnumel // chunk
        self.made: dict[tuple[int, int], Any] = {}
        if self.lowering == SELECT and self.defines(index):  # a definition is expanded, a use stays a loop
            for place in range(count):
                self.chunk(index, step, accumulators, x, I64(place * chunk), place, rows=self.rows, skip=0)
        else:
            with self.loop(count, 1) as place:
                r = self.builder.mul(place, I64(chunk))
                self.chunk(index, step, accumulators, x, r, place, rows=self.rows, skip=0)
        left = rnumel % chunk
        if left and self.kernel.inner:  # the last chunk is shifted back too, and lanes seen before do not count again
            start = I64(rnumel - chunk)
            self.chunk(index, step, accumulators, x, start, count, rows=self.rows, skip=chunk - left)
        elif left:
            self.chunk(index, step, accumulators, x, I64(count * chunk), count, rows=left, skip=0)
        self.values = self.made or self.values
        totals = [self.totals(reduce.kind, row) for reduce, row in zip(step.reduce, accumulators, strict=True)]
        for group in zip(*(self.finished(step, row) for row in zip(*totals, strict=True)), strict=True):
            self.stats.append(list(group))

    def chunk(
        self,
        index: int,
        step: Pass,
        accumulators: list[list[Any]],
        x: Any,
        r: Any,
        place: Any,
        *,
        rows: int,
        skip: int,
    ) -> None:
        """The rows of one tile, chunk number `place` of the axis; the first `skip` lanes are kept out of the
        reductions."""
        for row in range(rows):
            value = self.element(index, x, r, place, row)
            for reduce, slots in zip(step.reduce, accumulators, strict=True):
                part = reduce.value(self.e, value)
                if skip:
                    fresh = ir.Constant(ir.VectorType(I1, self.lanes), [lane >= skip for lane in range(self.lanes)])
                    part = self.e.where(fresh, part, self.e.const(part, reduce.identity))
                so_far = self.builder.load(slots[row], typ=self.vector)
                self.builder.store(self.e.combine(reduce.kind)(so_far, part), slots[row])
            if step.store:
                operands = [self.row_operand(pointer, r, row) for pointer in self.row_inputs]
                stored = step.store(self.e, value, self.stats_of(row), operands)
                self.store(stored, self.address(self.outputs[0], self.storage, x, r, row))

    def defines(self, index: int) -> bool:
        """Whether pass `index` makes elements that a later one reads."""
        step = self.op.passes[index]
        return (index == 0 or step.define is not None) and index < len(self.op.passes) - 1

    def element(self, index: int, x: Any, r: Any, place: Any, row: int) -> Any:
        """The element as pass `index` sees it: loaded and defined anew by every pass so far, or as the last pass that
        defined it left it and defined once more."""
        if index == 0 or self.lowering == LOOP:
            value = self.loaded(x, r, row)
            steps = self.op.passes[: index + 1]
        else:
            value = self.kept(place, row)
            steps = self.op.passes[index : index + 1]
        for step in steps:
            if step.define:
                value = step.define(self.e, value, self.stats_of(row))
        if self.lowering == SNAPSHOT and self.defines(index):
            self.builder.store(value, self.cell(place, row))
        elif self.lowering == SELECT and self.defines(index):
            self.made[place, row] = value
        return value

    def loaded(self, x: Any, r: Any, row: int) -> Any:
        operands = []
        for position, pointer in enumerate(self.tile_inputs):
            if self.op.mask and position == len(self.tile_inputs) - 1:
                flags = ir.VectorType(I8, self.lanes)
                mask = self.builder.load(self.address(pointer, I8, x, r, row), align=1, typ=flags)
                operands.append(self.builder.icmp_unsigned("!=", mask, ir.Constant(flags, None)))
            else:
                operands.append(self.load(self.address(pointer, self.storage, x, r, row), self.lanes))
        return self.op.load(self.e, operands)

    def kept(self, place: Any, row: int) -> Any:
        """An element that an earlier pass defined: from the snapshot, or chosen among the values by its chunk."""
        if self.lowering == SNAPSHOT:
            return self.builder.load(self.cell(place, row), typ=self.vector)
        if isinstance(place, int):
            return self.values[place, row]
        chosen = self.values[0, row]
        for number in range(1, self.kernel.rnumel // self.tile.r0_block):
            here = self.builder.icmp_signed("==", place, I64(number))
            chosen = self.builder.select(here, self.values[number, row], chosen)
        return chosen

    def cell(self, place: Any, row: int) -> Any:
        number = I64(place) if isinstance(place, int) else place
        cell = self.builder.add(self.builder.mul(number, I64(self.rows)), I64(row))
        return self.builder.gep(self.snapshot, [cell], source_etype=self.vector)

    def row_operand(self, pointer: Any, r: Any, row: int) -> Any:
        """Elements of an operand per r: a vector of them along the lanes, or one in all lanes."""
        if self.kernel.inner:
            return self.load(self.builder.gep(pointer, [r], source_etype=self.storage), self.lanes)
        place = self.builder.gep(pointer, [self.builder.add(r, I64(row))], source_etype=self.storage)
        return self.e.broadcast(self.load(place, 1), self.vector)

    def totals(self, kind: str, slots: list[Any]) -> list[Any]:
        """Of the accumulators of one reduction: a <1 x T> for each row, or one vector over the rows."""
        vectors = [self.builder.load(slot, typ=self.vector) for slot in slots]
        if self.kernel.inner:
            return [self.e.total(kind, vector) for vector in vectors]
        combined = vectors[0]
        for vector in vectors[1:]:
            combined = self.e.combine(kind)(combined, vector)
        return [combined]

    def finished(self, step: Pass, totals: Sequence[Any]) -> Sequence[Any]:
        return step.finish(self.e, totals, self.kernel.rnumel) if step.finish else totals

    def stats_of(self, row: int) -> list[Any]:
        """The statistics so far, in the lanes of a tile row."""
        if not self.kernel.inner:
            return [rows[0] for rows in self.stats]
        return [self.e.broadcast(rows[row], self.vector) for rows in self.stats]

    def store_stats(self, x: Any) -> None:
        for pointer, rows in zip(self.outputs, self.stats, strict=True):
            for row, value in enumerate(rows):
                place = self.builder.add(x, I64(row)) if self.kernel.inner else x
                self.store(value, self.builder.gep(pointer, [place], source_etype=self.storage))

    def address(self, pointer: Any, storage: Any, x: Any, r: Any, row: int) -> Any:
        """Of the first lane of a tile row."""
        b = self.builder
        if self.kernel.inner:
            offset = b.add(b.mul(b.add(x, I64(row)), I64(self.kernel.rnumel)), r)
        else:
            offset = b.add(b.mul(b.add(r, I64(row)), I64(self.kernel.xnumel)), x)
        return b.gep(pointer, [offset], source_etype=storage)
