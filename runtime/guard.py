"""When not to trust the model. Whatever the verdict, the fallbacks' tiles stay in the set."""

from __future__ import annotations

import enum
import logging
import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput, TileguardError, checked_int
from tileguard.features.hardware import HardwareSpec

from .devices.base import CandidateError
from .feature_space import FOREVER, REDUCTION, FeatureSpace, feature_space

if TYPE_CHECKING:
    from .manifest import Manifest

logger = logging.getLogger("tileguard")
T = TypeVar("T")


class Reason(enum.StrEnum):
    """Why a model was trusted or not."""

    TRUST = "trust"
    NO_MODEL = "no_model"
    UNREADABLE = "unreadable"
    DIGEST_MISMATCH = "digest_mismatch"
    SCHEMA_MISMATCH = "schema_mismatch"
    WRONG_HARDWARE = "wrong_hardware"
    WRONG_FAMILY = "wrong_family"
    NON_FINITE = "non_finite"
    OUT_OF_RANGE = "out_of_range"
    UNSUPPORTED_KERNEL = "unsupported_kernel"
    SCORER_ERROR = "scorer_error"
    OVER_BUDGET = "over_budget"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A Reason, and in words what was found."""

    reason: Reason
    detail: str = ""

    @property
    def trusted(self) -> bool:
        return self.reason is Reason.TRUST

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)


TRUSTED = Verdict(Reason.TRUST)


class ModelRejected(TileguardError):
    """A model that must not be used; carries the Reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.verdict = Verdict(reason, detail)
        super().__init__(str(self.verdict))


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """How much the guard tolerates.

    enabled: False, or the environment's TILEGUARD=0, turns the model off. range_slack: how far a kernel may lie
    outside the trained range of a feature, as a share of that range. score_budget_s, load_budget_s: how long one
    scoring, and loading the model, may take; generous, since a verdict that depends on the clock may differ between
    ranks. max_overruns: after so many the model is left alone for the rest of the process.
    """

    enabled: bool = True
    range_slack: float = 0.25
    score_budget_s: float = 0.25
    load_budget_s: float = 10.0
    max_overruns: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise InvalidInput("enabled", self.enabled, "True or False")
        for name in ("range_slack", "score_budget_s", "load_budget_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise InvalidInput(name, value, "a number >= 0")
        checked_int("max_overruns", self.max_overruns, minimum=1)


class Ranker(Protocol):
    """Scores tiles of one kernel, both of the family that its manifest names; higher is better.

    One whose `score` does nothing but compute may say so by an attribute `computes_only = True`; the guard then spares
    it the hop to another thread.
    """

    @property
    def manifest(self) -> Manifest:
        """What it was trained on."""

    def score(self, kernel: Any, tiles: Sequence[Any], calls: float = FOREVER) -> npt.NDArray[np.float64]:
        """float64[n]. calls: over which compiling is shared; infinite where run time alone counts."""


class Guard:
    """Loads a ranker of one family when first needed and asks it, or says why not. Thread-safe; never raises."""

    def __init__(
        self,
        load: Callable[[], Ranker] | None,
        hardware: HardwareSpec,
        policy: GuardPolicy | None = None,
        family: str = REDUCTION,
    ) -> None:
        self._load = load
        self._hardware = hardware
        self._family = family
        self._space = feature_space(hardware, family)
        self.policy = policy or GuardPolicy()
        self._deadline = _Deadline()
        self._lock = threading.Lock()
        self._ranker: Ranker | None = None
        self._rejected: Verdict | None = None
        self._overruns = 0
        self._proven = False
        self.counts: Counter[Reason] = Counter()
        _GUARDS.add(self)

    @property
    def ranker(self) -> Ranker | None:
        """The loaded ranker, if loading was tried and went well."""
        return self._ranker

    def ask(
        self, kernel: Any, tiles: Sequence[Any], calls: float = FOREVER
    ) -> tuple[Verdict, npt.NDArray[np.float64] | None]:
        """The verdict, and the scores float64[n] where the model could be asked: with trust, and with out_of_range,
        where they are a guess among others. calls: as Ranker.score."""
        try:
            verdict, scores = self._ask(kernel, tiles, calls)
        except Exception as error:
            verdict, scores = Verdict(Reason.SCORER_ERROR, f"{type(error).__name__}: {error}"), None
        self._count(verdict)
        return verdict, scores

    def _count(self, verdict: Verdict) -> None:
        with self._lock:
            first = not self.counts[verdict.reason]
            self.counts[verdict.reason] += 1
        if first and verdict.reason not in (Reason.TRUST, Reason.DISABLED):
            logger.warning("tileguard falls back to the formula and the host's own list: %s", verdict)

    def _ask(self, kernel: Any, tiles: Sequence[Any], calls: float) -> tuple[Verdict, npt.NDArray[np.float64] | None]:
        if not self.policy.enabled or os.environ.get("TILEGUARD") == "0":
            return Verdict(Reason.DISABLED), None
        ranker = self._loaded()
        if isinstance(ranker, Verdict):
            return ranker, None
        if beyond := self._space.beyond(kernel):
            return Verdict(Reason.UNSUPPORTED_KERNEL, beyond), None
        if self._overruns >= self.policy.max_overruns:
            return Verdict(Reason.OVER_BUDGET, f"{self._overruns} overruns; the model is left alone"), None
        try:
            scores = self._scored(ranker, kernel, tiles, calls)
        except _Missed:
            self._overruns += 1
            return Verdict(Reason.OVER_BUDGET, f"scoring took over {self.policy.score_budget_s} s"), None
        except ModelRejected as error:
            return error.verdict, None
        scores = np.asarray(scores, dtype=np.float64)
        if scores.shape != (len(tiles),):
            return Verdict(Reason.SCORER_ERROR, f"{scores.shape} scores for {len(tiles)} tiles"), None
        if not np.isfinite(scores).all():
            return Verdict(Reason.NON_FINITE, f"{int((~np.isfinite(scores)).sum())} scores"), None
        try:
            outside = out_of_range(kernel, ranker.manifest.ranges, self.policy.range_slack, self._space, calls)
        except CandidateError as error:
            return Verdict(Reason.UNSUPPORTED_KERNEL, str(error)), None
        return (Verdict(Reason.OUT_OF_RANGE, ", ".join(outside)) if outside else TRUSTED), scores

    def _scored(self, ranker: Ranker, kernel: Any, tiles: Sequence[Any], calls: float) -> npt.NDArray[np.float64]:
        """The ranker's scores, its exception, or _Missed.

        A ranker that computes and never waits runs under the deadline until it has answered once, then on the
        caller's thread (a hop to another costs as much as a third of the scoring) with its time checked afterwards;
        once late, it is back under the deadline.
        """
        asked = () if calls == FOREVER else (calls,)
        if not (self._proven and not self._overruns and getattr(ranker, "computes_only", False)):
            scores = self._deadline.call(lambda: ranker.score(kernel, tiles, *asked), self.policy.score_budget_s)
            self._proven = True
            return scores
        started = time.perf_counter()
        scores = ranker.score(kernel, tiles, *asked)
        if time.perf_counter() - started > self.policy.score_budget_s:
            raise _Missed
        return scores

    def _loaded(self) -> Ranker | Verdict:
        with self._lock:
            if self._ranker is not None:
                return self._ranker
            if self._rejected is None:
                self._rejected = self._try_load()
            return self._ranker if self._ranker is not None else self._rejected

    def _try_load(self) -> Verdict:
        if self._load is None:
            return Verdict(Reason.NO_MODEL, "no model was asked for")
        try:
            ranker = self._deadline.call(self._load, self.policy.load_budget_s)
            check_fit(ranker.manifest, family=self._family, hardware=self._hardware)
        except ModelRejected as error:
            return error.verdict
        except _Missed:
            return Verdict(Reason.OVER_BUDGET, f"loading took over {self.policy.load_budget_s} s")
        except Exception as error:
            return Verdict(Reason.UNREADABLE, f"{type(error).__name__}: {error}")
        self._ranker = ranker
        return TRUSTED


def check_fit(manifest: Manifest, *, family: str, hardware: HardwareSpec) -> None:
    """Raise ModelRejected unless the model speaks of this kernel family on this hardware."""
    check_family(manifest, family)
    if manifest.hardware != hardware.name:
        raise ModelRejected(Reason.WRONG_HARDWARE, f"trained on {manifest.hardware}, this is {hardware.name}")


def check_family(manifest: Manifest, family: str) -> None:
    """Raise ModelRejected unless the model speaks of this kernel family."""
    if manifest.family != family:
        raise ModelRejected(Reason.WRONG_FAMILY, f"trained for {manifest.family}, asked for {family}")


def out_of_range(
    kernel: Any,
    ranges: Mapping[str, tuple[float, float]],
    slack: float,
    space: FeatureSpace,
    calls: float = FOREVER,
) -> tuple[str, ...]:
    """Which of the kernel's features lie outside the trained range, and how far, as `name=value (low..high)`.

    A feature may leave its range by `slack` times the range's width; one that never varied may not leave it at all. A
    finite number of calls is outside where it is no feature: the model was trained on run time.
    """
    outside = [] if space.knows_calls or calls == FOREVER else [f"calls={calls:g} (trained on run time)"]
    for name, value in zip(space.kernel_names, space.of_kernel(kernel, calls), strict=True):
        low, high = ranges[name]
        margin = slack * (high - low)
        if not low - margin <= value <= high + margin:
            outside.append(f"{name}={value:g} ({low:g}..{high:g})")
    return tuple(outside)


class _Missed(Exception):
    """A deadline passed; apart from TimeoutError, which a ranker may raise itself."""


class _Deadline:
    """Calls a function on a daemon thread and waits so long: a hung model must hang neither the host compiler nor
    the interpreter's exit. A thread that missed its deadline is abandoned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[tuple[Callable[[], object], queue.SimpleQueue[tuple[bool, object]]]] | None
        self._inbox = None

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """function(), its exception, or _Missed."""
        outbox: queue.SimpleQueue[tuple[bool, T | BaseException]] = queue.SimpleQueue()
        with self._lock:
            if self._inbox is None:
                self._inbox = queue.SimpleQueue()
                threading.Thread(target=_serve, args=(self._inbox,), name="tileguard-scorer", daemon=True).start()
            inbox = self._inbox
        inbox.put((function, outbox))  # type: ignore[arg-type]
        try:
            ok, result = outbox.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        except queue.Empty:
            with self._lock:
                if self._inbox is inbox:
                    self._inbox = None
            raise _Missed from None
        if ok:
            return result  # type: ignore[return-value]
        # What ends a thread (SystemExit) must not end the caller's.
        raise result if isinstance(result, Exception) else RuntimeError(repr(result))


def _serve(inbox: queue.SimpleQueue[tuple[Callable[[], object], queue.SimpleQueue[tuple[bool, object]]]]) -> None:
    while True:
        function, outbox = inbox.get()
        try:
            outbox.put((True, function()))
        except BaseException as error:
            outbox.put((False, error))


_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()


def _renew_after_fork() -> None:
    """A forked child has none of its parent's threads, and a lock that one of them held would never be released."""
    for guard in _GUARDS:
        guard._lock, guard._deadline = threading.Lock(), _Deadline()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)
