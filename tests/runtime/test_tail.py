"""The tail planner: the BMM note's figures, its table and formulas, and exact cuts proved by enumeration."""

from __future__ import annotations

import json
import math
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.runtime.tail import DECISION_TABLE, STRATEGIES, TailPlan, placement, plan_tail
from tileguard.runtime.tail import closed as forms
from tileguard.runtime.tail.limits import fits, k_step, tile_limits
from tileguard.runtime.tail.region import Rect, better_cut, region_rects, split_rects, tail_region, tile_count
from tileguard.runtime.tail.rules import Facts, fired
from tileguard.runtime.tail.terms import (
    Terms,
    block_terms,
    critical_k,
    critical_side,
    critical_tile,
    dominance,
    rates,
)

ASCEND = known_hardware("ascend950pr")
UNIT = ASCEND.matmul
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "bmm_tail.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in GOLDEN["cases"]}
L2_BANDWIDTH = 162.5e9
NEAR = 0.005

BOUNDARY = CASES["5.4 ex4 wave boundary"]
FIX_NO_FLIP = CASES["4.4 ex4 FIX, no flip"]


def near(value: float) -> Any:
    return pytest.approx(value, rel=NEAR)


def kernel_of(case: dict[str, Any]) -> MatmulKernel:
    return MatmulKernel(case["batch"], case["m"], case["n"], case["k"], case["dtype"])


def plan_of(case: dict[str, Any], **options: Any) -> TailPlan:
    """A golden case as the note has it; the decode case only comes out at L2's rate."""
    if "main_tile" in case:
        options.setdefault("main_tile", tuple(case["main_tile"]))
    if case.get("bandwidth", "").startswith("L2 forced"):
        options.setdefault("bandwidth", L2_BANDWIDTH)
    return plan_tail(kernel_of(case), ASCEND, **{"geometry": "area"} | options)


def random_kernel(rng: random.Random, *, most_side: float = 11.5) -> MatmulKernel:
    def count(most: float) -> int:
        return int(2 ** rng.uniform(0, most))

    return MatmulKernel(
        count(5), count(most_side), count(most_side), count(14), rng.choice(["bf16", "fp16", "fp8"]),
        out_dtype=rng.choice([None, None, "fp32"]), a_transposed=rng.random() < 0.2, b_transposed=rng.random() < 0.4,
    )  # fmt: skip


# -- the note's figures


@pytest.mark.parametrize("name", CASES)
def test_every_golden_case_comes_out_within_half_a_per_cent(name: str) -> None:
    case, plan = CASES[name], plan_of(CASES[name])
    for strategy in STRATEGIES:
        if f"{strategy}_us" in case:
            assert plan[strategy].us == near(case[f"{strategy}_us"]), strategy
    for field in ("n_blk", "n_wave", "r"):
        assert getattr(plan.main, field) == case.get(field, getattr(plan.main, field))
    assert plan.rho == case.get("rho", plan.rho)
    for field, term in (("t_mmad_us", "mmad"), ("t_mte2_us", "mte2"), ("t_fix_us", "fix")):
        assert getattr(plan.terms, term) == near(case.get(field, getattr(plan.terms, term)))
    if "A1b_us_at_most" in case:
        assert plan["A1b"].us <= case["A1b_us_at_most"]
    tile = case.get("A1b_tile", case.get("A1b_tile_area_model"))
    assert tile is None or plan["A1b"].tail_tile == tuple(tile)
    assert "B_split" not in case or plan["B"].split == tuple(case["B_split"])
    assert "A1a" not in case or plan.latency_us["A1a"] is None
    assert "loss_of_B" not in case or plan["B"].us / plan["A1b"].us - 1 == pytest.approx(case["loss_of_B"], abs=5e-4)


@pytest.mark.parametrize("split", BOUNDARY["splits"])
def test_the_splits_of_the_wave_boundary_example_cost_what_the_note_says(split: str) -> None:
    want = BOUNDARY["splits"][split]
    cut = plan_of(BOUNDARY, main_tile=tuple(want["tile"])).main
    assert cut.split == tuple(int(count) for count in split.split(","))
    assert (cut.n_blk, cut.n_wave) == (want["n_blk"], want["w"])
    assert cut.us == near(want["t_us"])


