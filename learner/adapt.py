"""A ranker for a CPU that no model was trained on: another CPU's corpus, and a short sweep of this one that counts more.

Which tiles are good is mostly the same over CPUs, which is best is not. So the model learns from both: the base, with
hundreds of kernels, and a few local ones, weighted. It is judged on the local kernels alone, each by a model that saw
none of its family, beside the base's model as it is and the formula; one that ranks worse is not written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from tileguard import models
from tileguard.features.anchor import FormulaParams
from tileguard.features.errors import InvalidInput, TileguardError, checked_int
from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.feature_space import FOREVER, feature_space
from tileguard.runtime.selector import Selector

from .amortised import JUDGED_CALLS, under
from .calibrate import calibration
from .card import model_card
from .corpus import Corpus, KernelSweep, content_digest
from .evaluate import Evaluation, Model, curve, evaluate
from .pipeline import (
    EVALUATED_K,
    PATIENT,
    HeldOut,
    Trained,
    bare_manifest,
    exported,
    formula_without,
    full_manifest,
    held_out_metrics,
)
from .train import (
    BoosterRanker,
    FloatArray,
    Fold,
    TrainConfig,
    design_matrix,
    family_folds,
    feature_ranges,
    fit_rows,
    training_corpus,
)
from .workloads import OP_SETS, Workload, cpu_workloads

BASE_CORPUS = models.ROOT.parent / "corpora" / "cpu.parquet"
"""The shipped corpus of one CPU."""

LOCAL_SEEDS = 1_000_000
"""Added to a seed: shipped corpora are drawn with small ones."""

MIN_LOG2 = 7.0
"""log2 of the elements of a local kernel, at least; as in the shipped corpus."""

MOST_WEIGHT = 8.0
"""Of a local kernel, against 1 for one of the base: of fewer kernels than an eighth, none may drown out the rest."""

LEAST_KERNELS = 8
"""Local kernels below which nothing can be judged."""

MIXED_OPS = tuple(op for pair in zip_longest(OP_SETS["passes"], OP_SETS["programs"]) for op in pair if op is not None)
"""Operations of passes and tile programs in turns: a sweep cut short has some of both."""

TOLERANCE = 1.005
"""Geometric means closer than this are equal: two sweeps of the same kernels differ by more."""

JUDGED = ("base model@8", "model@8", "union@8", "formula")
"""What is shown of each objective: the base's model as it is, then the adapted one's, its union, and no model."""


class AdaptRefused(TileguardError):
    """The adapted model is not worth writing; says why."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """The local kernels under one number of calls, by the model of the base and by the adapted one."""

    calls: float
    base: Evaluation
    adapted: Evaluation

    def slowdown(self, selector: str) -> FloatArray:
        """float64[kernels] of one of JUDGED, or of any selector of the adapted model's evaluation."""
        if selector.startswith("base "):
            return self.base.slowdown(selector.removeprefix("base "))
        return self.adapted.slowdown(selector)

    def summary(self, selector: str) -> dict[str, Any]:
        """As Evaluation.summary."""
        if selector.startswith("base "):
            return self.base.summary(selector.removeprefix("base "))
        return self.adapted.summary(selector)


@dataclass(frozen=True, eq=False)
class Adaptation:
    """What came of it. weight: of a local kernel. trained: None where it was refused, and `refusal` says why."""

    hardware: HardwareSpec
    base: Corpus
    local: Corpus
    weight: float
    judgements: tuple[Judgement, ...]
    trained: Trained | None
    refusal: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "hardware": self.hardware.name,
            "kernels": {"base": len(self.base.sweeps), "local": len(self.local.sweeps), "local_weight": self.weight},
            "base_hardware": measured_on(self.base),
            "corpora": {**self.base.files, **self.local.files},
            "judged": judged_json(self.judgements),
            "superset_violations": sum(one.adapted.superset_violations for one in self.judgements),
            "refusal": self.refusal,
        }


def local_workloads(base: Corpus, count: int, seed: int) -> tuple[Workload, ...]:
    """`count` kernels of all operations to sweep here, none of which the base has. Raises InvalidInput naming count or
    seed."""
    count, seed = checked_int("count", count, minimum=LEAST_KERNELS), checked_int("seed", seed, minimum=0)
    known = {sweep.kernel_id for sweep in base.sweeps}
    drawn = cpu_workloads(count + len(known), LOCAL_SEEDS + seed, ops=MIXED_OPS, min_log2=MIN_LOG2)
    return tuple(one for one in drawn if one.workload not in known)[:count]


def measured_on(base: Corpus) -> str:
    """The one CPU of a base corpus. Raises InvalidInput where it is of none, or of several."""
    names = sorted({sweep.hardware for sweep in base.sweeps})
    if len(names) != 1 or not names[0].startswith("cpu-"):
        raise InvalidInput("base", ", ".join(names), "a corpus of one CPU")
    return names[0]


