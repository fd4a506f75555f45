"""Selector: the union of model, formula and host list. The superset guarantee lives here.

For every kernel the set holds all that the formula proposes (as legal tiles of the hardware) and the whole of the
host's list, whatever the model says or fails to say: the best time in the set is never above the best time in any
of them. FamilySelector is what every kernel family shares; Selector is that of reductions, and matmul_selector.py has
that of matrix products, whose formula is the planner.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tileguard import models
from tileguard.features.anchor import FormulaParams
from tileguard.features.blocks import blocks
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import SORT_KEY, ReductionTile, TileSpace

from . import rules
from .calibration import DEFAULT_RISK, calibrated_k, checked_risk, checked_top_k, resolved_k
from .choose import choose, prepare
from .fallback import formula_tiles
from .feature_space import FOREVER, REDUCTION
from .guard import Guard, GuardPolicy, ModelRejected, Ranker, Reason, Verdict
from .lattice import lattice, lattices
from .ranker import OnnxRanker, load_ranker

DEFAULT_TOP_K = 8
HOST, FORMULA, MODEL = "host", "formula", "model"
PROPOSERS = (HOST, FORMULA, MODEL)

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chosen(Generic[T]):
    """A tile, who proposed it (in the order of PROPOSERS), and its score where the model was trusted."""

    tile: T
    proposers: tuple[str, ...]
    score: float | None = None


@dataclass(frozen=True, slots=True)
class SelectionTimes:
    """Where one selection's time went, in µs: proposing (formula, lattice), scoring, all of it."""

    propose_us: float
    score_us: float
    total_us: float


@dataclass(frozen=True, slots=True)
class ChosenSet(Generic[K, T]):
    """The tiles to compile, in order: the host's list as it stood, then by score where the model is trusted, then by
    proposer; ties by tile. Equal inputs give equal sets on every process (times apart). top_k: how many tiles the model
    was asked for."""

    kernel: K
    hardware: str
    candidates: tuple[Chosen[T], ...]
    verdict: Verdict
    times: SelectionTimes
    top_k: int

    @property
    def tiles(self) -> tuple[T, ...]:
        return tuple(candidate.tile for candidate in self.candidates)

    @property
    def digest(self) -> str:
        """SHA-256 over the tiles in order: a changed set is a changed digest."""
        return hashlib.sha256(repr([SORT_KEY(tile) for tile in self.tiles]).encode()).hexdigest()

    def proposed_by(self, proposer: str) -> tuple[T, ...]:
        """The tiles that `proposer` put in, in the set's order."""
        return tuple(c.tile for c in self.candidates if proposer in c.proposers)


Candidate = Chosen[ReductionTile]
CandidateSet = ChosenSet[ReductionKernel, ReductionTile]


def load_champion(hardware: HardwareSpec, family: str = REDUCTION) -> OnnxRanker:
    """The model for a family's kernels on `hardware`: the user's own, else the shipped one. Raises ModelRejected with the
    Reason: wrong_hardware on a CPU where there is neither, but one of another CPU is shipped."""
    directory = models.model_path(family, hardware.name)
    if directory is not None:
        return load_ranker(directory, hardware, family)
    if hardware.kind == "cpu" and (others := models.other_cpus(family)):
        trained = " and ".join(others)
        from .devices.cpu.targets import LEVELS

        target = next((f" --target {name}" for name in LEVELS if hardware.name.endswith(f"-{name}")), "")
        cure = f"`tileguard adapt{target}` fits one to this machine"
        raise ModelRejected(Reason.WRONG_HARDWARE, f"trained on {trained}, this is {hardware.name}; {cure}")
    raise ModelRejected(Reason.NO_MODEL, f"none is shipped for {family}s on {hardware.name}; give a model's folder")


