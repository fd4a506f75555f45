"""The gate lets no worse, tampered or leaked model pass; what it lets pass is installed whole and can be taken back."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import CORPUS_PATH, python

from tileguard import models
from tileguard.__main__ import main
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.learner import promote_run, promotion, provenance, select_time
from tileguard.learner.card import CARD_FILE, with_promotion
from tileguard.learner.champions import REPLACED, bring_back, install, onnx_digest, read_files, replaced
from tileguard.learner.corpus import Corpus, read_corpora, read_rows, write_corpus
from tileguard.learner.decision import Decision
from tileguard.learner.evaluate import evaluate
from tileguard.learner.paired import mcnemar, paired
from tileguard.learner.pipeline import fit_ranker, judge_held_out, train_model, write_model
from tileguard.learner.promote_run import promote, restore
from tileguard.learner.promotion import Rules, decide, read_contender
from tileguard.learner.provenance import recipe
from tileguard.learner.train import TrainConfig
from tileguard.runtime.guard import Reason
from tileguard.runtime.manifest import Manifest, parse_manifest
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE, load_ranker
from tileguard.runtime.selector import Selector

H200 = known_hardware("h200")
GOOD = TrainConfig(rounds=10, num_leaves=15, min_data_in_leaf=10, folds=2)
WORSE = dataclasses.replace(GOOD, rounds=1, num_leaves=2, diversity=0.0)
PATIENT = Rules(latency_budget_us=1e9)
"""How busy the machine is must not decide what these tests see."""


@dataclass(frozen=True)
class World:
    """Small corpora, and models trained on `seen`: good and a worse one. `unseen` has other families."""

    seen: Path
    unseen: Path
    good: Path
    worse: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    rows, metadata = read_rows(CORPUS_PATH)
    kept: dict[str, list[str]] = {}
    for row in rows:
        ids = kept.setdefault(row["family"], [])
        if row["kernel_id"] not in ids and len(ids) < 2:
            ids.append(row["kernel_id"])
    families = sorted(kept)
    seen, unseen = folder / "seen.parquet", folder / "unseen.parquet"
    for path, chosen in ((seen, families[:10]), (unseen, families[10:])):
        kernels = {kernel_id for family in chosen for kernel_id in kept[family]}
        write_corpus([row for row in rows if row["kernel_id"] in kernels], path, metadata=metadata)
    good, worse = (
        write_model(train_model(read_corpora([seen]), H200, config, command="test"), folder / name)
        for name, config in (("good", GOOD), ("worse", WORSE))
    )
    return World(seen, unseen, good, worse)


@pytest.fixture(scope="module", autouse=True)
def _trained_once() -> Iterator[None]:
    """What the gate trains again it trains once for all tests: the same corpora and parameters give the same model."""
    known: dict[Any, Any] = {}

    def once(function: Callable[..., Any]) -> Callable[..., Any]:
        def remembered(corpus: Corpus, hardware: HardwareSpec, config: TrainConfig, **options: Any) -> Any:
            key = (function, corpus.digest, tuple(corpus.files), config)
            if key not in known:
                known[key] = function(corpus, hardware, config, **options)
            return known[key]

        return remembered

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "train_model", once(train_model))
        patch.setattr(promotion, "judge_held_out", once(judge_held_out))
        patch.setattr(promotion, "fit_ranker", once(fit_ranker))
        patch.setattr(select_time.select_times, "__kwdefaults__", {"rounds": 1})
        yield


@pytest.fixture(scope="module")
def leaked(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good recipe, trained on the families of `unseen` too."""
    corpus = read_corpora([world.seen, world.unseen])
    return write_model(train_model(corpus, H200, GOOD, command="test"), tmp_path_factory.mktemp("leaked") / "model")


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a model's folder, with another ONNX file or other fields in its manifest."""

    def make(source: Path, name: str, *, onnx: bytes | None = None, **changes: Any) -> Path:
        target = Path(shutil.copytree(source, tmp_path / name))
        if onnx is not None:
            (target / ONNX_FILE).write_bytes(onnx)
        if changes:
            manifest = parse_manifest((target / MANIFEST_FILE).read_text(encoding="utf-8"))
            (target / MANIFEST_FILE).write_text(dataclasses.replace(manifest, **changes).to_json(), encoding="utf-8")
        return target

    return make


