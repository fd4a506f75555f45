"""What every selector must guarantee. Subclass SelectorContract in a test module and say how one is made.

class TestMySelector(SelectorContract):
    def make(self, hardware: HardwareSpec, reason: Reason) -> Selector: ...
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import CPU_KERNELS, HARDWARE, TILES, kernels

from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.choose import choose
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.guard import Reason
from tileguard.runtime.lattice import is_legal, lattice
from tileguard.runtime.selector import FORMULA, HOST, MODEL, PROPOSERS, CandidateSet, Selector

EXAMPLES = 800
"""Random kernels for each Reason: over 10,000 in all."""

assert EXAMPLES * len(Reason) >= 10_000


@st.composite
def cases(draw: st.DrawFn) -> tuple[ReductionKernel, HardwareSpec, tuple[ReductionTile, ...]]:
    """A kernel, a hardware and a host list: tiles of the lattice and any others, legal or not, perhaps twice."""
    hardware = draw(st.sampled_from(HARDWARE))
    kernel = draw(CPU_KERNELS if hardware.kind == "cpu" else kernels())
    space = lattice(kernel, hardware)
    picks = st.integers(0, len(space) - 1).map(space.__getitem__)
    return kernel, hardware, tuple(draw(st.lists(picks | TILES, max_size=5)))


class SelectorContract:
    """`make` gives a selector for `hardware` whose guard reaches the verdict `reason` for every kernel."""

    def make(self, hardware: HardwareSpec, reason: Reason) -> Selector:
        raise NotImplementedError

    @pytest.mark.parametrize("reason", Reason)
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(case=cases())
    def test_whatever_the_verdict_the_set_holds_every_fallback_in_its_order(
        self, reason: Reason, case: tuple[ReductionKernel, HardwareSpec, tuple[ReductionTile, ...]]
    ) -> None:
        kernel, hardware, host = case
        selector = self.make(hardware, reason)
        found = selector.select(kernel, host)
        assert found.verdict.reason is reason
        check_superset(found, hardware, host)
        check_proposers(found, selector)
        check_order(found, host)

    @pytest.mark.parametrize("reason", Reason)
    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(case=cases())
    def test_equal_inputs_give_equal_sets(
        self, reason: Reason, case: tuple[ReductionKernel, HardwareSpec, tuple[ReductionTile, ...]]
    ) -> None:
        kernel, hardware, host = case
        first, again = (self.make(hardware, reason).select(kernel, host) for _ in range(2))
        assert first.candidates == again.candidates
        assert first.digest == again.digest


def check_superset(found: CandidateSet, hardware: HardwareSpec, host: tuple[ReductionTile, ...]) -> None:
    """set ⊇ host ∪ formula, never empty, each tile once, and nothing illegal but what the host itself brought."""
    tiles = set(found.tiles)
    assert tiles
    assert len(tiles) == len(found.tiles)
    assert tiles >= set(host)
    assert tiles >= set(formula_tiles(found.kernel, hardware))
    assert all(is_legal(tile, found.kernel, hardware) for tile in tiles - set(host))


def check_proposers(found: CandidateSet, selector: Selector) -> None:
    """Every tile has a proposer. A trusted model proposes its top k and scores every tile; one that is out of its
    range proposes too, but scores count for nothing; any other proposes nothing."""
    trusted, space = found.verdict.trusted, lattice(found.kernel, selector.hardware)
    for candidate in found.candidates:
        assert candidate.proposers
        assert list(candidate.proposers) == [name for name in PROPOSERS if name in candidate.proposers]
        assert (candidate.score is not None) == trusted
    formula = formula_tiles(found.kernel, selector.hardware, all_warps=not trusted)
    assert set(found.proposed_by(FORMULA)) == set(formula)
    verdict, scores = selector.guard.ask(found.kernel, space)
    assert verdict.reason is found.verdict.reason
    assert (scores is not None) == (verdict.reason in (Reason.TRUST, Reason.OUT_OF_RANGE))
    best: tuple[int, ...] = ()
    if scores is not None:
        ranker = selector.guard.ranker
        assert ranker is not None
        best = choose(scores, space, found.top_k, diversity=ranker.manifest.diversity)
    assert set(found.proposed_by(MODEL)) == {space[i] for i in best}


def check_order(found: CandidateSet, host: tuple[ReductionTile, ...]) -> None:
    """The host's list as it stood, then by score, then by proposer, then by tile."""
    leading = tuple(dict.fromkeys(host))
    assert found.tiles[: len(leading)] == leading
    assert all(HOST in candidate.proposers for candidate in found.candidates[: len(leading)])
    rest = found.candidates[len(leading) :]
    keys = [(-(c.score or 0.0), PROPOSERS.index(c.proposers[0]), c.tile.sort_key) for c in rest]
    assert keys == sorted(keys)
    assert not any(HOST in candidate.proposers for candidate in rest)
