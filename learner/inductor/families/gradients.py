"""Families of gradients as kernels of their own, and of what optimisers reduce."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from .draws import LINES, Case, Draw, Family, Input

EPS = 1e-6


def bias_gradient(draw: Draw) -> Case:
    """Sums over all but the channels, of a gradient that an activation, a dropout or a second branch has changed."""
    shape, dims = draw.layout("rx", "rrx", "rxrr", "rxr")
    function, extra = draw.pick(
        (lambda g: g.sum(dims), ()),
        (lambda g, y: torch.where(y > 0, g, 0.0).sum(dims), ("mixed",)),
        (lambda g, x: (_silu_gradient(g.float(), x.float())).sum(dims), ("mixed",)),
        (lambda g, keep: _twice(g * keep * 1.25, dims), ("mask",)),
        (lambda g, keep: (g * keep * 1.25).sum(dims), ("bits",)),
        (lambda g, h, x: _twice(_gelu_gradient((g + h).float(), x.float()), dims), ("mixed", "mixed")),
        (lambda g, h, keep: _twice((g + h) * keep, dims), ("mixed", "mask")),
    )
    rest = [getattr(draw, name)(*shape, **({"grad": False} if name == "mixed" else {})) for name in extra]
    return Case(function, (draw.image(*shape), *rest))


def scale_gradient(draw: Draw) -> Case:
    """Gradients of a learned scale (and shift), of a slope, of a layer's scale: products summed over tokens."""
    shape, dims = draw.layout("rx", "rrx", "rxrr", "rxr")
    functions = (
        lambda g, x, m, s: (g * x).sum(dims),
        lambda g, x, m, s: ((g * (x - m) * s).sum(dims), g.sum(dims)),
        lambda g, x, m, s: (torch.where(x > 0, 0.0, x * g)).sum(dims),
        lambda g, x, m, s: ((g * x).sum(dims), g * s),
    )
    channel = [size if axis not in dims else 1 for axis, size in enumerate(shape)]
    inputs = (draw.real(*shape, grad=False), draw.mixed(*shape, grad=False), draw.saved(*channel), draw.saved(*channel))
    return Case(draw.pick(*functions), inputs)


def row_norm_gradient(draw: Draw) -> Case:
    """A normalised row's gradient: two sums a row, then all of the row again; some residual gradients on top."""
    shape, dims = draw.layout("xr", "xxr", "xxr", "xrx", reduced=(2, 16))
    row = [1 if axis in dims else size for axis, size in enumerate(shape)]
    others, root = draw.integer(0, 4), draw.coin(0.4)
    width = shape[dims[0]]

    def function(g: Any, x: Any, w: Any, mean: Any, scale: Any, *rest: Any) -> Any:
        normal = (x.float() - (0.0 if root else mean)) * scale
        inner = g.float() * w
        dot = (inner * normal).sum(dims, keepdim=True)
        total = 0.0 if root else inner.sum(dims, keepdim=True)
        out = scale * (inner - (total + normal * dot) / width)
        return sum(rest, out).to(g.dtype)

    weight = draw.weight(width, *(1,) * (len(shape) - 1 - dims[0]))
    rest = [draw.mixed(*shape) for _ in range(others)]
    inputs = (draw.real(*shape), draw.mixed(*shape), weight, draw.saved(*row), draw.saved(*row), *rest)
    return Case(function, _without_gradients(inputs))


def channel_norm_gradient(draw: Draw) -> Case:
    """The two sums of a batch norm's gradient behind an activation, and then the gradient itself or not."""
    shape, dims = draw.layout("rxrr", "rxrr", "rx", "rxr", outer=(2, 13))
    channel = [size if axis not in dims else 1 for axis, size in enumerate(shape)]
    act, whole, branch = draw.pick("none", "relu", "silu", "mask"), draw.coin(0.3), draw.coin(0.3)

    def function(g: Any, x: Any, w: Any, mean: Any, scale: Any, other: Any) -> Any:
        normal = (x.float() - mean) * scale
        if branch:
            g = g + other
        if act == "relu":
            g = torch.where(normal * w <= 0, 0.0, g)
        elif act != "none":
            g = _silu_gradient(g.float(), normal * w) if act == "silu" else torch.where(other > 0, g, 0.0)
        bias, weight = g.float().sum(dims, keepdim=True), (g * normal).sum(dims, keepdim=True)
        count = x.numel() // w.numel()
        if not whole:
            return bias, weight
        return bias, weight, ((g - bias / count - normal * weight / count) * w * scale).to(x.dtype)

    image = draw.image(*shape)
    inputs = (image, image, draw.weight(*channel), draw.saved(*channel), draw.saved(*channel), image)
    return Case(function, _without_gradients(inputs))


