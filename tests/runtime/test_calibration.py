"""Which k a model needs, by what it missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import manifest_for

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import ReductionKernel
from tileguard.learner.calibrate import calibration
from tileguard.runtime.calibration import calibrated_k, resolved_k
from tileguard.runtime.guard import ModelRejected, Reason
from tileguard.runtime.manifest import parse_manifest
from tileguard.runtime.selector import Selector

ENTRIES: list[dict[str, Any]] = [
    {"k": 4, "kernels": 300, "misses": 40, "upper": 0.17},
    {"k": 8, "kernels": 300, "misses": 15, "upper": 0.076},
    {"k": 12, "kernels": 300, "misses": 9, "upper": 0.052},
]


@pytest.mark.parametrize(
    "entry",
    [{"k": 0, "upper": 0.01}, {"k": -5}, {"upper": 0.01}, {"k": "abc"}, {"k": 1e999}, {"k": True}, {"k": 4, "upper": None},
     {"k": 4, "upper": "0"}, {"k": 4, "upper": float("nan")}],
)  # fmt: skip
def test_a_calibration_that_says_nothing_of_a_k_is_unreadable(entry: dict[str, Any]) -> None:
    with pytest.raises(ModelRejected, match="calibrates no k") as caught:
        parse_manifest(manifest_for("h200", calibration=(*ENTRIES, entry)).to_json())
    assert caught.value.verdict.reason is Reason.UNREADABLE


@pytest.mark.parametrize(("risk", "k"), [(0.2, 4), (0.17, 4), (0.1, 8), (0.06, 12), (0.05, None)])
def test_the_smallest_k_whose_bound_and_that_of_every_larger_k_is_within_the_risk(risk: float, k: int | None) -> None:
    assert calibrated_k(ENTRIES, risk) == k
    assert calibrated_k(list(reversed(ENTRIES)), risk) == k


def test_a_lucky_smaller_k_does_not_count_where_a_larger_one_fails() -> None:
    assert calibrated_k([{"k": 4, "upper": 0.01}, {"k": 8, "upper": 0.2}, {"k": 12, "upper": 0.01}], 0.1) == 12


def test_where_none_is_calibrated_the_largest_is_taken_and_without_a_calibration_the_default() -> None:
    assert resolved_k("calibrated", ENTRIES, 0.01, default=8) == 12
    assert resolved_k("calibrated", [], 0.01, default=8) == 8
    assert resolved_k("calibrated", [{"k": 4, "kernels": 9, "misses": 0}], 0.1, default=8) == 4  # an older manifest
    assert resolved_k(3, ENTRIES, 0.01, default=8) == 3


@given(kernels=st.integers(1, 400), data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_bound_is_the_least_risk_that_a_binomial_test_does_not_reject(kernels: int, data: st.DataObject) -> None:
    from scipy.stats import binom

    misses = data.draw(st.integers(0, kernels))
    slowdown = np.array([1.2] * misses + [1.05] * (kernels - misses))
    (entry,) = calibration({8: slowdown})
    assert (entry["kernels"], entry["misses"]) == (kernels, misses)
    if misses == kernels:
        assert entry["upper"] == 1.0
    else:
        assert binom.cdf(misses, kernels, entry["upper"]) == pytest.approx(0.05)


def test_over_many_draws_the_calibrated_k_breaks_its_promise_in_at_most_five_percent() -> None:
    draw = np.random.default_rng(0)
    true_risk = {1: 0.5, 2: 0.3, 4: 0.18, 8: 0.11, 12: 0.06, 16: 0.03}
    broken = 0
    for _ in range(400):
        need = draw.random(200)
        curve = {k: np.where(need < risk, 1.2, 1.0) for k, risk in true_risk.items()}
        k = calibrated_k(calibration(curve), 0.1)
        broken += k is not None and true_risk[k] > 0.1
    assert broken <= 0.05 * 400


def test_a_selector_takes_the_calibrated_number(model_dir: Path) -> None:
    import json
    import shutil

    copy = model_dir.parent / "calibrated"
    shutil.copytree(model_dir, copy, dirs_exist_ok=True)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["calibration"] = ENTRIES
    (copy / "manifest.json").write_text(json.dumps(manifest))
    kernel = ReductionKernel(224, 7180, "fp16", 1, 3, 3, 2, 4, 14)
    for risk, k in ((0.2, 4), (0.1, 8), (0.01, 12)):
        found = Selector("h200", model=copy, top_k="calibrated", risk=risk).select(kernel)
        assert found.top_k == k
        assert len(found.proposed_by("model")) == k
    assert Selector("h200", model=None, top_k="calibrated").select(kernel).top_k == 8


@pytest.mark.parametrize(
    ("settings_", "field"),
    [({"top_k": "many"}, "top_k"), ({"top_k": 0}, "top_k"), ({"risk": 0.0}, "risk"), ({"risk": True}, "risk")],
)
def test_bad_values_are_named(settings_: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Selector("h200", model=None, **settings_)
    assert caught.value.field == field
