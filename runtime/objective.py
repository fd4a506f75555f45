"""What "best" means when a kernel is tuned."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tileguard.features.errors import InvalidInput

from .devices.base import Timing

MAX_CALLS = 1e15
"""A kernel called more often than this runs for ever."""


class Objective(Protocol):
    """The cost of a candidate; lower is better. Its repr is part of what a stored winner is known by."""

    @property
    def calls(self) -> float:
        """Calls over which one compilation is shared; infinite where compiling costs nothing. What a ranker is told."""

    def cost_us(self, timing: Timing, compile_ms: float) -> float:
        """Cost in µs."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """One call's time; what a kernel that runs for ever costs."""

    @property
    def calls(self) -> float:
        return math.inf

    def cost_us(self, timing: Timing, compile_ms: float) -> float:
        return timing.us


@dataclass(frozen=True, slots=True)
class AmortisedTime:
    """T_compile + n_calls · T_run: what a kernel costs that is compiled, called so often and dropped (Tile→XIR report §4).

    Raises InvalidInput for an n_calls outside 0 to 10^15.
    """

    n_calls: float

    def __post_init__(self) -> None:
        n = self.n_calls
        if isinstance(n, bool) or not isinstance(n, numbers.Real) or not 0 <= n <= MAX_CALLS:
            raise InvalidInput("n_calls", n, "a number from 0 to 10^15")
        object.__setattr__(self, "n_calls", float(n))

    @property
    def calls(self) -> float:
        return self.n_calls

    def cost_us(self, timing: Timing, compile_ms: float) -> float:
        return 1e3 * compile_ms + self.n_calls * timing.us


def break_even(cheaper: tuple[float, float], faster: tuple[float, float]) -> float | None:
    """Calls from which on `faster` costs no more than `cheaper`; None where it never does. Both: (compile ms, run µs).

    (T_compile,2 - T_compile,1) / (T_run,1 - T_run,2) (Tile→XIR report §4); 0 where `faster` compiles no dearer.
    """
    dearer_us, saved_us = 1e3 * (faster[0] - cheaper[0]), cheaper[1] - faster[1]
    if dearer_us <= 0 and saved_us >= 0:
        return 0.0
    return dearer_us / saved_us if saved_us > 0 else None


def schedule(candidates: Sequence[tuple[float, float]]) -> tuple[tuple[int, float], ...]:
    """Which of some (compile ms, run µs) is best for how many calls: (index, calls from which on), rising from 0.

    The lower envelope of T_compile + N · T_run over N; each entry holds up to the next one's calls, the last for ever.
    Of equals the first counts. Empty for no candidates.
    """
    order = sorted(range(len(candidates)), key=lambda i: (*candidates[i], i))
    if not order:
        return ()
    found = [(order[0], 0.0)]
    while True:
        now, since = found[-1]
        rivals = [i for i in order if candidates[i][1] < candidates[now][1]]
        if not rivals:
            return tuple(found)
        # Of those that overtake at the same call the fastest stays ahead.
        points = {i: max(since, break_even(candidates[now], candidates[i]) or 0.0) for i in rivals}
        after = min(rivals, key=lambda i: (points[i], candidates[i][1], i))
        found = [*found[: -1 if points[after] == since else None], (after, points[after])]