def test_the_notes_bounds_come_out() -> None:
    bounds, k = GOLDEN["bounds"], MatmulKernel(1, 1, 1, 1, "bf16")
    for source, bandwidth in (("l2", L2_BANDWIDTH), ("gm", 50e9)):
        found = rates(k, ASCEND, bandwidth)
        assert critical_tile(found) == near(bounds[f"tile_critical_{source}"])
        assert critical_side(found) == near(bounds[f"square_side_{source}"])
        assert critical_k(found) == near(bounds["k_critical"])
    for width, f in bounds["f_max_minus_1"].items():
        rho_dv = (256 / (int(width.removeprefix("sN=")) * 2)) ** 2
        assert forms.largest_loss(32, rho_dv) - 1 == pytest.approx(f, abs=5e-4)


def test_inputs_larger_than_l2_are_read_from_memory() -> None:
    assert rates(kernel_of(CASES["4.4 ex1 MMAD"]), ASCEND).source == "l2"
    assert rates(kernel_of(BOUNDARY), ASCEND).source == "gm"
    at_the_edge = MatmulKernel(1, 1 << 13, 1 << 13, 1 << 12, "bf16")
    assert at_the_edge.input_bytes == ASCEND.l2_bytes
    assert rates(at_the_edge, ASCEND).load_bytes_per_s == L2_BANDWIDTH


def test_the_documented_slips_of_the_note_stay_differences() -> None:
    # 5.4 ex4: 28 tiles of 320 x 224 fill 32 cores by area; per batch of 1280 x 256 there are four such rows, and eight
    # tiles, so that seven batches need 56. No rectangles give the note's 178 µs.
    assert plan_of(BOUNDARY)["A1b"].us == near(178.26)
    exact = plan_of(BOUNDARY, geometry="exact")
    assert exact["A1b"].us == exact.main.us == near(188.74)
    assert not exact["A1b"].new_tail
    assert exact.strategy == "A0"
    # 4.4 ex2: by MMAD alone A1a would take 53.0; the 256 x 128 tail is ruled by its loads.
    assert plan_of(CASES["4.4 ex2 MMAD, r divides C"])["A1a"].us == near(54.71)
    # 4.4 ex3: 96 x 96 breaks the burst limit.
    flips = CASES["4.4 ex3 FIX, tail flips"]
    assert not fits(96, 96, limits_of(flips))
    assert plan_of(flips)["A1b"].tail_tile == (64, 128)
    # 4.4 ex4: the note's uniform (187/s)² would call this a flip; ruled by FIX it is none, as the note's figures say.
    plan = plan_of(FIX_NO_FLIP)
    assert plan.rho < (critical_side(plan.rates) / 256) ** 2
    assert plan.rho > plan.rho_flip
    # 7.2.3: B1's threshold holds here, and whole rounds cost two and a half times A0 (v1.4's 477.1).
    boundary = plan_of(BOUNDARY)
    assert boundary.b1_applies
    assert boundary["B1"].us == near(477.1)


def test_exact_cuts_that_exist_reach_the_notes_figures() -> None:
    for name, us in (("5.4 ex3 MTE2 from GM", 377.49), ("7.2.3 decode", 70.77), ("4.4 ex3 FIX, tail flips", 3.23)):
        assert plan_of(CASES[name], geometry="exact")["A1b"].us == near(us)


def test_the_older_rule_fills_the_cores_and_the_newer_crosses_a_wave() -> None:
    assert plan_of(BOUNDARY, first="fill").main.split == (5, 1)
    assert plan_of(BOUNDARY, first="waves").main.split == (4, 1)
    assert plan_of(BOUNDARY, first="fill").main.us == near(335.5)


# -- terms


