"""Operations as tile programs: rows lie in the lanes of a vector, and reductions extract element r in turn r.

Those of the Tile→XIR report (§2: RMSNorm, LayerNorm, masked softmax, SwiGLU), and a few more in which a step reads a
tile computed before: a prefix sum, a dot product with a normalised row, sums in a set order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tileguard.features.kernels import ReductionKernel

from .operation import EPSILON, Operation, Vocabulary
from .programs import EACH, Carried, Fold, Index, Let, Load, Loop, Map, Program, Read, Statement, Store, View

NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True, slots=True)
class ProgramOp(Operation):
    """An operation as a tile program. write(rnumel): its statements on the views tile operands, row operands, outputs,
    in that order. whole: outputs have the tile's shape."""

    write: Callable[[int], tuple[Statement, ...]]
    whole: bool = True

    @property
    def num_reduction(self) -> int:
        return max(1, sum(isinstance(statement, Fold | Loop) for statement in self.write(1)))

    @property
    def stores_tile(self) -> bool:
        return self.whole

    def program(self, kernel: ReductionKernel) -> Program:
        """The program of a kernel, on buffers that lie apart."""
        rows, length = kernel.xnumel, kernel.rnumel
        pitch, stride = (length, 1) if kernel.inner else (1, rows)
        last = len(self.tile_inputs) - 1
        tiles = [View(length, pitch, stride, flags=self.mask and i == last) for i in range(last + 1)]
        shared = [View(length, 0) for _ in self.row_inputs]
        output = View(length, pitch, stride) if self.whole else View(1, 1)
        views = (*tiles, *shared, *(output for _ in self.outputs))
        return Program(rows, kernel.dtype, views, self.write(length), apart=True)


def _add(e: Vocabulary, a: Any, b: Any) -> Any:
    return e.add(a, b)


def _max(e: Vocabulary, a: Any, b: Any) -> Any:
    return e.max(a, b)


