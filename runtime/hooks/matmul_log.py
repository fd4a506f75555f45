"""A record of each matrix product whose choices were extended, once the host has timed them or remembers their times.

A choice that was added carries what its product's selection was (SELECTED). `AlgorithmSelectorCache.do_autotuning` is
where the host gets its timings, however it does: a record is made from what comes back there and, where a race took
place meanwhile on the same thread, from what that left in the thread's `Timing`. A record that cannot be made is
counted (`matmul_record_error`) and nothing else.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..matmul_selector import MatmulSet
from ..selector import HOST
from . import process_log
from .matmul_records import (
    CACHE,
    COLLECTIVE,
    FAR,
    NO_CHOICE,
    NUMBERS,
    PIPELINED,
    RACE_ERROR,
    SUBPROCESS,
    UNTIMED,
    MatmulRecord,
    MatmulTileRecord,
)
from .race import RaceResult
from .records import CACHED, FAILED, OK, TUNED
from .telling import warn_once

AUTOTUNE = "do_autotuning"
PARAMETERS = (
    "self", "name", "input_nodes", "layout", "input_gen_fns", "inputs_key", "choices", "precompile_fn",
    "hint_override", "best_config_future", "is_collective",
)  # fmt: skip

SELECTED = "selected_by_tileguard"
"""An attribute of a template's choice that was added: the Selected of its product."""

TILE_NAMES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "GROUP_M")
"""What the host calls a tile's numbers, in the order of MatmulTile.sort_key."""


Numbers = tuple[int | None, ...]


@dataclass(slots=True)
class Selected:
    """What was selected for one product. op: the host's name; templates: those whose tiles the set speaks of; recorded:
    its record is made."""

    op: str
    chosen: MatmulSet
    templates: frozenset[str]
    recorded: bool = False


@dataclass(slots=True)
class Timing:
    """What the host's and the race's stopwatch said while one product's choices were timed in this process.

    asked: the host timed some here. host_ms: its own timings of the call that had added choices, None before. raced:
    the choices of the race, in its order; result; scale: host's ms ÷ race's µs; why: why there was no race; bench_s: of
    the race; collective: all ranks timed together.
    """

    asked: bool = False
    host_ms: Mapping[Any, float] | None = None
    raced: Sequence[Any] = ()
    result: RaceResult | None = None
    scale: float = 0.0
    why: str | None = None
    bench_s: float = 0.0
    collective: bool = False


class _Thread(threading.local):
    timing: Timing | None = None


_thread = _Thread()


def timing() -> Timing:
    """Of the product that this thread has timed at the moment; outside of that, one that nobody reads."""
    return _thread.timing or Timing()


def is_recorded() -> bool:
    """Whether what `timing` gets becomes part of a record."""
    return _thread.timing is not None


