"""Slowdown -> graded relevance for LambdaRank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GRADES = 30
"""The best grade; LightGBM takes labels up to 30."""

GAIN_POWER = 8
"""How steeply gain falls with slowdown: a tile 5 % over the best counts for over half, one 30 % over for an eighth."""

LABEL_GAIN = tuple(100.0 * (grade / GRADES) ** GAIN_POWER for grade in range(GRADES + 1))
"""Gain of each grade in the ranking loss."""


def relevance(slowdown: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """int32[n], ⌊30 ÷ slowdown⌋: 30 for the best tile, 29 within 3.4 %, 0 over 30x or failed (+inf).

    A grade spans 3 % near the best: tiles closer than that swap between two independent runs (1.2 % at the median,
    3.9 % at p90), so a finer order would teach noise.
    """
    return np.asarray(np.floor(GRADES / slowdown + 1e-9), dtype=np.int32)


CLIP = 8.0
"""Slowdown from which on a regression tells tiles apart no longer."""


def log_speed(slowdown: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """float64[n], -log of the slowdown: 0 for the best tile, -log 8 over 8x or failed (+inf)."""
    return np.asarray(-np.log(np.minimum(slowdown, CLIP)))
