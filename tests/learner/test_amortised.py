"""Sweeps judged by T_compile + N · T_run, and rankers that are told N."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support import FakeRanker, corpus_row, manifest_for

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import known_hardware
from tileguard.learner.amortised import JUDGED_CALLS, TRAINED_CALLS, amortised, calls_of, under
from tileguard.learner.corpus import Corpus, read_corpus, write_corpus
from tileguard.learner.evaluate import Model, evaluate
from tileguard.learner.pipeline import default_config, fit_ranker
from tileguard.learner.train import TrainConfig
from tileguard.runtime.devices.cpu import cpu_kernel
from tileguard.runtime.devices.cpu.budgets import cpu_tiles
from tileguard.runtime.feature_space import FOREVER
from tileguard.runtime.selector import MODEL, Selector

HARDWARE = known_hardware("cpu-test")


def modelled(op: str, xnumel: int, rnumel: int) -> list[dict[str, Any]]:
    """Rows of one kernel whose wide tiles run fast and whose large tiles compile long."""
    kernel = cpu_kernel(op, xnumel, rnumel, "fp32")
    return [
        corpus_row(
            kernel_id=f"{op}:{xnumel}x{rnumel}", workload=f"{op}:{xnumel}x{rnumel}", family=op, hardware=HARDWARE.name,
            op=op, xnumel=xnumel, rnumel=rnumel, num_load=kernel.num_load, num_store=kernel.num_store,
            num_reduction=kernel.num_reduction, min_ptr_elem_bytes=kernel.min_bytes,
            max_ptr_elem_bytes=kernel.max_bytes, total_ptr_elem_bytes=kernel.total_bytes, inner=True,
            xblock=tile.xblock, r0_block=tile.r0_block, num_warps=None, lowering=tile.lowering,
            compile_ms=5.0 + tile.xblock * tile.r0_block / 32, us=us, us_median=us, us_min=us, us_mad=0.0,
        )
        for tile in cpu_tiles(kernel)
        for us in [xnumel * rnumel * 1e-3 * (1 + 8 / tile.r0_block + 2 / tile.xblock + (tile.lowering == "select"))]
    ]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    sizes = [(8, 256), (32, 1024), (64, 300), (256, 64)]
    path = tmp_path_factory.mktemp("cpu") / "cpu.parquet"
    rows = [row for op in ("sum", "max", "softmax", "rmsnorm") for x, r in sizes for row in modelled(op, x, r)]
    write_corpus(rows, path)
    return read_corpus(path)


def test_the_cost_of_a_call_is_its_time_and_its_share_of_compiling(corpus: Corpus) -> None:
    sweep = corpus.sweeps[0]
    assert amortised(sweep, FOREVER) is sweep
    for calls in (0.0, 1.0, 100.0, 1e6):
        found = amortised(sweep, calls)
        assert found.us == pytest.approx((1e3 * sweep.compile_ms + calls * sweep.us) / max(calls, 1.0))
        assert calls_of(found) == calls
        assert found.tiles == sweep.tiles
    assert calls_of(sweep) == FOREVER
    assert amortised(sweep, 1e15).slowdown == pytest.approx(sweep.slowdown, rel=1e-3)


def test_failures_stay_failures_and_times_without_a_compile_time_are_refused(corpus: Corpus) -> None:
    sweep = corpus.sweeps[0]
    us, compile_ms = sweep.us.copy(), sweep.compile_ms.copy()
    us[3] = compile_ms[3] = math.nan
    failed = replace(sweep, us=us, compile_ms=compile_ms)
    assert math.isnan(amortised(failed, 10.0).us[3])
    assert math.isinf(amortised(failed, 10.0).slowdown[3])
    compile_ms[4] = math.nan
    with pytest.raises(InvalidInput, match=f"calls: 10.0.*{sweep.kernel_id} has tiles without a compile time"):
        amortised(replace(sweep, us=us, compile_ms=compile_ms), 10.0)


def test_a_corpus_under_objectives_has_every_sweep_under_each(corpus: Corpus) -> None:
    found = under(corpus, [FOREVER, 10.0], [2, 0])
    assert [(s.kernel_id, calls_of(s)) for s in found.sweeps] == [
        (corpus.sweeps[i].kernel_id, calls) for calls in (FOREVER, 10.0) for i in (2, 0)
    ]
    assert under(corpus, [FOREVER]).digest == corpus.digest != under(corpus, [1.0]).digest


def test_one_ranker_follows_the_objective(corpus: Corpus) -> None:
    config = TrainConfig(rounds=40, num_leaves=15, min_data_in_leaf=5, calls=TRAINED_CALLS)
    ranker = fit_ranker(corpus, HARDWARE, config)
    assert default_config(HARDWARE).calls == TRAINED_CALLS
    assert default_config(known_hardware("h200")).calls == ()
    selector = Selector(HARDWARE, model=ranker, top_k=1)
    for sweep in corpus.sweeps[::5]:
        for calls in (1.0, FOREVER):
            found = selector.select(sweep.kernel, calls=calls)
            assert found.verdict.trusted, found.verdict
            (chosen,) = found.proposed_by(MODEL)
            assert amortised(sweep, calls).slowdown[sweep.index[chosen]] < 1.1
        first, forever = (selector.select(sweep.kernel, calls=n).proposed_by(MODEL) for n in (1.0, FOREVER))
        assert first != forever


def test_a_ranker_of_run_times_is_asked_and_not_trusted_about_calls(corpus: Corpus) -> None:
    ranker = fit_ranker(corpus, HARDWARE, TrainConfig(rounds=5, num_leaves=7, min_data_in_leaf=5))
    selector = Selector(HARDWARE, model=ranker, top_k=2)
    kernel = corpus.sweeps[1].kernel
    assert selector.select(kernel).verdict.trusted
    found = selector.select(kernel, calls=100.0)
    assert found.verdict.reason == "out_of_range"
    assert "log2_calls=6.64386 (50..50)" in found.verdict.detail
    assert len(found.proposed_by(MODEL)) == 2


@pytest.mark.parametrize("calls", [FOREVER, *JUDGED_CALLS])
def test_no_objective_breaks_the_superset(corpus: Corpus, calls: float) -> None:
    ranker = FakeRanker(manifest_for(HARDWARE.name))
    model = Model(lambda i: ranker, lambda i, k: Selector(HARDWARE, model=ranker, top_k=k), 1.0)
    found = evaluate(under(corpus, [calls]), HARDWARE, model, ks=(1, 4))
    assert found.superset_violations == 0
    assert (found.slowdown("union@4") <= found.slowdown("formula")).all()
    assert (found.slowdown("union@4") <= found.slowdown("model@4")).all()


def test_the_scorer_is_told_the_calls(corpus: Corpus) -> None:
    told: set[float] = set()

    class Listening(FakeRanker):
        def score(self, kernel: Any, tiles: Any, calls: float = math.inf) -> np.ndarray[Any, np.dtype[np.float64]]:
            told.add(calls)
            return super().score(kernel, tiles)

    ranker = Listening(manifest_for(HARDWARE.name))
    model = Model(lambda i: ranker, lambda i, k: Selector(HARDWARE, model=ranker, top_k=k), 1.0)
    evaluate(under(corpus, [100.0]), HARDWARE, model, ks=(1,))
    assert told == {100.0}
