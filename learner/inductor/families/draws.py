"""What families of workloads are drawn with: sizes, layouts, dtypes and inputs, the same for the same random numbers.

A family is a function of a `Draw` that gives a `Case`: a function of tensors and the tensors' description.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias

import torch

from tileguard.features.pow2 import is_pow2

MAX_ELEMENTS_LOG2 = 26.0
"""log2 of the most elements that a tensor may have."""

AXIS_LOG2 = (0.0, 22.0)
"""Range of log2 of all kept axes together, and of all reduced ones."""

MIN_REDUCED_LOG2 = 3.0
"""log2 of the shortest reduction: Inductor unrolls those below 8, and no reduction is left."""

BUSY_LOG2 = 8.05
"""log2 of the kept elements from which Inductor splits no reduction of the contiguous axis: two a multiprocessor."""

BUSY_ELEMENTS_LOG2 = 19.0

CHANNELS_LAST = (0, 2, 3, 1)
"""An image's axes, as `Input.order` takes them."""

LINES = ("xr", "xr", "xxr", "xxxr", "rx", "rx", "xrx", "xrxx")
"""Layouts with one reduced axis, as `Draw.layout` takes them. Every second reduces the contiguous axis."""

PLANES = (*LINES, "xrr", "rxr", "rrx", "xrxr", "xrrx", "rxrr", "r")
"""Layouts with one reduced axis or several."""


