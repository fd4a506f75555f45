"""compile -> bench -> argmin over a device, with every candidate accounted for."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tileguard.features.errors import InvalidInput, TileguardError
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

from .devices.base import OK, CandidateError, Compiled, Device, Timing
from .guard import Verdict
from .objective import Objective, RunTime
from .selector import CandidateSet, Selector
from .winners import Winner, Winners

TIE_BAND = 0.02
"""Candidates within 2 % of the best, and within both deviations of it, tie; the cheaper compile wins."""


CONFIRM_BAND, CONFIRM_MOST = 0.3, 8
"""Candidates within 30 % of the best are timed once more, eight at most: one disturbed round must not pick a winner
that a store then keeps."""


class NoCandidate(TileguardError):
    """Every candidate of a kernel failed; the message says how."""


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """What became of one tile. status is `ok` or the name of its failure, which `error` puts in words."""

    tile: ReductionTile
    proposers: tuple[str, ...]
    status: str
    error: str | None = None
    compile_ms: float | None = None
    timing: Timing | None = None


@dataclass(frozen=True, slots=True)
class TuningResult:
    """All candidates in the set's order, the winner, and what it took.

    from_store: the winner was known and nothing was compiled (candidates is then empty).
    """

    kernel: ReductionKernel
    hardware: str
    verdict: Verdict
    candidates: tuple[CandidateResult, ...]
    winner: Winner
    proposers: tuple[str, ...]
    from_store: bool
    seconds: float


def tune(
    kernel: ReductionKernel,
    device: Device,
    selector: Selector,
    *,
    host_tiles: Sequence[ReductionTile] = (),
    objective: Objective | None = None,
    winners: Winners | None = None,
) -> TuningResult:
    """Compile the candidate set, time what compiled, keep the best; a failing candidate costs only itself.

    Raises NoCandidate when none compiles. Ties inside the noise go to the cheaper compile, then to the set's order.
    """
    if selector.hardware.name != device.hardware.name:
        raise InvalidInput("selector", selector.hardware.name, f"one for the device's hardware, {device.hardware.name}")
    started = time.perf_counter()
    objective = objective or RunTime()
    candidate_set = selector.select(kernel, host_tiles, calls=objective.calls)
    proposers_of = {c.tile: c.proposers for c in candidate_set.candidates}
    identity = (kernel, device.hardware.name, f"{device.toolchain}; {objective!r}", candidate_set.digest)
    known = winners.get(*identity) if winners is not None else None
    if known is not None and known.tile in proposers_of:
        seconds = time.perf_counter() - started
        return TuningResult(
            kernel, device.hardware.name, candidate_set.verdict, (), known, proposers_of[known.tile], True, seconds
        )
    results = measure(candidate_set, device, objective)
    winner = pick_winner(results, objective)
    if winner is None:
        raise NoCandidate(f"none of {len(results)} candidates works: " + _failures(results))
    if winners is not None:
        winners.put(*identity, winner)
    return TuningResult(
        kernel, device.hardware.name, candidate_set.verdict, results, winner, proposers_of[winner.tile], False,
        time.perf_counter() - started,
    )  # fmt: skip


def measure(candidate_set: CandidateSet, device: Device, objective: Objective) -> tuple[CandidateResult, ...]:
    """Compile and bench every candidate of a set, in its order; those near the best are timed twice, side by side, and
    where compiling counts compiled twice. The lower time counts."""
    compiled: dict[ReductionTile, Compiled] = {}
    failed: dict[ReductionTile, CandidateError] = {}
    for tile in candidate_set.tiles:
        try:
            compiled[tile] = device.compile(candidate_set.kernel, tile)
        except CandidateError as error:
            failed[tile] = error
    timings = dict(zip(compiled, device.bench(list(compiled.values())), strict=True))
    costs = {tile: objective.cost_us(timings[tile], compiled[tile].compile_ms) for tile in compiled}
    least = min(costs.values(), default=0.0)
    near = [tile for tile in sorted(costs, key=lambda t: costs[t]) if costs[tile] <= within(CONFIRM_BAND, least)]
    finalists = near[:CONFIRM_MOST]
    if len(finalists) > 1 and objective.calls < math.inf:
        for tile in finalists:
            compiled[tile] = _cheaper(compiled[tile], device)
    if len(finalists) > 1:
        for tile, again in zip(finalists, device.bench([compiled[tile] for tile in finalists]), strict=True):
            timings[tile] = min(timings[tile], again, key=lambda timing: timing.us)
    return tuple(
        CandidateResult(c.tile, c.proposers, OK, None, compiled[c.tile].compile_ms, timings[c.tile])
        if c.tile in compiled
        else CandidateResult(c.tile, c.proposers, failed[c.tile].status, str(failed[c.tile]))
        for c in candidate_set.candidates
    )


def pick_winner(results: Sequence[CandidateResult], objective: Objective) -> Winner | None:
    """The candidate of least cost; None when none worked. By run time, of those that tie the cheapest to compile."""
    timed = [(r, r.timing, r.compile_ms or 0.0) for r in results if r.timing is not None]
    if not timed:
        return None
    costs = [objective.cost_us(timing, compile_ms) for _, timing, compile_ms in timed]
    best = min(range(len(timed)), key=costs.__getitem__)
    if objective.calls < math.inf:  # compiling is in the cost: nothing is left for a tie to decide
        result, timing, compile_ms = timed[best]
        return Winner(result.tile, timing.us, compile_ms)
    spreads = [
        abs(objective.cost_us(replace(timing, us=timing.us + timing.us_mad), compile_ms) - cost)
        for (_, timing, compile_ms), cost in zip(timed, costs, strict=True)
    ]
    tied = [
        i
        for i in range(len(timed))
        if costs[i] <= within(TIE_BAND, costs[best]) and costs[i] - costs[best] <= spreads[best] + spreads[i]
    ]
    result, timing, compile_ms = timed[min(tied, key=lambda i: (timed[i][2], i))]
    return Winner(result.tile, timing.us, compile_ms)


def _cheaper(compiled: Compiled, device: Device) -> Compiled:
    """The candidate with the lower of two compile times; as it was where the second one fails."""
    try:
        again = device.compile(compiled.kernel, compiled.tile)
    except CandidateError:
        return compiled
    return replace(compiled, compile_ms=min(compiled.compile_ms, again.compile_ms))


def within(band: float, best: float) -> float:
    """The highest cost that is within `band`, a share, of the best; costs may be of any sign."""
    return best + band * abs(best)


def _failures(results: Sequence[CandidateResult]) -> str:
    return "; ".join(f"{r.tile}: {r.status} ({r.error})" for r in results[:3])
