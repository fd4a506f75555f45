"""Columns of a feature matrix that follow from a kernel's own code: what a tile moves, in runs of what length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .blocks import Blocks, Cut
from .code import Access, KernelCode
from .hardware import HardwareSpec
from .kernels import ReductionKernel

FloatArray = npt.NDArray[np.float64]

CODE_FEATURES = (
    "log2_ideal_bytes", "log2_ideal_bytes_per_element", "bytes_along_x", "bytes_along_r", "bytes_scattered",
    "bytes_indirect", "bytes_of_x", "bytes_of_r", "bytes_stored", "loops", "accumulators", "special", "arithmetic",
    "reductions", "log2_run_x", "log2_run_r", "log2_run_alignment", "full_loads",
)  # fmt: skip
"""Of a kernel. bytes_…: of an element, summed over accesses that go along an axis, that are shared by an axis, …"""

ACCESS_FEATURES = (
    "log2_traffic_waste", "log2_shortest_run_bytes", "log2_mean_run_bytes", "log2_mean_vector_bytes",
    "log2_instructions", "log2_trip_bytes", "log2_trip_bytes_per_thread", "log2_core_trip_bytes", "log2_shared_bytes",
    "code_resident_blocks", "code_waves", "log2_code_fill", "log2_code_time", "log2_moved_time",
    "log2_compute_over_memory", "log2_code_registers", "log2_reread_share", "passes",
)  # fmt: skip
"""Of a kernel and a tile."""

SECTOR_BYTES = 32
"""What memory hands out at least: the rest of a sector that a run only touches is moved for nothing."""

VECTOR_BYTES = 16
MEMORY_LATENCY_S, BLOCK_S, LAUNCH_S = 700e-9, 500e-9, 1e-6
OPS_PER_CORE_S = 128 * 1.7e9
"""Rough times of a memory access, of a block's start and end, of a launch, and a rate: they only shape features, a model
learns its own scale."""

_SPECIAL_OPS, _REDUCTION_OPS, _OTHER_OPS = 6, 2, 4
FIXED_REGISTERS, MAX_REGISTERS = 24, 255.0
"""Of a thread: what it needs besides elements, and what an instruction can name."""

_CAP = float(1 << 20)


def assumed_code(kernel: ReductionKernel) -> KernelCode:
    """What a kernel without a source is taken to do: every load reads all of its axis, contiguous where `inner` says so,
    and outputs are stored once."""
    nbytes = max(kernel.total_bytes // max(kernel.num_load + kernel.num_store, 1), 1)
    align = math.gcd(kernel.rnumel if kernel.inner else kernel.xnumel, 16)
    steps = (kernel.rnumel, 1) if kernel.inner else (1, kernel.xnumel)
    loads = (
        Access(False, nbytes, kernel.xnumel > 1, kernel.rnumel > 1, *steps, kernel.xnumel, kernel.rnumel, align,
               count=kernel.num_load, buffers=kernel.num_load),
    ) if kernel.num_load else ()  # fmt: skip
    stores = Access(
        True, nbytes, kernel.xnumel > 1, False, 1, 0, kernel.xnumel, kernel.rnumel, math.gcd(kernel.xnumel, 16),
        count=kernel.num_store, buffers=kernel.num_store,
    )  # fmt: skip
    loops = 0 if kernel.persistent else 1
    return KernelCode(
        (*loads, stores), loops, loops * kernel.num_reduction, 0, kernel.num_load + kernel.num_reduction,
        kernel.num_reduction,
    )  # fmt: skip


def code_columns(kernel: ReductionKernel, code: KernelCode) -> list[float]:
    """A kernel's part, in the order of CODE_FEATURES."""
    full: list[Access] = []
    along_x = along_r = scattered = indirect = of_x = of_r = stored = full_loads = 0
    for access in code.accesses:
        nbytes = access.nbytes * access.count
        if access.indirect:
            indirect += nbytes
        elif is_full(access, kernel):
            full.append(access)
            if access.step_r == 1:
                along_r += nbytes
            elif access.step_x == 1:
                along_x += nbytes
            else:
                scattered += nbytes
            if access.store:
                stored += nbytes
            else:
                full_loads += access.count
        elif access.along_x:
            of_x += nbytes
        elif access.along_r:
            of_r += nbytes
    log_ideal = math.log2(ideal_bytes(kernel, code))
    return [
        log_ideal, log_ideal - math.log2(kernel.xnumel) - math.log2(kernel.rnumel),
        along_x, along_r, scattered, indirect, of_x, of_r, stored,
        code.loops, code.accumulators, code.special, code.arithmetic, code.reductions,
        math.log2(min([a.run_x for a in full], default=1)), math.log2(min([a.run_r for a in full], default=1)),
        math.log2(min([a.align for a in full], default=16)), full_loads,
    ]  # fmt: skip


