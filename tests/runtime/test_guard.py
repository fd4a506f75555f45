"""Fault injection: whatever is wrong with a model, the verdict says so, nothing is raised, the fallbacks stay."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support import FakeRanker, manifest_for, pseudo_scores, python

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import host_cpu, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.reduction import KERNEL_FEATURES, REDUCTION_SCHEMA, kernel_features
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import Corpus
from tileguard.runtime.devices.cpu import cpu_kernel
from tileguard.runtime.devices.cpu.features import CPU_KERNEL_FEATURES, LOG2_FOREVER
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.feature_space import feature_space
from tileguard.runtime.guard import Guard, GuardPolicy, Reason, Verdict, out_of_range
from tileguard.runtime.manifest import Manifest, parse_manifest
from tileguard.runtime.onnx_graph import operators
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE
from tileguard.runtime.selector import CandidateSet, Selector

feature_space_module = importlib.import_module("tileguard.runtime.feature_space")
selector_module = importlib.import_module("tileguard.runtime.selector")

H200 = known_hardware("h200")
KERNEL = ReductionKernel(224, 7180, "fp16", 1, 3, 3, 2, 4, 14)
HOST = (ReductionTile(1, 1024, 4), ReductionTile(8, 64, 2))
PATIENT = GuardPolicy(score_budget_s=60.0, load_budget_s=60.0)


def select(model: Any, kernel: ReductionKernel = KERNEL, *, policy: GuardPolicy = PATIENT) -> CandidateSet:
    """One selection, checked to hold every fallback."""
    found = Selector("h200", model=model, policy=policy).select(kernel, HOST)
    assert set(found.tiles) >= {*HOST, *formula_tiles(kernel, H200)}
    return found


def verdict(model: Any, kernel: ReductionKernel = KERNEL, *, policy: GuardPolicy = PATIENT) -> Verdict:
    return select(model, kernel, policy=policy).verdict


def edit(directory: Path, **changes: Any) -> Path:
    """Rewrite fields of the manifest in place."""
    path = directory / MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


def with_onnx(directory: Path, content: bytes) -> Path:
    """Another ONNX file, with the digest that the manifest then needs."""
    (directory / ONNX_FILE).write_bytes(content)
    return edit(directory, onnx_sha256=hashlib.sha256(content).hexdigest())


# A model that is sound


def test_a_sound_model_is_trusted(model_dir: Path, known_kernel: ReductionKernel) -> None:
    found = select(model_dir, known_kernel)
    assert found.verdict == Verdict(Reason.TRUST)
    assert all(candidate.score is not None for candidate in found.candidates)


def test_a_read_only_directory_is_enough(own_model: Path, known_kernel: ReductionKernel) -> None:
    for path in (*own_model.iterdir(), own_model):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(own_model.iterdir())
    try:
        assert verdict(own_model, known_kernel).trusted
        assert sorted(own_model.iterdir()) == before
    finally:
        own_model.chmod(0o755)


def test_nothing_is_loaded_before_the_first_kernel(tmp_path: Path) -> None:
    assert Selector("h200", model=tmp_path / "absent").guard.ranker is None


# Files


def test_no_model_was_asked_for() -> None:
    assert verdict(None).reason is Reason.NO_MODEL


def test_no_directory(tmp_path: Path) -> None:
    found = verdict(tmp_path / "absent")
    assert found.reason is Reason.NO_MODEL
    assert "absent" in found.detail


def test_no_champion_of_this_hardware() -> None:
    found = Selector("ascend950pr").select(KERNEL)
    assert found.verdict.reason is Reason.NO_MODEL
    assert set(found.tiles) >= set(formula_tiles(KERNEL, known_hardware("ascend950pr")))


@pytest.mark.parametrize("name", [ONNX_FILE, MANIFEST_FILE])
def test_a_file_is_missing(own_model: Path, name: str) -> None:
    (own_model / name).unlink()
    found = verdict(own_model)
    assert found.reason is Reason.UNREADABLE
    assert name in found.detail


def test_a_directory_where_a_file_should_be(own_model: Path) -> None:
    (own_model / ONNX_FILE).unlink()
    (own_model / ONNX_FILE).mkdir()
    assert verdict(own_model).reason is Reason.UNREADABLE


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_onnx_file(own_model: Path, keep: int) -> None:
    content = (own_model / ONNX_FILE).read_bytes()
    (own_model / ONNX_FILE).write_bytes(content[:keep])
    assert verdict(own_model).reason is Reason.DIGEST_MISMATCH


@pytest.mark.parametrize("where", [0.0, 0.3, 0.9])
def test_one_flipped_bit_in_the_onnx_file(own_model: Path, where: float) -> None:
    content = bytearray((own_model / ONNX_FILE).read_bytes())
    content[int(where * len(content))] ^= 1
    (own_model / ONNX_FILE).write_bytes(content)
    found = verdict(own_model)
    assert found.reason is Reason.DIGEST_MISMATCH
    assert json.loads((own_model / MANIFEST_FILE).read_text())["onnx_sha256"][:12] in found.detail


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07" * 1000])
def test_an_onnx_file_that_is_none_although_the_digest_fits(own_model: Path, content: bytes) -> None:
    assert verdict(with_onnx(own_model, content)).reason is Reason.UNREADABLE


def test_a_truncated_onnx_file_although_the_digest_fits(own_model: Path) -> None:
    content = (own_model / ONNX_FILE).read_bytes()
    assert verdict(with_onnx(own_model, content[: len(content) // 2])).reason is Reason.UNREADABLE


def test_a_graph_of_another_width(own_model: Path, known_kernel: ReductionKernel) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    from tileguard.learner.export import export_onnx

    x = np.random.default_rng(0).normal(size=(100, 3))
    booster = lightgbm.train({"objective": "regression", "verbosity": -1}, lightgbm.Dataset(x, x[:, 0]), 2)
    found = verdict(with_onnx(own_model, export_onnx(booster)), known_kernel)
    assert found.reason is Reason.SCORER_ERROR


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[]", b"null", b"3", b'"manifest"', b"{}", b"[" * 100_000],
    ids=["empty", "cut", "not_utf8", "list", "null", "number", "string", "no_keys", "deep"],
)
def test_a_garbled_manifest(own_model: Path, content: bytes) -> None:
    (own_model / MANIFEST_FILE).write_bytes(content)
    assert verdict(own_model).reason is Reason.UNREADABLE


@pytest.mark.parametrize(
    "key", [field.name for field in dataclasses.fields(Manifest) if field.default is dataclasses.MISSING]
)
def test_a_manifest_without_a_key_names_it(own_model: Path, key: str) -> None:
    path = own_model / MANIFEST_FILE
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))
    found = verdict(own_model)
    assert found.reason is Reason.UNREADABLE
    assert key in found.detail


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ranges", None),
        ("ranges", {"log2_xnumel": [1]}),
        ("ranges", {"log2_xnumel": ["a", "b"]}),
        ("ranges", {}),
        ("feature_names", None),
        ("calibration", 3),
        ("diversity", "much"),
        ("onnx_sha256", None),
        ("schema_version", "4"),
        ("schema_version", True),
        ("seed", 1.5),
        ("hardware", 3),
        ("metrics", []),
        ("ranges", {"log2_xnumel": [float("-inf"), float("inf")]}),
        ("ranges", {"log2_xnumel": [float("nan"), 1.0]}),
        ("ranges", {"log2_xnumel": [2.0, 1.0]}),
    ],
)
def test_a_manifest_whose_value_has_another_type(own_model: Path, key: str, value: object) -> None:
    assert verdict(edit(own_model, **{key: value})).reason is Reason.UNREADABLE


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_digest": "0" * 64},
        {"feature_names": list(reversed(REDUCTION_SCHEMA.names))},
        {"feature_names": []},
        {"manifest_version": 2},
        {"manifest_version": "1"},
    ],
    ids=str,
)
def test_a_manifest_of_another_schema(own_model: Path, changes: dict[str, Any]) -> None:
    assert verdict(edit(own_model, **changes)).reason is Reason.SCHEMA_MISMATCH


def test_a_model_of_another_hardware_names_both(own_model: Path) -> None:
    found = verdict(edit(own_model, hardware="h100"))
    assert found.reason is Reason.WRONG_HARDWARE
    assert "h100" in found.detail
    assert "h200" in found.detail


def test_a_model_of_another_family_names_both(own_model: Path) -> None:
    found = verdict(edit(own_model, family="matmul"))
    assert found.reason is Reason.WRONG_FAMILY
    assert "matmul" in found.detail
    assert "reduction" in found.detail


def test_a_manifest_survives_its_own_json(model_dir: Path) -> None:
    text = (model_dir / MANIFEST_FILE).read_text()
    assert parse_manifest(text).to_json() == text


def test_a_figure_that_is_not_finite_is_null_in_a_manifest() -> None:
    manifest = manifest_for("h200", metrics={"worst": math.inf, "by_k": [math.nan, 1.0]})
    text = manifest.to_json()
    assert json.loads(text, parse_constant=pytest.fail)["metrics"] == {"worst": None, "by_k": [None, 1.0]}
    assert parse_manifest(text).to_json() == text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enabled", 1), ("range_slack", "much"), ("range_slack", -0.1), ("score_budget_s", math.nan),
        ("score_budget_s", True), ("load_budget_s", None), ("max_overruns", 0), ("max_overruns", 1.5),
    ],
)  # fmt: skip
def test_a_policy_names_the_field_that_it_cannot_use(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        GuardPolicy(**{field: value})
    assert caught.value.field == field


def test_onnxruntime_cannot_be_imported(own_model: Path) -> None:
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "onnxruntime":
            raise ImportError("blocked")
sys.meta_path.insert(0, Blocker())
from tileguard.runtime import Selector
from tileguard.features import ReductionKernel
found = Selector("h200", model=sys.argv[1]).select(ReductionKernel(224, 7180, "fp16", 1, 3))
print(found.verdict.reason, len(found.tiles) > 10, found.verdict.detail)
"""
    reason, tiles, detail = python(code, str(own_model)).split(maxsplit=2)
    assert (reason, tiles) == ("unreadable", "True")
    assert "onnxruntime is needed here" in detail


