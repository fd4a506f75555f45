"""Time of a matrix product's tiles by the planner's terms: what arithmetic, loads, stores and HBM would take.

The terms of the tail planner with what a GPU adds: tensor cores by dtype, L2 and HBM apart. docs/tail.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import InvalidInput, checked_type
from .hardware import HardwareSpec, MatmulUnit
from .kernels import MatmulKernel
from .tiles import MatmulTile, matmul_columns
from .waves import Waves, waves

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

WGMMA_ROWS, WGMMA_WARPS = 64, 4
"""Least BLOCK_M, and what warps come in, for Hopper's asynchronous products; they keep one buffer more."""

LATENCY_S = 600e-9
"""Of a step along k, from the start of its loads to their arrival: on the H200's corpus what steps of few blocks last at
least, with two stages; with more, that many less one are on their way at once."""

THREAD_REGISTERS = 128
"""Outputs of a thread, and elements that it copies itself, from which on registers run short."""

MMA_SYNC_SHARE = 0.63
"""Of the peak rate, what a Hopper's older, synchronous products reach (Luo et al. 2024, microbenchmarks)."""

TURNED_SHARE = 0.4
"""Of the peak rate, where asynchronous products wait for an operand to be turned: of 0.2 to 0.63, what made the planner's
tiles best on the H200's corpus."""

SHARED_CLOCKS, BROADCAST_CLOCKS, CONFLICT_CLOCKS, ALONG_CLOCKS = 5.3, 1.0, 0.19, 0.85
"""Where no tensor core multiplies, clocks of a core for what a warp reads of shared memory in a step of one along k: for
each column of B, where its k is contiguous (its lanes are then all in one bank; else next to nothing); for each row of A
where its k is contiguous, at least, and for each lane that has rows of its own; for each row of A where it is not."""

FMA_A_CLOCK = 4.0
"""Warps' multiply-adds that a core does in a clock."""

FMA_CLOCKS = 1.1
"""Of a warp's multiply-add, of the quarter of a clock that it takes at the peak rate. These five were fitted to the H200's corpus by
least squares; how well, benchmarks/matmul_held_out.py says (`error_log2_p50`)."""

VECTOR_BYTES, COPY_BYTES = 16, 4
"""Widest load of a thread, and the least that an asynchronous copy takes."""

OUTPUTS_A_WARP = 32 * 128
"""What a warp is given where a tile does not say its warps: 128 a thread."""


@dataclass(frozen=True, slots=True, eq=False)
class Residency:
    """float64[n]: warps of a block, shared memory that it takes ÷ what a block may, blocks that a core holds at once."""

    warps: FloatArray
    shared_share: FloatArray
    blocks: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class MatmulTimes:
    """Arrays of one entry a tile. m_cnt, n_cnt: blocks along either axis; grid: blocks of all batches, in waves.

    compute_us, load_us, store_us: of one block. blocks_us: of all of them, wave by wave. shared_bytes: of both inputs,
    what the blocks that run at once need, in rows of GROUP_M; memory_us: of all that HBM moves. waiting_us: of all blocks,
    for loads on their way. slowed_us: as blocks_us, with what reads of shared memory add where no tensor core multiplies.
    crowding: how many times as long it all takes for want of registers, at least 1. held: what blocks take of a core.
    """

    m_cnt: IntArray
    n_cnt: IntArray
    grid: Waves
    compute_us: FloatArray
    load_us: FloatArray
    store_us: FloatArray
    blocks_us: FloatArray
    shared_bytes: FloatArray
    memory_us: FloatArray
    waiting_us: FloatArray
    slowed_us: FloatArray
    crowding: FloatArray
    held: Residency

    @property
    def bound_us(self) -> FloatArray:
        """Of the whole product by the rates alone: no tile is faster."""
        return np.maximum(self.blocks_us, self.memory_us)

    @property
    def us(self) -> FloatArray:
        """Of the whole product, as predicted: its parts overlap, but where two take equally long not wholly. Of norms with
        exponents of 1.5 to 8 the third made the planner's tiles best on the H200's corpus."""
        # Products, since powers of arrays take several times as long.
        cubes = (part * part * part for part in (self.slowed_us, self.waiting_us, self.memory_us))
        times: FloatArray = np.cbrt(sum(cubes)) * self.crowding
        return times


def predicted_us(kernel: MatmulKernel, tiles: Sequence[MatmulTile], hardware: HardwareSpec) -> FloatArray:
    """Time of each tile, µs: float64[n].

    Three parts, which overlap (`MatmulTimes.us`). n_wave·T_block, a block's arithmetic, its loads from L2 or its stores,
    whichever lasts longest; with one stage arithmetic and loads one after the other. What blocks wait for loads to
    arrive. All that HBM moves: both inputs once while they fit in L2, else what the cores of one wave share, wave by
    wave; and the product. K counts in whole steps, blocks count as whole ones, so ragged edges cost what they cost. For
    comparing tiles: of a launch it knows nothing, nor of what a compiler makes of a tile. Raises InvalidInput where
    hardware or dtype has no known rate.
    """
    return matmul_times(kernel, matmul_columns(tiles), hardware).us


