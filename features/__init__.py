"""Numbers from kernels, tiles and hardware. Imports numpy and nothing heavier."""

from .errors import InvalidInput, MissingDependency, TileguardError
from .hardware import HardwareSpec, host_cpu, known_hardware
from .kernels import MatmulKernel, ReductionKernel
from .reduction import REDUCTION_SCHEMA, reduction_features
from .schema import FeatureSchema
from .tiles import MatmulTile, ReductionTile

__all__ = [
    "REDUCTION_SCHEMA", "FeatureSchema", "HardwareSpec", "InvalidInput", "MatmulKernel", "MatmulTile",
    "MissingDependency", "ReductionKernel", "ReductionTile", "TileguardError", "host_cpu",
    "known_hardware", "reduction_features",
]  # fmt: skip
