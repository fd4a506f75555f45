"""The three times of one block and which of them rules (BMM note §2.1, §2.2, §2.4).

A block is one core's output tile of s_m x s_n with all of K. Sides may be numbers or arrays; times are in µs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput, checked_choice, checked_type
from tileguard.features.hardware import KNOWN, HardwareSpec, MatmulUnit
from tileguard.features.kernels import MatmulKernel

FloatArray = npt.NDArray[np.float64]

MMAD, MTE2, FIX = "mmad", "mte2", "fix"
AREA, PERIMETER = "area", "perimeter"
KINDS = (AREA, PERIMETER)
"""How a block's time scales with its tile: multiplication and write-out by area, loading by perimeter (§2.1)."""

SOURCES = ("l2", "gm")
"""Where inputs come from: the L2 cache or main memory."""

US = 1e6


@dataclass(frozen=True, slots=True)
class Rates:
    """What one core does with one problem.

    k: K; elem_bytes, out_bytes: of an input's and an output's element; flops_per_s: Q; load_bytes_per_s: BW_eff;
    store_bytes_per_s: BW_pc; source: where BW_eff comes from, l2, gm or given.
    """

    k: int
    elem_bytes: int
    out_bytes: int
    flops_per_s: float
    load_bytes_per_s: float
    store_bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Terms:
    """T_MMAD, T_MTE2 and T_FIX of one block, in µs (§2.1)."""

    mmad: float
    mte2: float
    fix: float

    @property
    def block(self) -> float:
        """T_block: the largest of the three."""
        return max(self.mmad, self.mte2, self.fix)

    @property
    def area(self) -> float:
        """The larger of the two terms that scale with the tile's area."""
        return max(self.mmad, self.fix)

    @property
    def dominant(self) -> str:
        """Which term rules: mmad, mte2 or fix; at a tie, in this order of preference: mmad, fix, mte2."""
        if self.mte2 > self.area:
            return MTE2
        return MMAD if self.mmad >= self.fix else FIX

    @property
    def kind(self) -> str:
        """How the ruling term scales: `area` or `perimeter`."""
        return PERIMETER if self.dominant == MTE2 else AREA

    def scaled(self, g: float) -> Terms:
        """Of a block with 1/g of the area and the same proportions: 1/g, 1/√g, 1/g (§2.2). g is positive."""
        if not 0 < g < math.inf:
            raise InvalidInput("g", g, "a positive number")
        return Terms(self.mmad / g, self.mte2 / math.sqrt(g), self.fix / g)


def matmul_unit(hardware: HardwareSpec) -> MatmulUnit:
    """The hardware's matrix unit. Raises InvalidInput where none is described."""
    checked_type("hardware", hardware, HardwareSpec)
    if hardware.matmul is None:
        known = ", ".join(name for name, spec in KNOWN.items() if spec.matmul is not None)
        raise InvalidInput("hardware", hardware.name, f"one whose matrix unit is known: {known}")
    return hardware.matmul


def rates(kernel: MatmulKernel, hardware: HardwareSpec, bandwidth: float | None = None) -> Rates:
    """Rates of one core for `kernel`: BW_eff is L2's share while both inputs fit in L2, else GM's (§2.1, §2.4).

    `bandwidth` replaces BW_eff, in bytes/s of one core. Raises InvalidInput naming hardware, dtype or bandwidth.
    """
    unit = matmul_unit(hardware)
    if kernel.dtype not in unit.rates:
        raise InvalidInput(
            "dtype", kernel.dtype, f"one whose rate on {hardware.name} is known: {', '.join(unit.rates)}"
        )
    source = "l2" if kernel.input_bytes <= hardware.l2_bytes else "gm"
    load = unit.l2_bytes_per_s_per_core if source == "l2" else unit.gm_bytes_per_s_per_core
    if bandwidth is not None:
        if isinstance(bandwidth, bool) or not isinstance(bandwidth, int | float) or not 1 <= bandwidth <= 1e18:
            raise InvalidInput("bandwidth", bandwidth, "bytes/s of one core, from 1 to 1e18")
        source, load = "given", float(bandwidth)
    return Rates(
        kernel.k, kernel.elem_bytes, kernel.out_bytes, unit.rates[kernel.dtype], load, unit.gm_bytes_per_s_per_core,
        source,
    )  # fmt: skip


def block_terms(s_m: int, s_n: int, rates: Rates) -> Terms:
    """The three times of one s_m x s_n block (§2.1).

    K_L1 is in none of them: in steady state the time to load depends on the bytes alone.
    """
    mmad, mte2, fix = _per_element(rates)
    return Terms(float(s_m) * s_n * mmad, (float(s_m) + s_n) * mte2, float(s_m) * s_n * fix)


def block_us(s_m: Any, s_n: Any, rates: Rates) -> FloatArray:
    """T_block in µs, the largest of the three terms: float64 of the shape that s_m and s_n broadcast to."""
    m, n = np.asarray(s_m, np.float64), np.asarray(s_n, np.float64)
    mmad, mte2, fix = _per_element(rates)
    # MMAD and FIX both go with m·n, so one of them is the larger everywhere.
    found: FloatArray = np.maximum(m * n * max(mmad, fix), (m + n) * mte2)
    return found


def _per_element(rates: Rates) -> tuple[float, float, float]:
    """µs of T_MMAD an element of the tile, T_MTE2 an element of its half perimeter, T_FIX an element of the tile."""
    return (
        US * 2.0 * rates.k / rates.flops_per_s,
        US * rates.k * rates.elem_bytes / rates.load_bytes_per_s,
        US * rates.out_bytes / rates.store_bytes_per_s,
    )


def critical_tile(rates: Rates) -> float:
    """s_m·s_n/(s_m+s_n) above which MMAD outweighs MTE2: dtype·Q/(2·BW_eff), elements; K cancels (§2.1)."""
    return rates.elem_bytes * rates.flops_per_s / (2.0 * rates.load_bytes_per_s)


def critical_side(rates: Rates) -> float:
    """Side of the square tile at that point: twice critical_tile (§2.1: 187 from L2, 608 from GM)."""
    return 2.0 * critical_tile(rates)


def critical_k(rates: Rates) -> float:
    """K*: K above which MMAD outweighs FIX, outB·Q/(2·BW_pc) (§2.1: 304 for bf16)."""
    return rates.out_bytes * rates.flops_per_s / (2.0 * rates.store_bytes_per_s)


def dominance(s_m: int, s_n: int, rates: Rates) -> str:
    """Which term rules, from the two ratios alone (§2.1); the same as block_terms(…).dominant."""
    tile = s_m * s_n / (s_m + s_n)
    by_mmad = rates.k >= critical_k(rates)
    # FIX outweighs MTE2 where MMAD would, scaled by FIX ÷ MMAD = K*/K.
    critical = critical_tile(rates) * (1.0 if by_mmad else rates.k / critical_k(rates))
    if tile < critical:
        return MTE2
    return MMAD if by_mmad else FIX


def checked_kind(kind: object) -> str:
    """`kind` when it is `area` or `perimeter`."""
    return checked_choice("kind", kind, KINDS)


def as_dict(terms: Terms) -> Mapping[str, float]:
    """The three times by name, for output."""
    return {MMAD: terms.mmad, MTE2: terms.mte2, FIX: terms.fix}
