"""A CPU's formula: tiles by their registers, fitted to a corpus, shipped for every CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from tests.support import CPU, CPU_KERNELS

from tileguard.features.anchor import ASCEND_910B3, FormulaParams
from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import ReductionKernel
from tileguard.features.lanes import LaneRule, LaneTile
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.cpu import cpu_kernel
from tileguard.runtime.devices.cpu.budgets import cpu_tiles
from tileguard.runtime.devices.cpu.lane_rule import lane_class, lane_tile, lane_tiles, placed
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.formula import FITTED, fitted, params_json, parse_params

SOFTMAX = cpu_kernel("softmax", 64, 256, "bf16")


def test_a_tile_is_named_by_its_registers() -> None:
    assert lane_tile(SOFTMAX, ReductionTile(4, 16)) == LaneTile(6, 2, None)  # 16 lanes of fp32, four rows
    outer = cpu_kernel("softmax", 64, 256, "fp64", inner=False)
    assert lane_tile(outer, ReductionTile(4, 16, lowering="select")) == LaneTile(5, 4, "select")
    program = cpu_kernel("tile_rmsnorm", 64, 256, "fp32", inner=True)
    assert lane_tile(program, ReductionTile(8, 2, lowering="snapshot")) == LaneTile(5, 1, "snapshot")
    assert [lane_class(kernel) for kernel in (SOFTMAX, outer, program)] == [(False, True), (False, False), (True, True)]


@settings(deadline=None, max_examples=60)
@given(CPU_KERNELS)
def test_every_tile_of_a_lattice_is_placed_on_itself(kernel: ReductionKernel) -> None:
    tiles = cpu_tiles(kernel)
    assert placed([lane_tile(kernel, tile) for tile in tiles], kernel, tiles) == list(tiles)


def test_what_a_lattice_lacks_is_the_largest_tile_within() -> None:
    tiles = [ReductionTile(1, 8), ReductionTile(1, 16), ReductionTile(2, 8), ReductionTile(1, 8, lowering="snapshot")]
    wanted = [LaneTile(12, 0, None), LaneTile(5, 9, None), LaneTile(12, 9, None), LaneTile(12, 9, "snapshot")]
    assert placed(wanted, SOFTMAX, tiles) == [tiles[1], tiles[2], tiles[1], tiles[3]]
    assert placed([LaneTile(4, 0, None), LaneTile(9, 9, "select")], SOFTMAX, tiles) == [None, None]


@settings(deadline=None, max_examples=200)
@given(CPU_KERNELS)
def test_the_formula_of_a_cpu_is_some_of_the_lattice(kernel: ReductionKernel) -> None:
    found = formula_tiles(kernel, CPU)
    assert 1 <= len(found) <= 24
    assert list(found) == sorted(set(found))
    assert set(found) <= set(cpu_tiles(kernel))


def test_every_cpu_has_the_formula_of_its_kind_and_one_of_its_own_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted(CPU) is FITTED["cpu"]
    assert {(rule.program, rule.inner) for rule in FITTED["cpu"].lanes} == {(p, i) for p in (0, 1) for i in (0, 1)}
    own = FormulaParams(lanes=(LaneRule(False, True, (LaneTile(2, 0, None),)),))
    monkeypatch.setitem(FITTED, CPU.name, own)
    assert formula_tiles(SOFTMAX, CPU) == (ReductionTile(1, 1),)
    assert formula_tiles(SOFTMAX, replace(CPU, name="cpu-other")) != (ReductionTile(1, 1),)


def test_a_class_without_a_rule_has_the_rfcs_tiles() -> None:
    rules = (LaneRule(True, True, (LaneTile(5, 0, None),)),)
    assert lane_tiles(rules, SOFTMAX, cpu_tiles(SOFTMAX)) == ()
    assert formula_tiles(SOFTMAX, CPU, params=FormulaParams(lanes=rules)) == formula_tiles(
        SOFTMAX, CPU, params=ASCEND_910B3
    )


def test_rules_survive_their_file_and_a_broken_file_is_named() -> None:
    params = FITTED["cpu"]
    text = params_json(params)
    assert parse_params(text) == params
    for broken, field in (
        (text.replace('"snapshot"', '"snapsho"', 1), "lowering"),
        (text.replace('"program": false', '"program": 2', 1), "program"),
        (text.replace('"inner": true', '"inner": false', 1), "lanes"),
        (text.replace('"tiles": [', '"tiles": [[1],', 1), "lanes"),
        (text.replace('"program"', '"programme"', 1), "lanes"),
    ):
        assert broken != text
        with pytest.raises(InvalidInput, match=field):
            parse_params(broken)


@pytest.mark.parametrize("tile", [LaneTile(-1, 0, None), LaneTile(0, 49, None), LaneTile(0, 0, "fold")])
def test_a_tile_that_is_none_is_refused(tile: LaneTile) -> None:
    with pytest.raises(InvalidInput):
        LaneRule(False, True, (tile,))
