"""Matrix product x tiles x hardware -> numbers, one row a tile, vectorised over tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidInput
from .hardware import HardwareSpec
from .kernels import MatmulKernel
from .matmul_time import (
    MatmulTimes,
    Residency,
    copied,
    fma_slowdown,
    matmul_times,
    rated_unit,
    thread_share,
    turned,
    vector_bytes,
    whole_warp_groups,
)
from .schema import FeatureSchema
from .tiles import MatmulTile, matmul_columns

FloatArray = npt.NDArray[np.float64]

MATMUL_KERNEL_FEATURES = (
    "log2_batch", "log2_m", "log2_n", "log2_k", "log2_m_over_n", "log2_k_over_mn",
    "elem_bytes", "out_elem_bytes", "log2_flops_per_s", "a_transposed", "b_transposed",
    "log2_m_alignment", "log2_n_alignment", "log2_k_alignment", "log2_a_vector_bytes", "log2_b_vector_bytes",
    "log2_flops", "log2_bytes", "log2_intensity", "log2_inputs_over_l2",
    "log2_arithmetic_us", "log2_traffic_us", "log2_roofline_us",
)  # fmt: skip
MATMUL_TILE_FEATURES = (
    "log2_block_m", "log2_block_n", "log2_block_k", "log2_block_area", "log2_block_m_over_n",
    "num_stages", "log2_warps", "log2_group_m",
    "log2_block_m_over_m", "log2_block_n_over_n", "log2_k_trips", "log2_stages_over_trips",
    "m_padding", "n_padding", "k_padding", "work_padding", "even_k", "log2_row_bytes",
    "log2_step_bytes", "shared_share", "log2_blocks_per_core", "log2_warps_per_core",
    "log2_outputs_per_thread", "log2_operand_registers", "log2_outputs_per_warp", "whole_warp_groups", "log2_fma_reuse",
    "log2_fma_slowdown", "asynchronous", "turned", "operands_copied", "log2_staged_registers", "stages_ahead", "log2_loads_a_thread",
    "log2_block_intensity", "log2_programs", "log2_programs_per_core",
    "n_wave", "rho", "wave_efficiency", "tail_share", "n_wave_resident",
    "log2_group_rows", "log2_blocks_a_group", "log2_wave_bytes_over_l2", "log2_l2_reuse",
    "log2_mma_us", "log2_load_us", "log2_store_us", "log2_load_over_mma",
    "log2_blocks_us", "log2_memory_us", "log2_waiting_us", "log2_waiting_over_bound", "log2_predicted_us", "log2_predicted_over_roofline",
)  # fmt: skip

MATMUL_SCHEMA = FeatureSchema("matmul", 3, MATMUL_KERNEL_FEATURES + MATMUL_TILE_FEATURES)
"""The order of the columns that `matmul_features` returns."""

MAX_ALIGNMENT = 128
"""Largest power of two in a size that is told from a larger one: elements of a row of the widest BLOCK_K."""

REGISTER_BYTES = 4
_CAP = float(1 << 20)
"""Counts above this are one case, as in reduction.py."""


def matmul_features(kernel: MatmulKernel, tiles: Sequence[MatmulTile], hardware: HardwareSpec) -> FloatArray:
    """float64[n, d] in the order of MATMUL_SCHEMA; finite for every valid kernel.

    Raises InvalidInput for an empty list of tiles, and where the rate of hardware or dtype is not known.
    """
    if not len(tiles):
        raise InvalidInput("tiles", tiles, "at least one tile")
    columns = matmul_columns(tiles)
    constant = matmul_kernel_features(kernel, hardware)
    times = matmul_times(kernel, columns, hardware)
    roofline = constant[MATMUL_KERNEL_FEATURES.index("log2_roofline_us")]
    resident = times.held
    varying = (
        _shape_columns(kernel, columns, times)
        | _resource_columns(kernel, columns, resident, hardware)
        | _copy_columns(kernel, columns, resident, hardware)
        | _grid_columns(kernel, columns, times, resident, hardware)
        | _time_columns(times, roofline)
    )
    # Filled by column, where writes are contiguous, and turned once.
    out = np.empty((len(constant) + len(MATMUL_TILE_FEATURES), len(tiles)), dtype=np.float64)
    out[: len(constant)] = np.array(constant, dtype=np.float64)[:, np.newaxis]
    for position, name in enumerate(MATMUL_TILE_FEATURES, start=len(constant)):
        out[position] = varying[name]
    return np.ascontiguousarray(out.T)


def matmul_kernel_features(kernel: MatmulKernel, hardware: HardwareSpec) -> list[float]:
    """The part of a row that no tile changes, in the order of MATMUL_KERNEL_FEATURES. Raises InvalidInput where the
    rate of hardware or dtype is not known."""
    rate = rated_unit(kernel, hardware).rates[kernel.dtype]
    log_batch, log_m, log_n, log_k = (math.log2(n) for n in (kernel.batch, kernel.m, kernel.n, kernel.k))
    flops = 2.0 * kernel.batch * kernel.m * kernel.n * kernel.k
    moved = float(kernel.input_bytes) + float(kernel.batch) * kernel.m * kernel.n * kernel.out_bytes
    arithmetic_us = 1e6 * flops / (rate * hardware.cores)
    traffic_us = 1e6 * moved / hardware.dram_bytes_per_s
    return [
        log_batch, log_m, log_n, log_k, log_m - log_n, log_k - (log_m + log_n) / 2,
        kernel.elem_bytes, kernel.out_bytes, math.log2(rate), kernel.a_transposed, kernel.b_transposed,
        *(math.log2(_alignment(size)) for size in (kernel.m, kernel.n, kernel.k)),
        *map(math.log2, vector_bytes(kernel)),
        math.log2(flops), math.log2(moved), math.log2(flops / moved), math.log2(kernel.input_bytes / hardware.l2_bytes),
        math.log2(arithmetic_us), math.log2(traffic_us), math.log2(max(arithmetic_us, traffic_us)),
    ]  # fmt: skip


def _shape_columns(
    kernel: MatmulKernel, columns: npt.NDArray[np.int64], times: MatmulTimes
) -> dict[str, npt.NDArray[Any]]:
    """How a tile lies on the three axes: sides, padding, steps along k."""
    m, n, k, _, stages, _ = columns.astype(np.float64)
    log_m, log_n, log_k = np.log2(columns[:3])
    trips = np.ceil(kernel.k / k)
    paddings = times.m_cnt * m / kernel.m, times.n_cnt * n / kernel.n, trips * k / kernel.k
    m_padding, n_padding, k_padding = (np.minimum(padding, _CAP) for padding in paddings)
    return {
        "log2_block_m": log_m, "log2_block_n": log_n, "log2_block_k": log_k,
        "log2_block_area": log_m + log_n, "log2_block_m_over_n": log_m - log_n,
        "log2_block_m_over_m": log_m - math.log2(kernel.m), "log2_block_n_over_n": log_n - math.log2(kernel.n),
        "log2_k_trips": np.log2(trips), "log2_stages_over_trips": np.log2(stages / trips),
        "m_padding": m_padding, "n_padding": n_padding, "k_padding": k_padding,
        "work_padding": np.minimum(m_padding * n_padding * k_padding, _CAP),
        "even_k": kernel.k % columns[2] == 0,
        # Of one step of the input whose k is contiguous, or of n where neither's is.
        "log2_row_bytes": (log_k if not kernel.a_transposed or kernel.b_transposed else log_n)
        + math.log2(kernel.elem_bytes),
    }  # fmt: skip


def _resource_columns(
    kernel: MatmulKernel, columns: npt.NDArray[np.int64], resident: Residency, hardware: HardwareSpec
) -> dict[str, npt.NDArray[Any]]:
    """What a block takes of shared memory, registers and threads, how many share a core, and how warps share it."""
    m, n, k, _, stages, group = columns.astype(np.float64)
    area, step_bytes = m * n, (m + n) * k * kernel.elem_bytes
    warps, threads = resident.warps, resident.warps * hardware.warp_size
    return {
        "num_stages": stages, "log2_warps": np.log2(warps), "log2_group_m": np.log2(group),
        "log2_step_bytes": np.log2(step_bytes), "shared_share": np.minimum(resident.shared_share, _CAP),
        "log2_blocks_per_core": np.log2(resident.blocks), "log2_warps_per_core": np.log2(resident.blocks * warps),
        "log2_outputs_per_thread": np.log2(area / threads),
        "log2_operand_registers": np.log2(step_bytes / (REGISTER_BYTES * threads)),
        "log2_outputs_per_warp": np.log2(area / warps), "whole_warp_groups": whole_warp_groups(columns),
        "log2_block_intensity": np.log2(2 * area / ((m + n) * kernel.elem_bytes)),
        **_fma_columns(kernel, columns, warps, hardware),
    }  # fmt: skip


def _copy_columns(
    kernel: MatmulKernel, columns: npt.NDArray[np.int64], resident: Residency, hardware: HardwareSpec
) -> dict[str, npt.NDArray[Any]]:
    """How operands come to shared memory: by themselves, stages ahead, or through a thread's registers."""
    m, n, k, _, stages, _ = columns.astype(np.float64)
    threads = resident.warps * hardware.warp_size
    a_bytes, b_bytes = m * k * kernel.elem_bytes, n * k * kernel.elem_bytes
    (a_turned, b_turned), (a_copied, b_copied) = turned(kernel, columns), copied(kernel, columns)
    a_vector, b_vector = vector_bytes(kernel)
    loads = a_bytes / np.where(a_turned, REGISTER_BYTES, a_vector) + b_bytes / np.where(
        b_turned, REGISTER_BYTES, b_vector
    )
    staged = a_bytes * ~a_copied + b_bytes * ~b_copied
    return {
        "asynchronous": whole_warp_groups(columns) & ~(a_turned | b_turned) & (kernel.dtype != "fp32"),
        "turned": a_turned | b_turned,
        "operands_copied": a_copied + 2.0 * b_copied,
        "log2_staged_registers": np.log2(staged / (REGISTER_BYTES * threads) + 1.0),
        "stages_ahead": np.where(a_copied & b_copied, stages, 1.0),
        "log2_loads_a_thread": np.log2(loads / threads),
    }