def judged(challenger: Path, champion: Path | None, corpora: list[Path], **options: Any) -> Decision:
    old = read_contender(champion) if champion is not None else None
    return decide(read_contender(challenger), old, corpora, rules=PATIENT, **options)


def manifest_of(folder: Path) -> Manifest:
    return parse_manifest((folder / MANIFEST_FILE).read_text(encoding="utf-8"))


def words(decision: Decision, name: str) -> str:
    return next(check.words for check in decision.checks if check.name == name)


# What is refused.


def test_a_planted_worse_model_is_refused_by_cross_validation(world: World) -> None:
    decision = judged(world.worse, world.good, [world.seen])
    assert not decision.promoted and decision.judged
    assert "lossless" in decision.failed
    assert {"integrity", "provenance", "parity", "manifest", "leak", "superset"}.isdisjoint(decision.failed)
    eight = next(pair for pair in decision.paired if pair.selector == "model@8")
    assert eight.lossless[0] < eight.lossless[1]
    assert (eight.only_champion - eight.only_challenger) / eight.kernels == pytest.approx(
        eight.lossless[1] - eight.lossless[0]
    )
    assert eight.better + eight.equal + eight.worse == eight.kernels == 20


def test_a_planted_worse_model_is_refused_on_held_out_corpora(world: World) -> None:
    decision = judged(world.worse, world.good, [world.seen], held_out=[world.unseen])
    assert not decision.promoted and decision.judged
    assert "lossless" in decision.failed
    assert decision.kernels == 10
    assert decision.challenger.judged_as == decision.champion.judged_as == "its ONNX file"


def flipped(onnx: bytes) -> bytes:
    """An ONNX model whose first leaf gives another score."""
    import onnx as library

    model = library.load_from_string(onnx)
    (leaves,) = (one for one in model.graph.node[0].attribute if one.name == "leaf_weights")
    values = library.numpy_helper.to_array(leaves.t).copy()
    values[0] += 1e-9
    leaves.t.CopyFrom(library.numpy_helper.from_array(values, leaves.t.name))
    return bytes(model.SerializeToString(deterministic=True))


def test_a_tampered_onnx_file_is_refused(world: World, copy: Callable[..., Path]) -> None:
    onnx = flipped((world.good / ONNX_FILE).read_bytes())
    decision = judged(copy(world.good, "tampered", onnx=onnx), world.worse, [world.seen])
    assert (decision.judged, decision.failed) == (False, ("integrity",))
    assert Reason.DIGEST_MISMATCH in words(decision, "integrity")


def test_a_tampered_onnx_file_is_refused_under_a_manifest_made_to_fit(world: World, copy: Callable[..., Path]) -> None:
    onnx = flipped((world.good / ONNX_FILE).read_bytes())
    digest = hashlib.sha256(onnx).hexdigest()
    for name, changes in (
        ("redigested", {}),
        ("other-library", {"libraries": dict(manifest_of(world.good).libraries) | {"lightgbm": "0.0"}}),
    ):
        folder = copy(world.good, name, onnx=onnx, onnx_sha256=digest, **changes)
        decision = judged(folder, world.worse, [world.seen])
        assert (decision.judged, decision.failed) == (False, ("provenance", "parity"))
        assert "another model" in words(decision, "provenance")


def test_a_model_trained_on_a_leaked_family_is_refused(world: World, leaked: Path) -> None:
    both = [world.seen, world.unseen]
    decision = judged(leaked, world.good, both, held_out=[world.unseen])
    assert (decision.judged, decision.failed) == (False, ("leak",))
    assert "sum0" in words(decision, "leak") and "the challenger was trained on" in words(decision, "leak")
    # The champion may be the one that remembers.
    decision = judged(world.worse, leaked, both, held_out=[world.unseen])
    assert decision.failed == ("leak",)
    assert "the champion was trained on" in words(decision, "leak")


