"""LightGBM booster -> ONNX, and the proof that both score every row alike.

One `TreeEnsemble` node of ai.onnx.ml 5 keeps LightGBM's double thresholds and leaves, and adds the trees in LightGBM's
order, so the scores are equal to the last bit; float32 operators reorder whole candidate lists for rows that sit on a
threshold. A model whose score this node cannot reproduce is refused by name and never approximated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tileguard.features.errors import InvalidInput, checked_int
from tileguard.runtime.optional import require

if TYPE_CHECKING:
    from lightgbm import Booster

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

INPUT = "X"
"""Name of the graph's input, double [N, d]."""
OUTPUT = "scores"
"""Name of the graph's output, double [N, 1]; higher means ranked earlier."""
OPSET = 18
ML_OPSET = 5
IR_VERSION = 9

OBJECTIVES = ("regression", "lambdarank", "rank_xendcg")
"""Objectives that may be exported: their prediction is the raw sum of leaves, which is what the graph computes."""

BATCHES = (1, 7, 200)
"""Batch sizes that `check_parity` runs, besides all rows at once: ONNX Runtime loops differently over one row, over
few and over many."""

ZERO_BAND = float(np.float32(1e-35))
"""LightGBM reads |x| <= 1e-35f as zero (kZeroThreshold in its meta.h)."""

# Bits of decision_type in a model's text (LightGBM's tree.h).
_CATEGORICAL = 1
_DEFAULT_LEFT = 2
_MISSING_SHIFT = 2
_MISSING_ZERO = 1
_MISSING_NAN = 2

_TINY = (ZERO_BAND, math.nextafter(ZERO_BAND, 1.0), math.nextafter(ZERO_BAND, 0.0), 5e-324, 1e-310, 2.3e-308)
_HUGE = (1e300, math.nextafter(1e300, math.inf), 1.7976931348623157e308, 3.4028234663852886e38, math.inf)
_SPECIALS = np.array([math.nan, 0.0, -0.0, *_TINY, *(-x for x in _TINY), *_HUGE, *(-x for x in _HUGE)])


@dataclass(frozen=True, slots=True)
class Parity:
    """Scores of a booster against those of its ONNX graph, on the same rows.

    rows: how many; max_abs_difference: largest |Δscore|, in score units, over all batch sizes; unequal_rows: rows whose
    scores differ at one batch size at least; unequal_batches: those batch sizes; equal: no row differs at any.
    """

    rows: int
    max_abs_difference: float
    unequal_rows: int
    unequal_batches: tuple[int, ...]
    equal: bool


