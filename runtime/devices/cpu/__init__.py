"""The CPU device: reductions generated, compiled and timed on this machine. Importing it does not need llvmlite."""

from .budgets import CpuBudgets, check_budgets, cpu_tiles
from .device import CpuDevice
from .ops import CPU_DTYPES, OPS, cpu_kernel
from .timing import BenchRecipe

__all__ = ["CPU_DTYPES", "OPS", "BenchRecipe", "CpuBudgets", "CpuDevice", "check_budgets", "cpu_kernel", "cpu_tiles"]
