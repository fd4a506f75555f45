"""How many tiles a model needs, from what it missed on held-out kernels.

Each entry of a manifest's calibration says of one k on how many held-out kernels the k tiles of the model lost over
5 % (`misses` of `kernels`), and `upper`: the one-sided 95 % Clopper-Pearson bound on that share. A k is calibrated for
a risk where this bound, and that of every larger k, is at most the risk: fixed-sequence testing (Learn then Test), so
that picking the smallest such k leaves the 95 % as they are. It speaks of kernels like those that were held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tileguard.features.errors import InvalidInput, checked_int

CALIBRATED = "calibrated"
"""The value of top_k that asks for the calibrated one."""

DEFAULT_RISK = 0.1
"""Share of kernels on which the calibrated k may lose over 5 %."""


def checked_top_k(value: object) -> int | str:
    """A number of tiles, or "calibrated"; raises InvalidInput otherwise."""
    if value == CALIBRATED:
        return CALIBRATED
    try:
        return checked_int("top_k", value, minimum=1)
    except InvalidInput:
        raise InvalidInput("top_k", value, f"an integer >= 1, or {CALIBRATED!r}") from None


def checked_risk(value: object) -> float:
    """A share of kernels between 0 and 1, both excluded; raises InvalidInput otherwise."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise InvalidInput("risk", value, "a share between 0 and 1")
    return float(value)


def calibrated_k(entries: Sequence[Mapping[str, Any]], risk: float) -> int | None:
    """The smallest k that is calibrated for `risk`; None where not even the largest is, or nothing was calibrated."""
    found = None
    for entry in sorted(entries, key=lambda entry: int(entry["k"]), reverse=True):
        if not entry.get("upper", 1.0) <= risk:
            break
        found = int(entry["k"])
    return found


def resolved_k(top_k: int | str, entries: Sequence[Mapping[str, Any]], risk: float, *, default: int) -> int:
    """The number of tiles to take: as asked; calibrated, or the largest k that was looked at where none is."""
    if isinstance(top_k, int):
        return top_k
    largest = max((int(entry["k"]) for entry in entries), default=default)
    return calibrated_k(entries, risk) or largest
