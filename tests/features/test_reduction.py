"""Reduction features: defined for every kernel, tile and hardware, and equal to what is counted by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import CPU, HARDWARE, TILES, kernels

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.reduction import (
    KERNEL_FEATURES,
    REDUCTION_SCHEMA,
    TILE_FEATURES,
    kernel_features,
    reduction_features,
)
from tileguard.features.tiles import ReductionTile

NAMES = REDUCTION_SCHEMA.names
H200 = known_hardware("h200")
ASCEND = known_hardware("ascend910b3")


def row(kernel: ReductionKernel, tile: ReductionTile, spec: HardwareSpec) -> dict[str, float]:
    return dict(zip(NAMES, reduction_features(kernel, [tile], spec)[0].tolist(), strict=True))


@settings(max_examples=400, deadline=None)
@given(kernel=kernels(), tiles=st.lists(TILES, min_size=1, max_size=20), spec=st.sampled_from(HARDWARE))
def test_features_are_finite_of_the_right_shape_and_the_same_again(
    kernel: ReductionKernel, tiles: list[ReductionTile], spec: HardwareSpec
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matrix = reduction_features(kernel, tiles, spec)
    assert matrix.shape == (len(tiles), len(NAMES))
    assert matrix.dtype == np.float64
    assert np.isfinite(matrix).all()
    assert (matrix == reduction_features(kernel, tiles, spec)).all()


@settings(max_examples=200, deadline=None)
@given(
    kernel=kernels(),
    tiles=st.lists(TILES, min_size=1, max_size=40),
    spec=st.sampled_from(HARDWARE),
    picks=st.lists(st.integers(0, 1000), min_size=1, max_size=9),
)
def test_a_row_depends_on_its_own_tile_only(
    kernel: ReductionKernel, tiles: list[ReductionTile], spec: HardwareSpec, picks: list[int]
) -> None:
    chosen = [pick % len(tiles) for pick in picks]
    subset = reduction_features(kernel, [tiles[i] for i in chosen], spec)
    assert (subset == reduction_features(kernel, tiles, spec)[chosen]).all()


@settings(max_examples=100, deadline=None)
@given(kernel=kernels(), tile=TILES, spec=st.sampled_from(HARDWARE))
def test_the_kernels_part_of_a_row_is_kernel_features(
    kernel: ReductionKernel, tile: ReductionTile, spec: HardwareSpec
) -> None:
    matrix = reduction_features(kernel, [tile], spec)
    assert matrix[0, : len(KERNEL_FEATURES)].tolist() == [float(value) for value in kernel_features(kernel)]


@settings(max_examples=200, deadline=None)
@given(kernel=kernels(), tile=TILES, spec=st.sampled_from(HARDWARE))
def test_shares_stay_within_zero_and_one(kernel: ReductionKernel, tile: ReductionTile, spec: HardwareSpec) -> None:
    found = row(kernel, tile, spec)
    for name in ("rho", "wave_efficiency"):
        assert 0 <= found[name] <= 1, name
    for name in ("x_padding", "r_padding", "work_padding", "n_wave", "code_resident_blocks", "code_waves"):
        assert found[name] >= 1, name


def test_a_row_on_h200_is_the_one_counted_by_hand() -> None:
    # 100 outputs of 1000 fp16 elements; 4 x 256 elements by 4 warps: 25 programs of 4 trips on 132 SMs.
    kernel = ReductionKernel(100, 1000, "fp16", 2, 1, max_ptr_elem_bytes=4, total_ptr_elem_bytes=8)
    expected = {
        "log2_xnumel": math.log2(100), "log2_rnumel": math.log2(1000), "log2_x_over_r": math.log2(0.1),
        "log2_numel": math.log2(100_000), "dtype_bytes": 2, "min_ptr_bytes": 2, "max_ptr_bytes": 4,
        "total_ptr_bytes": 8, "num_load": 2, "num_store": 1, "num_reduction": 1, "buffers": 4, "inner": 1,
        "persistent": 0, "xnumel_is_pow2": 0, "rnumel_is_pow2": 0,
        "log2_xblock": 2, "log2_r0_block": 8, "log2_tile": 10, "log2_x_over_r0": -6, "num_stages": 1, "log2_warps": 2,
        "log2_elems_per_thread": 3, "log2_bytes_per_thread": 6, "log2_programs": math.log2(25),
        "log2_programs_per_core": math.log2(25 / 132), "n_wave": 1, "rho": 25 / 132, "wave_efficiency": 25 / 132,
        "log2_trips": 2, "x_padding": 1.0, "r_padding": 1.024,
        "work_padding": 1.024, "log2_tile_bytes": 13, "onchip_share": 8192 / (227 * 1024),
        "log2_contiguous_bytes": 9, "r0_block_is_pow2": 1, "x_divides": 1,
        "r_divides": 0, "x_covers": 0, "r_covers": 0, "log2_r0_over_rnumel": math.log2(0.256),
        "log2_xblock_over_xnumel": math.log2(0.04),
        # split = 2^(-2.06 + 0.59 log2(0.1)) = 0.0616; pX = round2(√(2048 split) = 11.2) = 8, pR = round2(182) = 256.
        "dist_px": 2 - 3, "dist_pr": 8 - 8, "dist_tile": 10 - 11,
    }  # fmt: skip
    found = row(kernel, ReductionTile(4, 256, 4), H200)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_a_row_on_ascend_is_the_one_counted_by_hand() -> None:
    # 64 outputs of 401408 fp32 elements, along the outputs; 4 x 1024: 16 programs of 392 trips on 40 cores, no warps.
    kernel = ReductionKernel(64, 401408, "fp32", 6, 2, inner=False)
    found = row(kernel, ReductionTile(4, 1024), ASCEND)
    expected = {
        "log2_warps": 0, "log2_programs": 4, "n_wave": 1, "rho": 0.4, "wave_efficiency": 0.4, "code_resident_blocks": 1,
        "log2_trips": math.log2(392), "r_divides": 1, "log2_tile_bytes": math.log2(4096 * 28),
        "onchip_share": 4096 * 28 * 2 / (192 * 1024), "log2_contiguous_bytes": 4,
        "dist_px": 2 - 2, "dist_pr": 10 - 11,  # the middle of the HOLE grid is X4, R2048
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("tile", "warps"), [((1, 64), 1), ((4, 256), 8), ((1, 192), 1), ((3, 128), 4), ((64, 4096), 32)]
)
def test_warps_left_out_are_derived_from_the_tile(tile: tuple[int, int], warps: int) -> None:
    kernel = ReductionKernel(4096, 4096, "fp32", 1, 1)
    assert row(kernel, ReductionTile(*tile), H200) == row(kernel, ReductionTile(*tile, warps), H200)


def test_int64_numels_neither_overflow_nor_lose_a_unit() -> None:
    kernel = ReductionKernel(3288334336, 3, "fp32", 2, 1)
    found = row(kernel, ReductionTile(1, 4, 1), H200)
    assert found["log2_programs"] == math.log2(3288334336)
    assert found["rho"] == (3288334336 % 132) / 132
    assert (found["x_padding"], found["x_divides"], found["x_covers"]) == (1.0, 1.0, 0.0)
    assert row(kernel, ReductionTile(3, 4, 1), H200)["x_divides"] == 0.0


@pytest.mark.parametrize("spec", HARDWARE, ids=lambda spec: spec.name)
@pytest.mark.parametrize("numel", [1, 2, 3, (1 << 48) - 1, 1 << 48])
def test_the_ends_of_the_numel_range_have_finite_features(spec: HardwareSpec, numel: int) -> None:
    for kernel in (
        ReductionKernel(numel, 1, "i1", 0, 1),
        ReductionKernel(1, numel, "fp64", 9, 4),
        ReductionKernel(numel, numel, "fp32", 1, 1, inner=False, persistent=True),
    ):
        assert np.isfinite(reduction_features(kernel, [ReductionTile(1, 1), ReductionTile(4096, 65536)], spec)).all()


def test_a_covered_axis_counts_one_program_and_one_trip() -> None:
    found = row(ReductionKernel(3, 5, "fp32", 1, 1), ReductionTile(4, 8, 1), H200)
    assert (found["log2_programs"], found["log2_trips"], found["x_covers"], found["r_covers"]) == (0, 0, 1, 1)
    assert (found["x_padding"], found["r_padding"]) == pytest.approx((4 / 3, 8 / 5))


def test_the_operations_name_is_no_feature() -> None:
    tile = ReductionTile(1, 8)
    assert row(ReductionKernel(3, 5, "fp32", 1, 1, op="sum"), tile, CPU) == row(
        ReductionKernel(3, 5, "fp32", 1, 1), tile, CPU
    )


def test_no_tiles_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        reduction_features(ReductionKernel(3, 5, "fp32", 1, 1), [], H200)
    assert caught.value.field == "tiles"


def test_every_feature_has_one_name() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {*KERNEL_FEATURES, *TILE_FEATURES} < set(NAMES)