def test_the_ratios_of_the_dominance_test_agree_with_the_terms() -> None:
    rng = random.Random(3)
    seen = set()
    for _ in range(2000):
        kernel = random_kernel(rng)
        found = rates(kernel, ASCEND)
        tile = 16 * rng.randint(1, 64), 16 * rng.randint(1, 64)
        terms = block_terms(*tile, found)
        ruling = dominance(*tile, found)
        assert getattr(terms, ruling) == pytest.approx(terms.block, rel=1e-12)
        seen.add(ruling)
    assert seen == {"mmad", "mte2", "fix"}


def test_terms_scale_by_area_and_perimeter() -> None:
    found = rates(kernel_of(BOUNDARY), ASCEND)
    quarter, whole = block_terms(128, 128, found), block_terms(256, 256, found)
    for term in ("mmad", "mte2", "fix"):
        assert getattr(whole.scaled(4), term) == pytest.approx(getattr(quarter, term))
    assert (Terms(3, 2, 1).kind, Terms(1, 3, 2).kind, Terms(2, 2, 2).kind) == ("area", "perimeter", "area")
    with pytest.raises(InvalidInput, match="g"):
        whole.scaled(0)


# -- limits


def limits_of(case: dict[str, Any], **changes: Any) -> Any:
    assert UNIT is not None
    return tile_limits(replace(kernel_of(case), **changes), UNIT)


def test_limits_are_the_notes() -> None:
    decode = CASES["7.2.3 decode"]
    assert fits(64, 832, limits_of(decode))
    assert not fits(64, 1120, limits_of(decode))  # K step below 128
    square = limits_of(CASES["5.4 ex3 MTE2 from GM"])
    assert fits(512, 512, square)
    assert not fits(1024, 512, square)
    assert not fits(512, 112, square)  # 224 bytes a row of B
    assert fits(112, 512, square)  # A's rows run along K
    assert int(k_step(512, 512, square)) == 128


def test_a_transposed_input_moves_the_burst_limit_to_its_other_axis() -> None:
    square = CASES["5.4 ex3 MTE2 from GM"]
    assert fits(512, 112, limits_of(square, b_transposed=True))
    assert not fits(112, 512, limits_of(square, a_transposed=True))
    assert limits_of(square, a_transposed=True).burst_k == 0
    assert limits_of(square, a_transposed=True, b_transposed=True).burst_k == 128


def test_small_moves_are_refused_unless_the_tile_takes_the_axis() -> None:
    square = CASES["5.4 ex3 MTE2 from GM"]
    assert not fits(16, 512, limits_of(square))  # 496 · 16 · 2 B < 16 KiB
    assert fits(16, 512, limits_of(square, m=16))
    assert fits(16, 512, limits_of(square, k=128))


def test_axes_shorter_than_a_burst_are_taken_whole() -> None:
    plan = plan_tail(MatmulKernel(3, 40, 40, 24, "bf16"), ASCEND)
    assert plan.chosen.main_tile[1] == 48


# -- the table and the closed forms

ROWS: dict[int, tuple[tuple[int, int, int, int], tuple[int, int] | None]] = {
    1: ((1, 4096, 4096, 4096), (256, 256)),
    2: ((20, 1000, 512, 64), None),
    3: ((1, 2304, 2304, 256), (256, 256)),
    4: ((1, 1536, 1536, 256), (256, 256)),
    5: ((34, 1024, 1024, 2048), (512, 512)),
    6: ((5, 256, 3328, 8192), (256, 256)),
    7: ((1, 2304, 512, 512), (128, 256)),
}


@pytest.mark.parametrize("number", ROWS)
def test_each_of_the_seven_rows_is_reached(number: int) -> None:
    (batch, m, n, k), tile = ROWS[number]
    plan = plan_tail(MatmulKernel(batch, m, n, k, "bf16"), ASCEND, main_tile=tile)
    assert plan.rule is DECISION_TABLE[number - 1]
    assert plan.rule.number == number
    assert 0 < plan.rule_us < math.inf


