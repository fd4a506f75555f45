"""Matrix products on a machine that is not there: a corpus to train on, and rankers and kernels to try a selector with."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.features.matmul import MATMUL_SCHEMA
from tileguard.features.matmul_time import predicted_us
from tileguard.features.tiles import MatmulTile
from tileguard.runtime.manifest import Manifest
from tileguard.runtime.matmul_tiles import matmul_lattice, planner_tiles

from .support import manifest_for

H200 = known_hardware("h200")
RATED = ("bf16", "fp16", "tf32", "fp32", "fp8")
FAMILIES = ("prefill", "decode", "square", "odd", "attention", "long_k")

SIZES = st.integers(1, 1 << 20) | st.integers(0, 20).map(lambda e: 1 << e) | st.just(1 << 20)
TILES = st.builds(
    MatmulTile, *[st.sampled_from([1, 16, 24, 64, 128, 256, 1 << 50])] * 3, st.sampled_from([None, 1, 3, 4, 8]),
    st.integers(1, 6), st.sampled_from([1, 4, 8, 1 << 40]),
)  # fmt: skip
"""Any tile, of a host or of none."""


@st.composite
def products(draw: st.DrawFn, *, dtypes: tuple[str, ...] = RATED) -> MatmulKernel:
    """A product; one side may be as long as 2^62, and its matrices as large."""
    batch, m, n, k = draw(st.integers(1, 1 << 12)), draw(SIZES), draw(SIZES), draw(SIZES)
    if draw(st.booleans()):
        long = draw(st.integers(0, 62).map(lambda e: 1 << e))
        batch, m, n, k = draw(st.permutations((1, 1, 1, long)))
    elif draw(st.booleans()):
        batch, m, n, k = draw(st.sampled_from([(1, 1 << 31, 1 << 31, 1), (1 << 20, 1 << 21, 1 << 21, 1 << 21)]))
    return MatmulKernel(
        batch, m, n, k, draw(st.sampled_from(dtypes)), draw(st.sampled_from([None, "fp32"])), draw(st.booleans()),
        draw(st.booleans()),
    )  # fmt: skip


def matmul_manifest(hardware: str = "h200", **changes: Any) -> Manifest:
    """A manifest of the present schema, trained on everything."""
    names = MATMUL_SCHEMA.names
    of_schema = replace(
        manifest_for(hardware), family="matmul", schema_version=MATMUL_SCHEMA.version, feature_names=names,
        schema_digest=MATMUL_SCHEMA.digest, ranges=dict.fromkeys(names, (-1e30, 1e30)),
    )  # fmt: skip
    return replace(of_schema, **changes)


def simulated_machine() -> HardwareSpec:
    """Not what the planner believes: faster L2, slower tensor cores, fewer SMs."""
    assert H200.matmul is not None
    unit = replace(
        H200.matmul, flops_per_core=0.6 * H200.matmul.flops_per_core,
        l2_bytes_per_s_per_core=1.7 * H200.matmul.l2_bytes_per_s_per_core,
    )  # fmt: skip
    return replace(H200, name="simulated", cores=120, matmul=unit)


def simulated_us(kernel: MatmulKernel, tiles: list[MatmulTile], draw: np.random.Generator) -> npt.NDArray[np.float64]:
    """The planner's time with that machine's constants, what a compiler makes of a tile, 2 µs of launching and 1 % noise."""
    us = predicted_us(kernel, tiles, simulated_machine())
    efficiency = np.array(
        [
            (0.8 if tile.num_stages < 3 else 1.0)
            * (0.85 if tile.block_m * tile.block_n <= 64 * 64 and kernel.k > 1024 else 1.0)
            * (0.9 if (tile.num_warps or 4) == 8 and tile.block_m < 128 else 1.0)
            * (0.95 if kernel.k % tile.block_k else 1.0)
            for tile in tiles
        ]
    )
    noise = np.exp(draw.normal(0.0, 0.01, len(tiles)))
    return np.asarray((us / efficiency + 2.0) * noise, dtype=np.float64)


def simulated_rows(*, kernels: int = 30, tiles: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a corpus of products under the name h200: the planner's tiles, a host's list, a sample of the lattice."""
    random, noise = Random(seed), np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number in range(kernels):
        family = FAMILIES[number % len(FAMILIES)]
        kernel = _drawn(family, random)
        lattice = list(matmul_lattice(kernel, H200))
        host = random.sample(lattice, min(6, len(lattice)))
        sampled = random.sample(lattice, min(tiles, len(lattice)))
        chosen = list(dict.fromkeys([*host, *planner_tiles(kernel, H200), *sampled]))[: max(tiles, 16)]
        us = simulated_us(kernel, chosen, noise)
        aten = None if number % 7 == 0 else float(1.05 * us.min())
        rows += [_row(kernel, tile, time, number, family, aten, host) for tile, time in zip(chosen, us, strict=True)]
    return rows


def _drawn(family: str, random: Random) -> MatmulKernel:
    def size(low: int, high: int) -> int:
        return 1 << random.randint(low, high)

    dtype = random.choice(("bf16", "fp16", "tf32"))
    batch, m, n, k = {
        "prefill": (1, size(11, 13), size(8, 12), size(9, 12)),
        "decode": (size(1, 5), size(0, 6), size(9, 12), size(9, 12)),
        "square": (1, *[size(8, 12)] * 3),
        "odd": (1, size(8, 11) + 1, size(8, 11) + 3, size(6, 10) + 5),
        "attention": (size(3, 7), size(8, 11), size(8, 11), size(5, 7)),
        "long_k": (1, size(6, 9), size(6, 9), size(12, 14)),
    }[family]
    return MatmulKernel(batch, m, n, k, dtype, None, random.random() < 0.2, random.random() < 0.5)


def _row(
    kernel: MatmulKernel, tile: MatmulTile, us: float, number: int, family: str, aten: float | None,
    host: list[MatmulTile],
) -> dict[str, Any]:  # fmt: skip
    return {
        "kernel_id": f"p{number:02d}", "workload": f"{family}:{number}", "family": family, "hardware": "h200",
        "op": "bmm" if kernel.batch > 1 else "mm", **{name: getattr(kernel, name) for name in MatmulKernel.__slots__},
        "allow_tf32": kernel.dtype == "tf32", "decompose_k": False, "aten_us": aten, "source": None,
        **{name: getattr(tile, name) for name in MatmulTile.__slots__}, "even_k": kernel.k % tile.block_k == 0,
        "status": "ok", "error": None, "compile_ms": 900.0, "us": float(us), "us_median": float(us),
        "us_min": float(0.99 * us), "us_mad": 0.01, "reps": 20, "n_regs": None, "n_spills": None, "shared": None,
        "host_default_rank": host.index(tile) if tile in host else None, "host_max_autotune_rank": None,
    }  # fmt: skip
