"""Static limits of the CPU device, checked before LLVM sees a tile, and the lattice of tiles within them.

LLVM aborts the process on vectors far too wide and spends minutes on code unrolled too far; both are foreseen here
by counting what emit.py would write. Needs nothing but Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tileguard.features.errors import InvalidInput, checked_int
from tileguard.features.kernels import DTYPE_BYTES, ReductionKernel
from tileguard.features.tiles import ReductionTile

from ..base import CompileError, OutOfResource
from .counting import Counter
from .lowering import LOOP, SELECT, SNAPSHOT, legal_lowerings, lowering_of
from .operation import CPU_DTYPES, compute_bytes
from .ops import Op, Pass, find_op
from .program_cost import program_use
from .program_ops import PROGRAM_OPS, ProgramOp

SWEEP_ELEMENTS = 4096
"""Most elements of a tile in cpu_tiles: their fp32 accumulators are 16 KiB, half an L1 cache, long past registers."""

SWEEP_UNROLL = 64
"""Most unrolled rows of a tile in cpu_tiles; more has only ever cost compile time."""


PROGRAM_LANES, PROGRAM_UNROLL = 16, 8
"""Widest vector of a tile program in cpu_tiles, one register of the widest kind, and most elements a turn."""

SELECT_CHUNKS, SELECT_EXTENT = 8, 32
"""Most values to choose among in cpu_tiles: chunks of an operation of passes, elements of a tile program. Longer
chains never came near the best and take seconds to compile (docs/lowering.md)."""

LOWERED_LANES, LOWERED_ELEMENTS = 8, 1024
"""Least lanes and most elements of a tile in cpu_tiles that is lowered otherwise than None means."""

UNLIMITED = 1 << 200
"""A budget that no kernel exceeds."""


BUDGETS = ("lanes", "accumulator_bytes", "max_local_bytes", "ssa_expansion", "instructions", "workspace_bytes")


@dataclass(frozen=True, slots=True)
class CpuBudgets:
    """Hard limits of one candidate.

    lanes: elements of one vector value. accumulator_bytes: of all accumulators of one pass. max_local_bytes: of all
    snapshots together, a worker (Tile→XIR report §1: 256 KiB, of what is allocated, not of what is alive at once).
    ssa_expansion: IR operations that a lowering expands, allocas, address computations and stores included (§1).
    instructions: machine instructions as estimated by `instructions()`. workspace_bytes: of the kernel's own buffers;
    checking a result in double precision takes up to fifteen times as much memory for a moment.
    """

    lanes: int = 8192
    accumulator_bytes: int = 64 * 1024
    max_local_bytes: int = 256 * 1024
    ssa_expansion: int = 32768
    instructions: int = 32768
    workspace_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        for name in BUDGETS:
            checked_int(name, getattr(self, name), minimum=1)


def lanes(kernel: ReductionKernel, tile: ReductionTile) -> int:
    """Elements of a vector: the tile's extent on the contiguous axis."""
    return tile.r0_block if kernel.inner else tile.xblock


def unroll(kernel: ReductionKernel, tile: ReductionTile) -> int:
    """Vectors side by side: the tile's extent on the other axis."""
    return tile.xblock if kernel.inner else tile.r0_block


def supported_op(kernel: ReductionKernel) -> Op | ProgramOp:
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
    """Raises OutOfResource with budget, use and limit for the first one exceeded; CompileError as supported_op, and for
    a lowering that is not legal."""
    op = supported_op(kernel)
    lowering_of(kernel, tile)
    _limit(tile, "xblock", tile.xblock, kernel.xnumel)
    _limit(tile, "r0_block", tile.r0_block, kernel.rnumel)
    if isinstance(op, ProgramOp):
        _limit(tile, "lanes", tile.xblock, budgets.lanes)
    else:
        accumulators = max(1, *(len(p.reduce) for p in op.passes))
        accumulator_bytes = tile.xblock * tile.r0_block * compute_bytes(kernel.dtype) * accumulators
        _limit(tile, "lanes", lanes(kernel, tile), budgets.lanes)
        _limit(tile, "accumulator_bytes", accumulator_bytes, budgets.accumulator_bytes)
    _limit(tile, "max_local_bytes", local_bytes(kernel, tile), budgets.max_local_bytes)
    _limit(tile, "ssa_expansion", ssa_expansion(kernel, tile), budgets.ssa_expansion)
    _limit(tile, "instructions", instructions(kernel, tile), budgets.instructions)
    _limit(tile, "workspace_bytes", workspace_bytes(kernel), budgets.workspace_bytes)