class FamilySelector(Generic[K, T]):
    """Makes candidate sets of one kernel family for one hardware.

    hardware: a HardwareSpec or a known name. model: "champion" (the shipped one), a directory, a Ranker, or None for
    the fallbacks alone. A model that is missing, corrupt or foreign raises nothing: the verdict says so. top_k: a
    number, or "calibrated": as many as the model needs to lose over 5 % on at most `risk` of kernels (calibration.py).
    formula: its constants; left out, those fitted to the hardware, and without any the RFC's.
    Raises InvalidInput for an unknown hardware, a top_k below 1 or a risk outside 0 to 1.

    A family's class says what its kernels and tiles are and, by the static methods, what is proposed without a model,
    what a model chooses from, and in which order fallbacks stand.
    """

    family: ClassVar[str]
    kernel_type: ClassVar[type[Any]]
    tile_type: ClassVar[type[Any]]
    widens: ClassVar[bool]
    """Whether fallback(all_warps=True) proposes more, to stand in for an unsure model."""

    @staticmethod
    def fallback(
        kernel: K, hardware: HardwareSpec, *, all_warps: bool = False, params: FormulaParams | None = None
    ) -> tuple[T, ...]:
        """What is proposed without a model. params: constants of the formula, where the family has one."""
        raise NotImplementedError

    @staticmethod
    def lattice(kernel: K, hardware: HardwareSpec) -> TileSpace[T]:
        """What a model chooses from."""
        raise NotImplementedError

    @staticmethod
    def order(fallback: tuple[T, ...]) -> Callable[[T], Any]:
        """A key that tells tiles of equal score and proposer apart: distinct for distinct tiles."""
        return SORT_KEY

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
            family = self.family
            load = lambda: load_champion(spec, family) if model == "champion" else load_ranker(model, spec, family)
        else:
            ranker = model
            load = lambda: ranker
        self.guard = Guard(load, spec, policy, self.family)

    def select(
        self,
        kernel: K,
        host_tiles: Iterable[T] = (),
        *,
        space: Sequence[T] | None = None,
        calls: float = FOREVER,
    ) -> ChosenSet[K, T]:
        """The candidate set of one kernel.

        host_tiles: the compiler's own list, its default first; kept whole and first. space: the tiles that the model
        may choose from; left out, the hardware's dense lattice. calls: over which compiling is shared (Objective.calls);
        left out, run time alone counts.
        """
        if not isinstance(kernel, self.kernel_type):
            raise InvalidInput("kernel", type(kernel).__name__, f"a {self.kernel_type.__name__}")
        if isinstance(host_tiles, Iterable):
            host_tiles = tuple(host_tiles)
        tile_type = self.tile_type
        if not isinstance(host_tiles, tuple) or not all(isinstance(tile, tile_type) for tile in host_tiles):
            raise InvalidInput("host_tiles", host_tiles, f"{tile_type.__name__}s")
        started = time.perf_counter_ns()
        formula = self.fallback(kernel, self.hardware, params=self.formula)
        if space is None:
            choices = self.lattice(kernel, self.hardware)
        else:
            choices = space if isinstance(space, TileSpace) else TileSpace(space)
        pool = choices.with_extra((*host_tiles, *formula))
        proposed = time.perf_counter_ns()
        verdict, scores = self.guard.ask(kernel, pool, calls)
        scored = time.perf_counter_ns()

        proposers: dict[T, list[str]] = {tile: [HOST] for tile in host_tiles}
        if not verdict.trusted and self.widens and self.hardware.has_warps:
            # An unsure model costs compiles, never a worse winner: the formula then stands with every warp count.
            formula = self.fallback(kernel, self.hardware, all_warps=True, params=self.formula)
        for tile in formula:
            proposers.setdefault(tile, []).append(FORMULA)
        k = self._k()
        if scores is not None:
            for index in self._chosen(scores[: len(choices)], choices, k):
                proposers.setdefault(choices[index], []).append(MODEL)
        trusted = scores if verdict.trusted else None
        rank = {tile: place for place, tile in enumerate(dict.fromkeys(host_tiles))}
        order = self.order(formula)
        rows = []
        for tile, who in proposers.items():
            score = float(trusted[pool.position[tile]]) if trusted is not None else None
            # Sorted as tuples: no two have one key of `order`, so that candidates are never compared.
            candidate = Chosen(tile, tuple(who), score)
            rows.append((rank.get(tile, len(rank)), -(score or 0.0), PROPOSERS.index(who[0]), order(tile), candidate))
        candidates = tuple(row[-1] for row in sorted(rows))
        ended = time.perf_counter_ns()
        times = SelectionTimes((proposed - started) / 1e3, (scored - proposed) / 1e3, (ended - started) / 1e3)
        return ChosenSet(kernel, self.hardware.name, candidates, verdict, times, k)

    def calibrated_k(self, risk: float) -> int | None:
        """As many tiles as the model, once loaded, needs to lose over 5 % on at most `risk` of kernels; None where that
        is not known."""
        return calibrated_k(self._calibration(), risk)

    def _k(self) -> int:
        return resolved_k(self.top_k, self._calibration(), self.risk, default=DEFAULT_TOP_K)

    def _calibration(self) -> Sequence[Mapping[str, Any]]:
        ranker = self.guard.ranker
        return ranker.manifest.calibration if ranker is not None else ()

    def _chosen(self, scores: npt.NDArray[np.float64], space: TileSpace[T], k: int) -> tuple[int, ...]:
        ranker = self.guard.ranker
        return choose(scores, space, k, diversity=ranker.manifest.diversity if ranker else 0.0)


class Selector(FamilySelector[ReductionKernel, ReductionTile]):
    """Candidate sets of reductions; see FamilySelector."""

    family = REDUCTION
    kernel_type, tile_type, widens = ReductionKernel, ReductionTile, True
    fallback = staticmethod(formula_tiles)
    lattice = staticmethod(lattice)

    def prepare(self) -> None:
        """Work out what the hardware's kernels share, before a compiler waits for it: on a GPU some 30 ms, once a process,
        of what would take a kernel with a new lattice 0.3 ms and more."""
        for space in lattices(self.hardware):
            blocks(space, self.hardware)
            rules.prepare(space)
            prepare(space)
