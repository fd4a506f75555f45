"""Selector: the union of model, formula and host list. The superset guarantee lives here.

For every kernel the set holds all that the formula proposes (as legal tiles of the hardware) and the whole of the
host's list, whatever the model says or fails to say: the best time in the set is never above the best time in any
of them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tileguard import models
from tileguard.features.anchor import FormulaParams
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile, TileSpace

from .calibration import DEFAULT_RISK, checked_risk, checked_top_k, resolved_k
from .choose import choose
from .fallback import formula_tiles
from .feature_space import FOREVER
from .guard import Guard, GuardPolicy, ModelRejected, Ranker, Reason, Verdict
from .lattice import lattice
from .ranker import OnnxRanker, load_ranker

DEFAULT_TOP_K = 8
HOST, FORMULA, MODEL = "host", "formula", "model"
PROPOSERS = (HOST, FORMULA, MODEL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tile, who proposed it (in the order of PROPOSERS), and its score where the model was trusted."""

    tile: ReductionTile
    proposers: tuple[str, ...]
    score: float | None = None


@dataclass(frozen=True, slots=True)
class SelectionTimes:
    """Where one selection's time went, in µs: proposing (formula, lattice), scoring, all of it."""

    propose_us: float
    score_us: float
    total_us: float


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """The tiles to compile, in order: the host's list as it stood, then by score where the model is trusted, then by
    proposer; ties by tile. Equal inputs give equal sets on every process (times apart). top_k: how many tiles the model
    was asked for."""

    kernel: ReductionKernel
    hardware: str
    candidates: tuple[Candidate, ...]
    verdict: Verdict
    times: SelectionTimes
    top_k: int

    @property
    def tiles(self) -> tuple[ReductionTile, ...]:
        return tuple(candidate.tile for candidate in self.candidates)

    @property
    def digest(self) -> str:
        """SHA-256 over the tiles in order: a changed set is a changed digest."""
        return hashlib.sha256(repr([tile.sort_key for tile in self.tiles]).encode()).hexdigest()

    def proposed_by(self, proposer: str) -> tuple[ReductionTile, ...]:
        """The tiles that `proposer` put in, in the set's order."""
        return tuple(c.tile for c in self.candidates if proposer in c.proposers)


def load_champion(hardware: HardwareSpec) -> OnnxRanker:
    """The model for reductions on `hardware`: the user's own, else the shipped one. Raises ModelRejected with the Reason:
    wrong_hardware on a CPU where there is neither, but one of another CPU is shipped."""
    directory = models.model_path("reduction", hardware.name)
    if directory is not None:
        return load_ranker(directory, hardware)
    if hardware.kind == "cpu" and (others := models.other_cpus("reduction")):
        trained = " and ".join(others)
        from .devices.cpu.targets import LEVELS

        target = next((f" --target {name}" for name in LEVELS if hardware.name.endswith(f"-{name}")), "")
        cure = f"`tileguard adapt{target}` fits one to this machine"
        raise ModelRejected(Reason.WRONG_HARDWARE, f"trained on {trained}, this is {hardware.name}; {cure}")
    raise ModelRejected(Reason.NO_MODEL, f"none is shipped for reductions on {hardware.name}; give a model's folder")