# Scores


def test_features_that_are_not_finite_are_named(
    model_dir: Path, known_kernel: ReductionKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = feature_space_module.reduction_features

    def broken(*args: Any) -> npt.NDArray[np.float64]:
        features: npt.NDArray[np.float64] = real(*args)
        features[-1, REDUCTION_SCHEMA.names.index("log2_trips")] = np.nan
        features[0, REDUCTION_SCHEMA.names.index("n_wave")] = np.inf
        return features

    monkeypatch.setattr(feature_space_module, "reduction_features", broken)
    found = verdict(model_dir, known_kernel)
    assert found.reason is Reason.NON_FINITE
    assert "log2_trips" in found.detail
    assert "n_wave" in found.detail


def fails(error: BaseException) -> Callable[[Sequence[ReductionTile]], Any]:
    def behave(tiles: Sequence[ReductionTile]) -> Any:
        raise error

    return behave


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (fails(RuntimeError("no luck")), Reason.SCORER_ERROR),
        (fails(MemoryError()), Reason.SCORER_ERROR),
        (fails(SystemExit(3)), Reason.SCORER_ERROR),
        (fails(KeyboardInterrupt()), Reason.SCORER_ERROR),
        (fails(TimeoutError("of its own")), Reason.SCORER_ERROR),
        (lambda tiles: np.full(len(tiles), np.nan), Reason.NON_FINITE),
        (lambda tiles: np.r_[np.inf, np.zeros(len(tiles) - 1)], Reason.NON_FINITE),
        (lambda tiles: np.zeros(len(tiles) - 1), Reason.SCORER_ERROR),
        (lambda tiles: np.zeros((len(tiles), 1)), Reason.SCORER_ERROR),
        (lambda tiles: np.float64(1.0), Reason.SCORER_ERROR),
        (lambda tiles: None, Reason.SCORER_ERROR),
        (lambda tiles: ["a"] * len(tiles), Reason.SCORER_ERROR),
    ],
    ids=[
        "raises", "out_of_memory", "exits", "interrupts", "times_out", "nan", "inf", "one_short", "matrix", "scalar",
        "none", "words",
    ],
)  # fmt: skip
def test_a_ranker_that_misbehaves(behave: Callable[[Sequence[ReductionTile]], Any], reason: Reason) -> None:
    assert verdict(FakeRanker(manifest_for("h200"), behave)).reason is reason


