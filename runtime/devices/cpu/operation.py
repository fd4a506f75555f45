"""What every operation of the CPU device has in common, and the elementwise vocabulary it is written in.

Two kinds exist: passes over a tile (ops.py) and tile programs (program_ops.py). Needs nothing but Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from tileguard.features.kernels import DTYPE_BYTES

CPU_DTYPES = ("fp32", "fp64", "bf16", "fp16")
"""Storage dtypes. fp64 is computed in fp64, the others in fp32."""

EPSILON = 1e-5
"""Added to the mean square (rmsnorm) or the variance (layernorm) under the root."""


def compute_bytes(dtype: str) -> int:
    """Bytes of an element while it is computed with: fp16 and bf16 are widened to fp32."""
    return max(4, DTYPE_BYTES[dtype])


class Vocabulary(Protocol):
    """What an operation may do with values; every value is a vector of one of the reader's own types."""

    def const(self, like: Any, value: float) -> Any:
        """`value` in every lane of a vector of `like`'s type."""

    def add(self, a: Any, b: Any) -> Any: ...
    def sub(self, a: Any, b: Any) -> Any: ...
    def mul(self, a: Any, b: Any) -> Any: ...
    def div(self, a: Any, b: Any) -> Any: ...
    def sqrt(self, a: Any) -> Any: ...

    def exp(self, a: Any) -> Any:
        """e^a; exactly 0 at -inf, +inf where it overflows. NaN is not propagated in fp32."""

    def max(self, a: Any, b: Any) -> Any:
        """The larger one; `b` where either is NaN."""

    def equal(self, a: Any, b: Any) -> Any:
        """A mask of the lanes where a = b."""

    def where(self, mask: Any, a: Any, b: Any) -> Any:
        """Lanes of `a` where the mask holds, of `b` elsewhere."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Operands and outputs of an operation.

    tile_inputs: names of the operands of shape [xnumel, rnumel]; row_inputs: those of shape [rnumel], shared by
    all x. mask: the last tile input is bytes, non-zero where the element counts. outputs: names; see stores_tile.
    sums_data: the result is a plain sum of its inputs, hence exact on multiples of 1/4.
    """

    name: str
    tile_inputs: tuple[str, ...]
    outputs: tuple[str, ...] = field(default=("out",), kw_only=True)
    row_inputs: tuple[str, ...] = field(default=(), kw_only=True)
    mask: bool = field(default=False, kw_only=True)
    sums_data: bool = field(default=False, kw_only=True)

    @property
    def num_load(self) -> int:
        return len(self.tile_inputs) + len(self.row_inputs)

    @property
    def num_reduction(self) -> int:
        """Reductions, 1 at least: ReductionKernel demands one, and the loop over a pointwise operation's tile is
        that of a reduction whose result nobody keeps."""
        raise NotImplementedError

    @property
    def stores_tile(self) -> bool:
        """Whether outputs are [xnumel, rnumel]; else they are one number per x each."""
        raise NotImplementedError
