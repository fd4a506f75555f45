"""Candidate-set quality: loss tiers, snap-eval, regret@k, superset checks, against every baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tileguard.features.anchor import FormulaParams
from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.choose import choose
from tileguard.runtime.feature_space import FOREVER, REDUCTION
from tileguard.runtime.guard import Reason
from tileguard.runtime.matmul_selector import SELECTORS
from tileguard.runtime.selector import FamilySelector

from . import baselines
from .amortised import calls_of
from .baselines import Candidates, measured
from .corpus import Corpus, KernelSweep
from .corpus_schema import REDUCTION as REDUCTION_CORPUS
from .regimes import REGIMES, regime_of

LOSSLESS, MINOR, SEVERE = 1.05, 1.10, 1.30
"""Edges of the loss tiers, as best time in the set ÷ dense best (reduction RFC §3.3)."""

NOISE = 1.02
"""A loss between two selectors counts from 2 % on: below it, near-best tiles swap between two runs."""

CURVE_K = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
"""Where the regret@k curve is drawn."""


class Scorer(Protocol):
    def score(self, kernel: Any, tiles: Sequence[Any], calls: float = FOREVER) -> npt.NDArray[np.float64]:
        """float64[n], higher is better."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is asked for each sweep: the scorer (of its fold, or the champion), how its k tiles are picked, the selector
    that unites them with the rest, and the formula that this holds (None is the shipped one)."""

    scorer_of: Callable[[int], Scorer]
    selector_of: Callable[[int, int], FamilySelector[Any, Any]]
    diversity: float
    formula_of: Callable[[int], FormulaParams | None] = lambda index: None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Per selector, one candidate set and one slowdown a kernel, in the corpus's order.

    sets: the measured tiles of each; sizes: tiles of the whole set, those included that the sweep did not measure
    and a compiler would compile all the same.
    """

    corpus: Corpus
    sets: Mapping[str, tuple[Candidates, ...]]
    sizes: Mapping[str, tuple[int, ...]]
    superset_violations: int
    verdicts: Mapping[str, int]

    def slowdown(self, selector: str) -> npt.NDArray[np.float64]:
        """float64[kernels]: best time in the set ÷ dense best; +inf for a set without a measured tile."""
        if selector not in self._slowdowns:
            pairs = zip(self.corpus.sweeps, self.sets[selector], strict=True)
            self._slowdowns[selector] = np.array([set_slowdown(sweep, candidates) for sweep, candidates in pairs])
        return self._slowdowns[selector]

    def summary(self, selector: str, indices: Sequence[int] | None = None) -> dict[str, Any]:
        """The measures of design §4 for one selector, over all kernels or those at `indices`."""
        where = list(range(len(self.corpus.sweeps))) if indices is None else list(indices)
        slowdown = self.slowdown(selector)[where]
        n_pred = np.array([len(self.sets[selector][i]) for i in where])
        best = np.array([self.corpus.sweeps[i].best_us for i in where])
        return {
            **tiers(slowdown),
            "geomean": float(np.exp(np.log(slowdown).mean())),
            "p5": float(np.percentile(1 / slowdown, 5)),
            "p95": float(np.percentile(slowdown, 95, method="higher")),
            "worst": float(slowdown.max()),
            "time_weighted": float((best * slowdown).sum() / best.sum()),
            "n_pred_mean": float(n_pred.mean()),
            "n_pred_p95": float(np.percentile(n_pred, 95)),
            "set_mean": float(np.mean([self.sizes[selector][i] for i in where])),
            "set_p95": float(np.percentile([self.sizes[selector][i] for i in where], 95)),
            "snap1": snap(self._hits(selector, 1.0)[where], slowdown),
            "snap2": snap(self._hits(selector, 2.0)[where], slowdown),
        }

    @cached_property
    def _slowdowns(self) -> dict[str, npt.NDArray[np.float64]]:
        return {}

    @cached_property
    def _known_hits(self) -> dict[tuple[str, float], npt.NDArray[np.bool_]]:
        return {}

    def _hits(self, selector: str, factor: float) -> npt.NDArray[np.bool_]:
        """bool[kernels], worked out once: tables by family and regime ask for parts of it many times."""
        if (selector, factor) not in self._known_hits:
            found = hits(self.corpus.sweeps, self.sets[selector], factor=factor, sides=self.corpus.schema.sides)
            self._known_hits[selector, factor] = found
        return self._known_hits[selector, factor]

    def loses(self, selector: str, other: str) -> float:
        """Share of kernels on which `selector` is over 2 % slower than `other`."""
        return float((self.slowdown(selector) > NOISE * self.slowdown(other)).mean())

    def against(self) -> dict[str, dict[str, dict[str, float]]]:
        """Per selector, its best time against what a host without it would take; empty for corpora that timed no ATen.

        aten: ATen's own time against the set alone; host: the least of ATen's and of the host's list, as max-autotune
        picks, against the least of ATen's and of the set. Each with kernels, and over them geomean and p5 of other time ÷
        best time, and `slower`: the share over 2 % slower.
        """
        aten = np.array([sweep.extra.get("aten_us") or np.nan for sweep in self.corpus.sweeps], dtype=np.float64)
        known = np.isfinite(aten)
        if not known.any():
            return {}
        best = np.array([sweep.best_us for sweep in self.corpus.sweeps])
        # A list without a measured tile leaves ATen.
        listed = best * self.slowdown("host_default") if "host_default" in self.sets else np.full(len(best), np.inf)
        host, found = np.minimum(aten, listed), {}
        for name in self.sets:
            own = best * self.slowdown(name)
            found[name] = {"aten": _faster((aten / own)[known]), "host": _faster((host / np.minimum(aten, own))[known])}
        return found

    def to_json(self) -> dict[str, Any]:
        """The object that `tileguard evaluate --json` prints (design §6)."""
        against = self.against()
        models = [name for name in self.sets if name.startswith("model@")]
        return {
            "kernels": len(self.corpus.sweeps),
            "superset_violations": self.superset_violations,
            "verdicts": dict(self.verdicts),
            "selectors": {name: self.summary(name) for name in self.sets},
            "model_loses": {
                name: {other: self.loses(name, other) for other in ("formula", "host_default") if other in self.sets}
                for name in models
            },
            **({"against": against} if against else {}),
        }