class Usage(NamedTuple):
    """What one candidate takes of the budgets that need counting; see the functions of these names."""

    instructions: int
    ssa_expansion: int
    local_bytes: int


def local_bytes(kernel: ReductionKernel, tile: ReductionTile) -> int:
    """Bytes of all snapshots of a candidate."""
    return usage(kernel, tile).local_bytes


def ssa_expansion(kernel: ReductionKernel, tile: ReductionTile) -> int:
    """IR operations that the tile's lowering expands, whatever the width of a vector: of an operation of passes, the
    elements kept as values, the choices among them, and the array with its addresses, loads and stores; of a tile
    program, all that is written."""
    return usage(kernel, tile).ssa_expansion


def instructions(kernel: ReductionKernel, tile: ReductionTile) -> int:
    """Machine instructions that one candidate legalises to, before optimisation: an upper estimate.

    A pass is written once per unrolled vector and once more where the reduced axis leaves a remainder; lowered by
    select, a pass that defines elements is written for every chunk of the axis. Every other pass of `loop` computes
    the element anew from its loads. A vector is as many instructions as 64-byte registers hold it.
    """
    return usage(kernel, tile).instructions


@lru_cache(maxsize=8192)
def usage(kernel: ReductionKernel, tile: ReductionTile) -> Usage:
    """All three. Kept, since a lattice, its budgets and its features ask for the same tiles."""
    op, size = find_op(kernel.op), compute_bytes(kernel.dtype)
    if isinstance(op, ProgramOp):
        use = program_use(
            op.program(kernel), lowering=lowering_of(kernel, tile), width=tile.xblock, unroll=tile.r0_block
        )
        return Usage(use.operations * -(-tile.xblock * size // 64), use.operations, use.local_bytes)
    uses, beside = _pass_uses(kernel, tile), unroll(kernel, tile)
    kept = 0
    if lowering_of(kernel, tile) == SNAPSHOT and len(op.passes) > 1:
        kept = -(-kernel.rnumel // tile.r0_block) * tile.r0_block * tile.xblock * size
    expanded = sum(use.expansion * use.copies for use in uses) * beside
    written = sum(use.total * use.copies for use in uses) * beside * -(-lanes(kernel, tile) * size // 64)
    return Usage(written, expanded + (kept > 0), kept)


def workspace_bytes(kernel: ReductionKernel) -> int:
    """Bytes of all operands and outputs."""
    op = find_op(kernel.op)
    size = DTYPE_BYTES[kernel.dtype]
    per_position = size * (len(op.tile_inputs) - op.mask) + op.mask
    per_output = kernel.rnumel if op.stores_tile else 1
    outputs = size * len(op.outputs) * per_output
    return kernel.xnumel * (kernel.rnumel * per_position + outputs) + size * kernel.rnumel * len(op.row_inputs)


@dataclass(frozen=True, slots=True)
class _PassUse:
    """Of a pass, per unrolled vector and copy: instructions per register, IR operations that the lowering expands, and
    copies written."""

    total: int
    expansion: int
    copies: int


@lru_cache(maxsize=1024)
def cpu_tiles(kernel: ReductionKernel) -> tuple[ReductionTile, ...]:
    """The dense lattice of a kernel, sorted: powers of two up to the numels, within the budgets, in the lowering that
    None means; and where another one generates other code, those tiles of it that may win.

    Never empty: what exceeds a budget is left out, but of a kernel that is too much altogether one tile is left, and
    compiling that one says why.
    """
    budgets = CpuBudgets(workspace_bytes=UNLIMITED)
    program = kernel.op in PROGRAM_OPS
    columns = tuple(_powers(min(kernel.xnumel, PROGRAM_LANES if program else budgets.lanes)))
    most_rows = min(kernel.rnumel, PROGRAM_UNROLL if program else budgets.lanes)
    rows = (kernel.rnumel,) if kernel.persistent else tuple(_powers(most_rows))
    tiles = [ReductionTile(xblock, r0_block) for xblock in columns for r0_block in rows]
    found = [tile for tile in tiles if _worth_a_sweep(kernel, tile, budgets)] or [tiles[0]]
    for lowering in _other_lowerings(kernel):
        lowered = [replace(tile, lowering=lowering) for tile in found if _worth_lowering(kernel, tile, lowering)]
        found += [tile for tile in lowered if _within(kernel, tile, budgets)]
    return tuple(sorted(found))


def _other_lowerings(kernel: ReductionKernel) -> tuple[str, ...]:
    try:
        return legal_lowerings(kernel)[1:]
    except InvalidInput:  # described by numbers alone, or another device's
        return ()


def _worth_lowering(kernel: ReductionKernel, tile: ReductionTile, lowering: str) -> bool:
    if tile.lowering is not None:
        return False
    if kernel.op in PROGRAM_OPS:
        # SSA values are the same code for every R0_BLOCK.
        return tile.r0_block == 1 and kernel.rnumel <= SELECT_EXTENT if lowering == SELECT else True
    chunks = -(-kernel.rnumel // tile.r0_block)
    if lowering == SELECT and not 1 < chunks <= SELECT_CHUNKS:
        return False
    return lanes(kernel, tile) >= LOWERED_LANES and tile.xblock * tile.r0_block <= LOWERED_ELEMENTS


def _worth_a_sweep(kernel: ReductionKernel, tile: ReductionTile, budgets: CpuBudgets) -> bool:
    if unroll(kernel, tile) > SWEEP_UNROLL or tile.xblock * tile.r0_block > SWEEP_ELEMENTS:
        return False
    # Described by numbers alone: how many instructions it takes is not known.
    return kernel.op is None or _within(kernel, tile, budgets)


def _within(kernel: ReductionKernel, tile: ReductionTile, budgets: CpuBudgets) -> bool:
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


def _pass_uses(kernel: ReductionKernel, tile: ReductionTile) -> tuple[_PassUse, ...]:
    """What emit.py writes for each pass of an operation, per unrolled vector."""
    lowering = lowering_of(kernel, tile)
    left = kernel.rnumel % tile.r0_block > 0
    chunks = kernel.rnumel // tile.r0_block + left if lowering == SELECT else 0
    return _written(str(kernel.op), kernel.dtype, lowering, chunks, left)


@lru_cache(maxsize=4096)
def _written(name: str, dtype: str, lowering: str, chunks: int, left: bool) -> tuple[_PassUse, ...]:
    """By all that it depends on: a lattice has a hundred tiles and few of these. chunks: of `select` alone."""
    op = find_op(name)
    assert isinstance(op, Op)
    last, found = len(op.passes) - 1, []
    for index, step in enumerate(op.passes):
        count = Counter(dtype)
        fresh = index == 0 or step.define is not None
        keeps = lowering != LOOP and fresh and index < last
        if index == 0 or lowering == LOOP:
            count.total += len(op.tile_inputs) * count.load
            op.load(count, [None] * len(op.tile_inputs))
        for earlier in op.passes[: index + 1]:
            if earlier.define and (lowering == LOOP or earlier is step):
                earlier.define(count, None, [None] * 4)
        _count_uses(count, step, len(op.row_inputs))
        expansion = 0
        if lowering == SNAPSHOT and last:
            expansion = 2 * ((index > 0) + keeps)  # an address, and a load or store
        elif lowering == SELECT and index and not keeps:
            expansion = 2 * chunks  # a comparison and a choice for each
        copies = chunks if keeps and lowering == SELECT else 1 + left
        found.append(_PassUse(count.total + expansion, expansion + (keeps and lowering == SELECT), copies))
    return tuple(found)


def _count_uses(count: Counter, step: Pass, rows: int) -> None:
    for reduce in step.reduce:
        reduce.value(count, None)
        count.total += 3  # load the accumulator, combine, store
    if step.store:
        step.store(count, None, [None] * 4, [None] * rows)
        count.total += rows * count.load + count.store
