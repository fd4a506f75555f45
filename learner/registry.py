"""The registered models of a store: every training adds a version, two aliases say which of them counts.

`champion` is what is in use, and moves only by `set_champion` and `crown`; `replaced` is what it was before `crown`;
`challenger` is the newest version. A version's files are those of a folder under models/, and are served back only as
the bytes that were registered.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np

from tileguard.features.errors import InvalidInput, checked_int
from tileguard.runtime.manifest import Manifest
from tileguard.runtime.optional import require
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE

from .card import CARD_FILE
from .decision import DECISION_FILE, Decision
from .mlflow_run import write_metrics
from .store import Store, all_pages, client_of, is_error, quiet

CHAMPION, CHALLENGER, REPLACED = "champion", "challenger", "replaced"

_MODEL_FILE = "model.onnx"
"""The name that MLflow's ONNX flavour gives a model's bytes."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A registered version's files: what a folder under models/ holds."""

    version: int
    run_id: str
    onnx: bytes
    manifest: str
    card: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a registered model, and the digest of its ONNX file."""

    name: str
    version: int
    run_id: str
    onnx_sha256: str


def version_of_run(store: Store, run_id: str) -> Registered | None:
    """The newest version that a run registered; None where there is none."""
    return max(_versions(store, "run_id", run_id), key=lambda version: version.version, default=None)


def version_of_bytes(store: Store, name: str, onnx_sha256: str) -> Registered | None:
    """The newest version of the model `name` with this ONNX file; None where there is none."""
    found = [version for version in _versions(store, "name", name) if version.onnx_sha256 == onnx_sha256]
    return max(found, key=lambda version: version.version, default=None)


@quiet
def record_decision(store: Store, version: Registered, decision: Decision, card: str) -> None:
    """Write the gate's decision to the challenger's run (metrics and tags `promotion…`, decision.json, the card) and to
    its version's tags. A later decision takes the place of an earlier one; the metrics keep both."""
    client = client_of(store)
    client.log_text(version.run_id, json.dumps(decision.to_json(), indent=1) + "\n", DECISION_FILE)
    client.log_text(version.run_id, card, CARD_FILE)
    write_metrics(client, version.run_id, decision_metrics(decision))
    tags = {
        "promotion": decision.verdict,
        "promotion.failed": ", ".join(decision.failed),
        "promotion.against": decision.champion.onnx_sha256[:12],
        "promotion.held_out": decision.held_out[:1000],
        "promotion.made": decision.made,
    }
    for key, value in tags.items():
        client.set_tag(version.run_id, f"tileguard.{key}", value)
        client.set_model_version_tag(version.name, str(version.version), key, value)


def decision_metrics(decision: Decision) -> dict[str, float]:
    """A decision as metrics: promotion/promoted, /checks_failed, /select_p50_us, /onnx_bytes, and by selector (written
    as everywhere, model_at_8) lossless, severe, their differences to the champion's, better, worse, p."""
    found: dict[str, float] = {
        "promotion/promoted": decision.promoted,
        "promotion/checks_failed": len(decision.failed),
        "promotion/kernels": decision.kernels,
    }
    for check in decision.checks:
        for key in ("select_p50_us", "onnx_bytes"):
            if key in check.figures:
                found[f"promotion/{key}"] = check.figures[key]
    for pair in decision.paired:
        prefix = f"promotion/{pair.selector.replace('@', '_at_')}"
        for measure, (own, champion) in (("lossless", pair.lossless), ("severe", pair.severe)):
            found[f"{prefix}/{measure}"] = own
            found[f"{prefix}/{measure}_difference"] = own - champion
        found |= {f"{prefix}/better": pair.better, f"{prefix}/worse": pair.worse, f"{prefix}/p": pair.p}
    return {name: float(value) for name, value in found.items()}


@quiet
def crown(store: Store, version: Registered) -> int | None:
    """Point `champion` at a version and `replaced` at the one it pointed at: that one's number, None for none."""
    client = client_of(store)
    before = _aliases(client, version.name).get(CHAMPION)
    if before is not None and before != version.version:
        client.set_registered_model_alias(version.name, REPLACED, str(before))
    client.set_registered_model_alias(version.name, CHAMPION, str(version.version))
    return before


@quiet
def set_champion(store: Store, name: str, version: int) -> None:
    """Point `champion` at a version. Raises InvalidInput for an unknown name or version."""
    client = client_of(store)
    _aliases(client, name)
    version = checked_int("version", version, minimum=1)
    known = sorted(int(found.version) for found in client.search_model_versions(f"name = '{name}'"))
    if version not in known:
        raise InvalidInput("version", version, "one of " + ", ".join(map(str, known)))
    client.set_registered_model_alias(name, CHAMPION, str(version))


@quiet
def aliases(store: Store, name: str) -> dict[str, int]:
    """Alias -> version of a registered model. Raises InvalidInput for an unknown name."""
    return _aliases(client_of(store), name)


def load_onnx(store: Store, name: str, alias: str = CHAMPION) -> bytes:
    """The bytes of `models:/NAME@ALIAS`, as they were logged. Raises as `load_model`."""
    return load_model(store, name, alias).onnx


