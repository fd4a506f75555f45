"""What became of one kernel and of each of its tiles: frozen records, and their way through JSON.

Imports the standard library and nothing heavier.
"""

from __future__ import annotations

import math
import numbers
import os
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from tileguard.features.errors import InvalidInput, checked_choice, checked_int

PROPOSERS = ("host", "formula", "model")
"""As in `runtime/selector.py`, which imports more than a compile worker needs."""

OK = "ok"
FAILURES = ("out_of_resource", "compile_error", "spilled", "launch_error")
STATUSES = (OK, *FAILURES, "over_budget", "not_compiled")
TUNED, CACHED, UNTOUCHED, FAILED = "tuned", "cached", "untouched", "failed"
OUTCOMES = (TUNED, CACHED, UNTOUCHED, FAILED)

R = TypeVar("R", bound="TuningRecord")


@dataclass(frozen=True, slots=True)
class TileRecord:
    """One tile of a kernel's list: who proposed it (kept in the order of PROPOSERS) and what became of it.

    us: mean of the middle half of its rounds; us_mad: the rounds' median absolute deviation; reps: how many counted. A time that is not finite
    is not known: None. Raises InvalidInput naming the field.
    """

    xblock: int
    r0_block: int
    num_warps: int | None
    num_stages: int
    proposers: tuple[str, ...]
    status: str
    compile_ms: float | None = None
    us: float | None = None
    us_mad: float | None = None
    reps: int = 0

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("xblock", "r0_block", "num_stages"):
            put(self, name, checked_int(name, getattr(self, name), minimum=1))
        if self.num_warps is not None:
            put(self, "num_warps", checked_int("num_warps", self.num_warps, minimum=1))
        put(self, "reps", checked_int("reps", self.reps, minimum=0))
        put(self, "proposers", checked_proposers(self.proposers))
        checked_choice("status", self.status, STATUSES)
        for name in ("compile_ms", "us", "us_mad"):
            put(self, name, checked_time(name, getattr(self, name)))

    @property
    def compiled(self) -> bool:
        """The compiler made a kernel of it that could be timed, even if the budget ended first."""
        return self.status == OK or (self.compile_ms is not None and not self.failed)

    @property
    def failed(self) -> bool:
        return self.status in FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRecord:
    """What a record of either kind has of one tuning, and what follows from it.

    reason: why it was left untouched or failed. verdict, verdict_detail: what the guard said of the model. winner: index
    into tiles, which are all of the kind TILE. host_us: time of the fastest tile of the host's own list, in the same
    rounds as winner_us. time: seconds since 1970. Raises InvalidInput naming the field.
    """

    TILE: ClassVar[type[Any]]
    outcome: str
    hardware: str | None = None
    reason: str | None = None
    verdict: str | None = None
    verdict_detail: str = ""
    select_us: float | None = None
    tiles: tuple[Any, ...] = ()
    winner: int | None = None
    host_us: float | None = None
    winner_us: float | None = None
    bench_s: float = 0.0
    over_budget: bool = False
    time: float = field(default_factory=clock.time)
    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        put = object.__setattr__
        checked_choice("outcome", self.outcome, OUTCOMES)
        put(self, "verdict_detail", checked_text("verdict_detail", self.verdict_detail))
        for name in ("hardware", "reason", "verdict"):
            if getattr(self, name) is not None:
                put(self, name, checked_text(name, getattr(self, name)))
        if not isinstance(self.over_budget, bool):
            raise InvalidInput("over_budget", self.over_budget, "true or false")
        for name in ("select_us", "host_us", "winner_us"):
            put(self, name, checked_time(name, getattr(self, name)))
        for name in ("bench_s", "time"):
            put(self, name, checked_time(name, getattr(self, name)) or 0.0)
        put(self, "pid", checked_int("pid", self.pid, minimum=0))
        put(self, "tiles", checked_tiles(self.tiles, self.TILE))
        put(self, "winner", checked_winner(self.winner, len(self.tiles)))

    @property
    def winner_proposers(self) -> tuple[str, ...]:
        """Who proposed the winner; empty without one."""
        return self.tiles[self.winner].proposers if self.winner is not None else ()

    @property
    def gain(self) -> float | None:
        """Time of the host's own choice ÷ time of the winner; None where either is not known."""
        return ratio(self.host_us, self.winner_us)

    @property
    def compiled(self) -> int:
        """Tiles that the compiler made a kernel of."""
        return sum(tile.compiled for tile in self.tiles)

    @property
    def failed(self) -> int:
        """Tiles that were tried and gave no usable kernel."""
        return sum(tile.failed for tile in self.tiles)

    def to_dict(self) -> dict[str, Any]:
        """Every field, what it is about first, then the derived figures; a log's line and a member of `Report.to_dict`."""
        derived = ("winner_proposers", "gain", "compiled", "failed")
        values, common = asdict(self), {one.name for one in fields(TuningRecord)}
        values = {name: values[name] for name in sorted(values, key=common.__contains__)}
        return values | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord(TuningRecord):
    """One kernel that the host compiled.

    kernel: its name; source: 16 characters of the name that its source file has, a hash of the source. xnumel, rnumel,
    dtype: None where the hook did not get as far. over_budget: the budget ended before every tile was tried.
    """

    TILE: ClassVar[type[Any]] = TileRecord
    kernel: str
    source: str
    xnumel: int | None = None
    rnumel: int | None = None
    dtype: str | None = None
    persistent: bool = False
    compile_s: float = 0.0

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("kernel", "source"):
            put(self, name, checked_text(name, getattr(self, name)))
        if self.dtype is not None:
            put(self, "dtype", checked_text("dtype", self.dtype))
        for name in ("xnumel", "rnumel"):
            if getattr(self, name) is not None:
                put(self, name, checked_int(name, getattr(self, name), minimum=0))
        if not isinstance(self.persistent, bool):
            raise InvalidInput("persistent", self.persistent, "true or false")
        put(self, "compile_s", checked_time("compile_s", self.compile_s) or 0.0)
        TuningRecord.__post_init__(self)  # super() would not find the class that slots made anew


