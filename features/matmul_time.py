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

MMA_SYNC_SHARE = 0.63
"""Of the peak rate, what a Hopper's older, synchronous products reach (Luo et al. 2024, microbenchmarks)."""


TURNED_SHARE = 0.4
"""Of the peak rate, where asynchronous products wait for an operand to be turned: of 0.2 to 0.63, what made the planner's
tiles best on the H200's corpus."""

VECTOR_BYTES, COPY_BYTES = 16, 4
"""Widest load of a thread, and the least that an asynchronous copy takes."""


@dataclass(frozen=True, slots=True, eq=False)
class MatmulTimes:
    """Arrays of one entry a tile. m_cnt, n_cnt: blocks along either axis; grid: blocks of all batches, in waves.

    compute_us, load_us, store_us: of one block. blocks_us: of all of them, wave by wave. shared_bytes: of both inputs,
    what the blocks that run at once need, in rows of GROUP_M; memory_us: of all that HBM moves.
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

    @property
    def us(self) -> FloatArray:
        """Of the whole product."""
        return np.maximum(self.blocks_us, self.memory_us)


def predicted_us(kernel: MatmulKernel, tiles: Sequence[MatmulTile], hardware: HardwareSpec) -> FloatArray:
    """Time of each tile, µs: float64[n].

    The longer of n_wave·T_block, a block's arithmetic, its loads from L2 or its stores, whichever lasts longest (with
    one stage arithmetic and loads one after the other), and of all that HBM moves: both inputs once while they fit in
    L2, else what the cores of one wave share, wave by wave; and the product. K counts in whole steps, blocks count as
    whole ones, so ragged edges cost what they cost. For comparing tiles: of launching and filling pipelines it knows
    nothing, nor of what a compiler makes of a tile. Raises InvalidInput where hardware or dtype has no known rate.
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
    wide = whole_warp_groups(columns) & (kernel.dtype == "tf32")
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
    inner_s = np.where(alone, compute_s + load_s, np.maximum(compute_s, load_s))
    blocks_s = grid.n_wave * np.maximum(inner_s, store_s)

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
        1e6 * moved / hardware.dram_bytes_per_s,
    )  # fmt: skip