def _fma_columns(
    kernel: MatmulKernel, columns: npt.NDArray[np.int64], warps: FloatArray, hardware: HardwareSpec
) -> dict[str, npt.NDArray[Any]]:
    """Where no tensor core multiplies, else zeros: multiply-adds of a thread for each operand that it reads from shared
    memory, rows·columns ÷ (rows + columns) of its part of a tile; and what those reads make of a block's time."""
    if kernel.dtype != "fp32":
        return dict.fromkeys(("log2_fma_reuse", "log2_fma_slowdown"), np.zeros(columns.shape[1]))
    share = thread_share(columns, warps, hardware)
    return {
        "log2_fma_reuse": np.log2(share.rows * share.columns / (share.rows + share.columns)),
        "log2_fma_slowdown": np.log2(fma_slowdown(kernel, columns, hardware)),
    }


def _grid_columns(
    kernel: MatmulKernel,
    columns: npt.NDArray[np.int64],
    times: MatmulTimes,
    resident: Residency,
    hardware: HardwareSpec,
) -> dict[str, npt.NDArray[Any]]:
    """How blocks are dealt to cores, and what those that run at once share in rows of GROUP_M."""
    grid, blocks = times.grid, times.grid.n_blk.astype(np.float64)
    rows = np.minimum(columns[5], times.m_cnt)
    alone = np.minimum(blocks, hardware.cores) * (columns[0].astype(np.float64) + columns[1])
    log_blocks = np.log2(blocks)
    per_core = blocks / hardware.cores
    return {
        "log2_programs": log_blocks, "log2_programs_per_core": log_blocks - math.log2(hardware.cores),
        "n_wave": np.minimum(grid.n_wave, _CAP), "rho": grid.rho,
        "wave_efficiency": per_core / grid.n_wave, "tail_share": grid.r / blocks,
        "n_wave_resident": np.minimum(np.ceil(per_core / resident.blocks), _CAP),
        "log2_group_rows": np.log2(rows), "log2_blocks_a_group": np.log2(rows.astype(np.float64) * times.n_cnt),
        "log2_wave_bytes_over_l2": np.log2(times.shared_bytes / hardware.l2_bytes),
        "log2_l2_reuse": np.log2(alone * kernel.k * kernel.elem_bytes / times.shared_bytes),
    }  # fmt: skip


def _time_columns(times: MatmulTimes, roofline: float) -> dict[str, npt.NDArray[Any]]:
    """The planner's terms, µs: over all waves, and their maximum against the whole product's roofline."""
    mma, load, store = (np.log2(times.grid.n_wave * us) for us in (times.compute_us, times.load_us, times.store_us))
    predicted = np.log2(times.us)
    return {
        "log2_mma_us": mma, "log2_load_us": load, "log2_store_us": store, "log2_load_over_mma": load - mma,
        "log2_blocks_us": np.log2(times.blocks_us), "log2_memory_us": np.log2(times.memory_us),
        "log2_waiting_us": (waiting := np.log2(times.waiting_us)), "log2_waiting_over_bound": waiting - np.log2(times.bound_us),
        "log2_predicted_us": predicted, "log2_predicted_over_roofline": predicted - roofline,
    }  # fmt: skip


def _alignment(size: int) -> int:
    """Largest power of two, up to MAX_ALIGNMENT, that divides a size."""
    return min(size & -size, MAX_ALIGNMENT)
