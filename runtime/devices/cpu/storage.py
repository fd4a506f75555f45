"""Numbers in the device's storage dtypes, as numpy sees them (bf16 as the bits of uint16)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

STORAGE: dict[str, type[np.generic]] = {
    "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "bf16": np.uint16,
}  # fmt: skip

EPS = {"fp64": 2.0**-52, "fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}
"""Distance of 1 to the next number, relative to 1."""

TINY = {"fp64": 2.0**-1022, "fp32": 2.0**-126, "fp16": 2.0**-24, "bf16": 2.0**-126}
"""Absolute error always allowed: subnormal results may be rounded to it or flushed."""


def compute_dtype(dtype: str) -> type[np.floating[Any]]:
    """What the device computes in."""
    return np.float64 if dtype == "fp64" else np.float32


def to_storage(values: Array, dtype: str) -> Array:
    """Floats to the nearest numbers of `dtype`, ties to even."""
    if dtype != "bf16":
        return np.asarray(values).astype(STORAGE[dtype])
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def widened(stored: Array, dtype: str) -> Array:
    """Stored numbers in the dtype they are computed in, exactly."""
    if dtype != "bf16":
        return stored.astype(compute_dtype(dtype))
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