def group_norm_gradient(draw: Draw) -> Case:
    (n, groups, per_group, pixels), _ = draw.layout("xxrr")

    def function(g: Any, x: Any, w: Any, mean: Any, scale: Any) -> Any:
        channel = (g.float() * x).sum(-1), g.float().sum(-1)
        products, plain = ((one * w).sum(-1) for one in channel)
        slope = (plain * mean - products) * scale.pow(3) / (per_group * pixels)
        return slope, ((channel[0] - channel[1] * mean[..., None]) * scale[..., None]).sum(0), channel[1].sum(0)

    image, stat = draw.real(n, groups, per_group, pixels, grad=False), draw.saved(n, groups)
    return Case(function, _without_gradients((image, image, draw.weight(groups, per_group), stat, stat)))


def softmax_gradient(draw: Draw) -> Case:
    shape, dims = draw.layout(*LINES)
    form = draw.pick("plain", "dropped", "scaled", "masked", "logs")

    def function(g: Any, y: Any, keep: Any) -> Any:
        if form == "logs":
            return (g - torch.exp(y.float()) * g.float().sum(dims, keepdim=True)).to(g.dtype)
        g = g * keep * 1.25 if form == "dropped" else g
        product = g.float() * y
        out = product - y * product.sum(dims, keepdim=True)
        out = torch.where(keep > 0, out, 0.0) if form == "masked" else out
        return (out * (0.125 if form == "scaled" else 1.0)).to(g.dtype)

    values = draw.real(*shape, grad=False)
    return Case(function, (values, values, draw.pick(draw.mask, draw.bits)(*shape)))


def class_gradient(draw: Draw) -> Case:
    """A cross entropy's gradient from logits, which a bias's gradient may sum up."""
    (rows, classes), _ = draw.layout("xr", "xr", "rx", reduced=(2, 17))
    summed = draw.coin(0.3)

    def function(x: Any, log_z: Any, y: Any, upstream: Any) -> Any:
        hot = torch.arange(classes, device=x.device) == y[:, None]
        g = (torch.exp(x.float() - log_z) - hot.float()) * upstream
        return (g.to(x.dtype), g.sum(0)) if summed else (g.to(x.dtype), (g * x).sum(-1))

    return Case(function, (draw.real(rows, classes, grad=False), draw.saved(rows, 1), draw.indices(classes, rows),
                           draw.saved(1)), bare=True)  # fmt: skip


def position_gradient(draw: Draw) -> Case:
    """Sums over the batch of what was broadcast: positions, biases of attention, masks of dropout on the way."""
    shape, dims = draw.layout("rxx", "rx", "rxxx", reduced=(0, 12))
    form = draw.pick("plain", "dropped", "two", "scaled")

    def function(g: Any, other: Any, keep: Any) -> Any:
        g = g * keep * 1.25 if form == "dropped" else g + other if form == "two" else g
        return (g.float() * 0.125 if form == "scaled" else g).sum(dims)

    return Case(function, (draw.real(*shape), draw.mixed(*shape, grad=False), draw.bits(*shape)))


def broadcast_gradient(draw: Draw) -> Case:
    """What autograd sums when a gate, a mask or a bias was broadcast over middle axes."""
    shape, dims = draw.layout("xrx", "xrxr", "rxr", "xrrx", "xxr")
    small = draw.weight(*(1 if axis in dims else size for axis, size in enumerate(shape)))
    gate = draw.pick(torch.sigmoid, torch.tanh, lambda x: x, functional.silu)
    if not small.grad:
        return Case(lambda x, y, s: ((x * y).sum(dims), (x * gate(s.float())).to(x.dtype)),
                    (draw.real(*shape), draw.mixed(*shape), small))  # fmt: skip
    return Case(lambda x, y, s: (x * gate(s) + y * s).to(x.dtype), (draw.real(*shape), draw.mixed(*shape), small))


def gate_gradient(draw: Draw) -> Case:
    """Both gradients of a gated product, and the sums over tokens that its biases want."""
    shape, dims = draw.layout("rx", "rrx", "xr")

    def function(g: Any, x: Any, gate: Any) -> Any:
        g, gate = g.float(), gate.float()
        into, through = _silu_gradient(g * x, gate), g * functional.silu(gate)
        return into.to(x.dtype), through.to(x.dtype), into.sum(dims), through.sum(dims)

    return Case(function, tuple(draw.mixed(*shape, grad=False) for _ in range(3)))


