"""The promotion gate: may a challenger take the champion's place? A decision with its figures, and no effect.

The challenger must be what its manifest says (provenance.py), and on workload families that neither model was trained
on, paired by kernel: not fewer kernels lossless, not more of them severe, no set without a tile that it had to hold.
And it must rank fast enough and be small enough to live in a compiler.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tileguard import __version__
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec, known_hardware
from tileguard.runtime.feature_space import FAMILIES
from tileguard.runtime.guard import ModelRejected, check_fit
from tileguard.runtime.manifest import Manifest, parse_manifest
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE, OnnxRanker

from .champions import FILES, onnx_digest
from .corpus import Corpus, read_corpora
from .decision import Check, Decision, Paired, Side
from .evaluate import Evaluation, evaluate
from .paired import paired
from .pipeline import champion_model, fit_ranker, judge_held_out
from .provenance import Given, Retraced, leaks, read_given, recipe, retrace
from .select_time import kernels_of_size, select_times
from .tables import percent
from .train import Fold, TrainConfig, library_versions

REPORTED_K = (4, 8, 12)
RULING_K = 8

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits of what a compiler must bear: p50 of one selection, in µs, and the ONNX file's size."""

    latency_budget_us: float = 1000.0
    max_onnx_bytes: int = 300_000

    def __post_init__(self) -> None:
        if not self.latency_budget_us > 0:
            raise InvalidInput("latency-budget-us", self.latency_budget_us, "a number > 0")


@dataclass(frozen=True, eq=False)
class Contender:
    """A model as it was read from its folder. rejected: why this version cannot listen to it; ranker is then None."""

    folder: Path
    onnx: bytes
    manifest_text: str
    manifest: Manifest
    hardware: HardwareSpec
    ranker: OnnxRanker | None
    rejected: str

    def side(self, judged_as: str) -> Side:
        digest = onnx_digest({ONNX_FILE: self.onnx})
        return Side(str(self.folder), digest, self.manifest.mlflow_run_id, judged_as)


def read_contender(folder: Path) -> Contender:
    """Read a model's folder. Raises InvalidInput where it is none: no such files, a manifest that cannot be read, a
    kernel family or hardware that this version does not know."""
    for name in (ONNX_FILE, MANIFEST_FILE):
        if not (folder / name).is_file():
            inner = f"; the model is in {folder / 'model'}" if (folder / "model" / name).is_file() else ""
            raise InvalidInput("model", str(folder), f"a folder with {', '.join(FILES)}{inner}")
    try:
        text = (folder / MANIFEST_FILE).read_text(encoding="utf-8")
        manifest = parse_manifest(text)
    except (ModelRejected, UnicodeDecodeError) as error:
        raise InvalidInput("model", str(folder), f"a model whose manifest can be read ({error})") from None
    if manifest.family not in FAMILIES:
        raise InvalidInput("model", f"{folder}, for {manifest.family}", f"one for {' or '.join(FAMILIES)}")
    hardware, onnx = known_hardware(manifest.hardware), (folder / ONNX_FILE).read_bytes()
    try:
        ranker = OnnxRanker(manifest, onnx, hardware)
        check_fit(manifest, family=manifest.family, hardware=hardware)
    except ModelRejected as error:
        return Contender(folder, onnx, text, manifest, hardware, None, str(error))
    return Contender(folder, onnx, text, manifest, hardware, ranker, "")


def decide(
    challenger: Contender, champion: Contender | None, corpora: Sequence[Path], *,
    held_out: Sequence[Path] = (), rules: Rules | None = None, on_step: OnStep = lambda step: None,
) -> Decision:  # fmt: skip
    """Judge the challenger against the champion (None: there is none yet).

    corpora: those that the challenger was trained on, and perhaps more. Without `held_out` both recipes are
    cross-validated on all of them, over the same folds of families. With it the two models' own files are judged there.
    The checks that cost little come first; where one of these fails nothing more is looked at.

    Raises InvalidInput for corpora that cannot be judged, a champion for other hardware, and a switched-off guard.
    """
    rules = rules or Rules()
    if os.environ.get("TILEGUARD") == "0":
        raise InvalidInput("TILEGUARD", "0", "unset: it turns every model off")
    hardware = challenger.hardware
    if champion is not None and champion.manifest.hardware != hardware.name:
        raise InvalidInput(
            "champion", f"{champion.folder}, for {champion.manifest.hardware}", f"one for {hardware.name}"
        )
    if champion is not None and champion.manifest.family != challenger.manifest.family:
        raise InvalidInput(
            "champion", f"{champion.folder}, for {champion.manifest.family}", f"one for {challenger.manifest.family}"
        )
    given = read_given(corpora, challenger.manifest)
    judge = read_corpora(held_out, hardware=hardware.name) if held_out else None
    checks = [_integrity(challenger), _size(challenger, rules)]
    if judge is not None:
        checks.append(_leak(judge, challenger, champion, given, corpora))
    retraced = Retraced((), None)
    if all(check.passed for check in checks):
        on_step("training the challenger again from what its manifest names")
        retraced = retrace(given, hardware, challenger.manifest, challenger.onnx, on_step=on_step)
        checks += retraced.checks
    words = _in_words(judge if judge is not None else given.all, held_out=judge is not None)
    if retraced.trained is None or not all(check.passed for check in checks):
        return _decision(challenger, champion, words, checks, judged=False)

    if judge is not None:
        judged = _on_held_out(judge, challenger, champion, given, on_step)
    else:
        judged = _cross_validated(retraced, champion, given, on_step)
        checks.append(_folds(judged))
    checks += _quality(judged)
    on_step("timing selections")
    checks.append(_latency(challenger, champion, judged.corpus, rules))
    return _decision(challenger, champion, words, checks, judged=judged)


