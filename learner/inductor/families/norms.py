"""Families of normalisations: of rows, heads, channels, groups, weights; gated, residual, conditioned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from .draws import LINES, Case, Draw, Family

EPS = 1e-5
LAST = ("xr", "xxr", "xxxr")


def layer_norm(draw: Draw) -> Case:
    shape, dims = draw.layout("xr", "xxr", "xxr", "xrr", "xrx", "xrxx", reduced=(1, 20))
    inner = [shape[axis] for axis in dims]
    if dims[-1] == len(shape) - 1:
        if draw.coin(0.2):
            return Case(lambda x: functional.layer_norm(x, inner), (draw.real(*shape),))
        weight = draw.weight(*inner)
        return Case(
            lambda x, w, b: functional.layer_norm(x.to(w.dtype), inner, w, b), (draw.real(*shape), weight, weight)
        )
    weight = draw.weight(inner[0], *(1,) * (len(shape) - 2))
    return Case(lambda x, w, b: (standardised(x, dims) * w + b).to(x.dtype), (draw.real(*shape), weight, weight))


def rms_norm(draw: Draw) -> Case:
    shape, dims = draw.layout(*LAST, *LAST, "xrx")
    weight = draw.weight(shape[dims[0]], *(1,) * (len(shape) - 1 - dims[0]))
    form = draw.pick(
        lambda x, w: (root_mean(x, dims) * w).to(x.dtype),
        lambda x, w: root_mean(x, dims).to(x.dtype) * (1 + w),
        lambda x, w: x / (x.float().square().mean(dims, keepdim=True) + EPS).sqrt() * w,
    )
    return Case(form, (draw.real(*shape), weight))


def residual_norm(draw: Draw) -> Case:
    shape, dims = draw.layout(*LAST, reduced=(2, 16))
    count, drop = draw.pick(1, 1, 2, 3, 4, 5, 6, 7, 8), draw.coin()
    norm = draw.pick(standardised, root_mean)
    keep = (draw.bits(*shape),) if drop else ()

    def function(x: Any, w: Any, *rest: Any) -> Any:
        stream = sum(rest[:count], x * rest[-1] * 1.25 if drop else x)
        return (norm(stream, dims) * w).to(x.dtype), stream.to(x.dtype)

    residuals = [draw.mixed(*shape) for _ in range(count)]
    return Case(function, (draw.real(*shape), draw.weight(shape[-1]), *residuals, *keep))


def batch_norm(draw: Draw) -> Case:
    shape, dims = draw.layout("rxrr", "rxrr", "rxr", "rx", outer=(2, 13), reduced=(2, 20))
    channels, act = shape[1], draw.pick(functional.relu, functional.silu, functional.hardswish, lambda x: x)
    weight = [draw.weight(channels) for _ in range(2)]
    if draw.coin():
        running = draw.saved(channels)

        def function(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
            return act(functional.batch_norm(x.float(), mean, var, w.float(), b.float(), True)).to(x.dtype)

        return Case(function, (draw.image(*shape), *weight, running, running))
    form = [-1, *(1,) * (len(shape) - 2)]

    def residual(x: Any, w: Any, b: Any, y: Any) -> Any:
        return act(standardised(x, dims) * w.view(form) + b.view(form) + y).to(x.dtype)

    return Case(residual, (draw.image(*shape), *weight, draw.image(*shape)))


def group_norm(draw: Draw) -> Case:
    (n, groups, per_group, pixels), _ = draw.layout("xxrr", reduced=(2, 20))
    channels, act = groups * per_group, draw.pick(functional.silu, functional.gelu, lambda x: x)
    side = draw.pick(1, 2, 4)
    shape = (n, channels, -(-pixels // side), side) if draw.coin() else (n, channels, pixels + 1)
    weight = draw.weight(channels)

    def function(x: Any, w: Any, b: Any) -> Any:
        return act(functional.group_norm(x.to(w.dtype), groups, w, b))

    return Case(function, (draw.image(*shape), weight, weight))


def instance_norm(draw: Draw) -> Case:
    shape, dims = draw.layout("xxrr", "xxr", reduced=(2, 20))
    scale = draw.mixed(shape[0], shape[1], *(1,) * len(dims))
    function = draw.pick(
        lambda x, w, b: standardised(x, dims) * w + b,
        lambda x, w, b: functional.relu(standardised(x, dims)).to(x.dtype),
        lambda x, w, b: torch.addcmul(b.float(), standardised(x, dims), 1 + w.float()).to(x.dtype),
    )
    return Case(function, (draw.image(*shape), scale, scale))


def head_norm(draw: Draw) -> Case:
    """Norm of each head's query or key, then rotary positions."""
    (b, s, h, half), _ = draw.layout("xxxr", reduced=(2, 8))
    first = draw.coin()
    angle = draw.saved(s, 1, half)

    def function(x: Any, w: Any, cos: Any, sin: Any) -> Any:
        y = root_mean(x, (-1,)) * w
        one, two = (y[..., :half], y[..., half:]) if first else (y[..., ::2], y[..., 1::2])
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x.dtype)

    return Case(function, (draw.real(b, s, h, 2 * half), draw.weight(2 * half), angle, angle))


