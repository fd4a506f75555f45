"""What became of one matrix product whose list of choices was extended: frozen records, and their way through JSON.

Imports the standard library and nothing heavier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tileguard.features.errors import checked_choice, checked_int

from .records import (
    FAILURES,
    OK,
    STATUSES,
    TuningRecord,
    checked_proposers,
    checked_text,
    checked_time,
    parsed,
)

NUMBERS = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m")
"""A tile's numbers, in the order of MatmulTile.sort_key."""

FAR, SUBPROCESS, PIPELINED, COLLECTIVE, CACHE = "far", "subprocess", "pipelined", "collective", "cache"
UNTIMED = "untimed"
"""Why there was no race: no added choice near the best; timed in another process, or there and later; by all ranks
together; remembered; or the host's or the race's stopwatch said nothing."""

RACE_ERROR, NO_CHOICE = "matmul_race_error", "matmul_no_choice"
"""Why timing failed: the race could not be run, so that the host's timings stand; the host could use no choice."""


@dataclass(frozen=True, slots=True)
class MatmulTileRecord:
    """One choice of a product's list. Of ATen and other templates, which the host proposed, some numbers or all are None.

    us: what the host was told, from so many rounds of the race (reps); with reps 0, what the host found by timing it
    once, or remembered. Raises InvalidInput naming the field.
    """

    template: str
    block_m: int | None
    block_n: int | None
    block_k: int | None
    num_warps: int | None
    num_stages: int | None
    group_m: int | None
    proposers: tuple[str, ...]
    status: str
    us: float | None = None
    us_mad: float | None = None
    reps: int = 0

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "template", checked_text("template", self.template))
        for name in NUMBERS:
            if getattr(self, name) is not None:
                put(self, name, checked_int(name, getattr(self, name), minimum=0))
        put(self, "proposers", checked_proposers(self.proposers))
        checked_choice("status", self.status, STATUSES)
        for name in ("us", "us_mad"):
            put(self, name, checked_time(name, getattr(self, name)))
        put(self, "reps", checked_int("reps", self.reps, minimum=0))

    @property
    def compiled(self) -> bool:
        """The host could time it."""
        return self.status == OK

    @property
    def failed(self) -> bool:
        return self.status in FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRecord(TuningRecord):
    """One matrix product to whose choices tiles were added: a batch of (m, k) times (k, n).

    outcome: tuned, cached or failed. reason: why it failed, or why there was no race. winner: of what the host was told
    is fastest; it may yet take another, for a fusion's sake. host_us: of the host's own choices. bench_s: of the race
    alone. over_budget: the race was cut short.
    """

    TILE: ClassVar[type[Any]] = MatmulTileRecord
    op: str
    batch: int
    m: int
    n: int
    k: int
    dtype: str

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("op", "dtype"):
            put(self, name, checked_text(name, getattr(self, name)))
        for name in ("batch", "m", "n", "k"):
            put(self, name, checked_int(name, getattr(self, name), minimum=0))
        TuningRecord.__post_init__(self)  # super() would not find the class that slots made anew

    @property
    def kernel(self) -> str:
        """What tells it from others: operation and sizes, the batch first where there is one."""
        sizes = (self.m, self.n, self.k) if self.batch == 1 else (self.batch, self.m, self.n, self.k)
        return f"{self.op} {'×'.join(map(str, sizes))}"


def parse_product(value: Mapping[str, Any]) -> MatmulRecord:
    """The record of which `value` is the `to_dict`; see `parsed`."""
    return parsed(MatmulRecord, value)
