"""Powers of two by integer arithmetic: math.log2 rounds 2^49 - 1 up to 49."""

from __future__ import annotations

import math


def pow2_floor(n: int) -> int:
    """Largest power of two <= n, exact for any integer n >= 1."""
    return 1 << (n.bit_length() - 1)


def pow2_ceil(n: int) -> int:
    """Smallest power of two >= n, exact for any integer n >= 1."""
    return 1 << (n - 1).bit_length()


def pow2_round(value: float) -> int:
    """Power of two nearest to `value` in log scale; 1 below 1. Ties go to the even exponent, as the RFC's round()."""
    return 1 if value < 1 else 1 << round(math.log2(value))


def is_pow2(n: int) -> bool:
    """Whether n >= 1 is a power of two."""
    return n & (n - 1) == 0
