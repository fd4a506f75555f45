"""The dense, legal space of a kernel on a hardware: what a full sweep would measure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.pow2 import is_pow2, pow2_ceil, pow2_floor
from tileguard.features.tiles import SORT_KEY, ReductionTile, TileSpace

# TorchInductor's own limits (runtime/hints.py TRITON_MAX_BLOCK): XBLOCK must divide 4096, R0_BLOCK 65536 at most.
TRITON_MAX_X = 4096
TRITON_MAX_R0 = 65536

MAX_REGISTERS_PER_THREAD = 256
"""What an instruction can name, rounded up."""

_LARGEST_X, _LARGEST_R0 = 512, 16384
"""Largest blocks of the Triton lattice."""


def lattice(kernel: ReductionKernel, hardware: HardwareSpec) -> TileSpace[ReductionTile]:
    """Every tile worth measuring, sorted; never empty, every tile legal by `is_legal`. Cached by what it depends on."""
    if hardware.kind == "nvidia":
        return _triton_lattice(
            min(pow2_ceil(kernel.xnumel), _LARGEST_X),
            pow2_ceil(kernel.rnumel) if kernel.persistent else min(pow2_ceil(kernel.rnumel), _LARGEST_R0),
            kernel.persistent,
            hardware.max_threads_per_block // hardware.warp_size, hardware.warp_size,
        )  # fmt: skip
    if hardware.kind == "cpu":
        return _cpu_lattice(kernel)
    return _ascend_lattice(pow2_floor(kernel.xnumel), kernel.rnumel, kernel.persistent)


def lattices(hardware: HardwareSpec) -> Iterator[TileSpace[ReductionTile]]:
    """All that `lattice` gives kernels of 4 reduced elements and more on an Nvidia GPU, where they are few; none elsewhere."""
    if hardware.kind == "nvidia":
        most = hardware.max_threads_per_block // hardware.warp_size
        for persistent, x, r in product(
            (False, True), range(_LARGEST_X.bit_length()), range(2, _LARGEST_R0.bit_length())
        ):
            yield _triton_lattice(1 << x, 1 << r, persistent, most, hardware.warp_size)


@lru_cache(maxsize=256)
def one_row(space: TileSpace[ReductionTile]) -> TileSpace[ReductionTile]:
    """Of a lattice, the tiles of one output a program: what a kernel without an x dimension has."""
    return TileSpace(tile for tile in space if tile.xblock == 1)


def is_legal(tile: ReductionTile, kernel: ReductionKernel, hardware: HardwareSpec) -> bool:
    """Whether the compiler of this hardware can take the tile at all (a legal tile may still run out of resources).

    Triton wants powers of two within its block limits; a persistent kernel fixes R0_BLOCK; a block has a warp at
    least and the hardware's threads at most, and its registers hold the tile. On the CPU the lattice is all there is: a wider tile or one that is no
    power of two takes LLVM seconds and never won a sweep.
    """
    if kernel.persistent and tile.r0_block != persistent_r0(kernel, hardware):
        return False
    if hardware.kind == "nvidia":
        most = hardware.max_threads_per_block // hardware.warp_size
        return (
            is_pow2(tile.xblock)
            and is_pow2(tile.r0_block)
            and tile.xblock <= TRITON_MAX_X
            and tile.r0_block <= (pow2_ceil(kernel.rnumel) if kernel.persistent else TRITON_MAX_R0)
            and tile.num_warps is not None
            and is_pow2(tile.num_warps)
            and tile.num_warps <= most
            and tile.lowering is None
            and _fits_registers(tile.xblock * tile.r0_block, tile.num_warps, kernel, hardware)
        )
    if hardware.kind == "cpu":
        return tile in _cpu_lattice(kernel).position
    return tile.xblock <= pow2_floor(kernel.xnumel) and tile.r0_block <= pow2_ceil(kernel.rnumel)


def _fits_registers(size: int, num_warps: int, kernel: ReductionKernel, hardware: HardwareSpec) -> bool:
    """Whether a block's registers hold its tile once, and where it loops its accumulator besides.

    What does not fit spills: the compiler takes long over it, and the host throws it away. A persistent kernel of one
    row a program has no smaller tile.
    """
    threads = num_warps * hardware.warp_size
    registers = min(threads * MAX_REGISTERS_PER_THREAD, hardware.registers_per_core)
    return size * (1 if kernel.persistent else 2) <= registers or (
        kernel.persistent and size == pow2_ceil(kernel.rnumel)
    )


def persistent_r0(kernel: ReductionKernel, hardware: HardwareSpec) -> int:
    """R0_BLOCK of a persistent kernel: the whole axis, a power of two where Triton's arange wants one."""
    return kernel.rnumel if hardware.kind != "nvidia" else pow2_ceil(kernel.rnumel)