def _first(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return elements[0]


def _scalar(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return scalars[0]


def _square(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.mul(elements[0], elements[0])


def _product(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.mul(elements[0], elements[1])


def _sum(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.add(elements[0], elements[1])


def _minus(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.sub(elements[0], scalars[0])


def _times(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.mul(elements[0], scalars[0])


def _exp_minus(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.exp(e.sub(elements[0], scalars[0]))


def _masked(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    value, mask = elements
    return e.where(e.equal(mask, e.const(mask, 0.0)), e.const(value, NEGATIVE_INFINITY), value)


def _finite(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    (top,) = scalars  # -inf where the mask leaves nothing; -inf - -inf would be NaN, so take 0
    return e.where(e.equal(top, e.const(top, NEGATIVE_INFINITY)), e.const(top, 0.0), top)


def _inverse_or_zero(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    (total,) = scalars
    zero = e.const(total, 0.0)
    return e.where(e.equal(total, zero), zero, e.div(e.const(total, 1.0), total))


def _affine(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    value, weight, *bias = elements
    scaled = e.mul(e.mul(value, scalars[0]), weight)
    return e.add(scaled, bias[0]) if bias else scaled


def _silu_times(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    gate, up = elements
    return e.mul(e.div(gate, e.add(e.const(gate, 1.0), e.exp(e.sub(e.const(gate, 0.0), gate)))), up)


def _mean(length: int) -> Callable[[Vocabulary, Sequence[Any], Sequence[Any]], Any]:
    return lambda e, elements, scalars: e.mul(scalars[0], e.const(scalars[0], 1.0 / length))


def _inverse_root(length: int) -> Callable[[Vocabulary, Sequence[Any], Sequence[Any]], Any]:
    def value(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
        mean = e.mul(scalars[0], e.const(scalars[0], 1.0 / length))
        return e.div(e.const(mean, 1.0), e.sqrt(e.add(mean, e.const(mean, EPSILON))))

    return value


def _rmsnorm(length: int) -> tuple[Statement, ...]:
    return (
        Load("x", 0),
        Fold("squares", length, (Read("x", EACH),), _square, _add),
        Let("scale", _inverse_root(length), ("squares",)),
        Load("weight", 1),
        Map("y", length, (Read("x"), Read("weight")), _affine, ("scale",)),
        Store(2, "y"),
    )


def _layernorm(length: int) -> tuple[Statement, ...]:
    return (
        Load("x", 0),
        Fold("total", length, (Read("x", EACH),), _first, _add),
        Let("mean", _mean(length), ("total",)),
        Map("centred", length, (Read("x"),), _minus, ("mean",)),
        Fold("squares", length, (Read("centred", EACH),), _square, _add),
        Let("scale", _inverse_root(length), ("squares",)),
        Load("weight", 1),
        Load("bias", 2),
        Map("y", length, (Read("centred"), Read("weight"), Read("bias")), _affine, ("scale",)),
        Store(3, "y"),
    )


def _masked_softmax(length: int) -> tuple[Statement, ...]:
    return (
        Load("x", 0),
        Load("mask", 1),
        Map("kept", length, (Read("x"), Read("mask")), _masked),
        Fold("largest", length, (Read("kept", EACH),), _first, _max, NEGATIVE_INFINITY),
        Let("top", _finite, ("largest",)),
        Map("powers", length, (Read("kept"),), _exp_minus, ("top",)),
        Fold("total", length, (Read("powers", EACH),), _first, _add),
        Let("scale", _inverse_or_zero, ("total",)),
        Map("y", length, (Read("powers"),), _times, ("scale",)),
        Store(2, "y"),
    )


def _swiglu(length: int) -> tuple[Statement, ...]:
    gated = Map("y", length, (Read("gate"), Read("up")), _silu_times)
    return (Load("gate", 0), Load("up", 1), gated, Store(2, "y"))


def _prefix(length: int) -> tuple[Statement, ...]:
    """In turn k every element adds the one 2^k before it, 0 where there is none (Hillis and Steele)."""
    moved = Read("sums", Index(element=1, power=-1))
    turns = (length - 1).bit_length()
    return (Load("x", 0), Loop(turns, (Carried("sums", "x", (Read("sums"), moved), _sum),)), Store(1, "sums"))


def _normdot(length: int) -> tuple[Statement, ...]:
    return (
        Load("x", 0),
        Fold("squares", length, (Read("x", EACH),), _square, _add),
        Let("scale", _inverse_root(length), ("squares",)),
        Map("normal", length, (Read("x"),), _times, ("scale",)),
        Load("weight", 1),
        Fold("dot", length, (Read("normal", EACH), Read("weight", EACH)), _product, _add),
        Map("result", 1, (), _scalar, ("dot",)),
        Store(2, "result"),
    )


def _ordered(*, right: bool) -> Callable[[int], tuple[Statement, ...]]:
    return lambda length: (
        Load("x", 0),
        Fold("total", length, (Read("x", EACH),), _first, _add, -0.0, right=right),
        Map("result", 1, (), _scalar, ("total",)),
        Store(1, "result"),
    )


_OPS = (
    ProgramOp("tile_rmsnorm", ("x",), _rmsnorm, row_inputs=("weight",)),
    ProgramOp("tile_layernorm", ("x",), _layernorm, row_inputs=("weight", "bias")),
    ProgramOp("tile_masked_softmax", ("x", "mask"), _masked_softmax, mask=True),
    ProgramOp("tile_swiglu", ("gate", "up"), _swiglu),
    ProgramOp("tile_prefix", ("x",), _prefix, sums_data=True),
    ProgramOp("tile_normdot", ("x",), _normdot, False, row_inputs=("weight",)),
    ProgramOp("tile_sum_left", ("x",), _ordered(right=False), False, sums_data=True),
    ProgramOp("tile_sum_right", ("x",), _ordered(right=True), False, sums_data=True),
)

PROGRAM_OPS: dict[str, ProgramOp] = {op.name: op for op in _OPS}
