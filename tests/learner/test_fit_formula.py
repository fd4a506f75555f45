"""Fitting the formula: the RFC's constants are found where they are planted, the cover is greedy, judging holds out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support import CORPUS_PATH, ROOT

from tileguard.__main__ import main
from tileguard.features.anchor import AnchorRule, Offset
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import Corpus, KernelSweep, read_corpus
from tileguard.learner.fit_formula import FitConfig, fit_formula
from tileguard.learner.formula_cover import Class, cover, offset_pool, worth
from tileguard.learner.formula_facts import least_squares, rfc_constants
from tileguard.learner.formula_judge import FORMULA, RFC, Judged, absent, by_class, judge_held_out
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.formula import FITTED, parse_params
from tileguard.runtime.lattice import lattice

H200 = known_hardware("h200")


def swept(
    kernel: ReductionKernel, best: tuple[int, int], hardware: HardwareSpec = H200, name: str = "k"
) -> KernelSweep:
    """A dense sweep in which time doubles with each doubling away from the blocks `best`, whatever the warps."""
    tiles = tuple(lattice(kernel, hardware))
    away = [abs(math.log2(t.xblock / best[0])) + abs(math.log2(t.r0_block / best[1])) for t in tiles]
    n = len(tiles)
    return KernelSweep(
        name, name, f"family{hash(name) % 7}", hardware.name, kernel, tiles, 2.0 ** np.array(away), (None,) * n, np.zeros(n),
        ("ok",) * n, (), (), None,
    )  # fmt: skip


def planted() -> list[KernelSweep]:
    """R0 = rnumel up to 64, X·R0 = 2048 and X/R0 = 1/8·sqrt(xnumel/rnumel) up to 8192, then R0 = 1024 and X = 2."""
    sweeps = []
    for e in (3, 4, 5, 6, 8, 9, 10, 11, 12, 15, 16, 17):
        for x in (10, 12, 14):
            for side in (0, 1):
                kernel = ReductionKernel(1 << x, (1 << e) - side * (e > 6), "fp32", 1, 1)
                if e <= 6:
                    best = (64, 1 << e)
                elif e <= 13:
                    split = round((11 - 3 + 0.5 * (x - e)) / 2)
                    best = (1 << split, 1 << (11 - split))
                else:
                    best = (2, 1024)
                sweeps.append(swept(kernel, best))
    return sweeps


def test_planted_regimes_and_split_are_found() -> None:
    params, facts = rfc_constants(planted(), H200)
    assert (facts.small_gap.below, facts.small_gap.above) == (64, 255)
    assert params.rn_small == 64
    assert facts.small_fills == 1.0
    assert facts.hole_gap is not None
    assert 4095 <= params.rn_hole <= 32768
    assert facts.by_regime["small"] == 24
    assert 1024 in params.hole_r
    assert params.p_wide == 2048
    assert params.p_narrow == 2048  # no narrow kernel: the RFC's
    assert facts.split is not None
    assert facts.split.coefficients[1] == pytest.approx(0.5, abs=0.15)
    assert facts.pow2_products == 1.0


def test_least_squares_gives_a_column_that_never_varies_no_weight() -> None:
    line = least_squares([(1, 1, x) for x in range(5)], np.array([2.0, 2.5, 3.0, 3.5, 4.0]))
    assert line.coefficients == (2.0, 0.0, 0.5)
    assert (line.r2, line.n) == (1.0, 5)


def test_worth_falls_with_every_tier_and_what_was_not_measured_is_worth_nothing() -> None:
    found = worth(np.array([1.0, 1.05, 1.0501, 1.3, 1.31, 3.0, np.inf]))
    assert list(found) == sorted(found, reverse=True)
    assert found[0] == 1.0
    assert found[-1] == 0.0
    assert found[1] - found[2] > 0.2


def test_the_cover_takes_the_offset_that_serves_most_kernels_first() -> None:
    kernels = [ReductionKernel(4096, 1024 - i, "fp32", 1, 1) for i in range(30)]
    best = [(8, 512)] * 20 + [(32, 32)] * 10
    sweeps = [swept(kernel, tile) for kernel, tile in zip(kernels, best, strict=True)]
    rule = AnchorRule(
        True, False, 11.0, 0.0, 0.0, -5.0, 0.0, -7.0, 1.0, offset_pool(persistent=False, has_warps=True)
    )  # fmt: skip
    taken = cover({(True, False): Class(rule, sweeps)}, H200, 2.0)[True, False]
    assert taken == (Offset("split", 0, 1, 0), Offset("split", 2, -3, 0))


def test_the_pool_has_no_warps_where_hardware_has_none_and_one_block_where_persistent() -> None:
    assert {o.warps for o in offset_pool(persistent=False, has_warps=False)} == {0}
    assert {o.anchor for o in offset_pool(persistent=True, has_warps=True)} == {"fill"}
    pool = offset_pool(persistent=False, has_warps=True)
    assert len(set(pool)) == len(pool)


def test_a_formula_needs_kernels_and_a_sane_budget() -> None:
    with pytest.raises(InvalidInput, match="20 kernels"):
        fit_formula(planted()[:19], H200, FitConfig())
    for bad in ({"tiles": 0.0}, {"tiles": math.nan}, {"folds": 1}):
        with pytest.raises(InvalidInput):
            FitConfig(**bad)


@pytest.mark.parametrize("name", ["ascend910b3", "h100"])
def test_any_hardware_can_be_fitted(name: str) -> None:
    spec = known_hardware(name)
    sweeps = [swept(s.kernel, (4, 64), spec) for s in planted()]
    fit = fit_formula(sweeps, spec, FitConfig(tiles=4))
    assert [rule.inner for rule in fit.params.rules] == [True]
    for sweep in sweeps:
        assert min(sweep.slowdown[sweep.index[t]] for t in formula_tiles(sweep.kernel, spec, params=fit.params)) == 1.0


@pytest.fixture(scope="module")
def judged(corpus: Corpus) -> Judged:
    return judge_held_out(corpus, H200, FitConfig(tiles=12, folds=3))


def test_every_kernel_is_judged_by_a_formula_that_saw_none_of_its_family(corpus: Corpus, judged: Judged) -> None:
    fold = judged.folds[0]
    assert not {corpus.sweeps[i].family for i in fold.train} & set(fold.families)
    again = fit_formula([corpus.sweeps[i] for i in fold.train], H200, FitConfig(tiles=12, folds=3))
    assert all(judged.params_of[i] == again.params for i in fold.test)
    assert sorted(i for one in judged.folds for i in one.test) == list(range(len(corpus.sweeps)))


def test_on_families_that_it_never_saw_the_fitted_formula_beats_the_rfcs(judged: Judged) -> None:
    fitted, rfc = judged.evaluation.summary(FORMULA), judged.evaluation.summary(RFC)
    assert fitted["lossless"] > rfc["lossless"] + 0.3
    assert fitted["severe"] < rfc["severe"]
    assert fitted["set_mean"] < 14
    assert sum(s["kernels"] for s in by_class(judged.evaluation).values()) == len(judged.params_of)
    assert 0.0 <= absent(judged.evaluation) < 0.1


def test_each_coefficient_is_perturbed_both_ways(judged: Judged) -> None:
    assert len({(p.coefficient, p.factor) for p in judged.perturbed}) == len(judged.perturbed) == 14
    held_out = judged.evaluation.summary(FORMULA)["lossless"]
    assert np.mean([p.lossless for p in judged.perturbed]) < held_out


def test_the_shipped_formula_is_what_the_shipped_corpus_gives() -> None:
    corpus = read_corpus(ROOT / "corpora" / "h200-inductor.parquet")
    shipped = FITTED["h200"]
    params = fit_formula(corpus.sweeps, H200, FitConfig()).params
    assert replace(params, rules=()) == replace(shipped, rules=())
    assert params.rules == shipped.rules


def test_the_command_writes_formula_report_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            ["fit-formula", str(CORPUS_PATH), "--out", str(tmp_path / "out"), "--tiles", "8", "--folds", "2", "--json"]
        )
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["kernels"], len(found["folds"])) == (1, 166, 2)
    params = parse_params((tmp_path / "out" / "formula.json").read_text())
    assert len(params.rules) == 3  # ten persistent outer kernels are too few
    report = (tmp_path / "out" / "report.md").read_text()
    for heading in ("Held-out quality", "Regimes of rnumel", "P* and the split", "Perturbation", "What limits it"):
        assert heading in report
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".md", ".png"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tiles", "0"], "tiles"),
        (["--folds", "99"], "folds"),
        (["--hardware", "h100"], "hardware"),
    ],
)
def test_what_the_command_cannot_take_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fit-formula", str(CORPUS_PATH), "--out", str(tmp_path), *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error


def test_a_tile_of_the_planted_sweep_is_the_best() -> None:
    sweep = swept(ReductionKernel(1024, 256, "fp32", 1, 1), (8, 128))
    won = sweep.tiles[int(np.argmin(sweep.slowdown))]
    assert ReductionTile(won.xblock, won.r0_block) == ReductionTile(8, 128)
