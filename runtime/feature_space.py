"""Which numbers describe kernels and tiles of a family on a hardware: of reductions one set for GPUs and NPUs, another
for the CPU device; of matrix products one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput, checked_choice
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import MatmulKernel, ReductionKernel
from tileguard.features.reduction import KERNEL_FEATURES, REDUCTION_SCHEMA, kernel_features, reduction_features
from tileguard.features.schema import FeatureSchema
from tileguard.features.tiles import MatmulTile

from .devices.base import CandidateError

FloatArray = npt.NDArray[np.float64]


REDUCTION, MATMUL = "reduction", "matmul"
FAMILIES = (REDUCTION, MATMUL)

MAX_SUPPORTED_NUMEL = 1 << 48
"""Features of reductions are defined, and tested, up to this element count on either axis."""


@dataclass(frozen=True, slots=True)
class FeatureSpace:
    """A schema and what computes it, for the kernels and tiles of one family.

    kernel_names: the features that no tile changes; of_kernel(kernel, calls) gives them, rows(kernel, tiles, calls) all
    of them as float64[n, d]. knows_calls: whether the number of calls is one of them; where not, only run time can be
    ranked by. Both raise a CandidateError for a kernel that the hardware's device cannot generate. beyond: in words, why
    features are not defined for a kernel; "" where they are.
    """

    schema: FeatureSchema
    kernel_names: tuple[str, ...]
    of_kernel: Callable[[Any, float], list[float]]
    rows: Callable[[Any, Sequence[Any], float], FloatArray]
    knows_calls: bool
    beyond: Callable[[Any], str]


def feature_space(hardware: HardwareSpec, family: str = REDUCTION) -> FeatureSpace:
    """The features of a family's kernels on a hardware. Raises InvalidInput for an unknown family."""
    if checked_choice("family", family, FAMILIES) == MATMUL:
        return _matmul_space(hardware)
    if hardware.kind == "cpu":
        from .devices.cpu import features as cpu

        return FeatureSpace(
            cpu.CPU_SCHEMA, cpu.CPU_KERNEL_FEATURES,
            cpu.cpu_kernel_features, cpu.cpu_features, True, _beyond,
        )  # fmt: skip
    return FeatureSpace(
        REDUCTION_SCHEMA, KERNEL_FEATURES, lambda kernel, calls: kernel_features(kernel),
        lambda kernel, tiles, calls: reduction_features(kernel, tiles, hardware), False, _beyond,
    )  # fmt: skip


def _matmul_space(hardware: HardwareSpec) -> FeatureSpace:
    # Imported here: most processes never see a matrix product.
    from tileguard.features import matmul, matmul_time

    def check(kernel: MatmulKernel) -> None:
        try:
            matmul_time.rated_unit(kernel, hardware)
        except InvalidInput as error:
            raise CandidateError(str(error)) from None

    def of_kernel(kernel: MatmulKernel, calls: float) -> list[float]:
        check(kernel)
        return matmul.matmul_kernel_features(kernel, hardware)

    def rows(kernel: MatmulKernel, tiles: Sequence[MatmulTile], calls: float) -> FloatArray:
        check(kernel)  # a rate that is not known is the kernel's fault, no tiles the caller's
        return matmul.matmul_features(kernel, tiles, hardware)

    return FeatureSpace(
        matmul.MATMUL_SCHEMA, matmul.MATMUL_KERNEL_FEATURES, of_kernel, rows, False, lambda kernel: ""
    )  # fmt: skip


def _beyond(kernel: ReductionKernel) -> str:
    if max(kernel.xnumel, kernel.rnumel) > MAX_SUPPORTED_NUMEL:
        return f"numels above 2^48: {kernel.xnumel} x {kernel.rnumel}"
    return ""


FOREVER = math.inf
"""Calls of a kernel whose compiling costs nothing."""
