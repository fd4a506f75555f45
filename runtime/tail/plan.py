"""plan_tail: every strategy for one batched matmul on one hardware, and what the note's table says (BMM note §6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from tileguard.features.errors import InvalidInput, checked_choice, checked_int, checked_type
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import MatmulKernel

from .closed import LEAST_UTILISATION, b0_choice, b1_applies, flip_share, interval
from .cuts import (
    EXACT,
    GEOMETRIES,
    TIE,
    Cut,
    Problem,
    a1a,
    a1b,
    all_splits,
    all_tail_tiles,
    best_split,
    filling_split,
    general_b,
    joint_split,
    uniform,
    whole_rounds_b,
)
from .limits import TileLimits, fits, tile_limits
from .rules import A0, A1A, A1B, B1, STRATEGIES, B, Facts, Rule, fired
from .terms import PERIMETER, Rates, Terms, critical_k, critical_tile, matmul_unit, rates

FIRST_WAVES, FIRST_FILL, FIRST_JOINT, FIRST_GIVEN = "waves", "fill", "joint", "given"
FIRSTS = (FIRST_WAVES, FIRST_FILL, FIRST_JOINT)
"""How the first split is found: least n_wave·T_block (§2.5 as amended in v1.5); fill the cores, then least transfer (§2.5
before); the least time with its tail cut anew."""

_SIMPLEST_FIRST = (A0, B, A1A, A1B)
"""At a tie that the table leaves open, the strategy with fewer tiles and less to change. B1 is one of B's cuts."""


@dataclass(frozen=True, slots=True)
class TailPlan:
    """What plan_tail found.

    geometry, first: as asked (`given` for a main tile that was passed); rates: what a core does; strategy: the fastest;
    at a tie what the rule picks, then the simplest; rule: the row of the decision table that fired; rule_us: what its
    formula says. cuts: of each strategy, None where it does not exist. Of the first split (A0's cut): rho: ρ; rho_dv:
    ρ_dv; g: n_wave·C/N_blk; rho_flip: ρ below which A1b's tile is ruled by its loads; interval: I, II or III where
    loads rule and there is a tail, else None; b0: what the careful B would do; b1_applies: B1's threshold.
    critical_tile, critical_k: where the ruling term changes (§2.1).
    """

    kernel: MatmulKernel
    hardware: str
    cores: int
    geometry: str
    first: str
    rates: Rates
    strategy: str
    rule: Rule
    rule_us: float
    cuts: dict[str, Cut | None]
    rho: float
    rho_dv: float
    g: float
    rho_flip: float
    interval: str | None
    b0: str
    b1_applies: bool
    critical_tile: float
    critical_k: float

    @property
    def chosen(self) -> Cut:
        """The fastest strategy's cut."""
        return self[self.strategy]

    @property
    def main(self) -> Cut:
        """A0's cut: the first split, left as it is."""
        return self[A0]

    @property
    def terms(self) -> Terms:
        """The three times of a block of the first split."""
        return self.main.block

    @property
    def latency_us(self) -> dict[str, float | None]:
        """Predicted time of each strategy, None where it does not exist."""
        return {name: None if cut is None else cut.us for name, cut in self.cuts.items()}

    @property
    def us(self) -> float:
        """Predicted time of the chosen strategy."""
        return self.chosen.us

    def __getitem__(self, strategy: str) -> Cut:
        """A strategy's cut. Raises InvalidInput where it does not exist."""
        cut = self.cuts[checked_choice("strategy", strategy, STRATEGIES)]
        if cut is None:
            raise InvalidInput("strategy", strategy, "one that exists for this problem")
        return cut


