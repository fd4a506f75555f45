"""Twenty-four small graphs full of reductions, for benchmarks/inductor_h200.py: made here, with no model library.

A graph is a function, with its arguments' shapes as data: common or odd, half a million elements to nearly 2^26.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TINY = 32
"""No dimension of a tiny graph is larger."""

Outputs: TypeAlias = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Input:
    """One argument: normal values of `mean` and `scale`, or class numbers below a dimension, or a mask.

    shape: names of the graph's dimensions. grad: wants a gradient in a graph with a backward. below: int64 in 0 to this
    dimension. keep: bool, true this often.
    """

    shape: tuple[str, ...]
    grad: bool = True
    mean: float = 0.0
    scale: float = 1.0
    below: str | None = None
    keep: float | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.below is not None and self.keep is not None:
            raise ValueError("an argument is class numbers or a mask")
        if self.below is not None or self.keep is not None:
            object.__setattr__(self, "grad", False)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A function, its arguments in order, and the sizes of their dimensions. dtype: that of the normal arguments."""

    name: str
    family: str
    dtype: str
    call: Callable[..., Outputs]
    dims: Mapping[str, int]
    inputs: tuple[Input, ...]
    backward: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"{self.name}: dtype must be one of {', '.join(DTYPES)}, not {self.dtype}")
        used = {name for one in self.inputs for name in (*one.shape, *filter(None, [one.below]))}
        if used - set(self.dims):
            raise ValueError(f"{self.name}: dimensions without a size: {', '.join(sorted(used - set(self.dims)))}")


def tiny(graph: Graph) -> Graph:
    """The same graph in a size for a CPU."""
    return replace(graph, dims={name: min(size, TINY) for name, size in graph.dims.items()})


def materialise(graph: Graph, *, device: str, seed: int = 0) -> tuple[Tensor, ...]:
    """The arguments, the same in every process for one seed and kind of device."""
    random = torch.Generator(device).manual_seed(seed)

    def make(one: Input) -> Tensor:
        shape = [graph.dims[name] for name in one.shape]
        if one.below is not None:
            return torch.randint(0, graph.dims[one.below], shape, generator=random, device=device)
        if one.keep is not None:
            return torch.rand(shape, generator=random, device=device) < one.keep
        values = torch.randn(shape, generator=random, device=device)
        values = (one.mean + one.scale * values).to(DTYPES[graph.dtype])
        if one.channels_last:
            values = values.contiguous(memory_format=torch.channels_last)
        return values.requires_grad_(graph.backward and one.grad)

    return tuple(make(one) for one in graph.inputs)


def gradients_for(outputs: Outputs, *, seed: int = 1) -> tuple[Tensor, ...]:
    """What comes back to each differentiable output: random values, 1 for a loss."""
    tensors = differentiable(outputs)
    random = torch.Generator(tensors[0].device).manual_seed(seed) if tensors else None

    def make(out: Tensor) -> Tensor:
        if out.ndim == 0:
            return torch.ones_like(out)
        values = torch.randn(out.shape, generator=random, device=out.device).to(out.dtype)
        return torch.empty_like(out).copy_(values)  # strides too are the output's

    return tuple(make(out) for out in tensors)


def step(
    call: Callable[..., Outputs], inputs: Sequence[Tensor], gradients: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Outputs, then the gradients of every argument that wants one: forward, and backward where `gradients` come."""
    outputs = call(*inputs)
    found = [out.detach() for out in as_tuple(outputs)]
    leaves = [one for one in inputs if one.requires_grad]
    if gradients is not None and leaves:
        found += torch.autograd.grad(differentiable(outputs), leaves, gradients)
    return found


def as_tuple(outputs: Outputs) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def differentiable(outputs: Outputs) -> tuple[Tensor, ...]:
    return tuple(out for out in as_tuple(outputs) if out.requires_grad)


# Normalisations.


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def residual_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    stream = x + residual
    return rms_norm(stream, weight), stream


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, 32, weight, bias))


def instance_norm(x: Tensor) -> Tensor:
    return functional.instance_norm(x)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, weight, bias, training=True)


def batch_norm_tracked(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, variance, weight, bias, training=True, momentum=0.1)


# Softmax, its kin, and statistics of rows and columns.


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def logsumexp_argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.logsumexp(x, -1), x.argmax(-1)


def l2_normalise(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).add(1e-12).sqrt()


def standardise_columns(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, 0)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


# Losses.


def cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), classes)


def cross_entropy_smoothed(logits: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(logits, classes, label_smoothing=0.1)


def distillation(student: Tensor, teacher: Tensor) -> Tensor:
    return functional.kl_div(
        torch.log_softmax(student / 2.0, -1),
        torch.log_softmax(teacher / 2.0, -1),
        reduction="batchmean",
        log_target=True,
    )


def dense_nll(scores: Tensor, classes: Tensor) -> Tensor:
    return functional.nll_loss(torch.log_softmax(scores, 1), classes)


def mse(x: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(x, y)


# Attention, written out, in forms that the host does not replace by a fused kernel of a library.


def masked_attention(query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
    """Of [batch, heads, tokens, width], scores capped softly; causal, and `keep` [batch, tokens] marks real keys."""
    tokens = query.shape[-2]
    place = torch.arange(tokens, device=query.device)
    # A query always sees its own key: a row of minus infinities has no softmax.
    seen = (place[:, None] > place) & keep[:, None, None, :] | (place[:, None] == place)
    scores = 20.0 * torch.tanh(query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 / 20.0))
    return torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ value


def transformer_attention(x: Tensor, weight: Tensor, bias: Tensor, *projections: Tensor) -> tuple[Tensor, Tensor]:
    """Layer norm, heads of 64 channels, projection, residual; the heads' mean weights too.

    x: [batch, tokens, channels]; projections: query, key, value, output.
    """
    batch, tokens, channels = x.shape
    normed = functional.layer_norm(x, (channels,), weight, bias)
    query, key, value = (
        (normed @ projection).view(batch, tokens, max(4, channels // 64), -1).transpose(1, 2)
        for projection in projections[:3]
    )
    out, weights = cross_attention(query, key, value)
    return x + out.transpose(1, 2).reshape(x.shape) @ projections[3], weights.mean(1)


def cross_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Values, and the weights, which a caller wants to see."""
    weights = torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, -1)
    return weights @ value, weights