def test_an_error_of_the_ranker_is_put_in_words() -> None:
    found = verdict(FakeRanker(manifest_for("h200"), fails(RuntimeError("no luck"))))
    assert found.detail == "RuntimeError: no luck"


def test_a_ranker_may_recover() -> None:
    moods = iter([fails(RuntimeError()), pseudo_scores])
    selector = Selector("h200", model=FakeRanker(manifest_for("h200"), lambda t: next(moods)(t)), policy=PATIENT)
    assert [selector.select(KERNEL).verdict.reason for _ in range(2)] == [Reason.SCORER_ERROR, Reason.TRUST]


# Time


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging function waits for; opened at the end, so that its thread ends too."""
    event = threading.Event()
    yield event
    event.set()


def test_a_ranker_that_hangs_is_waited_for_so_often_and_then_left_alone(gate: threading.Event) -> None:
    ranker = FakeRanker(manifest_for("h200"), lambda tiles: gate.wait())
    policy = GuardPolicy(score_budget_s=0.02, max_overruns=2)
    selector = Selector("h200", model=ranker, policy=policy)
    verdicts = [selector.select(KERNEL, HOST).verdict for _ in range(10)]
    assert {v.reason for v in verdicts} == {Reason.OVER_BUDGET}
    assert ranker.calls == 2
    assert "left alone" in verdicts[-1].detail


def test_one_overrun_does_not_spoil_the_next_answer(gate: threading.Event) -> None:
    moods: Iterator[Callable[[Sequence[ReductionTile]], Any]] = iter([lambda tiles: gate.wait(), pseudo_scores])
    ranker = FakeRanker(manifest_for("h200"), lambda tiles: next(moods)(tiles))
    guard = Guard(lambda: ranker, H200, GuardPolicy(score_budget_s=0.05))
    assert guard.ask(KERNEL, HOST)[0].reason is Reason.OVER_BUDGET
    guard.policy = PATIENT
    found, scores = guard.ask(KERNEL, HOST)
    assert found.trusted
    assert scores is not None
    assert scores.tolist() == pseudo_scores(HOST).tolist()


def test_a_ranker_that_only_computes_leaves_the_deadline_s_thread_once_it_has_answered() -> None:
    threads: list[str] = []

    def note(tiles: Sequence[ReductionTile]) -> Any:
        threads.append(threading.current_thread().name)
        return pseudo_scores(tiles)

    for computes_only in (False, True):
        ranker = FakeRanker(manifest_for("h200"), note)
        ranker.computes_only = computes_only  # type: ignore[attr-defined]
        guard = Guard(lambda ranker=ranker: ranker, H200, PATIENT)  # type: ignore[misc]
        assert all(guard.ask(KERNEL, HOST)[0].trusted for _ in range(3))
    here = threading.current_thread().name
    assert [name == here for name in threads] == [False, False, False, False, True, True]


def test_a_late_answer_on_the_caller_s_thread_is_not_used_and_ends_that_way() -> None:
    naps: Iterator[float] = iter([0.0, 1.2, 0.0])
    threads: list[str] = []

    def slow(tiles: Sequence[ReductionTile]) -> Any:
        threads.append(threading.current_thread().name)
        time.sleep(next(naps))
        return pseudo_scores(tiles)

    ranker = FakeRanker(manifest_for("h200"), slow)
    ranker.computes_only = True  # type: ignore[attr-defined]
    guard = Guard(lambda: ranker, H200, GuardPolicy(score_budget_s=0.6))
    answers = [guard.ask(KERNEL, HOST) for _ in range(3)]
    assert [found.reason for found, _ in answers] == [Reason.TRUST, Reason.OVER_BUDGET, Reason.TRUST]
    assert answers[1][1] is None
    here = threading.current_thread().name
    assert [name == here for name in threads] == [False, True, False]


def test_a_graph_of_anything_but_one_tree_ensemble_is_unreadable(model_dir: Path, tmp_path: Path) -> None:
    """A Loop of 10^9 rounds would hold a thread inside onnxruntime, which aborts the interpreter's exit."""
    helper = pytest.importorskip("onnx.helper")
    types = pytest.importorskip("onnx").TensorProto
    trees = (model_dir / "ranker.onnx").read_bytes()
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["X"], ["scores"])], "g", [value("X", types.DOUBLE, None)],
        [value("scores", types.DOUBLE, None)],
    )  # fmt: skip
    other = helper.make_model(graph).SerializeToString()
    assert operators(trees) == ("TreeEnsemble",)
    # Fields of one message written twice are merged: the two graphs become one of two nodes.
    for content, named in (
        (other, "ReduceSum"),
        (trees + other, "ReduceSum"),
        (b"", "nothing"),
        (b"\xff" * 40, "no ONNX"),
    ):
        folder = shutil.copytree(model_dir, tmp_path / hashlib.sha256(content).hexdigest())
        found = verdict(with_onnx(folder, content))
        assert found.reason is Reason.UNREADABLE
        assert named in found.detail


