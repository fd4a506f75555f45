"""Exported graphs score as LightGBM does, bit for bit; what cannot is refused; the check itself can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import known_hardware
from tileguard.features.reduction import REDUCTION_SCHEMA, reduction_features
from tileguard.learner.corpus import read_corpus
from tileguard.learner.export import ZERO_BAND, check_parity, export_onnx, parity_rows
from tileguard.learner.labels import LABEL_GAIN, relevance

CORPUS = Path(__file__).parents[2] / "corpora" / "h200-reduction-ops.parquet"
WIDTH = len(REDUCTION_SCHEMA.names)
FloatArray = npt.NDArray[np.float64]
Data = tuple[FloatArray, FloatArray, list[int]]


@pytest.fixture(scope="module")
def corpus() -> Data:
    """Features, grades and group sizes of the recorded corpus."""
    sweeps = read_corpus(CORPUS).sweeps
    h200 = known_hardware("h200")
    rows = [reduction_features(sweep.kernel, sweep.tiles, h200) for sweep in sweeps]
    grades = np.concatenate([relevance(sweep.slowdown) for sweep in sweeps]).astype(np.float64)
    return np.concatenate(rows), grades, [len(part) for part in rows]


def train(
    x: FloatArray,
    y: FloatArray,
    *,
    rounds: int = 12,
    group: list[int] | None = None,
    categorical: list[int] | None = None,
    keep: bool = False,
    **params: Any,
) -> Any:
    """A booster reread from its own text, as lgb.train returns it, or with `keep` the one that trained."""
    settled = {
        "objective": "regression", "num_threads": 2, "deterministic": True, "force_row_wise": True, "verbose": -1,
        "label_gain": list(LABEL_GAIN), "min_data_in_leaf": 5, **params,
    }  # fmt: skip
    data = lgb.Dataset(x, y, group=group, categorical_feature=categorical or "auto", params=settled)
    return lgb.train(settled, data, rounds, keep_training_booster=keep)


def toy(*, rows: int = 400, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Columns with NaN, with zeros and negatives, with integers; the target depends on each."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    x[::3, 0] = np.nan
    x[::4, 1] = 0.0
    x[1::5, 2] = 0.0
    x[:, 3] = rng.integers(0, 7, size=rows)
    y = 5.0 * np.isnan(x[:, 0]) + 2.0 * (x[:, 1] == 0) + 3.0 * (x[:, 2] < 0) + (x[:, 3] % 3 == 1)
    return x, y + 0.1 * rng.normal(size=rows)


def assert_parity(booster: Any, base: FloatArray, *, n: int = 500, seed: int = 0) -> None:
    rows = parity_rows(booster, base, n=n, seed=seed)
    parity = check_parity(booster, export_onnx(booster), rows)
    assert parity.equal, parity
    assert (parity.rows, parity.max_abs_difference, parity.unequal_rows) == (len(rows), 0.0, 0)


def model_text(trees: list[str], *, features: int) -> str:
    """A LightGBM model file around trees written by hand."""
    names = " ".join(f"f{i}" for i in range(features))
    infos = " ".join(["[-1:1]"] * features)
    header = (
        f"tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx={features - 1}\n"
        f"objective=regression\nfeature_names={names}\nfeature_infos={infos}\n\n"
    )
    return header + "\n\n".join(f"Tree={i}\n{tree}" for i, tree in enumerate(trees)) + "\n\nend of trees\n"


def tree_text(splits: list[tuple[int, float, int]], left: list[int], right: list[int], leaves: list[float]) -> str:
    """A tree whose splits are (feature, threshold, decision_type)."""
    if not splits:
        return f"num_leaves=1\nnum_cat=0\nleaf_value={leaves[0]!r}\nis_linear=0\nshrinkage=1\n"
    columns: dict[str, list[Any]] = {
        "num_leaves": [len(leaves)], "num_cat": [0], "split_feature": [s[0] for s in splits],
        "split_gain": [1] * len(splits), "threshold": [repr(s[1]) for s in splits],
        "decision_type": [s[2] for s in splits], "left_child": left, "right_child": right,
        "leaf_value": [repr(value) for value in leaves], "leaf_weight": [1] * len(leaves),
        "leaf_count": [1] * len(leaves), "internal_value": [0] * len(splits), "internal_weight": [0] * len(splits),
        "internal_count": [1] * len(splits), "is_linear": [0], "shrinkage": [1],
    }  # fmt: skip
    return "".join(f"{name}={' '.join(map(str, values))}\n" for name, values in columns.items())


def without_parameters(booster: Any) -> Any:
    """The booster after its parameters were cut out of its file."""
    text = booster.model_to_string()
    head, tail = text.split("\nparameters:")[0], text.split("end of parameters")[1]
    return lgb.Booster(model_str=head + tail)


def mutated(onnx_bytes: bytes, name: str, change: Callable[[npt.NDArray[Any]], None]) -> bytes:
    """The model after `change` edited the values of one attribute in place."""
    model = onnx.load_from_string(onnx_bytes)
    (attribute,) = (a for a in model.graph.node[0].attribute if a.name == name)
    if attribute.type == onnx.AttributeProto.TENSOR:
        values = numpy_helper.to_array(attribute.t).copy()
        change(values)
        attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
    else:
        values = np.array(attribute.ints)
        change(values)
        attribute.ints[:] = values.tolist()
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def attribute_values(onnx_bytes: bytes, name: str) -> npt.NDArray[Any]:
    found = []
    mutated(onnx_bytes, name, lambda values: found.append(values.copy()))
    return found[0]


# Parity.


@pytest.mark.parametrize("objective", ["lambdarank", "rank_xendcg", "regression"])
def test_scores_of_a_model_of_the_corpus_are_equal(corpus: Data, objective: str) -> None:
    x, y, group = corpus
    ranks = objective != "regression"
    booster = train(x, y, objective=objective, group=group if ranks else None, num_leaves=31)
    assert_parity(booster, x, n=1000)


@pytest.mark.parametrize("use_missing", [True, False])
def test_nan_goes_where_lightgbm_sends_it(corpus: Data, use_missing: bool) -> None:
    x, y, _ = corpus
    x = x.copy()
    x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    assert_parity(train(x, y, use_missing=use_missing), x[::10], n=1000)


def test_nan_in_a_column_that_had_none_in_training_counts_as_zero() -> None:
    x, y = toy()
    booster = train(x[:, 3:], y)
    scores = booster.predict(np.array([[np.nan], [0.0]]), num_threads=1)
    assert scores[0] == scores[1]
    assert_parity(booster, x[:, 3:])


def test_early_stopping_exports_the_best_iteration_only() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 4)), rng.normal(size=300)
    params = {"objective": "regression", "verbose": -1, "num_threads": 1, "deterministic": True}
    trained = lgb.Dataset(x[:200], y[:200] + x[:200, 0])
    valid = lgb.Dataset(x[200:], y[200:] + x[200:, 0], reference=trained)
    # Without keep_training_booster, lgb.train itself drops the trees after the best iteration.
    booster = lgb.train(
        params, trained, 100, valid_sets=[valid], callbacks=[lgb.early_stopping(5, verbose=False)],
        keep_training_booster=True,
    )  # fmt: skip
    assert 0 < booster.best_iteration < booster.num_trees()
    assert len(attribute_values(export_onnx(booster), "tree_roots")) == booster.best_iteration
    assert_parity(booster, x)


@pytest.mark.parametrize(
    "params",
    [
        {"rounds": 1},
        {"keep": True},
        {"num_leaves": 2},
        {"max_depth": 1, "rounds": 200},
        {"max_bin": 2},
        {"max_bin": 65535, "min_data_in_bin": 1},
        {"boosting": "dart", "drop_rate": 0.5},
        {"data_sample_strategy": "goss"},
        {"extra_trees": True},
        {"use_quantized_grad": True},
        {"num_leaves": 300, "min_data_in_leaf": 1, "min_sum_hessian_in_leaf": 0.0},
    ],
    ids=lambda params: "-".join(f"{name}={value}" for name, value in params.items()),
)
def test_scores_are_equal_for(params: dict[str, Any]) -> None:
    x, y = toy()
    assert_parity(train(x, y, **params), x)


def test_a_model_of_one_leaf_is_a_constant() -> None:
    x, y = toy()
    booster = train(x, y, min_data_in_leaf=10_000)
    assert booster.num_trees() == 1
    assert_parity(booster, x)


def test_one_leaf_trees_between_others_keep_their_place_in_the_sum() -> None:
    stump = tree_text([(0, 0.5, 2)], [-1], [-2], [0.1, 1e16])
    leaf = tree_text([], [], [], [0.3])
    booster = lgb.Booster(model_str=model_text([leaf, stump, leaf, stump, leaf], features=2))
    assert_parity(booster, np.zeros((0, 2)))


def test_a_booster_read_from_a_file_exports_the_same_bytes(tmp_path: Path) -> None:
    x, y = toy()
    booster = train(x, y)
    booster.save_model(tmp_path / "model.txt")
    loaded = lgb.Booster(model_file=tmp_path / "model.txt")
    assert export_onnx(loaded) == export_onnx(booster)
    assert_parity(loaded, x)


def test_continued_training_is_exported_whole() -> None:
    x, y = toy()
    first = train(x, y, rounds=3)
    params = {"objective": "regression", "verbose": -1, "num_threads": 1}
    booster = lgb.train(params, lgb.Dataset(x, y), 4, init_model=first)
    assert booster.num_trees() == 7
    assert_parity(booster, x)


def test_a_chain_of_three_thousand_splits_needs_no_recursion() -> None:
    depth = 3000
    splits = [(0, float(i), 2) for i in range(depth)]
    left = [-(i + 1) for i in range(depth)]
    right = [*range(1, depth), -(depth + 1)]
    tree = tree_text(splits, left, right, [float(i) / 7 for i in range(depth + 1)])
    booster = lgb.Booster(model_str=model_text([tree], features=1))
    assert_parity(booster, np.arange(-1.0, depth + 2)[:, None])


def test_thresholds_around_zero_follow_lightgbms_zero_band() -> None:
    x, y = toy()
    booster = train(x, y)
    onnx_bytes = export_onnx(booster)
    splits = attribute_values(onnx_bytes, "nodes_splits")
    below = np.nextafter(-ZERO_BAND, -1.0)
    assert below in splits
    assert_parity(booster, x)

    def raw(values: npt.NDArray[Any]) -> None:
        values[values == below] = -ZERO_BAND

    rows = parity_rows(booster, x, n=500, seed=0)
    assert not check_parity(booster, mutated(onnx_bytes, "nodes_splits", raw), rows).equal


def test_nan_against_all_the_rest_keeps_its_infinite_threshold() -> None:
    x, y = toy()
    booster = train(x, y)
    onnx_bytes = export_onnx(booster)
    assert np.isinf(attribute_values(onnx_bytes, "nodes_splits")).any()

    def as_dumped(values: npt.NDArray[Any]) -> None:
        values[np.isinf(values)] = 1e300

    rows = parity_rows(booster, x, n=500, seed=0)
    assert not check_parity(booster, mutated(onnx_bytes, "nodes_splits", as_dumped), rows).equal


@st.composite
def hand_written_trees(draw: st.DrawFn) -> str:
    """Any topology, thresholds anywhere that a double can be, both ways of missing."""
    odd = [0.0, -0.0, ZERO_BAND, -ZERO_BAND, 1e-40, -1e-40, 5e-324, 1e300, float("inf"), float("-inf")]
    threshold = st.one_of(st.sampled_from(odd), st.floats(allow_nan=False))
    # Missing type none or NaN (bits 2 and 3), default left or right (bit 1).
    split = st.tuples(st.integers(0, 2), threshold, st.sampled_from([0, 2, 8, 10]))
    splits = draw(st.lists(split, max_size=9))
    left, right = [0] * len(splits), [0] * len(splits)
    slots: list[tuple[list[int], int]] = []
    for node in range(len(splits)):
        if node:
            side, parent = slots.pop(draw(st.integers(0, len(slots) - 1)))
            side[parent] = node
        slots += [(left, node), (right, node)]
    for leaf, (side, parent) in enumerate(slots):
        side[parent] = ~leaf
    leaves = draw(st.lists(st.floats(-1e6, 1e6), min_size=len(splits) + 1, max_size=len(splits) + 1))
    return tree_text(splits, left, right, leaves)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trees=st.lists(hand_written_trees(), min_size=1, max_size=5), seed=st.integers(0, 100))
def test_any_trees_score_alike(trees: list[str], seed: int) -> None:
    assert_parity(lgb.Booster(model_str=model_text(trees, features=3)), np.zeros((0, 3)), n=40, seed=seed)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-37, 1e-35, 1.0, 1e30, 1e200]),
    nan=st.sampled_from([0.0, 0.3]),
    zero=st.sampled_from([0.0, 0.3]),
    params=st.fixed_dictionaries(
        {
            "num_leaves": st.integers(2, 20),
            "max_bin": st.integers(2, 500),
            "use_missing": st.booleans(),
            "objective": st.sampled_from(["regression", "lambdarank", "rank_xendcg"]),
            "learning_rate": st.floats(0.01, 1.0),
        }
    ),
)
def test_any_trained_model_scores_alike(
    seed: int, scale: float, nan: float, zero: float, params: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, 3)) * scale
    x[rng.random(x.shape) < zero] = 0.0
    x[rng.random(x.shape) < nan] = np.nan
    y = rng.integers(0, 4, size=120).astype(np.float64)
    group = None if params["objective"] == "regression" else [40, 40, 40]
    assert_parity(train(x, y, rounds=4, group=group, num_threads=1, **params), x, n=60)


# The graph.


def test_the_graph_is_one_double_tree_ensemble() -> None:
    x, y = toy()
    model = onnx.load_from_string(export_onnx(train(x, y)))
    assert [(node.domain, node.op_type) for node in model.graph.node] == [("ai.onnx.ml", "TreeEnsemble")]
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 18, "ai.onnx.ml": 5}
    assert model.ir_version == 9
    types = [(v.name, v.type.tensor_type.elem_type) for v in (*model.graph.input, *model.graph.output)]
    assert types == [("X", onnx.TensorProto.DOUBLE), ("scores", onnx.TensorProto.DOUBLE)]
    shapes = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
    assert shapes == [["N", 4]]


def test_the_children_of_a_root_have_different_numbers_and_each_leaf_one_parent() -> None:
    """Some releases of ONNX Runtime take a root for a leaf when its children share a number, whatever their kinds."""
    right_chain = tree_text([(0, 0.5, 2), (1, 0.0, 2), (0, 1.5, 2)], [-1, -2, -3], [1, 2, -4], [1.0, 2.0, 3.0, 4.0])
    left_chain = tree_text([(0, 0.5, 2), (1, 0.0, 2)], [1, -1], [-2, -3], [1.0, 2.0, 3.0])
    leaf = tree_text([], [], [], [0.3])
    for trees in ([left_chain], [leaf, right_chain], [right_chain] * 4, [left_chain, leaf, right_chain, leaf]):
        booster = lgb.Booster(model_str=model_text(trees, features=2))
        onnx_bytes = export_onnx(booster)
        true, false = (attribute_values(onnx_bytes, f"nodes_{side}nodeids") for side in ("true", "false"))
        roots = attribute_values(onnx_bytes, "tree_roots")
        assert (true[roots] != false[roots]).all()
        kinds = [attribute_values(onnx_bytes, f"nodes_{side}leafs") == 1 for side in ("true", "false")]
        leaves = np.concatenate([true[kinds[0]], false[kinds[1]]])
        assert sorted(leaves) == list(range(len(attribute_values(onnx_bytes, "leaf_weights"))))
        assert_parity(booster, np.zeros((0, 2)))


def test_equal_boosters_give_equal_bytes() -> None:
    x, y = toy()
    booster = train(x, y)
    assert export_onnx(booster) == export_onnx(booster) == export_onnx(train(x, y))


def test_a_width_other_than_the_boosters_is_refused() -> None:
    x, y = toy()
    booster = train(x, y)
    assert export_onnx(booster, n_features=4) == export_onnx(booster)
    for wrong in (3, 5, 0, 4.0):
        with pytest.raises(InvalidInput, match=r"^n_features: "):
            export_onnx(booster, n_features=wrong)  # type: ignore[arg-type]


# Refusals.


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("boosting", {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}),
        ("linear_tree", {"linear_tree": True}),
        ("zero_as_missing", {"zero_as_missing": True}),
        ("categorical_feature", {"categorical": [3], "min_data_per_group": 5}),
        ("reg_sqrt", {"reg_sqrt": True}),
    ],
)
def test_a_model_that_cannot_be_exact_is_refused(field: str, params: dict[str, Any]) -> None:
    x, y = toy()
    booster = train(x, y, **params)
    loaded = lgb.Booster(model_str=booster.model_to_string())
    stripped = without_parameters(booster)
    assert "[boosting:" not in stripped.model_to_string()
    for one in (booster, loaded, stripped):
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            export_onnx(one)
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            parity_rows(one, x, n=5, seed=0)


@pytest.mark.parametrize(
    "objective",
    ["binary", "cross_entropy", "poisson", "gamma", "tweedie", "quantile", "huber", "regression_l1", "mape"],
)
def test_an_objective_other_than_ranking_or_l2_is_refused(objective: str) -> None:
    x, y = toy()
    y = (y > np.median(y)).astype(np.float64) + (objective in ("gamma", "mape"))
    with pytest.raises(InvalidInput, match=f"^objective: '{objective}' is not allowed"):
        export_onnx(train(x, y, objective=objective, rounds=2))


def test_a_custom_objective_is_refused() -> None:
    x, y = toy()

    def l2(scores: FloatArray, data: Any) -> tuple[FloatArray, FloatArray]:
        return scores - data.get_label(), np.ones_like(scores)

    with pytest.raises(InvalidInput, match=r"^objective: 'custom'"):
        export_onnx(train(x, y, objective=l2, rounds=2))


@pytest.mark.parametrize("objective", ["multiclass", "multiclassova"])
def test_several_classes_are_refused(objective: str) -> None:
    x, y = toy()
    labels = np.arange(len(y), dtype=np.float64) % 3
    with pytest.raises(InvalidInput, match=r"^num_class: 3"):
        export_onnx(train(x, labels, objective=objective, num_class=3, rounds=2))


def test_a_booster_without_trees_is_refused() -> None:
    x, y = toy()
    with pytest.raises(InvalidInput, match=r"^num_trees: 0"):
        export_onnx(lgb.Booster({"objective": "regression", "verbose": -1}, lgb.Dataset(x, y)))


def test_an_infinite_leaf_is_refused() -> None:
    x, y = toy()
    booster = train(x, y, rounds=1)
    booster.set_leaf_output(0, 0, float("inf"))
    with pytest.raises(InvalidInput, match=r"^leaf_value: "):
        export_onnx(booster)


# The check can fail.


def test_every_threshold_is_guarded_to_the_ulp_in_both_directions() -> None:
    x, y = toy()
    booster = train(x, y, rounds=2, num_leaves=12)
    onnx_bytes = export_onnx(booster)
    rows = parity_rows(booster, x, n=500, seed=0)
    splits = attribute_values(onnx_bytes, "nodes_splits")
    assert len(splits) > 15 and np.isinf(splits[0]), (
        "the root should part NaN from the rest: its right is hard to reach"
    )
    for node in np.flatnonzero(np.isfinite(splits)).tolist():
        for towards in (-np.inf, np.inf):

            def nudge(values: npt.NDArray[Any], node: int = node, towards: float = towards) -> None:
                values[node] = np.nextafter(values[node], towards)

            parity = check_parity(booster, mutated(onnx_bytes, "nodes_splits", nudge), rows)
            assert not parity.equal, (node, towards)
            assert parity.unequal_rows > 0 and parity.max_abs_difference > 0.0


def test_every_leaf_is_guarded() -> None:
    x, y = toy()
    booster = train(x, y, rounds=2, num_leaves=12)
    onnx_bytes = export_onnx(booster)
    # No base: rows led to the splits reach every leaf by themselves.
    rows = parity_rows(booster, np.zeros((0, 4)), n=500, seed=0)
    for leaf in range(len(attribute_values(onnx_bytes, "leaf_weights"))):

        def nudge(values: npt.NDArray[Any], leaf: int = leaf) -> None:
            values[leaf] += 1e-12

        parity = check_parity(booster, mutated(onnx_bytes, "leaf_weights", nudge), rows)
        assert not parity.equal, leaf
        assert parity.max_abs_difference == pytest.approx(1e-12, rel=0.01)


@pytest.mark.parametrize("name", ["nodes_missing_value_tracks_true", "nodes_featureids", "nodes_modes"])
def test_a_wrong_direction_feature_or_comparison_at_a_root_is_seen(name: str) -> None:
    x, y = toy()
    booster = train(x, y, rounds=2)
    onnx_bytes = export_onnx(booster)

    def change(values: npt.NDArray[Any]) -> None:
        # Mode 1 is x < split. The column after the root's, or the other direction.
        values[0] = (values[0] + 1) % (4 if name == "nodes_featureids" else 2)

    rows = parity_rows(booster, x, n=500, seed=0)
    assert not check_parity(booster, mutated(onnx_bytes, name, change), rows).equal


def test_a_dropped_tree_is_seen_at_every_batch_size() -> None:
    x, y = toy()
    booster = train(x, y, rounds=5)
    rows = parity_rows(booster, x, n=200, seed=0)
    booster.best_iteration = 4
    shorter = export_onnx(booster)
    booster.best_iteration = -1
    parity = check_parity(booster, shorter, rows)
    assert not parity.equal
    assert parity.unequal_batches == (1, 7, 200, len(rows))
    assert 0 < parity.unequal_rows <= parity.rows == len(rows)


# The rows.


def test_rows_hold_the_base_every_threshold_and_the_odd_values() -> None:
    x, y = toy()
    booster = train(x, y)
    rows = parity_rows(booster, x, n=500, seed=0)
    assert rows.dtype == np.float64 and rows.shape[1] == 4
    np.testing.assert_array_equal(rows[: len(x)], x)
    made = rows[len(x) :]
    onnx_bytes = export_onnx(booster)
    for column, split in zip(
        attribute_values(onnx_bytes, "nodes_featureids"), attribute_values(onnx_bytes, "nodes_splits"), strict=True
    ):
        for value in (split, np.nextafter(split, np.inf), np.nextafter(split, -np.inf)):
            assert (made[:, column] == value).any()
    for test in (np.isnan, np.isposinf, np.isneginf, lambda v: (v == 0) & np.signbit(v), lambda v: np.abs(v) > 1e300):
        assert test(made).all(axis=1).any()
        assert test(made).any(axis=0).all()
    assert ((made != 0) & (np.abs(made) < 2.2e-308)).any()


def test_rows_depend_on_the_seed_only() -> None:
    x, y = toy()
    booster = train(x, y)
    one, again, other = (parity_rows(booster, x, n=50, seed=seed) for seed in (1, 1, 2))
    assert one.tobytes() == again.tobytes()
    assert one.tobytes() != other.tobytes()


def test_unusable_arguments_are_named() -> None:
    x, y = toy()
    booster = train(x, y, rounds=1)
    for field, arguments in (
        ("base", (x[:, :3], 10, 0)),
        ("base", (x[0], 10, 0)),
        ("n", (x, 0, 0)),
        ("seed", (x, 10, -1)),
    ):
        base, n, seed = arguments
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            parity_rows(booster, base, n=n, seed=seed)
    for rows in (x[:, :3], x[:0], x[0]):
        with pytest.raises(InvalidInput, match=r"^rows: "):
            check_parity(booster, export_onnx(booster), rows)
