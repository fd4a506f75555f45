"""The families of cpu_peers.py as a competent user writes them for numba: fused passes over rows, `fastmath`, one
thread. `<family>_inner` reduces the contiguous axis of float32[x, r], `<family>_outer` the other one of float32[r, x].
Every function writes to the outputs it is given and is compiled when first called. Needs numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tileguard.runtime.optional import require

from .cpu_peers_ops import FAMILIES

numba: Any = require("numba")

EPSILON = np.float32(1e-5)
ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-3.4028235e38)  # fastmath knows no infinities


def sum_inner(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        total = ZERO
        for j in range(x.shape[1]):
            total += x[i, j]
        out[i] = total


def sum_outer(x: Any, out: Any) -> None:
    out[:] = ZERO
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[i] += x[j, i]


def add_sum_inner(a: Any, b: Any, out: Any) -> None:
    for i in range(a.shape[0]):
        total = ZERO
        for j in range(a.shape[1]):
            total += a[i, j] + b[i, j]
        out[i] = total


def add_sum_outer(a: Any, b: Any, out: Any) -> None:
    out[:] = ZERO
    for j in range(a.shape[0]):
        for i in range(a.shape[1]):
            out[i] += a[j, i] + b[j, i]


def max_inner(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        top = LOWEST
        for j in range(x.shape[1]):
            top = max(top, x[i, j])
        out[i] = top


def max_outer(x: Any, out: Any) -> None:
    out[:] = LOWEST
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[i] = max(out[i], x[j, i])


def meanvar_inner(x: Any, mean: Any, var: Any) -> None:
    n = np.float32(x.shape[1])
    for i in range(x.shape[0]):
        total = ZERO
        for j in range(x.shape[1]):
            total += x[i, j]
        middle = total / n
        squares = ZERO
        for j in range(x.shape[1]):
            below = x[i, j] - middle
            squares += below * below
        mean[i] = middle
        var[i] = squares / n


def meanvar_outer(x: Any, mean: Any, var: Any) -> None:
    n = np.float32(x.shape[0])
    mean[:] = ZERO
    var[:] = ZERO
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            mean[i] += x[j, i]
    for i in range(x.shape[1]):
        mean[i] /= n
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            below = x[j, i] - mean[i]
            var[i] += below * below
    for i in range(x.shape[1]):
        var[i] /= n


def rmsnorm_inner(x: Any, weight: Any, out: Any) -> None:
    n = np.float32(x.shape[1])
    for i in range(x.shape[0]):
        squares = ZERO
        for j in range(x.shape[1]):
            squares += x[i, j] * x[i, j]
        scale = ONE / math.sqrt(squares / n + EPSILON)
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * scale * weight[j]


def rmsnorm_outer(x: Any, weight: Any, out: Any) -> None:
    n = np.float32(x.shape[0])
    scale = np.zeros(x.shape[1], np.float32)
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            scale[i] += x[j, i] * x[j, i]
    for i in range(x.shape[1]):
        scale[i] = ONE / math.sqrt(scale[i] / n + EPSILON)
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[j, i] = x[j, i] * scale[i] * weight[j]


def layernorm_inner(x: Any, weight: Any, bias: Any, out: Any) -> None:
    n = np.float32(x.shape[1])
    for i in range(x.shape[0]):
        total = ZERO
        for j in range(x.shape[1]):
            total += x[i, j]
        middle = total / n
        squares = ZERO
        for j in range(x.shape[1]):
            below = x[i, j] - middle
            squares += below * below
        scale = ONE / math.sqrt(squares / n + EPSILON)
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - middle) * scale * weight[j] + bias[j]


def layernorm_outer(x: Any, weight: Any, bias: Any, out: Any) -> None:
    n = np.float32(x.shape[0])
    mean = np.zeros(x.shape[1], np.float32)
    scale = np.zeros(x.shape[1], np.float32)
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            mean[i] += x[j, i]
    for i in range(x.shape[1]):
        mean[i] /= n
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            below = x[j, i] - mean[i]
            scale[i] += below * below
    for i in range(x.shape[1]):
        scale[i] = ONE / math.sqrt(scale[i] / n + EPSILON)
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[j, i] = (x[j, i] - mean[i]) * scale[i] * weight[j] + bias[j]


def softmax_inner(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        top = LOWEST
        for j in range(x.shape[1]):
            top = max(top, x[i, j])
        total = ZERO
        for j in range(x.shape[1]):
            power = math.exp(x[i, j] - top)
            out[i, j] = power
            total += power
        scale = ONE / total
        for j in range(x.shape[1]):
            out[i, j] *= scale


def softmax_outer(x: Any, out: Any) -> None:
    top = np.full(x.shape[1], LOWEST, np.float32)
    scale = np.zeros(x.shape[1], np.float32)
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            top[i] = max(top[i], x[j, i])
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            power = math.exp(x[j, i] - top[i])
            out[j, i] = power
            scale[i] += power
    for i in range(x.shape[1]):
        scale[i] = ONE / scale[i]
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[j, i] *= scale[i]


def masked_softmax_inner(x: Any, mask: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        top = LOWEST
        for j in range(x.shape[1]):
            top = max(top, x[i, j] if mask[i, j] else LOWEST)
        total = ZERO
        for j in range(x.shape[1]):
            power = math.exp(x[i, j] - top) if mask[i, j] else ZERO
            out[i, j] = power
            total += power
        scale = ONE / total
        for j in range(x.shape[1]):
            out[i, j] *= scale


def masked_softmax_outer(x: Any, mask: Any, out: Any) -> None:
    top = np.full(x.shape[1], LOWEST, np.float32)
    scale = np.zeros(x.shape[1], np.float32)
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            top[i] = max(top[i], x[j, i] if mask[j, i] else LOWEST)
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            power = math.exp(x[j, i] - top[i]) if mask[j, i] else ZERO
            out[j, i] = power
            scale[i] += power
    for i in range(x.shape[1]):
        scale[i] = ONE / scale[i]
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[j, i] *= scale[i]


def swiglu_inner(gate: Any, up: Any, out: Any) -> None:
    for i in range(gate.shape[0]):
        for j in range(gate.shape[1]):
            out[i, j] = gate[i, j] / (ONE + math.exp(-gate[i, j])) * up[i, j]


swiglu_outer = swiglu_inner  # it has no reduced axis

_compiled: Callable[[Any], Any] = numba.njit(fastmath=True)
NUMBA: dict[tuple[str, bool], Callable[..., None]] = {
    (family, inner): _compiled(globals()[f"{family}_{'inner' if inner else 'outer'}"])
    for family in FAMILIES
    for inner in (True, False)
}
"""By family, and whether the reduced axis is the contiguous one."""