@quiet
def load_model(store: Store, name: str, alias: str = CHAMPION) -> ModelFiles:
    """The files of `models:/NAME@ALIAS`. Raises InvalidInput for an unknown name or alias, and for a model whose bytes
    are not those that were registered."""
    client = client_of(store)
    known = _aliases(client, name)
    if alias not in known:
        raise InvalidInput("alias", alias, "one of " + (", ".join(sorted(known)) or "(none is set)"))
    version = client.get_model_version(name, str(known[alias]))
    source = client.get_model_version_download_uri(name, version.version)
    with tempfile.TemporaryDirectory() as temporary:
        found = Path(
            require("mlflow.artifacts").download_artifacts(
                artifact_uri=source, dst_path=temporary, tracking_uri=store.address, registry_uri=store.address
            )
        )
        onnx = (found / _MODEL_FILE).read_bytes()
        manifest, card = ((found / file).read_text(encoding="utf-8") for file in (MANIFEST_FILE, CARD_FILE))
    digest, registered = hashlib.sha256(onnx).hexdigest(), version.tags.get("onnx_sha256")
    if digest != registered:
        raise InvalidInput(ONNX_FILE, digest, f"the SHA-256 registered for version {version.version}, {registered}")
    return ModelFiles(int(version.version), version.run_id, onnx, manifest, card)


def register(
    client: Any, name: str, *, experiment_id: str, run_id: str, onnx: bytes, manifest: Manifest, card: str
) -> int:
    """Store a run's model with manifest and card as an ONNX model of MLflow's, register it; the new version.

    `mlflow.onnx.log_model` does the same through the process's global settings, which are not ours to change.
    """
    mlflow_error = require("mlflow.exceptions").MlflowException
    logged = client.create_logged_model(experiment_id, name="ranker", source_run_id=run_id, model_type="ranker")
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            _save_onnx(folder, logged, run_id, onnx, width=len(manifest.feature_names))
            (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
            (folder / CARD_FILE).write_text(card, encoding="utf-8")
            client.log_model_artifacts(logged.model_id, str(folder))
    except BaseException:
        with suppress(Exception):
            client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [require("mlflow.entities").LoggedModelOutput(logged.model_id, step=0)])
    try:
        client.create_registered_model(name)
    except mlflow_error as error:
        if not is_error(error, "RESOURCE_ALREADY_EXISTS"):
            raise
    version = client.create_model_version(
        name, logged.artifact_location, run_id=run_id, model_id=logged.model_id,
        tags={"hardware": manifest.hardware, "family": manifest.family, "onnx_sha256": manifest.onnx_sha256},
    )  # fmt: skip
    # What links the model's page to its versions.
    link = json.dumps([{"name": name, "version": version.version}])
    client.set_logged_model_tags(logged.model_id, {"mlflow.modelVersions": link})
    return int(version.version)


def alias_newest(client: Any, name: str, version: int) -> None:
    """Point `challenger` at a new version, and `champion` where there is none yet."""
    had_champion = CHAMPION in _aliases(client, name)
    client.set_registered_model_alias(name, CHALLENGER, str(version))
    if not had_champion:
        client.set_registered_model_alias(name, CHAMPION, str(version))


@quiet
def _versions(store: Store, key: str, value: str) -> list[Registered]:
    if not value or "'" in value:  # no id and no name that was registered; the query has no escape
        return []
    search = functools.partial(client_of(store).search_model_versions, f"{key} = '{value}'")
    return [
        Registered(version.name, int(version.version), version.run_id, version.tags.get("onnx_sha256", ""))
        for version in all_pages(search)
    ]


def _save_onnx(folder: Path, logged: Any, run_id: str, onnx: bytes, *, width: int) -> None:
    types, models = require("mlflow.types"), require("mlflow.models")
    model = models.Model(artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id)
    require("mlflow.onnx").save_model(
        require("onnx").load_from_string(onnx),
        str(folder),
        mlflow_model=model,
        signature=models.ModelSignature(
            types.Schema([types.TensorSpec(np.dtype(np.float64), (-1, width), "X")]),
            types.Schema([types.TensorSpec(np.dtype(np.float64), (-1, 1), "scores")]),
        ),
        pip_requirements=[f"{name}=={installed(name)}" for name in ("onnx", "onnxruntime", "numpy")],
        onnx_execution_providers=["CPUExecutionProvider"],
        save_as_external_data=False,
    )
    # The same graph may be written in other bytes; the manifest's digest is that of these.
    (folder / _MODEL_FILE).write_bytes(onnx)


def _aliases(client: Any, name: str) -> dict[str, int]:
    try:
        found = client.get_registered_model(name)
    except require("mlflow.exceptions").MlflowException as error:
        if not is_error(error, "RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        known = ", ".join(sorted(model.name for model in all_pages(client.search_registered_models)))
        raise InvalidInput("name", name, f"one of {known}" if known else "a registered model; there is none") from None
    return {alias: int(version) for alias, version in found.aliases.items()}
