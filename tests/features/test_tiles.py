"""Tiles: validated, hashable, and in one order everywhere."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tileguard.features.errors import InvalidInput
from tileguard.features.tiles import LOWERINGS, MatmulTile, ReductionTile, tile_columns

# Ascending: by XBLOCK, R0_BLOCK, warps (none first), stages, lowering (none first).
ORDERED = [
    ReductionTile(1, 8),
    ReductionTile(1, 8, None, 1, "loop"),
    ReductionTile(1, 8, None, 1, "snapshot"),
    ReductionTile(1, 8, None, 2),
    ReductionTile(1, 8, 1),
    ReductionTile(1, 8, 1, 2),
    ReductionTile(1, 8, 2),
    ReductionTile(1, 16),
    ReductionTile(2, 4),
    ReductionTile(16, 1),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("xblock", 0),
        ("xblock", -1),
        ("xblock", True),
        ("xblock", 2.0),
        ("xblock", None),
        ("r0_block", 0),
        ("r0_block", "8"),
        ("num_warps", 0),
        ("num_warps", False),
        ("num_stages", 0),
        ("num_stages", None),
        ("lowering", "vector"),
        ("lowering", ""),
    ],
)
def test_a_bad_field_is_refused_by_name_and_value(field: str, value: object) -> None:
    good: dict[str, Any] = {"xblock": 1, "r0_block": 8}
    with pytest.raises(InvalidInput) as caught:
        ReductionTile(**good | {field: value})
    assert caught.value.field == field
    assert caught.value.value is value


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_every_lowering_is_taken(lowering: str) -> None:
    assert ReductionTile(1, 8, lowering=lowering).lowering == lowering


def test_numpy_integers_are_taken_and_become_plain_ones() -> None:
    tile = ReductionTile(np.int64(4), np.int32(8), np.uint8(2), np.int16(1))  # type: ignore[arg-type]
    assert tile == ReductionTile(4, 8, 2)
    assert hash(tile) == hash(ReductionTile(4, 8, 2))
    assert all(type(value) is int for value in (tile.xblock, tile.r0_block, tile.num_warps, tile.num_stages))


def test_tiles_are_ordered_by_their_fields_none_first() -> None:
    shuffled = random.Random(0).sample(ORDERED, len(ORDERED))
    assert sorted(shuffled) == ORDERED
    for a, b in pairwise(ORDERED):
        assert a < b
        assert b > a
        assert a <= b
        assert a != b


def test_equal_tiles_are_one_key_and_differing_ones_are_not() -> None:
    assert (
        len({*ORDERED, *[ReductionTile(*t.sort_key[:2], t.num_warps, t.num_stages, t.lowering) for t in ORDERED]}) == 10
    )


def test_a_tile_is_frozen_and_survives_pickle() -> None:
    tile = ReductionTile(4, 8, 2, 3)
    with pytest.raises(AttributeError):
        tile.xblock = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(tile)) == tile


def test_a_tile_in_words_names_what_is_not_the_default() -> None:
    assert str(ReductionTile(4, 8)) == "X4·R8"
    assert str(ReductionTile(4, 8, 2, 3)) == "X4·R8·w2·s3"
    assert str(ReductionTile(4, 8, lowering="loop")) == "X4·R8·loop"


def test_columns_hold_one_tile_each_with_zero_for_no_warps() -> None:
    columns = tile_columns([ReductionTile(4, 8), ReductionTile(2, 16, 4, 3)])
    assert columns.dtype == np.int64
    assert columns.tolist() == [[4, 2], [8, 16], [0, 4], [1, 3]]


def test_no_tiles_make_no_columns() -> None:
    with pytest.raises(InvalidInput) as caught:
        tile_columns([])
    assert caught.value.field == "tiles"


@pytest.mark.parametrize("field", ["block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m"])
def test_a_matmul_tiles_bad_field_is_refused_by_name(field: str) -> None:
    good: dict[str, Any] = {"block_m": 128, "block_n": 128, "block_k": 64}
    with pytest.raises(InvalidInput) as caught:
        MatmulTile(**good | {field: 0})
    assert caught.value.field == field


def test_matmul_tiles_are_ordered_by_their_fields() -> None:
    tiles = [MatmulTile(64, 128, 32), MatmulTile(64, 128, 32, 4), MatmulTile(64, 128, 64), MatmulTile(128, 64, 32)]
    assert sorted(random.Random(0).sample(tiles, len(tiles))) == tiles
    assert len(set(tiles)) == 4
