"""The selector: the superset guarantee under every verdict, and the same set on every process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contracts.selector_contract import SelectorContract, check_order, check_proposers, check_superset
from tests.support import FakeRanker, manifest_for, pseudo_scores, python

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import MatmulKernel, ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import Corpus
from tileguard.runtime.feature_space import feature_space
from tileguard.runtime.guard import Guard, GuardPolicy, Reason, Verdict
from tileguard.runtime.lattice import lattice
from tileguard.runtime.ranker import load_ranker
from tileguard.runtime.selector import DEFAULT_TOP_K, FORMULA, HOST, MODEL, Selector

H200 = known_hardware("h200")
KERNEL = ReductionKernel(2048, 768, "fp32", 6, 2)
PATIENT = GuardPolicy(score_budget_s=60.0)


class Forced(Guard):
    """A guard that has made up its mind."""

    def __init__(self, spec: HardwareSpec, reason: Reason) -> None:
        super().__init__(None, spec)
        self.verdict = Verdict(reason, "forced")

    def ask(
        self, kernel: ReductionKernel, tiles: Sequence[ReductionTile], calls: float = math.inf
    ) -> tuple[Verdict, None]:
        return self.verdict, None


def make_selector(spec: HardwareSpec, reason: Reason, *, levels: int = 1 << 32) -> Selector:
    """A selector whose guard comes to `reason` for every kernel; `levels` is the number of distinct scores."""
    if reason in (Reason.TRUST, Reason.OUT_OF_RANGE):
        names = feature_space(spec).schema.names
        ranges = None if reason is Reason.TRUST else dict.fromkeys(names, (1e30, 1e30))
        ranker = FakeRanker(manifest_for(spec.name, ranges=ranges), lambda tiles: pseudo_scores(tiles, levels=levels))
        return Selector(spec, model=ranker, top_k=6, policy=PATIENT)
    selector = Selector(spec, model=None)
    selector.guard = Forced(spec, reason)
    return selector


class TestSelectorContract(SelectorContract):
    def make(self, hardware: HardwareSpec, reason: Reason) -> Selector:
        return make_selector(hardware, reason)


@pytest.mark.parametrize("levels", [1, 3])
def test_tied_scores_are_ordered_by_proposer_then_by_tile(levels: int) -> None:
    selector = make_selector(H200, Reason.TRUST, levels=levels)
    host = (ReductionTile(8, 256, 8), ReductionTile(1, 1024, 4))
    found = selector.select(KERNEL, host)
    check_superset(found, H200, host)
    check_order(found, host)
    check_proposers(found, selector)


def test_a_host_tile_named_twice_is_listed_once_at_its_first_place() -> None:
    a, b = ReductionTile(8, 256, 8), ReductionTile(1, 1024, 4)
    found = make_selector(H200, Reason.NO_MODEL).select(KERNEL, (a, b, a))
    assert found.tiles[:2] == (a, b)
    assert found.tiles.count(a) == 1
    assert found.candidates[0].proposers[0] == HOST


def test_a_tile_of_several_proposers_says_so() -> None:
    selector = make_selector(H200, Reason.TRUST)
    formula = selector.select(KERNEL).proposed_by(FORMULA)
    found = selector.select(KERNEL, formula[:1])
    assert found.candidates[0].proposers[:2] == (HOST, FORMULA)


def test_without_a_trusted_model_the_formula_brings_every_warp_count() -> None:
    trusted = make_selector(H200, Reason.TRUST).select(KERNEL).proposed_by(FORMULA)
    alone = make_selector(H200, Reason.NO_MODEL).select(KERNEL).proposed_by(FORMULA)
    assert set(trusted) < set(alone)


@pytest.mark.parametrize("top_k", [1, 3, 12, 10_000])
def test_the_model_proposes_top_k_tiles_or_all_there_are(top_k: int) -> None:
    selector = Selector(H200, model=FakeRanker(manifest_for("h200")), top_k=top_k, policy=PATIENT)
    proposed = selector.select(KERNEL).proposed_by(MODEL)
    assert len(proposed) == min(top_k, len(lattice(KERNEL, H200)))


def test_a_smaller_top_k_is_contained_in_a_larger_one() -> None:
    selectors = [Selector(H200, model=FakeRanker(manifest_for("h200")), top_k=k, policy=PATIENT) for k in (1, 4, 8, 12)]
    sets = [set(selector.select(KERNEL).tiles) for selector in selectors]
    assert sets[0] <= sets[1] <= sets[2] <= sets[3]


def test_the_model_chooses_from_the_space_given() -> None:
    space = lattice(KERNEL, H200)[3:9]
    found = make_selector(H200, Reason.TRUST).select(KERNEL, space=space)
    assert set(found.proposed_by(MODEL)) == set(space)


def test_an_empty_space_leaves_the_fallbacks() -> None:
    found = make_selector(H200, Reason.TRUST).select(KERNEL, space=())
    assert found.verdict.trusted
    assert found.proposed_by(MODEL) == ()
    assert found.tiles == tuple(sorted(found.tiles, key=lambda t: -pseudo_scores([t])[0]))


def test_host_tiles_outside_the_lattice_are_scored_too() -> None:
    odd = ReductionTile(4, 256, 4, 5)
    found = make_selector(H200, Reason.TRUST).select(KERNEL, (odd,))
    assert found.candidates[0].tile == odd
    assert found.candidates[0].score == pseudo_scores([odd])[0]


def test_a_host_tile_beyond_all_numbers_costs_the_model_its_say_and_nothing_else() -> None:
    monster = ReductionTile(1 << 70, 1)
    found = make_selector(H200, Reason.TRUST).select(KERNEL, (monster,))
    assert found.tiles[0] == monster
    check_superset(found, H200, (monster,))


def test_a_changed_set_has_a_changed_digest() -> None:
    selector = make_selector(H200, Reason.NO_MODEL)
    a, b = ReductionTile(8, 256, 8), ReductionTile(1, 1024, 4)
    digests = {selector.select(KERNEL, host).digest for host in ((), (a,), (b,), (a, b), (b, a))}
    assert len(digests) == 5


def test_times_add_up_to_no_more_than_the_whole() -> None:
    times = make_selector(H200, Reason.TRUST).select(KERNEL).times
    assert min(times.propose_us, times.score_us) >= 0
    assert times.propose_us + times.score_us <= times.total_us


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"hardware": "h300"}, "hardware"),
        ({"hardware": "h200", "top_k": 0}, "top_k"),
        ({"hardware": "h200", "top_k": True}, "top_k"),
        ({"hardware": "h200", "top_k": 2.5}, "top_k"),
    ],
)
def test_a_selector_that_cannot_be_is_refused(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Selector(**arguments)
    assert caught.value.field == field


def test_a_matmul_is_refused_by_type() -> None:
    with pytest.raises(InvalidInput) as caught:
        Selector("h200", model=None).select(MatmulKernel(1, 2, 3, 4, "fp16"))  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.value) == ("kernel", "MatmulKernel")


def test_the_default_is_eight_tiles_of_the_champion() -> None:
    selector = Selector("h200")
    assert selector.top_k == DEFAULT_TOP_K == 8
    assert selector.hardware == H200


def test_a_real_models_top_k_is_in_the_set_for_every_kernel_of_the_corpus(corpus: Corpus, model_dir: Path) -> None:
    selector, ranker = Selector("h200", model=model_dir, policy=PATIENT), load_ranker(model_dir, H200)
    trusted = 0
    for sweep in corpus.sweeps:
        host = tuple(sweep.tiles[i] for i in sweep.host_default)
        found = selector.select(sweep.kernel, host)
        check_superset(found, H200, host)
        check_proposers(found, selector)
        check_order(found, host)
        if found.verdict.trusted:
            trusted += 1
            scores = ranker.score(sweep.kernel, found.tiles)
            assert np.array_equal(scores, np.array([c.score for c in found.candidates]))
    assert trusted > len(corpus.sweeps) // 2


_DIGESTS = """
import sys
from tileguard.features.kernels import ReductionKernel
from tileguard.features.reduction import REDUCTION_SCHEMA
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.guard import GuardPolicy
from tileguard.runtime.selector import Selector
for hardware, model in (("h200", sys.argv[1]), ("h200", None), ("ascend910b3", None), ("ascend950pr", None)):
    selector = Selector(hardware, model=model, policy=GuardPolicy(score_budget_s=60.0))
    for x, r, dtype, inner in ((224, 7180, "fp16", True), (64, 401408, "fp32", False), (65536, 49, "bf16", True)):
        for persistent in (False, True):
            kernel = ReductionKernel(x, r, dtype, 1, 3, 3, 2, 4, 14, inner, persistent)
            found = selector.select(kernel, [ReductionTile(1, 1024, 4), ReductionTile(8, 64, 2)])
            print(found.verdict.reason, found.digest, [c.score for c in found.candidates[:3]])
"""


def test_the_set_is_the_same_on_every_process(model_dir: Path) -> None:
    first = python(_DIGESTS, str(model_dir), PYTHONHASHSEED="1")
    second = python(_DIGESTS, str(model_dir), PYTHONHASHSEED="4242", OMP_NUM_THREADS="2")
    assert first == second
    assert len(first.splitlines()) == 24
    assert "trust " in first