@pytest.mark.parametrize(
    ("number", "us", "changes"),
    [
        (1, 20.0, {"r": 0, "rho": 0.0, "g": 1.0}),
        (2, 12.5, {}),
        (3, 17.5, {"r": 24, "rho": 0.75, "g": 2 / 1.75}),
        (4, 12.5, {"rho_flip": 0.3}),
        (5, 15.0, {"kind": "perimeter"}),
        (6, 10 * 2 / math.sqrt(1.6), {"kind": "perimeter", "rho_dv": 0.625}),
        (7, 9.0, {"kind": "perimeter", "rho_dv": 0.3}),
        (7, 9.0, {"kind": "perimeter", "rho_dv": 0.7}),
    ],
)
def test_rows_fire_on_the_notes_conditions_with_its_times(number: int, us: float, changes: dict[str, Any]) -> None:
    facts = Facts(
        cores=32, n_wave=2, r=8, rho=0.25, g=1.6, kind="area", t=10.0, rho_dv=0.0625, rho_flip=0.1, best_us=9.0
    )
    rule = fired(replace(facts, **changes))
    assert rule.number == number
    assert rule.us(replace(facts, **changes)) == pytest.approx(us)


def test_the_three_intervals_lie_where_the_note_has_them() -> None:
    g = forms.growth(2, 0.25)
    assert g == pytest.approx(1.6)
    assert [forms.interval(0.25, rho_dv, g) for rho_dv in (0.0, 0.25, 0.26, 1 / 1.6, 0.63, 4.0)] == [
        "I", "I", "II", "II", "III", "III",
    ]  # fmt: skip
    for where, (shape, tile) in {
        "I": ((34, 1024, 1024, 2048), (512, 512)),
        "II": ((1, 2304, 512, 512), (128, 256)),
        "III": ((1, 64, 128, 256), (64, 128)),
        None: ((1, 2304, 2304, 256), (256, 256)),
    }.items():
        batch, m, n, k = shape
        assert plan_tail(MatmulKernel(batch, m, n, k, "bf16"), ASCEND, main_tile=tile).interval == where


def test_b_beats_a_stuck_a1b_exactly_where_their_times_say_so() -> None:
    for n_wave in (1, 2, 3, 8):
        for r in range(1, 33):
            for rho_dv in (0.01, 0.0625, 0.25, 0.6, 1.0):
                rho = r / 32
                boundary = n_wave * math.sqrt((n_wave - 1 + rho) / n_wave) - (n_wave - 1)
                if abs(math.sqrt(rho_dv) - boundary) > 1e-12:
                    assert forms.b_beats_stuck_a1b(rho, rho_dv, n_wave) == (math.sqrt(rho_dv) > boundary)


def test_by_area_a1b_and_b_tie_and_by_perimeter_a1b_wins() -> None:
    for n_wave in range(1, 12):
        for r in range(1, 33):
            rho = r / 32
            assert forms.a1b_time(1, n_wave, rho, "area") == pytest.approx(forms.b_time(1, n_wave, rho, "area"))
            f = forms.loss(rho, n_wave)
            assert f >= 1 - 1e-12
            assert f == pytest.approx(
                forms.b_time(1, n_wave, rho, "perimeter") / forms.a1b_time(1, n_wave, rho, "perimeter")
            )
            assert rho < 1 / forms.growth(n_wave, rho) or n_wave == 1 or r == 32


def test_the_loss_falls_with_rho_and_from_two_waves_on() -> None:
    shares = [r / 32 for r in range(1, 33)]
    for n_wave in range(2, 10):
        losses = [forms.loss(rho, n_wave) for rho in shares]
        assert losses == sorted(losses, reverse=True)
        assert all(forms.loss(rho, n_wave) >= forms.loss(rho, n_wave + 1) for rho in shares)
    assert forms.loss(0.25, 2) == pytest.approx(1.0541, abs=1e-4)
    assert forms.loss(1.0, 3) == 1.0


def test_a1a_times_and_the_flip_are_the_notes() -> None:
    assert forms.a1a_time(83.886, 5, 4, "perimeter") == near(388.0)
    assert forms.a1a_time(2.62144, 2, 2, "area") == near(3.93)
    side, found = 256, rates(MatmulKernel(1, 256, 256, 4096, "bf16"), ASCEND)
    terms = block_terms(side, side, found)
    assert forms.flip_share(terms.area, terms.mte2) == pytest.approx((critical_side(found) / side) ** 2)
    assert forms.shape_penalty(1) == 1
    assert forms.shape_penalty(4) == forms.shape_penalty(0.25) == 1.25


