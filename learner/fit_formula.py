"""Fitting the formula to a hardware: what the reduction RFC did by hand for Ascend, from any dense corpus.

Two forms come out of one fit. The RFC's own, with this corpus's constants (formula_facts.py). And for each class of
kernels, inner or outer and looped or persistent, a rule: P*, the split and the warps by least squares, with the offsets
around their anchors that cover most kernels (formula_cover.py). Held-out judgement is formula_judge.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tileguard.features.anchor import COEFFICIENTS, AnchorRule, FormulaParams
from tileguard.features.errors import InvalidInput, checked_int
from tileguard.features.hardware import HardwareSpec

from .corpus import KernelSweep
from .evaluate import LOSSLESS
from .formula_cover import Class, cover, offset_pool
from .formula_facts import FEW, Facts, FloatArray, Line, least_squares, rfc_constants
from .lane_cover import fit_lanes

DEFAULT_TILES, CPU_TILES = 16.0, 12.0
"""Mean tiles a kernel on hardware with warps to choose, and on a CPU, whose lattices are a quarter as large."""


@dataclass(frozen=True, slots=True)
class FitConfig:
    """tiles: mean tiles a kernel, warps included, over the kernels fitted to. folds: of workload families, to judge.

    Raises InvalidInput naming the field.
    """

    tiles: float = DEFAULT_TILES
    folds: int = 5

    def __post_init__(self) -> None:
        if not 1.0 <= self.tiles <= 1000.0:
            raise InvalidInput("tiles", self.tiles, "1 to 1000 tiles a kernel")
        checked_int("folds", self.folds, minimum=2)


def fit_config(hardware: HardwareSpec) -> FitConfig:
    """The default for a hardware."""
    return FitConfig(CPU_TILES if hardware.kind == "cpu" else DEFAULT_TILES)


@dataclass(frozen=True, eq=False)
class ClassFit:
    """One class's rule and how well its three lines fit. split: None where R0 is fixed; warps: None without warps."""

    rule: AnchorRule
    kernels: int
    product: Line
    split: Line | None
    warps: Line | None

    @property
    def name(self) -> str:
        return class_name(self.rule.inner, self.rule.persistent)


@dataclass(frozen=True, eq=False)
class FormulaFit:
    """A fitted formula, with what it rests on."""

    params: FormulaParams
    facts: Facts
    classes: tuple[ClassFit, ...]


def class_name(inner: bool, persistent: bool) -> str:
    return f"{'persistent' if persistent else 'looped'} {'inner' if inner else 'outer'}"


def fit_formula(sweeps: Sequence[KernelSweep], hardware: HardwareSpec, config: FitConfig) -> FormulaFit:
    """Fit to `sweeps`. A class of fewer than 20 kernels gets no rule: the RFC's form stands there. A CPU's rules are
    LaneRules (lane_cover.py), for every objective.

    Raises InvalidInput where the corpus has fewer than 20 kernels.
    """
    if len(sweeps) < FEW:
        raise InvalidInput("corpus", f"{len(sweeps)} kernels", f"at least {FEW} kernels to fit a formula to")
    params, facts = rfc_constants(sweeps, hardware)
    if hardware.kind == "cpu":
        return FormulaFit(replace(params, lanes=fit_lanes(sweeps, tiles=config.tiles)), facts, ())
    fits: dict[tuple[bool, bool], ClassFit] = {}
    classes: dict[tuple[bool, bool], Class] = {}
    for persistent in (False, True):
        for inner in (True, False):
            mine = [s for s in sweeps if s.kernel.inner == inner and s.kernel.persistent == persistent]
            if len(mine) >= FEW:
                fits[inner, persistent] = _lines(mine, hardware)
                classes[inner, persistent] = Class(fits[inner, persistent].rule, mine)
    offsets = cover(classes, hardware, config.tiles)
    fitted = tuple(replace(one, rule=replace(one.rule, offsets=offsets[name])) for name, one in fits.items())
    return FormulaFit(replace(params, rules=tuple(one.rule for one in fitted if one.rule.offsets)), facts, fitted)


def centres(sweeps: Sequence[KernelSweep]) -> FloatArray:
    """float64[n, 3]: mean of log2 (X, R0, warps) over each kernel's lossless tiles. The winner alone is one of many that
    noise tells apart; their middle is what an anchor should hit."""
    found = []
    for sweep in sweeps:
        near = [sweep.tiles[i] for i in np.flatnonzero(sweep.slowdown <= LOSSLESS)]
        logs = [(math.log2(t.xblock), math.log2(t.r0_block), math.log2(t.num_warps or 1)) for t in near]
        found.append(np.mean(logs, axis=0))
    return np.array(found)


def _lines(sweeps: Sequence[KernelSweep], hardware: HardwareSpec) -> ClassFit:
    """The three least-squares lines of a class; its rule holds every offset there is to choose from."""
    kernel = sweeps[0].kernel
    log_x = np.log2([float(s.kernel.xnumel) for s in sweeps])
    log_r = np.log2([float(s.kernel.rnumel) for s in sweeps])
    narrow = np.array([s.kernel.min_bytes <= 2 for s in sweeps], dtype=np.float64)
    one = np.ones(len(sweeps))
    x, r, warps = centres(sweeps).T
    product = least_squares(np.column_stack([one, narrow, log_x + log_r]).tolist(), x + r)
    split = None if kernel.persistent else least_squares(np.column_stack([one, log_x - log_r]).tolist(), x - r)
    by_size = least_squares(np.column_stack([one, x + r]).tolist(), warps) if hardware.has_warps else None
    split_line = split.coefficients if split is not None else (0.0, 0.0)
    warp_line = by_size.coefficients if by_size is not None else (0.0, 0.0)
    numbers = dict(zip(COEFFICIENTS, (*product.coefficients, *split_line, *warp_line), strict=True))
    pool = offset_pool(persistent=kernel.persistent, has_warps=hardware.has_warps)
    rule = AnchorRule(inner=kernel.inner, persistent=kernel.persistent, offsets=pool, **numbers)
    return ClassFit(rule, len(sweeps), product, split, by_size)
