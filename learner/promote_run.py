"""A promotion carried out: recorded in MLflow, in the registry and on the card, and the champion's folder replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tileguard.features.errors import InvalidInput
from tileguard.runtime.guard import ModelRejected
from tileguard.runtime.manifest import parse_manifest
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE

from .card import CARD_FILE, with_promotion
from .champions import DIGITS, Replaced, bring_back, check_writable, install, onnx_digest, read_files, replaced
from .decision import Decision
from .promotion import Contender, Rules, decide
from .registry import CHAMPION, Registered, crown, record_decision, set_champion, version_of_bytes, version_of_run
from .store import DEFAULT_DIRECTORY, Store, open_store


@dataclass(frozen=True, slots=True)
class Promotion:
    """A decision, and what came of it. installed: the champion's folder, None where nothing was replaced. kept: the
    former champion. recorded: where MLflow keeps the decision, in words; version: of the registered model."""

    decision: Decision
    installed: Path | None
    kept: Replaced | None
    recorded: str
    version: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            **self.decision.to_json(),
            "installed": str(self.installed) if self.installed else None,
            "kept": str(self.kept.folder) if self.kept else None,
            "recorded": self.recorded,
            "model_version": self.version,
        }


@dataclass(frozen=True, slots=True)
class Restored:
    """What was brought back, what it replaced, and what the registry's `champion` is now, in words."""

    onnx12: str
    replaced: Replaced | None
    registry: str


def promote(
    challenger: Contender, champion: Contender | None, into: Path, corpora: Sequence[Path], *,
    held_out: Sequence[Path] = (), store: str | None = None, rules: Rules | None = None, dry_run: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> Promotion:  # fmt: skip
    """Decide and, unless `dry_run`, record; where every check passed, also install the challenger into `into`.

    Recorded first, then the registry's alias, then the folder in one step: a kill before the last leaves the old
    champion, and the same command again completes it. A folder that cannot be replaced puts the alias back.

    Raises InvalidInput, besides decide's, for a challenger that is the champion already, a folder that cannot be
    replaced, and a `store` that has not the challenger's run.
    """
    standing = read_files(into) if into.exists() else {}
    if standing.get(ONNX_FILE) == challenger.onnx:
        raise InvalidInput("challenger", str(challenger.folder), f"another model than {into} holds already")
    target = None
    if not dry_run:
        check_writable(into)
        target = find_target(challenger, store)
    decision = decide(challenger, champion, corpora, held_out=held_out, rules=rules, on_step=on_step)
    if dry_run:
        return Promotion(decision, None, None, "a dry run: recorded nowhere", None)
    files = read_files_of(challenger)
    card = with_promotion(files.get(CARD_FILE, b"").decode("utf-8", "replace"), decision)
    files[CARD_FILE] = card.encode()
    before = None
    if target is not None:
        on_step("recording the decision in MLflow")
        record_decision(*target, decision, card)
        if decision.promoted:
            before = crown(*target)
    kept = None
    if decision.promoted:
        on_step(f"installing into {into}")
        try:
            kept = install(files, into, expected=onnx_digest(standing))
        except BaseException:
            if target is not None and before is not None:
                set_champion(target[0], target[1].name, before)
            raise
    _write_card(challenger.folder / CARD_FILE, files[CARD_FILE])
    store_, version = target or (None, None)
    recorded = (
        f"MLflow {store_.uri}, run {version.run_id}, {version.name} version {version.version}"
        if store_ is not None and version is not None
        else "in no MLflow store: the challenger's run was not found"
    )
    return Promotion(
        decision, into if decision.promoted else None, kept, recorded, version.version if version else None
    )


def restore(into: Path, *, to: str | None = None, store: str | None = None, name: str = "") -> Restored:
    """Bring the last replaced champion back, or one by its digest, and point the registry's `champion` at it.

    name: of the registered model. A given store that does not know the model is said so, not refused: the folder is
    what counts. Errors: those of bring_back and open_store.
    """
    check_writable(into)
    target = open_store(store) if store is not None or _has_default_store() else None
    back, kept = bring_back(into, to)
    if target is None:
        return Restored(back.onnx12, kept, "no MLflow store was asked")
    digest = onnx_digest(read_files(into))
    version = version_of_bytes(target, name, digest)
    if version is None:
        return Restored(back.onnx12, kept, f"{target.uri} has no version of {name} with these bytes; its alias stays")
    set_champion(target, name, version.version)
    return Restored(back.onnx12, kept, f"{target.uri}: {name}@{CHAMPION} is version {version.version}")


def registered_name(into: Path) -> str:
    """The registered model that a folder's champion is of, by its manifest or by that of a former one; "" where none
    can be read."""
    for folder in (into, *(one.folder for one in replaced(into))):
        try:
            manifest = parse_manifest((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ModelRejected):
            continue
        return f"{manifest.family}-{manifest.hardware}"
    return ""


def find_target(challenger: Contender, store: str | None) -> tuple[Store, Registered] | None:
    """The store and registered version to write the decision to. Without a named store one is looked for where trainings
    go by default, and None returned where it has none. Raises InvalidInput where a named one has none."""
    run_id = challenger.manifest.mlflow_run_id
    if store is None and not _has_default_store():
        return None
    target = open_store(store)
    version = version_of_run(target, run_id) if run_id else None
    if version is not None and version.onnx_sha256 == challenger.manifest.onnx_sha256:
        return target, version
    if store is None:
        return None
    said = f"run {run_id}" if run_id else "a challenger without a run"
    raise InvalidInput("store", target.uri, f"the store in which the challenger was recorded; this one lacks {said}")


def read_files_of(challenger: Contender) -> dict[str, bytes]:
    """The files that were judged, and the card as it is now."""
    card = challenger.folder / CARD_FILE
    files = {ONNX_FILE: challenger.onnx, MANIFEST_FILE: challenger.manifest_text.encode()}
    return files | ({CARD_FILE: card.read_bytes()} if card.is_file() else {})


def _has_default_store() -> bool:
    """Whether a store is named by the environment, or lies where trainings go: none is made by being looked for."""
    named = any(os.environ.get(name) for name in ("TILEGUARD_STORE", "MLFLOW_TRACKING_URI"))
    return named or (DEFAULT_DIRECTORY / "mlflow.db").is_file()


def _write_card(path: Path, content: bytes) -> None:
    """The challenger's own card gets the decision as well, refused or not, where its folder can be written."""
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)


def describe(kept: Replaced) -> str:
    return f"{kept.onnx12[:DIGITS]}… in {kept.folder}"
