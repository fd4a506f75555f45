"""What a tile moves, counted by hand on kernels whose layout is plain to see."""

from __future__ import annotations

import math

import pytest

from tileguard.features.access import ACCESS_FEATURES, CODE_FEATURES
from tileguard.features.code import Access, KernelCode
from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.reduction import REDUCTION_SCHEMA, reduction_features
from tileguard.features.tiles import ReductionTile

H200 = known_hardware("h200")
X, R = 4096, 128


def row(access: Access, tile: ReductionTile, **counts: int) -> dict[str, float]:
    wanted = {"loops": 1, "accumulators": 1, "special": 0, "arithmetic": 1, "reductions": 1} | counts
    kernel = ReductionKernel(X, R, "fp32", 1, 1, code=KernelCode((access,), **wanted))
    return dict(zip(REDUCTION_SCHEMA.names, reduction_features(kernel, [tile], H200)[0].tolist(), strict=True))


def load(step_x: int, step_r: int, *, run_x: int = X, run_r: int = R, align: int = 16, nbytes: int = 4) -> Access:
    return Access(False, nbytes, True, True, step_x, step_r, run_x, run_r, align)


def test_rows_are_read_in_runs_of_a_block() -> None:
    found = row(load(R, 1), ReductionTile(4, 32, 4))
    assert found["log2_mean_run_bytes"] == math.log2(32 * 4)
    assert found["log2_traffic_waste"] == 0.0  # four whole sectors
    assert found["log2_trip_bytes"] == pytest.approx(math.log2(4 * 32 * 4 + 1))


def test_whole_rows_that_lie_side_by_side_are_one_run() -> None:
    assert row(load(R, 1), ReductionTile(4, R, 4))["log2_mean_run_bytes"] == math.log2(4 * R * 4)
    padded = row(load(R + 8, 1), ReductionTile(4, R, 4))
    assert padded["log2_mean_run_bytes"] == math.log2(R * 4)


def test_a_short_run_wastes_the_rest_of_its_sectors() -> None:
    found = row(load(1, 64, run_x=2, align=2), ReductionTile(64, 8, 4))
    assert found["log2_mean_run_bytes"] == math.log2(2 * 4)
    # runs of 8 bytes that begin at a multiple of 8: 1 + 4/32 sectors each on average, 32 bytes for 8
    assert found["log2_traffic_waste"] == pytest.approx(math.log2(1.125 * 32 / 8))


def test_runs_that_lie_end_to_end_along_the_other_axis_are_one() -> None:
    found = row(load(1, 8, run_x=8), ReductionTile(64, 16, 4))
    assert found["log2_mean_run_bytes"] == math.log2(8 * 16 * 4)


def test_an_odd_start_halves_the_vector_and_costs_a_sector() -> None:
    aligned, odd = (row(load(R, 1, align=align), ReductionTile(4, 32, 1)) for align in (16, 1))
    assert aligned["log2_mean_vector_bytes"] == 4.0
    assert odd["log2_mean_vector_bytes"] == 2.0
    assert odd["log2_traffic_waste"] > aligned["log2_traffic_waste"] == 0.0


def test_more_accumulators_leave_fewer_blocks_resident() -> None:
    few, many = (row(load(R, 1), ReductionTile(32, 128, 4), accumulators=n) for n in (1, 6))
    assert many["code_resident_blocks"] < few["code_resident_blocks"]
    assert many["log2_code_registers"] > few["log2_code_registers"]


def test_what_all_programs_share_is_no_traffic_of_its_own() -> None:
    weights = Access(False, 4, False, True, 0, 1, X, R, 16)
    found = row(weights, ReductionTile(32, 128, 4))
    assert found["bytes_of_r"] == 4
    assert found["log2_shared_bytes"] == pytest.approx(math.log2(128 * 4 + 1))
    # 128 programs read the row again and again; it has 512 bytes
    assert found["log2_reread_share"] == pytest.approx(math.log2(128 * 128 * 4 + 1) - math.log2(R * 4))


def test_passes_count_every_loop() -> None:
    assert row(load(R, 1), ReductionTile(1, 32, 1), loops=3)["passes"] == 3 * R / 32


def test_names_are_distinct() -> None:
    assert len(set(CODE_FEATURES + ACCESS_FEATURES)) == len(CODE_FEATURES) + len(ACCESS_FEATURES)
