"""Waves of a grid over C cores: one definition for reductions and matmuls (BMM note §1.2–1.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import checked_int

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Waves:
    """Blocks dealt to C cores in order: core i runs blocks i, i+C, i+2C, …

    n_blk: number of blocks; n_wave: ⌈n_blk/C⌉; r: blocks of the last, partial wave, n_blk mod C (0 when every
    wave is full); rho: ρ = r/C, the share of the last wave that has work. int64 or float64 arrays of one shape.
    """

    n_blk: IntArray
    n_wave: IntArray
    r: IntArray
    rho: npt.NDArray[np.float64]


def waves(n_blk: int | IntArray, cores: int) -> Waves:
    """The waves of `n_blk` blocks (scalar or array) on `cores` cores."""
    cores = checked_int("cores", cores, minimum=1)
    blocks = np.asarray(n_blk, dtype=np.int64)
    remainder = blocks % cores
    return Waves(blocks, -(-blocks // cores), remainder, remainder / cores)
