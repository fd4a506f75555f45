"""The planner's Triton tiles: legal, few, the same every time; and what their predicted times go by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import DTYPE_BYTES, MatmulKernel
from tileguard.features.matmul import matmul_features
from tileguard.features.matmul_time import MatmulTimes, fma_slowdown, matmul_times, predicted_us
from tileguard.features.pow2 import is_pow2
from tileguard.features.tiles import MatmulTile, matmul_columns, tile_columns
from tileguard.runtime.matmul_tiles import MOST, fits, matmul_lattice, planner_tiles
from tileguard.runtime.tail.plan import plan_tail

H200 = known_hardware("h200")
RATED = ("bf16", "fp16", "tf32", "fp32", "fp8")
PRODUCT = MatmulKernel(1, 100, 200, 300, "bf16")
SIZES = st.integers(1, 1 << 20) | st.integers(0, 20).map(lambda e: 1 << e)


@st.composite
def products(draw: st.DrawFn) -> MatmulKernel:
    return MatmulKernel(
        draw(st.integers(1, 1 << 12)), draw(SIZES), draw(SIZES), draw(SIZES), draw(st.sampled_from(RATED)), None,
        draw(st.booleans()), draw(st.booleans()),
    )  # fmt: skip


@given(products())
def test_every_tile_is_one_that_triton_takes_and_that_fits(kernel: MatmulKernel) -> None:
    tiles = planner_tiles(kernel, H200)
    assert tiles or (kernel.dtype == "fp8" and kernel.k <= 16)  # whose least BLOCK_K is 32
    assert len(set(tiles)) == len(tiles) <= MOST
    assert tiles == planner_tiles(kernel, H200)
    for tile in tiles:
        assert min(tile.block_m, tile.block_n) >= 16
        assert tile.block_k >= (32 if kernel.dtype == "fp8" else 16)
        assert all(map(is_pow2, (tile.block_m, tile.block_n, tile.block_k, tile.num_warps or 0)))
        assert fits(tile, kernel, H200)
        step_bytes = (tile.block_m + tile.block_n) * tile.block_k * kernel.elem_bytes
        assert tile.num_warps is not None
        asynchronous = tile.block_m >= 64 and tile.num_warps % 4 == 0
        assert step_bytes * max(1, tile.num_stages - (not asynchronous)) <= H200.onchip_bytes
        assert tile.block_m * tile.block_n <= 128 * 32 * tile.num_warps  # accumulators of a thread
        assert tile.block_m * tile.block_n >= 256 * tile.num_warps
        assert 1 <= tile.num_stages <= 5


@given(products())
def test_times_are_positive_finite_and_first_comes_the_least(kernel: MatmulKernel) -> None:
    tiles = planner_tiles(kernel, H200)
    times = predicted_us(kernel, tiles, H200)
    assert times.dtype == np.float64
    assert times.shape == (len(tiles),)
    assert np.isfinite(times).all()
    assert (times > 0).all()
    assert (times[:1] <= times).all()
    alone = [predicted_us(kernel, (tile,), H200)[0] for tile in tiles]
    assert times.tolist() == alone


@pytest.mark.parametrize(
    "kernel",
    [
        MatmulKernel(1, 1, 1, 1, "bf16"),
        MatmulKernel(1, 1 << 62, 1, 1, "fp16"),
        MatmulKernel(1 << 62, 1, 1, 1, "fp16"),
        MatmulKernel(1, 1, 1, 1 << 62, "tf32"),
        MatmulKernel(1 << 20, 1 << 21, 1 << 21, 1, "fp32"),
    ],
)
def test_the_ends_of_the_sizes_have_tiles_and_times(kernel: MatmulKernel) -> None:
    tiles = planner_tiles(kernel, H200)
    assert tiles
    assert np.isfinite(predicted_us(kernel, (*tiles, MatmulTile(1 << 70, 1 << 70, 1 << 70)), H200)).all()
    assert predicted_us(kernel, (), H200).shape == (0,)


@pytest.mark.parametrize("dtype", sorted(set(DTYPE_BYTES) - set(RATED)))
def test_a_dtype_without_a_rate_gets_no_tile_and_no_time(dtype: str) -> None:
    kernel = MatmulKernel(1, 64, 64, 64, dtype)
    assert planner_tiles(kernel, H200) == ()
    with pytest.raises(InvalidInput, match="dtype"):
        predicted_us(kernel, (MatmulTile(64, 64, 32, 4),), H200)


def test_hardware_without_a_matrix_unit_gets_none() -> None:
    kernel = MatmulKernel(1, 64, 64, 64, "bf16")
    for name in ("h100", "ascend910b3", "ascend950pr", "cpu"):
        assert planner_tiles(kernel, known_hardware(name)) == ()
    with pytest.raises(InvalidInput, match="hardware"):
        predicted_us(kernel, (MatmulTile(64, 64, 32, 4),), known_hardware("h100"))


def times_of(kernel: MatmulKernel, tiles: list[MatmulTile], hardware: HardwareSpec = H200) -> MatmulTimes:
    return matmul_times(kernel, matmul_columns(tiles), hardware)


def test_the_bound_is_waves_by_a_blocks_longest_part() -> None:
    """4096 of everything: 512 blocks of 128 x 256 in 4 waves of 132; loads from L2 outlast arithmetic."""
    kernel, tile = MatmulKernel(1, 4096, 4096, 4096, "bf16"), MatmulTile(128, 256, 64, 8, 3)
    load_us = 1e6 * (128 + 256) * 4096 * 2 * 132 / 5.5e12
    compute_us = 1e6 * 2 * 128 * 256 * 4096 * 132 / 989e12
    assert times_of(kernel, [tile]).bound_us[0] == pytest.approx(4 * load_us)
    assert times_of(kernel, [replace(tile, num_stages=1)]).bound_us[0] == pytest.approx(4 * (load_us + compute_us))
    # One block more is a wave more.
    waves = [times_of(MatmulKernel(1, 128 * n, 256, 4096, "bf16"), [tile]).bound_us[0] for n in (132, 133)]
    assert waves[1] == pytest.approx(2 * waves[0])


def test_a_time_adds_what_is_waited_for_and_what_overlaps_imperfectly() -> None:
    """One block a core, 4 turns of 64 steps: 0.6 µs each, of which with three stages two are on their way at once."""
    kernel, tile = MatmulKernel(1, 4096, 4096, 4096, "bf16"), MatmulTile(128, 256, 64, 8, 3)
    deep, flat = times_of(kernel, [tile, replace(tile, num_stages=1)]).waiting_us
    assert deep == pytest.approx(4 * 64 * 0.6 / 2)
    assert flat == pytest.approx(2 * 64 * 0.6)  # whose buffers leave room for two blocks
    found = times_of(kernel, [tile])
    parts = found.blocks_us**3 + found.memory_us**3 + deep**3
    assert predicted_us(kernel, [tile], H200)[0] == pytest.approx(parts[0] ** (1 / 3))
    # Blocks that share a core wait together: eight of 32 x 32 do.
    small = MatmulTile(32, 32, 64, 4, 3)
    many = MatmulKernel(1, 32 * 132, 32 * 8, 4096, "bf16")
    assert times_of(many, [small]).waiting_us[0] == pytest.approx(64 * 0.6 / 2)
    # Rows that begin anywhere come through a thread's registers: nothing is on its way ahead.
    odd = replace(kernel, k=4097)
    assert times_of(odd, [tile]).waiting_us[0] == pytest.approx(4 * 65 * 0.6)
    assert times_of(odd, [tile]).crowding[0] == pytest.approx((128 * 256 + 64 * 128) / (256 * 128))


def test_without_tensor_cores_reads_of_shared_memory_outlast_the_arithmetic() -> None:
    """4 x 31,552 x 896 of an H200's corpus: two warps of 16 x 256 are the fastest, four take twice as long."""
    kernel = MatmulKernel(1, 4, 31552, 896, "fp32", None, False, True)
    two, four = MatmulTile(16, 256, 64, 2, 3), MatmulTile(16, 256, 64, 4, 3)
    slowdown = fma_slowdown(kernel, matmul_columns([two, four]), H200)
    # 16 or 8 rows and 4 columns a thread: 1.1 x its multiply-adds, a clock for each row, 5.3 for each column.
    assert slowdown.tolist() == pytest.approx([(17.6 + 16 + 21.2) / 16, (8.8 + 8 + 21.2) / 8])
    across = fma_slowdown(replace(kernel, b_transposed=False), matmul_columns([two]), H200)
    assert across[0] == pytest.approx((17.6 + 16) / 16)
    tiles = planner_tiles(kernel, H200)
    assert (tiles[0].block_m, tiles[0].block_n) == (16, 256)
    assert tiles[0].num_warps in (1, 2)
    one, other = times_of(replace(kernel, dtype="bf16"), [two, four]).slowed_us
    assert one == other == times_of(replace(kernel, dtype="bf16"), [two]).blocks_us[0]


