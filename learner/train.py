"""LightGBM LambdaRank on dense measurements; every split is by workload family."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput, checked_choice
from tileguard.features.hardware import HardwareSpec
from tileguard.features.matmul import MATMUL_SCHEMA
from tileguard.features.reduction import REDUCTION_SCHEMA
from tileguard.runtime.devices.cpu.features import CPU_SCHEMA
from tileguard.runtime.feature_space import FOREVER, REDUCTION, feature_space
from tileguard.runtime.manifest import Manifest
from tileguard.runtime.objective import AmortisedTime
from tileguard.runtime.optional import require

from .amortised import calls_of, under
from .corpus import Corpus, KernelSweep
from .labels import LABEL_GAIN, log_speed, relevance

FloatArray = npt.NDArray[np.float64]

_NAMES = (*REDUCTION_SCHEMA.names, *CPU_SCHEMA.names, *MATMUL_SCHEMA.names)

PRIOR_STEPS = 1023
"""Of a prior's tree: some hundredths of a doubling each."""

OBJECTIVES = ("lambdarank", "rank_xendcg", "regression")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Hyper-parameters; the defaults were searched by benchmarks/search_h200.py, on a smaller corpus and fewer features,
    and rounds, leaves and diversity again on this one, over three ways of dealing families to folds, the reported one
    among them.

    objective: lambdarank, rank_xendcg, or regression of the slowdown's logarithm. `diversity` is not LightGBM's: it is
    how the k tiles are picked (runtime/choose.py). without: features that the model may not use. fold_seed: shuffles
    families before they are dealt to folds; None deals the largest first. calls: numbers of calls to rank for beside run
    time, where the hardware's features know them. prior: a feature, log2 of a predicted time, from which the trees set
    out: a tile's score begins at minus prior_weight times it. Raises InvalidInput naming the field.
    """

    rounds: int = 120
    num_leaves: int = 64
    learning_rate: float = 0.15
    min_data_in_leaf: int = 50
    feature_fraction: float = 0.5
    bagging_fraction: float = 0.7
    sigmoid: float = 1.0
    objective: str = "lambdarank"
    diversity: float = 1.0
    seed: int = 0
    folds: int = 5
    fold_seed: int | None = None
    without: tuple[str, ...] = ()
    calls: tuple[float, ...] = ()
    prior: str | None = None
    prior_weight: float = 2.0

    def __post_init__(self) -> None:
        for name, low in (("rounds", 1), ("num_leaves", 2), ("min_data_in_leaf", 1), ("folds", 2), ("seed", 0)):
            if getattr(self, name) < low:
                raise InvalidInput(name, getattr(self, name), f"an integer >= {low}")
        checked_choice("objective", self.objective, OBJECTIVES)
        for name in self.without:
            checked_choice("without", name, _NAMES)
        if self.prior is not None:
            checked_choice("prior", self.prior, _NAMES)
        if not math.isfinite(self.prior_weight):
            raise InvalidInput("prior_weight", self.prior_weight, "a finite number")
        for calls in self.calls:
            AmortisedTime(calls)

    def lightgbm(self) -> dict[str, Any]:
        """The parameters as LightGBM takes them; deterministic for any number of threads."""
        return {
            "objective": self.objective,
            **({"label_gain": list(LABEL_GAIN)} if self.objective != "regression" else {}),
            **({"lambdarank_norm": False, "sigmoid": self.sigmoid} if self.objective == "lambdarank" else {}),
            "num_leaves": self.num_leaves, "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.min_data_in_leaf, "feature_fraction": self.feature_fraction,
            "bagging_fraction": self.bagging_fraction, "bagging_freq": 1, "seed": self.seed,
            "deterministic": True, "force_row_wise": True, "num_threads": 2, "verbosity": -1,
        }  # fmt: skip

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class BoosterRanker:
    """A LightGBM booster where a ranker is wanted, before it is exported."""

    booster: Any
    hardware: HardwareSpec
    manifest: Manifest

    def score(self, kernel: Any, tiles: Sequence[Any], calls: float = FOREVER) -> FloatArray:
        """float64[n], higher is better. One thread: LightGBM's pool does not survive a fork."""
        features = feature_space(self.hardware, self.manifest.family).rows(kernel, tiles, calls)
        return np.asarray(self.booster.predict(features, num_threads=1), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Fold:
    """One split: indices of the sweeps trained on and held out, the held-out families, the booster."""

    number: int
    train: tuple[int, ...]
    test: tuple[int, ...]
    families: tuple[str, ...]
    booster: Any = field(repr=False)


def design_matrix(corpus: Corpus, hardware: HardwareSpec, indices: Iterable[int]) -> list[FloatArray]:
    """One float64[n_tiles, d] a sweep, in the order of `indices`; not to be written to: folds share them."""
    rows = feature_space(hardware, corpus.family).rows
    matrices = []
    for sweep in (corpus.sweeps[i] for i in indices):
        known = _matrices.setdefault(sweep, {})
        if hardware not in known:
            known[hardware] = rows(sweep.kernel, sweep.tiles, calls_of(sweep))
        matrices.append(known[hardware])
    return matrices


_matrices: WeakKeyDictionary[KernelSweep, dict[HardwareSpec, FloatArray]] = WeakKeyDictionary()
"""Worked out once a sweep, and as long as it lives: a training asks for each a dozen times."""


def training_corpus(corpus: Corpus, indices: Iterable[int], config: TrainConfig) -> Corpus:
    """What `fit` learns from: the sweeps at `indices` under run time and each of the config's calls."""
    return under(corpus, (FOREVER, *config.calls), indices)


def fit(corpus: Corpus, hardware: HardwareSpec, indices: Sequence[int], config: TrainConfig) -> Any:
    """A LightGBM Booster trained on the sweeps at `indices`; each kernel under each objective is one ranking group."""
    sweeps = training_corpus(corpus, indices, config)
    matrices = design_matrix(sweeps, hardware, range(len(sweeps.sweeps)))
    return fit_rows(sweeps.sweeps, matrices, hardware, config, family=corpus.family)


def fit_rows(
    sweeps: Sequence[KernelSweep],
    matrices: Sequence[FloatArray],
    hardware: HardwareSpec,
    config: TrainConfig,
    weights: Sequence[float] | None = None,
    *,
    family: str = REDUCTION,
) -> Any:
    """A LightGBM Booster from a family's sweeps, each under its own calls, and their rows of `design_matrix`. weights: of each
    sweep; left out, all count alike."""
    lightgbm = require("lightgbm")
    names = feature_space(hardware, family).schema.names
    label = log_speed if config.objective == "regression" else relevance
    labels = np.concatenate([label(sweep.slowdown) for sweep in sweeps])
    stacked = np.vstack(matrices)
    stacked[:, [names.index(name) for name in config.without]] = 0.0  # a constant is never split on
    sizes = [len(m) for m in matrices]
    per_row = None if weights is None else np.repeat(np.asarray(weights, dtype=np.float64), sizes)
    data = lightgbm.Dataset(stacked, labels, weight=per_row, group=sizes, feature_name=list(names))
    if config.prior is None or config.prior in config.without:
        return lightgbm.train(config.lightgbm(), data, config.rounds)
    return lightgbm.train(config.lightgbm(), data, config.rounds, init_model=_prior(stacked, names, config))


def _prior(rows: FloatArray, names: Sequence[str], config: TrainConfig) -> Any:
    """A Booster of one tree: minus prior_weight times the feature, in PRIOR_STEPS steps."""
    lightgbm = require("lightgbm")
    alone = np.zeros_like(rows)
    column = names.index(checked_choice("prior", config.prior, names))
    alone[:, column] = rows[:, column]
    # From labels around zero: what all tiles have in common ranks none of them.
    labels = -config.prior_weight * (rows[:, column] - rows[:, column].mean())
    parameters = {
        "objective": "regression", "num_leaves": PRIOR_STEPS, "max_bin": PRIOR_STEPS, "min_data_in_leaf": 1, "learning_rate": 1.0,
        "boost_from_average": False, "seed": config.seed, "deterministic": True, "force_row_wise": True,
        "num_threads": 2, "verbosity": -1,
    }  # fmt: skip
    return lightgbm.train(parameters, lightgbm.Dataset(alone, labels, feature_name=list(names)), 1)


def family_folds(corpus: Corpus, folds: int, seed: int | None = None) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(train, test) sweep indices of GroupKFold over workload families: no family is on both sides. seed: as
    TrainConfig.fold_seed."""
    model_selection = require("sklearn.model_selection")
    families = np.array(corpus.families)
    distinct = len(set(families))
    if distinct < folds:
        raise InvalidInput("folds", folds, f"at most the corpus's {distinct} workload families")
    splitter = model_selection.GroupKFold(folds, shuffle=seed is not None, random_state=seed)
    splits = splitter.split(np.zeros(len(families)), groups=families)
    return [(tuple(train.tolist()), tuple(test.tolist())) for train, test in splits]


def cross_validate(corpus: Corpus, hardware: HardwareSpec, config: TrainConfig) -> list[Fold]:
    """A booster a fold, each trained without the families that it is judged on."""
    return [
        Fold(
            number, train, test, tuple(sorted({corpus.sweeps[i].family for i in test})),
            fit(corpus, hardware, train, config),
        )
        for number, (train, test) in enumerate(family_folds(corpus, config.folds, config.fold_seed))
    ]  # fmt: skip


def feature_ranges(matrices: Sequence[FloatArray], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Least and greatest value of each of the features `names` over the training rows."""
    low = np.min([m.min(axis=0) for m in matrices], axis=0)
    high = np.max([m.max(axis=0) for m in matrices], axis=0)
    return {n: (float(a), float(b)) for n, a, b in zip(names, low, high, strict=True)}


def library_versions() -> dict[str, str]:
    """Versions of the libraries that made a model."""
    names = ("lightgbm", "numpy", "scikit-learn", "onnx", "onnxruntime", "mlflow", "pyarrow")
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
