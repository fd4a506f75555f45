"""Is a model what its manifest says? It is trained again from what the manifest names, and compared.

Training is deterministic: the same corpora, parameters and libraries give the same bytes. A model that comes out again
was therefore made from those corpora and nothing else: no further family was in its data, and no byte of it was
changed afterwards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.manifest import Manifest

from .corpus import Corpus, read_corpora, read_corpus
from .decision import Check
from .export import check_parity, parity_rows
from .pipeline import ParityError, Trained, train_model
from .train import TrainConfig, design_matrix, library_versions

MAKERS = ("lightgbm", "numpy", "scikit-learn", "onnx")
"""Libraries whose version may change a model's bytes."""


@dataclass(frozen=True, slots=True)
class Given:
    """The corpora that a promotion was given. claimed: those that the challenger's manifest names, in its order, as
    one; all: these, then the others. absent: names of those that the manifest names and nobody gave."""

    claimed: Corpus | None
    all: Corpus
    absent: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Retraced:
    """A training repeated. trained: the repetition, None where there could be none."""

    checks: tuple[Check, ...]
    trained: Trained | None


def read_given(paths: Sequence[Path], manifest: Manifest) -> Given:
    """Read the corpora and sort them as the manifest does. Errors: those of read_corpora, and InvalidInput for a
    corpus of other hardware."""
    path_of: dict[str, Path] = {}
    for path in paths:
        corpus = read_corpus(path, hardware=manifest.hardware)
        others = sorted({sweep.hardware for sweep in corpus.sweeps} - {manifest.hardware})
        if others:
            raise InvalidInput("corpus", f"{path}, measured on {', '.join(others)}", f"one of {manifest.hardware}")
        if corpus.family != manifest.family:
            raise InvalidInput("corpus", f"{path}, of {corpus.family}", f"one of {manifest.family}")
        if corpus.digest in path_of:
            raise InvalidInput("corpus", str(path), f"another content than {path_of[corpus.digest]}")
        path_of[corpus.digest] = path
    absent = tuple(name for name, digest in manifest.corpora.items() if digest not in path_of)
    claimed = [path_of[digest] for digest in manifest.corpora.values() if digest in path_of]
    ordered = claimed + [path for path in path_of.values() if path not in claimed]
    everything = read_corpora(ordered, hardware=manifest.hardware)
    if absent or not claimed:
        return Given(None, everything, absent)
    same = len(claimed) == len(ordered)
    return Given(everything if same else read_corpora(claimed, hardware=manifest.hardware), everything, ())


def recipe(manifest: Manifest) -> tuple[TrainConfig, tuple[str, ...]]:
    """The hyper-parameters that a manifest records, as this version takes them, and in words what it had to assume or
    leave out. Raises InvalidInput for values that no training can have."""
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    recorded = {name: _frozen(value) for name, value in manifest.parameters.items()}
    notes = []
    if unknown := sorted(recorded.keys() - fields):
        notes.append(f"this version knows no {', '.join(unknown)}")
    if missing := sorted(fields - recorded.keys()):
        notes.append(f"the manifest has no {', '.join(missing)}: this version's defaults")
    try:
        return TrainConfig(**{name: value for name, value in recorded.items() if name in fields}), tuple(notes)
    except (TypeError, InvalidInput) as error:
        raise InvalidInput("parameters", dict(manifest.parameters), f"what a training takes ({error})") from None