def test_a_decode_step_takes_what_its_weights_take_and_wide_groups_share_more() -> None:
    weights = MatmulKernel(1, 16, 1 << 16, 1 << 14, "bf16")
    tile = planner_tiles(weights, H200)[0]
    assert tile.block_m == 16
    assert predicted_us(weights, [tile], H200)[0] >= 1e6 * weights.input_bytes / 4.8e12
    large = MatmulKernel(1, 1 << 15, 1 << 15, 1 << 12, "fp8")
    narrow, wide = (MatmulTile(64, 64, 128, 4, 4, group) for group in (1, 8))
    one, eight = predicted_us(large, [narrow, wide], H200)
    assert eight <= one


def test_synchronous_products_are_slower_and_an_fp32_one_knows_no_tensor_core() -> None:
    kernel = MatmulKernel(64, 1024, 1024, 64, "bf16")
    fast = replace(H200, matmul=replace(H200.matmul, l2_bytes_per_s_per_core=1e18, gm_bytes_per_s_per_core=1e18))  # type: ignore[type-var]
    fast = replace(fast, dram_bytes_per_s=1e18)
    asynchronous, synchronous = MatmulTile(64, 64, 64, 4, 2), MatmulTile(64, 64, 64, 2, 2)
    one, other = times_of(kernel, [asynchronous, synchronous], fast).bound_us
    assert other == pytest.approx(one / 0.63)
    one, other = times_of(replace(kernel, dtype="fp32"), [asynchronous, synchronous], fast).bound_us
    assert other == one


@pytest.mark.parametrize(
    "call",
    [
        lambda: planner_tiles(PRODUCT, "h200"),  # type: ignore[arg-type]
        lambda: planner_tiles((1, 128, 128, 128), H200),  # type: ignore[arg-type]
        lambda: matmul_lattice(PRODUCT, None),  # type: ignore[arg-type]
        lambda: matmul_features(PRODUCT, [(128, 128, 64)], H200),  # type: ignore[list-item]
        lambda: matmul_features("mm", [MatmulTile(128, 128, 64)], H200),  # type: ignore[arg-type]
        lambda: plan_tail(PRODUCT, "h200"),  # type: ignore[arg-type]
        lambda: plan_tail("mm", H200),  # type: ignore[arg-type]
        lambda: tile_columns([MatmulTile(128, 128, 64)]),  # type: ignore[list-item]
    ],
)
def test_what_is_no_kernel_no_tile_and_no_hardware_is_named(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match=r"a MatmulKernel|a HardwareSpec|a MatmulTile|a ReductionTile"):
        call()
