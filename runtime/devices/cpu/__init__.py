"""The CPU device: reductions generated, compiled and timed on this machine. Importing it does not need llvmlite."""

from .budgets import CpuBudgets, check_budgets, cpu_tiles
from .device import CpuDevice
from .lowering import legal_lowerings
from .operation import CPU_DTYPES
from .ops import OPS, cpu_kernel
from .program_ops import PROGRAM_OPS
from .timing import BenchRecipe

__all__ = [
    "CPU_DTYPES", "OPS", "PROGRAM_OPS", "BenchRecipe", "CpuBudgets", "CpuDevice", "check_budgets", "cpu_kernel",
    "cpu_tiles", "legal_lowerings",
]  # fmt: skip