def export_onnx(booster: Booster, *, n_features: int | None = None) -> bytes:
    """Serialized ONNX model (opset 18, ai.onnx.ml 5, IR 9): 'X' double [N, d] -> 'scores' double [N, 1].

    Takes the trees up to best_iteration, as Booster.predict does; the same booster gives the same bytes. `n_features`
    is the width d that the caller's feature matrix has, checked against the booster's.

    Raises InvalidInput naming what cannot be exported exactly: objective, num_class, boosting, linear_tree,
    zero_as_missing, categorical_feature, reg_sqrt, num_trees (none), leaf_value (not finite), n_features, version.
    MissingDependency without onnx.
    """
    width, trees = _read(booster)
    if n_features is not None and checked_int("n_features", n_features, minimum=1) != width:
        raise InvalidInput("n_features", n_features, f"the booster's {width} features")

    helper, numpy_helper = require("onnx.helper"), require("onnx.numpy_helper")
    double = require("onnx").TensorProto.DOUBLE
    graph = helper.make_graph(
        [helper.make_node("TreeEnsemble", [INPUT], [OUTPUT], domain="ai.onnx.ml", **_attributes(trees, numpy_helper))],
        "tileguard",
        [helper.make_tensor_value_info(INPUT, double, ["N", width])],
        [helper.make_tensor_value_info(OUTPUT, double, ["N", 1])],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tileguard")
    require("onnx.checker").check_model(model)
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def parity_rows(booster: Booster, base: npt.ArrayLike, *, n: int, seed: int) -> FloatArray:
    """float64[m, d]: `base` (float64[k, d], k >= 0) first, then rows made to break an export.

    - `n` splits of the model, or all of them where it has fewer: rows led down to the split, with its feature exactly
      on the threshold, one ulp above, one below, and NaN;
    - `n` rows uniform over a little more than the range of thresholds and base, and `n` with every column drawn from
      its own thresholds or base values;
    - `n` rows of base with some entries NaN, ±inf, ±0, denormal, around LightGBM's zero band, or huge, and one row
      filled with each of those.

    The same arguments give the same rows. Raises InvalidInput as `export_onnx`, and for base, n or seed.
    """
    width, trees = _read(booster)
    base = _matrix("base", base, width)
    n = checked_int("n", n, minimum=1)
    rng = np.random.default_rng(checked_int("seed", seed, minimum=0))

    pools = _pools(trees, base)
    centre = np.array([(pool.min(), pool.max()) for pool in pools]).T.clip(-1e150, 1e150)
    margin = 0.1 * (centre[1] - centre[0]) + 1e-3
    uniform = rng.uniform(centre[0] - margin, centre[1] + margin, size=(n, width))
    mixed = np.column_stack([rng.choice(pool, size=n) for pool in pools])

    seeds = base if len(base) else mixed
    patched = seeds[rng.integers(len(seeds), size=n)]
    # Some rows get one odd entry, some nearly all: a single one tests a default direction, many test their sum.
    odd = rng.random((n, width)) < rng.uniform(0.0, 1.0, size=(n, 1)) ** 2
    odd[np.arange(n), rng.integers(width, size=n)] = True
    patched[odd] = rng.choice(_SPECIALS, size=int(odd.sum()))
    filled = np.repeat(_SPECIALS[:, None], width, axis=1)
    return np.ascontiguousarray(np.vstack([base, _split_rows(trees, seeds, n, rng), uniform, mixed, patched, filled]))


def check_parity(booster: Booster, onnx_bytes: bytes, rows: npt.ArrayLike) -> Parity:
    """Compare Booster.predict(raw_score=True) with ONNX Runtime on `rows`, float64[m, d] with m >= 1, bit for bit.

    Both run on one thread; ONNX Runtime sequentially on the CPU at the batch sizes 1, 7, 200 and m. More threads would
    change the order of its sums. Raises InvalidInput for rows of another shape.
    """
    rows = _matrix("rows", rows, booster.num_feature())
    if not len(rows):
        raise InvalidInput("rows", rows.shape, "one or more rows")
    expected = np.asarray(booster.predict(rows, num_threads=1, raw_score=True), dtype=np.float64)
    session = _session(onnx_bytes)
    differs = np.zeros(len(rows), dtype=np.bool_)
    unequal_batches = []
    worst = 0.0
    for batch in sorted({*(min(size, len(rows)) for size in BATCHES), len(rows)}):
        parts = [session.run([OUTPUT], {INPUT: rows[i : i + batch]})[0] for i in range(0, len(rows), batch)]
        scores = np.concatenate(parts)[:, 0]
        if np.array_equal(expected, scores):
            continue
        unequal = expected != scores
        gaps = np.abs(expected[unequal] - scores[unequal])
        worst = max(worst, float(np.nan_to_num(gaps, nan=math.inf, posinf=math.inf).max()))
        differs |= unequal
        unequal_batches.append(batch)
    return Parity(len(rows), worst, int(differs.sum()), tuple(unequal_batches), equal=not unequal_batches)


@dataclass(frozen=True, slots=True)
class _Tree:
    """One tree in LightGBM's own flat order: node 0 is the root, a child < 0 is the leaf ~child.

    feature, left, right: int64[s]; threshold: float64[s], left where x <= threshold; nan_left: bool[s], where NaN
    goes; leaves: float64[s + 1].
    """

    feature: IntArray
    threshold: FloatArray
    left: IntArray
    right: IntArray
    nan_left: npt.NDArray[np.bool_]
    leaves: FloatArray

    @property
    def split(self) -> FloatArray:
        """float64[s]: the threshold that decides alike without LightGBM's zero band.

        LightGBM turns |x| <= 1e-35f into 0 before it compares, ONNX does not. A threshold inside the band therefore
        stands for one of its two ends; LightGBM itself puts thresholds at ±1e-35f around a column's zeros.
        """
        below = math.nextafter(-ZERO_BAND, -math.inf)
        banded = np.where(self.threshold < 0.0, below, ZERO_BAND)
        return np.where(np.abs(self.threshold) <= ZERO_BAND, banded, self.threshold)


def _read(booster: Booster) -> tuple[int, list[_Tree]]:
    """Number of features and the trees up to best_iteration, or InvalidInput.

    From the model's text: dump_model writes an infinite threshold (NaN against all the rest) as 1e300, which sends
    larger values the wrong way. The text has all digits, and a booster loaded from a file still has its parameters.
    """
    header: dict[str, str] = {}
    parameters: dict[str, str] = {}
    blocks: list[dict[str, str]] = []
    fields = header
    in_trees = True  # after them come importances, whose lines are named by features, "Tree" perhaps
    for line in booster.model_to_string().splitlines():
        name, _, value = line.partition("=")
        if line == "end of trees":
            fields, in_trees = {}, False
        elif name == "Tree" and in_trees:
            blocks.append(fields := {})
        elif line.startswith("[") and line.endswith("]"):
            name, _, value = line[1:-1].partition(":")
            parameters[name] = value.strip()
        elif name:
            fields[name] = value
    _check_model(header, parameters)
    if not blocks:
        raise InvalidInput("num_trees", 0, "one tree at least")
    return int(header["max_feature_idx"]) + 1, [_tree(block) for block in blocks]


def _check_model(header: Mapping[str, str], parameters: Mapping[str, str]) -> None:
    if header.get("version") != "v4":
        raise InvalidInput("version", header.get("version"), "v4, the model format of LightGBM 4")
    for name in ("num_class", "num_tree_per_iteration"):
        if header.get(name) != "1":
            raise InvalidInput("num_class", int(header.get(name, 0)), "1 (multiclass models have no single score)")
    # An objective's text may carry options: "regression sqrt", "binary sigmoid:1". A custom objective leaves none.
    objective, *options = header.get("objective", "custom").split()
    if objective not in OBJECTIVES:
        raise InvalidInput("objective", objective, f"one of {', '.join(OBJECTIVES)}, which predict the raw score")
    if "sqrt" in options or parameters.get("reg_sqrt") == "1":
        raise InvalidInput("reg_sqrt", True, "false (it predicts the square of the raw score)")
    if "average_output" in header or parameters.get("boosting") == "rf":
        raise InvalidInput("boosting", "rf", "gbdt, dart or goss (a random forest predicts the mean of its trees)")
    if parameters.get("linear_tree") == "1":
        raise InvalidInput("linear_tree", True, "false (leaves must be constants)")
    if parameters.get("zero_as_missing") == "1":
        raise InvalidInput("zero_as_missing", True, "false (ONNX has a direction for NaN only)")


def _tree(block: Mapping[str, str]) -> _Tree:
    def floats(name: str) -> FloatArray:
        return np.array([float(text) for text in block.get(name, "").split()], dtype=np.float64)

    def ints(name: str) -> IntArray:
        return np.array([int(text) for text in block.get(name, "").split()], dtype=np.int64)

    # A file may have lost its parameters, so each tree is asked again.
    decision = ints("decision_type")
    missing = (decision >> _MISSING_SHIFT) & 3
    if block.get("num_cat", "0") != "0" or (decision & _CATEGORICAL).any():
        raise InvalidInput("categorical_feature", "a categorical split", "numeric splits only; encode as numbers")
    if block.get("is_linear", "0") != "0":
        raise InvalidInput("linear_tree", True, "false (leaves must be constants)")
    if (missing == _MISSING_ZERO).any():
        raise InvalidInput("zero_as_missing", True, "false (ONNX has a direction for NaN only)")
    leaves = floats("leaf_value")
    if not np.isfinite(leaves).all():
        raise InvalidInput("leaf_value", float(leaves[~np.isfinite(leaves)][0]), "finite leaves")
    threshold = floats("threshold")
    # Where training saw no NaN, LightGBM scores it as 0.
    nan_left = np.where(missing == _MISSING_NAN, (decision & _DEFAULT_LEFT) != 0, threshold >= 0.0)
    return _Tree(ints("split_feature"), threshold, ints("left_child"), ints("right_child"), nan_left, leaves)


def _attributes(trees: list[_Tree], numpy_helper: Any) -> dict[str, Any]:
    """Attributes of TreeEnsemble: all trees' nodes one after another, and all leaves (ai.onnx.ml 5 specification)."""
    trees = [tree if len(tree.feature) else _one_leaf(tree) for tree in trees]
    first_node = np.cumsum([0, *(len(tree.feature) for tree in trees)])
    first_leaf = np.cumsum([0, *(len(tree.leaves) for tree in trees)])
    trees = [_apart(tree, int(ahead)) for tree, ahead in zip(trees, (first_leaf - first_node)[:-1], strict=True)]

    def joined(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(tree, name) for tree in trees])

    def children(name: str) -> tuple[IntArray, IntArray]:
        child = joined(name)
        counts = [len(tree.feature) for tree in trees]
        node = child + np.repeat(first_node[:-1], counts)
        leaf = ~child + np.repeat(first_leaf[:-1], counts)
        return np.where(child < 0, leaf, node), (child < 0).astype(np.int64)

    true_ids, true_is_leaf = children("left")
    false_ids, false_is_leaf = children("right")
    return {
        "n_targets": 1,
        "aggregate_function": 1,  # sum
        "post_transform": 0,  # none
        "tree_roots": first_node[:-1].tolist(),
        "nodes_featureids": joined("feature").tolist(),
        "nodes_splits": numpy_helper.from_array(joined("split"), "nodes_splits"),
        "nodes_modes": numpy_helper.from_array(np.zeros(first_node[-1], dtype=np.uint8), "nodes_modes"),  # x <= split
        "nodes_missing_value_tracks_true": joined("nan_left").astype(np.int64).tolist(),
        "nodes_truenodeids": true_ids.tolist(),
        "nodes_trueleafs": true_is_leaf.tolist(),
        "nodes_falsenodeids": false_ids.tolist(),
        "nodes_falseleafs": false_is_leaf.tolist(),
        "leaf_targetids": [0] * int(first_leaf[-1]),
        "leaf_weights": numpy_helper.from_array(joined("leaves"), "leaf_weights"),
    }


