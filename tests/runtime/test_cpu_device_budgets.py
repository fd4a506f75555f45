"""Operations, static budgets and the lattice: all of it without a compiler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import LOWERINGS, ReductionTile
from tileguard.runtime.devices.base import CompileError, OutOfResource
from tileguard.runtime.devices.cpu import CPU_DTYPES, OPS, PROGRAM_OPS, cpu_kernel, legal_lowerings
from tileguard.runtime.devices.cpu.budgets import (
    BUDGETS,
    UNLIMITED,
    CpuBudgets,
    check_budgets,
    cpu_tiles,
    instructions,
    local_bytes,
    ssa_expansion,
)

numels = st.integers(1, 1 << 40) | st.integers(1, 70)


@pytest.mark.parametrize(
    ("op", "loads", "reductions", "stores"),
    [
        ("sum", 1, 1, 1), ("max", 1, 1, 1), ("meanvar", 1, 2, 2), ("rmsnorm", 2, 1, 1), ("softmax", 1, 2, 1),
        ("masked_softmax", 2, 2, 1), ("layernorm", 3, 2, 1), ("add_sum", 2, 1, 1), ("swiglu", 2, 1, 1),
        ("tile_rmsnorm", 2, 1, 1), ("tile_layernorm", 3, 2, 1), ("tile_masked_softmax", 2, 2, 1),
        ("tile_swiglu", 2, 1, 1), ("tile_prefix", 1, 1, 1), ("tile_normdot", 2, 2, 1), ("tile_sum_left", 1, 1, 1),
    ],
)  # fmt: skip
def test_a_kernel_counts_its_operation(op: str, loads: int, reductions: int, stores: int) -> None:
    kernel = cpu_kernel(op, 30, 40, "half", inner=False)
    assert (kernel.num_load, kernel.num_reduction, kernel.num_store) == (loads, reductions, stores)
    assert (kernel.op, kernel.dtype, kernel.inner) == (op, "fp16", False)
    masks = op.endswith("masked_softmax")
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


@given(st.sampled_from(sorted([*OPS, *PROGRAM_OPS])), numels, numels, st.sampled_from(CPU_DTYPES), st.booleans())
def test_the_lattice_is_sorted_within_the_budgets_and_never_empty(
    op: str, xnumel: int, rnumel: int, dtype: str, inner: bool
) -> None:
    kernel = cpu_kernel(op, xnumel, rnumel, dtype, inner=inner)
    tiles = cpu_tiles(kernel)
    assert 1 <= len(tiles) <= 125
    assert sum(tile.lowering is None for tile in tiles) <= 75
    assert list(tiles) == sorted(set(tiles))
    assert ReductionTile(1, 1) in tiles
    for tile in tiles:
        assert tile == ReductionTile(tile.xblock, tile.r0_block, lowering=tile.lowering)
        assert tile.xblock.bit_count() == tile.r0_block.bit_count() == 1
        if op == "tile_prefix" and tile == ReductionTile(1, 1):  # it keeps a row whole, twice: the last tile left
            continue
        check_budgets(kernel, tile, CpuBudgets(workspace_bytes=UNLIMITED))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_the_lattice_of_a_large_kernel_has_some_fifty_tiles(op: str, dtype: str) -> None:
    tiles = cpu_tiles(cpu_kernel(op, 4096, 4096, dtype))
    assert 30 <= sum(tile.lowering is None for tile in tiles) <= 70
    assert sum(tile.lowering is not None for tile in tiles) <= 50


def test_a_persistent_kernel_keeps_its_one_block() -> None:
    for rnumel in (1, 100, 1000, 100_000):
        kernel = ReductionKernel(64, rnumel, "fp32", 1, 1, persistent=True, op="sum")
        assert {tile.r0_block for tile in cpu_tiles(kernel)} == {rnumel}


def test_a_kernel_of_another_device_has_a_lattice_all_the_same() -> None:
    described = ReductionKernel(64, 64, "fp32", 1, 1)
    softmax = cpu_tiles(cpu_kernel("softmax", 64, 64, "fp32"))
    assert set(cpu_tiles(described)) >= {tile for tile in softmax if tile.lowering is None}
    unknown = ReductionKernel(64, 64, "fp32", 1, 1, op="median")
    assert cpu_tiles(unknown) == (ReductionTile(1, 1),)


def test_the_estimate_grows_with_the_tile_the_passes_and_the_remainder() -> None:
    kernel = cpu_kernel("softmax", 64, 1024, "fp32")
    small = instructions(kernel, ReductionTile(1, 16))
    assert instructions(kernel, ReductionTile(8, 16)) == 8 * small
    assert instructions(kernel, ReductionTile(1, 128)) == 8 * small
    assert instructions(cpu_kernel("softmax", 64, 1025, "fp32"), ReductionTile(1, 16)) == 2 * small
    assert instructions(cpu_kernel("sum", 64, 1024, "fp32"), ReductionTile(1, 16)) < small


@pytest.mark.parametrize("op", PROGRAM_OPS)
@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_the_lattice_of_a_tile_program_has_some_twenty_tiles_a_lowering(op: str, dtype: str) -> None:
    for rnumel in (64, 4096):
        tiles = cpu_tiles(cpu_kernel(op, 4096, rnumel, dtype))
        counts = [sum(tile.lowering == lowering for tile in tiles) for lowering in (None, *LOWERINGS)]
        assert counts[0] in range(10, 21)
        assert all(count <= 20 for count in counts)


def test_a_snapshot_takes_its_bytes_times_the_lanes() -> None:
    kernel = cpu_kernel("tile_layernorm", 16, 100, "bf16")
    assert local_bytes(kernel, ReductionTile(8, 4, lowering="snapshot")) == 2 * 100 * 8 * 4
    assert local_bytes(kernel, ReductionTile(3, 4, lowering="snapshot")) == 2 * 100 * (3 + 1) * 4  # and a row left over
    assert local_bytes(cpu_kernel("tile_prefix", 16, 100, "fp64"), ReductionTile(8, 4)) == 2 * 100 * 8 * 8
    assert local_bytes(kernel, ReductionTile(8, 4)) == local_bytes(kernel, ReductionTile(8, 4, lowering="select")) == 0
    passes = cpu_kernel("layernorm", 16, 100, "fp32")
    assert local_bytes(passes, ReductionTile(2, 16, lowering="snapshot")) == 7 * 2 * 16 * 4
    assert local_bytes(passes, ReductionTile(2, 16)) == 0


def test_the_largest_snapshot_is_exactly_what_the_report_allows() -> None:
    kernel, budgets = cpu_kernel("tile_rmsnorm", 64, 16384, "fp32"), CpuBudgets()
    assert budgets.max_local_bytes == 262144
    check_budgets(kernel, ReductionTile(4, 8, lowering="snapshot"), budgets)
    with pytest.raises(OutOfResource, match="max_local_bytes is 524288, over the limit of 262144"):
        check_budgets(kernel, ReductionTile(8, 8, lowering="snapshot"), budgets)
    with pytest.raises(OutOfResource, match="max_local_bytes is 262144, over the limit of 262143"):
        check_budgets(kernel, ReductionTile(4, 8, lowering="snapshot"), CpuBudgets(max_local_bytes=262143))


def test_the_expansion_counts_arrays_their_addresses_loads_and_stores() -> None:
    kernel = cpu_kernel("softmax", 64, 1024, "fp32")
    plain, snapshot, select = (ReductionTile(2, 64, lowering=name) for name in LOWERINGS)
    assert ssa_expansion(kernel, plain) == 0
    # The array; the first pass stores two vectors, the second loads and stores them, the third loads them, by address.
    assert ssa_expansion(kernel, snapshot) == 1 + 2 * (2 + 4 + 2)
    # 16 chunks of two vectors, by the first pass and by the second; the third chooses among 16 twice.
    assert ssa_expansion(kernel, select) == 2 * (16 + 16 + 2 * 16)
    assert instructions(kernel, snapshot) < instructions(kernel, plain) < instructions(kernel, select)


@pytest.mark.parametrize("op", PROGRAM_OPS)
def test_the_expansion_of_a_program_is_never_less_than_what_is_written(op: str) -> None:
    emit = pytest.importorskip("tileguard.runtime.devices.cpu.emit").emit
    for dtype in ("fp32", "bf16"):
        for shape, block in (((19, 33), (8, 4)), ((16, 40), (16, 8)), ((5, 2), (1, 1))):
            for inner in (True, False):
                kernel = cpu_kernel(op, *shape, dtype, inner=inner)
                for lowering in legal_lowerings(kernel):
                    tile = ReductionTile(*block, lowering=lowering)
                    written = _operations(emit(kernel, tile))
                    assert written <= ssa_expansion(kernel, tile) <= 2 * written + 200


def _operations(text: str) -> int:
    """Lines of the function `kernel` that are instructions."""
    body = text.split('@"kernel"', 1)[1].split("\n}", 1)[0]
    return sum(line.lstrip().startswith(("%", "store", "br", "ret")) for line in body.splitlines()[2:])


@pytest.mark.parametrize("field", BUDGETS)
def test_budgets_are_validated(field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        CpuBudgets(**{field: 0})


def test_counts_that_are_not_the_operations_are_refused() -> None:
    with pytest.raises(CompileError, match="the kernel says"):
        check_budgets(ReductionKernel(8, 8, "fp32", 2, 1, op="sum"), ReductionTile(1, 1), CpuBudgets())