def record_target(active: Callable[[], bool]) -> tuple[Any, str, Callable[[Any], Any]]:
    """What to patch, for Patches.put. Raises where torch's names or signatures are other ones."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    found = tuple(inspect.signature(vars(AlgorithmSelectorCache)[AUTOTUNE]).parameters)
    if found != PARAMETERS:
        raise TypeError(f"{AUTOTUNE} takes {found}, not {PARAMETERS}")
    return AlgorithmSelectorCache, AUTOTUNE, functools.partial(wrap, active=active)


def wrap(original: Callable[..., Any], *, active: Callable[[], bool]) -> Callable[..., Any]:
    """The method that records what `original` returns or raises, and then returns or raises the same."""

    @functools.wraps(original)
    def do_autotuning(
        cache: Any, name: Any, input_nodes: Any, layout: Any, input_gen_fns: Any, inputs_key: Any, choices: Any,
        precompile_fn: Any, hint_override: Any = None, best_config_future: Any = None, is_collective: Any = False,
    ) -> Any:  # fmt: skip
        given = (name, input_nodes, layout, input_gen_fns, inputs_key, choices, precompile_fn)
        more = (hint_override, best_config_future, is_collective)
        # With another hint the host times for other sizes than those of the selection.
        selected = selected_of(choices) if hint_override is None and active() else None
        seen = Timing()
        before, _thread.timing = _thread.timing, seen if selected is not None else None
        try:
            timings = original(cache, *given, *more)
        except Exception:
            seen.why = NO_CHOICE
            _record(selected, choices, {}, seen)
            raise
        finally:
            _thread.timing = before
        seen.collective = bool(is_collective)
        _record(selected, choices, timings, seen)
        return timings

    return do_autotuning


def selected_of(choices: Any) -> Selected | None:
    """What was selected for a product with these choices; None where none of them was added, or it has its record."""
    try:
        found = (getattr(_template_choice(choice), SELECTED, None) for choice in choices)
        selected = next((one for one in found if isinstance(one, Selected)), None)
    except Exception:
        return None
    return None if selected is None or selected.recorded else selected


def product_record(
    selected: Selected, choices: Sequence[Any], timings: Mapping[Any, float] | None, seen: Timing
) -> MatmulRecord:
    """The record of one product. choices: all of the host's list and the added; timings: what the host takes the least
    of, in ms, infinite for a choice that failed; None where it does not know them yet, empty where it raised."""
    outcome, reason = _outcome(timings, seen)
    times = timings or seen.host_ms or {}
    result = seen.result if outcome == TUNED else None
    tiles = _tiles(selected, choices, times, seen, result)
    best = None
    if outcome != FAILED and times:
        least = min(times, key=times.__getitem__)
        best = next((i for i, choice in enumerate(choices) if choice is least), None)
    winner_us = None if best is None else tiles[best].us
    host_us = None
    if result is not None:
        rounds = [tile.us for tile in tiles if tile.us is not None and tile.reps and HOST in tile.proposers]
        host_us = min(rounds, default=None)
    elif reason == FAR and best is not None and HOST in tiles[best].proposers:
        host_us = winner_us  # what was added is far behind: the host's choice is what it would have been
    chosen = selected.chosen
    kernel = chosen.kernel
    return MatmulRecord(
        op=selected.op, batch=kernel.batch, m=kernel.m, n=kernel.n, k=kernel.k, dtype=kernel.dtype,
        hardware=chosen.hardware, outcome=outcome, reason=reason, verdict=str(chosen.verdict.reason),
        verdict_detail=chosen.verdict.detail, select_us=chosen.times.total_us, tiles=tuple(tiles), winner=best,
        host_us=host_us, winner_us=winner_us, bench_s=seen.bench_s,
        over_budget=result.cut_short if result is not None else False,
    )  # fmt: skip


def _record(selected: Selected | None, choices: Any, timings: Any, seen: Timing) -> None:
    if selected is None:
        return
    selected.recorded = True
    try:
        process_log.current().add(product_record(selected, choices, timings, seen))
    except Exception as error:
        process_log.current().count_untouched("matmul_record_error")
        warn_once("tileguard cannot record a matrix product", error)


def _outcome(timings: Mapping[Any, float] | None, seen: Timing) -> tuple[str, str | None]:
    """Outcome and reason, by what is known of how the host got its timings."""
    if timings is None:
        return TUNED, PIPELINED
    if seen.why == RACE_ERROR:
        return FAILED, RACE_ERROR
    if seen.why == NO_CHOICE or not any(map(math.isfinite, timings.values())):
        return FAILED, NO_CHOICE
    if seen.result is not None:
        return TUNED, None
    if seen.collective:
        return TUNED, COLLECTIVE
    if seen.host_ms is not None:
        return TUNED, seen.why or UNTIMED
    return (TUNED, SUBPROCESS) if seen.asked else (CACHED, CACHE)


def _tiles(
    selected: Selected, choices: Sequence[Any], times: Mapping[Any, float], seen: Timing, result: RaceResult | None
) -> list[MatmulTileRecord]:
    """Of the choices in their order, then those of the set that the host has no choice of (pruned, or without source)."""
    place = {id(choice): i for i, choice in enumerate(seen.raced)}
    proposers = _proposers(selected.chosen)
    tiles, listed, plain = [], set(), ""
    for choice in choices:
        template, numbers = _described(choice)
        who: tuple[str, ...] = (HOST,)
        if template in selected.templates:
            plain = template
            listed.add(numbers)
            who = proposers.get(numbers, who)
        ms = times.get(choice)
        us, mad, reps = 1e3 * ms if ms is not None else None, None, 0
        if result is not None and (i := place.get(id(choice))) is not None:
            us, mad = (1e3 * seen.scale * value for value in (result.times_us[i], result.mads_us[i]))
            reps = result.rounds[i]
        tiles.append(_tile(template, numbers, who, _status(choice, ms), us=us, us_mad=mad, reps=reps))
    left = ((numbers, who) for numbers, who in proposers.items() if numbers not in listed)
    return tiles + [_tile(plain, numbers, who, "not_compiled") for numbers, who in left]


def _tile(template: str, numbers: Numbers, proposers: tuple[str, ...], status: str, **times: Any) -> MatmulTileRecord:
    named: dict[str, Any] = dict(zip(NUMBERS, numbers, strict=True))
    return MatmulTileRecord(template=template, **named, proposers=proposers, status=status, **times)


def _proposers(chosen: MatmulSet) -> dict[Numbers, tuple[str, ...]]:
    return {one.tile.sort_key: one.proposers for one in chosen.candidates}


def _described(choice: Any) -> tuple[str, Numbers]:
    """A choice's template, and its tile's numbers as far as it has any."""
    made = _template_choice(choice)
    if made is None:
        return str(getattr(choice, "name", type(choice).__name__)), (None,) * len(TILE_NAMES)
    kwargs = made.params.to_kwargs()
    values = (kwargs.get(name) for name in TILE_NAMES)
    return str(made.template.uid), tuple(
        value if isinstance(value, int) and not isinstance(value, bool) else None for value in values
    )


def _template_choice(choice: Any) -> Any:
    return getattr(choice, "annotations", {}).get("ktc")


def _status(choice: Any, ms: float | None) -> str:
    if ms is None:
        return "compile_error" if getattr(choice, "failed", False) else "not_compiled"
    return OK if math.isfinite(ms) else "launch_error"