def retrace(
    given: Given, hardware: HardwareSpec, manifest: Manifest, onnx: bytes, *,
    on_step: Callable[[str], None] = lambda step: None,
) -> Retraced:  # fmt: skip
    """Train the recipe of a model on the corpora that it claims; checks `provenance`, `parity` and `manifest`."""
    limit = "the training that the manifest describes gives these bytes"
    if given.claimed is None:
        lacking = ", ".join(given.absent) or "corpora: the manifest names none"
        words = f"not given: {lacking}; without them nothing shows what the model was trained on"
        return Retraced((Check("provenance", False, {"absent": list(given.absent)}, limit, words),), None)
    try:
        config, notes = recipe(manifest)
        trained = train_model(given.claimed, hardware, config, command=manifest.command, on_step=on_step)
    except (InvalidInput, ParityError) as error:
        words = f"that training is impossible: {error}"
        return Retraced((Check("provenance", False, {}, limit, words),), None)
    again, other_libraries = hashlib.sha256(onnx).hexdigest(), _other_libraries(manifest)
    equal_bytes = trained.onnx == onnx
    rows = parity_rows(
        trained.booster, np.vstack(design_matrix(given.claimed, hardware, range(len(given.claimed.sweeps)))),
        n=max(config.rounds * config.num_leaves, 1000), seed=config.seed,
    )  # fmt: skip
    parity = check_parity(trained.booster, onnx, rows)
    names = ", ".join(given.claimed.files)
    if equal_bytes:
        words = f"trained again on {names}: the same bytes"
    elif other_libraries and parity.equal:
        words = f"trained again on {names} with {other_libraries}: other bytes, but every score is the same"
    else:
        words = f"trained again on {names}: another model; it was changed, or trained on other data"
    if notes:
        words += f" ({'; '.join(notes)})"
    provenance = Check(
        "provenance", equal_bytes or bool(other_libraries and parity.equal),
        {"onnx_sha256": again, "retrained_sha256": trained.manifest.onnx_sha256, "corpora": dict(manifest.corpora),
         "other_libraries": other_libraries},
        limit, words,
    )  # fmt: skip
    exact = Check(
        "parity", parity.equal,
        {"rows": parity.rows, "unequal": parity.unequal_rows, "max_abs_difference": parity.max_abs_difference},
        "0 rows differ", f"ONNX Runtime against LightGBM: {parity.unequal_rows} of {parity.rows} rows differ",
    )  # fmt: skip
    wrong = misstated(manifest, trained.manifest)
    words = f"not what the training gives: {', '.join(wrong)}" if wrong else "says what the training gives"
    honest = Check("manifest", not wrong, {"wrong": list(wrong)}, "ranges, calibration and figures as trained", words)
    return Retraced((provenance, exact, honest), trained)


def misstated(manifest: Manifest, again: Manifest) -> tuple[str, ...]:
    """Fields of a manifest, of those that the guard or a reader relies on, that differ from the repeated training's.

    Numbers count as equal within 1e-9 of each other: other libraries may round their last bits differently.
    """
    wrong = [
        name
        for name in ("feature_names", "ranges", "diversity", "calibration", "seed")
        if not _alike(_frozen(getattr(manifest, name)), _frozen(getattr(again, name)))
    ]
    if manifest.families and manifest.families != again.families and again.families:
        wrong.append("families")
    said, found = (_selectors(side) for side in (manifest, again))
    for selector in sorted(said.keys() & found.keys()):
        for tier in ("lossless", "severe"):
            if not _alike(said[selector].get(tier), found[selector].get(tier)):
                wrong.append(f"metrics of {selector}: {tier}")
    return tuple(wrong)


def leaks(
    held_out: Corpus, side: str, manifest: Manifest, training: Corpus | None
) -> tuple[tuple[str, ...], str | None]:
    """(Families and kernels of `held_out` that a model was trained on, why that cannot be known or None).

    training: the corpora that the manifest names, where they were given. A kernel counts by its id, and by its
    generated source with its sizes: under a new family name it would still be remembered.
    """
    if training is None and not manifest.families:
        return (), f"the {side}'s manifest names no families, and its corpora were not given"
    families = set(manifest.families) | (set(training.families) if training is not None else set())
    found = sorted(set(held_out.families) & families)
    if training is not None:
        ids = {sweep.kernel_id for sweep in training.sweeps}
        sources = {(sweep.source, sweep.kernel) for sweep in training.sweeps if sweep.source}
        for sweep in held_out.sweeps:
            if sweep.family not in families and (
                sweep.kernel_id in ids or (sweep.source and (sweep.source, sweep.kernel) in sources)
            ):
                found.append(sweep.kernel_id)
    return tuple(found), None


def _other_libraries(manifest: Manifest) -> str:
    """In words, which of MAKERS is of another version here than the manifest says; "" where none is."""
    here = library_versions()
    differing = [name for name in MAKERS if manifest.libraries.get(name) != here.get(name)]
    return ", ".join(f"{name} {here.get(name)} (not {manifest.libraries.get(name)})" for name in differing)


def _selectors(manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
    held_out = manifest.metrics.get("held_out")
    selectors = held_out.get("selectors") if isinstance(held_out, Mapping) else None
    return selectors if isinstance(selectors, Mapping) else {}


def _frozen(value: Any) -> Any:
    """Lists as tuples: JSON has no tuples, and the dataclasses no lists."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return {name: _frozen(item) for name, item in value.items()} if isinstance(value, Mapping) else value


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)
