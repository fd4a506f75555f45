"""The RFC's own constants, found in a corpus: regimes with their dead zones, P*, the split, the small anchors.

Source: reduction RFC §3.1, §3.3, which found them by hand on 153 kernels. Regimes are sought among the kernels whose R0
is a choice (looped ones).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tileguard.features.anchor import FormulaParams, regime, shape_anchor
from tileguard.features.hardware import HardwareSpec
from tileguard.features.pow2 import is_pow2, pow2_floor, pow2_round
from tileguard.features.tiles import ReductionTile

from .corpus import KernelSweep

FloatArray = npt.NDArray[np.float64]

FEW = 20
"""Kernels below which nothing is fitted, and the RFC's constant stays."""


NEARLY_ALL = 0.9
"""Share of winners with R0 over the whole axis that makes a regime SMALL."""


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares fit: coefficients by column, R², and on how many kernels. Where y does not vary R² is 1."""

    coefficients: tuple[float, ...]
    r2: float
    n: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Neighbouring values of rnumel between which the corpus has no kernel, and how many doublings they are apart."""

    below: int
    above: int

    @property
    def doublings(self) -> float:
        return math.log2(self.above / self.below)


@dataclass(frozen=True, eq=False)
class Facts:
    """What was found. kernels: looped ones; by_regime: how many each. small_gap, hole_gap: the dead zones that the two
    thresholds lie in; gaps: the widest of all. small_fills: share of SMALL winners whose R0 covers the axis. hole_correlation: of log2 R0 with log2 rnumel in the HOLE (None: too few kernels).
    products: winners' X·R0, most frequent first; pow2_products: share that are powers of two. split: log2(X/R0) on
    log2(xnumel/rnumel) over MID. fills, shorts, wides: winners in MID with R0 = the whole axis, with R0 at most a
    quarter of the anchor's, and with X = the whole output axis and R0 of at most 8.
    """

    kernels: int
    by_regime: dict[str, int]
    small_gap: Gap
    hole_gap: Gap | None
    gaps: tuple[Gap, ...]
    small_fills: float
    hole_correlation: float | None
    products: tuple[tuple[int, int], ...]
    pow2_products: float
    product_by_width: dict[str, tuple[float, int]]
    split: Line | None
    fills: int
    shorts: int
    wides: int


def winner(sweep: KernelSweep) -> ReductionTile:
    """The fastest measured tile."""
    return sweep.tiles[int(np.argmin(sweep.slowdown))]


def least_squares(rows: Sequence[Sequence[float]], y: FloatArray) -> Line:
    """y on the rows' columns, the first a constant; another column that never varies gets 0. Rounded to what the data
    can tell, so that a formula's file is the same on every machine."""
    design = np.asarray(rows, dtype=np.float64)
    varies = [0, *(j for j in range(1, design.shape[1]) if np.ptp(design[:, j]) > 0)]
    found, *_ = np.linalg.lstsq(design[:, varies], y, rcond=None)
    coefficients = [0.0] * design.shape[1]
    for j, value in zip(varies, found, strict=True):
        coefficients[j] = round(float(value), 3)
    spread = float(((y - y.mean()) ** 2).sum())
    left = float(((y - design @ np.array(coefficients)) ** 2).sum())
    return Line(tuple(coefficients), 1.0 - left / spread if spread > 0 else 1.0, len(y))