def parse_kernel(value: Mapping[str, Any]) -> KernelRecord:
    """The record of which `value` is the `to_dict`; see `parsed`."""
    return parsed(KernelRecord, value)


def parsed(kind: type[R], value: Mapping[str, Any]) -> R:
    """The record of a kind of which `value` is the `to_dict`; keys that are not fields are left alone.

    Raises InvalidInput naming the field, such as `tiles[2].xblock`.
    """
    facts = _facts(kind, value)
    tiles = []
    for place, tile in enumerate(checked_sequence("tiles", facts["tiles"])):
        try:
            if not isinstance(tile, Mapping):
                raise InvalidInput("", tile, "an object")
            tiles.append(kind.TILE(**_facts(kind.TILE, tile)))
        except InvalidInput as error:
            name = f"tiles[{place}].{error.field}".rstrip(".")
            raise InvalidInput(name, error.value, error.allowed) from None
    return kind(**facts | {"tiles": tiles})


def ratio(a: float | None, b: float | None) -> float | None:
    """a ÷ b where that is a positive, finite number."""
    quotient = a / b if a and b else 0.0
    return quotient if 0 < quotient < math.inf else None


def checked_text(name: str, value: object) -> str:
    """`value` when it is text."""
    if not isinstance(value, str):
        raise InvalidInput(name, value, "text")
    return value


def checked_proposers(value: object) -> tuple[str, ...]:
    """Proposers in the order of PROPOSERS, each once."""
    given = {checked_choice("proposers", who, PROPOSERS) for who in checked_sequence("proposers", value)}
    return tuple(who for who in PROPOSERS if who in given)


def checked_tiles(value: object, kind: type[Any]) -> tuple[Any, ...]:
    """A record's tiles when all are of a kind."""
    tiles = tuple(checked_sequence("tiles", value))
    for tile in tiles:
        if not isinstance(tile, kind):
            raise InvalidInput("tiles", tile, f"{kind.__name__}s")
    return tiles


def checked_winner(value: int | None, tiles: int) -> int | None:
    """An index into so many tiles, or None."""
    if value is not None and checked_int("winner", value, minimum=0) >= tiles:
        raise InvalidInput("winner", value, f"an index below {tiles}, the number of tiles")
    return value if value is None else int(value)


def checked_sequence(name: str, value: object) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInput(name, value, "a list")
    return value


def checked_time(name: str, value: object) -> float | None:
    """A finite duration, or None where it is not known."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidInput(name, value, "a number >= 0, or null")
    try:
        number = float(value)
    except OverflowError:
        return None
    if number < 0:
        raise InvalidInput(name, value, "a number >= 0, or null")
    return number if math.isfinite(number) else None


def _facts(record: type, value: Mapping[str, Any]) -> dict[str, Any]:
    names = [f.name for f in fields(record)]
    for name in names:
        if name not in value:
            raise InvalidInput(name, "(missing)", "a value")
    return {name: value[name] for name in names}