def test_a_leaked_family_that_the_manifest_hides_is_found_by_training_again(
    world: World, leaked: Path, copy: Callable[..., Path]
) -> None:
    honest = manifest_of(world.good)
    hidden = copy(leaked, "hidden", corpora=honest.corpora, families=honest.families)
    for options in ({}, {"held_out": [world.unseen]}):
        decision = judged(hidden, world.worse, [world.seen], **options)
        assert not decision.judged and "provenance" in decision.failed


def test_a_held_out_kernel_under_another_family_name_is_a_leak(world: World, tmp_path: Path) -> None:
    rows, _ = read_rows(world.seen)
    write_corpus([{**row, "family": "renamed", "workload": "renamed:1"} for row in rows[:50]], tmp_path / "r.parquet")
    decision = judged(world.worse, world.good, [world.seen], held_out=[tmp_path / "r.parquet"])
    assert decision.failed == ("leak",)
    assert rows[0]["kernel_id"] in words(decision, "leak")


def test_a_model_whose_corpora_are_not_given_is_refused(world: World) -> None:
    decision = judged(world.good, world.worse, [world.unseen])
    assert (decision.judged, decision.failed) == (False, ("provenance",))
    assert words(decision, "provenance").startswith("not given: seen.parquet")


@pytest.mark.parametrize("field", ["ranges", "calibration", "diversity", "metrics"])
def test_a_manifest_that_promises_more_than_its_training_is_refused(
    world: World, copy: Callable[..., Path], field: str
) -> None:
    changed: Any = json.loads(json.dumps(dataclasses.asdict(manifest_of(world.good))[field]))
    if field == "ranges":
        changed["log2_xnumel"] = (0.0, 48.0)
    elif field == "calibration":
        changed[0]["upper"] = 0.001
    elif field == "diversity":
        changed += 1.0
    else:
        changed["held_out"]["selectors"]["model@8"]["lossless"] = 0.999
    decision = judged(copy(world.good, field, **{field: changed}), world.worse, [world.seen])
    assert (decision.judged, decision.failed) == (False, ("manifest",))
    assert field in words(decision, "manifest")


def test_a_slow_or_large_model_is_refused(world: World) -> None:
    new, old = read_contender(world.good), read_contender(world.worse)
    assert decide(new, old, [world.seen], rules=Rules(latency_budget_us=1.0)).failed == ("latency",)
    assert decide(new, old, [world.seen], rules=Rules(max_onnx_bytes=1000)).failed == ("size",)


def test_a_set_that_lacks_a_tile_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*args: Any, **options: Any) -> Any:
        return dataclasses.replace(evaluate(*args, **options), superset_violations=1)

    monkeypatch.setattr(promotion, "evaluate", short)
    assert judged(world.good, world.worse, [world.seen], held_out=[world.unseen]).failed == ("superset",)


# What is judged, and how.


def test_a_better_model_passes_every_check_both_ways(world: World) -> None:
    for options in ({}, {"held_out": [world.unseen]}):
        decision = judged(world.good, world.worse, [world.seen], **options)
        assert decision.promoted, decision.failed
        names = [check.name for check in decision.checks]
        assert sorted(names) == sorted(
            [
                "integrity",
                "size",
                "provenance",
                "parity",
                "manifest",
                "leak",
                "superset",
                "lossless",
                "severe",
                "latency",
            ]
        )
        assert {pair.selector for pair in decision.paired} == {
            f"{w}@{k}" for w in ("model", "union") for k in (4, 8, 12)
        }
        found = json.loads(json.dumps(decision.to_json(), allow_nan=False))
        assert found["promoted"] is True and found["failed"] == []


