"""A fitted formula judged on families that it was not fitted to, and with its coefficients perturbed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tileguard.features.anchor import ASCEND_910B3, COEFFICIENTS, FormulaParams
from tileguard.features.hardware import HardwareSpec
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.cpu import PROGRAM_OPS
from tileguard.runtime.fallback import formula_tiles

from . import baselines
from .baselines import measured
from .corpus import Corpus, KernelSweep
from .evaluate import Evaluation, only_measured, set_slowdown, tiers
from .fit_formula import FitConfig, FormulaFit, class_name, fit_formula
from .train import Fold, family_folds

FORMULA, RFC, RFC_REFITTED = "formula", "formula_rfc", "formula_rfc_refitted"
"""The fitted formula; the RFC's with its Ascend constants; the RFC's form with this corpus's constants."""

DENSE = 70
"""More measured tiles than this make a sweep dense: no capped sweep has as many."""

PERTURBATIONS = (0.5, 1.5)
EXTENTS, STEPS = ("bytes_log2", "beside_log2"), (0.5, 2.0)
"""What is perturbed of a LaneRule."""

TilesOf = Callable[[KernelSweep, FormulaParams], tuple[ReductionTile, ...]]


@dataclass(frozen=True, slots=True)
class Perturbed:
    """One coefficient of every rule multiplied by a factor: what is left of the quality, over held-out kernels."""

    coefficient: str
    factor: float
    lossless: float
    severe: float
    n_pred: float


@dataclass(frozen=True, eq=False)
class Judged:
    """folds: what each held out (no booster); params_of: the formula that did not see the kernel, by kernel."""

    folds: tuple[Fold, ...]
    params_of: tuple[FormulaParams, ...]
    evaluation: Evaluation
    perturbed: tuple[Perturbed, ...]


def judge_held_out(corpus: Corpus, hardware: HardwareSpec, config: FitConfig) -> Judged:
    """Fit once a fold, judge each kernel by the formula that saw none of its family.

    Raises InvalidInput for a corpus with fewer families than folds, or with too few kernels to fit.
    """
    folds, fits = [], []
    params_of: list[FormulaParams] = [ASCEND_910B3] * len(corpus.sweeps)
    for number, (train, test) in enumerate(family_folds(corpus, config.folds)):
        fit = fit_formula([corpus.sweeps[i] for i in train], hardware, config)
        families = tuple(sorted({corpus.sweeps[i].family for i in test}))
        folds.append(Fold(number, train, test, families, None))
        fits.append(fit)
        for i in test:
            params_of[i] = fit.params
    return Judged(
        tuple(folds), tuple(params_of), judge(corpus, hardware, params_of), perturb(corpus, hardware, params_of)
    )


def judge(corpus: Corpus, hardware: HardwareSpec, params_of: Sequence[FormulaParams]) -> Evaluation:
    """The fitted formula beside both of the RFC's form and the host's lists, each kernel by its own parameters."""
    sweeps = corpus.sweeps
    sets = {"dense": tuple(only_measured(sweep, baselines.dense(sweep)) for sweep in sweeps)}
    if any(sweep.host_default or sweep.host_max_autotune for sweep in sweeps):
        sets["host_default"] = tuple(only_measured(sweep, sweep.host_default) for sweep in sweeps)
        sets["host_max_autotune"] = tuple(only_measured(sweep, sweep.host_max_autotune) for sweep in sweeps)
    sizes = {name: tuple(map(len, found)) for name, found in sets.items()}
    proposals: dict[str, Callable[[KernelSweep, FormulaParams], tuple[ReductionTile, ...]]] = {
        RFC: lambda sweep, params: formula_tiles(sweep.kernel, hardware, params=ASCEND_910B3),
        RFC_REFITTED: lambda sweep, params: formula_tiles(
            sweep.kernel, hardware, params=replace(params, rules=(), lanes=())
        ),
        FORMULA: lambda sweep, params: formula_tiles(sweep.kernel, hardware, params=params),
    }
    for name, propose in proposals.items():
        tiles = [propose(sweep, params) for sweep, params in zip(sweeps, params_of, strict=True)]
        sizes[name] = tuple(map(len, tiles))
        sets[name] = tuple(
            only_measured(sweep, measured(sweep, found)) for sweep, found in zip(sweeps, tiles, strict=True)
        )
    return Evaluation(corpus, sets, sizes, superset_violations=0, verdicts={})


def perturb(corpus: Corpus, hardware: HardwareSpec, params_of: Sequence[FormulaParams]) -> tuple[Perturbed, ...]:
    """Each coefficient times 0.5 and times 1.5, one at a time, in every rule at once; the offsets stay. Of a CPU's rules,
    both extents of every tile halved and doubled."""
    of_cpu = any(params.lanes for params in params_of)
    found = []
    for name in EXTENTS if of_cpu else COEFFICIENTS:
        for factor in STEPS if of_cpu else PERTURBATIONS:
            change = _moved if of_cpu else _scaled
            changed = {id(params): change(params, name, factor) for params in params_of}
            slowdown, sizes = [], []
            for sweep, params in zip(corpus.sweeps, params_of, strict=True):
                tiles = formula_tiles(sweep.kernel, hardware, params=changed[id(params)])
                sizes.append(len(tiles))
                slowdown.append(set_slowdown(sweep, only_measured(sweep, measured(sweep, tiles))))
            shares = tiers(np.array(slowdown))
            found.append(Perturbed(name, factor, shares["lossless"], shares["severe"], float(np.mean(sizes))))
    return tuple(found)


def by_class(evaluation: Evaluation, selector: str = FORMULA) -> dict[str, dict[str, Any]]:
    """The summary of one selector per class of kernels, with the number of kernels."""
    groups: dict[str, list[int]] = {}
    for i, sweep in enumerate(evaluation.corpus.sweeps):
        kernel = sweep.kernel
        name = class_name(kernel.inner, kernel.persistent)
        groups.setdefault(f"program, {name}" if kernel.op in PROGRAM_OPS else name, []).append(i)
    return {
        name: {"kernels": len(where), **evaluation.summary(selector, where)} for name, where in sorted(groups.items())
    }


def dense_sweeps(corpus: Corpus) -> list[int]:
    """Where a formula's tiles are nearly all measured."""
    return [i for i, sweep in enumerate(corpus.sweeps) if len(sweep.measured) > DENSE]


def absent(evaluation: Evaluation, selector: str = FORMULA) -> float:
    """Share of the selector's tiles that the sweeps did not measure: each counts as compiled, and as no gain."""
    kept = sum(map(len, evaluation.sets[selector]))
    return 1.0 - kept / max(sum(evaluation.sizes[selector]), 1)


def _scaled(params: FormulaParams, coefficient: str, factor: float) -> FormulaParams:
    rules = tuple(replace(rule, **{coefficient: getattr(rule, coefficient) * factor}) for rule in params.rules)
    return replace(params, rules=rules)


def _moved(params: FormulaParams, extent: str, factor: float) -> FormulaParams:
    step = round(math.log2(factor))
    lanes = tuple(
        replace(
            rule, tiles=tuple(t._replace(**{extent: max(getattr(t, extent) + step, 0)}) for t in rule.tiles)
        )
        for rule in params.lanes
    )  # fmt: skip
    return replace(params, lanes=lanes)


def same_kernels(corpus: Corpus, hardware: HardwareSpec, fit: FormulaFit) -> Evaluation:
    """Judged on the kernels that it was fitted to, as the RFC did; only to see what holding out costs."""
    return judge(corpus, hardware, [fit.params] * len(corpus.sweeps))
