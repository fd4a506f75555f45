"""The families of cpu_peers.py as users of numpy and PyTorch write them. Operands lie as the device's do: [x, r], or
[r, x] where the reduced axis is not the contiguous one; `axis` is the reduced one. Needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

EPSILON = 1e-5

# numpy: results go to the outputs, which also hold what comes before them where that spares a temporary.


def numpy_sum(axis: int, x: Any, out: Any) -> None:
    np.sum(x, axis=axis, out=out)


def numpy_max(axis: int, x: Any, out: Any) -> None:
    np.max(x, axis=axis, out=out)


def numpy_add_sum(axis: int, a: Any, b: Any, out: Any) -> None:
    np.sum(a + b, axis=axis, out=out)


def numpy_meanvar(axis: int, x: Any, mean: Any, var: Any) -> None:
    below = x - np.expand_dims(np.mean(x, axis=axis, out=mean), axis)
    np.mean(np.square(below, out=below), axis=axis, out=var)


def numpy_rmsnorm(axis: int, x: Any, weight: Any, out: Any) -> None:
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=axis, keepdims=True) + np.float32(EPSILON))
    np.multiply(x, scale, out=out)
    np.multiply(out, _across(weight, axis), out=out)


def numpy_layernorm(axis: int, x: Any, weight: Any, bias: Any, out: Any) -> None:
    np.subtract(x, np.mean(x, axis=axis, keepdims=True), out=out)
    out *= 1 / np.sqrt(np.mean(np.square(out), axis=axis, keepdims=True) + np.float32(EPSILON))
    out *= _across(weight, axis)
    out += _across(bias, axis)


def numpy_softmax(axis: int, x: Any, out: Any) -> None:
    np.subtract(x, np.max(x, axis=axis, keepdims=True), out=out)
    np.exp(out, out=out)
    out *= 1 / np.sum(out, axis=axis, keepdims=True)


def numpy_masked_softmax(axis: int, x: Any, mask: Any, out: Any) -> None:
    numpy_softmax(axis, np.where(mask, x, np.float32(-np.inf)), out)


def numpy_swiglu(axis: int, gate: Any, up: Any, out: Any) -> None:
    np.exp(-gate, out=out)
    out += 1
    np.divide(gate, out, out=out)
    out *= up


# PyTorch: pure functions, which eager mode runs as they stand and torch.compile fuses.


def torch_sum(axis: int, x: Any) -> tuple[Any, ...]:
    return (x.sum(axis),)


def torch_max(axis: int, x: Any) -> tuple[Any, ...]:
    return (x.amax(axis),)


def torch_add_sum(axis: int, a: Any, b: Any) -> tuple[Any, ...]:
    return ((a + b).sum(axis),)


def torch_meanvar(axis: int, x: Any) -> tuple[Any, ...]:
    var, mean = torch.var_mean(x, axis, correction=0)
    return mean, var


def torch_rmsnorm(axis: int, x: Any, weight: Any) -> tuple[Any, ...]:
    if axis == 1:
        return (functional.rms_norm(x, weight.shape, weight, EPSILON),)
    return (x * torch.rsqrt(x.square().mean(axis, keepdim=True) + EPSILON) * weight[:, None],)


def torch_layernorm(axis: int, x: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    if axis == 1:
        return (functional.layer_norm(x, weight.shape, weight, bias, EPSILON),)
    var, mean = torch.var_mean(x, axis, correction=0, keepdim=True)
    return ((x - mean) * torch.rsqrt(var + EPSILON) * weight[:, None] + bias[:, None],)


def torch_softmax(axis: int, x: Any) -> tuple[Any, ...]:
    return (torch.softmax(x, axis),)


def torch_masked_softmax(axis: int, x: Any, mask: Any) -> tuple[Any, ...]:
    return (torch.softmax(x.masked_fill(~mask, float("-inf")), axis),)


def torch_swiglu(axis: int, gate: Any, up: Any) -> tuple[Any, ...]:
    return (functional.silu(gate) * up,)


def _across(row: Any, axis: int) -> Any:
    """A vector over the reduced axis so that it broadcasts."""
    return row if axis == 1 else row[:, None]


FAMILIES = ("sum", "max", "meanvar", "rmsnorm", "layernorm", "softmax", "masked_softmax", "swiglu", "add_sum")
NUMPY: dict[str, Callable[..., None]] = {name: globals()[f"numpy_{name}"] for name in FAMILIES}
TORCH: dict[str, Callable[..., tuple[Any, ...]]] = {name: globals()[f"torch_{name}"] for name in FAMILIES}
