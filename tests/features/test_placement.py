"""How a tile is dealt to threads and what is on its way at once: against counts by hand, and against dealing it out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support import CPU, HARDWARE, TILES, kernels

from tileguard.features.access import occupancy
from tileguard.features.blocks import blocks, cut
from tileguard.features.code import Access, KernelCode
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.placement import PLACEMENT_FEATURES, placement_columns
from tileguard.features.reduction import REDUCTION_SCHEMA, reduction_features
from tileguard.features.tiles import ReductionTile

FloatArray = npt.NDArray[np.float64]

H200 = known_hardware("h200")
ASCEND = known_hardware("ascend910b3")
X, R = 4096, 1024

KERNELS = kernels().map(lambda kernel: kernel if kernel.code else replace(kernel, code=code(load(X, 1))))
SPECS = st.sampled_from(HARDWARE)
POWERS = st.builds(
    ReductionTile,
    xblock=st.integers(0, 7).map(lambda e: 1 << e),
    r0_block=st.integers(0, 7).map(lambda e: 1 << e),
    num_warps=st.sampled_from([1, 2, 4, 8]),
)
"""Tiles as Triton takes them: powers of two, small enough to be dealt out one element at a time."""


def load(step_x: int, step_r: int, *, nbytes: int = 4, align: int = 16, count: int = 1, store: bool = False) -> Access:
    return Access(store, nbytes, step_x > 0, step_r > 0, step_x, step_r, X, R, align, count=count, buffers=count)


def code(*accesses: Access, accumulators: int = 1) -> KernelCode:
    return KernelCode(accesses, 1, accumulators, 0, 1, 1)


def reads(*accesses: Access, accumulators: int = 1, x: int = X, r: int = R, inner: bool = True) -> ReductionKernel:
    return ReductionKernel(x, r, "fp32", 1, 1, inner=inner, code=code(*accesses, accumulators=accumulators))


def matrix(kernel: ReductionKernel, tiles: Sequence[ReductionTile], spec: HardwareSpec = H200) -> FloatArray:
    """float64[17, n]."""
    assert kernel.code is not None
    shaped = blocks(tiles, spec)
    return np.array(
        placement_columns(
            kernel, kernel.code, shaped, cut(kernel, shaped, spec), occupancy(kernel, kernel.code, shaped, spec), spec
        )
    )


def named(columns: Iterable[FloatArray]) -> dict[str, FloatArray]:
    return dict(zip(PLACEMENT_FEATURES, columns, strict=True))


def row(kernel: ReductionKernel, tile: ReductionTile, spec: HardwareSpec = H200) -> dict[str, float]:
    return {name: float(column[0]) for name, column in named(matrix(kernel, [tile], spec)).items()}


def test_rows_that_lie_side_by_side_are_those_counted_by_hand() -> None:
    # 4 x 256 fp32 by 128 threads, 8 elements each: 64 threads of 4 elements go along a row, 2 rows at once, 4 trips.
    # A thread takes 24 + 8 * (accumulator + loaded) = 40 registers: 12 blocks an SM, and 1024 blocks are fewer than 1584.
    found = row(reads(load(R, 1), load(1, 0, store=True)), ReductionTile(4, 256, 4))
    assert found == pytest.approx(
        {
            "bytes_at_odds": 0, "bytes_go_along_r": 1, "log2_lane_vector_bytes": 4, "log2_warp_run_bytes": 9,
            "log2_sharing_threads": 6, "log2_sharing_warps": 1, "log2_steps_of_a_thread": 4,
            "code_wave_efficiency": 1024 / 1584, "log2_spilling": math.log2(40 / 255), "log2_threads_in_flight": 10 + 7,
            "log2_bytes_in_flight": 10 + 12, "log2_rows_bytes": 14, "log2_core_rows_bytes": 14 + 3,
            "log2_rows_bytes_in_flight": 14 + 10, "log2_loads_of_a_thread": math.log2(2 + 1), "threads_per_element": 1,
            "log2_x_start_bytes": 9,
        },
        rel=1e-12,
    )  # fmt: skip


def test_an_outer_reduction_is_the_one_counted_by_hand() -> None:
    # 32 x 64 fp32 by 256 threads: 8 threads of 4 elements go along the outputs, 32 share each, 4 of them in one warp.
    # 40 registers: 6 blocks an SM; 128 blocks, so that no SM has two.
    found = row(reads(load(1, X)), ReductionTile(32, 64, 8))
    assert found == pytest.approx(
        {
            "bytes_at_odds": 0, "bytes_go_along_r": 0, "log2_lane_vector_bytes": 4, "log2_warp_run_bytes": 7,
            "log2_sharing_threads": 5, "log2_sharing_warps": 3, "log2_steps_of_a_thread": 4 + 1,
            "code_wave_efficiency": 128 / 792, "log2_spilling": math.log2(40 / 255), "log2_threads_in_flight": 7 + 8,
            "log2_bytes_in_flight": 7 + 13, "log2_rows_bytes": 17, "log2_core_rows_bytes": 17,
            "log2_rows_bytes_in_flight": 17 + 7, "log2_loads_of_a_thread": math.log2(2 + 1), "threads_per_element": 1,
            "log2_x_start_bytes": 7,
        },
        rel=1e-12,
    )  # fmt: skip


def test_the_axis_is_the_one_that_most_bytes_go_along_whatever_metadata_says() -> None:
    along_r, along_x, scattered = load(R, 1), load(1, X, nbytes=2), load(2 * R, 2, nbytes=2)
    tile = ReductionTile(4, 256, 4)
    for inner in (True, False):
        found = row(reads(along_r, along_x, scattered, inner=inner), tile)
        assert (found["bytes_go_along_r"], found["bytes_at_odds"]) == (1, 2 / 8)
        found = row(reads(along_r, replace(along_x, count=3), inner=inner), tile)
        assert (found["bytes_go_along_r"], found["bytes_at_odds"]) == (0, 4 / 10)
        # of equal bytes, the outputs' axis; where none are, metadata's word
        assert row(reads(along_r, replace(along_x, count=2), inner=inner), tile)["bytes_go_along_r"] == 0
        assert row(reads(scattered, inner=inner), tile)["bytes_go_along_r"] == inner


def test_only_accesses_along_the_axis_shape_the_vector() -> None:
    narrow = reads(load(R, 1, nbytes=2, count=5), load(1, X, nbytes=8, align=1))
    assert row(narrow, ReductionTile(1, 1024, 4))["log2_lane_vector_bytes"] == 4  # 8 of 2 bytes


def test_an_odd_start_and_a_short_block_shorten_the_vector() -> None:
    def vector_bytes(align: int, tile: ReductionTile) -> float:
        return 2 ** row(reads(load(R, 1, align=align)), tile)["log2_lane_vector_bytes"]

    assert [vector_bytes(align, ReductionTile(4, 256, 4)) for align in (1, 2, 4, 16)] == [4, 8, 16, 16]
    assert vector_bytes(16, ReductionTile(256, 2, 4)) == 8  # the row ends
    assert vector_bytes(16, ReductionTile(1, 256, 4)) == 8  # two elements for each thread


def test_what_is_no_element_of_its_own_changes_nothing() -> None:
    own = load(R, 1)
    outputs = load(1, 0, nbytes=8, store=True)
    gathered = Access(False, 8, True, True, 0, 0, 1, 1, 1, indirect=True, count=3, buffers=3)
    tiles = [ReductionTile(4, 256, 4), ReductionTile(1, 64, 2), ReductionTile(128, 8, 8)]
    assert (matrix(reads(own, outputs, gathered), tiles) == matrix(reads(own), tiles)).all()


@pytest.mark.parametrize("accesses", [(), (load(0, 1),), (Access(False, 4, True, True, 0, 0, 1, 1, 1, indirect=True),)])
def test_a_kernel_that_reads_no_element_of_its_own_counts_one_byte_a_position(accesses: tuple[Access, ...]) -> None:
    for inner in (True, False):
        found = row(reads(*accesses, inner=inner), ReductionTile(4, 256, 4))
        assert (found["bytes_at_odds"], found["bytes_go_along_r"]) == (0, inner)
        assert (found["log2_rows_bytes"], found["log2_loads_of_a_thread"]) == (math.log2(4 * R), 0)


def test_a_buffer_counts_once_where_it_stays_and_each_time_it_is_loaded() -> None:
    once, twice = load(R, 1), replace(load(R, 1), count=2)  # the same buffer, loaded by two loops
    tile = ReductionTile(4, 256, 4)
    found, before = row(reads(twice), tile), row(reads(once), tile)
    assert found["log2_rows_bytes"] == before["log2_rows_bytes"]
    assert (2 ** found["log2_loads_of_a_thread"], 2 ** before["log2_loads_of_a_thread"]) == pytest.approx((5, 3))


def test_what_is_stored_is_neither_kept_nor_read_again() -> None:
    tile = ReductionTile(4, 256, 4)
    found, before = row(reads(load(R, 1), load(R, 1, store=True)), tile), row(reads(load(R, 1)), tile)
    assert 2 ** found.pop("log2_loads_of_a_thread") == pytest.approx(2 * 2 + 1)
    assert 2 ** before.pop("log2_loads_of_a_thread") == pytest.approx(2 + 1)
    assert found == before


def test_an_axis_shorter_than_its_block_has_no_more_bytes() -> None:
    found = row(reads(load(5, 1), x=3, r=5), ReductionTile(4, 8, 1))
    assert 2 ** found["log2_bytes_in_flight"] == pytest.approx(3 * 5 * 4)
    assert 2 ** found["log2_rows_bytes"] == 2 ** found["log2_rows_bytes_in_flight"] == pytest.approx(3 * 5 * 4)


def test_sides_that_are_no_power_of_two_count_whole_vectors_and_elements() -> None:
    assert row(reads(load(R, 1)), ReductionTile(1, 192, 4))["log2_lane_vector_bytes"] == 2  # 1.5 elements a thread
    found = row(reads(load(R, 1)), ReductionTile(64, 6, 1))  # one vector and a half along the block
    assert (found["log2_lane_vector_bytes"], found["log2_warp_run_bytes"], found["log2_sharing_threads"]) == (4, 4, 0)


def test_one_reduced_element_leaves_nothing_to_share() -> None:
    found = row(reads(load(1, 0), r=1), ReductionTile(128, 1, 4))
    names = ("bytes_go_along_r", "log2_sharing_threads", "log2_sharing_warps", "log2_steps_of_a_thread")
    assert [found[name] for name in names] == [0, 0, 0, 0]
    assert found["log2_rows_bytes"] == math.log2(128 * 4)
    # where a step of 1 is written for an axis of one element, nothing goes along it
    assert row(reads(load(1, 1), r=1), ReductionTile(128, 1, 4))["bytes_go_along_r"] == 0


def test_one_output_is_one_block_that_every_thread_shares() -> None:
    found = row(reads(load(0, 1), x=1), ReductionTile(1, 1024, 8))
    assert (found["log2_sharing_threads"], found["log2_sharing_warps"]) == (8, 3)
    assert (found["log2_threads_in_flight"], found["log2_bytes_in_flight"]) == (8, 12)
    assert found["log2_rows_bytes"] == found["log2_core_rows_bytes"] == found["log2_rows_bytes_in_flight"] == 12


def test_threads_that_a_tile_has_no_element_for() -> None:
    found = row(reads(load(R, 1)), ReductionTile(1, 32, 4))
    assert (found["threads_per_element"], found["log2_lane_vector_bytes"]) == (4, 2)
    assert (found["log2_sharing_threads"], found["log2_sharing_warps"]) == (5, 0)


def test_registers_run_out_past_what_a_thread_can_name_and_what_a_core_has() -> None:
    few, many = (row(reads(load(R, 1), accumulators=n), ReductionTile(32, 128, 4)) for n in (1, 15))
    assert few["log2_spilling"] == pytest.approx(math.log2((24 + 32 * 2) / 255))
    assert many["log2_spilling"] == pytest.approx(math.log2((24 + 32 * 16) / 255))
    assert few["log2_spilling"] < 0 < many["log2_spilling"]
    # past 255 a thread takes no more: two blocks of 128 threads an SM
    wide = reads(load(1, X), accumulators=15, x=1 << 20)
    assert row(wide, ReductionTile(32, 128, 4))["log2_threads_in_flight"] == pytest.approx(math.log2(2 * 132 * 128))
    # 1024 threads have 64 registers each
    assert row(reads(load(R, 1)), ReductionTile(32, 1024, 32))["log2_spilling"] == pytest.approx(math.log2(88 / 64))


@pytest.mark.parametrize(("nbytes", "registers"), [(1, 1), (2, 1), (4, 1), (8, 2)])
def test_an_element_takes_a_register_of_four_bytes_at_least(nbytes: int, registers: int) -> None:
    found = row(reads(load(R, 1, nbytes=nbytes, count=3)), ReductionTile(4, 256, 4))
    assert found["log2_spilling"] == pytest.approx(math.log2((24 + 8 * (1 + 3 * registers)) / 255))


@pytest.mark.parametrize("spec", [ASCEND, CPU], ids=lambda spec: spec.name)
def test_a_core_without_threads_runs_one_block_by_one_thread(spec: HardwareSpec) -> None:
    found = row(reads(load(R, 1)), ReductionTile(4, 256), spec)
    assert (found["log2_sharing_threads"], found["log2_sharing_warps"], found["threads_per_element"]) == (0, 0, 1)
    assert found["log2_warp_run_bytes"] == found["log2_lane_vector_bytes"] == 4
    assert found["log2_threads_in_flight"] == math.log2(spec.cores)  # of 1024 blocks
    assert found["log2_bytes_in_flight"] == pytest.approx(math.log2(spec.cores * 4 * 256 * 4))
    assert found["log2_core_rows_bytes"] == found["log2_rows_bytes"]
    assert found["log2_steps_of_a_thread"] == math.log2(R)
    assert found["code_wave_efficiency"] == pytest.approx(1024 / (math.ceil(1024 / spec.cores) * spec.cores))


def test_they_are_the_last_columns_of_a_kernels_features() -> None:
    kernel, tiles = reads(load(R, 1), load(1, X, nbytes=2)), [ReductionTile(4, 256, 4), ReductionTile(8, 64, 2)]
    assert REDUCTION_SCHEMA.names[-len(PLACEMENT_FEATURES) :] == PLACEMENT_FEATURES
    assert (reduction_features(kernel, tiles, H200)[:, -len(PLACEMENT_FEATURES) :] == matrix(kernel, tiles).T).all()


@settings(max_examples=100, deadline=None)
@given(tile=POWERS, along=st.booleans(), nbytes=st.sampled_from([1, 2, 4, 8]), align=st.sampled_from([1, 2, 4, 8, 16]))
def test_sharing_is_what_dealing_out_gives(tile: ReductionTile, along: bool, nbytes: int, align: int) -> None:
    assert tile.num_warps is not None
    access = load(R, 1, nbytes=nbytes, align=align) if along else load(1, X, nbytes=nbytes, align=align)
    found = {name: 2**value for name, value in row(reads(access, r=tile.r0_block), tile).items() if name[:4] == "log2"}
    side, other = (tile.r0_block, tile.xblock) if along else (tile.xblock, tile.r0_block)
    vector = round(found["log2_lane_vector_bytes"]) // nbytes
    # Triton's blocked layout: lanes go along the contiguous axis first, then warps do; what is left goes along the other.
    lanes = min(side // vector, 32)
    warps = min(side // vector // lanes, tile.num_warps)
    across = 32 // lanes
    owner = {
        (c, o): (
            c // vector % lanes + lanes * (o % across),
            c // vector // lanes % warps + warps * (o // across % (tile.num_warps // warps)),
        )
        for c in range(side)
        for o in range(other)
    }
    of_one_output = [owner[(r, 0) if along else (0, r)] for r in range(tile.r0_block)]
    assert found["log2_sharing_threads"] == len(set(of_one_output))
    assert found["log2_sharing_warps"] == len({warp for _, warp in of_one_output})
    assert found["log2_steps_of_a_thread"] == max(map(of_one_output.count, of_one_output))
    assert found["log2_warp_run_bytes"] == nbytes * sum(owner[c, 0][1] == 0 for c in range(lanes * vector))


@settings(max_examples=100, deadline=None)
@given(kernel=KERNELS, tiles=st.lists(TILES, min_size=1, max_size=8), spec=SPECS)
def test_every_column_is_finite_and_within_its_bounds(
    kernel: ReductionKernel, tiles: list[ReductionTile], spec: HardwareSpec
) -> None:
    assert kernel.code is not None
    shaped = blocks(tiles, spec)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = placement_columns(
            kernel, kernel.code, shaped, cut(kernel, shaped, spec), occupancy(kernel, kernel.code, shaped, spec), spec
        )
    assert {(column.shape, column.dtype.name) for column in columns} == {((len(tiles),), "float64")}
    assert np.isfinite(columns).all()
    found = named(columns)

    def within(name: str, low: float | FloatArray, high: float | FloatArray) -> bool:
        return bool(((low <= found[name]) & (found[name] <= high)).all())

    assert within("bytes_at_odds", 0, 0.5)
    assert set(found["bytes_go_along_r"]) <= {0.0, 1.0}
    # Sixteen elements, as one instruction loads of one byte each, where others have eight bytes.
    assert within("log2_lane_vector_bytes", 0, 7)
    assert within("log2_warp_run_bytes", found["log2_lane_vector_bytes"], 7 + math.log2(spec.warp_size))
    assert within("log2_sharing_threads", 0, np.minimum(shaped.log_threads, shaped.log_sides[1]))
    assert within("log2_sharing_warps", 0, found["log2_sharing_threads"])
    assert within("log2_steps_of_a_thread", 0, np.log2(np.maximum(shaped.sides[1], kernel.rnumel)) + 1)
    assert ((found["code_wave_efficiency"] > 0) & (found["code_wave_efficiency"] <= 1)).all()
    assert within("log2_threads_in_flight", shaped.log_threads, np.inf)
    assert within("log2_core_rows_bytes", found["log2_rows_bytes"], np.inf)
    assert within("log2_rows_bytes_in_flight", found["log2_rows_bytes"], np.inf)
    assert within("log2_bytes_in_flight", 0, found["log2_rows_bytes_in_flight"] + 1e-9)
    assert within("log2_loads_of_a_thread", 0, np.inf)
    assert within("threads_per_element", 1, np.maximum(shaped.threads, 1))
    assert within("log2_x_start_bytes", 0, 9)


@settings(max_examples=100, deadline=None)
@given(kernel=KERNELS, tiles=st.lists(TILES, min_size=1, max_size=20), spec=SPECS)
def test_a_tiles_values_depend_on_no_other_tile_and_accesses_have_no_order(
    kernel: ReductionKernel, tiles: list[ReductionTile], spec: HardwareSpec
) -> None:
    assert kernel.code is not None
    together = matrix(kernel, tiles, spec)
    order = np.random.default_rng(len(tiles)).permutation(len(tiles))
    assert (matrix(kernel, [tiles[i] for i in order], spec) == together[:, order]).all()
    for i in {0, len(tiles) // 2, len(tiles) - 1}:
        assert (matrix(kernel, [tiles[i]], spec)[:, 0] == together[:, i]).all()
    backwards = replace(kernel.code, accesses=kernel.code.accesses[::-1])
    assert (matrix(replace(kernel, code=backwards), tiles, spec) == together).all()


@settings(max_examples=100, deadline=None)
@given(tiles=st.lists(TILES, min_size=1, max_size=8), spec=SPECS, more=st.lists(st.integers(1, 4), max_size=4))
def test_accesses_of_one_kind_count_alike_listed_once_or_each(
    tiles: list[ReductionTile], spec: HardwareSpec, more: list[int]
) -> None:
    kinds = [load(R, 1), load(1, X, nbytes=2, align=2), load(2 * R, 2, nbytes=8), load(R, 1, nbytes=2, store=True)]
    counted = [replace(kind, count=n, buffers=n) for kind, n in zip(kinds, more, strict=False)]
    listed = [kind for kind, n in zip(kinds, more, strict=False) for _ in range(n)]
    assert (matrix(reads(*counted), tiles, spec) == matrix(reads(*listed), tiles, spec)).all()


@settings(max_examples=100, deadline=None)
@given(
    tiles=st.lists(POWERS, min_size=1, max_size=8),
    numels=st.tuples(st.integers(2, 1 << 20), st.integers(2, 1 << 20)),
    counts=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    nbytes=st.sampled_from([1, 2, 4, 8]),
)  # fmt: skip
def test_a_turned_kernel_deals_a_turned_tile_alike(
    tiles: list[ReductionTile], numels: tuple[int, int], counts: tuple[int, int], nbytes: int
) -> None:
    assume(counts[0] != counts[1])
    (x, r), (of_r, of_x) = numels, counts
    first = load(r, 1, nbytes=nbytes, align=4), load(1, x, nbytes=nbytes)
    turned = load(1, r, nbytes=nbytes, align=4), load(x, 1, nbytes=nbytes)
    accesses, back = (
        [replace(access, count=n, buffers=n) for access, n in zip(pair, (of_r, of_x), strict=True) if n]
        for pair in (first, turned)
    )
    over = [ReductionTile(tile.r0_block, tile.xblock, tile.num_warps) for tile in tiles]
    here = named(matrix(reads(*accesses, x=x, r=r), tiles))
    there = named(matrix(reads(*back, x=r, r=x), over))
    for name in ("bytes_at_odds", "log2_lane_vector_bytes", "log2_warp_run_bytes", "log2_spilling",
                 "log2_loads_of_a_thread", "threads_per_element"):  # fmt: skip
        assert (here[name] == there[name]).all(), name
    assert (here["bytes_go_along_r"] + there["bytes_go_along_r"] == 1).all()


IN_FLIGHT = ("log2_threads_in_flight", "log2_bytes_in_flight", "log2_rows_bytes_in_flight", "log2_core_rows_bytes")


@settings(max_examples=100, deadline=None)
@given(kernel=KERNELS, tiles=st.lists(TILES, min_size=1, max_size=8), spec=SPECS, factor=st.integers(1, 1 << 10))
def test_more_outputs_put_no_less_on_its_way(
    kernel: ReductionKernel, tiles: list[ReductionTile], spec: HardwareSpec, factor: int
) -> None:
    assume(kernel.xnumel > 1)  # of one output, an access needs no step along it to read an element of its own
    few = named(matrix(kernel, tiles, spec))
    more = replace(kernel, xnumel=kernel.xnumel * factor)
    many = named(matrix(more, tiles, spec))
    for name in (*IN_FLIGHT, "log2_rows_bytes"):
        assert (many[name] >= few[name] - 1e-9).all(), name
    for name in set(PLACEMENT_FEATURES) - {*IN_FLIGHT, "log2_rows_bytes", "code_wave_efficiency"}:
        assert (many[name] == few[name]).all(), name


@settings(max_examples=100, deadline=None)
@given(kernel=KERNELS, tiles=st.lists(TILES, min_size=1, max_size=8), spec=SPECS, extra=st.integers(1, 40))
def test_more_accumulators_spill_more_and_leave_fewer_blocks_at_once(
    kernel: ReductionKernel, tiles: list[ReductionTile], spec: HardwareSpec, extra: int
) -> None:
    assert kernel.code is not None
    heavier = replace(kernel, code=replace(kernel.code, accumulators=kernel.code.accumulators + extra))
    few = named(matrix(kernel, tiles, spec))
    many = named(matrix(heavier, tiles, spec))
    assert (many["log2_spilling"] > few["log2_spilling"]).all()
    for name in IN_FLIGHT:
        assert (many[name] <= few[name]).all(), name
    for name in set(PLACEMENT_FEATURES) - {*IN_FLIGHT, "log2_spilling", "code_wave_efficiency"}:
        assert (many[name] == few[name]).all(), name


@settings(max_examples=60, deadline=None)
@given(kernel=KERNELS, tile=POWERS)
def test_more_warps_share_an_output_more_and_hold_less_each(kernel: ReductionKernel, tile: ReductionTile) -> None:
    found = named(matrix(kernel, [replace(tile, num_warps=w) for w in (1, 2, 4, 8, 16, 32)]))
    for name in ("log2_sharing_threads", "log2_sharing_warps", "threads_per_element"):
        assert (np.diff(found[name]) >= 0).all(), name
    for name in ("log2_lane_vector_bytes", "log2_warp_run_bytes", "log2_steps_of_a_thread", "log2_loads_of_a_thread"):
        assert (np.diff(found[name]) <= 0).all(), name


@settings(max_examples=60, deadline=None)
@given(kernel=KERNELS, r0_block=st.integers(0, 12), warps=st.sampled_from([1, 4, 32]), spec=SPECS)
def test_a_wider_block_of_outputs_holds_no_fewer_rows(
    kernel: ReductionKernel, r0_block: int, warps: int, spec: HardwareSpec
) -> None:
    tiles = [ReductionTile(1 << e, 1 << r0_block, warps) for e in range(13)]
    found = named(matrix(kernel, tiles, spec))
    for name in ("log2_rows_bytes", "log2_x_start_bytes", "log2_spilling"):
        assert (np.diff(found[name]) >= 0).all(), name
    assert (np.diff(found["threads_per_element"]) <= 0).all()