def clipping_norm(draw: Draw) -> Case:
    """One norm of several tensors' gradients, each shaped in its own way."""
    count = draw.integer(1, 6)
    shapes = [draw.layout("r", "rr")[0] for _ in range(count)]
    order = draw.pick(2, 2, 1, "inf")

    def function(*gradients: Any) -> Any:
        if order == "inf":
            return torch.stack([g.float().abs().amax() for g in gradients]).amax()
        parts = torch.stack([g.float().abs().pow(order).sum() for g in gradients])
        norm = parts.sum().pow(1 / order)
        return norm, (1.0 / (norm + EPS)).clamp(max=1.0)

    return Case(function, tuple(draw.mixed(*shape, grad=False) for shape in shapes))


def trust_ratio(draw: Draw) -> Case:
    """A layer's norm of weights by the norm of its update, made of moments."""
    shape, _ = draw.layout("r", "rr")
    kind = draw.pick(0.0, 0.01)

    def function(w: Any, g: Any, first: Any, second: Any) -> Any:
        first, second = 0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g.float().square()
        update = first / (second.abs().sqrt() + EPS) + kind * w
        return w.float().norm() / (update.norm() + EPS), first, second, update

    moment = draw.saved(*shape)
    return Case(function, (draw.real(*shape, grad=False), draw.mixed(*shape, grad=False), moment, moment))


def factored_moments(draw: Draw) -> Case:
    """Row and column means of squared gradients, moving; the update's own root mean square."""
    (rows, columns), _ = draw.layout("xr")

    def function(g: Any, row: Any, column: Any) -> Any:
        square = g.float().square() + EPS
        row, column = 0.9 * row + 0.1 * square.mean(-1), 0.9 * column + 0.1 * square.mean(-2)
        update = g * torch.rsqrt(row / row.mean())[:, None] * torch.rsqrt(column)
        return row, column, update / update.square().mean().sqrt().clamp(min=1.0)

    return Case(function, (draw.real(rows, columns, grad=False), draw.saved(rows), draw.saved(columns)))


def moment_statistics(draw: Draw) -> Case:
    """Per row: sums that an optimiser's health is watched by."""
    shape, dims = draw.layout("xr", "rx", "xrr", "r")

    def function(w: Any, g: Any, first: Any, second: Any) -> Any:
        step = first / (second.sqrt() + EPS)
        found = (step.square().mean(dims), (g * first).sum(dims), w.float().abs().mean(dims), second.amax(dims))
        return found[:count]

    count = draw.integer(1, 4)
    moment = draw.saved(*shape)
    return Case(function, (draw.real(*shape, grad=False), draw.mixed(*shape, grad=False), moment, moment))


def scatter_ready_gradient(draw: Draw) -> Case:
    """A looked-up row's gradient before it is scattered: masked by padding, normalised, summed over copies."""
    (tokens, copies, width), _ = draw.layout("xrx", reduced=(0, 8))

    def function(g: Any, index: Any, scale: Any) -> Any:
        live = (index != 0)[..., None]
        return (torch.where(live, g, 0.0) * scale[..., None]).sum(1), live.sum(1)

    return Case(function, (draw.real(tokens, copies, width, grad=False), draw.indices(7, tokens, copies),
                           draw.saved(tokens, copies)))  # fmt: skip


def matrix_vector(draw: Draw) -> Case:
    """A matrix times a vector or a few, as products and sums: outputs of one class, scores, bilinear forms."""
    shape, dims = draw.layout("xr", "rx", "xxr", "xrx")
    vector = [size if axis in dims else 1 for axis, size in enumerate(shape)]
    functions = (
        lambda a, v, b: (a * v).sum(dims), lambda a, v, b: torch.sigmoid((a.float() * v).sum(dims)),
        lambda a, v, b: (a * b * v).sum(dims), lambda a, v, b: ((a * v).sum(dims), (b * v).sum(dims)),
        lambda a, v, b: functional.gelu((a.float() * v).sum(dims)).to(a.dtype),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.real(*shape), draw.mixed(*vector), draw.mixed(*shape)))


def _silu_gradient(g: Any, x: Any) -> Any:
    s = torch.sigmoid(x)
    return g * s * (1 + x * (1 - s))


def _gelu_gradient(g: Any, x: Any) -> Any:
    return g * (0.5 * (1 + torch.erf(x * 0.7071)) + x * torch.exp(-0.5 * x * x) * 0.3989)


def _twice(g: Any, dims: tuple[int, ...]) -> Any:
    """The gradient, and its sum."""
    return g, g.sum(dims)


def _without_gradients(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    return tuple(replace(one, grad=False) for one in inputs)


FAMILIES: tuple[Family, ...] = (
    bias_gradient, scale_gradient, row_norm_gradient, channel_norm_gradient, group_norm_gradient, softmax_gradient,
    class_gradient, position_gradient, broadcast_gradient, gate_gradient, clipping_norm, trust_ratio, factored_moments,
    moment_statistics, scatter_ready_gradient, matrix_vector,
)  # fmt: skip
