"""What the promotion gate found, as values: checks, paired figures, and the decision that they make."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DECISION_VERSION = 1
DECISION_FILE = "decision.json"


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of a promotion. figures: what was found, by name; limit: what they were held against; words: both
    in a sentence."""

    name: str
    passed: bool
    figures: Mapping[str, Any]
    limit: str
    words: str


@dataclass(frozen=True, slots=True)
class Paired:
    """Challenger against champion on the same held-out kernels, by one selector.

    lossless, severe: shares of kernels (challenger, champion). better, worse, equal: kernels on which the challenger
    is over 2 % faster, over 2 % slower, neither. only_challenger, only_champion: kernels lossless in one of the two
    alone; p: the exact two-sided McNemar probability of so uneven a split between equals.
    """

    selector: str
    kernels: int
    lossless: tuple[float, float]
    severe: tuple[float, float]
    geomean: tuple[float, float]
    worst: tuple[float, float]
    better: int
    worse: int
    equal: int
    only_challenger: int
    only_champion: int
    p: float


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models: its folder, the digest of its ONNX file ("" where there is no model), its MLflow run,
    and how it was judged, in words."""

    folder: str
    onnx_sha256: str
    run_id: str | None
    judged_as: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the challenger may become the champion, with everything that it rests on.

    held_out: what the models were judged on, in words. judged: False where an early check failed and nothing more was
    looked at. made: UTC, ISO 8601.
    """

    hardware: str
    family: str
    challenger: Side
    champion: Side
    held_out: str
    kernels: int
    checks: tuple[Check, ...]
    paired: tuple[Paired, ...]
    notes: tuple[str, ...]
    judged: bool
    made: str
    tileguard_version: str
    libraries: Mapping[str, str]

    @property
    def promoted(self) -> bool:
        """Every check was made, and every one passed."""
        return self.judged and all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that did not pass."""
        return tuple(check.name for check in self.checks if not check.passed)

    @property
    def verdict(self) -> str:
        return "promoted" if self.promoted else "refused"

    def to_json(self) -> dict[str, Any]:
        """The object of decision.json and `tileguard promote --json`: JSON's own types, null for what is not finite."""
        found = {name: _plain(value) for name, value in dataclasses.asdict(self).items()}
        return {"version": DECISION_VERSION, "promoted": self.promoted, "failed": list(self.failed), **found}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
