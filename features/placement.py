"""Columns of a feature matrix on how Triton deals a tile to threads and what is on its way at once, by a kernel's own
accesses: metadata's hint which axis is contiguous differs from what most bytes do on some kernels, and it knows no vector.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .access import MAX_REGISTERS, VECTOR_BYTES, Occupancy, is_full
from .blocks import Blocks, Cut
from .code import Access, KernelCode
from .hardware import HardwareSpec
from .kernels import ReductionKernel

FloatArray = npt.NDArray[np.float64]

PLACEMENT_FEATURES = (
    "bytes_at_odds", "bytes_go_along_r", "log2_lane_vector_bytes", "log2_warp_run_bytes", "log2_sharing_threads",
    "log2_sharing_warps", "log2_steps_of_a_thread", "code_wave_efficiency", "log2_spilling", "log2_threads_in_flight",
    "log2_bytes_in_flight", "log2_rows_bytes", "log2_core_rows_bytes", "log2_rows_bytes_in_flight",
    "log2_loads_of_a_thread", "threads_per_element", "log2_x_start_bytes",
)  # fmt: skip
"""Of a kernel and a tile. Only accesses count that have an element of their own at every position of both axes; the axis
is the one that most of their bytes go along (the outputs' where as many go along either, metadata's where none do).

Shares and flags: bytes_at_odds, of those bytes along the other axis, 0 to 1/2; bytes_go_along_r, 1 where the axis is the
reduced one; code_wave_efficiency, of the places for blocks that all waves have, above 0, at most 1.

log2 of bytes: lane_vector, side by side in a thread, of the widest elements; warp_run, the same of a warp; rows, that a block
reads of each buffer over the whole reduced axis, which a second loop reads again; core_rows, of the blocks that a core
runs at once; bytes_in_flight and rows_bytes_in_flight, a trip's and the rows', of all blocks that run at once; x_start,
where each block's outputs begin at a multiple of, 128 at most, 9.0 where the axis is the reduced one.

log2 of counts: sharing_threads and sharing_warps, of a block, that have elements of one output; steps_of_a_thread,
elements of one output that it takes in all trips; threads_in_flight; loads_of_a_thread, loads and stores in one trip,
plus 1. log2_spilling: of the registers that a thread wants over those that it can have, 1 / threads on a core without
registers. threads_per_element: of a tile, 1 at least."""

_MAX_START_BYTES, _ANY_START = 128.0, 9.0
"""Past a whole cache line nothing changes; _ANY_START, a log2 above every other, says that outputs begin nowhere in
particular."""


def placement_columns(
    kernel: ReductionKernel, code: KernelCode, tiles: Blocks, pieces: Cut, held: Occupancy, hardware: HardwareSpec
) -> list[FloatArray]:
    """A tile's part, float64[n] each, in the order of PLACEMENT_FEATURES; finite. pieces: the kernel cut by the tiles."""
    full = [access for access in code.accesses if is_full(access, kernel)]
    along_x, along_r, scattered = _bytes_along(full, kernel)
    along = along_r > along_x if along_x or along_r else kernel.inner
    main = [access for access in full if (access.step_r == 1) == along] or full
    nbytes = max((access.nbytes for access in main), default=4)
    # Triton gives all accesses of one order the most elements a thread that any of them allows.
    widest = max((min(max(VECTOR_BYTES // access.nbytes, 1), access.align) for access in main), default=4)
    read = max(sum(access.nbytes * access.buffers for access in full if not access.store), 1)
    n, lanes = len(tiles.size), float(hardware.warp_size)

    # Triton's blocked layout: lanes, then warps, go along the axis first, a vector each; what is left goes along the other.
    contiguous, other = tiles.sides[int(along)], tiles.sides[1 - int(along)]
    vector = np.minimum(np.minimum(contiguous, widest), np.floor(tiles.per_thread))
    vectors = np.floor(contiguous / vector)
    lanes_along = np.minimum(vectors, lanes)
    threads_along = np.minimum(vectors, tiles.threads)
    threads_across = np.minimum(np.floor(tiles.threads / threads_along), other)
    sharing, sharing_lanes = (
        (threads_along, lanes_along) if along else (threads_across, np.minimum(lanes / lanes_along, other))
    )

    wanted, resident = held.wanted, held.resident
    programs, trips = pieces.counts
    fill = programs / (resident * hardware.cores)
    running = np.minimum(programs, resident * hardware.cores)
    rows = pieces.inside[0] * (kernel.rnumel * float(read))
    log_rows, log_running = np.log2(rows), np.log2(running)
    limit = np.minimum(MAX_REGISTERS, max(hardware.registers_per_core, 1) / tiles.threads)
    start = np.full(n, _ANY_START) if along else np.log2(np.minimum(tiles.sides[0] * nbytes, _MAX_START_BYTES))
    return [
        np.full(n, min(along_x, along_r) / max(along_x + along_r + scattered, 1)), np.full(n, float(along)),
        np.log2(vector * nbytes), np.log2(lanes_along * vector * nbytes), np.log2(sharing),
        np.log2(np.maximum(sharing / sharing_lanes, 1.0)),
        np.log2(trips * np.maximum(np.floor(tiles.sides[1] / sharing), 1.0)),
        fill / np.ceil(fill), np.log2(wanted / limit), log_running + tiles.log_threads,
        log_running + np.log2(pieces.inside[0] * pieces.inside[1] * float(read)), log_rows,
        log_rows + np.log2(np.minimum(resident, pieces.n_wave)), log_rows + log_running,
        np.log2(tiles.per_thread / vector * sum(access.count for access in full) + 1.0),
        np.maximum(tiles.threads / tiles.size, 1.0), start,
    ]  # fmt: skip


def _bytes_along(full: list[Access], kernel: ReductionKernel) -> tuple[int, int, int]:
    """Bytes of one position that go along x, along r, along neither: of every instruction, however few buffers there are."""
    along_x = along_r = scattered = 0
    for access in full:
        nbytes = access.nbytes * access.count
        if access.step_r == 1 and kernel.rnumel > 1:
            along_r += nbytes
        elif access.step_x == 1:
            along_x += nbytes
        else:
            scattered += nbytes
    return along_x, along_r, scattered