@pytest.mark.parametrize("diversity", [float("nan"), float("inf"), -1.0])
def test_a_manifest_whose_diversity_is_no_amount_is_unreadable(
    model_dir: Path, tmp_path: Path, diversity: float
) -> None:
    folder = shutil.copytree(model_dir, tmp_path / "m")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"diversity": diversity}))
    assert verdict(folder).reason is Reason.UNREADABLE


@pytest.mark.parametrize("name", ["manifest.json", "ranker.onnx"])
def test_a_model_that_is_no_file_of_sane_size_is_unreadable_at_once(model_dir: Path, tmp_path: Path, name: str) -> None:
    for kind in ("pipe", "device", "huge"):
        folder = shutil.copytree(model_dir, tmp_path / kind)
        (folder / name).unlink()
        if kind == "pipe":
            os.mkfifo(folder / name)
        elif kind == "device":
            (folder / name).symlink_to("/dev/zero")
        else:
            with (folder / name).open("wb") as stream:
                stream.truncate(1 << 32)
        started = time.monotonic()
        assert verdict(folder).reason is Reason.UNREADABLE
        assert time.monotonic() - started < GuardPolicy().load_budget_s / 2


@pytest.mark.filterwarnings("error")
def test_scores_as_large_as_doubles_get_still_make_a_set() -> None:
    ranker = FakeRanker(manifest_for("h200"), lambda tiles: np.where(np.arange(len(tiles)) % 2, 1.7e308, -1.7e308))
    chosen = Selector("h200", model=ranker, policy=PATIENT, top_k=7).select(KERNEL, HOST)
    assert chosen.verdict.trusted
    assert len(chosen.proposed_by("model")) == 7
    assert all(len(set(c.proposers)) == len(c.proposers) for c in chosen.candidates)