@dataclass(frozen=True, eq=False)
class _Judged:
    """Both models on the same kernels; champion None: there is none. folds: those of each cross-validation."""

    corpus: Corpus
    challenger: Evaluation
    champion: Evaluation | None
    challenger_as: str
    champion_as: str
    notes: tuple[str, ...]
    folds: tuple[tuple[Fold, ...], ...] = ()

    @property
    def pairs(self) -> tuple[Paired, ...]:
        if self.champion is None:
            return ()
        names = [f"{what}@{k}" for what in ("model", "union") for k in REPORTED_K]
        return tuple(paired(self.challenger, self.champion, name) for name in names)


def _cross_validated(retraced: Retraced, champion: Contender | None, given: Given, on_step: OnStep) -> _Judged:
    trained = retraced.trained
    assert trained is not None
    hardware = known_hardware(trained.manifest.hardware)
    own = trained.held_out
    if given.claimed is not given.all:
        on_step("cross-validating the challenger's recipe over all corpora")
        own = judge_held_out(given.all, hardware, trained.config)
    as_recipe = "its recipe, trained anew without the families of each fold"
    if champion is None:
        return _Judged(given.all, own.evaluation, None, as_recipe, "none", (), (own.folds,))
    config, notes = _champion_recipe(champion, trained.config.folds)
    if config == trained.config:
        other = own
        notes = (*notes, "the champion's recipe is the challenger's: on the same data they cannot differ")
    else:
        on_step("cross-validating the champion's recipe over the same folds")
        other = judge_held_out(given.all, hardware, config)
    folds = (own.folds, other.folds)
    return _Judged(given.all, own.evaluation, other.evaluation, as_recipe, as_recipe, notes, folds)


def _on_held_out(
    judge: Corpus, challenger: Contender, champion: Contender | None, given: Given, on_step: OnStep
) -> _Judged:
    hardware = challenger.hardware
    assert challenger.ranker is not None
    on_step("judging both on the held-out corpora")
    own = evaluate(judge, hardware, champion_model(challenger.ranker, hardware), ks=REPORTED_K)
    if champion is None:
        return _Judged(judge, own, None, "its ONNX file", "none", ())
    if champion.ranker is not None:
        other = evaluate(judge, hardware, champion_model(champion.ranker, hardware), ks=REPORTED_K)
        return _Judged(judge, own, other, "its ONNX file", "its ONNX file", ())
    config, notes = _champion_recipe(champion, TrainConfig().folds)
    again = fit_ranker(given.all, hardware, config)
    other = evaluate(judge, hardware, champion_model(again, hardware), ks=REPORTED_K)  # type: ignore[arg-type]
    return _Judged(judge, own, other, "its ONNX file", f"its recipe, trained anew on {given.all.path}", notes)


def _champion_recipe(champion: Contender, folds: int) -> tuple[TrainConfig, tuple[str, ...]]:
    config, notes = recipe(champion.manifest)
    said = [f"the champion's recipe: {note}" for note in notes]
    if champion.rejected:
        said.append(
            f"this version cannot load the champion ({champion.rejected}): its recipe stands for it, with this "
            "version's features"
        )
    return dataclasses.replace(config, folds=folds), tuple(said)


def _integrity(challenger: Contender) -> Check:
    digest = onnx_digest({ONNX_FILE: challenger.onnx})
    words = challenger.rejected or f"{ONNX_FILE} is {digest[:12]}…, as the manifest says, and loads"
    figures = {"onnx_sha256": digest, "manifest_sha256": challenger.manifest.onnx_sha256}
    return Check(
        "integrity", challenger.ranker is not None, figures, "the manifest's file, of this version's features", words
    )


def _size(challenger: Contender, rules: Rules) -> Check:
    size = len(challenger.onnx)
    limit = f"≤ {rules.max_onnx_bytes / 1000:.0f} kB"
    return Check("size", size <= rules.max_onnx_bytes, {"onnx_bytes": size}, limit, f"{size / 1000:.1f} kB")


