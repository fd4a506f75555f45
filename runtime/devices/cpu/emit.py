"""LLVM IR of one candidate: the walk over a kernel in tiles, around the passes of its operation.

Two functions come out. `kernel(inputs..., outputs...)` computes everything once: lanes of a vector lie on the
contiguous axis, the tile's other axis is unrolled beside it. `batch(inputs..., outputs..., n)` calls it n times, so
that timing a short kernel pays no Python per call.

Layout: element (x, r) lies at x·rnumel + r where the reduced axis is contiguous (`inner`), else at r·xnumel + x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tileguard.features.kernels import DTYPE_BYTES, ReductionKernel
from tileguard.features.tiles import ReductionTile

from ..base import CompileError
from .budgets import lanes, unroll
from .ops import Op, Pass, find_op
from .vocabulary import F32, F64, I1, I8, I32, I64, POINTER, STORAGE, LlvmVocabulary, ir


def emit(kernel: ReductionKernel, tile: ReductionTile) -> str:
    """The IR of one candidate, as text. Raises CompileError for a lowering that is not generated."""
    if tile.lowering not in (None, "loop"):
        raise CompileError(f"tile {tile}: lowering {tile.lowering} is not generated, only loop")
    module = ir.Module()
    function = _Emitter(module, kernel, tile, find_op(kernel.op)).function
    _emit_batch(module, function)
    return str(module)


def _emit_batch(module: Any, function: Any) -> None:
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


class _Emitter:
    """Writes `kernel`. Local variables are stack slots; LLVM turns those it can into registers."""

    def __init__(self, module: Any, kernel: ReductionKernel, tile: ReductionTile, op: Op) -> None:
        self.kernel, self.tile, self.op = kernel, tile, op
        self.lanes, self.rows = lanes(kernel, tile), unroll(kernel, tile)
        self.storage = STORAGE[kernel.dtype]
        self.element_type = F64 if kernel.dtype == "fp64" else F32
        self.vector = ir.VectorType(self.element_type, self.lanes)
        count = op.num_load + len(op.outputs)
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * count), "kernel")
        self.function.attributes.add("noinline")
        for argument in self.function.args:
            argument.add_attribute("noalias")  # true: the device's buffers lie apart, each used for one operand
        arguments = list(self.function.args)
        tiles = len(op.tile_inputs)
        self.tile_inputs, self.row_inputs = arguments[:tiles], arguments[tiles : op.num_load]
        self.outputs = arguments[op.num_load :]
        self.entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.entry)
        self.e = LlvmVocabulary(self.builder, module)
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
        whole = rnumel // chunk * chunk
        with self.loop(whole, chunk) as r:
            self.chunk(index, step, accumulators, x, r, rows=self.rows, skip=0)
        left = rnumel - whole
        if left and self.kernel.inner:  # the last chunk is shifted back too, and lanes seen before do not count again
            start = I64(rnumel - chunk)
            self.chunk(index, step, accumulators, x, start, rows=self.rows, skip=chunk - left)
        elif left:
            self.chunk(index, step, accumulators, x, I64(whole), rows=left, skip=0)
        totals = [self.totals(reduce.kind, row) for reduce, row in zip(step.reduce, accumulators, strict=True)]
        for group in zip(*(self.finished(step, row) for row in zip(*totals, strict=True)), strict=True):
            self.stats.append(list(group))

    def chunk(
        self, index: int, step: Pass, accumulators: list[list[Any]], x: Any, r: Any, *, rows: int, skip: int
    ) -> None:
        """The rows of one tile; the first `skip` lanes are kept out of the reductions."""
        for row in range(rows):
            value = self.element(index, x, r, row)
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

    def element(self, index: int, x: Any, r: Any, row: int) -> Any:
        """The element as pass `index` sees it: loaded, then defined anew by every pass so far (lowering `loop`)."""
        loaded = []
        for position, pointer in enumerate(self.tile_inputs):
            if self.op.mask and position == len(self.tile_inputs) - 1:
                flags = ir.VectorType(I8, self.lanes)
                mask = self.builder.load(self.address(pointer, I8, x, r, row), align=1, typ=flags)
                loaded.append(self.builder.icmp_unsigned("!=", mask, ir.Constant(flags, None)))
            else:
                loaded.append(self.load(self.address(pointer, self.storage, x, r, row), self.lanes))
        value = self.op.load(self.e, loaded)
        for step in self.op.passes[: index + 1]:
            if step.define:
                value = step.define(self.e, value, self.stats_of(row))
        return value

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

    def load(self, place: Any, count: int) -> Any:
        b, wide = self.builder, ir.VectorType(self.element_type, count)
        value = b.load(place, align=DTYPE_BYTES[self.kernel.dtype], typ=ir.VectorType(self.storage, count))
        if self.kernel.dtype == "fp16":
            return b.fpext(value, wide)
        if self.kernel.dtype == "bf16":  # the upper half of an fp32
            bits = ir.VectorType(I32, count)
            return b.bitcast(b.shl(b.zext(value, bits), self.e.splat(bits, 16)), wide)
        return value

    def store(self, value: Any, place: Any) -> None:
        b, narrow = self.builder, ir.VectorType(self.storage, value.type.count)
        if self.kernel.dtype == "fp16":
            value = b.fptrunc(value, narrow)
        elif self.kernel.dtype == "bf16":  # round to nearest, ties to even
            bits = ir.VectorType(I32, value.type.count)
            number, half = b.bitcast(value, bits), self.e.splat(bits, 16)
            odd = b.and_(b.lshr(number, half), self.e.splat(bits, 1))
            rounded = b.add(number, b.add(odd, self.e.splat(bits, 0x7FFF)))
            value = b.trunc(b.lshr(rounded, half), narrow)
        b.store(value, place, align=DTYPE_BYTES[self.kernel.dtype])

    def local(self, slot_type: Any) -> Any:
        """A stack slot, in the entry block whatever the loop it is asked for in."""
        with self.builder.goto_block(self.entry):
            slot = self.builder.alloca(slot_type)
        slot.type = POINTER
        return slot

    @contextmanager
    def loop(self, end: int, step: int) -> Iterator[Any]:
        """Runs the body for 0, step, 2·step, … below `end`."""
        b, counter = self.builder, self.local(I64)
        test, body, done = (self.function.append_basic_block(name) for name in ("test", "body", "done"))
        b.store(I64(0), counter)
        b.branch(test)
        b.position_at_end(test)
        now = b.load(counter, typ=I64)
        b.cbranch(b.icmp_signed("<", now, I64(end)), body, done)
        b.position_at_end(body)
        yield now
        b.store(b.add(now, I64(step)), counter)
        b.branch(test)
        b.position_at_end(done)
