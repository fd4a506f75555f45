"""What runtime/calibration.py reads: per k, held-out misses and the bound on their share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.runtime.optional import require

from .evaluate import LOSSLESS

CONFIDENCE = 0.95


def calibration(curve: Mapping[int, npt.NDArray[np.float64]]) -> tuple[dict[str, Any], ...]:
    """Per k of a held-out curve (k -> slowdown float64[kernels]): kernels, misses (slowdown above 5 %), upper.

    upper is the one-sided Clopper-Pearson bound at CONFIDENCE, the least risk that a binomial test does not reject:
    `binom.cdf(misses, kernels, upper) = 1 - CONFIDENCE`.
    """
    stats = require("scipy.stats")
    entries = []
    for k, slowdown in curve.items():
        kernels, misses = len(slowdown), int((slowdown > LOSSLESS).sum())
        bound = stats.binomtest(misses, kernels, alternative="less").proportion_ci(CONFIDENCE).high
        entries.append({"k": int(k), "kernels": kernels, "misses": misses, "upper": float(bound)})
    return tuple(entries)
