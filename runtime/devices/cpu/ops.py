"""The operations that the CPU device generates, as data, and the kernels made of them.

An operation is a short list of passes over a tile, written in a tiny elementwise vocabulary. The same text is run
by two readers: emit.py turns it into LLVM IR, budgets.py counts its instructions. Needs nothing but Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import DTYPE_BYTES, ReductionKernel, canonical_dtype

from .operation import CPU_DTYPES, EPSILON, Operation, Vocabulary
from .program_ops import PROGRAM_OPS, ProgramOp

Load = Callable[[Vocabulary, Sequence[Any]], Any]
Define = Callable[[Vocabulary, Any, Sequence[Any]], Any]
Finish = Callable[[Vocabulary, Sequence[Any], int], Sequence[Any]]
Store = Callable[[Vocabulary, Any, Sequence[Any], Sequence[Any]], Any]


def _same(e: Vocabulary, value: Any) -> Any:
    return value


def _square(e: Vocabulary, value: Any) -> Any:
    return e.mul(value, value)


@dataclass(frozen=True, slots=True)
class Reduce:
    """One reduction of a pass: `kind` is add or max, over `value` of each tile element."""

    kind: str
    value: Callable[[Vocabulary, Any], Any] = _same

    @property
    def identity(self) -> float:
        return 0.0 if self.kind == "add" else float("-inf")


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the reduced axis.

    define(e, element, stats): the element that this pass and all later ones see; None keeps it.
    reduce: the reductions of the pass. finish(e, totals, rnumel): statistics from their totals.
    store(e, element, stats, rows): what goes to the output of the tile's shape; rows are the operands per r.
    `stats` are the statistics of all earlier passes, in order.
    """

    define: Define | None = None
    reduce: tuple[Reduce, ...] = ()
    finish: Finish | None = None
    store: Store | None = None


@dataclass(frozen=True, slots=True)
class Op(Operation):
    """An operation as passes over a tile, and how its elements are loaded. Outputs have the tile's shape where a pass
    stores, else they are the statistics, one number per x each."""

    load: Load
    passes: tuple[Pass, ...]

    @property
    def num_reduction(self) -> int:
        return max(1, sum(len(p.reduce) for p in self.passes))

    @property
    def stores_tile(self) -> bool:
        return any(p.store for p in self.passes)


def _only(e: Vocabulary, values: Sequence[Any]) -> Any:
    return values[0]


def _added(e: Vocabulary, values: Sequence[Any]) -> Any:
    return e.add(values[0], values[1])


def _masked(e: Vocabulary, values: Sequence[Any]) -> Any:
    return e.where(values[1], values[0], e.const(values[0], float("-inf")))


def _silu_times(e: Vocabulary, values: Sequence[Any]) -> Any:
    gate, up = values
    denominator = e.add(e.const(gate, 1.0), e.exp(e.sub(e.const(gate, 0.0), gate)))
    return e.mul(e.div(gate, denominator), up)


def _mean(e: Vocabulary, totals: Sequence[Any], rnumel: int) -> Sequence[Any]:
    return [e.mul(total, e.const(total, 1.0 / rnumel)) for total in totals]


def _inverse_root(e: Vocabulary, totals: Sequence[Any], rnumel: int) -> Sequence[Any]:
    (mean,) = _mean(e, totals, rnumel)
    return [e.div(e.const(mean, 1.0), e.sqrt(e.add(mean, e.const(mean, EPSILON))))]


def _inverse(e: Vocabulary, totals: Sequence[Any], rnumel: int) -> Sequence[Any]:
    return [e.div(e.const(totals[0], 1.0), totals[0])]


def _finite_max(e: Vocabulary, totals: Sequence[Any], rnumel: int) -> Sequence[Any]:
    (top,) = totals  # -inf where the mask leaves nothing; -inf - -inf would be NaN, so take 0
    return [e.where(e.equal(top, e.const(top, float("-inf"))), e.const(top, 0.0), top)]


def _inverse_or_zero(e: Vocabulary, totals: Sequence[Any], rnumel: int) -> Sequence[Any]:
    (total,) = totals
    zero = e.const(total, 0.0)
    return [e.where(e.equal(total, zero), zero, e.div(e.const(total, 1.0), total))]


def _minus_first(e: Vocabulary, value: Any, stats: Sequence[Any]) -> Any:
    return e.sub(value, stats[0])