def test_b1s_threshold_and_b0s_choice() -> None:
    assert not forms.b1_applies(0, 4096, 304, 1.6, 0.1)
    assert forms.b1_applies(1, 4096, 304, 32, 1.0)
    assert forms.b1_applies(1, 64, 304, 1.6, 0.25)
    assert not forms.b1_applies(1, 64, 304, 1.6, 0.7)
    assert forms.b0_choice(0, "area", 0, 0.1, 1, 1) == "A0"
    assert forms.b0_choice(8, "area", 0.25, 0.1, 1.6, 2) == "B"
    assert forms.b0_choice(8, "perimeter", 0.25, 0.1, 1.6, 2) == "A1b"
    assert forms.b0_choice(8, "perimeter", 0.25, 0.625, 1.6, 2) == "B"
    assert forms.b0_choice(8, "perimeter", 0.25, 0.3, 1.6, 2) == "A1b"
    assert forms.b0_choice(8, "perimeter", 0.25, 0.7, 1.6, 2) == "A0"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: forms.loss(0, 2), "rho"),
        (lambda: forms.loss(1.5, 2), "rho"),
        (lambda: forms.loss(float("nan"), 2), "rho"),
        (lambda: forms.loss(0.5, 0), "n_wave"),
        (lambda: forms.a1b_time(1, 2, 0.5, "volume"), "kind"),
        (lambda: forms.a1a_time(1, 2, 0, "area"), "s"),
        (lambda: forms.shape_penalty(0), "ratio"),
        (lambda: forms.flip_share(0, 1), "area_us"),
        (lambda: forms.largest_loss(0, 0.1), "cores"),
    ],
)
def test_closed_forms_refuse_what_would_divide_by_zero(call: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        call()
    assert caught.value.field == field


# -- exact geometry


def test_the_tail_region_is_an_l_and_whole_batches() -> None:
    # 5 batches of 3 x 4 blocks; the last 12 + 7 are a batch and an L of 3 blocks above a full row.
    region = tail_region(5, 250, 390, 100, 100, 19)
    assert (region.first_whole, region.whole_batches) == (4, 1)
    assert region.part == (
        (Rect(200, 250, 0, 390), Rect(100, 200, 100, 390)),
        (Rect(100, 250, 100, 390), Rect(200, 250, 0, 100)),
    )
    assert region.outputs == 250 * 390 + 50 * 390 + 100 * 290
    assert int(tile_count(region, 160, 290)) == 2 * 2 + 2
    assert better_cut(region, 160, 290) == region.part[1]


def test_whole_batches_alone_have_no_l() -> None:
    region = tail_region(4, 64, 3328, 64, 832, 16)
    assert (region.first_whole, region.whole_batches, region.part) == (0, 4, ((),))
    assert int(tile_count(region, 64, 416)) == 32


def proved(plan: TailPlan, strategy: str) -> None:
    """No core twice in a round, no round or core too many, every output once, every block inside and within its tile."""
    cut, kernel, found = plan[strategy], plan.kernel, placement(plan, strategy)
    slots = found.wave * plan.cores + found.core
    assert len(np.unique(slots)) == len(slots)
    assert found.core.min() >= 0
    assert found.core.max() < plan.cores
    assert found.wave.min() >= 0
    assert found.wave.max() == cut.n_wave - 1
    assert int((found.wave == cut.n_wave - 1).sum()) == (cut.tail_blocks if cut.r else plan.cores)

    batch, m0, m1, n0, n1 = found.rects.T
    assert (batch.min(), batch.max()) == (0, kernel.batch - 1)
    for start, end, length, side in ((m0, m1, kernel.m, 0), (n0, n1, kernel.n, 1)):
        assert start.min() == 0
        assert (start < end).all()
        assert end.max() == length
        last = found.wave == cut.n_wave - 1
        assert ((end - start)[~last] <= cut.main_tile[side]).all()
        assert ((end - start)[last] <= cut.tail_tile[side]).all() or not cut.r
    # Corners of every block on the coarsest grid that has them all, summed up: each cell is covered exactly once.
    rows, columns = np.unique(np.concatenate((m0, m1))), np.unique(np.concatenate((n0, n1)))
    cover = np.zeros((kernel.batch, len(rows), len(columns)), np.int64)
    for m, n, sign in ((m0, n0, 1), (m1, n0, -1), (m0, n1, -1), (m1, n1, 1)):
        np.add.at(cover, (batch, np.searchsorted(rows, m), np.searchsorted(columns, n)), sign)
    cover = cover.cumsum(axis=1).cumsum(axis=2)
    assert (cover[:, :-1, :-1] == 1).all()


def test_on_random_problems_every_output_is_computed_once_and_a1b_is_never_worse() -> None:
    rng = random.Random(5)
    new_tails = 0
    for i in range(2000):
        kernel = random_kernel(rng)
        hardware = replace(ASCEND, cores=rng.choice([32, 32, 24, 7, 1]))
        plan = plan_tail(kernel, hardware, first="joint" if i % 4 == 0 else "waves")
        times = plan.latency_us
        assert plan["A1b"].us <= min(t for name in ("A0", "A1a", "B") if (t := times[name]) is not None) * (1 + 1e-9)
        assert plan.us == pytest.approx(min(t for t in times.values() if t is not None))
        for strategy, cut in plan.cuts.items():
            # A uniform cut needs no second look where A0 or A1b has it.
            if cut is not None and (strategy in (plan.strategy, "A0", "A1b") or (strategy == "A1a" and i % 3 == 0)):
                assert fits(*cut.tail_tile, tile_limits(kernel, hardware.matmul)) or cut.tail_tile == cut.main_tile  # type: ignore[arg-type]
                proved(plan, strategy)
        new_tails += plan["A1b"].new_tail
    assert new_tails > 200


def test_by_area_a1b_is_never_worse_either_and_the_first_split_is_the_same() -> None:
    rng = random.Random(6)
    for _ in range(500):
        kernel = random_kernel(rng, most_side=13)
        area, exact = (plan_tail(kernel, ASCEND, geometry=geometry) for geometry in ("area", "exact"))
        assert area["A1b"].us <= min(area["A0"].us, area["B"].us if area.cuts["B"] else math.inf) * (1 + 1e-9)
        assert area.main == exact.main


def test_an_exact_a1b_is_the_best_of_all_tiles_by_plain_search() -> None:
    kernel = MatmulKernel(3, 700, 900, 512, "bf16")
    plan = plan_tail(kernel, ASCEND, main_tile=(256, 256))
    limits = limits_of(BOUNDARY, batch=3, m=700, n=900, k=512)
    region = tail_region(3, 700, 900, 256, 256, plan.main.r)
    best = plan.main.block.block
    for t_m in range(16, 705, 16):
        for t_n in range(16, 913, 16):
            blocks = sum(len(split_rects(rect[None], t_m, t_n)) for rect in region_rects(region, t_m, t_n))
            if blocks <= 32 and fits(t_m, t_n, limits):
                best = min(best, block_terms(t_m, t_n, plan.rates).block)
    assert plan["A1b"].tail.block == best


def test_a_joint_first_split_is_never_slower_than_the_notes() -> None:
    rng = random.Random(8)
    for _ in range(200):
        kernel = random_kernel(rng)
        assert plan_tail(kernel, ASCEND, first="joint").us <= plan_tail(kernel, ASCEND).us * (1 + 1e-9)


# -- edges and errors


@pytest.mark.parametrize("geometry", ["exact", "area"])
@pytest.mark.parametrize("first", ["waves", "fill", "joint"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1), (1 << 62, 1, 1, 1), (1, 1 << 62, 1, 1), (1, 1, 1 << 62, 1), (1, 1, 1, 1 << 62),
        (1, 1 << 20, 1 << 20, 4096), (7, (1 << 31) - 1, (1 << 28) + 1, 3), (1 << 40, 3, 5, 17), (33, 17, 129, 31),
        (1, 1 << 31, 1 << 31, 1),
    ],
)  # fmt: skip
def test_tiny_and_huge_problems_are_planned_without_a_warning(
    shape: tuple[int, int, int, int], first: str, geometry: str
) -> None:
    batch, m, n, k = shape
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        plan = plan_tail(MatmulKernel(batch, m, n, k, "bf16"), ASCEND, geometry=geometry, first=first)
    assert 0 < plan.us < math.inf
    assert plan.main.n_blk >= 1
    assert all(0 < value < math.inf for value in (plan.g, plan.rho_flip, plan.rule_us))