def evaluate(
    corpus: Corpus, hardware: HardwareSpec, model: Model | None, *, ks: Sequence[int] = (4, 8, 12)
) -> Evaluation:
    """Judge every baseline and, with a model, model@k and union@k for each k. What is proposed without a model is called
    formula; of matrix products that is the planner.

    union@k is what the Selector really returns, with the host's default list; the model chooses among the tiles that
    the sweep measured. A superset violation is a kernel whose union lacks a measured tile of one of its parts.
    """
    sweeps, kind = corpus.sweeps, SELECTORS[corpus.family]
    sets: dict[str, tuple[Candidates, ...]] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for name, select in BASELINES.items():
        if corpus.family not in BASELINE_FAMILIES.get(name, (corpus.family,)):
            continue
        if name.startswith("host") and not any(select(sweep) for sweep in sweeps):
            continue  # a device that generates its own kernels has no host list to beat
        sets[name] = tuple(only_measured(sweep, select(sweep)) for sweep in sweeps)
        sizes[name] = tuple(map(len, sets[name]))
    params = [model.formula_of(i) if model is not None else None for i in range(len(sweeps))]
    forms = (("formula", False), ("formula_all_warps", True))
    for name, all_warps in forms[: 2 if hardware.has_warps and kind.widens else 1]:
        asked = list(zip(sweeps, params, strict=True))
        propose = kind.fallback
        found = (baselines.formula(s, hardware, all_warps=all_warps, params=p, propose=propose) for s, p in asked)
        sets[name] = tuple(only_measured(sweep, one) for sweep, one in zip(sweeps, found, strict=True))
        whole = (propose(sweep.kernel, hardware, all_warps=all_warps, params=p) for sweep, p in asked)
        sizes[name] = tuple(map(len, whole))
    violations = 0
    verdicts: dict[str, int] = {}
    if model is not None:
        orders = model_orders(corpus, model, max(ks))
        for k in ks:
            alone = tuple(order[:k] for order in orders)
            unions, lengths = [], []
            for i, sweep in enumerate(sweeps):
                host = tuple(sweep.tiles[j] for j in sweep.host_default)
                space = [sweep.tiles[j] for j in sweep.measured]
                result = model.selector_of(i, k).select(sweep.kernel, host, space=space, calls=calls_of(sweep))
                verdicts[result.verdict.reason] = verdicts.get(result.verdict.reason, 0) + 1
                lengths.append(len(result.tiles))
                unions.append(only_measured(sweep, measured(sweep, result.tiles)))
                parts = {*host, *kind.fallback(sweep.kernel, hardware, params=params[i])}
                if result.verdict.reason in (Reason.TRUST, Reason.OUT_OF_RANGE):
                    parts |= {sweep.tiles[j] for j in alone[i]}
                violations += not parts <= set(result.tiles)
            sets[f"model@{k}"] = alone
            sets[f"union@{k}"] = tuple(unions)
            sizes[f"model@{k}"], sizes[f"union@{k}"] = tuple(map(len, alone)), tuple(lengths)
    return Evaluation(corpus, sets, sizes, violations, verdicts)


BASELINES: Mapping[str, Callable[[KernelSweep], Candidates]] = {
    "dense": baselines.dense,
    "host_default": baselines.host_default,
    "host_max_autotune": baselines.host_max_autotune,
    "host_coordinate_descent": baselines.host_coordinate_descent,
}
"""What needs neither model nor formula, by the name that the tables use."""

BASELINE_FAMILIES = {"host_coordinate_descent": (REDUCTION,)}
"""Baselines of some families alone: TorchInductor's coordinate descent leaves its templates out."""