def _exp_minus_first(e: Vocabulary, value: Any, stats: Sequence[Any]) -> Any:
    return e.exp(e.sub(value, stats[0]))


def _store_same(e: Vocabulary, value: Any, stats: Sequence[Any], rows: Sequence[Any]) -> Any:
    return value


def _store_scaled(e: Vocabulary, value: Any, stats: Sequence[Any], rows: Sequence[Any]) -> Any:
    return e.mul(value, stats[-1])


def _store_affine(e: Vocabulary, value: Any, stats: Sequence[Any], rows: Sequence[Any]) -> Any:
    scaled = e.mul(e.mul(value, stats[-1]), rows[0])
    return e.add(scaled, rows[1]) if len(rows) > 1 else scaled


_SUM = Pass(reduce=(Reduce("add"),))
# The variance takes a second walk with the mean known: E[x²] - E[x]² loses every digit where the mean is large.
_CENTRED_SQUARES = Pass(define=_minus_first, reduce=(Reduce("add", _square),), finish=_mean)
_OPS = (
    Op("sum", ("x",), _only, (_SUM,), sums_data=True),
    Op("max", ("x",), _only, (Pass(reduce=(Reduce("max"),)),)),
    # Population variance (divided by rnumel).
    Op("meanvar", ("x",), _only, (Pass(reduce=(Reduce("add"),), finish=_mean), _CENTRED_SQUARES), outputs=("mean", "var")),
    Op(
        "rmsnorm", ("x",), _only,
        (Pass(reduce=(Reduce("add", _square),), finish=_inverse_root), Pass(store=_store_affine)),
        row_inputs=("weight",),
    ),
    Op(
        "softmax", ("x",), _only,
        (
            Pass(reduce=(Reduce("max"),)),
            Pass(define=_exp_minus_first, reduce=(Reduce("add"),), finish=_inverse),
            Pass(store=_store_scaled),
        ),
    ),
    # A row whose mask leaves nothing gives zeros. (A plain softmax row of nothing but -inf is NaN, as in PyTorch.)
    Op(
        "masked_softmax", ("x", "mask"), _masked,
        (
            Pass(reduce=(Reduce("max"),), finish=_finite_max),
            Pass(define=_exp_minus_first, reduce=(Reduce("add"),), finish=_inverse_or_zero),
            Pass(store=_store_scaled),
        ),
        mask=True,
    ),
    Op(
        "layernorm", ("x",), _only,
        (
            Pass(reduce=(Reduce("add"),), finish=_mean),
            Pass(define=_minus_first, reduce=(Reduce("add", _square),), finish=_inverse_root),
            Pass(store=_store_affine),
        ),
        row_inputs=("weight", "bias"),
    ),
    Op("add_sum", ("a", "b"), _added, (_SUM,), sums_data=True),
    Op("swiglu", ("gate", "up"), _silu_times, (Pass(store=_store_same),)),
)  # fmt: skip

OPS: dict[str, Op] = {op.name: op for op in _OPS}


def find_op(name: object) -> Op | ProgramOp:
    """The operation called `name`, of either kind; raises InvalidInput naming the field op."""
    found = (OPS.get(name) or PROGRAM_OPS.get(name)) if isinstance(name, str) else None
    if found is None:
        raise InvalidInput("op", name, "one of " + ", ".join((*OPS, *PROGRAM_OPS)))
    return found


def cpu_kernel(op: str, xnumel: int, rnumel: int, dtype: str, *, inner: bool = True) -> ReductionKernel:
    """The kernel of an operation on [xnumel, rnumel] elements of `dtype`, with its counts and pointer sizes.

    `inner`: the reduced axis is the contiguous one. Outputs are stored in `dtype`, masks as bytes.
    Raises InvalidInput naming the field (op, dtype, xnumel, rnumel).
    """
    spec = find_op(op)
    name = canonical_dtype(dtype)
    if name not in CPU_DTYPES:
        raise InvalidInput("dtype", dtype, "one of " + ", ".join(CPU_DTYPES))
    sizes = [DTYPE_BYTES[name]] * (spec.num_load - spec.mask + len(spec.outputs)) + [1] * spec.mask
    return ReductionKernel(
        xnumel, rnumel, name, num_load=spec.num_load, num_reduction=spec.num_reduction, num_store=len(spec.outputs),
        min_ptr_elem_bytes=min(sizes), max_ptr_elem_bytes=max(sizes), total_ptr_elem_bytes=sum(sizes),
        inner=inner, op=op,
    )  # fmt: skip
