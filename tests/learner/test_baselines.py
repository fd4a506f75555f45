"""The baselines: by hand on a small sweep, and as published on the shipped corpus."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.support import corpus_row, failed_row

from tileguard.features.hardware import known_hardware
from tileguard.features.tiles import ReductionTile
from tileguard.learner import baselines
from tileguard.learner.corpus import Corpus, KernelSweep, read_corpus, write_corpus
from tileguard.learner.evaluate import Evaluation, evaluate, set_slowdown
from tileguard.runtime.fallback import formula_tiles

H200 = known_hardware("h200")


@pytest.fixture(scope="module")
def evaluation(corpus: Corpus) -> Evaluation:
    return evaluate(corpus, H200, None)


@pytest.mark.parametrize(
    ("selector", "lossless", "severe", "n_pred"),
    [
        ("dense", 100, 0, "97.1"),
        ("host_default", 42, 19, "1.7"),
        ("host_max_autotune", 37, 17, "4.0"),
        ("host_coordinate_descent", 86, 1, "9.4"),
        ("formula", 96, 0, "14.5"),
        ("formula_all_warps", 98, 0, "26.8"),
    ],
)
def test_the_shipped_corpus_gives_the_published_numbers(
    evaluation: Evaluation, selector: str, lossless: int, severe: int, n_pred: str
) -> None:
    found = evaluation.summary(selector)
    assert f"{100 * found['lossless']:.0f}" == str(lossless)
    assert f"{100 * found['severe']:.0f}" == str(severe)
    assert f"{found['n_pred_mean']:.1f}" == n_pred


def sweep_of(tmp_path: Path, rows: list[dict[str, Any]]) -> KernelSweep:
    write_corpus(rows, tmp_path / "c.parquet")
    return read_corpus(tmp_path / "c.parquet").sweeps[0]


@pytest.fixture
def sweep(tmp_path: Path) -> KernelSweep:
    """R0_BLOCK 64, one warp, XBLOCK 1 to 32: a valley at 8, and a better tile beyond the ridge at 16."""
    times = {1: 9.0, 2: 5.0, 4: 3.0, 8: 2.0, 16: 6.0, 32: 1.0}
    ranks = {2: (1, 0), 1: (0, None)}
    rows = [
        corpus_row(
            xblock=x, r0_block=64, num_warps=1, us=us, us_min=us, us_median=us,
            host_default_rank=ranks.get(x, (None, None))[0], host_max_autotune_rank=ranks.get(x, (None, None))[1],
        )
        for x, us in times.items()
    ]  # fmt: skip
    return sweep_of(tmp_path, rows)


def test_dense_is_every_tile_and_the_host_lists_are_in_the_hosts_order(sweep: KernelSweep) -> None:
    assert baselines.dense(sweep) == (0, 1, 2, 3, 4, 5)
    assert baselines.host_default(sweep) == (0, 1)
    assert baselines.host_max_autotune(sweep) == (1,)


def test_coordinate_descent_walks_to_the_nearest_valley_and_pays_for_each_step(sweep: KernelSweep) -> None:
    # From X2 to X4 to X8, trying both neighbours each time; X32 lies beyond the ridge.
    assert [sweep.tiles[i].xblock for i in baselines.host_coordinate_descent(sweep)] == [2, 4, 1, 8, 16]


def test_coordinate_descent_stays_where_the_gain_is_below_its_threshold(tmp_path: Path) -> None:
    rows = [
        corpus_row(xblock=1, us=1.0, us_min=1.0, host_max_autotune_rank=0),
        corpus_row(xblock=2, us=0.9995, us_min=0.9),
        corpus_row(xblock=4, us=0.5, us_min=0.5),
    ]
    assert baselines.host_coordinate_descent(sweep_of(tmp_path, rows)) == (0, 1)


def test_coordinate_descent_goes_along_warps_and_r0_too(tmp_path: Path) -> None:
    rows = [
        corpus_row(xblock=1, r0_block=64, num_warps=2, us=4.0, us_min=4.0, us_median=4.0, host_max_autotune_rank=0),
        corpus_row(xblock=1, r0_block=64, num_warps=4, us=3.0, us_min=3.0),
        corpus_row(xblock=1, r0_block=128, num_warps=4, us=2.0, us_min=2.0),
        corpus_row(xblock=2, r0_block=128, num_warps=8, us=1.0, us_min=1.0),
    ]
    assert baselines.host_coordinate_descent(sweep_of(tmp_path, rows)) == (0, 1, 2)


def test_without_a_host_list_there_is_no_descent(tmp_path: Path) -> None:
    assert baselines.host_coordinate_descent(sweep_of(tmp_path, [corpus_row()])) == ()


def test_a_set_is_what_the_sweep_knows_of_it_in_order_and_once(sweep: KernelSweep) -> None:
    tiles = [ReductionTile(8, 64, 1), ReductionTile(3, 64, 1), ReductionTile(1, 64, 1), ReductionTile(8, 64, 1)]
    assert baselines.measured(sweep, tiles) == (3, 0)


def test_a_union_keeps_order_and_drops_duplicates() -> None:
    assert baselines.union((3, 1), (), (1, 2), (0, 3)) == (3, 1, 2, 0)


def test_the_formula_is_the_runtimes_own_and_all_warps_takes_every_warp_count_of_its_blocks(corpus: Corpus) -> None:
    for sweep in corpus.sweeps:
        derived, every = (baselines.formula(sweep, H200, all_warps=all_warps) for all_warps in (False, True))
        expected = formula_tiles(sweep.kernel, H200)
        assert [sweep.tiles[i] for i in derived] == [tile for tile in expected if tile in sweep.index]
        blocks = {(tile.xblock, tile.r0_block) for tile in expected}
        found = {sweep.tiles[i] for i in every}
        assert found == {tile for tile in sweep.tiles if (tile.xblock, tile.r0_block) in blocks}
        assert set(derived) <= set(every)


def test_a_failed_tile_never_wins(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, [corpus_row(us=3.0), failed_row("compile_error", xblock=2, host_default_rank=0)])
    assert set_slowdown(sweep, baselines.host_default(sweep)) == math.inf
    assert set_slowdown(sweep, baselines.dense(sweep)) == 1.0