def _one_leaf(tree: _Tree) -> _Tree:
    """A tree without a split as one split between two equal leaves: TreeEnsemble has no bare leaf.

    Two, because ONNX Runtime 1.21 to 1.24 at least take a root whose branches name one leaf for that leaf, and look it
    up under the root's number.
    """
    zero, leaf = np.zeros(1, dtype=np.int64), np.full(1, -1, dtype=np.int64)
    return _Tree(zero, np.zeros(1), leaf, leaf - 1, np.zeros(1, dtype=np.bool_), np.repeat(tree.leaves, 2))


def _apart(tree: _Tree, ahead: int) -> _Tree:
    """The tree with two leaves renumbered where its root's children, a leaf and a node, would have equal numbers.

    `ahead` is the number of the tree's first leaf less that of its first node. ONNX Runtime 1.21 to 1.23 at least take
    such a root for a leaf, whatever the flags say (microsoft/onnxruntime#24679).
    """
    leaf, node = sorted((int(tree.left[0]), int(tree.right[0])))
    if leaf >= 0 or node < 0 or ~leaf + ahead != node:
        return tree
    number = np.arange(len(tree.leaves))
    pair = [~leaf, (~leaf + 1) % len(number)]
    number[pair] = number[pair[::-1]]

    def renumbered(child: IntArray) -> IntArray:
        return np.where(child < 0, ~number[np.maximum(~child, 0)], child)

    return replace(tree, left=renumbered(tree.left), right=renumbered(tree.right), leaves=tree.leaves[number])


