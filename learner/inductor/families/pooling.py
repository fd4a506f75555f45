"""Families of pooling: over pixels, windows, tokens, channels, bags of looked-up rows, fields and predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .draws import Case, Draw, Family

EPS = 1e-6


def global_pool(draw: Draw) -> Case:
    shape, dims = draw.layout("xxrr", "xxrr", "xxr", "xrrx")
    functions = (
        lambda x: x.mean(dims), lambda x: x.amax(dims), lambda x: torch.cat([x.mean(dims), x.amax(dims)], -1),
        lambda x: (x.float().clamp(min=EPS).pow(3).mean(dims)).pow(1 / 3), lambda x: functional.relu(x).mean(dims),
        lambda x: x.float().mean(dims).square().sum(-1), lambda x: functional.silu(x).mean(dims, keepdim=True),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.image(*shape),))


def window_pool(draw: Draw) -> Case:
    """Windows of equal size: of pixels, frames or patches."""
    (n, c, rows, k, columns, m), dims = draw.layout("xxxrxr", reduced=(1, 10))
    function = draw.pick(
        lambda x: x.reshape(n, c, rows, k, columns, m).mean(dims),
        lambda x: x.reshape(n, c, rows, k, columns, m).amax(dims),
        lambda x: x.reshape(n, c, rows, k, columns, m).float().square().mean(dims).sqrt(),
        lambda x: functional.avg_pool2d(x, (k, m)),
    )
    return Case(function, (draw.real(n, c, rows * k, columns * m),))


def squeeze_excite(draw: Draw) -> Case:
    """A gate of each channel; its gradient sums the product of image and gradient over the pixels."""
    shape, dims = draw.layout("xxrr", "xrrx", "xxr", reduced=(1, 18))
    gate = draw.real(*(1 if axis in dims else size for axis, size in enumerate(shape)))
    sigmoid = draw.pick(torch.sigmoid, functional.hardsigmoid)

    def own(x: Any, w: Any) -> Any:
        return x * sigmoid(functional.relu(x.mean(dims, keepdim=True)) * w)

    def given(x: Any, w: Any) -> Any:
        y = x * sigmoid(w)
        return y, y.mean(dims)

    return Case(draw.pick(own, given), (draw.image(*shape), gate))


def masked_mean(draw: Draw) -> Case:
    """A sentence's mean over its words; every third time of unit length."""
    (b, s, h), _ = draw.layout("xrx")
    normal = draw.coin(0.3)

    def function(x: Any, keep: Any) -> Any:
        keep = keep[..., None].float()
        mean = (x * keep).sum(1) / keep.sum(1).clamp(min=1)
        return functional.normalize(mean, dim=-1) if normal else mean.to(x.dtype)

    return Case(
        function, (draw.real(b, s, h), draw.pick(draw.mask, draw.bits, lambda b, s: draw.indices(2, b, s))(b, s))
    )


def attentive_pool(draw: Draw) -> Case:
    """Weighted mean and deviation over frames."""
    shape, dims = draw.layout("xxr", "xrx", reduced=(1, 20))

    def function(x: Any, scores: Any) -> Any:
        weights = torch.softmax(scores.float(), dims[0])
        mean = (weights * x).sum(dims)
        square = (weights * x * x).sum(dims)
        return torch.cat([mean, (square - mean.square()).clamp(min=EPS).sqrt()], -1)

    return Case(function, (draw.real(*shape), draw.mixed(*shape)))


def spatial_gate(draw: Draw) -> Case:
    """Mean and maximum over the channels of each pixel."""
    shape, dims = draw.layout("xrxx", "xxxr", reduced=(0, 12))

    def function(x: Any, w: Any) -> Any:
        both = x.mean(dims, keepdim=True) * w[0] + x.amax(dims, keepdim=True) * w[1]
        return x * torch.sigmoid(both), both

    return Case(function, (draw.image(*shape), draw.weight(2)))


def bag_of_rows(draw: Draw) -> Case:
    """Sums, means and maxima of looked-up rows: bags of words, neighbours of nodes."""
    (bags, k, width), _ = draw.layout("xrx", reduced=(0, 12))
    table = draw.real(draw.size(3, 13), min(width, 2**12))
    kind = draw.pick("sum", "mean", "max", "weighted")

    def function(rows: Any, index: Any, weight: Any) -> Any:
        found = rows[index]
        if kind == "weighted":
            return (found * weight[..., None]).sum(1)
        return found.amax(1) if kind == "max" else found.sum(1) if kind == "sum" else found.mean(1)

    return Case(function, (table, draw.indices(table.shape[0], bags, k), draw.mixed(bags, k)), bare=True)


def embedded_norm(draw: Draw) -> Case:
    """Words, places and segments looked up, added and normalised."""
    (b, s, h), _ = draw.layout("xxr", reduced=(3, 13))
    words, root = draw.size(5, 12), draw.coin(0.3)

    def function(word: Any, place: Any, segment: Any, w: Any, index: Any, kind: Any) -> Any:
        x = (word[index] + place + segment[kind]).float()
        if root:
            return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * w).to(word.dtype)
        return functional.layer_norm(x, (h,), w.float()).to(word.dtype)

    return Case(function, (draw.real(words, h, grad=False), draw.real(s, h), draw.real(2, h), draw.weight(h),
                           draw.indices(words, b, s), draw.indices(2, b, s)), bare=True)  # fmt: skip


def factor_interaction(draw: Draw) -> Case:
    """Square of the sum less the sum of squares, over fields; dot products of pairs of fields."""
    (b, fields, width), _ = draw.layout("xrx", "xrx", reduced=(1, 10))

    def function(x: Any) -> Any:
        x = x.float()
        return 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(-1)

    return Case(function, (draw.real(b, fields, width),))


def ensemble_mean(draw: Draw) -> Case:
    """Mean, spread and agreement of several predictions."""
    shape, dims = draw.layout("rx", "rxx", "xrx", "xxr", reduced=(0, 7))
    functions = (
        lambda x: x.mean(dims), lambda x: (x.mean(dims), x.float().var(dims, correction=0)),
        lambda x: torch.softmax(x.float(), -1).mean(dims), lambda x: (x.amax(dims) - x.amin(dims)).float(),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.real(*shape),))


FAMILIES: tuple[Family, ...] = (
    global_pool, window_pool, squeeze_excite, masked_mean, attentive_pool, spatial_gate, bag_of_rows, embedded_norm,
    factor_interaction, ensemble_mean,
)  # fmt: skip
