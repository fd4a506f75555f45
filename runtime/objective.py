"""What "best" means when a kernel is tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .devices.base import Timing


class Objective(Protocol):
    """The cost of a candidate; lower is better."""

    def cost_us(self, timing: Timing, compile_ms: float) -> float:
        """Cost in µs."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """One call's time; what a kernel that runs for ever costs."""

    def cost_us(self, timing: Timing, compile_ms: float) -> float:
        return timing.us
