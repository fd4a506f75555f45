"""The decision table of BMM note §6.2, as data: the first row whose condition holds says which strategy and how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .closed import a0_time, a1a_time, a1b_time, b_beats_stuck_a1b, b_time
from .terms import AREA

A0, A1A, A1B, B, B1 = "A0", "A1a", "A1b", "B", "B1"
STRATEGIES = (A0, A1A, A1B, B, B1)
"""No new cut; the tail's blocks in s equal parts; the tail cut anew for all cores; everything cut anew, with at least
80 % of the cores busy; everything cut anew into whole rounds (§3.1, §7.1)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the table asks of one first split (§6.2, steps 1–5).

    cores: C; n_wave, r, rho: rounds, blocks of the last one, r/C; g: n_wave·C/N_blk; kind: `area` or `perimeter`;
    t: T_block of the main tile, µs; rho_dv: ρ at which bursts stop A1b's tile; rho_flip: ρ below which the tail tile
    is ruled by its loads; best_us: the fastest of the strategies' times, enumerated.
    """

    cores: int
    n_wave: int
    r: int
    rho: float
    g: float
    kind: str
    t: float
    rho_dv: float
    rho_flip: float
    best_us: float

    @property
    def by_area(self) -> bool:
        return self.kind == AREA

    @property
    def flips(self) -> bool:
        """The tail flip (§7.2.4): an area-ruled block whose tail tile is ruled by its loads."""
        return self.by_area and 0 < self.rho < self.rho_flip

    @property
    def b_possible(self) -> bool:
        """g <= g_dv (§5.2): bursts allow B's tile."""
        return self.g * self.rho_dv <= 1

    @property
    def equal_parts(self) -> int:
        """s* = ⌊C/r⌋ (§3.2)."""
        return self.cores // self.r


@dataclass(frozen=True, slots=True)
class Rule:
    """A row: its number, the condition and time in words, what it picks (any of them where they tie), both as code."""

    number: int
    condition: str
    strategies: tuple[str, ...]
    formula: str
    holds: Callable[[Facts], bool]
    us: Callable[[Facts], float]


DECISION_TABLE: tuple[Rule, ...] = (
    Rule(
        1, "no tail: r = 0", (A0,), "n_wave·T_block",
        lambda f: f.r == 0,
        lambda f: a0_time(f.t, f.n_wave),
    ),
    Rule(
        2, "area-ruled, 0 < r <= C/2, the tail tile does not flip", (A1A,), "T_block·(n_wave - 1 + 1/s*)",
        lambda f: f.by_area and not f.flips and 2 * f.r <= f.cores,
        lambda f: a1a_time(f.t, f.n_wave, f.equal_parts, f.kind),
    ),
    Rule(
        3, "area-ruled, r > C/2, the tail tile does not flip", (A1B, B), "T_block·(n_wave - 1 + ρ)",
        lambda f: f.by_area and not f.flips,
        lambda f: a1b_time(f.t, f.n_wave, f.rho, f.kind),
    ),
    Rule(
        4, "area-ruled, and the tail tile flips: ρ < ρ_flip", (B,), "T_block·n_wave/g",
        lambda f: f.flips,
        lambda f: b_time(f.t, f.n_wave, f.rho, f.kind),
    ),
    Rule(
        5, "ruled by loads, ρ >= ρ_dv, B possible", (A1B,), "T_load·(n_wave - 1 + √ρ)",
        lambda f: f.rho >= f.rho_dv and f.b_possible,
        lambda f: a1b_time(f.t, f.n_wave, f.rho, f.kind),
    ),
    Rule(
        6, "ruled by loads, ρ < ρ_dv, √ρ_dv > n_wave/√g - (n_wave - 1), B possible", (B,), "T_load·n_wave/√g",
        lambda f: f.b_possible and b_beats_stuck_a1b(f.rho, f.rho_dv, f.n_wave),
        lambda f: b_time(f.t, f.n_wave, f.rho, f.kind),
    ),
    Rule(
        7, "ruled by loads, anything else", (A1B,), "min w·T_block, enumerated",
        lambda f: True,
        lambda f: f.best_us,
    ),
)  # fmt: skip


def fired(facts: Facts) -> Rule:
    """The first row of the table whose condition holds."""
    return next(rule for rule in DECISION_TABLE if rule.holds(facts))
