"""The vocabulary of operation.py read to count instructions. Needs nothing but Python."""

from __future__ import annotations

from typing import Any


class Counter:
    """A Vocabulary that counts."""

    def __init__(self, dtype: str) -> None:
        self.total = 0
        self.load, self.store = {"fp16": (2, 2), "bf16": (4, 8)}.get(dtype, (1, 1))
        # fp64 calls libm once a lane: eight lanes of extract, call, insert and spill.
        self.exponential = 32 if dtype == "fp64" else 20

    def const(self, like: Any, value: float) -> None:
        return None

    def add(self, a: Any, b: Any) -> None:
        self.total += 1

    sub = mul = div = max = equal = add

    def sqrt(self, a: Any) -> None:
        self.total += 1

    def exp(self, a: Any) -> None:
        self.total += self.exponential

    def where(self, mask: Any, a: Any, b: Any) -> None:
        self.total += 1