# Convolutions and their norms.


def conv_batch_norm_silu(x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(
        functional.batch_norm(functional.conv2d(x, kernel, padding=1), None, None, weight, bias, training=True)
    )


def conv_group_norm_relu(x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.relu(functional.group_norm(functional.conv2d(x, kernel, padding=1), 32, weight, bias))


def squeeze_excite(x: Tensor, squeeze: Tensor, excite: Tensor) -> Tensor:
    pooled = x.mean((-2, -1))
    return x * torch.sigmoid(functional.silu(pooled @ squeeze) @ excite)[:, :, None, None]


# Blocks of matrix products.


def gated_mlp(x: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    normed = rms_norm(x, weight)
    return x + (functional.silu(normed @ gate) * (normed @ up)) @ down


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Its backward is a column sum, as every bias's."""
    return functional.gelu(x + bias)


def _x(*shape: str, scale: float = 1.0) -> Input:
    return Input(shape=shape, scale=scale)


_GAIN = Input(shape=("c",), mean=1.0, scale=0.1)
"""A norm's weight."""

_BIAS = Input(shape=("c",), scale=0.1)
_NORM = (_GAIN, _BIAS)
_STATE = (replace(_BIAS, grad=False), replace(_GAIN, grad=False))
"""Running mean and variance."""

_CLASSES = Input(shape=("n",), below="c")
_ROWS, _IMAGE, _CONV = _x("n", "c"), _x("n", "c", "h", "w"), _x("c", "c", "3", "3", scale=0.05)
_HEADS = _x("b", "h", "t", "d")
_LAST = replace(_IMAGE, channels_last=True)

GRAPHS = (
    Graph(
        name="layer_norm", family="norm", dtype="bf16", call=layer_norm,
        dims={"n": 4096, "c": 4096}, inputs=(_ROWS, *_NORM),
    ),
    Graph(
        name="residual_rms_norm", family="norm", dtype="bf16", call=residual_rms_norm,
        dims={"n": 12288, "c": 768}, inputs=(_ROWS, _ROWS, _GAIN),
    ),
    Graph(
        name="group_norm_silu", family="norm", dtype="fp16", call=group_norm_silu,
        dims={"n": 8, "c": 320, "h": 64, "w": 64}, inputs=(_IMAGE, *_NORM),
    ),
    Graph(
        name="instance_norm", family="norm", dtype="fp32", call=instance_norm, backward=False,
        dims={"n": 8, "c": 96, "h": 127, "w": 131}, inputs=(_IMAGE,),
    ),
    Graph(
        name="batch_norm", family="norm", dtype="fp32", call=batch_norm,
        dims={"n": 32, "c": 64, "h": 75, "w": 75}, inputs=(_IMAGE, *_NORM),
    ),
    Graph(
        name="batch_norm_channels_last", family="norm", dtype="bf16", call=batch_norm_tracked,
        dims={"n": 64, "c": 128, "h": 56, "w": 56}, inputs=(_LAST, *_NORM, *_STATE),
    ),
    Graph(
        name="softmax_577", family="softmax", dtype="fp16", call=softmax,
        dims={"n": 12, "h": 16, "q": 577, "k": 577}, inputs=(_x("n", "h", "q", "k"),),
    ),
    Graph(
        name="log_softmax_32003", family="softmax", dtype="fp32", call=log_softmax,
        dims={"n": 512, "c": 32003}, inputs=(_ROWS,),
    ),
    Graph(
        name="logsumexp_argmax", family="statistics", dtype="fp32", call=logsumexp_argmax, backward=False,
        dims={"n": 4000, "c": 8192}, inputs=(_ROWS,),
    ),
    Graph(
        name="l2_normalise", family="statistics", dtype="fp32", call=l2_normalise,
        dims={"n": 30000, "c": 300}, inputs=(_ROWS,),
    ),
    Graph(
        name="standardise_columns", family="statistics", dtype="fp32", call=standardise_columns, backward=False,
        dims={"n": 100003, "c": 96}, inputs=(_ROWS,),
    ),
    Graph(
        name="cross_entropy_vocabulary", family="loss", dtype="bf16", call=cross_entropy,
        dims={"n": 1024, "c": 50257}, inputs=(_ROWS, _CLASSES),
    ),
    Graph(
        name="cross_entropy_10_classes", family="loss", dtype="fp32", call=cross_entropy_smoothed,
        dims={"n": 131072, "c": 10}, inputs=(_ROWS, _CLASSES),
    ),
    Graph(
        name="distillation_kl", family="loss", dtype="fp32", call=distillation,
        dims={"n": 512, "c": 1000}, inputs=(_ROWS, replace(_ROWS, grad=False)),
    ),
    Graph(
        name="dense_nll", family="loss", dtype="fp32", call=dense_nll,
        dims={"n": 8, "c": 21, "h": 256, "w": 255}, inputs=(_IMAGE, Input(shape=("n", "h", "w"), below="c")),
    ),
    Graph(
        name="mse", family="loss", dtype="fp32", call=mse, backward=False,
        dims={"n": 4097, "c": 8191}, inputs=(_ROWS, _ROWS),
    ),
    Graph(
        name="masked_attention", family="attention", dtype="bf16", call=masked_attention,
        dims={"b": 4, "h": 12, "t": 512, "d": 64}, inputs=(_HEADS, _HEADS, _HEADS, Input(shape=("b", "t"), keep=0.9)),
    ),
    Graph(
        name="transformer_attention", family="attention", dtype="bf16", call=transformer_attention, backward=False,
        dims={"b": 8, "t": 197, "c": 768}, inputs=(_x("b", "t", "c"), *_NORM, *[_x("c", "c", scale=0.05)] * 4),
    ),
    Graph(
        name="cross_attention", family="attention", dtype="fp16", call=cross_attention, backward=False,
        dims={"b": 8, "h": 8, "q": 4096, "k": 77, "d": 40},
        inputs=(_x("b", "h", "q", "d"), _x("b", "h", "k", "d"), _x("b", "h", "k", "d")),
    ),
    Graph(
        name="conv_batch_norm_silu", family="conv", dtype="fp16", call=conv_batch_norm_silu, backward=False,
        dims={"n": 32, "c": 64, "h": 56, "w": 56, "3": 3}, inputs=(_LAST, replace(_CONV, channels_last=True), *_NORM),
    ),
    Graph(
        name="conv_group_norm_relu", family="conv", dtype="bf16", call=conv_group_norm_relu, backward=False,
        dims={"n": 4, "c": 128, "h": 96, "w": 96, "3": 3}, inputs=(_IMAGE, _CONV, *_NORM),
    ),
    Graph(
        name="squeeze_excite", family="conv", dtype="fp16", call=squeeze_excite,
        dims={"n": 64, "c": 256, "h": 28, "w": 28, "m": 64},
        inputs=(_IMAGE, _x("c", "m", scale=0.1), _x("m", "c", scale=0.1)),
    ),
    Graph(
        name="gated_mlp", family="mlp", dtype="bf16", call=gated_mlp, dims={"n": 3000, "c": 2048, "m": 5504},
        inputs=(_ROWS, _GAIN, *[_x("c", "m", scale=0.02)] * 2, _x("m", "c", scale=0.02)),
    ),
    Graph(
        name="bias_gelu", family="mlp", dtype="fp32", call=bias_gelu, dims={"n": 30000, "c": 640}, inputs=(_ROWS, _BIAS),
    ),
)  # fmt: skip
"""All of them, in the order in which they are compiled."""


def select(names: Sequence[str] | None) -> tuple[Graph, ...]:
    """The graphs of these names, or all. Raises ValueError for a name that none has."""
    if names is None:
        return GRAPHS
    unknown = set(names) - {graph.name for graph in GRAPHS}
    if unknown:
        raise ValueError(f"no such graph: {', '.join(sorted(unknown))}")
    return tuple(graph for graph in GRAPHS if graph.name in names)
