"""Families of losses: over classes, pairs, embeddings, masks, boxes and distributions."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .draws import PLANES, Case, Draw, Family

EPS = 1e-6


def cross_entropy(draw: Draw) -> Case:
    """Few classes, many rows; every third time of pixels, whose classes are a middle axis."""
    shape, dims = draw.layout("xr", "xr", "xrx", reduced=(1, 11))
    classes = shape[1]
    form = draw.pick("mean", "sum", "none")
    labels = draw.indices(classes, *(size for axis, size in enumerate(shape) if axis not in dims))
    weight = draw.saved(classes)
    if draw.coin(0.3):
        return Case(lambda x, y, w: functional.cross_entropy(x.float(), y, w, reduction=form),
                    (draw.real(*shape), labels, weight))  # fmt: skip
    return Case(lambda x, y: functional.cross_entropy(x.float(), y, reduction=form), (draw.real(*shape), labels))


def vocabulary_cross_entropy(draw: Draw) -> Case:
    (rows, words), _ = draw.layout("xr", reduced=(13, 18), outer=(3, 13))
    cap = draw.pick(None, 30.0)

    def function(x: Any, y: Any) -> Any:
        logits = x.float() if cap is None else cap * torch.tanh(x.float() / cap)
        log_z = torch.logsumexp(logits, -1)
        return (log_z - logits.gather(1, y[:, None])[:, 0]).mean() + 1e-4 * log_z.square().mean()

    plain = draw.coin()
    return Case(
        (lambda x, y: functional.cross_entropy(x.float(), y)) if plain else function,
        (draw.real(rows, words), draw.indices(words, rows)),
    )


def label_smoothing(draw: Draw) -> Case:
    (rows, classes), _ = draw.layout("xr", reduced=(1, 16))

    def manual(x: Any, y: Any) -> Any:
        log_p = functional.log_softmax(x.float(), -1)
        return (-0.9 * log_p.gather(-1, y[:, None])[:, 0] - 0.1 * log_p.mean(-1)).mean()

    if draw.coin(0.4):
        soft = draw.unit(rows, classes)
        return Case(lambda x, t: -(t * functional.log_softmax(x.float(), -1)).sum(-1).mean(),
                    (draw.real(rows, classes), soft))  # fmt: skip
    library = draw.coin()
    return Case(
        (lambda x, y: functional.cross_entropy(x.float(), y, label_smoothing=0.1)) if library else manual,
        (draw.real(rows, classes), draw.indices(classes, rows)),
    )


def masked_token_loss(draw: Draw) -> Case:
    """The mean over the tokens that count, and how many of them are right."""
    (rows, words), _ = draw.layout("xr", reduced=(3, 17))
    metrics = draw.coin()

    def function(x: Any, y: Any, keep: Any) -> Any:
        losses = torch.logsumexp(x.float(), -1) - x.gather(1, y[:, None])[:, 0]
        loss = (losses * keep).sum() / (keep.sum() + 1)
        return (loss, ((x.argmax(-1) == y) & keep).sum()) if metrics else loss

    def ignoring(x: Any, y: Any, keep: Any) -> Any:
        return functional.cross_entropy(x.float(), torch.where(keep, y, -100), reduction="sum") / (keep.sum() + 1)

    inputs = (draw.real(rows, words), draw.indices(words, rows), draw.mask(rows))
    return Case(draw.pick(function, ignoring), inputs)


def binary_cross_entropy(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    functions = (
        lambda x, t, w: functional.binary_cross_entropy_with_logits(x.float(), t.float(), reduction="none").mean(dims),
        lambda x, t, w: functional.binary_cross_entropy_with_logits(x.float(), t.float(), pos_weight=w),
        lambda x, t, w: (functional.softplus(x.float()) - x * t + w * x.abs()).sum(dims),
    )
    target = draw.pick(draw.mask, draw.bits, draw.saved)(*shape)
    return Case(draw.pick(*functions), (draw.real(*shape), target, draw.saved(shape[-1])))


def focal_loss(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)

    def function(x: Any, t: Any, valid: Any) -> Any:
        x = x.float()
        p, hit = torch.sigmoid(x), t.float()
        likely = p * hit + (1 - p) * (1 - hit)
        loss = functional.binary_cross_entropy_with_logits(x, hit, reduction="none") * (1 - likely).square()
        return (torch.where(valid, loss, 0.0) * (0.25 + 0.5 * hit)).sum(dims) / (valid.sum(dims) + 1)

    return Case(function, (draw.real(*shape), draw.pick(draw.mask, draw.bits)(*shape), draw.mask(*shape)))


def dice_loss(draw: Draw) -> Case:
    shape, dims = draw.layout("xxrr", "xr", "xrx", "rxrr", "rx")
    alpha = draw.pick(0.5, 0.3)

    def function(x: Any, t: Any) -> Any:
        p = torch.sigmoid(x.float())
        both, false, missed = ((p * t).sum(dims), (p * (1 - t.float())).sum(dims), ((1 - p) * t).sum(dims))
        return 1 - (both + 1) / (both + alpha * false + (1 - alpha) * missed + 1)

    return Case(function, (draw.real(*shape), draw.pick(draw.bits, draw.mask, draw.saved)(*shape)))


def regression_loss(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    loss = draw.pick(
        lambda x, y: (x - y).square(), lambda x, y: (x - y).abs(), lambda x, y: ((x - y).square() + 1e-4).sqrt(),
        lambda x, y: functional.huber_loss(x.float(), y.float(), reduction="none", delta=0.7),
        lambda x, y: functional.smooth_l1_loss(x.float(), y.float(), reduction="none"),
        lambda x, y: (x - y) + functional.softplus(-2.0 * (x - y).float()),
        lambda x, y: torch.maximum(0.9 * (x - y), -0.1 * (x - y)),
    )  # fmt: skip
    whole = draw.coin()
    if draw.coin(0.4):
        return Case(
            lambda x, y, keep: (loss(x, y) * keep).sum(dims) / keep.sum(dims).clamp(min=1),
            (draw.real(*shape), draw.mixed(*shape, grad=False), draw.pick(draw.mask, draw.bits)(*shape)),
        )
    return Case(lambda x, y: loss(x, y).mean() if whole else loss(x, y).mean(dims),
                (draw.real(*shape), draw.mixed(*shape)))  # fmt: skip


def distillation_loss(draw: Draw) -> Case:
    (rows, classes), _ = draw.layout("xr", reduced=(1, 17))
    temperature = draw.pick(1.0, 2.0, 4.0)

    def forward(x: Any, y: Any) -> Any:
        log_p, log_q = (functional.log_softmax(one.float() / temperature, -1) for one in (x, y))
        return (log_q.exp() * (log_q - log_p)).sum(-1).mean()

    def symmetric(x: Any, y: Any) -> Any:
        p, q = torch.softmax(x.float(), -1), torch.softmax(y.float(), -1)
        log_m = (0.5 * (p + q) + EPS).log()
        return 0.5 * (p * ((p + EPS).log() - log_m) + q * ((q + EPS).log() - log_m)).sum(-1)

    return Case(
        draw.pick(forward, forward, symmetric), (draw.real(rows, classes), draw.mixed(rows, classes, grad=False))
    )


def contrastive_loss(draw: Draw) -> Case:
    """Of a matrix of similarities: its rows' and its columns' cross entropy with the diagonal, or pairwise sigmoids."""
    n = draw.size(3, 12)

    def both(x: Any, scale: Any) -> Any:
        logits = x.float() * scale
        own = logits.diagonal()
        return (torch.logsumexp(logits, 1) - own).mean() + (torch.logsumexp(logits, 0) - own).mean()

    def sigmoids(x: Any, scale: Any) -> Any:
        here = torch.arange(n, device=x.device)
        sign = torch.where(here[:, None] == here, 1.0, -1.0)
        return -functional.logsigmoid(sign * x.float() * scale).sum(-1).mean()

    return Case(draw.pick(both, sigmoids), (draw.real(n, n), draw.saved(1)))


def triplet_loss(draw: Draw) -> Case:
    (rows, width), _ = draw.layout("xr")
    order = draw.pick(1, 2)
    cosine = draw.coin(0.3)

    def distance(a: Any, b: Any) -> Any:
        if cosine:
            return 1 - functional.cosine_similarity(a, b, -1)
        gap = (a - b).float().abs()
        return gap.sum(-1) if order == 1 else (gap.square().sum(-1) + EPS).sqrt()

    def function(a: Any, p: Any, n: Any) -> Any:
        return functional.relu(distance(a, p) - torch.minimum(distance(a, n), distance(p, n)) + 0.2)

    return Case(function, tuple(draw.real(rows, width) for _ in range(3)))


def cosine_similarity(draw: Draw) -> Case:
    shape, dims = draw.layout("xr", "xxr", "xrx", "xrxx", "rx")
    other = draw.pick(shape, tuple(1 if axis not in dims else size for axis, size in enumerate(shape)))

    def function(x: Any, y: Any) -> Any:
        return functional.cosine_similarity(x.float(), y.float(), dim=dims[0], eps=EPS)

    return Case(function, (draw.real(*shape), draw.mixed(*other)))


def gaussian_likelihood(draw: Draw) -> Case:
    shape, dims = draw.layout(*PLANES)
    functions = (
        lambda m, v, y: ((m - y).square() * torch.exp(-v.float()) + v).mean(dims),
        lambda m, v, y: -0.5 * (1 + v - m.square() - torch.exp(v.float())).sum(dims),
        lambda m, v, y: (
            (0.5 * (y - m).square() * torch.exp(-v.float()) + v).sum(dims)
            - 0.5 * (1 + v - m.square() - torch.exp(v.float())).mean(dims)
        ),
    )
    return Case(draw.pick(*functions), (draw.real(*shape), draw.mixed(*shape), draw.mixed(*shape, grad=False)))


def count_likelihood(draw: Draw) -> Case:
    """Poisson, negative binomial and gamma deviances."""
    shape, dims = draw.layout(*PLANES)
    functions = (
        lambda x, y: (torch.exp(x.float()) - y * x).mean(dims),
        lambda x, y: (torch.lgamma(y.float() + 2) + (y + 2) * functional.softplus(-x.float()) + x.abs()).sum(dims),
        lambda x, y: (x + y * torch.exp(-x.float())).mean(dims),
    )
    return Case(draw.pick(*functions), (draw.real(*shape), draw.pick(draw.saved, draw.bits)(*shape)))


def margin_loss(draw: Draw) -> Case:
    """Hinges against the right class's score, its angle widened, or the best wrong one's."""
    (rows, classes), _ = draw.layout("xr", reduced=(1, 16))

    def hinge(x: Any, y: Any) -> Any:
        return functional.relu(1 + x - x.gather(1, y[:, None])).square().mean(-1)

    def widened(x: Any, y: Any) -> Any:
        own = y[:, None] == torch.arange(classes, device=x.device)
        return torch.logsumexp(16 * (torch.tanh(x.float()) - 0.3 * own), -1).mean()

    def best_wrong(x: Any, y: Any) -> Any:
        own = y[:, None] == torch.arange(classes, device=x.device)
        return functional.relu(1 + x.masked_fill(own, -1e4).amax(-1) - torch.where(own, x, 0.0).sum(-1))

    return Case(draw.pick(hinge, widened, best_wrong), (draw.real(rows, classes), draw.indices(classes, rows)))


def policy_loss(draw: Draw) -> Case:
    """A clipped ratio of policies, an entropy and a value's error, over the steps that count."""
    (steps, actions), _ = draw.layout("xr", reduced=(1, 16))

    def function(x: Any, action: Any, old: Any, advantage: Any, value: Any, returns: Any, keep: Any) -> Any:
        log_p = functional.log_softmax(x.float(), -1)
        ratio = torch.exp(log_p.gather(1, action[:, None])[:, 0] - old)
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return ((0.5 * (value - returns).square() - gain - 0.01 * entropy) * keep).sum() / (keep.sum() + 1)

    step = draw.saved(steps)
    return Case(function, (draw.real(steps, actions), draw.indices(actions, steps), step, step, draw.mixed(steps),
                           step, draw.mask(steps)))  # fmt: skip


