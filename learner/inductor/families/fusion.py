"""What a compiler fuses around a reduction: residuals, masks, biases, gates, activations, look-ups, views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from .draws import Case, Draw, Input

Step: TypeAlias = tuple[tuple[Input, ...], Callable[..., Any]]
"""Further inputs, and a function of the tensor so far and of these that keeps its shape."""

_ACTIVATIONS = (
    functional.gelu, functional.silu, functional.relu, torch.tanh, torch.sigmoid, functional.hardswish,
    lambda x: functional.gelu(x, approximate="tanh"), lambda x: functional.relu(x).square(),
    lambda x: functional.leaky_relu(x, 0.1), lambda x: x * torch.tanh(functional.softplus(x)),
)  # fmt: skip


def fused(case: Case, draw: Draw) -> Case:
    """The case behind one to three steps, sometimes six; the tensor between may be an output of its own.

    Where the case gives a tensor like its first input, further steps may follow it.
    """
    first = case.inputs[0]
    front = _steps(draw, first, draw.integer(4, 6) if draw.coin(0.15) else draw.integer(1, 3))
    back = _steps(draw, first, draw.integer(1, 2)) if draw.coin(0.4) else []
    own = len(case.inputs)
    kept = draw.coin(0.25)

    def function(*inputs: Any) -> Any:
        given = iter(inputs[own:])
        x = _after(front, inputs[0], given)
        out = case.function(x, *inputs[1:own])
        out = out if isinstance(out, tuple) else (out,)
        if out[0].shape == x.shape and out[0].is_floating_point():
            out = (_after(back, out[0], given), *out[1:])
        return (*out, x) if kept else out

    return Case(function, (*case.inputs, *(one for further, _ in (*front, *back) for one in further)))


def turned(case: Case, draw: Draw) -> Case:
    """The case with two axes of its first input, not the first axis, changing places in memory, as heads' do."""
    first = case.inputs[0]
    if len(first.shape) < 3 or first.order:
        return case
    axis = draw.integer(1, len(first.shape) - 2)
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(first.shape))]
    return replace(case, inputs=(replace(first, order=tuple(order)), *case.inputs[1:]))


def _steps(draw: Draw, first: Input, count: int) -> list[Step]:
    return [draw.pick(*_STEPS)(draw, first) for _ in range(count)]


def _after(steps: Sequence[Step], x: Any, given: Iterator[Any]) -> Any:
    """x after the steps, in the dtype it had. given: the steps' further inputs, in order."""
    dtype = x.dtype
    for further, step in steps:
        x = step(x, *(next(given) for _ in further))
    return x.to(dtype)


def _residual(draw: Draw, first: Input) -> Step:
    scale = draw.pick(1.0, 1.0, 0.5)
    return (_like(draw, first),), lambda x, y: x + scale * y


def _gate(draw: Draw, first: Input) -> Step:
    gate = draw.pick(torch.sigmoid, functional.silu, lambda x: x)
    return (_like(draw, first),), lambda x, y: x * gate(y)


def _dropout(draw: Draw, first: Input) -> Step:
    keep = draw.pick(draw.mask, draw.bits)(*first.shape)
    return (replace(keep, order=first.order),), lambda x, keep: x * keep * 1.25


def _select(draw: Draw, first: Input) -> Step:
    return (_like(draw, first),), lambda x, y: torch.where(y > 0, x, 0.0)


def _activate(draw: Draw, first: Input) -> Step:
    return (), draw.pick(*_ACTIVATIONS)


def _bias(draw: Draw, first: Input) -> Step:
    axis = draw.integer(0, len(first.shape) - 1)
    return (draw.weight(*_only(first, axis)),), lambda x, b: x + b


def _affine(draw: Draw, first: Input) -> Step:
    one = draw.weight(*_only(first, len(first.shape) - 1))
    return (one, one), lambda x, w, b: x * w + b


def _normalised(draw: Draw, first: Input) -> Step:
    """By statistics that each of an axis's elements has of its own."""
    stat = draw.saved(*_only(first, draw.integer(0, len(first.shape) - 1)))
    return (stat, stat), lambda x, mean, scale: (x - mean) * scale


def _codes(draw: Draw, first: Input) -> Step:
    scale = draw.saved(*_only(first, len(first.shape) - 1))
    return (draw.codes(*first.shape), scale), lambda x, q, s: x + 0.01 * q * s


def _transposed(draw: Draw, first: Input) -> Step:
    """A tensor that lies in memory the other way."""
    if len(first.shape) < 2:
        return _residual(draw, first)
    turned = (*first.shape[:-2], first.shape[-1], first.shape[-2])
    return (draw.mixed(*turned, grad=first.grad),), lambda x, y: x + y.transpose(-1, -2)


def _looked_up(draw: Draw, first: Input) -> Step:
    if len(first.shape) < 2 or first.shape[-1] > 2**16:
        return _residual(draw, first)
    rows = draw.size(1, 9)
    table = draw.real(rows, first.shape[-1], grad=False)
    return (table, draw.indices(rows, *first.shape[:-1])), lambda x, table, index: x + table[index]


def _chunk(draw: Draw, first: Input) -> Step:
    """One of the two parts of a tensor twice as wide."""
    last = first.shape[-1]
    start = draw.pick(0, last)
    wide = draw.mixed(*first.shape[:-1], 2 * last, grad=first.grad)
    return (wide,), lambda x, y: x + y[..., start : start + last]


def _rolled(draw: Draw, first: Input) -> Step:
    axis = draw.integer(0, len(first.shape) - 1)
    by = draw.integer(1, 7)
    return (_like(draw, first),), lambda x, y: x + torch.roll(y, by, axis)


def _shifted(draw: Draw, first: Input) -> Step:
    """The neighbour before, zero at the edge."""
    return (_like(draw, first),), lambda x, y: x + functional.pad(y[..., :-1], (1, 0))


def _joined(draw: Draw, first: Input) -> Step:
    """Two tensors put together along an axis."""
    axis = draw.integer(0, len(first.shape) - 1)
    size = first.shape[axis]
    if size < 2:
        return _residual(draw, first)
    start = draw.integer(1, size - 1)
    parts = [tuple(n if i == axis else one for i, one in enumerate(first.shape)) for n in (start, size - start)]
    inputs = tuple(draw.real(*part, grad=first.grad) for part in parts)
    return inputs, lambda x, one, two: x + torch.cat([one, two], axis)


def _repeated(draw: Draw, first: Input) -> Step:
    """A tensor of half the length, each element twice."""
    half = -(-first.shape[-1] // 2)
    small = draw.mixed(*first.shape[:-1], half, grad=False)
    return (small,), lambda x, y: x + y[..., None].expand(*y.shape, 2).flatten(-2)[..., : x.shape[-1]]


_STEPS = (
    *(_residual,) * 4, *(_gate,) * 2, *(_dropout,) * 3, *(_select,) * 2, *(_activate,) * 3, *(_bias,) * 2,
    *(_affine,) * 2, *(_normalised,) * 2, _codes, _transposed, _looked_up, _chunk, _rolled, _shifted, _joined,
    _repeated,
)  # fmt: skip
"""As often as their kind is met."""


def _like(draw: Draw, first: Input) -> Input:
    one = draw.mixed(*first.shape, grad=first.grad)
    return replace(one, order=first.order)


def _only(first: Input, axis: int) -> tuple[int, ...]:
    """The shape with every axis but one broadcast."""
    return tuple(size if i == axis else 1 for i, size in enumerate(first.shape))
