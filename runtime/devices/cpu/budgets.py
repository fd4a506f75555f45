"""Static limits of the CPU device, checked before LLVM sees a tile, and the lattice of tiles within them.

LLVM aborts the process on vectors far too wide and spends minutes on code unrolled too far; both are foreseen here
by counting what emit.py would write. Needs nothing but Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tileguard.features.errors import InvalidInput, checked_int
from tileguard.features.kernels import DTYPE_BYTES, ReductionKernel
from tileguard.features.tiles import ReductionTile

from ..base import CompileError, OutOfResource
from .ops import CPU_DTYPES, Op, Pass, find_op

SWEEP_ELEMENTS = 4096
"""Most elements of a tile in cpu_tiles: their fp32 accumulators are 16 KiB, half an L1 cache, long past registers."""

SWEEP_UNROLL = 64
"""Most unrolled rows of a tile in cpu_tiles; more has only ever cost compile time."""


UNLIMITED = 1 << 200
"""A budget that no kernel exceeds."""


@dataclass(frozen=True, slots=True)
class CpuBudgets:
    """Hard limits of one candidate.

    lanes: elements of one vector value. accumulator_bytes: of all accumulators of one pass. instructions: machine
    instructions as estimated by `instructions()`. workspace_bytes: of the kernel's own buffers;
    checking a result in double precision takes up to fifteen times as much memory for a moment.
    """

    lanes: int = 8192
    accumulator_bytes: int = 64 * 1024
    instructions: int = 32768
    workspace_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        for field in ("lanes", "accumulator_bytes", "instructions", "workspace_bytes"):
            checked_int(field, getattr(self, field), minimum=1)


def lanes(kernel: ReductionKernel, tile: ReductionTile) -> int:
    """Elements of a vector: the tile's extent on the contiguous axis."""
    return tile.r0_block if kernel.inner else tile.xblock


def unroll(kernel: ReductionKernel, tile: ReductionTile) -> int:
    """Vectors side by side: the tile's extent on the other axis."""
    return tile.xblock if kernel.inner else tile.r0_block


def compute_bytes(dtype: str) -> int:
    """Bytes of an element while it is computed with: fp16 and bf16 are widened to fp32."""
    return max(4, DTYPE_BYTES[dtype])


def supported_op(kernel: ReductionKernel) -> Op:
    """The kernel's operation. Raises CompileError where the device cannot generate the kernel, or where its counts
    are not those of the operation: its features would then describe another kernel than the one measured."""
    try:
        op = find_op(kernel.op)
    except InvalidInput as error:
        raise CompileError(f"the CPU device generates kernels by op: {error}") from error
    if kernel.dtype not in CPU_DTYPES:
        raise CompileError(f"the CPU device has no dtype {kernel.dtype}, only {', '.join(CPU_DTYPES)}")
    said = (kernel.num_load, kernel.num_reduction, kernel.num_store)
    built = (op.num_load, op.num_reduction, len(op.outputs))
    if said != built:
        raise CompileError(f"{op.name} has (loads, reductions, stores) {built}, the kernel says {said}")
    return op


def check_budgets(kernel: ReductionKernel, tile: ReductionTile, budgets: CpuBudgets) -> None:
    """Raises OutOfResource with budget, use and limit for the first one exceeded; CompileError as supported_op."""
    op = supported_op(kernel)
    width = lanes(kernel, tile)
    accumulators = max(1, *(len(p.reduce) for p in op.passes))
    accumulator_bytes = tile.xblock * tile.r0_block * compute_bytes(kernel.dtype) * accumulators
    _limit(tile, "xblock", tile.xblock, kernel.xnumel)
    _limit(tile, "r0_block", tile.r0_block, kernel.rnumel)
    _limit(tile, "lanes", width, budgets.lanes)
    _limit(tile, "accumulator_bytes", accumulator_bytes, budgets.accumulator_bytes)
    _limit(tile, "instructions", instructions(kernel, tile), budgets.instructions)
    _limit(tile, "workspace_bytes", workspace_bytes(kernel), budgets.workspace_bytes)


