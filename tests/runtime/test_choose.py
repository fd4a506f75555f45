"""From scores to a short list: greedy, deterministic, diverse where asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import TILES

from tileguard.features.tiles import ReductionTile
from tileguard.runtime.choose import choose

SCORED = st.lists(
    st.tuples(TILES, st.integers(-3, 3).map(float) | st.floats(-1e6, 1e6)), min_size=1, max_size=40,
    unique_by=lambda pair: pair[0],
)  # fmt: skip
DIVERSITY = st.sampled_from([0.0, 0.3, 1.0, 5.0])


def split(
    scored: list[tuple[ReductionTile, float]],
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], list[ReductionTile]]:
    return np.array([score for _, score in scored]), [tile for tile, _ in scored]


@settings(max_examples=300, deadline=None)
@given(scored=SCORED, diversity=DIVERSITY, k=st.integers(1, 20), more=st.integers(0, 20))
def test_the_first_k_of_more_are_the_k(
    scored: list[tuple[ReductionTile, float]], diversity: float, k: int, more: int
) -> None:
    scores, tiles = split(scored)
    assert choose(scores, tiles, k + more, diversity=diversity)[:k] == choose(scores, tiles, k, diversity=diversity)


@settings(max_examples=300, deadline=None)
@given(scored=SCORED, diversity=DIVERSITY, k=st.integers(1, 60))
def test_the_chosen_are_distinct_as_many_as_asked_and_led_by_the_best(
    scored: list[tuple[ReductionTile, float]], diversity: float, k: int
) -> None:
    scores, tiles = split(scored)
    chosen = choose(scores, tiles, k, diversity=diversity)
    assert len(chosen) == len(set(chosen)) == min(k, len(tiles))
    assert all(0 <= index < len(tiles) for index in chosen)
    assert scores[chosen[0]] == scores.max()


@settings(max_examples=200, deadline=None)
@given(scored=SCORED, k=st.integers(1, 60))
def test_without_diversity_it_is_the_plain_top_k_and_ties_go_to_the_earlier(
    scored: list[tuple[ReductionTile, float]], k: int
) -> None:
    scores, tiles = split(scored)
    expected = sorted(range(len(tiles)), key=lambda i: (-scores[i], i))[:k]
    assert list(choose(scores, tiles, k)) == expected


@settings(max_examples=100, deadline=None)
@given(scored=SCORED, diversity=DIVERSITY)
def test_choosing_changes_nothing_and_repeats(scored: list[tuple[ReductionTile, float]], diversity: float) -> None:
    scores, tiles = split(scored)
    before = scores.copy()
    assert choose(scores, tiles, 8, diversity=diversity) == choose(scores, tiles, 8, diversity=diversity)
    assert (scores == before).all()


@settings(max_examples=100, deadline=None)
@given(scored=SCORED, diversity=DIVERSITY, factor=st.sampled_from([0.5, 4.0]), shift=st.sampled_from([0.0, 64.0]))
def test_only_the_spread_of_scores_counts_not_their_unit(
    scored: list[tuple[ReductionTile, float]], diversity: float, factor: float, shift: float
) -> None:
    scores, tiles = split(scored)
    scores = np.round(scores)
    assert choose(scores * factor + shift, tiles, 1, diversity=diversity) == choose(
        scores, tiles, 1, diversity=diversity
    )


def test_equal_scores_are_spread_over_the_space_starting_with_the_first() -> None:
    tiles = [ReductionTile(1 << e, 64, 1) for e in range(9)]
    scores = np.zeros(9)
    assert choose(scores, tiles, 3) == (0, 1, 2)
    assert choose(scores, tiles, 3, diversity=1.0) == (0, 8, 4)


def test_a_close_neighbour_gives_way_to_a_distant_tile_and_a_far_better_one_does_not() -> None:
    tiles = [ReductionTile(1, 64, 1), ReductionTile(2, 64, 1), ReductionTile(1, 4096, 8)]
    assert choose(np.array([1.0, 0.99, 0.98]), tiles, 2) == (0, 1)
    assert choose(np.array([1.0, 0.99, 0.98]), tiles, 2, diversity=5.0) == (0, 2)
    assert choose(np.array([1.0, 0.99, -9.0]), tiles, 2, diversity=1.0) == (0, 1)


@pytest.mark.parametrize("diversity", [0.0, 1.0])
def test_of_nothing_nothing_is_chosen(diversity: float) -> None:
    assert choose(np.zeros(0), [], 8, diversity=diversity) == ()


def test_a_host_that_has_numpy_raise_on_underflow_changes_nothing() -> None:
    tiles = [ReductionTile(1 << x, 1 << r, 1) for x in (0, 20, 40) for r in (0, 20, 40)]
    scores = np.array([1.0, -1.0, 1e-200, -1e-200, *[0.0] * 5])  # deviations whose squares underflow
    with np.errstate(all="raise"):
        strict = choose(scores, tiles, 5, diversity=1e300)
    assert strict == choose(scores, tiles, 5, diversity=1e300)


def test_one_block_under_two_lowerings_is_two_tiles_and_not_one() -> None:
    tiles = [ReductionTile(8, 1), ReductionTile(8, 2), ReductionTile(8, 1, lowering="snapshot"), ReductionTile(1, 64)]
    scores = np.array([3.0, 2.9, 2.8, 0.0])
    assert choose(scores, tiles, 2) == (0, 1)
    # The neighbour tells less than the same block lowered otherwise.
    assert choose(scores, tiles, 2, diversity=1.0) == (0, 2)
    plain = [ReductionTile(t.xblock, t.r0_block, t.num_warps) for t in tiles[:2]]
    assert choose(scores[:2], plain, 2, diversity=1.0) == choose(scores[:2], tiles[:2], 2, diversity=1.0)
