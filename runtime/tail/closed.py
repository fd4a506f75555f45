"""The note's closed forms on plain numbers (BMM note §4, §5, §7).

n_wave: rounds of C cores; rho: ρ = r/C, the last round's share of busy cores, 0 < ρ <= 1; g: n_wave·C/N_blk, by which
the number of blocks grows until every round is full. `kind` is how the ruling term scales, `area` or `perimeter`
(terms.py). Times are in the unit of `t`, the time of a whole block. Raises InvalidInput naming the argument.
"""

from __future__ import annotations

import math

from tileguard.features.errors import InvalidInput, checked_int

from .terms import AREA, checked_kind

LEAST_UTILISATION = 0.8
"""Share of n_wave·C that the general B must keep busy (§7.2.3)."""


def growth(n_wave: int, rho: float) -> float:
    """g = n_wave·C/N_blk = n_wave/(n_wave - 1 + ρ) (§4.2)."""
    n_wave, rho = _waves(n_wave, rho)
    return n_wave / (n_wave - 1 + rho)


def a0_time(t: float, n_wave: int) -> float:
    """T_A0 = n_wave·T_block (§3.3)."""
    return t * _waves(n_wave, 1.0)[0]


def a1a_time(t: float, n_wave: int, s: int, kind: str) -> float:
    """T_A1a: the last round's blocks cut in s along N: T/s, or (1+1/s)/2·T where A's rows are loaded anew (§4.1, §5.1)."""
    n_wave, s = _waves(n_wave, 1.0)[0], checked_int("s", s, minimum=1)
    return t * (n_wave - 1 + (1 / s if checked_kind(kind) == AREA else (1 + 1 / s) / 2))


def a1b_time(t: float, n_wave: int, rho: float, kind: str) -> float:
    """T_A1b = T·(n_wave - 1 + ρ), by perimeter √ρ (§4.1, §5.1): the last round cut anew for all C cores."""
    n_wave, rho = _waves(n_wave, rho)
    return t * (n_wave - 1 + (rho if checked_kind(kind) == AREA else math.sqrt(rho)))


def stuck_a1b_time(t: float, n_wave: int, rho_dv: float) -> float:
    """T_A1b where bursts stop its tile at √ρ_dv of the main one: T·(n_wave - 1 + √ρ_dv) (§5.3)."""
    return t * (_waves(n_wave, 1.0)[0] - 1 + math.sqrt(_share("rho_dv", rho_dv)))


def b_time(t: float, n_wave: int, rho: float, kind: str) -> float:
    """T_B = n_wave·T/g, by perimeter n_wave·T/√g (§4.2, §5.2): every round cut anew and full."""
    n_wave, rho = _waves(n_wave, rho)
    g = growth(n_wave, rho)
    return t * n_wave / (g if checked_kind(kind) == AREA else math.sqrt(g))


def loss(rho: float, n_wave: int) -> float:
    """f(ρ, n_wave) = T_B/T_A1b by perimeter, √(n_wave·(n_wave-1+ρ))/(n_wave-1+√ρ) >= 1 (§7.2.2). B loses f - 1.

    It falls with ρ and with n_wave, so it is largest at n_wave = 2 and the least ρ that bursts allow.
    """
    n_wave, rho = _waves(n_wave, rho)
    return math.sqrt(n_wave * (n_wave - 1 + rho)) / (n_wave - 1 + math.sqrt(rho))


def largest_loss(cores: int, rho_dv: float) -> float:
    """The largest f: at n_wave = 2 and ρ = max(1/C, ρ_dv) (§7.2.2: 1.054 for sN = 256, 1.166 for 512, of bf16)."""
    return loss(max(1 / checked_int("cores", cores, minimum=1), rho_dv), 2)


def shape_penalty(ratio: float) -> float:
    """p(λ) = (√λ + 1/√λ)/2: perimeter of a rectangle with sides in proportion λ over the square's (§7.2.3)."""
    if not 0 < ratio < math.inf:
        raise InvalidInput("ratio", ratio, "a positive number")
    return (math.sqrt(ratio) + 1 / math.sqrt(ratio)) / 2


def flip_share(area_us: float, load_us: float) -> float:
    """ρ below which a tail tile scaled by √ρ becomes ruled by its loads: (T_MTE2/max(T_MMAD, T_FIX))² (§7.2.4).

    For a square tile of side s ruled by MMAD this is the note's (187/s)², or (608/s)² from GM; it holds for any shape
    and for FIX as well. At least 1 for a block that its loads rule already.
    """
    if not (area_us > 0 and load_us > 0):
        raise InvalidInput("area_us", area_us, "a positive number, as load_us")
    return (load_us / area_us) ** 2


def interval(rho: float, rho_dv: float, g: float) -> str:
    """I, II or III of §5.3 (iii): A1b can fill the cores; only B can; neither can, for bursts."""
    if rho >= rho_dv:
        return "I"
    return "II" if rho_dv * g <= 1 else "III"


def b_beats_stuck_a1b(rho: float, rho_dv: float, n_wave: int) -> bool:
    """The boundary inside interval II: √ρ_dv > n_wave/√g - (n_wave - 1) (§5.3)."""
    return stuck_a1b_time(1.0, n_wave, rho_dv) > b_time(1.0, n_wave, rho, "perimeter")


def b1_applies(r: int, k: int, k_critical: float, g: float, rho_dv: float) -> bool:
    """B1's threshold: r > 0 and (K >= K* or g <= g_dv), g_dv = 1/ρ_dv (§7.1)."""
    return r > 0 and (k >= k_critical or g * rho_dv <= 1)


def b0_choice(r: int, kind: str, rho: float, rho_dv: float, g: float, n_wave: int) -> str:
    """B0, the careful B (§7.1): A0 without a tail, B by area; by perimeter what §5.3 decides between A1b, B and A0."""
    if r == 0:
        return "A0"
    if checked_kind(kind) == AREA:
        return "B"
    where = interval(rho, rho_dv, g)
    if where == "III":
        return "A0"
    return "B" if where == "II" and b_beats_stuck_a1b(rho, rho_dv, n_wave) else "A1b"


def _waves(n_wave: int, rho: float) -> tuple[int, float]:
    return checked_int("n_wave", n_wave, minimum=1), _share("rho", rho)


def _share(field: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidInput(field, value, "a positive number")
    if field == "rho" and value > 1:
        raise InvalidInput(field, value, "at most 1")
    return float(value)
