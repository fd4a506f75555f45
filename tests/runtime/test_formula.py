"""The RFC's selector: its printed examples, its listing, and what it leaves open."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import rfc_listing
from tests.support import DTYPES, HARDWARE, NUMELS, kernels

from tileguard.features.anchor import ASCEND_910B3, AnchorRule, FormulaParams, Offset, anchor
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import DTYPE_BYTES, ReductionKernel
from tileguard.features.pow2 import pow2_ceil, pow2_floor
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.formula import FITTED, params_json, parse_params, select_candidates
from tileguard.runtime.lattice import is_legal

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reduction_formula.json").read_text())["cases"]
HOLE = list(product((1, 2, 4, 8), (512, 1024, 2048, 4096)))

# Bytes agree with the listing's for these alone: it takes 4 for fp64 and for 8-bit types.
SHARED_DTYPES = ("fp32", "fp16", "bf16", "f16", "i32", "tf32")


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['args']['xnumel']}x{case['args']['rnumel']}")
def test_the_rfcs_examples_are_reproduced_exactly(case: dict[str, Any]) -> None:
    found = select_candidates(**case["args"])
    assert found == [tuple(pair) for pair in case["candidates"]]
    assert len(found) == case["count"]
    assert found == rfc_listing.select_candidates(**case["args"])


def test_the_rfcs_examples_have_16_12_and_27_candidates() -> None:
    assert len(select_candidates(64, 401408, "fp32", 6, 2)) == 16
    assert len(select_candidates(65536, 49, "fp32", 2, 1)) == 12
    assert len(select_candidates(2048, 768, "fp32", 6, 2)) == 27


@settings(max_examples=4000, deadline=None)
@given(
    xnumel=st.integers(1, 1 << 40) | st.integers(1, 5000),
    rnumel=st.integers(1, 60_000) | st.integers(50_000, 1 << 40),
    dtype=st.sampled_from(SHARED_DTYPES),
    num_load=st.integers(1, 12),
    num_reduction=st.integers(1, 6),
    min_ptr_elem_bytes=st.sampled_from([None, 1, 2, 4, 8]),
)
def test_every_kernel_gets_the_candidates_of_the_rfcs_listing(**args: Any) -> None:
    assert select_candidates(**args) == rfc_listing.select_candidates(**args)


@settings(max_examples=1000, deadline=None)
@given(xnumel=NUMELS, rnumel=NUMELS, dtype=DTYPES, num_load=st.integers(0, 12), num_reduction=st.integers(1, 6))
def test_candidates_are_never_empty_sorted_distinct_and_within_their_bounds(
    xnumel: int, rnumel: int, dtype: str, num_load: int, num_reduction: int
) -> None:
    pairs = select_candidates(xnumel, rnumel, dtype, num_load, num_reduction)
    assert pairs
    assert pairs == sorted(set(pairs))
    assert all(1 <= x <= pow2_floor(xnumel) and 1 <= r <= pow2_ceil(rnumel) for x, r in pairs)


@pytest.mark.parametrize("exponent", range(1, 49))
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_the_largest_xblock_is_exact_next_to_a_power_of_two(exponent: int, offset: int) -> None:
    xnumel = (1 << exponent) + offset
    widest = max(x for x, _ in select_candidates(xnumel, 1024, "fp32", 1, 1))
    assert widest == (1 << exponent if offset >= 0 else 1 << (exponent - 1))


@pytest.mark.parametrize("exponent", range(1, 49))
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_r0_block_is_bounded_exactly_next_to_a_power_of_two(exponent: int, offset: int) -> None:
    rnumel = (1 << exponent) + offset
    largest = max(r for _, r in select_candidates(64, rnumel, "bf16", 1, 1))
    ceiling = rnumel if rnumel <= 2 else 1 << exponent if offset <= 0 else 1 << (exponent + 1)
    if rnumel <= 64:
        assert largest == ceiling
    elif rnumel >= 50_000:
        assert largest == 4096
    else:
        assert largest <= rnumel


def test_the_regimes_change_where_the_rfc_says() -> None:
    assert [r for _, r in select_candidates(1, 64, "fp32", 1, 1)] == [64]
    assert {r for _, r in select_candidates(1, 65, "fp32", 1, 1)} > {65}
    assert {r for _, r in select_candidates(64, 49_999, "fp32", 1, 1)} != {512, 1024, 2048, 4096}
    assert select_candidates(64, 50_000, "fp32", 1, 1) == HOLE


def test_an_anchor_is_among_the_candidates_it_centres() -> None:
    for kernel in (ReductionKernel(64, 401408, "fp32", 6, 2), ReductionKernel(2048, 768, "fp32", 6, 2)):
        centre = anchor(kernel)
        found = select_candidates(kernel.xnumel, kernel.rnumel, kernel.dtype, kernel.num_load, kernel.num_reduction)
        assert (centre.x, centre.r) in found


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_bytes_of_every_dtype_are_its_own(dtype: str) -> None:
    assert select_candidates(2048, 768, dtype, 6, 2) == select_candidates(2048, 768, "fp32", 6, 2, DTYPE_BYTES[dtype])


def test_the_narrowest_pointer_overrides_the_dtype() -> None:
    assert select_candidates(2048, 768, "fp32", 6, 2, 2) == select_candidates(2048, 768, "bf16", 6, 2)
    assert select_candidates(2048, 768, "fp32", 6, 2, 2) != select_candidates(2048, 768, "fp32", 6, 2)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"xnumel": 0}, "xnumel"),
        ({"rnumel": -3}, "rnumel"),
        ({"rnumel": 1.5}, "rnumel"),
        ({"xnumel": True}, "xnumel"),
        ({"dtype": "fp33"}, "dtype"),
        ({"num_load": -1}, "num_load"),
        ({"num_reduction": 0}, "num_reduction"),
        ({"min_ptr_elem_bytes": 0}, "min_ptr_elem_bytes"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_name_and_value(change: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {"xnumel": 64, "rnumel": 1024, "dtype": "fp32", "num_load": 1, "num_reduction": 1}
    with pytest.raises(InvalidInput) as caught:
        select_candidates(**good | change)
    assert (caught.value.field, caught.value.value) == (field, change[field])


def test_a_fixed_grid_outside_a_small_kernel_leaves_one_candidate() -> None:
    params = FormulaParams(rn_small=1, rn_hole=2, hole_x=(64,), hole_r=(4096,))
    assert select_candidates(1, 3, "fp32", 1, 1, params=params) == [(1, 4)]


@pytest.mark.parametrize(("small", "hole"), [(0, 10), (10, 10), (11, 10)])
def test_regimes_out_of_order_are_refused(small: int, hole: int) -> None:
    with pytest.raises(InvalidInput):
        FormulaParams(rn_small=small, rn_hole=hole)


@settings(max_examples=800, deadline=None)
@given(kernel=kernels(), spec=st.sampled_from(HARDWARE))
def test_the_formulas_tiles_are_legal_sorted_and_never_empty(kernel: ReductionKernel, spec: HardwareSpec) -> None:
    tiles = formula_tiles(kernel, spec)
    assert tiles
    assert list(tiles) == sorted(set(tiles))
    assert all(is_legal(tile, kernel, spec) for tile in tiles)


@settings(max_examples=400, deadline=None)
@given(kernel=kernels(), spec=st.sampled_from(HARDWARE))
def test_all_warp_counts_hold_the_derived_one_and_add_no_blocks(kernel: ReductionKernel, spec: HardwareSpec) -> None:
    derived, every = formula_tiles(kernel, spec), formula_tiles(kernel, spec, all_warps=True)
    assert set(derived) <= set(every)
    assert {(t.xblock, t.r0_block) for t in derived} == {(t.xblock, t.r0_block) for t in every}


def test_on_the_rfcs_own_hardware_the_tiles_are_the_listings_pairs() -> None:
    kernel = ReductionKernel(65536, 49, "fp32", 2, 1)
    pairs = [(t.xblock, t.r0_block) for t in formula_tiles(kernel, known_hardware("ascend910b3"))]
    assert pairs == rfc_listing.select_candidates(65536, 49, "fp32", 2, 1)


def test_on_nvidia_an_r0_of_rnumel_becomes_the_power_of_two_above_it() -> None:
    tiles = formula_tiles(ReductionKernel(65536, 49, "fp32", 2, 1), known_hardware("h100"))
    assert {t.r0_block for t in tiles} == {64}
    assert {(t.xblock, t.num_warps) for t in tiles} == {(1, 1), (16, 8), (32, 16), (64, 32), (128, 32), (256, 32)}


def test_a_persistent_kernel_keeps_only_the_xblocks() -> None:
    tiles = formula_tiles(ReductionKernel(2048, 768, "fp32", 6, 2, persistent=True), known_hardware("h100"))
    assert {t.r0_block for t in tiles} == {1024}
    pairs = select_candidates(2048, 768, "fp32", 6, 2)
    # 65,536 registers hold no more than 64 rows of 1024.
    assert {t.xblock for t in tiles} == {x for x, _ in pairs if x <= 64} < {x for x, _ in pairs}


@pytest.mark.parametrize("name", sorted(FITTED))
def test_a_formula_is_the_same_after_its_file(name: str) -> None:
    assert parse_params(params_json(FITTED[name])) == FITTED[name]


def test_the_rfcs_formula_has_no_rules() -> None:
    assert FITTED["ascend910b3"] == ASCEND_910B3 == FormulaParams()
    assert ASCEND_910B3.rules == ()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "formula"),
        ("[]", "formula"),
        ('{"rn_smal": 3}', "formula"),
        ('{"rn_small": 9, "rn_hole": 9}', "rn_small"),
        ('{"rules": [{"inner": true}]}', "rules"),
        ('{"rules": 3}', "rules"),
        ('{"rules": [{"outer": true}]}', "rules"),
    ],
)
def test_a_formulas_file_that_cannot_be_is_refused_by_field(text: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_params(text)
    assert caught.value.field == field


def test_a_rule_is_finite_its_anchors_are_known_and_its_class_has_no_other() -> None:
    good = AnchorRule(True, False, 8.0, 0.0, 0.0, 0.0, 0.0, -7.0, 1.0, (Offset("split", 0, 0, 0),))
    with pytest.raises(InvalidInput, match="product_slope"):
        replace(good, product_slope=float("nan"))
    with pytest.raises(InvalidInput, match="anchor"):
        replace(good, offsets=(Offset("middle", 0, 0, 0),))
    with pytest.raises(InvalidInput, match="rules"):
        FormulaParams(rules=(good, replace(good, product_slope=1.0)))