def rated_unit(kernel: MatmulKernel, hardware: HardwareSpec) -> MatmulUnit:
    """The matrix unit that multiplies the kernel. Raises InvalidInput where hardware or dtype has no known rate."""
    checked_type("kernel", kernel, MatmulKernel)
    checked_type("hardware", hardware, HardwareSpec)
    unit = hardware.matmul
    if unit is None:
        raise InvalidInput("hardware", hardware.name, "one whose matrix unit is known")
    if kernel.dtype not in unit.rates:
        raise InvalidInput(
            "dtype", kernel.dtype, f"one whose rate on {hardware.name} is known: {', '.join(unit.rates)}"
        )
    return unit


def whole_warp_groups(columns: IntArray) -> npt.NDArray[np.bool_]:
    """bool[n]: whether a tile has the rows and the warps for asynchronous products."""
    block_m, warps = columns[0], columns[3]
    found: npt.NDArray[np.bool_] = (block_m >= WGMMA_ROWS) & (warps > 0) & (warps % WGMMA_WARPS == 0)
    return found


def turned(kernel: MatmulKernel, columns: IntArray) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """bool[n] for A and for B: whether a tile's asynchronous products must turn the operand first.

    Hopper's take inputs of 32 bits with k contiguous only; another order is written to shared memory anew by the
    threads, and not copied behind their backs.
    """
    if kernel.dtype != "tf32":
        none = np.zeros(columns.shape[1], dtype=np.bool_)
        return none, none
    wide = whole_warp_groups(columns)
    return wide & kernel.a_transposed, wide & (not kernel.b_transposed)


def vector_bytes(kernel: MatmulKernel) -> tuple[int, int]:
    """Of A and of B: widest load that every row's start is aligned to, VECTOR_BYTES at most."""
    rows = kernel.m if kernel.a_transposed else kernel.k, kernel.k if kernel.b_transposed else kernel.n
    a, b = (min((extent & -extent) * kernel.elem_bytes, VECTOR_BYTES) for extent in rows)
    return a, b


