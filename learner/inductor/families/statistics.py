"""Families of statistics, arg-reductions, counts, integer sums, quantisation and distances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from .draws import LINES, PLANES, Case, Draw, Family, Input

EPS = 1e-6


def moments(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    highest = draw.pick(2, 3, 4)

    def central(x: Any) -> Any:
        gap = x.float() - x.float().mean(dims, keepdim=True)
        return tuple(gap.pow(order).mean(dims) for order in range(2, highest + 1))

    def raw(x: Any) -> Any:
        x = x.float()
        return tuple(x.pow(order).sum(dims) for order in range(1, highest + 1))

    return Case(draw.pick(central, raw), (draw.real(*shape),))


def variance(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES, reduced=(1, 22))
    functions = (
        lambda x: torch.var_mean(x.float(), dims), lambda x: torch.std(x.float(), dims, correction=0),
        lambda x: (x - x.mean(dims, keepdim=True)) / (x.float().std(dims, keepdim=True) + EPS),
        lambda x: torch.var(x.float(), dims, keepdim=True).sqrt().mean(),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.real(*shape),))


def correlation(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES, reduced=(1, 22))

    def centred(x: Any, y: Any) -> Any:
        x, y = (one.float() - one.float().mean(dims, keepdim=True) for one in (x, y))
        return (x * y).sum(dims) / ((x * x).sum(dims) * (y * y).sum(dims) + EPS).sqrt()

    def sums(x: Any, y: Any) -> Any:
        x, y = x.float(), y.float()
        return x.sum(dims), y.sum(dims), (x * y).sum(dims), (x * x).sum(dims), (y * y).sum(dims)

    return Case(draw.pick(centred, sums), (draw.real(*shape), draw.mixed(*shape)))


def entropy(draw: Draw) -> Case:
    shape, dims = draw.layout(*LINES)
    functions = (
        lambda p: -(p.float() * p.float().log()).sum(dims), lambda p: 1 - p.float().square().sum(dims),
        lambda p: torch.special.entr(p.float() / p.float().sum(dims, keepdim=True)).sum(dims).exp(),
        lambda p: ((p / p.float().sum(dims, keepdim=True)).square().sum(dims), p.amax(dims)),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.unit(*shape),), bare=True)


def extremes(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)

    def scaled(x: Any) -> Any:
        low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
        return (x - low) / (high - low + 1e-3)

    functions = (scaled, lambda x: (x.amin(), x.amax()), lambda x: (x.amin(dims), x.amax(dims)),
                 lambda x: x.abs().amax(dims), lambda x: x.amax(dims))  # fmt: skip
    return Case(draw.pick(*functions), (draw.real(*shape),))


def arg_reduction(draw: Draw) -> Case:
    shape, dims = draw.layout(*LINES, "r")
    axis = dims[0]
    functions = (
        lambda x: x.argmax(axis), lambda x: x.argmin(axis, keepdim=True), lambda x: tuple(x.max(axis)),
        lambda x: tuple(x.min(axis)), lambda x: (x.argmax(axis), x.argmin(axis)),
        lambda x: torch.softmax(x.float(), axis).max(axis).values, lambda x: x.float().square().argmax(axis),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.real(*shape),))


def accuracy(draw: Draw) -> Case:
    """Whether the best class is the right one; at which place the right one stands."""
    (rows, classes), _ = draw.layout("xr", reduced=(1, 17))
    functions = (
        lambda x, y: (x.argmax(-1) == y).float().mean(), lambda x, y: (x.argmax(-1) == y).sum(),
        lambda x, y: (x > x.gather(1, y[:, None])).sum(-1),
        lambda x, y: ((x > x.gather(1, y[:, None])).sum(-1) < 5).float().mean(),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.real(rows, classes, grad=False), draw.indices(classes, rows)))


def nearest_centroid(draw: Draw) -> Case:
    (points, centres), _ = draw.layout("xr", reduced=(1, 14))
    width = draw.pick(2, 3, 4)

    def function(x: Any, c: Any) -> Any:
        gap = sum((x[:, i, None] - c[:, i]).float().square() for i in range(width))
        return gap.min(-1)

    return Case(function, (draw.real(points, width, grad=False), draw.real(centres, width, grad=False)))


def any_all(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    axis = dims[0]
    if draw.coin(0.4):
        of_masks = (lambda m: m.any(axis), lambda m: m.all(axis), lambda m: (m.any(axis), m.sum(dims)))
        return Case(draw.pick(*of_masks), (draw.pick(draw.mask, draw.bits)(*shape),))
    of_reals = (
        lambda x: (x > 2).any(axis), lambda x: torch.isfinite(x).all(), lambda x: (~torch.isfinite(x)).any(axis),
        lambda x: (x.isnan().any(), x.isinf().any()),
    )  # fmt: skip
    return Case(draw.pick(*of_reals), (draw.real(*shape, grad=False),))


def counts(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    if draw.coin():
        of_reals = (
            lambda x: torch.count_nonzero(x, dims), lambda x: (x > 0).sum(dims),
            lambda x: (x.abs() < 0.1).float().mean(dims), lambda x: ((x > 1).sum(dims), (x < -1).sum(dims)),
        )  # fmt: skip
        return Case(draw.pick(*of_reals), (draw.real(*shape, grad=False),))
    of_labels = (
        lambda y, m: (y == 3).sum(dims), lambda y, m: ((y != 0) & m).sum(dims),
        lambda y, m: ((y == 1) & m).sum(dims) / ((y == 1) | m).sum(dims).clamp(min=1),
    )  # fmt: skip
    return Case(draw.pick(*of_labels), (draw.indices(10, *shape), draw.mask(*shape)))


def integer_sum(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    kind = draw.pick(torch.int8, torch.uint8, torch.int32, torch.int64, torch.int16)
    functions = (
        lambda x: x.sum(dims), lambda x: x.sum(dims, dtype=torch.int32), lambda x: x.amax(dims),
        lambda x: (x.to(torch.int32) * x).sum(dims), lambda x: x.float().mean(dims), lambda x: (x & 3).sum(dims),
    )  # fmt: skip
    return Case(draw.pick(*functions), (Input(shape, kind, "integer", 100),))


def product(draw: Draw) -> Case:
    shape, dims = draw.layout(*LINES)
    functions = (lambda x: x.prod(dims[0]), lambda x: (1 - 0.1 * x.float()).prod(dims[0]),
                 lambda x: 1 - (1 - 0.01 * x.float()).prod(dims[0], keepdim=True))  # fmt: skip
    # Backward a product is a scan.
    return Case(draw.pick(*functions), (replace(draw.unit(*shape), grad=False),), bare=True)


def whole_tensor(draw: Draw) -> Case:
    """One number of everything."""
    shape, _ = draw.layout("r", "rr", "rrr")
    functions = (
        lambda x: x.sum(), lambda x: x.float().mean(), lambda x: x.float().square().sum().sqrt(), lambda x: x.max(),
        lambda x: x.abs().mean(), lambda x: torch.std(x.float(), correction=0), lambda x: x.float().norm(),
        lambda x: (x.float().mean(), x.amax(), x.amin()),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.real(*shape),))


def many_statistics(draw: Draw) -> Case:
    """Up to six reductions of one tensor."""
    shape, dims = draw.layout(*PLANES)
    pool = (
        lambda x: x.float().sum(dims), lambda x: x.float().square().mean(dims), lambda x: x.amax(dims),
        lambda x: x.amin(dims), lambda x: x.float().abs().sum(dims), lambda x: (x > 0).sum(dims),
        lambda x: torch.var(x.float(), dims, correction=0), lambda x: functional.relu(x).sum(dims),
        lambda x: x.argmax(dims[0]), lambda x: torch.tanh(x.float()).mean(dims), lambda x: x.isnan().any(dims[0]),
    )  # fmt: skip
    chosen = draw.several(pool, 2, 6)
    return Case(lambda x: tuple(one(x) for one in chosen), (draw.mixed(*shape),))


def many_inputs(draw: Draw) -> Case:
    """Up to twelve tensors of several dtypes, combined and reduced, in whole or by broadcast."""
    shape, dims = draw.layout(*PLANES, "xr")
    last = (shape[-1],)
    reduced = tuple(1 if axis in dims else size for axis, size in enumerate(shape))
    makers = (draw.mixed, draw.mixed, draw.mixed, draw.mask, draw.bits, draw.codes)
    count = draw.integer(1, 11)
    rest = [draw.pick(*makers)(*draw.pick(shape, shape, shape, last, reduced)) for _ in range(count)]
    links = [draw.pick("add", "multiply", "largest", "gate") for _ in rest]
    reduce = draw.pick(lambda x: x.sum(dims), lambda x: x.amax(dims), lambda x: (x.mean(dims), x.square().mean(dims)))
    keep = draw.coin(0.3)

    def function(x: Any, *others: Any) -> Any:
        total = x.float()
        for link, other in zip(links, others, strict=True):
            y = other.float()
            if link == "add":
                total = total + y
            elif link == "multiply":
                total = total * torch.tanh(y)
            else:
                total = torch.maximum(total, y) if link == "largest" else torch.where(y > 0, total, 0.5 * total)
        out = reduce(total)
        return (*(out if isinstance(out, tuple) else (out,)), total.to(x.dtype)) if keep else out

    return Case(function, (draw.real(*shape), *rest))


def quantised(draw: Draw) -> Case:
    """Codes and scales by tensor, row, column, group or block."""
    shape, dims = draw.layout(*LINES, "xrxr", "rr", "xxr")
    top, kind = draw.pick((127.0, torch.int8), (7.0, torch.int8), (448.0, torch.float32), (255.0, torch.uint8))
    affine = kind == torch.uint8

    def function(x: Any) -> Any:
        x = x.float()
        low = x.amin(dims, keepdim=True) if affine else 0.0
        scale = ((x.amax(dims, keepdim=True) - low) if affine else x.abs().amax(dims, keepdim=True)) / top + EPS
        codes = ((x - low) / scale).round().clamp(0.0 if affine else -top, top)
        return codes.to(kind), scale

    return Case(function, (draw.real(*shape, grad=False),))


def group_quantised(draw: Draw) -> Case:
    """Scales of short groups along the rows."""
    group = draw.pick(16, 32, 64, 128)
    (rows, groups), _ = draw.layout("xx", outer=(0, 19))
    fused = draw.coin()

    def function(x: Any, y: Any) -> Any:
        x = (functional.silu(x.float()) * y if fused else x.float() + y).reshape(rows, groups, group)
        scale = x.abs().amax(-1, keepdim=True).clamp(min=EPS) / 127
        return (x / scale).round().to(torch.int8).view(rows, -1), scale[..., 0]

    return Case(function, (draw.real(rows, groups * group, grad=False), draw.mixed(rows, groups * group, grad=False)))


def dequantised_sum(draw: Draw) -> Case:
    """A vector times a matrix of codes: bytes, or two halves of a byte."""
    (rows, columns), _ = draw.layout("xr", "xr", "rx")
    axis = draw.pick(0, 1, 1)
    scale = draw.saved(rows, 1)
    if draw.coin(0.4):
        packed = Input((rows, columns), torch.uint8, "integer", 255)

        def halves(q: Any, v: Any, s: Any) -> Any:
            low, high = (q & 15).float() - 8, (q >> 4).float() - 8
            return ((low * v[..., 0] + high * v[..., 1]) * s).sum(axis)

        return Case(halves, (packed, draw.real(columns, 2, grad=False), scale))
    function = draw.pick(lambda q, v, s: (q * s * v).sum(axis), lambda q, v, s: (q * s).square().mean(axis),
                         lambda q, v, s: functional.softmax(q * s + v, 1))  # fmt: skip
    return Case(function, (draw.codes(rows, columns), draw.real(columns, grad=False), scale))


def vector_norm(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    order = draw.pick(0, 1, 2, 3, 0.5, float("inf"), float("-inf"))
    difference = draw.coin()
    gap = (draw.mixed(*shape, grad=False),) if difference else ()

    def function(x: Any, *other: Any) -> Any:
        # 0.5 and 3 take a power, whose gradient at 0 is no number.
        return torch.linalg.vector_norm((x - other[0] if other else x).float() + EPS, order, dims)

    return Case(function, (draw.real(*shape, grad=order in (1, 2)), *gap))


def signal_frames(draw: Draw) -> Case:
    """Energy, zero crossings, flatness and crest of overlapping frames."""
    (channels, frames, width), _ = draw.layout("xxr", reduced=(2, 14))
    hop = max(width // 2, 1)

    def function(x: Any, window: Any) -> Any:
        cut = x.unfold(-1, width, hop).float() * window
        energy = cut.square().mean(-1)
        if flat:
            return energy, (cut.square() + EPS).log().mean(-1).exp() / (energy + EPS)
        return energy.sqrt(), (cut[..., 1:] * cut[..., :-1] < 0).sum(-1), cut.abs().amax(-1)

    flat = draw.coin()
    return Case(function, (draw.real(channels, (frames - 1) * hop + width, grad=False), draw.saved(width)), bare=True)


def pair_distance(draw: Draw) -> Case:
    """All pairs of two short lists of vectors."""
    (n, m, width), _ = draw.layout("xxr", reduced=(0, 12))
    functions = (
        lambda x, y: (x[:, None] - y).float().abs().sum(-1), lambda x, y: (x[:, None] - y).float().square().mean(-1),
        lambda x, y: (x[:, None] * y).float().sum(-1), lambda x, y: (x[:, None] - y).float().abs().amax(-1),
        lambda x, y: torch.exp(-(x[:, None] - y).float().square().sum(-1)),
        lambda x, y: torch.minimum(x[:, None], y).float().sum(-1),
    )  # fmt: skip
    return Case(draw.pick(*functions), (draw.real(n, width, grad=False), draw.real(m, width, grad=False)))


FAMILIES: tuple[Family, ...] = (
    moments, variance, correlation, entropy, extremes, arg_reduction, accuracy, nearest_centroid, any_all, counts,
    integer_sum, product, whole_tensor, many_statistics, many_inputs, quantised, group_quantised, dequantised_sum,
    vector_norm, signal_frames, pair_distance,
)  # fmt: skip
