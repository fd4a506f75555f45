"""Operations, static budgets and the lattice: all of it without a compiler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.base import CompileError
from tileguard.runtime.devices.cpu.budgets import UNLIMITED, CpuBudgets, check_budgets, cpu_tiles, instructions
from tileguard.runtime.devices.cpu.ops import CPU_DTYPES, OPS, cpu_kernel

numels = st.integers(1, 1 << 40) | st.integers(1, 70)


@pytest.mark.parametrize(
    ("op", "loads", "reductions", "stores"),
    [
        ("sum", 1, 1, 1), ("max", 1, 1, 1), ("meanvar", 1, 2, 2), ("rmsnorm", 2, 1, 1), ("softmax", 1, 2, 1),
        ("masked_softmax", 2, 2, 1), ("layernorm", 3, 2, 1), ("add_sum", 2, 1, 1), ("swiglu", 2, 1, 1),
    ],
)  # fmt: skip
def test_a_kernel_counts_its_operation(op: str, loads: int, reductions: int, stores: int) -> None:
    kernel = cpu_kernel(op, 30, 40, "half", inner=False)
    assert (kernel.num_load, kernel.num_reduction, kernel.num_store) == (loads, reductions, stores)
    assert (kernel.op, kernel.dtype, kernel.inner) == (op, "fp16", False)
    masks = op == "masked_softmax"
    assert (kernel.min_bytes, kernel.max_bytes) == (1 if masks else 2, 2)
    assert kernel.total_bytes == 2 * (loads + stores) - masks


@pytest.mark.parametrize(
    ("op", "dtype", "xnumel", "field"),
    [("argmin", "fp32", 8, "op"), ("sum", "i8", 8, "dtype"), ("sum", "fp7", 8, "dtype"), ("sum", "fp32", 0, "xnumel")],
)
def test_a_wrong_argument_is_named(op: str, dtype: str, xnumel: int, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        cpu_kernel(op, xnumel, 8, dtype)
    assert caught.value.field == field


@given(st.sampled_from(sorted(OPS)), numels, numels, st.sampled_from(CPU_DTYPES), st.booleans())
def test_the_lattice_is_sorted_within_the_budgets_and_never_empty(
    op: str, xnumel: int, rnumel: int, dtype: str, inner: bool
) -> None:
    kernel = cpu_kernel(op, xnumel, rnumel, dtype, inner=inner)
    tiles = cpu_tiles(kernel)
    assert 1 <= len(tiles) <= 75
    assert list(tiles) == sorted(set(tiles))
    assert ReductionTile(1, 1) in tiles
    for tile in tiles:
        assert tile == ReductionTile(tile.xblock, tile.r0_block)
        assert tile.xblock.bit_count() == tile.r0_block.bit_count() == 1
        check_budgets(kernel, tile, CpuBudgets(workspace_bytes=UNLIMITED))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_the_lattice_of_a_large_kernel_has_some_fifty_tiles(op: str, dtype: str) -> None:
    assert 30 <= len(cpu_tiles(cpu_kernel(op, 4096, 4096, dtype))) <= 70


def test_a_persistent_kernel_keeps_its_one_block() -> None:
    for rnumel in (1, 100, 1000, 100_000):
        kernel = ReductionKernel(64, rnumel, "fp32", 1, 1, persistent=True, op="sum")
        assert {tile.r0_block for tile in cpu_tiles(kernel)} == {rnumel}


def test_a_kernel_of_another_device_has_a_lattice_all_the_same() -> None:
    described = ReductionKernel(64, 64, "fp32", 1, 1)
    assert set(cpu_tiles(described)) >= set(cpu_tiles(cpu_kernel("softmax", 64, 64, "fp32")))
    unknown = ReductionKernel(64, 64, "fp32", 1, 1, op="median")
    assert cpu_tiles(unknown) == (ReductionTile(1, 1),)


def test_the_estimate_grows_with_the_tile_the_passes_and_the_remainder() -> None:
    kernel = cpu_kernel("softmax", 64, 1024, "fp32")
    small = instructions(kernel, ReductionTile(1, 16))
    assert instructions(kernel, ReductionTile(8, 16)) == 8 * small
    assert instructions(kernel, ReductionTile(1, 128)) == 8 * small
    assert instructions(cpu_kernel("softmax", 64, 1025, "fp32"), ReductionTile(1, 16)) == 2 * small
    assert instructions(cpu_kernel("sum", 64, 1024, "fp32"), ReductionTile(1, 16)) < small


@pytest.mark.parametrize("field", ["lanes", "accumulator_bytes", "instructions", "workspace_bytes"])
def test_budgets_are_validated(field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        CpuBudgets(**{field: 0})


def test_counts_that_are_not_the_operations_are_refused() -> None:
    with pytest.raises(CompileError, match="the kernel says"):
        check_budgets(ReductionKernel(8, 8, "fp32", 2, 1, op="sum"), ReductionTile(1, 1), CpuBudgets())
