"""Groups of kernels that are told apart in reports: of reductions by rnumel, of matrix products by waves of blocks."""

from __future__ import annotations

from collections.abc import Mapping

from tileguard.features.anchor import regime
from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import MatmulKernel

from .corpus import KernelSweep, MatmulSweep

BLOCK = 128
"""Side of the blocks that waves are counted by: about what a large product takes."""

REGIMES: Mapping[str, tuple[str, ...]] = {
    "reduction": ("small", "mid", "hole"),
    "matmul": ("under_a_wave", "few_waves", "many_waves"),
}
"""By family, in order. The waves of a product on its hardware: up to 1, where smaller tiles or nothing fill the cores;
up to 4, where the last, partial wave costs most; and beyond, where a tile's own speed counts. The working set would tell
less: it decides what feeds a block, not which blocks there should be."""

TITLES: Mapping[str, str] = {"reduction": "regime of rnumel", "matmul": f"waves of {BLOCK} x {BLOCK} blocks"}

FEW_WAVES = 4.0


def regime_of(sweep: KernelSweep | MatmulSweep) -> str:
    """The regime of a sweep's kernel on the hardware that it was measured on."""
    kernel = sweep.kernel
    if not isinstance(kernel, MatmulKernel):
        return regime(kernel.rnumel)
    blocks = kernel.batch * (-(-kernel.m // BLOCK)) * (-(-kernel.n // BLOCK))
    under, few, many = REGIMES["matmul"]
    waves = blocks / known_hardware(sweep.hardware).cores
    return under if waves <= 1 else few if waves <= FEW_WAVES else many