def instructions(kernel: ReductionKernel, tile: ReductionTile) -> int:
    """Machine instructions that one candidate legalises to, before optimisation: an upper estimate.

    Every pass recomputes the element from its loads (lowering `loop`), once per unrolled vector and once more where
    the reduced axis leaves a remainder; a vector is as many instructions as 64-byte registers hold it.
    """
    op = find_op(kernel.op)
    copies = 1 + (kernel.rnumel % tile.r0_block > 0)
    registers = -(-lanes(kernel, tile) * compute_bytes(kernel.dtype) // 64)
    return _element_instructions(op, kernel.dtype) * copies * unroll(kernel, tile) * registers


def workspace_bytes(kernel: ReductionKernel) -> int:
    """Bytes of all operands and outputs."""
    op = find_op(kernel.op)
    size = DTYPE_BYTES[kernel.dtype]
    per_position = size * (len(op.tile_inputs) - op.mask) + op.mask
    per_output = kernel.rnumel if op.stores_tile else 1
    outputs = size * len(op.outputs) * per_output
    return kernel.xnumel * (kernel.rnumel * per_position + outputs) + size * kernel.rnumel * len(op.row_inputs)


@lru_cache(maxsize=1024)
def cpu_tiles(kernel: ReductionKernel) -> tuple[ReductionTile, ...]:
    """The dense lattice of a kernel, sorted: powers of two up to the numels, within the budgets.

    Wide enough to hold the best tile and small enough to be swept: some 30 to 70 tiles where both numels are large.
    A persistent kernel has its one R0_BLOCK. Never empty: a kernel too large or unknown to the device keeps its
    smallest tile, and compiling that one says why.
    """
    budgets = CpuBudgets(workspace_bytes=UNLIMITED)
    columns = tuple(_powers(min(kernel.xnumel, budgets.lanes)))
    rows = (kernel.rnumel,) if kernel.persistent else tuple(_powers(min(kernel.rnumel, budgets.lanes)))
    tiles = [ReductionTile(xblock, r0_block) for xblock in columns for r0_block in rows]
    return tuple(sorted(tile for tile in tiles if _worth_a_sweep(kernel, tile, budgets))) or (tiles[0],)


def _worth_a_sweep(kernel: ReductionKernel, tile: ReductionTile, budgets: CpuBudgets) -> bool:
    if unroll(kernel, tile) > SWEEP_UNROLL or tile.xblock * tile.r0_block > SWEEP_ELEMENTS:
        return False
    if kernel.op is None:  # described by numbers alone: how many instructions it takes is not known
        return True
    try:
        check_budgets(kernel, tile, budgets)
    except (OutOfResource, CompileError):
        return False
    return True


def _limit(tile: ReductionTile, budget: str, use: int, limit: int) -> None:
    if use > limit:
        raise OutOfResource(f"tile {tile}: {budget} is {use}, over the limit of {limit}")


def _powers(most: int) -> Iterable[int]:
    return (1 << k for k in range(most.bit_length()))


@lru_cache(maxsize=64)
def _element_instructions(op: Op, dtype: str) -> int:
    """Instructions per element and register over all passes, by running the operation on a counter."""
    count = _Counter(dtype)
    inputs = len(op.tile_inputs)
    for index, step in enumerate(op.passes):
        count.total += inputs * count.load
        op.load(count, [None] * inputs)
        for earlier in op.passes[: index + 1]:
            if earlier.define:
                earlier.define(count, None, [None] * 4)
        _count_uses(count, step, len(op.row_inputs))
    return count.total


def _count_uses(count: _Counter, step: Pass, rows: int) -> None:
    for reduce in step.reduce:
        reduce.value(count, None)
        count.total += 3  # load the accumulator, combine, store
    if step.store:
        step.store(count, None, [None] * 4, [None] * rows)
        count.total += rows * count.load + count.store


class _Counter:
    """A Vocabulary that counts."""

    def __init__(self, dtype: str) -> None:
        self.total = 0
        self.load, self.store = {"fp16": (2, 2), "bf16": (4, 8)}.get(dtype, (1, 1))
        # fp64 calls libm once a lane: eight lanes of extract, call, insert and spill.
        self.exponential = 32 if dtype == "fp64" else 20

    def const(self, like: Any, value: float) -> None:
        return None

    def add(self, a: Any, b: Any) -> None:
        self.total += 1

    sub = mul = div = max = equal = add

    def sqrt(self, a: Any) -> None:
        self.total += 1

    def exp(self, a: Any) -> None:
        self.total += self.exponential

    def where(self, mask: Any, a: Any, b: Any) -> None:
        self.total += 1
