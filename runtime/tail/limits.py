"""Which tiles a core may take: alignment, the L1 buffers, bursts and transfer sizes (BMM note §2.3, §2.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import MatmulUnit
from tileguard.features.kernels import MatmulKernel

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

L1_BUFFERS = 2
"""Copies of both operands' K step that L1 holds: one is loaded while the other is used (§2.5)."""

FINE = 64
"""Aligned steps up to which every side is searched: 1024 elements of 16."""


@dataclass(frozen=True, slots=True)
class TileLimits:
    """The limits of one problem's tiles, in elements unless named bytes.

    m, n, k: the axes rounded up to `align`, which no tile or K step exceeds; burst_m, burst_n: the least side where
    that axis is contiguous in memory (B's N unless B is transposed, A's M if A is), else 0; burst_k: the least K step
    where K is contiguous in either input, else 0. A side or step that takes its whole axis cannot be longer and is
    exempt from every least size.
    """

    m: int
    n: int
    k: int
    align: int
    elem_bytes: int
    l1_bytes: int
    min_transfer_bytes: int
    burst_m: int
    burst_n: int
    burst_k: int

    @property
    def longest(self) -> int:
        """Σ of both sides at which L1 still holds the shortest K step allowed."""
        step = min(self.k, max(self.align, self.burst_k))
        return self.l1_bytes // (L1_BUFFERS * self.elem_bytes * step)


def tile_limits(kernel: MatmulKernel, unit: MatmulUnit) -> TileLimits:
    """The limits of `kernel` on a matrix unit. Raises InvalidInput where L1 holds not even the smallest tile."""
    burst = _aligned(-(-unit.min_burst_bytes // kernel.elem_bytes), unit.align)
    limits = TileLimits(
        m=_aligned(kernel.m, unit.align), n=_aligned(kernel.n, unit.align), k=_aligned(kernel.k, unit.align),
        align=unit.align, elem_bytes=kernel.elem_bytes, l1_bytes=unit.l1_bytes,
        min_transfer_bytes=unit.min_transfer_bytes,
        burst_m=burst if kernel.a_transposed else 0,
        burst_n=0 if kernel.b_transposed else burst,
        burst_k=0 if kernel.a_transposed and not kernel.b_transposed else burst,
    )  # fmt: skip
    if limits.longest < 2 * unit.align:
        raise InvalidInput("l1_bytes", unit.l1_bytes, "enough for one aligned tile")
    return limits


def k_step(s_m: Any, s_n: Any, limits: TileLimits) -> IntArray:
    """k_L1: the longest aligned K step of which L1 holds two for both operands, at most K; 0 where none fits (§2.5)."""
    sides = np.asarray(s_m, np.int64) + np.asarray(s_n, np.int64)
    steps = limits.l1_bytes // (L1_BUFFERS * limits.elem_bytes * sides)
    return np.minimum(steps // limits.align * limits.align, limits.k)


def fits(s_m: Any, s_n: Any, limits: TileLimits) -> BoolArray:
    """Whether tiles of s_m x s_n (aligned, broadcast) keep every limit: axes, L1, bursts, transfer sizes (§2.3)."""
    m, n = np.asarray(s_m, np.int64), np.asarray(s_n, np.int64)
    step = k_step(m, n, limits)
    whole_m, whole_n, whole_k = m >= limits.m, n >= limits.n, step >= limits.k
    least = limits.min_transfer_bytes // limits.elem_bytes
    good: BoolArray = (
        (step >= limits.align) & (m <= limits.m) & (n <= limits.n)
        & ((step >= limits.burst_k) | whole_k)
        & ((m >= limits.burst_m) | whole_m) & ((n >= limits.burst_n) | whole_n)
        & (whole_k | (((step * m >= least) | whole_m) & ((step * n >= least) | whole_n)))
    )  # fmt: skip
    return good


def sides(axis: int, limits: TileLimits) -> IntArray:
    """int64[s]: aligned sides of a tile on an axis of `axis` (aligned) elements that can fit L1, ascending.

    Every one up to FINE aligned steps, where the note's layouts end; past it the step doubles as the side does, so that
    a search stays small where L1 allows sides of thousands. The longest that fits, often the whole axis, is among them.
    """
    longest = min(axis, limits.longest - limits.align)
    top, step = FINE * limits.align, limits.align
    parts = [np.arange(step, min(top, longest) + 1, step, dtype=np.int64)]
    while top < longest:
        step *= 2
        parts.append(np.arange(top + step, min(2 * top, longest) + 1, step, dtype=np.int64))
        top *= 2
    found = np.concatenate(parts)
    return found if found[-1] == longest else np.append(found, longest)


def even_sides(length: int, limits: TileLimits) -> IntArray:
    """int64[s]: the sides that cut `length` elements most evenly, ⌈length/c⌉ aligned for every count c, ascending.

    Of all sides that need the same number of blocks this is the shortest, so it is never the slower.
    """
    counts = -(-length // sides(_aligned(length, limits.align), limits))
    shortest = -(-length // counts)
    return np.unique(-(-shortest // limits.align) * limits.align)


def _aligned(value: int, align: int) -> int:
    return -(-value // align) * align
