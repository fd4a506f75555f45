"""Numbers from kernels, tiles and hardware. Imports numpy and nothing heavier."""

from .errors import InvalidInput, MissingDependency, TileguardError
from .hardware import HardwareSpec, hardware, host_cpu
from .kernels import MatmulKernel, ReductionKernel
from .reduction import REDUCTION_SCHEMA, reduction_features
from .schema import FeatureSchema
from .tiles import MatmulTile, ReductionTile
from .waves import Waves, waves

__all__ = [
    "REDUCTION_SCHEMA", "FeatureSchema", "HardwareSpec", "InvalidInput", "MatmulKernel", "MatmulTile",
    "MissingDependency", "ReductionKernel", "ReductionTile", "TileguardError", "Waves", "hardware", "host_cpu",
    "reduction_features", "waves",
]  # fmt: skip
