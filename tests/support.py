"""What several test modules need: random kernels and tiles, rankers made to order, corpus rows, other processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tileguard.features.code import Access, KernelCode
from tileguard.features.hardware import KNOWN, HardwareSpec
from tileguard.features.kernels import DTYPE_ALIASES, DTYPE_BYTES, ReductionKernel
from tileguard.features.reduction import REDUCTION_SCHEMA
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.cpu import CPU_DTYPES, OPS, PROGRAM_OPS, cpu_kernel
from tileguard.runtime.devices.cpu.features import CPU_SCHEMA
from tileguard.runtime.manifest import Manifest

ROOT = Path(__file__).resolve().parents[1]
CORPUS_PATH = ROOT / "corpora" / "h200-reduction-ops.parquet"
MAX_NUMEL = 1 << 48

CPU = HardwareSpec(
    "cpu-test", "cpu", cores=1, onchip_bytes=32 * 1024, onchip_overhead=1.0, l2_bytes=1024 * 1024, dram_bytes_per_s=1e10
)
HARDWARE = (*KNOWN.values(), CPU)


def around_power(exponent: int, offset: int) -> int:
    """2^exponent + offset, within 1 to 2^48."""
    return max(1, min((1 << exponent) + offset, MAX_NUMEL))


NUMELS = st.one_of(
    st.integers(1, 300),
    st.integers(1, MAX_NUMEL),
    st.builds(around_power, st.integers(0, 48), st.integers(-1, 1)),
)
DTYPES = st.sampled_from([*DTYPE_BYTES, *DTYPE_ALIASES])


def codes() -> st.SearchStrategy[KernelCode]:
    """What a source might say, sense or not."""
    step, run, flag = st.sampled_from([0, 1, 2, 8, 272, 1 << 30]), st.integers(1, 1 << 48), st.booleans()
    count = st.integers(1, 9)
    access = st.builds(
        Access, store=flag, nbytes=st.sampled_from([1, 2, 4, 8]), along_x=flag, along_r=flag, step_x=step, step_r=step,
        run_x=run, run_r=run, align=st.sampled_from([1, 2, 4, 8, 16]), indirect=flag, count=count, buffers=count,
    )  # fmt: skip
    some = st.integers(0, 40)
    return st.builds(KernelCode, st.lists(access, max_size=6).map(tuple), some, some, some, some, some)


def _some_codes(n: int) -> tuple[KernelCode, ...]:
    draw = Random(0)
    pick: Callable[..., int] = lambda *choices: draw.choice(choices)
    return tuple(
        KernelCode(
            tuple(
                Access(
                    bool(pick(0, 1)), pick(1, 2, 4, 8), bool(pick(0, 1)), bool(pick(0, 1)), pick(0, 1, 2, 8, 272, 1 << 30),
                    pick(0, 1, 8, 128, 1 << 30), draw.randint(1, 1 << draw.randint(0, 48)), draw.randint(1, 4096),
                    pick(1, 2, 4, 8, 16), pick(0, 0, 0, 1) == 1, count := draw.randint(1, 9), count,
                )
                for _ in range(draw.randint(0, 6))
            ),
            *(draw.randint(0, 40) for _ in range(5)),
        )
        for _ in range(n)
    )  # fmt: skip


SOME_CODES = _some_codes(60)
"""Drawn once: drawing a code anew for every kernel takes longer than what is tested."""


@st.composite
def kernels(draw: st.DrawFn) -> ReductionKernel:
    """Any valid kernel with numels up to 2^48."""
    low, high = sorted((draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4, 8]))))
    sized = draw(st.booleans())
    return ReductionKernel(
        xnumel=draw(NUMELS),
        rnumel=draw(NUMELS),
        dtype=draw(DTYPES),
        num_load=draw(st.integers(0, 12)),
        num_reduction=draw(st.integers(1, 6)),
        num_store=draw(st.integers(1, 6)),
        min_ptr_elem_bytes=low if sized else None,
        max_ptr_elem_bytes=high if sized else None,
        total_ptr_elem_bytes=draw(st.none() | st.integers(1, 64)),
        inner=draw(st.booleans()),
        persistent=draw(st.booleans()),
        code=draw(st.none() | st.sampled_from(SOME_CODES)),
    )


CPU_KERNELS = st.builds(
    cpu_kernel, st.sampled_from([*OPS, *PROGRAM_OPS]), NUMELS, NUMELS, st.sampled_from(CPU_DTYPES), inner=st.booleans()
)
"""Any kernel of the CPU device."""

TILES = st.builds(
    ReductionTile,
    xblock=st.integers(0, 16).map(lambda e: 1 << e) | st.integers(1, 1 << 16),
    r0_block=st.integers(0, 17).map(lambda e: 1 << e) | st.integers(1, 1 << 17),
    num_warps=st.sampled_from([None, 1, 2, 4, 8, 16, 32]),
    num_stages=st.integers(1, 4),
)
"""Any tile, of any hardware or of none."""


def pseudo_scores(tiles: Sequence[ReductionTile], *, levels: int = 1 << 32) -> npt.NDArray[np.float64]:
    """A score a tile that depends on nothing else, without a pattern; few `levels` make ties."""
    return np.array([crc32(repr(tile.sort_key).encode()) % levels for tile in tiles], dtype=np.float64)


@dataclass
class FakeRanker:
    """A ranker whose scores are whatever `behave` makes of the tiles; `calls` counts."""

    manifest: Manifest
    behave: Callable[[Sequence[ReductionTile]], Any] = pseudo_scores
    calls: int = 0

    def score(
        self, kernel: ReductionKernel, tiles: Sequence[ReductionTile], calls: float = math.inf
    ) -> npt.NDArray[np.float64]:
        self.calls += 1
        scores: npt.NDArray[np.float64] = self.behave(tiles)
        return scores


def manifest_for(
    hardware: str,
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    onnx_sha256: str = "0" * 64,
    **changes: Any,
) -> Manifest:
    """A manifest of the hardware's present schema; without `ranges` it was trained on everything."""
    schema = CPU_SCHEMA if hardware.startswith("cpu-") else REDUCTION_SCHEMA
    everywhere = dict.fromkeys(schema.names, (-1e30, 1e30))
    manifest = Manifest(
        family="reduction", hardware=hardware, schema_version=schema.version,
        schema_digest=schema.digest, feature_names=schema.names, ranges=ranges or everywhere,
        onnx_sha256=onnx_sha256, diversity=1.0, corpora={}, command="test", seed=0, parameters={}, libraries={},
        metrics={}, calibration=(), mlflow_run_id=None, created="2026-01-01T00:00:00+00:00", tileguard_version="0",
    )  # fmt: skip
    return replace(manifest, **changes)