def checked_base(base: Corpus) -> str:
    """The CPU of a base corpus that can be adapted. Raises InvalidInput where it is of none, or of several, has fewer than
    two families (each model must be judged without one), or has tiles without a compile time."""
    name = measured_on(base)
    if len(families := set(base.families)) < 2:
        raise InvalidInput("base", ", ".join(sorted(families)), "a corpus of two workload families or more")
    under(base, [1.0])
    return name


def local_weight(base: int, local: int) -> float:
    """Weight of each of `local` kernels that makes them count as much as `base` ones together, MOST_WEIGHT at most."""
    return min(MOST_WEIGHT, max(1.0, base / local))


def adapt(
    base: Corpus,
    local: Corpus,
    hardware: HardwareSpec,
    config: TrainConfig,
    *,
    command: str,
    on_step: Callable[[str], None] = lambda step: None,
) -> Adaptation:
    """Train on `base` and `local` (measured on `hardware`), judge on `local`.

    A kernel that both have counts as measured here. Raises InvalidInput for corpora of other hardware, AdaptRefused for
    fewer than LEAST_KERNELS local kernels, ParityError where the export is not bit-equal.
    """
    started = time.perf_counter()
    checked_base(base)
    if {sweep.hardware for sweep in local.sweeps} != {hardware.name}:
        raise InvalidInput("local", local.path, f"a corpus of {hardware.name}")
    if twice := sorted(set(base.files) & set(local.files)):
        raise InvalidInput("base", twice[0], "a file of another name than the local corpus")
    if len(local.sweeps) < LEAST_KERNELS:
        raise AdaptRefused(
            f"{len(local.sweeps)} kernels are swept, fewer than the {LEAST_KERNELS} that a judgement needs; "
            "run it again to go on"
        )
    here = {sweep.kernel for sweep in local.sweeps}
    same = measured_on(base) == hardware.name
    base = base.subset(i for i, sweep in enumerate(base.sweeps) if sweep.kernel not in here)
    if len(set(base.families)) < 2:
        raise InvalidInput("base", base.path, "two workload families or more that the local corpus does not hold")
    # Where the base was measured on such a machine too, its kernels tell as much as these.
    weight = 1.0 if same else local_weight(len(base.sweeps), len(local.sweeps))
    on_step("computing features")
    joint = Joint(base, local, hardware, config, weight)
    on_step(f"cross-validating over {config.folds} folds of workload families, on the local kernels")
    held_out, judgements = judge(joint, local, on_step)
    refusal = why_refused(judgements)
    if refusal is not None:
        return Adaptation(hardware, base, local, weight, judgements, None, refusal)
    on_step("fitting on every family")
    ranker = joint.ranker(range(len(joint.corpus.sweeps)))
    on_step("exporting to ONNX and comparing every score")
    onnx, rows = exported(ranker.booster, joint.matrices, config)
    metrics = {
        "held_out": held_out_metrics(held_out), "parity": {"rows": rows, "unequal": 0},
        "adaptation": {
            "base_hardware": measured_on(base), "base_kernels": len(base.sweeps), "local_kernels": len(local.sweeps),
            "local_weight": weight, "judged": judged_json(judgements),
        },
    }  # fmt: skip
    manifest = full_manifest(
        joint.corpus, hardware, config, onnx=onnx, ranges=dict(ranker.manifest.ranges), command=command,
        metrics=metrics, calibrated=calibration(held_out.curve),
    )  # fmt: skip
    card = model_card(manifest).rstrip() + "\n\n" + adaptation_section(manifest.metrics["adaptation"])
    trained = Trained(config, held_out, ranker.booster, onnx, manifest, card, time.perf_counter() - started)
    return Adaptation(hardware, base, local, weight, judgements, trained, None)


def why_refused(judgements: Sequence[Judgement]) -> str | None:
    """Why an adapted model must not take the base's place; None where it may."""
    if violations := sum(one.adapted.superset_violations for one in judgements):
        return f"{violations} unions lack a tile of one of their parts"
    before, after = (
        float(np.exp(np.log(np.concatenate([one.slowdown(name) for one in judgements])).mean())) for name in JUDGED[:2]
    )
    if not (after <= TOLERANCE * before and np.isfinite(after)):
        return (
            f"the adapted model's best 8 tiles are {100 * (after - 1):.1f} % behind the dense best, those of the base's "
            f"model {100 * (before - 1):.1f} % (geometric mean over the local kernels and all numbers of calls)"
        )
    return None