def test_loading_that_hangs_is_tried_once(
    gate: threading.Event, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []

    def hang(*args: Any) -> None:
        loads.append(args)
        gate.wait()

    monkeypatch.setattr(selector_module, "load_ranker", hang)
    selector = Selector("h200", model=model_dir, policy=GuardPolicy(load_budget_s=0.02))
    verdicts = [selector.select(KERNEL, HOST).verdict for _ in range(3)]
    assert {v.reason for v in verdicts} == {Reason.OVER_BUDGET}
    assert "loading" in verdicts[0].detail
    assert len(loads) == 1


def test_an_endless_budget_may_be_given() -> None:
    policy = GuardPolicy(score_budget_s=float("inf"), load_budget_s=float("inf"))
    assert verdict(FakeRanker(manifest_for("h200")), policy=policy).trusted


def test_a_hung_model_does_not_keep_the_interpreter_from_ending() -> None:
    code = """
import threading
import time
from tests.support import FakeRanker, manifest_for
from tileguard.features import ReductionKernel
from tileguard.runtime import GuardPolicy, Selector
ranker = FakeRanker(manifest_for("h200"), lambda tiles: threading.Event().wait())
selector = Selector("h200", model=ranker, policy=GuardPolicy(score_budget_s=0.02))
print(selector.select(ReductionKernel(224, 7180, "fp16", 1, 3)).verdict.reason)
"""
    assert python(code).strip() == "over_budget"


# Kernels


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"rnumel": 1 << 47}, {"log2_rnumel", "log2_x_over_r", "log2_numel"}),
        ({"num_load": 100}, {"num_load", "buffers"}),
        ({"total_ptr_elem_bytes": 1000}, {"total_ptr_bytes"}),
    ],
)
def test_a_kernel_outside_the_trained_range_names_the_features(
    model_dir: Path, known_kernel: ReductionKernel, changes: dict[str, Any], names: set[str]
) -> None:
    found = verdict(model_dir, dataclasses.replace(known_kernel, **changes))
    assert found.reason is Reason.OUT_OF_RANGE
    assert {part.split("=")[0] for part in found.detail.split(", ")} >= names
    assert "(" in found.detail
    assert ".." in found.detail


