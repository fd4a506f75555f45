"""The union of a host's configs and a ranked list: whole, legal, in order."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileguard.runtime.hooks.configs import MAX_INDEX, Candidate, Limits, Refused, key_of, unite

H200 = Limits(
    xnumel=1000, rnumel=5000, max_x=4096, max_r0=65536, max_threads=1024, warp_size=32, hip=False, index64=False,
    one_row=False, minimums={},
)  # fmt: skip


def config(x: int, r: int | None, warps: int, stages: int = 1, **more: int) -> Any:
    kwargs = {"XBLOCK": x} if r is None else {"XBLOCK": x, "R0_BLOCK": r}
    return SimpleNamespace(kwargs=kwargs | more, num_warps=warps, num_stages=stages)


def make(kwargs: dict[str, int], warps: int, stages: int) -> Any:
    return SimpleNamespace(kwargs=kwargs, num_warps=warps, num_stages=stages)


def united(host: list[Any], tiles: list[Any], limits: Limits = H200, **more: Any) -> list[Candidate]:
    return unite(host, tiles, make, limits, **({"persistent": False, "scales": False} | more))


_POW2 = st.sampled_from([1 << e for e in range(18)])
_TILES = st.lists(
    st.tuples(
        st.integers(1, 5000) | _POW2,
        st.integers(1, 70000) | _POW2,
        st.sampled_from([1, 2, 3, 8, 32, 64]),
        st.just(1),
        st.sampled_from(["model", "formula", "formula+model"]),
    ),
    max_size=30,
)


@given(tiles=_TILES, persistent=st.booleans(), scales=st.booleans(), one_row=st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_hosts_list_comes_first_as_it_is_and_all_that_is_added_is_legal_and_new(
    tiles: list[Any], persistent: bool, scales: bool, one_row: bool
) -> None:
    r = (lambda value: None) if persistent else (lambda value: value)
    host = [config(1, r(2048), 16), config(8, r(512), 8), config(1, r(2048), 16)]
    limits = dataclasses.replace(H200, one_row=one_row, minimums={"XBLOCK": 1, "R0_BLOCK": 16})
    found = united(host, tiles, limits, persistent=persistent, scales=scales)
    assert [c.config for c in found[:3]] == host
    added = found[3:]
    assert len({key_of(c.config) for c in added}) == len(added)
    assert not {key_of(c.config) for c in added} & {key_of(c.config) for c in found[:3]}
    for candidate in added:
        x, r0, warps, _ = key_of(candidate.config)
        assert candidate.proposers
        assert 4096 % x == 0 and warps * 32 <= 1024 and warps & (warps - 1) == 0
        assert not one_row or x == 1
        assert (r0 is None) == persistent
        if r0 is not None:
            assert r0 & (r0 - 1) == 0 and 16 <= r0 <= 65536
    legal = {
        (x, None if persistent else r0, w, s)
        for x, r0, w, s, _ in tiles
        if limits.allows(x, r0, w, persistent=persistent)
    }
    assert legal <= {key_of(c.config) for c in found}, "a legal tile was lost"


def test_the_order_is_the_lists_own_and_proposers_add_up() -> None:
    tiles = [
        (4, 256, 4, 1, "model"),
        (1, 2048, 16, 1, "formula"),
        (2, 256, 4, 1, "formula+model"),
        (4, 256, 4, 1, "formula"),
    ]
    found = united([config(1, 2048, 16)], tiles)
    assert [(key_of(c.config)[:2], c.proposers) for c in found] == [
        ((1, 2048), ("host", "formula")), ((4, 256), ("model", "formula")), ((2, 256), ("formula", "model")),
    ]  # fmt: skip


def test_the_halved_variants_that_the_host_would_add_are_the_hosts() -> None:
    found = united([config(1, 2048, 16), config(8, 64, 4)], [(1, 1024, 16, 1, "model")], scales=True)
    assert [(key_of(c.config), c.proposers) for c in found[2:]] == [((1, 1024, 16, 1), ("host", "model"))]
    assert len(united([config(1, 2048, 16)], [], scales=True, persistent=False)) == 2


@pytest.mark.parametrize(
    ("limits", "tile", "allowed"),
    [
        ({"xnumel": 1}, (2, 64, 1), False),
        ({"xnumel": 1}, (1, 64, 1), True),
        ({"one_row": True}, (2, 64, 1), False),
        ({"minimums": {"R0_BLOCK": 128}}, (1, 64, 1), False),
        ({"minimums": {"XBLOCK": 4}}, (2, 64, 1), False),
        ({}, (8192, 1, 1), False),
        ({"max_x": 8192}, (8192, 1, 1), True),
        ({}, (1, 64, 64), False),
        ({"max_threads": 1024, "warp_size": 64}, (1, 64, 32), False),
        ({}, (3, 64, 1), False),
        ({}, (1, 96, 1), False),
        ({}, (4096, 512, 32), False),
        ({"xnumel": 2**40}, (1, 64, 1), False),
        ({"xnumel": 2**40, "index64": True}, (1024, 64, 1), True),
        ({"xnumel": MAX_INDEX, "hip": True}, (1, 64, 2), False),
        ({"xnumel": MAX_INDEX - 1}, (1024, 1, 1), False),
        ({"xnumel": 1, "rnumel": MAX_INDEX}, (1, 64, 1), False),
        ({"xnumel": 1, "rnumel": MAX_INDEX, "index64": True}, (1, 64, 1), True),
    ],
)
def test_limits(limits: dict[str, Any], tile: tuple[int, int, int], allowed: bool) -> None:
    assert dataclasses.replace(H200, **limits).allows(*tile, persistent=False) is allowed


def test_a_host_list_of_another_kind_is_refused() -> None:
    with pytest.raises(Refused, match="config_kind"):
        united([config(1, 64, 1, RSPLIT=4)], [])
    with pytest.raises(Refused, match="config_kind"):
        united([config(1, 64, 1)], [], persistent=True)