def curve(corpus: Corpus, model: Model, ks: Sequence[int] = CURVE_K) -> dict[int, npt.NDArray[np.float64]]:
    """regret@k: for each k, float64[kernels], best of the model's k tiles ÷ dense best."""
    orders = model_orders(corpus, model, max(ks))
    return {
        k: np.array([set_slowdown(sweep, order[:k]) for sweep, order in zip(corpus.sweeps, orders, strict=True)])
        for k in ks
    }


def model_orders(corpus: Corpus, model: Model, k: int) -> list[Candidates]:
    """The model's k tiles of each sweep's measured ones, in the order chosen; a smaller k takes the first of them,
    since `choose` is greedy."""
    orders = []
    for i, sweep in enumerate(corpus.sweeps):
        space = [sweep.tiles[j] for j in sweep.measured]
        scores = model.scorer_of(i).score(sweep.kernel, space, calls_of(sweep))
        picked = choose(scores, space, k, diversity=model.diversity)
        orders.append(tuple(sweep.measured[j] for j in picked))
    return orders


def only_measured(sweep: KernelSweep, candidates: Candidates) -> Candidates:
    """A set without the tiles that the sweep names but never tried."""
    tried = set(sweep.measured)
    return tuple(i for i in candidates if i in tried)


def set_slowdown(sweep: KernelSweep, candidates: Candidates) -> float:
    """Best time in the set ÷ dense best; +inf for an empty set."""
    return min((float(sweep.slowdown[i]) for i in candidates), default=float("inf"))


def _faster(ratio: npt.NDArray[np.float64]) -> dict[str, float]:
    """Of float64[kernels], another's time ÷ one's own: kernels, geomean, p5, share over 2 % slower."""
    return {
        "kernels": len(ratio),
        # A set without a measured tile takes for ever.
        "geomean": float(np.exp(np.log(ratio).mean())) if ratio.all() else 0.0,
        "p5": float(np.percentile(ratio, 5)),
        "slower": float((ratio * NOISE < 1).mean()),
    }


def tiers(slowdown: npt.NDArray[np.float64]) -> dict[str, float]:
    """Shares of kernels: lossless (at most 5 % over the dense best), loss_5_10, loss_10_30, severe (over 30 %)."""
    return {
        "lossless": float((slowdown <= LOSSLESS).mean()),
        "loss_5_10": float(((slowdown > LOSSLESS) & (slowdown <= MINOR)).mean()),
        "loss_10_30": float(((slowdown > MINOR) & (slowdown <= SEVERE)).mean()),
        "severe": float((slowdown > SEVERE).mean()),
    }


def snap(hit: npt.NDArray[np.bool_], slowdown: npt.NDArray[np.float64]) -> dict[str, float]:
    """The RFC's snap-eval (§3.3, §4) of what `hits` found: a hit counts as the winner's own time, a miss as the measured
    slowdown."""
    return {"hit": float(hit.mean()), **tiers(np.where(hit, 1.0, slowdown))}


def hits(
    sweeps: Sequence[KernelSweep],
    sets: Sequence[Candidates],
    *,
    factor: float,
    sides: Sequence[str] = REDUCTION_CORPUS.sides,
) -> npt.NDArray[np.bool_]:
    """bool[kernels]: whether the set holds the winner (factor 1: that very tile; factor 2: a tile within twice or half of
    it in all block sizes, `sides`)."""
    return np.array([_hit(sweep, candidates, factor, sides) for sweep, candidates in zip(sweeps, sets, strict=True)])


def _hit(sweep: KernelSweep, candidates: Candidates, factor: float, sides: Sequence[str]) -> bool:
    best = int(np.argmin(sweep.slowdown))
    if factor <= 1.0:
        return best in candidates
    winner, *others = ([getattr(sweep.tiles[i], side) for side in sides] for i in (best, *candidates))
    return any(all(max(a, b) <= factor * min(a, b) for a, b in zip(other, winner, strict=True)) for other in others)


def by_regime(evaluation: Evaluation, selector: str) -> dict[str, dict[str, Any]]:
    """The summary of one selector per regime of the family (regimes.py), with the number of kernels."""
    corpus = evaluation.corpus
    groups: dict[str, list[int]] = {name: [] for name in REGIMES[corpus.family]}
    for i, sweep in enumerate(corpus.sweeps):
        groups[regime_of(sweep)].append(i)
    return {
        name: {"kernels": len(indices), **evaluation.summary(selector, indices)}
        for name, indices in groups.items()
        if indices
    }


def by_family(evaluation: Evaluation, selector: str) -> dict[str, dict[str, Any]]:
    """The summary of one selector per workload family, with the number of kernels."""
    groups: dict[str, list[int]] = {}
    for i, family in enumerate(evaluation.corpus.families):
        groups.setdefault(family, []).append(i)
    return {
        name: {"kernels": len(indices), **evaluation.summary(selector, indices)}
        for name, indices in sorted(groups.items())
    }
