"""Features of matrix products: finite for every valid product, the same however tiles are given, and what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.matmul_world import H200, RATED, TILES, products

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.features.matmul import (
    MATMUL_KERNEL_FEATURES,
    MATMUL_SCHEMA,
    MATMUL_TILE_FEATURES,
    matmul_features,
    matmul_kernel_features,
)
from tileguard.features.matmul_time import predicted_us
from tileguard.features.tiles import MatmulTile, TileSpace

ASCEND = known_hardware("ascend950pr")


def named(kernel: MatmulKernel, tile: MatmulTile) -> dict[str, float]:
    return dict(zip(MATMUL_SCHEMA.names, matmul_features(kernel, [tile], H200)[0].tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(products(), st.lists(TILES, min_size=1, max_size=6))
def test_features_are_finite_for_every_product_and_tile(kernel: MatmulKernel, tiles: list[MatmulTile]) -> None:
    for hardware in (H200, ASCEND)[: 2 if kernel.dtype in ("bf16", "fp16", "fp8") else 1]:
        found = matmul_features(kernel, tiles, hardware)
        assert found.shape == (len(tiles), len(MATMUL_SCHEMA.names))
        assert found.dtype == np.float64
        bad = np.flatnonzero(~np.isfinite(found).all(axis=0))
        assert [MATMUL_SCHEMA.names[i] for i in bad] == []
        assert found[0, : len(MATMUL_KERNEL_FEATURES)].tolist() == matmul_kernel_features(kernel, hardware)
        space = TileSpace(tiles[:1]).with_extra(tiles)
        rows = [space.position[tile] for tile in tiles]
        assert np.array_equal(matmul_features(kernel, space, hardware)[rows], found)


def test_the_schema_is_of_its_own_family() -> None:
    assert MATMUL_SCHEMA.family == "matmul"
    assert MATMUL_SCHEMA.names == MATMUL_KERNEL_FEATURES + MATMUL_TILE_FEATURES


def test_without_a_rate_or_a_tile_there_are_no_features() -> None:
    kernel, tile = MatmulKernel(1, 64, 64, 64, "bf16"), MatmulTile(64, 64, 32, 4)
    with pytest.raises(InvalidInput, match="dtype"):
        matmul_features(replace(kernel, dtype="fp64"), [tile], H200)
    with pytest.raises(InvalidInput, match="hardware"):
        matmul_features(kernel, [tile], known_hardware("h100"))
    with pytest.raises(InvalidInput, match="tiles"):
        matmul_features(kernel, [], H200)


def test_what_the_numbers_of_one_tile_say() -> None:
    """300 x 256 x 100 of bf16 in blocks of 128 x 64 x 64: 3 x 4 blocks, two steps of k."""
    kernel, tile = MatmulKernel(1, 300, 256, 100, "bf16"), MatmulTile(128, 64, 64, 4, 3, 2)
    found = named(kernel, tile)
    assert found["log2_programs"] == np.log2(12)
    assert (found["n_wave"], found["rho"], found["even_k"]) == (1, 12 / 132, 0)
    assert found["m_padding"] == 384 / 300
    assert (found["n_padding"], found["k_padding"]) == (1, 1.28)
    assert found["log2_k_trips"] == 1
    assert found["log2_group_rows"] == 1
    assert found["log2_outputs_per_thread"] == 6
    assert found["whole_warp_groups"] == 1
    assert found["shared_share"] == (128 + 64) * 64 * 2 * 3 / H200.onchip_bytes
    assert found["log2_k_alignment"] == 2
    assert found["log2_predicted_us"] == np.log2(predicted_us(kernel, [tile], H200)[0])
    assert named(replace(kernel, k=128), tile)["even_k"] == 1
    # Of one row of blocks at a time nothing of B is shared; of eight, most of it.
    large = MatmulKernel(1, 1 << 14, 1 << 14, 1024, "bf16")
    one, eight = (named(large, replace(tile, group_m=g))["log2_l2_reuse"] for g in (1, 8))
    assert eight > one


@pytest.mark.parametrize("dtype", RATED)
def test_a_tile_without_warps_gets_those_of_its_outputs(dtype: str) -> None:
    kernel = MatmulKernel(1, 512, 512, 512, dtype)
    derived, given = (named(kernel, MatmulTile(128, 128, 32, warps))["log2_warps"] for warps in (None, 4))
    assert derived == given == 2


@pytest.mark.parametrize(
    ("dtype", "a_transposed", "b_transposed", "tile", "turned"),
    [
        ("tf32", False, True, MatmulTile(64, 64, 32, 4), 0),  # k contiguous in both
        ("tf32", False, False, MatmulTile(64, 64, 32, 4), 1),
        ("tf32", True, True, MatmulTile(64, 64, 32, 4), 1),
        ("tf32", False, False, MatmulTile(64, 64, 32, 2), 0),  # synchronous products take any order
        ("bf16", False, False, MatmulTile(64, 64, 32, 4), 0),
        ("fp32", False, False, MatmulTile(64, 64, 32, 4), 0),  # no tensor core
    ],
)
def test_asynchronous_products_turn_32_bit_operands_whose_k_is_not_contiguous(
    dtype: str, a_transposed: bool, b_transposed: bool, tile: MatmulTile, turned: int
) -> None:
    kernel = MatmulKernel(1, 512, 512, 512, dtype, None, a_transposed, b_transposed)
    found = named(kernel, tile)
    assert found["turned"] == turned
    assert found["asynchronous"] == float(tile.num_warps == 4 and dtype != "fp32" and not turned)
    assert found["operands_copied"] == 3 - turned * (a_transposed + 2 * (not b_transposed))


def test_rows_that_begin_anywhere_are_not_copied_stages_ahead() -> None:
    even, odd = (named(MatmulKernel(1, 512, 512, k, "bf16"), MatmulTile(64, 64, 32, 4, 3)) for k in (512, 329))
    assert (even["log2_a_vector_bytes"], odd["log2_a_vector_bytes"]) == (4, 1)
    assert (even["stages_ahead"], odd["stages_ahead"]) == (3, 1)
    assert (even["operands_copied"], odd["operands_copied"]) == (3, 2)
    assert (even["log2_staged_registers"], odd["log2_staged_registers"]) == (0, np.log2(64 * 32 * 2 / (4 * 128) + 1))


def test_a_low_tile_of_fp32_is_reused_more_by_fewer_warps() -> None:
    """16 x 256: with two warps a thread has 16 rows of 4 columns, with eight 4 of 4."""
    kernel = MatmulKernel(1, 4, 31552, 896, "fp32", None, False, True)
    few, many = (named(kernel, MatmulTile(16, 256, 64, warps, 3))["log2_fma_reuse"] for warps in (2, 8))
    assert (few, many) == (np.log2(64 / 20), 1)
    assert named(replace(kernel, dtype="bf16"), MatmulTile(16, 256, 64, 2, 3))["log2_fma_reuse"] == 0
