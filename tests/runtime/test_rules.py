"""Fitted rules: where their anchors lie, and that every tile of any rule on any hardware is legal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import HARDWARE, kernels

from tileguard.features.anchor import ANCHORS, COEFFICIENTS, AnchorRule, FormulaParams, Offset
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.formula import FITTED
from tileguard.runtime.lattice import is_legal, lattice
from tileguard.runtime.rules import placed, rule_tiles
from tileguard.runtime.selector import Selector

H200 = known_hardware("h200")
ROUND = ReductionKernel(4096, 1024, "fp32", 1, 1)
FLAT = AnchorRule(True, False, 11.0, -1.0, 0.0, -5.0, 0.0, -7.0, 1.0, ())
"""P* = 2048 (1024 where narrow), X/R0 = 1/32: (8, 256), and 128 elements a warp."""

NUMBERS = st.floats(-20.0, 20.0)
OFFSETS = st.builds(
    Offset, st.sampled_from(ANCHORS), st.integers(-8, 8), st.integers(-8, 20), st.integers(-6, 6)
)  # fmt: skip


@st.composite
def rules_of(draw: st.DrawFn, kernel: ReductionKernel) -> AnchorRule:
    numbers = {name: draw(NUMBERS) for name in COEFFICIENTS}
    offsets = tuple(draw(st.lists(OFFSETS, max_size=12)))
    return AnchorRule(inner=kernel.inner, persistent=kernel.persistent, offsets=offsets, **numbers)


def only(offset: Offset, kernel: ReductionKernel = ROUND, rule: AnchorRule = FLAT) -> ReductionTile | None:
    return placed(replace(rule, offsets=(offset,)), kernel, H200)[0]


@pytest.mark.parametrize(
    ("offset", "tile"),
    [
        (Offset("split", 0, 0, 0), (8, 256, 16)),
        (Offset("split", -1, 1, 0), (4, 512, 16)),
        (Offset("split", 0, 0, -1), (8, 256, 8)),
        (Offset("fill", 0, 0, 0), (2, 1024, 16)),
        (Offset("fill", 1, 0, 1), (4, 1024, 32)),
        (Offset("short", 0, 4, 0), (128, 16, 16)),
        (Offset("short", -2, 4, 0), (32, 16, 4)),
        (Offset("wide", 0, 2, 0), (512, 4, 16)),
    ],
)
def test_each_anchor_is_where_its_name_says(offset: Offset, tile: tuple[int, int, int]) -> None:
    assert only(offset) == ReductionTile(*tile)


def test_a_narrow_kernel_gets_the_narrow_product() -> None:
    assert only(Offset("fill", 0, 0, 0), replace(ROUND, dtype="bf16")) == ReductionTile(1, 1024, 8)


def test_offsets_past_the_lattice_stay_at_its_edge() -> None:
    assert only(Offset("split", -9, 0, 0)) == ReductionTile(1, 256, 2)
    assert only(Offset("split", 0, 0, 9)) == ReductionTile(8, 256, 16)  # four elements a thread at least
    assert only(Offset("split", 0, 9, 0)) == ReductionTile(8, 1024, 32)


def test_a_persistent_rule_fills_whatever_its_anchor() -> None:
    kernel, rule = replace(ROUND, persistent=True), replace(FLAT, persistent=True)
    assert {only(Offset(anchor, 0, 3, 0), kernel, rule) for anchor in ANCHORS} == {ReductionTile(2, 1024, 16)}


@settings(max_examples=600, deadline=None)
@given(data=st.data(), kernel=kernels(), spec=st.sampled_from(HARDWARE))
def test_any_rules_tiles_are_of_the_lattice_legal_sorted_and_distinct(
    data: st.DataObject, kernel: ReductionKernel, spec: HardwareSpec
) -> None:
    rule = data.draw(rules_of(kernel))
    tiles = rule_tiles(rule, kernel, spec)
    assert list(tiles) == sorted(set(tiles))
    assert set(tiles) == {tile for tile in placed(rule, kernel, spec) if tile is not None}
    assert len(placed(rule, kernel, spec)) == len(rule.offsets)
    assert all(tile in lattice(kernel, spec).position and is_legal(tile, kernel, spec) for tile in tiles)
    # Whatever the rule, the formula proposes something legal.
    found = formula_tiles(kernel, spec, params=FormulaParams(rules=(rule,)))
    assert found
    assert set(tiles) <= set(found)
    assert all(is_legal(tile, kernel, spec) for tile in found)
    assert set(found) <= set(formula_tiles(kernel, spec, params=FormulaParams(rules=(rule,)), all_warps=True))


@settings(max_examples=400, deadline=None)
@given(kernel=kernels())
def test_on_an_h200_the_fitted_rules_decide_and_the_union_holds_them(kernel: ReductionKernel) -> None:
    rule = FITTED["h200"].rule_of(kernel)
    assert rule is not None
    tiles = formula_tiles(kernel, H200)
    assert tiles == (rule_tiles(rule, kernel, H200) or formula_tiles(kernel, H200, params=FormulaParams()))
    assert len(tiles) <= len(rule.offsets) <= 42
    assert set(tiles) <= set(Selector(H200, model=None).select(kernel).tiles)


def test_a_class_without_a_rule_gets_the_rfcs_tiles() -> None:
    params = FormulaParams(rules=(replace(FLAT, inner=False, offsets=(Offset("split", 0, 0, 0),)),))
    assert formula_tiles(ROUND, H200, params=params) == formula_tiles(ROUND, H200, params=FormulaParams())
