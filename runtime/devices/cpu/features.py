"""CPU kernel x tiles x calls -> numbers, one row a tile: what a ranker for the CPU device looks at.

On a CPU the lowering is a choice, the compiler's work is known before it begins (budgets.py counts what will be written),
and compiling is part of the cost, so the number of calls is a feature and one ranker serves every objective
(Tile→XIR report §4). The operation itself is no feature: what it does is counted. Nothing depends on the machine that
computes them: a corpus of one CPU has the same features on another. Needs numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tileguard.features.kernels import ReductionKernel, dtype_bytes
from tileguard.features.pow2 import is_pow2
from tileguard.features.schema import FeatureSchema
from tileguard.features.tiles import LOWERINGS, ReductionTile

from ..base import CompileError
from .budgets import instructions, supported_op, usage, workspace_bytes
from .lowering import lowering_of
from .operation import compute_bytes
from .program_ops import ProgramOp

FloatArray = npt.NDArray[np.float64]

CPU_KERNEL_FEATURES = (
    "log2_xnumel", "log2_rnumel", "log2_x_over_r", "log2_numel",
    "dtype_bytes", "compute_bytes", "min_ptr_bytes", "max_ptr_bytes", "total_ptr_bytes",
    "num_load", "num_store", "num_reduction", "inner", "xnumel_is_pow2", "rnumel_is_pow2",
    "program", "passes", "stores_tile", "element_instructions",
    "log2_footprint",
    "log2_calls", "log2_calls_times_work",
)  # fmt: skip
CPU_TILE_FEATURES = (
    "log2_xblock", "log2_r0_block", "log2_tile", "log2_lanes", "log2_unroll", "log2_registers", "log2_accumulators",
    "lowering", "log2_trips", "log2_programs", "x_left", "r_left", "x_covers", "r_covers", "work_padding",
    "log2_contiguous_bytes", "log2_instructions", "log2_expansion", "log2_local_bytes",
    "log2_executed", "log2_executed_over_written", "log2_run_over_compile",
    "log2_row_turns", "log2_scalar_share", "log2_streams", "log2_streams_per_set",
)  # fmt: skip

CPU_SCHEMA = FeatureSchema("reduction", 1, CPU_KERNEL_FEATURES + CPU_TILE_FEATURES)
"""The order of the columns that `cpu_features` returns."""

LOG2_FOREVER = 50.0
"""log2_calls of a kernel that runs for ever: more than any number of calls that can be asked for."""

REGISTER_BYTES = 64
"""Of the widest vector register there is; narrower ones make every count larger by one factor."""


CACHE_WAY_BYTES, CACHE_LINE_BYTES = 4096, 64
"""Bytes between addresses that share a set of a first-level cache, and of a line: the same over x86-64 CPUs."""


def log2_calls(calls: float) -> float:
    """The feature: log2 of the calls, 0 for one or less, LOG2_FOREVER for infinitely many."""
    return min(math.log2(max(calls, 1.0)), LOG2_FOREVER)


def cpu_kernel_features(kernel: ReductionKernel, calls: float) -> list[float]:
    """The part of a row that no tile changes, in the order of CPU_KERNEL_FEATURES. Raises CompileError for a kernel that
    the device cannot generate."""
    op = supported_op(kernel)
    log_x, log_r, forever = math.log2(kernel.xnumel), math.log2(kernel.rnumel), log2_calls(calls)
    element = instructions(kernel, ReductionTile(1, 1))
    program = isinstance(op, ProgramOp)
    return [
        log_x, log_r, log_x - log_r, log_x + log_r,
        dtype_bytes(kernel.dtype), compute_bytes(kernel.dtype), kernel.min_bytes, kernel.max_bytes, kernel.total_bytes,
        kernel.num_load, kernel.num_store, kernel.num_reduction, kernel.inner,
        is_pow2(kernel.xnumel), is_pow2(kernel.rnumel),
        program, 0 if isinstance(op, ProgramOp) else len(op.passes), op.stores_tile, element,
        math.log2(workspace_bytes(kernel)), forever, forever + log_x + log_r + math.log2(element),
    ]  # fmt: skip


def cpu_features(kernel: ReductionKernel, tiles: Sequence[ReductionTile], calls: float = math.inf) -> FloatArray:
    """float64[n, d] in the order of CPU_SCHEMA. calls: over which compiling is shared; infinite: run time alone.

    Raises CompileError for a kernel that the device cannot generate.
    """
    of_kernel = cpu_kernel_features(kernel, calls)
    out = np.empty((len(tiles), len(CPU_SCHEMA.names)), dtype=np.float64)
    out[:, : len(of_kernel)] = of_kernel
    out[:, len(of_kernel) :] = _tile_rows(kernel, tiles, log2_calls(calls))
    return out


def _tile_rows(kernel: ReductionKernel, tiles: Sequence[ReductionTile], log_calls: float) -> list[list[float]]:
    """In the order of CPU_TILE_FEATURES. Tile by tile in plain Python: most of a row is counting, which no array does."""
    log2 = math.log2
    program = isinstance(supported_op(kernel), ProgramOp)
    xnumel, rnumel, inner = kernel.xnumel, kernel.rnumel, kernel.inner
    stored, computed = dtype_bytes(kernel.dtype), compute_bytes(kernel.dtype)
    # Rows walked side by side; where they lie a power of two apart they share the sets of the first cache.
    pitch = (rnumel if inner else xnumel) * stored
    sets = CACHE_WAY_BYTES // max(math.gcd(pitch, CACHE_WAY_BYTES), CACHE_LINE_BYTES)
    rows = []
    for tile in tiles:
        lowering, tile = _resolved(kernel, tile)
        x, r = tile.xblock, tile.r0_block
        log_x, log_r = log2(x), log2(r)
        programs, trips = -(-xnumel // x), -(-rnumel // r)
        log_programs, log_trips = log2(programs), log2(trips)
        log_wide, log_beside = (log_x, log_r) if program or not inner else (log_r, log_x)
        registers = -(-(x if program or not inner else r) * computed // REGISTER_BYTES)
        used = usage(kernel, tile)
        log_registers, log_written = log2(registers), log2(max(used.instructions, 1))
        # A tile program takes what x leaves over row by row.
        turns = xnumel // x + xnumel % x if program else programs
        streams = kernel.num_load * (x if inner else r)
        rows.append([
            log_x, log_r, log_x + log_r, log_wide, log_beside, log_registers, log_registers + log_beside,
            LOWERINGS.index(lowering), log_trips, log_programs,
            xnumel % x / x, rnumel % r / r, x >= xnumel, r >= rnumel,
            programs * x / xnumel * (trips * r / rnumel),
            log2((min(r, rnumel) if inner else min(x, xnumel)) * stored),
            log_written, log2(1 + used.ssa_expansion), log2(1 + used.local_bytes),
            # What is written is run once a tile.
            log_written + log_programs + log_trips, log_programs + log_trips, log_calls + log_programs + log_trips,
            log2(turns), log2(turns) - log_programs, log2(streams), log2(streams / sets),
        ])  # fmt: skip
    return rows


def _resolved(kernel: ReductionKernel, tile: ReductionTile) -> tuple[str, ReductionTile]:
    """A tile's lowering, and the tile to count by."""
    try:
        return lowering_of(kernel, tile), tile
    except CompileError:
        # Not legal for the kernel: a host's tile that fails to compile, whatever its score.
        tile = replace(tile, lowering=None)
        return lowering_of(kernel, tile), tile