class Selector:
    """Makes candidate sets for one hardware.

    hardware: a HardwareSpec or a known name. model: "champion" (the shipped one), a directory, a Ranker, or None for
    the fallbacks alone. A model that is missing, corrupt or foreign raises nothing: the verdict says so. top_k: a
    number, or "calibrated": as many as the model needs to lose over 5 % on at most `risk` of kernels (calibration.py).
    formula: its constants; left out, those fitted to the hardware, and without any the RFC's.
    Raises InvalidInput for an unknown hardware, a top_k below 1 or a risk outside 0 to 1.
    """

    def __init__(
        self,
        hardware: HardwareSpec | str,
        *,
        model: str | Path | Ranker | None = "champion",
        top_k: int | str = DEFAULT_TOP_K,
        risk: float = DEFAULT_RISK,
        policy: GuardPolicy | None = None,
        formula: FormulaParams | None = None,
    ) -> None:
        self.hardware = known_hardware(hardware) if isinstance(hardware, str) else hardware
        self.top_k, self.risk = checked_top_k(top_k), checked_risk(risk)
        self.formula = formula
        spec = self.hardware
        load: Callable[[], Ranker] | None
        if model is None:
            load = None
        elif isinstance(model, str | Path):
            load = lambda: load_champion(spec) if model == "champion" else load_ranker(model, spec)
        else:
            ranker = model
            load = lambda: ranker
        self.guard = Guard(load, spec, policy)

    def select(
        self,
        kernel: ReductionKernel,
        host_tiles: Iterable[ReductionTile] = (),
        *,
        space: Sequence[ReductionTile] | None = None,
        calls: float = FOREVER,
    ) -> CandidateSet:
        """The candidate set of one kernel.

        host_tiles: the compiler's own list, its default first; kept whole and first. space: the tiles that the model
        may choose from; left out, the hardware's dense lattice. calls: over which compiling is shared (Objective.calls);
        left out, run time alone counts.
        """
        if not isinstance(kernel, ReductionKernel):
            raise InvalidInput("kernel", type(kernel).__name__, "a ReductionKernel")
        if isinstance(host_tiles, Iterable):
            host_tiles = tuple(host_tiles)
        if not isinstance(host_tiles, tuple) or not all(isinstance(tile, ReductionTile) for tile in host_tiles):
            raise InvalidInput("host_tiles", host_tiles, "ReductionTiles")
        started = time.perf_counter_ns()
        formula = formula_tiles(kernel, self.hardware, params=self.formula)
        choices = lattice(kernel, self.hardware) if space is None else TileSpace(space)
        pool = choices.with_extra((*host_tiles, *formula))
        proposed = time.perf_counter_ns()
        verdict, scores = self.guard.ask(kernel, pool, calls)
        scored = time.perf_counter_ns()

        proposers: dict[ReductionTile, list[str]] = {tile: [HOST] for tile in host_tiles}
        if not verdict.trusted and self.hardware.has_warps:
            # An unsure model costs compiles, never a worse winner: the formula then stands with every warp count.
            formula = formula_tiles(kernel, self.hardware, all_warps=True, params=self.formula)
        for tile in formula:
            proposers.setdefault(tile, []).append(FORMULA)
        k = self._k()
        if scores is not None:
            for index in self._chosen(scores[: len(choices)], choices, k):
                proposers.setdefault(choices[index], []).append(MODEL)
        trusted = scores if verdict.trusted else None
        rank = {tile: place for place, tile in enumerate(dict.fromkeys(host_tiles))}
        rows = []
        for tile, who in proposers.items():
            score = float(trusted[pool.position[tile]]) if trusted is not None else None
            # Sorted as tuples: no two have one sort key, so that candidates are never compared.
            candidate = Candidate(tile, tuple(who), score)
            rows.append((rank.get(tile, len(rank)), -(score or 0.0), PROPOSERS.index(who[0]), tile.sort_key, candidate))
        candidates = tuple(row[-1] for row in sorted(rows))
        ended = time.perf_counter_ns()
        times = SelectionTimes((proposed - started) / 1e3, (scored - proposed) / 1e3, (ended - started) / 1e3)
        return CandidateSet(kernel, self.hardware.name, candidates, verdict, times, k)

    def _k(self) -> int:
        ranker = self.guard.ranker
        entries = ranker.manifest.calibration if ranker is not None else ()
        return resolved_k(self.top_k, entries, self.risk, default=DEFAULT_TOP_K)

    def _chosen(self, scores: npt.NDArray[np.float64], space: TileSpace, k: int) -> tuple[int, ...]:
        ranker = self.guard.ranker
        return choose(scores, space, k, diversity=ranker.manifest.diversity if ranker else 0.0)
