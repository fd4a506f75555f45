"""Families of softmaxes and of what attention, routing and mixtures reduce."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .draws import LINES, PLANES, Case, Draw, Family

EPS = 1e-5
ATTENTION = "xxxr"
"""Batch, heads, queries, keys."""


def softmax(draw: Draw) -> Case:
    shape, dims = draw.layout(*LINES)
    scale = draw.pick(1.0, 0.125, 0.7)
    if draw.coin():
        return Case(lambda x: torch.softmax(x * scale, dims[0]), (draw.real(*shape),))
    return Case(lambda x: torch.softmax(x.float() * scale, dims[0]).to(x.dtype), (draw.real(*shape),))


def log_softmax(draw: Draw) -> Case:
    shape, dims = draw.layout(*LINES)
    kind = draw.pick(None, torch.float32)
    return Case(lambda x: functional.log_softmax(x, dims[0], dtype=kind), (draw.real(*shape),))


def masked_softmax(draw: Draw) -> Case:
    (b, h, q, k), _ = draw.layout(ATTENTION, reduced=(2, 16))
    mask = draw.mask(*draw.pick((b, h, q, k), (b, 1, q, k), (b, 1, 1, k), (q, k), (1, k)))
    scale, causal = draw.pick(1.0, 0.125), draw.coin(0.3)

    def function(x: Any, keep: Any) -> Any:
        if causal:
            keep = keep & (torch.arange(k, device=x.device) <= torch.arange(q, device=x.device)[:, None])
        return torch.softmax((x.float() * scale).masked_fill(~keep, -1e4), -1).to(x.dtype)

    return Case(function, (draw.real(b, h, q, k), mask))


def biased_softmax(draw: Draw) -> Case:
    """Scores with a bias by distance, by a table of buckets, or learned for every pair."""
    (b, h, q, k), _ = draw.layout(ATTENTION, reduced=(2, 16))
    inputs = (
        draw.real(b, h, q, k),
        draw.weight(h, 1, 1),
        draw.mixed(*draw.pick((h, q, k), (1, 1, q, k), (b, 1, 1, k))),
    )
    if draw.coin(0.4):

        def bucketed(x: Any, table: Any, bucket: Any) -> Any:
            return torch.softmax(x.float() + table[:, bucket].float(), -1).to(x.dtype)

        return Case(bucketed, (inputs[0], draw.weight(h, 32), draw.indices(32, q, k)))

    def function(x: Any, slope: Any, bias: Any) -> Any:
        distance = torch.arange(k, device=x.device) - torch.arange(q, device=x.device)[:, None]
        return torch.softmax(x.float() * 0.125 + slope * distance + bias, -1).to(x.dtype)

    return Case(function, inputs)


def softcap_softmax(draw: Draw) -> Case:
    (b, h, q, k), _ = draw.layout(ATTENTION, reduced=(2, 16))
    cap, window = draw.pick(15.0, 30.0, 50.0), draw.pick(None, max(k // 4, 1))

    def function(x: Any) -> Any:
        scores = cap * torch.tanh(x.float() / cap)
        if window is not None:
            behind = torch.arange(q, device=x.device)[:, None] - torch.arange(k, device=x.device)
            scores = scores.masked_fill((behind < 0) | (behind > window), -1e4)
        return torch.softmax(scores, -1).to(x.dtype)

    return Case(function, (draw.real(b, h, q, k),))


def attention_dropout(draw: Draw) -> Case:
    (b, h, q, k), _ = draw.layout(ATTENTION, reduced=(2, 16))
    keep = draw.pick(draw.bits, draw.mask)(b, h, q, k)

    def function(x: Any, added: Any, keep: Any) -> Any:
        weights = torch.softmax(x.float() * 0.125 + added, -1)
        return (weights * keep * 1.25).to(x.dtype), weights.to(x.dtype)

    return Case(function, (draw.real(b, h, q, k), draw.mixed(b, 1, 1, k, grad=False), keep))


def sink_softmax(draw: Draw) -> Case:
    """A softmax with one more logit in its denominator, which belongs to the head."""
    (b, h, q, k), _ = draw.layout(ATTENTION)

    def function(x: Any, sink: Any) -> Any:
        top = torch.maximum(x.amax(-1, keepdim=True), sink)
        weights = (x.float() - top).exp()
        return (weights / (weights.sum(-1, keepdim=True) + (sink - top).exp())).to(x.dtype)

    return Case(function, (draw.real(b, h, q, k), draw.weight(h, 1, 1)))


def decode_attention(draw: Draw) -> Case:
    """One query against a cache of keys and values, with no matrix product."""
    (n, s, d), _ = draw.layout("xrx", reduced=(2, 16), outer=(2, 18))
    lengths = draw.coin()

    def function(k: Any, v: Any, q: Any, lens: Any) -> Any:
        scores = (k * q).sum(-1).float() * d**-0.5
        if lengths:
            scores = scores.masked_fill(torch.arange(s, device=k.device) > lens, -1e4)
        return (torch.softmax(scores, -1)[..., None] * v).sum(1).to(k.dtype)

    cache = draw.real(n, s, d)
    return Case(function, (cache, cache, draw.real(n, 1, d), draw.indices(s, n, 1)))


def linear_attention(draw: Draw) -> Case:
    (n, s, d), _ = draw.layout("xrx", reduced=(1, 18))
    feature = draw.pick(lambda x: functional.elu(x) + 1, functional.relu, lambda x: torch.softmax(x, 1))

    def function(k: Any, q: Any) -> Any:
        total = feature(k.float()).sum(1, keepdim=True)
        return (feature(q.float()) * total).sum(-1) + EPS, total

    return Case(function, (draw.real(n, s, d), draw.real(n, s, d)))


def state_space_output(draw: Draw) -> Case:
    """A state's decay and update, summed over the state's own short axis."""
    (b, c, state), _ = draw.layout("xxr", reduced=(1, 8))

    def function(h: Any, a: Any, u: Any, into: Any, out: Any, skip: Any) -> Any:
        after = h * torch.exp(-a.float()) + u[..., None] * into[:, None]
        return ((after * out[:, None]).sum(-1) + u * skip).to(h.dtype), after.to(h.dtype)

    return Case(function, (draw.real(b, c, state), draw.saved(c, state), draw.mixed(b, c), draw.mixed(b, state),
                           draw.mixed(b, state), draw.weight(c)))  # fmt: skip


def log_sum_exp(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    function = draw.pick(
        lambda x: torch.logsumexp(x.float(), dims),
        lambda x: torch.logsumexp(x, dims).square().mean(),
        lambda x: (x - torch.logsumexp(x, dims, keepdim=True), torch.logsumexp(x, dims)),
    )
    return Case(function, (draw.real(*shape),))


def router(draw: Draw) -> Case:
    """Experts of tokens: weights, the best one, how often each is best and how likely."""
    (tokens, experts), _ = draw.layout("xr", reduced=(1, 9))

    def function(x: Any, bias: Any) -> Any:
        weights = torch.softmax(x.float(), -1)
        top, index = (weights + bias).max(-1)
        chosen = (index[:, None] == torch.arange(experts, device=x.device)).float().mean(0)
        return top, index, (chosen * weights.mean(0)).sum() * experts

    return Case(function, (draw.real(tokens, experts), draw.saved(experts)))


def gumbel_softmax(draw: Draw) -> Case:
    shape, dims = draw.layout(*LINES)

    def function(x: Any, uniform: Any, temperature: Any) -> Any:
        return torch.softmax((x - (-uniform.float().log() + EPS).log()) / temperature, dims[0]).to(x.dtype)

    return Case(function, (draw.real(*shape), draw.saved(*shape), draw.saved(1)))


def spatial_softmax(draw: Draw) -> Case:
    """The expected place of a feature in its map."""
    (b, c, h, w), _ = draw.layout("xxrr")

    def function(x: Any) -> Any:
        weights = torch.softmax(x.float().flatten(2), -1).reshape(x.shape)
        down = torch.linspace(-1, 1, h, device=x.device)[:, None]
        return (weights * down).sum((2, 3)), (weights * torch.linspace(-1, 1, w, device=x.device)).sum((2, 3))

    return Case(function, (draw.real(b, c, h, w),))


def mixture_density(draw: Draw) -> Case:
    (n, d, k), _ = draw.layout("xxr", "xxr", reduced=(1, 8))

    def function(mean: Any, log_std: Any, logits: Any, y: Any) -> Any:
        z = (y[..., None] - mean.float()) * torch.exp(-log_std)
        return -torch.logsumexp(-0.5 * z * z - log_std + functional.log_softmax(logits.float(), -1), -1).mean(-1)

    parameter = draw.real(n, d, k)
    return Case(function, (parameter, parameter, parameter, draw.mixed(n, d, grad=False)))


FAMILIES: tuple[Family, ...] = (
    softmax, log_softmax, masked_softmax, biased_softmax, softcap_softmax, attention_dropout, sink_softmax,
    decode_attention, linear_attention, state_space_output, log_sum_exp, router, gumbel_softmax, spatial_softmax,
    mixture_density,
)  # fmt: skip