@dataclass(frozen=True, slots=True)
class Input:
    """One argument of a case. fill: what it holds.

    `normal` is standard normal; `unit` is uniform in 0.05 to 1; `integer` is uniform below `below`, negative down to
    `-below` where the dtype is int8; `mask` is true for seven of ten. order: the axes as they lie in memory, the
    contiguous one last; none is the shape's own order.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: str = "normal"
    below: int = 2
    grad: bool = False
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.fill not in ("normal", "unit", "integer", "mask"):
            raise ValueError(f"fill must be normal, unit, integer or mask, not {self.fill!r}")
        if self.grad and not self.dtype.is_floating_point:
            raise ValueError(f"no gradient of {self.dtype}")
        if self.order and sorted(self.order) != list(range(len(self.shape))):
            raise ValueError(f"order must name each of {len(self.shape)} axes once, not {self.order}")

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * int(self.dtype.itemsize)

    def build(self, device: str) -> Any:
        """The tensor."""
        order = self.order or tuple(range(len(self.shape)))
        shape = [self.shape[axis] for axis in order]
        if self.fill == "mask":
            made = torch.rand(shape, device=device) < 0.7
        elif self.fill == "integer":
            lowest = -self.below if self.dtype == torch.int8 else 0
            made = torch.randint(lowest, self.below, shape, dtype=self.dtype, device=device)
        elif self.fill == "unit":
            made = 0.05 + 0.95 * torch.rand(shape, dtype=self.dtype, device=device)
        else:
            made = torch.randn(shape, dtype=self.dtype, device=device)
        made = made.permute([order.index(axis) for axis in range(len(order))])
        return made.requires_grad_(self.grad)


@dataclass(frozen=True, slots=True)
class Case:
    """A function to compile and its arguments; the first is what it reduces. It returns a tensor or a tuple of them.

    bare: nothing may be fused in front of the first argument, whose values or dtype the function relies on.
    """

    function: Callable[..., Any]
    inputs: tuple[Input, ...]
    bare: bool = False

    @property
    def backward(self) -> bool:
        return any(one.grad for one in self.inputs)


class Draw:
    """Draws one case. dtype: that of the case's real inputs; backward: whether these want gradients.

    min_log2, max_log2: of the elements of what is reduced, where the family allows as many.
    """

    def __init__(self, random: Random, max_log2: float = MAX_ELEMENTS_LOG2, min_log2: float = 0.0) -> None:
        self._random = random
        self._max_log2 = max_log2
        self._min_log2 = min_log2
        self.dtype = self._any_dtype(0.03)
        self.backward = self.coin()

    def coin(self, probability: float = 0.5) -> bool:
        return self._random.random() < probability

    def pick(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def several(self, choices: Sequence[Any], low: int, high: int) -> list[Any]:
        """Low to high of the choices, all different, in random order."""
        return self._random.sample(choices, self._random.randint(low, high))

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def size(self, low: float, high: float) -> int:
        """One size, log-uniform between 2^low and 2^high, every second a power of two."""
        return self._sizes(self._random.uniform(low, min(high, self._max_log2)), 1)[0]

    def layout(
        self, *patterns: str, outer: tuple[float, float] = AXIS_LOG2, reduced: tuple[float, float] = AXIS_LOG2
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A shape and its reduced axes, after one of the patterns: `xrx` is three axes of which the middle is reduced.

        outer, reduced: range of log2 of the kept and of the reduced axes' product. The elements are log-uniform, and so
        is the share of either kind in them. Products of a kind are no power of two every second time.
        """
        pattern = self.pick(*patterns)
        kept, gone = pattern.count("x"), pattern.count("r")
        outer = outer if kept else (0.0, 0.0)
        while True:
            log_x, log_r = self._aspect(outer, reduced)
            sizes = {"x": iter(self._sizes(log_x, kept)), "r": iter(self._sizes(log_r, gone))}
            shape = tuple(next(sizes[kind]) for kind in pattern)
            if math.prod(shape) <= 2**self._max_log2:
                return shape, tuple(axis for axis, kind in enumerate(pattern) if kind == "r")

    def real(self, *shape: int, grad: bool = True) -> Input:
        """Normal values of the case's dtype. grad: a gradient is wanted if the case has a backward."""
        return Input(shape, self.dtype, grad=grad and self.backward)

    def mixed(self, *shape: int, grad: bool = True) -> Input:
        """As `real`, every fourth time of a dtype of its own."""
        one = self.real(*shape, grad=grad)
        return replace(one, dtype=self._any_dtype(0.0)) if self.coin(0.25) else one

    def weight(self, *shape: int) -> Input:
        """A parameter: fp32 every second time, whatever the case's dtype."""
        one = self.real(*shape)
        return replace(one, dtype=torch.float32) if self.coin() and self.dtype != torch.float64 else one

    def saved(self, *shape: int) -> Input:
        """A positive statistic that a forward pass has left in fp32."""
        return Input(shape, torch.float32, "unit")

    def unit(self, *shape: int) -> Input:
        """Values between 0.05 and 1: probabilities, positive weights."""
        return replace(self.real(*shape), fill="unit")

    def image(self, *shape: int) -> Input:
        """As `real`; every second time the channels, axis 1 of 4, lie last in memory."""
        return replace(self.real(*shape), order=CHANNELS_LAST if len(shape) == 4 and self.coin() else ())

    def mask(self, *shape: int) -> Input:
        return Input(shape, torch.bool, "mask")

    def bits(self, *shape: int) -> Input:
        """A mask of zeros and ones in uint8, as dropout keeps it."""
        return Input(shape, torch.uint8, "integer", 2)

    def indices(self, below: int, *shape: int) -> Input:
        return Input(shape, torch.int64, "integer", below)

    def codes(self, *shape: int) -> Input:
        """Quantised values, int8."""
        return Input(shape, torch.int8, "integer", 127)

    def _any_dtype(self, double: float) -> torch.dtype:
        choices = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        return self._random.choices(choices, (0.38 - double, 0.42, 0.20, double))[0]

    def _aspect(self, outer: tuple[float, float], reduced: tuple[float, float]) -> tuple[float, float]:
        """log2 of the kept and the reduced axes.

        Every tenth case is below 2^12 elements, where launches are all. Every fourth has rows enough to fill a GPU, so
        that Inductor need not split them, and elements by the million: what models do most of the time.
        """
        reduced = (max(reduced[0], MIN_REDUCED_LOG2), reduced[1])
        kind = self._random.choices(("small", "busy", "any"), (0.1, 0.25, 0.65))[0]
        most = min(self._max_log2, outer[1] + reduced[1])
        if kind == "busy" and outer[1] > BUSY_LOG2 and most > BUSY_ELEMENTS_LOG2:
            outer = (max(outer[0], BUSY_LOG2), outer[1])
        least = min(outer[0] + reduced[0], most)
        floor, ceiling = {"small": (least, 12.0), "busy": (BUSY_ELEMENTS_LOG2, most), "any": (12.0, most)}[kind]
        floor = min(max(least, floor, self._min_log2), most)
        elements = self._random.uniform(floor, max(floor, min(ceiling, most)))
        low, high = max(reduced[0], elements - outer[1]), min(reduced[1], elements - outer[0])
        log_r = self._random.uniform(min(low, high, elements), min(high, elements))
        return elements - log_r, log_r

    def _sizes(self, log2: float, count: int) -> list[int]:
        """`count` sizes with a product near 2^log2: all powers of two, or one at least that is none."""
        cuts = sorted(self._random.uniform(0.0, log2) for _ in range(count - 1))
        logs = [end - start for start, end in zip([0.0, *cuts], [*cuts, log2], strict=True)] if count else []
        sizes = [2 ** round(one) for one in logs]
        if not count or self.coin():
            return sizes
        chosen = self._random.choice(sorted(range(count), key=lambda i: logs[i])[count // 2 :])
        also = [i for i in range(count) if sizes[i] > 2 and self.coin(0.3)]
        return [self._ragged(logs[i]) if i == chosen or i in also else sizes[i] for i in range(count)]

    def _ragged(self, log2: float) -> int:
        """A size near 2^log2 that is no power of two: a multiple of 8 every second time, if it is no small one."""
        size = round(2**log2)
        if size >= 20 and self.coin():
            size = 8 * round(size / 8)
            return size + 8 * is_pow2(size)
        return size + is_pow2(size) * (2 if size == 1 else 1)


Family: TypeAlias = Callable[[Draw], Case]
"""Its name is the function's."""
