"""Two evaluations of the same kernels, compared kernel by kernel."""

from __future__ import annotations

import numpy as np

from tileguard.features.errors import InvalidInput
from tileguard.runtime.optional import require

from .decision import Paired
from .evaluate import LOSSLESS, NOISE, Evaluation, tiers


def paired(challenger: Evaluation, champion: Evaluation, selector: str) -> Paired:
    """The pairs of `selector`'s slowdowns. Raises InvalidInput where the two are not of the same kernels."""
    ids = [[sweep.kernel_id for sweep in side.corpus.sweeps] for side in (challenger, champion)]
    if ids[0] != ids[1]:
        raise InvalidInput("evaluation", f"{len(ids[0])} and {len(ids[1])} kernels", "two of the same kernels")
    one, other = challenger.slowdown(selector), champion.slowdown(selector)
    shares = [tiers(side) for side in (one, other)]
    better, worse = int((other > NOISE * one).sum()), int((one > NOISE * other).sum())
    gained = int(((one <= LOSSLESS) & (other > LOSSLESS)).sum())
    lost = int(((one > LOSSLESS) & (other <= LOSSLESS)).sum())
    return Paired(
        selector=selector, kernels=len(one),
        lossless=(shares[0]["lossless"], shares[1]["lossless"]), severe=(shares[0]["severe"], shares[1]["severe"]),
        geomean=(float(np.exp(np.log(one).mean())), float(np.exp(np.log(other).mean()))),
        worst=(float(one.max()), float(other.max())),
        better=better, worse=worse, equal=len(one) - better - worse,
        only_challenger=gained, only_champion=lost, p=mcnemar(gained, lost),
    )  # fmt: skip


def mcnemar(one: int, other: int) -> float:
    """The exact two-sided probability that discordant pairs split at least so unevenly where both sides are equally
    likely; 1 without any (McNemar 1947)."""
    if not one + other:
        return 1.0
    return float(require("scipy.stats").binomtest(one, one + other, 0.5).pvalue)