def plan_tail(
    kernel: MatmulKernel,
    hardware: HardwareSpec,
    *,
    geometry: str = EXACT,
    bandwidth: float | None = None,
    min_utilisation: float = LEAST_UTILISATION,
    main_tile: tuple[int, int] | None = None,
    first: str = FIRST_WAVES,
) -> TailPlan:
    """Plan `kernel`: how to cut its outputs so that the last round of cores is not wasted.

    geometry: `exact` covers the tail with rectangles that exist, `area` counts tiles by area, as the note does;
    bandwidth: BW_eff in bytes/s of one core, else by the working set; min_utilisation: what B must keep busy; main_tile:
    the first split's s_m, s_n, else found as `first` says. With a first split of `waves` or `joint`, A1b is never
    slower than A0 or B. Raises InvalidInput naming the field.
    """
    checked_type("kernel", kernel, MatmulKernel)
    checked_choice("geometry", geometry, GEOMETRIES)
    checked_choice("first", first, FIRSTS)
    number = isinstance(min_utilisation, int | float) and not isinstance(min_utilisation, bool)
    if not number or not 0 <= min_utilisation <= 1:
        raise InvalidInput("min_utilisation", min_utilisation, "a share from 0 to 1")
    unit = matmul_unit(hardware)
    problem = Problem(kernel, hardware.cores, rates(kernel, hardware, bandwidth), tile_limits(kernel, unit), geometry)
    splits, tail_tiles = all_splits(problem), cache(partial(all_tail_tiles, problem))
    if main_tile is not None:
        tile, first = checked_tile(main_tile, problem.limits), FIRST_GIVEN
    elif first == FIRST_FILL:
        tile = filling_split(problem, splits)
    elif first == FIRST_JOINT:
        tile = joint_split(problem, splits, tail_tiles)
    else:
        found = best_split(splits)
        assert found is not None
        tile = found

    base = uniform(problem, tile)
    rho, g = base.r / hardware.cores, base.n_wave * hardware.cores / base.n_blk
    rho_dv = burst_share(tile, problem.limits)
    threshold = b1_applies(base.r, kernel.k, critical_k(problem.rates), g, rho_dv)
    equal_parts = a1a(problem, tile)
    cuts: dict[str, Cut | None] = {
        A0: base,
        A1A: equal_parts,
        A1B: a1b(problem, tile, tail_tiles, equal_parts),
        B: general_b(splits, problem, min_utilisation),
        B1: whole_rounds_b(splits, problem) if threshold else None,
    }
    best_us = min(cut.us for cut in cuts.values() if cut is not None)
    flip = flip_share(base.block.area, base.block.mte2)
    kind = base.block.kind
    rule_facts = Facts(hardware.cores, base.n_wave, base.r, rho, g, kind, base.block.block, rho_dv, flip, best_us)
    rule = fired(rule_facts)
    strategy = _choose(cuts, best_us, rule)
    return TailPlan(
        kernel, hardware.name, hardware.cores, geometry, first, problem.rates, strategy, rule, rule.us(rule_facts), cuts,
        rho, rho_dv, g, flip,
        interval=interval(rho, rho_dv, g) if base.r and kind == PERIMETER else None,
        b0=b0_choice(base.r, kind, rho, rho_dv, g, base.n_wave),
        b1_applies=threshold,
        critical_tile=critical_tile(problem.rates),
        critical_k=critical_k(problem.rates),
    )  # fmt: skip


def burst_share(tile: tuple[int, int], limits: TileLimits) -> float:
    """ρ_dv: the share to which bursts let a tile shrink evenly, (256 B/(sN·dtype))² (§5.3); 0 where no side is contiguous."""
    return max(limits.burst_m / tile[0], limits.burst_n / tile[1]) ** 2


def checked_tile(tile: tuple[int, int], limits: TileLimits) -> tuple[int, int]:
    """A main tile given from outside: aligned, within M and N, kept by every limit. Raises InvalidInput."""
    if not isinstance(tile, tuple) or len(tile) != 2:
        raise InvalidInput("main_tile", tile, "two integers")
    s_m, s_n = (checked_int("main_tile", side, minimum=1) for side in tile)
    if s_m % limits.align or s_n % limits.align or s_m > limits.m or s_n > limits.n:
        raise InvalidInput(
            "main_tile", tile, f"multiples of {limits.align}, at most {limits.m} x {limits.n} (M x N, rounded up)"
        )
    if not fits(s_m, s_n, limits):
        raise InvalidInput("main_tile", tile, "a tile that keeps the limits of L1, bursts and transfer sizes")
    return s_m, s_n


def _choose(cuts: dict[str, Cut | None], best_us: float, rule: Rule) -> str:
    """The fastest; at a tie one that the table picks, then the simplest. An A1b that leaves the tail as it is, is A0."""
    tied = [
        name for name in _SIMPLEST_FIRST
        if (cut := cuts[name]) is not None and cut.us <= best_us * TIE and (name != A1B or cut.new_tail)
    ]  # fmt: skip
    return next((name for name in tied if name in rule.strategies), tied[0])