def ideal_bytes(kernel: ReductionKernel, code: KernelCode) -> float:
    """Bytes that must move at least: each buffer's elements once."""
    total = 0.0
    for access in code.accesses:
        if not access.indirect:
            elements = (kernel.xnumel if access.along_x else 1) * (kernel.rnumel if access.along_r else 1)
            total += access.nbytes * access.buffers * float(elements)
    return max(total, 1.0)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """float64[n] each: registers that a thread wants, those that it gets (MAX_REGISTERS at most), blocks that a core then
    runs at once."""

    wanted: FloatArray
    registers: FloatArray
    resident: FloatArray


def occupancy(kernel: ReductionKernel, code: KernelCode, tiles: Blocks, hardware: HardwareSpec) -> Occupancy:
    """What tiles ask of a core."""
    wanted = FIXED_REGISTERS + tiles.per_thread * live_registers(kernel, code)
    registers = np.minimum(wanted, MAX_REGISTERS)
    return Occupancy(wanted, registers, resident_blocks(registers, tiles.threads, hardware))


def access_columns(
    kernel: ReductionKernel, code: KernelCode, tiles: Blocks, pieces: Cut, held: Occupancy, hardware: HardwareSpec
) -> list[FloatArray]:
    """A tile's part, float64[n] each, in the order of ACCESS_FEATURES."""
    threads, per_thread = tiles.threads, tiles.per_thread
    wide, deep = pieces.inside
    programs, trips = pieces.counts
    area = wide * deep
    # Sums begin as numbers: to make arrays of zeros takes longer than to add them up.
    moved: FloatArray | float = 0.0
    shared: FloatArray | float = 0.0
    instructions: FloatArray | float = 0.0
    shortest: FloatArray | float = 4096.0
    run_bytes: FloatArray | float = 0.0
    vector_bytes: FloatArray | float = 0.0
    used, weight = 0, 0
    for access in code.accesses:
        nbytes = access.nbytes * access.count
        if access.indirect:
            instructions += per_thread * access.count
            moved += area * (SECTOR_BYTES * access.count)
            used += nbytes
        elif is_full(access, kernel):
            run = _run(access, wide, deep)
            run_bytes_now = run * access.nbytes
            sectors = _sectors(access, run_bytes_now)
            moved += area / run * sectors * (SECTOR_BYTES * access.count)
            used += nbytes
            widest = min(max(VECTOR_BYTES // access.nbytes, 1), access.align)
            vector = np.minimum(np.minimum(per_thread, run), widest)  # none of them is below 1
            instructions += per_thread / vector * access.count
            shortest = np.minimum(shortest, run_bytes_now)
            run_bytes += nbytes * np.log2(run_bytes_now)
            vector_bytes += nbytes * np.log2(vector * access.nbytes)
            weight += nbytes
        elif access.along_x and (access.step_r == 0 or not access.along_r):
            shared += wide * nbytes
        elif access.along_r:
            shared += deep * nbytes
            instructions += per_thread * (access.count / 4)
    weight = max(weight, 1)
    registers, resident = held.registers, held.resident
    fill = programs / (resident * hardware.cores)
    per_core = np.minimum(resident, pieces.n_wave)
    code_waves = np.ceil(fill)
    passes = max(code.loops, 1)
    trip_bytes = moved + shared
    core_trip_bytes = per_core * trip_bytes
    operations = (
        code.arithmetic + _SPECIAL_OPS * code.special + _REDUCTION_OPS * code.reductions + _OTHER_OPS
    ) * tiles.size  # fmt: skip
    core_rate = hardware.dram_bytes_per_s / hardware.cores
    memory_s = np.maximum(MEMORY_LATENCY_S, core_trip_bytes / passes / core_rate)
    compute_s = per_core * operations / passes / OPS_PER_CORE_S
    all_passes, all_trips = trips * passes, programs * trips
    time_s = code_waves * (all_passes * np.maximum(memory_s, compute_s) + BLOCK_S) + LAUNCH_S
    ideal = ideal_bytes(kernel, code)
    ideal_s = ideal / hardware.dram_bytes_per_s + LAUNCH_S
    moved_s = all_trips * moved / hardware.dram_bytes_per_s + LAUNCH_S
    return [
        np.log2(np.maximum(moved, 1.0) / np.maximum(area * used, 1.0)), np.log2(shortest), run_bytes / weight,
        vector_bytes / weight, np.log2(instructions + 1.0), np.log2(trip_bytes + 1.0),
        np.log2(trip_bytes / threads + 1.0), np.log2(core_trip_bytes + 1.0), np.log2(shared + 1.0),
        resident, np.minimum(code_waves, _CAP), np.log2(fill), np.log2(time_s / ideal_s),
        np.log2(moved_s / ideal_s), np.log2(compute_s / memory_s), np.log2(registers),
        np.log2(all_trips * shared + 1.0) - math.log2(ideal), np.minimum(all_passes, _CAP),
    ]  # fmt: skip


def live_registers(kernel: ReductionKernel, code: KernelCode) -> float:
    """Registers that a thread holds for each of its elements: accumulators, what it loads there, rows of weights."""
    live = float(code.accumulators)
    for access in code.accesses:
        if is_full(access, kernel):
            live += 0 if access.store else access.count * max(access.nbytes, 4) / 4
        elif not access.indirect and access.along_r and not (access.along_x and access.step_r == 0):
            live += access.count
    return live


def is_full(access: Access, kernel: ReductionKernel) -> bool:
    """Whether it reads or writes an element of its own at every position of both axes; of one element, an axis has no
    other."""
    return (
        not access.indirect
        and (access.along_x or kernel.xnumel == 1)
        and (access.along_r or kernel.rnumel == 1)
        and (access.step_x > 0 or kernel.xnumel == 1)
        and (access.step_r > 0 or kernel.rnumel == 1)
    )


def _run(access: Access, wide: FloatArray, deep: FloatArray) -> FloatArray:
    """Elements of a tile that lie side by side, at least 1; over a whole run the other axis may go on."""
    if access.step_r == 1:
        run = np.minimum(deep, access.run_r)
        if access.step_x == access.run_r:
            run = np.where(deep >= access.run_r, access.run_r * np.minimum(wide, access.run_x), run)
    elif access.step_x == 1:
        run = np.minimum(wide, access.run_x)
        if access.step_r == access.run_x:
            run = np.where(wide >= access.run_x, access.run_x * np.minimum(deep, access.run_r), run)
    else:
        run = np.minimum(wide, 1.0)
    return run


def _sectors(access: Access, run_bytes: FloatArray) -> FloatArray:
    """Sectors that one run touches: on average one more where runs begin anywhere."""
    if access.align >= 16 or access.align * access.nbytes % SECTOR_BYTES == 0:
        return np.ceil(run_bytes / SECTOR_BYTES)
    return (run_bytes - access.nbytes) / SECTOR_BYTES + 1.0


def resident_blocks(registers: FloatArray, threads: FloatArray, hardware: HardwareSpec) -> FloatArray:
    """float64[n]: blocks that one core runs at once, at least 1, of threads that take so many registers each."""
    if not hardware.max_threads_per_core:
        return np.minimum(threads, 1.0)
    most = np.minimum(hardware.registers_per_core / (registers * threads), hardware.max_threads_per_core / threads)
    return np.minimum(np.maximum(np.floor(most), 1.0), hardware.max_blocks_per_core)