def _leak(
    judge: Corpus, challenger: Contender, champion: Contender | None, given: Given, corpora: Sequence[Path]
) -> Check:
    """Neither model was trained on a held-out family; a champion judged by its recipe was trained on all corpora."""
    sides: list[tuple[str, Manifest, Corpus | None]] = [("challenger", challenger.manifest, given.claimed)]
    if champion is not None and champion.ranker is not None:
        sides.append(("champion", champion.manifest, read_given(corpora, champion.manifest).claimed))
    elif champion is not None:
        sides.append(("champion", dataclasses.replace(champion.manifest, families=()), given.all))
    found, words = {}, []
    for side, manifest, training in sides:
        seen, unknown = leaks(judge, side, manifest, training)
        found[side] = list(seen)
        if unknown:
            words.append(unknown)
        if seen:
            more = f" and {len(seen) - 5} more" if len(seen) > 5 else ""
            words.append(f"the {side} was trained on {', '.join(seen[:5])}{more}")
    said = "; ".join(words) or f"none of {len(set(judge.families))} held-out families was trained on"
    return Check("leak", not words, found, "no held-out family or kernel in training", said)


def _folds(judged: _Judged) -> Check:
    """No family on both sides of a fold, and the same folds for both models."""
    families = judged.corpus.families
    shared = sorted(
        {families[i] for folds in judged.folds for fold in folds for i in fold.train if families[i] in fold.families}
    )
    splits = {tuple((fold.train, fold.test) for fold in folds) for folds in judged.folds}
    words = "every kernel is judged by a model that saw none of its family, of both recipes on the same folds"
    if shared or len(splits) > 1:
        words = f"trained on held-out families: {', '.join(shared)}" if shared else "the two were judged on other folds"
    figures = {"shared": shared, "folds": [list(fold.families) for fold in judged.folds[0]]}
    return Check("leak", not shared and len(splits) == 1, figures, "no family on both sides of a fold", words)


def _quality(judged: _Judged) -> list[Check]:
    violations = judged.challenger.superset_violations
    verdicts = {str(reason): count for reason, count in judged.challenger.verdicts.items()}
    found = [
        Check(
            "superset", violations == 0, {"violations": violations, "verdicts": verdicts}, "0 violations",
            f"{violations} sets lack a tile of formula, host or model",
        )
    ]  # fmt: skip
    ruling = [pair for pair in judged.pairs if pair.selector.endswith(f"@{RULING_K}")]
    for name, limit in (("lossless", "not lower than the champion's"), ("severe", "not higher than the champion's")):
        sides = {pair.selector: pair.lossless if name == "lossless" else pair.severe for pair in ruling}
        passed = all(own >= other if name == "lossless" else own <= other for own, other in sides.values())
        words = "; ".join(
            f"{selector} {percent(own)} (champion {percent(other)})" for selector, (own, other) in sides.items()
        )
        figures = {selector: {"challenger": own, "champion": other} for selector, (own, other) in sides.items()}
        if not sides:
            words = _alone(judged.challenger, name)
        found.append(Check(name, passed, figures, limit, words))
    return found


def _alone(evaluation: Evaluation, tier: str) -> str:
    shares = ", ".join(
        f"{name} {percent(evaluation.summary(name)[tier])}" for name in (f"model@{RULING_K}", f"union@{RULING_K}")
    )
    return f"{shares}; no champion to compare with"


def _latency(challenger: Contender, champion: Contender | None, corpus: Corpus, rules: Rules) -> Check:
    assert challenger.ranker is not None
    models = {"challenger": challenger.ranker}
    if champion is not None and champion.ranker is not None:
        models["champion"] = champion.ranker
    kernels = kernels_of_size(corpus, challenger.hardware)
    p50 = {name: float(np.median(us)) for name, us in select_times(models, kernels, challenger.hardware).items()}
    other = f", the champion {p50['champion']:.0f}" if "champion" in p50 else ""
    return Check(
        "latency", p50["challenger"] <= rules.latency_budget_us,
        {"select_p50_us": p50["challenger"], "champion_p50_us": p50.get("champion"), "kernels": len(kernels)},
        f"p50 ≤ {rules.latency_budget_us:g} µs on this machine",
        f"{p50['challenger']:.0f} µs a selection{other}, in turns, lattices of about 200 tiles",
    )  # fmt: skip


def _in_words(corpus: Corpus, *, held_out: bool) -> str:
    how = "held-out corpora" if held_out else "cross-validation by family"
    names = ", ".join(corpus.files)
    return f"{how}: {len(corpus.sweeps)} kernels in {len(set(corpus.families))} families of {names}"


def _decision(
    challenger: Contender, champion: Contender | None, held_out: str, checks: Sequence[Check], *,
    judged: _Judged | bool,
) -> Decision:  # fmt: skip
    done = judged if isinstance(judged, _Judged) else None
    unjudged = "not judged"
    other = champion.side(done.champion_as if done else unjudged) if champion else Side("", "", None, "none")
    return Decision(
        hardware=challenger.hardware.name, family=challenger.manifest.family,
        challenger=challenger.side(done.challenger_as if done else unjudged), champion=other,
        held_out=held_out, kernels=len(done.corpus.sweeps) if done else 0, checks=tuple(checks),
        paired=done.pairs if done else (), notes=done.notes if done else (), judged=done is not None,
        made=datetime.now(UTC).isoformat(timespec="seconds"), tileguard_version=__version__,
        libraries=library_versions(),
    )  # fmt: skip