def preference_loss(draw: Draw) -> Case:
    """Of two answers' token likelihoods against a reference's, summed over the answers' tokens."""
    (rows, tokens), _ = draw.layout("xr", reduced=(1, 18))

    def function(good: Any, bad: Any, good_old: Any, bad_old: Any, keep: Any, keep_bad: Any) -> Any:
        won = ((good.float() - good_old) * keep).sum(-1)
        lost = ((bad.float() - bad_old) * keep_bad).sum(-1)
        return -functional.logsigmoid(0.1 * (won - lost)), keep.sum(-1), 0.1 * won.detach()

    logs, mask = draw.real(rows, tokens), draw.pick(draw.mask, draw.bits)(rows, tokens)
    reference = draw.mixed(rows, tokens, grad=False)
    return Case(function, (logs, logs, reference, reference, mask, mask))


def box_overlap(draw: Draw) -> Case:
    """Overlaps of all pairs of boxes: each box's best partner, or the mean loss of matched ones."""
    (n, m), _ = draw.layout("xr")

    def function(a: Any, b: Any) -> Any:
        one, two = a[:, None].float(), b[None].float()
        low, high = torch.maximum(one[..., :2], two[..., :2]), torch.minimum(one[..., 2:], two[..., 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        area = (one[..., 2:] - one[..., :2]).prod(-1).abs() + (two[..., 2:] - two[..., :2]).prod(-1).abs()
        return (shared / (area - shared + 1)).max(-1)

    return Case(function, (draw.real(n, 4, grad=False), draw.real(m, 4, grad=False)))


def smoothness_loss(draw: Draw) -> Case:
    """Differences of neighbouring pixels, plain or where an image is even."""
    shape, dims = draw.layout("xxrr", "xrr", reduced=(4, 22))
    shape = (*shape[:-2], shape[-2] + 1, shape[-1] + 1)

    def plain(x: Any, y: Any) -> Any:
        across, down = (x[..., 1:] - x[..., :-1]).abs(), (x[..., 1:, :] - x[..., :-1, :]).abs()
        return across.float().sum(dims) + down.float().sum(dims), (x - y).float().square().mean(dims)

    def weighed(x: Any, y: Any) -> Any:
        even = torch.exp(-(y[..., 1:] - y[..., :-1]).float().abs())
        return ((x[..., 1:] - x[..., :-1]).abs() * even).mean(dims)

    return Case(draw.pick(plain, weighed), (draw.real(*shape), draw.real(*shape, grad=False)))


def structural_similarity(draw: Draw) -> Case:
    """Means, variances and covariance of two images' blocks."""
    shape, dims = draw.layout("xrxr", "xxrr", "xr", reduced=(2, 22))

    def function(x: Any, y: Any) -> Any:
        x, y = x.float(), y.float()
        mx, my = x.mean(dims, keepdim=True), y.mean(dims, keepdim=True)
        vx, vy = ((x - mx).square().mean(dims), (y - my).square().mean(dims))
        both = ((x - mx) * (y - my)).mean(dims)
        return (2 * (mx * my).reshape(both.shape) + 0.01) * (2 * both + 0.03) / (vx + vy + 0.03)

    return Case(function, (draw.real(*shape), draw.mixed(*shape)))


FAMILIES: tuple[Family, ...] = (
    cross_entropy, vocabulary_cross_entropy, label_smoothing, masked_token_loss, binary_cross_entropy, focal_loss,
    dice_loss, regression_loss, distillation_loss, contrastive_loss, triplet_loss, cosine_similarity,
    gaussian_likelihood, count_likelihood, margin_loss, policy_loss, preference_loss, box_overlap, smoothness_loss,
    structural_similarity,
)  # fmt: skip
