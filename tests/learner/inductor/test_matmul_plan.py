"""Which tiles of a product are measured, and how: the host's whole list, a sample that leaves the hopeless out, ATen."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.features.tiles import MatmulTile
from tileguard.learner.inductor.cupti import Event, LostEvents, durations
from tileguard.learner.inductor.matmul_kernel import CapturedMatmul, matmul_tile
from tileguard.learner.inductor.matmul_plan import estimate_us, plan_matmul, split
from tileguard.learner.inductor.timing import GridLauncher, interleaved
from tileguard.runtime.matmul_tiles import fits, matmul_lattice, planner_tiles

H200 = known_hardware("h200")
EXHAUSTIVE = [
    [m, n, k, w, s, 8]
    for m, n, k in itertools.product((16, 32, 64, 128, 256), repeat=3)
    for s in (1, 2, 3, 4, 5)
    for w in (2, 4, 8)
    if m * n <= 255 * 32 * w
]
DEFAULT = [[64, 64, 32, 4, 3, 8], [128, 128, 32, 4, 3, 8], [128, 128, 128, 8, 4, 8]]


def captured(m: int = 4096, n: int = 4096, k: int = 4096, **changes: Any) -> CapturedMatmul:
    kernel = CapturedMatmul(
        key=f"{m}-{n}-{k}", label=f"square:mm:1x{m}x{n}x{k}:bf16:nn", kernel="triton_mm", op="mm", batch=1, m=m, n=n, k=k,
        dtype="bf16", a_transposed=False, b_transposed=False, allow_tf32=False,
        decompose_k=False,
        baselines={"default": DEFAULT, "max_autotune": EXHAUSTIVE}, sources={"even_k": ""}, args=(),
    )  # fmt: skip
    return replace(kernel, **changes)


def test_a_capped_plan_is_the_hosts_list_the_planners_tiles_then_a_sample() -> None:
    plan = plan_matmul(captured(), H200, most=80)
    tiles = [planned.tile for planned in plan.tiles]
    assert [list(tile.sort_key) for tile in tiles[:3]] == DEFAULT
    assert len(set(tiles)) == len(tiles) == 80
    rules = Counter(planned.by[0] for planned in plan.tiles)
    planned = planner_tiles(captured().described, H200)
    assert {one.tile for one in plan.tiles if "formula" in one.by} == set(planned)
    assert rules == {"host": 3, "formula": 10, "group": 8, "doubtful": 6, "sample": 53}
    assert plan == plan_matmul(captured(), H200, most=80)
    assert plan != plan_matmul(captured(), H200, most=80, seed=1)


def test_a_sample_is_of_what_may_be_good_and_of_every_block_shape_there() -> None:
    kernel = captured().described
    plan = plan_matmul(captured(), H200, most=80)
    sampled = [planned.tile for planned in plan.tiles if planned.by == ("sample",)]
    best = min(estimate_us(tile, kernel, H200) for tile in map(matmul_tile, EXHAUSTIVE))
    assert max(estimate_us(tile, kernel, H200) for tile in sampled) <= 3 * best
    assert len({(tile.block_m, tile.block_n) for tile in sampled}) >= 5
    assert {tile.num_stages for tile in sampled} == {1, 2, 3, 4, 5}
    groups = [planned.tile.group_m for planned in plan.tiles if planned.by == ("group",)]
    assert set(groups) == {1, 4, 16}


def test_a_dense_plan_is_what_a_ranker_chooses_from_the_hosts_list_and_a_tenth_of_the_rest() -> None:
    kernel = captured().described
    plan = plan_matmul(captured(), H200, most=None)
    fitting = {tile for tile in map(matmul_tile, EXHAUSTIVE) if fits(tile, kernel, H200)}
    ranked = set(matmul_lattice(kernel, H200))
    assert {planned.tile for planned in plan.tiles if "lattice" in planned.by} == ranked
    known = ranked | set(planner_tiles(kernel, H200)) | set(map(matmul_tile, DEFAULT))
    others = {planned.tile for planned in plan.tiles} - known
    assert others == {planned.tile for planned in plan.tiles if planned.by == ("sample",)}
    assert others < fitting
    assert len(others) == len(fitting - known) // 10 > 0
    assert plan.lattice_size == len(fitting) < len(EXHAUSTIVE)


def test_a_small_space_is_taken_whole() -> None:
    few = captured(8, 8, 16, baselines={"default": [[16, 16, 16, 1, 2, 8]], "max_autotune": [[16, 16, 16, 1, 1, 8]]})
    assert len(plan_matmul(few, H200, most=80).tiles) == 2


@pytest.mark.parametrize(
    ("tile", "kernel", "allowed"),
    [
        (MatmulTile(128, 128, 64, 8, 5), MatmulKernel(1, 4096, 4096, 4096, "bf16"), True),
        (MatmulTile(128, 256, 128, 8, 3), MatmulKernel(1, 4096, 4096, 4096, "bf16"), False),  # 288 KiB
        (MatmulTile(128, 256, 64, 8, 5), MatmulKernel(1, 4096, 4096, 4096, "bf16"), False),  # 240 KiB in five buffers
        (MatmulTile(32, 256, 64, 8, 5), MatmulKernel(1, 4096, 4096, 4096, "bf16"), True),  # 144 KiB in four
        (MatmulTile(128, 64, 64, 4, 5), MatmulKernel(1, 4096, 4096, 4096, "fp32"), True),  # 192 KiB in four
        (MatmulTile(128, 128, 64, 4, 5), MatmulKernel(1, 4096, 4096, 4096, "fp32"), False),  # 256 KiB in four
        (MatmulTile(128, 32, 32, 4, 2), MatmulKernel(1, 20, 4096, 4096, "bf16"), False),  # rows padded six times
        (MatmulTile(16, 32, 32, 4, 2), MatmulKernel(1, 1, 4096, 4096, "bf16"), True),  # no product has fewer rows
        (MatmulTile(64, 64, 64, 4, 3), MatmulKernel(1, 4096, 4096, 128, "bf16"), True),  # two steps
        (MatmulTile(64, 64, 64, 4, 5), MatmulKernel(1, 4096, 4096, 128, "bf16"), False),
    ],
)
def test_what_cannot_run_or_only_pads_is_left_out(tile: MatmulTile, kernel: MatmulKernel, allowed: bool) -> None:
    assert fits(tile, kernel, H200) == allowed


def test_tiles_are_split_by_the_estimate_and_none_is_lost() -> None:
    for kernel in (MatmulKernel(1, 4096, 4096, 4096, "bf16"), MatmulKernel(1, 1, 1, 1, "fp32")):
        tiles = list(map(matmul_tile, EXHAUSTIVE))
        parts = split(tiles, kernel, H200)
        assert sorted(itertools.chain(*parts)) == sorted(tiles)
        assert parts[0]
    assert split([], MatmulKernel(1, 1, 1, 1, "fp32"), H200) == ([], [], [])


def test_a_row_gives_its_tile_back_and_a_launch_gets_its_grid() -> None:
    kernel, tile = captured(300, 200, 64), MatmulTile(64, 128, 32, 4, 3, 16)
    assert kernel.tile(kernel.row(tile)) == tile
    assert kernel.grid(tile) == (10, 1, 1)
    calls: list[Any] = []
    GridLauncher(lambda *args, stream: calls.append((args, stream)), kernel.grid(tile))("a", "b", stream=7)
    assert calls == [(("a", "b", 10, 1, 1), 7)]


class Clock:
    """Launchers are their own times; it counts the rounds."""

    def __init__(self) -> None:
        self.rounds: list[tuple[list[float], int]] = []

    def launch(self, launcher: Any, args: Sequence[Any]) -> None:
        raise NotImplementedError

    def time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
        self.rounds.append((list(launchers), rounds))
        return [[us] * rounds for us in launchers]


def test_atens_time_is_never_short_and_makes_no_tile_hopeless() -> None:
    clock = Clock()
    timed = interleaved({0: 10.0, 1: 14.0, 2: 16.0, 3: 2.0, 4: 90.0}, (), clock, hopeless=1.5, always=range(3, 5))
    assert clock.rounds == [([10.0, 14.0, 16.0, 2.0, 90.0], 2), ([10.0, 14.0, 2.0, 90.0], 9)]
    assert {place: len(times) for place, times in timed.items()} == {0: 9, 1: 9, 2: 2, 3: 9, 4: 9}


def test_where_no_tile_works_aten_is_timed() -> None:
    assert interleaved({3: 2.0}, (), Clock(), hopeless=1.5, always=range(3, 4)) == {3: [2.0] * 9}


def test_a_launch_lasts_from_its_first_kernel_to_its_last() -> None:
    events = [
        Event("flush", 0, 100), Event("triton_mm", 110, 1110), Event("flush", 2000, 2100), Event("split", 2200, 3000),
        Event("add", 3100, 3500), Event("flush", 4000, 4100), Event("Memset", 4150, 4200), Event("gemm", 4150, 4950),
    ]  # fmt: skip
    assert durations(events[::-1], "flush", 3) == [1.0, 1.3, 0.8]
    for lost in (events[:-2], [*events[:1], *events[2:]], events[3:]):
        with pytest.raises(LostEvents):
            durations(lost, "flush", 3)
