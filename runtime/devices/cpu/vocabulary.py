"""The vocabulary of operation.py as LLVM instructions, and the LLVM types of the device. Needs llvmlite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tileguard.runtime.optional import require

ir: Any = require("llvmlite.ir")

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64, POINTER = ir.FloatType(), ir.DoubleType(), ir.PointerType()
STORAGE = {"fp32": F32, "fp64": F64, "fp16": ir.HalfType(), "bf16": I16}

# What a reduction may do to its sums. Not nnan or ninf: masks put -inf into the arithmetic on purpose.
FAST = ("reassoc", "contract", "nsz", "arcp", "afn")

# e^r on |r| <= ln2/2, lowest degree first: least relative error by iterated weighted least squares, 1.9e-9.
# With n·ln2 subtracted in two parts (the first has 9 significant bits, so n times it is exact) the result is
# within one unit in the last place over the whole range.
EXP_POLYNOMIAL = (
    1.0, 1.0, 0.49999991059303284, 0.16666419804096222, 0.041668228805065155, 0.008374856784939766,
    0.0013836792204529047,
)  # fmt: skip
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
# Results below the smallest normal number become 0; from 2^127.5 on they are infinite (half an octave early),
# since 2^n is made by writing its exponent bits.
EXP_LOWEST, EXP_HIGHEST = -87.3365, 89.0


class _Splat(ir.Constant):  # type: ignore[misc]  # llvmlite has no types
    """`splat (float c)`: one number in all lanes. Printed lane by lane, wide tiles have megabytes of IR."""

    def __init__(self, vector: Any, value: float) -> None:
        super().__init__(vector, None)
        self.value = value

    def _get_reference(self) -> str:
        return f"splat ({ir.Constant(self.type.element, self.value)})"


class LlvmVocabulary:
    """The vocabulary of operation.py as LLVM instructions on <n x T>. flags: what arithmetic may do; none: every
    operation is rounded by itself, in the order written."""

    def __init__(self, builder: Any, module: Any, flags: Sequence[str] = FAST) -> None:
        self.builder = builder
        self.module = module
        self.flags = tuple(flags)

    def splat(self, vector: Any, value: float) -> Any:
        return _Splat(vector, value)

    def const(self, like: Any, value: float) -> Any:
        return self.splat(like.type, value)

    def add(self, a: Any, b: Any) -> Any:
        return self.builder.fadd(a, b, flags=self.flags)

    def sub(self, a: Any, b: Any) -> Any:
        return self.builder.fsub(a, b, flags=self.flags)

    def mul(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b, flags=self.flags)

    def div(self, a: Any, b: Any) -> Any:
        return self.builder.fdiv(a, b, flags=self.flags)

    def sqrt(self, a: Any) -> Any:
        return self.intrinsic("sqrt", [a], a.type)

    def max(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def equal(self, a: Any, b: Any) -> Any:
        return self.builder.fcmp_ordered("==", a, b)

    def where(self, mask: Any, a: Any, b: Any) -> Any:
        return self.builder.select(mask, a, b)

    def exp(self, a: Any) -> Any:
        if a.type.element == F64:
            return self.intrinsic("exp", [a], a.type)  # libm, one lane at a time
        b, bits = self.builder, ir.VectorType(I32, a.type.count)
        low, high = self.const(a, EXP_LOWEST), self.const(a, EXP_HIGHEST)
        clamped = b.select(b.fcmp_ordered("<", a, high), self.max(a, low), high)
        n = self.intrinsic("rint", [b.fmul(clamped, self.const(a, 1.4426950408889634))], a.type)
        # contract only: reassociation would undo the subtraction in two parts.
        flags = ("contract",)
        r = b.fsub(clamped, b.fmul(n, self.const(a, LN2_HIGH), flags=flags), flags=flags)
        r = b.fsub(r, b.fmul(n, self.const(a, LN2_LOW), flags=flags), flags=flags)
        power = self.const(a, EXP_POLYNOMIAL[-1])
        for coefficient in reversed(EXP_POLYNOMIAL[:-1]):
            power = b.fadd(b.fmul(power, r, flags=flags), self.const(a, coefficient), flags=flags)
        exponent = b.shl(b.add(b.fptosi(n, bits), self.splat(bits, 127)), self.splat(bits, 23))
        scaled = b.fmul(power, b.bitcast(exponent, a.type))
        return b.select(b.fcmp_ordered("<", a, low), self.const(a, 0.0), scaled)

    def total(self, kind: str, vector: Any) -> Any:
        """The sum or maximum of all lanes, as <1 x T>."""
        element = vector.type.element
        start = [ir.Constant(element, -0.0)] if kind == "add" else []
        scalar = self.intrinsic(f"vector.reduce.f{kind}", [*start, vector], element)
        single = ir.VectorType(element, 1)
        return self.builder.insert_element(ir.Constant(single, ir.Undefined), scalar, I32(0))

    def broadcast(self, single: Any, vector: Any) -> Any:
        """A <1 x T> in every lane of the type `vector`."""
        zeros = ir.Constant(ir.VectorType(I32, vector.count), None)
        return self.builder.shuffle_vector(single, ir.Constant(single.type, ir.Undefined), zeros)

    def combine(self, kind: str) -> Callable[[Any, Any], Any]:
        return self.add if kind == "add" else self.max

    def intrinsic(self, name: str, arguments: Sequence[Any], result: Any) -> Any:
        vector = arguments[-1].type
        full = f"llvm.{name}.v{vector.count}{'f64' if vector.element == F64 else 'f32'}"
        function = self.module.globals.get(full)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [a.type for a in arguments]), full)
        return self.builder.call(function, arguments, fastmath=self.flags)