def copied(kernel: MatmulKernel, columns: IntArray) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """bool[n] for A and for B: whether loads go to shared memory by themselves, stages ahead: of COPY_BYTES at least,
    and of nothing that is turned."""
    a, b = vector_bytes(kernel)
    turned_a, turned_b = turned(kernel, columns)
    return ~turned_a & (a >= COPY_BYTES), ~turned_b & (b >= COPY_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class ThreadShare:
    """float64[n] each: rows and columns of a tile that one thread multiplies, and the lanes of a warp along either."""

    rows: FloatArray
    columns: FloatArray
    lanes_m: FloatArray
    lanes_n: FloatArray


def thread_share(columns: IntArray, warps: FloatArray, hardware: HardwareSpec) -> ThreadShare:
    """How Triton deals a tile to threads where no tensor core multiplies: in squares of four by four outputs, where a
    thread has sixteen or more, else of two by two or one; lanes, then warps, go along n first, and along m what is left.
    Threads past the tile's edge hold copies: a low tile with many warps multiplies no faster than with few."""
    m, n = columns[0].astype(np.float64), columns[1].astype(np.float64)
    lanes = float(hardware.warp_size)
    outputs = m * n / (warps * lanes)
    square = np.where(outputs >= 16, 4.0, np.where(outputs >= 4, 2.0, 1.0))
    lanes_n = np.minimum(lanes, np.maximum(n / square, 1.0))
    warps_n = np.minimum(warps, np.ceil(n / (square * lanes_n)))
    return ThreadShare(
        np.maximum(m * lanes_n * warps_n / (lanes * warps), 1.0), np.maximum(n / (lanes_n * warps_n), 1.0),
        lanes / lanes_n, lanes_n,
    )  # fmt: skip


def fma_slowdown(kernel: MatmulKernel, columns: IntArray, hardware: HardwareSpec) -> FloatArray:
    """float64[n]: a core's time for a block without tensor cores ÷ that of its multiply-adds at the peak rate. What its
    warps read from shared memory for them mostly takes longer."""
    warps = np.maximum(columns[3], 1).astype(np.float64)
    share = thread_share(columns, warps, hardware)
    fma = share.rows * share.columns / FMA_A_CLOCK
    of_b = share.columns * (SHARED_CLOCKS if kernel.b_transposed else 0.0)
    of_a = share.rows * (
        ALONG_CLOCKS if kernel.a_transposed else np.maximum(BROADCAST_CLOCKS, CONFLICT_CLOCKS * share.lanes_m)
    )
    # Copies count as work here: a thread past the edge multiplies all the same.
    done = columns[0].astype(np.float64) * columns[1] / (warps * hardware.warp_size * FMA_A_CLOCK)
    slowdown: FloatArray = (FMA_CLOCKS * fma + of_a + of_b) / done
    return slowdown


def matmul_times(kernel: MatmulKernel, columns: IntArray, hardware: HardwareSpec) -> MatmulTimes:
    """What predicted_us says of tiles as `matmul_columns` gives them, part by part. Raises InvalidInput as it does."""
    unit = rated_unit(kernel, hardware)
    s_m, s_n, step, _, stages, group = columns
    m_cnt, n_cnt = -(-kernel.m // s_m), -(-kernel.n // s_n)
    grid = waves(kernel.batch * (m_cnt * n_cnt), hardware.cores)
    k = -(-kernel.k // step) * step.astype(np.float64)
    area, sides = s_m.astype(np.float64) * s_n, s_m.astype(np.float64) + s_n

    # Of fp32 no tensor core makes products.
    synchronous = np.where(whole_warp_groups(columns) | (kernel.dtype == "fp32"), 1.0, MMA_SYNC_SHARE)
    a_turned, b_turned = turned(kernel, columns)
    synchronous[a_turned | b_turned] = TURNED_SHARE
    a_copied, b_copied = copied(kernel, columns)
    alone = (stages == 1) | ~(a_copied & b_copied)
    compute_s = 2.0 * area * k / (unit.rates[kernel.dtype] * synchronous)
    load_s = sides * k * kernel.elem_bytes / unit.l2_bytes_per_s_per_core
    store_s = area * kernel.out_bytes / unit.gm_bytes_per_s_per_core
    blocks_s = grid.n_wave * _block_s(compute_s, load_s, store_s, alone)
    slowed_s = blocks_s
    if kernel.dtype == "fp32":
        slowed_s = grid.n_wave * _block_s(compute_s * fma_slowdown(kernel, columns, hardware), load_s, store_s, alone)
    # Blocks that share a core wait at the same time.
    held = residency(kernel, columns, hardware)
    turns = np.ceil(grid.n_wave / held.blocks)
    ahead = np.where(a_copied & b_copied, np.maximum(stages - 1, 1), 1)
    waiting_s = turns * (k / step) * LATENCY_S / ahead
    wanted = (area + step * (s_m * ~a_copied + s_n * ~b_copied)) / (held.warps * hardware.warp_size)

    # GROUP_M rows of blocks are walked column by column: what runs at once is that many rows by so many columns.
    rows = np.minimum(group, m_cnt)
    at_once = np.minimum(grid.n_blk, hardware.cores)
    shared = rows * s_m.astype(np.float64) + np.ceil(at_once / rows) * s_n
    shared_bytes = shared * kernel.k * kernel.elem_bytes
    moved = np.full(columns.shape[1], float(kernel.input_bytes))
    if kernel.input_bytes > hardware.l2_bytes:
        each = grid.n_blk / at_once.astype(np.float64)
        moved = np.maximum(moved, each * shared * kernel.k * kernel.elem_bytes)
    moved = moved + float(kernel.batch) * kernel.m * kernel.n * kernel.out_bytes
    return MatmulTimes(
        m_cnt, n_cnt, grid, 1e6 * compute_s, 1e6 * load_s, 1e6 * store_s, 1e6 * blocks_s, shared_bytes,
        1e6 * moved / hardware.dram_bytes_per_s, 1e6 * waiting_s, 1e6 * slowed_s,
        np.maximum(wanted / THREAD_REGISTERS, 1.0), held,
    )  # fmt: skip


def _block_s(
    compute_s: FloatArray, load_s: FloatArray, store_s: FloatArray, alone: npt.NDArray[np.bool_]
) -> FloatArray:
    """Of one block. alone: arithmetic and loads take turns."""
    inner_s = np.where(alone, compute_s + load_s, np.maximum(compute_s, load_s))
    longest: FloatArray = np.maximum(inner_s, store_s)
    return longest


def residency(kernel: MatmulKernel, columns: IntArray, hardware: HardwareSpec) -> Residency:
    """What a tile's blocks take of a core."""
    m, n, k, given, stages, _ = columns.astype(np.float64)
    derived = np.exp2(np.clip(np.ceil(np.log2(m * n / OUTPUTS_A_WARP)), 0, 3))
    warps = np.where(given > 0, given, derived)
    # Buffers as runtime/matmul_tiles.py counts them: one fewer than stages where products are synchronous.
    asynchronous = whole_warp_groups(columns) & (kernel.elem_bytes == 2)
    buffers = np.maximum(np.where(asynchronous, stages, stages - 1), 1)
    shared_share = (m + n) * k * kernel.elem_bytes * buffers / hardware.onchip_bytes
    limits = [np.full(len(m), float(hardware.max_blocks_per_core)), np.floor(1 / shared_share)]
    if hardware.max_threads_per_core:
        limits.append(np.floor(hardware.max_threads_per_core / (warps * hardware.warp_size)))
    if hardware.registers_per_core:
        limits.append(np.floor(hardware.registers_per_core / (m * n)))  # an accumulator is one register
    return Residency(warps, shared_share, np.maximum(np.minimum.reduce(limits), 1.0))