def warp_counts(size: int, kernel: ReductionKernel, hardware: HardwareSpec) -> tuple[int, ...]:
    """The warp counts worth measuring for a tile of `size` elements, ascending; may be empty."""
    most = hardware.max_threads_per_block // hardware.warp_size
    return tuple(sorted(block_warps(size, kernel.persistent, most, hardware.warp_size)))


def block_warps(size: int, persistent: bool, max_warps: int, warp_size: int) -> set[int]:
    """As `warp_counts`, from plain numbers."""
    per_thread = (2, 4, 8, 16, 32, 64) if persistent else (4, 8, 16, 32)
    counts = {size // (warp_size * elements) for elements in per_thread}
    if size <= 128:
        counts.add(1)
    return {count for count in counts if 1 <= count <= max_warps}


@lru_cache(maxsize=1024)
def _triton_lattice(
    x_ceil: int, r_ceil: int, persistent: bool, max_warps: int, warp_size: int
) -> TileSpace[ReductionTile]:
    """Tiles of 64 to 16,384 elements (32,768 where persistent) with 4 to 32 elements a thread (2 to 64)."""
    xs = [1 << e for e in range(x_ceil.bit_length())]
    rs = [r_ceil] if persistent else [1 << e for e in range(2, r_ceil.bit_length())] or [r_ceil]
    tiles = [tile for x in xs for r in rs for tile in _triton_tiles(x, r, persistent, max_warps, warp_size)]
    # A kernel of one short row has no tile by those rules.
    return TileSpace(tiles or [ReductionTile(1, r_ceil, max_warps if r_ceil > 4096 else 1)])


@lru_cache(maxsize=1024)
def _triton_tiles(x: int, r: int, persistent: bool, max_warps: int, warp_size: int) -> tuple[ReductionTile, ...]:
    """The lattice's tiles of one block, by warps. Lattices share them: a compiler waits while the next one is made."""
    size = x * r
    if persistent:
        if size > 32768 and x > 1:
            return ()
    elif not (64 <= size <= 16384 or (x == 1 and size < 64)) or (x >= 256 and r > 16):
        return ()
    return tuple(ReductionTile(x, r, w) for w in sorted(block_warps(size, persistent, max_warps, warp_size)))


@lru_cache(maxsize=1024)
def _cpu_lattice(kernel: ReductionKernel) -> TileSpace[ReductionTile]:
    from .devices.cpu.budgets import cpu_tiles

    return TileSpace(cpu_tiles(kernel))


@lru_cache(maxsize=1024)
def _ascend_lattice(x_floor: int, rnumel: int, persistent: bool) -> TileSpace[ReductionTile]:
    """Powers of two on both axes and R0 = rnumel, up to 32,768 elements a tile (reduction RFC §3.1); no warps."""
    xs = [1 << e for e in range(min(x_floor, 4096).bit_length())]
    rs = {rnumel}
    if not persistent:
        rs |= {1 << e for e in range(1, 15) if 1 << e <= pow2_ceil(rnumel)}
    tiles = [ReductionTile(x, r) for x in xs for r in sorted(rs) if x * r <= 32768 or x == 1]
    return TileSpace(sorted(tiles, key=SORT_KEY))
