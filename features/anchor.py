"""The reduction RFC's constants, its regimes of rnumel, and the tile (pX, pR) that it predicts for a kernel.

Source: reduction RFC §3.1 (regimes, P*), §3.3 (split, anchor). The candidate list around the anchor is
runtime/formula.py; the anchor is here since it is also a feature, with the RFC's constants on every hardware. A hardware
that a formula was fitted to (docs/formula.md) has rules besides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from .errors import InvalidInput
from .kernels import ReductionKernel
from .lanes import LaneRule
from .pow2 import pow2_floor, pow2_round

ANCHORS = ("split", "fill", "short", "wide")
"""Where a rule's offsets start from. split: P* shared out by the aspect ratio, the RFC's (pX, pR). fill: R0 covers the
axis, X = P*/R0. short: a small R0, X = P*/R0. wide: a small R0, X covers the output axis (the RFC's pathological one).
"""


class Offset(NamedTuple):
    """A tile next to an anchor, all in doublings: X and warps relative to what anchor and warp rule say, and so R0 for
    split; for short and wide r is log2 R0 itself, and fill has none (0)."""

    anchor: str
    x: int
    r: int
    warps: int


@dataclass(frozen=True, slots=True)
class AnchorRule:
    """How one class of kernels is tiled: anchors, warps, and the offsets worth compiling.

    log2 P* = product_intercept + product_narrow·[elements of at most two bytes] + product_slope·log2(xnumel·rnumel);
    log2(X/R0) = split_intercept + split_slope·log2(xnumel/rnumel), for a looped kernel (a persistent one has R0 fixed,
    and X = P*/R0); log2 num_warps = warp_intercept + warp_slope·log2(X·R0), where the RFC has -7 and 1.
    offsets: in the order in which they were found worth it. Raises InvalidInput for an offset from an unknown anchor.
    """

    inner: bool
    persistent: bool
    product_intercept: float
    product_narrow: float
    product_slope: float
    split_intercept: float
    split_slope: float
    warp_intercept: float
    warp_slope: float
    offsets: tuple[Offset, ...]

    def __post_init__(self) -> None:
        for field in COEFFICIENTS:
            if not math.isfinite(getattr(self, field)):
                raise InvalidInput(field, getattr(self, field), "a finite number")
        for offset in self.offsets:
            if offset.anchor not in ANCHORS:
                raise InvalidInput("anchor", offset.anchor, "one of " + ", ".join(ANCHORS))


COEFFICIENTS = (
    "product_intercept", "product_narrow", "product_slope", "split_intercept", "split_slope", "warp_intercept",
    "warp_slope",
)  # fmt: skip
"""The numbers of an AnchorRule that least squares fits."""


@dataclass(frozen=True, slots=True)
class FormulaParams:
    """The selector's constants; the defaults are the RFC's, fitted on Ascend 910B3 (153 kernels).

    rn_small, rn_hole: the regime thresholds, each in the middle of a dead zone of rnumel. p_narrow, p_wide: the
    tile product P* for elements of at most two bytes and for wider ones. split_intercept, split_slope: the OLS of
    log2(X/R0) on log2(xnumel/rnumel), R² = 0.62. onchip_bytes, onchip_overhead: the UB bound on R0.
    rules: at most one a class of kernels (inner, persistent); where a kernel's class has one, it stands in place of the
    RFC's listing. The RFC has none. lanes: the same for a CPU, one a class (program, inner).
    """

    rn_small: int = 64
    rn_hole: int = 50_000
    hole_x: tuple[int, ...] = (1, 2, 4, 8)
    hole_r: tuple[int, ...] = (512, 1024, 2048, 4096)
    p_narrow: int = 2048
    p_wide: int = 4096
    split_intercept: float = -2.06
    split_slope: float = 0.59
    small_r: tuple[int, ...] = (16, 32)
    fill_max_x: int = 128
    onchip_bytes: int = 192 * 1024
    onchip_overhead: float = 2.0
    rules: tuple[AnchorRule, ...] = ()
    lanes: tuple[LaneRule, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.rn_small < self.rn_hole:
            raise InvalidInput("rn_small", self.rn_small, f"1 to rn_hole - 1 ({self.rn_hole - 1})")
        classes = [(rule.inner, rule.persistent) for rule in self.rules]
        if len(set(classes)) < len(classes):
            raise InvalidInput("rules", classes, "at most one rule a class of kernels")
        kinds = [(rule.program, rule.inner) for rule in self.lanes]
        if len(set(kinds)) < len(kinds):
            raise InvalidInput("lanes", kinds, "at most one rule a class of kernels")

    def rule_of(self, kernel: ReductionKernel) -> AnchorRule | None:
        """The rule of the kernel's class, if there is one."""
        for rule in self.rules:
            if rule.inner == kernel.inner and rule.persistent == kernel.persistent:
                return rule
        return None


ASCEND_910B3 = FormulaParams()


@dataclass(frozen=True, slots=True)
class Anchor:
    """The tile (pX, pR) that the formula centres on, in elements, and its regime: small, mid or hole."""

    x: int
    r: int
    regime: str


def regime(rnumel: int, params: FormulaParams = ASCEND_910B3) -> str:
    """hole, small or mid: the RFC's segments of rnumel."""
    if rnumel >= params.rn_hole:
        return "hole"
    return "small" if rnumel <= params.rn_small else "mid"


def anchor(kernel: ReductionKernel, params: FormulaParams = ASCEND_910B3) -> Anchor:
    """The (pX, pR) that `select_candidates` centres on for this kernel (RFC §3.3); the grid's middle in the HOLE."""
    return shape_anchor(kernel.xnumel, kernel.rnumel, kernel.min_bytes, kernel.buffers, params)


def r_max(rnumel: int, elem_bytes: int, buffers: int, params: FormulaParams) -> tuple[int, float]:
    """(largest power of two R0 within rnumel and on-chip memory, on-chip elements a buffer)."""
    onchip_elems = params.onchip_bytes / (elem_bytes * buffers * params.onchip_overhead)
    return pow2_floor(min(rnumel, max(int(onchip_elems), 1))), onchip_elems


def shape_anchor(xnumel: int, rnumel: int, elem_bytes: int, buffers: int, params: FormulaParams) -> Anchor:
    x_cap = pow2_floor(xnumel)
    product = params.p_narrow if elem_bytes <= 2 else params.p_wide
    name = regime(rnumel, params)
    if name == "hole":
        return Anchor(min(params.hole_x[len(params.hole_x) // 2], x_cap), params.hole_r[len(params.hole_r) // 2], name)
    if name == "small":
        return Anchor(pow2_round(product / rnumel), rnumel, name)
    split = 2.0 ** (params.split_intercept + params.split_slope * math.log2(xnumel / rnumel))
    largest, _ = r_max(rnumel, elem_bytes, buffers, params)
    return Anchor(
        min(pow2_round(math.sqrt(product * split)), x_cap), min(pow2_round(math.sqrt(product / split)), largest), name
    )
