"""What both emitters write with: an LLVM function, its stack slots and loops, numbers in memory. Needs llvmlite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tileguard.features.kernels import DTYPE_BYTES

from .vocabulary import F32, F64, FAST, I32, I64, POINTER, STORAGE, LlvmVocabulary, ir


class Writer:
    """Writes the function `kernel` of `parameters` pointers to numbers of `dtype`. Local variables are stack slots;
    LLVM turns those it can into registers. flags: what arithmetic may do (vocabulary.py)."""

    def __init__(self, module: Any, dtype: str, parameters: int, *, flags: Sequence[str] = FAST) -> None:
        self.dtype, self.storage = dtype, STORAGE[dtype]
        self.element_type = F64 if dtype == "fp64" else F32
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * parameters), "kernel")
        self.function.attributes.add("noinline")
        self.entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.entry)
        self.e = LlvmVocabulary(self.builder, module, flags)

    def align(self, flags: bool = False) -> int:
        """Bytes that an element of memory is aligned to."""
        return 1 if flags else DTYPE_BYTES[self.dtype]

    def load(self, place: Any, count: int) -> Any:
        """`count` neighbours in memory, in the type they are computed in."""
        return self.widened(self.builder.load(place, align=self.align(), typ=ir.VectorType(self.storage, count)))

    def widened(self, value: Any) -> Any:
        """A vector in storage type, in the type it is computed in."""
        b, wide = self.builder, ir.VectorType(self.element_type, value.type.count)
        if self.dtype == "fp16":
            return b.fpext(value, wide)
        if self.dtype == "bf16":  # the upper half of an fp32
            bits = ir.VectorType(I32, value.type.count)
            return b.bitcast(b.shl(b.zext(value, bits), self.e.splat(bits, 16)), wide)
        return value

    def store(self, value: Any, place: Any) -> None:
        """Numbers computed, rounded to storage, to neighbours in memory."""
        self.builder.store(self.narrowed(value), place, align=self.align())

    def narrowed(self, value: Any) -> Any:
        """A vector in the type it is computed in, rounded to storage type."""
        b, narrow = self.builder, ir.VectorType(self.storage, value.type.count)
        if self.dtype == "fp16":
            return b.fptrunc(value, narrow)
        if self.dtype == "bf16":  # round to nearest, ties to even
            bits = ir.VectorType(I32, value.type.count)
            number, half = b.bitcast(value, bits), self.e.splat(bits, 16)
            odd = b.and_(b.lshr(number, half), self.e.splat(bits, 1))
            rounded = b.add(number, b.add(odd, self.e.splat(bits, 0x7FFF)))
            return b.trunc(b.lshr(rounded, half), narrow)
        return value

    def local(self, slot_type: Any) -> Any:
        """A stack slot, in the entry block whatever the loop it is asked for in."""
        with self.builder.goto_block(self.entry):
            slot = self.builder.alloca(slot_type)
        slot.type = POINTER
        return slot

    @contextmanager
    def loop(self, end: int, step: int, start: int = 0) -> Iterator[Any]:
        """Runs the body for start, start + step, … below `end`."""
        b, counter = self.builder, self.local(I64)
        test, body, done = (self.function.append_basic_block(name) for name in ("test", "body", "done"))
        b.store(I64(start), counter)
        b.branch(test)
        b.position_at_end(test)
        now = b.load(counter, typ=I64)
        b.cbranch(b.icmp_signed("<", now, I64(end)), body, done)
        b.position_at_end(body)
        yield now
        b.store(b.add(now, I64(step)), counter)
        b.branch(test)
        b.position_at_end(done)