def _pools(trees: list[_Tree], base: FloatArray) -> list[FloatArray]:
    """For each column the finite values worth drawing: its thresholds, and what base holds; 0 and 1 if none."""
    feature = np.concatenate([tree.feature for tree in trees])
    threshold = np.concatenate([tree.threshold for tree in trees])
    pools = []
    for column in range(base.shape[1]):
        values = np.unique(np.concatenate([threshold[feature == column], base[:, column]]))
        values = values[np.isfinite(values)]
        pools.append(values if len(values) else np.array([0.0, 1.0]))
    return pools


def _split_rows(trees: list[_Tree], seeds: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
    """Rows that arrive at each of `n` splits, drawn without replacement, and stand on and beside its threshold."""
    splits = [(t, node) for t, tree in enumerate(trees) for node in range(len(tree.feature))]
    chosen = rng.permutation(len(splits))[:n]
    parents = [_parents(tree) for tree in trees]
    thresholds = [tree.split for tree in trees]
    rows = [np.empty((0, seeds.shape[1]))]
    for pick, start in zip(chosen, rng.integers(len(seeds), size=len(chosen)), strict=True):
        t, node = splits[pick]
        tree, split = trees[t], thresholds[t]
        row = seeds[start].copy()
        # Bounds of each feature on the way from the root: low < x <= high.
        bounds: dict[int, tuple[float, float]] = {}
        child, parent = node, int(parents[t][node])
        while parent >= 0:
            low, high = bounds.get(int(tree.feature[parent]), (-math.inf, math.inf))
            if tree.left[parent] == child:
                high = min(high, float(split[parent]))
            else:
                low = max(low, float(split[parent]))
            bounds[int(tree.feature[parent])] = (low, high)
            child, parent = parent, int(parents[t][parent])
        for column, (low, high) in bounds.items():
            # Beyond an infinite threshold lies NaN alone.
            inside = np.clip(np.nan_to_num(row[column]), math.nextafter(low, math.inf), high)
            row[column] = math.nan if low == math.inf else inside
        on = float(split[node])
        beside = (math.nextafter(on, math.inf), math.nextafter(on, -math.inf), math.nan)
        values = list(dict.fromkeys((on, float(tree.threshold[node]), *beside)))
        block = np.repeat(row[None, :], len(values), axis=0)
        block[:, tree.feature[node]] = values
        rows.append(block)
    return np.concatenate(rows)


def _parents(tree: _Tree) -> IntArray:
    """int64[s]: the parent of each node, -1 for the root."""
    parents = np.full(len(tree.feature), -1, dtype=np.int64)
    for child in (tree.left, tree.right):
        inner = child >= 0
        parents[child[inner]] = np.flatnonzero(inner)
    return parents


def _matrix(field: str, values: npt.ArrayLike, width: int) -> FloatArray:
    matrix = np.ascontiguousarray(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] != width:
        raise InvalidInput(field, matrix.shape, f"a matrix with the booster's {width} columns")
    return matrix


def _session(onnx_bytes: bytes) -> Any:
    ort = require("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    return ort.InferenceSession(onnx_bytes, options, providers=["CPUExecutionProvider"])