KERNEL = MatmulKernel(7, 1280, 256, 8192, "bf16")


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("geometry", {"geometry": "round"}),
        ("first", {"first": "given"}),
        ("bandwidth", {"bandwidth": 0}),
        ("bandwidth", {"bandwidth": float("nan")}),
        ("bandwidth", {"bandwidth": "fast"}),
        ("min_utilisation", {"min_utilisation": 1.1}),
        ("min_utilisation", {"min_utilisation": float("nan")}),
        ("main_tile", {"main_tile": (250, 256)}),
        ("main_tile", {"main_tile": (256, 512)}),
        ("main_tile", {"main_tile": (1280, 256)}),
        ("main_tile", {"main_tile": (256, 64)}),
        ("main_tile", {"main_tile": (0, 64)}),
        ("main_tile", {"main_tile": 256}),
        ("main_tile", {"main_tile": (256, 256.0)}),
    ],
)
def test_a_bad_option_is_refused_by_name(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan_tail(KERNEL, ASCEND, **options)
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["batch", "m", "n", "k"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, 1 << 63, 10**30, None])
def test_a_bad_size_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(KERNEL, **{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_matrices_that_no_memory_could_index_are_refused() -> None:
    for shape, field in (
        ((1 << 40, 1 << 40, 1, 1), "batch*m*k"),
        ((1 << 40, 1, 1 << 40, 1), "batch*k*n"),
        ((1, 1 << 40, 1 << 40, 1), "batch*m*n"),
    ):
        batch, m, n, k = shape
        with pytest.raises(InvalidInput) as caught:
            MatmulKernel(batch, m, n, k, "bf16")
        assert caught.value.field == field


def test_hardware_and_dtypes_without_a_known_rate_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        plan_tail(KERNEL, known_hardware("ascend910b3"))
    assert caught.value.field == "hardware"
    with pytest.raises(InvalidInput) as caught:
        plan_tail(replace(KERNEL, dtype="fp64"), ASCEND)
    assert (caught.value.field, caught.value.value) == ("dtype", "fp64")
    with pytest.raises(InvalidInput) as caught:
        plan_tail("bmm", ASCEND)  # type: ignore[arg-type]
    assert caught.value.field == "kernel"
    assert UNIT is not None
    with pytest.raises(InvalidInput) as caught:
        plan_tail(KERNEL, replace(ASCEND, matmul=replace(UNIT, l1_bytes=1024)))
    assert caught.value.field == "l1_bytes"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flops_per_core", 0.0), ("gm_bytes_per_s_per_core", float("nan")), ("l2_bytes_per_s_per_core", float("inf")),
        ("l1_bytes", 0), ("align", 0), ("min_burst_bytes", True), ("min_transfer_bytes", -1),
        ("dtype_rates", (("fp8", 0.0),)),
    ],
)  # fmt: skip
def test_a_bad_matrix_unit_is_refused_by_name(field: str, value: object) -> None:
    assert UNIT is not None
    with pytest.raises(InvalidInput) as caught:
        replace(UNIT, **{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_places_are_refused_where_there_are_none_or_too_many() -> None:
    with pytest.raises(InvalidInput) as caught:
        placement(plan_of(BOUNDARY))
    assert caught.value.field == "geometry"
    plan = plan_tail(MatmulKernel(1, 1 << 20, 1 << 20, 4096, "bf16"), ASCEND, main_tile=(256, 256))
    with pytest.raises(InvalidInput) as caught:
        placement(plan, "A0")
    assert caught.value.field == "n_blk"
    with pytest.raises(InvalidInput) as caught:
        plan["A1a"]
    assert caught.value.field == "strategy"