def test_other_libraries_may_give_other_bytes_but_no_other_score(
    world: World, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx as library

    model = library.load_from_string((world.good / ONNX_FILE).read_bytes())
    model.producer_version = "another"
    onnx = model.SerializeToString(deterministic=True)
    digest = hashlib.sha256(onnx).hexdigest()
    other = dict(manifest_of(world.good).libraries) | {"onnx": "0.0"}
    decision = judged(copy(world.good, "a", onnx=onnx, onnx_sha256=digest, libraries=other), world.worse, [world.seen])
    assert decision.promoted
    assert "every score is the same" in words(decision, "provenance")
    # With the same libraries nothing explains other bytes.
    assert judged(copy(world.good, "b", onnx=onnx, onnx_sha256=digest), None, [world.seen]).failed == ("provenance",)


def test_further_corpora_are_judged_on_but_not_trained_on(world: World) -> None:
    decision = judged(world.good, None, [world.unseen, world.seen])
    assert decision.promoted and decision.kernels == 30


def test_a_champion_of_other_features_is_judged_by_its_recipe(world: World, copy: Callable[..., Path]) -> None:
    old = copy(world.worse, "old", schema_digest="0" * 64, parameters={**WORSE.asdict(), "gone": 1})
    decision = judged(world.good, old, [world.seen])
    assert decision.promoted
    assert any("cannot load the champion (schema_mismatch" in note for note in decision.notes)
    assert any("knows no gone" in note for note in decision.notes)
    assert "champion_p50_us" in {key for check in decision.checks for key in check.figures}
    decision = judged(world.good, old, [world.seen], held_out=[world.unseen])
    assert decision.promoted
    assert decision.champion.judged_as == "its recipe, trained anew on " + str(world.seen)


def test_manifests_without_families_are_proven_clean_by_their_corpora_alone(
    world: World, copy: Callable[..., Path]
) -> None:
    bare = copy(world.worse, "bare", families=())
    assert judged(world.good, bare, [world.seen], held_out=[world.unseen]).promoted
    unknown = copy(world.worse, "unknown", families=(), corpora={"elsewhere.parquet": "0" * 64})
    decision = judged(world.good, unknown, [world.seen], held_out=[world.unseen])
    assert decision.failed == ("leak",)
    assert "names no families" in words(decision, "leak")
    said = copy(world.worse, "said", families=("a", "b"), corpora={"elsewhere.parquet": "0" * 64})
    assert judged(world.good, said, [world.seen], held_out=[world.unseen]).promoted


def test_mcnemar_is_the_exact_binomial() -> None:
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(0, 5) == mcnemar(5, 0) == pytest.approx(2 / 2**5)


def test_pairs_of_other_kernels_are_no_pairs(world: World) -> None:
    one, other = (evaluate(read_corpora([path]), H200, None) for path in (world.seen, world.unseen))
    assert paired(one, one, "formula").equal == 20
    with pytest.raises(InvalidInput, match="same kernels"):
        paired(one, other, "formula")


def test_a_recipe_comes_back_as_it_was_recorded(world: World) -> None:
    assert recipe(manifest_of(world.good)) == (GOOD, ())
    manifest = dataclasses.replace(manifest_of(world.good), parameters={"rounds": 0})
    with pytest.raises(InvalidInput, match=r"^parameters: "):
        recipe(manifest)


def test_a_switched_off_guard_judges_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGUARD", "0")
    with pytest.raises(InvalidInput, match="TILEGUARD"):
        judged(world.good, world.worse, [world.seen])


# What is installed, and taken back.


def quick(monkeypatch: pytest.MonkeyPatch, decision: Decision) -> None:
    """Judging has its own tests above."""
    monkeypatch.setattr(promote_run, "decide", lambda new, old, corpora, **_: decision)


@pytest.fixture(scope="module")
def passed(world: World) -> Decision:
    return judged(world.good, world.worse, [world.seen], held_out=[world.unseen])


@pytest.fixture(scope="module")
def refused(world: World) -> Decision:
    return judged(world.worse, world.good, [world.seen], held_out=[world.unseen])


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store but those that a test names."""
    monkeypatch.chdir(tmp_path)
    for name in ("TILEGUARD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def test_a_promoted_model_is_installed_and_the_old_one_restored(
    world: World, passed: Decision, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, passed)
    new, into = copy(world.good, "new"), copy(world.worse, "champion")
    before = read_files(into)
    result = promote(read_contender(new), read_contender(into), into, [])
    assert result.installed == into
    assert load_ranker(into, H200).manifest == manifest_of(world.good)
    assert "**Promoted**" in (into / CARD_FILE).read_text(encoding="utf-8")
    assert (into / CARD_FILE).read_bytes() == (new / CARD_FILE).read_bytes()
    (former,) = replaced(into)
    assert result.kept == former and read_files(former.folder) == before

    assert restore(into).onnx12 == former.onnx12
    assert read_files(into) == before
    restore(into)  # once more undoes it
    assert load_ranker(into, H200).manifest == manifest_of(world.good)
    restore(into, to=former.onnx12[:5])
    assert read_files(into) == before
    with pytest.raises(InvalidInput, match=r"^to: "):
        restore(into, to="nothing")


def test_a_refused_model_leaves_the_champion_and_gets_the_decision_on_its_card(
    world: World, refused: Decision, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, refused)
    new, into = copy(world.worse, "new"), copy(world.good, "champion")
    before = read_files(into)
    for _ in range(2):
        assert promote(read_contender(new), read_contender(into), into, []).installed is None
        assert read_files(into) == before and replaced(into) == ()
        card = (new / CARD_FILE).read_text(encoding="utf-8")
        assert card.count("## Promotion") == card.count("**Refused**") == 1
        assert "| lossless | **no** |" in card


def test_a_dry_run_writes_nothing(
    world: World, passed: Decision, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quick(monkeypatch, passed)
    new, into = copy(world.good, "new"), copy(world.worse, "champion")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert promote(read_contender(new), read_contender(into), into, [], dry_run=True).installed is None
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_champion_again_is_no_challenger(world: World, copy: Callable[..., Path]) -> None:
    with pytest.raises(InvalidInput, match=r"^challenger: "):
        promote(read_contender(world.good), None, copy(world.good, "champion"), [])


def test_a_first_champion_needs_none_before_it(
    world: World, passed: Decision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: Callable[..., Path]
) -> None:
    quick(monkeypatch, passed)
    into = tmp_path / "new" / "reduction-h200"
    result = promote(read_contender(copy(world.good, "c")), None, into, [])
    assert result.kept is None and replaced(into) == ()
    assert load_ranker(into, H200)
    with pytest.raises(InvalidInput, match="nothing is kept"):
        restore(into)


def test_a_champion_that_changed_while_it_was_judged_is_not_replaced(world: World, copy: Callable[..., Path]) -> None:
    into = copy(world.worse, "champion")
    with pytest.raises(InvalidInput, match="that was judged"):
        install(read_files(world.good), into, expected="0" * 64)
    assert read_files(into) == read_files(world.worse) and replaced(into) == ()


def test_a_folder_with_more_than_a_model_is_never_replaced(world: World, copy: Callable[..., Path]) -> None:
    into = copy(world.worse, "champion")
    (into / "notes.txt").write_text("mine")
    for folder in (into, into.parent):
        with pytest.raises(InvalidInput, match=r"^folder: "):
            install(read_files(world.good), folder)
    assert (into / "notes.txt").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from tileguard.learner import champions
step, new, into = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
count = 0

def watch(event, args):
    # Every change of the file system that Python tells of; the exchange is told of as the call to a C function.
    global count
    if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "ctypes.dlsym", "tempfile.mkdtemp"):
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)

files = champions.read_files(new)
sys.addaudithook(watch)
champions.install(files, into)
print(count)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
def test_a_kill_at_any_step_leaves_one_of_the_two_champions_whole(world: World, tmp_path: Path) -> None:
    import subprocess

    old, new = read_files(world.worse), read_files(world.good)
    whole = shutil.copytree(world.worse, tmp_path / "0" / "m")
    steps = int(python(KILLED, "0", str(world.good), str(whole)))
    assert steps >= 5 and read_files(whole) == new
    seen = set()
    for step in range(1, steps + 1):
        into = Path(shutil.copytree(world.worse, tmp_path / str(step) / "m"))
        with pytest.raises((AssertionError, subprocess.CalledProcessError)):
            python(KILLED, str(step), str(world.good), str(into))
        found = read_files(into)
        assert found in (old, new)
        seen.add(onnx_digest(found))
        # Whichever it is, the same command again ends well, and the old one comes back.
        install(new, into)
        assert read_files(into) == new
        bring_back(into)
        assert read_files(into) == old
        assert not list((into.parent / REPLACED / "m").glob(".new.*"))
    assert len(seen) == 2


def test_without_the_exchange_the_files_are_replaced_one_by_one(
    world: World, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Without:
        def __getattr__(self, name: str) -> None:
            raise AttributeError(name)

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Without())
    into = copy(world.worse, "champion")
    install(read_files(world.good), into)
    assert read_files(into) == read_files(world.good)
    bring_back(into)
    assert read_files(into) == read_files(world.worse)


def test_half_a_model_is_never_listened_to_and_can_be_restored(world: World, copy: Callable[..., Path]) -> None:
    into = copy(world.worse, "champion")
    install(read_files(world.good), into)
    (into / MANIFEST_FILE).write_bytes((world.worse / MANIFEST_FILE).read_bytes())
    sweep = read_corpora([world.seen]).sweeps[0]
    assert Selector(H200, model=into).select(sweep.kernel).verdict.reason is Reason.DIGEST_MISMATCH
    bring_back(into)
    assert read_files(into) == read_files(world.worse)


def test_a_decision_on_a_card_takes_the_place_of_an_earlier_one(passed: Decision, refused: Decision) -> None:
    card = with_promotion(with_promotion("# A card\n\nText.\n", refused), passed)
    assert card.startswith("# A card\n\nText.\n\n## Promotion\n")
    assert card.count("## Promotion") == 1 and "Refused" not in card
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows) and np.all([line.count("|") > 3 for line in rows])


# The command line.


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """(exit status, standard output, standard error) of one command."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


def test_exit_0_is_promoted_1_refused_2_bad_input(
    world: World,
    passed: Decision,
    refused: Decision,
    copy: Callable[..., Path],
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, into = copy(world.good, "new"), copy(world.worse, "champion")
    arguments = ("promote", new, world.seen, "--into", into)
    quick(monkeypatch, refused)
    code, out, err = command(*arguments)
    assert (code, err) == (1, "") and "refused: lossless" in out and "recorded: in no MLflow store" in out
    assert read_files(into) == read_files(world.worse)
    quick(monkeypatch, passed)
    code, out, err = command(*arguments, "--json")
    found = json.loads(out)
    assert (code, err, found["promoted"], found["installed"]) == (0, "", True, str(into))
    assert found["challenger"]["onnx_sha256"] == manifest_of(into).onnx_sha256
    code, out, err = command(*arguments)
    assert (code, out) == (2, "") and "challenger" in err

    code, out, _ = command("restore", into, "--list", "--json")
    assert [entry["folder"] for entry in json.loads(out)["former"]] == [found["kept"]]
    code, out, _ = command("restore", into)
    assert code == 0 and "restored: " in out
    assert read_files(into) == read_files(world.worse)
    for wrong in (("promote", into / "none", world.seen), ("restore", copy(world.good, "untouched"))):
        code, out, err = command(*wrong)
        assert (code, out) == (2, "") and err.count("\n") == 1


def test_what_stands_where_it_is_installed_is_the_champion_to_beat(
    world: World,
    passed: Decision,
    copy: Callable[..., Path],
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rivals: list[Any] = []

    def note(new: Any, old: Any, corpora: Any, **_: Any) -> Decision:
        rivals.append(old and old.folder)
        return passed

    monkeypatch.setattr(promote_run, "decide", note)
    into, other, empty = copy(world.worse, "champion"), copy(world.worse, "other"), copy(world.worse, "e") / "none"
    shutil.rmtree(empty.parent)
    for options in (
        ("--into", into),
        ("--champion", other),
        ("--champion", other, "--into", into),
        ("--into", empty, "--champion", "champion"),
    ):
        command("promote", copy(world.good, str(len(rivals))), world.seen, *options, "--dry-run")
    shipped = models.champion_path("reduction", "h200")
    assert rivals == [into, other, other, shipped]
    code, _, err = command("promote", copy(world.good, "last"), world.seen, "--champion", empty)
    assert code == 2 and "model" in err