def gated_norm(draw: Draw) -> Case:
    shape, _ = draw.layout(*LAST, reduced=(2, 16))
    width, norm = shape[-1], draw.pick(standardised, root_mean)
    gate = draw.pick(
        functional.silu,
        functional.gelu,
        torch.sigmoid,
        functional.relu,
        lambda x: functional.gelu(x, approximate="tanh"),
    )
    weight = draw.weight(width)
    if draw.coin():

        def merged(x: Any, w: Any) -> Any:
            return (norm(gate(x[..., :width]) * x[..., width:], (-1,)) * w).to(x.dtype)

        return Case(merged, (draw.real(*shape[:-1], 2 * width), weight))
    after = draw.coin()

    def separate(x: Any, y: Any, w: Any, bias: Any) -> Any:
        if after:
            return (norm(x + bias, (-1,)) * w * gate(y)).to(x.dtype)
        return (norm(x * gate(y + bias), (-1,)) * w).to(x.dtype)

    return Case(separate, (draw.real(*shape), draw.mixed(*shape), weight, draw.mixed(width)))


def weight_norm(draw: Draw) -> Case:
    shape, dims = draw.layout("xr", "rx", "xrr", "rxr", outer=(0, 16), reduced=(0, 20))
    gain = draw.weight(*(1 if axis in dims else size for axis, size in enumerate(shape)))
    return Case(lambda v, g: v * (g / (_norm(v, dims) + EPS)), (draw.real(*shape), gain))


def spectral_norm(draw: Draw) -> Case:
    (m, n), _ = draw.layout("xr")

    def function(w: Any, u: Any) -> Any:
        v = functional.normalize((w * u[:, None]).sum(0), dim=0)
        after = functional.normalize((w * v).sum(1), dim=0)
        return w / ((w * v).sum(1) * after).sum(), after

    return Case(function, (draw.real(m, n), draw.real(m, grad=False)))


def weight_standardisation(draw: Draw) -> Case:
    shape, dims = draw.layout("xrr", "xrrr", "xr", reduced=(2, 16))
    gain = draw.weight(shape[0], *(1,) * len(dims))
    return Case(lambda w, g: (standardised(w, dims) * g).to(w.dtype), (draw.real(*shape), gain))


def response_norm(draw: Draw) -> Case:
    """A channel's norm over the pixels by the mean norm of all channels."""
    shape, dims = draw.layout("xrrx", "xxrr", outer=(2, 16))
    last = shape[-1] if dims == (1, 2) else shape[1]
    channel = 3 if dims == (1, 2) else 1
    weight = draw.weight(*(last if axis == channel else 1 for axis in range(4)))

    def function(x: Any, w: Any, b: Any) -> Any:
        norm = _norm(x, dims)
        return (x * (norm / (norm.mean(channel, keepdim=True) + EPS)) * w + b + x).to(x.dtype)

    return Case(function, (draw.image(*shape), weight, weight))


def adaptive_norm(draw: Draw) -> Case:
    """Scale and shift of each sample, whose gradients sum over its tokens; a gate on the way out."""
    (b, s, h), _ = draw.layout("xxr", reduced=(2, 15))
    one = draw.mixed(b, 1, h)
    if draw.coin():
        return Case(lambda x, a, b: (standardised(x, (-1,)) * (1 + a) + b).to(x.dtype), (draw.real(b, s, h), one, one))

    def gated(x: Any, scale: Any, shift: Any, gate: Any, y: Any) -> Any:
        stream = x + gate * y
        return (standardised(stream, (-1,)) * (1 + scale) + shift).to(x.dtype), stream

    return Case(gated, (draw.real(b, s, h), one, one, one, draw.real(b, s, h)))


def unit_vectors(draw: Draw) -> Case:
    shape, dims = draw.layout(*LINES)
    order = draw.pick(1.0, 2.0, 2.0, 2.0, float("inf"))
    return Case(lambda x: functional.normalize(x.float(), p=order, dim=dims[0]).to(x.dtype), (draw.real(*shape),))


def capsule_squash(draw: Draw) -> Case:
    shape, dims = draw.layout("xrx", "xxr", "xrxx", reduced=(0, 8))

    def function(x: Any) -> Any:
        square = x.float().square().sum(dims, keepdim=True)
        return (x * (square / (1 + square) / (square + EPS).sqrt())).to(x.dtype)

    return Case(function, (draw.real(*shape),))


def standardised(x: Any, dims: Sequence[int]) -> Any:
    """x less its mean by its deviation, in fp32."""
    var, mean = torch.var_mean(x.float(), tuple(dims), correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + EPS)


def root_mean(x: Any, dims: Sequence[int]) -> Any:
    """x by its root mean square, in fp32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(tuple(dims), keepdim=True) + EPS)


def _norm(x: Any, dims: Sequence[int]) -> Any:
    return (x.float().square().sum(tuple(dims), keepdim=True) + EPS).sqrt()


FAMILIES: tuple[Family, ...] = (
    layer_norm, rms_norm, residual_norm, batch_norm, group_norm, instance_norm, head_norm, gated_norm, weight_norm,
    spectral_norm, weight_standardisation, response_norm, adaptive_norm, unit_vectors, capsule_squash,
)  # fmt: skip