def corpus_row(**changes: Any) -> dict[str, Any]:
    """One valid row of a corpus, with `changes`."""
    row: dict[str, Any] = {
        "kernel_id": "k0", "workload": "sum:1", "family": "sum", "hardware": "h200", "op": None,
        "xnumel": 100, "rnumel": 1000, "dtype": "fp32", "num_load": 1, "num_store": 1, "num_reduction": 1,
        "min_ptr_elem_bytes": 4, "max_ptr_elem_bytes": 4, "total_ptr_elem_bytes": 8, "inner": True,
        "persistent": False, "code": None, "source": None,
        "xblock": 1, "r0_block": 256, "num_warps": 4, "num_stages": 1, "lowering": None,
        "status": "ok", "error": None, "compile_ms": 100.0, "us": 3.0, "us_median": 3.0, "us_min": 2.9,
        "us_mad": 0.05, "reps": 20, "n_regs": None, "n_spills": None, "shared": None,
        "host_default_rank": None, "host_max_autotune_rank": None,
    }  # fmt: skip
    return row | changes


def failed_row(status: str, **changes: Any) -> dict[str, Any]:
    """A row of a candidate that failed with `status`: no times."""
    empty = dict.fromkeys(("compile_ms", "us", "us_median", "us_min", "us_mad", "reps"))
    return corpus_row(status=status, error=status, **empty) | changes


def corpus_rows(times: Iterable[Sequence[float]]) -> list[dict[str, Any]]:
    """Kernels k0, k1, … of one family each, with one tile a time: XBLOCK 1, 2, 4, …"""
    return [
        corpus_row(
            kernel_id=f"k{k}", workload=f"f{k}:1", family=f"f{k}", xnumel=100 + k, xblock=1 << i,
            us=us, us_median=us, us_min=us,
        )
        for k, column in enumerate(times)
        for i, us in enumerate(column)
    ]  # fmt: skip


def python(code: str, *args: str, timeout: float = 120.0, **env: str) -> str:
    """Standard output of `code` run by a fresh interpreter that finds the package; fails on a bad exit."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TILEGUARD")}
    paths = [str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment | env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