def rfc_constants(sweeps: Sequence[KernelSweep], hardware: HardwareSpec) -> tuple[FormulaParams, Facts]:
    """The RFC's formula with this corpus's constants (without rules), and what they rest on."""
    chosen = [s for s in sweeps if not s.kernel.persistent] or list(sweeps)
    won = [winner(s) for s in chosen]
    rnumel = np.array([s.kernel.rnumel for s in chosen], dtype=np.float64)
    log_r0 = np.log2([tile.r0_block for tile in won])
    fills = np.array([tile.r0_block >= s.kernel.rnumel for s, tile in zip(chosen, won, strict=True)])
    values = np.unique(rnumel)
    rn_small, covered = _small_threshold(rnumel, fills, values)
    rn_hole = _hole_threshold(np.log2(rnumel), log_r0, values, rn_small)
    params = FormulaParams(
        rn_small=rn_small, rn_hole=rn_hole, onchip_bytes=hardware.onchip_bytes, onchip_overhead=hardware.onchip_overhead
    )
    groups: dict[str, list[int]] = {"small": [], "mid": [], "hole": []}
    for i, sweep in enumerate(chosen):
        groups[regime(sweep.kernel.rnumel, params)].append(i)
    hole, mid = groups["hole"], groups["mid"]
    correlation = None
    if len(hole) >= FEW:
        params = replace(
            params,
            hole_x=_most_frequent(won[i].xblock for i in hole),
            hole_r=_most_frequent(won[i].r0_block for i in hole),
        )
        if np.ptp(log_r0[hole]) > 0 and np.ptp(rnumel[hole]) > 0:
            correlation = float(np.corrcoef(np.log2(rnumel[hole]), log_r0[hole])[0, 1])
    widths = {}
    for name, narrow in (("p_narrow", True), ("p_wide", False)):
        logs = [math.log2(won[i].xblock * won[i].r0_block) for i in mid if (chosen[i].kernel.min_bytes <= 2) == narrow]
        if len(logs) >= FEW:
            product = pow2_round(2.0 ** float(np.median(logs)))
            params = replace(params, p_narrow=product) if narrow else replace(params, p_wide=product)
            widths[name] = (float(np.median(logs)), len(logs))
    split = None
    if len(mid) >= FEW:
        ratios = [(1.0, math.log2(chosen[i].kernel.xnumel / chosen[i].kernel.rnumel)) for i in mid]
        split = least_squares(ratios, np.array([math.log2(won[i].xblock / won[i].r0_block) for i in mid]))
        params = replace(params, split_intercept=split.coefficients[0], split_slope=split.coefficients[1])
    covering = [i for i in mid if won[i].r0_block >= chosen[i].kernel.rnumel]
    short = [
        won[i].r0_block for i in mid
        if won[i].r0_block * 4 <= _anchor_r(chosen[i], params) and won[i].r0_block < chosen[i].kernel.rnumel
    ]  # fmt: skip
    if len(short) >= FEW:
        params = replace(params, small_r=_most_frequent(short, 2))
    if len(covering) >= FEW:
        widest = float(np.percentile([won[i].xblock for i in covering], 95))
        params = replace(params, fill_max_x=max(pow2_floor(int(widest)), 1))
    products = Counter(tile.xblock * tile.r0_block for tile in map(winner, sweeps))
    gaps = sorted((Gap(int(a), int(b)) for a, b in itertools.pairwise(values)), key=lambda g: -g.doublings)
    wide = sum(won[i].r0_block <= 8 and won[i].xblock >= pow2_floor(chosen[i].kernel.xnumel) for i in mid)
    facts = Facts(
        kernels=len(chosen), by_regime={name: len(found) for name, found in groups.items()},
        small_gap=_gap_at(values, rn_small), hole_gap=_gap_at(values, rn_hole - 1) if hole else None,
        gaps=tuple(gaps[:3]), small_fills=covered, hole_correlation=correlation,
        products=tuple(products.most_common(6)),
        pow2_products=sum(n for p, n in products.items() if is_pow2(p)) / products.total(),
        product_by_width=widths, split=split, fills=len(covering), shorts=len(short), wides=wide,
    )  # fmt: skip
    return params, facts


def _small_threshold(rnumel: FloatArray, fills: npt.NDArray[np.bool_], values: FloatArray) -> tuple[int, float]:
    """(the largest rnumel up to which nearly all winners cover the axis, their share); the smallest where none is."""
    shares = [float(fills[rnumel <= value].mean()) for value in values]
    place = max((i for i, share in enumerate(shares) if share >= NEARLY_ALL), default=0)
    return int(values[place]), shares[place]


def _hole_threshold(log_rnumel: FloatArray, log_r0: FloatArray, values: FloatArray, rn_small: int) -> int:
    """The rnumel from which R0 no longer grows: the bend of the best two-piece line, level above. Past the last kernel
    where no bend has enough kernels on both sides."""
    above = log_rnumel > math.log2(rn_small)
    x, y = log_rnumel[above], log_r0[above]
    best, found = math.inf, max(int(values[-1]), rn_small) + 1
    for value in values[values > rn_small]:
        bend = math.log2(value)
        if min((x >= bend).sum(), (x < bend).sum()) < FEW:
            continue
        design = np.column_stack([np.ones_like(x), np.minimum(x, bend)])
        line, *_ = np.linalg.lstsq(design, y, rcond=None)
        left = float(((y - design @ line) ** 2).sum())
        if left < best - 1e-9:
            best, found = left, int(value)
    return found


def _gap_at(values: FloatArray, threshold: int) -> Gap:
    """The gap whose lower edge is the largest value up to the threshold."""
    place = int(np.searchsorted(values, threshold, side="right"))
    below = int(values[max(place - 1, 0)])
    return Gap(below, int(values[min(place, len(values) - 1)]) if place < len(values) else below)


def _most_frequent(values: object, n: int = 4) -> tuple[int, ...]:
    counted = Counter(values)  # type: ignore[call-overload]
    return tuple(sorted(value for value, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:n]))


def _anchor_r(sweep: KernelSweep, params: FormulaParams) -> int:
    kernel = sweep.kernel
    return shape_anchor(kernel.xnumel, kernel.rnumel, kernel.min_bytes, kernel.buffers, params).r
