"""The superset guarantee for matrix products under every verdict, and models offered to the wrong family."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.matmul_world import H200, TILES, matmul_manifest, products
from tests.support import FakeRanker, manifest_for, pseudo_scores

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import DTYPE_BYTES, MatmulKernel, ReductionKernel
from tileguard.features.matmul import MATMUL_SCHEMA
from tileguard.features.tiles import MatmulTile, ReductionTile
from tileguard.runtime.choose import choose
from tileguard.runtime.feature_space import feature_space
from tileguard.runtime.guard import Guard, GuardPolicy, Reason, Verdict
from tileguard.runtime.manifest import parse_manifest
from tileguard.runtime.matmul_selector import MatmulSelector, unlikely
from tileguard.runtime.matmul_tiles import MOST, MOST_RANKED, fits, matmul_lattice, planner_tiles
from tileguard.runtime.ranker import MANIFEST_FILE
from tileguard.runtime.selector import FORMULA, HOST, MODEL, PROPOSERS, Selector

PATIENT = GuardPolicy(score_budget_s=60.0)
KERNEL = MatmulKernel(1, 4096, 2048, 1024, "bf16")
HARDWARE = tuple(known_hardware(name) for name in ("h200", "h100", "ascend950pr", "ascend910b3"))


class Forced(Guard):
    """A guard that has made up its mind."""

    def __init__(self, spec: HardwareSpec, reason: Reason) -> None:
        super().__init__(None, spec, family="matmul")
        self.verdict = Verdict(reason, "forced")

    def ask(self, kernel: Any, tiles: Sequence[Any], calls: float = np.inf) -> tuple[Verdict, None]:
        return self.verdict, None


def make(hardware: HardwareSpec, reason: Reason, *, top_k: int = 6) -> MatmulSelector:
    if reason in (Reason.TRUST, Reason.OUT_OF_RANGE):
        everywhere = 1e30 if reason is Reason.OUT_OF_RANGE else -1e30
        ranges = dict.fromkeys(MATMUL_SCHEMA.names, (everywhere, 1e30))
        ranker = FakeRanker(matmul_manifest(hardware.name, ranges=ranges), pseudo_scores)
        return MatmulSelector(hardware, model=ranker, top_k=top_k, policy=PATIENT)
    selector = MatmulSelector(hardware, model=None)
    selector.guard = Forced(hardware, reason)
    return selector


@pytest.mark.parametrize("reason", Reason)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(
    kernel=products(dtypes=(*DTYPE_BYTES,)), hardware=st.sampled_from(HARDWARE), host=st.lists(TILES, max_size=5)
)  # fmt: skip
def test_whatever_the_verdict_the_set_holds_the_hosts_list_first_and_the_planners_tiles(
    reason: Reason, kernel: MatmulKernel, hardware: HardwareSpec, host: list[MatmulTile]
) -> None:
    selector = make(hardware, reason)
    found = selector.select(kernel, host)
    planned, leading = planner_tiles(kernel, hardware), tuple(dict.fromkeys(host))
    assert len(set(found.tiles)) == len(found.tiles)
    assert found.tiles[: len(leading)] == leading
    assert set(found.tiles) >= {*host, *planned}
    assert set(found.proposed_by(FORMULA)) == set(planned)
    assert set(found.proposed_by(HOST)) == set(host)
    for candidate in found.candidates:
        assert list(candidate.proposers) == [name for name in PROPOSERS if name in candidate.proposers]
        assert (candidate.score is not None) == found.verdict.trusted
    lattice = matmul_lattice(kernel, hardware)
    assert set(found.proposed_by(MODEL)) <= set(lattice)
    assert all(fits(tile, kernel, hardware) for tile in set(found.tiles) - set(host))
    if reason in (Reason.TRUST, Reason.OUT_OF_RANGE) and found.verdict.reason is Reason.UNSUPPORTED_KERNEL:
        assert hardware.matmul is None or kernel.dtype not in hardware.matmul.rates
        assert reason is Reason.OUT_OF_RANGE or not found.proposed_by(MODEL)
    else:
        assert found.verdict.reason is reason
        asked = reason in (Reason.TRUST, Reason.OUT_OF_RANGE)
        assert len(found.proposed_by(MODEL)) == (min(6, len(lattice)) if asked else 0)
    if not found.verdict.trusted:
        rest = [tile for tile in found.tiles[len(leading) :] if tile in planned]
        assert rest == [tile for tile in planned if tile not in host]
    assert make(hardware, reason).select(kernel, host).candidates == found.candidates


def test_a_lattice_is_bounded_sorted_and_holds_what_fits() -> None:
    lattice = matmul_lattice(KERNEL, H200)
    assert MOST < len(lattice) <= MOST_RANKED
    assert list(lattice) == sorted(lattice)
    assert all(fits(tile, KERNEL, H200) for tile in lattice)
    assert matmul_lattice(KERNEL, known_hardware("h100")).tiles == ()


def test_a_smaller_top_k_is_contained_in_a_larger_one_and_alike_tiles_are_kept_apart() -> None:
    sets = [set(make(H200, Reason.TRUST, top_k=k).select(KERNEL).tiles) for k in (1, 4, 8)]
    assert sets[0] <= sets[1] <= sets[2]
    tiles = [MatmulTile(128, 128, 64, 4, stages) for stages in (2, 3, 4)] + [MatmulTile(64, 32, 64, 4, 3)]
    scores = np.array([3.0, 2.9, 2.8, 2.7])
    assert choose(scores, tiles, 2) == (0, 1)
    assert choose(scores, tiles, 2, diversity=5.0) == (0, 3)


def test_kernels_and_tiles_of_another_family_are_refused() -> None:
    reduction, tile = ReductionKernel(2048, 768, "fp32", 6, 2), ReductionTile(1, 1024, 4)
    with pytest.raises(InvalidInput, match="a MatmulKernel"):
        MatmulSelector(H200, model=None).select(reduction)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="MatmulTiles"):
        MatmulSelector(H200, model=None).select(KERNEL, [tile])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="a ReductionKernel"):
        Selector(H200, model=None).select(KERNEL)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="family"):
        feature_space(H200, "pointwise")


def test_a_model_of_the_other_family_is_not_listened_to(
    model_dir: Path, own_model: Path, known_kernel: ReductionKernel
) -> None:
    found = MatmulSelector(H200, model=model_dir, policy=PATIENT).select(KERNEL)
    assert found.verdict == Verdict(Reason.WRONG_FAMILY, "trained for reduction, asked for matmul")
    assert found.tiles == planner_tiles(KERNEL, H200)
    # The reverse, with a manifest that is a matmul model's in every way.
    path = own_model / MANIFEST_FILE
    onnx = parse_manifest(path.read_text(encoding="utf-8")).onnx_sha256
    path.write_text(matmul_manifest(onnx_sha256=onnx).to_json(), encoding="utf-8")
    assert Selector(H200, model=own_model, policy=PATIENT).select(known_kernel).verdict.reason is Reason.WRONG_FAMILY
    # In memory as well.
    for selector, manifest, kernel in (
        (MatmulSelector, manifest_for("h200"), KERNEL), (Selector, matmul_manifest(), known_kernel),
    ):  # fmt: skip
        made: Any = selector(H200, model=FakeRanker(manifest), policy=PATIENT)
        assert made.select(kernel).verdict.reason is Reason.WRONG_FAMILY
    unknown = replace(matmul_manifest(onnx_sha256=onnx), family="pointwise")
    path.write_text(unknown.to_json(), encoding="utf-8")
    assert MatmulSelector(H200, model=own_model).select(KERNEL).verdict.reason is Reason.WRONG_FAMILY


def test_a_champion_is_shipped_for_an_h200_alone_and_a_users_own_is_found_by_family(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEGUARD_MODELS", str(tmp_path))
    found = MatmulSelector(H200, policy=PATIENT).select(KERNEL)
    assert found.verdict.reason is Reason.TRUST
    assert len(found.proposed_by(MODEL)) == found.top_k
    assert set(planner_tiles(KERNEL, H200)) <= set(found.tiles)
    h100 = known_hardware("h100")
    found = MatmulSelector(h100).select(KERNEL)
    assert found.verdict.reason is Reason.NO_MODEL
    assert found.tiles == planner_tiles(KERNEL, h100)
    shutil.copytree(model_dir, tmp_path / "matmul-h200")
    assert MatmulSelector(H200).select(KERNEL).verdict.reason is Reason.WRONG_FAMILY


def test_a_dtype_without_a_rate_is_an_unsupported_kernel() -> None:
    host = [MatmulTile(64, 64, 32, 4)]
    found = make(H200, Reason.TRUST).select(MatmulKernel(1, 64, 64, 64, "fp64"), host)
    assert found.verdict.reason is Reason.UNSUPPORTED_KERNEL
    assert found.tiles == tuple(host)


@pytest.mark.parametrize("keep", [1, 5, 100])
def test_pruning_drops_the_hosts_tiles_that_score_behind_and_never_its_first(keep: int) -> None:
    host = matmul_lattice(KERNEL, H200)[:12]
    selector = MatmulSelector(
        H200, model=FakeRanker(matmul_manifest(), lambda tiles: np.arange(len(tiles), dtype=np.float64)), policy=PATIENT
    )
    chosen = selector.select(KERNEL, host)
    ranked = sorted(chosen.candidates, key=lambda one: (-(one.score or 0.0), one.tile.sort_key))
    kept = {one.tile for one in ranked[:keep]} | {host[0]}
    assert unlikely(chosen, keep) == set(host) - kept
    assert unlikely(chosen, None) == frozenset()


def test_nothing_is_pruned_without_a_trusted_or_a_calibrated_model() -> None:
    host = matmul_lattice(KERNEL, H200)[:12]
    alone = MatmulSelector(H200, model=None)
    assert unlikely(alone.select(KERNEL, host), 1) == frozenset()
    assert alone.calibrated_k(0.1) is None
    entries = ({"k": 4, "kernels": 1000, "misses": 1, "upper": 0.005},)
    ranker = FakeRanker(matmul_manifest(calibration=entries), lambda tiles: np.zeros(len(tiles)))
    selector = MatmulSelector(H200, model=ranker, policy=PATIENT)
    selector.select(KERNEL, host)
    assert selector.calibrated_k(0.05) == 4
    assert selector.calibrated_k(0.001) is None