def test_a_feature_may_leave_its_range_by_the_slack_and_no_more() -> None:
    everywhere = dict.fromkeys(KERNEL_FEATURES, (-1e30, 1e30))
    space = feature_space(H200)
    kernel = ReductionKernel(1024, 64, "fp32", 1, 1)
    assert out_of_range(kernel, everywhere | {"log2_xnumel": (2.0, 8.0)}, 0.34, space) == ()
    assert out_of_range(kernel, everywhere | {"log2_xnumel": (2.0, 8.0)}, 0.33, space) == ("log2_xnumel=10 (2..8)",)
    assert out_of_range(kernel, everywhere | {"num_load": (1.0, 1.0)}, 0.25, space) == ()
    assert out_of_range(kernel, everywhere | {"num_load": (2.0, 2.0)}, 9.0, space) == ("num_load=1 (2..2)",)


def test_a_number_of_calls_is_out_of_range_for_a_model_of_run_times() -> None:
    everywhere = dict.fromkeys(KERNEL_FEATURES, (-1e30, 1e30))
    kernel = ReductionKernel(1024, 64, "fp32", 1, 1)
    assert out_of_range(kernel, everywhere, 0.25, feature_space(H200), 100) == ("calls=100 (trained on run time)",)
    ranges = dict.fromkeys(CPU_KERNEL_FEATURES, (-1e30, 1e30))
    kernel = cpu_kernel("sum", 1024, 64, "fp32")
    assert out_of_range(kernel, ranges, 0.25, feature_space(host_cpu()), 100) == ()
    of_run_time = ranges | {"log2_calls": (LOG2_FOREVER, LOG2_FOREVER)}
    assert out_of_range(kernel, of_run_time, 0.25, feature_space(host_cpu())) == ()
    assert out_of_range(kernel, of_run_time, 0.25, feature_space(host_cpu()), 128) == ("log2_calls=7 (50..50)",)


def test_every_kernel_that_a_model_was_trained_on_is_in_range(
    model_dir: Path, corpus: Corpus, trained_on: list[int]
) -> None:
    manifest = parse_manifest((model_dir / MANIFEST_FILE).read_text())
    for i in trained_on:
        kernel = corpus.sweeps[i].kernel
        assert out_of_range(kernel, manifest.ranges, 0.0, feature_space(H200)) == (), kernel_features(kernel)


@pytest.mark.parametrize(
    ("field", "numel", "reason"),
    [
        ("xnumel", 1 << 48, Reason.TRUST),
        ("rnumel", 1 << 48, Reason.TRUST),
        ("xnumel", (1 << 48) + 1, Reason.UNSUPPORTED_KERNEL),
        ("rnumel", (1 << 48) + 1, Reason.UNSUPPORTED_KERNEL),
        ("xnumel", 1 << 62, Reason.UNSUPPORTED_KERNEL),
    ],
)
def test_numels_are_supported_up_to_2_to_the_48(field: str, numel: int, reason: Reason) -> None:
    changes: dict[str, Any] = {field: numel}
    kernel = dataclasses.replace(KERNEL, **changes)
    assert verdict(FakeRanker(manifest_for("h200")), kernel).reason is reason


# Switches


