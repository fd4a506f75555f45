"""The dense space: legal, sorted, never empty, and wide enough to hold what was ever measured."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import CPU, HARDWARE, kernels

from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import Corpus
from tileguard.runtime.lattice import is_legal, lattice, lattices, one_row, persistent_r0, warp_counts

H200 = known_hardware("h200")
ASCEND = known_hardware("ascend910b3")
LOOPED = ReductionKernel(100, 1000, "fp32", 1, 1)
PERSISTENT = ReductionKernel(100, 1000, "fp32", 1, 1, persistent=True)


@settings(max_examples=800, deadline=None)
@given(kernel=kernels(), spec=st.sampled_from(HARDWARE))
def test_every_tile_of_the_lattice_is_legal_sorted_and_there_is_one(
    kernel: ReductionKernel, spec: HardwareSpec
) -> None:
    tiles = lattice(kernel, spec)
    assert tiles
    assert list(tiles) == sorted(set(tiles))
    assert all(is_legal(tile, kernel, spec) for tile in tiles)


@settings(max_examples=200, deadline=None)
@given(kernel=kernels())
def test_on_nvidia_blocks_are_powers_of_two_within_the_axes_rounded_up(kernel: ReductionKernel) -> None:
    for tile in lattice(kernel, H200):
        assert tile.xblock & (tile.xblock - 1) == 0
        assert tile.r0_block & (tile.r0_block - 1) == 0
        assert tile.xblock < 2 * kernel.xnumel
        assert tile.r0_block < 2 * kernel.rnumel
        assert tile.num_warps in (1, 2, 4, 8, 16, 32)


def test_the_lattice_holds_every_tile_of_the_shipped_sweep(corpus: Corpus) -> None:
    for sweep in corpus.sweeps:
        own = set(lattice(sweep.kernel, H200))
        beyond = {tile for tile in sweep.tiles if tile not in own}
        hosts = {sweep.tiles[i] for i in (*sweep.host_default, *sweep.host_max_autotune)}
        assert beyond <= hosts, sweep.kernel_id


@pytest.mark.parametrize(
    "kernel",
    [
        ReductionKernel(1, 1, "fp32", 1, 1),
        ReductionKernel(1, 2, "fp32", 1, 1),
        ReductionKernel(1, 1 << 48, "fp32", 1, 1),
        ReductionKernel(1, 1 << 48, "fp32", 1, 1, persistent=True),
        ReductionKernel(1 << 48, 1, "fp32", 0, 1),
    ],
)
@pytest.mark.parametrize("spec", HARDWARE, ids=lambda spec: spec.name)
def test_extreme_kernels_have_a_tile(kernel: ReductionKernel, spec: HardwareSpec) -> None:
    tiles = lattice(kernel, spec)
    assert 1 <= len(tiles) <= 400


@pytest.mark.parametrize(
    ("tile", "legal"),
    [
        (ReductionTile(4, 256, 4), True),
        (ReductionTile(4, 256, 4, 3), True),
        (ReductionTile(4096, 4, 4), True),
        (ReductionTile(8192, 4, 4), False),
        (ReductionTile(1, 32768, 32), True),
        (ReductionTile(1, 32768, 8), True),
        (ReductionTile(1, 32768, 4), False),  # 128 threads name 32,768 registers: not tile and accumulator
        (ReductionTile(1, 65536, 32), False),  # all of a core's registers for the tile alone
        (ReductionTile(512, 512, 32), False),
        (ReductionTile(3, 256, 4), False),
        (ReductionTile(4, 250, 4), False),
        (ReductionTile(4, 256), False),
        (ReductionTile(4, 256, 3), False),
        (ReductionTile(4, 256, 64), False),
        (ReductionTile(4, 256, 4, lowering="loop"), False),
    ],
)
def test_on_nvidia_triton_decides_what_is_legal(tile: ReductionTile, legal: bool) -> None:
    assert is_legal(tile, LOOPED, H200) is legal


@pytest.mark.parametrize(
    ("tile", "legal"),
    [
        (ReductionTile(64, 1000), True),
        (ReductionTile(64, 1024), True),
        (ReductionTile(64, 1025), False),
        (ReductionTile(128, 8), False),
    ],
)
def test_on_ascend_only_r0_may_overshoot_and_by_one_power_at_most(tile: ReductionTile, legal: bool) -> None:
    assert is_legal(tile, LOOPED, ASCEND) is legal


@pytest.mark.parametrize(
    ("tile", "legal"),
    [
        (ReductionTile(4, 8), True),
        (ReductionTile(128, 8), False),
        (ReductionTile(1, 1024), False),
        (ReductionTile(3, 8), False),
        (ReductionTile(4, 8, 2), False),
    ],
)
def test_on_a_cpu_blocks_stay_inside_the_kernel_and_there_are_no_warps(tile: ReductionTile, legal: bool) -> None:
    kernel = ReductionKernel(100, 1000, "fp32", 1, 1, op="sum")
    assert is_legal(tile, kernel, CPU) is legal
    assert (tile in lattice(kernel, CPU)) is legal


def test_a_persistent_kernel_has_one_r0_block() -> None:
    assert (persistent_r0(PERSISTENT, H200), persistent_r0(PERSISTENT, ASCEND)) == (1024, 1000)
    for spec in HARDWARE:
        assert {t.r0_block for t in lattice(PERSISTENT, spec)} == {persistent_r0(PERSISTENT, spec)}
    assert not is_legal(ReductionTile(1, 512, 4), PERSISTENT, H200)


def test_warp_counts_are_ascending_and_leave_a_thread_work() -> None:
    assert warp_counts(1024, LOOPED, H200) == (1, 2, 4, 8)
    assert warp_counts(1024, PERSISTENT, H200) == (1, 2, 4, 8, 16)
    assert warp_counts(64, LOOPED, H200) == (1,)
    assert warp_counts(1 << 20, LOOPED, H200) == ()


def test_every_lattice_of_a_gpu_is_known_beforehand_and_elsewhere_none() -> None:
    before = set(map(id, lattices(H200)))
    for xnumel in (1, 3, 512, 1 << 40):
        for rnumel in (4, 5, 1000, 16384):
            for persistent in (False, True):
                kernel = ReductionKernel(xnumel, rnumel, "fp32", 1, 1, persistent=persistent)
                assert id(lattice(kernel, H200)) in before
    assert id(lattice(ReductionKernel(7, 1 << 30, "fp32", 1, 1), H200)) in before
    assert not list(lattices(ASCEND))


def test_one_row_is_the_lattices_tiles_of_one_output_and_the_same_object_again() -> None:
    rows = one_row(lattice(LOOPED, H200))
    assert rows.tiles == tuple(tile for tile in lattice(LOOPED, H200) if tile.xblock == 1)
    assert rows and one_row(lattice(LOOPED, H200)) is rows
