"""What a kernel should have computed: each operation in float64 numpy, written apart from ops.py.

Beside every value stands its slack: the magnitude that the rounding of a computation in another order scales with.
A result is right within unit · slack + one rounding to the storage dtype; `rounding_unit` gives the unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

from .budgets import lanes
from .operation import EPSILON
from .program_ops import PROGRAM_OPS
from .storage import EPS, Array

Outputs = list[tuple[Array, Array]]
"""(value, slack) of each output: float64[xnumel] or float64[xnumel, rnumel]."""


def rounding_unit(kernel: ReductionKernel, tile: ReductionTile) -> float:
    """Relative error of the tile's arithmetic: a few roundings for each element, and those of a sum's serial chain.

    The roundings of n serial additions add up like a random walk, so with √n; two of their standard deviations
    are 2·√n at most, since a rounding is half an eps at most.
    """
    eps = EPS["fp64"] if kernel.dtype == "fp64" else EPS["fp32"]
    if kernel.op in PROGRAM_OPS:  # one element after the other, in every lane
        return eps * (4 + 2 * math.sqrt(kernel.rnumel))
    width = lanes(kernel, tile)
    chain = -(-kernel.rnumel // tile.r0_block) + (width.bit_length() if kernel.inner else tile.r0_block)
    return eps * (4 + 2 * math.sqrt(chain))


def reference(op: str, tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    """Values and slacks of `op` on float64[n, rnumel] operands `tiles` (a mask comes as bool) and float64[rnumel]
    operands `rows`."""
    with np.errstate(all="ignore"):
        return _REFERENCES[op](tiles, rows)


def _sum(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    parts = [(t.sum(axis=1), np.abs(t).sum(axis=1)) for t in tiles]
    return [(np.sum([value for value, _ in parts], axis=0), np.sum([size for _, size in parts], axis=0))]


def _max(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    value = tiles[0].max(axis=1)
    return [(value, np.zeros_like(value))]


def _meanvar(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    (x,) = tiles
    mean, size = x.mean(axis=1), np.abs(x).mean(axis=1)
    variance = np.square(x - mean[:, None]).mean(axis=1)
    # A mean wrong by d adds d² to the variance, and d is about unit · size; the unit itself is at most 1e-3.
    unit = EPS["fp32"] * (4 + 2 * math.sqrt(x.shape[1]))
    return [(mean, size), (variance, variance + unit * np.square(size))]


def _rmsnorm(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    (x,), (weight,) = tiles, rows
    value = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPSILON) * weight
    return [(value, 4 * np.abs(value))]


def _layernorm(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    (x,), (weight, bias) = tiles, rows
    mean = x.mean(axis=1, keepdims=True)
    deviation = np.sqrt(np.square(x - mean).mean(axis=1, keepdims=True) + EPSILON)
    scaled = (x - mean) / deviation * weight
    moved = np.abs(x).mean(axis=1, keepdims=True) / deviation * np.abs(weight)
    return [(scaled + bias, 4 * np.abs(scaled) + np.abs(bias) + moved)]


def _softmax(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    x, mask = tiles[0], tiles[1] if len(tiles) > 1 else None
    kept = x if mask is None else np.where(mask, x, -np.inf)
    top = kept.max(axis=1, keepdims=True)
    below = kept - (np.where(np.isneginf(top), 0.0, top) if mask is not None else top)
    powers = np.exp(below)
    total = powers.sum(axis=1, keepdims=True)
    value = np.where(total == 0, 0.0, powers / total)
    # e^-d is wrong by eps · d where d itself is rounded.
    depth = np.where(powers > 0, np.abs(below), 0.0)
    return [(value, value * (4 + depth + (value * depth).sum(axis=1, keepdims=True)))]


def _swiglu(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    gate, up = tiles
    value = gate / (1 + np.exp(-gate)) * up
    return [(value, np.abs(value) * (4 + np.abs(gate)))]


def _prefix(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    (x,) = tiles
    return [(np.cumsum(x, axis=1), np.cumsum(np.abs(x), axis=1))]


def _normdot(tiles: Sequence[Array], rows: Sequence[Array]) -> Outputs:
    (x,), (weight,) = tiles, rows
    terms = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPSILON) * weight
    return [(terms.sum(axis=1), 4 * np.abs(terms).sum(axis=1))]


_REFERENCES: dict[str, Callable[[Sequence[Array], Sequence[Array]], Outputs]] = {
    "sum": _sum, "add_sum": _sum, "max": _max, "meanvar": _meanvar, "rmsnorm": _rmsnorm, "layernorm": _layernorm,
    "softmax": _softmax, "masked_softmax": _softmax, "swiglu": _swiglu,
    "tile_rmsnorm": _rmsnorm, "tile_layernorm": _layernorm, "tile_masked_softmax": _softmax, "tile_swiglu": _swiglu,
    "tile_prefix": _prefix, "tile_normdot": _normdot, "tile_sum_left": _sum, "tile_sum_right": _sum,
}  # fmt: skip