@pytest.mark.parametrize("loaded", [False, True])
def test_the_environment_turns_the_model_off_and_on_again(
    model_dir: Path, known_kernel: ReductionKernel, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    selector = Selector("h200", model=model_dir, policy=PATIENT)
    if loaded:
        selector.select(known_kernel)
    monkeypatch.setenv("TILEGUARD", "0")
    assert selector.select(known_kernel).verdict.reason is Reason.DISABLED
    assert (selector.guard.ranker is not None) == loaded
    monkeypatch.setenv("TILEGUARD", "1")
    assert selector.select(known_kernel).verdict.trusted


def test_the_policy_turns_the_model_off(model_dir: Path) -> None:
    assert verdict(model_dir, policy=GuardPolicy(enabled=False)).reason is Reason.DISABLED


@pytest.mark.parametrize("field", ["range_slack", "score_budget_s", "load_budget_s"])
@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_a_policy_that_cannot_be_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        GuardPolicy(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


# Reports


def test_each_reason_is_logged_once_and_counted_every_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    selector = Selector("h200", model=tmp_path / "absent")
    with caplog.at_level(logging.WARNING, logger="tileguard"):
        for _ in range(3):
            selector.select(KERNEL)
    assert [record.name for record in caplog.records] == ["tileguard"]
    assert "no_model: no folder" in caplog.text
    assert selector.guard.counts == {Reason.NO_MODEL: 3}


def test_trusting_and_being_switched_off_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    verdict(FakeRanker(manifest_for("h200")))
    verdict(FakeRanker(manifest_for("h200")), policy=GuardPolicy(enabled=False))
    assert caplog.records == []


# Threads and forks


def test_threads_get_the_sets_that_one_thread_gets_and_load_once(
    model_dir: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [sweep.kernel for sweep in corpus.sweeps[:24]]
    alone = Selector("h200", model=model_dir, policy=PATIENT)
    expected = [alone.select(kernel).candidates for kernel in kernels]
    loads = []
    real = selector_module.load_ranker

    def counted(*args: Any) -> Any:
        loads.append(args)
        return real(*args)

    monkeypatch.setattr(selector_module, "load_ranker", counted)
    shared = Selector("h200", model=model_dir, policy=PATIENT)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda kernel: shared.select(kernel).candidates, kernels * 4))
    assert found == expected * 4
    assert len(loads) == 1
    assert sum(shared.guard.counts.values()) == len(found)


_FORK = """
import os, sys, threading, time
from tests.support import FakeRanker, manifest_for
from tileguard.features import ReductionKernel, known_hardware
from tileguard.runtime import GuardPolicy, Selector
from tileguard.runtime import selector as module

def fork_and_select(selector, kernel):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found = selector.select(kernel)
        os.write(writer, f"{found.verdict.reason} {found.digest}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    return text

kernel = ReductionKernel(224, 7180, "fp16", 1, 3, 3, 2, 4, 14)
policy = GuardPolicy(score_budget_s=60.0, load_budget_s=60.0)
"""


def test_a_forked_child_goes_on_with_a_used_model(model_dir: Path) -> None:
    code = """
selector = Selector("h200", model=sys.argv[1], policy=policy)
own = selector.select(kernel)
for _ in range(3):
    assert fork_and_select(selector, kernel) == f"{own.verdict.reason} {own.digest}"
print(own.verdict.reason, selector.select(kernel).candidates == own.candidates)
"""
    assert python(_FORK + code, str(model_dir)).split() == ["trust", "True"]


def test_a_child_forked_while_another_thread_loads_the_model_can_still_select() -> None:
    code = """
loading, go = threading.Event(), threading.Event()
class Slow(FakeRanker):
    parent = os.getpid()
    @property
    def manifest(self):
        if os.getpid() == self.parent:
            loading.set()
            go.wait()
        return manifest_for("h200")
    @manifest.setter
    def manifest(self, value):
        pass
selector = Selector("h200", model=Slow(None), policy=policy)
thread = threading.Thread(target=selector.select, args=(kernel,))
thread.start()
loading.wait()
text = fork_and_select(selector, kernel)
go.set()
thread.join()
print(text.split()[0], selector.select(kernel).verdict.reason)
"""
    assert python(_FORK + code, timeout=20).split() == ["trust", "trust"]
