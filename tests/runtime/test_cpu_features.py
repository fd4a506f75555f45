"""Features of CPU tiles: finite everywhere, the same on every machine, and telling apart what differs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import CPU_KERNELS, HARDWARE, TILES

from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.reduction import REDUCTION_SCHEMA
from tileguard.features.tiles import LOWERINGS, ReductionTile
from tileguard.runtime.devices.base import CompileError
from tileguard.runtime.devices.cpu import cpu_kernel
from tileguard.runtime.devices.cpu.budgets import cpu_tiles
from tileguard.runtime.devices.cpu.features import (
    CPU_KERNEL_FEATURES,
    CPU_SCHEMA,
    LOG2_FOREVER,
    cpu_features,
    cpu_kernel_features,
    log2_calls,
)
from tileguard.runtime.feature_space import feature_space

NAMES = CPU_SCHEMA.names


def row(kernel: ReductionKernel, tile: ReductionTile, calls: float = math.inf) -> dict[str, float]:
    return dict(zip(NAMES, cpu_features(kernel, [tile], calls)[0].tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(CPU_KERNELS, st.lists(TILES, min_size=1, max_size=4), st.none() | st.sampled_from(LOWERINGS), st.floats(0, 1e15))
def test_features_are_finite_for_any_kernel_tile_and_number_of_calls(
    kernel: ReductionKernel, tiles: list[ReductionTile], lowering: str | None, calls: float
) -> None:
    tiles = [ReductionTile(t.xblock, t.r0_block, lowering=lowering) for t in tiles]
    found = cpu_features(kernel, tiles, calls)
    assert found.shape == (len(tiles), len(NAMES))
    assert np.isfinite(found).all()
    assert (found[:, : len(CPU_KERNEL_FEATURES)] == np.array(cpu_kernel_features(kernel, calls), dtype=float)).all()


@settings(max_examples=60, deadline=None)
@given(CPU_KERNELS)
def test_no_two_tiles_of_a_lattice_look_alike(kernel: ReductionKernel) -> None:
    found = cpu_features(kernel, cpu_tiles(kernel))
    assert len(np.unique(found, axis=0)) == len(found)


def test_calls_move_what_depends_on_them_and_nothing_else() -> None:
    kernel, tile = cpu_kernel("softmax", 64, 256, "fp32"), ReductionTile(2, 64, lowering="snapshot")
    few, many, forever = row(kernel, tile, 16), row(kernel, tile, 1024), row(kernel, tile)
    changed = {name for name in NAMES if few[name] != many[name]}
    assert changed == {"log2_calls", "log2_calls_times_work", "log2_run_over_compile"}
    assert [r["log2_calls"] for r in (few, many, forever)] == [4.0, 10.0, LOG2_FOREVER]
    assert {many[name] - few[name] for name in changed} == {6.0}
    assert log2_calls(0) == log2_calls(1) == 0.0
    assert log2_calls(1e15) < LOG2_FOREVER


def test_lowerings_differ_in_what_they_write_and_keep() -> None:
    kernel = cpu_kernel("softmax", 64, 1024, "fp32")
    loop, snapshot, select = (row(kernel, ReductionTile(2, 128, lowering=name)) for name in LOWERINGS)
    assert [r["lowering"] for r in (loop, snapshot, select)] == [0, 1, 2]
    assert loop["log2_local_bytes"] == 0 < snapshot["log2_local_bytes"]
    assert snapshot["log2_instructions"] < loop["log2_instructions"] < select["log2_instructions"]


def test_a_lowering_left_out_looks_like_the_one_that_it_means() -> None:
    passes, program = cpu_kernel("softmax", 64, 1024, "fp32"), cpu_kernel("tile_prefix", 64, 100, "fp32")
    for kernel, means in ((passes, "loop"), (program, "snapshot")):
        assert row(kernel, ReductionTile(4, 8)) == row(kernel, ReductionTile(4, 8, lowering=means))
    # `loop` is not legal for a program that carries tiles: the tile fails to compile, whatever it looks like.
    assert row(program, ReductionTile(4, 8, lowering="loop")) == row(program, ReductionTile(4, 8))


def test_rows_a_power_of_two_apart_share_sets_of_the_cache() -> None:
    apart = row(cpu_kernel("tile_rmsnorm", 64, 1000, "fp32"), ReductionTile(16, 4))
    aligned = row(cpu_kernel("tile_rmsnorm", 64, 1024, "fp32"), ReductionTile(16, 4))
    assert apart["log2_streams"] == aligned["log2_streams"]
    assert aligned["log2_streams_per_set"] == apart["log2_streams_per_set"] + 6  # 64 sets against one


def test_rows_left_over_are_turns_of_a_program_and_none_of_passes() -> None:
    program, passes = (row(cpu_kernel(op, 19, 64, "fp32"), ReductionTile(8, 4)) for op in ("tile_rmsnorm", "rmsnorm"))
    assert program["log2_row_turns"] == math.log2(2 + 3)
    assert passes["log2_row_turns"] == math.log2(3)


def test_what_the_device_cannot_generate_has_no_features() -> None:
    with pytest.raises(CompileError, match="op"):
        cpu_features(ReductionKernel(8, 8, "fp32", 1, 1), [ReductionTile(1, 1)])
    with pytest.raises(CompileError, match="the kernel says"):
        cpu_kernel_features(ReductionKernel(8, 8, "fp32", 2, 1, op="sum"), 1.0)


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda spec: spec.name)
def test_each_hardware_has_its_features(hardware: HardwareSpec) -> None:
    space = feature_space(hardware)
    of_cpu = hardware.kind == "cpu"
    assert space.schema is (CPU_SCHEMA if of_cpu else REDUCTION_SCHEMA)
    assert space.knows_calls is of_cpu
    assert space.schema.names[: len(space.kernel_names)] == space.kernel_names
    kernel, tiles = cpu_kernel("sum", 100, 1000, "bf16"), [ReductionTile(4, 64, None if of_cpu else 4)]
    found = space.rows(kernel, tiles, 100.0)
    assert found.shape == (1, len(space.schema.names))
    assert found[0, : len(space.kernel_names)].tolist() == [float(v) for v in space.of_kernel(kernel, 100.0)]
