"""Which numbers describe kernels and tiles on a hardware: one set for GPUs and NPUs, another for the CPU device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.reduction import KERNEL_FEATURES, REDUCTION_SCHEMA, kernel_features, reduction_features
from tileguard.features.schema import FeatureSchema
from tileguard.features.tiles import ReductionTile

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FeatureSpace:
    """A schema and what computes it.

    kernel_names: the features that no tile changes; of_kernel(kernel, calls) gives them, rows(kernel, tiles, calls) all
    of them as float64[n, d]. knows_calls: whether the number of calls is one of them; where not, only run time can be
    ranked by. Both raise a CandidateError for a kernel that the hardware's device cannot generate.
    """

    schema: FeatureSchema
    kernel_names: tuple[str, ...]
    of_kernel: Callable[[ReductionKernel, float], list[float]]
    rows: Callable[[ReductionKernel, Sequence[ReductionTile], float], FloatArray]
    knows_calls: bool


def feature_space(hardware: HardwareSpec) -> FeatureSpace:
    """The features of reductions on a hardware."""
    if hardware.kind == "cpu":
        from .devices.cpu import features as cpu

        return FeatureSpace(
            cpu.CPU_SCHEMA, cpu.CPU_KERNEL_FEATURES,
            cpu.cpu_kernel_features, cpu.cpu_features, True,
        )  # fmt: skip
    return FeatureSpace(
        REDUCTION_SCHEMA, KERNEL_FEATURES, lambda kernel, calls: kernel_features(kernel),
        lambda kernel, tiles, calls: reduction_features(kernel, tiles, hardware), False,
    )  # fmt: skip


FOREVER = math.inf
"""Calls of a kernel whose compiling costs nothing."""
