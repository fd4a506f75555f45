"""How a tile's elements reach whoever reads them: the lowering, a dimension of a tile like its blocks.

loop: nothing is kept; whoever reads an element loads and computes it anew. snapshot: the elements are stored to a
local array where the tile is defined, and read from it by index. select: they stay SSA values, and an element is
chosen among them by comparing the index with each. None is the first of these that is legal. Needs nothing but Python.
"""

from __future__ import annotations

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import LOWERINGS, ReductionTile

from ..base import CompileError
from .ops import find_op
from .program_ops import ProgramOp
from .programs import Program

LOOP, SNAPSHOT, SELECT = LOWERINGS


def illegal(program: Program, lowering: str) -> str | None:
    """Why a program cannot be lowered so; None where it can. Snapshots and selects are always right."""
    if lowering != LOOP:
        return None
    if program.has_loop:
        return "a tile that a loop carries cannot be computed anew"
    if program.exposed:
        return f"a store may change the memory of {', '.join(sorted(program.exposed))} before it is read again"
    return None


def kept(program: Program, lowering: str) -> frozenset[str]:
    """Tiles that a lowering keeps, in memory or as SSA values; the others are computed where they are read."""
    return frozenset() if lowering == LOOP else frozenset(program.extracted | program.exposed)


def expands(lowering: str, extent: int) -> bool:
    """Whether a kept tile is SSA values rather than an array: none is made for one element or less."""
    return lowering == SELECT or extent <= 1


def expanded(program: Program, lowering: str) -> bool:
    """Whether loops over elements are expanded whole: SSA values have no other index than a fixed one."""
    return lowering == SELECT and bool(kept(program, lowering))


def stepped(extent: int, unroll: int) -> tuple[int, int]:
    """(elements a turn, elements in the loop) of a loop over `extent` elements; what is left over follows it. There is
    no loop of a single turn."""
    step = max(1, min(unroll, extent))
    looped = extent // step * step
    return step, looped if looped > step else 0


def default_lowering(program: Program) -> str:
    """What None means: loop where it is legal, else snapshot."""
    return SNAPSHOT if illegal(program, LOOP) else LOOP


def legal_lowerings(kernel: ReductionKernel) -> tuple[str, ...]:
    """Those that differ in what they generate for a kernel of the CPU device, the one that None means first.

    Any other legal one generates the same code as the first: where no element is read twice, say.
    """
    op = find_op(kernel.op)
    if isinstance(op, ProgramOp):
        program = op.program(kernel)
        first = default_lowering(program)
        others = (SNAPSHOT, SELECT) if kept(program, SNAPSHOT) else ()
        return (first, *(other for other in others if other != first))
    return LOWERINGS if len(op.passes) > 1 else (LOOP,)


def lowering_of(kernel: ReductionKernel, tile: ReductionTile) -> str:
    """The tile's lowering, None resolved. Raises CompileError where it is not legal for the kernel."""
    op = find_op(kernel.op)
    if not isinstance(op, ProgramOp):
        return tile.lowering or LOOP
    program = op.program(kernel)
    lowering = tile.lowering or default_lowering(program)
    if why := illegal(program, lowering):
        raise CompileError(f"tile {tile}: lowering {lowering} is not legal for {op.name}: {why}")
    return lowering