def judged_json(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """One object an objective: its calls (null is run time), and the measures of each of JUDGED."""
    keys = ("lossless", "severe", "geomean", "worst", "set_mean")
    return [
        {
            "calls": None if one.calls == FOREVER else one.calls,
            **{name: {key: one.summary(name)[key] for key in keys} for name in JUDGED},
        }
        for one in judgements
    ]


def objective_name(calls: float | None) -> str:
    """How an objective is called in tables."""
    return "run time" if calls is None or calls == FOREVER else f"N = {calls:g}"


def adaptation_section(facts: Mapping[str, Any]) -> str:
    """The part of a model's card that only an adapted one has."""
    lines = [
        "## Adaptation", "",
        (
            f"Trained on {facts['base_kernels']} kernels measured on {facts['base_hardware']} and {facts['local_kernels']} "
            f"measured on this machine, which count {facts['local_weight']:.1f} times. The figures above, and these, are of "
            "the latter alone, each judged without its family."
        ), "",
        "| objective | set | ≤ 5 % | > 30 % | geomean |", "|---|---|---:|---:|---:|",
        *(
            f"| {objective_name(one['calls'])} | {name} | {100 * one[name]['lossless']:.1f} % | "
            f"{100 * one[name]['severe']:.1f} % | {one[name]['geomean']:.3f} |"
            for one in facts["judged"] for name in JUDGED
        ), "",
    ]  # fmt: skip
    return "\n".join(lines)


class Joint:
    """Base and local sweeps as one corpus, the base's first, with the rows that each gives under every objective:
    computing them takes as long as a training does."""

    def __init__(self, base: Corpus, local: Corpus, hardware: HardwareSpec, config: TrainConfig, weight: float) -> None:
        self.base, self.local, self.hardware, self.config = base, local, hardware, config
        self.n_base = len(base.sweeps)
        sweeps: tuple[KernelSweep, ...] = base.sweeps + local.sweeps
        files = {**base.files, **local.files}
        self.corpus = Corpus(sweeps, content_digest(sweeps), f"{base.path}, {local.path}", files, base.schema)
        self.weights = [1.0] * self.n_base + [weight] * len(local.sweeps)
        self._learned = training_corpus(self.corpus, range(len(sweeps)), config).sweeps
        learned = Corpus(self._learned, "", "", {}, base.schema)
        self.matrices = design_matrix(learned, hardware, range(len(self._learned)))

    def ranker(self, indices: Sequence[int]) -> BoosterRanker:
        """One trained on the sweeps at `indices`, under every objective."""
        n = len(self.corpus.sweeps)
        rows = [start + i for start in range(0, len(self._learned), n) for i in indices]
        matrices = [self.matrices[row] for row in rows]
        booster = fit_rows(
            [self._learned[row] for row in rows], matrices, self.hardware, self.config,
            [self.weights[row % n] for row in rows],
        )  # fmt: skip
        ranges = feature_ranges(matrices, feature_space(self.hardware).schema.names)
        return BoosterRanker(booster, self.hardware, bare_manifest(ranges, self.hardware, self.config))


def judge(
    joint: Joint, judged: Corpus, on_step: Callable[[str], None] = lambda step: None
) -> tuple[HeldOut, tuple[Judgement, ...]]:
    """The kernels of `judged`, each by models and a formula that saw none of its family. Folds are of the joint corpus's
    families, and those without a family of `judged` are left out; what is in neither is judged by the first."""
    n_base, hardware = joint.n_base, joint.hardware
    before: dict[int, BoosterRanker] = {}
    after: dict[int, BoosterRanker] = {}
    formulas: dict[int, FormulaParams | None] = {}
    fold_of: dict[int, int] = {}
    folds = []
    splits = family_folds(joint.corpus, joint.config.folds, joint.config.fold_seed)
    number_of = {joint.corpus.sweeps[i].family: number for number, (_, test) in enumerate(splits) for i in test}
    for number, (train, _) in enumerate(splits):
        mine = tuple(i for i, family in enumerate(judged.families) if number_of.get(family, 0) == number)
        if not mine:
            continue
        on_step(f"fold {number + 1} of {len(splits)}")
        fold_of |= dict.fromkeys(mine, number)
        of_base = [i for i in train if i < n_base]
        before[number], after[number] = joint.ranker(of_base), joint.ranker(train)
        formulas[number] = formula_without(joint.base, hardware, of_base)
        families = tuple(sorted({judged.sweeps[i].family for i in mine}))
        folds.append(Fold(number, train, mine, families, after[number].booster))

    def model(rankers: Mapping[int, BoosterRanker]) -> Model:
        selectors: dict[tuple[int, int], Selector] = {}

        def selector_of(index: int, k: int) -> Selector:
            key = (fold_of[index], k)
            if key not in selectors:
                ranker, formula = rankers[key[0]], formulas[key[0]]
                selectors[key] = Selector(hardware, model=ranker, top_k=k, policy=PATIENT, formula=formula)
            return selectors[key]

        return Model(lambda i: rankers[fold_of[i]], selector_of, joint.config.diversity, lambda i: formulas[fold_of[i]])

    old, new = model(before), model(after)
    calls = (FOREVER, *(JUDGED_CALLS if joint.config.calls else ()))
    corpora = {n: under(judged, [n]) for n in calls}
    judgements = tuple(
        Judgement(n, evaluate(one, hardware, old, ks=(8,)), evaluate(one, hardware, new, ks=EVALUATED_K))
        for n, one in corpora.items()
    )
    by_calls = {one.calls: one.adapted for one in judgements[1:]}
    return HeldOut(tuple(folds), judgements[0].adapted, new, by_calls, curve(judged, new)), judgements
